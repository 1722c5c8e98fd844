"""The demo's flights: the data, its messages, and the answers of Spark."""

from __future__ import annotations

import importlib.util
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer.cli.demo import dataset
from coherer.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRY = datetime(2013, 1, 1, 10, tzinfo=UTC)
WET = datetime(2013, 6, 7, 20, tzinfo=UTC)


def test_all_flights_are_there() -> None:
    table = dataset.flights()
    assert table.num_rows == 336_776
    assert table.schema.names == list(dataset.FLIGHT_COLUMNS)


def test_fewer_rows_are_spread_over_the_year() -> None:
    table = dataset.flights(36)
    assert table.num_rows == 36
    assert set(table.column("month").to_pylist()) == set(range(1, 13))
    assert dataset.flights(10**9).num_rows == 336_776


def test_a_flight_is_a_message() -> None:
    (chunk,) = dataset.messages(dataset.flights(3))
    message = chunk[0]
    flight = json.loads(message.body)
    assert list(flight) == list(dataset.FLIGHT_COLUMNS)
    assert (message.topic, message.tag) == ("flights", "UA")
    assert message.time == datetime(2013, 1, 1, 10, tzinfo=UTC)
    assert flight["time_hour"] == "2013-01-01T10:00:00Z"
    assert flight["dep_delay"] == 2.0


def test_missing_values_are_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "CHUNK_ROWS", 400)
    chunks = list(dataset.messages(dataset.flights(1000)))
    assert [len(chunk) for chunk in chunks] == [400, 400, 200]
    flights = [json.loads(message.body) for chunk in chunks for message in chunk]
    cancelled = [flight for flight in flights if flight["dep_time"] is None]
    assert 10 < len(cancelled) < 50
    assert all(flight["dep_delay"] is None for flight in cancelled)


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        dataset, "find_spec", lambda name: None if name == "pyspark" else find_spec(name)
    )
    with pytest.raises(UsageError, match=r"needs pyspark\. Try: pip install \"coherer\[demo\]\""):
        dataset.check_installed()


@pytest.mark.spark
def test_answers_match_a_table_counted_by_hand(spark: SparkSession, tmp_path: Path) -> None:
    flights = [
        ("UA", "EWR", 5, DRY, 10.0),
        ("UA", "EWR", 5, DRY, 20.0),
        ("UA", "EWR", 5, DRY, None),
        ("DL", "JFK", 15, WET, 40.0),
    ]
    names = "carrier string, origin string, hour int, time_hour timestamp, dep_delay double"
    spark.createDataFrame(flights, names).write.parquet(str(tmp_path / "flights"))
    carriers, hours, rain = dataset.answers(spark, tmp_path)
    assert carriers.rows == [
        ("DL", "Delta Air Lines Inc.", 1, 40.0, 100.0),
        ("UA", "United Air Lines Inc.", 2, 15.0, 50.0),
    ]
    assert hours.rows == [("JFK", 15, 1, 40.0, 100.0), ("EWR", 5, 2, 15.0, 50.0)]
    assert [row[0] for row in rain.rows] == ["dry", "over 4 mm"]
    assert [row[1:] for row in rain.rows] == [(2, 15.0, 50.0), (1, 40.0, 100.0)]
