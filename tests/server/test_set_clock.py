"""Somebody sets the machine's clock while a node runs: nobody is late, early or thrown out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import coherer
import coherer._client.rocketmq.client
import coherer._client.tubemq.client
from coherer._server.core.core import Core
from coherer._server.node.node import Node
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.broker.state import ReadThrottle
from coherer._store import Draft, Store, StoreOptions
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.names import Queue
from coherer._wire.tubemq.flow import FlowRules
from coherer.testing import ManualClock
from tests.server.broker_harness import OPTIONS as BROKER_OPTIONS
from tests.server.broker_harness import BrokerClient, close, serve
from tests.server.client_harness import Harness as ClientHarness
from tests.server.client_harness import tags
from tests.server.master_harness import Consumer, MasterHarness, Producer
from tests.server.node_harness import options
from tests.server.rocket_harness import running

HOUR_MS = 3_600_000
both_ways = pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])


# -- a whole node


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Node]:
    async with Node(options(tmp_path), now_ms=clock.now_ms, wall_ms=clock.wall_ms) as node:
        yield node


@both_ways
@pytest.mark.parametrize("scheme", ["tubemq", "rocketmq"])
async def test_clients_go_on(node: Node, clock: ManualClock, by_ms: int, scheme: str) -> None:
    node.create_topic("young", 2)
    url = node.url if scheme == "tubemq" else node.rocketmq_url
    async with (
        asyncio.timeout(30),
        coherer.connect(url) as client,
        client.producer("young") as before,
        client.consumer("g", "young", start="earliest") as consumer,
    ):
        await before.send(coherer.Message("young", b"1"))
        messages = aiter(consumer)
        first = await anext(messages)
        clock.turn(by_ms)
        await before.send(coherer.Message("young", b"2"))
        async with coherer.connect(url) as other, other.producer("young") as after:
            await after.send(coherer.Message("young", b"3"))
        found = {first.body}
        while len(found) < 3:
            found.add((await anext(messages)).body)
        assert found == {b"1", b"2", b"3"}


@both_ways
async def test_messages_and_people_see_the_time_of_day(
    node: Node, clock: ManualClock, by_ms: int
) -> None:
    node.create_topic("before", 1)
    clock.turn(by_ms)
    node.create_topic("after", 1)
    assert node.master is not None
    topics = node.master.state.catalog.topics
    made = [topics[name][1].stamp.created_ms for name in ("before", "after")]
    assert made[1] - made[0] == by_ms
    async with coherer.connect(node.url) as client, client.producer("after") as producer:
        await producer.send(coherer.Message("after", b"x"))
    assert node.core is not None
    [entry] = node.core.store.entries("after", 0, 0, 10)
    record = node.core.store.record_at(entry.physical_offset)
    assert record is not None
    born_ms = int.from_bytes(bytes(record)[40:48], "big")
    assert born_ms == clock.wall_ms()


@both_ways
def test_retention_counts_what_passed(tmp_path: Path, clock: ManualClock, by_ms: int) -> None:
    chosen = StoreOptions(segment_bytes=1 << 16, retention_hours=1, index_enabled=False)
    with Store.open(tmp_path, chosen, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms) as store:
        core = Core(store, clock.now_ms, wall_ms=clock.wall_ms)
        for _ in range(3):
            store.append([Draft("t", 0, bytes(50_000), b"")])
        clock.turn(2 * abs(by_ms))
        core.clean()
        assert store.queue_range("t", 0) == (0, 3), "nothing is an hour old"
        clock.advance(HOUR_MS + 1)
        core.clean()
        assert store.queue_range("t", 0) == (2, 3)
        core.flusher.close()


@pytest.mark.parametrize("wrong_by_ms", [366 * 24 * HOUR_MS, -1_700_000_000_000])
def test_messages_expire_although_the_clock_was_wrong_at_first(
    tmp_path: Path, wrong_by_ms: int
) -> None:
    """Their store times lie in the future, or the monotonic clock counts from 1970."""
    clock = ManualClock(1_700_000_000_000 + wrong_by_ms)
    chosen = StoreOptions(segment_bytes=1 << 16, retention_hours=1, index_enabled=False)

    def opened() -> Store:
        return Store.open(tmp_path, chosen, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms)

    with opened() as store:
        store.append([Draft("t", 0, bytes(50_000), b"")])
        clock.turn(-wrong_by_ms)
        for _ in range(2):
            store.append([Draft("t", 0, bytes(50_000), b"")])
        core = Core(store, clock.now_ms, wall_ms=clock.wall_ms)
        core.clean()
        assert store.queue_range("t", 0) == (0, 3), "nothing is an hour old"
        clock.advance(HOUR_MS)
        core.clean()
        assert store.queue_range("t", 0) == (2, 3)
        store.append([Draft("t", 0, bytes(50_000), b"")])
        core.flusher.close()
    with opened() as store:
        core = Core(store, clock.now_ms, wall_ms=clock.wall_ms)
        clock.advance(HOUR_MS)
        core.clean()
        assert store.queue_range("t", 0) == (3, 4), "they are as old as this process"
        core.flusher.close()


def test_a_log_that_is_too_large_loses_only_its_oldest_file(
    tmp_path: Path, clock: ManualClock
) -> None:
    """The append that finds it too large looks at the time of day, which is a year ahead."""
    chosen = StoreOptions(segment_bytes=1 << 16, retention_bytes=1 << 19, index_enabled=False)
    with Store.open(tmp_path, chosen, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms) as store:
        for _ in range(8):
            store.append([Draft("t", 0, bytes(50_000), b"")])
        clock.turn(366 * 24 * HOUR_MS)
        for _ in range(2):
            store.append([Draft("t", 0, bytes(50_000), b"")])
        first, end = store.queue_range("t", 0)
        assert 0 < first < 3
        assert end == 10


# -- TubeMQ's master


@both_ways
def test_the_master_keeps_its_clients(by_ms: int) -> None:
    harness = MasterHarness(return_ms=0)
    broker = harness.broker()
    harness.topic("flights")
    broker.sync()
    producer, consumer = Producer(harness), Consumer(harness)
    producer.register()
    consumer.register()
    for _ in range(4):
        consumer.heartbeat()
    assert consumer.numbers == [0, 1, 2, 3]
    assert producer.publish("flights").topicInfos
    tokens = harness.master.state.visit_tokens.text
    harness.ahead_ms += by_ms
    harness.wait(100)
    assert producer.heartbeat().topicInfos, "the age of the topic has not changed"
    assert consumer.heartbeat().success
    assert broker.heartbeat().success
    assert harness.master.state.visit_tokens.text == tokens
    assert consumer.numbers == [0, 1, 2, 3]
    harness.wait(harness.options.consumer_timeout_ms)
    assert len(harness.master.state.groups) == 0, "silent consumers time out"
    harness.wait(harness.options.broker_timeout_ms)
    assert [running.id for running in harness.master.state.broker_registry if running.online] == []


@both_ways
def test_the_master_saves_members_every_minute(by_ms: int) -> None:
    harness = MasterHarness()
    harness.broker()
    harness.topic("flights")
    consumer = Consumer(harness)
    consumer.register()
    harness.wait(100)
    harness.ahead_ms += by_ms
    saves = harness.saves
    for _ in range(5):
        consumer.heartbeat()
        harness.wait(15_000)
    assert harness.saves > saves


@both_ways
def test_members_are_expected_after_a_restart(by_ms: int) -> None:
    """Members saved in the future are recent: the clock was set back since."""
    harness = MasterHarness()
    harness.broker()
    harness.topic("flights")
    Consumer(harness, "a").register()
    harness.wait(100)
    harness.master.close()
    harness.ahead_ms += min(by_ms, 0)
    harness.restart()
    harness.broker()
    first = Consumer(harness, "b")
    first.register()
    for _ in range(3):
        first.heartbeat()
        harness.wait(100)
    assert first.numbers == []


# -- TubeMQ's broker


@both_ways
async def test_a_lease_ends_in_time(tmp_path: Path, clock: ManualClock, by_ms: int) -> None:
    store_options = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    with Store.open(
        tmp_path, store_options, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms
    ) as store:
        broker = Broker(BROKER_OPTIONS, Core(store, clock.now_ms, wall_ms=clock.wall_ms))
        serve(broker)
        peer, other = BrokerClient(broker), BrokerClient(broker)
        assert peer.register().success
        clock.turn(by_ms)
        broker.tick()
        assert other.register(clientId="c2").errCode == 410, "it is held"
        clock.advance(30_000)
        broker.tick()
        assert other.register(clientId="c2").success
        await close(broker)


# -- RocketMQ's broker


@both_ways
async def test_members_and_locks_end_in_time(
    tmp_path: Path, clock: ManualClock, by_ms: int
) -> None:
    harness = await ClientHarness(tmp_path, clock, RocketOptions()).start()
    client = await harness.dial()
    await client.consume("g", tags("demo"))
    body = bodies.LockBatch(
        consumer_group="g", client_id="me", queues=frozenset({Queue("demo", "broker", 0)})
    ).encode()
    assert (await client.ask(41, body=body)).code == 0
    clock.turn(by_ms)
    clock.advance(20_000)
    harness.remoting.tick()
    harness.clients.upkeep.tick()
    queue = Queue("demo", "broker", 0)
    assert harness.state.locks.owner("g", queue, clock.now_ms()) == "me"
    assert harness.state.consumers.find("g", "me") is not None
    clock.advance(140_000)
    harness.clients.upkeep.tick()
    assert harness.state.locks.owner("g", queue, clock.now_ms()) is None
    async with asyncio.timeout(10):
        await harness.lost.get()
    await harness.stop()


@both_ways
async def test_a_get_waits_as_long_as_it_should(
    tmp_path: Path, clock: ManualClock, by_ms: int
) -> None:
    store_options = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    with Store.open(
        tmp_path, store_options, now_ms=clock.wall_ms, monotonic_ms=clock.now_ms
    ) as store:
        broker = Broker(BROKER_OPTIONS, Core(store, clock.now_ms, wall_ms=clock.wall_ms))
        serve(broker)
        peer = BrokerClient(broker)
        peer.register()
        serial = peer.post_get()
        clock.turn(by_ms)
        clock.advance(BROKER_OPTIONS.hold_ms - 1)
        broker.tick()
        assert peer.got(serial) is None
        clock.advance(1)
        broker.tick()
        assert peer.got(serial) is not None
        await close(broker)


@both_ways
def test_a_reader_that_read_too_much_rests_as_long_as_it_should(by_ms: int) -> None:
    rules = FlowRules.parse(
        '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":12,'
        '"freqInMs":500}]}]'
    )
    throttle, behind = ReadThrottle(), 1 << 30
    assert throttle.pause_ms(rules, behind, 100_000, wall_ms=100_000) == 0
    throttle.count(1 << 20)
    assert throttle.pause_ms(rules, behind, 104_999, wall_ms=104_999 + by_ms) == 500
    assert throttle.pause_ms(rules, behind, 105_000, wall_ms=105_000 + by_ms) == 0


@both_ways
async def test_sends_are_accepted_from_a_time_of_day_on(
    tmp_path: Path, clock: ManualClock, by_ms: int
) -> None:
    begins_ms = clock.wall_ms() + HOUR_MS // 2
    async with running(tmp_path, clock, accept_sends_from_ms=begins_ms) as harness:
        client = await harness.dial()
        clock.turn(by_ms)
        assert ((await client.send()).code == 0) is (by_ms > 0)
        client.connection.close()
