"""The TubeMQ door of a node: its master, its broker, their ports, and the tie between them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol

from coherer import _net as net
from coherer._server.core.adoption import Adoption
from coherer._server.core.core import Core
from coherer._server.core.saving import Saver
from coherer._server.node.node_options import NodeOptions
from coherer._server.node.part_options import master_options
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.link import EmbeddedLink, Registration, RemoteLink, RemoteMasters
from coherer._server.tubemq.broker.state import BrokerOptions
from coherer._server.tubemq.master.master import Master
from coherer._server.tubemq.master.service import MasterService
from coherer._server.tubemq.master.state import check_saved
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.credentials import NONCE_LIMIT, authenticate_info
from coherer.errors import ClosedError, UsageError

if TYPE_CHECKING:  # what reads its files takes its time to load, and few need it
    from coherer._server.rocketmq.acl import Access

MASTER_FILE: Final = "tubemqMaster.json"


class Listen(Protocol):
    """Opens a port of the node; with TLS alone where it is `secure`."""

    def __call__(
        self,
        port: int,
        make: Callable[[net.Connection], net.Receiver],
        *,
        secure: bool = False,
    ) -> Awaitable[net.Listener]:
        """Raises UsageError: the port cannot be had."""
        ...


class TubeDoor:
    """A master, a broker, or both.

    Args:
        options: the node's.
        now_ms: a clock that is not set.
        listen: opens ports; the node closes them.
        wall_ms: the time of day; `now_ms` unless given.

    Attributes:
        master: None in a node without.
        broker: None in a node without.
        master_port: -1 without a master; the other ports likewise.
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
        self._options = options
        self._now_ms = now_ms
        self._wall_ms = wall_ms or now_ms
        self._listen = listen
        self._embedded: EmbeddedLink | None = None
        self._adoption: Adoption | None = None
        self._remote: RemoteLink | None = None
        self._next_report_ms = 0
        self._access: Access | None = None

    async def open_broker(self, core: Core, web_port: int) -> None:
        """Open the broker's ports; it serves when `connect` has brought it a master's word.

        Args:
            core: what it shares with the other door.
            web_port: where the HTTP administration is; 0 for nowhere.

        Raises:
            UsageError: a port cannot be had.
        """
        options = self._options
        # Connections come before the port is known to the broker: it refuses them until it serves.
        self.broker_port = (await self._listen(options.broker_port, self._to_broker)).port
        if options.tls is not None:
            secure = await self._listen(options.broker_tls_port, self._to_broker, secure=True)
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

    async def open_master(
        self,
        load: Callable[[str, Callable[[bytes], object]], bytes | None],
        files: Saver,
        *,
        access: Access | None = None,
        web_port: int = 0,
    ) -> None:
        """Open the master's ports.

        Args:
            load: gives the content of a file that a check accepts; None if there is none.
            files: writes it.
            access: the node's accounts; None without.
            web_port: where the HTTP administration is; 0 for nowhere.

        Raises:
            UsageError: a port cannot be had.
        """
        options = self._options
        self._access = access
        passwords = None if access is None else access.passwords
        self.master = Master(
            master_options(options, passwords, web_port),
            lambda: load(MASTER_FILE, check_saved),
            lambda take: files.save(MASTER_FILE, take),
            now_ms=self._now_ms,
            wall_ms=self._wall_ms,
        )
        service = MasterService(self.master, files)
        self.master_port = (await self._listen(options.master_port, service.make)).port
        if options.tls is not None:
            secure = await self._listen(options.master_tls_port, service.make, secure=True)
            self.master_tls_port = secure.port

    def connect(self) -> None:
        """Tie the broker to its master, here or elsewhere.

        Raises:
            UsageError: the master here does not take it.
        """
        if self.broker is None:
            return
        options = self._options
        registration = Registration(
            self.broker.state,
            self.broker.configuration,
            self._certificate(),
        )
        if self.master is None:
            masters = RemoteMasters(options.masters)
            self._remote = RemoteLink(registration, masters, heartbeat_ms=options.heartbeat_ms)
            self._remote.start()
            return
        self._embedded = EmbeddedLink(registration, self.master.handle, options.reachable_host)
        self._embedded.sync()
        if not self.broker.state.serving:
            raise UsageError("The node's own master does not take its broker; the log says why.")
        self.master.watch(self._embedded.sync)
        self._adoption = Adoption(self.master, options.broker_id, self.broker.core)
        self._adoption.sync()

    async def ready(self) -> None:
        """Wait until a remote master has accepted the broker."""
        if self._remote is not None:
            await self._remote.ready.wait()

    def tick(self) -> None:
        """Do what is due: call it every 100 ms or so."""
        now_ms = self._now_ms()
        if self.master is not None:
            self.master.tick()
        if self._embedded is not None and now_ms >= self._next_report_ms:
            self._next_report_ms = now_ms + self._options.heartbeat_ms
            self._embedded.sync()
        if self.broker is not None:
            self.broker.tick()

    async def leave(self) -> None:
        """Say good-bye to the master."""
        if self._remote is not None:
            await self._remote.close()
        if self._adoption is not None:
            self._adoption.close()
        if self._embedded is not None:
            self._embedded.close()
        self._remote = self._embedded = self._adoption = None

    def close(self) -> None:
        """Serve nothing more. What was sent is answered when the core is closed."""
        if self.broker is not None:
            self.broker.close()

    def closed(self) -> None:
        """Write down what the master knows, when nobody can tell it more."""
        if self.master is not None:
            self.master.close()

    def _certificate(self) -> Callable[[], pb.MasterCertificateInfo] | None:
        account = self._options.account
        if self.master is not None and self._access is not None:
            account = self._access.node_account
        return None if account is None else _certificate(account, self._wall_ms)

    def _to_broker(self, connection: net.Connection) -> net.Receiver:
        if self.broker is None:
            raise ClosedError("The broker is not there yet.")
        return self.broker.make(connection)


def _certificate(
    account: tuple[str, str], wall_ms: Callable[[], int]
) -> Callable[[], pb.MasterCertificateInfo]:
    def make() -> pb.MasterCertificateInfo:
        nonce = secrets.randbelow(NONCE_LIMIT)
        return pb.MasterCertificateInfo(authInfo=authenticate_info(*account, wall_ms(), nonce))

    return make
