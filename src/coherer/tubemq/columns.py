"""Delivered messages as Arrow columns, without an object for each.

The attribute texts of a batch are taken apart by Arrow's own kernels, all at once; where the same
texts come again and again (tag and time only), each different one by Python, once. The kernels
cover what clients write; texts that follow no rule (an item without `=`, a name that occurs twice,
bytes that are no UTF-8) are taken apart by `payload.split_attributes`, one by one. Tests hold the
ways against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

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

_FEW: Final = 32
"""Below so many messages the kernels' own overhead is larger than Python's."""
_REPEATED: Final = 4
"""Texts that come so often are taken apart once for all."""

_Columns: TypeAlias = tuple[pa.Array, pa.Array, pa.Array]
"""Tags, times and properties."""


class _Odd(Exception):  # noqa: N818 - never leaves this module
    """The kernels cannot take these attributes apart."""


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
    if len(attributes) < _FEW:
        return _one_by_one(attributes)
    try:
        return _by_kernels(attributes)
    except (_Odd, pa.ArrowInvalid):
        return _one_by_one(attributes)


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


def _by_kernels(attributes: Sequence[bytes | None]) -> _Columns:
    rows = pc.split_pattern(pa.array(attributes, pa.string()), ",")
    items, owners = pc.list_flatten(rows), pc.list_parent_indices(rows)
    pairs = pc.split_pattern(items, "=", max_splits=1)
    if len(pc.list_flatten(pairs)) != 2 * len(items):
        raise _Odd
    keys, values = pc.list_element(pairs, 0), pc.list_element(pairs, 1)
    is_tag, is_time = pc.equal(keys, TAG_KEY), pc.equal(keys, TIME_KEY)
    tags = _column(len(attributes), owners.filter(is_tag), values.filter(is_tag))
    times = _column(len(attributes), owners.filter(is_time), values.filter(is_time))
    counts = pc.fill_null(pc.list_value_length(rows), 0)
    for column in (tags, times):
        counts = pc.subtract(counts, column.is_valid().cast(pa.int32()))
    other = pc.invert(pc.or_(is_tag, is_time))
    return tags, times, _map(counts, owners.filter(other), keys.filter(other), values.filter(other))


def _column(size: int, owners: pa.Array, values: pa.Array) -> pa.Array:
    """Gives each value to the row that owns it; the other rows are null."""
    if _distinct(owners) != len(owners):
        raise _Odd
    if len(values) == size:
        return values
    places = pc.index_in(pa.array(range(size), owners.type), value_set=owners)
    return values.take(places)


def _map(counts: pa.Array, owners: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Makes a map out of each row's `counts` names and values."""
    if len(counts) and cast("int", pc.max(counts).as_py()) > 1:
        named = pc.binary_join_element_wise(owners.cast(pa.string()), keys, "=")
        if _distinct(named) != len(named):
            raise _Odd
    ends = pc.cumulative_sum(counts)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.MapArray.from_arrays(offsets, keys, values)


def _distinct(array: pa.Array) -> int:
    return cast("int", pc.count_distinct(array).as_py())
