"""The producer of TubeMQ.

The registration with the master (`publisher`) returns the writable partitions of topics. Each
broker has a sender (`sender`), and each topic a route (`routing`) that takes its partitions in
turn. A window limits the messages in flight. Nothing is sent twice automatically: after
`DisconnectedError` or `RequestTimeoutError` a message may or may not be stored, and an application
that sends it again may store it twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, overload

from coherer import limits
from coherer._client.engine.arguments import checked
from coherer._client.engine.metrics import TUBEMQ, meters_of
from coherer._client.engine.producer import (
    WRITABLE_HINT,
    BaseProducer,
    body_of,
    encoding_error,
    message_topic,
    until_connected,
)
from coherer._client.engine.sender import (
    Bulk,
    CallbackSink,
    FutureSink,
    Outcome,
    Sink,
    Window,
    check_timeout,
    check_window,
)
from coherer._client.engine.tasks import Waiters, cancel
from coherer._client.tubemq.cluster import Cluster, address_number
from coherer._client.tubemq.publisher import Publisher
from coherer._client.tubemq.quality import Quality, QualityRules
from coherer._client.tubemq.routing import Route, partition_ids
from coherer._client.tubemq.sender import EncodedPayload, PendingSend, TargetPartition, TubeSender
from coherer._common.upkeep import Upkeep
from coherer._record.batches import PackedMessages, decode_batch
from coherer._wire.tubemq import payload
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import Partition, TopicInfo, check_topic
from coherer.errors import RefusedError, UnavailableError, UsageError
from coherer.message import Message, Receipt

TICK_MS: Final = 1_000
"""Interval of comparing brokers and renewing signatures."""


@checked
class Producer(BaseProducer):
    """Sends messages. Made by `Client.producer`; use it with `async with`.

    Args:
        cluster: the connections to the cluster.
        topics: published at the start; others are published with their first message.
        window: maximum number of messages in flight.
        window_bytes: maximum number of bytes in flight.
        timeout_ms: how long a message waits for its receipt; the client's timeout when None.
        rules: when brokers are avoided.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[str] = (),
        *,
        window: int = 5_000,
        window_bytes: int = limits.WINDOW_BYTES_DEFAULT,
        timeout_ms: int | None = None,
        rules: QualityRules | None = None,
    ) -> None:
        check_window(window, window_bytes)
        self._routes: dict[str, Route] = {}
        in_flight = Window(window, window_bytes)
        super().__init__(cluster.pool.check, in_flight, topics, self._routes.keys())
        self._cluster = cluster
        self._measure(cluster.options.metrics, TUBEMQ, str)
        check_timeout(timeout_ms)
        self._timeout_ms = timeout_ms or cluster.options.timeout_ms
        self._publisher = Publisher(cluster, self._update_routes)
        self._quality = Quality(rules)
        self._targets: dict[
            tuple[str, str], TargetPartition
        ] = {}  # (broker's address, partition) -> target
        self._senders: dict[tuple[int, str], TubeSender] = {}
        self._built_from: tuple[object, ...] | None = None
        self._publishing = asyncio.Lock()
        self._connections_changed = Waiters()
        self._ticking: asyncio.Task[None] | None = None
        self._upkeep = Upkeep()
        meters = meters_of(cluster.options.metrics)
        if meters is not None:
            meters.watch(self._upkeep)

    async def publish(self, *topics: str) -> None:
        """Publish topics; returns when messages can be sent to them.

        Raises:
            RefusedError: a topic has no writable partition; code 444.
            UnavailableError: no master, or no broker of a topic, could be reached in time.
        """
        self.check()
        await self._publish(topics)

    async def _publish(self, topics: Sequence[str]) -> None:
        async with self._publishing:
            new = [topic for topic in topics if topic not in self._routes]
            if not new:
                return
            for topic in new:
                check_topic(topic)
            await self._publisher.publish(new)
            for topic in new:
                await self._connected(self._routes[topic])

    async def send(self, message: Message) -> Receipt:
        """Send one message and wait for its receipt.

        Raises:
            UsageError: the message is invalid.
            RefusedError: the broker refused it.
            DisconnectedError, RequestTimeoutError: it may or may not be stored.
            UnavailableError: no broker could be reached; it was not sent.
        """
        if message_topic(message) not in self._routes:
            await self.publish(message.topic)
        if self._window.full:
            await self._window.wait_for_space()
        return await self.submit(message)

    @overload
    def submit(self, message: Message) -> asyncio.Future[Receipt]: ...

    @overload
    def submit(self, message: Message, *, callback: Callable[[Outcome], object]) -> None: ...

    def submit(
        self, message: Message, *, callback: Callable[[Outcome], object] | None = None
    ) -> asyncio.Future[Receipt] | None:
        """Send one message without waiting.

        Args:
            message: of a topic that is published already.
            callback: called with the receipt or the error, instead of the future.

        Returns:
            A future of the receipt; None with a callback. asyncio logs a future that fails and is
            never awaited.

        Raises:
            WindowFullError: the in-flight window is full; `await producer.ready()` first.
            UsageError: the message is invalid.
        """
        self.check()
        if self._window.full:
            raise self._window_full_error()
        future: asyncio.Future[Receipt] | None = None
        if callback is not None:
            sink: Sink = CallbackSink(callback)
        else:
            future = self._loop.create_future()
            sink = FutureSink(future)
        if self._meter is not None:
            sink = self._metered(message, sink)
        self._post(message, sink)
        return future

    async def _send_packed(self, batch: PackedMessages) -> Receipt:
        """Send an encoded batch, which Coherer's broker stores in one step; see `send_packed`."""
        if batch.topic not in self._routes:
            await self.publish(batch.topic)
        await self.ready()
        target = self._target(batch)
        sender, first = target.sender, Message(batch.topic, b"")
        if sender.takes_batches is False or batch.alone:
            return await self._send_unpacked(batch)
        future: asyncio.Future[Receipt] = self._loop.create_future()
        size_bytes = len(batch.body)
        self._window.take(size_bytes)
        deadline = self._loop.time() + self._timeout_ms / 1000
        sink = self._metered(first, FutureSink(future), batch.count)
        payload = EncodedPayload(b"", 0, batch=batch.body)
        placed = batch.broker is not None
        sender.post(PendingSend(target, first, sink, deadline, size_bytes, payload, placed=placed))
        try:
            receipt = await future
        except RefusedError as error:
            if error.code != ResultCode.BAD_REQUEST or sender.takes_batches:
                raise
            sender.takes_batches = False
            return await self._send_unpacked(batch)
        sender.takes_batches = True
        return receipt

    async def _send_unpacked(self, batch: PackedMessages) -> Receipt:
        """Send the messages of a batch one by one; return the first receipt."""
        bulk, first = Bulk(self._post_many, receipts=True), Message(batch.topic, b"")
        max_bytes, placed = self._open_route(batch.topic).max_bytes, batch.broker is not None
        _, bodies, texts = decode_batch(batch.body)
        for body, text in zip(bodies, texts, strict=True):
            if self._window.full:
                await self.ready()
            target, encoded = self._target(batch), _unpacked(body, text)
            if batch.alone:
                _check_size(encoded.data, max_bytes, batch.topic)
            bulk.posted(1)
            self._post_encoded(target, first, bulk, encoded, self._loop.time(), placed=placed)
        report = await bulk.finish()
        report.check()
        return report.receipts[0]

    def _target(self, batch: PackedMessages) -> TargetPartition:
        route = self._open_route(batch.topic)
        if batch.broker is None:
            return route.next(self._quality, self._loop.time())
        for target in route.targets:
            if (target.broker, target.number) == (batch.broker, batch.partition):
                return target
        raise UsageError(
            f"The topic has no writable partition {batch.broker}:{batch.partition}.",
            topic=batch.topic,
            code=ResultCode.PARAMETER_MSG_TOPIC_NO_PARTITION,
        )

    def _post(self, message: Message, sink: Sink) -> None:
        """Send a message; `sink` gets the outcome. Does not wait for the window.

        Raises:
            ClosedError: the producer is closed.
            UsageError: the message is invalid, or its topic is not published.
            UnavailableError: the topic has no partition any more.
        """
        if self._state != "open":
            self.check()
        route = self._open_route(message_topic(message))
        encoded, now = pack(message, route.max_bytes), self._loop.time()
        self._post_encoded(route.next(self._quality, now), message, sink, encoded, now)

    def _open_route(self, topic: str) -> Route:
        route = self._routes.get(topic)
        if route is None:
            raise UsageError(
                "The topic is not published.",
                topic=topic,
                code=ResultCode.PARAMETER_MSG_TOPIC_UNPUBLISHED,
                hint="Call `producer.publish(topic)` first.",
            )
        if not route.targets:
            raise UnavailableError(
                "The topic has no writable partition any more.",
                topic=topic,
                code=ResultCode.PARAMETER_MSG_TOPIC_NO_PARTITION,
                hint=WRITABLE_HINT,
            )
        return route

    def _post_encoded(
        self,
        target: TargetPartition,
        message: Message,
        sink: Sink,
        encoded: EncodedPayload,
        now: float,
        *,
        placed: bool = False,
    ) -> None:
        size_bytes = len(encoded.data)
        self._window.take(size_bytes)
        deadline = now + self._timeout_ms / 1000
        target.sender.post(
            PendingSend(target, message, sink, deadline, size_bytes, encoded, placed=placed)
        )

    # -- called by senders

    def _changed(self) -> None:
        """A connection was opened, could not be opened or broke, or a broker refused service."""
        for route in self._routes.values():
            route.stale = True
        self._connections_changed.wake()

    def _reroute(self, send: PendingSend) -> bool:
        """Post a waiting message to another broker, if it may go there and one is connected."""
        if send.placed:
            return False
        route = self._routes.get(send.message.topic)
        if route is None or not route.open:
            return False
        target = route.next(self._quality, self._loop.time())
        if not target.sender.open:
            return False
        send.target = target
        target.sender.post(send)
        return True

    # -- inside

    async def _register(self) -> None:
        await self._publisher.start()
        self._ticking = asyncio.create_task(self._tick(), name="producer tick")

    async def _undo(self) -> None:
        await self._leave()
        self._publisher.forget()
        for kept in (self._routes, self._targets, self._senders):
            kept.clear()
        self._built_from = None

    async def _leave(self) -> None:
        async with AsyncExitStack() as then:  # all of it, also if the caller is cancelled
            then.push_async_callback(self._stop_sending)
            then.push_async_callback(self._publisher.stop)
            then.push_async_callback(cancel, self._ticking)
            await self._window.wait_until_empty()

    async def _stop_sending(self) -> None:
        self._connections_changed.wake()  # `publish` ends, too
        for sender in self._senders.values():
            await sender.close()

    def _update_routes(self) -> None:
        """The master sent topics and brokers, perhaps the same as before."""
        publisher = self._publisher
        built_from = publisher.infos, publisher.brokers, publisher.max_bytes
        if self._built_from != built_from:
            self._build_routes()
            self._built_from = built_from
        self._quality.forget(publisher.brokers)
        self._authorize()
        for sender in self._senders.values():
            if sender.wanted:
                sender.connect()

    def _build_routes(self) -> None:
        publisher = self._publisher
        wanted: dict[tuple[str, str], TargetPartition] = {}
        for topic in sorted(publisher.topics | self._routes.keys()):
            info = publisher.infos.get(topic)
            targets = {} if info is None else self._targets_of(info)
            wanted.update(targets)
            max_bytes = (info and info.max_bytes) or publisher.max_bytes
            route = self._routes.get(topic)
            if route is not None:
                route.renew(max_bytes, targets.values())
            elif targets:
                self._routes[topic] = Route(topic, max_bytes, targets.values())
        self._targets = wanted
        used = {id(target.sender) for target in wanted.values()}
        for sender in self._senders.values():
            sender.wanted = id(sender) in used

    def _targets_of(self, info: TopicInfo) -> dict[tuple[str, str], TargetPartition]:
        publisher = self._publisher
        number = address_number(publisher.local_host)
        targets: dict[tuple[str, str], TargetPartition] = {}
        for broker_id, (partitions, stores) in info.brokers.items():
            broker = publisher.brokers.get(broker_id)
            if broker is None:
                continue
            sender = self._sender(broker_id)
            for partition_id in partition_ids(partitions, stores):
                partition = Partition(broker, info.topic, partition_id)
                key = (sender.server, partition.key)
                targets[key] = self._targets.get(key) or TargetPartition(
                    partition, sender, publisher.client_id, number
                )
        return targets

    def _sender(self, broker_id: int) -> TubeSender:
        broker = self._publisher.brokers[broker_id]
        key = (broker_id, f"{broker.host}:{broker.port}")
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = TubeSender(
                broker,
                self._cluster.pool,
                self._quality,
                changed=self._changed,
                reroute=self._reroute,
                release=self._window.release,
                timeout_ms=self._timeout_ms,
            )
        return sender

    def _authorize(self) -> None:
        text = self._publisher.credentials.for_broker(prefer_token=True).SerializeToString()
        for sender in self._senders.values():
            sender.authorized = text

    async def _connected(self, route: Route) -> None:
        await until_connected(
            route.topic,
            partial(self._senders_of, route),
            self._connections_changed,
            self._loop.time() + self._timeout_ms / 1000,
        )

    def _senders_of(self, route: Route) -> list[TubeSender]:
        self._publisher.check()
        return [target.sender for target in route.targets]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            with self._upkeep.guard("checking brokers"):
                self._check_brokers()

    def _check_brokers(self) -> None:
        now_ms = int(self._loop.time() * 1000)
        self._quality.check(now_ms)
        brokers = list(self._publisher.brokers)
        all_usable = len(self._quality.usable(brokers, now_ms)) == len(brokers)
        for route in self._routes.values():
            # With thousands of topics, computing every route each second is expensive. It is
            # unnecessary while all brokers are usable.
            if not (all_usable and route.complete):
                route.stale = True
        if self._publisher.credentials.signs:
            self._authorize()


