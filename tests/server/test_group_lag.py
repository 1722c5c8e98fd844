"""How far groups are behind, with a bounded number of looks into files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer._server.core.core import Core
from coherer._server.node.group_lag import LOOKUPS_MAX, GroupLags
from coherer._server.node.node import Node
from coherer._store import Draft
from coherer.testing import ManualClock
from tests.server.node_harness import options


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def core(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Core]:
    async with Node(options(tmp_path), message_clock=clock) as node:
        assert node.core is not None
        yield node.core


async def fill(core: Core, topic: str, queues: int) -> None:
    core.topics.ensure_topic(topic, queues, core.now_ms())
    await core.files.flush()
    core.store.append([Draft(topic, queue, b"x", b"") for queue in range(queues) for _ in range(3)])


def looked_up(core: Core, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The queue entries that the store reads from now on: topic, queue and offset."""
    read: list[tuple[str, int, int]] = []
    place_of = core.store.place_of

    def counted(topic: str, queue: int, offset: int) -> int | None:
        read.append((topic, queue, offset))
        return place_of(topic, queue, offset)

    monkeypatch.setattr(core.store, "place_of", counted)
    return read


async def test_every_group_gets_its_age_in_turn(core: Core) -> None:
    groups, queues = LOOKUPS_MAX // 100 + 5, 100
    await fill(core, "t", queues)
    for number in range(groups):
        for queue in range(queues):
            # Different offsets, so that the groups do not share what was looked up.
            core.offsets.open(f"g{number}", "t", queue).move_to(number % 3)
            core.counters.read(f"g{number}", "t", queue, 1, 1, 2 - number % 2)
    lags = GroupLags(core)
    known: set[str] = set()
    for _ in range(4):
        found = list(lags.collect())
        assert len(found) == groups
        assert all(lag.messages > 0 for lag in found), "the lag itself is never old"
        known |= {lag.group for lag in found if lag.age_ms is not None}
    assert len(known) == groups
    assert all(lag.age_ms is not None for lag in lags.collect())


async def test_groups_that_do_not_move_are_not_looked_up_again(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there are more of them than one collection may look up."""
    monkeypatch.setattr("coherer._server.node.group_lag.LOOKUPS_MAX", 4)
    for number in range(5):
        await fill(core, f"t{number}", 2)
        core.offsets.open(f"g{number}", f"t{number}", 0).move_to(1)
    lags = GroupLags(core)
    for _ in range(3):
        list(lags.collect())
    read = looked_up(core, monkeypatch)
    for _ in range(3):
        assert all(lag.age_ms is not None for lag in lags.collect())
    assert not read
    core.offsets.open("g3", "t3", 0).move_to(2)
    assert all(lag.age_ms is not None for lag in lags.collect())
    assert read == [("t3", 0, 2)]


async def test_a_new_topic_of_the_same_name_has_other_messages(core: Core) -> None:
    await fill(core, "t", 1)
    core.offsets.open("g", "t", 0).move_to(1)
    lags = GroupLags(core)
    assert [lag.messages for lag in lags.collect()] == [2]
    core.remove_topic("t")
    assert list(lags.collect()) == []
    await fill(core, "t", 1)
    core.offsets.open("g", "t", 0).move_to(0)
    (lag,) = lags.collect()
    assert (lag.messages, lag.ready) == (3, 3)
    assert lag.age_ms is not None


async def test_a_topic_that_is_deleted_during_a_collection_is_forgotten(
    core: Core, clock: ManualClock
) -> None:
    await fill(core, "t", 1)
    for number in range(3):
        core.offsets.open(f"g{number}", "t", 0).move_to(1)
    lags = GroupLags(core)
    going_on = lags.collect()
    assert next(going_on).group == "g0"
    core.remove_topic("t")
    clock.advance(60_000)
    await fill(core, "t", 1)  # other messages at the same offsets
    assert list(going_on) == []
    core.offsets.open("g1", "t", 0).move_to(1)
    (lag,) = lags.collect()
    assert lag.age_ms == 0


async def test_nothing_is_kept_of_topics_that_come_and_go(core: Core) -> None:
    lags = GroupLags(core)

    def kept() -> int:
        return sum(len(table) for table in vars(lags).values() if isinstance(table, dict))

    for number in range(50):
        await fill(core, f"t{number}", 1)
        core.offsets.open("g", f"t{number}", 0).move_to(1)
        if number % 2:  # nobody looks in between
            assert len(list(lags.collect())) == 2
            core.remove_topic(f"t{number}")
            core.remove_topic(f"t{number - 1}")
    assert kept() == 0


async def test_places_that_are_out_of_use_are_dropped(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._server.node.group_lag.LOOKUPS_MAX", 10)
    core.topics.ensure_topic("t", 1, core.now_ms())
    await core.files.flush()
    core.store.append([Draft("t", 0, b"x", b"") for _ in range(100)])
    position, lags = core.offsets.open("g", "t", 0), GroupLags(core)
    for offset in range(100):
        position.move_to(offset)
        list(lags.collect())
    read = looked_up(core, monkeypatch)
    for offset in (99, 0):
        position.move_to(offset)
        list(lags.collect())
    assert read == [("t", 0, 0)], "the last places are kept, the first ones are not"


async def test_a_group_that_has_read_everything_has_no_age(core: Core) -> None:
    await fill(core, "t", 2)
    for queue in (0, 1):
        core.offsets.open("g", "t", queue).move_to(3)
    (lag,) = GroupLags(core).collect()
    assert (lag.messages, lag.age_ms, lag.ready_age_ms) == (0, 0, 0)
