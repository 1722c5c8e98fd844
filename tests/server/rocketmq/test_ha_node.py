"""Nodes as master and slave: what a slave copies, serves and refuses, and its promotion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coherer import _net as net
from coherer._record.properties import encode
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.groups import Group
from coherer._server.core.core import Core
from coherer._server.node.metrics import Metrics
from coherer._server.node.node import Node, NodeOptions
from coherer._server.rocketmq.ha.slave import MetadataSync
from coherer._store.offset_reserve import LEAD_MIN
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer.errors import UnavailableError, UsageError
from tests.interop.peers.process import free_ports
from tests.server.rocket_harness import Client, bodies_of, pull_fields, send_fields
from tests.waiting import until

PEM = Path(__file__).parents[2] / "net" / "localhost.pem"


class Harness:
    """A master with a name server, and slaves of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.master: Node
        self._nodes: list[Node] = []
        self._clients: list[Client] = []

    async def start(self, **options: Any) -> Harness:
        self.master = await self.node("master", namesrv_port=0, ha_port=0, **options)
        assert self.master.core is not None
        now_ms = time.time_ns() // 10**6
        self.master.core.topics.put(Topic(name="t", read_queues=2, write_queues=2), now_ms)
        self.master.core.groups.put(Group(group_name="g", retry_max_times=5), now_ms)
        return self

    async def node(self, name: str, **options: Any) -> Node:
        usual: dict[str, Any] = {
            "protocols": frozenset({"rocketmq"}),
            "admin_port": None,
            "rocketmq_port": 0,
            "segment_bytes": 1 << 20,
        }
        node = Node(NodeOptions(directory=self.directory / name, **{**usual, **options}))
        self._nodes.append(node)
        await node.start()
        return node

    async def slave(self, *, scheme: str = "", **options: Any) -> Node:
        node = await self.node(
            "slave",
            roles=frozenset({"broker"}),
            namesrv=f"{scheme}127.0.0.1:{self.master.namesrv_port}",
            role="SLAVE",
            rocketmq_broker_id=1,
            **options,
        )
        async with asyncio.timeout(10):
            await node.ready()
        return node

    async def dial(self, node: Node, tls: net.TlsOptions | None = None) -> Client:
        client = await Client.dial(node.rocketmq_port, tls)
        assert isinstance(client, Client)
        self._clients.append(client)
        return client

    async def stop(self) -> None:
        for client in self._clients:
            client.connection.close()
        for node in reversed(self._nodes):
            await node.stop()


async def bodies(client: Client, queue: int = 0) -> list[bytes]:
    found: list[bytes] = []
    at, end = 0, 1
    while at < end:
        fields = pull_fields(topic="t", queueId=queue, queueOffset=at)
        answer = await client.ask(Code.PULL_MESSAGE, fields)
        found += bodies_of(answer)
        at, end = int(answer.fields["nextBeginOffset"]), int(answer.fields["maxOffset"])
    return found


async def send(client: Client, body: bytes, **properties: str) -> int:
    born_ms = time.time_ns() // 10**6
    fields = send_fields(b="t", e="0", g=born_ms, i=encode(properties).decode())
    return (await client.ask(Code.SEND_MESSAGE_V2, fields, body)).code


async def offset(client: Client, group: str) -> str | None:
    where = {"consumerGroup": group, "topic": "t", "queueId": "1"}
    return (await client.ask(Code.QUERY_CONSUMER_OFFSET, where)).fields.get("offset")


def metadata(node: Node) -> MetadataSync:
    assert node.rocketmq.replicator is not None
    assert node.rocketmq.replicator.metadata is not None
    return node.rocketmq.replicator.metadata


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    made = Harness(tmp_path)
    try:
        yield made
    finally:
        await made.stop()


