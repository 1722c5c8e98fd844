"""The RocketMQ server of a node: name server, broker, replication, and their ports."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from coherer import _net as net
from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._rules.rocketmq.routes import MasterAddress
from coherer._server.core.core import Core
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.options.node import NodeOptions
from coherer._server.options.rocketmq import MESSAGE_BYTES, RocketOptions
from coherer._server.rocketmq.acl import Access, tools_account
from coherer._server.rocketmq.broker.broker import RocketBroker
from coherer._server.rocketmq.broker.registration import (
    BrokerAnnouncement,
    LocalRegistrar,
    RemoteRegistrar,
)
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.namesrv.nameserver import CHECKS, NameServer
from coherer._server.rocketmq.namesrv.settings import NameServerOptions
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq.acl import signer
from coherer.errors import ClosedError

if TYPE_CHECKING:  # only nodes that replicate load it
    from coherer._server.rocketmq.ha.replicator import Replicator

_log = Log(logging.getLogger(__name__))

REGISTER_MS: Final = 10_000
"""How often the broker registers with the node's own name server."""

Listen: TypeAlias = (
    "Callable[[int, Callable[[net.Connection], net.Receiver]], Awaitable[net.Listener]]"
)
"""Opens a port of the node, for TLS and plain connections."""


class RocketMqService:
    """A name server, a broker, or both.

    Args:
        listen: opens ports; the node closes them.

    Attributes:
        name_server: None in a node without one.
        broker: None in a node without one.
        namesrv_port: -1 without a name server.
        port: the broker's main port; -1 without a broker.
        fast_port: the port that answers all requests except pulls.
        ha_port: the replication port; -1 without one.
        replicator: the broker's replication; None without.
        upkeep: the periodic steps; empty before `connect`.
    """

    def __init__(self, options: NodeOptions, now_ms: Callable[[], int], listen: Listen) -> None:
        self.name_server: NameServer | None = None
        self.broker: RocketBroker | None = None
        self.namesrv_port = self.port = self.fast_port = self.ha_port = -1
        self.upkeep = Upkeep(now_ms=now_ms)
        self._options = options
        self._now_ms = now_ms
        self._listen = listen
        self._embedded: LocalRegistrar | None = None
        self._remote: RemoteRegistrar | None = None
        self.replicator: Replicator | None = None
        self._account = self._own_account()
        own = None if self._account is None else signer(*self._account)
        self._outgoing = RemotingClient(options.outgoing_tls, own)

    async def open_name_server(
        self,
        port: int,
        load: Callable[[str, Callable[[bytes], object]], bytes | None],
        files: DeferredSaver,
        access: Access | None = None,
    ) -> None:
        """Open the name server's port.

        Args:
            port: 0 for any free one.
            load: returns the content of a file that a check accepts; None if there is no file.
            files: writes the name server's files.
            access: the node's accounts; None without.

        Raises:
            UsageError: the port cannot be opened.
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

    def change(self, options: NodeOptions) -> None:
        """Apply the options of the node that can change while it runs."""
        create = options.auto_create_topics
        if self.broker is not None and create != self._options.auto_create_topics:
            state = self.broker.state
            state.change(msgspec.structs.replace(state.options, auto_create_topics=create))
        self._options = options

    async def open_broker(self, port: int, core: Core, access: Access | None = None) -> None:
        """Open the broker's ports.

        Args:
            port: the main one; 0 for any free one.
            access: the node's accounts; None without.

        Raises:
            UsageError: a port cannot be opened.
        """
        options = self._options
        self.port = (await self._listen(port, self._to_main)).port
        self.fast_port = (await self._listen(options.fast_port, self._to_fast)).port
        if options.ha_port is not None and not options.is_slave:
            self.ha_port = (await self._listen(options.ha_port, self._to_replicator)).port
        chosen = _rocketmq_options(options, self.port, max(self.ha_port, 0))
        check = access if options.protects("rocketmq") else None
        self.broker = RocketBroker(chosen, core, access=check)
        if self.ha_port >= 0 or options.is_slave:
            # Most nodes do not replicate: six modules.
            from coherer._server.rocketmq.ha.replicator import Replicator

            self.replicator = Replicator(
                self.broker,
                self._outgoing,
                account=self._account,
                access=access if options.protects("replication") else None,
                tls=options.outgoing_tls,
            )
            self.replicator.start()

    def _own_account(self) -> tuple[str, str] | None:
        """Name and secret with which the broker signs its requests to other servers."""
        directory = self._options.accounts_home
        if (directory / "conf" / "tools.yml").exists():
            return tools_account(directory)
        return self._options.account

    def connect(self) -> None:
        """Register the broker with remote name servers, or with the one of this node."""
        if self.broker is not None:
            self._register(self.broker.state)
        self._add_steps()

    def _register(self, state: RocketState) -> None:
        registration = BrokerAnnouncement(
            lambda: state.announced_options,
            state.topics,
            self._now_ms,
            master_found=self._master_found,
        )
        if self.name_server is not None:
            server = self.name_server
            self._embedded = LocalRegistrar(registration, server.routes, server.settings.ordered)
            self._embedded.tick()
        else:
            servers = self._options.name_servers
            self._remote = RemoteRegistrar(
                registration, servers, self._outgoing, rival_found=state.rival_found
            )
            self._remote.start()
            state.announced = self._remote.announced

    def announce(self) -> None:
        """Register the broker with remote name servers again at once."""
        if self._remote is not None:
            self._remote.sync()

    async def ready(self) -> None:
        """Wait until a remote name server has accepted the broker."""
        if self._remote is not None:
            await self._remote.ready.wait()

    def tick(self) -> None:
        """Run the periodic steps; call it every 100 ms or so."""
        self.upkeep.tick()

    def _add_steps(self) -> None:
        parts: list[Step | Upkeep] = []
        watched: list[Upkeep] = []
        if self.name_server is not None:
            parts.append(self.name_server.upkeep)
        if self.broker is not None:
            parts.append(self.broker.upkeep)
        if self.replicator is not None:
            parts.append(Step("checking replication", self.replicator.tick))
            watched += self.replicator.upkeeps()
        if self._embedded is not None:
            every_ms, renew = REGISTER_MS, self._embedded.tick
            parts.append(Step("registering with the node's name server", renew, every_ms))
        if self._remote is not None:
            watched.append(self._remote.upkeep)
        self.upkeep.add(*parts)
        self.upkeep.watch(*watched)

    async def save(self) -> None:
        """Write the broker's changed files; call it every few seconds.

        Raises:
            StoreError: the disk failed; the next call writes them again.
        """
        if self.broker is not None:
            await self.broker.save()

    async def leave(self, *, unregister: bool = True) -> None:
        """Stop replication, and `unregister` from remote name servers."""
        async with AsyncExitStack() as stack:  # runs in reverse order
            stack.callback(self._outgoing.close)
            if self.replicator is not None:
                stack.push_async_callback(self.replicator.close)
            if self._remote is not None:
                stack.push_async_callback(self._remote.close, unregister=unregister)
            if self._embedded is not None:
                stack.callback(self._embedded.close)
            self.replicator = self._remote = self._embedded = None

    def close(self) -> None:
        """Stop serving. Submitted messages are answered when the core is closed."""
        if self.broker is not None:
            self.broker.close()

    def closed(self) -> None:
        """Save for the last time; the core is closed, the store is still open."""
        if self.broker is not None:
            self.broker.closed()

    # A client may connect before all ports are open and the broker exists.

    def _to_name_server(self, connection: net.Connection) -> net.Receiver:
        if self.name_server is None:
            raise ClosedError("The name server has not started yet.")
        return self.name_server.make(connection)

    def _to_main(self, connection: net.Connection) -> net.Receiver:
        return self._serving().remoting.make(connection)

    def _to_fast(self, connection: net.Connection) -> net.Receiver:
        return self._serving().fast_remoting.make(connection)

    def _master_found(self, master: MasterAddress) -> None:
        if self.replicator is not None:
            self.replicator.found(master)

    def _to_replicator(self, connection: net.Connection) -> net.Receiver:
        if self.replicator is None:
            raise ClosedError("The broker has not started yet.")
        return self.replicator.make(connection)

    def _serving(self) -> RocketBroker:
        if self.broker is None:
            raise ClosedError("The broker has not started yet.")
        return self.broker


def _rocketmq_options(options: NodeOptions, port: int, ha_port: int) -> RocketOptions:
    """The options of the RocketMQ broker.

    Args:
        port: the port on which it listens.
        ha_port: the port for its slaves; 0 without.
    """
    return RocketOptions(
        cluster=options.cluster,
        broker=options.broker_name,
        host=options.reachable_host,
        port=options.advertised_rocketmq_port or port,
        ha_port=ha_port,
        auto_create_topics=options.auto_create_topics,
        default_queues=options.default_partitions,
        message_bytes_max=options.max_message_bytes or MESSAGE_BYTES,
        role=options.role,
        broker_id=options.rocketmq_broker_id,
        trace_topic=options.trace_topic,
        transaction_timeout_ms=options.transaction_timeout_ms,
        transaction_checks_max=options.transaction_checks_max,
        transaction_interval_ms=options.transaction_interval_ms,
    )
