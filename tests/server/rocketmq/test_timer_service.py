"""Timed messages are delivered once, when they are due, across restarts and clock changes."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coherer import limits
from coherer._record import layout
from coherer._record.properties import decode, encode
from coherer._record.system_topics import TIMER_TOPIC
from coherer._rules.common.origins import Origin
from coherer._rules.rocketmq.timers import MARKS, SLOT_MS, SLOTS, is_timed, rolled
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker import timers
from coherer._server.rocketmq.broker.timers import TimerService
from coherer._server.rocketmq.remoting import Refusal
from coherer._store import Draft, Store, StoreOptions
from coherer._store.consume_queue import ENTRY_BYTES
from coherer.errors import StoreFullError
from coherer.testing import ManualClock
from tests.copies import copy_tree

OPTIONS = StoreOptions(segment_bytes=1 << 20, queue_segment_bytes=2000, index_enabled=False)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Node:
    """A store, a core, and the service."""

    def __init__(
        self, directory: Path, clock: ManualClock, options: StoreOptions = OPTIONS
    ) -> None:
        self.clock = clock
        self.directory = directory
        self.options = options
        self.store = Store.open(directory, options, now_ms=clock.now_ms)
        self.core = Core(self.store, clock.now_ms)
        self.service = TimerService(self.core)

    async def send(
        self, body: str, topic: str = "t", queue_id: int = 0, **properties: object
    ) -> None:
        texts = {name: str(value) for name, value in properties.items()}
        draft = Draft(topic, queue_id, body.encode(), encode({"TAGS": "red", **texts}), 112_785)
        self.core.appender.submit(
            [self.service.schedule(draft)], None, origin=Origin.ROCKETMQ_CLIENT
        )
        await self.core.appender.close()  # stores what is pending

    async def tick(self) -> None:
        """Tick until nothing more is stored; a tick passes a limited number of empty slots."""
        end = -1
        while end != self.store.end_offset:
            end = self.store.end_offset
            for _ in range(60):
                self.service.tick()
                await self.core.appender.close()  # stores what is pending

    async def until(self, ms: int, step_ms: int = 100) -> None:
        for _ in range(ms // step_ms):
            self.clock.advance(step_ms)
            await self.tick()

    def delivered(self, topic: str = "t", queue_id: int = 0) -> list[str]:
        return [bytes(one.body).decode() for one in self.records(topic, queue_id)]

    def records(self, topic: str = "t", queue_id: int = 0) -> list[layout.Record]:
        offset, end = self.store.queue_range(topic, queue_id)
        records: list[layout.Record] = []
        while offset < end:  # a read ends where a file of the queue does
            found = self.store.read(topic, queue_id, offset, max_bytes=1 << 24, max_count=10_000)
            records += [layout.decode(record) for record in found.records]
            offset = found.next_offset
        return records

    def killed(self, name: str) -> Node:
        """Copy the files as another process finds them after SIGKILL."""
        return Node(self.copy(name), self.clock, self.options)

    def copy(self, name: str) -> Path:
        """A copy of the directory, without the files that are just being replaced."""
        target = self.directory.with_name(name)
        return copy_tree(self.directory, target, ignore=shutil.ignore_patterns("*.tmp"))

    async def close(self) -> None:
        self.service.stop()
        await self.core.close()
        self.store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Node]:
    made = Node(tmp_path / "store", clock)
    yield made
    await made.close()


async def test_each_form_of_a_time(node: Node) -> None:
    now_ms = node.clock.now_ms()
    await node.send("seconds", TIMER_DELAY_SEC=2)
    await node.send("milliseconds", TIMER_DELAY_MS=700)
    await node.send("time", TIMER_DELIVER_MS=now_ms + 1_300)
    await node.send("seconds count first", TIMER_DELAY_SEC=3, TIMER_DELAY_MS=1, TIMER_DELIVER_MS=1)
    await node.send("past", TIMER_DELIVER_MS=now_ms - 1)
    await node.send("now", TIMER_DELAY_SEC=0)
    assert node.delivered() == ["past", "now"]
    seen: dict[str, int] = {}
    for _ in range(31):
        node.clock.advance(100)
        await node.tick()
        for body in node.delivered():
            seen.setdefault(body, node.clock.now_ms() - now_ms)
    assert seen == {
        "past": 100, "now": 100, "milliseconds": 700, "time": 1_300, "seconds": 2_000,
        "seconds count first": 3_000,
    }  # fmt: skip


async def test_delivered_properties(node: Node) -> None:
    begin_ms = node.clock.now_ms()
    await node.send("m", "orders", 3, TIMER_DELAY_MS=250, UNIQ_KEY="0A", KEYS="k")
    await node.until(300)
    (found,) = node.records("orders", 3)
    properties = decode(found.properties)
    assert properties == {
        "TAGS": "red",
        "UNIQ_KEY": "0A",
        "KEYS": "k",
        "TIMER_DELAY_MS": "250",
        "TIMER_OUT_MS": str(begin_ms + 250),
        "TIMER_ENQUEUE_MS": str(begin_ms),
        "TIMER_DEQUEUE_MS": str(begin_ms + 300),
    }
    assert not is_timed(found.properties)  # sent again, it does not wait again
    found_by_tag = node.store.read(
        "orders", 3, 0, max_bytes=1 << 20, max_count=9, tags=frozenset([112_785])
    )
    assert len(found_by_tag.records) == 1


async def test_order_is_that_of_time_and_then_of_arrival(node: Node) -> None:
    for number in range(300):
        await node.send(str(number), TIMER_DELAY_MS=10 * SLOT_MS - 1_000 * (number // 3))
    await node.until(10 * SLOT_MS, 10_000)
    order = sorted(range(300), key=lambda number: (-(number // 3), number))
    assert node.delivered() == [str(number) for number in order]


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": 3 * 24 * 3600 + 1},
        {"TIMER_DELAY_MS": 3 * DAY_MS + 1},
        {"TIMER_DELIVER_MS": 1_700_000_000_000 + 3 * DAY_MS + 1},
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_MS": "1_000"},
        {"TIMER_DELIVER_MS": "٣"},
        {"TIMER_DELAY_SEC": 1, "TIMER_DEL_UNIQKEY": "t0A"},
    ],
)
async def test_invalid_times_are_refused(node: Node, properties: dict[str, object]) -> None:
    with pytest.raises(Refusal, match="timer message illegal") as refused:
        await node.send("m", **properties)
    assert refused.value.code == 13


async def test_three_days_to_the_millisecond(node: Node) -> None:
    await node.send("m", TIMER_DELAY_SEC=3 * 24 * 3600)
    node.clock.advance(3 * DAY_MS - 1)
    await node.tick()
    assert node.delivered() == []
    node.clock.advance(1)
    await node.tick()
    assert node.delivered() == ["m"]


async def test_a_message_due_before_the_next_tick_is_exact(node: Node) -> None:
    arrived = asyncio.Event()
    await node.send("m", TIMER_DELAY_MS=20)
    node.core.on_arrival(lambda *_: arrived.set())
    node.clock.advance(20)
    async with asyncio.timeout(5):
        await arrived.wait()
    assert node.delivered() == ["m"]


async def test_a_kill_repeats_and_loses_nothing(node: Node) -> None:
    for number in range(50):
        await node.send(str(number), TIMER_DELAY_MS=1_000 + number * 100)
    await node.until(3_000)
    before = node.delivered()
    assert before == [str(number) for number in range(21)]
    other = node.killed("killed")
    await other.until(10_000)
    assert other.delivered() == [str(number) for number in range(50)]
    await other.close()


async def test_a_stop_of_days_is_made_up_for(node: Node) -> None:
    for hour in range(72):
        await node.send(str(hour), TIMER_DELAY_MS=hour * HOUR_MS + 1)
    other = node.killed("later")
    other.clock.advance(40 * DAY_MS)
    await other.tick()
    assert other.delivered() == [str(hour) for hour in range(72)]
    await other.close()


@pytest.mark.parametrize("restart", [False, True])
async def test_ten_years_pass_no_slower_than_four_days(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, restart: bool
) -> None:
    await node.send("in a minute", TIMER_DELAY_SEC=60)
    await node.until(60_000, 30_000)
    for hours in (1, 71):
        await node.send(f"{hours} h", TIMER_DELAY_SEC=hours * 3600)
    node.clock.advance(days=3650)
    await node.send("soon", TIMER_DELAY_SEC=1)
    looks = 0
    search = Store.offset_at_time

    def count(*args: Any, **how: Any) -> int:
        nonlocal looks
        looks += 1
        return search(*args, **how)

    monkeypatch.setattr(Store, "offset_at_time", count)
    seen = node.killed("killed") if restart else node
    for _ in range(3):
        await seen.tick()
    assert seen.delivered() == ["in a minute", "1 h", "71 h"]
    assert looks < 2 * SLOTS
    await seen.until(1_000)
    assert seen.delivered()[3:] == ["soon"]
    if restart:
        await seen.close()


async def test_the_slots_of_one_queue_do_not_mix(node: Node) -> None:
    # The second is due one whole round of the queues after the first.
    due_ms = node.clock.now_ms() + 2 * DAY_MS
    await node.send("first", TIMER_DELIVER_MS=due_ms)
    node.clock.advance(DAY_MS)
    await node.send("second", TIMER_DELIVER_MS=due_ms + SLOTS * SLOT_MS - 2 * DAY_MS)
    node.clock.set(due_ms)
    await node.tick()
    assert "first" in node.delivered()
    await node.send("third", TIMER_DELIVER_MS=due_ms + DAY_MS)
    other = node.killed("killed")
    await other.tick()
    await other.until(SLOTS * SLOT_MS, SLOT_MS)
    assert sorted(other.delivered()) == ["first", "second", "third"]
    await other.close()


@pytest.mark.parametrize("restart", [False, True])
async def test_the_clock_is_set_back(node: Node, *, restart: bool) -> None:
    clock, begin_ms = node.clock, node.clock.now_ms()
    await node.send("one", TIMER_DELIVER_MS=begin_ms + 2 * HOUR_MS)
    await node.send("late", TIMER_DELIVER_MS=begin_ms + 5 * HOUR_MS)
    clock.advance(3 * HOUR_MS)
    await node.tick()
    assert node.delivered() == ["one"]
    clock.set(begin_ms)
    # The time of this one was passed once already.
    await node.send("two", TIMER_DELIVER_MS=begin_ms + HOUR_MS)
    await node.send("three", TIMER_DELIVER_MS=begin_ms + 2 * HOUR_MS)
    here = node.killed("killed") if restart else node
    await here.until(30 * 60_000, 60_000)
    assert here.delivered() == ["one"]
    await here.until(31 * 60_000, 60_000)
    assert here.delivered() == ["one", "two"]
    again = here.killed("again")
    await again.until(6 * HOUR_MS, 60_000)
    assert again.delivered() == ["one", "two", "three", "late"]
    await again.close()
    if restart:
        await here.close()


async def test_the_clock_is_set_forward(node: Node) -> None:
    await node.send("one", TIMER_DELAY_SEC=3600)
    node.clock.advance(365 * DAY_MS)
    await node.tick()
    assert node.delivered() == ["one"]
    node.clock.set(node.clock.now_ms() - 365 * DAY_MS)
    await node.send("two", TIMER_DELAY_SEC=1)
    await node.until(2_000)
    assert node.delivered() == ["one", "two"]


@pytest.mark.parametrize("seed", [7, 8])
async def test_each_message_is_delivered_once_and_never_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(timers, "ENTRIES_AT_ONCE", 3)
    monkeypatch.setattr(timers, "MESSAGES_AT_ONCE", 5)
    clock = ManualClock()
    node = Node(tmp_path / "0", clock)
    due: dict[str, int] = {}
    latest_ms, seen = 0, 0
    for step in range(200):
        kind = chance.random()
        if kind < 0.6:
            delay_ms = chance.choice([50, 5_000, SLOT_MS, 5 * SLOT_MS, DAY_MS, 3 * DAY_MS])
            for number in range(chance.randrange(8)):
                body = f"{step}-{number}"
                due[body] = clock.now_ms() + chance.randrange(1, delay_ms)
                await node.send(body, TIMER_DELIVER_MS=due[body])
        elif kind < 0.9:
            clock.advance(chance.choice([10, 1_000, SLOT_MS, 4 * HOUR_MS]))
        elif kind < 0.95:
            clock.set(clock.now_ms() - chance.choice([10, 60_000, SLOT_MS, 10 * HOUR_MS]))
        else:
            await node.close()
            node = node.killed(str(step + 1))
        latest_ms = max(latest_ms, clock.now_ms())
        await node.tick()
        found = node.delivered()
        assert all(due[body] <= latest_ms for body in found[seen:])
        seen = len(found)
    clock.set(latest_ms + 4 * DAY_MS)
    await node.tick()
    await node.close()
    last = node.killed("last")
    await last.tick()
    assert sorted(last.delivered()) == sorted(due)
    assert len(due) > 200
    await last.close()


async def test_queues_that_are_rebuilt_from_the_log(node: Node) -> None:
    await node.send("one", TIMER_DELAY_SEC=1)
    await node.send("two", TIMER_DELAY_SEC=3600)
    await node.until(1_000)
    copy = node.copy("without")
    shutil.rmtree(copy / "consumequeue")
    other = Node(copy, node.clock)
    await other.until(3_600_000, 60_000)
    assert other.delivered() == ["one", "two"]
    await other.close()


async def test_a_slave_knows_the_deliveries_of_its_master(node: Node, tmp_path: Path) -> None:
    await node.send("one", TIMER_DELAY_SEC=1)
    await node.send("two", TIMER_DELAY_SEC=3600)
    await node.until(1_000)
    slave = Store.open(tmp_path / "slave", OPTIONS, now_ms=node.clock.now_ms)
    slave.append_raw(0, bytes(node.store.read_raw(0, 1 << 20)))
    slave.close()
    other = Node(tmp_path / "slave", node.clock)
    await other.until(3_600_000, 60_000)
    assert other.delivered() == ["one", "two"]
    await other.close()


async def test_entries_that_a_java_broker_rebuilt_hold_the_code_of_the_tag(node: Node) -> None:
    draft = node.service.schedule(
        Draft("t", 0, b"m", encode({"TAGS": "red", "TIMER_DELAY_SEC": "9"}))
    )
    node.store.append([msgspec.structs.replace(draft, tag_code=112_785)])
    await node.until(8_900)
    assert node.delivered() == []
    other = node.killed("killed")
    await other.until(200)
    assert other.delivered() == ["m"]
    await other.close()


def change(node: Node, due_ms: int, at: int, entry: bytes) -> None:
    """Overwrite an entry of the queue of a time, at a position in bytes."""
    node.store.flush_queues()
    queue = str(due_ms // SLOT_MS % SLOTS)
    [path] = (node.directory / "consumequeue" / TIMER_TOPIC / queue).iterdir()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(entry)


def entry_of(node: Node, due_ms: int, offset: int) -> bytes:
    queue = due_ms // SLOT_MS % SLOTS
    [found] = node.store.entries(TIMER_TOPIC, queue, offset, 1)
    return struct.pack(">QIq", found.physical_offset, found.size_bytes, found.code)


@pytest.mark.parametrize("after_ms", [0, 7], ids=["same time", "another time"])
async def test_an_entry_that_names_another_message(node: Node, after_ms: int) -> None:
    begin_ms = node.clock.now_ms() + 1_000
    for number in range(4):
        await node.send(str(number), TIMER_DELIVER_MS=begin_ms + number * after_ms)
    change(node, begin_ms, 2 * ENTRY_BYTES, entry_of(node, begin_ms, 1)[:8])
    await node.until(3_000)
    assert node.delivered() == ["0", "1", "3"]
    assert node.core.foreign.bad[TIMER_TOPIC] == 1


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("wrong_ms", [-20_000, 20_000, -SLOT_MS, 77 * DAY_MS, -(1 << 40)])
async def test_an_entry_with_a_wrong_time(node: Node, wrong_ms: int, *, restart: bool) -> None:
    now_ms = node.clock.now_ms()
    due_ms = now_ms - now_ms % SLOT_MS + SLOT_MS + 100_000
    await node.send("wrong", TIMER_DELIVER_MS=due_ms)
    await node.send("right", TIMER_DELIVER_MS=due_ms + 1)
    change(node, due_ms, 12, struct.pack(">q", due_ms + wrong_ms))
    nodes = [node]
    for left_ms in (30_000, 10_000, 1):
        await nodes[-1].until(due_ms - left_ms - node.clock.now_ms() - 1, step_ms=1_000)
        node.clock.advance(due_ms - left_ms - node.clock.now_ms())
        await nodes[-1].tick()
        assert nodes[-1].delivered() == []
        nodes += [nodes[-1].killed(str(left_ms))] if restart else []
    await nodes[-1].until(30_000)
    assert sorted(nodes[-1].delivered()) == ["right", "wrong"]
    for one in nodes[1:]:
        await one.close()


@pytest.mark.parametrize(("limit", "lost"), [("hours", 0), ("bytes", 0), ("hours", 1)])
async def test_messages_wait_longer_than_the_log_keeps(
    tmp_path: Path, clock: ManualClock, limit: str, lost: int
) -> None:
    options = msgspec.structs.replace(
        OPTIONS,
        segment_bytes=16 << 10,
        retention_hours=6 if limit == "hours" else None,
        retention_bytes=None if limit == "hours" else 128 << 10,
    )
    node = Node(tmp_path / "store", clock, options)
    for number in range(20):
        await node.send(str(number), TIMER_DELAY_MS=3 * DAY_MS - number)
    for number in range(lost):  # entries that name no place in the log
        due_ms = clock.now_ms() + 3 * DAY_MS - number
        change(node, due_ms, number * ENTRY_BYTES, struct.pack(">Q", 1 << 40))
    for _ in range(3 * 24 * 4 - 1):
        clock.advance(HOUR_MS // 4)
        node.store.append([Draft("other", 0, bytes(900), b"") for _ in range(5)])
        node.store.flush()
        await node.tick()
        node.core.clean()
    assert node.store.min_offset > 100_000  # the files of the beginning are gone
    assert node.delivered() == []
    other = node.killed("killed")
    await other.until(HOUR_MS // 4, 1_000)
    assert other.delivered() == [str(number) for number in range(19, lost - 1, -1)]
    rolls = int(decode(other.records()[0].properties)["TIMER_ROLL_TIMES"])
    assert 0 < rolls < 100
    await other.close()
    await node.close()


async def test_no_more_than_a_slot_can_hold(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_SLOT_MESSAGES_MAX", 3)
    due_ms = (node.clock.now_ms() // SLOT_MS + 5) * SLOT_MS
    for _ in range(3):
        await node.send("m", TIMER_DELIVER_MS=due_ms)
    with pytest.raises(Refusal, match="flow control") as refused:
        await node.send("m", TIMER_DELIVER_MS=due_ms + SLOT_MS - 1)
    assert refused.value.code == 1
    await node.send("m", TIMER_DELIVER_MS=due_ms + SLOT_MS)
    node.clock.set(due_ms + SLOT_MS)
    await node.tick()
    assert len(node.delivered()) == 4


async def test_a_full_disk_delays_and_loses_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.send("m", TIMER_DELAY_SEC=1)
    node.clock.advance(1_000)
    with monkeypatch.context() as full:

        def refuse(_: object) -> None:
            raise StoreFullError("No room.")

        full.setattr(node.store, "append", refuse)
        await node.tick()
        assert node.delivered() == []
    await node.until(100)
    assert node.delivered() == ["m"]


async def test_a_message_without_a_valid_destination_is_skipped(node: Node) -> None:
    due_ms = node.clock.now_ms() + 1_000
    queue = due_ms // SLOT_MS % SLOTS
    for text in ({}, {"REAL_TOPIC": "../x", "REAL_QID": "0"}, {"REAL_TOPIC": "t"}):
        properties = encode({"TIMER_OUT_MS": str(due_ms), **text})
        node.store.append([Draft(TIMER_TOPIC, queue, b"bad", properties, due_ms)])
    await node.send("half", topic="RMQ_SYS_TRANS_HALF_TOPIC", TIMER_DELAY_SEC=1)
    await node.send("good", TIMER_DELAY_SEC=1)
    node.store.append([Draft(TIMER_TOPIC, MARKS, b"no mark", b"")])
    await node.until(1_000)
    assert node.delivered() == ["good"]
    assert node.delivered("RMQ_SYS_TRANS_HALF_TOPIC") == []


async def test_properties_without_room_for_more(node: Node) -> None:
    text = "x" * (limits.PROPERTIES_BYTES_MAX - 120)
    await node.send("m", TIMER_DELAY_SEC=1, p=text)
    await node.send("n", TIMER_DELAY_SEC=1)
    await node.until(1_000)
    assert node.delivered() == ["m", "n"]


async def test_a_message_that_waits_twice_is_delivered_once(node: Node) -> None:
    """A power cut has taken the mark that it was carried forward, and not the copy."""
    for body in ("a", "b"):
        await node.send(body, TIMER_DELAY_MS=60_000, UNIQ_KEY=body)
    waiting = node.records(TIMER_TOPIC, min(node.store.queues(TIMER_TOPIC)))
    copies = [copy for record in waiting if (copy := rolled(record)) is not None]
    assert len(copies) == 2
    node.core.appender.submit((), None, origin=Origin.TIMERS, own=copies)
    await node.core.appender.close()
    again = node.killed("again")
    await again.until(70_000, 10_000)
    assert again.delivered() == ["a", "b"]
    await again.close()


async def test_messages_without_keys_are_all_delivered(node: Node) -> None:
    for _ in range(2):
        await node.send("a", TIMER_DELAY_MS=60_000)
    await node.until(70_000, 10_000)
    assert node.delivered() == ["a", "a"]
