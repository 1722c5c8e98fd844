from __future__ import annotations

from datetime import UTC, datetime

import pytest

from coherer.client.rocketmq.start import Edge, Starts
from coherer.errors import UsageError
from coherer.rocketmq.names import Queue

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
def test_of_a_new_group(start: object, of_new: Edge, of_retry: Edge, name: str) -> None:
    starts = Starts(start)  # type: ignore[arg-type]
    assert (starts.of(QUEUE, None), starts.of(RETRY, None)) == (of_new, of_retry)
    assert starts.wire_name == name


@pytest.mark.parametrize("start", ["latest", "earliest", MOMENT])
def test_a_group_carries_on(start: object) -> None:
    assert Starts(start).of(QUEUE, 7) == 7  # type: ignore[arg-type]


def test_always_latest_is_for_the_first_time() -> None:
    starts = Starts("always-latest")
    assert not starts.needs_stored(QUEUE)
    assert starts.of(QUEUE, 7) is Edge.END
    starts.taken(QUEUE)
    assert starts.needs_stored(QUEUE)
    assert (starts.of(QUEUE, 7), starts.of(RETRY, 3)) == (7, 3)


def test_given_offsets_are_for_the_first_time() -> None:
    starts = Starts({QUEUE: 3})
    assert (starts.of(QUEUE, 7), starts.of(OTHER, 7), starts.of(OTHER, None)) == (3, 7, Edge.END)
    assert (starts.needs_stored(QUEUE), starts.needs_stored(OTHER)) == (False, True)
    starts.taken(QUEUE)
    assert starts.of(QUEUE, 7) == 7


def test_the_time() -> None:
    assert Starts(MOMENT).time_ms == 1_795_219_200_000
    assert Starts("latest").time_ms == 0


@pytest.mark.parametrize("start", ["soon", {QUEUE: -1}])
def test_nonsense(start: object) -> None:
    with pytest.raises(UsageError, match="no start position"):
        Starts(start)  # type: ignore[arg-type]
