"""Copies of a store, as a crash leaves it or a backup keeps it."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING


def copy_sparse(source: str, target: str) -> str:
    """Copy a file like `shutil.copy2`, and keep its holes.

    A key index is a file of 420 MB that holds some kilobytes. `make test` keeps its files in
    memory, where copies with all their zeros once left none for anything else.
    """
    if sys.platform == "win32":
        return shutil.copy2(source, target)
    with Path(source).open("rb") as reader, Path(target).open("wb") as writer:
        read, written, end = reader.fileno(), writer.fileno(), 0
        while (start := _next_data(read, end)) is not None:
            hole = os.lseek(read, start, os.SEEK_HOLE)
            # A call copies 2 GiB at most.
            end = start + os.pwrite(written, os.pread(read, hole - start, start), start)
        os.truncate(written, os.fstat(read).st_size)
    shutil.copystat(source, target)
    return target


def _next_data(file: int, offset: int) -> int | None:
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError:  # ENXIO: only a hole is left
        return None


if TYPE_CHECKING:
    copy_tree = shutil.copytree
else:
    copy_tree = functools.partial(shutil.copytree, copy_function=copy_sparse)
