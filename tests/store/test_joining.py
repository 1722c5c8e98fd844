"""Reads of scattered records as one piece: the same bytes as record by record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coherer._record.layout import decode
from coherer._store import Store, StoreOptions, reading
from coherer._store.joining import WASTE_BYTES, joined
from tests.store.conftest import Clock, draft
from tests.waiting import wait_until

LOG_BYTES = 16_384
QUEUES = [("t", 0), ("t", 1), ("u", 0)]

appends = st.lists(
    st.tuples(st.sampled_from(QUEUES), st.sampled_from([60, 61, 70, 400]), st.integers(1, 40)),
    min_size=1,
    max_size=12,
)
reads = st.tuples(
    st.sampled_from(QUEUES), st.floats(0, 1), st.integers(1, 20_000), st.integers(1, 300)
)


@pytest.fixture(autouse=True)
def _loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins however few records are read."""
    reading.JOINING.load()
    monkeypatch.setattr(reading, "FEW_ENTRIES", 0)


@pytest.fixture
def stores(tmp_path: Path) -> Any:
    opened: list[Store] = []

    def make() -> Store:
        options = StoreOptions(
            segment_bytes=LOG_BYTES,
            queue_segment_bytes=2_000,
            verify_bytes=8_192,
            retention_bytes=3 * LOG_BYTES,
            retention_hours=None,
        )
        store = Store.open(tmp_path / str(len(opened)), options, now_ms=Clock())
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def fill(store: Store, runs: Sequence[tuple[tuple[str, int], int, int]], first: int = 0) -> None:
    number = first
    for (topic, queue), size, count in runs:
        for _ in range(count):
            store.append([draft(number, topic, queue, size=size)])
            number += 1


def read_both(store: Store, read: tuple[tuple[str, int], float, int, int]) -> bool:
    """Compare a read with that of single records; whether it was verified."""
    (topic, queue), share, max_bytes, max_count = read
    low, high = store.queue_range(topic, queue)
    offset = low + int(share * (high - low))
    found = store.read_slices(topic, queue, offset, max_bytes=max_bytes, max_count=max_count)
    if found is None:
        return False
    count = found.next_offset - offset
    assert 1 <= count <= max_count
    assert (found.min_offset, found.max_offset) == (low, high)
    data = b"".join(found.records)
    assert count == 1 or len(data) <= max_bytes
    if not found.heads_match:
        return False
    expected: list[memoryview] = []
    backlog_bytes = -1
    while offset < found.next_offset:
        one = store.read(
            topic, queue, offset, max_bytes=1 << 20, max_count=found.next_offset - offset
        )
        assert not one.damaged
        expected += one.records
        backlog_bytes, offset = one.backlog_bytes, one.next_offset
    assert data == b"".join(expected)
    assert found.backlog_bytes == backlog_bytes
    return True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(appends, appends, st.lists(reads, min_size=1, max_size=8), st.booleans())
def test_a_piece_holds_the_records(
    stores: Any, before: Any, after: Any, asked: Any, expire: bool
) -> None:
    store = stores()
    fill(store, before)
    for read in asked:
        read_both(store, read)
    fill(store, after, 10_000)
    if expire:
        store.delete_expired(Clock().ms)
    for read in asked:
        read_both(store, read)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(appends, st.lists(reads, min_size=1, max_size=8), st.integers(0, 400), st.integers(0, 7))
def test_damaged_heads_are_noticed(
    stores: Any, runs: Any, asked: Any, which: int, byte: int
) -> None:
    store = stores()
    fill(store, runs)
    (topic, queue), *_ = runs[0]
    low, high = store.queue_range(topic, queue)
    offset = low + which % (high - low)
    [record] = store.read(topic, queue, offset, max_bytes=1, max_count=1).records
    place = decode(record).physical_offset
    file = store.directory / "commitlog" / f"{place - place % LOG_BYTES:020}"
    with file.open("r+b") as log:
        log.seek(place % LOG_BYTES + byte)
        found = log.read(1)[0]
        log.seek(place % LOG_BYTES + byte)
        log.write(bytes([found ^ 1]))
    for read in asked:
        read_both(store, read)
    count = offset - low + 1
    found = store.read_slices(topic, queue, low, max_bytes=1 << 30, max_count=count)
    assert found is None or found.next_offset <= offset or not found.heads_match


