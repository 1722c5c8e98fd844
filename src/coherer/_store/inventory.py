"""The inventory and the register: which files queues and index should have.

The *inventory* lists the queue files and index files of a store when it was closed, with checksums.
Each record of the log has a checksum. A consume queue has none, and nothing shows that its last
file is missing. So `Store.close` writes the file `inventory`, and the next `open` compares. The
inventory names its checkpoint. If the directory has another checkpoint, a Java broker or a node
that was killed has used it since, and the inventory is ignored. Then the register counts.

Files that differ are rebuilt from the log (`coherer._store.recovery`). Java ignores the inventory.

The *register* lists the files of queues that the checkpoint covers, for a start after a kill.
Without it a queue whose files are missing would begin at 0 again, and give out offsets that other
messages have.

Each line has a checksum, and adds or removes one file of a queue, or removes all of a topic. Lines
are appended after the files were synced, and before the checkpoint covers their entries. With a
file is noted where the last message before it is, and where its first one is. The file before it is
there as long as the log has the former, so that retention needs no line. A file is not missed
before the checkpoint covers the latter: recovery may have cut it off, and the power failed before
the next line. A topic is removed before its files are.

After a Java broker has written the checkpoint, the register does not count: the broker may have
deleted topics. A missing register, or a missing line, costs only the check; the next start writes
it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from coherer._common.checksum import crc32
from coherer._common.decoding import decoder
from coherer._store.checkpoint import Checkpoint
from coherer._store.consume_queue import ENTRY_BYTES, ConsumeQueue, QueueDirectory
from coherer._store.files import Files, Neighbours
from coherer._store.index import IndexFileContent
from coherer.errors import UsageError

FILE: Final = "inventory"
REGISTER_FILE: Final = "register"
COMPARED_BYTES: Final = 256 * 1024 * 1024
"""How many bytes of queues are read and compared at open, in about a tenth of a second. Beyond that
only sizes are compared. `coherer verify` reads everything."""

_READ_ENTRIES = 50_000


class QueueFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a queue: the number of its first entry, the number of entries, and a checksum."""

    first: int
    count: int
    crc: int


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file; see the module.

    Args:
        times: the three times and the offset of the checkpoint.
        file_bytes: the size of the files of queues.
        queues: the files of each queue by `topic/number`.
    """

    times: tuple[int, int, int, int]
    file_bytes: int
    queues: dict[str, list[QueueFile]]
    index: list[IndexFileContent]


def save(
    files: Files,
    path: Path,
    checkpoint: Checkpoint,
    queues: QueueDirectory,
    index: list[IndexFileContent],
    before: Inventory | None,
) -> None:
    """Write and sync the file.

    Args:
        queues: all queues, without entries in memory.
        before: the inventory at open: its full files have not changed.

    Raises:
        OSError: it could not be written.
    """
    known = {} if before is None else before.queues
    new = Inventory(
        times=_times(checkpoint),
        file_bytes=queues.file_bytes,
        queues={
            f"{topic}/{number}": _files_of(queue, known.get(f"{topic}/{number}", []))
            for (topic, number), queue in queues.queues.items()
            if queue.max
        },
        index=index,
    )
    created = not files.exists(path)
    handle = files.open(path, create=True)
    try:
        files.resize(handle, 0)
        files.write(handle, msgspec.json.encode(new), 0)
        files.sync(handle)
    finally:
        files.close(handle)
    if created:
        files.sync_directory(path.parent)


def load(files: Files, path: Path, checkpoint: Checkpoint) -> Inventory | None:
    """Read the file; None if there is no valid one for this checkpoint."""
    if not files.exists(path):
        return None
    handle = files.open(path)
    try:
        data = files.read(handle, files.size(handle), 0)
    finally:
        files.close(handle)
    try:
        found = decoder(Inventory).decode(data)
    except msgspec.DecodeError:
        return None
    return found if found.times == _times(checkpoint) else None


def _times(checkpoint: Checkpoint) -> tuple[int, int, int, int]:
    offset = -1 if checkpoint.offset is None else checkpoint.offset
    return checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms, offset


def _files_of(queue: ConsumeQueue, known: list[QueueFile]) -> list[QueueFile]:
    per_file = queue.file_bytes // ENTRY_BYTES
    full = {one.first: one for one in known if one.count == per_file and queue.kept}
    found: list[QueueFile] = []
    for begin in queue.begins():
        first = begin // ENTRY_BYTES
        count = max(min(per_file, queue.max - first), 0)
        one = full.get(first)
        found.append(one or QueueFile(first, count, _crc(queue, first, count)))
    return found


def _crc(queue: ConsumeQueue, first: int, count: int) -> int:
    value, at, end = 0, first, first + count
    while at < end:
        data = queue.read(at, min(_READ_ENTRIES, end - at))
        if not data:
            break
        value = crc32(data, value)
        at += len(data) // ENTRY_BYTES
    return value


GONE: Final = Neighbours(-2, -2)
_ALL_FILES: Final = -1
SPARE_LINES: Final = 1_000

Registered = dict[str, dict[int, Neighbours]]
"""By `topic/number`: the files of each queue, by the number of their first entry."""


def _line(name: str, number: int, places: Neighbours) -> bytes:
    text = f"{name} {number} {places.before} {places.first}".encode()
    return b"%08x %s\n" % (crc32(text), text)


def _parse(data: bytes) -> Iterator[tuple[str, int, Neighbours]]:
    for line in data.splitlines():
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % crc32(text):
            name, *numbers = text.decode().rsplit(" ", 3)
            number, before, first = map(int, numbers)
            yield name, number, Neighbours(before, first)


def decode(data: bytes) -> Registered:
    """Read the content of the file.

    >>> line = _line("t/0", 20, Neighbours(before=5, first=7))
    >>> decode(line + b"half a li")
    {'t/0': {20: Neighbours(before=5, first=7)}}
    >>> decode(line + _line("t/", -1, GONE))
    {}
    """
    found: Registered = {}
    topics: dict[str, set[str]] = {}
    for name, number, places in _parse(data):
        topic = name.rpartition("/")[0]
        if number == _ALL_FILES:
            for one in topics.pop(topic, ()):
                found.pop(one, None)
        elif places == GONE:
            found.get(name, {}).pop(number, None)
        else:
            found.setdefault(name, {})[number] = places
            topics.setdefault(topic, set()).add(name)
    return {name: files for name, files in found.items() if files}


def wanted(files: Mapping[int, Neighbours], log_begin: int) -> list[int]:
    """The files of a queue that cannot have been deleted by retention.

    >>> files = {0: Neighbours(-1, 0), 20: Neighbours(500, 510), 40: Neighbours(900, 910)}
    >>> wanted(files, log_begin=600)
    [20, 40]
    """
    numbers = sorted(files)
    return [one for one, after in pairwise(numbers) if files[after].before >= log_begin] + numbers[
        -1:
    ]


class Register:
    """The file; for any thread."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._guard = threading.Lock()
        self._end = 0

    def load(self, covered: int, *, changing: bool = True) -> Registered:
        """Return the files whose first entries a checkpoint covers.

        Args:
            covered: the log offset before which all entries are on the disk.
            changing: whether the file may be written anew, without lines that have no effect.

        Raises:
            OSError: the disk failed.
        """
        if not self._files.exists(self._path):
            return {}
        handle = self._files.open(self._path)
        try:
            data = self._files.read(handle, self._files.size(handle), 0)
        finally:
            self._files.close(handle)
        self._end = data.rfind(b"\n") + 1
        found = decode(data)
        if changing and data.count(b"\n") > 2 * sum(map(len, found.values())) + SPARE_LINES:
            lines = [_line(name, *one) for name, files in found.items() for one in files.items()]
            with suppress(OSError):  # on a full disk it stays long
                self._replace(b"".join(lines))
        there = {
            name: {number: places for number, places in files.items() if places.first < covered}
            for name, files in found.items()
        }
        return {name: files for name, files in there.items() if files}

    def _replace(self, data: bytes) -> None:
        new = self._path.with_name(f"{REGISTER_FILE}.tmp")
        handle = self._files.open(new, create=True)
        try:
            self._files.resize(handle, 0)
            self._files.write(handle, data, 0)
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        self._files.replace(new, self._path)
        self._files.sync_directory(self._path.parent)
        self._end = len(data)

    def add(self, named: Mapping[Path, Neighbours]) -> None:
        """Add files of queues that were created, and remove those that are gone.

        Raises:
            OSError: the disk failed.
        """
        if named:
            lines = [
                _line(
                    "/".join(path.parts[-3:-1]),
                    int(path.name) // ENTRY_BYTES,
                    places if self._files.exists(path) else GONE,
                )
                for path, places in sorted(named.items())  # a simulated run makes the same calls
            ]
            self._append(b"".join(lines))

    def forget(self, topic: str) -> None:
        """Remove all files of a topic, before they are deleted.

        Raises:
            OSError: the disk failed.
        """
        try:
            self._append(_line(f"{topic}/", _ALL_FILES, GONE))
        except OSError:  # a full disk must not keep the topic
            self.discard()

    def discard(self) -> None:
        """Delete the file.

        Raises:
            OSError: the disk failed.
        """
        with self._guard:
            self._end = 0
            if self._files.exists(self._path):
                self._files.remove(self._path)
                self._files.sync_directory(self._path.parent)

    def _append(self, data: bytes) -> None:
        with self._guard:
            is_new = not self._files.exists(self._path)
            handle = self._files.open(self._path, create=True)
            try:
                self._files.write(handle, data, self._end)
                self._files.sync(handle)
            finally:
                self._files.close(handle)
            if is_new:
                self._files.sync_directory(self._path.parent)
            self._end += len(data)


