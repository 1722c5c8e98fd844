"""Entries of consume queues that are in memory and not yet in the queues' files.

A batch of sends may touch a thousand queues with one entry each. Writing each entry at once would
cost a call of the system, and often an open and a close, for 20 bytes. So new entries stay in
memory, in the queue (`ConsumeQueue.take`), where readers see them at once. Another thread writes
them to the files (`Waiting.write`), one write per queue, before the checkpoint vouches for them.
A crash loses nothing: recovery makes the entries again from the log.

Rules:

* `guard` is held while entries are added to a queue, while written ones are removed from it, and
  while a batch becomes visible. No file of a queue is touched under it.
* `writing` is held by whoever writes entries, changes files of queues or takes `dirty`. So one
  thread at a time does that, and what it has written is in `dirty` before others look.
* A queue is in `queues` exactly when it has entries in memory that no running `write` has taken.
* About `limits.QUEUE_ENTRIES_WAITING` entries wait at most. Then the writer thread writes them
  itself (`make_room`), or takes no more messages if it cannot.

Locks are taken in this order: `writing`, `Handles.guard`, `guard`.


A consume queue: entry number n says where the queue's n-th message lies in the log.

An entry has 20 bytes: log offset, size of the record, tag code. A file holds 300,000 of them and
is named by the queue's byte offset of its first. Entries that stand for no message (before the
first of a queue that lost its beginning; for messages that are damaged) are *blank*: offset 0,
size 2,147,483,647, tag code 0. Behind the last entry everything is zero.

New entries are in memory until they are written to the file (`coherer._store.consume_queue`): those from
`tail[0]` on. `max` moves when entries are taken, whole, so a reader never sees half an entry.


All consume queues of a store."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from coherer import limits
from coherer._record.layout import FIXED_BYTES
from coherer._record.system_topics import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from coherer._store.files import Dirty, Files, Handles, file_name, numbered, zero
from coherer._store.index_file import hashes_of
from coherer.errors import UsageError
from coherer.limits import TOPIC_BYTES_MAX


class Waiting:
    """The queues of a store that have entries in memory.

    Attributes:
        guard: see the rules of the module.
        writing: see there.
        queues: those with entries that nobody writes yet.
        count: how many entries are in memory.
        dirty: what was written to files of queues since it was taken (`take_dirty`).
    """

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.writing = threading.RLock()
        self.queues: list[ConsumeQueue] = []
        self.count = 0
        self.dirty = Dirty()

    @property
    def many(self) -> bool:
        """Whether so many wait that they should be written before the interval is over."""
        return self.count >= limits.QUEUE_ENTRIES_WAITING // 2

    def make_room(self) -> None:
        """Write the entries if too many wait.

        Raises:
            OSError: some could not be written: take no more.
        """
        if self.count >= limits.QUEUE_ENTRIES_WAITING:
            self.write()

    def write(self, mark: Callable[[], None] | None = None) -> None:
        """Write the entries that wait; those of batches that come meanwhile may stay.

        Args:
            mark: called under `guard`: all entries that were added before it are written.

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

    def take_dirty(self) -> Dirty:
        """Give what must be synced for what was written, and begin a new list."""
        with self.writing:
            dirty, self.dirty = self.dirty, Dirty()
        return dirty

    def give_back(self, dirty: Dirty) -> None:
        """Note that a sync of this failed: it is part of the next one."""
        with self.writing:
            self.dirty.merge(dirty)


ENTRY: Final = struct.Struct(">qiq")
ENTRY_BYTES: Final = 20
BLANK_SIZE: Final = 0x7FFFFFFF
BLANK_ENTRY: Final = ENTRY.pack(0, BLANK_SIZE, 0)
QUEUES_MAX: Final = 1 << 31
_RUN_ENTRIES = 4096
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def is_valid_queue(topic: str, queue_id: int) -> bool:
    """Say whether there can be such a queue.

    >>> is_valid_queue("flights", 0), is_valid_queue("a/b", 0), is_valid_queue("flights", -1)
    (True, False, False)
    """
    allowed = bool(_TOPIC.match(topic)) and len(topic) <= TOPIC_BYTES_MAX
    return allowed and 0 <= queue_id < QUEUES_MAX


