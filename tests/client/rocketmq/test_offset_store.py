from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from coherer._client.rocketmq.consuming.offsets import BrokerOffsets, LocalOffsets
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError, DisconnectedError

A, B = Queue("T", "b", 0), Queue("T", "b", 1)


class Brokers:
    def __init__(self) -> None:
        self.stored_: dict[Queue, int] = {}
        self.told: list[tuple[Queue, int]] = []
        self.away = False
        self.slow: asyncio.Event | None = None

    async def stored_offset(self, group: str, queue: Queue, *, exact: bool = True) -> int | None:
        del exact
        assert group == "g"
        return self.stored_.get(queue)

    async def store_offset(self, group: str, queue: Queue, offset: int) -> None:
        if self.away:
            raise DisconnectedError("away")
        self.told.append((queue, offset))
        if self.slow is not None:
            await self.slow.wait()
        self.stored_[queue] = offset


async def test_changed_offsets_are_stored() -> None:
    brokers = Brokers()
    store = BrokerOffsets("g", brokers)
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
    brokers.away = True
    with pytest.raises(DisconnectedError):
        await store.commit(A)
    store.forget(A)
    assert store.table.get(A) is None
    assert store.table.of_topic("T") == {B: 1}


async def test_one_update_of_a_queue_in_flight() -> None:
    """Java's broker deals with requests side by side: the older of two may be booked last."""
    brokers = Brokers()
    store = BrokerOffsets("g", brokers)
    brokers.slow = asyncio.Event()
    store.table.move(A, 1)
    first = asyncio.create_task(store.commit(A))
    for _ in range(5):
        await asyncio.sleep(0)
    store.table.move(A, 2)
    more = [asyncio.create_task(work) for work in (store.commit(A), store.persist())]
    first.cancel()  # who gave up waiting has still said it
    for _ in range(5):
        await asyncio.sleep(0)
    assert brokers.told == [(A, 1)]
    assert store.offset_for_pull(A) is None
    brokers.slow.set()
    await asyncio.gather(*more)
    assert brokers.told == [(A, 1), (A, 2)]
    assert store.offset_for_pull(A) is None  # no news


async def test_an_offset_in_a_pull_is_not_overtaken() -> None:
    brokers = Brokers()
    store = BrokerOffsets("g", brokers)
    store.table.move(A, 1)
    assert store.offset_for_pull(A) is None  # the broker has no table yet
    await store.persist()
    brokers.told.clear()
    store.table.move(A, 2)
    assert store.offset_for_pull(A) == 2
    store.table.move(A, 3)
    storing = asyncio.create_task(store.commit(A))
    for _ in range(5):
        await asyncio.sleep(0)
    assert brokers.told == []
    store.pull_answered(A)
    await storing
    assert brokers.told == [(A, 3)]
    store.table.move(A, 4)
    assert store.offset_for_pull(A) == 4
    store.pull_failed(A, lost=False)  # refused: nothing was booked
    await store.persist()
    store.table.move(A, 5)
    assert store.offset_for_pull(A) == 5
    store.pull_answered(A)
    assert store.offset_for_pull(A) is None
    store.pull_failed(A, lost=True)
    assert store.offset_for_pull(A) is None  # its table may be gone
    await store.persist()
    assert brokers.told == [(A, 3), (A, 4), (A, 5)]


async def test_the_first_updates_in_a_topic_are_sequential() -> None:
    """Java's broker may keep one of two that make its table at once."""
    brokers = Brokers()
    brokers.slow = asyncio.Event()
    store = BrokerOffsets("g", brokers)
    queues = [Queue("T", "b", number) for number in range(3)]
    for queue in queues:
        store.table.move(queue, 7)
    storing = asyncio.create_task(store.persist())
    for _ in range(9):
        await asyncio.sleep(0)
    assert len(brokers.told) == 1
    brokers.slow.set()
    await storing
    assert sorted(brokers.told) == [(queue, 7) for queue in queues]


async def test_the_format_of_javas_offset_file(tmp_path: Path) -> None:
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
    await store.commit(B)
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
    with pytest.raises(CohererError, match="offset file"):
        await LocalOffsets(path.parent).load()


async def test_a_revoked_queue_stays_in_the_file(tmp_path: Path) -> None:
    store = LocalOffsets(tmp_path)
    await store.load()
    store.table.move(A, 5)
    await store.persist()
    store.forget(A)
    store.table.move(B, 6)
    await store.persist()
    again = LocalOffsets(tmp_path)
    await again.load()
    assert (await again.read(A), await again.read(B)) == (5, 6)


async def test_newer_offsets_are_not_overwritten_by_a_slow_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, busy, write = threading.Event(), threading.Event(), Path.write_text

    def slow(path: Path, text: str, encoding: str) -> int:
        if not busy.is_set():
            busy.set()
            assert free.wait(10)
        return write(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", slow)
    store = LocalOffsets(tmp_path)
    await store.load()
    store.table.move(A, 5)
    first = asyncio.create_task(store.persist())
    assert await asyncio.to_thread(busy.wait, 10)
    store.table.move(A, 6)
    second = asyncio.create_task(store.persist())
    await asyncio.wait([second], timeout=0.05)
    free.set()
    await asyncio.gather(first, second)
    again = LocalOffsets(tmp_path)
    await again.load()
    assert await again.read(A) == 6
