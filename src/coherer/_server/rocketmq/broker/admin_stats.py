"""Statistics of a broker (docs/protocol/rocketmq.md, section 2.12).

Runtime info, counters and queue entries: codes 28, 315 and 321. Offsets and lag of topics and
groups: codes 202, 208, 303 and 317.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from coherer._common.moments import moment
from coherer._record.layout import store_ms_of
from coherer._record.system_topics import SCHEDULE_TOPIC
from coherer._rules.common.topics import Topic
from coherer._rules.rocketmq.clients import ALL, GroupSubscription
from coherer._rules.rocketmq.stats import GROUP_GET_NUMS, Sum
from coherer._server.core.counters import FOUND, GOT, MISSED, PUT, PUT_BYTES
from coherer._server.rocketmq.broker.admin_common import (
    done,
    done_default_remark,
    has_unsubscribed,
    known_topic,
    position,
    queues_of,
    stored_ms,
)
from coherer._server.rocketmq.broker.delays import DelayService
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Refusal
from coherer._store import QueueEntry
from coherer._wire.rocketmq import bodies, fastjson
from coherer._wire.rocketmq.codes import V4_9_3, ResponseCode, version_name
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    BrokerConsumeStatsHeader,
    ConsumeStatsHeader,
    ConsumeTimeSpanHeader,
    QueryConsumeQueueHeader,
    TopicHeader,
    ViewStatsHeader,
    parse,
)
from coherer._wire.rocketmq.names import AFTER, FEATURE_GROUP_STATES, FEATURES, Queue

ENTRIES_MAX: Final = 4096
"""The maximum number of queue entries in one response."""
STATES_MAX: Final = 1000
"""Queues of groups in one response: a few milliseconds of the event loop."""
_GIB: Final = 1 << 30
_NO_QUEUES: Final = (
    "sendThreadPoolQueue",
    "pullThreadPoolQueue",
    "queryThreadPoolQueue",
)
_TIMES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_UNLIMITED: Final = "2147483647"


class StatsAdmin:
    """Runtime info, counters and queue entries.

    Args:
        delays: for the offsets of delayed messages.
    """

    def __init__(self, state: RocketState, delays: DelayService) -> None:
        self._state = state
        self._delays = delays

    def counter(self, request: Command) -> Command:
        """VIEW_BROKER_STATS_DATA (315): one counter.

        Raises:
            Refusal: there is no counter of that name and key.
        """
        header = parse(ViewStatsHeader, request.fields)
        found = self._state.counters.stats.view(header.stats_name, header.stats_key)
        if found is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        minute, hour, day = map(_item, found)
        return done(bodies.BrokerStats(stats_minute=minute, stats_hour=hour, stats_day=day))

    def queue_entries(self, request: Command) -> Command:
        """QUERY_CONSUME_QUEUE (321): entries of a queue, and whether they pass a group's filter.

        Raises:
            Refusal: there is no such queue.
        """
        header = parse(QueryConsumeQueueHeader, request.fields)
        topic, queue_id, store = header.topic, header.queue_id, self._state.store
        if queue_id not in store.queues(topic):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        low, high = store.queue_range(topic, queue_id)
        if not low <= header.index < high:
            answer = done()
            answer.remark = f"Index {header.index} of {queue_id}@{topic} is not exist!"
            return answer
        count = max(0, min(header.count, ENTRIES_MAX))
        found = store.entries(topic, queue_id, header.index, count)
        wanted, filter_text = self._filter(header)
        return done_default_remark(
            bodies.ConsumeQueuePage(
                subscription_data=_subscription(wanted),
                filter_data=filter_text,
                queue_data=[_entry(entry, wanted) for entry in found],
                max_queue_index=high,
                min_queue_index=low,
            )
        )

    def _filter(
        self, header: QueryConsumeQueueHeader
    ) -> tuple[GroupSubscription | None, str | None]:
        group = header.consumer_group
        if not group:
            return None, None
        wanted = self._state.consumers.subscription(group, header.topic)
        if wanted is None:
            return None, f"{group}@{header.topic} is not online!"
        data = self._state.filters.get(header.topic, group)
        if data is None:
            return wanted, "null"
        shown = {"expression": data.expression, "expressionType": data.type, "topic": data.topic}
        return wanted, fastjson.dumps(shown).decode()

    # -- runtime info

    def runtime_info(self, _: Command) -> Command:
        """GET_BROKER_RUNTIME_INFO (28): the broker's state, all as text."""
        return done(
            bodies.KVTable(
                {**self._identity(), **self._traffic(), **self._queues(), **self._disk()}
            )
        )

    def _identity(self) -> dict[str, str]:
        state = self._state
        up_s = (state.now_ms() - state.counters.started_ms) // 1000
        minutes, seconds = divmod(up_s, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        return {
            "bootTimestamp": str(state.wall_ms() - state.now_ms() + state.counters.started_ms),
            "brokerVersion": str(V4_9_3),
            "brokerVersionDesc": version_name(V4_9_3),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
            "startAcceptSendRequestTimeStamp": str(state.options.accept_sends_from_ms),
        }

    def _traffic(self) -> dict[str, str]:
        counters = self._state.counters
        totals = counters.totals
        numbers = totals.numbers
        put_yesterday, put_today = totals.mornings(PUT)
        got_yesterday, got_today = totals.mornings(GOT)
        found, missed = totals.rates(FOUND), totals.rates(MISSED)
        both = tuple(one + other for one, other in zip(found, missed, strict=True))
        return {
            "putTps": _rates(totals.rates(PUT)),
            "getFoundTps": _rates(found),
            "getMissTps": _rates(missed),
            "getTotalTps": _rates(both),
            "getTransferedTps": _rates(totals.rates(GOT)),
            "msgPutTotalYesterdayMorning": str(put_yesterday),
            "msgPutTotalTodayMorning": str(put_today),
            "msgPutTotalTodayNow": str(numbers[PUT]),
            "msgGetTotalYesterdayMorning": str(got_yesterday),
            "msgGetTotalTodayMorning": str(got_today),
            "msgGetTotalTodayNow": str(numbers[GOT]),
            "putMessageTimesTotal": str(numbers[PUT]),
            "putMessageSizeTotal": str(numbers[PUT_BYTES]),
            "putMessageAverageSize": str(numbers[PUT_BYTES] / max(1, numbers[PUT])),
            "putMessageFailedTimes": "0",
            "putMessageDistributeTime": _times(counters.puts.counts),
            "putMessageEntireTimeMax": str(counters.put_ms_max),
            "getMessageEntireTimeMax": str(counters.get_ms_max),
        }

    def _queues(self) -> dict[str, str]:
        """Java's thread pool queues, which do not exist here, and delayed messages."""
        shown = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "0"}
        for name in _NO_QUEUES:
            shown |= {f"{name}Size": "0", f"{name}Capacity": "0", f"{name}HeadWaitTimeMills": "0"}
        store = self._state.store
        invisible = store.written_offset - store.end_offset
        shown |= {"pageCacheLockTimeMills": "0", "dispatchBehindBytes": str(invisible)}
        shown |= {"dispatchMaxBuffer": "0", "remainTransientStoreBufferNumbs": _UNLIMITED}
        for level in range(1, len(self._state.store.options.delay_levels_ms) + 1):
            _, high = self._state.store.queue_range(SCHEDULE_TOPIC, level - 1)
            shown[f"scheduleMessageOffset_{level}"] = f"{self._delays.positions[level]},{high}"
        return shown

    def _disk(self) -> dict[str, str]:
        store = self._state.store
        usage = shutil.disk_usage(store.directory)
        # Not `used`: what the system keeps for root or beyond a quota is not free for the broker.
        ratio = str(1 - usage.free / max(1, usage.total))
        first = store.record_at(store.min_offset)
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.directory / 'commitlog'}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {usage.total / _GIB:.2f} GiB, "
            f"Free : {usage.free / _GIB:.2f} GiB.",
            "commitLogMinOffset": str(store.min_offset),
            "commitLogMaxOffset": str(store.written_offset),
            "earliestMessageTimeStamp": str(-1 if first is None else store_ms_of(first)),
            "remainHowManyDataToFlush": f"{store.written_offset - store.durable_offset} B",
        }


