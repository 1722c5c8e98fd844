"""Frames: the outermost layer of RocketMQ's remoting (protocol page, 1.1).

    length, 4 bytes | type, 1 byte | length of the header, 3 bytes | header | body

`length` counts all that follows it; numbers are big-endian. Rules kept here:

* A chunk of the stream may end anywhere and hold any number of frames.
* A frame beyond `limits.REMOTING_BYTES_MAX` (its first 4 bytes included), one shorter than its own
  parts, or one of an unknown type is a `ProtocolError`, told as soon as the number is there. Frames
  that stood before it in the same chunk are handed out first and the error is raised by the next
  call. After an error the connection has to be closed.

Time and memory are linear in the bytes however small the chunks are: of an incomplete frame large
chunks are kept as they are, small ones together, and looked at again when there are as many bytes
as make sense. A large body is a view of its chunk, or is joined once.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, TypeAlias

from coherer._common.other_protocols import not_a_frame
from coherer.errors import ProtocolError
from coherer.limits import REMOTING_BYTES_MAX

JSON: Final = 0
BINARY: Final = 1
"""What a header is written in: the type byte."""

PREFIX: Final = Layout(">iI")
"""Length, and the word of type and header length."""
_PREFIX_BYTES: Final = PREFIX.size
_LENGTH_BYTES: Final = 4
_HEADER_BYTES_MAX: Final = 0xFFFFFF
_LENGTH_MAX: Final = REMOTING_BYTES_MAX - _PREFIX_BYTES + 1
"""Lengths without the header's word are below this."""
_WORD_MAX: Final = BINARY << 24 | _HEADER_BYTES_MAX
_VIEW_BYTES: Final = 16 * 1024
"""Bodies from here on are views: a copy would cost more than keeping the chunk alive does."""
_PIECE_BYTES: Final = 16 * 1024
"""Chunks from here on are kept as they are."""

Frame: TypeAlias = tuple[int, bytes, "bytes | memoryview"]
"""Type, header and body."""


def prefix(kind: int, header_bytes: int, body_bytes: int) -> bytes:
    """Returns the 8 bytes before a header.

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
    """Finds the frames in a stream of bytes.

    >>> decoder = FrameDecoder()
    >>> frame = prefix(JSON, 2, 1) + b"{}" + b"x"
    >>> decoder.feed(frame[:9]), decoder.feed(frame[9:])
    ([], [(0, b'{}', b'x')])
    """

    __slots__ = ("_failure", "_have", "_need", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] = []  # of the incomplete frame
        self._have = 0
        self._need = 0
        self._failure: ProtocolError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """Takes a chunk of the stream and returns the frames that it completed.

        Args:
            data: the next bytes, any number of them.

        Raises:
            ProtocolError: the stream is not made of frames; close the connection.
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
        """How many bytes there are of an incomplete frame, 0 for none, and how many it lacks."""
        return (self._have, self._need - self._have) if self._pieces else (0, 0)

    def fail(self, error: ProtocolError) -> None:
        """Ends the stream: every further call raises the error."""
        self._failure = error
        self._pieces = []

    def _complete(self, data: bytes, frames: list[Frame]) -> int:
        """Gives the incomplete frame what it lacks; returns where the next one begins."""
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
        # The first piece has the prefix in any case.
        alone = len(piece) >= _PIECE_BYTES and (not pieces or self._have >= _PREFIX_BYTES)
        if not alone and pieces and isinstance(pieces[-1], bytearray):
            pieces[-1] += piece
        else:
            pieces.append(piece if alone else bytearray(piece))
        self._have += len(piece)

    def _cut(self, data: bytes, position: int, frames: list[Frame]) -> None:
        """Reads the frames from `position` on, and keeps the last if it is incomplete."""
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


def _frame_bytes(buffer: bytes | bytearray, start: int) -> int:
    """Returns how many bytes must be there before more can be said; the frame's size at last."""
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
        raise ProtocolError(f"A header of type {word >> 24} is unknown.")
    if word & _HEADER_BYTES_MAX > length - _LENGTH_BYTES:
        raise ProtocolError(f"A header of {word & _HEADER_BYTES_MAX} bytes does not fit its frame.")
    return _LENGTH_BYTES + length


def _joined(pieces: list[bytes | bytearray]) -> Frame:
    first, *others = pieces
    _, word = PREFIX.unpack_from(first)
    body_start = _PREFIX_BYTES + (word & _HEADER_BYTES_MAX)
    if body_start > len(first):
        first, others = b"".join(pieces), []
    header = bytes(first[_PREFIX_BYTES:body_start])
    return word >> 24, header, b"".join((memoryview(first)[body_start:], *others))
