"""Subscribers: they receive batches of a consumer and give their messages to handlers.

Every message is settled for itself: the acknowledgement policy, or the handler, acknowledges,
retries or rejects it. Nothing is acknowledged because a later message was, so what a handler has
not finished is delivered again after a crash.

| subscriber | at the same time | order |
|---|---|---|
| default | one message | as received |
| `max_workers=N` | N messages | none; of each queue with `orderly`, of each partition in TubeMQ |
| `batch=True` | one batch; N with `max_workers=N` | as received |

There is no queue between consumer and handlers: a loop takes the next batch when a handler is free,
and the consumer stops to fetch when its prefetch buffer is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec
from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from coherer import rocketmq
from coherer._common.logs import Log
from coherer.errors import ClosedError, CohererError, UsageError
from coherer.integrations.faststream.connection import Batch, Consumer, Subscription
from coherer.integrations.faststream.message import (
    TUBEMQ_RETRY,
    BrokerMessage,
    Parser,
    RawBatch,
    RawMessage,
    TubeMQDelivered,
    is_request,
    log_dropped,
    raw_messages,
    settlement_of,
)
from coherer.integrations.faststream.publisher import ReplyPublisher, producer_of
from coherer.integrations.faststream.response import Command
from coherer.rocketmq import RetryAfter
from coherer.tubemq import ReceivedBatch as TubeMQBatch

_log = Log(logging.getLogger(__name__))

JOIN_AGAIN_S: Final = 1.0
"""The pause before a subscriber that lost its place in the group tries to join it again."""


@dataclass(kw_only=True)
class SubscriberSpecConfig(SubscriberSpecificationConfig):
    """What the schema of a subscriber needs."""

    topics: Sequence[str]


class SubscriberSchema(SubscriberSpecification[Any, SubscriberSpecConfig]):
    """The AsyncAPI schema of a subscriber."""

    __slots__ = ()

    @property
    def topics(self) -> list[str]:
        """The topics with the routers' prefixes."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    @property
    def channel_labels(self) -> list[str]:
        """What names its channels."""
        return self.topics

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """The channels, one for each topic."""
        payload = resolve_payloads(self.get_payloads())
        channels: dict[str, SubscriberSpec] = {}
        for topic in self.topics:
            name = self._channel_key(topic, split=len(self.topics) > 1)
            message = MessageSpec(title=f"{name}:Message", payload=payload)
            channels[name] = SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,  # AsyncAPI defines none for these protocols
            )
        return channels


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """The options of a subscriber.

    Attributes:
        message_class: the protocol's message.
        command: the protocol's command, for replies.
        topics: the topics, without prefixes.
        selection: their filter.
        group_id: the group; None to receive every message.
        options: of the consumer.
        batch: whether handlers receive batches.
        max_workers: how many messages or batches are handled at the same time.
        ordered: whether the messages of a queue are handled one after the other.
        shared: whether a batch can only be acknowledged as a whole.
    """

    message_class: type[BrokerMessage]
    command: type[Command]
    topics: Sequence[str]
    selection: Any = None
    group_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    batch: bool = False
    max_workers: int = 1
    ordered: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        if not self.topics:
            raise SetupError("A subscriber needs a topic.")
        if self.max_workers < 1:
            raise SetupError(f"max_workers is 1 or more, not {self.max_workers}.")

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy: the subscriber's, the broker's, or `NACK_ON_ERROR`."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


