"""The client without asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from coherer import limits
from coherer._client.tubemq.client import Client as AsyncClient
from coherer._client.tubemq.client import ConsumerKeywords
from coherer._client.tubemq.options import Topics
from coherer._client.tubemq.routing import QualityRules
from coherer._wire.tubemq.names import BrokerInfo, Partition
from coherer.blocking.base import BaseClient
from coherer.blocking.consumer import Consumer
from coherer.blocking.producer import Producer
from coherer.blocking.reader import Reader

if TYPE_CHECKING:
    from coherer.blocking.admin import Admin


class Client(BaseClient[AsyncClient]):
    """A client of a TubeMQ cluster. Made by `coherer.blocking.connect`; use it with `with`."""

    def producer(
        self,
        *topics: str,
        window: int = 5_000,
        window_bytes: int = limits.WINDOW_BYTES_DEFAULT,
        timeout_ms: int | None = None,
        rules: QualityRules | None = None,
    ) -> Producer:
        """A producer.

        Args:
            topics: published at the start; others are at their first message.
            window: how many messages may be under way.
            window_bytes: and how many bytes.
            timeout_ms: how long a message waits for its receipt; the client's timeout when None.
            rules: when brokers are left out.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        inner = self._portal.do(
            lambda: self._client.producer(
                *topics,
                window=window,
                window_bytes=window_bytes,
                timeout_ms=timeout_ms,
                rules=rules,
            )
        )
        return Producer(self._portal, inner)

    def consumer(self, group: str, topics: Topics, **options: Unpack[ConsumerKeywords]) -> Consumer:
        """A consumer.

        Args:
            group: the group; its members share the partitions of its topics, and all of them name
                the same topics and filters.
            topics: a topic, several, or a mapping of topics to the tags that are wanted of each.
            options: see `coherer._client.tubemq.options.ConsumerOptions`.

        Raises:
            UsageError: an option makes no sense.
            ClosedError, ForkedError: the client cannot be used here.
        """
        inner = self._portal.do(lambda: self._client.consumer(group, topics, **options))
        return Consumer(self._portal, inner)

    def reader(self, partition: Partition, offset: int, *, end: int | None = None) -> Reader:
        """A reader of a range of one partition, which no group notices.

        Args:
            partition: one of `partitions`.
            offset: where to begin.
            end: the offset behind the last to read; the end of the partition at the start when
                None.

        Raises:
            UsageError: the range makes no sense.
            ClosedError, ForkedError: the client cannot be used here.
        """
        inner = self._portal.do(lambda: self._client.reader(partition, offset, end=end))
        return Reader(self._portal, inner)

    def partitions(self, topic: str) -> list[Partition]:
        """The partitions of a topic that can be read, sorted.

        Raises:
            RefusedError: there are none, or the topic does not exist.
            UnavailableError: no master could be reached.
        """
        return self._portal.call(lambda: self._client.partitions(topic))

    def offsets(self, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
        """What the brokers hold of a topic; see `coherer._client.Client.offsets`.

        Returns:
            Broker id and partition number, to the oldest offset and the one behind the newest.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a server could not be reached.
        """
        return self._portal.call(lambda: self._client.offsets(topic))

    def away(self, topic: str) -> list[BrokerInfo]:
        """The brokers that hold a part of a topic which cannot be read now.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: no master could be reached.
        """
        return self._portal.call(lambda: self._client.away(topic))

    def admin(self, token: str | None = None) -> Admin:
        """Administration of the cluster over HTTP.

        It is where the option `admin` of `connect` says, or else where the master says; see
        `coherer._client.tubemq.client.Client.admin`.

        Args:
            token: the master's confModAuthToken (`coherer serve --admin-token`); only changes
                need it.
        """
        from coherer.blocking.admin import Admin  # brings an HTTP library along

        return Admin(self._portal, self._client.admin(token))
