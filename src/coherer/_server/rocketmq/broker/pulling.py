"""Pulls: `PULL_MESSAGE` (11) and `LITE_PULL_MESSAGE` (361), their filters, and long polling.

See docs/protocol/rocketmq.md, section 2.6. 361 comes from `DefaultLitePullConsumer` of RocketMQ 5;
request and response are the same.

Messages are sent as slices of the mapped log; adjacent messages are one slice. A pull that finds no
message and may wait is suspended (`LongPolling`) until a message arrives that passes its filter.
Java also searches all suspended pulls every five seconds; here each stored message, of either
protocol, resumes the pulls that it matches, and `expire` answers those that have timed out.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from coherer import limits
from coherer._common import machine
from coherer._common.deadlines import Deadlines, drop
from coherer._record.layout import (
    BLANK,
    BLANK_BYTES,
    FIXED_BYTES,
    MAGIC,
    ROLLED_BACK,
    properties_of,
)
from coherer._record.offset_ranges import to_runs
from coherer._record.properties import RETRY_TOPIC, TAGS, decode, encode, index_keys, tag_code
from coherer._record.system_topics import OFFSET_MOVED_TOPIC, RETRY_PREFIX
from coherer._rules.common.origins import Origin
from coherer._rules.common.topics import READ
from coherer._rules.rocketmq.clients import ALL, BROADCASTING, TAG, GroupSubscription
from coherer._rules.rocketmq.groups import Group
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._store import AppendResult, Draft, DraftBatch, ReadResult, ReadStatus
from coherer._wire.rocketmq.codes import FAQ, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import PullHeader, missing, negative_count, parse
from coherer._wire.rocketmq.pulling import COMMIT, SUBSCRIPTION, SUSPEND
from coherer._wire.rocketmq.subscription import Subscription
from coherer.errors import DamagedStoreError, UsageError

FOUND: Final = ResponseCode.SUCCESS
NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
RETRY: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED: Final = ResponseCode.PULL_OFFSET_MOVED

_NO_MESSAGE = "NO_MESSAGE_IN_QUEUE"
_SCAN_ENTRIES = 16_000
_TESTED_AT_ONCE = 256


class PullHandler:
    """Answers pulls, and suspends those that find no message."""

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._subscriptions = PullFilters(state)
        self.suspended = LongPolling(state, self._resume)

    def pull(self, channel: Channel, request: Command) -> Command | None:
        """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361).

        Raises:
            Refusal: with the code and remark of the first check that fails.
        """
        self._pull(channel, request, parse(PullHeader, request.fields), may_wait=True)
        return None

    def _resume(self, pull: SuspendedPull) -> None:
        """Answer a suspended pull: a matching message has arrived, or the pull has timed out."""
        channel, request = pull.channel, pull.request
        try:
            self._pull(channel, request, pull.header, may_wait=False)
        except Exception as error:  # noqa: BLE001 - the other pulls must be answered, too
            channel.fail(request, error)
        channel.connection.flush()

    def _pull(
        self, channel: Channel, request: Command, header: PullHeader, *, may_wait: bool
    ) -> None:
        group = self._check(channel, header, has_waited=not may_wait)
        if header.sys_flag & SUSPEND and header.suspend_ms is None:
            raise missing("suspendTimeoutMillis")
        wanted = self._subscriptions.wanted(header, group)
        begun_ns = time.perf_counter_ns()
        found = self._read(header, wanted)
        took_ms = (time.perf_counter_ns() - begun_ns) // 1_000_000
        self._state.counters.get_ms_max = max(self._state.counters.get_ms_max, took_ms)
        code, next_offset, remark = _outcome(header.queue_offset, found)
        if self._state.is_slave and code is MOVED:
            code, next_offset = RETRY, header.queue_offset  # the slave may just be behind
        if may_wait and header.sys_flag & COMMIT and not self._state.is_slave:
            if header.commit_offset is None:  # must not reset the group's offset
                raise missing("commitOffset")
            self._state.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset
            )
        if code is NOT_FOUND and may_wait and header.sys_flag & SUSPEND:
            self.suspended.add(SuspendedPull(channel, request, header, wanted))
            return
        if code is MOVED:
            self._store_moved_event(header, next_offset)
        self._state.counters.read(
            header.consumer_group,
            header.topic,
            header.queue_id,
            len(found.offsets) or (found.next_offset - header.queue_offset if found.records else 0),
            sum(map(len, found.records)),
            next_offset,
        )
        fields = {
            "suggestWhichBrokerId": str(self._suggested(group, found)),
            "nextBeginOffset": str(next_offset),
            "minOffset": str(found.min_offset),
            "maxOffset": str(found.max_offset),
            **self._state.slave_fields,
        }
        if (
            wanted.tags is None
            and wanted.test is None
            and (gaps := found.gaps(header.queue_offset))
        ):
            fields["gaps"] = ",".join(map(str, to_runs(gaps)))
        channel.respond_pieces(request, fields, found.records, code, remark)

    def _check(self, channel: Channel, header: PullHeader, *, has_waited: bool) -> Group:
        state, options = self._state, self._state.options
        state.check_no_rival()
        if not options.perm & READ:
            remark = f"the broker[{options.host}] pulling message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        # A group that was deleted in the meantime stays deleted.
        group = (state.groups.get if has_waited else state.group)(header.consumer_group)
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

    def _read(self, header: PullHeader, wanted: PullFilter) -> ReadResult:
        options = self._state.options
        if header.max_msg_nums < 0:
            raise negative_count(header.max_msg_nums)
        count = max(1, min(header.max_msg_nums, options.pull_count_max))
        if wanted.test is not None:
            return self._read_tested(header, wanted.test, count, wanted.tests_max)
        store, place = self._state.store, (header.topic, header.queue_id, header.queue_offset)
        budget = options.pull_bytes_max
        if wanted.tags is None:
            found = store.read_slices(*place, max_bytes=budget, max_count=count)
            if found is not None and (
                found.heads_match or _whole(found, found.next_offset - header.queue_offset)
            ):
                return found
        return store.read(*place, max_bytes=budget, max_count=count, tags=wanted.tags)

    def _read_tested(
        self,
        header: PullHeader,
        test: Callable[[Mapping[str, str]], bool],
        count: int,
        tests_max: int,
    ) -> ReadResult:
        """Read until enough messages pass the test, or many have been tested."""
        store, budget = self._state.store, self._state.options.pull_bytes_max
        start = offset = header.queue_offset
        records: list[memoryview] = []
        offsets: list[int] = []
        while True:
            left = min(start + tests_max - offset, _TESTED_AT_ONCE)
            found = store.read(
                header.topic, header.queue_id, offset, max_bytes=1 << 20, max_count=left
            )
            if found.status is not ReadStatus.FOUND:
                break
            offset = found.next_offset
            for record, at in zip(found.records, found.offsets, strict=True):
                if not _passes(record, test):
                    continue
                if records and (len(record) > budget or len(records) >= count):
                    offset = at
                    break
                budget -= len(record)
                records.append(record)
                offsets.append(at)
            if len(records) >= count or offset < found.next_offset:
                break
            if offset - start >= tests_max or offset == found.max_offset:
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

    def _store_moved_event(self, header: PullHeader, new: int) -> None:
        """Store a message about an offset that had to be moved, as Java's brokers do."""
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
        self._state.core.appender.submit([], None, origin=Origin.PULLS, own=[draft])


