"""The files shared by both protocols: topics.json, subscriptionGroup.json, consumerOffset.json."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.groups import Group
from coherer._server.core.core import Core
from coherer._store import Draft, Store, StoreOptions
from coherer.errors import DamagedStoreError, StoreFullError
from coherer.testing import ManualClock

OPTIONS = StoreOptions(segment_bytes=1 << 16, queue_segment_bytes=2000, index_enabled=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path, OPTIONS, now_ms=ManualClock().now_ms) as store:
        yield store


def core_of(store: Store) -> Core:
    return Core(store, ManualClock(5).now_ms)


def content(store: Store, name: str) -> Any:
    data = store.read_config(name, bytes)
    return None if data is None else msgspec.json.decode(data)


def test_every_change_is_written_at_once(store: Store) -> None:
    core = core_of(store)
    changes: list[int] = []
    core.on_change(lambda: changes.append(core.topics.version.counter))
    assert content(store, "topics.json") is None
    core.topics.ensure_topic("%RETRY%g", 1, now_ms=7)
    core.groups.find("g", now_ms=8)
    assert content(store, "topics.json")["dataVersion"] == {"counter": 1, "timestamp": 7}
    assert content(store, "subscriptionGroup.json")["dataVersion"] == {"counter": 1, "timestamp": 8}
    assert changes == [1]
    core.topics.put(Topic(name="t"), now_ms=9)
    assert list(content(store, "topics.json")["topicConfigTable"]) == ["%RETRY%g", "t"]
    assert changes == [1, 2]
    again = core_of(store)
    assert list(again.topics) == list(core.topics)
    assert again.topics.version == core.topics.version
    assert list(again.groups) == [Group(group_name="g")]


async def test_groups_that_are_named_are_groups_when_they_have_lasting_positions(
    store: Store,
) -> None:
    core = core_of(store)
    core.name_group("readers")
    core.name_group("nowhere")
    core.offsets.open("readers", "t", 0).offset = 4
    await core.save_positions()
    assert list(content(store, "subscriptionGroup.json")["subscriptionGroupTable"]) == ["readers"]
    assert core_of(store).offsets.groups_of("t") == ["readers"]
    assert core_of(store).offsets.groups_of("u") == []
    core.groups.remove("readers")
    await core.save_positions()
    assert "readers" not in core.groups, "whoever deletes a group keeps its positions"


async def test_offsets_alone_create_no_group(store: Store) -> None:
    """As with Java's broker: the heartbeat of a consumer makes it, where that is allowed."""
    core = core_of(store)
    core.offsets.open("readers", "t", 0).offset = 4
    await core.save_positions()
    assert core_of(store).offsets.groups_of("t") == ["readers"]
    assert "readers" not in core.groups


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json"])
def test_a_broken_file_falls_back_to_the_one_before(
    store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    core = core_of(store)
    core.topics.put(Topic(name="topics"), now_ms=1)
    core.groups.add("groups", now_ms=1)
    store.save_config(name, b"{ broken")
    again = core_of(store)
    assert (again.topics.get("topics") is not None, "groups" in again.groups) == (True, True)
    assert name in caplog.text
    assert "The previous version is used" in caplog.text
    store.save_config(name, b"{ broken, too")
    assert core_of(store).topics.get("topics") is not None, "the good one has stayed"
    (store.directory / "config" / f"{name}.bak").write_bytes(b"{ broken, too")
    with pytest.raises(DamagedStoreError, match=name):
        core_of(store)


def test_a_missing_or_empty_file_falls_back_too(store: Store, tmp_path: Path) -> None:
    core = core_of(store)
    core.topics.put(Topic(name="t"), now_ms=1)
    core.topics.put(Topic(name="u"), now_ms=2)
    (tmp_path / "config" / "topics.json").write_bytes(b"")
    assert [topic.name for topic in core_of(store).topics] == ["t"]
    (tmp_path / "config" / "topics.json").unlink()
    assert [topic.name for topic in core_of(store).topics] == ["t"]


async def test_a_failed_write_is_retried(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = core_of(store)
    save = store.save_config

    def full(name: str, data: bytes) -> None:
        raise StoreFullError("No room.")

    monkeypatch.setattr(store, "save_config", full)
    with caplog.at_level(logging.ERROR):
        core.topics.put(Topic(name="t"), now_ms=1)
        core.groups.add("g", now_ms=1)
        with pytest.raises(StoreFullError):
            await core.files.flush()
    assert "topics.json could not be written and will be retried: No room." in caplog.text
    with pytest.raises(StoreFullError):
        await core.save_positions()
    monkeypatch.setattr(store, "save_config", save)
    await core.save_positions()
    assert list(content(store, "topics.json")["topicConfigTable"]) == ["t"]
    assert list(content(store, "subscriptionGroup.json")["subscriptionGroupTable"]) == ["g"]


def test_java_forms_are_read(store: Store) -> None:
    store.save_config("topics.json", b'{topicConfigTable:{"t":{"perm":4,"topicName":"t"}}}')
    store.save_config("subscriptionGroup.json", b'{subscriptionGroupTable:{"g":{groupName:"g"}}}')
    store.save_config("consumerOffset.json", b'{"offsetTable":{"t@g":{0:10,1:7\n\t\t}\n\t}}')
    store.append([Draft("t", queue, b"", b"") for queue in [0] * 10 + [1] * 7])
    core = core_of(store)
    assert core.topics["t"] == Topic(name="t", perm=4)
    assert "g" in core.groups
    assert [position.offset for _, _, position in core.offsets.of("g")] == [10, 7]


async def test_changes_of_a_turn_are_written_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = core_of(store)
    written: list[str] = []
    save = store.save_config

    def counted(name: str, data: bytes) -> None:
        written.append(name)
        save(name, data)

    monkeypatch.setattr(store, "save_config", counted)
    core = core_of(store)
    core.topics.put(Topic(name="a"), now_ms=9)
    core.topics.put(Topic(name="b"), now_ms=9)
    core.groups.find("g", now_ms=9)
    assert not written
    await core.files.flush()
    assert written == ["topics.json", "subscriptionGroup.json"]
    assert list(core_of(store).topics) == list(core.topics)
    await core.files.flush()
    core.topics.remove("b", now_ms=10)
    await core.files.flush()
    assert written[2:] == ["topics.json"]
