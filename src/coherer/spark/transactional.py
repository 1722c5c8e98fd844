"""Sends rows to RocketMQ in transactions: consumers see a micro-batch whole or not at all.

Tasks send half messages, which no consumer sees, and return columns of their offsets. On Coherer's
brokers a half message is a half batch of up to 1 MiB of rows, on Java's it is one row. The driver
decides in `commit`: it writes these columns to a file beside the checkpoint
(`coherer.spark.decisions`), and then commits each half message (`coherer.spark.commits`).

Invariants:

1. Consumers see exactly the half messages of decisions. Only the coordinator commits, and only half
   messages of a decision. Rolling back merely cleans up: without it they stay invisible, too.
2. A micro-batch has at most one decision, which is durable before the first commit, and contains
   everything that commits need. A decision is never changed.
3. A half message of a decision is committed once, however often driver, executors and broker die
   (`coherer.spark.commits` says how).
4. When `commit` returns, all messages of the micro-batch are visible. So when Spark plans
   micro-batch n, all before it are finished.
5. If Spark runs a micro-batch again that has a decision, its tasks send nothing, and `commit`
   finishes the decision. It does not matter whether the rows are the same the second time. The
   tasks read their rows nevertheless, because the state of an aggregation is saved at the end of
   its rows.
6. No other case prevents a task from sending its rows. A decision of another query, a later
   decision, and one about another plan of the same micro-batch are errors
   (`coherer.spark.decisions`): two queries use the folder, or somebody has restored an older
   checkpoint.

Failures:

| failure | result for the micro-batch |
|---|---|
| a task died | Spark runs it again; the half messages of the first attempt stay invisible |
| the driver died before the decision | Spark runs all tasks again; as above |
| the driver died after the decision, or a broker was away for long | the next run finishes it |
| the driver died after the last commit, before Spark's own | `commit` finds everything committed |

The half messages of a micro-batch become visible one after the other, as fast as the broker stores
them: a consumer sees the micro-batch whole in the end, not at one instant.

Open half messages: a broker asks the producers of the group about them once a minute. All processes
of the query answer, until Spark ends them: roll back half messages of a finished micro-batch, and
wait for the others. After 15 questions, or 72 h, the broker gives up, and the message stays
invisible. The guarantee does not depend on these questions.

`df.write` works in the same way, with one micro-batch that has a random name. Spark does not run it
again after the death of the driver: the next write with the same `checkpointLocation` finishes the
decision first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final, cast

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from coherer._common.logs import Log
from coherer._record.batches import PackedMessages
from coherer.errors import CohererError, UsageError
from coherer.rocketmq import HalfMessages
from coherer.spark.commits import Coordinator, note_finished
from coherer.spark.connections import shared_queue
from coherer.spark.decisions import (
    FOLDER,
    Decisions,
    LocalFolder,
    check_order,
    check_query,
    open_folder,
)
from coherer.spark.options import WriteOptions
from coherer.spark.rocketmq import RocketMQQueue
from coherer.spark.sending import RowSender
from coherer.spark.sink import BatchSink, StreamSink, origin_of

_log = Log(logging.getLogger(__name__))

GROUP_PREFIX: Final = "spark-"
COLUMNS: Final = frozenset({"value", "topic", "tag", "timestamp", "properties", "key"})
"""The columns that half messages support."""


class PreparedTask(WriterCommitMessage):
    """The result of a task: its half messages, and the id of its query."""

    def __init__(self, halves: HalfMessages, query: str) -> None:
        self.halves = halves
        self.query = query


def decisions_of(options: WriteOptions) -> Decisions:
    """The decisions of a sink.

    Raises:
        UsageError: there is no place, or Python cannot use it.
    """
    location = options.transaction_location
    if location is None and options.checkpoint is None:
        raise UsageError(
            "A transactional sink has no place for its decisions.",
            hint="Give option checkpointLocation: a folder that outlives the driver.",
        )
    location = location or f"{(options.checkpoint or '').rstrip('/')}/{FOLDER}"
    return Decisions(open_folder(location), location)


def plan_of(options: WriteOptions, batch: int) -> str:
    """The identity of a micro-batch's plan: a digest of the file that Spark has written about it.

    Spark writes the offsets of each source and the time of planning, before it runs the
    micro-batch, and never changes them. It is empty if Python cannot read the checkpoint.
    """
    if options.checkpoint is None:
        return ""
    try:
        folder = open_folder(f"{options.checkpoint.rstrip('/')}/offsets")
        written = folder.read_durable(str(batch))
    except (UsageError, OSError) as error:
        _log.info("The plan of micro-batch %d cannot be read: %s", batch, error)
        return ""
    return "" if written is None else sha256(written).hexdigest()


def check(schema: StructType, options: WriteOptions) -> None:
    """Check the requirements of transactional sinks.

    Raises:
        UsageError: an option or a column does not fit.
    """
    if not options.include_origin:
        raise UsageError(
            "transactional=true needs includeOrigin=true.",
            hint="Brokers ask about half messages, and spark.batch is in the answer.",
        )
    extra = [name for name in schema.fieldNames() if name not in COLUMNS]
    extra += ["orderByKey"] * options.order_by_key + ["delay"] * (options.delay_ms is not None)
    if extra:
        raise UsageError(
            f"A transactional sink cannot set {', '.join(extra)}.",
            hint="RocketMQ's half messages have neither a delay nor a chosen queue.",
        )


class HalfRows:
    """Takes the rows of a `RowSender`, and sends them as half messages.

    Attributes:
        parts: the half messages of the rows so far.
    """

    def __init__(self, queue: RocketMQQueue, group: str, properties: Mapping[str, str]) -> None:
        self.parts: list[HalfMessages] = []
        self._queue = queue
        self._group = group
        self._properties = properties

    def places(self, topic: str) -> Sequence[tuple[str, int]]:
        """Broker and number of all queues."""
        return self._queue.places(topic)

    def send_packed(
        self, batches: Sequence[PackedMessages], window: int
    ) -> Sequence[HalfMessages | CohererError]:
        """Send batches; returns the outcome of each."""
        halves = self._queue.halves
        outcomes = halves.prepare_packed(self._group, batches, self._properties, window)
        self.parts += [one for one in outcomes if isinstance(one, HalfMessages)]
        return outcomes


def prepared(
    rows: Iterable[pa.RecordBatch], options: WriteOptions, query: str, group: str
) -> PreparedTask:
    """Send the rows of a task as half messages."""
    with shared_queue(options.access) as shared:
        queue = cast("RocketMQQueue", shared)
        origin = origin_of(query, options.include_origin)
        halves = HalfRows(queue, group, origin.fixed)
        sender = RowSender(halves, options, origin)
        try:
            for batch in rows:
                sender.send(batch)
        except BaseException:
            queue.halves.roll_back(HalfMessages.joined(halves.parts))
            raise
        return PreparedTask(HalfMessages.joined(halves.parts), query)


def halves_of(messages: Iterable[WriterCommitMessage | None]) -> HalfMessages:
    """The half messages of all tasks that succeeded."""
    return HalfMessages.joined([one.halves for one in messages if isinstance(one, PreparedTask)])


class TransactionalStreamSink(StreamSink):
    """`df.writeStream` with `transactional=true`.

    Spark makes a sink on the driver for the tasks of each micro-batch, and another one for `commit`
    or `abort`, which runs in a process of its own.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        check(schema, options)
        self._check_checkpoint(options)
        decisions = decisions_of(options)
        self._location = decisions.location
        self._decided = decisions.latest()
        self._owner = decisions.query()

    # Spark's own Arrow writers narrow the argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Send the rows of a task as half messages."""
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls this in a task
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        group = self._options.producer_group or GROUP_PREFIX + query
        check_query(self._location, self._owner, query)
        check_order(self._location, self._decided, batch)
        note_finished(group, batch - 1)
        if batch == self._decided:
            for _ in iterator:
                pass
            return PreparedTask(HalfMessages(group), query)
        return prepared(iterator, self._options, query, group)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Decide and commit, or finish the decision of an earlier run."""
        halves, name = halves_of(messages), str(batchId)
        decisions, plan = decisions_of(self._options), plan_of(self._options, batchId)
        for query in {one.query for one in messages if isinstance(one, PreparedTask) and one.query}:
            decisions.belong_to(query)
        decisions.check_plan(batchId, plan)
        with shared_queue(self._options.access) as queue:
            half_queue = cast("RocketMQQueue", queue).halves
            coordinator = Coordinator(half_queue, decisions)
            if coordinator.finish(name):
                half_queue.roll_back(halves)
            else:
                coordinator.commit(name, halves, plan)
        note_finished(halves.group, batchId)
        # Keep the last one: it shows whether somebody restores an older checkpoint.
        decisions.forget_older()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Roll back, unless `commit` has decided and could not finish."""
        if decisions_of(self._options).find(str(batchId)) is None:
            self._roll_back(halves_of(messages))

    def _roll_back(self, halves: HalfMessages) -> None:
        if len(halves):
            with shared_queue(self._options.access) as queue:
                cast("RocketMQQueue", queue).halves.roll_back(halves)

    @staticmethod
    def _check_checkpoint(options: WriteOptions) -> None:
        # Spark has written to the checkpoint by now.
        if options.transaction_location is None and options.checkpoint is not None:
            folder = open_folder(options.checkpoint)
            if isinstance(folder, LocalFolder) and not folder.names():
                raise UsageError(
                    f"The checkpoint {options.checkpoint} is not on a disk of the driver.",
                    hint="Give its URI, such as hdfs://…, or set transactionLocation.",
                )


