"""Triggers: messages update assets, and wake up deferred tasks.

`MessageTrigger` fires an event for each message. Airflow's triggerer runs it as a shared stream
with acknowledgement:

* A message is acknowledged after Airflow has stored its event. If the triggerer is killed before,
  the message comes again: its event may be stored twice, but none is lost.
* At most `WINDOW` events wait to be stored, so a backlog does not overflow the triggerer's queue.

`AwaitMessageTrigger` fires one event when there is a message, and takes none: the resumed task
takes it, so that whatever is killed in between, the message stays in the topic.

Both use the client that all triggers of a process share.
"""

# The constructors of Airflow's triggers and events have no types:
# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
from msgspec.structs import asdict

import coherer
from coherer import rocketmq
from coherer.integrations.airflow.hooks import DEFAULT_CONN_ID, shared_client
from coherer.integrations.airflow.subscription import Subscription, described

__all__ = ["AwaitMessageTrigger", "MessageTrigger"]

WINDOW: Final = 256
"""How many events may wait to be stored; below Airflow's `shared_stream_subscriber_queue_size`."""


class MessageTrigger(BaseEventTrigger):
    """Fires an event for each message of a topic, for `AssetWatcher`.

    The payload of an event is a mapping: `body` (text, or None if it is not UTF-8, and then
    `body_base64`), `topic`, `tag`, `keys`, `properties`, `id`, `broker`, `partition`, `offset`.

    Args:
        topic: the topic.
        group: the consumer group. Its members share the messages, so it should be the watcher's
            own.
        conn_id: the id of the Airflow connection.
        tags: take only messages with one of these tags: `"new || paid"`, or a list.
        sql92: take only messages whose properties fulfil this condition (RocketMQ).
        start: where a new group begins, `"earliest"` or `"latest"`.

    Raises:
        UsageError: there are tags and SQL92.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        conn_id: str = DEFAULT_CONN_ID,
        tags: str | Sequence[str] | None = None,
        sql92: str | None = None,
        start: str = "earliest",
    ) -> None:
        super().__init__()
        self.subscription = Subscription(
            conn_id=conn_id, topic=topic, group=group, tags=tags, sql92=sql92, start=start
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments."""
        return f"{__name__}.{type(self).__name__}", asdict(self.subscription)

    def shared_stream_key(self) -> Hashable | None:
        """Triggers with the same arguments share a stream."""
        return (__name__, repr(self.subscription))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """The stream of messages that the triggerer acknowledges."""
        return _Stream(Subscription(**kwargs))

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Any]
    ) -> AsyncIterator[TriggerEvent]:
        """An event for each message. Override it to leave messages out."""
        async for message in shared_stream:
            yield TriggerEvent(message)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The same without a triggerer, as `dag.test()` runs it.

        A message is acknowledged when the next event is asked for.
        """
        stream = _Stream(self.subscription)
        try:
            async for message, taken in stream.open_stream():
                yield TriggerEvent(message)
                await stream.settle(taken, stored=True)
        finally:
            await stream.aclose()


class AwaitMessageTrigger(BaseTrigger):
    """Fires an event when a topic has a message for a group, and leaves the message there.

    The arguments are those of `MessageTrigger`.
    """

    def __init__(self, **subscription: Any) -> None:
        super().__init__()
        self.subscription = Subscription(**subscription)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments."""
        return f"{__name__}.{type(self).__name__}", asdict(self.subscription)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for a message, leave the group, and fire."""
        async with (
            shared_client(self.subscription.conn_id, self.subscription.group) as client,
            self.subscription.consumer(client) as consumer,
        ):
            await consumer.receive()
        yield TriggerEvent({"topic": self.subscription.topic})


class _Batch:
    """A batch, and how many of its messages are not settled."""

    def __init__(self, batch: coherer.Batch) -> None:
        self.batch = batch
        self.left = len(batch)
        self.failed = False


class _Taken(NamedTuple):
    """A message whose event waits to be stored."""

    message: coherer.AnyMessage
    held: _Batch


class _Stream(SharedStreamProducer):
    """The messages of a subscription, while a triggerer reads them."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._room = asyncio.Semaphore(WINDOW)
        self._opened = AsyncExitStack()

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], _Taken]]:
        wanted = self._subscription
        client = await self._opened.enter_async_context(shared_client(wanted.conn_id, wanted.group))
        consumer = await self._opened.enter_async_context(wanted.consumer(client))
        while (batch := await consumer.receive()) is not None:
            held = _Batch(batch)
            for message in batch:
                await self._room.acquire()
                yield described(message), _Taken(message, held)

    def get_advance_lane(self, broker_payload: _Taken) -> Hashable:
        return broker_payload.message.broker, broker_payload.message.partition

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            stored = not item.outcome.failed and item.outcome.acked + item.outcome.rejected > 0
            await self.settle(item.broker_payload, stored=stored)

    async def settle(self, taken: _Taken, *, stored: bool) -> None:
        """One message of a batch is done; the last one settles what is left of the batch.

        RocketMQ acknowledges each message, so that those whose events are stored do not come again
        with the others.
        """
        message, held = taken
        self._room.release()
        if stored and isinstance(message, rocketmq.ReceivedMessage):
            message.ack()
        held.left -= 1
        held.failed |= not stored
        if not held.left:
            await (held.batch.retry() if held.failed else held.batch.ack())

    async def aclose(self) -> None:
        await self._opened.aclose()
