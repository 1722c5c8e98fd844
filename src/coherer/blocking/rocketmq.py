"""The client, the producer and transactions of RocketMQ without asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, overload

from coherer._client.engine.outcomes import Outcome
from coherer._client.rocketmq.client import ConsumerKeywords, ProducerKeywords
from coherer._client.rocketmq.client import RocketClient as AsyncClient
from coherer._client.rocketmq.consumer_options import Topics
from coherer._client.rocketmq.producer import Producer as AsyncProducer
from coherer._client.rocketmq.producer_options import Verdict
from coherer._client.rocketmq.selection import Key
from coherer._client.rocketmq.timing import when_of
from coherer._client.rocketmq.transactions import Transaction as AsyncTransaction
from coherer._wire.rocketmq.delivery import MessageBatch
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer.blocking.base import BaseClient
from coherer.blocking.portal import Portal
from coherer.blocking.reading import BaseReader
from coherer.blocking.rocketmq_consumer import RocketConsumer, RocketPullConsumer
from coherer.blocking.sending import BaseProducer, Post
from coherer.message import Message

if TYPE_CHECKING:
    from coherer.blocking.rocketmq_admin import RocketAdmin


class RocketProducer(BaseProducer[AsyncProducer, SendReceipt]):
    """Sends messages. Made by `RocketClient.producer`; use it with `with`, from any threads."""

    @property
    def group(self) -> str:
        """The producer group."""
        return self._inner.group

    def send(
        self,
        message: Message,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> SendReceipt:
        """Send one message and wait for its receipt.

        Args:
            message: what to send.
            order_by: messages of one key go to one queue, in order; sent once.
            queue: this queue and no other; sent once.
            delay_level: the broker keeps the message back: by default level 1 is 1 s, 3 is 10 s, 18
                is 2 h.
            deliver_at: the broker keeps the message until then; a naive time is local. Up to three
                days ahead, exact to 0.1 s with Coherer's broker and to 1 s with RocketMQ 5.x. Sent
                once.
            delay: the same, counted from the message's arrival at the broker. Brokers before 5.0
                only have delay levels: there it has to be exactly the delay of one.

        Raises:
            UsageError: the message cannot be sent as it is, or a broker before 5.0 has no such
                delay.
            RefusedError: the brokers refused it.
            DisconnectedError, RequestTimeoutError: it may or may not be stored.
            UnavailableError: no broker could be reached; it was not sent.
        """
        return self._send(message, self._how(order_by, queue, delay_level, deliver_at, delay))

    @overload
    def submit(
        self,
        message: Message,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> Future[SendReceipt]: ...

    @overload
    def submit(
        self,
        message: Message,
        *,
        callback: Callable[[Outcome], object],
        order_by: Key | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> None: ...

    def submit(
        self,
        message: Message,
        *,
        callback: Callable[[Outcome], object] | None = None,
        order_by: Key | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay: timedelta | None = None,
    ) -> Future[SendReceipt] | None:
        """Send one message; waits only while the window is full or the topic is not published.

        Args:
            message: what to send.
            callback: gets the receipt or the error, in the loop's thread, instead of the future.
            order_by: see `send`.
            queue: see `send`.
            delay_level: see `send`.
            deliver_at: see `send`.
            delay: see `send`.

        Returns:
            A future of the receipt; None with a callback.
        """
        return self._submit(
            message, callback, self._how(order_by, queue, delay_level, deliver_at, delay)
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together; see the asyncio producer's.

        Raises:
            UsageError: there is none, or they are of several topics.
            CohererError: see `send`; what was sent before is sent.
        """
        return self._portal.call(
            lambda: self._inner.send_batch(messages, order_by=order_by, queue=queue)
        )

    def send_oneway(
        self, message: Message, *, order_by: Key | None = None, queue: Queue | None = None
    ) -> None:
        """Send one message and never learn what became of it.

        Raises:
            UsageError: the message cannot be sent as it is.
            UnavailableError: no broker could be reached; it was not sent.
        """
        self._portal.call(lambda: self._inner.send_oneway(message, order_by=order_by, queue=queue))

    def transaction(self, message: Message) -> RocketTransaction:
        """A message that consumers get when your own work is done; use it with `with`.

        Raises:
            UsageError: the producer has no check function.
        """
        inner = self._portal.do(lambda: self._inner.transaction(message))
        return RocketTransaction(self._portal, inner)

    def request(self, message: Message, *, timeout_ms: int | None = None) -> StoredMessage:
        """Send a message that somebody replies to, and wait for the reply.

        Raises:
            RequestTimeoutError: nobody replied in time.
            CohererError: see `send`.
        """
        return self._portal.call(lambda: self._inner.request(message, timeout_ms=timeout_ms))

    def reply(self, request: StoredMessage, reply: Message | bytes) -> SendReceipt:
        """Answer a message that was sent with `request`.

        Raises:
            UsageError: the message is no request.
            RefusedError: the one who asked is not connected to the broker any more.
            CohererError: see `send`.
        """
        return self._portal.call(lambda: self._inner.reply(request, reply))

    def _how(
        self,
        order_by: Key | None,
        queue: Queue | None,
        delay_level: int,
        deliver_at: datetime | None,
        delay: timedelta | None,
    ) -> Post | None:
        when = when_of(delay_level, deliver_at, delay)
        if order_by is None and queue is None and not when:
            return None
        return partial(self._inner.post, order_by=order_by, queue=queue, when=when)


