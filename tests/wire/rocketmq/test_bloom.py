"""Bit positions, against Java's (13.10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.subscription import BloomFilter
from coherer.errors import UsageError


@pytest.mark.parametrize(
    ("text", "positions", "bitmap"),
    [
        ("group#topic", (79, 21, 21), "0000200000000000008000000000"),
        ("GID_PY#T1", (5, 12, 92), "2010000000000000000000100000"),
        ("GID_demo#TopicTest", (53, 17, 18), "0000060000002000000000000000"),
    ],
)
def test_the_worked_examples_13_10(text: str, positions: tuple[int, ...], bitmap: str) -> None:
    bloom = BloomFilter()
    assert (bloom.hashes, bloom.bits) == (3, 112)
    assert bloom.positions(text) == positions
    assert bloom.bitmap(positions).hex() == bitmap


@given(st.text(st.characters(codec="utf-8")), st.integers(1, 99), st.integers(1, 100))
def test_what_was_put_in_is_found(text: str, percent: int, consumers: int) -> None:
    bloom = BloomFilter(percent, consumers)
    positions = bloom.positions(text)
    assert len(positions) == bloom.hashes
    assert all(0 <= position < bloom.bits for position in positions)
    assert BloomFilter.holds(bloom.bitmap(positions), positions)
    assert not BloomFilter.holds(bytes(bloom.bits // 8), positions)


@pytest.mark.parametrize(("percent", "consumers"), [(0, 32), (100, 32), (20, 0)])
def test_no_such_filter(percent: int, consumers: int) -> None:
    with pytest.raises(UsageError):
        BloomFilter(percent, consumers)
