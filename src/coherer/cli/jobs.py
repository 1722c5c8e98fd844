"""What the jobs on Spark share: the source, the Spark session, the progress and the dry run.

A job (such as `coherer export`) describes what it reads as a `Source`, shows it with
`Source.preview()` for a dry run, and runs a Spark query in `session()`. Spark is this process
(`local[*]`), a Spark Connect server (`--spark-remote`), or the cluster to which `spark-submit`
submitted the command.

Exit codes: 0 done; 1 the source, Spark or a disk failed; 2 the command line is wrong; 130
interrupted.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from coherer._common.masking import masked
from coherer._common.urls import is_rocketmq
from coherer._record.system_topics import DLQ_PREFIX
from coherer.cli.java import interrupts_end_java, java_errors, silence_py4j
from coherer.cli.options import parse_number
from coherer.cli.output import print_json, print_table
from coherer.errors import CohererError, UnavailableError, UsageError

# Spark is an extra; help and errors of options work without it.
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

    from coherer.spark.planning import Range

POLL_S: Final = 0.2
"""The interval at which the progress is updated."""

_NAME: Final = "coherer"
_COHERERS_ERROR: Final = re.compile(r"^coherer\.[\w.]*?(\w+Error): (.+)$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
"""An exception in Java's stack trace; the last one is the reason."""


