"""Tags: every statement of section 7.1 as a case.

See docs/protocol/rocketmq.md, section 7.1.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.subscription import (
    BloomFilter,
    Selector,
    Sql92,
    Subscription,
    Tags,
    split_tags,
)
from coherer.errors import UsageError


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        (None, ()),
        ("", ()),
        ("*", ()),
        ("TagA", ("TagA",)),
        ("TagA || TagB", ("TagA", "TagB")),
        ("TagA||TagB||", ("TagA", "TagB")),
        ("||TagA", ("TagA",)),
        ("TagA || || TagB", ("TagA", "TagB")),
        ("TagA|TagB", ("TagA|TagB",)),
        ("TagA|||TagB", ("TagA", "|TagB")),
        (" * ", ("*",)),
        ("\x00TagA\t", ("TagA",)),
        ("\u3000TagA", ("\u3000TagA",)),
        (" ", ()),
        (" || ", ()),
        ("b||a||b", ("b", "a")),
    ],
)
def test_tags(text: str | None, tags: tuple[str, ...]) -> None:
    assert split_tags(text) == tags


@pytest.mark.parametrize("text", ["||", "||||"])
def test_a_text_that_splits_into_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="subString split error"):
        split_tags(text)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, Subscription("t")),
        ("*", Subscription("t", "*")),
        (Tags(), Subscription("t", "*")),
        ("TagA || TagB", Subscription("t", "TagA || TagB", "TAG", ("TagA", "TagB"))),
        (Tags.any("a", "b"), Subscription("t", "a || b", "TAG", ("a", "b"))),
        (Sql92("a > 5"), Subscription("t", "a > 5", "SQL92")),
    ],
)
def test_what_users_give(selector: Selector, expected: Subscription) -> None:
    assert Subscription.of("t", selector) == expected


def test_codes_of_example_13_9() -> None:
    subscription = Subscription.of("t", "TagA || order-支付 || 😀 || refund")
    assert subscription.codes == (2598919, 1235076712, 1772899, -934813832)
    assert subscription.accepted == {"TagA", "order-支付", "😀", "refund"}
    assert Subscription.of("t", None).accepted is None


@pytest.mark.parametrize("text", [None, ""])
def test_an_empty_expression_is_refused(text: str | None) -> None:
    with pytest.raises(UsageError):
        Subscription.parse("t", text, "SQL92")


@pytest.mark.parametrize(
    ("text", "positions", "bitmap"),
    [
        ("group#topic", (79, 21, 21), "0000200000000000008000000000"),
        ("GID_PY#T1", (5, 12, 92), "2010000000000000000000100000"),
        ("GID_demo#TopicTest", (53, 17, 18), "0000060000002000000000000000"),
    ],
)
def test_example_13_10_of_bloom_filters(text: str, positions: tuple[int, ...], bitmap: str) -> None:
    bloom = BloomFilter()
    assert (bloom.hashes, bloom.bits) == (3, 112)
    assert bloom.positions(text) == positions
    assert bloom.bitmap(positions).hex() == bitmap


@given(st.text(st.characters(codec="utf-8")), st.integers(1, 99), st.integers(1, 100))
def test_the_bitmap_of_a_text_contains_it(text: str, percent: int, consumers: int) -> None:
    bloom = BloomFilter(percent, consumers)
    positions = bloom.positions(text)
    assert len(positions) == bloom.hashes
    assert all(0 <= position < bloom.bits for position in positions)


@pytest.mark.parametrize(("percent", "consumers"), [(0, 32), (100, 32), (20, 0)])
def test_invalid_sizes_of_bloom_filters_are_refused(percent: int, consumers: int) -> None:
    with pytest.raises(UsageError):
        BloomFilter(percent, consumers)
