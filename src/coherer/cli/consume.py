"""`coherer consume`: prints messages to stdout.

A `Source` delivers batches of either protocol: as a member of a group, or without one. The
`Printer` prints a batch, then acknowledges it. With `--max` the last batch may be printed in part;
`Source.stop_after` then makes the group continue after the last printed message, if it can.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    Protocol,
    TypeVar,
    cast,
)

import msgspec
import typer

from coherer import blocking
from coherer._common.urls import is_rocketmq
from coherer._record.system_topics import TOOLS_GROUP
from coherer.cli.completion import complete_group, complete_topic
from coherer.cli.consume_start import (
    Places,
    Start,
    begins_of,
    check_group_options,
    parse_partitions,
    parse_position,
)
from coherer.cli.options import Json, seconds_option
from coherer.cli.output import amount
from coherer.cli.reading import Envelope
from coherer.cli.signals import signals_interrupt
from coherer.cli.target import AdminTarget, AnyAdmin, connect, on_cluster_with_token
from coherer.errors import CohererError, RefusedError, UsageError
from coherer.message import ReceivedMessage

# A command loads the client of one protocol, which takes 0.1 s less than both.
if TYPE_CHECKING:
    from coherer._client.rocketmq.options import Selection
    from coherer._client.tubemq.administration.admin import Admin
    from coherer._wire.rocketmq.names import Queue
    from coherer._wire.rocketmq.subscription import Sql92
    from coherer._wire.tubemq.delivery import MessageBatch
    from coherer.blocking.rocketmq import Client as RocketClient
    from coherer.blocking.rocketmq import Consumer as RocketConsumer
    from coherer.blocking.rocketmq import PullConsumer as RocketPullConsumer
    from coherer.blocking.rocketmq import ReceivedBatch as RocketBatch
    from coherer.blocking.tubemq import Client, Consumer, Reader, ReceivedBatch

_NO_TOPIC: Final = frozenset({17, 431})
"""Codes of name servers and masters for a topic that does not exist."""

_CREATE_MS: Final = 10_000
"""Time for name servers to learn of a new topic."""

_WAIT_MS: Final = 1_000
"""The length of one wait without a timeout: on Windows Ctrl-C takes effect between waits."""

_IDLE_S: Final = 0.1
"""Pause after a round of readers in which no partition had a message."""

_NO_END: Final = 1 << 62


app = typer.Typer(add_completion=False)


class Form(StrEnum):
    """The output format."""

    text = "text"
    json = "json"
    hex = "hex"


class Batch(Protocol):
    """Messages that were received together, of either protocol."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[ReceivedMessage]: ...
    def bodies(self) -> list[bytes]:
        """The bodies of the messages."""
        ...


B = TypeVar("B", bound=Batch)


class Source(Protocol[B]):
    """Delivers batches of messages."""

    def receive(self, *, timeout_ms: int) -> B | None:
        """The next batch; None after the timeout."""
        ...

    def ack(self, batch: B) -> object:
        """Acknowledge a batch that was printed."""
        ...

    def stop_after(self, batch: B, printed: int) -> object:
        """Return a batch that was printed in part."""
        ...

    def error(self) -> CohererError | None:
        """The error that prevents receiving at the moment, or None."""
        ...


Topics = Annotated[
    list[str],
    typer.Argument(help="Topics to read.", show_default=False, autocompletion=complete_topic),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="Consumer group. Default: no group, so no offsets are stored.",
        autocompletion=complete_group,
    ),
]
Format = Annotated[
    Form,
    typer.Option(
        "--format",
        "-f",
        help="text: the body and a line end; json: an object on each line, which "
        "`coherer produce --format json` accepts; hex: the body in hexadecimal.",
    ),
]
Begin = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="POSITION",
        help="Where to start: earliest, latest, a store time (2026-01-31T18:30, local "
        "without a zone), or an offset. With --group it only applies if the group has no offsets "
        "yet, and cannot be an offset.",
    ),
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="[BROKER:]PARTITION",
        help="Only this partition; may be repeated. Not with --group.",
    ),
]
Maximum = Annotated[
    int | None, typer.Option("--max", "-n", min=1, help="Stop after this many messages.")
]
Timeout = Annotated[
    float | None,
    seconds_option("--timeout", "-t", about="Stop after this many seconds without a message."),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="TAG", help="Only messages with this tag; may be repeated."),
]
Sql = Annotated[
    str | None,
    typer.Option("--sql", help="RocketMQ: only messages that match this SQL92 expression."),
]
Create = Annotated[bool, typer.Option("--create", help="Create a topic that does not exist.")]


