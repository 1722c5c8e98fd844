"""The client of a TubeMQ cluster: makes producers, consumers and readers that share connections."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

from coherer import limits
from coherer._client.engine.arguments import checked
from coherer._client.engine.lifecycle import BaseClient
from coherer._client.engine.options import options_of
from coherer._client.engine.present import PresentOffsets
from coherer._client.tubemq.cluster import ClientOptions, Cluster
from coherer._client.tubemq.consumer import Consumer
from coherer._client.tubemq.options import ConsumerOptions, Listener, Start, Topics
from coherer._client.tubemq.producer import Producer
from coherer._client.tubemq.quality import QualityRules
from coherer._client.tubemq.reader import Reader
from coherer._client.tubemq.time_search import first_since
from coherer._client.tubemq.topics import TopicCatalog
from coherer._common.renamed import ByPartition, selected
from coherer._wire.tubemq.names import BrokerInfo, Partition

# Few programs administrate.
if TYPE_CHECKING:
    from coherer._client.tubemq.administration.admin import Admin


class ConsumerKeywords(TypedDict, total=False):
    """The keywords of `Client.consumer`; see `ConsumerOptions`."""

    start: Start
    poll_ms: int
    empty_ms: int
    release_ms: int
    prefetch_bytes: int
    on_assigned: Listener | None
    on_revoked: Listener | None


@checked
class Client(BaseClient):
    """A client of a TubeMQ cluster. Made by `coherer.connect`; use it with `async with`.

    It belongs to one event loop and one process. Connections are opened when they are needed, and
    shared by all producers, consumers and readers of the client.

    ```python
    async with coherer.connect("tubemq://127.0.0.1:8715") as client:
        async with client.producer("flights") as producer:
            receipt = await producer.send(coherer.Message("flights", b"hello"))
        async with client.consumer("readers", "flights", start="earliest") as consumer:
            async for message in consumer:
                print(message.body)
    ```

    Args:
        options: addresses and more.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._cluster = Cluster(options)
        super().__init__(self._cluster.pool)
        self._catalog: TopicCatalog | None = None

    def __repr__(self) -> str:
        return f"<Client of {self._url}>"

    @property
    def _url(self) -> str:
        hosts = ",".join(f"{host}:{port}" for host, port in self._options.addresses)
        return f"tubemq://{hosts}"

    @property
    def options(self) -> ClientOptions:
        """The options."""
        return self._options

    def producer(
        self,
        *topics: str,
        window: int = 5_000,
        window_bytes: int = limits.WINDOW_BYTES_DEFAULT,
        timeout_ms: int | None = None,
        rules: QualityRules | None = None,
    ) -> Producer:
        """Make a producer.

        Args:
            topics: published at the start; others are published with their first message.
            window: maximum number of messages in flight.
            window_bytes: maximum number of bytes in flight.
            timeout_ms: how long a message waits for its receipt; the client's timeout when None.
            rules: when brokers are avoided.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        self._cluster.pool.check()
        producer = Producer(
            self._cluster,
            topics,
            window=window,
            window_bytes=window_bytes,
            timeout_ms=timeout_ms,
            rules=rules,
        )
        self._made[producer] = None
        return producer

    def consumer(self, group: str, topics: Topics, **options: Unpack[ConsumerKeywords]) -> Consumer:
        """Make a consumer.

        Args:
            group: the group; its members share the partitions of its topics, and all of them must
                have the same topics and filters.
            topics: a topic, several, or a mapping of topics to tags.
            options: see `ConsumerOptions`.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        self._cluster.pool.check()
        consumer = Consumer(
            self._cluster,
            group,
            topics,
            options_of(ConsumerOptions, options),
            find=self._find,
        )
        self._made[consumer] = None
        return consumer

    def reader(
        self,
        partition: Partition,
        offset: int,
        *,
        end: int | None = None,
        columns: bool = False,
    ) -> Reader:
        """Make a reader of a range of one partition, without a group.

        Args:
            partition: one of `partitions`.
            offset: where to begin.
            end: one after the last offset to read; the end of the partition at the start when
                None.
            columns: you read batches as columns, with `MessageBatch.to_arrow`. A Coherer node then
                sends records as they are stored, which is several times as fast. This needs the
                extra `arrow`.

        Raises:
            UsageError: the range is invalid.
            ClosedError, ForkedError: the client cannot be used here.
        """
        reader = Reader(
            self._topics(), partition, offset, end, self._options.timeout_ms, columns=columns
        )
        self._made[reader] = None
        return reader

    async def partitions(self, topic: str) -> list[Partition]:
        """The readable partitions of a topic, sorted.

        Raises:
            RefusedError: the topic does not exist, or has no readable partition.
            UnavailableError: no master could be reached.
        """
        return await self._topics().partitions(topic)

    async def offsets(self, topic: str) -> dict[Partition, tuple[int, int]]:
        """The offsets of a topic's partitions at the brokers.

        Brokers that cannot be read now are left out; `unreadable_brokers` returns them.

        Returns:
            By partition, the oldest offset and one after the newest. Offsets are bytes of an index
            with Java's brokers, and message numbers with Coherer's.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a server could not be reached.
        """
        return await self._topics().offsets(topic)

    async def _present_offsets(self, topic: str) -> PresentOffsets[Partition]:
        """The offsets at the brokers that answer."""
        return await self._topics().present_offsets(topic)

    async def offsets_since(
        self,
        topic: str,
        time: datetime,
        *,
        partitions: Collection[Partition | tuple[str, int]] | None = None,
    ) -> dict[Partition, int]:
        """Find the offsets of the first messages at a time or later.

        Coherer's brokers search by the time when they stored a message. With Java's brokers the
        minute of the message time counts, which the producers must have set. The number of reads
        for this search grows with the logarithm of the number of messages.

        Args:
            topic: the topic.
            time: a naive time is local.
            partitions: the partitions to look up; None for all. Tuples are deprecated.

        Returns:
            The offset by partition; the offset after the newest message if all messages are older.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a server could not be reached.
            UsageError: the messages of a Java broker have no time.
        """
        catalog, timeout_ms = self._topics(), self._options.timeout_ms
        wanted = selected(await catalog.partitions(topic), partitions)
        found = await asyncio.gather(
            *(first_since(catalog, one, time, timeout_ms) for one in wanted)
        )
        return ByPartition(zip(wanted, found, strict=True))

    async def unreadable_brokers(self, topic: str) -> list[BrokerInfo]:
        """The brokers of a topic that cannot be read now.

        They are down, or do not accept consumers.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: no master could be reached.
        """
        return await self._topics().unreadable_brokers(topic)

    def admin(self, token: str | None = None) -> Admin:
        """Administration of the cluster over HTTP.

        Its address is the option `admin` of `connect`, or the one that the master reports. Java's
        masters do not report it; theirs is expected at port 8080. Before a change, the server at
        that address must prove that it belongs to this cluster.

        Args:
            token: the master's confModAuthToken (`coherer serve --admin-token`); only changes
                need it. None for Java's default; a cluster with accounts needs the client's account
                instead.
        """
        from coherer._client.tubemq.administration.admin import Admin
        from coherer._client.tubemq.administration.calls import AUTHOR, identify

        self._cluster.pool.check()
        options = self._options
        return Admin(
            options.admin,
            token,
            user=options.user or AUTHOR,
            password=options.password,
            timeout_ms=options.timeout_ms,
            cluster=self._url,
            check=self._cluster.pool.check,
            identify=lambda: identify(self._cluster),
        )

    async def _find(
        self, partition: Partition, at: datetime | Literal["earliest", "latest"]
    ) -> int:
        """The offset of a time or an end of a partition."""
        topic = partition.topic
        if isinstance(at, datetime):
            return (await self.offsets_since(topic, at, partitions=[partition]))[partition]
        low, high = (await self.offsets(topic))[partition]
        return low if at == "earliest" else high

    async def _disconnect(self) -> None:
        if self._catalog is not None:
            await self._catalog.close()
            self._catalog = None
        await self._cluster.pool.close()

    def _topics(self) -> TopicCatalog:
        self._cluster.pool.check()
        if self._catalog is None:
            self._catalog = TopicCatalog(self._cluster)
        return self._catalog
