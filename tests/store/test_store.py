from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.layout import COMMITTED, PREPARED, ROLLED_BACK, decode
from coherer._store import Draft, DraftBatch, OsFiles, ReadStatus, Store, StoreOptions
from coherer.errors import ClosedError, StoreError, UsageError


def read(store: Store, offset: int, *, topic: str = "t", queue_id: int = 0, **limits: Any) -> Any:
    limits = {"max_bytes": 1 << 20, "max_count": 100, **limits}
    return store.read(topic, queue_id, offset, **limits)


def test_appended_messages_are_read(harness: Any) -> None:
    store = harness.open()
    placed = store.append([harness.draft(0), harness.draft(0, queue_id=1), harness.draft(1)])
    assert [(p.queue_offset, p.size_bytes) for p in placed] == [(0, 192), (0, 192), (1, 192)]
    assert [p.physical_offset for p in placed] == [0, 192, 384]
    slices = read(store, 0)
    assert slices.status is ReadStatus.FOUND
    assert [harness.label(record) for record in slices.records] == ["t/0/0", "t/0/1"]
    assert (slices.offsets, slices.next_offset) == ([0, 1], 2)
    assert (slices.min_offset, slices.max_offset, slices.backlog_bytes) == (0, 2, 0)
    assert read(store, 0, queue_id=1).backlog_bytes == 192
    assert store.queue_range("t", 0) == (0, 2)
    assert (store.topics(), store.queues("t"), store.queues("u")) == (["t"], [0, 1], [])
    assert store.end_offset == 576


def test_every_field_is_kept(harness: Any, clock: Any) -> None:
    store = harness.open(store_host=bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big"))
    draft = Draft(
        "t", 3, b"hello", b"a\x01b",
        tag_code=7, flag=-5, sys_flag=1, born_ms=123, born_host=b"\x0a\0\0\x02\0\0\0\x07",
        reconsume_times=2, prepared_offset=99,
    )  # fmt: skip
    v6 = Draft("t", 3, b"hello", b"a\x01b", born_host=bytes(range(20)))
    store.append([draft, v6])
    first, second = [decode(record) for record in read(store, 0, queue_id=3).records]
    assert first.store_ms == clock.ms
    assert first.store_host == bytes.fromhex("0a00000100002a9f")
    assert (first.flag, first.sys_flag, first.born_ms) == (-5, 1, 123)
    assert (first.born_host, first.reconsume_times) == (draft.born_host, 2)
    assert (first.prepared_offset, first.topic, first.queue_id) == (99, "t", 3)
    assert (first.body, first.properties) == (b"hello", b"a\x01b")
    assert (second.born_host, second.sys_flag, second.queue_offset) == (v6.born_host, 16, 1)


def test_files_have_rocketmqs_format(harness: Any) -> None:
    """The files of docs/protocol/rocketmq.md, sections 6.1 and 13.13."""
    store = harness.open()
    store.append([harness.draft(number, tag="TagA") for number in range(100)])
    store.flush_queues()
    root = harness.directory
    names = [path.name for path in sorted((root / "commitlog").iterdir())]
    assert names == ["00000000000000000000", "00000000000000016384"]
    assert {path.stat().st_size for path in (root / "commitlog").iterdir()} == {16384}
    queue = sorted((root / "consumequeue" / "t" / "0").iterdir())
    assert [path.name for path in queue][:2] == ["00000000000000000000", "00000000000000000400"]
    assert {path.stat().st_size for path in queue} == {400}
    first, second = queue[0].read_bytes()[:20], queue[0].read_bytes()[20:40]
    size = decode(store.read("t", 0, 0, max_bytes=1, max_count=1).records[0]).size
    assert first.hex() == f"{0:016x}{size:08x}000000000027a807"
    assert second.hex() == f"{size:016x}{size:08x}000000000027a807"
    # The first file ends with a blank record.
    at = 16384 // size * size
    blank = (root / "commitlog" / names[0]).read_bytes()[at : at + 8]
    assert blank.hex() == f"{16384 - at:08x}cbd43194"
    assert (root / "abort").exists()
    assert (root / "lock").read_bytes() == b"lock"
    store.close()
    assert not (root / "abort").exists()
    assert (root / "checkpoint").stat().st_size == 4096


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9_000)), max_size=60), st.data())
def test_all_batches_are_read_after_reopening(
    tmp_path_factory: Any, sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("store")
    options = StoreOptions(segment_bytes=16384, queue_segment_bytes=100)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    store = Store.open(directory, options, now_ms=lambda: 5)
    rest = list(enumerate(sizes))
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        batch, rest = rest[:count], rest[count:]
        drafts = [
            Draft("t", queue_id, number.to_bytes(4) + bytes(size), b"")
            for number, (queue_id, size) in batch
        ]
        for draft, placed in zip(drafts, store.append(drafts), strict=True):
            assert placed.queue_offset == len(expected[draft.queue_id])
            expected[draft.queue_id].append(draft.body)
    for again in (False, True):
        if again:
            store.close()
            store = Store.open(directory, options, now_ms=lambda: 5)
            assert store.recovery.clean
            assert not store.recovery.damage
        for queue_id, bodies in expected.items():
            assert store.queue_range("t", queue_id) == (0, len(bodies))
            at, found = 0, list[bytes]()
            while at < len(bodies):
                limit = data.draw(st.integers(1, 30_000))
                slices = read(store, at, queue_id=queue_id, max_bytes=limit)
                assert slices.records
                assert sum(map(len, slices.records)) <= limit or len(slices.records) == 1
                found += [bytes(decode(record).body) for record in slices.records]
                assert slices.next_offset == at + len(slices.records)
                at = slices.next_offset
            assert found == bodies
    store.close()


def test_reads_at_the_ends_of_a_queue(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(number) for number in range(3)])
    assert read(store, 3).status is ReadStatus.EMPTY
    assert read(store, 4).status is ReadStatus.BEYOND
    assert read(store, 4).next_offset == 3
    assert read(store, -1).status is ReadStatus.BELOW
    assert read(store, -1).next_offset == 0
    assert read(store, 0, topic="u").status is ReadStatus.EMPTY
    assert read(store, 1, topic="u").status is ReadStatus.BEYOND
    assert read(store, 1, max_count=1).offsets == [1]
    assert read(store, 0, max_bytes=1).offsets == [0]
    assert store.queue_range("u", 0) == (0, 0)


