"""The checkpoint: how far log, queues and index have certainly reached the disk.

Java's part of the file is three store times at its beginning. After a crash Java's broker goes back
to the newest log file whose first message is 3 s older than the first two times, and rebuilds from
there. It deletes index files that are newer than the third time. So:

* `log_ms` is the store time of a record that has been synced.
* `queues_ms` is the store time of a record whose queue entry has been synced, as have those of all
  records before it.
* `index_ms` is the end time of the index files when all of them had been synced. (Java writes the
  end time of the last *full* file. So it loses the keys of the file that it was writing, except
  those of the records that it replays.)

Coherer's own part says the same as a log offset, so that recovery rebuilds seconds and not a file
of 1 GiB. It is at a position that Java neither reads nor writes, and it repeats Java's three times:
if they differ, a Java broker has used the directory since, and Coherer's part is ignored. The same
holds for the reserve of queue offsets (`offset_reserve`). The gaps of power cuts stay valid, and so
does the list of full index files: nothing else shows that one is missing.

`checkpointer` moves the checkpoint.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from coherer._common.checksum import crc32
from coherer._store.files import Files
from coherer._store.offset_reserve import GAPS_MAX, Gap

CHECKPOINT_BYTES: Final = 4096
_TIMES = struct.Struct(">qqq")
_OWN_AT = 256
_OWN = struct.Struct(">8sqqqqqq")
_OWN_CRC = struct.Struct(">I")
_MAGIC = b"coherer1"
_RESERVE_AT = 320
_RESERVE = struct.Struct(">8sqqqqq16s")
_RESERVE_MAGIC = b"reserve1"
_GAPS_AT = 392
_GAPS = struct.Struct(">8sI")
_GAP = struct.Struct(">qqq")
_GAPS_MAGIC = b"gaps0001"
_REPLICA_AT = 504
_REPLICA = b"replica1"
"""The end of the first sector."""
_INDEX_AT = 512
_INDEX = struct.Struct(">8sI")
_INDEX_FILE = struct.Struct(">qq")
_INDEX_MAGIC = b"index001"
INDEX_FILES_MAX: Final = 220
"""So many fit; they hold the keys of four billion messages."""
_SLACK_MS = 3000


class Checkpoint(Struct, frozen=True):
    """The content of the checkpoint file; the module describes the three times.

    Args:
        offset: records before this offset, their queue entries and their keys are on the disk;
            None if only Java's part is valid.
        index_file: the name of the newest index file as a number; 0 without one.
        index_count: how many of its entries are on the disk.
        reserve: the most entries that a queue can have after `offset`.
        boot: the boot of the machine that wrote the file; empty if unknown.
        gaps: the gaps in queue offsets that power cuts made.
        replica: whether the store was a replica.
        index_files: the names of full index files as numbers, each with the log offset of its last
            record. Such a file is there as long as the log has this record.
    """

    log_ms: int = 0
    queues_ms: int = 0
    index_ms: int = 0
    offset: int | None = None
    index_file: int = 0
    index_count: int = 0
    reserve: int = 0
    boot: bytes = b""
    gaps: tuple[Gap, ...] = ()
    replica: bool = False
    index_files: tuple[tuple[int, int], ...] = ()

    @property
    def replay_ms(self) -> int:
        """Java's rule: replay from the newest log file that begins no later than this time."""
        return max(min(self.log_ms, self.queues_ms) - _SLACK_MS, 0)

    def encode(self) -> bytes:
        """Return the content of the file.

        >>> found = Checkpoint.decode(Checkpoint(5, 4, 3, 97).encode())
        >>> found.log_ms, found.queues_ms, found.index_ms, found.offset
        (5, 4, 3, 97)
        """
        times = (self.log_ms, self.queues_ms, self.index_ms)
        data = bytearray(CHECKPOINT_BYTES)
        _TIMES.pack_into(data, 0, *times)
        if self.offset is not None:
            own = _OWN.pack(_MAGIC, *times, self.offset, self.index_file, self.index_count)
            _put(data, _OWN_AT, own)
            reserve = _RESERVE.pack(_RESERVE_MAGIC, *times, self.offset, self.reserve, self.boot)
            _put(data, _RESERVE_AT, reserve)
        gaps = [_GAP.pack(gap.covered, gap.end, gap.entries) for gap in self.gaps]
        _put(data, _GAPS_AT, b"".join([_GAPS.pack(_GAPS_MAGIC, len(gaps)), *gaps]))
        if self.replica:
            data[_REPLICA_AT : _REPLICA_AT + len(_REPLICA)] = _REPLICA
        if self.index_files:
            files = [_INDEX_FILE.pack(*one) for one in self.index_files[-INDEX_FILES_MAX:]]
            _put(data, _INDEX_AT, b"".join([_INDEX.pack(_INDEX_MAGIC, len(files)), *files]))
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Parse the content of the file; a missing or invalid part counts as nothing synced."""
        if len(data) < _TIMES.size:
            return cls()
        times: tuple[int, int, int] = _TIMES.unpack_from(data)
        gaps = tuple(Gap(*one) for one in _list(data, _GAPS_AT, _GAPS, _GAPS_MAGIC, _GAP, GAPS_MAX))
        files = _list(data, _INDEX_AT, _INDEX, _INDEX_MAGIC, _INDEX_FILE, INDEX_FILES_MAX)
        replica = data[_REPLICA_AT : _REPLICA_AT + len(_REPLICA)] == _REPLICA
        magic, *fields = _part(data, _OWN_AT, _OWN)
        if magic != _MAGIC or tuple(fields[:3]) != times:
            return cls(*times, gaps=gaps, replica=replica, index_files=files)
        offset, index_file, index_count = fields[3:]
        magic, *others = _part(data, _RESERVE_AT, _RESERVE)
        reserve, boot = 0, b""
        if magic == _RESERVE_MAGIC and tuple(others[:4]) == (*times, offset):
            reserve, boot = others[4], others[5] if any(others[5]) else b""
        return cls(*times, offset, index_file, index_count, reserve, boot, gaps, replica, files)


def _put(data: bytearray, at: int, part: bytes) -> None:
    data[at : at + len(part)] = part
    _OWN_CRC.pack_into(data, at + len(part), crc32(part))


def _checked(data: bytes, at: int, size: int) -> bytes:
    """Return a part of the file, or "" if it is missing or its checksum is wrong."""
    part, check = data[at : at + size], data[at + size : at + size + _OWN_CRC.size]
    if len(check) < _OWN_CRC.size or _OWN_CRC.unpack(check)[0] != crc32(part):
        return b""
    return part


def _part(data: bytes, at: int, layout: struct.Struct) -> tuple[Any, ...]:
    part = _checked(data, at, layout.size)
    return layout.unpack(part) if part else (b"",)


def _list(
    data: bytes, at: int, head: struct.Struct, magic: bytes, item: struct.Struct, most: int
) -> tuple[Any, ...]:
    """Parse a list: its magic number, the number of items, and the items; () if it is not valid."""
    if len(data) < at + head.size:
        return ()
    found, count = head.unpack_from(data, at)
    if found != magic or count > most:
        return ()
    return tuple(item.iter_unpack(_checked(data, at, head.size + count * item.size)[head.size :]))


class CheckpointFile:
    """The file `checkpoint`.

    It is written in place: all parts but the list of index files are in its first sector, so a
    power cut leaves the old or the new content. The checksum detects anything else, which only
    makes the replay longer. If it takes the list, the next start does not look for these files.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._is_named = False  # whether this process has synced its name

    def load(self) -> Checkpoint:
        """Read the file; without one, return an empty checkpoint."""
        if not self._files.exists(self._path):
            return Checkpoint()
        handle = self._files.open(self._path)
        try:
            return Checkpoint.decode(self._files.read(handle, CHECKPOINT_BYTES, 0))
        finally:
            self._files.close(handle)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write and sync the file.

        Raises:
            OSError: it could not be written.
        """
        handle = self._files.open(self._path, create=True)
        try:
            self._files.write(handle, checkpoint.encode(), 0)
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        if not self._is_named:
            self._files.sync_directory(self._path.parent)
            self._is_named = True
