"""Bad records of a pull: found for the same records that the messages lack, with reasons."""

from __future__ import annotations

import pytest
from hypothesis import given

from coherer._record import compression, layout
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.names import Queue
from tests.wire.rocketmq.test_columns import damaged

QUEUE = Queue("demo", "broker-a", 1)


def record(offset: int, body: bytes = b"body", sys_flag: int = 0) -> bytes:
    return layout.encode(
        "demo", body, b"", queue_id=1, queue_offset=offset, physical_offset=100 * offset,
        store_ms=1, sys_flag=sys_flag,
    )  # fmt: skip


def batch(*records: bytes) -> MessageBatch:
    return MessageBatch(b"".join(records), QUEUE, offset=5, next_offset=5 + len(records))


def test_each_reason() -> None:
    found = batch(
        record(5),
        record(6).replace(b"body", b"bodi"),
        record(7, b"no zlib", sys_flag=compression.COMPRESSED),
        record(8)[:84] + b"\x7f\xff\xff\xff" + record(8)[88:],
        record(9),
    )
    assert [message.offset for message in found] == [5, 9]
    checksum, zlib, lengths = found.bad_records()
    assert (checksum.offset, checksum.data) == (6, b"bodi")
    assert "The checksum is wrong" in checksum.error
    assert checksum.id.endswith(f"{600:016X}")
    assert (zlib.offset, zlib.data) == (7, b"no zlib")
    assert "cannot be decompressed" in zlib.error
    assert (lengths.offset, lengths.id, len(lengths.data)) == (8, "", len(record(8)))
    assert "lengths" in lengths.error


def test_none_after_the_end_of_a_range() -> None:
    bad = [record(at).replace(b"body", b"bodi") for at in (6, 7)]
    part = batch(record(5), *bad, record(8)).before(7)
    assert [one.offset for one in part.bad_records()] == [6]


def test_a_record_without_a_readable_offset_follows_the_one_before() -> None:
    (bad,) = batch(record(5), b"\0" * 50, record(7)).bad_records()
    assert (bad.offset, bad.data) == (6, b"\0" * 50)


@given(damaged())
def test_they_are_those_that_the_messages_lack(data: bytes) -> None:
    found = MessageBatch(data, QUEUE, offset=0, next_offset=1 << 62)
    bad = found.bad_records()
    assert len(bad) == found.skipped
    assert all(one.error and one.offset is not None and one.offset >= 0 for one in bad)


@pytest.mark.parametrize("claimed", [0, 4, 8, 1 << 28])
def test_a_record_with_an_offset_from_elsewhere_moves_no_group(claimed: int) -> None:
    data = [record(5), record(claimed, b"other"), record(7)]
    assert batch(*data).offsets() == [5, 7]
    assert batch(*data).to_arrow()["offset"].to_pylist() == [5, 7]
    found = batch(*data).bad_records()
    assert [(one.offset, one.data) for one in found] == [(6, b"other")]
    assert f"offset {claimed} is not one of the pull, 5 to 8" in found[0].error
    assert batch(*data).skipped == 1
