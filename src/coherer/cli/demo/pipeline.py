"""`coherer demo --pipeline`: runs `examples/flights`, a declarative pipeline of Spark, twice.

Half of the flights, and some broken messages, are sent before each run. The node and Spark are
those of the demo. Spark serves Spark Connect here, and each run is a process of its own,
`spark-pipelines run`, which connects to it: that saves the start of a Java for each. Then the rows
of all tables and topics are compared. If they differ the exit code is 1.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from coherer import blocking
from coherer.blocking import Client
from coherer.cli.demo import dataset
from coherer.errors import UnavailableError, UsageError
from coherer.message import Message

# The demo first checks that its extra is installed: matplotlib, Spark, pyarrow.
if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

DEAD_TOPIC: Final = "flights_dead"
ALERT_TOPIC: Final = "flights_alerts"
VERY_LATE_MINUTES: Final = 360

BROKEN: Final = (
    b"flight 1545 to IAH",
    b'{"carrier": "UA", "origin": "JFK", "distance": "far"}',
    b'{"carrier": "UA", "origin": "SFO", "dest": "EWR", "distance": 2565}',
    b'{"carrier": "DL", "origin": "LGA", "dest": "ATL", "distance": -762}',
)
"""Messages that fail a check of the pipeline."""

FLIGHTS_PER_BROKEN: Final = 1_000
RUNS: Final = 2
ATTEMPTS: Final = 4
"""Once its tables exist, Spark 4.3 may start all flows of a run side by side; new rows of one table
then reach the next table in the next run. A flow may also end early, because a worker did not start
within ten seconds; the next run continues there."""


class Tally(msgspec.Struct, frozen=True):
    """Messages and rows after a run.

    Args:
        flights: that were sent.
        broken: messages that were sent beside them.
        bronze: rows of the table.
        distinct: different places in the topic among them.
        silver: rows of the table.
        dead: messages in the dead-letter topic.
        late: rows of silver that call for an alert.
        alerts: messages in the topic of alerts.
    """

    flights: int
    broken: int
    bronze: int
    distinct: int
    silver: int
    dead: int
    late: int
    alerts: int

    @property
    def clean(self) -> bool:
        """Whether nothing is missing, and nothing is there twice.

        >>> Tally(10, 2, 12, 12, 10, 2, 1, 1).clean
        True
        """
        return (
            self.bronze == self.distinct == self.flights + self.broken
            and self.silver == self.flights
            and self.dead == self.broken
            and self.alerts == self.late
        )


def check_installed() -> None:
    """Check that Spark Connect's packages are installed.

    Raises:
        UsageError: a package is missing.
    """
    dataset.check_installed()
    missing = [
        name for name in ("grpc", "grpc_status", "yaml", "zstandard") if find_spec(name) is None
    ]
    if missing:
        raise UsageError(
            f"The pipeline needs {', '.join(missing)}.",
            hint='Try: pip install "coherer[demo,pipelines]".',
        )


def project() -> Path:
    """The directory of the pipeline: in the wheel beside this module, else in the checkout."""
    packed = Path(__file__).parent / "flights"
    return packed if packed.is_dir() else Path(__file__).parents[4] / "examples" / "flights"


def copy_project(directory: Path) -> Path:
    """Copy the pipeline to a new directory, which also keeps its checkpoints.

    Returns:
        The path of `spark-pipeline.yml`.
    """
    shutil.copytree(project(), directory, ignore=shutil.ignore_patterns("__pycache__"))
    spec = directory / "spark-pipeline.yml"
    values = yaml.safe_load(spec.read_text(encoding="utf-8"))
    values["storage"] = (directory / "storage").resolve().as_uri()
    # types-PyYAML 6.0.12.20261122 has a parameter of an unknown type.
    text = yaml.safe_dump(values)  # pyright: ignore[reportUnknownMemberType]
    spec.write_text(text, encoding="utf-8")
    return spec


def run_pipeline(
    console: Console, directory: Path, rows: int | None, protocols: Sequence[str]
) -> Tally:
    """Sends, runs the pipeline, sends again, runs it again, and prints the counts.

    Args:
        console: for the tables.
        directory: an empty one.
        rows: how many flights; None for all.
        protocols: the flights of the runs are sent over these in turn; the pipeline reads and
            writes over the last one.

    Returns:
        The counts after the last run.
    """
    from coherer.cli.demo.processes import DemoNode, spark_session

    with ExitStack() as stack:
        node = stack.enter_context(DemoNode(directory / "node"))
        token = secrets.token_urlsafe()
        console.print("Starting a node and Spark")
        settings = _connect_settings(directory, token)
        spark = stack.enter_context(spark_session(directory, 2, settings))
        spec = copy_project(directory / "pipeline")
        clients = {
            name: stack.enter_context(blocking.connect(node.urls()[name])) for name in protocols
        }
        environment = {
            "SPARK_REMOTE": f"sc://localhost:{_connect_port(spark)}",
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
            "FLIGHTS_URL": node.urls()[protocols[-1]],
        }
        tally, tallies = Tally(0, 0, 0, 0, 0, 0, 0, 0), list[Tally]()
        for number, part in enumerate(_parts(dataset.flights(rows)), 1):
            broken = list(_broken(1 + part.num_rows // FLIGHTS_PER_BROKEN))
            console.print(f"Run {number}: {part.num_rows:,} flights, {len(broken)} broken messages")
            _send(clients[protocols[number % len(protocols) - 1]], part, broken)
            sent = tally.flights + part.num_rows, tally.broken + len(broken)
            for _ in range(ATTEMPTS):
                _run(spec, environment)
                tally = _tally(spark, clients[protocols[-1]], *sent)
                if tally.clean:
                    break
                console.print("Not everything has arrived in all tables; the pipeline runs again")
            tallies.append(tally)
        _print(console, spark, tallies)
        return tally


def _parts(flights: pa.Table) -> Iterator[pa.Table]:
    share = -(-flights.num_rows // RUNS)
    for number in range(RUNS):
        yield flights.slice(number * share, share)


def _send(client: Client, flights: pa.Table, broken: list[Message]) -> None:
    with client.producer(dataset.TOPIC) as producer:
        for chunk in (*dataset.messages(flights), broken):
            producer.send_many(chunk).check()


def _broken(count: int) -> Iterator[Message]:
    for number in range(count):
        yield Message(dataset.TOPIC, BROKEN[number % len(BROKEN)])


def _connect_settings(directory: Path, token: str) -> dict[str, str]:
    """Settings of a Spark that keeps its catalog in a directory and serves Spark Connect."""
    catalog = f"jdbc:derby:;databaseName={directory}/catalog;create=true"
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": token,
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": catalog,
    }


def _connect_port(spark: SparkSession) -> int:
    # Only Java knows the port that it took.
    java: Any = vars(type(spark.sparkContext))["_jvm"]
    service = getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$")
    return int(getattr(service, "MODULE$").localPort())


def _run(spec: Path, environment: Mapping[str, str]) -> None:
    """Run the pipeline to its end.

    Raises:
        UnavailableError: it failed; with the end of its log.
    """
    log = spec.with_name("run.log")
    with log.open("wb") as output:
        done = subprocess.run(  # noqa: S603 - Spark's own program, run by this Python
            [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)],
            env={**os.environ, **environment},
            cwd=spec.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise UnavailableError("The pipeline failed.", hint=" ".join(lines[-3:]))


def _tally(spark: SparkSession, client: Client, flights: int, broken: int) -> Tally:
    def messages(topic: str) -> int:
        return sum(end - first for first, end in client.offsets(topic).values())

    for name in ("bronze", "silver"):
        spark.catalog.refreshTable(name)  # another session wrote it
    bronze, silver = spark.table("bronze"), spark.table("silver")
    return Tally(
        flights=flights,
        broken=broken,
        bronze=bronze.count(),
        distinct=bronze.select("broker", "partition", "offset").distinct().count(),
        silver=silver.count(),
        dead=messages(DEAD_TOPIC),
        late=(late := silver.where(f"dep_delay >= {VERY_LATE_MINUTES}").count()),
        alerts=messages(ALERT_TOPIC) if late else 0,
    )


def _print(console: Console, spark: SparkSession, tallies: Sequence[Tally]) -> None:
    rows = spark.table("delays_by_carrier").orderBy("delay", ascending=False).collect()
    names = ("carrier", "flights", "delay", "late")
    heads = ("carrier", "flights", "mean delay, min", "late, %")
    title = "delays_by_carrier, a table of the pipeline"
    console.print(_table(title, heads, ([row[name] for name in names] for row in rows)))
    clean = all(tally.clean for tally in tallies)
    result = "[green]nothing lost, nothing duplicated" if clean else "[red]the counts differ"
    stages = ("run", "flights", "broken", "bronze", "silver", "dead letters", "alerts")
    counts = (
        (number, one.flights, one.broken, one.bronze, one.silver, one.dead, one.alerts)
        for number, one in enumerate(tallies, 1)
    )
    console.print(_table(f"Sent, and stored after each run: {result}", stages, counts))


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, justify="left" if head == "carrier" else "right")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:,}" for cell in row))
    return table