@app.command()
@on_cluster_with_token
def consume(
    target: AdminTarget,
    topics: Topics,
    group: Group = None,
    form: Format = Form.text,
    begin: Begin = "earliest",
    partitions: Partitions = None,
    maximum: Maximum = None,
    timeout_s: Timeout = None,
    tags: Tags = None,
    sql: Sql = None,
    create: Create = False,
    as_json: Json = False,
) -> None:
    """Print messages as they arrive, and acknowledge them once they are printed.

    Without a group, reading leaves no trace on the cluster.
    """
    wanted = _selection(target.url, topics, tags or (), sql)
    start = parse_position(begin)
    places = parse_partitions(partitions or ())
    if group is not None:
        check_group_options(group, topics, start, places, target.url)
    printer = Printer(Form.json if as_json else form, sys.stdout.buffer.write, maximum)
    last = None
    connecting = connect(target.url, target.user, target.password)
    with suppress(KeyboardInterrupt), signals_interrupt(), connecting as client:
        _check_topics(client, wanted, create=create)
        with _source(client, group, wanted, start, places) as source:
            last = printer.run(source, timeout_s)
    if group is not None and last is not None and not is_rocketmq(target.url):
        _continue_after(target, group, last)
    typer.echo(amount(printer.count, "message"), err=True)


def _selection(
    url: str, topics: Iterable[str], tags: Sequence[str], sql: str | None
) -> dict[str, tuple[str, ...] | Sql92]:
    """The filter of each topic.

    Raises:
        UsageError: `--sql` is malformed, or used with TubeMQ or with tags.
    """
    if sql is None:
        return dict.fromkeys(topics, tuple(tags))
    if tags or not is_rocketmq(url):
        raise UsageError(
            "--sql works with RocketMQ only, and not with --filter.",
            hint="A Coherer node serves RocketMQ at rocketmq://host:9876.",
        )
    from coherer._wire.rocketmq.selector import SelectorError, compile_selector
    from coherer._wire.rocketmq.subscription import Sql92

    try:
        compile_selector(sql)
    except SelectorError as error:  # a reader would receive everything
        raise UsageError(f"--sql is not valid: {error}") from error

    return dict.fromkeys(topics, Sql92(sql))


def _check_topics(client: Client | RocketClient, topics: Iterable[str], *, create: bool) -> None:
    """Check that topics exist; a consumer would make a broker create them.

    Raises:
        RefusedError: a topic does not exist, and `create` is not set.
    """
    for topic in topics:
        try:
            client.partitions(topic)
        except RefusedError as error:
            if error.code not in _NO_TOPIC:
                raise
            if create:
                _create(client, topic)
                continue
            error.hint = f"Create it: `coherer topics create {topic}`, or consume with --create."
            raise


def _create(client: Client | RocketClient, topic: str) -> None:
    if isinstance(client, blocking.tubemq.Client):
        with client.producer(topic):  # a master with automatic creation creates published topics
            return
    client.admin().topics.create(topic, wait_ms=_CREATE_MS)


