"""`coherer verify`: the problems it finds and repairs; without --repair it changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coherer._store import Draft, Store, StoreOptions
from coherer._store.config_files import unsealed
from coherer.cli.main import app
from tests.copies import copy_tree

SEGMENT = 1 << 16
OPTIONS = StoreOptions(segment_bytes=SEGMENT, queue_segment_bytes=2_000)
COUNT = 1_500
NOW_MS = 1_700_000_000_000


def verify(directory: Path, *words: str) -> Result:
    words = ("verify", str(directory), *words)
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def fill(store: Store) -> None:
    for begin in range(0, COUNT, 100):
        store.append(
            [
                Draft("flights", n % 4, b"%d" % n * 20, b"KEYS\x01k%d" % n, keys=(f"k{n}",))
                for n in range(begin, begin + 100)
            ]
        )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    with Store.open(directory, OPTIONS, now_ms=lambda: NOW_MS) as store:
        fill(store)
        for text in (b'{"topicConfigTable":{}}', b'{"topicConfigTable":{"t":{"perm":6}}}'):
            store.save_config("topics.json", text)
    return directory


def everything(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def queue_files(directory: Path) -> list[Path]:
    return sorted((directory / "consumequeue/flights/1").iterdir())


def test_an_undamaged_directory_has_no_problems(directory: Path) -> None:
    before = everything(directory)
    result = verify(directory)
    assert result.exit_code == 0
    assert "1,500 records" in result.stdout
    assert "4 queues; closed; 0 problems" in result.stdout
    found = json.loads(verify(directory, "--json").stdout)
    assert found["verified"]["records"] == COUNT
    assert found["verified"]["problems"] == found["repaired"] == []
    assert everything(directory) == before


def flip_queue(directory: Path) -> None:
    path = queue_files(directory)[0]
    data = bytearray(path.read_bytes())
    data[47] ^= 1
    path.write_bytes(data)


def cut_queue(directory: Path) -> None:
    path = queue_files(directory)[1]
    path.write_bytes(path.read_bytes()[:77])


def lose_queue(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue/flights/1")


def cut_index(directory: Path) -> None:
    path = next((directory / "index").iterdir())
    with path.open("r+b") as file:
        file.truncate(1_000_000)


def break_topics(directory: Path) -> None:
    (directory / "config/topics.json").write_bytes(b"{ broken")


REBUILT = "will be rebuilt at the next start"
DAMAGES = [flip_queue, cut_queue, lose_queue, cut_index, break_topics]


@pytest.mark.parametrize("damage", DAMAGES)
def test_repairable_damage_is_repaired(directory: Path, damage: Callable[[Path], None]) -> None:
    damage(directory)
    before = everything(directory)
    result = verify(directory)
    assert result.exit_code == 3
    outcome = "the next start uses its .bak" if damage is break_topics else REBUILT
    assert outcome in " ".join(result.stdout.split())
    assert "lost" not in result.stdout
    assert "--repair does it now" in result.stdout
    assert "1 problem" in result.stdout
    assert everything(directory) == before, "verify is read-only"
    part = {cut_index: "index", break_topics: "config"}.get(damage, "queue")
    found = json.loads(verify(directory, "--json").stdout)
    assert [problem["part"] for problem in found["verified"]["problems"]] == [part]
    result = verify(directory, "--repair")
    assert result.exit_code == 0
    assert "repaired" in result.stdout
    assert verify(directory).exit_code == 0
    with Store.open(directory, OPTIONS, now_ms=lambda: NOW_MS) as store:
        assert store.recovery.repaired == ()
        assert store.queue_range("flights", 1) == (0, COUNT // 4)
        assert len(store.by_key("flights", "k1")) == 1
    if damage is break_topics:
        saved = (directory / "config/topics.json").read_bytes()
        assert unsealed(saved) == b'{"topicConfigTable":{}}'


@pytest.mark.parametrize("is_store", [True, False])
def test_a_damaged_history_is_reported(directory: Path, is_store: bool) -> None:
    """The next start gives the directory a new id, and the next backup refuses it."""
    if not is_store:
        for name in ("commitlog", "consumequeue"):
            shutil.rmtree(directory / name)
        (directory / "checkpoint").unlink()
    (directory / "history.json").write_bytes(b'{"ie":"0"}')
    result = verify(directory)
    assert result.exit_code == 3
    assert "history.json cannot be read" in " ".join(result.stdout.split())
    assert "gives the directory a new id" in " ".join(result.stdout.split())
    assert verify(directory, "--repair").exit_code == 0
    assert verify(directory).exit_code == 0


def test_filters_that_consumers_restore_are_not_lost(directory: Path) -> None:
    (directory / "config/consumerFilter.json").write_bytes(b"{ broken")
    result = verify(directory)
    assert result.exit_code == 3
    assert "consumers restore it after the next start" in " ".join(result.stdout.split())
    assert verify(directory, "--repair").exit_code == 0
    assert verify(directory).exit_code == 0
    (directory / "config/topics.json").write_bytes(b"{ broken")
    (directory / "config/topics.json.bak").unlink()
    result = verify(directory)
    assert result.exit_code == 4
    assert "lost" in result.stdout


def test_lost_messages_are_counted(directory: Path) -> None:
    lost = directory / "commitlog" / f"{SEGMENT:020}"
    lost.unlink()
    for words in ((), ("--repair",)):
        result = verify(directory, *words)
        assert result.exit_code == 4
        assert f"bytes {SEGMENT} to {2 * SEGMENT}" in result.stdout
        assert "a file is missing" in result.stdout
    found = json.loads(verify(directory, "--json").stdout)["verified"]
    assert found["problems"][0]["messages"] == COUNT - found["records"] > 0


def test_an_unclosed_directory_is_reported(directory: Path, tmp_path: Path) -> None:
    image = tmp_path / "image"
    with Store.open(directory, OPTIONS, now_ms=lambda: NOW_MS) as store:
        fill(store)
        copy_tree(directory, image)
    result = verify(image)
    assert result.exit_code == 0
    assert "not closed: the next start recovers" in result.stdout
    assert verify(image, "--repair").exit_code == 0
    assert "; closed; 0 problems" in verify(image).stdout
    assert "3,000 records" in verify(image).stdout


def test_a_directory_in_use_is_refused(directory: Path) -> None:
    with Store.open(directory, OPTIONS, now_ms=lambda: NOW_MS):
        for words in ((), ("--repair",), ("--json",)):
            result = verify(directory, *words)
            assert result.exit_code == 1
            assert "in use" in result.output
            assert "Stop the node" in result.output


def test_other_directories_are_refused(tmp_path: Path) -> None:
    result = verify(tmp_path / "nothing")
    assert result.exit_code == 2
    assert "no store" in result.output
    assert not (tmp_path / "nothing").exists()


def test_a_directory_with_configuration_only(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "tubemqMaster.json").write_bytes(b"{")
    assert verify(tmp_path).exit_code == 4
    (config / "tubemqMaster.json").unlink()
    assert verify(tmp_path).exit_code == 0
