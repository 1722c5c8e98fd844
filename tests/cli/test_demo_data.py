"""The demo's data: all of it, as messages."""

from __future__ import annotations

import importlib.util
import json
from datetime import UTC, datetime

import pytest

from coherer.cli import demo_flights
from coherer.errors import UsageError


def test_all_flights_are_there() -> None:
    table = demo_flights.flights()
    assert table.num_rows == 336_776
    assert table.schema.names == list(demo_flights.FLIGHT_COLUMNS)


def test_fewer_rows_are_spread_over_the_year() -> None:
    table = demo_flights.flights(36)
    assert table.num_rows == 36
    assert set(table.column("month").to_pylist()) == set(range(1, 13))
    assert demo_flights.flights(10**9).num_rows == 336_776


def test_a_flight_is_a_message() -> None:
    (chunk,) = demo_flights.messages(demo_flights.flights(3))
    message = chunk[0]
    flight = json.loads(message.body)
    assert list(flight) == list(demo_flights.FLIGHT_COLUMNS)
    assert (message.topic, message.tag) == ("flights", "UA")
    assert message.time == datetime(2013, 1, 1, 10, tzinfo=UTC)
    assert flight["time_hour"] == "2013-01-01T10:00:00Z"
    assert flight["dep_delay"] == 2.0


def test_missing_values_are_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_data, "CHUNK_ROWS", 400)
    chunks = list(demo_flights.messages(demo_flights.flights(1000)))
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
        demo_data, "find_spec", lambda name: None if name == "pyspark" else find_spec(name)
    )
    with pytest.raises(UsageError, match=r"needs pyspark\. Try: pip install \"coherer\[demo\]\""):
        demo_flights.check_installed()
