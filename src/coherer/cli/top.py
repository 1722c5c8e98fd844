"""`coherer top`: live rates of topics and groups in the terminal.

The rates are differences between two snapshots of offsets, which the client's administration takes.
So the command works over either protocol, and with Apache's clusters. A rate is unknown if a server
does not report one of its offsets.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
import tty
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Annotated, Final, TypeAlias

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from coherer._wire.tubemq.names import STORE_STRIDE
from coherer.admin import Partition
from coherer.cli.fitting import Part, lines_of, unreachable
from coherer.cli.options import Json, seconds_option
from coherer.cli.output import again, fail, print_json
from coherer.cli.target import AdminTarget, AnyAdmin, on_cluster_with_token
from coherer.errors import CohererError

app = typer.Typer(add_completion=False)

_AT_ONCE: Final = 16
"""The number of concurrent requests."""

_SCREEN_LINES: Final = 7
"""The least number of lines of a screen that are not rows of a table."""


class Sort(StrEnum):
    """The order of the rows."""

    RATE = "rate"
    LAG = "lag"
    NAME = "name"


KEYS: Final = {"r": Sort.RATE, "l": Sort.LAG, "n": Sort.NAME}
QUIT: Final = "q"


class TopicRate(msgspec.Struct, frozen=True):
    """The messages of a topic, and those stored per second; None if a number is unknown."""

    topic: str
    in_per_s: float | None
    messages: int | None


class GroupRate(msgspec.Struct, frozen=True):
    """The rates of a group in a topic.

    Args:
        out_per_s: messages acknowledged per second; None if it is unknown.
        lag: messages that are not acknowledged; None if it is unknown.
    """

    group: str
    topic: str
    members: int
    out_per_s: float | None
    lag: int | None


class Rates(msgspec.Struct, frozen=True):
    """All rates, sorted; `seconds` is the time between the two snapshots."""

    seconds: float
    topics: tuple[TopicRate, ...]
    groups: tuple[GroupRate, ...]


Pairs: TypeAlias = "Mapping[str, tuple[int | None, int | None]]"
"""Two numbers of each partition."""


class Snapshot(msgspec.Struct, frozen=True):
    """The offsets that a cluster reported at a time.

    Args:
        at_s: the time, by a monotonic clock.
        topics: beginning and end of each partition, by topic and partition.
        groups: offset and lag of each partition, by group and topic, and partition.
        members: the number of members of each group.
    """

    at_s: float
    topics: Mapping[str, Pairs]
    groups: Mapping[tuple[str, str], Pairs]
    members: Mapping[str, int]


async def take_snapshot(admin: AnyAdmin) -> Snapshot:
    """Ask a cluster for the offsets of all topics and groups.

    Raises:
        CohererError: the cluster does not answer.
    """
    turn = asyncio.Semaphore(_AT_ONCE)

    async def ends_of(topic: str) -> Pairs:
        async with turn:
            try:
                partitions = await admin.topics.partitions(topic)
            except CohererError:  # it has just been deleted, or its broker does not answer
                return {}
        return _counted((one, one.min_offset, one.max_offset) for one in partitions)

    names = [topic.name for topic in await admin.topics.list()]
    began_s = time.monotonic()
    topics = dict(zip(names, await asyncio.gather(*map(ends_of, names)), strict=True))
    found = await admin.groups.list()
    groups: dict[tuple[str, str], Pairs] = {}
    for group in found:
        for topic in dict.fromkeys(one.topic for one in group.partitions):
            parts = [one for one in group.partitions if one.topic == topic]
            pairs = _counted((one, one.committed, _offsets(one)) for one in parts)
            # RocketMQ's retry topics are not visible over TubeMQ.
            if topic in topics or None not in {lag for _, lag in pairs.values()}:
                groups[group.name, topic] = pairs
    members = {group.name: len(group.members) for group in found}
    return Snapshot((began_s + time.monotonic()) / 2, topics, groups, members)


def _counted(parts: Iterable[tuple[Partition, int | None, int | None]]) -> Pairs:
    """Return two numbers of each partition, in messages.

    Java's TubeMQ counts bytes of an index that all partitions of a store share. There the result
    has one entry per store: the mean of its partitions, divided by the size of an index entry.
    """
    found: dict[str, tuple[int | None, int | None]] = {}
    stores: dict[tuple[str, int], list[tuple[int | None, int | None]]] = {}
    steps: dict[tuple[str, int], int] = {}
    for one, first, second in parts:
        step = one.offset_step or 1
        if step == 1:
            found[one.key] = first, second
            continue
        store = one.broker, one.partition // STORE_STRIDE
        stores.setdefault(store, []).append((first, second))
        steps[store] = step
    for (broker, number), pairs in stores.items():
        step = steps[broker, number]
        firsts, seconds = zip(*pairs, strict=True)
        found[f"{broker}:{number}"] = _mean(firsts, step), _mean(seconds, step)
    return found


def _offsets(one: Partition) -> int | None:
    """Return the lag, as a difference of offsets."""
    return None if one.lag is None else one.lag * (one.offset_step or 1)


def _mean(numbers: Sequence[int | None], step: int) -> int | None:
    total = _total(numbers)
    return None if total is None else total // (len(numbers) * step)


def rates(before: Snapshot, after: Snapshot, sort: Sort) -> Rates:
    """Compute the rates between two snapshots."""
    seconds = after.at_s - before.at_s
    topics = [
        TopicRate(
            topic,
            _per_s(
                [end for _, end in before.topics.get(topic, {}).values()],
                [end for _, end in ends.values()],
                seconds,
            ),
            _total(_span(*pair) for pair in ends.values()),
        )
        for topic, ends in after.topics.items()
    ]
    groups = [
        GroupRate(
            group,
            topic,
            after.members.get(group, 0),
            _per_s(
                [offset for offset, _ in before.groups.get((group, topic), {}).values()],
                [offset for offset, _ in offsets.values()],
                seconds,
            ),
            _total(lag for _, lag in offsets.values()),
        )
        for (group, topic), offsets in after.groups.items()
    ]
    return ordered(Rates(seconds, tuple(topics), tuple(groups)), sort)


def _per_s(
    before: Sequence[int | None], after: Sequence[int | None], seconds: float
) -> float | None:
    first, last = _total(before), _total(after)
    if first is None or last is None or len(before) != len(after) or seconds <= 0:
        return None
    return (last - first) / seconds


def _span(begin: int | None, end: int | None) -> int | None:
    return None if begin is None or end is None else end - begin


def _total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if a number is unknown, or without numbers."""
    found = list(numbers)
    known = [number for number in found if number is not None]
    return sum(known) if known and len(known) == len(found) else None


