from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.layout import decode
from coherer._record.properties import java_hash
from coherer._store import Draft
from coherer._store.checkpoint import Checkpoint
from coherer._store.files import OsFiles
from coherer._store.index import KeyIndex
from coherer._store.index_file import ENTRY, HEAD, IndexFile, IndexKeys, key_hash, key_hasher

FULL_SIZE = 420_000_040


def keys_of(*rows: tuple[str, int, int]) -> IndexKeys:
    """Keys of the topic, with the offset and time of their messages."""
    names, offsets, times_ms = zip(*rows, strict=True)
    return IndexKeys(key_hasher("TopicTest").hash_all(names), list(offsets), list(times_ms))


def find(
    index: KeyIndex, key: str, *, begin: int = 0, end: int = 1 << 60, most: int = 99
) -> list[int]:
    found: list[int] = []

    def accept(offset: int) -> bool:
        found.append(offset)
        return True

    index.find("TopicTest", key, (begin, end), accept, most)
    return found


def test_worked_example(tmp_path: Path) -> None:
    """The example of docs/protocol/rocketmq.md, section 13.13, at Java's sizes."""
    index = KeyIndex(OsFiles(), tmp_path, 5_000_000, 20_000_000)
    assert index.load(Checkpoint(), clean=True) == []
    assert list(tmp_path.iterdir()) == []  # created with the first key
    index.add(keys_of(("k1", 4096, 1_650_000_000_123)))
    index.write(1_650_000_000_500)
    (path,) = tmp_path.iterdir()
    assert len(path.name) == 17
    assert path.stat().st_size == FULL_SIZE
    assert path.stat().st_blocks * 512 < 1 << 20  # sparse
    with path.open("rb") as file:
        begin_ms, end_ms, begin, end, used, count = HEAD.unpack(file.read(HEAD.size))
        assert (begin_ms, end_ms) == (1_650_000_000_123, 1_650_000_000_123)
        assert (begin, end, used, count) == (4096, 4096, 1, 2)
        file.seek(10_984_136)
        assert file.read(4) == b"\0\0\0\1"
        file.seek(20_000_060)
        assert file.read(20).hex() == "0029e6a800000000000010000000000000000000"
    assert find(index, "k1") == [4096]
    index.close()


def test_files_may_be_deleted_and_keys_added_during_a_search(tmp_path: Path) -> None:
    index = KeyIndex(OsFiles(), tmp_path, 1, 300)  # one slot: all entries are one chain
    index.load(Checkpoint(), clean=True)
    for number in range(2_000):
        index.add(keys_of((f"k{number % 2}", number, 1_650_000_000_000 + number)))
        index.write(1_650_000_000_000 + number)
    slices = index.slices("TopicTest", "k1", (0, 1 << 60))
    found = next(slices)
    assert 0 < len(found) < 300
    index.add(keys_of(("k1", 2_000, 1_650_000_002_000)))
    index.write(1_650_000_002_000)
    index.trim(1_000)
    for some in slices:
        found += some
    assert found == sorted(found, reverse=True)
    assert 1_200 > min(found) > 600, "those of the files that are left"
    assert found[0] == 1_999
    index.close()


def test_hashes() -> None:
    assert key_hash("TopicTest", "k1") == 2746024
    assert all(key_hash("t", str(n)) >= 0 for n in range(2000))


@pytest.fixture
def index(tmp_path: Path) -> Any:
    made = KeyIndex(OsFiles(), tmp_path / "index", 7, 20)
    (tmp_path / "index").mkdir()
    made.load(Checkpoint(), clean=True)
    yield made
    made.close()


def test_chains_times_and_files(index: KeyIndex, tmp_path: Path) -> None:
    for n in range(100):
        index.add(keys_of((f"k{n % 5}", n, 1_000_000 + n * 1000)))
        if n % 9 == 0:
            index.write(1_000_000 + n)
    index.write(2_000_000)
    assert len(list((tmp_path / "index").iterdir())) == 6  # 19 entries per file
    assert find(index, "k3") == list(range(98, 0, -5))
    assert find(index, "k3", most=2) == [98, 93]
    assert find(index, "k3", begin=1_050_000) == list(range(98, 50, -5))
    assert find(index, "k3", end=1_050_000) == list(range(48, 0, -5))
    assert find(index, "k3", begin=1_060_000, end=1_070_000) == [68, 63]
    assert find(index, "k9") == []


