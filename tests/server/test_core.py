"""The core of a node: batched appends, callbacks and their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from coherer import limits
from coherer._record.system_topics import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from coherer._rules.common.origins import Origin, OriginError
from coherer._server.core.core import Core
from coherer._store import AppendResult, Draft, DraftBatch, Store, StoreOptions
from coherer.errors import CohererError, StoreError, UsageError
from coherer.testing import ManualClock

ANYONE = Origin.ROCKETMQ_CLIENT
OPTIONS = StoreOptions(segment_bytes=1 << 20, queue_segment_bytes=20_000, index_enabled=False)


class Submitter:
    """Collects the answers to its submissions."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.errors: list[CohererError] = []
        self.ends: list[int] = []
        self._answered = asyncio.Event()

    async def answered(self, times: int = 1) -> None:
        """Wait until so many submissions have been answered."""
        async with asyncio.timeout(10):
            while len(self.ends) < times:
                self._answered.clear()
                await self._answered.wait()

    def __call__(self, outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
        self.ends.append(end_offset)
        if isinstance(outcome, CohererError):
            self.errors.append(outcome)
        else:
            self.offsets += [result.queue_offset for result in outcome]
        self._answered.set()


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    clock = ManualClock()
    with Store.open(tmp_path, OPTIONS, now_ms=clock.now_ms) as store:
        core = Core(store, clock.now_ms)
        yield core
        await core.close()


def drafts(count: int, topic: str = "t") -> list[Draft]:
    return [Draft(topic, 0, b"%d" % number, b"") for number in range(count)]


@pytest.fixture
def sizes(core: Core, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were stored together, each time."""
    counts: list[int] = []
    append = core.store.append

    def counting(given: Sequence[Draft | DraftBatch]) -> list[AppendResult]:
        counts.append(len(given))
        return append(given)

    monkeypatch.setattr(core.store, "append", counting)
    return counts


async def test_all_of_a_turn_is_one_append(core: Core, sizes: list[int]) -> None:
    arrived: list[int] = []
    core.on_arrival(lambda given, placed: arrived.append(len(given) + len(placed)))
    core.on_arrival(lambda given, placed: arrived.append(-len(given)))
    one, other = Submitter(), Submitter()
    core.appender.submit(drafts(2), one, origin=ANYONE)
    core.appender.submit(drafts(3), None, origin=ANYONE)
    core.appender.submit(drafts(1), other, origin=ANYONE)
    assert sizes == []
    await other.answered()
    assert sizes == [6]
    assert (one.offsets, other.offsets) == ([0, 1], [5])
    assert one.ends == other.ends == [core.store.end_offset]
    assert arrived == [12, -6]
    core.appender.submit(drafts(limits.SENDS_PER_APPEND), one, origin=ANYONE)
    assert sizes == [6, limits.SENDS_PER_APPEND], "many do not wait for the turn's end"


async def test_batching_is_skipped_for_a_single_sender(core: Core, sizes: list[int]) -> None:
    appender, told = core.appender, Submitter()
    appender.submit(drafts(1), told, origin=ANYONE)
    assert sizes == [], "perhaps others send in this turn, too"
    await told.answered()
    assert sizes == [1]
    asked = 0
    while len(sizes) == len(told.ends) == asked + 1:
        appender.submit(drafts(1), told, origin=ANYONE)
        asked += 1
    assert asked > 10, "many are stored as they come, but not for ever"
    appender.submit(drafts(2), told, origin=ANYONE)
    await told.answered(asked + 2)
    assert sizes[-1] == 3, "then a turn is waited for again"
    appender.submit(drafts(1), told, origin=ANYONE)
    appender.submit(drafts(1), told, origin=ANYONE)
    await told.answered(asked + 4)
    assert sizes[-1] == 2, "there were two in the turn before"
    assert told.offsets == list(range(core.store.queue_range("t", 0)[1]))


async def test_drafts_are_stored_at_once(core: Core, sizes: list[int]) -> None:
    one, other = Submitter(), Submitter()
    core.appender.submit(drafts(1), one, origin=ANYONE)
    core.appender.submit([DraftBatch("t", 0, [b"a"], [b""], [0], [0], [()])], other, origin=ANYONE)
    assert sizes == [2], "with what waits for the turn's end"
    assert (one.offsets, other.offsets) == ([0], [1])
    await core.appender.close()
    assert sizes == [2], "nothing is left"


async def test_a_failing_callback_does_not_affect_the_others(
    core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(outcome: object, end_offset: int) -> None:
        raise ValueError("of ours")

    told = Submitter()
    core.appender.submit(drafts(1), fail, origin=ANYONE)
    core.appender.submit(drafts(1), told, origin=ANYONE)
    await told.answered()
    assert told.offsets == [1]
    assert "of ours" in caplog.text


@pytest.mark.parametrize("error", [UsageError("No."), RuntimeError("Ours.")])
async def test_every_submitter_gets_the_error(
    core: Core, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    arrived: list[object] = []
    core.on_arrival(lambda given, placed: arrived.append((given, placed)))
    told = Submitter()
    with monkeypatch.context() as patch:
        patch.setattr(core.store, "append", fail)
        core.appender.submit(drafts(1), told, origin=ANYONE)
        core.appender.submit(drafts(1), None, origin=ANYONE)
        core.appender.submit(drafts(1), told, origin=ANYONE)
        await told.answered(2)
    assert len(told.errors) == 2
    assert isinstance(told.errors[0], UsageError if isinstance(error, UsageError) else StoreError)
    assert arrived == []


async def test_a_refused_message_does_not_affect_other_batches(core: Core) -> None:
    good, bad, last = Submitter(), Submitter(), Submitter()
    core.appender.submit(drafts(2), good, origin=ANYONE)
    core.appender.submit([*drafts(1), Draft("t", 0, b"x", b"p" * 40_000)], bad, origin=ANYONE)
    core.appender.submit(drafts(1), last, origin=ANYONE)
    await last.answered()
    assert (good.offsets, last.offsets) == ([0, 1], [2])
    assert [type(error) for error in bad.errors] == [UsageError]


async def test_nothing_enters_a_system_topic_from_outside(core: Core) -> None:
    told, topics = Submitter(), (OP_HALF_TOPIC, SCHEDULE_TOPIC, "SELF_TEST_TOPIC")
    for topic in topics:
        core.appender.submit([*drafts(1), *drafts(1, topic)], told, origin=ANYONE)
    batch = DraftBatch(HALF_TOPIC, 0, [b"a"], [b""], [0], [0], [()])
    core.appender.submit([batch], told, origin=Origin.TUBEMQ_CLIENT)
    own = drafts(1, OP_HALF_TOPIC)
    core.appender.submit(drafts(1), told, origin=Origin.DELAYS, own=own)
    core.appender.submit(own, told, origin=Origin.TRANSACTIONS)
    assert [type(error) for error in told.errors] == [OriginError] * 6
    assert core.store.end_offset == 0
    core.appender.submit(drafts(1), told, origin=Origin.TRANSACTIONS, own=own)
    await told.answered(7)
    assert told.offsets == [0, 0]


async def test_some_wait_for_the_disk(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    flushing, may_flush = asyncio.Event(), asyncio.Event()
    flush = core.flusher.flush

    async def held() -> int:
        flushing.set()
        await may_flush.wait()
        return await flush()

    monkeypatch.setattr(core.flusher, "flush", held)
    quick, safe = Submitter(), Submitter()
    durable: list[CohererError | None] = []
    core.appender.submit(drafts(1), quick, origin=ANYONE)
    core.appender.submit(drafts(1), safe, origin=ANYONE, wait_durable=True)
    await quick.answered()
    core.appender.when_durable(core.store.end_offset, durable.append)
    await flushing.wait()
    assert (quick.offsets, safe.offsets, durable) == ([0], [], [])
    may_flush.set()
    await core.appender.close()
    assert (safe.offsets, durable) == ([1], [None])


async def test_a_disk_failure_reaches_every_waiting_submitter(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[bool] = []
    core.on_change(lambda: changes.append(core.write_failed))

    def fail() -> int:
        raise StoreError("Input/output error.")

    safe, durable = Submitter(), list[CohererError | None]()
    with monkeypatch.context() as patch:
        patch.setattr(core.store, "flush", fail)
        core.on_arrival(
            lambda *_: core.appender.when_durable(core.store.end_offset, durable.append)
        )
        core.appender.submit(drafts(1), safe, origin=ANYONE, wait_durable=True)
        await core.appender.close()
    assert [error.text for error in safe.errors] == ["Input/output error."]
    assert safe.ends == [core.store.end_offset], "it is stored nevertheless"
    assert durable == safe.errors
    assert (core.write_failed, changes) == (True, [True])


async def test_removing_a_topic(core: Core) -> None:
    told: list[tuple[str, int]] = []
    core.on_removal(lambda name: told.append((name, core.store.queue_range(name, 0)[1])))
    stored = Submitter()
    core.appender.submit(drafts(3), stored, origin=ANYONE)
    core.offsets.open("g", "t", 0).move_to(2)
    await stored.answered()
    core.remove_topic("t")
    assert told == [("t", 3)], "before its messages are gone"
    assert core.store.queue_range("t", 0) == (0, 0)
    assert core.offsets.groups() == set()


async def test_cleaning_forgets_reads_of_groups_without_offsets(core: Core) -> None:
    core.offsets.open("known", "t", 0).offset = 1
    for group in ("known", "gone"):
        core.counters.read(group, "t", 0, 1, 10, 1)
    core.clean()
    assert core.counters.read_to == {("known", "t", 0): 1}


async def test_the_thread_of_an_idle_store_is_seldom_woken(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = 0
    work = core.store.tick

    def counted() -> None:
        nonlocal woken
        woken += 1
        work()

    async def woken_in(ticks: int) -> int:
        before = woken
        for _ in range(ticks):
            await core.flusher.tick()
        return woken - before

    monkeypatch.setattr(core.store, "tick", counted)
    assert await woken_in(30) <= 4
    told = Submitter()
    core.appender.submit(drafts(1), told, origin=ANYONE)
    await told.answered()
    assert core.store.durable_offset < core.store.end_offset
    assert await woken_in(5) == 5, "what was written is flushed in time"
    core.store.flush()
    assert await woken_in(30) <= 4
