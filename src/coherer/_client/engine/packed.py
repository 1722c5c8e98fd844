"""Sending batches that are encoded already, as Spark's sinks do: nothing is done per message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from coherer._record.batches import PackedMessages
from coherer.errors import CohererError
from coherer.message import Receipt

IN_FLIGHT: Final = 8
"""The most batches in flight: enough to keep a broker busy, and few enough that the receipt of the
last one arrives before its timeout."""

R_co = TypeVar("R_co", bound=Receipt, covariant=True)


class PackedProducer(Protocol[R_co]):
    """A producer of either protocol."""

    def check(self) -> None:
        """Raises an error if it cannot be used."""
        ...

    async def _send_packed(self, batch: PackedMessages) -> R_co:
        """Sends a batch and waits for its receipt."""
        ...


async def send_packed(
    producer: PackedProducer[R_co], batches: Sequence[PackedMessages]
) -> list[R_co | CohererError]:
    """Send encoded batches, in sequence to each partition.

    RocketMQ's brokers and Coherer's TubeMQ broker store all messages of a batch or none. Java's
    TubeMQ brokers get the messages one by one. Traces do not contain the messages.

    Args:
        producer: an open producer.
        batches: from `coherer._record.packing`.

    Returns:
        The receipt or the error of each batch. If a batch for a partition fails, later batches for
        the partition are not sent and have the same error.
    """
    lanes: dict[object, list[int]] = {}
    for number, batch in enumerate(batches):
        lane = number if batch.broker is None else (batch.topic, batch.broker, batch.partition)
        lanes.setdefault(lane, []).append(number)
    outcomes: dict[int, R_co | CohererError] = {}
    in_flight = asyncio.Semaphore(IN_FLIGHT)
    send = producer._send_packed  # pyright: ignore[reportPrivateUsage] - not for applications

    async def send_lane(numbers: Sequence[int]) -> None:
        error: CohererError | None = None
        for number in numbers:
            if error is None:
                try:
                    async with in_flight:
                        outcomes[number] = await send(batches[number])
                    continue
                except CohererError as failure:
                    error = failure
            outcomes[number] = error

    producer.check()
    await asyncio.gather(*map(send_lane, lanes.values()))
    return [outcomes[number] for number in range(len(batches))]
