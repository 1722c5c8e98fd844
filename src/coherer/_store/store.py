"""The store of a node: messages in, slices out, and nothing lost that was promised.

Rules:

* One thread (or event loop) is the *writer*: it appends, reads, deletes, cleans, closes. `flush`,
  `flush_queues` and `tick` may run in one other thread meanwhile; so may the configuration files.
* A batch is written to the log, then becomes visible, all of it, in the queues too. If it cannot
  be written all of it is taken back, and the next batch finds the store as it was.
* New queue entries and keys are in memory first, where readers find them, and bounded; the other
  thread writes them (`waiting`, `index`). A crash loses them there, and recovery makes them again
  from the log.
* `end_offset`: what is written. It survives the death of the process.
  `durable_offset`: what is synced. It survives a power cut. `flush` brings it to `end_offset`.
* Queues, index and checkpoint are written and synced at a longer interval (`flush_queues`, see
  `flushing`); the log can rebuild what they lack. With many queues the interval is longer still:
  no more than a twentieth of the time goes into it.
* `abort` lies in the directory from the first moment to the last; who finds it recovers.

Store times never go back: when the time of day does, they stand still until it has caught up.
`times` knows when messages were stored by a clock that is not set.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from coherer._common.clock import IntervalTimer
from coherer._store import inventory
from coherer._store.checkpoint import Checkpoint, Flushing
from coherer._store.clock_history import ClockHistory
from coherer._store.commit_log import CommitLog
from coherer._store.config_files import ConfigFiles
from coherer._store.consume_queue import QueueDirectory
from coherer._store.contents import Contents
from coherer._store.encoder import Encoder
from coherer._store.files import Files, OsFiles, make_durable_directory, translate_os_errors
from coherer._store.index import KeyIndex
from coherer._store.inventory import Inventory
from coherer._store.model import (
    AppendResult,
    DamagedRange,
    Draft,
    DraftBatch,
    RecoveryReport,
    StoreOptions,
)
from coherer._store.recovery import Recovery, Replayer, verify
from coherer._store.replica import Replica
from coherer._store.retention import first_is_over, is_too_large
from coherer.errors import StoreError, StoreFullError

T = TypeVar("T")

_DEFAULTS = StoreOptions()
_OS_FILES = OsFiles()
_RELAX_INTERVAL_MS = 10_000
_REST_FACTOR = 20
"""A flush of the queues that took a second is followed by this many seconds without one."""


class Store(Contents):
    r"""One directory of messages, in RocketMQ 4.9's format.

    Make one with `Store.open`, use it as a context manager or call `close`.

    Attributes:
        store_host: address and port that records name as theirs.
        recovery: what opening found and did.
        unfinished: why `close` left something to the next `open`; empty if it did not.

    >>> import tempfile
    >>> from coherer._record.layout import decode
    >>> options = StoreOptions(segment_bytes=1 << 20)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with Store.open(Path(directory), options, now_ms=lambda: 1_650_000_000_000) as store:
    ...         placed = store.append([Draft("flights", 0, b"hello", b"TAGS\x01UA")])
    ...         found = store.read("flights", 0, 0, max_bytes=1 << 20, max_count=100)
    ...         print(placed[0].queue_offset, bytes(decode(found.records[0]).body))
    0 b'hello'
    """

    def __init__(
        self,
        directory: Path,
        options: StoreOptions,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        files: Files,
        open_files: Callable[[], int] | None = None,
    ) -> None:
        log = CommitLog(files, directory / "commitlog", options.segment_bytes)
        queue_files = QueueDirectory(
            files, directory / "consumequeue", open_files or (lambda: options.open_files),
            options.queue_segment_bytes, options.delay_levels_ms,
        )  # fmt: skip
        index: KeyIndex | None = None
        if options.index_enabled:
            size = (options.index_slots, options.index_entries)
            index = KeyIndex(files, directory / "index", *size)
        super().__init__(directory, options, log, queue_files, index)
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._files = files
        self._config = ConfigFiles(files, directory / "config")
        self._encoder = Encoder(log.segment_bytes, queue_files.get)
        self._flushing = Flushing(
            files, directory / "checkpoint", log, index, queue_files.waiting, now_ms
        )
        self._last_ms = 0
        self._flushes = IntervalTimer(options.flush_interval_ms, 0)
        self._queue_flushes = IntervalTimer(options.queue_flush_interval_ms, 0)
        self._hold_at = 0  # the log's end at which its limit is looked at next
        self._rest_ms = (0, 0)  # no regular flush of queues from the one time to the other
        self._relaxations = IntervalTimer(_RELAX_INTERVAL_MS, 0)
        self._lock_handle = -1
        self._replica: Replica | None = None
        self.store_host = options.store_host
        self._inventory: Inventory | None = None
        self.recovery = RecoveryReport()
        self.clock_history = ClockHistory(0, steady_ms(), now_ms())
        self.close_error = ""

    @classmethod
    def open(
        cls,
        directory: Path,
        options: StoreOptions = _DEFAULTS,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
        files: Files = _OS_FILES,
        open_files: Callable[[], int] | None = None,
    ) -> Self:
        """Open a directory, made if it is missing, and put right what a crash left behind.

        Args:
            directory: where; Java's name for it is storePathRootDir.
            options: see `StoreOptions`.
            now_ms: the time of day, ms since 1970: messages get it.
            steady_ms: a clock that is not set; `now_ms` unless given.
            files: how to reach files.
            open_files: tells how many files of consume queues may be held open now; None for the
                options' number.

        Raises:
            DamagedStoreError: the files do not fit together.
            StoreError: another process uses the directory, or the disk failed.
        """
        with translate_os_errors(f"open {directory}"):
            make_durable_directory(files, directory.absolute())
            handle = files.lock(directory / "lock")
            try:
                store = cls(directory, options, now_ms, steady_ms or now_ms, files, open_files)
                store._lock_handle = handle
                store._recover()
            except BaseException:
                files.unlock(directory / "lock", handle)
                raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self) -> None:
        files, directory = self._files, self._directory
        clean = not files.exists(directory / "abort")
        rebuild = not files.exists(directory / "consumequeue") and self._log.segments != []
        for name in ("commitlog", "consumequeue", "index", "config"):
            files.make_directory(directory / name)
        files.close(files.open(directory / "abort", create=True))
        files.sync_directory(directory)
        checkpoint = Checkpoint(offset=0) if rebuild else self._flushing.checkpoint
        notes = ["the consume queues are missing: all are rebuilt"] if rebuild else []
        if self._index is not None:
            notes += self._index.load(checkpoint, clean=clean and not rebuild)
        known = inventory.load(files, directory / inventory.FILE, checkpoint) if clean else None
        self._inventory = known
        comparison = inventory.Comparison(known)
        self._queue_files.load(None if known is None else known.file_bytes, comparison.look)
        index_again = (
            self._index is not None and known is not None and not self._index.is_whole(known.index)
        )
        if index_again and self._index is not None and known is not None:
            self._index.restart(known.index)
        replayer = Replayer(self._queue_files, self._index, self._now_ms())
        recovery = Recovery(
            self._log, self._queues, checkpoint, clean=clean, replica=self._options.replica
        )
        report, self._last_ms = recovery.run(
            replayer,
            self._options.verify_bytes,
            {} if rebuild else comparison.flaws(self._queue_files),
            index_again=index_again,
        )
        self.clock_history = ClockHistory(report.log_end, self._steady_ms(), self._now_ms())
        self._flushing.start(report.log_end, self._last_ms)
        self._log.damage = report.damage
        if replayer.replayed or not clean or rebuild or report.repaired:
            try:
                self.flush_queues()
            except StoreFullError as error:
                notes.append(str(error))
        self.recovery = report.noting([*notes, *self._queue_files.notes])

    def append(self, drafts: Sequence[Draft | DraftBatch]) -> list[AppendResult]:
        """Store a batch: all of it or nothing. It can be read on return.

        Raises:
            UsageError: a draft cannot be stored.
            StoreFullError: there is no room; try again when there is.
            StoreError: the disk failed.
            ClosedError: the store is closed.
        """
        self._check_open()
        now_ms, steady_ms, begin = self._now_ms(), self._steady_ms(), self._log.end
        store_ms = self._last_ms = max(now_ms, self._last_ms)
        batch = self._encoder.encode(drafts, begin, store_ms, self.store_host)
        try:
            self._make_room(store_ms, keys=batch.keys is not None)
            self._log.write(batch.chunks)
        except StoreError:
            for queue in batch.queues:
                queue.pending.clear()
            raise
        self._flushing.wrote(batch.end, store_ms, batch.queues, batch.keys)
        self.clock_history.note(begin, steady_ms, now_ms, store_ms)
        if batch.end >= self._hold_at:
            self._hold_limit()
        return batch.appended

    def _hold_limit(self) -> None:
        """Keep the log within its limit, although nobody has called `clean` in time.

        It is larger than the limit by no more than half a file then.
        """
        limit, half = self._options.retention_bytes, self._log.segment_bytes // 2
        if limit is None:
            self._hold_at = sys.maxsize
            return
        if self._log.end - self._log.begin > limit + half:
            with suppress(StoreError):  # the next `clean` reports it
                self.delete_expired(self._now_ms())
        # Where a file could not be deleted it is tried again half a file later.
        self._hold_at = max(self._log.begin + limit, self._log.end) + half

    def _make_room(self, now_ms: int, *, keys: bool) -> None:
        """Write what waits in memory if that has become much.

        Raises:
            StoreError: it cannot be written: take no more.
        """
        with translate_os_errors("write the consume queues"):
            self._queue_files.waiting.make_room()
        if keys and self._index is not None:
            with translate_os_errors("write the key index"):
                self._index.make_room(now_ms)

    def append_raw(self, offset: int, data: bytes) -> tuple[list[Draft], list[AppendResult]]:
        """Store what another store's log holds at `offset`, where ours ends: a slave's way.

        A store without any files may begin where a file of the other one does.

        Args:
            offset: where the bytes lie in both logs.
            data: whole records and blanks (`coherer._store.replica.whole_bytes`).

        Returns:
            The messages, without their bodies, and where they are.

        Raises:
            UsageError: the bytes do not follow what is here.
            DamagedStoreError: they are not what a log of this file size holds.
            StoreError: the disk failed, or is full; nothing was stored.
            ClosedError: the store is closed.
        """
        self._check_open()
        if self._replica is None:
            self._replica = Replica(self._log, self._queue_files, self._index, self._now_ms())
        self._make_room(self._now_ms(), keys=False)
        end, store_ms, queues, drafts, appended = self._replica.take(offset, data)
        self._last_ms = max(self._last_ms, store_ms)
        self.clock_history.copied(end, self._steady_ms())
        self._flushing.wrote(end, self._last_ms, queues)
        if end >= self._hold_at:
            self._hold_limit()
        return drafts, appended

    def flush(self) -> int:
        """Make the log durable; give the offset up to which it is. For any thread.

        One sync serves all who wait: it covers what was appended before the call.

        Raises:
            StoreError: the disk failed. Nothing is acknowledged any more until a restart.
        """
        return self._log.flush()

    def flush_queues(self) -> None:
        """Make log, queues and index durable and write the checkpoint. For any thread.

        Raises:
            StoreFullError: there is no room for keys, which wait, or too many files are open.
            StoreError: the disk failed.
            ClosedError: the store is closed.
        """
        self._check_open()
        self._flushing.run()

    def tick(self) -> None:
        """Flush what is due by the options' intervals. For the thread beside the writer.

        Raises:
            StoreError: see `flush` and `flush_queues`.
            ClosedError: the store is closed.
        """
        self._check_open()
        now_ms = self._steady_ms()
        if self._queues_are_due(now_ms):
            self.flush_queues()
            # A hundred thousand queues take seconds: then it is done less often.
            took_ms = self._steady_ms() - now_ms
            self._rest_ms = (now_ms, now_ms + _REST_FACTOR * took_ms)
        elif self._options.flush == "async" and self._flushes.is_due(now_ms):
            self.flush()
        if self._index is not None:
            with suppress(OSError):  # they wait; `flush_queues` tells of it
                self._index.catch_up(self._now_ms())
        if self._relaxations.is_due(now_ms):
            self._log.relax()
        self._queue_files.handles.shrink()

    def _queues_are_due(self, now_ms: int) -> bool:
        if self._queue_files.waiting.many:
            return True
        if self._rest_ms[0] <= now_ms < self._rest_ms[1]:
            return False
        return self._queue_flushes.is_due(now_ms) and self._flushing.due

    @property
    def exceeds_size_limit(self) -> bool:
        """Whether the log is larger than `retention_bytes`: `clean` is due."""
        return is_too_large(self._log, self._options)

    def delete_expired(self, now_ms: int) -> int:
        """Delete the oldest files of the log as the options say; give how many.

        The file that is being written stays. What waits in memory for the queues of the deleted
        messages is written and synced before: nothing could make it again. Call `flush_queues` in
        the other thread before, where this thread must not wait for the disk.

        Raises:
            StoreError: a file could not be deleted; it is tried again the next time.
        """
        deleted = 0
        with translate_os_errors("delete old files"):
            try:
                while first_is_over(self._log, self._options, now_ms, self._last_ms):
                    if self._log.segments[1].begin > (self._flushing.checkpoint.offset or 0):
                        with suppress(StoreFullError):  # what is deleted makes room for it
                            self.flush_queues()
                    self._log.drop_first()
                    deleted += 1
            finally:
                if deleted:
                    for queue in self._queues.values():
                        queue.trim(self._log.begin)
                    if self._index is not None:
                        self._index.trim(self._log.begin)
        return deleted

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic. Its records leave with the log's files, in time.

        Raises:
            StoreError: the disk failed.
        """
        if not self._queue_files.numbers(topic):
            return
        self.flush_queues()  # a recovery begins behind the topic's records and cannot revive it
        self._encoder.forget()
        self._replica = None
        with translate_os_errors(f"delete topic {topic}"):
            self._queue_files.remove(topic)

    def verify(self) -> list[DamagedRange]:
        """Read the whole log; give the pieces that do not hold what was written.

        They are stepped over by reads from now on.
        """
        with translate_os_errors("read the log"):
            found = verify(self._log)
        self._log.damage = tuple({*self._log.damage, *found})
        return found

    def load_config(self, name: str) -> bytes | None:
        """Give the content of `config/<name>`; None if there is none. For any thread."""
        return self._config.load(name)

    def read_config(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Give what `parse` makes of `config/<name>`, or of its `.bak`; None if there is neither.

        Raises:
            DamagedStoreError: what is there cannot be read.
        """
        return self._config.read(name, parse)

    def save_config(self, name: str, data: bytes) -> None:
        """Replace `config/<name>` at once and durably; the old one becomes `.bak`. Any thread.

        Raises:
            StoreFullError: there is no room; the old content stays.
        """
        self._config.save(name, data)

    def _save_inventory(self) -> None:
        known, index = self._inventory, self._index
        contents = [] if index is None else index.contents([] if known is None else known.index)
        path = self._directory / inventory.FILE
        checkpoint = self._flushing.checkpoint
        inventory.save(self._files, path, checkpoint, self._queue_files, contents, known)

    def close(self) -> None:
        """Make everything durable and give the directory back. A second call does nothing.

        On a full disk queue entries and keys cannot be written. That is no error: the log has the
        messages, it is made durable, and the next `open` recovers; `unfinished` says what lacked.

        Raises:
            StoreError: the disk failed; the next `open` will recover.
        """
        if self._closed:
            return
        self._closed = True
        try:
            try:
                self._flushing.run()
            except StoreFullError as error:
                self.close_error = error.text
                self._log.flush()
            else:
                with suppress(OSError):  # without it the next start compares less
                    self._save_inventory()
                with translate_os_errors("close the store"):
                    self._files.remove(self._directory / "abort")
                    self._files.sync_directory(self._directory)
        finally:
            self._queue_files.close()
            self._log.close()
            if self._index is not None:
                self._index.close()
            self._files.unlock(self._directory / "lock", self._lock_handle)
