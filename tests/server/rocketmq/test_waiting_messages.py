"""Messages that wait are neither lost nor repeated: not when the log turns over, not by a kill."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from coherer import limits
from coherer._record import layout
from coherer._record.properties import encode
from coherer._record.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from coherer._rules.common.origins import Origin
from coherer._rules.rocketmq import delays as delay_rules
from coherer._rules.rocketmq.delays import delayed
from coherer._rules.rocketmq.timers import MARKS, SLOT_MS, slot_of, waiting
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker.delays import DelayService
from coherer._server.rocketmq.broker.timers import TimerService
from coherer._store import Draft, Store, StoreOptions
from coherer._store.files import Files, OsFiles
from coherer.errors import UsageError
from coherer.testing import ManualClock
from tests.copies import copy_tree
from tests.store.conftest import PowerFiles

OPTIONS = StoreOptions(
    segment_bytes=16 << 10,
    queue_segment_bytes=2000,
    index_enabled=False,
    retention_bytes=64 << 10,
    retention_hours=None,
)


class Node:
    """A store, a core, and the services of delayed and timed messages."""

    def __init__(
        self,
        directory: Path,
        clock: ManualClock,
        options: StoreOptions = OPTIONS,
        files: Files | None = None,
    ) -> None:
        self.directory = directory
        self.clock = clock
        self.options = options
        self.store = Store.open(
            directory, options, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms,
            files=files or OsFiles(),
        )  # fmt: skip
        self.core = Core(self.store, clock.now_ms, wall_ms=clock.wall_ms)
        self.timers = TimerService(self.core)
        self.delays = DelayService(self.core, options.delay_levels_ms, self.timers)

    async def send(self, *drafts: Draft) -> None:
        self.core.appender.submit(drafts, None, origin=Origin.ROCKETMQ_CLIENT)
        await self.core.appender.close()  # stores what is pending

    async def delay(self, body: str, level: int) -> None:
        sent = Draft("t", 0, body.encode(), encode({"DELAY": str(level)}))
        await self.send(delayed(sent, level))

    async def time(self, body: str, ms: int) -> None:
        text = encode({"TIMER_DELAY_MS": str(ms)})
        await self.send(self.timers.schedule(Draft("t", 0, body.encode(), text)))

    async def fill(self, count: int) -> None:
        """Store other messages, and do what a node does meanwhile."""
        for _ in range(count):
            await self.send(*(Draft("other", 0, bytes(900), b"") for _ in range(5)))
            await self.work()

    async def trouble(self, chance: random.Random) -> None:
        """Store other messages, with files synced and deleted now and then."""
        for _ in range(chance.randint(40, 120)):
            count = chance.randint(1, 5)
            await self.send(*(Draft("other", 0, bytes(900), b"") for _ in range(count)))
            if chance.random() < 0.3:
                self.store.flush()
            self.delays.tick()
            self.timers.tick()
            await self.core.appender.close()
            if chance.random() < 0.3:
                self.core.delete_expired()

    async def work(self) -> None:
        """The periodic work of a node, until nothing more is stored."""
        end = -1
        while end != self.store.end_offset:
            end = self.store.end_offset
            self.store.flush()
            for _ in range(20):
                self.delays.tick()
                self.timers.tick()
                await self.core.appender.close()
        self.core.clean()

    async def until(self, ms: int, step_ms: int = 100) -> None:
        for _ in range(ms // step_ms):
            self.clock.advance(step_ms)
            await self.work()

    def delivered(self) -> list[str]:
        offset, end = self.store.queue_range("t", 0)
        bodies: list[str] = []
        while offset < end:
            found = self.store.read("t", 0, offset, max_bytes=1 << 20, max_count=10_000)
            bodies += [bytes(layout.body_of(record)).decode() for record in found.records]
            offset = found.next_offset
        return bodies

    def killed(self, name: str) -> Node:
        """Copy the files as another process finds them after SIGKILL."""
        target = self.directory.with_name(name)
        copy_tree(self.directory, target, ignore=shutil.ignore_patterns("*.tmp"))
        return Node(target, ManualClock(self.clock.wall_ms()), self.options)

    async def close(self) -> None:
        self.delays.stop()
        self.timers.stop()
        await self.core.close()
        await self.core.files.close()
        self.store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Node]:
    made = Node(tmp_path / "store", clock)
    yield made
    await made.close()


async def test_a_log_that_turns_over_at_full_speed_loses_no_timed_message(node: Node) -> None:
    expected = [str(number) for number in range(80)]
    for body in expected:
        await node.time(body, 30_000)
    await node.fill(100)  # seven times the log, and the clock stands still
    assert node.store.min_offset > 5 * 64 << 10
    assert node.store.end_offset - node.store.min_offset < 160 << 10
    await node.until(30_000, 10_000)
    assert sorted(node.delivered()) == sorted(expected)
    assert not node.core.foreign.bad


async def test_a_log_that_turns_over_at_full_speed_loses_no_delayed_message(node: Node) -> None:
    expected = [str(number) for number in range(20)]
    for body in expected:
        await node.delay(body, 4)
    node.clock.advance(10_000)
    await node.fill(100)
    assert node.store.min_offset > 5 * 64 << 10
    await node.until(19_900, 9_950)
    assert node.delivered() == []
    await node.until(200)
    assert sorted(node.delivered()) == sorted(expected)
    assert not node.core.foreign.bad


@pytest.mark.parametrize("kind", ["timed", "delayed"])
async def test_a_log_full_of_waiting_messages_grows_and_says_so(
    node: Node, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(300):
        text = f"{number:04}" + "x" * 400
        await (node.time(text, 60_000) if kind == "timed" else node.delay(text, 5))
        if number % 20 == 19:
            await node.work()
    length = node.store.end_offset - node.store.min_offset
    assert 128 << 10 < length < 512 << 10  # carried at most as often as new ones came
    assert f"they hold {kind} messages" in caplog.text or "they hold timed" in caplog.text
    assert node.store.holds.held_bytes > 64 << 10
    node.store.options = msgspec.structs.replace(OPTIONS, retention_bytes=None)
    await node.until(60_000, 20_000)
    assert {body[:4] for body in node.delivered()} == {f"{number:04}" for number in range(300)}
    node.store.options = OPTIONS
    await node.fill(40)
    assert node.store.holds.held_bytes == 0
    assert node.store.end_offset - node.store.min_offset < 128 << 10


async def test_without_a_way_to_carry_a_file_stays(tmp_path: Path, clock: ManualClock) -> None:
    """A delay of more than three days fits into no timer: its file is kept."""
    days = msgspec.structs.replace(OPTIONS, delay_levels_ms=(4 * 86_400_000,))
    node = Node(tmp_path / "store", clock, days)
    await node.send(delayed(Draft("t", 0, b"m", encode({"DELAY": "1"})), 1, days.delay_levels_ms))
    await node.fill(40)
    assert node.store.min_offset == 0
    await node.until(4 * 86_400_000, 86_400_000)
    assert node.delivered() == ["m"]
    assert node.store.min_offset > 0
    await node.close()


async def test_retention_by_age_keeps_what_waits(tmp_path: Path, clock: ManualClock) -> None:
    options = msgspec.structs.replace(OPTIONS, retention_bytes=None, retention_hours=1)
    node = Node(tmp_path / "store", clock, options)
    await node.delay("two hours", 18)
    await node.time("three hours", 3 * 3_600_000)
    for _ in range(11):
        node.clock.advance(600_000)
        await node.fill(2)
    assert node.store.min_offset > 0
    await node.until(600_000, 300_000)
    assert node.delivered() == ["two hours"]
    node.clock.advance(3_600_000)
    await node.work()
    assert node.delivered() == ["two hours", "three hours"]
    await node.close()


async def test_a_kill_at_any_moment_repeats_no_delayed_message(node: Node) -> None:
    """No position was saved: the log says what was delivered."""
    for number in range(30):
        await node.delay(str(number), 1 + number % 2)
        node.clock.advance(200)
    expected = [str(number) for number in range(30)]
    for step in range(12):
        node.clock.advance(1_000)
        node.delays.tick()
        await node.core.appender.close()
        again = node.killed(f"killed {step}")
        assert again.delivered() == node.delivered()
        await again.until(12_000, 1_000)
        assert sorted(again.delivered(), key=int) == expected
        await again.close()


async def test_a_kill_while_messages_are_carried(node: Node) -> None:
    for number in range(40):
        await node.delay(f"d{number}", 5)
        await node.time(f"t{number}", 60_000)
    expected = {f"{kind}{number}" for kind in "dt" for number in range(40)}
    for step in range(6):
        await node.fill(8)
        again = node.killed(f"killed {step}")
        again.store.options = msgspec.structs.replace(OPTIONS, retention_bytes=None)
        await again.until(60_000, 20_000)
        assert len(again.delivered()) == 80
        assert set(again.delivered()) == expected
        await again.close()


@pytest.mark.parametrize("seed", range(24))
async def test_power_cuts_neither_lose_nor_repeat_what_still_waits(
    tmp_path: Path, clock: ManualClock, seed: int
) -> None:
    """Copies are durable before the file of the messages that they replace is deleted.

    A copy whose mark is lost does not count, also not after the next power cut.
    """
    chance, files = random.Random(seed), PowerFiles()
    node = Node(tmp_path / "store", clock, OPTIONS, files)
    for number in range(20):
        await node.delay(f"d{number}", 5)
        await node.time(f"t{number}", 60_000)
    node.store.flush()  # their receipts are sent
    for cut in range(3):
        await node.trouble(chance)
        target = tmp_path / f"cut {cut}"
        files.cut(node.directory, target, chance)
        await node.close()
        files = PowerFiles()
        files.adopt(target)
        node = Node(target, ManualClock(clock.wall_ms()), OPTIONS, files)
    node.store.options = msgspec.structs.replace(OPTIONS, retention_bytes=None)
    await node.until(60_000, 20_000)
    assert sorted(node.delivered()) == sorted(f"{kind}{n}" for kind in "dt" for n in range(20))
    await node.close()


async def test_a_delayed_message_without_room_to_carry_it_stays(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Its properties are as long as a delayed message may have them."""
    options = msgspec.structs.replace(OPTIONS, segment_bytes=64 << 10, retention_bytes=128 << 10)
    node = Node(tmp_path / "store", clock, options)
    for size in range(limits.PROPERTIES_BYTES_MAX - 60, 0, -1):
        with suppress(UsageError):
            text = encode({"p": "x" * size})
            await node.send(delayed(Draft("t", 0, b"d", text), 5))
            break
    await node.fill(80)
    assert node.store.min_offset == 0
    assert node.store.holds.held_bytes
    await node.until(60_000, 20_000)
    assert node.delivered() == ["d"]
    await node.fill(40)
    assert node.store.min_offset > 0
    await node.close()


