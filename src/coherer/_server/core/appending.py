"""Stores the messages of all connections, of both protocols, in batches, and makes them durable.

`Appender` collects the drafts of all connections during one iteration of the event loop. At its
end, or as soon as there are `limits.SENDS_PER_APPEND` drafts, it stores them with one
`Store.append`, which is one write to the log. It then calls the `done` callback of every submitter
once, and after that wakes waiting consumers. (The limit exists because one iteration can bring
megabytes, and handling data that has left the processor's cache costs 50 % more. A `DraftBatch`,
which holds many messages, is stored at once.)

Batching is skipped while there is only one sender: after an iteration with a single submission, the
next few submissions are stored immediately. Then one iteration is collected again to find out
whether others send, too.

Every submission names its origin, and `coherer._rules.common.origins` says which topics that origin
may write to. All records of clients and of the node enter the log this way.

The first messages of a new topic are held until the topic is saved, and so are all that come after
them for the same topics (`Store.save_topics_first`).

With sync flush, callbacks run and consumers are woken after `fsync`: the store shows them nothing
before it. `Flusher` runs one `fsync` at a time in a thread, for all submissions that wait when it
starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from coherer import limits
from coherer._common.logs import Log
from coherer._rules.common.origins import CLIENTS, Origin, fault
from coherer._server.core.disk import Disk
from coherer._store import AppendResult, Draft, DraftBatch, Store, UnsavedTopicError
from coherer.errors import CohererError, StoreError, StoreFullError, UsageError

_log = Log(logging.getLogger(__name__))

_ALONE_BATCHES = 31
"""The number of submissions stored immediately after one that was alone in its iteration."""

_WAKE_EVERY = 10
"""While there is nothing to flush, the thread is woken only in every tenth tick: waking it in each
took a quarter of the processor time of a node without clients."""

Done = Callable[[Sequence[AppendResult] | CohererError, int], None]
"""Called with the offsets of a batch's messages, or the error if they were not stored, and with the
log offset after the batch: once it is durable (or replicated), so is the whole batch.
"""

Durable = Callable[[CohererError | None], None]
"""Called when the log is durable up to the requested offset, or with the disk's error."""

Arrived = Callable[[Sequence[Draft | DraftBatch], Sequence[AppendResult]], None]
"""Called with the stored messages and their offsets."""

_Batch = tuple[Done | None, int, bool]


