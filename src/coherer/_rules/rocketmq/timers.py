r"""Timed messages: the queues in which they wait, and their delivery.

RocketMQ 5 has properties that say when a message is due: TIMER_DELAY_SEC and TIMER_DELAY_MS count
from its arrival at the broker, TIMER_DELIVER_MS is a time. A message that is not due yet waits in
the timer topic with its due time (TIMER_OUT_MS), its real topic and its real queue as properties,
as in RocketMQ 5. Its queue represents a *slot* of time, where RocketMQ 5 has one queue and more
files: slot n holds the messages due in the n-th period of `SLOT_MS` since 1970, in queue n %
`SLOTS`. So the messages of a slot are found without reading other slots, and the only files are the
log and its consume queues, which recovery and replication handle already. The entry of a waiting
message holds its due time instead of the tag code.

Deliveries are also recorded in the log, by *marks*: a mark is a message in queue `MARKS` of the
timer topic, stored atomically with the messages whose delivery it records. The newest mark holds
the whole `Progress`, so that a crash neither loses nor repeats a delivery. When retention has
deleted the newest mark, it has also deleted the messages covered by it, because they lie before it.
A message that still waits when its file is to be deleted is stored again first (`rolled`): as a
*copy*, which names the topic where the original waits, in one write with a mark. A power cut can
take the mark and leave the copy. Then the original still waits, and would be delivered in addition
to the copy. So the next start records that copies behind the last mark do not count
(`Progress.without_copies`).

Due times are wall time: if the clock jumps, messages become due earlier or later. No message is
lost, because `Progress` records not only up to which time messages are delivered, but also for
which part of the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from coherer._common.decoding import decoder
from coherer._record.layout import Record
from coherer._record.properties import (
    REAL_QUEUE,
    REAL_TOPIC,
    TAGS,
    TIMER_CANCEL,
    TIMER_COPY_FROM,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLLS,
    decode,
    encode,
    index_keys,
    number_in,
    tag_code,
)
from coherer._record.system_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from coherer._rules.common.origins import destination
from coherer._store.model import Draft, QueueEntry
from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX, TIMER_DELAY_MS_MAX

SLOT_MS: Final = 300_000
"""The messages due in this period are handled together; their due times are kept in memory."""
SLOTS: Final = 1_000
"""These slots cover 3.47 days. The longest delay is three days, so the messages of a slot and older
ones in the same queue can be told apart by their store times.
"""
MARKS: Final = SLOTS
"""The queue of the marks."""

_TIMED: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""In the order in which RocketMQ 5 checks them."""
_ORIGIN_BYTES: Final = len(f"{TIMER_COPY_FROM}\x01{SCHEDULE_TOPIC}\x02")
"""By how much a copy's properties are longer than those of its original."""
_HINT: Final = b"TIMER_DEL"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}\Z")
_PLAUSIBLE_MS: Final = 1 << 33
"""Tag codes have 32 bits and are below this, so that none is mistaken for a due time."""


class TimerError(Exception):
    """Why a timed message is refused, in the words of RocketMQ 5 where it has them."""


def is_timed(properties: bytes) -> bool:
    r"""Whether a message has a delivery time that it has not waited for yet.

    Args:
        properties: its property text.

    >>> is_timed(b"TIMER_DELAY_SEC\x015"), is_timed(b"TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x011")
    (True, False)
    """
    return _HINT in properties and _is_timed(decode(properties))


def any_timed(properties: Sequence[bytes]) -> bool:
    """Whether one of many messages has a delivery time.

    Args:
        properties: their property texts.
    """
    return _HINT in b"\x02".join(properties) and any(map(is_timed, properties))


def _is_timed(properties: Mapping[str, str]) -> bool:
    return TIMER_OUT_MS not in properties and any(name in properties for name in _TIMED)


def due_ms_of(properties: bytes, now_ms: int) -> int | None:
    r"""When a message with this property text is due.

    Args:
        properties: the text.
        now_ms: the time, ms since 1970.

    Returns:
        The time in ms since 1970; None for a message without one, or that is due already.

    Raises:
        TimerError: the time is not a number, or too far away.

    >>> due_ms_of(b"TIMER_DELAY_SEC\x015", 1_000), due_ms_of(b"TIMER_DELIVER_MS\x0112", 1_000)
    (6000, None)
    >>> due_ms_of(b"TIMER_DELAY_MS\x01259200001", 0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coherer._rules.rocketmq.timers.TimerError: timer message illegal, ...
    """
    if _HINT not in properties:
        return None
    found = decode(properties)
    if not _is_timed(found):
        return None
    if TIMER_CANCEL in found:
        raise TimerError(f"timer message illegal, {TIMER_CANCEL} is not supported by this broker")
    name = next(name for name in _TIMED if name in found)
    if _INTEGER.match(found[name]) is None:
        raise TimerError(_ILLEGAL)
    number = int(found[name])
    if name == TIMER_DELAY_SEC:
        number *= 1_000
    due_ms = number if name == TIMER_DELIVER_MS else now_ms + number
    if due_ms > now_ms + TIMER_DELAY_MS_MAX:
        raise TimerError(_ILLEGAL)
    return due_ms if due_ms > now_ms else None


