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
        end = 0
        while (start := _next_data(reader.fileno(), end)) is not None:
            end = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            os.pwrite(writer.fileno(), os.pread(reader.fileno(), end - start, start), start)
        os.truncate(writer.fileno(), os.fstat(reader.fileno()).st_size)
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
