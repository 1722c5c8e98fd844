"""The topics that every RocketMQ broker has (rocketmq 6.10)."""

from __future__ import annotations

import msgspec

from coherer._record import system_topics
from coherer._rules.common.topics import INHERIT, READ, WRITE, Topic

_SCHEDULE_QUEUES = 18
_BENCHMARK_QUEUES = 1024


class TopicDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which topics a broker always has (6.10).

    Args:
        cluster: the cluster's name.
        broker: the broker's name.
        auto_create: a send may make a topic.
        queues: queues of the model of such topics (`defaultTopicQueueNums`).
        cluster_topic: the topic of the cluster's name may be a model with its 16 queues.
        broker_topic: the topic of the broker's name may be a model.
        trace: there is a topic for traces.
        trace_topic: its name.
    """

    cluster: str = "DefaultCluster"
    broker: str = "broker-a"
    auto_create: bool = True
    queues: int = 8
    cluster_topic: bool = True
    broker_topic: bool = True
    trace: bool = False
    trace_topic: str = system_topics.TRACE_TOPIC

    def topics(self) -> list[Topic]:
        """The topics.

        >>> [topic.name for topic in TopicDefaults(auto_create=False).topics()][:3]
        ['SELF_TEST_TOPIC', 'BenchmarkTest', 'DefaultCluster']
        """
        model = READ | WRITE | INHERIT
        made = [_square(system_topics.SELF_TEST_TOPIC, 1)]
        if self.auto_create:
            made.append(_square(system_topics.AUTO_CREATE_TOPIC, self.queues, model))
        made += [
            _square(system_topics.BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
            _square(
                self.cluster,
                16 if self.cluster_topic else 1,
                model if self.cluster_topic else READ | WRITE,
            ),
            _square(self.broker, 1, model if self.broker_topic else READ | WRITE),
            _square(system_topics.OFFSET_MOVED_TOPIC, 1),
            _square(system_topics.SCHEDULE_TOPIC, _SCHEDULE_QUEUES),
            _square(self.reply_topic, 1),
        ]
        return [*made, _square(self.trace_topic, 1)] if self.trace else made

    @property
    def reply_topic(self) -> str:
        """The topic that carries answers to requests (2.14)."""
        return self.cluster + system_topics.REPLY_TOPIC_SUFFIX


def _square(name: str, queues: int, perm: int = READ | WRITE) -> Topic:
    return Topic(name=name, read_queues=queues, write_queues=queues, perm=perm)