class Appender:
    """Batches appends.

    Args:
        arrived: called with every stored batch, once readers can see it.
        disk: says whether sends are refused, and learns which batches could not be stored.
        save_topics: saves the topics, and calls `topics_saved` afterwards.
    """

    def __init__(
        self,
        store: Store,
        flusher: Flusher,
        arrived: Arrived,
        disk: Disk,
        took: Callable[[int], None],
        save_topics: Callable[[], None],
    ) -> None:
        self._took = took
        self._save_topics = save_topics
        self._disk = disk
        self._store = store
        self._flusher = flusher
        self._arrived = arrived
        self._sync_flush = store.options.flush == "sync"
        self._drafts: list[Draft | DraftBatch] = []
        self._batches: list[_Batch] = []
        self._alone = 0  # submissions still to be stored immediately
        # Batches that wait for the topics to be saved, and all their topics.
        self._held: list[tuple[Sequence[Draft | DraftBatch], _Batch]] = []
        self._held_topics: set[str] = set()
        self._released: asyncio.Event | None = None  # while any are held
        self._unsynced: deque[tuple[int, Durable]] = deque()
        self._syncing: asyncio.Task[None] | None = None
        # Batches whose sync failed: they are shown with the next one that succeeds.
        self._late: list[tuple[Sequence[Draft | DraftBatch], Sequence[AppendResult]]] = []

    def submit(
        self,
        drafts: Sequence[Draft | DraftBatch],
        done: Done | None,
        *,
        origin: Origin,
        own: Sequence[Draft] = (),
        wait_durable: bool | None = None,
    ) -> None:
        """Submit the messages of one socket read.

        Args:
            drafts: messages of clients.
            done: called once with the result; None for no callback. If a record may not be written
                by this origin, nothing is stored and the result is an `OriginError`.
            origin: who submits them.
            own: records that the origin writes into its own system topics. They are stored after
                the messages, in the same append.
            wait_durable: whether `done` is called only after the messages are durable; None for the
                node's default.
        """
        wait = self._sync_flush if wait_durable is None else wait_durable
        wrong: CohererError | None = fault(origin, drafts, own)
        if wrong is None and self._disk.refusal is not None and origin in CLIENTS:
            wrong = self._disk.refusal
        if wrong is not None:
            _refuse([(done, len(drafts) + len(own), wait)], wrong)
            return
        if own:
            drafts = [*drafts, *own]
        first = not self._drafts
        self._drafts += drafts
        self._batches.append((done, len(drafts), wait))
        if len(self._drafts) >= limits.SENDS_PER_APPEND or isinstance(drafts[-1], DraftBatch):
            self._append()
        elif first and self._alone:
            self._alone -= 1
            self._append()
        elif first:
            asyncio.get_running_loop().call_soon(self._turn)

    @property
    def waiting(self) -> int:
        """The number of submissions that are not stored or not durable yet."""
        return len(self._batches) + len(self._held) + len(self._unsynced)

    def topics_saved(self, error: StoreError | None) -> None:
        """Store the batches that waited for it, or refuse them with the disk's error."""
        held, self._held, self._held_topics = self._held, [], set()
        for drafts, batch in held:
            if error is None:
                self._append_all(drafts, [batch])
            else:
                self._not_stored(drafts, [batch], error)
        if self._released is not None and not self._held:
            self._released.set()
            self._released = None

    def when_durable(self, end_offset: int, callback: Durable) -> None:
        """Call `callback` once the log is durable up to `end_offset`.

        Args:
            end_offset: an offset that has been appended already.
            callback: called once, with None or with the disk's error.
        """
        if self._flusher.closed:  # connections are still open when the last flush is over
            callback(StoreError("The node is stopping; nothing more is flushed."))
            return
        self._unsynced.append((end_offset, callback))
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def close(self) -> None:
        """Store pending messages and wait until all callbacks have run."""
        self._append()
        while self._released is not None or self._syncing is not None:
            if self._released is not None:
                await self._released.wait()
            elif self._syncing is not None:
                await self._syncing
            self._append()  # submitted by callbacks

    def _turn(self) -> None:
        """Store the messages of this iteration of the loop."""
        self._alone = _ALONE_BATCHES if len(self._batches) == 1 else 0
        self._append()

    def _append(self) -> None:
        drafts, batches = self._drafts, self._batches
        if not drafts:
            return
        self._drafts, self._batches = [], []
        self._append_all(drafts, batches)

    def _append_all(self, drafts: Sequence[Draft | DraftBatch], batches: Sequence[_Batch]) -> None:
        if self._must_wait(drafts, batches):
            self._hold(drafts, batches)
            return
        try:
            begun_ns = time.perf_counter_ns()
            appended = self._store.append(drafts)
            self._took(time.perf_counter_ns() - begun_ns)
        except UnsavedTopicError:
            self._hold(drafts, batches)
        except UsageError as error:
            if len(batches) == 1:
                _refuse(batches, error)
            else:
                self._append_each(drafts, batches)
        except CohererError as error:
            self._not_stored(drafts, batches, error)
        except Exception as error:  # noqa: BLE001 - every submitter must get an answer
            _log.exception("Unhandled error while storing a batch")
            _refuse(batches, StoreError(f"{type(error).__name__} in the store."))
        else:
            self._appended(drafts, batches, appended)

    def _must_wait(self, drafts: Sequence[Draft | DraftBatch], batches: Sequence[_Batch]) -> bool:
        """Whether a message would overtake one of its topic; of several batches, perhaps."""
        if not self._held:
            return False
        return len(batches) > 1 or any(one.topic in self._held_topics for one in drafts)

    def _hold(self, drafts: Sequence[Draft | DraftBatch], batches: Sequence[_Batch]) -> None:
        """Keep a batch until the topics are saved; of several, those that have to wait."""
        if len(batches) > 1:
            self._append_each(drafts, batches)
            return
        self._held.append((drafts, batches[0]))
        self._held_topics.update([one.topic for one in drafts])
        if self._released is None:
            self._released = asyncio.Event()
            self._save_topics()

    def _not_stored(
        self,
        drafts: Sequence[Draft | DraftBatch],
        batches: Sequence[_Batch],
        error: CohererError,
    ) -> None:
        self._disk.refused(error, _size(drafts))
        _refuse(batches, error)

    def _appended(
        self,
        drafts: Sequence[Draft | DraftBatch],
        batches: Sequence[_Batch],
        appended: Sequence[AppendResult],
    ) -> None:
        if self._disk.has_refused:
            self._disk.stored(_size(drafts))
        begin, end_offset = 0, self._store.written_offset
        for done, count, wait in batches:
            results = appended[begin : begin + count]
            begin += count
            if done is None:
                continue
            if wait:
                self.when_durable(end_offset, partial(_durable, done, results, end_offset))
            else:
                _report(done, results, end_offset)
        if self._sync_flush:
            self.announce(drafts, appended)
        else:  # without a call per batch
            self._arrived(drafts, appended)

    def announce(
        self,
        drafts: Sequence[Draft | DraftBatch],
        appended: Sequence[AppendResult],
        shown: Callable[[], None] | None = None,
    ) -> None:
        """Report messages that were just stored to `arrived`, once readers can see them.

        Args:
            shown: called afterwards, unless the disk has failed.
        """
        if self._sync_flush:
            callback = partial(self._shown, drafts, appended, shown)
            self.when_durable(self._store.written_offset, callback)
            return
        if drafts:
            self._arrived(drafts, appended)
        if shown is not None:
            shown()

    def _shown(
        self,
        drafts: Sequence[Draft | DraftBatch],
        appended: Sequence[AppendResult],
        shown: Callable[[], None] | None,
        error: CohererError | None,
    ) -> None:
        if drafts:
            self._late.append((drafts, appended))
        if error is not None:
            return
        late, self._late = self._late, []
        try:
            for one in late:
                self._arrived(*one)
            if shown is not None:
                shown()
        except Exception:  # noqa: BLE001 - the other callbacks must run nevertheless
            _log.exception("Unhandled error while consumers of a stored batch were woken")

    def _append_each(self, drafts: Sequence[Draft | DraftBatch], batches: Sequence[_Batch]) -> None:
        """Store each batch separately: not all of them are stored now."""
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
            for _, callback in failed:
                callback(error)
        finally:
            self._syncing = None


