from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._client.rocketmq.process_queue import PartitionState, FetchLimits


@dataclass
class Batch:
    """What a pull brought: offsets of its messages, and where it began and ended."""

    rows: list[int]
    offset: int
    next_offset: int
    size_bytes: int = 100

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def count(self) -> int:
        return len(self.rows)

    def offsets(self) -> Sequence[int]:
        return self.rows

    def pick(self, numbers: Sequence[int]) -> Batch:
        rows = [self.rows[number] for number in numbers]
        return Batch(rows, rows[0], self.next_offset, 50)


def dense(begin: int, end: int) -> Batch:
    return Batch(list(range(begin, end)), begin, end)


def test_packages_are_taken_in_order_and_committed_up_to_the_first_open_one() -> None:
    queue = PartitionState[Batch](10)
    queue.put(dense(10, 13))
    queue.put(dense(13, 20))
    first, second = queue.take(1), queue.take(2)
    assert first is not None
    assert second is not None
    assert queue.take(3) is None
    queue.finish(second)
    assert (queue.commit_offset, queue.messages, queue.size_bytes) == (10, 10, 200)
    queue.finish(first)
    assert (queue.commit_offset, queue.messages, queue.size_bytes) == (20, 0, 0)
    assert queue.empty


def test_single_messages_move_the_offset_when_there_is_no_gap_before_them() -> None:
    queue = PartitionState[Batch](0)
    queue.put(Batch([2, 5, 6, 9], 0, 12))  # others were filtered
    package = queue.take(1)
    assert package is not None
    assert queue.commit_offset == 0
    assert package.acknowledge(1)
    assert queue.commit_offset == 0
    assert package.acknowledge(0)
    assert (queue.commit_offset, package.open_numbers) == (6, [2, 3])
    assert not package.acknowledge(1)
    package.passed(3)
    assert queue.commit_offset == 9
    package.passed(1)
    assert queue.commit_offset == 9
    assert package.acknowledge(3)
    queue.settle()
    assert (queue.commit_offset, package.done, package.open_numbers) == (12, True, [])


def test_an_orderly_queue_gives_one_package_at_a_time() -> None:
    queue = PartitionState[Batch](0, orderly=True)
    queue.put(dense(0, 2), dense(2, 4))
    first = queue.take(1)
    assert first is not None
    assert not queue.can_take
    queue.give_back(first)
    assert queue.take(2) is first
    queue.finish(first)
    second = queue.take(3)
    assert second is not None
    assert second.batch.offset == 2


def test_what_was_given_back_comes_before_what_was_behind_it() -> None:
    queue = PartitionState[Batch](0)
    queue.put(dense(0, 1), dense(1, 2), dense(2, 3))
    first, second = queue.take(1), queue.take(1)
    assert first is not None
    assert second is not None
    queue.give_back(second)
    queue.give_back(first)
    queue.give_back(first)
    assert [package.batch.offset for _ in range(3) if (package := queue.take(2))] == [0, 1, 2]


def test_what_is_given_back_in_part_comes_without_what_is_dealt_with() -> None:
    queue = PartitionState[Batch](0)
    queue.put(dense(0, 5))
    package = queue.take(1)
    assert package is not None
    package.passed(1)
    package.acknowledge(3)
    queue.give_back(package)
    assert (queue.messages, queue.size_bytes, queue.commit_offset) == (3, 50, 1)
    assert queue.take(2) is package
    assert package.batch.rows == [1, 2, 4]
    package.passed(2)
    assert queue.commit_offset == 4
    queue.finish(package)
    assert (queue.messages, queue.size_bytes, queue.commit_offset) == (0, 0, 5)


def test_a_message_that_is_set_aside_holds_the_offset_back() -> None:
    queue = PartitionState[Batch](0)
    queue.put(dense(0, 3), dense(3, 5))
    package = queue.take(1)
    assert package is not None
    aside = queue.set_aside(package, 1)
    assert aside is not None
    assert queue.set_aside(package, 1) is None
    queue.finish(package)
    second = queue.take(1)
    assert second is not None
    queue.finish(second)
    assert (queue.commit_offset, queue.empty, queue.messages, queue.span) == (1, False, 1, 3)
    assert not queue.can_take
    queue.give_back(aside)
    assert queue.take(1) is aside
    assert aside.batch.rows == [1]
    queue.finish(aside)
    assert (queue.commit_offset, queue.empty, queue.messages, queue.span) == (5, True, 0, 0)


def test_a_dropped_queue_gives_nothing() -> None:
    queue = PartitionState[Batch](0)
    queue.put(dense(0, 1))
    queue.dropped = True
    assert queue.take(1) is None


@pytest.mark.parametrize(
    ("thresholds", "full"),
    [
        (FetchLimits(), False),
        (FetchLimits(messages=4), True),
        (FetchLimits(messages=5), False),
        (FetchLimits(size_bytes=200), True),
        (FetchLimits(span=2), True),
        (FetchLimits(span=4), False),
        (FetchLimits(span=0), False),
    ],
)
def test_when_it_is_full(thresholds: FetchLimits, *, full: bool) -> None:
    queue = PartitionState[Batch](0)
    queue.put(dense(0, 2), dense(2, 4))
    assert queue.full(thresholds) is full


def test_a_stubborn_message_stretches_the_span() -> None:
    queue = PartitionState[Batch](0)
    queue.put(dense(0, 1))
    queue.take(1)
    for begin in range(1, 3000, 100):
        queue.put(dense(begin, begin + 100))
        package = queue.take(1)
        assert package is not None
        queue.finish(package)
    assert (queue.span, queue.full(FetchLimits(messages=10_000))) == (3000, True)


def test_packages_that_take_too_long() -> None:
    queue = PartitionState[Batch](0)
    queue.put(dense(0, 1), dense(1, 2), dense(2, 3))
    early, late = queue.take(100), queue.take(200)
    assert queue.overdue(150) == [early]
    assert late is not None
    assert early is not None
    queue.finish(early)
    assert queue.overdue(150) == []


def test_a_pull_that_brings_nothing_moves_the_offset_when_all_is_done() -> None:
    queue = PartitionState[Batch](0)
    queue.skip(7)
    assert queue.commit_offset == 7
    queue.put(dense(7, 8))
    queue.skip(20)
    assert queue.commit_offset == 7


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    data=st.data(),
)
def test_the_offset_to_commit_is_the_first_message_that_is_not_dealt_with(
    sizes: list[int], data: st.DataObject
) -> None:
    queue = PartitionState[Batch](0)
    end = 0
    for size in sizes:
        queue.put(dense(end, end + size))
        end += size
    packages = [package for _ in sizes if (package := queue.take(1))]
    open_ = set(range(end))
    for offset in data.draw(st.permutations(range(end))):
        package = next(one for one in packages if offset in one.batch.rows)
        assert package.acknowledge(offset - package.batch.offset)
        queue.settle()
        open_.discard(offset)
        assert queue.commit_offset == min(open_, default=end)
    assert queue.empty
