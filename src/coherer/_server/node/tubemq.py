"""The TubeMQ service of a node: its master, its broker, their ports, and the link between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from coherer import _net as net
from coherer._common import machine
from coherer._common.upkeep import Step, Upkeep
from coherer._server.core.core import Core
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.options.node import NodeOptions
from coherer._server.options.siblings import names
from coherer._server.options.tubemq import BrokerOptions, MasterOptions
from coherer._server.rocketmq.acl import Access
from coherer._server.tubemq.broker.broker import Broker, BrokerConnection
from coherer._server.tubemq.broker.master_link import (
    BrokerConfiguration,
    EmbeddedMasterLink,
    MasterClient,
    MasterExchange,
    RemoteMasterLink,
)
from coherer._server.tubemq.master.master import Master, MasterConnection
from coherer._server.tubemq.master.state import check_saved
from coherer._server.tubemq.master.topic_sync import TopicSync
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.credentials import NONCE_LIMIT, authenticate_info
from coherer.errors import ClosedError, UsageError

if TYPE_CHECKING:  # few nodes have standbys, and only these need ZooKeeper's protocol
    from coherer._server.tubemq.master.ensemble import EnsembleMaster

MASTER_FILE: Final = "tubemqMaster.json"


class Listen(Protocol):
    """Opens a port of the node; `secure` ports accept TLS only."""

    def __call__(
        self,
        port: int,
        make: Callable[[net.Connection], net.Receiver],
        *,
        secure: bool = False,
    ) -> Awaitable[net.Listener]:
        """Raises UsageError: the port is not available."""
        ...


class TubeMqService:
    """A TubeMQ master, a broker, or both.

    Args:
        listen: opens ports; the node closes them.
        wall_ms: the time of day; defaults to `now_ms`.

    Attributes:
        master: the master; None in a node without one.
        broker: the broker; None in a node without one.
        master_port: the port of the master; -1 without one, as for the other ports.
        upkeep: the periodic steps; empty before `connect`.
    """

    def __init__(
        self,
        options: NodeOptions,
        now_ms: Callable[[], int],
        listen: Listen,
        *,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        self.master: Master | None = None
        self.broker: Broker | None = None
        self.master_port = self.broker_port = -1
        self.master_tls_port = self.broker_tls_port = -1
        self.upkeep = Upkeep(now_ms=now_ms)
        self._options = options
        self._now_ms = now_ms
        self._wall_ms = wall_ms or now_ms
        self._listen = listen
        self._embedded: EmbeddedMasterLink | None = None
        self._adoption: TopicSync | None = None
        self._remote: RemoteMasterLink | None = None
        self._access: Access | None = None
        self._ensemble: EnsembleMaster | None = None

    async def open_broker(self, core: Core, web_port: int) -> None:
        """Open the ports of the broker. It serves requests after `connect`.

        Args:
            web_port: the port of the HTTP administration; 0 without one.

        Raises:
            UsageError: a port is not available.
        """
        options = self._options
        # The broker needs to know its port; connections are refused until it exists.
        self.broker_port = (await self._listen(options.broker_port, self._accept_broker)).port
        if options.tls is not None:
            secure = await self._listen(options.broker_tls_port, self._accept_broker, secure=True)
            self.broker_tls_port = secure.port
        self.broker = Broker(
            BrokerOptions(
                broker_id=options.broker_id,
                host=options.reachable_host,
                port=options.advertised_broker_port or self.broker_port,
                tls_port=None if options.tls is None else self.broker_tls_port,
                web_port=web_port,
                lease_timeout_ms=options.lease_timeout_ms,
                hold_ms=options.hold_timeout_ms,
                transfer_bytes=options.transfer_bytes,
            ),
            core,
        )

    def change(self, options: NodeOptions) -> None:
        """Apply the options of the node that can change while it runs."""
        self._options = options
        if self.broker is not None:
            state = self.broker.state
            state.options = msgspec.structs.replace(
                state.options,
                hold_ms=options.hold_timeout_ms,
                transfer_bytes=options.transfer_bytes,
            )
        if self.master is not None:
            self.master.state.options = msgspec.structs.replace(
                self.master.state.options, auto_create_topics=options.auto_create_topics
            )

    async def open_master(
        self,
        load: Callable[[str, Callable[[bytes], object]], bytes | None],
        files: DeferredSaver,
        *,
        access: Access | None = None,
        web_port: int = 0,
    ) -> None:
        """Open the ports of the master.

        Args:
            load: loads a file and checks its content; None if the file does not exist.
            files: writes the file.
            access: the accounts of the node; None without accounts.
            web_port: the port of the HTTP administration; 0 without one.

        Raises:
            UsageError: a port is not available, or the ZooKeeper path is in use by Java's masters.
            CohererError: ZooKeeper does not answer.
        """
        options = self._options
        self._access = access
        passwords = None if access is None else access.passwords
        chosen = _master_options(options, passwords, web_port)
        if options.zookeeper is not None:
            from coherer._server.tubemq.master.ensemble import EnsembleMaster  # see above

            self._ensemble = EnsembleMaster(
                options.zookeeper,
                options.zookeeper_session_ms,
                chosen,
                self._now_ms,
                self._wall_ms,
            )
            self.master, files = self._ensemble.master, self._ensemble.files
        else:
            self.master = Master(
                chosen,
                lambda: load(MASTER_FILE, check_saved),
                lambda take: files.save(MASTER_FILE, take),
                now_ms=self._now_ms,
                wall_ms=self._wall_ms,
            )
        accept = partial(MasterConnection, self.master, files=files)
        self.master_port = (await self._listen(options.master_port, accept)).port
        if options.tls is not None:
            secure = await self._listen(options.master_tls_port, accept, secure=True)
            self.master_tls_port = secure.port
        if self._ensemble is not None:
            await self._ensemble.start()

    @property
    def files(self) -> DeferredSaver | None:
        """The writer of the metadata of a master with standbys; None for a single master."""
        return None if self._ensemble is None else self._ensemble.files

    def connect(self) -> None:
        """Register the broker at its master, in this node or elsewhere.

        Raises:
            UsageError: the master of this node rejects the broker.
        """
        if self.broker is not None:
            self._register(self.broker)
        self._add_steps()

    def _register(self, broker: Broker) -> None:
        options = self._options
        broker.core.on_removal(partial(self._deleted, broker.configuration))
        exchange = MasterExchange(broker.state, broker.configuration, self._certificate())
        if self.master is None:
            masters = MasterClient(options.masters)
            self._remote = RemoteMasterLink(exchange, masters, heartbeat_ms=options.heartbeat_ms)
            self._remote.start()
            return
        self._embedded = EmbeddedMasterLink(exchange, self.master.handle, options.reachable_host)
        self._embedded.sync()
        if not broker.state.serving:
            raise UsageError("The node's master rejects its own broker; see the log.")
        self.master.watch(self._embedded.sync)
        ids = names(options).keys()
        self._adoption = TopicSync(self.master, options.broker_id, broker.core.topics, ids)
        self._adoption.sync()

    async def ready(self) -> None:
        """Wait until a remote master has accepted the broker."""
        if self._remote is not None:
            await self._remote.ready.wait()

    def tick(self) -> None:
        """Run the periodic steps; call it about every 100 ms."""
        self.upkeep.tick()

    def _add_steps(self) -> None:
        parts: list[Step | Upkeep] = []
        if self.master is not None:
            parts.append(self.master.upkeep)
        if self._embedded is not None:
            every_ms = self._options.heartbeat_ms
            parts.append(Step("reporting to the node's TubeMQ master", self.sync, every_ms))
        if self.broker is not None:
            parts.append(self.broker.upkeep)
        self.upkeep.add(*parts)
        if self._remote is not None:
            self.upkeep.watch(self._remote.upkeep)

    def _deleted(self, configuration: BrokerConfiguration, _: str) -> None:
        # A removal that the master has ordered may have failed: it would be tried without a pause.
        if not configuration.is_removing:
            asyncio.get_running_loop().call_soon(self._report_soon)

    def _report_soon(self) -> None:
        self.sync()
        if self._remote is not None:
            self._remote.sync()

    def sync(self) -> None:
        """Report the broker's state to the master of this node at once."""
        if self._embedded is not None:
            self._embedded.sync()

    async def leave(self, *, unregister: bool = True) -> None:
        """Unregister the broker at the master; a master leaves its ensemble.

        Args:
            unregister: whether to tell a remote master, which otherwise waits for heartbeats.
        """
        if self._ensemble is not None:
            await self._ensemble.close()
            self._ensemble = None
        if self._remote is not None:
            await self._remote.close(unregister=unregister)
        if self._adoption is not None:
            self._adoption.close()
        if self._embedded is not None:
            self._embedded.close()
        self._remote = self._embedded = self._adoption = None

    def close(self) -> None:
        """Stop serving requests. Pending sends are answered when the core is closed."""
        if self.broker is not None:
            self.broker.close()

    def closed(self) -> None:
        """Save the state of the master after the last request."""
        if self.master is not None:
            self.master.close()

    def _certificate(self) -> Callable[[], pb.MasterCertificateInfo] | None:
        account = self._options.account
        if self.master is not None and self._access is not None:
            account = self._access.node_account
        return None if account is None else _certificate(account, self._wall_ms)

    def _accept_broker(self, connection: net.Connection) -> net.Receiver:
        if self.broker is None:
            raise ClosedError("The broker has not started yet.")
        return BrokerConnection(self.broker, connection)


