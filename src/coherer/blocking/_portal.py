"""What the generated modules of this package stand on: an event loop in a thread of its own.

The public classes are facades. Each holds an asyncio object (`_inner`) and a `Portal`, the way into
the loop that runs it. `tools/generate_blocking.py` writes them from the asyncio classes; this
module holds what cannot be generated:

* `Portal`: calls from threads into the loop. Any number of threads may call. A call waits for its
  result; when the waiting thread is interrupted (Ctrl-C), the work is cancelled. Calls from the
  loop's own thread (a callback) and after a fork are refused; only `close` works in a callback, and
  returns at once. When another thread ends the loop, all calls end: none stays behind in a loop
  that does not run.
* `Facade`, `ManagedFacade`, `ClientFacade`: representation, `with` blocks, and the end of objects
  that were never closed: a `ResourceWarning`, and closing when they are collected or the program
  ends.
* `ProducerFacade`: hands messages to the loop. Messages gather in a list, and the loop is woken
  once for all of them: a wake-up is a system call, and most of the cost of a handover.
* `ConsumerFacade`, `ReaderFacade`: iterators and handlers.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar, cast

from coherer import _net as net
from coherer._client.engine.arguments import checked
from coherer._client.engine.assigned import DeliveryState, Fetched, delivery_of
from coherer._client.engine.consumer import on_sigterm
from coherer._client.engine.lifecycle import warn_unclosed
from coherer._client.engine.producer import BaseProducer, message_topic
from coherer._client.engine.sender import Bulk, CallbackSink, Outcome, SendReport, Sink, Stored
from coherer._common.logs import Log
from coherer._common.opened import opened
from coherer.errors import ClosedError, CohererError, ForkedError, UsageError
from coherer.message import Message, Receipt

_log = Log(logging.getLogger(__name__))

T = TypeVar("T")
M = TypeVar("M")
B_co = TypeVar("B_co", covariant=True)

WINDOWS_WAIT_S: Final = 0.5
"""On Windows a waiting thread notices Ctrl-C only between waits."""

CHUNK: Final = 512
"""Messages that `send_many` hands over at a time."""


class _Closable(Protocol):
    async def close(self) -> None: ...


class _LoopThread:
    """The thread of a portal, with its event loop. It does not refer to the portal.

    Attributes:
        loop: the event loop.
        closed: whether the loop ends, or has ended.
        owned: what to close before the loop ends.
        changing: held to end the loop, and to hand something over to it. A signal handler may
            interrupt the thread that holds it.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        self.closed = False
        self.owned: _Closable | None = None
        self.changing = threading.RLock()
        self._closer: int | None = None  # the thread that closes what is owned
        self._helpers: set[int] = set()
        self._process = os.getpid()
        self._ready = threading.Event()
        self._stop: asyncio.Event
        self._ending: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="coherer", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made the thread."""
        return self._process != os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is the loop's own thread."""
        return threading.get_ident() == self._thread.ident

    def end(self) -> None:
        """Stop the loop and wait until its thread has ended."""
        with self.changing:
            if not self.closed:
                self.closed = True
                self.loop.call_soon_threadsafe(self._stop.set)
        self.join()

    def end_soon(self) -> None:
        """Close what is owned and end the thread; called in it."""
        if not self.closed and self._closer is None:
            self.closed = True
            self._begin_to_end()

    def may_close(self) -> bool:
        """Whether this thread is the first one that closes what is owned.

        Its own signal handlers are, too: they cannot wait for the thread that they interrupt.
        """
        here = threading.get_ident()
        with self.changing:
            self._closer = self._closer or here
            return not self.closed and self._closer == here

    def join(self) -> None:
        """Wait until the thread has ended; not in the threads that it waits for itself."""
        if threading.get_ident() not in self._helpers:
            self._thread.join()

    def abandon(self) -> None:
        """Close what is owned and end the thread, without waiting; for garbage collection."""
        if self.closed or self.forked:
            return
        self.closed = True
        try:
            if self.owned is not None:
                warn_unclosed(self.owned, "with")
        finally:  # warnings may be errors
            self.loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._ending = asyncio.create_task(self._close_and_stop(), name="close")

    async def _close_and_stop(self) -> None:
        try:
            if self.owned is not None:
                await self.owned.close()
        finally:
            self._stop.set()

    def _run(self) -> None:
        net.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        # Its threads call handlers, which may close the client.
        self.loop.set_default_executor(ThreadPoolExecutor(initializer=self._note_helper))
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()

    def _note_helper(self) -> None:
        self._helpers.add(threading.get_ident())


