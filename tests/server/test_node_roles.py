"""Separate masters and brokers, over sockets and TLS."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coherer import _net as net
from coherer._server.node.node import Node
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer.errors import StoreError, UsageError
from coherer.testing import ManualClock
from tests.server.node_harness import (
    WHO,
    get,
    message,
    options,
    producer,
    register,
    to_broker,
    to_master,
    topic_infos,
)
from tests.server.raw_client import RawClient

PEM = Path(__file__).parent.parent / "net" / "localhost.pem"


async def test_a_master_and_two_brokers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        master = Node(options(tmp_path / "m", roles=frozenset({"master"})))
        await stack.enter_async_context(master)
        brokers = [
            Node(
                options(
                    tmp_path / f"b{number}",
                    roles=frozenset({"broker"}),
                    master=master.url.removeprefix("tubemq://"),
                    broker_id=number,
                    heartbeat_ms=10,
                )
            )
            for number in (1, 2)
        ]
        for broker in brokers:
            await stack.enter_async_context(broker)
            async with asyncio.timeout(10):
                await broker.ready()
            assert broker.url == master.url
            for refused in (broker.topics, lambda b=broker: b.create_topic("x")):
                with pytest.raises(UsageError, match="not a master"):
                    refused()
        master.create_topic("demo", 4)
        assert master.topics()["demo"] == {1: 4, 2: 4}
        asker = await to_master(master)
        await asker.ask(methods.PRODUCER_REGISTER, producer("demo"))
        async with asyncio.timeout(10):
            while (await topic_infos(asker, "demo")) != ["demo#1:4:1,2:4:1#"]:
                pass  # each turn asks the master, and lets the brokers talk to it
        ids = set()
        for broker in brokers:
            sent = await (await to_broker(broker)).ask(methods.SEND_MESSAGE, message())
            assert (sent.success, sent.appendOffset) == (True, 0)
            ids.add(sent.messageId >> 48)
        assert ids == {1, 2}
        await brokers[0].stop()
        async with asyncio.timeout(10):
            while (await topic_infos(asker, "demo")) != ["demo#2:4:1#"]:
                pass


async def test_a_broker_waits_for_its_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    free = await net.listen("127.0.0.1", 0, RawClient)
    await free.close()
    broker = Node(
        options(
            tmp_path / "b",
            roles=frozenset({"broker"}),
            master=f"tubemq://127.0.0.1:{free.port}",
            heartbeat_ms=10,
        )
    )
    async with broker:
        asker = await to_broker(broker)
        assert (await asker.ask(methods.SEND_MESSAGE, message())).errCode == 503
        master = Node(options(tmp_path / "m", roles=frozenset({"master"}), master_port=free.port))
        async with master, asyncio.timeout(10):
            await broker.ready()
            master.create_topic("demo", 4)
            while not (await asker.ask(methods.SEND_MESSAGE, message())).success:
                pass
        assert (await asker.ask(methods.SEND_MESSAGE, message())).success, "without a master, too"
    assert "No connection to a master" in caplog.text


async def test_brokers_sign(tmp_path: Path) -> None:
    secret = {"broker_user": "broker", "broker_password": "secret"}
    async with Node(options(tmp_path / "m", roles=frozenset({"master"}), **secret)) as master:
        async with Node(
            options(tmp_path / "b", roles=frozenset({"broker"}), master=master.url, **secret)
        ) as broker:
            async with asyncio.timeout(10):
                await broker.ready()
        wrong = Node(
            options(
                tmp_path / "w",
                roles=frozenset({"broker"}),
                master=master.url,
                broker_user="broker",
                broker_password="guess",
            )
        )
        async with wrong:
            asker = await to_broker(wrong)
            assert (await asker.ask(methods.SEND_MESSAGE, message())).errCode == 503


async def test_a_master_alone_holds_its_directory(tmp_path: Path) -> None:
    alone = options(tmp_path, roles=frozenset({"master"}))
    async with Node(alone):
        with pytest.raises((StoreError, OSError)):
            await Node(alone).start()
    async with Node(alone):
        pass


async def test_tls(tmp_path: Path) -> None:
    given = options(
        tmp_path,
        tls=net.TlsOptions(certificate=PEM),
        master_tls_port=0,
        broker_tls_port=0,
    )
    async with Node(given) as node:
        node.create_topic("demo", 4)
        trusting = net.TlsOptions(trust=PEM)
        master = await net.dial("127.0.0.1", node.master_tls_port, RawClient, tls=trusting)
        answer = await master.ask(methods.PRODUCER_REGISTER, producer("demo"))
        assert list(answer.brokerInfos) == [f"1:127.0.0.1:{node.broker_tls_port}"]
        broker = await net.dial("127.0.0.1", node.broker_tls_port, RawClient, tls=trusting)
        assert (await broker.ask(methods.SEND_MESSAGE, message())).success


async def test_silent_consumers_lose_their_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._server.node.node.TICK_S", 0.001)
    clock = ManualClock()
    async with Node(options(tmp_path, lease_timeout_ms=5000), now_ms=clock.now_ms) as node:
        node.create_topic("demo", 4)
        one, two = await to_broker(node), await to_broker(node)
        await one.ask(methods.SEND_MESSAGE, message())
        assert (await register(one)).success
        assert len((await get(one)).messages) == 1
        assert (await register(two, clientId="d")).errCode == 410
        waiting = asyncio.ensure_future(get(one, lastPackConsumed=True))
        await one.ask(methods.COMMIT_OFFSET, pb.CommitOffsetRequestC2B(**WHO))
        clock.advance(5000)
        assert (await waiting).errCode in {404, 411}
        assert (await register(two, clientId="d")).success
