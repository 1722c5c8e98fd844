r"""Observers of sends, and message trace (docs/protocol/rocketmq.md, section 11).

An `Observer` is called about each send of a producer: message trace and OpenTelemetry are
observers, and applications can add theirs.

Message trace sends records of what happened to messages to a topic of their own. In a record,
fields are separated by U+0001, an unknown value is the text `null`, and U+0002 ends the record.
Records are collected for a few milliseconds and sent together; if they come faster than they can be
sent, they are dropped. Sends of records are not traced. A consumer writes one record when a message
is delivered and one when it is acknowledged or failed, unless the message disables it (`TRACE_ON`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast
from uuid import uuid4

from msgspec import structs

from coherer._client.engine.sender import Sink, Stored
from coherer._client.engine.tasks import cancel
from coherer._client.rocketmq.transactions import Verdict
from coherer._common.logs import Log
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage
from coherer._wire.rocketmq.names import TRACE_TOPIC
from coherer.errors import CohererError
from coherer.message import Message

if TYPE_CHECKING:
    from coherer._client.rocketmq.consuming.received import DoneCallback, ReceivedBatch
    from coherer._client.rocketmq.producing.producer import Producer

_log = Log(logging.getLogger(__name__))

QUEUE_MAX: Final = 1_024
"""The maximum number of waiting records; more are dropped."""

WAIT_MS: Final = 5
BATCH_MAX: Final = 100
BODY_BYTES_MAX: Final = 118_000
"""Java's numbers: how long records are collected, and how many go into one message."""

STATES: Final[Mapping[Verdict, str]] = {
    Verdict.COMMIT: "COMMIT_MESSAGE",
    Verdict.ROLLBACK: "ROLLBACK_MESSAGE",
    Verdict.UNKNOWN: "UNKNOW",
}
"""Java's names for the outcome of a transaction."""

SUCCESS: Final = 0
FAILED: Final = 4
"""How a delivery ended, in a record; Java's listeners use more codes."""

_NOTHING: Final[Mapping[str, str]] = {}


class Kind(IntEnum):
    """The kind of a sent message; the numbers are those of message trace (section 11)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


class StoredSend(Protocol):
    """A message that a broker has stored."""

    @property
    def server(self) -> str:
        """The broker's address."""
        ...

    @property
    def traced(self) -> bool:
        """Whether the broker has message trace enabled."""
        ...

    def receipt(self) -> SendReceipt:
        """The receipt."""
        ...


class SendObserver(Protocol):
    """Observes one send."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties to add to the message."""
        ...

    def stored(self, outcome: StoredSend) -> None:
        """A broker stored the message."""
        ...

    def failed(self, error: CohererError) -> None:
        """The send failed; the message may or may not be stored."""
        ...


class Observer(Protocol):
    """Observes the sends of a producer."""

    def begin(self, messages: Sequence[Message], group: str, kind: Kind) -> SendObserver | None:
        """Called before a message or a batch is sent; None to not observe it."""
        ...


class ObservedSink:
    """A sink that also calls observers."""

    __slots__ = ("_observers", "_sink")

    def __init__(self, sink: Sink, observers: list[SendObserver]) -> None:
        self._sink = sink
        self._observers = observers

    def stored(self, sent: Stored) -> None:
        """See `Sink.stored`."""
        self._sink.stored(sent)
        for observer in self._observers:
            observer.stored(cast("StoredSend", sent))

    def lost(self, message: Message, error: CohererError) -> None:
        """See `Sink.lost`."""
        self._sink.lost(message, error)
        for observer in self._observers:
            observer.failed(error)


def observe(
    observers: Sequence[Observer], messages: Sequence[Message], group: str, kind: Kind, sink: Sink
) -> tuple[Sequence[Message], Sink]:
    """The messages with the properties that observers add, and a sink that calls the observers."""
    seen = [one for one in (observer.begin(messages, group, kind) for observer in observers) if one]
    if not seen:
        return messages, sink
    added = {name: value for one in seen for name, value in one.properties.items()}
    if added:
        messages = [
            structs.replace(message, properties={**message.properties, **added})
            for message in messages
        ]
    return messages, ObservedSink(sink, seen)


class Record(NamedTuple):
    """A trace record and its keys."""

    text: str
    keys: tuple[str, ...]


