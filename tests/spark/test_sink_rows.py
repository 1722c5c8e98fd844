"""What a task's rows become: grouped, placed, sent again, refused by name."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from coherer._record.packing import Origin
from coherer._wire.rocketmq.codes import ResponseCode
from coherer.errors import (
    CohererError,
    DisconnectedError,
    RefusedError,
    RequestTimeoutError,
    UsageError,
)
from coherer.spark import sending
from coherer.spark.options import Access, WriteOptions, write_options
from coherer.spark.rows import check_columns
from coherer.spark.sending import RowSender

if TYPE_CHECKING:
    from tests.spark.queues import ListQueue

ORIGIN = Origin({"spark.part": "0"}, "spark.seq")
URLS = {"rocketmq": "rocketmq://h:1", "tubemq": "tubemq://h:1"}


def options(protocol: str = "rocketmq", **given: object) -> WriteOptions:
    topic = {} if given.pop("no_topic", False) else {"topic": "t"}
    return WriteOptions(access=Access(url=URLS[protocol]), **{**topic, **given})  # type: ignore[arg-type]


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def values(*bodies: bytes | None) -> pa.Array:
    return pa.array(bodies, pa.binary())


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made."""
    made: list[float] = []
    monkeypatch.setattr(sending.time, "sleep", made.append)
    return made


def test_the_topic_is_the_column_or_the_option(list_queue: ListQueue) -> None:
    rows = batch(value=values(b"a", b"b", b"c"), topic=pa.array(["u", "t", "u"]))
    RowSender(list_queue, options(no_topic=True), ORIGIN).send(rows)
    assert {(one.topic, one.body) for one in list_queue.sent} == {
        ("u", b"a"), ("u", b"c"), ("t", b"b"),
    }  # fmt: skip
    numbers = {one.body: one.properties["spark.seq"] for one in list_queue.sent}
    assert numbers == {b"a": "0", b"b": "1", b"c": "2"}
    list_queue.sent.clear()
    RowSender(list_queue, options(), ORIGIN).send(rows)
    assert {one.topic for one in list_queue.sent} == {"t"}


def test_numbers_continue_from_batch_to_batch(list_queue: ListQueue) -> None:
    sender = RowSender(list_queue, options(), ORIGIN)
    assert [sender.send(batch(value=values(b"a", b"b"))) for _ in range(2)] == [2, 2]
    assert [one.properties["spark.seq"] for one in list_queue.sent] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("column", "broker", "places"),
    [
        (pa.array([1, None, 0]), None, ["1:1", "", "1:0"]),
        (pa.array([1, 1, 0]), pa.array(["1", None, "1"]), ["1:1", "1:1", "1:0"]),
        (pa.array([None, None, None], pa.int16()), None, ["", "", ""]),
    ],
)
def test_rows_go_to_their_partition(
    list_queue: ListQueue, column: pa.Array, broker: pa.Array | None, places: list[str]
) -> None:
    columns = {"value": values(b"a", b"b", b"c"), "partition": column}
    rows = batch(**columns, **({} if broker is None else {"broker": broker}))
    RowSender(list_queue, options(), ORIGIN).send(rows)
    found = {one.body: at for one, at in zip(list_queue.sent, list_queue.sent_to, strict=True)}
    assert [found[body] for body in (b"a", b"b", b"c")] == places


@pytest.mark.parametrize(("number", "broker"), [(2, None), (-1, None), (0, "2")])
def test_a_partition_that_does_not_exist_is_an_error(
    list_queue: ListQueue, number: int, broker: str | None
) -> None:
    rows = batch(value=values(b"a"), partition=pa.array([number]), broker=pa.array([broker]))
    with pytest.raises(UsageError, match=r"does not have.*It has 1:0, 1:1"):
        RowSender(list_queue, options(), ORIGIN).send(rows)


