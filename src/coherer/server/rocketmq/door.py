"""The RocketMQ door of a node: its name server, its broker, and the ports of both."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from coherer import net
from coherer.broker.routes import Master
from coherer.errors import ClosedError, UsageError
from coherer.server.core import Core
from coherer.server.rocketmq.broker.broker import RocketBroker
from coherer.server.rocketmq.broker.options import RocketOptions
from coherer.server.rocketmq.broker.registration import (
    EmbeddedRegistry,
    Registration,
    RemoteRegistry,
)
from coherer.server.rocketmq.ha.service import Replicator
from coherer.server.rocketmq.namesrv.nameserver import NameServer
from coherer.server.rocketmq.namesrv.settings import NameServerOptions
from coherer.server.rocketmq.outgoing import Outgoing

_log = logging.getLogger(__name__)

REGISTER_MS = 10_000
"""How often the node's own name server hears of the broker."""


Listen: TypeAlias = (
    "Callable[[int, Callable[[net.Connection], net.Receiver]], Awaitable[net.Listener]]"
)
"""Opens a port of the node, with TLS and without it."""


class RocketDoor:
    """A name server, a broker, or both.

    Args:
        listen: opens ports; the node closes them.
        now_ms: the clock.

    Attributes:
        name_server: None in a node without.
        broker: None in a node without.
        namesrv_port: -1 without a name server.
        port: the broker's, -1 without.
        fast_port: where the broker serves everything but pulls; -1 without.
        ha_port: where slaves fetch the broker's log; -1 without.
        replicator: what makes the broker a master with slaves, or a slave; None without.
    """

    def __init__(self, listen: Listen, now_ms: Callable[[], int]) -> None:
        self.name_server: NameServer | None = None
        self.broker: RocketBroker | None = None
        self.replicator: Replicator | None = None
        self.namesrv_port = self.port = self.fast_port = self.ha_port = -1
        self._listen = listen
        self._now_ms = now_ms
        self._embedded: EmbeddedRegistry | None = None
        self._remote: RemoteRegistry | None = None
        self._outgoing: Outgoing | None = None
        self._next_register_ms = 0

    async def open_name_server(
        self,
        port: int,
        directory: str,
        load: Callable[[str], bytes | None],
        save: Callable[[str, bytes], None],
    ) -> None:
        """Open the name server's port.

        Raises:
            UsageError: the port is in use.
        """

        def make(connection: net.Connection) -> net.Receiver:
            if self.name_server is None:
                raise ClosedError("The name server is not there yet.")
            return self.name_server.make(connection)

        self.namesrv_port = (await self._listen(port, make)).port
        options = NameServerOptions(port=self.namesrv_port, directory=directory)
        self.name_server = NameServer(options, load, save, now_ms=self._now_ms)

    async def open_broker(
        self,
        port: int,
        fast_port: int,
        core: Core,
        options: Callable[[int], RocketOptions],
        *,
        ha_port: int | None = None,
    ) -> None:
        """Open the broker's ports.

        Args:
            port: the main one; 0 for any free one.
            fast_port: the one for everything but pulls; likewise.
            core: what it shares with the other door.
            options: how it behaves, given its port.
            ha_port: where slaves fetch its log; None for nowhere.

        Raises:
            UsageError: a port is in use.
        """
        self.port = (await self._listen(port, self._to_main)).port
        self.fast_port = (await self._listen(fast_port, self._to_fast)).port
        chosen = options(self.port)
        if ha_port is not None and chosen.role != "SLAVE":
            self.ha_port = (await self._listen(ha_port, self._to_log)).port
            chosen = msgspec.structs.replace(chosen, ha_port=chosen.ha_port or self.ha_port)
        self.broker = RocketBroker(chosen, core)

    async def connect(self, name_servers: list[str], tls: net.TlsOptions | None) -> None:
        """Register the broker: with these name servers, or with its own where there are none.

        Raises:
            UsageError: there are neither.
        """
        broker = self.broker
        if broker is None:
            return
        state = broker.state
        self._outgoing = Outgoing(tls)
        if self.ha_port >= 0 or state.is_slave:
            self.replicator = Replicator(broker, self._outgoing)
            self.replicator.start()
        registration = Registration(
            lambda: state.options, state.topics, self._now_ms, master_found=self._master_found
        )
        if name_servers:
            self._remote = RemoteRegistry(registration, name_servers, self._outgoing)
            self._remote.start()
        elif self.name_server is not None:
            server = self.name_server
            self._embedded = EmbeddedRegistry(registration, server.routes, server.settings.ordered)
            self._embedded.sync()
        else:
            raise UsageError("The RocketMQ broker has no name server.", hint="Set `namesrv`.")

    async def ready(self) -> None:
        """Wait until a name server has the broker."""
        if self._remote is not None:
            await self._remote.ready.wait()

    def tick(self) -> None:
        """Do what is due: call it every 100 ms or so."""
        now_ms = self._now_ms()
        if self.name_server is not None:
            self.name_server.tick()
        if self.broker is not None:
            self.broker.tick()
        if self.replicator is not None:
            self.replicator.tick()
        if self._embedded is not None and now_ms >= self._next_register_ms:
            self._next_register_ms = now_ms + REGISTER_MS
            self._embedded.tick()

    async def save(self) -> None:
        """Write what the broker's files lack; call it every few seconds.

        Raises:
            StoreError: the disk failed; it is written the next time.
        """
        if self.broker is not None:
            await self.broker.save()

    async def leave(self) -> None:
        """Say good-bye to the name servers, and answer who waits for messages."""
        if self._embedded is not None:
            self._embedded.close()
        if self._remote is not None:
            await self._remote.close()
        if self.replicator is not None:
            await self.replicator.close()
        if self._outgoing is not None:
            self._outgoing.close()
        if self.broker is not None:
            self.broker.close()

    def closed(self) -> None:
        """Write what the files lack; the core is closed, the store not yet.

        Raises:
            StoreError: the disk failed.
        """
        if self.broker is not None:
            self.broker.closed()

    def _to_main(self, connection: net.Connection) -> net.Receiver:
        return self._serving().remoting.make(connection)

    def _to_log(self, connection: net.Connection) -> net.Receiver:
        if self.replicator is None:
            raise ClosedError("The broker is not there yet.")
        return self.replicator.make(connection)

    def _master_found(self, master: Master) -> None:
        if self.replicator is not None:
            self.replicator.found(master)

    def _to_fast(self, connection: net.Connection) -> net.Receiver:
        return self._serving().fast_remoting.make(connection)

    def _serving(self) -> RocketBroker:
        if self.broker is None:
            raise ClosedError("The broker is not there yet.")
        return self.broker
