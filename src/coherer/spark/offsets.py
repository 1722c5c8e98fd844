"""The offsets of a stream, as Spark keeps them in its checkpoint, and the lag they show.

Invariants:

1. Offsets are `{"topic": {"broker:partition": n}}`; n is the next offset to read, so an end is
   exclusive.
2. Keys are always sorted. Spark compares offsets as JSON text: the same numbers in another order
   would look like new data, forever (docs/protocol/spark.md, section 1).
3. A partition that a start does not name is new, and is read from its beginning.
4. The end of the first micro-batch also holds the start of that batch, under the name `:start`, and
   so does that of one with new partitions. Spark writes the end of a batch to the checkpoint before
   it runs the batch, but never the first start: after a restart it asks for the start again, and
   "latest" has moved by then. So has the beginning of a new partition, if retention has deleted
   messages.

>>> offsets = canonical({"b": {"1:10": 5, "1:9": 4}, "a": {"1:0": 3}})
>>> to_json(offsets)
'{"a":{"1:0":3},"b":{"1:9":4,"1:10":5}}'
>>> total(offsets)
12
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final, TypeAlias, cast

import msgspec

from coherer.errors import UsageError

Offsets: TypeAlias = dict[str, dict[str, int]]
"""`{"topic": {"broker:partition": next offset}}`, sorted."""

Bounds: TypeAlias = dict[str, dict[str, tuple[int, int]]]
"""`{"topic": {"broker:partition": (first offset, end offset)}}`, sorted."""

Times: TypeAlias = dict[str, dict[str, int]]
"""`{"topic": {"broker:partition": ms}}`, with the key `*` for all partitions of a topic."""

Assigned: TypeAlias = dict[str, tuple[str | int, ...]]
"""`{"topic": ("broker:partition", 1)}`; a number is that partition of every broker."""

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
ALL: Final = "*"
START: Final = ":start"
"""The key of a batch's start in its end. Topic names contain no colon."""

EARLIEST_MARK: Final = -2
LATEST_MARK: Final = -1
"""In JSON, -2 is the earliest and -1 the latest offset, as in Spark's Kafka source."""


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
        raise UsageError(f"{key!r} is not a partition.", hint="Write it as 'broker:partition'.")
    return broker, int(number)


