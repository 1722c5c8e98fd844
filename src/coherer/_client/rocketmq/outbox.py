"""Where a producer's messages leave: topics and their queues, brokers and their lanes, the window.

Everything that a producer sends goes through `Outbox.post`, whatever becomes of the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from coherer._client.engine.producer import check_body, message_topic, mistaken
from coherer._client.engine.sender import Sink, Window
from coherer._client.engine.tasks import cancel
from coherer._client.rocketmq.faults import Faults
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import NOTHING
from coherer._client.rocketmq.observers import Kind, Observer, observe
from coherer._client.rocketmq.producer_options import ProducerOptions
from coherer._client.rocketmq.routes import Route
from coherer._client.rocketmq.selection import Key, Selector
from coherer._client.rocketmq.sends import BATCH, SINGLE, Lane, Place, Sent, now_ms
from coherer._client.rocketmq.timing import When
from coherer._client.rocketmq.transactions import Ended
from coherer._record.ids import UniqueIds
from coherer._record.properties import DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.messages import Outgoing, outgoing
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.sending import SendEncoder
from coherer.errors import ClosedError, CohererError, ConnectError, UnavailableError, UsageError
from coherer.message import Message

LOOPBACK: Final = "127.0.0.1"
_DELAYS: Final = frozenset((DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS))


class Outbox:
    """Where messages leave. Owner of lanes.

    Args:
        instance: the way to the cluster.
        options: the producer's.

    Attributes:
        window: what is under way.
        published: the topics that messages can be posted to, always as they are now.
        group: the producer group as brokers know it.
        ids: makes the unique ids of messages.
        observers: look on.
        ended: told of transactions that brokers have asked about.
    """

    def __init__(self, instance: Instance, options: ProducerOptions) -> None:
        self.window = Window(options.window, options.window_bytes)
        self.group = names.with_namespace(instance.options.namespace, options.group)
        self.ids = UniqueIds(b"\x7f\0\0\1")
        self._instance = instance
        self._options = options
        self._timeout_s = (options.timeout_ms or instance.options.timeout_ms) / 1000
        self._faults = None if options.rules is None else Faults(options.rules)
        self.observers: list[Observer] = list(options.observers)
        self.ended: Ended | None = None
        self._system: Mapping[str, str] = options.system(instance.options.namespace)
        self._selectors: dict[str, Selector[Place]] = {}
        self.published = self._selectors.keys()
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._publishing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changes: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False

    async def open(self) -> None:
        """Register.

        Raises:
            UnavailableError: no name server can be reached.
        """
        self._loop = asyncio.get_running_loop()
        await self._instance.start()
        self.ids = UniqueIds(_address(self._instance.local_host), loader=id(self))
        self._instance.register_producer(self.group)
        self._instance.watch(self._learn)
        if self._options.check is not None:
            self._instance.checks.add(self.group, self._options.check, self.ended)
        self._open = True

    async def close(self) -> None:
        """Wait for what is under way, then leave."""
        if not self._open:
            return
        self._open = False
        await self.window.empty()
        self._instance.unwatch(self._learn)
        if self._options.check is not None:
            self._instance.checks.remove(self.group, self._options.check, self.ended)
        await cancel(*self._tasks)
        for lane in self._lanes.values():
            await lane.close()
        await self._instance.unregister_producer(self.group)

    async def publish(self, topic: str) -> None:
        """Find out where a topic is; returns when messages to it can be sent.

        Raises:
            RefusedError: it does not exist and no broker creates topics.
            UnavailableError: no name server, or no broker, could be reached in time.
        """
        async with self._publishing[topic]:
            if topic in self._selectors:
                return
            full = self.full_name(topic)
            names.check_topic(full)
            if full == names.SCHEDULE_TOPIC:
                raise UsageError("Nobody sends to the schedule topic.", topic=topic)
            route = await self._instance.route(full, create=True)
            if not route.writable:
                raise UnavailableError(
                    "The topic has no queue that takes messages.",
                    topic=topic,
                    code=ResponseCode.TOPIC_NOT_EXIST,
                )
            places = self._places_of(route)
            selector = Selector(places, self._faults, queues=route.writable)
            await self._connected(topic, selector)
            self._selectors[topic] = selector

    def full_name(self, topic: str) -> str:
        """A topic's name as brokers know it; the topics of replies are the cluster's own."""
        if topic.endswith(names.REPLY_TOPIC_SUFFIX):
            return topic
        return names.with_namespace(self._instance.options.namespace, topic)

    def queue_of(self, topic: str, broker: str) -> Queue | None:
        """Any queue of a topic with that broker; None when there is none."""
        selector = self._selectors.get(topic)
        if selector is None:
            return None
        queues = [one.queue for one in selector.choices if one.queue.broker == broker]
        return random.choice(queues) if queues else None  # noqa: S311 - nobody has to guess it

    def choose(self, topic: str, order_by: Key | None, queue: Queue | None) -> tuple[Place, int]:
        """The queue for a message, and how often it may be tried again.

        Raises:
            ClosedError: the producer is closed.
            UsageError: the topic is not published, or does not have that queue.
            UnavailableError: it has no queue any more, or the master of the queue is away.
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
        if not selector.choices:
            raise UnavailableError("The topic has no queue that takes messages.", topic=topic)
        if order_by is not None and queue is None:
            queue = selector.of_key(order_by)
        if queue is not None:
            place = selector.exactly(queue)
            if place is not None:
                return place, 0
            if queue in selector.queues:
                raise UnavailableError(f"The master of {queue} is away.", topic=topic)
            raise UsageError(f"{queue} takes no messages, or does not exist.", topic=topic)
        now = 0 if self._faults is None else int(self._loop.time() * 1000)
        return selector.next(now), self._options.retries

    def post(
        self,
        message: Message,
        sink: Sink,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
        system: Mapping[str, str] = NOTHING,
        sys_flag: int = 0,
        code: int = SINGLE,
    ) -> Sent:
        """Send a message and have `sink` told; does not look at the window.

        Args:
            message: what to send.
            sink: who waits for the outcome.
            order_by: messages of one key go to one queue.
            queue: this queue and no other.
            system: properties that RocketMQ gives a meaning to.
            sys_flag: bits beside the one for compression.
            code: of the request.

        Raises:
            UsageError: the message cannot be sent as it is, or its topic is not published.
            UnavailableError: the topic has no queue any more.
        """
        place, tries = self.choose(message_topic(message), order_by, queue)
        return self._post_to(place, tries, message, sink, system, sys_flag, code)

    def post_timed(
        self,
        message: Message,
        sink: Sink,
        when: When,
        *,
        order_by: Key | None = None,
        queue: Queue | None = None,
    ) -> None:
        """Send a message that is to be delivered at a time; sent once, to one broker.

        Args:
            message: what to send.
            sink: who waits for the outcome.
            when: the time.
            order_by: see `post`.
            queue: see `post`.

        Raises:
            UsageError: as `post`; or the broker has no such delay.
            UnavailableError: the topic has no queue any more.
        """
        place, _ = self.choose(message_topic(message), order_by, queue)
        keeps = self._instance.timers.get(place.lane.server)
        if keeps is not None:
            system = when.timed() if keeps else when.level(place.queue.broker)
            self._post_to(place, 0, message, sink, system, 0, SINGLE)
            return
        self.window.take(0)
        task = asyncio.create_task(self._ask_and_post(place, message, sink, when))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_and_post(self, place: Place, message: Message, sink: Sink, when: When) -> None:
        """Find out what the broker can, which its first answer to a heartbeat has not told yet."""
        try:
            keeps = await self._instance.keeps_time(place.lane.server)
            system = when.timed() if keeps else when.level(place.queue.broker)
            self._post_to(place, 0, message, sink, system, 0, SINGLE)
        except CohererError as error:
            sink.lost(message, error)
        finally:
            self.window.settle(0)

    def _post_to(
        self,
        place: Place,
        tries: int,
        message: Message,
        sink: Sink,
        system: Mapping[str, str],
        sys_flag: int,
        code: int,
    ) -> Sent:
        if self.observers:
            delayed = not _DELAYS.isdisjoint(system)
            kind = Kind.HALF if sys_flag else Kind.DELAYED if delayed else Kind.NORMAL
            (message,), sink = observe(self.observers, [message], self.group, kind, sink)
        unique_id = self.ids.next()
        parcel = self._pack(message, unique_id, system)
        if sys_flag:
            parcel = parcel._replace(sys_flag=parcel.sys_flag | sys_flag)
        sent = Sent(
            place,
            message,
            sink,
            self._loop.time() + self._timeout_s,
            parcel,
            unique_id,
            now_ms(),
            tries,
            code,
        )
        self.window.take(len(parcel.body))
        place.lane.post(sent)
        return sent

    def post_batch(
        self, message: Message, body: bytes, ids: str, sink: Sink, place: Place, tries: int
    ) -> None:
        """Send a batch and have `sink` told; does not look at the window.

        Args:
            message: the first of the batch.
            body: all of them, encoded.
            ids: their unique ids.
            sink: who waits for the outcome.
            place: where to.
            tries: how often it may be tried again.
        """
        properties = "\x02".join(f"{name}\x01{value}" for name, value in self._system.items())
        parcel, deadline = Outgoing(body, properties, 0), self._loop.time() + self._timeout_s
        sent = Sent(place, message, sink, deadline, parcel, ids, now_ms(), tries, BATCH)
        self.window.take(len(body))
        place.lane.post(sent)

    async def tell(self, message: Message, order_by: Key | None, queue: Queue | None) -> None:
        """Send a message that nobody answers; returns when there is room for more.

        Raises:
            UsageError: the message cannot be sent as it is.
            UnavailableError: no broker can be reached.
        """
        place, _ = self.choose(message.topic, order_by, queue)
        parcel = self._pack(message, self.ids.next(), NOTHING)
        await place.lane.tell(place, parcel, now_ms())

    def check(self) -> None:
        """See that messages can be sent.

        Raises:
            ClosedError: not any more.
            ForkedError: not in this process.
        """
        self._instance.pool.check()
        if not self._open:
            raise ClosedError("The producer is closed.")

    # -- what lanes call

    def changed(self) -> None:
        """A connection was made, could not be made, or broke."""
        for selector in self._selectors.values():
            selector.stale = True
        changes, self._changes = self._changes, None
        if changes is not None and not changes.done():
            changes.set_result(None)

    def again(self, sent: Sent) -> bool:
        """Post a message once more, avoiding its broker, if it may be."""
        selector = self._selectors.get(sent.message.topic)
        now = self._loop.time()
        if sent.tries <= 0 or now >= sent.deadline or selector is None or not selector.choices:
            return False
        sent.tries -= 1
        sent.place = selector.avoiding(sent.place.queue.broker, int(now * 1000))
        sent.place.lane.post(sent)
        return True

    def elsewhere(self, sent: Sent) -> bool:
        """Post a message that could not leave by another lane, if there is an open one."""
        selector = self._selectors.get(sent.message.topic)
        # Without tries left it may be one that has to stay with its queue.
        if selector is None or sent.tries <= 0:
            return False
        place = selector.avoiding(sent.place.queue.broker, int(self._loop.time() * 1000))
        if not place.open:
            return False
        sent.place = place
        place.lane.post(sent)
        return True

    def settled(self, size_bytes: int) -> None:
        """The outcome of a message is known."""
        self.window.settle(size_bytes)

    # -- inside

    def _pack(self, message: Message, unique_id: str, system: Mapping[str, str]) -> Outgoing:
        options = self._options
        if self._system:
            system = {**self._system, **system}
        if type(message.body) is not bytes:
            check_body(message)
        if len(message.body) > options.max_bytes:
            raise UsageError(
                f"The message has {len(message.body)} bytes; the limit is {options.max_bytes}.",
                topic=message.topic,
                code=ResponseCode.MESSAGE_ILLEGAL,
            )
        try:
            return outgoing(
                message,
                unique_id=unique_id,
                system=system,
                compress_from_bytes=options.compress_from_bytes,
                level=options.compress_level,
            )
        except (TypeError, AttributeError) as error:
            raise mistaken(message, error) from error

    def _learn(self, route: Route) -> None:
        """A route is new or has changed."""
        for topic, selector in self._selectors.items():
            if self.full_name(topic) == route.topic:
                selector.renew(self._places_of(route), route.writable)
                used = {id(place.lane) for one in self._selectors.values() for place in one.choices}
                for lane in self._lanes.values():
                    lane.wanted = id(lane) in used
        if self._faults is not None:
            self._faults.forget({broker for broker, _ in self._lanes})

    def _places_of(self, route: Route) -> list[Place]:
        places: list[Place] = []
        encoder = SendEncoder(self.group, route.topic)
        for queue in route.writable:
            address = route.brokers.get(queue.broker, {}).get(0)
            if address is not None:
                places.append(Place(queue, self._lane(queue.broker, address), self.group, encoder))
        return places

    def _lane(self, broker: str, address: str) -> Lane:
        lane = self._lanes.get((broker, address))
        if lane is None:
            lane = self._lanes[broker, address] = Lane(
                broker,
                address,
                self._instance,
                self,
                self._faults,
                frozenset(self._options.retry_codes),
                retry_lost=self._options.retry_lost,
            )
        lane.wanted = True
        lane.connect()
        return lane

    async def _connected(self, topic: str, selector: Selector[Place]) -> None:
        deadline = self._loop.time() + self._timeout_s
        while not any(place.open for place in selector.choices):
            if self._changes is None:
                self._changes = self._loop.create_future()
            try:
                async with asyncio.timeout_at(deadline):
                    await asyncio.shield(self._changes)
            except TimeoutError:
                errors = [place.lane.error for place in selector.choices]
                raise next(
                    (error for error in errors if error is not None),
                    ConnectError("No broker of the topic could be reached.", topic=topic),
                ) from None


def _address(host: str) -> bytes:
    try:
        return ip_address(host or LOOPBACK).packed
    except ValueError:
        return ip_address(LOOPBACK).packed