def test_records_in_turn_are_one_piece(stores: Any) -> None:
    store = stores()
    fill(store, [(queue, 100, 1) for _ in range(20) for queue in QUEUES])
    found = store.read_slices("t", 1, 0, max_bytes=1 << 20, max_count=100)
    assert found.heads_match
    assert [len(found.records), found.next_offset] == [1, 20]
    assert read_both(store, (("t", 1), 0.0, 1 << 20, 100))


def test_adjacent_records_are_slices_of_the_log(stores: Any) -> None:
    store = stores()
    fill(store, [(("t", 0), 100, 20), (("t", 1), 100, 1), (("t", 0), 100, 20)])
    found = store.read_slices("t", 0, 0, max_bytes=1 << 20, max_count=100)
    assert found.heads_match
    assert [len(found.records), found.next_offset] == [2, 40]
    assert read_both(store, (("t", 0), 0.0, 1 << 20, 100))


@pytest.mark.parametrize("largest", [120, 1_800])
def test_records_of_many_sizes(stores: Any, largest: int) -> None:
    """They are one piece, unless one of them is much larger."""
    store, sizes = stores(), [*range(100, 119), largest]
    fill(store, [(queue, size, 1) for size in sizes for queue in QUEUES])
    found = store.read_slices("t", 1, 0, max_bytes=1 << 20, max_count=100)
    assert found.heads_match
    assert (len(found.records) == 1) == (largest == 120)
    assert found.next_offset == 20
    records = store.read("t", 1, 0, max_bytes=1 << 20, max_count=100).records
    assert b"".join(found.records) == b"".join(records)


@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=200), st.randoms())
def test_joined_pieces_are_in_order(pieces: list[bytes], chance: Any) -> None:
    order = [*range(len(pieces))]
    chance.shuffle(order)
    places = np.zeros(len(pieces), np.int64)
    buffer = b""
    for number in order:
        places[number] = len(buffer)
        buffer += pieces[number]
    sizes = np.array([len(one) for one in pieces], np.int64)
    found = joined(memoryview(buffer), places, sizes, np.cumsum(sizes))
    assert found is not None
    assert bytes(found) == b"".join(pieces)


def test_as_many_pieces_as_numpy_takes_in_several_turns() -> None:
    """Each overwrites what is too much of the one before, so that their order counts."""
    chance = Random(1)
    pieces = [chance.randbytes(chance.randint(1, 300)) for _ in range(20_000)]
    order = chance.sample(range(len(pieces)), len(pieces))
    sizes = np.array([len(pieces[number]) for number in order], np.int64)
    ends = np.cumsum([len(one) for one in pieces])
    places = ends[order] - sizes
    found = joined(memoryview(b"".join(pieces)), places, sizes, np.cumsum(sizes))
    assert found is not None
    assert bytes(found) == b"".join(pieces[number] for number in order)


def test_a_few_pieces_are_much_larger() -> None:
    sizes = np.array([1, 1, WASTE_BYTES * 2], np.int64)
    behind = np.cumsum(sizes)
    assert joined(memoryview(bytes(int(behind[-1]))), behind - sizes, sizes, behind) is None


def test_without_numpy_records_are_read_without(
    stores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "coherer._store.joining", None)
    without = reading.Joining()
    without.load()
    assert without.function(large=True) is None
    monkeypatch.setattr(reading, "JOINING", without)
    store = stores()
    fill(store, [(queue, 100, 1) for _ in range(20) for queue in QUEUES])
    found = store.read_slices("t", 1, 0, max_bytes=1 << 20, max_count=100)
    assert [len(found.records), found.next_offset] == [20, 20]


def test_numpy_is_loaded_after_many_large_reads() -> None:
    joining = reading.Joining()
    for _ in range(1_000):
        assert joining.function(large=False) is None
    for _ in range(100):
        assert joining.function(large=True) is None
    wait_until(lambda: joining.function(large=True))
