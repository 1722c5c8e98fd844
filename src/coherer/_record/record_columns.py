"""Stored records as Arrow columns, without a Python object per record.

`columns` decodes only the columns that are wanted. Names, keys and times are values in the property
texts of the records: the separators of all texts are found at once, and each name is compared as
bytes. The map of the user's properties takes longer (see `_record.columns`); so do texts that are
not UTF-8, and times of a sender that are not valid.

The module needs numpy and pyarrow; it is imported when columns are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coherer._common.moments import moment
from coherer._record import layout
from coherer._record import properties as text
from coherer._record.columns import INSTANT, TextFormat, instants, parse_texts
from coherer._record.scan import Ints, RecordScan, binary_array, gather
from coherer._record.system_topics import RETRY_PREFIX

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("broker", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("time", INSTANT, nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("properties", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
"""All columns, in order."""

ON_REQUEST: Final = pa.schema(
    [pa.field("born_time", INSTANT), pa.field("store_time", INSTANT)],
)
"""Columns that are included only by name: when the client sent a message, and when the broker
stored it."""

FORM: Final = TextFormat(
    pair=text.PAIR_SEPARATOR.encode(),
    equals=text.NAME_SEPARATOR.encode(),
    read=text.decode,
    columns=(text.KEYS, text.TAGS, text.TIME),
    hidden=text.RESERVED | {text.TUBE_MARK},
    blank_values=False,
)
"""The format of properties, and the names that are not user properties."""

_YEARS_MS: Final = 1 << 47
"""Born times below this (the year 6429) are valid in Arrow and in Python."""

_HEX: Final = np.array([*map("{:04X}".format, range(1 << 16))], "S4").view("<u4")
"""The digits of each number of 16 bits."""


def columns(
    scan: RecordScan,
    names: Sequence[str] | None = None,
    *,
    topic: str | None = None,
    broker: str = "",
) -> pa.RecordBatch:
    r"""Return columns of `SCHEMA` and `ON_REQUEST`.

    Args:
        scan: the records; all of them are intact.
        names: the wanted columns; None for all of `SCHEMA`.
        topic: the topic of all records; None to read it from each record.

    >>> from coherer._record.scan import scan
    >>> record = layout.encode("demo", b"hello", b"TAGS\x01UA", queue_id=0, queue_offset=7,
    ...                        physical_offset=0, store_ms=0)
    >>> columns(scan(record), ["topic", "offset", "tag"]).to_pylist()
    [{'topic': 'demo', 'offset': 7, 'tag': 'UA'}]
    """
    wanted = SCHEMA.names if names is None else names
    source = _Source(scan, topic, broker)
    arrays = [_COLUMNS[name](source) for name in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([_FIELDS[name] for name in wanted]))


class _Source:
    """The data from which the columns of a batch are built."""

    def __init__(self, scan: RecordScan, topic: str | None, broker: str) -> None:
        self.scan = scan
        self.topic = topic
        self.broker = broker
        self._properties: PropertyTexts | None = None

    @property
    def properties(self) -> PropertyTexts:
        """The property texts, copied and searched once."""
        if self._properties is None:
            self._properties = PropertyTexts(self.scan.property_texts())
        return self._properties


class PropertyTexts:
    r"""Texts of names and values, one per record; see `_record.properties`.

    Args:
        texts: a binary array without nulls.

    >>> found = PropertyTexts(pa.array([b"a\x01x\x02b\x01y", b"b\x01z"], pa.binary()))
    >>> found.values("a").to_pylist(), found.values("b").to_pylist()
    (['x', None], ['y', 'z'])
    """

    def __init__(self, texts: pa.Array) -> None:
        self.texts = texts
        self._data, bounds = _contents(texts)
        octets = np.frombuffer(self._data, np.uint8)
        pair = ord(text.PAIR_SEPARATOR)
        begins = np.concatenate([bounds, np.flatnonzero(octets == pair) + 1])
        begins.sort(kind="stable")
        # A pair ends where the next one begins, or before the separator in between.
        following = begins[1:]
        self._begins = begins[:-1]
        self._ends = following - (octets[following - 1] == pair) if len(octets) else following
        self._row_ends = bounds[1:]

    def values(self, name: str) -> pa.Array:
        """Return the values of a property as text; null if a text has no such name."""
        count = len(self._row_ends)
        start = f"{name}{text.NAME_SEPARATOR}".encode()
        begins, ends = self._begins, self._ends
        hits = np.flatnonzero(begins + len(start) < ends)  # a value is not empty
        hits = hits[gather(self._data, f"S{len(start)}", begins[hits]) == start]
        if not len(hits):
            return pa.nulls(count, pa.string())
        rows = np.searchsorted(self._row_ends, begins[hits], "right")
        value_begins, value_ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        value_begins[rows] = begins[hits] + len(start)  # the last of equal names wins
        value_ends[rows] = ends[hits]
        sizes = value_ends - value_begins
        return _as_text(binary_array(self._data, value_begins, sizes, valid=sizes > 0))


def _contents(array: pa.Array) -> tuple[memoryview, Ints]:
    """Return the bytes of a binary array, and the begin of each value with the end of the last."""
    if not len(array):
        return memoryview(b""), np.zeros(1, np.int64)
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(cast("memoryview", offsets), np.int32, len(array) + 1, 4 * array.offset)
    view = memoryview(b"" if data is None else cast("memoryview", data))
    return view.cast("B")[: bounds[-1]], bounds.astype(np.int64)


def _as_text(array: pa.Array) -> pa.Array:
    """Return binary values as text; bytes that are not UTF-8 are replaced."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        values = cast("list[bytes | None]", array.to_pylist())
        replaced = [None if one is None else str(one, "utf-8", "replace") for one in values]
        return pa.array(replaced, pa.string())


