"""The RocketMQ door of a node: its name server, its broker, their ports, and the tie between."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, TypeAlias

from coherer import _net as net
from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer._rules.rocketmq.routes import Master
from coherer._server.core.core import Core
from coherer._server.core.saving import Saver
from coherer._server.node.node_options import NodeOptions
from coherer._server.rocketmq.broker.broker import RocketBroker
from coherer._server.rocketmq.broker.registration import (
    EmbeddedRegistry,
    Registration,
    RemoteRegistry,
)
from coherer._server.rocketmq.ha.service import Replicator
from coherer._server.rocketmq.namesrv.nameserver import CHECKS, NameServer
from coherer._server.rocketmq.namesrv.settings import NameServerOptions
from coherer._server.rocketmq.outgoing import Outgoing
from coherer._wire.rocketmq.acl import Signer, signer
from coherer.errors import ClosedError

if TYPE_CHECKING:
    from coherer._server.rocketmq.acl import Access

_log = Log(logging.getLogger(__name__))

REGISTER_MS: Final = 10_000
"""How often the node's own name server hears of the broker."""

Listen: TypeAlias = (
    "Callable[[int, Callable[[net.Connection], net.Receiver]], Awaitable[net.Listener]]"
)
"""Opens a port of the node, with TLS and without it."""


class RocketDoor:
    """A name server, a broker, or both.

    Args:
        options: the node's.
        now_ms: a clock that is not set.
        listen: opens ports; the node closes them.

    Attributes:
        name_server: None in a node without.
        broker: None in a node without.
        namesrv_port: -1 without a name server.
        port: the broker's, -1 without; the other ports likewise.
        fast_port: where the broker serves everything but pulls.
        ha_port: where slaves fetch the log; -1 where they cannot.
        replicator: what makes the broker a master with slaves, or a slave; None without.
    """

    def __init__(self, options: NodeOptions, now_ms: Callable[[], int], listen: Listen) -> None:
        self.name_server: NameServer | None = None
        self.broker: RocketBroker | None = None
        self.namesrv_port = self.port = self.fast_port = self.ha_port = -1
        self._options = options
        self._now_ms = now_ms
        self._listen = listen
        self._embedded: EmbeddedRegistry | None = None
        self._remote: RemoteRegistry | None = None
        self.replicator: Replicator | None = None
        self._outgoing = Outgoing(options.outgoing_tls, self._signer())
        self._register = IntervalTimer(REGISTER_MS, 0)
        self._access: Access | None = None
        self._refused = ""

    async def open_name_server(
        self,
        port: int,
        load: Callable[[str, Callable[[bytes], object]], bytes | None],
        files: Saver,
        access: Access | None = None,
    ) -> None:
        """Open the name server's port.

        Args:
            port: 0 for any free one.
            load: gives the content of a file that a check accepts; None if there is none.
            files: writes it.
            access: the node's accounts; None without.

        Raises:
            UsageError: the port cannot be had.
        """
        self.namesrv_port = (await self._listen(port, self._to_name_server)).port
        directory = str(self._options.directory / "config")
        options = NameServerOptions(port=self.namesrv_port, directory=directory)
        check = access if self._options.protects("namesrv") else None
        self.name_server = NameServer(
            options,
            lambda name: load(name, CHECKS[name]),
            files,
            now_ms=self._now_ms,
            access=check,
        )

    async def open_broker(self, port: int, core: Core, access: Access | None = None) -> None:
        """Open the broker's ports.

        Args:
            port: the main one; 0 for any free one.
            core: what it shares with the other door.
            access: the node's accounts; None without.

        Raises:
            UsageError: a port cannot be had.
        """
        options = self._options
        self.port = (await self._listen(port, self._to_main)).port
        self.fast_port = (await self._listen(options.fast_port, self._to_fast)).port
        if options.ha_port is not None and not options.is_slave:
            self.ha_port = (await self._listen(options.ha_port, self._to_replicator)).port
        chosen = options.rocket_options(self.port, max(self.ha_port, 0))
        self._access = access if options.protects("replication") else None
        check = access if options.protects("rocketmq") else None
        self.broker = RocketBroker(chosen, core, access=check)
        if self.ha_port >= 0 or options.is_slave:
            self.replicator = Replicator(self.broker, self._outgoing, tls=options.outgoing_tls)
            self.replicator.start()

    def _signer(self) -> Signer | None:
        directory = self._options.directory
        if (directory / "conf" / "tools.yml").exists():
            from coherer._server.rocketmq.acl import tools_signer

            return tools_signer(directory)
        account = self._options.account
        return None if account is None else signer(*account)

    def connect(self) -> None:
        """Register the broker: with remote name servers, or with the one here."""
        if self.broker is None:
            return
        state = self.broker.state
        registration = Registration(
            lambda: state.options, state.topics, self._now_ms, master_found=self._master_found
        )
        if self.name_server is not None:
            server = self.name_server
            self._embedded = EmbeddedRegistry(registration, server.routes, server.settings.ordered)
            self._embedded.sync()
        else:
            servers = self._options.name_servers
            self._remote = RemoteRegistry(registration, servers, self._outgoing)
            self._remote.start()
            state.announced = self._remote.heard

    async def ready(self) -> None:
        """Wait until a remote name server has the broker."""
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
        if self._embedded is not None and self._register.is_due(now_ms):
            self._embedded.tick()

    async def save(self) -> None:
        """Write what the broker's files lack; call it every few seconds.

        Raises:
            StoreError: the disk failed; it is written the next time.
        """
        if self.broker is not None:
            await self.broker.save()

    async def leave(self) -> None:
        """Say good-bye to the name servers, and end replication."""
        async with AsyncExitStack() as last:  # what is said last is done first
            last.callback(self._outgoing.close)
            if self.replicator is not None:
                last.push_async_callback(self.replicator.close)
            if self._remote is not None:
                last.push_async_callback(self._remote.close)
            if self._embedded is not None:
                last.callback(self._embedded.close)
            self.replicator = self._remote = self._embedded = None

    def close(self) -> None:
        """Serve nothing more. What was sent is answered when the core is closed."""
        if self.broker is not None:
            self.broker.close()

    def closed(self) -> None:
        """Have written what the files lack; the core is closed, the store not yet."""
        if self.broker is not None:
            self.broker.closed()

    # Connections may come before the ports of what serves them are all known.

    def _to_name_server(self, connection: net.Connection) -> net.Receiver:
        if self.name_server is None:
            raise ClosedError("The name server is not there yet.")
        return self.name_server.make(connection)

    def _to_main(self, connection: net.Connection) -> net.Receiver:
        return self._serving().remoting.make(connection)

    def _to_fast(self, connection: net.Connection) -> net.Receiver:
        return self._serving().fast_remoting.make(connection)

    def _master_found(self, master: Master) -> None:
        if self.replicator is not None:
            self.replicator.found(master)

    def _to_replicator(self, connection: net.Connection) -> net.Receiver:
        if self.replicator is None:
            raise ClosedError("The broker is not there yet.")
        if self._access is not None and not self._access.knows(connection.peer_host):
            if self._refused != connection.peer_host:
                self._refused = connection.peer_host
                _log.warning(
                    "Replication is refused to %s: it is neither a trusted address "
                    "(globalWhiteRemoteAddresses in conf/plain_acl.yml) nor one from which an "
                    "account that may do everything has signed a request",
                    connection.peer_host,
                )
            raise ClosedError(f"{connection.peer_host} has shown no account.")
        return self.replicator.make(connection)

    def _serving(self) -> RocketBroker:
        if self.broker is None:
            raise ClosedError("The broker is not there yet.")
        return self.broker
