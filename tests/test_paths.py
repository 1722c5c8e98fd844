"""Names from files and peers that would become paths elsewhere are refused everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coherer._client.rocketmq.consuming.offsets import LocalOffsets
from coherer._common.paths import child, is_file_name
from coherer._store import Draft, Store, StoreOptions
from coherer._store.config_files import ConfigFiles
from coherer._store.files import OsFiles
from coherer.errors import CohererError, UsageError

HOSTILE = [
    "..",
    "../x",
    "/etc/passwd",
    "a/../../x",
    "a\\..\\x",
    "x\0",
    "",
    ".",
    ".hidden",
    "a" * 300,
]


def append(root: Path, name: str) -> None:
    with Store.open(root / "s", StoreOptions(segment_bytes=1 << 16), now_ms=lambda: 1) as store:
        store.append([Draft(name, 0, b"x", b"")])


def delete(root: Path, name: str) -> None:
    with Store.open(root / "s", StoreOptions(segment_bytes=1 << 16), now_ms=lambda: 1) as store:
        store.delete_topic(name)
        raise UsageError("deleted")


def configure(root: Path, name: str) -> None:
    ConfigFiles(OsFiles(), root / "s").save(name, b"")


def offsets_of_a_client(_: Path, name: str) -> None:
    LocalOffsets.default_directory(name, "g")


def offsets_of_a_group(_: Path, name: str) -> None:
    LocalOffsets.default_directory("client", name)


USERS: list[Callable[[Path, str], None]] = [
    append,
    delete,
    configure,
    offsets_of_a_client,
    offsets_of_a_group,
]


@pytest.mark.parametrize("use", USERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_never_leaves_its_directory(
    tmp_path: Path, use: Callable[[Path, str], None], name: str
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "x").touch()
    with pytest.raises(CohererError):
        use(tmp_path, name)
    assert {path.name for path in tmp_path.iterdir()} == {"s", "x"}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_error_names_the_kind(tmp_path: Path, name: str) -> None:
    assert not is_file_name(name)
    with pytest.raises(UsageError, match="is not a valid name of a topic"):
        child(tmp_path, name, "topic")
