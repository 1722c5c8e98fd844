"""Planted bugs of the store, of the disk, and of what is written about messages."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from coherer._record.layout import RecordSummary
from coherer._rules.common.offsets import OffsetTable, Position
from coherer._server.core.appending import Appender
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._store import offset_reserve, recovery
from coherer._store.checkpointer import Checkpointer
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import ENTRY_BYTES, ConsumeQueue
from coherer._store.files import UnsyncedFiles
from coherer._store.recovery import Replayer
from coherer.errors import StoreError
from tests.simulation.machines import Disk
from tests.store.conftest import PowerFiles

Patch = pytest.MonkeyPatch


def does_not_sync(patch: Patch) -> None:
    """What is synced is not on the disk."""
    patch.setattr(PowerFiles, "sync", lambda files, handle: files.before())


def answers_before_the_disk(patch: Patch) -> None:
    """With sync flush a message is acknowledged before it is on the disk."""

    patch.setattr(Appender, "when_durable", lambda appender, end_offset, callback: callback(None))


def shows_before_the_disk(patch: Patch) -> None:
    """With sync flush consumers get a message before it is on the disk."""
    real = Checkpointer.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        real(self, *args, **{**options, "show_durable": False})
        self.end_reserve()

    patch.setattr(Checkpointer, "__init__", init)
    patch.setattr(
        Appender,
        "announce",
        lambda appender, drafts, appended, shown=None: appender._arrived(drafts, appended),
    )


def reserves_no_offsets(patch: Patch) -> None:
    """With async flush a power cut gives offsets that were seen to other messages."""
    patch.setattr(Checkpointer, "claim", lambda checkpointer, queues: None)
    patch.setattr(offset_reserve, "next_offset", lambda queue, gaps: queue.next)
    patch.setattr("coherer._store.store.next_offset", lambda queue, gaps: queue.next)


def heirs_leave_no_gap(patch: Patch) -> None:
    """A slave that becomes the master gives out offsets that consumers have seen there."""
    real = Checkpointer.start_at

    def start_at(
        self: Any, end: int, store_ms: int, *, lost_power: bool, unknown_bytes: int
    ) -> None:
        self.checkpoint = replace(self.checkpoint, replica=False)
        real(self, end, store_ms, lost_power=lost_power)

    patch.setattr(Checkpointer, "start_at", start_at)


def damage_leaves_its_offset(patch: Patch) -> None:
    """After a kill, the offset of a damaged message at the end of its queue means another one."""
    real = Checkpointer.start_at

    def start_at(self: Any, *args: Any, unknown_bytes: int, **options: Any) -> None:
        real(self, *args, **options)

    patch.setattr(Checkpointer, "start_at", start_at)


def damaged_times_count(patch: Patch) -> None:
    """A flipped bit in the time of one message makes all later ones years younger."""
    patch.setattr("coherer._store.recovery.starmap", lambda _, pairs: map(max, pairs))


def rebuilds_stop_at_damage(patch: Patch) -> None:
    """A queue that is rebuilt loses what lies behind a record with another offset."""
    real = Replayer.restore_entry

    def restore_entry(self: Replayer, record: RecordSummary) -> None:
        before = self.lost_bytes
        real(self, record)
        self.lost_bytes = before

    patch.setattr(Replayer, "restore_entry", restore_entry)


def slaves_cut_at_damage(patch: Patch) -> None:
    """A slave that was killed removes what follows a flipped bit, though its master may be lost."""

    def recover(*args: Any, lost_power: bool, **options: Any) -> Any:
        return recovery.recover(*args, lost_power=lost_power or args[6].replica, **options)

    patch.setattr("coherer._store.store.recover", recover)


def rebuilt_queues_forget_damage(patch: Patch) -> None:
    """A queue that is rebuilt does not know of the damage before the checkpoint."""
    patch.setattr(Replayer, "remember_lost", lambda replayer, queues: None)


def replicas_forget_gaps(patch: Patch) -> None:
    """A slave that becomes the master takes what follows its last master's gap for damage."""
    patch.setattr("coherer._store.recovery.with_copied", lambda gaps, *_: tuple(gaps))


def masters_keep_gaps_to_themselves(patch: Patch) -> None:
    """A slave learns a gap of its master with the next message only."""
    patch.setattr("coherer._server.rocketmq.ha.master.HaMaster.tell_gap", lambda _: None)


def forgets_names_of_a_killed_process(patch: Patch) -> None:
    """Names that a killed process made are never synced."""

    def opened(queue: Any, path: Any) -> int:
        if not queue._files.exists(path):
            queue._files.make_directory(queue._directory)
            topic = queue._directory.parent
            queue._pending.unsynced.directories |= {queue._directory, topic, topic.parent}
        handle: int = queue._handles.get(path, create=True)
        if queue._files.size(handle) < queue.file_bytes:
            queue._files.resize(handle, queue.file_bytes)
        return handle

    patch.setattr(ConsumeQueue, "_open", opened)


