"""Verifies a backup, and turns it into the directory of a node.

A restored directory is what a crash would have left: the first start of the node recovers it. While
files are being written, the directory has a file `restore-incomplete`; a node does not start in it.

A backup may come from anywhere, and a restore may run as root. So nothing is written outside of the
new directory: the manifest is compared with what a backup can contain (`backup_contents`) before
anything is written, symbolic links are refused, and no file is written that exists already.

The new directory has a history of its own, which continues that of the backup (`history`).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from coherer._store.backup import Progress, no_progress
from coherer._store.backup_contents import (
    ACCOUNTS,
    CHECKPOINT,
    CONFIG,
    LARGE,
    LOG,
    LOG_MODE,
    LogPieces,
    Manifest,
    Part,
    Piece,
    StoredFile,
    kind_of,
    refuse_links,
    safe_mode,
)
from coherer._store.backup_files import (
    DATA,
    LOCK,
    Walk,
    allocated,
    blocks,
    checksum,
    explain_full_disk,
    is_backup,
    is_inside_backup,
    load_manifest,
    log_folder,
    stored_checksum,
)
from coherer._store.files import (
    Files,
    OsFiles,
    ReadOnlyFiles,
    UnsyncedFiles,
    file_name,
    make_durable_directory,
    translate_os_errors,
)
from coherer._store.history import HISTORY_FILE, Ancestor, History, save_history
from coherer._store.marks import RESTORE_INCOMPLETE, VERSION_FILE
from coherer._store.verify import LOST, Problem, VerifyReport
from coherer.errors import DamagedStoreError, StoreError, UsageError

_WRITTEN: Final = {
    CONFIG,
    ACCOUNTS,
    *LARGE,
    LOG,
    VERSION_FILE,
    CHECKPOINT,
    HISTORY_FILE,
    f"{HISTORY_FILE}.tmp",
    "abort",
    RESTORE_INCOMPLETE,
}
"""The names that a restore writes into the new directory."""

_SOURCE: Final = ReadOnlyFiles()
_FILES: Final = OsFiles()


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore.

    Args:
        backup: the directory of the backup.
        created_ms: when the backup was taken, ms since 1970.
        log_begin: the first offset of the log; None for a node without a log.
        log_end: the offset after the last record.
        files: how many files were written.
        written_bytes: how many bytes were written, without holes.
    """

    backup: str
    directory: str
    created_ms: int
    log_begin: int | None
    log_end: int | None
    files: int
    written_bytes: int


def verify_backup(directory: Path) -> VerifyReport:
    """Compare all files of a backup with their checksums, and step over all records of its log.

    Raises:
        UsageError: there is no backup.
        DamagedStoreError: its manifest is invalid.
        StoreError: the disk failed, or a backup is being written there.
    """
    load_manifest(directory)  # no lock is written to a directory that is not a backup
    problems: list[Problem] = []
    with translate_os_errors(f"read {directory}"), _locked(directory):
        manifest = load_manifest(directory)
        refuse_links(directory, [directory / DATA / name for name in manifest.names()])
        problems += [
            _damaged(_part(one.path), one.path)
            for one in manifest.files
            if stored_checksum(_SOURCE, directory / DATA / one.name, one.size) != one.crc
        ]
        log, records = manifest.log or LogPieces(0, 0, 0, []), 0
        for piece in log.pieces:
            stored = directory / DATA / piece.name
            if stored_checksum(_SOURCE, stored, piece.end - piece.begin) != piece.crc:
                problems.append(_damaged("log", f"bytes {piece.begin} to {piece.end}"))
                continue
            count, problem = _count(stored, piece, log.segment_bytes)
            records += count
            problems += problem
    queues = {one.path.rpartition("/")[0] for one in manifest.files if _part(one.path) == "queue"}
    return VerifyReport(
        closed=False,
        log_begin=log.begin,
        log_end=log.end,
        records=records,
        queues=len(queues),
        problems=problems,
    )


def _part(path: str) -> Part:
    kind = kind_of(path)
    return "config" if kind is None else kind.part


def _damaged(part: Part, where: str) -> Problem:
    what = "it is missing, or its checksum is wrong; take another backup"
    return Problem(part=part, where=where, what=what, repairable=False, outcome=LOST)