def test_keys_are_found_before_they_are_written(index: KeyIndex) -> None:
    index.add(keys_of(("k", 1, 10), ("j", 2, 11)))
    index.add(keys_of(("k", 3, 12)))
    assert find(index, "k") == [3, 1]
    index.write(12)
    index.add(keys_of(("k", 4, 13)))
    assert find(index, "k") == [4, 3, 1]
    assert find(index, "k", begin=13) == [4, 3, 1][:1] + find(index, "k", begin=13)[1:]


def test_decreasing_times_count_as_the_first_time(index: KeyIndex) -> None:
    index.add(keys_of(("a", 1, 9_000), ("b", 2, 5_000)))
    index.write(9_000)
    assert find(index, "b", begin=9_000) == [2]


def reopen(tmp_path: Path, checkpoint: Checkpoint, *, clean: bool) -> KeyIndex:
    again = KeyIndex(OsFiles(), tmp_path / "index", 7, 20)
    again.load(checkpoint, clean=clean)
    return again


def test_after_a_crash_entries_of_the_checkpoint_are_kept(index: KeyIndex, tmp_path: Path) -> None:
    for n in range(30):
        index.add(keys_of((f"k{n % 3}", n, 1000 * n)))
    index.write(30_000)
    covered = index.cover(Checkpoint())
    end_ms, number, count = covered.index_ms, covered.index_file, covered.index_count
    assert end_ms == 29_000
    assert count == 30 - 19 + 1
    checkpoint = Checkpoint(offset=999, index_file=number, index_count=count)
    for n in range(30, 60):
        index.add(keys_of((f"k{n % 3}", n, 1000 * n)))
    index.write(60_000)
    assert len(find(index, "k0")) == 20
    again = reopen(tmp_path, checkpoint, clean=False)
    assert find(again, "k0") == list(range(27, -1, -3))
    assert again.indexed_to == 29
    assert len(list((tmp_path / "index").iterdir())) == 2
    for n in range(30, 60):
        again.add(keys_of((f"k{n % 3}", n, 1000 * n)))
    again.write(60_000)
    assert find(again, "k0") == find(index, "k0")
    again.close()


def test_after_a_crash_of_java_newer_files_are_deleted(index: KeyIndex, tmp_path: Path) -> None:
    for n in range(50):
        index.add(keys_of(("k", n, 1000 * n)))
    index.write(50_000)
    again = reopen(tmp_path, Checkpoint(index_ms=18_000), clean=False)
    assert find(again, "k") == list(range(18, -1, -1))
    again.close()


def test_a_clean_open_keeps_all_entries(index: KeyIndex, tmp_path: Path) -> None:
    index.add(keys_of(*[("k", n, n) for n in range(50)]))
    index.write(50)
    again = reopen(tmp_path, Checkpoint(), clean=True)
    assert find(again, "k") == list(range(49, -1, -1))
    again.close()


def test_position_covers_what_is_written(index: KeyIndex, tmp_path: Path) -> None:
    index.add(keys_of(*[("k", n, 1000 + n) for n in range(10)]))
    assert index.cover(Checkpoint()).index_ms == 0  # in memory only
    index.write(50)
    assert index.cover(Checkpoint()).index_ms == 1_009
    index.add(keys_of(*[("k", n, 1000 + n) for n in range(10, 45)]))
    index.write(50)
    end_ms = index.cover(Checkpoint()).index_ms
    assert end_ms == 1_044
    # By Java's rule the file is not newer than the checkpoint, so a Java broker keeps it.
    again = reopen(tmp_path, Checkpoint(index_ms=end_ms), clean=False)
    assert find(again, "k") == list(range(44, -1, -1))
    again.close()


def test_files_of_another_size_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20220101000000000").write_bytes(bytes(100))
    again = KeyIndex(OsFiles(), tmp_path / "index", 7, 20)
    (note,) = again.load(Checkpoint(), clean=True)
    assert "is not used" in note
    assert (tmp_path / "index" / "20220101000000000").exists()


