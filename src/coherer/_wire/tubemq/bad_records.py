"""Explains why a TubeMQ message is bad. Called only for those that `MessageBatch` leaves out."""

from __future__ import annotations

from coherer._common.checksum import crc32
from coherer._record.bad_record import BadRecord

_CRC_MASK = 0x7FFFFFFF


def bad_record(data: bytes, checksum: int, *, message_id: int) -> BadRecord:
    """Make the record of a bad message.

    Args:
        checksum: the checksum that was sent with it.
        message_id: the broker's id.

    >>> bad_record(b"plain", 7, message_id=3).error
    'The checksum is wrong: 00000007 was sent, 192062CF arrived.'
    """
    found = crc32(data) & _CRC_MASK
    if found != checksum:
        error = f"The checksum is wrong: {checksum & 0xFFFFFFFF:08X} was sent, {found:08X} arrived."
    elif len(data) < 4:
        error = f"The attributes are malformed: {len(data)} bytes hold no length."
    else:
        size = int.from_bytes(data[:4], "big", signed=True)
        error = f"The attributes are malformed: {size} bytes do not fit into {len(data) - 4}."
    return BadRecord(None, str(message_id), error, data)


def flaw_of(body: bytes, checksum: int) -> str:
    """Return what is wrong with the body of a stored record.

    Args:
        body: the body as stored.
        checksum: the checksum as stored.
    """
    found = crc32(body) & _CRC_MASK
    if found != checksum:
        return f"The checksum is wrong: {checksum:08X} was stored, {found:08X} arrived."
    return "The body cannot be decompressed, or its attributes are malformed."
