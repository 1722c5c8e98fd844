"""What master and slave say to each other over the replication port. No IO.

A slave says how far its log goes: 8 bytes, over and over. A master sends pieces of its log, each
behind a head of 12 bytes: where it lies, and its size; a piece of size 0 says that it is alive.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from coherer.errors import ProtocolError

REPORT: Final = struct.Struct(">q")
HEAD: Final = struct.Struct(">qi")
PIECE_BYTES_MAX: Final = 32 * 1024
"""Java's masters send no more at once (`haTransferBatchSize`)."""
_PIECE_LIMIT_BYTES: Final = 64 * 1024 * 1024


class Piece(NamedTuple):
    """A piece of a master's log and the offset where it lies."""

    offset: int
    data: bytes


class Reports:
    """Reads what slaves say.

    >>> reports = Reports()
    >>> reports.last(bytes(7)), reports.last(bytes(1)), reports.last(REPORT.pack(5) + b"x")
    (None, 0, 5)
    """

    def __init__(self) -> None:
        self._rest = b""

    def last(self, data: bytes) -> int | None:
        """Take bytes; give the newest report if there is one: older ones do not matter."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        if not whole:
            return None
        (offset,) = REPORT.unpack_from(data, whole - REPORT.size)
        return int(offset)


class Pieces:
    """Reads what a master sends.

    >>> [tuple(piece) for piece in Pieces().feed(HEAD.pack(4096, 3) + b"abc" + HEAD.pack(4099, 0))]
    [(4096, b'abc'), (4099, b'')]
    """

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Take bytes; give the pieces that are whole.

        Raises:
            ProtocolError: a size cannot be.
        """
        rest = self._rest
        rest += data
        at = 0
        while len(rest) - at >= HEAD.size:
            offset, size = HEAD.unpack_from(rest, at)
            if not 0 <= size <= _PIECE_LIMIT_BYTES or offset < 0:
                raise ProtocolError(f"A master sends {size} bytes of offset {offset}.")
            end = at + HEAD.size + size
            if end > len(rest):
                break
            yield Piece(offset, bytes(rest[at + HEAD.size : end]))
            at = end
        del rest[:at]
