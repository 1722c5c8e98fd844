"""Metrics of streams, from progress as Spark reports it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from coherer.spark import progress
from coherer.spark.gaps import Report, Seen
from coherer.spark.progress import SourceMetrics, StreamMetrics, source_metrics

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent


def source(start: object, end: object, newest: object, rows: int) -> dict[str, object]:
    return {
        "startOffset": json.dumps(start),
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps(newest),
        "numInputRows": rows,
        "processedRowsPerSecond": 10.0,
    }


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """What readers have reported about batch 3 of the run."""
    found: list[Seen] = []

    def reports(run: str, batch: int) -> list[Report]:
        return [Report(0, found)] if (run, batch) == ("run", 3) else []

    monkeypatch.setattr(progress, "reports_of", reports)
    return found


def metrics(*sources: dict[str, object]) -> SourceMetrics:
    (found,) = source_metrics({"runId": "run", "batchId": 3, "sources": list(sources)})
    return found


def test_the_first_batch_holds_its_start(seen: list[Seen]) -> None:
    seen.append(Seen("t", "1:0", 4, 9, 2))
    end = {":start": {"t:1:0": 4}, "t": {"1:0": 9}}
    found = metrics(source(None, end, {"t": {"1:0": 9}}, 3))
    assert (found.topics, found.missing, found.behind_max) == (("t",), 2, 0)
    assert metrics(source(end, end, end["t"], 0)).missing == 0, "a batch without data"


def test_a_new_partition_hides_what_is_missing(seen: list[Seen]) -> None:
    seen += [Seen("t", "1:0", 4, 9, 0), Seen("t", "1:1", 0, 3, 0)]
    end = {"t": {"1:0": 9, "1:1": 3}}
    assert metrics(source({"t": {"1:0": 4}}, end, end, 3)).missing is None


@pytest.mark.parametrize("rows", [0, 1, 5, 10])
def test_the_number_of_rows_does_not_matter(seen: list[Seen], rows: int) -> None:
    """`foreachBatch` may read nothing or twice, and `limit` stops early."""
    seen.append(Seen("t", "1:0", 4, 9, 1))
    assert metrics(source({"t": {"1:0": 4}}, {"t": {"1:0": 9}}, None, rows)).missing == 1


def test_index_offsets_do_not_count_rows(seen: list[Seen]) -> None:
    seen += [Seen("t", "1:0", 0, 2800, 2800), Seen("t", "1:1", 0, 2800, 0)]
    start, end = {"t": {"1:0": 0, "1:1": 0}}, {"t": {"1:0": 2800, "1:1": 2800}}
    newest = {"t": {"1:0": 5600, "1:1": 2800}}
    found = metrics(source(start, end, newest, 100))
    assert (found.missing, found.behind_max) == (None, 2800)


def test_other_sources_are_left_out_and_rates_are_numbers() -> None:
    kafka = source({"k": {"0": 1}}, "x", "x", 5)
    ours = {**source({"t": {"1:0": 1}}, {"t": {"1:0": 5}}, None, 4)}
    ours["processedRowsPerSecond"] = float("nan")
    (found,) = source_metrics({"sources": [kafka, ours]})
    assert (found.rows, found.rows_per_second, found.behind_mean) == (4, 0.0, 0.0)
    assert found.bytes is None


def test_opentelemetry_gets_the_metrics(seen: list[Seen]) -> None:
    seen.append(Seen("t", "1:0", 0, 30, 1))
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    from opentelemetry.sdk.metrics import MeterProvider

    reader = export.InMemoryMetricReader()
    listener = StreamMetrics(provider=MeterProvider([reader]))
    start, end, newest = ({"t": {"1:0": at}} for at in (0, 30, 50))

    class Progress(dict[str, object]):
        name = "landing"
        id = "7"

    told = Progress(
        runId="run",
        batchId=3,
        sources=[source(start, end, newest, 29)],
        observedMetrics={"coherer": {"rows": 29, "bytes": 2900, "bad": 2}},
    )
    event = SimpleNamespace(progress=told)
    for _ in range(2):
        listener.onQueryProgress(cast("QueryProgressEvent", event))
    (found,) = listener.latest("landing")
    assert (found.bytes, found.bytes_per_second, found.bad) == (2900, 1000.0, 2)
    assert listener.wait("7") == [found]
    points = {
        metric.name: (metric.data.data_points[0].value, dict(metric.data.data_points[0].attributes))
        for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    labels = {"query": "landing", "topics": "t"}
    assert points == {
        "coherer.spark.behind": (20, {"query": "landing", "topic": "t", "partition": "1:0"}),
        "coherer.spark.rate": (10.0, labels),
        "coherer.spark.rows": (58, labels),
        "coherer.spark.bytes": (5800, labels),
        "coherer.spark.missing": (2, labels),
        "coherer.spark.bad": (4, labels),
    }
