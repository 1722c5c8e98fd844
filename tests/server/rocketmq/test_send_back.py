"""Messages that consumers send back (docs/protocol/rocketmq.md, sections 2.5 and 6.8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from coherer._record.ids import encode_offset_id
from coherer._record.layout import Record
from coherer._record.properties import decode
from coherer._record.system_topics import HALF_TOPIC
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.groups import Group
from coherer._wire.rocketmq.codes import FAQ
from coherer._wire.rocketmq.command import Command, encode
from coherer.errors import StoreError
from coherer.testing import ManualClock
from tests.server.rocket_harness import (
    SEND_BACK,
    SEND_V2,
    STORE,
    BrokerHarness,
    Client,
    bodies_of,
    running,
    send_fields,
)


def back(**changes: object) -> dict[str, str]:
    fields = {"offset": 0, "group": "g", "delayLevel": 0, "originTopic": "demo", **changes}
    return {name: str(value) for name, value in fields.items() if value is not None}


def last(harness: BrokerHarness, topic: str, queue: int = 0) -> Record:
    return harness.records(topic, queue)[-1]


async def test_redelivery_is_delayed_more_each_time(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await peer.send(b"again", i="TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x010A\x02TUBE\x01a")
    offset, first_id = 0, "7F00000100002A9F0000000000000000"
    for attempt, delay_ms in enumerate((10_000, 30_000, 60_000)):
        assert (await peer.ask(SEND_BACK, back(offset=offset))).code == 0
        waits = last(broker_harness, "SCHEDULE_TOPIC_XXXX", 2 + attempt)
        assert waits.reconsume_times == attempt + 1
        clock.advance(delay_ms)
        broker_harness.broker.tick()
        await peer.settle()
        await broker_harness.stored()
        record = last(broker_harness, "%RETRY%g")
        offset = record.physical_offset
        properties = decode(record.properties)
        assert (record.body, record.reconsume_times) == (b"again", attempt + 1)
        assert (record.flag, record.born_ms) == (7, 1650000000000)
        assert properties["RETRY_TOPIC"] == "demo"
        assert properties["ORIGIN_MESSAGE_ID"] == first_id
        assert (properties["WAIT"], properties["TAGS"], properties["KEYS"]) == ("false", "a", "k")
    assert broker_harness.state.topics["%RETRY%g"].read_queues == 1
    assert len(broker_harness.store.by_key("%RETRY%g", "0A")) == 3
    answer = await peer.pull(topic="%RETRY%g", subscription="a")
    assert bodies_of(answer) == [b"again"] * 3


async def test_the_answer_waits_for_the_disk(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer forgets the message then, so that a power cut must not take the copy."""
    async with running(tmp_path, clock, sync_flush=True) as harness:
        peer = await harness.dial()
        await peer.send(b"again")
        assert (await peer.ask(SEND_BACK, back())).code == 0, "the topics are there now"
        may_flush = harness.hold_flush(monkeypatch)
        goes_back = peer.begin(SEND_BACK, back())
        hurries = peer.begin(SEND_V2, send_fields(i="WAIT\x01false"), b"quick")
        async with asyncio.timeout(10):
            assert (await hurries).code == 0
            assert not goes_back.done()
            may_flush.set()
            assert (await goes_back).code == 0


