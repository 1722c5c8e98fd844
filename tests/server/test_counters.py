"""What a node counts of messages that producers send."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from coherer._server.core.counters import NORMAL, SIZES, Counters
from coherer._store import AppendResult, Draft

LIMITS = st.sampled_from(SIZES).flatmap(lambda limit: st.integers(limit - 1, limit + 1))


@given(st.lists(st.tuples(LIMITS | st.integers(1, SIZES[-1] * 2), st.integers(1, 3)), min_size=1))
def test_messages_are_counted_by_size(stored: list[tuple[int, int]]) -> None:
    """Each pair is the size of a record, or of a batch of several records."""
    counters = Counters(0, lambda: 0)
    draft = Draft("flights", 0, b"", b"")
    for _ in range(2):  # the topic is unknown at first
        appended = [AppendResult(0, 0, size * count, count) for size, count in stored]
        counters.received([draft] * len(stored), appended)
    found = counters.incoming["flights", NORMAL]
    expected = [0] * (len(SIZES) + 1)
    for size, count in stored:
        expected[bisect_left(SIZES, size)] += 2 * count
    assert found.counts == expected
    assert found.sum == 2 * sum(size * count for size, count in stored)
