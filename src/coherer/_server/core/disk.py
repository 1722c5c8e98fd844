"""Whether messages can be stored: one answer for sends, readiness, metrics, status and alerts.

Invariants:

* `problem` is None if the node stores what clients send, and otherwise says why it does not.
* Clients' sends are refused before the disk is full: while less than `free_min` bytes are free, and
  then until half as much again is free. So sends are not refused and accepted in turn.
* The node's own writes (messages that have waited, offsets, topics) continue below this limit. So
  retention can carry waiting messages forward, and free the space.
* A file of random bytes (`RESERVE_FILE`) reserves space for configuration files. If another program
  fills the disk, a configuration file that cannot be written takes this space. The file is made
  again when there is room.
* A refusal by a disk that reports free space (a quota, too many open files) is a problem until a
  batch of that size is stored, or until nothing was refused for `FORGET_MS`.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from coherer._common.logs import Log
from coherer.errors import CohererError, StoreFullError

_log = Log(logging.getLogger(__name__))

FAILED: Final = "The disk has failed; sends are refused until a restart."
RESERVE_FILE: Final = "reserve"
RESERVE_BYTES: Final = 1 << 20
FORGET_MS: Final = 60_000
_BLOCK_BYTES: Final = 4096
_RELEASED_MIN: Final = 64 << 10

_FREE_SHARE: Final = 100
_FREE_MAX: Final = 256 << 20


def default_free_min(disk_bytes: int) -> int:
    """The free space below which sends are refused: 1 % of the disk, at most 256 MiB.

    >>> default_free_min(8 << 20), default_free_min(1 << 40) >> 20
    (83886, 256)
    """
    return min(disk_bytes // _FREE_SHARE, _FREE_MAX)


class Disk:
    """The disk that holds a store.

    Args:
        free_min: the free space below which sends are refused; None for a default that fits the
            disk; 0 to refuse nothing before the disk is full.
        now_ms: a monotonic clock.
        usage: returns total, used and free bytes of a path.

    Attributes:
        total: the size of the disk; None if it is unknown.
        free: the free space; None if it is unknown.
        failed: the disk has failed; sends are refused until a restart.
        refusal: why clients' sends are refused; None if they are not.
    """

    def __init__(
        self,
        directory: Path,
        free_min: int | None,
        now_ms: Callable[[], int],
        usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
    ) -> None:
        self._directory = directory
        self._free_min = free_min
        self._now_ms = now_ms
        self._usage = usage
        self._guard = threading.Lock()  # for the reserve
        self._refused: CohererError | None = None
        self._refused_bytes = self._refused_ms = 0
        self.total: int | None = None
        self.free: int | None = None
        self.failed = False
        self.refusal: StoreFullError | None = None
        self.check()

    @property
    def free_min(self) -> int:
        """The free space below which sends are refused."""
        return default_free_min(self.total or 0) if self._free_min is None else self._free_min

    @property
    def problem(self) -> str | None:
        """Why messages cannot be stored; None if they can."""
        if self.failed:
            return FAILED
        found = self.refusal or self._refused
        return None if found is None else str(found)

    def check(self) -> None:
        """Measure the free space; call it every second. It may wait for the disk."""
        try:
            self.total, _, self.free = self._usage(self._directory)
        except OSError:
            self.total = self.free = None
        if self.free is not None:
            self._judge(self.free)
        if self._refused is not None and self._now_ms() - self._refused_ms >= FORGET_MS:
            self._refused = None
        if self.refusal is None and self.free is not None:
            self._keep_reserve(self.free)

    def _judge(self, free: int) -> None:
        least = self.free_min
        enough = least if self.refusal is None else least + least // 2
        if free >= enough:
            if self.refusal is not None:
                _log.plain.warning("The disk has %s free again; sends are accepted", _size(free))
            self.refusal = None
            return
        if self.refusal is None:
            _log.plain.error(
                "The disk of %s has only %s free: sends are refused below %s "
                "(disk_free_min_bytes). Offsets are saved and old messages deleted as before.",
                self._directory,
                _size(free),
                _size(least),
            )
        self.refusal = StoreFullError(
            f"The disk is full: only {_size(free)} are free, and sends are refused below "
            f"{_size(enough)} (disk_free_min_bytes).",
            hint="Free disk space on that server, or lower its retention.",
        )

    # -- what the store reports

    def refused(self, error: CohererError, size_bytes: int) -> None:
        """Note that a batch could not be stored."""
        if self._refused is None or size_bytes >= self._refused_bytes:
            self._refused_bytes = size_bytes
        self._refused, self._refused_ms = error, self._now_ms()

    def stored(self, size_bytes: int) -> None:
        """Note that a batch was stored, after one was refused."""
        if size_bytes // _BLOCK_BYTES >= self._refused_bytes // _BLOCK_BYTES:
            self._refused = None

    @property
    def has_refused(self) -> bool:
        """Whether `stored` must be called."""
        return self._refused is not None

    # -- the reserve

    def release(self, size_bytes: int = RESERVE_BYTES) -> bool:
        """Free as much of the reserve as a file of this size needs; return whether any was left."""
        path = self._directory / RESERVE_FILE
        with self._guard:
            try:
                rest = path.stat().st_size - _RELEASED_MIN - 2 * size_bytes
                if rest > 0:
                    os.truncate(path, rest)
                else:
                    path.unlink()
            except OSError:
                return False
        _log.warning("The disk is full: %d bytes of the reserved space are left", max(rest, 0))
        return True

    def _keep_reserve(self, free: int) -> None:
        size = min(RESERVE_BYTES, self.free_min // 2)
        path = self._directory / RESERVE_FILE
        with self._guard, suppress(OSError):
            if not size or path.exists() or free < self.free_min + size:
                return
            path.write_bytes(os.urandom(size))  # a compressing file system would store no zeros


def _size(count: int) -> str:
    """Format a number of bytes.

    >>> _size(83_886), _size(3 << 30)
    ('81.9 KiB', '3.0 GiB')
    """
    value, unit = float(count), "bytes"
    for following in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, following
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
