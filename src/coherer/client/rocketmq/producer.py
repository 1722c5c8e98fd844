"""The producer of RocketMQ.

Theory: routes come from the instance, which keeps them fresh; each broker's master has a lane
(`sends`), each topic a selector (`selection`) that takes its queues in turn; all of that is the
`outbox`. A window bounds what is under way. A message that did not arrive, or that one broker
refused, is tried with another (`retries`); so it may come twice, as with Java's producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self, cast, overload

from coherer.client.outcomes import (
    Bulk,
    CallbackSink,
    FutureSink,
    Outcome,
    SendReport,
    Sink,
)
from coherer.client.rocketmq.instance import Instance
from coherer.client.rocketmq.outbox import NOTHING, Outbox
from coherer.client.rocketmq.producer_options import ProducerOptions
from coherer.client.rocketmq.selection import Key
from coherer.errors import CohererError, UsageError, WindowFullError
from coherer.message import Message, Receipt
from coherer.rocketmq.batches import encode_batch, item_bytes, split_by_size
from coherer.rocketmq.messages import RocketReceipt, outgoing
from coherer.rocketmq.names import Queue

YIELD_EVERY: Final = 256
"""Messages encoded before others get a turn and what is encoded leaves."""


class Producer:
    """Sends messages. Made by `Client.producer`; use it with `async with`.

    Args:
        instance: the way to the cluster.
        topics: published at the start; others are at their first message.
        options: see `ProducerOptions`.
    """

    def __init__(
        self, instance: Instance, topics: Iterable[str] = (), options: ProducerOptions | None = None
    ) -> None:
        self._instance = instance
        self._options = options or ProducerOptions()
        self._first = tuple(dict.fromkeys(topics))
        self._outbox = Outbox(instance, self._options)
        self._window = self._outbox.window
        self._loop: asyncio.AbstractEventLoop
        self._state = "new"

    def __repr__(self) -> str:
        topics = ", ".join(self._outbox.topics) or "no topic yet"
        return f"<Producer of {topics}: {self._state}, {self._window.used} under way>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    @property
    def topics(self) -> frozenset[str]:
        """The published topics."""
        return self._outbox.topics

    @property
    def in_flight(self) -> int:
        """How many messages have no receipt yet; a batch counts as one."""
        return self._window.used

    @property
    def window(self) -> int:
        """How many messages may be under way."""
        return self._window.limit

    @property
    def full(self) -> bool:
        """Whether `submit` would be refused."""
        return self._window.full

    async def start(self) -> None:
        """Register and publish the first topics; returns when the producer can send.

        Raises:
            UnavailableError: no name server, or no broker of a topic, could be reached in time.
            RefusedError: a topic does not exist and no broker creates topics.
        """
        self._instance.pool.check()
        if self._state != "new":
            raise UsageError("A producer is started once.")
        self._loop = asyncio.get_running_loop()
        self._state = "starting"
        try:
            await self._outbox.open()
            self._state = "open"
            if self._first:
                await self.publish(*self._first)
        except BaseException:
            await self.close()
            raise

    async def publish(self, *topics: str) -> None:
        """Find out where topics are; returns when messages to them can be sent.

        Raises:
            RefusedError: a topic does not exist and no broker creates topics; code 17.
            UnavailableError: no name server, or no broker of a topic, could be reached in time.
        """
        self._check()
        for topic in topics:
            await self._outbox.publish(topic)

    async def send(
        self,
        message: Message,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
    ) -> RocketReceipt:
        """Send one message and wait for its receipt.

        Args:
            message: what to send.
            order_by: messages of one key go to one queue, in order; sent once.
            queue: this queue and no other; sent once.
            delay_level: the broker keeps the message back: by default level 1 is 1 s, 3 is 10 s, 18
                is 2 h.

        Raises:
            UsageError: the message cannot be sent as it is.
            RefusedError: the brokers refused it.
            DisconnectedError, RequestTimeoutError: it may or may not be stored.
            UnavailableError: no broker could be reached; it was not sent.
        """
        if not self._outbox.publishes(message.topic):
            await self.publish(message.topic)
        if self._window.full:
            await self._window.room()
        return await self.submit(message, order_by=order_by, queue=queue, delay_level=delay_level)

    @overload
    def submit(
        self,
        message: Message,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
    ) -> asyncio.Future[RocketReceipt]: ...

    @overload
    def submit(
        self,
        message: Message,
        *,
        callback: Callable[[Outcome], object],
        order_by: Key | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
    ) -> None: ...

    def submit(
        self,
        message: Message,
        *,
        callback: Callable[[Outcome], object] | None = None,
        order_by: Key | None = None,
        queue: Queue | None = None,
        delay_level: int = 0,
    ) -> asyncio.Future[RocketReceipt] | None:
        """Send one message and do not wait.

        Args:
            message: of a topic that is published already.
            callback: gets the receipt or the error, instead of the future.
            order_by: see `send`.
            queue: see `send`.
            delay_level: see `send`.

        Returns:
            A future of the receipt; None with a callback. A future that fails and is never
            awaited is reported by asyncio's log.

        Raises:
            WindowFullError: too many are under way; `await producer.ready()` before.
            UsageError: the message cannot be sent as it is.
        """
        self._check()
        if self._window.full:
            raise WindowFullError(
                f"{self._window.used} messages of {self._window.used_bytes} bytes are under way.",
                hint="`await producer.ready()` before each `submit`.",
            )
        sink: Sink
        future: asyncio.Future[RocketReceipt] | None = None
        if callback is not None:
            sink = CallbackSink(callback)
        else:
            future = self._loop.create_future()
            sink = FutureSink(cast("asyncio.Future[Receipt]", future))
        if order_by is None and queue is None and not delay_level:
            self._outbox.post(message, sink)
        else:
            system = {"DELAY": str(delay_level)} if delay_level else NOTHING
            self._outbox.post(message, sink, order_by=order_by, queue=queue, system=system)
        return future

    async def ready(self) -> None:
        """Wait until there is room in the window."""
        self._check()
        await self._window.room()

    async def flush(self) -> None:
        """Wait until every message under way has its receipt or its error."""
        await self._window.empty()

    async def send_many(self, messages: Iterable[Message], *, receipts: bool = False) -> SendReport:
        """Send many messages, each for itself, with many under way at a time.

        Args:
            messages: taken one by one as there is room in the window; topics that are not
                published yet are.
            receipts: keep them all, for the report.

        Returns:
            What became of them, when that is known of each.

        Raises:
            CohererError: a topic could not be published. What was sent before is sent.
        """
        bulk = self.bulk(receipts=receipts)
        await bulk.add(messages)
        return await bulk.finish()

    def bulk(self, *, receipts: bool = False) -> Bulk:
        """Begin to send many messages that come bit by bit, with one report in the end.

        Args:
            receipts: keep them all, for the report.
        """
        self._check()
        return Bulk(self, receipts=receipts)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
    ) -> list[RocketReceipt]:
        """Send messages of one topic together, the fastest way: all to one queue, in order.

        Args:
            messages: of one topic. More than fit into one request (`max_bytes`) are sent in
                several, one after the other.
            order_by: see `send`.
            queue: see `send`.

        Returns:
            A receipt for each request. Its ids are those of all its messages, joined by commas, and
            its offset is the first's.

        Raises:
            UsageError: there is none, or they are of several topics.
            CohererError: see `send`; what was sent before is sent.
        """
        topic = _topic_of(messages)
        if not self._outbox.publishes(topic):
            await self.publish(topic)
        ids = [self._outbox.ids.next() for _ in messages]
        parcels = [
            outgoing(message, unique_id=unique_id, compress_from_bytes=0)
            for message, unique_id in zip(messages, ids, strict=True)
        ]
        receipts: list[RocketReceipt] = []
        sizes = [item_bytes(parcel) for parcel in parcels]
        for part in split_by_size(sizes, self._options.max_bytes):
            await self.ready()
            place, tries = self._outbox.choose(topic, order_by, queue)
            body = encode_batch(parcels[part])
            future: asyncio.Future[Receipt] = self._loop.create_future()
            joined = ",".join(ids[part])
            self._outbox.post_batch(
                messages[int(part.start)], body, joined, FutureSink(future), place, tries
            )
            receipts.append(cast("RocketReceipt", await future))
        return receipts

    async def send_oneway(
        self, message: Message, *, order_by: Key | None = None, queue: Queue | None = None
    ) -> None:
        """Send one message and never learn what became of it.

        It waits while the connection cannot take more; a broker with too much to do drops such
        messages without a word.

        Args:
            message: what to send.
            order_by: see `send`.
            queue: see `send`.

        Raises:
            UsageError: the message cannot be sent as it is.
            UnavailableError: no broker could be reached; it was not sent.
        """
        if not self._outbox.publishes(message.topic):
            await self.publish(message.topic)
        self._check()
        await self._outbox.tell(message, order_by, queue)

    async def post_many(self, messages: Iterable[Message], bulk: Bulk) -> None:
        """Post messages as there is room in the window; see `Bulk.add`."""
        self._check()
        window, publishes, post = self._window, self._outbox.publishes, self._outbox.post
        posted = 0  # since others had a turn
        try:
            for message in messages:
                if not publishes(message.topic):
                    bulk.posted(posted)
                    posted = 0
                    await self.publish(message.topic)
                try:
                    post(message, bulk)
                    posted += 1
                except CohererError as error:
                    bulk.refused(message, error)
                if posted >= YIELD_EVERY or window.full:
                    bulk.posted(posted)
                    posted = 0
                    await (window.room() if window.full else asyncio.sleep(0))
        finally:
            bulk.posted(posted)

    def post(self, message: Message, sink: Sink) -> None:
        """Send a message and have `sink` told; does not look at the window. For facades.

        Raises:
            UsageError: the message cannot be sent as it is, or its topic is not published.
            UnavailableError: the topic has no queue any more.
        """
        self._outbox.post(message, sink)

    def publishes(self, topic: str) -> bool:
        """Whether messages of a topic can be submitted."""
        return self._outbox.publishes(topic)

    async def close(self) -> None:
        """Wait for what is under way, then leave. Calling it again does nothing."""
        if self._state == "closed":
            return
        self._state = "closed"
        await self._outbox.close()

    # -- inside

    def _check(self) -> None:
        if self._state == "new":
            raise UsageError("The producer is not started.", hint="Use `async with`.")
        self._outbox.check()


def _topic_of(messages: Sequence[Message]) -> str:
    """The one topic of a batch."""
    topics = {message.topic for message in messages}
    if len(topics) != 1:
        raise UsageError(f"A batch has messages of one topic, not of {len(topics)}.")
    topic = topics.pop()
    if topic.startswith("%RETRY%"):
        raise UsageError("Messages of a retry topic are not sent in batches.", topic=topic)
    return topic
