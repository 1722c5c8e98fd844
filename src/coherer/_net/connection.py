"""Connections: received bytes are handed on in batches, written bytes leave once per loop turn.

A `Connection` carries bytes and knows no protocol; its `Receiver` gets every socket read as one
batch. `dial` makes a connection to a server; `coherer._net.listener` accepts them.

* Everything written during a loop turn leaves in one transport write. Bytes that a receiver writes
  while it handles a read leave when it returns, all others at the next turn.
* A connection buffers at most `write_buffer_high_bytes` and the bytes written in one more turn.
  Above that, a dialled connection makes its user wait (`drain`), and an accepted one is not read
  any more: a peer that does not read its answers cannot send more requests. The dialling side
  never stops reading, since both sides could then wait for each other forever. Peers that do not
  send requests are always read (`keep_reading`).
* Accepted connections whose peers lag share memory (`WriteBuffers`): the more they are, the sooner
  each is not read any more. Incomplete requests share memory too (`UnfinishedRequests`); receivers
  report them with `report_unfinished`.
* A peer that takes no byte for `write_stall_ms` is disconnected if the write buffer is full or the
  connection is being closed.
* An exception in a receiver ends its connection and no other.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import socket as _socket
import ssl
import struct
from collections.abc import Callable, Iterable
from itertools import groupby
from socket import SO_KEEPALIVE, SO_LINGER, SOL_SOCKET
from typing import Final, Protocol, TypeVar, cast

from coherer._common.logs import Log
from coherer._net.limits import DEFAULT_LIMITS, ConnectionBudget, ConnectionLimits
from coherer._net.process import retain_freed_memory, running_loop
from coherer._net.tls import TlsOptions
from coherer.errors import (
    CohererError,
    ConnectError,
    DisconnectedError,
    ProtocolError,
    UsageError,
)

_log = Log(logging.getLogger(__name__))


_MEASURE_BYTES: Final = 64 * 1024
"""A connection checks whether its peer lags each time this many bytes have been written."""

_LARGE_BYTES: Final = 256 * 1024
"""The least size of a piece that is written without a copy, unless it is a slice of a mapping."""

_FEW_PIECES: Final = 16
"""More pieces than this are joined, whatever their sizes."""

_ALONE_WRITES: Final = 31
"""The most writes that are sent at once after one that was alone in its turn of the loop."""

_TLS_SHUTDOWN_S: Final = 0.5
"""Time for a peer's TLS close message: Java's servers send none."""


class _Socket(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


class Receiver(Protocol):
    """Handles the bytes that a connection receives."""

    def received(self, data: bytes) -> None:
        """Handle one socket read. An exception closes the connection."""
        ...

    def closed(self, error: Exception | None) -> None:
        """Handle the end of the connection; called once. `error` is None for an orderly close."""
        ...


R = TypeVar("R", bound=Receiver)


def _is_large(piece: bytes | memoryview) -> bool:
    """Whether a piece is written without a copy; it must not be changed afterwards."""
    if len(piece) < _LARGE_BYTES:
        return False
    return not (isinstance(piece, memoryview) and isinstance(piece.obj, mmap.mmap))


def _joined(pieces: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the pieces, with adjacent small ones joined."""
    parts: list[bytes | memoryview] = []
    for large, some in groupby(pieces, _is_large):
        if large:
            parts += some
        else:
            parts.append(b"".join(some))
    return parts


class NullReceiver:
    """The receiver of a connection that is refused and about to be closed."""

    def received(self, data: bytes) -> None:
        """Ignore the bytes."""

    def closed(self, error: Exception | None) -> None:
        """Ignore the end."""


_dialling: Final[set[object]] = set()
_dialled: Final[set[tuple[str, int]]] = set()


def dialled() -> set[tuple[str, int]] | None:
    """The own ends of this process's connections that `dial` has made; None while it makes one."""
    return None if _dialling else _dialled.copy()


