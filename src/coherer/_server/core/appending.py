"""The sends of a loop turn are stored together, whichever door they came through.

`Appender` collects the drafts of all connections during a turn of the loop. At the turn's end, or
as soon as there are many, they become one `Store.append`, which is one write to the log; then who
submitted a batch is told, once, and makes its answers; then the consumers that wait are woken.
(Many, not all: a turn can bring megabytes, and what has left the processor's cache costs half as
much again. `DraftBatch` are many by themselves.)

Who sends alone need not wait for the others of a turn: after a turn that brought one batch, the
next few are stored as they come. Then a turn is waited for again, to see whether others send, too.

Where acknowledged means "on the disk", those who submitted are told after `fsync`. It runs in a
thread, one at a time, for all who wait when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from coherer import limits
from coherer._common.logs import Log
from coherer._server.core.flusher import Flusher
from coherer._store import AppendResult, Draft, DraftBatch, Store
from coherer.errors import CohererError, StoreError, UsageError

_log = Log(logging.getLogger(__name__))

_ALONE_BATCHES = 31
"""So many are stored as they come after one that was alone in its turn."""

Done = Callable[[Sequence[AppendResult] | CohererError, int], None]
"""Told where the messages of a batch are, or why they are not stored; and the offset behind the
batch's end in the log: what must be durable, or at a slave, for all of it to be so."""

Durable = Callable[[CohererError | None], None]
"""Told that the log is on the disk as far as was asked, or why it is not."""

Arrived = Callable[[Sequence[Draft | DraftBatch], Sequence[AppendResult]], None]
"""Told which messages were stored, and where."""

_Batch = tuple[Done | None, int, bool]


class Appender:
    """Collects, stores, tells.

    Args:
        store: where to.
        flusher: makes the store durable, for those who wait for that.
        arrived: told what was stored.
        sync_flush: whether they do where they do not say.
    """

    def __init__(
        self, store: Store, flusher: Flusher, arrived: Arrived, *, sync_flush: bool
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._arrived = arrived
        self._sync_flush = sync_flush
        self._drafts: list[Draft | DraftBatch] = []
        self._batches: list[_Batch] = []
        self._alone = 0  # so many more batches are stored as they come
        self._unsynced: deque[tuple[int, Durable]] = deque()
        self._syncing: asyncio.Task[None] | None = None

    def submit(
        self,
        drafts: Sequence[Draft | DraftBatch],
        done: Done | None,
        *,
        wait_durable: bool | None = None,
    ) -> None:
        """Take the sends of one socket read.

        Args:
            drafts: the messages.
            done: told how it went, once; None when nobody waits for that.
            wait_durable: whether it is told only when they are on the disk; None for the node's
                own rule.
        """
        first = not self._drafts
        self._drafts += drafts
        wait = self._sync_flush if wait_durable is None else wait_durable
        self._batches.append((done, len(drafts), wait))
        if len(self._drafts) >= limits.APPEND_AT_ONCE or isinstance(drafts[-1], DraftBatch):
            self._append()
        elif first and self._alone:
            self._alone -= 1
            self._append()
        elif first:
            asyncio.get_running_loop().call_soon(self._turn)

    def when_durable(self, end_offset: int, told: Durable) -> None:
        """Have `told` called once the log is on the disk up to `end_offset`.

        Args:
            end_offset: an offset that was appended to already.
            told: called once, with None or with what the disk says.
        """
        self._unsynced.append((end_offset, told))
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def close(self) -> None:
        """Wait until everybody who submitted something has been told."""
        self._append()
        if self._syncing is not None:
            await self._syncing

    def _turn(self) -> None:
        """Store what the turn has brought."""
        self._alone = _ALONE_BATCHES if len(self._batches) == 1 else 0
        self._append()

    def _append(self) -> None:
        drafts, batches = self._drafts, self._batches
        if not drafts:
            return
        self._drafts, self._batches = [], []
        self._append_all(drafts, batches)

    def _append_all(self, drafts: Sequence[Draft | DraftBatch], batches: Sequence[_Batch]) -> None:
        try:
            appended = self._store.append(drafts)
        except UsageError as error:
            if len(batches) == 1:
                _refuse(batches, error)
            else:
                self._append_each(drafts, batches)
            return
        except CohererError as error:
            _refuse(batches, error)
            return
        except Exception as error:  # noqa: BLE001 - nobody is left waiting for an answer
            _log.exception("An error of ours")
            _refuse(batches, StoreError(f"{type(error).__name__} in the store."))
            return
        begin, end_offset = 0, self._store.end_offset
        for done, count, wait in batches:
            placed = appended[begin : begin + count]
            begin += count
            if done is None:
                continue
            if wait:
                self.when_durable(end_offset, partial(_durable, done, placed, end_offset))
            else:
                _tell(done, placed, end_offset)
        self._arrived(drafts, appended)

    def _append_each(self, drafts: Sequence[Draft | DraftBatch], batches: Sequence[_Batch]) -> None:
        """One of them cannot be stored: the others must not suffer from it."""
        begin = 0
        for batch in batches:
            self._append_all(drafts[begin : begin + batch[1]], [batch])
            begin += batch[1]

    async def _sync(self) -> None:
        waiting = self._unsynced
        try:
            while waiting:
                durable = await self._flusher.flush()
                while waiting and waiting[0][0] <= durable:
                    waiting.popleft()[1](None)
        except CohererError as error:
            failed = list(waiting)
            waiting.clear()
            for _, told in failed:
                told(error)
        finally:
            self._syncing = None


def _refuse(batches: Sequence[_Batch], error: CohererError) -> None:
    _log.error(
        "%d messages refused: %s", sum(count for _, count, _ in batches), error, about=type(error)
    )
    for done, _, _ in batches:
        if done is not None:
            _tell(done, error, 0)


def _durable(
    done: Done, placed: Sequence[AppendResult], end_offset: int, error: CohererError | None
) -> None:
    _tell(done, placed if error is None else error, end_offset)


def _tell(done: Done, outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
    try:
        done(outcome, end_offset)
    except Exception:  # noqa: BLE001 - the others of this turn are told nevertheless
        _log.exception("An error of ours")