def test_rows_with_equal_keys_stay_together_in_order(list_queue: ListQueue) -> None:
    keys = [f"k{number % 7}" for number in range(70)]
    bodies = [b"%d" % number for number in range(70)]
    rows = batch(value=values(*bodies), key=pa.array(keys))
    RowSender(list_queue, options(order_by_key=True), ORIGIN).send(rows)
    seen: dict[str, list[int]] = {}
    places: dict[str, set[str]] = {}
    for one, place in zip(list_queue.sent, list_queue.sent_to, strict=True):
        key = one.properties["KEYS"]
        seen.setdefault(key, []).append(int(one.body))
        places.setdefault(key, set()).add(place)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert {len(where) for where in places.values()} == {1}
    assert len(set(list_queue.sent_to)) == 2


def test_keys_of_every_form_choose_the_same_queue(list_queue: ListQueue) -> None:
    """One key, the same in an array, and none."""
    for keys in (pa.array(["k1", None, "k2"]), pa.array([["k1"], [], ["k2"]])):
        rows = batch(value=values(b"a", b"b", b"c"), key=keys)
        RowSender(list_queue, options(order_by_key=True), ORIGIN).send(rows)
    sent = zip(list_queue.sent, list_queue.sent_to, strict=True)
    where = sorted((bytes(one.body), place) for one, place in sent)
    assert where[0::2] == where[1::2]
    assert [not place for _, place in where[0::2]] == [False, True, False]


def test_delays_are_levels_durations_or_intervals(list_queue: ListQueue) -> None:
    for column in (
        pa.array([None, timedelta(seconds=10)], pa.duration("us")),
        pa.array([None, "10s"]),
        pa.array([None, 3]),
    ):
        rows = batch(value=values(b"now", b"later"), delay=column)
        RowSender(list_queue, options(), ORIGIN).send(rows)
    assert [one.body for one in list_queue.sent] == [b"now"] * 3
    assert [(one.level, one.delay) for one in list_queue.singles] == [
        (0, timedelta(seconds=10)), (0, timedelta(seconds=10)), (3, None),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="'soon' is not a duration"):
        RowSender(list_queue, options(), ORIGIN).send(
            batch(value=values(b"a"), delay=pa.array(["soon"]))
        )


def test_the_option_delays_all_rows(list_queue: ListQueue) -> None:
    RowSender(list_queue, options(delay_ms=5_000), ORIGIN).send(batch(value=values(b"a", b"b")))
    assert [one.delay for one in list_queue.singles] == [timedelta(seconds=5)] * 2
    assert [one.message.properties["spark.seq"] for one in list_queue.singles] == ["0", "1"]


@pytest.mark.parametrize("protocol", ["rocketmq", "tubemq"])
def test_large_rows_are_sent_in_their_turn(list_queue: ListQueue, protocol: str) -> None:
    rows = batch(
        value=values(b"a", b"b" * 2_000_000, b"c"), partition=pa.array([1, 1, 1], pa.int32())
    )
    list_queue.held["t"] = {("1", 0): (0, 0), ("1", 1): (0, 0)}
    RowSender(list_queue, options(protocol), ORIGIN).send(rows)
    assert [one.body[:1] for one in list_queue.sent] == [b"a", b"b", b"c"]
    assert list_queue.sent_to == ["1:1"] * 3
    assert not list_queue.singles


def test_headers_may_be_left_out(list_queue: ListQueue) -> None:
    pairs = pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))
    rows = batch(value=values(b"a"), properties=pairs)
    for headers in (True, False):
        RowSender(list_queue, options(include_headers=headers), Origin({}, "")).send(rows)
    assert ["k" in one.properties for one in list_queue.sent] == [True, False]


def test_keys_may_be_binary(list_queue: ListQueue) -> None:
    rows = batch(value=values(b"a"), key=pa.array([b"k1"], pa.binary()))
    RowSender(list_queue, options(), ORIGIN).send(rows)
    assert list_queue.sent[0].properties["KEYS"] == "k1"
    rows = batch(value=values(b"a"), key=pa.array([b"\xff"], pa.binary()))
    with pytest.raises(UsageError, match=r"not UTF-8.*base64"):
        RowSender(list_queue, options(), ORIGIN).send(rows)


