"""Administration of topics, groups, offsets and statistics.

See docs/protocol/rocketmq.md, sections 2.7, 2.11 and 2.12.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from coherer._rules.common.topics import Topic
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import NOT_SET
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.codes import ResponseCode as Result
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue
from coherer.testing import ManualClock
from tests.server.client_harness import consumer, heartbeat, tags
from tests.server.rocket_harness import BrokerHarness, Client, running

Q0, Q1 = Queue("demo", "broker-a", 0), Queue("demo", "broker-a", 1)


def topic_fields(**changes: object) -> dict[str, str]:
    fields = {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "readQueueNums": 8,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "true",
        **changes,
    }
    return {name: str(value) for name, value in fields.items() if value is not None}


def put_topic(harness: BrokerHarness, name: str, queues: int = 2, *, order: bool = False) -> None:
    topic = Topic(name=name, read_queues=queues, write_queues=queues, order=order)
    harness.state.topics.put(topic, harness.clock.now_ms())


def set_offsets(harness: BrokerHarness, group: str, topic: str, *offsets: int) -> None:
    for queue, offset in enumerate(offsets):
        harness.state.offsets.open(group, topic, queue).move_to(offset)


async def online(client: Client, group: str, *topics: str) -> None:
    data = heartbeat("me", [consumer(group, *map(tags, topics))])
    await client.ask(Code.HEART_BEAT, body=msgspec.json.encode(data))


# -- topics


async def test_a_topic_is_made_and_changed(broker_harness: BrokerHarness, peer: Client) -> None:
    before = broker_harness.state.topics.version
    answer = await peer.ask(Code.UPDATE_AND_CREATE_TOPIC, topic_fields())
    assert (answer.code, answer.remark) == (0, NOT_SET)
    made = broker_harness.state.topics["orders"]
    # The order flag is ignored (section 2.11).
    assert made == Topic(name="orders", read_queues=8, write_queues=4)
    broker_harness.state.topics.order(["orders"], 0)
    changes = {"perm": 4, "topicFilterType": "MULTI_TAG", "topicSysFlag": None}
    await peer.ask(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(**changes))
    changed = broker_harness.state.topics["orders"]
    assert (changed.perm, changed.filter_type, changed.order) == (4, "MULTI_TAG", True)
    assert broker_harness.state.topics.version.counter == before.counter + 3
    listed = bodies.TopicConfigs.decode((await peer.ask(Code.GET_ALL_TOPIC_CONFIG)).body)
    assert listed.topic_config_table["orders"] == bodies.TopicConfig(
        topic_name="orders",
        read_queue_nums=8,
        write_queue_nums=4,
        perm=4,
        topic_filter_type="MULTI_TAG",
        order=True,
    )
    assert listed.data_version.counter == before.counter + 3
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX"} <= set(listed.topic_config_table)


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"topic": " "}, "The specified topic is blank."),
        ({"topic": "a/b"}, "The specified topic contains illegal characters"),
        ({"topic": "x" * 128}, "The specified topic is longer than topic max length."),
        ({"topic": "TBW102"}, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "broker-a"}, "The topic[broker-a] is conflict with system topic."),
        ({"topic": "rmq_sys_x"}, "The topic[rmq_sys_x] is conflict with system topic."),
        ({"topicFilterType": "ANY"}, "topicFilterType = [ANY] value invalid"),
        ({"readQueueNums": None}, "NullPointerException"),
        ({"readQueueNums": 2**31 - 1}, "queues"),
        ({"writeQueueNums": -1}, "queues"),
        ({"perm": "x"}, "perm"),
    ],
)
async def test_topics_that_cannot_be(
    broker_harness: BrokerHarness, peer: Client, changes: dict[str, object], remark: str
) -> None:
    before = broker_harness.state.topics.version
    answer = await peer.ask(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(**changes))
    assert answer.code == Result.SYSTEM_ERROR
    assert remark in (answer.remark or "")
    assert broker_harness.state.topics.version == before


async def test_a_topic_is_deleted_with_all_that_belongs_to_it(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    await peer.send()
    set_offsets(broker_harness, "g", "demo", 1)
    for _ in range(2):  # one that is not there is deleted, too
        answer = await peer.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "demo"})
        assert (answer.code, answer.remark) == (0, None)
    assert "demo" not in broker_harness.state.topics
    assert broker_harness.store.topics() == []
    assert broker_harness.state.offsets.find("g", "demo", 0) is None
    answer = await peer.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "SELF_TEST_TOPIC"})
    assert answer.code == Result.SYSTEM_ERROR
    assert "SELF_TEST_TOPIC" in broker_harness.state.topics


async def test_the_names_of_the_broker(peer: Client) -> None:
    answer = await peer.ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert {
        "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "DefaultCluster", "broker-a",
        "DefaultCluster_REPLY_TOPIC",
    } == set(bodies.TopicList.decode(answer.body).topic_list)  # fmt: skip


async def test_a_topic_for_traces_from_the_start(tmp_path: Path, clock: ManualClock) -> None:
    for trace_topic in (False, True):
        directory = tmp_path / str(trace_topic)
        async with running(
            directory, clock, trace_topic=trace_topic, auto_create_topics=False
        ) as harness:
            answer = await (await harness.dial()).send(b="RMQ_SYS_TRACE_TOPIC")
            assert answer.code == (0 if trace_topic else Result.TOPIC_NOT_EXIST)
            assert "RMQ_SYS_TRACE_TOPIC" in harness.state.topics.system_names()


async def test_unused_queues_are_deleted(broker_harness: BrokerHarness, peer: Client) -> None:
    await peer.send()
    await peer.send(b="kept")
    broker_harness.state.topics.remove("demo", 0)
    assert (await peer.ask(Code.CLEAN_UNUSED_TOPIC)).code == 0
    assert broker_harness.store.topics() == ["kept"]


async def test_old_files_are_deleted_now(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock) as harness:
        client = await harness.dial()
        for _ in range(6):
            await client.send(bytes(1 << 20))
        clock.advance(1000 * 3_600_000)
        assert harness.store.min_offset == 0
        assert (await client.ask(Code.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert harness.store.min_offset > 0


# -- groups


async def test_a_group_is_made_listed_and_deleted(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    group = bodies.SubscriptionGroup(group_name="g", retry_max_times=3, consume_enable=False)
    answer = await peer.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group.encode())
    assert answer.code == 0
    answer = await peer.ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    listed = bodies.SubscriptionGroups.decode(answer.body)
    assert listed.subscription_group_table["g"] == group
    assert "TOOLS_CONSUMER" in listed.subscription_group_table
    assert listed.data_version.counter == 1
    set_offsets(broker_harness, "g", "demo", 5)
    for remove, left in (("false", True), ("true", False)):
        fields = {"groupName": "g", "removeOffset": remove}
        assert (await peer.ask(Code.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0
        assert "g" not in broker_harness.state.groups
        assert bool(broker_harness.state.offsets.find("g", "demo", 0)) is left


@pytest.mark.parametrize("body", [b"null", b"[]"])
async def test_an_unknown_group(broker_harness: BrokerHarness, peer: Client, body: bytes) -> None:
    before = len(broker_harness.state.groups)
    assert (await peer.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    assert len(broker_harness.state.groups) == before


@pytest.mark.parametrize("body", [b"", b"{}", b'{"groupName":null}', b'{"retryQueueNums":"x"}'])
async def test_groups_that_cannot_be(
    broker_harness: BrokerHarness, peer: Client, body: bytes
) -> None:
    before = len(broker_harness.state.groups)
    answer = await peer.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == Result.SYSTEM_ERROR
    assert len(broker_harness.state.groups) == before


async def test_the_smallest_offsets_of_a_topic(broker_harness: BrokerHarness, peer: Client) -> None:
    for group, offsets in {"a": (5, 7), "b": (3, 9), "c": (1, 1)}.items():
        set_offsets(broker_harness, group, "demo", *offsets)
    set_offsets(broker_harness, "a", "other", 0)

    async def ask(groups: str) -> dict[int, int]:
        fields = {"topic": "demo", "filterGroups": groups, "compareGroup": "a"}
        answer = await peer.ask(Code.QUERY_CORRECTION_OFFSET, fields)
        return bodies.CorrectionOffsets.decode(answer.body).correction_offsets

    assert await ask("") == {0: 1, 1: 1}
    assert await ask("c,x") == {0: 3, 1: 7}
    # Java has deleted the offsets of c by now.
    assert broker_harness.state.offsets.groups_of("demo") == ["a", "b", "c"]


async def test_cloning_offsets(broker_harness: BrokerHarness, peer: Client) -> None:
    for topic in ("demo", "more", "gone"):
        set_offsets(broker_harness, "a", topic, 5, 7)
    put_topic(broker_harness, "demo")
    put_topic(broker_harness, "more")

    async def clone(group: str, **fields: str) -> set[tuple[str, int, int]]:
        fields |= {"srcGroup": "a", "destGroup": group}
        assert (await peer.ask(Code.CLONE_GROUP_OFFSET, fields)).code == 0
        found = broker_harness.state.offsets.of(group)
        return {(topic, queue, position.offset) for topic, queue, position in found}

    demo, more = {("demo", 0, 5), ("demo", 1, 7)}, {("more", 0, 5), ("more", 1, 7)}
    assert await clone("b", topic="demo") == demo
    assert await clone("c") == demo | more
    assert await clone("d", topic="gone") == set()
    await online(peer, "a", "more")
    assert await clone("e") == more
    assert await clone("f", offline="true") == demo | more


# -- progress


async def filled(harness: BrokerHarness, client: Client) -> None:
    """Three messages in queue 0 of two, a second apart."""
    put_topic(harness, "demo")
    for _ in range(3):
        harness.clock.advance(1000)
        await client.send()


async def test_the_queues_of_a_topic(broker_harness: BrokerHarness, peer: Client) -> None:
    await filled(broker_harness, peer)
    answer = await peer.ask(Code.GET_TOPIC_STATS_INFO, {"topic": "demo"})
    now_ms = broker_harness.clock.now_ms()
    assert bodies.TopicStats.decode(answer.body).offset_table == {
        Q0: bodies.TopicOffset(max_offset=3, last_update_timestamp=now_ms),
        Q1: bodies.TopicOffset(),
    }
    answer = await peer.ask(Code.GET_TOPIC_STATS_INFO, {"topic": "nope"})
    assert (answer.code, answer.remark) == (Result.TOPIC_NOT_EXIST, "topic[nope] not exist")


async def test_how_far_a_group_is(broker_harness: BrokerHarness, peer: Client) -> None:
    await filled(broker_harness, peer)
    set_offsets(broker_harness, "g", "demo", 2)
    set_offsets(broker_harness, "g", "gone", 9)
    answer = await peer.ask(Code.GET_CONSUME_STATS, {"consumerGroup": "g"})
    at_ms = broker_harness.clock.now_ms() - 1000
    expected = {
        Q0: bodies.OffsetWrapper(broker_offset=3, consumer_offset=2, last_timestamp=at_ms),
        Q1: bodies.OffsetWrapper(),
    }
    assert bodies.ConsumeStats.decode(answer.body).offset_table == expected
    for fields in ({"topic": "gone"}, {"topic": "nope"}):
        answer = await peer.ask(Code.GET_CONSUME_STATS, {"consumerGroup": "g", **fields})
        assert bodies.ConsumeStats.decode(answer.body) == bodies.ConsumeStats()
    await online(peer, "g", "other")
    answer = await peer.ask(Code.GET_CONSUME_STATS, {"consumerGroup": "g"})
    assert bodies.ConsumeStats.decode(answer.body) == bodies.ConsumeStats()


async def test_how_far_all_groups_are(broker_harness: BrokerHarness, peer: Client) -> None:
    await filled(broker_harness, peer)
    put_topic(broker_harness, "ordered", order=True)
    broker_harness.state.groups.add("g")
    set_offsets(broker_harness, "g", "demo", 1)
    set_offsets(broker_harness, "g", "ordered", 0)

    async def ask(is_order: str) -> tuple[int, set[str]]:
        answer = await peer.ask(Code.GET_BROKER_CONSUME_STATS, {"isOrder": is_order})
        found = bodies.BrokerConsumeStats.decode(answer.body)
        assert found.broker_addr == broker_harness.state.options.address
        named = {name: stats for each in found.consume_stats_list for name, stats in each.items()}
        assert named["TOOLS_CONSUMER"] == []
        return found.total_diff, {
            queue.topic for stats in named["g"] for queue in stats.offset_table
        }

    assert await ask("false") == (2, {"demo", "ordered"})
    assert await ask("true") == (0, {"ordered"})


async def test_others_are_served_while_all_groups_are_listed(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    """100,000 positions of groups took seconds, in which nobody else was served."""
    for number in range(300):
        broker_harness.state.groups.add(f"g{number}")
    other = await broker_harness.dial()
    lists = [peer.begin(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}) for _ in range(2)]
    await other.settle()
    assert not any(one.done() for one in lists)
    async with asyncio.timeout(20):
        for one in lists:
            found = bodies.BrokerConsumeStats.decode((await one).body)
            assert len(found.consume_stats_list) >= 300


async def test_which_times_a_group_has_to_read(broker_harness: BrokerHarness, peer: Client) -> None:
    await filled(broker_harness, peer)
    set_offsets(broker_harness, "g", "demo", 2)
    now_ms = broker_harness.clock.now_ms()
    broker_harness.clock.advance(500)
    fields = {"topic": "demo", "group": "g"}
    answer = await peer.ask(Code.QUERY_CONSUME_TIME_SPAN, fields)
    first, second = bodies.ConsumeTimeSpan.decode(answer.body).consume_time_span_set
    assert (first.message_queue, second.message_queue) == (Q0, Q1)
    assert (first.min_time_stamp, first.max_time_stamp) == (now_ms - 2000, now_ms)
    assert (first.consume_time_stamp, first.delay_time) == (now_ms - 1000, 500)
    shown = time.strftime("%Y-%m-%d#%H:%M:%S:", time.localtime(now_ms / 1000))
    assert first.max_time_stamp_str == f"{shown}{now_ms % 1000:03}"
    assert (second.min_time_stamp, second.delay_time) == (-1, 0)
    answer = await peer.ask(Code.QUERY_CONSUME_TIME_SPAN, {**fields, "topic": "nope"})
    assert answer.code == Result.TOPIC_NOT_EXIST


# -- figures


async def test_counters(broker_harness: BrokerHarness, peer: Client) -> None:
    await filled(broker_harness, peer)
    assert (await peer.pull(maxMsgNums=2)).code == 0
    record = broker_harness.records("demo")[0]
    fields = {"offset": str(record.physical_offset), "group": "g", "delayLevel": "1"}
    assert (await peer.ask(Code.CONSUMER_SEND_MSG_BACK, fields)).code == 0
    broker_harness.clock.advance(10_000)
    broker_harness.broker.tick()

    async def count(name: str, key: str) -> int:
        fields = {"statsName": name, "statsKey": key}
        answer = await peer.ask(Code.VIEW_BROKER_STATS_DATA, fields)
        assert answer.code == 0, answer.remark
        return bodies.BrokerStats.decode(answer.body).stats_minute.sum

    assert await count("TOPIC_PUT_NUMS", "demo") == 3
    assert await count("QUEUE_PUT_NUMS", "demo@0") == 3
    assert (
        await count("TOPIC_PUT_SIZE", "demo")
        == broker_harness.store.entries("demo", 0, 0, 1)[0].size_bytes * 3
    )
    assert await count("GROUP_GET_NUMS", "demo@g") == 2
    assert await count("QUEUE_GET_NUMS", "demo@0@g") == 2
    assert await count("GROUP_GET_SIZE", "demo@g") > 0
    assert await count("SNDBCK_PUT_NUMS", "demo@g") == 1
    assert await count("BROKER_GET_NUMS", "DefaultCluster") == 2
    answer = await peer.ask(
        Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "nope"}
    )
    assert answer.code == Result.SYSTEM_ERROR
    assert answer.remark == "The stats <TOPIC_PUT_NUMS> <nope> not exist"
    answer = await peer.ask(Code.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "demo"})
    assert bodies.ConsumeStats.decode(answer.body).consume_tps > 0


async def test_figures_of_the_broker(broker_harness: BrokerHarness, peer: Client) -> None:
    await filled(broker_harness, peer)
    await peer.pull()
    await peer.pull(queueId=1)
    await peer.send(i="DELAY\x015")
    broker_harness.clock.advance(10_000)
    broker_harness.broker.tick()
    answer = await peer.ask(Code.GET_BROKER_RUNTIME_INFO)
    found = bodies.KVTable.decode(answer.body).table
    # `mqadmin clusterList` parses this (section 2.12).
    assert [len(found[name].split(" ")) for name in ("putTps", "getTransferedTps")] == [3, 3]
    assert float(found["putTps"].split(" ")[0]) > 0
    for name in (
        "sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills",
        "sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "pageCacheLockTimeMills",
        "msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgGetTotalYesterdayMorning",
        "msgGetTotalTodayMorning", "earliestMessageTimeStamp",
    ):  # fmt: skip
        assert int(found[name]) >= 0, name
    assert 0 < float(found["commitLogDiskRatio"]) < 1
    assert found["brokerVersionDesc"] == "V4_9_3"
    assert (found["msgPutTotalTodayNow"], found["msgGetTotalTodayNow"]) == ("4", "3")
    assert found["scheduleMessageOffset_5"].endswith(",1")
    assert found["runtime"] == "[ 0 days, 0 hours, 0 minutes, 13 seconds ]"
    assert int(found["commitLogMaxOffset"]) == broker_harness.store.end_offset


async def test_a_disk_is_used_where_nothing_can_be_stored(
    broker_harness: BrokerHarness, peer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=100 << 30, used=10 << 30, free=5 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    answer = await peer.ask(Code.GET_BROKER_RUNTIME_INFO)
    found = bodies.KVTable.decode(answer.body).table
    assert found["commitLogDirCapacity"] == "Total : 100.00 GiB, Free : 5.00 GiB."
    assert float(found["commitLogDiskRatio"]) == pytest.approx(0.95)


async def test_what_the_exporter_for_prometheus_parses(
    broker_harness: BrokerHarness, peer: Client
) -> None:
    """RocketMQ's exporter drops the whole answer if one of these is missing or has another form."""
    await filled(broker_harness, peer)
    await peer.pull()
    answer = await peer.ask(Code.GET_BROKER_RUNTIME_INFO)
    found = bodies.KVTable.decode(answer.body).table
    for name in (
        "msgPutTotalTodayNow", "sendThreadPoolQueueHeadWaitTimeMills",
        "queryThreadPoolQueueHeadWaitTimeMills", "msgGetTotalTodayNow", "queryThreadPoolQueueSize",
        "bootTimestamp", "msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning",
        "pullThreadPoolQueueSize", "commitLogMinOffset", "pullThreadPoolQueueHeadWaitTimeMills",
        "dispatchMaxBuffer", "brokerVersion", "pageCacheLockTimeMills", "commitLogMaxOffset",
        "getMessageEntireTimeMax", "msgPutTotalTodayMorning", "putMessageTimesTotal",
        "msgGetTotalTodayMorning", "sendThreadPoolQueueSize", "startAcceptSendRequestTimeStamp",
        "putMessageEntireTimeMax", "earliestMessageTimeStamp", "remainTransientStoreBufferNumbs",
        "queryThreadPoolQueueCapacity", "dispatchBehindBytes", "putMessageSizeTotal",
        "sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity",
    ):  # fmt: skip
        assert re.fullmatch(r"-?\d{1,19}", found[name]), name
    for name in ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize"):
        assert float(found[name]) >= 0, name
    for name in ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps"):
        assert len([float(text) for text in found[name].split(" ")]) == 3, name
    capacity = r"Total : \d+\.\d+ GiB, Free : \d+\.\d+ GiB\."
    assert re.fullmatch(capacity, found["commitLogDirCapacity"])
    assert re.fullmatch(r"\d+ B", found["remainHowManyDataToFlush"])
    for level in range(1, 19):
        assert re.fullmatch(r"\d+,\d+", found[f"scheduleMessageOffset_{level}"])
    times = [pair.split(":") for pair in found["putMessageDistributeTime"].strip().split(" ")]
    assert len(times) == 13
    assert times[0][0] == "[<=0ms]"
    assert sum(int(count) for _, count in times) > 0, "one for each stored batch"
    now_ms = broker_harness.clock.wall_ms()
    assert now_ms - 60_000 <= int(found["bootTimestamp"]) <= now_ms


