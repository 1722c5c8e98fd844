"""The content of a backup directory: the code shared by backup and restore.

    backup.json            the manifest: which files make up the backup, with their checksums
    data/00000001/…        what the first backup copied
    data/00000002/…        what the second one copied, and so on
    lock

A backup writes only new files, in a new numbered directory. Then it replaces the manifest in one
step, and removes the files that the manifest no longer names. So the manifest always names complete
files, and the previous backup stays valid if a backup is killed. The manifest contains its own
checksum, and is compared with the table of `backup_contents` whenever it is read.

| version | meaning |
|---|---|
| 1 | no checksum and no history: such a backup can be restored and continued |
| 2 | as described here |

The log is stored in *pieces*: ranges of the log that never cross the end of a log file.
All other files are stored whole. Both are sparse: blocks of zeros are neither stored nor part of
the checksum.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from coherer._common.checksum import crc32
from coherer._common.decoding import decoder
from coherer._record.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    MAGIC,
    RecordSummary,
    examine,
)
from coherer._store.backup_contents import LOG, VERSION, Manifest, check_manifest, refuse_links
from coherer._store.files import (
    Files,
    is_out_of_handles,
    make_durable_directory,
    store_error,
    translate_os_errors,
)
from coherer._store.marks import MANIFEST
from coherer.errors import DamagedStoreError, StoreFullError, UsageError

DATA: Final = "data"
LOCK: Final = "lock"
_MANIFEST_BYTES_MAX: Final = 1 << 30

BLOCK: Final = 128 * 1024
_CHUNK: Final = 1 << 20
_PLACE: Final = struct.Struct(">q")


class _Versioned(msgspec.Struct):
    version: int


def is_backup(directory: Path) -> bool:
    """Whether a directory holds a backup."""
    return (directory / MANIFEST).is_file()


def load_manifest(directory: Path) -> Manifest:
    """Read the manifest of a backup.

    Raises:
        UsageError: there is no backup, or a newer version of Coherer has written it.
        DamagedStoreError: it is invalid.
        StoreError: it cannot be read.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise UsageError(
            f"There is no backup in {directory}: it has no file {MANIFEST}.",
            hint="Name a directory that `coherer backup` has written.",
        )
    with translate_os_errors(f"read {path}"):
        refuse_links(directory, [path])
        with path.open("rb") as file:
            data = file.read(_MANIFEST_BYTES_MAX)
    try:
        version = decoder(_Versioned).decode(data).version
        if version > VERSION:
            raise UsageError(
                f"The backup in {directory} has version {version}; this Coherer knows {VERSION}.",
                hint="Use the version of Coherer that took the backup, or a newer one.",
            )
        found = decoder(Manifest).decode(data)
    except msgspec.DecodeError as error:
        raise DamagedStoreError(
            f"{path} cannot be read: {error}.", hint="Use another copy of the backup."
        ) from error
    if version > 1 and _with_checksum(found).crc != found.crc:
        raise DamagedStoreError(
            f"{path} was changed: its checksum is wrong.", hint="Use another copy of the backup."
        )
    check_manifest(found, path)
    return found


def _with_checksum(manifest: Manifest) -> Manifest:
    data = msgspec.json.encode(msgspec.structs.replace(manifest, crc=0))
    return msgspec.structs.replace(manifest, crc=crc32(data))


