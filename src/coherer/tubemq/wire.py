"""The two ways in which protobuf writes numbers that matter outside its messages.

Protobuf's own classes read and write whole messages. Where the hot paths put bytes together by
hand (`sending`, `delivery`, `session`), they take the numbers from here, and tests hold the result
against protobuf's.
"""

from __future__ import annotations

from typing import Final

from coherer.errors import ProtocolError

_MASK_64: Final = (1 << 64) - 1
VARINTS: Final = tuple(
    bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(0x4000)
)
"""The varints of one and two bytes: lengths are mostly among them."""

_CONTINUED: Final = tuple(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(0x4000))


def varint(number: int) -> bytes:
    """Returns a number as protobuf writes an int32, int64 or a length.

    >>> varint(300).hex(), varint(-1).hex()
    ('ac02', 'ffffffffffffffffff01')
    """
    if 0 <= number < 0x4000:
        return VARINTS[number]
    number &= _MASK_64
    text = b""
    while number >= 0x4000:
        text += _CONTINUED[number & 0x3FFF]
        number >>= 14
    return text + VARINTS[number]


def field(number: int, text: bytes) -> bytes:
    """Returns a field of type string, bytes or message, number below 16.

    >>> field(2, b"demo").hex()
    '120464656d6f'
    """
    return bytes((number << 3 | 2,)) + varint(len(text)) + text


def delimited(data: bytes, position: int) -> tuple[bytes, int]:
    """Reads bytes that stand behind their length as a varint.

    Returns:
        The bytes, and where they end.

    Raises:
        ProtocolError: the data end too early, or the length is no length.
    """
    length = shift = 0
    for at in range(position, min(position + 5, len(data))):
        byte = data[at]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            end = at + 1 + length
            if end > len(data):
                raise ProtocolError(f"A message of {length} bytes is cut off.")
            return data[at + 1 : end], end
        shift += 7
    raise ProtocolError("The length of a message is missing or too long.")
