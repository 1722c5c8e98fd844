"""The names of the files that tell what a directory is."""

from __future__ import annotations

from typing import Final

VERSION_FILE: Final = "version.json"
"""It holds the version of a node's directory."""

MANIFEST: Final = "backup.json"
"""The manifest of a backup."""

RESTORE_INCOMPLETE: Final = "restore-incomplete"
"""It marks a directory into which a restore has not finished."""
