"""Compares a file of a queue with the one that a backup holds.

Entries of a queue are never changed. So an entry that the backup holds must be the same in the
node's file, with these exceptions:

* its record has expired, or the entry is blank;
* the topic was deleted and created anew, or the queue was repaired: then the new entry names a
  valid record of this queue with the number of the entry;
* the node was killed, and its start has not written the entries after the checkpoint again: then
  the entry is missing, and a start of the restored node would write it too.

Anything else is damage in the node's file, which must not replace the entries of the backup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from coherer._record.layout import RecordSummary, examine
from coherer._store.backup_files import blocks
from coherer._store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_BYTES
from coherer._store.files import ReadOnlyFiles

_SOURCE: Final = ReadOnlyFiles()


class LogView(NamedTuple):
    """The log of a node.

    Attributes:
        read: reads up to so many bytes at an offset.
        begin: its first offset.
        covered: the offset of the checkpoint; None if the directory is a Java broker's.
    """

    read: Callable[[int, int], bytes]
    begin: int
    covered: int | None


def find_lost_entry(path: str, held: Path, copied: Path, log: LogView) -> int | None:
    """Find an entry that a backup holds, and that the node's file has lost.

    Args:
        path: the path of the file in the directory of the node.
        copied: the copy of the node's file.

    Returns:
        The number of the entry in its queue; None if the queue has no such entry.

    Raises:
        OSError: the disk failed.
    """
    _, topic, queue, name = path.split("/")
    first = int(name) // ENTRY_BYTES
    for number, before, now in _differences(held, copied):
        offset, size, _ = ENTRY.unpack(before)
        if offset < log.begin or size in (0, BLANK_SIZE):
            continue
        if not now.strip(b"\0"):
            if log.covered is not None and offset >= log.covered:
                return None  # as all that follow
            return first + number
        record = _record_of(now, log)
        if (
            record is None
            or (record.topic, record.queue_id) != (topic.encode(), int(queue))
            or record.queue_offset != first + number
        ):
            return first + number
        return None  # the queue was made anew from the log
    return None


def _differences(held: Path, copied: Path) -> Iterator[tuple[int, bytes, bytes]]:
    """The entries that differ where the backup holds one: their numbers in the file, old, new."""
    old, new = _SOURCE.open(held), -1
    try:
        new = _SOURCE.open(copied)
        for at, data in blocks(_SOURCE, old, 0, _SOURCE.size(old)):
            begin = at // ENTRY_BYTES * ENTRY_BYTES
            size = -(-(at + len(data) - begin) // ENTRY_BYTES) * ENTRY_BYTES
            before, now = _SOURCE.read(old, size, begin), _SOURCE.read(new, size, begin)
            if before == now:
                continue
            now = now.ljust(size, b"\0")
            for place in range(0, len(before) - ENTRY_BYTES + 1, ENTRY_BYTES):
                one, other = before[place : place + ENTRY_BYTES], now[place : place + ENTRY_BYTES]
                if one != other:
                    yield (begin + place) // ENTRY_BYTES, one, other
    finally:
        _SOURCE.close(old)
        if new >= 0:
            _SOURCE.close(new)


def _record_of(entry: bytes, log: LogView) -> RecordSummary | None:
    offset, size, _ = ENTRY.unpack(entry)
    if offset < log.begin or not 0 < size < BLANK_SIZE:
        return None
    record = examine(memoryview(log.read(offset, size)))
    if isinstance(record, RecordSummary) and record.physical_offset == offset:
        return record
    return None