def syncs_no_queues(patch: Patch) -> None:
    """The checkpoint covers queue entries that are not on the disk."""
    patch.setattr(UnsyncedFiles, "sync", lambda unsynced, files, root: None)


def syncs_no_names(patch: Patch) -> None:
    """The names of new files are not on the disk."""
    patch.setattr(PowerFiles, "sync_directory", lambda files, path: None)


def replays_nothing(patch: Patch) -> None:
    """After a kill, messages behind the checkpoint are in the log, but in no queue."""
    patch.setattr(Replayer, "replay", lambda replayer, record: "")


def positions_run_ahead(patch: Patch) -> None:
    """A group stands one message behind the one that it has acknowledged last."""
    real = Position.move_to
    patch.setattr(Position, "move_to", lambda position, offset: real(position, offset + 1))


def positions_run_ahead_of_gets(patch: Patch) -> None:
    """A group stands one message behind the one that it has acknowledged last."""
    real = Position.commit

    def commit(position: Position, consumed: bool = True) -> int:
        if consumed and position.delta:
            position.delta += 1
        return real(position, consumed)

    patch.setattr(Position, "commit", commit)


def unconfirmed_counts_as_consumed(patch: Patch) -> None:
    """What a reader has not confirmed when it leaves counts as consumed."""
    real = OffsetTable.left

    def left(table: OffsetTable, group: str, topic: str, partition: int) -> None:
        if (position := table.find(group, topic, partition)) is not None:
            position.commit()
        real(table, group, topic, partition)

    patch.setattr(OffsetTable, "left", left)


def positions_are_never_saved(patch: Patch) -> None:
    """Positions are lost when a broker dies."""
    real = DeferredSaver.save

    def save(saver: DeferredSaver, name: str, *args: Any, **options: Any) -> None:
        if name != "consumerOffset.json":
            real(saver, name, *args, **options)

    patch.setattr(DeferredSaver, "save", save)


def topics_are_never_saved(patch: Patch) -> None:
    """Topics are lost when a broker dies."""
    real = DeferredSaver.save

    def save(saver: DeferredSaver, name: str, *args: Any, **options: Any) -> None:
        if name != "topics.json":
            real(saver, name, *args, **options)

    patch.setattr(DeferredSaver, "save", save)


def failed_syncs_are_ignored(patch: Patch) -> None:
    """A message is acknowledged although its sync failed."""
    real = CommitLog.flush

    def flush(log: CommitLog) -> int:
        try:
            return real(log)
        except StoreError:
            log._failed = ""
            return log.end

    patch.setattr(CommitLog, "flush", flush)


def dropped_pages_stay_dropped(patch: Patch) -> None:
    """What is only in the system's cache after a failed sync counts as synced after a start."""
    patch.setattr(CommitLog, "rewrite_from", lambda log, begin: None)


def failed_syncs_are_tried_again(patch: Patch) -> None:
    """After a failed sync the next one counts, although Linux writes nothing then."""
    real = CommitLog.flush

    def flush(log: CommitLog) -> int:
        log._failed = ""
        return real(log)

    patch.setattr(CommitLog, "flush", flush)


def full_disks_are_ignored(patch: Patch) -> None:
    """A message is acknowledged although there was no space for it."""
    real = PowerFiles.write

    def write(files: Any, handle: int, data: bytes, offset: int) -> None:
        if not getattr(files, "full", False):
            real(files, handle, data, offset)

    patch.setattr(Disk, "write", write)


def forgets_entries_that_come_meanwhile(patch: Patch) -> None:
    """Entries of a queue that are added while a thread writes it count as written."""
    real = ConsumeQueue.write

    def write(queue: ConsumeQueue) -> None:
        real(queue)
        first, rest = queue.tail
        queue.tail = first + len(rest) // ENTRY_BYTES, rest[:0]

    patch.setattr(ConsumeQueue, "write", write)


MUTANTS: Final = {
    "tubemq": (
        answers_before_the_disk,
        shows_before_the_disk,
        positions_run_ahead_of_gets,
        unconfirmed_counts_as_consumed,
        replays_nothing,
        syncs_no_names,
        full_disks_are_ignored,
        failed_syncs_are_tried_again,
    ),
    "rocketmq": (
        forgets_entries_that_come_meanwhile,
        does_not_sync,
        answers_before_the_disk,
        shows_before_the_disk,
        reserves_no_offsets,
        heirs_leave_no_gap,
        damage_leaves_its_offset,
        damaged_times_count,
        rebuilds_stop_at_damage,
        rebuilt_queues_forget_damage,
        replicas_forget_gaps,
        masters_keep_gaps_to_themselves,
        slaves_cut_at_damage,
        syncs_no_queues,
        positions_run_ahead,
        positions_are_never_saved,
        topics_are_never_saved,
        failed_syncs_are_ignored,
        dropped_pages_stay_dropped,
        forgets_names_of_a_killed_process,
    ),
}
