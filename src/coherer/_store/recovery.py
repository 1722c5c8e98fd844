"""Recovery: on open, it makes the consume queues and the key index agree with the commit log.

The log is the source of truth; queues and index are derived from it. The checkpoint guarantees
that everything before an offset X is on the disk. So:

1. Queues keep their entries of records before X. After a crash the entries from X on are dropped: a
   power cut may have kept any of them, and most were only in memory. No log file is deleted before
   X is past it, so that queues keep their numbering.
2. The log is scanned from `verify_bytes` before X, from the start of a record. Records before X are
   verified, also against their queue entries (the checksum covers only the body). Records from X on
   are verified and *replayed*: they get queue entries and keys.
3. The log ends where no valid record follows, but not before X. The rest is cut off, once the
   checkpoint has the gap in queue offsets that it leaves: a later start would not find it. Damage
   that is followed by valid records stays, is reported, and is skipped by every reader. In the
   queues blanks replace the damaged messages, so that later messages keep their offsets.
4. Queues that disagree with the log, or with the inventory of the last close (`inventory`), or that
   lack a file (its register), are rebuilt from the log; so is the key index. `repairs` remembers
   that until it is done. A queue whose messages were all deleted does not begin at 0 again.
5. A queue's `min` is its first entry whose record is still in the log.

X is Coherer's offset in the checkpoint. If Java has used the directory, it is missing; then X is
the end of the last record that any queue knows after a clean shutdown, or, after a crash, the start
of the log file that Java's rule finds by store times (docs/protocol/rocketmq.md, section 6.5).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise, starmap
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from coherer._record.layout import (
    COMMITTED,
    FIXED_BYTES,
    HEAD,
    MAGIC,
    PREPARED,
    RECORD_BYTES_MIN,
    ROLLED_BACK,
    RecordSummary,
    store_ms_of,
)
from coherer._record.properties import TAGS, TIMER_OUT_MS, decode, index_keys, tag_code
from coherer._record.runs import Fields
from coherer._record.system_topics import TIMER_TOPIC
from coherer._store import inventory as inventories
from coherer._store.checkpoint import Checkpoint
from coherer._store.commit_log import CommitLog
from coherer._store.consume_queue import (
    BLANK_ENTRY,
    BLANK_SIZE,
    ENTRY,
    ENTRY_BYTES,
    GAP_ENTRY,
    ConsumeQueue,
    QueueDirectory,
    Queues,
    publish,
)
from coherer._store.files import Files
from coherer._store.index import KeyIndex
from coherer._store.index_file import IndexKeys
from coherer._store.model import DamagedRange, PowerCut, RecoveryReport, StoreOptions
from coherer._store.offset_reserve import GAP_QUEUE, Gap, ends_in_gap, is_gap, with_copied
from coherer._store.repairs import Damaged, Repairs, Unfinished, damaged_by
from coherer._store.scanner import Scanner
from coherer._store.torn_ends import TornEnds
from coherer.errors import UsageError

_PLACE: Final = struct.Struct(">qi")
"""The first fields of a queue entry: where the record begins, and its size."""

_OFFSET = itemgetter(3)
_STORE_MS = itemgetter(5)
_WINDOW_ENTRIES = 4096
_NO_WINDOW = (0, b"")
_RECORDS_PER_PUBLISH = 10_000
_TIMER_TOPIC = TIMER_TOPIC.encode()
_REPLICA_GAP_MAX = 1 << 24
"""More than a queue gets between two checkpoints."""
_OFFSET_MAX = (1 << 63) - 1
_TAGS, _KEYS, _UNIQUE_KEY = b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01"


class Replayer:
    """Adds records, in the order of the log, to queues and index.

    Args:
        queues: the consume queues, up to the offset that the checkpoint covers.
        index: the key index, if there is one.
        now_ms: the time of day; a new index file is named after it.
        gaps: the gaps in queue offsets that are known.
        rebuild: whether all queues are missing, and the log does not begin at 0. The first entries
            of a queue that does not begin at 0 then belong to messages that were deleted.
        replica: whether the log is a copy of a master's. It is whole, so a gap in queue offsets is
            the master's.
        torn: where the damage begins that earlier power cuts have left.
        torn_from: a power cut has left all damage from this log offset on.

    Attributes:
        lost_bytes: the size of the damage found; it limits the holes in queue offsets.
        torn_bytes: the size of the damage that power cuts have left, which limits their gaps.
        replayed: the number of replayed records.
        orphans: the number of records of deleted topics.
        blanks: the number of blank entries that were added.
        ends: the ends of transactions that a power cut has torn.
        gaps: the gaps that are known, with those that a replica has found.
    """

    def __init__(
        self,
        queues: QueueDirectory,
        index: KeyIndex | None,
        now_ms: int,
        gaps: Sequence[Gap] = (),
        *,
        rebuild: bool = False,
        replica: bool = False,
        torn: Collection[int] = (),
        torn_from: int = _OFFSET_MAX,
    ) -> None:
        self.gaps = tuple(gaps)
        self._torn, self._torn_from = torn, torn_from
        self._replica = replica
        self._rebuild = rebuild
        self._find_queue = queues.get
        self._all = queues.queues
        self._index = index
        self._now_ms = now_ms
        self._pending = queues.pending
        self._queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._tagged: dict[tuple[bytes, int], ConsumeQueue] = {}  # their entries hold tag codes
        self._touched: dict[ConsumeQueue, None] = {}
        self._first_offsets: dict[str, int] = {}
        self._windows: dict[ConsumeQueue, tuple[int, bytes]] = {}
        self._lost_before: dict[ConsumeQueue, tuple[int, int]] = {}
        self.lost_bytes = self.torn_bytes = 0
        self.replayed = 0
        self.orphans = 0
        self.blanks = 0
        self.ends = TornEnds()

    def lose(self, piece: DamagedRange, since: int = 0) -> None:
        """Count the damage from a log offset on: its messages leave holes in queue offsets."""
        size = max(piece.end - max(piece.begin, since), 0)
        if piece.begin >= self._torn_from or piece.begin in self._torn:
            self.torn_bytes += size
        else:
            self.lost_bytes += size

    def notes(self) -> tuple[str, ...]:
        """What else is worth knowing about the log."""
        if not self.orphans:
            return ()
        return (f"{self.orphans} records are in no queue: their topics were deleted",)

    def check(self, record: RecordSummary) -> str:
        """Compare a record with its queue entry; return the problem, or ""."""
        if self.ends.is_open or record.sys_flag & ROLLED_BACK == COMMITTED:
            self.ends.add(record)
        if record.sys_flag & ROLLED_BACK in (PREPARED, ROLLED_BACK):
            return ""
        queue = self._queues.get((record.topic, record.queue_id)) or self.queue_of(record)
        if queue is None:
            return "topic"
        queue_offset, offset = record.queue_offset, record.physical_offset
        if queue.min <= queue_offset < queue.max:
            begin, window = self._windows.get(queue, _NO_WINDOW)
            at = (queue_offset - begin) * ENTRY_BYTES
            if not 0 <= at < len(window):
                window, at = b"", 0
                with suppress(FileNotFoundError):
                    window = queue.read(queue_offset, _WINDOW_ENTRIES)
                window = window[: len(window) // ENTRY_BYTES * ENTRY_BYTES]
                self._windows[queue] = queue_offset, window
            if window.startswith(_PLACE.pack(offset, record.size), at):
                return ""
        if offset < self._first_offset_of(queue.topic):
            self.orphans += 1  # its topic was deleted, and perhaps created again since
            return ""
        return "its queue knows another record"

    def check_all(self, run: Sequence[Fields]) -> Iterator[tuple[RecordSummary, str]]:
        """Do as `check` for each record; return those with a problem, and the problem."""
        find_queue, find_window, pack = self._queues.get, self._windows.get, _PLACE.pack
        for fields in run:
            size, queue_id, queue_offset, offset, sys_flag, _, topic, _ = fields
            queue = find_queue((topic, queue_id))
            if queue is not None and not (sys_flag & ROLLED_BACK or self.ends.is_open):
                begin, window = find_window(queue, _NO_WINDOW)
                at = (queue_offset - begin) * ENTRY_BYTES
                if at >= 0 and window.startswith(pack(offset, size), at):
                    continue
            record = RecordSummary(*fields)
            wrong = self.check(record)
            if wrong:
                yield record, wrong

    def replay_all(self, run: Sequence[Fields]) -> Iterator[tuple[RecordSummary, str]]:
        """Do as `replay` for each record; return those with a problem, and the problem."""
        find_queue, touched, pack = self._tagged.get, self._touched, ENTRY.pack
        new, indexed_to = IndexKeys([], [], []), self._indexed_to
        for fields in run:
            size, queue_id, queue_offset, offset, sys_flag, store_ms, topic, text = fields
            queue = find_queue((topic, queue_id))
            if (
                queue is None
                or queue_offset != queue.next + len(queue.new_entries)
                or sys_flag & ROLLED_BACK
                or self.ends.is_open
            ):
                self._add_all_keys(new)
                record = RecordSummary(*fields)
                wrong = self.replay(record)
                if wrong:
                    yield record, wrong
                continue
            code, keys = tag_and_keys(text)
            touched[queue] = None
            queue.new_entries.append(pack(offset, size, code))
            if keys and offset > indexed_to:
                hashes = queue.key_hashes.hash_all(keys)
                count = len(hashes)
                new.hashes += hashes
                new.offsets += [offset] * count
                new.times_ms += [store_ms] * count
            self.replayed += 1
        self._add_all_keys(new)

    def _first_offset_of(self, topic: str) -> int:
        """Return the first log offset that any queue of a topic knows."""
        first = self._first_offsets.get(topic)
        if first is None:
            queues = [queue for queue in self._all.values() if queue.topic == topic]
            entries = [queue.entry(queue.min) for queue in queues if queue.max > queue.min]
            first = min([entry[0] for entry in entries if entry], default=1 << 62)
            self._first_offsets[topic] = first
        return first

    def replay(self, record: RecordSummary) -> str:
        """Add a record's queue entry and keys; return the problem, or ""."""
        if record.is_hole:
            self.torn_bytes += record.size
            self.ends.interrupt(record.physical_offset)
            return ""
        if self.ends.is_open or record.sys_flag & ROLLED_BACK == COMMITTED:
            self.ends.add(record)
        queue = self._queues.get((record.topic, record.queue_id)) or self.queue_of(record)
        if queue is None:
            return "topic"
        offset, kind = record.physical_offset, record.sys_flag & ROLLED_BACK
        if kind not in (PREPARED, ROLLED_BACK):
            if record.queue_offset != queue.next + len(queue.new_entries):
                wrong = self._prepare_queue(queue, record.queue_offset, offset)
                if wrong:
                    return wrong
            self._touched[queue] = None
            queue.new_entries.append(ENTRY.pack(offset, record.size, entry_code(queue, record)))
        if kind != ROLLED_BACK:
            keys = tag_and_keys(record.properties)[1]
            if keys:
                self._add_keys(queue, keys, record)
        self.replayed += 1
        return ""

    def restore_entry(self, record: RecordSummary) -> None:
        """Add a record's queue entry again, but not its keys."""
        if record.is_hole:
            self.torn_bytes += record.size
            return
        queue = self.queue_of(record)
        if queue is None or record.sys_flag & ROLLED_BACK in (PREPARED, ROLLED_BACK):
            return
        expected = queue.next + len(queue.new_entries)
        place = record.physical_offset
        if 0 < record.queue_offset < expected or self._prepare_queue(
            queue, record.queue_offset, place
        ):
            self.lost_bytes += record.size  # the offset that it really had is a hole now
            return
        self._touched[queue] = None
        code = entry_code(queue, record)
        queue.new_entries.append(ENTRY.pack(record.physical_offset, record.size, code))

    def remember_lost(self, queues: Iterable[ConsumeQueue]) -> None:
        """Let what was lost before X leave holes in these queues when their next record comes."""
        for queue in queues:
            self._lost_before[queue] = self.lost_bytes, self.torn_bytes

    def restore_keys(self, record: RecordSummary) -> None:
        """Add a record's keys again."""
        keys = tag_and_keys(record.properties)[1]
        if not keys or record.sys_flag & ROLLED_BACK == ROLLED_BACK:
            return
        queue = self.queue_of(record)
        if queue is not None:
            self._add_keys(queue, keys, record)

    def queue_of(self, record: RecordSummary) -> ConsumeQueue | None:
        """Return the queue of a record; None if its topic or number is not valid."""
        key = record.topic, record.queue_id
        queue = self._queues.get(key)
        if queue is None:
            try:
                queue = self._find_queue(record.topic.decode(), record.queue_id)
            except (UsageError, UnicodeDecodeError):
                return None
            self._queues[key] = queue
            if queue.delay_ms is None and record.topic != _TIMER_TOPIC:
                self._tagged[key] = queue
        return queue

    def clear_cache(self) -> None:
        """Forget entries that were read, because queues have changed."""
        self._windows.clear()
        self._first_offsets.clear()

    @property
    def _indexed_to(self) -> int:
        """The log offset up to which keys are in the index; without an index, the highest one."""
        return _OFFSET_MAX if self._index is None else self._index.indexed_to

    def _add_keys(self, queue: ConsumeQueue, keys: tuple[str, ...], record: RecordSummary) -> None:
        offset = record.physical_offset
        if offset > self._indexed_to:
            hashes = queue.key_hashes.hash_all(keys)
            count = len(hashes)
            self._add_all_keys(IndexKeys(hashes, [offset] * count, [record.store_ms] * count))

    def _add_all_keys(self, keys: IndexKeys) -> None:
        """Move keys to the index."""
        if self._index is not None and keys:
            self._index.write_if_full(self._now_ms)
            self._index.add(keys)
            keys.drop(len(keys))

    def _prepare_queue(self, queue: ConsumeQueue, queue_offset: int, offset: int) -> str:
        """Make `queue_offset` the next entry of a queue; return why that is impossible, or ""."""
        expected = queue.next + len(queue.new_entries)
        gap = queue_offset - expected
        if gap == 0:
            return ""
        lost_before, torn_before = self._lost_before.pop(queue, (0, 0))
        lost_bytes = self.lost_bytes + lost_before
        lost = (lost_bytes + self.torn_bytes + torn_before) // RECORD_BYTES_MIN
        is_torn = lost_bytes < RECORD_BYTES_MIN  # only power cuts have damaged the log
        if expected == 0 and gap > 0 and not self._tells_gap(queue):
            known = gap <= lost or is_gap(queue, gap - lost, offset, self.gaps)
            if self._rebuild or not is_torn or not known:
                queue.start_at(queue_offset)
            else:
                queue.new_entries.extend([GAP_ENTRY] * gap)
            return ""
        damaged = lost_bytes // RECORD_BYTES_MIN
        if self._replica and damaged < gap <= _REPLICA_GAP_MAX:
            self.gaps = with_copied(self.gaps, queue, gap, offset)
            queue.new_entries.extend([GAP_ENTRY] * gap)
            return ""
        if 0 < gap <= lost:
            queue.new_entries.extend([GAP_ENTRY if is_torn else BLANK_ENTRY] * gap)
            self.blanks += gap
            return ""
        if gap > 0 and is_gap(queue, gap - lost, offset, self.gaps):
            queue.new_entries.extend([GAP_ENTRY] * gap)
            return ""
        if queue_offset == 0:  # the topic was deleted and created again
            queue.new_entries.clear()
            queue.truncate(0)
            return ""
        if gap < 0 and queue.min == expected:  # a power cut took the first files, and left others
            queue.truncate(0)
            queue.start_at(queue_offset)
            return ""
        return f"queue offset {queue_offset}, where {expected} is next"

    def _tells_gap(self, queue: ConsumeQueue) -> bool:
        """Whether what is missing before the first message of a queue is a gap of the master."""
        return self._replica and (queue.topic, queue.queue_id) == GAP_QUEUE

    def take_touched(self) -> list[ConsumeQueue]:
        """Return the queues that got new entries since the last call; they are not visible yet."""
        queues = [queue for queue in self._touched if queue.new_entries]
        self._touched.clear()
        return queues

    def publish(self) -> None:
        """Make new entries visible, and write them to files if there are many.

        Raises:
            OSError: they could not be written.
        """
        queues = self.take_touched()
        with self._pending.guard:
            publish(queues, self._pending)
        self._pending.write_if_full()


