"""Frames: the outermost layer of RocketMQ's remoting (protocol page, 1.1).

    length, 4 bytes | type, 1 byte | length of the header, 3 bytes | header | body

`length` counts all that follows it; numbers are big-endian. Rules kept here:

* A chunk of the stream may end anywhere and hold any number of frames.
* A frame beyond `limits.REMOTING_BYTES_MAX` (its first 4 bytes included), one shorter than its own
  parts, or one of an unknown type is a `ProtocolError`, told as soon as the number is there. Frames
  that stood before it in the same chunk are handed out first and the error is raised by the next
  call. After an error the connection has to be closed.

Time is linear in the bytes however small the chunks are: an incomplete frame is kept in a buffer of
its own, together with how many bytes it must have before looking at it again makes sense. A large
body is a view of the chunk or of that buffer, never another copy.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, TypeAlias

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

    __slots__ = ("_failure", "_need", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
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
            position = self._complete(data, frames) if self._rest else 0
            self._cut(data, position, frames)
        except ProtocolError as error:
            self.fail(error)
            if not frames:
                raise
        return frames

    def fail(self, error: ProtocolError) -> None:
        """Ends the stream: every further call raises the error."""
        self._failure = error
        self._rest = bytearray()

    def _complete(self, data: bytes, frames: list[Frame]) -> int:
        """Gives the incomplete frame what it lacks; returns where the next one begins."""
        rest, position = self._rest, 0
        while True:
            piece = memoryview(data)[position : position + self._need - len(rest)]
            rest += piece
            position += len(piece)
            if len(rest) < self._need:
                return position
            whole = _frame_bytes(rest, 0)
            if whole <= len(rest):
                break
            self._need = whole
        self._rest = bytearray()
        frames.append(_parts(rest, 0, whole))
        return position

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
        self._rest = bytearray(memoryview(data)[position:])
        self._need = need


def _frame_bytes(buffer: bytes | bytearray, start: int) -> int:
    """Returns how many bytes must be there before more can be said; the frame's size at last."""
    have = len(buffer) - start
    if have < _LENGTH_BYTES:
        return _LENGTH_BYTES
    length = int.from_bytes(buffer[start : start + _LENGTH_BYTES], "big", signed=True)
    if not _LENGTH_BYTES <= length <= REMOTING_BYTES_MAX - _LENGTH_BYTES:
        raise ProtocolError(f"A frame of length {length} is none.")
    if have < _PREFIX_BYTES:
        return _PREFIX_BYTES
    _, word = PREFIX.unpack_from(buffer, start)
    if word >> 24 > BINARY:
        raise ProtocolError(f"A header of type {word >> 24} is unknown.")
    if word & _HEADER_BYTES_MAX > length - _LENGTH_BYTES:
        raise ProtocolError(f"A header of {word & _HEADER_BYTES_MAX} bytes does not fit its frame.")
    return _LENGTH_BYTES + length


def _parts(buffer: bytes | bytearray, start: int, stop: int) -> Frame:
    _, word = PREFIX.unpack_from(buffer, start)
    header_start = start + _PREFIX_BYTES
    body_start = header_start + (word & _HEADER_BYTES_MAX)
    header = bytes(buffer[header_start:body_start])
    if stop - body_start >= _VIEW_BYTES:
        return word >> 24, header, memoryview(buffer)[body_start:stop]
    return word >> 24, header, bytes(buffer[body_start:stop])
