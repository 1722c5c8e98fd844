"""A RocketMQ cluster as Spark needs it.

Offsets count the messages of a queue, on a Coherer node and on Java's broker, so every range is
exact. Reading uses no group; `commit` sets the offsets of one, for people and tools that watch its
lag.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime

from coherer._common.places import place_of
from coherer._record.batches import PackedMessages
from coherer._record.system_topics import DLQ_PREFIX, RETRY_PREFIX
from coherer._wire.rocketmq.names import Queue
from coherer.blocking._packed import send_packed
from coherer.blocking._ranges import open_readers
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.rocketmq import Producer as RocketProducer
from coherer.blocking.rocketmq import Reader as RocketReader
from coherer.blocking.rocketmq import connect as connect_rocketmq
from coherer.errors import CohererError, UnavailableError
from coherer.message import Receipt
from coherer.rocketmq import Client as AsyncClient
from coherer.rocketmq import Reader as AsyncReader
from coherer.spark.away import Away
from coherer.spark.commits import RocketHalfQueue
from coherer.spark.offsets import Offsets, flatten, split_key
from coherer.spark.options import Access
from coherer.spark.planning import Range
from coherer.spark.queue import OpenReader
from coherer.spark.rows import SingleRow


class RocketMQQueue:
    """A `Queue` on a blocking client."""

    def __init__(self, access: Access) -> None:
        self._client = _connected(access)
        self._producer: RocketProducer | None = None
        self._halves: RocketHalfQueue | None = None
        self._away = Away(self._client, self._is_there)

    @property
    def halves(self) -> RocketHalfQueue:
        """The cluster as transactional sinks need it."""
        if self._halves is None:
            self._halves = RocketHalfQueue(self._client)
        return self._halves

    def topics(self) -> Sequence[str]:
        """All topics of the name servers, except those for retries and dead letters."""
        found = [topic.name for topic in self._client.admin().topics.list()]
        return [name for name in found if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    def bounds(
        self, topic: str, *, partial: bool = False, known: Collection[str] | None = ()
    ) -> Mapping[tuple[str, int], tuple[int, int]]:
        """The first offset and the end offset, by (broker, queue)."""
        return self._away.bounds(topic, partial=partial, known=known)

    def _is_there(self, brokers: Collection[str]) -> bool:
        """Whether the name server knows the master of one of these brokers."""
        # A slave registers no topics.
        found = self._client.admin().brokers.list(runtime=False)
        return any(one.name in brokers and one.role == "master" for one in found)

    def offsets_since(
        self, topic: str, time: datetime, partitions: Collection[tuple[str, int]] | None = None
    ) -> Mapping[tuple[str, int], int]:
        """The offset of the first message stored at a time or later, by (broker, queue)."""
        wanted = None
        if partitions is not None:
            wanted = [one for one in self._client.partitions(topic) if place_of(one) in partitions]
        found = self._client.offsets_since(topic, time, partitions=wanted)
        return {place_of(one): offset for one, offset in found.items()}

    def missing_brokers(self, topic: str) -> Sequence[str]:
        """None: name servers forget brokers that are down, and `bounds` asks the others."""
        del topic
        return ()

    def reader(self, one: Range, columns: Sequence[str]) -> RocketReader:
        """A reader for a range."""
        del columns  # batches decode only requested columns
        queue = Queue(one.topic, one.broker, one.partition)
        return self._client.reader(queue, one.start, end=one.end)

    def readers(
        self, ranges: Sequence[Range], columns: Sequence[str]
    ) -> AbstractContextManager[Sequence[OpenReader]]:
        """Open readers for some ranges."""
        del columns

        def make(client: AsyncClient) -> list[AsyncReader]:
            return [
                client.reader(Queue(one.topic, one.broker, one.partition), one.start, end=one.end)
                for one in ranges
            ]

        return open_readers(self._client, RocketReader, make)

    def places(self, topic: str) -> Sequence[tuple[str, int]]:
        """Broker and number of all queues that accept messages, which may be fewer than it has."""
        queues = self._client.admin().topics.writable_queues(topic)
        if not queues:
            hint = "`coherer topics list` shows whether the topic is writable."
            raise UnavailableError("The topic has no writable queue.", topic=topic, hint=hint)
        return [place_of(queue) for queue in queues]

    def send_packed(
        self, batches: Sequence[PackedMessages], window: int
    ) -> Sequence[Receipt | CohererError]:
        """Send batches; returns the outcome of each."""
        return send_packed(self._sender(window), batches)

    def send_singles(
        self, rows: Sequence[SingleRow], window: int
    ) -> Sequence[tuple[SingleRow, CohererError]]:
        """Send rows one by one and wait for all receipts; returns the rows that failed."""
        producer = self._sender(window)
        sent = [
            (
                row,
                producer.submit(
                    row.message,
                    queue=None if row.place is None else Queue(row.message.topic, *row.place),
                    delay_level=row.level,
                    delay=row.delay,
                ),
            )
            for row in rows
        ]
        outcomes = [(row, future.exception()) for row, future in sent]
        return [(row, error) for row, error in outcomes if isinstance(error, CohererError)]

    def _sender(self, window: int) -> RocketProducer:
        if self._producer is None or self._producer.window != window:
            # Delivery is at least once: a duplicate is detectable, and better than a failed task.
            producer = self._client.producer(window=window, retry_lost=True)
            producer.start()
            self._producer = producer
        return self._producer

    def commit(self, group: str, offsets: Offsets) -> None:
        """Set the offsets of a group."""
        queues = {Queue(topic, *split_key(key)): offset for topic, key, offset in flatten(offsets)}
        self._client.admin().groups.set_offsets(group, queues)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()


def _connected(access: Access) -> RocketClient:
    return connect_rocketmq(
        access.url,
        user=access.user,
        password=access.secret(),
        tls=access.tls_options(),
        timeout_ms=access.timeout_ms,
    )
