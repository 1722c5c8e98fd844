"""How the administration asks servers: each master of a cluster, or a broker by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable

from coherer._client.engine import administration
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import NO_FIELDS, Fields
from coherer._client.rocketmq.routing import MASTER
from coherer._wire.rocketmq import java_properties
from coherer._wire.rocketmq.bodies import ClusterInfo
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused
from coherer._wire.rocketmq.command import Command
from coherer.errors import ProtocolError, UnavailableError


class Servers:
    """The servers of a cluster."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._timeout_ms = instance.options.timeout_ms

    async def cluster(self) -> ClusterInfo:
        """All registered brokers and clusters."""
        await self.instance.start()
        answer = await self.instance.names.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(answer.body)

    async def masters(self, brokers: Iterable[str] | None = None) -> dict[str, str]:
        """The addresses of masters by broker name; of these brokers, or of all that have one.

        Raises:
            UnavailableError: one of these brokers has no master, or no broker has.
        """
        if brokers is None:
            return (await self.with_and_without_master())[0]
        return self._masters_of(brokers, await self.cluster())

    async def with_and_without_master(self) -> tuple[dict[str, str], list[str]]:
        """The addresses of all masters by broker name, and the brokers of which only slaves are up.

        Raises:
            UnavailableError: no broker has a master.
        """
        cluster = await self.cluster()
        masters = masters_in(cluster)
        without_master = sorted(cluster.broker_addr_table.keys() - masters.keys())
        if not masters and without_master:
            raise unknown_broker(self.instance, ", ".join(without_master))
        if not masters:
            raise UnavailableError("No broker is registered.", hint="Is one up?")
        return masters, without_master

    async def readable(self) -> dict[str, str]:
        """The address of each broker's master, or of a slave while it has none, by broker name.

        A slave has copied topics, groups and offsets, and consumers are connected to it, too.
        Producers are not.

        Raises:
            UnavailableError: no broker is registered.
        """
        table = (await self.cluster()).broker_addr_table
        if not table:
            raise UnavailableError("No broker is registered.", hint="Is one up?")
        return {
            name: one.broker_addrs[min(one.broker_addrs)]
            for name, one in table.items()
            if one.broker_addrs
        }

    async def replicas(self, brokers: Iterable[str] | None = None) -> list[str]:
        """The addresses of the masters and slaves of these brokers, or of all; masters first.

        Raises:
            UnavailableError: one of these brokers has no master, or no broker is registered.
        """
        cluster = await self.cluster()
        table = cluster.broker_addr_table
        if not table:
            raise UnavailableError("No broker is registered.", hint="Is one up?")
        names = table.keys() if brokers is None else self._masters_of(brokers, cluster).keys()
        found = sorted(
            (number != MASTER, name, number, address)
            for name in names
            for number, address in table[name].broker_addrs.items()
        )
        return [address for *_, address in found]

    def _masters_of(self, brokers: Iterable[str], cluster: ClusterInfo) -> dict[str, str]:
        brokers, masters = list(brokers), masters_in(cluster)
        missing = sorted(set(brokers) - masters.keys())
        if missing:
            raise unknown_broker(self.instance, ", ".join(missing))
        return {name: masters[name] for name in brokers}

    async def ask(
        self,
        address: str,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        accepted: Container[int] = (ResponseCode.SUCCESS,),
        broker: str = "",
    ) -> Command:
        link = await self.instance.link(address, fast=True)
        answer = await link.call(code, fields, body, timeout_ms=self._timeout_ms, broker=broker)
        if answer.code not in accepted:
            topic = fields.get("topic")
            raise refused(answer.code, answer.remark, server=link.server, topic=topic)
        return answer

    async def ask_broker(
        self,
        broker: str,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        accepted: Container[int] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """Send a request to the master of this name."""
        address = self.instance.routes.masters.get(broker)
        if address is None:
            address = (await self.masters([broker]))[broker]
        return await self.ask(address, code, fields, body, accepted=accepted, broker=broker)

    async def ask_each(
        self, addresses: Iterable[str], code: int, fields: Fields = NO_FIELDS, body: bytes = b""
    ) -> list[Command]:
        asked = (self.ask(address, code, fields, body) for address in addresses)
        return list(await asyncio.gather(*asked))

    async def ask_masters(
        self,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        brokers: Iterable[str] | None = None,
    ) -> list[Command]:
        masters = await self.masters(brokers)
        return await self.ask_each(masters.values(), code, fields, body)

    async def ask_readable(self, code: int, fields: Fields = NO_FIELDS) -> list[Command]:
        return await self.ask_each((await self.readable()).values(), code, fields)


class Part(administration.Part):
    """A part of the administration of a cluster."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._instance = servers.instance

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._instance.options.servers!r})"


def masters_in(cluster: ClusterInfo) -> dict[str, str]:
    """The addresses of a cluster's masters, by broker name."""
    return {
        name: broker.broker_addrs[MASTER]
        for name, broker in cluster.broker_addr_table.items()
        if MASTER in broker.broker_addrs
    }


def unknown_broker(instance: Instance, name: str) -> UnavailableError:
    """The error for a broker without a registered master."""
    return UnavailableError(
        f"No master of {name} is registered.",
        server=instance.options.servers,
        hint="Is the name right, and is it up?",
    )


def settings(body: bytes | memoryview) -> dict[str, str]:
    """The settings in an answer of a server.

    Raises:
        ProtocolError: they are not valid UTF-8.
    """
    try:
        return java_properties.parse(str(body, "utf-8"))
    except UnicodeDecodeError as error:
        raise ProtocolError("The settings of a server are not valid UTF-8.") from error
