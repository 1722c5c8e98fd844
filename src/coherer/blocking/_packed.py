"""Sends encoded batches with a blocking producer; for Spark's sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coherer._client.engine.packed import send_packed as send_packed_in_loop
from coherer._record.batches import PackedMessages
from coherer.blocking._portal import ProducerFacade
from coherer.errors import CohererError
from coherer.message import Receipt


def send_packed(
    producer: ProducerFacade[Any, Any], batches: Sequence[PackedMessages]
) -> Sequence[Receipt | CohererError]:
    """Send encoded batches; return the outcome of each. See `coherer._client.engine.packed`."""
    portal = producer._portal  # pyright: ignore[reportPrivateUsage] - same package
    inner = producer._inner  # pyright: ignore[reportPrivateUsage] - same package
    return portal.call(lambda: send_packed_in_loop(inner, batches))
