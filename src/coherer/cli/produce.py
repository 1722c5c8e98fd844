"""`coherer produce`: sends messages from files or stdin."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, Protocol

import msgspec
import typer

from coherer import SendReport, blocking
from coherer._common.urls import is_rocketmq
from coherer.cli.completion import complete_topic
from coherer.cli.options import Json
from coherer.cli.output import FAILED, INTERRUPTED, amount, print_json, progress_bar
from coherer.cli.reading import Stamp, chunks, messages
from coherer.cli.signals import signals_interrupt
from coherer.cli.target import Password, Url, User, connect
from coherer.errors import CohererError, UsageError
from coherer.message import Message

# A command loads the client of one protocol, which takes 0.1 s less than both.
if TYPE_CHECKING:
    from coherer.blocking.rocketmq import Producer as RocketProducer
    from coherer.blocking.tubemq import Producer

STDIN = Path("-")
_TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y%m%d%H%M"]

_DURATION: Final = re.compile(
    r"(?:(?P<days>\d+)d)?(?:(?P<hours>\d+)h)?(?:(?P<minutes>\d+)m)?(?:(?P<seconds>\d+)s)?"
    r"(?:(?P<milliseconds>\d+)ms)?"
)

app = typer.Typer(add_completion=False)


class Form(StrEnum):
    """The format of an input file."""

    lines = "lines"
    json = "json"
    raw = "raw"


Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="RocketMQ: key to look them up by; may be repeated."),
]
Moment = Annotated[
    datetime | None,
    typer.Option(
        "--time",
        formats=_TIMES,
        metavar="TIME",
        help="Time of the messages' content, for example 2026-01-31T18:30.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-p", metavar="NAME=VALUE", help="A property; may be repeated."),
]


Delay = Annotated[
    str | None,
    typer.Option(
        "--delay",
        metavar="DURATION",
        help="RocketMQ: deliver the messages after this delay: 10s, 5m, 1h30m. Java's brokers "
        "before 5.0 only support some delays: 1s 5s 10s 30s, 1m to 10m, 20m 30m 1h 2h.",
    ),
]
OrderBy = Annotated[
    str | None,
    typer.Option(
        "--order-by",
        metavar="NAME",
        help="RocketMQ: keep the order of messages with the same first key (key), the same tag "
        "(tag), or the same value of a property (its name). They are sent to the same queue.",
    ),
]


class Sender(Protocol):
    """The part of a producer that `send_all` needs."""

    def send_many(self, messages: Iterable[Message]) -> SendReport:
        """Send messages and wait for all receipts."""
        ...


class Total(msgspec.Struct):
    """The totals of a run.

    Args:
        sent: messages that were stored.
        failed: messages that were not.
        body_bytes: the size of the stored messages' bodies.
        read_bytes: read from the files.
        error: of the first message that failed.
    """

    sent: int = 0
    failed: int = 0
    body_bytes: int = 0
    read_bytes: int = 0
    seconds: float = 0.0
    error: str | None = None

    @property
    def text(self) -> str:
        """The totals as a line for people."""
        seconds = max(self.seconds, 1e-9)
        text = (
            f"{amount(self.sent, 'message')}, {amount(self.body_bytes, 'byte')} "
            f"in {self.seconds:.1f} s: {self.sent / seconds:,.0f}/s"
        )
        return f"{text}; {self.failed:,} failed, the first: {self.error}" if self.failed else text


Topic = Annotated[
    str,
    typer.Argument(help="Topic to send to.", show_default=False, autocompletion=complete_topic),
]
Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE", help="Files to send; - is stdin. Default: stdin.", show_default=False
    ),
]
Format = Annotated[
    Form,
    typer.Option(
        "--format",
        "-f",
        help="lines: each line is a body; json: each line is an object with body (or base64), "
        "tag, keys, time, properties; raw: each file is one message.",
    ),
]


@app.command()
def produce(
    topic: Topic,
    files: Files = None,
    form: Format = Form.lines,
    tag: Annotated[str | None, typer.Option(help="Tag that consumers can filter by.")] = None,
    keys: Keys = None,
    moment: Moment = None,
    properties: Properties = None,
    delay: Delay = None,
    order_by: OrderBy = None,
    url: Url = "",
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Send messages from files or stdin; by default each line is a message."""
    if tag is not None and "||" in tag:
        raise UsageError(
            f"A tag cannot contain ||: no filter could match {tag!r}.",
            hint="A message has one tag; consumers filter by several.",
        )
    stamp = Stamp(topic, tag, moment, parse_properties(properties or []), tuple(keys or ()))
    wait = None if delay is None else parse_duration(delay)
    if (wait or order_by) and not is_rocketmq(url):
        raise UsageError(
            "--delay and --order-by work with RocketMQ only.",
            hint="A Coherer node serves RocketMQ at rocketmq://host:9876.",
        )
    paths = files or [STDIN]
    for path in paths:
        if path != STDIN and (not os.access(path, os.R_OK) or path.is_dir()):
            raise UsageError(f"{path} is not a readable file.")
    size_bytes = _size(paths)
    total = Total()
    batches = read_all(paths, form.value, stamp, total)
    try:
        with (
            signals_interrupt(),
            connect(url, user, password) as client,
            client.producer(topic) as producer,
            progress_bar("sending") as move,
        ):
            send_all(
                _sender(producer, wait, order_by),
                batches,
                total,
                lambda now: move(now.text, now.read_bytes, size_bytes),
            )
    except KeyboardInterrupt:
        _report(total, as_json=as_json)
        raise typer.Exit(INTERRUPTED) from None
    except CohererError:
        if total.sent or total.failed:
            _report(total, as_json=as_json)
        raise
    _report(total, as_json=as_json)
    if total.failed:
        raise typer.Exit(FAILED)


