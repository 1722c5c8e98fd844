"""The producer of RocketMQ.

A producer checks the arguments of a send and the in-flight window; its `Sender` selects the queue
and sends. A message that a broker refused, or that could not be sent, is sent again to another
broker (`retries`). If the answer was lost, the message may be stored: the send raises an error,
unless `retry_lost` prefers duplicates to losses, as Java's producer does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Final, cast, overload

from msgspec import structs

from coherer._client.engine.arguments import checked
from coherer._client.engine.metrics import ROCKETMQ
from coherer._client.engine.producer import BaseProducer, body_of, encoding_error, message_topic
from coherer._client.engine.sender import CallbackSink, FutureSink, Outcome, Sink
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import NO_FIELDS, Link
from coherer._client.rocketmq.observers import Kind, observe
from coherer._client.rocketmq.options import ProducerOptions
from coherer._client.rocketmq.producing.broker_sender import HALF_BATCH, SINGLE
from coherer._client.rocketmq.producing.half_batches import half_batch, messages_of
from coherer._client.rocketmq.producing.half_messages import (
    HalfBulk,
    HalfMessages,
    TwoPhaseCommit,
    half_properties,
)
from coherer._client.rocketmq.producing.queue_selection import Key
from coherer._client.rocketmq.producing.sender import DeliveryTime, Sender, delivery_time
from coherer._client.rocketmq.producing.trace import ProducerTrace
from coherer._client.rocketmq.received import ReceivedMessage
from coherer._client.rocketmq.request_reply import (
    reply_message,
    reply_target,
    request_properties,
)
from coherer._client.rocketmq.tracing import Tracer
from coherer._client.rocketmq.transactions import PREPARED, Transaction, Verdict, end_header
from coherer._record.batches import (
    BATCH_RECORD_BYTES,
    PackedMessages,
    batch_item_parts,
    split_by_size,
)
from coherer._record.ids import UniqueIdGenerator
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage, encode_message
from coherer._wire.rocketmq.names import TRACE_TOPIC, Queue
from coherer.errors import UsageError
from coherer.message import Message, Receipt

TRACE_TIMEOUT_MS: Final = 5_000
"""The timeout of a message with trace records, as in Java."""

_tracers: Final = itertools.count(1)


@checked
class Producer(BaseProducer):
    """Sends messages. Made by `Client.producer`; use it with `async with`.

    Args:
        instance: the connections and routes.
        topics: published at the start; others are published with their first message.
        options: see `ProducerOptions`.
    """

    def __init__(
        self, instance: Instance, topics: Iterable[str] = (), options: ProducerOptions | None = None
    ) -> None:
        self._instance = instance
        self._options = options or ProducerOptions()
        self._sender = Sender(instance, self._options)
        super().__init__(instance.pool.check, self._sender.window, topics, self._sender.published)
        self._measure(instance.options.metrics, ROCKETMQ, lambda: instance.client_id)
        self._trace = self._make_trace(self._options.trace)

    @property
    def group(self) -> str:
        """The producer group."""
        return self._options.group

    @property
    def two_phase(self) -> TwoPhaseCommit:
        """Many half messages, which another process may end."""
        return TwoPhaseCommit(self._instance, self._sender, self._half_bulk, self.check)

    async def publish(self, *topics: str) -> None:
        """Look up topics and connect to their brokers; returns when they can be sent to.

        Raises:
            RefusedError: a topic does not exist and no broker creates topics; code 17.
            UnavailableError: no name server, or no broker of a topic, could be reached in time.
        """
        self.check()
        await self._publish(topics)

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
            message: the message.
            order_by: messages with the same key go to the same queue, in order; no retries.
            queue: send to this queue only; no retries.
            delay_level: the broker delays the message: by default level 1 is 1 s, 3 is 10 s, 18 is
                2 h.
            deliver_at: the broker delays the message until then; a naive time is local. Up to three
                days ahead, exact to 0.1 s with Coherer's broker and to 1 s with RocketMQ 5.x. No
                retries.
            delay: the same, counted from the message's arrival at the broker. Brokers before 5.0
                only have delay levels: there it has to equal the delay of one.

        Raises:
            UsageError: the message cannot be encoded, or a broker before 5.0 has no such delay.
            RefusedError: the brokers refused it.
            DisconnectedError, RequestTimeoutError: it may or may not be stored.
            UnavailableError: no broker could be reached; it was not sent.
        """
        # `_prepare` inlined, which saves a coroutine per message.
        if self._window.full or message_topic(message) not in self._published:
            await self._prepare(message.topic)
        timed = delay_level or deliver_at is not None or delay is not None
        if not timed and order_by is None and queue is None:
            return await self.submit(message)  # passing the others costs as much as a check
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
        """Send one message without waiting.

        Args:
            message: of a topic that is published already.
            callback: called with the receipt or the error, instead of the future.
            order_by: see `send`.
            queue: see `send`.
            delay_level: see `send`.
            deliver_at: see `send`.
            delay: see `send`.

        Returns:
            A future of the receipt; None with a callback. asyncio logs a future that fails and is
            never awaited.

        Raises:
            WindowFullError: the in-flight window is full; `await producer.ready()` first.
            UsageError: the message cannot be encoded.
        """
        self.check()
        if self._window.full:
            raise self._window_full_error()
        future: asyncio.Future[SendReceipt] | None = None
        if callback is not None:
            sink: Sink = CallbackSink(callback)
        else:
            future = self._loop.create_future()
            sink = FutureSink(cast("asyncio.Future[Receipt]", future))
        if self._meter is not None:
            sink = self._metered(message, sink)
        when = delivery_time(delay_level, deliver_at, delay)
        if order_by is None and queue is None and when is NO_FIELDS:
            self._sender.send(message, sink)
        else:
            self._post(message, sink, order_by=order_by, queue=queue, when=when)
        return future

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic in one request, which is the fastest way to send.

        All of them go to one queue, in order.

        Args:
            messages: of one topic. Messages that do not fit into one request (`max_bytes`) are sent
                in several, one after the other.
            order_by: see `send`.
            queue: see `send`.

        Returns:
            A receipt for each request. Its ids are those of all its messages, joined by commas, and
            its offset is that of the first message.

        Raises:
            UsageError: there are no messages, or they are of several topics.
            CohererError: see `send`; the requests before it are stored.
        """
        topic = _topic_of(messages)
        if topic not in self._published:
            await self.publish(topic)
        ids, items = _encode_batch(messages, self._sender.ids)
        receipts: list[SendReceipt] = []
        around = BATCH_RECORD_BYTES + len(self._sender.full_name(topic).encode())
        sizes = [around + len(body) + len(text) for _, body, _, text in items]
        for part in split_by_size(sizes, self._options.max_bytes):
            await self.ready()
            target, retries = self._sender.select(topic, order_by, queue)
            batch: Sequence[Message] = messages[part]
            body = b"".join(chain.from_iterable(items[part]))
            future: asyncio.Future[Receipt] = self._loop.create_future()
            sink = self._metered(batch[0], FutureSink(future), len(batch))
            if self._sender.observers:
                group, observers = self._sender.group, self._sender.observers
                batch, sink = observe(observers, batch, group, Kind.NORMAL, sink)
                body = b"".join(chain.from_iterable(map(_encode_item, batch, ids[part])))
            self._sender.send_batch(batch[0], body, ",".join(ids[part]), sink, target, retries)
            receipt = cast("SendReceipt", await future)
            receipts.append(receipt)
            queue = Queue(target.queue.topic, receipt.broker, receipt.partition)
        return receipts

    async def send_oneway(
        self, message: Message, *, order_by: Key | None = None, queue: Queue | None = None
    ) -> None:
        """Send one message without asking for a receipt.

        It waits while the connection's write buffer is full. An overloaded broker drops such
        messages silently.

        Args:
            message: the message.
            order_by: see `send`.
            queue: see `send`.

        Raises:
            UsageError: the message cannot be encoded.
            UnavailableError: no broker could be reached; it was not sent.
        """
        if message_topic(message) not in self._published:
            await self.publish(message.topic)
        self.check()
        await self._sender.send_oneway(message, order_by, queue)

    def transaction(self, message: Message) -> Transaction:
        """A message that becomes visible when your own work is done; use it with `async with`.

        The producer needs a check function (`check=`), which is called when a broker does not know
        how a transaction ended.

        Raises:
            UsageError: the producer has no check function.
        """
        self.check()
        self._need_check()
        return Transaction(message, self._send_half, self._end_transaction)

    async def request(self, message: Message, *, timeout_ms: int | None = None) -> StoredMessage:
        """Send a message and wait for a consumer's reply.

        Args:
            message: the request.
            timeout_ms: how long to wait for the reply; the producer's timeout when None.

        Raises:
            UsageError: `timeout_ms` is less than 1.
            RequestTimeoutError: no reply in time.
            ClosedError: the client was closed.
            CohererError: see `send`.
        """
        if timeout_ms is not None and timeout_ms < 1:
            raise UsageError(f"timeout_ms is 1 or more, not {timeout_ms}.")
        await self._prepare(message_topic(message))
        timeout_ms = timeout_ms or self._options.timeout_ms or self._instance.options.timeout_ms
        replies, client_id = self._instance.replies, self._instance.client_id
        number, future = replies.add()
        began = self._loop.time()
        try:
            await self._send(message, request_properties(number, client_id, timeout_ms))
        except BaseException:
            replies.remove(number)
            raise
        left_ms = timeout_ms - (self._loop.time() - began) * 1000
        return await replies.wait(number, future, left_ms, message.topic)

    async def reply(
        self, request: StoredMessage | ReceivedMessage, reply: Message | bytes
    ) -> SendReceipt:
        """Reply to a message that was sent with `request`.

        Args:
            request: the message as a consumer received it.
            reply: the reply; its topic is ignored.

        Raises:
            UsageError: the message is not a request.
            RefusedError: the requesting client is not connected to the broker any more.
            CohererError: see `send`.
        """
        self.check()
        topic, system = reply_target(request)
        await self._prepare(topic)
        message = reply_message(topic, reply)
        code = int(RequestCode.SEND_REPLY_MESSAGE_V2)
        return await self._send(message, system, code=code, broker=request.broker)

    def _post(
        self,
        message: Message,
        sink: Sink,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
        when: Mapping[str, str] | DeliveryTime = NO_FIELDS,
    ) -> None:
        """Send a message; `sink` gets the outcome. Does not wait for the window.

        Raises:
            ClosedError: the producer is closed.
            UsageError: the message cannot be encoded, or its topic is not published.
            UnavailableError: the topic has no queue any more.
        """
        if self._state != "open":
            self.check()
        if isinstance(when, DeliveryTime):
            self._sender.send_timed(message, sink, when, order_by=order_by, queue=queue)
        else:
            self._sender.send(message, sink, order_by=order_by, queue=queue, system=when)

    # -- called by transactions

    def _need_check(self) -> None:
        if self._options.check is None:
            raise UsageError(
                "A transaction needs a producer with a check function.",
                hint="client.producer(..., check=function)",
            )

    def _half_bulk(self) -> HalfBulk:
        """Collect the outcomes of half messages; see `TwoPhaseCommit.prepare`."""
        self.check()
        self._need_check()
        group = self._sender.group
        post = partial(self._sender.send, system=half_properties(group), sys_flag=PREPARED)
        return HalfBulk(partial(self._post_many, post=post), group)

    async def _prepare_packed(
        self, batch: PackedMessages, properties: Mapping[str, str]
    ) -> HalfMessages:
        """Send encoded messages as a half batch, or one by one if the broker has none."""
        await self._prepare(batch.topic)
        self._need_check()
        group = self._sender.group
        target, retries = self._sender.select(batch.topic, None, None)
        if not batch.alone and await self._instance.has_half_batches(target.broker.server):
            system = {**properties, **half_properties(group)}
            future: asyncio.Future[Receipt] = self._loop.create_future()
            first = Message(batch.topic, b"")  # for its topic
            sink = self._metered(first, FutureSink(future), batch.count)
            self._sender.send_batch(
                first, bytes(batch.body), "", sink, target, retries, system, code=HALF_BATCH
            )
            return half_batch(group, cast("SendReceipt", await future), batch.count)
        bulk = self._half_bulk()
        await bulk.add(messages_of(batch))
        report = await bulk.finish()
        for _, error in report.failed:
            raise error
        return bulk.halves()

    async def _send_half(self, message: Message) -> tuple[SendReceipt, Link]:
        """Send a half message; see `transaction`."""
        await self._prepare(message_topic(message))
        system = half_properties(self._sender.group)
        receipt = await self._send(message, system, sys_flag=PREPARED)
        return receipt, await self._link(receipt)

    async def _end_transaction(self, receipt: SendReceipt, link: Link, verdict: Verdict) -> None:
        """Tell the broker the outcome of a transaction."""
        self.check()
        if not link.open:
            link = await self._link(receipt)
        fields = end_header(self._sender.group, receipt, verdict).fields()
        if self._trace is not None:
            self._trace.ended(receipt, verdict, link.server)
        if verdict is Verdict.UNKNOWN:
            # Brokers do not answer this (section 2.9).
            link.send_oneway(RequestCode.END_TRANSACTION, fields, broker=receipt.broker)
            return
        timeout_ms = self._instance.options.timeout_ms
        code, broker = RequestCode.END_TRANSACTION, receipt.broker
        await link.ask(code, fields, timeout_ms=timeout_ms, broker=broker)
        self._instance.checks.ended(receipt.unique_id, verdict)

    # -- overrides of the common part

    async def _register(self) -> None:
        await self._sender.open()

    async def _publish(self, topics: Sequence[str]) -> None:
        for topic in topics:
            await self._sender.publish(topic)

    async def _undo(self) -> None:
        await self._sender.close()
        self._sender.forget()

    async def _leave(self) -> None:
        try:
            await self._sender.close()
        finally:  # the producer of the trace is not the application's: nobody else closes it
            if self._trace is not None:
                await self._trace.close()

    def _posting(self) -> Callable[[Message, Sink], object]:
        return self._sender.send

    async def _send_packed(self, batch: PackedMessages) -> SendReceipt:
        if batch.topic not in self._published:
            await self.publish(batch.topic)
        await self.ready()
        queue = batch.broker and Queue(batch.topic, batch.broker, batch.partition)
        future: asyncio.Future[Receipt] = self._loop.create_future()
        first = Message(batch.topic, b"")  # for its topic
        sink = self._metered(first, FutureSink(future), batch.count)
        if batch.alone:
            (message,) = messages_of(batch)
            self._sender.send(message, sink, queue=queue or None)
            return cast("SendReceipt", await future)
        target, retries = self._sender.select(batch.topic, None, queue or None)
        self._sender.send_batch(first, bytes(batch.body), "", sink, target, retries)
        return cast("SendReceipt", await future)

    def _make_trace(self, trace: bool | str) -> ProducerTrace | None:
        if not trace:
            return None
        tracer = make_tracer(self._instance, f"{self._options.group}-PRODUCE", trace)
        observer = ProducerTrace(tracer, self._sender.group)
        self._sender.observers.append(observer)
        self._sender.check_observer = observer.checked
        return observer

    async def _link(self, receipt: SendReceipt) -> Link:
        address = self._instance.routes.address(receipt.broker)
        return await self._instance.link(address, fast=True)

    async def _prepare(self, topic: str) -> None:
        """Publish a topic if necessary, and wait until the window has space."""
        if topic not in self._published:
            await self.publish(topic)
        self.check()
        if self._window.full:
            await self._window.wait_for_space()

    def _send(
        self,
        message: Message,
        system: Mapping[str, str],
        *,
        sys_flag: int = 0,
        code: int = SINGLE,
        broker: str | None = None,
    ) -> asyncio.Future[SendReceipt]:
        future: asyncio.Future[Receipt] = self._loop.create_future()
        self._sender.send(
            message,
            FutureSink(future),
            queue=None if broker is None else self._sender.any_queue(message.topic, broker),
            system=system,
            sys_flag=sys_flag,
            code=code,
        )
        return cast("asyncio.Future[SendReceipt]", future)


def make_tracer(instance: Instance, name: str, trace: bool | str) -> Tracer:
    """A tracer with a producer of its own.

    Args:
        instance: the connections and routes.
        name: makes the producer group unique.
        trace: the topic of the records; True for the default one.
    """
    topic = trace if isinstance(trace, str) else TRACE_TOPIC
    group = f"_INNER_TRACE_PRODUCER-{name}-{next(_tracers)}"
    options = ProducerOptions(group=group, timeout_ms=TRACE_TIMEOUT_MS)
    return Tracer(Producer(instance, (), options), topic)


# -- batches (docs/protocol/rocketmq.md, section 5.9)

IDS_PER_CALL: Final = 4_096
"""Unique ids differ among 65,536 that are generated in one millisecond."""

BatchItem = tuple[bytes, bytes, bytes, bytes]
"""The parts of an encoded message of a batch."""


def _topic_of(messages: Sequence[Message]) -> str:
    """The topic of a batch."""
    topics = {message_topic(message) for message in messages}
    if len(topics) != 1:
        raise UsageError(f"A batch has messages of one topic, not of {len(topics)}.")
    topic = topics.pop()
    if topic.startswith("%RETRY%"):
        raise UsageError("Messages of a retry topic cannot be sent in batches.", topic=topic)
    return topic


def _encode_item(message: Message, unique_id: str) -> BatchItem:
    """Encode a message of a batch; nothing is compressed."""
    body = message.body
    if type(body) is not bytes:
        body = body_of(message)
        message = structs.replace(message, body=body)
    plain = message.tag is None and message.time is None
    try:
        if not plain or message.keys or message.properties or not body:
            body, properties, _ = encode_message(
                message, unique_id=unique_id, compress_from_bytes=0
            )
            return batch_item_parts(body, properties.encode())
        return batch_item_parts(body, b"UNIQ_KEY\x01" + unique_id.encode())
    except (TypeError, AttributeError, OverflowError) as error:
        raise encoding_error(message, error) from error


def _encode_batch(
    messages: Sequence[Message], unique: UniqueIdGenerator
) -> tuple[list[str], list[BatchItem]]:
    """New unique ids for messages, and the encoded messages."""
    ids: list[str] = []
    items: list[BatchItem] = []
    for start in range(0, len(messages), IDS_PER_CALL):
        some = messages[start : start + IDS_PER_CALL]
        ids += unique.take(len(some))
        items += map(_encode_item, some, ids[start:])
    return ids, items
