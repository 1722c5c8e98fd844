"""Stores as tables: `spark.read.format("rocketmq").option("topic", …).load("file:/…/store")`.

A batch reads the files of one store or of several, of a node or of Java's broker, without a broker.
The driver looks at the consume queues, chooses the offsets with the same code as for brokers
(`cursor`), and cuts the log into sections. A task reads the wanted records of a section, of all
queues and topics, in the order of the log (`file_rows`). `coherer.arrow.scan` reads one section
after the other; Spark reads them in tasks (`file_reader`).

A cut is a position in the log. The cuts are chosen from sampled entries, so that the sections have
equal numbers of rows. The offset of each queue at a cut is found by bisection.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from heapq import heapreplace
from pathlib import Path
from typing import Final, cast

import msgspec

from coherer._common.moments import ceil_ms
from coherer._store.snapshot import StoreSnapshot, is_store
from coherer._wire.rocketmq.codes import ResponseCode, refused
from coherer.errors import UsageError
from coherer.spark.file_rows import Losses, Section, gaps_in
from coherer.spark.options import ACCESS_TABLE, Option, ReadOptions, read_options
from coherer.spark.planning import Range, Wanted, shares_of
from coherer.spark.queue import Queue
from coherer.spark.topics import Topics, monotonic_ms, ranges_of

SECTION_BYTES: Final = 64 << 20
"""Target size of the records of a task, if the options do not set the number of tasks."""

PACK_BYTES: Final = 8 << 20
"""Smaller sections of the log share a task: a task costs 5 to 40 ms, the time to read this much."""

_SAMPLES: Final = 64
"""The number of entries that are sampled for their sizes, and between two cuts."""


def _set_of(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("it is empty")
    return names


def _name(text: str) -> str:
    if not text.strip() or ":" in text:
        raise ValueError(f"{text!r} is not a broker's name")
    return text.strip()


FILES_TABLE: Final = (
    Option("tag", "tags", _set_of, "Files only: rows with this tag, or one of several: `a,b`."),
    Option("brokerName", "broker_name", _name,
           "Files only: the name of the broker in the column `broker`. Required for a store that "
           "does not have it."),
)  # fmt: skip
"""Options that only stores have."""

_ACCESS: Final = frozenset(option.name.lower() for option in ACCESS_TABLE)
"""Options that files do not need. They are allowed: a query moves to files by its path alone."""

_WITHOUT_EFFECT: Final = frozenset(
    {
        *("maxoffsetspertrigger", "maxbytespertrigger", "minoffsetspertrigger", "maxtriggerdelay"),
        *("group", "commitoffsets"),
    }
)
"""Options of streams."""


class FileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a read of files.

    Args:
        read: those that exist for brokers, too; its `access` is not used.
        paths: those of stores, with wildcards.
        tags: those of the wanted rows; None for all.
        broker_name: replaces the name in the files.
    """

    read: ReadOptions
    paths: tuple[str, ...]
    tags: frozenset[str] | None = None
    broker_name: str | None = None

    @property
    def losses(self) -> Losses:
        """How lost and bad rows are handled."""
        return Losses(self.read.fail_on_data_loss, self.read.mode)


