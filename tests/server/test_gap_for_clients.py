"""The gap that a power cut leaves in the offsets of a queue, as clients see it."""

from __future__ import annotations

from pathlib import Path

import pytest

import coherer
from coherer._store import Draft, OsFiles, Store, StoreOptions
from coherer.testing import async_embedded_node
from tests.copies import copy_tree


class Unknown(OsFiles):
    """A system that does not say when it was started: each crash counts as a power cut."""

    def boot_id(self) -> bytes:
        return b""


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_readers_and_consumers_pass_over_it(tmp_path: Path, protocol: str) -> None:
    before = [b"%d" % number for number in range(10)]
    small = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    with Store.open(tmp_path / "before", small, files=Unknown(), now_ms=lambda: 1) as store:
        store.append([Draft("demo", 0, body, b"") for body in before])
        copy_tree(store.directory, tmp_path / "cut")
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
            assert found == [*before, b"after"]
