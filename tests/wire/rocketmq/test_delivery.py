"""Pulled records, complete, truncated and damaged; the example of docs/protocol/rocketmq.md."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._record import compression, layout
from coherer._wire.rocketmq.delivery import MessageBatch, decode_messages
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError

EXAMPLE = bytes.fromhex(
    """
    00000091 daa320a7 3610a686 00000001 00000000 00000000 0000002a 00000000
    00001000 00000000 00000180 2ba9f400 0a000009 0000c351 00000180 2ba9f47b
    0a000001 00002a9f 00000000 00000000 00000000 00000005 68656c6c 6f09546f
    70696354 65737400 284b4559 53016b31 02544147 53015461 67410243 4c555354
    45520144 65666175 6c74436c 75737465 72
    """
)
"""Example 13.6."""
QUEUE = Queue("TopicTest", "broker-a", 1)


def test_the_worked_example_13_6() -> None:
    batch = MessageBatch(EXAMPLE, QUEUE, next_offset=43, min_offset=0, max_offset=43)
    assert batch.offset == 42
    (message,) = batch
    assert message == StoredMessage(
        topic="TopicTest",
        body=b"hello",
        tag="TagA",
        time=datetime(2022, 4, 15, 5, 20, tzinfo=UTC),
        keys=("k1",),
        properties={},
        id="0A00000100002A9F0000000000001000",
        broker="broker-a",
        partition=1,
        offset=42,
        born_ms=1_650_000_000_000,
        stored_ms=1_650_000_000_123,
        physical_offset=4096,
        stored_properties={"KEYS": "k1", "TAGS": "TagA", "CLUSTER": "DefaultCluster"},
    )


def record(
    body: bytes = b"x",
    properties: bytes = b"",
    *,
    offset: int = 0,
    topic: str = "TopicTest",
    sys_flag: int = 0,
    born_host: bytes = layout.NO_HOST,
    store_host: bytes = layout.NO_HOST,
    attempt: int = 0,
) -> bytes:
    return layout.encode(
        topic,
        body,
        properties,
        queue_id=1,
        queue_offset=offset,
        physical_offset=1000 + offset,
        store_ms=5,
        sys_flag=sys_flag,
        born_ms=4,
        born_host=born_host,
        store_host=store_host,
        reconsume_times=attempt,
    )


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.booleans(), st.booleans())),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_hosts_of_either_length_and_compressed_bodies(
    made: list[tuple[bytes, bool, bool]], kind: type
) -> None:
    host = bytes(range(20))
    data = b"".join(
        record(
            compression.compress(body) if packed else body,
            offset=index,
            sys_flag=1 if packed else 0,
            born_host=host if long else layout.NO_HOST,
            store_host=host if long else layout.NO_HOST,
        )
        for index, (body, packed, long) in enumerate(made)
    )
    batch = MessageBatch(kind(data), QUEUE, next_offset=len(made))
    assert batch.bodies() == [body for body, _, _ in made]
    assert [message.body for message in batch] == batch.bodies()
    assert batch.offsets() == list(range(len(made)))
    for message, (_, _, long) in zip(batch, made, strict=True):
        assert len(message.id) == (56 if long else 32)
        assert (message.born_ms, message.stored_ms) == (4, 5)
    assert [message.body for message in decode_messages(data)] == batch.bodies()


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    ("limit", "counts"), [(25_000, [2, 2, 1]), (5_000, [1] * 5), (50_000, [5])]
)
def test_bodies_that_become_too_large_end_a_batch(
    limit: int, counts: list[int], columns: bool
) -> None:
    """What is left is asked for again, from `next_offset` on."""
    if columns:
        pytest.importorskip("pyarrow")
        MessageBatch(EXAMPLE, QUEUE, next_offset=43).to_arrow()
    bodies = [bytes([number]) * 10_000 for number in range(5)]
    records = [
        record(compression.compress(body), offset=number, sys_flag=1)
        for number, body in enumerate(bodies)
    ]
    found: list[list[bytes]] = []
    at = 0
    while at < 5:
        batch = MessageBatch(b"".join(records[at:]), QUEUE, next_offset=5, inflated_max=limit)
        assert batch.next_offset == at + len(batch)
        assert (batch.delivered, batch.skipped) == (len(batch), 0)
        assert batch.size_bytes >= 10_000 * len(batch) or limit == 50_000
        found.append(batch.to_arrow()["value"].to_pylist() if columns else batch.bodies())
        at = batch.next_offset
    assert [len(some) for some in found] == counts
    assert [body for some in found for body in some] == bodies


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        (b"", None),
        (b"TAGS\x01a", "a"),
        (b"k\x01v\x02TAGS\x01a\x02l\x01w", "a"),
        (b"TAGS\x01a\x02TAGS\x01b", "b"),
        (b"TAGS\x01a\x02TAGS\x01", "a"),
        (b"MYTAGS\x01a", None),
        (b"MYTAGS\x01a\x02TAGS\x01b", "b"),
        (b"TAGS\x01b\x02MYTAGS\x01a", "b"),
        (b"TAGS\x01", None),
    ],
)
def test_messages_with_other_tags_are_dropped(properties: bytes, tag: str | None) -> None:
    data = record(properties=properties)
    assert [message.tag for message in MessageBatch(data, QUEUE)] == [tag]
    for wanted in ("a", "b"):
        batch = MessageBatch(data, QUEUE, tags=frozenset([wanted]))
        assert len(batch) == (tag == wanted)
        assert (batch.delivered, batch.skipped) == (1, 0)


def test_without_tags_all_messages_are_delivered() -> None:
    assert len(MessageBatch(record(), QUEUE, tags=frozenset())) == 1


def test_damaged_bodies_are_left_out() -> None:
    good, bad = record(b"good", offset=0), bytearray(record(b"bad", offset=1))
    bad[88] ^= 1
    torn = record(b"no zlib", offset=2, sys_flag=1)
    batch = MessageBatch(good + bad + torn, QUEUE)
    assert batch.bodies() == [b"good"]
    assert (batch.delivered, batch.skipped) == (3, 2)


def broken(data: bytes, at: int, value: int, size: int = 4) -> bytes:
    """A record with another number at a position."""
    return data[:at] + value.to_bytes(size, "big") + data[at + size :]


LENGTHS = {
    "the record's": (0, 4, [0, 1, 95, 200, 0xFFFFFFFF]),
    "the body's": (84, 4, [0, 1, 4, 1000, 0x7FFFFFFF, 0xFFFFFFFF]),
    "the topic's": (91, 1, [0, 8, 200]),
    "the properties'": (101, 2, [0, 4, 6, 0xFFFF]),
}


@pytest.mark.parametrize("index", [0, 1, 4])
@pytest.mark.parametrize(
    ("at", "size", "value"),
    [(at, size, value) for at, size, values in LENGTHS.values() for value in values],
)
def test_a_record_with_broken_lengths_affects_no_other_record(
    index: int, at: int, size: int, value: int
) -> None:
    every = [record(b"abc", b"k\x01vv\x02", offset=n) for n in range(5)]
    every[index] = broken(every[index], at, value, size)
    batch = MessageBatch(b"".join(every), QUEUE, offset=0, next_offset=5)
    rest = [n for n in range(5) if n != index]
    assert batch.offsets() == rest
    assert batch.bodies() == [b"abc"] * 4
    assert [message.offset for message in batch] == rest
    assert batch.left_out == [range(index, index + 1)]
    assert (batch.skipped, batch.delivered) == (1, 5)
    assert [message.offset for message in decode_messages(b"".join(every))] == rest


def test_records_inside_a_damaged_one_are_not_taken_for_messages() -> None:
    inner = record(b"inner", offset=1) + record(b"other queue", offset=2)[:-1]
    outer = broken(record(inner, offset=1), 84, 3)
    batch = MessageBatch(
        record(offset=0) + outer + record(b"last", offset=2), QUEUE, offset=0, next_offset=3
    )
    assert batch.bodies() == [b"x", b"last"]


def test_nothing_but_garbage_is_a_gap() -> None:
    batch = MessageBatch(b"\xff" * 300, QUEUE, offset=5, next_offset=9)
    assert (len(batch), batch.skipped, batch.left_out) == (0, 1, [range(5, 9)])
    with pytest.raises(ProtocolError, match="damaged"):
        decode_messages(b"\xff" * 300)


def test_many_record_magics_take_linear_time() -> None:
    head = b"\0" * 4 + record()[4:8]

    def seconds(count: int) -> float:
        began = time.thread_time()
        assert len(MessageBatch(head * count, QUEUE, offset=0, next_offset=9)) == 0
        return time.thread_time() - began

    # Ten times the input: ten times the time if it is linear, a hundred times if it is quadratic.
    few = min(seconds(20_000) for _ in range(3))
    assert min(seconds(200_000) for _ in range(3)) < 30 * few


def test_decode_messages_returns_undecodable_bodies_unchanged() -> None:
    (message,) = decode_messages(record(b"plain", sys_flag=1))
    assert message.body == b"plain"


def test_an_empty_body() -> None:
    assert MessageBatch(record(b""), QUEUE).bodies() == [b""]


def test_an_empty_batch() -> None:
    batch = MessageBatch(b"", QUEUE, next_offset=9)
    assert (len(batch), batch.offset, list(batch)) == (0, 9, [])


def test_before_returns_the_messages_below_an_offset() -> None:
    data = b"".join(record(bytes([n]), offset=n) for n in (1, 2, 3))
    batch = MessageBatch(data, QUEUE, next_offset=7)
    assert batch.before(9) is batch
    part = batch.before(3)
    assert (part.bodies(), part.next_offset, len(batch)) == ([b"\1", b"\2"], 3, 3)


def test_a_retried_message_has_its_original_topic() -> None:
    data = record(b"x", b"RETRY_TOPIC\x01orders", topic="%RETRY%g", attempt=2)
    (message,) = MessageBatch(data, Queue("%RETRY%g", "broker-a", 0))
    assert (message.topic, message.attempt) == ("orders", 2)
    assert decode_messages(data)[0].topic == "orders"
    (other,) = MessageBatch(data, QUEUE)
    assert other.topic == "TopicTest"


def test_messages_creates_other_classes() -> None:
    class Extended(StoredMessage, frozen=True):
        """A message with an additional field."""

        extra: str = ""

    (message,) = MessageBatch(EXAMPLE, QUEUE).messages(Extended)
    assert (type(message), message.offset, message.extra) == (Extended, 42, "")


@given(st.integers(0, 2 * len(EXAMPLE)), st.binary(max_size=4), st.data())
def test_any_bytes_decode_or_raise_a_protocol_error(
    at: int, junk: bytes, data: st.DataObject
) -> None:
    whole = bytearray(EXAMPLE * 2)
    whole[at : at + len(junk)] = junk
    torn = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for read in (decode_messages, lambda part: list(MessageBatch(part, QUEUE))):
        try:
            read(torn)
        except ProtocolError:
            continue


def test_columns() -> None:
    pytest.importorskip("pyarrow")
    texts = [b"TAGS\x01UA\x02KEYS\x01k1 k2\x02flight\x011545\x02TUBE\x01a", b""]
    data = b"".join(record(b"v", one, offset=n) for n, one in enumerate(texts))
    found = MessageBatch(data, QUEUE).to_arrow()
    found.validate(full=True)
    rows = found.to_pylist()
    assert rows[0] == {
        "topic": "TopicTest",
        "broker": "broker-a",
        "partition": 1,
        "offset": 0,
        "id": "000000000000000000000000000003E8",
        "key": "k1 k2",
        "tag": "UA",
        "time": datetime(1970, 1, 1, 0, 0, 0, 4000, UTC),
        "value": b"v",
        "properties": [("flight", "1545")],
    }
    assert [rows[1][name] for name in ("key", "tag", "properties")] == [None, None, []]
