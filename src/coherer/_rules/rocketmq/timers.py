r"""Timed messages: where they wait, which of them are done, what is delivered.

RocketMQ 5.x added properties that say when a message is due: TIMER_DELAY_SEC and TIMER_DELAY_MS
count from the arrival at the broker, TIMER_DELIVER_MS is a time. A message that is not due yet
waits in the timer topic with its due time (TIMER_OUT_MS), its real topic and its real queue as
properties, as in 5.x. The queue it waits in stands for a *slot* of time, where 5.x has one queue
and further files: slot n holds what is due in the n-th period of `SLOT_MS` since 1970, and lies in
queue n % `SLOTS`. So the messages of one slot are found without reading those of the others, and
the only files are the log and its consume queues, which recovery and replication know already. The
entry of a waiting message holds its due time where that of others holds the tag code.

Which messages are done is written into the log too, by a *mark*: a message in queue `MARKS` of the
timer topic, stored in one piece with the messages that it counts as delivered. The newest mark says
everything (`Progress`), so that a crash neither loses nor repeats a delivery. When the log has
dropped the newest mark because of its age, it has dropped the messages that the mark speaks of as
well, because they lie before it.

A due time is wall time: clocks that jump make messages due earlier or later. None is lost by that:
`Progress` does not only know up to which time everything is delivered, but also of which part of
the log that was true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from coherer._record import system_topics
from coherer._record.layout import Record
from coherer._record.properties import (
    REAL_QUEUE,
    REAL_TOPIC,
    TAGS,
    TIMER_CANCEL,
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
    tag_code,
)
from coherer._store.model import Draft, QueueEntry
from coherer.errors import UsageError
from coherer.limits import TIMER_DELAY_MS_MAX

__all__ = [
    "MARKS",
    "SLOTS",
    "SLOT_MS",
    "TIMER_TOPIC",
    "Place",
    "Progress",
    "TimerError",
    "any_timed",
    "due_ms_of",
    "is_timed",
    "mark",
    "read_mark",
    "released",
    "rolled",
    "slot_of",
    "waiting",
]

TIMER_TOPIC: Final = system_topics.TIMER_TOPIC
SLOT_MS: Final = 300_000
"""The messages due in this period are looked at together; their due times are in memory then."""
SLOTS: Final = 1_000
"""So many slots are 3.47 days. The longest delay is three days, so that the messages of a slot and
those that lay in the same queue before are apart by the time they were stored."""
MARKS: Final = SLOTS
"""The queue of the marks."""

_TIMED: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""In the order in which 5.x looks at them."""
_HINT: Final = b"TIMER_DEL"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}\Z")
_PLAUSIBLE_MS: Final = 1 << 33
"""Tag codes have 32 bits, so that no code of a tag is taken for a due time."""


class TimerError(Exception):
    """Why a broker does not take a timed message. The text is 5.x's where it has one."""


def is_timed(properties: bytes) -> bool:
    r"""Say whether a message asks for a time of delivery that it has not waited for yet.

    Args:
        properties: its property text.

    >>> is_timed(b"TIMER_DELAY_SEC\x015"), is_timed(b"TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x011")
    (True, False)
    """
    return _HINT in properties and _is_timed(decode(properties))


def any_timed(properties: Sequence[bytes]) -> bool:
    """Say whether one of many messages asks for a time of delivery.

    Args:
        properties: their property texts.
    """
    return _HINT in b"\x02".join(properties) and any(map(is_timed, properties))


def _is_timed(properties: Mapping[str, str]) -> bool:
    return TIMER_OUT_MS not in properties and any(name in properties for name in _TIMED)


