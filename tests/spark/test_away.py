"""Streams and new reads while a broker of their topic is away: killed, stopped, with a slave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from coherer import Message
from coherer.blocking import connect
from coherer.errors import CohererError, RefusedError, UnavailableError
from coherer.spark.offsets import Offsets, split_start
from coherer.spark.options import ReadOptions, read_options
from coherer.spark.planning import Range
from coherer.spark.source import BatchReader, Share, StreamReader
from coherer.testing import EmbeddedCluster, EmbeddedNode, embedded_cluster
from tests.waiting import wait_until

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


def url_of(cluster: EmbeddedCluster, protocol: str) -> str:
    return cluster.url if protocol == "tubemq" else cluster.rocketmq_url


def options(cluster: EmbeddedCluster, protocol: str, **others: str) -> ReadOptions:
    given = {
        "url": url_of(cluster, protocol),
        "topic": "t",
        "startingOffsets": "earliest",
        "timeout": "1s",
        **others,
    }
    return read_options(given, protocol)


def end(reader: StreamReader, start: Offsets) -> Offsets:
    return split_start(reader.latestOffset(start, ReadAllAvailable()))[0]


def available(reader: StreamReader, start: Offsets) -> Offsets:
    """The end of a stream that reads what is available."""
    reader.prepareForTriggerAvailableNow()
    return end(reader, start)


def ranges(reader: BatchReader | StreamReader, *offsets: Offsets) -> list[Range]:
    """The ranges that a reader plans."""
    shares = [part for part in reader.partitions(*offsets) if isinstance(part, Share)]
    return [piece for share in shares for piece in share.ranges]


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
        assert sum(piece.rows for piece in ranges(one, before, after)) == 2 * COUNT


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
    assert {piece.broker for piece in ranges(BatchReader(lenient))} == {here.split(":")[0]}


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_the_log_names_a_broker_that_has_been_away_for_long(
    cluster: EmbeddedCluster, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, away = NAMES[protocol][0], "9:0"  # neither master nor name server knows it
    after = end(StreamReader(options(cluster, protocol)), {"t": {here: 0, away: 7}})
    assert after["t"][away] == 7
    assert "Topic t is read without broker 9: It is not registered." in caplog.text


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_progress_is_shown_while_a_broker_is_away(
    cluster: EmbeddedCluster, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = StreamReader(options(cluster, protocol, group="shown", commitOffsets="true"))
    before = end(reader, reader.initialOffset())
    cluster.brokers[1].kill()
    end(reader, before)
    assert "Cannot commit" not in caplog.text
    with connect(url_of(cluster, protocol)) as client:
        (one,) = client.admin().groups.list("shown")
    assert one.topics == ("t",)


LONELY = "u"
"""A topic of the second broker only."""


def create_lonely(cluster: EmbeddedCluster, protocol: str) -> None:
    """Create a topic on the second broker, and send `COUNT` messages to it."""
    url, (_, away) = url_of(cluster, protocol), NAMES[protocol]
    with connect(url) as client:
        client.admin().topics.create(LONELY, 1, [away.split(":")[0]])
    wait_until(partial(sent_lonely, cluster, protocol))


def sent_lonely(cluster: EmbeddedCluster, protocol: str) -> bool:
    """Whether `COUNT` messages could be sent to it: its broker has registered."""
    messages = [Message(LONELY, b"x")] * COUNT
    with suppress(CohererError), connect(url_of(cluster, protocol), timeout_ms=1_000) as client:
        # A send would create it on the other broker.
        client.admin().topics.wait_usable(LONELY, timeout_ms=30_000)
        with client.producer(LONELY) as producer:
            producer.send_many(messages).check()
        return True
    return False


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
def test_a_stream_waits_for_a_topic_whose_brokers_are_all_away(
    cluster: EmbeddedCluster, protocol: str, killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    create_lonely(cluster, protocol)
    both = options(cluster, protocol, topic="t,u")
    before = end(reader := StreamReader(both), reader.initialOffset())
    second = cluster.brokers[1]
    (second.kill if killed else second.stop)()
    send(cluster)
    at = before
    for one in (reader, StreamReader(both)):  # and one that starts again
        after = end(one, before)
        assert after[LONELY] == before[LONELY]
        assert sum(after["t"].values()) == sum(before["t"].values()) + 2 * COUNT
        assert {piece.topic for piece in ranges(one, before, after)} == {"t"}
        at = after
    assert f"Skipping topic {LONELY}" in caplog.text
    second.start()
    wait_until(partial(sent_lonely, cluster, protocol))
    wait_until(lambda: end(reader, at)[LONELY] != before[LONELY])
    after = end(reader, at)
    assert [piece.rows for piece in ranges(reader, at, after)] == [COUNT]


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_stream_ends_when_a_topic_is_deleted(cluster: EmbeddedCluster, protocol: str) -> None:
    create_lonely(cluster, protocol)
    both = options(cluster, protocol, topic="t,u")
    before = end(reader := StreamReader(both), reader.initialOffset())
    with connect(url_of(cluster, protocol)) as client:
        client.admin().topics.delete(LONELY)
    for one in (reader, StreamReader(both)):
        with pytest.raises(RefusedError, match="topic u"):
            end(one, before)
    with pytest.raises(RefusedError, match="topic u"):
        available(StreamReader(both), before)


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_planned_batch_passes_over_a_topic_that_was_deleted(
    coherer_node: EmbeddedNode, coherer_topic: str, protocol: str
) -> None:
    """Spark has written the plan down, so it runs this micro-batch again at each start."""
    url = coherer_node.url if protocol == "tubemq" else coherer_node.rocketmq_url
    names = [f"{coherer_topic}-kept", f"{coherer_topic}-deleted"]
    for name in names:
        coherer_node.create_topic(name, 2)
    with connect(url) as client, client.producer() as producer:
        producer.send_many(Message(name, b"%d" % n) for name in names for n in range(8)).check()

    def options(**given: str) -> ReadOptions:
        start = {"url": url, "topic": ",".join(names), "startingOffsets": "earliest", **given}
        return read_options(start, protocol)

    def values(reader: StreamReader) -> list[tuple[str, int]]:
        found = [
            (str(row["topic"]), int(cast("bytes", row["value"])))
            for share in reader.partitions(begin, end)
            for batch in reader.read(share)
            for row in batch.to_pylist()
        ]
        return sorted(found)

    planned = StreamReader(options())
    begin = planned.initialOffset()
    end = planned.latestOffset(begin, ReadAllAvailable())
    assert len(values(planned)) == 16
    with connect(url) as client:
        client.admin().topics.delete(names[1])
    with pytest.raises(RefusedError):
        values(StreamReader(options()))
    lenient = StreamReader(options(failOnDataLoss="false"))
    assert values(lenient) == [(names[0], n) for n in range(8)]


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_stream_that_reads_what_is_available_leaves_topics_that_are_away(
    cluster: EmbeddedCluster, protocol: str
) -> None:
    create_lonely(cluster, protocol)
    both = options(cluster, protocol, topic="t,u")
    before = end(reader := StreamReader(both), reader.initialOffset())
    cluster.brokers[1].kill()
    send(cluster)
    reader = StreamReader(both)
    after = available(reader, before)
    assert after[LONELY] == before[LONELY]
    assert sum(after["t"].values()) == sum(before["t"].values()) + 2 * COUNT
    send(cluster)
    assert end(reader, after) == after


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_stream_ends_while_none_of_its_topics_has_a_broker(
    cluster: EmbeddedCluster, protocol: str
) -> None:
    create_lonely(cluster, protocol)
    both = options(cluster, protocol, topic="t,u")
    before = end(reader := StreamReader(both), reader.initialOffset())
    for broker in cluster.brokers:
        broker.kill()
    with pytest.raises(UnavailableError, match="No broker of the topic"):
        end(reader, before)
