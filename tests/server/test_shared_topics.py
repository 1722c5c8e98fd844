"""One table of topics for two protocols: what each of them sees and may change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coherer._rules.common.topics import Topic
from coherer._server.core.core import Core
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.options.tubemq import BrokerOptions
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.tubemq.broker.state import BrokerState
from coherer._server.tubemq.refusal import Refusal, known_topic
from coherer._store import Store, StoreOptions
from coherer.testing import ManualClock

OPTIONS = StoreOptions(segment_bytes=1 << 16, queue_segment_bytes=2000, index_enabled=False)


class Views:
    def __init__(self, store: Store) -> None:
        self.core = Core(store, ManualClock().now_ms)
        self.rocket = RocketState(RocketOptions(), self.core)
        self.tube = BrokerState(BrokerOptions(), self.core)


@pytest.fixture
def views(tmp_path: Path) -> Iterator[Views]:
    with Store.open(tmp_path, OPTIONS, now_ms=ManualClock().now_ms) as store:
        yield Views(store)


def test_both_protocols_see_all_topics(views: Views) -> None:
    views.rocket.topics.create_for_send("rockets", "TBW102", 3, 0, now_ms=0)
    views.tube.topics.replace([Topic.of_master("tubes", 2)])
    assert known_topic(views.tube.topics, "rockets").partition_ids() == [0, 1, 2]
    tubes = views.rocket.topics["tubes"]
    assert (tubes.read_queues, tubes.write_queues, tubes.perm) == (2, 2, 6)
    assert {topic.name for topic in views.tube.topics} == {"rockets", "tubes"}


@pytest.mark.parametrize(
    "name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "DefaultCluster"]
)
def test_system_topics_are_hidden_from_tubemq(views: Views, name: str) -> None:
    assert name in views.rocket.topics
    with pytest.raises(Refusal) as refused:
        known_topic(views.tube.topics, name)
    assert refused.value.code == 403


def test_changes_are_seen_by_both_protocols(views: Views) -> None:
    before = views.tube.version, views.rocket.version
    views.rocket.topics.put(Topic(name="t"), now_ms=0)
    between = views.tube.version, views.rocket.version
    views.tube.topics.replace([Topic.of_master("u", 1)])
    after = views.tube.version, views.rocket.version
    assert before[0] < between[0] < after[0]
    assert before[1] < between[1] < after[1]


def test_topics_removed_by_the_master_are_removed_for_both(views: Views) -> None:
    views.rocket.topics.put(Topic(name="rockets"), now_ms=0)
    views.tube.topics.replace([Topic.of_master("tubes", 2), Topic.of_master("rockets", 16)])
    views.tube.topics.replace([Topic.of_master("rockets", 16)])
    assert "tubes" not in views.rocket.topics
    assert views.rocket.topics["rockets"].tubemq
    assert "TBW102" in views.rocket.topics
