"""`coherer dead-letters`: list, show, replay, purge, export.

Exit codes: 0 done; 1 a server, the network or a disk failed, or the dead letter does not exist; 2
the command line is wrong, or it is a TubeMQ cluster; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec

import msgspec
import typer

from coherer._administration.access import Cluster
from coherer._administration.dead_letters import (
    DeadLetter,
    DeadLetterQueue,
    Filter,
    Page,
    checked,
    get,
    page,
    queue_of_existing,
    queues,
)
from coherer._administration.dead_letters import purge as purge_all
from coherer._administration.export import LetterLine
from coherer._administration.export import export as write
from coherer._administration.replay import ReplayProgress, replayed
from coherer._administration.replay import replay as send
from coherer._common.moments import floor_ms
from coherer.cli.completion import complete_dead_group, complete_topic
from coherer.cli.options import Json, Limit, Yes, parse_moment, with_options
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
from coherer.cli.questions import confirm
from coherer.cli.signals import signals_interrupt
from coherer.cli.target import AdminTarget, on_rocketmq
from coherer.errors import UnavailableError, UsageError

P = ParamSpec("P")

app = typer.Typer(
    help="Show and replay dead letters, the messages that RocketMQ groups have given up on.",
    no_args_is_help=True,
    add_completion=False,
)


class Form(StrEnum):
    """The format of exported files."""

    json = "json"
    parquet = "parquet"


Group = Annotated[
    str,
    typer.Argument(help="The group.", show_default=False, autocompletion=complete_dead_group),
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Only the one with this id; may be repeated."),
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="Only those that were sent to this topic."),
]
Tag = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only those with this key.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only those since this time."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only those before this time.")
]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Only those whose reason contains this text.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only count.")]


AnyGroup = Annotated[
    str | None,
    typer.Argument(
        help="List the dead letters of this group. Default: list the groups and their counts.",
        show_default=False,
        autocompletion=complete_dead_group,
    ),
]
OldestFirst = Annotated[
    bool, typer.Option("--oldest-first", help="List the oldest first instead of the newest.")
]
Cursor = Annotated[
    str | None, typer.Option("--cursor", help="Continue where the previous list ended.")
]


class FilterOptions(msgspec.Struct, frozen=True):
    """The options that choose dead letters."""

    ids: Ids = None
    topic: Topic = None
    tag: Tag = None
    key: Key = None
    since: Since = None
    until: Until = None
    reason: Reason = None

    def filter(self) -> Filter:
        """The filter that the options stand for.

        Raises:
            UsageError: a time is malformed.
        """
        return Filter(
            ids=frozenset(self.ids) if self.ids else None,
            topic=self.topic,
            tag=self.tag,
            key=self.key,
            since_ms=_time_ms("--since", self.since),
            until_ms=_time_ms("--until", self.until),
            reason=self.reason,
        )


def filtered(command: Callable[Concatenate[FilterOptions, P], None]) -> Callable[..., None]:
    """Give a command the options of `FilterOptions` in place of its first parameter."""
    return with_options(FilterOptions, command)


@app.command("list")
@on_rocketmq
@filtered
def list_letters(
    letters: FilterOptions,
    target: AdminTarget,
    group: AnyGroup = None,
    oldest_first: OldestFirst = False,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List the groups that have dead letters, or the dead letters of a group."""
    where = letters.filter()
    if group is None:
        if not where.is_empty or cursor:
            raise UsageError("A filter needs a group.")
        _print_queues(target.run_on_cluster(queues), as_json=as_json)
        return

    async def look(cluster: Cluster) -> tuple[Page, DeadLetterQueue | None]:
        known = await queue_of_existing(cluster, group)
        found = await page(
            cluster,
            group,
            newest_first=not oldest_first,
            limit=limit,
            cursor=cursor,
            where=where,
        )
        return found, known

    found, known = target.run_on_cluster(look)
    _print_page(found, group, as_json=as_json)
    _check_left_out(known.left_out if known else ())


