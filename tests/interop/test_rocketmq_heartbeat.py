"""The heartbeat path of a broker: the same bytes to Java's broker and to ours.

What is asserted here was observed on Java's; so what our broker does is held against what Java's
does, down to remarks and bodies (docs/protocol/rocketmq.md, sections 2.4.5, 2.10, 2.12, 3).
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from coherer._wire.rocketmq.bodies import QueueData, TopicRoute
from coherer._wire.rocketmq.codes import FAQ, ResponseCode
from coherer._wire.rocketmq.command import Command
from tests.interop.peers.broker_scenario import BrokerScenario, outcome
from tests.server.client_harness import Client, consumer, heartbeat, tags
from tests.server.rocket_harness import PULL, SUBSCRIPTION, SUSPEND, pull_fields
from tests.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ROUTE, GROUPS, DELETE_GROUP = 105, 201, 207
NOT_SET = "not set any response code"
WAIT_S = 15.0
FASTJSON = (
    '{"clientID":"c","consumerDataSet":[{groupName:"GROUP","consumeType":"CONSUME_SIDEWAYS",'
    '"subscriptionDataSet":[{"topic":"t","subString":"A","codeSet":[65],"new":{0:1}}]},'
    '{"groupName":"GROUP2","subscriptionDataSet":'
    '[{"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}],"producerDataSet":[]}'
)


# -- heartbeats


async def test_a_heartbeat_is_registered(scenario: BrokerScenario) -> None:
    client = await scenario.dial()
    wanted = [
        tags(scenario.topic, 7, subString="A || B", codeSet=[65, 66], tagsSet=["A", "B"]),
        tags(f"%RETRY%{scenario.group}", 7),
    ]
    data = heartbeat("10.0.0.9@1", [consumer(scenario.group, *wanted)], scenario.producers)
    answer = await client.beat(data, language="GO", version=317)
    assert outcome(answer) == (0, None)
    assert (answer.version, answer.fields, bytes(answer.body)) == (399, {}, b"")
    ids = await client.ask(38, {"consumerGroup": scenario.group})
    assert bytes(ids.body) == b'{"consumerIdList":["10.0.0.9@1"]}'
    found = msgspec.json.decode((await client.ask(203, {"consumerGroup": scenario.group})).body)
    [connection] = found.pop("connectionSet")
    assert connection.pop("clientAddr").startswith("127.0.0.1:")
    assert connection == {"clientId": "10.0.0.9@1", "language": "GO", "version": 317}
    subscriptions = {one["topic"]: one for one in found.pop("subscriptionTable").values()}
    for one in subscriptions.values():
        one["codeSet"].sort()
        one["tagsSet"].sort()
    assert subscriptions == {one["topic"]: one for one in wanted}
    assert found == {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
    }
    producers = await client.ask(204, {"producerGroup": scenario.producers})
    [connection] = msgspec.json.decode(producers.body)["connectionSet"]
    assert (connection["clientId"], connection["language"]) == ("10.0.0.9@1", "GO")
    who = await client.ask(300, {"topic": scenario.topic})
    assert msgspec.json.decode(who.body) == {"groupList": [scenario.group]}


@pytest.mark.parametrize("scenario", ["java", "ours", "java-names"], indirect=True)
async def test_the_retry_topic_is_registered(scenario: BrokerScenario) -> None:
    client = await scenario.dial()
    data = heartbeat("me", [consumer(scenario.group, tags(scenario.topic), unitMode=True)])
    await client.beat(data)
    queue = await route(scenario, f"%RETRY%{scenario.group}")
    assert (queue.read_queue_nums, queue.write_queue_nums, queue.perm) == (1, 1, 6)


async def test_members_are_notified_of_changes(scenario: BrokerScenario) -> None:
    first = await scenario.member("a")
    assert first.told() == []
    second = await scenario.member("b")
    assert (await first.next_asked()).fields == {"consumerGroup": scenario.group}
    # The same again is no change; a newer version is none either.
    for version in (1, 9):
        await second.consume(scenario.group, tags(scenario.topic, version), client_id="b")
        assert second.told() == []
    found = msgspec.json.decode((await first.ask(203, {"consumerGroup": scenario.group})).body)
    assert found["subscriptionTable"][scenario.topic]["subVersion"] == 9
    # Another topic is one, and the last one's topics count.
    await second.consume(scenario.group, tags("other"), client_id="b")
    assert second.told() == [scenario.group]
    assert (await first.next_asked()).fields == {"consumerGroup": scenario.group}
    found = msgspec.json.decode((await first.ask(203, {"consumerGroup": scenario.group})).body)
    assert list(found["subscriptionTable"]) == ["other"]
    # Who leaves is missed by the others.
    fields = {"clientID": "b", "consumerGroup": scenario.group, "producerGroup": "none"}
    assert outcome(await second.ask(35, fields)) == (0, None)
    assert (await first.next_asked()).fields == {"consumerGroup": scenario.group}
    assert second.told() == []


async def test_members_are_notified_of_a_lost_connection(scenario: BrokerScenario) -> None:
    first = await scenario.member("a")
    second = await scenario.member("b")
    await first.next_asked()
    await second.hang_up()
    assert (await first.next_asked()).fields == {"consumerGroup": scenario.group}
    ids = await first.ask(38, {"consumerGroup": scenario.group})
    assert bytes(ids.body) == b'{"consumerIdList":["a"]}'
    third = await scenario.dial()
    await first.hang_up()

    async def empty() -> Command:
        answer = await third.ask(38, {"consumerGroup": scenario.group})
        while answer.code == 0:
            await asyncio.sleep(0.01)
            answer = await third.ask(38, {"consumerGroup": scenario.group})
        return answer

    async with asyncio.timeout(WAIT_S):
        answer = await empty()
    assert outcome(answer) == (1, f"no consumer for this group, {scenario.group}")


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b'{"consumerDataSet":7}'])
async def test_what_is_no_heartbeat(scenario: BrokerScenario, body: bytes) -> None:
    client = await scenario.dial()
    answer = await client.ask(34, body=body)
    assert answer.code == 1
    assert answer.remark
    assert (await client.consume(scenario.group, tags(scenario.topic))).code == 0


async def test_forms_of_fastjson(scenario: BrokerScenario) -> None:
    client = await scenario.dial()
    other = f"{scenario.group}2"
    body = FASTJSON.replace("GROUP2", other).replace("GROUP", scenario.group)
    before_ms = time.time() * 1000 - 60_000
    assert outcome(await client.ask(34, body=body.encode())) == (0, None)
    for group in (scenario.group, other):
        answer = await client.ask(203, {"consumerGroup": group})
        found = msgspec.json.decode(answer.body)
        assert "consumeType" not in found
        subscription = found["subscriptionTable"]["t"]
        assert subscription.pop("subVersion") > before_ms
        assert subscription == {
            "classFilterMode": False,
            "codeSet": [65],
            "expressionType": "TAG",
            "subString": "A",
            "tagsSet": [],
            "topic": "t",
        }


async def test_numbers_for_words(scenario: BrokerScenario) -> None:
    """As the C++ client says it."""
    client = await scenario.dial()
    words = {"consumeFromWhere": 4, "consumeType": 1, "messageModel": 0}
    data = heartbeat("c", [consumer(scenario.group, tags("t"), **words)])
    assert (await client.beat(data, language="CPP", version=63)).code == 0
    found = msgspec.json.decode((await client.ask(203, {"consumerGroup": scenario.group})).body)
    assert found["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert found["consumeType"] == "CONSUME_PASSIVELY"
    assert found["messageModel"] == "BROADCASTING"
    wrong = heartbeat("c", [consumer(scenario.group, tags("t"), consumeType=7)])
    assert (await client.beat(wrong)).code == 1


# -- topics that sends make (section 2.4.5)


@pytest.mark.parametrize(
    ("model", "asked", "unit", "queues", "sys_flag"),
    [
        ("TBW102", 4, False, 4, 0),
        ("TBW102", 100, True, 8, 1),
        ("broker-a", 4, False, 1, 0),
        ("DefaultCluster", 12, False, 12, 0),
        ("BenchmarkTest", 4, False, None, 0),
        ("nothing", 4, False, None, 0),
    ],
)
async def test_topics_after_models(
    scenario: BrokerScenario, model: str, asked: int, unit: bool, queues: int | None, sys_flag: int
) -> None:
    client = await scenario.dial()
    values = (scenario.producers, scenario.topic, model, str(asked), "0", "0", "1650000000000", "0")
    fields = dict(zip("abcdefgh", values, strict=True))
    more = {"i": "", "j": "0", "k": "true" if unit else "false", "m": "false"}
    answer = await client.ask(310, {**fields, **more}, b"x")
    if queues is None:
        assert outcome(answer) == (
            17,
            f"topic[{scenario.topic}] not exist, apply first please!{FAQ}",
        )
        return
    assert answer.code == 0, answer.remark
    queue = await route(scenario, scenario.topic)
    found = queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag
    assert found == (queues, queues, 6, sys_flag)


async def test_retry_topics_need_no_model(scenario: BrokerScenario) -> None:
    client = await scenario.dial()
    topic = f"%RETRY%{scenario.group}"
    values = (scenario.producers, topic, "nothing", "4", "0", "0", "1650000000000", "0")
    fields = dict(zip("abcdefgh", values, strict=True))
    more = {"i": "", "j": "0", "k": "true", "m": "false"}
    answer = await client.ask(310, {**fields, **more}, b"x")
    assert answer.code == 0, answer.remark
    queue = await route(scenario, topic)
    found = queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag
    assert found == (1, 1, 6, 2)


async def route(scenario: BrokerScenario, topic: str) -> QueueData:
    """What the name server learns of a topic."""
    names = await Client.dial(int(scenario.cluster.namesrv.rpartition(":")[2]))
    async with asyncio.timeout(WAIT_S):
        answer = await names.ask(ROUTE, {"topic": topic})
        while answer.code:
            await asyncio.sleep(0.01)
            answer = await names.ask(ROUTE, {"topic": topic})
    names.connection.close()
    [found] = TopicRoute.decode(answer.body).queue_datas
    return found


# -- questions and locks


async def test_who_is_not_there(scenario: BrokerScenario) -> None:
    client = await scenario.dial()
    group = {"consumerGroup": scenario.group}
    assert outcome(await client.ask(38, group)) == (
        1,
        f"no consumer for this group, {scenario.group}",
    )
    assert outcome(await client.ask(203, group)) == (
        206,
        f"the consumer group[{scenario.group}] not online",
    )
    answer = await client.ask(204, {"producerGroup": scenario.producers})
    assert outcome(answer) == (1, f"the producer group[{scenario.producers}] not exist")
    assert bytes((await client.ask(300, {"topic": "nobody"})).body) == b'{"groupList":[]}'
    assert outcome(await client.ask(35, {"clientID": "x"})) == (0, None)
    for code in (38, 203, 204):
        answer = await client.ask(code)
        assert answer.code == 1
        assert answer.remark is not None
        assert "NullPointerException" in answer.remark


@pytest.mark.parametrize(
    ("expression", "kind", "code", "remark"),
    [
        (None, "", 0, None),
        ("A", "TAG", 0, None),
        ("a > 5 AND b IS NOT NULL", "SQL92", 0, None),
        (
            "a BETWEEN 5 AND 1",
            "SQL92",
            23,
            (
                "java.lang.RuntimeException: Illegal values of between, left value(5) must less "
                "than or equal to right value(1)"
            ),
        ),
        ("a > 'x'", "SQL92", 23, None),
        ("a +", "XPATH", 23, None),
    ],
)
async def test_checking_a_client(
    scenario: BrokerScenario, expression: str | None, kind: str, code: int, remark: str | None
) -> None:
    client = await scenario.dial()
    data = None
    if expression is not None:
        data = tags(scenario.topic, subString=expression, expressionType=kind)
    body = {"clientId": "me", "group": scenario.group, "subscriptionData": data}
    answer = await client.ask(46, body=msgspec.json.encode(body))
    assert answer.code == code
    if code == 0 or remark is not None:
        assert answer.remark == remark


async def test_locks(scenario: BrokerScenario) -> None:
    client = await scenario.dial()

    def body(client_id: str, *queues: int) -> bytes:
        queue_set = [
            {"brokerName": "broker-a", "queueId": one, "topic": scenario.topic} for one in queues
        ]
        batch = {"clientId": client_id, "consumerGroup": scenario.group, "mqSet": queue_set}
        return msgspec.json.encode(batch)

    async def locked(client_id: str, *queues: int) -> list[int]:
        answer = await client.ask(41, body=body(client_id, *queues))
        assert outcome(answer) == (0, None)
        found = msgspec.json.decode(answer.body)["lockOKMQSet"]
        assert all(one["topic"] == scenario.topic for one in found)
        return sorted(one["queueId"] for one in found)

    assert await locked("a", 0, 1) == [0, 1]
    assert await locked("b", 1, 2) == [2]
    assert await locked("a", 0, 1, 2) == [0, 1]
    assert outcome(await client.ask(42, body=body("b", 0, 1, 2))) == (0, None)
    assert await locked("a", 0, 1, 2) == [0, 1, 2]
    await client.hang_up()
    client = await scenario.dial()
    assert await locked("b", 0) == []


# -- groups


async def test_a_group_that_is_deleted_while_its_pull_waits(scenario: BrokerScenario) -> None:
    """Java's broker creates it again when the pull ends; ours does not."""
    client, operator = await scenario.dial(), await scenario.dial()
    await scenario.send(client)
    await scenario.visible(client, 1)
    flags = SUSPEND | SUBSCRIPTION
    place = {"topic": scenario.topic, "queueId": 0, "queueOffset": 1}
    waits = client.begin(
        PULL,
        pull_fields(
            consumerGroup=scenario.group, **place, sysFlag=flags, suspendTimeoutMillis=60_000
        ),
    )

    async def exists() -> bool:
        table = msgspec.json.decode((await operator.ask(GROUPS, {})).body)
        return scenario.group in table["subscriptionGroupTable"]

    await until(exists)
    deleted = await operator.ask(DELETE_GROUP, {"groupName": scenario.group})
    assert deleted.code == 0
    assert not await exists()
    assert not waits.done()
    await scenario.send(operator, b"there")
    async with asyncio.timeout(WAIT_S):
        answer = await waits
    is_java = scenario.cluster.kind == "java"
    assert answer.code == (0 if is_java else ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    assert await exists() == is_java
