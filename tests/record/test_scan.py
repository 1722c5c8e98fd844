"""A scan finds the same records as the reference, which reads them one by one."""

from __future__ import annotations

import mmap
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

import numpy as np

from coherer._record import compression, layout, scan
from coherer._record.records import Record, next_record, record_at
from coherer._record.scan import RecordScan, body_checksums

HOSTS = st.sampled_from([layout.NO_HOST, bytes(range(8)), bytes(range(20))])


@st.composite
def stored(draw: st.DrawFn) -> bytes:
    """Records, with damage and bytes in between."""
    parts: list[bytes] = []
    for number in range(draw(st.integers(0, 5))):
        record = layout.encode(
            draw(st.sampled_from(["a", "flights", "a topic with a long name"])),
            draw(st.binary(max_size=20)) * draw(st.sampled_from([1, 1, 100])),
            draw(st.binary(max_size=8)),
            queue_id=draw(st.integers(0, 3)),
            queue_offset=number,
            physical_offset=number << 33,
            store_ms=draw(st.integers(-9, 1 << 50)),
            flag=draw(st.integers(-2, 2)),
            born_ms=draw(st.integers(-9, 1 << 50)),
            born_host=draw(HOSTS),
            store_host=draw(HOSTS),
            reconsume_times=draw(st.integers(0, 16)),
            prepared_offset=draw(st.integers(0, 1 << 40)),
        )
        parts += [record] * draw(st.sampled_from([1, 1, 2, 70]))
    data = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 2)) if data else 0):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


def reference(data: bytes) -> tuple[list[tuple[int, Record]], list[tuple[int, int]]]:
    found: list[tuple[int, Record]] = []
    damaged: list[tuple[int, int]] = []
    position = 0
    while position < len(data):
        record = record_at(data, position)
        end = next_record(data, position) if record is None else position + record[0][0]
        if record is None:
            damaged.append((position, end - position))
        else:
            found.append((position, record))
        position = end
    return found, damaged


def fields(found: RecordScan) -> list[tuple[object, ...]]:
    columns = (
        found.starts,
        found.sizes,
        found.checksums,
        found.queue_ids,
        found.flags,
        found.queue_offsets,
        found.physical_offsets,
        found.sys_flags,
        found.born_ms,
        found.store_ms,
        found.attempts,
        found.prepared_offsets,
    )
    assert all(column.dtype == np.int64 for column in columns)
    parts = (found.stored_bodies(), found.topics(), found.property_texts())
    rows = [column.tolist() for column in columns] + [part.to_pylist() for part in parts]
    return [*zip(*rows, strict=True)]


@given(stored(), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_scan_equals_the_reference(data: bytes, kind: type) -> None:
    found = scan.scan(kind(data))
    expected, damaged = reference(data)
    assert found.damaged == damaged
    assert fields(found) == [
        (at, one[0], one[2], one[3], one[4], one[5], one[6], one[7], one[8], one[10], *one[12:14],
         body, topic, text)
        for at, (one, body, topic, text) in expected
    ]  # fmt: skip
    assert fields(scan.scan_at(data, [at for at, _ in expected])) == fields(found)
    assert fields(found.pick(found.queue_ids == 1)) == [row for row in fields(found) if row[3] == 1]


def test_long_runs_are_verified_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "CHUNK_RECORDS", 128)
    records = [record(n, b"x" * (n % 7 == 0 and n > 300)) for n in range(1000)]
    data = b"".join(records)
    assert scan.scan(data).queue_offsets.tolist() == [*range(1000)]
    assert scan.scan(data[: len(records[0]) * 256]).queue_offsets.tolist() == [*range(256)]


@pytest.mark.parametrize("large", [1, 63, 64, 65, 400])
@pytest.mark.parametrize("small", [1, 2, 30, 100])
def test_small_records_may_follow_a_run_of_large_ones(large: int, small: int) -> None:
    records = [record(n, b"x" * (5_000 if n < large else 4)) for n in range(large + small)]
    found = scan.scan(b"".join(records), queue_id=0)
    assert found.queue_offsets.tolist() == [*range(large + small)]
    assert found.damaged == []


def test_a_log_file_ends_with_a_blank_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(record(0) + record(1) + layout.blank(50).ljust(50, b"\0"))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        found = scan.scan(mapped)
        assert found.queue_offsets.tolist() == [0, 1]
        assert found.damaged == []
        assert found.bodies().to_pylist() == [b"", b""]
        del found


def test_a_torn_end_is_damaged() -> None:
    data = record(0, b"whole") + record(1, b"torn")[:-1]
    found = scan.scan(data)
    assert found.bodies().to_pylist() == [b"whole"]
    assert found.damaged == [(len(record(0, b"whole")), len(record(1, b"torn")) - 1)]


def test_damaged_and_compressed_bodies() -> None:
    bad = bytearray(record(1, b"bad"))
    bad[88] ^= 1
    packed = [record(2, compression.compress(b"p" * 99), 1), record(3, b"no zlib", 1)]
    found = scan.scan(record(0, b"good") + bad + b"".join(packed))
    assert len(found) == 4
    intact = found.intact()
    assert intact.bodies().to_pylist() == [b"good", b"p" * 99]
    assert intact.pick(slice(1, None)).bodies().to_pylist() == [b"p" * 99]
    assert intact.stored_bodies().to_pylist() == [b"good", compression.compress(b"p" * 99)]
    assert "2 records" in repr(intact)


def record(offset: int, body: bytes = b"", sys_flag: int = 0) -> bytes:
    return layout.encode(
        "a",
        body,
        b"",
        queue_id=0,
        queue_offset=offset,
        physical_offset=offset,
        store_ms=0,
        sys_flag=sys_flag,
    )


@pytest.mark.parametrize("size", [0, 1, 100])
def test_checksums_of_parts_at_equal_distances(size: int) -> None:
    step, count = size + 30, 70
    data = random.Random(size).randbytes(count * step + 5)
    begins, sizes = np.arange(count) * step + 5, np.full(count, size)
    expected = [zlib.crc32(data[at : at + size]) & layout.CRC_MASK for at in begins]
    assert body_checksums(memoryview(data), begins, sizes).tolist() == expected
    backwards = body_checksums(memoryview(data), begins[::-1], sizes).tolist()
    assert backwards == expected[::-1]
    longer = sizes.copy()
    longer[3] += 1
    found = body_checksums(memoryview(data), begins, longer).tolist()
    assert (found[3] == expected[3], found[4:]) == (False, expected[4:])