class TransactionalBatchSink(BatchSink):
    """`df.write` with `transactional=true`. Spark sends this object to tasks and to `commit`."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        check(schema, options)
        decisions_of(options)
        self._group = options.producer_group or GROUP_PREFIX + self._query

    # Spark's own Arrow writers narrow the argument in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Send the rows of a task as half messages."""
        try:
            return prepared(iterator, self._options, self._query, self._group)
        finally:
            self._leave()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Finish the decisions of writes that died; then decide and commit."""
        decisions = decisions_of(self._options)
        with shared_queue(self._options.access) as queue:
            coordinator = Coordinator(cast("RocketMQQueue", queue).halves, decisions)
            for name in [one for one in decisions.names() if not one.isdecimal()]:
                coordinator.finish(name)
                decisions.forget(name)
            coordinator.commit(self._query, halves_of(messages))
        decisions.forget(self._query)
        self._leave()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll back, unless `commit` has decided and could not finish."""
        if decisions_of(self._options).find(self._query) is None:
            halves = halves_of(messages)
            with shared_queue(self._options.access) as queue:
                cast("RocketMQQueue", queue).halves.roll_back(halves)
        self._leave()

    def _leave(self) -> None:
        with shared_queue(self._options.access) as queue:
            cast("RocketMQQueue", queue).halves.leave(self._group)
