"""Accepting connections.

A port serves TLS, plain TCP, or both. On a port for both, `TlsAcceptor` looks at the first
byte of a connection without consuming it, and then hands the socket to the event loop, with TLS or
without. So the bytes of a plain connection take the same path as on a plain port.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from typing import Any, Final

from coherer._common.logs import Log
from coherer._net.connection import Connection, NullReceiver, Receiver
from coherer._net.limits import ConnectionBudget
from coherer._net.process import retain_freed_memory
from coherer._net.tls import TlsOptions
from coherer.errors import UsageError

_log = Log(logging.getLogger(__name__))

_BACKLOG: Final = 1024
_TLS_HANDSHAKE: Final = b"\x16"
"""The type of the record that a TLS client sends first."""
_ACCEPT_PAUSE_S: Final = 1.0
"""Pause before the next attempt to accept when the process cannot open more files."""


class Listener:
    """An open port and its connections. Made by `listen`.

    Attributes:
        host: the address it listens on.
        port: its port; the actual one if 0 was requested.
    """

    def __init__(
        self,
        make: Callable[[Connection], Receiver],
        budget: ConnectionBudget,
        connections_max: int | None = None,
    ) -> None:
        self.host = ""
        self.port = 0
        self._make = make
        self._budget = budget
        self._connections_max = connections_max or budget.limits.connections_max
        self._connections: dict[Connection, None] = {}  # in order: a simulation repeats it
        self._server: asyncio.Server | TlsAcceptor
        self._empty = asyncio.Event()
        self._empty.set()
        self._closing = False

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def new_connection(self) -> Connection:
        """Create the asyncio protocol of an accepted connection; called by the event loop."""
        return Connection(
            self._admit, self._budget.limits, budget=self._budget, on_closed=self._connection_lost
        )

    async def open(self, host: str, port: int, tls: TlsOptions | None, *, plain: bool) -> None:
        """Bind and listen; see `listen`."""
        if not 0 <= port <= 0xFFFF:  # uvloop would use its lowest 16 bits
            raise UsageError(f"{port} is not a valid port: ports are 0 to 65535.")
        context = tls.server_context() if tls is not None else None
        loop = asyncio.get_running_loop()
        try:
            address = await _resolve(host, port)
            if context is not None:
                acceptor = TlsAcceptor(context, self.new_connection, self._budget, plain=plain)
                self.host, self.port = acceptor.open(address, port)
                self._server = acceptor
                return
            # In two steps: a server that is cancelled while it begins to serve stays open.
            server = self._server = await loop.create_server(
                self.new_connection, address, port, backlog=_BACKLOG, start_serving=False
            )
            try:
                await server.start_serving()
            except BaseException:
                server.close()
                raise
        except OSError as error:
            raise _listen_error(host, port, error) from error
        self.host, self.port = server.sockets[0].getsockname()[:2]

    def renew(self, context: ssl.SSLContext) -> None:
        """Use another TLS context for new connections; a port without TLS ignores it."""
        if isinstance(self._server, TlsAcceptor):
            self._server.context = context

    async def close(self, *, timeout_ms: int = 2000) -> None:
        """Stop accepting, send written bytes, and close every connection.

        Args:
            timeout_ms: connections with unsent bytes are aborted after this time.
        """
        self._closing = True
        self._server.close()
        for connection in tuple(self._connections):
            connection.close()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._empty.wait()
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.abort()
            await self._empty.wait()

    def _admit(self, connection: Connection) -> Receiver:
        if self._closing:  # accepted just before
            connection.abort()
            return NullReceiver()
        # Count only now: asyncio never reports connections whose TLS handshake fails.
        if (
            len(self._connections) >= self._connections_max
            or not self._budget.connections.acquire()
        ):
            _log.warning(
                "Refusing %s: too many connections",
                connection.peer,
                about=id(self),
                peer=connection.peer,
            )
            connection.abort()
            return NullReceiver()
        self._connections[connection] = None
        self._empty.clear()
        return self._make(connection)

    def _connection_lost(self, connection: Connection) -> None:
        if connection not in self._connections:
            return  # it was refused
        self._budget.connections.release()
        del self._connections[connection]
        if not self._connections:
            self._empty.set()


async def listen(
    host: str,
    port: int,
    make: Callable[[Connection], Receiver],
    *,
    tls: TlsOptions | None = None,
    plain: bool = False,
    connections_max: int | None = None,
    budget: ConnectionBudget | None = None,
) -> Listener:
    """Open a port.

    Args:
        host: the address to listen on, or a name for it. Of several addresses the first IPv4
            address is used.
        port: the port; 0 for any free one.
        make: returns the receiver of each new connection.
        tls: TLS settings with a certificate; None for plain TCP.
        plain: with `tls`, serve plain connections as well.
        connections_max: connections beyond this number are refused; None takes the limit of the
            budget.
        budget: shared by the ports of a node; None gives the port a budget of its own.

    Raises:
        UsageError: the port is not available, or the TLS files cannot be used.
    """
    retain_freed_memory()
    listener = Listener(make, budget or ConnectionBudget(), connections_max)
    await listener.open(host, port, tls, plain=plain)
    return listener


class TlsAcceptor:
    """Accepts TLS connections on a port, and plain ones if it serves both.

    Args:
        context: for TLS connections; it may be replaced.
        make: creates the asyncio protocol of a connection.
        budget: of the node.
        plain: whether it serves plain connections as well.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        budget: ConnectionBudget,
        *,
        plain: bool,
    ) -> None:
        self._plain = plain
        self.context = context
        self._make = make
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: socket.socket

    def open(self, address: str, port: int) -> tuple[str, int]:
        """Bind and listen.

        Returns:
            Host and port.

        Raises:
            OSError: the address is not available.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._start(self._accept())
        host, bound, *_ = self._socket.getsockname()
        return host, bound

    def close(self) -> None:
        """Stop accepting, and close the connections that have not sent anything."""
        for task in tuple(self._tasks):
            task.cancel()
        for silent in tuple(self._silent):
            self._remove(silent)
            silent.close()
        self._socket.close()

    async def _accept(self) -> None:
        limits, connections = self._budget.limits, self._budget.connections
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                _log.warning("Cannot accept: %s", error, about=error.errno)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._tasks) > limits.connections_max:  # in their handshakes
                accepted.close()
                continue
            accepted.setblocking(False)
            if not self._plain:
                self._start(self._hand_over(accepted, self.context))
                continue
            if len(self._silent) >= limits.connections_max or not connections.acquire():
                accepted.close()
                continue
            self._silent[accepted] = self._loop.call_later(
                limits.first_byte_ms / 1000, self._close_silent, accepted
            )
            self._loop.add_reader(accepted, self._detect, accepted)

    def _detect(self, accepted: socket.socket) -> None:
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._remove(accepted)
        if first:
            context = self.context if first == _TLS_HANDSHAKE else None
            self._start(self._hand_over(accepted, context))
        else:
            accepted.close()

    async def _hand_over(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        handshake_s = None
        peer = _peer(accepted)
        if context is not None:
            handshake_s = self._budget.limits.tls_handshake_ms / 1000
        try:
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=context, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:  # includes TLS errors
            if isinstance(error, ssl.SSLError) and error.reason:
                # The client may not be told: asyncio does not send the alert.
                _log.warning(
                    "Refusing %s: the TLS handshake failed: %s",
                    peer,
                    getattr(error, "verify_message", error.reason.lower().replace("_", " ")),
                    about=(id(self), error.reason),
                    peer=peer,
                )
            accepted.close()

    def _close_silent(self, accepted: socket.socket) -> None:
        self._remove(accepted)
        accepted.close()

    def _remove(self, accepted: socket.socket) -> None:
        self._budget.connections.release()
        self._silent.pop(accepted).cancel()
        self._loop.remove_reader(accepted)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _peer(accepted: socket.socket) -> str:
    try:
        host, port, *_ = accepted.getpeername()
    except OSError:  # it has hung up
        return "a client"
    return f"{host}:{port}"


async def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket, for a server outside this package.

    Raises:
        UsageError: the address is not of this machine, or the port is taken.
    """
    try:
        address = await _resolve(host, port)
        return socket.create_server((address, port), family=_family(address))
    except OSError as error:
        raise _listen_error(host, port, error) from error


