"""What Spark itself refuses, as `docs/spark.md` says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from coherer.testing import EmbeddedNode

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(spark: SparkSession, coherer_node: EmbeddedNode, coherer_topic: str) -> DataFrame:
    coherer_node.create_topic(coherer_topic, 1)
    stream = spark.readStream.format("rocketmq").option("url", coherer_node.rocketmq_url)
    return stream.load(coherer_topic)


def to_topic(rows: DataFrame, node: EmbeddedNode, home: Path) -> DataStreamWriter:
    return (
        rows.writeStream.format("rocketmq")
        .option("url", node.rocketmq_url)
        .option("topic", "copies")
        .option("checkpointLocation", str(home / "checkpoint"))
    )


@pytest.mark.parametrize(
    ("mode", "words"),
    [("update", "does not support Update mode"), ("complete", "Use outputMode|append")],
)
def test_output_modes(
    rows: DataFrame, coherer_node: EmbeddedNode, tmp_path: Path, mode: str, words: str
) -> None:
    counts = rows.groupBy("tag").count().selectExpr("cast(count as string) value")
    writer = to_topic(counts, coherer_node, tmp_path).outputMode(mode)
    with pytest.raises(Exception, match=words):
        writer.start().processAllAvailable()


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        ({"continuous": "1 second"}, "[Cc]ontinuous"),
        ({"realTime": "5 minutes"}, "REAL_TIME_MODE"),
    ],
)
def test_triggers(rows: DataFrame, tmp_path: Path, trigger: dict[str, str], words: str) -> None:
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    if "realTime" in trigger:
        writer = writer.outputMode("update")
    writer = writer.trigger(**trigger)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=words):
        writer.start().processAllAvailable()


def test_save_modes(spark: SparkSession, coherer_node: EmbeddedNode) -> None:
    values = spark.createDataFrame([("x",)], "value string")
    for mode in ("errorifexists", "ignore"):
        writer = values.write.format("rocketmq").option("url", coherer_node.rocketmq_url)
        with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*Append"):
            writer.mode(mode).save("copies")


def test_create_table_drops_options(spark: SparkSession, coherer_node: EmbeddedNode) -> None:
    url = coherer_node.rocketmq_url

    options = f"using rocketmq options (url '{url}', topic 'x')"
    with pytest.raises(Exception, match="CREATE TABLE does not pass options"):
        spark.sql(f"create table no_options {options}")
    spark.sql(f"create or replace temporary view with_options {options}")
    assert spark.table("with_options").columns[0] == "topic"
