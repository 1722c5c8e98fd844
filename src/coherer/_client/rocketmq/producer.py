"""The producer of RocketMQ.

Theory: routes come from the instance, which keeps them fresh; each broker's master has a lane
(`sends`), each topic a selector (`selection`) that takes its queues in turn; all of that is the
`outbox`. A window bounds what is under way. A message that a broker refused or that could not
leave is tried with another (`retries`). One whose answer was lost may be stored: it is an error,
unless `retry_lost` asks for a duplicate rather than a loss, as Java's producer does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, cast, overload

from coherer._client.engine.misuse import message_topic
from coherer._client.engine.outcomes import CallbackSink, FutureSink, Outcome, Sink
from coherer._client.engine.producing import BaseProducer
from coherer._client.rocketmq.batching import item_of, joined, pack, topic_of
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import NOTHING, Link
from coherer._client.rocketmq.observers import Kind, observe
from coherer._client.rocketmq.outbox import Outbox
from coherer._client.rocketmq.producer_options import ProducerOptions, Verdict
from coherer._client.rocketmq.requests import reply_message, reply_target, request_properties
from coherer._client.rocketmq.selection import Key
from coherer._client.rocketmq.sends import SINGLE
from coherer._client.rocketmq.timing import When, when_of
from coherer._client.rocketmq.tracing import ProducerTrace, Tracer
from coherer._client.rocketmq.transactions import PREPARED, Transaction, end_header
from coherer._wire.rocketmq.batches import ITEM_BYTES, split_by_size
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage
from coherer._wire.rocketmq.names import TRACE_TOPIC, Queue
from coherer.errors import UsageError
from coherer.message import Message, Receipt

TRACE_TIMEOUT_MS: Final = 5_000
"""How long Java lets a trace message take."""

_tracers: Final = itertools.count(1)


class Producer(BaseProducer):
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
        self._outbox = Outbox(instance, self._options)
        super().__init__(instance.pool.check, self._outbox.window, topics, self._outbox.published)
        self._trace = self._traced(self._options.trace)

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    async def publish(self, *topics: str) -> None:
        """Find out where topics are; returns when messages to them can be sent.

        Raises:
            RefusedError: a topic does not exist and no broker creates topics; code 17.
            UnavailableError: no name server, or no broker of a topic, could be reached in time.
        """
        self.check()
        for topic in topics:
            await self._outbox.publish(topic)

    async def send(
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
        # What `_prepared` does; a coroutine less for each message is worth the lines.
        if self._window.full or message_topic(message) not in self._published:
            await self._prepared(message.topic)
        return await self.submit(
            message,
            order_by=order_by,
            queue=queue,
            delay_level=delay_level,
            deliver_at=deliver_at,
            delay=delay,
        )

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
    ) -> asyncio.Future[SendReceipt]: ...

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
    ) -> asyncio.Future[SendReceipt] | None:
        """Send one message and do not wait.

        Args:
            message: of a topic that is published already.
            callback: gets the receipt or the error, instead of the future.
            order_by: see `send`.
            queue: see `send`.
            delay_level: see `send`.
            deliver_at: see `send`.
            delay: see `send`.

        Returns:
            A future of the receipt; None with a callback. A future that fails and is never
            awaited is reported by asyncio's log.

        Raises:
            WindowFullError: too many are under way; `await producer.ready()` before.
            UsageError: the message cannot be sent as it is.
        """
        self.check()
        if self._window.full:
            raise self._crowded()
        sink: Sink
        future: asyncio.Future[SendReceipt] | None = None
        if callback is not None:
            sink = CallbackSink(callback)
        else:
            future = self._loop.create_future()
            sink = FutureSink(cast("asyncio.Future[Receipt]", future))
        when = when_of(delay_level, deliver_at, delay)
        if order_by is None and queue is None and when is NOTHING:
            self._outbox.post(message, sink)
        else:
            self.post(message, sink, order_by=order_by, queue=queue, when=when)
        return future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
    ) -> list[SendReceipt]:
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
        topic = topic_of(messages)
        if topic not in self._published:
            await self.publish(topic)
        ids, items = pack(messages, self._outbox.ids)
        receipts: list[SendReceipt] = []
        sizes = [ITEM_BYTES + len(body) + len(text) for _, body, _, text in items]
        for part in split_by_size(sizes, self._options.max_bytes):
            await self.ready()
            place, tries = self._outbox.choose(topic, order_by, queue)
            batch: Sequence[Message] = messages[part]
            body = joined(items[part])
            future: asyncio.Future[Receipt] = self._loop.create_future()
            sink: Sink = FutureSink(future)
            if self._outbox.observers:
                group, observers = self._outbox.group, self._outbox.observers
                batch, sink = observe(observers, batch, group, Kind.NORMAL, sink)
                body = joined(map(item_of, batch, ids[part]))
            self._outbox.post_batch(batch[0], body, ",".join(ids[part]), sink, place, tries)
            receipts.append(cast("SendReceipt", await future))
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
        if message_topic(message) not in self._published:
            await self.publish(message.topic)
        self.check()
        await self._outbox.tell(message, order_by, queue)

    def transaction(self, message: Message) -> Transaction:
        """A message that consumers get when your own work is done; use it with `async with`.

        The producer needs a check function (`check=`), which is asked about transactions whose end
        a broker has not heard of.

        Raises:
            UsageError: there is no check function.
        """
        self.check()
        if self._options.check is None:
            raise UsageError(
                "A transaction needs a producer with a check function.",
                hint="client.producer(..., check=function)",
            )
        return Transaction(self, message)

    async def request(self, message: Message, *, timeout_ms: int | None = None) -> StoredMessage:
        """Send a message that somebody replies to, and wait for the reply.

        Args:
            message: what to send.
            timeout_ms: how long to wait for the reply; the producer's timeout when None.

        Raises:
            RequestTimeoutError: nobody replied in time.
            CohererError: see `send`.
        """
        await self._prepared(message_topic(message))
        timeout_ms = timeout_ms or self._options.timeout_ms or self._instance.options.timeout_ms
        replies, client_id = self._instance.replies, self._instance.client_id
        number, future = replies.expect()
        began = self._loop.time()
        try:
            await self._post(message, request_properties(number, client_id, timeout_ms))
        except BaseException:
            replies.forget(number)
            raise
        left_ms = timeout_ms - (self._loop.time() - began) * 1000
        return await replies.wait(number, future, left_ms, message.topic)

    async def reply(self, request: StoredMessage, reply: Message | bytes) -> SendReceipt:
        """Answer a message that was sent with `request`.

        Args:
            request: the message as a consumer got it.
            reply: the answer; only its topic is not used.

        Raises:
            UsageError: the message is no request.
            RefusedError: the one who asked is not connected to the broker any more.
            CohererError: see `send`.
        """
        self.check()
        topic, system = reply_target(request)
        await self._prepared(topic)
        message = reply_message(topic, reply)
        code = int(RequestCode.SEND_REPLY_MESSAGE_V2)
        return await self._post(message, system, code=code, broker=request.broker)

    def post(
        self,
        message: Message,
        sink: Sink,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
        when: Mapping[str, str] | When = NOTHING,
    ) -> None:
        """Send a message and have `sink` told; does not look at the window. For facades.

        Raises:
            ClosedError: the producer is closed.
            UsageError: the message cannot be sent as it is, or its topic is not published.
            UnavailableError: the topic has no queue any more.
        """
        if self._state != "open":
            self.check()
        if isinstance(when, When):
            self._outbox.post_timed(message, sink, when, order_by=order_by, queue=queue)
        else:
            self._outbox.post(message, sink, order_by=order_by, queue=queue, system=when)

    # -- what transactions call

    async def send_half(self, message: Message) -> tuple[SendReceipt, Link]:
        """Send a half message; see `transaction`."""
        await self._prepared(message_topic(message))
        system = {"TRAN_MSG": "true", "PGROUP": self._outbox.group}
        receipt = await self._post(message, system, sys_flag=PREPARED)
        return receipt, await self._instance.link(self._instance.address(receipt.broker), fast=True)

    async def end(self, receipt: SendReceipt, link: Link, verdict: Verdict) -> None:
        """Tell the broker what becomes of a half message."""
        self.check()
        if not link.open:
            link = await self._instance.link(self._instance.address(receipt.broker), fast=True)
        fields = end_header(self._outbox.group, receipt, verdict).fields()
        if self._trace is not None:
            self._trace.ended(receipt, verdict, link.server)
        if verdict is Verdict.UNKNOWN:
            link.tell(RequestCode.END_TRANSACTION, fields)  # nobody answers this (2.9)
            return
        timeout_ms = self._instance.options.timeout_ms
        await link.ask(RequestCode.END_TRANSACTION, fields, timeout_ms=timeout_ms)

    # -- inside

    async def _register(self) -> None:
        await self._outbox.open()

    async def _leave(self) -> None:
        await self._outbox.close()
        if self._trace is not None:
            await self._trace.close()

    def _posting(self) -> Callable[[Message, Sink], object]:
        return self._outbox.post

    def _traced(self, trace: bool | str) -> ProducerTrace | None:
        if not trace:
            return None
        topic = trace if isinstance(trace, str) else TRACE_TOPIC
        group = f"_INNER_TRACE_PRODUCER-{self._options.group}-PRODUCE-{next(_tracers)}"
        options = ProducerOptions(group=group, timeout_ms=TRACE_TIMEOUT_MS)
        tracer = Tracer(Producer(self._instance, (), options), topic)
        looks_on = ProducerTrace(tracer, self._outbox.group, topic)
        self._outbox.observers.append(looks_on)
        self._outbox.ended = looks_on.checked
        return looks_on

    async def _prepared(self, topic: str) -> None:
        if topic not in self._published:
            await self.publish(topic)
        self.check()
        if self._window.full:
            await self._window.room()

    def _post(
        self,
        message: Message,
        system: Mapping[str, str],
        *,
        sys_flag: int = 0,
        code: int = SINGLE,
        broker: str | None = None,
    ) -> asyncio.Future[SendReceipt]:
        future: asyncio.Future[Receipt] = self._loop.create_future()
        self._outbox.post(
            message,
            FutureSink(future),
            queue=None if broker is None else self._outbox.queue_of(message.topic, broker),
            system=system,
            sys_flag=sys_flag,
            code=code,
        )
        return cast("asyncio.Future[SendReceipt]", future)
