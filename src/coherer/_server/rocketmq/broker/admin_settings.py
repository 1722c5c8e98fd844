"""Settings and accounts of a broker.

Settings by Java's names: codes 25 and 26 (docs/protocol/rocketmq.md, section 2.12). Operators may
change settings that Java's broker reads at run time; its identity and directories can only change
at a start. Changed settings are kept in a separate file, so that they survive restarts. (Java
writes them to its configuration file. A node's may be read-only, and its options may come from the
environment.) At each start this file takes precedence over the node's options;
`coherer config show` lists its content.

Accounts and trusted addresses: codes 50 to 54 (section 2.16). Without access control Java's broker
does not answer 52 and 54, and clients wait until their timeout; here they are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec

from coherer._common.logs import Log
from coherer._record.system_topics import levels_text
from coherer._rules.common.java_json import DataVersion
from coherer._rules.rocketmq.acl import Account
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.acl import Access
from coherer._server.rocketmq.broker.admin_common import done
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Refusal, settings_in
from coherer._store.secret_files import AccountsInUseError
from coherer._wire.rocketmq import bodies, fastjson
from coherer._wire.rocketmq import java_properties as texts
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    AccessKeyHeader,
    AccountHeader,
    AclVersionResult,
    VersionResult,
    WhiteAddressesHeader,
    parse,
)
from coherer.errors import StoreError, UsageError

_log = Log(logging.getLogger(__name__))

SETTINGS_FILE: Final = "broker.properties"

FIXED: Final = {
    "brokerClusterName": "cluster",
    "brokerName": "broker",
    "brokerId": "broker_id",
    "brokerIP1": "host",
    "listenPort": "port",
    "haListenPort": "ha_port",
    "brokerRole": "role",
    "defaultTopicQueueNums": "default_queues",
    "traceTopicEnable": "trace_topic",
    "transactionTimeOut": "transaction_timeout_ms",
    "transactionCheckMax": "transaction_checks_max",
    "transactionCheckInterval": "transaction_interval_ms",
}
"""Settings that only a restart can change, and their options."""

CHANGEABLE: Final = {
    "regionId": "region",
    "traceOn": "trace_on",
    "brokerPermission": "perm",
    "autoCreateTopicEnable": "auto_create_topics",
    "autoCreateSubscriptionGroup": "auto_create_groups",
    "maxMessageSize": "message_bytes_max",
    "maxTransferCountOnMessageInMemory": "pull_count_max",
    "maxTransferBytesOnMessageInMemory": "pull_bytes_max",
    "longPollingEnable": "long_polling",
    "shortPollingTimeMills": "short_polling_ms",
    "rejectTransactionMessage": "reject_transactions",
    "enablePropertyFilter": "property_filter",
    "filterSupportRetry": "filter_retries",
    "startAcceptSendRequestTimeStamp": "accept_sends_from_ms",
    "notifyConsumerIdsChangedEnable": "notify_members",
    "storeReplyMessageEnable": "store_replies",
    "slaveReadEnable": "slave_reads",
    "syncFlushTimeout": "flush_timeout_ms",
    "slaveTimeout": "slave_timeout_ms",
}
"""Settings that an operator may change, and their options."""

ABSENT: Final = {
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "useTLS": "false",
}
"""Settings without an option that Java's tools need."""

RETENTION: Final = "fileReservedTime"
"""The number of hours that the log keeps; an operator may change it, too."""

OPTIONS: Final = {
    "autoCreateTopicEnable": "auto_create_topics",
    "maxMessageSize": "max_message_bytes",
    RETENTION: "retention_hours",
}
"""The options of a node over which a changed setting takes precedence."""

_FOR_EVER_HOURS: Final = 2**31 - 1
_PERM: Final = "brokerPermission"
_READ_WRITE: Final = 6


