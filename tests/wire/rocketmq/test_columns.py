"""Columns of pulled records equal what the decoded messages say, one by one."""

from __future__ import annotations

from datetime import UTC

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

from coherer._record import compression, layout
from coherer._record.record_columns import SCHEMA
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.names import Queue

HOSTS = st.sampled_from([layout.NO_HOST, bytes(range(8)), bytes(range(20))])
NAMES = st.sampled_from(
    ["TAGS", "KEYS", "$msgTime$", "RETRY_TOPIC", "UNIQ_KEY", "a", "ä", "", "AGS", "TAGS\x01"]
)
VALUES = st.one_of(
    st.sampled_from(["", "UA", "k1 k2", "TAGS", "202401020304", "20240102030405006", "soon"]),
    st.text("xTÄ\x01😀", max_size=14),
)
PAIRS = st.one_of(st.tuples(NAMES, VALUES).map("\x01".join), st.sampled_from(["", "TAGS", "\x01"]))
TEXTS = st.one_of(
    st.lists(PAIRS, max_size=4).map("\x02".join).map(str.encode), st.binary(max_size=20)
)
BODIES = st.one_of(st.binary(max_size=40), st.binary(max_size=13))


@st.composite
def records(draw: st.DrawFn, topic: str = "demo") -> bytes:
    """Records of one queue, of equal or different sizes."""
    alike = draw(st.booleans())
    text, body = draw(TEXTS), draw(BODIES)
    count = draw(st.sampled_from([0, 1, 3, 70] if alike else [1, 3, 6]))
    found = b""
    for number in range(count):
        if not alike:
            text, body = draw(TEXTS), draw(BODIES)
        packed = draw(st.integers(0, 9)) == 0
        found += layout.encode(
            topic,
            compression.compress(body) if packed else body,
            text,
            queue_id=1,
            queue_offset=7 + number,
            physical_offset=1 << 40 | number,
            store_ms=9,
            born_ms=draw(st.sampled_from([0, 1_700_000_000_123, -5, 1 << 60])),
            flag=draw(st.sampled_from([0, 0, 4, 8])) | packed,
            sys_flag=int(packed),
            born_host=layout.NO_HOST if alike else draw(HOSTS),
            store_host=layout.NO_HOST if alike else draw(HOSTS),
            reconsume_times=3,
        )
    return found


@st.composite
def damaged(draw: st.DrawFn, topic: str = "demo") -> bytes:
    """Records, some of them overwritten, cut or with bytes in between."""
    data = bytearray(draw(records(topic)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        junk = draw(st.binary(min_size=1, max_size=5))
        if draw(st.booleans()):
            data[at : at + len(junk)] = junk
        else:
            data[at:at] = junk
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def rows(batch: MessageBatch) -> list[dict[str, object]]:
    """The columns, from the messages."""
    return [
        {
            "topic": message.topic,
            "broker": message.broker,
            "partition": message.partition,
            "offset": message.offset,
            "id": message.id,
            "key": message.stored_properties.get("KEYS"),
            "tag": message.tag,
            "time": message.time.replace(tzinfo=UTC) if message.time else None,
            "value": message.body,
            "properties": [*message.properties.items()],
        }
        for message in batch
    ]


def check(batch: MessageBatch, again: MessageBatch) -> None:
    found = batch.to_arrow()
    found.validate(full=True)
    assert found.schema == SCHEMA
    assert found.to_pylist() == rows(again)
    assert batch.to_arrow().equals(found)


@given(records())
def test_columns_of_records(data: bytes) -> None:
    queue = Queue("demo", "broker-a", 1)
    check(MessageBatch(data, queue), MessageBatch(data, queue))


@given(damaged())
def test_columns_of_damaged_records(data: bytes) -> None:
    queue = Queue("demo", "broker-a", 1)
    check(MessageBatch(data, queue, offset=7), MessageBatch(data, queue, offset=7))


@given(records("%RETRY%group"))
def test_columns_of_retried_messages(data: bytes) -> None:
    queue = Queue("%RETRY%group", "broker-a", 1)
    check(MessageBatch(data, queue), MessageBatch(data, queue))


@given(damaged(), st.frozensets(st.sampled_from(["UA", "TAGS"]), min_size=1))
def test_columns_of_filtered_messages(data: bytes, tags: frozenset[str]) -> None:
    queue = Queue("demo", "broker-a", 1)
    check(MessageBatch(data, queue, tags=tags), MessageBatch(data, queue, tags=tags))


@given(records(), st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
@example(b"", ["id"])
def test_only_wanted_columns_are_decoded(data: bytes, names: list[str]) -> None:
    batch = MessageBatch(data, Queue("demo", "broker-a", 1))
    assert batch.to_arrow(names).schema.names == names
    assert batch.to_arrow(names).to_pylist() == batch.to_arrow().select(names).to_pylist()


def test_columns_after_the_messages() -> None:
    data = b"".join(
        layout.encode(
            "demo", b"%d" % n, b"", queue_id=1, queue_offset=n, physical_offset=n, store_ms=0
        )
        for n in range(5)
    )
    batch = MessageBatch(data, Queue("demo", "broker-a", 1))
    assert batch.pick([1, 3]).to_arrow(["value"]).to_pydict() == {"value": [b"1", b"3"]}
    assert batch.before(2).to_arrow(["offset"]).to_pydict() == {"offset": [0, 1]}
