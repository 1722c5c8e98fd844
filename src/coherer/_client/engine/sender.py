"""The send pipeline: the messages in flight to each broker, and their outcomes.

A producer posts messages. The `Window` limits the messages in flight, a `BrokerSender` per broker
has the connection, a `Sink` receives the outcome of a message, and `Bulk` collects the outcomes of
many messages in a `SendReport`.

Rules:

* A message that is posted without a connection waits for one until its deadline, however long an
  attempt to connect takes. It has not been sent, so sending it later, or to another broker, is not
  a resend.
* A connection that cannot be opened is tried again after growing pauses, while it is wanted.
* When an attempt fails, waiting messages go to other brokers if possible.
* A message that a busy broker refused is not stored. It is sent again after a pause, until its
  deadline. Meanwhile it keeps its place in the window, which slows the producer down.
* A message that cannot be written has an outcome like any other one: its error.
* There is no task, future or timer per message: a message in flight is one entry in the table of
  its connection, and a sender has one timer for all messages that wait.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

from coherer._client.engine.connections import ServerConnection
from coherer._client.engine.options import TIMEOUT_MS_MAX
from coherer._client.engine.tasks import backoff, cancel
from coherer._common import machine
from coherer._common.logs import Log
from coherer.errors import CohererError, ConnectError, SendManyError, UsageError
from coherer.message import Message, Receipt

_log = Log(logging.getLogger(__name__))

WINDOW_MAX: Final = 300_000
"""With this many messages in flight, Java's producers begin to avoid brokers."""


BUSY_PAUSES_S: Final = (0.1, 0.3)
"""The shortest and the longest pause before a message goes to a busy broker again. The pause is
random, so that producers do not all return at the same time. Java's RocketMQ broker refuses a
message after 0.2 s in its queue; TubeMQ's broker writes a full cache to its file in a few ms."""


def check_window(messages: int, size_bytes: int) -> None:
    """Check the limits of a window.

    Raises:
        UsageError: one is out of range.
    """
    if not 1 <= messages <= WINDOW_MAX:
        raise UsageError(f"A window has 1 to {WINDOW_MAX} messages, not {messages}.")
    if size_bytes < 1:
        raise UsageError(f"A window has at least 1 byte, not {size_bytes}.")


def check_timeout(timeout_ms: int | None) -> None:
    """Check how long a message may wait for its receipt; None is valid.

    Raises:
        UsageError: it is out of range.
    """
    if timeout_ms is not None and not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
        raise UsageError(f"timeout_ms is 1 to {TIMEOUT_MS_MAX}, not {timeout_ms}.")


