"""Replies that a broker pushes to the requesting client.

See docs/protocol/rocketmq.md, section 2.14.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer._record.ids import encode_offset_id
from coherer._record.layout import decode
from coherer._record.properties import decode as decode_properties
from coherer._record.properties import encode as encode_properties
from coherer._server.options.rocketmq import RocketOptions
from coherer._wire.rocketmq.command import Command
from coherer.testing import ManualClock
from tests.server.client_harness import Client, Harness, heartbeat

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])

REPLY, REPLY_V2, PUSH = 324, 325, 326
NOT_SET = "not set any response code"

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
LONG_NAMES = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
)


def reply_fields(long: bool = False, **properties: str) -> dict[str, str]:
    text = encode_properties({"MSG_TYPE": "reply", "CORRELATION_ID": "7", **properties}).decode()
    values = (
        "answerers",
        REPLY_TOPIC,
        "TBW102",
        "4",
        "0",
        "0",
        "1650000000000",
        "3",
        text,
        "0",
        "false",
    )
    return dict(zip(LONG_NAMES if long else "abcdefghijk", values, strict=True))


async def asker(harness: Harness) -> Client:
    client = await harness.dial()
    await client.beat(heartbeat("asker", [], "askers"))
    return client


@pytest.mark.parametrize("code", [REPLY, REPLY_V2])
async def test_a_reply_reaches_the_requester(harness: Harness, code: int) -> None:
    asking, answering = await asker(harness), await harness.dial()
    found = harness.state.producers.find("asker")
    [channel] = harness.remoting.channels.keys() - {found}
    pending = answering.begin(code, reply_fields(code == REPLY, REPLY_TO_CLIENT="asker"), b"answer")
    pushed = await asking.next_asked()
    assert (pushed.code, pushed.is_oneway, bytes(pushed.body)) == (PUSH, False, b"answer")
    properties = decode_properties(pushed.fields.pop("properties").encode())
    now = str(harness.clock.now_ms())
    assert properties == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "7",
        "REPLY_TO_CLIENT": "asker",
        "PUSH_REPLY_TIME": now,
    }
    assert pushed.fields == {
        "producerGroup": "answerers",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1650000000000",
        "flag": "3",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": f"/{channel.peer}",
        "storeHost": "/127.0.0.1:10911",
        "storeTimestamp": now,
    }
    asking.answer(pushed)
    answer = await pending
    assert (answer.code, answer.remark) == (0, None)
    assert answer.fields == {
        "msgId": encode_offset_id(HOST, 0),
        "queueId": "0",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    record = harness.store.record_at(0)
    assert record is not None
    stored = decode(record)
    assert (stored.topic, bytes(stored.body), stored.flag) == (REPLY_TOPIC, b"answer", 3)
    assert "PUSH_REPLY_TIME" not in decode_properties(stored.properties)


async def refused_reply(harness: Harness, fields: dict[str, str]) -> Command:
    answering = await harness.dial()
    return await answering.ask(REPLY_V2, fields, b"answer")


async def test_undeliverable_replies_are_stored(harness: Harness) -> None:
    asking = await asker(harness)
    found = await refused_reply(harness, reply_fields())
    remark = "reply message properties[REPLY_TO_CLIENT] is null"
    assert (found.code, found.remark) == (1, remark)
    found = await refused_reply(harness, reply_fields(REPLY_TO_CLIENT="nobody"))
    remark = "push reply message fail, channel of <nobody> not found."
    assert (found.code, found.remark) == (1, remark)
    answering = await harness.dial()
    pending = answering.begin(REPLY_V2, reply_fields(REPLY_TO_CLIENT="asker"), b"answer")
    asking.answer(await asking.next_asked(), code=1)
    answer = await pending
    assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
    assert (answer.fields["queueOffset"], len(answer.fields["msgId"])) == ("2", 32)
    assert harness.store.queue_range(REPLY_TOPIC, 0) == (0, 3)


async def test_a_reply_that_is_not_acknowledged_in_time(hasty: Harness) -> None:
    asking = await asker(hasty)
    found = await refused_reply(hasty, reply_fields(REPLY_TO_CLIENT="asker"))
    assert (found.code, found.remark) == (1, "push reply message to askerfail.")
    assert (await asking.next_asked()).code == PUSH
    assert hasty.store.queue_range(REPLY_TOPIC, 0) == (0, 1)


async def test_answers_need_not_be_stored(tmp_path: Path) -> None:
    options = RocketOptions(store_replies=False)
    harness = await Harness(tmp_path / "other", ManualClock(), options).start()
    asking, answering = await asker(harness), await harness.dial()
    pending = answering.begin(REPLY_V2, reply_fields(REPLY_TO_CLIENT="asker"), b"answer")
    asking.answer(await asking.next_asked())
    answer = await pending
    assert answer.code == 0
    assert (answer.fields["msgId"], answer.fields["queueOffset"]) == ("0", "0")
    failed = await answering.ask(REPLY_V2, reply_fields(), b"answer")
    assert failed.code == 1
    assert "msgId" not in failed.fields
    assert harness.store.queue_range(REPLY_TOPIC, 0) == (0, 0)
    await harness.stop()


async def test_replies_are_checked_like_sends(harness: Harness) -> None:
    fields = reply_fields(REPLY_TO_CLIENT="asker")
    for changes, code, remark in (
        ({"b": " "}, 1, "The specified topic is blank."),
        (
            {"b": "SCHEDULE_TOPIC_XXXX"},
            16,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        ({"e": "9"}, 1, "request queueId[9] is illegal, TopicConfig [topicName="),
    ):
        found = await refused_reply(harness, {**fields, **changes})
        assert found.code == code
        assert (found.remark or "").startswith(remark)
        assert found.fields["MSG_REGION"] == "DefaultRegion"
    missing = {key: value for key, value in fields.items() if key != "e"}
    assert (await refused_reply(harness, missing)).code == 1
