"""Records of the log are compared with the queues, or put into them again."""

from __future__ import annotations

from functools import lru_cache

from coherer._record.layout import PREPARED, ROLLED_BACK, RecordSummary
from coherer._record.properties import TAGS, TIMER_OUT_MS, decode, index_keys, tag_code
from coherer._record.system_topics import TIMER_TOPIC
from coherer._store.index import KeyIndex
from coherer._store.keys import Keys
from coherer._store.queue import BLANK_ENTRY, ENTRY, ENTRY_BYTES, ConsumeQueue, take_all
from coherer._store.queues import QueueDirectory
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