async def test_another_message_at_the_offset_is_not_sent_back(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    mine, other = "0A" * 16, "0B" * 16
    await peer.send(b"mine", i=f"UNIQ_KEY\x01{mine}")
    refused = await peer.ask(SEND_BACK, back(originMsgId=other))
    assert refused.code == 1
    assert refused.remark == "another message is at offset 0 now"
    assert broker_harness.records("SCHEDULE_TOPIC_XXXX", 2) == []
    for accepted in (mine, "7F00000100002A9F0000000000000000", "what Go sends", None):
        assert (await peer.ask(SEND_BACK, back(originMsgId=accepted))).code == 0
    assert len(broker_harness.records("SCHEDULE_TOPIC_XXXX", 2)) == 4


async def test_what_no_consumer_has_received_is_not_sent_back(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    """Otherwise a group would get the message of a transaction that is not committed."""
    await peer.send(b"half", i="TRAN_MSG\x01true\x02PGROUP\x01sellers")
    assert broker_harness.records(HALF_TOPIC, 0)[0].body == b"half"
    refused = await peer.ask(SEND_BACK, back())
    assert refused.code == 1
    assert refused.remark == "another message is at offset 0 now"


async def test_a_message_without_a_key_has_the_id_of_its_offset(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await peer.send(b"mine", i="TAGS\x01a")
    assert (await peer.ask(SEND_BACK, back(originMsgId="0B" * 16))).code == 1
    record = last(broker_harness, "demo")
    own = encode_offset_id(record.store_host, record.physical_offset)
    assert (await peer.ask(SEND_BACK, back(originMsgId=own))).code == 0


@pytest.mark.parametrize("changes", [{"delayLevel": -1}, {"maxReconsumeTimes": 0}])
async def test_dead_letters(
    broker_harness: BrokerHarness, peer: Client, changes: dict[str, object]
) -> None:
    await peer.send(b"bad")
    assert (await peer.ask(SEND_BACK, back(**changes))).code == 0
    dead = last(broker_harness, "%DLQ%g")
    assert (dead.body, dead.reconsume_times) == (b"bad", 1)
    topic = broker_harness.state.topics["%DLQ%g"]
    assert (topic.read_queues, topic.write_queues, topic.perm) == (1, 1, 6)


async def test_old_clients_have_the_limit_of_their_group(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    broker_harness.state.groups.put(Group(group_name="g", retry_max_times=1), 0)
    await peer.send(b"x")

    async def give_back(version: int) -> None:
        request = Command(SEND_BACK, 500 + version, 0, "JAVA", version)
        request.fields = back(maxReconsumeTimes=0)
        peer.connection.write(encode(request))
        assert (await peer.expect(500 + version)).code == 0

    await give_back(120)
    assert len(broker_harness.records("SCHEDULE_TOPIC_XXXX", 2)) == 1
    await give_back(121)
    assert len(broker_harness.records("%DLQ%g")) == 1


async def test_a_level_that_the_consumer_chose(broker_harness: BrokerHarness, peer: Client) -> None:
    await peer.send(b"x")
    for level, queue in ((1, 0), (18, 17), (40, 17)):
        await peer.ask(SEND_BACK, back(delayLevel=level))
        assert last(broker_harness, "SCHEDULE_TOPIC_XXXX", queue).body == b"x"


async def test_a_broker_with_other_levels(tmp_path: Path, clock: ManualClock) -> None:
    levels = msgspec.structs.replace(STORE, delay_levels_ms=(1_000, 5_000))
    async with running(tmp_path, clock, store_options=levels) as harness:
        peer = await harness.dial()
        await peer.send(b"sent", i="DELAY\x019")
        await peer.send(b"bad")
        bad = harness.records("demo")[0].physical_offset
        assert (await peer.ask(SEND_BACK, back(offset=bad))).code == 0  # the third level, says Java
        waiting = harness.records("SCHEDULE_TOPIC_XXXX", 1)
        assert [record.body for record in waiting] == [b"sent", b"bad"]
        clock.advance(5_000)
        harness.broker.tick()
        await peer.settle()
        await harness.stored()
        assert [record.body for record in harness.records("demo")] == [b"bad", b"sent"]
        assert last(harness, "%RETRY%g").body == b"bad"


async def test_refused(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, clock, auto_create_groups=False) as harness:
        peer = await harness.dial()
        await peer.send()

        async def give_back(**changes: object) -> tuple[int, str | None]:
            answer = await peer.ask(SEND_BACK, back(**changes))
            return answer.code, answer.remark

        assert await give_back() == (26, f"subscription group not exist, g {FAQ}")
        harness.state.groups.put(Group(group_name="g", retry_queue_nums=0), 0)
        harness.change(perm=4)
        assert await give_back() == (16, "the broker[127.0.0.1] sending message is forbidden")
        harness.change(perm=6)
        assert await give_back() == (0, None), "dropped"
        assert "%RETRY%g" not in harness.state.topics
        harness.state.groups.put(Group(group_name="g"), 0)
        harness.state.topics.put(Topic(name="%RETRY%g", perm=4), 0)
        assert await give_back() == (16, "the topic[%RETRY%g] sending message is forbidden")
        harness.state.topics.put(Topic(name="%RETRY%g"), 0)
        assert await give_back(offset=7) == (1, "look message by offset failed, 7")
        assert (await give_back(offset=None))[0] == 1

        def fail(_: object) -> None:
            raise StoreError("Broken.")

        monkeypatch.setattr(harness.store, "append", fail)
        assert await give_back() == (1, "UNKNOWN_ERROR")
        harness.change(role="SLAVE")
        assert (await give_back())[0] == 1