_ILLEGAL: Final = (
    "timer message illegal, the delay time should not be bigger than the max delay "
    f"{TIMER_DELAY_MS_MAX}ms; or if set del msg, the delay time should be bigger than the current "
    "time"
)


def slot_of(due_ms: int) -> int:
    """The slot of a due time; its queue is `slot % SLOTS`.

    >>> slot_of(299_999), slot_of(300_000)
    (0, 1)
    """
    return due_ms // SLOT_MS


def waiting(draft: Draft, due_ms: int, copy_from: str = "") -> Draft:
    r"""Convert a message to one that waits in the timer topic.

    Args:
        copy_from: for a copy, the topic where the original waits.

    Raises:
        UsageError: its properties become too long.

    >>> waits = waiting(Draft("flights", 2, b"", b"TIMER_DELIVER_MS\x01300000000000"), 300000000000)
    >>> waits.topic, waits.queue_id, waits.tag_code
    ('rmq_sys_wheel_timer', 0, 300000000000)
    """
    properties = decode(draft.properties)
    properties[TIMER_OUT_MS] = str(due_ms)
    properties[REAL_TOPIC] = draft.topic
    properties[REAL_QUEUE] = str(draft.queue_id)
    properties.pop(TIMER_COPY_FROM, None)  # of a client
    if copy_from:
        properties[TIMER_COPY_FROM] = copy_from
    text = encode(properties)
    if len(text) > PROPERTIES_BYTES_MAX - _ORIGIN_BYTES:
        raise UsageError(
            f"The properties of the timed message have {len(text)} bytes; at most "
            f"{PROPERTIES_BYTES_MAX - _ORIGIN_BYTES} are allowed while it waits."
        )
    return msgspec.structs.replace(
        draft,
        topic=TIMER_TOPIC,
        queue_id=slot_of(due_ms) % SLOTS,
        properties=text,
        tag_code=due_ms,
        destination=draft.topic,
    )


def due_ms_in(properties: bytes) -> int | None:
    r"""When a waiting message is due, ms since 1970; None if it is not a waiting message.

    >>> due_ms_in(b"TIMER_OUT_MS\x011700000000000")
    1700000000000
    """
    return number_in(decode(properties).get(TIMER_OUT_MS))


def rolled(record: Record) -> Draft | None:
    """Copy a waiting message for the end of the log; None if it is not a waiting message."""
    properties = decode(record.properties)
    due_ms = number_in(properties.get(TIMER_OUT_MS))
    if due_ms is None:
        return None
    properties.setdefault(TIMER_ENQUEUE_MS, str(record.store_ms))
    properties[TIMER_ROLLS] = str((number_in(properties.get(TIMER_ROLLS)) or 0) + 1)
    origin = {TIMER_COPY_FROM: TIMER_TOPIC}
    text = _text(properties | origin) or _text(decode(record.properties) | origin)
    if text is None:  # an older version has stored it, and left no room
        text = record.properties
    return _copy(record, TIMER_TOPIC, slot_of(due_ms) % SLOTS, text, due_ms)


def copied_from(properties: bytes) -> str:
    r"""The topic where the original of a copy waits; empty if the message is not a copy.

    >>> copied_from(b"TIMER_OUT_MS\x019\x02TIMER_COPY_FROM\x01SCHEDULE_TOPIC_XXXX")
    'SCHEDULE_TOPIC_XXXX'
    """
    return decode(properties).get(TIMER_COPY_FROM, "")


def released(record: Record, now_ms: int) -> Draft | None:
    """Convert a waiting message to the one to deliver; None if its destination is invalid.

    As in RocketMQ 5 it keeps TIMER_OUT_MS, which shows that it has waited, and gets the times when
    it began and ended to wait.

    Args:
        now_ms: the time.
    """
    properties = decode(record.properties)
    found = destination(properties)
    if found is None:
        return None
    topic, queue = found
    for name in (REAL_TOPIC, REAL_QUEUE, TIMER_COPY_FROM):
        properties.pop(name, None)
    times = {TIMER_ENQUEUE_MS: str(record.store_ms), TIMER_DEQUEUE_MS: str(now_ms)}
    text = _text({**times, **properties, TIMER_DEQUEUE_MS: str(now_ms)}) or encode(properties)
    return _copy(record, topic, queue, text, tag_code(properties.get(TAGS)))


def _text(properties: Mapping[str, str]) -> bytes | None:
    """Encode properties; None if they have become too long."""
    try:
        return encode(properties)
    except UsageError:
        return None


def _copy(record: Record, topic: str, queue_id: int, text: bytes, code: int) -> Draft:
    return Draft(
        topic,
        queue_id,
        bytes(record.body),
        text,
        tag_code=code,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
        keys=index_keys(decode(text)),
    )


