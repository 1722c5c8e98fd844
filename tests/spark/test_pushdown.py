"""Filters of Spark, translated into what has to be read."""

from __future__ import annotations

from datetime import UTC, datetime
from types import FunctionType

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from coherer import Message
from coherer.blocking.rocketmq import connect
from coherer.spark.options import read_options
from coherer.spark.planning import Range, Wanted
from coherer.spark.pushdown import is_enabled, wanted
from coherer.spark.source import FilteredBatchReader, Share
from coherer.testing import EmbeddedNode

PLANNER = "pyspark.sql.worker.data_source_pushdown_filters"
OFFSET, PARTITION, TOPIC, TIME = ("offset",), ("partition",), ("topic",), ("storeTimestamp",)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Wanted()),
        ([EqualTo(TOPIC, "a")], Wanted(topics=frozenset("a"))),
        ([EqualNullSafe(("broker",), "b")], Wanted(brokers=frozenset("b"))),
        ([In(PARTITION, [1, 2, None]), In(PARTITION, [2, 3])], Wanted(partitions=frozenset({2}))),
        ([In(("tag",), ["x", "y"])], Wanted(tags=frozenset("xy"))),
        ([EqualTo(OFFSET, 5)], Wanted(offsets=(5, 6))),
        ([GreaterThan(OFFSET, 5), LessThanOrEqual(OFFSET, 9)], Wanted(offsets=(6, 10))),
        ([GreaterThanOrEqual(OFFSET, 5), LessThan(OFFSET, 9)], Wanted(offsets=(5, 9))),
        ([GreaterThan(OFFSET, 9), LessThan(OFFSET, 3)], Wanted(offsets=(10, 10))),
        ([LessThan(OFFSET, -3)], Wanted(offsets=(0, 0))),
    ],
)
def test_filters_limit_what_is_read(filters: list[Filter], expected: Wanted) -> None:
    assert wanted(filters) == expected


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(TOPIC, "a")),
        Not(LessThan(OFFSET, 3)),
        StringStartsWith(TOPIC, "a"),
        IsNotNull(OFFSET),
        EqualTo(("value",), b"a"),
        EqualTo(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC)),
        EqualTo(("topic", "field"), "a"),
        EqualNullSafe(("tag",), None),
        GreaterThan(PARTITION, 3),
    ],
)
def test_what_cannot_be_pruned_is_read(one: Filter) -> None:
    assert wanted([one]) == Wanted()


def test_times_are_rounded_outwards() -> None:
    time = datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)  # half a millisecond after a second
    assert wanted([GreaterThanOrEqual(TIME, time)]).stored_ms == (1000, None)
    assert wanted([LessThanOrEqual(TIME, time)]).stored_ms == (None, 1002)
    whole = time.replace(microsecond=0)
    assert wanted([EqualTo(TIME, whole)]).stored_ms == (1000, 1001)
    assert wanted([LessThan(TIME, whole), GreaterThan(TIME, whole)]).stored_ms == (1001, 1000)


def test_times_without_end_are_read(coherer_node: EmbeddedNode, coherer_topic: str) -> None:
    """Tables use the last moment of a calendar as an open end."""
    with connect(coherer_node.rocketmq_url) as client, client.producer() as producer:
        producer.send(Message(coherer_topic, b"x"))
    options = read_options({"url": coherer_node.rocketmq_url, "topic": coherer_topic}, "rocketmq")
    reader = FilteredBatchReader(options)
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    for one, rows in (LessThanOrEqual(TIME, last), 1), (GreaterThan(TIME, last), 0):
        reader.pushFilters([one])
        shares = [part for part in reader.partitions() if isinstance(part, Share)]
        assert sum(part.rows for share in shares for part in share.ranges) == rows


def test_ranges_are_limited() -> None:
    ranges = [Range("t", "a", number, 0, 10) for number in range(3)]
    found = Wanted(brokers=frozenset("a"), partitions=frozenset({1, 2}), offsets=(4, 6))
    assert found.limit(ranges) == [Range("t", "a", 1, 4, 6), Range("t", "a", 2, 4, 6)]
    assert not Wanted(topics=frozenset("u")).limit(ranges)
    assert not Wanted(brokers=frozenset("b")).limit(ranges)


def test_only_the_module_of_spark_that_pushes_filters_enables_it() -> None:
    def ask() -> bool:
        return is_enabled()

    names = {"is_enabled": is_enabled, "__name__": PLANNER}
    planner = FunctionType(ask.__code__, names, closure=ask.__closure__)
    assert not ask()
    assert planner()
