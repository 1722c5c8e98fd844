"""Streams and new reads while a broker of their topic is away: killed, stopped, with a slave."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from coherer import Message
from coherer.blocking import connect
from coherer.errors import UnavailableError
from coherer.spark.offsets import Offsets, split_start
from coherer.spark.options import ReadOptions, read_options
from coherer.spark.source import BatchReader, Share, StreamReader
from coherer.testing import EmbeddedCluster, embedded_cluster

COUNT = 10
NAMES = {"tubemq": ("1:0", "2:0"), "rocketmq": ("broker-a:0", "broker-b:0")}


@pytest.fixture(params=["plain", "with slaves"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with embedded_cluster(2, slaves=request.param == "with slaves", apart=True) as cluster:
        cluster.create_topic("t")
        send(cluster)
        yield cluster


def send(cluster: EmbeddedCluster) -> None:
    """Send `COUNT` messages to each broker that takes them."""
    with connect(cluster.url) as client, client.producer("t") as producer:
        producer.send_many(Message("t", b"x") for _ in range(2 * COUNT)).check()


def options(cluster: EmbeddedCluster, protocol: str, **others: str) -> ReadOptions:
    url = cluster.url if protocol == "tubemq" else cluster.rocketmq_url
    given = {"url": url, "topic": "t", "startingOffsets": "earliest", "timeout": "1s", **others}
    return read_options(given, protocol)


def end(reader: StreamReader, start: Offsets) -> Offsets:
    return split_start(reader.latestOffset(start, ReadAllAvailable()))[0]


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
def test_a_stream_goes_on_without_a_broker_that_is_away(
    cluster: EmbeddedCluster, protocol: str, killed: bool
) -> None:
    here, away = NAMES[protocol]
    before = end(reader := StreamReader(options(cluster, protocol)), reader.initialOffset())
    assert set(before["t"]) == {here, away}
    second = cluster.brokers[1]
    (second.kill if killed else second.stop)()
    send(cluster)
    for one in (reader, StreamReader(options(cluster, protocol))):  # and one that starts again
        after = end(one, before)
        assert after["t"][here] > before["t"][here]
        assert after["t"][away] == before["t"][away]
        shares = [part for part in one.partitions(before, after) if isinstance(part, Share)]
        assert sum(piece.rows for share in shares for piece in share.ranges) == 2 * COUNT


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_new_read_does_not_skip_a_broker_that_was_killed(
    cluster: EmbeddedCluster, protocol: str
) -> None:
    if protocol == "rocketmq" and not cluster.slaves:
        pytest.skip("name servers forget a broker, whose connection ends, at once")
    cluster.brokers[1].kill()
    for start in (
        StreamReader(options(cluster, protocol)).initialOffset,
        BatchReader(options(cluster, protocol)).partitions,
    ):
        with pytest.raises(UnavailableError):
            start()
    lenient = options(cluster, protocol, failOnDataLoss="false")
    here, _ = NAMES[protocol]
    assert list(StreamReader(lenient).initialOffset()["t"]) == [here]
    shares = [part for part in BatchReader(lenient).partitions() if isinstance(part, Share)]
    assert {piece.broker for share in shares for piece in share.ranges} == {here.split(":")[0]}
