"""Timed messages over the protocol: accepted times, responses, delivered messages."""

from __future__ import annotations

import pytest

from coherer._record.batches import encode_batch_item
from coherer._record.properties import decode
from coherer._record.system_topics import TIMER_TOPIC
from coherer._wire.rocketmq.command import Command
from coherer.testing import ManualClock
from tests.server.rocket_harness import (
    SEND_BACK,
    SUBSCRIPTION,
    SUSPEND,
    BrokerHarness,
    Client,
    send_fields,
)

BATCH, END, LITE_PULL, TOPIC_CONFIG = 320, 37, 361, 351
PREPARED, COMMIT = 4, 8
TOO_FAR = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; "
    "or if set del msg, the delay time should be bigger than the current time"
)


async def pass_time(harness: BrokerHarness, clock: ManualClock, ms: int) -> None:
    clock.advance(ms)
    for _ in range(3):
        harness.broker.tick()
        await harness.core.appender.close()  # stores what is pending


async def test_a_timed_message_is_answered_at_once_and_stored_later(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    answer = await peer.send(
        b"later", e=3, i="TAGS\x01a\x02UNIQ_KEY\x010F\x02TIMER_DELAY_SEC\x0160"
    )
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "3", "0")
    await peer.send(b"now", e=3)
    assert [record.body for record in broker_harness.records("demo", 3)] == [b"now"]
    await pass_time(broker_harness, clock, 59_999)
    assert len(broker_harness.records("demo", 3)) == 1
    await pass_time(broker_harness, clock, 1)
    _, record = broker_harness.records("demo", 3)
    assert (record.body, record.flag, record.born_ms) == (b"later", 7, 1650000000000)
    assert decode(record.properties)["TIMER_OUT_MS"] == str(clock.now_ms())
    found = broker_harness.store.by_key("demo", "0F")
    assert len(found) == 2


async def test_a_held_pull_gets_it(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await peer.send(b"makes the topic")
    await peer.send(b"later", i="TIMER_DELAY_MS\x01500")
    other = await broker_harness.dial()
    pull = other.begin_pull(queueOffset=1, sysFlag=SUSPEND | SUBSCRIPTION)
    await other.settle()
    await pass_time(broker_harness, clock, 499)
    assert not pull.done()
    await pass_time(broker_harness, clock, 1)
    assert (await pull).code == 0
    await other.hang_up()


@pytest.mark.parametrize("text", ["TIMER_DELAY_SEC\x01259201", "TIMER_DELIVER_MS\x01tomorrow"])
async def test_a_time_that_cannot_be_is_refused_as_by_java(peer: Client, text: str) -> None:
    answer = await peer.send(i=text)
    assert (answer.code, answer.remark) == (13, TOO_FAR)


async def test_a_level_counts_more_than_a_time(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await peer.send(b"m", i="DELAY\x011\x02TIMER_DELAY_SEC\x0160")
    await pass_time(broker_harness, clock, 1_000)
    assert [record.body for record in broker_harness.records("demo")] == [b"m"]


@pytest.mark.parametrize("own", ["", "TIMER_DELAY_SEC\x015"])
async def test_a_batch_is_never_timed(
    broker_harness: BrokerHarness, peer: Client, own: str
) -> None:
    item = b"k\x01v" if own else b"TIMER_DELAY_SEC\x015"
    body = encode_batch_item(b"a", b"k\x01v") + encode_batch_item(b"b", item)
    answer = await peer.ask(BATCH, send_fields(m="true", i=own), body)
    assert answer.code == 13
    assert "cannot be timed" in (answer.remark or "")
    assert broker_harness.records("demo") == []


async def test_a_transaction_first_ends_and_then_waits(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    text = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02TIMER_DELAY_SEC\x0110"
    sent = await peer.send(b"m", f=PREPARED, i=text)
    await pass_time(broker_harness, clock, 20_000)
    assert broker_harness.records("demo") == []
    end = {
        "producerGroup": "payers",
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": str(int(sent.fields["msgId"][16:], 16)),
        "commitOrRollback": str(COMMIT),
    }
    assert (await peer.ask(END, end)).code == 0
    await pass_time(broker_harness, clock, 9_999)
    assert broker_harness.records("demo") == []
    await pass_time(broker_harness, clock, 1)
    (record,) = broker_harness.records("demo")
    assert (record.body, record.sys_flag) == (b"m", COMMIT)
    await pass_time(broker_harness, clock, 20_000)
    assert len(broker_harness.records("demo")) == 1


async def test_a_half_message_whose_time_cannot_be(peer: Client) -> None:
    text = "TRAN_MSG\x01true\x02PGROUP\x01payers\x02TIMER_DELAY_SEC\x01259201"
    answer = await peer.send(b"m", f=PREPARED, i=text)
    assert (answer.code, answer.remark) == (13, TOO_FAR)


async def test_a_released_message_is_redelivered_by_its_level(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await peer.send(b"m", i="TIMER_DELAY_SEC\x0160")
    await pass_time(broker_harness, clock, 60_000)
    (record,) = broker_harness.records("demo")
    back = {
        "offset": record.physical_offset, "group": "readers", "delayLevel": 1,
        "originTopic": "demo", "originMsgId": "x", "unitMode": "false",
    }  # fmt: skip
    assert (await peer.ask(SEND_BACK, {name: str(value) for name, value in back.items()})).code == 0
    await pass_time(broker_harness, clock, 1_000)
    (again,) = broker_harness.records("%RETRY%readers")
    assert (again.body, again.reconsume_times) == (b"m", 1)


async def test_sends_to_the_timer_topic_are_refused(peer: Client) -> None:
    answer = await peer.send(b=TIMER_TOPIC)
    assert answer.code == 16
    await peer.send(b"m", i="TIMER_DELAY_SEC\x0160")
    answer = await peer.send(b=TIMER_TOPIC)
    assert answer.code == 16


async def test_a_lite_pull_is_a_pull(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await peer.send(b"one")
    pull = {
        "consumerGroup": "readers", "topic": "demo", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": str(4 | 16), "commitOffset": "0", "subscription": "*",
        "subVersion": "0", "suspendTimeoutMillis": "1000",
    }  # fmt: skip
    answer = await peer.ask(LITE_PULL, pull)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (0, "1")
    assert b"one" in bytes(answer.body)
    held = peer.begin(LITE_PULL, {**pull, "queueOffset": "1", "sysFlag": str(2 | 4 | 16)})
    await peer.settle()
    await peer.send(b"two")
    assert b"two" in bytes((await held).body)
    fast = await Client.dial(broker_harness.fast_port)
    assert (await fast.ask(LITE_PULL, pull)).code == 3
    await fast.hang_up()


async def test_the_configuration_of_one_topic(peer: Client) -> None:
    await peer.send()
    answer = await peer.ask(TOPIC_CONFIG, {"topic": "demo", "lo": "true"})
    assert answer.code == 0
    assert bytes(answer.body) == (
        b'{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"demo","topicSysFlag":0,"writeQueueNums":4}'
    )
    missing: Command = await peer.ask(TOPIC_CONFIG, {"topic": "other"})
    assert (missing.code, missing.remark) == (17, "No topic in this broker. topic: other")
