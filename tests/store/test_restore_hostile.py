"""Backups that somebody wrote to harm: nothing is written outside of the new directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from coherer._store.backup_contents import kind_of
from coherer._store.restore import restore, verify_backup
from coherer.errors import DamagedStoreError
from tests.store.test_backup import contents, take

Change = dict[str, Any]


@pytest.fixture
def backup(harness: Any, tmp_path: Path) -> Path:
    """A backup of a store with log, queues, index, configuration and accounts."""
    store = harness.open()
    store.append([harness.draft(n, key=f"k{n}") for n in range(300)])
    store.save_config("topics.json", b"{}")
    (store.directory / "conf/acl/team").mkdir(parents=True)
    for name in ("more.yml", "team/more.yml"):  # a node reads both
        (store.directory / "conf/acl" / name).write_text("accounts: []")
    store.flush_queues()
    target = tmp_path / "backup"
    take(store, target)
    return target


def rewrite(target: Path, found: Any) -> None:
    """Write a manifest with the right checksum: whoever changes it can compute that too."""
    import msgspec

    from coherer._store.backup_contents import Manifest

    plain = msgspec.convert({**found, "crc": 0}, Manifest)
    found["crc"] = crc32(msgspec.json.encode(plain))
    (target / "backup.json").write_bytes(json.dumps(found).encode())


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.name != "lock"}


PATHS = [
    "../x",
    "/tmp/x",
    "config/../../x",
    "config/..",
    "config//x",
    "config/",
    "config/a/b",
    "conf/../../../x",
    "C:/x",
    "config\\..\\..\\x",
    "config/x\0y",
    "config/.profile",
    "abort",
    "lock",
    "history.json",
    "restore-incomplete",
    "commitlog/00000000000000000000",
    "consumequeue/../0/00000000000000000000",
    "consumequeue/a b/0/00000000000000000000",
    "consumequeue/t/4294967296/00000000000000000000",
    "consumequeue/t/0/x",
    "index/x",
    "brokers/2/config/topics.json",
    ".ssh/authorized_keys",
    "",
    "config/" + "x" * 300,
]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_no_backup_contains_is_refused(
    backup: Path, tmp_path: Path, path: str, version: int
) -> None:
    found = json.loads((backup / "backup.json").read_bytes())
    found["version"] = version
    one = next(one for one in found["files"] if one["path"] == "config/topics.json")
    one["path"], one["name"] = path, f"00000001/{path}"
    rewrite(backup, found)
    before = everything(tmp_path)
    for use in (lambda: restore(backup, tmp_path / "new"), lambda: verify_backup(backup)):
        with pytest.raises(DamagedStoreError, match="is not what `coherer backup` writes"):
            use()
    assert everything(tmp_path) == before, "nothing was written"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "../../secret"}, "is stored as"),
        ({"name": "/etc/passwd"}, "is stored as"),
        ({"name": "00000009/config/topics.json"}, "is stored as"),
        ({"name": "00000001/config/../x"}, "is stored as"),
        ({"mode": 0o4755}, "permissions 4755"),
        ({"mode": 0o2644}, "permissions 2644"),
        ({"mode": -1}, "permissions"),
        ({"size": 1 << 40}, "bytes"),
        ({"size": -1}, "bytes"),
    ],
)
def test_a_name_a_size_or_permissions_that_are_impossible_are_refused(
    backup: Path, tmp_path: Path, change: Change, text: str
) -> None:
    found = json.loads((backup / "backup.json").read_bytes())
    next(one for one in found["files"] if one["path"] == "config/topics.json").update(change)
    rewrite(backup, found)
    with pytest.raises(DamagedStoreError, match=text):
        restore(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"begin": -16_384},
        {"begin": 100},
        {"end": 1 << 40},
        {"end": 0},
        {"name": "00000001/../../x"},
        {"name": "00000001/config/topics.json"},
    ],
)
def test_a_piece_of_the_log_that_is_impossible_is_refused(
    backup: Path, tmp_path: Path, change: Change
) -> None:
    found = json.loads((backup / "backup.json").read_bytes())
    found["log"]["pieces"][0].update(change)
    rewrite(backup, found)
    with pytest.raises(DamagedStoreError, match="is not what `coherer backup` writes"):
        restore(backup, tmp_path / "new")


@pytest.mark.parametrize(
    "change", [{"segment_bytes": 1 << 60}, {"segment_bytes": 0}, {"end": 1 << 40}, {"begin": 7}]
)
def test_a_log_that_is_impossible_is_refused(backup: Path, tmp_path: Path, change: Change) -> None:
    found = json.loads((backup / "backup.json").read_bytes())
    found["log"].update(change)
    rewrite(backup, found)
    with pytest.raises(DamagedStoreError, match="is not what `coherer backup` writes"):
        restore(backup, tmp_path / "new")
    found["log"].update({"pieces": found["log"]["pieces"][1:]})
    rewrite(backup, found)
    with pytest.raises(DamagedStoreError):
        restore(backup, tmp_path / "new")


def test_a_file_that_is_named_twice_is_refused(backup: Path, tmp_path: Path) -> None:
    found = json.loads((backup / "backup.json").read_bytes())
    found["files"].append(found["files"][0])
    rewrite(backup, found)
    with pytest.raises(DamagedStoreError, match="twice"):
        restore(backup, tmp_path / "new")


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links and permissions")
@pytest.mark.parametrize("place", ["backup.json", "data", "data/00000001/config", "file"])
def test_symbolic_links_are_not_followed(backup: Path, tmp_path: Path, place: str) -> None:
    name = "data/00000001/config/topics.json" if place == "file" else place
    (backup / name).rename(tmp_path / "moved")
    (backup / name).symlink_to(tmp_path / "moved")
    for use in (lambda: restore(backup, tmp_path / "new"), lambda: verify_backup(backup)):
        with pytest.raises(DamagedStoreError, match="is a symbolic link"):
            use()
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs symbolic links")
@pytest.mark.parametrize(
    "name", ["lock", "backup.json.tmp", "backup-incomplete", "restore-incomplete"]
)
def test_no_file_is_written_through_a_link(
    backup: Path, tmp_path: Path, name: str, harness: Any
) -> None:
    victim, new = tmp_path / "victim", tmp_path / "new"
    victim.write_bytes(b"kept")
    place = new if name.startswith("restore") else backup
    place.mkdir(exist_ok=True)
    (place / name).unlink(missing_ok=True)
    (place / name).symlink_to(victim)
    store = harness.open(tmp_path / "other")
    uses = [lambda: take(store, backup)] if place is backup else []
    if name in {"lock", "restore-incomplete"}:
        uses.append(lambda: restore(backup, new))
    for use in uses:
        with pytest.raises(DamagedStoreError, match="is a symbolic link"):
            use()
    assert victim.read_bytes() == b"kept"


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_permissions_are_reading_and_writing_only(
    backup: Path, tmp_path: Path, harness: Any
) -> None:
    found = json.loads((backup / "backup.json").read_bytes())
    for one in found["files"]:
        one["mode"] = 0o777
    rewrite(backup, found)
    restore(backup, tmp_path / "new")
    modes = {path.stat().st_mode & 0o7777 for path in (tmp_path / "new").rglob("*")
             if path.is_file()}  # fmt: skip
    assert modes == {0o664, 0o644}
    assert contents(harness.open(tmp_path / "new"))


def test_every_file_of_a_node_that_a_backup_should_have_is_in_the_table(backup: Path) -> None:
    stored = {
        path.relative_to(backup / "data/00000001").as_posix()
        for path in (backup / "data").rglob("*")
        if path.is_file() and "commitlog" not in path.parts
    }
    parts = {name: kind_of(name) for name in stored}
    assert {kind.part for kind in parts.values() if kind} == {"config", "queue", "index"}
    assert all(parts.values())
    assert {"conf/acl/more.yml", "conf/acl/team/more.yml"} <= stored
