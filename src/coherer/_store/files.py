"""Every operation on files that the store does, as one small interface.

`OsFiles` is the real one. Tests put their own in its place: one that cuts the power (unsynced
writes vanish or are torn), one whose disk is full.

Writing goes by position (`write`), never through a mapping: a full disk is then an `OSError` that
can be handled, not a SIGBUS that kills the process. Files are extended sparsely (`resize`) to
their final size when they are made, so that a mapping made once covers them for good.


What the files of the store share: names, a few open handles, and errors as our own."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import shutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, cast

from coherer.errors import StoreError, StoreFullError

_BINARY: int = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_SCAN_BYTES = 1 << 20
_NOTHING_MORE = 6  # ENXIO: no data behind this offset


class Files(Protocol):
    """What the store asks of a file system. A handle is a number that `open` gave.

    Every method may raise `OSError`; `ENOSPC` and `EDQUOT` mean that there is no room.
    """

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing; make it, empty, when told to."""
        ...

    def close(self, handle: int) -> None:
        """Give a handle back."""
        ...

    def size(self, handle: int) -> int:
        """Give the size of a file in bytes."""
        ...

    def resize(self, handle: int, size: int) -> None:
        """Cut a file, or extend it by zeros that take no room."""
        ...

    def write(self, handle: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`. After an error any part of it may be written."""
        ...

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at `offset`; fewer at the end of the file."""
        ...

    def map(self, handle: int, size: int) -> mmap.mmap:
        """Map the first `size` bytes for reading. The handle may be closed afterwards."""
        ...

    def next_data(self, handle: int, offset: int) -> int | None:
        """Give the first offset from `offset` on that may hold something else than zero."""
        ...

    def sync(self, handle: int) -> None:
        """Return when the content of a file has reached the disk."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory have reached the disk."""
        ...

    def sync_all(self, path: Path) -> bool:
        """Return when all files and names of the file system that holds `path` are on the disk.

        False, and nothing is synced, where the system cannot do that and report errors.
        """
        ...

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents where they are missing."""
        ...

    def names(self, path: Path) -> list[str]:
        """Give the names in a directory, sorted; none when there is no such directory."""
        ...

    def exists(self, path: Path) -> bool:
        """Tell whether a path exists."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, in place of `target` if that exists."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens when there is none."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all in it; nothing happens when there is none."""
        ...

    def lock(self, path: Path) -> int:
        """Lock a file for this process until `unlock`, as Java's broker does.

        Raises:
            StoreError: somebody else holds it.
        """
        ...

    def unlock(self, path: Path, handle: int) -> None:
        """Give a lock back."""
        ...


class OsFiles:
    """The files of this machine."""

    _held: set[Path] = set()  # noqa: RUF012  (record locks do not exclude within one process)
    _held_lock = threading.Lock()

    def open(self, path: Path, *, create: bool = False) -> int:
        """See `Files.open`."""
        return os.open(path, os.O_RDWR | _BINARY | (os.O_CREAT if create else 0), 0o644)

    def close(self, handle: int) -> None:
        """See `Files.close`."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """See `Files.size`."""
        return os.fstat(handle).st_size

    def resize(self, handle: int, size: int) -> None:
        """See `Files.resize`."""
        os.ftruncate(handle, size)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        """See `Files.write`."""
        written = _write_at(handle, data, offset)
        while written < len(data):  # a full disk takes a part before it says so
            written += _write_at(handle, data[written:], offset + written)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """See `Files.read`."""
        return _read_at(handle, size, offset)

    def map(self, handle: int, size: int) -> mmap.mmap:
        """See `Files.map`."""
        return mmap.mmap(handle, size, access=mmap.ACCESS_READ)

    def next_data(self, handle: int, offset: int) -> int | None:
        """See `Files.next_data`."""
        if hasattr(os, "SEEK_DATA"):
            try:
                return os.lseek(handle, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == _NOTHING_MORE:
                    return None
        return self._search_data(handle, offset)

    def _search_data(self, handle: int, offset: int) -> int | None:
        while data := self.read(handle, _SCAN_BYTES, offset):
            rest = data.lstrip(b"\0")
            if rest:
                return offset + len(data) - len(rest)
            offset += len(data)
        return None

    def sync(self, handle: int) -> None:
        """See `Files.sync`."""
        _sync(handle)

    def sync_directory(self, path: Path) -> None:
        """See `Files.sync_directory`."""
        if sys.platform == "win32":
            return  # NTFS keeps its names in a journal of its own; directories cannot be opened
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def sync_all(self, path: Path) -> bool:
        """See `Files.sync_all`."""
        if _sync_file_system is None:
            return False
        handle = os.open(path, os.O_RDONLY)
        try:
            if _sync_file_system(handle):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(path))
        finally:
            os.close(handle)
        return True

    def make_directory(self, path: Path) -> None:
        """See `Files.make_directory`."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """See `Files.names`."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: Path) -> bool:
        """See `Files.exists`."""
        return path.exists()

    def replace(self, source: Path, target: Path) -> None:
        """See `Files.replace`."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """See `Files.remove`."""
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """See `Files.remove_tree`."""
        if path.exists():
            shutil.rmtree(path)

    def lock(self, path: Path) -> int:
        """See `Files.lock`."""
        real = path.resolve()
        with self._held_lock:
            if real in self._held:
                raise _in_use(path)
            handle = self.open(path, create=True)
            try:
                _lock(handle)
            except OSError as error:
                os.close(handle)
                raise _in_use(path) from error
            self._held.add(real)
        with suppress(OSError):  # Java writes it, nobody reads it
            self.write(handle, b"lock", 0)
        return handle

    def unlock(self, path: Path, handle: int) -> None:
        """See `Files.unlock`."""
        with self._held_lock:
            self._held.discard(path.resolve())
            os.close(handle)  # gives the lock back


def _in_use(path: Path) -> StoreError:
    return StoreError(
        f"The directory {path.parent} is in use.",
        hint="Stop the node, or the Java broker, that runs on it.",
    )


class SeekingIO:
    """Reads and writes by position where the system cannot: it moves first."""

    _guard = threading.Lock()

    @classmethod
    def write(cls, handle: int, data: bytes, offset: int, /) -> int:
        """Write as `os.pwrite` does."""
        with cls._guard:
            os.lseek(handle, offset, os.SEEK_SET)
            return os.write(handle, data)

    @classmethod
    def read(cls, handle: int, size: int, offset: int, /) -> bytes:
        """Read as `os.pread` does."""
        with cls._guard:
            os.lseek(handle, offset, os.SEEK_SET)
            return os.read(handle, size)


_write_at: Callable[[int, bytes, int], int] = getattr(os, "pwrite", SeekingIO.write)
_read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", SeekingIO.read)


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _sync(handle: int) -> None:
        os.fsync(handle)

elif sys.platform == "darwin":
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)

    def _sync(handle: int) -> None:
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync stops at the disk's own cache here

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)

    def _sync(handle: int) -> None:
        os.fdatasync(handle)


def _find_syncfs() -> Callable[[int], int] | None:
    """Linux's syncfs. Before 5.8 it did not report errors, so it is not used there."""
    if sys.platform != "linux":
        return None
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or (int(release[1]), int(release[2])) < (5, 8):
        return None
    try:
        found = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    found.argtypes = (ctypes.c_int,)
    return cast("Callable[[int], int]", found)


_sync_file_system = _find_syncfs()


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
