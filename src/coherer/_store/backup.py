"""Copies the directory of a node while the node runs, without its help and without locks.

The copy is what a crash of the node would leave at one point of the log, so the next start recovers
it as it recovers a crash. The order of the steps makes it consistent:

1. The offsets of groups. Whatever they name is in the log by now.
2. The checkpoint. It says up to where queues and index agree with the log.
3. Index and queues. They cover the checkpoint; recovery corrects what they hold beyond it.
4. The log, up to the last whole record that exists now. This is the point of the backup:
   everything that was acknowledged before the backup began is before it.
5. Topics, groups, accounts and all other small files. So each message in the log has its topic.

If a topic is deleted meanwhile, recovery could revive a part of it. So the steps are repeated until
no topic was deleted between the second and the last one. They are also repeated if retention has
deleted a file that was about to be copied. Repeating is cheap: what has not changed is not copied.

A second backup into the same directory copies only what is new (`backup_files`). A file is known to
be unchanged by its size, modification time and inode number. Java's broker writes through mappings,
which do not always change the time of a file. So in its directories the last file of each queue,
and of the index, is always copied. The log is never compared by time: it only grows, and the end of
the part that was copied before is compared with the original.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from coherer._common.version import __version__
from coherer._store.backup_files import (
    DATA,
    LOCK,
    MANIFEST,
    LogPieces,
    Manifest,
    Piece,
    StoredFile,
    Walk,
    allocated,
    blocks,
    checksum,
    is_backup,
    load_manifest,
    log_folder,
    private_directory,
    save_manifest,
)
from coherer._store.checkpoint import CHECKPOINT_BYTES, Checkpoint
from coherer._store.files import (
    Files,
    OsFiles,
    ReadOnlyFiles,
    UnsyncedFiles,
    file_name,
    file_offsets,
    translate_os_errors,
)
from coherer.errors import StoreError, UsageError

OFFSETS: Final = ("config/consumerOffset.json", "config/delayOffset.json")
"""Files that refer to messages by offset; they are copied before the log."""

SMALL: Final = ("config", "conf", "conf/acl")
ACCOUNTS: Final = "conf"
VERSION_FILE: Final = "version.json"
"""The version of the directory (`_server/node/version.py`)."""

CHECKPOINT: Final = "checkpoint"
LARGE: Final = ("index", "consumequeue")

_IDENTITY: Final = "config/identity.json"
_SETTLED_NS: Final = 2_000_000_000
_COMPARED_BYTES: Final = 64 * 1024
_ATTEMPTS: Final = 10
_PIECES_MAX: Final = 64
"""The most pieces of one log file; after that the file is copied again as one piece."""

_SOURCE: Final = ReadOnlyFiles()
_FILES: Final = OsFiles()

Progress = Callable[[int, int], None]
"""Called with the number of bytes copied so far, and with the total."""


def no_progress(_done: int, _total: int) -> None:
    """Show nothing."""


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup did.

    Args:
        directory: the directory of the backup.
        source: the directory of the node.
        created_ms: when it was taken, ms since 1970.
        log_begin: the first offset of the log; None for a node without a log.
        log_end: the point of the log: all messages before it are in the backup.
        files: how many files and pieces of the log make up the backup.
        copied: how many of them were copied now.
        copied_bytes: how many bytes were copied now, without holes.
    """

    directory: str
    source: str
    created_ms: int
    log_begin: int | None
    log_end: int | None
    files: int
    copied: int
    copied_bytes: int


def back_up(
    source: Path,
    target: Path,
    *,
    accounts: bool = True,
    progress: Progress = no_progress,
    files: Files = _FILES,
    wall_ns: Callable[[], int] = time.time_ns,
) -> BackupReport:
    """Copy the directory of a node, which may run, or add what is new to an earlier copy.

    Args:
        source: the directory of the node, or of a Java broker.
        target: the directory of the backup; it is created, or holds an earlier one.
        accounts: copy `conf/`, which holds the secrets of accounts.
        progress: called while bytes are copied.
        files: the file access.
        wall_ns: the time of day in ns.

    Raises:
        UsageError: the source is not a node's directory, or the target holds something else.
        StoreError: another backup is running there, or a disk failed. The previous backup is valid.
    """
    _check_directories(source, target)
    with translate_os_errors(f"write {target}"):
        private_directory(target)
        with _locked(files, target):
            previous = load_manifest(target) if is_backup(target) else None
            run = _Backup(source, target, previous, files, progress, wall_ns)
            return run.run(accounts=accounts)


