"""Frames: the outermost layer of RocketMQ's remoting (docs/protocol/rocketmq.md, section 1.1).

    length, 4 bytes | type, 1 byte | length of the header, 3 bytes | header | body

`length` counts everything after it; numbers are big-endian. The rules:

* A chunk of the stream may end anywhere and contain any number of frames.
* A frame larger than `limits.REMOTING_BYTES_MAX` (including its first 4 bytes), shorter than its
  parts, or of an unknown type is a `ProtocolError`, raised as soon as the number has arrived. If
  the same chunk contains complete frames before it, these are returned and the next call raises.
  After an error the connection has to be closed.

Time and memory are linear in the number of bytes however small the chunks are: of an incomplete
frame, large chunks are kept unchanged and small ones are joined, and it is examined again only
when enough bytes have arrived. A large body is a view of its chunk, or is joined once.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, TypeAlias

from coherer._common.other_protocols import not_a_frame
from coherer._wire.pieces import Pieces, add_piece
from coherer.errors import ProtocolError
from coherer.limits import REMOTING_BYTES_MAX

JSON: Final = 0
BINARY: Final = 1
"""The serialization of the header: the type byte."""

PREFIX: Final = Layout(">iI")
"""The length, and the word with type and header length."""
_PREFIX_BYTES: Final = PREFIX.size
_LENGTH_BYTES: Final = 4
_HEADER_BYTES_MAX: Final = 0xFFFFFF
_LENGTH_MAX: Final = REMOTING_BYTES_MAX - _PREFIX_BYTES + 1
"""Lengths without that word are below this."""
_WORD_MAX: Final = BINARY << 24 | _HEADER_BYTES_MAX
_VIEW_BYTES: Final = 16 * 1024
"""Bodies of this size or more are views: a copy would cost more than keeping the chunk alive."""

Frame: TypeAlias = tuple[int, bytes, "bytes | memoryview"]
"""Type, header and body."""


def prefix(kind: int, header_bytes: int, body_bytes: int) -> bytes:
    """Return the 8 bytes before a header.

    Raises:
        ProtocolError: the frame would be larger than any peer accepts.

    >>> prefix(JSON, 133, 0).hex()
    '0000008900000085'
    """
    length = _LENGTH_BYTES + header_bytes + body_bytes
    if length + _LENGTH_BYTES > REMOTING_BYTES_MAX or header_bytes > _HEADER_BYTES_MAX:
        raise ProtocolError(
            f"A frame of {length + _LENGTH_BYTES} bytes is larger than {REMOTING_BYTES_MAX}."
        )
    return PREFIX.pack(length, kind << 24 | header_bytes)


class FrameDecoder:
    """Splits a stream of bytes into frames.

    >>> decoder = FrameDecoder()
    >>> frame = prefix(JSON, 2, 1) + b"{}" + b"x"
    >>> decoder.feed(frame[:9]), decoder.feed(frame[9:])
    ([], [(0, b'{}', b'x')])
    """

    __slots__ = ("_failure", "_have", "_need", "_pieces")

    def __init__(self) -> None:
        self._pieces: Pieces = []  # of the incomplete frame; the first has the whole prefix
        self._have = 0
        self._need = 0
        self._failure: ProtocolError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Take a chunk of the stream and return the frames that it completes.

        Args:
            data: the next bytes, any number of them.

        Raises:
            ProtocolError: the stream does not consist of frames; close the connection.
        """
        if self._failure is not None:
            raise self._failure
        frames: list[Frame] = []
        try:
            position = self._complete(data, frames) if self._pieces else 0
            self._cut(data, position, frames)
        except ProtocolError as error:
            self.fail(error)
            if not frames:
                raise
        return frames

    @property
    def unfinished(self) -> tuple[int, int]:
        """The bytes received of an incomplete frame, 0 for none, and the bytes that it lacks."""
        return (self._have, self._need - self._have) if self._pieces else (0, 0)

    def fail(self, error: ProtocolError) -> None:
        """End the stream: every further call raises the error."""
        self._failure = error
        self._pieces = []

    def _complete(self, data: bytes, frames: list[Frame]) -> int:
        """Complete the incomplete frame; return the position of the next one."""
        position = 0
        while True:
            end = position + self._need - self._have
            self._add(data[position:end])
            if end > len(data):
                return len(data)
            position = end
            self._need = _frame_bytes(self._pieces[0], 0)
            if self._need <= self._have:
                frames.append(_joined(self._pieces))
                self._pieces = []
                return position

    def _add(self, piece: bytes) -> None:
        pieces = self._pieces
        if pieces and self._have < _PREFIX_BYTES:
            pieces[0] = bytearray(pieces[0]) + piece
        else:
            add_piece(pieces, piece)
        self._have += len(piece)

    def _cut(self, data: bytes, position: int, frames: list[Frame]) -> None:
        """Split the frames from `position` on, and keep the last one if it is incomplete."""
        size = len(data)
        while position < size:
            if size - position < _PREFIX_BYTES:
                self._keep(data, position, _frame_bytes(data, position))
                return
            length, word = PREFIX.unpack_from(data, position)
            header_bytes = word & _HEADER_BYTES_MAX
            stop = position + _LENGTH_BYTES + length
            if word > _WORD_MAX or not header_bytes <= length - _LENGTH_BYTES < _LENGTH_MAX:
                _frame_bytes(data, position)  # raises
            if stop > size:
                self._keep(data, position, stop - position)
                return
            header_start = position + _PREFIX_BYTES
            start = header_start + header_bytes
            body = memoryview(data)[start:stop] if stop - start >= _VIEW_BYTES else data[start:stop]
            frames.append((word >> 24, data[header_start:start], body))
            position = stop

    def _keep(self, data: bytes, position: int, need: int) -> None:
        self._have, self._need = 0, need
        self._add(data[position:])


def _frame_bytes(buffer: bytes | bytearray | memoryview, start: int) -> int:
    """Return how many bytes the next decision needs; in the end, the size of the frame."""
    have = len(buffer) - start
    if have < _LENGTH_BYTES:
        return _LENGTH_BYTES
    length = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "big", signed=True)
    if not _LENGTH_BYTES <= length <= REMOTING_BYTES_MAX - _LENGTH_BYTES:
        raise ProtocolError(not_a_frame("RocketMQ", bytes(buffer[start : start + _PREFIX_BYTES])))
    if have < _PREFIX_BYTES:
        return _PREFIX_BYTES
    _, word = PREFIX.unpack_from(buffer, start)
    if word >> 24 > BINARY:
        raise ProtocolError(f"Unknown type of header: {word >> 24}.")
    if word & _HEADER_BYTES_MAX > length - _LENGTH_BYTES:
        raise ProtocolError(f"A header of {word & _HEADER_BYTES_MAX} bytes exceeds its frame.")
    return _LENGTH_BYTES + length


def _joined(pieces: Pieces) -> Frame:
    first, *others = pieces
    _, word = PREFIX.unpack_from(first)
    body_start = _PREFIX_BYTES + (word & _HEADER_BYTES_MAX)
    if body_start > len(first):
        first, others = b"".join(pieces), []
    header = bytes(first[_PREFIX_BYTES:body_start])
    return word >> 24, header, b"".join((memoryview(first)[body_start:], *others))