def _continue_after(target: AdminTarget, group: str, last: ReceivedMessage) -> None:
    """Set a TubeMQ group's offset after the last printed message.

    TubeMQ commits whole batches only. The group must neither lose the messages that `--max` left
    unprinted nor receive the printed ones again.
    """
    again = "The group will read the last batch again"
    if last.offset is None:
        typer.echo(f"{again}: the broker does not report the offsets of messages.", err=True)
        return
    offsets = {f"{last.broker}:{last.topic}:{last.partition}": last.offset + 1}

    async def set_offsets(admin: AnyAdmin) -> None:
        await cast("Admin", admin).groups.set_offsets(group, offsets)

    try:
        target.run(set_offsets)
    except CohererError as error:
        typer.echo(f"{again}: {error}", err=True)


class Printer:
    """Prints messages up to a maximum; None for no limit.

    Attributes:
        count: number of printed messages.
        printed: number of printed messages of the last batch.
    """

    def __init__(
        self, form: Form, write: Callable[[bytes], object], maximum: int | None = None
    ) -> None:
        self.count = 0
        self.printed = 0
        self._lines = _LINES[form]
        self._write = write
        self._maximum = maximum

    def run(self, source: Source[B], timeout_s: float | None) -> ReceivedMessage | None:
        """Print and acknowledge until the maximum, or until nothing arrives for `timeout_s`.

        Returns:
            The last printed message if a batch was printed in part, else None.

        Raises:
            CohererError: nothing arrived because a partition cannot be read.
        """
        wait_ms = _WAIT_MS if timeout_s is None else int(timeout_s * 1000)
        while self._maximum is None or self.count < self._maximum:
            batch = source.receive(timeout_ms=wait_ms)
            if batch is None:
                if timeout_s is None:
                    continue
                if (error := source.error()) is not None:
                    raise error
                break
            last = self.show(batch)
            if last is not None:
                source.stop_after(batch, self.printed)
                return last
            source.ack(batch)
        return None

    def show(self, batch: Batch) -> ReceivedMessage | None:
        """Print a batch; returns the last printed message if others follow it in the batch."""
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
    encode, envelope = msgspec.json.Encoder().encode, Envelope.of
    return (encode(envelope(message)) for message in islice(batch, count))


_LINES: Final = {Form.text: _text, Form.hex: _hex, Form.json: _json}


@contextmanager
def _source(
    client: Client | RocketClient,
    group: str | None,
    wanted: Mapping[str, tuple[str, ...] | Sql92],
    start: Start,
    places: Places,
) -> Generator[Source[Any]]:
    if isinstance(client, blocking.tubemq.Client):
        tags = {topic: one for topic, one in wanted.items() if isinstance(one, tuple)}
        if group is None:
            with tubemq_readers(client, tags, start, places) as readers:
                yield readers
        else:
            edge: Literal["latest", "earliest"] = "latest" if start == "latest" else "earliest"
            with client.consumer(group, tags, start=edge) as consumer:
                yield TubeMQMember(consumer)
        return
    chosen = {topic: one or None for topic, one in wanted.items()}
    if group is None:
        with rocketmq_queues(client, chosen, start, places) as queues:
            yield queues
    else:
        begin = "earliest" if isinstance(start, int) else start
        with client.consumer(group, chosen, start=begin) as member:
            yield RocketMQMember(member)


