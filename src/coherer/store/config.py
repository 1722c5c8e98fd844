"""The files under `config/`: small, replaced as a whole, the version before kept as `.bak`."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from coherer.errors import UsageError
from coherer.store.disk import our_errors
from coherer.store.files import Files

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z")


class ConfigFiles:
    """Loads and saves configuration files; for any thread.

    A reader finds the old or the new content, never a part: the new one is written beside, synced,
    and put in place by renaming. Where there is no file, or an empty one, the `.bak` counts, as in
    Java.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._guard = threading.Lock()

    def load(self, name: str) -> bytes | None:
        """Give the content of a file; None if there is none.

        Raises:
            StoreError: it cannot be read.
        """
        path = self._path(name)
        with self._guard, our_errors(f"read {name}"):
            return self._content(path) or self._content(self._backup(path)) or None

    def save(self, name: str, data: bytes) -> None:
        """Replace the content of a file. It is on the disk on return.

        Raises:
            StoreFullError: there is no room; the old content stays.
            StoreError: it cannot be written; the old content stays.
        """
        path = self._path(name)
        new = path.with_name(path.name + ".tmp")
        with self._guard, our_errors(f"write {name}"):
            try:
                self._write(new, data)
                if self._files.exists(path):
                    self._files.replace(path, self._backup(path))
                self._files.replace(new, path)
                self._files.sync_directory(self._directory)
            except OSError:
                self._files.remove(new)
                raise

    def _path(self, name: str) -> Path:
        if not _NAME.match(name):
            raise UsageError(f"{name!r} cannot name a configuration file.")
        return self._directory / name

    def _backup(self, path: Path) -> Path:
        return path.with_name(path.name + ".bak")

    def _content(self, path: Path) -> bytes:
        if not self._files.exists(path):
            return b""
        handle = self._files.open(path)
        try:
            return self._files.read(handle, self._files.size(handle), 0)
        finally:
            self._files.close(handle)

    def _write(self, path: Path, data: bytes) -> None:
        handle = self._files.open(path, create=True)
        try:
            self._files.resize(handle, 0)
            self._files.write(handle, data, 0)
            self._files.sync(handle)
        finally:
            self._files.close(handle)
