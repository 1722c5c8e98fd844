"""Codes 28, 315 and 321: the broker's figures, one counter, and entries of a queue (2.12)."""

from __future__ import annotations

import shutil
from typing import Final

from coherer._record.layout import store_ms_of
from coherer._rules.rocketmq.clients import ALL, Subscription
from coherer._rules.rocketmq.delays import SCHEDULE_TOPIC
from coherer._rules.rocketmq.stats import Sum
from coherer._server.rocketmq.broker.admin.common import done, done_unsaid
from coherer._server.rocketmq.broker.counting import FOUND, GOT, MISSED, PUT, PUT_BYTES
from coherer._server.rocketmq.broker.delays import DelayService
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.refusal import Refusal
from coherer._server.rocketmq.remoting import Handler, of_anyone
from coherer._store import QueueEntry
from coherer._wire.rocketmq import bodies, fastjson
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import QueryConsumeQueueHeader, ViewStatsHeader, parse
from coherer._wire.rocketmq.versions import V4_9_3, version_name

ENTRIES_MAX: Final = 4096
"""Entries of a queue that one answer shows."""
_GIB: Final = 1 << 30
_NO_QUEUES: Final = (
    "sendThreadPoolQueue",
    "pullThreadPoolQueue",
    "queryThreadPoolQueue",
)
_UNLIMITED: Final = "2147483647"


class FigureDesk:
    """Shows numbers.

    Args:
        state: what the broker's parts share.
        delays: knows how far delayed messages are.
    """

    def __init__(self, state: RocketState, delays: DelayService) -> None:
        self._state = state
        self._delays = delays

    def handlers(self) -> dict[int, Handler]:
        """What is answered here, by request code."""
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: of_anyone(self.runtime),
            RequestCode.VIEW_BROKER_STATS_DATA: of_anyone(self.counter),
            RequestCode.QUERY_CONSUME_QUEUE: of_anyone(self.entries),
        }

    def counter(self, request: Command) -> Command:
        """Code 315: one counter.

        Raises:
            Refusal: nothing was ever counted under that name and key.
        """
        header = parse(ViewStatsHeader, request.fields)
        found = self._state.counts.stats.view(header.stats_name, header.stats_key)
        if found is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        minute, hour, day = map(_item, found)
        return done(bodies.BrokerStats(stats_minute=minute, stats_hour=hour, stats_day=day))

    def entries(self, request: Command) -> Command:
        """Code 321: entries of a queue, and which of them a group's filter lets through.

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
        return done_unsaid(
            bodies.ConsumeQueuePage(
                subscription_data=_subscription(wanted),
                filter_data=filter_text,
                queue_data=[_entry(entry, wanted) for entry in found],
                max_queue_index=high,
                min_queue_index=low,
            )
        )

    def _filter(self, header: QueryConsumeQueueHeader) -> tuple[Subscription | None, str | None]:
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

    # -- 28

    def runtime(self, _: Command) -> Command:
        """Code 28: what the broker is and does, all as text."""
        return done(
            bodies.KVTable(
                {**self._identity(), **self._traffic(), **self._queues(), **self._disk()}
            )
        )

    def _identity(self) -> dict[str, str]:
        state = self._state
        up_s = (state.now_ms() - state.counts.started_ms) // 1000
        minutes, seconds = divmod(up_s, 60)
        hours, minutes = divmod(minutes, 60)
        days, hours = divmod(hours, 24)
        return {
            "bootTimestamp": str(state.counts.started_ms),
            "brokerVersion": str(V4_9_3),
            "brokerVersionDesc": version_name(V4_9_3),
            "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]",
            "startAcceptSendRequestTimeStamp": str(state.options.accept_sends_from_ms),
        }

    def _traffic(self) -> dict[str, str]:
        totals = self._state.counts.totals
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
        }

    def _queues(self) -> dict[str, str]:
        """Java's broker has threads with queues before them; here nothing waits."""
        shown = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "0"}
        for name in _NO_QUEUES:
            shown |= {f"{name}Size": "0", f"{name}Capacity": "0", f"{name}HeadWaitTimeMills": "0"}
        shown |= {"pageCacheLockTimeMills": "0", "dispatchBehindBytes": "0"}
        shown |= {"dispatchMaxBuffer": "0", "remainTransientStoreBufferNumbs": _UNLIMITED}
        for level in range(1, len(self._state.store.options.delay_levels_ms) + 1):
            _, high = self._state.store.queue_range(SCHEDULE_TOPIC, level - 1)
            shown[f"scheduleMessageOffset_{level}"] = f"{self._delays.positions[level]},{high}"
        return shown

    def _disk(self) -> dict[str, str]:
        store = self._state.store
        usage = shutil.disk_usage(store.directory)
        ratio = str(usage.used / max(1, usage.total))
        first = store.record_at(store.min_offset)
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.directory / 'commitlog'}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {usage.total / _GIB:.2f} GiB, "
            f"Free : {usage.free / _GIB:.2f} GiB.",
            "commitLogMinOffset": str(store.min_offset),
            "commitLogMaxOffset": str(store.end_offset),
            "earliestMessageTimeStamp": str(-1 if first is None else store_ms_of(first)),
            "remainHowManyDataToFlush": f"{store.end_offset - store.durable_offset} B",
        }


def _rates(rates: tuple[float, ...]) -> str:
    return " ".join(map(str, rates))


def _item(found: Sum) -> bodies.StatsItem:
    return bodies.StatsItem(sum=found.sum, tps=found.per_s, avgpt=found.per_time)


def _entry(entry: QueueEntry, wanted: Subscription | None) -> bodies.ConsumeQueueEntry:
    passes = wanted is not None and (wanted.expression == ALL or entry.code in wanted.codes)
    return bodies.ConsumeQueueEntry(
        physic_offset=entry.physical_offset,
        physic_size=entry.size_bytes,
        tags_code=entry.code,
        eval=passes,
    )


def _subscription(wanted: Subscription | None) -> bodies.SubscriptionData | None:
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
