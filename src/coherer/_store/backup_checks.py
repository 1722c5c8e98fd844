"""Comparisons before a backup continues an earlier one: a backup never gets worse.

Invariants:

* A backup is continued only by the history that it holds, or by a directory that was restored from
  exactly this state of it (`history`). Everything else is refused, and the backup stays as it is.
* A piece of the log that the backup holds is never replaced by other bytes. It is stored again only
  if the node's bytes have the checksum that the backup recorded.
* Every difference is an error that names the file, the offset and the remedy.

What is compared, so that the cost stays bounded:

* Each time: the size of every stored file; the last 64 KiB of the log that the backup holds, with
  the log of the node; and in turn about 256 MiB of stored files, so that a few backups compare
  everything.
* If asked, or if the backup has no history yet: everything.

To compare a stored file means to compute its checksum; for a piece of the log, the checksum of the
same range of the node's log too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from coherer._common.decoding import decoder
from coherer._store.backup_contents import LogPieces, Manifest, Piece
from coherer._store.backup_files import (
    DATA,
    Walk,
    has_size,
    log_folder,
    range_checksum,
    stored_checksum,
)
from coherer._store.files import ReadOnlyFiles, file_name
from coherer._store.history import History
from coherer.errors import DamagedStoreError, UsageError

COMPARED_BYTES: Final = 256 << 20
"""How many bytes of stored files each backup compares, and at least one file."""

_TAIL_BYTES: Final = 64 << 10
_SOURCE: Final = ReadOnlyFiles()
_ELSEWHERE: Final = "The backup is unchanged. Use another directory for the next one."


class Checked(NamedTuple):
    """The result of `check_held`.

    Attributes:
        kept: the pieces of the log that stay as they are or are copied again, oldest first.
        damaged: the names of the stored files that are missing or were changed.
        bytes: how many bytes of stored files were compared with their checksums.
        last: the name of the file that was compared last.
    """

    kept: list[Piece]
    damaged: frozenset[str]
    bytes: int
    last: str


def check_history(
    manifest: Manifest, history: History | None, owner: str, source: Path, target: Path
) -> bool:
    """Check that a directory continues the history of a backup.

    Args:
        owner: the identity of its node.

    Returns:
        Whether the backup or the directory has no history, so that only their content can show it.

    Raises:
        UsageError: it does not continue it.
    """
    before, now = manifest.history, "" if history is None else history.id
    if before and before == now:
        return False
    if not before:
        _check_owner(manifest.owner, owner, target)
        return True
    known = [] if history is None else history.ancestors
    ancestor = next((one for one in known if one.id == before), None)
    if ancestor is None:
        what = f"has the history {now}" if now else "has no history"
        raise UsageError(
            f"{target} holds a backup of another node: the history {before}, and {source} {what}.",
            hint="The node may have been replaced, or its directory created anew. " + _ELSEWHERE,
        )
    if manifest.log_end > ancestor.log_end or manifest.created_ms > ancestor.created_ms:
        raise UsageError(
            f"{source} was restored from this backup when its log ended at {ancestor.log_end}; "
            f"since then the backup was continued from another directory, until "
            f"{manifest.log_end}.",
            hint=f"{source} lacks all that was backed up since then. {_ELSEWHERE}",
        )
    return False


def _check_owner(before: str, now: str, target: Path) -> None:
    """Compare two identities, for backups and directories without a history.

    Raises:
        UsageError: they name different brokers.
    """
    try:
        one, other = (decoder(dict[str, str | int | None]).decode(text) for text in (before, now))
    except msgspec.DecodeError:
        return
    if any(one[name] != other[name] for name in one.keys() & other.keys()):
        raise UsageError(
            f"{target} holds a backup of another node: {before}, not {now}.",
            hint="Use a directory for each node.",
        )


def check_held(
    manifest: Manifest, source: Path, target: Path, *, unknown: bool, everything: bool
) -> Checked:
    """Compare the content of a backup with its checksums and with the log of the node.

    Args:
        source: the directory of the node.
        target: the directory of the backup.
        unknown: only the content can show whether the two belong together.
        everything: compare all stored files.

    Raises:
        UsageError: the log of the node is not the one that was backed up.
        DamagedStoreError: the log of the node is damaged, or a piece is damaged in the backup and
            the node does not have it any more.
        FileNotFoundError: retention has deleted a file of the log meanwhile.
        OSError: a disk failed.
    """
    return _Comparison(manifest, source, target).run(unknown=unknown, everything=everything)


class _Comparison:
    def __init__(self, manifest: Manifest, source: Path, target: Path) -> None:
        self._manifest, self._source, self._target = manifest, source, target
        self._log = manifest.log or LogPieces(0, 0, 0, [])
        self._crcs = {one.name: one.crc for one in manifest.files}
        self._crcs |= {one.name: one.crc for one in self._log.pieces}
        self._compared: set[str] = set()
        self._damaged: set[str] = set()
        self._bytes = 0
        self._last = manifest.checked

    def run(self, *, unknown: bool, everything: bool) -> Checked:
        kept = self._kept(unknown=unknown)
        sizes = {one.name: one.size for one in self._manifest.files}
        pieces = {one.name: one for one in kept}
        sizes |= {one.name: one.end - one.begin for one in kept}
        for name, size in sizes.items():
            if not has_size(self._target / DATA / name, size):
                self._compare(name, size, pieces.get(name))
        if kept and kept[-1].name not in self._damaged and not self._has_same_tail(kept[-1]):
            self._compare(kept[-1].name, sizes[kept[-1].name], kept[-1])
        left = sum(sizes.values()) if everything or unknown else COMPARED_BYTES
        names = sorted(sizes)
        after = [name for name in names if name > self._last]
        for name in (*after, *names[: len(names) - len(after)]):
            if left < 0:
                break
            self._compare(name, sizes[name], pieces.get(name))
            left -= sizes[name]
            self._last = name
        return Checked(kept, frozenset(self._damaged), self._bytes, self._last)

    def _kept(self, *, unknown: bool) -> list[Piece]:
        """The pieces that the node still has.

        Raises:
            UsageError: the log cannot be the one that was backed up.
        """
        log = self._log
        if not log.pieces:
            return []
        folder = log_folder(self._source)
        found = _log_files(folder)
        if not found or max(found.values()) != log.segment_bytes:
            raise self._is_another("it is empty, or its files have another size")
        begin = min(found)
        kept = [one for one in log.pieces if one.end > begin]
        if not kept and unknown:
            raise self._is_another(f"it begins at {begin}, so nothing can be compared")
        return kept

    def _compare(self, name: str, size: int, piece: Piece | None) -> None:
        """Compare a stored file with its checksum, and a piece with the log of the node."""
        if name in self._compared:
            return
        self._compared.add(name)
        crc = self._crcs[name]
        stored = self._target / DATA / name
        is_intact = stored_checksum(_SOURCE, stored, size) == crc
        self._bytes += size
        if not is_intact:
            self._damaged.add(name)
        if piece is None or self._log_checksum(piece) == crc:
            return
        if is_intact:
            raise self._difference(piece)
        raise DamagedStoreError(
            f"{stored} is missing, or its checksum is wrong, and the log in {self._source} does "
            f"not have these bytes ({piece.begin} to {piece.end}) any more.",
            hint="Take the next backup into a new directory, and run `coherer verify` for both.",
        )

    def _log_checksum(self, piece: Piece) -> int:
        first = piece.begin - piece.begin % self._log.segment_bytes
        handle = _SOURCE.open(log_folder(self._source) / file_name(first))
        try:
            return range_checksum(_SOURCE, handle, piece.begin - first, piece.end - first)
        finally:
            _SOURCE.close(handle)

    def _has_same_tail(self, piece: Piece) -> bool:
        size = min(piece.end - piece.begin, _TAIL_BYTES)
        at = piece.end - size
        return self._read_stored(piece)(at, size) == self._read_log(at, size)

    def _read_stored(self, piece: Piece) -> Callable[[int, int], bytes]:
        return lambda at, size: _read(
            self._target / DATA / piece.name, at - piece.begin, min(size, piece.end - at)
        )

    def _read_log(self, at: int, size: int) -> bytes:
        first = at - at % self._log.segment_bytes
        return _read(log_folder(self._source) / file_name(first), at - first, size)

    def _difference(self, piece: Piece) -> UsageError | DamagedStoreError:
        """The error for a piece that is intact in the backup but not in the node's log."""
        at, stored = piece.begin, self._read_stored(piece)
        while at < piece.end:
            size = min(_TAIL_BYTES, piece.end - at)
            kept, found = stored(at, size), self._read_log(at, size)
            if kept != found:
                same = next((n for n in range(len(found)) if kept[n] != found[n]), len(found))
                at += same
                break
            at += size
        walk = Walk(self._read_log, self._log.segment_bytes)
        end = walk.run(piece.begin, piece.end)
        if end <= at and walk.reason and self._read_log(at, 1 << 10).strip(b"\0"):
            return DamagedStoreError(
                f"The log in {self._source} is damaged at offset {at}, in the file "
                f"{file_name(at - at % self._log.segment_bytes)}; {self._target} holds the "
                "right bytes.",
                hint="The backup is unchanged. `coherer verify` shows what the node has lost; "
                "`coherer restore` writes a directory from the backup. Check the disk.",
            )
        return self._is_another(f"the first difference is at offset {at}")

    def _is_another(self, why: str) -> UsageError:
        return UsageError(
            f"The log in {self._source} is not the one that was backed up to {self._target} until "
            f"offset {self._log.end}: {why}.",
            hint="The node may have been replaced, or it lost its last messages in a power cut. "
            + _ELSEWHERE,
        )


def _log_files(folder: Path) -> dict[int, int]:
    """The sizes of the files of a log by their first offsets."""
    names = [name for name in _SOURCE.names(folder) if len(name) == 20 and name.isdecimal()]
    return {int(name): (folder / name).stat().st_size for name in names}


def _read(path: Path, at: int, size: int) -> bytes:
    """Read from a file; nothing if it does not exist."""
    try:
        handle = _SOURCE.open(path)
    except FileNotFoundError:
        return b""
    try:
        return _SOURCE.read(handle, size, at)
    finally:
        _SOURCE.close(handle)
