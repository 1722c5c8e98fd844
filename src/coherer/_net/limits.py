"""The limits of a node's or client's connections, and the counters that enforce them.

`ConnectionLimits` holds the numbers. `ConnectionBudget` belongs to one node and is shared by all
connections that its ports accept:

* `ConnectionLimiter` counts connections: each takes a file, and the store needs files too.
* `WriteBuffers` shares memory among connections whose peers read more slowly than they ask.
* `UnfinishedRequests` shares memory among connections with a partly received request.

How `UnfinishedRequests` works: a peer that announces a frame of 16 MiB and never sends its last
byte would hold 16 MiB for as long as it likes, and a thousand such peers would fill the memory.

* A connection is read while its request's missing bytes fit into the budget beside everything that
  is buffered already. When memory is short, large requests wait first, and small ones nearly
  always fit.
* A connection whose request does not fit is paused until memory is free. The one that lacks the
  fewest bytes resumes first.
* A connection that buffers no more than `unfinished_request_bytes_min` (less if very many buffer
  something) is never paused, so requests of ordinary size do not wait.
* While a connection waits, a check every `unfinished_check_ms` closes the connections that were
  read and received less than `unfinished_rate_bytes` since the last check, the slowest first, until
  the next waiting request fits. If all connections wait, it closes those that lack the most bytes.

The buffers therefore stay within the budget plus one socket read per connection. Above twice the
budget, the largest are closed at once. A peer that keeps sending is never closed in favour of one
that does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from coherer._common import machine
from coherer._common.logs import Log
from coherer._net import process
from coherer.errors import UsageError

_log = Log(logging.getLogger(__name__))

UNFINISHED_BYTES_MIN: Final = 32 * 1024 * 1024
"""Smallest useful `unfinished_bytes`: the largest request of both protocols has to fit."""

WRITE_BUFFER_BYTES_MIN: Final = 64 * 1024
"""Smallest useful `write_buffer_high_bytes`: an answer or two."""

_SWEEP_S: Final = 1.0
"""Interval at which connections that caught up are removed from the lagging ones."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the connections of one node or client.

    Args:
        connections_max: connections that one port accepts, if the process may open that many
            files. An idle connection takes about 10 KiB.
        files_reserved: open files that are not available to connections: 256 for consume queues,
            the others for log, index and event loop. At most half of the files that the process
            may open.
        store_files_min: files that the store may open however many connections there are, at most
            a quarter of the files that the process may open.
        first_byte_ms: time in which a peer has to send its first byte to a port that serves both
            TLS and plain connections.
        tls_handshake_ms: time for an accepted connection's TLS handshake.
        write_buffer_high_bytes: unsent bytes above which an accepted connection is not read any
            more and `Connection.drain` waits. The most memory that one slow peer takes.
        write_buffer_low_bytes: unsent bytes below which both continue.
        write_buffers_bytes: unsent bytes of all accepted connections whose peers lag. With more
            than 16 of them, each one's share is smaller than `write_buffer_high_bytes`.
        write_buffer_bytes_min: smallest share, enough for an answer or two.
        write_stall_ms: a peer that takes no byte for this long is disconnected, if its write
            buffer is full or its connection is being closed.
        unfinished_bytes: bytes of partly received requests of all accepted connections.
        unfinished_request_bytes_min: bytes of a request that are read even without free memory.
        unfinished_rate_bytes: bytes of a large request that a peer has to send between two checks
            while others wait for memory.
        unfinished_check_ms: interval of these checks.
    """

    connections_max: int = 32_768
    files_reserved: int = 384
    store_files_min: int = 256
    first_byte_ms: int = 120_000
    tls_handshake_ms: int = 10_000
    write_buffer_high_bytes: int = 16 * 1024 * 1024
    write_buffer_low_bytes: int = 4 * 1024 * 1024
    write_buffers_bytes: int = 256 * 1024 * 1024
    write_buffer_bytes_min: int = WRITE_BUFFER_BYTES_MIN
    write_stall_ms: int = 60_000
    unfinished_bytes: int = 256 * 1024 * 1024
    unfinished_request_bytes_min: int = 64 * 1024
    unfinished_rate_bytes: int = 1024 * 1024
    unfinished_check_ms: int = 1_000

    def __post_init__(self) -> None:
        if not 0 < self.write_buffer_low_bytes < self.write_buffer_high_bytes:
            raise UsageError(
                f"`write_buffer_low_bytes` is {self.write_buffer_low_bytes}; it must be between 0 "
                f"and `write_buffer_high_bytes`, {self.write_buffer_high_bytes}."
            )


DEFAULT_LIMITS: Final = ConnectionLimits()


class Limited(Protocol):
    """A connection, as the counters see it."""

    @property
    def peer(self) -> str:
        """The peer's address, for the log."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """The bytes in the write buffer."""
        ...

    def pause_for_memory(self, paused: bool) -> None:
        """Stop reading, or go on, because of other connections' memory."""
        ...

    def abort(self) -> None:
        """Close without sending the rest."""
        ...