def test_tag_filters_use_codes_only(harness: Any) -> None:
    store = harness.open()
    tags = ["a", "b", "a", "", "c"] * 20
    placed = store.append([harness.draft(n, tag=tag) for n, tag in enumerate(tags)])
    del placed
    slices = read(store, 1, tags=frozenset([97, 0]), max_count=5)
    assert slices.offsets == [2, 3, 5, 7, 8]
    assert slices.next_offset == 9
    slices = read(store, 0, tags=frozenset([12345]))
    assert (slices.status, slices.records) == (ReadStatus.NO_MATCH, [])
    assert slices.next_offset == 100
    assert read(store, 0, tags=frozenset([99]), max_bytes=400).offsets == [4, 9]


def test_a_filtered_read_scans_a_limited_number_of_entries(harness: Any) -> None:
    store = harness.open(segment_bytes=1 << 22, queue_segment_bytes=6_000_000)
    store.append([harness.draft(n, tag="a", size=10) for n in range(17_000)])
    slices = read(store, 5, tags=frozenset([1]))
    assert (slices.status, slices.next_offset) == (ReadStatus.NO_MATCH, 16_005)


def test_prepared_messages_and_rollbacks_are_in_no_queue(harness: Any) -> None:
    store = harness.open()
    kinds = [0, PREPARED, COMMITTED, ROLLED_BACK]
    drafts = [Draft("t", 0, b"%d" % kind, b"", sys_flag=kind) for kind in kinds]
    placed = store.append(drafts)
    assert [p.queue_offset for p in placed] == [0, 0, 1, 0]
    found = [bytes(decode(record).body) for record in read(store, 0).records]
    assert found == [b"0", b"8"]
    half = store.record_at(placed[1].physical_offset)
    assert half is not None
    assert decode(half).body == b"4"
    image = harness.crash()
    again = harness.open(image)
    assert [bytes(decode(r).body) for r in read(again, 0).records] == found
    assert not again.recovery.damage


