"""The contents of a backup: its manifest, and the table that backup, restore and verify share.

`backup.json` is a file that anybody may have written. It names files, and a restore may run as
root. So every path, name, size and mode in it is compared with this table before it is used:

* A path is one that a node's directory can have (`KINDS`), and no two files have the same path.
* The name of a stored file follows from its path and the number of the backup that wrote it.
* Permissions allow reading and writing only: a restored file is not executable, has no setuid or
  setgid bit, and is not writable by everybody.
* The pieces of the log are adjacent, and each lies within one file of the log.

The directory itself may be hostile too: `refuse_links` finds symbolic links in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from coherer._common.paths import is_file_name
from coherer._store.consume_queue import is_valid_queue
from coherer._store.files import file_name
from coherer._store.history import Ancestor
from coherer._store.marks import VERSION_FILE
from coherer.errors import DamagedStoreError

VERSION: Final = 2
"""The version of the manifest; see the table in `backup_files`."""

Part: TypeAlias = Literal["log", "queue", "index", "config"]

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


class Kind(NamedTuple):
    """A kind of file in the directory of a node.

    Attributes:
        part: the part of the store to which it belongs.
        path: the pattern of its path.
        bytes_max: no file of this kind is larger.
    """

    part: Part
    path: re.Pattern[str]
    bytes_max: int


CHECKPOINT: Final = "checkpoint"
CONFIG: Final = "config"
ACCOUNTS: Final = "conf"
ACCOUNT_FILES: Final = "conf/acl"
"""A node reads the files of accounts in all directories below this one."""

LARGE: Final = ("index", "consumequeue")
LOG: Final = "commitlog"

KINDS: Final = (
    Kind("config", re.compile(re.escape(VERSION_FILE)), _MIB),
    Kind("config", re.compile(CHECKPOINT), _MIB),
    Kind("config", re.compile(r"config/[^/]+"), _GIB),
    Kind("config", re.compile(r"conf/(acl/([^/]+/)*)?[^/]+"), 64 * _MIB),
    Kind(
        "queue", re.compile(r"consumequeue/(?P<topic>[^/]+)/(?P<queue>\d{1,10})/\d{20}"), 4 * _GIB
    ),
    Kind("index", re.compile(r"index/\d{1,20}"), 64 * _GIB),
)
"""All files of a backup except those of the log."""

SEGMENT_BYTES_MAX: Final = 1 << 32
LOG_MODE: Final = 0o644
_MODES: Final = 0o664
_PERMISSIONS: Final = 0o777
_PATH_MAX: Final = 1024
_GENERATION: Final = re.compile(r"\d{8,18}")


class Piece(msgspec.Struct, frozen=True):
    """A range `[begin, end)` of the log.

    Args:
        begin: the log offset of its first byte.
        end: the log offset after its last byte.
        crc: the checksum of its bytes (`checksum`).
        name: the path of the stored file below `data/`.
    """

    begin: int
    end: int
    crc: int
    name: str


class LogPieces(msgspec.Struct, frozen=True):
    """The log up to the point of the backup.

    Args:
        begin: the first offset.
        end: the offset after the last record.
        segment_bytes: the size of a file of the log.
        pieces: adjacent ranges from `begin` to `end`.
    """

    begin: int
    end: int
    segment_bytes: int
    pieces: list[Piece]


class StoredFile(msgspec.Struct, frozen=True):
    """A file that is stored whole.

    Args:
        path: its path in the directory of the node.
        name: the path of the stored file below `data/`.
        size: its size in bytes, with holes.
        mode: its permission bits.
        crc: the checksum of its bytes (`checksum`).
        stamp: size, modification time in ns and inode number of the original file.
        settled: the original had not changed for a while when it was copied, so an equal stamp
            means equal content.
    """

    path: str
    name: str
    size: int
    mode: int
    crc: int
    stamp: tuple[int, int, int]
    settled: bool


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `backup.json`.

    Args:
        version: the version of the layout.
        coherer: the version of Coherer that wrote it.
        created_ms: when the backup was taken, ms since 1970.
        source: the directory of the node.
        generation: the number of the last backup into this directory.
        owner: the identity of the node (`config/identity.json`); "" if unknown.
        log: the log; None for a node without one (a master or name server alone).
        files: the other files.
        history: the id of the history that the backup holds (`history`); "" if the directory had
            none.
        ancestors: the histories that this one continues, the latest first.
        checked: the name of the stored file that was compared last (`backup_checks`).
        crc: the checksum of the manifest with 0 in this field; 0 in version 1.
    """

    version: int = VERSION
    coherer: str
    created_ms: int
    source: str
    generation: int
    owner: str
    log: LogPieces | None
    files: list[StoredFile]
    history: str = ""
    ancestors: list[Ancestor] = []
    checked: str = ""
    crc: int = 0

    @property
    def log_end(self) -> int:
        """The end of the log; 0 without a log."""
        return 0 if self.log is None else self.log.end

    def names(self) -> set[str]:
        """The files below `data/` that make up the backup."""
        pieces = [] if self.log is None else self.log.pieces
        return {one.name for one in self.files} | {one.name for one in pieces}


