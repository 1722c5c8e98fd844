r"""Message trace (docs/protocol/rocketmq.md, section 11).

Message trace sends records of what happened to messages to a topic of their own. In a record,
fields are separated by U+0001, an unknown value is the text `null`, and U+0002 ends the record.
Records are collected for a few milliseconds and sent together; if they come faster than they can be
sent, they are dropped. Sends of records are not traced.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from coherer._client.engine.tasks import cancel
from coherer._common.logs import Log
from coherer._wire.rocketmq.names import TRACE_TOPIC
from coherer.errors import CohererError
from coherer.message import Message

_log = Log(logging.getLogger(__name__))

QUEUE_MAX: Final = 1_024
"""The maximum number of waiting records; more are dropped."""

WAIT_MS: Final = 5
BATCH_MAX: Final = 100
BODY_BYTES_MAX: Final = 118_000
"""Java's numbers: how long records are collected, and how many go into one message."""


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


class RecordProducer(Protocol):
    """Sends messages with records, as `Producer` does."""

    async def start(self) -> None:
        """Start; called before the first message."""
        ...

    async def send_oneway(self, message: Message) -> None:
        """Send a message without asking for a receipt."""
        ...

    async def close(self) -> None:
        """Wait for the messages in flight, and close."""
        ...


class Tracer:
    """Collects records and sends them.

    Args:
        producer: sends the records; started with the first one. It is not traced itself.
        topic: the topic of the records.

    Attributes:
        topic: the topic of the records.
        dropped: the number of dropped records.
    """

    def __init__(self, producer: RecordProducer, topic: str = TRACE_TOPIC) -> None:
        self.topic = topic
        self.dropped = 0
        self._producer = producer
        self._waiting: deque[Record] = deque()
        self._task: asyncio.Task[None] | None = None
        self._open = False
        self._closed = False

    def add(self, text: str, keys: Iterable[str]) -> None:
        """Send a record later."""
        if self._closed or len(self._waiting) >= QUEUE_MAX:
            self.dropped += 1
            return
        self._waiting.append(Record(text, tuple(key for key in keys if key and " " not in key)))
        if self._task is None:
            self._task = asyncio.create_task(self._send(), name="message trace")

    async def close(self) -> None:
        """Send the waiting records, then close the producer."""
        try:
            if self._task is not None:
                await asyncio.wait([self._task], timeout=1)
        finally:
            self._closed = True
            await cancel(self._task)
            if self._open:
                self._open = False
                await self._producer.close()

    async def _send(self) -> None:
        try:
            if not self._open:
                await self._producer.start()
                self._open = True
            while self._waiting:
                await asyncio.sleep(WAIT_MS / 1000)
                count = min(len(self._waiting), BATCH_MAX)
                some = [self._waiting.popleft() for _ in range(count)]
                for body, keys in bodies(some):
                    await self._producer.send_oneway(Message(self.topic, body, keys=keys))
        except CohererError as error:
            _log.warning("Trace records are lost: %s", error, about=type(error))
            self._waiting.clear()
        finally:
            self._task = None
