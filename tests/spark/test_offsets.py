"""Offsets: one format, one order; and the lag in Spark's progress reports."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer.errors import UsageError
from coherer.spark import Lag, lag
from coherer.spark.offsets import (
    bounds_of,
    canonical,
    earliest,
    from_json,
    latest,
    merged,
    resolve,
    split_key,
    split_start,
    to_json,
    total,
    with_start,
)

KEYS = st.builds("{}:{}".format, st.sampled_from(["1", "2", "broker-a"]), st.integers(0, 20))
OFFSETS = st.dictionaries(
    st.sampled_from(["a", "b", "é"]), st.dictionaries(KEYS, st.integers(0, 2**60))
)
BOUNDS = {"t": {"1:0": (3, 9), "1:1": (0, 4)}}


@given(OFFSETS, st.randoms())
def test_the_text_does_not_depend_on_insertion_order(
    offsets: dict[str, dict[str, int]], random: object
) -> None:
    def shuffled(mapping: dict[str, object]) -> dict[str, object]:
        items = list(mapping.items())
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    other = {topic: shuffled(partitions) for topic, partitions in shuffled(offsets).items()}
    assert json.dumps(canonical(other)) == json.dumps(canonical(offsets))
    assert canonical(other) == offsets
    assert total(canonical(other)) == total(offsets)


def test_partitions_are_ordered_by_number() -> None:
    assert list(canonical({"t": {"1:10": 0, "1:9": 0}})["t"]) == ["1:9", "1:10"]


def test_offsets_survive_a_round_trip_through_spark() -> None:
    offsets = canonical({"b": {"1:0": 2**60}, "a": {"2:1": 0}})
    assert json.loads(to_json(offsets)) == offsets
    assert from_json(to_json(offsets), "startingOffsets") == offsets


@pytest.mark.parametrize("key", ["", "1", ":1", "1:", "1:x", "1:-1", "1:²", "1:1 "])
def test_a_malformed_key_is_quoted(key: str) -> None:
    with pytest.raises(UsageError, match="is not a partition"):
        split_key(key)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"t": 3}', '{"t": {"1:0": "3"}}', '{"t": {"x": 3}}', '{"t": {"1:0": -3}}']
)
def test_malformed_json_is_a_usage_error_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"Option startingOffsets: .*broker:partition"):
        from_json(text, "startingOffsets")


def test_bounds_have_both_ends_in_order() -> None:
    bounds = bounds_of("t", {("1", 10): (0, 9), ("1", 2): (5, 7)})
    assert list(bounds["t"]) == ["1:2", "1:10"]
    assert earliest(bounds) == {"t": {"1:2": 5, "1:10": 0}}
    assert latest(bounds) == {"t": {"1:2": 7, "1:10": 9}}
    assert list(merged([{"b": {}}, {"a": {}}])) == ["a", "b"]


def test_wanted_offsets_are_resolved() -> None:
    assert resolve("earliest", BOUNDS, "o", unnamed="latest") == {"t": {"1:0": 3, "1:1": 0}}
    assert resolve("latest", BOUNDS, "o", unnamed="latest") == {"t": {"1:0": 9, "1:1": 4}}
    wanted = {"t": {"1:0": 5}}
    assert resolve(wanted, BOUNDS, "o", unnamed="earliest") == {"t": {"1:0": 5, "1:1": 0}}
    assert resolve(wanted, BOUNDS, "o", unnamed="latest") == {"t": {"1:0": 5, "1:1": 4}}
    marks = {"t": {"1:0": -1, "1:1": -2}}
    assert resolve(marks, BOUNDS, "o", unnamed="latest") == {"t": {"1:0": 9, "1:1": 0}}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"t": {"9:9": 1}}, r"partition 9:9.*Existing partitions: 1:0, 1:1"),
        ({"u": {"1:0": 1}}, r"partition 1:0.*Existing partitions: none"),
        ({"t": {"1:1": 5}}, r"offset 5 of partition 1:1, which ends at 4"),
    ],
)
def test_impossible_offsets_are_refused(wanted: dict[str, dict[str, int]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(wanted, BOUNDS, "startingOffsets", unnamed="latest")


def test_offsets_from_progress_can_be_an_option() -> None:
    end = with_start({"t": {"1:0": 9}}, {"t": {"1:0": 4}})
    assert from_json(to_json(end), "startingOffsets") == {"t": {"1:0": 9}}
    assert split_start(with_start({}, {})) == ({}, {})


def test_lag_counts_per_partition() -> None:
    source = {
        "endOffset": '{"a": {"1:0": 40, "1:1": 7}}',
        "latestOffset": '{"a": {"1:0": 100, "1:1": 7, "1:2": 3}}',
    }
    assert lag({"sources": [source]}) == Lag(63, {"a": {"1:0": 60, "1:1": 0, "1:2": 3}})


def test_offsets_may_be_text_or_objects() -> None:
    source = {"endOffset": {"a": {"1:0": 1}}, "latestOffset": {"a": {"1:0": 2}}}
    assert lag({"sources": [source, source]}).total == 2


def test_lag_ignores_the_start_of_the_first_batch() -> None:
    end = '{":start": {"a:1:0": 10}, "a": {"1:0": 40}}'
    source = {"startOffset": end, "endOffset": end, "latestOffset": '{"a": {"1:0": 100}}'}
    assert lag({"sources": [source]}) == Lag(60, {"a": {"1:0": 60}})


def test_lag_ignores_other_sources_and_missing_offsets() -> None:
    files = {"endOffset": '{"logOffset": 3}', "latestOffset": "null"}
    rate = {"endOffset": 3, "latestOffset": 4}
    fresh = {"endOffset": None, "latestOffset": None}
    assert lag({"sources": [files, rate, fresh]}) == Lag(0, {})
