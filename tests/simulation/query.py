"""A streaming query of Spark that writes to a transactional sink.

Its driver plans micro-batches, writes them to the checkpoint, has a worker send the rows, calls
`commit`, and notes that in the checkpoint. The sink, its coordinator and its decisions are the
product's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from coherer.errors import CohererError
from coherer.spark.options import write_options
from coherer.spark.transactional import TransactionalStreamSink
from tests.simulation.blocking import run_blocking
from tests.simulation.plan import QUERY as PROGRAM
from tests.simulation.senders import ORDERS
from tests.simulation.spark import Files, Log, Task, access_of, on_worker

if TYPE_CHECKING:  # a run starts the programs, and they use the run
    from tests.simulation.workload import Run

VALUE: Final = StructType([StructField("value", BinaryType())])
QUERY: Final = "query"
CHECKPOINT: Final = "memory/checkpoint"
OFFSETS: Final = f"{CHECKPOINT}/offsets"
COMMITS: Final = f"{CHECKPOINT}/commits"
TASKS: Final = 2


def decisions(run: Run, location: str) -> Files:
    """The folder of the sink's coordinator; what it decides, and looks for, is noted."""

    def on_create(name: str) -> None:
        batch, _, kind = name.partition(".")
        if kind == "decision":
            for row in rows_of(run, int(batch)):
                run.note(PROGRAM, "decided", row)

    def on_missing(name: str) -> None:
        if name.endswith(".decision"):
            run.note(PROGRAM, "undecided")

    return Files(run, location, on_create=on_create, on_missing=on_missing)


def rows_of(run: Run, batch: int) -> list[str]:
    """The rows of a micro-batch that is planned."""
    return cast("list[str]", json.loads(run.files[OFFSETS][str(batch)]))


async def drive(run: Run, who: str, chance: Random) -> None:
    """A driver: runs micro-batches one after the other, and the last one again if it has to."""
    turns = run.turns(chance)
    driver = Driver(run, who, chance)
    while await run_blocking(driver.unfinished) or await anext(turns, True) is None:
        await run_blocking(driver.next)


class Driver:
    """A driver of Spark."""

    def __init__(self, run: Run, who: str, chance: Random) -> None:
        self._run, self._who, self._chance = run, who, chance
        self._offsets, self._commits = Log(Files(run, OFFSETS)), Log(Files(run, COMMITS))
        options = {"topic": ORDERS, "transactional": "true", "checkpointlocation": CHECKPOINT}
        self._options = write_options(access_of(run) | options, "rocketmq")

    def unfinished(self) -> bool:
        """Whether a micro-batch is planned and not finished."""
        return self._offsets.newest() != self._commits.newest()

    def next(self) -> None:
        """Run a micro-batch."""
        batch = self._offsets.newest()
        if batch == self._commits.newest():
            batch += 1
            self._plan(batch)
        rows = rows_of(self._run, batch)
        sent: list[WriterCommitMessage | None] = []
        try:
            sent += (self._send(rows[part::TASKS], batch, part) for part in range(TASKS))
            self._sink().commit(sent, batch)
        except CohererError:
            self._sink().abort(sent, batch)
            raise
        for row in rows:
            self._run.note(self._who, "committed", row)
        self._commits.write(batch, "")

    def _plan(self, batch: int) -> None:
        rows = [self._run.name(self._who) for _ in range(self._chance.choice((0, 1, 3, 8)))]
        for row in rows:
            self._run.note(self._who, "begun", row)
        self._offsets.write(batch, json.dumps(rows))

    def _sink(self) -> TransactionalStreamSink:
        return TransactionalStreamSink(self._options, VALUE, overwrite=False)

    def _send(self, rows: Sequence[str], batch: int, part: int) -> WriterCommitMessage:
        values = pa.array([row.encode() for row in rows], pa.binary())
        columns = pa.RecordBatch.from_arrays([values], ["value"])
        sink, task = self._sink(), Task(QUERY, batch, part)
        sent = on_worker(self._run, task, lambda: sink.write(iter([columns])))
        return cast("WriterCommitMessage", sent)