def record(*fields: object) -> str:
    r"""One record as text.

    >>> record("Pub", 5, None, True)
    'Pub\x015\x01null\x01true\x02'
    """
    words = (_word(value) for value in fields)
    return "\x01".join(words) + "\x02"


def _word(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def bodies(records: Iterable[Record]) -> Iterable[tuple[bytes, tuple[str, ...]]]:
    """The records as message bodies of limited size, each with its keys."""
    texts: list[bytes] = []
    keys: dict[str, None] = {}
    size = 0
    for one in records:
        text = one.text.encode()
        if texts and size + len(text) > BODY_BYTES_MAX:
            yield b"".join(texts), tuple(keys)
            texts, keys, size = [], {}, 0
        texts.append(text)
        keys.update(dict.fromkeys(one.keys))
        size += len(text)
    if texts:
        yield b"".join(texts), tuple(keys)


class Tracer:
    """Collects records and sends them.

    Args:
        producer: sends the records; started with the first one. It is not traced itself.
        topic: the topic of the records.

    Attributes:
        dropped: the number of dropped records.
    """

    def __init__(self, producer: Producer, topic: str = TRACE_TOPIC) -> None:
        self.dropped = 0
        self._producer = producer
        self._topic = topic
        self._waiting: deque[Record] = deque()
        self._task: asyncio.Task[None] | None = None
        self._open = False

    def add(self, text: str, keys: Iterable[str]) -> None:
        """Send a record later."""
        if len(self._waiting) >= QUEUE_MAX:
            self.dropped += 1
            return
        self._waiting.append(Record(text, tuple(key for key in keys if key and " " not in key)))
        if self._task is None:
            self._task = asyncio.create_task(self._send(), name="message trace")

    async def close(self) -> None:
        """Send the waiting records, then close the producer."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1)
        await cancel(self._task)
        if self._open:
            self._open = False
            await self._producer.close()

    async def _send(self) -> None:
        try:
            if not self._open:
                self._open = True
                await self._producer.start()
            while self._waiting:
                await asyncio.sleep(WAIT_MS / 1000)
                count = min(len(self._waiting), BATCH_MAX)
                some = [self._waiting.popleft() for _ in range(count)]
                for body, keys in bodies(some):
                    await self._producer.send_oneway(Message(self._topic, body, keys=keys))
        except CohererError as error:
            _log.warning("Trace records are lost: %s", error, about=type(error))
            self._waiting.clear()
        finally:
            self._task = None


class _TracedSend:
    """Traces one send."""

    __slots__ = ("_began_ms", "_group", "_kind", "_messages", "_ticks_s", "_tracer")

    def __init__(
        self, tracer: Tracer, messages: Sequence[Message], group: str, kind: Kind, began_ms: int
    ) -> None:
        self._tracer = tracer
        self._messages = messages
        self._group = group
        self._kind = kind
        self._began_ms = began_ms
        self._ticks_s = time.monotonic()

    @property
    def properties(self) -> Mapping[str, str]:
        """Adds nothing to the message."""
        return _NOTHING

    def stored(self, outcome: StoredSend) -> None:
        """A broker stored the message."""
        if not outcome.traced:
            return
        receipt = outcome.receipt()
        first = self._messages[0]
        keys = " ".join(first.keys)
        text = record(
            "Pub",
            self._began_ms,
            receipt.region or None,
            self._group,
            first.topic,
            receipt.unique_id,
            first.tag,
            keys or None,
            outcome.server,
            sum(len(message.body) for message in self._messages),
            int((time.monotonic() - self._ticks_s) * 1000),
            int(self._kind),
            receipt.id,
            receipt.status == "SEND_OK",
        )
        self._tracer.add(text, (*receipt.unique_id.split(","), *first.keys))

    def failed(self, error: CohererError) -> None:
        """As in Java, only answered sends are traced."""
        del error


class ProducerTrace:
    """Traces the sends and transactions of a producer. An `Observer`.

    Args:
        tracer: sends the records.
        group: the producer group.
        topic: the topic of the records; sends to it are not traced.
    """

    def __init__(self, tracer: Tracer, group: str, topic: str = TRACE_TOPIC) -> None:
        self._tracer = tracer
        self._group = group
        self._topic = topic

    def begin(self, messages: Sequence[Message], group: str, kind: Kind) -> _TracedSend | None:
        """See `Observer.begin`."""
        if messages[0].topic.startswith(self._topic):
            return None
        return _TracedSend(self._tracer, messages, group, kind, _now_ms())

    def ended(self, receipt: SendReceipt, verdict: Verdict, server: str) -> None:
        """Trace the end of a transaction."""
        text = transaction_record(
            region=receipt.region or None,
            group=self._group,
            topic=receipt.topic,
            unique_id=receipt.unique_id,
            server=server,
            transaction_id=receipt.transaction_id or receipt.unique_id,
            state=STATES[verdict],
        )
        self._tracer.add(text, (receipt.unique_id,))

    def checked(self, message: StoredMessage, verdict: Verdict, server: str) -> None:
        """Trace the answer to a transaction check."""
        text = transaction_record(
            region=None,
            group=self._group,
            topic=message.topic,
            unique_id=message.unique_id,
            server=server,
            transaction_id=message.unique_id,
            state=STATES[verdict],
            tag=message.tag,
            keys=message.keys,
            checked=True,
        )
        self._tracer.add(text, (message.unique_id, *message.keys))

    async def close(self) -> None:
        """Send the waiting records."""
        await self._tracer.close()


def transaction_record(
    *,
    region: str | None,
    group: str,
    topic: str,
    unique_id: str,
    server: str,
    transaction_id: str | None,
    state: str,
    tag: str | None = None,
    keys: Sequence[str] = (),
    checked: bool = False,
) -> str:
    """The record of the end of a transaction."""
    return record(
        "EndTransaction",
        _now_ms(),
        region,
        group,
        topic,
        unique_id,
        tag,
        " ".join(keys) or None,
        server,
        int(Kind.COMMIT),
        transaction_id,
        state,
        checked,
    )


def before_record(
    *,
    region: str | None,
    group: str,
    request_id: str,
    message_id: str,
    attempt: int,
    keys: Sequence[str],
) -> str:
    """The record of a delivery."""
    words = " ".join(keys) or None
    return record("SubBefore", _now_ms(), region, group, request_id, message_id, attempt, words)


def after_record(
    *,
    group: str,
    request_id: str,
    message_id: str,
    cost_ms: int,
    success: bool,
    keys: Sequence[str],
    context: int,
) -> str:
    """The record of the end of a delivery.

    Args:
        group: the consumer's group.
        request_id: the same as in the record of the delivery.
        message_id: the message.
        cost_ms: the duration.
        success: whether it was acknowledged.
        keys: the message's keys.
        context: 0 success, 1 timeout, 2 exception, 3 no result, 4 failure.
    """
    words = " ".join(keys) or None
    return record(
        "SubAfter", request_id, message_id, cost_ms, success, words, context, _now_ms(), group
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class ConsumerTrace:
    """Traces the deliveries of a consumer.

    Args:
        tracer: sends the records.
        group: the consumer's group.
        topic: the topic of the records.
    """

    def __init__(self, tracer: Tracer, group: str, topic: str = TRACE_TOPIC) -> None:
        self._tracer = tracer
        self._group = group
        self._topic = topic

    def begin(self, batch: ReceivedBatch) -> DoneCallback | None:
        """Trace the delivery of a batch; returns the function to call at its end."""
        if batch.topic.startswith(self._topic):
            return None
        messages = [
            message
            for message in batch.messages(StoredMessage)
            if message.stored_properties.get("TRACE_ON", "true") != "false"
        ]
        request_id = uuid4().hex.upper()
        for message in messages:
            text = before_record(
                region=message.stored_properties.get("MSG_REGION"),
                group=self._group,
                request_id=request_id,
                message_id=message.unique_id or message.id,
                attempt=message.attempt,
                keys=message.keys,
            )
            self._tracer.add(text, (message.unique_id or message.id, *message.keys))
        began = time.monotonic()

        def ended(failures: Collection[int]) -> None:
            cost_ms = int((time.monotonic() - began) * 1000)
            for message in messages:
                self._after(message, request_id, cost_ms, message.offset not in failures)

        return ended

    async def close(self) -> None:
        """Send the waiting records."""
        await self._tracer.close()

    def _after(self, message: StoredMessage, request_id: str, cost_ms: int, success: bool) -> None:
        text = after_record(
            group=self._group,
            request_id=request_id,
            message_id=message.unique_id or message.id,
            cost_ms=cost_ms,
            success=success,
            keys=message.keys,
            context=SUCCESS if success else FAILED,
        )
        self._tracer.add(text, (message.unique_id or message.id, *message.keys))