def ordered(found: Rates, sort: Sort) -> Rates:
    """Sort rates: the largest first, unknown ones last."""

    def place(value: float | None) -> float:
        return 0 if sort is Sort.NAME else math.inf if value is None else -value

    def topic(one: TopicRate) -> tuple[float, str]:
        return place(one.messages if sort is Sort.LAG else one.in_per_s), one.topic

    def group(one: GroupRate) -> tuple[float, str, str]:
        return place(one.lag if sort is Sort.LAG else one.out_per_s), one.group, one.topic

    return Rates(
        found.seconds,
        tuple(sorted(found.topics, key=topic)),
        tuple(sorted(found.groups, key=group)),
    )


@app.command()
@on_cluster_with_token
def top(
    target: AdminTarget,
    interval_s: Annotated[
        float, seconds_option("--interval", least=0.1, about="Seconds between two snapshots.")
    ] = 2.0,
    sort: Annotated[Sort, typer.Option(help="The order of the rows.")] = Sort.RATE,
    once: Annotated[bool, typer.Option("--once", help="Show the rates once, and exit.")] = False,
    as_json: Json = False,
) -> None:
    """Show the rates of topics and groups, live.

    Keys: r sorts by rate, l by lag (topics by size), n by name; q quits. A rate is the difference
    of offsets between two snapshots, so deletions and resets of groups can make it negative.
    """
    target.run(lambda admin: _run(admin, interval_s, sort, once=once, as_json=as_json))


async def _run(
    admin: AnyAdmin, interval_s: float, sort: Sort, *, once: bool, as_json: bool
) -> None:
    before, console = await take_snapshot(admin), Console()
    if once or as_json or not console.is_terminal:
        while True:
            await asyncio.sleep(interval_s)
            after = (
                await take_snapshot(admin) if once else await again(partial(take_snapshot, admin))
            )
            if not isinstance(after, Snapshot):
                fail(after)
                continue
            found, before = rates(before, after, sort), after
            if as_json:
                print_json(found)
            else:
                console.print(rendered(found, sort, console))
            if once:
                return
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        found, quits = rates(before, before, sort), False
        trouble: CohererError | None = None
        while not quits:
            view = rendered(found, sort, console, console.height)
            live.update(view if trouble is None else unreachable(trouble), refresh=True)
            try:
                key = await asyncio.wait_for(pressed.get(), interval_s)
            except TimeoutError:
                after = await again(partial(take_snapshot, admin))
                if isinstance(after, Snapshot):
                    found, before, trouble = rates(before, after, sort), after, None
                else:
                    trouble = after
                continue
            quits, sort = key == QUIT, KEYS.get(key, sort)
            found = ordered(found, sort)


def rendered(
    found: Rates, sort: Sort, console: Console, height: int | None = None
) -> RenderableType:
    """Format the rates as tables for a terminal.

    `height` is the number of lines that fit; None for any number, and without the line of keys.
    """
    if height is None:
        return _view(found, sort, None)
    views = (_view(found, sort, rows) for rows in range(height - _SCREEN_LINES, 0, -1))
    fitting = (view for view in views if lines_of(view, console) <= height)
    return next(fitting, _view(found, sort, 2))


def _view(found: Rates, sort: Sort, rows: int | None) -> RenderableType:
    """The two tables, with at most `rows` rows together; None for all."""
    topics = [(one.topic, _number(one.in_per_s), one.messages) for one in found.topics]
    groups = [
        (one.group, one.topic, one.members, _number(one.out_per_s), one.lag) for one in found.groups
    ]
    of_topics, of_groups = len(topics), len(groups)
    if rows is not None:  # half for each table, and the rows that the other one does not need
        of_topics = min(len(topics), max(rows // 2, rows - len(groups), 1))
        of_groups = min(len(groups), max(rows - of_topics, 1))
    head = f"{len(topics)} topics, {len(groups)} groups of topics, sorted by {sort}"
    keys = "r: rate  l: lag  n: name  q: quit" if rows is not None else ""
    return Group(
        Text.assemble((head, "bold"), f"   {keys}"),
        Text(),
        Part("groups", ("group", "topic", "members", "out/s", "lag"), groups).shown(of_groups),
        Text(),
        Part("topics", ("topic", "in/s", "messages"), topics).shown(of_topics),
    )


def _number(per_s: float | None) -> int | None:
    return None if per_s is None else round(per_s)


@contextmanager
def _keys() -> Generator[asyncio.Queue[str]]:
    """Yield a queue of the pressed keys, which stays empty without a terminal and on Windows."""
    pressed: asyncio.Queue[str] = asyncio.Queue()
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield pressed
        return
    import termios  # not on Windows

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()
    tty.setcbreak(number)
    loop.add_reader(number, lambda: pressed.put_nowait(sys.stdin.read(1)))
    try:
        yield pressed
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
