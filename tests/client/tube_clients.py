"""Producers and consumers of the scripted TubeMQ cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coherer._client.tubemq.cluster import ClientOptions, Cluster
from coherer._client.tubemq.consumer import Consumer
from coherer._client.tubemq.fetching import ReceivedBatch
from coherer._client.tubemq.options import ConsumerOptions
from coherer._wire.tubemq.names import Partition
from coherer.message import Message
from tests.client.scripted_cluster import FakeCluster

GROUP = "readers"


def message(body: bytes = b"x", topic: str = "demo", **fields: Any) -> Message:
    return Message(topic, body, **fields)


def quick(fake: FakeCluster, **options: Any) -> Cluster:
    fields = {"timeout_ms": 2_000, "heartbeat_ms": 3_600_000} | options
    return Cluster(ClientOptions(addresses=(("127.0.0.1", fake.master.port),), **fields))


async def unknown(partition: Partition, at: object) -> int:
    """A client would ask its cluster."""
    raise AssertionError(partition, at)


def consumer_of(way: Cluster, topics: Any = "demo", **options: Any) -> Consumer:
    options = {"start": "earliest", "empty_ms": 5} | options
    return Consumer(way, GROUP, topics, ConsumerOptions(**options), find=unknown)


def by_key(offsets: Mapping[Partition, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {partition.key: ends for partition, ends in offsets.items()}


async def one(consumer: Consumer) -> ReceivedBatch:
    batch = await consumer.receive(2_000)
    assert batch is not None
    return batch


async def commit(consumer: Consumer, batch: ReceivedBatch) -> int:
    """Acknowledge and commit a batch; the group's new offset."""
    offsets = await consumer.commit(batch)
    [offset] = offsets.values()
    return offset


async def give_up(fake: FakeCluster, *partitions: Any) -> None:
    """The only member of the group gives up partitions."""
    [member] = fake.groups[GROUP].values()
    fake.instruct(GROUP, member.name, 20, *partitions)
    fake.balances = False
    await fake.until(lambda: not member.events)
