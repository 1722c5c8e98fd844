from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record import layout
from coherer._record.properties import encode as encode_properties
from coherer.errors import DamagedStoreError, UsageError

# The worked example of docs/protocol/rocketmq.md, section 13.6.
EXAMPLE = bytes.fromhex(
    "00000091daa320a73610a6860000000100000000000000000000002a00000000"
    "0000100000000000000001802ba9f4000a0000090000c351000001802ba9f47b"
    "0a00000100002a9f0000000000000000000000000000000568656c6c6f09546f"
    "7069635465737400284b455953016b310254414753015461674102434c55535445520144656661756c74436c7573746572"
)
BORN_HOST = bytes([10, 0, 0, 9]) + (50001).to_bytes(4, "big")
STORE_HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")


def example() -> bytes:
    return layout.encode(
        "TopicTest",
        b"hello",
        encode_properties({"KEYS": "k1", "TAGS": "TagA", "CLUSTER": "DefaultCluster"}),
        queue_id=1,
        queue_offset=42,
        physical_offset=4096,
        born_ms=1650000000000,
        born_host=BORN_HOST,
        store_ms=1650000000123,
        store_host=STORE_HOST,
    )


def test_encode_the_worked_example() -> None:
    assert example() == EXAMPLE


def test_decode_the_worked_example() -> None:
    record = layout.decode(EXAMPLE)
    assert record == layout.Record(
        size=145,
        crc=907060870,
        queue_id=1,
        flag=0,
        queue_offset=42,
        physical_offset=4096,
        sys_flag=0,
        born_ms=1650000000000,
        born_host=BORN_HOST,
        store_ms=1650000000123,
        store_host=STORE_HOST,
        reconsume_times=0,
        prepared_offset=0,
        body=b"hello",
        topic="TopicTest",
        properties=b"KEYS\x01k1\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster",
    )


def test_peek_and_spans() -> None:
    shifted = memoryview(b"??" + EXAMPLE)
    head = layout.peek(shifted, 2)
    assert (head.size, head.magic, head.queue_offset) == (145, layout.MAGIC, 42)
    record = shifted[2:]
    assert layout.body_of(record) == b"hello"
    assert bytes(layout.properties_of(record)).endswith(b"DefaultCluster")
    assert layout.store_ms_of(record) == layout.store_ms_of(shifted, 2) == 1650000000123
    found = layout.spans(record)
    assert bytes(record[found.topic_begin : found.topic_end]) == b"TopicTest"


def test_blank_record_of_the_worked_example() -> None:
    assert layout.blank(100).hex() == "00000064cbd43194"


hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
records = st.builds(
    layout.encode,
    st.text("abcXYZ019_-%|", min_size=1, max_size=127),
    st.binary(max_size=300),
    st.binary(max_size=300),
    queue_id=i32,
    queue_offset=i64,
    physical_offset=i64,
    store_ms=i64,
    store_host=hosts,
    flag=i32,
    sys_flag=st.integers(0, 63),
    born_ms=i64,
    born_host=hosts,
    reconsume_times=i32,
    prepared_offset=i64,
)


@given(records)
def test_round_trip(data: bytes) -> None:
    record = layout.decode(data)
    assert record.size == len(data)
    again = layout.encode(
        record.topic,
        record.body,
        record.properties,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        store_ms=record.store_ms,
        store_host=record.store_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
    )
    assert again == data
    assert bool(record.sys_flag & layout.BORN_HOST_V6) == (len(record.born_host) == 20)
    view = memoryview(data)
    assert layout.body_of(view) == record.body
    assert layout.properties_of(view) == record.properties
    assert layout.store_ms_of(view) == record.store_ms


@given(records, st.data())
def test_a_truncated_record_is_rejected(data: bytes, draw: st.DataObject) -> None:
    cut = data[: draw.draw(st.integers(0, len(data) - 1))]
    with pytest.raises(DamagedStoreError):
        layout.decode(cut)


@given(records, st.data())
def test_damage_is_detected_or_harmless(data: bytes, draw: st.DataObject) -> None:
    """Lengths, magic number and body are verified; other fields have no checksum."""
    at = draw.draw(st.integers(0, len(data) - 1))
    damaged = bytearray(data)
    damaged[at] ^= 1 << draw.draw(st.integers(0, 7))
    found = layout.spans(data)
    proven = at < 8 or found.body_begin - 4 <= at < found.body_end
    try:
        layout.decode(bytes(damaged))
    except DamagedStoreError:
        return
    # The highest bit of the CRC is always zero.
    assert not proven


@given(st.binary(max_size=200))
def test_garbage_raises_only_damaged_store_errors(data: bytes) -> None:
    for look in (layout.peek, layout.spans, layout.decode):
        try:
            look(data)
        except DamagedStoreError:
            continue
        assert len(data) >= 48


@pytest.mark.parametrize(
    ("topic", "properties"), [("", b""), ("t" * 128, b""), ("ü" * 64, b""), ("t", bytes(32768))]
)
def test_too_long_fields_are_rejected(topic: str, properties: bytes) -> None:
    with pytest.raises(UsageError):
        layout.encode(
            topic, b"", properties, queue_id=0, queue_offset=0, physical_offset=0, store_ms=0
        )


def test_a_topic_that_is_not_utf8() -> None:
    data = EXAMPLE.replace(b"TopicTest", b"\xff" * 9)
    assert layout.flaw(data) == ""
    with pytest.raises(DamagedStoreError, match="UTF-8"):
        layout.decode(data)


def test_the_checksum_can_be_skipped() -> None:
    data = EXAMPLE.replace(b"hello", b"jello")
    assert layout.flaw(data) == "body checksum"
    assert layout.decode(data, check_crc=False).body == b"jello"
