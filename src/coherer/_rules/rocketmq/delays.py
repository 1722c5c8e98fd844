r"""Delayed messages: the queues in which they wait, and their delivery.

See docs/protocol/rocketmq.md, section 6.6.

A message with the property DELAY is stored in queue `level - 1` of the schedule topic, with its
real topic and queue as properties. The messages of a level become due in the order of their
arrival, so each level needs only one offset: the next entry to deliver.

`delayOffset.json` holds these offsets. After a burst Java 4.9.3 writes wrong ones (the offset where
it began to read, plus one), so that a restart delivers messages twice. Here the offset always
points behind the last delivered message.

The file is written every few seconds. So that a crash repeats no delivery, the offsets are also in
the log: a *mark* is a message in queue `MARKS` of the timer topic, stored atomically with the
messages whose delivery it records. Java's brokers do not know this queue and use the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from coherer._common.decoding import decoder
from coherer._record.layout import Record
from coherer._record.properties import (
    DELAY,
    REAL_QUEUE,
    REAL_TOPIC,
    TAGS,
    decode,
    encode,
    index_keys,
    tag_code,
)
from coherer._record.system_topics import DELAY_LEVELS_MS, SCHEDULE_TOPIC, TIMER_TOPIC
from coherer._rules.common.java_json import quote_keys
from coherer._rules.common.origins import destination
from coherer._rules.rocketmq import timers
from coherer._store.clock_history import ClockHistory
from coherer._store.model import Draft, QueueEntry
from coherer.errors import DamagedStoreError, UsageError

_MARK: Final = b"DELAY\x01"

MARKS: Final = timers.MARKS + 1
"""The queue of the marks, in the timer topic."""


def delay_level(properties: bytes) -> int:
    r"""The delay level in a property text; 0 for none.

    Raises:
        UsageError: the level is not a number.

    >>> delay_level(b"TAGS\x01a\x02DELAY\x013"), delay_level(b"TAGS\x01DELAY"), delay_level(b"")
    (3, 0, 0)
    """
    if _MARK not in properties:
        return 0
    text = decode(properties).get(DELAY)
    if text is None:
        return 0
    try:
        return int(text)
    except ValueError:
        # The words of Java's parser, with which the request fails there.
        raise UsageError(f'For input string: "{text}"') from None


def delayed(draft: Draft, level: int, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> Draft:
    r"""Convert a message to one that waits in the schedule topic.

    Args:
        level: its level, above 0; the highest level is used for a higher one.
        levels_ms: the delays of the levels.

    >>> waits = delayed(Draft("flights", 2, b"", b"DELAY\x0199"), 99)
    >>> waits.topic, waits.queue_id, waits.properties
    ('SCHEDULE_TOPIC_XXXX', 17, b'DELAY\x0118\x02REAL_TOPIC\x01flights\x02REAL_QID\x012')
    """
    level = min(level, len(levels_ms))
    properties = decode(draft.properties)
    properties[DELAY] = str(level)
    properties[REAL_TOPIC] = draft.topic
    properties[REAL_QUEUE] = str(draft.queue_id)
    return msgspec.structs.replace(
        draft,
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=encode(properties),
        destination=draft.topic,
    )


def released(record: Record) -> Draft | None:
    """Convert a waiting message to the one to deliver; None if its destination is invalid.

    The property text does not change: Java's brokers leave DELAY, REAL_TOPIC and REAL_QID in it.
    """
    properties = decode(record.properties)
    found = destination(properties)
    if found is None:
        return None
    topic, queue = found
    return Draft(
        topic,
        queue,
        bytes(record.body),
        record.properties,
        tag_code=tag_code(properties.get(TAGS)),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
        keys=index_keys(properties),
    )


def due_ms(entry: QueueEntry, times: ClockHistory, delay_ms: int) -> int:
    """When an entry is due, by the monotonic clock.

    Setting the time of day does not change how long a message waits. A message stored by an earlier
    process is due at the latest its whole delay after the start: a later delivery time is
    impossible, and comes from a clock that was ahead.

    Args:
        entry: an entry of the schedule topic; its code is the delivery time by the time of day.
        times: when messages were stored.
        delay_ms: the level's delay.

    >>> times = ClockHistory(100, now_ms=5_000, wall_ms=5_000)
    >>> [due_ms(QueueEntry(0, 0, 100, code), times, 1_000) for code in (4_500, 5_500, 9_000)]
    [4500, 5500, 6000]
    """
    due = times.stored_ms(entry.physical_offset, entry.code)
    if times.is_older(entry.physical_offset):
        return min(due, times.opened_ms + delay_ms)
    return due


def corrected(entry: QueueEntry, store_ms: int, delay_ms: int) -> QueueEntry:
    """The entry, with the delivery time that its message tells if a bit of its own has flipped.

    Delays are whole seconds, so this shows. Those of the levels may have been other ones when the
    message was stored.

    Args:
        entry: an entry of the schedule topic.
        store_ms: when its message was stored, by the time of day.
        delay_ms: the level's delay.

    >>> entries = [QueueEntry(0, 0, 100, code) for code in (7_000, 8_000, 7_064)]
    >>> [corrected(entry, 5_000, 2_000).code for entry in entries]
    [7000, 8000, 7000]
    """
    wait_ms = entry.code - store_ms
    if wait_ms == delay_ms or (wait_ms >= 0 and wait_ms % 1_000 == 0):
        return entry
    return entry._replace(code=store_ms + delay_ms)


def due_count(
    entries: Sequence[QueueEntry], now_ms: int, due_at: Callable[[QueueEntry], int]
) -> tuple[int, int | None]:
    """Count the due entries at the front.

    Args:
        entries: entries of one level, in order.
        now_ms: the time.
        due_at: returns when an entry is due, by the same clock.

    Returns:
        Their number, and the delivery time of the next entry, or None.

    >>> due_times = [5_000, 6_000, 9_000]
    >>> entries = [QueueEntry(i, 100 * i, 100, due) for i, due in enumerate(due_times)]
    >>> due_count(entries, 6_500, lambda entry: entry.code)
    (2, 9000)
    """
    for count, entry in enumerate(entries):
        due = due_at(entry)
        if now_ms < due:
            return count, due
    return len(entries), None


class DelayPositions:
    """The next entry to deliver of each level, and their file.

    >>> positions = DelayPositions()
    >>> positions[3] = 8
    >>> positions.dump()
    b'{"offsetTable":{3:8}}'
    >>> DelayPositions.load(b'{"offsetTable":{3:9, 18 :1}}')[18]
    1
    """

    def __init__(self, offsets: Mapping[int, int] | None = None) -> None:
        self._offsets = dict(offsets or {})

    def __getitem__(self, level: int) -> int:
        return self._offsets.get(level, 0)

    def __setitem__(self, level: int, offset: int) -> None:
        self._offsets[level] = offset

    def correct(self, range_of: Callable[[int], tuple[int, int]], levels: int) -> None:
        """Limit the offsets to the range of the queues.

        Args:
            range_of: returns the first and the next offset of a level's queue.
            levels: the number of levels.
        """
        for level in range(1, levels + 1):
            first, end = range_of(level)
            offset = min(max(self[level], first), end)
            if offset != self[level]:
                self._offsets[level] = offset

    def copy(self) -> DelayPositions:
        """A copy, which changes on its own."""
        return DelayPositions(self._offsets)

    def advance(self, others: DelayPositions) -> None:
        """Move to other offsets where those are further."""
        for level, offset in others._offsets.items():
            self._offsets[level] = max(offset, self[level])

    def mark(self, host: bytes, now_ms: int) -> Draft:
        """The message that records these offsets in the log.

        Args:
            host: this broker's address as in records.
            now_ms: the time.

        >>> made = DelayPositions({3: 8}).mark(bytes(8), 0)
        >>> made.queue_id, made.body
        (1001, b'{"offsetTable":{3:8}}')
        """
        return Draft(TIMER_TOPIC, MARKS, self.dump(), b"", born_ms=now_ms, born_host=host)

    def dump(self) -> bytes:
        """The file's content as Java writes it: the levels are unquoted keys."""
        pairs = ",".join(f"{level}:{offset}" for level, offset in sorted(self._offsets.items()))
        return b'{"offsetTable":{' + pairs.encode() + b"}}"

    @classmethod
    def load(cls, data: bytes) -> DelayPositions:
        """Read the file.

        Raises:
            DamagedStoreError: it is invalid.
        """
        try:
            return cls(decoder(_File).decode(quote_keys(data)).offsets)
        except msgspec.DecodeError as error:
            raise DamagedStoreError(f"delayOffset.json cannot be read: {error}.") from error


class _File(msgspec.Struct):
    offsets: dict[int, int] = msgspec.field(name="offsetTable")
