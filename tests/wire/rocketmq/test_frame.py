from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._wire.rocketmq.frame import FrameDecoder, prefix
from coherer.errors import ProtocolError
from coherer.limits import REMOTING_BYTES_MAX

frames_of_parts = st.tuples(
    st.integers(0, 1),
    st.binary(max_size=30),
    st.one_of(st.binary(max_size=30), st.just(bytes(20000))),
)


def frame_of(kind: int, header: bytes, body: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def fed(chunks: Iterable[bytes]) -> tuple[list[tuple[int, bytes, bytes]], bool]:
    """Feeds chunks; returns the frames, and whether the decoder gave up."""
    decoder = FrameDecoder()
    frames: list[tuple[int, bytes, bytes]] = []
    try:
        for chunk in chunks:
            frames += [(kind, header, bytes(body)) for kind, header, body in decoder.feed(chunk)]
        decoder.feed(b"")
    except ProtocolError:
        return frames, True
    return frames, False


def single_bytes(data: bytes) -> Iterable[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


@given(st.lists(frames_of_parts, max_size=4), st.integers(1, 40))
def test_frames_in_chunks_of_any_size(parts: list[tuple[int, bytes, bytes]], step: int) -> None:
    stream = b"".join(frame_of(*each) for each in parts)
    expected = parts, False
    assert fed([stream]) == expected
    assert fed(stream[at : at + step] for at in range(0, len(stream), step)) == expected
    assert fed([b"", stream[:step], b"", stream[step:]]) == expected


@given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=9), st.binary(max_size=9))))
def test_byte_by_byte(parts: list[tuple[int, bytes, bytes]]) -> None:
    stream = b"".join(frame_of(*each) for each in parts)
    assert fed(single_bytes(stream)) == (parts, False)


@given(st.lists(frames_of_parts, min_size=1, max_size=3), st.integers(1, 30_000))
def test_unfinished_counts_received_and_missing_bytes(
    parts: list[tuple[int, bytes, bytes]], step: int
) -> None:
    ends = list(itertools.accumulate(len(frame_of(*each)) for each in parts))
    stream = b"".join(frame_of(*each) for each in parts)
    decoder = FrameDecoder()
    for at in range(0, len(stream), step):
        decoder.feed(stream[at : at + step])
        fed_bytes = min(at + step, len(stream))
        begun = max((end for end in ends if end <= fed_bytes), default=0)
        end = min((end for end in ends if end > fed_bytes), default=begun)
        kept, lacking = decoder.unfinished
        assert kept == fed_bytes - begun
        if kept >= 8 or kept == 0:
            assert lacking == (end - fed_bytes if kept else 0)


@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda b: frame_of(0, b, b)))
    )
)
def test_invalid_bytes_give_the_same_result_in_any_chunks(parts: list[bytes]) -> None:
    stream = b"".join(parts)
    assert fed([stream]) == fed(single_bytes(stream))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">i", 3), id="no room for the header's word"),
        pytest.param(struct.pack(">i", REMOTING_BYTES_MAX - 3), id="too long"),
        pytest.param(struct.pack(">iI", 4, 1), id="header longer than the frame"),
        pytest.param(struct.pack(">iI", 20, 0xFFFFFF), id="much longer"),
        pytest.param(struct.pack(">iI", 20, 0x02000004), id="unknown type"),
        pytest.param(struct.pack(">iI", 20, 0xFF000004), id="negative type"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS"),
    ],
)
def test_invalid_frames_are_refused_early(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameDecoder().feed(head)
    good = frame_of(0, b"{}", b"x")
    decoder = FrameDecoder()
    assert decoder.feed(good + head) == [(0, b"{}", b"x")]
    for _ in range(2):
        with pytest.raises(ProtocolError):
            decoder.feed(good)


def test_the_longest_frame() -> None:
    body = bytes(REMOTING_BYTES_MAX - 8)
    frame = prefix(0, 0, len(body)) + body
    assert len(frame) == REMOTING_BYTES_MAX
    [(kind, header, found)] = FrameDecoder().feed(frame)
    assert (kind, header, len(found)) == (0, b"", len(body))
    with pytest.raises(ProtocolError):
        prefix(0, 0, len(body) + 1)
    with pytest.raises(ProtocolError):
        prefix(0, 0x1000000, 0)


def test_a_large_frame_in_small_chunks_takes_at_most_twice_its_size() -> None:
    """Its chunks, and joined to the bytes that its receiver reads; nothing else in between."""
    body = bytes(4 * 1024 * 1024)
    frame = frame_of(0, b"{}", body)
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        found = [
            (kind, header, bytes(rest))
            for at in range(0, len(frame), 65536)
            for kind, header, rest in decoder.feed(frame[at : at + 65536])
        ]
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == [(0, b"{}", body)]
    assert held < len(body) + 2**18
    assert peak < 2 * len(body) + 2**19


def test_alternating_small_and_large_chunks() -> None:
    bodies = [bytes([number]) * size for number, size in enumerate([100_000, 5, 70_000, 0, 40_000])]
    stream = b"".join(frame_of(0, b"h" * 30_000, body) for body in bodies)
    for sizes in ([3, 20_000], [20_000, 1, 1, 40_000], [7, 50_000, 9, 16_384]):
        decoder, at = FrameDecoder(), 0
        found: list[bytes] = []
        for size in itertools.cycle(sizes):
            for _, header, rest in decoder.feed(stream[at : at + size]):
                assert header == b"h" * 30_000
                found.append(bytes(rest))
            at += size
            if at >= len(stream):
                break
        assert found == bodies


def test_an_announced_length_takes_no_memory() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        assert decoder.feed(struct.pack(">iI", REMOTING_BYTES_MAX - 4, 2)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
