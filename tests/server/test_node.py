"""A whole node over sockets: start, stop, restart, and periodic work."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coherer import _net as net
from coherer._server.node.node import Node
from coherer._store import Store
from coherer._store.config_files import unsealed
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer.errors import StoreError, UsageError
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

CHILD = Path(__file__).with_name("node_child.py")


async def test_a_topic_is_usable_at_once(node: Node) -> None:
    assert node.url == f"tubemq://127.0.0.1:{node.master_port}"
    assert node.topics()["demo"] == {1: 4}
    assert str(node.broker_port) in node.describe()
    assert "admin" not in node.describe()
    assert not node.create_topic("demo", 9), "it is there"
    broker = await to_broker(node)
    sent = await broker.ask(methods.SEND_MESSAGE, message())
    assert (sent.success, sent.appendOffset) == (True, 0)
    master = await to_master(node)
    assert (await master.ask(methods.PRODUCER_REGISTER, producer("demo"))).success
    assert await topic_infos(master, "demo") == ["demo#1:4:1#"]
    assert node.create_topic("more", 2)
    assert await topic_infos(master, "demo", "more") == ["demo#1:4:1#", "more#1:2:1#"]
    assert (await broker.ask(methods.SEND_MESSAGE, message(topicName="more"))).success
    assert node.delete_topic("more")
    assert not node.delete_topic("more")
    refused = await broker.ask(methods.SEND_MESSAGE, message(topicName="more"))
    assert refused.errCode == 403
    assert node.create_topic("more", 3), "the name can be used again"
    sent = await broker.ask(methods.SEND_MESSAGE, message(topicName="more", partitionId=2))
    assert (sent.success, sent.appendOffset) == (True, 0)


async def test_naming_a_topic_creates_it(node: Node) -> None:
    master, broker = await to_master(node), await to_broker(node)
    await master.ask(methods.PRODUCER_REGISTER, producer("fresh"))
    assert await topic_infos(master, "fresh") == ["fresh#1:8:1#"]
    assert (await broker.ask(methods.SEND_MESSAGE, message(topicName="fresh"))).success


async def test_a_waiting_get_is_answered_within_a_moment(node: Node) -> None:
    consumer, sender = await to_broker(node), await to_broker(node)
    await register(consumer)
    loop = asyncio.get_running_loop()
    waits: list[float] = []
    for _ in range(20):
        waiting = asyncio.ensure_future(get(consumer))
        await sender.ask(methods.COMMIT_OFFSET, pb.CommitOffsetRequestC2B(**WHO))
        begin = loop.time()
        await sender.ask(methods.SEND_MESSAGE, message())
        assert len((await waiting).messages) == 1
        waits.append(loop.time() - begin)
    assert sorted(waits)[10] < 0.1, "Java: 300 ms"


async def test_a_second_start_finds_everything(tmp_path: Path) -> None:
    async with Node(options(tmp_path)) as node:
        node.create_topic("demo", 4)
        node.create_topic("gone", 1)
        broker = await to_broker(node)
        for number in range(5):
            sent = await broker.ask(methods.SEND_MESSAGE, message(b"%d" % number))
            assert sent.success
        await register(broker)
        assert len((await get(broker)).messages) == 5
        await broker.ask(methods.COMMIT_OFFSET, pb.CommitOffsetRequestC2B(**WHO))
        await broker.ask(methods.SEND_MESSAGE, message(b"unread"))
        node.delete_topic("gone")
    await broker.gone.wait()
    for _ in range(2):
        async with Node(options(tmp_path)) as node:
            topics = node.topics()
            assert topics["demo"] == {1: 4}
            assert "gone" not in topics
            broker = await to_broker(node)
            taken = await register(broker, clientId="another")
            assert (taken.currOffset, taken.maxOffset) == (5, 6)
            found = await get(broker, clientId="another")
            assert [one.payLoadData for one in found.messages] == [b"unread"]
    await node.stop()


async def test_a_stop_answers_pending_requests(tmp_path: Path) -> None:
    node = Node(options(tmp_path, flush="sync"))
    await node.start()
    node.create_topic("demo", 4)
    broker, other = await to_broker(node), await to_broker(node)
    await register(other)
    sends = [broker.post(methods.SEND_MESSAGE, message()) for _ in range(50)]
    waiting = asyncio.ensure_future(get(other, partitionId=1))
    await broker.ask(methods.COMMIT_OFFSET, pb.CommitOffsetRequestC2B(**WHO))
    await node.stop()
    async with asyncio.timeout(10):
        await asyncio.gather(*sends, waiting)
        await broker.gone.wait()
        await other.gone.wait()


async def test_a_port_or_directory_in_use(tmp_path: Path) -> None:
    async with Node(options(tmp_path / "a")) as node:
        for port in ("master_port", "broker_port"):
            taken = options(tmp_path / "b", **{port: getattr(node, port)})
            with pytest.raises(UsageError, match="another port"):
                await Node(taken).start()
        with pytest.raises(StoreError):
            await Node(options(tmp_path / "a")).start()
        assert (
            await (await to_broker(node)).ask(17, pb.GetMessageRequestC2B(**WHO))
        ).errCode == 403
    async with Node(options(tmp_path / "b")):
        pass


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"roles": frozenset()}, "master, a broker"),
        ({"roles": frozenset({"cook"})}, "master, a broker"),
        ({"roles": frozenset({"broker"})}, "needs `master`"),
        ({"master": "tubemq://a:1"}, "needs `master`"),
        ({"host": "0.0.0.0"}, "advertised_host"),
        ({"broker_id": 0}, "broker_id"),
        ({"broker_id": 40_000}, "broker_id"),
        ({"default_partitions": 0}, "`default_partitions` is 0; it must be 1 to 10000"),
        ({"heartbeat_ms": 0}, "heartbeat_ms"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        options(tmp_path, **given)


@pytest.mark.parametrize(
    "given",
    [{"lease_timeout_ms": 0}, {"client_timeout_ms": 0}, {"hold_ms": -1}, {"transfer_bytes": 0}],
)
async def test_invalid_numbers_of_options(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="or more"):
        await Node(options(tmp_path, **given)).start()


@pytest.mark.parametrize("master", ["tubemq://", "tubemq://a:x", "tubemq://a:1,,b:2"])
async def test_invalid_master_urls(tmp_path: Path, master: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        await Node(options(tmp_path, roles=frozenset({"broker"}), master=master)).start()


OPEN = {"host": "0.0.0.0", "advertised_host": "127.0.0.1"}


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({}, None),
        ({"host": "localhost"}, None),
        (OPEN, "Set `users`, or"),
        ({**OPEN, "users": {"a": "b"}}, None),
        ({**OPEN, "rocketmq_access": True}, None),
        ({"users": {"a": "b"}}, None),
        ({"users": {"a": "b"}, "unprotected": frozenset({"tubemq"})}, "TubeMQ is served without"),
        ({"users": {"a": "b"}, "unprotected": frozenset({"rocketmq"})}, "RocketMQ is served with"),
        ({"users": {"a": "b"}, "unprotected": frozenset({"namesrv"})}, "Remove namesrv from"),
        (
            {"users": {"a": "b"}, "admin_port": 0, "unprotected": frozenset({"admin"})},
            "Queries over HTTP are",
        ),
        ({"users": {"a": "b"}, "admin_token": "abc"}, "well-known abc"),
        ({"users": {"a": "b"}, "ha_port": 0}, "can copy the log without an account"),
    ],
)
async def test_open_parts_are_warned_of(
    tmp_path: Path, given: dict[str, Any], advice: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(options(tmp_path, **given)) as node:
        assert (await to_master(node)).wire.peer_host == "127.0.0.1"
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert bool(warned) == (advice is not None), warned
    assert (advice or "") in caplog.text


async def test_periodic_work_continues_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coherer._server.node.node.TICK_S", 0.001)
    ticked = asyncio.Event()
    troubles = iter([StoreError("disk trouble"), ZeroDivisionError("unexpected error")])
    async with Node(options(tmp_path)) as node:
        assert node.master is not None

        def tick() -> None:
            for trouble in troubles:
                raise trouble
            ticked.set()

        node.upkeep.replace("balancing TubeMQ groups", tick)
        async with asyncio.timeout(10):
            await ticked.wait()
    assert "disk trouble" in caplog.text
    assert "unexpected error" in caplog.text


async def test_a_stop_continues_when_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(options(tmp_path))
    await node.start()
    assert node.core is not None
    peer = await to_broker(node)

    def fail(*_: object) -> None:
        raise StoreError("disk trouble")

    node.core.offsets.open("g", "t", 0).offset = 1
    with monkeypatch.context() as patch:
        patch.setattr(Store, "save_config", fail)
        with pytest.raises(StoreError, match="disk trouble"):
            await node.stop()
    await peer.gone.wait()
    await node.stop()
    async with Node(options(tmp_path)):
        pass


async def test_positions_and_cleaning_have_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TICK_S", "POSITIONS_EVERY_MS", "CLEAN_EVERY_MS"):
        monkeypatch.setattr(f"coherer._server.node.node.{name}", 0.001 if name == "TICK_S" else 1)
    cleaned = asyncio.Event()
    async with Node(options(tmp_path, heartbeat_ms=1)) as node:
        node.create_topic("demo", 4)
        broker = await to_broker(node)
        await register(broker)
        assert node.core is not None
        node.upkeep.replace("deleting expired messages", cleaned.set)
        async with asyncio.timeout(10):
            await cleaned.wait()
            cleaned.clear()
            await cleaned.wait()
        file = tmp_path / "config" / "consumerOffset.json"
        assert unsealed(file.read_bytes()) == b'{"offsetTable":{"demo@g":{1:0}}}'


async def test_sent_messages_are_flushed_periodically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With async flush a receipt outlives a power cut once the interval is over."""
    durable: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    async with Node(options(tmp_path, flush_interval_ms=1)) as node:
        node.create_topic("demo", 4)
        assert node.core is not None
        store = node.core.store
        flush = store.flush

        def flushed() -> int:
            loop.call_soon_threadsafe(durable.put_nowait, offset := flush())
            return offset

        monkeypatch.setattr(store, "flush", flushed)
        broker = await to_broker(node)
        assert (await broker.ask(methods.SEND_MESSAGE, message())).success
        async with asyncio.timeout(10):
            while await durable.get() < store.end_offset:
                pass


def test_a_fresh_node_is_small(tmp_path: Path) -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("there is no /proc here")
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(tmp_path), "async"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert set(json.loads(process.stdout.readline())) == {"master", "broker"}
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        [resident_kib] = [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
        process.communicate(b"", timeout=30)
        assert process.returncode == 0
    assert resident_kib < 60 * 1024


def test_limits_of_connections_belong_to_a_node(tmp_path: Path) -> None:
    small = options(tmp_path, write_buffer_bytes=1 << 20, connections_max=5)
    assert Node(small).budget.limits.write_buffer_high_bytes == 1 << 20
    assert Node(small).budget.limits.connections_max == 5
    assert Node(options(tmp_path)).budget.limits == net.ConnectionLimits()
    with pytest.raises(UsageError, match="`write_buffer_bytes` is 10; it must be 65536 or more"):
        options(tmp_path, write_buffer_bytes=10)
