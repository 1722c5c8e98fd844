"""Headers of reading and of offsets (protocol page, 2.6, 2.7, 2.8)."""

from __future__ import annotations

from msgspec import field

from coherer._wire.rocketmq.command import Int32, Int64
from coherer._wire.rocketmq.headers.base import NULL, Header


class PullHeader(Header, gc=False):
    """11: messages of a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 | None = None
    suspend_ms: Int64 | None = field(default=None, name="suspendTimeoutMillis")
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None


class PullResult(Header, gc=False):
    """The answer to a pull."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class ViewMessageHeader(Header):
    """33: one message by its place in the log."""

    offset: Int64


class QueryMessageHeader(Header, kw_only=True):
    """12: messages by a key. The last field tells that the key is a client's unique id."""

    topic: str = NULL
    key: str = NULL
    max_num: Int32
    begin_ms: Int64 = field(name="beginTimestamp")
    end_ms: Int64 = field(name="endTimestamp")
    unique_key_query: str | None = field(default=None, name="_UNIQUE_KEY_QUERY")


class QueryMessageResult(Header):
    """The answer to 12."""

    index_last_update_ms: Int64 = field(name="indexLastUpdateTimestamp")
    index_last_update_phyoffset: Int64


class QueueHeader(Header):
    """30, 31, 32: a queue."""

    topic: str
    queue_id: Int32


class OffsetResult(Header):
    """The answer to 14, 29, 30 and 31."""

    offset: Int64


class TimestampResult(Header):
    """The answer to 32: when the oldest message was stored, -1 for none."""

    timestamp: Int64


class SearchOffsetHeader(Header):
    """29: the offset of a time of storing."""

    topic: str
    queue_id: Int32
    timestamp: Int64


class QueryOffsetHeader(Header, kw_only=True):
    """14: where a group stands.

    `set_zero_if_not_found` is RocketMQ 5's: false asks for 22 wherever the group has no offset.
    """

    consumer_group: str = NULL
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateOffsetHeader(Header, kw_only=True):
    """15: where a group stands from now on."""

    consumer_group: str = NULL
    topic: str = NULL
    queue_id: Int32
    commit_offset: Int64


class CorrectionOffsetHeader(Header):
    """308: the smallest offsets among the groups of a topic."""

    topic: str
    compare_group: str | None = None
    filter_groups: str | None = None


class CloneOffsetHeader(Header):
    """314: one group is to stand where another does."""

    src_group: str = NULL
    dest_group: str = NULL
    topic: str | None = None
    offline: bool = False
