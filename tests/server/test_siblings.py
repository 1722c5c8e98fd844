"""The brokers of `--brokers` in one process: their topics, and what broker 0 reports about them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from coherer._net import TlsOptions
from coherer._rules.common.topics import Topic
from coherer._server.node.node import Node, NodeOptions
from coherer._server.options.siblings import SiblingState, check, servers_of, sibling
from coherer._server.rocketmq.broker.registration import BrokerAnnouncement
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._store import Store
from coherer._wire.rocketmq.codes import RequestCode
from coherer.errors import StoreFullError, UsageError
from tests.server.node_harness import options
from tests.waiting import until

WAIT_S = 60


class Siblings:
    """Broker 0, and what starts the others."""

    def __init__(self, given: NodeOptions, stack: AsyncExitStack) -> None:
        self.options = given
        self._stack = stack
        self.first = Node(sibling(given, 0))

    async def start(self, number: int) -> Node:
        servers = servers_of(self.options, self.first.master_port, self.first.namesrv_port)
        node = Node(sibling(self.options, number, servers=servers))
        await self._stack.enter_async_context(node)
        await node.ready()
        return node


@pytest.fixture
async def siblings(tmp_path: Path) -> AsyncIterator[Siblings]:
    async with AsyncExitStack() as stack:
        given = options(tmp_path, brokers=2, heartbeat_ms=10, admin_port=0)
        made = Siblings(given, stack)
        await stack.enter_async_context(made.first)
        yield made


def topic(name: str, queues: int = 4) -> Topic:
    return Topic(name=name, read_queues=queues, write_queues=queues)


def put(node: Node, made: Topic) -> None:
    assert node.core is not None
    node.core.topics.put(made, 1)


def partitions(node: Node, name: str) -> dict[int, int]:
    return node.topics().get(name, {})


def settled(first: Node) -> bool:
    """Whether the second broker has what the master has configured."""
    assert first.master is not None
    running = first.master.state.broker_registry.get(2)
    wanted = first.master.brokers.configurations.of(2)
    return running is not None and running.configuration == wanted.key


async def test_a_topic_of_rocketmq_is_on_all(siblings: Siblings) -> None:
    first, second = siblings.first, await siblings.start(1)
    put(second, topic("by-the-second"))
    await until(lambda: partitions(first, "by-the-second") == {1: 4, 2: 4}, WAIT_S)
    put(first, topic("by-the-first"))
    await until(lambda: partitions(first, "by-the-first") == {1: 4, 2: 4}, WAIT_S)
    assert second.core is not None
    await until(lambda: "by-the-first" in second.core.topics, WAIT_S)
    assert first.core is not None
    assert "by-the-second" in first.core.topics


async def test_changes_of_a_topic_on_one_broker(siblings: Siblings) -> None:
    first, second = siblings.first, await siblings.start(1)
    put(second, topic("flights"))
    await until(lambda: partitions(first, "flights") == {1: 4, 2: 4}, WAIT_S)
    await until(lambda: settled(first), WAIT_S)
    put(second, topic("flights", 6))
    await until(lambda: partitions(first, "flights") == {1: 4, 2: 6}, WAIT_S)
    await until(lambda: settled(first), WAIT_S)
    assert second.core is not None
    assert second.core.topics.remove("flights", 1)
    second.core.remove_topic("flights")
    await until(lambda: partitions(first, "flights") == {1: 4}, WAIT_S)
    first.delete_topic("flights")
    await until(lambda: not partitions(first, "flights"), WAIT_S)


async def test_a_topic_that_the_master_deletes_does_not_come_back(siblings: Siblings) -> None:
    first, second = siblings.first, await siblings.start(1)
    first.create_topic("flights", 4)
    assert second.core is not None
    assert first.rocketmq.name_server is not None
    routes = first.rocketmq.name_server.routes
    await until(lambda: "flights" in second.core.topics, WAIT_S)
    assert first.delete_topic("flights")
    await until(lambda: "flights" not in second.core.topics, WAIT_S)
    await until(lambda: routes.route("flights") is None, WAIT_S)
    assert not partitions(first, "flights")
    put(second, topic("later"))  # a registration after all of that
    await until(lambda: partitions(first, "later") == {1: 4, 2: 4}, WAIT_S)
    assert not partitions(first, "flights")


async def test_an_answer_on_its_way_does_not_bring_a_deleted_topic_back(
    siblings: Siblings,
) -> None:
    first, second = siblings.first, await siblings.start(1)
    put(second, topic("flights"))
    await until(lambda: partitions(first, "flights") == {1: 4, 2: 4}, WAIT_S)
    await until(lambda: settled(first), WAIT_S)
    assert second.core is not None
    topics = second.core.topics
    listed = [topic for topic in topics if topic.tubemq]
    assert topics.remove("flights", 1)
    second.core.remove_topic("flights")
    topics.replace(listed, 2)  # before the second has registered without it
    await until(lambda: partitions(first, "flights") == {1: 4}, WAIT_S)
    await until(lambda: "flights" not in topics, WAIT_S)


class Registering:
    """Registers a broker with the first's name server, as it does itself, but late."""

    def __init__(self, first: Node, broker: Node) -> None:
        assert broker.core is not None
        assert broker.rocketmq.broker is not None
        state = broker.rocketmq.broker.state
        made = BrokerAnnouncement(
            lambda: state.announced_options, broker.core.topics, broker.core.now_ms
        )
        self._address = f"127.0.0.1:{first.namesrv_port}"
        self._body = made.body()
        self._header = made.register_header(self._body)

    async def late(self) -> None:
        outgoing = RemotingClient()
        answer = await outgoing.ask(
            self._address, RequestCode.REGISTER_BROKER, self._header.fields(), self._body
        )
        assert not answer.code
        outgoing.close()


