"""Consumers that are sent to a slave."""

from __future__ import annotations

import pytest

from coherer._wire.rocketmq.bodies import BrokerData, QueueData, TopicRoute
from coherer._wire.rocketmq.codes import RequestCode
from coherer.errors import UnavailableError
from coherer.rocketmq import Queue, Reader
from coherer.rocketmq import connect as connect_rocketmq
from tests.client.rocket_broker import STORE, ZERO, FakeQueues, one, reading

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def pair(cluster2) -> FakeQueues:
    """A master, broker-a, and its slave, which calls itself broker-b here."""
    shelf = FakeQueues(cluster2)
    cluster2.masters = {"broker-b": "broker-a"}
    route_to(cluster2, "broker-a", "broker-b")
    return shelf


def route_to(cluster2, *servers: str) -> None:
    """Let the name server know a master and its slave."""
    addresses = {number: cluster2.brokers[one].address for number, one in enumerate(servers)}
    route = TopicRoute(
        queue_datas=[
            QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
        ],
        broker_datas=[BrokerData(cluster="c", broker_name="broker-a", broker_addrs=addresses)],
    )
    cluster2.always(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda asked: asked.answer(body=route.encode())
    )


async def test_the_master_suggests_a_slave(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c", b"d", b"e", b"f")
    pair.head = lambda next_offset, end: FakeQueues.head(  # type: ignore[method-assign]
        next_offset, end, broker=int(next_offset < 4)
    )
    async with connect_rocketmq(cluster2.url) as client, reading(client) as consumer:
        for _ in range(3):
            (await one(consumer)).ack()
        await cluster2.until(lambda: len(pair.pulls()) >= 4)
    asked = [(pull.broker, int(pull.fields["sysFlag"]) & 1) for pull in pair.pulls()[:4]]
    assert [broker for broker, _ in asked] == ["broker-a", "broker-b", "broker-a", "broker-a"]
    assert asked[1][1] == 0  # slaves are not told offsets


async def test_a_slave_serves_while_its_master_is_down(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c")
    pair.offsets["demo", 0] = 1
    await cluster2.brokers["broker-a"].listener.close()
    async with connect_rocketmq(cluster2.url) as client:
        async with reading(client) as consumer:
            assert (await one(consumer)).bodies() == [b"b", b"c"]
        async with client.reader(ZERO, 0, end=3) as reader:
            batch = await reader.read()
            assert batch is not None
            assert batch.bodies() == [b"a", b"b"]
    assert {pull.broker for pull in pair.pulls()} == {"broker-b"}


async def test_offsets_are_not_stored_at_a_slave(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c", b"d")
    pair.head = lambda next_offset, end: FakeQueues.head(  # type: ignore[method-assign]
        next_offset, end, broker=1
    )
    async with connect_rocketmq(cluster2.url) as client, reading(client) as consumer:
        for _ in range(2):
            (await one(consumer)).ack()
        for count in (3, 4):
            await cluster2.until(lambda count=count: len(pair.pulls()) == count)
            pair.pulls()[-1].answer(19, "NO_NEW_MESSAGE", pair.head(4, 4))
    [told] = cluster2.asked(STORE)
    assert (told.broker, told.fields["commitOffset"]) == ("broker-a", "4")


def sends_to_slave(pair: FakeQueues) -> None:
    """The master suggests its slave for everything behind the first package."""
    pair.head = lambda next_offset, end: FakeQueues.head(  # type: ignore[method-assign]
        next_offset, end, broker=1
    )


async def values(reader: Reader) -> list[bytes]:
    found: list[bytes] = []
    while (batch := await reader.read()) is not None:
        found += batch.bodies()
    return found


async def test_a_slave_that_lags_does_not_end_a_range(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c", b"d", b"e", b"f")
    pair.copied["broker-b"] = 4
    sends_to_slave(pair)
    async with connect_rocketmq(cluster2.url) as client, client.reader(ZERO, 0) as reader:
        assert await values(reader) == [b"a", b"b", b"c", b"d", b"e", b"f"]
        assert (reader.position, reader.left_out) == (6, 0)
    asked = [pull.broker for pull in pair.pulls()]
    assert asked == ["broker-a", "broker-b", "broker-b", "broker-a"]


async def test_a_slave_does_not_move_a_range(cluster2, pair) -> None:
    """It has deleted what its master still has."""
    pair.put(b"a", b"b", b"c", b"d")
    sends_to_slave(pair)

    def moved(asked) -> None:
        if asked.broker == "broker-b":
            asked.answer(21, "OFFSET_TOO_SMALL", pair.head(4, 4))
        else:
            pair.pull(asked)

    cluster2.always(RequestCode.PULL_MESSAGE, moved)
    async with connect_rocketmq(cluster2.url) as client, client.reader(ZERO, 0) as reader:
        assert await values(reader) == [b"a", b"b", b"c", b"d"]
        assert reader.left_out == 0


async def test_only_a_master_knows_the_rest_of_a_range(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c", b"d")
    pair.copied["broker-b"] = 2
    await cluster2.brokers["broker-a"].listener.close()
    async with (
        connect_rocketmq(cluster2.url, timeout_ms=500) as client,
        client.reader(ZERO, 0, end=4) as reader,
    ):
        batch = await reader.read()
        assert batch is not None
        assert batch.bodies() == [b"a", b"b"]
        with pytest.raises(UnavailableError):
            await reader.read()


async def test_a_range_can_be_read_from_masters_only(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c", b"d")
    sends_to_slave(pair)
    async with connect_rocketmq(cluster2.url, timeout_ms=500) as client:
        async with client.reader(ZERO, 0, masters_only=True) as reader:
            assert await values(reader) == [b"a", b"b", b"c", b"d"]
        assert {pull.broker for pull in pair.pulls()} == {"broker-a"}
        await cluster2.brokers["broker-a"].listener.close()
        async with client.reader(ZERO, 0, end=4, masters_only=True) as reader:
            with pytest.raises(UnavailableError):
                await reader.read()


async def test_a_slave_does_not_say_where_queues_end(cluster2, pair) -> None:
    pair.put(b"a", b"b", b"c")
    pair.copied["broker-b"] = 1
    async with connect_rocketmq(cluster2.url, timeout_ms=500) as client:
        assert await client.offsets("demo") == {Queue("demo", "broker-a", 0): (0, 3)}
        await cluster2.brokers["broker-a"].listener.close()
        with pytest.raises(UnavailableError):
            await client.offsets("demo")
        with pytest.raises(UnavailableError):
            async with client.reader(ZERO, 0):
                pass


async def test_a_master_that_has_come_back_as_a_slave(cluster2, pair) -> None:
    """The client knows its address as that of the master, and it does not have everything yet."""
    pair.put(b"a", b"b", b"c", b"d")
    slave = {"brokerId": "1"}

    def pull(asked) -> None:
        offset = int(asked.fields["queueOffset"])
        if asked.broker == "broker-a" and offset >= 2:
            asked.answer(19, "NO_NEW_MESSAGE", {**pair.head(offset, 2), **slave})
        else:
            pair.pull(asked)

    def end(asked) -> None:
        if asked.broker == "broker-a":
            asked.answer(fields={"offset": "2", **slave})
        else:
            pair.answer(asked, pair.end(asked))

    cluster2.always(RequestCode.PULL_MESSAGE, pull)
    cluster2.always(RequestCode.GET_MAX_OFFSET, end)
    async with connect_rocketmq(cluster2.url, timeout_ms=500) as client:
        async with client.reader(ZERO, 0, end=4) as reader:
            batch = await reader.read()
            assert batch is not None
            assert batch.bodies() == [b"a", b"b"]
            with pytest.raises(UnavailableError, match="is a slave of broker broker-a now"):
                await reader.read()
        with pytest.raises(UnavailableError, match="is a slave of broker broker-a now"):
            await client.offsets("demo")
        route_to(cluster2, "broker-b", "broker-a")
        async with client.reader(ZERO, 0, end=4) as reader:
            assert await values(reader) == [b"a", b"b", b"c", b"d"]
            assert reader.left_out == 0
        assert await client.offsets("demo") == {Queue("demo", "broker-a", 0): (0, 4)}


async def test_a_consumer_leaves_a_master_that_has_come_back_as_a_slave(cluster2, pair) -> None:
    """That would keep the offsets of the group to itself, and may lack what comes next."""
    pair.put(b"a", b"b", b"c", b"d")
    route_to(cluster2, "broker-a", "broker-b")

    def pull(asked) -> None:
        offset = int(asked.fields["queueOffset"])
        if asked.broker == "broker-a" and offset >= 2:  # so far it was the master
            route_to(cluster2, "broker-b", "broker-a")
            asked.answer(20, "PULL_RETRY_IMMEDIATELY", {**pair.head(offset, 4), "brokerId": "1"})
        else:
            pair.pull(asked)

    cluster2.always(RequestCode.PULL_MESSAGE, pull)
    async with connect_rocketmq(cluster2.url) as client, reading(client) as consumer:
        assert (await one(consumer)).bodies() == [b"a", b"b"]
        assert (await one(consumer)).bodies() == [b"c", b"d"]
    asked = [pull.broker for pull in pair.pulls()[:3]]
    assert asked == ["broker-a", "broker-a", "broker-b"]
