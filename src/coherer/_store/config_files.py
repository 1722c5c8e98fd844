"""The files under `config/`: small, replaced as a whole, the version before kept as `.bak`."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from coherer._common.logs import Log
from coherer._store.files import Files, translate_os_errors
from coherer.errors import DamagedStoreError, UsageError

T = TypeVar("T")

_log = Log(logging.getLogger(__name__))

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z")


class Flaw(NamedTuple):
    """What is wrong with a file, and whether the version before it is sound."""

    what: str
    repairable: bool


def _fault(content: bytes, parse: Callable[[bytes], object], absent: str) -> str:
    if not content:
        return absent
    try:
        parse(content)
    except Exception as error:  # noqa: BLE001 - whatever is in a file that is damaged
        return f"cannot be read ({error})"
    return ""


class ConfigFiles:
    """Loads and saves configuration files; for any thread.

    A reader finds the old or the new content, never a part: the new one is written beside, synced,
    and put in place by renaming. One rule holds for all files (`read`): where a file is missing,
    empty or cannot be read, its `.bak` counts, as in Java, and a warning says so.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._guard = threading.Lock()
        self._damaged: set[str] = set()  # their `.bak` is the better one

    def read(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Give what a file says, or what its `.bak` does.

        Args:
            name: the file's.
            parse: makes something of the content; raises where it cannot.

        Returns:
            What `parse` gave; None if there is neither.

        Raises:
            DamagedStoreError: what is there cannot be read.
            StoreError: the disk failed.
        """
        path = self._path(name)
        with self._guard, translate_os_errors(f"read {name}"):
            contents = self._content(path), self._content(self._backup(path))
        wrong = "is empty" if self._files.exists(path) else "is missing"
        for content, where in zip(contents, (path, self._backup(path)), strict=True):
            if not content:
                continue
            try:
                found = parse(content)
            except Exception as error:  # noqa: BLE001 - whatever is in a file that is damaged
                wrong = f"cannot be read ({error})"
                continue
            if where != path:
                self._damaged.add(name)
                _log.plain.warning(
                    "%s %s. The version before it is used (%s): the last changes are lost. If a "
                    "copy of %s is left, stop the node and put it back.",
                    path, wrong, where.name, name,
                )  # fmt: skip
            return found
        if any(contents):
            raise DamagedStoreError(
                f"{path} {wrong}, and there is no other version of it.",
                hint=f"Put a copy of {name} in its place. Without one, remove it and "
                f"{self._backup(path).name}: the node begins without what was in it.",
            )
        return None

    def load(self, name: str) -> bytes | None:
        """Give the content of a file; None if there is none.

        Raises:
            StoreError: it cannot be read.
        """
        path = self._path(name)
        with self._guard, translate_os_errors(f"read {name}"):
            return self._content(path) or self._content(self._backup(path)) or None

    def flaw(self, name: str, parse: Callable[[bytes], object]) -> Flaw | None:
        """Say what is wrong with a file; None where nothing is, or where there is none.

        Args:
            name: the file's.
            parse: raises where its content is not what it should be.

        Raises:
            StoreError: the disk failed.
        """
        path = self._path(name)
        with self._guard, translate_os_errors(f"read {name}"):
            content, before = self._content(path), self._content(self._backup(path))
        wrong = _fault(content, parse, "is empty" if self._files.exists(path) else "is missing")
        if not wrong or not (content or before):
            return None
        return Flaw(wrong, repairable=bool(before) and not _fault(before, parse, ""))

    def restore(self, name: str) -> None:
        """Put the version before in the place of a file that is damaged.

        Raises:
            StoreError: the disk failed.
        """
        path = self._path(name)
        with translate_os_errors(f"restore {name}"):
            content = self._content(self._backup(path))
        self._damaged.add(name)
        self.save(name, content)

    def save(self, name: str, data: bytes) -> None:
        """Replace the content of a file. It is on the disk on return.

        Raises:
            StoreFullError: there is no room; the old content stays.
            StoreError: it cannot be written; the old content stays.
        """
        path = self._path(name)
        new = path.with_name(path.name + ".tmp")
        with self._guard, translate_os_errors(f"write {name}"):
            try:
                self._write(new, data)
                if name not in self._damaged and self._files.exists(path):
                    self._files.replace(path, self._backup(path))
                self._files.replace(new, path)
                self._files.sync_directory(self._directory)
                self._damaged.discard(name)
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
