"""RocketMQ's consumers without asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Iterator
from datetime import datetime
from functools import partial
from itertools import count, repeat
from typing import Any, TypeVar, cast

from coherer._client.engine.assigned import RetryAfter
from coherer._client.engine.consumer import Progress, Stop, on_sigterm
from coherer._client.rocketmq.consumer import POLL_MS
from coherer._client.rocketmq.consumer import Consumer as AsyncConsumer
from coherer._client.rocketmq.consumer import PullConsumer as AsyncPullConsumer
from coherer._client.rocketmq.options import Selection
from coherer._client.rocketmq.received import DEAD, ConsumedMessage
from coherer._client.rocketmq.received import ReceivedBatch as AsyncBatch
from coherer._client.rocketmq.start_position import Edge
from coherer._wire.rocketmq.names import Queue
from coherer.blocking.portal import Portal
from coherer.blocking.using import Used

C = TypeVar("C", bound=AsyncConsumer | AsyncPullConsumer)


class RocketReceived(ConsumedMessage, frozen=True, eq=False, gc=False):
    """A message that a blocking consumer has received; see `ConsumedMessage`."""

    def ack(self) -> None:
        """Acknowledge the message; see `ConsumedMessage.ack`."""
        cast("RocketBatch", self._batch).post(super().ack)

    def retry(self, *, later: RetryAfter = None) -> None:  # type: ignore[override]
        """Have the message delivered again later; see `ConsumedMessage.retry`.

        Raises:
            UsageError: there is no such delay level.
        """
        retry = super().retry
        cast("RocketBatch", self._batch).portal.call(lambda: retry(later=later))

    def dead_letter(self) -> None:  # type: ignore[override]
        """Make the message a dead letter: it is not delivered to the group again."""
        self.retry(later=DEAD)


class RocketBatch(AsyncBatch):
    """Messages of one queue that a blocking consumer has received; see `ReceivedBatch`.

    Attributes:
        portal: the way to the event loop.
    """

    __slots__ = ("portal",)

    def __init__(self, *values: Any, portal: Portal, **fields: Any) -> None:
        super().__init__(*values, **fields)
        self.portal = portal

    def __iter__(self) -> Iterator[RocketReceived]:  # type: ignore[override]
        return map(RocketReceived, self.bodies(), repeat(self), count())

    def ack(self) -> None:
        """Acknowledge the batch; see `ReceivedBatch.ack`."""
        self.post(super().ack)

    def retry(self, *, later: RetryAfter = None) -> None:  # type: ignore[override]
        """Have the messages that are not acknowledged delivered again later.

        Raises:
            UsageError: there is no such delay level.
        """
        retry = super().retry
        self.portal.call(lambda: retry(later=later))

    def dead_letter(self) -> None:  # type: ignore[override]
        """Make the messages that are not acknowledged dead letters."""
        self.retry(later=DEAD)

    def post(self, work: Callable[[], object]) -> None:
        """Call a function in the loop's thread."""
        if self.portal.usable:
            self.portal.post(work)
        else:  # in the loop's thread, or closed: then it has no effect
            work()


class BaseMember(Used[C]):
    """The common part of the push and the pull consumer.

    Listeners to assignments are called in the loop's thread and may not wait for the client.

    Args:
        portal: the way to the event loop.
        consumer: does the work there; nobody else uses it.
    """

    def __init__(self, portal: Portal, consumer: C) -> None:
        super().__init__(portal, consumer)
        consumer.make = partial(RocketBatch, portal=portal)

    @property
    def group(self) -> str:
        """The group."""
        return self._inner.group

    @property
    def topics(self) -> Collection[str]:
        """The topics, including the group's retry topic."""
        return self._inner.topics

    @property
    def assignment(self) -> frozenset[Queue]:
        """The assigned queues."""
        return self._portal.do(lambda: self._inner.assignment)

    @property
    def progress(self) -> dict[Queue, Progress]:
        """How far each assigned queue has been processed."""
        return self._portal.do(lambda: self._inner.progress)

    @property
    def paused(self) -> frozenset[Queue]:
        """The paused queues."""
        return self._inner.paused

    def start(self) -> None:
        """Join the group; queues are assigned soon after (`wait_assigned`).

        Raises:
            UnavailableError: no name server could be reached.
            RefusedError: a broker does not accept an SQL92 expression.
        """
        self._portal.call(self._inner.start)

    def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Queue]:
        """Wait until at least one queue is assigned; returns all that are.

        Raises:
            RequestTimeoutError: there was none in time.
        """
        return self._portal.call(lambda: self._inner.wait_assigned(timeout_ms))

    def pause(self, *partitions: Queue) -> None:
        """Stop pulling and delivering these queues until `resume`; without any, all of them."""
        self._portal.do(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: Queue) -> None:
        """Undo `pause` for these queues; without any, for all of them."""
        self._portal.do(lambda: self._inner.resume(*partitions))

    def close(self) -> None:
        """Leave the group. Messages that are not acknowledged are delivered again."""
        if self._portal.usable:
            self._portal.call(self._inner.close)


