"""Consume queues: entry number n says where the n-th message of a queue lies in the commit log.

An entry has 20 bytes: log offset, record size, tag code. A file holds 300,000 entries and is named
by the byte offset of its first one. *Blank* entries stand for no message: they fill a queue that
lost its beginning, and they replace damaged messages (offset 0, size 2,147,483,647, tag code 0).
With tag code 1 they fill a gap in the offsets that a power cut left (`offset_reserve`). A queue may
begin with a gap: a reader in there must not find that messages were deleted.
After the last entry a file is all zeros.

A batch of sends may touch a thousand queues with one entry each. Writing every entry at once would
cost a system call, and often an open and a close, for 20 bytes. So new entries stay in memory, in
the queue's `tail`, where readers see them at once. Another thread writes them to the files
(`PendingEntries.write`), one write per queue, before a checkpoint covers them. After a crash,
recovery rebuilds them from the log.

Invariants:

* `next` moves when whole entries are published. Readers see entries before `max`, which is `next`,
  or with sync flush the entries of durable records.
* `guard` is held while entries are added to a queue, while written ones are removed from it, and
  while a batch becomes visible. No file of a queue is touched under it.
* `writing` is held while entries are written, files of queues are changed, or `unsynced` is taken.
  So one thread at a time does that, and others see its writes in `unsynced` when they look.
* A queue is in `PendingEntries.queues` exactly when it has entries in memory that no running
  `write` has taken.
* About `entries_max` entries wait in memory. Beyond that the writer thread writes them itself
  (`write_if_full`); if it cannot, the store accepts no more messages.

Locks are taken in this order: `writing`, `HandleCache.guard`, `guard`.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from coherer._common.paths import child
from coherer._record.layout import FIXED_BYTES
from coherer._record.system_topics import SCHEDULE_TOPIC
from coherer._store.files import (
    Files,
    HandleCache,
    Neighbours,
    UnsyncedFiles,
    file_name,
    file_offsets,
    zero,
)
from coherer._store.index_file import key_hasher
from coherer._store.model import StoreOptions
from coherer.errors import UsageError
from coherer.limits import TOPIC_BYTES_MAX

ENTRY: Final = struct.Struct(">qiq")
ENTRY_BYTES: Final = 20
BLANK_SIZE: Final = 0x7FFFFFFF
BLANK_ENTRY: Final = ENTRY.pack(0, BLANK_SIZE, 0)
GAP_CODE: Final = 1
GAP_ENTRY: Final = ENTRY.pack(0, BLANK_SIZE, GAP_CODE)
QUEUES_MAX: Final = 1 << 31
_RUN_ENTRIES: Final = 4096
_GAP_RUN: Final = GAP_ENTRY * _RUN_ENTRIES
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def is_valid_queue(topic: str, queue_id: int) -> bool:
    """Whether a topic and a queue id can name a queue.

    >>> is_valid_queue("flights", 0), is_valid_queue("a/b", 0), is_valid_queue("flights", -1)
    (True, False, False)
    """
    return _is_valid_topic(topic) and 0 <= queue_id < QUEUES_MAX


def _is_valid_topic(topic: str) -> bool:
    return bool(_TOPIC.match(topic)) and len(topic) <= TOPIC_BYTES_MAX


_REPLAYED_MAX: Final = 100_000
"""A start after a kill replays the records of so many entries in a fifth of a second."""

_ENTRIES_PER_WRITE: Final = 10
"""With fewer entries per queue, writing them early would cost a microsecond per message or more."""


class PendingEntries:
    """The queues of a store that have entries in memory; the module describes the locks.

    Attributes:
        queues: the queues with entries that no thread is writing yet.
        count: the number of entries in memory.
        unsynced: the files of queues that were written since `take_unsynced`.
    """

    def __init__(self, entries_max: int) -> None:
        self.guard = threading.Lock()
        self.writing = threading.RLock()
        self.queues: list[ConsumeQueue] = []
        self.count = 0
        self.unsynced = UnsyncedFiles()
        self._entries_max = entries_max

    @property
    def is_half_full(self) -> bool:
        """Whether the entries should be written before the flush interval is over."""
        return self.count >= self._entries_max // 2

    @property
    def is_long_to_replay(self) -> bool:
        """Whether the entries should be written early, so that a start after a kill is quick."""
        return self.count >= max(_REPLAYED_MAX, _ENTRIES_PER_WRITE * len(self.queues))

    @property
    def is_full(self) -> bool:
        """Whether too many entries wait."""
        return self.count >= self._entries_max

    def write_if_full(self) -> None:
        """Write the entries if too many wait.

        Raises:
            OSError: some could not be written; accept no more messages.
        """
        if self.is_full:
            self.write()

    def write(self, mark: Callable[[], None] | None = None) -> None:
        """Write the entries in memory; those of batches that arrive meanwhile may stay.

        Args:
            mark: called under `guard`: all entries that were added before the call are written.

        Raises:
            OSError: some could not be written; they stay in memory for the next time.
        """
        with self.writing:
            with self.guard:
                if mark is not None:
                    mark()
                queues, self.queues = self.queues, []
            written = 0
            try:
                for queue in queues:
                    queue.write()
                    written += 1
            finally:
                if written < len(queues):
                    with self.guard:
                        self.queues = queues[written:] + self.queues

    def take_unsynced(self) -> UnsyncedFiles:
        """Return the files that must be synced, and start a new set."""
        with self.writing:
            unsynced, self.unsynced = self.unsynced, UnsyncedFiles()
        return unsynced

    def restore_unsynced(self, unsynced: UnsyncedFiles) -> None:
        """Put back files whose sync failed: they are part of the next one."""
        with self.writing:
            self.unsynced.merge(unsynced)


def publish(queues: Iterable[ConsumeQueue], pending: PendingEntries, *, show: bool = True) -> None:
    """Append the `new_entries` of queues to their tails.

    The caller holds `PendingEntries.guard`.

    Args:
        show: whether readers see the entries at once; otherwise `max` is moved later.
    """
    append, added = pending.queues.append, 0
    for queue in queues:
        entries = queue.new_entries
        tail = queue.tail[1]
        if not tail:
            append(queue)
        count = len(entries)
        tail += entries[0] if count == 1 else b"".join(entries)
        queue.next += count
        if show:
            queue.max = queue.next
        added += count
        entries.clear()
    pending.count += added


def _leading(entries: bytes, kinds: tuple[bytes, ...]) -> int:
    """The number of entries of these kinds at the beginning."""
    count = 0
    while entries.startswith(kinds, count * ENTRY_BYTES):
        count += 1
    return count


class ConsumeQueue:
    """The files under `consumequeue/<topic>/<queue id>/`.

    Attributes:
        queue_id: the number of the queue.
        file_bytes: the size of its files.
        topic_head: the topic in a record, after the byte with its length.
        fixed: the size of a record of this queue without body and properties, with IPv4 hosts.
        min: the number of the first entry.
        max: the number after the last entry that readers see.
        next: the number of the next entry to be written.
        first_file: the byte offset at which the first file begins.
        kept: whether the entries that were in the files at load are still there.
        delay_ms: the delay of a queue of the schedule topic, None for other queues. Entries of the
            schedule topic hold the delivery time (store time plus delay) instead of a tag code.
        tail: the number of the first entry in memory, and the entries in memory.
        new_entries: entries of a batch that is not visible yet (see `publish`).
    """

    __slots__ = (
        "_active",
        "_directory",
        "_files",
        "_floor",
        "_handles",
        "_pending",
        "delay_ms",
        "file_bytes",
        "first_file",
        "fixed",
        "kept",
        "key_hashes",
        "max",
        "min",
        "new_entries",
        "next",
        "queue_id",
        "tail",
        "topic",
        "topic_head",
    )

    def __init__(
        self,
        files: Files,
        handles: HandleCache,
        pending: PendingEntries,
        directory: Path,
        topic: str,
        queue_id: int,
        file_bytes: int,
    ) -> None:
        if not _is_valid_topic(topic):
            raise UsageError(
                f"{topic!r} is not a valid topic.",
                hint=f"Use letters, digits, _, -, % and |, up to {TOPIC_BYTES_MAX} characters.",
            )
        if not 0 <= queue_id < QUEUES_MAX:
            raise UsageError(f"{queue_id} is not a valid queue number.", topic=topic)
        self._files, self._handles, self._pending = files, handles, pending
        self._directory = child(directory, topic, "topic") / str(queue_id)
        self._active = (self._directory, 0)  # the file that was written last, and its end
        self.topic, self.queue_id = topic, queue_id
        self.file_bytes = file_bytes
        self.topic_head = bytes((len(topic),)) + topic.encode()
        self.fixed = FIXED_BYTES + len(topic)
        self.key_hashes = key_hasher(topic)
        self.min = self.max = self.next = self.first_file = 0
        self._floor = -1  # the first entry whose message is in the log, if entries are hidden
        self.kept = False
        self.delay_ms: int | None = None
        self.tail = (0, bytearray())
        self.new_entries: list[bytes] = []

    def existing_size(self) -> int:
        """Return the size of the queue's first file; 0 if it has none."""
        for begin in self.begins()[:1]:
            with self._handles.guard:
                return self._files.size(self._handles.get(self._path(begin)))
        return 0

    def sizes(self) -> dict[int, int]:
        """Return the sizes of the files by the byte offsets at which they begin."""
        with self._handles.guard:
            return {
                begin: self._files.size(self._handles.get(self._path(begin)))
                for begin in self.begins()
            }

    def load(self) -> None:
        """Find the files, the first entry that is not blank, and the last one that is not zero."""
        begins = self.begins()
        if not begins:
            return
        self.kept = True
        self.first_file = begins[0]
        self.min = begins[0] // ENTRY_BYTES
        for begin in reversed(begins):
            count = self._count(begin)
            self.max = begin // ENTRY_BYTES + count
            if count:
                break
        self.next = self.max
        self.tail = (self.max, bytearray())
        while self.min < self.max:
            try:
                entries = self.read(self.min, _RUN_ENTRIES)
            except FileNotFoundError:
                entries = b""
            blanks = _leading(entries, (BLANK_ENTRY,))
            self.min += blanks
            # A power cut can take a new file or its size, but not the files after it. Recovery then
            # cuts the queue here.
            if not entries or blanks * ENTRY_BYTES < len(entries):
                break

    def _count(self, begin: int) -> int:
        low, high = 0, self.file_bytes // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            entry = self._entry_in_file(begin // ENTRY_BYTES + middle)
            if entry is not None and entry[1] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def _path(self, begin: int) -> Path:
        return self._directory / file_name(begin)

    def write(self) -> None:
        """Write the entries in memory to the file. The caller holds `PendingEntries.writing`.

        Raises:
            OSError: they could not be written, and stay in memory.
        """
        first, tail = self.tail
        entries = bytes(tail)
        at = first * ENTRY_BYTES
        with self._handles.guard:
            path, end = self._active
            if at + len(entries) <= end:
                self._files.write(self._handles.get(path), entries, at % self.file_bytes)
                self._pending.unsynced.files.add(path)
            else:
                self._write_across_files(at, entries)
        with self._pending.guard:
            rest = tail[len(entries) :]  # entries published meanwhile
            count = len(entries) // ENTRY_BYTES
            self.tail = (first + count, rest)
            self._pending.count -= count
            if rest:
                self._pending.queues.append(self)

    def _write_across_files(self, at: int, entries: bytes) -> None:
        done = 0
        while done < len(entries):
            begin = at - at % self.file_bytes
            part = entries[done : done + begin + self.file_bytes - at]
            path = self._path(begin)
            self._files.write(self._open(begin), part, at - begin)
            self._pending.unsynced.files.add(path)
            self._active = (path, begin + self.file_bytes)
            done += len(part)
            at += len(part)

    def _open(self, begin: int) -> int:
        """Open a file for the first write of this process."""
        topic, path = self._directory.parent, self._path(begin)
        if not self._files.exists(path):
            self._files.make_directory(self._directory)
            self.register(begin)
        # A process that was killed may have created the file without syncing its name.
        self._pending.unsynced.directories |= {self._directory, topic, topic.parent}
        handle = self._handles.get(path, create=True)
        if self._files.size(handle) < self.file_bytes:
            self._files.resize(handle, self.file_bytes)
        return handle

    def register(self, begin: int) -> None:
        """Have the next checkpoint add a file to the register; remove it if it is gone."""
        number = begin // ENTRY_BYTES
        before = self.entry(number - 1) if begin > self.first_file else None
        first = self.entry(number)
        places = (-1 if one is None else one[0] for one in (before, first))
        self._pending.unsynced.named[self._path(begin)] = Neighbours(*places)

    def truncate(self, count: int) -> None:
        """Keep the entries before number `count`; remove the others from memory and files.

        Raises:
            OSError: a file could not be cut. Entries that are left in files are not part of the
                queue and will be overwritten.
        """
        pending = self._pending
        with pending.writing, self._handles.guard:
            first = self.tail[0]
            with pending.guard:
                kept = self.tail[1][: max(count - first, 0) * ENTRY_BYTES]
                pending.count -= (len(self.tail[1]) - len(kept)) // ENTRY_BYTES
                if not kept and self in pending.queues:
                    pending.queues.remove(self)
                self.tail = (min(first, count), kept)
                self.max = self.next = count
                self.min = min(self.min, count)
            if count < first:
                self._cut_files(count * ENTRY_BYTES)

    def _cut_files(self, at: int) -> None:
        self.kept = False
        self._active = (self._directory, 0)
        for begin in self.begins():
            path = self._path(begin)
            if begin + self.file_bytes <= at:
                continue
            if begin >= at and begin > self.first_file:
                self._remove_file(path)
                self.register(begin)
                continue
            handle = self._handles.get(path)
            zero(self._files, handle, max(at - begin, 0))
            self._pending.unsynced.files.add(path)

    def start_at(self, index: int) -> None:
        """Start an empty queue at an entry after 0; blanks fill its first file up to there."""
        per_file = self.file_bytes // ENTRY_BYTES
        first = index - index % per_file
        self.first_file = first * ENTRY_BYTES
        with self._pending.writing, self._handles.guard:
            # A queue that lost all its entries still has an empty file. `load` takes the files
            # from the first one on to be without holes.
            for begin in self.begins():
                if begin < self.first_file:
                    self._remove_file(self._path(begin))
                    self.register(begin)
        with self._pending.guard:
            self.tail = (first, bytearray())
            self.max = self.next = first
            if index > first:
                self.new_entries[:] = [BLANK_ENTRY] * (index - first)
                publish((self,), self._pending)
        self.min = index

    def skip_to(self, index: int) -> None:
        """Continue at a later entry. Blanks fill the gap; readers pass over them."""
        with self._pending.guard:
            self.new_entries[:] = [GAP_ENTRY] * (index - self.next)
            publish((self,), self._pending)

    def before_gap(self, index: int) -> int:
        """Return where the gap begins that ends at an entry; the entry's number without a gap."""
        low = max(self.min, self.first_file // ENTRY_BYTES)
        per_file = self.file_bytes // ENTRY_BYTES
        count = 1  # nearly always there is no gap
        while index > low:
            start = max(low, index - count, (index - 1) // per_file * per_file)
            found = self.read(start, index - start)
            blanks = len(found) // ENTRY_BYTES
            while not found.endswith(GAP_ENTRY * blanks):
                blanks //= 2
            index -= blanks
            if not blanks:
                break
            count = _RUN_ENTRIES
        return index

    def after_blanks(self, index: int) -> int:
        """Return the first entry from `index` on that is not blank; `max` if all are.

        Raises:
            OSError: a file cannot be read.
        """
        while index < self.max:
            found = self.read(index, _RUN_ENTRIES)
            if not found:
                break
            if found != _GAP_RUN[: len(found)]:
                blanks = _leading(found, (BLANK_ENTRY, GAP_ENTRY))
                if blanks * ENTRY_BYTES < len(found):
                    return index + blanks
            index += len(found) // ENTRY_BYTES
        return self.max

    def begins(self) -> list[int]:
        """Return the byte offsets at which the files begin."""
        return file_offsets(self._files.names(self._directory))

    def _remove_file(self, path: Path) -> None:
        self._handles.drop(path)
        self._files.remove(path)

    def read(self, index: int, count: int) -> bytes:
        """Read up to `count` entries, not past `max` and not past the end of a file."""
        first, tail = self.tail
        size = min(count, self.max - index) * ENTRY_BYTES
        if index >= first:
            begin = (index - first) * ENTRY_BYTES
            return bytes(tail[begin : begin + size])
        at = index * ENTRY_BYTES
        begin = at - at % self.file_bytes
        size = min(size, begin + self.file_bytes - at)
        written = (first - index) * ENTRY_BYTES
        path, end = self._active
        if end != begin + self.file_bytes:
            path = self._path(begin)
        data = self._handles.read(path, min(size, written), at - begin)
        return data + tail[: size - written] if size > written else data

    def code_of(self, tag_code: int, store_ms: int) -> int:
        """Return the third field of a message's entry: the tag code or the delivery time."""
        return tag_code if self.delay_ms is None else store_ms + self.delay_ms

    def set_delivery_times(self, store_ms: int) -> None:
        """In a queue of the schedule topic, give new entries delivery times for tag codes."""
        if self.delay_ms is not None:
            entries = [ENTRY.unpack(entry) for entry in self.new_entries]
            due_ms = store_ms + self.delay_ms
            self.new_entries[:] = [ENTRY.pack(offset, size, due_ms) for offset, size, _ in entries]

    def entry(self, index: int) -> tuple[int, int, int] | None:
        """Read one entry, or the bytes at its position if it was not written yet."""
        first, tail = self.tail
        if index >= first and tail:
            at = (index - first) * ENTRY_BYTES
            return ENTRY.unpack_from(tail, at) if at < len(tail) else None
        return self._entry_in_file(index)

    def _entry_in_file(self, index: int) -> tuple[int, int, int] | None:
        at = index * ENTRY_BYTES
        begin = at - at % self.file_bytes
        try:
            data = self._handles.read(self._path(begin), ENTRY_BYTES, at - begin)
        except FileNotFoundError:
            return None
        return ENTRY.unpack(data) if len(data) == ENTRY_BYTES else None

    def first_where(
        self, holds: Callable[[int, int, int], bool | None], *, missing: bool | None = None
    ) -> int:
        """Return the first entry from `min` on for which `holds` is true, or `max`.

        A bit may have flipped in an entry, or in the time of its message. If entries that are close
        to the result contradict it, each answer is asked for again, and may be outvoted; in doubt
        `holds` is true.

        Args:
            holds: called with (index, log offset, size). It is false up to some entry and true
                from there on, or None if it cannot tell. In that case, and for blanks, the search
                asks the entry before, or the last one before the gap.
            missing: the result of `holds` for an entry whose file is missing or too short.
        """

        def ask(index: int) -> bool | None:
            if not self.min <= index < self.max:
                return None
            entry = self.entry(index)
            if entry is None:
                return missing
            return None if entry[1] == BLANK_SIZE else holds(index, entry[0], entry[1])

        def outvoted(index: int) -> bool | None:
            answer = ask(index)
            if answer and ask(index + 1) is ask(index + 2) is False and index > self.min:
                return False
            if answer is False and ask(index - 1) and ask(index + 1) is not False:
                return True
            return answer

        found = self._search(ask)
        if ask(found - 2) or ask(found + 1) is False:
            found = self._search(outvoted)
        return found

    def _search(self, ask: Callable[[int], bool | None]) -> int:
        low, high = self.min, self.max
        while low < high:
            middle = at = (low + high) // 2
            answer = ask(at)
            while answer is None and at > low:
                at = max(self.before_gap(at) - 1, low)
                answer = ask(at)
            if answer:
                high = at
            else:
                low = middle + 1
        return low

    def hide(self, index: int) -> None:
        """Start the queue at an entry for readers; the files keep those before it."""
        index = self.before_gap(index) if index > self.min else index
        if index > self.min:
            self._floor = self.min if self._floor < 0 else self._floor
            self.min = min(index, self.max)

    def trim(self, log_begin: int) -> None:
        """Drop the entries of messages before `log_begin`, and the files with only such entries."""
        visible, hides = self.min, self._floor >= 0
        self.min = self._floor if hides else visible
        self.min = self.before_gap(
            self.first_where(lambda _, offset, size: size <= 0 or offset >= log_begin)
        )
        first = self.min
        if hides:
            self._floor, self.min = first, max(first, visible)
        for begin in self.begins()[:-1]:
            if begin + self.file_bytes > first * ENTRY_BYTES:
                break
            self._remove_file(self._path(begin))
            self.first_file = begin + self.file_bytes

    def reset(self) -> None:
        """Delete all files of the queue, the oldest first, and make it empty.

        Raises:
            OSError: a file could not be deleted. The queue is whole from there on.
        """
        pending = self._pending
        with pending.writing, self._handles.guard:
            self._active = (self._directory, 0)
            for begin in self.begins():
                self._remove_file(self._path(begin))
                self.first_file = begin + self.file_bytes
                self.register(begin)
                self._floor = -1
                self.min = min(max(self.min, self.first_file // ENTRY_BYTES), self.max)
            with pending.guard:
                pending.count -= len(self.tail[1]) // ENTRY_BYTES
                self.tail = (0, bytearray())
                if self in pending.queues:
                    pending.queues.remove(self)
            self.min = self.max = self.next = self.first_file = 0
            self.kept = False
            self._files.remove_tree(self._directory)


Queues = dict[tuple[str, int], ConsumeQueue]


class QueueDirectory:
    """All consume queues of a store.

    Args:
        open_files: returns how many files of queues may be open now.

    Attributes:
        queues: the queues by topic and number.
        pending: their entries that are not in files yet.
        notes: names in the directory that are not queues.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        options: StoreOptions,
        open_files: Callable[[], int],
    ) -> None:
        self._files = files
        self._directory = directory
        self.handles = HandleCache(files, open_files)
        self.pending = PendingEntries(options.pending_entries_max)
        self._file_bytes = options.queue_segment_bytes
        self._delays_ms = options.delay_levels_ms
        self.queues: Queues = {}
        self._numbers: dict[str, set[int]] = {}  # of the queues of each topic
        self.notes: list[str] = []

    @property
    def file_bytes(self) -> int:
        """The size of the files of queues."""
        return self._file_bytes

    def load(
        self,
        file_bytes: int | None = None,
        loaded: Callable[[ConsumeQueue], None] = lambda _: None,
    ) -> None:
        """Find the existing queues.

        Args:
            file_bytes: the size of their files; None to take it from the files.
            loaded: called with each queue.
        """
        found: list[tuple[str, int]] = []
        for topic in self._files.names(self._directory):
            for name in self._files.names(self._directory / topic):
                try:
                    self.get(topic, int(name) if name.isdecimal() else -1)
                except UsageError:
                    self.notes.append(f"{topic}/{name} is not a queue")
                    continue
                found.append((topic, int(name)))
        if file_bytes is None:
            sizes = [queue.existing_size() for queue in self.queues.values()]
            file_bytes = max([size for size in sizes if size % ENTRY_BYTES == 0], default=0)
        self._file_bytes = file_bytes or self._file_bytes
        self.queues.clear()
        self._numbers.clear()
        for topic, number in found:
            queue = self.get(topic, number)
            queue.load()
            loaded(queue)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue; create it if it is missing.

        Raises:
            UsageError: the topic or the number is not valid.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(
                self._files,
                self.handles,
                self.pending,
                self._directory,
                topic,
                queue_id,
                self._file_bytes,
            )
            if topic == SCHEDULE_TOPIC and queue_id < len(self._delays_ms):
                queue.delay_ms = self._delays_ms[queue_id]
            self.queues[topic, queue_id] = queue
            self._numbers.setdefault(topic, set()).add(queue_id)
        return queue

    def numbers(self, topic: str) -> list[int]:
        """Return the numbers of a topic's queues. The number of other queues does not matter."""
        return sorted(self._numbers.get(topic, ()))

    def remove(self, topic: str) -> None:
        """Delete a topic's queues.

        Raises:
            OSError: a file could not be deleted.
        """
        for number in self.numbers(topic):
            self.queues[topic, number].reset()
            del self.queues[topic, number]  # not before: another call removes what is left
            self._numbers[topic].discard(number)
        self._numbers.pop(topic, None)
        self._files.remove_tree(child(self._directory, topic, "topic"))
        self._files.sync_directory(self._directory)

    def close(self) -> None:
        """Close all files."""
        self.handles.close()
