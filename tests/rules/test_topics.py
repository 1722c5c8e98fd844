"""Topics and groups: partitions, and RocketMQ's files.

See docs/protocol/rocketmq.md, sections 2.4.5 and 6.10.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coherer._record.system_topics import SYSTEM_GROUPS
from coherer._rules.common.java_json import DataVersion
from coherer._rules.common.topics import Topic, TopicTable, TubeMqTopics
from coherer._rules.rocketmq.groups import Group, GroupTable, TopicDefaults
from coherer._wire.rocketmq import fastjson
from coherer.errors import DamagedStoreError


def test_partitions_of_several_stores() -> None:
    topic = Topic.of_master("t", 3, stores=2)
    ids = topic.partition_ids()
    assert ids == [0, 1, 2, 10_000, 10_001, 10_002]
    assert [number for number in range(-5, 30_000) if topic.has_partition(number)] == ids


def test_the_file_is_rocketmqs() -> None:
    table = TopicTable([Topic.of_master("TopicTest", 4)])
    assert table.replace([Topic.of_master("T1", 8, can_publish=False)], now_ms=5)
    assert msgspec.json.decode(table.dump()) == {
        "dataVersion": {"counter": 1, "timestamp": 5},
        "topicConfigTable": {
            "T1": {
                "order": False,
                "perm": 4,
                "readQueueNums": 8,
                "topicFilterType": "SINGLE_TAG",
                "topicName": "T1",
                "topicSysFlag": 0,
                "tubemq": True,
                "writeQueueNums": 8,
            }
        },
    }


def test_tubemq_properties_round_trip() -> None:
    topics = [
        Topic.of_master("a", 2, stores=3, status=1, message_bytes_max=5_000_000),
        Topic.of_master("b", 1, can_subscribe=False),
    ]
    table = TopicTable.load(TopicTable(topics).dump())
    assert list(table) == topics
    assert table.get("c") is None
    assert len(table) == 2


def test_the_file_is_the_same_however_often_it_is_written() -> None:
    table = TopicTable()
    assert msgspec.json.decode(table.dump())["topicConfigTable"] == {}
    names = ["b", "a", 'a "quoted"\n\u00fc one', "c"]
    for number, name in enumerate(names):
        table.put(Topic(name=name), now_ms=number)
        table.dump()
    table.remove("c", now_ms=5)
    table.put(Topic(name="a", perm=4, message_bytes_max=5), now_ms=6)
    table.replace([Topic.of_master("flights", 3)], now_ms=7)
    table.replace([Topic.of_master("flights", 3)], now_ms=8)
    content = table.dump()
    assert content == msgspec.json.format(content, indent=1)
    again = TopicTable.load(content)
    assert again.dump() == content
    assert sorted(again, key=lambda topic: topic.name) == sorted(
        table, key=lambda topic: topic.name
    )
    assert [topic.name for topic in again] == sorted(topic.name for topic in table)


def test_replace_returns_whether_topics_changed() -> None:
    table = TopicTable()
    assert not table.replace([])
    assert table.replace([Topic.of_master("a", 1)])
    assert not table.replace([Topic.of_master("a", 1)])
    assert table.replace([Topic.of_master("a", 2)])
    again = TopicTable.load(table.dump())
    again.replace([])
    assert b'"counter": 3' in again.dump()


def test_the_groups_file_is_rocketmqs() -> None:
    table = GroupTable()
    table.add("g", now_ms=7)
    assert msgspec.json.decode(table.dump()) == {
        "dataVersion": {"counter": 1, "timestamp": 7},
        "subscriptionGroupTable": {
            "g": {
                "brokerId": 0,
                "consumeBroadcastEnable": True,
                "consumeEnable": True,
                "consumeFromMinEnable": True,
                "groupName": "g",
                "notifyConsumerIdsChangedEnable": True,
                "retryMaxTimes": 16,
                "retryQueueNums": 1,
                "whichBrokerWhenConsumeSlowly": 1,
            }
        },
    }
    again = GroupTable.load(table.dump())
    assert [group.group_name for group in again] == ["g"]
    assert again.remove("g")
    assert not again.remove("g")
    assert "g" not in again


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b'{"topicConfigTable":{"a":1}}'])
def test_damaged_topic_files_raise(data: bytes) -> None:
    with pytest.raises(DamagedStoreError, match=r"topics\.json"):
        TopicTable.load(data)
    with pytest.raises(DamagedStoreError, match=r"subscriptionGroup\.json"):
        GroupTable.load(data.replace(b"topicConfigTable", b"subscriptionGroupTable"))


# -- internal topics and groups (section 6.10)


def add_internal(table: TopicTable, **options: Any) -> None:
    defaults = TopicDefaults(**options)
    table.add_internal(defaults.topics(), [defaults.trace_topic])


def test_topics_that_every_broker_has() -> None:
    table = TopicTable()
    add_internal(table, cluster="c", broker="b", queues=4, trace=True)
    assert {topic.name: (topic.read_queues, topic.perm) for topic in table} == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (4, 7),
        "BenchmarkTest": (1024, 6),
        "c": (16, 7),
        "b": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "c_REPLY_TOPIC": (1, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
    }
    assert all(topic.read_queues == topic.write_queues for topic in table)
    assert table.version == DataVersion(0, 0)


def test_options_of_internal_topics() -> None:
    table = TopicTable([Topic(name="b", read_queues=3)])
    add_internal(
        table, cluster="c", broker="b", auto_create=False, cluster_topic=False, broker_topic=False
    )
    assert table.get("TBW102") is None
    assert table.get("RMQ_SYS_TRACE_TOPIC") is None
    assert (table["c"].write_queues, table["c"].perm) == (1, 6)
    assert table["b"].read_queues == 3  # the file's is kept
    assert {"c", "b", "c_REPLY_TOPIC", "TBW102", "RMQ_SYS_TRACE_TOPIC"} <= table.system_names()


def test_groups_that_every_broker_has() -> None:
    table = GroupTable([Group(group_name="TOOLS_CONSUMER", retry_max_times=3)])
    table.add_internal()
    assert len(table) == 7
    assert {group.group_name for group in table} == set(SYSTEM_GROUPS)
    assert [g.retry_max_times for g in table if g.group_name == "TOOLS_CONSUMER"] == [3]
    assert table.version == DataVersion(0, 0)


# -- topics created by sends (section 2.4.5)


def made(**changes: Any) -> TopicTable:
    table = TopicTable()
    add_internal(table, **changes)
    return table


def test_a_send_creates_a_topic_from_a_template() -> None:
    table = made()
    seen: list[int] = []
    table.watch(lambda: seen.append(table.version.counter))
    topic = table.create_for_send("new", "TBW102", 4, 0, now_ms=77)
    assert topic == Topic(name="new", read_queues=4, write_queues=4, perm=6)
    assert table.get("new") is topic
    assert table.version == DataVersion(1, 77)
    assert seen == [1]
    assert table.create_for_send("new", "TBW102", 7, 0, now_ms=78) is topic
    assert seen == [1]


@pytest.mark.parametrize(("asked", "queues"), [(100, 8), (8, 8), (0, 0), (-3, 0)])
def test_the_template_limits_the_queues(asked: int, queues: int) -> None:
    topic = made().create_for_send("new", "TBW102", asked, 0, now_ms=0)
    assert topic is not None
    assert (topic.read_queues, topic.write_queues) == (queues, queues)


def test_properties_copied_from_the_template() -> None:
    table = TopicTable(
        [Topic(name="model", read_queues=2, write_queues=5, perm=5, filter_type="MULTI_TAG")]
    )
    topic = table.create_for_send("new", "model", 9, 2, now_ms=0)
    assert topic == Topic(
        name="new", read_queues=5, write_queues=5, perm=4, filter_type="MULTI_TAG", sys_flag=2
    )


def test_topics_that_are_not_templates() -> None:
    table = made(cluster_topic=False)
    for model in ("nothing", "BenchmarkTest", "DefaultCluster"):
        assert table.create_for_send("new", model, 4, 0, now_ms=0) is None
    assert table.create_for_send("new", "TBW102", 4, 0, now_ms=0, auto_create=False) is None
    assert table.create_for_send("new", "broker-a", 4, 0, now_ms=0, auto_create=False) is not None


def test_ensuring_a_topic() -> None:
    table = TopicTable()
    topic = table.ensure_topic("%RETRY%g", 1, now_ms=5, sys_flag=2)
    assert topic == Topic(name="%RETRY%g", read_queues=1, write_queues=1, perm=6, sys_flag=2)
    assert table.ensure_topic("%RETRY%g", 9, now_ms=6, perm=4) is topic
    assert table.version == DataVersion(1, 5)


# -- administration


def test_putting_a_topic_is_always_a_change() -> None:
    table = TopicTable()
    for now_ms in (1, 2):
        table.put(Topic(name="t", read_queues=3), now_ms)
    assert table.version == DataVersion(2, 2)
    assert table.remove("t", 3)
    assert not table.remove("t", 4)
    assert table.version == DataVersion(3, 3)
    assert "t" not in table


def test_putting_keeps_what_only_tubemq_knows() -> None:
    table = TopicTable([Topic.of_master("t", 2, stores=3, status=1, message_bytes_max=9)])
    table.put(Topic(name="t", read_queues=5, write_queues=4), now_ms=0)
    topic = table["t"]
    assert (topic.stores, topic.status, topic.message_bytes_max, topic.tubemq) == (3, 1, 9, True)
    assert topic.partitions == 5


def test_rocketmqs_clients_get_fewer_queues_and_tubemqs_keep_their_partitions() -> None:
    table = TopicTable([Topic.of_master("t", 4)])
    table.put(Topic(name="t", read_queues=2, write_queues=0), now_ms=0)
    assert table["t"].partition_ids() == [0, 1, 2, 3]
    again = TopicTable.load(table.dump())
    # The master sends the same configuration, and then a new one.
    for partitions, queues in ((4, (2, 0)), (4, (2, 0)), (6, (6, 6))):
        again.replace([Topic.of_master("t", partitions, can_publish=partitions != 4)])
        topic = again["t"]
        assert (topic.read_queues, topic.write_queues) == queues
        assert topic.partitions == partitions
    again.put(Topic(name="t", read_queues=7, write_queues=1), now_ms=0)
    assert (again["t"].partitions, again["t"].partitions_min) == (7, 0)


def test_ordered_topics() -> None:
    table = TopicTable([Topic(name="a"), Topic(name="b", order=True), Topic(name="c", order=True)])
    assert table.order({"a", "b", "nowhere"}, now_ms=4)
    assert {topic.name for topic in table if topic.order} == {"a", "b"}
    assert not table.order({"a", "b"}, now_ms=5)
    assert table.version == DataVersion(1, 4)


# -- the part that TubeMQ's master and clients see


def test_the_master_only_changes_its_own_topics() -> None:
    table = made()
    view = TubeMqTopics(table)
    table.put(Topic(name="rockets"), now_ms=0)
    assert view.replace([Topic.of_master("tubes", 2)])
    assert [topic.name for topic in view] == ["rockets", "tubes"]
    assert view.replace([])
    assert [topic.name for topic in view] == ["rockets"]
    assert len(view) == 1
    assert "TBW102" in table


def test_a_shared_topic_keeps_its_rocketmq_properties() -> None:
    table = TopicTable(
        [
            Topic(
                name="t", read_queues=8, write_queues=4, perm=7, order=True,
                filter_type="MULTI_TAG", sys_flag=1,
            )
        ]
    )  # fmt: skip
    assert table.replace([Topic.of_master("t", 8, can_publish=False)])
    assert table["t"] == Topic(
        name="t", read_queues=8, write_queues=4, perm=5, order=True,
        filter_type="MULTI_TAG", sys_flag=1, tubemq=True,
    )  # fmt: skip
    assert table.replace([Topic.of_master("t", 6)])
    assert (table["t"].read_queues, table["t"].write_queues, table["t"].perm) == (6, 6, 7)


@pytest.mark.parametrize(
    "name", ["TBW102", "%RETRY%g", "%DLQ%g", "rmq_sys_x", "DefaultCluster", "broker-a"]
)
def test_internal_topics_are_hidden_from_tubemq(name: str) -> None:
    table = made()
    table.ensure_topic(name, 1, now_ms=0)
    view = TubeMqTopics(table)
    assert name in table
    assert view.get(name) is None
    assert name not in [topic.name for topic in view]
    with pytest.raises(KeyError):
        view[name]


# -- files as Java writes them


JAVA_TOPICS = b"""{
\t"dataVersion":{
\t\t"counter":4,
\t\t"timestamp":1650000000000
\t},
\t"topicConfigTable":{
\t\t"T1":{
\t\t\t"order":false,
\t\t\t"perm":6,
\t\t\t"readQueueNums":8,
\t\t\t"topicFilterType":"MULTI_TAG",
\t\t\t"topicName":"T1",
\t\t\t"topicSysFlag":2,
\t\t\t"writeQueueNums":4,
\t\t\t"attributes":{}
\t\t},
\t\t"T2":{"perm":4}
\t},
\t"somethingNew":[1]
}"""


def test_java_topics() -> None:
    table = TopicTable.load(JAVA_TOPICS)
    assert table.version == DataVersion(4, 1650000000000)
    assert list(table) == [
        Topic(name="T1", read_queues=8, write_queues=4, filter_type="MULTI_TAG", sys_flag=2),
        Topic(name="T2", perm=4),  # 16 queues and so on are Java's defaults
    ]
    again = TopicTable.load(table.dump())
    assert list(again) == list(table)
    assert again.version == table.version


def test_fastjson_forms() -> None:
    data = b'{topicConfigTable:{T1:{perm:6,order:null,"readQueueNums":"3"}}}'
    with pytest.raises(DamagedStoreError):
        TopicTable.load(data)
    [topic] = TopicTable.load(data, fastjson.loads)
    assert topic == Topic(name="T1", read_queues=3)
    data = b'{subscriptionGroupTable:{g:{groupName:"g",retryMaxTimes:5}}}'
    [group] = GroupTable.load(data, fastjson.loads)
    assert group == Group(group_name="g", retry_max_times=5)
    with pytest.raises(DamagedStoreError):
        GroupTable.load(b"{subscriptionGroupTable:{g:}", fastjson.loads)


def test_java_groups() -> None:
    data = b"""{"dataVersion":{"counter":7,"timestamp":9},"subscriptionGroupTable":{"g":{
        "brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,"consumeMessageOrderly":true,
        "groupName":"g","notifyConsumerIdsChangedEnable":false,"retryMaxTimes":-1}}}"""
    table = GroupTable.load(data)
    assert table.version == DataVersion(7, 9)
    assert table.get("g") == Group(
        group_name="g",
        consume_broadcast_enable=False,
        notify_consumer_ids_changed_enable=False,
        retry_max_times=-1,
    )


def test_finding_a_group_may_create_it() -> None:
    table = GroupTable()
    seen: list[int] = []
    table.watch(lambda: seen.append(table.version.timestamp))
    assert table.find("g", 5, auto_create=False) is None
    assert table.find("CID_RMQ_SYS_TRANS", 6, auto_create=False) == Group(
        group_name="CID_RMQ_SYS_TRANS"
    )
    made_now = table.find("g", 7)
    assert table.find("g", 8) is made_now
    table.put(Group(group_name="g", consume_enable=False), 9)
    assert table.get("g") == Group(group_name="g", consume_enable=False)
    assert seen == [6, 7, 9]
    assert table.version.counter == 3


def test_topics_in_remarks() -> None:
    assert Topic(name="T1", read_queues=8, write_queues=4, perm=2, order=True).text() == (
        "TopicConfig [topicName=T1, readQueueNums=8, writeQueueNums=4, perm=-W-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=true]"
    )
