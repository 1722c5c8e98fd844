r"""Transactional messages: half messages, their end, and who is asked again (protocol page, 6.7).

A message sent with TRAN_MSG=true becomes a *half message*: it lies in the half topic, where nobody
reads. Its producer ends the transaction: to commit is to store the real message and to mark the
half message as done; to roll back is only to mark it. A mark is a message in the op topic whose
body is the half message's queue offset in decimal.

A producer that said nothing is asked: `coherer._rules.rocketmq.checkback`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from coherer._record import system_topics
from coherer._record.layout import COMMITTED, ROLLED_BACK, Record
from coherer._record.layout import encode as encode_record
from coherer._record.properties import (
    DELAY,
    REAL_QUEUE,
    REAL_TOPIC,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    decode,
    encode,
    index_keys,
    tag_code,
)
from coherer._store.model import Draft

HALF_TOPIC: Final = system_topics.HALF_TOPIC
OP_TOPIC: Final = system_topics.OP_HALF_TOPIC
DISCARD_TOPIC: Final = system_topics.CHECK_MAX_TIME_TOPIC
GROUP: Final = "CID_RMQ_SYS_TRANS"

TRANSACTIONAL: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"

DONE_TAG: Final = "d"
_OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d"
_OP_CODE: Final = tag_code(DONE_TAG)
_MARK: Final = b"TRAN_MSG\x01true"
UNKNOWN: Final = 0


def is_transactional(properties: bytes) -> bool:
    r"""Say whether a message with this property text is to become a half message.

    >>> is_transactional(b"TAGS\x01a\x02TRAN_MSG\x01true"), is_transactional(b"TAGS\x01a")
    (True, False)
    """
    if _MARK[:-4] not in properties:
        return False
    return decode(properties).get(TRANSACTIONAL, "").lower() == "true"


def half(draft: Draft) -> Draft:
    r"""Give the half message for a message that was sent.

    >>> made = half(Draft("flights", 2, b"", b"TRAN_MSG\x01true", sys_flag=4))
    >>> made.topic, made.queue_id, made.sys_flag
    ('RMQ_SYS_TRANS_HALF_TOPIC', 0, 0)
    """
    properties = decode(draft.properties)
    # Java's broker would delay the half message, and then lose it; its clients send no level.
    properties.pop(DELAY, None)
    properties[REAL_TOPIC] = draft.topic
    properties[REAL_QUEUE] = str(draft.queue_id)
    return msgspec.structs.replace(
        draft,
        topic=HALF_TOPIC,
        queue_id=0,
        sys_flag=draft.sys_flag & ~ROLLED_BACK,
        properties=encode(properties),
    )


class End(msgspec.Struct, frozen=True):
    """What a producer says at the end of a transaction (code 37).

    Args:
        group: the producer's group.
        half_offset: the half message's queue offset.
        physical_offset: where it lies in the log.
        state: 8 to commit, 12 to roll back, 0 when the producer does not know.
    """

    group: str
    half_offset: int
    physical_offset: int
    state: int


def mismatch(record: Record, end: End) -> str:
    """Say why a request does not belong to the half message that it names; "" when it does.

    The words are Java's.
    """
    if decode(record.properties).get(PRODUCER_GROUP) != end.group:
        return "The producer group wrong"
    if record.queue_offset != end.half_offset:
        return "The transaction state table offset wrong"
    if record.physical_offset != end.physical_offset:
        return "The commit log offset wrong"
    return ""


def committed(record: Record) -> Draft | None:
    """Give the real message of a half message; None if its place is not told.

    Its property text stays that of the half message, as Java leaves it.
    """
    properties = decode(record.properties)
    topic, queue = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE, "")
    if topic is None or not queue.isascii() or not queue.isdecimal():
        return None
    draft = _copy(record, topic, int(queue), properties, record.properties)
    return msgspec.structs.replace(
        draft,
        sys_flag=record.sys_flag & ~ROLLED_BACK | COMMITTED,
        prepared_offset=record.physical_offset,
        reconsume_times=record.reconsume_times,
    )


def done_mark(half_offset: int, host: bytes, now_ms: int) -> Draft:
    r"""Give the op message that marks a half message as done.

    Args:
        half_offset: the half message's queue offset.
        host: this broker, as records name it.
        now_ms: the time.

    >>> mark = done_mark(17, bytes(8), 0)
    >>> mark.topic, mark.body, mark.properties
    ('RMQ_SYS_TRANS_OP_HALF_TOPIC', b'17', b'WAIT\x01true\x02TAGS\x01d')
    """
    body = str(half_offset).encode()
    return Draft(
        OP_TOPIC, 0, body, _OP_PROPERTIES, tag_code=_OP_CODE, born_ms=now_ms, born_host=host
    )


def put_back(record: Record, changes: Mapping[str, str]) -> Draft:
    """Give a copy of a half message for the end of the half topic, with other properties."""
    return _moved(record, HALF_TOPIC, changes)


def resumed(record: Record) -> Draft:
    """Give a half message whose checks begin anew, from one that was given up (code 323)."""
    return _moved(record, HALF_TOPIC, {CHECK_TIMES: "0"})


def given_up(record: Record, changes: Mapping[str, str]) -> Draft:
    """Give the copy of a half message that nobody is asked about any more."""
    return _moved(record, DISCARD_TOPIC, changes)


def _moved(record: Record, topic: str, changes: Mapping[str, str]) -> Draft:
    properties = {**decode(record.properties), **changes}
    return _copy(record, topic, 0, properties, encode(properties))


def _copy(
    record: Record, topic: str, queue_id: int, properties: Mapping[str, str], text: bytes
) -> Draft:
    return Draft(
        topic,
        queue_id,
        bytes(record.body),
        text,
        tag_code=tag_code(properties.get(TAGS)),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        keys=index_keys(properties),
    )


class Op(msgspec.Struct, frozen=True):
    """A message of the op topic: which half message it marks (-1: none), and its queue offset."""

    offset: int
    half_offset: int


def read_op(record: Record) -> Op:
    """Read a message of the op topic. What is no mark marks nothing."""
    body = bytes(record.body)
    if decode(record.properties).get(TAGS) != DONE_TAG or not body.isdigit():
        return Op(record.queue_offset, -1)
    return Op(record.queue_offset, int(body))


class Question(msgspec.Struct, frozen=True):
    """What a producer is asked (code 39).

    Args:
        group: the producer's group.
        half_offset: queue offset of the half message's newest copy.
        physical_offset: where that lies in the log.
        unique_key: the client's id of the message; "" if it has none.
        body: the message as the producer sent it, as a record.
    """

    group: str
    half_offset: int
    physical_offset: int
    unique_key: str
    body: bytes


def question(record: Record, draft: Draft, queue_offset: int, physical_offset: int) -> Question:
    """Give what to ask about a half message that was put back.

    Args:
        record: the half message.
        draft: its new copy.
        queue_offset: where that is in the half topic.
        physical_offset: where that is in the log.
    """
    properties = decode(draft.properties)
    queue = properties.get(REAL_QUEUE, "")
    body = encode_record(
        properties.get(REAL_TOPIC) or draft.topic,
        draft.body,
        encode({**properties, WAIT: "false"}),  # as Java's broker says it
        queue_id=int(queue) if queue.isdecimal() else draft.queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        store_ms=record.store_ms,
        store_host=record.store_host,
        flag=draft.flag,
        sys_flag=draft.sys_flag,
        born_ms=draft.born_ms,
        born_host=draft.born_host,
        reconsume_times=draft.reconsume_times,
    )
    return Question(
        properties.get(PRODUCER_GROUP, ""),
        queue_offset,
        physical_offset,
        properties.get(UNIQUE_KEY, ""),
        body,
    )