def test_a_loop_in_a_damaged_file_ends(index: KeyIndex, tmp_path: Path) -> None:
    index.add(keys_of(*[("k", n, n) for n in range(5)]))
    index.write(50)
    (path,) = (tmp_path / "index").iterdir()
    with path.open("r+b") as file:
        file.seek(HEAD.size + 7 * 4 + 3 * ENTRY.size)
        file.write(ENTRY.pack(key_hash("TopicTest", "k"), 77, 0, 5))
    assert find(index, "k") == [4, 3, 77]


@given(st.text(max_size=3), st.text("0123456789ABCDEF", max_size=60) | st.text(max_size=40))
def test_long_keys_have_javas_hash(topic: str, key: str) -> None:
    value = java_hash(f"{topic}#{key}")
    assert key_hash(topic, key) == (0 if value == -(1 << 31) else abs(value))


def test_slots_are_loaded_when_a_file_is_reopened(tmp_path: Path) -> None:
    keys = [(f"k{n % 700}", n, n) for n in range(2_000)]
    path = tmp_path / "1"
    once = IndexFile(OsFiles(), path, 300_000, 5_000)
    once.put(keys_of(*keys))
    once.save()
    once.close()
    whole = path.read_bytes()
    path.unlink()
    for part in (keys[:700], keys[700:701], keys[701:]):
        file = IndexFile(OsFiles(), path, 300_000, 5_000)
        if path.exists():
            assert file.load()
        file.put(keys_of(*part))
        file.finish()
        file.close()
    assert path.read_bytes() == whole


class _Full(OsFiles):
    """Writes to a part of a file fail."""

    full_from = HEAD.size
    full_to = 0

    def write(self, handle: int, data: bytes, offset: int) -> None:
        if self.full_from <= offset < self.full_to:
            raise OSError(errno.ENOSPC, "No space left")
        super().write(handle, data, offset)


def test_slots_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    files = _Full()
    index = KeyIndex(files, tmp_path, 2_000, 5_000)
    index.load(Checkpoint(), clean=True)
    keys = [(f"k{n}", n, n) for n in range(100)]
    files.full_to = HEAD.size + 4 * 2_000
    index.add(keys_of(*keys))
    with pytest.raises(OSError, match="No space"):
        index.write(0)
    assert find(index, "k7") == [7], "whoever asks here sees it"
    files.full_to = 0
    index.write(0)
    index.close()
    again = KeyIndex(OsFiles(), tmp_path, 2_000, 5_000)
    again.load(Checkpoint(), clean=True)
    assert find(again, "k7") == [7]
    again.close()


def test_many_keys_are_written_before_the_long_interval(index: KeyIndex, tmp_path: Path) -> None:
    keys = [(f"k{n}", n, n) for n in range(40)]
    index.add(keys_of(*keys))
    index.write_if_many(0)
    assert list((tmp_path / "index").glob("*")) == []
    index.add(keys_of(*keys * 125))
    index.write_if_many(0)
    assert list((tmp_path / "index").glob("*")) != []


def test_a_failed_write_leaves_the_file_unchanged(tmp_path: Path) -> None:
    files = _Full()
    file = IndexFile(files, tmp_path / "1", 2_000, 5_000)
    file.put(keys_of(*[(f"k{n % 90}", n, n) for n in range(100)]))
    entries = HEAD.size + 4 * 2_000 + ENTRY.size * 101
    files.full_from, files.full_to = entries, entries + 1
    with pytest.raises(OSError, match="No space"):
        file.put(keys_of(*[(f"k{n}", 900 + n, n) for n in range(95)]))
    files.full_to = 0
    file.put(keys_of(*[(f"j{n}", n, n) for n in range(50)]))
    file.finish()
    whole = file.path.read_bytes()
    file.close()
    other = IndexFile(OsFiles(), tmp_path / "2", 2_000, 5_000)
    other.put(keys_of(*[(f"k{n % 90}", n, n) for n in range(100)]))
    other.put(keys_of(*[(f"j{n}", n, n) for n in range(50)]))
    other.finish()
    assert other.path.read_bytes() == whole
    other.close()


