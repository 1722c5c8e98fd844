"""`coherer messages`: get, search.

Exit codes: 0 found; 1 nothing was found, or a server or the network failed; 2 the command line is
wrong; 130 interrupted.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime
from typing import Annotated

import typer

from coherer._administration import messages
from coherer._administration.access import Cluster
from coherer._administration.messages import Search
from coherer._administration.trace import Trace, trace
from coherer.admin import Message
from coherer.cli.completion import complete_topic
from coherer.cli.options import Json, Limit, parse_moment, parse_number
from coherer.cli.output import (
    FAILED,
    INTERRUPTED,
    amount,
    body_text,
    iso_time,
    print_json,
    print_table,
    progress_bar,
    time_text,
)
from coherer.cli.signals import signals_interrupt
from coherer.cli.target import AdminTarget, on_cluster
from coherer.errors import UsageError

app = typer.Typer(
    help="Find messages by id, key, position or time, and trace them.",
    no_args_is_help=True,
    add_completion=False,
)

Place = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="[BROKER:]PARTITION:OFFSET", help="The message at this offset of --topic."
    ),
]


MessageId = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Over RocketMQ, the offset id in a receipt, or with --topic the unique id that "
        "the sender generated. Over TubeMQ, with --topic, the id that the broker generated: the "
        "topic is read, the newest messages first.",
        show_default=False,
    ),
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="Its topic.", autocompletion=complete_topic),
]
Traced = Annotated[
    bool,
    typer.Option("--trace", help="Show its history: the message trace, and the groups' progress."),
]


@app.command()
@on_cluster
def get(
    target: AdminTarget,
    message_id: MessageId = None,
    topic: TopicOption = None,
    place: Place = None,
    traced: Traced = False,
    as_json: Json = False,
) -> None:
    """Show one message."""
    if (message_id is None) == (place is None) or (place is not None and topic is None):
        raise UsageError("Give either an id, or --topic and --at.")

    async def work(cluster: Cluster) -> Trace | None:
        if place is not None:
            broker, partition, offset = parse_place(place)
            found = await messages.at(cluster, str(topic), partition, offset, broker=broker)
        else:
            with progress_bar("reading") as move:
                found = await messages.by_id(
                    cluster,
                    str(message_id),
                    topic=topic,
                    show=lambda seen: move(f"{seen:,} messages read", seen, None),
                )
        if found is None:
            return None
        return await trace(cluster, found) if traced else Trace(found, (), None, ())

    try:
        with signals_interrupt():
            result = target.run_on_cluster(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if result is None:
        typer.echo(f"error: The message {message_id or place} does not exist.", err=True)
        raise typer.Exit(FAILED)
    if as_json:
        trace_lines = {"steps": result.steps, "traced": result.traced, "groups": result.groups}
        print_json({**_line(result.message), **(trace_lines if traced else {})})
        return
    _describe(result.message)
    if traced:
        _print_trace(result)


SearchedTopic = Annotated[
    str,
    typer.Argument(help="The topic.", show_default=False, autocompletion=complete_topic),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="RocketMQ: only those with this key, from the brokers' index.",
    ),
]
Tag = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]
Contains = Annotated[
    str | None,
    typer.Option("--contains", metavar="TEXT", help="Only those with this text in the body."),
]
Begin = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="TIME|OFFSET", help="Only those from this store time or offset on."
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Only those stored before this time."),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, help="Only those of this partition.")
]
Scan = Annotated[int, typer.Option("--scan", min=1, help="The maximum number of messages to read.")]


@app.command()
@on_cluster
def search(
    target: AdminTarget,
    topic: SearchedTopic,
    key: Key = None,
    tag: Tag = None,
    contains: Contains = None,
    begin: Begin = None,
    until: Until = None,
    partition: Partition = None,
    limit: Limit = 20,
    scan: Scan = 100_000,
    as_json: Json = False,
) -> None:
    """Find messages of a topic: by key in the index, otherwise by reading."""
    start = parse_start("--from", begin)
    end = parse_start("--until", until)
    if isinstance(end, int):
        raise UsageError("--until takes a time.")
    if key is not None and (isinstance(start, int) or partition is not None):
        raise UsageError("--key excludes --partition and an offset.")
    matches = _matcher(tag, contains)

    async def work(cluster: Cluster) -> Search:
        moment = start if isinstance(start, datetime) else None
        if key is not None:
            found = await messages.by_key(cluster, topic, key, begin=moment, end=end, limit=limit)
            chosen = tuple(filter(matches, found.messages))[:limit]
            return messages.Search(chosen, found.complete, 0, found.problem)
        with progress_bar("reading") as move:
            return await messages.search(
                cluster,
                topic,
                begin=moment,
                end=end,
                partition=partition,
                begin_offset=start if isinstance(start, int) else None,
                matches=matches,
                limit=limit,
                scan_max=scan,
                show=lambda seen: move(f"{seen:,} messages read", seen, None),
            )

    try:
        with signals_interrupt():
            found = target.run_on_cluster(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    _print_search(found, topic, as_json=as_json)
    if not found.messages or found.problem:
        raise typer.Exit(FAILED)


def parse_place(text: str) -> tuple[str | None, int, int]:
    """Parse the broker, partition and offset of `--at`.

    Raises:
        UsageError: it is malformed.

    >>> parse_place("0:17"), parse_place("broker-a:0:17")
    ((None, 0, 17), ('broker-a', 0, 17))
    """
    rest, _, offset = text.rpartition(":")
    broker, _, partition = rest.rpartition(":")
    numbers = parse_number(partition), parse_number(offset)
    if numbers[0] is None or numbers[1] is None:
        raise UsageError(f"--at {text!r} is not a position.", hint="Write it like broker-a:0:17.")
    return broker or None, numbers[0], numbers[1]


def parse_start(option: str, text: str | None) -> datetime | int | None:
    """Parse a time or an offset.

    Raises:
        UsageError: it is neither.

    >>> parse_start("--from", "42"), parse_start("--from", "2026-01-31")
    (42, datetime.datetime(2026, 1, 31, 0, 0))
    """
    if text is None:
        return None
    if (offset := parse_number(text)) is not None:
        return offset
    moment = parse_moment(text)
    if moment is None:
        raise UsageError(
            f"{option} {text!r} is not a time.", hint="Write it like 2026-01-31T18:30."
        )
    return moment


def _matcher(tag: str | None, contains: str | None) -> Callable[[Message], bool]:
    wanted = None if contains is None else contains.encode()

    def matches(message: Message) -> bool:
        return (tag is None or message.tag == tag) and (wanted is None or wanted in message.body)

    return matches


def _print_search(found: Search, topic: str, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "messages": [_line(one) for one in found.messages],
                "complete": found.complete,
                "scanned": found.scanned,
                "problem": found.problem or None,
            }
        )
        return
    print_table(
        ("broker", "partition", "offset", "stored", "tag", "keys", "id", "body"),
        [
            (
                one.broker or None,
                one.partition,
                one.offset,
                time_text(one.stored_ms),
                one.tag or "-",
                ", ".join(one.keys) or "-",
                one.id,
                body_text(one.body, 40),
            )
            for one in found.messages
        ],
        empty=f"{topic} has no matching messages.",
    )
    if found.problem:
        typer.echo(f"error: there may be more: {found.problem}", err=True)
    elif not found.complete:
        read = f"{amount(found.scanned, 'message')} read: " if found.scanned else ""
        typer.echo(f"{read}there may be more. Use --limit, --scan or --from.", err=True)


def _line(message: Message) -> dict[str, object]:
    try:
        content: dict[str, str] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        content = {"base64": base64.b64encode(message.body).decode()}
    return {
        **content,
        "topic": message.topic,
        "tag": message.tag,
        "keys": message.keys,
        "time": message.time,
        "properties": message.properties,
        "broker": message.broker or None,
        "partition": message.partition,
        "offset": message.offset,
        "id": message.id,
        "unique_id": message.unique_id or None,
        "born": iso_time(message.born_ms),
        "stored": iso_time(message.stored_ms),
        "attempt": message.attempt,
    }


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _describe(message: Message) -> None:
    rows: list[tuple[str, object]] = [
        ("id", message.id),
        ("unique id", message.unique_id or "-"),
        ("topic", message.topic),
        ("broker", message.broker or None),
        ("partition and offset", f"{message.partition}, {_known(message.offset)}"),
        ("tag", message.tag or "-"),
        ("keys", ", ".join(message.keys) or "-"),
        ("time", time_text(None if message.time is None else _milliseconds(message.time))),
        ("sent", time_text(message.born_ms)),
        ("stored", time_text(message.stored_ms)),
        ("earlier attempts", message.attempt),
        *((f"property {name}", value) for name, value in message.properties.items()),
    ]
    print_table(("field", "value"), rows, empty="")
    typer.echo()
    typer.echo(body_text(message.body, 10_000))


def _known(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _print_trace(result: Trace) -> None:
    typer.echo()
    print_table(
        ("time", "event", "group", "ms", "success", "detail", "server"),
        [
            (
                time_text(step.time_ms),
                step.kind,
                step.group or None,
                step.took_ms,
                "-" if step.success is None else step.success,
                step.detail or "-",
                step.client or "-",
            )
            for step in result.steps
        ],
        empty="The message has no message trace.",
    )
    print_table(
        ("group", "state", "offset", "retries", "why"),
        [
            (one.group, one.state, one.committed, one.retries, one.why or "-")
            for one in result.groups
        ],
        empty="No group reads the topic.",
    )