@pytest.mark.parametrize("seed", range(8))
async def test_a_power_cut_repeats_only_deliveries_that_were_not_synced(
    tmp_path: Path, clock: ManualClock, seed: int
) -> None:
    chance, files = random.Random(seed), PowerFiles()
    node = Node(tmp_path / "store", clock, OPTIONS, files)
    for number in range(10):
        await node.delay(f"d{number}", 5)
        await node.time(f"t{number}", 1_000 * number + 1_000)
    node.store.flush()
    synced: list[str] = []
    for _ in range(chance.randint(4, 12)):
        clock.advance(1_000)
        for _ in range(20):  # without a flush
            node.delays.tick()
            node.timers.tick()
            await node.core.appender.close()
        if chance.random() < 0.4:
            node.store.flush()
            synced = node.delivered()
    files.cut(node.directory, tmp_path / "cut", chance)
    again = Node(tmp_path / "cut", ManualClock(clock.wall_ms()), OPTIONS)
    await again.until(70_000, 10_000)
    counts = Counter(again.delivered())
    assert set(counts) == {f"{kind}{number}" for kind in "dt" for number in range(10)}
    assert {counts[message] for message in synced} <= {1}
    await again.close()
    await node.close()


@pytest.mark.parametrize("kind", ["deliver", "carry"])
async def test_a_mark_behind_a_torn_place_does_not_count(
    node: Node, tmp_path: Path, kind: str
) -> None:
    """A power cut kept the end of the last append, but not all of it."""
    for number in range(5):
        await node.delay(f"d{number}", 5)
        await node.time(f"t{number}", 60_000)
    await node.fill(5 if kind == "carry" else 1)
    while kind == "carry" and node.delays.positions[5] == 0:
        await node.send(Draft("other", 0, bytes(900), b""))
        node.store.flush_queues()
        end = node.store.end_offset
        node.delays.tick()
        await node.core.appender.close()
    if kind == "deliver":
        node.clock.advance(60_000)
        node.store.flush_queues()
        end = node.store.end_offset
        node.delays.tick()
        await node.core.appender.close()
    target = tmp_path / "torn"
    copy_tree(node.directory, target, ignore=shutil.ignore_patterns("*.tmp"))
    log = target / "commitlog" / f"{end - end % (16 << 10):020}"
    data = bytearray(log.read_bytes())
    begin = end % (16 << 10)
    data[begin : begin + 150] = bytes(150)
    log.write_bytes(data)
    for ticks in (0, 1):  # the later starts do not see what was torn
        again = Node(target, ManualClock(node.clock.wall_ms()))
        for _ in range(ticks):
            again.delays.tick()
            again.timers.tick()
        await again.core.appender.close()
        await again.close()
    again = Node(target, ManualClock(node.clock.wall_ms()))
    again.store.options = msgspec.structs.replace(OPTIONS, retention_bytes=None)
    await again.until(60_000, 20_000)
    assert {f"{kind}{number}" for kind in "dt" for number in range(5)} <= set(again.delivered())
    await again.close()


