from __future__ import annotations

import itertools
import random
import struct
import sys
import tracemalloc
from collections.abc import Iterable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.tubemq.frame import TOKEN, FrameDecoder, encode_frame
from coherer.errors import ProtocolError
from coherer.limits import BLOCK_BYTES, FRAME_BLOCKS_MAX, FRAME_BYTES_MAX

serials = st.integers(-(2**31), 2**31 - 1)
blocks = st.lists(st.binary(max_size=30), min_size=1, max_size=6)


def frame_of(serial: int, parts: list[bytes]) -> bytes:
    head = struct.pack(">Iii", TOKEN, serial, len(parts))
    return head + b"".join(struct.pack(">i", len(part)) + part for part in parts)


def fed(chunks: Iterable[bytes]) -> tuple[list[tuple[int, bytes]], bool]:
    """Feeds chunks; returns the frames, and whether the decoder gave up."""
    decoder = FrameDecoder()
    frames: list[tuple[int, bytes]] = []
    try:
        for chunk in chunks:
            frames += decoder.feed(chunk)
        decoder.feed(b"")
    except ProtocolError:
        return frames, True
    return frames, False


def single_bytes(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


@given(st.lists(st.tuples(serials, blocks), max_size=5), st.integers(1, 40))
def test_frames_in_chunks_of_any_size(frames: list[tuple[int, list[bytes]]], step: int) -> None:
    stream = b"".join(frame_of(serial, parts) for serial, parts in frames)
    expected = [(serial, b"".join(parts)) for serial, parts in frames], False
    assert fed([stream]) == expected
    assert fed(single_bytes(stream)) == expected
    assert fed(stream[at : at + step] for at in range(0, len(stream), step)) == expected


@given(
    st.lists(st.one_of(blocks, st.just([bytes(BLOCK_BYTES)] * 3)), min_size=1, max_size=3),
    st.integers(1, BLOCK_BYTES),
)
def test_unfinished_counts_received_and_missing_bytes(parts: list[list[bytes]], step: int) -> None:
    frames = [frame_of(1, each) for each in parts]
    stream = b"".join(frames)
    decoder, begun = FrameDecoder(), 0
    for at in range(0, len(stream), step):
        begun += sum(len(frames.pop(0)) for _ in decoder.feed(stream[at : at + step]))
        kept, lacking = decoder.unfinished
        assert kept == min(at + step, len(stream)) - begun
        assert (lacking > 0) == (kept > 0)


def test_unfinished_is_nearly_exact_for_full_blocks() -> None:
    frame = encode_frame(1, bytes(10 * BLOCK_BYTES))
    for have in (16, 17, 16 + BLOCK_BYTES + 5, len(frame) - 1):
        decoder = FrameDecoder()
        decoder.feed(frame[:have])
        kept, lacking = decoder.unfinished
        assert kept == have
        assert 0 <= len(frame) - have - lacking <= 9 * 4, "except for the lengths of blocks"


@given(serials, st.integers(0, 5 * BLOCK_BYTES))
def test_decoding_reverses_encoding(serial: int, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    frame = encode_frame(serial, payload)
    assert fed([frame]) == ([(serial, payload)], False)
    count = max(1, -(-size // BLOCK_BYTES))
    assert struct.unpack_from(">i", frame, 8) == (count,)
    assert len(frame) == 12 + 4 * count + size
    if count > 1:
        assert struct.unpack_from(">i", frame, 12) == (BLOCK_BYTES,)


@given(st.lists(st.one_of(st.binary(max_size=40), blocks.map(lambda b: frame_of(1, b)))))
def test_invalid_bytes_give_the_same_result_in_any_chunks(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    assert fed([stream]) == fed(single_bytes(stream))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(struct.pack(">Iii", 0xFF7FF4FF, 1, 1), id="wrong token"),
        pytest.param(struct.pack(">Iii", TOKEN, 1, 0), id="no blocks"),
        pytest.param(struct.pack(">Iii", TOKEN, 1, -1), id="less than no blocks"),
        pytest.param(struct.pack(">Iii", TOKEN, 1, FRAME_BLOCKS_MAX + 1), id="too many blocks"),
        pytest.param(struct.pack(">Iiii", TOKEN, 1, 1, -1), id="negative length"),
        pytest.param(struct.pack(">Iiii", TOKEN, 1, 1, FRAME_BYTES_MAX + 1), id="too long"),
        pytest.param(
            struct.pack(">Iiii", TOKEN, 1, 2, 1) + b"x" + struct.pack(">i", FRAME_BYTES_MAX),
            id="too long together",
        ),
    ],
)
def test_invalid_frames_are_refused(head: bytes) -> None:
    whole = FrameDecoder()
    with pytest.raises(ProtocolError):
        whole.feed(head)
    with pytest.raises(ProtocolError):  # and it stays so
        whole.feed(encode_frame(1, b"x"))
    assert fed(single_bytes(head)) == ([], True)


def test_frames_before_invalid_bytes_are_returned() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(encode_frame(1, b"good") + b"garbage.........") == [(1, b"good")]
    with pytest.raises(ProtocolError):
        decoder.feed(b"")


def test_the_longest_frame() -> None:
    payload = bytes(FRAME_BYTES_MAX)
    assert FrameDecoder().feed(encode_frame(1, payload)) == [(1, payload)]


@given(
    st.lists(st.integers(0, 3 * BLOCK_BYTES) | st.integers(60_000, 200_000), max_size=3),
    st.lists(st.integers(1, 50_000), min_size=1, max_size=8),
)
def test_large_blocks_in_chunks_of_several_sizes(sizes: list[int], steps: list[int]) -> None:
    chance = random.Random(1)
    parts = [chance.randbytes(size) for size in sizes]
    stream = frame_of(1, parts or [b""]) + frame_of(2, [b"next"])
    decoder, found, at = FrameDecoder(), [], 0
    for step in itertools.cycle(steps):
        if at >= len(stream):
            break
        found += decoder.feed(stream[at : at + step])
        at += step
        kept, lacking = decoder.unfinished
        assert (kept > 0) == (lacking > 0)
    assert found == [(1, b"".join(parts)), (2, b"next")]


@pytest.mark.parametrize("one_block", [True, False])
def test_a_long_frame_in_chunks_takes_the_memory_of_its_size(one_block: bool) -> None:
    payload = bytes(FRAME_BYTES_MAX)
    frame = frame_of(1, [payload]) if one_block else encode_frame(1, payload)
    view = memoryview(frame)
    chunks = [bytes(view[at : at + 65536]) for at in range(0, len(frame), 65536)]
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for chunk in chunks[:-1]:
            assert not decoder.feed(chunk)
        kept, peak = tracemalloc.get_traced_memory()
        [(serial, joined)] = decoder.feed(chunks[-1])
    finally:
        tracemalloc.stop()
    assert (serial, len(joined)) == (1, FRAME_BYTES_MAX)
    assert kept < 1.3 * FRAME_BYTES_MAX
    assert peak < 2.6 * FRAME_BYTES_MAX  # while the buffer grows, the old one is still there
    assert decoder.feed(encode_frame(2, b"next")) == [(2, b"next")]


def calls_to_decode(size: int) -> int:
    """Decode a frame byte by byte; count the calls of functions of Python and of C."""
    decoder, found, calls = FrameDecoder(), [], 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(count)
    try:
        for byte in single_bytes(encode_frame(1, bytes(size))):
            found += decoder.feed(byte)
    finally:
        sys.setprofile(None)
    assert [len(payload) for _, payload in found] == [size]
    return calls


def test_byte_by_byte_takes_linear_time() -> None:
    """The number of blocks so far does not matter: 3 of them in one frame, 25 in the other."""
    assert calls_to_decode(200_000) < 9 * calls_to_decode(25_000)
