"""Small ranges of a node are read together; the rows are those of single reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coherer import Message, blocking
from coherer._store import reading as store_reading
from coherer.errors import CohererError
from coherer.spark.connections import shared_queue
from coherer.spark.options import read_options
from coherer.spark.planning import PACK_ROWS, Range
from coherer.spark.queue import Queue
from coherer.spark.reading import TOGETHER_MAX, rows, settings_of, together
from coherer.testing import EmbeddedNode, embedded_node

PARTITIONS = 4
COUNT = 400
FORMATS = ["tubemq", "rocketmq"]


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with embedded_node() as node:
        for topic in FORMATS:
            node.create_topic(topic, PARTITIONS)
            with blocking.connect(url_of(node, topic)) as client, client.producer(topic) as sender:
                bodies = (b"%d" % number for number in range(COUNT))
                sender.send_many(Message(topic, body) for body in bodies).check()
        yield node


def url_of(node: EmbeddedNode, protocol: str) -> str:
    return node.url if protocol == "tubemq" else node.rocketmq_url


@pytest.fixture(params=FORMATS)
def found(node: EmbeddedNode, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A function that reads ranges, the queue, and its bounds."""
    protocol: str = request.param
    options = read_options({"url": url_of(node, protocol), "topic": protocol}, protocol)

    def read(ranges: list[Range]) -> list[tuple[int, int, bytes]]:
        with shared_queue(options.access) as queue:
            batches = list(rows(queue, ranges, settings_of(options)))
        return [
            (row["partition"], row["offset"], row["value"])
            for batch in batches
            for row in batch.to_pylist()
        ]

    with shared_queue(options.access) as queue:
        yield read, queue, queue.bounds(protocol), protocol


Found = tuple[Callable[[list[Range]], list[tuple[int, int, bytes]]], Queue, Any, str]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)
@given(
    st.lists(
        st.tuples(st.integers(0, PARTITIONS - 1), st.floats(0, 1), st.floats(0, 1)),
        min_size=1,
        max_size=TOGETHER_MAX + 3,
    )
)
def test_ranges_together_have_the_rows_of_each(
    found: Found, cuts: list[tuple[int, float, float]]
) -> None:
    read, _, bounds, topic = found
    places = sorted(bounds)
    ranges = []
    for number, first, share in cuts:
        broker, partition = places[number]
        low, high = bounds[broker, partition]
        start = low + int(first * (high - low))
        ranges.append(Range(topic, broker, partition, start, start + int(share * (high - start))))
    ranges = [one for one in ranges if one.rows]
    assert read(ranges) == [row for one in ranges for row in read([one])]
    expected = [(one.partition, at) for one in ranges for at in range(one.start, one.end)]
    assert [row[:2] for row in read(ranges)] == expected


def test_every_message_is_read_once(found: Found) -> None:
    read, _, bounds, topic = found
    ranges = [Range(topic, *place, low, high) for place, (low, high) in bounds.items()]
    values = [int(value) for _, _, value in read(ranges)]
    assert sorted(values) == list(range(COUNT))


def test_a_range_that_cannot_be_read_leaves_the_client_usable(found: Found) -> None:
    read, queue, bounds, topic = found
    place, (low, high) = next(iter(bounds.items()))
    good = Range(topic, *place, low, high)
    bad = Range(f"{topic}-none", *place, 0, 5)
    with pytest.raises(CohererError), queue.readers([good, bad], ("offset",)):
        pass
    assert len(read([good])) == high - low


def test_the_position_moves_with_the_batches(found: Found) -> None:
    _, queue, bounds, topic = found
    place, (low, high) = next(iter(bounds.items()))
    ranges = [Range(topic, *place, low, high), Range(topic, *place, low + 1, high)]
    with queue.readers(ranges, ("offset",)) as readers:
        for one, reader in zip(ranges, readers, strict=True):
            assert reader.exact
            assert (reader.position, reader.left_out) == (one.start, 0)
            batch = reader.read()
            assert batch is not None
            assert batch.to_arrow(["offset"]).column("offset")[0].as_py() == one.start
            assert reader.position == high
            assert reader.read() is None


@given(st.lists(st.integers(1, 2 * PACK_ROWS), max_size=40))
def test_ranges_are_divided_in_order(sizes: list[int]) -> None:
    ranges = [Range("t", "1", number, 0, size) for number, size in enumerate(sizes)]
    parts = list(together(ranges))
    assert [one for part in parts for one in part] == ranges
    for part in parts:
        assert 1 <= len(part) <= TOGETHER_MAX
        assert len(part) == 1 or sum(one.rows for one in part) <= PACK_ROWS


def test_scattered_records_arrive_in_one_piece(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, _, bounds, topic = found
    ranges = [Range(topic, *place, low, high) for place, (low, high) in bounds.items()]
    expected = read(ranges)
    store_reading.JOINING.load()
    monkeypatch.setattr(store_reading, "FEW_ENTRIES", 0)
    assert read(ranges) == expected