async def test_a_slave_follows_log_and_tables(harness: Harness) -> None:
    await harness.start()
    client = await harness.dial(harness.master)
    assert await send(client, b"before") == 0
    where = {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": "7"}
    await client.ask(Code.UPDATE_CONSUMER_OFFSET, where)
    slave = await harness.slave()
    await metadata(slave).run_once()
    reader = await harness.dial(slave)
    assert await send(client, b"after") == 0

    async def has_both() -> bool:
        return await bodies(reader) == [b"before", b"after"]

    await until(has_both)
    assert slave.core is not None
    assert harness.master.core is not None
    assert slave.core.topics["t"] == harness.master.core.topics["t"]
    assert slave.core.topics.version == harness.master.core.topics.version
    group = slave.core.groups.get("g")
    assert group is not None
    assert group.retry_max_times == 5
    assert await offset(reader, "g") == "7"


async def test_a_slave_that_lags_is_not_ahead_with_its_offsets(harness: Harness) -> None:
    """Otherwise a group would have passed a message whose retry is lost with the master."""
    await harness.start()
    client = await harness.dial(harness.master)
    assert await send(client, b"x") == 0
    slave = await harness.slave()
    await metadata(slave).run_once()
    assert slave.core is not None
    store, ha = slave.core.store, slave.rocketmq.replicator
    assert ha is not None
    assert ha.slave is not None
    await until(lambda: store.end_offset > 0)
    await ha.slave.close()
    assert await send(client, b"y") == 0
    where = {"consumerGroup": "g", "topic": "t", "queueId": "1", "commitOffset": "7"}
    await client.ask(Code.UPDATE_CONSUMER_OFFSET, where)
    copying = asyncio.create_task(metadata(slave).run_once())
    reader = await harness.dial(slave)
    for _ in range(20):  # more requests than it takes to copy everything
        assert await offset(reader, "g") == "0"
    ha.slave.start()
    await copying
    assert await offset(reader, "g") == "7"


async def test_a_slave_asks_for_topics_that_it_does_not_know(harness: Harness) -> None:
    await harness.start()
    slave = await harness.slave()
    await metadata(slave).run_once()
    assert slave.core is not None
    assert harness.master.core is not None
    topics = slave.core.topics
    harness.master.core.topics.put(Topic(name="new"), time.time_ns() // 10**6)
    client = await harness.dial(harness.master)
    assert (await client.ask(Code.SEND_MESSAGE_V2, send_fields(b="new", e="0"), b"x")).code == 0
    await until(lambda: "new" in topics)  # long before the next ten seconds are over


async def test_operators_see_slaves(harness: Harness) -> None:
    await harness.start(role="SYNC_MASTER")
    client = await harness.dial(harness.master)
    assert await send(client, b"alone") == 11
    assert "coherer_slaves{" in await page(harness.master)
    assert "No slave copies the log of this SYNC_MASTER" in await warnings(harness.master)
    slave = await harness.slave()
    assert harness.master.core is not None
    end = harness.master.core.store.end_offset

    async def copied() -> bool:
        return ',slave="127.0.0.1"} ' in await page(harness.master)

    await until(copied)
    assert slave.core is not None
    store = slave.core.store
    await until(lambda: store.end_offset == end)
    assert value("coherer_slaves", await page(harness.master)) == 1
    await until_value("coherer_slave_behind_bytes", 0, harness.master)
    assert value("coherer_master_connected", await page(slave)) == 1
    assert "slave" not in await warnings(harness.master) + await warnings(slave)
    await harness.master.stop()
    await until_value("coherer_master_connected", 0, slave)
    assert "This slave does not copy the log of its master." in await warnings(slave)


async def page(node: Node) -> str:
    return (await Metrics(node).text()).decode()


async def warnings(node: Node) -> str:
    return " ".join(one.text for one in (await Metrics(node).status()).warnings)


def value(name: str, text: str) -> float | None:
    lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return float(lines[0].rpartition(" ")[2]) if lines else None


async def until_value(name: str, wanted: float, node: Node) -> None:
    async def has_it() -> bool:
        return value(name, await page(node)) == wanted

    await until(has_it)


async def test_a_slave_refuses_sends(harness: Harness) -> None:
    await harness.start()
    slave = await harness.slave()
    await metadata(slave).run_once()
    assert await send(await harness.dial(slave), b"x") != 0
    assert slave.core is not None
    assert slave.core.store.end_offset == 0


async def test_a_suspended_pull_at_a_slave_gets_replicated_messages(harness: Harness) -> None:
    await harness.start()
    slave = await harness.slave()
    await metadata(slave).run_once()
    reader, client = await harness.dial(slave), await harness.dial(harness.master)
    held = reader.begin_pull(topic="t", sysFlag=4 | 2, suspendTimeoutMillis=30_000)
    await reader.settle()
    assert await send(client, b"news") == 0
    async with asyncio.timeout(20):
        assert bodies_of(await held) == [b"news"]


async def test_sends_to_a_synchronous_master_wait_for_its_slave(harness: Harness) -> None:
    await harness.start(role="SYNC_MASTER")
    client = await harness.dial(harness.master)
    assert await send(client, b"alone") == 11  # SLAVE_NOT_AVAILABLE: stored, not replicated
    slave = await harness.slave()

    async def waited() -> bool:
        return await send(client, b"together") == 0

    await until(waited)
    assert await send(client, b"last") == 0
    assert slave.core is not None
    assert harness.master.core is not None
    assert slave.core.store.end_offset == harness.master.core.store.end_offset


async def test_a_slave_that_stops_closes_its_connection(harness: Harness) -> None:
    await harness.start()
    slave = await harness.slave()
    assert harness.master.rocketmq.replicator is not None
    master = harness.master.rocketmq.replicator.master
    assert master is not None
    await until(lambda: master.slaves)
    await slave.stop()
    await until(lambda: not master.slaves)


async def test_a_slave_restarted_as_a_master(harness: Harness) -> None:
    quick = {"transaction_timeout_ms": 1, "transaction_interval_ms": 100}
    await harness.start()
    client = await harness.dial(harness.master)
    slave = await harness.slave()
    assert await send(client, b"plain") == 0
    assert await send(client, b"late", DELAY="1") == 0
    assert await send(client, b"half", TRAN_MSG="true", PGROUP="payers") == 0
    assert harness.master.core is not None
    assert slave.core is not None
    theirs, ours = harness.master.core.store, slave.core.store

    async def followed() -> bool:
        return ours.end_offset == theirs.end_offset

    await until(followed)
    await metadata(slave).run_once()
    await slave.stop()
    await harness.master.stop()
    heir = await harness.node("slave", namesrv_port=0, **quick)
    reader = await harness.dial(heir)

    async def delivered() -> bool:
        return b"late" in await bodies(reader)

    await until(delivered)
    assert await bodies(reader) == [b"plain", b"late"]
    assert heir.core is not None
    store = heir.core.store

    async def asked() -> bool:
        return store.queue_range("RMQ_SYS_TRANS_HALF_TOPIC", 0)[1] > 1

    await until(asked)


async def test_nothing_is_copied_from_a_master_that_came_back_as_an_empty_slave(
    harness: Harness,
) -> None:
    """Another slave replaces it, and no name server has said so yet."""
    # Elsewhere a new connection could take the port while nobody listens.
    [port] = free_ports(1)
    await harness.start(rocketmq_port=port)
    slave = await harness.slave()
    await metadata(slave).run_once()
    before = slave.core and (slave.core.topics.dump(), slave.core.groups.dump())
    await harness.master.stop()
    role: dict[str, Any] = {"roles": frozenset({"broker"}), "role": "SLAVE"}
    await harness.node(
        "new", namesrv="127.0.0.1:9", rocketmq_port=port, rocketmq_broker_id=2, **role
    )
    with pytest.raises(UnavailableError, match="has become a slave"):
        await metadata(slave).run_once()
    assert before == (slave.core and (slave.core.topics.dump(), slave.core.groups.dump()))


async def test_a_second_promotion_knows_the_gap_of_the_first(harness: Harness) -> None:
    """No message follows the first one, and a reader is in its gap."""
    await harness.start()
    client = await harness.dial(harness.master)
    assert await send(client, b"before") == 0
    slave = await harness.slave()
    await until(lambda: _ends(slave) == _ends(harness.master))
    await metadata(slave).run_once()
    await slave.stop()
    await harness.master.stop()
    role: dict[str, Any] = {
        "roles": frozenset({"broker"}),
        "role": "SLAVE",
        "rocketmq_broker_id": 1,
    }
    for _ in range(2):  # its gap is longer than that of the next heir
        await (await harness.node("slave", namesrv_port=0, ha_port=0)).stop()
        await (await harness.node("slave", namesrv="127.0.0.1:9", **role)).stop()
    first = harness.master = await harness.node("slave", namesrv_port=0, ha_port=0)
    reader = await harness.dial(first)
    await reader.ask(Code.PULL_MESSAGE, pull_fields(topic="t", queueId=0, queueOffset=2))
    _, seen = _core(first).store.queue_range("t", 0)
    second = await harness.node("second", namesrv=f"127.0.0.1:{first.namesrv_port}", **role)
    await until(lambda: _ends(second) == _ends(first))
    await metadata(second).run_once()
    await second.stop()
    await first.stop()
    second = await harness.node("second", namesrv_port=0)
    assert await send(await harness.dial(second), b"after") == 0
    assert _core(second).store.queue_range("t", 0)[1] > seen > LEAD_MIN


def _core(node: Node) -> Core:
    assert node.core is not None
    return node.core


def _ends(node: Node) -> int:
    return _core(node).store.end_offset


async def test_replication_in_secret(harness: Harness) -> None:
    tls = net.TlsOptions(certificate=PEM, key=PEM, verify=False)
    await harness.start(tls=tls, tls_required=True)
    slave = await harness.slave(scheme="rocketmqs://", tls=tls)
    assert await send(await harness.dial(harness.master, net.TlsOptions(verify=False)), b"x") == 0
    assert slave.core is not None
    store = slave.core.store

    async def followed() -> bool:
        return store.end_offset > 0

    await until(followed)


@pytest.mark.parametrize(
    "options",
    [
        {"role": "SLAVE"},
        {"role": "SLAVE", "rocketmq_broker_id": 1},
        {"rocketmq_broker_id": 1},
        {"role": "SYNC_MASTER"},
    ],
)
def test_roles_that_cannot_be(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        NodeOptions(directory=tmp_path, **options)
