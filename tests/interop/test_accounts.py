"""One set of accounts of our node, for Java's clients and tools of both protocols."""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coherer.message import Message
from coherer.rocketmq import connect as connect_rocketmq
from coherer.testing import async_embedded_node
from coherer.tubemq import connect as connect_tubemq
from tests.interop.peers.cache import prepare
from tests.interop.peers.clients import DrivenPuller, JavaProducer
from tests.interop.peers.driver import DriverError, JavaDriver
from tests.interop.peers.java import HOST
from tests.interop.peers.mqadmin import FAILED
from tests.interop.peers.ours import start_node
from tests.interop.peers.process import free_ports, listens
from tests.interop.peers.rocket_site import Client, RocketSite
from tests.interop.peers.rocketmq import RocketDriver, home_of

pytestmark = pytest.mark.interop

USER, PASSWORD = "operator", "operator-secret"
ACCOUNT = {"user": USER, "password": PASSWORD}
KEYS = {"access_key": USER, "secret_key": PASSWORD}
TOPIC = "guarded"


class Guarded:
    """A node with one account, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.master_port, self.names_port, self.admin_port, self.broker, self.rocket = free_ports(5)
        self.master = f"{HOST}:{self.master_port}"
        self.namesrv = f"{HOST}:{self.names_port}"
        self.child = start_node(
            "guarded",
            folder,
            HOST,
            master_port=self.master_port,
            broker_port=self.broker,
            namesrv_port=self.names_port,
            rocketmq_port=self.rocket,
            rocketmq_fast_port=0,
            admin_port=self.admin_port,
            users={USER: PASSWORD},
            topics={TOPIC: 2},
        )
        self.child.wait_for(lambda: listens(self.rocket, HOST), 60, "open port")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    node = Guarded(tmp_path_factory.mktemp("guarded"))
    yield node
    node.child.stop(grace_s=0)


@pytest.fixture(scope="module")
def tube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDriver]:
    driver = JavaDriver(prepare("tubemq"), tmp_path_factory.mktemp("tube"), heap_mb=256)
    yield driver
    driver.stop()


async def test_javas_tubemq_clients(node: Guarded, tube: JavaDriver) -> None:
    producer = JavaProducer(tube)
    opening = {"master": node.master, "topics": [TOPIC], "wait_ms": 10_000, "heartbeat_ms": 2_000}
    await producer.open("producer", 30, **opening, **ACCOUNT)
    words = {uuid.uuid4().hex.encode() for _ in range(5)}
    for word in words:
        assert (await producer.send(Message(TOPIC, word))).id
    reading = {
        "master": node.master, "group": "java-readers", "topics": {TOPIC: []},
        "heartbeat_ms": 2_000, "start": "earliest", "ready_ms": 200, "not_found_ms": 100,
    }  # fmt: skip
    puller = DrivenPuller(tube)
    await puller.open("pull", 60, **reading, **ACCOUNT)
    found: set[bytes] = set()
    while not words <= found:
        package = await puller.get()
        assert package is not None
        found |= {message.body for message in package.messages}
        await puller.confirm(package)
    await puller.close()
    await producer.close()
    for wrong in ({}, {"user": USER, "password": "guess"}):
        refused = JavaProducer(tube)
        with pytest.raises(DriverError):
            await refused.open("producer", 30, **{**opening, "wait_ms": 2_000}, **wrong)


def test_javas_rocketmq_clients(rocket: RocketSite, node: Guarded, tmp_path: Path) -> None:
    driver = RocketDriver(rocket.java, tmp_path, heap_mb=256)
    with contextlib.ExitStack() as last:
        last.callback(driver.stop)
        given = {"namesrv": node.namesrv, "group": "java-senders"}
        producer = Client(driver, "producer", {**given, **KEYS})
        word = uuid.uuid4().hex
        consumer = Client(
            driver,
            "push",
            {"namesrv": node.namesrv, "group": "java-shop", "topics": {TOPIC: word}, **KEYS},
        )
        assert producer.send(TOPIC, "x", tag=word)["id"]
        assert [one["tag"] for one in consumer.wait_for(1)] == [word]
        for wrong in ({}, {**KEYS, "secret_key": "guess-guess"}):
            stranger = Client(driver, "producer", {**given, "group": "strangers", **wrong})
            with pytest.raises(DriverError):
                stranger.send(TOPIC, "x")


@pytest.fixture(scope="module")
def tools(
    rocket: RocketSite, node: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., str]]:
    folder = tmp_path_factory.mktemp("tools")
    driver = RocketDriver(rocket.java, folder, heap_mb=256)

    def run(line: str, *, signed: bool = True) -> str:
        file = home_of(folder) / "conf" / "tools.yml"
        file.parent.mkdir(parents=True, exist_ok=True)
        secret = PASSWORD if signed else "guess-guess"
        file.write_text(f"accessKey: {USER}\nsecretKey: {secret}\n")
        client = Client(driver, "admin", {"namesrv": node.namesrv})
        said = client("run", arguments=[*line.split(), "-n", node.namesrv])
        client.close()
        return str(said)

    yield run
    driver.stop()


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("updateTopic -c DefaultCluster -t made_by_tools", "success"),
        ("updateKvConfig -s space -k key -v value", "success"),
        ("deleteKvConfig -s space -k key", "success"),
        ("wipeWritePerm -b broker-a", "wipe write perm"),
        ("addWritePerm -b broker-a", "add write perm"),
        ("getNamesrvConfig", "listenPort"),
    ],
)
def test_javas_tools(node: Guarded, tools: Callable[..., str], line: str, word: str) -> None:
    refused = tools(line, signed=False)
    assert word not in refused or re.search(f"{FAILED}|AclException", refused), refused
    said = tools(line)
    assert word in said, said
    assert "AclException" not in said


@pytest.mark.parametrize(
    ("line", "word"),
    [("topicList", TOPIC), ("clusterList", "broker-a"), (f"topicRoute -t {TOPIC}", "broker-a")],
)
def test_java_asks_the_name_server_without_a_valid_signature(
    node: Guarded, tools: Callable[..., str], line: str, word: str
) -> None:
    assert word in tools(line, signed=False)


async def test_our_clients_beside_them(node: Guarded) -> None:
    async with (
        connect_tubemq(f"tubemq://{node.master}", **ACCOUNT) as client,  # type: ignore[arg-type]
        client.producer(TOPIC) as producer,
    ):
        await producer.send(Message(TOPIC, b"ours"))
        assert TOPIC in [topic.name for topic in await client.admin().topics.list()]
    async with connect_rocketmq(f"rocketmq://{node.namesrv}", **ACCOUNT) as rocket:  # type: ignore[arg-type]
        assert TOPIC in [topic.name for topic in await rocket.admin().topics.list()]


async def test_javas_administration_tool(node: Guarded) -> None:
    """It calls by POST, without any header of a browser; with accounts it needs a token."""
    tool = prepare("tubemq").command("org.apache.inlong.tubemq.server.tools.cli.CliWebapiAdmin")
    async with async_embedded_node() as unguarded:
        listed = "admin_query_topic_info"
        for port, expected in ((unguarded.admin_port, listed), (node.admin_port, "unauthorized")):
            asked = ["--master-portal", f"{HOST}:{port}", "--show-methods"]
            done = await asyncio.create_subprocess_exec(
                *tool, *asked, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            said, _ = await done.communicate()
            assert expected in said.decode(), said.decode()[-500:]


@pytest.mark.parametrize("agent", ["Java/17.0.9", "Apache-HttpClient/4.5.13 (Java/17.0.9)"])
async def test_javas_tools_may_change_by_get(agent: str) -> None:
    async with async_embedded_node() as node:
        query = "method=admin_set_offset&groupName=g&topicName=t&modifyUser=me&confModAuthToken=abc"
        url = f"http://{HOST}:{node.admin_port}/broker.htm?{query}"
        asking = urllib.request.Request(url, headers={"User-Agent": agent})
        said = await asyncio.to_thread(lambda: urllib.request.urlopen(asking).read())
        assert b'"result":true' in said
