"""`coherer groups`: list, describe, reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coherer.cli.options import DEFAULT_TOKEN, DEFAULT_URL, AdminUrl, Json, Token, Url, open_admin
from coherer.cli.output import FAILED, MISUSED, say_json, say_table

if TYPE_CHECKING:
    from coherer.client.admin import GroupState

app = typer.Typer(
    help="List and describe groups of consumers; set offsets.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Argument(help="The group.", show_default=False)]


@app.command("list")
def list_groups(url: Url = DEFAULT_URL, admin: AdminUrl = None, as_json: Json = False) -> None:
    """All groups: who is there, what they consume, how far they are behind."""
    from coherer import net

    groups = net.run(open_admin(url, admin, "").groups())
    if as_json:
        say_json([_summary(group) for group in groups])
        return
    say_table(
        ("group", "topics", "#members", "#lag"),
        ((g.name, g.topics, len(g.members), g.lag) for g in groups),
        empty="There are no groups.",
    )
    _say_silent(groups)


@app.command()
def describe(
    group: Name, url: Url = DEFAULT_URL, admin: AdminUrl = None, as_json: Json = False
) -> None:
    """Members and offsets of a group."""
    from coherer import net

    found = net.run(open_admin(url, admin, "").groups(group))
    if not found:
        typer.echo(f"error: There is no group {group}.", err=True)
        raise typer.Exit(FAILED)
    (state,) = found
    if as_json:
        say_json({**_summary(state), "partitions": state.partitions, "silent": state.silent})
        return
    say_table(
        ("member", "address"),
        ((member.id, member.address) for member in state.members),
        empty=f"Nobody is in {group} now.",
    )
    say_table(
        ("topic", "#broker", "#partition", "#committed", "#max offset", "#lag", "read by"),
        (
            (p.topic, p.broker, p.partition, p.committed, p.max_offset, p.lag, p.owner or "-")
            for p in state.partitions
        ),
        empty="It has no offsets.",
    )
    _say_silent(found)


@app.command()
def reset(
    group: Name,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic.", show_default=False)],
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, or a number.", show_default=False)
    ],
    url: Url = DEFAULT_URL,
    admin: AdminUrl = None,
    token: Token = DEFAULT_TOKEN,
    as_json: Json = False,
) -> None:
    """Set the offsets of a group for all partitions of a topic."""
    from coherer import net

    target = parse_target(to)
    if target is None:
        typer.echo(f"error: --to is {to!r}: earliest, latest, or a number.", err=True)
        raise typer.Exit(MISUSED)
    new = net.run(open_admin(url, admin, token).reset_offsets(group, topic, target))
    if as_json:
        say_json(new)
        return
    say_table(("partition", "#offset"), new.items(), empty=f"{topic} has no partitions.")


def parse_target(to: str) -> Literal["earliest", "latest"] | int | None:
    """What `--to` means; None if nothing.

    >>> [parse_target(to) for to in ("earliest", "latest", "42", "-1", "now")]
    ['earliest', 'latest', 42, None, None]
    """
    match to:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case _:
            return int(to) if to.isdecimal() else None


def _summary(group: GroupState) -> dict[str, object]:
    return {
        "group": group.name,
        "topics": group.topics,
        "members": group.members,
        "lag": group.lag,
    }


def _say_silent(groups: list[GroupState]) -> None:
    silent = sorted({broker for group in groups for broker in group.silent})
    if silent:
        names = ", ".join(map(str, silent))
        typer.echo(f"No answer from broker {names}: its numbers are unknown (?).", err=True)
