"""Administration of topics and groups.

Topics: codes 17, 21, 215, 305, 306, 316 and 351 (docs/protocol/rocketmq.md, section 2.11). Groups:
200, 201 and 207 (section 2.11), and their offsets: 308 and 314 (section 2.7).
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from coherer import limits
from coherer._common.logs import Log
from coherer._record.system_topics import is_system_topic
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.acl import SUB
from coherer._rules.rocketmq.groups import Group
from coherer._server.rocketmq.broker.admin_common import (
    done,
    done_default_remark,
    has_unsubscribed,
)
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    NULL,
    CloneOffsetHeader,
    CorrectionOffsetHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    TopicHeader,
    missing,
    parse,
)
from coherer._wire.rocketmq.names import FEATURE_GROUP_STATES, FEATURES, topic_fault
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class TopicAdmin:
    """Creates, changes, lists and deletes topics."""

    def __init__(self, state: RocketState) -> None:
        self._state = state

    def put(self, request: Command) -> Command:
        """UPDATE_AND_CREATE_TOPIC (17). As in Java, the order flag of the request is ignored.

        Raises:
            Refusal: the name or the settings are invalid.
        """
        kind = request.fields.get("topicFilterType", NULL)
        if request.fields and kind not in FILTER_TYPES:
            remark = f"topicFilterType = [{kind}] value invalid"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        self._check(request.fields.get("topic", ""))
        header = parse(CreateTopicHeader, request.fields)
        numbers = (header.read_queue_nums, header.write_queue_nums)
        if not 0 <= min(numbers) <= max(numbers) <= limits.TOPIC_PARTITIONS_MAX:
            remark = f"a topic has 0 to {limits.TOPIC_PARTITIONS_MAX} queues, not {numbers}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        old = self._state.topics.get(header.topic)
        self._state.topics.put(
            Topic(
                name=header.topic,
                read_queues=header.read_queue_nums,
                write_queues=header.write_queue_nums,
                perm=header.perm,
                order=old is not None and old.order,
                filter_type=header.topic_filter_type,
                sys_flag=header.topic_sys_flag or 0,
            ),
            self._state.now_ms(),
        )
        return done_default_remark()

    def delete(self, request: Command) -> Command:
        """DELETE_TOPIC_IN_BROKER (215): succeeds even if there is no such topic.

        Raises:
            Refusal: it is a system topic.
            StoreError: the disk failed.
        """
        name = request.fields.get("topic", "")
        self._check(name)
        self._state.topics.remove(name, self._state.now_ms())
        # With the offsets of groups: in a new topic of that name they would skip messages.
        self._state.core.remove_topic(name)
        return done()

    def get_all(self, _: Command) -> Command:
        """GET_ALL_TOPIC_CONFIG (21): all topics."""
        topics = self._state.topics
        version = bodies.DataVersion(
            counter=topics.version.counter, timestamp=topics.version.timestamp
        )
        table = {topic.name: topic_config(topic) for topic in topics}
        return done(bodies.TopicConfigs(topic_config_table=table, data_version=version))

    def get(self, request: Command) -> Command:
        """GET_TOPIC_CONFIG (351, RocketMQ 5): one topic, without a queue mapping.

        Raises:
            Refusal: there is no such topic.
        """
        name = parse(TopicHeader, request.fields).topic
        topic = self._state.topics.get(name)
        if topic is None:
            remark = f"No topic in this broker. topic: {name}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        return done(topic_config(topic))

    def system_topics(self, _: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305): the reserved topic names."""
        return done(bodies.TopicList(topic_list=sorted(self._state.topics.system_names())))

    def clean_expired(self, _: Command) -> Command:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306): apply retention now."""
        self._state.core.clean()
        return done()

    def clean_unused(self, _: Command) -> Command:
        """CLEAN_UNUSED_TOPIC (316): delete the queues of topics that no longer exist."""
        topics = self._state.topics
        for name in self._state.store.topics():
            if name not in topics and not topics.is_internal(name):
                try:
                    self._state.core.remove_topic(name)
                except CohererError as error:
                    _log.error("Topic %s could not be removed: %s", name, error, topic=name)
        return done()

    def _check(self, name: str) -> None:
        fault = topic_fault(name)
        kept = is_system_topic(name) or name in self._state.topics.system_names()
        if fault is None and kept:
            fault = f"The topic[{name}] is conflict with system topic."
        if fault is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, fault)


def topic_config(topic: Topic) -> bodies.TopicConfig:
    """Convert a topic to its wire form."""
    return bodies.TopicConfig(
        topic_name=topic.name,
        read_queue_nums=topic.read_queues,
        write_queue_nums=topic.write_queues,
        perm=topic.perm,
        topic_filter_type=topic.filter_type,
        topic_sys_flag=topic.sys_flag,
        order=topic.order,
    )


class GroupAdmin:
    """Creates, changes, lists and deletes groups; reads and copies their offsets."""

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._encoded: tuple[object, bytes] | None = None

    def put(self, request: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200); a body of `null` does nothing.

        Raises:
            ProtocolError: the body is invalid.
            Refusal: the group has no name.
        """
        body = bodies.SubscriptionGroup.decode_or_none(request.body)
        if body is None:
            return done()
        if not body.group_name:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: groupName")
        self._state.groups.put(Group(**msgspec.structs.asdict(body)), self._state.now_ms())
        return done()

    def get_all(self, request: Command) -> Command:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all groups."""
        features = {FEATURES: FEATURE_GROUP_STATES} if FEATURES in request.fields else {}
        return Command(ResponseCode.SUCCESS, fields=features, body=self._all())

    def _all(self) -> bytes:
        groups = self._state.groups
        seen = (groups.version, len(groups))
        # Cached until a group changes: consoles ask often, and encoding 1,000 groups takes 10 ms.
        if self._encoded is not None and self._encoded[0] == seen:
            return self._encoded[1]
        version = bodies.DataVersion(
            counter=groups.version.counter, timestamp=groups.version.timestamp
        )
        table = {
            group.group_name: bodies.SubscriptionGroup(**msgspec.structs.asdict(group))
            for group in groups
        }
        found = bodies.SubscriptionGroups(subscription_group_table=table, data_version=version)
        self._encoded = (seen, found.encode())
        return self._encoded[1]

    def delete(self, request: Command) -> Command:
        """DELETE_SUBSCRIPTIONGROUP (207): succeeds even if there is no such group."""
        header = parse(DeleteGroupHeader, request.fields)
        if header.remove_offset:
            self._state.core.remove_offsets(header.group_name)
        self._state.groups.remove(header.group_name, self._state.now_ms())
        self._state.counters.forget_groups({header.group_name})
        return done()

    def correction_offsets(self, request: Command) -> Command:
        """QUERY_CORRECTION_OFFSET (308): the groups' smallest offset in each queue."""
        header = parse(CorrectionOffsetHeader, request.fields)
        without = set((header.filter_groups or "").split(","))
        smallest: dict[int, int] = {}
        for group in self._state.offsets.groups_of(header.topic):
            # Java deletes the offsets of these groups by mistake; here they are only excluded. As
            # in Java, the group to compare with has no effect.
            if group in without:
                continue
            for topic, queue_id, position in self._state.offsets.of(group):
                low, _ = self._state.store.queue_range(topic, queue_id)
                if topic == header.topic and position.offset >= max(low, 0):
                    known = smallest.get(queue_id, position.offset)
                    smallest[queue_id] = min(known, position.offset)
        return done(bodies.CorrectionOffsets(correction_offsets=smallest))

    def clone_offsets(self, channel: Channel, request: Command) -> Command:
        """CLONE_GROUP_OFFSET (314): copy the offsets of one group to another.

        Raises:
            Refusal: the sender may not read one of the topics; nothing is copied then.
        """
        header = parse(CloneOffsetHeader, request.fields)
        if not header.topic and "srcGroup" not in request.fields:
            raise missing("srcGroup")
        state = self._state
        # Without a topic Java copies nothing, by mistake; here all topics of the source group are
        # copied.
        named = [header.topic] if header.topic else state.offsets.topics_of(header.src_group)
        topics = [topic for topic in named if topic in state.topics]
        for topic in topics:
            state.forbid(channel, request, topic, SUB)
        for topic in topics:
            if not header.offline and has_unsubscribed(state, header.src_group, topic):
                continue
            for name, queue_id, position in list(state.offsets.of(header.src_group)):
                if name == topic:
                    state.commit(header.dest_group, topic, queue_id, position.offset)
        return done()
