from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coherer._client.rocketmq.start_position import Edge, Start, StartPositions
from coherer._wire.rocketmq.names import Queue
from coherer.errors import UsageError

QUEUE = Queue("flights", "broker-a", 0)
OTHER = Queue("flights", "broker-a", 1)
RETRY = Queue("%RETRY%readers", "broker-a", 0)
MOMENT = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "of_new", "of_retry", "name"),
    [
        ("latest", Edge.END, Edge.OLDEST, "CONSUME_FROM_LAST_OFFSET"),
        ("always-latest", Edge.END, Edge.OLDEST, "CONSUME_FROM_LAST_OFFSET"),
        ("earliest", Edge.OLDEST, Edge.OLDEST, "CONSUME_FROM_FIRST_OFFSET"),
        (MOMENT, Edge.TIME, Edge.END, "CONSUME_FROM_TIMESTAMP"),
    ],
)
def test_the_start_of_a_new_group_per_option(
    start: object, of_new: Edge, of_retry: Edge, name: str
) -> None:
    starts = StartPositions(start)  # type: ignore[arg-type]
    assert (starts.position(QUEUE, None), starts.position(RETRY, None)) == (of_new, of_retry)
    assert starts.wire_name == name


@pytest.mark.parametrize("start", ["latest", "earliest", MOMENT])
def test_a_group_continues_at_its_offset(start: object) -> None:
    assert StartPositions(start).position(QUEUE, 7) == 7  # type: ignore[arg-type]


def test_always_latest_applies_once() -> None:
    starts = StartPositions("always-latest")
    assert not starts.needs_stored_offset(QUEUE)
    assert starts.position(QUEUE, 7) is Edge.END
    starts.begun(QUEUE)
    assert starts.needs_stored_offset(QUEUE)
    assert (starts.position(QUEUE, 7), starts.position(RETRY, 3)) == (7, 3)


def test_always_latest_does_not_move_the_group_back() -> None:
    starts = StartPositions("always-latest")
    starts.set_ends("flights", {QUEUE: 5, OTHER: None}, 1_000)
    assert starts.needs_stored_offset(QUEUE)
    assert (starts.position(QUEUE, 3), starts.position(QUEUE, 7), starts.position(QUEUE, None)) == (
        5,
        7,
        5,
    )
    assert not starts.needs_stored_offset(OTHER)
    assert starts.position(OTHER, 3) is Edge.END
    starts.begun(QUEUE)
    assert (starts.position(QUEUE, 3), starts.position(RETRY, 3)) == (3, 3)


def test_given_offsets_apply_once() -> None:
    starts = StartPositions({QUEUE: 3})
    assert (starts.position(QUEUE, 7), starts.position(OTHER, 7), starts.position(OTHER, None)) == (
        3,
        7,
        Edge.END,
    )
    assert (starts.needs_stored_offset(QUEUE), starts.needs_stored_offset(OTHER)) == (False, True)
    starts.begun(QUEUE)
    assert starts.position(QUEUE, 7) == 7


@pytest.mark.parametrize("start", ["latest", "always-latest", {Queue("other", "b", 0): 1}])
def test_the_end_is_read_when_the_consumer_starts(start: Start) -> None:
    starts = StartPositions(start)
    assert starts.needs_ends
    starts.set_ends("flights", {QUEUE: 5, OTHER: None}, 1_000)
    assert starts.position(QUEUE, None) == 5
    assert starts.position(OTHER, None) is Edge.END, "its broker did not tell"
    added = Queue("flights", "broker-a", 2)
    assert (starts.position(added, None), starts.time_ms) == (Edge.TIME, 1_000)
    starts.set_ends("trains", None, 2_000)
    assert starts.position(Queue("trains", "broker-a", 0), None) is Edge.OLDEST
    starts.begun(QUEUE)
    assert starts.position(QUEUE, None) is Edge.END, "somebody has removed the group's offset"


def test_a_start_offset_that_would_change_is_stored() -> None:
    assert StartPositions("latest").must_store(QUEUE)
    assert StartPositions(MOMENT).must_store(QUEUE)
    assert not StartPositions("latest").must_store(RETRY)
    assert not StartPositions("earliest").must_store(QUEUE)
    assert not StartPositions({QUEUE: 3}).must_store(QUEUE)
    assert StartPositions({QUEUE: 3}).must_store(OTHER)
    assert not StartPositions("earliest").needs_ends
    assert not StartPositions(MOMENT).needs_ends


def test_the_time() -> None:
    assert StartPositions(MOMENT).time_ms == 1_795_219_200_000
    assert StartPositions("latest").time_ms == 0


@pytest.mark.parametrize("start", ["soon", {QUEUE: -1}])
def test_invalid_start_positions(start: object) -> None:
    with pytest.raises(UsageError, match="start"):
        StartPositions(start)  # type: ignore[arg-type]
