"""Message trace of a consumer (docs/protocol/rocketmq.md, section 11).

A consumer writes one record when a message is delivered and one when it is acknowledged or failed,
unless the message disables it (`TRACE_ON`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from coherer._client.engine.assigned import DoneCallback
from coherer._client.rocketmq.received import ReceivedBatch
from coherer._client.rocketmq.tracing import Tracer, record
from coherer._common import machine
from coherer._common.clock import wall_ms
from coherer._wire.rocketmq.messages import StoredMessage

SUCCESS: Final = 0
FAILED: Final = 4
"""How a delivery ended, in a record; Java's listeners use more codes."""


class ConsumerTrace:
    """Traces the deliveries of a consumer.

    Args:
        tracer: sends the records; deliveries of its topic are not traced.
    """

    def __init__(self, tracer: Tracer, group: str) -> None:
        self._tracer = tracer
        self._group = group

    def begin(self, batch: ReceivedBatch) -> DoneCallback | None:
        """Trace the delivery of a batch; returns the function to call at its end."""
        if batch.topic.startswith(self._tracer.topic):
            return None
        messages = [
            message
            for message in batch.messages(StoredMessage)
            if message.stored_properties.get("TRACE_ON", "true") != "false"
        ]
        request_id = machine.uuid().hex.upper()
        for message in messages:
            text = before_record(
                region=message.stored_properties.get("MSG_REGION"),
                group=self._group,
                request_id=request_id,
                message_id=message.unique_id or message.id,
                attempt=message.attempt,
                keys=message.keys,
            )
            self._tracer.add(text, (message.unique_id or message.id, *message.keys))
        began = machine.ticks_ns() / 1e9

        def ended(failures: Collection[int]) -> None:
            cost_ms = int((machine.ticks_ns() / 1e9 - began) * 1000)
            for message in messages:
                self._after(message, request_id, cost_ms, message.offset not in failures)

        return ended

    async def close(self) -> None:
        """Send the waiting records."""
        await self._tracer.close()

    def _after(self, message: StoredMessage, request_id: str, cost_ms: int, success: bool) -> None:
        text = after_record(
            group=self._group,
            request_id=request_id,
            message_id=message.unique_id or message.id,
            cost_ms=cost_ms,
            success=success,
            keys=message.keys,
            context=SUCCESS if success else FAILED,
        )
        self._tracer.add(text, (message.unique_id or message.id, *message.keys))


def before_record(
    *,
    region: str | None,
    group: str,
    request_id: str,
    message_id: str,
    attempt: int,
    keys: Sequence[str],
) -> str:
    """The record of a delivery."""
    words = " ".join(keys) or None
    return record("SubBefore", wall_ms(), region, group, request_id, message_id, attempt, words)


def after_record(
    *,
    group: str,
    request_id: str,
    message_id: str,
    cost_ms: int,
    success: bool,
    keys: Sequence[str],
    context: int,
) -> str:
    """The record of the end of a delivery.

    Args:
        request_id: the same as in the record of the delivery.
        cost_ms: the duration.
        success: whether it was acknowledged.
        keys: the message's keys.
        context: 0 success, 1 timeout, 2 exception, 3 no result, 4 failure.
    """
    words = " ".join(keys) or None
    return record(
        "SubAfter", request_id, message_id, cost_ms, success, words, context, wall_ms(), group
    )
