from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coherer._store.checkpoint import Checkpoint, CheckpointFile
from coherer._store.files import OsFiles
from coherer._store.offset_reserve import GAPS_MAX, Gap

i64 = st.integers(0, (1 << 63) - 1)
checkpoints = st.builds(
    Checkpoint,
    i64,
    i64,
    i64,
    offset=st.none() | i64,
    index_file=i64,
    index_count=i64,
    reserve=i64,
    boot=st.just(b"") | st.binary(min_size=16, max_size=16).filter(any),
    gaps=st.lists(st.builds(Gap, i64, i64, i64), max_size=GAPS_MAX).map(tuple),
    index_files=st.lists(st.tuples(i64, i64), max_size=9).map(tuple),
)


@given(checkpoints)
def test_round_trip(checkpoint: Checkpoint) -> None:
    data = checkpoint.encode()
    assert len(data) == 4096
    # The part that Java reads; it reads and writes nothing else.
    assert struct.unpack_from(">qqq", data) == (
        checkpoint.log_ms,
        checkpoint.queues_ms,
        checkpoint.index_ms,
    )
    found = Checkpoint.decode(data)
    if checkpoint.offset is None:
        times = checkpoint.log_ms, checkpoint.queues_ms, checkpoint.index_ms
        files = checkpoint.index_files
        assert found == Checkpoint(*times, gaps=checkpoint.gaps, index_files=files)
    else:
        assert found == checkpoint


@given(checkpoints, st.integers(0, 4095), st.integers(1, 255))
def test_a_damaged_checkpoint_covers_less(checkpoint: Checkpoint, at: int, change: int) -> None:
    data = bytearray(checkpoint.encode())
    data[at] ^= change
    found = Checkpoint.decode(bytes(data))
    assert found.offset in (None, checkpoint.offset)
    if at < 24:
        assert found.offset is None
    assert found.reserve in (0, checkpoint.reserve)
    assert found.gaps in ((), checkpoint.gaps)
    assert found.index_files in ((), checkpoint.index_files)


def test_the_newest_index_files_are_listed() -> None:
    files = tuple((number, number) for number in range(1, 999))
    assert Checkpoint.decode(Checkpoint(index_files=files).encode()).index_files == files[-220:]


def test_all_parts_are_in_one_sector() -> None:
    """So a power cut leaves the old or the new content."""
    gaps = (Gap(1, 2, 3),) * GAPS_MAX
    data = Checkpoint(1, 2, 3, 4, 5, 6, 7, b"boot" * 4, gaps).encode()
    assert len(data.rstrip(b"\0")) <= 512


def test_java_has_used_the_directory() -> None:
    """The reserve no longer holds; the gaps do."""
    gaps = (Gap(1, 2, 3),)
    data = bytearray(Checkpoint(1, 2, 3, 4, 5, 6, 7, b"boot" * 4, gaps).encode())
    struct.pack_into(">qqq", data, 0, 9, 2, 3)
    assert Checkpoint.decode(bytes(data)) == Checkpoint(9, 2, 3, gaps=gaps)


@given(st.binary(max_size=100))
def test_a_short_file(data: bytes) -> None:
    found = Checkpoint.decode(data)
    assert found.offset is None
    if len(data) < 24:
        assert found == Checkpoint()


def test_javas_rule() -> None:
    assert Checkpoint(10_000, 9_000, 0).replay_ms == 6_000
    assert Checkpoint(9_000, 10_000, 0).replay_ms == 6_000
    assert Checkpoint(0, 10_000, 0).replay_ms == 0


def test_the_file(tmp_path: Path) -> None:
    file = CheckpointFile(OsFiles(), tmp_path / "checkpoint")
    assert file.load() == Checkpoint()
    file.save(Checkpoint(1, 2, 3, 4, 5, 6))
    file.save(Checkpoint(2, 2, 3, 4, 5, 6))
    assert file.load() == Checkpoint(2, 2, 3, 4, 5, 6)


def test_the_times_java_needs(harness: Any, clock: Any) -> None:
    """The times never cover more than what was synced when the checkpoint was written."""
    store = harness.open()
    store.append([harness.draft(0)])
    first_ms = clock.ms
    clock.ms += 100
    store.flush_queues()
    store.append([harness.draft(1)])
    data = (harness.directory / "checkpoint").read_bytes()
    assert struct.unpack_from(">qqq", data) == (first_ms, first_ms, 0)
    store.flush()
    assert (harness.directory / "checkpoint").read_bytes() == data
    store.flush_queues()
    data = (harness.directory / "checkpoint").read_bytes()
    assert struct.unpack_from(">qqq", data) == (clock.ms, clock.ms, 0)
    store.close()
    again = harness.open()
    again.close()  # nothing new: the times do not change
    data = (harness.directory / "checkpoint").read_bytes()
    assert struct.unpack_from(">qqq", data) == (clock.ms, clock.ms, 0)
