"""Requests of a broker to its clients, over sockets.

See docs/protocol/rocketmq.md, sections 2.13 and 4.
"""

from __future__ import annotations

import msgspec
import pytest

from coherer._record.ids import encode_offset_id
from coherer._record.layout import decode
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.transactions import Question
from coherer._store import Draft
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.bodies import ResetOffset
from tests.server.client_harness import Client, Harness, heartbeat, queue, tags

TOPIC = "TopicTest"
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
RESET, RESET_CLIENT, STATUS, STATUS_CLIENT = 222, 220, 223, 221
RUNNING, DIRECTLY = 307, 309

NOT_SET = "not set any response code"


@pytest.fixture
def harness(harness: Harness) -> Harness:
    return with_topic(harness)


@pytest.fixture
def hasty(hasty: Harness) -> Harness:
    return with_topic(hasty)


def with_topic(harness: Harness) -> Harness:
    harness.state.topics.put(Topic(name=TOPIC, read_queues=2, write_queues=2), 0)
    return harness


@pytest.fixture
async def admin(harness: Harness) -> Client:
    return await harness.dial()


async def member(
    harness: Harness, client_id: str = "c1", *, language: str = "JAVA", version: int = 399
) -> Client:
    client = await harness.dial()
    await client.consume("g", tags(TOPIC), client_id=client_id, language=language, version=version)
    await client.settle()
    client.told()
    return client


def fill(harness: Harness, *, messages: int = 9) -> list[int]:
    """Messages in both queues, one each second; gives when they came."""
    times: list[int] = []
    for _ in range(messages):
        times.append(harness.clock.advance(1_000))
        harness.store.append([Draft(TOPIC, number, b"x", b"") for number in (0, 1)])
    return times


def commit(harness: Harness, *offsets: int) -> None:
    for number, offset in enumerate(offsets):
        harness.state.offsets.open("g", TOPIC, number).offset = offset


def reset(time_ms: int, *, force: bool = False, topic: str = TOPIC) -> dict[str, str]:
    return {
        "topic": topic,
        "group": "g",
        "timestamp": str(time_ms),
        "isForce": "true" if force else "false",
    }


# -- section 4.1


async def test_a_producer_is_asked_for_the_state_of_its_transaction(harness: Harness) -> None:
    question = Question("payers", "demo", 5, 4096, "0A01", b"record")
    assert not harness.calls.check_transaction(question)
    producers = [await harness.dial() for _ in range(2)]
    for number, producer in enumerate(producers):
        await producer.beat(heartbeat(f"p{number}", [], "payers", "others"))
    for _ in range(2):
        assert harness.calls.check_transaction(question)
    for producer in producers:  # by turns
        asked = await producer.next_asked()
        assert (asked.code, asked.is_oneway, bytes(asked.body)) == (39, True, b"record")
        assert asked.fields == {
            "tranStateTableOffset": "5",
            "commitLogOffset": "4096",
            "msgId": "0A01",
            "transactionId": "0A01",
            "offsetMsgId": encode_offset_id(HOST, 4096),
        }
    await producers[0].hang_up()
    await harness.lost.get()
    for _ in range(2):
        assert harness.calls.check_transaction(question)
        assert (await producers[1].next_asked()).code == 39
    await producers[1].hang_up()
    await harness.lost.get()
    assert not harness.calls.check_transaction(question)


# -- section 4.4


async def test_reset_by_time(harness: Harness, admin: Client) -> None:
    times = fill(harness)
    commit(harness, 8, 2)
    client = await member(harness)
    answer = await admin.ask(RESET, reset(times[4]))
    assert (answer.code, answer.remark) == (0, NOT_SET)
    offsets = {queue(TOPIC, 0): 4, queue(TOPIC, 1): 2}  # forward only where it is forced
    assert ResetOffset.decode(answer.body).offset_table == offsets
    told = await client.next_asked()
    assert (told.code, told.is_oneway) == (RESET_CLIENT, True)
    assert told.fields == reset(times[4])
    assert bytes(told.body) == bytes(answer.body)
    assert bytes(told.body).startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":')
    kept = [harness.state.offsets.open("g", TOPIC, number).offset for number in (0, 1)]
    assert kept == [8, 2]  # the consumers do that


async def test_the_worked_bodies(harness: Harness, admin: Client) -> None:
    """The example of section 13.16."""
    harness.state.topics.put(Topic(name=TOPIC, read_queues=4, write_queues=1), 0)
    fill(harness, messages=5)
    commit(harness, 5)
    client = await member(harness)
    java = '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:5}}'
    cpp = '{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":0,"topic":"TopicTest"}]}'
    for language, body in (("JAVA", java), ("PYTHON", java), ("CPP", cpp)):
        answer = await admin.ask_as(RESET, reset(-1), language=language)
        assert bytes((await client.next_asked()).body) == body.encode()
        assert bytes(answer.body) == java.encode()


