"""One table of topics under two doors: what each of them sees and may change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coherer._rules.common.topics import Topic
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker.options import RocketOptions
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.tubemq.broker.state import BrokerOptions, BrokerState
from coherer._server.tubemq.refusal import Refusal, known_topic
from coherer._store import Store, StoreOptions
from coherer.testing import ManualClock

OPTIONS = StoreOptions(segment_bytes=1 << 16, queue_segment_bytes=2000, index_enabled=False)


class Doors:
    def __init__(self, store: Store) -> None:
        self.core = Core(store, ManualClock().now_ms)
        self.rocket = RocketState(RocketOptions(), self.core)
        self.tube = BrokerState(BrokerOptions(), self.core)


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    with Store.open(tmp_path, OPTIONS, now_ms=ManualClock().now_ms) as store:
        yield Doors(store)


def test_each_door_sees_the_topics_of_the_other(doors: Doors) -> None:
    doors.rocket.topics.create_for_send("rockets", "TBW102", 3, 0, now_ms=0)
    doors.tube.topics.replace([Topic.of_master("tubes", 2)])
    assert known_topic(doors.tube.topics, "rockets").partition_ids() == [0, 1, 2]
    tubes = doors.rocket.topics["tubes"]
    assert (tubes.read_queues, tubes.write_queues, tubes.perm) == (2, 2, 6)
    assert {topic.name for topic in doors.tube.topics} == {"rockets", "tubes"}


@pytest.mark.parametrize(
    "name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "DefaultCluster"]
)
def test_system_topics_are_no_topics_of_tubemq(doors: Doors, name: str) -> None:
    assert name in doors.rocket.topics
    with pytest.raises(Refusal) as refused:
        known_topic(doors.tube.topics, name)
    assert refused.value.code == 403


def test_a_change_by_either_door_is_seen_by_both(doors: Doors) -> None:
    before = doors.tube.version, doors.rocket.version
    doors.rocket.topics.put(Topic(name="t"), now_ms=0)
    between = doors.tube.version, doors.rocket.version
    doors.tube.topics.replace([Topic.of_master("u", 1)])
    after = doors.tube.version, doors.rocket.version
    assert before[0] < between[0] < after[0]
    assert before[1] < between[1] < after[1]


def test_what_the_master_takes_away_is_gone_for_both(doors: Doors) -> None:
    doors.rocket.topics.put(Topic(name="rockets"), now_ms=0)
    doors.tube.topics.replace([Topic.of_master("tubes", 2), Topic.of_master("rockets", 16)])
    doors.tube.topics.replace([Topic.of_master("rockets", 16)])
    assert "tubes" not in doors.rocket.topics
    assert doors.rocket.topics["rockets"].tubemq
    assert "TBW102" in doors.rocket.topics
