"""`coherer consume`: messages to stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, cast

import typer

from coherer.cli.asking import AnyAdmin, Whom
from coherer.cli.options import AdminUrl, Json, Password, Token, Url, User, connect, is_rocketmq
from coherer.cli.output import amount
from coherer.cli.signals import signals_interrupt
from coherer.errors import CohererError, RefusedError, UsageError

if TYPE_CHECKING:
    from coherer._client.tubemq.admin import Admin
    from coherer._wire.rocketmq.subscription import Sql92
    from coherer.blocking.rocketmq import Client as RocketClient
    from coherer.blocking.tubemq import Client, Consumer, ReceivedBatch
    from coherer.message import ReceivedMessage

_NOT_THERE = frozenset({17, 431})
"""What name servers and masters say of a topic that does not exist."""

_CREATE_MS = 10_000
"""How long a new topic may take until name servers know of it."""

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


class Batch(Protocol):
    """Messages that came together, of either protocol."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[ReceivedMessage]: ...
    def bodies(self) -> list[bytes]:
        """Only the bodies."""
        ...


B = TypeVar("B", bound=Batch)


class Receiver(Protocol[B]):
    """What of a consumer is needed here."""

    def receive(self, *, timeout_ms: int) -> B | None:
        """The next package."""
        ...

    def confirm(self, batch: B) -> object:
        """The group goes on behind it."""
        ...

    def leave(self, batch: B, printed: int) -> object:
        """The group reads it again, if it can be behind those that were printed."""
        ...


class Taker:
    """A consumer of TubeMQ: a package is confirmed as a whole or not at all."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def receive(self, *, timeout_ms: int) -> ReceivedBatch | None:
        """The next package."""
        return self._consumer.receive(timeout_ms=timeout_ms)

    def confirm(self, batch: ReceivedBatch) -> None:
        """The group goes on behind it."""
        self._consumer.commit(batch)

    def leave(self, batch: ReceivedBatch, printed: int) -> None:  # noqa: ARG002 - all or nothing
        """The group reads it again."""
        batch.retry()


@app.command()
def consume(
    topics: Annotated[list[str], typer.Argument(help="What to read.", show_default=False)],
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="The group. Default: none, nothing is left behind."),
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
    sql: Annotated[
        str | None,
        typer.Option("--sql", help="RocketMQ: only with properties for which this is true."),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Create a topic that does not exist.")
    ] = False,
    url: Url = "",
    admin: AdminUrl = None,
    token: Token = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Print messages as they come, and confirm them when they are printed.

    Without a group, messages are read without anybody's notice.
    """
    wanted = _selection(url, topics, tags or (), sql)
    printer = Printer(Form.json if as_json else form, sys.stdout.buffer.write, maximum)
    rest = None
    with suppress(KeyboardInterrupt), signals_interrupt(), connect(url, user, password) as client:
        _check_exist(client, wanted, create=create)
        with _receiver(client, group, wanted, start) as receiver:
            rest = printer.run(receiver, timeout_s)
    if group is not None and rest is not None and not is_rocketmq(url):
        _go_on_at(Whom(url, admin, token, user, password), group, rest)
    typer.echo(amount(printer.count, "message"), err=True)


@contextmanager
def _receiver(
    client: Client | RocketClient,
    group: str | None,
    wanted: Mapping[str, tuple[str, ...] | Sql92],
    start: Start,
) -> Generator[Receiver[Any]]:
    """What hands out the messages."""
    from coherer import blocking

    if isinstance(client, blocking.tubemq.Client):
        tags = {topic: one for topic, one in wanted.items() if isinstance(one, tuple)}
        if group is None:
            from coherer.cli.consume_tubemq import Readers

            with Readers(client, tags, start.value) as readers:
                yield readers
            return
        with client.consumer(group, tags, start=start.value) as consumer:
            yield Taker(consumer)
        return
    from coherer.cli.consume_rocketmq import member, passer_by

    chosen = {topic: one or None for topic, one in wanted.items()}
    if group is None:
        with passer_by(client, chosen, start.value) as reader:
            yield reader
    else:
        with member(client, group, chosen, start.value) as one:
            yield one


