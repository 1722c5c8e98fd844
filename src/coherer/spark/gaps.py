"""The gaps that the readers of a stream found, passed from tasks to the driver.

Spark passes no numbers of a Python reader to the driver: no metric, no accumulator. And the number
of rows that it reports for a micro-batch says nothing about gaps: it is 0 if `foreachBatch` does
not read, smaller with `limit`, and doubled if a micro-batch is read twice. So each task writes a
report: the ranges that it has read to the end, and the number of offsets without a row in each.
`source_metrics` adds them up on the driver.

Invariants:

1. The files of a micro-batch are `<folder>/<run id>/<batch id>-…`, one for each attempt of a task.
   A run plans a micro-batch once, so all files of one micro-batch are about the same plan.
2. A range counts once, however often it was read: with the largest number of missing offsets that
   one of its readers found.
3. The number is known only if ranges cover the micro-batch without a hole (`missing_of`). It is
   unknown if a range was not read, or on a machine whose folder the driver does not see.
4. Reporting never fails a task.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs
from pyspark import TaskContext

from coherer._common.logs import Log
from coherer._common.paths import is_file_name
from coherer.spark.offsets import partition_key
from coherer.spark.options import ReadOptions
from coherer.spark.planning import Range
from coherer.spark.reading import ReadSettings

_log = Log(logging.getLogger(__name__))

_folders: Final[dict[tuple[str, str], Path]] = {}
"""The folders of runs that this process has used, by the given folder and the run."""

FOLDER_VARIABLE: Final = "COHERER_SPARK_REPORTS"
"""Names a folder that the driver and all workers see, if they do not share a machine."""

BATCHES_KEPT: Final = 200
"""Micro-batches of a run whose reports are kept at least: Spark keeps the progress of 100. Older
reports are deleted once in as many micro-batches, so that a task writes one small file, no more."""

RUN_KEPT_S: Final = 7 * 86_400
"""The reports of runs that have not changed for this long are deleted."""


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A range that was read to its end, or lost before it could be read.

    Args:
        topic: the topic.
        partition: `broker:partition`.
        start: the first offset.
        end: the offset after the last.
        missing: the number of offsets without a row; None if offsets do not count messages.
    """

    topic: str
    partition: str
    start: int
    end: int
    missing: int | None


class Report(msgspec.Struct, frozen=True):
    """The findings of one attempt of a task.

    Args:
        source: identifies the options of the source: a query may have two sources for one topic.
        seen: the ranges.
    """

    source: int
    seen: list[Seen]


class Reporter:
    """Collects the findings of a task, and writes a report at its end.

    Args:
        source: see `Report`.
        lost: ranges that were lost before tasks were planned.
    """

    def __init__(self, source: int, lost: Iterable[Range] = ()) -> None:
        self._source = source
        self._missing = 0
        self._seen = [_seen(one, one.rows) for one in lost]

    def watching(self, settings: ReadSettings) -> ReadSettings:
        """The settings of a task, with callbacks that also count."""

        def on_loss(one: Range) -> None:
            settings.on_loss(one)
            self._missing += one.rows

        def on_bad(one: Range, reason: str) -> None:
            settings.on_bad(one, reason)
            self._missing += one.rows

        def on_gap(one: Range) -> None:
            settings.on_gap(one)
            self._missing += one.rows

        return structs.replace(
            settings, on_loss=on_loss, on_bad=on_bad, on_gap=on_gap, on_end=self._finished
        )

    def _finished(self, one: Range, exact: bool) -> None:
        self._seen.append(_seen(one, self._missing if exact else None))
        self._missing = 0

    def write(self) -> None:
        """Write the report, if the task belongs to a micro-batch."""
        context = TaskContext.get()
        run = context and context.getLocalProperty("spark.jobGroup.id")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if context is None or not (run and batch and self._seen):
            return
        given = os.environ.get(FOLDER_VARIABLE, tempfile.gettempdir())
        try:
            folder = _folders.get((given, run)) or _made(run)
            data = msgspec.json.encode(Report(self._source, self._seen))
            (folder / f"{batch}-{context.taskAttemptId()}-{os.getpid()}").write_bytes(data)
            _folders[given, run] = folder
            if int(batch) % BATCHES_KEPT == 0 and context.partitionId() == 0:
                _delete_old_batches(folder, int(batch))
        except (OSError, ValueError) as error:
            _folders.pop((given, run), None)
            _log.debug("The gaps of a task are not reported: %s", error)


