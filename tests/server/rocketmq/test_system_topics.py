"""No request of a client puts a record into a topic that the broker itself reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from coherer._record.batches import encode_batch_item
from coherer._record.properties import encode
from coherer._record.system_topics import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    HISTORY_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
)
from coherer._rules.rocketmq.delays import delayed
from coherer._rules.rocketmq.timers import waiting
from coherer._store import Draft
from coherer._wire.rocketmq.command import Command
from coherer.testing import ManualClock
from tests.server.rocket_harness import BrokerHarness, Client, long_fields, running, send_fields

TOPICS = (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    HISTORY_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
)
SEND, SEND_V2, BATCH, REPLY, REPLY_V2, END, COMMIT = 10, 310, 320, 324, 325, 37, 8
MARK = "TAGS\x01d\x02REAL_TOPIC\x01demo\x02REAL_QID\x010\x02TIMER_OUT_MS\x01300000000000"


def forbidden(topic: str, answer: Command) -> bool:
    return (answer.code, answer.remark) == (16, f"Sending message to topic[{topic}] is forbidden.")


@pytest.mark.parametrize("topic", TOPICS)
async def test_sends_and_replies(broker_harness: BrokerHarness, peer: Client, topic: str) -> None:
    body = b"7" * 5_000
    for properties in (MARK, MARK + "\x02DELAY\x011", MARK + "\x02TRAN_MSG\x01true"):
        short, long = send_fields(b=topic, i=properties), long_fields(b=topic, i=properties)
        for code, fields in ((SEND, long), (SEND_V2, short), (REPLY, long), (REPLY_V2, short)):
            assert forbidden(topic, await peer.ask(code, fields, body))
        packed = encode_batch_item(body, MARK.encode())
        assert forbidden(topic, await peer.ask(BATCH, {**short, "m": "true"}, packed))
    assert broker_harness.store.end_offset == 0


@pytest.mark.parametrize("topic", TOPICS)
async def test_the_end_of_a_transaction(
    broker_harness: BrokerHarness, peer: Client, topic: str
) -> None:
    forged = {"PGROUP": "payers", "REAL_TOPIC": topic, "REAL_QID": "0", "TRAN_MSG": "true"}
    # A client of another broker may have put it there: the log is foreign data.
    draft = Draft(HALF_TOPIC, 0, b"7" * 5_000, encode(forged))
    placed = broker_harness.store.append([draft])[0]
    end = broker_harness.store.end_offset
    fields = {
        "producerGroup": "payers",
        "tranStateTableOffset": str(placed.queue_offset),
        "commitLogOffset": str(placed.physical_offset),
        "commitOrRollback": str(COMMIT),
        "fromTransactionCheck": "false",
    }
    assert forbidden(topic, await peer.ask(END, fields))
    assert broker_harness.store.end_offset == end


@pytest.mark.parametrize("topic", TOPICS)
async def test_messages_that_wait_for_a_system_topic(
    tmp_path: Path, clock: ManualClock, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, clock) as harness:
        for destination in (topic, "demo"):
            draft = Draft(destination, 0, destination.encode(), b"")
            due_ms = clock.wall_ms() + 1_000
            harness.store.append([delayed(draft, 1), waiting(draft, due_ms)])
        before = [record.body for record in harness.records(topic)]
        clock.advance(2_000)
        for _ in range(3):
            harness.broker.tick()
            await harness.core.appender.close()
        assert [record.body for record in harness.records("demo")] == [b"demo", b"demo"]
        assert [record.body for record in harness.records(topic)] == before
        assert caplog.text.count("has no valid destination") == 2


async def test_what_waits_still_reaches_its_destination(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    for properties, topic in (
        ("DELAY\x013", SCHEDULE_TOPIC),
        ("TRAN_MSG\x01true\x02PGROUP\x01payers", HALF_TOPIC),
    ):
        assert (await peer.send(i=properties)).code == 0
        queue = 2 if topic == SCHEDULE_TOPIC else 0
        assert [record.body for record in broker_harness.records(topic, queue)] == [b"hello"]


async def test_the_offsets_of_transactions_belong_to_the_broker(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    half = "TRAN_MSG\x01true\x02PGROUP\x01payers"
    assert (await peer.send(i=half)).code == 0
    group = "CID_RMQ_SYS_TRANS"
    before = list(broker_harness.state.offsets.of(group))
    fields = {"consumerGroup": group, "topic": HALF_TOPIC, "queueId": "0", "commitOffset": "1"}
    answer = await peer.ask(15, fields)
    assert answer.code == 16
    assert "belong to the broker" in (answer.remark or "")
    committing = {"consumerGroup": group, "sysFlag": 5, "commitOffset": 1}
    assert (await peer.pull(**committing)).code == 16
    broker_harness.state.commit("g", "demo", 0, 1)
    clone = {"srcGroup": "g", "destGroup": group, "topic": "demo", "offline": "true"}
    assert (await peer.ask(314, clone)).code == 16
    assert list(broker_harness.state.offsets.of(group)) == before
