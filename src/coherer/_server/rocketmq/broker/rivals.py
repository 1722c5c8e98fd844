"""Finds another master that has this broker's name, before the broker registers.

When the machine of a broker is lost, its slave is started as the master. If the old master is then
started as a master, too, both give out the same offsets for different messages, and name servers
send clients to the one that has registered last. Nothing in RocketMQ's protocol prevents that.

So a master first asks the name servers who has its name. A broker at another address that answers,
and says that it is the master of this name, is a rival. An address where nobody answers is that of
an earlier run of this broker, perhaps: name servers keep it for up to two minutes.

A broker that has found a rival serves nothing until it is restarted. If it went on when the rival
leaves, a crash of that would bring back a log that lacks what the rival has stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from coherer._rules.rocketmq.routes import MASTER_ID
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq import bodies, java_properties
from coherer._wire.rocketmq.codes import RequestCode
from coherer.errors import CohererError

ASK_MS: Final = 2_000
"""How long name servers, and the other master, may take to answer."""


class RivalSearch:
    """Looks for another master of this broker's name.

    Args:
        options: returns the current options of the broker.
        name_servers: host:port of each.
        outgoing: connections to other servers.
    """

    def __init__(
        self,
        options: Callable[[], RocketOptions],
        name_servers: Sequence[str],
        outgoing: RemotingClient,
    ) -> None:
        self._options = options
        self._name_servers = name_servers
        self._outgoing = outgoing

    async def find(self) -> str | None:
        """The address of another master that runs; None if none is known."""
        options = self._options()
        if options.broker_id != MASTER_ID:
            return None
        known = await asyncio.gather(*map(self._registered, self._name_servers))
        for address in sorted({one for one in known if one and one != options.address}):
            if await self._is_rival(address):
                return address
        return None

    async def _registered(self, name_server: str) -> str | None:
        """The address of the master that a name server knows; None if it does not say."""
        try:
            answer = await self._outgoing.ask(
                name_server, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=ASK_MS
            )
            table = bodies.ClusterInfo.decode(answer.body).broker_addr_table
        except CohererError:
            return None
        found = table.get(self._options().broker)
        return None if found is None else found.broker_addrs.get(MASTER_ID)

    async def _is_rival(self, address: str) -> bool:
        try:
            answer = await self._outgoing.ask(
                address, RequestCode.GET_BROKER_CONFIG, timeout_ms=ASK_MS
            )
            settings = java_properties.parse(str(answer.body, "utf-8", "replace"))
        except (CohererError, ValueError):
            return False
        own = self._options()
        place = f"{settings.get('brokerIP1')}:{settings.get('listenPort')}"
        is_master = settings.get("brokerId") == str(MASTER_ID)
        # This broker itself may be reached at another address than the one that it registers.
        return is_master and settings.get("brokerName") == own.broker and place != own.address
