"""Recovery after a crash, after damage, and after a Java broker."""

from __future__ import annotations

import errno
import gc
import itertools
import random
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coherer._record.layout import decode, encode, spans
from coherer._store import DamagedRange, OsFiles, Store, checkpointer
from coherer._store.checkpoint import Checkpoint
from coherer.errors import DamagedStoreError, StoreError
from tests.copies import copy_tree
from tests.power import Unknown
from tests.store.conftest import tiny


def fill(harness: Any, store: Store, count: int, *, begin: int = 0, **how: Any) -> list[int]:
    """Append small batches to three queues of two topics; return the log offsets."""
    log_offsets: list[int] = []
    for first in range(begin, begin + count, 5):
        drafts = [
            harness.draft(n, "tu"[n % 2], n % 3, tag="ab"[n % 2], **how)
            for n in range(first, min(first + 5, begin + count))
        ]
        log_offsets += [placed.physical_offset for placed in store.append(drafts)]
        harness.clock.ms += 7
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


def test_a_fresh_directory_is_clean(harness: Any) -> None:
    report = harness.open().recovery
    assert report.clean
    assert (report.replayed, report.log_end, report.damage, report.notes) == (0, 0, (), ())
    assert str(report) == "closed; log 0 to 0; 0 records replayed"


@pytest.mark.parametrize("checkpoints", [0, 1, 3])
def test_a_process_crash_loses_nothing(harness: Any, checkpoints: int) -> None:
    store = harness.open()
    for part in range(4):
        fill(harness, store, 60, begin=60 * part)
        if part < checkpoints:
            store.flush_queues()
    again = harness.open(harness.crash())
    assert harness.everything(again) == harness.everything(store)
    report = again.recovery
    assert not report.clean
    assert report.replayed == 60 * (4 - checkpoints)
    assert (report.damage, report.cut_bytes, report.log_end) == ((), 0, store.end_offset)
    # A checkpoint covers what recovery rebuilt: after the next crash nothing is replayed.
    harness.crash()
    third = harness.open(
        copy_tree(harness.directory.parent / "crashed", harness.directory.parent / "x")
    )
    assert third.recovery.replayed in (0, report.replayed)
    assert harness.everything(third) == harness.everything(store)


def test_a_record_whose_properties_were_not_written_completely_is_cut_off(harness: Any) -> None:
    store = harness.open()
    offsets = fill(harness, store, 70, key="a-key-that-takes-some-space")
    assert store.end_offset < 16_384
    log = next((store.directory / "commitlog").iterdir()).read_bytes()
    cut = [
        (number, sector)
        for number, offset in enumerate(offsets)
        if (sector := (spans(log, offset).properties_begin | 511) + 1)
        < spans(log, offset).properties_end
    ]
    assert len(cut) > 3
    for number, sector in cut:
        crashed = harness.crash(f"crashed-{number}")
        damage(crashed, sector, bytes(16_384 - sector))
        again = harness.open(crashed)
        assert again.end_offset == offsets[number]
        assert again.recovery.replayed == number
        assert again.recovery.damage == ()
        again.close()


def test_appends_continue_after_a_crash(harness: Any) -> None:
    store = harness.open()
    fill(harness, store, 50)
    again = harness.open(harness.crash())
    fill(harness, again, 50, begin=50)
    fill(harness, store, 50, begin=50)
    assert harness.everything(again) == harness.everything(store)
    assert again.end_offset == store.end_offset


@pytest.mark.parametrize("vouched", [False, True])
def test_lost_queues_and_index_are_rebuilt(harness: Any, vouched: bool) -> None:
    store = harness.open()
    fill(harness, store, 100, key="k")
    if vouched:
        store.close()
        store = harness.open()
    image = harness.crash()
    shutil.rmtree(image / "consumequeue")
    again = harness.open(image)
    assert harness.everything(again) == harness.everything(store)
    assert len(again.by_key("t", "k", max_count=999)) == 50
    assert again.recovery.replayed == 100
    assert "consume queues are missing" in str(again.recovery)