@pytest.mark.parametrize("role", ["slave", "master"])
async def test_a_slave_keeps_what_its_master_has_not_delivered(
    node: Node, tmp_path: Path, role: str
) -> None:
    await node.time("m", 60_000)
    await node.fill(2)
    copy = Store.open(tmp_path / "copy", OPTIONS, now_ms=node.clock.wall_ms)
    core = Core(copy, node.clock.now_ms)
    timers = TimerService(core, is_slave=lambda: role == "slave")
    for _ in range(40):
        await node.fill(1)
        while copy.end_offset < node.store.end_offset:
            data = node.store.read_raw(copy.end_offset, 1 << 20)
            core.append_raw(copy.end_offset, bytes(data))
        copy.flush()
        core.clean()
    # A master ticks, and delivers from what it keeps; a slave follows the marks of its master.
    assert (copy.min_offset > 64 << 10) == (role == "slave")
    timers.stop()
    await core.close()
    copy.close()


@pytest.mark.parametrize("late_ms", [1, SLOT_MS, 10 * SLOT_MS])
async def test_a_message_stored_after_its_slot_has_ended(node: Node, late_ms: int) -> None:
    due_ms = (node.clock.wall_ms() // SLOT_MS + 1) * SLOT_MS - 50
    text = encode({"TIMER_DELIVER_MS": str(due_ms)})
    draft = node.timers.schedule(Draft("t", 0, b"m", text))
    node.core.appender.submit([draft], None, origin=Origin.ROCKETMQ_CLIENT)
    node.clock.set(due_ms + 50 + late_ms)
    node.timers.tick()  # passes the slot while the message is on its way to the log
    await node.work()
    assert node.delivered() == ["m"]


async def test_bad_records_are_passed_over_and_counted(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    due_ms = node.clock.wall_ms() + 1_000
    digits = "9" * 5_000
    queue = slot_of(due_ms) % 1_000
    for text in ({}, {"REAL_TOPIC": "t", "REAL_QID": digits}, {"REAL_TOPIC": "t\ud7ff/.."}):
        node.store.append([Draft(SCHEDULE_TOPIC, 0, b"bad", encode({"DELAY": "1", **text}))])
        node.store.append([Draft(TIMER_TOPIC, queue, b"bad", encode(text), due_ms)])
        late = {**text, "TIMER_OUT_MS": digits}
        node.store.append([Draft(TIMER_TOPIC, queue, b"bad", encode(late), 7)])
    far = b'{"steps":[[%d,9,%d]],"rolledTo":%d}' % (due_ms * 2, 1 << 62, 1 << 62)
    for mark in (b"[" * 5_000, digits.encode(), b'{"steps":[[%s,1,1]]}' % digits.encode(), far):
        node.store.append([Draft(TIMER_TOPIC, MARKS, mark, b"")])
    for mark in (b"{", b'{"offsetTable":{1:%s}}' % digits.encode(), b'{"offsetTable":{1:99}}'):
        node.store.append([Draft(TIMER_TOPIC, delay_rules.MARKS, mark, b"")])
    again = node.killed("killed")
    assert again.delays.positions[1] == 0
    await again.delay("delayed", 1)
    await again.send(waiting(Draft("t", 0, b"timed", b""), due_ms))
    await again.until(1_000)
    assert sorted(again.delivered()) == ["delayed", "timed"]
    assert again.core.foreign.bad[TIMER_TOPIC] == 4 + 3 + 6  # marks of both, messages
    assert again.core.foreign.bad[SCHEDULE_TOPIC] == 3
    assert caplog.text.count("is skipped") == 2
    await again.close()
