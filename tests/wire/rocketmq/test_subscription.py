"""Tags: every statement of section 7.1 as a case."""

from __future__ import annotations

import pytest

from coherer._wire.rocketmq.subscription import (
    Selector,
    Sql92,
    Subscription,
    Tags,
    matches_code,
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
def test_an_expression_that_is_none(text: str | None) -> None:
    with pytest.raises(UsageError):
        Subscription.parse("t", text, "SQL92")


@pytest.mark.parametrize(
    ("text", "codes", "code", "matches"),
    [
        ("TagA", {2598919}, None, True),
        ("*", set[int](), 2598919, True),
        ("*", set[int](), 0, True),
        ("TagA", {2598919}, 2598919, True),
        ("TagA", {2598919}, 2598920, False),
        ("TagA", {2598919}, 0, False),
        ("TagA", set[int](), 2598919, False),
        ("refund", {-934813832}, -934813832, True),
        ("refund", {-934813832}, -934813832 & 0xFFFFFFFF, True),
        ("TagB", {2598919}, 2598919, True),
    ],
)
def test_the_brokers_test(text: str, codes: set[int], code: int | None, matches: bool) -> None:
    assert matches_code(text, codes, code) is matches
