"""Bad records on Spark: rows with the reason, an error, or a warning; never a dead stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer import Message
from coherer.spark import measured, source_metrics
from tests.spark.bad_message import send_bad

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from coherer.testing import EmbeddedNode
    from tests.spark.queues import Endpoint

pytestmark = pytest.mark.spark

WAIT_S = 120


@pytest.fixture
def topic(coherer_node: EmbeddedNode, coherer_topic: str, endpoint: Endpoint) -> str:
    """Good messages at offsets 0, 1, 3; bad ones at 2 and 4."""
    name = f"{coherer_topic}_bad"
    coherer_node.create_topic(name, 1)
    with endpoint.connect() as client, client.producer(name) as producer:
        for number in range(5):
            if number in (2, 4):
                send_bad(coherer_node.node.rocketmq_port, name, b"no zlib %d" % number)
            else:
                producer.send(Message(name, b"%d" % number))
    return name


def read(spark: SparkSession, endpoint: Endpoint, topic: str, **options: str) -> DataFrame:
    rows = spark.read.format(endpoint.format).option("url", endpoint.url)
    return rows.options(**options).load(topic)


def test_each_mode(spark: SparkSession, endpoint: Endpoint, topic: str) -> None:
    with pytest.raises(Exception, match=rf"A record is bad: {topic} .* \[2, .*mode=PERMISSIVE"):
        read(spark, endpoint, topic).count()
    for options in ({"mode": "DROP"}, {"failOnDataLoss": "false"}):
        found = read(spark, endpoint, topic, **options).toArrow()
        assert found["offset"].to_pylist() == [0, 1, 3]
    rows = read(spark, endpoint, topic, mode="PERMISSIVE").toArrow().to_pylist()
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    good = [row for row in rows if row["error"] is None]
    assert [row["value"] for row in good] == [b"0", b"1", b"3"]
    for bad in (rows[2], rows[4]):
        assert bad["value"] == b"no zlib %d" % bad["offset"]
        assert "cannot be decompressed" in bad["error"]


def test_a_stream_lives_on_and_counts_them(
    spark: SparkSession, endpoint: Endpoint, topic: str, tmp_path: Path
) -> None:
    counted: dict[str, tuple[int | None, int | None]] = {}
    for mode in ("PERMISSIVE", "DROP"):
        rows = spark.readStream.format(endpoint.format).option("url", endpoint.url)
        query = (
            measured(rows.options(mode=mode, startingOffsets="earliest").load(topic))
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / mode))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        (progress,) = [one for one in query.recentProgress if one.numInputRows]
        (found,) = source_metrics(progress)
        counted[mode] = found.bad, found.missing
    assert counted == {"PERMISSIVE": (2, 0), "DROP": (0, 2)}
