"""Codes 25 and 26: the broker's settings, by Java's names (2.12).

An operator may change while it runs what Java's broker looks at while it runs; who it is and where
its files are stays until the next start. What was changed is kept in a file of its own and holds
over restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from coherer import limits
from coherer._common.logs import Log
from coherer._record.system_topics import levels_text
from coherer._rules.common.versions import DataVersion
from coherer._server.rocketmq.broker.admin.common import done
from coherer._server.rocketmq.broker.options import RocketOptions
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.refusal import Refusal
from coherer._server.rocketmq.remoting import Handler, of_anyone
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq import settings as texts
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import VersionResult

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
"""Settings that only a start can change, and the options behind them."""

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
"""Settings that an operator may change, and the options behind them."""

ABSENT: Final = {
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "useTLS": "false",
}
"""What this broker does not have, or not by a setting; Java's tools stop without them."""

_FOR_EVER_HOURS: Final = 2**31 - 1
_PERM: Final = "brokerPermission"
_READ_WRITE: Final = 6


class SettingsDesk:
    """Shows and changes settings.

    Args:
        state: what the broker's parts share.

    Raises:
        DamagedStoreError: the file of changed settings cannot be read.
    """

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._version = DataVersion()
        self._changed: dict[str, str] = {}
        saved = state.store.read_config(SETTINGS_FILE, partial(texts.parse_file, SETTINGS_FILE))
        if saved is not None:
            self._take(saved)

    def handlers(self) -> dict[int, Handler]:
        """What is answered here, by request code."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: of_anyone(self.update),
            RequestCode.GET_BROKER_CONFIG: of_anyone(self.show),
        }

    def show(self, _: Command) -> Command:
        """Code 26: all settings."""
        version = msgspec.to_builtins(self._version)
        answer = done(fields=VersionResult(fastjson.dumps(version).decode()).fields())
        answer.body = texts.compose(self.values()).encode()
        return answer

    def values(self) -> dict[str, str]:
        """All settings, as text."""
        options, core = self._state.options, self._state.core
        shown = {
            name: fastjson.text(getattr(options, attribute))
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
            "fileReservedTime": str(_FOR_EVER_HOURS if hours is None else max(1, round(hours))),
            "messageDelayLevel": levels_text(store.options.delay_levels_ms),
        }

    def update(self, request: Command) -> Command:
        """Code 25: change settings; unknown ones and those that are fixed are passed over.

        Raises:
            Refusal: the body is no such text.
            StoreError: they cannot be written.
        """
        if len(request.body) > limits.SETTINGS_BYTES_MAX:
            remark = f"settings of more than {limits.SETTINGS_BYTES_MAX} bytes are not read"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        try:
            told = texts.parse(str(request.body, "utf-8", "replace"))
        except ValueError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "string2Properties error") from error
        before = self._state.options.perm
        if self._take(told):
            state = self._state
            self._version = self._version.next(state.now_ms())
            state.core.files.save(SETTINGS_FILE, self._content)
            if state.options.perm != before:
                state.topics.touch(state.now_ms())
        return done()

    def _content(self) -> bytes:
        return texts.compose_file(self._changed).encode()

    def _take(self, told: dict[str, str]) -> bool:
        """Change the options. Returns whether any setting was one that may be changed."""
        new: dict[str, bool | int | str] = {}
        for name, value in told.items():
            attribute = CHANGEABLE.get(name)
            if attribute is None:
                continue
            read = _READERS[type(getattr(self._state.options, attribute))]
            try:
                new[attribute] = _checked(name, read(value))
            except ValueError:
                _log.warning("Setting %s cannot be %r", name, value)
                continue
            self._changed[name] = value
        if new:
            options: RocketOptions = msgspec.structs.replace(self._state.options, **new)
            self._state.change(options)
        return bool(new)


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
