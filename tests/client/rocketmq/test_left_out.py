"""Messages that cannot be delivered: consumers and readers move past them, and say which."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.client.rocket_broker import PULL, ZERO, one, reading

pytestmark = pytest.mark.usefixtures("quick")


def damage(shelf: Any, *places: int) -> None:
    """Break the lengths in records."""
    for place in places:
        record = shelf.records[0][place]
        shelf.records[0][place] = record[:84] + b"\x7f\xff\xff\xff" + record[88:]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "cannot be delivered" in text]


async def test_a_consumer_gets_the_sound_messages(cluster, shelf, client, caplog) -> None:
    shelf.package = 4
    shelf.put(b"a", b"b", b"c", b"d")
    damage(shelf, 1)
    with caplog.at_level(logging.WARNING):
        async with reading(client) as consumer:
            batch = await one(consumer)
            assert [(message.offset, message.body) for message in batch] == [
                (0, b"a"),
                (2, b"c"),
                (3, b"d"),
            ]
            assert await consumer.commit(batch) == {ZERO: 4}
            assert consumer.progress[ZERO].left_out == 1
    assert len(told(caplog)) == 1
    assert "1 message (offset 1)" in told(caplog)[0]


@pytest.mark.parametrize("options", [{}, {"orderly": True}, {"batch_messages": 1}])
async def test_a_batch_without_sound_messages_is_skipped(
    cluster, shelf, client, caplog, options: dict[str, Any]
) -> None:
    shelf.put(b"a", b"b", b"c", b"d", b"e")
    damage(shelf, 0, 1, 3)
    with caplog.at_level(logging.WARNING):
        async with reading(client, **options) as consumer:
            seen: list[bytes] = []
            async with asyncio.timeout(5):
                async for message in consumer:
                    seen.append(message.body)
                    if message.body == b"e":
                        break
            assert seen == [b"c", b"e"]
            assert consumer.progress[ZERO].left_out == 3
    assert len(told(caplog)) == 2, "one line for each pull that left something out"


async def test_a_requeued_batch_is_reported_once(cluster, shelf, client, caplog) -> None:
    shelf.put(b"a", b"b")
    damage(shelf, 1)
    with caplog.at_level(logging.WARNING):
        async with reading(client) as consumer:
            async for _ in consumer.batches():
                break
            again = await anext(consumer.batches())
            assert again.bodies() == [b"a"]
            assert consumer.progress[ZERO].left_out == 1
    assert len(told(caplog)) == 1


async def test_a_filtered_consumer(cluster, shelf, client, caplog) -> None:
    shelf.put(b"a", b"b", TAGS="x")
    damage(shelf, 0)
    shelf.put(b"c", TAGS="x")
    with caplog.at_level(logging.WARNING):
        async with client.consumer("readers", {"demo": "x"}, start="earliest") as consumer:
            assert (await one(consumer)).bodies() == [b"b"]
            assert consumer.progress[ZERO].left_out == 1
    assert len(told(caplog)) == 1


async def test_a_pull_consumer(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b", b"c")
    damage(shelf, 0, 1)
    async with client.pull_consumer("readers", "demo", start="earliest") as consumer:
        batch = await consumer.poll(5_000)
        assert batch is not None
        assert batch.bodies() == [b"c"]
        assert consumer.position(ZERO) == 3


async def test_a_reader_counts_what_is_missing(cluster, shelf, client, caplog) -> None:
    shelf.put(*(b"%d" % number for number in range(7)))
    damage(shelf, 0, 3, 6)

    def pull(asked: Any) -> None:
        if asked.fields["queueOffset"] == "4":  # the broker has lost one as well
            asked.answer(20, "MESSAGE_WAS_REMOVING", shelf.head(5, 7))
        else:
            shelf.pull(asked)

    cluster.always(PULL, pull)
    with caplog.at_level(logging.WARNING):
        async with client.reader(ZERO, 0) as reader:
            found: list[int] = []
            while (batch := await reader.read()) is not None:
                found += batch.offsets()
            assert (found, reader.position, reader.left_out) == ([1, 2, 5], 7, 4)
    assert len(told(caplog)) == 3


async def test_a_search_by_time_ends_if_the_broker_answers_with_another_message(
    cluster, shelf, client
) -> None:
    """A broken broker always sends its first message, whose own offset is 0."""
    shelf.put(*(b"%d" % number for number in range(10)))
    first, pulled = shelf.records[0][0], 0

    def pull(asked: Any) -> None:
        nonlocal pulled
        pulled += 1
        offset = int(asked.fields["queueOffset"])
        if offset >= 10 or pulled > 100:
            asked.answer(19, "NO_NEW_MESSAGE", shelf.head(offset, 10))
        else:
            asked.answer(0, "FOUND", shelf.head(offset + 1, 10), first)

    cluster.always(PULL, pull)
    later = datetime.fromtimestamp(1, UTC)
    assert await client.offsets_since("demo", later) == {ZERO: 10}
    assert pulled < 100
