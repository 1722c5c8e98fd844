"""Codes 17, 21, 215, 305, 306, 316 and 351: topics (2.11)."""

from __future__ import annotations

import logging
from typing import Final

from coherer import limits
from coherer._common.logs import Log
from coherer._record.system_topics import is_system_topic
from coherer._rules.common.topics import Topic
from coherer._server.rocketmq.broker.admin.common import done, done_unsaid
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.refusal import Refusal
from coherer._server.rocketmq.remoting import Handler, of_anyone
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import NULL, CreateTopicHeader, TopicHeader, parse
from coherer._wire.rocketmq.names import topic_fault
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class TopicDesk:
    """Makes, changes, lists and deletes topics.

    Args:
        state: what the broker's parts share.
    """

    def __init__(self, state: RocketState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """What is answered here, by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: of_anyone(self.put),
            RequestCode.GET_ALL_TOPIC_CONFIG: of_anyone(self.everything),
            RequestCode.DELETE_TOPIC_IN_BROKER: of_anyone(self.delete),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: of_anyone(self.system),
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: of_anyone(self.clean_expired),
            RequestCode.CLEAN_UNUSED_TOPIC: of_anyone(self.clean_unused),
            RequestCode.GET_TOPIC_CONFIG: of_anyone(self.one),
        }

    def put(self, request: Command) -> Command:
        """Code 17: a topic shall be so. What the request says about order is ignored, as by Java.

        Raises:
            Refusal: a topic cannot be called or be so.
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
        return done_unsaid()

    def delete(self, request: Command) -> Command:
        """Code 215: a topic shall no longer be; one that is not there is deleted, too.

        The positions of groups go as well: in a new topic of that name they would skip messages.

        Raises:
            Refusal: it is one that the broker needs.
            StoreError: the disk failed.
        """
        name = request.fields.get("topic", "")
        self._check(name)
        self._state.topics.remove(name, self._state.now_ms())
        self._state.core.remove_topic(name)
        return done()

    def everything(self, _: Command) -> Command:
        """Code 21: all topics."""
        topics = self._state.topics
        version = bodies.DataVersion(
            counter=topics.version.counter, timestamp=topics.version.timestamp
        )
        table = {topic.name: topic_config(topic) for topic in topics}
        return done(bodies.TopicConfigs(topic_config_table=table, data_version=version))

    def one(self, request: Command) -> Command:
        """Code 351, of 5.x: one topic. It has no queue mapping: that is for static topics.

        Raises:
            Refusal: there is no such topic.
        """
        name = parse(TopicHeader, request.fields).topic
        topic = self._state.topics.get(name)
        if topic is None:
            remark = f"No topic in this broker. topic: {name}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        return done(topic_config(topic))

    def system(self, _: Command) -> Command:
        """Code 305: the names that the broker keeps for itself."""
        return done(bodies.TopicList(topic_list=sorted(self._state.topics.system_names())))

    def clean_expired(self, _: Command) -> Command:
        """Code 306: delete what is too old now instead of at the next time."""
        self._state.core.clean()
        return done()

    def clean_unused(self, _: Command) -> Command:
        """Code 316: delete queues of topics that are no more."""
        topics = self._state.topics
        for name in self._state.store.topics():
            if name not in topics and not topics.is_own(name):
                try:
                    self._state.core.remove_topic(name)
                except CohererError as error:
                    _log.error("Topic %s is not removed: %s", name, error)
        return done()

    def _check(self, name: str) -> None:
        fault = topic_fault(name)
        kept = is_system_topic(name) or name in self._state.topics.system_names()
        if fault is None and kept:
            fault = f"The topic[{name}] is conflict with system topic."
        if fault is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, fault)


def topic_config(topic: Topic) -> bodies.TopicConfig:
    """A topic as bodies carry it."""
    return bodies.TopicConfig(
        topic_name=topic.name,
        read_queue_nums=topic.read_queues,
        write_queue_nums=topic.write_queues,
        perm=topic.perm,
        topic_filter_type=topic.filter_type,
        topic_sys_flag=topic.sys_flag,
        order=topic.order,
    )
