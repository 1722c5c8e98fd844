"""`coherer groups`: list, describe, reset, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coherer._common.urls import is_rocketmq
from coherer._wire.rocketmq.names import Queue
from coherer.admin import Group, Partition
from coherer.cli.completion import complete_group, complete_topic
from coherer.cli.options import Json, Yes, parse_moment, parse_number
from coherer.cli.output import FAILED, age, amount, print_json, print_table, readable
from coherer.cli.questions import confirm_and_delete
from coherer.cli.target import AdminTarget, AnyAdmin, on_cluster, on_cluster_with_token
from coherer.errors import UsageError

# `list` loads the client of one protocol, which takes 0.1 s less than both.
if TYPE_CHECKING:
    from coherer._administration.access import Cluster
    from coherer._administration.members import MemberHealth
    from coherer._administration.resets import Move, Target

app = typer.Typer(
    help="List, describe, reset and delete consumer groups.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[
    str,
    typer.Argument(help="The group.", show_default=False, autocompletion=complete_group),
]


@app.command("list")
@on_cluster
def list_groups(
    target: AdminTarget,
    everything: Annotated[bool, typer.Option("--all", help="Include system groups.")] = False,
    as_json: Json = False,
) -> None:
    """List consumer groups with their members, topics and lag."""
    groups = group_states(target, system=everything)
    if as_json:
        print_json([_summary(group) for group in groups])
        return
    print_table(
        ("group", "topics", "members", "lag"),
        ((g.name, g.topics, len(g.members), g.lag) for g in groups),
        empty="There are no groups.",
    )
    _explain_unknown(groups)


@app.command()
@on_cluster
def describe(
    target: AdminTarget,
    group: Name,
    as_json: Json = False,
) -> None:
    """Show the members and offsets of a group."""
    found = target.run_on_cluster(lambda cluster: _described(cluster, group))
    if found is None:
        typer.echo(f"error: There is no group {group}, or it has consumed nothing yet.", err=True)
        raise typer.Exit(FAILED)
    state, ages, members = found
    if as_json:
        health = [
            {"id": one.client.id, "answers": one.answers, "silent_ms": one.silent_ms}
            for one in members
        ]
        summary = {**_summary(state), "partitions": state.partitions, "silent": state.silent}
        print_json({**summary, "unread_ages_ms": ages, "health": health})
        return
    from coherer._administration.members import problems

    for problem in problems(members):
        typer.secho(readable(f"! {problem.text} {problem.action}"), fg="red", err=True)
    readers = {key: one.client.id for one in members for key in one.reads}
    print_table(
        ("member", "address", "answers"),
        ((one.client.id, one.client.address, _answers(one)) for one in members),
        empty=f"{group} has no members now.",
    )
    print_table(
        ("topic", "broker", "partition", "committed", "max offset", "lag", "oldest", "read by"),
        (
            (
                p.topic,
                p.broker,
                p.partition,
                p.committed,
                p.max_offset,
                p.lag,
                "-" if p.lag == 0 else age(ages.get(p.key)),
                _owner(p, readers),
            )
            for p in state.partitions
        ),
        empty=f"{group} has no offsets.",
    )
    _explain_unknown([state])


async def _described(
    cluster: Cluster, name: str
) -> tuple[Group, dict[str, int], list[MemberHealth]] | None:
    """A group with the ages of its unread messages, and whether its members answer."""
    from coherer._administration.brokers import node_status
    from coherer._administration.members import check
    from coherer._administration.overview import unread_ages

    found = await cluster.admin.groups.list(name)
    # RocketMQ's brokers give the same answer for an unknown group and for an idle one.
    if not found or not (found[0].members or found[0].partitions or found[0].silent):
        return None
    group = found[0]
    ages = await unread_ages(cluster, group)
    members = await check(cluster, group.members, await node_status(cluster))
    return group, ages, members


def _answers(one: MemberHealth) -> str | None:
    if one.answers is None:
        return None
    since = "" if one.silent_ms is None else f", for {age(one.silent_ms)}"
    return "yes" if one.answers else f"no{since}"


@app.command()
@on_cluster_with_token
def delete(
    target: AdminTarget,
    group: Name,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete a group and its offsets. Stop its consumers first."""
    check_no_members(
        group_states(target, group), group, "their next commit would create the group again"
    )
    confirm_and_delete(
        target,
        "group",
        group,
        "its offsets",
        lambda admin: admin.groups.delete(group),
        yes=yes,
        as_json=as_json,
    )


