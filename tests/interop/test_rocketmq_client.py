"""Our client's administration, trace, signatures and TLS with our servers and Java's."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest

import coherer
from coherer import Message, TlsOptions
from coherer._client.rocketmq.administration.admin import Admin
from coherer._wire.rocketmq.codes import QueryNotFoundError, TopicNotExistError
from coherer.admin import Member
from coherer.errors import DisconnectedError, RefusedError
from coherer.rocketmq import Client as RocketClient
from coherer.rocketmq import connect as connect_rocketmq
from tests.interop.peers.rocket_site import Cluster, RocketSite, wait_until
from tests.interop.peers.rocketmq import JavaRocketBroker, home_of
from tests.private import write_private

pytestmark = pytest.mark.interop

T = TypeVar("T")

ACL = """globalWhiteRemoteAddresses:
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - allowed=PUB|SUB
- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress:
  admin: true
"""


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], object]) -> T:
    """What is asked for, when it is as it should be: servers tell of some things later."""
    async with asyncio.timeout(20):
        while not holds(answer := await ask()):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.05)
    return answer


async def known(admin: Admin, group: str) -> list[Member]:
    """The producers of a group, none where no broker knows it."""
    try:
        return await admin.groups.producers(group)
    except RefusedError:
        return []


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[RocketClient]:
    async with connect_rocketmq(cluster.url) as one:
        yield one


@pytest.fixture
def word() -> str:
    return uuid.uuid4().hex[:10]


async def test_topics(client: RocketClient, word: str) -> None:
    admin = client.admin()
    topic = f"t{word}"
    assert await admin.topics.list(topic) == []
    assert not await client.exists(topic)
    await admin.topics.create(topic, 3, wait_ms=10_000)
    [state] = await admin.topics.list(topic)
    assert (state.partitions, state.brokers, state.writable) == (3, {"broker-a": 3}, True)
    assert topic in {one.name for one in await admin.topics.list()}
    with pytest.raises(RefusedError, match="exists already"):
        await admin.topics.create(topic, 3)
    await admin.topics.create(topic, 3, exist_ok=True, perm=4)
    await eventually(lambda: admin.topics.list(topic), lambda found: not found[0].writable)
    await admin.topics.delete(topic)
    assert await admin.topics.list(topic) == []
    with pytest.raises(TopicNotExistError):
        await admin.topics.delete(topic)


async def test_brokers_and_settings(client: RocketClient, word: str) -> None:
    admin = client.admin()
    [broker] = await eventually(admin.brokers.list, lambda found: found[0].version)
    assert (broker.name, broker.id, broker.cluster) == ("broker-a", 0, "DefaultCluster")
    assert broker.version.startswith("V4_9_3")
    assert int(broker.reported["commitLogMaxOffset"]) >= 0
    config = await admin.brokers.config("broker-a")
    assert config["brokerName"] == "broker-a"
    assert "listenPort" in await admin.name_servers.config()
    await admin.name_servers.set_value(word, "key", "value = 1")
    assert await admin.name_servers.values(word) == {"key": "value = 1"}
    await admin.name_servers.set_value(word, "key", None)
    assert await admin.name_servers.values(word) == {}
    with pytest.raises(QueryNotFoundError):
        await admin.name_servers.values(f"no{word}")


async def test_messages_are_found(client: RocketClient, word: str) -> None:
    admin, topic = client.admin(), f"t{word}"
    async with client.producer(topic, group=f"p{word}") as producer:
        first = await producer.send(Message(topic, b"one", tag="a", keys=("k1", "both")))
        second = await producer.send(Message(topic, b"two", keys=("both",)))
        # The heartbeat goes before the first message, but has threads of its own in Java.
        members = await eventually(lambda: known(admin, f"p{word}"), bool)
        assert [(one.language, one.version) for one in members] == [("PYTHON", "V4_9_3")]
    found = await admin.messages.get(first.id)
    assert (found.body, found.tag, found.keys) == (b"one", "a", ("k1", "both"))
    assert found.unique_id == first.unique_id
    with pytest.raises(RefusedError):
        await admin.messages.get(first.id[:16] + f"{1 << 40:016X}")
    messages = await eventually(
        lambda: admin.messages.find(topic, "both"), lambda found: len(found) == 2
    )
    assert [one.id for one in messages] == [first.id, second.id]
    assert [one.body for one in await admin.messages.find(topic, "k1")] == [b"one"]
    late = datetime.now(UTC) + timedelta(hours=1)
    assert await admin.messages.find(topic, "k1", begin=late) == []
    by_id = await admin.messages.by_unique_id(topic, second.unique_id)
    assert by_id is not None
    assert by_id.body == b"two"
    assert await admin.messages.by_unique_id(topic, "0" * 32) is None


async def test_offsets_of_groups(client: RocketClient, word: str) -> None:
    admin, topic, group = client.admin(), f"t{word}", f"g{word}"
    await admin.topics.create(topic, 2, wait_ms=10_000)
    await admin.groups.create(group)
    queues = await client.partitions(topic)
    async with client.producer(topic) as producer:
        for number in range(10):
            await producer.send(Message(topic, b"x"), queue=queues[number % 2])
    await eventually(
        lambda: admin.topics.partitions(topic),
        lambda found: [(one.min_offset, one.max_offset) for one in found] == [(0, 5), (0, 5)],
    )
    assert await client.offsets(topic) == dict.fromkeys(queues, (0, 5))
    await admin.groups.set_offsets(group, dict.fromkeys(queues, 2))
    [state] = await admin.groups.list(group)
    assert (state.name, state.topics, state.members, state.lag) == (group, (topic,), (), 6)
    assert await admin.topics.groups(topic) == [group]
    for target, lag in (("latest", 0), ("earliest", 10), (3, 4)):
        await admin.groups.reset_offsets(group, topic, target)
        assert (await admin.groups.list(group))[0].lag == lag
    then = datetime.now(UTC) - timedelta(hours=1)
    assert await admin.groups.reset_offsets(group, topic, then) == dict.fromkeys(queues, 0)
    await admin.groups.copy_offsets(group, f"h{word}", topic)
    assert {span.queue for span in await admin.groups.time_spans(group, topic)} == set(queues)
    await admin.groups.delete(group)


async def test_a_consumer_that_runs(client: RocketClient, word: str) -> None:
    admin, topic, group = client.admin(), f"t{word}", f"g{word}"
    await admin.topics.create(topic, 2, wait_ms=10_000)
    async with (
        client.producer(topic) as producer,
        client.consumer(group, topic, start="earliest", persist_ms=50) as consumer,
    ):
        receipt = await producer.send(Message(topic, b"x"))
        batch = await consumer.receive(20_000)
        assert batch is not None
        await consumer.commit(batch)
        states = await eventually(
            lambda: admin.groups.list(group),
            lambda found: found[0].members and found[0].partitions and not found[0].lag,
        )
        [member] = states[0].members
        assert (states[0].model, member.language) == ("CLUSTERING", "PYTHON")
        info = await admin.groups.running(group, member.id)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {queue.topic for queue in info.queues} >= {topic}
        offsets = await admin.groups.consumer_offsets(group, topic)
        assert sum(offsets[member.id].values()) == 1
        message = await admin.messages.get(receipt.id)
        direct = asyncio.create_task(
            admin.messages.consume_directly(group, message, client_id=member.id)
        )
        batch = await consumer.receive(20_000)
        assert batch is not None
        assert batch.bodies() == [b"x"]
        batch.ack()
        assert (await direct).outcome == "CR_SUCCESS"


@pytest.mark.parametrize("kind", ["java", "ours"])
async def test_javas_tools_read_our_trace(rocket: RocketSite, kind: str, word: str) -> None:
    cluster = rocket.cluster(kind)
    tools = rocket.client(cluster, "admin")
    topic = f"t{word}"
    async with (
        connect_rocketmq(cluster.url) as client,
        client.producer(topic, group=f"p{word}", trace=True) as producer,
    ):
        receipt = await producer.send(Message(topic, b"x", tag="red", keys=("k",)))
    arguments = ["QueryMsgTraceById", "-i", receipt.unique_id]
    said: list[str] = []

    def shown() -> bool:
        said.append(str(tools("run", arguments=arguments)))
        return f"p{word}" in said[-1]

    await asyncio.to_thread(wait_until, shown)
    assert "success" in said[-1]
    await asyncio.to_thread(tools.close)


@pytest.mark.parametrize("kind", ["java"])
async def test_tls(rocket: RocketSite, kind: str, word: str) -> None:
    url = f"rocketmqs://{rocket.cluster(kind).namesrv}"
    topic = f"t{word}"
    async with connect_rocketmq(url, tls=TlsOptions(verify=False)) as client:
        async with client.producer(topic) as producer:
            receipt = await producer.send(Message(topic, b"secret"))
        assert (await client.admin().messages.get(receipt.id)).body == b"secret"


@pytest.fixture(scope="session")  # tests of other modules come between those of this one
def guarded(rocket: RocketSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Java cluster with access control: its name server."""
    folder = tmp_path_factory.mktemp("guarded")
    names = rocket.names("java")
    broker = JavaRocketBroker(rocket.java, folder, names, settings={"aclEnable": "true"})
    write_private(home_of(folder) / "conf" / "plain_acl.yml", ACL)
    broker.start()
    try:
        broker.wait()
        yield names
    finally:
        broker.kill()


