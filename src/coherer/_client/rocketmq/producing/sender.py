"""The send path of a producer: topics and their queues, brokers, and the in-flight window.

`Sender.send` selects a queue (`queue_selection`), encodes the message, and hands it to the sender
of the queue's broker (`broker_sender`). The broker's answer goes to the message's sink.

A topic that is being published waits for the connection to one of its brokers. Meanwhile it follows
changes of its route like a published one, and its brokers are wanted.

Delivery times: brokers of RocketMQ 5.x and Coherer's brokers deliver a message at any time. Brokers
of 4.x only know delay levels, and deliver a message with 5.x's properties at once. So a delay that
equals a level is sent to them as that level, and any other time is refused before anything is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from functools import partial
from ipaddress import ip_address
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import structs

from coherer._client.engine.arguments import check_value
from coherer._client.engine.producer import (
    WRITABLE_HINT,
    body_of,
    encoding_error,
    message_topic,
    until_connected,
)
from coherer._client.engine.sender import Sink, Window
from coherer._client.engine.tasks import Waiters, cancel
from coherer._client.rocketmq.faults import BrokerFaults
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import NO_FIELDS
from coherer._client.rocketmq.observers import Kind, ObservedSink, Observer, observe
from coherer._client.rocketmq.options import ProducerOptions
from coherer._client.rocketmq.producing.broker_sender import (
    BATCH,
    SINGLE,
    MasterSender,
    PendingSend,
    TargetQueue,
    now_ms,
)
from coherer._client.rocketmq.producing.queue_selection import Key, QueueSelector
from coherer._client.rocketmq.routing import MASTER, Route
from coherer._client.rocketmq.transactions import CheckObserver
from coherer._common import machine
from coherer._common.moments import ceil_ms
from coherer._record.ids import UniqueIdGenerator
from coherer._record.properties import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS
from coherer._record.system_topics import DELAY_LEVELS, DELAY_LEVELS_MS
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.messages import EncodedMessage, encode_message
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.sending import SendEncoder
from coherer.errors import ClosedError, CohererError, UnavailableError, UsageError
from coherer.message import Message

LOOPBACK: Final = "127.0.0.1"
_DELAYS: Final = frozenset((DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS))


class DeliveryTime(msgspec.Struct, frozen=True):
    """When to deliver a message: after a delay, or at a time.

    Args:
        delay_ms: counted from the arrival at the broker.
        deliver_ms: a time, ms since 1970.
    """

    delay_ms: int | None = None
    deliver_ms: int | None = None

    def as_timer(self) -> Mapping[str, str]:
        """The properties for a broker that supports arbitrary delivery times.

        >>> DeliveryTime(delay_ms=1500).as_timer()
        {'TIMER_DELAY_MS': '1500'}
        """
        if self.delay_ms is not None:
            return {TIMER_DELAY_MS: str(self.delay_ms)}
        return {TIMER_DELIVER_MS: str(self.deliver_ms)}

    def as_level(self, broker: str) -> Mapping[str, str]:
        """The properties for a broker that only knows delay levels.

        Args:
            broker: its name, for the error.

        Raises:
            UsageError: the delay does not equal a level.

        >>> DeliveryTime(delay_ms=60_000).as_level("a"), DeliveryTime(deliver_ms=0).as_level("a")
        ({'DELAY': '5'}, {})
        """
        if self.delay_ms in DELAY_LEVELS_MS:
            return {DELAY: str(DELAY_LEVELS_MS.index(self.delay_ms) + 1)}
        if self.deliver_ms is not None and self.deliver_ms <= machine.wall_ns() // 1_000_000:
            return NO_FIELDS
        raise UsageError(
            f"Broker {broker} is older than 5.0: it delays messages by levels only, and no level "
            "equals the requested time.",
            hint=f"Use a delay of {DELAY_LEVELS.replace(' ', ', ')}, or delay_level=.",
        )


def delivery_time(
    delay_level: int, deliver_at: datetime | None, delay: timedelta | None
) -> Mapping[str, str] | DeliveryTime:
    """The delivery time in the arguments of a send, or the properties that express it.

    Args:
        delay_level: a level; 0 for none.
        deliver_at: a time; a naive one is local.

    Raises:
        UsageError: several are given, or one is out of range.

    >>> delivery_time(3, None, None), delivery_time(0, None, timedelta(0))
    ({'DELAY': '3'}, {})
    """
    if not delay_level and deliver_at is None and delay is None:
        return NO_FIELDS
    check_value("delay_level", delay_level, int)
    check_value("deliver_at", deliver_at, datetime | None)
    check_value("delay", delay, timedelta | None)
    if (delay_level != 0) + (deliver_at is not None) + (delay is not None) > 1:
        raise UsageError("Give one of delay_level, deliver_at and delay.")
    if delay_level < 0:
        raise UsageError(f"A delay level is 1 or more, or 0 for none, not {delay_level}.")
    if delay_level:
        return {DELAY: str(delay_level)}
    if delay is not None:
        if delay < timedelta(0):
            raise UsageError(f"A delay of {delay} is negative.")
        delay_ms, rest = divmod(delay, timedelta(milliseconds=1))
        delay_ms += bool(rest)  # rounded up: never too early
        return DeliveryTime(delay_ms=delay_ms) if delay_ms else NO_FIELDS
    if deliver_at is not None:
        return DeliveryTime(deliver_ms=ceil_ms(deliver_at))
    return NO_FIELDS


class Sender:
    """Sends the messages of one producer.

    Attributes:
        window: the in-flight window.
        published: the topics that messages can be sent to; a live view.
        group: the producer group as brokers know it.
        ids: generates the unique ids of messages.
        observers: called about each send.
        check_observer: called about answers to transaction checks.
    """

    def __init__(self, instance: Instance, options: ProducerOptions) -> None:
        self.window = Window(options.window, options.window_bytes)
        self.group = names.with_namespace(instance.options.namespace, options.group)
        self.ids = UniqueIdGenerator(b"\x7f\0\0\1")
        self._instance = instance
        self._options = options
        self._timeout_s = (options.timeout_ms or instance.options.timeout_ms) / 1000
        self._faults = None if options.rules is None else BrokerFaults(options.rules)
        self.observers: list[Observer] = list(options.observers)
        self.check_observer: CheckObserver | None = None
        self._system = options.system_properties(instance.options.namespace)
        self._selectors: dict[str, QueueSelector] = {}
        self.published = self._selectors.keys()
        self._connecting: dict[str, QueueSelector] = {}  # of topics that are being published
        # The topics of both, by their full names: "orders" and "team%orders" may be one topic.
        self._topics: dict[str, set[str]] = {}
        self._brokers: dict[tuple[str, str], MasterSender] = {}
        self._uses: dict[MasterSender, int] = {}  # how many selectors select its queues
        self._publishing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._connections_changed = Waiters()
        self._loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False

    async def open(self) -> None:
        """Register the producer.

        Raises:
            UnavailableError: no name server can be reached.
        """
        self._loop = asyncio.get_running_loop()
        await self._instance.start()
        self.ids = UniqueIdGenerator(_address(self._instance.local_host), loader=id(self))
        self._instance.register_producer(self.group)
        self._instance.routes.watch(self._route_changed)
        if self._options.check is not None:
            self._instance.checks.add(self.group, self._options.check, self.check_observer)
        self._open = True

    async def close(self) -> None:
        """Wait for the messages in flight, then unregister."""
        if not self._open:
            return
        self._open = False
        async with AsyncExitStack() as then:  # all of it, also if the caller is cancelled
            then.push_async_callback(self._instance.unregister_producer, self.group)
            then.push_async_callback(self._stop_sending)
            if self._options.check is not None:
                checks, check = self._instance.checks, self._options.check
                then.callback(checks.remove, self.group, check, self.check_observer)
            then.callback(self._instance.routes.unwatch, self._route_changed)
            await self.window.wait_until_empty()

    async def _stop_sending(self) -> None:
        self._connections_changed.wake()  # `publish` ends, too
        await cancel(*self._tasks)
        for broker in self._brokers.values():
            await broker.close()

    def forget(self) -> None:
        """Forget what was published, after `close`; `open` may be called again."""
        self._selectors.clear()
        self._topics.clear()
        self._brokers.clear()
        self._uses.clear()
        self._tasks.clear()

    async def publish(self, topic: str) -> None:
        """Look up a topic and connect to its brokers; returns when it can be sent to.

        Raises:
            RefusedError: it does not exist and no broker creates topics.
            UnavailableError: no name server, or no broker, could be reached in time.
            ClosedError: the producer was closed meanwhile.
        """
        async with self._publishing.setdefault(topic, asyncio.Lock()):
            if topic in self._selectors:
                return
            full = self.full_name(topic)
            names.check_topic(full)
            if full == names.SCHEDULE_TOPIC:
                raise UsageError("Messages cannot be sent to the schedule topic.", topic=topic)
            route = await self._instance.routes.route(full, create=True)
            self.check()  # nobody would close the connections of a closed producer
            if not route.writable:
                raise UnavailableError(
                    "The topic has no writable queue.",
                    topic=topic,
                    code=ResponseCode.TOPIC_NOT_EXIST,
                    hint=WRITABLE_HINT,
                )
            selector = QueueSelector((), self._faults)
            self._update(selector, route)
            self._connecting[topic] = selector
            self._topics.setdefault(full, set()).add(topic)
            try:
                await until_connected(
                    topic,
                    partial(self._brokers_of, selector),
                    self._connections_changed,
                    self._loop.time() + self._timeout_s,
                )
            except BaseException:
                self._release_brokers(_brokers_used(selector))
                self._drop_name(topic)
                raise
            finally:
                del self._connecting[topic]
            self._selectors[topic] = selector

    def _brokers_of(self, selector: QueueSelector) -> Collection[MasterSender]:
        self.check()
        return [target.broker for target in selector.targets]

    def full_name(self, topic: str) -> str:
        """A topic's name with the namespace; reply topics belong to the cluster and have none."""
        if topic.endswith(names.REPLY_TOPIC_SUFFIX):
            return topic
        return names.with_namespace(self._instance.options.namespace, topic)

    def any_queue(self, topic: str, broker: str) -> Queue | None:
        """A random queue of a topic at a broker, or None if the broker has no queue of it."""
        selector = self._selectors.get(topic)
        if selector is None:
            return None
        queues = [one.queue for one in selector.targets if one.queue.broker == broker]
        return machine.random.choice(queues) if queues else None

    def select(
        self, topic: str, order_by: Key | None, queue: Queue | None
    ) -> tuple[TargetQueue, int]:
        """The queue for a message, and the number of retries.

        Raises:
            ClosedError: the producer is closed.
            UsageError: the topic is not published, or does not have that queue.
            UnavailableError: the topic has no queue any more, or the queue's master is down.
        """
        if not self._open:
            self.check()
        selector = self._selectors.get(topic)
        if selector is None:
            raise UsageError(
                "The topic is not published.",
                topic=topic,
                hint="Call `producer.publish(topic)` first.",
            )
        if not selector.targets:
            if self._instance.routes.known(self.full_name(topic)) is None:
                del self._selectors[topic]  # this client has deleted the topic: look it up again
                self._drop_name(topic)
            raise UnavailableError(
                "The topic has no writable queue.", topic=topic, hint=WRITABLE_HINT
            )
        if order_by is not None and queue is None:
            try:
                queue = selector.queue_of_key(order_by)
            except AttributeError:
                check_value("order_by", order_by, str | int)
                raise
        if queue is not None:
            target = selector.target_of(queue)
            if target is not None:
                return target, 0
            if queue in selector.queues:
                raise UnavailableError(
                    f"The master of broker {queue.broker} is down.",
                    topic=topic,
                    partition=queue.id,
                    hint="Without `queue` and `order_by`, messages go to other brokers meanwhile.",
                )
            raise UsageError(
                f"{queue} is not writable, or does not exist.",
                topic=topic,
                partition=queue.id,
                hint="`coherer topics describe` shows its queues.",
            )
        now = 0 if self._faults is None else int(self._loop.time() * 1000)
        return selector.next(now), self._options.retries

    def send(
        self,
        message: Message,
        sink: Sink,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
        system: Mapping[str, str] = NO_FIELDS,
        sys_flag: int = 0,
        code: int = SINGLE,
    ) -> None:
        """Send a message; `sink` gets the outcome. Does not wait for the window.

        Args:
            order_by: messages with the same key go to the same queue.
            queue: send to this queue only.
            system: properties that RocketMQ gives a meaning to.
            sys_flag: bits beside the one for compression.
            code: the code of the request.

        Raises:
            UsageError: the message cannot be encoded, or its topic is not published.
            UnavailableError: the topic has no queue any more.
        """
        target, retries = self.select(message_topic(message), order_by, queue)
        self._send_to(target, retries, message, sink, system, sys_flag, code)

    def send_timed(
        self,
        message: Message,
        sink: Sink,
        when: DeliveryTime,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
    ) -> None:
        """Send a message with a delivery time; without retries.

        Args:
            when: the delivery time.

        Raises:
            UsageError: as `send`; or the broker does not support the delay.
            UnavailableError: the topic has no queue any more.
        """
        target, _ = self.select(message_topic(message), order_by, queue)
        has_timers = self._instance.timers.get(target.broker.server)
        if has_timers is not None:
            system = when.as_timer() if has_timers else when.as_level(target.queue.broker)
            self._send_to(target, 0, message, sink, system, 0, SINGLE)
            return
        self.window.take(0)
        task = asyncio.create_task(self._ask_and_send(target, message, sink, when))
        self._tasks.add(task)
        task.add_done_callback(partial(self._asked, message, sink))

    async def _ask_and_send(
        self, target: TargetQueue, message: Message, sink: Sink, when: DeliveryTime
    ) -> None:
        """Ask for the broker's features, which are unknown before its first heartbeat answer."""
        try:
            has_timers = await self._instance.has_timers(target.broker.server)
            system = when.as_timer() if has_timers else when.as_level(target.queue.broker)
            self._send_to(target, 0, message, sink, system, 0, SINGLE)
        except CohererError as error:
            sink.lost(message, error)
        self.window.release(0)

    def _asked(self, message: Message, sink: Sink, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            sink.lost(message, ClosedError("The producer was closed; the message was not sent."))
            self.window.release(0)

    def _send_to(
        self,
        target: TargetQueue,
        retries: int,
        message: Message,
        sink: Sink,
        system: Mapping[str, str],
        sys_flag: int,
        code: int,
    ) -> None:
        if self.observers:
            delayed = not _DELAYS.isdisjoint(system)
            kind = Kind.HALF if sys_flag else Kind.DELAYED if delayed else Kind.NORMAL
            (message,), sink = observe(self.observers, [message], self.group, kind, sink)
        unique_id = self.ids.next()
        try:
            payload = self._encode(message, unique_id, system)
        except CohererError as error:
            if isinstance(sink, ObservedSink):
                sink.refused(error)
            raise
        if sys_flag:
            payload = payload._replace(sys_flag=payload.sys_flag | sys_flag)
        pending = PendingSend(
            target,
            message,
            sink,
            self._loop.time() + self._timeout_s,
            payload,
            unique_id,
            now_ms(),
            retries,
            code,
        )
        self.window.take(len(payload.body))
        target.broker.offer(pending)

    def send_batch(
        self,
        message: Message,
        body: bytes,
        ids: str,
        sink: Sink,
        target: TargetQueue,
        retries: int,
        system: Mapping[str, str] = NO_FIELDS,
        code: int = BATCH,
    ) -> None:
        """Send a batch; `sink` gets the outcome. Does not wait for the window.

        Args:
            message: the first message of the batch.
            body: all messages, encoded.
            ids: their unique ids.
            target: the queue.
            system: properties of the batch that RocketMQ gives a meaning to.
            code: the code of the request.
        """
        system = {**self._system, **system}
        properties = "\x02".join(f"{name}\x01{value}" for name, value in system.items())
        payload, deadline = EncodedMessage(body, properties, 0), self._loop.time() + self._timeout_s
        pending = PendingSend(
            target, message, sink, deadline, payload, ids, now_ms(), retries, code
        )
        self.window.take(len(body))
        target.broker.offer(pending)

    async def send_oneway(
        self, message: Message, order_by: Key | None, queue: Queue | None
    ) -> None:
        """Send a message without an answer; returns when the write buffer has space again.

        Raises:
            UsageError: the message cannot be encoded.
            UnavailableError: no broker can be reached.
        """
        target, _ = self.select(message.topic, order_by, queue)
        payload = self._encode(message, self.ids.next(), NO_FIELDS)
        await target.broker.send_oneway(target, payload, now_ms())

    def check(self) -> None:
        """Check that messages can be sent.

        Raises:
            ClosedError: the producer or its client is closed.
            ForkedError: the client was made in another process.
        """
        self._instance.pool.check()
        if not self._open:
            raise ClosedError("The producer is closed.")

    # -- called by the senders of brokers, see `Dispatcher`

    def connections_changed(self) -> None:
        """A connection was opened, could not be opened, or broke."""
        for selector in (*self._selectors.values(), *self._connecting.values()):
            selector.stale = True
        self._connections_changed.wake()

    def retry(self, pending: PendingSend) -> bool:
        """Send a message again, avoiding its broker, if it has retries left."""
        selector = self._selectors.get(pending.message.topic)
        now = self._loop.time()
        if (
            pending.retries <= 0
            or now >= pending.deadline
            or selector is None
            or not selector.targets
        ):
            return False
        pending.retries -= 1
        pending.target = selector.avoiding(pending.target.queue.broker, int(now * 1000))
        pending.target.broker.offer(pending)
        return True

    def retry_by_new_route(self, pending: PendingSend, error: CohererError) -> None:
        """Look the topic up, and send a message again; without retries left, it fails."""
        full = pending.target.queue.topic
        task = asyncio.create_task(self._look_up(full), name=f"look up {full}")
        self._tasks.add(task)
        task.add_done_callback(partial(self._looked_up, pending, error))

    async def _look_up(self, full: str) -> None:
        with suppress(CohererError):  # the periodic refresh goes on
            await self._instance.routes.route(full, fresh=True)

    def _looked_up(
        self, pending: PendingSend, error: CohererError, task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled() or not self.retry(pending):
            pending.target.broker.fail(pending, error)

    def reroute(self, pending: PendingSend) -> bool:
        """Send a message that waits for a connection to another broker that is connected."""
        selector = self._selectors.get(pending.message.topic)
        # A message without retries may have to go to its queue.
        if selector is None or pending.retries <= 0:
            return False
        now = int(self._loop.time() * 1000)
        target = selector.avoiding(pending.target.queue.broker, now)
        if not target.connected:
            return False
        pending.target = target
        target.broker.offer(pending)
        return True

    def release(self, size_bytes: int) -> None:
        """The outcome of a message is known."""
        self.window.release(size_bytes)

    # -- encoding, routes

    def _encode(
        self, message: Message, unique_id: str, system: Mapping[str, str]
    ) -> EncodedMessage:
        options = self._options
        if self._system:
            system = {**self._system, **system}
        if type(message.body) is not bytes:
            message = structs.replace(message, body=body_of(message))
        if len(message.body) > options.max_bytes:
            raise UsageError(
                f"The message has {len(message.body)} bytes; the limit is {options.max_bytes}.",
                topic=message.topic,
                code=ResponseCode.MESSAGE_ILLEGAL,
            )
        try:
            return encode_message(
                message,
                unique_id=unique_id,
                system=system,
                compress_from_bytes=options.compress_from_bytes,
                level=options.compress_level,
            )
        except (TypeError, AttributeError, OverflowError) as error:
            raise encoding_error(message, error) from error

    def _route_changed(self, route: Route) -> None:
        for topic in self._topics.get(route.topic, ()):
            selector = self._selectors.get(topic) or self._connecting[topic]
            self._update(selector, route)
            self._connections_changed.wake()  # a new broker may be connected already
        if self._faults is not None:
            self._faults.keep_only({name for name, _ in self._brokers})

    def _update(self, selector: QueueSelector, route: Route) -> None:
        """Give a selector the queues of a route. Brokers that no selector uses are not wanted."""
        before = _brokers_used(selector)
        selector.update(self._targets(route), route.writable)
        for broker in _brokers_used(selector):
            self._uses[broker] = self._uses.get(broker, 0) + 1
        self._release_brokers(before)

    def _release_brokers(self, brokers: Iterable[MasterSender]) -> None:
        """A selector uses these brokers no more."""
        for broker in brokers:
            left = self._uses.pop(broker, 0) - 1
            if left > 0:
                self._uses[broker] = left
            else:
                broker.wanted = False

    def _drop_name(self, topic: str) -> None:
        full = self.full_name(topic)
        topics = self._topics.get(full, set())
        topics.discard(topic)
        if not topics:
            self._topics.pop(full, None)

    def _targets(self, route: Route) -> list[TargetQueue]:
        targets: list[TargetQueue] = []
        encoders: dict[str, SendEncoder] = {}
        for queue in route.writable:
            address = route.brokers.get(queue.broker, {}).get(MASTER)
            if address is not None:
                broker = self._broker(queue.broker, address)
                encoder = encoders.get(queue.broker)
                if encoder is None:
                    encoder = SendEncoder(self.group, route.topic, queue.broker)
                    encoders[queue.broker] = encoder
                targets.append(TargetQueue(queue, broker, self.group, encoder))
        return targets

    def _broker(self, name: str, address: str) -> MasterSender:
        broker = self._brokers.get((name, address))
        if broker is None:
            broker = self._brokers[name, address] = MasterSender(
                name,
                address,
                self._instance,
                self,
                self._faults,
                frozenset(self._options.retry_codes),
                retry_lost=self._options.retry_lost,
            )
        broker.wanted = True
        broker.connect()
        return broker


def _brokers_used(selector: QueueSelector) -> set[MasterSender]:
    return {target.broker for target in selector.targets}


def _address(host: str) -> bytes:
    try:
        return ip_address(host or LOOPBACK).packed
    except ValueError:
        return ip_address(LOOPBACK).packed
