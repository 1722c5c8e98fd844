"""The states of an assigned partition and of its deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coherer._client.engine.assigned import (
    TRANSITIONS,
    Delivery,
    DeliveryState,
    Event,
    FetchLimits,
    PartitionState,
    Phase,
    delivery_of,
)


class Batch:
    """Messages with offsets; one byte each."""

    def __init__(self, offsets: Sequence[int], offset: int, next_offset: int) -> None:
        self.offset = offset
        self.next_offset = next_offset
        self._delivery: Delivery[Any] | None = None
        self._offsets = list(offsets)

    @property
    def size_bytes(self) -> int:
        return len(self._offsets)

    @property
    def _count(self) -> int:
        return len(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def offsets(self) -> Sequence[int]:
        return self._offsets

    def _part(self, numbers: Sequence[int]) -> Batch:
        chosen = [self._offsets[number] for number in numbers]
        return Batch(chosen, chosen[0], self.next_offset)


def batch(first: int, last: int) -> Batch:
    """The messages from one offset to another."""
    return Batch(range(first, last + 1), first, last + 1)


class RecordingFetcher:
    """Does no IO; notes what the state tells it."""

    def __init__(self, offset: int = 0, **options: Any) -> None:
        self.listed = False
        self.calls: list[str] = []
        self.state = PartitionState[Batch](self, offset, **options)

    @property
    def can_take(self) -> bool:
        return self.state.can_take

    def take(self) -> Batch | None:
        delivery = self.state.take(1)
        return None if delivery is None else delivery.batch

    def taken(self) -> Delivery[Batch]:
        delivery = self.state.take(1)
        assert delivery is not None
        return delivery

    def fetch_more(self) -> None:
        self.calls.append("fetch more")

    def ready(self) -> None:
        self.calls.append("ready")

    def acknowledged(self) -> None:
        self.calls.append("acknowledged")

    def finished(self, delivery: Delivery[Batch]) -> None:
        self.calls.append("finished")

    async def retry(
        self, delivery: Delivery[Batch], number: int | None, after: timedelta | int | None
    ) -> None:
        self.calls.append(f"retry {number} {after}")


def test_every_phase_has_a_way_out_but_the_last() -> None:
    assert set(TRANSITIONS) == set(Phase)
    for phase, following in TRANSITIONS.items():
        assert following[Event.REVOKE] is Phase.REVOKED
        assert set(following) | {Event.KEEP} == set(Event), phase
    assert set(TRANSITIONS[Phase.REVOKED].values()) == {Phase.REVOKED}


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ((), Phase.FETCHING),
        ((Event.PAUSE,), Phase.PAUSED),
        ((Event.PAUSE, Event.RESUME), Phase.FETCHING),
        ((Event.DRAIN, Event.RESUME), Phase.DRAINING),
        ((Event.PAUSE, Event.DRAIN, Event.KEEP), Phase.FETCHING),
        ((Event.DRAIN, Event.REVOKE, Event.RESUME), Phase.REVOKED),
    ],
)
def test_phases(events: Sequence[Event], phase: Phase) -> None:
    state = RecordingFetcher().state
    state.fetched(batch(0, 1))
    for event in events:
        state.on(event)
    assert state.phase is phase
    assert state.can_fetch == (phase is Phase.FETCHING)
    assert state.can_take == (phase is Phase.FETCHING)


def test_a_partition_that_does_not_drain_cannot_be_kept() -> None:
    with pytest.raises(RuntimeError, match="fetching cannot keep"):
        RecordingFetcher().state.on(Event.KEEP)


def test_the_commit_position_stays_at_the_first_unacknowledged_message() -> None:
    fetcher = RecordingFetcher()
    state = fetcher.state
    state.fetched(batch(0, 2), batch(3, 5))
    first, second = fetcher.taken(), fetcher.taken()
    second.acknowledge()
    assert (state.commit_offset, state.messages) == (0, 6)
    first.acknowledge(1)
    assert state.commit_offset == 0
    first.acknowledge(0)
    assert state.commit_offset == 2
    first.acknowledge(2)
    assert (state.commit_offset, state.messages, state.empty) == (6, 0, True)
    assert fetcher.calls == [
        "finished",
        "acknowledged",
        "acknowledged",
        "acknowledged",
        "finished",
        "acknowledged",
    ]


def test_a_batch_knows_its_delivery_while_it_is_in_hand() -> None:
    fetcher = RecordingFetcher()
    one = batch(0, 2)
    fetcher.state.fetched(one)
    assert delivery_of(one) is None
    delivery = fetcher.taken()
    assert delivery_of(one) is delivery
    delivery.acknowledge()
    assert delivery_of(one) is None
    delivery.acknowledge()
    assert fetcher.calls == ["finished", "acknowledged"]


def test_requeued_messages_are_handed_out_before_later_ones() -> None:
    fetcher = RecordingFetcher()
    fetcher.state.fetched(batch(0, 3), batch(4, 5))
    delivery = fetcher.taken()
    delivery.acknowledge(1)
    delivery.requeue()
    again = fetcher.taken()
    assert again.batch.offsets() == [0, 2, 3]
    delivery.acknowledge()  # void
    assert fetcher.state.commit_offset == 0
    again.acknowledge()
    assert fetcher.state.commit_offset == 4


def test_what_a_loop_has_passed_is_not_handed_out_again() -> None:
    fetcher = RecordingFetcher()
    fetcher.state.fetched(batch(0, 3))
    delivery = fetcher.taken()
    delivery.seen = 2
    delivery.requeue()
    assert fetcher.taken().batch.offsets() == [2, 3]
    whole = RecordingFetcher(by_message=False)
    whole.state.fetched(batch(0, 3))
    delivery = whole.taken()
    delivery.seen = 2
    delivery.requeue()
    assert whole.taken().batch.offsets() == [0, 1, 2, 3]


def test_a_resting_delivery_waits_for_its_time() -> None:
    fetcher = RecordingFetcher()
    fetcher.state.fetched(batch(0, 1), batch(2, 3))
    resting = fetcher.taken().rest()
    assert resting is not None
    assert fetcher.taken().batch.offset == 2
    assert fetcher.take() is None
    fetcher.state.wake(resting)
    fetcher.state.wake(resting)
    assert fetcher.taken().batch.offset == 0


def test_a_message_that_is_set_aside_holds_the_commit_position_back() -> None:
    fetcher = RecordingFetcher()
    fetcher.state.fetched(batch(0, 3))
    delivery = fetcher.taken()
    aside = delivery.set_aside(1)
    assert aside is not None
    assert delivery.set_aside(1) is None
    delivery.acknowledge()
    assert fetcher.state.commit_offset == 1
    fetcher.state.wake(aside)
    fetcher.taken().acknowledge()
    assert (fetcher.state.commit_offset, fetcher.state.empty) == (4, True)


def test_an_ordered_partition_hands_out_one_delivery_at_a_time() -> None:
    fetcher = RecordingFetcher(ordered=True)
    fetcher.state.fetched(batch(0, 1), batch(2, 3))
    first = fetcher.taken()
    assert fetcher.take() is None
    first.acknowledge()
    assert fetcher.taken().batch.offset == 2


@pytest.mark.parametrize("revoke", [True, False])
def test_nothing_from_before_has_an_effect(revoke: bool) -> None:
    fetcher = RecordingFetcher()
    state = fetcher.state
    state.fetched(batch(0, 1), batch(2, 3))
    delivery = fetcher.taken()
    if revoke:
        state.on(Event.REVOKE)
    else:
        state.seek(100)
        assert (state.next_offset, state.commit_offset, state.generation) == (100, 100, 1)
    delivery.acknowledge()
    delivery.requeue()
    assert (delivery.rest(), delivery.set_aside(0), delivery.state) == (
        None,
        None,
        DeliveryState.VOID,
    )
    assert (fetcher.calls, state.messages, state.waiting_bytes) == ([], 0, 0)
    assert fetcher.take() is None


@pytest.mark.parametrize(
    ("limits", "full"),
    [
        (FetchLimits(), False),
        (FetchLimits(messages=3), True),
        (FetchLimits(size_bytes=3), True),
        (FetchLimits(span=1), True),
        (FetchLimits(span=0), False),
    ],
)
def test_limits(limits: FetchLimits, full: bool) -> None:
    fetcher = RecordingFetcher(limits=limits)
    fetcher.state.fetched(batch(0, 2))
    assert (fetcher.state.full, fetcher.state.can_fetch) == (full, not full)
    fetcher.taken().acknowledge()
    assert fetcher.state.can_fetch


async def test_retry_is_for_the_fetcher_while_the_delivery_is_in_hand() -> None:
    fetcher = RecordingFetcher()
    fetcher.state.fetched(batch(0, 2))
    delivery = fetcher.taken()
    await delivery.retry(1, 3)
    delivery.acknowledge()
    await delivery.retry()
    assert fetcher.calls == ["retry 1 3", "finished", "acknowledged"]


def test_overdue() -> None:
    fetcher = RecordingFetcher()
    fetcher.state.fetched(batch(0, 2), batch(3, 4))
    delivery = fetcher.taken()
    assert fetcher.state.overdue(1) == []
    assert fetcher.state.overdue(2) == [delivery]
    assert fetcher.state.in_hand


class Machine(RuleBasedStateMachine):
    """Anything that an application and a broker can do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.fetcher = RecordingFetcher()
        self.state = self.fetcher.state
        self.acknowledged: set[int] = set()
        self.handed_out: list[Delivery[Batch]] = []
        self.resting: list[Delivery[Batch]] = []
        self.start = self.committed = 0

    @rule(size=st.integers(1, 5), gap=st.integers(0, 2))
    def fetch(self, size: int, gap: int) -> None:
        first = self.state.next_offset + gap
        offsets = range(first, first + size)
        self.acknowledged.update(range(self.state.next_offset, first))  # nothing is there
        self.state.fetched(Batch(offsets, self.state.next_offset, offsets.stop))

    @precondition(lambda self: self.state.can_take)
    @rule()
    def take(self) -> None:
        delivery = self.fetcher.taken()
        assert not self.acknowledged.intersection(delivery.batch.offsets())
        self.handed_out.append(delivery)

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from(self.handed_out))
        number = data.draw(st.none() | st.integers(0, len(delivery.batch) - 1))
        offsets = delivery.batch.offsets()
        if delivery.in_hand:  # a message that was set aside is not in its delivery any more
            open_ = delivery.open_numbers
            self.acknowledged.update(offsets[each] for each in open_ if number in {None, each})
        delivery.acknowledge(number)

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        delivery = data.draw(st.sampled_from(self.handed_out))
        match data.draw(st.sampled_from(["requeue", "rest", "aside"])):
            case "requeue":
                delivery.requeue()
            case "rest":
                self.resting.append(delivery.rest() or delivery)
            case _:
                number = data.draw(st.integers(0, len(delivery.batch) - 1))
                self.resting.append(delivery.set_aside(number) or delivery)

    @precondition(lambda self: self.resting)
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        self.state.wake(data.draw(st.sampled_from(self.resting)))

    @rule(offset=st.integers(0, 50))
    def seek(self, offset: int) -> None:
        self.state.seek(offset)
        self.acknowledged = set(range(offset))
        self.committed = offset

    @invariant()
    def nothing_before_the_commit_position_is_open(self) -> None:
        commit = self.state.commit_offset
        assert all(offset in self.acknowledged for offset in range(commit))
        assert commit >= self.committed
        self.committed = commit

    @invariant()
    def sums_add_up(self) -> None:
        deliveries = list(self.state)
        assert self.state.messages == sum(one.count for one in deliveries)
        waiting = [one for one in deliveries if one.state is DeliveryState.WAITING]
        assert self.state.waiting_bytes == sum(one.batch.size_bytes for one in waiting)
        assert self.state.can_take == bool(waiting)
        assert self.state.in_hand == any(one.in_hand for one in self.handed_out)


TestMachine = Machine.TestCase
