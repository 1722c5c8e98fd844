"""Where a stream stands: the offsets that Spark keeps in its checkpoint.

Rules:

1. The form is `{"topic": {"broker:partition": n}}`; n is the next offset to read, so an end is
   exclusive.
2. Keys are always sorted. Spark compares offsets as JSON text: the same numbers in another order
   would be new data to it, for ever (spark.md, section 1).
3. A partition that a start does not name is read from its beginning: it is new.
4. The end of the first micro-batch also tells where that batch starts, under the name `:start`.
   Spark writes the end of a batch to the checkpoint before it runs the batch, but never its first
   start: after a restart it asks for the start again, and "latest" is another place by then.

>>> offsets = canonical({"b": {"1:10": 5, "1:9": 4}, "a": {"1:0": 3}})
>>> to_json(offsets)
'{"a":{"1:0":3},"b":{"1:9":4,"1:10":5}}'
>>> total(offsets)
12
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from coherer.errors import UsageError

Offsets: TypeAlias = dict[str, dict[str, int]]
"""`{"topic": {"broker:partition": next offset}}`, sorted."""

Bounds: TypeAlias = dict[str, dict[str, tuple[int, int]]]
"""`{"topic": {"broker:partition": (first offset held, offset behind the last)}}`, sorted."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
START: Final = ":start"
"""In the end of the first micro-batch: where the batch starts. No topic has a colon in its name."""

EARLIEST_MARK: Final = -2
LATEST_MARK: Final = -1
"""In JSON, -2 stands for the earliest and -1 for the latest offset, as in Spark's Kafka source."""


def partition_key(broker: str, partition: int) -> str:
    """The name of a partition within a topic.

    >>> partition_key("1", 3)
    '1:3'
    """
    return f"{broker}:{partition}"


def split_key(key: str) -> tuple[str, int]:
    """Broker and partition of a key.

    Raises:
        UsageError: it is not `broker:partition`.

    >>> split_key("broker-a:3")
    ('broker-a', 3)
    """
    broker, colon, number = key.rpartition(":")
    if not (broker and colon and number.isdecimal() and number.isascii()):
        raise UsageError(f"{key!r} names no partition.", hint="Write it as 'broker:partition'.")
    return broker, int(number)


