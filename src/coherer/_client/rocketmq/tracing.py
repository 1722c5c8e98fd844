r"""Message trace: records of what became of messages, sent to a topic of their own (rocketmq 11).

Fields are separated by U+0001, a record ends with U+0002, what is not known is the text `null`.
Records are collected for some milliseconds and sent together; when more come than can be sent, they
are dropped. Sending them is not traced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from coherer._client.engine.tasks import cancel
from coherer._client.rocketmq.observers import Kind, Outcome
from coherer._client.rocketmq.producer_options import Verdict
from coherer._common.logs import Log
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage
from coherer._wire.rocketmq.names import TRACE_TOPIC
from coherer.errors import CohererError
from coherer.message import Message

_log = Log(logging.getLogger(__name__))

QUEUE_MAX: Final = 1_024
"""Records that wait; more are dropped."""

WAIT_MS: Final = 5
BATCH_MAX: Final = 100
BODY_BYTES_MAX: Final = 118_000
"""Java's numbers: how long records are collected, and how many go into one message."""

STATES: Final[Mapping[Verdict, str]] = {
    Verdict.COMMIT: "COMMIT_MESSAGE",
    Verdict.ROLLBACK: "ROLLBACK_MESSAGE",
    Verdict.UNKNOWN: "UNKNOW",
}
"""Java's names for how a transaction ended."""

_NOTHING: Final[Mapping[str, str]] = {}


class Record(NamedTuple):
    """A trace record, and the words to find it by."""

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
    """Records as bodies of messages that are not too large, each with its keys."""
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


class TraceSender(Protocol):
    """A producer that is not traced."""

    async def start(self) -> None:
        """Make it ready."""
        ...

    async def send_oneway(self, message: Message) -> None:
        """Send a message."""
        ...

    async def close(self) -> None:
        """Leave."""
        ...


class Tracer:
    """Collects records and sends them.

    Args:
        sender: sends them; opened with the first record.
        topic: where to.

    Attributes:
        dropped: records that were too many.
    """

    def __init__(self, sender: TraceSender, topic: str = TRACE_TOPIC) -> None:
        self.dropped = 0
        self._sender = sender
        self._topic = topic
        self._waiting: deque[Record] = deque()
        self._task: asyncio.Task[None] | None = None
        self._open = False

    def add(self, text: str, keys: Iterable[str]) -> None:
        """Send a record some time."""
        if len(self._waiting) >= QUEUE_MAX:
            self.dropped += 1
            return
        self._waiting.append(Record(text, tuple(key for key in keys if key and " " not in key)))
        if self._task is None:
            self._task = asyncio.create_task(self._send(), name="message trace")

    async def close(self) -> None:
        """Send what waits, then leave."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1)
        await cancel(self._task)
        if self._open:
            self._open = False
            await self._sender.close()

    async def _send(self) -> None:
        try:
            if not self._open:
                self._open = True
                await self._sender.start()
            while self._waiting:
                await asyncio.sleep(WAIT_MS / 1000)
                count = min(len(self._waiting), BATCH_MAX)
                some = [self._waiting.popleft() for _ in range(count)]
                for body, keys in bodies(some):
                    await self._sender.send_oneway(Message(self._topic, body, keys=keys))
        except CohererError as error:
            _log.warning("Message trace is lost: %s", error, about=type(error))
            self._waiting.clear()
        finally:
            self._task = None


class _Publishing:
    """A send that is traced."""

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
        """Nothing goes with the message."""
        return _NOTHING

    def stored(self, outcome: Outcome) -> None:
        """A broker has it."""
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
        """Java traces what has an answer."""
        del error


class ProducerTrace:
    """Traces what a producer does; an observer.

    Args:
        tracer: sends the records.
        group: the producer group.
        topic: where the records go; sends there are not traced.
    """

    def __init__(self, tracer: Tracer, group: str, topic: str = TRACE_TOPIC) -> None:
        self._tracer = tracer
        self._group = group
        self._topic = topic

    def begin(self, messages: Sequence[Message], group: str, kind: Kind) -> _Publishing | None:
        """A message is about to be sent."""
        if messages[0].topic.startswith(self._topic):
            return None
        return _Publishing(self._tracer, messages, group, kind, _now_ms())

    def ended(self, receipt: SendReceipt, verdict: Verdict, server: str) -> None:
        """A transaction has ended."""
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
        """A broker has asked about a transaction."""
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
        """Send what waits, then leave."""
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
    """The record of a transaction's end."""
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
    """The record that a consumer has begun with a message."""
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
    """The record that a consumer is done with a message.

    Args:
        group: its group.
        request_id: as in the record before.
        message_id: the message.
        cost_ms: how long it took.
        success: whether it is dealt with.
        keys: the message's.
        context: 0 success, 1 time-out, 2 exception, 3 no verdict, 4 failure.
    """
    words = " ".join(keys) or None
    return record(
        "SubAfter", request_id, message_id, cost_ms, success, words, context, _now_ms(), group
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
