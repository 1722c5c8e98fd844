"""Replicas copy a log around its damage."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    HEAD_V4,
    HOLE_TOPIC,
    RECORD_BYTES_MIN,
    examine,
)
from coherer._store import OsFiles
from coherer._store.holes import hole
from coherer._store.replica import whole_bytes
from tests.copies import copy_tree
from tests.power import Unknown, tear

LIMITS = {"max_bytes": 1 << 20, "max_count": 32}
SEGMENT = 1 << 22


@given(st.integers(0, SEGMENT - 1), st.integers(1, SEGMENT), st.booleans())
def test_a_hole_consists_of_records(begin: int, size: int, ends_file: bool) -> None:
    end = SEGMENT if ends_file else min(begin + size, SEGMENT - BLANK_BYTES)
    data = hole(begin, end, SEGMENT, 7)
    if end - begin < (BLANK_BYTES if ends_file else RECORD_BYTES_MIN):
        assert data == b""
        return
    assert len(data) == whole_bytes(data) == end - begin
    at = 0
    while at < len(data):
        size, magic = BLANK.unpack_from(data, at)
        if magic == BLANK_MAGIC:
            assert ends_file
            assert at + size == len(data)
            break
        record = examine(memoryview(data), at)
        assert not isinstance(record, str)
        assert (record.topic.decode(), record.physical_offset) == (HOLE_TOPIC, begin + at)
        at += record.size


def copy_log(master: Any, replica: Any) -> None:
    while (at := replica.end_offset) < master.end_offset:
        if data := bytes(master.read_verified(at, 700_000)):
            replica.append_raw(at, data)


def offsets(store: Any) -> list[int]:
    """All messages of the queue."""
    found: list[int] = []
    at, end = store.queue_range("t", 0)
    while at < end:
        result = store.read("t", 0, at, **LIMITS)
        assert not result.damaged
        assert at < result.next_offset
        found += result.offsets
        at = result.next_offset
    return found


@pytest.mark.parametrize("files", [Unknown(), OsFiles()], ids=["power cut", "bit rot"])
@pytest.mark.parametrize("torn", [0, 5])
def test_a_replica_has_all_other_messages(
    harness: Any, tmp_path: Path, torn: int, files: OsFiles
) -> None:
    first = harness.open(files=files)
    first.append([harness.draft(n, size=500) for n in range(10)])
    image = harness.crash()
    tear(image, b"t/0/%d;" % torn)
    master = harness.open(image, files=files)
    replica = harness.open(tmp_path / "replica", replica=True)
    copy_log(master, replica)
    others = [n for n in range(10) if n != torn]
    for lives in range(4):
        assert offsets(replica) == others
        assert replica.topics() == ["t"]
        assert replica.recovery.damage == ()
        copy = harness.open(tmp_path / f"copy {lives}", replica=True)
        copy_log(replica, copy)
        assert offsets(copy) == others
        image = tmp_path / f"replica {lives}"
        copy_tree(replica.directory, image)  # after a kill
        if lives == 1:
            rmtree(image / "consumequeue")
        replica = harness.open(image, replica=lives < 2)  # it becomes a master


@pytest.mark.parametrize("is_missing", [False, True], ids=["bit rot", "missing file"])
def test_a_replica_copies_what_follows_old_damage(
    harness: Any, tmp_path: Path, is_missing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    master = harness.open(verify_bytes=0)
    master.append([harness.draft(n, size=1_000) for n in range(60)])
    path = master.log.segments[1].path
    master.close()
    data = bytearray(path.read_bytes())
    lost = [n for n in range(60) if b"t/0/%d;" % n in data]
    if is_missing:
        path.unlink()
    else:
        lost = lost[3:5]
        begin, end = (data.index(b"t/0/%d;" % n) for n in (lost[0], lost[-1] + 1))
        head = HEAD_V4.size
        path.write_bytes(data[: begin - head] + bytes(end - begin) + data[end - head :])
    copies: list[bytes] = []
    for lives in range(2):
        master = harness.open(verify_bytes=0)
        assert bool(master.log.damage) == is_missing
        replica = harness.open(tmp_path / f"replica {lives}", replica=True)
        copy_log(master, replica)
        assert offsets(replica) == [n for n in range(60) if n not in lost]
        assert len(master.log.damage) == 1
        copies.append((replica.directory / "commitlog" / path.name).read_bytes())
        master.close()
    assert copies[0] == copies[1], "a slave compares them"
    assert ("slaves get the log without them" in caplog.text) != is_missing
