"""Connections to servers: the requests in flight on each, and the pool that makes them.

Rules:

* A client has one connection per server address; everything that it makes shares it.
* Requests are pipelined. Each waits in a table under its serial number; an answer to a request that
  is not in the table (any more) is dropped.
* There is no timer per request: each connection has one timer, set for the earliest deadline.
* When a connection ends, its pending requests fail with `DisconnectedError`.
* A connection without pending requests is closed when nothing was received for `idle_ms`.
* The next request reopens a lost connection. `sender.BrokerSender` reopens its connection at once
  while messages are sent to that broker.
* A connection is dead if a request was not answered in time, nothing was received for `SILENT_MS`
  after that, and a second request is not answered either. The connection is aborted, and the next
  request dials again. The operating system would need a quarter of an hour to notice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from coherer._client.engine.tasks import joined, shared
from coherer._common.logs import Log
from coherer._net import Connection, ConnectionLimits, TlsOptions, check_loop, dial, running_loop
from coherer.errors import (
    ClosedError,
    CohererError,
    DisconnectedError,
    ForkedError,
    ProtocolError,
    RequestTimeoutError,
    WrongProtocolError,
)

_log = Log(logging.getLogger(__name__))

LATE_SWEEP_MS: Final = 50
"""A sweep that runs this late waits for the same time again: the event loop was busy, and the
answers may be in the socket already."""

SILENT_MS: Final = 5_000
"""See the module. Java's clients close the connection after one late answer."""

SWEEP_MS_MIN: Final = 10
"""The precision of deadlines: a sweep checks every request in flight."""

_USUAL_PORTS: Final = (
    "Usual ports are 8715 for tubemq://, 8716 for tubemqs://, 9876 for rocketmq://"
)
WRONG_PORT_HINT: Final = f"Is the port right? {_USUAL_PORTS}; 8080 is the HTTP administration."
OUTCOME_UNKNOWN: Final = "The request may or may not have been carried out."
NOTHING_RECEIVED: Final = (
    "Nothing was ever received from this server: does the port speak this protocol, without TLS? "
    f"{_USUAL_PORTS}."
)
NOTHING_RECEIVED_TLS: Final = (
    "Nothing was ever received from this server: does the port speak this protocol, and does the "
    "server want a certificate of this client (`TlsOptions(certificate=...)`) that it trusts?"
)

A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)


class PendingRequest(Protocol[A_contra]):
    """A request that waits for its answer."""

    @property
    def deadline(self) -> float:
        """When it stops waiting, by the event loop's clock in seconds."""
        ...

    def answered(self, answer: A_contra) -> None:
        """The server answered."""
        ...

    def failed(self, error: CohererError) -> None:
        """No answer will come."""
        ...


