"""Varints, fields and length prefixes, compared with protobuf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq import envelope
from coherer._wire.tubemq import messages as pb
from coherer.errors import ProtocolError


@given(st.integers(-(2**63), 2**63 - 1))
def test_varint_equals_protobuf(number: int) -> None:
    written = pb.AuthorizedInfo(visitAuthorizedToken=number).SerializeToString()
    assert b"\x08" + envelope.varint(number) == written


@pytest.mark.parametrize("number", [0, 127, 128, 2**14 - 1, 2**14, 2**28 - 1, 2**28, 2**42, 2**63])
def test_varint_at_the_limits_of_its_lengths(number: int) -> None:
    text = envelope.varint(number)
    assert len(text) == max(1, -(-number.bit_length() // 7))
    value = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(text))
    assert value == number


@given(st.binary(max_size=300), st.integers(1, 15))
def test_encode_field_equals_protobuf(text: bytes, number: int) -> None:
    expected = pb.RspResponseBody(method=1, data=text).SerializeToString()
    assert b"\x08\x01" + envelope.encode_field(2, text) == expected
    assert envelope.encode_field(number, text)[0] == number << 3 | 2


@given(st.integers(0, 2**35 - 1), st.binary(max_size=5))
def test_read_varint_reverses_varint(number: int, before: bytes) -> None:
    data = before + envelope.varint(number) + b"\xff"
    assert envelope.read_varint(data, len(before)) == (number, len(data) - 1)


@given(st.binary(max_size=20))
def test_read_delimited_reads_or_refuses_any_bytes(data: bytes) -> None:
    try:
        part, end = envelope.read_delimited(data, 0)
    except ProtocolError:
        return
    assert data[end - len(part) : end] == part


@pytest.mark.parametrize("data", ["", "80", "8080808080", "808080808001", "05aabb"])
def test_read_delimited_refuses_invalid_lengths(data: str) -> None:
    with pytest.raises(ProtocolError):
        envelope.read_delimited(bytes.fromhex(data), 0)
