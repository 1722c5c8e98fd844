"""The version of a node's directory: the file `version.json` in it.

| format | meaning |
|---|---|
| 0 | the file does not exist: the directory is new, a Java broker's, or an older Coherer's |
| 1 | the file exists; nothing else differs |

A node upgrades an older directory when it starts: it writes the file. Java's broker ignores the
file, so it can still use the directory. A node refuses a newer directory, because it could damage
data that it does not know. `OLDEST` is the oldest format that can be upgraded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from coherer._common.decoding import decoder
from coherer._common.version import __version__
from coherer._store import OsFiles
from coherer._store.files import Files, make_durable_directory, translate_os_errors
from coherer._store.history import ensure_history
from coherer._store.marks import MANIFEST, VERSION_FILE, check_restored
from coherer.errors import DamagedStoreError, UsageError

FORMAT: Final = 1
OLDEST: Final = 0

_OS_FILES: Final = OsFiles()


class Version(msgspec.Struct, frozen=True):
    """The content of the file.

    Args:
        format: the number of the format.
        coherer: the version of Coherer that wrote it, for people.
    """

    format: int
    coherer: str = ""


def check_version(directory: Path) -> Version:
    """Read the version of a directory, and check that this version of Coherer knows it.

    Raises:
        UsageError: the format is too new or too old, or a restore has not finished.
        DamagedStoreError: the file is invalid.
        StoreError: the disk failed.
    """
    check_restored(directory)
    if (directory / MANIFEST).exists():
        raise UsageError(
            f"{directory} is a backup, and a node would damage it.",
            hint=f"Run `coherer restore {directory} NEW`, and start the node with --directory NEW.",
        )
    path = directory / VERSION_FILE
    if not path.is_file():
        return Version(0)
    with translate_os_errors(f"read {path}"):
        data = path.read_bytes()
    try:
        found = decoder(Version).decode(data)
    except msgspec.DecodeError as error:
        raise DamagedStoreError(
            f"{path} cannot be read: {error}.",
            hint=f"Restore a copy of it. Without one, remove it if Coherer {__version__} or an "
            "older version was the last to use the directory.",
        ) from error
    if found.format > FORMAT:
        raise UsageError(
            f"The directory {directory} has format {found.format}, written by Coherer "
            f"{found.coherer}; Coherer {__version__} knows formats up to {FORMAT}.",
            hint=f"Use Coherer {found.coherer} or newer, or a backup from before the upgrade.",
        )
    if found.format < OLDEST:
        raise UsageError(
            f"The directory {directory} has format {found.format}, written by Coherer "
            f"{found.coherer}; Coherer {__version__} upgrades formats from {OLDEST} on.",
            hint="Start it with an intermediate version first.",
        )
    return found


def upgrade(
    directory: Path, files: Files = _OS_FILES, say: Callable[[str], None] = lambda _: None
) -> None:
    """Write the version of a directory that this node has locked, if it is older or has none.

    Args:
        directory: the directory; `check_version` has accepted it.
        say: called with a sentence that describes the change.

    Raises:
        StoreError: it could not be written.
    """
    before = check_version(directory)
    with translate_os_errors(f"write {directory}"):
        make_durable_directory(files, directory.absolute())
        # A directory without a store gets its history here.
        ensure_history(files, directory)
    if before.format == FORMAT:
        return
    path = directory / VERSION_FILE
    new = path.with_name(f"{VERSION_FILE}.tmp")
    with translate_os_errors(f"write {path}"):
        handle = files.open(new, create=True)
        try:
            files.resize(handle, 0)
            files.write(handle, msgspec.json.encode(Version(FORMAT, __version__)), 0)
            files.sync(handle)
        finally:
            files.close(handle)
        files.replace(new, path)
        files.sync_directory(directory)
    earlier = f"; it had {before.format}" if before.format else ""
    say(f"The directory {directory} has format {FORMAT} now{earlier}.")
