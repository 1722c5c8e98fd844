"""Helpers of the administration handlers.

See docs/protocol/rocketmq.md, section 1.4.
"""

from __future__ import annotations

from collections.abc import Iterator

from coherer._record.layout import store_ms_of
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.clients import ConsumerGroup
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq.bodies import Body
from coherer._wire.rocketmq.codes import NOT_SET, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue


def done(body: Body | None = None, fields: dict[str, str] | None = None) -> Command:
    """A successful response."""
    data = b"" if body is None else body.encode()
    return Command(ResponseCode.SUCCESS, fields=fields or {}, body=data)


def done_default_remark(body: Body | None = None) -> Command:
    """A successful response with the default remark that Java forgets to clear (section 1.4)."""
    answer = done(body)
    answer.remark = NOT_SET
    return answer


def known_topic(state: RocketState, name: str) -> Topic:
    """Return a topic.

    Raises:
        Refusal: with 17 if it does not exist.
    """
    topic = state.topics.get(name)
    if topic is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    return topic


def queues_of(state: RocketState, topic: Topic, count: int) -> Iterator[tuple[Queue, int, int]]:
    """The queues of a topic, each with the offset of its first message and its next offset."""
    for number in range(count):
        low, high = state.store.queue_range(topic.name, number)
        yield Queue(topic.name, state.options.broker, number), max(low, 0), max(high, 0)


def stored_ms(state: RocketState, queue: Queue, offset: int) -> int:
    """The store time of the message at an offset; -1 if the offset has no message."""
    low, high = state.store.queue_range(queue.topic, queue.id)
    if not low <= offset < high:
        return -1
    found = state.store.read(queue.topic, queue.id, offset, max_bytes=1, max_count=1)
    return store_ms_of(found.records[0]) if found.records else -1


def position(state: RocketState, group: str, queue: Queue) -> int:
    """The committed offset of a group in a queue, or -1."""
    found = state.offsets.find(group, queue.topic, queue.id)
    return -1 if found is None else found.offset


def has_unsubscribed(state: RocketState, group: str, topic: str) -> bool:
    """Whether a group is online and no longer subscribes to this topic."""
    online: ConsumerGroup[Channel] | None = state.consumers.get(group)
    return online is not None and bool(online.subscriptions) and topic not in online.subscriptions
