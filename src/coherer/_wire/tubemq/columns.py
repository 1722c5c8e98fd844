"""Delivered messages as Arrow columns, without an object for each; see `_record.columns`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from coherer._record.columns import TextFormat, parse_texts
from coherer._wire.tubemq.payload import TAG_KEY, TIME_KEY, read_attributes

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


def _read(text: bytes) -> Mapping[str, str]:
    return read_attributes(text.decode(errors="replace"))


FORM: Final = TextFormat(
    pair=b",",
    equals=b"=",
    read=_read,
    columns=(TAG_KEY, TIME_KEY),
    hidden=frozenset(),
    blank_values=True,
)
"""How attributes are written."""


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
    (tags, times), properties = parse_texts(attributes, FORM)
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