def canonical(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The same offsets, with topics and partitions sorted.

    >>> canonical({"t": {"2:0": 1, "1:10": 2, "1:9": 3}})
    {'t': {'1:9': 3, '1:10': 2, '2:0': 1}}
    """
    return {
        topic: {key: offsets[topic][key] for key in sorted(offsets[topic], key=split_key)}
        for topic in sorted(offsets)
    }


def with_start(end: Offsets, start: Offsets) -> Offsets:
    """The end of a micro-batch, with its start, which holds partitions that the last end lacks.

    >>> with_start({"t": {"1:0": 9}}, {"t": {"1:0": 4}})
    {':start': {'t:1:0': 4}, 't': {'1:0': 9}}
    """
    return canonical({**end, START: {f"{topic}:{key}": at for topic, key, at in flatten(start)}})


def split_start(offsets: Offsets) -> tuple[Offsets, Offsets | None]:
    """Undo `with_start`; the second value is None without a start.

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
    return {topic: partitions for topic, partitions in offsets.items() if topic != START}, start


def check_form(offsets: object) -> None:
    """Check offsets of a checkpoint, which another source may have written, or somebody edited.

    Raises:
        UsageError: they are not offsets of this source.

    >>> check_form({"t": {"1:0": 3}})
    >>> check_form({"logOffset": 3})
    Traceback (most recent call last):
    coherer.errors.UsageError: The checkpoint holds {"logOffset":3}, which are not offsets of \
TubeMQ or RocketMQ. ...
    """
    try:
        for _, key, _ in flatten(msgspec.convert(offsets, dict[str, dict[str, int]])):
            split_key(key)
    except (msgspec.ValidationError, UsageError) as error:
        text = json.dumps(offsets, separators=(",", ":"))
        raise UsageError(
            f"The checkpoint holds {text[:200]}, which are not offsets of TubeMQ or RocketMQ.",
            hint="A query that reads something else needs a checkpointLocation of its own.",
        ) from error


def to_json(offsets: Offsets) -> str:
    """The text that Spark writes to its offset log, without spaces."""
    return msgspec.json.encode(offsets).decode()


def from_json(text: str, option: str) -> Offsets:
    """Offsets that a user wrote, or copied from a stream's progress.

    Args:
        text: `{"topic": {"broker:partition": n}}`; -2 is the earliest, -1 the latest offset. A
            start, as in the end of a first micro-batch, is ignored.
        option: the name of the option, for the error.

    Raises:
        UsageError: the text is malformed.

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
                f"Option {option}: {offset} is not an offset.",
                topic=topic,
                hint=f"See {key}. {hint}",
            )
    return offsets


def times_from_json(text: str, option: str) -> Times:
    """Times that a user wrote, for partitions or topics.

    Args:
        text: `{"topic": {"broker:partition": ms}}` or `{"topic": ms}`; milliseconds since 1970.
        option: the name of the option, for the error.

    Raises:
        UsageError: the text is malformed.

    >>> times_from_json('{"flights": {"1:0": 1000}, "ships": 2000}', "")
    {'flights': {'1:0': 1000}, 'ships': {'*': 2000}}
    """
    try:
        given = msgspec.json.decode(text, type=dict[str, dict[str, _Ms] | _Ms])
        times = {
            topic: {ALL: at} if isinstance(at, int) else {key: at[key] for key in _checked(at)}
            for topic, at in given.items()
        }
    except (msgspec.DecodeError, UsageError) as error:
        raise UsageError(f"Option {option}: {error}", hint=_TIMES_HINT) from error
    return times


MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last time of Python."""

_Ms = Annotated[int, msgspec.Meta(ge=0, le=MS_MAX)]

_TIMES_HINT: Final = (
    'Write JSON like {"topic": {"broker:partition": 1700000000000}}; the times are milliseconds '
    "since 1970."
)
_ASSIGN_HINT: Final = 'Write JSON like {"topic": ["broker:partition", 1]}.'


def _checked(keys: Iterable[str]) -> list[str]:
    return [partition_key(*split_key(key)) for key in keys]


def assigned_from_json(text: str) -> Assigned:
    """Partitions that a user wrote.

    Args:
        text: `{"topic": ["broker:partition", 1]}`.

    Raises:
        UsageError: the text is malformed.

    >>> assigned_from_json('{"flights": ["1:0", 3]}')
    {'flights': ('1:0', 3)}
    """
    try:
        assigned = msgspec.json.decode(text, type=Assigned)
        for found in assigned.values():
            _checked(one for one in found if isinstance(one, str))
    except (msgspec.DecodeError, UsageError) as error:
        raise UsageError(f"Option assign: {error}", hint=_ASSIGN_HINT) from error
    if not assigned or not all(assigned.values()):
        raise UsageError("Option assign: a topic has no partition, or there is no topic.")
    return assigned


def is_assigned(key: str, assigned: Iterable[str | int]) -> bool:
    """Whether a partition is among the assigned ones.

    >>> [is_assigned(key, ("1:0", 3)) for key in ("1:0", "2:0", "2:3")]
    [True, False, True]
    """
    return any(one in (key, split_key(key)[1]) for one in assigned)


def flatten(offsets: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, str, int]]:
    """Every (topic, key, offset)."""
    for topic, partitions in offsets.items():
        for key, offset in partitions.items():
            yield topic, key, offset


def total(offsets: Mapping[str, Mapping[str, int]]) -> int:
    """The sum of all offsets."""
    return sum(offset for _, _, offset in flatten(offsets))


def bounds_of(topic: str, found: Mapping[tuple[str, int], tuple[int, int]]) -> Bounds:
    """The bounds of a topic, from a client's answer.

    >>> bounds_of("t", {("1", 1): (0, 9), ("1", 0): (5, 7)})
    {'t': {'1:0': (5, 7), '1:1': (0, 9)}}
    """
    return {topic: {partition_key(*key): found[key] for key in sorted(found)}}


def brokers_of(partitions: Iterable[str]) -> set[str]:
    """The brokers of some partitions.

    >>> sorted(brokers_of(["1:0", "1:1", "2:0"]))
    ['1', '2']
    """
    return {split_key(key)[0] for key in partitions}


def earliest(bounds: Bounds) -> Offsets:
    """The first offset of every partition."""
    return {topic: {key: low for key, (low, _) in at.items()} for topic, at in bounds.items()}


