"""The disk of a node in a test: it can be full, and its syncs can fail."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from coherer._store import OsFiles


class FaultyFiles(OsFiles):
    """The machine's files, with faults.

    Attributes:
        full: whether every write fails as on a full disk.
        sync_fails: whether every sync fails.
        gone: whether nothing changes any more, because the node's process was killed.
        failed: whether a write or a sync has failed since the node started.
    """

    def __init__(self) -> None:
        self.full = self.sync_fails = self.gone = self.failed = False
        self._open: set[int] = set()
        self._locks: dict[int, Path] = {}

    def set_full(self, on: bool) -> None:
        """Let writes fail, or not."""
        self.full = on

    def set_sync_fails(self, on: bool) -> None:
        """Let syncs fail, or not."""
        self.sync_fails = on

    def open(self, path: Path, *, create: bool = False) -> int:
        """See `Files`."""
        if self.gone and create and not self.exists(path):
            path = Path(os.devnull)
        handle = super().open(path, create=create)
        self._open.add(handle)
        return handle

    def close(self, handle: int) -> None:
        """See `Files`."""
        self._open.discard(handle)
        super().close(handle)

    def lock(self, path: Path) -> int:
        """See `Files`."""
        handle = super().lock(path)
        self._locks[handle] = path
        return handle

    def unlock(self, path: Path, handle: int) -> None:
        """See `Files`."""
        self._locks.pop(handle, None)
        self._open.discard(handle)
        super().unlock(path, handle)

    def close_all(self) -> None:
        """Close what a killed program has left open."""
        for handle, path in list(self._locks.items()):
            self.unlock(path, handle)
        for handle in list(self._open):
            self.close(handle)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        """See `Files`."""
        self._check_space()
        if not self.gone:
            super().write(handle, data, offset)

    def resize(self, handle: int, size: int) -> None:
        """See `Files`."""
        if size > self.size(handle):
            self._check_space()
        if not self.gone:
            super().resize(handle, size)

    def sync(self, handle: int) -> None:
        """See `Files`."""
        self._check_sync()
        if not self.gone:
            super().sync(handle)

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        self._check_sync()
        if not self.gone:
            super().sync_directory(path)

    def sync_all(self, path: Path) -> bool:
        """See `Files`."""
        self._check_sync()
        return self.gone or super().sync_all(path)

    def make_directory(self, path: Path) -> None:
        """See `Files`."""
        if not self.gone:
            super().make_directory(path)

    def replace(self, source: Path, target: Path) -> None:
        """See `Files`."""
        if not self.gone:
            super().replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        """See `Files`."""
        if not self.gone:
            super().link(source, target)

    def remove(self, path: Path) -> None:
        """See `Files`."""
        if not self.gone:
            super().remove(path)

    def remove_tree(self, path: Path) -> None:
        """See `Files`."""
        if not self.gone:
            super().remove_tree(path)

    def _check_space(self) -> None:
        if self.full:
            self.failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _check_sync(self) -> None:
        if self.sync_fails:
            self.failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))
