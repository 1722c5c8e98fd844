"""Finds stored records in a buffer, one by one (docs/protocol/rocketmq.md, section 5.1).

This is the reference for `_record.scan`, which finds them many at a time. Only lengths are verified
here, not checksums.

A disk may have damaged a record, its lengths too. The next record is found where the damaged one
says it ends, if a record begins there; otherwise at the next bytes that look like a record.
"""

from __future__ import annotations

import re
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
_find_magic: Final = re.compile(re.escape(_MAGIC)).search  # unlike `find`, in any buffer

RecordFields = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""The fixed part of a record in the order of section 5.1: size, magic, CRC, queue id, flag, queue
offset, physical offset, sys flag, born time, born host, store time, store host, attempt, prepared
offset, length of the body. Creating named tuples would double the time of decoding."""

Record = tuple[RecordFields, bytes, bytes, bytes]
"""Fixed fields, body, topic and property text."""


def records(data: bytes) -> Iterator[Record | None]:
    """Iterate over records; None for one whose lengths do not fit."""
    position, end = 0, len(data)
    while position < end:
        record = record_at(data, position)
        yield record
        position = next_record(data, position) if record is None else position + record[0][0]


def record_at(data: bytes, position: int) -> Record | None:
    """Return the record at a position; None if its lengths do not fit."""
    found = _parts(data, position)
    if found is None:
        return None
    fields, begin, body_end, topic_end = found
    end = position + fields[0]
    return fields, data[begin:body_end], data[body_end + 1 : topic_end], data[topic_end + 2 : end]


def _parts(data: bytes | memoryview, position: int) -> tuple[RecordFields, int, int, int] | None:
    """Return fields, begin of the body, end of body and topic; None if the lengths do not fit."""
    try:
        fields: RecordFields = _HEAD.unpack_from(data, position)
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


def next_record(
    data: bytes | memoryview, position: int, queue_id: int | None = None, above: int = -1
) -> int:
    """Return the position of the next record after a damaged one, or the end of the data.

    Args:
        data: records.
        position: position of the damaged record.
        queue_id: the queue of all records; None for records of several queues.
        above: with `queue_id`, the offset of the next record is higher than this.
    """

    def fits(at: int) -> bool:
        parts = _parts(data, at) if data[at + 4 : at + 8] == _MAGIC else None
        if parts is None:
            return False
        return queue_id is None or (parts[0][3] == queue_id and parts[0][5] > above)

    if position + _SIZE.size <= len(data):
        claimed: int = position + _SIZE.unpack_from(data, position)[0]
        if claimed == len(data) or (position < claimed < len(data) and fits(claimed)):
            return claimed
    found = _find_magic(data, position + 8)
    while found:
        if fits(found.start() - 4):
            return found.start() - 4
        found = _find_magic(data, found.start() + 1)
    return len(data)


def long_fields(
    data: bytes | memoryview, position: int, fields: RecordFields
) -> tuple[RecordFields, int]:
    """Return the fields of a record with 16-byte addresses, and the begin of its body."""
    born_end = position + (68 if fields[7] & layout.BORN_HOST_V6 else 56)
    store_end = born_end + (28 if fields[7] & layout.STORE_HOST_V6 else 16)
    (stored_ms,) = _TIME.unpack_from(data, born_end)
    attempt, prepared, length = _TAIL.unpack_from(data, store_end)
    born_host = bytes(data[position + 48 : born_end])
    store_host = bytes(data[born_end + 8 : store_end])
    tail = (born_host, stored_ms, store_host, attempt, prepared, length)
    return (*fields[:9], *tail), store_end + _TAIL.size
