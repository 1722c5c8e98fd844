"""Pulled messages as Arrow columns, without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from coherer.record import properties as text
from coherer.rocketmq.delivery import Fields
from coherer.rocketmq.messages import time_of, user_properties
from coherer.rocketmq.names import Queue

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("broker", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("properties", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
"""The columns of `MessageBatch.to_arrow`."""


def record_batch(
    queue: Queue,
    fields: Sequence[Fields],
    texts: Sequence[bytes],
    bodies: Sequence[bytes],
) -> pa.RecordBatch:
    """Returns the columns of `SCHEMA`; the last three arguments are of the same length."""
    size = len(bodies)
    stored = [text.decode(one) for one in texts]
    born = [one[8] for one in fields]
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(queue.topic, pa.string()), size),
            pa.repeat(pa.scalar(queue.broker, pa.string()), size),
            pa.repeat(pa.scalar(queue.id, pa.int32()), size),
            pa.array([one[5] for one in fields], pa.int64()),
            pa.array([f"{one[11].hex().upper()}{one[6]:016X}" for one in fields], pa.string()),
            pa.array([one.get(text.KEYS) for one in stored], pa.string()),
            pa.array([one.get(text.TAGS) for one in stored], pa.string()),
            pa.array(
                [time_of(one, at) for one, at in zip(stored, born, strict=True)],
                pa.timestamp("us", "UTC"),
            ),
            pa.array(bodies, pa.binary()),
            pa.array(
                [list(user_properties(one).items()) for one in stored],
                pa.map_(pa.string(), pa.string()),
            ),
        ],
        schema=SCHEMA,
    )
