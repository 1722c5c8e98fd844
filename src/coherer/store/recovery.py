"""Opening a directory: what is there, what is missing, what is damaged.

Theory. The log is the truth; queues and index say again what it says. The checkpoint vouches for
everything before an offset X. So:

1. Queues keep their entries of records before X. After a crash the entries behind are thrown away:
   a power cut may have left any of them, and most were only in memory (`waiting`). No file of the
   log is deleted before X lies behind it, so that queues keep their numbers.
2. The log is walked from `verify_bytes` before X, from where a record begins. Records before X are
   checked, also against their queue entries (the check sum covers only the body); records from X
   on are checked and *replayed*: they get their queue entries and keys.
3. Where no valid record follows, the log ends, but not before X. What lies behind is cut off.
   Damage that valid records follow stays where it is, is reported, and is stepped over by every
   reader; in the queues blanks stand for what it held, so that later messages keep their offsets.
4. A queue's `min` is its first entry whose record the log still has.

X is our own offset in the checkpoint. Without it (Java has used the directory): after a clean end
the end of the last record that any queue knows; after a crash the beginning of the file that
Java's own rule finds by its times (protocol page, 6.5).
"""

from __future__ import annotations

from coherer.record.layout import FIXED_BYTES, HEAD, MAGIC, store_ms_of
from coherer.store.checkpoint import Checkpoint
from coherer.store.log import CommitLog
from coherer.store.model import Damage, RecoveryReport
from coherer.store.queue import BLANK_SIZE, ConsumeQueue
from coherer.store.queues import Queues
from coherer.store.replay import Replayer
from coherer.store.scan import Scanner

_REPLAYED_AT_ONCE = 10_000
"""So many records wait for their queues."""


class Recovery:
    """Puts log and queues in agreement. Used once, while nobody else uses them.

    Args:
        log: the log, as its files are.
        queues: the queues, as their files are.
        checkpoint: what it says.
        clean: whether the last user closed the store.
        replica: a master has all of it: damage behind X is cut off with all that follows.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        checkpoint: Checkpoint,
        *,
        clean: bool,
        replica: bool = False,
    ) -> None:
        self._replica = replica
        self._log = log
        self._queues = queues
        self._checkpoint = checkpoint
        self._clean = clean

    def run(self, replayer: Replayer, verify_bytes: int) -> tuple[RecoveryReport, int]:
        """Do it all; see the module. Gives the report and the last record's store time.

        Args:
            replayer: takes the records; the caller reads from it what it wrote.
            verify_bytes: how much of the log before X is checked.
        """
        log = self._log
        replay_from = self._replay_from()
        if not self._clean:
            for queue in self._queues.values():
                self._cut_queue(queue, replay_from)
        vouched = self._clean or self._checkpoint.offset is not None
        trusted = replay_from if vouched else log.begin
        scanner = Scanner(log, log.begin, trusted, strict=self._replica)
        scanner.end = check_from = self._check_from(
            scanner, replay_from - verify_bytes, replay_from
        )
        suspects, last_ms = self._walk(scanner, replayer, replay_from)
        torn = scanner.torn_bytes()
        if torn or any(segment.begin > scanner.end for segment in log.segments):
            log.cut(scanner.end)
        log.settle(scanner.end, replay_from if vouched else log.begin, last_ms)
        for queue in self._queues.values():
            self._trim(queue)
        damage = sorted([*scanner.damage, *suspects], key=lambda piece: piece.begin)
        report = RecoveryReport(
            clean=self._clean,
            log_begin=log.begin,
            log_end=log.end,
            checked_from=check_from,
            replayed_from=replay_from,
            replayed=replayer.replayed,
            cut_bytes=torn,
            damage=tuple(damage),
            notes=_orphan_note(replayer.orphans),
        )
        return report, last_ms

    def _walk(
        self, scanner: Scanner, replayer: Replayer, replay_from: int
    ) -> tuple[list[Damage], int]:
        suspects: list[Damage] = []
        last_ms, seen = self._checkpoint.log_ms, 0
        for record in scanner:
            for piece in scanner.damage[seen:]:
                replayer.lost_bytes += max(piece.end - max(piece.begin, replay_from), 0)
            seen = len(scanner.damage)
            offset = record.physical_offset
            wrong = replayer.check(record) if offset < replay_from else replayer.replay(record)
            if wrong:
                suspects.append(Damage(offset, offset + record.size, wrong))
                replayer.lost_bytes += record.size
            elif record.store_ms > last_ms:
                last_ms = record.store_ms
            if replayer.replayed % _REPLAYED_AT_ONCE == 0:
                replayer.finish()
        replayer.finish()
        return suspects, last_ms

    def _replay_from(self) -> int:
        begin = self._log.begin
        if self._checkpoint.offset is not None:
            return max(self._checkpoint.offset, begin)
        if self._clean:
            ends = [self._end_of(queue) for queue in self._queues.values()]
            return max([begin, *ends])
        for segment in reversed(self._log.segments):
            head = memoryview(self._log.read(segment, segment.begin, FIXED_BYTES))
            whole = len(head) == FIXED_BYTES and HEAD.unpack_from(head)[1] == MAGIC
            if whole and 0 < store_ms_of(head) <= self._checkpoint.replay_ms:
                return segment.begin
        return begin

    def _end_of(self, queue: ConsumeQueue) -> int:
        entry = queue.entry(queue.max - 1) if queue.max > queue.min else None
        return 0 if entry is None or entry[1] == BLANK_SIZE else entry[0] + entry[1]

    def _cut_queue(self, queue: ConsumeQueue, replay_from: int) -> None:
        def holds(index: int, offset: int, size: int) -> bool:
            # Entries before X are whole. Behind it anything may stand, also half an entry in a
            # page of its own: then the entry before it is missing or does not fit.
            if size <= 0 or offset + size > replay_from:
                return True
            before = queue.entry(index - 1) if index > queue.min else None
            if before is None:
                return index > queue.min
            return before[1] <= 0 or (before[1] != BLANK_SIZE and before[0] + before[1] > offset)

        queue.withdraw(queue.first_where(holds))

    def _check_from(self, scanner: Scanner, wanted: int, replay_from: int) -> int:
        """Find where a record begins, at `wanted` or behind it, at most at `replay_from`."""
        if wanted <= self._log.begin:
            return self._log.begin
        segment = self._log.segment_at(wanted)
        if segment is None or wanted == segment.begin:
            return min(wanted, replay_from)
        found = scanner.next_valid(wanted)
        return replay_from if found is None else min(found, replay_from)

    def _trim(self, queue: ConsumeQueue) -> None:
        entry = queue.entry(queue.min) if queue.max > queue.min else None
        if entry is not None and entry[0] < self._log.begin:
            queue.trim(self._log.begin)


def _orphan_note(count: int) -> tuple[str, ...]:
    return (f"{count} records are in no queue: their topics were deleted",) if count else ()


def verify(log: CommitLog) -> list[Damage]:
    """Read the whole log; give the pieces that hold no valid record."""
    scanner = Scanner(log, log.begin, log.end)
    for record in scanner:
        if record.physical_offset >= log.end:  # written since we began
            break
    return [piece for piece in scanner.damage if piece.begin < log.end]