class Connection(asyncio.Protocol):
    """A connected socket. Made by `dial` and `listen`.

    Args:
        make: returns the receiver of a new connection.
        limits: of the client, or of the node that accepted the connection.
        budget: what all accepted connections of a node share; None for a dialled connection.
        on_closed: called after an accepted connection has ended.

    Attributes:
        peer: address of the peer as `host:port`.
        local_host: this side's host as the peer sees it.
        secure: whether the connection uses TLS.
        closed: whether it is closed or closing; further writes are dropped.
    """

    peer = ""
    peer_host = ""
    local_host = ""
    secure = False
    closed = False
    _dialled_from: tuple[str, int] | None = None

    def __init__(
        self,
        make: Callable[[Connection], Receiver],
        limits: ConnectionLimits = DEFAULT_LIMITS,
        *,
        budget: ConnectionBudget | None = None,
        on_closed: Callable[[Connection], None] | None = None,
    ) -> None:
        self._make = make
        self._limits = limits
        self._budget = budget
        self._on_closed = on_closed
        self._pause_when_full = budget is not None
        self._loop = asyncio.get_running_loop()
        self._buffer: list[bytes | memoryview] = []
        self._buffer_bytes = 0
        self._unmeasured_bytes = 0
        self._receiving = False
        self._scheduled = False
        self._alone = 0  # writes that may still be sent at once
        self._full = False
        self._paused_by_user = False
        self._paused_for_memory = False
        self._paused = False
        self._drained: asyncio.Future[None] | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._receiver: Receiver
        self._send: Callable[[bytes | memoryview], object]

    @property
    def receiver(self) -> Receiver:
        """The receiver of the bytes."""
        return self._receiver

    @property
    def full(self) -> bool:
        """Whether the write buffer is full: `drain` would wait."""
        return self._full

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and that the system has not taken yet."""
        return self._buffer_bytes + self._transport.get_write_buffer_size()

    @property
    def overloaded(self) -> bool:
        """Whether `write_buffer_high_bytes` or more are unsent: write more only when it drops."""
        unsent = self._buffer_bytes + self._transport.get_write_buffer_size()
        return unsent >= self._limits.write_buffer_high_bytes

    def write(self, data: bytes | memoryview, *, alone: bool = False) -> None:
        """Send `data` together with everything else that is written in this loop turn.

        Args:
            alone: whether nothing else is expected in this turn. If nothing came last time either,
                `data` is sent at once, which saves a turn of the loop.
        """
        if self.closed:
            return
        self._buffer.append(data)
        self._buffer_bytes += len(data)
        if self._receiving or self._scheduled:
            return
        if alone and self._alone:
            self._alone -= 1
            self.flush()
            return
        self._scheduled = True
        self._loop.call_soon(self._turn)

    def write_many(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send several pieces in order."""
        if self.closed:
            return
        before = len(self._buffer)
        self._buffer.extend(parts)
        self._buffer_bytes += sum(map(len, self._buffer[before:]))
        if not self._receiving and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def flush(self) -> None:
        """Write the collected bytes now instead of at the next loop turn."""
        buffer = self._buffer
        if not buffer:
            return
        # Joined, not written one by one: for many small pieces a copy is far cheaper than a system
        # call with as many buffers, and no slice of a mapped file outlives this call.
        first = buffer[0]
        if len(buffer) == 1 and isinstance(first, bytes):
            parts: list[bytes | memoryview] = [first]
        elif len(buffer) <= _FEW_PIECES and any(map(_is_large, buffer)):
            parts = _joined(buffer)
        else:
            parts = [b"".join(buffer)]
        buffer.clear()
        self._unmeasured_bytes += self._buffer_bytes
        self._buffer_bytes = 0
        if self._unmeasured_bytes > _MEASURE_BYTES:
            self._measure_lag()
        for part in parts:
            self._send(part)

    def divert(
        self, written: Callable[[bytes | memoryview], object]
    ) -> Callable[[bytes | memoryview], object]:
        """Call `written` with what would be sent; returns the function that sends."""
        send, self._send = self._send, written
        return send

    async def drain(self) -> None:
        """Wait until fewer than `write_buffer_low_bytes` are unsent, if the write buffer is full.

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
        """Read even if the write buffer is full: this peer does not send requests."""
        self._pause_when_full = False

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        self._paused_by_user = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Continue reading after `pause_reading`."""
        self._paused_by_user = False
        self._update_reading()

    def report_unfinished(self, unfinished: tuple[int, int]) -> None:
        """Report how much of an incomplete request is buffered; call it after each socket read.

        Args:
            unfinished: the number of buffered bytes, 0 for none, and the number of missing ones.
        """
        if self._budget is not None:
            self._budget.unfinished.update(self, *unfinished)

    def pause_for_memory(self, paused: bool) -> None:
        """Stop or continue reading; called by `UnfinishedRequests`."""
        self._paused_for_memory = paused
        self._update_reading()

    def close(self) -> None:
        """Send the collected bytes, then close. `Receiver.closed` is called at the end."""
        if not self.closed:
            self.flush()
            self.closed = True
            self._transport.close()
            self._watch_close()

    def abort(self) -> None:
        """Close now and drop unsent bytes."""
        self.closed = True
        self._buffer.clear()
        self._buffer_bytes = 0
        self._transport.abort()

    def reset(self) -> None:
        """`abort`, and discard the data in the system's send buffer, where that is possible."""
        socket = self._transport.get_extra_info("socket")
        if socket is not None and not self._transport.is_closing():
            socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    def limit_delivery(self, limit_ms: int) -> None:
        """Let the system end the connection when data stays undelivered for so long.

        It does so also after the death of this process. Only Linux has such a limit.
        """
        socket = self._transport.get_extra_info("socket")
        option = getattr(_socket, "TCP_USER_TIMEOUT", None)
        if socket is not None and option is not None and not self._transport.is_closing():
            socket.setsockopt(_socket.IPPROTO_TCP, option, limit_ms)

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)
        self._send = self._transport.write
        self._set_write_limits(self._limits.write_buffer_high_bytes)
        self.peer_host, self.peer = _address(transport.get_extra_info("peername"))
        self.local_host, _ = _address(transport.get_extra_info("sockname"))
        self.secure = transport.get_extra_info("sslcontext") is not None
        _enable_keep_alive(transport.get_extra_info("socket"))
        own = transport.get_extra_info("sockname")
        if self._budget is None and own and transport.get_extra_info("socket") is not None:
            self._dialled_from = here = (own[0], own[1])
            _dialled.add(here)
        try:
            self._receiver = self._make(self)
        except Exception as error:
            if self._budget is None:
                raise
            if isinstance(error, CohererError):  # the server is starting or stopping
                _log.info("Refusing %s: %s", self.peer, error, about=self.peer_host, peer=self.peer)
            else:
                _log.exception(
                    "Refusing %s: unhandled error in the server",
                    self.peer,
                    about=self.peer_host,
                    peer=self.peer,
                )
            self._receiver = NullReceiver()
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
                "Closing the connection with %s: %s",
                self.peer,
                error,
                about=self.peer_host,
                peer=self.peer,
            )
            self.close()
        except Exception:  # noqa: BLE001 - an error ends one connection, not all
            _log.exception(
                "Closing the connection with %s after an unhandled error",
                self.peer,
                about=self.peer_host,
                peer=self.peer,
            )
            self.abort()
        finally:
            self._receiving = False
        self.flush()

    def pause_writing(self) -> None:
        """Called by the event loop: the write buffer is full."""
        self._full = True
        self._update_reading()
        self._watch_stall(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Called by the event loop: the write buffer has space again."""
        self._full = False
        if self._budget is not None:
            self._budget.writes.discard(self)
        self._set_write_limits(self._limits.write_buffer_high_bytes)
        self._update_reading()
        self._release()
        if self.closed:
            self._watch_close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self.closed = True
        self._buffer.clear()
        self._buffer_bytes = 0
        if self._budget is not None:
            self._budget.writes.discard(self)
            self._budget.unfinished.discard(self)
        elif self._dialled_from is not None:
            self._loop.call_soon(_dialled.discard, self._dialled_from)  # once the socket is closed
        self._release()
        try:
            self._receiver.closed(exc)
        except Exception:  # noqa: BLE001 - see data_received
            _log.exception(
                "Unhandled error after the connection with %s ended",
                self.peer,
                about=self.peer_host,
                peer=self.peer,
            )
        if self._on_closed is not None:
            self._on_closed(self)
            # The receiver of an accepted connection holds it, too. Without this cycle the memory of
            # both is free now, and not when the collector runs.
            self._receiver = NullReceiver()

    # -- internals

    def _turn(self) -> None:
        self._scheduled = False
        self._alone = _ALONE_WRITES if len(self._buffer) == 1 else 0
        self.flush()

    def _set_write_limits(self, high_bytes: int) -> None:
        limits = self._limits
        low = high_bytes // 4
        if high_bytes == limits.write_buffer_high_bytes:
            low = limits.write_buffer_low_bytes
        self._transport.set_write_buffer_limits(high_bytes, low)

    def _measure_lag(self) -> None:
        """If earlier bytes are still unsent, limit the write buffer to this connection's share."""
        self._unmeasured_bytes = 0
        if self._budget is None or not self._pause_when_full or self._full:
            return
        if self._transport.get_write_buffer_size():
            share = self._budget.writes.add_lagging(self)
            if share < self._limits.write_buffer_high_bytes:
                self._set_write_limits(share)

    def _update_reading(self) -> None:
        pause = (
            self._paused_by_user
            or self._paused_for_memory
            or (self._full and self._pause_when_full)
        )
        if pause == self._paused or self.closed:
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _release(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._drained is not None:
            if not self._drained.done():
                self._drained.set_result(None)
            self._drained = None

    def _watch_close(self) -> None:
        """Do not wait forever for a peer that vanished without closing."""
        if self._stall_timer is None and not self.secure:  # TLS has its own shutdown timeout
            unsent = self._transport.get_write_buffer_size()
            if unsent:
                self._watch_stall(unsent)

    def _watch_stall(self, unsent: int) -> None:
        self._stall_timer = self._loop.call_later(
            self._limits.write_stall_ms / 1000, self._check_stall, unsent
        )

    def _check_stall(self, before: int) -> None:
        unsent = self._transport.get_write_buffer_size()
        if unsent >= before:
            _log.warning(
                "Disconnecting %s: it stopped reading",
                self.peer,
                about=self.peer_host,
                peer=self.peer,
            )
            self.abort()
        else:
            self._watch_stall(unsent)


async def dial(
    host: str,
    port: int,
    make: Callable[[Connection], R],
    *,
    tls: TlsOptions | None = None,
    timeout_ms: int = 3000,
    limits: ConnectionLimits = DEFAULT_LIMITS,
) -> R:
    """Connect to a server.

    Args:
        host: its name or address.
        make: returns the receiver of the new connection.
        tls: TLS settings; None for plain TCP.
        timeout_ms: for name resolution, connection and TLS handshake together.
        limits: of the connection's buffers.

    Returns:
        The receiver.

    Raises:
        ConnectError: the connection failed or took too long.
        UsageError: the port is not valid, or the TLS files cannot be used.
    """
    retain_freed_memory()
    if not 0 < port <= 0xFFFF:
        raise UsageError(f"{port} is not a valid port: ports are 1 to 65535.")
    context = tls.client_context() if tls is not None else None
    loop = running_loop()
    server = f"{host}:{port}"
    _dialling.add(attempt := object())
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: Connection(make, limits),
                host,
                port,
                ssl=context,
                ssl_shutdown_timeout=None if context is None else _TLS_SHUTDOWN_S,
            )
    except TimeoutError:
        raise ConnectError(
            f"No connection within {timeout_ms} ms.", server=server, hint="Is the address right?"
        ) from None
    except OSError as error:  # includes TLS errors and failed name resolution
        text, hint = _reason(error, secure=tls is not None)
        raise ConnectError(f"No connection: {text}.", server=server, hint=hint) from error
    except ValueError as error:  # IDNA rejects "a..b"; the name may come from a server
        text = f"No connection: {host!r} is not a valid host name."
        raise ConnectError(text, server=server) from error
    finally:
        _dialling.discard(attempt)
    return cast("R", connection.receiver)


_TRUST_HINT: Final = (
    "Trust its authority, with TlsOptions(trust=...) or SSL_CERT_FILE in the environment."
)
_DATES_HINT: Final = "The server needs a new certificate, or the clock of this machine is wrong."
_HOST_HINT: Final = (
    "Use a host name that the certificate names. Servers that others name have to be advertised "
    "by such a name, too."
)
_VERIFY_HINTS: Final = {9: _DATES_HINT, 10: _DATES_HINT, 62: _HOST_HINT, 64: _HOST_HINT}
"""By OpenSSL's number of what is wrong: not yet valid, expired, another host name or address."""


def _reason(error: OSError, *, secure: bool) -> tuple[str, str]:
    """Return why a connection failed, and what to do next."""
    number = error.errno or 0
    named = number > 0 and not isinstance(error, ssl.SSLError)
    # asyncio replaces the system's words by its own, with the address that the error names anyway.
    text = os.strerror(number) if named else error.strerror or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"certificate verify failed: {error.verify_message.rstrip('.')}"
        return reason, _VERIFY_HINTS.get(error.verify_code, _TRUST_HINT)
    if isinstance(error, ssl.SSLError) or (secure and isinstance(error, ConnectionResetError)):
        return f"the TLS handshake failed{text and f': {text}'}", "Is that a port for TLS?"
    if isinstance(error, _socket.gaierror):
        return text, "Is the host name right?"
    return text or type(error).__name__, "Is the server up, and is that its port?"


def tls_failed(error: BaseException) -> bool:
    """Whether an error of `dial` came from the TLS handshake."""
    return isinstance(error.__cause__, ssl.SSLError | ConnectionResetError) and "TLS" in str(error)


def certificate_refused(error: BaseException) -> bool:
    """Whether an error of `dial` came from the certificate of the server."""
    return isinstance(error.__cause__, ssl.SSLCertVerificationError)


def _enable_keep_alive(socket: _Socket | None) -> None:
    """Let the system detect within two minutes that a silent peer's machine is gone."""
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
