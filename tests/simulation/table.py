"""A streaming query of Spark that reads a topic into a table.

Its driver asks the source for the end of the next micro-batch, writes it to the checkpoint, has a
worker read the rows, puts them into the table, and notes that in the checkpoint. The source and its
readers are the product's. The table takes each micro-batch once, as a file sink does.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from coherer.spark.options import read_options
from coherer.spark.planning import DataLossError
from coherer.spark.source import StreamReader
from tests.simulation.blocking import run_blocking
from tests.simulation.history import Place
from tests.simulation.senders import FILLED, ORDERS
from tests.simulation.spark import Files, Log, Task, access_of, on_worker

if TYPE_CHECKING:  # a run starts the programs, and they use the run
    from tests.simulation.workload import Run

QUERY: Final = "reading"
OFFSETS, COMMITS, TABLE = f"{QUERY}/offsets", f"{QUERY}/commits", f"{QUERY}/table"
PAUSE_S: Final = 0.5
"""After a micro-batch, at most."""
IDLE_S: Final = 2.0
"""After a look that found nothing, at most: these looks were most requests of a run."""
LIMITS: Final = (None, 600, 2_000)
"""Of the offsets in a micro-batch; the gap of a power cut has hundreds, that of a slave that has
just copied a log thousands."""

Row = tuple[str, str, int, int, str]


async def drive(run: Run, who: str, chance: Random) -> None:
    """A driver: runs micro-batches one after the other, and the last one again if it has to."""
    driver = Driver(run, who)
    run.note(who, "query")
    while not run.end.is_set():
        found = await run_blocking(driver.next)
        await asyncio.sleep(chance.random() * (PAUSE_S if found else IDLE_S))


class Driver:
    """A driver of Spark."""

    def __init__(self, run: Run, who: str) -> None:
        self._run, self._who = run, who
        self._offsets = Log(Files(run, OFFSETS))
        self._commits = Log(Files(run, COMMITS))
        self._table = Files(run, TABLE, on_create=self._put)
        # What retention deletes before it was read is gone, and that is no error then. Nor is it
        # one that the first message of a queue is damaged.
        keeps = run.history.retention_s == float("inf") and not run.plan.rots
        options = {
            **access_of(run),
            "topic": ORDERS,
            "startingoffsets": "earliest",
            "failondataloss": str(keeps).lower(),
            "mode": "DROP" if run.plan.rots else "FAILFAST",
        }
        if limit := run.plan.chance(who).choice(LIMITS):
            options["maxoffsetspertrigger"] = str(limit)
        self._options = read_options(options, run.plan.protocol)
        self._reader = StreamReader(self._options)

    def next(self) -> bool:
        """Run a micro-batch, if there is one; returns whether there was."""
        try:
            return self._next()
        except DataLossError as error:  # nothing was deleted
            self._run.note(self._who, "error", note=str(error))
            raise

    def _next(self) -> bool:
        batch = self._offsets.newest()
        if batch == self._commits.newest():
            start = self._start_of(batch + 1)
            end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
            if end == start:
                return False
            batch += 1
            self._offsets.write(batch, json.dumps(end))
        start, end = self._start_of(batch), json.loads(self._offsets.read(batch))
        shares = self._reader.partitions(start, end)
        rows = [
            row
            for part, share in enumerate(shares)
            for row in on_worker(self._run, Task(QUERY, batch, part), partial(self._read, share))
        ]
        self._table.create(str(batch), json.dumps(rows).encode())
        self._commits.write(batch, "")
        return True

    def _put(self, batch: str) -> None:
        """Note what the table has got; it may be the last thing that the driver does."""
        for topic, broker, partition, offset, body in json.loads(self._run.files[TABLE][batch]):
            place = Place(f"{topic}@{broker}.{partition}", offset)
            self._run.note(self._who, "row", body, place=place)

    def _start_of(self, batch: int) -> Any:
        return json.loads(self._offsets.read(batch - 1)) if batch else self._reader.initialOffset()

    def _read(self, share: InputPartition) -> list[Row]:
        """The rows of a task, whose process has a reader of its own."""
        return [
            (
                row["topic"],
                row["broker"],
                row["partition"],
                row["offset"],
                (row["value"] or b"").decode().partition(FILLED)[0],
            )
            for batch in StreamReader(self._options).read(share)
            for row in batch.to_pylist()
        ]
