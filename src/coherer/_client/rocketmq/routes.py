"""What a topic's route says: where it can be written, where it can be read (rocketmq 8.3).

Pure. A `Route` is worked out once for each answer of a name server that differs from the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import structs

from coherer._wire.rocketmq.bodies import QueueData, TopicRoute
from coherer._wire.rocketmq.names import AUTO_CREATE_TOPIC, Queue

MASTER: Final = 0
"""The id of a master among the brokers of one name."""

READ: Final = 4
WRITE: Final = 2
"""Bits of a queue's permission."""

CREATED_QUEUES: Final = 4
"""So many queues a topic is wished to get that a send creates."""


class Route(msgspec.Struct, frozen=True, gc=False):
    """Where a topic is.

    Args:
        topic: the topic.
        writable: the queues that take messages, sorted; those of a broker without a master do not.
        readable: the queues that can be read, sorted.
        brokers: names of brokers, to their addresses by id; 0 is the master.
        ordered: whether an administrator fixed the queues, so that their number stays when brokers
            come and go.
        clusters: names of brokers, to the cluster they belong to.
    """

    topic: str
    writable: tuple[Queue, ...]
    readable: tuple[Queue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    ordered: bool = False
    clusters: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<Route to {self.topic}: {len(self.writable)} queues on {', '.join(self.brokers)}>"


def route_of(topic: str, data: TopicRoute) -> Route:
    """Work out a route from a name server's answer.

    Args:
        topic: the topic.
        data: the answer; the one for the template topic counts for topics that do not exist yet,
            which will get a few queues only.
    """
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    ordered = bool(data.order_topic_conf)
    sorts = sorted(data.queue_datas, key=lambda queues: queues.broker_name)
    if data.order_topic_conf:
        writable = _ordered(topic, data.order_topic_conf)
    else:
        writable = tuple(queue for queues in sorts for queue in _writable(topic, queues, brokers))
    readable = tuple(
        Queue(topic, queues.broker_name, number)
        for queues in sorts
        if queues.perm & READ
        for number in range(queues.read_queue_nums)
    )
    clusters = {broker.broker_name: broker.cluster or "" for broker in data.broker_datas}
    return Route(topic, writable, readable, brokers, ordered, clusters)


def template_route(topic: str, data: TopicRoute) -> Route:
    """The route of a topic that the first send to it will create, from its template's.

    Raises nothing; without brokers that create topics it has no queues.
    """
    few = [
        structs.replace(queues, write_queue_nums=number, read_queue_nums=number)
        for queues in data.queue_datas
        for number in (min(CREATED_QUEUES, queues.read_queue_nums),)
    ]
    return route_of(topic, structs.replace(data, queue_datas=few))


def _ordered(topic: str, text: str) -> tuple[Queue, ...]:
    """The queues of `broker-a:4;broker-b:4`."""
    queues: list[Queue] = []
    for part in text.split(";"):
        broker, _, number = part.partition(":")
        if broker and number.strip().isdecimal():
            queues += [Queue(topic, broker, place) for place in range(int(number))]
    return tuple(queues)


def _writable(
    topic: str, queues: QueueData, brokers: Mapping[str, Mapping[int, str]]
) -> list[Queue]:
    if not queues.perm & WRITE or MASTER not in brokers.get(queues.broker_name, {}):
        return []
    return [Queue(topic, queues.broker_name, number) for number in range(queues.write_queue_nums)]


__all__ = ["AUTO_CREATE_TOPIC", "MASTER", "Route", "route_of", "template_route"]
