"""The files of a store on the disk, and the rates of `coherer.arrow.scan` on them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.results import Single

QUEUE_ENTRY = struct.Struct(">qiq")  # position in the log, size, tag
PLAIN_BYTES = 1 << 20
TIMEOUT_S = 600.0
PROGRAM = Path(__file__).parent / "scan_main.py"

SIZES = ((1024, "1 KiB", 400_000, 0.5), (100, "100 B", 2_000_000, 0.3))
"""Size of the bodies, their count, and the goal: the share of the rate of a plain read."""
QUICK_SHARE = 0.05


def forget(store: Path) -> None:
    """Writes the log of a store to the disk, and drops it from the page cache."""
    for file in (store / "commitlog").iterdir():
        with file.open("rb+") as log:
            os.fsync(log.fileno())
            os.posix_fadvise(log.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_of(store: Path, topic: str) -> int:
    """The size of the records of a topic, from its consume queues."""
    return sum(
        size
        for file in (store / "consumequeue" / topic).glob("*/*")
        for _, size, _ in QUEUE_ENTRY.iter_unpack(file.read_bytes())
    )


def read_plainly(store: Path, count: int) -> None:
    """Reads some bytes of the log, in order, and does nothing with them."""
    buffer = bytearray(PLAIN_BYTES)
    for file in sorted((store / "commitlog").iterdir()):
        with file.open("rb", buffering=0) as log:
            while count > 0 and (read := log.readinto(buffer)):
                count -= read


def measure(
    folder: Path, repetitions: int, say: Callable[[str], None], *, quick: bool
) -> list[Single]:
    """Rates of a scan of a store, and its share of the rate of a plain read of the same bytes."""
    found = []
    for size, title, whole, goal in SIZES:
        count = int(whole * QUICK_SHARE) if quick else whole
        say(f"scanning files: {count:,} messages of {title}")
        store = folder / f"scan-{size}"
        command = [sys.executable, str(PROGRAM), str(store), str(size), str(count)]
        done = subprocess.run(
            [*command, str(repetitions)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        for line in done.stdout.splitlines():
            name, *values = line.split("\t")
            scans, plain = ([float(value) for value in part.split()] for part in values)
            shares = [one / other for one, other in zip(scans, plain, strict=True)]
            key, text = f"scan-{size}-{name}", f"scan of files, {title}, {name}"
            found += [
                Single(key, text, "rows/s", scans),
                Single(f"{key}-share", f"{text} ÷ plain read", "x", shares, goal, at_least=True),
            ]
    return found