@app.command()
@on_rocketmq
def show(
    target: AdminTarget,
    group: Group,
    message_id: Annotated[
        str, typer.Argument(help="Its id, or the message's unique id.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Show everything about a dead letter."""

    async def look(cluster: Cluster) -> tuple[DeadLetter | None, bool | None]:
        letter = await get(cluster, group, message_id)
        try:
            return letter, letter is not None and bool(await replayed(cluster, [letter]))
        except UnavailableError:
            return letter, None

    letter, sent = target.run_on_cluster(look)
    if letter is None:
        typer.echo(f"error: {group} has no dead letter {message_id}.", err=True)
        raise typer.Exit(FAILED)
    if as_json:
        stored = dict(letter.stored_properties)
        print_json({**_line(letter), "replayed": sent, "stored_properties": stored})
        return
    rows: list[tuple[str, object]] = [
        ("id", letter.id),
        ("unique id", letter.unique_id or "-"),
        ("group", letter.group),
        ("original topic", letter.topic or None),
        ("original message", letter.origin_id or None),
        ("tag", letter.tag or "-"),
        ("keys", ", ".join(letter.keys) or "-"),
        ("attempts", letter.attempts),
        ("reason", letter.reason or "-"),
        ("sent", time_text(letter.born_ms)),
        ("dead since", time_text(letter.stored_ms)),
        ("broker", letter.broker),
        ("queue and offset", f"{letter.partition}, {letter.offset}"),
        ("replayed to its topic", "unknown: a broker is down" if sent is None else sent),
        ("replay of", letter.replay_of or "-"),
        *((f"property {name}", value) for name, value in letter.properties.items()),
    ]
    print_table(("field", "value"), rows, empty="")
    typer.echo()
    typer.echo(body_text(letter.body, 10_000))


@app.command()
@on_rocketmq
@filtered
def replay(
    letters: FilterOptions,
    target: AdminTarget,
    group: Group,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TOPIC",
            help="Send to this topic. Default: the original topic of each.",
            autocompletion=complete_topic,
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Replay dead letters: send each of them again, once.

    A dead letter that an earlier run has sent to the topic, even one that was killed, is not sent
    again. The dead letters are kept; `purge` deletes them.
    """
    where = letters.filter()
    if not (dry_run or yes):
        planned = _replay(target, group, to, where, dry_run=True)
        if not planned.sent:
            _print_replay(planned, to, dry_run=False, as_json=as_json)
            return
        confirm(
            f"Send {amount(planned.sent, 'dead letter')} of {group} to "
            f"{to or 'their original topics'}?"
        )
    try:
        with signals_interrupt():
            done = _replay(target, group, to, where, dry_run=dry_run)
    except KeyboardInterrupt:
        typer.echo("Interrupted. Run the replay again: nothing is sent twice.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _print_replay(done, to, dry_run=dry_run, as_json=as_json)


@app.command()
@on_rocketmq
def purge(
    target: AdminTarget,
    group: Group,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete all dead letters of a group.

    This deletes the topic that contains them, with those that arrive meanwhile. The next dead
    letter creates it again. Brokers cannot delete single dead letters.
    """

    async def look(cluster: Cluster) -> DeadLetterQueue | None:
        return await queue_of_existing(cluster, group)

    found = target.run_on_cluster(look)
    number = 0 if found is None else found.count
    if number and not dry_run:
        if not yes:
            confirm(f"Delete {amount(number, 'dead letter')} of {group}?")
        number = target.run_on_cluster(lambda cluster: purge_all(cluster, group))
    if as_json:
        print_json({"group": group, "purged": number, "dry_run": dry_run})
    else:
        verb = "would be deleted" if dry_run else "deleted"
        typer.echo(f"{group}: {amount(number, 'dead letter')} {verb}")
    _check_left_out(found.left_out if found else ())


@app.command()
@on_rocketmq
@filtered
def export(
    letters: FilterOptions,
    target: AdminTarget,
    group: Group,
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)
    ],
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            "-f",
            help="json: an object on each line, which `coherer produce --format json` accepts; "
            "parquet: a table. Default: by the extension of the file.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write dead letters to a file, as JSON lines or Parquet. The group keeps them."""
    _check_target(path, overwrite=overwrite)
    where = letters.filter()
    written_as = form or _form_of(path)

    async def work(cluster: Cluster) -> int:
        found = await queue_of_existing(cluster, group)
        chosen = await checked(cluster, group, where)
        total = 0 if found is None else found.count
        with progress_bar("reading") as move:
            return await write(
                cluster,
                group,
                path,
                form=written_as.value,
                where=chosen,
                show=lambda seen: move("reading", seen, total),
            )

    try:
        written = target.run_on_cluster(work)
    except OSError as error:
        typer.echo(f"error: {path} cannot be written: {error.strerror}.", err=True)
        raise typer.Exit(FAILED) from error
    if as_json:
        print_json({"group": group, "file": str(path), "written": written})
    else:
        typer.echo(f"{path}: {amount(written, 'dead letter')}")


def _form_of(path: Path) -> Form:
    """The format that the extension of a file stands for; JSON lines without an extension.

    Raises:
        UsageError: there is no such format.
    """
    if path.suffix in {"", ".json", ".jsonl", ".ndjson"}:
        return Form.json
    if path.suffix == ".parquet":
        return Form.parquet
    raise UsageError(
        f"Dead letters cannot be exported as {path.suffix}.",
        hint="Name the file .jsonl or .parquet, or give --format.",
    )


def _check_target(path: Path, *, overwrite: bool) -> None:
    if str(path) == "-":
        raise UsageError(
            "An export goes to a file, not to stdout.",
            hint="`coherer dead-letters list GROUP --json` prints dead letters.",
        )
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists.", hint="Name a new file, or use --overwrite.")


def _time_ms(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    moment: datetime | None = parse_moment(text)
    if moment is None:
        raise UsageError(
            f"{option} {text!r} is not a time.", hint="Write it like 2026-01-31T18:30."
        )
    return floor_ms(moment)


def _check_left_out(brokers: Sequence[str]) -> None:
    """End with an error if the dead letters of some brokers are left out."""
    if brokers:
        typer.echo(
            f"error: No master of {', '.join(brokers)} is registered: dead letters there are left "
            "out.",
            err=True,
        )
        raise typer.Exit(FAILED)


def _print_queues(found: Sequence[DeadLetterQueue], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "group": one.group,
                    "count": one.count,
                    "oldest": iso_time(one.oldest_ms),
                    "newest": iso_time(one.newest_ms),
                    "topic": one.topic,
                    "brokers": one.parts,
                    "left_out": one.left_out,
                }
                for one in found
            ]
        )
    else:
        _print_table_of(found)
    _check_left_out(sorted({broker for one in found for broker in one.left_out}))


def _print_table_of(found: Sequence[DeadLetterQueue]) -> None:
    print_table(
        ("group", "dead letters", "oldest", "newest", "brokers"),
        [
            (
                one.group,
                one.count,
                time_text(one.oldest_ms) or "-",
                time_text(one.newest_ms) or "-",
                # A topic that was created by hand can have several queues on a broker.
                tuple(dict.fromkeys(part.broker for part in one.parts)),
            )
            for one in found
        ],
        empty="No group has dead letters.",
    )


def _print_page(found: Page, group: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"letters": [_line(one) for one in found.letters], "cursor": found.cursor})
        return
    print_table(
        ("id", "topic", "tag", "keys", "attempts", "dead since", "reason", "body"),
        [
            (
                one.id,
                one.topic or None,
                one.tag or "-",
                ", ".join(one.keys) or "-",
                one.attempts,
                time_text(one.stored_ms),
                one.reason or "-",
                body_text(one.body, 40),
            )
            for one in found.letters
        ],
        empty=f"{group} has no matching dead letters. "
        "`coherer dead-letters list` shows the groups that have some."
        if found.cursor is None
        else f"None of these {found.scanned:,} dead letters matches.",
    )
    if found.cursor is not None:
        typer.echo(f"There are more: --cursor '{found.cursor}'", err=True)


def _line(letter: DeadLetter) -> dict[str, object]:
    return msgspec.to_builtins(LetterLine.of(letter))  # type: ignore[no-any-return]  # a struct


def _replay(
    target: AdminTarget, group: str, to: str | None, where: Filter, *, dry_run: bool
) -> ReplayProgress:
    announced = False

    async def work(cluster: Cluster) -> ReplayProgress:
        await queue_of_existing(cluster, group)
        chosen = await checked(cluster, group, where)
        with progress_bar("replaying") as move:

            def show(now: ReplayProgress) -> None:
                nonlocal announced
                if now.waiting and not announced and not sys.stderr.isatty():
                    announced = True  # on a terminal the progress bar shows it
                    typer.echo(f"Waiting for {now.waiting}.", err=True)
                text = f"waiting for {now.waiting}" if now.waiting else f"{now.sent:,} sent"
                move(text, now.seen, now.total)

            return await send(cluster, group, to=to, where=chosen, dry_run=dry_run, show=show)

    return target.run_on_cluster(work)


def _print_replay(done: ReplayProgress, to: str | None, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "to": to,
                "dead_letters": done.total,
                "sent": done.sent,
                "already_sent": done.already,
                "without_topic": done.without_topic,
            }
        )
        return
    verb = "would be sent" if dry_run else "sent"
    text = f"{amount(done.sent, 'dead letter')} {verb}; {done.already:,} were sent before"
    if done.without_topic:
        text += f"; {done.without_topic:,} have no known topic (use --to)"
    typer.echo(text)