class BaseSubscriber(TasksMixin, SubscriberUsecase[Any]):
    """What the subscribers of both protocols have in common."""

    def __init__(
        self,
        config: SubscriberConfig,
        specification: SubscriberSchema,
        calls: CallsCollection[Any],
    ) -> None:
        parser = Parser(config.message_class)
        config.parser = parser.parse_batch if config.batch else parser.parse_message
        config.decoder = parser.decode_batch if config.batch else parser.decode_message
        super().__init__(config, specification, calls)
        self._config = config
        self._waiting: deque[RawMessage | RawBatch[Any]] = deque()  # for `get_one`
        self._stopper: asyncio.Task[Any] | None = None  # runs `stop`
        self._joining = asyncio.Lock()  # held by the task that joins the group again
        self.consumer: Consumer | None = None

    @property
    def topics(self) -> list[str]:
        """The topics with the routers' prefixes."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self._config.topics]

    @property
    def group_id(self) -> str | None:
        """The group."""
        return self._config.group_id

    @property
    def batch(self) -> bool:
        """Whether handlers receive batches."""
        return self._config.batch

    @property
    def selection(self) -> Any:
        """The filter of the topics."""
        return self._config.selection

    # -- starting and stopping

    async def start(self) -> None:
        """Join the group and receive. Returns when queues are assigned, or after a few seconds."""
        if self.consumer is not None:
            return
        await super().start()
        config = self._config
        self.consumer = await self._join()
        self._post_start()
        if self.calls:
            each = config.batch or config.ordered or config.shared
            loop = self._handle_in_turn if each or config.max_workers == 1 else self._handle_freely
            for _ in range(config.max_workers if each else 1):
                self.add_task(loop)

    async def stop(self) -> None:
        """Take no more messages, wait for the handlers that run, and leave the group.

        After the broker's `graceful_timeout` the handlers are cancelled; their messages, and those
        that no handler has seen, are delivered again.
        """
        await super(TasksMixin, self).stop()  # its own would cancel the caller
        # The task of a handler that raised `StopConsume` stops its own subscriber.
        self._stopper = asyncio.current_task()
        tasks = [task for task in self.tasks if task is not self._stopper and not task.done()]
        self.tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._waiting.clear()
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            await consumer.close()

    async def _join(self) -> Consumer:
        config = self._config
        wanted = Subscription(
            self,
            config.group_id,
            dict.fromkeys(self.topics, config.selection),
            config.options,
            create_topics=cast("Any", self._outer_config).allow_auto_create_topics,
        )
        connection = producer_of(self._outer_config).connection
        return await connection.subscribe(wanted, self._log_start)

    async def _join_again(self, lost: Consumer, error: CohererError) -> None:
        """Join the group anew after the cluster has refused this member for good."""
        async with self._joining:
            if self.consumer is not lost:
                return  # another task has joined it
            await lost.close()
            while self.running:
                _log.error(
                    "The subscriber of %s receives nothing, and goes on trying: %s",
                    ", ".join(self.topics),
                    error,
                    about=self,
                )
                await asyncio.sleep(JOIN_AGAIN_S)
                try:
                    self.consumer = await self._join()
                except CohererError as again:
                    error = again
                else:
                    return

    def _log_start(self, level: int, text: str) -> None:
        self._log(level, text, self.get_log_context(None))

    # -- receiving

    async def _next(self) -> Batch | None:
        """The next batch; None when the subscriber is stopped."""
        while self.running and (consumer := self.consumer) is not None:
            try:
                return await consumer.receive()
            except CohererError as error:
                if isinstance(error, ClosedError) and not self._joining.locked():
                    break
                await self._join_again(consumer, error)
        return None

    def _units(self, batch: Batch) -> Sequence[RawMessage | RawBatch[Any]]:
        """What handlers receive: the batch, or each of its messages."""
        if self._config.batch:
            return (RawBatch.of(batch),)
        if isinstance(batch, rocketmq.ReceivedBatch):
            return list(batch)
        return shared(batch)

    async def _handle(self, unit: RawMessage | RawBatch[Any]) -> None:
        """Handle a message or a batch; what is not settled then keeps its queue waiting."""
        await self.consume(unit)
        settlement = settlement_of(unit)
        if self.running and settlement is not None and self.ack_policy is not AckPolicy.MANUAL:
            # Settling it may have failed: `raise NackMessage(later=...)` with a wrong value.
            await settlement.retry()

    async def _handle_in_turn(self) -> None:
        """Handle the messages of a batch one after the other."""
        while (batch := await self._next()) is not None:
            for unit in self._units(batch):
                await self._handle(unit)

    async def _handle_freely(self) -> None:
        """Handle up to `max_workers` messages at the same time, of any batches."""
        workers = asyncio.Semaphore(self._config.max_workers)
        running: set[asyncio.Task[None]] = set()

        async def work(unit: RawMessage | RawBatch[Any]) -> None:
            try:
                await self._handle(unit)
            finally:
                workers.release()

        try:
            while (batch := await self._next()) is not None:
                for unit in self._units(batch):
                    await workers.acquire()
                    task = asyncio.create_task(work(unit))
                    running.add(task)
                    task.add_done_callback(running.discard)
        finally:
            others = [task for task in running if task is not self._stopper]
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others)

    # -- without handlers

    async def get_one(
        self,
        *,
        timeout: float = 5.0,  # noqa: ASYNC109 - FastStream's name
    ) -> StreamMessage[Any] | None:
        """The next message, of a subscriber without handlers.

        It is acknowledged at once; with `AckPolicy.MANUAL`, acknowledge it.

        Args:
            timeout: how long to wait, in seconds.

        Returns:
            The message; None after the timeout.
        """
        unit = await self._take(int(timeout * 1000))
        return None if unit is None else await self._processed(unit)

    async def __aiter__(self) -> AsyncIterator[StreamMessage[Any]]:
        """The messages of a subscriber without handlers; see `get_one`."""
        while (unit := await self._take(None)) is not None:
            yield await self._processed(unit)

    async def _take(self, timeout_ms: int | None) -> RawMessage | RawBatch[Any] | None:
        # FastStream's brokers raise AssertionError here.
        assert not self.calls, "A subscriber with handlers has no `get_one`."  # noqa: S101
        assert self.consumer, "Start the subscriber first."  # noqa: S101
        if not self._waiting:
            try:
                batch = await self.consumer.receive(timeout_ms)
            except ClosedError:
                return None
            if batch is None:
                return None
            self._waiting.extend(self._units(batch))
        return self._waiting.popleft()

    async def _processed(self, unit: RawMessage | RawBatch[Any]) -> StreamMessage[Any]:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        message = await process_msg(
            msg=unit,
            middlewares=(one(unit, context=context) for one in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert message is not None  # noqa: S101 - only a missing message makes none
        if self.ack_policy is not AckPolicy.MANUAL:
            await message.ack()
        return message

    # -- called by FastStream

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        raw = message.raw_message
        request = cast("RawMessage", raw) if is_request(raw) else None
        config, producer = self._config, self._outer_config.producer
        return (ReplyPublisher(producer, config.command, message.reply_to, request),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """What log lines show about a message."""
        topic = ",".join(self.topics) if message is None else raw_messages(message)[0].topic
        return {
            "topic": topic,
            "group_id": self.group_id or "",
            "message_id": getattr(message, "message_id", ""),
        }


# -- TubeMQ acknowledges whole batches


class SharedBatch:
    """A batch that is acknowledged when all its messages are.

    If one of them was retried, the whole batch is delivered again, when all of them are settled.

    Args:
        batch: the batch.
        count: the number of its messages.
    """

    def __init__(self, batch: TubeMQBatch, count: int) -> None:
        self._batch = batch
        self._open = count
        self._again = False
        self._later: RetryAfter = None

    @property
    def topic(self) -> str:
        """The topic of the messages."""
        return self._batch.topic

    async def settled(self, *, again: bool = False, later: RetryAfter = None) -> None:
        """One message is done, or to be delivered again."""
        self._open -= 1
        self._again |= again
        self._later = self._later if later is None else later
        if self._open:
            return
        if self._again:
            await self._batch.retry(later=TUBEMQ_RETRY if self._later is None else self._later)
        else:
            await self._batch.ack()


class Share:
    """The settlement of one message of a `SharedBatch`. Repeating it has no effect."""

    def __init__(self, batch: SharedBatch) -> None:
        self._batch = batch
        self._open = True

    async def ack(self) -> None:
        """The message is done."""
        if self._open:
            self._open = False
            await self._batch.settled()

    async def retry(self, *, later: RetryAfter = None, reason: str | None = None) -> None:
        """The message is to be delivered again."""
        del reason
        if isinstance(later, int):
            raise UsageError(
                "TubeMQ has no delay levels.", topic=self._batch.topic, hint="Give a timedelta."
            )
        if self._open:
            self._open = False
            await self._batch.settled(again=True, later=later)

    async def dead_letter(self, *, reason: str | None = None) -> None:
        """The message is given up: TubeMQ has no dead letters."""
        if self._open:
            log_dropped(self._batch.topic, reason)
        await self.ack()


def shared(batch: TubeMQBatch) -> list[RawMessage]:
    """The messages of a batch, which settle it together."""
    received = list(batch)
    whole = SharedBatch(batch, len(received))
    return [
        TubeMQDelivered(**msgspec.structs.asdict(one), settlement=Share(whole)) for one in received
    ]