def _check_exist(client: Client | RocketClient, topics: Iterable[str], *, create: bool) -> None:
    """Check that topics exist, before brokers that create topics by themselves are asked for them.

    Raises:
        RefusedError: one does not.
    """
    for topic in topics:
        try:
            client.partitions(topic)
        except RefusedError as error:
            if error.code not in _NOT_THERE:
                raise
            if create:
                _create(client, topic)
                continue
            error.hint = f"Create it: `coherer topics create {topic}`, or consume with --create."
            raise


def _create(client: Client | RocketClient, topic: str) -> None:
    from coherer import blocking

    if isinstance(client, blocking.tubemq.Client):
        with client.producer(topic):  # the master creates what is published, where it may
            return
    client.admin().create_topic(topic, wait_ms=_CREATE_MS)


def _selection(
    url: str, topics: Iterable[str], tags: Sequence[str], sql: str | None
) -> dict[str, tuple[str, ...] | Sql92]:
    """What is taken of each topic.

    Raises:
        UsageError: TubeMQ knows no SQL92, and tags do not go with it.
    """
    if sql is None:
        return dict.fromkeys(topics, tuple(tags))
    if tags or not is_rocketmq(url):
        raise UsageError("--sql is RocketMQ's, and no tags go with it.")
    from coherer._wire.rocketmq.subscription import Sql92

    return dict.fromkeys(topics, Sql92(sql))


class Printer:
    """Prints messages until there are enough.

    Args:
        form: how.
        write: takes the bytes.
        maximum: how many; None for no end.

    Attributes:
        count: how many were printed.
        printed: how many of the last package.
    """

    def __init__(
        self, form: Form, write: Callable[[bytes], object], maximum: int | None = None
    ) -> None:
        self.count = 0
        self.printed = 0
        self._lines = _LINES[form]
        self._write = write
        self._maximum = maximum

    def run(self, consumer: Receiver[B], timeout_s: float | None) -> ReceivedMessage | None:
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
                consumer.leave(batch, self.printed)
                return last
            consumer.confirm(batch)
        return None

    def show(self, batch: Batch) -> ReceivedMessage | None:
        """Print a package; the last printed message if there was no need of all."""
        size = len(batch)
        count = size if self._maximum is None else min(size, self._maximum - self.count)
        self._write(b"".join(line + b"\n" for line in self._lines(batch, count)))
        sys.stdout.flush()
        self.count += count
        self.printed = count
        return None if count == size else next(islice(batch, count - 1, None))


def _text(batch: Batch, count: int) -> Iterable[bytes]:
    return batch.bodies()[:count]


def _hex(batch: Batch, count: int) -> Iterable[bytes]:
    return (body.hex().encode() for body in batch.bodies()[:count])


def _json(batch: Batch, count: int) -> Iterable[bytes]:
    import msgspec

    from coherer.cli.reading import Envelope

    encode, envelope = msgspec.json.Encoder().encode, Envelope.of
    return (encode(envelope(message)) for message in islice(batch, count))


_LINES = {Form.text: _text, Form.hex: _hex, Form.json: _json}


def _go_on_at(whom: Whom, group: str, last: ReceivedMessage) -> None:
    """Set a group behind the last message that was printed.

    A package is confirmed as a whole or not at all; what `--max` left of one must not be lost, and
    what was printed should not come again.
    """
    again = "The group will read the last package again"
    if last.offset is None:
        typer.echo(f"{again}: the broker does not tell the offsets of messages.", err=True)
        return
    offsets = {f"{last.broker}:{last.topic}:{last.partition}": last.offset + 1}

    async def set_offsets(admin: AnyAdmin) -> None:
        await cast("Admin", admin).set_offsets(group, offsets)

    try:
        whom.ask(set_offsets)
    except CohererError as error:
        typer.echo(f"{again}: {error}", err=True)
