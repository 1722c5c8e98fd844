"""The master's side of replication: sends the log to each slave as fast as the slave reads it.

See docs/protocol/rocketmq.md, section 6.12.

* A slave's first report is the offset to start from; 0 means the start of the log's last file.
* A piece never crosses the end of a file, and is no larger than Java's slaves read at once.
* A slave that is silent for 20 s is disconnected. After 5 s without a piece it gets a heartbeat.
* A slave whose log is longer than the master's has a different history: it is disconnected.
* What cannot be read is left out (`coherer._store.holes`).

A master whose queue offsets have a gap (`coherer._store.offset_reserve`) tells its slaves with a
message in a system topic. One of them may be the next master, before any other message follows.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Sequence
from typing import Final

from coherer._common.logs import Log
from coherer._net import Connection
from coherer._rules.common.origins import Origin
from coherer._server.core.core import Core
from coherer._server.rocketmq.ha.frames import HEAD, HELLO, PIECE_BYTES_MAX, Reports
from coherer._server.rocketmq.ha.signing import WELCOME
from coherer._store import AppendResult, Draft, DraftBatch
from coherer._store.offset_reserve import GAP_QUEUE
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.errors import CohererError, DisconnectedError, StoreError

_log = Log(logging.getLogger(__name__))

HEARTBEAT_MS: Final = 5_000
SILENCE_MS: Final = 20_000
BEHIND_BYTES_MAX: Final = 256 * 1024 * 1024
"""A slave that lags further behind does not count (`haSlaveFallbehindMax`)."""
_GAP_BODY: Final = b"The offsets before this message were skipped."
_BYTES_AT_ONCE: Final = 1024 * 1024
"""The number of bytes sent to one slave before other work can run."""


class HaMaster:
    """Sends the log to connected slaves: `net.listen(host, port, master.make)`.

    Attributes:
        slaves: their connections, in the order in which they came.
        replicated: the largest offset up to which a slave has the log.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.slaves: dict[Slave, None] = {}
        self.replicated = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap, by offset
        self._numbers = itertools.count()
        self._too_late = 0  # how many of them have timed out
        self._has_told_gap = False
        core.on_arrival(self._arrived)

    def tell_gap(self) -> None:
        """Store the message from which slaves learn a gap in the queue offsets, if there is one."""
        self._has_told_gap = True
        if self.core.store.has_untold_gap:
            message = Draft(*GAP_QUEUE, _GAP_BODY, b"")
            self.core.appender.submit([], self._gap_told, origin=Origin.REPLICATION, own=[message])

    def _gap_told(self, result: Sequence[AppendResult] | CohererError, _: int) -> None:
        self._has_told_gap = not isinstance(result, CohererError)  # or the next tick tries again

    def make(self, connection: Connection) -> Slave:
        """Serve a slave's connection."""
        connection.keep_reading()  # a slow link may not drain the buffer within SILENCE_MS
        slave = Slave(self, connection)
        self.slaves[slave] = None
        _log.info(
            "Slave %s connected", connection.peer, about=connection.peer_host, peer=connection.peer
        )
        return slave

    def tick(self) -> None:
        """Send heartbeats and disconnect silent slaves; call it every second or more often."""
        now_ms = self.core.lease_ms()
        for slave in list(self.slaves):
            slave.tick(now_ms)
        if not self._has_told_gap:
            self.tell_gap()

    def available(self, end_offset: int) -> bool:
        """Whether a slave is connected that will soon have the log up to an offset."""
        # Java looks at the furthest slave that it ever had. A new one copies the whole log first,
        # and meanwhile each send would wait for it in vain.
        return any(end_offset - slave.acked < BEHIND_BYTES_MAX for slave in self.slaves)

    async def safe(self, end_offset: int, timeout_ms: int) -> int:
        """Wait until a slave has the log up to an offset.

        Returns:
            0; 11 without a slave; 12 on timeout.
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
        """The number of calls that wait for a slave; some of them may have timed out."""
        return len(self._waiting)

    def close(self) -> None:
        """Close all connections."""
        for slave in list(self.slaves):
            slave.connection.close()

    # -- inside

    def has(self, offset: int) -> None:
        """Note that a slave has the log up to an offset."""
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
        """Note a call that timed out. Such calls are removed when they outnumber the others."""
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
        for slave in list(self.slaves):  # one that asks for what is gone is disconnected
            slave.pump()


class Slave:
    """One connection of a slave.

    Attributes:
        acked: the end of the slave's log; -1 before its first report.
        position: the next offset to send.
        read_ms: the time of its last report.
    """

    def __init__(self, master: HaMaster, connection: Connection) -> None:
        self.connection = connection
        self.acked = -1
        self.position = -1
        self._master = master
        self._store = master.core.store
        self._reports = Reports()
        self.read_ms = self._written_ms = master.core.lease_ms()
        self._pumping: asyncio.Task[None] | None = None

    def received(self, data: bytes) -> None:
        """Take a socket read."""
        offset = self._reports.last(data)
        if offset is None:
            return
        self.read_ms = self._master.core.lease_ms()
        if offset == HELLO:  # here a slave need not sign
            self.connection.write(WELCOME)
            return
        if self.position < 0:
            self.position = offset or self._store.last_segment_offset
        self.acked = offset
        if offset > self._store.end_offset:
            _log.error(
                "Slave %s has the log up to %d, this master only up to %d: they do not match",
                self.connection.peer,
                offset,
                self._store.end_offset,
                about=self.connection.peer_host,
                peer=self.connection.peer,
            )
            self.connection.close()
            return
        self._master.has(offset)
        self.pump()

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """The connection has ended."""
        self._master.slaves.pop(self, None)
        if self._pumping is not None:
            self._pumping.cancel()
        _log.info(
            "Slave %s disconnected",
            self.connection.peer,
            about=self.connection.peer_host,
            peer=self.connection.peer,
        )

    def tick(self, now_ms: int) -> None:
        """Check timeouts."""
        if now_ms - self.read_ms > SILENCE_MS:
            _log.warning(
                "Disconnecting slave %s: it has sent no report for 20 s",
                self.connection.peer,
                about=self.connection.peer_host,
                peer=self.connection.peer,
            )
            self.connection.abort()
        elif self.position >= 0 and now_ms - self._written_ms > HEARTBEAT_MS:
            self._written_ms = now_ms
            self.connection.write(HEAD.pack(self.position, 0))

    def pump(self) -> None:
        """Send as much of the log as the connection accepts, and the rest later."""
        if self.position < 0 or self._pumping is not None or self.connection.closed:
            return
        if not self.connection.overloaded:
            self._send()
        if self.position < self._store.end_offset:
            self._pumping = asyncio.get_running_loop().create_task(self._go_on())

    def _send(self) -> None:
        connection, store = self.connection, self._store
        if self.position < store.min_offset:
            _log.error(
                "Slave %s asked for the log from %d, which begins at %d: give it a new directory",
                connection.peer,
                self.position,
                store.min_offset,
                about=connection.peer_host,
                peer=connection.peer,
            )
            connection.close()
            return
        pieces: list[bytes | memoryview] = []
        budget = _BYTES_AT_ONCE
        while budget > 0:
            try:
                data = store.read_verified(self.position, PIECE_BYTES_MAX)
            except StoreError as error:
                _log.error(
                    "The log cannot be sent to slave %s: %s",
                    connection.peer,
                    error,
                    about=connection.peer_host,
                    peer=connection.peer,
                )
                connection.close()
                return
            if not data:
                break
            pieces += (HEAD.pack(self.position, len(data)), data)
            self.position += len(data)
            budget -= len(data)
        if pieces:
            self._written_ms = self._master.core.lease_ms()
            connection.write_many(pieces)

    async def _go_on(self) -> None:
        try:
            while self.position < self._store.end_offset and not self.connection.closed:
                await self.connection.drain()
                self._send()
                await asyncio.sleep(0)  # let other work run
        except DisconnectedError:
            return
        finally:
            self._pumping = None