class Window:
    """Counts the messages without an outcome, and their bytes.

    Waiting tasks are woken when an eighth of the window is free, not for every message, so that
    messages leave in groups and a group costs one write.

    Args:
        limit: how many messages may be in flight.
        limit_bytes: how many bytes may be in flight; the last message may exceed it.

    Attributes:
        limit: as given.
        used: how many messages are in flight.
        used_bytes: the bytes of these messages.
    """

    __slots__ = (
        "_empty",
        "_limit_bytes",
        "_resume_below",
        "_resume_below_bytes",
        "_space",
        "limit",
        "used",
        "used_bytes",
    )

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self.limit = limit
        self.used = 0
        self.used_bytes = 0
        self._limit_bytes = limit_bytes
        self._resume_below = limit - max(1, limit // 8)
        self._resume_below_bytes = limit_bytes - max(1, limit_bytes // 8)
        self._space: asyncio.Future[None] | None = None
        self._empty: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether the window is full."""
        return self.used >= self.limit or self.used_bytes >= self._limit_bytes

    def take(self, size_bytes: int) -> None:
        """Count a message that is sent."""
        self.used += 1
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """The outcome of a message is known."""
        self.used -= 1
        self.used_bytes -= size_bytes
        if (
            self._space is not None
            and self.used <= self._resume_below
            and self.used_bytes <= self._resume_below_bytes
        ):
            space, self._space = self._space, None
            if not space.done():
                space.set_result(None)
        if self.used == 0 and self._empty is not None:
            empty, self._empty = self._empty, None
            if not empty.done():
                empty.set_result(None)

    async def wait_for_space(self) -> None:
        """Wait until the window is not full."""
        while self.full:
            if self._space is None:
                self._space = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._space)

    async def wait_until_empty(self) -> None:
        """Wait until no message is in flight."""
        while self.used:
            if self._empty is None:
                self._empty = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._empty)


Outcome = Receipt | CohererError
"""The argument of the callback of `submit`: the receipt, or the error of the send."""


class Stored(Protocol):
    """A message that a broker has stored."""

    def receipt(self) -> Receipt:
        """The receipt; decoded by this call.

        Raises:
            ProtocolError: the broker's answer is invalid.
        """
        ...


class Sink(Protocol):
    """Receives the outcome of a message."""

    def stored(self, sent: Stored) -> None:
        """The broker has stored it.

        Raises:
            ProtocolError: the answer is invalid; the sink is unchanged.
        """
        ...

    def lost(self, message: Message, error: CohererError) -> None:
        """It was refused, or its outcome is unknown."""
        ...


class SendReport:
    """The outcomes of many messages.

    The application must look at the failures, by reading `failed` or calling `check`. Otherwise
    the producer's `with` block raises `SendManyError` at its end.

    Args:
        sent: the number of stored messages.
        failed: the other messages, each with its error.
        receipts: of the stored messages, in the order of the answers, if requested.
        unseen: counts the failures until the application looks at them.

    >>> report = SendReport(2, [(Message("orders", b"x"), CohererError("The disk is full."))])
    >>> report
    <SendReport: 2 sent, 1 failed, first: The disk is full.>
    >>> [str(error) for _, error in report.failed]
    ['The disk is full.']
    """

    __slots__ = ("_failed", "_unseen", "receipts", "sent")

    def __init__(
        self,
        sent: int,
        failed: Iterable[tuple[Message, CohererError]] = (),
        receipts: Iterable[Receipt] = (),
        unseen: UnseenFailures | None = None,
    ) -> None:
        self.sent = sent
        self.receipts = list(receipts)
        self._failed = list(failed)
        self._unseen = unseen
        if unseen is not None and self._failed:
            unseen.add(len(self._failed), self._failed[0][1])

    @property
    def failed(self) -> list[tuple[Message, CohererError]]:
        """The messages that may not be stored, each with its error."""
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            unseen.remove(len(self._failed))
        return self._failed

    def check(self) -> None:
        """Check that all messages were stored.

        Raises:
            CohererError: the error of the first failed message.
        """
        if self.failed:
            raise self.failed[0][1]

    def __repr__(self) -> str:
        text = f"<SendReport: {self.sent} sent, {len(self._failed)} failed"
        return f"{text}, first: {self._failed[0][1]}>" if self._failed else f"{text}>"


class UnseenFailures:
    """Counts failed messages in reports that the application has not looked at."""

    def __init__(self) -> None:
        self._count = 0
        self._first: CohererError | None = None

    def add(self, count: int, first: CohererError) -> None:
        """Count failed messages; `first` is the error of the first one."""
        self._count += count
        self._first = self._first or first

    def remove(self, count: int) -> None:
        """The application has looked at this many failed messages."""
        self._count -= count
        if self._count <= 0:
            self._first = None

    def check(self) -> None:
        """Check that the application has looked at all failures.

        Raises:
            SendManyError: it has not.
        """
        count, first = self._count, self._first
        if first is not None:
            self._count, self._first = 0, None
            noun = "message" if count == 1 else "messages"
            raise SendManyError(
                f"{count} {noun} given to send_many() failed; the first: {first}",
                hint="Look at `failed` of the report that send_many() returns, or call check().",
            ) from first


class FutureSink:
    """Puts an outcome into a future."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Receipt]) -> None:
        self.future = future

    def stored(self, sent: Stored) -> None:
        """The broker has stored it."""
        receipt = sent.receipt()
        if not self.future.done():
            self.future.set_result(receipt)

    def lost(self, message: Message, error: CohererError) -> None:
        """It was refused, or its outcome is unknown."""
        del message
        if not self.future.done():
            self.future.set_exception(error)


class CallbackSink:
    """Passes an outcome to a function of the application."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[Outcome], object]) -> None:
        self.callback = callback

    def stored(self, sent: Stored) -> None:
        """The broker has stored it."""
        self._call(sent.receipt())

    def lost(self, message: Message, error: CohererError) -> None:
        """It was refused, or its outcome is unknown."""
        del message
        self._call(error)

    def _call(self, outcome: Outcome) -> None:
        try:
            self.callback(outcome)
        except (KeyboardInterrupt, SystemExit) as error:
            asyncio.get_running_loop().call_soon(_raise, error)
        except BaseException as error:  # noqa: BLE001 - the application's; it must not break a connection
            _log.exception("The callback of a send failed", about=repr(error))


def _raise(error: BaseException) -> None:
    """End the event loop with an error, after the outcomes that came together with this one."""
    raise error


class Bulk:
    """The outcomes of many messages, collected in one report. A `Sink`.

    `add` sends messages and can be called several times; `finish` waits and returns the report.
    """

    def __init__(
        self,
        post_many: Callable[[Iterable[Message], Bulk], Awaitable[None]],
        *,
        receipts: bool,
        unseen: UnseenFailures | None = None,
    ) -> None:
        self._post_many = post_many
        self._unseen = unseen
        self._receipts: list[Receipt] | None = [] if receipts else None
        self._failed: list[tuple[Message, CohererError]] = []
        self._sent = 0
        self._left = 0  # posted messages without an outcome
        self._finished: asyncio.Future[None] | None = None

    async def add(self, messages: Iterable[Message]) -> None:
        """Post messages while the window has space.

        Raises:
            CohererError: a topic could not be published. The messages before it are sent.
        """
        await self._post_many(messages, self)

    async def finish(self) -> SendReport:
        """The report, when the outcome of every message is known."""
        while self._left > 0:
            self._finished = asyncio.get_running_loop().create_future()
            await self._finished
        return SendReport(self._sent, self._failed, self._receipts or [], self._unseen)

    def posted(self, count: int) -> None:
        """This many messages were posted; called before their outcomes."""
        self._left += count

    def refused(self, message: Message, error: CohererError) -> None:
        """A message could not be posted."""
        self._failed.append((message, error))

    def stored(self, sent: Stored) -> None:
        """The broker has stored a message."""
        if self._receipts is not None:
            self._receipts.append(sent.receipt())
        self._sent += 1
        self._left -= 1
        if self._left == 0:
            self._finish()

    def lost(self, message: Message, error: CohererError) -> None:
        """A message was refused, or its outcome is unknown."""
        self._failed.append((message, error))
        self._left -= 1
        if self._left == 0:
            self._finish()

    def _finish(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)


L = TypeVar("L", bound=ServerConnection[Any])
I = TypeVar("I")  # noqa: E741 - an item, as in queues


class BrokerSender(ABC, Generic[L, I]):
    """Sends items to one broker; a protocol defines the items and how they are sent.

    Args:
        server: the broker's address, for error messages.

    Attributes:
        wanted: whether messages are sent to the broker; otherwise a lost connection stays closed.
        error: why there is no connection.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        self.wanted = True
        self.error: CohererError | None = None
        self._loop = asyncio.get_running_loop()
        self._link: L | None = None
        self._waiting: list[I] = []
        self._refused: list[I] = []
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # the earliest deadline of the waiting items

    @property
    def open(self) -> bool:
        """Whether the connection is open."""
        return self._link is not None and self._link.open

    def connect(self) -> None:
        """Open the connection, unless it is open or being opened."""
        if not self.open and self._connecting is None:
            self._connecting = asyncio.create_task(
                self._connect(), name=f"connect to {self.server}"
            )

    async def close(self) -> None:
        """Fail the waiting items. The connection belongs to the pool and stays open."""
        self.wanted = False
        await cancel(self._connecting)
        self._connecting = None
        self._clear_out(late=float("inf"))
        if self._timer is not None:
            self._timer.cancel()

    # -- for protocols

    @abstractmethod
    async def _dial(self) -> L:
        """Get the connection.

        Raises:
            ConnectError: it cannot be opened now.
            CohererError: it can never be opened again.
        """

    @abstractmethod
    def _send(self, link: L, item: I) -> None:
        """Send an item.

        Raises:
            CohererError: it cannot be sent, for example because it is too large for a request.
        """

    @abstractmethod
    def _deadline(self, item: I) -> float:
        """The time until which an item may wait, by the loop's clock."""

    @abstractmethod
    def _reroute_item(self, item: I) -> bool:
        """Send an item to another broker; returns whether one is connected."""

    @abstractmethod
    def _fail(self, item: I, error: CohererError) -> None:
        """Report that an item is not stored."""

    @abstractmethod
    def _unsent(self, item: I) -> None:
        """Fail an item that was not sent, with `_not_sent`."""

    @abstractmethod
    def _changed(self, *, reached: bool | None) -> None:
        """The broker was reached, could not be reached, or was lost (None)."""

    # -- inside

    def _not_sent(self, topic: str, partition: int) -> ConnectError:
        why = self.error
        return ConnectError(
            "No connection to the broker; the message was not sent.",
            server=self.server,
            topic=topic,
            partition=partition,
            hint="" if why is None else f"{why.text} {why.hint}".strip(),
        )

    def _send_later(self, item: I, error: CohererError) -> None:
        """Send a refused item again after a pause; fail it if its deadline comes before."""
        if self._loop.time() + BUSY_PAUSES_S[1] > self._deadline(item):
            self._fail(item, error)
            return
        self._refused.append(item)
        if len(self._refused) == 1:
            _log.warning(
                "Broker at %s is busy; refused messages are sent again: %s",
                self.server,
                error,
                about=self.server,
            )
            pause_s = machine.random.uniform(*BUSY_PAUSES_S)
            self._loop.call_later(pause_s, self._resend)

    def _resend(self) -> None:
        refused, self._refused = self._refused, []
        for item in refused:
            self._send_again(item)

    def _send_again(self, item: I) -> None:
        """Send an item after a pause; overridden by protocols that may choose another broker."""
        self.offer(item)

    def offer(self, item: I) -> None:
        """Send an item now, or as soon as the broker is connected."""
        link = self._link
        if link is None or link.connection.closed:
            self._wait(item)
            self.connect()
            return
        self._send_or_fail(link, item)

    def _send_or_fail(self, link: L, item: I) -> None:
        try:
            self._send(link, item)
        except CohererError as error:  # otherwise it would keep its place in the window for ever
            self._fail(item, error)

    def _wait(self, item: I) -> None:
        """Keep an item until the broker is connected, at most until its deadline."""
        self._waiting.append(item)
        deadline = self._deadline(item)
        if self._timer is None or deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        # asyncio calls up to a clock tick early: the items would be set for the same time again.
        self._clear_out(late=max(self._loop.time(), self._timer_at))

    async def _connect(self) -> None:
        wait = backoff()
        while self.wanted or self._waiting:
            try:
                self._opened(await self._dial())
                break
            except ConnectError as error:
                _log.info("Broker at %s: %s", self.server, error, about=self.server)
                self.error = error
                self._changed(reached=False)
                self._clear_out(late=self._loop.time())
            except CohererError:  # the client is closed
                self._clear_out(late=float("inf"))
                break
            await asyncio.sleep(wait())
        self._connecting = None

    def _opened(self, link: L) -> None:
        self._link = link
        self.error = None
        link.when_closed(lambda: self._lost(link))
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            self._send_or_fail(link, item)
        self._changed(reached=True)

    def _lost(self, link: L) -> None:
        self._link = None
        self._changed(reached=None)
        if self.wanted and not link.retired:
            self.connect()

    def _clear_out(self, late: float) -> None:
        """Fail items with a deadline up to `late`; reroute or keep the others."""
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            if self._deadline(item) <= late:
                self._unsent(item)
            elif not self._reroute_item(item):
                self._wait(item)
