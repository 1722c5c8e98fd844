"""Node's and C++'s clients of RocketMQ at our node, with our client beside them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from tests.interop.peers.rocket_clients import Clients
from tests.interop.peers.rocket_site import RocketSite

pytestmark = pytest.mark.interop


LANGUAGES = ["node", "cpp"]


@pytest.fixture(params=LANGUAGES)
def language(rocket: RocketSite, request: pytest.FixtureRequest) -> str:
    """A client in another language; what it needs is installed at first use."""
    name: str = request.param
    if not rocket.has(name):
        pytest.skip(f"no client in {name}")
    return name


@pytest.fixture
def languages(rocket: RocketSite) -> list[str]:
    """Those that are here."""
    found = [name for name in LANGUAGES if rocket.has(name)]
    if not found:
        pytest.skip("no client in another language")
    return found


@pytest.fixture
async def clients(rocket: RocketSite) -> AsyncIterator[Clients]:
    """Makes clients at our node."""
    async with Clients(rocket, rocket.cluster("ours"), f"g{uuid.uuid4().hex[:10]}") as clients:
        yield clients


async def test_it_sends_to_us(clients: Clients, language: str) -> None:
    topic = f"t{uuid.uuid4().hex[:10]}"
    producer = await clients.producer(language)
    ours = await clients.producer("ours")
    await ours.send(topic, "makes the topic")
    consumer = await clients.consumer("ours", {topic: "*"})
    await consumer.wait_for(1)
    for number in range(20):
        await producer.send(
            topic, f"{number}", tag="red", keys=[f"k{number}"], properties={"n": f"{number}"}
        )
    found = (await consumer.wait_for(21))[1:]
    assert {one["body"] for one in found} == {f"{number}" for number in range(20)}
    for one in found:
        assert (one["tag"], one["keys"]) == ("red", (f"k{one['body']}",))
        assert one["properties"]["n"] == one["body"]


async def test_they_receive_from_us(
    rocket: RocketSite, clients: Clients, languages: list[str]
) -> None:
    """All at the same time: what failed comes again after ten seconds."""
    await asyncio.gather(*(receives_from_us(clients, language) for language in languages))


async def receives_from_us(clients: Clients, language: str) -> None:
    topic = f"t{uuid.uuid4().hex[:10]}"
    ours = await clients.producer("ours")
    await ours.send(topic, "first", tag="red", keys=["k1", "k2"])
    await ours.send(topic, "not wanted", tag="green")
    group = f"{clients.groups}_{language}"
    consumer = await clients.consumer(language, {topic: "red || blue"}, group=group)
    await ours.send_many(topic, ["without a tag"])
    await ours.send(topic, "long " * 2_000, tag="blue")
    await consumer.wait_for(2)  # C++'s client can lose what fails while it is still starting
    await ours.send(topic, "again", tag="blue", properties={"FAIL_TIMES": "1"})
    found = await consumer.wait_for(3)
    by_body = {one["body"]: one for one in found}
    assert set(by_body) == {"first", "long " * 2_000, "again"}
    assert by_body["first"]["keys"] == ("k1", "k2")
    assert by_body["again"]["attempt"] == 1


async def test_cpp_in_order_and_in_batches(rocket: RocketSite, clients: Clients) -> None:
    topic = f"t{uuid.uuid4().hex[:10]}"
    ours = await clients.producer("ours")
    await ours.send(topic, "makes the topic")
    producer = await clients.producer("cpp")
    for number in range(30):
        await producer.send(topic, f"{number % 3} {number}", order_by=number % 3)
    await producer.batch(topic, [f"batch {number}" for number in range(10)])
    orderly = await clients.consumer("cpp", {topic: "*"}, orderly=True)
    consumer = await clients.consumer("ours", {topic: "*"}, group=f"{clients.groups}_ours")
    for one in (orderly, consumer):
        found = [message["body"] for message in await one.wait_for(41)]
        for key in range(3):
            numbers = [int(body.split()[1]) for body in found if body.startswith(f"{key} ")]
            assert numbers == list(range(key, 30, 3))
        assert {f"batch {number}" for number in range(10)} < set(found)
