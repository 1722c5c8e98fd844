"""Reads configuration files that people write; never waits for another program.

A path may name a FIFO, a terminal or a device: opening or reading one of these waits until another
program writes, and a node that reads its configuration again would answer nobody meanwhile.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

BYTES_MAX: Final = 64 << 20
"""The largest file; a larger one is not a configuration."""


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(None, "it is not a regular file", str(path))
        if found.st_size > BYTES_MAX:
            raise OSError(None, f"it has more than {BYTES_MAX >> 20} MiB", str(path))
        return file.read(BYTES_MAX + 1)