class Portal:
    """An event loop in a thread of its own.

    All facades of a client refer to its portal. When the last of them is collected and the client
    was not closed, it is closed in the background, and the thread ends.
    """

    def __init__(self) -> None:
        self._core = _LoopThread()
        self._finalizer = weakref.finalize(self, self._core.abandon)
        self._finalizer.atexit = False  # `_close_all` closes what is open at the end, and waits

    @property
    def usable(self) -> bool:
        """Whether calls can be made from this thread, in this process."""
        return self.alive and not self._core.here

    @property
    def alive(self) -> bool:
        """Whether the loop runs in this process."""
        return not self._core.closed and not self._core.forked

    def own(self, owned: _Closable) -> None:
        """Close this before the loop ends, also if that happens without `close`."""
        self._core.owned = owned
        _open_portals.add(self)

    def check(self) -> None:
        """Check that calls can be made from this thread, in this process.

        Raises:
            ForkedError: the portal was made in another process.
            ClosedError: it is closed.
            UsageError: this is the loop's own thread.
        """
        if self.usable:
            return
        self.check_process()
        if self._core.closed:
            raise ClosedError("The client is closed.")
        raise UsageError(
            "A callback may not wait for the client that calls it.",
            hint="Hand the work over to another thread.",
        )

    def check_process(self) -> None:
        """Check that the portal was made in this process.

        Raises:
            ForkedError: it was made in another one.
        """
        if self._core.forked:
            raise ForkedError(
                "The client was made before a fork, in another process.",
                hint="Connect again in this process.",
            )

    def call(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        unused: Callable[[T], object] | None = None,
    ) -> T:
        """Run a coroutine function in the loop and wait for its result.

        Args:
            work: the coroutine function.
            unused: called in the loop with a result that came when the wait was interrupted.

        Raises:
            ClosedError: the portal is closed, or another thread closed it meanwhile.
        """
        self.check()
        results: list[T] = []
        running = work() if unused is None else _noted(work, results)
        try:
            with self._core.changing:
                self.check()
                future = asyncio.run_coroutine_threadsafe(running, self._core.loop)
        except BaseException:
            running.close()
            raise
        try:
            return wait_for(future)
        except CancelledError:
            if self._core.closed:
                raise ClosedError("The client was closed meanwhile.") from None
            raise
        except BaseException:
            if unused is not None:  # after the cancellation, so that no other result will come
                self.post_if_usable(lambda: [unused(one) for one in results])
            raise

    def do(self, work: Callable[[], T]) -> T:
        """Call a plain function in the loop's thread and wait for its result."""

        async def once() -> T:
            return work()

        return self.call(once)

    def post(self, work: Callable[[], object]) -> None:
        """Call a plain function in the loop's thread without waiting."""
        self.check()
        with self._core.changing:
            self.check()
            self._core.loop.call_soon_threadsafe(work)

    def post_if_usable(self, work: Callable[[], object]) -> None:
        """Call a plain function in the loop's thread without waiting; when closed, do nothing."""
        if self._core.here:
            work()
        elif self.usable:
            with suppress(ClosedError):
                self.post(work)

    def leave(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine function in the loop without waiting; for finalizers, never fails."""
        if not self.alive:
            return
        with self._core.changing:
            if self.alive:
                asyncio.run_coroutine_threadsafe(work(), self._core.loop)

    def join(self) -> None:
        """Wait until a loop that another thread ends has ended."""
        self._core.join()

    def close(self) -> None:
        """Close what is owned, stop the loop and wait until its thread has ended.

        A handler and a callback do not wait for the thread, which waits for them. Further calls
        only wait, and calls after a fork do nothing.
        """
        if self._core.here:
            self._core.end_soon()
            return
        _open_portals.discard(self)
        if self._core.forked:
            return
        if not self._core.may_close():
            self._core.join()
            return
        owned = self._core.owned
        try:
            if owned is not None:
                with suppress(ClosedError):  # another thread closes it, too, and was faster
                    self.call(owned.close)
        finally:
            self._core.end()


async def _noted(work: Callable[[], Coroutine[Any, Any, T]], results: list[T]) -> T:
    results.append(await work())
    return results[0]


_open_portals: weakref.WeakSet[Portal] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for portal in list(_open_portals):
        portal.close()


def wait_for(future: Future[T]) -> T:
    """Wait for the result of a future; an interrupted wait cancels it."""
    try:
        while sys.platform == "win32":
            try:
                return future.result(WINDOWS_WAIT_S)
            except TimeoutError:
                if future.done():
                    return future.result()
        return future.result()
    except BaseException:
        future.cancel()
        raise


class Facade(Generic[T]):
    """A blocking object: an asyncio object and the way to its loop.

    Args:
        portal: the way to the loop.
        inner: the asyncio object; nothing else uses it.
    """

    def __init__(self, portal: Portal, inner: T) -> None:
        self._portal = portal
        self._inner = inner

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        checked(cls)

    def __repr__(self) -> str:
        return repr(self._inner)


class _Managed(Protocol):
    """A producer, consumer or reader of asyncio."""

    @property
    def unclosed(self) -> bool: ...

    def _check_open(self) -> None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


W = TypeVar("W", bound=_Managed)


class ManagedFacade(Facade[W]):
    """A blocking object that is started and closed by a `with` block."""

    def __init__(self, portal: Portal, inner: W) -> None:
        super().__init__(portal, inner)
        opened(self, lambda one: one.unclosed, instead_of=inner)
        weakref.finalize(self, _leave, portal, inner).atexit = False

    @property
    def unclosed(self) -> bool:
        """Whether it has been started and not closed."""
        return self._inner.unclosed and self._portal.usable

    def __enter__(self) -> Self:
        self._portal.call(self._inner.start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _check(self) -> None:
        self._inner._check_open()  # pyright: ignore[reportPrivateUsage]
        self._portal.check()

    def _close(self) -> None:
        if self._portal.usable:
            with suppress(ClosedError):  # another thread has closed the client meanwhile
                self._portal.call(self._inner.close)
        else:
            self._portal.leave(self._inner.close)  # in a callback


def _leave(portal: Portal, inner: _Managed) -> None:
    """Close an object whose facade was collected."""
    if inner.unclosed and portal.alive:
        try:
            warn_unclosed(inner, "with")
        finally:  # warnings may be errors
            portal.leave(inner.close)


C = TypeVar("C", bound=_Closable)


class ClientFacade(Facade[C]):
    """A blocking client: makes the portal. Clients still open at exit are closed."""

    def __init__(self, inner: C) -> None:
        super().__init__(Portal(), inner)
        self._portal.own(inner)
        opened(self, lambda one: one._portal.alive, instead_of=inner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close everything that the client made, its connections and its thread.

        In a callback or a coroutine function it returns at once, and closes in the background.
        Further calls only wait for that; calls after a fork do nothing.
        """
        self._portal.close()


Post = Callable[[Message, Sink], object]
"""Posts a message in the loop's thread."""


class _FutureSink:
    """Puts an outcome into a future that threads wait for."""

    __slots__ = ("future",)

    def __init__(self, future: Future[Receipt]) -> None:
        self.future = future

    def stored(self, sent: Stored) -> None:
        receipt = sent.receipt()
        with _ignoring_callbacks():
            self.future.set_result(receipt)

    def lost(self, message: Message, error: CohererError) -> None:
        del message
        with _ignoring_callbacks():
            self.future.set_exception(error)


@contextmanager
def _ignoring_callbacks() -> Generator[None]:
    """Ignore that a future is cancelled, and what its callbacks raise: others have to be called."""
    try:
        yield
    except InvalidStateError:
        pass
    except BaseException as error:  # noqa: BLE001 - `Future` logs an `Exception` itself
        _log.exception("A callback of a future failed", about=repr(error))


class _LockSink:
    """One outcome for one thread: a lock costs a tenth of a future."""

    __slots__ = ("_lock", "_outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._outcome: Outcome | None = None

    def stored(self, sent: Stored) -> None:
        self._outcome = sent.receipt()
        self._lock.release()

    def lost(self, message: Message, error: CohererError) -> None:
        del message
        self._outcome = error
        self._lock.release()

    def wait(self) -> Receipt:
        """Return the receipt or raise the error; Ctrl-C ends the wait, not the send."""
        if sys.platform == "win32":
            while not self._lock.acquire(timeout=WINDOWS_WAIT_S):
                pass
        else:
            self._lock.acquire()
        outcome = self._outcome
        if isinstance(outcome, Receipt):
            return outcome
        assert outcome is not None  # noqa: S101 - the lock is released with an outcome
        raise outcome


P = TypeVar("P", bound=BaseProducer)
R = TypeVar("R", bound=Receipt)


class ProducerFacade(ManagedFacade[P], Generic[P, R]):
    """Hands messages from any number of threads to a producer."""

    def __init__(self, portal: Portal, inner: P) -> None:
        super().__init__(portal, inner)
        self._waiting: deque[tuple[Message, Sink, Post]] = deque()
        self._woken = False
        # Only this class and the producer itself use these.
        self._published = inner._published  # pyright: ignore[reportPrivateUsage]
        self._window = inner._window  # pyright: ignore[reportPrivateUsage]
        self._make_bulk = inner._bulk  # pyright: ignore[reportPrivateUsage]
        self._metered = inner._metered  # pyright: ignore[reportPrivateUsage]
        self._plain_post: Post = inner._post  # pyright: ignore[reportPrivateUsage]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None:
            self._inner.check_reports()

    def _in_flight(self) -> int:
        return self._inner.in_flight + len(self._waiting)

    def _send(self, message: Message, post: Post | None = None) -> R:
        sink = _LockSink()
        self._post(message, sink, post)
        return cast("R", sink.wait())

    def _submit(
        self,
        message: Message,
        callback: Callable[[Outcome], object] | None,
        post: Post | None = None,
    ) -> Future[R] | None:
        if callback is not None:
            self._post(message, CallbackSink(partial(_call_back, callback)), post)
            return None
        future: Future[Receipt] = Future()
        self._post(message, _FutureSink(future), post)
        return cast("Future[R]", future)

    def _send_many(self, messages: Iterable[Message], *, receipts: bool) -> SendReport:
        bulk: Bulk = self._portal.do(lambda: self._make_bulk(receipts=receipts))
        source = iter(messages)
        while chunk := list(islice(source, CHUNK)):
            self._portal.call(partial(bulk.add, chunk))
        return self._portal.call(bulk.finish)

    def _post(self, message: Message, sink: Sink, post: Post | None) -> None:
        self._check()
        producer = self._inner
        if message_topic(message) not in self._published:
            self._portal.call(lambda: producer.publish(message.topic))
        if self._window.full or self._in_flight() >= self._window.limit:
            self._portal.call(producer.ready)
        sink = self._metered(message, sink)
        self._waiting.append((message, sink, post or self._plain_post))
        if not self._woken:
            try:
                self._woken = True
                self._portal.post(self._hand_over)
            except ClosedError:
                self._hand_over()  # which fails them all: other threads may wait, too
            except BaseException:  # Ctrl-C; other threads may rely on this wake-up
                self._portal.post_if_usable(self._hand_over)
                raise

    def _hand_over(self) -> None:
        """Runs in the loop, if that has not ended: post the messages that have gathered."""
        self._woken = False
        waiting = self._waiting
        while waiting:
            try:
                message, sink, post = waiting.popleft()
            except IndexError:  # the loop has ended, and another thread took the last one
                return
            try:
                post(message, sink)
            except CohererError as error:
                sink.lost(message, error)
            except Exception as error:  # noqa: BLE001 - a thread waits for the outcome
                sink.lost(message, UsageError(f"The message cannot be sent: {error!r}."))


class FutureReceipt(Protocol):
    """The future of a receipt, of either protocol."""

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt, at most `timeout` seconds, and return it or raise the error."""
        ...

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome, at most `timeout` seconds; None if the message is stored."""
        ...

    def done(self) -> bool:
        """Whether there is an outcome."""
        ...


def _call_back(callback: Callable[[Outcome], object], outcome: Outcome) -> None:
    try:
        callback(outcome)
    except (KeyboardInterrupt, SystemExit) as error:
        text = "A callback runs in the thread of the client, and cannot end the program."
        raise RuntimeError(text) from error


B = TypeVar("B", bound=Fetched)
A_co = TypeVar("A_co", bound=Fetched, covariant=True)


class _AsyncConsumer(_Managed, Protocol[A_co]):
    async def receive(self, timeout_ms: int | None = None) -> A_co | None: ...

    def batches(self) -> AsyncIterator[A_co]: ...

    async def run(
        self,
        handler: Callable[[A_co], Awaitable[None] | None],
        *,
        workers: int = 1,
        stop: asyncio.Event | None = None,
    ) -> None: ...


K = TypeVar("K", bound=_Managed)


class ConsumerFacade(ManagedFacade[K], Generic[K, B, M]):
    """Iterates over batches and messages, and runs handlers, for the consumer of a group."""

    def __iter__(self) -> Iterator[M]:
        """Iterate over messages; each is acknowledged when the loop asks for the next."""
        for batch in self._batches():
            delivery = delivery_of(batch)
            for message in cast("Iterable[M]", batch):
                yield message
                self._portal.check_process()
                if delivery is not None:
                    if delivery.state is not DeliveryState.IN_HAND:
                        break  # it was retried, or every message is acknowledged
                    delivery.seen += 1  # the loop's thread acts on it with the next batch

    @property
    def _source(self) -> _AsyncConsumer[B]:
        return cast("_AsyncConsumer[B]", self._inner)

    def _receive(self, timeout_ms: int | None) -> B | None:
        return self._portal.call(lambda: self._source.receive(timeout_ms), _give_back)

    def _batches(self) -> Generator[B]:
        self._check()
        batches = self._portal.do(self._source.batches)
        return self._iterate(batches)

    def _iterate(self, batches: AsyncIterator[B]) -> Generator[B]:
        with suppress(ClosedError):
            while (batch := self._portal.call(lambda: _next(batches))) is not None:
                yield batch

    def _run(self, handler: Callable[[B], Awaitable[None] | None], workers: int) -> None:
        self._check()
        stop = asyncio.Event()
        with on_sigterm(stop, self._portal.post_if_usable):
            try:
                ended = self._portal.call(partial(_exit_of, self._source, handler, workers, stop))
            except ClosedError:
                self._portal.join()  # until the handlers have returned
                return
        if ended is not None:
            raise ended


async def _exit_of(
    source: _AsyncConsumer[B],
    handler: Callable[[B], Awaitable[None] | None],
    workers: int,
    stop: asyncio.Event,
) -> BaseException | None:
    """Run a handler; if it ends the program, return the exception for the caller's thread."""
    try:
        await source.run(handler, workers=workers, stop=stop)
    except (KeyboardInterrupt, SystemExit) as error:  # would end the loop, and close nothing
        return error
    return None


def _give_back(batch: Fetched | None) -> None:
    """Deliver a batch again that nobody got: the thread that asked for it was interrupted."""
    delivery = None if batch is None else delivery_of(batch)
    if delivery is not None:
        delivery.requeue()


async def _next(batches: AsyncIterator[B]) -> B | None:
    """The next batch; None when the consumer is closed."""
    try:
        return await anext(batches)
    except StopAsyncIteration:
        return None


class _AsyncReader(_Managed, Protocol[B_co]):
    async def read(self) -> B_co | None: ...


Q = TypeVar("Q", bound=_AsyncReader[Any])


class ReaderFacade(ManagedFacade[Q], Generic[Q, M]):
    """Iterates over the batches of a range."""

    def __iter__(self) -> Iterator[M]:
        while (batch := self._portal.call(cast("_AsyncReader[M]", self._inner).read)) is not None:
            yield batch
