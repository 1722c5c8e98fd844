"""Our client through RocketMQ 5's Proxy, by the remoting protocol.

The Proxy serves what producers and consumers need, and no administration. It makes no topics, and
takes only messages of the type that a topic has.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from coherer import Message
from coherer._client.rocketmq.transactions import Verdict
from coherer._wire.rocketmq.codes import MessageIllegalError, NotSupportedError
from coherer._wire.rocketmq.messages import StoredMessage
from coherer.rocketmq import Client as RocketClient
from coherer.rocketmq import connect as connect_rocketmq
from tests.client import rocket_consuming as consuming
from tests.client import rocket_sharing as sharing
from tests.client.rocket_scenario import Scenario, take, texts, until
from tests.interop.peers.cache import UnavailableError, prepare_release
from tests.interop.peers.rocket_site import RocketSite
from tests.server.client_harness import Client

pytestmark = pytest.mark.interop

RELEASE = "5.5.0"
MAX_OFFSET = 30
VERSION_NOT_SUPPORTED = 15


class ProxyScenario(Scenario):
    """A scenario whose clients know only the Proxy. Its topics are made behind it.

    Args:
        proxy: the Proxy, as host:port.
        names: the name server behind it.
    """

    def __init__(self, proxy: str, names: str) -> None:
        super().__init__(f"rocketmq://{proxy}")
        self.proxy = proxy
        self._names = f"rocketmq://{names}"

    async def make(
        self, client: RocketClient, queues: int = 2, topic: str | None = None, **more: str
    ) -> str:
        async with connect_rocketmq(self._names) as behind:
            name = await super().make(behind, queues, topic, **more)
        await until(lambda: client.exists(name))
        return name

    async def make_for(self, client: RocketClient, kind: str) -> str:
        """Make a topic for a type of messages."""
        return await self.make(client, topic=self.topic + kind, attributes=f"+message.type={kind}")


@pytest.fixture
async def scenario(releases: RocketSite) -> AsyncIterator[ProxyScenario]:
    try:
        await asyncio.to_thread(prepare_release, "rocketmq-proxy", RELEASE)
    except UnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Proxy: {reason}")
    cluster = await asyncio.to_thread(releases.cluster, f"proxy-{RELEASE}")
    names = (await asyncio.to_thread(releases.cluster, f"java-{RELEASE}")).namesrv
    scenario = ProxyScenario(cluster.namesrv, names)
    yield scenario
    await scenario.close()


@pytest.mark.parametrize(
    "run",
    [
        consuming.a_batch_is_committed,
        consuming.a_message_is_retried,
        consuming.failed_messages_become_dead_letters,
        consuming.order_is_kept_after_failures,
        sharing.broadcast_consumers_get_all_messages,
        sharing.queues_are_rebalanced,
        sharing.start_positions,
        sharing.a_group_keeps_its_start_position,
        sharing.pull_consumers,
        sharing.reading_a_range_is_exact,
    ],
    ids=lambda run: run.__name__,
)
async def test_consumers(
    scenario: ProxyScenario, run: Callable[[Scenario], Awaitable[None]]
) -> None:
    await run(scenario)


async def test_every_way_to_send(scenario: ProxyScenario) -> None:
    client = scenario.client()
    topic = await scenario.make(client)
    async with client.producer(topic) as producer:
        await producer.send(Message(topic, b"one"))
        await producer.send_batch([Message(topic, b"two"), Message(topic, b"three")])
        (await producer.send_many([Message(topic, b"four"), Message(topic, b"five")])).check()
        await producer.send_oneway(Message(topic, b"six"))
    async with client.consumer(scenario.group, topic, start="earliest") as consumer:
        found = texts(await take(consumer, 6))
    assert sorted(found) == sorted(["one", "two", "three", "four", "five", "six"])


async def test_messages_have_the_type_of_their_topic(scenario: ProxyScenario) -> None:
    client = scenario.client()
    plain = await scenario.make_for(client, "NORMAL")
    delayed = await scenario.make_for(client, "DELAY")
    async with client.producer() as producer:
        with pytest.raises(MessageIllegalError, match="expected type is NORMAL"):
            await producer.send(Message(plain, b"x"), delay_level=1)
        with pytest.raises(MessageIllegalError, match="expected type is UNSPECIFIED"):
            await producer.send(Message(f"no{plain}", b"x"))
        await producer.send(Message(delayed, b"late"), delay_level=1)
    async with client.consumer(scenario.group, delayed, start="earliest") as consumer:
        [message] = await take(consumer, 1)
    assert message.body == b"late"
    assert message.stored_ms >= message.born_ms + 1_000


async def test_transactions_end_when_the_broker_asks(scenario: ProxyScenario) -> None:
    """The Proxy drops an end that no broker has asked for, and answers with success."""
    asked: list[str] = []

    def check(message: StoredMessage) -> Verdict:
        asked.append(message.body.decode())
        return Verdict.COMMIT

    client = scenario.client()
    topic = await scenario.make_for(client, "TRANSACTION")
    async with client.producer(topic, group=f"p{scenario.group}", check=check) as producer:
        async with producer.transaction(Message(topic, b"committed")):
            pass
        async with producer.transaction(Message(topic, b"rolled back")) as transaction:
            await transaction.rollback()
        async with producer.transaction(Message(topic, b"left")) as transaction:
            await transaction.leave()
        found: set[str] = set()
        async with client.consumer(scenario.group, topic, start="earliest") as consumer:
            while not {"committed", "left"} <= found:  # a broker that asks often stores twice
                found.update(texts(await take(consumer, 1)))
    assert found == {"committed", "left"}
    assert set(asked) == {"left"}


async def test_what_it_does_not_serve(scenario: ProxyScenario) -> None:
    client = scenario.client()
    topic = await scenario.make(client)
    with pytest.raises(NotSupportedError, match="RocketMQ 5's Proxy serves no administration"):
        await client.admin().brokers.list()
    async with (
        client.producer(topic) as producer,
        client.consumer(scenario.group, topic, start="earliest") as consumer,
    ):
        requesting = asyncio.create_task(producer.request(Message(topic, b"question")))
        [message] = await take(consumer, 1)
        with pytest.raises(NotSupportedError):
            await producer.reply(message, b"answer")
        requesting.cancel()


async def test_requests_without_the_name_of_a_broker_are_refused(scenario: ProxyScenario) -> None:
    topic = await scenario.make(scenario.client())
    peer = await Client.dial(int(scenario.proxy.rpartition(":")[2]))
    fields = {"topic": topic, "queueId": "0"}
    refused = await peer.ask(MAX_OFFSET, fields)
    assert (refused.code, refused.remark) == (
        VERSION_NOT_SUPPORTED,
        "Request doesn't have field bname",
    )
    answer = await peer.ask(MAX_OFFSET, {**fields, "bname": "broker-a"})
    assert (answer.code, answer.fields["offset"]) == (0, "0")
    peer.connection.close()
