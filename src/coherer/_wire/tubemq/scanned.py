"""Decodes the messages of an answer as columns, without a Python object for each.

An answer has either messages (`scan_messages`) or stored records (`scan_records`). Both functions
read a field of all messages at once with numpy. They return None if the answer is unusual; then
`MessageBatch` decodes message by message. The results are the same.

* **Messages.** A loop over the lengths finds where they begin. Their fields are varints, which are
  read byte by byte, for all messages together. Each message has to have its four fields in order,
  as Java's brokers and Coherer's write them.
* **Records.** `coherer._record.scan` finds them. Property texts are translated when attributes are
  asked for (`stored.all_attributes`). Bodies that are compressed, or payloads with attributes,
  are unusual.

Checksums are compared message by message, because zlib cannot process several at once.

The module needs numpy and pyarrow; it is imported when columns are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from coherer._record.bad_record import BadRecord
from coherer._record.compression import COMPRESSED
from coherer._record.layout import MAGIC
from coherer._record.scan import Ints, Mask, RecordScan, binary_array, body_checksums, gather, scan
from coherer._wire.tubemq.bad_records import bad_record, flaw_of
from coherer._wire.tubemq.columns import CodedTexts
from coherer._wire.tubemq.envelope import read_varint
from coherer._wire.tubemq.payload import HAS_ATTRIBUTES
from coherer._wire.tubemq.stored import all_attributes, is_raw, read_records

_MESSAGE: Final = 0x22
_VARINT_BYTES_MAX: Final = 10
_LENGTH_BYTES: Final = 4
_LOW_32: Final = 0xFFFFFFFF
_LENGTH_DELIMITED: Final = 2


class Rows(NamedTuple):
    """The messages that can be delivered.

    Args:
        bad: the other messages, by their numbers in the answer. They have no offsets.
    """

    ids: Ints
    attributes: CodedTexts
    bodies: pa.Array
    bad: Mapping[int, BadRecord]

    def part(self, count: int) -> Rows:
        """Return the first messages."""
        return Rows(self.ids[:count], self.attributes.part(count), self.bodies.slice(0, count), {})


class _Fields(NamedTuple):
    """The fields of messages: `TransferedMessage`, and where its payload begins."""

    ids: Ints
    checksums: Ints
    starts: Ints
    sizes: Ints
    flags: Ints


def scan_messages(answer: bytes) -> Rows | None:
    """Read the messages of a valid answer; None if they are not written as usual."""
    fields = _fields(answer)
    if fields is None:
        return None
    ids, sums, starts, sizes, flags = fields
    view = memoryview(answer)
    good = body_checksums(view, starts, sizes) == sums
    marked = flags & HAS_ATTRIBUTES != 0
    good &= ~marked | (sizes >= _LENGTH_BYTES)
    before = np.zeros(len(ids), np.int64)  # the number of bytes before each body
    split = np.flatnonzero(good & marked)
    lengths = gather(view, ">i4", starts[split]).astype(np.int64)
    before[split] = np.maximum(lengths, 0) + _LENGTH_BYTES
    good &= before <= sizes
    bad = {
        number: bad_record(
            answer[starts[number] : starts[number] + sizes[number]],
            int(sums[number]),
            message_id=int(ids[number]),
        )
        for number in np.flatnonzero(~good).tolist()
    }
    if bad:
        ids, starts, sizes, before = (part[good] for part in (ids, starts, sizes, before))
    skipped = np.minimum(before, _LENGTH_BYTES)
    return Rows(
        ids,
        CodedTexts.of(binary_array(view, starts + skipped, before - skipped)),
        binary_array(view, starts + before, sizes - before),
        bad,
    )


def scan_records(records: memoryview, offsets: range, partition: int, first_id: int) -> Rows | None:
    """Read stored records; None if `stored.read_records` returns None.

    Args:
        records: records as they are in the log.
        offsets: their offsets in the partition.
        first_id: the id of a message at physical offset 0.
    """
    found = scan(records)
    if (
        found.damaged
        or len(found) != len(offsets)
        or (found.numbers(">u4", 4) != MAGIC).any()
        or (found.queue_ids != partition).any()
        or (found.queue_offsets != np.arange(offsets.start, offsets.stop)).any()
    ):
        return None
    rows = _usual_records(found, first_id)
    if rows is not None:
        return rows
    messages = read_records(bytes(records), offsets, partition, first_id)
    return messages and Rows(
        np.array(messages.ids, np.int64),
        CodedTexts(messages.attributes),
        pa.array(messages.bodies, pa.binary()),
        messages.bad,
    )


def _usual_records(found: RecordScan, first_id: int) -> Rows | None:
    """Read all records at once; None if a body is compressed or a payload with attributes."""
    if (found.sys_flags & COMPRESSED).any():
        return None
    good = found.intact()
    bad: dict[int, BadRecord] = {}
    if len(good) < len(found):
        bad = _bad_records(found, np.isin(found.starts, good.starts, invert=True), first_id)
    coded = good.property_texts().dictionary_encode()
    texts = cast("list[bytes]", coded.dictionary.to_pylist())
    if any(map(is_raw, texts)):
        return None
    attributes = CodedTexts(texts, coded.indices, all_attributes)
    return Rows(good.physical_offsets + first_id, attributes, good.bodies(), bad)


def _bad_records(found: RecordScan, which: Mask, first_id: int) -> dict[int, BadRecord]:
    """Describe some records as bad ones, by their numbers."""
    numbers = np.flatnonzero(which).tolist()
    bad = found.pick(which)
    return {
        number: BadRecord(None, str(physical + first_id), flaw_of(body, checksum), body)
        for number, physical, checksum, body in zip(
            numbers,
            bad.physical_offsets.tolist(),
            bad.checksums.tolist(),
            cast("list[bytes]", bad.stored_bodies().to_pylist()),
            strict=True,
        )
    }


def _fields(answer: bytes) -> _Fields | None:
    """Return the fields of all messages; None if they are not written as usual."""
    positions = _positions(answer)
    data = np.frombuffer(answer, np.uint8)
    if not len(positions):
        return _Fields(positions, positions, positions, positions, positions)
    try:
        ids, sums_at = _varints(data, positions + 1)
        sums, sizes_at = _varints(data, sums_at + 1)
        sizes, starts = _varints(data, sizes_at + 1)
        flags_at = starts + sizes
        flags, ends = _varints(data, flags_at + 1)
        tags = [data[positions], data[sums_at], data[sizes_at], data[flags_at]]
    except IndexError:
        return None
    # A message of 128 bytes has a length of two bytes, and so on; one byte is the field's number.
    lengths = ends - positions
    heads = 2 + (lengths >= 1 << 7) + (lengths >= 1 << 14) + (lengths >= 1 << 21)
    usual = (
        all((tag == number).all() for tag, number in zip(tags, b"\x08\x10\x1a\x20", strict=True))
        and (sizes >= 0).all()
        and (ends[:-1] + heads[1:] == positions[1:]).all()
    )
    return _Fields(ids, sums & _LOW_32, starts, sizes, flags) if usual else None


def _positions(answer: bytes) -> Ints:
    """Return where the messages of a valid answer begin."""
    begins: list[int] = []
    at, end = 0, len(answer)
    while at < end:
        if answer[at] != _MESSAGE:
            at = _after_field(answer, at)
            continue
        size = answer[at + 1]
        at += 2
        if size >= 1 << 7:
            size, at = size & 0x7F | answer[at] << 7, at + 1
            if size >= 1 << 14:
                size, at = read_varint(answer, at - 2)
        begins.append(at)
        at += size
    return np.array(begins, np.int64)


def _after_field(answer: bytes, at: int) -> int:
    """Return the end of the field at a position: a varint, or bytes with their length."""
    key, at = read_varint(answer, at)
    while key & 7 == 0 and answer[at] >= 0x80:
        at += 1
    if key & 7 == 0:
        return at + 1
    if key & 7 != _LENGTH_DELIMITED:
        raise IndexError
    size, at = read_varint(answer, at)
    return at + size


def _varints(data: np.ndarray, at: Ints) -> tuple[Ints, Ints]:
    """Return the varints at some positions, and the positions after them.

    Raises:
        IndexError: they exceed the data, or have more bytes than protobuf allows.
    """
    octets = data[at].astype(np.int64)
    values, at = octets & 0x7F, at + 1
    more = octets >= 1 << 7
    shift = 0
    while more.any():
        shift += 7
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise IndexError
        octets = np.where(more, data[np.where(more, at, 0)], 0).astype(np.int64)
        values |= (octets & 0x7F) << shift
        at = at + more
        more = octets >= 1 << 7
    return values, at
