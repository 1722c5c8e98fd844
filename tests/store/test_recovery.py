"""Recovery after a crash, after damage, and after a Java broker."""

from __future__ import annotations

import gc
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from coherer._record.layout import decode, encode
from coherer._store import DamagedRange, Store
from coherer._store.checkpoint import Checkpoint
from coherer.errors import DamagedStoreError


def fill(bench: Any, store: Store, count: int, *, begin: int = 0, **how: Any) -> list[int]:
    """Append small batches to three queues of two topics; return the log offsets."""
    log_offsets: list[int] = []
    for first in range(begin, begin + count, 5):
        drafts = [
            bench.draft(n, "tu"[n % 2], n % 3, tag="ab"[n % 2], **how)
            for n in range(first, min(first + 5, begin + count))
        ]
        log_offsets += [placed.physical_offset for placed in store.append(drafts)]
        bench.clock.ms += 7
    return log_offsets


def damage(directory: Path, offset: int, data: bytes, *, segment: int = 16_384) -> None:
    path = directory / "commitlog" / f"{offset - offset % segment:020d}"
    with path.open("r+b") as file:
        file.seek(offset % segment)
        file.write(data)


def flip(directory: Path, offset: int, bit: int = 0) -> None:
    path = directory / "commitlog" / f"{offset - offset % 16_384:020d}"
    byte = path.read_bytes()[offset % 16_384]
    damage(directory, offset, bytes([byte ^ 1 << bit]))


def test_a_fresh_directory_is_clean(bench: Any) -> None:
    report = bench.open().recovery
    assert report.clean
    assert (report.replayed, report.log_end, report.damage, report.notes) == (0, 0, (), ())
    assert str(report) == "closed; log 0 to 0; 0 records replayed"


@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_a_process_crash_loses_nothing(bench: Any, checkpoints: int) -> None:
    store = bench.open()
    for part in range(4):
        fill(bench, store, 60, begin=60 * part)
        if part < checkpoints:
            store.flush_queues()
    again = bench.open(bench.crash())
    assert bench.everything(again) == bench.everything(store)
    report = again.recovery
    assert not report.clean
    assert report.replayed == 60 * (4 - checkpoints)
    assert (report.damage, report.cut_bytes, report.log_end) == ((), 0, store.end_offset)
    # A checkpoint covers what recovery rebuilt: after the next crash nothing is replayed.
    bench.crash()
    third = bench.open(
        shutil.copytree(bench.directory.parent / "crashed", bench.directory.parent / "x")
    )
    assert third.recovery.replayed in (0, report.replayed)
    assert bench.everything(third) == bench.everything(store)


def test_appends_continue_after_a_crash(bench: Any) -> None:
    store = bench.open()
    fill(bench, store, 50)
    again = bench.open(bench.crash())
    fill(bench, again, 50, begin=50)
    fill(bench, store, 50, begin=50)
    assert bench.everything(again) == bench.everything(store)
    assert again.end_offset == store.end_offset


@pytest.mark.parametrize("vouched", [False, True])
def test_lost_queues_and_index_are_rebuilt(bench: Any, vouched: bool) -> None:
    store = bench.open()
    fill(bench, store, 100, key="k")
    if vouched:
        store.close()
        store = bench.open()
    image = bench.crash()
    shutil.rmtree(image / "consumequeue")
    again = bench.open(image)
    assert bench.everything(again) == bench.everything(store)
    assert len(again.by_key("t", "k", max_count=999)) == 50
    assert again.recovery.replayed == 100
    assert "consume queues are missing" in str(again.recovery)


def test_one_lost_queue_is_rebuilt(bench: Any) -> None:
    store = bench.open()
    fill(bench, store, 60)
    store.flush_queues()
    fill(bench, store, 60, begin=60)
    image = bench.crash()
    shutil.rmtree(image / "consumequeue" / "t" / "0")
    again = bench.open(image)
    assert again.queue_range("t", 0) == (0, 20)
    assert bench.labels(again) == bench.labels(store)
    assert "t/0" in again.recovery.repaired[0]
    again.close()
    assert bench.open(image).queue_range("t", 0) == (0, 20)


