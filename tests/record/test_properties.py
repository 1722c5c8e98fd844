from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.properties import (
    RESERVED,
    decode,
    encode,
    index_keys,
    java_hash,
    tag_code,
    value_of,
)
from coherer.errors import UsageError

words = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)


def test_worked_example() -> None:
    text = encode({"TAGS": "TagA", "KEYS": "k1 k2", "DELAY": "3"})
    assert text.hex() == "544147530154616741024b455953016b31206b320244454c41590133"


@given(st.dictionaries(words, words))
def test_round_trip(properties: dict[str, str]) -> None:
    assert decode(encode(properties)) == properties
    assert decode(encode(properties) + b"\x02") == properties  # as older clients encode it


@given(st.binary())
def test_invalid_parts_are_ignored(data: bytes) -> None:
    for name, value in decode(data).items():
        assert name
        assert value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", {}),
        (b"a\x01", {}),
        (b"\x01b", {}),
        (b"ab", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02a\x01c", {"a": "c"}),
        (b"a\x01b\x01c", {"a": "b\x01c"}),
        (b"\x02\x02a\x01b", {"a": "b"}),
        (b"a\x01\xff", {"a": "\ufffd"}),
    ],
)
def test_decodes_like_java(text: bytes, found: dict[str, str]) -> None:
    assert decode(text) == found
    assert decode(memoryview(text)) == found


@pytest.mark.parametrize(
    "properties", [{"": "a"}, {"a": ""}, {"a\x01": "b"}, {"a": "\x02"}, {"a": "\ud800"}]
)
def test_encode_rejects_properties_that_would_be_lost(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        encode(properties)


def test_encode_rejects_too_long_texts() -> None:
    assert len(encode({"a": "b" * 32765})) == 32767
    with pytest.raises(UsageError, match="32768"):
        encode({"a": "b" * 32766})


def test_index_keys_have_javas_order() -> None:
    assert index_keys({}) == ()
    assert index_keys({"KEYS": " a  b "}) == ("a", "b")
    assert index_keys({"KEYS": "a b", "UNIQ_KEY": "u", "TAGS": "t"}) == ("u", "a", "b")


def test_reserved_names() -> None:
    assert {"TAGS", "KEYS", "UNIQ_KEY", "WAIT", "INNER_MULTI_QUEUE_OFFSET"} < RESERVED
    assert "carrier" not in RESERVED


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
def test_hashes_of_the_worked_examples(text: str, code: int) -> None:
    assert java_hash(text) == code


@given(st.text())
def test_hashes_are_signed_32_bit_numbers(text: str) -> None:
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = 31 * value + unit
    assert (java_hash(text) - value) % (1 << 32) == 0
    assert -(1 << 31) <= java_hash(text) < 1 << 31


def test_the_code_without_a_tag_is_0() -> None:
    assert tag_code(None) == tag_code("") == 0
    assert tag_code("refund").to_bytes(8, "big", signed=True).hex() == "ffffffffc847df78"


_PARTS = st.sampled_from([b"KEYS", b"XKEYS", b"KEY", b"\x01", b"\x02", b"a", b"\xff", "ä".encode()])


@given(st.lists(_PARTS, max_size=12).map(b"".join), st.sampled_from(["KEYS", "KEY", "a", "ä"]))
def test_one_value_is_that_of_all(data: bytes, name: str) -> None:
    assert value_of(data, name) == decode(data).get(name)
