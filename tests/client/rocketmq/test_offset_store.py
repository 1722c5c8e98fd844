from __future__ import annotations

from pathlib import Path

import pytest

from coherer.client.rocketmq.offset_store import LocalOffsets, RemoteOffsets
from coherer.errors import CohererError, DisconnectedError
from coherer.rocketmq.names import Queue

A, B = Queue("T", "b", 0), Queue("T", "b", 1)


class Brokers:
    def __init__(self) -> None:
        self.stored_: dict[Queue, int] = {}
        self.told: list[tuple[Queue, int]] = []
        self.away = False
        self.heard: list[Queue] = []

    async def stored(self, group: str, queue: Queue) -> int | None:
        assert group == "g"
        return self.stored_.get(queue)

    async def store(self, group: str, queue: Queue, offset: int) -> None:
        if self.away:
            raise DisconnectedError("away")
        self.told.append((queue, offset))
        self.stored_[queue] = offset

    async def store_now(self, group: str, queue: Queue, offset: int) -> None:
        await self.store(group, queue, offset)
        self.heard.append(queue)


async def test_brokers_are_told_what_changed() -> None:
    brokers = Brokers()
    store = RemoteOffsets("g", brokers)
    await store.load()
    assert await store.read(A) is None
    store.table.move(A, 5)
    store.table.move(B, 1)
    await store.persist([A])
    assert brokers.told == [(A, 5)]
    await store.persist()
    await store.persist()
    assert brokers.told == [(A, 5), (B, 1)]
    store.table.move(A, 3)
    brokers.away = True
    await store.persist()
    brokers.away = False
    await store.persist()
    assert (await store.read(A), brokers.told[2:]) == (3, [(A, 3)])
    store.table.move(A, 4)
    await store.persist(wait=True)
    assert brokers.heard == [A]
    store.table.forget(A)
    assert store.table.get(A) is None
    assert store.table.of_topic("T") == {B: 1}


async def test_a_file_in_javas_form(tmp_path: Path) -> None:
    store = LocalOffsets(tmp_path / "10.0.0.1@DEFAULT" / "g")
    await store.load()
    assert await store.read(A) is None
    store.table.move(A, 5)
    await store.persist()
    path = tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
    assert path.read_text() == (
        '{\n\t"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5\n\t}\n}'
    )
    store.table.move(B, 2**40)
    await store.persist()
    await store.persist()
    again = LocalOffsets(path.parent)
    await again.load()
    assert (await again.read(A), await again.read(B)) == (5, 2**40)
    assert again.table.get(A) == 5
    path.write_bytes(b"{")
    older = LocalOffsets(path.parent)
    await older.load()
    assert (await older.read(A), await older.read(B)) == (5, None)
    path.with_name("offsets.json.bak").write_bytes(b"[")
    with pytest.raises(CohererError, match="offsets"):
        await LocalOffsets(path.parent).load()


async def test_a_queue_that_goes_stays_in_the_file(tmp_path: Path) -> None:
    store = LocalOffsets(tmp_path)
    await store.load()
    store.table.move(A, 5)
    await store.persist()
    store.table.forget(A)
    store.table.move(B, 6)
    await store.persist()
    again = LocalOffsets(tmp_path)
    await again.load()
    assert (await again.read(A), await again.read(B)) == (5, 6)