def test_a_torn_end_is_cut(bench: Any) -> None:
    store = bench.open()
    log_offsets = fill(bench, store, 50)
    expected = bench.everything(store)
    image = bench.crash()
    damage(image, log_offsets[-1] + 90, bytes(6_000))
    again = bench.open(image)
    assert again.recovery.cut_bytes == 90
    assert again.recovery.damage == ()
    assert again.end_offset == log_offsets[-1]
    assert "90 bytes of a torn end cut" in str(again.recovery)
    del expected["u", 49 % 3][max(expected["u", 49 % 3])]
    assert bench.everything(again) == expected
    # The space is used again, and no byte of the old record is left.
    fill(bench, again, 1, begin=1000, size=10)
    third = bench.open(bench.crash("x") if again.close() else image)
    assert third.recovery.clean
    assert not third.recovery.damage


def test_stale_entries_after_the_log_are_removed(bench: Any) -> None:
    """A power cut after the queues were written and before the log was."""
    store = bench.open()
    log_offsets = fill(bench, store, 60)
    bench.write_queues(store)
    image = bench.crash()
    damage(image, log_offsets[30], bytes(16_384 - log_offsets[30] % 16_384))
    for path in sorted((image / "commitlog").iterdir())[1:]:
        path.unlink()
    again = bench.open(image)
    assert again.recovery.cut_bytes == 0
    found = bench.everything(again)
    assert sum(map(len, found.values())) == 30
    fill(bench, again, 30, begin=30)
    assert bench.everything(again) == bench.everything(store)


def test_half_an_entry_in_a_page_of_its_own_is_dropped(bench: Any) -> None:
    """Pages of a queue reach the disk in any order: entry 102 is in two of them."""
    store = bench.open(queue_segment_bytes=6_000)
    store.append([bench.draft(number, size=1) for number in range(10)])
    store.flush_queues()
    store.append([bench.draft(number, size=1) for number in range(10, 280)])
    bench.write_queues(store)
    expected = bench.everything(store)
    image = bench.crash()
    path = image / "consumequeue" / "t" / "0" / f"{0:020d}"
    whole = path.read_bytes()
    for last in range(103, 280, 2):
        torn = whole[:200] + bytes(2048 - 200) + whole[2048 : last * 20]
        path.write_bytes(torn.ljust(6_000, b"\0"))
        entry = struct.unpack(">qiq", torn[2040:2060])
        assert entry[0] == 0
        assert entry[1] > 0
        copy = shutil.copytree(image, image.parent / f"torn{last}")
        again = bench.open(copy)
        assert bench.everything(again) == expected
        assert not again.recovery.damage
        again.close()


def test_damage_in_the_middle_is_reported_and_skipped(bench: Any) -> None:
    store = bench.open()
    log_offsets = fill(bench, store, 200)
    image = bench.crash()
    flip(image, log_offsets[20] + 100)  # a body
    damage(image, log_offsets[40], bytes(300))  # one record and a half
    flip(image, log_offsets[60] + 2)  # a length
    again = bench.open(image)
    report = again.recovery
    assert [(piece.begin, piece.end) for piece in report.damage] == [
        (log_offsets[20], log_offsets[21]),
        (log_offsets[40], log_offsets[42]),
        (log_offsets[60], log_offsets[61]),
    ]
    assert "body checksum" in report.damage[0].reason
    assert "DAMAGED" in str(report)
    assert (report.log_end, report.cut_bytes) == (store.end_offset, 0)
    expected = bench.everything(store)
    lost = {f"{'tu'[n % 2]}/{n % 3}/{n}" for n in (20, 40, 41, 60)}
    for queue in expected.values():
        for at in [at for at, name in queue.items() if name in lost]:
            del queue[at]
    assert bench.everything(again) == expected  # with the same queue offsets
    damaged = again.read("t", 20 % 3, 0, max_bytes=1 << 20, max_count=400).damaged
    assert len(damaged) == 1
    assert [piece.begin for piece in again.verify()] == [
        log_offsets[20],
        log_offsets[40],
        log_offsets[60],
    ]
    # It is reported at every open.
    again.close()
    assert bench.open(image, verify_bytes=1 << 20).recovery.damage != ()


