"""Java's clients answer what our broker asks, and find each other through it.

See docs/protocol/rocketmq.md, sections 2.13, 2.14, 4.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
import pytest

from coherer._wire.rocketmq.bodies import (
    ConsumeDirectlyResult,
    ConsumerStatus,
    ResetOffset,
    RunningInfo,
)
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import Queue
from coherer.rocketmq import connect as connect_rocketmq
from tests.interop.peers.broker_scenario import BrokerScenario, outcome
from tests.interop.peers.driver import DriverError
from tests.interop.peers.rocket_site import Client, Cluster, RocketSite, wait_until
from tests.server.client_harness import Client as Asker
from tests.server.client_harness import tags

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MESSAGES = 8
NOT_SET = "not set any response code"
RESET_S = 30.0  # Java's consumer sleeps for ten seconds before it reads again

Open = Callable[..., Client]


@pytest.fixture
async def scenario(rocket: RocketSite) -> AsyncIterator[BrokerScenario]:
    """Our broker."""
    scenario = BrokerScenario(await asyncio.to_thread(rocket.cluster, "ours"))
    yield scenario
    for client in scenario.clients:
        client.connection.close()


@pytest.fixture
async def open_client(rocket: RocketSite, scenario: BrokerScenario) -> AsyncIterator[Open]:
    """Opens Java's clients."""
    opened: list[Client] = []

    def open_one(kind: str, language: str = "java", **parameters: object) -> Client:
        opened.append(rocket.client(scenario.cluster, kind, language, **parameters))
        return opened[-1]

    yield open_one
    for client in opened:
        with contextlib.suppress(DriverError):  # it was closed by the test
            await asyncio.to_thread(client.close)


async def filled(scenario: BrokerScenario, open_client: Open) -> Client:
    """A topic with messages in each of its four queues; gives the producer."""
    producer = await asyncio.to_thread(open_client, "producer", group=scenario.producers)
    for number in range(MESSAGES):
        more = {"broker": "broker-a", "queue": number % 4} if number else {}
        await asyncio.to_thread(producer.send, scenario.topic, f"m{number}", **more)
    return producer


async def pushed(
    scenario: BrokerScenario, open_client: Open, count: int = MESSAGES, **more: object
) -> Client:
    """A consumer of the topic that has got so many messages."""
    more = {"topics": {scenario.topic: "*"}, **more}
    client = await asyncio.to_thread(open_client, "push", group=scenario.group, **more)
    await asyncio.to_thread(client.wait_for, count)
    return client


async def until(holds: Callable[[], object], timeout_s: float = RESET_S) -> None:
    await asyncio.to_thread(wait_until, holds, timeout_s)


async def test_a_java_consumer_is_registered(scenario: BrokerScenario, open_client: Open) -> None:
    await filled(scenario, open_client)
    consumer = await pushed(scenario, open_client)
    admin = await scenario.dial()
    answer = await admin.ask(203, {"consumerGroup": scenario.group})
    found = msgspec.json.decode(answer.body)
    [connection] = found["connectionSet"]
    assert connection["clientId"] == consumer("client_id")
    assert (connection["language"], connection["version"]) == ("JAVA", 399)
    assert set(found["subscriptionTable"]) == {scenario.topic, f"%RETRY%{scenario.group}"}
    assert found["messageModel"] == "CLUSTERING"
    await booked(scenario)


async def booked(scenario: BrokerScenario) -> None:
    """Until a heartbeat has named the producers: theirs come every second."""
    admin = await scenario.dial()
    async with asyncio.timeout(RESET_S):
        while (await admin.ask(204, {"producerGroup": scenario.producers})).code:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_java_consumers_share_the_queues(scenario: BrokerScenario, open_client: Open) -> None:
    await filled(scenario, open_client)
    first = await pushed(scenario, open_client)
    assert len(first("queues")) >= 4
    second = await pushed(scenario, open_client, 0)

    def shares(*clients: Client) -> list[list[int]]:
        return [
            sorted(one["queue"] for one in client("queues") if one["topic"] == scenario.topic)
            for client in clients
        ]

    await until(lambda: sorted(shares(first, second)) == [[0, 1], [2, 3]])
    await asyncio.to_thread(second.close)
    await until(lambda: shares(first) == [[0, 1, 2, 3]])