class ConnectionBudget:
    """Limits and counters shared by the accepted connections of one node.

    Attributes:
        connections: counts connections.
        writes: shares memory among peers that lag.
        unfinished: shares memory among partly received requests.
    """

    __slots__ = ("connections", "limits", "unfinished", "writes")

    def __init__(self, limits: ConnectionLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.connections = ConnectionLimiter(limits)
        self.writes = WriteBuffers(limits)
        self.unfinished = UnfinishedRequests(limits)


class ConnectionLimiter:
    """Counts accepted connections against the files that the process may open.

    Without spare files the store could not write, and a flood of connections would end the service
    for all peers.

    Attributes:
        count: open connections.
        refused: how many connections were refused.
    """

    def __init__(self, limits: ConnectionLimits = DEFAULT_LIMITS) -> None:
        self.count = self.refused = 0
        self._limits = limits

    def acquire(self) -> bool:
        """Count one more connection; False if there are too many."""
        if self.count >= self.allowed(process.open_files_max()):
            self.refused += 1
            return False
        self.count += 1
        return True

    def release(self) -> None:
        """Count one connection less."""
        self.count -= 1

    def allowed(self, files: int) -> int:
        """Return how many connections are allowed in a process that may open this many files.

        >>> limiter = ConnectionLimiter()
        >>> limiter.allowed(20_000), limiter.allowed(256)
        (19616, 128)
        """
        return max(files - self._limits.files_reserved, files // 2)

    def spare_files(self) -> int:
        """Return how many files the store may open beyond those that it needs.

        That is half of the unused files; the other half is for further connections.
        """
        files = process.open_files_max()
        left = files - self.count - self._limits.files_reserved
        return max(left // 2, min(self._limits.store_files_min, files // 4))


class WriteBuffers:
    """Shares memory among the connections whose peers lag: the more they are, the less for each.

    >>> buffers = WriteBuffers()
    >>> buffers.share(0), buffers.share(100), buffers.share(100_000)
    (16777216, 2684354, 65536)
    """

    def __init__(self, limits: ConnectionLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._lagging: set[Limited] = set()
        self._next_sweep_s = 0.0

    @property
    def unsent_bytes(self) -> int:
        """Unsent bytes of all connections whose peers lag."""
        return sum(connection.unsent_bytes for connection in self._lagging)

    def add_lagging(self, connection: Limited) -> int:
        """Note that a connection has unsent bytes; return how many it may have."""
        now_s = machine.ticks_ns() / 1e9
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + _SWEEP_S
            self._lagging = {one for one in self._lagging if one.unsent_bytes}
        self._lagging.add(connection)
        return self.share(len(self._lagging))

    def discard(self, connection: Limited) -> None:
        """Note that a connection has caught up or is closed."""
        self._lagging.discard(connection)

    def share(self, lagging: int) -> int:
        """Return how many unsent bytes each of `lagging` connections may have."""
        limits = self._limits
        share = limits.write_buffers_bytes // max(lagging, 1)
        return max(limits.write_buffer_bytes_min, min(share, limits.write_buffer_high_bytes))


class _Request:
    """A partly received request.

    Attributes:
        buffered: bytes received.
        missing: bytes to come.
        received: bytes received since the last check.
        checked: whether it existed at the last check.
    """

    __slots__ = ("buffered", "checked", "missing", "received")

    def __init__(self) -> None:
        self.buffered = self.missing = self.received = 0
        self.checked = False


class UnfinishedRequests:
    """Shares memory among partly received requests; see the module's description.

    Attributes:
        buffered_bytes: bytes of all of them.
    """

    def __init__(self, limits: ConnectionLimits = DEFAULT_LIMITS) -> None:
        self.buffered_bytes = 0
        self._limits = limits
        self._bytes_max = limits.unfinished_bytes
        self._requests: dict[Limited, _Request] = {}
        self._waiting: dict[Limited, _Request] = {}
        self._fewest_missing = 0
        self._timer: asyncio.TimerHandle | None = None

    def update(self, connection: Limited, buffered: int, missing: int) -> None:
        """Note how much of a request has been received, after a socket read.

        Args:
            buffered: bytes of an incomplete request; 0 if all are complete.
            missing: bytes that it lacks, as far as is known.
        """
        request = self._requests.get(connection)
        if request is None:
            if not buffered:
                return
            request = self._requests[connection] = _Request()
        more = buffered - request.buffered
        self.buffered_bytes += more
        # Fewer bytes than before mean that a request has been completed, which is fast enough.
        request.received += more if more > 0 else self._limits.unfinished_rate_bytes
        request.buffered, request.missing = buffered, missing
        if not buffered:
            del self._requests[connection]
        elif self._fits(missing) or buffered <= self._share():
            pass
        elif self.buffered_bytes > 2 * self._bytes_max:
            self._close_largest()
        else:
            self._pause(connection, request)
        if more < 0:
            self._resume_waiting()

    def discard(self, connection: Limited) -> None:
        """Forget a closed connection."""
        if connection in self._requests:
            self._forget(connection)
            self._resume_waiting()

    def check(self) -> None:
        """Close connections that are too slow while others wait. Runs while any is waiting."""
        self._timer = None
        slow = [
            (request.received, -request.buffered, number, connection)
            for number, (connection, request) in enumerate(self._requests.items())
            if request.checked
            and request.received < self._limits.unfinished_rate_bytes
            and connection not in self._waiting
        ]
        self._close_until_fit(connection for *_, connection in sorted(slow))
        share = self._share()
        if all(
            request.buffered <= share or connection in self._waiting
            for connection, request in self._requests.items()
        ):
            self._close_until_fit(self._by_missing()[:0:-1])
        for request in self._requests.values():
            request.received, request.checked = 0, True
        self._resume_waiting()
        self._schedule_check()

    def _fits(self, missing: int) -> bool:
        return self.buffered_bytes + missing <= self._bytes_max

    def _share(self) -> int:
        most = self._limits.unfinished_request_bytes_min
        return min(most, self._bytes_max // max(len(self._requests), 1))

    def _pause(self, connection: Limited, request: _Request) -> None:
        if not self._waiting or request.missing < self._fewest_missing:
            self._fewest_missing = request.missing
        self._waiting[connection] = request
        connection.pause_for_memory(True)
        self._schedule_check()

    def _schedule_check(self) -> None:
        if self._waiting and self._timer is None:
            delay_s = self._limits.unfinished_check_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.check)

    def _resume_waiting(self) -> None:
        """Resume the connections whose requests fit now."""
        if not self._waiting or not self._fits(self._fewest_missing):
            return
        ahead = 0
        for connection in self._by_missing():
            self._fewest_missing = self._waiting[connection].missing
            ahead += self._fewest_missing
            if not self._fits(ahead):
                return
            del self._waiting[connection]
            connection.pause_for_memory(False)

    def _by_missing(self) -> list[Limited]:
        return sorted(self._waiting, key=lambda connection: self._waiting[connection].missing)

    def _close_largest(self) -> None:
        """Close the largest, far above the budget: thousands of connections sent at once."""
        requests, waiting = self._requests, self._waiting
        by_size = sorted(requests, key=lambda one: (one in waiting, requests[one].buffered))
        for connection in reversed(by_size):
            if self.buffered_bytes <= self._bytes_max:
                return
            self._close(connection)

    def _close_until_fit(self, connections: Iterable[Limited]) -> None:
        """Close connections one by one until the first waiting request fits."""
        for connection in connections:
            if self._fits(self._fewest_missing):
                return
            self._close(connection)

    def _close(self, connection: Limited) -> None:
        _log.warning(
            "Closing the connection with %s: it sent %d bytes of a request and does not complete "
            "it, while other requests wait for memory",
            connection.peer,
            self._requests[connection].buffered,
            about=connection.peer.rpartition(":")[0],
            peer=connection.peer,
        )
        self._forget(connection)
        connection.abort()

    def _forget(self, connection: Limited) -> None:
        self.buffered_bytes -= self._requests.pop(connection).buffered
        self._waiting.pop(connection, None)
