"""Administration of brokers (docs/protocol/rocketmq.md, section 12)."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Mapping

from msgspec.structs import replace

from coherer import admin
from coherer._client.engine.arguments import checked
from coherer._client.rocketmq.administration.records import Counter, counter_of
from coherer._client.rocketmq.administration.runtime import with_runtime
from coherer._client.rocketmq.administration.servers import Part, settings, unknown_broker
from coherer._client.rocketmq.routing import MASTER
from coherer._common.logs import Log
from coherer._wire.rocketmq import java_properties
from coherer._wire.rocketmq.bodies import BrokerStats, KVTable
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.headers import BrokerNameHeader, ViewStatsHeader
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))


@checked
class BrokerAdmin(Part):
    """The brokers of a cluster: `admin.brokers`."""

    _INSTEAD = "brokers.list"

    async def list(self, *, runtime: bool = True) -> builtins.list[admin.Broker]:
        """The registered brokers, sorted by name and id.

        Args:
            runtime: ask each broker for its state; without it, `status` and the figures are None.
        """
        table = (await self._servers.cluster()).broker_addr_table
        states = [
            admin.Broker(
                name,
                number,
                address,
                role="master" if number == MASTER else "slave",
                cluster=broker.cluster or None,
            )
            for name, broker in sorted(table.items())
            for number, address in sorted(broker.broker_addrs.items())
        ]
        if not runtime:
            return states
        return list(await asyncio.gather(*(self._running(state) for state in states)))

    async def _running(self, broker: admin.Broker) -> admin.Broker:
        try:
            answer = await self._servers.ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            table = KVTable.decode(answer.body).table
        except CohererError as error:
            _log.warning("Cannot read the state of broker %s: %s", broker.name, error)
            return replace(broker, status="silent")
        return with_runtime(broker, table, answer.version)

    async def index_delay_bytes(self) -> dict[str, int | None]:
        """How far the indexes of the masters are behind their logs, by broker name.

        None if a broker does not report it. Usually the index is a few milliseconds behind; after
        a crash it can take seconds to catch up.
        """
        states = await self.list()
        return {
            state.name: int(text) if (text := state.reported.get("dispatchBehindBytes")) else None
            for state in states
            if state.id == MASTER
        }

    async def config(self, broker: str) -> dict[str, str]:
        """The settings of a master."""
        await self._instance.start()
        answer = await self._servers.ask_broker(broker, RequestCode.GET_BROKER_CONFIG)
        return settings(answer.body)

    async def set_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running master."""
        await self._instance.start()
        body = java_properties.compose(changes).encode()
        await self._servers.ask_broker(broker, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def set_writable(self, broker: str, *, writable: bool) -> None:
        """Revoke or restore a broker's write permission at all name servers.

        Raises:
            UnavailableError: the broker is not registered, or a name server is down.
        """
        await self._instance.start()
        code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
        if writable:
            code = RequestCode.ADD_WRITE_PERM_OF_BROKER
        answers = await self._instance.names.ask_all(code, BrokerNameHeader(broker).fields())
        if all({*answer.fields.values()} == {"0"} for answer in answers):
            raise unknown_broker(self._instance, broker)

    async def counter(self, broker: str, name: str, key: str) -> Counter:
        """A counter of a master, `TOPIC_PUT_NUMS` of a topic for example.

        Raises:
            RefusedError: there is no such counter.
        """
        await self._instance.start()
        fields = ViewStatsHeader(name, key).fields()
        answer = await self._servers.ask_broker(broker, RequestCode.VIEW_BROKER_STATS_DATA, fields)
        return counter_of(BrokerStats.decode(answer.body))

    async def clean(self, broker: str) -> None:
        """Have a master delete expired index files and unused topics."""
        await self._instance.start()
        for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC):
            await self._servers.ask_broker(broker, code)
