"""A real disk of a few MB, for tests that fill it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import coherer
from coherer.errors import RefusedError

DISK_BYTES = 6 << 20


@contextmanager
def mounted(path: Path) -> Iterator[Path]:
    """Mount a file system of a few MB; skip the test where that is not possible."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root on Linux")
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def fill(
    producer: coherer.Producer, before: Callable[[], object] = lambda: None
) -> RefusedError:
    """Send until the node refuses, and call `before` each time; return the refusal."""
    for _ in range(DISK_BYTES // 50_000):
        before()
        try:
            await producer.send(coherer.Message("orders", os.urandom(60_000)))
        except RefusedError as error:
            return error
    pytest.fail("the disk was never full")
