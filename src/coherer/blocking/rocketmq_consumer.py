"""RocketMQ's consumers without asyncio."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from itertools import count, repeat
from typing import Any, Final, TypeVar, cast

from coherer._client.engine.progress import Progress
from coherer._client.rocketmq.consumer import POLL_MS
from coherer._client.rocketmq.consumer import Consumer as AsyncConsumer
from coherer._client.rocketmq.consumer import PullConsumer as AsyncPullConsumer
from coherer._client.rocketmq.membership import Member
from coherer._client.rocketmq.options import Selection
from coherer._client.rocketmq.received import DEAD, ClaimedBatch, Later, View
from coherer._client.rocketmq.start_position import Edge
from coherer._wire.rocketmq.names import Queue
from coherer.blocking.consuming import AsyncConsumer as Source
from coherer.blocking.consuming import Receiving
from coherer.blocking.portal import Portal
from coherer.blocking.using import Used

M = TypeVar("M", bound=Member)


class RocketReceived(View, frozen=True, eq=False, gc=False):
    """A message that a blocking consumer has handed out; see `ConsumedMessage`."""

    def ack(self) -> None:
        """Say that the message is dealt with. Doing so again changes nothing."""
        source, number = self.source, self.number
        _portal(source).post(lambda: source.acknowledge(number))

    def retry(self, *, later: Later = None) -> None:
        """Say that the message could not be dealt with: it comes again, with a higher `attempt`.

        Args:
            later: when; see `ConsumedMessage.retry`.

        Raises:
            UsageError: there is no such delay level.
        """
        source, number = self.source, self.number
        _portal(source).call(lambda: source.retry(number, later))

    def dead_letter(self) -> None:
        """Say that the message will never be dealt with: it goes to the dead letters now."""
        self.retry(later=DEAD)


class RocketBatch(ClaimedBatch):
    """Messages of one queue that a blocking consumer has handed out. See `MessageBatch`."""

    __slots__ = ("portal",)

    def __init__(self, *values: Any, portal: Portal, **fields: Any) -> None:
        super().__init__(*values, **fields)
        self.portal = portal

    def __iter__(self) -> Iterator[RocketReceived]:
        return map(_VIEW, self.bodies(), repeat(self), count())


_VIEW: Final[Callable[..., RocketReceived]] = RocketReceived


def _portal(batch: ClaimedBatch) -> Portal:
    return cast("RocketBatch", batch).portal


class BaseMember(Used[M]):
    """What the push and the pull consumer have in common.

    Listeners to assignments are called in the loop's thread and may not wait for the client.

    Args:
        portal: the way to the event loop.
        consumer: does the work there; nobody else uses it.
    """

    def __init__(self, portal: Portal, consumer: M) -> None:
        super().__init__(portal, consumer)
        consumer.make = partial(RocketBatch, portal=portal)

    @property
    def group(self) -> str:
        """The group."""
        return self._inner.group

    @property
    def topics(self) -> Collection[str]:
        """The topics, the group's retry topic among them."""
        return self._inner.topics

    @property
    def assignment(self) -> frozenset[Queue]:
        """The queues that are ours now."""
        return self._portal.do(lambda: self._inner.assignment)

    @property
    def progress(self) -> dict[Queue, Progress]:
        """How far each queue has been dealt with."""
        return self._portal.do(lambda: self._inner.progress)

    @property
    def paused(self) -> frozenset[Queue]:
        """The paused queues."""
        return self._inner.paused

    def start(self) -> None:
        """Join the group; queues follow as soon as they are shared out (`wait_assigned`).

        Raises:
            UnavailableError: no name server could be reached.
            RefusedError: a broker does not understand an SQL92 expression.
        """
        self._portal.call(self._inner.start)

    def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Queue]:
        """Wait until at least one queue is ours; returns them.

        Raises:
            RequestTimeoutError: that took too long.
        """
        return self._portal.call(lambda: self._inner.wait_assigned(timeout_ms))

    def pause(self, *queues: Queue) -> None:
        """Pull and hand out nothing of these queues until `resume`; without any, of none."""
        self._portal.do(lambda: self._inner.pause(*queues))

    def resume(self, *queues: Queue) -> None:
        """Undo `pause` for these queues; without any, for all."""
        self._portal.do(lambda: self._inner.resume(*queues))

    def close(self) -> None:
        """Give everything back and leave the group. What is not confirmed comes again."""
        if self._portal.usable:
            self._portal.call(self._inner.close)


