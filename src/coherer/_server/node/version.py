"""The version of a node's directory: the file `version.json` in it.

| format | meaning |
|---|---|
| 0 | the file does not exist: the directory is new, a Java broker's, or an older Coherer's |
| 1 | the file exists; nothing else differs |

The file has a checksum and a copy, as the files of `config/` have. An upgrade from format 1 on must
save it twice: an older Coherer must not find format 1 in the copy, if the file is damaged.

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
from coherer._store.config_files import PREVIOUS, ConfigFiles
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
    found = _read(ConfigFiles(_OS_FILES, directory))
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


def _read(files: ConfigFiles) -> Version:
    try:
        return files.read(VERSION_FILE, decoder(Version).decode) or Version(0)
    except DamagedStoreError as error:
        raise DamagedStoreError(
            error.text,
            hint=f"Restore a copy of it. Without one, remove it and its {PREVIOUS} if Coherer "
            f"{__version__} or an older version was the last to use the directory.",
        ) from error


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
    with translate_os_errors(f"write {directory}"):
        make_durable_directory(files, directory.absolute())
        # A directory without a store gets its history here.
        ensure_history(files, directory)
    config = ConfigFiles(files, directory)
    before = _read(config)
    config.keep_twice(VERSION_FILE)
    if before.format == FORMAT:
        return
    config.save(VERSION_FILE, msgspec.json.encode(Version(FORMAT, __version__)))
    earlier = f"; it had {before.format}" if before.format else ""
    say(f"The directory {directory} has format {FORMAT} now{earlier}.")
