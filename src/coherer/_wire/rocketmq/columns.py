"""Pulled messages as Arrow columns, without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from coherer._record import properties as text
from coherer._record.columns import INSTANT, TextFormat, instants, parse_texts
from coherer._wire.rocketmq.messages import born_time
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.records import Fields

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
"""How properties are written, and which of them users see as such."""

_YEARS_MS: Final = 1 << 47
"""Born times up to here (6429) are instants for Arrow and for Python."""


def record_batch(
    queue: Queue, fields: Sequence[Fields], texts: Sequence[bytes], bodies: Sequence[bytes]
) -> pa.RecordBatch:
    """Returns the columns of `SCHEMA`; the last three arguments are of the same length."""
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


def _ids(fields: Sequence[Fields]) -> list[str]:
    hosts = {host: host.hex().upper() for host in {one[11] for one in fields}}
    return [f"{hosts[one[11]]}{one[6]:016X}" for one in fields]


def _times(said: pa.Array, fields: Sequence[Fields]) -> pa.Array:
    """What senders said, otherwise when the messages were born."""
    born_ms = [one[8] for one in fields]
    if said.null_count < len(said):
        said = instants(said)
        if not said.null_count:
            return said
    if min(born_ms, default=0) >= 0 and max(born_ms, default=0) < _YEARS_MS:
        born = pa.array(born_ms, pa.timestamp("ms", "UTC")).cast(INSTANT)
    else:
        born = pa.array([born_time(one) for one in born_ms], INSTANT)
    return born if said.null_count == len(said) else pc.coalesce(said, born)