def due_ms(text: bytes) -> int:
    """Return the due time in the property text of a timed message, ms since 1970; 0 if none."""
    found = decode(text).get(TIMER_OUT_MS, "")
    return int(found) if found.isascii() and found.isdecimal() and len(found) < 19 else 0


def entry_code(queue: ConsumeQueue, record: RecordSummary) -> int:
    """Return the third field of a record's queue entry: its tag code, or its due time."""
    if record.topic == _TIMER_TOPIC:
        return due_ms(record.properties)
    return queue.code_of(tag_and_keys(record.properties)[0], record.store_ms)


@lru_cache(maxsize=4096)
def tag_and_keys(text: bytes) -> tuple[int, tuple[str, ...]]:
    """Return the tag code and the index keys of a property text."""
    if _TAGS not in text and _KEYS not in text and _UNIQUE_KEY not in text:
        return 0, ()
    properties = decode(text)
    return tag_code(properties.get(TAGS)), index_keys(properties)


class Recovered(NamedTuple):
    """The result of `recover`.

    Attributes:
        report: the findings and repairs.
        last_ms: the store time of the last record.
        inventory: the inventory of the last close, if it is valid.
        notes: further notes for the report.
        has_changes: whether queues or index were changed, so that they should be flushed.
        gaps: the gaps in queue offsets that are known.
    """

    report: RecoveryReport
    last_ms: int
    inventory: inventories.Inventory | None
    notes: list[str]
    has_changes: bool
    gaps: tuple[Gap, ...]


