"""A streaming query of Spark that writes to a transactional sink.

Spark is played: a driver plans micro-batches, writes them to the checkpoint, has a worker send the
rows, calls `commit`, and notes that in the checkpoint. The sink, its coordinator, its decisions and
its blocking clients are the product's.

The files of the checkpoint outlive the programs, which may die before and after each step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from coherer.blocking import _portal
from coherer.errors import CohererError, UsageError
from coherer.spark import commits, connections, sink, transactional
from coherer.spark.commits import Coordinator
from coherer.spark.options import write_options
from coherer.spark.transactional import TransactionalStreamSink
from coherer.testing.simulation.process import process_of
from tests.simulation.blocking import Portal, run_blocking, sleep, wait
from tests.simulation.machines import OPERATOR
from tests.simulation.plan import QUERY as PROGRAM
from tests.simulation.senders import ORDERS

if TYPE_CHECKING:  # a run starts the programs, and they use the run
    from tests.simulation.workload import Run

T = TypeVar("T")

VALUE: Final = StructType([StructField("value", BinaryType())])
QUERY: Final = "query"
CHECKPOINT: Final = "memory/checkpoint"
OFFSETS: Final = f"{CHECKPOINT}/offsets"
COMMITS: Final = f"{CHECKPOINT}/commits"
TASKS: Final = 2
STEP_S: Final = 0.05
"""How long a step with a file takes at most."""
PATIENCE_S: Final = 20.0
"""After this time Spark runs a task once more, and does not care what becomes of the first one."""
POLL_S: Final = 0.05
COMMITS_AT_ONCE: Final = 3


class Files:
    """A folder that outlives its programs, as a driver's disk or a mounted one."""

    def __init__(self, run: Run, location: str) -> None:
        self._run = run
        self._location = location
        self._files = run.files.setdefault(location, {})

    def names(self) -> list[str]:
        """The names of all files."""
        return self._step(lambda: list(self._files))

    def read(self, name: str) -> bytes | None:
        """The contents of a file, or None if it does not exist."""
        found = self._step(lambda: self._files.get(name))
        if found is None and name.endswith(".decision"):
            self._run.note(PROGRAM, "undecided")
        return found

    def read_durable(self, name: str) -> bytes | None:
        """`read`."""
        return self.read(name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return self._step(lambda: name in self._files)

    def create(self, name: str, data: bytes) -> bool:
        """Write a new file; returns False if there is one already."""
        return self._step(lambda: self._created(name, data))

    def _created(self, name: str, data: bytes) -> bool:
        if name in self._files:
            return False
        self._files[name] = data
        batch, _, kind = name.partition(".")
        if kind == "decision":
            for row in rows_of(self._run, int(batch)):
                self._run.note(PROGRAM, "decided", row)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Write a file, new or not."""
        self._step(lambda: self._files.update({name: data}))

    def remove(self, *names: str) -> None:
        """Delete files, in this order."""
        for name in names:
            self._step(partial(self._files.pop, name, None))

    def _step(self, work: Callable[[], T]) -> T:
        chance = self._run.chances
        sleep(chance.random() * STEP_S)
        done = work()
        sleep(chance.random() * STEP_S)
        return done


def rows_of(run: Run, batch: int) -> list[str]:
    """The rows of a micro-batch that is planned."""
    return cast("list[str]", json.loads(run.files[OFFSETS][str(batch)]))


class _Task:
    """The context of a task of Spark."""

    running: ContextVar[_Task] = ContextVar("task")

    def __init__(self, batch: int, part: int) -> None:
        self._batch, self._part = batch, part

    @classmethod
    def get(cls) -> _Task:
        return cls.running.get()

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        return str(self._batch) if name == "streaming.sql.batchId" else QUERY

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._part


class _Finished(dict[Any, int]):
    """What each process knows about finished micro-batches."""

    def get(self, group: str, default: int) -> int:  # type: ignore[override]
        return super().get((process_of(), group), default)

    def __setitem__(self, group: str, batch: int) -> None:
        super().__setitem__((process_of(), group), batch)


@contextmanager
def playing(run: Run) -> Generator[None]:
    """Let sinks of Spark run in a simulation."""

    def coordinator(*arguments: Any) -> Coordinator:
        return Coordinator(*arguments, clock=run.now_s, sleep=sleep)

    processes = SimpleNamespace(getpid=lambda: id(process_of()))
    with (
        mock.patch.object(_portal, "Portal", Portal),
        mock.patch.object(connections, "os", processes),
        mock.patch.object(connections, "_queues", run.queues),
        mock.patch.object(connections, "freeze_heap"),
        mock.patch.object(commits, "COMMITS_AT_ONCE", COMMITS_AT_ONCE),
        mock.patch.object(commits, "_finished_batches", _Finished()),
        mock.patch.object(sink, "TaskContext", _Task),
        mock.patch.object(transactional, "TaskContext", _Task),
        mock.patch.object(transactional, "Coordinator", coordinator),
        mock.patch.object(transactional, "open_folder", partial(Files, run)),
    ):
        yield


async def work(run: Run, _: str, __: Random) -> None:
    """A worker: runs the tasks that a driver gives it, one after the other."""
    while True:
        while not run.tasks:  # noqa: ASYNC110 - an event could wake a program that was killed
            await asyncio.sleep(POLL_S)
        task, sending, done = run.tasks.pop(0)
        _Task.running.set(task)
        try:
            result = await run_blocking(sending)
        except CohererError as error:
            result = error
        if not done.done():
            done.set_result(result)


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
        self._offsets, self._commits = Files(run, OFFSETS), Files(run, COMMITS)
        options = {"url": run.cluster.url, "topic": ORDERS, "transactional": "true"}
        options |= {"checkpointlocation": CHECKPOINT, "timeout": "5s"}
        if "accounts" in run.plan.extras:
            options["user"], options["password"] = OPERATOR
        self._options = write_options(options, "rocketmq")

    def unfinished(self) -> bool:
        """Whether a micro-batch is planned and not finished."""
        return _last(self._offsets) != _last(self._commits)

    def next(self) -> None:
        """Run a micro-batch."""
        batch = _last(self._offsets)
        if batch == _last(self._commits):
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
        self._write(self._commits, batch, "")

    def _plan(self, batch: int) -> None:
        rows = [self._run.name(self._who) for _ in range(self._chance.choice((0, 1, 3, 8)))]
        for row in rows:
            self._run.note(self._who, "begun", row)
        self._write(self._offsets, batch, json.dumps(rows))

    def _write(self, log: Files, batch: int, text: str) -> None:
        if not log.create(str(batch), text.encode()):
            raise UsageError("Concurrent update to the log. Multiple streaming jobs detected.")

    def _sink(self) -> TransactionalStreamSink:
        return TransactionalStreamSink(self._options, VALUE, overwrite=False)

    def _send(self, rows: Sequence[str], batch: int, part: int) -> WriterCommitMessage:
        """Have a worker send rows; if it takes too long, another time."""
        values = pa.array([row.encode() for row in rows], pa.binary())
        columns = pa.RecordBatch.from_arrays([values], ["value"])
        sending = self._sink()
        while True:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            task = (_Task(batch, part), lambda: sending.write(iter([columns])), done)
            self._run.tasks.append(task)
            wait(_settled(done))
            if done.done():
                break
        if isinstance(done.result(), CohererError):
            raise done.result()
        return cast("WriterCommitMessage", done.result())


async def _settled(done: asyncio.Future[Any]) -> None:
    await asyncio.wait({done}, timeout=PATIENCE_S)


def _last(log: Files) -> int:
    return max(map(int, log.names()), default=-1)
