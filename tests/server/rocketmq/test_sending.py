"""Sends: every check of section 2.4.2 in order, what is stored, and the responses.

See docs/protocol/rocketmq.md, sections 2.4.2 and 5.9.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from coherer import limits
from coherer._record.batches import encode_batch_item
from coherer._record.ids import decode_offset_id
from coherer._record.properties import decode, encode
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.groups import Group
from coherer._store import StoreOptions
from coherer._wire.rocketmq.bodies import LockBatch
from coherer._wire.rocketmq.codes import FAQ
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue
from coherer.errors import StoreError, StoreFullError
from coherer.testing import ManualClock
from tests.server.rocket_harness import (
    SEND,
    SEND_BACK,
    SEND_V2,
    BrokerHarness,
    Client,
    long_fields,
    running,
    send_fields,
)

REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
BATCH = 320


async def test_a_send_is_stored_and_answered(broker_harness: BrokerHarness, peer: Client) -> None:
    answer = await peer.send(b"hello", e=3)
    [record] = broker_harness.records("demo", 3)
    assert answer.code == 0
    assert answer.fields == {
        "msgId": "7F00000100002A9F0000000000000000",
        "queueId": "3",
        "queueOffset": "0",
        **REGION,
    }
    assert (record.body, record.flag, record.sys_flag) == (b"hello", 7, 0)
    assert record.born_ms == 1650000000000
    assert record.born_host[:4] == bytes([127, 0, 0, 1])
    assert int.from_bytes(record.born_host[4:], "big") > 1024
    assert record.store_host == bytes.fromhex("7f00000100002a9f")
    assert decode(record.properties) == {
        "TAGS": "TagA",
        "UNIQ_KEY": "0F",
        "CLUSTER": "DefaultCluster",
    }


async def test_the_second_send_of_a_topic_is_as_the_first(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    texts = ["TAGS\x01a\x02UNIQ_KEY\x010A\x02KEYS\x01x y", "KEYS\x01z\x02k\x01v", "", "\x02\x02"]
    for _ in range(2):
        for text in texts:
            assert (await peer.send(i=text)).code == 0
    records = broker_harness.records("demo")
    found = [decode(record.properties) for record in records]
    assert found[:4] == found[4:]
    assert found[0] == {"TAGS": "a", "UNIQ_KEY": "0A", "KEYS": "x y", "CLUSTER": "DefaultCluster"}
    assert found[1] == {"KEYS": "z", "k": "v", "CLUSTER": "DefaultCluster"}
    assert found[2] == found[3] == {"CLUSTER": "DefaultCluster"}
    assert len(broker_harness.store.by_key("demo", "0A")) == 2
    assert len(broker_harness.store.by_key("demo", "y")) == 2
    assert len(broker_harness.store.by_key("demo", "z")) == 2


async def test_a_send_that_names_a_lock_needs_it(
    broker_harness: BrokerHarness, peer: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the second send of a topic, which is read faster."""
    queue = Queue("letters", "broker-a", 0)
    batch = LockBatch(consumer_group="g", client_id="one", queues=[queue])
    held = batch.encode().decode()
    for _ in range(2):
        refused = await peer.send(b"no", cohererLock=held)
        assert (refused.code, refused.remark) == (
            1,
            "one does not hold the lock of queue 0 of letters any more",
        )
        assert (await peer.send(b"plain")).code == 0
    await peer.ask(Code.LOCK_BATCH_MQ, body=batch.encode())
    assert (await peer.send(b"held", cohererLock=held)).code == 0
    broker_harness.clock.advance(60_001)
    assert (await peer.send(b"expired", cohererLock=held)).code == 1
    for invalid in ("[{", "\ud800", "[" * 10_000):
        assert (await peer.send(b"invalid", cohererLock=invalid)).code == 1
    assert "Traceback" not in caplog.text
    bodies = [record.body for record in broker_harness.records("demo")]
    assert bodies == [b"plain", b"plain", b"held"]


