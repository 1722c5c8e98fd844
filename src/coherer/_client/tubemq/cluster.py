"""The connections of a client to a TubeMQ cluster: servers, the active master, and credentials.

`engine.connections` describes the connections. Calls to the master follow Java's rules:

* The addresses are used in sorted order, one at a time.
* Any failure, not only a standby's refusal, closes the connection and moves on to the next address.
  Each call tries every address once, and raises the last failure.
* An answer whose own fields report a refusal is an answer, and does not lead to another address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from ipaddress import AddressValueError, IPv4Address
from typing import Final, Protocol, TypeVar

import msgspec
from google.protobuf.message import Message as PbMessage

from coherer._client.engine.connections import ConnectionPool, ServerConnection
from coherer._client.engine.metrics import ClientMetrics
from coherer._client.engine.options import TIMEOUT_MS_MAX, TIMEOUT_MS_MIN
from coherer._client.engine.tasks import backoff
from coherer._common import machine
from coherer._common.logs import Log
from coherer._common.version import __version__
from coherer._net import (
    Connection,
    TlsOptions,
    certificate_refused,
    running_loop,
    tls_failed,
)
from coherer._wire.tubemq import codes, credentials
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.methods import parse
from coherer._wire.tubemq.names import OWN_CLIENT
from coherer._wire.tubemq.session import ClientSession, Failure, Response
from coherer.errors import (
    AuthorizationError,
    CohererError,
    DisconnectedError,
    ProtocolError,
    RefusedError,
    UnavailableError,
    UsageError,
    WrongProtocolError,
)

_log = Log(logging.getLogger(__name__))

M = TypeVar("M", bound=PbMessage)


class Call:
    """A request whose answer resolves a future."""

    __slots__ = ("deadline", "future", "server")

    def __init__(self, future: asyncio.Future[bytes], deadline: float, server: str) -> None:
        self.future = future
        self.deadline = deadline
        self.server = server

    def answered(self, answer: Response | Failure) -> None:
        """The server answered."""
        if self.future.done():
            return
        if isinstance(answer, Failure):
            self.future.set_exception(answer.error(self.server))
        else:
            self.future.set_result(answer.body)

    def failed(self, error: CohererError) -> None:
        """No answer will come."""
        if not self.future.done():
            self.future.set_exception(error)


class TubeConnection(ServerConnection[Response | Failure]):
    """One connection and the requests in flight on it. A `Receiver`.

    Java's clients also close a connection that has been silent for five minutes.

    Attributes:
        session: assigns serial numbers and parses answers.
    """

    def __init__(self, connection: Connection, server: str, idle_ms: int | None = None) -> None:
        if idle_ms is not None:
            self.idle_ms = idle_ms
        super().__init__(connection, server)
        self.session = ClientSession()

    def call(self, method: int, request: PbMessage, timeout_ms: int) -> asyncio.Future[bytes]:
        """Send a request now; the future gets the answer's body.

        Requests are sent in the order of the calls.

        Raises:
            DisconnectedError: the connection is closed already; nothing was sent.
        """
        if self.connection.closed:
            raise DisconnectedError(
                "The connection is closed; nothing was sent.", server=self.server
            )
        future: asyncio.Future[bytes] = self._loop.create_future()
        serial, frame = self.session.request(method, request, timeout_ms)
        call = Call(future, self._loop.time() + timeout_ms / 1000, self.server)
        self.send_frame(serial, call, frame)
        return future

    async def ask(self, method: int, request: PbMessage, answer: type[M], timeout_ms: int) -> M:
        """Send a request and wait for its answer.

        Raises:
            UnavailableError: no answer.
            RefusedError: the server could not handle the request. The caller must check the fields
                of the answer that report success.
            ProtocolError: the answer is invalid.
        """
        return parse(answer, await self.call(method, request, timeout_ms))

    def received(self, data: bytes) -> None:
        """Called by the connection with each socket read."""
        self._heard = self._loop.time()
        waiting = self._waiting
        try:
            answers = self.session.receive(data)
        except ProtocolError as error:
            self._misread(error)
            return
        self._understood = self._understood or bool(answers)
        for answer in answers:
            waiter = waiting.pop(answer.serial, None)
            if waiter is not None:
                waiter.answered(answer)


class Pool(ConnectionPool[TubeConnection]):
    """The connections of one client, one per address.

    Args:
        tls: the TLS options; None for plain TCP.
        connect_timeout_ms: for each new connection.
        idle_ms: after which silence a connection without requests is closed; Java's when None.
    """

    def __init__(
        self,
        *,
        tls: TlsOptions | None = None,
        connect_timeout_ms: int = 3000,
        idle_ms: int | None = None,
    ) -> None:
        super().__init__(
            lambda connection, server: TubeConnection(connection, server, idle_ms),
            tls=tls,
            connect_timeout_ms=connect_timeout_ms,
        )


LOG_WAIT_S: Final = 0.3
"""The first pause between attempts that is at least this long is logged."""

T = TypeVar("T")


class Masters:
    """The masters of a cluster.

    Args:
        addresses: host and port of each.
        timeout_ms: of each attempt.

    Attributes:
        closed: whether all ports refused the last connections, and none was ever open: nothing
            listens there. A master that was reached once may just restart.
        answered: whether a master ever answered a request.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], pool: Pool, timeout_ms: int) -> None:
        self.closed = self.answered = False
        self._reached = False
        self.addresses = sorted(addresses, key=lambda address: f"{address[0]}:{address[1]}")
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = 0

    def __repr__(self) -> str:
        names = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<Masters {names}>"

    @property
    def server(self) -> str:
        """The address that the next call goes to."""
        host, port = self.addresses[self._current]
        return f"{host}:{port}"

    async def link(self) -> TubeConnection:
        """The connection to the current master, or to the next that can be reached.

        Raises:
            UnavailableError: no master can be reached.
        """
        return await self._try_each(_unchanged)

    async def ask(self, method: int, request: PbMessage, answer: type[M]) -> M:
        """Send a request to the active master and wait for its answer.

        Raises:
            UnavailableError: no master is reachable, active, or answers in time.
            RefusedError: the last one could not handle the request.
            ProtocolError: the last one's answer is invalid.
        """
        found = await self._try_each(
            lambda link: link.ask(method, request, answer, self._timeout_ms)
        )
        self.answered = True
        return found

    async def _try_each(self, use: Callable[[TubeConnection], Awaitable[T]]) -> T:
        error: CohererError | None = None
        refusals = 0
        for _ in self.addresses:
            tried = self._current
            link: TubeConnection | None = None
            try:
                link = await self._pool.get(*self.addresses[tried])
                self._reached = True
                self.closed = False
                return await use(link)
            except UsageError:
                raise
            except CohererError as failure:
                error = failure
                refusals += isinstance(failure.__cause__, ConnectionRefusedError)
                _log.info(
                    "Master %s:%d: %s", *self.addresses[tried], failure, about=self.addresses[tried]
                )
                if link is not None:
                    link.connection.close()
                if self._current == tried:  # otherwise another call has moved on already
                    self._current = (tried + 1) % len(self.addresses)
        assert error is not None  # noqa: S101 - there is at least one address
        self.closed = refusals == len(self.addresses) and not self._reached
        raise error


