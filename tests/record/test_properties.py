from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.properties import RESERVED, decode, encode, index_keys
from coherer.errors import UsageError

words = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20
)


def test_worked_example() -> None:
    text = encode({"TAGS": "TagA", "KEYS": "k1 k2", "DELAY": "3"})
    assert text.hex() == "544147530154616741024b455953016b31206b320244454c41590133"


@given(st.dictionaries(words, words))
def test_what_is_written_is_read(properties: dict[str, str]) -> None:
    assert decode(encode(properties)) == properties
    assert decode(encode(properties) + b"\x02") == properties  # as older clients write it


@given(st.binary())
def test_garbage_is_dropped(data: bytes) -> None:
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
def test_reads_as_java_does(text: bytes, found: dict[str, str]) -> None:
    assert decode(text) == found
    assert decode(memoryview(text)) == found


@pytest.mark.parametrize(
    "properties", [{"": "a"}, {"a": ""}, {"a\x01": "b"}, {"a": "\x02"}, {"a": "\ud800"}]
)
def test_refuses_what_would_be_lost(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        encode(properties)


def test_refuses_what_is_too_long() -> None:
    assert len(encode({"a": "b" * 32765})) == 32767
    with pytest.raises(UsageError, match="32768"):
        encode({"a": "b" * 32766})


def test_index_keys_come_in_javas_order() -> None:
    assert index_keys({}) == ()
    assert index_keys({"KEYS": " a  b "}) == ("a", "b")
    assert index_keys({"KEYS": "a b", "UNIQ_KEY": "u", "TAGS": "t"}) == ("u", "a", "b")


def test_reserved_names() -> None:
    assert {"TAGS", "KEYS", "UNIQ_KEY", "WAIT", "INNER_MULTI_QUEUE_OFFSET"} < RESERVED
    assert "carrier" not in RESERVED