def _count(stored: Path, piece: Piece, segment_bytes: int) -> tuple[int, list[Problem]]:
    """Count the valid records of a piece, and report where they end too early."""
    handle = _SOURCE.open(stored)
    try:
        walk = Walk(lambda at, size: _SOURCE.read(handle, size, at - piece.begin), segment_bytes)
        end = walk.run(piece.begin, piece.end)
    finally:
        _SOURCE.close(handle)
    if end == piece.end:
        return walk.records, []
    what = f"there is no valid record ({walk.reason}), as in the log that was backed up"
    where = f"bytes {end} to {piece.end}"
    problem = Problem(part="log", where=where, what=what, repairable=False, outcome=LOST)
    return walk.records, [problem]


def restore(
    backup: Path,
    target: Path,
    *,
    progress: Progress = no_progress,
    files: Files = _FILES,
) -> RestoreReport:
    """Write the directory of a node from a backup. Every byte is compared with its checksum.

    Args:
        target: a directory that is missing or empty, or holds a restore that did not finish.
        progress: called while bytes are written.

    Raises:
        UsageError: there is no backup, or the target is not empty.
        DamagedStoreError: the backup is damaged.
        StoreError: a disk failed.
    """
    load_manifest(backup)  # no lock is written to a directory that is not a backup
    with translate_os_errors(f"restore {target}"), _locked(backup):
        manifest = load_manifest(backup)
        refuse_links(backup, [backup / DATA / name for name in manifest.names()])
        _check_target(backup, target)
        with _alone(target, files):
            run = _Restore(backup, target, files, progress)
            with explain_full_disk(f"Until then no node starts in {target}."):
                run.run(manifest)
    log = manifest.log
    return RestoreReport(
        backup=str(backup),
        directory=str(target),
        created_ms=manifest.created_ms,
        log_begin=None if log is None else log.begin,
        log_end=None if log is None else log.end,
        files=run.written,
        written_bytes=run.done,
    )


def _history(manifest: Manifest) -> History:
    """The history of a directory that is restored from a backup."""
    if not manifest.history:
        return History.new()
    parent = Ancestor(manifest.history, manifest.log_end, manifest.created_ms)
    return History.new([parent, *manifest.ancestors])


def _check_target(backup: Path, target: Path) -> None:
    here, there = backup.resolve(), target.resolve()
    if here == there or there in here.parents or is_backup(there) or is_inside_backup(target):
        raise UsageError(
            f"{target} would lie inside a backup, or around the one to restore.",
            hint="Name a directory elsewhere.",
        )
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file.", hint="Name a new directory.")


@contextmanager
def _alone(target: Path, files: Files) -> Generator[None]:
    """Empty the target of an interrupted restore, and keep another one from writing there."""
    _check_content(target, files)
    refuse_links(target, [target / LOCK, target / RESTORE_INCOMPLETE])
    make_durable_directory(files, target.absolute())
    try:
        handle = files.lock(target / LOCK)
    except StoreError as error:
        raise StoreError(
            f"Another restore, or a node, is writing to {target}.",
            hint="Name another directory, or wait until it has ended.",
        ) from error
    try:
        names = _check_content(target, files)  # another restore may have ended meanwhile
        files.close(files.open(target / RESTORE_INCOMPLETE, create=True))
        files.sync_directory(target)
        for name in names - {RESTORE_INCOMPLETE}:
            path = target / name
            if path.is_dir() and not path.is_symlink():
                files.remove_tree(path)
            else:
                files.remove(path)
        yield
    finally:
        files.unlock(target / LOCK, handle)


def _check_content(target: Path, files: Files) -> set[str]:
    """The names in the target, which must be empty or hold an interrupted restore."""
    names = set(files.names(target)) - {LOCK}
    if names and RESTORE_INCOMPLETE not in names:
        raise UsageError(
            f"{target} is not empty.", hint="Name a new directory; a restore never overwrites one."
        )
    others = names - _WRITTEN
    if others:
        raise UsageError(
            f"{target} holds other files than an interrupted restore leaves, such as "
            f"{min(others)}.",
            hint="Name a new directory; a restore never removes what it did not write.",
        )
    return names