def _report(total: Total, *, as_json: bool) -> None:
    if as_json:
        print_json(total)
    else:
        typer.echo(total.text, err=True)


def parse_properties(texts: Iterable[str]) -> dict[str, str]:
    """The properties in `--property` options.

    >>> parse_properties(["origin=JFK", "note=a=b"])
    {'origin': 'JFK', 'note': 'a=b'}

    Raises:
        UsageError: one has no `=`.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"{text!r} is not a property.", hint="Write name=value.")
        found[name] = value
    return found


def parse_duration(text: str) -> timedelta:
    """Parse a duration in days, hours, minutes, seconds and milliseconds.

    Raises:
        UsageError: it is malformed.

    >>> parse_duration("1h30m"), parse_duration("500ms")
    (datetime.timedelta(seconds=5400), datetime.timedelta(microseconds=500000))
    """
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        raise UsageError(f"{text!r} is not a duration.", hint="Write it like 10s, 5m or 1h30m.")
    try:
        return timedelta(**{unit: int(number) for unit, number in found.groupdict("0").items()})
    except (OverflowError, ValueError) as error:  # Python reads no number of 5,000 digits
        raise UsageError(f"{text[:40]!r} is too long a duration.") from error


class ArrangedSender:
    """Sends messages over RocketMQ with a delay, or in the order of a key.

    Args:
        producer: an open producer.
        delay: the delay of each message; None for no delay.
        order_by: `key`, `tag` or the name of a property; None for any queue.
    """

    def __init__(
        self, producer: RocketProducer, delay: timedelta | None, order_by: str | None
    ) -> None:
        self._producer = producer
        self._delay = delay
        self._order_by = order_by

    def send_many(self, messages: Iterable[Message]) -> SendReport:
        """Send messages and wait for all receipts.

        Raises:
            UsageError: a message lacks the value to order by.
        """
        waiting = [
            (
                message,
                self._producer.submit(message, delay=self._delay, order_by=self._key(message)),
            )
            for message in messages
        ]
        failed: list[tuple[Message, CohererError]] = []
        for message, future in waiting:
            try:
                future.result()
            except CohererError as error:
                failed.append((message, error))
        return SendReport(len(waiting) - len(failed), failed)

    def _key(self, message: Message) -> str | None:
        if self._order_by is None:
            return None
        value = {
            **message.properties,
            **({"tag": message.tag} if message.tag is not None else {}),
            **({"key": message.keys[0]} if message.keys else {}),
        }.get(self._order_by)
        if value is None:
            raise UsageError(
                f"A message has no {self._order_by!r} to order by.",
                topic=message.topic,
                hint="Order by key, tag, or the name of a property that each message has.",
            )
        return value


def _sender(
    producer: Producer | RocketProducer, delay: timedelta | None, order_by: str | None
) -> Sender:
    if isinstance(producer, blocking.rocketmq.Producer) and (delay or order_by):
        return ArrangedSender(producer, delay, order_by)
    return producer


def read_all(
    paths: Iterable[Path], form: str, stamp: Stamp, total: Total
) -> Iterator[list[Message]]:
    """The messages of all files, in lists of those that were read together."""
    for path in paths:
        name = "stdin" if path == STDIN else str(path)
        with _open(path) as source:
            yield from messages(_counted(chunks(source), total), form, stamp, name)


def send_all(
    producer: Sender,
    batches: Iterable[list[Message]],
    total: Total,
    show: Callable[[Total], None],
) -> None:
    """Send everything, and keep `total` correct at any moment, also after an interruption."""
    start = time.perf_counter()
    for batch in batches:
        report = producer.send_many(batch)
        total.sent += report.sent
        total.failed += len(report.failed)
        if report.failed and total.error is None:
            total.error = str(report.failed[0][1])
        failed_bytes = sum(len(message.body) for message, _ in report.failed)
        total.body_bytes += sum(len(message.body) for message in batch) - failed_bytes
        total.seconds = time.perf_counter() - start
        show(total)


def _open(path: Path) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb")


def _counted(parts: Iterable[bytes], total: Total) -> Iterator[bytes]:
    for part in parts:
        total.read_bytes += len(part)
        yield part


def _size(paths: Iterable[Path]) -> int | None:
    """Size of the files; None if one is a pipe."""
    if all(path != STDIN and path.is_file() for path in paths):
        return sum(path.stat().st_size for path in paths)
    return None