def _outcome(offset: int, found: ReadResult) -> tuple[ResponseCode, int, str]:
    """Code, next offset and remark for the store's result of reading at `offset`."""
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


def _whole(found: ReadResult, count: int) -> bool:
    """Whether slices of the log contain exactly `count` consecutive records."""
    unpack = BLANK.unpack_from
    for piece in found.records:
        position, end = 0, len(piece)
        while position < end - BLANK_BYTES:
            size, magic = unpack(piece, position)
            if magic != MAGIC or size < FIXED_BYTES:
                return False
            position += size
            count -= 1
        if position != end:
            return False
    return count == 0


def _passes(record: memoryview, test: Callable[[Mapping[str, str]], bool]) -> bool:
    try:
        return test(decode(properties_of(record)))
    except DamagedStoreError:
        return False


_CACHED_MAX = 1024
_BYTES_PER_CHAR_OF_TAGS, _BYTES_PER_CHAR_OF_SQL = 10, 200


class PullFilter(msgspec.Struct, frozen=True):
    """The messages that a pull wants.

    Args:
        tags: tag codes; None for all.
        test: a test of a message's properties; None for all.
        chars: the length of the expression that it evaluates.
    """

    tags: frozenset[int] | None = None
    test: Callable[[Mapping[str, str]], bool] | None = None
    chars: int = 0

    @property
    def tests_max(self) -> int:
        """How many messages a pull may test."""
        most = limits.SELECTOR_TESTS_CHARS // max(self.chars, 1)
        return min(max(most, limits.SELECTOR_TESTS_MIN), _SCAN_ENTRIES)


