"""The client against our own node: what the scripted cluster cannot show."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import coherer
from coherer._net import TlsOptions
from coherer._rules.tubemq.records import Deployment
from coherer._server.node.node import Node, NodeOptions
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command, encode
from coherer._wire.tubemq import codes
from coherer.errors import CohererError, RefusedError, UnavailableError, UsageError
from coherer.message import Message, Receipt
from coherer.testing import FaultProxy, async_embedded_node

PEM = Path(__file__).parent.parent / "net" / "localhost.pem"


def bounded(test: Callable[..., Coroutine[object, object, None]]):
    """A node that does not do its part fails a test instead of keeping it for ever."""

    @functools.wraps(test)
    async def run(*args: object, **fixtures: object) -> None:
        async with asyncio.timeout(60):
            await test(*args, **fixtures)

    return run


class Ledger:
    """What was acknowledged, and what came."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.seen: Counter[int] = Counter()
        self._changed = asyncio.Event()

    def outcome(self, number: int):
        def told(outcome: Receipt | CohererError) -> None:
            if isinstance(outcome, Receipt):
                self.acknowledged.add(number)

        return told

    def came(self, bodies: list[bytes]) -> None:
        self.seen.update(map(int, bodies))
        self._changed.set()

    async def all_came(self) -> None:
        async with asyncio.timeout(30):
            while self.acknowledged - self.seen.keys():
                self._changed.clear()
                await self._changed.wait()


async def produce(client, ledger: Ledger, numbers: range, every: int, step) -> None:
    async with client.producer("demo", window=200) as producer:
        for number in numbers:
            await producer.ready()
            producer.submit(Message("demo", b"%d" % number), callback=ledger.outcome(number))
            if number % every == every - 1:
                await step()


async def consume(client, ledger: Ledger) -> None:
    async with client.consumer("readers", "demo", start="earliest") as consumer:
        async for batch in consumer.batches():
            ledger.came(batch.bodies())


@bounded
async def test_nothing_is_lost_when_connections_break(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        async_embedded_node(tmp_path) as node,
        FaultProxy("127.0.0.1", node.broker_port) as proxy,
        coherer.connect(node.url) as client,
    ):
        # The master names the broker's own port; the client is led through the proxy.
        pool, real = client._cluster.pool, client._cluster.pool._dial

        async def detour(host: str, port: int):
            link = await real(host, proxy.port if port == node.broker_port else port)
            pool._links[host, port] = link
            return link

        pool._dial = detour  # type: ignore[method-assign]
        consuming = asyncio.create_task(consume(client, ledger))

        async def cut() -> None:
            proxy.cut()
            await asyncio.sleep(0)

        await produce(client, ledger, range(4_000), 500, cut)
        await ledger.all_came()
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
    assert len(ledger.acknowledged) > 1_000


@bounded
async def test_nothing_is_lost_when_members_come_and_go(tmp_path: Path) -> None:
    ledger = Ledger()
    async with (
        async_embedded_node(tmp_path) as node,
        coherer.connect(node.url) as client,
        coherer.connect(node.url) as other,
    ):
        staying = asyncio.create_task(consume(client, ledger))

        async def visit() -> None:
            async with other.consumer("readers", "demo", start="earliest") as visitor:
                await visitor.wait_assigned(10_000)
                batch = await visitor.receive(100)
                if batch is not None:
                    ledger.came(batch.bodies())
                    await visitor.commit(batch)

        await produce(client, ledger, range(3_000), 1_000, visit)
        await ledger.all_came()
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)
    assert len(ledger.acknowledged) == 3_000


@bounded
async def test_two_members_share_at_last(tmp_path: Path) -> None:
    changed = asyncio.Event()

    def moved(partitions: object) -> None:
        changed.set()

    async def until(condition) -> None:
        async with asyncio.timeout(10):
            while not condition():
                changed.clear()
                await changed.wait()
                await asyncio.sleep(0)  # listeners hear of it first

    async with async_embedded_node(tmp_path) as node, coherer.connect(node.url) as client:
        node.create_topic("demo", 8)
        options = {"on_assigned": moved, "on_revoked": moved}
        async with client.consumer("readers", "demo", **options) as first:
            assert len(await first.wait_assigned(10_000)) == 8
            async with client.consumer("readers", "demo", **options) as second:
                await until(lambda: len(second.assignment) == 4)
                assert len(first.assignment) == 4
                assert not first.assignment & second.assignment
            await until(lambda: len(first.assignment) == 8)


@bounded
async def test_a_group_goes_on_where_it_was(tmp_path: Path) -> None:
    seen: list[bytes] = []
    for _ in range(2):  # the node too
        async with async_embedded_node(tmp_path) as node, coherer.connect(node.url) as client:
            async with client.producer("demo") as producer:
                await producer.send_many(Message("demo", b"%d" % n) for n in range(10))
            async with client.consumer("readers", "demo", start="earliest") as consumer:
                for _ in range(10):
                    batch = await consumer.receive(5_000)
                    assert batch is not None
                    seen += batch.bodies()
                    await consumer.commit(batch)
                    if len(seen) % 10 == 0:
                        break
    assert Counter(seen) == Counter({b"%d" % n: 2 for n in range(10)})


