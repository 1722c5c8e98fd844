"""Where `coherer consume` starts: `--from` and `--partition`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Literal, Protocol, TypeAlias, TypeVar, cast

from coherer._common.places import AnyPartition, place_of
from coherer._common.urls import is_rocketmq
from coherer.cli.options import parse_moment, parse_number
from coherer.errors import UsageError

P = TypeVar("P", bound=AnyPartition)

Start: TypeAlias = Literal["earliest", "latest"] | datetime | int
"""Where to start: the beginning or the end of the partitions, a store time, or an offset."""


Places: TypeAlias = frozenset[tuple[str | None, int]]
"""Brokers and partitions; a broker that is None stands for every broker."""


def parse_position(text: str) -> Start:
    """Parse the position that `--from` names.

    Raises:
        UsageError: it is malformed.

    >>> parse_position("latest"), parse_position("42"), parse_position("2026-01-31T18:30")
    ('latest', 42, datetime.datetime(2026, 1, 31, 18, 30))
    """
    if text in {"earliest", "latest"}:
        return cast("Literal['earliest', 'latest']", text)
    if (offset := parse_number(text)) is not None:
        return offset
    moment = None if text.isdecimal() else parse_moment(text)
    if moment is None:
        raise UsageError(
            f"--from {text!r} is not a position in a topic.",
            hint="Give earliest, latest, a time such as 2026-01-31T18:30, or an offset.",
        )
    return moment


def parse_partitions(texts: Iterable[str]) -> Places:
    """Parse the brokers and partitions that `--partition` options name.

    Raises:
        UsageError: one is malformed.

    >>> parse_partitions(["broker-a:3"])
    frozenset({('broker-a', 3)})
    """
    found: set[tuple[str | None, int]] = set()
    for text in texts:
        broker, _, partition = text.rpartition(":")
        number = parse_number(partition)
        if number is None:
            raise UsageError(
                f"--partition {text!r} is not a partition.", hint="Write it like 0 or broker-a:0."
            )
        found.add((broker or None, number))
    return frozenset(found)


def check_group_options(
    group: str,
    topics: Sequence[str],
    start: Start,
    places: Places,
    url: str,
) -> None:
    """Check the options of a member of a group.

    Raises:
        UsageError: a group reads all partitions of a topic, and cannot start at an offset.
    """
    if places:
        raise UsageError("--partition excludes --group: a group reads all partitions.")
    if isinstance(start, int) or (isinstance(start, datetime) and not is_rocketmq(url)):
        raise UsageError(
            "A group cannot start there.",
            hint=f"Set its offsets first: `coherer groups reset {group} --topic {topics[0]} --to "
            "...`, or read without --group.",
        )


def _chosen(places: Places, topic: str, known: Iterable[P]) -> list[P]:
    """Select the partitions to read.

    Raises:
        UsageError: a partition does not exist.
    """
    existing = {place_of(one): one for one in known}
    if not places:
        return list(existing.values())
    for broker, number in places:
        if not any(number == one and broker in {None, on} for on, one in existing):
            named = number if broker is None else f"{broker}:{number}"
            raise UsageError(
                f"The partition {named} does not exist.",
                topic=topic,
                hint=f"`coherer topics describe {topic}` shows them.",
            )
    return [
        one
        for (broker, number), one in existing.items()
        if {(None, number), (broker, number)} & places
    ]


class _OffsetClient(Protocol[P]):
    """A client of either protocol."""

    def offsets(self, topic: str) -> dict[P, tuple[int, int]]: ...

    def offsets_since(
        self, topic: str, time: datetime, *, partitions: Collection[P] | None = None
    ) -> dict[P, int]: ...


def begins_of(
    client: _OffsetClient[P],
    topic: str,
    start: Start,
    places: Places,
) -> dict[P, int]:
    """Return the start offset of each partition to read."""
    ends = client.offsets(topic)
    chosen = _chosen(places, topic, ends)
    ends = {partition: ends[partition] for partition in chosen}
    match start:
        case "earliest":
            return {one: low for one, (low, _) in ends.items()}
        case "latest":
            return {one: high for one, (_, high) in ends.items()}
        case int():
            return {one: min(max(start, low), high) for one, (low, high) in ends.items()}
        case _:
            return client.offsets_since(topic, start, partitions=chosen)
