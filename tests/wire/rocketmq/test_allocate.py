"""Allocation: Java's results, and that every queue has one owner.

See docs/protocol/rocketmq.md, section 13.15.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.allocate import (
    STRATEGIES,
    Strategy,
    average,
    by_circle,
    consistent_hash,
    fixed,
    machine_room,
    nearby,
    sorted_for_allocation,
)
from coherer._wire.rocketmq.names import Queue
from coherer.errors import UsageError


def queues_of(count: int, broker: str = "broker-a") -> list[Queue]:
    return [Queue("TopicTest", broker, number) for number in range(count)]


def ids(strategy: Strategy, queues: list[Queue], clients: list[str]) -> list[list[int]]:
    return [[queue.id for queue in strategy(queues, clients, me)] for me in clients]


@pytest.mark.parametrize(
    ("strategy", "queues", "expected"),
    [
        (average, 8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (average, 2, [[0], [1], []]),
        (average, 3, [[0], [1], [2]]),
        (by_circle, 8, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        (by_circle, 2, [[0], [1], []]),
    ],
)
def test_the_worked_examples_13_15(
    strategy: Strategy, queues: int, expected: list[list[int]]
) -> None:
    assert ids(strategy, queues_of(queues), ["a", "b", "c"]) == expected


def test_the_worked_ring_13_15() -> None:
    clients = ["10.0.0.1@1", "10.0.0.2@2"]
    assert ids(consistent_hash(), queues_of(8), clients) == [[1, 2, 3, 4, 5, 6, 7], [0]]


@given(
    st.sampled_from(sorted(STRATEGIES)),
    st.integers(0, 40),
    st.sets(st.text(max_size=4), min_size=1),
)
def test_every_queue_has_one_owner(name: str, count: int, clients: set[str]) -> None:
    queues, members = sorted_for_allocation(queues_of(count), clients)
    taken = [queue for me in members for queue in STRATEGIES[name](queues, members, me)]
    assert sorted(taken) == queues


@given(st.integers(1, 30), st.integers(2, 9))
def test_a_client_that_leaves_moves_only_its_own_queues(count: int, members: int) -> None:
    clients = [f"10.0.0.{n}@{n}" for n in range(members)]
    allocate, queues = consistent_hash(), queues_of(count)
    for me in clients[1:]:
        before = set(allocate(queues, clients, me))
        assert before <= set(allocate(queues, clients[1:], me))


@pytest.mark.parametrize(
    "strategy",
    [
        *STRATEGIES.values(),
        fixed(queues_of(1)),
        machine_room(["x"]),
        nearby(average, lambda queue: "x", lambda client: "x"),
    ],
)
def test_a_client_outside_the_group_gets_nothing(strategy: Strategy) -> None:
    assert strategy(queues_of(4), ["a"], "b") == []


def test_fixed() -> None:
    assert ids(fixed(queues_of(2)), queues_of(8), ["a", "b"]) == [[0, 1], [0, 1]]


def test_machine_room() -> None:
    queues = [
        *queues_of(5, "x@one"),
        *queues_of(2, "y@one"),
        *queues_of(2, "z"),
        Queue("t", "x@y@z", 9),
    ]
    strategy = machine_room(["x", "z"])
    assert ids(strategy, queues, ["a", "b", "c"]) == [[0, 3], [1, 4], [2]]


def test_nearby() -> None:
    queues = [*queues_of(4, "x-1"), *queues_of(3, "y-1"), *queues_of(4, "z-1")]
    strategy = nearby(average, lambda queue: queue.broker[0], lambda client: client[0])
    shares = [strategy(queues, ["x1", "x2", "y1"], me) for me in ("x1", "x2", "y1")]
    assert [[f"{queue.broker[0]}{queue.id}" for queue in share] for share in shares] == [
        ["x0", "x1", "z0", "z1"],
        ["x2", "x3", "z2"],
        ["y0", "y1", "y2", "z3"],
    ]


def test_java_sorts_by_utf_16_units() -> None:
    queues, clients = sorted_for_allocation(
        [Queue("t", "b", 10), Queue("t", "b", 9), Queue("t", "a", 11)], ["\uffff", "😀", "a"]
    )
    assert [queue.id for queue in queues] == [11, 9, 10]
    assert clients == ["a", "😀", "\uffff"]


def test_invalid_parameters_are_refused() -> None:
    with pytest.raises(UsageError):
        consistent_hash(0)
    with pytest.raises(UsageError):
        nearby(average, lambda queue: "", lambda client: "x")(queues_of(1), ["a"], "a")
