"""Verifies records that follow each other, in a third of the time of one after the other.

Most records of a log differ in little: their addresses have 4 bytes, and many have the same topic
and properties. So `examine_run` reads the head by one call, and looks up what follows the body in a
table. `layout.examine` is the reference, and decides about every record that is different.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

import msgspec

from coherer._common.checksum import crc32
from coherer._record.layout import (
    CRC_MASK,
    FIXED_BYTES,
    HEAD_V4,
    HOSTS_V6,
    MAGIC,
    RecordSummary,
    examine,
)
from coherer.limits import TOPIC_BYTES_MAX

_HEAD: Final = struct.Struct(">IIIi4xqqi16xq20xI")
"""The fields of `HEAD_V4` that a summary needs, and the length of the body."""


_TOPIC_END_MAX: Final = 1 + TOPIC_BYTES_MAX + 2

Fields: TypeAlias = tuple[int, int, int, int, int, int, bytes, bytes]
"""The fields of a `RecordSummary`, in its order: such a tuple is made in a quarter of the time."""


def examine_run(data: bytes, position: int, end: int, begin: int) -> list[Fields]:
    """Verify the records from a position on, up to one that is not valid or not complete.

    Args:
        data: a part of the log.
        position: where the first record begins in it.
        end: where the last record ends at the latest.
        begin: the offset of `data` in the log. The offset in each record must be its position.

    Returns:
        The fields of the records that `examine` returns.
    """
    found: list[Fields] = []
    # No longer than for one call: property texts may be large, and all different.
    tails: dict[bytes, tuple[bytes, bytes] | None] = {}
    add, find, unpack = found.append, tails.get, _HEAD.unpack_from
    checksum, magic_number, head_bytes = crc32, MAGIC, HEAD_V4.size
    last = end - FIXED_BYTES
    while position <= last:
        head = unpack(data, position)
        size, magic, crc, queue_id, queue_offset, offset, sys_flag, store_ms, length = head
        next_one = position + size
        if magic != magic_number or offset != begin + position or next_one > end:
            break
        body = position + head_bytes
        body_end = body + length
        tail = data[body_end:next_one]
        names = find(tail)
        if names is None:
            names = tails[tail] = _names_in(tail)
        if names is None or sys_flag & HOSTS_V6:
            record = examine(memoryview(data), position)
            if isinstance(record, str):
                break
            add(fields_of(record))
        elif checksum(data[body:body_end]) & CRC_MASK == crc:
            topic, text = names
            add((size, queue_id, queue_offset, offset, sys_flag, store_ms, topic, text))
        else:
            break
        position = next_one
    return found


def fields_of(record: RecordSummary) -> Fields:
    """Return the fields of a summary."""
    fields: Fields = msgspec.structs.astuple(record)
    return fields


def _names_in(tail: bytes) -> tuple[bytes, bytes] | None:
    """Return topic and properties, all that follows the body of a record; None if unusual."""
    if len(tail) < 4:
        return None
    begin = tail[0] + 3
    text = tail[begin:]
    valid = 4 <= begin <= len(tail) and begin <= _TOPIC_END_MAX
    if not valid or int.from_bytes(tail[begin - 2 : begin], "big") != len(text):
        return None
    # Zeros may be a sector that was not written; where sectors begin depends on the offset.
    return None if 0 in text else (tail[1 : begin - 2], text)
