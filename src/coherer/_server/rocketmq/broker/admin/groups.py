"""Codes 200, 201, 207, 308 and 314: groups of consumers, and where they stand (2.7, 2.11)."""

from __future__ import annotations

import msgspec

from coherer._rules.rocketmq.groups import Group
from coherer._server.rocketmq.broker.admin.common import done, is_elsewhere, topics_read
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Handler, Refusal, of_anyone
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    CloneOffsetHeader,
    CorrectionOffsetHeader,
    DeleteGroupHeader,
    missing,
    parse,
)


class GroupDesk:
    """Makes, changes, lists and deletes groups; looks at and copies their offsets.

    Args:
        state: what the broker's parts share.
    """

    def __init__(self, state: RocketState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """What is answered here, by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: of_anyone(self.put),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: of_anyone(self.everything),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: of_anyone(self.delete),
            RequestCode.QUERY_CORRECTION_OFFSET: of_anyone(self.correction),
            RequestCode.CLONE_GROUP_OFFSET: of_anyone(self.clone),
        }

    def put(self, request: Command) -> Command:
        """Code 200: a group shall be so; null describes none, and nothing is done.

        Raises:
            ProtocolError: the body describes no group.
            Refusal: it has no name.
        """
        told = bodies.SubscriptionGroup.decode_or_none(request.body)
        if told is None:
            return done()
        if not told.group_name:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: groupName")
        self._state.groups.put(Group(**msgspec.structs.asdict(told)), self._state.now_ms())
        return done()

    def everything(self, _: Command) -> Command:
        """Code 201: all groups."""
        groups = self._state.groups
        version = bodies.DataVersion(
            counter=groups.version.counter, timestamp=groups.version.timestamp
        )
        table = {
            group.group_name: bodies.SubscriptionGroup(**msgspec.structs.asdict(group))
            for group in groups
        }
        return done(bodies.SubscriptionGroups(subscription_group_table=table, data_version=version))

    def delete(self, request: Command) -> Command:
        """Code 207: a group shall no longer be; one that is not there is deleted, too."""
        header = parse(DeleteGroupHeader, request.fields)
        self._state.groups.remove(header.group_name, self._state.now_ms())
        if header.remove_offset:
            self._state.offsets.remove(header.group_name)
        self._state.counts.stats.forget_group(header.group_name)
        return done()

    def correction(self, request: Command) -> Command:
        """Code 308: the smallest offset of each queue among the groups of a topic.

        Java deletes the offsets of the groups that it leaves out, by mistake; here they are only
        left out. The group to compare with changes nothing, as with Java.
        """
        header = parse(CorrectionOffsetHeader, request.fields)
        without = set((header.filter_groups or "").split(","))
        smallest: dict[int, int] = {}
        for group in self._state.offsets.groups_of(header.topic):
            if group in without:
                continue
            for topic, queue_id, place in self._state.offsets.of(group):
                low, _ = self._state.store.queue_range(topic, queue_id)
                if topic == header.topic and place.offset >= max(low, 0):
                    known = smallest.get(queue_id, place.offset)
                    smallest[queue_id] = min(known, place.offset)
        return done(bodies.CorrectionOffsets(correction_offsets=smallest))

    def clone(self, request: Command) -> Command:
        """Code 314: one group shall stand where another does.

        Without a topic Java copies nothing, by mistake; here it is all that the other group reads.
        """
        header = parse(CloneOffsetHeader, request.fields)
        if not header.topic and "srcGroup" not in request.fields:
            raise missing("srcGroup")  # whose topics are they?
        state = self._state
        topics = [header.topic] if header.topic else topics_read(state, header.src_group)
        for topic in topics:
            if topic not in state.topics:
                continue
            if not header.offline and is_elsewhere(state, header.src_group, topic):
                continue
            for name, queue_id, place in list(state.offsets.of(header.src_group)):
                if name == topic:
                    state.offsets.open(header.dest_group, topic, queue_id).move_to(place.offset)
        return done()
