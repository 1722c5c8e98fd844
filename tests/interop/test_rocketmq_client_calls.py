"""The calls of a broker to its clients, and filters: the same to Java's broker and to ours.

What is asserted here was observed on Java's; so what our broker does is held against what Java's
does, down to remarks and bodies (docs/protocol/rocketmq.md, sections 2.13, 2.14, 4).
"""

from __future__ import annotations

import asyncio
import time

import pytest

from coherer._record.layout import decode
from coherer._record.properties import decode as decode_properties
from coherer._record.properties import encode as encode_properties
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.bodies import ConsumerStatus, ResetOffset
from tests.interop.peers.broker_scenario import BrokerScenario, outcome
from tests.interop.peers.rocket_site import RocketSite
from tests.server.client_harness import heartbeat, sql

pytestmark = [pytest.mark.interop, pytest.mark.slow]

NOT_SET = "not set any response code"
WAIT_S = 15.0


async def test_reset_offset(scenario: BrokerScenario) -> None:
    admin = await scenario.dial()
    fields = {
        "topic": scenario.topic,
        "group": scenario.group,
        "timestamp": "-1",
        "isForce": "true",
    }
    answer = await admin.ask(222, fields)
    assert outcome(answer) == (
        1,
        f"[reset-offset] reset offset failed, no topic in this broker. topic={scenario.topic}",
    )
    for _ in range(3):
        await scenario.send(admin, queue=0)
    await scenario.visible(admin, 3)
    await scenario.commit(admin, 0, 1)
    answer = await admin.ask(222, fields)
    assert outcome(answer) == (1, f"THe consumer group <{scenario.group}> not exist")
    await scenario.commit(admin, 1, 0)
    answer = await admin.ask(222, fields)
    remark = (
        f"Consumer not online, so can not reset offset, Group: {scenario.group} "
        f"Topic: {scenario.topic} Timestamp: -1"
    )
    assert outcome(answer) == (206, remark)
    client = await scenario.member("c")
    table = {scenario.queue(0): 3, scenario.queue(1): 0}
    for language, force in (("JAVA", "true"), ("CPP", "true"), ("JAVA", "false")):
        asked = {**fields, "isForce": force}
        answer = await admin.ask_as(222, asked, language=language)
        assert outcome(answer) == (0, NOT_SET)
        wanted = table if force == "true" else {**table, scenario.queue(0): 1}
        assert ResetOffset.decode(answer.body).offset_table == wanted
        told = await client.next_asked()
        assert (told.code, told.is_oneway) == (220, True)
        assert told.fields == {**fields, "isForce": "false"}
        assert ResetOffset.read(told.body).offset_table == wanted
        assert bytes(told.body).startswith(
            b'{"offsetTable":[{' if language == "CPP" else b'{"offsetTable":{{'
        )
    answer = await admin.ask_as(222, fields, language=None)
    assert answer.code == 1
    old = await scenario.member("old", version=27)
    await old.settle()
    answer = await admin.ask(222, fields)
    assert outcome(answer) == (1, "the client does not support this feature. version=V3_0_6")


