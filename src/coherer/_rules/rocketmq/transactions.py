r"""Transactional messages: half messages, and how a transaction ends.

See docs/protocol/rocketmq.md, section 6.7.

A message with TRAN_MSG=true becomes a *half message* in the half topic, which consumers do not
read. Its producer ends the transaction: a commit stores the real message and marks the half message
as done; a rollback only marks it. A mark is a message in the op topic whose body is the half
message's queue offset in decimal.

A half message may be stored again: when its producer is asked, or before its log file is deleted.
All copies are one transaction. Its name is the queue offset of the first one. Copies and marks have
it, plus one, as their prepared offset, a field of records that Java's brokers leave 0 there
(`name_of`). The flag of a mark is 1 for a rollback; Java leaves it 0.

If a producer does not end a transaction, the broker asks it for the state:
`coherer._rules.rocketmq.transaction_checks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from coherer._record.layout import COMMITTED, ROLLED_BACK, Record
from coherer._record.layout import encode as encode_record
from coherer._record.properties import (
    DELAY,
    MESSAGES,
    REAL_QUEUE,
    REAL_TOPIC,
    TAGS,
    UNIQUE_KEY,
    WAIT,
    decode,
    encode,
    index_keys,
    number_in,
    tag_code,
    value_of,
)
from coherer._record.system_topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from coherer._rules.common.origins import destination
from coherer._store.model import Draft
from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX

GROUP: Final = "CID_RMQ_SYS_TRANS"

TRANSACTIONAL: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
"""The queue offset of the first copy of a half message. Java's brokers set it on some copies."""
_ROLLBACK: Final = 1
"""The flag of a mark: the transaction was rolled back."""
_TAKEN_OUT: Final = tuple(
    name.encode()
    for name in (
        DELAY,  # Java's broker would delay the half message, and then lose it
        # Those of copies: with them, a message would be taken for another transaction.
        PREPARED_OFFSET,
        CHECK_TIMES,
        # They say where the message goes, and are added with the values of the request.
        REAL_TOPIC,
        REAL_QUEUE,
        MESSAGES,  # only the broker knows that a body is a batch
    )
)
_ROOM_BYTES: Final = 224
"""Room in the properties of a half message for those that are added later: to its copies, and to
the message itself if it waits for its time after the commit."""

DONE_TAG: Final = "d"
_OP_PROPERTIES: Final = b"WAIT\x01true\x02TAGS\x01d"
_OP_CODE: Final = tag_code(DONE_TAG)
UNKNOWN: Final = 0


def is_transactional(properties: bytes) -> bool:
    r"""Whether a message with this property text becomes a half message.

    >>> is_transactional(b"TAGS\x01a\x02TRAN_MSG\x01true"), is_transactional(b"TAGS\x01a")
    (True, False)
    """
    return (value_of(properties, TRANSACTIONAL) or "").lower() == "true"


def half(draft: Draft) -> Draft:
    r"""Convert a message to a half message.

    >>> made = half(Draft("flights", 2, b"", b"TRAN_MSG\x01true", sys_flag=4))
    >>> made.topic, made.queue_id, made.sys_flag
    ('RMQ_SYS_TRANS_HALF_TOPIC', 0, 0)
    """
    text = draft.properties.rstrip(b"\x02")
    if any(name in text for name in _TAKEN_OUT):
        properties = decode(text)
        for name in _TAKEN_OUT:
            properties.pop(name.decode(), None)
        text = encode(properties)
    place = encode({REAL_TOPIC: draft.topic, REAL_QUEUE: str(draft.queue_id)})
    text = b"%b%b%b" % (text, b"\x02" if text else b"", place)
    if len(text) > PROPERTIES_BYTES_MAX - _ROOM_BYTES:
        raise UsageError(
            f"The properties have {len(text)} bytes; the limit for a message in a transaction is "
            f"{PROPERTIES_BYTES_MAX - _ROOM_BYTES}."
        )
    return msgspec.structs.replace(
        draft,
        topic=HALF_TOPIC,
        queue_id=0,
        sys_flag=draft.sys_flag & ~ROLLED_BACK,
        properties=text,
        prepared_offset=0,
        destination=draft.topic,
    )


def with_count(draft: Draft, messages: int) -> Draft:
    r"""Note in a half batch, or in its mark, how many messages belong to it.

    >>> with_count(Draft("t", 0, b"", b"a\x01b"), 3).properties
    b'a\x01b\x02cohererMessages\x013'
    """
    text = b"%b\x02%b" % (draft.properties, encode({MESSAGES: str(messages)}))
    return msgspec.structs.replace(draft, properties=text)


def messages_in(properties: bytes) -> int:
    r"""How many messages a half message with this property text holds.

    >>> messages_in(b"TRAN_MSG\x01true"), messages_in(b"cohererMessages\x013")
    (1, 3)
    """
    return number_in(value_of(properties, MESSAGES)) or 1


class End(msgspec.Struct, frozen=True):
    """The end of a transaction (code 37).

    Args:
        group: the producer's group.
        half_offset: the half message's queue offset.
        physical_offset: the half message's log offset.
        state: 8 for a commit, 12 for a rollback, 0 if the producer does not know.
    """

    group: str
    half_offset: int
    physical_offset: int
    state: int