async def test_reset_to_the_end_and_by_force(harness: Harness, admin: Client) -> None:
    times = fill(harness)
    commit(harness, 2, 9)
    client = await member(harness)
    for fields, offsets in (
        (reset(-1), [2, 9]),
        (reset(-1, force=True), [9, 9]),
        (reset(times[5], force=True), [5, 5]),
        (reset(0), [0, 0]),
        (reset(0, force=True), [0, 0]),
    ):
        answer = await admin.ask(RESET, fields)
        assert list(ResetOffset.decode(answer.body).offset_table.values()) == offsets
        told = await client.next_asked()
        assert told.fields["isForce"] == "false"  # never passed on


async def test_every_member_is_notified(harness: Harness, admin: Client) -> None:
    commit(harness, 0, 0)
    clients = [await member(harness, name) for name in ("a", "b", "c")]
    for client in clients:
        await client.settle()
        client.told()
    assert (await admin.ask(RESET, reset(-1))).code == 0
    for client in clients:
        assert (await client.next_asked()).code == RESET_CLIENT


async def test_no_reset(harness: Harness, admin: Client) -> None:
    answer = await admin.ask(RESET, reset(-1, topic="nowhere"))
    assert (answer.code, answer.remark) == (
        1,
        "[reset-offset] reset offset failed, no topic in this broker. topic=nowhere",
    )
    commit(harness, 0)  # of two queues
    answer = await admin.ask(RESET, reset(-1))
    assert (answer.code, answer.remark) == (1, "THe consumer group <g> not exist")
    commit(harness, 0, 0)
    answer = await admin.ask(RESET, reset(77))
    assert (answer.code, answer.remark) == (
        206,
        "Consumer not online, so can not reset offset, Group: g Topic: TopicTest Timestamp: 77",
    )
    await member(harness)
    answer = await admin.ask_as(RESET, reset(-1), language=None)
    assert answer.code == 1
    assert "NullPointerException" in (answer.remark or "")
    assert (await admin.ask(RESET, {"group": "g"})).code == 1


async def test_members_that_cannot_be_reset(harness: Harness, admin: Client) -> None:
    commit(harness, 0, 0)
    first = await member(harness, "a", version=28)
    await member(harness, "b", version=27)
    last = await member(harness, "c")
    for client in (first, last):
        await client.settle()
        client.told()
    answer = await admin.ask(RESET, reset(-1))
    assert (answer.code, answer.remark) == (
        1,
        "the client does not support this feature. version=V3_0_6",
    )
    assert (await first.next_asked()).code == RESET_CLIENT  # it came before
    await last.settle()
    assert last.asked.empty()


# -- section 4.5


def status(client_id: str | None = None) -> dict[str, str]:
    fields = {"topic": TOPIC, "group": "g"}
    return fields if client_id is None else {**fields, "clientAddr": client_id}


def offsets_body(*offsets: int) -> bytes:
    table = {queue(TOPIC, number): offset for number, offset in enumerate(offsets)}
    return fastjson.dumps({"consumerTable": {}, "messageQueueTable": table})


async def test_how_far_consumers_are(harness: Harness, admin: Client) -> None:
    clients = [await member(harness, name) for name in ("a", "b")]
    await clients[0].settle()
    clients[0].told()
    pending = admin.begin(STATUS, status())
    for client, offset in zip(clients, (5, 6), strict=True):
        asked = await client.next_asked()
        assert (asked.code, asked.is_oneway, asked.fields) == (STATUS_CLIENT, False, status())
        client.answer(asked, body=offsets_body(offset))
    answer = await pending
    assert (answer.code, answer.remark) == (0, NOT_SET)
    assert bytes(answer.body) == (
        b'{"consumerTable":{"a":{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:5},'
        b'"b":{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:6}},'
        b'"messageQueueTable":{}}'
    )


async def test_how_far_one_consumer_is(harness: Harness, admin: Client) -> None:
    clients = [await member(harness, name) for name in ("a", "b")]
    await clients[0].settle()
    clients[0].told()
    pending = admin.begin(STATUS, status("b"))
    clients[1].answer(await clients[1].next_asked(), body=offsets_body(7, 8))
    answer = await pending
    assert bytes(answer.body).startswith(b'{"consumerTable":{"b":{')
    assert clients[0].asked.empty()
    nobody = await admin.ask(STATUS, status("nobody"))
    assert (nobody.code, bytes(nobody.body)) == (
        0,
        b'{"consumerTable":{},"messageQueueTable":{}}',
    )


