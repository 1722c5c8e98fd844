"""Bodies of administration.

See docs/protocol/rocketmq.md, sections 2.7, 2.11, 2.12, 2.16, 4.4, 4.5, 6.10.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import field

from coherer._common.masking import masked
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.bodies.base import Body, DataVersion, Offsets
from coherer._wire.rocketmq.bodies.heartbeat import SubscriptionData
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError

RETRY_TIMES_DEFAULT: Final = 16


class SubscriptionGroup(Body, frozen=True):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200): a group (Java: SubscriptionGroupConfig)."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = RETRY_TIMES_DEFAULT
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


class SubscriptionGroups(Body, frozen=True):
    """The answer to 201: all groups of a broker."""

    subscription_group_table: dict[str, SubscriptionGroup] = field(
        default_factory=dict[str, SubscriptionGroup]
    )
    data_version: DataVersion = DataVersion()


class ConsumerOffsets(Body, frozen=True):
    """The answer to 43: `topic@group` → queue → offset."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict[str, dict[int, int]])


class DelayOffsets(Body, frozen=True):
    """The answer to 45: delay level → offset."""

    offset_table: dict[int, int] = field(default_factory=dict[int, int])


class CorrectionOffsets(Body, frozen=True):
    """The answer to 308: queue → offset."""

    correction_offsets: dict[int, int] = field(default_factory=dict[int, int])


class TopicOffset(Body, frozen=True):
    """Offsets of a queue, and the time of its newest message, ms since 1970."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStats(Body, frozen=True):
    """The answer to 202."""

    offset_table: dict[Queue, TopicOffset] = field(default_factory=dict[Queue, TopicOffset])


class OffsetWrapper(Body, frozen=True):
    """A group's offset in a queue, and the time of the last consumed message."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


class ConsumeStats(Body, frozen=True):
    """The answer to 208: the lag of a group."""

    offset_table: dict[Queue, OffsetWrapper] = field(default_factory=dict[Queue, OffsetWrapper])
    consume_tps: float = 0.0


class BrokerConsumeStats(Body, frozen=True):
    """The answer to 317: the lag of all groups."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(
        default_factory=list[dict[str, list[ConsumeStats]]]
    )
    broker_addr: str = ""
    total_diff: int = 0


class GroupStates(Body, frozen=True):
    """The answer to 317 for a client that asks for `FEATURE_GROUP_STATES`: how far groups are.

    Args:
        groups: group → topic → a row for each queue: its number, its oldest offset, its next one,
            the group's offset, and the time of the last consumed message.
        online: which of these groups have members.
        last: the last group if others follow; the next request begins after it.
    """

    groups: dict[str, dict[str, list[tuple[int, int, int, int, int]]]] = field(
        default_factory=dict[str, dict[str, list[tuple[int, int, int, int, int]]]]
    )
    online: list[str] = field(default_factory=list[str])
    last: str = ""

    def encode(self) -> bytes:
        """Return the body as strict JSON, ten times faster than Java's form: no Java reads it."""
        return fastjson.dumps_strict(self)


class GroupList(Body, frozen=True):
    """The answer to 300: the groups that read a topic."""

    group_list: list[str] = field(default_factory=list[str])


class QueueTimeSpan(Body, frozen=True):
    """Times of a queue's messages and of a group's position, ms since 1970 and as text."""

    message_queue: Queue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


class ConsumeTimeSpan(Body, frozen=True):
    """The answer to 303."""

    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list[QueueTimeSpan])


