"""What RocketMQ can do, with {our, Java, Go} clients at {our, Java} name servers and brokers.

A case is a cluster, the language of who sends, and that of who receives. Java among itself is left
out, and so is Go at Java's servers: they show nothing about us.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.interop.peers.rocket_clients import Clients, Producer
from tests.interop.peers.rocket_site import RocketSite, wait_until

pytestmark = pytest.mark.interop

DELAY_MS = 1_000  # of level 1
BOTH = [("ours", "java"), ("java", "ours"), ("ours", "ours")]
CASES = [
    *(("ours", *pair) for pair in [*BOTH, ("java", "java")]),
    *(("ours", *pair) for pair in [("ours", "go"), ("go", "ours"), ("go", "go")]),
    *(("java", *pair) for pair in BOTH),
    *((mix, "ours", "java") for mix in ("java-names", "our-names")),
]


@dataclass
class Scenario:
    """Who plays, and under which names.

    Args:
        clients: makes them.
        sends: the language of who sends.
        receives: the language of who receives.
        topic: a topic of this test's own.
        repeats: whether the broker carries out two commits of a transaction, as Java's does.
    """

    clients: Clients
    sends: str
    receives: str
    topic: str
    repeats: bool


@pytest.fixture(params=CASES, ids="-".join)
async def scenario(rocket: RocketSite, request: pytest.FixtureRequest) -> AsyncIterator[Scenario]:
    kind, sends, receives = request.param
    if "go" in (sends, receives) and not rocket.has("go"):
        pytest.skip("no client in Go")
    word = uuid.uuid4().hex[:10]
    async with Clients(rocket, rocket.cluster(kind), f"g{word}") as clients:
        yield Scenario(clients, sends, receives, f"t{word}", kind in ("java", "our-names"))


async def test_every_way_of_sending(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    first = await producer.send(
        scenario.topic, "one", tag="red", keys=["k1", "k2"], properties={"a": "1", "b": "zwei"}
    )
    consumer = await scenario.clients.consumer(scenario.receives, {scenario.topic: "*"})
    await producer.send_many(scenario.topic, [f"many {number}" for number in range(100)])
    await producer.batch(scenario.topic, [f"batch {number}" for number in range(50)])
    await producer.oneway(scenario.topic, "away")
    await producer.send(scenario.topic, "long " * 4_000)
    found = await consumer.wait_for(153)
    expected = {f"many {number}" for number in range(100)}
    expected |= {f"batch {number}" for number in range(50)} | {"one", "away", "long " * 4_000}
    assert {one["body"] for one in found} == expected
    assert len(found) == len(expected)
    (one,) = [one for one in found if one["body"] == "one"]
    assert one["id"] == first["id"]
    assert (one["tag"], one["keys"], one["attempt"]) == ("red", ("k1", "k2"), 0)
    assert {"a": "1", "b": "zwei"}.items() <= one["properties"].items()
    assert (one["queue"], one["offset"]) == (first["queue"], first["offset"])


async def test_filters(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    for number in range(12):
        tag = ("red", "green", "blue")[number % 3]
        await producer.send(scenario.topic, f"{number}", tag=tag, properties={"n": f"{number}"})
    group = scenario.clients.groups
    tags = await scenario.clients.consumer(
        scenario.receives, {scenario.topic: "red || blue"}, group=f"{group}_tags"
    )
    sql = await scenario.clients.consumer(
        scenario.receives,
        {scenario.topic: {"sql": "n > 3 AND n <= 8 AND TAGS <> 'green'"}},
        group=f"{group}_sql",
    )
    await producer.send(scenario.topic, "last", tag="blue", properties={"n": "5"})
    found = await tags.wait_for(9)
    assert {one["body"] for one in found} == {"0", "2", "3", "5", "6", "8", "9", "11", "last"}
    found = await sql.wait_for(4)
    assert {one["body"] for one in found} == {"5", "6", "8", "last"}


async def test_retries_and_dead_letters(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    await producer.send(scenario.topic, "twice", properties={"FAIL_TIMES": "1"})
    await producer.send(scenario.topic, "never", properties={"FAIL_TIMES": "9"})
    group = f"{scenario.clients.groups}_readers"
    consumer = await scenario.clients.consumer(
        scenario.receives, {scenario.topic: "*"}, max_attempts=2
    )
    (found,) = await consumer.wait_for(1)
    assert (found["body"], found["attempt"], found["topic"]) == ("twice", 1, scenario.topic)
    failed = await consumer.wait_for(3, "failed")
    assert sorted((one["body"], one["attempt"]) for one in failed) == [
        ("never", 0),
        ("never", 1),
        ("twice", 0),
    ]
    dead = await scenario.clients.consumer(
        scenario.receives, {f"%DLQ%{group}": "*"}, group=f"{scenario.clients.groups}_dead"
    )
    failed = await dead.wait_for(1, "failed")
    assert failed[0]["body"] == "never"


async def test_delays(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    await producer.send(scenario.topic, "makes the topic")
    consumer = await scenario.clients.consumer(scenario.receives, {scenario.topic: "*"})
    await consumer.wait_for(1)
    await producer.send(scenario.topic, "late", delay_level=1, tag="red")
    await producer.send(scenario.topic, "now")
    found = {one["body"]: one for one in await consumer.wait_for(3)}
    assert set(found) == {"makes the topic", "now", "late"}
    late = found["late"]
    assert late["stored_ms"] >= late["born_ms"] + DELAY_MS
    assert late["tag"] == "red"


async def test_transactions(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    await producer.send(scenario.topic, "makes the topic")
    consumer = await scenario.clients.consumer(scenario.receives, {scenario.topic: "*"})
    await consumer.wait_for(1)
    await producer.transact(scenario.topic, "committed", "commit")
    await producer.transact(scenario.topic, "rolled back", "rollback")
    await producer.transact(scenario.topic, "checked, rolled back", "unknown", "rollback")
    await producer.transact(scenario.topic, "checked, committed", "unknown", "commit")
    wanted = {"makes the topic", "committed", "checked, committed"}
    bodies = consumer.bodies
    await asyncio.to_thread(wait_until, lambda: wanted <= {*bodies()}, state=bodies)
    assert {*bodies()} == wanted
    # A commit that is late on a busy machine is followed by another one, which answers a check.
    assert scenario.repeats or len(bodies()) == len(wanted)


async def test_order(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    for number in range(30):
        key = f"key{number % 3}"
        fails = {"FAIL_TIMES": "1"} if number == 4 else {}
        await producer.send(scenario.topic, f"{key} {number}", order_by=key, properties=fails)
    consumer = await scenario.clients.consumer(
        scenario.receives, {scenario.topic: "*"}, orderly=True
    )
    found = [one["body"].split() for one in await consumer.wait_for(30)]
    for key in ("key0", "key1", "key2"):
        numbers = [int(number) for name, number in found if name == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 10
    (failed,) = await consumer.wait_for(1, "failed")
    assert failed["body"] == "key1 4"


async def test_broadcast(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    await producer.send(scenario.topic, "before")
    consumers = [
        await scenario.clients.consumer(scenario.receives, {scenario.topic: "*"}, broadcast=True)
        for _ in range(2)
    ]
    await producer.send(scenario.topic, "after")
    for consumer in consumers:
        assert {one["body"] for one in await consumer.wait_for(2)} == {"before", "after"}


async def test_a_group_shares_and_takes_over(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    await producer.send(scenario.topic, "first")
    one = await scenario.clients.consumer(scenario.receives, {scenario.topic: "*"})
    await one.wait_for(1)
    other = await scenario.clients.consumer("java", {scenario.topic: "*"})
    sent = {"first"}
    while not other.bodies():
        await _send_20(producer, scenario.topic, sent)
    await one.close()
    await _send_20(producer, scenario.topic, sent)

    def missing() -> set[str]:
        return sent - {*one.bodies(), *other.bodies()}

    await asyncio.to_thread(wait_until, lambda: not missing(), state=missing)


async def _send_20(producer: Producer, topic: str, sent: set[str]) -> None:
    bodies = [f"{len(sent) + number}" for number in range(20)]
    await producer.send_many(topic, bodies)
    sent.update(bodies)


async def test_request_and_reply(scenario: Scenario) -> None:
    producer = await scenario.clients.producer(scenario.sends)
    await producer.send(scenario.topic, "makes the topic")
    replier = await scenario.clients.consumer(scenario.receives, {scenario.topic: "*"}, reply=True)
    await replier.wait_for(1)
    assert await producer.request(scenario.topic, "what?") == "re:what?"
