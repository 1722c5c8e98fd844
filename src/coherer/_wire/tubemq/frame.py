"""Frames: the outermost layer of TubeMQ's RPC (docs/protocol/tubemq.md, section 1.1).

A frame has four parts; all numbers are big-endian and 32 bits wide:

    token 0xFF7FF4FE | serial number | number of blocks | (length, bytes) for each block

The payload is the concatenation of the blocks; block boundaries have no meaning. The rules:

* On writing, every block but the last has 8,192 bytes, as old decoders require.
* On reading, a block may have any length, including zero, and a chunk of the stream may end
  anywhere and contain any number of frames.
* A wrong token, zero or too many blocks, a negative length, or a payload larger than
  `limits.FRAME_BYTES_MAX` is a `ProtocolError`, raised as soon as the number has arrived. If the
  same chunk contains complete frames before it, these are returned and the next call raises, so
  that the result does not depend on how the network splits the bytes. After an error the next
  frame cannot be found: the connection has to be closed.

Time is linear in the number of bytes however small the chunks are, and memory is one frame and one
chunk. An incomplete frame is kept in its own buffer (`_rest`), with the number of bytes that it
needs before the next attempt (`_need`) and the progress through its blocks (`_at`: bytes, `_left`:
blocks to come, `_allowed`: bytes that these may have). The buffer takes only the bytes it lacks
from the next chunk; all others are read in place. If the last block is large, what arrives of it
later is kept in pieces (`_pieces`), which are joined once.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, TypeAlias

from coherer._common.other_protocols import not_a_frame
from coherer._wire.pieces import Pieces, add_piece
from coherer.errors import ProtocolError
from coherer.limits import BLOCK_BYTES, FRAME_BLOCKS_MAX, FRAME_BYTES_MAX

TOKEN: Final = 0xFF7FF4FE
HEAD: Final = Layout(">Iii")  # token, serial number, number of blocks
HEAD_ONE: Final = Layout(">Iiii")  # and the length of the first block
LENGTH: Final = Layout(">i")

Frame: TypeAlias = tuple[int, list[memoryview], int]
"""Serial number, blocks or their pieces, and the end of the frame."""

_LARGE_BYTES: Final = 64 * 1024
"""A last block that lacks at least this much is kept in pieces."""


def encode_frame(serial: int, payload: bytes) -> bytes:
    """Return the frame around a payload.

    Args:
        serial: the serial number, a signed 32-bit number.
        payload: the frame's contents.

    >>> encode_frame(1, b"ab").hex()
    'ff7ff4fe0000000100000001000000026162'
    """
    size = len(payload)
    if size <= BLOCK_BYTES:
        return HEAD_ONE.pack(TOKEN, serial, 1, size) + payload
    parts: list[bytes | memoryview] = [HEAD.pack(TOKEN, serial, -(-size // BLOCK_BYTES))]
    view = memoryview(payload)
    for start in range(0, size, BLOCK_BYTES):
        block = view[start : start + BLOCK_BYTES]
        parts.append(LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


class FrameDecoder:
    """Finds the frames in a stream of bytes.

    `feed` does everything. `complete`, `next_frame` and `keep` are its three steps, for sessions
    that recognize common frames themselves and avoid copying each one.

    >>> decoder = FrameDecoder()
    >>> decoder.feed(encode_frame(7, b"hello")[:10])
    []
    >>> decoder.feed(encode_frame(7, b"hello")[10:])
    [(7, b'hello')]
    """

    __slots__ = ("_allowed", "_at", "_failure", "_left", "_need", "_pieces", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._pieces: Pieces = []
        self._need = 0
        self._at = 0
        self._left = 0
        self._allowed = 0
        self._failure: ProtocolError | None = None

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Take a chunk of the stream and return the frames that it completes.

        Args:
            data: the next bytes, any number of them.

        Returns:
            Serial number and payload of each frame, in order.

        Raises:
            ProtocolError: the stream does not consist of frames; close the connection.
        """
        frames: list[tuple[int, bytes]] = []
        frame, position = self.complete(data)
        try:
            while frame is not None or (frame := self.next_frame(data, position)) is not None:
                frames.append((frame[0], b"".join(frame[1])))
                position = frame[2]
                frame = None
        except ProtocolError as error:
            self.fail(error)
            if not frames:
                raise
        else:
            self.keep(data, position)
        return frames

    @property
    def unfinished(self) -> tuple[int, int]:
        """The bytes received of an incomplete frame, 0 for none, and the bytes that it lacks.

        Blocks that have not begun count as full; that is an upper bound for Java's peers.
        """
        kept = len(self._rest) + sum(map(len, self._pieces))
        if not kept:
            return 0, 0
        begun = 1 if self._need > self._at + LENGTH.size else 0
        blocks = (self._left - begun) * BLOCK_BYTES if self._at else 0
        return kept, self._need - kept + min(blocks, self._allowed)

    def complete(self, data: bytes) -> tuple[Frame | None, int]:
        """Complete the incomplete frame, if there is one.

        Returns:
            That frame, or None; and the position in `data` of the next frame.

        Raises:
            ProtocolError: the stream is not valid, here or earlier.
        """
        if self._failure is not None:
            raise self._failure
        rest, pieces, position = self._rest, self._pieces, 0
        while rest:
            lacking = self._need - len(rest) - sum(map(len, pieces))
            piece = memoryview(data)[position : position + lacking]
            position += len(piece)
            in_pieces = bool(pieces) or (lacking >= _LARGE_BYTES and self._left == 1)
            if in_pieces:
                add_piece(pieces, piece)
            else:
                rest += piece
            if len(piece) < lacking:
                break
            try:
                whole = in_pieces or self._follow(rest, 0)
            except ProtocolError as error:
                self.fail(error)
                raise
            if whole:
                self._rest, self._pieces = bytearray(), []
                serial, blocks, _ = self._finish(rest, 0)
                return (serial, [*blocks, *(memoryview(one) for one in pieces)], position), position
        return None, position

    def next_frame(self, buffer: bytes, position: int) -> Frame | None:
        """Return the frame that begins at `position`, or None if it is incomplete.

        After None, call `keep` with the same position.

        Raises:
            ProtocolError: the bytes at this position are not a frame.
        """
        if position == len(buffer) or not self._follow(buffer, position):
            return None
        return self._finish(buffer, position)

    def keep(self, buffer: bytes, position: int) -> None:
        """Store the incomplete frame that `next_frame` found at `position`."""
        if position < len(buffer):
            self._rest = bytearray(memoryview(buffer)[position:])

    def fail(self, error: ProtocolError) -> None:
        """End the stream: every further call raises the error."""
        self._failure = error
        self._rest, self._pieces = bytearray(), []

    def _follow(self, buffer: bytes | bytearray, start: int) -> bool:
        size = len(buffer) - start
        if self._at == 0:
            self._need = HEAD.size
            if size < HEAD.size:
                return False
            token, _, blocks = HEAD.unpack_from(buffer, start)
            if token != TOKEN:
                raise ProtocolError(not_a_frame("TubeMQ", bytes(buffer[start : start + HEAD.size])))
            if not 1 <= blocks <= FRAME_BLOCKS_MAX:
                raise ProtocolError(f"A frame has 1 to {FRAME_BLOCKS_MAX} blocks, not {blocks}.")
            self._at, self._left, self._allowed = HEAD.size, blocks, FRAME_BYTES_MAX
        while self._left:
            self._need = self._at + LENGTH.size
            if size < self._need:
                return False
            (length,) = LENGTH.unpack_from(buffer, start + self._at)
            if not 0 <= length <= self._allowed:
                raise ProtocolError(f"A block of {length} bytes does not fit a frame.")
            self._need += length
            if size < self._need:
                return False
            self._at, self._left, self._allowed = self._need, self._left - 1, self._allowed - length
        return True

    def _finish(self, buffer: bytes | bytearray, start: int) -> Frame:
        """Return the complete frame at `start`, and reset the state for the next one."""
        self._at = 0
        view = memoryview(buffer)
        _, serial, count = HEAD.unpack_from(view, start)
        at = start + HEAD.size
        blocks: list[memoryview] = []
        for _ in range(count):
            (length,) = LENGTH.unpack_from(view, at)
            at += LENGTH.size
            blocks.append(view[at : at + length])
            at += length
        return serial, blocks, at
