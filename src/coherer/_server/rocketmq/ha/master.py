"""The master's side of replication: the log goes out as fast as each slave takes it.

Rules (protocol page, 6.12):

* A slave's first report says where it wants to begin; 0 means with the last file of the log.
* Pieces never cross the end of a file, and are no larger than Java's slaves read at once.
* A slave that is silent for 20 s is cut off; after 5 s without a piece it is told that we live.
* A slave that claims to have more than we have has another history: it is cut off.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Sequence
from typing import Final

from coherer import limits
from coherer._common.logs import Log
from coherer._net import Connection
from coherer._server.core.core import Core
from coherer._server.rocketmq.ha.frames import HEAD, PIECE_BYTES_MAX, Reports
from coherer._store import AppendResult, Draft, DraftBatch
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.errors import DisconnectedError

_log = Log(logging.getLogger(__name__))

HEARTBEAT_MS: Final = 5_000
SILENCE_MS: Final = 20_000
BEHIND_BYTES_MAX: Final = 256 * 1024 * 1024
"""A slave that is further behind does not count as one (`haSlaveFallbehindMax`)."""
_BYTES_AT_ONCE: Final = 1024 * 1024
"""What one slave is sent before others have their turn."""


class HaMaster:
    """Sends the log to the slaves that connect: `net.listen(host, port, master.make)`.

    Args:
        core: what the doors share.

    Attributes:
        slaves: the connections.
        replicated: some slave has said that it has the log up to here.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.slaves: set[Slave] = set()
        self.replicated = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap, by offset
        self._numbers = itertools.count()
        self._too_late = 0  # of those that wait, by now
        core.on_arrival(self._arrived)

    def make(self, connection: Connection) -> Slave:
        """Serve a slave."""
        connection.keep_reading()  # on a slow line the outbox is full for longer than SILENCE_MS
        slave = Slave(self, connection)
        self.slaves.add(slave)
        _log.info("Slave %s has connected", connection.peer, about=connection.peer_host)
        return slave

    def tick(self) -> None:
        """Say that we live, and cut off who says nothing: call it every second or more often."""
        now_ms = self.core.now_ms()
        for slave in list(self.slaves):
            slave.tick(now_ms)

    def available(self, end_offset: int) -> bool:
        """Whether there is a slave that will have the log up to there before long."""
        return bool(self.slaves) and end_offset - self.replicated < BEHIND_BYTES_MAX

    async def safe(self, end_offset: int, timeout_ms: int) -> int:
        """Wait until a slave has the log up to an offset.

        Returns:
            0; 11 when there is no slave; 12 when none had it in time.
        """
        if not self.available(end_offset):
            return ResponseCode.SLAVE_NOT_AVAILABLE
        if self.replicated >= end_offset:
            return 0
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (end_offset, next(self._numbers), waiting))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiting
        except TimeoutError:
            return ResponseCode.FLUSH_SLAVE_TIMEOUT
        finally:
            self._forget_late(waiting)
        return 0

    @property
    def waiting(self) -> int:
        """How many wait for a slave; some of them may have given up."""
        return len(self._waiting)

    def close(self) -> None:
        """End all connections."""
        for slave in list(self.slaves):
            slave.connection.close()

    # -- inside

    def has(self, offset: int) -> None:
        """A slave has the log up to there."""
        if offset <= self.replicated:
            return
        self.replicated = offset
        while self._waiting and self._waiting[0][0] <= offset:
            _, _, waiting = heapq.heappop(self._waiting)
            if waiting.done():
                self._too_late -= 1
            else:
                waiting.set_result(None)

    def _forget_late(self, waiting: asyncio.Future[None]) -> None:
        """One waits no longer. Those that were in vain leave when they are more than the others."""
        if not waiting.cancelled():
            return
        self._too_late += 1
        if self._too_late * 2 > len(self._waiting):
            self._waiting = [entry for entry in self._waiting if not entry[2].done()]
            heapq.heapify(self._waiting)
            self._too_late = 0

    def _arrived(
        self,
        drafts: Sequence[Draft | DraftBatch],  # noqa: ARG002
        appended: Sequence[AppendResult],  # noqa: ARG002
    ) -> None:
        for slave in self.slaves:
            slave.pump()


class Slave:
    """One connection of a slave.

    Attributes:
        connection: it.
        acked: how far the slave's log goes; -1 before it has said so.
        position: what is sent next.
        read_ms: when something came last.
    """

    def __init__(self, master: HaMaster, connection: Connection) -> None:
        self.connection = connection
        self.acked = -1
        self.position = -1
        self._master = master
        self._store = master.core.store
        self._reports = Reports()
        self.read_ms = self._written_ms = master.core.now_ms()
        self._pumping: asyncio.Task[None] | None = None

    def received(self, data: bytes) -> None:
        """One socket read."""
        offset = self._reports.last(data)
        if offset is None:
            return
        self.read_ms = self._master.core.now_ms()
        if self.position < 0:
            self.position = offset or self._store.last_segment_offset
        self.acked = offset
        if offset > self._store.end_offset:
            _log.error(
                "Slave %s has the log up to %d, we only up to %d: it is not ours",
                self.connection.peer, offset, self._store.end_offset,
                about=self.connection.peer_host,
)  # fmt: skip
            self.connection.close()
            return
        self._master.has(offset)
        self.pump()

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the same to us
        """The connection has ended."""
        self._master.slaves.discard(self)
        if self._pumping is not None:
            self._pumping.cancel()
        _log.info("Slave %s is gone", self.connection.peer, about=self.connection.peer_host)

    def tick(self, now_ms: int) -> None:
        """See to the time."""
        if now_ms - self.read_ms > SILENCE_MS:
            _log.warning(
                "Slave %s is silent: it is cut off",
                self.connection.peer,
                about=self.connection.peer_host,
            )
            self.connection.abort()
        elif self.position >= 0 and now_ms - self._written_ms > HEARTBEAT_MS:
            self._written_ms = now_ms
            self.connection.write(HEAD.pack(self.position, 0))

    def pump(self) -> None:
        """Send what there is, as much as the connection takes; the rest when it takes more."""
        if self.position < 0 or self._pumping is not None or self.connection.closed:
            return
        if self.connection.unsent_bytes < limits.OUTBOX_HIGH_BYTES:
            self._send()
        if self.position < self._store.end_offset:
            self._pumping = asyncio.get_running_loop().create_task(self._go_on())

    def _send(self) -> None:
        connection, store = self.connection, self._store
        if self.position < store.min_offset:
            _log.error(
                "Slave %s wants the log from %d, it begins at %d: give it a new directory",
                connection.peer, self.position, store.min_offset,
                about=connection.peer_host,
)  # fmt: skip
            connection.close()
            return
        pieces: list[bytes | memoryview] = []
        room = _BYTES_AT_ONCE
        while room > 0:
            data = store.read_raw(self.position, PIECE_BYTES_MAX)
            if not data:
                break
            pieces += (HEAD.pack(self.position, len(data)), data)
            self.position += len(data)
            room -= len(data)
        if pieces:
            self._written_ms = self._master.core.now_ms()
            connection.write_many(pieces)

    async def _go_on(self) -> None:
        try:
            while self.position < self._store.end_offset and not self.connection.closed:
                await self.connection.drain()
                self._send()
                await asyncio.sleep(0)  # others have their turn
        except DisconnectedError:
            return
        finally:
            self._pumping = None