async def test_signed_requests(guarded: str) -> None:
    url = f"rocketmq://{guarded}"
    boss = coherer.connect(url, user="rocketmq2", password="12345678")
    assert isinstance(boss, RocketClient)
    async with boss:
        await boss.admin().topics.create("allowed", 1, wait_ms=10_000)
        await boss.admin().topics.create("denied", 1, wait_ms=10_000)
    async with connect_rocketmq(url, user="RocketMQ", password="12345678") as client:
        async with client.producer("allowed", "denied", retries=0) as producer:
            message = Message("allowed", "grüße".encode(), tag="ü", keys=("k",))
            assert (await producer.send(message)).status == "SEND_OK"
            await producer.send_batch([message, message])
            with pytest.raises(RefusedError, match="No default permission for topic:denied"):
                await producer.send(Message("denied", b"x"))
        # Java's broker acknowledges a message before it can be read.
        await eventually(lambda: client.offsets("allowed"), is_longer(3))
        [queue] = await client.partitions("allowed")
        async with client.reader(queue, 0) as reader:
            batch = await reader.read()
            assert batch is not None
            assert {one.body.decode() for one in batch} == {"grüße"}
        with pytest.raises(RefusedError, match="Need admin permission"):
            await client.admin().topics.create("other", 1)


async def test_a_wrong_signature(guarded: str) -> None:
    url = f"rocketmq://{guarded}"
    async with (
        connect_rocketmq(url, user="RocketMQ", password="wrong678") as client,
        client.producer("allowed", retries=0) as producer,
    ):
        with pytest.raises(RefusedError, match="Check signature failed"):
            await producer.send(Message("allowed", b"x"))
    async with (
        connect_rocketmq(url) as client,
        client.producer("allowed", retries=0) as producer,
    ):
        with pytest.raises(RefusedError, match="No accessKey is configured"):
            await producer.send(Message("allowed", b"x"))


