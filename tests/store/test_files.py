from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coherer._store.files import OsFiles, seek_and_read, seek_and_write
from coherer.errors import StoreError


class SeekingFiles(OsFiles):
    """Files on a system without `pread` and `pwrite`, such as Windows."""

    def write_at(self, handle: int, data: bytes, offset: int) -> int:
        return seek_and_write(handle, data, offset)

    def read_at(self, handle: int, size: int, offset: int) -> bytes:
        return seek_and_read(handle, size, offset)


class ShortWriteFiles(OsFiles):
    """Files of which the system writes three bytes at a time."""

    def write_at(self, handle: int, data: bytes, offset: int) -> int:
        return super().write_at(handle, data[:3], offset)


@pytest.fixture(params=[OsFiles, SeekingFiles])
def files(request: Any, monkeypatch: Any) -> OsFiles:
    if request.param is SeekingFiles:
        monkeypatch.delattr(os, "SEEK_DATA", raising=False)
    made: OsFiles = request.param()
    return made


def test_read_write_and_map(files: OsFiles, tmp_path: Path) -> None:
    handle = files.open(tmp_path / "a", create=True)
    files.resize(handle, 3_000_000)
    files.write(handle, b"hello", 2_500_000)
    assert files.size(handle) == 3_000_000
    assert files.read(handle, 7, 2_499_999) == b"\0hello\0"
    assert files.read(handle, 100, 2_999_999) == b"\0"
    assert files.read(handle, 100, 3_000_000) == b""
    mapped = files.map(handle, 3_000_000)
    assert mapped[2_500_000:2_500_005] == b"hello"
    files.write(handle, b"j", 2_500_000)
    assert mapped[2_500_000:2_500_005] == b"jello"
    found = files.next_data(handle, 10)
    assert found is not None
    assert 10 <= found <= 2_500_000
    assert files.next_data(handle, 2_900_000) is None
    files.sync(handle)
    files.close(handle)
    assert mapped[2_500_004:2_500_005] == b"o"


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    files = ShortWriteFiles()
    handle = files.open(tmp_path / "a", create=True)
    files.write(handle, b"0123456789", 5)
    assert files.read(handle, 20, 0) == bytes(5) + b"0123456789"
    files.close(handle)


def test_names(files: OsFiles, tmp_path: Path) -> None:
    assert files.names(tmp_path / "none") == []
    files.make_directory(tmp_path / "a" / "b")
    files.make_directory(tmp_path / "a" / "b")
    files.close(files.open(tmp_path / "a" / "c", create=True))
    assert files.names(tmp_path / "a") == ["b", "c"]
    assert files.names(tmp_path / "a" / "c") == []
    files.sync_directory(tmp_path / "a")
    files.replace(tmp_path / "a" / "c", tmp_path / "a" / "d")
    assert files.exists(tmp_path / "a" / "d")
    files.remove(tmp_path / "a" / "d")
    files.remove(tmp_path / "a" / "d")
    files.remove_tree(tmp_path / "a")
    files.remove_tree(tmp_path / "a")
    assert not files.exists(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "a")


@pytest.mark.skipif(sys.platform == "win32", reason="directories are not synced there")
def test_a_file_system_that_cannot_sync_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL and SQLite go on after EINVAL as well; other errors mean what they say."""

    def fsync(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    code = errno.EINVAL
    OsFiles().sync_directory(tmp_path)
    assert "cannot sync directories" in caplog.text
    code = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        OsFiles().sync_directory(tmp_path)


def test_a_lock_excludes_the_same_process(tmp_path: Path) -> None:
    files = OsFiles()
    handle = files.lock(tmp_path / "lock")
    with pytest.raises(StoreError):
        OsFiles().lock(tmp_path / "lock")
    files.unlock(tmp_path / "lock", handle)
    files.unlock(tmp_path / "lock", files.lock(tmp_path / "lock"))


def test_a_lock_excludes_other_processes(tmp_path: Path) -> None:
    """It is the same POSIX lock on the first byte that Java's broker takes."""
    files = OsFiles()
    script = (
        "import sys, pathlib; from coherer._store import OsFiles\n"
        "try: OsFiles().lock(pathlib.Path(sys.argv[1])); print('locked')\n"
        "except Exception as error: print(type(error).__name__)"
    )

    def other() -> str:
        command = [sys.executable, "-c", script, str(tmp_path / "lock")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    handle = files.lock(tmp_path / "lock")
    assert other() == "StoreError"
    files.unlock(tmp_path / "lock", handle)
    assert other() == "locked"