@pytest.mark.parametrize(
    "draft",
    [
        Draft("../up", 0, b"", b""),
        Draft("", 0, b"", b""),
        Draft("t" * 128, 0, b"", b""),
        Draft("t.u", 0, b"", b""),
        Draft("ü", 0, b"", b""),
        Draft("t", -1, b"", b""),
        Draft("t", 1 << 31, b"", b""),
        Draft("t", 0, b"", bytes(32768)),
        Draft("t", 0, bytes(16384), b""),
    ],
)
def test_an_invalid_message_rejects_the_whole_batch(harness: Any, draft: Draft) -> None:
    store = harness.open()
    store.append([harness.draft(0)])
    with pytest.raises(UsageError):
        store.append([harness.draft(1), draft, harness.draft(2)])
    store.append([harness.draft(3)])
    assert harness.labels(store) == {0: "t/0/0", 1: "t/0/3"}
    assert not list(Path(harness.directory).parent.glob("up*"))


def test_the_largest_record_fills_a_log_file(harness: Any) -> None:
    store = harness.open()
    largest = 16384 - 8 - 92
    store.append([Draft("t", 0, bytes(largest), b"")] * 2)
    with pytest.raises(UsageError):
        store.append([Draft("t", 0, bytes(largest + 1), b"")])
    assert [len(record) for record in read(store, 0).records] == [16376, 16376]
    assert store.end_offset == 16384 + 16376


def test_an_empty_batch_changes_nothing(harness: Any) -> None:
    store = harness.open()
    assert store.append([]) == []
    assert store.end_offset == 0


def test_record_at(harness: Any) -> None:
    store = harness.open()
    placed = store.append([harness.draft(number) for number in range(2)])
    found = store.record_at(placed[1].physical_offset)
    assert found is not None
    assert harness.label(found) == "t/0/1"
    for nothing in (1, 191, store.end_offset, store.end_offset + 99_999, -5):
        assert store.record_at(nothing) is None


def test_slices_stay_valid_after_file_and_store_are_gone(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(number, size=4000) for number in range(9)])
    store.close()
    store = harness.open(retention_bytes=1)
    records = read(store, 0).records
    before = [bytes(record) for record in records]
    assert store.delete_expired(harness.clock.ms) == 2
    store.close()
    gc.collect()
    assert [bytes(record) for record in records] == before


def test_two_stores_cannot_share_a_directory(harness: Any) -> None:
    store = harness.open()
    with pytest.raises(StoreError, match="in use"):
        harness.open()
    store.close()
    harness.open()


def test_a_closed_store_rejects_calls(harness: Any) -> None:
    store = harness.open()
    store.close()
    store.close()
    attempts = [
        lambda: store.append([harness.draft(0)]),
        lambda: read(store, 0),
        store.flush_queues,
        store.tick,
    ]
    for attempt in attempts:
        with pytest.raises(ClosedError):
            attempt()


def test_store_times_never_decrease(harness: Any, clock: Any) -> None:
    store = harness.open()
    store.append([harness.draft(0)])
    clock.ms -= 10_000
    store.append([harness.draft(1)])
    times = [decode(record).store_ms for record in read(store, 0).records]
    assert times == [clock.ms + 10_000] * 2


def test_flush_moves_the_durable_offset(harness: Any) -> None:
    store = harness.open()
    assert store.durable_offset == store.flush() == 0
    store.append([harness.draft(number, size=4000) for number in range(9)])
    assert store.durable_offset == 0
    assert store.flush() == store.durable_offset == store.end_offset


