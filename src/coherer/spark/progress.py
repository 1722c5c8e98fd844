"""Metrics of the sources of streams: lag, rows and bytes a second, bad and missing records.

Spark shows no metrics of a Python source (docs/protocol/spark.md, section 1), but its progress has
the offsets of each micro-batch and the number of its rows. `source_metrics` computes the lag from
them, and adds the gaps that readers found (`coherer.spark.gaps`). `StreamMetrics` does so for every
micro-batch of a session, and passes it to OpenTelemetry.

Bytes and bad records can only be counted in the rows. `measured(rows)` adds them to the progress.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

import msgspec
from pyspark.sql import Row
from pyspark.sql import functions as sql
from pyspark.sql.streaming.listener import StreamingQueryListener

from coherer._common.version import __version__
from coherer.errors import UsageError
from coherer.spark.gaps import Report, missing_of, reports_of
from coherer.spark.offsets import Offsets, flatten, reported

# opentelemetry is an extra; workers need no SQL of Spark.
if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

MEASURED: Final = "coherer"
"""The name of the observation that `measured` adds."""

INDEX_STEP: Final = 28
"""On Java's TubeMQ brokers all ends are multiples of this (see `docs/spark.md`)."""


class SourceMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of one source of a stream, after a micro-batch.

    With Java's TubeMQ broker `behind_…` are offsets, not rows.

    Args:
        topics: the topics that it reads.
        rows: the rows of the micro-batch that the query read, as Spark counts them: twice if it
            reads the micro-batch twice.
        rows_per_second: their rate while the micro-batch was processed.
        behind_min: the rows that its most advanced partition has not read yet.
        behind_max: the same for the last partition.
        behind_mean: the mean of all partitions.
        behind: the same by topic and partition.
        missing: offsets of the micro-batch without a row: gone, or bad and dropped. None if it is
            unknown: the query did not read the whole micro-batch, its tasks ran on machines whose
            reports this one does not see, or offsets do not count rows.
        bytes: the size of the values; None without `measured`, and with several sources.
        bytes_per_second: None as `bytes`.
        bad: the number of rows with an `error`; None as `bytes`.
    """

    topics: tuple[str, ...]
    rows: int
    rows_per_second: float
    behind_min: int
    behind_max: int
    behind_mean: float
    behind: Offsets
    missing: int | None = None
    bytes: int | None = None
    bytes_per_second: float | None = None
    bad: int | None = None


def measured(rows: DataFrame) -> DataFrame:
    """Add bytes and bad records to the progress of a stream, for `source_metrics`.

    Args:
        rows: of a source, with the column `value`; bad records are in the column `error`.

    Raises:
        UsageError: there is no column `value`.
    """
    if "value" not in rows.columns:
        raise UsageError("Column value is missing.", hint="Measure rows before you select columns.")
    bad = sql.count("error") if "error" in rows.columns else sql.lit(0)
    size = sql.coalesce(sql.sum(sql.octet_length("value")), sql.lit(0))
    return rows.observe(
        MEASURED, sql.count(sql.lit(1)).alias("rows"), size.alias("bytes"), bad.alias("bad")
    )


def source_metrics(progress: Mapping[str, object]) -> list[SourceMetrics]:
    """The metrics of the TubeMQ and RocketMQ sources of a stream, from its progress.

    Args:
        progress: as for `lag`.

    >>> source = {"startOffset": '{"t": {"1:0": 10, "1:1": 5}}', "numInputRows": 29,
    ...           "endOffset": '{"t": {"1:0": 40, "1:1": 5}}', "processedRowsPerSecond": 290.0,
    ...           "latestOffset": '{"t": {"1:0": 100, "1:1": 5}}'}
    >>> (found,) = source_metrics({"sources": [source]})
    >>> found.rows, found.missing, found.behind_max, found.behind_mean
    (29, None, 60, 30.0)
    """
    run, batch = progress.get("runId"), progress.get("batchId")
    reports = reports_of(str(run), batch) if isinstance(batch, int) and run else []
    sources = cast("list[Mapping[str, object]]", progress["sources"])
    ours = [one for one in sources if reported(one.get("endOffset"))[0]]
    seen: Mapping[str, int] = {}
    if len(sources) == len(ours) == 1:
        seen = _observed(progress)
    return [_metrics(one, seen, reports) for one in ours]


def _metrics(
    source: Mapping[str, object], seen: Mapping[str, int], reports: Sequence[Report]
) -> SourceMetrics:
    end, begun = reported(source.get("endOffset"))
    start = begun if begun is not None else reported(source.get("startOffset"))[0]
    if source.get("startOffset") == source.get("endOffset"):
        start = end  # nothing was planned; the end may still hold the start of batch 0
    newest = reported(source.get("latestOffset"))[0] or end
    rows = cast("int", source.get("numInputRows", 0))
    rate = _number(source.get("processedRowsPerSecond"))
    behind: Offsets = {}
    for topic, key, offset in flatten(newest):
        at = end.get(topic, {}).get(key, 0)
        behind.setdefault(topic, {})[key] = max(0, offset - at)
    waiting = [count for _, _, count in flatten(behind)] or [0]
    size = seen.get("bytes")
    return SourceMetrics(
        topics=tuple(end),
        rows=rows,
        rows_per_second=rate,
        behind_min=min(waiting),
        behind_max=max(waiting),
        behind_mean=sum(waiting) / len(waiting),
        behind=behind,
        missing=_missing(start, end, newest, reports),
        bytes=size,
        bytes_per_second=None if size is None else size / max(seen["rows"], 1) * rate,
        bad=seen.get("bad"),
    )


def _missing(
    start: Offsets, end: Offsets, newest: Offsets, reports: Sequence[Report]
) -> int | None:
    spans: dict[tuple[str, str], tuple[int, int]] = {}
    for topic, key, offset in flatten(end):
        if key not in start.get(topic, {}):
            return None  # a new partition, which was read from its beginning
        spans[topic, key] = start[topic][key], offset
    found = missing_of(spans, reports)
    # Java's positions in an index do not count messages, even if no reader has reported that.
    is_index = all(offset % INDEX_STEP == 0 for _, _, offset in flatten(newest))
    return None if found and is_index else found


def _observed(progress: Mapping[str, object]) -> Mapping[str, int]:
    observed = cast("Mapping[str, object] | None", progress.get("observedMetrics"))
    found = (observed or {}).get(MEASURED)
    if found is None:
        return {}
    if isinstance(found, Row):
        found = found.asDict()
    return cast("Mapping[str, int]", found)


def _number(value: object) -> float:
    """A rate from Spark; 0 if it is NaN or infinite, as without input."""
    rate = value if isinstance(value, int | float) else 0.0
    return float(rate) if 0 <= rate < float("inf") else 0.0


class StreamMetrics(StreamingQueryListener):
    """Follows all streams of a session: `spark.streams.addListener(StreamMetrics())`.

    Args:
        telemetry: passes metrics to OpenTelemetry: gauges `coherer.spark.behind` (by partition) and
            `coherer.spark.rate`, counters `coherer.spark.rows`, `coherer.spark.bytes`,
            `coherer.spark.missing` and `coherer.spark.bad`.
        provider: makes the meter; the global one when None.

    Raises:
        UsageError: OpenTelemetry is not installed.
    """

    def __init__(self, *, telemetry: bool = False, provider: MeterProvider | None = None) -> None:
        super().__init__()
        self._latest: dict[str, list[SourceMetrics]] = {}
        self._changed = threading.Condition()
        self._meters = _Meters(provider) if telemetry or provider is not None else None

    def latest(self, query: object) -> list[SourceMetrics]:
        """The metrics of the last micro-batch of a query; empty before the first.

        Args:
            query: its name or id.
        """
        with self._changed:
            return self._latest.get(str(query), [])

    def wait(self, query: object, timeout_s: float = 10) -> list[SourceMetrics]:
        """`latest`, after the first micro-batch: Spark reports it a moment later.

        Args:
            query: its name or id.
            timeout_s: the longest wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: str(query) in self._latest, timeout_s)
            return self._latest.get(str(query), [])

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Spark calls it; nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Spark calls it after each micro-batch."""
        progress = cast("Mapping[str, object]", event.progress)
        found = source_metrics(progress)
        name = event.progress.name or str(event.progress.id)
        if self._meters is not None:
            self._meters.add(name, found)
        with self._changed:
            self._latest[str(event.progress.id)] = self._latest[name] = found
            self._changed.notify_all()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Spark calls it; nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Spark calls it; the last metrics stay."""


class _Meters:
    """The instruments of OpenTelemetry."""

    def __init__(self, provider: MeterProvider | None) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise UsageError(
                "OpenTelemetry is not installed.", hint='pip install "coherer[otel]"'
            ) from error
        meter = metrics.get_meter("coherer.spark", __version__, provider)
        self._behind = meter.create_gauge("coherer.spark.behind", "{message}")
        self._rate = meter.create_gauge("coherer.spark.rate", "{message}/s")
        self._counters = {
            "rows": meter.create_counter("coherer.spark.rows", "{message}"),
            "bytes": meter.create_counter("coherer.spark.bytes", "By"),
            "missing": meter.create_counter("coherer.spark.missing", "{message}"),
            "bad": meter.create_counter("coherer.spark.bad", "{message}"),
        }

    def add(self, query: str, found: list[SourceMetrics]) -> None:
        """Record the metrics of a micro-batch."""
        for one in found:
            labels = {"query": query, "topics": ",".join(one.topics)}
            self._rate.set(one.rows_per_second, labels)
            for name, counter in self._counters.items():
                if count := getattr(one, name):
                    counter.add(count, labels)
            for topic, key, behind in flatten(one.behind):
                self._behind.set(behind, {"query": query, "topic": topic, "partition": key})