def canonical(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The same offsets with topics and partitions in the one order that we always use.

    >>> canonical({"t": {"2:0": 1, "1:10": 2, "1:9": 3}})
    {'t': {'1:9': 3, '1:10': 2, '2:0': 1}}
    """
    return {
        topic: {key: offsets[topic][key] for key in sorted(offsets[topic], key=split_key)}
        for topic in sorted(offsets)
    }


def with_start(end: Offsets, start: Offsets) -> Offsets:
    """The end of the first micro-batch, which also tells where the batch starts.

    >>> with_start({"t": {"1:0": 9}}, {"t": {"1:0": 4}})
    {':start': {'t:1:0': 4}, 't': {'1:0': 9}}
    """
    return canonical({**end, START: {f"{topic}:{key}": at for topic, key, at in flatten(start)}})


def split_start(offsets: Offsets) -> tuple[Offsets, Offsets | None]:
    """Undo `with_start`; the second is None when the offsets do not tell a start.

    >>> split_start({":start": {"t:1:0": 4}, "t": {"1:0": 9}})
    ({'t': {'1:0': 9}}, {'t': {'1:0': 4}})
    >>> split_start({"t": {"1:0": 9}})
    ({'t': {'1:0': 9}}, None)
    """
    if START not in offsets:
        return offsets, None
    start: Offsets = {}
    for name, at in offsets[START].items():
        topic, _, key = name.partition(":")
        start.setdefault(topic, {})[key] = at
    return {topic: places for topic, places in offsets.items() if topic != START}, start


def to_json(offsets: Offsets) -> str:
    """The text that Spark writes into its offset log, without its blanks."""
    return msgspec.json.encode(offsets).decode()


def from_json(text: str, option: str) -> Offsets:
    """Offsets that a user wrote, or copied from a stream's progress.

    Args:
        text: `{"topic": {"broker:partition": n}}`; -2 is the earliest, -1 the latest offset. The
            start that the end of a first micro-batch tells is left out.
        option: the name of the option, for the error.

    Raises:
        UsageError: the text has another form.

    >>> from_json('{"flights": {"1:0": 7, "1:1": -2}}', "startingOffsets")
    {'flights': {'1:0': 7, '1:1': -2}}
    """
    hint = """Write "earliest", "latest", or JSON like {"topic": {"broker:partition": 7}}."""
    try:
        given = msgspec.json.decode(text, type=dict[str, dict[str, int]])
        offsets = canonical(split_start(given)[0])
    except (msgspec.DecodeError, UsageError) as error:
        raise UsageError(f"Option {option}: {error}", hint=hint) from error
    for topic, key, offset in flatten(offsets):
        if offset < EARLIEST_MARK:
            raise UsageError(
                f"Option {option}: {offset} is no offset.", topic=topic, hint=f"See {key}. {hint}"
            )
    return offsets


def flatten(offsets: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str, int]]:
    """Every (topic, key, offset)."""
    for topic, places in offsets.items():
        for key, offset in places.items():
            yield topic, key, offset


def total(offsets: Mapping[str, Mapping[str, int]]) -> int:
    """The sum of all offsets."""
    return sum(offset for _, _, offset in flatten(offsets))


def bounds_of(topic: str, found: Mapping[tuple[str, int], tuple[int, int]]) -> Bounds:
    """What a client tells about a topic, in the form of this module.

    >>> bounds_of("t", {("1", 1): (0, 9), ("1", 0): (5, 7)})
    {'t': {'1:0': (5, 7), '1:1': (0, 9)}}
    """
    return {topic: {partition_key(*place): found[place] for place in sorted(found)}}


def earliest(bounds: Bounds) -> Offsets:
    """The first offset held of every partition."""
    return {topic: {key: low for key, (low, _) in at.items()} for topic, at in bounds.items()}


def latest(bounds: Bounds) -> Offsets:
    """The offset behind the last message of every partition."""
    return {topic: {key: high for key, (_, high) in at.items()} for topic, at in bounds.items()}


def resolve(wanted: str | Offsets, bounds: Bounds, option: str, *, unnamed: str) -> Offsets:
    """Turns a user's wish into an offset for every partition there is.

    Args:
        wanted: `earliest`, `latest`, or offsets that may hold -2 and -1.
        bounds: what the brokers hold.
        option: the name of the option, for the error.
        unnamed: `earliest` or `latest`, for partitions that `wanted` does not name.

    Raises:
        UsageError: `wanted` names a partition that does not exist, or an offset behind its end.

    >>> resolve({"t": {"1:0": -2}}, {"t": {"1:0": (3, 9), "1:1": (0, 4)}}, "", unnamed="latest")
    {'t': {'1:0': 3, '1:1': 4}}
    """
    if isinstance(wanted, str):
        return earliest(bounds) if wanted == EARLIEST else latest(bounds)
    _check_named(wanted, bounds, option)
    default = EARLIEST_MARK if unnamed == EARLIEST else LATEST_MARK
    return {
        topic: {
            key: _place(wanted.get(topic, {}).get(key, default), low, high)
            for key, (low, high) in places.items()
        }
        for topic, places in bounds.items()
    }


def _place(offset: int, low: int, high: int) -> int:
    return {EARLIEST_MARK: low, LATEST_MARK: high}.get(offset, offset)


def _check_named(wanted: Offsets, bounds: Bounds, option: str) -> None:
    for topic, key, offset in flatten(wanted):
        places = bounds.get(topic, {})
        if key not in places:
            raise UsageError(
                f"Option {option} names partition {key}, which does not exist.",
                topic=topic,
                hint=f"There are: {', '.join(places) or 'none'}.",
            )
        if offset > places[key][1]:
            raise UsageError(
                f"Option {option} names offset {offset} of partition {key}, "
                f"which ends at {places[key][1]}.",
                topic=topic,
            )


def merged(parts: Iterable[Bounds]) -> Bounds:
    """Several topics in one, sorted by topic."""
    found = {topic: places for part in parts for topic, places in part.items()}
    return {topic: found[topic] for topic in sorted(found)}