def recover(
    directory: Path,
    files: Files,
    log: CommitLog,
    queues: QueueDirectory,
    index: KeyIndex | None,
    checkpoint: Checkpoint,
    options: StoreOptions,
    now_ms: int,
    *,
    clean: bool,
    rebuild: bool,
    lost_power: bool,
    cuts: Sequence[PowerCut],
    repairs: Repairs,
    registered: inventories.Registered,
    begin: Callable[[], None],
) -> Recovered:
    """Load queues and index and make them agree with the log. See the module.

    Args:
        clean: whether the last process closed the store.
        rebuild: whether all queues are missing.
        lost_power: whether a power cut can have torn what was not synced.
        cuts: what earlier power cuts have torn.
        repairs: remembers what is rebuilt, if this process ends before that is done.
        registered: the files of queues that the checkpoint covers.
        begin: called before anything is changed; once more does no harm.
    """
    notes = ["the consume queues are missing: all are rebuilt"] if rebuild else []
    gaps, synced_to, was_copy = checkpoint.gaps, checkpoint.offset, checkpoint.replica
    checkpoint = Checkpoint(offset=0) if rebuild else checkpoint
    if index is not None:
        notes += index.load(checkpoint, clean=clean and not rebuild, log_begin=log.begin)
    known = inventories.load(files, directory / inventories.FILE, checkpoint) if clean else None
    comparison = inventories.Comparison(known, registered=registered, log_begin=log.begin)
    damaged = _load_queues(queues, comparison, None if rebuild else repairs.unfinished)
    reindex = index is not None and _is_stale(index, known, repairs.unfinished)
    repairs.begin(damaged, index=reindex)
    begin()
    if reindex and index is not None:
        index.reset(() if known is None else known.index)
    replayer = Replayer(
        queues,
        index,
        now_ms,
        gaps,
        rebuild=rebuild and log.begin > 0,
        replica=was_copy or options.replica,  # what is replayed comes from its master
        torn={piece.begin for cut in cuts for piece in cut.torn},
        torn_from=synced_to if lost_power and synced_to is not None else _OFFSET_MAX,
    )
    again = options.replica and lost_power
    recovery = Recovery(log, queues.queues, checkpoint, repairs, clean=clean, copied_again=again)
    recovery.end_of = comparison.end_of
    report, last_ms = recovery.run(replayer, options.verify_bytes, damaged, reindex=reindex)
    if not clean:
        log.rewrite_from(report.replayed_from if synced_to is None else synced_to)
    has_changes = bool(replayer.replayed or not clean or rebuild or report.repaired)
    return Recovered(report, last_ms, known, notes, has_changes, replayer.gaps)