def test_one_lost_queue_is_rebuilt(harness: Any) -> None:
    store = harness.open()
    fill(harness, store, 60)
    store.flush_queues()
    fill(harness, store, 60, begin=60)
    image = harness.crash()
    shutil.rmtree(image / "consumequeue" / "t" / "0")
    again = harness.open(image)
    assert again.queue_range("t", 0) == (0, 20)
    assert harness.labels(again) == harness.labels(store)
    assert "t/0" in again.recovery.repaired[0]
    again.close()
    assert harness.open(image).queue_range("t", 0) == (0, 20)


def test_a_torn_end_is_cut(harness: Any) -> None:
    store = harness.open()
    log_offsets = fill(harness, store, 50)
    expected = harness.everything(store)
    image = harness.crash()
    damage(image, log_offsets[-1] + 90, bytes(6_000))
    again = harness.open(image)
    assert again.recovery.cut_bytes == 90
    assert again.recovery.damage == ()
    assert again.end_offset == log_offsets[-1]
    assert "90 bytes of a torn end cut" in str(again.recovery)
    del expected["u", 49 % 3][max(expected["u", 49 % 3])]
    assert harness.everything(again) == expected
    # The space is used again, and no byte of the old record is left.
    fill(harness, again, 1, begin=1000, size=10)
    third = harness.open(harness.crash("x") if again.close() else image)
    assert third.recovery.clean
    assert not third.recovery.damage


def test_stale_entries_after_the_log_are_removed(harness: Any) -> None:
    """A power cut after the queues were written and before the log was."""
    store = harness.open()
    log_offsets = fill(harness, store, 60)
    harness.write_queues(store)
    image = harness.crash()
    damage(image, log_offsets[30], bytes(16_384 - log_offsets[30] % 16_384))
    for path in sorted((image / "commitlog").iterdir())[1:]:
        path.unlink()
    again = harness.open(image)
    assert again.recovery.cut_bytes == 0
    found = harness.everything(again)
    assert sum(map(len, found.values())) == 30
    fill(harness, again, 30, begin=30)
    assert harness.everything(again) == harness.everything(store)


def test_half_an_entry_in_a_page_of_its_own_is_dropped(harness: Any) -> None:
    """Pages of a queue reach the disk in any order: entry 102 is in two of them."""
    store = harness.open(queue_segment_bytes=6_000)
    store.append([harness.draft(number, size=1) for number in range(10)])
    store.flush_queues()
    store.append([harness.draft(number, size=1) for number in range(10, 280)])
    harness.write_queues(store)
    expected = harness.everything(store)
    image = harness.crash()
    path = image / "consumequeue" / "t" / "0" / f"{0:020d}"
    whole = path.read_bytes()
    for last in range(103, 280, 2):
        torn = whole[:200] + bytes(2048 - 200) + whole[2048 : last * 20]
        path.write_bytes(torn.ljust(6_000, b"\0"))
        entry = struct.unpack(">qiq", torn[2040:2060])
        assert entry[0] == 0
        assert entry[1] > 0
        copy = copy_tree(image, image.parent / f"torn{last}")
        again = harness.open(copy)
        assert harness.everything(again) == expected
        assert not again.recovery.damage
        again.close()


@pytest.mark.parametrize("durable", [0, 25])
@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_takes_some_files_of_a_queue(
    harness: Any, tmp_path: Path, durable: int, seed: int
) -> None:
    """New files are missing, or have lost their sizes, in any order."""
    chance = random.Random(seed)
    store = harness.open(queue_segment_bytes=400)  # 20 entries
    if durable:
        store.append([harness.draft(number) for number in range(durable)])
        store.flush_queues()
    store.append([harness.draft(number) for number in range(durable, 110)])
    image = tmp_path / "image"
    copy_tree(harness.directory, image)
    store.close()  # writes all entries
    queue = Path("consumequeue", "t", "0")
    shutil.rmtree(image / queue, ignore_errors=True)
    copy_tree(harness.directory / queue, image / queue)
    for path in sorted((image / queue).iterdir()):
        if int(path.name) < durable * 20 or chance.random() < 0.5:
            continue
        if chance.random() < 0.5:
            path.unlink()
        else:
            path.write_bytes(b"")
    again = harness.open(image, queue_segment_bytes=400)
    expected = {number: f"t/0/{number}" for number in range(110)}
    assert harness.labels(again) == expected
    assert not again.recovery.damage
    again.close()
    assert harness.labels(harness.open(image, queue_segment_bytes=400)) == expected


