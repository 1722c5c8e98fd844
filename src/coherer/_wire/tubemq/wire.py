"""The two ways in which protobuf writes numbers that matter outside its messages.

Protobuf's own classes read and write whole messages. Where the hot paths put bytes together by
hand (`sending`, `delivery`, `session`), they take the numbers from here, and tests hold the result
against protobuf's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from coherer.errors import ProtocolError

_MASK_64: Final = (1 << 64) - 1
_14_BITS: Final = (1 << 14) - 1
_28_BITS: Final = 1 << 28

CONTINUED: Final[tuple[bytes, ...]] = tuple(
    [(n & 0x7F | n << 1 & 0x7F00 | 0x8080).to_bytes(2, "little") for n in range(1 << 14)]
)
"""14 bits of a varint that goes on: two bytes."""

VARINTS: Final[tuple[bytes, ...]] = tuple(
    [n.to_bytes(1, "little") for n in range(0x80)]
    + [(n & 0x7F | n << 1 & 0x7F00 | 0x80).to_bytes(2, "little") for n in range(0x80, 1 << 14)]
)
"""The varints of one and two bytes: lengths are mostly among them."""


def varint(number: int) -> bytes:
    """Returns a number as protobuf writes an int32, int64 or a length.

    >>> varint(300).hex(), varint(-1).hex()
    ('ac02', 'ffffffffffffffffff01')
    """
    if 0 <= number < _28_BITS:
        if number <= _14_BITS:
            return VARINTS[number]
        return CONTINUED[number & _14_BITS] + VARINTS[number >> 14]
    number &= _MASK_64
    low = CONTINUED[number & _14_BITS] + CONTINUED[number >> 14 & _14_BITS]
    high = number >> 28
    return low + (VARINTS[high] if high <= _14_BITS else _high(high))


@lru_cache(maxsize=64)
def _high(number: int) -> bytes:
    """The upper part of a long number: the same for all ids that a broker gives for a while."""
    return varint(number)


def field(number: int, text: bytes) -> bytes:
    """Returns a field of type string, bytes or message, number below 16.

    >>> field(2, b"demo").hex()
    '120464656d6f'
    """
    return bytes((number << 3 | 2,)) + varint(len(text)) + text


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Reads a varint of at most five bytes; returns it, and where it ends.

    Raises:
        IndexError: it is longer, or the data end too early.

    >>> read_varint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    number = shift = 0
    while (byte := data[position]) >= 0x80:
        number |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if shift > 28:
            raise IndexError
    return number | byte << shift, position + 1


def read_delimited(data: bytes, position: int) -> tuple[bytes, int]:
    """Reads bytes that stand behind their length as a varint.

    Returns:
        The bytes, and where they end.

    Raises:
        ProtocolError: the data end too early, or the length is no length.
    """
    try:
        length, start = read_varint(data, position)
    except IndexError:
        raise ProtocolError("The length of a message is missing or too long.") from None
    end = start + length
    if end > len(data):
        raise ProtocolError(f"A message of {length} bytes is cut off.")
    return data[start:end], end
