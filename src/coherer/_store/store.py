"""The store of a node: it appends messages, and deletes them when they expire. `reader` reads them.

Invariants:

* One thread (or event loop) is the *writer*: it appends, reads, deletes and closes. `flush`,
  `flush_queues`, `tick` and the configuration files may be used by one other thread meanwhile.
* A batch is written to the log first; then the whole batch becomes visible, in the queues too. If
  it cannot be written, all of it is taken back, and the next batch finds the store unchanged.
* With sync flush a batch becomes visible when it is durable: no reader of any kind, the services of
  the node included, finds a message that a power cut could take back (`end_offset`, `queue_range`).
* New queue entries and keys are in memory first, where readers find them. Their number is limited.
  The other thread writes them to files (`consume_queue`, `index`). A crash loses the ones in
  memory, and recovery rebuilds them from the log.
* `written_offset` is the end of what is written: it survives the death of the process.
  `durable_offset` is the end of what is synced: it survives a power cut. `flush` moves it to
  `written_offset`. `end_offset`, the end for readers, is one of the two.
* Queues, index and checkpoint are synced at a longer interval (`flush_queues`), because the log
  can rebuild them. With many queues the interval grows: at most a twentieth of the time is spent.
* No file refers to an offset of the log or of a queue that a power cut could take back: `flush`
  runs before a file of `config/` is written, whatever it holds, and before the checkpoint. So a
  content that was taken before `save_config` was called refers to durable messages only.
* The file `abort` exists while the store is open. If it exists at open, recovery runs.

Store times never decrease: if the time of day is set back, the store time stays the same until the
time of day has caught up. `clock_history` converts store times to a monotonic clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from msgspec.structs import replace

from coherer._common.clock import IntervalTimer
from coherer._record.layout import BLANK_BYTES
from coherer._store import inventory, power_cuts
from coherer._store.checkpointer import Checkpointer
from coherer._store.clock_history import ClockHistory
from coherer._store.commit_log import CommitLog
from coherer._store.config_files import ConfigFiles
from coherer._store.consume_queue import ConsumeQueue, QueueDirectory
from coherer._store.encoder import Encoder
from coherer._store.files import (
    Files,
    OsFiles,
    make_durable_directory,
    translate_os_errors,
)
from coherer._store.history import ensure_history, note_removal
from coherer._store.index import KeyIndex
from coherer._store.inventory import Inventory, Register, Registered
from coherer._store.model import (
    AppendResult,
    DamagedRange,
    Draft,
    DraftBatch,
    StoreOptions,
)
from coherer._store.offset_reserve import GAP_QUEUE, ends_in_gap, next_offset
from coherer._store.reader import Reader
from coherer._store.recovery import recover, verify
from coherer._store.repairs import Repairs
from coherer._store.replica import Replica
from coherer._store.retention import Age, Holds, exceeds_limit, first_file_is_expired, next_to_go
from coherer._store.topic_retention import TopicRetention
from coherer.errors import StoreError, StoreFullError

T = TypeVar("T")

_DEFAULTS: Final = StoreOptions()
_OS_FILES: Final = OsFiles()
_UNMAP_MS: Final = 10_000
_IDLE_MS: Final = 300_000
"""A queue's file is closed if it is not used for so long. Timed messages use another queue every
five minutes."""
_PAUSE_FACTOR: Final = 20
"""After a flush of the queues that took a second there is no other one for this many seconds."""


def _always(_: str) -> bool:
    return True


class UnsavedTopicError(StoreError):
    """The topic is new, and no file says so yet; append the messages once it is saved."""


class Store(Reader):
    r"""One directory of messages, in RocketMQ 4.9's format. Create it with `Store.open`.

    Attributes:
        topic_retention: hides messages of topics with their own limits; only the writer calls it.
        holds: who needs which records; their files are not deleted.
        options: the options; the retention may be replaced while the store is open.
        store_host: address and port that records carry as their store host.
        clock_history: converts times in records to the monotonic clock.
        close_error: why `close` could not write everything; empty if it could.

    >>> import tempfile
    >>> from coherer._record.layout import decode
    >>> options = StoreOptions(segment_bytes=1 << 20)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with Store.open(Path(directory), options, now_ms=lambda: 1_650_000_000_000) as store:
    ...         results = store.append([Draft("flights", 0, b"hello", b"TAGS\x01UA")])
    ...         found = store.read("flights", 0, 0, max_bytes=1 << 20, max_count=100)
    ...         print(results[0].queue_offset, bytes(decode(found.records[0]).body))
    0 b'hello'
    """

    _replica: Replica | None = None
    _trimmed_to = 0
    """Queues and index have nothing before this log offset."""

    def __init__(
        self,
        directory: Path,
        options: StoreOptions,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        files: Files,
        open_files: Callable[[], int] | None = None,
    ) -> None:
        log = CommitLog(files, directory / "commitlog", options.segment_bytes)
        queue_files = QueueDirectory(
            files, directory / "consumequeue", options, open_files or (lambda: options.open_files)
        )
        index = None
        if options.index_enabled:
            index = KeyIndex(
                files,
                directory / "index",
                options.index_slots,
                options.index_entries,
                options.pending_keys_max,
            )
        super().__init__(log, queue_files, index)
        self.directory, self.options = directory, options
        self.store_host = options.store_host
        self._now_ms, self._monotonic_ms = now_ms, monotonic_ms
        self._files = files
        self.topic_retention = TopicRetention(log, queue_files)
        self.holds = Holds(log)
        self._config = ConfigFiles(files, directory / "config")
        self._repairs = Repairs(self._config)
        self._encoder = Encoder(log.segment_bytes, self._queue_to_write)
        self._register = Register(files, directory / inventory.REGISTER_FILE)
        self._checkpointer = Checkpointer(
            files,
            directory / "checkpoint",
            log,
            index,
            queue_files.pending,
            now_ms,
            monotonic_ms,
            register=self._register,
            show_durable=options.flush == "sync",
            replica=options.replica,
        )
        self._unsaved_cuts: bytes | None = None
        self._inventory: Inventory | None = None
        self._topic_existed: Callable[[str], bool] = _always
        self._is_unsaved: Callable[[str], bool] = lambda _: False
        self._reached: list[ConsumeQueue] = []
        self._lock_handle, self._last_ms = -1, 0
        self._check_size_at = 0  # the end of the log at which its size limit is checked next
        self._flush_timer = IntervalTimer(options.flush_interval_ms, 0)
        self._queue_flush_timer = IntervalTimer(options.queue_flush_interval_ms, 0)
        self._unmap_timer = IntervalTimer(_UNMAP_MS, 0)
        self._idle_timer = IntervalTimer(_IDLE_MS, 0)
        self._pause_ms = (0, 0)  # no regular flush of queues between these times
        self.clock_history = ClockHistory(0, monotonic_ms(), now_ms())
        self.close_error = ""

    @classmethod
    def open(
        cls,
        directory: Path,
        options: StoreOptions = _DEFAULTS,
        *,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int] | None = None,
        files: Files = _OS_FILES,
        open_files: Callable[[], int] | None = None,
    ) -> Self:
        """Open a directory, or create it. After a crash, recover its messages.

        Args:
            directory: where the files are; Java calls it storePathRootDir.
            options: see `StoreOptions`.
            now_ms: the time of day, ms since 1970; messages are stamped with it.
            monotonic_ms: a monotonic clock; `now_ms` by default.
            files: how to access files.
            open_files: returns how many files of consume queues may be open now; None to use
                `StoreOptions.open_files`.

        Raises:
            DamagedStoreError: the files do not fit together.
            StoreError: another process uses the directory, or the disk failed.
        """
        with translate_os_errors(f"open {directory}"):
            make_durable_directory(files, directory.absolute())
            handle = files.lock(directory / "lock")
            with ExitStack() as stack:
                stack.callback(files.unlock, directory / "lock", handle)
                store = cls(directory, options, now_ms, monotonic_ms or now_ms, files, open_files)
                store._lock_handle = handle
                stack.callback(store._close_files)
                store._recover()
                stack.pop_all()
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self) -> None:
        files, directory = self._files, self.directory
        clean = not files.exists(directory / "abort")
        files.make_directory(directory / "config")
        rebuild = self._repairs.load().everything or (
            not files.exists(directory / "consumequeue") and self._log.segments != []
        )
        if rebuild:
            self._repairs.begin({}, everything=True)
            files.remove_tree(directory / "consumequeue")  # a part of what was to be rebuilt
            self._mark_open()
        lost_power = not clean and self._lost_power()
        known = self._config.read(power_cuts.FILE, power_cuts.load) or ()
        found = recover(
            directory,
            files,
            self._log,
            self._queue_files,
            self._index,
            self._checkpointer.checkpoint,
            self.options,
            self._now_ms(),
            clean=clean,
            rebuild=rebuild,
            lost_power=lost_power,
            cuts=known,
            repairs=self._repairs,
            registered=self._registered(),
            begin=self._mark_open,
        )
        self._inventory, self._last_ms = found.inventory, found.last_ms
        self._trimmed_to = self._log.begin
        end = found.report.log_end
        self.clock_history = ClockHistory(end, self._monotonic_ms(), self._now_ms())
        self._checkpointer.gaps = found.gaps
        self._checkpointer.start_at(
            end,
            found.last_ms,
            lost_power=lost_power,
            unknown_bytes=found.report.unknown_bytes(lost_power=lost_power),
        )
        self._log.damage = found.report.damage
        with suppress(StoreFullError):  # the next write tries again
            self._checkpointer.save_gap()
            self._log.cut_rest()
        cuts = power_cuts.update(known, found.report)
        self._unsaved_cuts = None if cuts == known else power_cuts.dump(cuts)
        if found.has_changes or self._checkpointer.has_changed:
            try:
                self.flush()  # readers see everything that was found
                self.flush_queues()
            except StoreFullError as error:
                found.notes.append(str(error))
        notes = [*found.notes, *self._queue_files.notes]
        self.recovery = replace(found.report.with_notes(notes), cuts=cuts)

    def _registered(self) -> Registered:
        covered = self._checkpointer.checkpoint.offset
        if covered is None:  # a Java broker has used the directory
            self._register.discard()
            return {}
        return self._register.load(covered)

    def _mark_open(self) -> None:
        files, directory = self._files, self.directory
        for name in ("commitlog", "consumequeue", "index", "config"):
            files.make_directory(directory / name)
        files.close(files.open(directory / "abort", create=True))
        files.sync_directory(directory)
        ensure_history(files, directory)
        with suppress(OSError):  # on a full disk; removals of topics report it
            note_removal(files, directory)

    def _lost_power(self) -> bool:
        """Whether the machine may have lost power since the store was used."""
        boot = self._files.boot_id()
        return not boot or boot != self._checkpointer.checkpoint.boot

    def _queue_to_write(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue for its first append in this process, after the gaps of power cuts."""
        queue = self._queue_files.get(topic, queue_id)
        if not queue.next and self._is_unsaved(topic):
            raise UnsavedTopicError("The topic is not saved yet.", topic=topic)
        gaps = self._checkpointer.gaps
        if gaps and (queue.next or self._topic_existed(topic)):
            with translate_os_errors("read the consume queues"):
                index = next_offset(queue, gaps)
                if index > queue.next:
                    queue.skip_to(index)
        return queue

    def reach(self, topic: str, queue_id: int, offset: int) -> None:
        """Let a queue continue after its gap now if a reader is inside it.

        The reader has read messages that a power cut has taken back. Only the writer calls it.
        """
        gaps = self._checkpointer.gaps
        if not gaps or self.options.replica:
            return
        queue = self._queues.get((topic, queue_id))
        if queue is not None and offset <= queue.next:
            return
        if queue is None and (offset <= 0 or not self._topic_existed(topic)):
            return
        begin = 0 if queue is None else queue.next
        if not begin and self._is_unsaved(topic):
            return  # it is being created: nobody has read anything there
        if offset - begin <= sum([gap.entries for gap in gaps]):
            self._reached.append(self._queue_to_write(topic, queue_id))

    @property
    def has_untold_gap(self) -> bool:
        """Whether replicas cannot know a gap in the queue offsets yet.

        They learn it from a message in `GAP_QUEUE`.
        """
        gaps, queue = self._checkpointer.gaps, self._queues.get(GAP_QUEUE)
        with translate_os_errors("read the consume queues"):
            return bool(gaps) and (queue is None or ends_in_gap(queue, gaps))

    def know_topics(self, existed: Callable[[str], bool]) -> None:
        """Tell the topics that existed at open; the queues of new topics begin at offset 0.

        Without a call every topic can have had messages that a power cut took back.
        """
        self._topic_existed = existed

    def save_topics_first(self, is_unsaved: Callable[[str], bool]) -> None:
        """Refuse the first message of a topic that `know_topics` would not name after a power cut.

        Otherwise the queues of this topic would begin at offset 0 again, and readers have seen
        messages there. `append` then raises an `UnsavedTopicError`, and stores nothing.

        Args:
            is_unsaved: whether a topic's name is not durable yet.
        """
        self._is_unsaved = is_unsaved

    @property
    def written_offset(self) -> int:
        """The offset after the last record of the log."""
        return self._log.end

    @property
    def durable_offset(self) -> int:
        """Records before this offset survive a power cut."""
        return self._log.durable

    @property
    def segment_bytes(self) -> int:
        """The size of a log file. Existing files keep theirs."""
        return self._log.segment_bytes

    @property
    def record_bytes_max(self) -> int:
        """The largest record that fits into a log file."""
        return self._log.segment_bytes - BLANK_BYTES

    @property
    def last_segment_offset(self) -> int:
        """The first offset of the log file that is being written: a new replica starts there."""
        return max(self._log.end - self._log.end % self._log.segment_bytes, self._log.begin)

    @property
    def exceeds_size_limit(self) -> bool:
        """Whether the log is larger than `retention_bytes`: `delete_expired` should run."""
        return exceeds_limit(self._log, self.options)

    def append(self, drafts: Sequence[Draft | DraftBatch]) -> list[AppendResult]:
        """Store a batch of messages, all of it or nothing.

        On return it can be read; with sync flush after the next `flush`.

        Raises:
            UsageError: a message cannot be stored.
            UnsavedTopicError: see `save_topics_first`.
            StoreFullError: the disk is full; try again when space is free.
            StoreError: the disk failed.
            ClosedError: the store is closed.
        """
        if self._closed:
            self._check_open()
        now_ms, monotonic_ms, begin = self._now_ms(), self._monotonic_ms(), self._log.end
        store_ms = self._last_ms = max(now_ms, self._last_ms)
        batch = self._encoder.encode(drafts, begin, store_ms, self.store_host)
        try:
            self._limit_pending(store_ms, keys=batch.keys is not None)
            self._checkpointer.claim(batch.queues)
            self._log.write(batch.chunks)
        except StoreError:
            for queue in batch.queues:
                queue.new_entries.clear()
            raise
        self._checkpointer.commit(batch.end, store_ms, batch.queues, batch.keys)
        self.clock_history.note(begin, monotonic_ms, now_ms, store_ms)
        if batch.end >= self._check_size_at:
            self._limit_size()
        return batch.results

    def append_raw(self, offset: int, data: bytes) -> tuple[list[Draft], list[AppendResult]]:
        """Append bytes of a master's log; a replica receives messages this way.

        An empty store may start where any file of the master's log starts.

        Args:
            offset: the offset of the bytes in both logs, the end of this one.
            data: whole records and blanks (`coherer._store.replica.whole_bytes`).

        Returns the messages, without their bodies, and where they are.

        Raises:
            UsageError: the bytes do not follow the end of this log.
            DamagedStoreError: the bytes are not valid for a log with files of this size.
            StoreError: the disk failed or is full; nothing was stored.
            ClosedError: the store is closed.
        """
        self._check_open()
        if self._replica is None:
            self._replica = Replica(
                self._log,
                self._queue_files,
                self._index,
                self._now_ms(),
                self._checkpointer,
            )
        self._limit_pending(self._now_ms(), keys=False)
        end, store_ms, queues, drafts, results = self._replica.append(offset, data)
        self._last_ms = max(self._last_ms, store_ms)
        self.clock_history.note_copy(end, self._monotonic_ms())
        self._checkpointer.commit(end, self._last_ms, queues)
        if end >= self._check_size_at:
            self._limit_size()
        return drafts, results

    def _limit_pending(self, now_ms: int, *, keys: bool) -> None:
        """Write entries and keys that wait in memory if there are too many.

        Raises:
            StoreError: they cannot be written; accept no more messages.
        """
        pending, index = self._queue_files.pending, self._index
        if pending.is_full:
            with translate_os_errors("write the consume queues"):
                pending.write_if_full()
        if keys and index is not None and index.is_full:
            with translate_os_errors("write the key index"):
                index.write_if_full(now_ms)

    def _limit_size(self) -> None:
        """Delete old files if the log has grown half a file beyond its size limit.

        This keeps the limit if `delete_expired` was not called in time.
        """
        limit, half = self.options.retention_bytes, self._log.segment_bytes // 2
        if limit is None:
            self._check_size_at = sys.maxsize
            return
        if self._log.end - self._log.begin > limit + half:
            with suppress(StoreError):  # the next `delete_expired` reports it
                # Only the size matters here: if the clock was set forward, all seems to be old.
                self.delete_expired(min(self._now_ms(), self._monotonic_ms()))
        # If a file could not be deleted, the next attempt comes half a file later.
        self._check_size_at = max(self._log.begin + limit, self._log.end) + half

    def flush(self) -> int:
        """Sync the log; return the offset up to which it is durable. For any thread.

        One sync serves all callers: it covers everything that was appended before the call.

        Raises:
            StoreError: the disk failed. The store accepts no more messages until it is reopened.
        """
        return self._checkpointer.flush_log()

    def flush_queues(self) -> None:
        """Sync log, queues and index and write the checkpoint. For any thread.

        Raises:
            StoreFullError: keys cannot be written because the disk is full (they stay in memory),
                or too many files are open.
            StoreError: the disk failed.
            ClosedError: the store is closed.
        """
        self._check_open()
        self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        unsaved = self._unsaved_cuts
        if unsaved is not None:  # later starts replay nothing before the checkpoint
            self._checkpointer.flush_log()
            self._config.save(power_cuts.FILE, unsaved)
            self._unsaved_cuts = None
        self._checkpointer.flush()
        self._repairs.end()

    def tick(self) -> None:
        """Run the flushes that are due. For the thread beside the writer.

        Raises:
            StoreError: see `flush` and `flush_queues`.
            ClosedError: the store is closed.
        """
        self._check_open()
        now_ms = self._monotonic_ms()
        try:
            self._checkpointer.extend_if_low()
            if self._queue_flush_is_due(now_ms):
                self.flush_queues()
                # With a hundred thousand queues this takes seconds; then it runs less often.
                took_ms = self._monotonic_ms() - now_ms
                self._pause_ms = (now_ms, now_ms + _PAUSE_FACTOR * took_ms)
            elif self.options.flush == "async" and self._flush_timer.is_due(now_ms):
                self.flush()
        finally:  # a full disk must not keep memory and files in use
            self._release(now_ms)

    def _release(self, now_ms: int) -> None:
        if self._index is not None:
            with suppress(OSError):  # the keys stay in memory; `flush_queues` reports it
                self._index.write_if_many(self._now_ms())
        if self._unmap_timer.is_due(now_ms):
            self._log.release_memory()
        if self._idle_timer.is_due(now_ms):
            self._queue_files.handles.close_idle()
        self._queue_files.handles.shrink()

    def _queue_flush_is_due(self, now_ms: int) -> bool:
        pending = self._queue_files.pending
        if pending.is_half_full or pending.is_long_to_replay:
            return True
        if self._pause_ms[0] <= now_ms < self._pause_ms[1]:
            return False
        return self._queue_flush_timer.is_due(now_ms) and self._checkpointer.is_behind

    def verify(self) -> list[DamagedRange]:
        """Read the whole log; return its damaged ranges.

        Later reads skip them.
        """
        with translate_os_errors("read the log"):
            found = verify(self._log)
        self._log.damage = tuple({*self._log.damage, *found})
        return found

    def delete_expired(self, now_ms: int) -> int:
        """Delete the oldest log files by the retention options; return how many.

        The file that is being written stays, and so do files with records that are still needed
        (`holds`). The log is synced first, because it may hold copies of records that are deleted.
        Queue entries in memory are written and synced, because nothing could rebuild them. If that
        is impossible (the disk is full), the file is kept: recovery would number the queues wrongly
        without it. If this thread must not wait for the disk, call `flush_queues` in the other
        thread before.

        Raises:
            StoreFullError: a file was kept because queue entries could not be written.
            StoreError: a file could not be deleted; the next call tries again.
        """
        deleted = 0
        with translate_os_errors("delete old files"):
            try:
                while self.can_delete(now_ms):
                    self.flush()
                    if self._log.segments[1].begin > (self._checkpointer.checkpoint.offset or 0):
                        self._flush_before_deletion()
                    self._log.drop_first()
                    deleted += 1
            finally:
                self._trim()
        return deleted

    def _trim(self) -> None:
        """Drop the entries and keys of messages that were deleted, also after an error."""
        begin, errors = self._log.begin, list[OSError]()
        if begin == self._trimmed_to:
            return
        for queue in self._queues.values():
            try:
                queue.trim(begin)
            except OSError as error:  # the other queues begin later, too
                errors.append(error)
        if self._index is not None:
            self._index.trim(begin)
        if errors:
            raise errors[0]
        self._trimmed_to = begin

    def _flush_before_deletion(self) -> None:
        try:
            self.flush_queues()
        except StoreFullError as error:
            raise StoreFullError(
                "Old log files are kept, because the positions of their messages cannot be "
                f"written: {error.text}",
                hint="Free space on the disk; the files are then deleted automatically.",
            ) from error

    def can_delete(self, now_ms: int) -> bool:
        """Whether the oldest log file has expired, and nobody needs a record of it."""
        log, holds = self._log, self.holds
        holds.held_bytes, holds.held_by = 0, ""
        if not first_file_is_expired(log, self.options, self._last_ms, now_ms, self._age()):
            return False
        holds.held_by = holds.holder_before(log.segments[1].begin)
        if holds.held_by:
            to = self.next_to_go(now_ms)
            holds.held_bytes = to - log.begin
        return not holds.held_by

    def next_to_go(self, now_ms: int) -> int:
        """Return the log offset before which all files will be deleted soon.

        A holder that needs a record before this offset must store it again now.
        """
        return next_to_go(self._log, self.options, self._last_ms, now_ms, self._age())

    def _age(self) -> Age:
        return partial(self.clock_history.age_ms, now_ms=self._monotonic_ms())

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic. Its records are deleted with the log files later.

        Raises:
            StoreError: the disk failed.
        """
        if not self._queue_files.numbers(topic):
            return
        self.flush_queues()  # recovery starts after the topic's records and cannot revive it
        self._encoder.forget_queues()
        self._replica = None
        with translate_os_errors(f"delete topic {topic}"):
            note_removal(self._files, self.directory)
            self._register.forget(topic)
            self._queue_files.remove(topic)
            note_removal(self._files, self.directory)

    def read_config(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Parse `config/<name>`, or its `.bak` if that fails; None if neither exists. Any thread.

        Raises:
            DamagedStoreError: the content cannot be parsed.
        """
        return self._config.read(name, parse)

    def save_config(self, name: str, data: bytes) -> None:
        """Replace `config/<name>` atomically and durably; keep the old one as `.bak`. Any thread.

        The log is flushed first, so that `data` may refer to any message that was stored before.

        Raises:
            StoreFullError: the disk is full; the old content stays.
            StoreError: the disk failed.
        """
        self.flush()
        self._config.save(name, data)

    def close(self) -> None:
        """Sync everything and unlock the directory. A second call does nothing.

        On a full disk queue entries and keys cannot be written. `close_error` then says why; the
        messages are in the log, which is synced, and the next `open` recovers.

        Raises:
            StoreError: the disk failed; the next `open` will recover.
        """
        if self._closed:
            return
        self._closed = True
        self._checkpointer.end_reserve()
        try:
            try:
                self._drop_last_gaps()
                self._checkpointer.save_gap()
                self._log.cut_rest()
                self._write_checkpoint()
            except StoreFullError as error:
                self.close_error = error.text
                self._log.flush()
            else:
                with suppress(OSError):  # without the inventory the next open compares less
                    self._save_inventory()
                with translate_os_errors("close the store"):
                    self._files.remove(self.directory / "abort")
                    self._files.sync_directory(self.directory)
        finally:
            with ExitStack() as stack:  # the directory is unlocked in any case
                stack.callback(self._files.unlock, self.directory / "lock", self._lock_handle)
                self._close_files()

    def _close_files(self) -> None:
        with translate_os_errors("close the files of the store"), ExitStack() as stack:
            if self._index is not None:
                stack.callback(self._index.close)
            stack.callback(self._log.close)
            stack.callback(self._queue_files.close)

    def _drop_last_gaps(self) -> None:
        """Remove gaps without a message after them; the checkpoint still knows them."""
        for queue in self._reached:
            end = queue.before_gap(queue.next)
            if end < queue.next:
                # Java's broker would take a gap's entry for a message that ends at 2 GiB of the
                # log, and add no entries of messages before that.
                with translate_os_errors("write the consume queues"):
                    queue.truncate(end)

    def _save_inventory(self) -> None:
        known, index = self._inventory, self._index
        index_files = [] if index is None else index.contents([] if known is None else known.index)
        inventory.save(
            self._files,
            self.directory / inventory.FILE,
            self._checkpointer.checkpoint,
            self._queue_files,
            index_files,
            known,
        )
