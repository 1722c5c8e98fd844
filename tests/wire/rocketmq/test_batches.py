"""Batch bodies: the worked example, there and back, and garbage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.messages import (
    EncodedMessage,
    decode_batch,
    encode_batch,
    encode_item,
    item_bytes,
    split_by_size,
)
from coherer.errors import ProtocolError, UsageError

EXAMPLE = bytes.fromhex(
    """
    0000002b 00000000 00000000 00000000 00000002 62310013 54414753 01546167
    41025741 49540174 72756500 00002100 00000000 00000000 00000000 00000262
    32000957 41495401 74727565
    """
)
"""13.14."""
ITEMS = [
    EncodedMessage(b"b1", "TAGS\x01TagA\x02WAIT\x01true", 0),
    EncodedMessage(b"b2", "WAIT\x01true", 0),
]


def test_the_worked_example_13_14() -> None:
    assert encode_batch(ITEMS) == EXAMPLE
    found = decode_batch(EXAMPLE)
    assert found.bodies == [b"b1", b"b2"]
    assert [str(text, "utf-8") for text in found.properties] == [item.properties for item in ITEMS]
    assert sum(map(item_bytes, ITEMS)) == len(EXAMPLE)


@given(st.lists(st.tuples(st.binary(), st.binary(max_size=50), st.integers(-(2**31), 2**31 - 1))))
def test_there_and_back(items: list[tuple[bytes, bytes, int]]) -> None:
    data = b"".join(encode_item(*item) for item in items)
    found = decode_batch(data)
    assert list(zip(found.bodies, found.properties, found.flags, strict=True)) == items


@given(
    st.integers(0, 3).flatmap(
        lambda size: st.lists(
            st.tuples(st.binary(min_size=size, max_size=size), st.integers(-(2**31), 2**31 - 1)),
            min_size=2,
        )
    ),
    st.data(),
)
def test_equal_lengths_are_read_as_others_are(
    items: list[tuple[bytes, int]], draw: st.DataObject
) -> None:
    data = bytearray(b"".join(encode_item(body, b"k\x01v", flag) for body, flag in items))
    assert decode_batch(bytes(data)).bodies == [body for body, _ in items]
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    odd = encode_item(b"another length", b"")
    try:
        found = decode_batch(memoryview(data))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            decode_batch(bytes(data + odd))
        return
    assert [column[:-1] for column in decode_batch(bytes(data + odd))] == list(found)


@given(st.integers(0, len(EXAMPLE)), st.binary(max_size=4), st.integers(0, len(EXAMPLE)))
def test_garbage(at: int, junk: bytes, end: int) -> None:
    data = bytearray(EXAMPLE)
    data[at : at + len(junk)] = junk
    try:
        found = decode_batch(bytes(data[:end]))
    except ProtocolError:
        return
    assert sum(map(len, found.bodies + found.properties)) <= end


def test_what_no_batch_holds() -> None:
    with pytest.raises(UsageError):
        encode_batch([])
    with pytest.raises(UsageError):
        encode_batch([EncodedMessage(b"x", "", 1)])


@given(st.lists(st.integers(1, 100)), st.integers(1, 150))
def test_split_by_size(sizes: list[int], limit: int) -> None:
    cuts = split_by_size(sizes, limit)
    parts = [sizes[cut] for cut in cuts]
    assert [size for part in parts for size in part] == sizes
    for part, after in zip(parts, [*parts[1:], []], strict=False):
        assert sum(part) <= limit or len(part) == 1
        assert not after or sum(part) + after[0] > limit
