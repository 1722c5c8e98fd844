"""Message trace of consumers: records of what was dealt with, and how (rocketmq 11).

For each message there is a record when it is handed out and one when it is dealt with, unless the
message says that its broker wants none (`TRACE_ON`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from typing import Final
from uuid import uuid4

from coherer._client.rocketmq.claimed import ClaimedBatch, Watch
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.producer import TRACE_TIMEOUT_MS, Producer
from coherer._client.rocketmq.producer_options import ProducerOptions
from coherer._client.rocketmq.tracing import Tracer, after_record, before_record
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import TRACE_TOPIC

SUCCESS: Final = 0
FAILED: Final = 4
"""What a record says of how it ended; Java's listeners know more ways."""

_numbers: Final = itertools.count(1)


class ConsumerTrace:
    """Traces what one consumer hands out.

    Args:
        instance: the way to the cluster.
        group: the consumer's group.
        trace: the topic of the records; True for the usual one.
    """

    def __init__(self, instance: Instance, group: str, trace: bool | str) -> None:
        self._group = group
        self._topic = trace if isinstance(trace, str) else TRACE_TOPIC
        name = f"_INNER_TRACE_PRODUCER-{group}-CONSUME-{next(_numbers)}"
        options = ProducerOptions(group=name, timeout_ms=TRACE_TIMEOUT_MS)
        self._tracer = Tracer(Producer(instance, (), options), self._topic)

    def begin(self, batch: ClaimedBatch) -> Watch | None:
        """A batch is handed out; returns what wants to know how it ended."""
        if batch.topic.startswith(self._topic):
            return None
        messages = [
            message
            for message in batch.messages(StoredMessage)
            if message.stored_properties.get("TRACE_ON", "true") != "false"
        ]
        request_id = uuid4().hex.upper()
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
        began = time.monotonic()

        def ended(failures: Collection[int]) -> None:
            cost_ms = int((time.monotonic() - began) * 1000)
            for message in messages:
                self._after(message, request_id, cost_ms, message.offset not in failures)

        return ended

    async def close(self) -> None:
        """Send what waits."""
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
