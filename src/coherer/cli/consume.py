"""`coherer consume`: messages to stdout."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from coherer.cli.options import (
    DEFAULT_URL,
    AdminUrl,
    Json,
    Password,
    Url,
    User,
    connect,
    open_admin,
)
from coherer.cli.signals import signals_interrupt
from coherer.errors import CohererError

if TYPE_CHECKING:
    from coherer.message import ReceivedMessage
    from coherer.tubemq.delivery import MessageBatch

_WAIT_MS = 1_000
"""How long a single wait lasts when there is no timeout: Windows sees Ctrl-C only between waits."""

app = typer.Typer(add_completion=False)


class Form(StrEnum):
    """How messages are printed."""

    text = "text"
    json = "json"
    hex = "hex"


class Start(StrEnum):
    """Where a new group begins."""

    earliest = "earliest"
    latest = "latest"


class Receiver(Protocol):
    """What of a consumer is needed here."""

    def receive(self, *, timeout_ms: int) -> MessageBatch | None:
        """The next package."""
        ...

    def confirm(self, batch: MessageBatch) -> object:
        """The group goes on behind it."""
        ...

    def reject(self, batch: MessageBatch) -> object:
        """The group reads it again."""
        ...


@app.command()
def consume(
    topics: Annotated[list[str], typer.Argument(help="What to read.", show_default=False)],
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="The group. Default: a new one of its own."),
    ] = None,
    form: Annotated[
        Form,
        typer.Option(
            "--format",
            "-f",
            help="text: the body as it is, and a line end; json: an object on each line, which "
            "`coherer produce --format json` takes; hex: the body in hexadecimal.",
        ),
    ] = Form.text,
    start: Annotated[
        Start, typer.Option("--from", help="Where a group begins that has no offsets yet.")
    ] = Start.earliest,
    maximum: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Stop after so many messages.")
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", "-t", min=0, help="Stop after so many seconds without one."),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="TAG", help="Only with this tag; may be repeated."),
    ] = None,
    url: Url = DEFAULT_URL,
    admin: AdminUrl = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Print messages as they come, and confirm them when they are printed."""
    name = group or f"cli-{uuid.uuid4().hex[:12]}"
    wanted = {topic: tuple(tags or ()) for topic in topics}
    printer = Printer(Form.json if as_json else form, sys.stdout.buffer.write, maximum)
    try:
        with (
            signals_interrupt(),
            connect(url, user, password) as client,
            client.consumer(name, wanted, start=start.value) as consumer,
        ):
            rest = printer.run(consumer, timeout_s)
    except KeyboardInterrupt:
        rest = None
    if group is not None and rest is not None:
        _go_on_at(url, admin, group, rest)
    typer.echo(f"{printer.count:,} messages", err=True)


class Printer:
    """Prints messages until there are enough.

    Args:
        form: how.
        write: takes the bytes.
        maximum: how many; None for no end.
    """

    def __init__(
        self, form: Form, write: Callable[[bytes], object], maximum: int | None = None
    ) -> None:
        self.count = 0
        self._line = _LINES[form]
        self._write = write
        self._maximum = maximum

    def run(self, consumer: Receiver, timeout_s: float | None) -> ReceivedMessage | None:
        """Print and confirm until the maximum, or until nothing comes for `timeout_s`.

        Returns:
            The last printed message of a package that was printed in part and not confirmed.
        """
        wait_ms = _WAIT_MS if timeout_s is None else int(timeout_s * 1000)
        while self._maximum is None or self.count < self._maximum:
            batch = consumer.receive(timeout_ms=wait_ms)
            if batch is None:
                if timeout_s is None:
                    continue
                break
            last = self.show(batch)
            if last is not None:
                consumer.reject(batch)
                return last
            consumer.confirm(batch)
        return None

    def show(self, batch: MessageBatch) -> ReceivedMessage | None:
        """Print a package; the last printed message if there was no need of all."""
        left = len(batch) if self._maximum is None else self._maximum - self.count
        printed: list[bytes] = []
        last: ReceivedMessage | None = None
        for message in batch:
            if len(printed) == left:
                break
            printed.append(self._line(message))
            last = message
        else:
            last = None
        self.count += len(printed)
        self._write(b"".join(printed))
        sys.stdout.flush()
        return last


def _text(message: ReceivedMessage) -> bytes:
    return message.body + b"\n"


def _hex(message: ReceivedMessage) -> bytes:
    return message.body.hex().encode() + b"\n"


def _json(message: ReceivedMessage) -> bytes:
    import msgspec

    from coherer.cli.reading import Envelope

    return msgspec.json.encode(Envelope.of(message)) + b"\n"


_LINES = {Form.text: _text, Form.hex: _hex, Form.json: _json}


def _go_on_at(url: str, admin: str | None, group: str, last: ReceivedMessage) -> None:
    """Set a group behind the last message that was printed.

    A package is confirmed as a whole or not at all; what `--max` left of one must not be lost, and
    what was printed should not come again.
    """
    from coherer import net

    again = "The group will read the last package again"
    if last.offset is None:
        typer.echo(f"{again}: the broker does not tell the offsets of messages.", err=True)
        return
    offsets = {f"{last.broker}:{last.topic}:{last.partition}": last.offset + 1}
    try:
        net.run(open_admin(url, admin, "").set_offsets(group, offsets))
    except CohererError as error:
        typer.echo(f"{again}: {error}", err=True)