@contextmanager
def kept_ports(host: str, ports: Iterable[int]) -> Generator[None]:
    """Keep the ports of a server that is stopped for a moment, so that it gets them again.

    Without this, Linux may give one of them to a connection, or to a server that asks for any free
    port. A program that asks for that very port still gets it. Connections to the ports are
    refused. On other systems this does nothing.

    Args:
        host: that the server listened on.
        ports: those that it has just closed; one that is taken already is left out.
    """
    with ExitStack() as stack:
        for port in ports if sys.platform == "linux" else ():
            with suppress(OSError):
                address = _literal(host) or _preferred(socket.getaddrinfo(host, port))
                one = stack.enter_context(socket.socket(_family(address)))
                # Linux lets sockets with this option share a port while none of them listens.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((address, port))
        yield


def _listen_error(host: str, port: int, error: OSError) -> UsageError:
    number = error.errno or 0
    # Numbers that are not positive come from name resolution.
    text = os.strerror(number) if number > 0 else error.strerror or str(error)
    hints = {
        errno.EADDRINUSE: "Another process uses it: stop that process or choose another port, 0 "
        "for any free one.",
        errno.EACCES: "Choose a port above 1023.",
    }
    hint = hints.get(number, "Is it an address of this machine?")
    return UsageError(f"Cannot listen on {host}:{port}: {text}.", hint=hint)


async def _resolve(host: str, port: int) -> str:
    return _literal(host) or _preferred(await asyncio.get_running_loop().getaddrinfo(host, port))


def _literal(host: str) -> str | None:
    """Return a host that is an address already; None for a name."""
    if not host:
        return "0.0.0.0"  # noqa: S104 - requested by the caller
    with suppress(ValueError):
        return str(ip_address(host))
    return None


def _preferred(found: Iterable[tuple[Any, ...]]) -> str:
    """Choose one of a name's addresses: several would give several sockets, and several ports."""
    addresses = [str(entry[4][0]) for entry in found]
    return next((address for address in addresses if ":" not in address), addresses[0])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
