"""`coherer demo`: real flights, through a broker, into tables, counted.

What happens:

1. A node starts in a process of its own (`demo_node`), Spark in this one (`demo_spark`).
2. A Spark stream begins to land the topic in a Parquet table, with a checkpoint.
3. The flights are sent as JSON messages; meanwhile they land. They go through the node's TubeMQ
   door, its RocketMQ door, or half of them through each, and all come back by one.
4. Spark joins the table with airlines and weather, and answers three questions.
5. Every count of the way is compared: rows in the source, acknowledged by the broker, stored there,
   landed in the table, and different from each other. If they differ the exit code is 1.
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

from coherer.cli import demo_data
from coherer.cli.demo_node import DemoNode
from coherer.cli.output import INTERRUPTED
from coherer.cli.signals import signals_interrupt
from coherer.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

    from coherer.blocking.rocketmq import Client as RocketClient
    from coherer.blocking.rocketmq import Producer as RocketProducer
    from coherer.blocking.tubemq import Client, Producer
    from coherer.cli.demo_tables import Answer

app = typer.Typer(add_completion=False)

MARK: Final = "coherer-demo.json"
"""A directory with this file is ours to empty."""

WORST: Final = 10
"""So many airports by hour are shown."""

MOST_CORES: Final = 8
"""More would not help: the topic has eight partitions."""

POLL_S: Final = 0.1
STALLED_S: Final = 60
"""When nothing has landed for so long, the audit says what is missing."""


class Via(enum.Enum):
    """The doors that the flights go through."""

    TUBEMQ = "tubemq"
    ROCKETMQ = "rocketmq"
    BOTH = "both"

    @property
    def doors(self) -> tuple[str, ...]:
        """The protocols that are sent by; the last is read by."""
        return ("tubemq", "rocketmq") if self is Via.BOTH else (self.value,)


class Audit(msgspec.Struct, frozen=True):
    """The same number five times, if nothing was lost or doubled."""

    source: int
    acknowledged: int
    stored: int
    landed: int
    distinct: int

    @property
    def clean(self) -> bool:
        """Whether all agree."""
        return len(set(msgspec.structs.astuple(self))) == 1


@app.command()
def demo(
    rows: Annotated[
        int | None, typer.Option(min=1, help="Take fewer rows, spread over the year.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the node's files and the tables in this directory.")
    ] = None,
    chart: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("coherer-demo.png"),
    via: Annotated[
        Via, typer.Option(help="Send by this protocol, or half of the flights by each.")
    ] = Via.TUBEMQ,
) -> None:
    """Send a year of flights through a node into Spark tables, and ask them three questions."""
    console = Console()
    demo_data.check_installed()
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


@contextmanager
def workspace(keep: Path | None) -> Generator[Path]:
    """An empty directory, which is removed afterwards unless it is to be kept.

    Raises:
        UsageError: it is a file, or holds something that no demo wrote.
    """
    if keep is None:
        directory = Path(tempfile.mkdtemp(prefix="coherer-demo-"))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return
    if keep.exists() and not keep.is_dir():
        raise UsageError(f"{keep} is no directory.", hint="Name a new one.")
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
    from coherer import blocking
    from coherer.cli.demo_chart import draw
    from coherer.cli.demo_spark import spark_session
    from coherer.cli.demo_tables import answers, counts, land

    began = time.monotonic()
    with ExitStack() as stack:
        node = stack.enter_context(DemoNode(directory / "node"))
        with _phase(console, "Starting a node and Spark"):
            flights = demo_data.flights(rows)
            cores = max(2, min(MOST_CORES, os.cpu_count() or 2))
            spark = stack.enter_context(spark_session(directory, cores))
            clients: dict[str, Client | RocketClient] = {}
            for name in via.doors:
                module = blocking.rocketmq if name == "rocketmq" else blocking.tubemq
                clients[name] = module.connect(node.urls()[name])
                stack.callback(clients[name].close)
            door = via.doors[-1]
            query = land(spark, door, node.urls()[door], directory)
        acknowledged = _send_and_land(console, clients, query, flights)
        held = clients[door].offsets(demo_data.TOPIC)
        stored = sum(end - first for first, end in held.values())
        with _phase(console, "Counting, joining, asking"):
            query.stop()
            counted = counts(spark, directory)
            found = answers(spark, directory)
            draw(found, counted.landed, chart)
    for answer in found:
        console.print(_answer_table(answer))
    audit = Audit(flights.num_rows, acknowledged, stored, counted.landed, counted.distinct)
    console.print(_audit_table(audit))
    console.print(f"Drawn in {chart}. It took {time.monotonic() - began:.0f} seconds.")
    return audit


@contextmanager
def _phase(console: Console, text: str) -> Generator[None]:
    """Says what goes on: with a spinner on a terminal, else with a line."""
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
    """Sends everything, shows how it lands meanwhile, and waits until all has.

    Args:
        console: where it is shown.
        clients: by protocol; each sends the same share.
        query: what lands.
        flights: what is sent.

    Returns:
        How many messages the broker acknowledged.
    """
    columns = TextColumn("{task.description:>16}"), BarColumn(None), MofNCompleteColumn(), _Speed()
    if not console.is_terminal:
        console.print("Sending and landing")
    with Progress(*columns, console=console) as progress, ExitStack() as stack:
        rows, doors = flights.num_rows, len(clients)
        lanes: list[_Lane] = []
        for place, (name, client) in enumerate(clients.items()):
            producer = client.producer(demo_data.TOPIC)
            producer.start()
            stack.callback(producer.close)
            share = len(range(place, rows, doors))
            lanes.append(_Lane(producer, progress.add_task(f"sent by {name}", total=share)))
        bar = progress.add_task("landed", total=rows)
        first = 0  # the row where a chunk begins decides whose turn it is
        for chunk in demo_data.messages(flights):
            for place, lane in enumerate(lanes):
                lane.acknowledged += lane.producer.send_many(
                    chunk[(place - first) % doors :: doors]
                ).sent
                progress.update(lane.bar, completed=lane.acknowledged)
            first += len(chunk)
            progress.update(bar, completed=_landed(query))
        acknowledged = sum(lane.acknowledged for lane in lanes)
        _wait_until_landed(
            query, acknowledged, lambda landed: progress.update(bar, completed=landed)
        )
    return acknowledged


@dataclass
class _Lane:
    """A producer, its bar, and how many of its messages have receipts."""

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
    from coherer.cli.demo_tables import landed

    failure = query.exception()
    if failure is not None:
        said = str(failure).partition(" SQLSTATE")[0].strip().splitlines()
        raise UnavailableError("The stream ended with an error.", hint=said[-1])
    return landed(query)


class _Speed(ProgressColumn):
    """Rows per second."""

    def render(self, task: Task) -> Text:
        """As a whole number, since the bar began."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:>9,.0f}/s" if speed else "", style="cyan")


def _answer_table(answer: Answer) -> Table:
    table = Table(title=answer.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for place, name in enumerate(answer.columns):
        number = bool(answer.rows) and not isinstance(answer.rows[0][place], str)
        table.add_column(name, justify="right" if number else "left")
    for row in answer.rows[: WORST if answer.columns[0] == "airport" else None]:
        table.add_row(*(f"{cell:,}" if not isinstance(cell, str) else cell for cell in row))
    return table


def _audit_table(audit: Audit) -> Table:
    verdict = "[green]nothing lost, nothing doubled" if audit.clean else "[red]the numbers differ"
    table = Table(
        title=f"Audit: {verdict}", title_justify="left", title_style="bold", box=SIMPLE_HEAD
    )
    for name in audit.__struct_fields__:
        table.add_column(name, justify="right")
    table.add_row(*(f"{count:,}" for count in msgspec.structs.astuple(audit)))
    return table
