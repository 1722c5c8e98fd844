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

Time is linear in the bytes however small the chunks are, and memory is one frame and one chunk:
what is incomplete is kept in one buffer that always begins with the first byte of a frame, together
with how many bytes it must have before looking at it again makes sense (`_need`) and how far its
blocks have been followed (`_at`, `_left`).
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final

from coherer.errors import ProtocolError
from coherer.limits import BLOCK_BYTES, FRAME_BLOCKS_MAX, FRAME_BYTES_MAX

TOKEN: Final = 0xFF7FF4FE
HEAD: Final = Layout(">Iii")  # token, serial number, number of blocks
HEAD_ONE: Final = Layout(">Iiii")  # and the length of the first block
LENGTH: Final = Layout(">i")


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

    __slots__ = ("_at", "_failure", "_left", "_need", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._need = 0
        self._at = 0
        self._left = 0
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
        buffer = self.take(data)
        position = 0
        try:
            while frame := self.cut(buffer, position):
                serial, payload, position = frame
                frames.append((serial, payload))
        except ProtocolError as error:
            self.fail(error, bool(frames))
        else:
            self.keep(buffer, position)
        return frames

    def take(self, data: bytes) -> bytes:
        """Returns what there is to look at: bytes that begin with a frame, or nothing yet.

        Raises:
            ProtocolError: the stream broke the rules, now or earlier.
        """
        if self._failure is not None:
            raise self._failure
        rest = self._rest
        if not rest:
            return data
        rest += data
        if len(rest) < self._need:
            return b""
        try:
            if not self._follow(rest, 0):
                return b""
        except ProtocolError as error:
            self.fail(error, later=False)
        self._at = 0
        self._rest = bytearray()
        return bytes(rest)

    def cut(self, buffer: bytes, position: int) -> tuple[int, bytes, int] | None:
        """Returns serial number, payload and end of the frame at `position`.

        None when the frame is incomplete; then `keep` has to be called with the same position.

        Raises:
            ProtocolError: there is no frame at this position.
        """
        if len(buffer) - position >= HEAD_ONE.size:
            token, serial, blocks, length = HEAD_ONE.unpack_from(buffer, position)
            start = position + HEAD_ONE.size
            end = start + length
            if token == TOKEN and blocks == 1 and start <= end <= len(buffer):
                return serial, buffer[start:end], end
        if position == len(buffer) or not self._follow(buffer, position):
            return None
        end = position + self._at
        self._at = 0
        _, serial, blocks = HEAD.unpack_from(buffer, position)
        return serial, _join(memoryview(buffer), position + HEAD.size, blocks), end

    def keep(self, buffer: bytes, position: int) -> None:
        """Stores the incomplete frame that `cut` found at `position`."""
        if position < len(buffer):
            self._rest = bytearray(memoryview(buffer)[position:])

    def fail(self, error: ProtocolError, later: bool) -> None:
        """Ends the stream; `later` puts the error off to the next call."""
        self._failure = error
        self._rest = bytearray()
        if not later:
            raise error

    def _follow(self, buffer: bytes | bytearray, start: int) -> bool:
        """Follows the blocks of the frame at `start` as far as they go. True: it is complete."""
        size = len(buffer) - start
        if self._at == 0:
            self._need = HEAD.size
            if size < HEAD.size:
                return False
            token, _, blocks = HEAD.unpack_from(buffer, start)
            if token != TOKEN:
                raise ProtocolError(f"A frame begins with {TOKEN:#x}, not with {token:#x}.")
            if not 1 <= blocks <= FRAME_BLOCKS_MAX:
                raise ProtocolError(f"A frame has 1 to {FRAME_BLOCKS_MAX} blocks, not {blocks}.")
            self._at, self._left = HEAD.size, blocks
        while self._left:
            self._need = self._at + LENGTH.size
            if size < self._need:
                return False
            (length,) = LENGTH.unpack_from(buffer, start + self._at)
            # `_at` counts the lengths too, some 14 KB at most: near enough for this limit.
            if not 0 <= length <= FRAME_BYTES_MAX - self._at + HEAD.size:
                raise ProtocolError(f"A block of {length} bytes does not fit a frame.")
            self._need += length
            if size < self._need:
                return False
            self._at, self._left = self._need, self._left - 1
        return True


def _join(view: memoryview, at: int, blocks: int) -> bytes:
    parts: list[memoryview] = []
    for _ in range(blocks):
        (length,) = LENGTH.unpack_from(view, at)
        at += LENGTH.size
        parts.append(view[at : at + length])
        at += length
    return b"".join(parts)