class RocketTransaction:
    """A message and the work that it belongs to. Made by `RocketProducer.transaction`; use `with`.

    Args:
        portal: the way to the event loop.
        transaction: does the work there.
    """

    def __init__(self, portal: Portal, transaction: AsyncTransaction) -> None:
        self._portal = portal
        self._transaction = transaction

    def __repr__(self) -> str:
        return repr(self._transaction)

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(lambda: self._transaction.__aexit__(kind, error, trace))

    @property
    def message(self) -> Message:
        """What is sent."""
        return self._transaction.message

    @property
    def receipt(self) -> SendReceipt | None:
        """The receipt of the half message, when it is stored."""
        return self._transaction.receipt

    @property
    def verdict(self) -> Verdict:
        """How it ended; unknown until then."""
        return self._transaction.verdict

    @property
    def id(self) -> str:
        """The message's unique id: the check function gets it as `message.unique_id`."""
        return self._transaction.id

    def begin(self) -> None:
        """Store the half message.

        Raises:
            CohererError: see `RocketProducer.send`. The transaction has not begun.
        """
        self._portal.call(self._transaction.begin)

    def commit(self) -> None:
        """Let consumers have the message.

        Raises:
            UsageError: the transaction has ended.
            UnavailableError: no answer; the check function will be asked.
            RefusedError: the broker does not know the half message.
        """
        self._portal.call(self._transaction.commit)

    def rollback(self) -> None:
        """Have the message thrown away.

        Raises:
            UsageError: the transaction has ended.
            UnavailableError: no answer; the check function will be asked.
            RefusedError: the broker does not know the half message.
        """
        self._portal.call(self._transaction.rollback)

    def leave(self) -> None:
        """Leave the end to the check function."""
        self._portal.call(self._transaction.leave)


class RocketReader(BaseReader[MessageBatch, Queue]):
    """Reads a range of one queue. Made by `RocketClient.reader`; use it with `with`."""


class RocketClient(BaseClient[AsyncClient]):
    """A client of a RocketMQ cluster. Made by `coherer.blocking.connect`; use it with `with`."""

    def producer(self, *topics: str, **options: Unpack[ProducerKeywords]) -> RocketProducer:
        """A producer.

        Args:
            topics: published at the start; others are at their first message.
            options: see `_client.rocketmq.producer_options.ProducerOptions`; functions among
                them are called in the loop's thread.

        Raises:
            UsageError: an option is out of range.
            ClosedError, ForkedError: the client cannot be used here.
        """
        inner = self._portal.do(lambda: self._client.producer(*topics, **options))
        return RocketProducer(self._portal, inner)

    def consumer(
        self, group: str, topics: Topics, **options: Unpack[ConsumerKeywords]
    ) -> RocketConsumer:
        """A consumer.

        Args:
            group: the group; its members share the queues of its topics, and all of them name the
                same topics and filters. A client has one consumer of a group.
            topics: a topic, several, or a mapping of topics to what is taken of each.
            options: see `coherer._client.rocketmq.consumer_options.ConsumerOptions`.

        Raises:
            UsageError: an option makes no sense.
            ClosedError, ForkedError: the client cannot be used here.
        """
        inner = self._portal.do(lambda: self._client.consumer(group, topics, **options))
        return RocketConsumer(self._portal, inner)

    def pull_consumer(
        self,
        group: str,
        topics: Topics = (),
        *,
        auto_commit: bool = True,
        **options: Unpack[ConsumerKeywords],
    ) -> RocketPullConsumer:
        """A consumer that asks when it wants, and can go to any offset.

        Args:
            group: the group whose offsets count.
            topics: what to share with the group; nothing when `assign` will say what to read.
            auto_commit: whether a poll commits what the polls before it gave.
            options: see `coherer._client.rocketmq.consumer_options.ConsumerOptions`.

        Raises:
            UsageError: an option makes no sense.
            ClosedError, ForkedError: the client cannot be used here.
        """
        inner = self._portal.do(
            lambda: self._client.pull_consumer(group, topics, auto_commit=auto_commit, **options)
        )
        return RocketPullConsumer(self._portal, inner)

    def reader(self, partition: Queue, offset: int, *, end: int | None = None) -> RocketReader:
        """A reader of a range of one queue, which no group notices.

        Args:
            partition: one of `partitions`.
            offset: where to begin.
            end: the offset behind the last to read; the end of the queue at the start when None.

        Raises:
            UsageError: the range makes no sense.
            ClosedError, ForkedError: the client cannot be used here.
        """
        inner = self._portal.do(lambda: self._client.reader(partition, offset, end=end))
        return RocketReader(self._portal, inner)

    def partitions(self, topic: str) -> list[Queue]:
        """The queues of a topic that can be read, sorted.

        Raises:
            RefusedError: there are none, or the topic does not exist.
            UnavailableError: no name server could be reached.
        """
        return self._portal.call(lambda: self._client.partitions(topic))

    def offsets(self, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
        """What the brokers hold of a topic; see the asyncio client's.

        Returns:
            Broker name and queue number, to the oldest offset and the one behind the newest.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a server could not be reached.
        """
        return self._portal.call(lambda: self._client.offsets(topic))

    def offsets_since(self, topic: str, time: datetime) -> dict[tuple[str, int], int]:
        """Where the messages of a topic begin that were stored at a time or later.

        Args:
            topic: the topic.
            time: with a time zone, or of the machine's.

        Returns:
            Broker name and queue number, to the offset; that behind the newest message where all
            are older.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a server could not be reached.
        """
        return self._portal.call(lambda: self._client.offsets_since(topic, time))

    def exists(self, topic: str) -> bool:
        """Whether a topic exists.

        Raises:
            UnavailableError: no name server could be reached.
        """
        return self._portal.call(lambda: self._client.exists(topic))

    def admin(self) -> RocketAdmin:
        """Administration of the cluster, over the same connections."""
        from coherer.blocking.rocketmq_admin import RocketAdmin

        return RocketAdmin(self._portal, self._client.admin())