class ServerConnection(Generic[A]):
    """One connection, and the requests in flight on it.

    A protocol adds the session, which assigns serial numbers and parses answers, and `received`,
    which finds requests in `_waiting` and records the time in `_heard`.

    Attributes:
        connection: the connection.
        server: the dialled address, for error messages.
        retired: whether it was closed because it was idle.
        idle_ms: how long a connection without requests may be silent before it is closed.
    """

    idle_ms: int = 300_000

    def __init__(self, connection: Connection, server: str) -> None:
        self.connection = connection
        self.server = server
        self.retired = False
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, PendingRequest[A]] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # uvloop's handles do not report the time once they are due
        self._made = self._heard = self._loop.time()
        self._late: float | None = None  # when the oldest unanswered request became overdue
        self._idle = self._loop.call_later(self.idle_ms / 1000, self._check_idle)
        self._when_closed: list[Callable[[], None]] = []
        self._understood = False  # whether anything received was valid
        self._ended = False
        self._broken: ProtocolError | None = None

    def __repr__(self) -> str:
        state = f"{len(self._waiting)} in flight" if self.open else "closed"
        return f"<{type(self).__name__} {self.server}, {state}>"

    @property
    def open(self) -> bool:
        """Whether requests can be sent."""
        return not self.connection.closed

    @property
    def local_host(self) -> str:
        """The client's address as the server sees it, unless a NAT translates it."""
        return self.connection.local_host

    def send_frame(self, serial: int, waiter: PendingRequest[A], frame: bytes) -> None:
        """Send the request with number `serial`; its answer goes to `waiter`."""
        waiting, timer = self._waiting, self._timer
        waiting[serial] = waiter
        if timer is None or waiter.deadline < self._timer_at:
            if timer is not None:
                timer.cancel()
            self._sweep_at(waiter.deadline)
        self.connection.write(frame, alone=len(waiting) == 1)

    async def close(self) -> None:
        """Close the connection and wait until it is closed."""
        self.connection.close()
        if self._ended:
            return
        ended = asyncio.Event()
        self.when_closed(ended.set)
        await ended.wait()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the connection is closed and its requests have failed."""
        self._when_closed.append(callback)

    # -- called by the connection

    def closed(self, error: Exception | None) -> None:
        """The connection is closed."""
        self._ended = True
        error = error or self._broken
        self._idle.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        lost = self._lost(error)
        for waiter in waiting.values():
            waiter.failed(lost)
        for callback in self._when_closed:
            callback()

    # -- inside

    def _misread(self, error: ProtocolError) -> None:
        """Close the connection, because received data is invalid."""
        self._broken = error
        if self._understood:
            _log.warning("Closing the connection with %s: %s", self.server, error)
        self.connection.close()

    def _lost(self, error: Exception | None) -> CohererError:
        """The error of the requests in flight when the connection breaks."""
        if self._broken is not None and not self._understood:
            return WrongProtocolError(str(self._broken), server=self.server, hint=WRONG_PORT_HINT)
        return DisconnectedError(
            f"The connection broke before the answer came{f' ({error})' if error else ''}.",
            server=self.server,
            hint=self._hint(),
        )

    def _hint(self) -> str:
        """The hint of the error of a request without an answer."""
        if self._heard != self._made:
            return OUTCOME_UNKNOWN
        hint = NOTHING_RECEIVED_TLS if self.connection.secure else NOTHING_RECEIVED
        return f"{OUTCOME_UNKNOWN} {hint}"

    def _sweep(self) -> None:
        now = self._loop.time() + SWEEP_MS_MIN / 1000
        if self._timer is not None and now - self._timer_at > LATE_SWEEP_MS / 1000:
            self._sweep_at(self._loop.time() + LATE_SWEEP_MS / 1000)
            return
        self._timer = None
        waiting = self._waiting
        late = [serial for serial, waiter in waiting.items() if waiter.deadline <= now]
        for serial in late:
            waiting.pop(serial).failed(
                RequestTimeoutError(
                    "No answer in time.",
                    server=self.server,
                    hint=self._hint(),
                )
            )
        if late and self._dead():
            _log.warning("%s no longer answers; aborting the connection", self.server)
            self.connection.abort()
        elif waiting:
            earliest = min(waiter.deadline for waiter in waiting.values())
            self._sweep_at(earliest)

    def _sweep_at(self, when: float) -> None:
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._sweep)

    def _dead(self) -> bool:
        """Whether the connection is dead; see the module."""
        now = self._loop.time()
        if self._late is None or self._heard >= self._late:
            self._late = now
            return False
        return now - self._late >= SILENT_MS / 1000

    def _check_idle(self) -> None:
        rest = self._heard + self.idle_ms / 1000 - self._loop.time()
        if rest <= 0 and not self._waiting:
            _log.debug("Closing the idle connection with %s", self.server)
            self.retired = True
            self.connection.close()
            return
        self._idle = self._loop.call_later(max(rest, 1.0), self._check_idle)


class AnyLink(Protocol):
    """A connection, as the pool sees it."""

    @property
    def connection(self) -> Connection:
        """The connection."""
        ...

    @property
    def open(self) -> bool:
        """Whether requests can be sent."""
        ...

    def received(self, data: bytes) -> None:
        """Called by the connection with each socket read."""
        ...

    def closed(self, error: Exception | None) -> None:
        """The connection is closed."""
        ...

    async def close(self) -> None:
        """Close the connection and wait until it is closed."""
        ...


L = TypeVar("L", bound=AnyLink)


class ConnectionPool(Generic[L]):
    """The connections of one client, one per address.

    Args:
        make: wraps a connection; called with the connection and the dialled address.
        tls: the TLS options; None for plain TCP.
        connect_timeout_ms: for each new connection.
        limits: of the connections' buffers.
    """

    def __init__(
        self,
        make: Callable[[Connection, str], L],
        *,
        tls: TlsOptions | None = None,
        connect_timeout_ms: int = 3000,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._limits = limits or ConnectionLimits()
        self._make = make
        self.tls = tls
        self._connect_timeout_ms = connect_timeout_ms
        self._links: dict[tuple[str, int], L] = {}
        self._dialling: dict[tuple[str, int], asyncio.Task[L]] = {}
        self._process = os.getpid()
        self._closed = False
        self._home: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Pool of {len(self._links)} connections>"

    def check(self) -> None:
        """Check that the client can be used here and now.

        Raises:
            ClosedError: the client is closed.
            ForkedError: the client was made in another process.
        """
        # A system call for each send: uWSGI forks in C, so Python's hooks for forks do not run.
        if self._process != os.getpid():
            raise ForkedError(
                "The client was made before a fork, in another process.",
                hint="Connect again in this process.",
            )
        if self._closed:
            raise ClosedError("The client is closed.")

    def check_loop(self) -> None:
        """Check that the client is used in the event loop that it was first used in.

        Raises:
            UsageError: it is used in another event loop.
        """
        if not self._closed:
            check_loop(self._home, "The client")

    @property
    def connected(self) -> bool:
        """Whether a connection is open."""
        return any(link.open for link in self._links.values())

    def find(self, host: str, port: int) -> L | None:
        """The open connection to an address, if any."""
        link = self._links.get((host, port))
        return link if link is not None and link.open else None

    async def get(self, host: str, port: int) -> L:
        """The open connection to an address; opened now if necessary.

        Raises:
            ConnectError: it could not be opened.
            ClosedError: the client is closed.
            UsageError: the client was used in another event loop before.
        """
        self.check()
        if self._home is None:
            self._home = running_loop()
        self.check_loop()
        link = self.find(host, port)
        if link is not None:
            return link
        address = (host, port)
        task = self._dialling.get(address)
        if task is None:
            task = shared(self._dial(host, port), f"dial {host}:{port}")
            self._dialling[address] = task
            task.add_done_callback(lambda _: self._dialling.pop(address, None))
        # Shielded: several callers may wait for the connection, and one of them may be cancelled.
        return await joined(task)

    def drop(self) -> None:
        """Close all connections, without waiting until they are closed."""
        self._closed = True
        for task in self._dialling.values():
            task.cancel()
        for link in self._links.values():
            link.connection.close()

    async def close(self) -> None:
        """Close all connections, and wait until they are closed."""
        self.drop()
        await asyncio.gather(*self._dialling.values(), return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()

    async def _dial(self, host: str, port: int) -> L:
        server = f"{host}:{port}"
        link = await dial(
            host,
            port,
            lambda connection: self._make(connection, server),
            tls=self.tls,
            timeout_ms=self._connect_timeout_ms,
            limits=self._limits,
        )
        self._links[host, port] = link
        return link
