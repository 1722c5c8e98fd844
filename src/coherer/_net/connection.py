"""One connection: bytes in by batches, bytes out once per loop turn.

Rules:

* What is written during a loop turn leaves in one transport write: what a receiver writes while it
  handles a read leaves when it returns, anything else at the next turn.
* A connection keeps at most `limits.OUTBOX_HIGH_BYTES` and what one more turn writes. Above it a
  dialled connection asks its user to wait (`drain`), and an accepted one is not read from any
  more: a peer that does not read its answers cannot ask for more. (Were both sides to stop reading,
  both could wait for ever; so the dialling side never does.) `keep_reading` is for peers that do
  not ask: what they say is taken however much waits for them.
* Those that lag share `limits.OUTBOXES_BYTES` (`net.outboxes`): the more they are, the earlier an
  accepted connection is not read from any more.
* What accepted connections keep of requests that are not whole has a limit, too (`net.inboxes`):
  receivers say it with `keeps`.
* A peer that takes nothing at all for `limits.STALLED_WRITE_MS` is cut off while the outbox is
  full, or when the connection is being closed.
* An exception in the receiver ends this connection and no other.
"""

from __future__ import annotations

import asyncio
import logging
import socket as _socket
from collections.abc import Callable, Iterable
from socket import SO_KEEPALIVE, SOL_SOCKET
from typing import Protocol, cast

from coherer import limits
from coherer._common.logs import Log
from coherer._net.limits import OUTBOXES, Inboxes
from coherer.errors import CohererError, DisconnectedError, ProtocolError

_log = Log(logging.getLogger(__name__))