class Comparison:
    """Finds damaged queues.

    Args:
        known: the inventory; without one, the files of a queue are compared with each other and
            with the register.
        compared_bytes: how many bytes are read and compared.
        registered: the files in the register.
        log_begin: the first offset of the log.

    Attributes:
        file_bytes: the size of the files of queues; None without an inventory.
    """

    def __init__(
        self,
        known: Inventory | None,
        compared_bytes: int = COMPARED_BYTES,
        *,
        registered: Registered | None = None,
        log_begin: int = 0,
    ) -> None:
        self._bytes_left = compared_bytes
        self._known = {} if known is None else known.queues
        self._registered = registered or {}
        # What is not found. An inventory also knows how many entries there are.
        self._missing = set(self._registered if known is None else self._known)
        self._log_begin = log_begin
        self.file_bytes = None if known is None else known.file_bytes
        self._damaged: dict[ConsumeQueue, tuple[int, str]] = {}

    def check(self, queue: ConsumeQueue) -> None:
        """Compare a queue that was loaded."""
        name = f"{queue.topic}/{queue.queue_id}"
        self._missing.discard(name)
        files, registered = self._known.get(name), self._registered.get(name, {})
        sizes = queue.sizes()
        for begin in sizes:
            if begin // ENTRY_BYTES not in registered:
                queue.register(begin)
        if files is None:
            problem = _find_missing(sizes, wanted(registered, self._log_begin)) or _find_gap(
                queue, sizes
            )
        else:
            problem = _find_difference(queue, sizes, files, compare=self._bytes_left > 0)
            self._bytes_left -= sum(one.count for one in files) * ENTRY_BYTES
        if problem is not None:
            self._damaged[queue] = problem

    def damaged_queues(self, queues: QueueDirectory) -> dict[ConsumeQueue, tuple[int, str]]:
        """Return the damaged queues: the first wrong entry of each, and the reason."""
        for name in sorted(self._missing):
            topic, _, number = name.rpartition("/")
            with suppress(UsageError, ValueError):
                self._damaged[queues.get(topic, int(number))] = 0, "its files are missing"
        return self._damaged

    def end_of(self, queue: ConsumeQueue) -> int:
        """The least offset that no message of a queue can have had, as far as it is known."""
        name = f"{queue.topic}/{queue.queue_id}"
        files = self._known.get(name)
        if files:
            return files[-1].first + files[-1].count
        registered = self._registered.get(name)
        return max(registered) + queue.file_bytes // ENTRY_BYTES if registered else 0