def test_damage_in_the_middle_is_reported_and_skipped(harness: Any) -> None:
    store = harness.open()
    log_offsets = fill(harness, store, 200)
    image = harness.crash()
    flip(image, log_offsets[20] + 100)  # a body
    damage(image, log_offsets[40], bytes(300))  # one record and a half
    flip(image, log_offsets[60] + 2)  # a length
    again = harness.open(image)
    report = again.recovery
    assert [(piece.begin, piece.end) for piece in report.damage] == [
        (log_offsets[20], log_offsets[21]),
        (log_offsets[40], log_offsets[42]),
        (log_offsets[60], log_offsets[61]),
    ]
    assert "body checksum" in report.damage[0].reason
    assert "DAMAGED" in str(report)
    assert (report.log_end, report.cut_bytes) == (store.end_offset, 0)
    expected = harness.everything(store)
    lost = {f"{'tu'[n % 2]}/{n % 3}/{n}" for n in (20, 40, 41, 60)}
    for queue in expected.values():
        for at in [at for at, name in queue.items() if name in lost]:
            del queue[at]
    assert harness.everything(again) == expected  # with the same queue offsets
    damaged = again.read("t", 20 % 3, 0, max_bytes=1 << 20, max_count=400).damaged
    assert len(damaged) == 1
    assert [piece.begin for piece in again.verify()] == [
        log_offsets[20],
        log_offsets[40],
        log_offsets[60],
    ]
    # It is reported at every open.
    again.close()
    assert harness.open(image, verify_bytes=1 << 20).recovery.damage != ()


def test_damage_before_the_checkpoint_is_found(harness: Any) -> None:
    store = harness.open()
    log_offsets = fill(harness, store, 200)
    expected = harness.everything(store)
    store.close()
    flip(harness.directory, log_offsets[198] + 120)
    flip(harness.directory, log_offsets[30] + 120)
    again = harness.open(verify_bytes=8_192)
    assert [piece.begin for piece in again.recovery.damage] == [log_offsets[198]]
    assert again.recovery.clean
    assert again.end_offset == log_offsets[199] + log_offsets[1]
    assert [piece.begin for piece in again.verify()] == [log_offsets[30], log_offsets[198]]
    lost = {"t/0/30", "t/0/198"}  # the damage is skipped
    assert harness.everything(again) == {
        key: {at: name for at, name in queue.items() if name not in lost}
        for key, queue in expected.items()
    }
    again.close()
    report = harness.open(verify_bytes=1 << 20).recovery
    assert [piece.begin for piece in report.damage] == [log_offsets[30], log_offsets[198]]


@pytest.mark.parametrize("clean", [True, False])
def test_records_before_the_checkpoint_are_not_cut_off(harness: Any, clean: bool) -> None:
    store = harness.open()
    log_offsets = fill(harness, store, 20)
    store.flush_queues()
    if clean:
        store.close()
        image = harness.directory
    else:
        image = harness.crash()
    flip(image, log_offsets[19] + 120)
    again = harness.open(image)
    report = again.recovery
    assert [piece.begin for piece in report.damage] == [log_offsets[19]]
    assert (again.end_offset, report.cut_bytes) == (report.damage[0].end, 0)
    # A queue offset that may have been read is never reused.
    again.append([harness.draft(20, "u", 1)])
    assert harness.labels(again, "u", 1)[4] == "u/1/20"