def test_damage_before_the_checkpoint_is_found(bench: Any) -> None:
    store = bench.open()
    log_offsets = fill(bench, store, 200)
    expected = bench.everything(store)
    store.close()
    flip(bench.directory, log_offsets[198] + 120)
    flip(bench.directory, log_offsets[30] + 120)
    again = bench.open(verify_bytes=8_192)
    assert [piece.begin for piece in again.recovery.damage] == [log_offsets[198]]
    assert again.recovery.clean
    assert again.end_offset == log_offsets[199] + log_offsets[1]
    assert [piece.begin for piece in again.verify()] == [log_offsets[30], log_offsets[198]]
    lost = {"t/0/30", "t/0/198"}  # the damage is skipped
    assert bench.everything(again) == {
        key: {at: name for at, name in queue.items() if name not in lost}
        for key, queue in expected.items()
    }
    again.close()
    report = bench.open(verify_bytes=1 << 20).recovery
    assert [piece.begin for piece in report.damage] == [log_offsets[30], log_offsets[198]]


@pytest.mark.parametrize("clean", [True, False])
def test_records_before_the_checkpoint_are_not_cut_off(bench: Any, clean: bool) -> None:
    store = bench.open()
    log_offsets = fill(bench, store, 20)
    store.flush_queues()
    if clean:
        store.close()
        image = bench.directory
    else:
        image = bench.crash()
    flip(image, log_offsets[19] + 120)
    again = bench.open(image)
    report = again.recovery
    assert [piece.begin for piece in report.damage] == [log_offsets[19]]
    assert (again.end_offset, report.cut_bytes) == (report.damage[0].end, 0)
    # A queue offset that may have been read is never reused.
    again.append([bench.draft(20, "u", 1)])
    assert bench.labels(again, "u", 1)[4] == "u/1/20"


def test_fields_without_a_checksum_are_compared_with_the_queue(bench: Any) -> None:
    store = bench.open()
    log_offsets = fill(bench, store, 20)
    store.close()
    flip(bench.directory, log_offsets[5] + 27, 1)  # the queue offset
    flip(bench.directory, log_offsets[9] + 15)  # the queue
    report = bench.open().recovery
    assert [piece.begin for piece in report.damage] == [log_offsets[5], log_offsets[9]]
    assert {piece.reason for piece in report.damage} == {"its queue knows another record"}


def test_an_impossible_queue_offset_is_rejected(bench: Any) -> None:
    store = bench.open()
    log_offsets = fill(bench, store, 20)
    image = bench.crash()
    flip(image, log_offsets[9] + 20, 6)  # the highest byte of the queue offset
    again = bench.open(image)
    assert [piece.begin for piece in again.recovery.damage] == [log_offsets[9]]
    assert sum(map(len, bench.everything(again).values())) == 19


