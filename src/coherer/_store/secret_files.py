"""Files with secrets: only their owner may read them, and they are replaced as a whole.

A file whose mode this process could change must not be readable or writable by the group or by
others; otherwise it is refused, as OpenSSH refuses a private key. A file of another owner, such as
a container's mounted secret, which belongs to root, is accepted with any mode, unless the process
runs as root.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from coherer._store import OsFiles
from coherer._store.files import make_durable_directory
from coherer.errors import StoreError, UsageError

PRIVATE: Final = 0o600
_SHARED: Final = 0o077
_FILES: Final = OsFiles()


class AccountsInUseError(StoreError):
    """Another process is changing the files, which takes some milliseconds."""


def check_private(path: Path) -> None:
    """Check that only the owner of a file can read it. Windows has no such modes.

    Raises:
        UsageError: others can read or write the file.
        OSError: the file does not exist.
    """
    if os.name != "posix":
        return
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if os.geteuid() in {0, found.st_uid} and mode & _SHARED:
        raise UsageError(
            f"{path} holds secrets, but its mode is {mode:04o}: other users can read or change it.",
            hint=f"Run `chmod 600 {path}`, and change its secrets if others may have read them.",
        )


def replace_private(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably. A new file is private; an existing one keeps its mode.

    The owner is that of the existing file, or of the directory.

    Raises:
        OSError: the file cannot be written; it keeps the old content.
    """
    _make_folder(path.parent)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(handle, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    _give_to_owner_of(path if path.exists() else path.parent, temporary)
    if path.exists():
        temporary.chmod(stat.S_IMODE(path.stat().st_mode))
    temporary.replace(path)
    _FILES.sync_directory(path.parent)


def _make_folder(folder: Path) -> None:
    """Create a directory in a node's directory, with the same owner."""
    if not folder.exists():
        make_durable_directory(_FILES, folder.absolute())
        _give_to_owner_of(folder.parent, folder)


def _give_to_owner_of(known: Path, new: Path) -> None:
    """Set the owner of a new file to that of another one: a node cannot read files of root."""
    owner = known.stat()
    if hasattr(os, "chown") and owner.st_uid != new.stat().st_uid:
        os.chown(new, owner.st_uid, owner.st_gid)


@contextmanager
def changing(folder: Path) -> Generator[None]:
    """Keep other processes from changing the files of a directory at the same time.

    Raises:
        AccountsInUseError: another process is changing them.
        StoreError: the lock file cannot be created.
    """
    lock = folder / "accounts.lock"
    try:
        _make_folder(folder)
        handle = _FILES.lock(lock)
        _give_to_owner_of(folder, lock)
    except OSError as error:
        raise StoreError(f"{lock} cannot be created: {error}.") from error
    except StoreError as error:
        raise AccountsInUseError(
            "Another process is changing the accounts.", hint="Try again in a moment."
        ) from error
    try:
        yield
    finally:
        _FILES.unlock(lock, handle)