def test_fields_without_a_checksum_are_compared_with_the_queue(harness: Any) -> None:
    store = harness.open()
    log_offsets = fill(harness, store, 20)
    store.close()
    flip(harness.directory, log_offsets[5] + 27, 1)  # the queue offset
    flip(harness.directory, log_offsets[9] + 15)  # the queue
    report = harness.open().recovery
    assert [piece.begin for piece in report.damage] == [log_offsets[5], log_offsets[9]]
    assert {piece.reason for piece in report.damage} == {"its queue knows another record"}


def test_an_impossible_queue_offset_is_rejected(harness: Any) -> None:
    store = harness.open()
    log_offsets = fill(harness, store, 20)
    image = harness.crash()
    flip(image, log_offsets[9] + 20, 6)  # the highest byte of the queue offset
    again = harness.open(image)
    assert [piece.begin for piece in again.recovery.damage] == [log_offsets[9]]
    assert sum(map(len, harness.everything(again).values())) == 19


@pytest.mark.parametrize("is_last", [False, True])
def test_a_damaged_message_keeps_its_offset(harness: Any, tmp_path: Path, *, is_last: bool) -> None:
    """No other message of its queue follows, so only its own record says which offset it had."""
    store = harness.open()
    placed = store.append([harness.draft(0, "t"), harness.draft(1, "t")])[-1]
    if not is_last:
        store.append([harness.draft(2, "u")])
    image = harness.crash()
    flip(image, placed.physical_offset + 90)  # in its body
    again = harness.open(image)
    assert harness.labels(again) == {0: "t/0/0"}
    assert again.append([harness.draft(3, "t")])[0].queue_offset > placed.queue_offset
    copy_tree(image, tmp_path / "twice")
    assert harness.labels(again) == harness.labels(harness.open(tmp_path / "twice"))


def test_a_queue_is_rebuilt_around_a_record_with_another_offset(harness: Any) -> None:
    store = harness.open()
    placed = store.append([harness.draft(n) for n in range(20)])
    store.close()
    flip(store.directory, placed[5].physical_offset + 22)  # its queue offset
    entries = store.directory / "consumequeue/t/0" / f"{0:020d}"
    content = bytearray(entries.read_bytes())
    content[10] ^= 1  # the size of the first entry
    entries.write_bytes(content)
    found = harness.labels(harness.open())
    assert found == {n: f"t/0/{n}" for n in range(20) if n != 5}


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_queue_that_is_rebuilt_gives_out_no_offset_again(harness: Any, *, is_clean: bool) -> None:
    store = harness.open()
    placed = store.append([harness.draft(n) for n in range(20)])
    store.flush_queues()  # the checkpoint covers all of them
    if is_clean:
        store.close()
    image = harness.crash()
    flip(image, placed[-1].physical_offset + 90)  # the body of the last message
    entries = image / "consumequeue/t/0" / f"{0:020d}"
    content = bytearray(entries.read_bytes())
    content[60] ^= 1 << 6  # the place of the fourth entry
    entries.write_bytes(content)
    again = harness.open(image, files=Unknown(), flush="sync")
    assert harness.labels(again) == {n: f"t/0/{n}" for n in range(19)}
    assert again.append([harness.draft(20)])[0].queue_offset >= 20


@pytest.mark.parametrize(("at", "bit"), [(60, 1 << 6), (10, 1), (11, 1)])
def test_a_message_after_the_checkpoint_follows_a_damaged_one_in_a_rebuilt_queue(
    harness: Any, at: int, bit: int
) -> None:
    """What is rebuilt ends before the damaged message, and what is replayed begins after it."""
    store = harness.open()
    placed = store.append([harness.draft(n) for n in range(20)])
    store.flush_queues()
    store.append([harness.draft(20), harness.draft(21)])
    image = harness.crash()
    flip(image, placed[-1].physical_offset + 90)  # the body of the last message of the checkpoint
    entries = image / "consumequeue/t/0" / f"{0:020d}"
    content = bytearray(entries.read_bytes())
    content[at] ^= bit  # the place of the fourth entry, or the size of the first
    entries.write_bytes(content)
    again = harness.open(image)
    assert harness.labels(again) == {n: f"t/0/{n}" for n in range(22) if n != 19}
    assert [one.begin for one in again.recovery.damage] == [placed[-1].physical_offset]


