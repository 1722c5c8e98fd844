"""Delivered messages as Arrow columns, without an object for each.

The attribute texts of a batch are taken apart in one of three ways, and tests hold them against
each other:

1. The same few texts come again and again (tag and time only): each different one, once.
2. All texts have the same names in the same order, as one producer's mostly have: column by column,
   with `join` and `split` over the whole batch (`_in_step`).
3. Otherwise one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias, cast

import pyarrow as pa

from coherer.tubemq.payload import TAG_KEY, TIME_KEY, split_attributes

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("broker", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tag", pa.string()),
        pa.field("time", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("properties", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
"""The columns of `MessageBatch.to_arrow`."""

_REPEATED: Final = 4
"""Texts that come so often are taken apart once for all."""

_TAG: Final = TAG_KEY.encode()
_TIME: Final = TIME_KEY.encode()
_MARK: Final = b"\0"
_MARKED: Final = b",\0,"

_Columns: TypeAlias = tuple[pa.Array, pa.Array, pa.Array]
"""Tags, times and properties."""


def record_batch(
    *,
    topic: str,
    broker: str,
    partition: int,
    offsets: Iterable[int | None],
    ids: Sequence[int],
    attributes: Sequence[bytes | None],
    bodies: Sequence[bytes],
) -> pa.RecordBatch:
    """Returns the columns of `SCHEMA`; the last four arguments are of the same length."""
    size = len(bodies)
    tags, times, properties = _take_apart(attributes)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic, pa.string()), size),
            pa.repeat(pa.scalar(broker, pa.string()), size),
            pa.repeat(pa.scalar(partition, pa.int32()), size),
            pa.array(list(offsets), pa.int64()),
            pa.array(ids, pa.int64()),
            tags,
            times,
            pa.array(bodies, pa.binary()),
            properties,
        ],
        schema=SCHEMA,
    )


def _take_apart(attributes: Sequence[bytes | None]) -> _Columns:
    different = dict.fromkeys(attributes)
    if len(different) * _REPEATED <= len(attributes):
        places = {text: place for place, text in enumerate(different)}
        rows = pa.array([places[text] for text in attributes], pa.int32())
        tags, times, properties = _one_by_one(list(different))
        return tags.take(rows), times.take(rows), properties.take(rows)
    return _in_step(attributes) or _one_by_one(attributes)


def _one_by_one(attributes: Sequence[bytes | None]) -> _Columns:
    tags: list[str | None] = []
    times: list[str | None] = []
    properties: list[list[tuple[str, str]]] = []
    for text in attributes:
        tag, time, others = split_attributes((text or b"").decode(errors="replace"))
        tags.append(tag)
        times.append(time)
        properties.append(list(others.items()))
    return (
        pa.array(tags, pa.string()),
        pa.array(times, pa.string()),
        pa.array(properties, pa.map_(pa.string(), pa.string())),
    )


def _in_step(attributes: Sequence[bytes | None]) -> _Columns | None:
    """Takes texts apart that have the same names in the same order; None when they have not.

    With a mark between the texts, all items of the batch are one list, in which every (names + 1)th
    is a mark. As there are no more marks than texts ask for, an item that looks like a mark, or a
    text with more or fewer items, moves some mark to where a name is expected, and is found there.
    """
    first = attributes[0] if attributes else None
    if first is None or None in attributes:
        return None
    names = [item.partition(b"=")[0] for item in first.split(b",")]
    size, step = len(attributes), len(names) + 1
    items = _MARKED.join(cast("Sequence[bytes]", attributes)).split(b",")
    if len(items) != size * step - 1 or items[step - 1 :: step] != [_MARK] * (size - 1):
        return None
    values: dict[bytes, Sequence[bytes | None]] = {}
    for place, name in enumerate(names):
        # Items hold no commas: if this splits off all of them, each begins with the name.
        column = (b"," + b",".join(items[place::step])).split(b",%b=" % name)
        if len(column) != size + 1 or name in values:
            return None
        values[name] = column[1:]
    nothing = [None] * size
    try:
        tags = pa.array(values.pop(_TAG, nothing), pa.string())
        times = pa.array(values.pop(_TIME, nothing), pa.string())
        return tags, times, _map(size, values)
    except pa.ArrowInvalid:  # no UTF-8
        return None


def _map(size: int, columns: Mapping[bytes, Sequence[bytes | None]]) -> pa.Array:
    """Makes a map in each row out of columns of values."""
    width = len(columns)
    values: list[bytes | None] = [None] * (width * size)
    for place, column in enumerate(columns.values()):
        values[place::width] = column
    return pa.MapArray.from_arrays(
        pa.array(range(0, width * size + 1, width) if width else [0] * (size + 1), pa.int32()),
        pa.array([*columns] * size, pa.string()),
        pa.array(values, pa.string()),
    )