EVERYTHING = PullFilter()


class PullFilters:
    """Finds the filter of a pull, in the pull itself or in the heartbeats of its group."""

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._filters = state.filters
        self._cached: dict[tuple[str, str | None, str | None], PullFilter] = {}
        self._cached_chars = 0

    def wanted(self, header: PullHeader, group: Group) -> PullFilter:
        """The filter of a pull.

        Raises:
            Refusal: the filter is unknown or outdated (section 2.6).
        """
        if header.sys_flag & SUBSCRIPTION:
            wanted = self._in_request(header)
        else:
            wanted = self._of_group(header, group)
        if self._state.options.filter_retries and header.topic.startswith(RETRY_PREFIX):
            return self._of_original_topic(header.topic, wanted)
        return wanted

    def _in_request(self, header: PullHeader) -> PullFilter:
        key = header.topic, header.subscription, header.expression_type
        wanted = self._cached.get(key)
        if wanted is None:
            wanted = self._build(header)
            self._keep(key, wanted)
        elif not self._is_tags(header.expression_type):
            self._check_allowed(header.expression_type)
        return wanted

    def _keep(self, key: tuple[str, str | None, str | None], wanted: PullFilter) -> None:
        chars = sum(len(text or "") for text in key)
        if chars > limits.PULL_FILTERS_CHARS_CACHED:
            return
        too_long = self._cached_chars + chars > limits.PULL_FILTERS_CHARS_CACHED
        if too_long or len(self._cached) >= _CACHED_MAX:
            self._cached.clear()
            self._cached_chars = 0
        self._cached[key] = wanted
        self._cached_chars += chars

    def _build(self, header: PullHeader) -> PullFilter:
        kind = header.expression_type
        try:
            subscription = Subscription.parse(header.topic, header.subscription, kind or TAG)
        except UsageError:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from None
        if self._is_tags(kind):
            return _by_tags(subscription.text, frozenset(subscription.codes))
        self._check_allowed(kind)
        subscribed = GroupSubscription(
            topic=header.topic, expression=subscription.text, type=subscription.kind
        )
        # As in Java, all messages pass if the expression is invalid.
        built = self._filters.build(header.consumer_group, subscribed, self._state.now_ms())
        if built is None:
            return EVERYTHING
        return PullFilter(test=built.matches, chars=len(built.expression))

    def _of_group(self, header: PullHeader, group: Group) -> PullFilter:
        consumers = self._state.consumers.get(header.consumer_group)
        if consumers is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
            )
        broadcasting = consumers.settings.message_model == BROADCASTING
        if broadcasting and not group.consume_broadcast_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
            )
        subscription = consumers.subscriptions.get(header.topic)
        if subscription is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}"
            )
        if subscription.version < header.sub_version:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if subscription.class_filter:  # obsolete; a filter server would apply it (section 2.6)
            return EVERYTHING
        if self._is_tags(subscription.type):
            return _by_tags(subscription.expression, subscription.codes)
        return self._of_filter(header, subscription)

    def _of_filter(self, header: PullHeader, subscription: GroupSubscription) -> PullFilter:
        found = self._filters.get(header.topic, header.consumer_group)
        if found is None:
            raise Refusal(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                "The broker's consumer filter data is not exist!Your expression may be wrong!",
            )
        if found.version < header.sub_version:
            raise Refusal(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                "the consumer's consumer filter data not latest",
            )
        self._check_allowed(subscription.type)
        return PullFilter(test=found.matches, chars=len(found.expression))

    def _of_original_topic(self, topic: str, wanted: PullFilter) -> PullFilter:
        """Apply the filter of the original topic to redelivered messages."""
        group, tags = topic.removeprefix(RETRY_PREFIX), wanted.tags
        chars = self._filters.longest(group)

        def test(properties: Mapping[str, str]) -> bool:
            if tags is not None and tag_code(properties.get(TAGS)) not in tags:
                return False
            first = self._filters.get(properties.get(RETRY_TOPIC, ""), group)
            return first is None or first.matches(properties)

        return PullFilter(test=test, chars=chars)

    def _check_allowed(self, kind: str | None) -> None:
        if not self._state.options.property_filter:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}",
            )

    def _is_tags(self, kind: str | None) -> bool:
        return not kind or kind == TAG