class RocketConsumer(BaseMember[AsyncConsumer]):
    """Receives messages as a member of a group. Made by `RocketClient.consumer`; use `with`.

    `for message in consumer` and `for batch in consumer.batches()` acknowledge as their asyncio
    counterparts do: when the next one is asked for.
    """

    def receive(self, timeout_ms: int | None = None) -> RocketBatch | None:
        """The next batch; see `Consumer.receive`."""
        return _blocking(self._portal.call(lambda: self._inner.receive(timeout_ms)))

    def batches(self) -> Generator[RocketBatch]:
        """Batches for `for`; see `Consumer.batches`.

        Raises:
            ClosedError: the consumer is closed. A loop that is running ends without an error.
        """
        self._inner.check()
        batches = self._portal.do(self._inner.batches)

        async def take() -> AsyncBatch | None:
            return await anext(batches, None)

        return self._batches(lambda: _blocking(self._portal.call(take)))

    def __iter__(self) -> Iterator[RocketReceived]:
        for batch in self.batches():
            delivery = batch.delivery
            for message in batch:
                yield message
                if delivery is not None:
                    if not delivery.in_hand:
                        break  # the queue pauses after a failure, or all of it is acknowledged
                    delivery.seen += 1  # it is acknowledged with the next request to the loop

    def run(
        self, handler: Callable[[RocketBatch], Awaitable[None] | None], *, workers: int = 1
    ) -> None:
        """Pass every batch to `handler`, in a thread; see `Consumer.run`."""
        stop = Stop()

        def handle(batch: AsyncBatch) -> Awaitable[None] | None:
            blocking = _blocking(batch)
            assert blocking is not None  # noqa: S101 - there is a batch
            return handler(blocking)

        with on_sigterm(lambda: self._portal.post(stop.request)):
            self._portal.call(lambda: self._inner.run(handle, workers=workers, stop=stop))

    def commit(self, *batches: RocketBatch) -> dict[Queue, int]:
        """Acknowledge batches, and store the offsets of their queues; see `Consumer.commit`."""
        return self._portal.call(lambda: self._inner.commit(*batches))

    def seek(self, partition: Queue, offset: int | datetime | Edge) -> None:
        """Continue at another position of an assigned queue; see `Consumer.seek`."""
        self._portal.call(lambda: self._inner.seek(partition, offset))

    @staticmethod
    def _batches(take: Callable[[], RocketBatch | None]) -> Generator[RocketBatch]:
        while (batch := take()) is not None:
            yield batch


class RocketPullConsumer(BaseMember[AsyncPullConsumer]):
    """Receives messages on request. Made by `RocketClient.pull_consumer`; use it with `with`."""

    def poll(self, timeout_ms: int | None = POLL_MS) -> RocketBatch | None:
        """The next messages; None on timeout.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Raises:
            ClosedError: the consumer is closed.
        """
        return _blocking(self._portal.call(lambda: self._inner.poll(timeout_ms)))

    def commit(self) -> dict[Queue, int]:
        """Store the offsets behind the messages of the polls; returns the offsets.

        Raises:
            UnavailableError, RefusedError: a broker has not stored them.
        """
        return self._portal.call(self._inner.commit)

    def committed(self, queue: Queue) -> int | None:
        """The group's stored offset; None if there is none.

        Raises:
            UnavailableError, RefusedError: it cannot be read now.
        """
        return self._portal.call(lambda: self._inner.committed(queue))

    def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that a poll returns.

        Raises:
            UsageError: the queue is not assigned.
        """
        return self._portal.do(lambda: self._inner.position(queue))

    def assign(self, queues: Collection[Queue], selection: Selection = None) -> None:
        """Read exactly these queues, without rebalancing.

        Args:
            queues: all queues to read from now on.
            selection: the filter: tags, or SQL92.

        Raises:
            UsageError: the consumer shares topics with its group.
        """
        self._portal.call(lambda: self._inner.assign(queues, selection))

    def seek(self, queue: Queue, to: int | datetime | Edge) -> int:
        """Continue at another position of an assigned queue; returns the offset.

        Args:
            queue: an assigned queue.
            to: an offset, a time, or `Edge.OLDEST` or `Edge.END`.

        Raises:
            UsageError: the queue is not assigned, or the offset is negative.
            UnavailableError, RefusedError: the broker did not resolve the position.
        """
        return self._portal.call(lambda: self._inner.seek(queue, to))

    def offset_of(self, queue: Queue, to: int | datetime | Edge) -> int:
        """The offset of a position in any queue; see `seek`."""
        return self._portal.call(lambda: self._inner.offset_of(queue, to))

    def queues(self, topic: str) -> list[Queue]:
        """The readable queues of a topic.

        Raises:
            RefusedError: the topic does not exist.
        """
        return self._portal.call(lambda: self._inner.queues(topic))


def _blocking(batch: AsyncBatch | None) -> RocketBatch | None:
    assert batch is None or isinstance(batch, RocketBatch)  # noqa: S101 - see `make`
    return batch
