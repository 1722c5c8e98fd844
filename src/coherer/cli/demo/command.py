"""`coherer demo`: sends real flights through a node into a Spark table, and checks the counts.

Steps:

1. A node starts in a process of its own, Spark in this one (`processes`).
2. A Spark stream starts to land the topic in a Parquet table, with a checkpoint (`dataset`).
3. The flights are sent as JSON messages, over TubeMQ, over RocketMQ, or half of them over each. All
   are read over one protocol, and land meanwhile.
4. Spark joins the table with airlines and weather, and answers three questions (`chart`).
5. The counts of all steps are compared: rows in the source, acknowledged by the broker, stored
   there, landed in the table, and distinct in it. If they differ the exit code is 1.
"""

from __future__ import annotations

import enum
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.table import Table
from rich.text import Text

from coherer import blocking
from coherer.cli.demo import dataset
from coherer.cli.demo.processes import DemoNode
from coherer.cli.output import INTERRUPTED
from coherer.cli.signals import signals_interrupt
from coherer.errors import UnavailableError, UsageError

# The demo first checks that its extra is installed: matplotlib, Spark, pyarrow.
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

    from coherer.blocking.rocketmq import Client as RocketClient
    from coherer.blocking.rocketmq import Producer as RocketProducer
    from coherer.blocking.tubemq import Client, Producer
    from coherer.cli.demo.dataset import Answer

app = typer.Typer(add_completion=False)

MARK: Final = "coherer-demo.json"
"""Marks a directory that a demo created and may empty."""

WORST: Final = 10
"""The number of rows in the table of airports by hour."""

MOST_CORES: Final = 8
"""The topic has eight partitions, which more cores could not share."""

POLL_S: Final = 0.1
STALLED_S: Final = 60
"""After this time without progress the audit reports what is missing."""