class ConfigAdmin:
    """Reads and changes settings.

    Raises:
        DamagedStoreError: the file of changed settings is invalid.
    """

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._version = DataVersion()
        self._changed: dict[str, str] = {}
        saved = state.store.read_config(SETTINGS_FILE, partial(texts.parse_file, SETTINGS_FILE))
        if saved is not None:
            self._take(saved)

    def get(self, _: Command) -> Command:
        """GET_BROKER_CONFIG (26): all settings."""
        version = msgspec.to_builtins(self._version)
        answer = done(fields=VersionResult(fastjson.dumps(version).decode()).fields())
        answer.body = texts.compose(self.values()).encode()
        return answer

    def values(self) -> dict[str, str]:
        """All settings as text."""
        options, core = self._state.options, self._state.core
        shown = {
            name: fastjson.to_text(getattr(options, attribute))
            for name, attribute in (FIXED | CHANGEABLE).items()
        }
        shown["brokerIP2"] = options.host
        shown["flushDiskType"] = "SYNC_FLUSH" if core.sync_flush else "ASYNC_FLUSH"
        return shown | self._of_store() | ABSENT

    def _of_store(self) -> dict[str, str]:
        store = self._state.store
        hours = store.options.retention_hours
        return {
            "storePathRootDir": str(store.directory),
            "storePathCommitLog": str(store.directory / "commitlog"),
            "mappedFileSizeCommitLog": str(store.options.segment_bytes),
            RETENTION: str(_FOR_EVER_HOURS if hours is None else max(1, round(hours))),
            "messageDelayLevel": levels_text(store.options.delay_levels_ms),
        }

    def update(self, request: Command) -> Command:
        """UPDATE_BROKER_CONFIG (25): change settings; unknown and fixed ones are ignored.

        Raises:
            Refusal: the body is invalid.
            StoreError: they could not be written.
        """
        given = settings_in(request)
        if self._take(given):
            state = self._state
            self._version = self._version.next(state.now_ms())
            state.core.files.save(SETTINGS_FILE, self._content)
        return done()

    def _content(self) -> bytes:
        return texts.compose_file(self._changed).encode()

    def _take(self, given: dict[str, str]) -> bool:
        """Change the options. Returns whether any of the settings may be changed."""
        new: dict[str, bool | int | str] = {}
        kept = self._take_retention(given)
        for name, value in given.items():
            attribute = CHANGEABLE.get(name)
            if attribute is None:
                continue
            read = _READERS[type(getattr(self._state.options, attribute))]
            try:
                new[attribute] = _checked(name, read(value))
            except ValueError:
                _log.warning("Ignored invalid value %r of setting %s", value, name)
                continue
            self._changed[name] = value
        if new:
            options: RocketOptions = msgspec.structs.replace(self._state.options, **new)
            self._state.change(options)
        return bool(new) or kept

    def _take_retention(self, given: dict[str, str]) -> bool:
        """Change how long the log keeps messages of both protocols; return whether it did."""
        text = given.get(RETENTION)
        if text is None:
            return False
        try:
            hours = int(text)
        except ValueError:
            hours = 0
        if hours <= 0:
            _log.warning("Ignored invalid value %r of setting %s", text, RETENTION)
            return False
        store = self._state.store
        store.options = msgspec.structs.replace(
            store.options, retention_hours=None if hours >= _FOR_EVER_HOURS else hours
        )
        self._changed[RETENTION] = text
        return True


def _boolean(text: str) -> bool:
    return text.strip().lower() == "true"


_READERS: Final[dict[type, Callable[[str], bool | int | str]]] = {
    bool: _boolean,
    int: int,
    str: str,
}


def _checked(name: str, value: bool | int | str) -> bool | int | str:
    if isinstance(value, int) and value < 0:
        raise ValueError(name)
    if name == _PERM and isinstance(value, int) and value > _READ_WRITE | 1:
        raise ValueError(name)
    return value


_OFF = "access control is not enabled on this broker"

T = TypeVar("T")

IN_USE_S: Final = 2.0
"""How long a change of accounts waits for other brokers of `--brokers`, which share the files."""
_PAUSE_S: Final = 0.01


async def _unless_in_use(change: Callable[[], T]) -> T:
    """Change files of accounts when no other process does.

    Raises:
        AccountsInUseError: another process does not end.
    """
    for _ in range(round(IN_USE_S / _PAUSE_S)):
        with suppress(AccountsInUseError):
            return change()
        await asyncio.sleep(_PAUSE_S)
    return change()


