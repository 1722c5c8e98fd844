"""Runs of records: the same records as one by one, whatever the bytes are."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coherer._record.layout import RecordSummary, encode, examine
from coherer._record.runs import examine_run

SECTOR_BYTES = 512


def one_by_one(data: bytes, position: int, end: int, begin: int) -> list[RecordSummary]:
    found: list[RecordSummary] = []
    while True:
        record = examine(memoryview(data)[:end], position)
        if isinstance(record, str) or record.physical_offset != begin + position:
            return found
        found.append(record)
        position += record.size


@st.composite
def logs(draw: Any) -> tuple[bytes, int]:
    """Records that follow each other from an offset on, and the offset."""
    hosts = st.sampled_from([bytes(8), bytes(range(8)), bytes(20)])
    texts = st.sampled_from([b"", b"TAGS\x01a", b"a\x01\0", bytes(700), b"KEYS\x01" + b"k" * 600])
    begin = draw(st.sampled_from([0, 4096, 1 << 40]))
    data = b""
    for number in range(draw(st.integers(0, 8))):
        data += encode(
            draw(st.sampled_from(["t", "topic", "a" * 127])),
            draw(st.binary(max_size=40)),
            draw(texts | st.binary(max_size=9)),
            queue_id=draw(st.integers(-1, 3)),
            queue_offset=number,
            physical_offset=begin + len(data) + draw(st.sampled_from([0] * 15 + [1])),
            store_ms=draw(st.integers(0, 1 << 41)),
            born_host=draw(hosts),
            store_host=draw(hosts),
            sys_flag=draw(st.sampled_from([0, 1, 4, 8, 12])),
        )
    return data, begin


@given(
    logs(),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3),
    st.integers(0, 200),
    st.binary(max_size=100),
)
def test_a_run_holds_what_the_reference_finds(
    log: tuple[bytes, int], changes: list[tuple[float, int]], cut: int, before: bytes
) -> None:
    data, begin = bytearray(log[0]), log[1]
    for at, value in changes:
        if data:
            data[int(at * len(data))] = value
    data = bytearray(before) + data
    position, begin = len(before), begin - len(before)
    for end in (len(data), max(len(data) - cut, 0)):
        found = examine_run(bytes(data), position, end, begin)
        expected = one_by_one(bytes(data), position, end, begin)
        assert [RecordSummary(*fields) for fields in found] == expected


def test_a_sector_of_properties_that_was_not_written() -> None:
    where = {"queue_id": 0, "queue_offset": 0, "store_ms": 1}
    whole = encode("t", b"body", b"x" * 2_000, physical_offset=0, **where)
    torn = bytearray(whole)
    torn[SECTOR_BYTES : 2 * SECTOR_BYTES] = bytes(SECTOR_BYTES)
    shifted = encode("t", b"", b"x" * 9 + bytes(60), physical_offset=0, **where)
    assert len(examine_run(whole, 0, len(whole), 0)) == 1
    assert examine_run(bytes(torn), 0, len(torn), 0) == []
    assert len(examine_run(shifted, 0, len(shifted), 0)) == 1
