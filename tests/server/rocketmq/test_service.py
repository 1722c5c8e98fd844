"""Both protocols of a node over sockets: ports, TLS, name servers, shared topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coherer import _net as net
from coherer._rules.common.topics import Topic
from coherer._server.node.node import Node, NodeOptions
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer.errors import UsageError
from coherer.testing import ManualClock
from tests.server.node_harness import options
from tests.server.raw_client import RawClient
from tests.server.rocketmq_caller import Caller
from tests.waiting import until

PEM = Path(__file__).parents[2] / "net" / "localhost.pem"
ANYBODY = net.TlsOptions(verify=False)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(options(tmp_path / "node")) as node:
        yield node


SEND = dict(zip("abcdefghi", ("p", "t", "TBW102", "4", "0", "0", "1", "0", ""), strict=True))


async def send(caller: Caller, topic: str, body: bytes, queue: int = 0, **more: str) -> Command:
    letters = dict(
        zip("abcdefghi", ["p", topic, "TBW102", "4", str(queue), "0", "1", "0", ""], strict=True)
    )
    answer = await caller.ask(Code.SEND_MESSAGE_V2, {**letters, **more}, body)
    assert answer.code == 0, answer.remark
    return answer


async def route(caller: Caller, topic: str) -> bodies.TopicRoute | None:
    answer = await caller.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code == 17:
        return None
    return bodies.TopicRoute.decode(answer.body)


async def until_route(caller: Caller, topic: str) -> bodies.TopicRoute:
    """Wait until a name server has the route of a topic."""
    await until(lambda: route(caller, topic))
    found = await route(caller, topic)
    assert found is not None
    return found


async def test_the_ports(node: Node) -> None:
    assert node.rocketmq_url == f"rocketmq://127.0.0.1:{node.namesrv_port}"
    assert len({node.namesrv_port, node.rocketmq_port, node.rocketmq_fast_port}) == 3
    assert f"name server 127.0.0.1:{node.namesrv_port}" in node.describe()
    names = await Caller.dial(node.namesrv_port)
    found = await route(names, "TBW102")
    assert found is not None
    assert found.broker_datas == [
        bodies.BrokerData(
            cluster="DefaultCluster",
            broker_name="broker-a",
            broker_addrs={0: f"127.0.0.1:{node.rocketmq_port}"},
        )
    ]


async def test_the_fast_port_serves_everything_but_pulls(node: Node) -> None:
    fast = await Caller.dial(node.rocketmq_fast_port)
    await send(fast, "flights", b"x")
    pull = await fast.ask(Code.PULL_MESSAGE)
    assert (pull.code, pull.remark) == (3, " request type 11 not supported")


async def test_a_topic_of_rocketmq_is_one_of_tubemq(node: Node) -> None:
    caller = await Caller.dial(node.rocketmq_port)
    await send(caller, "flights", b"body", queue=2)
    await send(caller, "%RETRY%g", b"body")
    names = await Caller.dial(node.namesrv_port)
    assert await route(names, "flights") is not None
    await until(lambda: node.topics() == {"flights": {1: 4}})
    tube = await net.dial("127.0.0.1", node.broker_port, RawClient)
    who = {"clientId": "c", "groupName": "g", "topicName": "flights", "partitionId": 2}
    register = pb.RegisterRequestC2B(opType=31, readStatus=0, **who)  # type: ignore[arg-type]
    assert (await tube.ask(methods.PARTITION_REGISTER, register)).success
    request = pb.GetMessageRequestC2B(lastPackConsumed=True, **who)  # type: ignore[arg-type]
    got = await tube.ask(methods.GET_MESSAGES, request)
    assert [one.payLoadData[-4:] for one in got.messages] == [b"body"]


async def test_a_topic_of_tubemq_is_one_of_rocketmq(node: Node) -> None:
    names = await Caller.dial(node.namesrv_port)
    assert node.create_topic("weather", 3)
    found = await route(names, "weather")
    assert found is not None
    [queues] = found.queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (3, 3, 6)
    caller = await Caller.dial(node.rocketmq_port)
    await send(caller, "weather", b"x", queue=2)
    assert node.delete_topic("weather")
    assert await route(names, "weather") is None


async def test_changes_of_a_topic_reach_the_catalog(node: Node) -> None:
    core = node.core
    assert core is not None
    node.create_topic("t", 2)
    core.topics.put(Topic(name="t", read_queues=4, write_queues=4, perm=4), 1)
    await until(lambda: node.topics()["t"] == {1: 4})
    assert node.master is not None
    props = node.master.state.catalog.deployment("t", 1).props
    assert (props.accept_publish, props.accept_subscribe) == (False, True)
    core.topics.put(Topic(name="t", read_queues=1, write_queues=1, perm=6), 2)
    await until(lambda: props_of(node).accept_publish)
    assert node.topics()["t"] == {1: 4}, "TubeMQ's partitions do not become fewer"
    await until(lambda: core.topics["t"].can_publish and core.topics["t"].tubemq)
    topic = core.topics["t"]
    assert (topic.read_queues, topic.partitions) == (1, 4), "RocketMQ's clients have what was said"


def props_of(node: Node) -> Any:
    assert node.master is not None
    return node.master.state.catalog.deployment("t", 1).props


async def test_a_topic_deleted_over_rocketmq_is_deleted_for_tubemq(node: Node) -> None:
    core = node.core
    assert core is not None
    node.create_topic("t", 2)
    core.topics.remove("t", 1)
    core.remove_topic("t")
    await until(lambda: "t" not in node.topics())
    assert "t" not in core.topics
    assert node.create_topic("t", 1), "its name is free again"


async def test_names_that_tubemq_does_not_allow_stay_on_one_side(node: Node) -> None:
    caller = await Caller.dial(node.rocketmq_port)
    await send(caller, "9lives|%", b"x")
    await send(caller, "lives", b"x")
    await until(lambda: node.topics() == {"lives": {1: 4}})


async def test_topics_and_messages_survive_a_restart(tmp_path: Path) -> None:
    async with Node(options(tmp_path)) as node:
        caller = await Caller.dial(node.rocketmq_port)
        await send(caller, "flights", b"x", queue=3)
        await until(lambda: "flights" in node.topics())
    async with Node(options(tmp_path)) as node:
        assert node.topics() == {"flights": {1: 4}}
        caller = await Caller.dial(node.rocketmq_port)
        queue = {"topic": "flights", "queueId": "3"}
        assert (await caller.ask(Code.GET_MAX_OFFSET, queue)).fields == {"offset": "1"}


async def test_a_held_pull_does_not_hold_the_node_up(tmp_path: Path) -> None:
    async with Node(options(tmp_path)) as node:
        node.create_topic("t", 1)
        caller = await Caller.dial(node.rocketmq_port)
        beat = bodies.HeartbeatData.decode(
            b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
            b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING",'
            b'"subscriptionDataSet":[{"subString":"*","subVersion":1,"topic":"t"}]}]}'
        )
        assert (await caller.ask(Code.HEART_BEAT, body=beat.encode())).code == 0
        pull = {
            "consumerGroup": "g",
            "topic": "t",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "2",
            "commitOffset": "0",
            "suspendTimeoutMillis": "20000",
            "subVersion": "1",
        }
        held = caller.begin(Code.PULL_MESSAGE, pull)
        await caller.ask(Code.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"})
        assert not held.done()
    async with asyncio.timeout(10):
        await caller.lost.wait()
    assert held.result().code == ResponseCode.PULL_NOT_FOUND


async def test_acknowledged_messages_survive_a_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    acknowledged = 0

    async def load(caller: Caller) -> None:
        nonlocal acknowledged
        while not caller.connection.closed:
            waiting = [caller.begin(Code.SEND_MESSAGE_V2, SEND, b"x") for _ in range(20)]
            done = await asyncio.gather(*waiting, return_exceptions=True)
            answers = [answer for answer in done if isinstance(answer, Command)]
            acknowledged += sum(answer.code == 0 for answer in answers)
            assert {answer.code for answer in answers} <= {0, 1, 14}

    with caplog.at_level(logging.ERROR, "coherer"):
        async with Node(options(tmp_path)) as node:
            node.create_topic("t", 1)
            callers = [await Caller.dial(node.rocketmq_port) for _ in range(4)]
            loads = [asyncio.create_task(load(caller)) for caller in callers]
            await until(lambda: acknowledged > 500)
        await asyncio.gather(*loads)
    assert caplog.text == ""
    async with Node(options(tmp_path)) as node:
        caller = await Caller.dial(node.rocketmq_port)
        queue = {"topic": "t", "queueId": "0"}
        found = await caller.ask(Code.GET_MAX_OFFSET, queue)
        assert int(found.fields["offset"]) >= acknowledged


@pytest.mark.parametrize("tls", [None, ANYBODY])
async def test_tls_and_plain_connections_come_by_one_port(
    tmp_path: Path, tls: net.TlsOptions | None
) -> None:
    given = options(
        tmp_path,
        tls=net.TlsOptions(certificate=PEM),
        master_tls_port=0,
        broker_tls_port=0,
    )
    async with Node(given) as node:
        for port in (node.rocketmq_port, node.rocketmq_fast_port):
            caller = await Caller.dial(port, tls)
            assert caller.connection.secure == (tls is not None)
            await send(caller, "flights", b"x")
        names = await Caller.dial(node.namesrv_port, tls)
        assert await route(names, "flights") is not None


async def test_plain_connections_can_be_refused(tmp_path: Path) -> None:
    given = options(
        tmp_path,
        tls=net.TlsOptions(certificate=PEM),
        tls_required=True,
        master_tls_port=0,
        broker_tls_port=0,
    )
    async with Node(given) as node:
        plain = await Caller.dial(node.namesrv_port)
        unheard = plain.begin(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        async with asyncio.timeout(10):
            await plain.lost.wait()
        assert unheard.cancelled()
        names = await Caller.dial(node.namesrv_port, ANYBODY)
        assert await route(names, "TBW102") is not None
        assert node.rocketmq_url == f"rocketmqs://127.0.0.1:{node.namesrv_port}"
        slave = options(
            tmp_path / "slave",
            namesrv=f"rocketmqs://127.0.0.1:{node.namesrv_port}",
            tls=net.TlsOptions(certificate=PEM, trust=PEM, verify=False),
            role="SLAVE",
            rocketmq_broker_id=1,
        )
        async with Node(slave) as other:
            assert other.rocketmq_url == node.rocketmq_url
            async with asyncio.timeout(10):
                await other.ready()
            found = await route(names, "TBW102")
            assert found is not None
            assert set(found.broker_datas[0].broker_addrs) == {0, 1}


async def test_a_broker_registers_with_name_servers_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "coherer")
    async with Node(options(tmp_path / "m", roles=frozenset({"master"}))) as master:
        assert master.rocketmq_port == -1
        names = await Caller.dial(master.namesrv_port)
        given = options(
            tmp_path / "b",
            roles=frozenset({"broker"}),
            master=f"tubemq://127.0.0.1:{master.master_port}",
            namesrv=f"127.0.0.1:1;127.0.0.1:{master.namesrv_port}",
            broker_name="broker-b",
        )
        async with Node(given) as node:
            assert node.namesrv_port == -1
            assert node.rocketmq_url == f"rocketmq://{given.namesrv}"
            async with asyncio.timeout(10):
                await node.ready()
            caller = await Caller.dial(node.rocketmq_port)
            await send(caller, "flights", b"x")
            found = await until_route(names, "flights")
            assert found.broker_datas[0].broker_addrs == {0: f"127.0.0.1:{node.rocketmq_port}"}
        assert await route(names, "flights") is None
    assert "Registering with name server 127.0.0.1:1 failed" in caplog.text


async def test_a_restarted_name_server_learns_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coherer")
    master = Node(options(tmp_path / "m", roles=frozenset({"master"})))
    await master.start()
    port = master.namesrv_port
    given = options(
        tmp_path / "b",
        roles=frozenset({"broker"}),
        master=f"tubemq://127.0.0.1:{master.master_port}",
        namesrv=f"127.0.0.1:{port}",
    )
    async with Node(given) as node:
        async with asyncio.timeout(10):
            await node.rocketmq.ready()
        await master.stop()
        core = node.core
        assert core is not None
        core.topics.put(Topic(name="new"), 1)  # the registration fails
        await until(lambda: "Registering with name server" in caplog.text)
        again = Node(options(tmp_path / "m", roles=frozenset({"master"}), namesrv_port=port))
        await again.start()
        core.topics.put(Topic(name="newer"), 2)
        names = await Caller.dial(port)
        found = await until_route(names, "newer")
        assert found.broker_datas[0].broker_name == "broker-a"
        await names.hang_up()
        await again.stop()


async def test_a_local_broker_never_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Node(options(tmp_path), now_ms=clock.now_ms) as node:
        names = await Caller.dial(node.namesrv_port)
        server = node.rocketmq.name_server
        assert server is not None
        for _ in range(30):
            clock.advance(10_000)
            node.rocketmq.tick()
        assert server.routes.clusters == {"DefaultCluster": ["broker-a"]}
        again = await Caller.dial(node.namesrv_port)
        assert await route(again, "TBW102") is not None
        async with asyncio.timeout(10):
            await names.lost.wait()  # a silent client is hung up on


async def test_a_node_without_rocketmq(tmp_path: Path) -> None:
    given = options(tmp_path, namesrv_port=None, rocketmq_port=None)
    async with Node(given) as node:
        assert (node.namesrv_port, node.rocketmq_port, node.rocketmq_fast_port) == (-1, -1, -1)
        with pytest.raises(UsageError, match="does not serve RocketMQ"):
            _ = node.rocketmq_url


def test_ports_that_cannot_be() -> None:
    assert NodeOptions(directory=Path()).fast_port == 10909
    assert NodeOptions(directory=Path(), rocketmq_fast_port=7).fast_port == 7
    with pytest.raises(UsageError, match="`rocketmq_port` is 2"):
        NodeOptions(directory=Path(), rocketmq_port=2)


ROCKETMQ = frozenset({"rocketmq"})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"protocols": frozenset()}, "protocols"),
        ({"protocols": ROCKETMQ, "namesrv_port": None}, "needs `namesrv`"),
        ({"role": "SLAVE", "rocketmq_broker_id": 1}, "needs the name servers"),
        ({"rocketmq_broker_id": 1}, "0 for a master"),
        ({"role": "SYNC_MASTER"}, "ha_port"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        NodeOptions(directory=Path(), **given)


async def test_rocketmq_alone(tmp_path: Path) -> None:
    async with Node(options(tmp_path, protocols=ROCKETMQ)) as node:
        assert (node.master, node.broker, node.master_port, node.broker_port) == (
            None,
            None,
            -1,
            -1,
        )
        assert node.url == node.rocketmq_url
        caller = await Caller.dial(node.rocketmq_port)
        await send(caller, "flights", b"x")
        names = await Caller.dial(node.namesrv_port)
        assert await route(names, "flights") is not None


async def test_a_slave_serves_the_topics_of_its_master(tmp_path: Path) -> None:
    async with Node(options(tmp_path / "m", ha_port=0)) as master:
        caller = await Caller.dial(master.rocketmq_port)
        await send(caller, "flights", b"x", queue=1)
        given = options(
            tmp_path / "s",
            namesrv=f"127.0.0.1:{master.namesrv_port}",
            role="SLAVE",
            rocketmq_broker_id=1,
        )
        async with Node(given) as slave:
            names = await Caller.dial(master.namesrv_port)
            await slave.ready()
            found = await until_route(names, "flights")
            assert found.broker_datas[0].broker_addrs == {
                0: f"127.0.0.1:{master.rocketmq_port}",
                1: f"127.0.0.1:{slave.rocketmq_port}",
            }
            store = slave.core and slave.core.store
            assert store
            await until(lambda: store.end_offset == master_end(master))
        found = await until_route(names, "flights")
        assert found.broker_datas[0].broker_addrs == {0: f"127.0.0.1:{master.rocketmq_port}"}


def master_end(node: Node) -> int:
    assert node.core is not None
    return node.core.store.end_offset
