"""What groups of consumers do, and who reads without one, as scenarios of `rocket_consuming`.

See docs/protocol/rocketmq.md, sections 2.7 and 6.3.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coherer._client.rocketmq.start_position import Edge
from coherer._wire.rocketmq.bodies import ConsumeDirectlyResult, ConsumerStatus, RunningInfo
from coherer._wire.rocketmq.names import Queue
from coherer.message import Message
from tests.client.rocket_scenario import (
    WAIT_S,
    Scenario,
    ends_at,
    ids,
    more,
    stored_is,
    take,
    texts,
    until,
)


async def broadcast_consumers_get_all_messages(scenario: Scenario) -> None:
    client, other = scenario.client(), scenario.client()
    await scenario.make(client, 2)
    await scenario.send(client, *"abcd")
    with tempfile.TemporaryDirectory() as folder:
        here = {"start": "earliest", "model": "broadcast", "offsets": Path(folder, "1")}
        there = {**here, "offsets": Path(folder, "2")}
        async with (
            client.consumer(scenario.group, scenario.topic, **here) as one,
            other.consumer(scenario.group, scenario.topic, **there) as two,
        ):
            assert sorted(texts(await take(one, 4))) == list("abcd")
            assert sorted(texts(await take(two, 4))) == list("abcd")
            assert len(one.assignment) == len(two.assignment) == 2
        await scenario.send(client, "e")
        async with client.consumer(scenario.group, scenario.topic, **here) as again:
            [message] = await take(again, 1)
            assert message.body == b"e"
            await message.retry()  # is lost, with a warning
            assert await again.receive(100) is None


async def queues_are_rebalanced(scenario: Scenario) -> None:
    client, other = scenario.client(), scenario.client()
    await scenario.make(client, 4)
    moves: list[tuple[str, list[int]]] = []

    def note(word: str) -> Callable[[list[Queue]], None]:
        return lambda queues: moves.append(
            (word, [queue.id for queue in queues if queue.topic == scenario.topic])
        )

    options: dict[str, Any] = {"start": "earliest", "rebalance_ms": 60_000}
    async with client.consumer(
        scenario.group, scenario.topic, on_assigned=note("+"), on_revoked=note("-"), **options
    ) as one:
        await until(lambda: ids(one, scenario.topic) == [0, 1, 2, 3])
        async with other.consumer(scenario.group, scenario.topic, **options) as two:
            await until(lambda: len(ids(one, scenario.topic)) == len(ids(two, scenario.topic)) == 2)
            assert sorted(ids(one, scenario.topic) + ids(two, scenario.topic)) == [0, 1, 2, 3]
            await scenario.send(client, *"abcdefgh")
            found = await asyncio.gather(take(one, 4), take(two, 4))
            assert sorted(texts(found[0] + found[1])) == list("abcdefgh")
        await until(lambda: ids(one, scenario.topic) == [0, 1, 2, 3])
        assert await one.receive(100) is None
    words = [(word, numbers) for word, numbers in moves if numbers]
    assert [word for word, _ in words] == ["+", "-", "+"]
    assert words[0][1] == [0, 1, 2, 3]
    assert words[1][1] == words[2][1]


async def start_positions(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    await scenario.send(client, "old")
    passed = time.time() + 0.1
    await until(lambda: time.time() > passed)  # what is searched for is the nearest (section 6.3)
    await scenario.send(client, "new")
    queue = Queue(scenario.topic, "broker-a", 0)
    message: Any = None

    async def begins(start: Any, expected: str) -> None:
        nonlocal message
        member, group = scenario.client(), f"{scenario.group}{expected}{type(start).__name__}"
        async with member.consumer(group, scenario.topic, start=start) as consumer:
            [message] = await take(consumer, 1)
            assert message.body.decode() == expected

    await begins("earliest", "old")
    await begins({queue: 1}, "new")
    moment = datetime.fromtimestamp(message.stored_ms / 1000 - 0.001, UTC)  # just before "new"
    # A 4.x broker says of a group that it has never heard of that it stands at 0 (section 2.7).
    await begins(moment, "new")
    async with client.pull_consumer(f"{scenario.group}n") as puller:
        assert await puller.committed(queue) is None
    async with client.pull_consumer(f"{scenario.group}p", start=moment) as puller:
        await puller.assign([queue])
        assert await puller.offset_of(queue, moment) == await puller.seek(queue, moment) == 1
    member = scenario.client()
    async with member.consumer(
        f"{scenario.group}l", scenario.topic, start="always-latest"
    ) as consumer:
        await until(lambda: queue in consumer.assignment)
        await scenario.send(client, "last")
        [message] = await take(consumer, 1)
        assert message.body == b"last"


async def a_new_group_begins_at_the_end(scenario: Scenario) -> None:
    """Of a young topic, too; what is sent after the start is delivered, however soon."""
    sender = scenario.client()
    await scenario.make(sender, 2)
    wanted = {scenario.topic: ["UA"]}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "latest": (scenario.topic, {}),
        "orderly": (scenario.topic, {"orderly": True}),
        "tags": (wanted, {}),
        "mapping": (scenario.topic, {"start": {Queue("other", "broker-a", 0): 1}}),
        "always": (scenario.topic, {"start": "always-latest"}),
    }
    async with sender.producer(scenario.topic) as producer:

        async def both(body: str) -> None:
            for number in (0, 1):
                message = Message(scenario.topic, f"{body}{number}".encode(), tag="UA")
                await producer.send(message, queue=Queue(scenario.topic, "broker-a", number))
            await until(lambda: shown(body))

        sent: list[str] = []

        async def shown(body: str) -> bool:
            sent.append(body) if body not in sent else None
            ends = await sender.offsets(scenario.topic)
            return [end for _, end in ends.values()] == [len(sent)] * 2

        await both("history")
        for kind, (topics, options) in kinds.items():
            group = f"{scenario.group}{kind}"
            async with scenario.client().consumer(group, topics, **options) as consumer:
                await both(kind)
                assert sorted(texts(await take(consumer, 2))) == [f"{kind}0", f"{kind}1"]
                assert await consumer.receive(50) is None
        async with scenario.client().pull_consumer(
            f"{scenario.group}pull", scenario.topic
        ) as puller:
            await both("pull")
            found = [await puller.poll(20_000), await puller.poll(20_000)]
            bodies = [body for batch in found if batch is not None for body in batch.bodies()]
            assert sorted(bodies) == [b"pull0", b"pull1"]
        queue = Queue(scenario.topic, "broker-a", 0)
        async with scenario.client().pull_consumer(f"{scenario.group}assigned") as puller:
            await puller.assign([queue])
            assert puller.position(queue) == len(sent)
            assert await puller.committed(queue) is None


async def a_topic_created_later_is_read_from_its_beginning(scenario: Scenario) -> None:
    client, sender = scenario.client(), scenario.client()
    async with client.consumer(scenario.group, scenario.topic) as consumer:
        await scenario.make(sender, 1)
        await scenario.send(sender, "first")
        assert texts(await take(consumer, 1)) == ["first"]


async def a_group_keeps_its_start_position(scenario: Scenario) -> None:
    """Whoever takes a queue next begins where the first member did, not at the end of then."""
    sender = scenario.client()
    await scenario.make(sender, 2)
    await scenario.send(sender, "history", queue=0)
    for model in ("push", "pull"):
        group = f"{scenario.group}{model}"
        kind = "consumer" if model == "push" else "pull_consumer"
        async with getattr(scenario.client(), kind)(group, scenario.topic) as first:
            await until(lambda first=first: len(ids(first, scenario.topic)) == 2)
        await scenario.send(sender, f"between{model}", queue=0)
        async with scenario.client().consumer(group, scenario.topic) as second:
            assert texts(await take(second, 1)) == [f"between{model}"]
            assert await second.receive(50) is None


async def pause_and_resume(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 2)
    async with client.consumer(scenario.group, scenario.topic, start="earliest") as consumer:
        await until(lambda: len(ids(consumer, scenario.topic)) == 2)
        first = Queue(scenario.topic, "broker-a", 0)
        consumer.pause(first)
        assert consumer.paused == {first}
        await scenario.send(client, "a", queue=0)
        await scenario.send(client, "b", queue=1)
        assert texts(await take(consumer, 1)) == ["b"]
        assert await consumer.receive(100) is None
        consumer.resume()
        assert texts(await take(consumer, 1)) == ["a"]


async def requests_from_brokers(scenario: Scenario) -> None:
    client, admin = scenario.client(), scenario.client()
    await scenario.make(admin, 1)
    [receipt, _, _] = await scenario.send(admin, *"abc")
    queue = Queue(scenario.topic, "broker-a", 0)
    options = {"start": "earliest", "persist_ms": 100}
    async with client.consumer(scenario.group, scenario.topic, **options) as consumer:
        assert texts(await take(consumer, 3)) == list("abc")
        group = await admin.admin().groups.consumers(scenario.group)
        [own_id] = [member.id for member in group.members]
        info = await scenario.ask(
            admin, 307, consumerGroup=scenario.group, clientId=own_id, jstackEnable="true"
        )
        running = RunningInfo.decode(info.body)
        assert (info.code, running.mq_table[queue].commit_offset) == (0, 3)
        status = running.status_table[scenario.topic]
        assert (status.pull_tps, status.consume_ok_tps, status.consume_failed_msgs) == (
            3 / 60,
            3 / 60,
            0,
        )
        assert running.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {one.topic for one in running.subscription_set} >= {scenario.topic}
        assert running.jstack is not None
        assert "rebalance" in running.jstack or "Task" in running.jstack
        stands = await scenario.ask(admin, 223, topic=scenario.topic, group=scenario.group)
        assert stands.code == 0
        assert ConsumerStatus.decode(stands.body).consumer_table[own_id][queue] == 3
        for body, outcome in ((b"a", "CR_SUCCESS"), (b"a", "CR_LATER")):
            asked = asyncio.create_task(
                scenario.ask(
                    admin, 309, consumerGroup=scenario.group, clientId=own_id, msgId=receipt.id
                )
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
        await until(lambda: stored_is(consumer, queue, 3))
        reset = await scenario.ask(
            admin, 222, topic=scenario.topic, group=scenario.group, timestamp="0", isForce="true"
        )
        assert reset.code == 0
        assert texts(await take(consumer, 3)) == list("abc")


async def pull_consumers(scenario: Scenario) -> None:
    client, other = scenario.client(), scenario.client()
    await scenario.make(client, 1)
    await scenario.send(client, *"abcde")
    queue = Queue(scenario.topic, "broker-a", 0)
    options: dict[str, Any] = {"start": "earliest", "pull_messages": 2}
    async with client.pull_consumer(
        scenario.group, scenario.topic, auto_commit=False, **options
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
        assert await consumer.queues(scenario.topic) == [queue]
    async with other.pull_consumer(scenario.group, **options) as consumer:
        await consumer.assign([queue])
        batch = await consumer.poll(20_000)
        assert batch is not None
        assert batch.bodies() == [b"e"]  # where the group had committed
        await consumer.assign([])
        assert consumer.assignment == frozenset()
        assert await consumer.poll(50) is None


async def reading_a_range_is_exact(scenario: Scenario) -> None:
    client = scenario.client()
    await scenario.make(client, 1)
    async with client.producer(scenario.topic) as producer:
        await producer.send_batch([Message(scenario.topic, b"%d" % n) for n in range(200)])
    [queue] = await client.partitions(scenario.topic)
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
        await scenario.send(client, "more")
        await until(lambda: more(reader))


async def consumption_is_traced(scenario: Scenario) -> None:
    client, other = scenario.client(), scenario.client()
    await scenario.make(client, 1)
    trace = await scenario.make(client, 1, f"{scenario.topic}_trace")
    await scenario.send(client, "fine", "bad", keys=("k",))
    async with other.consumer(
        scenario.group,
        scenario.topic,
        start="earliest",
        trace=trace,
        batch_messages=1,
        max_attempts=1,
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
    assert {(line[3], line[6], line[7]) for line in before.values()} == {(scenario.group, "0", "k")}
    assert sorted((line[4], line[6], line[8]) for line in after.values()) == [
        ("false", "4", scenario.group),
        ("true", "0", scenario.group),
    ]


async def namespaces(scenario: Scenario) -> None:
    client, plain = scenario.client(namespace="team"), scenario.client()
    await scenario.make(plain, 1, f"team%{scenario.topic}")
    await scenario.send(client, "inside")
    async with client.consumer(scenario.group, scenario.topic, start="earliest") as consumer:
        assert consumer.group == f"team%{scenario.group}"
        async with asyncio.timeout(WAIT_S):
            async for message in consumer:
                assert (message.topic, message.body) == (scenario.topic, b"inside")
                if message.attempt:
                    break
                await message.retry(later=1)
    assert await plain.exists(f"%RETRY%team%{scenario.group}")


SHARING = [
    broadcast_consumers_get_all_messages,
    queues_are_rebalanced,
    start_positions,
    a_new_group_begins_at_the_end,
    a_topic_created_later_is_read_from_its_beginning,
    a_group_keeps_its_start_position,
    pause_and_resume,
    requests_from_brokers,
    pull_consumers,
    reading_a_range_is_exact,
    consumption_is_traced,
    namespaces,
]