def _times(counts: Sequence[int]) -> str:
    """Format the counts of `PUT_MS` as Java's broker does; RocketMQ's exporter parses them."""
    return "".join(f"{name}:{count} " for name, count in zip(_TIMES, counts, strict=True))


def _rates(rates: tuple[float, ...]) -> str:
    return " ".join(map(str, rates))


def _item(found: Sum) -> bodies.StatsItem:
    return bodies.StatsItem(sum=found.sum, tps=found.per_s, avgpt=found.per_time)


def _entry(entry: QueueEntry, wanted: GroupSubscription | None) -> bodies.ConsumeQueueEntry:
    passes = wanted is not None and (wanted.expression == ALL or entry.code in wanted.codes)
    return bodies.ConsumeQueueEntry(
        physic_offset=entry.physical_offset,
        physic_size=entry.size_bytes,
        tags_code=entry.code,
        eval=passes,
    )


def _subscription(wanted: GroupSubscription | None) -> bodies.SubscriptionData | None:
    if wanted is None:
        return None
    return bodies.SubscriptionData(
        topic=wanted.topic,
        sub_string=wanted.expression,
        tags_set=list(wanted.tags),
        code_set=sorted(wanted.codes),
        sub_version=wanted.version,
        expression_type=wanted.type,
    )


