"""The frames of the replication protocol, without IO (docs/protocol/rocketmq.md, section 6.12).

A slave reports the end of its log as 8 bytes, repeatedly. A master sends pieces of its log, each
after a header of 12 bytes with its offset and size. A piece of size 0 is a heartbeat. Two negative
offsets belong to the handshake of `signing`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from coherer.errors import ProtocolError

REPORT: Final = struct.Struct(">q")
HEAD: Final = struct.Struct(">qi")
PIECE_BYTES_MAX: Final = 32 * 1024
"""Java's masters send no larger pieces (`haTransferBatchSize`)."""
HELLO: Final = -1
"""The report with which a slave asks whether it has to sign, and the offset of the answer."""
ANSWER: Final = -2
"""Stands before a slave's signature."""
_HELLO_BYTES_MAX: Final = 64
_PIECE_LIMIT_BYTES: Final = 64 * 1024 * 1024


class Piece(NamedTuple):
    """A piece of a master's log, and its offset."""

    offset: int
    data: bytes


class Reports:
    """Parses the reports of a slave.

    >>> reports = Reports()
    >>> reports.last(bytes(7)), reports.last(bytes(1)), reports.last(REPORT.pack(5) + b"x")
    (None, 0, 5)
    """

    def __init__(self) -> None:
        self._rest = b""

    def last(self, data: bytes) -> int | None:
        """Take received bytes; return the newest complete report, or None."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        if not whole:
            return None
        (offset,) = REPORT.unpack_from(data, whole - REPORT.size)
        return int(offset)


class Pieces:
    """Parses the pieces that a master sends.

    >>> [tuple(piece) for piece in Pieces().feed(HEAD.pack(4096, 3) + b"abc" + HEAD.pack(4099, 0))]
    [(4096, b'abc'), (4099, b'')]
    """

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Take received bytes; yield the complete pieces.

        Raises:
            ProtocolError: a header is invalid.
        """
        rest = self._rest
        rest += data
        at = 0
        while len(rest) - at >= HEAD.size:
            offset, size = HEAD.unpack_from(rest, at)
            largest = _HELLO_BYTES_MAX if offset == HELLO else _PIECE_LIMIT_BYTES
            if not 0 <= size <= largest or offset < HELLO:
                raise ProtocolError(f"The master sent {size} bytes at offset {offset}.")
            end = at + HEAD.size + size
            if end > len(rest):
                break
            yield Piece(offset, bytes(rest[at + HEAD.size : end]))
            at = end
        del rest[:at]