async def test_reset_offset_by_time(scenario: BrokerScenario) -> None:
    """It goes where the search by time goes (29), and not forward unless it is forced."""
    admin = await scenario.dial()
    between: list[int] = []
    for _ in range(4):
        await scenario.send(admin)
        await asyncio.sleep(0.02)  # so that they are stored at different times
        between.append(time.time_ns() // 10**6)
        await asyncio.sleep(0.02)
    await scenario.visible(admin, 4)
    await scenario.commit(admin, 0, 3)
    await scenario.commit(admin, 1, 0)
    await scenario.member("c")
    for time_ms in (0, *between, between[-1] + 60_000):
        where = {"topic": scenario.topic, "queueId": "0", "timestamp": str(time_ms)}
        target = int((await admin.ask(29, where)).fields["offset"])
        for force, offset in (("true", target), ("false", min(target, 3))):
            fields = {"topic": scenario.topic, "group": scenario.group, "timestamp": str(time_ms)}
            answer = await admin.ask(222, {**fields, "isForce": force})
            assert answer.code == 0, answer.remark
            table = ResetOffset.decode(answer.body).offset_table
            assert table == {scenario.queue(0): offset, scenario.queue(1): 0}


async def test_consumer_status(scenario: BrokerScenario) -> None:
    admin = await scenario.dial()
    fields = {"topic": scenario.topic, "group": scenario.group}
    assert (await admin.ask(223, fields)).code == 1
    client = await scenario.member("c")
    table = {scenario.queue(0): 5, scenario.queue(1): 7}
    body = fastjson.dumps({"consumerTable": {}, "messageQueueTable": table})
    for more in ({}, {"clientAddr": "c"}):
        pending = admin.begin(223, {**fields, **more})
        asked = await client.next_asked()
        assert (asked.code, asked.is_oneway, asked.fields) == (221, False, fields)
        client.answer(asked, body=body)
        answer = await pending
        assert outcome(answer) == (0, NOT_SET)
        assert ConsumerStatus.decode(answer.body).consumer_table == {"c": table}
    answer = await admin.ask(223, {**fields, "clientAddr": "nobody"})
    assert (answer.code, bytes(answer.body)) == (0, b'{"consumerTable":{},"messageQueueTable":{}}')
    await scenario.member("old", version=27)
    answer = await admin.ask(223, {**fields, "clientAddr": "old"})
    assert outcome(answer) == (1, "the client does not support this feature. version=V3_0_6")


async def test_running_info_and_consuming_directly(scenario: BrokerScenario) -> None:
    admin = await scenario.dial()
    placed = await scenario.send(admin, b"body")
    fields = {"consumerGroup": scenario.group, "clientId": "c", "msgId": placed["msgId"]}
    for code in (307, 309):
        answer = await admin.ask(code, fields)
        assert outcome(answer) == (1, f"The Consumer <{scenario.group}> <c> not online")
    old = await scenario.member("old", version=61)
    for code in (307, 309):
        answer = await admin.ask(code, {**fields, "clientId": "old"})
        remark = (
            "The Consumer <old> Version <V3_1_7> too low to finish, please upgrade it to "
            "V3_1_8_SNAPSHOT"
        )
        assert outcome(answer) == (1, remark)
    client = await scenario.member("c")
    await old.next_asked()
    more = {"jstackEnable": "false", "other": "1"}
    pending = admin.begin(307, {**fields, **more})
    asked = await client.next_asked()
    assert (asked.code, asked.is_oneway, asked.fields) == (307, False, {**fields, **more})
    remark = f"The Consumer Group <{scenario.group}> not exist in this consumer"
    client.connection.write(client.session.response(asked, 1, remark))
    assert outcome(await pending) == (1, remark)
    pending = admin.begin(309, fields)
    asked = await client.next_asked()
    assert asked.fields == {**fields, "brokerName": "broker-a"}
    record = decode(asked.body)
    assert (record.topic, bytes(record.body)) == (scenario.topic, b"body")
    client.answer(asked, body=b'{"consumeResult":"CR_LATER"}')
    answer = await pending
    assert (outcome(answer), bytes(answer.body)) == ((0, None), b'{"consumeResult":"CR_LATER"}')
    assert (await admin.ask(309, {**fields, "clientId": "old", "msgId": "no"})).code == 1


async def test_a_consumer_that_does_not_answer(rocket: RocketSite) -> None:
    """Both brokers wait for ten seconds, at the same time."""

    async def timed_out(scenario: BrokerScenario) -> None:
        admin = await scenario.dial()
        client = await scenario.member("c")
        pending = admin.begin(307, {"consumerGroup": scenario.group, "clientId": "c"})
        await client.next_asked()
        async with asyncio.timeout(60):
            answer = await pending
        assert answer.code == 207
        assert (answer.remark or "").startswith(f"consumer <{scenario.group}> <c> Timeout: ")
        for one in scenario.clients:
            one.connection.close()

    scenarios = [
        BrokerScenario(await asyncio.to_thread(rocket.cluster, kind)) for kind in ("java", "ours")
    ]
    await asyncio.gather(*map(timed_out, scenarios))


async def test_request_and_reply(scenario: BrokerScenario) -> None:
    asking, answering = await scenario.dial(), await scenario.dial()
    client_id = f"asker-{scenario.group}"
    await asking.beat(heartbeat(client_id, [], scenario.producers))

    def fields(**properties: str) -> dict[str, str]:
        text = encode_properties({"MSG_TYPE": "reply", "CORRELATION_ID": "7", **properties})
        values = (
            scenario.producers, "DefaultCluster_REPLY_TOPIC", "TBW102", "4", "0", "0",
            "1650000000000", "3", text.decode(), "0", "false",
        )  # fmt: skip
        return {**dict(zip("abcdefghijk", values, strict=True)), "m": "false"}

    answer = await answering.ask(325, fields(), b"answer")
    assert outcome(answer) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    answer = await answering.ask(325, fields(REPLY_TO_CLIENT="nobody"), b"answer")
    assert outcome(answer) == (1, "push reply message fail, channel of <nobody> not found.")
    assert len(answer.fields["msgId"]) == 32  # stored all the same
    for code, expected in ((0, (0, None)), (1, (1, f"push reply message to {client_id}fail."))):
        pending = answering.begin(325, fields(REPLY_TO_CLIENT=client_id), b"answer")
        pushed = await asking.next_asked()
        assert (pushed.code, pushed.is_oneway, bytes(pushed.body)) == (326, False, b"answer")
        properties = decode_properties(pushed.fields.pop("properties").encode())
        assert int(properties.pop("PUSH_REPLY_TIME")) > 0
        assert properties == {
            "MSG_TYPE": "reply",
            "CORRELATION_ID": "7",
            "REPLY_TO_CLIENT": client_id,
        }
        assert int(pushed.fields.pop("storeTimestamp")) > 0
        assert pushed.fields.pop("bornHost").startswith("/127.0.0.1:")
        assert pushed.fields == {
            "producerGroup": scenario.producers,
            "topic": "DefaultCluster_REPLY_TOPIC",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1650000000000",
            "flag": "3",
            "reconsumeTimes": "0",
            "unitMode": "false",
            "storeHost": f"/{scenario.cluster.broker.address}",
        }
        asking.answer(pushed, code)
        answer = await pending
        assert outcome(answer) == expected
        assert set(answer.fields) >= {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}


async def test_filters(scenario: BrokerScenario) -> None:
    """A heartbeat's expression is ready for the pulls that refer to it, or not (section 3.11)."""
    client = await scenario.dial()
    await scenario.send(client)
    await scenario.visible(client, 1)

    async def pull(version: int) -> int:
        answer = await client.ask(
            11,
            {
                "consumerGroup": scenario.group,
                "topic": scenario.topic,
                "queueId": "0",
                "queueOffset": "0",
                "maxMsgNums": "1",
                "sysFlag": "0",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subVersion": str(version),
                "expressionType": "SQL92",
            },
        )
        return answer.code

    assert await pull(1) == 24  # nobody has said anything
    for expression, version, asked, code in (
        ("a > 5", 10, 10, 20),  # no match
        ("a > 5", 10, 11, 25),  # the pull knows more than the heartbeat
        ("a IS NULL", 9, 10, 20),  # older: ignored
        ("a IS NULL", 11, 11, 0),  # newer: another filter
        ("a IS (", 12, 12, 27),  # newer and wrong: none any more
        ("a IS NULL", 12, 12, 0),  # which the next heartbeat puts right
    ):
        await client.consume(scenario.group, sql(scenario.topic, expression, version))
        assert await pull(asked) == code, (expression, version)
