"""The demo's questions, on a table small enough to count by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer.cli import demo_flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRY = datetime(2013, 1, 1, 10, tzinfo=UTC)
WET = datetime(2013, 6, 7, 20, tzinfo=UTC)


@pytest.mark.spark
def test_questions_are_answered(spark: SparkSession, tmp_path: Path) -> None:
    flights = [
        ("UA", "EWR", 5, DRY, 10.0),
        ("UA", "EWR", 5, DRY, 20.0),
        ("UA", "EWR", 5, DRY, None),
        ("DL", "JFK", 15, WET, 40.0),
    ]
    names = "carrier string, origin string, hour int, time_hour timestamp, dep_delay double"
    spark.createDataFrame(flights, names).write.parquet(str(tmp_path / "flights"))
    carriers, hours, rain = demo_flights.answers(spark, tmp_path)
    assert carriers.rows == [
        ("DL", "Delta Air Lines Inc.", 1, 40.0, 100.0),
        ("UA", "United Air Lines Inc.", 2, 15.0, 50.0),
    ]
    assert hours.rows == [("JFK", 15, 1, 40.0, 100.0), ("EWR", 5, 2, 15.0, 50.0)]
    assert [row[0] for row in rain.rows] == ["dry", "over 4 mm"]
    assert [row[1:] for row in rain.rows] == [(2, 15.0, 50.0), (1, 40.0, 100.0)]
