"""With sync flush, readers of every kind see durable messages only."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coherer._rules.common.origins import Origin
from coherer._server.core.core import Core
from coherer._store import Draft, DraftBatch, ReadStatus
from coherer.errors import StoreError


def seen(store: Any) -> tuple[object, ...]:
    """What the readers of a store find."""
    limits = {"max_bytes": 1 << 20, "max_count": 100}
    found = store.read("t", 0, 1, **limits)
    slices = store.read_slices("t", 0, 1, **limits)
    return (
        store.queue_range("t", 0),
        store.end_offset,
        len(found.records),
        found.status,
        slices is not None,
        len(store.entries("t", 0, 1, 10)),
        store.place_of("t", 0, 1) is not None,
        store.record_at(store.last_record) is not None,
        store.offset_at_time("t", 0, 0),
        len(store.by_key("t", "k", max_count=9)),
        len(store.read_raw(0, 1 << 20)),
        store.topics(),
        store.queues("u"),
    )


@pytest.mark.parametrize("how", ["flush", "flush_queues"])
def test_messages_are_shown_when_they_are_durable(harness: Any, how: str) -> None:
    store = harness.open(flush="sync")
    placed = store.append([harness.draft(0, key="k")])
    assert store.queue_range("t", 0) == (0, 0)
    store.flush()
    assert store.queue_range("t", 0) == (0, 1)
    store.append([harness.draft(1, key="k"), harness.draft(0, "u")])
    last = store.append([harness.draft(2, key="k")])[0]
    store.last_record = last.physical_offset
    size = placed[0].size_bytes
    assert seen(store) == (
        (0, 1), size, 0, ReadStatus.EMPTY, False, 0, False, False, 0, 1, size, ["t"], [],
    )  # fmt: skip
    assert store.written_offset > store.end_offset == store.durable_offset
    getattr(store, how)()
    end = store.written_offset
    assert seen(store) == (
        (0, 3), end, 2, ReadStatus.FOUND, True, 2, True, True, 0, 3, end, ["t", "u"], [0],
    )  # fmt: skip


def test_with_async_flush_messages_are_shown_at_once(harness: Any) -> None:
    store = harness.open()
    store.append([harness.draft(0, key="k")])
    assert store.queue_range("t", 0) == (0, 1)
    assert store.end_offset == store.written_offset > store.durable_offset


def test_hidden_messages_keep_their_offsets(harness: Any) -> None:
    """They are numbered behind each other, survive the process, and are shown in order."""
    store = harness.open(flush="sync")
    for number in range(50):
        columns = [f"t/0/{number};".encode()], [b""], [0], [0], [()]
        store.append([DraftBatch("t", 0, *columns) if number % 2 else harness.draft(number)])
        if number == 20:
            store.flush()
    assert store.queue_range("t", 0) == (0, 21)
    again = harness.open(harness.crash(), flush="sync")
    assert list(harness.labels(again)) == list(range(50))
    store.close()
    assert list(harness.labels(harness.open(flush="sync"))) == list(range(50))


def test_a_hidden_topic_can_be_deleted_and_created_again(harness: Any) -> None:
    store = harness.open(flush="sync")
    store.append([harness.draft(n) for n in range(5)])
    store.delete_topic("t")
    store.append([harness.draft(9)])
    assert store.queue_range("t", 0) == (0, 0)
    store.flush()
    assert harness.labels(store) == {0: "t/0/9"}


async def test_consumers_are_woken_when_messages_are_durable(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = harness.open(flush="sync")
    core = Core(store, lambda: harness.clock.ms)
    held = asyncio.Event()

    async def flush() -> int:
        await held.wait()
        return int(store.flush())

    monkeypatch.setattr(core.flusher, "flush", flush)
    events: list[object] = []
    core.on_arrival(lambda drafts, _: events.append((len(drafts), store.queue_range("t", 0)[1])))
    for wait in (True, False):
        core.appender.submit(
            [harness.draft(0), harness.draft(1)],
            lambda _, __, wait=wait: events.append(wait),
            origin=Origin.TUBEMQ_CLIENT,
            wait_durable=wait,
        )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert events == [False]
    held.set()
    await core.appender.close()
    assert events == [False, True, (4, 4)]
    await core.close()


async def test_a_failed_sync_shows_messages_with_the_next_one(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many files were open for a moment."""
    from coherer.errors import StoreFullError

    store = harness.open(flush="sync")
    core = Core(store, lambda: harness.clock.ms)
    arrived: list[Draft] = []
    core.on_arrival(lambda drafts, _: arrived.extend(drafts))
    real, failures = core.flusher.flush, [StoreFullError("Too many open files.")]

    async def flush() -> int:
        if failures:
            raise failures.pop()
        return await real()

    monkeypatch.setattr(core.flusher, "flush", flush)
    for number in range(2):
        core.appender.submit([harness.draft(number)], None, origin=Origin.TUBEMQ_CLIENT)
        await core.appender.close()
    assert [one.body[:5] for one in arrived] == [b"t/0/0", b"t/0/1"]
    await core.close()


async def test_a_send_after_the_last_flush_is_an_error(harness: Any) -> None:
    """The connections of a node close after its flusher."""
    core = Core(harness.open(flush="sync"), lambda: harness.clock.ms)
    await core.close()
    outcomes: list[object] = []
    core.appender.submit(
        [harness.draft(0)], lambda outcome, _: outcomes.append(outcome), origin=Origin.TUBEMQ_CLIENT
    )
    await core.appender.close()
    (outcome,) = outcomes
    assert isinstance(outcome, StoreError)
    assert "is stopping" in str(outcome)
