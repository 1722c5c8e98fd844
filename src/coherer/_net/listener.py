"""Accepting connections."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from typing import Final

from coherer import limits
from coherer._common.logs import Log
from coherer._net.connection import Connection, Nobody, Receiver
from coherer._net.limits import PLACES, Inboxes
from coherer._net.listener import HANDSHAKE_S, Guesser
from coherer._net.process import keep_freed
from coherer._net.tls import TlsOptions
from coherer.errors import UsageError

_log = Log(logging.getLogger(__name__))

BACKLOG: Final = 1024


class Listener:
    """An open port and the connections that came in through it. Made by `listen`.

    Attributes:
        host: the address that it listens on.
        port: the port, also when 0 was asked for.
    """

    def __init__(
        self, make: Callable[[Connection], Receiver], connections_max: int, inboxes: Inboxes
    ) -> None:
        self.host = ""
        self.port = 0
        self._make = make
        self._connections_max = connections_max
        self._inboxes = inboxes
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | Guesser
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def accept(self) -> Connection:
        """Make the protocol of a connection that comes in; called by the event loop."""
        return Connection(self._admit, accepted=True, gone=self._forget, inboxes=self._inboxes)

    async def open(self, host: str, port: int, tls: TlsOptions | None, *, plain: bool) -> None:
        """Bind and listen; see `listen`."""
        if not 0 <= port <= 0xFFFF:  # uvloop would take its last 16 bits
            raise UsageError(f"{port} is no port: they are 0 to 65535.")
        context = tls.server_context() if tls is not None else None
        loop = asyncio.get_running_loop()
        try:
            address = await _one_address(host, port)
            if context is not None and plain:
                guesser = Guesser(context, self.accept)
                self.host, self.port = guesser.open(address, port, BACKLOG)
                self._server = guesser
                return
            server = self._server = await loop.create_server(
                self.accept,
                address,
                port,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise _not_open(host, port, error) from error
        self.host, self.port = server.sockets[0].getsockname()[:2]

    async def close(self, *, timeout_ms: int = 2000) -> None:
        """Accept nothing more, send what is written, close every connection.

        Args:
            timeout_ms: connections whose peers have not taken everything by then are cut off.
        """
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
        # Only now: a connection whose TLS handshake fails is never made and never lost.
        if len(self._connections) >= self._connections_max or not PLACES.take():
            _log.warning("Refusing %s: too many connections", connection.peer, about=id(self))
            connection.abort()
            return Nobody()
        self._connections.add(connection)
        self._empty.clear()
        return self._make(connection)

    def _forget(self, connection: Connection) -> None:
        if connection not in self._connections:
            return  # it was refused
        PLACES.give()
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()


async def listen(
    host: str,
    port: int,
    make: Callable[[Connection], Receiver],
    *,
    tls: TlsOptions | None = None,
    plain: bool = False,
    connections_max: int = limits.CONNECTIONS_MAX,
    inboxes: Inboxes | None = None,
) -> Listener:
    """Open a port.

    Args:
        host: the address to listen on, or a name of it; of several addresses the first IPv4 one.
        port: the port; 0 for any free one.
        make: gets every new connection and returns who receives its bytes.
        tls: how to make the connections secret; needs a certificate.
        plain: with `tls`, serve plain connections too; the first byte tells which one is.
        connections_max: more than these are refused.
        inboxes: what limits the requests that are not whole, shared by the ports of a node; None
            for the port's own.

    Raises:
        UsageError: the port cannot be had, or the TLS files cannot be used.
    """
    keep_freed()
    listener = Listener(make, connections_max, inboxes or Inboxes())
    await listener.open(host, port, tls, plain=plain)
    return listener


def _not_open(host: str, port: int, error: OSError) -> UsageError:
    number = error.errno or 0
    # What is not positive is of a name's look-up.
    text = os.strerror(number) if number > 0 else error.strerror or str(error)
    hints = {
        errno.EADDRINUSE: "Another node, or something else, is there: stop it, or choose another "
        "port, 0 for any free one.",
        errno.EACCES: "Choose a port above 1023.",
    }
    hint = hints.get(number, "Is it an address of this machine?")
    return UsageError(f"Cannot listen on {host}:{port}: {text}.", hint=hint)


async def _one_address(host: str, port: int) -> str:
    # A name with several addresses would give several sockets, and with port 0 several ports.
    if not host:
        return "0.0.0.0"  # noqa: S104 - asked for
    found = await asyncio.get_running_loop().getaddrinfo(host, port)
    addresses = [str(entry[4][0]) for entry in found]
    return next((address for address in addresses if ":" not in address), addresses[0])
