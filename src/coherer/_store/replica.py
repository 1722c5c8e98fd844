"""A replica: a byte-for-byte copy of a master's log, in the store of a slave.

Bytes of the master's log that follow the end of the replica are verified, written, and added to
queues and index. Files begin and end where the master's do, so both stores need the same file size.
A new replica may start at any file; its queues then begin with blanks.

If the master's queue offsets have a gap (it lost messages), the replica's queues have it, too
(`offset_reserve`).
Records that are older than the replica's queues are only in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from coherer._record.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, MAGIC, RecordSummary, examine
from coherer._store.checkpointer import Checkpointer
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import ConsumeQueue, QueueDirectory
from coherer._store.index import KeyIndex
from coherer._store.model import AppendResult, Draft
from coherer._store.recovery import Replayer, tag_and_keys
from coherer.errors import DamagedStoreError, StoreError, UsageError


def whole_bytes(data: bytes | bytearray | memoryview) -> int:
    """Return how many leading bytes of `data`, a part of a log, are whole records and blanks.

    Raises:
        DamagedStoreError: there is something else.

    >>> from coherer._record.layout import blank
    >>> whole_bytes(blank(12) + bytes(4) + blank(12))
    12
    """
    at = 0
    while len(data) - at >= BLANK_BYTES:
        size, magic = BLANK.unpack_from(data, at)
        if magic not in (MAGIC, BLANK_MAGIC) or size < BLANK_BYTES:
            raise DamagedStoreError(f"A record was expected, not the magic number {magic:#x}.")
        if at + size > len(data):
            break
        at += size
    return at


class Replicated(NamedTuple):
    """Messages that were written but are not visible yet.

    Attributes:
        end: the offset after the last record.
        store_ms: the latest store time.
        queues: the queues with new entries.
        drafts: the messages, without their bodies.
    """

    end: int
    store_ms: int
    queues: list[ConsumeQueue]
    drafts: list[Draft]
    results: list[AppendResult]


class Replica:
    """Appends bytes of a master's log.

    Args:
        now_ms: the time of day; a new index file is named after it.
        checkpointer: lets queues grow by their new entries, and keeps the gaps that are copied.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: QueueDirectory,
        index: KeyIndex | None,
        now_ms: int,
        checkpointer: Checkpointer,
    ) -> None:
        self._log = log
        self._queues = queues
        self._checkpointer = checkpointer
        self._replayer = Replayer(queues, index, now_ms, checkpointer.gaps, replica=True)

    def append(self, offset: int, data: bytes) -> Replicated:
        """Write whole records and blanks after the end of the log; they are not visible yet.

        Raises:
            UsageError: they do not follow the end of the log.
            DamagedStoreError: they are not valid records, or their files have another size.
            StoreError: the disk failed or is full; nothing was written.
        """
        if self._log.end == 0 and not self._log.segments:
            self._log.start_at(offset)
        before = self._log.end
        if offset != before:
            raise UsageError(f"The log ends at {before}; these bytes belong to {offset}.")
        records = list(self._records(offset, data))
        try:
            self._log.write(list(self._chunks(offset, data)))
            drafts = [draft for record in records if (draft := self._replay(record)) is not None]
            queues = self._replayer.take_touched()
            self._checkpointer.claim(queues)
        except (OSError, StoreError) as error:
            self._undo(before)
            if isinstance(error, OSError):
                raise StoreError(f"Could not store what the master sent: {error}.") from error
            raise
        self._checkpointer.gaps = self._replayer.gaps
        store_ms = max([record.store_ms for record in records], default=0)
        results = [
            AppendResult(record.queue_offset, record.physical_offset, record.size)
            for record in records
            if not record.is_hole
        ]
        return Replicated(offset + len(data), store_ms, queues, drafts, results)

    def _replay(self, record: RecordSummary) -> Draft | None:
        self._replayer.replay(record)
        if record.is_hole:
            return None
        code, keys = tag_and_keys(record.properties)
        topic = record.topic.decode("utf-8", "replace")
        return Draft(
            topic,
            record.queue_id,
            b"",
            record.properties,
            code,
            sys_flag=record.sys_flag,
            keys=keys,
        )

    def _records(self, offset: int, data: bytes) -> Iterator[RecordSummary]:
        view, at = memoryview(data), 0
        segment_bytes = self._log.segment_bytes
        while at < len(data):
            left = segment_bytes - (offset + at) % segment_bytes
            if len(data) - at < BLANK_BYTES:
                raise DamagedStoreError("A record is truncated.")
            size, magic = BLANK.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                if size != left or at + size > len(data):
                    raise DamagedStoreError(
                        f"The master's log file ends at {offset + at + size}, the replica's at "
                        f"{offset + at + left}.",
                        hint=f"Use files of {segment_bytes} bytes on both (`segment_bytes` of "
                        "Coherer, `mappedFileSizeCommitLog` of Java).",
                    )
                at += size
                continue
            record = examine(view, at)
            if isinstance(record, str):
                raise DamagedStoreError(f"There is no valid record at {offset + at}: {record}.")
            if record.physical_offset != offset + at or record.size > left - BLANK_BYTES:
                raise DamagedStoreError(
                    f"The record at {offset + at} has another offset ({record.physical_offset}) "
                    "or crosses the end of a log file."
                )
            yield record
            at += record.size

    def _chunks(self, offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Split the bytes at the ends of log files."""
        at, segment_bytes = 0, self._log.segment_bytes
        while at < len(data):
            left = segment_bytes - (offset + at) % segment_bytes
            yield offset + at, data[at : at + left]
            at += left

    def _undo(self, end: int) -> None:
        self._log.withdraw(end)
        for queue in self._queues.queues.values():
            queue.new_entries.clear()
        self._replayer.take_touched()