def due_ms_of(properties: bytes, now_ms: int) -> int | None:
    r"""Give the time at which a message with this property text is due.

    Args:
        properties: the text.
        now_ms: the time, ms since 1970.

    Returns:
        The time in ms since 1970; None for a message without one, or whose time has come.

    Raises:
        TimerError: the time is no number, or too far away.

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
    """Give the slot of a due time; its queue is `slot % SLOTS`.

    >>> slot_of(299_999), slot_of(300_000)
    (0, 1)
    """
    return due_ms // SLOT_MS


def waiting(draft: Draft, due_ms: int) -> Draft:
    r"""Give the message that waits in the timer topic in place of `draft`.

    >>> waits = waiting(Draft("flights", 2, b"", b"TIMER_DELIVER_MS\x01300000000000"), 300000000000)
    >>> waits.topic, waits.queue_id, waits.tag_code
    ('rmq_sys_wheel_timer', 0, 300000000000)
    """
    properties = decode(draft.properties)
    properties[TIMER_OUT_MS] = str(due_ms)
    properties[REAL_TOPIC] = draft.topic
    properties[REAL_QUEUE] = str(draft.queue_id)
    return msgspec.structs.replace(
        draft,
        topic=TIMER_TOPIC,
        queue_id=slot_of(due_ms) % SLOTS,
        properties=encode(properties),
        tag_code=due_ms,
    )


def rolled(record: Record) -> Draft | None:
    """Give the copy of a waiting message for the end of the log; None for what cannot be one."""
    properties = decode(record.properties)
    due_ms = _number(properties.get(TIMER_OUT_MS))
    if due_ms is None:
        return None
    properties.setdefault(TIMER_ENQUEUE_MS, str(record.store_ms))
    properties[TIMER_ROLLS] = str((_number(properties.get(TIMER_ROLLS)) or 0) + 1)
    text = _text(properties) or record.properties
    return _copy(record, TIMER_TOPIC, slot_of(due_ms) % SLOTS, text, due_ms)


def released(record: Record, now_ms: int) -> Draft | None:
    """Give the message to deliver for one that has waited; None if it cannot be delivered.

    As in 5.x it keeps TIMER_OUT_MS, which says that it has waited, and tells when that began and
    ended.

    Args:
        record: what waited.
        now_ms: the time.
    """
    properties = decode(record.properties)
    topic, queue = properties.pop(REAL_TOPIC, None), properties.pop(REAL_QUEUE, "")
    if topic is None or not queue.isascii() or not queue.isdecimal():
        return None
    times = {TIMER_ENQUEUE_MS: str(record.store_ms), TIMER_DEQUEUE_MS: str(now_ms)}
    text = _text({**times, **properties, TIMER_DEQUEUE_MS: str(now_ms)}) or encode(properties)
    return _copy(record, topic, int(queue), text, tag_code(properties.get(TAGS)))


def _text(properties: Mapping[str, str]) -> bytes | None:
    """The property text; None where there is no room for what was added."""
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


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


class Place(msgspec.Struct, frozen=True, order=True):
    """A waiting message: when it is due, and its offset in the log."""

    due_ms: int
    offset: int

    @classmethod
    def of(cls, entry: QueueEntry, properties: bytes | None = None) -> Place | None:
        r"""Give the place of an entry of a slot's queue.

        Args:
            entry: the entry.
            properties: the property text of its message, for an entry that holds no due time: a
                Java broker that rebuilds consume queues puts the tag code there.

        >>> Place.of(QueueEntry(7, 800, 100, 1_700_000_000_000))
        Place(due_ms=1700000000000, offset=800)
        >>> Place.of(QueueEntry(7, 800, 100, 97)) is None
        True
        >>> Place.of(QueueEntry(7, 800, 100, 97), b"TIMER_OUT_MS\x011700000000000")
        Place(due_ms=1700000000000, offset=800)
        """
        if entry.code >= _PLAUSIBLE_MS:
            return cls(entry.code, entry.physical_offset)
        if properties is None:
            return None
        due_ms = _number(decode(properties).get(TIMER_OUT_MS))
        return None if due_ms is None else cls(due_ms, entry.physical_offset)


class _Step(msgspec.Struct, frozen=True, array_like=True):
    """What was stored before `log_offset` is delivered up to the place `due_ms`, `offset`."""

    due_ms: int
    offset: int
    log_offset: int


class Progress(msgspec.Struct, frozen=True, rename="camel"):
    """Which waiting messages are done.

    Usually there is one step: all that was due up to some time is delivered. A clock that was set
    back leaves two, because messages come in that are due before the time of the first; when the
    clock has caught up, it is one again.

    Args:
        steps: the later ones reach less far in time and farther in the log.
        rolled_to: the messages before this offset of the log are delivered, or were stored again
            behind it.

    >>> progress = Progress().delivered(Place(9_000, 400), 700)
    >>> [progress.has(Place(9_000, offset)) for offset in (400, 500)]
    [True, False]
    >>> [progress.has(Place(8_000, offset)) for offset in (500, 700)]
    [True, False]
    >>> progress = progress.delivered(Place(5_000, 800), 900)
    >>> len(progress.steps), len(progress.delivered(Place(9_001, 0), 950).steps)
    (2, 1)
    """

    steps: tuple[_Step, ...] = ()
    rolled_to: int = 0

    def has(self, place: Place) -> bool:
        """Say whether the message of a place is done."""
        due_ms, offset = place.due_ms, place.offset
        if offset < self.rolled_to:
            return True
        for step in self.steps:
            if offset < step.log_offset and (due_ms, offset) <= (step.due_ms, step.offset):
                return True
        return False

    def delivered(self, last: Place, log_offset: int) -> Progress:
        """Give what holds when what was stored before `log_offset` is delivered up to `last`."""
        kept = [step for step in self.steps if Place(step.due_ms, step.offset) > last]
        return Progress((*kept, _Step(last.due_ms, last.offset, log_offset)), self.rolled_to)

    def rolling(self, log_offset: int) -> Progress:
        """Give what holds when what waited before `log_offset` is stored again."""
        return Progress(self.steps, max(log_offset, self.rolled_to))

    @property
    def known_to(self) -> int:
        """The offset of the log from which on nothing is done."""
        return max([self.rolled_to, *(step.log_offset for step in self.steps)])

    @property
    def due_ms(self) -> int | None:
        """All before `known_to` that is due before this is done; None when that is not known."""
        return self.steps[-1].due_ms if self.steps else None


def mark(progress: Progress, host: bytes, now_ms: int) -> Draft:
    """Give the message that says how far the deliveries are.

    Args:
        progress: how far.
        host: this broker, as records name it.
        now_ms: the time.

    >>> made = mark(Progress().rolling(7), bytes(8), 0)
    >>> made.queue_id, read_mark(made.body).rolled_to
    (1000, 7)
    """
    body = msgspec.json.encode(progress)
    return Draft(TIMER_TOPIC, MARKS, body, b"", born_ms=now_ms, born_host=host)


def read_mark(body: bytes | memoryview) -> Progress | None:
    """Read the body of a mark; None if it is none."""
    try:
        return msgspec.json.decode(body, type=Progress)
    except msgspec.DecodeError:
        return None