def _by_tags(text: str, codes: frozenset[int]) -> PullFilter:
    return EVERYTHING if text == ALL else PullFilter(codes)


OVERLOAD: Final = "[OVERLOAD]system busy, start flow control for a while"
_FOR_EVER_MS: Final = 1 << 63


class SuspendedPull:
    """A pull that waits for messages until `deadline_ms`.

    Attributes:
        bytes: the size of its request.
        filter_bytes: the size of the filter in its request, about.
    """

    __slots__ = (
        "bytes",
        "channel",
        "deadline_ms",
        "filter_bytes",
        "header",
        "request",
        "wanted",
    )

    def __init__(
        self, channel: Channel, request: Command, header: PullHeader, wanted: PullFilter
    ) -> None:
        self.channel = channel
        self.request = request
        self.header = header
        self.wanted = wanted
        self.deadline_ms = 0
        request.body = bytes(request.body)  # not the whole socket read
        texts = (*request.fields, *request.fields.values(), request.remark or "")
        self.bytes = sum(map(len, texts)) + len(request.body)
        self.filter_bytes = 0
        if header.sys_flag & SUBSCRIPTION and wanted is not EVERYTHING:  # which has no size
            per_char = _BYTES_PER_CHAR_OF_TAGS if wanted.test is None else _BYTES_PER_CHAR_OF_SQL
            self.filter_bytes = per_char * len(header.subscription or "")

    @property
    def queue(self) -> tuple[str, int]:
        return self.header.topic, self.header.queue_id

    def wants(self, draft: Draft) -> bool:
        """Whether a new message passes its filter."""
        if self.wanted.test is not None:
            return self.wanted.test(decode(draft.properties))
        return self.wanted.tags is None or draft.tag_code in self.wanted.tags