async def test_a_java_consumer_says_what_it_does(
    scenario: BrokerScenario, open_client: Open
) -> None:
    await filled(scenario, open_client)
    consumer = await pushed(scenario, open_client)
    admin = await scenario.dial()
    fields = {"consumerGroup": scenario.group, "clientId": consumer("client_id")}
    answer = await admin.ask(307, {**fields, "jstackEnable": "true"})
    assert outcome(answer) == (0, NOT_SET)  # as Java's client says it
    info = RunningInfo.decode(answer.body)
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert {one.topic for one in info.subscription_set} == {
        scenario.topic,
        f"%RETRY%{scenario.group}",
    }
    assert {Queue(scenario.topic, "broker-a", number) for number in range(4)} <= set(info.mq_table)
    assert info.jstack


async def test_a_java_consumer_consumes_directly(
    scenario: BrokerScenario, open_client: Open
) -> None:
    producer = await filled(scenario, open_client)
    consumer = await pushed(scenario, open_client)
    sent = await asyncio.to_thread(producer.send, scenario.topic, "again")
    await asyncio.to_thread(consumer.wait_for, MESSAGES + 1)
    admin = await scenario.dial()
    fields = {
        "consumerGroup": scenario.group,
        "clientId": consumer("client_id"),
        "msgId": sent["offset_id"],
    }
    answer = await admin.ask(309, fields)
    assert outcome(answer) == (0, NOT_SET)
    result = ConsumeDirectlyResult.decode(answer.body)
    assert (result.consume_result, result.order) == ("CR_SUCCESS", False)
    await until(lambda: consumer.bodies().count("again") == 2)  # it is told by another way


async def test_a_java_consumer_says_how_far_it_is(
    scenario: BrokerScenario, open_client: Open
) -> None:
    await filled(scenario, open_client)
    consumer = await pushed(scenario, open_client)
    admin = await scenario.dial()
    fields = {"topic": scenario.topic, "group": scenario.group}
    queues = {Queue(scenario.topic, "broker-a", number) for number in range(4)}
    async with asyncio.timeout(RESET_S):
        while True:  # the last message is shown before it is booked
            answer = await admin.ask(223, fields)
            assert answer.code == 0
            table = ConsumerStatus.decode(answer.body).consumer_table
            assert set(table) == {consumer("client_id")}
            offsets = table[consumer("client_id")]
            assert set(offsets) == queues
            if sum(offsets.values()) == MESSAGES:
                return


async def test_consumers_read_again(rocket: RocketSite, open_client: Open) -> None:
    """At the same time: Java's sleeps for ten seconds before it reads again, C++'s for 15."""
    cluster = await asyncio.to_thread(rocket.cluster, "ours")
    places = {language: BrokerScenario(cluster) for language in ("java", "cpp")}
    try:
        await asyncio.gather(*(read_again(at, open_client, word) for word, at in places.items()))
    finally:  # what is left open would fail a later test
        for scenario in places.values():
            for client in scenario.clients:
                client.connection.close()


