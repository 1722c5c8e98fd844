"""Rows packed by columns equal messages that are encoded one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coherer._record.batches import PackedMessages, decode_batch, encode_batch_item
from coherer._record.packing import (
    Origin,
    RowColumns,
    UnpackableRowError,
    pack,
    property_texts,
    time_texts,
)
from coherer._record.properties import aligned_values, decode, encode_time
from coherer._wire.rocketmq.messages import encode_message
from coherer._wire.tubemq import payload
from coherer.errors import UsageError
from coherer.message import Message
from coherer.spark.sending import RULES

ORIGIN = Origin({"spark.query": "q", "spark.batch": "3"}, "spark.seq")
TEXTS = st.text(st.sampled_from("aé😀 =,.$"), max_size=5)
TIMES = st.datetimes(timezones=st.just(UTC))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.binary(min_size=1, max_size=9),
            "tag": st.none() | TEXTS,
            "keys": st.none() | st.lists(TEXTS, max_size=3),
            "time": st.none() | TIMES,
            "properties": st.none() | st.dictionaries(TEXTS | st.just("spark.seq"), TEXTS),
        }
    ),
    min_size=1,
    max_size=5,
)


def columns(rows: Sequence[Mapping[str, object]]) -> RowColumns:
    def column(name: str, kind: pa.DataType) -> pa.Array:
        return pa.array([row[name] for row in rows], kind)

    keys = column("keys", pa.list_(pa.string()))
    pairs = [row["properties"] and [*dict(row["properties"]).items()] for row in rows]
    return RowColumns(
        column("value", pa.binary()),
        column("tag", pa.string()),
        keys if keys.null_count < len(rows) else None,
        column("time", pa.timestamp("us", "UTC")),
        pa.array(pairs, pa.map_(pa.string(), pa.string())),
        pa.array(range(10, 10 + len(rows)), pa.int64()),
    )


def message(row: Mapping[str, object], number: int) -> Message:
    return Message(
        "t",
        row["value"],
        tag=row["tag"],
        time=row["time"],
        keys=tuple(row["keys"] or ()),
        properties={**(row["properties"] or {}), **ORIGIN(number)},
    )


def expected_rocketmq(row: Mapping[str, object], number: int) -> dict[str, str]:
    encoded = encode_message(message(row, number), unique_id=f"ID{number}")
    return decode(encoded.properties.encode())


def expected_tubemq(row: Mapping[str, object], number: int) -> dict[str, str]:
    one = message({**row, "keys": None}, number)
    found = payload.read_attributes(payload.encode_attributes(one.tag, one.time, one.properties))
    tag = found.pop("$msgType$", None)
    return {**({"TAGS": tag} if tag else {}), **found}


@pytest.mark.parametrize("protocol", ["rocketmq", "tubemq"])
@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_texts_equal_those_of_single_messages(protocol: str, rows: list[dict[str, object]]) -> None:
    rules = RULES[protocol]
    expect = expected_rocketmq if protocol == "rocketmq" else expected_tubemq
    packed = columns(rows)
    if protocol == "tubemq":
        packed = columns([{**row, "keys": None} for row in rows])
    ids = [f"ID{number}" for number in range(10, 10 + len(rows))] if rules.ids else ()
    wanted: list[dict[str, str] | None] = []
    for number, row in enumerate(rows, 10):
        try:
            wanted.append(expect(row, number))
        except UsageError:
            wanted.append(None)
    if None in wanted:
        with pytest.raises(UnpackableRowError) as caught:
            property_texts(packed, ORIGIN, rules, ids)
        assert wanted[caught.value.index] is None
        return
    texts = property_texts(packed, ORIGIN, rules, ids)
    assert [decode(text) for text in texts.to_pylist()] == wanted
    (batch,) = pack("t", packed, texts, 1 << 20)
    items = decode_batch(batch.body)
    assert items.bodies == [row["value"] for row in rows]
    assert items.properties == texts.to_pylist()


def test_batches_are_cut_at_the_limit() -> None:
    values = pa.array([b"a" * size for size in (10, 10, 500, 10, 1)], pa.binary())
    rows = RowColumns(values, None, None, None, None, pa.array(range(5), pa.int64()))
    texts = property_texts(rows, Origin({}, ""), RULES["tubemq"])
    batches = pack("t", rows, texts, 100)
    assert [(one.rows, one.alone) for one in batches] == [
        ([0, 1], False), ([2], True), ([3, 4], False),
    ]  # fmt: skip
    assert [one.count for one in batches] == [2, 1, 2]
    sizes = [len(body) for one in batches for body in decode_batch(one.body).bodies]
    assert sizes == [10, 10, 500, 10, 1]


def test_slices_of_columns_are_packed() -> None:
    values = pa.array([b"a", b"bb", b"ccc", b"dddd"], pa.binary()).slice(1, 2)
    pairs = pa.array(
        [[("k", "0")], [("k", "1")], None, [("k", "3")]], pa.map_(pa.string(), pa.string())
    ).slice(1, 2)
    rows = RowColumns(values, None, None, None, pairs, pa.array([1, 2], pa.int64()))
    texts = property_texts(rows, ORIGIN, RULES["tubemq"])
    (one,) = pack("t", rows, texts, 1000)
    assert decode_batch(one.body).bodies == [b"bb", b"ccc"]
    assert [decode(text).get("k") for text in texts.to_pylist()] == ["1", None]


def test_halves_keep_every_message() -> None:
    bodies = [b"x" * size for size in (1, 5, 2, 7, 3)]
    body = b"".join(encode_batch_item(one, b"k\x01v") for one in bodies)
    packed = PackedMessages(
        topic="t", body=body, count=5, rows=[*range(5)], broker="b", partition=2
    )
    first, second = packed.halves()
    assert decode_batch(first.body).bodies + decode_batch(second.body).bodies == bodies
    assert (first.rows, second.rows) == ([0, 1], [2, 3, 4])
    assert {(half.broker, half.partition) for half in (first, second)} == {("b", 2)}


@given(st.lists(TIMES | st.none(), min_size=1, max_size=4))
def test_times_are_those_of_single_messages(times: list[datetime | None]) -> None:
    column = pa.array(times, pa.timestamp("us", "UTC"))
    wanted = [time and encode_time(time).encode() for time in times]
    assert time_texts(column, 17).to_pylist() == wanted
    minutes = [time and payload.encode_time(time).encode() for time in times]
    assert time_texts(column, 12).to_pylist() == minutes


PIECES = st.sampled_from(["TAGS\x01a", "k\x01v", "k\x01w", "k\x01", "\0", "x", "", "TAGS\x01\x01"])


@given(st.lists(st.lists(PIECES, max_size=3).map("\x02".join), max_size=5))
def test_aligned_values_are_those_of_each_text(texts: list[str]) -> None:
    many = [text.encode() for text in texts]
    found = aligned_values(many)
    if found is not None:
        rows = [
            {name.decode(): values[number].decode() for name, values in found.items()}
            for number in range(len(many))
        ]
        assert rows == [decode(text) for text in many]