class Via(enum.Enum):
    """The protocols over which the flights are sent."""

    TUBEMQ = "tubemq"
    ROCKETMQ = "rocketmq"
    BOTH = "both"

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols to send over; the last one is also read over."""
        return ("tubemq", "rocketmq") if self is Via.BOTH else (self.value,)


class Audit(msgspec.Struct, frozen=True):
    """Five counts, which are equal if nothing was lost or duplicated."""

    source: int
    acknowledged: int
    stored: int
    landed: int
    distinct: int

    @property
    def clean(self) -> bool:
        """Whether all counts are equal."""
        return len(set(msgspec.structs.astuple(self))) == 1


@app.command()
def demo(
    rows: Annotated[
        int | None, typer.Option(min=1, help="Send fewer rows, spread over the year.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the node's files and the tables in this directory.")
    ] = None,
    chart: Annotated[Path, typer.Option(help="File for the chart.")] = Path("coherer-demo.png"),
    via: Annotated[
        Via, typer.Option(help="Send over this protocol, or half of the flights over each.")
    ] = Via.TUBEMQ,
    pipeline: Annotated[
        bool,
        typer.Option(
            "--pipeline",
            help="Run the declarative pipeline of examples/flights twice instead; no chart.",
        ),
    ] = False,
) -> None:
    """Send a year of flights through a node into a Spark table, and answer three questions."""
    console = Console()
    if pipeline:
        _pipeline(console, rows, keep, via)
        return
    dataset.check_installed()
    if not chart.parent.is_dir():
        raise UsageError(f"--chart is {chart}: there is no directory {chart.parent}.")
    try:
        with signals_interrupt(), workspace(keep) as directory:
            audit = _run(console, directory, rows, chart, via)
    except KeyboardInterrupt:
        console.print("\nStopped; nothing is left running.")
        raise typer.Exit(INTERRUPTED) from None
    if keep is not None:
        console.print(f"Kept in {keep}: the node's files in node/, the table in flights/.")
    if not audit.clean:
        raise typer.Exit(1)


def _pipeline(console: Console, rows: int | None, keep: Path | None, via: Via) -> None:
    from coherer.cli.demo.pipeline import check_installed, run_pipeline

    check_installed()
    try:
        with signals_interrupt(), workspace(keep) as directory:
            tally = run_pipeline(console, directory, rows, via.protocols)
    except KeyboardInterrupt:
        console.print("\nStopped; nothing is left running.")
        raise typer.Exit(INTERRUPTED) from None
    if keep is not None:
        console.print(f"Kept in {keep}: the node's files in node/, the pipeline in pipeline/.")
    if not tally.clean:
        raise typer.Exit(1)


@contextmanager
def workspace(keep: Path | None) -> Generator[Path]:
    """An empty directory; a temporary one, removed at the end, if `keep` is None.

    Raises:
        UsageError: it is a file, or holds files that no demo wrote.
    """
    if keep is None:
        directory = Path(tempfile.mkdtemp(prefix="coherer-demo-"))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return
    if keep.exists() and not keep.is_dir():
        raise UsageError(f"{keep} is not a directory.", hint="Name a new one.")
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()) and not (keep / MARK).exists():
        raise UsageError(f"{keep} is not empty.", hint="Name a new directory.")
    for item in keep.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        else:
            item.unlink()
    (keep / MARK).write_text("{}\n", encoding="utf-8")
    yield keep.resolve()


def _run(console: Console, directory: Path, rows: int | None, chart: Path, via: Via) -> Audit:
    from coherer.cli.demo.chart import draw
    from coherer.cli.demo.dataset import answers, counts, land
    from coherer.cli.demo.processes import spark_session

    began = time.monotonic()
    with ExitStack() as stack:
        node = stack.enter_context(DemoNode(directory / "node"))
        with _phase(console, "Starting a node and Spark"):
            flights = dataset.flights(rows)
            cores = max(2, min(MOST_CORES, os.cpu_count() or 2))
            spark = stack.enter_context(spark_session(directory, cores))
            clients: dict[str, Client | RocketClient] = {}
            for name in via.protocols:
                module = blocking.rocketmq if name == "rocketmq" else blocking.tubemq
                clients[name] = module.connect(node.urls()[name])
                stack.callback(clients[name].close)
            protocol = via.protocols[-1]
            query = land(spark, protocol, node.urls()[protocol], directory)
        acknowledged = _send_and_land(console, clients, query, flights)
        offsets = clients[protocol].offsets(dataset.TOPIC)
        stored = sum(end - first for first, end in offsets.values())
        with _phase(console, "Counting and joining"):
            query.stop()
            counted = counts(spark, directory)
            found = answers(spark, directory)
            draw(found, counted.landed, chart)
    for answer in found:
        console.print(_answer_table(answer))
    audit = Audit(flights.num_rows, acknowledged, stored, counted.landed, counted.distinct)
    console.print(_audit_table(audit))
    console.print(f"Chart: {chart}. Total time: {time.monotonic() - began:.0f} seconds.")
    return audit


@contextmanager
def _phase(console: Console, text: str) -> Generator[None]:
    """Show the current step: a spinner on a terminal, otherwise a line."""
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        console.print(text)
        yield


def _send_and_land(
    console: Console,
    clients: Mapping[str, Client | RocketClient],
    query: StreamingQuery,
    flights: pa.Table,
) -> int:
    """Send the flights, an equal share over each client, and wait until all have landed.

    Returns:
        The number of messages that the broker acknowledged.
    """
    columns = TextColumn("{task.description:>16}"), BarColumn(None), MofNCompleteColumn(), _Speed()
    if not console.is_terminal:
        console.print("Sending and landing")
    with Progress(*columns, console=console) as progress, ExitStack() as stack:
        rows, count = flights.num_rows, len(clients)
        senders: list[_Sender] = []
        for index, (name, client) in enumerate(clients.items()):
            producer = client.producer(dataset.TOPIC)
            producer.start()
            stack.callback(producer.close)
            share = len(range(index, rows, count))
            bar = progress.add_task(f"sent by {name}", total=share)
            senders.append(_Sender(producer, bar))
        bar = progress.add_task("landed", total=rows)
        first = 0  # number of the chunk's first row; rows alternate between the senders
        for chunk in dataset.messages(flights):
            for index, sender in enumerate(senders):
                share_of_chunk = chunk[(index - first) % count :: count]
                sender.acknowledged += sender.producer.send_many(share_of_chunk).sent
                progress.update(sender.bar, completed=sender.acknowledged)
            first += len(chunk)
            progress.update(bar, completed=_landed(query))
        acknowledged = sum(sender.acknowledged for sender in senders)
        _wait_until_landed(
            query, acknowledged, lambda landed: progress.update(bar, completed=landed)
        )
    return acknowledged


@dataclass
class _Sender:
    """A producer, its progress bar, and the number of its acknowledged messages."""

    producer: Producer | RocketProducer
    bar: TaskID
    acknowledged: int = 0


def _wait_until_landed(
    query: StreamingQuery, acknowledged: int, show: Callable[[int], None]
) -> None:
    moved, before = time.monotonic(), 0
    while before < acknowledged and time.monotonic() - moved < STALLED_S:
        time.sleep(POLL_S)
        now = _landed(query)
        if now > before:
            moved, before = time.monotonic(), now
        show(now)


def _landed(query: StreamingQuery) -> int:
    from coherer.cli.demo.dataset import landed

    failure = query.exception()
    if failure is not None:
        text = str(failure).partition(" SQLSTATE")[0].strip().splitlines()
        raise UnavailableError("The stream ended with an error.", hint=text[-1])
    return landed(query)


class _Speed(ProgressColumn):
    """Rows per second."""

    def render(self, task: Task) -> Text:
        """As a whole number, since the start."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:>9,.0f}/s" if speed else "", style="cyan")


def _answer_table(answer: Answer) -> Table:
    table = Table(title=answer.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for index, name in enumerate(answer.columns):
        number = bool(answer.rows) and not isinstance(answer.rows[0][index], str)
        table.add_column(name, justify="right" if number else "left")
    for row in answer.rows[: WORST if answer.columns[0] == "airport" else None]:
        table.add_row(*(f"{cell:,}" if not isinstance(cell, str) else cell for cell in row))
    return table


def _audit_table(audit: Audit) -> Table:
    result = "[green]nothing lost, nothing duplicated" if audit.clean else "[red]the counts differ"
    table = Table(
        title=f"Audit: {result}", title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
    for name in audit.__struct_fields__:
        table.add_column(name, justify="right")
    table.add_row(*(f"{count:,}" for count in msgspec.structs.astuple(audit)))
    return table
