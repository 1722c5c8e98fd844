"""What becomes of sent messages: receipts, errors and reports, and who is told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from coherer._common.logs import Log
from coherer.errors import CohererError, SendManyError
from coherer.message import Message, Receipt

_log = Log(logging.getLogger(__name__))

Outcome = Receipt | CohererError


class Stored(Protocol):
    """A message that a broker has taken."""

    def receipt(self) -> Receipt:
        """Its receipt, worked out only when asked for: not everybody wants one.

        Raises:
            ProtocolError: the broker's answer makes no sense.
        """
        ...


class Sink(Protocol):
    """Who wants to know what became of a message."""

    def stored(self, sent: Stored) -> None:
        """The broker has it.

        Raises:
            ProtocolError: the answer makes no sense. Nothing has changed then.
        """
        ...

    def lost(self, message: Message, error: CohererError) -> None:
        """It was refused, or nobody knows."""
        ...


class SendReport:
    """What became of many messages.

    A report with failures has to be looked at: reading `failed` or calling `check` does that.
    Otherwise the producer's `with` block raises `SendManyError` at its end.

    Args:
        sent: how many are stored.
        failed: the other messages, each with the reason.
        receipts: of the stored messages, in the order of the answers, if they were asked for.
        unseen: where failures are counted until somebody looks at them.

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
        """The messages that are not known to be stored, each with the reason."""
        unseen, self._unseen = self._unseen, None
        if unseen is not None:
            unseen.remove(len(self._failed))
        return self._failed

    def check(self) -> None:
        """Check that all messages were stored.

        Raises:
            CohererError: the error of the first message that was not.
        """
        if self.failed:
            raise self.failed[0][1]

    def __repr__(self) -> str:
        text = f"<SendReport: {self.sent} sent, {len(self._failed)} failed"
        return f"{text}, first: {self._failed[0][1]}>" if self._failed else f"{text}>"


class UnseenFailures:
    """Counts the failed messages of reports that nobody has looked at yet."""

    def __init__(self) -> None:
        self._count = 0
        self._first: CohererError | None = None

    def add(self, count: int, first: CohererError) -> None:
        """Some messages failed, the first of them with this error."""
        self._count += count
        self._first = self._first or first

    def remove(self, count: int) -> None:
        """The program has looked at so many failed messages."""
        self._count -= count
        if self._count <= 0:
            self._first = None

    def check(self) -> None:
        """Check that there are none.

        Raises:
            SendManyError: there are.
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
        """The broker has it."""
        receipt = sent.receipt()
        if not self.future.done():
            self.future.set_result(receipt)

    def lost(self, message: Message, error: CohererError) -> None:
        """It was refused, or nobody knows."""
        del message
        if not self.future.done():
            self.future.set_exception(error)


class CallbackSink:
    """Gives an outcome to a function of the user's."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[Outcome], object]) -> None:
        self.callback = callback

    def stored(self, sent: Stored) -> None:
        """The broker has it."""
        self._call(sent.receipt())

    def lost(self, message: Message, error: CohererError) -> None:
        """It was refused, or nobody knows."""
        del message
        self._call(error)

    def _call(self, outcome: Outcome) -> None:
        try:
            self.callback(outcome)
        except Exception as error:  # noqa: BLE001 - theirs must not break the connection of others
            _log.exception("The callback of a send failed", about=repr(error))


class Poster(Protocol):
    """The producer, as a bulk sees it."""

    async def post_many(self, messages: Iterable[Message], bulk: Bulk) -> None:
        """Post messages as there is room in the window."""
        ...


class Bulk:
    """Many messages with one report. Made by `Producer.bulk`; a `Sink`.

    ```python
    bulk = producer.bulk()
    await bulk.add(messages)
    await bulk.add(more)
    report = await bulk.finish()
    ```
    """

    def __init__(
        self, producer: Poster, *, receipts: bool, unseen: UnseenFailures | None = None
    ) -> None:
        self._producer = producer
        self._unseen = unseen
        self._receipts: list[Receipt] | None = [] if receipts else None
        self._failed: list[tuple[Message, CohererError]] = []
        self._sent = 0
        self._left = 0  # posted, and no outcome yet
        self._finished: asyncio.Future[None] | None = None

    async def add(self, messages: Iterable[Message]) -> None:
        """Post messages as there is room in the window.

        Raises:
            CohererError: a topic could not be published. What was posted before is sent.
        """
        await self._producer.post_many(messages, self)

    async def finish(self) -> SendReport:
        """What became of all of them, when that is known of each."""
        while self._left > 0:
            self._finished = asyncio.get_running_loop().create_future()
            await self._finished
        return SendReport(self._sent, self._failed, self._receipts or [], self._unseen)

    def posted(self, count: int) -> None:
        """So many messages are on their way; told before any of their outcomes."""
        self._left += count

    def refused(self, message: Message, error: CohererError) -> None:
        """A message could not be posted."""
        self._failed.append((message, error))

    def stored(self, sent: Stored) -> None:
        """The broker has a message."""
        if self._receipts is not None:
            self._receipts.append(sent.receipt())
        self._sent += 1
        self._left -= 1
        if self._left == 0:
            self._finish()

    def lost(self, message: Message, error: CohererError) -> None:
        """A message was refused, or nobody knows."""
        self._failed.append((message, error))
        self._left -= 1
        if self._left == 0:
            self._finish()

    def _finish(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)
