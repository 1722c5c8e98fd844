"""`coherer groups`: list, describe, reset, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from coherer.cli.asking import AnyAdmin, Whom
from coherer.cli.options import AdminUrl, Json, Password, Token, Url, User
from coherer.cli.output import FAILED, amount, say_json, say_table
from coherer.errors import UsageError

if TYPE_CHECKING:
    from coherer._client.rocketmq.admin_records import GroupState as RocketGroupState
    from coherer._client.tubemq.admin import GroupState
    from coherer._wire.rocketmq.names import Queue

_OF_THE_SYSTEM: Final = "CID_RMQ_SYS_"
"""How RocketMQ's own groups begin; brokers of TubeMQ's door tell of them too."""

AnyGroup: TypeAlias = "GroupState | RocketGroupState"

app = typer.Typer(
    help="List and describe groups of consumers; set offsets.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Argument(help="The group.", show_default=False)]


@app.command("list")
def list_groups(
    url: Url = "",
    admin: AdminUrl = None,
    user: User = None,
    password: Password = None,
    everything: Annotated[bool, typer.Option("--all", help="Also groups of the system.")] = False,
    as_json: Json = False,
) -> None:
    """All groups: who is there, what they consume, how far they are behind."""
    found = _ask(Whom(url, admin, None, user, password))
    groups = [one for one in found if everything or not one.name.startswith(_OF_THE_SYSTEM)]
    if as_json:
        say_json([_summary(group) for group in groups])
        return
    say_table(
        ("group", "topics", "members", "lag"),
        ((g.name, g.topics, len(g.members), g.lag) for g in groups),
        empty="There are no groups.",
    )
    _say_unknown(groups)


@app.command()
def describe(
    group: Name,
    url: Url = "",
    admin: AdminUrl = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Members and offsets of a group."""
    found = _ask(Whom(url, admin, None, user, password), group)
    # RocketMQ's brokers tell of a group that they do not know what they tell of an idle one.
    if not found or not (found[0].members or found[0].partitions or found[0].silent):
        typer.echo(f"error: There is no group {group}, or it has read nothing yet.", err=True)
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
        ("topic", "broker", "partition", "committed", "max offset", "lag", "read by"),
        (
            (
                p.topic,
                p.broker,
                p.partition,
                p.committed,
                p.max_offset,
                p.lag,
                _owner(p),
            )
            for p in state.partitions
        ),
        empty="It has no offsets.",
    )
    _say_unknown(found)


@app.command()
def delete(
    group: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
    admin: AdminUrl = None,
    token: Token = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Delete a group and its offsets. Its consumers have to be stopped before."""
    whom = Whom(url, admin, token, user, password)
    members = [member for state in _ask(whom, group) for member in state.members]
    if members:
        raise UsageError(
            f"{group} has {amount(len(members), 'member')}, {members[0].id} among them.",
            hint="Stop its consumers; with their next confirmation the group would come back.",
        )
    if not yes:
        typer.confirm(f"Delete {group} with its offsets?", abort=True, err=True)
    whom.ask(lambda admin: admin.delete_group(group))
    if as_json:
        say_json({"group": group, "done": "deleted"})
    else:
        typer.echo(f"{group}: deleted")


@app.command()
def reset(
    group: Name,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, a time (2026-01-31T18:30), or an offset for every partition.",
            show_default=False,
        ),
    ],
    url: Url = "",
    admin: AdminUrl = None,
    token: Token = None,
    user: User = None,
    password: Password = None,
    as_json: Json = False,
) -> None:
    """Set the offsets of a group for all partitions of a topic."""
    target = parse_target(to)
    if target is None:
        raise UsageError(
            f"--to {to!r} is not a place in a topic.",
            hint="Give earliest, latest, a time such as 2026-01-31T18:30, or an offset.",
        )

    async def move(admin: AnyAdmin) -> Mapping[str, int] | Mapping[Queue, int]:
        return await admin.reset_offsets(group, topic, target)

    moved = Whom(url, admin, token, user, password).ask(move)
    new = {_key(key): offset for key, offset in moved.items()}
    if as_json:
        say_json(new)
        return
    say_table(("partition", "offset"), new.items(), empty=f"{topic} has no partitions.")


def parse_target(to: str) -> Literal["earliest", "latest"] | int | datetime | None:
    """What `--to` means; None if nothing.

    >>> [parse_target(to) for to in ("earliest", "latest", "42", "-1", "now")]
    ['earliest', 'latest', 42, None, None]
    >>> parse_target("2026-01-31T18:30")
    datetime.datetime(2026, 1, 31, 18, 30)
    """
    match to:
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
        case _ if to.isdecimal():
            return int(to)
        case _:
            try:
                return datetime.fromisoformat(to)
            except ValueError:
                return None


def _ask(whom: Whom, *names: str) -> Sequence[AnyGroup]:
    async def work(admin: AnyAdmin) -> Sequence[AnyGroup]:
        return await admin.groups(*names)

    return whom.ask(work)


def _owner(partition: object) -> str:
    """Who reads a partition; RocketMQ's brokers do not tell."""
    return getattr(partition, "owner", None) or "-"


def _key(partition: str | Queue) -> str:
    if isinstance(partition, str):
        return partition
    return f"{partition.broker}:{partition.topic}:{partition.id}"


def _summary(group: AnyGroup) -> dict[str, object]:
    return {
        "group": group.name,
        "topics": group.topics,
        "members": group.members,
        "lag": group.lag,
        "no_lag": group.no_lag,
    }


def _say_unknown(groups: Sequence[AnyGroup]) -> None:
    """Why a number is shown as `?`, once for all groups with the same reason."""
    reasons: dict[str, list[str]] = {}
    for group in groups:
        if group.no_lag is not None:
            reasons.setdefault(group.no_lag, []).append(group.name)
    for reason, names in reasons.items():
        typer.echo(f"The lag of {', '.join(names)} is unknown: {reason}.", err=True)