class TubeMQMember:
    """A member of a TubeMQ group, which acknowledges whole batches only."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def receive(self, *, timeout_ms: int) -> ReceivedBatch | None:
        return self._consumer.receive(timeout_ms=timeout_ms)

    def ack(self, batch: ReceivedBatch) -> None:
        self._consumer.commit(batch)

    def stop_after(self, batch: ReceivedBatch, printed: int) -> None:  # noqa: ARG002
        """Have the whole batch delivered again."""
        batch.retry()

    def error(self) -> CohererError | None:
        return next(iter(self._consumer.errors), None)


class RocketMQMember:
    """A member of a RocketMQ group."""

    def __init__(self, consumer: RocketConsumer) -> None:
        self._consumer = consumer

    def receive(self, *, timeout_ms: int) -> RocketBatch | None:
        return self._consumer.receive(timeout_ms)

    def ack(self, batch: RocketBatch) -> None:
        self._consumer.commit(batch)

    def stop_after(self, batch: RocketBatch, printed: int) -> None:
        """Acknowledge the printed messages, and return the others."""
        for message in islice(batch, printed):
            message.ack()

    def error(self) -> CohererError | None:
        return next(iter(self._consumer.errors), None)


@contextmanager
def rocketmq_queues(
    client: RocketClient,
    wanted: Mapping[str, Selection],
    start: Start,
    places: Places = frozenset(),
) -> Generator[RocketMQQueues]:
    """Read queues of RocketMQ topics, as they are now, without a group.

    Args:
        client: an open client, which stays open.
        wanted: the filter of each topic.
        start: the position to start at.
        places: the brokers and queues to read; empty for all.
    """
    with client.pull_consumer(TOOLS_GROUP, auto_commit=False) as consumer:
        begins: dict[Queue, int] = {}
        for topic in wanted:
            begins |= begins_of(client, topic, start, places)
        consumer.assign(list(begins), next(iter(wanted.values())))
        for queue, offset in begins.items():
            consumer.seek(queue, offset)
        yield RocketMQQueues(consumer)


class RocketMQQueues:
    """Queues of RocketMQ that are read without a group: there is nothing to acknowledge."""

    def __init__(self, consumer: RocketPullConsumer) -> None:
        self._consumer = consumer

    def receive(self, *, timeout_ms: int) -> RocketBatch | None:
        return self._consumer.poll(timeout_ms)

    def ack(self, batch: RocketBatch) -> None:
        """Do nothing."""

    def stop_after(self, batch: RocketBatch, printed: int) -> None:
        """Do nothing."""

    def error(self) -> CohererError | None:
        return next(iter(self._consumer.errors), None)


class FilteredBatch:
    """The messages of a batch that have one of some tags."""

    def __init__(self, batch: MessageBatch, tags: Sequence[str]) -> None:
        wanted = frozenset(tags)
        self._messages = [message for message in batch if message.tag in wanted]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self._messages)

    def bodies(self) -> list[bytes]:
        """The bodies of the messages."""
        return [message.body for message in self._messages]


@contextmanager
def tubemq_readers(
    client: Client,
    topics: Mapping[str, Sequence[str]],
    start: Start,
    places: Places = frozenset(),
) -> Generator[TubeMQReaders]:
    """Read partitions of TubeMQ topics, as they are now, without a group.

    Args:
        client: an open client, which stays open.
        topics: the tags to read of each topic; an empty sequence reads all messages.
        start: the position to start at.
        places: the brokers and partitions to read; empty for all.
    """
    with ExitStack() as stack:
        readers: list[tuple[Reader, Sequence[str]]] = []
        for topic, tags in topics.items():
            for partition, begin in begins_of(client, topic, start, places).items():
                reader = client.reader(partition, begin, end=_NO_END)
                readers.append((stack.enter_context(reader), tags))
        yield TubeMQReaders(readers)


class TubeMQReaders:
    """Open readers, and the tags to read with each."""

    def __init__(self, readers: Iterable[tuple[Reader, Sequence[str]]]) -> None:
        self._readers = deque(readers)

    def receive(self, *, timeout_ms: int) -> MessageBatch | FilteredBatch | None:
        """The next messages of a partition, round-robin; None after the timeout."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            for _ in range(len(self._readers)):
                self._readers.rotate(-1)
                reader, tags = self._readers[-1]
                batch = reader.read()
                if batch is None:
                    continue
                chosen = FilteredBatch(batch, tags) if tags else batch
                if len(chosen):
                    return chosen
            pause_s = min(_IDLE_S, deadline - time.monotonic())
            if pause_s <= 0:
                return None
            time.sleep(pause_s)

    def ack(self, batch: MessageBatch | FilteredBatch) -> None:
        """Do nothing."""

    def stop_after(self, batch: MessageBatch | FilteredBatch, printed: int) -> None:
        """Do nothing."""

    def error(self) -> None:
        """Return None: a reader raises its errors."""
