"""Copies the directory of a running node, without locks and without the node's help.

The copy is what a crash of the node would leave at one point of the log, so the next start recovers
it like a crash. The order of the steps makes it consistent:

1. The offsets of groups. All messages they refer to are in the log already.
2. The checkpoint. It says up to where queues and index agree with the log.
3. Index and queues. They cover the checkpoint; recovery corrects anything beyond it.
4. The log, up to the last whole record that exists now. This is the point of the backup:
   everything that was acknowledged before the backup began is before it. The files of the log are
   synced first. Otherwise a power cut could leave the node behind its backup, and it would store
   other messages at offsets that the backup holds.
5. Topics, groups, accounts and all other small files. So each message in the log has its topic.

If a topic is deleted meanwhile, recovery could revive a part of it. So the steps are repeated until
no topic was deleted between the second and the last one (`history.removals_token`; for Java's
broker, which has no such token, the inode numbers of the topics' directories). They are also
repeated if retention has deleted a file that was about to be copied. Repeating is cheap: unchanged
files are not copied again.

A second backup into the same directory copies only new data (`backup_files`), after comparisons
(`backup_checks`). A file is known to be unchanged by its size, modification time and inode number.
Java's broker writes through mappings, which do not always change the time of a file. So in its
directories the last file of each queue, and of the index, is always copied. The log is never
compared by time: it only grows, and earlier copies are compared with it.

Every copied byte is read again and compared with its checksum before the manifest is replaced. So
the previous backup stays valid until the new one is complete and verified.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from coherer._common.version import __version__
from coherer._store.backup_checks import Checked, check_held, check_history
from coherer._store.backup_contents import (
    ACCOUNT_FILES,
    ACCOUNTS,
    CHECKPOINT,
    CONFIG,
    LARGE,
    LogPieces,
    Manifest,
    Piece,
    StoredFile,
    kind_of,
    piece_path,
    refuse_links,
    safe_mode,
    stored_name,
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
    private_directory,
    range_checksum,
    save_manifest,
    stored_checksum,
)
from coherer._store.backup_queues import LogView, find_lost_entry
from coherer._store.checkpoint import CHECKPOINT_BYTES, Checkpoint
from coherer._store.config_files import PREVIOUS, unsealed
from coherer._store.files import (
    Files,
    OsFiles,
    ReadOnlyFiles,
    UnsyncedFiles,
    file_name,
    file_offsets,
    translate_os_errors,
)
from coherer._store.history import History, load_history, removals_token
from coherer._store.marks import MANIFEST, VERSION_FILE
from coherer.errors import DamagedStoreError, StoreError, UsageError

OFFSETS: Final = ("config/consumerOffset.json", "config/delayOffset.json")
"""Files that refer to messages by offset; they are copied before the log."""

INCOMPLETE: Final = "backup-incomplete"
"""Marks a directory whose first backup has not finished: its content may be deleted."""

_IDENTITY: Final = "config/identity.json"
_SETTLED_NS: Final = 2_000_000_000
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
    """The result of a backup.

    Args:
        source: the directory of the node.
        created_ms: when it was taken, ms since 1970.
        log_begin: the first offset of the log; None for a node without a log.
        log_end: the point of the log: all messages before it are in the backup.
        files: how many files and pieces of the log make up the backup.
        copied: how many of them were copied now.
        copied_bytes: how many bytes were copied now, without holes.
        compared_bytes: how many bytes of the earlier backup were compared with their checksums.
        repaired: files of the earlier backup that were missing or damaged, and were copied again.
    """

    directory: str
    source: str
    created_ms: int
    log_begin: int | None
    log_end: int | None
    files: int
    copied: int
    copied_bytes: int
    compared_bytes: int
    repaired: list[str]


def back_up(
    source: Path,
    target: Path,
    *,
    accounts: bool = True,
    everything: bool = False,
    progress: Progress = no_progress,
    files: Files = _FILES,
    wall_ns: Callable[[], int] = time.time_ns,
) -> BackupReport:
    """Copy the directory of a node, which may run, or update an earlier copy.

    Args:
        source: the directory of the node, or of a Java broker.
        target: the directory of the backup; it is created, or holds an earlier one.
        accounts: copy `conf/`, which holds the secrets of accounts.
        everything: compare the whole earlier backup, not only a part of it.
        progress: called while bytes are copied.
        wall_ns: the time of day in ns.

    Raises:
        UsageError: the source is not a node's directory, or the target holds something else.
        DamagedStoreError: the log of the node is damaged, or the backup beyond repair.
        StoreError: another backup is running there, or a disk failed. The previous backup is valid.
    """
    _check_directories(source, target)
    with translate_os_errors(f"write {target}"):
        private_directory(files, target)
        names = (DATA, LOCK, INCOMPLETE, MANIFEST, f"{MANIFEST}.tmp")
        refuse_links(target, [target / name for name in names])
        with _locked(files, target):
            previous = load_manifest(target) if is_backup(target) else None
            run = _Backup(source, target, previous, files, progress, wall_ns)
            with explain_full_disk("The previous backup is unchanged."):
                return run.run(accounts=accounts, everything=everything)


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
    for path in (source, target):
        backup = is_inside_backup(path)
        if backup is not None:
            raise UsageError(
                f"{path} lies inside the backup {backup}, which may remove it.",
                hint="Name a directory elsewhere.",
            )
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file.", hint="Name a directory.")
    if there.is_dir() and not is_backup(target):
        names = {path.name for path in there.iterdir()}
        if DATA in names and INCOMPLETE not in names:
            raise UsageError(
                f"{target} holds the files of a backup, but its {MANIFEST} is missing.",
                hint="Nothing was changed. Name a new directory, or put the file back.",
            )
        others = names - {LOCK, DATA, INCOMPLETE, f"{MANIFEST}.tmp"}
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
            f"Another backup, verify or restore uses {target}.", hint="Wait until it has ended."
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
        self._held = dict(self._known)  # intact files of the previous backup
        self._by_time = True  # equal times mean equal content
        self._unsynced = UnsyncedFiles()
        self._written: dict[str, tuple[int, int]] = {}  # size and checksum
        self._repaired: set[str] = set()
        self._done = self._total = self._compared = 0

    def run(self, *, accounts: bool, everything: bool) -> BackupReport:
        if self._previous is None:
            self._files.close(self._files.open(self._target / INCOMPLETE, create=True))
        self._files.sync_directory(self._target)  # the manifest, before its old files go
        self._remove_unnamed(self._previous)
        try:
            manifest = self._copy_everything(accounts=accounts, everything=everything)
        except (OSError, StoreError, UsageError):
            with suppress(OSError):  # a full disk gets its space back
                self._remove_unnamed(self._previous)
            raise
        save_manifest(self._files, self._target, manifest)
        self._files.remove(self._target / INCOMPLETE)
        self._remove_unnamed(manifest)
        log, names = manifest.log, manifest.names()
        return BackupReport(
            directory=str(self._target),
            source=str(self._source),
            created_ms=manifest.created_ms,
            log_begin=None if log is None else log.begin,
            log_end=None if log is None else log.end,
            files=len(names),
            copied=len(names & self._written.keys()),
            copied_bytes=self._done,
            compared_bytes=self._compared,
            repaired=sorted(self._repaired),
        )

    def _copy_everything(self, *, accounts: bool, everything: bool) -> Manifest:
        """Copy, sync and verify; the manifest is not replaced yet."""
        missing = ""
        for _ in range(_ATTEMPTS):
            try:
                manifest = self._attempt(accounts=accounts, everything=everything)
            except FileNotFoundError as error:  # by retention or the removal of a topic
                missing = f", the last time {error.filename}"
                continue
            if manifest is not None:
                break
        else:
            raise StoreError(
                f"Topics were deleted or files expired in {self._source} during each of "
                f"{_ATTEMPTS} attempts to copy it{missing}.",
                hint="Try again when no topics are being deleted. If a file of the log is missing "
                "between others, `coherer verify` says so.",
            )
        self._unsynced.sync(self._files, self._target)
        self._verify(manifest)
        return manifest

    def _verify(self, manifest: Manifest) -> None:
        """Read the copied files, and compare them with their checksums.

        Raises:
            StoreError: the disk returns other bytes.
        """
        for name in manifest.names() & self._written.keys():
            size, crc = self._written[name]
            if stored_checksum(_SOURCE, self._target / DATA / name, size) != crc:
                raise StoreError(
                    f"{self._target / DATA / name} does not hold the bytes that were written to "
                    "it.",
                    hint="Check the disk of the backup. The previous backup is unchanged.",
                )

    def _attempt(self, *, accounts: bool, everything: bool) -> Manifest | None:
        """Copy everything once; None if a topic was deleted meanwhile."""
        source = self._source
        history, owner = load_history(source), _owner(source / _IDENTITY)
        held = self._check(history, owner, everything=everything)
        stored = [
            self._copy(path, last=False)
            for name in OFFSETS
            for path in (name, name + PREVIOUS)
            if self._original(path).is_file()
        ]
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
        covered = None if checkpoint is None else checkpoint.offset
        log = self._copy_log(covered, held)
        stored += [self._copy(path, last=False) for path in self._small(accounts=accounts)]
        if _are_removed(topics, _topics(source)):
            return None
        if log is not None:
            self._check_queues(stored, LogView(self._read, log.begin, covered))
        return Manifest(
            coherer=__version__,
            created_ms=self._wall_ns() // 10**6,
            source=str(source.resolve()),
            generation=self._generation,
            owner=owner,
            log=log,
            files=stored,
            history="" if history is None else history.id,
            ancestors=[] if history is None else history.ancestors,
            checked=held.last,
        )

    def _check(self, history: History | None, owner: str, *, everything: bool) -> Checked:
        """Compare the previous backup with its checksums and with the node."""
        previous = self._previous
        if previous is None:
            return Checked([], frozenset(), 0, "")
        unknown = check_history(previous, history, owner, self._source, self._target)
        held = check_held(
            previous,
            self._source,
            self._target,
            unknown=unknown,
            everything=everything or (unknown and history is not None),
        )
        self._compared = max(self._compared, held.bytes)
        for path, one in list(self._known.items()):
            if one.name in held.damaged:
                del self._known[path]
                self._held.pop(path, None)
        self._repaired |= held.damaged
        return held

    # -- files that are copied whole

    def _large(self) -> Iterator[tuple[str, bool]]:
        """The files of index and queues, and whether each is the last one of its directory."""
        for top in LARGE:
            for folder, _, _ in os.walk(self._source / top):
                below = Path(folder).relative_to(self._source).as_posix()
                names = _files_of(folder)
                ordered = [name for name in names if kind_of(f"{below}/{name}") is not None]
                # The last one comes first: a file that has a successor is complete, and stays so.
                for name in reversed(ordered):
                    yield f"{below}/{name}", name == ordered[-1]

    def _small(self, *, accounts: bool) -> Iterator[str]:
        if (self._source / VERSION_FILE).is_file():
            yield VERSION_FILE
        folders = [CONFIG]
        if accounts:
            folders.append(ACCOUNTS)
            for folder, _, _ in os.walk(self._source / ACCOUNT_FILES):
                folders.append(Path(folder).relative_to(self._source).as_posix())
        for folder in folders:
            names = set(_SOURCE.names(self._source / folder))
            if folder == CONFIG:  # a file may exist only as its previous version
                names |= {name.removesuffix(PREVIOUS) for name in names}
            for name in sorted(names):
                path = f"{folder}/{name}"
                if path.removesuffix(PREVIOUS) in OFFSETS or name.endswith((".tmp", ".lock")):
                    continue
                if kind_of(path) is not None and self._original(path).is_file():
                    yield path

    def _original(self, path: str) -> Path:
        """The file that a starting node would read for a path; perhaps its previous version."""
        found = self._source / path
        previous = found.with_name(found.name + PREVIOUS)
        # The previous version is copied on its own, too: a start needs it if the file cannot be
        # parsed.
        if path.startswith(f"{CONFIG}/") and not _has_content(found) and _has_content(previous):
            return previous
        return found

    def _unchanged(self, path: str, last: bool) -> StoredFile | None:
        known = self._known.get(path)
        if known is None or not known.settled or (last and not self._by_time):
            return None
        return known if _stamp(self._original(path)) == known.stamp else None

    def _check_queues(self, stored: list[StoredFile], log: LogView) -> None:
        """Compare the copied files of queues with those of the previous backup.

        Raises:
            DamagedStoreError: the node has lost an entry that the previous backup holds.
        """
        data = self._target / DATA
        for one in stored:
            held, kind = self._held.get(one.path), kind_of(one.path)
            if held is None or held.name == one.name or kind is None or kind.part != "queue":
                continue
            lost = find_lost_entry(one.path, data / held.name, data / one.name, log)
            if lost is not None:
                raise DamagedStoreError(
                    f"Entry {lost} in {self._source / one.path} is damaged; {self._target} holds "
                    "the right one.",
                    hint="The backup is unchanged. Stop the node, run `coherer verify --repair`, "
                    "which rebuilds the queue from the log, start the node, and back up again.",
                )

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
        name = stored_name(self._generation, path)
        handle = _SOURCE.open(self._original(path))
        try:
            stamp = _stamp_of(os.fstat(handle))
            mode = safe_mode(os.fstat(handle).st_mode)
            crc = self._write(name, stamp[0], [(handle, 0, stamp[0])])
        finally:
            _SOURCE.close(handle)
        copied = StoredFile(
            path, name, stamp[0], mode, crc, stamp, began_ns - stamp[1] >= _SETTLED_NS
        )
        self._known[path] = copied
        return copied

    def _write(self, name: str, size: int, parts: Iterable[tuple[int, int, int]]) -> int:
        """Write ranges of open files, one after the other, to a new file; return its checksum.

        Args:
            parts: handles of files, where the ranges begin, and their sizes.
        """
        path, files = self._target / DATA / name, self._files
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
            crc = self._write_parts(handle, parts)
            files.resize(handle, size)
        finally:
            files.close(handle)
        self._unsynced.files.add(path)
        self._unsynced.directories.add(path.parent)
        self._written[name] = size, crc
        return crc

    def _write_parts(self, target: int, parts: Iterable[tuple[int, int, int]]) -> int:
        crc, place, count = 0, 0, 0
        for source, begin, size in parts:
            for at, data in blocks(_SOURCE, source, begin, begin + size):
                self._files.write(target, data, place + at)
                crc = checksum(crc, at, data)
                self._done += len(data)
                self._progress(self._done, max(self._total, self._done))
            place += size
            count += 1
        # The checksum of several parts depends on how blocks divide the whole.
        return crc if count == 1 else range_checksum(self._files, target, 0, place)

    def _checkpoint(self, stored: StoredFile) -> Checkpoint:
        handle = _SOURCE.open(self._target / DATA / stored.name)
        try:
            return Checkpoint.decode(_SOURCE.read(handle, CHECKPOINT_BYTES, 0))
        finally:
            _SOURCE.close(handle)

    # -- the log

    def _copy_log(self, covered: int | None, held: Checked) -> LogPieces | None:
        """Copy the log up to its last whole record.

        Args:
            covered: the offset of the checkpoint, where a record begins or the log ends.
        """
        folder = log_folder(self._source)
        begins = file_offsets(_SOURCE.names(folder))
        size = max([(folder / file_name(begin)).stat().st_size for begin in begins], default=0)
        if size == 0:
            return LogPieces(0, 0, 0, []) if folder.is_dir() else None
        pieces = [
            self._repair(one, size) if one.name in held.damaged else one
            for one in held.kept
            if one.end > begins[0]
        ]
        at = max(covered or 0, pieces[-1].end if pieces else begins[0])
        if covered is None and not pieces:
            at = self._last_written(begins)
        end = Walk(self._read, size).run(at)
        at = pieces[-1].end if pieces else begins[0]
        self._sync_log([begin for begin in begins if at < begin + size and begin < end])
        self._total = self._done + max(end - at, 0)
        pieces = self._merge(pieces, size)
        begin = pieces[0].begin if pieces else begins[0]
        while at < end:
            stop = min(at - at % size + size, end)
            pieces.append(self._copy_piece(at, stop, size))
            at = stop
        return LogPieces(begin, end, size, pieces)

    def _sync_log(self, begins: list[int]) -> None:
        """Sync files of the node's log: with async flush their end may not be on its disk."""
        if os.name != "posix":
            return  # a file that is open for reading cannot be synced there
        folder = log_folder(self._source)
        for begin in begins:
            handle = _SOURCE.open(folder / file_name(begin))
            try:
                _SOURCE.sync(handle)
            finally:
                _SOURCE.close(handle)
        if begins:
            _SOURCE.sync_directory(folder)

    def _copy_piece(self, begin: int, end: int, segment_bytes: int) -> Piece:
        first = begin - begin % segment_bytes
        handle = _SOURCE.open(log_folder(self._source) / file_name(first))
        name = stored_name(self._generation, piece_path(begin, end))
        try:
            crc = self._write(name, end - begin, [(handle, begin - first, end - begin)])
        finally:
            _SOURCE.close(handle)
        return Piece(begin, end, crc, name)

    def _repair(self, piece: Piece, segment_bytes: int) -> Piece:
        """Copy a damaged piece again; the log still has the bytes of its checksum."""
        copied = self._copy_piece(piece.begin, piece.end, segment_bytes)
        if copied.crc != piece.crc:
            raise StoreError(
                f"The log in {self._source} returned other bytes for offset {piece.begin} to "
                f"{piece.end} when they were read again.",
                hint="Check the disk of the node. The previous backup is unchanged.",
            )
        return copied

    def _merge(self, pieces: list[Piece], segment_bytes: int) -> list[Piece]:
        """Join the pieces of the last file of the log if there are many."""
        last = pieces[-1].begin - pieces[-1].begin % segment_bytes if pieces else 0
        parts = [one for one in pieces if one.begin >= last]
        if len(parts) < _PIECES_MAX:
            return pieces
        for one in parts:
            stored = self._target / DATA / one.name
            if stored_checksum(_SOURCE, stored, one.end - one.begin) != one.crc:
                return pieces  # the next backup finds and repairs it
        begin, end = parts[0].begin, parts[-1].end
        name = stored_name(self._generation, piece_path(begin, end))
        # They are read from the backup, not from the log: the backup never replaces its bytes.
        with ExitStack() as opened:
            ranges: list[tuple[int, int, int]] = []
            for one in parts:
                handle = _SOURCE.open(self._target / DATA / one.name)
                opened.callback(_SOURCE.close, handle)
                ranges.append((handle, 0, one.end - one.begin))
            crc = self._write(name, end - begin, ranges)
        return [*pieces[: -len(parts)], Piece(begin, end, crc, name)]

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
        for folder, folders, names in os.walk(data, topdown=False):
            links = [name for name in folders if Path(folder, name).is_symlink()]
            for name in (*names, *links):
                path = Path(folder, name)
                if path.relative_to(data).as_posix() not in named:
                    self._files.remove(path)
            with suppress(OSError):  # it is not empty
                Path(folder).rmdir()


