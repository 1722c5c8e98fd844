from __future__ import annotations

import pytest

from coherer._client.tubemq.quality import BACKOFF_MS, FAILURES_MAX, Backoff
from coherer._client.tubemq.routing import RoundRobin, partition_ids


class TargetPartition:
    def __init__(self, name: int) -> None:
        self.name = name
        self.backoff = Backoff()


def choices(
    robin: RoundRobin, targets: list[TargetPartition], count: int, now_ms: int = 0
) -> list[int]:
    return [robin.choose(targets, now_ms).name for _ in range(count)]


@pytest.mark.parametrize(
    ("partitions", "stores", "expected"),
    [(1, 1, [0]), (3, 1, [0, 1, 2]), (2, 3, [0, 1, 10000, 10001, 20000, 20001])],
)
def test_ids_of_the_partitions_of_a_topic(
    partitions: int, stores: int, expected: list[int]
) -> None:
    assert partition_ids(partitions, stores) == expected


def test_all_partitions_in_turn() -> None:
    targets = [TargetPartition(number) for number in range(3)]
    assert choices(RoundRobin(-1), targets, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_the_counter_may_wrap() -> None:
    targets = [TargetPartition(number) for number in range(4)]
    taken = choices(RoundRobin(2**31 - 3), targets, 8)
    assert sorted(taken) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_partition_that_fails_rests_for_three_seconds() -> None:
    targets = [TargetPartition(0), TargetPartition(1)]
    for _ in range(FAILURES_MAX + 1):
        targets[0].backoff.failed(now_ms=100)
    robin = RoundRobin(0)
    assert set(choices(robin, targets, 6, now_ms=100 + BACKOFF_MS - 1)) == {1}
    assert set(choices(robin, targets, 6, now_ms=100 + BACKOFF_MS)) == {0, 1}


def test_few_failures_are_forgiven_and_a_success_forgives_all() -> None:
    backoff = Backoff()
    for _ in range(FAILURES_MAX):
        backoff.failed(0)
    assert backoff.until_ms == 0
    backoff.succeeded()
    for _ in range(FAILURES_MAX):
        backoff.failed(0)
    assert backoff.until_ms == 0
    backoff.failed(7)
    assert backoff.until_ms == 7 + BACKOFF_MS
    backoff.succeeded()
    assert backoff.until_ms == 0


def test_when_all_rest_they_are_taken_in_turn_all_the_same() -> None:
    targets = [TargetPartition(0), TargetPartition(1), TargetPartition(2)]
    for target in targets:
        for _ in range(FAILURES_MAX + 1):
            target.backoff.failed(0)
    assert sorted(choices(RoundRobin(0), targets, 6)) == [0, 0, 1, 1, 2, 2]