async def _unchanged(link: TubeConnection) -> TubeConnection:
    return link


class AnswerStatus(Protocol):
    """The first fields of every answer of a master or broker."""

    @property
    def success(self) -> bool:
        """Whether the request succeeded."""
        ...

    @property
    def errCode(self) -> int:  # noqa: N802 - the protocol's name
        """The error code."""
        ...

    @property
    def errMsg(self) -> str:  # noqa: N802 - the protocol's name
        """The error message."""
        ...


def checked(
    answer: AnswerStatus, *, server: str, topic: str | None = None, partition: int | None = None
) -> None:
    """Check that an answer reports success.

    Raises:
        RefusedError: it does not; the class depends on the code.
    """
    if not answer.success:
        raise codes.refused(
            answer.errCode, answer.errMsg, server=server, topic=topic, partition=partition
        )


HANDSHAKES_MAX: Final = 6
"""After this many failed TLS handshakes in a row, in 0.3 s, the port does not serve TLS. After this
many connections that end although no master has ever answered, it is not a master's. One may fail
because the server is just ending."""


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    timeout_ms: int,
    final: Collection[int],
    masters: Masters | None = None,
) -> T:
    """Call a function until it succeeds, the time is up, or the failure is permanent.

    Args:
        attempt: the coroutine function.
        timeout_ms: no further attempt begins after this time.
        final: codes of permanent refusals.
        masters: the masters that are asked; ports that were never theirs are a permanent failure.

    Raises:
        CohererError: the error of the last attempt.
    """
    loop = running_loop()
    deadline = loop.time() + timeout_ms / 1000
    wait = backoff()
    logged = False
    handshakes = 0  # failed ones in a row
    while True:
        try:
            return await attempt()
        except (UnavailableError, RefusedError) as error:
            pause = wait()
            new = masters is not None and not masters.answered
            ended = tls_failed(error) or (new and isinstance(error, DisconnectedError))
            handshakes = handshakes + 1 if ended else 0
            hopeless = handshakes >= HANDSHAKES_MAX or certificate_refused(error)
            wrong = isinstance(error, AuthorizationError | WrongProtocolError)
            closed = masters is not None and masters.closed
            permanent = error.code in final or wrong or hopeless or closed
            if permanent or loop.time() + pause > deadline:
                raise
            if pause >= LOG_WAIT_S and not logged:
                _log.warning("Trying again for up to %d s: %s", timeout_ms // 1000, error)
                logged = True
        await asyncio.sleep(pause)


UNDEFINED: Final = -2
"""TubeMQ's value for "none yet" in number fields."""


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a client.

    Args:
        addresses: host and port of each master.
        user: name of the account; None for no authentication.
        password: of the account. It signs requests and is never sent.
        tls: the TLS options; None for plain TCP.
        timeout_ms: of each request, and of starting.
        connect_timeout_ms: of each new connection.
        heartbeat_ms: interval of heartbeats to masters and brokers, which forget clients that are
            silent for 30 s.
        idle_ms: a connection without requests is closed after this time without received data.
        admin: URL of the master's HTTP port, for `Client.admin`.
        on_disk: readers and offsets end where the broker's files end. Otherwise Java's broker also
            delivers messages that are only in memory, and that are lost if it is killed.
        metrics: measures producers and consumers (`coherer.ClientMetrics`); None for no metrics.
    """

    addresses: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = None
    tls: TlsOptions | None = None
    timeout_ms: int = 10_000
    connect_timeout_ms: int = 3_000
    heartbeat_ms: int = 13_000
    idle_ms: int = 300_000
    admin: str | None = None
    on_disk: bool = False
    metrics: ClientMetrics | None = None

    def __post_init__(self) -> None:
        if not self.addresses:
            raise UsageError("A client needs the address of a master.")
        if (self.user is None) != (self.password is None):
            raise UsageError("`user` and `password` go together.", hint="Give both or neither.")
        if not TIMEOUT_MS_MIN <= self.timeout_ms <= TIMEOUT_MS_MAX:
            raise UsageError(
                f"timeout_ms is {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}, not {self.timeout_ms}."
            )
        for name in ("connect_timeout_ms", "heartbeat_ms", "idle_ms"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is 1 or more, not {getattr(self, name)}.")

    def __repr__(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"<ClientOptions {hosts}, user {self.user}>"  # never the password


class Signer:
    """Signs requests, which authenticates the client.

    Every request that can carry a signature is signed. Java signs only some requests, and its own
    servers refuse the others when they are configured to check them.

    Args:
        user: the name.
        password: the key of the signatures.
    """

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    def __repr__(self) -> str:
        return f"<Signer for {self._user}>"  # never the password

    def for_master(self, token: str) -> pb.MasterCertificateInfo:
        """The authentication for a master; `token` was issued by a master before, or is empty."""
        info = credentials.authenticate_info(self._user, self._password, *_now_and_nonce())
        return pb.MasterCertificateInfo(authInfo=info, authorizedToken=token or None)

    def for_broker(self) -> str:
        """The authentication for a broker: name, time, nonce and signature."""
        return credentials.broker_token(self._user, self._password, *_now_and_nonce())


def _now_and_nonce() -> tuple[int, int]:
    return machine.wall_ns() // 1_000_000, machine.secret.randrange(credentials.NONCE_LIMIT)


class Credentials:
    """The credentials of one producer or consumer for masters and brokers.

    Attributes:
        visit_token: shows brokers that a master knows the client; the master renews it.
        granted_token: shows that a master authenticated the client; empty if it issued none.
    """

    def __init__(self, signer: Signer | None) -> None:
        self._signer = signer
        self.visit_token = UNDEFINED
        self.granted_token = ""

    @property
    def signs(self) -> bool:
        """Whether it makes signatures, which expire, and not only has tokens."""
        return self._signer is not None

    def renew(self, info: pb.MasterAuthorizedInfo) -> None:
        """Use the tokens in a master's answer."""
        self.visit_token = info.visitAuthorizedToken
        if info.authAuthorizedToken:
            self.granted_token = info.authAuthorizedToken

    def for_master(self) -> pb.MasterCertificateInfo | None:
        """The field `authInfo` of requests to a master."""
        return None if self._signer is None else self._signer.for_master(self.granted_token)

    def for_broker(self, *, prefer_token: bool = False) -> pb.AuthorizedInfo:
        """The field `authInfo` of requests to a broker.

        Args:
            prefer_token: use the master's token instead of a signature if there is one, as
                producers do.
        """
        token: str | None = None
        if self._signer is not None:
            use_token = prefer_token and self.granted_token
            token = self.granted_token if use_token else self._signer.for_broker()
        return pb.AuthorizedInfo(visitAuthorizedToken=self.visit_token, authAuthorizedToken=token)


class Cluster:
    """The connections of one client to a TubeMQ cluster.

    Attributes:
        options: the client's options.
        pool: the connections.
        masters: calls to the active master.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.pool = Pool(
            tls=options.tls,
            connect_timeout_ms=options.connect_timeout_ms,
            idle_ms=options.idle_ms,
        )
        self.masters = Masters(options.addresses, self.pool, options.timeout_ms)

    def credentials(self) -> Credentials:
        """New credentials for a producer or consumer."""
        user, password = self.options.user, self.options.password
        return Credentials(Signer(user, password) if user is not None and password else None)

    async def local_host(self) -> str:
        """The client's address as the master sees it.

        Raises:
            UnavailableError: no master can be reached.
        """
        link = await self.masters.link()
        return link.local_host or "127.0.0.1"

    @property
    def secure(self) -> bool:
        """Whether connections use TLS, which determines the default ports."""
        return self.options.tls is not None


def client_id(local_host: str, kind: str = "") -> str:
    """A unique id for a producer, or for a consumer of the given kind.

    It contains the host, the process, the time of creation in ms since 1970, and a random number.

    >>> client_id("10.0.0.1").startswith("10.0.0.1-")
    True
    """
    parts = [
        local_host,
        str(machine.process_id()),
        str(machine.wall_ns() // 1_000_000),
        str(machine.secret.getrandbits(31)),
        *([kind] if kind else []),
        f"{OWN_CLIENT}{__version__}",
    ]
    return "-".join(parts)


def address_number(host: str) -> int:
    """An IPv4 address as the protocol's signed number; other addresses become the loopback's.

    >>> address_number("192.168.0.1"), address_number("::1")
    (-1062731775, 2130706433)
    """
    try:
        number = int(IPv4Address(host))
    except AddressValueError:
        number = int(IPv4Address("127.0.0.1"))
    return number - 2**32 if number >= 2**31 else number