async def test_one_read_is_one_append_and_answers_come_in_order(
    broker_harness: BrokerHarness, peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.send()
    sizes: list[int] = []
    append = broker_harness.store.append

    def counting(drafts: Any) -> Any:
        sizes.append(len(drafts))
        return append(drafts)

    monkeypatch.setattr(broker_harness.store, "append", counting)
    answers = [peer.begin(SEND_V2, send_fields(e=n % 4), b"%d" % n) for n in range(50)]
    async with asyncio.timeout(10):
        offsets = [int((await answer).fields["queueOffset"]) for answer in answers]
    assert sizes == [50]
    assert offsets[0:8] == [1, 0, 0, 0, 2, 1, 1, 1]


async def test_code_10_has_the_long_names(broker_harness: BrokerHarness, peer: Client) -> None:
    assert (await peer.ask(SEND, long_fields(e=2), b"x")).code == 0
    assert broker_harness.records("demo", 2)[0].body == b"x"
    assert (
        await peer.ask(SEND, long_fields(b=None), b"x")
    ).remark == "The specified topic is blank."


async def test_an_empty_body_is_stored(broker_harness: BrokerHarness, peer: Client) -> None:
    assert (await peer.send(b"")).code == 0
    assert broker_harness.records("demo")[0].body == b""


async def test_one_way_sends_are_stored_and_not_answered(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    peer.send_oneway(SEND_V2, send_fields(), b"one")
    peer.send_oneway(SEND_V2, send_fields(b=""), b"two")
    peer.send_oneway(SEND_V2, send_fields(), b"three")
    await peer.settle()
    await broker_harness.stored()
    assert [record.body for record in broker_harness.records("demo")] == [b"one", b"three"]


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"b": ""}, 1, "The specified topic is blank."),
        (
            {"b": "a b"},
            1,
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ({"b": "x" * 128}, 1, "The specified topic is longer than topic max length."),
        (
            {"b": "SCHEDULE_TOPIC_XXXX"},
            16,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        ({"c": "nothing"}, 17, f"topic[demo] not exist, apply first please!{FAQ}"),
        ({"c": "BenchmarkTest"}, 17, f"topic[demo] not exist, apply first please!{FAQ}"),
        ({"a": None}, 1, "the custom field <a> is null"),
        ({"h": None}, 1, "the custom field <h> is null"),
    ],
)
async def test_refusals(peer: Client, changes: dict[str, object], code: int, remark: str) -> None:
    answer = await peer.send(**changes)
    assert (answer.code, answer.remark) == (code, remark)
    expected = {} if remark.startswith("the custom field") else REGION
    assert answer.fields == expected, "also refusals say so, but where Java throws (section 1.4)"


async def test_a_queue_that_is_not_there(broker_harness: BrokerHarness, peer: Client) -> None:
    for _ in range(2):  # the first makes the topic
        answer = await peer.send(e=4)
        assert answer.code == 1
        assert answer.remark is not None
        assert answer.remark.startswith(
            "request queueId[4] is illegal, TopicConfig [topicName=demo, readQueueNums=4, "
        )
        assert "Producer: 127.0.0.1:" in answer.remark
        await peer.send()
    assert broker_harness.state.topics["demo"].write_queues == 4


async def test_the_broker_chooses_a_queue(broker_harness: BrokerHarness, peer: Client) -> None:
    answers = [await peer.send(e=-1) for _ in range(40)]
    chosen = {int(answer.fields["queueId"]) for answer in answers}
    assert {answer.code for answer in answers} == {0}
    assert len(chosen) > 1
    assert chosen <= {0, 1, 2, 3}