def _certificate(
    account: tuple[str, str], wall_ms: Callable[[], int]
) -> Callable[[], pb.MasterCertificateInfo]:
    def make() -> pb.MasterCertificateInfo:
        nonce = machine.secret.randrange(NONCE_LIMIT)
        return pb.MasterCertificateInfo(authInfo=authenticate_info(*account, wall_ms(), nonce))

    return make


def _master_options(
    options: NodeOptions, passwords: Mapping[str, str] | None = None, web_port: int = 0
) -> MasterOptions:
    """The options of the TubeMQ master.

    Args:
        passwords: by name, of the accounts with all permissions; None without accounts.
        web_port: the port of its HTTP administration; 0 without.
    """
    authenticate = options.protects("tubemq")
    return MasterOptions(
        host=options.reachable_host,
        port=options.master_port,
        auto_create_topics=options.auto_create_topics,
        default_partitions=options.default_partitions,
        siblings=frozenset(names(options)) if options.brokers > 1 else frozenset(),
        max_message_bytes=options.max_message_bytes,
        producer_timeout_ms=options.client_timeout_ms,
        consumer_timeout_ms=options.client_timeout_ms,
        broker_timeout_ms=options.broker_timeout_ms,
        balance_period_ms=options.balance_period_ms,
        users=passwords if options.has_accounts else None,
        authenticate_producers=authenticate,
        authenticate_consumers=authenticate,
        authenticate_brokers=authenticate or bool(options.broker_user),
        broker_user=options.broker_user,
        broker_password=options.broker_password,
        visit_token_check=options.visit_token_check,
        web_port=web_port,
    )