def test_tick_flushes_at_its_intervals(harness: Any, clock: Any) -> None:
    store = harness.open()
    store.tick()  # the first of each interval
    store.tick()
    store.append([harness.draft(0)])
    store.tick()
    assert store.durable_offset == 0
    clock.ms += 500
    store.tick()
    assert store.durable_offset == store.end_offset
    checkpoint = harness.directory / "checkpoint"
    before = checkpoint.read_bytes() if checkpoint.exists() else b""
    clock.ms += 5_000
    store.tick()
    assert checkpoint.read_bytes() != before


def test_setting_the_clock_back_does_not_change_the_intervals(harness: Any, clock: Any) -> None:
    store = harness.open()
    store.tick()
    store.append([harness.draft(0)])
    clock.ms -= 3_600_000
    for _ in range(2):
        clock.ms += 500
        store.tick()
    assert store.durable_offset == store.end_offset


def test_with_sync_flush_tick_does_not_flush_the_log(harness: Any, clock: Any) -> None:
    store = harness.open(flush="sync")
    store.tick()
    store.append([harness.draft(0)])
    clock.ms += 4_999
    store.tick()
    assert store.durable_offset == 0


def test_a_deleted_topic_does_not_come_back(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(0), harness.draft(0, "u", key="k")])
    store.delete_topic("t")
    store.delete_topic("never-was")
    assert (store.topics(), store.queue_range("t", 0)) == (["u"], (0, 0))
    assert not (harness.directory / "consumequeue" / "t").exists()
    assert harness.everything(harness.open(harness.crash())) == {("u", 0): {0: "u/0/0"}}
    store.append([harness.draft(7)])
    assert harness.labels(store) == {0: "t/0/7"}
    again = harness.open(harness.crash("second"))
    assert harness.labels(again) == {0: "t/0/7"}
    assert not again.recovery.damage


def test_existing_files_keep_their_sizes(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(number) for number in range(100)])
    store.close()
    again = harness.open(segment_bytes=1 << 20, queue_segment_bytes=6_000_000)
    again.append([harness.draft(100)])
    assert harness.labels(again) == {number: f"t/0/{number}" for number in range(101)}


def test_a_failed_sync_stops_the_store(harness: Any) -> None:
    class Failing(OsFiles):
        broken = False

        def sync(self, handle: int) -> None:
            if self.broken:
                raise OSError(5, "Input/output error")
            super().sync(handle)

    files = Failing()
    store = harness.open(files=files)
    store.append([harness.draft(0)])
    files.broken = True
    with pytest.raises(StoreError, match="synced"):
        store.flush()
    files.broken = False
    # The kernel may have dropped the failed write: a later sync proves nothing.
    for attempt in (store.flush, store.flush_queues, lambda: store.append([harness.draft(1)])):
        with pytest.raises(StoreError):
            attempt()
    assert store.durable_offset == 0
    with pytest.raises(StoreError):
        store.close()
    assert not harness.open().recovery.clean


def test_an_error_of_close_leaves_no_directory_locked(harness: Any) -> None:
    """A network file system may report here that a write has failed."""

    class Failing(OsFiles):
        broken = False

        def close(self, handle: int) -> None:
            super().close(handle)
            if self.broken:
                raise OSError(122, "Disk quota exceeded")

    files = Failing()
    store = harness.open(files=files)
    store.append([harness.draft(0, key="k")])
    store.flush_queues()
    files.broken = True
    with pytest.raises(StoreError):
        store.close()
    assert harness.labels(harness.open()) == {0: "t/0/0"}


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_read_that_fails_names_its_queue(harness: Any, number: int) -> None:
    class Failing(OsFiles):
        broken = False

        def read(self, handle: int, size: int, offset: int) -> bytes:
            if self.broken:
                raise OSError(number, os.strerror(number))
            return super().read(handle, size, offset)

    files = Failing()
    store = harness.open(files=files)
    store.append([harness.draft(0, key="k")])
    store.flush_queues()
    files.broken = True
    reads: list[Callable[[], object]] = [
        lambda: store.read("t", 0, 0, max_bytes=100, max_count=1),
        lambda: store.read_slices("t", 0, 0, max_bytes=100, max_count=1),
        lambda: store.entries("t", 0, 0, 1),
        lambda: store.place_of("t", 0, 0),
        lambda: store.first_behind("t", 0, 0),
        lambda: store.after_blanks("t", 0, 0),
        lambda: store.offset_at_time("t", 0, 0),
    ]
    for read in reads:
        with pytest.raises(StoreError, match="ould not read queue 0 of topic t"):
            read()
    with pytest.raises(StoreError, match="search for a key in topic t"):
        store.by_key("t", "k")