def check_topic(topic: str) -> None:
    """Refuse a topic that could not name a directory, here or in Java's broker.

    Raises:
        UsageError: it holds other characters, or too many.
    """
    if not _TOPIC.match(topic) or len(topic) > TOPIC_BYTES_MAX:
        raise UsageError(
            f"{topic!r} cannot be a topic.",
            hint=f"Letters, digits, _, -, % and | can, up to {TOPIC_BYTES_MAX} of them.",
        )


def _leading_blanks(entries: bytes) -> int:
    count = 0
    while entries.startswith(BLANK_ENTRY, count * ENTRY_BYTES):
        count += 1
    return count


class ConsumeQueue:
    """The files under `consumequeue/<topic>/<queue id>/`.

    `fixed` and `topic_head` are what each record of this queue has in common: its size without
    body and properties (and with IPv4 hosts), and its topic with the length before it;
    `key_hashes` knows the hashes of its keys. `delay_ms` is set for queues of the schedule topic:
    their entries hold the time of delivery, which is so much behind the store time, where those of
    others hold the tag code. `pending` are entries of a batch that is not visible yet; `tail` is
    the number of the first entry that is in memory, and these entries.
    """

    __slots__ = (
        "_active", "_directory", "_files", "_handles", "_waiting",
        "delay_ms", "file_bytes", "first_file", "fixed", "kept", "key_hashes", "max", "min",
        "pending",
        "queue_id", "tail", "topic", "topic_head",
    )  # fmt: skip

    def __init__(
        self,
        files: Files,
        handles: Handles,
        waiting: Waiting,
        directory: Path,
        topic: str,
        queue_id: int,
        file_bytes: int,
    ) -> None:
        check_topic(topic)
        if not 0 <= queue_id < QUEUES_MAX:
            raise UsageError(f"{queue_id} cannot be a queue's number.", topic=topic)
        self._files = files
        self._handles = handles
        self._waiting = waiting
        self._directory = directory / topic / str(queue_id)
        self._active = (self._directory, 0)  # the file that was written last, and where it ends
        self.topic = topic
        self.queue_id = queue_id
        self.file_bytes = file_bytes
        self.topic_head = bytes((len(topic),)) + topic.encode()
        self.fixed = FIXED_BYTES + len(topic)
        self.key_hashes = hashes_of(topic)
        self.min = 0
        self.max = 0
        self.first_file = 0
        self.kept = False  # what was in the files when they were loaded still is
        self.delay_ms: int | None = None
        self.tail = (0, bytearray())
        self.pending: list[bytes] = []

    def existing_size(self) -> int:
        """Give the size of the queue's first file; 0 if there is none."""
        for begin in self.begins()[:1]:
            with self._handles.guard:
                return self._files.size(self._handles.get(self._path(begin)))
        return 0

    def sizes(self) -> dict[int, int]:
        """Give the sizes of the files, by the byte offsets at which they begin."""
        with self._handles.guard:
            return {
                begin: self._files.size(self._handles.get(self._path(begin)))
                for begin in self.begins()
            }

    def load(self) -> None:
        """Find the files, the first entry that is not blank, and the last that is not zero."""
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
        self.tail = (self.max, bytearray())
        while self.min < self.max:
            entries = self.read(self.min, _RUN_ENTRIES)
            blanks = _leading_blanks(entries)
            self.min += blanks
            if blanks * ENTRY_BYTES < len(entries):
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
        """Write the entries that are in memory to the file. Hold `Waiting.writing`.

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
                self._waiting.dirty.files.add(path)
            else:
                self._write_over(at, entries)
        with self._waiting.guard:
            rest = tail[len(entries) :]  # what was taken meanwhile
            count = len(entries) // ENTRY_BYTES
            self.tail = (first + count, rest)
            self._waiting.count -= count
            if rest:
                self._waiting.queues.append(self)

    def _write_over(self, at: int, entries: bytes) -> None:
        done = 0
        while done < len(entries):
            begin = at - at % self.file_bytes
            part = entries[done : done + begin + self.file_bytes - at]
            path = self._path(begin)
            self._files.write(self._open(path), part, at - begin)
            self._waiting.dirty.files.add(path)
            self._active = (path, begin + self.file_bytes)
            done += len(part)
            at += len(part)

    def _open(self, path: Path) -> int:
        if not self._files.exists(path):
            self._files.make_directory(self._directory)
            topic = self._directory.parent
            self._waiting.dirty.directories |= {self._directory, topic, topic.parent}
        handle = self._handles.get(path, create=True)
        if self._files.size(handle) < self.file_bytes:
            self._files.resize(handle, self.file_bytes)
        return handle

    def withdraw(self, count: int) -> None:
        """Make `count` the end: entries from there on are gone, in memory and in the files.

        Raises:
            OSError: a file could not be cut; entries in files that are still there are no part of
                the queue and are written over.
        """
        waiting = self._waiting
        with waiting.writing, self._handles.guard:
            first = self.tail[0]
            with waiting.guard:
                kept = self.tail[1][: max(count - first, 0) * ENTRY_BYTES]
                waiting.count -= (len(self.tail[1]) - len(kept)) // ENTRY_BYTES
                if not kept and self in waiting.queues:
                    waiting.queues.remove(self)
                self.tail = (min(first, count), kept)
                self.max = count
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
                self._forget(path)
                continue
            handle = self._handles.get(path)
            zero(self._files, handle, max(at - begin, 0))
            self._waiting.dirty.files.add(path)

    def start_at(self, index: int) -> None:
        """Let an empty queue begin at an entry behind 0: blanks fill its first file up to there."""
        per_file = self.file_bytes // ENTRY_BYTES
        first = index - index % per_file
        self.first_file = first * ENTRY_BYTES
        with self._waiting.guard:
            self.tail = (first, bytearray())
            self.max = first
            if index > first:
                self.pending[:] = [BLANK_ENTRY] * (index - first)
                take_all((self,), self._waiting)
        self.min = index

    def begins(self) -> list[int]:
        """Give the byte offsets at which the files begin."""
        return numbered(self._files.names(self._directory))

    def _forget(self, path: Path) -> None:
        self._handles.drop(path)
        self._files.remove(path)

    def read(self, index: int, count: int) -> bytes:
        """Read entries: up to `count`, none behind `max`, none from behind the end of a file."""
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
        """Give what the entry of a message holds for filters, or for its delivery."""
        return tag_code if self.delay_ms is None else store_ms + self.delay_ms

    def schedule(self, store_ms: int) -> None:
        """Put the time of delivery into pending entries, where this queue has one."""
        if self.delay_ms is not None:
            entries = [ENTRY.unpack(entry) for entry in self.pending]
            due_ms = store_ms + self.delay_ms
            self.pending[:] = [ENTRY.pack(offset, size, due_ms) for offset, size, _ in entries]

    def entry(self, index: int) -> tuple[int, int, int] | None:
        """Read one entry, or whatever stands where it would be."""
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

    def first_where(self, holds: Callable[[int, int, int], bool | None]) -> int:
        """Give the first entry from `min` on for which `holds` is true; `max` if none is.

        Args:
            holds: told (index, log offset, size); false for a stretch, true from then on, None
                where it cannot tell. There, and for a blank, the entry before is asked.
        """
        low, high = self.min, self.max
        while low < high:
            middle = at = (low + high) // 2
            answer = self._ask(holds, at)
            while answer is None and at > low:
                at -= 1
                answer = self._ask(holds, at)
            if answer:
                high = at
            else:
                low = middle + 1
        return low

    def _ask(self, holds: Callable[[int, int, int], bool | None], index: int) -> bool | None:
        entry = self.entry(index)
        if entry is None or entry[1] == BLANK_SIZE:
            return None
        return holds(index, entry[0], entry[1])

    def trim(self, log_begin: int) -> None:
        """Forget the entries of messages before `log_begin`, and the files that hold only such."""
        self.min = self.first_where(lambda _, offset, size: size <= 0 or offset >= log_begin)
        for begin in self.begins()[:-1]:
            if begin + self.file_bytes > self.min * ENTRY_BYTES:
                break
            self._forget(self._path(begin))
            self.first_file = begin + self.file_bytes

    def remove(self) -> None:
        """Delete all files of the queue, and forget what is in memory.

        Raises:
            OSError: a file could not be deleted.
        """
        waiting = self._waiting
        with waiting.writing, self._handles.guard:
            with waiting.guard:
                waiting.count -= len(self.tail[1]) // ENTRY_BYTES
                self.tail = (0, bytearray())
                if self in waiting.queues:
                    waiting.queues.remove(self)
            for begin in self.begins():
                self._forget(self._path(begin))
            self._files.remove_tree(self._directory)

    def restart(self) -> None:
        """Delete all files of the queue: it is as if it had never been.

        Raises:
            OSError: a file could not be deleted.
        """
        self.remove()
        self.min = self.max = self.first_file = 0
        self.kept = False


def take_all(queues: Iterable[ConsumeQueue], waiting: Waiting) -> None:
    """Make pending entries part of their queues, in memory. Hold `Waiting.guard`."""
    append, taken = waiting.queues.append, 0
    for queue in queues:
        pending = queue.pending
        tail = queue.tail[1]
        if not tail:
            append(queue)
        count = len(pending)
        tail += pending[0] if count == 1 else b"".join(pending)
        queue.max += count
        taken += count
        pending.clear()
    waiting.count += taken


Queues = dict[tuple[str, int], ConsumeQueue]


class QueueDirectory:
    """Finds and makes consume queues.

    Args:
        files: where they are.
        directory: the directory of the topics.
        open_files: tells how many of their files may be held open now.
        file_bytes: size of their files, unless there are files already.
        delays_ms: the delay of each queue of the schedule topic.

    Attributes:
        queues: those that were found or made, by topic and number.
        waiting: their entries that are not in files yet.
        handles: their open files.
        notes: what was found beside queues.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        open_files: Callable[[], int],
        file_bytes: int,
        delays_ms: Sequence[int] = DELAY_LEVELS_MS,
    ) -> None:
        self._files = files
        self._directory = directory
        self.handles = Handles(files, open_files)
        self.waiting = Waiting()
        self._file_bytes = file_bytes
        self._delays_ms = delays_ms
        self.queues: Queues = {}
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
        """Find the queues that are there.

        Args:
            file_bytes: the size of their files, where that is known; else the files tell.
            loaded: called with each of them.
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
        for topic, number in found:
            queue = self.get(topic, number)
            queue.load()
            loaded(queue)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Give a queue, made if it is missing.

        Raises:
            UsageError: the topic or the number cannot be one.
        """
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(
                self._files, self.handles, self.waiting, self._directory, topic, queue_id,
                self._file_bytes,
            )  # fmt: skip
            if topic == SCHEDULE_TOPIC and queue_id < len(self._delays_ms):
                queue.delay_ms = self._delays_ms[queue_id]
            self.queues[topic, queue_id] = queue
        return queue

    def numbers(self, topic: str) -> list[int]:
        """Give the numbers of a topic's queues."""
        return sorted([number for name, number in self.queues if name == topic])

    def remove(self, topic: str) -> None:
        """Delete a topic's queues.

        Raises:
            OSError: a file could not be deleted.
        """
        for number in self.numbers(topic):
            self.queues.pop((topic, number)).remove()
        self._files.remove_tree(self._directory / topic)
        self._files.sync_directory(self._directory)

    def close(self) -> None:
        """Close all files."""
        self.handles.close()