async def test_entries_of_a_queue(broker_harness: BrokerHarness, peer: Client) -> None:
    await filled(broker_harness, peer)

    async def ask(**changes: object) -> Command:
        fields = {"topic": "demo", "queueId": 0, "index": 1, "count": 9, **changes}
        named = {name: str(value) for name, value in fields.items()}
        return await peer.ask(Code.QUERY_CONSUME_QUEUE, named)

    answer = await ask()
    assert (answer.code, answer.remark) == (0, NOT_SET)
    page = bodies.ConsumeQueuePage.decode(answer.body)
    assert (page.min_queue_index, page.max_queue_index) == (0, 3)
    assert page.queue_data is not None
    assert [entry.tags_code for entry in page.queue_data] == [2598919, 2598919]
    assert [entry.physic_offset for entry in page.queue_data] == [
        record.physical_offset for record in broker_harness.records("demo")[1:]
    ]
    answer = await ask(queueId=5)
    assert (answer.code, answer.remark) == (1, "5@demo is not exist!")
    answer = await ask(index=3)
    assert (answer.code, answer.remark) == (0, "Index 3 of 0@demo is not exist!")
    assert not answer.body
    page = bodies.ConsumeQueuePage.decode((await ask(consumerGroup="g")).body)
    assert page.filter_data == "g@demo is not online!"
    await online(peer, "g", "demo")
    page = bodies.ConsumeQueuePage.decode((await ask(consumerGroup="g", count=1)).body)
    assert page.queue_data is not None
    assert [entry.eval for entry in page.queue_data] == [True]
    assert page.subscription_data is not None
    assert page.subscription_data.sub_string == "*"