@pytest.mark.parametrize("victim", ["java", "ours"])
async def test_a_broker_dies_while_we_send(rocket: RocketSite, victim: str, word: str) -> None:
    names = await asyncio.to_thread(rocket.names, "java")
    theirs, ours = await asyncio.gather(
        asyncio.to_thread(rocket.broker, "java", names),
        asyncio.to_thread(rocket.broker, "ours", names, broker_name="broker-b"),
    )
    brokers = {"java": theirs, "ours": ours}
    topic = f"t{word}"
    async with connect_rocketmq(f"rocketmq://{names}") as client:
        admin = client.admin()
        await eventually(
            lambda: admin.brokers.list(runtime=False),
            lambda found: {one.name for one in found} == {"broker-a", "broker-b"},
        )
        await admin.topics.create(topic, 2, wait_ms=10_000)
        await eventually(lambda: admin.topics.list(topic), lambda found: len(found[0].brokers) == 2)
        async with client.producer(topic, window=100, retries=20, retry_lost=True) as producer:

            def messages() -> Iterator[Message]:
                for number in range(20_000):
                    if number == 3_000:
                        brokers[victim].kill()
                    yield Message(topic, b"%d" % number)

            report = await producer.send_many(messages(), receipts=True)
            assert report.failed == []
            assert report.sent == 20_000
            late = {receipt.broker for receipt in report.receipts[-1_000:]}
    assert late == {"broker-b" if victim == "java" else "broker-a"}
    for broker in brokers.values():
        await asyncio.to_thread(broker.kill)


