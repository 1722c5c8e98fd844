"""Records of the log as answers carry them (5.1), taken apart.

A disk may have damaged a record, its lengths too. The records behind it are found again: where it
says that it ends, if one begins there; otherwise at the next bytes that look like a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import Final

from coherer._record import layout

_HEAD: Final = layout.HEAD_V4
_TAIL: Final = Struct(">iqI")
_TIME: Final = Struct(">q")
_SIZE: Final = Struct(">I")
_MAGIC: Final = _SIZE.pack(layout.MAGIC)

Fields = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""The fixed part of a record in the order of 5.1: size, magic, CRC, queue id, flag, queue offset,
physical offset, sys flag, born time, born host, store time, store host, attempt, prepared offset,
length of the body. A named tuple of it would take as long to make as all the rest."""


Record = tuple[Fields, bytes, bytes, bytes]
"""Fields, body, topic and property text."""


def records(data: bytes) -> Iterator[Record | None]:
    """Records, one after the other; None for one whose lengths do not fit."""
    position, end = 0, len(data)
    while position < end:
        record = record_at(data, position)
        yield record
        position = next_record(data, position) if record is None else position + record[0][0]


def record_at(data: bytes, position: int) -> Record | None:
    """The record that begins at a position; None when its lengths do not fit."""
    found = _parts(data, position)
    if found is None:
        return None
    fields, begin, body_end, topic_end = found
    end = position + fields[0]
    return fields, data[begin:body_end], data[body_end + 1 : topic_end], data[topic_end + 2 : end]


def _parts(data: bytes, position: int) -> tuple[Fields, int, int, int] | None:
    """Fields, where the body begins, where body and topic end; None when the lengths do not fit."""
    try:
        fields: Fields = _HEAD.unpack_from(data, position)
        begin = position + _HEAD.size
        if fields[7] & layout.HOSTS_V6:
            fields, begin = long_fields(data, position, fields)
        body_end = begin + fields[14]
        topic_end = body_end + 1 + data[body_end]
        properties_bytes = data[topic_end] << 8 | data[topic_end + 1]
    except (struct_error, IndexError):
        return None
    end = topic_end + 2 + properties_bytes
    return (
        (fields, begin, body_end, topic_end) if position + fields[0] == end <= len(data) else None
    )


def next_record(data: bytes, position: int, queue_id: int | None = None, above: int = -1) -> int:
    """Where the next record begins behind one whose lengths do not fit; the end when there is none.

    Args:
        data: records.
        position: where the damaged one begins.
        queue_id: the queue that all of them are of; None when there may be several.
        above: the offset of the next one is higher, where there is one queue.
    """

    def fits(at: int) -> bool:
        parts = _parts(data, at) if data.startswith(_MAGIC, at + 4) else None
        if parts is None:
            return False
        return queue_id is None or (parts[0][3] == queue_id and parts[0][5] > above)

    if position + _SIZE.size <= len(data):
        told: int = position + _SIZE.unpack_from(data, position)[0]
        if told == len(data) or (position < told < len(data) and fits(told)):
            return told
    found = data.find(_MAGIC, position + 8)
    while found >= 0:
        if found - 4 > position and fits(found - 4):
            return found - 4
        found = data.find(_MAGIC, found + 1)
    return len(data)


def long_fields(data: bytes, position: int, fields: Fields) -> tuple[Fields, int]:
    """The fields of a record with 16-byte addresses, and where its body begins."""
    born_end = position + (68 if fields[7] & layout.BORN_HOST_V6 else 56)
    store_end = born_end + (28 if fields[7] & layout.STORE_HOST_V6 else 16)
    (stored_ms,) = _TIME.unpack_from(data, born_end)
    attempt, prepared, length = _TAIL.unpack_from(data, store_end)
    born_host, store_host = data[position + 48 : born_end], data[born_end + 8 : store_end]
    tail = (born_host, stored_ms, store_host, attempt, prepared, length)
    return (*fields[:9], *tail), store_end + _TAIL.size