def kind_of(path: str) -> Kind | None:
    """Return the kind of a file by its path in the directory; None if no backup contains it.

    >>> [kind.part for path in ("config/topics.json", "index/20240131120000000")
    ...  if (kind := kind_of(path)) is not None]
    ['config', 'index']
    >>> kind_of("../config/topics.json"), kind_of("consumequeue/../0/00000000000000000000")
    (None, None)
    """
    if len(path) > _PATH_MAX or not all(map(is_file_name, path.split("/"))):
        return None
    for kind in KINDS:
        found = kind.path.fullmatch(path)
        if found is None:
            continue
        place = found.groupdict()
        if place and not is_valid_queue(place["topic"], int(place["queue"])):
            return None
        return kind
    return None


def safe_mode(mode: int) -> int:
    """The permission bits of a restored file, from those of the original.

    >>> oct(safe_mode(0o4777)), oct(safe_mode(0o600))
    ('0o664', '0o600')
    """
    return mode & _MODES


def stored_name(generation: int, path: str) -> str:
    """The name, below `data/`, of a file that backup number `generation` copied."""
    return f"{generation:08d}/{path}"


def piece_path(begin: int, end: int) -> str:
    """The path of a piece of the log, as part of its stored name."""
    return f"{LOG}/{file_name(begin)}-{file_name(end)}"


def check_manifest(manifest: Manifest, path: Path) -> None:
    """Compare a manifest with the table.

    Args:
        path: only for the text of an error.

    Raises:
        DamagedStoreError: it names something that no backup contains.
    """
    problem = _find_problem(manifest)
    if problem:
        raise DamagedStoreError(
            f"{path} is not what `coherer backup` writes: {problem}.",
            hint="Nothing was read or written. Use another copy of the backup, and find out who "
            "changed this one.",
        )


def _find_problem(manifest: Manifest) -> str:
    seen: set[str] = set()
    for one in manifest.files:
        problem = _problem_of_file(one, manifest.generation)
        if problem:
            return problem
        if one.path in seen:
            return f"it names {one.path!r} twice"
        seen.add(one.path)
    return "" if manifest.log is None else _problem_of_log(manifest.log, manifest.generation)


def _problem_of_file(one: StoredFile, generation: int) -> str:
    kind = kind_of(one.path)
    if kind is None:
        return f"the path {one.path!r} does not exist in the directory of a node"
    if not 0 <= one.size <= kind.bytes_max:
        return f"{one.path} has {one.size} bytes, and {kind.bytes_max} are possible"
    if not 0 <= one.mode <= _PERMISSIONS:
        return f"{one.path} has the permissions {one.mode:o}"
    return _problem_of_name(one.name, one.path, generation)


def _problem_of_name(name: str, path: str, generation: int) -> str:
    number, _, rest = name.partition("/")
    if rest != path or not _GENERATION.fullmatch(number) or int(number) > generation:
        return f"{path} is stored as {name!r}"
    return ""


def _problem_of_log(log: LogPieces, generation: int) -> str:
    if not 0 <= log.segment_bytes <= SEGMENT_BYTES_MAX or (log.pieces and not log.segment_bytes):
        return f"files of the log have {log.segment_bytes} bytes"
    if not 0 <= log.begin <= log.end < 1 << 63:
        return f"the log reaches from {log.begin} to {log.end}"
    at = log.pieces[0].begin if log.pieces else log.end
    if at < log.begin or (log.pieces and log.begin % log.segment_bytes):
        return f"the log begins at {log.begin}, and its first piece at {at}"
    for piece in log.pieces:
        size = log.segment_bytes
        if piece.begin != at or not at < piece.end <= at - at % size + size:
            return f"a piece of the log reaches from {piece.begin} to {piece.end}"
        problem = _problem_of_name(piece.name, piece_path(piece.begin, piece.end), generation)
        if problem:
            return problem
        at = piece.end
    return "" if at == log.end else f"the pieces of the log end at {at}, not at {log.end}"


def refuse_links(root: Path, paths: Iterable[Path]) -> None:
    """Refuse symbolic links: a path below a directory must not leave it.

    Args:
        root: the directory, which may itself be a link.
        paths: paths below it, which may be missing.

    Raises:
        DamagedStoreError: a path is a link, or lies in a directory that is one.
        OSError: the disk failed.
    """
    checked = {root}
    for path in paths:
        for part in (path, *path.parents):
            if part in checked:
                break
            checked.add(part)
            if part.is_symlink():
                raise DamagedStoreError(
                    f"{part} is a symbolic link, and {root} must not contain any.",
                    hint="`coherer backup` and `coherer restore` write none. Replace it by the "
                    "file or directory that it points to, if you trust it.",
                )