def _seen(one: Range, missing: int | None) -> Seen:
    key = partition_key(one.broker, one.partition)
    return Seen(one.topic, key, one.start, one.end, missing)


def source_of(options: ReadOptions) -> int:
    """A checksum of the options that decide which ranges are read, and which rows are missing."""
    deciding = (
        options.access.url,
        options.topics,
        options.topics_pattern,
        options.mode,
        options.fail_on_data_loss,
        options.min_partitions,
        options.max_partitions,
        options.max_records_per_partition,
    )
    return zlib.crc32(repr(deciding).encode())


def reports_of(run: str, batch: int) -> list[Report]:
    """The reports about a micro-batch that this machine has; `run` is Spark's id of the run."""
    try:
        paths = sorted(_run_path(run).glob(f"{batch}-*"))
        return [msgspec.json.decode(path.read_bytes(), type=Report) for path in paths]
    except (OSError, ValueError):
        return []


def missing_of(
    spans: Mapping[tuple[str, str], tuple[int, int]], reports: Iterable[Report]
) -> int | None:
    """The number of offsets without a row in a micro-batch; None if it is unknown.

    Args:
        spans: start and end of each topic and partition.
        reports: about the micro-batch.

    >>> def report(*seen: tuple[int, int, int], source: int = 0) -> Report:
    ...     return Report(source, [Seen("t", "1:0", *one) for one in seen])
    >>> span = {("t", "1:0"): (0, 10)}
    >>> missing_of(span, [report((0, 5, 1)), report((5, 10, 0)), report((0, 5, 2))])
    2
    >>> missing_of(span, [report((0, 5, 1))]), missing_of({("t", "1:0"): (3, 3)}, [])
    (None, 0)
    >>> missing_of(span, [report((0, 10, 1)), report((0, 10, 2), source=9)]) is None
    True
    """
    sources: dict[int, dict[tuple[str, str], dict[tuple[int, int], int | None]]]
    sources = defaultdict(lambda: defaultdict(dict))
    for report in reports:
        for one in report.seen:
            known = sources[report.source][one.topic, one.partition]
            place = one.start, one.end
            known[place] = _most(known.get(place, 0), one.missing)
    spans = {place: (min(span), max(span)) for place, span in spans.items() if span[0] != span[1]}
    if not spans:
        return 0
    counts = [_count(spans, found) for found in sources.values()]
    covered = {count for count in counts if count is not None}
    return covered.pop() if len(covered) == 1 else None


def _most(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else max(first, second)


def _count(
    spans: Mapping[tuple[str, str], tuple[int, int]],
    found: Mapping[tuple[str, str], Mapping[tuple[int, int], int | None]],
) -> int | None:
    """The missing offsets of a source; None if it has not read all of them."""
    total = 0
    for place, (at, end) in spans.items():
        for (start, stop), missing in sorted(found.get(place, {}).items()):
            if start != at or missing is None:
                return None
            total += missing
            at = stop
        if at != end:
            return None
    return total


def _made(run: str) -> Path:
    """The folder of a run. The first task that needs it makes it, and deletes those of old runs."""
    path = _run_path(run)
    if not path.is_dir():
        _delete_old_runs(path.parent)
        path.mkdir(parents=True, exist_ok=True)
    return path


def _run_path(run: str) -> Path:
    if not is_file_name(run):  # a job group that a user has set
        raise ValueError(run)
    return _base() / run


def _delete_old_batches(folder: Path, batch: int) -> None:
    for path in folder.iterdir():
        number = path.name.partition("-")[0]
        if number.isdecimal() and int(number) <= batch - BATCHES_KEPT:
            path.unlink(missing_ok=True)


def _base() -> Path:
    """The folder of all reports.

    Raises:
        OSError: it cannot be made, or belongs to somebody else.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given)
    owner = os.getuid() if hasattr(os, "getuid") else None
    path = Path(tempfile.gettempdir()) / f"coherer-spark-{owner or 0}"
    with suppress(FileExistsError):
        path.mkdir(0o700)
    found = path.lstat()
    foreign = owner is not None and (found.st_uid != owner or found.st_mode & 0o022)
    if foreign or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} belongs to somebody else")
    return path


def _delete_old_runs(base: Path) -> None:
    oldest = time.time() - RUN_KEPT_S
    for run in base.iterdir() if base.is_dir() else ():
        with suppress(OSError):
            if run.stat().st_mtime < oldest:
                shutil.rmtree(run, ignore_errors=True)
