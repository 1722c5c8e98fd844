"""Codes 11 and 361: messages go out (2.6).

361 is the pull of 5.x's `DefaultLitePullConsumer`: the same request, answered the same way.

What a pull finds leaves as slices of the mapped log, as they are. A pull that finds nothing new and
may wait is held until a message arrives that it wants (`holding`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from coherer._record.layout import properties_of
from coherer._record.properties import decode, encode, index_keys, tag_code
from coherer._rules.common.topics import OFFSET_MOVED_TOPIC, READ
from coherer._rules.rocketmq.groups import Group
from coherer._server.rocketmq.broker.holding import Held, Holding
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.broker.subscribing import Subscriptions, Wanted
from coherer._server.rocketmq.refusal import Refusal
from coherer._server.rocketmq.remoting import Channel
from coherer._store import Draft, ReadResult, ReadStatus
from coherer._wire.rocketmq.codes import FAQ, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import PullHeader, missing, negative_count, parse
from coherer._wire.rocketmq.pulling import COMMIT, SUSPEND
from coherer.errors import DamagedStoreError

FOUND: Final = ResponseCode.SUCCESS
NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
RETRY: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED: Final = ResponseCode.PULL_OFFSET_MOVED

_NO_MESSAGE = "NO_MESSAGE_IN_QUEUE"
_SCAN_ENTRIES = 16_000
_TESTED_AT_ONCE = 256


class Pulls:
    """Answers pulls and holds those that find nothing."""

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._subscriptions = Subscriptions(state)
        self.holding = Holding(state, self._again)

    def pull(self, channel: Channel, request: Command) -> Command | None:
        """One request.

        Raises:
            Refusal: with the code and remark of the first check that fails.
        """
        self._pull(channel, request, parse(PullHeader, request.fields), may_wait=True)
        return None

    def _again(self, held: Held) -> None:
        """A message has come that a held pull wants, or its time is up."""
        channel, request = held.channel, held.request
        try:
            self._pull(channel, request, held.header, may_wait=False)
        except Exception as error:  # noqa: BLE001 - it is answered, and so are the others
            channel.fail(request, error)
        channel.connection.flush()

    def _pull(
        self, channel: Channel, request: Command, header: PullHeader, *, may_wait: bool
    ) -> None:
        group = self._check(channel, header)
        if header.sys_flag & SUSPEND and header.suspend_ms is None:
            raise missing("suspendTimeoutMillis")
        wanted = self._subscriptions.wanted(header, group)
        found = self._read(header, wanted)
        code, next_offset, remark = _outcome(header.queue_offset, found)
        if self._state.is_slave and code is MOVED:
            code, next_offset = RETRY, header.queue_offset  # it may only be behind its master
        if may_wait and header.sys_flag & COMMIT and not self._state.is_slave:
            if header.commit_offset is None:  # no number is no order to begin anew
                raise missing("commitOffset")
            self._state.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        if code is NOT_FOUND and may_wait and header.sys_flag & SUSPEND:
            self.holding.hold(Held(channel, request, header, wanted))
            return
        if code is MOVED:
            self._tell_moved(header, next_offset)
        self._state.counts.read(header.consumer_group, header.topic, header.queue_id, found.records)
        fields = {
            "suggestWhichBrokerId": str(self._suggested(group, found)),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(found.min_offset),
            "maxOffset": str(found.max_offset),
        }
        channel.respond_pieces(request, fields, found.records, code, remark)

    def _check(self, channel: Channel, header: PullHeader) -> Group:
        state, options = self._state, self._state.options
        if not options.perm & READ:
            remark = f"the broker[{options.host}] pulling message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        group = state.group(header.consumer_group)
        if group is None:
            remark = f"subscription group [{header.consumer_group}] does not exist, {FAQ}"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            remark = f"subscription group no permission, {header.consumer_group}"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        topic = state.topics.get(header.topic)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please! {FAQ}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic.perm & READ:
            remark = f"the topic[{header.topic}] pulling message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        if not 0 <= header.queue_id < topic.read_queues:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[/{channel.peer}]",
            )
        return group

    # -- the store

    def _read(self, header: PullHeader, wanted: Wanted) -> ReadResult:
        options = self._state.options
        if header.max_msg_nums < 0:
            raise negative_count(header.max_msg_nums)
        count = max(1, min(header.max_msg_nums, options.pull_count_max))
        if wanted.test is not None:
            return self._read_tested(header, wanted.test, count)
        return self._state.store.read(
            header.topic,
            header.queue_id,
            header.queue_offset,
            max_bytes=options.pull_bytes_max,
            max_count=count,
            tags=wanted.tags,
        )

    def _read_tested(
        self, header: PullHeader, test: Callable[[Mapping[str, str]], bool], count: int
    ) -> ReadResult:
        """Read on until there are enough messages that pass, or many have been looked at."""
        store, room = self._state.store, self._state.options.pull_bytes_max
        start = offset = header.queue_offset
        records: list[memoryview] = []
        offsets: list[int] = []
        while True:
            found = store.read(
                header.topic, header.queue_id, offset, max_bytes=1 << 20, max_count=_TESTED_AT_ONCE
            )
            if found.status is not ReadStatus.FOUND:
                break
            offset = found.next_offset
            for record, at in zip(found.records, found.offsets, strict=True):
                if not _passes(record, test):
                    continue
                if records and (len(record) > room or len(records) >= count):
                    offset = at
                    break
                room -= len(record)
                records.append(record)
                offsets.append(at)
            if len(records) >= count or offset < found.next_offset:
                break
            if offset - start >= _SCAN_ENTRIES or offset == found.max_offset:
                break
        if offset == start:
            return found
        status = ReadStatus.FOUND if records else ReadStatus.NO_MATCH
        backlog = found.backlog_bytes
        low, high = found.min_offset, found.max_offset
        return ReadResult(status, records, offsets, offset, low, high, backlog)

    def _suggested(self, group: Group, found: ReadResult) -> int:
        if not self._state.options.slave_reads:
            return 0
        state = self._state
        slow = found.records and not state.in_memory(state.store.end_offset - found.backlog_bytes)
        return group.which_broker_when_consume_slowly if slow else group.broker_id

    def _tell_moved(self, header: PullHeader, new: int) -> None:
        """Leave a message about an offset that had to be moved, as Java's brokers do."""
        group = header.consumer_group
        queue = {
            "brokerName": self._state.options.broker,
            "queueId": header.queue_id,
            "topic": header.topic,
        }
        event = {
            "consumerGroup": group,
            "messageQueue": queue,
            "offsetNew": new,
            "offsetRequest": header.queue_offset,
        }
        properties = {"TAGS": group, "KEYS": group}
        draft = Draft(
            OFFSET_MOVED_TOPIC,
            0,
            json.dumps(event, separators=(",", ":")).encode(),
            encode(properties),
            tag_code(group),
            born_ms=self._state.wall_ms(),
            born_host=self._state.store.store_host,
            keys=index_keys(properties),
        )
        self._state.core.appender.submit([draft], None)


def _outcome(offset: int, found: ReadResult) -> tuple[ResponseCode, int, str]:
    """Code, next offset and remark for what the store says about a request at `offset`."""
    if found.max_offset == 0:
        return (NOT_FOUND, 0, _NO_MESSAGE) if offset == 0 else (MOVED, 0, _NO_MESSAGE)
    if found.status is ReadStatus.FOUND:
        return FOUND, found.next_offset, "FOUND"
    if found.status is ReadStatus.EMPTY:
        return NOT_FOUND, offset, "OFFSET_OVERFLOW_ONE"
    if found.status is ReadStatus.BELOW:
        return MOVED, found.min_offset, "OFFSET_TOO_SMALL"
    if found.status is ReadStatus.BEYOND:
        return MOVED, found.max_offset if found.min_offset else 0, "OFFSET_OVERFLOW_BADLY"
    if found.damaged:
        return RETRY, found.next_offset, "MESSAGE_WAS_REMOVING"
    return RETRY, found.next_offset, "NO_MATCHED_MESSAGE"


def _passes(record: memoryview, test: Callable[[Mapping[str, str]], bool]) -> bool:
    try:
        return test(decode(properties_of(record)))
    except DamagedStoreError:
        return False
