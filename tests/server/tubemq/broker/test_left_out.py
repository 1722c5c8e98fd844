"""Undeliverable messages: the consumer moves past them, and is told their offsets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from coherer._record import compression
from coherer._store import Draft, Store
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.delivery import MessageBatch
from tests.server.broker_harness import BrokerClient, bodies

BAD = Draft("demo", 0, b"no zlib", b"", sys_flag=compression.COMPRESSED)


def good(*numbers: int) -> list[Draft]:
    return [Draft("demo", 0, b"%d" % number, b"") for number in numbers]


def batch_of(answer: pb.GetMessageResponseB2C) -> MessageBatch:
    return MessageBatch(
        answer.SerializeToString(), topic="demo", broker="7", partition=0, exact_offsets=True
    )


def offsets(answer: pb.GetMessageResponseB2C) -> Sequence[int]:
    return batch_of(answer).offsets()


async def test_offsets_belong_to_messages(store: Store, client: BrokerClient) -> None:
    store.append([*good(0, 1), BAD, BAD, *good(4), BAD])
    client.register()
    answer = client.get(lastPackConsumed=False)
    batch = batch_of(answer)
    assert [(message.offset, message.body) for message in batch] == [
        (0, b"0"),
        (1, b"1"),
        (4, b"4"),
    ]
    assert (batch.left_out, batch.skipped) == ([range(2, 4), range(5, 6)], 3)
    assert (batch.offset, batch.next_offset, batch.delivered) == (0, 6, 3)
    assert list(batch.before(4).offsets()) == [0, 1]
    assert batch.before(3).left_out == [range(2, 3)]
    assert client.commit().currOffset == 6


async def test_answers_without_omissions_equal_javas(store: Store, client: BrokerClient) -> None:
    store.append(good(0, 1))
    client.register()
    answer = client.get()
    assert not answer.HasField("nextOffset")
    assert not answer.leftOut
    assert batch_of(answer).next_offset == 2


async def test_ranges_do_not_overlap(store: Store, client: BrokerClient) -> None:
    """The answers for [0, 7), with a gap, and for [7, 14)."""
    drafts = good(*range(14))
    drafts[2] = BAD
    store.append(drafts)
    seen: list[int] = []
    for start in (0, 7):
        client.register(currOffset=start)
        batch = batch_of(client.get(lastPackConsumed=False)).before(start + 7)
        seen += [int(message.body) for message in batch]
        assert [message.offset for message in batch] == [int(message.body) for message in batch]
        client.unregister(readStatus=1)
    assert seen == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]


async def test_a_damaged_message_does_not_stop_a_partition(
    store: Store, client: BrokerClient, caplog: pytest.LogCaptureFixture
) -> None:
    store.append([BAD])
    client.register()
    with caplog.at_level(logging.WARNING):
        first = client.get(lastPackConsumed=False)  # as a client without earlier messages
        assert bodies(first) == []
        held = client.post_get(lastPackConsumed=False)
        assert client.got(held) is None, "there are no messages, so the get is held"
        await client.send(data=b"behind")
    answer = client.got(held)
    assert answer is not None
    assert (bodies(answer), list(offsets(answer))) == ([b"behind"], [1])
    assert batch_of(first).left_out == [range(1)]
    assert caplog.text.count("left out") == 1
    assert "1 message (offset 0)" in caplog.text


async def test_many_damaged_messages_before_good_ones_are_skipped(
    store: Store, client: BrokerClient
) -> None:
    store.append([BAD] * 40_000)
    store.append(good(7))
    client.register()
    for _ in range(10):
        answer = client.get(lastPackConsumed=False)
        if bodies(answer):
            break
    assert (bodies(answer), list(offsets(answer))) == ([b"7"], [40_000])


async def test_large_inflated_bodies_come_one_by_one(store: Store, client: BrokerClient) -> None:
    large = compression.compress(bytes(10_000_000))
    drafts = [Draft("demo", 0, large, b"", sys_flag=compression.COMPRESSED)] * 4
    store.append([*drafts, *good(4)])
    client.register()
    sizes: list[int] = []
    places: list[int] = []
    while len(sizes) < 5:
        answer = client.get(lastPackConsumed=True)
        assert answer.ByteSize() < 28 << 20
        sizes += map(len, bodies(answer))
        places += offsets(answer)
    assert (sizes, places) == ([10_000_000] * 4 + [1], [0, 1, 2, 3, 4])


async def test_an_uncommitted_batch_is_read_again(store: Store, client: BrokerClient) -> None:
    """An empty answer in between must not make the next commit skip the message."""
    store.append(good(0))
    client.register()
    assert bodies(client.get(lastPackConsumed=False)) == [b"0"]
    assert bodies(client.get(lastPackConsumed=False)) == [b"0"]
    assert client.commit(lastPackConsumed=False).currOffset == 0
    assert bodies(client.get(lastPackConsumed=False)) == [b"0"]


async def test_filtered_consumers_are_told_of_omitted_messages(
    store: Store, client: BrokerClient
) -> None:
    await client.send(data=b"\0\0\0\x0b$msgType$=Ax", flag=1, msgType="A")
    store.append([Draft("demo", 0, b"no zlib", b"", tag_code=ord("A"), sys_flag=1)])
    client.register(filterCondStr=["A"])
    answer = client.get(lastPackConsumed=False)
    assert len(answer.messages) == 1
    assert list(answer.leftOut) == [1, 1]