class TimedEntry(msgspec.Struct, frozen=True, order=True):
    """A waiting message: when it is due, and its offset in the log."""

    due_ms: int
    offset: int

    @classmethod
    def of(cls, entry: QueueEntry) -> TimedEntry | None:
        """Read an entry of a slot's queue; None if it has no due time.

        A Java broker that rebuilds consume queues puts the tag code there.

        >>> TimedEntry.of(QueueEntry(7, 800, 100, 1_700_000_000_000))
        TimedEntry(due_ms=1700000000000, offset=800)
        >>> TimedEntry.of(QueueEntry(7, 800, 100, 97)) is None
        True
        """
        return cls(entry.code, entry.physical_offset) if entry.code >= _PLAUSIBLE_MS else None


_Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _Step(msgspec.Struct, frozen=True, array_like=True):
    """Messages stored before `log_offset` are delivered up to (`due_ms`, `offset`)."""

    due_ms: _Number
    offset: _Number
    log_offset: _Number


class _Void(msgspec.Struct, frozen=True, array_like=True):
    """Copies at log offsets from `begin` to `end` whose originals are in `topic` do not count."""

    topic: str
    begin: _Number
    end: _Number


class Progress(msgspec.Struct, frozen=True, rename="camel"):
    """Records which waiting messages are delivered, and which copies do not count.

    Usually there is one step: all messages due up to some time are delivered. A clock that was set
    back leaves two, because new messages are due before the time of the first step. When the clock
    has caught up, there is one again.

    Args:
        steps: later steps reach less far in time, and farther in the log.
        rolled_to: the messages before this log offset are delivered or stored again behind it.
        voids: where the log has copies that do not count.

    >>> progress = Progress().delivered(TimedEntry(9_000, 400), 700)
    >>> [progress.has(TimedEntry(9_000, offset)) for offset in (400, 500)]
    [True, False]
    >>> [progress.has(TimedEntry(8_000, offset)) for offset in (500, 700)]
    [True, False]
    >>> progress = progress.delivered(TimedEntry(5_000, 800), 900)
    >>> len(progress.steps), len(progress.delivered(TimedEntry(9_001, 0), 950).steps)
    (2, 1)
    """

    steps: tuple[_Step, ...] = ()
    rolled_to: _Number = 0
    voids: tuple[_Void, ...] = ()

    def has(self, entry: TimedEntry) -> bool:
        """Whether a message is delivered or stored again."""
        due_ms, offset = entry.due_ms, entry.offset
        if offset < self.rolled_to:
            return True
        for step in self.steps:
            if offset < step.log_offset and (due_ms, offset) <= (step.due_ms, step.offset):
                return True
        return False

    def delivered(self, last: TimedEntry, log_offset: int) -> Progress:
        """The progress after messages stored before `log_offset` were delivered up to `last`."""
        kept = [step for step in self.steps if TimedEntry(step.due_ms, step.offset) > last]
        steps = (*kept, _Step(last.due_ms, last.offset, log_offset))
        return msgspec.structs.replace(self, steps=steps)

    def rolling(self, log_offset: int) -> Progress:
        """The progress after messages waiting before `log_offset` were stored again."""
        return msgspec.structs.replace(self, rolled_to=max(log_offset, self.rolled_to))

    def without_copies(self, topic: str, begin: int, end: int, log_begin: int) -> Progress:
        """The progress after a start that has found no mark behind a log offset.

        Args:
            topic: the topic of the originals.
            begin: the offset.
            end: the end of the log.
            log_begin: its begin; what is known of deleted records is forgotten.

        >>> Progress().without_copies("T", 400, 900, 0).voids_at(500)
        ['T']
        """
        kept = [void for void in self.voids if void.end > log_begin]
        return msgspec.structs.replace(self, voids=(*kept, _Void(topic, begin, end)))

    def voids_at(self, offset: int) -> list[str]:
        """The topics of originals whose copies do not count at a log offset."""
        return [void.topic for void in self.voids if void.begin <= offset < void.end]

    @property
    def known_to(self) -> int:
        """The log offset from which on no message is delivered."""
        return max([self.rolled_to, *(step.log_offset for step in self.steps)])

    @property
    def due_ms(self) -> int | None:
        """Messages before `known_to` that are due before this are delivered; None if unknown."""
        return self.steps[-1].due_ms if self.steps else None


def mark(progress: Progress, host: bytes, now_ms: int) -> Draft:
    """The message that records the progress.

    Args:
        host: this broker's address as in records.
        now_ms: the time.

    >>> made = mark(Progress().rolling(7), bytes(8), 0)
    >>> made.queue_id, read_mark(made.body).rolled_to
    (1000, 7)
    """
    body = msgspec.json.encode(progress)
    return Draft(TIMER_TOPIC, MARKS, body, b"", born_ms=now_ms, born_host=host)


def read_mark(body: bytes | memoryview) -> Progress | None:
    """Read the body of a mark; None if it is invalid."""
    try:
        return decoder(Progress).decode(body)
    except msgspec.DecodeError:
        return None
