"""A slave's store: the master's log byte for byte, with queues and keys of its own."""

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
from coherer._store.replica import whole_bytes
from coherer.errors import DamagedStoreError, StoreError, UsageError


def fill(bench: Any, store: Store, count: int, begin: int = 0) -> None:
    for first in range(begin, begin + count, 5):
        drafts = [
            bench.draft(n, "tu"[n % 2], n % 3, tag="ab"[n % 2], key=f"k{n}", size=100 + n % 400)
            for n in range(first, first + 5)
        ]
        store.append(drafts)
        bench.clock.ms += 7


def follow(master: Store, slave: Store, chunk_bytes: int = 1_000) -> None:
    """Send the slave what it lacks, in pieces that begin and end anywhere."""
    waiting = bytearray()
    begin = slave.end_offset
    while begin + len(waiting) < master.end_offset:
        waiting += master.read_raw(begin + len(waiting), chunk_bytes)
        whole = whole_bytes(waiting)
        if whole:
            slave.append_raw(begin, bytes(waiting[:whole]))
            del waiting[:whole]
            begin += whole
    assert not waiting


@pytest.fixture
def slave(bench: Any, tmp_path: Path) -> Any:
    return bench.open(tmp_path / "slave")


@pytest.mark.parametrize("chunk_bytes", [7, 333, 32_768])
def test_a_slave_has_everything_that_the_master_has(
    bench: Any, slave: Store, chunk_bytes: int
) -> None:
    master = bench.open()
    fill(bench, master, 200)  # several files
    follow(master, slave, chunk_bytes)
    assert slave.end_offset == master.end_offset
    assert bench.everything(slave) == bench.everything(master)
    assert slave.queue_range("t", 0) == master.queue_range("t", 0)
    assert bytes(slave.by_key("u", "k33")[0]) == bytes(master.by_key("u", "k33")[0])
    for at in range(0, master.end_offset, 16_384):
        assert bytes(slave.read_raw(at, 1 << 20)) == bytes(master.read_raw(at, 1 << 20))


def test_a_slave_goes_on_after_a_crash(bench: Any, slave: Store, tmp_path: Path) -> None:
    master = bench.open()
    fill(bench, master, 100)
    follow(master, slave)
    image = shutil.copytree(tmp_path / "slave", tmp_path / "image")
    again = bench.open(image)
    assert bench.everything(again) == bench.everything(master)
    fill(bench, master, 100, begin=100)
    follow(master, again)
    assert bench.everything(again) == bench.everything(master)


def test_a_slave_becomes_a_master(bench: Any, slave: Store) -> None:
    master = bench.open()
    fill(bench, master, 50)
    follow(master, slave)
    fill(bench, master, 30, begin=50)
    bench.clock.ms -= 7 * 6
    fill(bench, slave, 30, begin=50)
    assert bench.everything(slave) == bench.everything(master)


def test_a_new_slave_may_begin_with_the_last_file(bench: Any, slave: Store, tmp_path: Path) -> None:
    master = bench.open()
    fill(bench, master, 200)
    begin = master.last_segment_offset
    assert begin > 0
    while begin < master.end_offset:
        piece = bytes(master.read_raw(begin, 1 << 20))
        slave.append_raw(begin, piece)
        begin += len(piece)
    assert slave.min_offset == master.last_segment_offset
    everything = bench.everything(master)
    for place, held in bench.everything(slave).items():
        assert held
        assert held.items() <= everything[place].items()
        assert max(held) == max(everything[place])
    again = bench.open(shutil.copytree(tmp_path / "slave", tmp_path / "image"))
    assert bench.everything(again) == bench.everything(slave)


def test_a_topic_that_was_made_again_begins_anew(bench: Any, slave: Store) -> None:
    master = bench.open()
    master.append([bench.draft(n) for n in range(10)])
    master.delete_topic("t")
    master.append([bench.draft(n) for n in range(20, 23)])
    follow(master, slave)
    assert bench.labels(slave) == bench.labels(master) == {n: f"t/0/{20 + n}" for n in range(3)}


def test_bytes_must_follow_the_end(bench: Any, slave: Store) -> None:
    master = bench.open()
    fill(bench, master, 20)
    piece = bytes(master.read_raw(0, 1 << 20))
    slave.append_raw(0, piece)
    with pytest.raises(UsageError):
        slave.append_raw(0, piece)
    with pytest.raises(UsageError):
        slave.append_raw(len(piece) + 16_384, piece)