class AclAdmin:
    """Reads and changes accounts.

    Args:
        access: None without access control.
    """

    def __init__(self, state: RocketState, access: Access | None) -> None:
        self._state = state
        self._access = access

    async def put(self, request: Command) -> Command:
        """UPDATE_AND_CREATE_ACL_CONFIG (50): create an account or change given fields.

        Raises:
            Refusal: with 209 if the account is invalid.
        """
        failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        access = self._switched_on(failed)
        header = parse(AccountHeader, request.fields)
        changes: dict[str, object] = {
            "accessKey": header.access_key or "",
            "secretKey": header.secret_key,
            "whiteRemoteAddress": header.white_remote_address,
            "admin": header.admin,
            "defaultTopicPerm": header.default_topic_perm,
            "defaultGroupPerm": header.default_group_perm,
            "topicPerms": _split(header.topic_perms),
            "groupPerms": _split(header.group_perms),
        }
        given = {name: value for name, value in changes.items() if value is not None}
        try:
            await _unless_in_use(lambda: access.put(given, self._state.now_ms()))
        except (UsageError, StoreError) as error:
            raise Refusal(failed, error.text) from error
        return done()

    async def delete(self, request: Command) -> Command:
        """DELETE_ACL_CONFIG (51): delete an account.

        Raises:
            Refusal: with 210 if it does not exist.
        """
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        access = self._switched_on(failed)
        key = parse(AccessKeyHeader, request.fields).access_key or ""
        try:
            if await _unless_in_use(lambda: access.delete(key, self._state.now_ms())):
                return done()
        except StoreError as error:
            raise Refusal(failed, error.text) from error
        remark = f"The accesskey[{key}] corresponding to accessConfig has been deleted failed."
        raise Refusal(failed, remark)

    async def set_trusted_addresses(self, request: Command) -> Command:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): replace the trusted addresses of the default file.

        Raises:
            Refusal: with 211 if an address is invalid, or the file has no trusted addresses.
        """
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        access = self._switched_on(failed)
        text = parse(WhiteAddressesHeader, request.fields).global_white_addrs or ""
        try:
            texts = _split(text) or []
            if await _unless_in_use(lambda: access.trust(texts, self._state.now_ms())):
                return done()
        except (UsageError, StoreError) as error:
            raise Refusal(failed, error.text) from error
        raise Refusal(failed, f"The globalWhiteAddresses[{text}] has been updated failed.")

    def versions(self, _: Command) -> Command:
        """GET_BROKER_CLUSTER_ACL_INFO (52): the versions of the files.

        Raises:
            Refusal: access control is off.
        """
        access = self._switched_on(ResponseCode.SYSTEM_ERROR)
        options = self._state.options
        files = {path: msgspec.to_builtins(each) for path, each in access.versions.items()}
        result = AclVersionResult(
            version=fastjson.dumps(msgspec.to_builtins(access.version)).decode(),
            all_acl_file_version=fastjson.dumps(files).decode(),
            broker_name=options.broker,
            broker_addr=options.address,
            cluster_name=options.cluster,
        )
        return done(fields=result.fields())

    def get_all(self, _: Command) -> Command:
        """GET_BROKER_CLUSTER_ACL_CONFIG (54): all accounts with their secrets, for mqadmin.

        Raises:
            Refusal: access control is off.
        """
        access = self._switched_on(ResponseCode.SYSTEM_ERROR)
        return done(
            bodies.AclConfig(
                global_white_addrs=access.trusted,
                plain_access_configs=[_config(account) for account in access.accounts],
            )
        )

    def _switched_on(self, code: ResponseCode) -> Access:
        if self._access is None:
            raise Refusal(code, _OFF)
        return self._access


def _split(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def _config(account: Account) -> bodies.PlainAccessConfig:
    return bodies.PlainAccessConfig(
        access_key=account.access_key,
        secret_key=account.secret_key,
        white_remote_address=account.white_remote_address,
        admin=account.admin,
        default_topic_perm=account.default_topic_perm,
        default_group_perm=account.default_group_perm,
        topic_perms=None if account.topic_perms is None else list(account.topic_perms),
        group_perms=None if account.group_perms is None else list(account.group_perms),
    )
