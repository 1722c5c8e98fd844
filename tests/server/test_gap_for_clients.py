"""The gap that a power cut leaves in the offsets of a queue, as clients see it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import coherer
from coherer._server.node.node import Node
from coherer._store import Draft, Store, StoreOptions
from coherer.testing import async_embedded_node
from tests.copies import copy_tree
from tests.power import Unknown


def cut_off(bodies: list[bytes], path: Path) -> None:
    """Store messages in 1970, one in each millisecond, and cut the power."""
    small = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    times = iter(range(1 << 20))
    with Store.open(path / "before", small, files=Unknown(), now_ms=lambda: next(times)) as store:
        for body in bodies:
            store.append([Draft("demo", 0, body, b"")])
        copy_tree(store.directory, path / "cut")


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_readers_and_consumers_pass_over_it(
    tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = [b"%d" % number for number in range(10)]
    cut_off(before, tmp_path)
    async with async_embedded_node(tmp_path / "cut", default_partitions=1) as node:
        node.create_topic("demo", 1)
        url = node.url if protocol == "tubemq" else node.rocketmq_url
        async with coherer.connect(url) as client, client.producer("demo") as producer:
            receipt = await producer.send(coherer.Message("demo", b"after"))
            assert receipt.offset is not None
            assert receipt.offset > 10
            [partition] = await client.partitions("demo")
            for start, columns in ((0, False), (100, False), (0, True), (100, True)):
                seen: dict[int | None, bytes] = {}
                options = {"columns": True} if columns and protocol == "tubemq" else {}
                async with client.reader(partition, start, **options) as reader:
                    while (batch := await reader.read()) is not None:
                        seen |= {one.offset: one.body for one in batch}
                    assert reader.left_out == 0
                    assert reader.gaps == [range(max(start, 10), receipt.offset)]
                assert seen == {**dict(enumerate(before[start:])), receipt.offset: b"after"}
            found: list[bytes] = []
            async with client.consumer("readers", "demo", start="earliest") as consumer:
                while len(found) < 11:
                    taken = await consumer.receive(timeout_ms=10_000)
                    assert taken is not None
                    found += taken.bodies()
                    await consumer.commit(taken)
                assert {one.left_out for one in consumer.progress.values()} == {0}
            assert found == [*before, b"after"]
            assert "cannot be delivered" not in caplog.text


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_who_reads_since_a_time_misses_nothing_before_it(
    tmp_path: Path, protocol: str
) -> None:
    cut_off([b"%d" % number for number in range(10)], tmp_path)
    async with async_embedded_node(tmp_path / "cut", default_partitions=1) as node:
        node.create_topic("demo", 1)
        stored = await store_times(node)
        url = node.url if protocol == "tubemq" else node.rocketmq_url
        async with coherer.connect(url) as client:
            [partition] = await client.partitions("demo")
            for ms in {*range(max(list(stored.values())[:10]) + 2), max(stored.values())}:
                wanted = min(offset for offset, at_ms in stored.items() if at_ms >= ms)
                time = datetime.fromtimestamp(ms / 1000, UTC)
                assert await client.offsets_since("demo", time) == {partition: wanted}
            later = datetime.now(UTC) + timedelta(hours=1)
            assert await client.offsets_since("demo", later) == {partition: max(stored) + 1}


async def store_times(node: Node) -> dict[int, int]:
    """Store one more message, and return the time of each by its offset."""
    found: dict[int, int] = {}
    async with coherer.rocketmq.connect(node.rocketmq_url) as client:
        async with client.producer("demo") as producer:
            await producer.send(coherer.Message("demo", b"after"))
        [queue] = await client.partitions("demo")
        async with client.reader(queue, 0) as reader:
            while (batch := await reader.read()) is not None:
                found |= {one.offset: one.stored_ms for one in batch if one.offset is not None}
    return found