def test_files_of_another_size_are_refused(bench: Any, tmp_path: Path) -> None:
    master = bench.open()
    fill(bench, master, 200)
    other = bench.open(tmp_path / "other", segment_bytes=8_192 * 3)
    with pytest.raises(DamagedStoreError, match="mappedFileSizeCommitLog"):
        other.append_raw(0, bytes(master.read_raw(0, 1 << 20)))
    assert other.end_offset == 0
    with pytest.raises(UsageError, match="cannot start at offset 16384"):
        other.append_raw(16_384, bytes(master.read_raw(16_384, 1 << 20)))


def test_damage_on_the_way_is_refused_whole(bench: Any, slave: Store) -> None:
    master = bench.open()
    fill(bench, master, 20)
    piece = bytearray(master.read_raw(0, 1 << 20))
    piece[piece.index(b"/12;") + 1] ^= 1
    with pytest.raises(DamagedStoreError):
        slave.append_raw(0, bytes(piece))
    assert slave.topics() == []
    follow(master, slave)
    assert bench.everything(slave) == bench.everything(master)


@pytest.mark.parametrize("fail_at", range(8))
def test_a_full_disk_takes_nothing_and_goes_on(
    bench: Any, full_files: Any, tmp_path: Path, fail_at: int
) -> None:
    master = bench.open()
    fill(bench, master, 60)
    slave = bench.open(tmp_path / "full", files=full_files)
    first = bytes(master.read_raw(0, 1 << 20))
    whole = whole_bytes(first[: len(first) // 2])
    slave.append_raw(0, first[:whole])
    before = bench.everything(slave)
    full_files.fail_at = fail_at
    try:
        slave.append_raw(whole, first[whole:])
    except StoreError:
        assert slave.end_offset == whole
        assert bench.everything(slave) == before
    full_files.fail_at = None
    follow(master, slave)
    assert bench.everything(slave) == bench.everything(master)


def test_no_bytes_behind_the_end_are_given(bench: Any) -> None:
    store = bench.open()
    fill(bench, store, 5)
    assert len(store.read_raw(0, 1 << 20)) == store.end_offset
    assert len(store.read_raw(3, 10)) == 10
    for offset in (-1, store.end_offset, 1 << 40):
        assert len(store.read_raw(offset, 10)) == 0


@given(st.binary(max_size=200), st.integers(0, 2**32))
def test_garbage_is_refused_or_whole(data: bytes, seed: int) -> None:
    prefix = b"".join(blank(size) + bytes(size - 8) for size in (8, 20))
    mixed = prefix[: random.Random(seed).randrange(len(prefix))] + data
    with suppress(DamagedStoreError):
        assert 0 <= whole_bytes(mixed) <= len(mixed)


@pytest.mark.parametrize("seed", range(30))
def test_a_slave_survives_power_cuts_and_goes_on(
    bench: Any, power_files: Callable[[], Any], tmp_path: Path, seed: int
) -> None:
    """Several lives of a slave, each ended by a power cut; its master lives on."""
    chance = random.Random(seed)
    master, directory = bench.open(), tmp_path / "life0"
    for life in range(3):
        fill(bench, master, 5 * chance.randint(1, 30), begin=1000 * life)
        files = power_files()
        if directory.exists():
            files.adopt(directory)
        slave = bench.open(directory, files=files, replica=True)
        waiting, begin = bytearray(), slave.end_offset
        cut_at = chance.randint(begin, master.end_offset)
        while begin + len(waiting) < cut_at:
            waiting += master.read_raw(begin + len(waiting), chance.randint(1, 4_000))
            whole = whole_bytes(waiting)
            if whole:
                slave.append_raw(begin, bytes(waiting[:whole]))
                del waiting[:whole]
                begin += whole
            chance.choice([slave.flush, slave.flush_queues, lambda: None, lambda: None])()
        durable = slave.durable_offset
        image = tmp_path / f"life{life + 1}"
        files.cut(directory, image, chance)
        directory = image
        after = bench.open(shutil.copytree(image, tmp_path / f"look{life}"), replica=True)
        assert after.end_offset >= durable
        assert after.recovery.damage == ()
        follow(master, after)
        assert bench.everything(after) == bench.everything(master)
        assert [len(after.by_key("t", f"k{n}")) for n in range(0, 50, 2)] == [
            len(master.by_key("t", f"k{n}")) for n in range(0, 50, 2)
        ]
