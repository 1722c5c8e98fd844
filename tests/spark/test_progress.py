"""Lag, from what Spark reports."""

from __future__ import annotations

from coherer.spark import Lag, lag


def test_lag_counts_per_partition() -> None:
    source = {
        "endOffset": '{"a": {"1:0": 40, "1:1": 7}}',
        "latestOffset": '{"a": {"1:0": 100, "1:1": 7, "1:2": 3}}',
    }
    assert lag({"sources": [source]}) == Lag(63, {"a": {"1:0": 60, "1:1": 0, "1:2": 3}})


def test_offsets_come_as_text_or_as_objects() -> None:
    source = {"endOffset": {"a": {"1:0": 1}}, "latestOffset": {"a": {"1:0": 2}}}
    assert lag({"sources": [source, source]}).total == 2


def test_the_start_of_the_first_batch_counts_nothing() -> None:
    end = '{":start": {"a:1:0": 10}, "a": {"1:0": 40}}'
    source = {"startOffset": end, "endOffset": end, "latestOffset": '{"a": {"1:0": 100}}'}
    assert lag({"sources": [source]}) == Lag(60, {"a": {"1:0": 60}})


def test_other_sources_and_missing_offsets_count_nothing() -> None:
    files = {"endOffset": '{"logOffset": 3}', "latestOffset": "null"}
    rate = {"endOffset": 3, "latestOffset": 4}
    fresh = {"endOffset": None, "latestOffset": None}
    assert lag({"sources": [files, rate, fresh]}) == Lag(0, {})
