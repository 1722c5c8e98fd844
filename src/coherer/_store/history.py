"""The history of a directory: which log it continues. Backups compare it and never mix two logs.

    history.json   the id of the history, and the histories that it continues
    removals       a token that changes whenever queues may have been removed

Invariants:

* The id is random. It is made when the directory is opened for the first time, and never changes.
  A directory that Java's broker or an older Coherer made gets its id at the first open; Java
  ignores the file.
* Two directories with one id are copies of each other, made without `coherer restore`.
* A restored directory has a new id. It continues the history of the backup up to the end of that
  backup: this is an `Ancestor`. So of two directories that were restored from one backup, only the
  first one that is backed up continues the backup; the other one has no ancestor with the new id.
* `removals` gets a new token before and after the queues of a topic are removed, and at each open.
  A program that reads the same token before and after it read the queues has seen no removal. The
  token means nothing after a restart, so it is not synced.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from coherer._common import machine
from coherer._common.decoding import decoder
from coherer._common.logs import Log
from coherer._store.files import Files, translate_os_errors
from coherer.errors import DamagedStoreError, StoreFullError

HISTORY_FILE: Final = "history.json"
REMOVALS_FILE: Final = "removals"

_ANCESTORS_MAX: Final = 64
_BYTES_MAX: Final = 1 << 20

_log = Log(logging.getLogger(__name__))


class Ancestor(msgspec.Struct, frozen=True):
    """A history that a directory continues, up to the backup from which it was restored.

    Args:
        log_end: the end of the log in the backup; 0 without a log.
        created_ms: when the backup was taken, ms since 1970.
    """

    id: str
    log_end: int
    created_ms: int


class History(msgspec.Struct, frozen=True):
    """The content of `history.json`.

    Args:
        id: see the module.
        ancestors: the histories that this one continues, the latest first.
    """

    id: str
    ancestors: list[Ancestor] = []

    @classmethod
    def new(cls, ancestors: list[Ancestor] | None = None) -> History:
        """Return a history with a new id.

        Args:
            ancestors: the histories that it continues, the latest first.
        """
        return cls(machine.uuid().hex, (ancestors or [])[:_ANCESTORS_MAX])


def load_history(directory: Path) -> History | None:
    """Read the history of a directory that may be in use; None if it has none.

    Raises:
        DamagedStoreError: the file is invalid.
        OSError: it cannot be read.
    """
    path = directory / HISTORY_FILE
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        return decoder(History).decode(data)
    except msgspec.DecodeError as error:
        raise DamagedStoreError(
            f"{path} cannot be read: {error}.",
            hint="Restart the node: it gives the directory a new id. The next backup then needs a "
            "new directory.",
        ) from error


def save_history(files: Files, directory: Path, history: History) -> None:
    """Write the history of a directory, so that it survives a power cut.

    Raises:
        OSError: it could not be written.
    """
    path = directory / HISTORY_FILE
    new = directory / f"{HISTORY_FILE}.tmp"
    handle = files.open(new, create=True)
    try:
        files.resize(handle, 0)
        files.write(handle, msgspec.json.encode(history), 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.replace(new, path)
    files.sync_directory(directory)


def ensure_history(files: Files, directory: Path) -> None:
    """Give a directory a history if it has none. The caller has locked the directory.

    Raises:
        OSError: the disk failed.
        StoreError: the disk failed.
    """
    try:
        if load_history(directory) is not None:
            return
    except DamagedStoreError as error:
        _log.plain.warning("%s The directory gets a new id.", error.text)
    # On a full disk nothing is written: the next open does it.
    with suppress(StoreFullError), translate_os_errors(f"write {directory / HISTORY_FILE}"):
        save_history(files, directory, History.new())


def note_removal(files: Files, directory: Path) -> None:
    """Change the token: queues are about to be removed, or have been removed.

    Raises:
        OSError: it could not be written.
    """
    handle = files.open(directory / REMOVALS_FILE, create=True)
    try:
        files.write(handle, machine.uuid().hex.encode(), 0)
    finally:
        files.close(handle)


def removals_token(directory: Path) -> bytes:
    """Return the token; empty if the directory has none.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with (directory / REMOVALS_FILE).open("rb") as file:
            return file.read(64)
    except FileNotFoundError:
        return b""
