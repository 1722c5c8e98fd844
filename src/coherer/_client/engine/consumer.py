"""How batches get from assigned partitions to the application, for both protocols.

A protocol has a `Fetcher` per assigned partition. `Assignments` holds them and the prefetch buffer;
`BaseConsumer` is the base of the consumers that applications use.

| way to consume | acknowledged |
|---|---|
| `receive`, then `batch.ack()` or `consumer.commit(batch)` | by the application |
| `async for message in consumer` | when the loop asks for the next message |
| `async for batch in consumer.batches()` | when the loop asks for the next batch |
| `run(handler)` | when the handler returns |

Rules:

* Delivery is at least once. A batch that the application neither acknowledges nor retries stays
  in its hands, even if it is garbage-collected; it is delivered again when the partition moves to
  another member or the consumer is closed.
* A consumer has one loop at a time. If a loop ends by `break` or an exception, the next loop
  receives its unacknowledged messages again. To process several batches at a time, use `run` or
  `receive`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from abc import abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from time import perf_counter
from types import FrameType
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

import msgspec

from coherer._client.engine.assigned import (
    Delivery,
    DeliveryState,
    Fetcher,
    Phase,
    delivery_of,
)
from coherer._client.engine.assignments import Assignments, PrefetchBuffer
from coherer._client.engine.batches import ReceivedBatch
from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.metrics import ConsumerMeter
from coherer._client.engine.tasks import cancel, is_order
from coherer._common.logs import Log
from coherer.errors import ClosedError, CohererError, RefusedError, UsageError

_log = Log(logging.getLogger(__name__))

B = TypeVar("B", bound=ReceivedBatch[Any])
F = TypeVar("F", bound=Fetcher[Any])
K = TypeVar("K", bound=Hashable)
M = TypeVar("M")
P = TypeVar("P", bound=Hashable)

_IN_HAND: Final = DeliveryState.IN_HAND


class Progress(msgspec.Struct, frozen=True):
    """How far a partition or queue has been read.

    Args:
        offset: where the last batch began (TubeMQ); all messages before it are acknowledged
            (RocketMQ).
        max_offset: the end of the partition in the last answer, -1 while unknown.
        backlog_bytes: the number of bytes after the last batch, -1 while unknown.
        exact: whether offsets count messages.
        left_out: how many messages could not be delivered since the partition was assigned,
            because they are damaged.
        error: why the last fetch failed; None if it was answered. Fetching goes on.
    """

    offset: int
    max_offset: int
    backlog_bytes: int
    exact: bool
    left_out: int = 0
    error: CohererError | None = None


class BatchIterator(AsyncIterator[B]):
    """Batches for `async for`; each is acknowledged when the loop requests the next one."""

    def __init__(self, receive: Callable[[], Awaitable[B | None]]) -> None:
        self._receive = receive
        self._delivery: Delivery[B] | None = None

    def __aiter__(self) -> BatchIterator[B]:
        return self

    async def __anext__(self) -> B:
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            delivery.acknowledge()
        try:
            batch = await self._receive()
        except ClosedError:
            raise StopAsyncIteration from None
        assert batch is not None  # noqa: S101 - without a timeout there is a batch
        self._delivery = delivery_of(batch)
        return batch

    def leave(self) -> None:
        """Deliver the messages that the loop has not acknowledged again."""
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            delivery.requeue()


class MessageIterator(AsyncIterator[M]):
    """Messages for `async for`; each is acknowledged when the loop requests the next one.

    TubeMQ can only acknowledge whole batches: a batch is acknowledged after its last message.
    """

    def __init__(self, receive: Callable[[], Awaitable[ReceivedBatch[M] | None]]) -> None:
        self._receive = receive
        self._delivery: Delivery[Any] | None = None
        self._messages: Iterator[M] = iter(())

    def __aiter__(self) -> MessageIterator[M]:
        return self

    async def __anext__(self) -> M:
        delivery = self._delivery
        if delivery is not None and delivery.state is _IN_HAND:
            delivery.seen += 1
            for message in self._messages:
                return message
            delivery.acknowledge()
        self._delivery = None
        while True:
            try:
                batch = await self._receive()
            except ClosedError:
                raise StopAsyncIteration from None
            assert batch is not None  # noqa: S101 - without a timeout there is a batch
            self._delivery = delivery_of(batch)
            self._messages = iter(batch)
            for message in self._messages:
                return message

    def leave(self) -> None:
        """Deliver the messages that the loop has not acknowledged again."""
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            delivery.requeue()


class _Exit(BaseException):
    """A handler has ended the program.

    A worker that raised its error itself would end the event loop at once, beside the other ones.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class _Stop:
    """Ends `run` early: running handlers finish, and no new batch is taken."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._idle: set[asyncio.Task[None]] = set()

    async def watch(self) -> None:
        """Wait for the event, and wake the workers that wait for a batch."""
        await self._event.wait()
        for task in self._idle:
            task.cancel()

    def is_requested(self) -> bool:
        """Whether the event is set."""
        return self._event.is_set()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """While the block runs, the current task waits for a batch and may be cancelled."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - workers are tasks
        self._idle.add(task)
        try:
            yield
        finally:
            self._idle.discard(task)


