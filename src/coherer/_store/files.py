"""Access to files: all operations of the store behind one small interface.

`OsFiles` is the real implementation. Tests replace it: by one that cuts the power (unsynced writes
vanish or are torn) and by one whose disk is full.

Writes go by position (`write`), never through a mapping: a full disk is then an `OSError` that can
be handled, not a SIGBUS that kills the process. A new file is extended sparsely (`resize`) to its
final size, so that a mapping is made once.

The rest of the module is shared by the files of log, queues and index: names, a cache of open
handles, the set of files to sync, and the translation of errors.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import re
import shutil
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol, cast
from uuid import UUID

from coherer._common.logs import Log
from coherer.errors import StoreError, StoreFullError

_log = Log(logging.getLogger(__name__))

_BINARY: int = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_SCAN_BYTES = 1 << 20
_NO_MORE_DATA = 6  # ENXIO: there is no data after this offset


_seek_guard = threading.Lock()


def seek_and_write(handle: int, data: bytes, offset: int, /) -> int:
    """Write like `os.pwrite`, for systems without it."""
    with _seek_guard:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.write(handle, data)


def seek_and_read(handle: int, size: int, offset: int, /) -> bytes:
    """Read like `os.pread`, for systems without it."""
    with _seek_guard:
        os.lseek(handle, offset, os.SEEK_SET)
        return os.read(handle, size)


_pwrite: Callable[[int, bytes, int], int] = getattr(os, "pwrite", seek_and_write)
_pread: Callable[[int, int, int], bytes] = getattr(os, "pread", seek_and_read)


class Files(Protocol):
    """The file system as the store uses it. `open` returns a handle, a number.

    Every method may raise `OSError`; `ENOSPC` and `EDQUOT` mean that the disk is full.
    """

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open a file for reading and writing; with `create`, create it if it is missing."""
        ...

    def close(self, handle: int) -> None:
        """Close a handle."""
        ...

    def size(self, handle: int) -> int:
        """Return the size of a file in bytes."""
        ...

    def resize(self, handle: int, size: int) -> None:
        """Truncate a file, or extend it by zeros that take no space."""
        ...

    def write(self, handle: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`. After an error any part of it may have been written."""
        ...

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at `offset`; fewer at the end of the file."""
        ...

    def map(self, handle: int, size: int) -> mmap.mmap:
        """Map the first `size` bytes for reading. The handle may be closed afterwards."""
        ...

    def next_data(self, handle: int, offset: int) -> int | None:
        """Return the first offset from `offset` on that may hold something other than zero."""
        ...

    def sync(self, handle: int) -> None:
        """Sync the content of a file to the disk."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Sync the names in a directory to the disk."""
        ...

    def sync_all(self, path: Path) -> bool:
        """Sync all files and names of the file system that holds `path`.

        Returns False, without a sync, if the system cannot do that and report errors.
        """
        ...

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents if they are missing."""
        ...

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted; an empty list if there is no such directory."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a path exists."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file; replace `target` if it exists."""
        ...

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; `target` does not exist.

        File systems without such names get a copy.
        """
        ...

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its content if it exists."""
        ...

    def boot_id(self) -> bytes:
        """Return 16 bytes that change when the machine starts; empty if that is unknown.

        As long as they stay the same, nothing that was written is lost.
        """
        ...

    def lock(self, path: Path) -> int:
        """Lock a file for this process until `unlock`, as Java's broker does.

        Raises:
            StoreError: the file is locked already.
        """
        ...

    def unlock(self, path: Path, handle: int) -> None:
        """Release a lock."""
        ...


class OsFiles:
    """The files of this machine."""

    _locked: set[Path] = set()  # noqa: RUF012 - record locks do not exclude the same process
    _locked_guard = threading.Lock()

    def open(self, path: Path, *, create: bool = False) -> int:
        return os.open(path, os.O_RDWR | _BINARY | (os.O_CREAT if create else 0), 0o644)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def resize(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        written = self.write_at(handle, data, offset)
        while written < len(data):  # a full disk takes a part before it reports an error
            written += self.write_at(handle, data[written:], offset + written)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return self.read_at(handle, size, offset)

    def write_at(self, handle: int, data: bytes, offset: int) -> int:
        """Write like `os.pwrite`; return the number of bytes written."""
        return _pwrite(handle, data, offset)

    def read_at(self, handle: int, size: int, offset: int) -> bytes:
        """Read like `os.pread`."""
        return _pread(handle, size, offset)

    def map(self, handle: int, size: int) -> mmap.mmap:
        return mmap.mmap(handle, size, access=mmap.ACCESS_READ)

    def next_data(self, handle: int, offset: int) -> int | None:
        if hasattr(os, "SEEK_DATA"):
            try:
                return os.lseek(handle, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == _NO_MORE_DATA:
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
        _sync(handle)

    def sync_directory(self, path: Path) -> None:
        if sys.platform == "win32":
            return  # NTFS journals names itself; directories cannot be opened
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # Some network file systems cannot do it, and there is nothing to wait for.
            _log.warning(
                "The file system of %s cannot sync directories: a power cut may take new files",
                path,
                about=os.fstat(handle).st_dev,
            )
        finally:
            os.close(handle)

    def sync_all(self, path: Path) -> bool:
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
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copy2(source, target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        if path.exists():
            shutil.rmtree(path)

    def boot_id(self) -> bytes:
        return _boot_id()

    def lock(self, path: Path) -> int:
        real = path.resolve()
        with self._locked_guard:
            if real in self._locked:
                raise _in_use(path)
            handle = self.open(path, create=True)
            try:
                _lock(handle)
            except OSError as error:
                os.close(handle)
                raise _in_use(path) from error
            self._locked.add(real)
        with suppress(OSError):  # Java writes this; nothing reads it
            self.write(handle, b"lock", 0)
        return handle

    def unlock(self, path: Path, handle: int) -> None:
        with self._locked_guard:
            self._locked.discard(path.resolve())
            os.close(handle)  # this releases the lock


class ReadOnlyFiles(OsFiles):
    """Files that cannot be changed."""

    def open(self, path: Path, *, create: bool = False) -> int:  # noqa: ARG002 - never creates
        """Open a file for reading; never creates one."""
        return os.open(path, os.O_RDONLY | _BINARY)

    def resize(self, handle: int, size: int) -> None:
        """Do nothing."""

    def write(self, handle: int, data: bytes, offset: int) -> None:  # noqa: ARG002 - refused
        """Refuse to write.

        Raises:
            StoreError: always.
        """
        raise StoreError("The files of the store are open for reading only.")


@cache
def _boot_id() -> bytes:
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return UUID(text.strip()).bytes
    except (OSError, ValueError):  # not Linux
        return b""


def _in_use(path: Path) -> StoreError:
    return StoreError(
        f"The directory {path.parent} is in use.",
        hint="Stop the node or the Java broker that uses it.",
    )


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
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync does not flush the disk's own cache here

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)

    def _sync(handle: int) -> None:
        os.fdatasync(handle)


def _find_syncfs() -> Callable[[int], int] | None:
    """Find Linux's syncfs. It is not used before Linux 5.8, where it did not report errors."""
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
"""Above this number, the whole file system is synced at once: syncing thousands of small files one
by one takes tens of seconds."""
NAME_DIGITS = 20
_CHUNK_BYTES = 1 << 20


def file_name(offset: int) -> str:
    """Return the name of a file, the offset of its first byte.

    >>> file_name(1073741824)
    '00000000001073741824'
    """
    return f"{offset:0{NAME_DIGITS}d}"


def file_offsets(names: list[str]) -> list[int]:
    """Return, sorted, the offsets among the names.

    >>> file_offsets(["00000000001073741824", "00000000000000000000", "notes.txt"])
    [0, 1073741824]
    """
    return sorted([int(name) for name in names if len(name) == NAME_DIGITS and name.isdecimal()])


def zero(files: Files, handle: int, offset: int) -> None:
    """Overwrite everything from `offset` on with zeros. The file keeps its size and most holes.

    Raises:
        OSError: the disk failed.
    """
    # Truncating and extending the file would do the same, but a power cut in between would leave a
    # file of the wrong size.
    position = files.next_data(handle, offset)
    while position is not None:
        data = files.read(handle, _CHUNK_BYTES, position)
        kept = len(data.rstrip(b"\0"))
        if kept:
            files.write(handle, bytes(kept), position)
        position = files.next_data(handle, position + len(data)) if data else None


def make_durable_directory(files: Files, path: Path) -> None:
    """Create a directory and its parents so that they survive a power cut.

    Raises:
        OSError: it could not be created or synced.
    """
    made: list[Path] = []
    for directory in (path, *path.parents):
        if files.exists(directory):
            break
        made.append(directory)
    files.make_directory(path)
    for directory in reversed(made):
        files.sync_directory(directory.parent)
    if not made:  # perhaps by a process that was killed before it synced
        with suppress(PermissionError):
            files.sync_directory(path.parent)


class translate_os_errors:  # noqa: N801 - for its users it is a function
    """Translate `OSError` into the store's errors.

    It is a class because reads of queues enter it: `contextmanager` takes five times as long.

    Args:
        what: completes the error's "Could not …".

    Raises:
        StoreFullError: the disk is full, or too many files are open.
        StoreError: any other error.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and isinstance(error, OSError):
            raise store_error(error, self._what) from error


def store_error(error: OSError, what: str) -> StoreError:
    """Return the store's error for an error of the operating system."""
    if error.errno in _FULL:
        return StoreFullError(
            f"The disk is full: could not {what}.",
            hint="Free disk space or lower the retention; the store resumes automatically.",
        )
    if is_out_of_handles(error):
        return StoreFullError(
            f"Too many open files: could not {what}.",
            hint="Raise `ulimit -n` or allow fewer connections; the store resumes automatically.",
        )
    in_the_way = isinstance(error, FileExistsError | NotADirectoryError)
    return StoreError(
        f"Could not {what}: {error.strerror or error}.",
        hint="A file is where a directory is needed: choose another path." if in_the_way else "",
    )


def is_out_of_handles(error: OSError) -> bool:
    """Whether the process or the machine has too many open files: a temporary error."""
    return error.errno in _OUT_OF_FILES


def needs_space(error: StoreFullError) -> bool:
    """Whether free space on the disk would help, and not only a file that is closed."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    return cause is None or not is_out_of_handles(cause)


class Neighbours(NamedTuple):
    """The messages at the beginning of a file of a queue.

    Args:
        before: the log offset of the last one in the file before it; -1 without one.
        first: the log offset of its first one; -1 if unknown.
    """

    before: int
    first: int


class UnsyncedFiles:
    """Files and directories that must be synced before the next checkpoint.

    Attributes:
        named: files of queues that were created or deleted, for the register (`inventory`).
    """

    __slots__ = ("directories", "files", "named")

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self.directories: set[Path] = set()
        self.named: dict[Path, Neighbours] = {}

    def merge(self, other: UnsyncedFiles) -> None:
        """Add the files and directories of `other`."""
        self.named = {**other.named, **self.named}
        self.files |= other.files
        self.directories |= other.directories

    def sync(self, files: Files, root: Path) -> None:
        """Sync all that still exist.

        Args:
            files: how to access files.
            root: a directory that contains all of them, on the same file system.

        Raises:
            OSError: the disk failed.
        """
        if len(self.files) + len(self.directories) > _SYNC_EACH_MAX and files.sync_all(root):
            return
        for path in sorted(self.files):  # a simulated run makes the same calls each time
            with suppress(FileNotFoundError):
                handle = files.open(path)  # the writer may close its own handle at any time
                try:
                    files.sync(handle)
                finally:
                    files.close(handle)
        for path in sorted(self.directories):
            with suppress(FileNotFoundError):
                files.sync_directory(path)


class HandleCache:
    """A limited number of open files: the least recently used one is closed for a new one.

    For any thread. `guard` is held while a file is opened, read, written or closed, so that no
    thread uses a handle that another one has closed. It is also held while several files are
    changed as one step, and while files are deleted.

    Args:
        capacity: returns how many files may be open now; one may always be open.
    """

    def __init__(self, files: Files, capacity: Callable[[], int]) -> None:
        self._files = files
        self._capacity = capacity
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._unused: set[Path] = set()
        self.guard = threading.RLock()

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """Read by position from a file that exists.

        Raises:
            OSError: it does not exist, or the disk failed.
        """
        with self.guard:
            return self._files.read(self.get(path), size, offset)

    def get(self, path: Path, *, create: bool = False) -> int:
        """Return the handle of a file. The caller holds `guard` while it uses the handle.

        Args:
            create: create the file if it does not exist.

        Raises:
            OSError: the file does not exist or cannot be opened.
        """
        with self.guard:
            self._unused.discard(path)
            handle = self._open.get(path)
            if handle is not None:
                self._open.move_to_end(path)
                return handle
            self.shrink(1)
            handle = self._files.open(path, create=create)
            self._open[path] = handle
            return handle

    def shrink(self, reserve: int = 0) -> None:
        """Close files until no more than allowed are open.

        Args:
            reserve: how many files are about to be opened.
        """
        if not self._open:
            return
        with self.guard:
            most = max(self._capacity(), 1) - reserve
            while len(self._open) > max(most, 0):
                self._files.close(self._open.popitem(last=False)[1])

    def close_idle(self) -> None:
        """Close the files that were not used since the last call."""
        with self.guard:
            for path in self._unused & self._open.keys():
                self._files.close(self._open.pop(path))
            self._unused = set(self._open)

    def drop(self, path: Path) -> None:
        """Close a file if it is open."""
        with self.guard:
            handle = self._open.pop(path, None)
            if handle is not None:
                self._files.close(handle)

    def close(self) -> None:
        """Close all files."""
        with self.guard:
            while self._open:
                self._files.close(self._open.popitem()[1])
