"""Topics and groups: partitions, and RocketMQ's files."""

from __future__ import annotations

import msgspec
import pytest

from coherer.broker.filters import tag_codes
from coherer.broker.groups import GroupTable
from coherer.broker.topics import Topic, TopicTable
from coherer.errors import DamagedStoreError
from coherer.record.hashing import java_hash


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


def test_what_only_tubemq_knows_comes_back() -> None:
    topics = [
        Topic.of_master("a", 2, stores=3, status=1, message_bytes_max=5_000_000),
        Topic.of_master("b", 1, can_subscribe=False),
    ]
    table = TopicTable.load(TopicTable(topics).dump())
    assert list(table) == topics
    assert table.get("c") is None
    assert len(table) == 2


def test_replacing_says_whether_anything_changed() -> None:
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


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"topicConfigTable":{"a":1}}'])
def test_broken_files_are_reported(data: bytes) -> None:
    with pytest.raises(DamagedStoreError, match=r"topics\.json"):
        TopicTable.load(data)
    with pytest.raises(DamagedStoreError, match=r"subscriptionGroup\.json"):
        GroupTable.load(data.replace(b"topicConfigTable", b"subscriptionGroupTable"))


def test_filters() -> None:
    assert tag_codes([]) is None
    assert tag_codes(["", "  "]) is None
    assert tag_codes(["é😀 ", "é😀"]) == frozenset({java_hash("é😀")})