def _size(drafts: Sequence[Draft | DraftBatch]) -> int:
    return sum(
        len(one.body) if isinstance(one, Draft) else sum(map(len, one.bodies)) for one in drafts
    )


def _refuse(batches: Sequence[_Batch], error: CohererError) -> None:
    _log.error(
        "%d messages refused: %s", sum(count for _, count, _ in batches), error, about=type(error)
    )
    for done, _, _ in batches:
        if done is not None:
            _report(done, error, 0)


def _durable(
    done: Done, results: Sequence[AppendResult], end_offset: int, error: CohererError | None
) -> None:
    _report(done, results if error is None else error, end_offset)


def _report(done: Done, outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
    try:
        done(outcome, end_offset)
    except Exception:  # noqa: BLE001 - the other callbacks must run nevertheless
        _log.exception("Unhandled error in the callback of a stored batch")


T = TypeVar("T")


class Flusher:
    """The thread that waits for the disk.

    Args:
        failed: called once when the disk has failed.
    """

    def __init__(self, store: Store, failed: Callable[[], None]) -> None:
        self._store = store
        self._failed = failed
        self._has_failed = False
        self._seen_end: int | None = None
        self._quiet_calls = 0
        self.closed = False
        self._pool = ThreadPoolExecutor(1, "coherer-flush")

    async def flush(self) -> int:
        """Flush the store; return the offset up to which the log is durable.

        Raises:
            StoreFullError: too many files are open; the next flush may succeed.
            StoreError: the disk failed. The node then refuses sends: after a failed fsync the
                kernel may have dropped the pages that it could not write, without reporting it
                again.
        """
        try:
            return await self.run(self._store.flush)
        except StoreFullError:
            raise
        except StoreError as error:
            if not self._has_failed:
                self._has_failed = True
                _log.plain.error("The disk failed; sends are refused until a restart: %s", error)
                self._failed()
            raise

    async def tick(self) -> None:
        """Flush if the flush interval is over; call it more often than that.

        Raises:
            StoreError: the disk failed.
        """
        if self._is_quiet():
            return
        try:
            await self.run(self._store.tick)
        except StoreFullError:
            raise
        except StoreError:
            await self.flush()  # if the log has failed, this makes the node refuse sends
            raise

    def _is_quiet(self) -> bool:
        """Whether nothing was written since the last call; but False in every tenth call."""
        end = self._store.written_offset
        if end != self._seen_end or end != self._store.durable_offset:
            self._seen_end = end
            self._quiet_calls = 0
            return False
        self._quiet_calls += 1
        return self._quiet_calls % _WAKE_EVERY != 0

    async def run(self, action: Callable[[], T]) -> T:
        """Run a function in the thread.

        Raises:
            StoreError: the disk failed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, action)

    def close(self) -> None:
        """Stop the thread."""
        self.closed = True
        self._pool.shutdown()