def _is_stale(index: KeyIndex, known: inventories.Inventory | None, unfinished: Unfinished) -> bool:
    """Whether the key index has to be rebuilt."""
    if index.is_lost or unfinished.index:
        return True
    return not index.matches(() if known is None else known.index)


def _load_queues(
    queues: QueueDirectory, comparison: inventories.Comparison, unfinished: Unfinished | None
) -> Damaged:
    """Load the queues; return those that are damaged, unless all are rebuilt.

    Args:
        comparison: compares them with what is known of their files.
        unfinished: what the last start has not rebuilt; None if all queues are rebuilt.
    """
    queues.load(comparison.file_bytes, comparison.check)
    if unfinished is None:
        return {}
    return damaged_by(unfinished, queues, comparison.damaged_queues(queues))


class Recovery:
    """Makes log and queues agree. It is used once, while nothing else uses them.

    Args:
        clean: whether the last process closed the store.
        copied_again: the log is a copy of a master's, and a power cut can have torn what is after
            X: damage there is cut off with all that follows, because the master can send it again.
            (A bit that has flipped there costs one message. What follows may be all that is left,
            if the master is lost.)

    Attributes:
        end_of: returns the least offset that no message of a queue can have had; 0 if unknown.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: Queues,
        checkpoint: Checkpoint,
        repairs: Repairs,
        *,
        clean: bool,
        copied_again: bool = False,
    ) -> None:
        self.end_of: Callable[[ConsumeQueue], int] = lambda _: 0
        self._repairs = repairs
        self._copied_again = copied_again
        self._log = log
        self._queues = queues
        self._checkpoint = checkpoint
        self._clean = clean
        self._damaged: Damaged = {}
        self._found: list[DamagedRange] = []
        self._repaired: list[str] = []

    def run(
        self,
        replayer: Replayer,
        verify_bytes: int,
        damaged: Mapping[ConsumeQueue, tuple[int, str]] | None = None,
        *,
        reindex: bool = False,
    ) -> tuple[RecoveryReport, int]:
        """Run the recovery; return the report and the store time of the last record.

        Args:
            verify_bytes: how much of the log before X is verified.
            damaged: damaged queues: the first wrong entry, and the reason.
            reindex: whether all keys are missing.
        """
        self._damaged = dict(damaged or {})
        log = self._log
        replay_from = self._replay_from()
        if not self._clean:
            for queue in self._queues.values():
                self._cut_queue(queue, replay_from)
        self._rebuild(replayer, replay_from, reindex=reindex)
        # Files that are missing after X held this many bytes of messages.
        replayer.lost_bytes = max(log.begin - (self._checkpoint.offset or log.begin), 0)
        has_offset = self._clean or self._checkpoint.offset is not None
        trusted = replay_from if has_offset else log.begin
        scanner = Scanner(log, log.begin, trusted, strict=self._copied_again)
        scanner.end = check_from = self._check_from(
            scanner, replay_from - verify_bytes, replay_from
        )
        replayer.ends.begin, replayer.ends.since = check_from, replay_from
        suspects, last_ms = self._scan(scanner, replayer, replay_from)
        torn = scanner.torn_bytes()
        if torn or any(segment.begin > scanner.end for segment in log.segments):
            log.keep_rest()
        log.finish_recovery(scanner.end, trusted, last_ms)
        for queue in list(self._queues.values()):
            self._trim(queue)
        found = [*scanner.damage, *suspects]
        found += [
            piece for piece in [*find_gaps(log), *self._found] if not is_covered(piece, found)
        ]
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
            notes=replayer.notes(),
            unmarked=tuple(replayer.ends.unmarked),
            void=tuple(replayer.ends.void),
        )
        return report, last_ms

    def _scan(
        self, scanner: Scanner, replayer: Replayer, replay_from: int
    ) -> tuple[list[DamagedRange], int]:
        suspects: list[DamagedRange] = []
        seen, last_ms, times = 0, self._checkpoint.log_ms, [0]

        def suspect(record: RecordSummary, wrong: str) -> None:
            offset = record.physical_offset
            suspects.append(DamagedRange(offset, offset + record.size, wrong))
            replayer.lost_bytes += record.size

        for run in scanner.runs():
            for piece in scanner.damage[seen:]:
                replayer.lose(piece, replay_from)
                replayer.ends.interrupt(piece.begin)
            seen = len(scanner.damage)
            known = len(suspects)
            middle = bisect_left(run, replay_from, key=_OFFSET)
            for record, wrong in replayer.check_all(run[:middle]):
                if not self._queue_is_wrong(replayer, record):
                    suspect(record, wrong)
            if middle < len(run):
                self._rebuild(replayer, replay_from)
                for record, wrong in replayer.replay_all(run[middle:]):
                    suspect(record, wrong)
                replayer.publish()
            bad = {piece.begin for piece in suspects[known:]}
            good = [fields for fields in run if _OFFSET(fields) not in bad] if bad else run
            # Store times never decrease. No later message may get one that only a flipped bit has
            # made: the time of a record counts if the next one's is not before it.
            times = [times[-1], *map(_STORE_MS, good)]
            last_ms = max(last_ms, max(starmap(min, pairwise(times)), default=0))
        last_ms = max(last_ms, times[-1])
        replayer.ends.interrupt(scanner.end)
        self._rebuild(replayer, replay_from)
        return suspects, last_ms

    def _queue_is_wrong(self, replayer: Replayer, record: RecordSummary) -> bool:
        """Decide whether the queue, not the record, is wrong if they disagree; then note it."""
        queue, number = replayer.queue_of(record), record.queue_offset
        if queue is None:
            return False
        offset = record.physical_offset
        at = queue.first_where(lambda _, begin, size: size <= 0 or begin >= offset)
        here = queue.entry(at) if at < queue.max else None
        if here is not None and here[0] == offset and at != number:
            return False  # the queue knows the record by another number: the record is damaged
        if number >= queue.max and at < queue.max:
            return False
        if number < queue.min:
            return False
        if number < queue.max:
            entry = queue.entry(number)
            other = None if entry is None else Scanner(self._log, 0, 0).record_at(entry[0])
            if (
                other is not None
                and other.physical_offset != offset
                and (other.topic, other.queue_id) == (record.topic, record.queue_id)
                and other.queue_offset == number
            ):
                return False
        first, _ = self._damaged.get(queue, (queue.max, ""))
        self._damaged[queue] = min(first, number), "it does not match the log"
        return True

    def _rebuild(self, replayer: Replayer, replay_from: int, *, reindex: bool = False) -> None:
        """Rebuild damaged queues from the log before X, and all keys if they are missing."""
        damaged, self._damaged = self._damaged, {}
        if not damaged and not reindex:
            return
        self._repairs.begin(damaged)
        replayer.publish()
        start = self._log.begin if reindex else replay_from
        for queue, (first, _) in damaged.items():
            start = min(start, self._drop_entries(queue, first))
        before = replayer.lost_bytes, replayer.torn_bytes
        replayer.lost_bytes = replayer.torn_bytes = 0
        scanner = Scanner(self._log, start, replay_from)
        self._restore(replayer, scanner, damaged, replay_from, reindex=reindex)
        replayer.remember_lost(damaged)
        replayer.publish()
        for queue in damaged:
            end = 0 if queue.next else self.end_of(queue)
            if end:  # its messages were deleted, but their offsets stay theirs
                queue.start_at(end + (end * ENTRY_BYTES % queue.file_bytes == 0))
        replayer.clear_cache()
        replayer.lost_bytes, replayer.torn_bytes = before
        self._found += [piece for piece in scanner.damage if piece.begin < replay_from]
        self._repaired += [
            f"Queue {queue.topic}/{queue.queue_id} was damaged ({reason}); its entries "
            f"{max(first, queue.first_file // ENTRY_BYTES)} to {queue.max} were rebuilt from "
            "the log."
            for queue, (first, reason) in damaged.items()
        ]
        if reindex:
            self._repaired.append("The key index was damaged; it was rebuilt from the log.")

    @staticmethod
    def _restore(
        replayer: Replayer,
        scanner: Scanner,
        queues: Collection[ConsumeQueue],
        replay_from: int,
        *,
        reindex: bool,
    ) -> None:
        """Add the entries of some queues again, and all keys, and count the damage before X."""
        seen = 0

        def lose() -> None:
            nonlocal seen
            for piece in scanner.damage[seen:]:
                if piece.begin < replay_from:
                    replayer.lose(piece)
            seen = len(scanner.damage)

        for count, record in enumerate(scanner, 1):
            if record.physical_offset >= replay_from:
                break
            lose()
            if replayer.queue_of(record) in queues:
                replayer.restore_entry(record)
            if reindex:
                replayer.restore_keys(record)
            if count % _RECORDS_PER_PUBLISH == 0:
                replayer.publish()
        lose()

    def _drop_entries(self, queue: ConsumeQueue, first: int) -> int:
        """Remove the entries from `first` on; return the log offset where their records start."""
        entry = queue.entry(first - 1) if first * ENTRY_BYTES > queue.first_file else None
        if (
            entry is None
            or not 0 < entry[1] < BLANK_SIZE
            or Scanner(self._log, 0, 0).record_at(entry[0]) is None
        ):
            queue.reset()
            return self._log.begin
        queue.truncate(first)
        return entry[0] + entry[1]

    def _count_lost(self, piece: DamagedRange) -> int:
        """Count the queue entries of messages in a damaged range of the log."""
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
            # Entries before X are intact. After it anything is possible, also half an entry in a
            # page of its own: then the entry before it is missing or does not match.
            if size <= 0 or offset + size > replay_from:
                return True
            before = queue.entry(index - 1) if index > queue.min else None
            if before is None:
                return index > queue.min
            return before[1] <= 0 or (before[1] != BLANK_SIZE and before[0] + before[1] > offset)

        queue.truncate(queue.first_where(holds, missing=True))
        # Half of a gap's last entry looks like the entry of a damaged message.
        last = queue.max - 1
        gaps = self._checkpoint.gaps
        if last >= queue.min and queue.read(last, 1) == BLANK_ENTRY and ends_in_gap(queue, gaps):
            queue.truncate(last)

    def _check_from(self, scanner: Scanner, wanted: int, replay_from: int) -> int:
        """Find the start of a record at `wanted` or after it, but not after `replay_from`."""
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
    """Find log files that are missing between others."""
    return [
        DamagedRange(before.end, after.begin, "a file is missing")
        for before, after in pairwise(log.segments)
        if before.end != after.begin
    ]


def is_covered(piece: DamagedRange, others: Collection[DamagedRange]) -> bool:
    """Whether one of the other ranges contains a range."""
    return any(one.begin <= piece.begin and piece.end <= one.end for one in others)


def verify(log: CommitLog) -> list[DamagedRange]:
    """Read the whole log; return the ranges that hold no valid record."""
    scanner = Scanner(log, log.begin, log.end)
    for record in scanner:
        if record.physical_offset >= log.end:  # written after the scan began
            break
    return [piece for piece in scanner.damage if piece.begin < log.end]
