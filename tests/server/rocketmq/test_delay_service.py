"""Delayed messages are delivered once, in order, when they are due.

See docs/protocol/rocketmq.md, section 6.6.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from coherer._record import layout
from coherer._record.properties import encode
from coherer._record.system_topics import SCHEDULE_TOPIC
from coherer._rules.rocketmq.delays import delayed
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker import delays
from coherer._server.rocketmq.broker.delays import DELAY_FILE, ENTRIES_AT_ONCE, DelayService
from coherer._store import Draft, Store, StoreOptions
from coherer._store.consume_queue import ENTRY_BYTES
from coherer.testing import ManualClock
from tests.copies import copy_tree

OPTIONS = StoreOptions(segment_bytes=1 << 20, queue_segment_bytes=2000, index_enabled=False)


class Node:
    """A store, a core, and the service."""

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.store = Store.open(directory, OPTIONS, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms)
        self.core = Core(self.store, clock.now_ms, wall_ms=clock.wall_ms)
        self.service = DelayService(self.core)

    def send(self, body: str, level: int, topic: str = "t", queue_id: int = 0) -> None:
        sent = Draft(topic, queue_id, body.encode(), encode({"DELAY": str(level)}))
        self.store.append([delayed(sent, level)])

    async def tick(self) -> None:
        self.service.tick()
        await self.core.appender.close()  # stores what is pending

    async def until(self, ms: int) -> None:
        """Move the clock in steps of a tick."""
        for _ in range(ms // 100):
            self.clock.advance(100)
            await self.tick()

    def delivered(self, topic: str = "t", queue_id: int = 0) -> list[str]:
        found = self.store.read(topic, queue_id, 0, max_bytes=1 << 20, max_count=10_000)
        return [bytes(layout.body_of(record)).decode() for record in found.records]

    async def close(self) -> None:
        await self.core.close()
        self.service.save()
        await self.core.files.close()
        self.store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Node]:
    made = Node(tmp_path, clock)
    yield made
    await made.close()


async def test_each_level_waits_its_time(node: Node) -> None:
    for level in (1, 2, 3, 18):
        node.send(f"level {level}", level)
    await node.until(900)
    assert node.delivered() == []
    await node.until(100)
    assert node.delivered() == ["level 1"]
    await node.until(4_000)
    assert node.delivered() == ["level 1", "level 2"]
    await node.until(5_000)
    assert node.delivered() == ["level 1", "level 2", "level 3"]
    node.clock.advance(7_190_000)
    await node.tick()
    assert node.delivered()[3:] == ["level 18"]


async def test_messages_of_a_level_keep_their_order_over_queues(node: Node) -> None:
    for number in range(20):
        node.send(str(number), 1, queue_id=number % 2)
        node.clock.advance(10)
    await node.until(2_000)
    assert node.delivered(queue_id=0) == [str(number) for number in range(0, 20, 2)]
    assert node.delivered(queue_id=1) == [str(number) for number in range(1, 20, 2)]


async def test_a_burst_is_recorded_as_delivered_and_not_delivered_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    # Java 4.9.3 would record position 1 here, and deliver four of five again (section 6.6).
    node = Node(tmp_path, clock)
    for number in range(5):
        node.send(str(number), 1)
    await node.until(1_000)
    node.service.save()
    await node.core.files.flush()
    assert node.store.read_config(DELAY_FILE, bytes) == b'{"offsetTable":{1:5}}'
    await node.close()
    again = Node(tmp_path, clock)
    await again.until(5_000)
    assert again.delivered() == ["0", "1", "2", "3", "4"]
    await again.close()


async def test_a_large_burst_is_delivered_in_pieces(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delays, "ENTRIES_AT_ONCE", 7)
    monkeypatch.setattr(delays, "BYTES_AT_ONCE", 500)
    for number in range(50):
        node.send(str(number), 2)
    node.clock.advance(5_000)
    await node.tick()
    assert 0 < len(node.delivered()) < 7
    await node.until(2_000)
    assert node.delivered() == [str(number) for number in range(50)]


async def test_a_full_disk_delays_and_loses_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coherer.errors import StoreFullError

    node.send("m", 1)
    node.clock.advance(1_000)
    with monkeypatch.context() as full:

        def refuse(_: object) -> None:
            raise StoreFullError("No room.")

        full.setattr(node.store, "append", refuse)
        await node.tick()
        assert node.service.positions[1] == 0
    await node.until(100)
    assert node.delivered() == ["m"]
    assert node.service.positions[1] == 1


async def test_the_gap_of_a_promotion_does_not_hold_messages_up(
    tmp_path: Path, clock: ManualClock
) -> None:
    """It is longer than what is read at once, and no other message comes."""
    node = Node(tmp_path, clock)
    node.send("before", 1)
    await node.until(1_000)
    await node.close()
    replica = msgspec.structs.replace(OPTIONS, replica=True)
    Store.open(tmp_path, replica, now_ms=clock.wall_ms).close()
    heir = Node(tmp_path, clock)
    heir.send("behind the gap", 1)
    first, end = heir.store.queue_range(SCHEDULE_TOPIC, 0)
    assert end - first > ENTRIES_AT_ONCE
    await heir.until(1_000)
    assert heir.delivered() == ["before"]
    found = heir.store.read("t", 0, 1, max_bytes=1 << 20, max_count=10)
    assert [bytes(layout.body_of(record)) for record in found.records] == [b"behind the gap"]
    await heir.close()


async def test_a_message_without_a_valid_destination_is_skipped(node: Node) -> None:
    node.send("half", 1, topic="RMQ_SYS_TRANS_HALF_TOPIC")
    node.store.append([Draft("SCHEDULE_TOPIC_XXXX", 0, b"lost", b"")])
    bad = encode({"REAL_TOPIC": "../x", "REAL_QID": "0"})
    node.store.append([Draft("SCHEDULE_TOPIC_XXXX", 0, b"bad", bad)])
    node.send("good", 1)
    await node.until(1_000)
    assert node.delivered() == ["good"]
    assert node.delivered("RMQ_SYS_TRANS_HALF_TOPIC") == []
    assert node.service.positions[1] == 4


async def test_a_wrong_entry_delivers_no_other_message_twice(node: Node) -> None:
    for number in range(5):
        node.send(str(number), 1)
    node.store.flush_queues()
    [path] = (node.store.directory / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir()
    with path.open("r+b") as file:
        entry = file.read(ENTRY_BYTES)
        file.seek(3 * ENTRY_BYTES)
        file.write(entry)
    await node.until(2_000)
    assert node.delivered() == ["0", "1", "2", "4"]
    assert node.core.foreign.bad[SCHEDULE_TOPIC] == 1


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("bit", [6, 12, 20, 35, 40])
async def test_a_wrong_time_makes_no_message_early_or_late(
    node: Node, tmp_path: Path, bit: int, *, older: bool
) -> None:
    for number in range(4):
        node.send(str(number), 4)
        await node.until(1_000)
    node.store.flush_queues()
    [entry] = node.store.entries(SCHEDULE_TOPIC, 3, 1, 1)
    [path] = (node.store.directory / "consumequeue" / SCHEDULE_TOPIC / "3").iterdir()
    with path.open("r+b") as file:
        file.seek(1 * ENTRY_BYTES + 12)
        file.write(struct.pack(">q", entry.code ^ (1 << bit)))
    other = (
        Node(copy_tree(tmp_path, tmp_path.with_name(f"{tmp_path.name} copied")), node.clock)
        if older
        else node
    )
    await other.until(25_900)
    for number in range(4):
        assert other.delivered() == [str(before) for before in range(number)]
        await other.until(1_000)
    assert other.delivered() == ["0", "1", "2", "3"]
    if older:
        await other.close()


@pytest.mark.parametrize("by_ms", [-3_600_000, -5_000, 5_000, 3_600_000])
async def test_a_clock_that_is_set_makes_nothing_early_or_late(node: Node, by_ms: int) -> None:
    node.send("before", 3)
    await node.until(5_000)
    node.clock.turn(by_ms)
    node.send("after", 3)
    await node.until(4_900)
    assert node.delivered() == []
    await node.until(100)
    assert node.delivered() == ["before"]
    await node.until(4_900)
    assert node.delivered() == ["before"]
    await node.until(100)
    assert node.delivered() == ["before", "after"]


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
async def test_a_clock_that_is_set_after_a_restart(
    tmp_path: Path, clock: ManualClock, by_ms: int
) -> None:
    node = Node(tmp_path, clock)
    node.send("m", 5)
    await node.until(20_000)
    await node.close()
    node = Node(tmp_path, clock)
    clock.turn(by_ms)
    await node.until(39_900)
    assert node.delivered() == []
    await node.until(100)
    assert node.delivered() == ["m"]
    await node.close()


async def test_a_clock_that_was_set_back_between_two_runs(
    tmp_path: Path, clock: ManualClock
) -> None:
    """The elapsed time is unknown: it waits its whole delay again, not an hour."""
    node = Node(tmp_path, clock)
    node.send("m", 5)
    await node.until(20_000)
    await node.close()
    clock.turn(-3_600_000)
    node = Node(tmp_path, clock)
    await node.until(59_900)
    assert node.delivered() == []
    await node.until(100)
    assert node.delivered() == ["m"]
    await node.close()


async def test_positions_of_a_file_are_moved_into_the_queues(
    tmp_path: Path, clock: ManualClock
) -> None:
    node = Node(tmp_path, clock)
    node.send("m", 1)
    node.store.save_config(DELAY_FILE, b'{\n\t"offsetTable":{1:77,2:5\n\t}\n}')
    node.service.load()
    assert (node.service.positions[1], node.service.positions[2]) == (1, 0)
    await node.close()


async def test_a_damaged_file_gives_way_to_the_one_before(node: Node) -> None:
    node.send("m", 1)
    node.store.save_config(DELAY_FILE, b'{"offsetTable":{1:1}}')
    node.store.save_config(DELAY_FILE, b"{")
    node.service.load()
    assert node.service.positions[1] == 1
