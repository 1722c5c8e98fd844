"""What producers of both protocols have in common: their life, the window, many messages at a time.

Where a message goes and how it is encoded is for each to say.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable, KeysView
from types import TracebackType
from typing import ClassVar, Final

from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.misuse import message_topic
from coherer._client.engine.outcomes import Bulk, SendReport, Sink, UnseenFailures
from coherer._client.engine.window import Window
from coherer.errors import CohererError, WindowFullError
from coherer.message import Message

YIELD_EVERY: Final = 256
"""Messages encoded before others get a turn and what is encoded leaves."""


class BaseProducer(Lifecycle):
    """What producers of both protocols have in common.

    Args:
        check: raises when the client cannot be used here and now.
        window: bounds what is under way.
        first: the topics to publish at the start.
        published: the topics that are published, always as they are now.
    """

    _KIND: ClassVar[str] = "producer"

    def __init__(
        self,
        check: Callable[[], None],
        window: Window,
        first: Iterable[str],
        published: KeysView[str],
    ) -> None:
        self._check_of_client = check
        self._window = window
        self._first = tuple(dict.fromkeys(first))
        self._published = published
        self._unseen = UnseenFailures()
        self._loop: asyncio.AbstractEventLoop
        self._state = "new"

    def __repr__(self) -> str:
        topics = ", ".join(self._published) or "no topic yet"
        return f"<Producer of {topics}: {self._state}, {self._window.used} under way>"

    @property
    def topics(self) -> frozenset[str]:
        """The published topics."""
        return frozenset(self._published)

    @property
    def in_flight(self) -> int:
        """How many messages have no receipt yet; a batch counts as one."""
        return self._window.used

    @property
    def window(self) -> int:
        """How many messages may be under way."""
        return self._window.limit

    @property
    def full(self) -> bool:
        """Whether `submit` would be refused."""
        return self._window.full

    def publishes(self, topic: str) -> bool:
        """Whether messages of a topic can be submitted."""
        return topic in self._published

    async def start(self) -> None:
        """Register and publish the first topics; returns when the producer can send.

        Raises:
            UnavailableError: no master or name server, or no broker of a topic, could be reached in
                time.
            RefusedError: a server refused, or a topic cannot be published; see `publish`.
        """
        self._check_new()
        self._loop = asyncio.get_running_loop()
        self._state = "starting"
        try:
            await self._register()
            self._state = "open"
            if self._first:
                await self.publish(*self._first)
        except BaseException:
            await self.close()
            raise

    @abstractmethod
    async def publish(self, *topics: str) -> None:
        """Announce topics; returns when messages to them can be sent."""

    @abstractmethod
    def post(self, message: Message, sink: Sink) -> None:
        """Send a message and have `sink` told; does not look at the window. For facades."""

    async def ready(self) -> None:
        """Wait until there is room in the window."""
        self.check()
        await self._window.room()

    async def flush(self) -> None:
        """Wait until every message under way has its receipt or its error.

        Raises:
            ClosedError: the producer is closed; `close` has waited for them.
        """
        self.check()
        await self._window.empty()

    async def send_many(self, messages: Iterable[Message], *, receipts: bool = False) -> SendReport:
        """Send many messages, each for itself, with many under way at a time.

        Args:
            messages: taken one by one as there is room in the window; topics that are not
                published yet are.
            receipts: keep them all, for the report.

        Returns:
            What became of them, when that is known of each. Failures that nobody looks at are
            raised as `SendManyError` at the end of the producer's `async with` block.

        Raises:
            CohererError: a topic could not be published. What was sent before is sent.
        """
        bulk = self.bulk(receipts=receipts)
        await bulk.add(messages)
        return await bulk.finish()

    def bulk(self, *, receipts: bool = False) -> Bulk:
        """Begin to send many messages that come bit by bit, with one report in the end.

        Args:
            receipts: keep them all, for the report.
        """
        self.check()
        return Bulk(self, receipts=receipts, unseen=self._unseen)

    async def post_many(self, messages: Iterable[Message], bulk: Bulk) -> None:
        """Post messages as there is room in the window; see `Bulk.add`."""
        self.check()
        window, published, post = self._window, self._published, self._posting()
        posted = 0  # since others had a turn
        try:
            for message in messages:
                if message_topic(message) not in published:
                    bulk.posted(posted)
                    posted = 0
                    await self.publish(message.topic)
                try:
                    post(message, bulk)
                    posted += 1
                except CohererError as error:
                    bulk.refused(message, error)
                if posted >= YIELD_EVERY or window.full:
                    bulk.posted(posted)
                    posted = 0
                    await (window.room() if window.full else asyncio.sleep(0))
                    self.check()
        finally:
            bulk.posted(posted)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, trace)
        if error is None:
            self.check_reports()

    def check_reports(self) -> None:
        """Check that every failure of `send_many` was looked at; `with` blocks end with it.

        Raises:
            SendManyError: a report has failures, and nobody read `failed` or called `check`.
        """
        self._unseen.check()

    async def close(self) -> None:
        """Wait for what is under way, then leave. Calling it again does nothing."""
        was, self._state = self._state, "closed"
        if was not in {"new", "closed"}:
            await self._leave()

    # -- for the kinds to say

    @abstractmethod
    async def _register(self) -> None:
        """Make it known to the cluster."""

    @abstractmethod
    async def _leave(self) -> None:
        """Wait for what is under way, then undo `_register`."""

    def _posting(self) -> Callable[[Message, Sink], object]:
        """What posts each of many messages."""
        return self.post

    # -- inside

    def _check_client(self) -> None:
        self._check_of_client()

    def _crowded(self) -> WindowFullError:
        return WindowFullError(
            f"{self._window.used} messages of {self._window.used_bytes} bytes are under way.",
            hint="Call `producer.ready()` before each `submit`.",
        )
