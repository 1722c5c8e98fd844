"""From files and pipes to messages: the input side of `coherer produce`.

Input is read in chunks; what is complete in a chunk becomes one list of messages, which is sent in
bulk. A pipe gives what it has: a line is on its way as soon as it is there.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import BinaryIO

import msgspec

from coherer import limits
from coherer.errors import UsageError
from coherer.message import Message, ReceivedMessage

CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = limits.MESSAGE_BYTES_MAX * 2
"""A message in JSON can be longer than its body; more than this is no line of messages."""


class Envelope(msgspec.Struct, omit_defaults=True):
    """A message as a line of JSON: what `consume --format json` prints and `produce` takes.

    Args:
        body: the body as text; or
        base64: the body, where it is no UTF-8 text.
        tag: the word that consumers filter by.
        time: what the message is about in time.
        properties: further names and values.
        keys: words to look it up by (RocketMQ).
        topic: of a received message; `produce` takes its own argument instead.
        broker: of a received message, like all that follow.
        partition: its partition.
        offset: its place there.
        id: the broker's id for it.
    """

    body: str | None = None
    base64: str | None = None
    tag: str | None = None
    time: datetime | None = None
    properties: Mapping[str, str] = {}
    keys: tuple[str, ...] = ()
    topic: str = ""
    broker: str = ""
    partition: int | None = None
    offset: int | None = None
    id: str = ""

    @classmethod
    def of(cls, message: ReceivedMessage) -> Envelope:
        """The line for a received message."""
        try:
            text, coded = message.body.decode(), None
        except UnicodeDecodeError:
            text, coded = None, base64.b64encode(message.body).decode()
        return cls(
            body=text,
            base64=coded,
            tag=message.tag,
            time=message.time,
            properties=message.properties,
            keys=message.keys,
            topic=message.topic,
            broker=message.broker,
            partition=message.partition,
            offset=message.offset,
            id=message.id,
        )

    def content(self) -> bytes:
        """The body.

        Raises:
            ValueError: there is none, or it is no base64.
        """
        if self.base64 is not None:
            return base64.b64decode(self.base64, validate=True)
        if self.body is None:
            raise ValueError("there is neither `body` nor `base64`")
        return self.body.encode()


class Stamp(msgspec.Struct, frozen=True):
    """What the options say of every message.

    Args:
        topic: where it goes.
        tag: the word that consumers filter by.
        time: what it is about in time.
        properties: further names and values.
        keys: words to look it up by (RocketMQ).
    """

    topic: str
    tag: str | None = None
    time: datetime | None = None
    properties: Mapping[str, str] = {}
    keys: tuple[str, ...] = ()

    def plain(self, body: bytes) -> Message:
        """A message of this body."""
        return Message(self.topic, body, self.tag, self.time, self.keys, self.properties)

    def enveloped(self, line: bytes) -> Message:
        """A message from a line of JSON; what the line says goes before what the options say.

        Raises:
            ValueError: it is no such line.
        """
        envelope = _decode(line)
        body = envelope.content()
        return Message(
            self.topic,
            body,
            self.tag if envelope.tag is None else envelope.tag,
            self.time if envelope.time is None else envelope.time,
            envelope.keys or self.keys,
            properties={**self.properties, **envelope.properties},
        )


_decode = msgspec.json.Decoder(Envelope).decode


def chunks(source: BinaryIO) -> Iterator[bytes]:
    """What a file holds; of a pipe, what is there now, as soon as it is there."""
    read = source.read1 if isinstance(source, io.BufferedReader | io.BytesIO) else source.read
    while chunk := read(CHUNK_BYTES):
        yield chunk


def lines(parts: Iterable[bytes]) -> Iterator[list[bytes]]:
    r"""The lines that each part completes, without their ends.

    >>> list(lines([b"one\ntwo\r\nth", b"ree\n\nfour"]))
    [[b'one', b'two'], [b'three', b''], [b'four']]

    Raises:
        UsageError: a line is longer than any message can be.
    """
    begun: list[bytes] = []
    begun_bytes = 0
    for part in parts:
        head, end, tail = part.rpartition(b"\n")
        if end:
            whole = b"".join([*begun, head])
            begun, begun_bytes = [], 0
            yield [line.removesuffix(b"\r") for line in whole.split(b"\n")]
        if tail:
            begun.append(tail)
            begun_bytes += len(tail)
        if begun_bytes > LINE_BYTES_MAX:
            raise UsageError(
                f"A line of more than {LINE_BYTES_MAX} bytes.",
                hint="Is it text? `--format raw` sends a whole file as one message.",
            )
    last = b"".join(begun).removesuffix(b"\r")
    if last:
        yield [last]


def messages(parts: Iterable[bytes], form: str, stamp: Stamp, name: str) -> Iterator[list[Message]]:
    """The messages of a file, in lists of what came together; empty lines are none.

    Args:
        parts: the file in chunks.
        form: lines, json, or raw.
        stamp: what the options say.
        name: what errors call the file.

    Raises:
        UsageError: a line is no message.
    """
    if form == "raw":
        if body := b"".join(parts):
            yield [stamp.plain(body)]
        return
    make: Callable[[bytes], Message] = stamp.enveloped if form == "json" else stamp.plain
    first = 1
    for batch in lines(parts):
        yield _made(batch, first, make, name)
        first += len(batch)


def _made(
    batch: Iterable[bytes], first: int, make: Callable[[bytes], Message], name: str
) -> list[Message]:
    found: list[Message] = []
    for number, line in enumerate(batch, first):
        try:
            if line:
                found.append(make(line))
        except (msgspec.DecodeError, ValueError) as error:
            raise UsageError(
                f"{name}, line {number} is no message in JSON, "
                f"{line[:60].decode(errors='replace')}: {error}.",
                hint='One looks like {"body": "text", "tag": "a"}.',
            ) from error
    return found
