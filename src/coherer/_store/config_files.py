"""The files under `config/`: small, replaced as a whole, with the previous version as `.bak`.

Invariants:

* One rename replaces a file. So a saved file always exists, with its old or its new content, even
  for a backup that is taken meanwhile and after a power cut.
* `.bak` is a second name of the previous content, and of the current one between two renames. The
  first version of a file has a copy there.
* A saved file has a checksum, where its format has a place that other readers pass over: a key of
  a JSON object, a comment of a property file. If a bit flips, the file does not count, whether or
  not it can still be parsed. Files without a checksum are Java's, or an older version's.
* A damaged file is not overwritten: it stays as `.damaged`.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from coherer._common.checksum import crc32
from coherer._common.logs import Log
from coherer._common.paths import child
from coherer._store.files import Files, translate_os_errors
from coherer.errors import DamagedStoreError, StoreFullError

PREVIOUS: Final = ".bak"
"""Ends the name of the previous version of a file. It is used if the file is missing, empty or
invalid."""

DAMAGED: Final = ".damaged"
"""Ends the name of a damaged file that was replaced."""

_SEAL: Final = re.compile(rb'(\{)"checksum":"([0-9a-f]{8})",?|()#checksum=([0-9a-f]{8})\n')

T = TypeVar("T")

_log = Log(logging.getLogger(__name__))


class ConfigProblem(NamedTuple):
    """The error in a file, and whether its `.bak` is valid."""

    what: str
    repairable: bool


def _sealed(name: str, data: bytes) -> bytes:
    """Return the content of a file with its checksum, if its format has a place for one."""
    number = b"%08x" % crc32(data)
    if data.startswith(b"{"):
        comma = b"" if data[1:].lstrip().startswith(b"}") else b","
        return b'{"checksum":"' + number + b'"' + comma + data[1:]
    return b"#checksum=" + number + b"\n" + data if name.endswith(".properties") else data


def unsealed(content: bytes) -> bytes:
    r"""Return the content of a file without its checksum.

    Raises:
        ValueError: the checksum is wrong.

    >>> unsealed(b'{"checksum":"561bacaf","a":1}'), unsealed(b'{"a":1}')
    (b'{"a":1}', b'{"a":1}')
    """
    found = _SEAL.match(content)
    if found is None:
        return content
    brace, of_json, _, of_text = found.groups()
    data = (brace or b"") + content[found.end() :]
    if crc32(data) != int(of_json or of_text, 16):
        raise ValueError(
            "its checksum is wrong; if you have edited the file, remove the checksum from it, too"
        )
    return data


def _find_problem(content: bytes, parse: Callable[[bytes], object], absent: str) -> str:
    if not content:
        return absent
    try:
        parse(unsealed(content))
    except Exception as error:  # noqa: BLE001 - a damaged file may hold anything
        return f"cannot be read ({error})"
    return ""


class ConfigFiles:
    """Loads and saves configuration files; for any thread.

    A reader finds the old or the new content, never a part of it: the new content is written to
    another file, synced, and renamed. If a file is missing, empty or invalid, `read` uses its
    `.bak`, as Java does, and logs a warning.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._guard = threading.Lock()
        self._damaged: set[str] = set()  # files whose `.bak` is kept, because they are damaged

    def read(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Parse a file, or its `.bak` if that fails.

        Args:
            parse: parses the content; raises if it is invalid.

        Returns:
            The result of `parse`; None if neither file exists.

        Raises:
            DamagedStoreError: the content is invalid.
            StoreError: the disk failed.
        """
        path = self._path(name)
        with self._guard, translate_os_errors(f"read {name}"):
            contents = self._content(path), self._content(self._backup(path))
            exists = self._files.exists(path), self._files.exists(self._backup(path))
        wrong = "is empty" if exists[0] else "is missing"
        for content, where in zip(contents, (path, self._backup(path)), strict=True):
            if not content:
                continue
            try:
                found = parse(unsealed(content))
            except Exception as error:  # noqa: BLE001 - a damaged file may hold anything
                wrong = f"cannot be read ({error})"
                continue
            if where != path:
                self._damaged.add(name)
                _log.plain.warning(
                    "%s %s. The previous version is used (%s): the last changes are lost. If you "
                    "have a copy of %s, stop the node and restore it.",
                    path,
                    wrong,
                    where.name,
                    name,
                )
            return found
        if any(exists):
            raise DamagedStoreError(
                f"{path} {wrong}, and there is no valid previous version.",
                hint=f"Restore a copy of {name}. Without a copy, remove it and "
                f"{self._backup(path).name}: the node starts without their content.",
            )
        return None

    def check(self, name: str, parse: Callable[[bytes], object]) -> ConfigProblem | None:
        """Return the problem of a file; None if it is valid or missing.

        Args:
            parse: parses the content; raises if it is invalid.

        Raises:
            StoreError: the disk failed.
        """
        path = self._path(name)
        with self._guard, translate_os_errors(f"read {name}"):
            content, previous = self._content(path), self._content(self._backup(path))
            exists = self._files.exists(path), self._files.exists(self._backup(path))
        wrong = _find_problem(content, parse, "is empty" if exists[0] else "is missing")
        if not wrong or not any(exists):
            return None
        return ConfigProblem(
            wrong, repairable=bool(previous) and not _find_problem(previous, parse, "")
        )

    def restore(self, name: str) -> None:
        """Replace a damaged file by its previous version.

        Raises:
            StoreError: the disk failed.
        """
        path = self._path(name)
        with translate_os_errors(f"restore {name}"):
            content = self._content(self._backup(path))
        self._damaged.add(name)
        self.save(name, unsealed(content))

    def keep_twice(self, name: str) -> None:
        """Write a file that was read once more if it is damaged or has no previous version.

        Call it for a file that hardly ever changes. On a full disk the next start writes it.

        Raises:
            StoreError: the disk failed.
        """
        path = self._path(name)
        with suppress(StoreFullError):
            if name in self._damaged:
                self.restore(name)
            elif self._files.exists(path) and not self._files.exists(self._backup(path)):
                with self._guard, translate_os_errors(f"write {name}"):
                    self._copy(path)

    def remove(self, name: str) -> None:
        """Remove a file and its previous version.

        Raises:
            StoreError: the disk failed.
        """
        path = self._path(name)
        with self._guard, translate_os_errors(f"remove {name}"):
            for one in (self._backup(path), path):  # without the file its `.bak` would count
                self._files.remove(one)
            self._files.sync_directory(self._directory)

    def save(self, name: str, data: bytes) -> None:
        """Replace the content of a file. On return it is synced.

        Raises:
            StoreFullError: the disk is full; the old content stays.
            StoreError: it cannot be written; the old content stays.
        """
        path = self._path(name)
        new = path.with_name(path.name + ".tmp")
        with self._guard, translate_os_errors(f"write {name}"):
            try:
                self._write(new, _sealed(name, data))
                if self._files.exists(path):
                    self._keep(path, DAMAGED if name in self._damaged else PREVIOUS)
                self._files.replace(new, path)
                self._files.sync_directory(self._directory)
                self._damaged.discard(name)
            except OSError:
                self._files.remove(new)
                raise
            if not self._files.exists(self._backup(path)):
                with suppress(OSError):  # the file is saved; the next version keeps this one
                    self._copy(path)

    def _keep(self, path: Path, ending: str) -> None:
        """Give a file a second name."""
        second = path.with_name(path.name + ".bak.tmp")
        self._files.remove(second)
        self._files.link(path, second)
        self._files.replace(second, path.with_name(path.name + ending))
        self._files.remove(second)  # if both were names of one file, nothing was renamed

    def _copy(self, path: Path) -> None:
        """Write the content of a file once more, as its previous version."""
        second = path.with_name(path.name + ".bak.tmp")
        self._files.remove(second)  # a kill in `_keep` has left a second name of the file itself
        try:
            self._write(second, self._content(path))
            self._files.replace(second, self._backup(path))
        except OSError:
            self._files.remove(second)
            raise

    def _path(self, name: str) -> Path:
        return child(self._directory, name, "configuration file")

    def _backup(self, path: Path) -> Path:
        return path.with_name(path.name + PREVIOUS)

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
