"""Replicas: the master's log byte for byte, with their own queues and keys."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.layout import blank
from coherer._store import Store
from coherer._store.offset_reserve import LEAD_MIN
from coherer._store.replica import whole_bytes
from coherer.errors import DamagedStoreError, StoreError, UsageError
from tests.copies import copy_tree


def fill(harness: Any, store: Store, count: int, begin: int = 0) -> None:
    for first in range(begin, begin + count, 5):
        drafts = [
            harness.draft(n, "tu"[n % 2], n % 3, tag="ab"[n % 2], key=f"k{n}", size=100 + n % 400)
            for n in range(first, first + 5)
        ]
        store.append(drafts)
        harness.clock.ms += 7


def follow(master: Store, replica: Store, chunk_bytes: int = 1_000) -> None:
    """Send a replica the bytes it lacks, in parts of any size."""
    waiting = bytearray()
    begin = replica.end_offset
    while begin + len(waiting) < master.end_offset:
        waiting += master.read_raw(begin + len(waiting), chunk_bytes)
        whole = whole_bytes(waiting)
        if whole:
            replica.append_raw(begin, bytes(waiting[:whole]))
            del waiting[:whole]
            begin += whole
    assert not waiting


@pytest.fixture
def replica(harness: Any, tmp_path: Path) -> Any:
    return harness.open(tmp_path / "replica")


@pytest.mark.parametrize("chunk_bytes", [7, 333, 32_768])
def test_a_replica_has_everything_of_the_master(
    harness: Any, replica: Store, chunk_bytes: int
) -> None:
    master = harness.open()
    fill(harness, master, 200)  # several files
    follow(master, replica, chunk_bytes)
    assert replica.end_offset == master.end_offset
    assert harness.everything(replica) == harness.everything(master)
    assert replica.queue_range("t", 0) == master.queue_range("t", 0)
    assert bytes(replica.by_key("u", "k33")[0]) == bytes(master.by_key("u", "k33")[0])
    for at in range(0, master.end_offset, 16_384):
        assert bytes(replica.read_raw(at, 1 << 20)) == bytes(master.read_raw(at, 1 << 20))


def test_a_replica_continues_after_a_crash(harness: Any, replica: Store, tmp_path: Path) -> None:
    master = harness.open()
    fill(harness, master, 100)
    follow(master, replica)
    image = copy_tree(tmp_path / "replica", tmp_path / "image")
    again = harness.open(image)
    assert harness.everything(again) == harness.everything(master)
    fill(harness, master, 100, begin=100)
    follow(master, again)
    assert harness.everything(again) == harness.everything(master)


def test_a_replica_becomes_a_master(harness: Any, replica: Store) -> None:
    master = harness.open()
    fill(harness, master, 50)
    follow(master, replica)
    fill(harness, master, 30, begin=50)
    harness.clock.ms -= 7 * 6
    fill(harness, replica, 30, begin=50)
    assert harness.everything(replica) == harness.everything(master)


def test_a_flipped_bit_costs_one_message_if_the_master_is_lost(
    harness: Any, tmp_path: Path
) -> None:
    """The slave is restarted before it becomes the master: nobody sends the others again."""
    master = harness.open(flush="sync")
    replica = harness.open(tmp_path / "replica", replica=True)
    for n in range(6):
        master.append([harness.draft(n)])
        master.flush()
        follow(master, replica)
    crashed = tmp_path / "crashed"
    copy_tree(tmp_path / "replica", crashed)
    [path] = (crashed / "commitlog").iterdir()
    content = bytearray(path.read_bytes())
    content[content.index(b"t/0/2;")] ^= 1
    path.write_bytes(content)
    again = harness.open(crashed, replica=True)
    assert len(again.recovery.damage) == again.recovery.lost == 1
    again.append_raw(again.end_offset, bytes(_next_record(harness, master)))
    again.close()
    heir = harness.open(crashed)
    expected = {n: f"t/0/{n}" for n in range(7) if n != 2}
    assert harness.labels(heir) == expected
    read = heir.read("t", 0, 0, max_bytes=1 << 20, max_count=100)
    assert read.damaged == [2], "it is no gap of a power cut"
    [placed] = heir.append([harness.draft(7)])
    assert placed.queue_offset > 6


def _next_record(harness: Any, master: Store) -> memoryview:
    begin = master.written_offset
    master.append([harness.draft(6)])
    master.flush()
    return master.read_raw(begin, 1 << 20)


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("copied", [0, 1, 50, 700])
def test_its_offsets_do_not_repeat_those_that_only_its_master_had(
    harness: Any, tmp_path: Path, flush: str, stopped: bool, copied: int
) -> None:
    """Somebody may have read them there, and says so to the new master."""
    master = harness.open()
    replica = harness.open(tmp_path / "slave", replica=True, flush=flush)
    fill(harness, master, copied)
    follow(master, replica)
    replica.flush()
    fill(harness, master, LEAD_MIN, begin=copied)
    copies = {queue: set(messages) for queue, messages in harness.everything(replica).items()}
    if stopped:
        replica.close()
    heir = harness.open(copy_tree(tmp_path / "slave", tmp_path / "heir"), flush=flush)
    taken = {queue: max(messages) for queue, messages in harness.everything(master).items()}
    first: dict[Any, int] = {}
    for lives in range(3):  # there is one gap
        fill(harness, heir, 100, begin=2_000 + 100 * lives)
        heir.flush()
        heir = harness.open(copy_tree(heir.directory, tmp_path / f"{lives}"), flush=flush)
        for queue, messages in harness.everything(heir).items():
            new = sorted(set(messages) - copies.get(queue, set()))
            assert new[0] > taken[queue]
            assert new == list(range(new[0], new[0] + len(new)))
            assert first.setdefault(queue, new[0]) == new[0]
    assert first.keys() == taken.keys()


@pytest.mark.parametrize("rebuilt", [False, True], ids=["killed", "rebuilt"])
def test_it_knows_the_gaps_of_its_masters(harness: Any, tmp_path: Path, rebuilt: bool) -> None:
    """Without them it would take what follows a gap for damage."""
    first = harness.open(tmp_path / "first", replica=True)
    first.close()
    master = harness.open(tmp_path / "first")
    fill(harness, master, 30)
    replica = harness.open(tmp_path / "slave", replica=True)
    follow(master, replica)
    fill(harness, master, 30, begin=30)
    master.close()
    harness.open(tmp_path / "first", replica=True).close()
    master = harness.open(tmp_path / "first")
    fill(harness, master, 30, begin=60)
    follow(master, replica)
    if rebuilt:
        replica.close()
        harness.open(tmp_path / "slave").close()
        shutil.rmtree(tmp_path / "slave" / "consumequeue")
    heir = harness.open(copy_tree(tmp_path / "slave", tmp_path / "heir"))
    assert heir.recovery.damage == ()
    assert harness.everything(heir) == harness.everything(master)
    for queue in harness.everything(master):
        gap = heir.read(*queue, 100, max_bytes=1 << 20, max_count=10)
        assert not gap.damaged


def test_a_new_replica_may_start_with_the_last_file(
    harness: Any, replica: Store, tmp_path: Path
) -> None:
    master = harness.open()
    fill(harness, master, 200)
    begin = master.last_segment_offset
    assert begin > 0
    while begin < master.end_offset:
        piece = bytes(master.read_raw(begin, 1 << 20))
        replica.append_raw(begin, piece)
        begin += len(piece)
    assert replica.min_offset == master.last_segment_offset
    everything = harness.everything(master)
    for queue, messages in harness.everything(replica).items():
        assert messages
        assert messages.items() <= everything[queue].items()
        assert max(messages) == max(everything[queue])
    again = harness.open(copy_tree(tmp_path / "replica", tmp_path / "image"))
    assert harness.everything(again) == harness.everything(replica)


def test_a_recreated_topic_starts_at_offset_0(harness: Any, replica: Store) -> None:
    master = harness.open()
    master.append([harness.draft(n) for n in range(10)])
    master.delete_topic("t")
    master.append([harness.draft(n) for n in range(20, 23)])
    follow(master, replica)
    assert (
        harness.labels(replica) == harness.labels(master) == {n: f"t/0/{20 + n}" for n in range(3)}
    )


def test_bytes_must_follow_the_end(harness: Any, replica: Store) -> None:
    master = harness.open()
    fill(harness, master, 20)
    piece = bytes(master.read_raw(0, 1 << 20))
    replica.append_raw(0, piece)
    with pytest.raises(UsageError):
        replica.append_raw(0, piece)
    with pytest.raises(UsageError):
        replica.append_raw(len(piece) + 16_384, piece)


def test_files_of_another_size_are_refused(harness: Any, tmp_path: Path) -> None:
    master = harness.open()
    fill(harness, master, 200)
    other = harness.open(tmp_path / "other", segment_bytes=8_192 * 3)
    with pytest.raises(DamagedStoreError, match="mappedFileSizeCommitLog"):
        other.append_raw(0, bytes(master.read_raw(0, 1 << 20)))
    assert other.end_offset == 0
    with pytest.raises(UsageError, match="cannot start at offset 16384"):
        other.append_raw(16_384, bytes(master.read_raw(16_384, 1 << 20)))


def test_damaged_bytes_are_rejected_completely(harness: Any, replica: Store) -> None:
    master = harness.open()
    fill(harness, master, 20)
    piece = bytearray(master.read_raw(0, 1 << 20))
    piece[piece.index(b"/12;") + 1] ^= 1
    with pytest.raises(DamagedStoreError):
        replica.append_raw(0, bytes(piece))
    assert replica.topics() == []
    follow(master, replica)
    assert harness.everything(replica) == harness.everything(master)


@pytest.mark.parametrize("fail_at", range(8))
def test_a_full_disk_rejects_bytes_and_the_replica_recovers(
    harness: Any, full_files: Any, tmp_path: Path, fail_at: int
) -> None:
    master = harness.open()
    fill(harness, master, 60)
    replica = harness.open(tmp_path / "full", files=full_files)
    first = bytes(master.read_raw(0, 1 << 20))
    whole = whole_bytes(first[: len(first) // 2])
    replica.append_raw(0, first[:whole])
    before = harness.everything(replica)
    full_files.fail_at = fail_at
    try:
        replica.append_raw(whole, first[whole:])
    except StoreError:
        assert replica.end_offset == whole
        assert harness.everything(replica) == before
    full_files.fail_at = None
    follow(master, replica)
    assert harness.everything(replica) == harness.everything(master)


def test_read_raw_stops_at_the_end(harness: Any) -> None:
    store = harness.open()
    fill(harness, store, 5)
    assert len(store.read_raw(0, 1 << 20)) == store.end_offset
    assert len(store.read_raw(3, 10)) == 10
    for offset in (-1, store.end_offset, 1 << 40):
        assert len(store.read_raw(offset, 10)) == 0


@given(st.binary(max_size=200), st.integers(0, 2**32))
def test_garbage_is_rejected_or_complete(data: bytes, seed: int) -> None:
    prefix = b"".join(blank(size) + bytes(size - 8) for size in (8, 20))
    mixed = prefix[: random.Random(seed).randrange(len(prefix))] + data
    with suppress(DamagedStoreError):
        assert 0 <= whole_bytes(mixed) <= len(mixed)


@pytest.mark.parametrize("seed", range(30))
def test_a_replica_survives_power_cuts_and_continues(
    harness: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """Several runs of a replica, each ended by a power cut; the master keeps running."""
    chance = random.Random(seed)
    master, directory = harness.open(), tmp_path / "life0"
    for life in range(3):
        fill(harness, master, 5 * chance.randint(1, 30), begin=1000 * life)
        files = power_files()
        if directory.exists():
            files.adopt(directory)
        replica = harness.open(directory, files=files, replica=True)
        waiting, begin = bytearray(), replica.end_offset
        cut_at = chance.randint(begin, master.end_offset)
        while begin + len(waiting) < cut_at:
            waiting += master.read_raw(begin + len(waiting), chance.randint(1, 4_000))
            whole = whole_bytes(waiting)
            if whole:
                replica.append_raw(begin, bytes(waiting[:whole]))
                del waiting[:whole]
                begin += whole
            chance.choice([replica.flush, replica.flush_queues, lambda: None, lambda: None])()
        durable = replica.durable_offset
        image = tmp_path / f"life{life + 1}"
        files.cut(directory, image, chance)
        directory = image
        after = harness.open(copy_tree(image, tmp_path / f"look{life}"), replica=True)
        assert after.end_offset >= durable
        assert after.recovery.damage == ()
        follow(master, after)
        assert harness.everything(after) == harness.everything(master)
        assert [len(after.by_key("t", f"k{n}")) for n in range(0, 50, 2)] == [
            len(master.by_key("t", f"k{n}")) for n in range(0, 50, 2)
        ]