async def test_consumers_that_do_not_say(hasty: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness, admin = hasty, await hasty.dial()
    clients = [await member(harness, name) for name in ("silent", "leaves", "refuses", "garbles")]
    for client in clients:
        await client.settle()
        client.told()
    pending = admin.begin(STATUS, status())
    asked = [await client.next_asked() for client in clients]
    clients[1].connection.close()
    clients[2].answer(asked[2], code=1)
    clients[3].answer(asked[3], body=b"nonsense")
    answer = await pending
    assert (answer.code, bytes(answer.body)) == (
        0,
        b'{"consumerTable":{},"messageQueueTable":{}}',
    )
    for name in ("silent", "leaves", "refuses", "garbles"):
        assert name in caplog.text


async def test_no_status(harness: Harness, admin: Client) -> None:
    answer = await admin.ask(STATUS, status())
    assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [g]")
    await member(harness, "old", version=15)
    answer = await admin.ask(STATUS, status("other"))
    assert (answer.code, answer.remark) == (
        1,
        "the client does not support this feature. version=V3_0_0_FINAL",
    )


# -- section 2.13


def running(client_id: str, **more: str) -> dict[str, str]:
    return {"consumerGroup": "g", "clientId": client_id, **more}


async def test_running_info_of_a_consumer(harness: Harness, admin: Client) -> None:
    client = await member(harness)
    fields = running("c1", jstackEnable="true", extra="ü")
    pending = admin.begin(RUNNING, fields)
    asked = await client.next_asked()
    assert (asked.code, asked.is_oneway, asked.fields) == (RUNNING, False, fields)
    client.answer(asked, body=b'{"mqTable":{}}')
    answer = await pending
    assert (answer.code, answer.remark, bytes(answer.body)) == (0, None, b'{"mqTable":{}}')
    pending = admin.begin(RUNNING, fields)
    asked = await client.next_asked()
    remark = "The Consumer Group <g> not exist in this consumer"
    client.connection.write(client.session.response(asked, 1, remark, {"a": "b"}))
    answer = await pending
    assert (answer.code, answer.remark, answer.fields) == (1, remark, {"a": "b"})


async def test_a_message_is_consumed_directly(harness: Harness, admin: Client) -> None:
    [placed] = harness.store.append([Draft(TOPIC, 1, b"body", b"TAGS\x01a")])
    client = await member(harness)
    message_id = encode_offset_id(HOST, placed.physical_offset)
    pending = admin.begin(DIRECTLY, running("c1", msgId=message_id, brokerName="whatever"))
    asked = await client.next_asked()
    assert asked.code == DIRECTLY
    assert asked.fields == running("c1", msgId=message_id, brokerName="broker-a")
    record = decode(asked.body)
    assert (record.topic, record.queue_id, bytes(record.body)) == (TOPIC, 1, b"body")
    client.answer(asked, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert (await pending).code == 0


@pytest.mark.parametrize("message_id", ["", "nonsense", encode_offset_id(HOST, 1 << 40)])
async def test_no_message_to_consume(harness: Harness, admin: Client, message_id: str) -> None:
    client = await member(harness)
    fields = running("c1", msgId=message_id)
    assert (await admin.ask(DIRECTLY, fields)).code == 1
    assert client.asked.empty()


@pytest.mark.parametrize("code", [RUNNING, DIRECTLY])
async def test_consumers_that_are_offline_or_too_old(
    harness: Harness, admin: Client, code: int
) -> None:
    [placed] = harness.store.append([Draft(TOPIC, 1, b"body", b"")])
    message = {"msgId": encode_offset_id(HOST, placed.physical_offset)}

    async def ask(client_id: str) -> tuple[int, str | None]:
        answer = await admin.ask(code, running(client_id, **message))
        return answer.code, answer.remark

    assert await ask("c1") == (1, "The Consumer <g> <c1> not online")
    await member(harness, "old", version=61)
    assert await ask("c1") == (1, "The Consumer <g> <c1> not online")
    assert await ask("old") == (
        1,
        (
            "The Consumer <old> Version <V3_1_7> too low to finish, please upgrade it to "
            "V3_1_8_SNAPSHOT"
        ),
    )
    client = await member(harness)
    pending = admin.begin(code, running("c1", **message))
    await client.next_asked()
    client.connection.close()
    answer = await pending
    assert (answer.code, answer.remark) == (
        1,
        "invoke consumer <g> <c1> Exception: The client has disconnected.",
    )


@pytest.mark.parametrize("code", [RUNNING, DIRECTLY])
async def test_consumers_that_do_not_answer(hasty: Harness, code: int) -> None:
    [placed] = hasty.store.append([Draft(TOPIC, 1, b"body", b"")])
    client, admin = await member(hasty), await hasty.dial()
    message_id = encode_offset_id(HOST, placed.physical_offset)
    answer = await admin.ask(code, running("c1", msgId=message_id))
    assert (answer.code, answer.remark) == (
        207,
        "consumer <g> <c1> Timeout: The client did not answer within 200 ms.",
    )
    assert (await client.next_asked()).code == code
    hasty.clock.advance(5_000)
    [(group, silent, silent_ms)] = [one for some in hasty.calls.silent() for one in some]
    assert (group, silent.client_id, silent_ms) == ("g", "c1", 5_000)
    pending = admin.begin(code, running("c1", msgId=message_id))
    client.answer(await client.next_asked())
    assert (await pending).code == 0
    assert [one for some in hasty.calls.silent() for one in some] == []


async def test_bodies_are_what_msgspec_reads(harness: Harness, admin: Client) -> None:
    """Strict readers (C++, Node) get quoted keys where Java's form would need bare ones."""
    await member(harness)
    answer = await admin.ask(38, {"consumerGroup": "g"})
    assert msgspec.json.decode(answer.body) == {"consumerIdList": ["c1"]}