@bounded
async def test_a_broker_that_is_away_is_named_and_not_just_left_out(tmp_path: Path) -> None:
    usual = {"broker_port": 0, "admin_port": None, "namesrv_port": 0, "rocketmq_port": 0}
    master = Node(
        NodeOptions(directory=tmp_path / "m", roles=frozenset({"master"}), master_port=0, **usual)
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(master)
        brokers = [
            Node(
                NodeOptions(
                    directory=tmp_path / f"b{number}",
                    roles=frozenset({"broker"}),
                    broker_id=number,
                    master=master.url,
                    heartbeat_ms=10,
                    **usual,
                )
            )
            for number in (1, 2)
        ]
        for broker in brokers:
            await stack.enter_async_context(broker)
            await broker.ready()
        master.create_topic("demo", 2)
        client = await stack.enter_async_context(coherer.connect(master.url))

        async def until_read(brokers: set[str]) -> None:
            found: set[str] = set()
            while found != brokers:
                await asyncio.sleep(0.05)
                found = {str(one.broker.id) for one in await client.offsets("demo")}

        await until_read({"1", "2"})
        assert await client.unreadable_brokers("demo") == []
        await brokers[1].stop()
        await until_read({"1"})
        assert [broker.id for broker in await client.unreadable_brokers("demo")] == [2]


@bounded
async def test_users(tmp_path: Path) -> None:
    async with async_embedded_node(tmp_path, users={"ann": "secret"}) as node:
        async with coherer.connect(node.url, user="ann", password="secret") as client:
            async with client.producer("demo") as producer:
                await producer.send(Message("demo", b"hello"))
            async with client.consumer("readers", "demo", start="earliest") as consumer:
                async for message in consumer:
                    assert message.body == b"hello"
                    break
            assert sum(high for _, high in (await client.offsets("demo")).values()) == 1
        async with coherer.connect(node.url, user="ann", password="guess") as client:
            with pytest.raises(codes.CertificateError):
                await client.producer("demo").start()
            with pytest.raises(codes.CertificateError):
                await client.consumer("readers", "demo").start()
        async with coherer.connect(node.url) as client:
            with pytest.raises(codes.CertificateError):
                await client.producer("demo").start()
            async with client.consumer("readers", "demo") as consumer:
                with pytest.raises(UsageError, match="requires authentication"):
                    await consumer.receive()


@bounded
async def test_a_client_lacks_the_certificate_that_the_node_requires(tmp_path: Path) -> None:
    tls = TlsOptions(certificate=PEM, trust=PEM)
    async with async_embedded_node(tmp_path, tls=tls) as node:
        for url in (
            f"tubemqs://localhost:{node.master_tls_port}",
            f"rocketmqs://localhost:{node.namesrv_port}",
        ):
            for given in (tls, TlsOptions(trust=PEM)):
                timeout_ms = 30_000 if given is tls else 2_000
                async with coherer.connect(url, tls=given, timeout_ms=timeout_ms) as client:
                    try:
                        async with client.producer("demo") as producer:
                            await producer.send(Message("demo", b"hello"))
                        refused = None
                    except UnavailableError as error:
                        refused = error
                assert (refused is None) == (given is tls)
            assert refused is not None
            assert "want a certificate of this client" in refused.hint


@bounded
async def test_tls(tmp_path: Path) -> None:
    async with async_embedded_node(tmp_path, tls=TlsOptions(certificate=PEM)) as node:
        url = f"tubemqs://localhost:{node.master_tls_port}"
        async with coherer.connect(url, tls=TlsOptions(trust=PEM)) as client:
            async with client.producer("demo") as producer:
                receipt = await producer.send(Message("demo", b"hello"))
            [partition] = [
                one for one in await client.partitions("demo") if one.id == receipt.partition
            ]
            assert partition.broker.port == node.broker_tls_port
            async with client.reader(partition, 0) as reader:
                assert (await reader.read()).bodies() == [b"hello"]
            async with client.consumer("readers", "demo", start="earliest") as consumer:
                async for message in consumer:
                    assert message.body == b"hello"
                    break
        async with coherer.connect(url, timeout_ms=200) as client:
            with pytest.raises(CohererError, match="certificate"):  # nobody vouches for it
                await client.producer("demo").start()


@bounded
async def test_messages_at_the_limit(tmp_path: Path) -> None:
    async with async_embedded_node(tmp_path) as node, coherer.connect(node.url) as client:
        large = b"x" * 1024 * 1024
        async with client.producer("demo", window=4) as producer:
            report = await producer.send_many([Message("demo", large)] * 20)
            assert report.sent == 20
        async with client.consumer("readers", "demo", start="earliest") as consumer:
            count = 0
            async for message in consumer:
                assert message.body == large
                count += 1
                if count == 20:
                    break


@bounded
async def test_filters(tmp_path: Path) -> None:
    async with async_embedded_node(tmp_path) as node, coherer.connect(node.url) as client:
        async with client.producer("demo") as producer:
            for number in range(300):
                tag = ("UA", "AA", None)[number % 3]
                producer.submit(Message("demo", b"%d" % number, tag=tag))
                await producer.ready()
            await producer.flush()
        async with client.consumer("readers", {"demo": ["UA"]}, start="earliest") as consumer:
            seen = set()
            async for message in consumer:
                assert message.tag == "UA"
                seen.add(int(message.body))
                if len(seen) == 100:
                    break
            assert seen == set(range(0, 300, 3))
            with pytest.raises(RefusedError) as caught:
                await client.consumer("readers", {"demo": ["AA"]}).start()
            assert isinstance(caught.value, codes.FilterSetError)


@bounded
async def test_exact_offsets(tmp_path: Path) -> None:
    async with async_embedded_node(tmp_path) as node, coherer.connect(node.url) as client:
        node.create_topic("demo", 2)
        async with client.producer("demo") as producer:
            await producer.send_many(Message("demo", b"%d" % n) for n in range(20))
        start = {partition.key: 7 for partition in await client.partitions("demo")}
        async with client.consumer("readers", "demo", start=start) as consumer:
            offsets: set[tuple[int, int | None]] = set()
            async for message in consumer:
                offsets.add((message.partition, message.offset))
                if len(offsets) == 6:
                    break
        assert offsets == {(partition, offset) for partition in (0, 1) for offset in (7, 8, 9)}


async def send_raw(port: int, body: bytes, sys_flag: int) -> None:
    """One message with a flag of our choice, by RocketMQ's protocol."""
    fields = {
        "producerGroup": "raw",
        "topic": "demo",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "1",
        "queueId": "0",
        "sysFlag": str(sys_flag),
        "bornTimestamp": "1650000000000",
        "flag": "0",
        "properties": "",
    }
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode(Command(RequestCode.SEND_MESSAGE, fields=fields, body=body)))
    size = int.from_bytes(await reader.readexactly(4), "big")
    assert b'"code":0' in await reader.readexactly(size)
    writer.close()
    await writer.wait_closed()


