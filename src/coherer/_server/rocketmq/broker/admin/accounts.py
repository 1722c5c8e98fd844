"""Codes 50 to 54: accounts and trusted addresses (2.16).

Without access control Java's broker does not answer 52 and 54 at all, so that clients wait; here
they are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coherer._rules.rocketmq.acl import Account
from coherer._server.rocketmq.broker.admin.common import done
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Handler, Refusal, of_anyone
from coherer._wire.rocketmq import bodies, fastjson
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    AccessKeyHeader,
    AccountHeader,
    AclVersionResult,
    WhiteAddressesHeader,
    parse,
)
from coherer.errors import StoreError, UsageError

if TYPE_CHECKING:  # what reads its files takes its time to load, and few need it
    from coherer._server.rocketmq.acl import Access

_OFF = "access control is not enabled on this broker"


class AccountDesk:
    """Shows and changes who may do what.

    Args:
        state: what the broker's parts share.
        access: the accounts; None without access control.
    """

    def __init__(self, state: RocketState, access: Access | None) -> None:
        self._state = state
        self._access = access

    def handlers(self) -> dict[int, Handler]:
        """What is answered here, by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: of_anyone(self.put),
            RequestCode.DELETE_ACL_CONFIG: of_anyone(self.delete),
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: of_anyone(self.versions),
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: of_anyone(self.trust),
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: of_anyone(self.everything),
        }

    def put(self, request: Command) -> Command:
        """Code 50: an account shall be so; what is not said stays as it is.

        Raises:
            Refusal: with 209 when it cannot be so.
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
            access.put(given, self._state.now_ms())
        except (UsageError, StoreError) as error:
            raise Refusal(failed, error.text) from error
        return done()

    def delete(self, request: Command) -> Command:
        """Code 51: an account shall no longer be.

        Raises:
            Refusal: with 210 when there is none.
        """
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        access = self._switched_on(failed)
        key = parse(AccessKeyHeader, request.fields).access_key or ""
        try:
            if access.delete(key, self._state.now_ms()):
                return done()
        except StoreError as error:
            raise Refusal(failed, error.text) from error
        remark = f"The accesskey[{key}] corresponding to accessConfig has been deleted failed."
        raise Refusal(failed, remark)

    def trust(self, request: Command) -> Command:
        """Code 53: these addresses shall be trusted, and no others of the default file.

        Raises:
            Refusal: with 211 when they are no addresses, or the file has none that it trusts.
        """
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        access = self._switched_on(failed)
        told = parse(WhiteAddressesHeader, request.fields).global_white_addrs or ""
        try:
            if access.trust(_split(told) or [], self._state.now_ms()):
                return done()
        except (UsageError, StoreError) as error:
            raise Refusal(failed, error.text) from error
        raise Refusal(failed, f"The globalWhiteAddresses[{told}] has been updated failed.")

    def versions(self, _: Command) -> Command:
        """Code 52: the versions of the files.

        Raises:
            Refusal: there is no access control.
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

    def everything(self, _: Command) -> Command:
        """Code 54: all accounts, secrets included, as mqadmin shows them.

        Raises:
            Refusal: there is no access control.
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
