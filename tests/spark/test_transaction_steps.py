"""Transactional sinks step by step: every process dies between every two steps, in thousands of
micro-batches, with brokers like Coherer's and like Java's. Only Spark and the brokers are played.

`python -m tests.spark.test_transaction_steps 5000` runs that many micro-batches of each kind.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from coherer._record.batches import PackedMessages, decode_batch
from coherer._wire.rocketmq.codes import HALF_NOT_FOUND
from coherer.errors import CohererError, DisconnectedError, RefusedError, UsageError
from coherer.rocketmq import HalfMessages
from coherer.spark import commits, sending, sink, transactional
from coherer.spark.commits import Coordinator
from coherer.spark.decisions import FOLDER
from coherer.spark.options import write_options
from coherer.spark.planning import DataLossError
from coherer.spark.transactional import TransactionalStreamSink
from tests.spark.fake_brokers import QUEUES, Cluster, DeathError

VALUE = StructType([StructField("value", BinaryType())])
BATCHES = 60
GAP = -1
TASKS = 2


class Broker(Cluster):
    """A cluster that also stores half messages, with their bodies."""

    def __init__(self, chances: random.Random, *, once: bool) -> None:
        super().__init__(self.maybe, once=once, late_s=1e4 if once else 7)
        self.chances = chances
        self.bodies: dict[int, list[bytes]] = {}
        self.calm = False
        self.cuts = -1  # how many power cuts there were; -1 if there shall be none
        self.durable = {queue: len(stored) for queue, stored in self.stored.items()}

    def maybe(self, what: str) -> None:
        """The process dies, or a connection breaks."""
        if self.calm:
            return
        chance = self.chances.random()
        if chance < 0.012:
            raise DeathError(what)
        if chance < 0.02 and what != "sleep":
            raise DisconnectedError("The broker is gone.")
        if chance < 0.03 and what in ("before", "after", "look", "ends") and self.cuts >= 0:
            self.cut()
            raise DisconnectedError("The broker's machine has lost power.")

    def cut(self) -> None:
        """Take back commits that are not durable; queues continue behind a gap."""
        self.cuts += 1
        self.late.clear()
        for queue, stored in self.stored.items():
            lost = self.chances.randint(0, len(stored) - self.durable[queue])
            del stored[len(stored) - lost :]
            stored += [GAP] * (lost + 3)
        self.flush()

    def flush(self) -> None:
        self.durable = {queue: len(stored) for queue, stored in self.stored.items()}

    @property
    def halves(self) -> Broker:
        return self

    def prepare_packed(
        self, _: str, batches: Sequence[PackedMessages], __: object, ___: int
    ) -> list[HalfMessages]:
        return [self._prepared(decode_batch(batch.body).bodies) for batch in batches]

    def _prepared(self, bodies: list[bytes]) -> HalfMessages:
        """Half batches if they are Coherer's brokers, otherwise single messages."""
        parts = [bodies] if self.once else [[body] for body in bodies]
        places, offsets = array("H"), array("q")
        for part in parts:
            self.step("half")
            offset = 1_000 + len(self.bodies)
            self.bodies[offset] = part
            offsets.append(offset)
            places.append(self.chances.randrange(len(QUEUES)))
        counts = array("q", map(len, parts)) if self.once else ()
        return HalfMessages("spark-q", QUEUES, places, offsets, offsets, counts)

    def roll_back(self, halves: HalfMessages) -> None:
        self.rolled_back += len(halves)

    def visible(self) -> Counter[int]:
        seen = self.seen()
        del seen[GAP]
        found: Counter[int] = Counter()
        for at, count in seen.items():
            for body in self.bodies[at]:
                found[int(body)] += count
        return found


class Task:
    """The context of a task."""

    batch, query, part = 0, "", 0

    @classmethod
    def get(cls) -> Task:
        return cls()

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        return str(Task.batch) if name == "streaming.sql.batchId" else Task.query

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return Task.part


