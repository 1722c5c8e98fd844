"""Questions about topics that disturb no group: which partitions there are, and what they hold.

The master tells the partitions to producers only, so the planner registers as one that never
sends. A broker tells the offsets of a partition to whom it gives the partition, so the planner
takes it for a moment, in a group of its own (`coherer_reader_…`) that nobody else is in, and gives
it back without having read or confirmed anything.

Only partitions that take messages are known: the master does not tell about others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from coherer.client.tubemq.cluster import Cluster, client_id
from coherer.client.tubemq.door import Door
from coherer.client.tubemq.partitions import partition_ids
from coherer.client.tubemq.publisher import Publisher
from coherer.errors import CohererError
from coherer.tubemq.names import Partition

_log = logging.getLogger(__name__)

READER_PREFIX: Final = "coherer_reader_"
"""Names of groups that exist for one reader only; what is stored for them may be forgotten."""


FRESH_MS: Final = 60_000
"""Tokens for brokers change every few minutes; older ones are asked for again."""


class Planner:
    """Knows what there is to read.

    Args:
        cluster: the way to the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._publisher = Publisher(cluster)
        self._starting = asyncio.Lock()
        self._name = f"{READER_PREFIX}{secrets.token_hex(6)}"
        self._slots: set[int] = set()

    async def partitions(self, topic: str) -> list[Partition]:
        """The partitions of a topic, sorted by broker and number.

        Raises:
            RefusedError: there are none.
            UnavailableError: no master could be reached.
        """
        publisher = await self._registered()
        if topic in publisher.topics:
            await publisher.beat()
        if topic not in publisher.infos:
            await publisher.publish([topic])
        return sorted(
            Partition(publisher.brokers[broker_id], topic, number)
            for broker_id, (partitions, stores) in publisher.infos[topic].brokers.items()
            if broker_id in publisher.brokers
            for number in partition_ids(partitions, stores)
        )

    async def offsets(self, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
        """The oldest offset and the one behind the newest, by broker id and partition.

        Raises:
            RefusedError: there is no such topic, or a broker refuses.
            UnavailableError: a server could not be reached.
        """
        partitions = await self.partitions(topic)
        slot = self.reserve()
        try:
            door = self.door(slot)
            ends = await asyncio.gather(*(_ends(door, one) for one in partitions))
        finally:
            self.release(slot)
        return {
            (str(partition.broker.id), partition.id): end
            for partition, end in zip(partitions, ends, strict=True)
        }

    async def ready(self) -> None:
        """Be known to the master, and know what it wants brokers to be shown.

        Raises:
            UnavailableError: no master could be reached.
            RefusedError: the master does not want us.
        """
        publisher = await self._registered()
        if publisher.silent_ms > FRESH_MS:
            await publisher.beat()

    def reserve(self) -> int:
        """A number for a reader that no other one has now; low numbers are used again."""
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        self._slots.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """The reader with this number is done."""
        self._slots.discard(slot)

    def door(self, slot: int) -> Door:
        """The way to brokers for the reader with this number."""
        group = f"{self._name}_{slot}"
        member = f"{group}_{client_id(self._publisher.local_host, 'Reader')}"
        return Door(self._cluster, member, group, self._publisher.passport, {})

    async def close(self) -> None:
        """Leave."""
        await self._publisher.stop()

    async def _registered(self) -> Publisher:
        async with self._starting:
            if not self._publisher.registered:
                await self._publisher.start(heartbeats=False)
        return self._publisher


async def _ends(door: Door, partition: Partition) -> tuple[int, int]:
    # Offset 0 is moved up to the oldest message by the broker.
    start = await door.take(partition, read_status=0, offset=0)
    try:
        await door.give_up(partition, consumed=False)
    except CohererError as error:
        _log.info("Giving back %s: %s", partition.key, error)
    return start.offset, start.max_offset
