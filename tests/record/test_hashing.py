from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.properties import java_hash, tag_code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("*", 42),
        ("TagA || TagB", 1359775119),
        ("order-支付", 1235076712),
        ("😀", 1772899),
        ("refund", -934813832),
        ("payment_done", -497418725),
    ],
)
def test_worked_examples(text: str, code: int) -> None:
    assert java_hash(text) == code


@given(st.text())
def test_is_a_signed_32_bit_number(text: str) -> None:
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = 31 * value + unit
    assert (java_hash(text) - value) % (1 << 32) == 0
    assert -(1 << 31) <= java_hash(text) < 1 << 31


def test_no_tag_is_zero() -> None:
    assert tag_code(None) == tag_code("") == 0
    assert tag_code("refund").to_bytes(8, "big", signed=True).hex() == "ffffffffc847df78"
