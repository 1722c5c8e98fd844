"""Records of the log as answers carry them (5.1), taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import Final

from coherer.errors import ProtocolError
from coherer.record import layout

_HEAD: Final = layout.HEAD_V4
_TAIL: Final = Struct(">iqI")
_TIME: Final = Struct(">q")

Fields = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""The fixed part of a record in the order of 5.1: size, magic, CRC, queue id, flag, queue offset,
physical offset, sys flag, born time, born host, store time, store host, attempt, prepared offset,
length of the body. A named tuple of it would take as long to make as all the rest."""


def records(data: bytes) -> Iterator[tuple[Fields, bytes, bytes, bytes]]:
    """Fields, body, topic and property text of records, one after the other.

    Raises:
        ProtocolError: the bytes are no records.
    """
    unpack = _HEAD.unpack_from
    position, end = 0, len(data)
    while position < end:
        try:
            fields: Fields = unpack(data, position)
            begin = position + _HEAD.size
            if fields[7] & layout.HOSTS_V6:
                fields, begin = long_fields(data, position, fields)
            body_end = begin + fields[14]
            topic_end = body_end + 1 + data[body_end]
            properties = topic_end + 2
            properties_bytes = data[topic_end] << 8 | data[topic_end + 1]
        except (struct_error, IndexError) as error:
            raise ProtocolError("A message in an answer is cut short.") from error
        position += fields[0]
        if properties + properties_bytes != position or position > end:
            raise ProtocolError("The lengths in a message do not fit.")
        yield (
            fields,
            data[begin:body_end],
            data[body_end + 1 : topic_end],
            data[properties:position],
        )


def long_fields(data: bytes, position: int, fields: Fields) -> tuple[Fields, int]:
    """The fields of a record with 16-byte addresses, and where its body begins."""
    born_end = position + (68 if fields[7] & layout.BORN_HOST_V6 else 56)
    store_end = born_end + (28 if fields[7] & layout.STORE_HOST_V6 else 16)
    (stored_ms,) = _TIME.unpack_from(data, born_end)
    attempt, prepared, length = _TAIL.unpack_from(data, store_end)
    born_host, store_host = data[position + 48 : born_end], data[born_end + 8 : store_end]
    tail = (born_host, stored_ms, store_host, attempt, prepared, length)
    return (*fields[:9], *tail), store_end + _TAIL.size
