"""A record that arrived but cannot be delivered as a message."""

from __future__ import annotations

import msgspec


class BadRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that cannot be decoded.

    Args:
        offset: its offset; None if offsets are not exact, or if it cannot be read.
        id: the broker's id for the message, as text; empty if it cannot be read.
        error: what is wrong with it.
        data: its bytes as they arrived: the body if the lengths fit, otherwise the whole record.
    """

    offset: int | None
    id: str
    error: str
    data: bytes
