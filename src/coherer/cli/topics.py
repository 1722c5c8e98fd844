"""`coherer topics`: list, create, delete, describe."""

from __future__ import annotations

from typing import Annotated

import typer

from coherer.cli.options import DEFAULT_TOKEN, DEFAULT_URL, AdminUrl, Json, Token, Url, open_admin
from coherer.cli.output import FAILED, say_json, say_table

app = typer.Typer(
    help="List, create, delete and describe topics.", no_args_is_help=True, add_completion=False
)

Name = Annotated[str, typer.Argument(help="The topic.", show_default=False)]


@app.command("list")
def list_topics(
    url: Url = DEFAULT_URL,
    admin: AdminUrl = None,
    everything: Annotated[bool, typer.Option("--all", help="Also topics of the system.")] = False,
    as_json: Json = False,
) -> None:
    """All topics of the cluster."""
    from coherer import net

    found = net.run(open_admin(url, admin, "").topics())
    topics = [topic for topic in found if everything or not topic.name.startswith("__")]
    if as_json:
        say_json(topics)
        return
    say_table(
        ("topic", "#partitions", "brokers", "writable", "readable"),
        ((t.name, t.count, tuple(t.partitions), t.writable, t.readable) for t in topics),
        empty="There are no topics.",
    )


@app.command()
def create(
    topic: Name,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="How many on each broker.")
    ] = 8,
    brokers: Annotated[
        list[int] | None,
        typer.Option("--broker", help="On this broker; may be repeated. Default: all online."),
    ] = None,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="It is no error that the topic is there.")
    ] = False,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until it can be used.")
    ] = 60.0,
    url: Url = DEFAULT_URL,
    admin: AdminUrl = None,
    token: Token = DEFAULT_TOKEN,
    as_json: Json = False,
) -> None:
    """Create a topic, and wait until it can be used."""
    from coherer import net

    made = open_admin(url, admin, token).create_topic(
        topic, partitions, brokers or None, exist_ok=if_missing, wait_ms=int(wait_s * 1000)
    )
    net.run(made)
    _done(topic, "created", as_json=as_json)


@app.command()
def delete(
    topic: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    admin: AdminUrl = None,
    token: Token = DEFAULT_TOKEN,
    as_json: Json = False,
) -> None:
    """Delete a topic and its messages."""
    from coherer import net

    if not yes:
        typer.confirm(f"Delete {topic} with all of its messages?", abort=True, err=True)
    net.run(open_admin(url, admin, token).delete_topic(topic))
    _done(topic, "deleted", as_json=as_json)


@app.command()
def describe(
    topic: Name, url: Url = DEFAULT_URL, admin: AdminUrl = None, as_json: Json = False
) -> None:
    """The partitions of a topic and what they hold."""
    from coherer import net

    partitions = net.run(open_admin(url, admin, "").partitions(topic))
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
        ("#broker", "#partition", "#min offset", "#max offset"),
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