def test_a_missing_file_of_the_log_is_damage(bench: Any) -> None:
    store = bench.open()
    log_offsets = fill(bench, store, 300)
    image = bench.crash()
    (image / "commitlog" / f"{16_384:020d}").unlink()
    again = bench.open(image)
    (piece,) = again.recovery.damage
    assert (piece.begin, piece.end) == (16_384, 32_768)
    assert piece.reason == "a file is missing"
    expected = bench.everything(store)
    kept = {f"{'tu'[n % 2]}/{n % 3}/{n}" for n, at in enumerate(log_offsets) if at // 16_384 != 1}
    found = bench.everything(again)
    assert {name for queue in found.values() for name in queue.values()} == kept
    for key, queue in found.items():
        assert queue.items() <= expected[key].items()


def test_a_lost_log_does_not_reuse_offsets(bench: Any) -> None:
    store = bench.open()
    fill(bench, store, 20)
    store.close()
    shutil.rmtree(bench.directory / "commitlog")
    again = bench.open()
    assert [piece.reason for piece in again.recovery.damage] == ["a file is missing"]
    again.append([bench.draft(20, "u", 1)])
    assert bench.labels(again, "u", 1) == {4: "u/1/20"}
    assert again.end_offset > store.end_offset


def test_a_body_that_contains_records_is_not_scanned(bench: Any) -> None:
    """The body contains a valid record, even with the right offset."""
    store = bench.open()
    store.append([bench.draft(0)])
    inside_at = store.end_offset + 88
    inside = encode(
        "evil", b"", b"", queue_id=0, queue_offset=0, physical_offset=inside_at, store_ms=1
    )
    draft = bench.draft(1)
    store.append([type(draft)("t", 0, inside + bytes(50), b""), bench.draft(2)])
    flip(bench.directory, inside_at + len(inside) + 3)
    again = bench.open(bench.crash())
    assert again.topics() == ["t"]
    assert len(again.recovery.damage) == 1
    assert bench.labels(again) == {0: "t/0/0", 2: "t/0/2"}


@pytest.mark.parametrize("seed", range(12))
def test_any_flipped_bit_is_reported_or_harmless(bench: Any, seed: int) -> None:
    chance = random.Random(seed)
    store = bench.open()
    log_offsets = [*fill(bench, store, 150), store.end_offset]
    expected = bench.everything(store)
    store.close()
    hit = chance.randrange(150)
    at = chance.randrange(
        log_offsets[hit],
        log_offsets[hit + 1] if log_offsets[hit + 1] % 16_384 else log_offsets[hit] + 99,
    )
    flip(bench.directory, at, chance.randrange(8))
    again = bench.open(verify_bytes=1 << 20)
    found = bench.everything(again)
    name = f"{'tu'[hit % 2]}/{hit % 3}/{hit}"
    if again.recovery.damage:
        assert [piece.begin for piece in again.recovery.damage] == [log_offsets[hit]]
        for queue in expected.values():
            for offset in [offset for offset, text in queue.items() if text == name]:
                del queue[offset]
    else:  # fields without a checksum: flags, times, hosts, properties
        within = at - log_offsets[hit]
        assert 16 <= within < 20 or 36 <= within < 84 or within > 88 + 100 or within == 8
    assert found == expected


def test_java_closed_the_directory(bench: Any, clock: Any) -> None:
    """Java changes the times of the checkpoint, so Coherer's part is ignored."""
    store = bench.open()
    fill(bench, store, 30)
    store.close()
    path = bench.directory / "checkpoint"
    path.write_bytes(struct.pack(">qqq", clock.ms + 1, clock.ms + 1, 0) + path.read_bytes()[24:])
    assert Checkpoint.decode(path.read_bytes()).offset is None
    again = bench.open()
    assert again.recovery.replayed == 0
    assert again.recovery.replayed_from == again.end_offset == store.end_offset


def test_java_was_killed(bench: Any, clock: Any) -> None:
    """The times determine the log file from which on queues may lack entries."""
    store = bench.open()
    fill(bench, store, 100)
    clock.ms += 10_000
    middle_ms = clock.ms
    fill(bench, store, 200, begin=100)
    store.flush_queues()
    image = bench.crash()
    times = struct.pack(">qqq", middle_ms + 3_100, middle_ms + 3_050, 0)
    (image / "checkpoint").write_bytes(times.ljust(4096, b"\0"))
    expected = bench.everything(store)
    again = bench.open(image)
    assert again.recovery.replayed_from % 16_384 == 0
    assert 0 < again.recovery.replayed_from < again.end_offset
    first = again.record_at(again.recovery.replayed_from)
    assert first is not None
    assert decode(first).store_ms <= middle_ms + 50
    assert bench.everything(again) == expected


def test_an_empty_checkpoint_of_java(bench: Any) -> None:
    store = bench.open()
    fill(bench, store, 50)
    store.close()
    image = bench.directory
    (image / "checkpoint").write_bytes(bytes(4096))
    (image / "abort").touch()
    again = bench.open()
    assert (again.recovery.replayed_from, again.recovery.replayed) == (0, 50)


def test_files_with_inconsistent_names(bench: Any) -> None:
    store = bench.open()
    fill(bench, store, 5)
    store.close()
    log = bench.directory / "commitlog"
    (log / f"{0:020d}").rename(log / f"{77:020d}")
    with pytest.raises(DamagedStoreError, match="names"):
        bench.open()
    (log / f"{77:020d}").rename(log / f"{0:020d}")
    assert bench.open().end_offset == store.end_offset  # the lock was released


def test_unknown_files_are_ignored(bench: Any) -> None:
    store = bench.open()
    fill(bench, store, 5)
    store.close()
    for name in ("commitlog/notes.txt", "consumequeue/t/x", "consumequeue/.hidden", "index/a"):
        (bench.directory / name).write_text("?")
    (bench.directory / "consumequeue" / "a b" / "0").mkdir(parents=True)
    again = bench.open()
    assert again.topics() == ["t", "u"]
    assert "a b/0 is not a queue" in again.recovery.notes


def test_a_recreated_topic_with_a_checkpoint_of_java(bench: Any) -> None:
    """The replay finds the deleted messages and then the new ones, which are kept."""
    store = bench.open()
    store.append([bench.draft(number) for number in range(30)])
    store.delete_topic("t")
    store.append([bench.draft(number) for number in range(100, 105)])
    image = bench.crash()
    (image / "checkpoint").write_bytes(bytes(4096))
    again = bench.open(image)
    assert bench.labels(again) == {at: f"t/0/{100 + at}" for at in range(5)}
    assert (again.recovery.replayed, again.recovery.damage) == (35, ())


def test_records_of_deleted_topics_are_noted(bench: Any) -> None:
    store = bench.open()
    store.append([bench.draft(number) for number in range(3)])
    store.append([bench.draft(0, "u")])
    store.delete_topic("t")
    store.close()
    again = bench.open()
    assert again.recovery.notes == ("3 records are in no queue: their topics were deleted",)
    assert again.recovery.damage == ()
    assert again.topics() == ["u"]


def test_a_file_lost_while_the_store_was_closed(bench: Any) -> None:
    store = bench.open()
    fill(bench, store, 300)
    expected = bench.everything(store)
    store.close()
    (bench.directory / "commitlog" / f"{16_384:020d}").unlink()
    again = bench.open(verify_bytes=0)
    assert again.recovery.damage == (DamagedRange(16_384, 32_768, "a file is missing"),)
    slices = again.read("t", 0, 0, max_bytes=1 << 20, max_count=20)
    assert slices.next_offset == 20
    kept = 0
    for key, queue in bench.everything(again).items():
        assert queue.items() <= expected[key].items()
        kept += len(queue)
    assert 200 < kept == 300 - again.recovery.lost
    (piece,) = again.verify()
    assert (piece.begin, piece.end) == (16_384, 32_768)
    assert again.offset_at_time("t", 0, bench.clock.ms) == again.queue_range("t", 0)[1]


def test_a_record_with_an_invalid_topic(bench: Any) -> None:
    store = bench.open()
    log_offsets = fill(bench, store, 20)
    store.flush_queues()
    log_offsets += fill(bench, store, 20, begin=20)
    image = bench.crash()
    for number in (5, 25):  # one verified, one replayed
        damage(image, log_offsets[number] + 88 + 100 + 1, b"/")
    again = bench.open(image)
    assert [piece.reason for piece in again.recovery.damage] == ["topic", "topic"]
    assert sum(map(len, bench.everything(again).values())) == 38


def handles() -> int:
    """The number of open files of this process; 0 if the system does not tell."""
    gc.collect()
    directory = Path("/proc/self/fd")
    return len(list(directory.iterdir())) if directory.exists() else 0


def test_many_queues_need_few_handles(bench: Any) -> None:
    before = handles()
    store = bench.open(open_files=2)
    for number in range(10):
        store.append([bench.draft(number, queue_id=queue_id) for queue_id in range(30)])
    expected = bench.everything(store)
    assert sum(map(len, expected.values())) == 300
    assert handles() - before < 15
    assert bench.everything(bench.open(bench.crash(), open_files=1)) == expected


def test_a_closed_store_holds_nothing(bench: Any) -> None:
    before = handles()
    for _ in range(5):
        store = bench.open()
        fill(bench, store, 60, key="k")
        bench.everything(store)
        store.by_key("t", "k")
        store.close()
    assert handles() <= before
