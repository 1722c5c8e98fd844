"""Moves the checkpoint: makes batches visible, and syncs them.

The writer publishes what it wrote (`commit`); another thread may flush at any time (`flush`, or
`flush_log` for the log alone). The checkpoint covers an offset only when log, queues and index up
to it are synced. So a flush goes in this order: note the offset, write the queue entries and keys
that are only in memory, sync everything, write the checkpoint.

With sync flush readers see a batch only after a flush. A reader may store the offset of what it
read, and after a power cut that offset must not belong to another message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from coherer._record.layout import RECORD_BYTES_MIN
from coherer._store.checkpoint import Checkpoint, CheckpointFile
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import GAP_ENTRY, ConsumeQueue, PendingEntries, publish
from coherer._store.files import (
    Files,
    UnsyncedFiles,
    is_out_of_handles,
    store_error,
    translate_os_errors,
)
from coherer._store.index import KeyIndex
from coherer._store.index_file import IndexKeys
from coherer._store.inventory import Register
from coherer._store.offset_reserve import LEAD_MIN, Gap, Reserve, with_gap
from coherer.errors import StoreError

DAMAGED_MAX: Final = 10_000
"""The longest gap, in entries, for damage of the log. Each queue writes it before its next message:
for a missing file of 1 GiB that would be 200 MB in each queue."""


class Checkpointer:
    """Makes batches visible, syncs them, and writes the checkpoint.

    Args:
        now_ms: the time of day; a new index file is named after it.
        register: the files of queues that the checkpoint covers.
        show_durable: whether readers see durable messages only.
        replica: whether the log is a copy of a master's.

    Attributes:
        checkpoint: the last one that was written.
        gaps: the gaps in queue offsets that power cuts and promotions made.
    """

    def __init__(
        self,
        files: Files,
        path: Path,
        log: CommitLog,
        index: KeyIndex | None,
        pending: PendingEntries,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        *,
        register: Register,
        show_durable: bool = False,
        replica: bool = False,
    ) -> None:
        self._files = files
        self._register = register
        self._file = CheckpointFile(files, path)
        self._directory = path.parent
        self._log = log
        self._index = index
        self._now_ms = now_ms
        self._pending = pending
        self._guard = pending.guard
        # End and store time of the last record with a queue entry, and the growth of queues there.
        self._published = (0, 0, 0)
        self._show = not show_durable
        # By batch: its end, and the ends of its queues.
        self._hidden: deque[tuple[int, list[tuple[ConsumeQueue, int]]]] = deque()
        self._flush_guard = threading.Lock()
        self._save_guard = threading.Lock()  # taken after the other one, for the file alone
        self._monotonic_ms = monotonic_ms
        self._is_replica = replica
        self._reserve = Reserve() if replica or not show_durable else None
        self._failed = ""
        self._has_new_gap = False  # no checkpoint has it yet
        # The boot before a power cut, until the checkpoint has passed what it tore: the next start
        # must see the power cut, too.
        self._lost_boot: bytes | None = None
        self.checkpoint = self._file.load()
        self.gaps = self.checkpoint.gaps

    @property
    def is_behind(self) -> bool:
        """Whether the checkpoint does not cover everything that was written."""
        return self._published[0] != self.checkpoint.offset

    @property
    def has_changed(self) -> bool:
        """Whether this start has found a gap, or is the first one as a replica or as a master."""
        found = self.checkpoint
        return (self.gaps, self._is_replica) != (found.gaps, found.replica)

    def start_at(
        self, end: int, store_ms: int, *, lost_power: bool, unknown_bytes: int = 0
    ) -> None:
        """Start after recovery.

        Args:
            lost_power: whether messages that readers have seen may be lost.
            unknown_bytes: how much of the log is damaged that readers may have seen, and no queue
                knows any more.
        """
        found = self.checkpoint
        if lost_power:
            self._lost_boot = found.boot
        entries = found.reserve if lost_power else 0
        if found.replica:  # its master may be ahead of its reserve
            entries = 0 if self._is_replica else found.reserve + LEAD_MIN
        if entries and found.offset is not None:
            self.gaps = with_gap(self.gaps, Gap(found.offset, end, entries))
        elif unknown_bytes and not self._is_replica:
            entries = min(-(-unknown_bytes // RECORD_BYTES_MIN), DAMAGED_MAX)
            gap = Gap(end, end, entries)
            if gap not in self.gaps:  # the last start may have cut nothing off
                self.gaps = with_gap(self.gaps, gap)
                self._has_new_gap = True
        growth = 0
        if self._reserve is not None and not lost_power:
            # What was replayed counts, too, until a checkpoint covers it.
            growth = self._reserve.growth = self._reserve.limit = found.reserve
        self._published = (end, store_ms, growth)

    def save_gap(self) -> None:
        """Write down the gap that damage has left, if there is a new one.

        Raises:
            StoreError: it could not be written.
        """
        if self._has_new_gap:
            self._extend(0)

    def claim(self, queues: Sequence[ConsumeQueue]) -> None:
        """Let queues grow by their new entries, before a batch is written. Only for the writer.

        Raises:
            StoreError: the reserve of queue offsets, or a gap, could not be written.
        """
        self.save_gap()
        reserve = self._reserve
        if reserve is None or not queues:
            return
        entries = len(queues[0].new_entries)
        if len(queues) > 1:
            entries = max([len(queue.new_entries) for queue in queues])
        skipped = 0
        if self._is_replica:
            skipped = max([queue.new_entries.count(GAP_ENTRY) for queue in queues])
        while True:
            with self._guard:
                if reserve.claim(entries, skipped):
                    return
            self._extend(entries)

    def extend_if_low(self) -> None:
        """Extend the reserve of queue offsets early, so that the writer does not have to.

        Raises:
            StoreError: it could not be extended.
        """
        if self._reserve is not None and self._reserve.is_low:
            self._extend(0)

    def _extend(self, wanted: int) -> None:
        if self.checkpoint.offset is None and self._published[0]:
            self.flush()  # a Java broker has used the directory
        with self._save_guard:
            reserve = self._reserve
            covered = 0 if reserve is None else reserve.covered
            checkpoint = replace(self.checkpoint, offset=self.checkpoint.offset or 0)
            self._save(checkpoint, covered, wanted, boot=self._lost_boot)

    def _save(
        self, checkpoint: Checkpoint, covered: int, wanted: int = 0, *, boot: bytes | None = None
    ) -> None:
        """Write the checkpoint with a new reserve. The caller holds `_save_guard`.

        Args:
            boot: what it says about the machine; None for the present boot.
        """
        reserve, limit = self._reserve, covered
        if reserve is not None:
            with self._guard:
                limit = reserve.plan(self._monotonic_ms(), wanted)
        with translate_os_errors("write the checkpoint"):
            boot = self._files.boot_id() if boot is None else boot
            checkpoint = replace(
                checkpoint,
                reserve=limit - covered,
                boot=boot,
                gaps=self.gaps,
                replica=self._is_replica,
            )
            self._file.save(checkpoint)
        self.checkpoint = checkpoint
        self._has_new_gap = False
        if reserve is not None:
            with self._guard:
                reserve.limit, reserve.covered = limit, covered

    def commit(
        self,
        end: int,
        store_ms: int,
        queues: Collection[ConsumeQueue],
        keys: IndexKeys | None = None,
    ) -> None:
        """Make records up to `end` part of the log; show them now or when they are durable.

        Args:
            keys: new keys, unless the index has them already.
        """
        with self._guard:
            growth = 0 if self._reserve is None else self._reserve.growth
            publish(queues, self._pending, show=self._show)
            self._published = (end, store_ms, growth)
            if keys is not None and self._index is not None:
                self._index.add(keys)
            self._log.commit(end, store_ms, show=self._show)
            if not self._show:
                self._hidden.append((end, [(queue, queue.next) for queue in queues]))

    def flush_log(self) -> int:
        """Sync the log, and show records that became durable; return the durable offset.

        For any thread.

        Raises:
            StoreError: see `CommitLog.flush`.
        """
        durable = self._log.flush()
        if not self._show:
            self._show_durable(durable)
        return durable

    def _show_durable(self, durable: int) -> None:
        hidden = self._hidden
        with self._guard:
            while hidden and hidden[0][0] <= durable:
                end, queues = hidden.popleft()
                for queue, count in queues:
                    queue.max = min(count, queue.next)
                self._log.show(end)

    def flush(self) -> None:
        """Sync log, queues and index and write the checkpoint. For any thread.

        Raises:
            StoreFullError: queue entries or keys could not be written because the disk is full
                (they stay in memory), or too many files are open.
            StoreError: the disk failed.
        """
        with self._flush_guard:
            if self._failed:
                raise StoreError(self._failed, hint="Restart the node.")
            if self._index is not None:
                with translate_os_errors("write the key index"):
                    self._index.write(self._now_ms())  # most keys, while the writer continues
            (offset, queues_ms, covered), indexed = self._write()
            unsynced = self._pending.take_unsynced()
            try:
                self.flush_log()
                self._sync(unsynced)
                with translate_os_errors("write the register of queues"):
                    self._register.add(unsynced.named)
            except StoreError:
                self._pending.restore_unsynced(unsynced)
                raise
            new = replace(indexed, log_ms=self._log.durable_ms, queues_ms=queues_ms, offset=offset)
            with self._save_guard:
                self._save(new, covered)
                self._lost_boot = None

    def end_reserve(self) -> None:
        """Reserve nothing from the next flush on, because no message follows.

        A replica still does: messages may follow at its master.
        """
        if not self._is_replica:
            self._reserve = None

    def _write(self) -> tuple[tuple[int, int, int], Checkpoint]:
        """Write queue entries and keys; return what covers them of the log and of the index."""
        published, indexed = self._published, Checkpoint(index_ms=self.checkpoint.index_ms)

        def mark() -> None:
            nonlocal published, indexed
            if self._index is not None:
                with translate_os_errors("write the key index"):
                    self._index.write(self._now_ms())
                indexed = self._index.cover(Checkpoint())
            published = self._published

        with translate_os_errors("write the consume queues"):
            self._pending.write(mark)
        return published, indexed

    def _sync(self, unsynced: UnsyncedFiles) -> None:
        try:
            unsynced.sync(self._files, self._directory)
            if self._index is not None:
                self._index.sync()
        except OSError as error:
            if is_out_of_handles(error):
                raise store_error(error, "sync queues and index") from error
            self._failed = f"Queues or index could not be synced: {error}."
            raise StoreError(self._failed) from error
