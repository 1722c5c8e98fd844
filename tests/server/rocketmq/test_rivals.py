"""Two masters with one name: the second serves nothing while the first one runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer._record.ids import decode_offset_id
from coherer._rules.rocketmq.routes import BrokerRegistration, RouteTable
from coherer._server.node.node import Node
from coherer._server.rocketmq.broker import registration as registering
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer.testing import ManualClock
from tests.server.node_harness import options
from tests.server.rocket_harness import Client, pull_fields, running, send_fields
from tests.waiting import until


@pytest.fixture
async def names(tmp_path: Path) -> AsyncIterator[str]:
    """A name server of its own."""
    made = options(
        tmp_path / "names", roles=frozenset({"master"}), protocols=frozenset({"rocketmq"})
    )
    async with Node(made) as node:
        yield f"127.0.0.1:{node.namesrv_port}"


def broker(directory: Path, names: str, **given: object) -> Node:
    usual = {"namesrv": names, "roles": frozenset({"broker"}), "protocols": frozenset({"rocketmq"})}
    return Node(options(directory, **{**usual, **given}))


async def codes(node: Node) -> list[int]:
    """What a send, a pull and a message that is given back are answered with."""
    client = await Client.dial(node.rocketmq_port)
    sent = await client.ask(Code.SEND_MESSAGE_V2, send_fields(b="flights"), b"x")
    read = await client.ask(Code.PULL_MESSAGE, pull_fields(topic="flights"))
    back = {"offset": "0", "group": "g", "delayLevel": "0"}
    given_back = await client.ask(Code.CONSUMER_SEND_MSG_BACK, back)
    client.connection.close()
    return [sent.code, read.code, given_back.code]


async def test_an_old_master_that_comes_back_serves_nothing(
    tmp_path: Path, names: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registering, "RETRY_S", 0.02)
    old = broker(tmp_path / "old", names)
    async with broker(tmp_path / "new", names) as new:
        await new.ready()
        assert await codes(new) == [0, 0, 0]
        async with old:
            await until(lambda: "Another broker is the master of broker-a" in caplog.text)
            assert await codes(old) == [14, 14, 14]
            assert old.not_ready() is not None
            client = await Client.dial(int(names.rpartition(":")[2]))
            found = await client.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "flights"})
            assert f":{new.rocketmq_port}".encode() in bytes(found.body)
            assert f":{old.rocketmq_port}".encode() not in bytes(found.body)
            client.connection.close()
            await new.stop()
            name_server = await Client.dial(int(names.rpartition(":")[2]))
            asked = await name_server.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "flights"})
            assert asked.code != 0, "the new master has left, and the old one has not come"
            name_server.connection.close()
            assert await codes(old) == [14, 14, 14]
    async with old:
        async with asyncio.timeout(20):
            await old.ready()
        assert await codes(old) == [0, 0, 0]


async def test_beside_another_master_nothing_that_waits_is_stored(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Delayed messages, and the ends of transactions: the other master has them."""
    async with running(tmp_path, clock) as harness:
        client = await harness.dial()
        assert (await client.send(b"late", i="DELAY\x011")).code == 0
        properties = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x010A"
        half = await client.send(b"half", f=4, i=properties)
        end = {
            "producerGroup": "producers",
            "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": str(decode_offset_id(half.fields["msgId"]).physical_offset),
            "commitOrRollback": "8",
        }
        harness.state.rival_found("10.0.0.2:10911")
        stored = harness.store.written_offset
        clock.advance(5_000)
        harness.broker.tick()
        answer = await client.ask(Code.END_TRANSACTION, end)
        await harness.stored()
        assert (answer.code, harness.store.written_offset) == (14, stored)
        harness.state.rival_found(None)
        harness.broker.tick()
        assert (await client.ask(Code.END_TRANSACTION, end)).code == 0
        await harness.stored()
        assert {one.body for one in harness.records("demo")} == {b"late", b"half"}
        client.connection.close()


async def test_other_brokers_and_earlier_runs_are_no_rivals(tmp_path: Path, names: str) -> None:
    async with broker(tmp_path / "a", names) as first:
        await first.ready()
        other = broker(tmp_path / "b", names, broker_name="broker-b")
        port = first.rocketmq_port
        async with other:
            await other.ready()
            assert await codes(other) == [0, 0, 0]
    client = await Client.dial(int(names.rpartition(":")[2]))
    for address in (f"127.0.0.1:{port}", "127.0.0.1:1"):  # nobody listens there any more
        registration = {
            "brokerName": "broker-a",
            "brokerAddr": address,
            "clusterName": "DefaultCluster",
            "brokerId": "0",
        }
        assert (await client.ask(Code.REGISTER_BROKER, registration)).code == 0
    async with broker(tmp_path / "a", names) as again:
        async with asyncio.timeout(20):
            await again.ready()
        assert await codes(again) == [0, 0, 0]


async def test_a_broker_that_is_reached_at_two_addresses_is_not_its_own_rival(
    tmp_path: Path, names: str
) -> None:
    async with broker(tmp_path / "a", names, advertised_host="localhost") as node:
        await node.ready()
        port = node.rocketmq_port
    client = await Client.dial(int(names.rpartition(":")[2]))
    registration = {
        "brokerName": "broker-a",
        "brokerAddr": f"127.0.0.1:{port}",
        "clusterName": "DefaultCluster",
        "brokerId": "0",
    }
    assert (await client.ask(Code.REGISTER_BROKER, registration)).code == 0
    made = broker(tmp_path / "a", names, advertised_host="localhost", rocketmq_port=port)
    async with made as again:
        async with asyncio.timeout(20):
            await again.ready()
        assert await codes(again) == [0, 0, 0]


def test_a_name_server_warns_of_two_masters(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    table = RouteTable()

    def register(address: str, broker_id: int = 0) -> None:
        table.register(
            BrokerRegistration(
                cluster="c", broker="broker-a", broker_id=broker_id, address=address
            ),
            now_ms=0,
        )

    register("10.0.0.1:10911")
    register("10.0.0.2:10911", 1)
    register("10.0.0.1:10911")
    assert caplog.text == ""
    register("10.0.0.2:10911")
    assert "10.0.0.1:10911 has not left" in caplog.text
    caplog.clear()
    table.unregister("broker-a", 0, "10.0.0.2:10911")
    register("10.0.0.3:10911")
    assert caplog.text == ""
