"""How administration asks: each master of the cluster, or a broker by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime

from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import NO_FIELDS, Fields
from coherer._client.rocketmq.routing import MASTER
from coherer._wire.rocketmq.bodies import ClusterInfo
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused
from coherer._wire.rocketmq.command import Command
from coherer.errors import UnavailableError


class Asking:
    """Calls to servers.

    Args:
        instance: the way to the cluster.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._timeout_ms = instance.options.timeout_ms

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._instance.options.servers!r})"

    async def cluster(self) -> ClusterInfo:
        """All brokers and clusters that the name servers know."""
        await self._instance.start()
        answer = await self._instance.names.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(answer.body)

    async def _masters(self, brokers: Iterable[str] | None = None) -> dict[str, str]:
        """Addresses of masters by their broker's name; those named, or all.

        Raises:
            UnavailableError: one that is named, or every one, is not known.
        """
        table = (await self.cluster()).broker_addr_table
        masters = {
            name: broker.broker_addrs[MASTER]
            for name, broker in table.items()
            if MASTER in broker.broker_addrs
        }
        if brokers is None:
            if not masters:
                raise UnavailableError("The name servers know no broker.", hint="Is one up?")
            return masters
        missing = sorted(set(brokers) - masters.keys())
        if missing:
            raise unknown_broker(self._instance, ", ".join(missing))
        return {name: masters[name] for name in brokers}

    async def _ask(
        self, address: str, code: int, fields: Fields = NO_FIELDS, body: bytes = b""
    ) -> Command:
        link = await self._instance.link(address, fast=True)
        answer = await link.call(code, fields, body, timeout_ms=self._timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            topic = fields.get("topic")
            raise refused(answer.code, answer.remark, server=link.server, topic=topic)
        return answer

    async def _ask_broker(
        self, broker: str, code: int, fields: Fields = NO_FIELDS, body: bytes = b""
    ) -> Command:
        """Ask the master of a name."""
        address = self._instance.routes.masters.get(broker)
        if address is None:
            address = (await self._masters([broker]))[broker]
        return await self._ask(address, code, fields, body)

    async def _ask_each(
        self, addresses: Iterable[str], code: int, fields: Fields = NO_FIELDS, body: bytes = b""
    ) -> list[Command]:
        asked = (self._ask(address, code, fields, body) for address in addresses)
        return list(await asyncio.gather(*asked))

    async def _ask_masters(
        self,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        brokers: Iterable[str] | None = None,
    ) -> list[Command]:
        masters = await self._masters(brokers)
        return await self._ask_each(masters.values(), code, fields, body)


def unknown_broker(instance: Instance, name: str) -> UnavailableError:
    """What is raised for a broker without a master."""
    return UnavailableError(
        f"The name servers know no master of {name}.",
        server=instance.options.servers,
        hint="Is that its name, and is it up?",
    )


def to_ms(time: datetime) -> int:
    """A time as ms since 1970; a naive one is local.

    >>> from datetime import UTC
    >>> to_ms(datetime(2024, 1, 1, tzinfo=UTC))
    1704067200000
    """
    return int(time.timestamp() * 1000)
