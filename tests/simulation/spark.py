"""Spark, played: checkpoints, and workers that run tasks. `query` and `table` are queries.

The sources, sinks and blocking clients are the product's. The files of a checkpoint outlive the
programs, which may die before and after each step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest import mock

from coherer.blocking import _portal
from coherer.errors import CohererError, UsageError
from coherer.rocketmq import HalfMessages, Verdict
from coherer.spark import commits, connections, sending, sink, source, topics, transactional
from coherer.spark.commits import Coordinator, RocketHalfQueue
from coherer.testing.simulation.process import process_of
from tests.simulation.blocking import Portal, run_blocking, sleep, wait
from tests.simulation.machines import OPERATOR
from tests.simulation.plan import QUERY

if TYPE_CHECKING:  # a run starts the programs, and they use the run
    from tests.simulation.workload import Run

T = TypeVar("T")

STEP_S: Final = 0.05
"""How long a step with a file takes at most."""
PATIENCE_S: Final = 20.0
"""After this time Spark runs a task once more, and does not care what becomes of the first one."""
POLL_S: Final = 0.05
COMMITS_AT_ONCE: Final = 3
BATCH_BYTES: Final = 800
"""So that a half batch has about five rows, in two sectors of the disk."""


class Files:
    """A folder that outlives its programs, as a driver's disk or a mounted one.

    Args:
        run: the simulation.
        location: of the folder.
        on_create: called with the name of each new file.
        on_missing: called with the name of each file that somebody looks for in vain.
    """

    def __init__(
        self,
        run: Run,
        location: str,
        *,
        on_create: Callable[[str], None] | None = None,
        on_missing: Callable[[str], None] | None = None,
    ) -> None:
        self._run = run
        self._files = run.files.setdefault(location, {})
        self._on_create, self._on_missing = on_create, on_missing

    def names(self) -> list[str]:
        """The names of all files."""
        return self._step(lambda: list(self._files))

    def read(self, name: str) -> bytes | None:
        """The contents of a file, or None if it does not exist."""
        found = self._step(lambda: self._files.get(name))
        if found is None and self._on_missing is not None:
            self._on_missing(name)
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
        if self._on_create is not None:
            self._on_create(name)
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


class Log:
    """One of the two logs of a checkpoint: a file for each micro-batch."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def newest(self) -> int:
        """The last micro-batch, or -1."""
        return max(map(int, self._files.names()), default=-1)

    def read(self, batch: int) -> bytes:
        """What was written about a micro-batch."""
        found = self._files.read(str(batch))
        assert found is not None
        return found

    def write(self, batch: int, text: str) -> None:
        """Add a micro-batch.

        Raises:
            UsageError: somebody else did so meanwhile.
        """
        if not self._files.create(str(batch), text.encode()):
            raise UsageError("Concurrent update to the log. Multiple streaming jobs detected.")


class Task:
    """The context of a task of Spark."""

    running: ContextVar[Task] = ContextVar("task")

    def __init__(self, query: str, batch: int, part: int) -> None:
        self._query, self._batch, self._part = query, batch, part

    @classmethod
    def get(cls) -> Task:
        return cls.running.get()

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        return str(self._batch) if name == "streaming.sql.batchId" else self._query

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._part


class _Finished(dict[Any, int]):
    """What each process knows about finished micro-batches."""

    def get(self, group: str, default: int) -> int:  # type: ignore[override]
        return super().get((process_of(), group), default)

    def __setitem__(self, group: str, batch: int) -> None:
        super().__setitem__((process_of(), group), batch)


@contextmanager
def playing(run: Run, open_folder: Callable[[str], Files]) -> Generator[None]:
    """Let sources and sinks of Spark run in a simulation.

    Args:
        run: the simulation.
        open_folder: opens a folder of the coordinator of a sink.
    """

    def coordinator(*arguments: Any) -> Coordinator:
        return Coordinator(*arguments, clock=run.now_s, sleep=sleep)

    def monotonic_ms() -> int:
        return round(run.now_s() * 1000)

    end = RocketHalfQueue.end

    def ending(queue: RocketHalfQueue, halves: HalfMessages, verdict: Verdict) -> Any:
        if verdict is Verdict.COMMIT:
            run.note(QUERY, "ending")
        return end(queue, halves, verdict)

    numbers: dict[Any, int] = {}  # it keeps the dead ones, so that no two get the same number
    processes = SimpleNamespace(getpid=lambda: numbers.setdefault(process_of(), len(numbers)))
    with (
        mock.patch.object(_portal, "Portal", Portal),
        mock.patch.object(connections, "os", processes),
        mock.patch.object(connections, "_queues", run.queues),
        mock.patch.object(connections, "freeze_heap"),
        mock.patch.object(commits, "COMMITS_AT_ONCE", COMMITS_AT_ONCE),
        mock.patch.object(commits, "_finished_batches", _Finished()),
        mock.patch.object(RocketHalfQueue, "end", ending),
        mock.patch.object(sending, "BATCH_BYTES", BATCH_BYTES),
        mock.patch.object(sending, "secrets", SimpleNamespace(randbits=run.chances.getrandbits)),
        mock.patch.object(sending, "time", SimpleNamespace(sleep=sleep)),
        mock.patch.object(sink, "TaskContext", Task),
        mock.patch.object(source, "time", SimpleNamespace(sleep=sleep)),
        mock.patch.object(source, "monotonic_ms", monotonic_ms),
        mock.patch.object(topics, "sleep", sleep),
        mock.patch.object(transactional, "TaskContext", Task),
        mock.patch.object(transactional, "Coordinator", coordinator),
        mock.patch.object(transactional, "open_folder", open_folder),
    ):
        yield


def access_of(run: Run) -> dict[str, str]:
    """The options of a source or sink that say where the cluster is, and who asks."""
    options = {"url": run.cluster.url, "timeout": "5s"}
    if "accounts" in run.plan.extras:
        options["user"], options["password"] = OPERATOR
    return options


async def work(run: Run, _: str, __: Random) -> None:
    """A worker: runs the tasks that drivers give it, one after the other."""
    while True:
        while not run.tasks:  # noqa: ASYNC110 - an event could wake a program that was killed
            await asyncio.sleep(POLL_S)
        task, what, done = run.tasks.pop(0)
        Task.running.set(task)
        try:
            result = await run_blocking(what)
        except CohererError as error:
            result = error
        if not done.done():
            done.set_result(result)


def on_worker(run: Run, task: Task, what: Callable[[], object]) -> Any:
    """Run something on a worker and return its result; run it again if that takes too long.

    Raises:
        CohererError: it failed.
    """
    while True:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        run.tasks.append((task, what, done))
        wait(_settled(done))
        if done.done():
            break
    result = done.result()
    if isinstance(result, CohererError):
        raise result
    return result


async def _settled(done: asyncio.Future[Any]) -> None:
    await asyncio.wait({done}, timeout=PATIENCE_S)