class Query:
    """A query as Spark runs it: offsets are written before a micro-batch, commits after it."""

    def __init__(self, broker: Broker, checkpoint: Path, query: str, **options: str) -> None:
        self.broker = broker
        self.offsets, self.commits = checkpoint / "offsets", checkpoint / "commits"
        for folder in (self.offsets, self.commits):
            folder.mkdir(parents=True, exist_ok=True)
        self.query = query
        given = {"url": "rocketmq://h:1", "topic": "t", "transactional": "true", **options}
        self.options = write_options({**given, "checkpointLocation": str(checkpoint)}, "rocketmq")
        self.planned = 0

    def last(self, log: Path) -> int:
        return max((int(path.name) for path in log.iterdir()), default=-1)

    def run_next(self) -> None:
        """Runs a micro-batch: the last one again if it is not committed."""
        batch = self.last(self.offsets)
        if batch == self.last(self.commits):
            batch += 1
            self.planned += 1
            start = self.end(batch - 1)
            end = start + self.broker.chances.choice((0, 1, 5, 12))
            plan = {"start": start, "end": end, "time": self.planned}
            (self.offsets / str(batch)).write_text(json.dumps(plan))
        Task.batch, Task.query = batch, self.query
        start, end = self.end(batch - 1), self.end(batch)
        done: list[WriterCommitMessage | None] = []
        try:
            for part in range(TASKS):
                Task.part = part
                done.append(self._sink().write(iter([self._rows(range(start + part, end, TASKS))])))
            self.broker.step("before commit")
            self._sink().commit(done, batch)
        except CohererError:
            self._sink().abort(done, batch)
            raise
        self.broker.flush()  # the flush interval is over
        self.broker.step("before Spark's commit")
        (self.commits / str(batch)).touch()

    def end(self, batch: int) -> int:
        if batch < 0:
            return 0
        plan: dict[str, int] = json.loads((self.offsets / str(batch)).read_text())
        return plan["end"]

    def turn_back(self, batch: int) -> None:
        """Forgets micro-batches from a number on."""
        for log in (self.offsets, self.commits):
            for path in log.iterdir():
                if int(path.name) >= batch:
                    path.unlink()

    def _sink(self) -> TransactionalStreamSink:
        self.broker.step("new sink")
        return TransactionalStreamSink(self.options, VALUE, overwrite=False)

    @staticmethod
    def _rows(numbers: Iterable[int]) -> pa.RecordBatch:
        values = pa.array([b"%d" % number for number in numbers], pa.binary())
        return pa.RecordBatch.from_arrays([values], ["value"])


@contextmanager
def playing(broker: Broker) -> Generator[None]:
    """Lets sinks use the played broker, clock and tasks."""

    @contextmanager
    def shared(_: object) -> Generator[Broker]:
        yield broker

    def coordinator(queue: Broker, decisions: commits.Decisions) -> Coordinator:
        return Coordinator(queue, decisions, clock=broker.clock, sleep=broker.sleep)

    record = commits.Decisions.record

    def recorded(*arguments: object) -> bool:
        broker.step("before decision")
        done = record(*arguments)  # type: ignore[arg-type]
        broker.step("after decision")
        return done

    with (
        mock.patch.object(transactional, "shared_queue", shared),
        mock.patch.object(transactional, "Coordinator", coordinator),
        mock.patch.object(transactional, "TaskContext", Task),
        mock.patch.object(sink, "TaskContext", Task),
        mock.patch.object(commits.Decisions, "record", recorded),
        mock.patch.object(commits, "COMMITS_AT_ONCE", 3),
        mock.patch.object(sending, "BATCH_BYTES", 250),  # one row or two
        mock.patch.object(os, "fsync", return_value=None),  # no power is cut
    ):
        yield


def run_until(query: Query, batches: int) -> int:
    """Runs micro-batches; every death and error starts the query again. Returns how often."""
    again = 0
    while query.last(query.commits) < batches - 1:
        try:
            query.run_next()
        except UsageError:
            raise
        except (DeathError, CohererError):
            again += 1
    return again


def whole(query: Query) -> Counter[int]:
    return Counter(range(query.end(query.last(query.commits))))


def settle(broker: Broker) -> None:
    """What was on its way arrives in the end."""
    broker.calm = True
    broker.sleep(1e6)
    broker.calm = False


