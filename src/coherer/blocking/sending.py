"""What blocking producers of both protocols have in common.

Messages go from the caller's thread to the loop's through a list, and the loop is woken once for
all that are in it: a wake-up is a system call, and by far the dearest part of a handover.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Final, Generic, TypeVar, cast

from coherer._client.engine.producer import BaseProducer as AsyncProducer
from coherer._client.engine.producer import message_topic
from coherer._client.engine.sender import Bulk, Outcome, SendReport, Sink, Stored
from coherer.blocking.portal import WINDOWS_WAIT_S, Portal
from coherer.blocking.using import Used
from coherer.errors import CohererError
from coherer.message import Message, Receipt

Post = Callable[[Message, Sink], object]
"""Posts a message in the loop's thread."""

CHUNK: Final = 512
"""Messages that `send_many` hands over at a time."""


class _FutureSink:
    """Puts an outcome into a future that threads wait for."""

    __slots__ = ("future",)

    def __init__(self, future: Future[Receipt]) -> None:
        self.future = future

    def stored(self, sent: Stored) -> None:
        receipt = sent.receipt()
        with suppress(InvalidStateError):  # cancelled
            self.future.set_result(receipt)

    def lost(self, message: Message, error: CohererError) -> None:
        del message
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class _Waiter:
    """One outcome for one thread: a lock costs a tenth of a future."""

    __slots__ = ("_lock", "_outcome")

    def __init__(self) -> None:
        self._lock = Lock()
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
        """The receipt, or the error raised; Ctrl-C ends the wait, not the send."""
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


P = TypeVar("P", bound=AsyncProducer)
R = TypeVar("R", bound=Receipt)


class BaseProducer(Used[P], Generic[P, R]):
    """What producers of both protocols have in common.

    Args:
        portal: the way to the event loop.
        producer: does the work there.
    """

    def __init__(self, portal: Portal, producer: P) -> None:
        super().__init__(portal, producer)
        self._waiting: deque[tuple[Message, Sink, Post]] = deque()
        self._woken = False

    @property
    def topics(self) -> frozenset[str]:
        """The published topics."""
        return self._inner.topics

    @property
    def in_flight(self) -> int:
        """How many messages have no receipt yet."""
        return self._inner.in_flight + len(self._waiting)

    @property
    def window(self) -> int:
        """How many messages may be under way."""
        return self._inner.window

    def start(self) -> None:
        """See `coherer._client.tubemq.producer.Producer.start`."""
        self._portal.call(self._inner.start)

    def publish(self, *topics: str) -> None:
        """Announce topics; returns when messages to them can be sent.

        Raises:
            RefusedError: a topic has no partition that takes messages; code 444.
            UnavailableError: no master, or no broker of a topic, could be reached in time.
        """
        self._portal.call(lambda: self._inner.publish(*topics))

    def ready(self) -> None:
        """Wait until there is room in the window."""
        self._portal.call(self._inner.ready)

    def flush(self) -> None:
        """Wait until every message under way has its receipt or its error."""
        self._portal.call(self._inner.flush)

    def send_many(self, messages: Iterable[Message], *, receipts: bool = False) -> SendReport:
        """Send many messages, the fastest way.

        Args:
            messages: taken in this thread, some hundred at a time.
            receipts: keep them all, for the report.

        Returns:
            What became of them, when that is known of each. Failures that nobody looks at are
            raised as `SendManyError` at the end of the producer's `with` block.

        Raises:
            CohererError: a topic could not be published. What was sent before is sent.
        """
        bulk: Bulk = self._portal.do(lambda: self._inner.bulk(receipts=receipts))
        source = iter(messages)
        while chunk := list(islice(source, CHUNK)):
            self._portal.call(partial(bulk.add, chunk))
        return self._portal.call(bulk.finish)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None:
            self.check_reports()

    def check_reports(self) -> None:
        """Check that every failure of `send_many` was looked at; `with` blocks end with it.

        Raises:
            SendManyError: a report has failures, and nobody read `failed` or called `check`.
        """
        self._inner.check_reports()

    def close(self) -> None:
        """Wait for what is under way, then leave. Calling it again does nothing."""
        if self._portal.usable:
            self._portal.call(self._inner.close)

    # -- inside

    def _send(self, message: Message, post: Post | None = None) -> R:
        waiter = _Waiter()
        self._post(message, waiter, post)
        return cast("R", waiter.wait())

    def _submit(
        self,
        message: Message,
        callback: Callable[[Outcome], object] | None,
        post: Post | None = None,
    ) -> Future[R] | None:
        future: Future[Receipt] = Future()
        self._post(message, _FutureSink(future), post)
        if callback is None:
            return cast("Future[R]", future)
        future.add_done_callback(lambda done: callback(_outcome(done)))
        return None

    def _post(self, message: Message, sink: Sink, post: Post | None) -> None:
        self.check()
        producer = self._inner
        if not producer.publishes(message_topic(message)):
            self.publish(message.topic)
        if producer.full or producer.in_flight + len(self._waiting) >= producer.window:
            self._portal.call(producer.ready)
        self._waiting.append((message, sink, post or producer.post))
        if not self._woken:
            self._woken = True
            self._portal.post(self._hand_over)

    def _hand_over(self) -> None:
        """Runs in the loop: post what has gathered."""
        self._woken = False
        waiting = self._waiting
        while waiting:
            message, sink, post = waiting.popleft()
            try:
                post(message, sink)
            except CohererError as error:
                sink.lost(message, error)


def _outcome(future: Future[Receipt]) -> Outcome:
    error = future.exception()
    if error is None:
        return future.result()
    assert isinstance(error, CohererError)  # noqa: S101 - nothing else is put there
    return error