def mismatch(record: Record, end: End) -> str:
    """Why a request does not match its half message, in Java's words; "" if it does."""
    if value_of(record.properties, PRODUCER_GROUP) != end.group:
        return "The producer group wrong"
    if record.queue_offset != end.half_offset:
        return "The transaction state table offset wrong"
    if record.physical_offset != end.physical_offset:
        return "The commit log offset wrong"
    return ""


def committed(record: Record) -> Draft | None:
    """The real message of a half message; None if its destination is invalid.

    As in Java, the property text is that of the half message.
    """
    properties = decode(record.properties)
    found = destination(properties)
    if found is None:
        return None
    draft = _copy(record, *found, properties, record.properties)
    return msgspec.structs.replace(
        draft,
        sys_flag=record.sys_flag & ~ROLLED_BACK | COMMITTED,
        prepared_offset=record.physical_offset,
        reconsume_times=record.reconsume_times,
    )


def name_of(record: Record) -> int:
    """The transaction of a half message: the queue offset of its first copy.

    A copy that an older version or Java's broker has made usually has a name of its own.
    """
    if 0 < record.prepared_offset <= record.queue_offset:
        return record.prepared_offset - 1
    first = number_in(value_of(record.properties, PREPARED_OFFSET))
    return record.queue_offset if first is None else min(first, record.queue_offset)


def done_mark(
    half_offset: int,
    host: bytes,
    now_ms: int,
    *,
    name: int | None = None,
    is_rollback: bool = False,
) -> Draft:
    r"""The op message that marks a half message as done.

    Args:
        half_offset: the queue offset of the half message's newest copy.
        host: this broker's address as in records.
        now_ms: the time.
        name: the transaction, if that is another queue offset.
        is_rollback: whether the transaction was rolled back.

    >>> mark = done_mark(17, bytes(8), 0)
    >>> mark.topic, mark.body, mark.properties
    ('RMQ_SYS_TRANS_OP_HALF_TOPIC', b'17', b'WAIT\x01true\x02TAGS\x01d')
    """
    return Draft(
        OP_HALF_TOPIC,
        0,
        str(half_offset).encode(),
        _OP_PROPERTIES,
        tag_code=_OP_CODE,
        flag=_ROLLBACK if is_rollback else 0,
        born_ms=now_ms,
        born_host=host,
        prepared_offset=0 if name is None or name == half_offset else name + 1,
    )


def put_back(record: Record, changes: Mapping[str, str]) -> Draft:
    """Copy a half message, with changed properties, for the end of the half topic."""
    return _moved(record, HALF_TOPIC, changes, name_of(record) + 1)


def resumed(record: Record) -> Draft:
    """Copy a half message that was given up, with its checks reset (code 323)."""
    return _moved(record, HALF_TOPIC, {CHECK_TIMES: "0"}, record.prepared_offset)


def given_up(record: Record) -> Draft:
    """Copy a half message to the topic of messages that are no longer checked."""
    return _moved(record, CHECK_MAX_TIME_TOPIC, {}, name_of(record) + 1)


def _moved(record: Record, topic: str, changes: Mapping[str, str], prepared_offset: int) -> Draft:
    properties = {**decode(record.properties), **changes}
    copy = _copy(record, topic, 0, properties, encode(properties))
    return msgspec.structs.replace(copy, prepared_offset=prepared_offset)


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
    """A message of the op topic.

    Args:
        offset: its queue offset.
        half_offset: the queue offset of the half message that it marks.
        name: the transaction (`name_of`).
        is_rollback: whether the transaction was rolled back, as far as is known.
    """

    offset: int
    half_offset: int
    name: int
    is_rollback: bool = False


def read_op(record: Record) -> Op | None:
    """Read a message of the op topic; None if it is invalid."""
    half_offset = number_in(bytes(record.body[:20]).decode("ascii", "replace"))
    if half_offset is None or value_of(record.properties, TAGS) != DONE_TAG:
        return None
    name = half_offset
    if 0 < record.prepared_offset <= half_offset:
        name = record.prepared_offset - 1
    return Op(record.queue_offset, half_offset, name, record.flag == _ROLLBACK)


class Question(msgspec.Struct, frozen=True):
    """The request to a producer (code 39).

    Args:
        topic: the topic for which the message is meant.
        half_offset: queue offset of the half message's newest copy.
        physical_offset: log offset of that copy.
        unique_key: the client's id of the message; "" if it has none.
        body: the message as the producer sent it, as a record.
    """

    group: str
    topic: str
    half_offset: int
    physical_offset: int
    unique_key: str
    body: bytes


def question(record: Record, draft: Draft, queue_offset: int, physical_offset: int) -> Question:
    """The question about a half message that was stored again.

    Args:
        draft: its new copy.
        queue_offset: of the copy in the half topic.
        physical_offset: of the copy in the log.
    """
    properties = decode(draft.properties)
    queue = number_in(properties.get(REAL_QUEUE))
    topic = properties.get(REAL_TOPIC) or draft.topic
    body = encode_record(
        topic,
        draft.body,
        encode({**properties, WAIT: "false"}),  # as Java's broker says it
        queue_id=draft.queue_id if queue is None else queue,
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
        topic,
        queue_offset,
        physical_offset,
        properties.get(UNIQUE_KEY, ""),
        body,
    )
