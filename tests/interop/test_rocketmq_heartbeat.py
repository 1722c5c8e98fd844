"""The heartbeat path and the calls of a broker: the same bytes to Java's broker and to ours.

What is asserted here was observed on Java's; so what our broker does is held against what Java's
does, down to remarks and bodies (rocketmq 2.10 to 2.14, 3, 4).
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from client_stage import Client, consumer, heartbeat, sql, tags
from peers.rocket_place import Place, outcome
from peers.rocket_site import RocketSite

from coherer.record.layout import decode
from coherer.record.properties import decode as decode_properties
from coherer.record.properties import encode as encode_properties
from coherer.rocketmq import fastjson
from coherer.rocketmq.bodies import ConsumerStatus, QueueData, ResetOffset, TopicRoute
from coherer.rocketmq.codes import FAQ
from coherer.rocketmq.command import Command

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ROUTE = 105
NOT_SET = "not set any response code"
WAIT_S = 15.0
FASTJSON = (
    '{"clientID":"c","consumerDataSet":[{groupName:"GROUP","consumeType":"CONSUME_SIDEWAYS",'
    '"subscriptionDataSet":[{"topic":"t","subString":"A","codeSet":[65],"new":{0:1}}]},'
    '{"groupName":"GROUP2","subscriptionDataSet":'
    '[{"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}],"producerDataSet":[]}'
)


@pytest.fixture(params=["java", "ours"])
async def place(rocket: RocketSite, request: pytest.FixtureRequest) -> Any:
    cluster = await asyncio.to_thread(rocket.cluster, request.param)
    place = Place(cluster)
    yield place
    for client in place.clients:
        client.connection.close()


# -- heartbeats


async def test_a_heartbeat_is_booked(place: Place) -> None:
    client = await place.dial()
    wanted = [
        tags(place.topic, 7, subString="A || B", codeSet=[65, 66], tagsSet=["A", "B"]),
        tags(f"%RETRY%{place.group}", 7),
    ]
    data = heartbeat("10.0.0.9@1", [consumer(place.group, *wanted)], place.producers)
    answer = await client.beat(data, language="GO", version=317)
    assert outcome(answer) == (0, None)
    assert (answer.version, answer.fields, bytes(answer.body)) == (399, {}, b"")
    ids = await client.ask(38, {"consumerGroup": place.group})
    assert bytes(ids.body) == b'{"consumerIdList":["10.0.0.9@1"]}'
    found = msgspec.json.decode((await client.ask(203, {"consumerGroup": place.group})).body)
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
    producers = await client.ask(204, {"producerGroup": place.producers})
    [connection] = msgspec.json.decode(producers.body)["connectionSet"]
    assert (connection["clientId"], connection["language"]) == ("10.0.0.9@1", "GO")
    who = await client.ask(300, {"topic": place.topic})
    assert msgspec.json.decode(who.body) == {"groupList": [place.group]}


@pytest.mark.parametrize("place", ["java", "ours", "java-names"], indirect=True)
async def test_the_retry_topic_is_registered(place: Place) -> None:
    client = await place.dial()
    data = heartbeat("me", [consumer(place.group, tags(place.topic), unitMode=True)])
    await client.beat(data)
    queue = await route(place, f"%RETRY%{place.group}")
    assert (queue.read_queue_nums, queue.write_queue_nums, queue.perm) == (1, 1, 6)


async def test_members_are_told(place: Place) -> None:
    first = await place.member("a")
    assert first.told() == []
    second = await place.member("b")
    assert (await first.next_asked()).fields == {"consumerGroup": place.group}
    # The same again is no change; a newer version is none either.
    for version in (1, 9):
        await second.consume(place.group, tags(place.topic, version), client_id="b")
        assert second.told() == []
    found = msgspec.json.decode((await first.ask(203, {"consumerGroup": place.group})).body)
    assert found["subscriptionTable"][place.topic]["subVersion"] == 9
    # Another topic is one, and the last one's topics count.
    await second.consume(place.group, tags("other"), client_id="b")
    assert second.told() == [place.group]
    assert (await first.next_asked()).fields == {"consumerGroup": place.group}
    found = msgspec.json.decode((await first.ask(203, {"consumerGroup": place.group})).body)
    assert list(found["subscriptionTable"]) == ["other"]
    # Who leaves is missed by the others.
    fields = {"clientID": "b", "consumerGroup": place.group, "producerGroup": "none"}
    assert outcome(await second.ask(35, fields)) == (0, None)
    assert (await first.next_asked()).fields == {"consumerGroup": place.group}
    assert second.told() == []


async def test_a_lost_connection_is_told(place: Place) -> None:
    first = await place.member("a")
    second = await place.member("b")
    await first.next_asked()
    await second.hang_up()
    assert (await first.next_asked()).fields == {"consumerGroup": place.group}
    ids = await first.ask(38, {"consumerGroup": place.group})
    assert bytes(ids.body) == b'{"consumerIdList":["a"]}'
    third = await place.dial()
    await first.hang_up()

    async def empty() -> Command:
        answer = await third.ask(38, {"consumerGroup": place.group})
        while answer.code == 0:
            await asyncio.sleep(0.01)
            answer = await third.ask(38, {"consumerGroup": place.group})
        return answer

    async with asyncio.timeout(WAIT_S):
        answer = await empty()
    assert outcome(answer) == (1, f"no consumer for this group, {place.group}")


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b'{"consumerDataSet":7}'])
async def test_what_is_no_heartbeat(place: Place, body: bytes) -> None:
    client = await place.dial()
    answer = await client.ask(34, body=body)
    assert answer.code == 1
    assert answer.remark
    assert (await client.consume(place.group, tags(place.topic))).code == 0


async def test_forms_of_fastjson(place: Place) -> None:
    client = await place.dial()
    other = f"{place.group}2"
    body = FASTJSON.replace("GROUP2", other).replace("GROUP", place.group)
    before_ms = time.time() * 1000 - 60_000
    assert outcome(await client.ask(34, body=body.encode())) == (0, None)
    for group in (place.group, other):
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


async def test_numbers_for_words(place: Place) -> None:
    """As the C++ client says it."""
    client = await place.dial()
    words = {"consumeFromWhere": 4, "consumeType": 1, "messageModel": 0}
    data = heartbeat("c", [consumer(place.group, tags("t"), **words)])
    assert (await client.beat(data, language="CPP", version=63)).code == 0
    found = msgspec.json.decode((await client.ask(203, {"consumerGroup": place.group})).body)
    assert found["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert found["consumeType"] == "CONSUME_PASSIVELY"
    assert found["messageModel"] == "BROADCASTING"
    wrong = heartbeat("c", [consumer(place.group, tags("t"), consumeType=7)])
    assert (await client.beat(wrong)).code == 1


# -- topics that sends make (2.4.5)


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
    place: Place, model: str, asked: int, unit: bool, queues: int | None, sys_flag: int
) -> None:
    client = await place.dial()
    values = (place.producers, place.topic, model, str(asked), "0", "0", "1650000000000", "0")
    fields = dict(zip("abcdefgh", values, strict=True))
    more = {"i": "", "j": "0", "k": "true" if unit else "false", "m": "false"}
    answer = await client.ask(310, {**fields, **more}, b"x")
    if queues is None:
        assert outcome(answer) == (17, f"topic[{place.topic}] not exist, apply first please!{FAQ}")
        return
    assert answer.code == 0, answer.remark
    queue = await route(place, place.topic)
    found = queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag
    assert found == (queues, queues, 6, sys_flag)


async def test_retry_topics_need_no_model(place: Place) -> None:
    client = await place.dial()
    topic = f"%RETRY%{place.group}"
    values = (place.producers, topic, "nothing", "4", "0", "0", "1650000000000", "0")
    fields = dict(zip("abcdefgh", values, strict=True))
    more = {"i": "", "j": "0", "k": "true", "m": "false"}
    answer = await client.ask(310, {**fields, **more}, b"x")
    assert answer.code == 0, answer.remark
    queue = await route(place, topic)
    found = queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag
    assert found == (1, 1, 6, 2)


async def route(place: Place, topic: str) -> QueueData:
    """What the name server learns of a topic."""
    names = await Client.dial(int(place.cluster.namesrv.rpartition(":")[2]))
    async with asyncio.timeout(WAIT_S):
        answer = await names.ask(ROUTE, {"topic": topic})
        while answer.code:
            await asyncio.sleep(0.01)
            answer = await names.ask(ROUTE, {"topic": topic})
    names.connection.close()
    [found] = TopicRoute.decode(answer.body).queue_datas
    return found


# -- questions and locks


async def test_who_is_not_there(place: Place) -> None:
    client = await place.dial()
    group = {"consumerGroup": place.group}
    assert outcome(await client.ask(38, group)) == (
        1,
        f"no consumer for this group, {place.group}",
    )
    assert outcome(await client.ask(203, group)) == (
        206,
        f"the consumer group[{place.group}] not online",
    )
    answer = await client.ask(204, {"producerGroup": place.producers})
    assert outcome(answer) == (1, f"the producer group[{place.producers}] not exist")
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
    place: Place, expression: str | None, kind: str, code: int, remark: str | None
) -> None:
    client = await place.dial()
    data = None
    if expression is not None:
        data = tags(place.topic, subString=expression, expressionType=kind)
    body = {"clientId": "me", "group": place.group, "subscriptionData": data}
    answer = await client.ask(46, body=msgspec.json.encode(body))
    assert answer.code == code
    if code == 0 or remark is not None:
        assert answer.remark == remark


async def test_locks(place: Place) -> None:
    client = await place.dial()

    def body(client_id: str, *queues: int) -> bytes:
        queue_set = [
            {"brokerName": "broker-a", "queueId": one, "topic": place.topic} for one in queues
        ]
        batch = {"clientId": client_id, "consumerGroup": place.group, "mqSet": queue_set}
        return msgspec.json.encode(batch)

    async def locked(client_id: str, *queues: int) -> list[int]:
        answer = await client.ask(41, body=body(client_id, *queues))
        assert outcome(answer) == (0, None)
        found = msgspec.json.decode(answer.body)["lockOKMQSet"]
        assert all(one["topic"] == place.topic for one in found)
        return sorted(one["queueId"] for one in found)

    assert await locked("a", 0, 1) == [0, 1]
    assert await locked("b", 1, 2) == [2]
    assert await locked("a", 0, 1, 2) == [0, 1]
    assert outcome(await client.ask(42, body=body("b", 0, 1, 2))) == (0, None)
    assert await locked("a", 0, 1, 2) == [0, 1, 2]
    await client.hang_up()
    client = await place.dial()
    assert await locked("b", 0) == []


# -- calls


async def test_reset_offset(place: Place) -> None:
    admin = await place.dial()
    fields = {
        "topic": place.topic,
        "group": place.group,
        "timestamp": "-1",
        "isForce": "true",
    }
    answer = await admin.ask(222, fields)
    assert outcome(answer) == (
        1,
        f"[reset-offset] reset offset failed, no topic in this broker. topic={place.topic}",
    )
    for _ in range(3):
        await place.send(admin, queue=0)
    await place.visible(admin, 3)
    await place.commit(admin, 0, 1)
    answer = await admin.ask(222, fields)
    assert outcome(answer) == (1, f"THe consumer group <{place.group}> not exist")
    await place.commit(admin, 1, 0)
    answer = await admin.ask(222, fields)
    remark = (
        f"Consumer not online, so can not reset offset, Group: {place.group} "
        f"Topic: {place.topic} Timestamp: -1"
    )
    assert outcome(answer) == (206, remark)
    client = await place.member("c")
    table = {place.queue(0): 3, place.queue(1): 0}
    for language, force in (("JAVA", "true"), ("CPP", "true"), ("JAVA", "false")):
        asked = {**fields, "isForce": force}
        answer = await admin.ask_as(222, asked, language=language)
        assert outcome(answer) == (0, NOT_SET)
        wanted = table if force == "true" else {**table, place.queue(0): 1}
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
    old = await place.member("old", version=27)
    await old.settle()
    answer = await admin.ask(222, fields)
    assert outcome(answer) == (1, "the client does not support this feature. version=V3_0_6")


async def test_reset_offset_by_time(place: Place) -> None:
    """It goes where the search by time goes (29), and not forward unless it is forced."""
    admin = await place.dial()
    between: list[int] = []
    for _ in range(4):
        await place.send(admin)
        await asyncio.sleep(0.02)  # so that they are stored at different times
        between.append(time.time_ns() // 10**6)
        await asyncio.sleep(0.02)
    await place.visible(admin, 4)
    await place.commit(admin, 0, 3)
    await place.commit(admin, 1, 0)
    await place.member("c")
    for time_ms in (0, *between, between[-1] + 60_000):
        where = {"topic": place.topic, "queueId": "0", "timestamp": str(time_ms)}
        target = int((await admin.ask(29, where)).fields["offset"])
        for force, offset in (("true", target), ("false", min(target, 3))):
            fields = {"topic": place.topic, "group": place.group, "timestamp": str(time_ms)}
            answer = await admin.ask(222, {**fields, "isForce": force})
            assert answer.code == 0, answer.remark
            table = ResetOffset.decode(answer.body).offset_table
            assert table == {place.queue(0): offset, place.queue(1): 0}


async def test_consumer_status(place: Place) -> None:
    admin = await place.dial()
    fields = {"topic": place.topic, "group": place.group}
    assert (await admin.ask(223, fields)).code == 1
    client = await place.member("c")
    table = {place.queue(0): 5, place.queue(1): 7}
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
    await place.member("old", version=27)
    answer = await admin.ask(223, {**fields, "clientAddr": "old"})
    assert outcome(answer) == (1, "the client does not support this feature. version=V3_0_6")


async def test_running_info_and_consuming_directly(place: Place) -> None:
    admin = await place.dial()
    placed = await place.send(admin, b"body")
    fields = {"consumerGroup": place.group, "clientId": "c", "msgId": placed["msgId"]}
    for code in (307, 309):
        answer = await admin.ask(code, fields)
        assert outcome(answer) == (1, f"The Consumer <{place.group}> <c> not online")
    old = await place.member("old", version=61)
    for code in (307, 309):
        answer = await admin.ask(code, {**fields, "clientId": "old"})
        remark = (
            "The Consumer <old> Version <V3_1_7> too low to finish, please upgrade it to "
            "V3_1_8_SNAPSHOT"
        )
        assert outcome(answer) == (1, remark)
    client = await place.member("c")
    await old.next_asked()
    more = {"jstackEnable": "false", "other": "1"}
    pending = admin.begin(307, {**fields, **more})
    asked = await client.next_asked()
    assert (asked.code, asked.is_oneway, asked.fields) == (307, False, {**fields, **more})
    remark = f"The Consumer Group <{place.group}> not exist in this consumer"
    client.connection.write(client.session.response(asked, 1, remark))
    assert outcome(await pending) == (1, remark)
    pending = admin.begin(309, fields)
    asked = await client.next_asked()
    assert asked.fields == {**fields, "brokerName": "broker-a"}
    record = decode(asked.body)
    assert (record.topic, bytes(record.body)) == (place.topic, b"body")
    client.answer(asked, body=b'{"consumeResult":"CR_LATER"}')
    answer = await pending
    assert (outcome(answer), bytes(answer.body)) == ((0, None), b'{"consumeResult":"CR_LATER"}')
    assert (await admin.ask(309, {**fields, "clientId": "old", "msgId": "no"})).code == 1


async def test_a_consumer_that_does_not_answer(rocket: RocketSite) -> None:
    """Both brokers wait for ten seconds, at the same time."""

    async def timed_out(place: Place) -> None:
        admin = await place.dial()
        client = await place.member("c")
        pending = admin.begin(307, {"consumerGroup": place.group, "clientId": "c"})
        await client.next_asked()
        async with asyncio.timeout(60):
            answer = await pending
        assert answer.code == 207
        assert (answer.remark or "").startswith(f"consumer <{place.group}> <c> Timeout: ")
        for one in place.clients:
            one.connection.close()

    places = [Place(await asyncio.to_thread(rocket.cluster, kind)) for kind in ("java", "ours")]
    await asyncio.gather(*map(timed_out, places))


async def test_request_and_reply(place: Place) -> None:
    asking, answering = await place.dial(), await place.dial()
    client_id = f"asker-{place.group}"
    await asking.beat(heartbeat(client_id, [], place.producers))

    def fields(**properties: str) -> dict[str, str]:
        text = encode_properties({"MSG_TYPE": "reply", "CORRELATION_ID": "7", **properties})
        values = (
            place.producers, "DefaultCluster_REPLY_TOPIC", "TBW102", "4", "0", "0",
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
            "producerGroup": place.producers,
            "topic": "DefaultCluster_REPLY_TOPIC",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "1650000000000",
            "flag": "3",
            "reconsumeTimes": "0",
            "unitMode": "false",
            "storeHost": f"/{place.cluster.broker.address}",
        }
        asking.answer(pushed, code)
        answer = await pending
        assert outcome(answer) == expected
        assert set(answer.fields) >= {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}


async def test_filters(place: Place) -> None:
    """A heartbeat's expression is ready for the pulls that refer to it, or not (3.11, 2.6)."""
    client = await place.dial()
    await place.send(client)
    await place.visible(client, 1)

    async def pull(version: int) -> int:
        answer = await client.ask(
            11,
            {
                "consumerGroup": place.group,
                "topic": place.topic,
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
        await client.consume(place.group, sql(place.topic, expression, version))
        assert await pull(asked) == code, (expression, version)
