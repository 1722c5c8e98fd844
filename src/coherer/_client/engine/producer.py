"""The common part of both protocols' producers: start and close, the window, and `send_many`.

A protocol adds routing and encoding. The types in a message are checked only when its encoding
fails (`encoding_error`), so that valid messages do not pay for it. The type of the body is always
checked, because another one would fail too late: when the message has its place in the window.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, TypeVar, cast

from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.metrics import (
    ClientMetrics,
    MeteredBulk,
    MeteredSink,
    ProducerMeter,
    meters_of,
)
from coherer._client.engine.sender import (
    BrokerSender,
    Bulk,
    SendReport,
    Sink,
    UnseenFailures,
    Window,
)
from coherer._client.engine.tasks import Waiters
from coherer.errors import CohererError, ConnectError, UsageError, WindowFullError
from coherer.message import Message, Receipt

WRITABLE_HINT: Final = "`coherer topics list` shows whether the topic is writable."


def message_topic(message: Message) -> str:
    """The topic of a message.

    Raises:
        UsageError: the argument is not a message.

    >>> message_topic("hello")  # type: ignore[arg-type]
    Traceback (most recent call last):
    coherer.errors.UsageError: A producer sends a Message, not str. Write Message("topic", b"body").
    """
    try:
        return message.topic
    except AttributeError:
        raise UsageError(
            f"A producer sends a Message, not {type(message).__name__}.",
            hint='Write Message("topic", b"body").',
        ) from None


def body_of(message: Message) -> bytes:
    """The body of a message. A view counts its items, not its bytes, and may have gaps.

    Raises:
        UsageError: it is not bytes.

    >>> body_of(Message("greetings", "hello"))  # type: ignore[arg-type]
    Traceback (most recent call last):
    coherer.errors.UsageError: A body is bytes, not str. [topic greetings] Encode it: body.encode().
    """
    body = cast("object", message.body)
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(cast("bytes", body))
    hint = (
        "Encode it: body.encode()." if isinstance(body, str) else "Encode it, for example as JSON."
    )
    raise UsageError(
        f"A body is bytes, not {type(body).__name__}.", topic=str(message.topic), hint=hint
    )


def encoding_error(message: Message, error: Exception) -> UsageError:
    """The exception for a message whose encoding ended in a `TypeError` or the like.

    Args:
        message: the message.
        error: the error of its encoding.

    Raises:
        UsageError: the body is not bytes.

    >>> message = Message("greetings", b"hello", properties={"age": 7})  # type: ignore[dict-item]
    >>> print(encoding_error(message, TypeError()))
    Property 'age' of a message is text, not int. [topic greetings]
    """
    body_of(message)
    topic = str(message.topic)
    for part, value in _texts(message):
        if not isinstance(value, str):
            text = f"{part} of a message is text, not {type(value).__name__}."
            return UsageError(text, topic=topic)
    if not isinstance(cast("object", message.keys), tuple):
        hint = "Write ('42',) for one."
        return UsageError("Keys are a tuple of words.", topic=topic, hint=hint)
    time = cast("object", message.time)
    if time is not None and not isinstance(time, datetime):
        text = f"The time of a message is a datetime, not {type(time).__name__}."
        return UsageError(text, topic=topic, hint="Parse it: datetime.fromisoformat(text).")
    return UsageError(f"The message cannot be encoded: {error}.", topic=topic)


def _texts(message: Message) -> Iterator[tuple[str, object]]:
    """The parts of a message that have to be text, with their names."""
    yield "The topic", message.topic
    if message.tag is not None:
        yield "The tag", message.tag
    for key in message.keys:
        yield "A key", key
    for name, value in dict(message.properties).items():
        yield "The name of a property", name
        yield f"Property {name!r}", value


R = TypeVar("R", bound=Receipt)


async def until_connected(
    topic: str,
    senders: Callable[[], Collection[BrokerSender[Any, Any]]],
    changed: Waiters,
    deadline: float,
) -> None:
    """Wait until a broker of a topic is connected.

    Args:
        topic: for the error.
        senders: returns the senders of the topic's brokers.
        changed: woken when a connection was opened or could not be opened.
        deadline: by the loop's clock.

    Raises:
        ConnectError: none was connected in time.
    """
    try:
        async with asyncio.timeout_at(deadline):
            while not any(one.open for one in senders()):
                await changed.wait()
    except TimeoutError:
        for one in senders():
            if one.error is not None:
                raise one.error from None
        raise ConnectError(
            "No broker of the topic could be reached.",
            topic=topic,
            hint="Are the brokers up? `coherer topics describe` names them.",
        ) from None


YIELD_EVERY: Final = 256
"""After this many encoded messages, `send_many` lets other tasks run and the messages leave."""


class BaseProducer(Lifecycle):
    """The producer of both protocols.

    Args:
        check: raises an error if the client cannot be used.
        window: limits the messages in flight.
        first: the topics to publish at the start.
        published: a live view of the published topics.
    """

    _KIND: ClassVar[str] = "producer"
    _meter: ProducerMeter | None = None
    """Measures the producer; None without metrics."""

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
        return f"<Producer of {topics}: {self._state}, {self._window.used} in flight>"

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
        """How many messages may be in flight."""
        return self._window.limit

    async def start(self) -> None:
        """Register and publish the first topics; returns when the producer can send.

        Raises:
            UnavailableError: no master or name server, or no broker of a topic, could be reached in
                time.
            RefusedError: a server refused the producer, or a topic; see `publish`.
        """
        await self._start_with(self._begin, self._undo)

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._register()
        self._check_starting()
        if self._first:
            await self._publish(self._first)

    @abstractmethod
    async def publish(self, *topics: str) -> None:
        """Publish topics; returns when messages to them can be sent."""

    async def ready(self) -> None:
        """Wait until the window has space."""
        self.check()
        await self._window.wait_for_space()

    async def flush(self) -> None:
        """Wait until every message in flight has its receipt or its error.

        Raises:
            ClosedError: the producer is closed; `close` has waited for them.
        """
        self.check()
        await self._window.wait_until_empty()

    async def send_many(self, messages: Iterable[Message], *, receipts: bool = False) -> SendReport:
        """Send many messages, with as many in flight as the window allows.

        Args:
            messages: taken one by one while the window has space. Their topics are published if
                necessary.
            receipts: keep the receipts in the report.

        Returns:
            The report, when every message has been stored or has failed. Failures that the
            application does not look at are raised as `SendManyError` at the end of the producer's
            `async with` block.

        Raises:
            CohererError: a topic could not be published. The messages before it were sent.
        """
        bulk = self._bulk(receipts=receipts)
        await bulk.add(messages)
        return await bulk.finish()

    def _bulk(self, *, receipts: bool) -> Bulk:
        """Make the collector of the outcomes of `send_many`."""
        self.check()
        make = Bulk if self._meter is None else partial(MeteredBulk, self._meter)
        return make(self._post_many, receipts=receipts, unseen=self._unseen)

    def _measure(
        self, metrics: ClientMetrics | None, system: str, client_id: Callable[[], str]
    ) -> None:
        """Measure sends, if the client has metrics."""
        meters = meters_of(metrics)
        self._meter = None if meters is None else meters.producer(system, client_id)

    def _metered(self, first: Message, sink: Sink, count: int = 1) -> Sink:
        """The sink of a request of one message or more; with metrics, one that measures it."""
        if self._meter is None:
            return sink
        return MeteredSink(self._meter, message_topic(first), count, sink)

    async def _post_many(
        self,
        messages: Iterable[Message],
        bulk: Bulk,
        post: Callable[[Message, Sink], object] | None = None,
    ) -> None:
        """Post messages while the window has space; see `Bulk.add`."""
        self.check()
        window, published, post = self._window, self._published, post or self._posting()
        posted = 0  # since other tasks could run
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
                    await (window.wait_for_space() if window.full else asyncio.sleep(0))
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
        """Check that the application looked at all failures of `send_many`; `with` calls this.

        Raises:
            SendManyError: a report has failures, and neither `failed` nor `check` was used.
        """
        self._unseen.check()

    async def close(self) -> None:
        """Wait for the messages in flight, then close. Calling it again does nothing."""
        if self._end():
            await self._leave()

    # -- for protocols

    @abstractmethod
    def _post(self, message: Message, sink: Sink) -> None:
        """Send a message; `sink` gets the outcome. Does not wait for the window."""

    @abstractmethod
    async def _register(self) -> None:
        """Register with the cluster."""

    @abstractmethod
    async def _publish(self, topics: Sequence[str]) -> None:
        """Publish topics, also before the producer is open."""

    @abstractmethod
    async def _undo(self) -> None:
        """Undo `_register` and `_publish`, so that they can be called again."""

    @abstractmethod
    async def _leave(self) -> None:
        """Wait for the messages in flight, then undo `_register`."""

    def _posting(self) -> Callable[[Message, Sink], object]:
        """The function that `send_many` calls for each message."""
        return self._post

    # -- inside

    def _check_client(self) -> None:
        self._check_of_client()

    def _window_full_error(self) -> WindowFullError:
        return WindowFullError(
            f"{self._window.used} messages with {self._window.used_bytes} bytes are in flight.",
            hint="Call `producer.ready()` before each `submit`.",
        )