def test_a_missing_file_makes_no_long_gap(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue writes the gap: for a file of Java's size it would have millions of entries."""
    monkeypatch.setattr(checkpointer, "DAMAGED_MAX", 3)
    store = harness.open()
    store.append([harness.draft(n, size=1_000) for n in range(60)])
    store.flush_queues()
    image = harness.crash()
    (image / "commitlog" / f"{16_384:020d}").unlink()
    entries = image / "consumequeue/t/0" / f"{800:020d}"
    content = bytearray(entries.read_bytes())
    content[(57 - 40) * 20 + 10] ^= 1
    entries.write_bytes(content)
    again = harness.open(image)
    assert again.recovery.repaired
    assert 60 <= again.append([harness.draft(60)])[0].queue_offset <= 63


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("appends", [False, True])
def test_a_damaged_end_is_remembered_if_the_disk_is_full_at_the_start(
    harness: Any, full_files: Any, tmp_path: Path, flush: str, *, appends: bool
) -> None:
    """Readers have seen the message that is cut off: no other one may get its offset. And none that
    is stored behind the gap may be lost."""
    store = harness.open(flush=flush)
    fill(harness, store, 10)
    store.flush_queues()
    (last,) = store.append([harness.draft(10)])
    store.flush()
    damaged = harness.crash()
    flip(damaged, last.physical_offset + 100)
    for step in itertools.count():
        image, later = tmp_path / f"image{step}", tmp_path / f"later{step}"
        copy_tree(damaged, image)
        kept = list[int]()
        full_files.fail_at = step
        with suppress(StoreError):
            again = harness.open(image, files=full_files, flush=flush)
            if appends:
                kept += [one.queue_offset for one in again.append([harness.draft(11)])]
                again.flush()
        copy_tree(image, later)  # the process is killed
        third = harness.open(later, flush=flush)
        assert [at for at, text in harness.labels(third).items() if text == "t/0/11"] == kept
        kept += [one.queue_offset for one in third.append([harness.draft(12)])]
        assert min(kept) > last.queue_offset
        if full_files.fail_at is not None:
            break
        assert step < 1_000


def test_what_is_replayed_stays_reserved_if_it_cannot_be_written(
    harness: Any, full_files: Any
) -> None:
    """The process is killed, the disk is full at the next start, and then the power fails. Queues
    continue behind the offsets that they had after the checkpoint: of both processes."""
    store = harness.open()
    store.append([harness.draft(0)])
    store.flush_queues()
    for n in range(1, 1_001):
        store.append([harness.draft(n)])
    image = harness.crash()
    before = Checkpoint.decode((image / "checkpoint").read_bytes())
    full_files.free_sectors = 0
    again = harness.open(image, files=full_files)
    assert any("The disk is full" in note for note in again.recovery.notes)
    full_files.free_sectors = 4
    (last,) = again.append([harness.draft(1_001)])
    after = Checkpoint.decode((image / "checkpoint").read_bytes())
    assert after.offset == before.offset
    assert after.reserve > last.queue_offset - 1


def test_a_damaged_time_is_given_to_no_other_message(harness: Any) -> None:
    store = harness.open()
    offsets = fill(harness, store, 20)
    image = harness.crash()
    flip(image, offsets[10] + 56, 5)  # the highest byte of its store time
    again = harness.open(image)
    harness.clock.ms += 1
    placed = again.append([harness.draft(20)])[0]
    found = again.read("t", 0, placed.queue_offset, max_bytes=1 << 20, max_count=1)
    assert decode(found.records[0]).store_ms == harness.clock.ms


def test_a_missing_file_of_the_log_is_damage(harness: Any) -> None:
    store = harness.open()
    log_offsets = fill(harness, store, 300)
    image = harness.crash()
    (image / "commitlog" / f"{16_384:020d}").unlink()
    again = harness.open(image)
    (piece,) = again.recovery.damage
    assert (piece.begin, piece.end) == (16_384, 32_768)
    assert piece.reason == "a file is missing"
    expected = harness.everything(store)
    kept = {f"{'tu'[n % 2]}/{n % 3}/{n}" for n, at in enumerate(log_offsets) if at // 16_384 != 1}
    found = harness.everything(again)
    assert {name for queue in found.values() for name in queue.values()} == kept
    for key, queue in found.items():
        assert queue.items() <= expected[key].items()


def test_a_lost_log_does_not_reuse_offsets(harness: Any) -> None:
    store = harness.open()
    fill(harness, store, 20)
    store.close()
    shutil.rmtree(harness.directory / "commitlog")
    again = harness.open()
    assert [piece.reason for piece in again.recovery.damage] == ["a file is missing"]
    again.append([harness.draft(20, "u", 1)])
    assert harness.labels(again, "u", 1) == {4: "u/1/20"}
    assert again.end_offset > store.end_offset


def test_a_body_that_contains_records_is_not_scanned(harness: Any) -> None:
    """The body contains a valid record, even with the right offset."""
    store = harness.open()
    store.append([harness.draft(0)])
    inside_at = store.end_offset + 88
    inside = encode(
        "evil", b"", b"", queue_id=0, queue_offset=0, physical_offset=inside_at, store_ms=1
    )
    draft = harness.draft(1)
    store.append([type(draft)("t", 0, inside + bytes(50), b""), harness.draft(2)])
    flip(harness.directory, inside_at + len(inside) + 3)
    again = harness.open(harness.crash())
    assert again.topics() == ["t"]
    assert len(again.recovery.damage) == 1
    assert harness.labels(again) == {0: "t/0/0", 2: "t/0/2"}


@pytest.mark.parametrize("seed", range(12))
def test_any_flipped_bit_is_reported_or_harmless(harness: Any, seed: int) -> None:
    chance = random.Random(seed)
    store = harness.open()
    log_offsets = [*fill(harness, store, 150), store.end_offset]
    expected = harness.everything(store)
    store.close()
    hit = chance.randrange(150)
    at = chance.randrange(
        log_offsets[hit],
        log_offsets[hit + 1] if log_offsets[hit + 1] % 16_384 else log_offsets[hit] + 99,
    )
    flip(harness.directory, at, chance.randrange(8))
    again = harness.open(verify_bytes=1 << 20)
    found = harness.everything(again)
    name = f"{'tu'[hit % 2]}/{hit % 3}/{hit}"
    within, names_another_topic = at - log_offsets[hit], 88 + 100 + 1
    if again.recovery.damage or within == names_another_topic:
        damage = [piece.begin for piece in again.recovery.damage]
        assert damage == [log_offsets[hit]] or within == names_another_topic
        for queue in expected.values():
            for offset in [offset for offset, text in queue.items() if text == name]:
                del queue[offset]
    else:  # fields without a checksum: flags, times, hosts, properties
        assert 16 <= within < 20 or 36 <= within < 84 or within > 88 + 100 or within == 8
    assert found == expected


def test_java_closed_the_directory(harness: Any, clock: Any) -> None:
    """Java changes the times of the checkpoint, so Coherer's part is ignored."""
    store = harness.open()
    fill(harness, store, 30)
    store.close()
    path = harness.directory / "checkpoint"
    path.write_bytes(struct.pack(">qqq", clock.ms + 1, clock.ms + 1, 0) + path.read_bytes()[24:])
    assert Checkpoint.decode(path.read_bytes()).offset is None
    again = harness.open()
    assert again.recovery.replayed == 0
    assert again.recovery.replayed_from == again.end_offset == store.end_offset


def test_java_was_killed(harness: Any, clock: Any) -> None:
    """The times determine the log file from which on queues may lack entries."""
    store = harness.open()
    fill(harness, store, 100)
    clock.ms += 10_000
    middle_ms = clock.ms
    fill(harness, store, 200, begin=100)
    store.flush_queues()
    image = harness.crash()
    times = struct.pack(">qqq", middle_ms + 3_100, middle_ms + 3_050, 0)
    (image / "checkpoint").write_bytes(times.ljust(4096, b"\0"))
    expected = harness.everything(store)
    again = harness.open(image)
    assert again.recovery.replayed_from % 16_384 == 0
    assert 0 < again.recovery.replayed_from < again.end_offset
    first = again.record_at(again.recovery.replayed_from)
    assert first is not None
    assert decode(first).store_ms <= middle_ms + 50
    assert harness.everything(again) == expected


def test_an_empty_checkpoint_of_java(harness: Any) -> None:
    store = harness.open()
    fill(harness, store, 50)
    store.close()
    image = harness.directory
    (image / "checkpoint").write_bytes(bytes(4096))
    (image / "abort").touch()
    again = harness.open()
    assert (again.recovery.replayed_from, again.recovery.replayed) == (0, 50)


def test_files_with_inconsistent_names(harness: Any) -> None:
    store = harness.open()
    fill(harness, store, 5)
    store.close()
    log = harness.directory / "commitlog"
    (log / f"{0:020d}").rename(log / f"{77:020d}")
    with pytest.raises(DamagedStoreError, match="names"):
        harness.open()
    (log / f"{77:020d}").rename(log / f"{0:020d}")
    assert harness.open().end_offset == store.end_offset  # the lock was released


def test_unknown_files_are_ignored(harness: Any) -> None:
    store = harness.open()
    fill(harness, store, 5)
    store.close()
    for name in ("commitlog/notes.txt", "consumequeue/t/x", "consumequeue/.hidden", "index/a"):
        (harness.directory / name).write_text("?")
    (harness.directory / "consumequeue" / "a b" / "0").mkdir(parents=True)
    again = harness.open()
    assert again.topics() == ["t", "u"]
    assert "a b/0 is not a queue" in again.recovery.notes


def test_a_recreated_topic_with_a_checkpoint_of_java(harness: Any) -> None:
    """The replay finds the deleted messages and then the new ones, which are kept."""
    store = harness.open()
    store.append([harness.draft(number) for number in range(30)])
    store.delete_topic("t")
    store.append([harness.draft(number) for number in range(100, 105)])
    image = harness.crash()
    (image / "checkpoint").write_bytes(bytes(4096))
    again = harness.open(image)
    assert harness.labels(again) == {at: f"t/0/{100 + at}" for at in range(5)}
    assert (again.recovery.replayed, again.recovery.damage) == (35, ())


def test_records_of_deleted_topics_are_noted(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(number) for number in range(3)])
    store.append([harness.draft(0, "u")])
    store.delete_topic("t")
    store.close()
    again = harness.open()
    assert again.recovery.notes == ("3 records are in no queue: their topics were deleted",)
    assert again.recovery.damage == ()
    assert again.topics() == ["u"]


def test_a_file_lost_while_the_store_was_closed(harness: Any) -> None:
    store = harness.open()
    fill(harness, store, 300)
    expected = harness.everything(store)
    store.close()
    (harness.directory / "commitlog" / f"{16_384:020d}").unlink()
    again = harness.open(verify_bytes=0)
    assert again.recovery.damage == (DamagedRange(16_384, 32_768, "a file is missing"),)
    slices = again.read("t", 0, 0, max_bytes=1 << 20, max_count=20)
    assert slices.next_offset == 20
    kept = 0
    for key, queue in harness.everything(again).items():
        assert queue.items() <= expected[key].items()
        kept += len(queue)
    assert 200 < kept == 300 - again.recovery.lost
    (piece,) = again.verify()
    assert (piece.begin, piece.end) == (16_384, 32_768)
    assert again.offset_at_time("t", 0, harness.clock.ms) == again.queue_range("t", 0)[1]


def test_a_record_with_an_invalid_topic(harness: Any) -> None:
    store = harness.open()
    log_offsets = fill(harness, store, 20)
    store.flush_queues()
    log_offsets += fill(harness, store, 20, begin=20)
    image = harness.crash()
    for number in (5, 25):  # one verified, one replayed
        damage(image, log_offsets[number] + 88 + 100 + 1, b"/")
    again = harness.open(image)
    assert [piece.reason for piece in again.recovery.damage] == ["topic", "topic"]
    assert sum(map(len, harness.everything(again).values())) == 38


def handles() -> int:
    """The number of open files of this process; 0 if the system does not tell."""
    gc.collect()
    directory = Path("/proc/self/fd")
    return len(list(directory.iterdir())) if directory.exists() else 0


def test_many_queues_need_few_handles(harness: Any) -> None:
    before = handles()
    store = harness.open(open_files=2)
    for number in range(10):
        store.append([harness.draft(number, queue_id=queue_id) for queue_id in range(30)])
    expected = harness.everything(store)
    assert sum(map(len, expected.values())) == 300
    assert handles() - before < 15
    assert harness.everything(harness.open(harness.crash(), open_files=1)) == expected


def test_files_of_idle_queues_are_closed(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(number, queue_id=number) for number in range(30)])
    store.flush_queues()
    busy, begun = handles(), harness.clock.ms
    for number in range(30, 34):
        harness.clock.ms = begun + (number - 29) * 200_000
        store.append([harness.draft(number, queue_id=0)])
        store.tick()
    assert not busy or busy - handles() == 29
    expected = harness.everything(store)
    assert sum(map(len, expected.values())) == 34
    store.append([harness.draft(number, queue_id=number) for number in range(30)])
    store.flush_queues()
    assert sum(map(len, harness.everything(store).values())) == 64


