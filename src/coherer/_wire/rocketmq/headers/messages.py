"""Headers of sending, reading and offsets.

See docs/protocol/rocketmq.md, sections 2.4 to 2.8 and 2.14.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import field

from coherer._common.decoding import decoder
from coherer._wire.rocketmq.codes import RequestCode, refused
from coherer._wire.rocketmq.command import Int32, Int64
from coherer._wire.rocketmq.headers.base import NULL, Header, parse, unreadable
from coherer._wire.rocketmq.names import topic_fault

LOCK_FIELD: Final = "cohererLock"
"""A field of Coherer's own: the lock that the sender of a message must hold, as the body of 41."""

_LETTERS: Final = "abcdefghijklm"
_LETTERS_REQUIRED: Final = _LETTERS[:8]
_BOOLEANS: Final = ("k", "m")
_SEND_NAMES: Final = (
    "producer_group",
    "topic",
    "default_topic",
    "default_topic_queue_nums",
    "queue_id",
    "sys_flag",
    "born_ms",
    "flag",
    "properties",
    "reconsume_times",
    "unit_mode",
    "max_reconsume_times",
    "batch",
)
_LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
_LONG_CODES: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
_LENIENT_CODES: Final = _LONG_CODES | {RequestCode.SEND_REPLY_MESSAGE_V2}


class SendHeader(Header, rename=dict(zip(_SEND_NAMES, _LETTERS, strict=True)), gc=False):
    """Messages to store (10, 310, 320, 324 and 325). Parse it with `read_send`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_ms: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False

    def long_fields(self) -> dict[str, str]:
        """Return the header as text with the long names of 10 and 324."""
        return {_LONG_NAMES[letter]: value for letter, value in self.fields().items()}


decoder(SendHeader)  # here, so that no thread inspects it first, and no send has to ask


def read_send(code: int, fields: Mapping[str, str]) -> SendHeader:
    """Parse the header of a send, with short or long names.

    Args:
        code: the request code; 10 and 324 use long names.
        fields: the text.

    Raises:
        RefusedError: code 1, a field is missing or not a number.

    >>> read_send(310, dict(zip("abcdefgh", ("p", "t", "TBW102", *"41000"), strict=True))).queue_id
    1
    """
    if code not in _LENIENT_CODES:
        return _read_strictly(fields)
    if code in _LONG_CODES:
        fields = {letter: fields[name] for letter, name in _LONG_NAMES.items() if name in fields}
    # Java does not require these three: a missing topic is a blank one (section 2.4.2, step 3).
    fields = {"a": "", "b": "", "c": "", **fields}
    if not fields["b"].strip():
        raise refused(1, topic_fault(""))
    return parse(SendHeader, fields)


def _read_strictly(fields: Mapping[str, str]) -> SendHeader:
    booleans = {letter: _boolean_text(fields[letter]) for letter in _BOOLEANS if letter in fields}
    try:
        return msgspec.convert({**fields, **booleans}, SendHeader, strict=False)
    except msgspec.ValidationError:
        for letter in _LETTERS_REQUIRED:
            if letter not in fields:
                raise refused(1, f"the custom field <{letter}> is null") from None
        wrong = unreadable(SendHeader, fields)
        if wrong is not None:
            raise refused(1, f"java.lang.NumberFormatException: the field <{wrong}>") from None
        return parse(SendHeader, fields)


def _boolean_text(text: str) -> str:
    return "true" if text.lower() == "true" else "false"


class SendResult(Header):
    """The answer to a send; refusals contain the last two as well (section 2.4.1)."""

    msg_id: str | None = None
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None
    transaction_id: str | None = None
    region: str | None = field(default=None, name="MSG_REGION")
    trace_on: str | None = field(default=None, name="TRACE_ON")


class SendBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK (36): a consumer requests redelivery of a message."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class PushReplyHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): a broker delivers a reply to the requester."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_ms: Int64 = field(name="bornTimestamp")
    flag: Int32
    born_host: str
    store_host: str
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    stored_ms: Int64 = field(default=0, name="storeTimestamp")


class PullHeader(Header, gc=False):
    """PULL_MESSAGE (11): messages of a queue."""

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
    """VIEW_MESSAGE_BY_ID (33): one message by its offset in the log."""

    offset: Int64


class QueryMessageHeader(Header, kw_only=True):
    """QUERY_MESSAGE (12): messages by a key.

    The last field marks the key as a client's unique id.
    """

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
    """A queue whose end, first offset or oldest store time is requested (30, 31, 32)."""

    topic: str
    queue_id: Int32


class OffsetResult(Header):
    """The answer to 14, 29, 30 and 31."""

    offset: Int64


class TimestampResult(Header):
    """The answer to 32: the store time of the oldest message; -1 without messages."""

    timestamp: Int64


class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29): the offset for a store time."""

    topic: str
    queue_id: Int32
    timestamp: Int64


class QueryOffsetHeader(Header, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14): a group's offset.

    `set_zero_if_not_found` was added in RocketMQ 5: false requests code 22 without an offset.
    """

    consumer_group: str = NULL
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateOffsetHeader(Header, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15): a group's new offset."""

    consumer_group: str = NULL
    topic: str = NULL
    queue_id: Int32
    commit_offset: Int64


class CorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET (308): the smallest offsets among the groups of a topic."""

    topic: str
    compare_group: str | None = None
    filter_groups: str | None = None


class CloneOffsetHeader(Header):
    """CLONE_GROUP_OFFSET (314): copies the offsets of one group to another."""

    src_group: str = NULL
    dest_group: str = NULL
    topic: str | None = None
    offline: bool = False