async def read_again(scenario: BrokerScenario, open_client: Open, language: str) -> None:
    await filled(scenario, open_client)
    admin = await scenario.dial()
    for number in range(4):
        await scenario.commit(admin, number, MESSAGES // 4)
    parameters = {"group": scenario.group, "topics": {scenario.topic: "*"}}
    consumer = await asyncio.to_thread(open_client, "push", language, **parameters)
    await holding(scenario, 4)  # it passes over what is told to it before
    fields = {"topic": scenario.topic, "group": scenario.group, "timestamp": "0", "isForce": "true"}
    answer = await admin.ask_as(222, fields, language=language.upper())
    assert answer.code == 0, answer.remark
    assert set(ResetOffset.decode(answer.body).offset_table.values()) == {0}
    # Some may come twice: a queue that is reset while its messages arrive.
    wanted = {f"m{number}" for number in range(MESSAGES)}
    await until(lambda: set(consumer.bodies()) == wanted, 4 * RESET_S)


async def holding(scenario: BrokerScenario, queues: int) -> None:
    """Until the only member of the group has so many queues of the topic, by its own words."""
    admin = await scenario.dial()
    group = {"consumerGroup": scenario.group}
    async with asyncio.timeout(RESET_S):
        while True:
            ids = await admin.ask(38, group)
            if ids.code == 0:
                [client_id] = msgspec.json.decode(ids.body)["consumerIdList"]
                answer = await admin.ask(307, {**group, "clientId": client_id})
                found = RunningInfo.decode(answer.body).mq_table if answer.code == 0 else {}
                if sum(queue.topic == scenario.topic for queue in found) == queues:
                    return
            await asyncio.sleep(0.05)


async def test_java_transactions_are_asked_about(rocket: RocketSite) -> None:
    names = await asyncio.to_thread(rocket.names, "java")
    broker = await asyncio.to_thread(
        lambda: rocket.broker(
            "ours", names, transaction_timeout_ms=500, transaction_interval_ms=500
        )
    )
    scenario = BrokerScenario(Cluster("java-names", names, broker))
    client = await asyncio.to_thread(
        lambda: rocket.client(scenario.cluster, "transaction", group=scenario.producers)
    )
    sent = []
    for check in ("commit", "rollback", "unknown"):
        properties = {"LOCAL": "unknown", "CHECK": check}
        sent.append(
            await asyncio.to_thread(client.send, scenario.topic, check, properties=properties)
        )

    def checks() -> list[dict[str, Any]]:
        return [event for event in client.events if event["event"] == "checked"]

    def states() -> Counter[str]:
        return Counter(one["state"] for one in checks())

    await until(lambda: set(states()) == {"COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"})
    for event in checks():
        message = event["message"]
        assert message["topic"] == scenario.topic
        assert message["properties"]["PGROUP"] == scenario.producers
        assert message["properties"]["UNIQ_KEY"] in [one["id"] for one in sent]
    consumer = await asyncio.to_thread(
        lambda: rocket.client(
            scenario.cluster, "push", group=scenario.group, topics={scenario.topic: "*"}
        )
    )
    await asyncio.to_thread(consumer.wait_for, 1)
    assert consumer.bodies() == ["commit"]
    # Who has said how it ends is not asked again.
    before = states()
    await until(lambda: states()["UNKNOW"] >= before["UNKNOW"] + 2)
    assert states() - before == Counter(UNKNOW=states()["UNKNOW"] - before["UNKNOW"])
    for one in (client, consumer):
        await asyncio.to_thread(one.close)
    await asyncio.to_thread(broker.stop)


async def test_java_requests_are_answered(scenario: BrokerScenario, open_client: Open) -> None:
    producer = await filled(scenario, open_client)
    await pushed(scenario, open_client, reply=True)
    await booked(scenario)
    answer = await asyncio.to_thread(
        producer, "request", topic=scenario.topic, body="aGVsbG8=", timeout_ms=10_000
    )
    assert answer["body"] == "cmU6aGVsbG8="  # re:hello
    assert answer["properties"]["PUSH_REPLY_TIME"]


async def test_java_consumers_in_order_hold_locks(
    scenario: BrokerScenario, open_client: Open
) -> None:
    producer = await filled(scenario, open_client)
    for number in range(40):
        await asyncio.to_thread(
            producer.send, scenario.topic, f"o{number}", order_by=str(number % 4)
        )
    first = await pushed(scenario, open_client, MESSAGES + 40, orderly=True)
    admin = await scenario.dial()
    queues = [
        {"brokerName": "broker-a", "queueId": one, "topic": scenario.topic} for one in range(4)
    ]
    body = {"clientId": "thief", "consumerGroup": scenario.group, "mqSet": queues}
    answer = await admin.ask(41, body=msgspec.json.encode(body))
    assert bytes(answer.body) == b'{"lockOKMQSet":[]}'
    assert first.bodies().count("o1") == 1
    for key in range(4):
        mine = [one for one in first.bodies() if one.startswith("o") and int(one[1:]) % 4 == key]
        assert mine == [f"o{number}" for number in range(key, 40, 4)]
    await asyncio.to_thread(first.close)  # gives the locks back
    answer = await admin.ask(41, body=msgspec.json.encode(body))
    assert len(msgspec.json.decode(answer.body)["lockOKMQSet"]) == 4


async def test_java_consumers_filter_by_sql(scenario: BrokerScenario, open_client: Open) -> None:
    producer = await asyncio.to_thread(open_client, "producer", group=scenario.producers)
    for number in range(10):
        await asyncio.to_thread(
            producer.send, scenario.topic, f"m{number}", properties={"a": str(number)}
        )
    consumer = await pushed(
        scenario, open_client, 4, topics={scenario.topic: {"sql": "a > 5 AND a IS NOT NULL"}}
    )
    assert sorted(consumer.bodies()) == ["m6", "m7", "m8", "m9"]


@pytest.mark.parametrize(
    ("language", "name", "version"), [("node", "JAVA", 121), ("cpp", "CPP", 63)]
)
async def test_consumers_in_other_languages(
    scenario: BrokerScenario, open_client: Open, language: str, name: str, version: int
) -> None:
    producer = await filled(scenario, open_client)
    admin = await scenario.dial()
    for number in range(4):
        await scenario.commit(admin, number, 0)
    parameters = {"group": scenario.group, "topics": {scenario.topic: "*"}}
    consumer = await asyncio.to_thread(open_client, "push", language, **parameters)
    await asyncio.to_thread(consumer.wait_for, MESSAGES)
    answer = await admin.ask(203, {"consumerGroup": scenario.group})
    assert answer.code == 0, answer.remark
    found = msgspec.json.decode(answer.body)
    [connection] = found["connectionSet"]
    assert (connection["language"], connection["version"]) == (name, version)
    assert scenario.topic in found["subscriptionTable"]
    await asyncio.to_thread(producer.send, scenario.topic, "more")
    await asyncio.to_thread(consumer.wait_for, MESSAGES + 1)
    assert set(consumer.bodies()) == {*(f"m{number}" for number in range(MESSAGES)), "more"}


# -- our consumer answers, asked by Java's broker and by ours


@pytest.fixture(params=["java", "ours"])
async def anywhere(
    rocket: RocketSite, request: pytest.FixtureRequest
) -> AsyncIterator[BrokerScenario]:
    """A broker of either."""
    scenario = BrokerScenario(await asyncio.to_thread(rocket.cluster, request.param))
    yield scenario
    for client in scenario.clients:
        client.connection.close()


async def test_our_consumer_answers_every_call(anywhere: BrokerScenario) -> None:
    scenario = anywhere
    admin = await scenario.dial()
    sent = [await scenario.send(admin, b"m%d" % number, number % 2) for number in range(MESSAGES)]
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(batch: Iterable[StoredMessage]) -> None:
        for message in batch:
            got.put_nowait(bytes(message.body))

    async def bodies(count: int) -> list[bytes]:
        async with asyncio.timeout(RESET_S):
            return sorted([await got.get() for _ in range(count)])

    everything = sorted(b"m%d" % number for number in range(MESSAGES))
    async with (
        connect_rocketmq(scenario.cluster.url) as client,
        client.consumer(
            scenario.group, scenario.topic, start="earliest", persist_ms=200
        ) as consumer,
    ):
        running = asyncio.create_task(consumer.run(handle))
        assert await bodies(MESSAGES) == everything
        group = {"consumerGroup": scenario.group}
        answer = await admin.ask(38, group)
        [client_id] = msgspec.json.decode(answer.body)["consumerIdList"]
        # 307
        answer = await admin.ask(307, {**group, "clientId": client_id, "jstackEnable": "true"})
        assert answer.code == 0, answer.remark
        info = RunningInfo.decode(answer.body)
        assert {scenario.queue(0), scenario.queue(1)} <= set(info.mq_table)
        assert info.jstack
        # 309
        message_id = sent[3]["msgId"]
        answer = await admin.ask(309, {**group, "clientId": client_id, "msgId": message_id})
        assert answer.code == 0, answer.remark
        assert ConsumeDirectlyResult.decode(answer.body).consume_result == "CR_SUCCESS"
        assert await bodies(1) == [b"m3"]
        # 223, 221
        whose = {"topic": scenario.topic, "group": scenario.group}
        answer = await admin.ask(223, {**whose, "clientAddr": client_id})
        table = ConsumerStatus.decode(answer.body).consumer_table[client_id]
        assert table == {scenario.queue(number): MESSAGES // 2 for number in (0, 1)}
        # 222, 220: in both forms
        for language in ("JAVA", "CPP"):
            await caught_up(scenario, admin)
            fields = {**whose, "timestamp": "0", "isForce": "true"}
            answer = await admin.ask_as(222, fields, language=language)
            assert answer.code == 0, answer.remark
            assert await bodies(MESSAGES) == everything
        # 40: half of the queues go to a newcomer, and come back
        other = await scenario.dial()
        await other.consume(scenario.group, tags(scenario.topic), client_id="zzz")
        await until_held(scenario, client_id, 1)
        await other.hang_up()
        await until_held(scenario, client_id, 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def caught_up(scenario: BrokerScenario, admin: Asker) -> None:
    """Until the broker knows that the group has read everything."""
    async with asyncio.timeout(RESET_S):
        for number in (0, 1):
            queue = {
                "topic": scenario.topic,
                "queueId": str(number),
                "consumerGroup": scenario.group,
            }
            offset = -1
            while offset != MESSAGES // 2:
                await asyncio.sleep(0.02)
                answer = await admin.ask(14, queue)
                offset = int(answer.fields.get("offset", "-1"))


async def until_held(scenario: BrokerScenario, client_id: str, queues: int) -> None:
    """Until a member has so many queues of the topic."""
    admin = await scenario.dial()
    fields = {"consumerGroup": scenario.group, "clientId": client_id}
    async with asyncio.timeout(RESET_S):
        while True:
            answer = await admin.ask(307, fields)
            table = RunningInfo.decode(answer.body).mq_table
            if sum(queue.topic == scenario.topic for queue in table) == queues:
                return
            await asyncio.sleep(0.02)
