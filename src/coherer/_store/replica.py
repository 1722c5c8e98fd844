"""The log of a master, written again byte for byte: the store of a slave.

What the master's log holds behind the end of ours is proven, written, and put into queues and
index. Files begin and end where the master's do, so both must have the same size. A slave that is
new may begin at any file: its queues begin with blanks then.

Where the master's queue numbers leave a gap (it lost messages) our queues have blanks; what is
older than our queues are is only in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from coherer._record.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, MAGIC, RecordSummary, examine
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import ConsumeQueue, QueueDirectory
from coherer._store.index import KeyIndex
from coherer._store.model import AppendResult, Draft
from coherer._store.recovery import RECORD_BYTES_MIN, Replayer, tag_and_keys
from coherer.errors import DamagedStoreError, StoreError, UsageError

_GAP_ENTRIES = 1_000_000


def whole_bytes(data: bytes | bytearray | memoryview) -> int:
    """Say how many bytes at the front of `data`, a piece of a log, are whole records and blanks.

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
            raise DamagedStoreError(f"No record where one should begin: magic number {magic:#x}.")
        if at + size > len(data):
            break
        at += size
    return at


class Taken(NamedTuple):
    """What was written: up to where, the last store time, the queues it is for, and the messages.

    Its entries are pending in the queues. The drafts are without bodies: they say what came, to
    those who wait for it.
    """

    end: int
    store_ms: int
    queues: list[ConsumeQueue]
    drafts: list[Draft]
    appended: list[AppendResult]


class Replica:
    """Writes pieces of a master's log.

    Args:
        log: ours.
        queues: ours.
        index: ours, if there is one.
        now_ms: names a new index file.
    """

    def __init__(
        self, log: CommitLog, queues: QueueDirectory, index: KeyIndex | None, now_ms: int
    ) -> None:
        self._log = log
        self._queues = queues
        self._replayer = Replayer(queues, index, now_ms)
        self._replayer.lost_bytes = _GAP_ENTRIES * RECORD_BYTES_MIN

    def take(self, offset: int, data: bytes) -> Taken:
        """Write whole records and blanks behind the end of the log; they are not visible yet.

        Raises:
            UsageError: they do not follow the end of the log.
            DamagedStoreError: they are no records, or of files of another size.
            StoreError: the disk failed, or is full. Nothing was written.
        """
        if self._log.end == 0 and not self._log.segments:
            self._log.start_at(offset)
        before = self._log.end
        if offset != before:
            raise UsageError(f"The log ends at {before}; these bytes belong to {offset}.")
        found = list(self._records(offset, data))
        try:
            self._log.write(list(self._pieces(offset, data)))
            drafts = [self._put(record) for record in found]
        except (OSError, StoreError) as error:
            self._withdraw(before)
            if isinstance(error, OSError):
                raise StoreError(f"Could not store what the master sent: {error}.") from error
            raise
        queues = self._replayer.touched()
        store_ms = max([record.store_ms for record in found], default=0)
        appended = [
            AppendResult(record.queue_offset, record.physical_offset, record.size)
            for record in found
        ]
        return Taken(offset + len(data), store_ms, queues, drafts, appended)

    def _put(self, record: RecordSummary) -> Draft:
        self._replayer.replay(record)
        code, keys = tag_and_keys(record.properties)
        topic = record.topic.decode("utf-8", "replace")
        return Draft(
            topic, record.queue_id, b"", record.properties, code, sys_flag=record.sys_flag,
            keys=keys,
        )  # fmt: skip

    def _records(self, offset: int, data: bytes) -> Iterator[RecordSummary]:
        view, at = memoryview(data), 0
        segment_bytes = self._log.segment_bytes
        while at < len(data):
            left = segment_bytes - (offset + at) % segment_bytes
            if len(data) - at < BLANK_BYTES:
                raise DamagedStoreError("A record is cut short.")
            size, magic = BLANK.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                if size != left or at + size > len(data):
                    raise DamagedStoreError(
                        f"The master's file ends at {offset + at + size}, ours {left - size} "
                        "bytes behind.",
                        hint=f"Both need files of {segment_bytes} bytes (segment_bytes here, "
                        "mappedFileSizeCommitLog there).",
                    )
                at += size
                continue
            record = examine(view, at)
            if isinstance(record, str):
                raise DamagedStoreError(f"No record at {offset + at}: {record}.")
            if record.physical_offset != offset + at or record.size > left - BLANK_BYTES:
                raise DamagedStoreError(
                    f"The record at {offset + at} belongs to {record.physical_offset}."
                )
            yield record
            at += record.size

    def _pieces(self, offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Cut where files end."""
        at, segment_bytes = 0, self._log.segment_bytes
        while at < len(data):
            left = segment_bytes - (offset + at) % segment_bytes
            yield offset + at, data[at : at + left]
            at += left

    def _withdraw(self, end: int) -> None:
        self._log.withdraw(end)
        for queue in self._queues.queues.values():
            queue.pending.clear()
        self._replayer.touched()
