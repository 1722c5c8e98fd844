"""No file refers to an offset of the log or of a queue that a power cut takes back."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coherer
import coherer.blocking
from coherer._record.system_topics import HALF_TOPIC, SCHEDULE_TOPIC
from coherer._rules.rocketmq.transactions import GROUP
from coherer._server.core.core import OFFSETS_FILE, Core
from coherer._server.rocketmq.broker.delays import DELAY_FILE, DelayService
from coherer._store.config_files import ConfigFiles, unsealed
from coherer.errors import StoreError, StoreFullError
from coherer.testing import embedded_node
from tests.copies import copy_tree

SAVED_BY_THE_STORE = {
    "consumerOffset.json": "offsets of groups, of transactions too",
    "delayOffset.json": "offsets of the delay levels",
    "topics.json": "topics, which are created before their messages",
    "subscriptionGroup.json": "groups; nothing that refers to the log",
    "consumerFilter.json": "filters and times",
    "queueLocks.json": "groups, clients and queues; nothing that refers to the log",
    "tubemqMaster.json": "brokers and topics",
    "kvConfig.json": "settings of name servers",
    "namesrv.properties": "settings",
    "broker.properties": "settings",
    "identity.json": "names",
}
"""The files of `config/`. Every one is written by `Store.save_config`, which flushes the log."""

WRITTEN_OTHERWISE = {
    "version.json": "a number; written before the store is used",
    "administration.json": "accounts",
    "plain_acl.yml": "accounts",
    "tools.yml": "accounts of tools",
    "powerCuts.json": "what power cuts have torn; written at the start, after the log is synced",
    "repairs.json": "queues that are rebuilt from the log; written before they are cut",
    "history.json": "where backups ended; written by a restore, after the log is synced",
    "removals": "a random token",
    "checkpoint": "what it covers is synced before it is written",
    "abort": "empty; there while the store is open",
    "lock": "the process that uses the directory",
    "inventory": "written at the end, after everything was flushed; compared with the checkpoint",
    "register": "files of queues, and the log offsets before them; written after both are synced",
    "reserve": "zeros that keep space for the other files",
    "backup.json": "a backup's manifest: not in the directory of the node",
    "metadata in ZooKeeper": "not a file",
    "coherer-transactions": "Spark's decisions: not in the directory of the node",
}

SEEDS = 12


def test_every_file_that_a_node_writes_is_in_the_table(tmp_path: Path) -> None:
    """Those that the sources name in another way, too."""
    with embedded_node(tmp_path) as node:
        node.create_topic("orders")
        with coherer.blocking.connect(node.url) as client, client.producer("orders") as producer:
            producer.send(coherer.Message("orders", b"1"))
    files = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    # Of logs, queues and indexes the name is a number. A backup was the file itself before.
    names = {name.removesuffix(".bak") for name in files if not name.isdecimal()}
    assert "checkpoint" in names
    assert names - SAVED_BY_THE_STORE.keys() - WRITTEN_OTHERWISE.keys() == set()


def test_every_file_is_in_the_table() -> None:
    """Add a new file to the table, and say to what it refers."""
    source = Path(coherer.__file__).parent
    named = re.compile(r'^(?:\w+_)?FILE(?:: Final)? = "([^"]+)"$', re.MULTILINE)
    names = {
        name
        for part in ("_server", "_store")
        for path in (source / part).rglob("*.py")
        for name in named.findall(path.read_text(encoding="utf-8"))
    }
    assert {OFFSETS_FILE, DELAY_FILE} <= names
    assert names - SAVED_BY_THE_STORE.keys() - WRITTEN_OTHERWISE.keys() == set()


@pytest.mark.parametrize("name", SAVED_BY_THE_STORE)
@pytest.mark.parametrize("seed", range(3))
def test_the_log_is_durable_before_a_file_is_written(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, name: str, seed: int
) -> None:
    """Power cuts at every step: the new content is on the disk only with all of the log."""
    files = power_files()
    files.adopt(harness.directory)
    store = harness.open(files=files)
    store.save_config(name, b"old")
    store.append([harness.draft(n) for n in range(10)])
    images: list[Path] = []

    def step() -> None:
        images.append(tmp_path / f"image{len(images)}")
        files.cut(harness.directory, images[-1], random.Random(seed))

    files.before = step
    store.save_config(name, b"new")
    step()
    files.before = lambda: None
    contents = []
    for image in images:
        again = harness.open(image)
        contents.append(again.read_config(name, bytes))
        assert contents[-1] == b"old" or again.queue_range("t", 0) == (0, 10)
        again.close()
    assert set(contents) == {b"old", b"new"}


def test_no_file_is_written_when_the_log_cannot_be_synced(
    harness: Any, power_files: Callable[[], Any], monkeypatch: Any
) -> None:
    files = power_files()
    store = harness.open(files=files)
    store.save_config("consumerOffset.json", b"old")
    store.append([harness.draft(0)])

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises(StoreError, match="log could not be synced"):
        store.save_config("consumerOffset.json", b"new")
    assert store.read_config("consumerOffset.json", bytes) == b"old"


def open_core(harness: Any, directory: Path | None = None, files: Any = None) -> Core:
    return Core(harness.open(directory, files=files), lambda: harness.clock.ms)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_group_never_skips_messages_after_a_power_cut(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """The group commits 20 of 20 messages; the last ten were not synced."""
    files = power_files()
    files.adopt(harness.directory)
    core = open_core(harness, files=files)
    core.store.append([harness.draft(n) for n in range(10)])
    core.store.flush()
    core.store.append([harness.draft(n) for n in range(10, 20)])
    core.offsets.open("readers", "t", 0).offset = 20
    await core.save_positions()
    files.cut(harness.directory, tmp_path / "image", random.Random(seed))
    again = open_core(harness, tmp_path / "image")
    position = again.offsets.find("readers", "t", 0)
    assert position is not None
    assert position.offset <= again.store.queue_range("t", 0)[1]
    await core.files.close()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_durable_half_message_is_asked_about_after_a_power_cut(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """Its check stored a copy and moved on; the copy must be durable before the position is."""
    files = power_files()
    files.adopt(harness.directory)
    core = open_core(harness, files=files)
    half = harness.draft(0, HALF_TOPIC)
    core.store.append([half])
    core.store.flush()
    core.store.append([half])  # the copy
    core.offsets.open(GROUP, HALF_TOPIC, 0).offset = 1
    await core.save_positions()
    files.cut(harness.directory, tmp_path / "image", random.Random(seed))
    again = open_core(harness, tmp_path / "image")
    position = again.offsets.find(GROUP, HALF_TOPIC, 0)
    first = 0 if position is None else position.offset
    assert first < again.store.queue_range(HALF_TOPIC, 0)[1]
    await core.files.close()


def test_offsets_behind_the_end_of_a_queue_are_corrected_at_once(harness: Any) -> None:
    """A copied directory, or one of an earlier version. The file must not keep the old offset: it
    would be valid again when the queue has grown."""
    store = harness.open()
    store.append([harness.draft(n) for n in range(10)])
    store.append([harness.draft(n, SCHEDULE_TOPIC, 1) for n in range(3)])
    table = '{"offsetTable":{"t@readers":{0:20},"t@others":{0:7},"gone@readers":{3:5}}}'
    store.save_config(OFFSETS_FILE, table.encode())
    store.save_config(DELAY_FILE, b'{"offsetTable":{2:9}}')
    store.close()
    core = open_core(harness)
    DelayService(core, (1_000, 2_000))
    config = harness.directory / "config"
    assert unsealed((config / OFFSETS_FILE).read_bytes()) == (
        b'{"offsetTable":{"gone@readers":{3:0},"t@others":{0:7},"t@readers":{0:10}}}'
    )
    assert unsealed((config / DELAY_FILE).read_bytes()) == b'{"offsetTable":{2:3}}'


def torn_image(harness: Any, image: Path) -> int:
    """Make a copy of a store that was not closed, with damage in what was not synced.

    Returns:
        Where the damage begins.
    """
    with harness.open() as store:
        store.append([harness.draft(n) for n in range(10)])
        store.flush_queues()
        torn = store.append([harness.draft(n) for n in range(10)])[4].physical_offset
        copy_tree(harness.directory, image)
    with next((image / "commitlog").iterdir()).open("r+b") as log:
        log.seek(torn)
        log.write(bytes(60))
    return int(torn)


def test_what_a_power_cut_has_torn_is_known_after_the_next_ones(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path
) -> None:
    """Power cuts at every step of a start that finds damage: later starts know of it."""
    image = tmp_path / "torn"
    torn = torn_image(harness, image)
    files = power_files()
    files.adopt(image)
    images: list[Path] = []

    def step() -> None:
        images.append(tmp_path / f"image{len(images)}")
        files.cut(image, images[-1], random.Random(len(images)))

    files.before = step
    store = harness.open(image, files=files)
    store.append([harness.draft(10)])
    store.close()
    step()
    files.before = lambda: None
    assert len(images) > 20
    for one in images:
        with harness.open(one) as again:
            (cut,) = again.recovery.cuts
            assert [piece.begin for piece in cut.torn] == [torn]
            last = again.place_of("t", 0, 9)
            assert [cut.tears(place) for place in (last, torn + 1, cut.end)] == [False, True, False]


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_full_disk_does_not_hide_what_a_power_cut_has_torn(
    harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    image = tmp_path / "torn"
    torn = torn_image(harness, image)

    def full(_: ConfigFiles, name: str, data: bytes) -> None:
        raise StoreFullError(f"No space for the {len(data)} bytes of {name}.")

    with monkeypatch.context() as patch:
        patch.setattr(ConfigFiles, "save", full)
        store = harness.open(image)
        with pytest.raises(StoreFullError):
            store.flush_queues()
        if end == "close":
            store.close()
            assert "powerCuts.json" in store.close_error
        copy_tree(image, tmp_path / "later")
        store.close()
    with harness.open(tmp_path / "later") as found:
        assert [piece.begin for cut in found.recovery.cuts for piece in cut.torn] == [torn]