STRINGS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("protocol", "columns", "message"),
    [
        ("rocketmq", {"value": values(b"a", None)}, "Row 1 of the task has no value.*tombstones"),
        ("rocketmq", {"value": values(b"a", b"")}, "Row 1 of the task has no value"),
        ("rocketmq", {"value": values(b"a"), "key": pa.array(["k 1"])}, "Row 0.*holds a space"),
        ("rocketmq", {"value": values(b"a"), "tag": pa.array([" "])}, "Row 0.*tag is blank"),
        ("tubemq", {"value": values(b"a"), "key": pa.array(["k"])}, "TubeMQ has no keys"),
        ("tubemq", {"value": values(b"a"), "tag": pa.array(["a=b"])}, "Row 0 of the task.*'a=b'"),
        (
            "rocketmq",
            {"value": values(b"a"), "properties": pa.array([[("KEYS", "x")]], STRINGS)},
            "Row 0.*'KEYS' is reserved",
        ),
        (
            "rocketmq",
            {"value": values(b"a", b"b"), "key": pa.array([["k"], ["k", None]])},
            "Row 1 of the task: One of the keys is null.*array_compact",
        ),
        (
            "rocketmq",
            {"value": values(b"a"), "properties": pa.array([[("x", None)]], STRINGS)},
            "Row 0 of the task: Property 'x' is null.*map_filter",
        ),
        (
            "rocketmq",
            {"value": values(b"a"), "properties": pa.array([[("x", "y" * 40_000)]], STRINGS)},
            "Row 0.*at most 32767",
        ),
        (
            "tubemq",
            {"value": values(b"a"), "properties": pa.array([[("x", "y" * 40_000)]], STRINGS)},
            "Row 0.*more than 32767 bytes",
        ),
        (
            "tubemq",
            {"value": values(b"a"), "properties": pa.array([[("x", "\x01")]], STRINGS)},
            r"Row 0.*contains U\+0001 or U\+0002",
        ),
        (
            "rocketmq",
            {"value": values(b"a", b"b"), "key": pa.array([b"k", b"\xff"], pa.binary())},
            "Row 1 of the task: The key is not UTF-8",
        ),
        ("rocketmq", {"value": values(b"a", b"b"), "delay": pa.array([None, -1])}, "Row 1.*delay"),
        (
            "rocketmq",
            {"value": values(b"a"), "delay": pa.array(["9" * 30 + "d"])},
            "Row 0.*longer than 999,999,999 days",
        ),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(
    list_queue: ListQueue, protocol: str, columns: dict[str, pa.Array], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        RowSender(list_queue, options(protocol), ORIGIN).send(batch(**columns))
    assert list_queue.sent == []


@pytest.mark.parametrize("protocol", ["rocketmq", "tubemq"])
@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("days", [-719_163, 2_932_897])
def test_a_timestamp_that_no_message_can_carry_is_refused(
    list_queue: ListQueue, protocol: str, zone: str | None, days: int
) -> None:
    """Spark's timestamps go on before the year 1 and after 9999."""
    day_us = 86_400_000_000
    kept = [0, -719_162 * day_us, 2_932_897 * day_us - 1]
    kind = pa.timestamp("us", zone)
    sender = RowSender(list_queue, options(protocol), ORIGIN)
    sender.send(batch(value=values(*[b"a"] * 4), timestamp=pa.array([None, *kept], kind)))
    assert len(list_queue.sent) == 4
    with pytest.raises(UsageError, match="Row 5 of the task has a timestamp before the year 1"):
        sender.send(batch(value=values(*[b"b"] * 2), timestamp=pa.array([0, days * day_us], kind)))
    assert len(list_queue.sent) == 4


def test_rows_without_a_topic_are_named(list_queue: ListQueue) -> None:
    rows = batch(value=values(b"a", b"b"), topic=pa.array(["t", None]))
    with pytest.raises(UsageError, match="Row 1 of the task has no topic"):
        RowSender(list_queue, options(no_topic=True), ORIGIN).send(rows)


BUSY = RefusedError("busy", code=int(ResponseCode.SYSTEM_BUSY))
LOST = DisconnectedError("The connection broke.")
TOO_LARGE = RefusedError("too large", topic="t", code=int(ResponseCode.MESSAGE_ILLEGAL))


@pytest.mark.parametrize("error", [BUSY, LOST])
def test_a_batch_that_may_succeed_later_is_sent_again(
    list_queue: ListQueue, pauses: list[float], error: CohererError
) -> None:
    list_queue.failures = [error, error]
    RowSender(list_queue, options(), ORIGIN).send(batch(value=values(b"a", b"b")))
    assert [one.body for one in list_queue.sent] == [b"a", b"b"]
    assert pauses == [0.1, 0.2]


def test_a_broker_that_stays_busy_fails_the_task(
    list_queue: ListQueue, pauses: list[float]
) -> None:
    list_queue.failures = [BUSY] * 7
    with pytest.raises(RefusedError, match="busy"):
        RowSender(list_queue, options(), ORIGIN).send(batch(value=values(b"a")))
    assert len(pauses) == 6


def test_a_refused_batch_is_halved_until_the_row_is_known(
    list_queue: ListQueue, pauses: list[float]
) -> None:
    list_queue.failures = [TOO_LARGE, None, TOO_LARGE, None, TOO_LARGE]
    rows = batch(value=values(b"a", b"b", b"c", b"d"))
    with pytest.raises(RefusedError, match="Row 3 of the task: too large") as caught:
        RowSender(list_queue, options(), ORIGIN).send(rows)
    assert (caught.value.topic, caught.value.code) == ("t", TOO_LARGE.code)
    assert [one.body for one in list_queue.sent] == [b"a", b"b", b"c"]
    assert pauses == []


def test_a_batch_behind_a_refused_one_is_not_lost(
    list_queue: ListQueue, pauses: list[float]
) -> None:
    """`send_packed` gives the batches that it did not send the error of the one before."""
    bodies = [bytes([65 + number]) * 600_000 for number in range(3)]
    list_queue.failures = [BUSY, BUSY, BUSY]
    rows = batch(value=values(*bodies), partition=pa.array([0, 0, 0]))
    RowSender(list_queue, options(), ORIGIN).send(rows)
    assert [one.body[:1] for one in list_queue.sent] == [b"A", b"B", b"C"]
    assert pauses == [0.1]


def test_other_errors_fail_the_task_and_name_the_rows(list_queue: ListQueue) -> None:
    list_queue.failures = [RequestTimeoutError("No answer.", server="h:1")]
    with pytest.raises(RequestTimeoutError, match="Rows 0 to 1 of the task: No answer") as caught:
        RowSender(list_queue, options(), ORIGIN).send(batch(value=values(b"a", b"b")))
    assert caught.value.server == "h:1"


VALUE = StructField("value", BinaryType())
KEY, PART = StructField("key", StringType()), StructField("partition", LongType())


def test_combinations_of_columns_and_options() -> None:
    with pytest.raises(UsageError, match="orderByKey needs a column key"):
        check_columns(StructType([VALUE]), options(order_by_key=True))
    with pytest.raises(UsageError, match="both choose the queue"):
        check_columns(StructType([VALUE, KEY, PART]), options(order_by_key=True))
    with pytest.raises(UsageError, match=r'cannot delay.*drop\("delay"\)'):
        check_columns(StructType([VALUE, StructField("delay", StringType())]), options("tubemq"))
    check_columns(StructType([VALUE, KEY, PART]), options())


def test_options_that_tubemq_does_not_have() -> None:
    given = {"url": "rocketmq://h:1", "orderByKey": "true", "delay": "10s"}
    found = write_options(given, "rocketmq")
    assert (found.order_by_key, found.delay_ms) == (True, 10_000)
    for name in ("orderByKey", "delay"):
        with pytest.raises(UsageError, match=f"Unknown option '{name.lower()}'"):
            write_options({"url": "tubemq://h:1", name: given[name]})
