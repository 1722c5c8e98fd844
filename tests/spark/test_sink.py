"""The sink: converting rows to messages, and sending them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coherer.errors import UsageError
from coherer.message import Message
from coherer.spark import connections
from coherer.spark.columns import DEFAULT
from coherer.spark.options import Access, WriteOptions
from coherer.spark.rows import BROKER_COLUMNS, COLUMNS, check_columns, messages
from coherer.spark.sink import BatchSink, StreamSink, TaskCommit

if TYPE_CHECKING:
    from tests.conftest import Forked
    from tests.spark.queues import ListQueue

OPTIONS = WriteOptions(access=Access(url="rocketmq://x"), topic="t")
VALUE = StructField("value", BinaryType())


def schema(*fields: StructField) -> StructType:
    return StructType(list(fields))


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def sent_by(rows: pa.RecordBatch, topic: str | None = "t") -> list[Message]:
    return list(messages(rows, topic, lambda number: {"n": str(number)}, 10))


def test_every_column_sets_an_attribute_of_the_message() -> None:
    time = datetime(2013, 1, 1, 10, tzinfo=UTC)
    rows = batch(
        value=pa.array([b"a", b"b"], pa.binary()),
        topic=pa.array(["u", "v"]),
        tag=pa.array(["x", None]),
        timestamp=pa.array([time, None], pa.timestamp("us", "UTC")),
        properties=pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
        key=pa.nulls(2, pa.string()),
    )
    assert sent_by(rows) == [
        Message("t", b"a", tag="x", time=time, properties={"k": "v", "n": "10"}),
        Message("t", b"b", properties={"n": "11"}),
    ]
    assert sent_by(rows, topic=None)[0].topic == "u"


def test_text_is_sent_as_utf8() -> None:
    assert sent_by(batch(value=pa.array(["é"])))[0].body == "é".encode()


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary()])
def test_wide_columns_are_accepted(kind: pa.DataType) -> None:
    assert sent_by(batch(value=pa.array([b"a"], kind)))[0].body == b"a"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (batch(value=pa.array([None], pa.binary())), "no value"),
        (batch(value=pa.array([b""], pa.binary())), "no value"),
        (batch(value=pa.array([b"a"]), key=pa.array(["k"])), "no keys"),
        (batch(value=pa.array([b"a"]), topic=pa.array([None], pa.string())), "no topic"),
    ],
)
def test_rows_that_cannot_be_sent_are_refused(rows: pa.RecordBatch, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sent_by(rows, topic=None if "topic" in message else "t")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "Column value is missing"),
        ([VALUE, StructField("vlaue", BinaryType())], "has no column 'vlaue'"),
        ([StructField("value", LongType())], "Column value is bigint.*binary or string"),
        ([VALUE, StructField("tag", LongType())], "Column tag is bigint"),
        (
            [VALUE, StructField("id", LongType()), StructField("offset", LongType())],
            r'cannot set offset, id: brokers assign them. .drop\("offset", "id"\)',
        ),
        ([VALUE, StructField("broker", StringType())], "broker needs a column partition"),
        ([VALUE, StructField("partition", StringType())], "Column partition is string"),
        ([VALUE, StructField("delay", DoubleType())], "Column delay is double.*interval"),
        ([VALUE, StructField("offset", LongType())], "cannot set offset"),
        ([VALUE, StructField("key", LongType())], "Column key is bigint.*string or binary or"),
        (
            [VALUE, StructField("properties", MapType(StringType(), LongType()))],
            "map<string,string>",
        ),
    ],
)
def test_columns_are_checked_before_a_task_starts(fields: list[StructField], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_columns(schema(*fields), OPTIONS)


def test_good_columns_pass_and_a_topic_is_needed() -> None:
    time = StructField("timestamp", TimestampType())
    check_columns(schema(VALUE, time), OPTIONS)
    with pytest.raises(UsageError, match="topic is missing"):
        check_columns(schema(VALUE), WriteOptions(access=OPTIONS.access))


def test_every_column_that_sources_return_is_sent_or_refused() -> None:
    sent = (*DEFAULT, "properties")
    assert set(sent) == (set(COLUMNS) | set(BROKER_COLUMNS)) - {"delay"}


def test_keys_are_one_or_an_array() -> None:
    def keys(key: pa.Array) -> list[tuple[str, ...]]:
        rows = batch(value=pa.array([b"a"] * len(key)), key=key)
        return [message.keys for message in messages(rows, "t", lambda _: {}, 0, keys=True)]

    assert keys(pa.array(["one", None])) == [("one",), ()]
    assert keys(pa.array([["one", "two"], [], None])) == [("one", "two"), (), ()]
    with pytest.raises(UsageError, match=r"'k1 k2' holds a space.*split\('key', ' '\)"):
        keys(pa.array(["k1 k2"]))


@pytest.mark.parametrize("kind", [BatchSink, StreamSink])
def test_a_topic_cannot_be_overwritten(kind: type[BatchSink | StreamSink]) -> None:
    with pytest.raises(UsageError, match="append"):
        kind(OPTIONS, schema(VALUE), overwrite=True)


def test_a_task_counts_acknowledged_messages_and_adds_their_origin(
    list_queue: ListQueue, monkeypatch: pytest.MonkeyPatch, forked: Forked
) -> None:
    monkeypatch.setitem(connections.OPENERS, "rocketmq", lambda _access: list_queue)
    monkeypatch.setattr(connections, "freeze_heap", lambda: None)
    sink = BatchSink(OPTIONS, schema(VALUE), overwrite=False)
    parts = [batch(value=pa.array([b"a", b"b"])), batch(value=pa.array([b"c"]))]
    with forked():  # a process without connections
        done = sink.write(iter(parts))
    assert isinstance(done, TaskCommit)
    assert done.count == 3
    assert [message.properties["spark.seq"] for message in list_queue.sent] == ["0", "1", "2"]
    assert len({message.properties["spark.query"] for message in list_queue.sent}) == 1
    assert list_queue.sent[0].properties["spark.part"] == "0"