class Failing(OsFiles):
    """A disk of which one call fails, whatever it is."""

    def __init__(self) -> None:
        self.left = 0
        self.open_files: set[int] = set()

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.EIO, "Input/output error")

    def open(self, path: Path, *, create: bool = False) -> int:
        self._count()
        handle = super().open(path, create=create)
        self.open_files.add(handle)
        return handle

    def close(self, handle: int) -> None:
        self.open_files.discard(handle)
        super().close(handle)

    def unlock(self, path: Path, handle: int) -> None:
        self.open_files.discard(handle)
        super().unlock(path, handle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        self._count()
        return super().read(handle, size, offset)

    def write(self, handle: int, data: bytes, offset: int) -> None:
        self._count()
        super().write(handle, data, offset)

    def sync(self, handle: int) -> None:
        self._count()
        super().sync(handle)

    def sync_directory(self, path: Path) -> None:
        self._count()
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)


def test_a_failed_start_leaves_no_file_open(harness: Any, tmp_path: Path) -> None:
    """Whichever call fails, nothing is lost, and the next start finds everything."""
    store = harness.open()
    for n in range(8):
        store.append([harness.draft(n, key=f"k{n}")])
        if n == 4:
            store.flush_queues()
    expected, crashed = harness.everything(store), harness.crash()
    for call in itertools.count():
        image, files = tmp_path / f"image-{call}", Failing()
        copy_tree(crashed, image)
        files.left = call
        try:
            again = Store.open(image, tiny(), now_ms=harness.clock, files=files)
        except StoreError:
            assert not files.open_files, f"after call {call}"
            with Store.open(image, tiny(), now_ms=harness.clock) as found:
                assert harness.everything(found) == expected
                assert len(found.by_key("t", "k2")) == len(found.by_key("t", "k7")) == 1
            continue
        is_over = files.left >= 0
        files.left = -1
        again.close()
        if is_over:
            break
    assert call > 30


def test_a_closed_store_holds_nothing(harness: Any) -> None:
    before = handles()
    for _ in range(5):
        store = harness.open()
        fill(harness, store, 60, key="k")
        harness.everything(store)
        store.by_key("t", "k")
        store.close()
    assert handles() <= before
