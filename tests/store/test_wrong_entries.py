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
    [path] = (directory / "consumequeue" / topic / str(number)).iterdir()
    return path.read_bytes()[at * ENTRY_BYTES :][:ENTRY_BYTES]


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
    [path] = (directory / "consumequeue" / "t" / "0").iterdir()
    with path.open("r+b") as file:
        file.seek(AT * ENTRY_BYTES)
        file.write(WRONG[wrong](directory))


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