class _Restore:
    def __init__(self, backup: Path, target: Path, files: Files, progress: Progress) -> None:
        self._backup, self._target = backup, target
        self._files = files
        self._progress = progress
        self._unsynced = UnsyncedFiles()
        self.done = self.written = 0
        pieces = (backup / DATA).rglob("*")
        self._total = sum(allocated(path) for path in pieces if path.is_file())

    def run(self, manifest: Manifest) -> None:
        """Write everything, and mark the directory as complete.

        Raises:
            DamagedStoreError: the backup is damaged.
            OSError: a disk failed.
        """
        for one in manifest.files:
            self._copy_file(one)
        log = manifest.log
        for piece in [] if log is None else log.pieces:
            self._copy_piece(piece, 0 if log is None else log.segment_bytes)
        if log is not None:
            self._finish_log(log)
        self._unsynced.sync(self._files, self._target)
        save_history(self._files, self._target, _history(manifest))
        self._files.remove(self._target / RESTORE_INCOMPLETE)
        self._files.sync_directory(self._target)

    def _copy_file(self, one: StoredFile) -> None:
        """Write a file that is stored whole.

        Raises:
            DamagedStoreError: its path exists already, where `A` and `a` are one name.
            OSError: a disk failed.
        """
        path = self._target / one.path
        if path.exists() or path.is_symlink():
            raise DamagedStoreError(
                f"{path} exists already: the backup has two files that this file system takes "
                "for one.",
                hint="Restore to a file system that distinguishes upper and lower case.",
            )
        self._copy(one.name, path, 0, one.size, one.crc, safe_mode(one.mode))

    def _copy(self, name: str, path: Path, begin: int, size: int, crc: int, mode: int) -> None:
        """Write a stored file at a position of a file.

        Raises:
            DamagedStoreError: the stored file does not match its checksum.
            OSError: a disk failed.
        """
        stored, files, found = self._backup / DATA / name, self._files, 0
        if not stored.is_file() or stored.stat().st_size != size:
            raise _wrong(stored)
        if not path.parent.exists():
            files.make_directory(path.parent)
            for folder in (path.parent, *path.parent.parents):
                self._unsynced.directories.add(folder)
                if folder == self._target:
                    break
        created = not path.exists()
        source, handle = _SOURCE.open(stored), files.open(path, create=True)
        try:
            if created and os.name == "posix":
                path.chmod(mode)
            for at, data in blocks(_SOURCE, source, 0, size):
                files.write(handle, data, begin + at)
                found = checksum(found, at, data)
                self.done += len(data)
                self._progress(self.done, max(self._total, self.done))
            if files.size(handle) < begin + size:
                files.resize(handle, begin + size)
        finally:
            files.close(handle)
            _SOURCE.close(source)
        if found != crc:
            raise _wrong(stored)
        self.written += created
        self._unsynced.files.add(path)
        self._unsynced.directories.add(path.parent)

    def _copy_piece(self, piece: Piece, segment_bytes: int) -> None:
        """Write a piece of the log to its place."""
        first = piece.begin - piece.begin % segment_bytes
        path = log_folder(self._target) / file_name(first)
        size = piece.end - piece.begin
        self._copy(piece.name, path, piece.begin - first, size, piece.crc, LOG_MODE)

    def _finish_log(self, log: LogPieces) -> None:
        """Give the log files their full size, and mark the store as not closed."""
        files, folder = self._files, log_folder(self._target)
        files.make_directory(folder)
        for name in files.names(folder):
            handle = files.open(folder / name)
            try:
                files.resize(handle, log.segment_bytes)
            finally:
                files.close(handle)
        abort = self._target / "abort"
        files.close(files.open(abort, create=True))
        self._unsynced.files.add(abort)


def _wrong(stored: Path) -> DamagedStoreError:
    return DamagedStoreError(
        f"The backup is damaged: {stored} is missing, or its checksum is wrong.",
        hint="`coherer verify` lists everything that is damaged in it.",
    )


@contextmanager
def _locked(backup: Path) -> Generator[None]:
    """Keep other processes from writing the backup; read-only media need no lock."""
    refuse_links(backup, [backup / LOCK])  # a lock is written
    handle = None
    try:
        with suppress(OSError):
            handle = _FILES.lock(backup / LOCK)
    except StoreError as error:
        raise StoreError(
            f"Another backup, verify or restore uses {backup}.", hint="Wait until it has ended."
        ) from error
    try:
        yield
    finally:
        if handle is not None:
            _FILES.unlock(backup / LOCK, handle)
