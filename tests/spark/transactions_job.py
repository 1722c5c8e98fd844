"""A stream into a topic in transactions, which strikes itself; run by `transacting`.

Strikes are planned by the numbers of micro-batches, at most one in each: a place in the code, and a
victim. A mark on the disk says that a strike has happened, so that the next attempt gets past it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from coherer.rocketmq import HalfMessages, Verdict
from coherer.spark import commits, configure, sending
from coherer.spark.commits import Coordinator, RocketHalfQueue
from coherer.spark.decisions import Decisions
from coherer.spark.options import WriteOptions, write_options
from coherer.spark.source import RocketMQDataSource
from coherer.spark.transactional import TransactionalStreamSink

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from coherer._record.batches import PackedMessages

IN_TASKS = ("before sends", "between sends", "after sends")
IN_COMMIT = ("before decision", "after decision", "in a commit", "between commits", "after commits")
PLACES = (*IN_TASKS, *IN_COMMIT)
VICTIMS = ("process", "jvm", "driver", "broker")
"""The Python process at the place; its JVM, which is an executor or the driver; the driver with
all its processes; the broker, which `transacting` kills and starts again."""
Plan = dict[str, tuple[str, str]]
WAIT_S = 120
PIECE = 20
HALF_BATCHES = 3
PIECE_BYTES = 1_000
"""Messages, half batches and bytes at a time, so that there is something between them."""


class Strikes:
    """When to strike.

    Args:
        home: has the marks.
        plan: by the number of a micro-batch: a place and a victim.
    """

    def __init__(self, home: Path, plan: Plan) -> None:
        self.home = home
        self.plan = plan

    def at(self, place: str, batch: int) -> None:
        """Strikes, if it is the place and has not happened."""
        planned = self.plan.get(str(batch))
        if planned is None or planned[0] != place:
            return
        mark = self.home / f"struck-{batch}"
        try:
            mark.touch(exist_ok=False)  # of several tasks, one strikes
        except FileExistsError:
            return
        mark.write_text(" / ".join(planned))
        if place == "in a commit":
            delay_s = random.Random(batch).random() * 0.01
            threading.Timer(delay_s, self._strike, (batch, planned[1])).start()
        else:
            self._strike(batch, planned[1])

    def _strike(self, batch: int, victim: str) -> None:
        if victim == "process":
            os.kill(os.getpid(), signal.SIGKILL)
        elif victim == "jvm":
            daemon = os.getppid()
            parent = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(parent, signal.SIGKILL)
            time.sleep(WAIT_S)
        elif victim == "driver":
            os.killpg(int((self.home / "driver").read_text()), signal.SIGKILL)
            time.sleep(WAIT_S)
        else:
            wish = self.home / f"broker-{batch}"
            wish.touch()
            until = time.monotonic() + WAIT_S
            while wish.exists() and time.monotonic() < until:
                time.sleep(0.05)


class StruckSink(TransactionalStreamSink):
    """The sink, with strikes around the functions it is made of."""

    def __init__(
        self, options: WriteOptions, schema: StructType, overwrite: bool, strikes: Strikes
    ) -> None:
        super().__init__(options, schema, overwrite)
        self._strikes = strikes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context = TaskContext.get()
        assert context is not None
        batch = int(str(context.getLocalProperty("streaming.sql.batchId")))
        patch_tasks(self._strikes, batch)
        self._strikes.at("before sends", batch)
        done = super().write(iterator)
        self._strikes.at("after sends", batch)
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        patch_commit(self._strikes, batchId)
        self._strikes.at("before decision", batchId)
        super().commit(messages, batchId)


PREPARE = RocketHalfQueue.prepare_packed
RECORD = Decisions.record
END = RocketHalfQueue.end
COMMIT = Coordinator.commit
FINISH = Coordinator.finish


def patch_tasks(strikes: Strikes, batch: int) -> None:
    sending.BATCH_BYTES = PIECE_BYTES  # type: ignore[misc]

    def prepare(
        queue: RocketHalfQueue, group: str, batches: Sequence[PackedMessages], *rest: Any
    ) -> Any:
        done: list[Any] = []
        for one in batches:
            done += PREPARE(queue, group, [one], *rest)
            strikes.at("between sends", batch)
        return done

    RocketHalfQueue.prepare_packed = prepare  # type: ignore[method-assign]


def patch_commit(strikes: Strikes, batch: int) -> None:
    commits.COMMITS_AT_ONCE = PIECE  # type: ignore[misc]
    commits.HALF_BATCHES_AT_ONCE = HALF_BATCHES  # type: ignore[misc]
    commits.QUIET_S = float(os.environ.get("QUIET_S", commits.QUIET_S))  # type: ignore[misc]

    def record(*arguments: Any) -> bool:
        done = RECORD(*arguments)
        strikes.at("after decision", batch)
        return done

    def end(queue: RocketHalfQueue, halves: HalfMessages, verdict: Verdict) -> Any:
        if verdict is Verdict.COMMIT:
            strikes.at("in a commit", batch)
        failed = END(queue, halves, verdict)
        if verdict is Verdict.COMMIT:
            strikes.at("between commits", batch)
        return failed

    def commit(*arguments: Any) -> None:
        COMMIT(*arguments)
        strikes.at("after commits", batch)

    def finish(*arguments: Any) -> bool:
        done = FINISH(*arguments)
        if done:
            strikes.at("after commits", batch)
        return done

    Decisions.record = record  # type: ignore[method-assign]
    RocketHalfQueue.end = end  # type: ignore[method-assign]
    Coordinator.commit = commit  # type: ignore[method-assign]
    Coordinator.finish = finish  # type: ignore[method-assign]


class StruckDataSource(RocketMQDataSource):
    """`rocketmq` with strikes."""

    @classmethod
    def name(cls) -> str:
        return "struck"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StruckSink:  # noqa: N802
        given = dict(self.options)
        strikes = Strikes(Path(given.pop("home")), json.loads(given.pop("plan")))
        return StruckSink(write_options(given, "rocketmq"), schema, overwrite, strikes)


def main() -> None:
    url, topic, folder, batches, rows, plan, master = sys.argv[1:]
    home = Path(folder)
    os.setpgid(0, 0)
    (home / "driver").write_text(str(os.getpid()))
    builder = configure(
        SparkSession.builder.master(master),
        java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.memory", "512m")
    builder = builder.config("spark.sql.streaming.minBatchesToRetain", "2")
    builder = builder.config("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[2]))
    spark = builder.config("spark.local.dir", str(home / "local")).getOrCreate()
    spark.dataSource.register(StruckDataSource)
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", "2")
        .load()
    )
    writer = numbers.selectExpr("cast(value as string) value").writeStream.format("struck")
    for name, value in {
        "url": url,
        "topic": topic,
        "transactional": "true",
        "home": folder,
        "plan": plan,
        "checkpointLocation": str(home / "checkpoint"),
    }.items():
        writer = writer.option(name, value)
    last = home / "checkpoint" / "commits" / str(int(batches) - 1)
    while not last.exists():
        query = writer.start()
        try:
            while not query.awaitTermination(0.05) and not last.exists():
                pass
        except StreamingQueryException as error:
            text = str(error)
            print(f"query failed: {text[:300]!r}", flush=True)
            continue
        query.stop()
    print("done", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
