from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coherer._store.files import OsFiles
from coherer.errors import StoreError, UsageError


def test_save_keeps_the_previous_version(harness: Any) -> None:
    store = harness.open()
    assert store.load_config("topics.json") is None
    store.save_config("topics.json", b"1")
    store.save_config("topics.json", b"2")
    assert store.load_config("topics.json") == b"2"
    config = harness.directory / "config"
    assert (config / "topics.json.bak").read_bytes() == b"1"
    assert sorted(path.name for path in config.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("left", [None, b""])
def test_the_backup_is_used_if_the_file_is_missing(harness: Any, left: bytes | None) -> None:
    store = harness.open()
    store.save_config("topics.json", b"1")
    store.save_config("topics.json", b"2")
    path: Path = harness.directory / "config" / "topics.json"
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    assert store.load_config("topics.json") == b"1"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "a..b", ".hidden"])
def test_names_cannot_leave_the_directory(harness: Any, name: str) -> None:
    store = harness.open()
    with pytest.raises(UsageError):
        store.save_config(name, b"")
    with pytest.raises(UsageError):
        store.load_config(name)


def test_a_reader_never_sees_a_partial_file(harness: Any) -> None:
    """At every step of a save the old or the new content is there."""
    seen: list[bytes | None] = []

    class Watching(OsFiles):
        watch = False

        def _look(self) -> None:
            if self.watch:
                config = harness.directory / "config"
                for name in ("topics.json", "topics.json.bak"):
                    if (config / name).exists() and (config / name).stat().st_size:
                        seen.append((config / name).read_bytes())
                        break
                else:
                    seen.append(None)

        def write(self, handle: int, data: bytes, offset: int) -> None:
            self._look()
            super().write(handle, data, offset)
            self._look()

        def replace(self, source: Path, target: Path) -> None:
            super().replace(source, target)
            self._look()

    files = Watching()
    store = harness.open(files=files)
    store.save_config("topics.json", b"1")
    files.watch = True
    store.save_config("topics.json", b"22")
    assert seen == [b"1", b"1", b"1", b"22"]


def test_os_errors_are_translated(harness: Any) -> None:
    store = harness.open()
    (harness.directory / "config" / "topics.json").mkdir()
    with pytest.raises(StoreError, match=r"read topics\.json"):
        store.load_config("topics.json")
