"""The consumer of RocketMQ: what Java calls a push consumer (8.8 to 8.15).

Theory: `holdings` finds out which queues are ours; each of them (`held`) is pulled from ahead of
the application, and what comes waits in the inbox. Delivery is at least once, message by message:
what was neither confirmed nor sent back comes again.

Ways to consume:

| | a message is confirmed |
|---|---|
| `receive` and `confirm` | with its batch, by you |
| `async for message in consumer` | when the loop asks for the next message |
| `async for batch in consumer.batches()` | when the loop asks for the next batch |
| `run(handler)` | when the handler returns |

Each message can also be dealt with by itself: `message.ack()`, `await message.retry()`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import ClassVar, Final

from coherer._client.engine.handling import Stop, handle
from coherer._client.engine.iteration import BatchIterator
from coherer._client.engine.tasks import every
from coherer._client.rocketmq.claimed import Claim
from coherer._client.rocketmq.claims import HeldClaim
from coherer._client.rocketmq.consume_trace import ConsumerTrace
from coherer._client.rocketmq.consumer_options import ConsumerOptions, Topics
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.iteration import messages
from coherer._client.rocketmq.member import Member
from coherer._client.rocketmq.received import ConsumedMessage, ReceivedBatch
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._wire.rocketmq.bodies import CONSUME_PASSIVELY
from coherer._wire.rocketmq.pulling import SUSPEND
from coherer.errors import RefusedError, UsageError

_log = Log(logging.getLogger(__name__))

Handler = Callable[[ReceivedBatch], Awaitable[None] | None]
"""Deals with a batch; an exception says that it could not."""

OVERDUE_LEVEL: Final = 3
"""The delay level at which messages are sent back that the application does not deal with."""

OVERDUE_CHECK_MS: Final = 60_000


class Consumer(Member):
    """Receives messages as a member of a group. Made by `Client.consumer`; use `async with`.

    Args:
        instance: the way to the cluster.
        group: the group; its members share the queues of its topics.
        topics: what to receive.
        options: how.
    """

    consume_type: ClassVar[str] = CONSUME_PASSIVELY
    flags: ClassVar[int] = SUSPEND

    def __init__(
        self,
        instance: Instance,
        group: str,
        topics: Topics,
        options: ConsumerOptions | None = None,
    ) -> None:
        super().__init__(instance, group, topics, options or ConsumerOptions())
        if not self._subscriptions:
            raise UsageError("A consumer receives one topic at least.")
        trace = self._options.trace
        self._trace = ConsumerTrace(instance, self._group, trace) if trace else None

    async def receive(self, timeout_ms: int | None = None) -> ReceivedBatch | None:
        """The next batch, to be passed to `confirm` or `reject`.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Returns:
            A batch; None when time is up.

        Raises:
            ClosedError: the consumer was closed.
        """
        batch = await self._receive(timeout_ms)
        if self._trace is not None and batch is not None and batch.claim is not None:
            batch.claim.watch = self._trace.begin(batch)
        return batch

    async def confirm(self, batch: ReceivedBatch) -> int:
        """Say that a batch is dealt with, and have that written down.

        Returns:
            The group's new offset in the queue: everything before it is dealt with.

        Raises:
            UsageError: it has been confirmed or rejected already.
            RefusedError: the queue is not ours any more; the messages come again.
            UnavailableError: no answer; the messages may come again.
        """
        claim = self._in_hand(batch)
        claim.finish()
        if not isinstance(claim, HeldClaim):
            return batch.next_offset
        offset = claim.process.commit_offset
        await self._holdings.store.confirm(batch.queue)
        return offset

    async def reject(self, batch: ReceivedBatch) -> int:
        """Say that a batch could not be dealt with: what is open of it comes again later.

        Returns:
            The offset before which everything is dealt with here, or sent back.

        Raises:
            UsageError: it has been confirmed or rejected already.
            RefusedError: the queue is not ours any more; the messages come again anyway.
        """
        claim = self._in_hand(batch)
        await claim.reject()
        return claim.process.commit_offset if isinstance(claim, HeldClaim) else batch.next_offset

    def done(self, batch: ReceivedBatch) -> None:
        """Like `confirm`, but it is written down with the next pull: cheaper, and no answer."""
        self.check()
        if batch.claim is not None:
            batch.claim.finish()

    def put_back(self, batch: ReceivedBatch) -> None:
        """Give a batch back unread: what is open of it is received again from here."""
        self.check()
        if batch.claim is not None:
            batch.claim.put_back()

    def batches(self) -> BatchIterator[ReceivedBatch]:
        """Batches for `async for`; each is confirmed when the loop asks for the next.

        A batch that a loop left early, by `break` or an error, is received again.
        """
        self.check()
        return BatchIterator(self)

    def __aiter__(self) -> AsyncGenerator[ConsumedMessage]:
        """Messages for `async for`; each is confirmed when the loop asks for the next."""
        self.check()
        return messages(self)

    async def run(self, handler: Handler, *, workers: int = 1, stop: Stop | None = None) -> None:
        """Have every batch dealt with by `handler`, until the consumer is closed or SIGTERM.

        On SIGTERM, unless the application handles it itself, the batches in hand are finished and
        confirmed, and `run` returns; the end of the `async with` block leaves the group.

        Args:
            handler: gets a batch; a plain function runs in a thread. When it returns, the batch is
                confirmed; when it raises, that is logged, and what it has not acknowledged comes
                again.
            workers: batches dealt with at a time; of one queue also, unless it is in order.
            stop: ends it from outside, for facades.
        """
        self.check()
        await handle(self, handler, self._failed, workers, stop)

    async def close(self) -> None:
        """Give everything back and leave the group. What is not confirmed comes again.

        Calling it again does nothing.
        """
        await super().close()
        if self._trace is not None:
            await self._trace.close()

    # -- inside

    def _services(self) -> dict[str, Coroutine[None, None, None]]:
        services = super()._services()
        services["offsets"] = every(self._options.persist_ms, self._holdings.persist)
        if self._options.consume_ms and not self._options.orderly:
            services["overdue"] = every(OVERDUE_CHECK_MS, self._send_back_overdue)
        return services

    def _in_hand(self, batch: ReceivedBatch) -> Claim:
        self.check()
        claim = batch.claim
        if claim is None or claim.over:
            raise UsageError(
                "The batch has been confirmed, rejected or lost already.",
                topic=batch.topic,
                partition=batch.partition,
            )
        if isinstance(claim, HeldClaim) and not claim.valid:
            raise RefusedError(
                "The queue is not ours any more.",
                topic=batch.topic,
                partition=batch.partition,
                hint="The messages will be delivered again, to whoever has the queue.",
            )
        return claim

    @staticmethod
    async def _failed(batch: ReceivedBatch) -> None:
        if batch.claim is not None:
            await batch.claim.reject()

    async def _send_back_overdue(self) -> None:
        """Batches that the application has had for too long are not waited for any more (8.11)."""
        before_ms = now_ms() - self._options.consume_ms
        for held in list(self._holdings.held.values()):
            for package in held.process.overdue(before_ms):
                _log.warning("%s: a batch is not dealt with in time", held.queue)
                claim = package.batch.claim
                if claim is not None:
                    for number in package.open_numbers:
                        await claim.retry(number, OVERDUE_LEVEL)