def _topics(source: _Source) -> pa.Array:
    """Return the topics that the messages were sent to, also for messages of retry topics."""
    count, topic = len(source.scan), source.topic
    if topic is None:
        topics = _as_text(source.scan.topics())
        retried = pc.starts_with(topics, RETRY_PREFIX)
        if not pc.any(retried).as_py():
            return topics
        original = pc.coalesce(source.properties.values(text.RETRY_TOPIC), topics)
        return pc.if_else(retried, original, topics)
    topics = pa.repeat(pa.scalar(topic, pa.string()), count)
    if not topic.startswith(RETRY_PREFIX):
        return topics
    return pc.coalesce(source.properties.values(text.RETRY_TOPIC), topics)


def _ids(source: _Source) -> pa.Array:
    """Return the store host and the physical offset in hexadecimal digits."""
    scan = source.scan
    long = scan.sys_flags & layout.STORE_HOST_V6 != 0
    if not long.any():
        return _hexadecimal(scan, 8)
    if long.all():
        return _hexadecimal(scan, 20)
    order = np.concatenate([np.flatnonzero(~long), np.flatnonzero(long)])
    ids = [_hexadecimal(scan.pick(~long), 8), _hexadecimal(scan.pick(long), 20)]
    return pa.concat_arrays(ids).take(pa.array(np.argsort(order)))


def _hexadecimal(scan: RecordScan, host_bytes: int) -> pa.Array:
    at = np.where(scan.sys_flags & layout.BORN_HOST_V6, 76, 64)
    words = host_bytes // 2
    digits = np.empty((len(scan), words + 4), "<u4")
    host = scan.raw(at, host_bytes).view(">u2")
    # Nearly always the records of a batch were stored by one host.
    digits[:, :words] = _HEX[host[:1] if (host == host[:1]).all() else host]
    digits[:, words:] = _HEX[scan.raw(28, 8).view(">u2")]
    width = 4 * (words + 4)
    offsets = np.arange(0, (len(scan) + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
    return pa.Array.from_buffers(pa.string(), len(scan), buffers, null_count=0)


def _times(source: _Source) -> pa.Array:
    """Return the senders' times; where missing, the born times."""
    given = source.properties.values(text.TIME)
    if given.null_count < len(given):
        given = instants(given)
        if not given.null_count:
            return given
    born = _clock(source.scan.born_ms)
    return born if given.null_count == len(given) else pc.coalesce(given, born)


def _clock(ms: Ints) -> pa.Array:
    """Return times of a clock; null where the clock was far off."""
    if ((ms >= 0) & (ms < _YEARS_MS)).all():
        return pa.array(ms * 1000, INSTANT)
    return pa.array([moment(one) for one in ms.tolist()], INSTANT)


def _map(source: _Source) -> pa.Array:
    """Return the properties that the senders' applications set; see `FORM`."""
    texts = cast("list[bytes]", source.properties.texts.to_pylist())
    found = parse_texts(texts, FORM)
    times, others = found.named[2], found.others
    if times.null_count == len(times) or instants(times).null_count == times.null_count:
        return others
    # A malformed time stays a property like any other.
    rows = cast("list[list[tuple[str, str]]]", others.to_pylist())
    for row, time in zip(rows, cast("list[str | None]", times.to_pylist()), strict=True):
        if time is not None and text.decode_time(time) is None:
            row.append((text.TIME, time))
    return pa.array(rows, others.type)


_COLUMNS: Final[dict[str, Callable[[_Source], pa.Array]]] = {
    "topic": _topics,
    "broker": lambda source: pa.repeat(pa.scalar(source.broker, pa.string()), len(source.scan)),
    "partition": lambda source: pa.array(source.scan.queue_ids.astype(np.int32)),
    "offset": lambda source: pa.array(source.scan.queue_offsets),
    "id": _ids,
    "key": lambda source: source.properties.values(text.KEYS),
    "tag": lambda source: source.properties.values(text.TAGS),
    "time": _times,
    "value": lambda source: source.scan.bodies(),
    "properties": _map,
    "born_time": lambda source: _clock(source.scan.born_ms),
    "store_time": lambda source: _clock(source.scan.store_ms),
}

_FIELDS: Final = {field.name: field for schema in (SCHEMA, ON_REQUEST) for field in schema}