class StatsItem(Body, frozen=True):
    """A counter over an interval: sum, rate per second, and average."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStats(Body, frozen=True):
    """The answer to 315: a counter over the last minute, hour and day."""

    stats_minute: StatsItem = StatsItem()
    stats_hour: StatsItem = StatsItem()
    stats_day: StatsItem = StatsItem()


class ConsumeQueueEntry(Body, frozen=True):
    """An entry of a consume queue."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class ConsumeQueuePage(Body, frozen=True):
    """The answer to 321: entries of a consume queue, each with the result of a group's filter."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueEntry] | None = None
    max_queue_index: int = 0
    min_queue_index: int = 0


class ConsumerStatus(Body, frozen=True):
    """The answer to 221 and 223: the offsets of a client, or of each client."""

    message_queue_table: Offsets = field(default_factory=Offsets)
    consumer_table: dict[str, Offsets] = field(default_factory=dict[str, Offsets])


class ResetOffset(Body, frozen=True):
    """New offsets: the body of 220 and of the answer to 222.

    Clients in C++ expect a list, all others a map (section 4.4); `read` accepts both.
    """

    offset_table: Offsets = field(default_factory=Offsets)

    def encode_for_c(self) -> bytes:
        """Return the body as clients in C++ expect it."""
        items = [
            {"brokerName": at.broker, "offset": offset, "queueId": at.id, "topic": at.topic}
            for at, offset in self.offset_table.items()
        ]
        return fastjson.dumps({"offsetTable": items})

    @classmethod
    def read(cls, data: bytes | memoryview) -> ResetOffset:
        """Decode either form; an empty body is an empty table.

        Raises:
            ProtocolError: the body is neither.
        """
        if not data:
            return cls()
        value = fastjson.loads(data)
        table = value.get("offsetTable") if isinstance(value, dict) else None
        if not isinstance(table, list):
            return cls.from_json(value)
        offsets = [_COffset.from_json(item) for item in table]
        return cls(
            offset_table={
                Queue(each.topic, each.broker_name, each.queue_id): each.offset for each in offsets
            }
        )


class _COffset(Body, frozen=True):
    topic: str
    broker_name: str
    queue_id: int
    offset: int


class PlainAccessConfig(Body, frozen=True):
    """An account of access control."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None

    def __repr__(self) -> str:
        return masked(self, "secret_key")


class AclConfig(Body, frozen=True):
    """The answer to 54: all accounts, including their secrets."""

    global_white_addrs: list[str] = field(default_factory=list[str])
    plain_access_configs: list[PlainAccessConfig] = field(default_factory=list[PlainAccessConfig])


class OffsetMoved(Body, frozen=True):
    """Event of a consumer whose offset was outside its queue (section 2.6)."""

    consumer_group: str = ""
    message_queue: Queue | None = None
    offset_request: int = 0
    offset_new: int = 0


ZERO_FIELD: Final = "setZeroIfNotFound"
"""A field of request 14. If it is `false`, the brokers of RocketMQ 5 answer 22 for a group without
an offset. Coherer's broker does the same and repeats the field in its answer. RocketMQ 4 ignores
it."""

_TABLE: Final = re.compile(rb"\s*:\s*\{([^{}]*)\}")
_ENTRY: Final = re.compile(rb'"?(-?\d+)"?\s*:\s*(-?\d+)')


def offset_in(body: bytes | memoryview, group: str, topic: str, queue_id: int) -> int | None:
    """Return a group's offset in a queue from the answer to request 43 (section 2.7).

    Request 14 of RocketMQ 4.x returns 0 for a group at offset 0, and also for a group without an
    offset if the queue's first message is still in memory. The table of all offsets distinguishes
    the two. It can be large, so it is searched instead of parsed.

    Returns:
        The offset; None if the group has none.

    Raises:
        ProtocolError: the body is not a table of offsets.

    >>> offset_in(b'{"offsetTable":{"flights@readers":{0:5,1:0}}}', "readers", "flights", 1)
    0
    >>> offset_in(b'{"offsetTable":{"flights@readers":{0:5,1:0}}}', "others", "flights", 1)
    """
    data = bytes(body)
    if b'"offsetTable"' not in data:
        raise ProtocolError("The answer does not contain a table of offsets.", topic=topic)
    key = f'"{topic}@{group}"'.encode()
    at = data.find(key)
    if at < 0:
        return None
    found = _TABLE.match(data, at + len(key))
    if found is None:
        raise ProtocolError("The table of offsets is not valid.", topic=topic)
    return next(
        (
            int(offset)
            for number, offset in _ENTRY.findall(found.group(1))
            if int(number) == queue_id and int(offset) >= 0
        ),
        None,
    )
