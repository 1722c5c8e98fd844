"""The register: the files of queues that the checkpoint covers.

Nothing in a directory shows that the first or the last file of a queue is missing, or all of them.
After an orderly stop the inventory does. After a kill the register does: without it the queue would
begin at 0 again, and give out offsets that other messages have.

Each line has a checksum, and adds or removes one file of a queue, or removes all of a topic. Lines
are appended after the files were synced, and before the checkpoint covers their entries. With a
file is noted where the last message before it is: the file before it is there as long as the log
has this message, so that retention needs no line. A topic is removed before its files are.

A checkpoint of a Java broker does not count the register: the broker may have deleted topics. A
missing register, or a missing line, costs only the check; the next start writes it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

from coherer._common.checksum import crc32
from coherer._store.files import Files

FILE: Final = "register"

GONE: Final = -2
_ALL_FILES: Final = -1
_ENTRY_BYTES: Final = 20
SPARE_LINES: Final = 1_000

Registered = dict[str, dict[int, int]]
"""By `topic/number`: the first entry of each file, and the log offset of the message before it."""


def _line(name: str, first: int, before: int) -> bytes:
    text = f"{name} {first} {before}".encode()
    return b"%08x %s\n" % (crc32(text), text)


def _parse(data: bytes) -> Iterator[tuple[str, int, int]]:
    for line in data.splitlines():
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % crc32(text):
            name, first, before = text.decode().split(" ")
            yield name, int(first), int(before)


def decode(data: bytes) -> Registered:
    """Read the content of the file.

    >>> decode(_line("t/0", 0, -1) + _line("t/0", 20, 5) + _line("t/1", 0, -1) + b"half a li")
    {'t/0': {0: -1, 20: 5}, 't/1': {0: -1}}
    >>> decode(_line("t/0", 0, -1) + _line("t/", -1, GONE))
    {}
    """
    found: Registered = {}
    topics: dict[str, set[str]] = {}
    for name, first, before in _parse(data):
        topic = name.rpartition("/")[0]
        if first == _ALL_FILES:
            for one in topics.pop(topic, ()):
                found.pop(one, None)
        elif before == GONE:
            found.get(name, {}).pop(first, None)
        else:
            found.setdefault(name, {})[first] = before
            topics.setdefault(topic, set()).add(name)
    return {name: files for name, files in found.items() if files}


def wanted(files: Mapping[int, int], log_begin: int) -> list[int]:
    """The first entries of the files of a queue that cannot have been deleted by retention.

    >>> wanted({0: -1, 20: 500, 40: 900}, 600)
    [20, 40]
    """
    firsts = sorted(files)
    return [one for one, after in pairwise(firsts) if files[after] >= log_begin] + firsts[-1:]


class Register:
    """The file; for any thread."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._guard = threading.Lock()
        self._end = 0

    def load(self, *, changing: bool = True) -> Registered:
        """Read the file.

        Args:
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
        return found

    def _replace(self, data: bytes) -> None:
        new = self._path.with_name(f"{FILE}.tmp")
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

    def add(self, named: Mapping[Path, int]) -> None:
        """Add files of queues that were created, and remove those that are gone.

        Args:
            named: their paths, and the log offsets of the messages before them.

        Raises:
            OSError: the disk failed.
        """
        if named:
            lines = [
                _line(
                    "/".join(path.parts[-3:-1]),
                    int(path.name) // _ENTRY_BYTES,
                    before if self._files.exists(path) else GONE,
                )
                for path, before in sorted(named.items())  # a simulated run makes the same calls
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
