"""Our name server under a Java broker, Java clients and Java's tools; our broker under Java's."""

from __future__ import annotations

import asyncio
import base64
import os
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from coherer import _net as net
from coherer._rules.common.topics import Topic, TopicTable
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.broker.registration import BrokerAnnouncement, RemoteRegistrar
from coherer._server.rocketmq.namesrv.nameserver import NameServer
from coherer._server.rocketmq.namesrv.settings import NameServerOptions
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer.blocking._portal import Portal
from coherer.testing import embedded_node
from tests.interop.peers.cache import JavaSystem, UnavailableError, prepare
from tests.interop.peers.driver import Event, Json
from tests.interop.peers.rocketmq import (
    PEM,
    JavaNameServer,
    JavaRocketBroker,
    RocketDriver,
    has_route,
)
from tests.server.rocketmq_caller import Caller

pytestmark = [pytest.mark.interop, pytest.mark.slow]

WAIT_S = 30.0


def until(met: Callable[[], bool], what: str) -> None:
    """Polls a process that has no other way to tell."""
    end = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < end, f"waited {WAIT_S:.0f} s for {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def rocket() -> JavaSystem:
    try:
        return prepare("rocketmq").short_lived()
    except UnavailableError as reason:
        if os.environ.get("CI"):
            pytest.fail(f"CI needs the Java system: {reason}")
        pytest.skip(f"no Java system: {reason}")


