"""Reads a topic as Arrow batches, without Spark: for pandas, Polars, DuckDB and others.

Install `coherer[arrow]`. The columns are those of the Spark formats, and offsets, times and bad
records have the same meaning as there. The messages come from brokers, or from the files of a
store, without a broker.

>>> from coherer import Message
>>> from coherer.arrow import scan
>>> from coherer.blocking import connect
>>> from coherer.testing import embedded_node
>>> with embedded_node() as node:
...     with connect(node.url) as client, client.producer() as producer:
...         _ = producer.send(Message("greetings", b"hello"))
...     scan(node.url, "greetings", columns=["offset", "value"]).read_all().to_pylist()
[{'offset': 0, 'value': b'hello'}]
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from coherer.spark.columns import arrow_schema
from coherer.spark.connections import OPENERS
from coherer.spark.file_rows import Section, rows_of
from coherer.spark.files import FileOptions, file_options, sections_of
from coherer.spark.options import ReadOptions, check_batch, read_options
from coherer.spark.planning import DataLossError, Range, Wanted
from coherer.spark.reading import BadRecordError, BatchLimits, log_loss, rows, settings_of
from coherer.spark.topics import Topics, monotonic_ms, ranges_of

__all__ = ["BadRecordError", "DataLossError", "Edge", "Range", "scan"]

Edge: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[str, int]
"""Where a scan starts or ends: a keyword, a store time, or offsets by `broker:partition`."""

_EDGES: Final = {
    "start": ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    "end": ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
}
_DEFAULTS: Final = {"start": "earliest", "end": "latest"}

FILE_BATCH: Final = BatchLimits(4_000_000, 40_000)
"""With files a batch costs 0.5 ms, however small: as much as reading 500 rows of 1 KiB. Larger
batches no longer fit into the processor's cache."""


def scan(
    url: str,
    topic: str,
    *,
    columns: Collection[str] | None = None,
    start: Edge = "earliest",
    end: Edge = "latest",
    partitions: Collection[int | str] | None = None,
    user: str | None = None,
    password: str | None = None,
    options: Mapping[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Read the current messages of a topic as Arrow batches of one to four megabytes.

    The call fixes the offsets: messages that arrive later are not read. Reading needs no group, and
    happens as batches are taken. Its connections open with the first batch, and close after the
    last one, after an error, or when the reader is deleted.

    A store is the directory of a node or of RocketMQ's broker; it may be in use. Its rows come in
    the order of its log, so those of its partitions are mixed, each partition's in order. A running
    node writes the entries that say where messages lie some seconds after the messages.

    Args:
        url: `tubemq://host:port`, the masters; `rocketmq://host:port`, the name servers; or
            `file:/data/store`, a store, or several: `file:/data/a,/data/b` or `file:/data/*`.
        topic: the topic to read.
        columns: the columns, in this order; others are not decoded. None for all except
            `properties` and the times of sending and storing. See the columns of the Spark formats.
        start: `earliest`; a time (with a zone), to start at the first message stored then or later;
            or offsets by `broker:partition`, where other partitions start at their first message.
        end: `latest`, a time or offsets like `start`; the scan stops before it.
        partitions: numbers (of every broker), or `broker:partition`; None for all.
        user: the account; RocketMQ's access key.
        password: its password; RocketMQ's secret key.
        options: other options of the Spark source, by name: `passwordFile`, `tlsTrust`, `mode`,
            `failOnDataLoss`, `startingOffsetsByTimestamp` in place of `start`; with files also
            `tag` and `brokerName`. Those of streams are refused.

    Raises:
        UsageError: an argument is invalid, or names something that does not exist.
        RefusedError: the topic does not exist.
        UnavailableError: the cluster, or a broker of the topic, cannot be reached.
        StoreError: the files of a store cannot be read.
        DataLossError: messages between start and end were deleted. A batch may raise it, too.
        BadRecordError: a record is damaged; reading its batch raises this.
    """
    given = {
        **_topic(topic, partitions),
        "columns": None if columns is None else ",".join(columns),
        "user": user,
        "password": password,
        **_edge("start", start, topic, options or {}),
        **_edge("end", end, topic, options or {}),
        **(options or {}),
    }
    reads = _of_files if url.startswith(("file:", "/")) else _of_brokers
    return reads(url, {name: text for name, text in given.items() if text is not None})


def _topic(topic: str, partitions: Collection[int | str] | None) -> dict[str, str]:
    if partitions is None:
        return {"topic": topic}
    return {"assign": json.dumps({topic: list(partitions)})}


def _of_files(path: str, given: Mapping[str, str]) -> pa.RecordBatchReader:
    options = file_options({"path": path, **given}, "rocketmq")
    batches = _file_batches(options, sections_of(options, Wanted()))
    return _reader(options.read.columns, batches)


def _of_brokers(url: str, given: Mapping[str, str]) -> pa.RecordBatchReader:
    protocol = url.partition("://")[0].removesuffix("s")
    options = read_options({"url": url, **given}, protocol if protocol in OPENERS else "tubemq")
    check_batch(options)
    return _reader(options.columns, _batches(options, _planned(options)))


def _edge(name: str, at: Edge, topic: str, options: Collection[str]) -> dict[str, str]:
    """The option of an edge; none if the other options have one in place of the default."""
    by_offset, by_time, _ = _EDGES[name]
    given = {option.lower() for option in options}
    if at == _DEFAULTS[name] and any(edge.lower() in given for edge in _EDGES[name]):
        return {}
    if isinstance(at, datetime):
        return {by_time: at.isoformat()}
    if isinstance(at, str):
        return {by_offset: at}
    return {by_offset: json.dumps({topic: dict(at)})}


def _planned(options: ReadOptions) -> list[Range]:
    """The ranges to read."""
    with closing(OPENERS[options.access.protocol](options.access)) as queue:
        if options.fail_on_data_loss:
            Topics(options, monotonic_ms).check_whole(queue)
        ranges, lost = ranges_of(queue, options)
    if lost and options.fail_on_data_loss:
        raise DataLossError.of(lost)
    for one in lost:
        log_loss(one)
    return ranges


def _batches(options: ReadOptions, ranges: list[Range]) -> Iterator[pa.RecordBatch]:
    with closing(OPENERS[options.access.protocol](options.access)) as queue:
        yield from rows(queue, ranges, settings_of(options))


def _file_batches(options: FileOptions, sections: list[Section]) -> Iterator[pa.RecordBatch]:
    for section in sections:
        yield from rows_of(section, options.read.columns, options.losses, options.tags, FILE_BATCH)


def _reader(columns: tuple[str, ...], batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    schema = arrow_schema(columns)
    return pa.RecordBatchReader.from_batches(schema, _at_least_one(batches, schema))


def _at_least_one(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    is_empty = True
    for batch in batches:
        is_empty = False
        yield batch
    if is_empty:
        # Polars takes the columns from the first batch, and fails without one.
        nothing = [pa.array([], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(nothing, schema=schema)
