from __future__ import annotations

import errno
import itertools
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coherer._store.config_files import ConfigFiles, unsealed
from coherer._store.files import OsFiles
from coherer.errors import DamagedStoreError, StoreError, UsageError
from tests.store.conftest import PowerFiles


def test_save_keeps_the_previous_version(harness: Any) -> None:
    store = harness.open()
    assert store.read_config("topics.json", bytes) is None
    store.save_config("topics.json", b"1")
    store.save_config("topics.json", b"2")
    assert store.read_config("topics.json", bytes) == b"2"
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
    assert store.read_config("topics.json", bytes) == b"1"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "a..b", ".hidden"])
def test_names_cannot_leave_the_directory(harness: Any, name: str) -> None:
    store = harness.open()
    with pytest.raises(UsageError):
        store.save_config(name, b"")
    with pytest.raises(UsageError):
        store.read_config(name, bytes)


class Watching(OsFiles):
    """Notes what a reader of one file finds after each change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[bytes | None] | None = None

    def _look(self) -> None:
        if self.seen is not None:
            self.seen.append(self.path.read_bytes() if self.path.exists() else None)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        super().write(handle, data, offset)
        self._look()

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        self._look()

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._look()

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self._look()


def test_a_reader_never_sees_a_partial_file(harness: Any) -> None:
    """After every step of a save the file is there, with its old or its new content."""
    config = harness.directory / "config"
    files = Watching(config / "topics.json")
    store = harness.open(files=files)
    store.save_config("topics.json", b"1")
    for before, after in ((b"1", b"22"), (b"22", b"333")):
        files.seen = []
        store.save_config("topics.json", after)
        assert set(files.seen) == {before, after}
        assert files.seen == sorted(files.seen)
        assert (config / "topics.json.bak").read_bytes() == before
        assert sorted(path.name for path in config.iterdir()) == ["topics.json", "topics.json.bak"]


def test_a_save_that_a_crash_interrupted_leaves_nothing_behind(harness: Any) -> None:
    """Both names belong to one file, and a name of a moment is left."""
    store = harness.open()
    config = harness.directory / "config"
    store.save_config("topics.json", b"1")
    (config / "topics.json.bak").unlink()
    (config / "topics.json.bak").hardlink_to(config / "topics.json")
    (config / "topics.json.bak.tmp").write_bytes(b"")
    store.save_config("topics.json", b"2")
    assert store.read_config("topics.json", bytes) == b"2"
    assert (config / "topics.json.bak").read_bytes() == b"1"
    assert sorted(path.name for path in config.iterdir()) == ["topics.json", "topics.json.bak"]


def test_a_file_system_without_second_names_gets_a_copy(harness: Any, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    store = harness.open()
    store.save_config("topics.json", b"1")
    store.save_config("topics.json", b"2")
    assert store.read_config("topics.json", bytes) == b"2"
    assert (harness.directory / "config" / "topics.json.bak").read_bytes() == b"1"


TABLE = b'{"offsetTable":{"t@g":{0:1007}}}'


@pytest.mark.parametrize(
    ("name", "data", "before"),
    [
        ("consumerOffset.json", TABLE, TABLE.replace(b"1007", b"1000")),
        ("broker.properties", b"brokerPermission=6\n", b"brokerPermission=4\n"),
        ("kvConfig.json", b"{}", b"{ }"),
    ],
)
def test_a_bit_that_flips_gives_no_other_content(
    harness: Any, name: str, data: bytes, before: bytes
) -> None:
    """Also if the file can still be parsed: the node would go on with what has changed."""
    store = harness.open()
    store.save_config(name, before)
    store.save_config(name, data)
    path: Path = harness.directory / "config" / name
    saved = path.read_bytes()
    for bit in range(len(saved) * 8):
        changed = bytearray(saved)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        found = store.read_config(name, bytes)
        # A mark of the checksum that is damaged looks like a part of a file by another program.
        assert found in (data, before) or (found == bytes(changed) and data[1:] in found)
    path.write_bytes(saved)
    assert store.read_config(name, bytes) == data


def test_a_file_of_another_program_has_no_checksum(harness: Any) -> None:
    store = harness.open()
    path: Path = harness.directory / "config" / "topics.json"
    path.write_bytes(b'{"topicConfigTable":{}}')
    assert store.read_config("topics.json", bytes) == b'{"topicConfigTable":{}}'


def test_the_first_version_is_there_twice(harness: Any) -> None:
    store = harness.open()
    store.save_config("topics.json", b"{}")
    path: Path = harness.directory / "config" / "topics.json"
    assert not path.samefile(path.with_name("topics.json.bak"))
    path.write_bytes(b'{"edited":1}')
    assert store.read_config("topics.json", bytes) == b'{"edited":1}'
    path.write_bytes(b'{"checksum":"00000000"}')
    assert store.read_config("topics.json", bytes) == b"{}"


def test_a_damaged_file_is_kept(harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = harness.open()
    for data in (b'{"n":1}', b'{"n":2}'):
        store.save_config("topics.json", data)
    path: Path = harness.directory / "config" / "topics.json"
    edited = path.read_bytes().replace(b"2", b"3")
    path.write_bytes(edited)
    assert store.read_config("topics.json", bytes) == b'{"n":1}'
    assert "if you have edited the file, remove the checksum" in caplog.text
    store.save_config("topics.json", b'{"n":4}')
    assert store.read_config("topics.json", bytes) == b'{"n":4}'
    assert path.with_name("topics.json.damaged").read_bytes() == edited
    path.unlink()
    assert store.read_config("topics.json", bytes) == b'{"n":1}'


@pytest.mark.parametrize("names", [["topics.json"], ["topics.json", "topics.json.bak"]])
def test_an_empty_file_is_not_a_missing_one(harness: Any, names: list[str]) -> None:
    store = harness.open()
    for name in names:
        (harness.directory / "config" / name).write_bytes(b"")
    with pytest.raises(DamagedStoreError, match=r"topics\.json is empty, and there is no valid"):
        store.read_config("topics.json", bytes)


class StopError(Exception):
    """Nothing runs any more."""


@pytest.mark.parametrize("lost_power", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_whatever_ends_a_save_both_versions_are_whole(
    tmp_path: Path, *, first: bool, lost_power: bool
) -> None:
    """The file is there with its old or its new content, and its copy with one of the two."""
    versions = [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    for step in itertools.count():
        root, image, files = tmp_path / f"{step}", tmp_path / f"{step} after", PowerFiles()
        files.make_directory(root)
        config = ConfigFiles(files, root)
        for data in versions[: 0 if first else 2]:
            config.save("tubemqMaster.json", data)
        old = None if first else versions[1]
        steps = iter([None] * step)

        def stop(steps: Iterator[None] = steps) -> None:
            if next(steps, StopError) is StopError:
                raise StopError

        files.before = stop
        is_over = True
        try:
            config.save("tubemqMaster.json", versions[2])
        except StopError:
            is_over = False
        files.before = lambda: None
        for seed in range(5):
            shutil.rmtree(image, ignore_errors=True)
            if lost_power:
                files.cut(root, image, random.Random(seed))
            else:
                shutil.copytree(root, image)
            after = ConfigFiles(OsFiles(), image)
            found = after.read("tubemqMaster.json", bytes)
            assert found in ((versions[2],) if is_over else (old, versions[2]))
            previous = image / "tubemqMaster.json.bak"
            if previous.exists():
                assert unsealed(previous.read_bytes()) in versions
            after.save("tubemqMaster.json", b'{"n":4}')
            assert after.read("tubemqMaster.json", bytes) == b'{"n":4}'
        if is_over:
            break
    assert step > 5


def test_a_second_name_that_a_kill_has_left_is_not_written_to(tmp_path: Path) -> None:
    class Full(OsFiles):
        def write(self, handle: int, data: bytes, offset: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    ConfigFiles(OsFiles(), tmp_path).save("identity.json", b'{"n":1}')
    path = tmp_path / "identity.json"
    path.with_name("identity.json.bak").replace(path.with_name("copy"))
    path.with_name("identity.json.bak.tmp").hardlink_to(path)
    ConfigFiles(Full(), tmp_path).keep_twice("identity.json")
    config = ConfigFiles(OsFiles(), tmp_path)
    assert config.read("identity.json", bytes) == b'{"n":1}'
    path.with_name("identity.json.bak.tmp").unlink(missing_ok=True)
    path.with_name("identity.json.bak.tmp").hardlink_to(path)
    config.keep_twice("identity.json")
    assert not path.samefile(path.with_name("identity.json.bak"))


def test_a_full_disk_has_room_for_the_first_version_only(harness: Any) -> None:
    class OneFile(OsFiles):
        def write(self, handle: int, data: bytes, offset: int) -> None:
            if list((harness.directory / "config").glob("topics.json")):
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write(handle, data, offset)

    store = harness.open(files=OneFile())
    store.save_config("topics.json", b"{}")
    assert store.read_config("topics.json", bytes) == b"{}"
    config = harness.directory / "config"
    assert [path.name for path in config.iterdir()] == ["topics.json"]
    shutil.rmtree(config)  # so that the store can write when it is closed


def test_os_errors_are_translated(harness: Any) -> None:
    store = harness.open()
    (harness.directory / "config" / "topics.json").mkdir()
    with pytest.raises(StoreError, match=r"read topics\.json"):
        store.read_config("topics.json", bytes)