async def test_a_removal_that_fails_is_repeated_with_a_pause(
    siblings: Siblings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does not tell its master of a removal that this has ordered."""
    node, tried = siblings.first, 0
    node.create_topic("flights", 4)
    assert node.core is not None
    topics = node.core.topics
    await until(lambda: "flights" in topics, WAIT_S)

    def fail(*_: object) -> None:
        nonlocal tried
        tried += 1
        raise StoreFullError("The disk is full.")

    monkeypatch.setattr(Store, "delete_topic", fail)
    node.delete_topic("flights")
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert 0 < tried < 10


async def test_a_late_registration_does_not_bring_a_deleted_topic_back(
    siblings: Siblings,
) -> None:
    first, second = siblings.first, await siblings.start(1)
    first.create_topic("flights", 4)
    assert second.core is not None
    await until(lambda: "flights" in second.core.topics, WAIT_S)
    registration = Registering(first, second)
    assert first.delete_topic("flights")
    assert first.rocketmq.name_server is not None
    routes = first.rocketmq.name_server.routes
    await until(lambda: routes.route("flights") is None, WAIT_S)
    assert first.master is not None
    catalog = first.master.state.catalog
    await until(lambda: "flights" not in catalog.topics, WAIT_S)
    await registration.late()
    assert not partitions(first, "flights")


async def test_a_late_registration_does_not_delete_a_topic_that_was_created_again(
    siblings: Siblings,
) -> None:
    first, second = siblings.first, await siblings.start(1)
    assert first.rocketmq.name_server is not None
    routes = first.rocketmq.name_server.routes
    registration = Registering(first, second)
    first.create_topic("flights", 4)

    def is_registered() -> bool:
        route = routes.route("flights")
        return route is not None and "broker-b" in {queues.broker for queues in route.queues}

    await until(is_registered, WAIT_S)
    await registration.late()
    assert partitions(first, "flights") == {1: 4, 2: 4}


async def test_a_topic_is_created_again_while_a_broker_deletes_the_old_one(
    siblings: Siblings,
) -> None:
    first, second = siblings.first, await siblings.start(1)
    first.create_topic("flights", 4)
    assert second.core is not None
    await until(lambda: "flights" in second.core.topics, WAIT_S)
    await second.stop()
    assert first.delete_topic("flights")
    put(first, topic("flights", 5))
    await asyncio.sleep(0)  # a sync comes in the next turn
    await siblings.start(1)
    await until(lambda: partitions(first, "flights") == {1: 5, 2: 5}, WAIT_S)


async def test_a_new_broker_gets_all_topics(siblings: Siblings) -> None:
    first = siblings.first
    first.create_topic("flights", 3)
    assert partitions(first, "flights") == {1: 3}
    second = await siblings.start(1)
    await until(lambda: partitions(first, "flights") == {1: 3, 2: 3}, WAIT_S)
    assert second.core is not None
    await until(lambda: "flights" in second.core.topics, WAIT_S)


async def test_broker_0_is_ready_when_all_are(siblings: Siblings) -> None:
    first = siblings.first
    await first.ready()
    assert first.not_ready() == "Broker 2 has not registered with the master yet."
    second = await siblings.start(1)
    await until(lambda: first.not_ready() is None, WAIT_S)
    first.siblings.update(
        [
            SiblingState(1, "broker-a", running=True),
            SiblingState(2, "broker-b", restarts=3, note="It was killed."),
        ]
    )
    assert first.not_ready() == "Broker 2 is not running: It was killed."
    text = (await first.metrics.text()).decode()
    labels = 'cluster="DefaultCluster",node_type="broker",node_id="broker-a",broker="broker-b"'
    assert f"coherer_broker_up{{{labels}}} 0\n" in text
    assert f"coherer_broker_restarts_total{{{labels}}} 3\n" in text
    await second.stop()
    first.siblings.update([SiblingState(2, "broker-b", running=True)])
    assert first.not_ready() == "Broker 2 is starting."


def make(**given: Any) -> NodeOptions:
    return NodeOptions(**{"directory": Path("data"), "brokers": 2, **given})


def test_servers_are_found_on_the_same_machine() -> None:
    everywhere = make(host="0.0.0.0", advertised_host="mq.example.com")
    assert servers_of(everywhere, 1, 2) == {"master": "127.0.0.1:1", "namesrv": "127.0.0.1:2"}
    secure = make(
        host="0.0.0.0",
        advertised_host="mq.example.com",
        tls=TlsOptions(certificate=Path("c.pem")),
        tls_required=True,
    )
    assert servers_of(secure, 1, 2)["namesrv"] == "rocketmqs://mq.example.com:2"
    assert servers_of(make(namesrv="a:1"), -1, -1) == {}


def test_ports_that_were_chosen_stay() -> None:
    second = sibling(make(broker_port=0), 1, servers={"master": "a"}, fixed={"broker_port": 7000})
    assert second.broker_port == 7000
    assert second.hold_ms == 500
    assert sibling(make(hold_ms=9), 0).hold_ms == 9
    assert second.accounts_home == Path("data")


def test_a_directory_of_more_brokers_is_refused(tmp_path: Path) -> None:
    for name in ("2", "3", "notes"):
        (tmp_path / "brokers" / name).mkdir(parents=True)
    check(make(directory=tmp_path, brokers=3))
    with pytest.raises(UsageError, match="messages of broker 3, which `brokers` = 2") as caught:
        check(make(directory=tmp_path))
    assert "--brokers 3" in caught.value.hint