async def test_a_topic_without_queues_to_choose_from(
    peer: Client, broker_harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    for topic, read_queues in (("empty", 0), ("read-only", 4)):
        made = Topic(name=topic, read_queues=read_queues, write_queues=0)
        broker_harness.state.topics.put(made, 0)
        answer = await peer.send(b=topic, e=-1)
        assert answer.code == 1
        assert str(answer.remark).startswith("request queueId[-1] is illegal")
    assert caplog.text == ""


async def test_so_many_topics_are_created_by_sends(
    peer: Client, broker_harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = broker_harness.state.topics
    await peer.send(b="old")
    ordinary = [one.name for one in topics if not topics.is_internal(one.name)]
    monkeypatch.setattr(limits, "TOPICS_MAX", len(ordinary) + 1)
    assert (await peer.send(b="new")).code == 0
    for _ in range(2):
        answer = await peer.send(b="newer")
        assert (answer.code, "already" in str(answer.remark)) == (17, True)
    assert "newer" not in topics
    assert (await peer.send(b="old")).code == 0
    assert (await peer.send(b="%RETRY%g")).code == 0, "that of a group, which has its own limit"
    topics.put(Topic(name="by-hand", read_queues=1, write_queues=1), 0)
    assert (await peer.send(b="by-hand")).code == 0
    topics.remove("old", 0)
    topics.remove("by-hand", 0)
    assert (await peer.send(b="newer")).code == 0


async def test_so_many_retry_topics_without_a_group_are_created(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, clock, auto_create_groups=False) as harness:
        peer, topics = await harness.dial(), harness.state.topics
        monkeypatch.setattr(limits, "TOPICS_MAX", len(topics) + 1)
        for name in ("%RETRY%a", "%RETRY%b"):
            assert (await peer.send(b=name)).code == 26
        assert ("%RETRY%a" in topics, "%RETRY%b" in topics) == (True, False)


async def test_so_many_keys_are_put_into_the_index_at_once(
    peer: Client, broker_harness: BrokerHarness
) -> None:
    """A hundred sends with 6,000 keys each stopped the broker for seconds."""

    def text(count: int) -> str:
        return "KEYS\x01" + " ".join(map(str, range(count)))

    most = limits.KEYS_PER_MESSAGE_MAX
    for _ in range(2):  # the second is read faster
        assert (await peer.send(i=text(most))).code == 0
        refused = await peer.send(i=text(most + 1))
        assert (refused.code, "keys" in str(refused.remark)) == (13, True)
    for items in (
        encode_batch_item(b"x", text(most + 1).encode()),
        encode_batch_item(b"x", b"") * (limits.BATCH_ENTRIES_MAX + 1),
        encode_batch_item(b"x", text(most).encode()) * (limits.BATCH_ENTRIES_MAX // most),
    ):
        refused = await peer.ask(BATCH, send_fields(m="true", i=""), items)
        assert (refused.code, "illegal" in str(refused.remark)) == (13, True)
    assert len(broker_harness.records("demo")) == 2


async def test_invalid_numbers(peer: Client, broker_harness: BrokerHarness) -> None:
    await peer.send()
    for wrong in ({"e": "x"}, {"g": "now"}, {"h": "3000000000"}, {"f": ""}, {"e": "9" * 30}):
        answer = await peer.send(**wrong)
        assert answer.code == 1
        assert answer.remark
    assert len(broker_harness.records("demo")) == 1


async def test_topics_are_not_made_where_that_is_off(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock, auto_create_topics=False) as harness:
        answer = await (await harness.dial()).send()
        assert answer.code == 17


async def test_a_broker_that_does_not_accept_yet(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await peer.send()
    broker_harness.change(accept_sends_from_ms=clock.now_ms() + 60_000)
    answer = await peer.send()
    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith("broker unable to service, until 20")
    clock.advance(60_000)
    assert (await peer.send()).code == 0


async def test_a_read_only_broker_refuses_ordered_topics_only(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    state = broker_harness.state
    state.topics.put(Topic(name="ordered", order=True), 0)
    broker_harness.change(perm=4)
    assert (await peer.send()).code == 0
    answer = await peer.send(b="ordered")
    assert (answer.code, answer.remark) == (
        16,
        "the broker[127.0.0.1] sending message is forbidden",
    )


async def test_too_large(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock, message_bytes_max=2_000) as harness:
        peer = await harness.dial()
        for _ in range(2):  # when the topic is new, and when it is known
            assert (await peer.send(b"x" * 2_000)).code == 13
            assert (await peer.send(i="k\x01" + "v" * 40_000)).code == 13
            assert (await peer.send(b"x" * 1_000)).code == 0
        assert (await peer.ask(BATCH, send_fields(m="true"), b"x" * 2_000)).code == 1
        assert len(harness.records("demo")) == 2


async def test_a_message_larger_than_a_log_file(tmp_path: Path, clock: ManualClock) -> None:
    options = StoreOptions(segment_bytes=8192, queue_segment_bytes=2000, index_enabled=False)
    async with running(tmp_path, clock, store_options=options) as harness:
        peer = await harness.dial()
        both = [peer.begin(SEND_V2, send_fields(), b"x" * size) for size in (9_000, 10)]
        async with asyncio.timeout(10):
            assert [(await answer).code for answer in both] == [13, 0]


@pytest.mark.parametrize(
    ("error", "code"), [(StoreFullError("No room."), 14), (StoreError("Broken."), 1)]
)
async def test_messages_that_cannot_be_stored(
    broker_harness: BrokerHarness,
    peer: Client,
    monkeypatch: pytest.MonkeyPatch,
    error: StoreError,
    code: int,
) -> None:
    def fail(_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(broker_harness.store, "append", fail)
        answer = await peer.send()
        assert (answer.code, answer.fields) == (code, REGION)
        assert answer.remark is not None
        assert error.text in answer.remark
    assert (await peer.send()).code == 0


async def test_a_slave_refuses_messages(broker_harness: BrokerHarness, peer: Client) -> None:
    await peer.send()
    broker_harness.change(role="SLAVE")
    assert (await peer.send()).code == 14


# -- special sends


async def test_the_mark_of_tubemq_is_removed(broker_harness: BrokerHarness, peer: Client) -> None:
    await peer.send(i="TUBE\x01a\x02k\x01v")
    [record] = broker_harness.records("demo")
    assert decode(record.properties) == {"k": "v", "CLUSTER": "DefaultCluster"}


async def test_several_tags_of_a_topic_are_marked(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    broker_harness.state.topics.put(Topic(name="demo", filter_type="MULTI_TAG"), 0)
    for _ in range(2):
        await peer.send(f=1)
    assert [record.sys_flag for record in broker_harness.records("demo")] == [3, 3]


async def test_a_delayed_message_waits(
    broker_harness: BrokerHarness, peer: Client, clock: ManualClock
) -> None:
    await peer.send()
    answer = await peer.send(b"later", i="DELAY\x012\x02TAGS\x01a", e=1)
    assert answer.fields["queueId"] == "1"
    assert answer.fields["queueOffset"] == "0"
    assert broker_harness.records("demo", 1) == []
    [waits] = broker_harness.records("SCHEDULE_TOPIC_XXXX", 1)
    assert decode(waits.properties)["REAL_TOPIC"] == "demo"
    clock.advance(5_000)
    broker_harness.broker.tick()
    await peer.settle()
    await broker_harness.stored()
    [record] = broker_harness.records("demo", 1)
    assert record.body == b"later"
    assert (await peer.ask(45)).body == b'{"offsetTable":{2:1}}'
    assert (await peer.send(i="DELAY\x01soon")).code == 1


async def test_half_messages_are_not_delivered(broker_harness: BrokerHarness, peer: Client) -> None:
    text = "TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x010A"
    answer = await peer.send(b"maybe", i=text, f=4, e=2)
    assert (answer.code, answer.fields["queueOffset"]) == (0, "0")
    assert broker_harness.records("demo", 2) == []
    [half] = broker_harness.records("RMQ_SYS_TRANS_HALF_TOPIC")
    assert (half.body, half.sys_flag) == (b"maybe", 0)
    broker_harness.change(reject_transactions=True)
    answer = await peer.send(b"maybe", i=text, f=4, e=2)
    assert (answer.code, answer.remark) == (
        16,
        "the broker[127.0.0.1] sending transaction message is forbidden",
    )


async def test_messages_that_consumers_send_back_themselves(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    again = {"b": "%RETRY%g", "c": "none", "i": "DELAY\x013\x02TAGS\x01a"}
    assert (await peer.send(b"try", **again, j=15)).code == 0
    assert len(broker_harness.records("SCHEDULE_TOPIC_XXXX", 2)) == 1
    assert (await peer.send(b"dead", **again, j=16)).code == 0
    [dead] = broker_harness.records("%DLQ%g")
    assert (dead.body, dead.reconsume_times) == (b"dead", 16)
    assert "DELAY" not in decode(dead.properties)
    assert (await peer.send(b"soon", **again, j=2, l=2)).code == 0
    assert len(broker_harness.records("%DLQ%g")) == 2
    assert broker_harness.state.topics["%RETRY%g"].write_queues == 1


async def test_retries_of_a_group_that_may_not_be_made(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock, auto_create_groups=False) as harness:
        harness.state.groups.put(Group(group_name="known", retry_max_times=1), 0)
        peer = await harness.dial()
        answer = await peer.send(b="%RETRY%g")
        assert (answer.code, answer.remark) == (26, f"subscription group not exist, g {FAQ}")
        assert (await peer.send(b="%RETRY%known", j=1)).code == 0
        assert len(harness.records("%DLQ%known")) == 1


# -- batches


async def test_a_batch(broker_harness: BrokerHarness, peer: Client) -> None:
    body = encode_batch_item(b"one", b"TAGS\x01a\x02WAIT\x01true") + encode_batch_item(
        b"two", b"", 5
    )
    answer = await peer.ask(BATCH, send_fields(m="true", i="WAIT\x01true", e=1), body)
    assert answer.code == 0
    assert answer.fields["queueOffset"] == "0"
    ids = answer.fields["msgId"].split(",")
    records = broker_harness.records("demo", 1)
    assert [int(text[16:], 16) for text in ids] == [one.physical_offset for one in records]
    assert [(one.body, one.flag) for one in records] == [(b"one", 0), (b"two", 5)]
    # WAIT is removed from single messages only, and occurs twice here (section 5.9).
    assert records[0].properties == (
        b"TAGS\x01a\x02WAIT\x01true\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster"
    )
    assert decode(records[1].properties) == {"WAIT": "true", "CLUSTER": "DefaultCluster"}


async def test_a_batch_for_a_topic_of_several_tags(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    topic = Topic(name="demo", read_queues=1, write_queues=1, filter_type="MULTI_TAG")
    broker_harness.state.topics.put(topic, 0)
    await peer.ask(BATCH, send_fields(m="true"), encode_batch_item(b"one", b""))
    await peer.send(b"two")
    assert [record.sys_flag for record in broker_harness.records("demo")] == [2, 2]


async def test_the_flag_decides_not_the_code(broker_harness: BrokerHarness, peer: Client) -> None:
    body = encode_batch_item(b"one", b"")
    assert (await peer.ask(SEND_V2, send_fields(m="true"), body)).code == 0
    assert (await peer.ask(BATCH, send_fields(m="false"), body)).code == 0
    assert [record.body for record in broker_harness.records("demo")] == [b"one", body]


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        ({"f": 4}, encode_batch_item(b"x", b""), 13),
        ({"i": "DELAY\x011"}, encode_batch_item(b"x", b""), 13),
        ({}, b"", 1),
        ({}, b"\x00\x00\x00\x05abc", 1),
        ({}, struct.pack(">IIIII", 100, 0, 0, 0, 1000), 1),
        ({"i": "k\x01" + "v" * 33_000}, encode_batch_item(b"x", b""), 1),
    ],
)
async def test_invalid_batches(
    broker_harness: BrokerHarness, peer: Client, fields: dict[str, object], body: bytes, code: int
) -> None:
    answer = await peer.ask(BATCH, send_fields(m="true", **fields), body)
    assert answer.code == code
    assert answer.fields == ({} if code == 1 else REGION)
    assert broker_harness.records("demo") == []


# -- when it is safe


async def test_answers_wait_for_the_disk_unless_the_sender_does_not(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, clock, sync_flush=True) as harness:
        peer = await harness.dial()
        await peer.send()
        may_flush = harness.hold_flush(monkeypatch)
        waits = peer.begin(SEND_V2, send_fields(), b"safe")
        hurries = peer.begin(SEND_V2, send_fields(i="WAIT\x01false"), b"quick")
        batch = send_fields(m="true", i="WAIT\x01false")
        also = peer.begin(BATCH, batch, encode_batch_item(b"x", b""))
        async with asyncio.timeout(10):
            assert (await hurries).code == 0
            assert (await also).code == 0
            assert not waits.done()
            may_flush.set()
            assert (await waits).code == 0


async def test_messages_count_though_their_producer_has_left(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics lacked the messages whose producer did not wait for the disk."""
    async with running(tmp_path, clock, sync_flush=True) as harness:
        peer, other = await harness.dial(), await harness.dial()
        await peer.send()
        may_flush = harness.hold_flush(monkeypatch)
        peer.begin(SEND_V2, send_fields(), b"safe")
        await peer.settle()
        quick = await other.send(b"quick", i="WAIT\x01false")
        assert quick.fields["queueOffset"] == "2"
        await peer.hang_up()
        may_flush.set()
        assert (await other.send()).code == 0
        assert sum(harness.core.counters.incoming["demo", "normal"].counts) == 4


async def test_a_disk_that_is_too_slow_or_fails(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, clock, sync_flush=True) as harness:
        peer = await harness.dial()
        await peer.send()

        def fail() -> int:
            raise StoreError("Input/output error.")

        usual_ms = harness.state.options.flush_timeout_ms
        with monkeypatch.context() as patch:
            may_flush = harness.hold_flush(patch)
            harness.change(flush_timeout_ms=10)
            answer = await peer.send(b"slow")
            assert (answer.code, answer.fields["queueOffset"]) == (10, "1"), "it is stored"
            may_flush.set()
            harness.change(flush_timeout_ms=usual_ms)  # the disk below may be slow, too
            assert (await peer.send(b"again")).code == 0
        with monkeypatch.context() as patch:
            patch.setattr(harness.store, "flush", fail)
            assert (await peer.send(b"fails")).code == 10
        assert (await peer.send(b"after")).code == 14


class _Slaves:
    def __init__(self, code: int) -> None:
        self.code = code
        self.asked: list[tuple[int, int]] = []

    async def safe(self, end_offset: int, timeout_ms: int) -> int:
        self.asked.append((end_offset, timeout_ms))
        return self.code


@pytest.mark.parametrize("code", [0, 11, 12])
async def test_answers_wait_for_a_slave(
    broker_harness: BrokerHarness, peer: Client, code: int
) -> None:
    slaves = _Slaves(code)
    broker_harness.state.replicated_to = slaves.safe
    answer = await peer.send()
    assert (answer.code, answer.fields["queueOffset"]) == (code, "0")
    assert slaves.asked == [(broker_harness.store.end_offset, 3_000)]
    assert (await peer.send(i="WAIT\x01false")).code == 0
    assert len(slaves.asked) == 1


@pytest.mark.parametrize("code", [0, 11, 12])
async def test_what_ends_a_message_or_a_transaction_waits_for_a_slave(
    broker_harness: BrokerHarness, peer: Client, code: int
) -> None:
    """Whoever hears that it has ended forgets it, and the slave may be the next master."""
    assert (await peer.send()).code == 0
    half = await peer.send(i=encode({"TRAN_MSG": "true", "PGROUP": "g"}).decode())
    slaves = _Slaves(code)
    broker_harness.state.replicated_to = slaves.safe
    back = {"offset": "0", "group": "g", "delayLevel": "0", "originTopic": "demo"}
    assert (await peer.ask(SEND_BACK, back)).code == 0  # a second one would store it twice
    place = decode_offset_id(half.fields["msgId"]).physical_offset
    end = {
        "producerGroup": "g",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": str(place),
        "commitOrRollback": "8",
        "msgId": "0A",
    }
    for _ in range(2):
        answer = await peer.ask(37, end)
        assert answer.code == code
        assert not code or "no slave has that in time" in str(answer.remark)
    assert len(slaves.asked) == 3
    assert slaves.asked[-1] == (broker_harness.store.end_offset, 3_000)


async def test_the_slave_is_named_when_both_fail(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, clock, sync_flush=True, flush_timeout_ms=1) as harness:
        harness.state.replicated_to = _Slaves(12).safe
        may_flush = harness.hold_flush(monkeypatch)
        answer = await (await harness.dial()).send()
        assert answer.code == 12
        may_flush.set()


async def test_the_fast_port_accepts_sends_but_not_pulls(broker_harness: BrokerHarness) -> None:
    client = await Client.dial(broker_harness.fast_port)
    assert isinstance(client, Client)
    assert (await client.send()).code == 0
    answer: Command = await client.pull()
    assert (answer.code, answer.remark) == (3, " request type 11 not supported")


HALF = "TRAN_MSG\x01true\x02PGROUP\x01producers"


async def test_a_half_batch_becomes_one_half_message(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    batch = encode_batch_item(b"a", b"TAGS\x01t") + encode_batch_item(b"bc", b"")
    answer = await peer.ask(Code.SEND_HALF_BATCH, send_fields(e=1, i=HALF), batch)
    [record] = broker_harness.records("RMQ_SYS_TRANS_HALF_TOPIC")
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (0, "1", "0")
    assert record.body == batch
    assert decode(record.properties) == {
        "TRAN_MSG": "true",
        "PGROUP": "producers",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "demo",
        "REAL_QID": "1",
        "cohererMessages": "2",
    }
    assert broker_harness.records("demo", 1) == []
    counters = broker_harness.core.counters
    assert sum(counters.incoming["demo", "transaction"].counts) == 2
    end = {
        "producerGroup": "producers",
        "tranStateTableOffset": "0",
        "commitLogOffset": str(record.physical_offset),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": "",
    }
    assert (await peer.ask(Code.END_HALF_BATCH, end)).code == 0
    assert [one.body for one in broker_harness.records("demo", 1)] == [b"a", b"bc"]
    assert counters.finished["demo", True] == 2


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("PGROUP\x01producers", encode_batch_item(b"a", b"")),
        (HALF, encode_batch_item(b"a", b"TIMER_DELAY_MS\x015000")),
        (HALF + "\x02TIMER_DELAY_MS\x015000", encode_batch_item(b"a", b"")),
        (HALF, b""),
        (HALF, b"no batch"),
        (HALF, encode_batch_item(b"a", b"")[:-1]),
        (HALF, encode_batch_item(b"a", b"p\x01" + b"x" * 32_760)),
        (HALF + "\x02p\x01" + "x" * 32_600, encode_batch_item(b"a", b"")),
        (HALF, encode_batch_item(bytes(5 << 20), b"")),
    ],
)
async def test_a_half_batch_is_checked_when_it_comes(
    broker_harness: BrokerHarness, peer: Client, text: str, batch: bytes
) -> None:
    """Nobody could tell the producer later that its messages cannot be stored."""
    answer = await peer.ask(Code.SEND_HALF_BATCH, send_fields(i=text), batch)
    assert answer.code in (1, 13)
    assert broker_harness.records("RMQ_SYS_TRANS_HALF_TOPIC") == []


async def test_clients_cannot_call_a_message_a_half_batch(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await peer.send(b"no batch", i=HALF + "\x02cohererMessages\x015")
    [record] = broker_harness.records("RMQ_SYS_TRANS_HALF_TOPIC")
    assert "cohererMessages" not in decode(record.properties)
