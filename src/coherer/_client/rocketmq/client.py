"""The client of a RocketMQ cluster: makes producers, consumers and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

from coherer._client.engine.arguments import checked
from coherer._client.engine.lifecycle import BaseClient
from coherer._client.engine.options import options_of
from coherer._client.engine.present import PresentOffsets, present_offsets
from coherer._client.rocketmq.administration.admin import Admin
from coherer._client.rocketmq.consuming import broker_requests
from coherer._client.rocketmq.consuming.broker_rpc import BrokerRpc
from coherer._client.rocketmq.consuming.consumer import Consumer, PullConsumer
from coherer._client.rocketmq.consuming.membership import Memberships
from coherer._client.rocketmq.consuming.reader import Reader, first_since
from coherer._client.rocketmq.faults import FaultRules
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.observers import Observer
from coherer._client.rocketmq.options import (
    ClientOptions,
    ConsumerOptions,
    Listener,
    Model,
    ProducerOptions,
    Topics,
)
from coherer._client.rocketmq.producing.producer import Producer, make_tracer
from coherer._client.rocketmq.start_position import Edge, Start
from coherer._client.rocketmq.transactions import Check
from coherer._common.moments import floor_ms
from coherer._common.renamed import ByPartition, selected
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.allocate import Strategy
from coherer._wire.rocketmq.codes import ResponseCode, refused
from coherer._wire.rocketmq.names import Queue
from coherer.errors import RefusedError


class ProducerKeywords(TypedDict, total=False):
    """The keywords of `Client.producer`; see `ProducerOptions`."""

    group: str
    window: int
    window_bytes: int
    timeout_ms: int | None
    retries: int
    retry_lost: bool
    retry_codes: Collection[int]
    rules: FaultRules | None
    compress_from_bytes: int
    compress_level: int
    max_bytes: int
    wait: bool
    trace: bool | str
    observers: tuple[Observer, ...] | list[Observer]
    check: Check | None


class ConsumerKeywords(TypedDict, total=False):
    """The keywords of `Client.consumer` and `Client.pull_consumer`; see `ConsumerOptions`."""

    start: Start
    model: Model
    orderly: bool
    pull_messages: int
    batch_messages: int
    queue_messages: int
    queue_bytes: int
    queue_span: int
    prefetch_bytes: int
    poll_ms: int
    max_attempts: int
    consume_ms: int
    suspend_ms: int
    release_ms: int
    strategy: Strategy
    rebalance_ms: int
    persist_ms: int
    offsets: Path | None
    on_assigned: Listener | None
    on_revoked: Listener | None
    trace: bool | str


@checked
class Client(BaseClient):
    """A client of a RocketMQ cluster. Made by `coherer.connect`; use it with `async with`.

    It belongs to one event loop and one process. Connections are opened when they are needed, and
    shared by all producers, consumers and readers of the client.

    ```python
    async with coherer.connect("rocketmq://127.0.0.1:9876") as client:
        async with client.producer("flights") as producer:
            receipt = await producer.send(coherer.Message("flights", b"hello", tag="UA"))
        async with client.consumer("readers", "flights", start="earliest") as consumer:
            async for message in consumer:
                print(message.body)
    ```

    Args:
        options: the addresses, and more.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._memberships: Memberships = {}
        self._instance = Instance(options, self._memberships)
        super().__init__(self._instance.pool)
        broker_requests.install(self._instance, self._memberships)
        self._rpc = BrokerRpc(self._instance)

    def __repr__(self) -> str:
        return f"<Client of rocketmq://{self._options.servers}>"

    @property
    def options(self) -> ClientOptions:
        """The options."""
        return self._options

    def producer(self, *topics: str, **options: Unpack[ProducerKeywords]) -> Producer:
        """Make a producer.

        Args:
            topics: published at the start; others are published with their first message.
            options: see `ProducerOptions`.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        self._instance.pool.check()
        producer = Producer(self._instance, topics, options_of(ProducerOptions, options))
        self._made[producer] = None
        return producer

    def consumer(self, group: str, topics: Topics, **options: Unpack[ConsumerKeywords]) -> Consumer:
        """Make a consumer.

        Args:
            group: the group; its members share the queues of its topics, and all of them must have
                the same topics and filters. A client has at most one consumer of a group.
            topics: a topic, several, or a mapping of topics to filters: tags, or
                `coherer.rocketmq.Sql92`.
            options: see `ConsumerOptions`.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        self._instance.pool.check()
        consumer = Consumer(
            self._instance,
            self._memberships,
            group,
            topics,
            options_of(ConsumerOptions, options),
            partial(make_tracer, self._instance),
        )
        self._made[consumer] = None
        return consumer

    def pull_consumer(
        self,
        group: str,
        topics: Topics = (),
        *,
        auto_commit: bool = True,
        **options: Unpack[ConsumerKeywords],
    ) -> PullConsumer:
        """Make a consumer that polls, and can go to any offset.

        Args:
            group: the group whose offsets are used.
            topics: the topics to share with the group; nothing if `assign` is used.
            auto_commit: whether a poll commits the messages of the polls before it.
            options: see `ConsumerOptions`.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        self._instance.pool.check()
        consumer = PullConsumer(
            self._instance,
            self._memberships,
            group,
            topics,
            options_of(ConsumerOptions, options),
            auto_commit=auto_commit,
        )
        self._made[consumer] = None
        return consumer

    def reader(
        self, partition: Queue, offset: int, *, end: int | None = None, masters_only: bool = False
    ) -> Reader:
        """Make a reader of a range of one queue, without a group.

        A slave may serve messages, but only the master decides that a range contains no more.

        Args:
            partition: one of `partitions`.
            offset: where to begin.
            end: one after the last offset to read; the end of the queue at the start when None.
            masters_only: read nothing from slaves.

        Raises:
            UsageError: the range is invalid.
            ClosedError, ForkedError: the client cannot be used here.
        """
        self._instance.pool.check()
        timeout_ms = self._options.timeout_ms
        reader = Reader(
            self._rpc, partition, offset, end, timeout_ms=timeout_ms, masters_only=masters_only
        )
        self._made[reader] = None
        return reader

    async def partitions(self, topic: str) -> list[Queue]:
        """The readable queues of a topic, sorted.

        Raises:
            RefusedError: the topic does not exist, or has no readable queue.
            UnavailableError: no name server could be reached.
        """
        self._instance.pool.check()
        await self._instance.start()
        full = names.with_namespace(self._options.namespace, topic)
        queues = list((await self._instance.routes.look_up(full)).readable)
        if not queues:
            raise refused(ResponseCode.TOPIC_NOT_EXIST, "The topic has no queues.", topic=topic)
        return queues

    async def offsets(self, topic: str) -> dict[Queue, tuple[int, int]]:
        """The offsets of a topic's queues at the masters of its brokers.

        Slaves are not asked while a master is down, because their copies may be behind.

        Returns:
            By queue, the oldest offset and one after the newest.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a server could not be reached.
        """
        return (await self._present_offsets(topic)).whole()

    async def _present_offsets(self, topic: str) -> PresentOffsets[Queue]:
        """The offsets at the masters that answer."""
        queues = await self.partitions(topic)

        async def ends(queue: Queue) -> tuple[int, int]:
            oldest, end = await asyncio.gather(
                self._rpc.resolve(queue, Edge.OLDEST, masters_only=True),
                self._rpc.resolve(queue, Edge.END, masters_only=True),
            )
            return max(oldest, 0), max(end, oldest, 0)

        found = await asyncio.gather(*map(ends, queues), return_exceptions=True)
        return present_offsets(queues, found)

    async def offsets_since(
        self,
        topic: str,
        time: datetime,
        *,
        partitions: Collection[Queue | tuple[str, int]] | None = None,
    ) -> dict[Queue, int]:
        """The offsets of the first messages that were stored at a time or later.

        Args:
            topic: the topic.
            time: a naive time is local.
            partitions: the queues to look up; None for all. Tuples are deprecated.

        Returns:
            The offset by queue; one after the newest if all messages are older.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a server could not be reached.
        """
        time_ms = floor_ms(time)
        bounds = await self.offsets(topic)
        queues = selected(bounds, partitions)
        found = await asyncio.gather(
            *(first_since(self._rpc, queue, *bounds[queue], time_ms) for queue in queues)
        )
        return ByPartition(zip(queues, found, strict=True))

    async def exists(self, topic: str) -> bool:
        """Whether a topic exists.

        Raises:
            UnavailableError: no name server could be reached.
        """
        try:
            await self.partitions(topic)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return False
            raise
        return True

    def admin(self) -> Admin:
        """Administration of the cluster, over the same connections."""
        self._instance.pool.check()
        return Admin(self._instance)

    async def _disconnect(self) -> None:
        await self._instance.close()
