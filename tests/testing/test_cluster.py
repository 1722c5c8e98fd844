"""Clusters in the process of a test: brokers that fail one by one, in virtual and in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import coherer
import coherer.blocking
from coherer.errors import CohererError, UsageError
from coherer.message import Message
from coherer.testing import (
    EmbeddedCluster,
    ManualClock,
    SimulatedCluster,
    embedded_cluster,
    embedded_node,
)
from tests.waiting import until

pytest_plugins = ["pytester"]

PROTOCOLS = pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
NUMBERS = [b"%d" % number for number in range(40)]


def url_of(cluster: EmbeddedCluster | SimulatedCluster, protocol: str) -> str:
    return cluster.url if protocol == "tubemq" else cluster.rocketmq_url


async def stored(send: Callable[[Message], Awaitable[object]], body: bytes) -> None:
    """Send again until the message is stored, as an application that must not lose it."""
    while True:
        try:
            await send(Message("orders", body))
        except CohererError:
            await asyncio.sleep(0.1)
        else:
            return


@PROTOCOLS
async def test_a_topic_is_on_all_brokers(
    coherer_simulated_cluster: SimulatedCluster, protocol: str
) -> None:
    cluster = coherer_simulated_cluster
    await cluster.create_topic("orders", partitions=2)
    assert cluster.master.node.topics() == {"orders": {1: 2, 2: 2}}
    async with (
        coherer.connect(url_of(cluster, protocol)) as client,
        client.producer("orders") as producer,
    ):
        for body in NUMBERS[:8]:
            await producer.send(Message("orders", body))
    assert [one.requests.count("send") > 0 for one in cluster.brokers] == [True, True]
    assert repr(cluster) == f"<SimulatedCluster {cluster.url}, 2 brokers>"


@PROTOCOLS
@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("number", [0, 1])
async def test_a_broker_fails_and_comes_back(
    coherer_simulated_cluster: SimulatedCluster, protocol: str, number: int, kill: bool
) -> None:
    """The first broker has the master, too."""
    cluster = coherer_simulated_cluster
    await cluster.create_topic("orders", partitions=2)
    async with (
        coherer.connect(url_of(cluster, protocol)) as client,
        client.producer("orders") as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
    ):
        handling = asyncio.create_task(consumer.run(cluster.received.by("shop")))
        sending = asyncio.create_task(_send_all(producer.send))
        await until(lambda: len(cluster.received) > 5, 600)
        async with cluster.brokers[number].down(kill=kill):
            assert not cluster.brokers[number].is_running
            await asyncio.sleep(5)
        await sending
        await until(lambda: {one.body for one in cluster.received.messages()} == set(NUMBERS), 600)
        handling.cancel()
    assert all(one.requests.count("send") for one in cluster.brokers)


async def _send_all(send: Callable[[Message], Awaitable[object]]) -> None:
    for body in NUMBERS:
        await stored(send, body)
        await asyncio.sleep(0.1)


@PROTOCOLS
@pytest.mark.coherer_cluster(brokers=3, apart=True)
async def test_clients_work_while_the_master_is_away(
    coherer_simulated_cluster: SimulatedCluster, protocol: str
) -> None:
    cluster = coherer_simulated_cluster
    assert [one.node.options.broker_name for one in cluster.brokers] == [
        "broker-a",
        "broker-b",
        "broker-c",
    ]
    assert cluster.master not in cluster.brokers
    await cluster.create_topic("orders")
    async with (
        coherer.connect(url_of(cluster, protocol)) as client,
        client.producer("orders") as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
    ):
        handling = asyncio.create_task(consumer.run(cluster.received.by("shop")))
        await stored(producer.send, b"before")
        await cluster.received.wait(1)
        url = cluster.url
        async with cluster.master.down(kill=True):
            assert cluster.url == url
            await stored(producer.send, b"meanwhile")
            await cluster.received.wait(2)
            with pytest.raises(UsageError, match="does not run"):
                await cluster.create_topic("more")
        await cluster.create_topic("more")
        handling.cancel()


@pytest.mark.coherer_cluster(brokers=1, slaves=True)
async def test_a_slave_serves_what_its_broker_had(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    cluster = coherer_simulated_cluster
    (slave,) = cluster.slaves
    await cluster.create_topic("orders")
    async with coherer.rocketmq.connect(cluster.rocketmq_url) as client:
        async with client.producer("orders") as producer:
            await producer.send(Message("orders", b"1"))
        await asyncio.sleep(30)  # a slave copies the topics every 10 s
        node = slave.node
        assert node.core is not None
        assert node.options.rocketmq_broker_id == 1
        assert "orders" in node.core.topics
        assert node.core.store.written_offset > 0


@PROTOCOLS
def test_with_real_sockets(coherer_cluster: EmbeddedCluster, protocol: str) -> None:
    cluster = coherer_cluster
    cluster.create_topic("orders", partitions=2)
    with coherer.blocking.connect(url_of(cluster, protocol)) as client:
        with client.producer("orders") as producer:
            for body in NUMBERS[:8]:
                producer.send(Message("orders", body))
        for broker in cluster.brokers:
            with broker.down(kill=True):
                assert not broker.is_running
        with client.consumer("shop", "orders", start="earliest") as consumer:
            messages = iter(consumer)
            assert {next(messages).body for _ in NUMBERS[:8]} == set(NUMBERS[:8])


def test_a_killed_broker_says_nothing_to_its_master(coherer_cluster: EmbeddedCluster) -> None:
    first, second = coherer_cluster.brokers
    unregistering = ("brokerCloseClientB2M", "UNREGISTER_BROKER")
    second.kill()
    second.kill()
    assert [first.requests.count(one) for one in unregistering] == [0, 0]
    second.start()
    second.run(second.node.ready)
    second.stop()
    second.kill()
    assert [first.requests.count(one) for one in unregistering] == [1, 1]


def test_a_killed_node_keeps_what_it_has_acknowledged() -> None:
    with (
        embedded_node() as node,
        coherer.blocking.connect(node.rocketmq_url) as client,
        # The client may write to a killed node's connection before it is told that it is gone.
        client.producer("orders", retry_lost=True) as producer,
    ):
        for body in NUMBERS:
            producer.send(Message("orders", body))
            if body in NUMBERS[::20]:
                node.kill()
                node.start()
        with client.consumer("shop", "orders", start="earliest") as consumer:
            messages = iter(consumer)
            assert {next(messages).body for _ in NUMBERS} == set(NUMBERS)


def test_two_clusters_do_not_meet(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        embedded_cluster(directory=tmp_path, clock=clock, protocols=["tubemq"]) as one,
        embedded_cluster(slaves=True, apart=True, admin_port=None) as two,
    ):
        one.create_topic("orders")
        two.create_topic("others")
        assert one.master.call(one.master.node.topics) == {"orders": {1: 1, 2: 1}}
        assert two.master.call(two.master.node.topics) == {"others": {1: 1, 2: 1}}
        assert one.rocketmq_url == one.url, "there is only one protocol"
        assert {broker.clock for broker in one.brokers} == {clock}
        assert [broker.options.broker_name for broker in two.slaves] == ["broker-a", "broker-b"]
        two.brokers[0].restart()
    assert {path.name for path in tmp_path.iterdir()} >= {"brokers", "commitlog"}
    assert repr(one) == f"<EmbeddedCluster {one.url}, 2 brokers>"
    assert not any(broker.is_running for broker in [*one.brokers, *two.slaves])


def test_a_cluster_needs_a_broker() -> None:
    with pytest.raises(UsageError, match="at least one broker"), embedded_cluster(brokers=0):
        raise AssertionError("there is none")
    with pytest.raises(UsageError, match="does not run"):
        _ = SimulatedCluster().url
    assert repr(SimulatedCluster(brokers=3)) == "<SimulatedCluster stopped, 3 brokers>"


def test_uses_that_make_no_sense(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        async def test_both(coherer_simulated, coherer_simulated_cluster):
            pass

        @pytest.mark.coherer_cluster(3)
        def test_a_number(coherer_cluster):
            pass

        @pytest.mark.coherer_cluster(colour="red")
        async def test_an_option(coherer_simulated_cluster):
            pass
        """
    )
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:randomly")
    result.assert_outcomes(failed=2, errors=1)
    result.stdout.fnmatch_lines_random(
        [
            "*cannot use both coherer_simulated and coherer_simulated_cluster.",
            "*named arguments only, such as brokers=3.",
            "*colour*",
        ]
    )


async def test_a_broker_that_was_down_keeps_a_deleted_topic(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """Nobody can tell it; the topic is deleted again when it is back."""
    cluster = coherer_simulated_cluster
    await cluster.create_topic("orders", partitions=2)
    other = cluster.brokers[1]
    async with coherer.connect(cluster.rocketmq_url) as client:
        topics = client.admin().topics
        async with other.down():
            await topics.delete("orders")
        await other.node.ready()
        assert "orders" in [topic.name for topic in await topics.list()]
        await topics.delete("orders")
        assert "orders" not in [topic.name for topic in await topics.list()]