def _find_missing(sizes: Mapping[int, int], firsts: Sequence[int]) -> tuple[int, str] | None:
    for first in firsts:
        if first * ENTRY_BYTES not in sizes:
            return first, "a file is missing"
    return None


def _find_difference(
    queue: ConsumeQueue, sizes: Mapping[int, int], files: list[QueueFile], *, compare: bool
) -> tuple[int, str] | None:
    for one in files:
        size = sizes.get(one.first * ENTRY_BYTES)
        if size is None:
            return one.first, "a file is missing"
        if size != queue.file_bytes:
            return one.first, f"a file has {size} bytes instead of {queue.file_bytes}"
    last = files[-1] if files else None
    end = 0 if last is None else last.first + last.count
    if queue.max != end:
        return (0 if last is None else last.first), f"it has {queue.max} entries instead of {end}"
    for one in files if compare else ():
        if _crc(queue, one.first, one.count) != one.crc:
            return one.first, "the checksum of a file is wrong"
    return None


def _find_gap(queue: ConsumeQueue, sizes: Mapping[int, int]) -> tuple[int, str] | None:
    begins = sorted(sizes)
    for begin, following in pairwise(begins):
        if sizes[begin] != queue.file_bytes:
            reason = f"a file has {sizes[begin]} bytes instead of {queue.file_bytes}"
            return begin // ENTRY_BYTES, reason
        if following != begin + queue.file_bytes:
            return (begin + queue.file_bytes) // ENTRY_BYTES, "a file is missing"
    last = begins[-1] if begins else 0
    size = sizes.get(last, 0)
    if size not in (0, queue.file_bytes):  # after a crash a new file may be empty
        return last // ENTRY_BYTES, f"a file has {size} bytes instead of {queue.file_bytes}"
    return None