Topic = Annotated[
    str | None,
    typer.Argument(help="The topic, unless --dead-letters is given.", show_default=False),
]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        help="Read the files in this directory instead of asking a broker: a node's --directory or "
        "Java's storePathRootDir, running or stopped. May be repeated and contain wildcards.",
        show_default=False,
    ),
]
BrokerName = Annotated[
    str | None,
    typer.Option("--broker-name", help="With --store: the broker's name, if the files lack it."),
]
DeadLetters = Annotated[
    str | None,
    typer.Option(
        "--dead-letters", metavar="GROUP", help="Read the dead letters of a RocketMQ group."
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Start at this offset, or at the first message stored at this time or later (ISO 8601 "
        "with a time zone). Default: the beginning.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", help="End before this offset or time, as in --from. Default: the current end."
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated."),
]
SparkRemote = Annotated[
    str | None,
    typer.Option(
        "--spark-remote",
        envvar="SPARK_REMOTE",
        help="A Spark Connect server, sc://host:port. Default: Spark in this process, or the "
        "cluster of spark-submit.",
    ),
]
SkipLost = Annotated[
    bool,
    typer.Option(
        "--skip-lost",
        help="Go on without messages that are damaged, or were deleted before they were read, and "
        "say how many offsets were skipped. Default: fail.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be read, without Spark, and exit.")
]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a job reads.

    Args:
        topic: the topic.
        url: the cluster; not used with `stores`.
        stores: directories with files.
        broker_name: the broker's name, if the files do not contain it.
        user: the account.
        password: its password.
        begin: an offset or a store time; None for the beginning.
        end: the offset or time before which it ends; None for the current end.
        partitions: the partitions to read; None for all.
        columns: the columns to read; None for all of Spark's source and the properties.
        lenient: skip damaged and deleted messages instead of failing.
    """

    topic: str
    url: str = ""
    stores: tuple[str, ...] = ()
    broker_name: str | None = None
    user: str | None = None
    password: str | None = None
    begin: int | datetime | None = None
    end: int | datetime | None = None
    partitions: frozenset[int] | None = None
    columns: tuple[str, ...] | None = None
    lenient: bool = False

    def __repr__(self) -> str:
        return masked(self, "password")

    @property
    def format(self) -> str:
        """The name of Spark's format."""
        return "rocketmq" if self.stores or is_rocketmq(self.url) else "tubemq"

    def options(self) -> dict[str, str]:
        """The options for Spark's source."""
        times = {"startingTimestamp": self.begin, "endingTimestamp": self.end}
        given = {
            "topic": self.topic,
            "path": ",".join(self.stores) or None,
            "brokerName": self.broker_name,
            "url": None if self.stores else self.url,
            "user": self.user,
            "password": self.password,
            "columns": ",".join(self._read_columns()),
            "pushdown": "true" if self._is_filtered else None,
            "mode": "DROP" if self.lenient else None,
            "failOnDataLoss": "false" if self.lenient else None,
            **{name: at.isoformat() for name, at in times.items() if isinstance(at, datetime)},
        }
        return {name: text for name, text in given.items() if text is not None}

    @property
    def _is_filtered(self) -> bool:
        return self.partitions is not None or any(
            isinstance(at, int) for at in (self.begin, self.end)
        )

    def _read_columns(self) -> tuple[str, ...]:
        """The columns, and those that the limits need."""
        needed = ["partition"] if self.partitions is not None else []
        needed += ["offset"] if isinstance(self.begin, int) or isinstance(self.end, int) else []
        needed += ["broker", "partition", "offset"] if self.lenient else []
        return tuple(dict.fromkeys([*self.wanted_columns(), *needed]))

    def wanted_columns(self) -> tuple[str, ...]:
        """The columns of the result."""
        from coherer.spark.columns import DEFAULT

        return self.columns or (*DEFAULT, "properties")

    def table(
        self, spark: SparkSession, watch: Callable[[DataFrame], DataFrame] | None = None
    ) -> DataFrame:
        """The rows, as a table of Spark.

        Args:
            spark: the session.
            watch: called with the rows, which have their broker, partition and offset if the source
                is lenient; returns those to use.
        """
        rows = spark.read.format(self.format).options(**self.options()).load()
        if isinstance(self.begin, int):
            rows = rows.where(rows["offset"] >= self.begin)
        if isinstance(self.end, int):
            rows = rows.where(rows["offset"] < self.end)
        if self.partitions is not None:
            rows = rows.where(rows["partition"].isin(sorted(self.partitions)))
        if watch is not None:
            rows = watch(rows)
        return rows.select(*self.wanted_columns())

    def preview(self) -> list[Part]:
        """The parts of partitions that would be read now, from the brokers or the files.

        `lenient` does not apply: a topic that does not exist is an error, not an empty topic.

        Raises:
            CohererError: the source, or a part of it, cannot be read or does not exist.
        """
        from coherer.spark.connections import OPENERS
        from coherer.spark.files import file_options, open_stores, plan
        from coherer.spark.options import read_options
        from coherer.spark.planning import Wanted
        from coherer.spark.topics import Topics, monotonic_ms, ranges_of

        wanted = Wanted(
            partitions=self.partitions,
            offsets=(
                self.begin if isinstance(self.begin, int) else 0,
                self.end if isinstance(self.end, int) else None,
            ),
        )
        given = msgspec.structs.replace(self, lenient=False).options()
        if self.stores:
            found = file_options(given, self.format)
            if self.partitions is not None:
                with closing(open_stores(found)) as stores:
                    self._check_partitions(stores.bounds(self.topic))
            with _own_hints():
                shares = plan(found, wanted)
            return _parts(
                (one, one.rows * section.size_bytes / section.rows)
                for share in shares
                for section in share
                for one in section.ranges
            )
        options = read_options(given, self.format)
        with closing(OPENERS[self.format](options.access)) as queue:
            with _own_hints():
                Topics(options, monotonic_ms).check_whole(queue)
            if self.partitions is not None:
                self._check_partitions(queue.bounds(self.topic))
            ranges, _ = ranges_of(queue, options)
        return _parts((one, None) for one in wanted.limit(ranges) if one.rows)

    def _check_partitions(self, there: Iterable[tuple[str, int]]) -> None:
        known = {number for _, number in there}
        for number in sorted((self.partitions or frozenset()) - known):
            raise UsageError(
                f"There is no partition {number}.",
                hint=f"The topic has the partitions {', '.join(map(str, sorted(known)))}.",
                topic=self.topic,
            )

    def left_out(self, ranges: Sequence[Range]) -> list[Range]:
        """The parts of ranges that power cuts left empty: no message ever had these offsets.

        Raises:
            CohererError: the source cannot be read.
        """
        from coherer.spark.connections import OPENERS
        from coherer.spark.files import file_options, gaps_of
        from coherer.spark.options import read_options

        if self.stores:
            return gaps_of(file_options(self.options(), self.format), ranges)
        found: list[Range] = []
        with closing(
            OPENERS[self.format](read_options(self.options(), self.format).access)
        ) as queue:
            for one in ranges:
                with queue.reader(one, ("offset",)) as reader:
                    while reader.read() is not None:
                        pass
                    parts = [range(max(gap.start, one.start), gap.stop) for gap in reader.gaps]
                found += [replace(one, start=part.start, end=part.stop) for part in parts]
        return found

    def away(self, parts: Sequence[Part]) -> list[Part]:
        """The parts whose brokers are away, so that their messages cannot be read now.

        Raises:
            UnavailableError: all brokers of the topic are away.
        """
        from coherer.rocketmq import TopicNotExistError
        from coherer.spark.connections import OPENERS
        from coherer.spark.options import read_options
        from coherer.tubemq import TopicNotDeployedError

        if self.stores or not parts:
            return []
        brokers = {part.broker for part in parts}
        access = read_options(self.options(), self.format).access
        with closing(OPENERS[self.format](access)) as queue:
            try:
                there = queue.bounds(self.topic, partial=True, known=brokers)
            except (TopicNotDeployedError, TopicNotExistError):  # it was deleted
                return []
        return [part for part in parts if part.broker not in {broker for broker, _ in there}]

    def is_counted(self, parts: Sequence[Part]) -> bool:
        """Whether offsets count messages; on Java's TubeMQ broker they do not."""
        if self.format != "tubemq":
            return True
        from coherer.spark.connections import OPENERS
        from coherer.spark.options import read_options
        from coherer.spark.planning import Range

        with closing(
            OPENERS[self.format](read_options(self.options(), self.format).access)
        ) as queue:
            for part in {part.broker: part for part in parts}.values():
                one = Range(part.topic, part.broker, part.partition, part.begin, part.end)
                with queue.reader(one, ("offset",)) as reader:
                    if not reader.exact:
                        return False
        return True


class Part(msgspec.Struct, frozen=True):
    """The part of a partition that would be read: offsets `[begin, end)`.

    `rows` is the difference (with Java's TubeMQ broker: of positions in an index). `bytes` is the
    estimated size of the records; None with a broker.
    """

    topic: str
    broker: str
    partition: int
    begin: int
    end: int
    rows: int
    bytes: int | None = None


def _parts(ranges: Iterable[tuple[Range, float | None]]) -> list[Part]:
    """Add up ranges, and the sizes of their records, by partition."""
    found: dict[tuple[str, str, int], list[tuple[Range, float | None]]] = {}
    for one, size in ranges:
        found.setdefault((one.topic, one.broker, one.partition), []).append((one, size))
    return [
        Part(
            *key,
            min(one.start for one, _ in some),
            max(one.end for one, _ in some),
            sum(one.rows for one, _ in some),
            None if some[0][1] is None else round(sum(size or 0 for _, size in some)),
        )
        for key, some in sorted(found.items())
    ]


def print_preview(parts: Sequence[Part], *, as_json: bool) -> None:
    """Print the parts that would be read."""
    if as_json:
        print_json({"dry_run": True, "rows": sum(part.rows for part in parts), "parts": parts})
        return
    print_table(
        ("topic", "broker", "partition", "begin", "end", "rows", "bytes"),
        [msgspec.structs.astuple(part) for part in parts],
        empty="There is nothing to read.",
    )


def source_topic(topic: str | None, dead_letters: str | None, *, tubemq: bool) -> str:
    """Return the topic that the arguments of a command name.

    Raises:
        UsageError: both or none are given, or TubeMQ has no dead letters.

    >>> source_topic(None, "payers", tubemq=False)
    '%DLQ%payers'
    """
    if (topic is None) == (dead_letters is None):
        raise UsageError("Give either a topic or --dead-letters.")
    if dead_letters is None:
        return str(topic)
    if tubemq:
        raise UsageError(
            "TubeMQ has no dead letters.",
            hint="Read those of a RocketMQ group from rocketmq://host:port or --store.",
        )
    return DLQ_PREFIX + dead_letters


def edge(text: str | None, option: str) -> int | datetime | None:
    """Parse an offset or a time.

    Raises:
        UsageError: it is neither.

    >>> edge("17", "--from"), edge("2026-11-21T06:00:00Z", "--from").hour
    (17, 6)
    """
    offset = None if text is None else parse_number(text)
    if text is None or offset is not None:
        return offset
    try:
        at = None if text.isdecimal() else datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise UsageError(
            f"{option} {text} is neither an offset nor a time.",
            hint="Write a time with its zone: 2026-11-21T06:00:00Z.",
        )
    return at


def local_stores(paths: Sequence[str] | None) -> tuple[str, ...]:
    """Return the stores of a command line as absolute paths."""
    return tuple(
        path if path.startswith("file:") else str(Path(path).absolute()) for path in paths or ()
    )


def check_installed() -> None:
    """Check that Spark is installed.

    Raises:
        UsageError: Spark is not installed.
    """
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise UsageError("Jobs need Spark.", hint='Try: pip install "coherer[spark]".')


@contextmanager
def session(remote: str | None) -> Generator[SparkSession]:
    """Provide the Spark session of a job.

    An active session is used and left open; a new one is stopped at the end. Errors of Coherer's
    source are raised without Spark's wrapping.

    Args:
        remote: a Spark Connect server; None for Spark in this process or under `spark-submit`.

    Raises:
        CohererError: the source failed.
        UnavailableError: Spark failed.
    """
    from pyspark.sql import SparkSession

    from coherer.spark import configure
    from coherer.spark.session import REDACTION, SECRETS

    if remote is None and (active := SparkSession.getActiveSession()) is not None:
        with _own_errors():
            yield active
        return
    builder = SparkSession.builder.appName(_NAME)
    if remote is not None:
        builder = builder.remote(remote).config(REDACTION, SECRETS)
    elif "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets it, and the master
        builder = configure(builder.master("local[*]")).config("spark.ui.enabled", "false")
        # Spark logs an error with Java's stack traces, and then raises it.
        builder = builder.config("spark.log.level", "OFF")
    silence_py4j()
    builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    with _own_errors():
        with interrupts_end_java() if remote is None else nullcontext():
            spark = builder.getOrCreate()
        try:
            yield spark
        finally:
            with suppress(*java_errors()):  # it may be gone: a scheduler stops all processes
                spark.stop()


@contextmanager
def _own_errors() -> Generator[None]:
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise spark_error(str(error)) from error
    except java_errors() as error:
        raise _java_error(error) from error


@contextmanager
def _own_hints() -> Generator[None]:
    try:
        yield
    except CohererError as error:
        error.hint = in_words_of_commands(error.hint)
        raise


def _java_error(error: Exception) -> CohererError:
    # Spark is an extra.
    from py4j.protocol import Py4JJavaError

    if isinstance(error, Py4JJavaError):
        with suppress(*java_errors()):  # the text is asked from Java
            return spark_error(str(error))
    return UnavailableError(
        "Java, in which Spark runs, has ended.",
        hint="Was it killed, perhaps for want of memory? Run the command again.",
    )


def spark_error(text: str) -> CohererError:
    r"""Convert the error of a query: to Coherer's error in its text, or to its first line.

    >>> spark_error("Job aborted.\n caused by coherer.errors.UsageError: No.")
    UnavailableError('Spark failed: Job aborted.')
    >>> spark_error("Job aborted.\ncoherer.errors.UsageError: No.\n at x")
    UsageError('No.')
    >>> spark_error("An error occurred.\nCaused by: java.io.IOException: No space left on device")
    UnavailableError('Spark failed: IOException: No space left on device')
    """
    found = _COHERERS_ERROR.findall(text)
    if found:
        name, reason = found[-1]
        reason = in_words_of_commands(reason)
        return UsageError(reason) if name == UsageError.__name__ else CohererError(reason)
    causes = _CAUSE.findall(text)
    first_line, _, _ = text.strip().partition("\n")
    return UnavailableError(f"Spark failed: {causes[-1] if causes else first_line}")


def in_words_of_commands(text: str) -> str:
    """Replace options of Spark's source, which commands do not have, in the hint of an error."""
    # Spark is an extra.
    from coherer.spark.planning import CONTINUE
    from coherer.spark.reading import MODES
    from coherer.spark.topics import READ_REST

    for hint, ours in (
        (CONTINUE, "use --skip-lost to continue without them."),
        (MODES, "Use --skip-lost to continue without it."),
        (READ_REST, "."),
    ):
        text = text.replace(hint, ours)
    return text


@contextmanager
def progress(spark: SparkSession, title: str, *, shown: bool) -> Generator[None]:
    """Show the tasks of the jobs that run in the block, if stderr is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield
        return
    tasks = _task_counter(spark)

    # Cut a long path, not the numbers.
    columns = (
        TextColumn(
            "{task.description}",
            table_column=Column(ratio=2, no_wrap=True, overflow="ellipsis"),
        ),
        BarColumn(None, table_column=Column(ratio=1)),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    done = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bars:
        bar = bars.add_task(title, total=None)

        def watch() -> None:
            while not done.wait(POLL_S):
                total, completed = tasks()
                bars.update(bar, total=total or None, completed=completed)

        watcher = threading.Thread(target=watch, name="coherer-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _task_counter(spark: SparkSession) -> Callable[[], tuple[int, int]]:
    """Return a function that counts the tasks of the active stages: all, and the completed ones."""
    if not hasattr(spark, "_jsc"):
        return _remote_task_counter(spark)
    tracker = spark.sparkContext.statusTracker()

    def count() -> tuple[int, int]:
        total = completed = 0
        for number in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(number)
            if stage is not None:
                total += stage.numTasks
                completed += stage.numCompletedTasks
        return total, completed

    return count


def _remote_task_counter(spark: SparkSession) -> Callable[[], tuple[int, int]]:
    """The same through Spark Connect, whose server reports the stages of a query as it runs."""
    latest = (0, 0)

    # Spark gives the arguments by their names.
    def note(*, stages: Iterable[StageInfo] | None, **_: object) -> None:
        nonlocal latest
        known = list(stages or ())
        latest = (
            sum(stage.num_tasks for stage in known),
            sum(stage.num_completed_tasks for stage in known),
        )

    spark.registerProgressHandler(cast("ProgressHandler", note))
    return lambda: latest
