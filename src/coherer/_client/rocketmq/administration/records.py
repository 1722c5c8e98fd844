"""What only RocketMQ's servers tell: the records of its administration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coherer._wire.rocketmq.bodies import (
    BrokerStats,
    ConsumeDirectlyResult,
    QueueTimeSpan,
    RunningInfo,
    StatsItem,
)
from coherer._wire.rocketmq.names import RETRY_PREFIX, Queue

_SINCE_1970_MS = 1_000_000_000_000
"""A larger value is not an age but a time of day, which some brokers return."""


class Rate(msgspec.Struct, frozen=True):
    """A counter over an interval.

    Args:
        count: the sum.
        per_s: the rate per second.
        average: the mean of the counted values.
    """

    count: int = 0
    per_s: float = 0.0
    average: float = 0.0


class Counter(msgspec.Struct, frozen=True):
    """A counter of a broker.

    Args:
        minute: over the last minute.
        hour: over the last hour.
        day: over the last 24 hours.
    """

    minute: Rate
    hour: Rate
    day: Rate


class QueueLock(msgspec.Struct, frozen=True):
    """A lock that this client holds (`GroupAdmin.lock`).

    Args:
        group: the group.
        queue: the queue.
        holder: the part of the client that holds it; "" without parts.
    """

    group: str
    queue: Queue
    holder: str = ""


def owner_of(client_id: str, holder: str) -> str:
    """The owner of a lock, as brokers know it."""
    return f"{client_id}#{holder}" if holder else client_id


class TimeSpan(msgspec.Struct, frozen=True):
    """The times of a queue's messages, and of a group's position in it, ms since 1970.

    Args:
        queue: the queue.
        oldest_ms: when its oldest message was stored.
        newest_ms: when its newest message was stored.
        consumed_ms: when the message at the group's offset was stored.
        behind_ms: the age of the oldest message that the group has not read; None if it has read
            all, or if the age is unknown.
    """

    queue: Queue
    oldest_ms: int
    newest_ms: int
    consumed_ms: int
    behind_ms: int | None


class HeldQueue(msgspec.Struct, frozen=True):
    """A queue in a running consumer.

    Args:
        offset: the offset that it commits next.
        messages: how many messages it has received and not acknowledged.
        mib: their size, in MiB.
        locked: whether it holds the lock of an orderly queue.
        pulled_ms: when it last asked for messages, ms since 1970.
        consumed_ms: when it last processed one.
    """

    offset: int
    messages: int
    mib: int
    locked: bool
    pulled_ms: int
    consumed_ms: int


class ConsumeRates(msgspec.Struct, frozen=True):
    """Recent rates of a running consumer in a topic.

    Args:
        received_per_s: messages received per second.
        processed_per_s: messages processed per second.
        failed_per_s: messages that failed per second.
        failed: how many failed in the last hour.
        pull_ms: the mean time of a pull.
        process_ms: the mean time of processing a message.
    """

    received_per_s: float
    processed_per_s: float
    failed_per_s: float
    failed: int
    pull_ms: float
    process_ms: float


class RunningConsumer(msgspec.Struct, frozen=True):
    """The state of a running consumer, as it reports it.

    Args:
        properties: its settings, by the names of its library.
        subscriptions: the filter by topic, `*` for all messages.
        queues: the queues that it reads.
        rates: its rates by topic.
        threads: its threads and their stacks, if they were asked for.
    """

    properties: Mapping[str, str]
    subscriptions: Mapping[str, str]
    queues: Mapping[Queue, HeldQueue]
    rates: Mapping[str, ConsumeRates]
    threads: str | None


class DirectResult(msgspec.Struct, frozen=True):
    """The result of a message that a consumer had to process on request.

    Args:
        outcome: `CR_SUCCESS`, `CR_LATER` or another word of Java's `CMResult`; None if unknown.
        remark: why it failed.
        spent_ms: how long it took.
        orderly: whether the consumer is orderly.
        auto_commit: whether an orderly consumer commits by itself.
    """

    outcome: str | None
    remark: str | None
    spent_ms: int
    orderly: bool
    auto_commit: bool


def counter_of(body: BrokerStats) -> Counter:
    return Counter(*map(_rate, (body.stats_minute, body.stats_hour, body.stats_day)))


def _rate(item: StatsItem) -> Rate:
    return Rate(item.sum, item.tps, item.avgpt)


def time_span_of(body: QueueTimeSpan) -> TimeSpan | None:
    if body.message_queue is None:
        return None
    return TimeSpan(
        body.message_queue,
        body.min_time_stamp,
        body.max_time_stamp,
        body.consume_time_stamp,
        _behind_ms(body),
    )


def _behind_ms(span: QueueTimeSpan) -> int | None:
    """The age of the oldest unread message of a queue; None if all are read or the age is unknown.

    If the message at the group's offset has been deleted, Java's brokers subtract the time -1 from
    theirs. Then the oldest message of the queue is the oldest unread one.

    >>> _behind_ms(QueueTimeSpan(delay_time=5_000)), _behind_ms(QueueTimeSpan())
    (5000, None)
    >>> _behind_ms(QueueTimeSpan(delay_time=1_700_000_060_001, min_time_stamp=1_700_000_000_000))
    60000
    """
    if span.delay_time <= 0:
        return None
    if span.delay_time < _SINCE_1970_MS:
        return span.delay_time
    age_ms = span.delay_time - 1 - span.min_time_stamp
    return age_ms if span.min_time_stamp > 0 and age_ms >= 0 else None


def running_of(body: RunningInfo) -> RunningConsumer:
    return RunningConsumer(
        properties=body.properties,
        subscriptions={
            one.topic: one.filter
            for one in body.subscription_set
            if not one.topic.startswith(RETRY_PREFIX)
        },
        queues={
            queue: HeldQueue(
                offset=one.commit_offset,
                messages=one.cached_msg_count,
                mib=one.cached_msg_size_in_mib,
                locked=one.locked,
                pulled_ms=one.last_pull_timestamp,
                consumed_ms=one.last_consume_timestamp,
            )
            for queue, one in body.mq_table.items()
        },
        rates={
            topic: ConsumeRates(
                received_per_s=one.pull_tps,
                processed_per_s=one.consume_ok_tps,
                failed_per_s=one.consume_failed_tps,
                failed=one.consume_failed_msgs,
                pull_ms=one.pull_rt,
                process_ms=one.consume_rt,
            )
            for topic, one in body.status_table.items()
        },
        threads=body.jstack,
    )


def direct_result_of(body: ConsumeDirectlyResult) -> DirectResult:
    return DirectResult(
        body.consume_result, body.remark, body.spent_time_mills, body.order, body.auto_commit
    )