@pytest.mark.slow
@pytest.mark.parametrize("retry_lost", [False, True], ids=["lost-is-an-error", "retry-lost"])
@pytest.mark.parametrize("kind", ["java", "ours"])
async def test_what_is_sent_twice_when_a_broker_is_killed(
    rocket: RocketSite, kind: str, word: str, retry_lost: bool
) -> None:
    """By default nothing; with `retry_lost` copies have one unique id."""
    names = await asyncio.to_thread(rocket.names, kind)
    broker = await asyncio.to_thread(rocket.broker, kind, names)
    topic, rounds = f"t{word}", 4
    sent: set[bytes] = set()
    failed: set[bytes] = set()
    copies: defaultdict[bytes, list[str]] = defaultdict(list)
    async with connect_rocketmq(f"rocketmq://{names}", timeout_ms=60_000) as client:
        await client.admin().topics.create(topic, 4, wait_ms=10_000)
        async with client.producer(topic, retries=20, retry_lost=retry_lost) as producer:
            for number in range(rounds):
                bodies = [b"%d-%d" % (number, n) for n in range(20_000)]
                messages = [Message(topic, body) for body in bodies]
                sending = asyncio.create_task(producer.send_many(messages))
                await eventually(lambda: client.offsets(topic), is_longer(len(sent) + 1_000))
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
                await asyncio.to_thread(broker.wait)
                report = await sending
                lost = {message.body for message, _ in report.failed}
                assert all(type(error) is DisconnectedError for _, error in report.failed)
                assert len(lost) == len(bodies) - report.sent
                failed |= lost
                sent |= set(bodies) - lost
        await eventually(lambda: client.offsets(topic), is_longer(len(sent)))
        for queue in await client.partitions(topic):
            async with client.reader(queue, 0) as reader:
                while batch := await reader.read():
                    for message in batch:
                        copies[message.body].append(message.unique_id)
    await asyncio.to_thread(broker.kill)
    assert sent <= copies.keys() <= sent | failed
    assert bool(failed) is not retry_lost, "answers were lost"
    twice = {body: ids for body, ids in copies.items() if len(ids) > 1}
    if kind == "java":
        # A killed broker may have stored a body without its properties: its checksum does not
        # cover them (docs/protocol/rocketmq.md, section 6.5).
        twice = {body: [one for one in ids if one] for body, ids in twice.items()}
    assert {body: ids for body, ids in twice.items() if len(set(ids)) > 1} == {}
    if not retry_lost:
        assert twice == {}


def is_longer(count: int) -> Callable[[Mapping[tuple[str, int], tuple[int, int]]], bool]:
    return lambda bounds: sum(end for _, end in bounds.values()) >= count
