"""Streams with their default start on a topic that is being written to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.landing import WAIT_S, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def land(
    spark: SparkSession,
    format_: str,
    url: str,
    topic: str,
    home: Path,
    wait: Callable[[StreamingQuery], bool | None] | None = None,
) -> None:
    """Lands messages in a table until `wait` returns; without it, the present messages."""
    rows = spark.readStream.format(format_).option("url", url).load(topic)
    to_table = (
        rows.selectExpr("partition || ' ' || offset position")
        .writeStream.format("parquet")
        .option("path", str(home / "table"))
        .option("checkpointLocation", str(home / "checkpoint"))
    )
    if wait is None:
        to_table = to_table.trigger(availableNow=True)
    run(to_table.start, wait or (lambda query: query.awaitTermination(WAIT_S)))


def landed(spark: SparkSession, home: Path) -> dict[int, list[int]]:
    """The offsets that are in the table, by partition."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for row in spark.read.parquet(str(home / "table")).collect():
        partition, offset = row.position.split()
        found[int(partition)].append(int(offset))
    return {partition: sorted(found[partition]) for partition in sorted(found)}


def check_unbroken(found: dict[int, list[int]]) -> None:
    """Check that each offset from the first to the last occurs once."""
    for offsets in found.values():
        assert offsets == list(range(offsets[0], offsets[-1] + 1))


def forget_commits(home: Path) -> None:
    """Restore the state after a crash between the end of the first batch and its commit."""
    for file in (home / "checkpoint" / "commits").iterdir():
        file.unlink()
