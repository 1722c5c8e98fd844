"""Finds the bad records of a pull, and why they are bad. Called only if messages are missing."""

from __future__ import annotations

from coherer._common.checksum import crc32
from coherer._record import compression, layout
from coherer._record.bad_record import BadRecord
from coherer._record.records import RecordFields, next_record, record_at
from coherer.errors import DamagedStoreError
from coherer.limits import MESSAGE_BYTES_MAX


def bad_records(data: bytes, queue_id: int, offset: int, next_offset: int) -> list[BadRecord]:
    r"""Return the bad records of a pull.

    Args:
        offset: first offset of the pull.
        next_offset: first offset of the next pull. A damaged record whose own offset is not
            possible here gets the offset after the previous record's.

    >>> record = layout.encode("demo", b"hello", b"", queue_id=0, queue_offset=7,
    ...                        physical_offset=0, store_ms=0)
    >>> for one in bad_records(record.replace(b"hello", b"jello"), 0, 7, 8):
    ...     print(one.offset, one.data, one.error)
    7 b'jello' The checksum is wrong: 3610A686 was stored, 4CD0F5E6 arrived.
    """
    found: list[BadRecord] = []
    position, at = 0, offset
    while position < len(data):
        record = record_at(data, position)
        if record is None:
            end = next_record(data, position, queue_id, at - 1)
            piece = data[position:end]
            claimed = int.from_bytes(piece[20:28], "big") if len(piece) >= 28 else at
            error = "The lengths in the record do not fit."
            own = claimed if at <= claimed < next_offset else at
            found.append(BadRecord(own, "", error, piece))
            position = end
        else:
            fields, body = record[0], record[1]
            own = fields[5]
            if not offset <= own < next_offset:
                error = f"Its offset {own} is not one of the pull, {offset} to {next_offset}."
                own = at
                found.append(BadRecord(own, message_id(fields), error, body))
            elif reason := _reason(fields, body):
                found.append(BadRecord(own, message_id(fields), reason, body))
            position += fields[0]
        at = max(at, own + 1)
    return [one for one in found if one.offset is None or one.offset < next_offset]


def message_id(fields: RecordFields) -> str:
    """Return the offset message id of a record."""
    return f"{fields[11].hex().upper()}{fields[6]:016X}"


def _reason(fields: RecordFields, body: bytes) -> str | None:
    stored, arrived = fields[2], crc32(body) & layout.CRC_MASK
    if stored != arrived:
        return f"The checksum is wrong: {stored:08X} was stored, {arrived:08X} arrived."
    if fields[7] & compression.COMPRESSED:
        try:
            compression.decompress(body, limit_bytes=MESSAGE_BYTES_MAX)
        except DamagedStoreError as error:
            return f"The body cannot be decompressed: {error}"
    return None
