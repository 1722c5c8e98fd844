"""Administration of accounts (docs/protocol/rocketmq.md, section 12)."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence

from coherer._client.engine.arguments import checked
from coherer._client.rocketmq.administration.servers import Part
from coherer._client.rocketmq.link import Fields
from coherer._wire.rocketmq.bodies import AclConfig
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.headers import AccessKeyHeader, AccountHeader, WhiteAddressesHeader
from coherer.admin import Account
from coherer.errors import CohererError, RefusedError


@checked
class AccountAdmin(Part):
    """The accounts of a cluster: `admin.accounts`."""

    _INSTEAD = "accounts.list"

    async def list(self, broker: str | None = None) -> builtins.list[Account] | None:
        """The accounts, sorted by name; None if no broker lists them.

        Java's brokers do not answer if their access control is off, which takes the client's
        `timeout_ms` for each of them.

        Args:
            broker: the name of a broker; None for the first master that answers.

        Raises:
            RequestTimeoutError: the named broker does not answer.
        """
        config = await self._config(broker)
        if config is None:
            return None
        found = (
            Account(
                name=one.access_key or "",
                admin=one.admin,
                addresses=one.white_remote_address or "",
                topics=_permissions(one.topic_perms, one.default_topic_perm),
                groups=_permissions(one.group_perms, one.default_group_perm),
            )
            for one in config.plain_access_configs
        )
        return sorted(found, key=lambda account: account.name)

    async def white_addresses(self, broker: str | None = None) -> builtins.list[str] | None:
        """The addresses that need no account; None if no broker lists them."""
        config = await self._config(broker)
        return None if config is None else config.global_white_addrs

    async def _config(self, broker: str | None) -> AclConfig | None:
        await self._instance.start()
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        if broker is not None:
            return AclConfig.decode((await self._servers.ask_broker(broker, code)).body)
        for name in await self._servers.masters():
            try:
                answer = await self._servers.ask_broker(name, code)
            except CohererError:
                continue
            return AclConfig.decode(answer.body)
        return None

    async def set(
        self,
        access_key: str,
        secret_key: str,
        *,
        admin: bool = False,
        address: str = "",
        default_topic_perm: str = "DENY",
        default_group_perm: str = "DENY",
        topic_perms: Sequence[str] = (),
        group_perms: Sequence[str] = (),
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create or change an account, at masters and slaves.

        A broker that is down keeps the old account: change it again when the broker is back.

        Args:
            access_key: the name, more than 6 characters.
            secret_key: the secret, more than 6 characters.
            admin: whether it may change the cluster.
            address: addresses from which it needs no signature.
            default_topic_perm: `DENY`, `PUB`, `SUB` or `PUB|SUB`, for topics that are not listed.
            default_group_perm: the same for groups.
            topic_perms: as `topic=PUB|SUB`.
            group_perms: as `group=SUB`.
            brokers: names of brokers; all when None.

        Raises:
            AclUpdateError: a broker or slave refuses it; others may have changed it.
            UnavailableError: one does not answer.
        """
        header = AccountHeader(
            access_key,
            secret_key,
            address or None,
            admin,
            default_topic_perm,
            default_group_perm,
            ",".join(topic_perms) or None,
            ",".join(group_perms) or None,
        )
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        await self._change(code, header.fields(), brokers)

    async def delete(self, access_key: str, brokers: Iterable[str] | None = None) -> None:
        """Delete an account, at masters and slaves.

        A broker that is down keeps the account: delete it again when the broker is back.

        Args:
            access_key: its name.
            brokers: names of brokers; all when None.

        Raises:
            AclDeleteError: no broker has it, or one could not delete it.
            UnavailableError: a broker or slave does not answer.
        """
        await self._instance.start()
        code, fields = RequestCode.DELETE_ACL_CONFIG, AccessKeyHeader(access_key).fields()
        refusal: RefusedError | None = None
        deleted = False
        for address in await self._servers.replicas(brokers):
            try:
                await self._servers.ask(address, code, fields)
            except RefusedError as error:
                # Brokers also say this if they do not have the account. Those of `--brokers` share
                # their files, so that the first one deletes it for all.
                if error.code != ResponseCode.DELETE_ACL_CONFIG_FAILED:
                    raise
                if await self._has(address, access_key):
                    raise
                refusal = error
            else:
                deleted = True
        if not deleted and refusal is not None:
            raise refusal

    async def _has(self, address: str, access_key: str) -> bool:
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        config = AclConfig.decode((await self._servers.ask(address, code)).body)
        return any(one.access_key == access_key for one in config.plain_access_configs)

    async def set_white_addresses(
        self, addresses: Sequence[str], brokers: Iterable[str] | None = None
    ) -> None:
        """Set the addresses that need no account, at masters and slaves.

        Args:
            addresses: the addresses, such as `10.0.0.*`.
            brokers: names of brokers; all when None.

        Raises:
            AclWhiteListError: a broker or slave refuses them; others may have changed them.
            UnavailableError: one does not answer.
        """
        fields = WhiteAddressesHeader(",".join(addresses)).fields()
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        await self._change(code, fields, brokers)

    async def _change(self, code: int, fields: Fields, brokers: Iterable[str] | None) -> None:
        """Ask one after the other, as brokers of one machine share their files, and lock them."""
        await self._instance.start()
        for address in await self._servers.replicas(brokers):
            await self._servers.ask(address, code, fields)


def _permissions(listed: Sequence[str] | None, other: str | None) -> dict[str, str]:
    """Permissions by name.

    >>> _permissions(["orders=PUB|SUB"], "DENY")
    {'orders': 'PUB|SUB', '*': 'DENY'}
    """
    found = {
        name: permission for name, _, permission in (text.partition("=") for text in listed or ())
    }
    return {**found, **({"*": other} if other else {})}
