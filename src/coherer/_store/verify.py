"""Checks a closed directory as a whole, and changes nothing.

Opening a store compares what can be compared quickly. Here every record of the log is read and
compared with its queue, every queue with the log, and all queues and index files with what was
there when the store was closed (`inventory`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from coherer._record.layout import PREPARED, ROLLED_BACK, RecordSummary
from coherer._store import inventory
from coherer._store.checkpoint import CheckpointFile
from coherer._store.commit_log import CommitLog, Scanner
from coherer._store.consume_queue import BLANK_SIZE, ConsumeQueue, QueueDirectory
from coherer._store.files import OsFiles, translate_os_errors
from coherer._store.index import KeyIndex
from coherer._store.model import DamagedRange, StoreOptions
from coherer._store.recovery import Replayer, find_gaps
from coherer.errors import StoreError, UsageError

_ALL_BYTES = 1 << 62


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it should be.

    Args:
        part: where it is: the log, a queue, the key index, or a file of `config/`.
        where: which piece of it.
        what: what is wrong.
        messages: how many messages it concerns; None where nobody knows.
        repairable: it can be made again from what is there; otherwise it is lost.
    """

    part: Literal["log", "queue", "index", "config"]
    where: str
    what: str
    messages: int | None = None
    repairable: bool = True


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Args:
        closed: whether the last user closed the store; otherwise the next start recovers, and what
            lies behind the checkpoint is not compared with queues.
        log_begin: the first offset of the log.
        log_end: the offset behind its last record.
        records: how many valid records the log holds.
        queues: how many queues there are.
        problems: what is wrong.
    """

    closed: bool
    log_begin: int
    log_end: int
    records: int
    queues: int
    problems: list[Problem]


class ReadOnlyFiles(OsFiles):
    """Files that are not changed."""

    def open(self, path: Path, *, create: bool = False) -> int:  # noqa: ARG002 - nothing is made
        """See `Files.open`; nothing is made."""
        return super().open(path)

    def resize(self, handle: int, size: int) -> None:
        """Leave a file as it is: what is missing cannot be read."""

    def write(self, handle: int, data: bytes, offset: int) -> None:  # noqa: ARG002 - see there
        """Refuse.

        Raises:
            StoreError: always.
        """
        raise StoreError("A directory that is checked is not changed.")


def verify_store(directory: Path) -> VerifyReport:
    """Check log, queues and index of a closed store. Nothing is changed.

    Raises:
        UsageError: there is no store in the directory.
        StoreError: another process uses it, or the disk failed.
        DamagedStoreError: the files of the log do not fit together.
    """
    if not (directory / "commitlog").is_dir():
        raise UsageError(
            f"There is no store in {directory}: it has no directory commitlog.",
            hint="Give the directory that the node was started with (--directory).",
        )
    files = OsFiles()
    with translate_os_errors(f"open {directory}"):
        handle = files.lock(directory / "lock")
    try:
        with translate_os_errors(f"read {directory}"):
            return _Check(directory).run()
    finally:
        files.unlock(directory / "lock", handle)


class _Check:
    def __init__(self, directory: Path) -> None:
        options = StoreOptions()
        files = self._files = ReadOnlyFiles()
        self._closed = not (directory / "abort").exists()
        self._checkpoint = CheckpointFile(files, directory / "checkpoint").load()
        self._log = CommitLog(files, directory / "commitlog", options.segment_bytes)
        self._queues = QueueDirectory(
            files, directory / "consumequeue", lambda: options.open_files,
            options.queue_segment_bytes, options.delay_levels_ms,
        )  # fmt: skip
        self._index = KeyIndex(
            files, directory / "index", options.index_slots, options.index_entries
        )
        known = inventory.load(files, directory / inventory.FILE, self._checkpoint)
        self._known = known if self._closed else None
        self._wrong: dict[ConsumeQueue, tuple[int, str]] = {}
        self._ends: dict[ConsumeQueue, int] = {}
        self._problems: list[Problem] = []

    def run(self) -> VerifyReport:
        known, queues = self._known, self._queues
        comparison = inventory.Comparison(known, _ALL_BYTES)
        queues.load(None if known is None else known.file_bytes, comparison.look)
        self._wrong = comparison.flaws(queues)
        end, records = self._walk()
        for queue in queues.queues.values():
            seen = self._ends.get(queue, queue.max)
            if queue not in self._wrong and self._closed and queue.max > seen:
                self._wrong[queue] = seen, "it has entries that the log does not know"
        self._problems += [
            Problem(
                part="queue",
                where=f"{queue.topic}/{queue.queue_id}, from entry {first}",
                what=reason,
                messages=max(queue.max, self._ends.get(queue, 0)) - first,
            )
            for queue, (first, reason) in self._wrong.items()
        ]
        if known is not None:
            self._index.load(self._checkpoint, clean=True)
            if not self._index.is_whole(known.index):
                what = "it is not what it was when the store was closed"
                self._problems.append(Problem(part="index", where="index", what=what))
            self._index.close()
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

    def _walk(self) -> tuple[int, int]:
        offset = self._checkpoint.offset
        vouched = self._log.end if offset is None else offset
        compared = _ALL_BYTES if self._closed else vouched
        scanner = Scanner(self._log, self._log.begin, vouched)
        replayer, records = Replayer(self._queues, None, 0), 0
        for record in scanner:
            records += 1
            if record.physical_offset < compared:
                self._compare(replayer, record)
        damage = [*scanner.damage]
        damage += [gap for gap in find_gaps(self._log) if not any(_holds(d, gap) for d in damage)]
        self._problems += [
            Problem(
                part="log",
                where=f"bytes {piece.begin} to {piece.end}",
                what=piece.reason,
                messages=self._messages_in(piece),
                repairable=False,
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
            first, reason = self._wrong.get(queue, (record.queue_offset, "it does not fit the log"))
            self._wrong[queue] = min(first, record.queue_offset), reason

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


def _holds(outer: DamagedRange, inner: DamagedRange) -> bool:
    return outer.begin <= inner.begin and inner.end <= outer.end
