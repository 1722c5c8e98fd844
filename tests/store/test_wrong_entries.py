"""Bits of queue entries have flipped: no reader gets a message of another queue or offset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coherer._record.layout import decode
from coherer._server.node.verifying import repair
from coherer._store import ReadStatus, Store, reading
from coherer._store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_BYTES
from coherer._store.verify import verify_store

COUNT, AT = 20, 7
QUEUES = [("t", 0), ("u", 0), ("t", 1)]


def entry(directory: Path, topic: str, number: int, at: int) -> bytes:
    files = sorted((directory / "consumequeue" / topic / str(number)).iterdir())
    data = b"".join(path.read_bytes() for path in files)
    return data[at * ENTRY_BYTES :][:ENTRY_BYTES]


def of_another_topic(directory: Path) -> bytes:
    return entry(directory, "u", 0, AT)


def of_another_queue(directory: Path) -> bytes:
    return entry(directory, "t", 1, AT)


def of_the_message_before(directory: Path) -> bytes:
    return entry(directory, "t", 0, AT - 1)


def of_the_next_message(directory: Path) -> bytes:
    return entry(directory, "t", 0, AT + 1)


def moved(by: int) -> Callable[[Path], bytes]:
    def move(directory: Path) -> bytes:
        place, size, code = ENTRY.unpack(entry(directory, "t", 0, AT))
        return ENTRY.pack(place + by, size, code)

    return move


def of_size(size: int) -> Callable[[Path], bytes]:
    def resize(directory: Path) -> bytes:
        place, _, code = ENTRY.unpack(entry(directory, "t", 0, AT))
        return ENTRY.pack(place, size, code)

    return resize


WRONG = {
    "another topic": of_another_topic,
    "another queue": of_another_queue,
    "the message before": of_the_message_before,
    "the next message": of_the_next_message,
    "the middle of a message": moved(64),
    "behind the log": moved(1 << 33),
    "before the log": moved(-(1 << 40)),
    "nothing": lambda _: bytes(ENTRY_BYTES),
    "the first message": lambda _: ENTRY.pack(0, 0, 0),
    "no size": of_size(0),
    "a negative size": of_size(-5),
    "a large size": of_size(BLANK_SIZE - 1),
}


@pytest.fixture(params=["scattered", "adjacent"])
def store(harness: Any, request: pytest.FixtureRequest) -> Store:
    first: Store = harness.open(verify_bytes=0)
    if request.param == "scattered":
        for number in range(COUNT):
            first.append([harness.draft(number, *place) for place in QUEUES])
    else:
        for place in QUEUES:
            first.append([harness.draft(number, *place) for number in range(COUNT)])
    first.flush_queues()
    return first


@pytest.fixture(params=["slices", "joined"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "joined":
        pytest.importorskip("numpy")
        reading.JOINING.load()
        monkeypatch.setattr(reading, "FEW_ENTRIES", 0)
    else:
        monkeypatch.setattr(reading, "JOINING", reading.Joining())


def damage(directory: Path, wrong: str) -> None:
    write_entry(directory, AT, WRONG[wrong](directory))


def write_entry(directory: Path, at: int, data: bytes) -> None:
    """Write an entry of queue 0 of the topic t."""
    queue = directory / "consumequeue" / "t" / "0"
    files = {int(path.name): path for path in queue.iterdir()}
    begin = max(one for one in files if one <= at * ENTRY_BYTES)
    with files[begin].open("r+b") as file:
        file.seek(at * ENTRY_BYTES - begin)
        file.write(data)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_entry_costs_one_message_and_is_reported(store: Store, wrong: str) -> None:
    damage(store.directory, wrong)
    found: list[int] = []
    damaged: list[int] = []
    at = 0
    while at < COUNT:
        for count in (1, 5, COUNT):
            slices = store.read_slices("t", 0, at, max_bytes=1 << 20, max_count=count)
            assert slices is None or AT not in range(at, slices.next_offset)
        read = store.read("t", 0, at, max_bytes=1 << 20, max_count=5)
        assert read.status is ReadStatus.FOUND or read.damaged
        for offset, data in zip(read.offsets, read.records, strict=True):
            record = decode(data)
            assert (record.topic, record.queue_id, record.queue_offset) == ("t", 0, offset)
            found.append(offset)
        damaged += read.damaged
        at = read.next_offset
    assert found == [number for number in range(COUNT) if number != AT]
    assert damaged == [AT]


@pytest.mark.parametrize("wrong", WRONG)
def test_verify_finds_a_wrong_entry_and_repairs_it(harness: Any, store: Store, wrong: str) -> None:
    """Also if the checksum of the last close is that of the wrong entry."""
    expected = harness.everything(store)
    damage(store.directory, wrong)
    store.close()
    problems = verify_store(store.directory).problems
    assert [one.where for one in problems] == [f"t/0, from entry {AT}"]
    repair(store.directory)
    assert verify_store(store.directory).problems == []
    assert harness.everything(harness.open()) == expected


@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_entry_changes_no_other_offset_of_a_time(
    harness: Any, wrong: str, *, nearest: bool
) -> None:
    store, began_ms = harness.open(), harness.clock.ms
    for number in range(COUNT):
        store.append([harness.draft(number, *place) for place in QUEUES])
        harness.clock.ms += 1_000
    store.flush_queues()
    damage(store.directory, wrong)
    for number in range(COUNT):
        at = store.offset_at_time("t", 0, began_ms + 1_000 * number, nearest=nearest)
        assert at == number or number == AT


@pytest.mark.parametrize("at", range(COUNT))
def test_a_wrong_time_of_a_message_changes_no_other_offset_of_a_time(harness: Any, at: int) -> None:
    store, began_ms = harness.open(), harness.clock.ms
    for number in range(COUNT):
        store.append([harness.draft(number)])
        harness.clock.ms += 1_000
    store.flush_queues()
    place, _, _ = ENTRY.unpack(entry(store.directory, "t", 0, at))
    [path] = (store.directory / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.seek(place + 56)  # the time when it was stored
        file.write(bytes(8))
    found = [store.offset_at_time("t", 0, began_ms + 1_000 * number) for number in range(COUNT)]
    assert [one for one in range(COUNT) if found[one] != one] in ([], [at])


@pytest.mark.parametrize("wrong", range(14, 30))
def test_retention_keeps_what_is_behind_an_entry_that_names_a_deleted_place(
    harness: Any, wrong: int
) -> None:
    store = harness.open()
    for number in range(60):
        store.append([harness.draft(number, "tu"[number % 2], size=1_000)])
    store.close()
    store = harness.open(retention_bytes=40_000, retention_hours=None)
    before = harness.everything(store)
    _, size, code = ENTRY.unpack(entry(store.directory, "t", 0, wrong))
    write_entry(store.directory, wrong, ENTRY.pack(0, size, code))
    assert store.delete_expired(harness.clock.ms)
    assert store.queue_range("t", 0) == (14 + (wrong == 14), 30)
    after = harness.everything(store)["t", 0]
    assert after == {at: before["t", 0][at] for at in range(14, 30) if at != wrong}
