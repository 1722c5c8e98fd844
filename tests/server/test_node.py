"""A whole node over sockets: start, stop, start again; roles apart; hostile peers."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from asker import Asker

from coherer import limits, net
from coherer.errors import StoreError, UsageError
from coherer.server.node import Node, NodeOptions
from coherer.testing import ManualClock
from coherer.tubemq import messages as pb
from coherer.tubemq import methods
from coherer.tubemq.frame import encode_frame

CHILD = Path(__file__).with_name("node_child.py")
PEM = Path(__file__).parent.parent / "net" / "localhost.pem"
WHO: dict[str, Any] = {"clientId": "c", "groupName": "g", "topicName": "demo", "partitionId": 1}


def options(directory: Path, **given: Any) -> NodeOptions:
    usual: dict[str, Any] = {
        "directory": directory,
        "master_port": 0,
        "broker_port": 0,
        "admin_port": None,
        "namesrv_port": 0,
        "rocketmq_port": 0,
        "segment_bytes": 1 << 24,
    }
    return NodeOptions(**{**usual, **given})


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(options(tmp_path / "node")) as node:
        node.create_topic("demo", 4)
        yield node


def message(data: bytes = b"hello", **fields: Any) -> pb.SendMessageRequestP2B:
    usual: dict[str, Any] = {
        "clientId": "p",
        "topicName": "demo",
        "partitionId": 1,
        "data": data,
        "flag": 0,
        "checkSum": -1,
        "sentAddr": 0x7F000001,
    }
    return pb.SendMessageRequestP2B(**{**usual, **fields})


async def to_broker(node: Node) -> Asker:
    return await net.dial("127.0.0.1", node.broker_port, Asker)


async def to_master(node: Node) -> Asker:
    return await net.dial("127.0.0.1", node.master_port, Asker)


async def register(asker: Asker, **fields: Any) -> pb.RegisterResponseB2C:
    request = pb.RegisterRequestC2B(**{**WHO, "opType": 31, "readStatus": 0, **fields})
    answer = await asker.ask(methods.PARTITION_REGISTER, request)
    assert isinstance(answer, pb.RegisterResponseB2C)
    return answer


async def get(asker: Asker, **fields: Any) -> pb.GetMessageResponseB2C:
    request = pb.GetMessageRequestC2B(**{**WHO, "lastPackConsumed": True, **fields})
    answer = await asker.ask(methods.GET_MESSAGES, request)
    assert isinstance(answer, pb.GetMessageResponseB2C)
    return answer


def producer(*topics: str) -> pb.RegisterRequestP2M:
    return pb.RegisterRequestP2M(
        clientId="p", topicList=topics, brokerCheckSum=-1, hostName="127.0.0.1"
    )


async def topic_infos(asker: Asker, *topics: str) -> list[str]:
    beat = pb.HeartRequestP2M(
        clientId="p", topicList=topics, brokerCheckSum=-1, hostName="127.0.0.1"
    )
    answer = await asker.ask(methods.PRODUCER_HEARTBEAT, beat)
    assert answer.success, answer
    return sorted(answer.topicInfos)


# -- start and stop


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


async def test_a_topic_comes_into_being_when_it_is_named(node: Node) -> None:
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


async def test_a_stop_answers_what_is_under_way(tmp_path: Path) -> None:
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


async def test_what_is_in_use_is_not_taken(tmp_path: Path) -> None:
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
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, given: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        options(tmp_path, **given)


@pytest.mark.parametrize("master", ["tubemq://", "tubemq://a:x", "tubemq://a:1,,b:2"])
async def test_master_urls_that_are_none(tmp_path: Path, master: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        await Node(options(tmp_path, roles=frozenset({"broker"}), master=master)).start()


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0", "advertised_host": "127.0.0.1"}, True),
        (
            {"host": "0.0.0.0", "advertised_host": "127.0.0.1", "users": {"a": "b"}},
            False,
        ),
    ],
)
async def test_open_to_the_network_without_authentication(
    tmp_path: Path, given: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(options(tmp_path, **given)) as node:
        assert (await to_master(node)).wire.peer_host == "127.0.0.1"
    assert ("without authentication" in caplog.text) == warned


async def test_the_beat_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coherer.server.node.BEAT_S", 0.001)
    beaten = asyncio.Event()
    troubles = iter([StoreError("disk trouble"), ZeroDivisionError("trouble of ours")])
    async with Node(options(tmp_path)) as node:
        assert node.master is not None

        def tick() -> None:
            for trouble in troubles:
                raise trouble
            beaten.set()

        monkeypatch.setattr(node.master, "tick", tick)
        async with asyncio.timeout(10):
            await beaten.wait()
    assert "disk trouble" in caplog.text
    assert "trouble of ours" in caplog.text


async def test_a_stop_goes_on_when_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(options(tmp_path))
    await node.start()
    assert node.core is not None
    peer = await to_broker(node)

    def fail() -> None:
        raise StoreError("disk trouble")

    with monkeypatch.context() as patch:
        patch.setattr(node.core, "positions_to_save", lambda: fail)
        with pytest.raises(StoreError, match="disk trouble"):
            await node.stop()
    await peer.gone.wait()
    await node.stop()
    async with Node(options(tmp_path)):
        pass


async def test_positions_and_cleaning_have_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BEAT_S", "POSITIONS_EVERY_S", "CLEAN_EVERY_S"):
        monkeypatch.setattr(f"coherer.server.node.{name}", 0.001)
    cleaned = asyncio.Event()
    async with Node(options(tmp_path, heartbeat_ms=1)) as node:
        node.create_topic("demo", 4)
        broker = await to_broker(node)
        await register(broker)
        assert node.core is not None
        monkeypatch.setattr(node.core, "clean", cleaned.set)
        async with asyncio.timeout(10):
            await cleaned.wait()
            cleaned.clear()
            await cleaned.wait()
        file = tmp_path / "config" / "consumerOffset.json"
        assert file.read_bytes() == b'{"offsetTable":{"demo@g":{1:0}}}'


async def test_what_was_sent_reaches_the_disk_by_itself(
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


# -- roles apart


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
                    master=master.url,
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
                with pytest.raises(UsageError, match="no master"):
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
    free = await net.listen("127.0.0.1", 0, Asker)
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
    assert "No master has this broker now" in caplog.text


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
        master = await net.dial("127.0.0.1", node.master_tls_port, Asker, tls=trusting)
        answer = await master.ask(methods.PRODUCER_REGISTER, producer("demo"))
        assert list(answer.brokerInfos) == [f"1:127.0.0.1:{node.broker_tls_port}"]
        broker = await net.dial("127.0.0.1", node.broker_tls_port, Asker, tls=trusting)
        assert (await broker.ask(methods.SEND_MESSAGE, message())).success


# -- time


async def test_silent_consumers_lose_their_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer.server.node.BEAT_S", 0.001)
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


# -- hostile peers


async def test_garbage_ends_only_its_connection(node: Node) -> None:
    good = await to_broker(node)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, b"\xff\x7f\xf4\xfe" + b"\xff" * 8):
        for port in (node.broker_port, node.master_port):
            bad = await net.dial("127.0.0.1", port, Asker)
            bad.wire.write(garbage)
            async with asyncio.timeout(10):
                await bad.gone.wait()
    assert (await good.ask(methods.SEND_MESSAGE, message())).success


async def test_half_and_huge_frames_are_bounded(node: Node) -> None:
    half = await to_broker(node)
    half.wire.write(encode_frame(1, b"x" * 5000)[:-1])
    huge = await to_broker(node)
    blocks = limits.FRAME_BLOCKS_MAX
    huge.wire.write(b"\xff\x7f\xf4\xfe\0\0\0\1" + blocks.to_bytes(4, "big"))
    block = (1 << 20).to_bytes(4, "big") + b"y" * (1 << 20)
    async with asyncio.timeout(30):
        for _ in range(2 * limits.FRAME_BYTES_MAX // len(block)):
            if huge.wire.closed:
                break
            huge.wire.write(block)
            await asyncio.sleep(0)
        await huge.gone.wait()
    good = await to_broker(node)
    assert (await good.ask(methods.SEND_MESSAGE, message())).success
    assert not half.gone.is_set()


async def test_a_peer_that_never_reads_costs_little_and_harms_nobody(node: Node) -> None:
    good, bad = await to_broker(node), await to_broker(node)
    for _ in range(4):
        assert (await good.ask(methods.SEND_MESSAGE, message(b"x" * 250_000))).success
    await register(bad)
    bad.wire.pause_reading()
    request = pb.GetMessageRequestC2B(**WHO)
    asked = 400
    for _ in range(asked):
        bad.post(methods.GET_MESSAGES, request)
    await good.ask(methods.COMMIT_OFFSET, pb.CommitOffsetRequestC2B(**WHO))
    highest = 0
    for _ in range(50):
        assert (await good.ask(methods.SEND_MESSAGE, message())).success
        highest = max(highest, *(peer.unsent_bytes for peer in served(node)))
    assert 0 < highest < limits.OUTBOX_HIGH_BYTES + (2 << 20)
    bad.wire.resume_reading()
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*bad.waiting.values())
    assert len(answers) == asked


def served(node: Node) -> list[net.Connection]:
    return [connection for listener in node._listeners for connection in listener._connections]


async def test_many_connections_come_and_go(node: Node) -> None:
    peers = [await to_broker(node) for _ in range(200)]
    answers = [peer.post(methods.SEND_MESSAGE, message()) for peer in peers]
    async with asyncio.timeout(10):
        await asyncio.gather(*answers)
        for peer in peers:
            peer.wire.abort()
        await asyncio.gather(*(peer.gone.wait() for peer in peers))
        good = await to_broker(node)
        while len(served(node)) > 1:
            await good.ask(methods.SEND_MESSAGE, message())
    assert node.broker is not None
    assert node.broker.reads.held == 0


# -- a process of its own


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
    assert resident_kib < 80 * 1024
