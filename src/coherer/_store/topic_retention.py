"""Retention of single topics: messages that are too old, or too many, are hidden from readers.

All topics share one log, and its files are deleted as a whole, by the retention of the node. So the
retention of a topic can only be shorter. It raises the first offset of the topic's queues: readers
of both protocols continue there, as after a deletion. The disk space is freed when the log file is
deleted. Until then hidden messages can be found by key or id, replicas and backups contain them,
and programs that read the files of the store see them. The raised offsets are not stored; they are
computed again after a restart.

The size of a queue is the sum of the sizes in its entries. It is counted once and then kept up to
date, a limited number of entries at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from coherer._store import reading
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import BLANK_SIZE, ENTRY, ConsumeQueue, QueueDirectory
from coherer.errors import UsageError

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)\Z")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)(?:([KMGT])i?)?B\Z", re.IGNORECASE)
_ENTRIES_MAX: Final = 100_000
_CHUNK: Final = 4_096

_TEXT_MAX: Final = 100


class TopicLimit(msgspec.Struct, frozen=True):
    """How long messages of a topic can be read, and how many.

    Args:
        age_ms: the age at which messages are hidden; None for no limit.
        size_bytes: the largest size of each queue's records; the oldest messages beyond it are
            hidden. None for no limit.
    """

    age_ms: int | None = None
    size_bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> TopicLimit:
        """Read a time, a size, or both, separated by a slash.

        Raises:
            UsageError: the text is something else.

        >>> TopicLimit.parse("24h"), TopicLimit.parse("1.5GiB/2d").size_bytes
        (TopicLimit(age_ms=86400000, size_bytes=None), 1610612736)
        """
        age = size = None
        if len(text) > _TEXT_MAX:  # a number of so many digits would be infinite
            raise UsageError("A retention has too many digits.")
        for part in text.split("/"):
            time, many = _TIME.match(part.strip()), _SIZE.match(part.strip())
            if time is not None and age is None:
                age = int(float(time[1]) * _UNITS_MS[time[2]])
            elif many is not None and size is None:
                size = int(float(many[1]) * _UNITS_BYTES[(many[2] or "").upper()])
            else:
                raise UsageError(
                    f"{text!r} is not a valid retention.",
                    hint="Write a time (30m, 24h, 7d), a size (500MiB, 10GiB), or both: 24h/10GiB.",
                )
        return cls(age, size)


class _Counted:
    """The total record size of the entries `[begin, end)` of a queue."""

    __slots__ = ("begin", "bytes", "end")

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.bytes = 0


class TopicRetention:
    """Hides messages of topics that have limits."""

    def __init__(self, log: CommitLog, queues: QueueDirectory) -> None:
        self._log = log
        self._queues = queues
        self._counted: dict[ConsumeQueue, _Counted] = {}

    def apply(self, limits: Mapping[str, TopicLimit], now_ms: int) -> int:
        """Hide the messages that exceed the limits; return their number.

        Raises:
            OSError: the files cannot be read.
        """
        hidden, left = 0, _ENTRIES_MAX
        seen: set[ConsumeQueue] = set()
        for topic, limit in limits.items():
            for number in self._queues.numbers(topic):
                queue = self._queues.queues[topic, number]
                before = queue.min
                if limit.age_ms is not None:
                    since_ms = now_ms - limit.age_ms
                    queue.hide(reading.offset_at_time(self._log, queue, since_ms, nearest=False))
                if limit.size_bytes is not None:
                    left = self._limit_size(queue, limit.size_bytes, left)
                    seen.add(queue)
                hidden += queue.min - before
        for queue in self._counted.keys() - seen:
            del self._counted[queue]
        return hidden

    def _limit_size(self, queue: ConsumeQueue, limit: int, left: int) -> int:
        counted = self._counted.get(queue)
        if counted is None or counted.end > queue.max or counted.begin > queue.min:
            counted = self._counted[queue] = _Counted(queue.min)
        while counted.end < queue.max and left > 0:
            sizes = _sizes(queue, counted.end, min(_CHUNK, queue.max - counted.end))
            if not sizes:
                break
            counted.end += len(sizes)
            counted.bytes += sum(sizes)
            left -= len(sizes)
        while counted.begin < counted.end and (counted.bytes > limit or counted.begin < queue.min):
            sizes = _sizes(queue, counted.begin, min(_CHUNK, counted.end - counted.begin))
            if not sizes:
                break
            for size in sizes:
                if counted.bytes <= limit and counted.begin >= queue.min:
                    break
                counted.bytes -= size
                counted.begin += 1
        queue.hide(counted.begin)
        return left


def _sizes(queue: ConsumeQueue, index: int, count: int) -> list[int]:
    """The record sizes in some entries; 0 for blanks."""
    return [
        0 if size == BLANK_SIZE else size
        for _, size, _ in ENTRY.iter_unpack(queue.read(index, count))
    ]