@bounded
async def test_what_cannot_be_delivered_stops_nobody(
    tmp_path: Path,
) -> None:
    """Messages whose flag says compressed, though they are not, among good ones; both protocols."""
    async with async_embedded_node(tmp_path) as node:
        node.create_topic("demo", 1)
        for number in range(8):
            bad = number in {0, 3, 7}
            await send_raw(node.rocketmq_port, b"%d" % number, sys_flag=int(bad))
        good = [b"1", b"2", b"4", b"5", b"6"]
        for url in (node.url, node.rocketmq_url):
            async with coherer.connect(url) as client:
                [partition] = await client.partitions("demo")
                seen: list[int | None] = []
                for start, end in ((0, 4), (4, 8)):
                    async with client.reader(partition, start, end=end) as reader:
                        while (batch := await reader.read()) is not None:
                            seen += [message.offset for message in batch]
                        assert reader.position == end
                        assert reader.left_out == (2 if start == 0 else 1)
                assert seen == [1, 2, 4, 5, 6]
                async with client.consumer("readers", "demo", start="earliest") as consumer:
                    found: list[bytes] = []
                    async for message in consumer:
                        found.append(message.body)
                        if len(found) == len(good):
                            break
                    assert found == good


@bounded
async def test_a_deleted_group_of_rocketmq_leaves_no_topic_but_its_dead_letters() -> None:
    async with (
        async_embedded_node() as node,
        coherer.rocketmq.connect(node.rocketmq_url) as client,
    ):
        topics, groups = client.admin().topics, client.admin().groups
        await topics.create("work", 1, wait_ms=10_000)
        async with client.producer() as producer:
            await producer.send(Message("work", b"too hard"))
        for group in ("crew", "careful"):
            async with client.consumer(group, "work", start="earliest") as consumer:
                [message] = await consumer.receive()
                await message.dead_letter()
        assert {"%RETRY%crew", "%RETRY%careful"} <= set(await topics.names(system=True))
        await groups.delete("crew")
        await groups.delete("careful", remove_offsets=False)
        left = {name for name in await topics.names(system=True) if name.startswith("%")}
        assert left == {"%DLQ%crew", "%DLQ%careful", "%RETRY%careful"}
        await groups.delete("careful")  # the second half, as after a failure
        assert "%RETRY%careful" not in await topics.names(system=True)
        with pytest.raises(RefusedError, match="There is no group careful"):
            await groups.delete("careful")


@pytest.mark.slow
@bounded
async def test_a_node_forgets_deleted_topics() -> None:
    async with async_embedded_node() as node, coherer.tubemq.connect(node.url) as client:
        topics, before = client.admin().topics, _deployments()
        for number in range(200):
            await topics.create(f"brief{number}", 1)
            await topics.delete(f"brief{number}")
        # The master has three records of a topic in its short life.
        assert _deployments() - before < 200


def _deployments() -> int:
    gc.collect()
    return sum(isinstance(one, Deployment) for one in gc.get_objects())
