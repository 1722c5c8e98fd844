"""What consumers of RocketMQ do, as scenarios that run against our node and against Java's.

Each gets a `Scenario`: a cluster, a topic of its own, and clients.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coherer._client.rocketmq.received import ReceivedBatch
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.subscription import Sql92
from coherer.errors import RefusedError, UsageError
from coherer.message import Message
from tests.client.rocket_scenario import WAIT_S, Scenario, stored_is, take, texts, until
from tests.client.rocket_sharing import SHARING


async def messages_are_delivered_once_and_offsets_are_kept(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client)
    receipts = await scenario.send(
        client, *"abcdef", tag="UA", keys=("k1", "k2"), properties={"p": "q"}
    )
    async with client.consumer(scenario.group, scenario.topic, start="earliest") as consumer:
        found = await take(consumer, 4)
        first = found[0]
        assert (first.tag, first.keys, dict(first.properties)) == ("UA", ("k1", "k2"), {"p": "q"})
        assert (first.attempt, first.topic, first.broker) == (0, scenario.topic, "broker-a")
        by_id = {receipt.id: receipt for receipt in receipts}
        assert by_id[first.id].unique_id == first.unique_id
        assert by_id[first.id].offset == first.offset
        await until(lambda: len(consumer.assignment) == 3)  # two, and the group's retry queue
    other = scenario.client()
    async with other.consumer(scenario.group, scenario.topic, start="earliest") as consumer:
        rest = await take(consumer, 2)
        assert sorted(texts(found + rest)) == list("abcdef")
        assert await consumer.receive(200) is None


async def a_batch_is_committed(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    await scenario.send(client, *"abc")
    options = {"start": "earliest", "batch_messages": 2}
    async with client.consumer(scenario.group, scenario.topic, **options) as consumer:
        async with asyncio.timeout(WAIT_S):
            first, second = await consumer.receive(), await consumer.receive()
        assert first is not None
        assert second is not None
        assert (first.bodies(), second.bodies()) == ([b"a", b"b"], [b"c"])
        queue = Queue(scenario.topic, "broker-a", 0)
        assert await consumer.commit(second) == {queue: 0}
        assert await consumer.commit(first) == {queue: 3}
        with pytest.raises(UsageError, match="before"):
            await consumer.commit(first)
        assert await stored_is(consumer, queue, 3)
        await scenario.send(client, "d")
        async with asyncio.timeout(WAIT_S):
            async for _ in consumer.batches():
                break
            again = await anext(consumer.batches())
        [message] = again
        assert (message.body, message.attempt) == (b"d", 0)
        assert await consumer.commit(again) == {queue: 4}


async def a_message_is_retried(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    [sent, _] = await scenario.send(client, "again", "fine", tag="UA", keys=("k",))
    async with client.consumer(
        scenario.group, {scenario.topic: "UA"}, start="earliest"
    ) as consumer:
        attempts: list[tuple[str, int]] = []
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                attempts.append((message.body.decode(), message.attempt))
                assert (message.topic, message.tag, message.keys) == (scenario.topic, "UA", ("k",))
                if message.body == b"again" and message.attempt < 2:
                    await message.retry(later=1)
                elif message.body == b"again":
                    assert message.unique_id == sent.unique_id
                    assert message.stored_properties["ORIGIN_MESSAGE_ID"] == sent.id
                    break
        assert attempts == [("again", 0), ("fine", 0), ("again", 1), ("again", 2)]


async def failed_messages_become_dead_letters(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    await scenario.send(client, "now", "limit", "fine")
    options = {"start": "earliest", "max_attempts": 2}
    async with client.consumer(scenario.group, scenario.topic, **options) as consumer:
        done: list[tuple[str, int]] = []
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                done.append((message.body.decode(), message.attempt))
                if message.body == b"now":
                    await message.dead_letter()
                elif message.body == b"limit":
                    await message.retry(later=1)
                    if message.attempt == 1:
                        break
        assert done == [("now", 0), ("limit", 0), ("fine", 0), ("limit", 1)]
        assert sorted(await scenario.dead(client, 2)) == ["limit", "now"]


async def a_failed_handler_gets_its_messages_again(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 2)
    await scenario.send(client, *"abcd", "bad")
    seen: list[tuple[str, int]] = []
    options = {"start": "earliest", "batch_messages": 1, "max_attempts": 1}

    async with client.consumer(scenario.group, scenario.topic, **options) as consumer:

        def handle(batch: ReceivedBatch) -> None:
            for message in batch:
                seen.append((message.body.decode(), message.attempt))
                if message.body == b"bad":
                    raise ValueError("bad")

        working = asyncio.create_task(consumer.run(handle, workers=3))
        assert await scenario.dead(client, 1) == ["bad"]
        await until(lambda: len(seen) == 5)
        await consumer.close()
        await working
    assert sorted(seen) == [("a", 0), ("b", 0), ("bad", 0), ("c", 0), ("d", 0)]


async def tags_and_sql_filter(scenario: Scenario) -> None:
    client, other = scenario.client(), scenario.client()
    await scenario.make(client, 2)
    async with client.producer(scenario.topic) as producer:
        for number in range(20):
            tag = ("UA", "AA", "DL")[number % 3]
            properties = {"number": str(number)}
            await producer.send(
                Message(scenario.topic, str(number).encode(), tag=tag, properties=properties)
            )
    wanted = {scenario.topic: ["UA", "DL"]}
    async with client.consumer(scenario.group, wanted, start="earliest") as consumer:
        found = await take(consumer, 13)
        assert sorted(int(text) for text in texts(found)) == [n for n in range(20) if n % 3 != 1]
        assert await consumer.receive(100) is None
        await until(lambda: sum(at.offset for at in consumer.progress.values()) == 20)
    sql = {scenario.topic: Sql92("number BETWEEN 5 AND 7 OR TAGS = 'DL' AND number > 15")}
    async with other.consumer(f"{scenario.group}s", sql, start="earliest") as consumer:
        found = await take(consumer, 4)
        assert sorted(int(text) for text in texts(found)) == [5, 6, 7, 17]
        assert await consumer.receive(100) is None
    third = scenario.client()
    with pytest.raises(RefusedError) as caught:
        await third.consumer(f"{scenario.group}t", {scenario.topic: Sql92("number >")}).start()
    assert caught.value.code == 23


async def order_is_kept_after_failures(scenario: Scenario) -> None:
    client, other = scenario.client(), scenario.client()
    await scenario.make(client, 4)
    async with client.producer(scenario.topic) as producer:
        for number in range(40):
            key = f"k{number % 5}"
            await producer.send(
                Message(scenario.topic, f"{key}:{number}".encode(), keys=(key,)), order_by=key
            )
    seen: dict[str, list[int]] = {}
    failed: set[str] = set()

    def handle(batch: ReceivedBatch) -> None:
        for message in batch:
            key, _, number = message.body.decode().partition(":")
            if int(number) % 11 == 7 and message.body.decode() not in failed:
                failed.add(message.body.decode())
                assert message.attempt == 0
                raise ValueError(number)
            seen.setdefault(key, []).append(int(number))
            message.ack()

    options: dict[str, Any] = {"start": "earliest", "orderly": True, "suspend_ms": 50}
    async with (
        client.consumer(scenario.group, scenario.topic, **options) as one,
        other.consumer(scenario.group, scenario.topic, **options) as two,
    ):
        working = [asyncio.create_task(each.run(handle, workers=3)) for each in (one, two)]
        await until(lambda: sum(map(len, seen.values())) >= 40)
        await until(lambda: one.assignment and two.assignment)
        for each in (one, two):
            await each.close()
        await asyncio.gather(*working)
    assert len(failed) == 3
    for numbers in seen.values():
        # Around a change of hands messages may come again, but never out of order.
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    assert sorted({number for numbers in seen.values() for number in numbers}) == list(range(40))


async def an_orderly_retry_pauses_the_queue(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    await scenario.send(client, *"abc")
    seen: list[tuple[str, int]] = []
    options: dict[str, Any] = {"orderly": True, "suspend_ms": 20, "max_attempts": 3}
    async with client.consumer(
        scenario.group, scenario.topic, start="earliest", **options
    ) as consumer:
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                seen.append((message.body.decode(), message.attempt))
                if message.body == b"b":
                    await message.retry()
                if message.body == b"c":
                    break
        assert seen == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 2)]
        assert await scenario.dead(client, 1) == ["b"]


async def an_orderly_message_with_one_attempt_is_delivered_once(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    await scenario.send(client, "bad", "fine")
    seen: list[tuple[str, int]] = []
    options: dict[str, Any] = {"orderly": True, "suspend_ms": 20, "max_attempts": 1}
    async with client.consumer(
        scenario.group, scenario.topic, start="earliest", **options
    ) as consumer:
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                seen.append((message.body.decode(), message.attempt))
                if message.body == b"fine":
                    break
                await message.retry()
        assert seen == [("bad", 0), ("fine", 0)]
        assert await scenario.dead(client, 1) == ["bad"]


SCENARIOS = [
    messages_are_delivered_once_and_offsets_are_kept,
    a_batch_is_committed,
    a_message_is_retried,
    failed_messages_become_dead_letters,
    a_failed_handler_gets_its_messages_again,
    tags_and_sql_filter,
    order_is_kept_after_failures,
    an_orderly_retry_pauses_the_queue,
    an_orderly_message_with_one_attempt_is_delivered_once,
    *SHARING,
]
