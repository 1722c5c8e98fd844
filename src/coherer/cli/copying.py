"""Copies the messages of a source with Spark, and counts them and those that it leaves out.

With `--skip-lost` it leaves out the offsets of its plan that have no row. The plan is the one that
`--dry-run` shows. Spark plans again a moment later, so messages that retention deletes in between
count, too. Messages that arrive in between are not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import typer

from coherer.cli.java import java_errors
from coherer.cli.jobs import Part, Source, progress, session
from coherer.cli.output import amount, print_json, warn
from coherer.errors import UnavailableError

# Spark is an extra; help and errors of options work without it.
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Watch: TypeAlias = "Callable[[DataFrame], DataFrame]"
"""Counts rows when they are read; see `Source.table`."""


_ADAPTIVE: Final = "spark.sql.adaptive.enabled"


class Skipped(msgspec.Struct, frozen=True):
    """The number of offsets of a partition that were skipped."""

    broker: str
    partition: int
    offsets: int


class SkippedOffsets:
    """Counts the offsets of some parts for which Spark reads no row.

    Args:
        source: what the job reads.
        parts: its plan.
    """

    def __init__(self, source: Source, parts: Sequence[Part]) -> None:
        # Spark is an extra.
        from pyspark.sql import Observation

        self._source = source
        self._parts = parts
        self._counted = Observation()

    def watch(self, rows: DataFrame) -> DataFrame:
        """The rows of the parts, which are counted when they are read."""
        from pyspark.sql import functions as sf

        # One number instead of a broker and a partition: each row is compared with each part.
        numbers = [
            (part.broker, part.partition, part.begin, part.end, number)
            for number, part in enumerate(self._parts)
        ]
        schema = "broker string, partition int, part_begin bigint, part_end bigint, part_number int"
        parts = rows.sparkSession.createDataFrame(numbers, schema)
        inside = (sf.col("offset") >= sf.col("part_begin")) & (
            sf.col("offset") < sf.col("part_end")
        )
        found = rows.join(sf.broadcast(parts), ["broker", "partition"]).where(inside)
        counts = [
            sf.count_if(sf.col("part_number") == number) for number in range(len(self._parts))
        ]
        named = [count.alias(str(number)) for number, count in enumerate(counts)]
        return found.observe(self._counted, sf.count(sf.lit(1)).alias("rows"), *named)

    def found(self) -> list[Skipped] | None:
        """The partitions with skipped offsets, after the job; None if offsets count no messages.

        Raises:
            UnavailableError: a broker went away before Spark planned, so its messages are not lost.
        """
        rows: Mapping[str, int] = self._counted.get
        skipped = [
            Skipped(part.broker, part.partition, part.end - part.begin - rows[str(number)])
            for number, part in enumerate(self._parts)
        ]
        missing = [one for one in skipped if one.offsets > 0]
        if missing and not self._source.is_counted(self._parts):
            return None
        unread = [part for number, part in enumerate(self._parts) if not rows[str(number)]]
        if away := self._source.away(unread):
            brokers = ", ".join(sorted({part.broker for part in away}))
            raise UnavailableError(
                f"Brokers went away before they were read: {brokers}. Their messages are not lost, "
                "but they were left out.",
                topic=self._source.topic,
                hint="Start them, and run the command again.",
            )
        return missing


def copy(
    source: Source,
    parts: Sequence[Part],
    to: str,
    remote: str | None,
    rows: Callable[[SparkSession, Watch | None], DataFrame],
    write: Callable[[DataFrame], None],
    *,
    as_json: bool,
) -> None:
    """Write rows, and print their number, and that of skipped offsets if the source is lenient.

    Args:
        source: what to read.
        parts: its plan.
        to: names the target in the output.
        remote: see `session`.
        rows: returns the rows, of `Source.table`.
        write: writes them.
        as_json: whether to print JSON.

    Raises:
        CohererError: the source, Spark or the target failed.
    """
    begun_s = time.monotonic()
    offsets = SkippedOffsets(source, parts) if source.lenient else None
    with session(remote) as spark:
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        counted = Observation()
        found = rows(spark, None if offsets is None else offsets.watch)
        observed = found.observe(counted, count(lit(1)).alias("rows"))
        counting = nullcontext() if offsets is None else _unchanged_plans(spark)
        with counting, progress(spark, f"{source.topic} to {to}", shown=not as_json):
            write(observed)
        written = int(counted.get["rows"])
        skipped = None if offsets is None else offsets.found()
    seconds = round(time.monotonic() - begun_s, 1)
    if as_json:
        numbers = {"topic": source.topic, "to": to, "rows": written, "seconds": seconds}
        print_json(numbers if offsets is None else {**numbers, "skipped": skipped})
        return
    typer.echo(f"{source.topic}: {amount(written, 'message')} to {to}, {seconds} s")
    if offsets is not None and skipped != []:
        warn(_skipped(source.topic, skipped))


@contextmanager
def _unchanged_plans(spark: SparkSession) -> Generator[None]:
    """Have Spark run plans as they are: it drops counts of what turns out to be empty in a join."""
    before = str(spark.conf.get(_ADAPTIVE))
    spark.conf.set(_ADAPTIVE, "false")
    try:
        yield
    finally:
        with suppress(*java_errors()):  # it may be gone
            spark.conf.set(_ADAPTIVE, before)


def _skipped(topic: str, skipped: Sequence[Skipped] | None) -> str:
    """What was skipped.

    >>> _skipped("t", [Skipped("a", 0, 3), Skipped("a", 1, 1_200)])
    't: 1,203 offsets were skipped: a:0 3, a:1 1,200. Their messages are damaged or deleted, or a \
power cut left them empty.'
    """
    if skipped is None:
        return (
            f"{topic}: Nobody knows how many messages were skipped; the broker does not count them."
        )
    each = ", ".join(f"{one.broker}:{one.partition} {one.offsets:,}" for one in skipped)
    count = sum(one.offsets for one in skipped)
    verb = "was" if count == 1 else "were"
    return (
        f"{topic}: {amount(count, 'offset')} {verb} skipped: {each}. Their messages are damaged or "
        "deleted, or a power cut left them empty."
    )