def save_manifest(files: Files, directory: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step; on return it is synced.

    Raises:
        OSError: it could not be written.
    """
    path = directory / MANIFEST
    new = directory / f"{MANIFEST}.tmp"
    handle = files.open(new, create=True)
    try:
        files.resize(handle, 0)
        files.write(handle, msgspec.json.encode(_with_checksum(manifest)), 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.replace(new, path)
    files.sync_directory(directory)


def blocks(files: Files, handle: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The data in a range of a file, without zeros at the ends of blocks.

    Yields:
        Positions relative to `begin`, and the bytes there.

    Raises:
        OSError: the disk failed.
    """
    at = 0
    while begin + at < end:
        found = files.next_data(handle, begin + at)
        if found is None or found >= end:
            return
        at = (found - begin) // BLOCK * BLOCK
        data = files.read(handle, min(BLOCK, end - begin - at), begin + at)
        if not data:
            return
        kept = data.rstrip(b"\0")
        if kept:
            yield at, kept
        at += BLOCK


def checksum(crc: int, at: int, data: bytes) -> int:
    """Add a block to a checksum.

    >>> checksum(0, 0, b"a") == checksum(0, 1, b"a")
    False
    """
    return crc32(data, crc32(_PLACE.pack(at), crc))


def range_checksum(files: Files, handle: int, begin: int, end: int) -> int:
    """The checksum of a range of an open file.

    Raises:
        OSError: the disk failed.
    """
    crc = 0
    for at, data in blocks(files, handle, begin, end):
        crc = checksum(crc, at, data)
    return crc


def stored_checksum(files: Files, path: Path, size: int) -> int | None:
    """The checksum of a stored file; None if it has another size, is missing, or is a link.

    Raises:
        OSError: the disk failed.
    """
    if not has_size(path, size):
        return None
    handle = files.open(path)
    try:
        return range_checksum(files, handle, 0, size)
    finally:
        files.close(handle)


def has_size(path: Path, size: int) -> bool:
    """Whether a regular file of this size exists.

    Raises:
        OSError: the disk failed.
    """
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def is_inside_backup(path: Path) -> Path | None:
    """The backup that a directory lies in; None if it lies in none."""
    return next((one for one in path.resolve().parents if is_backup(one)), None)


class Walk:
    """Steps over the records of a log, from a position where one begins.

    Args:
        read: reads up to so many bytes at an offset of the log, fewer at the end of a file.
        segment_bytes: the size of a file of the log.

    Attributes:
        end: the offset after the last valid record.
        records: how many there were.
        reason: why the record at `end` is not valid.
    """

    def __init__(self, read: Callable[[int, int], bytes], segment_bytes: int) -> None:
        self._read = read
        self._segment_bytes = segment_bytes
        self._chunk = memoryview(b"")
        self._begin = 0
        self.end = self.records = 0
        self.reason = ""

    def run(self, at: int, stop: int | None = None) -> int:
        """Step over valid records; return the offset at which they end.

        Args:
            stop: an offset not to go beyond; None to go on to the last valid record.

        Raises:
            OSError: the log cannot be read.
        """
        self.end = at
        while stop is None or self.end < stop:
            step = self._step(self.end)
            if not step:
                break
            self.end += step
        return self.end

    def _step(self, at: int) -> int:
        """The size of the record or blank at an offset; 0 if neither is valid."""
        left = self._segment_bytes - at % self._segment_bytes
        head = self._load(at, BLANK_BYTES)
        if len(head) < BLANK_BYTES:
            self.reason = "the log ends here"
            return 0
        size, magic = BLANK.unpack_from(head)
        if magic == BLANK_MAGIC and size == left:
            return left
        if magic != MAGIC or not 0 < size <= left - BLANK_BYTES:
            self.reason = f"magic number {magic:#x}, size {size}"
            return 0
        record = examine(self._load(at, size)[:size])
        if isinstance(record, RecordSummary) and record.physical_offset == at:
            self.records += 1
            return record.size
        self.reason = record if isinstance(record, str) else "it belongs to another offset"
        return 0

    def _load(self, at: int, size: int) -> memoryview:
        """Read at least `size` bytes from an offset on, or the rest of the file."""
        here = at - self._begin
        if not 0 <= here <= len(self._chunk) - size:
            self._chunk = memoryview(self._read(at, max(size, _CHUNK)))
            self._begin, here = at, 0
        return self._chunk[here:]


@contextmanager
def explain_full_disk(state: str) -> Generator[None]:
    """Say what to do if the disk of a backup, or of a restored directory, is full.

    Args:
        state: a sentence for the hint: what is left after the error.

    Raises:
        StoreFullError: the disk is full.
        OSError: it failed.
    """
    try:
        yield
    except OSError as error:
        found = store_error(error, "copy all files")
        if isinstance(found, StoreFullError) and not is_out_of_handles(error):
            raise StoreFullError(
                found.text, hint=f"Free space on that disk, and run the command again. {state}"
            ) from error
        raise


def log_folder(directory: Path) -> Path:
    """The directory of the log."""
    return directory / LOG


def private_directory(files: Files, path: Path) -> None:
    """Create a directory that only its owner can read, since a backup holds secrets.

    Raises:
        OSError: it could not be created.
    """
    if not files.exists(path):
        make_durable_directory(files, path.absolute())
        if os.name == "posix":
            path.chmod(0o700)


def allocated(path: Path) -> int:
    """The approximate number of bytes that a file takes on the disk."""
    found = path.stat()
    return min(getattr(found, "st_blocks", 1 << 62) * 512, found.st_size)