@app.command()
@on_cluster_with_token
def reset(
    target: AdminTarget,
    group: Name,
    topic: Annotated[
        str,
        typer.Option(
            "--topic", "-t", help="The topic.", show_default=False, autocompletion=complete_topic
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, a time (2026-01-31T18:30), or an offset for every partition.",
            show_default=False,
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Set the offsets of a group for all partitions of a topic.

    A group that has no offsets yet gets them. Running consumers of RocketMQ follow to an end or a
    time. They would overwrite an offset with their own: stop them first.
    """
    position = parse_target(to)
    if position is None:
        raise UsageError(
            f"--to {to!r} is not a position in a topic.",
            hint="Give earliest, latest, a time such as 2026-01-31T18:30, or an offset.",
        )

    if dry_run:
        _show_moves(target, group, topic, position, as_json)
        return
    if isinstance(position, int) and is_rocketmq(target.url):
        reason = "they would overwrite the offsets with their own"
        check_no_members(group_states(target, group), group, reason)

    async def move(admin: AnyAdmin) -> Mapping[str, int] | Mapping[Queue, int]:
        return await admin.groups.reset_offsets(group, topic, position)

    moved = target.run(move)
    new = {_key(key): offset for key, offset in moved.items()}
    if as_json:
        print_json(new)
        return
    print_table(("partition", "offset"), new.items(), empty=f"{topic} has no partitions.")


def _show_moves(target: AdminTarget, group: str, topic: str, to: Target, as_json: bool) -> None:
    """Print what a reset would do."""

    async def work(cluster: Cluster) -> list[Move]:
        from coherer._administration.resets import planned

        partitions = await cluster.admin.topics.partitions(topic)
        positions = [
            one for state in await cluster.admin.groups.list(group) for one in state.partitions
        ]
        return await planned(cluster, positions, topic, partitions, to)

    moves = target.run_on_cluster(work)
    if as_json:
        print_json({"dry_run": True, "group": group, "partitions": moves})
        return
    print_table(
        ("partition", "offset now", "new offset", "change"),
        [(one.key, one.committed, one.new, one.change) for one in moves],
        empty=f"{topic} has no partitions.",
    )
    if all(one.committed is None for one in moves):
        typer.echo(f"{group} has no offsets in {topic}. Is its name right?", err=True)
    again = sum(-one.change for one in moves if one.change is not None and one.change < 0)
    skipped = sum(one.change for one in moves if one.change is not None and one.change > 0)
    typer.echo(
        f"{amount(again, 'message')} would be delivered again, {skipped:,} skipped.", err=True
    )


def parse_target(to: str) -> Literal["earliest", "latest"] | int | datetime | None:
    """The position that `--to` names; None if it is malformed.

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
            return parse_number(to)
        case _:
            return parse_moment(to)


def group_states(target: AdminTarget, *names: str, system: bool = False) -> list[Group]:
    """Return groups; without names, all groups."""

    async def work(admin: AnyAdmin) -> list[Group]:
        return await admin.groups.list(*names, system=system)

    return target.run(work)


def check_no_members(states: Sequence[Group], group: str, reason: str) -> None:
    """Check that no consumer of a group runs.

    Raises:
        UsageError: there are members; the hint gives the `reason` why they must stop.
    """
    members = [member for state in states for member in state.members]
    if members:
        raise UsageError(
            f"{group} has {amount(len(members), 'member')}, for example {members[0].id}.",
            hint=f"Stop its consumers: {reason}.",
        )


def committed_offsets(
    states: Sequence[Group], group: str, topic: str
) -> dict[tuple[str, int], int]:
    """Return the committed offsets of a group in a topic, by broker and partition.

    Raises:
        UsageError: the group has no offsets in the topic.
    """
    found = {
        (one.broker, one.partition): one.committed
        for state in states
        if state.name == group
        for one in state.partitions
        if one.topic == topic and one.committed is not None
    }
    if not found:
        raise UsageError(f"Group {group} has no offsets in the topic.", topic=topic)
    return found


def _owner(partition: Partition, readers: Mapping[str, str]) -> str:
    """The member that reads a partition; TubeMQ's brokers report it, RocketMQ's members do."""
    return partition.owner or readers.get(partition.key, "-")


def _key(partition: str | Queue) -> str:
    return partition if isinstance(partition, str) else partition.key


def _summary(group: Group) -> dict[str, object]:
    return {
        "group": group.name,
        "topics": group.topics,
        "members": group.members,
        "lag": group.lag,
        "no_lag": group.no_lag,
    }


def _explain_unknown(groups: Sequence[Group]) -> None:
    """Explain lags that are shown as `?`, once for all groups with the same reason."""
    reasons: dict[str, list[str]] = {}
    for group in groups:
        if group.no_lag is not None:
            reasons.setdefault(group.no_lag, []).append(group.name)
    for reason, names in reasons.items():
        typer.echo(f"The lag of {', '.join(names)} is unknown: {reason}.", err=True)