def test_writing_entries_early_does_not_write_slots(tmp_path: Path) -> None:
    index = KeyIndex(OsFiles(), tmp_path, 2_000, 10_000)
    index.load(Checkpoint(), clean=True)
    index.add(keys_of(*[(f"k{n}", n, n) for n in range(6_000)]))
    index.write_if_many(0)
    (path,) = tmp_path.iterdir()
    assert HEAD.unpack(path.read_bytes()[: HEAD.size])[5] == 0
    assert find(index, "k7") == [7]
    index.write(0)
    assert HEAD.unpack(path.read_bytes()[: HEAD.size])[5] == 6_001
    index.close()


def test_restored_slots_equal_written_ones(tmp_path: Path) -> None:
    file = IndexFile(OsFiles(), tmp_path / "1", 2000, 5000)
    file.put(keys_of(*[(f"k{n % 900}", n, n) for n in range(3000)]))
    file.save()
    before = (tmp_path / "1").read_bytes()
    file.put(keys_of(*[(f"j{n}", n, 3000 + n) for n in range(500)]))
    file.save()
    file.restore(3001)
    after = (tmp_path / "1").read_bytes()
    entries = HEAD.size + 2000 * 4 + 3001 * 20
    assert after[HEAD.size : entries] == before[HEAD.size : entries]
    assert HEAD.unpack(after[:40])[4:] == HEAD.unpack(before[:40])[4:]
    file.close()


def test_the_store_finds_by_key(harness: Any, clock: Any) -> None:
    store = harness.open()
    for n in range(60):
        store.append([harness.draft(n, "tu"[n % 2], key=f"k{n % 4} all"), harness.draft(n, "t")])
        clock.ms += 1000
    found = [harness.label(record) for record in store.by_key("t", "k2")]
    assert found == [f"t/0/{n}" for n in range(58, 0, -4)]
    assert store.by_key("u", "k2") == []
    assert len(store.by_key("u", "all", max_count=7)) == 7
    begin_ms = 1_650_000_000_000
    span = store.by_key("t", "all", begin_ms=begin_ms + 10_000, end_ms=begin_ms + 14_000)
    assert [harness.label(record) for record in span] == ["t/0/14", "t/0/12", "t/0/10"]


def test_keys_with_equal_hashes_are_distinguished(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(0, key="Aa"), harness.draft(1, key="BB")])
    assert key_hash("t", "Aa") == key_hash("t", "BB")
    assert [harness.label(record) for record in store.by_key("t", "Aa")] == ["t/0/0"]


def test_unique_ids_are_keys(harness: Any) -> None:
    store = harness.open()
    text = b"UNIQ_KEY\x010A\x02KEYS\x01k"
    store.append([Draft("t", 0, b"x", text, keys=("0A", "k"))])
    image = harness.crash()
    for opened in (store, harness.open(image)):
        (record,) = opened.by_key("t", "0A")
        assert decode(record).body == b"x"
        assert len(opened.by_key("t", "k")) == 1


def test_without_an_index(harness: Any) -> None:
    store = harness.open(index_enabled=False)
    store.append([harness.draft(0, key="k")])
    assert store.by_key("t", "k") == []
    store.close()
    assert not list((harness.directory / "index").iterdir())


def test_keys_are_written_while_others_are_added() -> None:
    """`extend` appends to one list after the other: a key counts when all lists have it."""
    keys = keys_of(*[("k", n, n) for n in range(3)])
    keys.hashes.append(7)
    keys.offsets.append(7)
    part = keys.first(10)
    assert (len(part), part.offsets, len(part.hashes)) == (3, [0, 1, 2], 3)
    keys.drop(len(part))
    keys.times_ms.append(7)
    assert (len(keys), keys.hashes, keys.offsets, keys.times_ms) == (1, [7], [7], [7])


def test_a_second_thread_writes_what_the_first_adds(tmp_path: Path) -> None:
    index = KeyIndex(OsFiles(), tmp_path, 2_000, 100_000)
    index.load(Checkpoint(), clean=True)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            index.write(0)

    thread = threading.Thread(target=write)
    thread.start()
    for n in range(0, 60_000, 30):
        index.add(keys_of(*[(f"k{m % 20_000}", m, m) for m in range(n, n + 30)]))
    done.set()
    thread.join()
    index.write(0)
    for n in (0, 7, 19_999):
        assert find(index, f"k{n}") == [n + 40_000, n + 20_000, n]
    index.close()