class ProgressAdmin:
    """Offsets and lag of queues and groups."""

    def __init__(self, state: RocketState) -> None:
        self._state = state
        self._listing = asyncio.Lock()  # one list at a time, so that others have their turns

    def topic(self, request: Command) -> Command:
        """GET_TOPIC_STATS_INFO (202): the queues of a topic.

        Raises:
            Refusal: with 17 if there is no such topic.
        """
        topic = known_topic(self._state, parse(TopicHeader, request.fields).topic)
        table = {
            queue: bodies.TopicOffset(
                min_offset=low,
                max_offset=high,
                last_update_timestamp=max(0, stored_ms(self._state, queue, high - 1)),
            )
            for queue, low, high in queues_of(self._state, topic, topic.write_queues)
        }
        return done(bodies.TopicStats(offset_table=table))

    def group(self, request: Command) -> Command:
        """GET_CONSUME_STATS (208): the lag of a group, without topics that it no longer reads."""
        header = parse(ConsumeStatsHeader, request.fields)
        group = header.consumer_group
        names = [header.topic] if header.topic else self._state.offsets.topics_of(group)
        table: dict[Queue, bodies.OffsetWrapper] = {}
        per_s = 0.0
        for topic in self._read_by(group, names):
            found = self._of_topic(group, topic)
            table.update(found.offset_table)
            per_s += found.consume_tps
        return done(bodies.ConsumeStats(offset_table=table, consume_tps=per_s))

    async def all_groups(self, request: Command) -> Command:
        """GET_BROKER_CONSUME_STATS (317): the lag of all groups, or in ordered topics only."""
        if FEATURE_GROUP_STATES in request.fields.get(FEATURES, "").split(","):
            return done(self._states(request.fields.get(AFTER, "")))
        header = parse(BrokerConsumeStatsHeader, request.fields)
        async with self._listing:
            return await self._all_groups(ordered_only=header.is_order)

    async def _all_groups(self, *, ordered_only: bool) -> Command:
        listed: list[bytes] = []
        behind = 0
        for group in self._state.groups:
            found = self._of_group(group.group_name, ordered_only)
            listed.append(fastjson.dumps({group.group_name: found}))
            behind += sum(
                offsets.broker_offset - offsets.consumer_offset
                for stats in found
                for offsets in stats.offset_table.values()
            )
            await asyncio.sleep(0)  # 100,000 positions take seconds
        around = bodies.BrokerConsumeStats(
            broker_addr=self._state.options.address, total_diff=behind
        ).encode()
        name = b'"consumeStatsList":['
        begin, _, end = around.partition(name)
        return Command(ResponseCode.SUCCESS, body=b"".join([begin, name, b",".join(listed), end]))

    def time_span(self, request: Command) -> Command:
        """QUERY_CONSUME_TIME_SPAN (303): the times of the messages that a group has still to read.

        Raises:
            Refusal: with 17 if there is no such topic.
        """
        header = parse(ConsumeTimeSpanHeader, request.fields)
        topic = known_topic(self._state, header.topic)
        spans = [
            self._span(header.group, queue, low, high)
            for queue, low, high in queues_of(self._state, topic, topic.write_queues)
        ]
        return done(bodies.ConsumeTimeSpan(consume_time_span_set=spans))

    # -- inside

    def _of_group(self, group: str, ordered_only: bool) -> list[bodies.ConsumeStats]:
        topics = self._read_by(group, self._state.offsets.topics_of(group))
        return [self._of_topic(group, one) for one in topics if one.order or not ordered_only]

    def _read_by(self, group: str, names: Iterable[str]) -> Iterator[Topic]:
        """Those of these topics that exist, and that the group has not unsubscribed."""
        for name in names:
            topic = self._state.topics.get(name)
            if topic is not None and not has_unsubscribed(self._state, group, name):
                yield topic

    def _states(self, after: str) -> bodies.GroupStates:
        """How far the groups after this one are, up to `STATES_MAX` queues."""
        state, rows, last = self._state, 0, ""
        found: dict[str, dict[str, list[tuple[int, int, int, int, int]]]] = {}
        for name in sorted(one.group_name for one in state.groups if one.group_name > after):
            if rows >= STATES_MAX:
                last = max(found)
                break
            topics = self._read_by(name, state.offsets.topics_of(name))
            found[name] = {topic.name: self._rows(name, topic) for topic in topics}
            rows += sum(map(len, found[name].values()))
        online = [name for name in found if state.consumers.get(name) is not None]
        return bodies.GroupStates(groups=found, online=online, last=last)

    def _rows(self, group: str, topic: Topic) -> list[tuple[int, int, int, int, int]]:
        rows: list[tuple[int, int, int, int, int]] = []
        for queue, low, high in queues_of(self._state, topic, topic.read_queues):
            offset = max(0, position(self._state, group, queue))
            read_ms = max(0, stored_ms(self._state, queue, offset - 1))
            rows.append((queue.id, low, high, offset, read_ms))
        return rows

    def _of_topic(self, group: str, topic: Topic) -> bodies.ConsumeStats:
        state = self._state
        table: dict[Queue, bodies.OffsetWrapper] = {}
        for queue, _, high in queues_of(state, topic, topic.read_queues):
            offset = max(0, position(state, group, queue))
            table[queue] = bodies.OffsetWrapper(
                broker_offset=high,
                consumer_offset=offset,
                last_timestamp=max(0, stored_ms(state, queue, offset - 1)),
            )
        rate = state.counters.stats.per_s(GROUP_GET_NUMS, f"{topic.name}@{group}")
        return bodies.ConsumeStats(offset_table=table, consume_tps=rate)

    def _span(self, group: str, queue: Queue, low: int, high: int) -> bodies.QueueTimeSpan:
        state = self._state
        offset = position(state, group, queue)
        first_ms, last_ms = stored_ms(state, queue, low), stored_ms(state, queue, high - 1)
        at_ms = stored_ms(state, queue, offset - 1) if offset > 0 else first_ms
        following = max(offset, low)
        stored = stored_ms(state, queue, following) if following < high else state.wall_ms()
        delay_ms = max(state.wall_ms() - stored, 0)  # the clock may have been set back
        return bodies.QueueTimeSpan(
            message_queue=queue,
            min_time_stamp=first_ms,
            max_time_stamp=last_ms,
            consume_time_stamp=at_ms,
            delay_time=delay_ms,
            min_time_stamp_str=_text(first_ms),
            max_time_stamp_str=_text(last_ms),
            consume_time_stamp_str=_text(at_ms),
        )


def _text(time_ms: int) -> str:
    """Format a time like Java's tools, in the broker's time zone."""
    at = moment(time_ms).astimezone()
    return f"{at:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"
