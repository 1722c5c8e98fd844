"""A queue offset never means two messages, even if a power cut takes messages back.

With async flush a message can be read, and its offset stored elsewhere, before it is durable. After
a power cut the next message must not get that offset. So offsets are *reserved* ahead of the log:

* The checkpoint says how many entries a queue may have gained since the offset that it covers
  (`Checkpoint.reserve`). The writer counts the growth of the fastest queue (`claim`), and hands out
  offsets only within a reserve that is on the disk. The reserve lasts for about two seconds. The
  other thread extends it; if that comes too late, the writer does.
* When a store is opened after a power cut, a `Gap` is written into the checkpoint: each queue
  continues after the entries that it may have had. This is done with the next append to a queue,
  or when a reader is past its end, so that thousands of queues cost nothing. Blank entries
  fill the gap; readers pass over them.
* A gap is no loss for a reader: its messages were never durable, and nobody can get them. So the
  offset of a reader in a gap is never before the beginning of the queue, nor past its end.
* A process that dies without a power cut loses nothing that it wrote, and leaves no gap. The
  checkpoint names the boot of the machine that wrote it (`Files.boot_id`): if the same one still
  runs, there was no power cut. If that is unknown, one is assumed.
* After an orderly stop and with sync flush nothing is reserved.

A replica that becomes the master lacks what its last master had not yet sent, and readers may have
seen that, too. So a replica reserves as well, after an orderly stop and with sync flush, too. When
its store is opened as that of a master, the gap is as long as the reserve and `LEAD_MIN`. The
gaps that it has copied from its masters are in its checkpoint, like its own. A replica sees a gap
before the first message that follows it in the same queue. A master that starts with a gap writes
one to `GAP_QUEUE` at once, so that the next master does not hand out offsets of that gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from coherer._record.system_topics import SELF_TEST_TOPIC
from coherer._store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_BYTES, ConsumeQueue

GAP_QUEUE: Final = (SELF_TEST_TOPIC, 0)
"""The queue with a message after each gap of a master that has replicas."""
GAPS_MAX: Final = 4
LEAD_MIN: Final = 256
LEAD_MAX: Final = 1_000_000
_LEAD_S: Final = 2
_ELAPSED_MS_MIN: Final = 100


class Gap(Struct, frozen=True):
    """The records that a power cut may have taken back.

    Args:
        covered: the log offset from which on messages may be lost.
        end: the end of the log after the recovery.
        entries: the most entries that a queue can have had after `covered`.
    """

    covered: int
    end: int
    entries: int


def with_gap(gaps: Sequence[Gap], new: Gap) -> tuple[Gap, ...]:
    """Add a gap; join the oldest ones if there are too many.

    >>> gaps = [Gap(100 * n, 100 * n, n) for n in range(1, 5)]
    >>> with_gap(gaps, Gap(500, 500, 5))[:2]
    (Gap(covered=200, end=200, entries=3), Gap(covered=300, end=300, entries=3))
    """
    found = [*gaps, new]
    while len(found) > GAPS_MAX:
        first, second = found[:2]
        found[:2] = [Gap(second.covered, second.end, first.entries + second.entries)]
    return tuple(found)


def _last_place(queue: ConsumeQueue) -> int:
    """Return the log offset of a queue's last message, visible or not; -1 if it is not known."""
    for written in reversed(queue.new_entries):
        place, size, _ = ENTRY.unpack(written)
        if size != BLANK_SIZE:
            return int(place)
    at = queue.before_gap(queue.next) - 1
    while at * ENTRY_BYTES >= queue.first_file:
        entry = queue.entry(at)
        if entry is None:
            break
        if entry[1] != BLANK_SIZE:
            return entry[0]
        at -= 1
    return -1


def _from(place: int) -> Callable[[int, int, int], bool]:
    return lambda _, offset, __: offset >= place


def ends_in_gap(queue: ConsumeQueue, gaps: Sequence[Gap]) -> bool:
    """Whether no message of a queue is behind the last gap, so that the gap may still grow."""
    return bool(gaps) and _last_place(queue) < gaps[-1].end


def next_offset(queue: ConsumeQueue, gaps: Sequence[Gap]) -> int:
    """Return the first offset of a queue that no message can have had."""
    last = _last_place(queue)
    open_gaps = [gap for gap in gaps if last < gap.end]
    if not open_gaps:
        return queue.next
    # A gap that was filled before, without a message after it, is not filled once more.
    start = min(queue.first_where(_from(open_gaps[0].covered)), queue.before_gap(queue.next))
    return max(queue.next, start + sum(gap.entries for gap in open_gaps))


def is_gap(queue: ConsumeQueue, size: int, offset: int, gaps: Sequence[Gap]) -> bool:
    """Whether `size` entries may be missing before the record at a log offset."""
    before = [gap for gap in gaps if gap.end <= offset]
    if not before or size > sum(gap.entries for gap in before):
        return False
    return _last_place(queue) < before[-1].end


def with_copied(
    gaps: Sequence[Gap], queue: ConsumeQueue, size: int, offset: int
) -> tuple[Gap, ...]:
    """Add what a replica finds: `size` entries are missing before the record at a log offset.

    All queues have gaps there. They may be of different sizes, so the largest one counts.
    """
    if is_gap(queue, size, offset, gaps):
        return tuple(gaps)
    if ends_in_gap(queue, gaps):
        last = gaps[-1]
        return (*gaps[:-1], Gap(last.covered, last.end, max(last.entries, size)))
    return with_gap(gaps, Gap(offset, offset, size))


class Reserve:
    """Counts how much queues grow, and how much they may grow. The caller holds a lock.

    Attributes:
        growth: the most entries that any queue can have gained since the store was opened.
        limit: the growth that is reserved on the disk.
        covered: the growth at the offset that the checkpoint covers.
    """

    def __init__(self) -> None:
        self.growth = self.limit = self.covered = 0
        self._lead = LEAD_MIN
        self._saved = (0, 0)  # time and growth when the reserve was extended last

    @property
    def is_low(self) -> bool:
        """Whether half of the reserve is used."""
        return 0 < self.limit < self.growth + self._lead // 2

    def claim(self, entries: int, skipped: int = 0) -> bool:
        """Let queues grow by up to `entries`; returns False if the reserve must be extended.

        Args:
            skipped: how many of them fill a copied gap. They say nothing of the speed.
        """
        if self.growth + entries > self.limit:
            return False
        self.growth += entries
        saved_ms, growth = self._saved
        self._saved = saved_ms, growth + skipped
        return True

    def plan(self, now_ms: int, wanted: int) -> int:
        """Return the next limit, and do not exceed it from now on.

        Args:
            now_ms: a monotonic clock.
            wanted: the entries that the next batch needs.
        """
        saved_ms, growth = self._saved
        elapsed_ms = max(now_ms - saved_ms, _ELAPSED_MS_MIN)
        used = (self.growth - growth) * 1000 * _LEAD_S // elapsed_ms
        self._lead = max(LEAD_MIN, min(used, LEAD_MAX), wanted)
        self._saved = now_ms, self.growth
        limit = self.growth + self._lead
        self.limit = min(self.limit, limit)
        return limit