def _check_directories(source: Path, target: Path) -> None:
    here, there = source.resolve(), target.resolve()
    if not any((source / name).is_dir() for name in ("commitlog", "config")):
        raise UsageError(
            f"There is no node in {source}: it has neither commitlog nor config.",
            hint="Name the directory that the node was started with (--directory).",
        )
    if here == there or here in there.parents or there in here.parents:
        raise UsageError(
            f"A backup in {target} would lie inside the directory of the node, or around it.",
            hint="Name a directory elsewhere, preferably on another disk.",
        )
    if there.is_dir() and not is_backup(target):
        others = {path.name for path in there.iterdir()} - {LOCK, DATA, f"{MANIFEST}.tmp"}
        if others:
            raise UsageError(
                f"{target} holds other files, such as {min(others)}.",
                hint="Name a new directory, or one with an earlier backup.",
            )


@contextmanager
def _locked(files: Files, target: Path) -> Generator[None]:
    try:
        handle = files.lock(target / LOCK)
    except StoreError as error:
        raise StoreError(
            f"Another backup is being written to {target}.", hint="Wait until it has ended."
        ) from error
    try:
        yield
    finally:
        files.unlock(target / LOCK, handle)


class _Backup:
    """One run of a backup; the module describes the steps."""

    def __init__(
        self,
        source: Path,
        target: Path,
        previous: Manifest | None,
        files: Files,
        progress: Progress,
        wall_ns: Callable[[], int],
    ) -> None:
        self._source, self._target = source, target
        self._previous = previous
        self._files = files
        self._progress = progress
        self._wall_ns = wall_ns
        self._generation = 1 if previous is None else previous.generation + 1
        self._known = {} if previous is None else {one.path: one for one in previous.files}
        self._by_time = True  # equal times mean equal content
        self._unsynced = UnsyncedFiles()
        self._done = self._total = self._copied = 0

    def run(self, *, accounts: bool) -> BackupReport:
        self._remove_unnamed(self._previous)
        for _ in range(_ATTEMPTS):
            try:
                manifest = self._attempt(accounts=accounts)
            except FileNotFoundError:  # retention or the removal of a topic deleted it
                continue
            if manifest is not None:
                break
        else:
            raise StoreError(
                f"Topics were deleted or files expired in {self._source} during each of "
                f"{_ATTEMPTS} attempts to copy it.",
                hint="Try again when no topics are being deleted.",
            )
        self._unsynced.sync(self._files, self._target)
        save_manifest(self._files, self._target, manifest)
        self._remove_unnamed(manifest)
        log = manifest.log
        return BackupReport(
            directory=str(self._target),
            source=str(self._source),
            created_ms=manifest.created_ms,
            log_begin=None if log is None else log.begin,
            log_end=None if log is None else log.end,
            files=len(manifest.names()),
            copied=self._copied,
            copied_bytes=self._done,
        )

    def _attempt(self, *, accounts: bool) -> Manifest | None:
        """Copy everything once; None if a topic was deleted meanwhile."""
        source = self._source
        owner = _text(source / _IDENTITY)
        self._check_owner(owner)
        stored = [self._copy(path, last=False) for path in OFFSETS if (source / path).is_file()]
        checkpoint = None
        topics = _topics(source)
        if (source / CHECKPOINT).is_file():
            stored.append(self._copy(CHECKPOINT))
            checkpoint = self._checkpoint(stored[-1])
        self._by_time = checkpoint is not None and checkpoint.offset is not None
        large = list(self._large())
        self._total = self._done + sum(
            allocated(source / path) for path, last in large if not self._unchanged(path, last)
        )
        stored += [self._copy(path, last=last) for path, last in large]
        log = self._copy_log(None if checkpoint is None else checkpoint.offset)
        stored += [self._copy(path, last=False) for path in self._small(accounts=accounts)]
        now = _topics(source)
        if any(now.get(name) != number for name, number in topics.items()):
            return None
        return Manifest(
            coherer=__version__,
            created_ms=self._wall_ns() // 10**6,
            source=str(source.resolve()),
            generation=self._generation,
            owner=owner,
            log=log,
            files=stored,
        )

    def _check_owner(self, owner: str) -> None:
        before = "" if self._previous is None else self._previous.owner
        if before and owner and before != owner:
            raise UsageError(
                f"{self._target} holds a backup of another node: {before}, not {owner}.",
                hint="Use a directory for each node.",
            )

    # -- files that are copied whole

    def _large(self) -> Iterator[tuple[str, bool]]:
        """The files of index and queues, and whether each is the last one of its directory.

        The last one comes first: a file that has a successor is complete, and stays so.
        """
        for top in LARGE:
            for folder, _, _ in os.walk(self._source / top):
                ordered = _files_of(folder)
                for name in reversed(ordered):
                    path = Path(folder, name).relative_to(self._source).as_posix()
                    yield path, name == ordered[-1]

    def _small(self, *, accounts: bool) -> Iterator[str]:
        if (self._source / VERSION_FILE).is_file():
            yield VERSION_FILE
        for folder in SMALL:
            if not accounts and folder.partition("/")[0] == ACCOUNTS:
                continue
            for name in _SOURCE.names(self._source / folder):
                path = f"{folder}/{name}"
                if path in OFFSETS or name.endswith((".tmp", ".bak", ".lock")):
                    continue
                if (self._source / path).is_file():
                    yield path

    def _unchanged(self, path: str, last: bool) -> StoredFile | None:
        known = self._known.get(path)
        if known is None or not known.settled or (last and not self._by_time):
            return None
        return known if _stamp(self._source / path) == known.stamp else None

    def _copy(self, path: str, *, last: bool = True) -> StoredFile:
        """Copy a file if it has changed.

        Raises:
            FileNotFoundError: it does not exist any more.
            OSError: a disk failed.
        """
        known = self._unchanged(path, last)
        if known is not None:
            return known
        began_ns = self._wall_ns()
        name = f"{self._generation:08d}/{path}"
        handle = _SOURCE.open(self._source / path)
        try:
            stamp = _stamp_of(os.fstat(handle))
            mode = os.fstat(handle).st_mode & 0o777
            crc = self._write(name, handle, 0, stamp[0])
        finally:
            _SOURCE.close(handle)
        copied = StoredFile(
            path, name, stamp[0], mode, crc, stamp, began_ns - stamp[1] >= _SETTLED_NS
        )
        self._known[path] = copied
        return copied

    def _write(self, name: str, source: int, begin: int, size: int) -> int:
        """Write a range of an open file to a new file of the backup; return its checksum."""
        path, files, crc = self._target / DATA / name, self._files, 0
        if not path.parent.exists():
            files.make_directory(path.parent)
            for folder in (path.parent, *path.parent.parents):
                self._unsynced.directories.add(folder)
                if folder == self._target:
                    break
        handle = files.open(path, create=True)
        try:
            if os.name == "posix":
                path.chmod(0o600)  # nobody else reads the accounts in a backup
            files.resize(handle, 0)
            for at, data in blocks(_SOURCE, source, begin, begin + size):
                files.write(handle, data, at)
                crc = checksum(crc, at, data)
                self._done += len(data)
                self._progress(self._done, max(self._total, self._done))
            files.resize(handle, size)
        finally:
            files.close(handle)
        self._unsynced.files.add(path)
        self._unsynced.directories.add(path.parent)
        self._copied += 1
        return crc

    def _checkpoint(self, stored: StoredFile) -> Checkpoint:
        handle = _SOURCE.open(self._target / DATA / stored.name)
        try:
            return Checkpoint.decode(_SOURCE.read(handle, CHECKPOINT_BYTES, 0))
        finally:
            _SOURCE.close(handle)

    # -- the log

    def _copy_log(self, covered: int | None) -> LogPieces | None:
        """Copy the log up to its last whole record.

        Args:
            covered: the offset of the checkpoint, where a record begins or the log ends.
        """
        folder = log_folder(self._source)
        begins = file_offsets(_SOURCE.names(folder))
        size = max([(folder / file_name(begin)).stat().st_size for begin in begins], default=0)
        if size == 0:
            before = None if self._previous is None else self._previous.log
            if before is not None and before.pieces:
                raise self._is_another(before)
            return LogPieces(0, 0, 0, []) if folder.is_dir() else None
        kept = self._kept(begins[0], size)
        at = max(covered or 0, kept[-1].end if kept else begins[0])
        if covered is None and not kept:
            at = self._last_written(begins)
        end = Walk(self._read, size).run(at)
        at = kept[-1].end if kept else begins[0]
        self._total = self._done + max(end - at, 0)
        pieces = list(kept)
        while at < end:
            stop = min(at - at % size + size, end)
            pieces.append(self._copy_piece(at, stop, size))
            at = stop
        return LogPieces(begins[0], end, size, pieces)

    def _copy_piece(self, begin: int, end: int, segment_bytes: int) -> Piece:
        first = begin - begin % segment_bytes
        handle = _SOURCE.open(log_folder(self._source) / file_name(first))
        name = f"{self._generation:08d}/commitlog/{file_name(begin)}-{file_name(end)}"
        try:
            crc = self._write(name, handle, begin - first, end - begin)
        finally:
            _SOURCE.close(handle)
        return Piece(begin, end, crc, name)

    def _kept(self, begin: int, segment_bytes: int) -> list[Piece]:
        """The pieces of the previous backup that are part of this one.

        Raises:
            UsageError: the log is not the one that was backed up.
        """
        log = None if self._previous is None else self._previous.log
        if log is None or not log.pieces:
            return []
        pieces = [one for one in log.pieces if one.end > begin]
        if not pieces and begin >= log.end:
            return []  # retention has deleted everything that was copied
        if segment_bytes == log.segment_bytes:
            while pieces and not self._is_same(pieces[-1], segment_bytes):
                pieces.pop()
            if pieces:
                last = pieces[-1].end - 1
                first = last - last % segment_bytes
                whole = [one for one in pieces if one.begin < first]
                return whole if len(pieces) - len(whole) >= _PIECES_MAX else pieces
        raise self._is_another(log)

    def _is_another(self, log: LogPieces) -> UsageError:
        return UsageError(
            f"The log in {self._source} is not the one that was backed up to {self._target} until "
            f"offset {log.end}.",
            hint="The node may have been replaced, or it lost its last messages in a power cut. "
            "The backup is unchanged; use another directory for the next one.",
        )

    def _is_same(self, piece: Piece, segment_bytes: int) -> bool:
        """Whether the end of a piece is in the log as it was copied."""
        size = min(piece.end - piece.begin, _COMPARED_BYTES)
        stored = self._target / DATA / piece.name
        if not stored.is_file() or stored.stat().st_size != piece.end - piece.begin:
            return False
        handle = _SOURCE.open(stored)
        try:
            kept = _SOURCE.read(handle, size, piece.end - piece.begin - size)
        finally:
            _SOURCE.close(handle)
        first = piece.begin - piece.begin % segment_bytes
        path = log_folder(self._source) / file_name(first)
        if not path.is_file():
            return False
        handle = _SOURCE.open(path)
        try:
            return _SOURCE.read(handle, size, piece.end - size - first) == kept
        finally:
            _SOURCE.close(handle)

    def _last_written(self, begins: list[int]) -> int:
        """Where the last file with content begins; Java's broker creates files ahead."""
        for begin in reversed(begins):
            if self._read(begin, 8).strip(b"\0"):
                return begin
        return begins[0]

    def _read(self, at: int, size: int) -> bytes:
        """Read the log by offset; nothing where there is no file."""
        folder = log_folder(self._source)
        begins = [begin for begin in file_offsets(_SOURCE.names(folder)) if begin <= at]
        if not begins:
            return b""
        try:
            handle = _SOURCE.open(folder / file_name(begins[-1]))
        except FileNotFoundError:
            return b""
        try:
            return _SOURCE.read(handle, size, at - begins[-1])
        finally:
            _SOURCE.close(handle)

    # -- the directory of the backup

    def _remove_unnamed(self, manifest: Manifest | None) -> None:
        """Remove files that no manifest names: remains of a killed backup, and replaced files."""
        named = set[str]() if manifest is None else manifest.names()
        data = self._target / DATA
        for folder, _, names in os.walk(data, topdown=False):
            for name in names:
                path = Path(folder, name)
                if path.relative_to(data).as_posix() not in named:
                    self._files.remove(path)
            with suppress(OSError):  # it is not empty
                Path(folder).rmdir()


def _topics(source: Path) -> dict[str, int]:
    """The inode number of each topic's directory; a topic that was created anew has another one."""
    folder = source / "consumequeue"
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as found:
        return {one.name: one.inode() for one in found if one.is_dir()}


def _files_of(folder: str) -> list[str]:
    """The names of the files in a directory, sorted, without gaps between those that are new.

    While a large directory is read, files may be created in it, and then a later one may be listed
    without an earlier one. So it is read until two readings agree: whatever is new in the second
    one would have been created after the first, and the first could not have listed its successor.
    """
    before: list[str] | None = None
    while True:
        with os.scandir(folder) as found:
            names = sorted(one.name for one in found if not one.is_dir())
        if names == before:
            return names
        before = names


def _stamp(path: Path) -> tuple[int, int, int]:
    return _stamp_of(path.stat())


def _stamp_of(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