def latest(bounds: Bounds) -> Offsets:
    """The end offset of every partition."""
    return {topic: {key: high for key, (_, high) in at.items()} for topic, at in bounds.items()}


def resolve(
    wanted: str | Offsets, bounds: Bounds, option: str, *, unnamed: str, strict: bool = True
) -> Offsets:
    """The offset that a user wants for every existing partition.

    Args:
        wanted: `earliest`, `latest`, or offsets that may hold -2 and -1.
        bounds: of all partitions.
        option: the name of the option, for the error.
        unnamed: `earliest` or `latest`, for partitions that are not in `wanted`.
        strict: whether all partitions in `wanted` must exist; others are left out.

    Raises:
        UsageError: `wanted` names a partition that does not exist, or an offset after its end.

    >>> resolve({"t": {"1:0": -2}}, {"t": {"1:0": (3, 9), "1:1": (0, 4)}}, "", unnamed="latest")
    {'t': {'1:0': 3, '1:1': 4}}
    """
    if isinstance(wanted, str):
        return earliest(bounds) if wanted == EARLIEST else latest(bounds)
    _check_named(wanted, bounds, option, strict=strict)
    default = EARLIEST_MARK if unnamed == EARLIEST else LATEST_MARK
    return {
        topic: {
            key: _offset(wanted.get(topic, {}).get(key, default), low, high)
            for key, (low, high) in partitions.items()
        }
        for topic, partitions in bounds.items()
    }


def _offset(offset: int, low: int, high: int) -> int:
    return {EARLIEST_MARK: low, LATEST_MARK: high}.get(offset, offset)


def _check_named(wanted: Offsets, bounds: Bounds, option: str, *, strict: bool) -> None:
    for topic, key, offset in flatten(wanted):
        partitions = bounds.get(topic, {})
        if key not in partitions and not strict:
            continue
        if key not in partitions:
            raise UsageError(
                f"Option {option} names partition {key}, which does not exist.",
                topic=topic,
                hint=f"Existing partitions: {', '.join(partitions) or 'none'}.",
            )
        if offset > partitions[key][1]:
            raise UsageError(
                f"Option {option} names offset {offset} of partition {key}, "
                f"which ends at {partitions[key][1]}.",
                topic=topic,
            )


def merged(parts: Iterable[Bounds]) -> Bounds:
    """Several topics in one, sorted by topic."""
    found = {topic: partitions for part in parts for topic, partitions in part.items()}
    return {topic: found[topic] for topic in sorted(found)}


class Lag(msgspec.Struct, frozen=True):
    """The number of messages that a stream has not read yet.

    Args:
        total: of all partitions of all TubeMQ and RocketMQ sources.
        partitions: by topic and `broker:partition`.
    """

    total: int
    partitions: Offsets


def lag(progress: Mapping[str, object]) -> Lag:
    """The lag of a stream, computed from its progress.

    Args:
        progress: `query.lastProgress`, an element of `query.recentProgress`, or the `progress` of
            an event of a `StreamingQueryListener`.

    >>> ends = '{"flights": {"1:0": 40}}', '{"flights": {"1:0": 100}}'
    >>> source = {"endOffset": ends[0], "latestOffset": ends[1]}
    >>> lag({"sources": [{"description": "PythonSource", **source}]})
    Lag(total=60, partitions={'flights': {'1:0': 60}})
    """
    behind: Offsets = {}
    for source in cast("list[Mapping[str, object]]", progress["sources"]):
        end, _ = reported(source.get("endOffset"))
        newest, _ = reported(source.get("latestOffset"))
        for topic, key, offset in flatten(newest):
            rows = max(0, offset - end.get(topic, {}).get(key, 0))
            partitions = behind.setdefault(topic, {})
            partitions[key] = partitions.get(key, 0) + rows
    return Lag(sum(rows for _, _, rows in flatten(behind)), behind)


def reported(value: object) -> tuple[Offsets, Offsets | None]:
    """Offsets in a source's progress, and their start; empty for other kinds of sources."""
    try:
        text = value if isinstance(value, str) else json.dumps(value)
        return split_start(msgspec.json.decode(text, type=dict[str, dict[str, int]]))
    except msgspec.DecodeError:
        return {}, None