class RocketConsumer(BaseMember[AsyncConsumer], Receiving[RocketBatch]):
    """Receives messages as a member of a group. Made by `RocketClient.consumer`; use `with`.

    `for message in consumer` and `for batch in consumer.batches()` confirm as their asyncio
    counterparts do: when what comes after is asked for.
    """

    def __init__(self, portal: Portal, consumer: AsyncConsumer) -> None:
        super().__init__(portal, consumer)
        self._source = cast("Source[RocketBatch]", consumer)  # it makes them so, see above

    def __iter__(self) -> Iterator[RocketReceived]:
        with closing(self.batches()) as batches:
            for batch in batches:
                yield from self._messages(batch)

    def _messages(self, batch: RocketBatch) -> Iterator[RocketReceived]:
        claim = batch.claim
        for message in batch:
            yield message
            if claim is not None:
                if claim.over:
                    return  # the queue rests after a failure, or all of it is dealt with
                claim.seen += 1  # what follows from the last one happens in the loop's thread


class RocketPullConsumer(BaseMember[AsyncPullConsumer]):
    """Receives messages when asked. Made by `RocketClient.pull_consumer`; use it with `with`."""

    def poll(self, timeout_ms: int | None = POLL_MS) -> RocketBatch | None:
        """The next messages; None when none came in time.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Raises:
            ClosedError: the consumer is closed.
        """
        batch = self._portal.call(lambda: self._inner.poll(timeout_ms))
        return cast("RocketBatch | None", batch)  # it makes them so, see above

    def commit(self) -> dict[Queue, int]:
        """Write down that what the polls gave is dealt with; returns the offsets.

        Raises:
            UnavailableError, RefusedError: a broker has not heard it.
        """
        return self._portal.call(self._inner.commit)

    def committed(self, queue: Queue) -> int | None:
        """The group's offset that is written down; None when there is none.

        Raises:
            UnavailableError, RefusedError: it cannot be told now.
        """
        return self._portal.call(lambda: self._inner.committed(queue))

    def position(self, queue: Queue) -> int:
        """The offset of the next message of a queue that a poll gives.

        Raises:
            UsageError: the queue is not ours.
        """
        return self._portal.do(lambda: self._inner.position(queue))

    def assign(self, queues: Collection[Queue], selection: Selection = None) -> None:
        """Read these queues, and no others. The group's members are not asked.

        Args:
            queues: all that shall be read from now on.
            selection: what is taken of them: tags, or SQL92.

        Raises:
            UsageError: the consumer shares topics with its group.
        """
        self._portal.call(lambda: self._inner.assign(queues, selection))

    def seek(self, queue: Queue, to: int | datetime | Edge) -> int:
        """Read on from another place of a queue; returns the offset.

        Args:
            queue: one of ours.
            to: an offset, a time, or `Edge.OLDEST` or `Edge.END`.

        Raises:
            UsageError: the queue is not ours, or the offset is negative.
            UnavailableError, RefusedError: the broker does not tell where that is.
        """
        return self._portal.call(lambda: self._inner.seek(queue, to))

    def offset_of(self, queue: Queue, to: int | datetime | Edge) -> int:
        """The offset of a place in a queue, of ours or not; see `seek`."""
        return self._portal.call(lambda: self._inner.offset_of(queue, to))

    def queues(self, topic: str) -> list[Queue]:
        """The queues of a topic that can be read.

        Raises:
            RefusedError: the topic does not exist.
        """
        return self._portal.call(lambda: self._inner.queues(topic))
