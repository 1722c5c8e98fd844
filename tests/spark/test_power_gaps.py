"""A stream reads on over the gap that a power cut of the broker left in a queue's offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import coherer
from coherer._store import Draft, Store, StoreOptions
from coherer.arrow import scan
from coherer.blocking import connect
from coherer.spark.commits import RocketHalfQueue
from coherer.spark.offsets import Offsets
from coherer.spark.planning import DataLossError
from coherer.spark.source import RocketMQDataSource, StreamReader, TubeMQDataSource
from coherer.testing import EmbeddedNode, embedded_node
from tests.copies import copy_tree
from tests.power import Unknown
from tests.spark.queues import schema_of
from tests.spark.stores import file_rows
from tests.waiting import wait_until

READ = 20
"""The stream has read so many messages."""


@pytest.fixture(params=[0, 12], ids=["all lost", "some lost"])
def durable(request: pytest.FixtureRequest) -> int:
    """How many messages have survived the power cut."""
    found: int = request.param
    return found


@pytest.fixture
def node(tmp_path: Path, durable: int) -> Iterator[EmbeddedNode]:
    """A node after a power cut."""
    with embedded_node(tmp_path / "before", default_partitions=1) as node:
        node.create_topic("demo", 1)
    small = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    with Store.open(tmp_path / "before", small, files=Unknown(), now_ms=lambda: 1) as store:
        drafts = [Draft("demo", 0, b"%d" % number, b"") for number in range(durable)]
        store.append([*drafts, Draft("other", 0, b"x", b"")])
        copy_tree(store.directory, tmp_path / "cut")
    with embedded_node(tmp_path / "cut", default_partitions=1) as node:
        yield node


def send(node: EmbeddedNode) -> int:
    """Send a message; return its offset."""
    with connect(node.rocketmq_url) as client, client.producer("demo") as producer:
        offset = producer.send(coherer.Message("demo", b"after")).offset
    assert offset is not None
    assert offset > READ
    return offset


def stream(node: EmbeddedNode, protocol: str, **options: str) -> StreamReader:
    kind, url = TubeMQDataSource, node.url
    if protocol == "rocketmq":
        kind, url = RocketMQDataSource, node.rocketmq_url
    data = kind({"url": url, "path": "demo", **options})
    reader = data.streamReader(schema_of(data))
    assert isinstance(reader, StreamReader)
    return reader


def bodies(reader: StreamReader, start: Offsets, end: Offsets) -> list[bytes]:
    return [
        row["value"]
        for share in reader.partitions(start, end)
        for batch in reader.read(share)
        for row in batch.to_pylist()
    ]


def moved(offsets: Offsets, to: int) -> Offsets:
    return {topic: dict.fromkeys(found, to) for topic, found in offsets.items()}


@pytest.mark.parametrize("sent_first", [False, True], ids=["no message yet", "a message"])
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_stream_that_has_read_what_was_lost_goes_on(
    node: EmbeddedNode, protocol: str, sent_first: bool
) -> None:
    begin = send(node) if sent_first else 0
    reader = stream(node, protocol, startingOffsets="earliest")
    start = moved(reader.initialOffset(), READ)
    # A micro-batch that was planned before the power cut is read again.
    assert bodies(reader, moved(start, READ - 3), start) == []
    end = reader.latestOffset(start, ReadAllAvailable())
    if sent_first:
        assert end == moved(start, begin + 1)
    found = bodies(reader, start, end)
    if not sent_first:
        assert found == []
        assert send(node) == next(iter(end["demo"].values()))
        found = bodies(reader, end, reader.latestOffset(end, ReadAllAvailable()))
    assert found == [b"after"]


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_stream_that_lags_reads_over_the_gap(
    node: EmbeddedNode, protocol: str, durable: int
) -> None:
    send(node)
    reader = stream(node, protocol, startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == moved(start, 0)
    found = bodies(reader, start, reader.latestOffset(start, ReadAllAvailable()))
    assert found == [*(b"%d" % number for number in range(durable)), b"after"]


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_what_no_gap_explains_is_still_a_loss(node: EmbeddedNode, protocol: str) -> None:
    send(node)
    reader = stream(node, protocol, startingOffsets="earliest")
    start = moved(reader.initialOffset(), 5_000_000)
    with pytest.raises(DataLossError, match=r"5000000\)"):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_queue_continues_where_a_decision_saw_its_end(node: EmbeddedNode, durable: int) -> None:
    with connect(node.rocketmq_url) as client:
        [place] = client.offsets("demo")
        queue = RocketHalfQueue(client)
        assert queue.ends([place]) == [durable]
        queue.reach(place, 5_000_000)
        assert queue.ends([place]) == [durable]
        queue.reach(place, READ)
        [end] = queue.ends([place])
        assert end > READ
        assert queue.committed(place, READ, end) == set()


def test_the_look_for_committed_messages_passes_over_the_gap(node: EmbeddedNode) -> None:
    begin = send(node)
    with connect(node.rocketmq_url) as client:
        [place] = client.offsets("demo")
        queue = RocketHalfQueue(client)
        assert queue.committed(place, 0, begin + 1) == {0}


def test_files_are_read_over_the_gap(
    node: EmbeddedNode, durable: int, caplog: pytest.LogCaptureFixture
) -> None:
    last = send(node)
    wanted = [*range(durable), last]

    def offsets() -> list[object]:
        return [row["offset"] for row in file_rows(node.directory, "demo", columns="offset")]

    wait_until(lambda: last in offsets())
    assert offsets() == wanted
    table = scan(f"file:{node.directory}", "demo", columns=["offset"]).read_all()
    assert table.column("offset").to_pylist() == wanted
    if durable:  # otherwise the rows begin behind the gap
        assert f"left these offsets empty: demo broker-a:0 [{durable}, {last})" in caplog.text
