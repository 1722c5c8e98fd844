"""Reads messages from files and pipes: the input of `coherer produce`.

Input is read in chunks. The complete lines of a chunk become a list of messages, which is sent as
one batch. Reading from a pipe does not wait for a full chunk: a line is sent as soon as it arrives.
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
"""Limit of a line: JSON makes a message longer than its body."""


class Envelope(msgspec.Struct, omit_defaults=True):
    """A message as a line of JSON: what `consume --format json` prints and `produce` takes.

    Args:
        body: the body as text; or
        base64: the body, if it is not UTF-8.
        tag: for filters of consumers.
        time: of the message's content.
        properties: other names and values.
        keys: to look it up by (RocketMQ).
        topic: of a received message; `produce` uses its own argument instead.
        broker: of a received message, as all following fields.
        partition: its partition.
        offset: in the partition.
        id: given by the broker.
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
            ValueError: there is no body, or it is not valid base64.
        """
        if self.base64 is not None:
            return base64.b64decode(self.base64, validate=True)
        if self.body is None:
            raise ValueError("it has neither `body` nor `base64`")
        return self.body.encode()


class Stamp(msgspec.Struct, frozen=True):
    """The attributes that command line options give to every message; see `Envelope`."""

    topic: str
    tag: str | None = None
    time: datetime | None = None
    properties: Mapping[str, str] = {}
    keys: tuple[str, ...] = ()

    def plain(self, body: bytes) -> Message:
        """A message with this body."""
        return Message(self.topic, body, self.tag, self.time, self.keys, self.properties)

    def enveloped(self, line: bytes) -> Message:
        """A message from a line of JSON; the line overrides the options.

        Raises:
            ValueError: the line is not a valid message.
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
    """The content of a file in chunks; a chunk of a pipe is all that has arrived."""
    read = source.read1 if isinstance(source, io.BufferedReader | io.BytesIO) else source.read
    while chunk := read(CHUNK_BYTES):
        yield chunk


def lines(parts: Iterable[bytes]) -> Iterator[list[bytes]]:
    r"""The lines that each part completes, without line ends.

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
                f"A line is longer than {LINE_BYTES_MAX} bytes.",
                hint="Is it text? `--format raw` sends a whole file as one message.",
            )
    last = b"".join(begun).removesuffix(b"\r")
    if last:
        yield [last]


def messages(parts: Iterable[bytes], form: str, stamp: Stamp, name: str) -> Iterator[list[Message]]:
    """The messages of a file, in lists of those that were read together; skips empty lines.

    Args:
        parts: the file in chunks.
        form: lines, json, or raw.
        stamp: attributes from the options.
        name: of the file, for errors.

    Raises:
        UsageError: a line is not a message.
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
                f"{name}, line {number} is not a JSON message, "
                f"{line[:60].decode(errors='replace')}: {error}.",
                hint='Write it like {"body": "text", "tag": "a"}.',
            ) from error
    return found