def strike(folder: Path, batches: int, seed: int, *, once: bool) -> tuple[int, int]:
    """Returns how often the query was started again, and the number of rows."""
    broker = Broker(random.Random(seed), once=once)
    query = Query(broker, folder, "q")
    with playing(broker):
        again = run_until(query, batches)
        settle(broker)
    assert broker.visible() == whole(query)
    return again, len(whole(query))


@pytest.mark.parametrize("once", [False, True], ids=["java", "ours"])
def test_deaths_between_all_steps(tmp_path: Path, once: bool) -> None:
    again, rows = strike(tmp_path, BATCHES, 7, once=once)
    assert again > BATCHES / 4
    assert rows > BATCHES


@pytest.mark.parametrize("once", [False, True], ids=["look", "ours"])
def test_power_cuts_between_the_steps_of_a_decision(tmp_path: Path, once: bool) -> None:
    """The broker takes back commits that it had confirmed, and leaves a gap in its queues."""
    broker = Broker(random.Random(11), once=once)
    broker.cuts = 0
    query = Query(broker, tmp_path, "q")
    with playing(broker):
        run_until(query, 2 * BATCHES)
        settle(broker)
    assert broker.visible() == whole(query)
    assert broker.cuts > 5


@pytest.mark.parametrize("once", [False, True], ids=["java", "ours"])
def test_no_rows_vanish_when_a_checkpoint_is_turned_back(tmp_path: Path, once: bool) -> None:
    """It is an error until the newer checkpoint is back, unless nothing was sent since."""
    broker = Broker(random.Random(1), once=once)
    query = Query(broker, tmp_path / "c", "q")
    refused = 0
    with playing(broker):
        for batches in range(5, 60, 5):
            run_until(query, batches)
            backup = tmp_path / f"backup-{batches}"
            for log in (query.offsets, query.commits):
                shutil.copytree(log, backup / log.name)
            before, last = broker.visible(), query.last(query.offsets)
            begin = last - broker.chances.randrange(4)
            sent = query.end(last) > query.end(begin - 1)
            query.turn_back(begin)
            try:
                run_until(query, batches)
            except UsageError as error:
                assert "turned back" in str(error)  # noqa: PT017 - it need not be raised
                settle(broker)
                assert broker.visible() == before
                refused += 1
                query.turn_back(0)
                for log in (query.offsets, query.commits):
                    shutil.copytree(backup / log.name, log, dirs_exist_ok=True)
            else:
                assert not sent
        settle(broker)
    assert broker.visible() == whole(query)
    assert refused > 3


def test_two_queries_with_one_folder(tmp_path: Path) -> None:
    broker = Broker(random.Random(3), once=True)
    broker.calm = True
    place = str(tmp_path / "decisions")
    first = Query(broker, tmp_path / "a", "a", transactionLocation=place)
    second = Query(broker, tmp_path / "b", "b", transactionLocation=place)
    with playing(broker):
        run_until(first, 6)
        with pytest.raises(UsageError, match="are those of query a, and this is query b"):
            run_until(second, 1)
        run_until(first, 12)
    assert broker.visible() == whole(first)


def test_the_way_out_after_half_messages_were_lost(tmp_path: Path) -> None:
    """What the error says: delete the folder, and start the query again."""
    broker = Broker(random.Random(5), once=True)
    broker.calm = True
    query = Query(broker, tmp_path, "query")
    lost = [(0, RefusedError(HALF_NOT_FOUND, code=1))]
    with playing(broker):
        with (
            mock.patch.object(Broker, "end", return_value=lost),
            pytest.raises(DataLossError, match=f"Delete {tmp_path}/{FOLDER} and start the query"),
        ):
            query.run_next()
        with pytest.raises(DataLossError), mock.patch.object(Broker, "end", return_value=lost):
            query.run_next()
        shutil.rmtree(tmp_path / FOLDER)
        query.run_next()
    assert query.end(0) > 1
    assert broker.visible() == Counter(range(query.end(0)))


if __name__ == "__main__":
    for kind in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            found = strike(Path(directory), int(sys.argv[1]), random.randrange(1 << 30), once=kind)
        print("ours" if kind else "java", "started again, rows:", found)
