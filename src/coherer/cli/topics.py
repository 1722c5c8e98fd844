"""`coherer topics`: list, create, delete, describe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coherer.cli.asking import AnyAdmin, Whom
from coherer.cli.options import AdminUrl, Json, Password, Token, Url, User, is_rocketmq
from coherer.cli.output import FAILED, say_json, say_table
from coherer.errors import UsageError

if TYPE_CHECKING:
    from coherer._client.rocketmq.admin_records import PartitionState as RocketPartitionState
    from coherer._client.rocketmq.admin_records import TopicState as RocketTopicState
    from coherer._client.tubemq.admin import PartitionState, TopicState

app = typer.Typer(
    help="List, create, delete and describe topics.", no_args_is_help=True, add_completion=False
)

Name = Annotated[str, typer.Argument(help="The topic.", show_default=False)]


@app.command("list")
def list_topics(
    url: Url = "",
    admin: AdminUrl = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also topics of the system: retries, dead letters, ..."),
    ] = False,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """All topics of the cluster."""
    found = Whom(url, admin, None, user, password).ask(partial(_topics, system=everything))
    topics = [topic for topic in found if everything or not topic.name.startswith("__")]
    if as_json:
        say_json(topics)
        return
    say_table(
        ("topic", "partitions", "brokers", "writable", "readable"),
        ((t.name, *_places(t), t.writable, t.readable) for t in topics),
        empty="There are no topics.",
    )


@app.command()
def create(
    topic: Name,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="How many on each broker.")
    ] = 8,
    brokers: Annotated[
        list[str] | None,
        typer.Option("--broker", help="On this broker; may be repeated. Default: all online."),
    ] = None,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="It is no error that the topic is there.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until it can be used.")
    ] = 60.0,
    url: Url = "",
    admin: AdminUrl = None,
    token: Token = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Create a topic, and wait until it can be used."""
    wait_ms = int(wait_s * 1000)

    async def make(admin: AnyAdmin) -> None:
        # TubeMQ's brokers have numbers, RocketMQ's have names.
        chosen: Any = (brokers if is_rocketmq(url) else _numbers(brokers or ())) or None
        await admin.create_topic(topic, partitions, chosen, exist_ok=if_missing, wait_ms=wait_ms)

    Whom(url, admin, token, user, password).ask(make)
    _done(topic, "created", as_json=as_json)


@app.command()
def delete(
    topic: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
    admin: AdminUrl = None,
    token: Token = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Delete a topic and its messages."""
    if not yes:
        typer.confirm(f"Delete {topic} with all of its messages?", abort=True, err=True)
    Whom(url, admin, token, user, password).ask(lambda admin: admin.delete_topic(topic))
    _done(topic, "deleted", as_json=as_json)


@app.command()
def describe(
    topic: Name,
    url: Url = "",
    admin: AdminUrl = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """The partitions of a topic and what they hold."""

    async def look(admin: AnyAdmin) -> Sequence[PartitionState | RocketPartitionState]:
        return await admin.partitions(topic)

    partitions = Whom(url, admin, None, user, password).ask(look)
    if as_json:
        say_json(
            [
                {"broker": p.broker, "partition": p.partition, "min": p.min_offset,
                 "max": p.max_offset}
                for p in partitions
            ]
        )  # fmt: skip
        return
    say_table(
        ("broker", "partition", "min offset", "max offset"),
        ((p.broker, p.partition, p.min_offset, p.max_offset) for p in partitions),
        empty=f"{topic} has no partitions.",
    )
    if any(p.max_offset is None for p in partitions):
        typer.echo("Not every broker answered.", err=True)
        raise typer.Exit(FAILED)


def _done(topic: str, what: str, *, as_json: bool) -> None:
    if as_json:
        say_json({"topic": topic, "done": what})
    else:
        typer.echo(f"{topic}: {what}")


async def _topics(admin: AnyAdmin, *, system: bool) -> Sequence[TopicState | RocketTopicState]:
    from coherer._client.rocketmq.admin import Admin as RocketAdmin

    if isinstance(admin, RocketAdmin):
        return await admin.topics(system=system)
    return await admin.topics()


def _places(topic: TopicState | RocketTopicState) -> tuple[int, tuple[int | str, ...]]:
    """How many partitions, and on which brokers."""
    from coherer._client.tubemq.admin import TopicState

    if isinstance(topic, TopicState):
        return topic.count, tuple(topic.partitions)
    return topic.partitions, tuple(topic.brokers)


def _numbers(brokers: Iterable[str]) -> list[int]:
    """TubeMQ's brokers have numbers.

    Raises:
        UsageError: one is none.
    """
    wrong = [broker for broker in brokers if not broker.isdecimal()]
    if wrong:
        raise UsageError(f"--broker is {wrong[0]!r}: TubeMQ's brokers have numbers.")
    return [int(broker) for broker in brokers]
