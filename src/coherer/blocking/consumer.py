"""The consumer without asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from coherer._client.tubemq.consumer import Consumer as AsyncConsumer
from coherer._client.tubemq.options import Progress
from coherer._wire.tubemq.delivery import MessageBatch
from coherer._wire.tubemq.names import Partition
from coherer.blocking.consuming import Receiving
from coherer.blocking.portal import Portal
from coherer.blocking.using import Used
from coherer.message import ReceivedMessage


class Consumer(Used[AsyncConsumer], Receiving[MessageBatch]):
    """Receives messages as a member of a group. Made by `Client.consumer`; use it with `with`.

    `for message in consumer` and `for batch in consumer.batches()` confirm as their asyncio
    counterparts do: a package is confirmed when what comes after it is asked for.

    Listeners to assignments are called in the loop's thread and may not wait for the client.

    Args:
        portal: the way to the event loop.
        inner: does the work there.
    """

    def __init__(self, portal: Portal, inner: AsyncConsumer) -> None:
        super().__init__(portal, inner)
        self._source = inner

    @property
    def group(self) -> str:
        """The group."""
        return self._inner.group

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions that are ours now."""
        return self._portal.do(lambda: self._inner.assignment)

    @property
    def progress(self) -> dict[Partition, Progress]:
        """How far each partition has been read."""
        return self._portal.do(lambda: self._inner.progress)

    @property
    def paused(self) -> frozenset[str]:
        """The keys of paused partitions."""
        return self._inner.paused

    def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Partition]:
        """Wait until at least one partition is ours; returns them.

        Raises:
            RequestTimeoutError: that took too long.
        """
        return self._portal.call(lambda: self._inner.wait_assigned(timeout_ms))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        with closing(self.batches()) as batches:
            for batch in batches:
                yield from batch

    def pause(self, *partitions: Partition | str) -> None:
        """Fetch and deliver nothing of these partitions until `resume`; without any, of none."""
        self._portal.do(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: Partition | str) -> None:
        """Undo `pause` for these partitions; without any, for all."""
        self._portal.do(lambda: self._inner.resume(*partitions))