class LongPolling:
    """The suspended pulls, by queue.

    Args:
        resume: answers a pull.
    """

    def __init__(self, state: RocketState, resume: Callable[[SuspendedPull], None]) -> None:
        self._state = state
        self._resume = resume
        self._suspended: dict[tuple[str, int], dict[SuspendedPull, None]] = {}
        self._by_channel: dict[Channel, dict[SuspendedPull, None]] = {}
        self._deadlines = Deadlines[SuspendedPull]()
        self._ended: deque[SuspendedPull] = deque()  # resumed, but not answered yet
        self._count = self._bytes = 0
        self._holders: dict[int, int] = {}  # by the identity of a filter: how many pulls have it
        state.core.on_arrival(self.arrived)

    def __len__(self) -> int:
        return self._count

    @property
    def ending(self) -> int:
        """The number of resumed pulls that have not been answered yet."""
        return len(self._ended)

    def add(self, pull: SuspendedPull) -> None:
        """Suspend a pull for the time in its request, or for the broker's own limit.

        Raises:
            Refusal: too many pulls are suspended; Java refuses like this when a request queue is
            full (section 1.4).
        """
        if self._count >= limits.WAITING_PULLS_MAX or not self._hold(pull):
            raise Refusal(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        options, header = self._state.options, pull.header
        wait_ms = (header.suspend_ms or 0) if options.long_polling else options.short_polling_ms
        pull.deadline_ms = self._state.now_ms() + wait_ms
        self._suspended.setdefault(pull.queue, {})[pull] = None
        self._by_channel.setdefault(pull.channel, {})[pull] = None
        self._deadlines.add(pull, pull.deadline_ms)
        self._count += 1

    def _hold(self, pull: SuspendedPull) -> bool:
        """Count the memory of a pull; returns False if there is not enough."""
        holders = self._holders.get(id(pull.wanted), 0)
        size = pull.bytes + (0 if holders else pull.filter_bytes)
        if self._bytes + size > limits.WAITING_PULLS_BYTES_MAX:
            return False
        self._bytes += size
        self._holders[id(pull.wanted)] = holders + 1
        return True

    def _release(self, pull: SuspendedPull) -> None:
        holders = self._holders.pop(id(pull.wanted)) - 1
        self._bytes -= pull.bytes + (0 if holders else pull.filter_bytes)
        if holders:
            self._holders[id(pull.wanted)] = holders

    def arrived(
        self,
        drafts: Sequence[Draft | DraftBatch],
        appended: Sequence[AppendResult],  # noqa: ARG002
    ) -> None:
        """Resume the pulls that want one of these messages."""
        if not self._suspended:
            return
        woken: dict[tuple[str, int], list[Draft]] = {}
        for draft in drafts:
            key = draft.topic, draft.queue_id
            if key in self._suspended and draft.sys_flag & ROLLED_BACK in (0, 8):
                each = draft.to_drafts() if isinstance(draft, DraftBatch) else (draft,)
                woken.setdefault(key, []).extend(each)
        left = limits.SELECTOR_TESTS_CHARS
        for key, new in woken.items():
            ended: list[SuspendedPull] = []
            for one in self._suspended[key]:
                # Without room for a test it is woken: it reads the messages again.
                if left <= 0 or any(map(one.wants, new)):
                    ended.append(one)
                left -= one.wanted.chars * len(new)
            self._end(ended)

    def refuse(self, refusal: Callable[[Channel, Command], Command | None]) -> None:
        """Answer the pulls that may not be answered with messages any more.

        Args:
            refusal: returns the answer to a pull that is refused; None for others.
        """
        for one in [*self._ended, *(one for pulls in self._suspended.values() for one in pulls)]:
            answer = None if one.channel.closed else refusal(one.channel, one.request)
            if answer is None:
                continue
            if one in self._suspended.get(one.queue, ()):
                self._forget(one)
            else:
                self._ended.remove(one)
            one.channel.respond(one.request, answer.code, answer.remark)
            one.channel.connection.flush()

    def expire(self, now_ms: int) -> None:
        """Answer the pulls that have timed out."""
        self._end(self._deadlines.due(now_ms))

    def closed(self, channel: Channel) -> None:
        """Drop the pulls of a connection that has ended."""
        for one in [*self._by_channel.get(channel, ())]:
            self._forget(one)

    def close(self) -> None:
        """Answer all pulls, before the connections are closed."""
        self.expire(_FOR_EVER_MS)
        self._answer(len(self._ended), turn_ms=_FOR_EVER_MS)

    def _end(self, ended: Sequence[SuspendedPull]) -> None:
        for one in ended:
            self._forget(one)
        under_way = bool(self._ended)
        self._ended += ended
        if not under_way:
            self._answer_some()

    def _answer_some(self) -> None:
        """Answer some resumed pulls, then let other connections run."""
        self._answer(limits.WAITING_PULLS_PER_TURN)
        if self._ended:
            asyncio.get_running_loop().call_soon(self._answer_some)

    def _answer(self, count_max: int, turn_ms: int = limits.TURN_MS) -> None:
        until_ns = machine.ticks_ns() + turn_ms * 1_000_000
        for number in range(min(len(self._ended), count_max)):
            if number and machine.ticks_ns() > until_ns:
                return
            one = self._ended.popleft()
            if not one.channel.closed:
                self._resume(one)

    def _forget(self, one: SuspendedPull) -> None:
        self._count -= 1
        self._release(one)
        drop(self._suspended, one.queue, one)
        drop(self._by_channel, one.channel, one)
        self._deadlines.remove(one, one.deadline_ms)
