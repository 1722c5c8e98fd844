"""One port for both: TLS where a connection's first byte says so, plain bytes else.

The first byte is looked at without being taken, and then the event loop gets the socket, with TLS
or without: so the bytes of a plain connection go no longer way than on a plain port. A connection
that says nothing is closed after two minutes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Final

from coherer import limits
from coherer._common.logs import Log
from coherer._net.limits import PLACES

_log = Log(logging.getLogger(__name__))

HANDSHAKE: Final = b"\x16"
"""The type of the record that a TLS client sends first."""

SILENT_S: Final = 120.0
HANDSHAKE_S: Final = 10.0
PAUSE_S: Final = 1.0
"""How long accepting rests when the process has no more files."""


class Guesser:
    """Accepts connections of both kinds.

    Args:
        context: for those with TLS.
        make: makes the protocol of a connection.
        silent_s: how long a connection may say nothing.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        silent_s: float = SILENT_S,
    ) -> None:
        self._context = context
        self._make = make
        self._silent_s = silent_s
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: socket.socket

    def open(self, address: str, port: int, backlog: int) -> tuple[str, int]:
        """Bind and listen. Returns where.

        Raises:
            OSError: it cannot be.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=backlog)
        self._socket.setblocking(False)
        self._start(self._accept())
        host, bound, *_ = self._socket.getsockname()
        return host, bound

    def close(self) -> None:
        """Accept nothing more; who has not said anything is closed."""
        for task in tuple(self._tasks):
            task.cancel()
        for silent in tuple(self._silent):
            self._take(silent)
            silent.close()
        self._socket.close()

    async def _accept(self) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                _log.warning("Cannot accept: %s", error, about=error.errno)
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._silent) >= limits.CONNECTIONS_MAX or not PLACES.take():
                accepted.close()
                continue
            accepted.setblocking(False)
            late = self._loop.call_later(self._silent_s, self._give_up, accepted)
            self._silent[accepted] = late
            self._loop.add_reader(accepted, self._spoke, accepted)

    def _spoke(self, accepted: socket.socket) -> None:
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._take(accepted)
        if first:
            self._start(self._admit(accepted, self._context if first == HANDSHAKE else None))
        else:
            accepted.close()

    async def _admit(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        timeout_s = None if context is None else HANDSHAKE_S
        try:
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=context, ssl_handshake_timeout=timeout_s
            )
        except OSError as error:  # ssl's errors are such, too
            _log.debug("A connection was not made: %s", error, about=type(error))
            accepted.close()

    def _give_up(self, accepted: socket.socket) -> None:
        self._take(accepted)
        accepted.close()

    def _take(self, accepted: socket.socket) -> None:
        PLACES.give()
        self._silent.pop(accepted).cancel()
        self._loop.remove_reader(accepted)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