class _Topics(NamedTuple):
    token: bytes
    inodes: dict[str, int]


def _topics(source: Path) -> _Topics:
    """The token of removals, and the inode number of each topic's directory."""
    folder, inodes = source / "consumequeue", dict[str, int]()
    token = removals_token(source)
    if folder.is_dir():
        with os.scandir(folder) as found:
            inodes = {one.name: one.inode() for one in found if one.is_dir()}
    return _Topics(token, inodes)


def _are_removed(before: _Topics, now: _Topics) -> bool:
    """Whether a topic was removed meanwhile, and perhaps created again."""
    return before.token != now.token or any(
        now.inodes.get(name) != number for name, number in before.inodes.items()
    )


def _files_of(folder: str) -> list[str]:
    """The sorted names of the files in a directory; no new file is listed without an older one."""
    # A file created while a large directory is read can be listed without an earlier one. So it is
    # read until two readings agree: whatever is new in the second one was created after the first,
    # and the first could not have listed its successor.
    before: list[str] | None = None
    while True:
        with os.scandir(folder) as found:
            names = sorted(one.name for one in found if not one.is_dir())
        if names == before:
            return names
        before = names


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def _stamp(path: Path) -> tuple[int, int, int]:
    return _stamp_of(path.stat())


def _stamp_of(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _owner(path: Path) -> str:
    try:
        return unsealed(path.read_bytes()).decode()
    except (FileNotFoundError, ValueError):  # a damaged file names nobody
        return ""