def _unpacked(body: bytes, text: bytes) -> EncodedPayload:
    """Make the payload of one message of a batch."""
    if not text:
        return EncodedPayload(body, 0)
    attributes = text.replace(b"\x01", b"=").replace(b"\x02", b",").decode()
    tag = time = None
    if attributes.startswith("TAGS="):
        attributes = payload.TAG_KEY + attributes[len("TAGS") :]
    if payload.TIME_KEY in attributes or payload.TAG_KEY in attributes:
        tag, time, _ = payload.split_attributes(attributes)
    data, flag = payload.encode_payload(body, attributes)
    return EncodedPayload(data, flag, tag, time)


def pack(message: Message, max_bytes: int) -> EncodedPayload:
    """Check and encode a message.

    Raises:
        UsageError: it cannot be sent; `code` is the protocol's code for the reason.
    """
    body = message.body
    if type(body) is not bytes:
        body = body_of(message)
    if not body:
        raise UsageError(
            "A message needs a body of at least one byte.",
            topic=message.topic,
            code=ResultCode.PARAMETER_MSG_BODY_EMPTY,
        )
    attributes: str | None = None
    time: str | None = None
    if message.tag is not None or message.time is not None or message.properties or message.keys:
        if message.keys:
            raise UsageError(
                "TubeMQ messages have no keys.",
                topic=message.topic,
                hint="Put them into `properties`.",
            )
        try:
            attributes = payload.encode_attributes(message.tag, message.time, message.properties)
            time = None if message.time is None else payload.encode_time(message.time)
        except (TypeError, AttributeError, OverflowError) as error:
            raise encoding_error(message, error) from error
        except UsageError as error:
            error.topic = message.topic
            raise
    data, flag = payload.encode_payload(body, attributes)
    _check_size(data, max_bytes, message.topic)
    return EncodedPayload(data, flag, message.tag, time)


def _check_size(data: bytes, max_bytes: int, topic: str) -> None:
    if len(data) > max_bytes:
        raise UsageError(
            f"The message has {len(data)} bytes with its attributes; the limit is {max_bytes}.",
            topic=topic,
            code=ResultCode.PARAMETER_MSG_OVER_MAX_LENGTH,
            hint="The cluster sets it: `coherer serve --max-message-bytes`.",
        )