def file_options(options: Mapping[str, str], protocol: str) -> FileOptions:
    """The options of a batch that reads files.

    Args:
        options: as Spark passes them.
        protocol: the format, which must be `rocketmq`.

    Raises:
        UsageError: an option is unknown, malformed, missing, or has no effect on files.

    >>> file_options({"path": "file:/a,/b/*", "topic": "t", "tag": "x"}, "rocketmq").paths
    ('/a', '/b/*')
    """
    lowered = {name.lower(): text for name, text in options.items()}
    given = {name: text for name, text in lowered.items() if name not in _ACCESS}
    if protocol != "rocketmq":
        raise UsageError(
            f"format({protocol!r}) reads brokers, not files.",
            hint='Use format("rocketmq"): stores hold the messages of both protocols.',
        )
    for name in sorted(given.keys() & _WITHOUT_EFFECT):
        raise UsageError(f"Option {name!r} has no effect on files.", hint="Remove it.")
    paths = _paths(given.pop("path", None), given.pop("paths", None))
    own: dict[str, object] = {}
    for option in FILES_TABLE:
        text = given.pop(option.name.lower(), None)
        try:
            own |= {} if text is None else {option.field: option.read(text)}
        except ValueError as error:
            raise UsageError(f"Option {option.name}: {error}.", hint=option.meaning) from error
    # Offsets, times and columns mean the same as with a broker; the URL is not used.
    read = read_options({**given, "url": "rocketmq://127.0.0.1:9876"}, "rocketmq")
    return msgspec.convert({"read": read, "paths": paths, **own}, FileOptions)


def _paths(path: str | None, several: str | None) -> tuple[str, ...]:
    listed = [] if path is None else path.split(",")
    listed += [] if several is None else msgspec.json.decode(several, type=list[str])
    found = tuple(_local(one.strip()) for one in listed if one.strip())
    if not found:
        raise UsageError("No store is named.", hint='Name one: .load("file:/data/store").')
    return found


def _local(path: str) -> str:
    local = path.removeprefix("file:")
    if local.startswith("//"):
        local = "/" + local.lstrip("/") if local.startswith("///") else local
    if not local.startswith("/") or local.startswith("//"):
        raise UsageError(
            f"{path!r} is not a path of this machine.",
            hint="Name a directory that every worker has mounted at the same path: "
            "file:/data/store.",
        )
    return local


class Stores:
    """The stores of a read by the names of their brokers, with the methods that planning calls."""

    def __init__(self, snapshots: Mapping[str, StoreSnapshot]) -> None:
        self.snapshots = snapshots

    def topics(self) -> Sequence[str]:
        """All topics, except internal ones, retries and dead letters."""
        return sorted({topic for one in self.snapshots.values() for topic in one.topics()})

    def bounds(
        self, topic: str, *, partial: bool = False, known: Collection[str] | None = ()
    ) -> Mapping[tuple[str, int], tuple[int, int]]:
        """The first offset and the end offset, by (broker, queue).

        Raises:
            TopicNotExistError: no store has the topic.
        """
        if not any(one.has_topic(topic) for one in self.snapshots.values()):
            paths = ", ".join(str(one.directory) for one in self.snapshots.values())
            text = f"There is no such topic in {paths}."
            raise refused(ResponseCode.TOPIC_NOT_EXIST, text, topic=topic)
        del partial, known  # a store is there or not
        return {
            (name, number): edges
            for name, one in self.snapshots.items()
            for number, edges in one.bounds(topic).items()
        }

    def offsets_since(
        self, topic: str, time: datetime, partitions: Collection[tuple[str, int]] | None = None
    ) -> Mapping[tuple[str, int], int]:
        """The offset of the first message stored at a time or later, by (broker, queue)."""
        del partitions  # all take no longer
        ms = ceil_ms(time)
        return {
            (name, number): offset
            for name, one in self.snapshots.items()
            for number, offset in one.offsets_since(topic, ms).items()
        }

    def missing_brokers(self, topic: str) -> Sequence[str]:
        """None."""
        del topic
        return ()

    def close(self) -> None:
        """Close the files."""
        for one in self.snapshots.values():
            one.close()


def open_stores(options: FileOptions) -> Stores:
    """The stores that the options name.

    Raises:
        UsageError: there is no store, or the name of its broker is unknown or not unique.
        StoreError: a store cannot be read.
    """
    found: dict[str, StoreSnapshot] = {}
    for directory in directories(options.paths):
        snapshot = StoreSnapshot(directory)
        name = options.broker_name or snapshot.broker_name()
        if name is None:
            raise UsageError(
                f"The files of {directory} do not have the name of their broker.",
                hint="Give it: option brokerName.",
            )
        if name in found:
            raise UsageError(
                f"{directory} and {found[name].directory} both belong to broker {name}: messages "
                "that both have would be rows twice.",
                hint="Read one of them.",
            )
        found[name] = snapshot
    return Stores(found)