class _Socket(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


class Receiver(Protocol):
    """Who handles what a connection receives."""

    def received(self, data: bytes) -> None:
        """One socket read. An exception closes the connection."""
        ...

    def closed(self, error: Exception | None) -> None:
        """The connection is gone; called once. `error` is None when it was closed in order."""
        ...


class Nobody:
    """The receiver of a connection that is not served: it is about to be cut off."""

    def received(self, data: bytes) -> None:
        """Nothing is read."""

    def closed(self, error: Exception | None) -> None:
        """Nobody needs to know."""


class Connection(asyncio.Protocol):
    """A connected socket. Made by `dial` and `listen`.

    Attributes:
        peer: the other side as `host:port`.
        peer_host: the other side's address.
        local_host: our side's address, as the peer knows us.
        secure: whether TLS carries the bytes.
        closed: whether it is closed or closing; what is written then is dropped.
    """

    peer = ""
    peer_host = ""
    local_host = ""
    secure = False
    closed = False

    def __init__(
        self,
        make: Callable[[Connection], Receiver],
        *,
        accepted: bool = False,
        gone: Callable[[Connection], None] | None = None,
        inboxes: Inboxes | None = None,
    ) -> None:
        self._make = make
        self._accepted = self._waits = accepted
        self._gone = gone
        self._inboxes = inboxes
        self._loop = asyncio.get_running_loop()
        self._outbox: list[bytes | memoryview] = []
        self._outbox_bytes = 0
        self._unweighed_bytes = 0
        self._receiving = False
        self._scheduled = False
        self._full = False
        self._held = False
        self._lacks_room = False
        self._paused = False
        self._drained: asyncio.Future[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._receiver: Receiver

    # -- what users call

    @property
    def receiver(self) -> Receiver:
        """Who handles the received bytes."""
        return self._receiver

    @property
    def full(self) -> bool:
        """Whether more waits for the peer than may: `drain` would wait."""
        return self._full

    @property
    def unsent_bytes(self) -> int:
        """Bytes written here that the system has not taken yet."""
        return self._outbox_bytes + self._transport.get_write_buffer_size()

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` with everything else that is written in this loop turn."""
        if self.closed:
            return
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        if not self._receiving and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def write_many(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send several pieces one after the other."""
        if self.closed:
            return
        before = len(self._outbox)
        self._outbox.extend(parts)
        self._outbox_bytes += sum(map(len, self._outbox[before:]))
        if not self._receiving and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def flush(self) -> None:
        """Hand what is collected to the system now instead of at the next loop turn."""
        outbox = self._outbox
        if not outbox:
            return
        # Joined rather than written one by one: for many small pieces a copy is far cheaper than a
        # system call with as many buffers, and no slice of a mapped file outlives this call.
        first = outbox[0]
        data = first if len(outbox) == 1 and isinstance(first, bytes) else b"".join(outbox)
        outbox.clear()
        self._outbox_bytes = 0
        self._unweighed_bytes += len(data)
        if self._unweighed_bytes > limits.OUTBOX_WEIGHED_BYTES:
            self._weigh()
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until fewer than `limits.OUTBOX_LOW_BYTES` are unsent, if the outbox is full.

        Raises:
            DisconnectedError: the connection is closed.
        """
        self.flush()
        while self._full and not self.closed:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        if self.closed:
            raise DisconnectedError("The connection is closed.", server=self.peer)

    def keep_reading(self) -> None:
        """Read on when the outbox is full: what the peer says are no questions."""
        self._waits = False

    def pause_reading(self) -> None:
        """Do not read from the peer until `resume_reading`."""
        self._held = True
        self._regulate()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        self._held = False
        self._regulate()

    def keeps(self, unfinished: tuple[int, int]) -> None:
        """Say what is kept of a request that is not whole; call it after each socket read.

        Args:
            unfinished: how many bytes there are, 0 for none, and how many it lacks.
        """
        if self._inboxes is not None:
            self._inboxes.keeps(self, *unfinished)

    def await_room(self, waits: bool) -> None:
        """Called by `net.inboxes`: do not read from the peer, or read again."""
        self._lacks_room = waits
        self._regulate()

    def close(self) -> None:
        """Send what is collected, then close. `Receiver.closed` is called when it is done."""
        if not self.closed:
            self.flush()
            self.closed = True
            self._transport.close()
            self._watch_farewell()

    def abort(self) -> None:
        """Close now and forget what was not sent."""
        self.closed = True
        self._outbox.clear()
        self._outbox_bytes = 0
        self._transport.abort()

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(limits.OUTBOX_HIGH_BYTES, limits.OUTBOX_LOW_BYTES)
        self.peer_host, self.peer = _address(transport.get_extra_info("peername"))
        self.local_host, _ = _address(transport.get_extra_info("sockname"))
        self.secure = transport.get_extra_info("sslcontext") is not None
        _keep_alive(transport.get_extra_info("socket"))
        try:
            self._receiver = self._make(self)
        except Exception as error:
            if not self._accepted:
                raise
            if isinstance(error, CohererError):  # the server has just begun, or is ending
                _log.info("Not serving %s: %s", self.peer, error, about=self.peer_host)
            else:
                _log.exception(
                    "Not serving %s after an error of ours", self.peer, about=self.peer_host
                )
            self._receiver = Nobody()
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self.closed:
            return
        self._receiving = True
        try:
            self._receiver.received(data)
        except ProtocolError as error:
            _log.warning(
                "Closing the connection with %s: %s", self.peer, error, about=self.peer_host
            )
            self.close()
        except Exception:  # noqa: BLE001 - the first rule of a server: one connection, not all
            _log.exception(
                "Closing the connection with %s after an error of ours",
                self.peer,
                about=self.peer_host,
            )
            self.abort()
        finally:
            self._receiving = False
        self.flush()

    def pause_writing(self) -> None:
        """Called by the event loop: the outbox is full."""
        self._full = True
        self._regulate()
        self._watch_stall(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Called by the event loop: there is room again."""
        self._full = False
        OUTBOXES.caught_up(self)
        self._transport.set_write_buffer_limits(limits.OUTBOX_HIGH_BYTES, limits.OUTBOX_LOW_BYTES)
        self._regulate()
        self._release()
        if self.closed:
            self._watch_farewell()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self.closed = True
        self._outbox.clear()
        self._outbox_bytes = 0
        OUTBOXES.caught_up(self)
        if self._inboxes is not None:
            self._inboxes.gone(self)
        self._release()
        try:
            self._receiver.closed(exc)
        except Exception:  # noqa: BLE001 - see data_received
            _log.exception(
                "An error of ours after the connection with %s ended",
                self.peer,
                about=self.peer_host,
            )
        if self._gone is not None:
            self._gone(self)

    # -- inside

    def _turn(self) -> None:
        self._scheduled = False
        self.flush()

    def _weigh(self) -> None:
        """See whether something from before still waits, and how much of it may."""
        self._unweighed_bytes = 0
        if not self._waits or self._full or not self._transport.get_write_buffer_size():
            return
        share = OUTBOXES.lags(self)
        if share < limits.OUTBOX_HIGH_BYTES:
            self._transport.set_write_buffer_limits(share, share // 4)

    def _regulate(self) -> None:
        pause = self._held or self._lacks_room or (self._full and self._waits)
        if pause == self._paused or self.closed:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _release(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    def _watch_farewell(self) -> None:
        """A peer that is gone without a word would keep a connection that waits for it to read."""
        if self._watch is None and not self.secure:  # TLS has a time for its own farewell
            unsent = self._transport.get_write_buffer_size()
            if unsent:
                self._watch_stall(unsent)

    def _watch_stall(self, unsent: int) -> None:
        self._watch = self._loop.call_later(
            limits.STALLED_WRITE_MS / 1000, self._check_stall, unsent
        )

    def _check_stall(self, before: int) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent >= before:
            _log.warning("Cutting off %s: it has stopped reading", self.peer, about=self.peer_host)
            self.abort()
        else:
            self._watch_stall(unsent)


def _keep_alive(socket: _Socket | None) -> None:
    """Have the system find out within two minutes that a silent peer's machine is gone."""
    if socket is None:
        return
    socket.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        option = getattr(_socket, name, None)
        if option is not None:
            socket.setsockopt(_socket.IPPROTO_TCP, option, value)


def _address(name: object) -> tuple[str, str]:
    if isinstance(name, tuple):  # (host, port), and two more with IPv6
        host, port, *_ = cast("tuple[str, int, int, int]", name)
        return host, f"{host}:{port}"
    return "", "unknown"
