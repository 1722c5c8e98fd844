"""What consumers of RocketMQ do, as scenarios that run against our node and against Java's.

Each gets a `Place`: a cluster, a topic of its own, and clients.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from coherer.client import connect_rocketmq
from coherer.client.rocketmq.client import RocketClient
from coherer.client.rocketmq.consumer import Consumer
from coherer.client.rocketmq.received import ConsumedMessage, ReceivedBatch
from coherer.client.rocketmq.start import Edge
from coherer.errors import RefusedError, UsageError
from coherer.message import Message
from coherer.rocketmq.bodies import ConsumeDirectlyResult, ConsumerStatus, RunningInfo
from coherer.rocketmq.codes import RequestCode
from coherer.rocketmq.command import Command
from coherer.rocketmq.messages import RocketReceipt
from coherer.rocketmq.names import Queue
from coherer.rocketmq.subscription import Sql92

WAIT_S = 30.0


class Place:
    """A cluster, and names that no other scenario uses."""

    def __init__(self, url: str) -> None:
        word = uuid.uuid4().hex[:10]
        self.url = url
        self.topic, self.group = f"T{word}", f"g{word}"
        self.clients: list[RocketClient] = []

    def client(self, **options: Any) -> RocketClient:
        client = connect_rocketmq(self.url, **options)
        self.clients.append(client)
        return client

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))

    async def make(self, client: RocketClient, queues: int = 2, topic: str | None = None) -> str:
        """Make the topic, and wait until the name server has it."""
        name = topic or self.topic
        await client._instance.start()
        route = await client._instance.route("broker-a")
        link = await client._instance.link(route.brokers["broker-a"][0])
        number = str(queues)
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": number,
            "writeQueueNums": number,
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        await link.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, timeout_ms=5_000)
        await until(lambda: client.exists(name))
        return name

    async def ask(self, client: RocketClient, code: int, **fields: str) -> Command:
        """Ask the broker something, as an administrator."""
        link = await client._instance.link(client._instance.address("broker-a"))
        return await link.call(code, fields, timeout_ms=15_000)

    async def send(
        self, client: RocketClient, *bodies: str, queue: int | None = None, **more: Any
    ) -> list[RocketReceipt]:
        """Send messages, one after the other."""
        where = None if queue is None else Queue(self.topic, "broker-a", queue)
        async with client.producer() as producer:
            receipts = [
                await producer.send(Message(self.topic, body.encode(), **more), queue=where)
                for body in bodies
            ]
        await until(lambda: self._shown(client, receipts))
        return receipts

    async def _shown(self, client: RocketClient, receipts: list[RocketReceipt]) -> bool:
        """Java's brokers show a message a moment after they have taken it."""
        ends = await client.offsets(self.topic)
        return all(ends[one.broker, one.partition][1] > one.offset for one in receipts)

    async def dead(self, client: RocketClient, count: int) -> list[str]:
        """The dead letters of the group, when there are so many."""
        topic = f"%DLQ%{self.group}"
        await until(lambda: client.exists(topic))
        [queue] = await client.partitions(topic)
        found: list[str] = []
        async with asyncio.timeout(WAIT_S), client.reader(queue, 0, end=count) as reader:
            while len(found) < count:
                batch = await reader.read()
                if batch is None:
                    await asyncio.sleep(0.05)
                else:
                    found += [body.decode() for body in batch.bodies()]
        return found


@asynccontextmanager
async def place_at(url: str) -> AsyncIterator[Place]:
    place = Place(url)
    try:
        yield place
    finally:
        await place.close()


async def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds that another process does."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.02)


async def take(consumer: Consumer, count: int) -> list[ConsumedMessage]:
    """The next messages, confirmed but for the last."""
    found: list[ConsumedMessage] = []
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            found.append(message)
            if len(found) == count:
                message.ack()
                break
    return found