def gaps_of(options: FileOptions, ranges: Sequence[Range]) -> list[Range]:
    """The parts of ranges that power cuts left empty.

    Raises:
        UsageError, StoreError: as `open_stores`.
        UnavailableError: a store cannot be read any more.
    """
    found: list[Range] = []
    with closing(open_stores(options)) as stores:
        for one in ranges:
            found += gaps_in(Section(str(stores.snapshots[one.broker].directory), (one,), 0))
    return found


def directories(paths: Iterable[str]) -> list[Path]:
    """The directories of stores that paths with wildcards name.

    Raises:
        UsageError: no store matches a wildcard.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not glob.has_magic(path):
            found[Path(path)] = None
            continue
        matches = [Path(match) for match in sorted(glob.glob(path)) if is_store(Path(match))]  # noqa: PTH207 - the path is absolute
        if not matches:
            raise UsageError(f"No store matches {path}.", hint="A store has a commitlog in it.")
        found |= dict.fromkeys(matches)
    return list(found)


def plan(options: FileOptions, wanted: Wanted) -> list[tuple[Section, ...]]:
    """The sections of the log that each task reads.

    Raises:
        UsageError, DataLossError, StoreError: as `sections_of`.
    """
    return _packed(sections_of(options, wanted), options.read)


def sections_of(options: FileOptions, wanted: Wanted) -> list[Section]:
    """The sections of the log with the wanted rows, store by store in the order of the log.

    Raises:
        UsageError: a store, topic, partition or offset that the options name does not exist.
        DataLossError: a range that the options name is gone, and `failOnDataLoss` is set.
        StoreError: a store cannot be read.
    """
    stores = open_stores(options)
    try:
        return _divide(stores, _ranges(stores, options, wanted), options.read)
    finally:
        stores.close()


def _ranges(stores: Stores, options: FileOptions, wanted: Wanted) -> list[Range]:
    # Topics and bounds are asked for; the rest of `Queue` is for reading and sending.
    queue = cast("Queue", stores)
    if options.read.fail_on_data_loss:
        Topics(options.read, monotonic_ms).check_whole(queue)
    ranges, lost = map(wanted.limit, ranges_of(queue, options.read))
    for one in lost:
        options.losses.lose(one)
    return _timed(stores, ranges, wanted)


def _timed(stores: Stores, ranges: Sequence[Range], wanted: Wanted) -> list[Range]:
    """The parts of ranges that were stored at the wanted times."""
    since_ms, until_ms = wanted.stored_ms
    found: list[Range] = []
    for one in ranges:
        snapshot, start, end = stores.snapshots[one.broker], one.start, one.end
        if since_ms is not None:
            start = max(start, snapshot.offsets_since(one.topic, since_ms)[one.partition])
        if until_ms is not None:
            end = min(end, snapshot.offsets_since(one.topic, until_ms)[one.partition])
        if start < end:
            found.append(msgspec.structs.replace(one, start=start, end=end))
    return found


def _divide(stores: Stores, ranges: Sequence[Range], options: ReadOptions) -> list[Section]:
    rows = sum(one.rows for one in ranges)
    sections: list[Section] = []
    for name, snapshot in stores.snapshots.items():
        some = [one for one in ranges if one.broker == name]
        if some:
            part = sum(one.rows for one in some) / rows
            sections += _limited(_sections(snapshot, some, options, part), options)
    if len(sections) < options.min_partitions:
        sections = [
            part
            for one in sections
            for part in _divided(one, min_shares=-(-options.min_partitions * one.rows // rows))
        ]
    return sections


def _sections(
    snapshot: StoreSnapshot, ranges: Sequence[Range], options: ReadOptions, part: float
) -> list[Section]:
    """Divide the ranges of a store at positions of the log, into tasks of equal size.

    The options limit all stores together; `part` is the share of this one.
    """
    rows = sum(one.rows for one in ranges)
    sizes = [(size, weight) for _, size, weight in _sampled(snapshot, ranges, _SAMPLES)]
    size = sum(size * weight for size, weight in sizes)
    count = max(-(-int(size) // SECTION_BYTES), round(options.min_partitions * part), 1)
    if options.max_partitions is not None:
        count = min(count, max(round(options.max_partitions * part), 1))
    cuts = _cuts(snapshot, ranges, rows, count) if count > 1 else []
    edges = {
        one: [
            one.start,
            *(
                min(max(snapshot.first_from(one.topic, one.partition, cut), one.start), one.end)
                for cut in cuts
            ),
            one.end,
        ]
        for one in ranges
    }
    found = [
        tuple(
            msgspec.structs.replace(one, start=edges[one][number], end=edges[one][number + 1])
            for one in ranges
            if edges[one][number] < edges[one][number + 1]
        )
        for number in range(len(cuts) + 1)
    ]
    return [
        Section(str(snapshot.directory), some, round(size * sum(one.rows for one in some) / rows))
        for some in found
        if some
    ]


def _sampled(
    snapshot: StoreSnapshot, ranges: Sequence[Range], count: int
) -> list[tuple[int, int, float]]:
    """About `count` records: position in the log, size, and number of rows that each represents."""
    rows = sum(one.rows for one in ranges)
    found: list[tuple[int, int, float]] = []
    for one in ranges:
        some = max(count * one.rows // rows, 1)
        for number in range(some):
            offset = one.start + one.rows * number // some
            place, size = snapshot.record_at(one.topic, one.partition, offset)
            found.append((place, size, one.rows / some))
    return found


def _cuts(snapshot: StoreSnapshot, ranges: Sequence[Range], rows: int, count: int) -> list[int]:
    """Positions of the log that divide the rows into `count` equal parts, or fewer."""
    cuts: list[int] = []
    before = 0.0
    for place, _, weight in sorted(_sampled(snapshot, ranges, _SAMPLES * count)):
        if before >= rows * (len(cuts) + 1) / count and len(cuts) + 1 < count:
            cuts.append(place)
        before += weight
    return cuts


def _limited(sections: Iterable[Section], options: ReadOptions) -> Iterator[Section]:
    """Divide sections with too many rows for a task."""
    most = options.max_records_per_partition
    for one in sections:
        if most is None or one.rows <= most:
            yield one
        else:
            yield from _divided(one, max_rows=most)


def _divided(
    one: Section, *, min_shares: int = 1, max_rows: int | None = None
) -> Iterator[Section]:
    for share in shares_of(one.ranges, min_shares=min_shares, max_shares=None, max_rows=max_rows):
        part = sum(each.rows for each in share) / one.rows
        yield Section(one.directory, share, round(one.size_bytes * part))


def _packed(sections: Sequence[Section], options: ReadOptions) -> list[tuple[Section, ...]]:
    """Pack small sections together, largest first, each into the share with the fewest bytes."""
    small = sum(one.size_bytes for one in sections if one.size_bytes < PACK_BYTES)
    large = sum(one.size_bytes >= PACK_BYTES for one in sections)
    count = max(large + -(-small // PACK_BYTES), options.min_partitions)
    if options.max_records_per_partition is not None:
        count = len(sections)
    count = min(count, len(sections), options.max_partitions or len(sections))
    shares: list[list[Section]] = [[] for _ in range(count)]
    emptiest = [(0, index) for index in range(count)]
    for one in sorted(sections, key=lambda one: -one.size_bytes):
        taken, index = emptiest[0]
        shares[index].append(one)
        heapreplace(emptiest, (taken + one.size_bytes, index))
    return [tuple(share) for share in shares]
