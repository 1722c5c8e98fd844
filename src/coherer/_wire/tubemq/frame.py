"""Frames: the outermost layer of TubeMQ's RPC, on top of TCP.

A frame is four parts, all numbers big-endian and 32 bits wide:

    token 0xFF7FF4FE | serial number | number of blocks | (length, bytes) for each block

The payload is what the blocks hold, joined; where a block ends has no meaning. Rules kept here:

* Writing, every block but the last holds 8,192 bytes, as old decoders want it.
* Reading, a block may have any length, none at all included, and a chunk of the stream may end
  anywhere and hold any number of frames.
* A wrong token, no blocks or too many of them, a negative length or a payload beyond
  `limits.FRAME_BYTES_MAX` is a `ProtocolError`, told as soon as the number is there. Frames that
  stood before it in the same chunk are handed out first and the error is raised by the next call,
  so that what a peer gets does not depend on how the network cut its bytes. After an error there is
  no way to find the next frame: the connection has to be closed.

Time is linear in the bytes however small the chunks are, and memory is one frame and one chunk: an
incomplete frame is kept in a buffer of its own, together with how many bytes it must have before
looking at it again makes sense (`_need`) and how far its blocks have been followed (`_at`: bytes,
`_left`: blocks to come, `_room`: bytes that they may have).
From the next chunk it gets what it lacks and no more; the rest is read where it lies.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, TypeAlias

from coherer._common.other_protocols import not_a_frame
from coherer.errors import ProtocolError
from coherer.limits import BLOCK_BYTES, FRAME_BLOCKS_MAX, FRAME_BYTES_MAX

TOKEN: Final = 0xFF7FF4FE
HEAD: Final = Layout(">Iii")  # token, serial number, number of blocks
HEAD_ONE: Final = Layout(">Iiii")  # and the length of the first block
LENGTH: Final = Layout(">i")

Frame: TypeAlias = tuple[int, list[memoryview], int]
"""Serial number, blocks, and where the frame ends."""


def encode_frame(serial: int, payload: bytes) -> bytes:
    """Returns the frame around a payload.

    Args:
        serial: the serial number, a signed 32-bit number.
        payload: what the frame carries.

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

    `feed` is all that most need. `take`, `cut` and `keep` are its three steps, for sessions that
    recognize common frames by themselves and want no copy of each in between.

    >>> decoder = FrameDecoder()
    >>> decoder.feed(encode_frame(7, b"hello")[:10])
    []
    >>> decoder.feed(encode_frame(7, b"hello")[10:])
    [(7, b'hello')]
    """

    __slots__ = ("_at", "_failure", "_left", "_need", "_rest", "_room")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._need = 0
        self._at = 0
        self._left = 0
        self._room = 0
        self._failure: ProtocolError | None = None

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Takes a chunk of the stream and returns the frames that it completed.

        Args:
            data: the next bytes, any number of them.

        Returns:
            Serial number and payload of each frame, in order.

        Raises:
            ProtocolError: the stream is not made of frames; close the connection.
        """
        frames: list[tuple[int, bytes]] = []
        frame, position = self.take(data)
        try:
            while frame is not None or (frame := self.cut(data, position)) is not None:
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
        """How many bytes there are of an incomplete frame, 0 for none, and how many it lacks.

        Blocks that have not begun count as Java's writers fill them; an upper bound for those.
        """
        kept = len(self._rest)
        if not kept:
            return 0, 0
        begun = 1 if self._need > self._at + LENGTH.size else 0
        blocks = (self._left - begun) * BLOCK_BYTES if self._at else 0
        return kept, self._need - kept + min(blocks, self._room)

    def take(self, data: bytes) -> tuple[Frame | None, int]:
        """Completes the frame that was incomplete, if there is one.

        Returns:
            That frame, or None; and where in `data` the next one begins.

        Raises:
            ProtocolError: the stream broke the rules, now or earlier.
        """
        if self._failure is not None:
            raise self._failure
        rest, position = self._rest, 0
        while rest:
            piece = memoryview(data)[position : position + self._need - len(rest)]
            rest += piece
            position += len(piece)
            if len(rest) < self._need:
                break
            try:
                whole = self._follow(rest, 0)
            except ProtocolError as error:
                self.fail(error)
                raise
            if whole:
                self._rest = bytearray()
                serial, blocks, _ = self._finish(rest, 0)
                return (serial, blocks, position), position
        return None, position

    def cut(self, buffer: bytes, position: int) -> Frame | None:
        """Returns the frame that begins at `position`, or None when it is incomplete.

        Then `keep` has to be called with the same position.

        Raises:
            ProtocolError: there is no frame at this position.
        """
        if position == len(buffer) or not self._follow(buffer, position):
            return None
        return self._finish(buffer, position)

    def keep(self, buffer: bytes, position: int) -> None:
        """Stores the incomplete frame that `cut` found at `position`."""
        if position < len(buffer):
            self._rest = bytearray(memoryview(buffer)[position:])

    def fail(self, error: ProtocolError) -> None:
        """Ends the stream: every further call raises the error."""
        self._failure = error
        self._rest = bytearray()

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
            self._at, self._left, self._room = HEAD.size, blocks, FRAME_BYTES_MAX
        while self._left:
            self._need = self._at + LENGTH.size
            if size < self._need:
                return False
            (length,) = LENGTH.unpack_from(buffer, start + self._at)
            if not 0 <= length <= self._room:
                raise ProtocolError(f"A block of {length} bytes does not fit a frame.")
            self._need += length
            if size < self._need:
                return False
            self._at, self._left, self._room = self._need, self._left - 1, self._room - length
        return True

    def _finish(self, buffer: bytes | bytearray, start: int) -> Frame:
        """Returns the frame at `start`, which is whole, and is ready for the next."""
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
