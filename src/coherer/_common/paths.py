"""Names that become paths.

A name that was read from a file, or came from a peer, may be hostile: `../x`, `/etc/passwd`, or a
device of Windows. Every such name goes through `child` before it becomes a part of a path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from coherer.errors import UsageError

NAME_BYTES_MAX: Final = 255
"""The longest name that common file systems accept."""

_WINDOWS: Final = os.name == "nt"
_FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f]")
_FORBIDDEN_ON_WINDOWS = re.compile(r":|\A(con|prn|aux|nul|com\d|lpt\d)(\.|\Z)", re.IGNORECASE)
"""Drives, streams and devices."""


def is_file_name(name: str) -> bool:
    r"""Tell whether a name can only be a file or a directory directly below another directory.

    Hidden names are refused too: nothing here writes them.

    >>> is_file_name("topics.json"), is_file_name("%RETRY%g")
    (True, True)
    >>> [is_file_name(name) for name in ("", ".", "..", "../x", "/x", "a\\b", "a\0")]
    [False, False, False, False, False, False, False]
    """
    return (
        name != ""
        and name[0] != "."
        and name[-1] not in ". "
        and ".." not in name
        and not _FORBIDDEN.search(name)
        and not (_WINDOWS and _FORBIDDEN_ON_WINDOWS.search(name))
        and len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX
    )


def child(directory: Path, name: str, kind: str = "file") -> Path:
    """Return the path of a name directly below a directory.

    Args:
        name: the name, which may be hostile.
        kind: what the name stands for, for the text of the error.

    Raises:
        UsageError: the name is not a single, portable name.
    """
    if not is_file_name(name):
        raise UsageError(
            f"{name!r} is not a valid name of a {kind}.",
            hint="Use a single name of letters, digits, _, - and dots, without a directory.",
        )
    return directory / name
