"""Drives a transactional sink as Spark does, without Spark, and kills its processes at any moment.

A micro-batch takes a second with Spark, and 30 ms here, so thousands of them can be struck:

    python -m tests.spark.struck_sink java 2000

Two processes play the workers and one the driver's `commit`, each until it is killed. The random
moment of a kill is somewhere in the work of its process, or in the time after it. A task that died
runs again, alone or with the whole micro-batch (as if the driver had died too); after the death of
a `commit` the whole micro-batch runs again. The broker is killed as well.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql.types import BinaryType, StructField, StructType

from coherer.blocking.rocketmq import connect
from coherer.spark import commits, connections, sending
from coherer.spark.options import write_options
from coherer.spark.transactional import TransactionalStreamSink
from tests.interop.peers.rocket_site import Broker, RocketSite
from tests.spark.transacting import seen

ROWS = 40
PARTS = 2
SCHEMA = StructType([StructField("value", BinaryType())])
FORK = multiprocessing.get_context("forkserver")
"""Forks of a process without threads; this one has some."""
FORK.set_forkserver_preload(["pandas", "pyarrow.compute", "coherer.spark.transactional"])


class Context:
    """What a task knows."""

    def __init__(self, batch: int, part: int) -> None:
        self._properties = {"streaming.sql.batchId": str(batch), "sql.streaming.queryId": "struck"}
        self._part = part

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self._properties.get(name)

    def partitionId(self) -> int:  # noqa: N802
        return self._part


def serve(pipe: Connection, quiet_s: float) -> None:
    """A process: does what it is asked until it is killed, or the parent has gone."""
    connections.freeze_heap = lambda: None
    commits.QUIET_S = quiet_s  # type: ignore[misc]
    commits.COMMITS_AT_ONCE = 10  # type: ignore[misc]
    commits.HALF_BATCHES_AT_ONCE = 2  # type: ignore[misc]
    sending.BATCH_BYTES = 1_000  # type: ignore[misc]
    commits.PATIENCE_S = 10.0  # type: ignore[misc]
    while True:
        try:
            action, sink, batch, argument = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            result: object = None
            if action == "write":
                context = Context(batch, argument)
                pyspark.TaskContext.get = staticmethod(lambda context=context: context)  # type: ignore[method-assign]
                result = sink.write(rows(batch, argument))
            elif action == "commit":
                sink.commit(argument, batch)
            else:
                sink.abort(argument, batch)
            pipe.send((True, result))
        except Exception as error:  # noqa: BLE001 - the parent reports it
            pipe.send((False, f"{type(error).__name__}: {error}"))


def rows(batch: int, part: int) -> Iterator[pa.RecordBatch]:
    for begin in range(batch * ROWS + part, (batch + 1) * ROWS, 10 * PARTS):
        numbers = range(begin, min(begin + 10 * PARTS, (batch + 1) * ROWS), PARTS)
        yield pa.RecordBatch.from_arrays([pa.array([b"%d" % one for one in numbers])], ["value"])


class DiedError(Exception):
    """The process has been killed."""


class Process:
    """A process that is started when it is asked for something."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._process: Any = None
        self._pipe: Connection
        self.deaths = 0

    def begin(self, *request: object, kill_after_s: float | None = None) -> None:
        """Asks for something; kills the process after a time."""
        if self._process is None:
            self._pipe, other = FORK.Pipe()
            self._process = FORK.Process(target=serve, args=(other, self._quiet_s), daemon=True)
            self._process.start()
            other.close()
        if kill_after_s is not None:
            threading.Timer(kill_after_s, self._kill, (self._process.pid,)).start()
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send(request)

    def end(self) -> tuple[bool, Any]:
        """The answer.

        Raises:
            DiedError: it has been killed.
        """
        try:
            answer: tuple[bool, Any] = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            self._process = None
            self.deaths += 1
            raise DiedError from None
        return answer

    @staticmethod
    def _kill(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Driver:
    """Runs micro-batches as Spark does.

    Args:
        options: of the sink.
        chances: decides about strikes.
        quiet_s: `QUIET_S`.
        restart: kills and starts the broker.
        broker_every: how many micro-batches for one death of the broker.
        chance: that a process is killed in its work.
    """

    def __init__(
        self,
        options: dict[str, str],
        chances: random.Random,
        quiet_s: float,
        restart: Callable[[], None],
        broker_every: int,
        chance: float,
    ) -> None:
        self._options = write_options(options, "rocketmq")
        self._chances = chances
        self._restart = restart
        self._broker_every = broker_every
        self._chance = chance
        self._workers = [Process(quiet_s) for _ in range(PARTS)]
        self._committer = Process(quiet_s)
        self.counts: Counter[str] = Counter()
        self._took_s = {"write": 0.02, "commit": 0.02}

    def run(self, batch: int) -> None:
        """Runs a micro-batch until it succeeds."""
        for attempt in range(100):
            if self._attempt(batch, strike=attempt < 3):
                return
            self.counts["attempts that failed"] += 1
        raise AssertionError(f"Micro-batch {batch} does not end.")

    def _attempt(self, batch: int, *, strike: bool) -> bool:
        broker: threading.Thread | None = None
        if strike and batch % self._broker_every == self._broker_every - 1:
            delay_s = self._chances.random() * sum(self._took_s.values()) * 1.5
            broker = threading.Thread(target=self._strike_broker, args=(delay_s,))
            broker.start()
        try:
            return self._tasks_and_commit(batch, strike=strike)
        finally:
            if broker is not None:
                broker.join()

    def _tasks_and_commit(self, batch: int, *, strike: bool) -> bool:
        sink = TransactionalStreamSink(self._options, SCHEMA, overwrite=False)
        messages: list[Any] = [None] * PARTS
        for _ in range(4):
            begin = time.monotonic()
            left = [part for part in range(PARTS) if messages[part] is None]
            for part in left:
                kill = self._moment("write") if strike else None
                self._workers[part].begin("write", sink, batch, part, kill_after_s=kill)
            for part in left:
                messages[part] = self._ended(self._workers[part], "task")
            if None not in messages:
                self._took_s["write"] = time.monotonic() - begin
                break
            if self._chances.random() < 0.5:
                break
        fresh = TransactionalStreamSink(self._options, SCHEMA, overwrite=False)
        if None not in messages:
            begin = time.monotonic()
            kill = self._moment("commit") if strike else None
            self._committer.begin("commit", fresh, batch, messages, kill_after_s=kill)
            if self._ended(self._committer, "commit") is not None:
                self._took_s["commit"] = min(time.monotonic() - begin, 0.2)
                # The driver may die before it has written its own commit.
                return not strike or self._chances.random() > self._chance / 3
        if self._chances.random() < 0.7:  # else the driver has died, and aborts nothing
            self._committer.begin("abort", fresh, batch, messages)
            self._ended(self._committer, "abort")
        return False

    def _ended(self, process: Process, what: str) -> object | None:
        """The answer; None if the process has died or failed."""
        try:
            good, result = process.end()
        except DiedError:
            self.counts[f"{what} killed"] += 1
            return None
        if good:
            return result or True
        self.counts[f"{what} failed"] += 1
        return None

    def _moment(self, what: str) -> float | None:
        strike = self._chances.random() < self._chance
        return self._chances.random() * self._took_s[what] if strike else None

    def _strike_broker(self, delay_s: float) -> None:
        time.sleep(delay_s)
        self._restart()
        self.counts["broker killed"] += 1


def run(
    broker: Broker, url: str, topic: str, home: Path, given: argparse.Namespace
) -> Counter[str]:
    """Runs micro-batches; returns what was struck.

    Raises:
        AssertionError: a number is missing in the topic, or is there twice.
    """

    def restart() -> None:
        broker.kill()
        broker.start()
        broker.wait()

    options = {
        "url": url,
        "topic": topic,
        "transactional": "true",
        "transactionLocation": str(home),
        "timeout": "5s",
    }
    chances = random.Random(given.seed)
    driver = Driver(options, chances, 0.5, restart, given.broker_every, given.chance)
    begin = time.monotonic()
    for batch in range(given.batches):
        driver.run(batch)
        if batch % 100 == 99:
            print(f"{batch + 1}: {time.monotonic() - begin:.0f} s {driver.counts}", flush=True)
    found = seen(url, topic)
    expected = Counter(range(given.batches * ROWS))
    assert found == expected, (found - expected, expected - found)
    return driver.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["ours", "java"])
    parser.add_argument("batches", type=int)
    parser.add_argument("--broker-every", type=int, default=100)
    parser.add_argument("--chance", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="struck-"))
    site = RocketSite(home)
    try:
        names = site.names(given.kind)
        broker = site.broker(given.kind, names)
        url = f"rocketmq://{names}"
        with connect(url) as client:
            client.admin().topics.create("struck", 4, wait_ms=10_000)
        counts = run(broker, url, "struck", home / "d", given)
        print(f"each of {given.batches * ROWS} messages once: {counts}")
    finally:
        site.stop()


if __name__ == "__main__":
    sys.exit(main())
