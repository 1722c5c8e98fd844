"""Tags: every statement of section 7.1 as a case.

See docs/protocol/rocketmq.md, section 7.1.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.subscription import (
    BLOOM_BITS,
    Selector,
    Sql92,
    Subscription,
    Tags,
    bloom_positions,
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
    ("text", "positions"),
    [
        ("group#topic", (79, 21, 21)),
        ("GID_PY#T1", (5, 12, 92)),
        ("GID_demo#TopicTest", (53, 17, 18)),
    ],
)
def test_example_13_10_of_bloom_filters(text: str, positions: tuple[int, ...]) -> None:
    assert bloom_positions(text) == positions


@given(st.text(st.characters(codec="utf-8")))
def test_a_bloom_filter_has_bits_for_any_text(text: str) -> None:
    assert all(0 <= position < BLOOM_BITS for position in bloom_positions(text))