def test_flushing_concurrently_with_appends(harness: Any) -> None:
    """Two threads work concurrently; a copy in between has all acknowledged messages."""
    store = harness.open(retention_bytes=60_000, flush_interval_ms=0, queue_flush_interval_ms=0)
    done = threading.Event()
    failures: list[BaseException] = []

    def flush_all() -> None:
        try:
            while not done.is_set():
                store.flush()
                store.flush_queues()
                store.tick()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=flush_all)
    thread.start()
    try:
        for number in range(400):
            store.append([harness.draft(number, "tu"[number % 2], n, key="k") for n in range(3)])
            harness.clock.ms += 1
            if number % 40 == 39:
                store.delete_expired(harness.clock.ms)
                store.delete_topic("v")
                store.append([harness.draft(number, "v")])
    finally:
        done.set()
        thread.join()
    assert not failures
    crashed = harness.open(harness.crash())
    assert harness.everything(crashed) == harness.everything(store)
    assert not crashed.recovery.damage
    assert store.queue_range("t", 0)[1] == 200
    assert store.min_offset > 0


def test_mapped_memory_is_released_and_mapped_again(harness: Any, clock: Any) -> None:
    store = harness.open(segment_bytes=1 << 24)
    store.append([harness.draft(number, size=9_000) for number in range(1000)])
    slices = read(store, 0, max_bytes=1 << 24, max_count=1000)
    before = [bytes(record) for record in slices.records]
    store.tick()
    assert [bytes(record) for record in slices.records] == before


@pytest.mark.parametrize(
    "wrong",
    [{"segment_bytes": 100}, {"retention_hours": -1}, {"open_files": 0}, {"store_host": b"here"}],
)
def test_invalid_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        StoreOptions(**wrong)


def test_many_entries_are_written_early_so_that_a_start_after_a_kill_is_quick(harness: Any) -> None:
    options: dict[str, Any] = {
        "segment_bytes": 1 << 26,
        "queue_segment_bytes": 6_000_000,
        "pending_entries_max": 1_000_000,
        "queue_flush_interval_ms": 3_600_000,
    }
    store = harness.open(**options)
    count, total = 20_000, 0
    for _ in range(8):
        store.append(
            [
                DraftBatch(
                    "t", 0, [b"x"] * count, [b""] * count, [0] * count, [0] * count, [()] * count
                )
            ]
        )
        total += count
        store.tick()
    recovered = harness.open(harness.crash(), **options)
    assert recovered.queue_range("t", 0) == (0, total)
    assert recovered.recovery.replayed < 100_000 < total


def test_the_queues_of_a_topic_are_found_without_looking_at_others(tmp_path: Path) -> None:
    """With 16,000 queues each look took 10 ms, also those of retention for each topic."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other) is True

    options = StoreOptions(segment_bytes=1 << 20, queue_segment_bytes=2000, index_enabled=False)
    with Store.open(tmp_path, options, now_ms=lambda: 0) as store:
        store.append(
            [Draft(f"t{number}", queue, b"x", b"") for number in range(100) for queue in (3, 1)]
        )
        assert store.queues(Name("t7")) == [1, 3]
        store.delete_topic(Name("t8"))
        assert store.queues("t8") == []
        assert compared < 50
        store.append([Draft("t8", 0, b"x", b"")])
        assert store.queues("t8") == [0]
    with Store.open(tmp_path, options, now_ms=lambda: 0) as store:
        assert (store.queues("t7"), store.queues("t8")) == ([1, 3], [0])
