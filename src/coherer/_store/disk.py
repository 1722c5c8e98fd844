"""What the files of the store share: names, a few open handles, and errors as our own."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from coherer._store.files import Files
from coherer.errors import StoreError, StoreFullError

_FULL = frozenset(
    getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)
)
_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_SYNC_EACH_MAX = 64
"""More files than these are synced by one sync of the file system: one after the other, thousands
of small files take tens of seconds."""
NAME_DIGITS = 20
_CHUNK_BYTES = 1 << 20


def file_name(offset: int) -> str:
    """Name a file by the offset of its first byte.

    >>> file_name(1073741824)
    '00000000001073741824'
    """
    return f"{offset:0{NAME_DIGITS}d}"


def numbered(names: list[str]) -> list[int]:
    """Give the offsets of those names that are offsets, in order.

    >>> numbered(["00000000001073741824", "00000000000000000000", "notes.txt"])
    [0, 1073741824]
    """
    return sorted([int(name) for name in names if len(name) == NAME_DIGITS and name.isdecimal()])


def zero(files: Files, handle: int, offset: int) -> None:
    """Make everything from `offset` on zero. The file keeps its size and, mostly, its holes.

    Cutting and extending it would do the same, but a power cut in between would leave a file of a
    size that it should never have.

    Raises:
        OSError: it could not be done.
    """
    position = files.next_data(handle, offset)
    while position is not None:
        data = files.read(handle, _CHUNK_BYTES, position)
        kept = len(data.rstrip(b"\0"))
        if kept:
            files.write(handle, bytes(kept), position)
        position = files.next_data(handle, position + len(data)) if data else None


def make_durable_directory(files: Files, path: Path) -> None:
    """Make a directory, and its parents, so that a power cut does not take it away.

    Raises:
        OSError: it could not be made, or not synced.
    """
    made: list[Path] = []
    for directory in (path, *path.parents):
        if files.exists(directory):
            break
        made.append(directory)
    files.make_directory(path)
    for directory in reversed(made):
        files.sync_directory(directory.parent)
    if not made:  # by a process that was killed before it came to this
        with suppress(PermissionError):
            files.sync_directory(path.parent)


@contextmanager
def translate_os_errors(what: str) -> Generator[None]:
    """Turn the operating system's errors into the store's.

    Raises:
        StoreFullError: there was no room.
        StoreError: anything else.
    """
    try:
        yield
    except OSError as error:
        raise translate(error, what) from error


def translate(error: OSError, what: str) -> StoreError:
    """Give our own error for one of the operating system."""
    if error.errno in _FULL:
        return StoreFullError(
            f"The disk is full: no room to {what}.",
            hint="Free some, or lower the retention; the store goes on by itself.",
        )
    if out_of_files(error):
        return StoreFullError(
            f"No file can be opened to {what}: too many are.",
            hint="Allow more (ulimit -n), or fewer connections; the store goes on by itself.",
        )
    return StoreError(f"Could not {what}: {error}.")


def out_of_files(error: OSError) -> bool:
    """Tell whether the process, or the machine, has too many files open: that passes."""
    return error.errno in _OUT_OF_FILES


class Dirty:
    """What must be synced before the checkpoint may vouch for it: files, and names of files."""

    __slots__ = ("directories", "files")

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self.directories: set[Path] = set()

    def merge(self, other: Dirty) -> None:
        """Add what is in `other`."""
        self.files |= other.files
        self.directories |= other.directories

    def sync(self, files: Files, root: Path) -> None:
        """Sync it all; what has been deleted meanwhile is left out.

        Args:
            files: how to reach them.
            root: a directory above all of them, on the same file system.

        Raises:
            OSError: the disk failed.
        """
        if len(self.files) + len(self.directories) > _SYNC_EACH_MAX and files.sync_all(root):
            return
        for path in self.files:
            with suppress(FileNotFoundError):
                handle = files.open(path)  # our own: the writer may close its one at any time
                try:
                    files.sync(handle)
                finally:
                    files.close(handle)
        for path in self.directories:
            with suppress(FileNotFoundError):
                files.sync_directory(path)


class Handles:
    """Open files, at most so many: the one not used for longest is closed for a new one.

    For any thread. `guard` is held while a file is opened, read, written or closed, so that no
    thread uses a handle that another one has closed. Whoever changes several files as one step,
    or deletes files, holds it as well.

    Args:
        files: how to reach them.
        capacity: tells how many files may be open now; one may be in any case.
    """

    def __init__(self, files: Files, capacity: Callable[[], int]) -> None:
        self._files = files
        self._capacity = capacity
        self._open: OrderedDict[Path, int] = OrderedDict()
        self.guard = threading.RLock()

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """Read by position from a file that exists.

        Raises:
            OSError: it does not exist, or the disk failed.
        """
        with self.guard:
            return self._files.read(self.get(path), size, offset)

    def get(self, path: Path, *, create: bool = False) -> int:
        """Give the handle of a file. Hold `guard` for as long as it is used.

        Raises:
            OSError: the file does not exist and is not to be created, or cannot be opened.
        """
        with self.guard:
            handle = self._open.get(path)
            if handle is not None:
                self._open.move_to_end(path)
                return handle
            self.shrink(1)
            handle = self._files.open(path, create=create)
            self._open[path] = handle
            return handle

    def shrink(self, room: int = 0) -> None:
        """Close files until no more than allowed are open.

        Args:
            room: so many more are about to be opened.
        """
        if not self._open:
            return
        with self.guard:
            most = max(self._capacity(), 1) - room
            while len(self._open) > max(most, 0):
                self._files.close(self._open.popitem(last=False)[1])

    def drop(self, path: Path) -> None:
        """Close a file if it is open."""
        with self.guard:
            handle = self._open.pop(path, None)
            if handle is not None:
                self._files.close(handle)

    def close(self) -> None:
        """Close all."""
        with self.guard:
            while self._open:
                self._files.close(self._open.popitem()[1])
