"""The names of the files that tell what a directory is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from coherer.errors import UsageError

VERSION_FILE: Final = "version.json"
"""It holds the version of a node's directory."""

MANIFEST: Final = "backup.json"
"""The manifest of a backup."""

RESTORE_INCOMPLETE: Final = "restore-incomplete"
"""It marks a directory into which a restore has not finished."""


def check_restored(directory: Path) -> None:
    """Check that no restore has to be finished: until then a part of the store is missing.

    Raises:
        UsageError: one has not finished.
    """
    if (directory / RESTORE_INCOMPLETE).exists():
        raise UsageError(
            f"A restore into {directory} has not finished.",
            hint="Run `coherer restore` again; it starts from the beginning.",
        )
