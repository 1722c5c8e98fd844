"""Pulled messages as Arrow columns, without an object per message; see `_record.columns`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from coherer._record import properties as text
from coherer._record.columns import INSTANT, TextFormat, instants, parse_texts
from coherer._wire.rocketmq.delivery import RecordFields
from coherer._wire.rocketmq.messages import born_time
from coherer._wire.rocketmq.names import Queue

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
"""The columns of `MessageBatch.to_arrow`."""


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


def record_batch(
    queue: Queue, fields: Sequence[RecordFields], texts: Sequence[bytes], bodies: Sequence[bytes]
) -> pa.RecordBatch:
    """Return the columns of `SCHEMA`; the last three arguments have the same length."""
    size = len(bodies)
    (keys, tags, times), properties = parse_texts(texts, FORM)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(queue.topic, pa.string()), size),
            pa.repeat(pa.scalar(queue.broker, pa.string()), size),
            pa.repeat(pa.scalar(queue.id, pa.int32()), size),
            pa.array([one[5] for one in fields], pa.int64()),
            pa.array(_ids(fields), pa.string()),
            keys,
            tags,
            _times(times, fields),
            pa.array(bodies, pa.binary()),
            properties,
        ],
        schema=SCHEMA,
    )


def _ids(fields: Sequence[RecordFields]) -> list[str]:
    hosts = {host: host.hex().upper() for host in {one[11] for one in fields}}
    return [f"{hosts[one[11]]}{one[6]:016X}" for one in fields]


def _times(given: pa.Array, fields: Sequence[RecordFields]) -> pa.Array:
    """Return the senders' times; where missing, the born times."""
    born_ms = [one[8] for one in fields]
    if given.null_count < len(given):
        given = instants(given)
        if not given.null_count:
            return given
    if min(born_ms, default=0) >= 0 and max(born_ms, default=0) < _YEARS_MS:
        born = pa.array(born_ms, pa.timestamp("ms", "UTC")).cast(INSTANT)
    else:
        born = pa.array([born_time(one) for one in born_ms], INSTANT)
    return born if given.null_count == len(given) else pc.coalesce(given, born)