def texts(messages: Iterable[ConsumedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


# -- scenarios


async def messages_come_once_and_progress_stays(place: Place) -> None:
    client = place.client()
    await place.make(client)
    receipts = await place.send(
        client, *"abcdef", tag="UA", keys=("k1", "k2"), properties={"p": "q"}
    )
    async with client.consumer(place.group, place.topic, start="earliest") as consumer:
        found = await take(consumer, 4)
        first = found[0]
        assert (first.tag, first.keys, dict(first.properties)) == ("UA", ("k1", "k2"), {"p": "q"})
        assert (first.attempt, first.topic, first.broker) == (0, place.topic, "broker-a")
        by_id = {receipt.id: receipt for receipt in receipts}
        assert by_id[first.id].unique_id == first.unique_id
        assert by_id[first.id].offset == first.offset
        await until(lambda: len(consumer.assignment) == 3)  # two, and the group's retry queue
    other = place.client()
    async with other.consumer(place.group, place.topic, start="earliest") as consumer:
        rest = await take(consumer, 2)
        assert sorted(texts(found + rest)) == list("abcdef")
        assert await consumer.receive(200) is None


async def a_batch_is_confirmed_or_rejected(place: Place) -> None:
    client = place.client()
    await place.make(client, 1)
    await place.send(client, *"abc")
    options = {"start": "earliest", "batch_messages": 2}
    async with client.consumer(place.group, place.topic, **options) as consumer:
        async with asyncio.timeout(WAIT_S):
            first, second = await consumer.receive(), await consumer.receive()
        assert first is not None
        assert second is not None
        assert (first.bodies(), second.bodies()) == ([b"a", b"b"], [b"c"])
        assert await consumer.confirm(second) == 0
        assert await consumer.confirm(first) == 3
        for again in (consumer.confirm, consumer.reject):
            with pytest.raises(UsageError, match="already"):
                await again(first)
        queue = Queue(place.topic, "broker-a", 0)
        assert await consumer._holdings.door.stored(place.group, queue) == 3
        await place.send(client, "d")
        async with asyncio.timeout(WAIT_S):
            third = await consumer.receive()
        assert third is not None
        consumer.put_back(third)
        async with asyncio.timeout(WAIT_S):
            again_ = await consumer.receive()
        assert again_ is not None
        [message] = again_
        assert (message.body, message.attempt) == (b"d", 0)
        assert await consumer.confirm(again_) == 4


async def a_message_comes_again_later(place: Place) -> None:
    client = place.client()
    await place.make(client, 1)
    [sent, _] = await place.send(client, "again", "fine", tag="UA", keys=("k",))
    async with client.consumer(place.group, {place.topic: "UA"}, start="earliest") as consumer:
        attempts: list[tuple[str, int]] = []
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                attempts.append((message.body.decode(), message.attempt))
                assert (message.topic, message.tag, message.keys) == (place.topic, "UA", ("k",))
                if message.body == b"again" and message.attempt < 2:
                    await message.retry(later=1)
                elif message.body == b"again":
                    assert message.unique_id == sent.unique_id
                    assert message.stored_properties["ORIGIN_MESSAGE_ID"] == sent.id
                    break
        assert attempts == [("again", 0), ("fine", 0), ("again", 1), ("again", 2)]


async def hopeless_messages_become_dead_letters(place: Place) -> None:
    client = place.client()
    await place.make(client, 1)
    await place.send(client, "now", "limit", "fine")
    options = {"start": "earliest", "max_attempts": 1}
    async with client.consumer(place.group, place.topic, **options) as consumer:
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
        assert sorted(await place.dead(client, 2)) == ["limit", "now"]


async def a_handler_that_fails_gets_its_messages_again(place: Place) -> None:
    client = place.client()
    await place.make(client, 2)
    await place.send(client, *"abcd", "bad")
    seen: list[tuple[str, int]] = []
    options = {"start": "earliest", "batch_messages": 1, "max_attempts": 0}

    async with client.consumer(place.group, place.topic, **options) as consumer:

        def handle(batch: ReceivedBatch) -> None:
            for message in batch:
                seen.append((message.body.decode(), message.attempt))
                if message.body == b"bad":
                    raise ValueError("bad")

        working = asyncio.create_task(consumer.run(handle, workers=3))
        assert await place.dead(client, 1) == ["bad"]
        await until(lambda: len(seen) == 5)
        await consumer.close()
        await working
    assert sorted(seen) == [("a", 0), ("b", 0), ("bad", 0), ("c", 0), ("d", 0)]


async def tags_and_sql_filter(place: Place) -> None:
    client, other = place.client(), place.client()
    await place.make(client, 2)
    async with client.producer(place.topic) as producer:
        for number in range(20):
            tag = ("UA", "AA", "DL")[number % 3]
            properties = {"number": str(number)}
            await producer.send(
                Message(place.topic, str(number).encode(), tag=tag, properties=properties)
            )
    wanted = {place.topic: ["UA", "DL"]}
    async with client.consumer(place.group, wanted, start="earliest") as consumer:
        found = await take(consumer, 13)
        assert sorted(int(text) for text in texts(found)) == [n for n in range(20) if n % 3 != 1]
        assert await consumer.receive(100) is None
        await until(lambda: sum(at.offset for at in consumer.progress.values()) == 20)
    sql = {place.topic: Sql92("number BETWEEN 5 AND 7 OR TAGS = 'DL' AND number > 15")}
    async with other.consumer(f"{place.group}s", sql, start="earliest") as consumer:
        found = await take(consumer, 4)
        assert sorted(int(text) for text in texts(found)) == [5, 6, 7, 17]
        assert await consumer.receive(100) is None
    third = place.client()
    with pytest.raises(RefusedError) as caught:
        await third.consumer(f"{place.group}t", {place.topic: Sql92("number >")}).start()
    assert caught.value.code == 23


async def order_is_kept_whatever_fails(place: Place) -> None:
    client, other = place.client(), place.client()
    await place.make(client, 4)
    async with client.producer(place.topic) as producer:
        for number in range(40):
            key = f"k{number % 5}"
            await producer.send(
                Message(place.topic, f"{key}:{number}".encode(), keys=(key,)), order_by=key
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
        client.consumer(place.group, place.topic, **options) as one,
        other.consumer(place.group, place.topic, **options) as two,
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


async def in_order_a_message_that_is_wanted_again_stops_its_queue(place: Place) -> None:
    client = place.client()
    await place.make(client, 1)
    await place.send(client, *"abc")
    seen: list[tuple[str, int]] = []
    options: dict[str, Any] = {"orderly": True, "suspend_ms": 20, "max_attempts": 2}
    async with client.consumer(place.group, place.topic, start="earliest", **options) as consumer:
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                seen.append((message.body.decode(), message.attempt))
                if message.body == b"b":
                    await message.retry()
                if message.body == b"c":
                    break
        assert seen == [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 2)]
        assert await place.dead(client, 1) == ["b"]


async def in_a_broadcast_everybody_gets_everything(place: Place) -> None:
    client, other = place.client(), place.client()
    await place.make(client, 2)
    await place.send(client, *"abcd")
    with tempfile.TemporaryDirectory() as folder:
        here = {"start": "earliest", "model": "broadcast", "offsets": Path(folder, "1")}
        there = {**here, "offsets": Path(folder, "2")}
        async with (
            client.consumer(place.group, place.topic, **here) as one,
            other.consumer(place.group, place.topic, **there) as two,
        ):
            assert sorted(texts(await take(one, 4))) == list("abcd")
            assert sorted(texts(await take(two, 4))) == list("abcd")
            assert len(one.assignment) == len(two.assignment) == 2
        await place.send(client, "e")
        async with client.consumer(place.group, place.topic, **here) as again:
            [message] = await take(again, 1)
            assert message.body == b"e"
            await message.retry()  # is lost, with a warning
            assert await again.receive(100) is None


async def queues_move_when_members_come_and_go(place: Place) -> None:
    client, other = place.client(), place.client()
    await place.make(client, 4)
    moves: list[tuple[str, list[int]]] = []

    def note(word: str) -> Callable[[list[Queue]], None]:
        return lambda queues: moves.append(
            (word, [queue.id for queue in queues if queue.topic == place.topic])
        )

    options: dict[str, Any] = {"start": "earliest", "rebalance_ms": 60_000}
    async with client.consumer(
        place.group, place.topic, on_assigned=note("+"), on_revoked=note("-"), **options
    ) as one:
        await until(lambda: ids(one, place.topic) == [0, 1, 2, 3])
        async with other.consumer(place.group, place.topic, **options) as two:
            await until(lambda: len(ids(one, place.topic)) == len(ids(two, place.topic)) == 2)
            assert sorted(ids(one, place.topic) + ids(two, place.topic)) == [0, 1, 2, 3]
            await place.send(client, *"abcdefgh")
            found = await asyncio.gather(take(one, 4), take(two, 4))
            assert sorted(texts(found[0] + found[1])) == list("abcdefgh")
        await until(lambda: ids(one, place.topic) == [0, 1, 2, 3])
        assert await one.receive(100) is None
    words = [(word, numbers) for word, numbers in moves if numbers]
    assert [word for word, _ in words] == ["+", "-", "+"]
    assert words[0][1] == [0, 1, 2, 3]
    assert words[1][1] == words[2][1]


def ids(consumer: Any, topic: str) -> list[int]:
    return sorted(queue.id for queue in consumer.assignment if queue.topic == topic)


async def it_begins_where_it_is_told(place: Place) -> None:
    client = place.client()
    await place.make(client, 1)
    await place.send(client, "old")
    passed = time.time() + 0.1
    await until(lambda: time.time() > passed)  # what is searched for is the nearest (6.3)
    moment = datetime.now(UTC)
    await place.send(client, "new")
    queue = Queue(place.topic, "broker-a", 0)
    starts: list[tuple[Any, str]] = [("earliest", "old"), ({queue: 1}, "new")]
    for number, (start, expected) in enumerate(starts):
        member = place.client()
        async with member.consumer(f"{place.group}{number}", place.topic, start=start) as consumer:
            [message] = await take(consumer, 1)
            assert message.body.decode() == expected
    # A group that the broker has never heard of stands at 0 there (2.7), whatever its start.
    assert await client._door.stored(f"{place.group}n", queue) == 0
    async with client.pull_consumer(f"{place.group}p", start=moment) as puller:
        await puller.assign([queue])
        assert await puller.offset_of(queue, moment) == await puller.seek(queue, moment) == 1
    member = place.client()
    async with member.consumer(f"{place.group}l", place.topic, start="always-latest") as consumer:
        await until(lambda: queue in consumer.assignment)
        await place.send(client, "last")
        [message] = await take(consumer, 1)
        assert message.body == b"last"


async def pausing_holds_back(place: Place) -> None:
    client = place.client()
    await place.make(client, 2)
    async with client.consumer(place.group, place.topic, start="earliest") as consumer:
        await until(lambda: len(ids(consumer, place.topic)) == 2)
        first = Queue(place.topic, "broker-a", 0)
        consumer.pause(first)
        assert consumer.paused == {first}
        await place.send(client, "a", queue=0)
        await place.send(client, "b", queue=1)
        assert texts(await take(consumer, 1)) == ["b"]
        assert await consumer.receive(100) is None
        consumer.resume()
        assert texts(await take(consumer, 1)) == ["a"]


async def brokers_ask_and_are_answered(place: Place) -> None:
    client, admin = place.client(), place.client()
    await place.make(admin, 1)
    [receipt, _, _] = await place.send(admin, *"abc")
    queue = Queue(place.topic, "broker-a", 0)
    async with client.consumer(place.group, place.topic, start="earliest") as consumer:
        assert texts(await take(consumer, 3)) == list("abc")
        own_id = client._instance.client_id
        info = await place.ask(
            admin, 307, consumerGroup=place.group, clientId=own_id, jstackEnable="true"
        )
        running = RunningInfo.decode(info.body)
        assert (info.code, running.mq_table[queue].commit_offset) == (0, 3)
        status = running.status_table[place.topic]
        assert (status.pull_tps, status.consume_ok_tps, status.consume_failed_msgs) == (
            3 / 60,
            3 / 60,
            0,
        )
        assert running.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {one.topic for one in running.subscription_set} >= {place.topic}
        assert running.jstack is not None
        assert "rebalance" in running.jstack or "Task" in running.jstack
        stands = await place.ask(admin, 223, topic=place.topic, group=place.group)
        assert stands.code == 0
        assert ConsumerStatus.decode(stands.body).consumer_table[own_id][queue] == 3
        for body, outcome in ((b"a", "CR_SUCCESS"), (b"a", "CR_LATER")):
            asked = asyncio.create_task(
                place.ask(admin, 309, consumerGroup=place.group, clientId=own_id, msgId=receipt.id)
            )
            async with asyncio.timeout(WAIT_S):
                batch = await consumer.receive()
            assert batch is not None
            [message] = batch
            assert (message.body, message.id) == (body, receipt.id)
            if outcome == "CR_SUCCESS":
                message.ack()
            else:
                await message.retry()
            answer = await asked
            assert (answer.code, ConsumeDirectlyResult.decode(answer.body).consume_result) == (
                0,
                outcome,
            )
        await consumer._holdings.persist()
        await until(lambda: stored_is(consumer, queue, 3))
        reset = await place.ask(
            admin, 222, topic=place.topic, group=place.group, timestamp="0", isForce="true"
        )
        assert reset.code == 0
        assert texts(await take(consumer, 3)) == list("abc")


async def stored_is(consumer: Consumer, queue: Queue, offset: int) -> bool:
    return await consumer._holdings.door.stored(consumer.group, queue) == offset


async def pulling_is_sharing_or_going_anywhere(place: Place) -> None:
    client, other = place.client(), place.client()
    await place.make(client, 1)
    await place.send(client, *"abcde")
    queue = Queue(place.topic, "broker-a", 0)
    options: dict[str, Any] = {"start": "earliest", "pull_messages": 2}
    async with client.pull_consumer(
        place.group, place.topic, auto_commit=False, **options
    ) as consumer:
        await consumer.wait_assigned(10_000)
        got: list[bytes] = []
        while len(got) < 4:
            batch = await consumer.poll(20_000)
            assert batch is not None
            got += batch.bodies()
        assert got == [b"a", b"b", b"c", b"d"]
        assert consumer.position(queue) >= 4
        assert await consumer.commit() == {queue: 4}
        assert await consumer.committed(queue) == 4
        last = await consumer.poll(20_000)
        assert last is not None
        assert last.bodies() == [b"e"]
        assert await consumer.seek(queue, 2) == 2
        batch = await consumer.poll(20_000)
        assert batch is not None
        assert batch.bodies() == [b"c", b"d"]
        assert await consumer.seek(queue, Edge.END) == 5
        assert await consumer.poll(50) is None
        assert await consumer.queues(place.topic) == [queue]
    async with other.pull_consumer(place.group, **options) as consumer:
        await consumer.assign([queue])
        batch = await consumer.poll(20_000)
        assert batch is not None
        assert batch.bodies() == [b"e"]  # where the group had committed
        await consumer.assign([])
        assert consumer.assignment == frozenset()
        assert await consumer.poll(50) is None


async def reading_a_range_is_exact(place: Place) -> None:
    client = place.client()
    await place.make(client, 1)
    async with client.producer(place.topic) as producer:
        await producer.send_batch([Message(place.topic, b"%d" % n) for n in range(200)])
    [queue] = await client.partitions(place.topic)
    await until(lambda: ends_at(client, queue, 200))  # Java's broker shows them a little later
    async with client.reader(queue, 7, end=180) as reader:
        found: list[int] = []
        while (batch := await reader.read()) is not None:
            assert batch.offsets() == [int(body) for body in batch.bodies()]
            found += batch.offsets()
            assert reader.position == found[-1] + 1
        assert (found, reader.position, reader.exact) == (list(range(7, 180)), 180, True)
    async with client.reader(queue, 190) as reader:
        assert reader.end == 200
        batch = await reader.read()
        assert batch is not None
        assert batch.offsets() == list(range(190, 200))
        assert await reader.read() is None
    async with client.reader(queue, 200, end=300) as reader:
        assert await reader.read() is None
        await place.send(client, "more")
        await until(lambda: more(reader))


async def dealings_are_traced(place: Place) -> None:
    client, other = place.client(), place.client()
    await place.make(client, 1)
    trace = await place.make(client, 1, f"{place.topic}_trace")
    await place.send(client, "fine", "bad", keys=("k",))
    async with other.consumer(
        place.group, place.topic, start="earliest", trace=trace, batch_messages=1, max_attempts=0
    ) as consumer:
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                if message.body == b"bad":
                    await message.retry()
                    break
    [queue] = await client.partitions(trace)
    lines: list[list[str]] = []
    async with asyncio.timeout(WAIT_S), client.reader(queue, 0, end=1_000) as reader:
        while len(lines) < 4:
            batch = await reader.read()
            for body in batch.bodies() if batch is not None else ():
                lines += [line.split("\x01") for line in body.decode().split("\x02") if line]
    before = {line[5]: line for line in lines if line[0] == "SubBefore"}
    after = {line[2]: line for line in lines if line[0] == "SubAfter"}
    assert before.keys() == after.keys()
    assert {(line[3], line[6], line[7]) for line in before.values()} == {(place.group, "0", "k")}
    assert sorted((line[4], line[6], line[8]) for line in after.values()) == [
        ("false", "4", place.group),
        ("true", "0", place.group),
    ]


async def names_are_in_a_namespace(place: Place) -> None:
    client, plain = place.client(namespace="team"), place.client()
    await place.make(plain, 1, f"team%{place.topic}")
    await place.send(client, "inside")
    async with client.consumer(place.group, place.topic, start="earliest") as consumer:
        assert consumer.group == f"team%{place.group}"
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                assert (message.topic, message.body) == (place.topic, b"inside")
                if message.attempt:
                    break
                await message.retry(later=1)
    assert await plain.exists(f"%RETRY%team%{place.group}")


async def ends_at(client: RocketClient, queue: Queue, offset: int) -> bool:
    return (await client.offsets(queue.topic))[queue.broker, queue.id][1] == offset


async def more(reader: Any) -> bool:
    batch = await reader.read()
    return batch is not None and batch.bodies() == [b"more"]


SCENARIOS = [
    messages_come_once_and_progress_stays,
    a_batch_is_confirmed_or_rejected,
    a_message_comes_again_later,
    hopeless_messages_become_dead_letters,
    a_handler_that_fails_gets_its_messages_again,
    tags_and_sql_filter,
    order_is_kept_whatever_fails,
    in_order_a_message_that_is_wanted_again_stops_its_queue,
    in_a_broadcast_everybody_gets_everything,
    queues_move_when_members_come_and_go,
    it_begins_where_it_is_told,
    pausing_holds_back,
    brokers_ask_and_are_answered,
    pulling_is_sharing_or_going_anywhere,
    reading_a_range_is_exact,
    dealings_are_traced,
    names_are_in_a_namespace,
]