class OurNames:
    """Our name server in a thread of its own."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.portal = Portal()
        self.server, self.listener = self.portal.call(self._start)
        self.address = f"127.0.0.1:{self.listener.port}"

    async def _start(self) -> tuple[NameServer, net.Listener]:
        server = NameServer(
            NameServerOptions(),
            self.files.get,
            DeferredSaver(self.files.__setitem__),
            now_ms=lambda: time.time_ns() // 10**6,
        )
        return server, await net.listen("127.0.0.1", 0, server.make)

    def stop(self) -> None:
        self.portal.call(self.listener.close)
        self.portal.close()


@pytest.fixture(scope="module")
def names() -> Iterator[OurNames]:
    names = OurNames()
    yield names
    names.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rocketmq-names")


@pytest.fixture(scope="module")
def broker(rocket: JavaSystem, names: OurNames, folder: Path) -> Iterator[JavaRocketBroker]:
    broker = JavaRocketBroker(rocket, folder / "broker-a", names.address)
    broker.start()
    try:
        broker.wait()
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def driver(rocket: JavaSystem, folder: Path) -> Iterator[RocketDriver]:
    driver = RocketDriver(rocket, folder / "driver")
    yield driver
    driver.stop()


class Tools:
    """mqadmin."""

    def __init__(self, driver: RocketDriver, address: str) -> None:
        self._driver = driver
        self._name, opened = driver.open("admin", namesrv=address)
        opened.result(WAIT_S)

    def __call__(self, *arguments: str) -> str:
        said = self._driver.call(self._name, "run", arguments=arguments).result(WAIT_S)
        assert isinstance(said, str)
        return said


@pytest.fixture(scope="module")
def tools(driver: RocketDriver, names: OurNames, broker: JavaRocketBroker) -> Tools:
    return Tools(driver, names.address)


def test_java_clients_find_a_java_broker_through_us(
    names: OurNames, broker: JavaRocketBroker, driver: RocketDriver
) -> None:
    got: queue.Queue[bytes] = queue.Queue()

    def arrived(event: Event) -> None:
        if event.get("event") == "messages":
            for message in as_list(event["messages"]):
                assert isinstance(message, dict)
                got.put(base64.b64decode(str(message["body"])))

    producer, opened = driver.open("producer", namesrv=names.address)
    opened.result(WAIT_S)
    bodies = [b"body %d" % number for number in range(20)]
    for body in bodies:
        encoded = base64.b64encode(body).decode()
        driver.call(producer, "send", topic="FoundThroughUs", body=encoded).result(WAIT_S)
    _, opened = driver.open(
        "push", arrived, namesrv=names.address, group="names", topics={"FoundThroughUs": "*"}
    )
    opened.result(WAIT_S)
    assert sorted(got.get(timeout=WAIT_S) for _ in bodies) == sorted(bodies)


def as_list(value: Json) -> list[Json]:
    assert isinstance(value, list)
    return value


def test_tools_on_routes_and_clusters(
    names: OurNames, broker: JavaRocketBroker, tools: Tools
) -> None:
    assert broker.address in tools("clusterList")
    tools("updateTopic", "-c", "DefaultCluster", "-t", "MadeByTools", "-r", "3", "-w", "5")
    until(lambda: has_route(names.address, "MadeByTools"), "the new topic's route")
    route = tools("topicRoute", "-t", "MadeByTools")
    assert '"readQueueNums":3' in route
    assert '"writeQueueNums":5' in route
    assert "MadeByTools" in tools("topicList")
    assert "DefaultCluster" in tools("topicClusterList", "-t", "MadeByTools")
    tools("deleteTopic", "-c", "DefaultCluster", "-t", "MadeByTools")
    assert not has_route(names.address, "MadeByTools")


def test_tools_on_values_and_settings(names: OurNames, tools: Tools) -> None:
    assert "success" in tools("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
    assert b'"space":{"key":"value"}' in names.files["kvConfig.json"]
    assert "success" in tools("deleteKvConfig", "-s", "space", "-k", "key")
    assert b'"space":{}' in names.files["kvConfig.json"]
    shown = tools("getNamesrvConfig", "-n", names.address)
    assert "orderMessageEnable" in shown
    arguments = ("-n", names.address, "-k", "orderMessageEnable", "-v", "true")
    assert "success" in tools("updateNamesrvConfig", *arguments)
    assert b"orderMessageEnable=true" in names.files["namesrv.properties"]


def test_tools_on_permissions(broker: JavaRocketBroker, names: OurNames, tools: Tools) -> None:
    tools("updateTopic", "-c", "DefaultCluster", "-t", "Permitted", "-r", "1", "-w", "1")
    until(lambda: has_route(names.address, "Permitted"), "the new topic's route")

    def becomes(command: str, permission: str) -> bool:
        assert "OK" in tools(command, "-n", names.address, "-b", broker.name)
        return permission in tools("topicRoute", "-t", "Permitted")

    # The broker registers its topics again now and then, with the permission that it knows.
    until(lambda: becomes("wipeWritePerm", '"perm":4'), "no permission to write")
    until(lambda: becomes("addWritePerm", '"perm":6'), "the permission to write")


def test_a_java_slave_joins_and_a_killed_broker_disappears(
    rocket: JavaSystem, names: OurNames, folder: Path, broker: JavaRocketBroker, tools: Tools
) -> None:
    slave = JavaRocketBroker(rocket, folder / "slave", names.address, broker_id=1)
    slave.start()
    try:
        until(lambda: slave.address in tools("clusterList"), "the slave's registration")
        slave.kill()
        until(lambda: slave.address not in tools("clusterList"), "its end")
    finally:
        slave.stop()
    assert broker.address in tools("clusterList")


@pytest.mark.parametrize("secure", [True, False], ids=["tls", "plain"])
def test_java_clients_with_and_without_tls_by_the_same_ports(
    driver: RocketDriver, tmp_path: Path, secure: bool
) -> None:
    tls = net.TlsOptions(certificate=PEM)
    got: queue.Queue[bytes] = queue.Queue()

    def arrived(event: Event) -> None:
        if event.get("event") == "messages":
            got.put(base64.b64decode(str(as_dict(as_list(event["messages"])[0])["body"])))

    with embedded_node(tmp_path, tls=tls) as node:
        names = node.rocketmq_url.removeprefix("rocketmq://")
        producer, opened = driver.open("producer", namesrv=names, tls=secure)
        opened.result(WAIT_S)
        sent = driver.call(producer, "send", topic="Secret", body=base64.b64encode(b"x").decode())
        assert as_dict(sent.result(WAIT_S))["status"] == "SEND_OK"
        consumer, opened = driver.open(
            "push", arrived, namesrv=names, tls=secure, group="secrets", topics={"Secret": "*"}
        )
        opened.result(WAIT_S)
        assert got.get(timeout=WAIT_S) == b"x"
        for name in (producer, consumer):
            driver.call(name, "close").result(WAIT_S)


def as_dict(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value


REGISTRATION = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":%d,"timestamp":'
    b'1650000000000},"topicConfigTable":{"T1":{"order":false,"perm":7,"readQueueNums":4,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"T1","topicSysFlag":%d,"writeQueueNums":3}}}}'
)
BROKER = {"brokerName": "b", "clusterName": "c"}
MASTER = {**BROKER, "brokerAddr": "10.0.0.1:1", "brokerId": "0", "haServerAddr": "10.0.0.1:2"}
SLAVE = {**BROKER, "brokerAddr": "10.0.0.2:1", "brokerId": "1", "haServerAddr": "10.0.0.2:2"}
OTHER = {"brokerName": "c", "clusterName": "c", "brokerAddr": "10.0.0.3:1", "brokerId": "0"}
VERSION = b'{"counter":1,"timestamp":1650000000000}'
ITEM = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1"}

CONVERSATION: list[tuple[Code, dict[str, str], bytes]] = [
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.GET_BROKER_CLUSTER_INFO, {}, b""),
    (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, b""),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, b""),
    (Code.QUERY_DATA_VERSION, MASTER, VERSION),
    (Code.REGISTER_BROKER, {**MASTER, "bodyCrc32": "5"}, REGISTRATION % (1, 0)),
    (Code.REGISTER_BROKER, SLAVE, REGISTRATION % (1, 0)),
    (Code.REGISTER_BROKER, MASTER, REGISTRATION % (1, 3)),
    (Code.REGISTER_BROKER, SLAVE, REGISTRATION % (1, 0)),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.QUERY_DATA_VERSION, MASTER, VERSION),
    (Code.QUERY_DATA_VERSION, MASTER, b'{"counter":2,"timestamp":1650000000000}'),
    (Code.GET_BROKER_CLUSTER_INFO, {}, b""),
    (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, b""),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, b""),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}, b""),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "nowhere"}, b""),
    (Code.GET_UNIT_TOPIC_LIST, {}, b""),
    (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, b""),
    (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, b""),
    # A broker with the name of its cluster. The flag is that of the first broker of the topic; one
    # that changes its topic becomes the last.
    (Code.REGISTER_BROKER, OTHER, REGISTRATION % (1, 0)),
    (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, b""),
    (Code.GET_UNIT_TOPIC_LIST, {}, b""),
    (Code.REGISTER_BROKER, MASTER, REGISTRATION % (7, 2)),
    (Code.GET_UNIT_TOPIC_LIST, {}, b""),
    (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, b""),
    (Code.REGISTER_BROKER, OTHER, REGISTRATION % (2, 1)),
    (Code.GET_UNIT_TOPIC_LIST, {}, b""),
    (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, b""),
    (Code.UNREGISTER_BROKER, OTHER, b""),
    (Code.REGISTER_BROKER, MASTER, b'{"filterServerList":["f"]}'),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.REGISTER_BROKER, MASTER, b""),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}, b""),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "b"}, b""),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "nobody"}, b""),
    (Code.GET_KV_CONFIG, ITEM, b""),
    (Code.GET_KVLIST_BY_NAMESPACE, ITEM, b""),
    (Code.PUT_KV_CONFIG, {"namespace": "n"}, b""),
    (Code.PUT_KV_CONFIG, {**ITEM, "value": "b:4"}, b""),
    (Code.GET_KV_CONFIG, ITEM, b""),
    (Code.GET_KVLIST_BY_NAMESPACE, ITEM, b""),
    (Code.REGISTER_BROKER, MASTER, REGISTRATION % (2, 3)),
    (Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\n"),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.DELETE_KV_CONFIG, ITEM, b""),
    (Code.GET_KVLIST_BY_NAMESPACE, ITEM, b""),
    (Code.UNREGISTER_BROKER, MASTER, b""),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "T1"}, b""),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"}, b""),
    (Code.UNREGISTER_BROKER, SLAVE, b""),
    (Code.GET_BROKER_CLUSTER_INFO, {}, b""),
    # What lacks a field, or says nothing in it.
    *((code, {}, b"") for code in (Code.GET_ROUTEINFO_BY_TOPIC, Code.WIPE_WRITE_PERM_OF_BROKER)),
    *((code, {}, b"") for code in (Code.ADD_WRITE_PERM_OF_BROKER, Code.DELETE_TOPIC_IN_NAMESRV)),
    *((code, {}, b"") for code in (Code.GET_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE)),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": ""}, b""),
    (Code.PUT_KV_CONFIG, {"namespace": "", "key": "", "value": "v"}, b""),
    (Code.GET_KV_CONFIG, {"namespace": "", "key": ""}, b""),
    (Code.GET_KV_CONFIG, {"namespace": ""}, b""),
    (Code.GET_KV_CONFIG, {"key": ""}, b""),
    (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": ""}, b""),
    (Code.UNREGISTER_BROKER, {"brokerId": "0"}, b""),
    (Code.QUERY_DATA_VERSION, {}, VERSION),
    (Code.QUERY_DATA_VERSION, MASTER, b"null"),
    (Code.QUERY_DATA_VERSION, MASTER, b"[]"),
    (Code.GET_TOPICS_BY_CLUSTER, {}, b""),
    (Code.UPDATE_NAMESRV_CONFIG, {}, b""),
    (Code.UPDATE_NAMESRV_CONFIG, {}, b"\xff{nonsense"),
]


async def talk(port: int) -> list[object]:
    caller = await Caller.dial(port)
    said: list[object] = []
    for code, fields, body in CONVERSATION:
        answer = await caller.ask(code, fields, body)
        told = fastjson.loads(answer.body) if answer.body else None
        if isinstance(told, dict) and isinstance(told.get("topicList"), list):
            told["topicList"] = sorted(map(str, as_list(cast("Json", told["topicList"]))))
        said.append((code.name, answer.code, answer.remark, answer.fields, told))
    await caller.hang_up()
    return said


def test_both_name_servers_say_the_same(rocket: JavaSystem, folder: Path) -> None:
    java, ours = JavaNameServer(rocket, folder / "alike"), OurNames()
    try:
        java.wait()
        theirs = ours.portal.call(lambda: talk(java.port))
        assert ours.portal.call(lambda: talk(ours.listener.port)) == theirs
    finally:
        ours.stop()
        java.stop()


def test_our_registration_at_a_java_name_server(
    rocket: JavaSystem, folder: Path, driver: RocketDriver
) -> None:
    java = JavaNameServer(rocket, folder / "namesrv")
    portal = Portal()
    try:
        java.wait()
        topics = TopicTable([Topic(name="OurTopic", read_queues=3, write_queues=2, perm=6)])
        options = RocketOptions(broker="our-broker", port=2, ha_port=3)

        async def start() -> RemoteRegistrar:
            registration = BrokerAnnouncement(lambda: options, topics, lambda: 1_000)
            registry = RemoteRegistrar(registration, [java.address, "127.0.0.1:1"], outgoing)
            registry.start()
            async with asyncio.timeout(WAIT_S):
                await registry.ready.wait()
            return registry

        outgoing = portal.do(RemotingClient)
        registry = portal.call(start)
        assert has_route(java.address, "OurTopic")
        tools = Tools(driver, java.address)
        assert "127.0.0.1:2" in tools("clusterList")
        assert '"readQueueNums":3' in tools("topicRoute", "-t", "OurTopic")
        portal.do(lambda: topics.put(Topic(name="Second", read_queues=1, write_queues=1), 2_000))
        until(lambda: has_route(java.address, "Second"), "the second topic's route")
        portal.call(registry.close)
        portal.do(outgoing.close)
        assert not has_route(java.address, "OurTopic")
    finally:
        portal.close()
        java.stop()