_on_sigterm: Final[list[Callable[[], object]]] = []
"""What the first SIGTERM calls: each `run` in the main thread adds its own."""


@contextmanager
def on_sigterm(
    stop: asyncio.Event, post: Callable[[Callable[[], object]], object]
) -> Generator[None]:
    """While the block runs, the first SIGTERM sets `stop`; the second ends the process.

    Does nothing outside the main thread, or if the application has set a handler of its own.

    Args:
        stop: belongs to an event loop.
        post: calls a function in that loop; called between two bytecode instructions.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _terminate):
        yield
        return
    action = partial(post, partial(_set, stop))
    _on_sigterm.append(action)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        _on_sigterm.remove(action)
        if not _on_sigterm and signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
    for action in _on_sigterm:
        action()


def _set(stop: asyncio.Event) -> None:
    stop.set()
    # Not in the signal handler: it may interrupt a log call that holds a lock.
    _log.info("SIGTERM: finishing the current batches, then stopping")


class BaseConsumer(Lifecycle, Generic[P, K, F, B, M]):
    """A member of a group that receives batches. A protocol adds membership, `commit` and `seek`.

    The type variables are a partition, its key in maps, its fetcher, a batch and a message.

    Args:
        prefetch_bytes: nothing is fetched while this many bytes are buffered.
        count_in_hand: see `PrefetchBuffer`.
    """

    _KIND: ClassVar[str] = "consumer"
    _RETRY: ClassVar[timedelta | None]
    """The delay before a batch is redelivered after its handler failed; None for the default."""
    _meter: ConsumerMeter | None = None
    """Measures the consumer; None without metrics."""
    _NOT_ASSIGNED: ClassVar[int | None] = None
    _NOT_IN_HAND: ClassVar[int | None] = None
    """The protocol's codes for batches that cannot be acknowledged."""

    def __init__(self, prefetch_bytes: int, *, count_in_hand: bool) -> None:
        self._prefetch = PrefetchBuffer[B](prefetch_bytes, count_in_hand=count_in_hand)
        self._assignments = Assignments[K, F](self._prefetch)
        self._current_loop: BatchIterator[B] | MessageIterator[M] | None = None
        self._said_returned = False
        self._state = "new"

    @property
    @abstractmethod
    def group(self) -> str:
        """The group."""

    # -- the assignment

    @property
    @abstractmethod
    def assignment(self) -> frozenset[P]:
        """The assigned partitions."""

    @property
    @abstractmethod
    def progress(self) -> dict[P, Progress]:
        """How far each assigned partition has been read."""

    @property
    def errors(self) -> list[CohererError]:
        """The errors that keep the consumer from receiving now; it keeps trying."""
        return [one.error for one in self.progress.values() if one.error is not None]

    @property
    def paused(self) -> frozenset[K]:
        """The paused partitions."""
        return self._assignments.paused

    def pause(self, *partitions: P | K) -> None:
        """Stop fetching and delivering these partitions until `resume`; without any, all."""
        self.check()
        chosen = frozenset(map(self._key, partitions)) or frozenset(self._assignments.fetchers)
        self._assignments.pause(self._assignments.paused | chosen)

    def resume(self, *partitions: P | K) -> None:
        """Undo `pause` for these partitions; without any, for all of them."""
        self.check()
        chosen = frozenset(map(self._key, partitions)) or self._assignments.paused
        self._assignments.pause(self._assignments.paused - chosen)

    @abstractmethod
    async def seek(
        self, partition: P | K, offset: int | datetime | Literal["earliest", "latest"]
    ) -> int:
        """Continue at another position of an assigned partition; returns its offset."""

    @abstractmethod
    async def commit(self, *batches: B) -> Mapping[P, int]:
        """Acknowledge these batches, and store all acknowledgements at the servers."""

    # -- batches

    async def receive(self, timeout_ms: int | None = None) -> B | None:
        """The next batch, to be acknowledged with `batch.ack()` or `commit`.

        Args:
            timeout_ms: how long to wait; None for ever, 0 not at all.

        Returns:
            A batch; None on timeout.

        Raises:
            ClosedError: the consumer was closed.
            RefusedError: the cluster has permanently refused this member.
        """
        self.check()
        prefetch = self._prefetch
        meter, began_s = self._meter, 0.0
        if meter is not None:
            began_s = perf_counter()
        deadline = None
        if timeout_ms is not None:
            deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while (batch := prefetch.take()) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await prefetch.changed()
            except TimeoutError:
                return None
            self.check()
        if meter is not None:
            meter.received(batch, perf_counter() - began_s)
        return batch

    def batches(self) -> AsyncIterator[B]:
        """Batches for `async for`; each is acknowledged when the loop asks for the next.

        Messages that the previous loop left unacknowledged, by `break` or an exception, are
        received again.
        """
        self.check()
        loop = BatchIterator[B](self.receive)
        self._begin_loop(loop)
        return loop

    def __aiter__(self) -> AsyncIterator[M]:
        """Messages for `async for`; see `batches`."""
        self.check()
        loop = MessageIterator[M](self.receive)
        self._begin_loop(loop)
        return loop

    async def run(
        self,
        handler: Callable[[B], Awaitable[None] | None],
        *,
        workers: int = 1,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Pass every batch to `handler`, until the consumer is closed or SIGTERM arrives.

        On SIGTERM, running handlers finish, their batches are acknowledged, no new batch is taken,
        and `run` returns. Several `run` at the same time all do this. It needs the main thread, and
        an application that does not handle SIGTERM itself.

        Args:
            handler: called with a batch; a plain function runs in a thread. When it returns, the
                batch is acknowledged; the value that it returns has no meaning. When it raises, the
                exception is logged, and the messages that it has not acknowledged are delivered
                again. `SystemExit` and `KeyboardInterrupt` end `run`, which raises them.
            workers: how many batches are handled at a time.
            stop: when it is set, `run` returns as on SIGTERM.

        Raises:
            UsageError: `workers` is less than 1.
            RefusedError: the cluster has permanently refused this member.
        """
        self.check()
        if workers < 1:
            raise UsageError(f"`run` needs at least one worker, not {workers}.")
        loop, event = asyncio.get_running_loop(), stop or asyncio.Event()
        until = _Stop(event)
        tasks = [
            asyncio.create_task(self._work(handler, until), name=f"worker {number}")
            for number in range(workers)
        ]
        watching = asyncio.create_task(until.watch(), name="stop")
        try:
            with on_sigterm(event, loop.call_soon_threadsafe):
                await asyncio.gather(*tasks)
        except _Exit as exit_:
            raise exit_.error from None
        finally:
            await cancel(*tasks, watching)

    # -- for protocols

    @abstractmethod
    def _key(self, partition: P | K) -> K:
        """The key of a partition in maps."""

    def _acknowledge(self, batch: B) -> None:
        """Acknowledge a batch that the application has received.

        Raises:
            UsageError: it was acknowledged or retried before, or fetched before a `seek`.
            RefusedError: its partition is not assigned to this consumer any more.
        """
        delivery = delivery_of(batch)
        if delivery is None:
            raise UsageError(
                "The batch was acknowledged or retried before.",
                topic=batch.topic,
                partition=batch.partition,
                code=self._NOT_IN_HAND,
            )
        if delivery.fetcher.state.phase is Phase.REVOKED:
            raise RefusedError(
                "The partition is not assigned to this consumer any more.",
                topic=batch.topic,
                partition=batch.partition,
                code=self._NOT_ASSIGNED,
                hint="The messages are delivered again, to the new owner of the partition.",
            )
        if not delivery.in_hand:
            raise UsageError(
                "The batch was fetched before a `seek` to another offset.",
                topic=batch.topic,
                partition=batch.partition,
            )
        delivery.acknowledge()

    # -- inside

    def _begin_loop(self, loop: BatchIterator[B] | MessageIterator[M]) -> None:
        before, self._current_loop = self._current_loop, loop
        if before is not None:
            before.leave()

    async def _work(self, handler: Callable[[B], Awaitable[None] | None], stop: _Stop) -> None:
        while not stop.is_requested():
            try:
                with stop.waiting():
                    batch = await self.receive()
            except ClosedError:
                return
            except asyncio.CancelledError:
                if stop.is_requested():
                    return
                raise
            assert batch is not None  # noqa: S101 - without a timeout there is a batch
            await self._process(handler, batch)

    async def _process(self, handler: Callable[[B], Awaitable[None] | None], batch: B) -> None:
        # Not `batch.ack()`: batches of the blocking API pass it to the loop from other threads.
        delivery = delivery_of(batch)
        assert delivery is not None  # noqa: S101 - it has just been received
        try:
            returned = await _handle(handler, batch)
        except (KeyboardInterrupt, SystemExit) as error:
            delivery.requeue()
            raise _Exit(error) from error
        except BaseException as error:
            if is_order(error):
                delivery.requeue()
                raise
            _log.exception(
                "The handler failed: %s",
                self._after_failure(batch),
                about=(self.group, repr(error)),
            )
            await delivery.retry(None, self._RETRY)
        else:
            delivery.acknowledge()
            if returned is not None:
                self._returned(returned)

    def _after_failure(self, batch: B) -> str:
        """Describe the failed messages, and what happens to them."""
        count = len(batch)
        what = "1 message" if count == 1 else f"{count} messages"
        return (
            f"{what} of {batch.topic}, partition {batch.partition}, in group {self.group} will be "
            "delivered again"
        )

    def _returned(self, value: object) -> None:
        """Say once that the value that a handler returned is ignored."""
        if not self._said_returned:
            self._said_returned = True
            _log.warning(
                "The handler returned %.100r. The value is ignored, and the batch is acknowledged: "
                "to have messages delivered again, raise an exception or call `batch.retry()`",
                value,
            )


async def _handle(handler: Callable[[B], Awaitable[None] | None], batch: B) -> object:
    """Call the handler and return its result, which is ignored."""
    if inspect.iscoroutinefunction(handler):
        return await handler(batch)
    answer = await asyncio.to_thread(_call, handler, batch)
    return await answer if inspect.isawaitable(answer) else answer


def _call(handler: Callable[[B], object], batch: B) -> object:
    try:
        return handler(batch)
    except StopIteration as error:  # no future takes it: before Python 3.12 its task waits for ever
        raise RuntimeError("The handler raised StopIteration.") from error
