"""Sends encoded batches as half messages with a blocking producer; for Spark's sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coherer._client.rocketmq.producing.half_batches import prepare_packed as prepare_in_loop
from coherer._record.batches import PackedMessages
from coherer.blocking.rocketmq import Producer
from coherer.errors import CohererError
from coherer.rocketmq import HalfMessages


def prepare_packed(
    producer: Producer, batches: Sequence[PackedMessages], properties: Mapping[str, str]
) -> Sequence[HalfMessages | CohererError]:
    """Send encoded batches as half messages; return the outcome of each.

    See `coherer._client.rocketmq.producing.half_batches`.
    """
    portal = producer._portal  # pyright: ignore[reportPrivateUsage] - same package
    inner = producer._inner  # pyright: ignore[reportPrivateUsage] - same package
    return portal.call(lambda: prepare_in_loop(inner, batches, properties))
