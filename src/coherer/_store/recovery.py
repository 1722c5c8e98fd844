"""Records of the log are compared with the queues, or put into them again.

Opening a directory: what is there, what is missing, what is damaged.

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
4. Queues that do not fit the log, or what was there when the store was closed (`inventory`), are
   made again from the log; so is the key index.
5. A queue's `min` is its first entry whose record the log still has.

X is our own offset in the checkpoint. Without it (Java has used the directory): after a clean end
the end of the last record that any queue knows; after a crash the beginning of the file that
Java's own rule finds by its times (protocol page, 6.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

from coherer._record.layout import (
    FIXED_BYTES,
    HEAD,
    MAGIC,
    PREPARED,
    ROLLED_BACK,
    RecordSummary,
    store_ms_of,
)
from coherer._record.properties import TAGS, TIMER_OUT_MS, decode, index_keys, tag_code
from coherer._record.system_topics import TIMER_TOPIC
from coherer._store.checkpoint import Checkpoint
from coherer._store.commit_log import CommitLog, Scanner
from coherer._store.consume_queue import (
    BLANK_ENTRY,
    BLANK_SIZE,
    ENTRY,
    ENTRY_BYTES,
    ConsumeQueue,
    QueueDirectory,
    Queues,
    take_all,
)
from coherer._store.index import KeyIndex
from coherer._store.index_file import Keys
from coherer._store.model import DamagedRange, RecoveryReport
from coherer.errors import UsageError

RECORD_BYTES_MIN = 92
"""No record is smaller: damage of n bytes held n / 92 messages at most."""

_WINDOW_ENTRIES = 4096
_TIMER_TOPIC = TIMER_TOPIC.encode()
_SPECIAL = (b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01")


class Replayer:
    """Puts records, in the order of the log, into queues and index.

    Args:
        queues: the consume queues, as far as the checkpoint vouches for them.
        index: the key index, if there is one.
        now_ms: names a new index file.
    """

    def __init__(self, queues: QueueDirectory, index: KeyIndex | None, now_ms: int) -> None:
        self._queue_of = queues.get
        self._all = queues.queues
        self._index = index
        self._now_ms = now_ms
        self._waiting = queues.waiting
        self._queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._touched: dict[ConsumeQueue, None] = {}
        self._firsts: dict[str, int] = {}
        self._windows: dict[ConsumeQueue, tuple[int, bytes]] = {}
        self.lost_bytes = 0
        self.replayed = 0
        self.orphans = 0
        self.blanks = 0

    def check(self, record: RecordSummary) -> str:
        """Compare a record with its queue entry; give what is wrong, or ""."""
        if record.sys_flag & ROLLED_BACK in (PREPARED, ROLLED_BACK):
            return ""
        queue = self._queue(record)
        if queue is None:
            return "topic"
        queue_offset, offset = record.queue_offset, record.physical_offset
        if queue.min <= queue_offset < queue.max:
            begin, window = self._windows.get(queue, (0, b""))
            at = (queue_offset - begin) * ENTRY_BYTES
            if not 0 <= at < len(window):
                window, at = queue.read(queue_offset, _WINDOW_ENTRIES), 0
                self._windows[queue] = queue_offset, window
            entry = window[at : at + ENTRY_BYTES]
            if len(entry) == ENTRY_BYTES and ENTRY.unpack(entry)[:2] == (offset, record.size):
                return ""
        if offset < self._first_of(queue.topic):
            self.orphans += 1  # of a topic that was deleted (and perhaps made again since)
            return ""
        return "its queue knows another record"

    def _first_of(self, topic: str) -> int:
        """Give the first offset of the log that any queue of a topic knows."""
        first = self._firsts.get(topic)
        if first is None:
            queues = [queue for queue in self._all.values() if queue.topic == topic]
            entries = [queue.entry(queue.min) for queue in queues if queue.max > queue.min]
            first = min([entry[0] for entry in entries if entry], default=1 << 62)
            self._firsts[topic] = first
        return first

    def replay(self, record: RecordSummary) -> str:
        """Give a record its queue entry and keys; give what is wrong, or ""."""
        queue = self._queue(record)
        if queue is None:
            return "topic"
        offset, kind = record.physical_offset, record.sys_flag & ROLLED_BACK
        keys = tag_and_keys(record.properties)[1]
        if kind not in (PREPARED, ROLLED_BACK):
            wrong = self._place(queue, record.queue_offset)
            if wrong:
                return wrong
            self._touched[queue] = None
            queue.pending.append(ENTRY.pack(offset, record.size, entry_code(queue, record)))
        if kind != ROLLED_BACK:
            self._add_keys(queue, keys, record)
        self.replayed += 1
        return ""

    def restore(self, record: RecordSummary) -> None:
        """Give a record its queue entry again; its keys are where they were."""
        queue = self._queue(record)
        if queue is None or record.sys_flag & ROLLED_BACK in (PREPARED, ROLLED_BACK):
            return
        expected = queue.max + len(queue.pending)
        if 0 < record.queue_offset < expected or self._place(queue, record.queue_offset):
            return
        self._touched[queue] = None
        code = entry_code(queue, record)
        queue.pending.append(ENTRY.pack(record.physical_offset, record.size, code))

    def index_again(self, record: RecordSummary) -> None:
        """Give a record its keys again."""
        queue, keys = self._queue(record), tag_and_keys(record.properties)[1]
        if queue is not None and record.sys_flag & ROLLED_BACK != ROLLED_BACK:
            self._add_keys(queue, keys, record)

    def queue_of(self, record: RecordSummary) -> ConsumeQueue | None:
        """Give the queue of a record; None where there can be none."""
        return self._queue(record)

    def forget_windows(self) -> None:
        """Read entries from the files again."""
        self._windows.clear()
        self._firsts.clear()

    def _add_keys(self, queue: ConsumeQueue, keys: tuple[str, ...], record: RecordSummary) -> None:
        index, offset = self._index, record.physical_offset
        if not keys or index is None or offset <= index.indexed_to:
            return
        index.make_room(self._now_ms)
        hashes = queue.key_hashes.of(keys)
        count = len(hashes)
        index.add(Keys(hashes, [offset] * count, [record.store_ms] * count))

    def _queue(self, record: RecordSummary) -> ConsumeQueue | None:
        place = record.topic, record.queue_id
        queue = self._queues.get(place)
        if queue is None:
            try:
                queue = self._queue_of(record.topic.decode(), record.queue_id)
            except (UsageError, UnicodeDecodeError):
                return None
            self._queues[place] = queue
        return queue

    def _place(self, queue: ConsumeQueue, queue_offset: int) -> str:
        """Make the queue ready for entry number `queue_offset`."""
        expected = queue.max + len(queue.pending)
        gap = queue_offset - expected
        if gap == 0:
            return ""
        if expected == 0 and gap > 0:
            queue.start_at(queue_offset)
            return ""
        if 0 < gap <= self.lost_bytes // RECORD_BYTES_MIN:
            queue.pending.extend([BLANK_ENTRY] * gap)
            self.blanks += gap
            return ""
        if queue_offset == 0:  # the topic was deleted and made again
            queue.pending.clear()
            queue.withdraw(0)
            return ""
        return f"queue offset {queue_offset}, where {expected} is next"

    def touched(self) -> list[ConsumeQueue]:
        """Give the queues that got entries since the last call: the entries are pending."""
        queues = [queue for queue in self._touched if queue.pending]
        self._touched.clear()
        return queues

    def finish(self) -> None:
        """Make pending entries part of their queues, and write them if that has become many.

        Raises:
            OSError: they could not be written.
        """
        queues = self.touched()
        with self._waiting.guard:
            take_all(queues, self._waiting)
        self._waiting.make_room()


def due_ms(text: bytes) -> int:
    """Give the due time in the property text of a timed message, ms since 1970; 0 if none."""
    found = decode(text).get(TIMER_OUT_MS, "")
    return int(found) if found.isascii() and found.isdecimal() and len(found) < 19 else 0


def entry_code(queue: ConsumeQueue, record: RecordSummary) -> int:
    """Give the code in the queue entry of a record: its tag, or when it is due."""
    if record.topic == _TIMER_TOPIC:
        return due_ms(record.properties)
    return queue.code_of(tag_and_keys(record.properties)[0], record.store_ms)


@lru_cache(maxsize=4096)
def tag_and_keys(text: bytes) -> tuple[int, tuple[str, ...]]:
    """Give the tag code and the index keys of a property text."""
    if not any(word in text for word in _SPECIAL):
        return 0, ()
    properties = decode(text)
    return tag_code(properties.get(TAGS)), index_keys(properties)


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
        self._flaws: dict[ConsumeQueue, tuple[int, str]] = {}
        self._found: list[DamagedRange] = []
        self._repaired: list[str] = []

    def run(
        self,
        replayer: Replayer,
        verify_bytes: int,
        flaws: Mapping[ConsumeQueue, tuple[int, str]] | None = None,
        *,
        index_again: bool = False,
    ) -> tuple[RecoveryReport, int]:
        """Do it all; see the module. Gives the report and the last record's store time.

        Args:
            replayer: takes the records; the caller reads from it what it wrote.
            verify_bytes: how much of the log before X is checked.
            flaws: queues that are damaged: from which entry on, and how.
            index_again: all keys are missing.
        """
        self._flaws = dict(flaws or {})
        log = self._log
        replay_from = self._replay_from()
        if not self._clean:
            for queue in self._queues.values():
                self._cut_queue(queue, replay_from)
        self._make_again(replayer, replay_from, index_again=index_again)
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
        for queue in list(self._queues.values()):
            self._trim(queue)
        found = [*scanner.damage, *suspects]
        found += [piece for piece in [*find_gaps(log), *self._found] if not _is_in(piece, found)]
        damage = sorted(set(found), key=lambda piece: piece.begin)
        report = RecoveryReport(
            clean=self._clean,
            log_begin=log.begin,
            log_end=log.end,
            checked_from=check_from,
            replayed_from=replay_from,
            replayed=replayer.replayed,
            cut_bytes=torn,
            damage=tuple(damage),
            lost=replayer.blanks + sum(map(self._count_lost, damage)),
            repaired=tuple(self._repaired),
            notes=_orphan_note(replayer.orphans),
        )
        return report, last_ms

    def _walk(
        self, scanner: Scanner, replayer: Replayer, replay_from: int
    ) -> tuple[list[DamagedRange], int]:
        suspects: list[DamagedRange] = []
        last_ms, seen = self._checkpoint.log_ms, 0
        for record in scanner:
            for piece in scanner.damage[seen:]:
                replayer.lost_bytes += max(piece.end - max(piece.begin, replay_from), 0)
            seen = len(scanner.damage)
            offset = record.physical_offset
            if offset < replay_from:
                wrong = replayer.check(record)
                if wrong and self._blames_queue(replayer, record):
                    wrong = ""
            else:
                self._make_again(replayer, replay_from)
                wrong = replayer.replay(record)
            if wrong:
                suspects.append(DamagedRange(offset, offset + record.size, wrong))
                replayer.lost_bytes += record.size
            elif record.store_ms > last_ms:
                last_ms = record.store_ms
            if replayer.replayed % _REPLAYED_AT_ONCE == 0:
                replayer.finish()
        replayer.finish()
        self._make_again(replayer, replay_from)
        return suspects, last_ms

    def _blames_queue(self, replayer: Replayer, record: RecordSummary) -> bool:
        """Whether a queue is wrong where it and a record of the log disagree; then note that."""
        queue, number = replayer.queue_of(record), record.queue_offset
        if queue is None:
            return False
        offset = record.physical_offset
        at = queue.first_where(lambda _, begin, size: size <= 0 or begin >= offset)
        here = queue.entry(at) if at < queue.max else None
        if here is not None and here[0] == offset and at != number:
            return False  # the queue knows it by another number: the record has lost its own
        if number >= queue.max and at < queue.max:
            return False
        if number < queue.min:
            return False
        if number < queue.max:
            entry = queue.entry(number)
            other = None if entry is None else Scanner(self._log, 0, 0).record_at(entry[0])
            place = (record.topic, record.queue_id, number)
            if (
                other is not None
                and other.physical_offset != offset
                and (other.topic, other.queue_id, other.queue_offset) == place
            ):
                return False
        first, _ = self._flaws.get(queue, (queue.max, ""))
        self._flaws[queue] = min(first, number), "it does not fit the log"
        return True

    def _make_again(
        self, replayer: Replayer, replay_from: int, *, index_again: bool = False
    ) -> None:
        """Make entries of damaged queues again from the log before X, and keys where they lack."""
        flaws, self._flaws = self._flaws, {}
        if not flaws and not index_again:
            return
        replayer.finish()
        start = self._log.begin if index_again else replay_from
        for queue, (first, _) in flaws.items():
            start = min(start, self._restart(queue, first))
        lost_bytes, replayer.lost_bytes = replayer.lost_bytes, 0
        scanner, seen = Scanner(self._log, start, replay_from), 0
        for count, record in enumerate(scanner, 1):
            if record.physical_offset >= replay_from:
                break
            replayer.lost_bytes += sum(one.end - one.begin for one in scanner.damage[seen:])
            seen = len(scanner.damage)
            if replayer.queue_of(record) in flaws:
                replayer.restore(record)
            if index_again:
                replayer.index_again(record)
            if count % _REPLAYED_AT_ONCE == 0:
                replayer.finish()
        replayer.finish()
        replayer.forget_windows()
        replayer.lost_bytes = lost_bytes
        self._found += [piece for piece in scanner.damage if piece.begin < replay_from]
        self._repaired += [
            f"Queue {queue.topic}/{queue.queue_id} was damaged ({reason}); its entries "
            f"{max(first, queue.first_file // ENTRY_BYTES)} to {queue.max} were made again from "
            "the log."
            for queue, (first, reason) in flaws.items()
        ]
        if index_again:
            self._repaired.append("The key index was damaged; it was made again from the log.")

    def _restart(self, queue: ConsumeQueue, first: int) -> int:
        """Take away the entries from `first` on; give where the log has the first of them."""
        entry = queue.entry(first - 1) if first * ENTRY_BYTES > queue.first_file else None
        if (
            entry is None
            or not 0 < entry[1] < BLANK_SIZE
            or Scanner(self._log, 0, 0).record_at(entry[0]) is None
        ):
            queue.restart()
            return self._log.begin
        queue.withdraw(first)
        return entry[0] + entry[1]

    def _count_lost(self, piece: DamagedRange) -> int:
        """Count the entries of queues for messages in a piece of the log."""
        count = 0
        for queue in self._queues.values():
            begin = queue.first_where(lambda _, at, size: size <= 0 or at >= piece.begin)
            end = queue.first_where(lambda _, at, size: size <= 0 or at >= piece.end)
            count += max(end - begin, 0)
        return count

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
        if segment is None:  # it is missing, and perhaps others before it
            ends = [one.end for one in self._log.segments if one.end <= wanted]
            return max(ends, default=self._log.begin)
        if wanted == segment.begin:
            return min(wanted, replay_from)
        found = scanner.next_valid(wanted)
        return replay_from if found is None else min(found, replay_from)

    def _trim(self, queue: ConsumeQueue) -> None:
        entry = queue.entry(queue.min) if queue.max > queue.min else None
        if entry is not None and entry[0] < self._log.begin:
            queue.trim(self._log.begin)


def find_gaps(log: CommitLog) -> list[DamagedRange]:
    """Find files of the log that are missing between others."""
    return [
        DamagedRange(before.end, after.begin, "a file is missing")
        for before, after in pairwise(log.segments)
        if before.end != after.begin
    ]


def _is_in(piece: DamagedRange, others: list[DamagedRange]) -> bool:
    return any(one.begin <= piece.begin and piece.end <= one.end for one in others)


def _orphan_note(count: int) -> tuple[str, ...]:
    return (f"{count} records are in no queue: their topics were deleted",) if count else ()


def verify(log: CommitLog) -> list[DamagedRange]:
    """Read the whole log; give the pieces that hold no valid record."""
    scanner = Scanner(log, log.begin, log.end)
    for record in scanner:
        if record.physical_offset >= log.end:  # written since we began
            break
    return [piece for piece in scanner.damage if piece.begin < log.end]
