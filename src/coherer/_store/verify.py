"""Verifies a closed store completely, and changes nothing.

Opening a store compares what can be compared quickly. Here every record of the log is read and
compared with its queue, every queue with the log, and all queues and index files with the inventory
of the last close.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from coherer._record.layout import PREPARED, ROLLED_BACK, RecordSummary
from coherer._store import inventory
from coherer._store.checkpoint import CheckpointFile
from coherer._store.commit_log import CommitLog
from coherer._store.config_files import ConfigFiles
from coherer._store.consume_queue import BLANK_SIZE, ConsumeQueue, QueueDirectory
from coherer._store.files import OsFiles, ReadOnlyFiles, translate_os_errors
from coherer._store.index import IndexFileContent, KeyIndex
from coherer._store.model import DamagedRange, StoreOptions
from coherer._store.recovery import Replayer, find_gaps, is_covered
from coherer._store.repairs import Damaged, Repairs, damaged_by
from coherer._store.scanner import Scanner
from coherer.errors import UsageError

_ALL_BYTES = 1 << 62

REBUILT: Final = "will be rebuilt at the next start"
LOST: Final = "lost"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem that was found.

    Args:
        part: the log, a queue, the key index, or a file of `config/`.
        where: which part of it.
        what: what is wrong.
        messages: how many messages are affected; None if that is unknown.
        repairable: whether it can be rebuilt from other files; otherwise data is lost.
        outcome: what the next start does about it.
    """

    part: Literal["log", "queue", "index", "config"]
    where: str
    what: str
    messages: int | None = None
    repairable: bool = True
    outcome: str = REBUILT


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `verify_store`.

    Args:
        closed: whether the store was closed. If not, the next open recovers, and records after the
            checkpoint were not compared with queues.
        log_begin: the first offset of the log.
        log_end: the offset after the last record.
        records: the number of valid records in the log.
        queues: the number of queues.
        problems: the problems that were found.
    """

    closed: bool
    log_begin: int
    log_end: int
    records: int
    queues: int
    problems: list[Problem]


def verify_store(directory: Path) -> VerifyReport:
    """Verify log, queues and index of a closed store. Nothing is changed.

    Raises:
        UsageError: there is no store in the directory.
        StoreError: another process uses it, or the disk failed.
        DamagedStoreError: the files of the log do not fit together.
    """
    if not (directory / "commitlog").is_dir():
        raise UsageError(
            f"There is no store in {directory}: it has no directory commitlog.",
            hint="Use the directory that the node was started with (--directory).",
        )
    files = OsFiles()
    with translate_os_errors(f"open {directory}"):
        handle = files.lock(directory / "lock")
    try:
        with translate_os_errors(f"read {directory}"):
            return _Verification(directory).run()
    finally:
        files.unlock(directory / "lock", handle)


class _Verification:
    def __init__(self, directory: Path) -> None:
        options = StoreOptions()
        files = self._files = ReadOnlyFiles()
        self._closed = not (directory / "abort").exists()
        self._checkpoint = CheckpointFile(files, directory / "checkpoint").load()
        self._log = CommitLog(files, directory / "commitlog", options.segment_bytes)
        self._queues = QueueDirectory(
            files, directory / "consumequeue", options, lambda: options.open_files
        )
        self._index = KeyIndex(
            files, directory / "index", options.index_slots, options.index_entries
        )
        known = inventory.load(files, directory / inventory.FILE, self._checkpoint)
        self._known = known if self._closed else None
        self._register = inventory.Register(files, directory / inventory.REGISTER_FILE)
        self._damaged: Damaged = {}
        self._unfinished = Repairs(ConfigFiles(files, directory / "config")).load()
        self._ends: dict[ConsumeQueue, int] = {}
        self._problems: list[Problem] = []

    def run(self) -> VerifyReport:
        known, queues = self._known, self._queues
        covered = self._checkpoint.offset
        registered = {} if covered is None else self._register.load(covered, changing=False)
        comparison = inventory.Comparison(
            known, _ALL_BYTES, registered=registered, log_begin=self._log.begin
        )
        queues.load(comparison.file_bytes, comparison.check)
        unfinished = self._unfinished
        self._damaged = damaged_by(unfinished, queues, comparison.damaged_queues(queues))
        end, records = self._scan()
        for queue in queues.queues.values():
            seen = self._ends.get(queue, queue.max)
            if queue not in self._damaged and self._closed and queue.max > seen:
                self._damaged[queue] = seen, "it has entries that are not in the log"
        self._problems += [
            Problem(
                part="queue",
                where=f"{queue.topic}/{queue.queue_id}, from entry {first}",
                what=reason,
                messages=max(queue.max - first, self._ends.get(queue, 0) - first, 0),
            )
            for queue, (first, reason) in self._damaged.items()
        ]
        if unfinished.everything:
            what = "a start did not finish rebuilding all queues"
            self._problems.append(Problem(part="queue", where="consumequeue", what=what))
        if unfinished.index:
            what = "a start did not finish rebuilding it"
            self._problems.append(Problem(part="index", where="index", what=what))
        else:
            self._verify_index([] if known is None else known.index)
        queues.close()
        self._log.close()
        return VerifyReport(
            closed=self._closed,
            log_begin=self._log.begin,
            log_end=end,
            records=records,
            queues=len([queue for queue in queues.queues.values() if queue.max]),
            problems=self._problems,
        )

    def _verify_index(self, known: Sequence[IndexFileContent]) -> None:
        index, begin = self._index, self._log.begin
        index.load(self._checkpoint, clean=self._closed, log_begin=begin, changing=False)
        what = "" if index.matches(known) else "it has changed since the store was closed"
        if index.is_lost:
            what = "a file is missing, or its size or header is wrong"
        if what:
            self._problems.append(Problem(part="index", where="index", what=what))
        index.close()

    def _scan(self) -> tuple[int, int]:
        offset = self._checkpoint.offset
        trusted = self._log.end if offset is None else offset
        compare_to = _ALL_BYTES if self._closed else trusted
        scanner = Scanner(self._log, self._log.begin, trusted)
        replayer, records = Replayer(self._queues, None, 0), 0
        for record in scanner:
            records += 1
            if record.physical_offset < compare_to:
                self._compare(replayer, record)
        damage = [*scanner.damage]
        damage += [gap for gap in find_gaps(self._log) if not is_covered(gap, damage)]
        self._problems += [
            Problem(
                part="log",
                where=f"bytes {piece.begin} to {piece.end}",
                what=piece.reason,
                messages=self._messages_in(piece),
                repairable=False,
                outcome=LOST,
            )
            for piece in damage
        ]
        return scanner.end, records

    def _compare(self, replayer: Replayer, record: RecordSummary) -> None:
        if record.sys_flag & ROLLED_BACK in (PREPARED, ROLLED_BACK):
            return
        queue = replayer.queue_of(record)
        wrong = replayer.check(record)
        if queue is not None:
            self._ends[queue] = record.queue_offset + 1
        if wrong and queue is not None:
            first, reason = self._damaged.get(
                queue, (record.queue_offset, "it does not match the log")
            )
            self._damaged[queue] = min(first, record.queue_offset), reason

    def _messages_in(self, piece: DamagedRange) -> int:
        count = 0
        for queue in self._queues.queues.values():
            begin = queue.first_where(lambda _, at, size: size <= 0 or at >= piece.begin)
            for number in range(begin, queue.max):
                entry = queue.entry(number)
                if entry is None or (entry[1] != BLANK_SIZE and entry[0] >= piece.end):
                    break
                count += 1
        return count
