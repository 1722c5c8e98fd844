"""`coherer topics`: list, create, alter, delete, describe."""

from __future__ import annotations

from typing import Annotated

import typer

from coherer.admin import Partition, Topic
from coherer.cli.completion import complete_topic
from coherer.cli.options import Json, Yes, seconds_option
from coherer.cli.output import FAILED, amount, print_done, print_json, print_table
from coherer.cli.questions import confirm_and_delete
from coherer.cli.target import (
    AdminTarget,
    AdminUrl,
    AnyAdmin,
    Password,
    Url,
    User,
    on_cluster,
    on_cluster_with_token,
)
from coherer.errors import UsageError

app = typer.Typer(
    help="List, create, alter, delete and describe topics.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Argument(help="The topic.", show_default=False)]
Existing = Annotated[
    str,
    typer.Argument(help="The topic.", show_default=False, autocompletion=complete_topic),
]


@app.command("list")
@on_cluster
def list_topics(
    target: AdminTarget,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Include system topics: retries, dead letters, ..."),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the topics of the cluster."""

    async def look(admin: AnyAdmin) -> list[Topic]:
        return await admin.topics.list(system=everything)

    topics = target.run(look)
    if as_json:
        print_json(topics)
        return
    print_table(
        ("topic", "partitions", "brokers", "writable", "readable"),
        ((t.name, t.partitions, tuple(t.brokers), t.writable, t.readable) for t in topics),
        empty="There are no topics.",
    )


@app.command()
@on_cluster_with_token
def create(
    target: AdminTarget,
    topic: Name,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="Number of partitions on each broker.")
    ] = 8,
    brokers: Annotated[
        list[str] | None,
        typer.Option(
            "--broker",
            help="Broker to create it on; may be repeated. Default: all that are online.",
        ),
    ] = None,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Succeed if the topic exists already.")
    ] = False,
    wait_s: Annotated[
        float, seconds_option("--wait", about="Seconds to wait until the topic is usable.")
    ] = 100.0,
    as_json: Json = False,
) -> None:
    """Create a topic, and wait until it is usable."""
    wait_ms = int(wait_s * 1000)

    async def make(admin: AnyAdmin) -> None:
        await admin.topics.create(
            topic, partitions, brokers or None, exist_ok=if_missing, wait_ms=wait_ms
        )

    target.run(make)
    print_done("topic", topic, "created", as_json=as_json)


@app.command()
@on_cluster_with_token
def alter(
    target: AdminTarget,
    topic: Existing,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, help="Partitions on each broker; the number can only grow."
        ),
    ] = None,
    writable: Annotated[
        bool | None,
        typer.Option("--writable/--not-writable", help="Whether producers can send to it."),
    ] = None,
    readable: Annotated[
        bool | None,
        typer.Option("--readable/--not-readable", help="Whether consumers can read it."),
    ] = None,
    brokers: Annotated[
        list[str] | None,
        typer.Option(
            "--broker", help="Broker to change; may be repeated. Default: all that have the topic."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the topic and change nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change the partitions or the permissions of a topic; other settings are kept."""
    if partitions is None and writable is None and readable is None:
        raise UsageError(
            "There is nothing to change.", hint="Give --partitions, --[not-]writable, ..."
        )

    async def change(admin: AnyAdmin) -> list[Topic]:
        if not dry_run:
            await admin.topics.alter(
                topic,
                partitions=partitions,
                writable=writable,
                readable=readable,
                brokers=brokers or None,
            )
        return await admin.topics.list(topic)

    found = target.run(change)
    if dry_run and not found:
        typer.echo(f"error: The topic {topic} does not exist.", err=True)
        raise typer.Exit(FAILED)
    if not dry_run:
        print_done("topic", topic, "altered", as_json=as_json)
    elif as_json:
        print_json({"topic": topic, "dry_run": True, "now": found[0]})
    else:
        count = amount(found[0].partitions, "partition")
        typer.echo(f"{topic}: now {count} on {', '.join(found[0].brokers)}")


@app.command()
@on_cluster_with_token
def delete(
    target: AdminTarget,
    topic: Existing,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete a topic and its messages."""
    confirm_and_delete(
        target,
        "topic",
        topic,
        "all of its messages",
        lambda admin: admin.topics.delete(topic),
        yes=yes,
        as_json=as_json,
    )


@app.command()
def describe(
    topic: Existing,
    url: Url = "",
    admin: AdminUrl = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Show the partitions of a topic and their offsets."""

    async def look(admin: AnyAdmin) -> list[Partition]:
        return await admin.topics.partitions(topic)

    partitions = AdminTarget(url, admin, None, user, password).run(look)
    if as_json:
        print_json(
            [
                {
                    "broker": p.broker,
                    "partition": p.partition,
                    "min": p.min_offset,
                    "max": p.max_offset,
                }
                for p in partitions
            ]
        )
        return
    print_table(
        ("broker", "partition", "min offset", "max offset"),
        ((p.broker, p.partition, p.min_offset, p.max_offset) for p in partitions),
        empty=f"{topic} has no partitions.",
    )
    if any(p.max_offset is None for p in partitions):
        typer.echo("Not every broker answered.", err=True)
        raise typer.Exit(FAILED)
