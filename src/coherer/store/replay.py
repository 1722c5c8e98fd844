"""Records of the log are compared with the queues, or put into them again."""

from __future__ import annotations

from functools import lru_cache

from coherer.errors import UsageError
from coherer.record.hashing import tag_code
from coherer.record.layout import PREPARED, ROLLED_BACK, Summary
from coherer.record.properties import TAGS, TIMER_OUT_MS, decode, index_keys
from coherer.record.reserved import TIMER_TOPIC
from coherer.store.disk import Dirty
from coherer.store.index import KeyIndex
from coherer.store.keys import Keys
from coherer.store.queue import BLANK_ENTRY, ENTRY, ENTRY_BYTES, ConsumeQueue
from coherer.store.queues import QueueDirectory

RECORD_BYTES_MIN = 92
"""No record is smaller: damage of n bytes held n / 92 messages at most."""

_PENDING_ENTRIES = 4096
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
        self._queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._waiting: set[ConsumeQueue] = set()
        self._firsts: dict[str, int] = {}
        self._windows: dict[ConsumeQueue, tuple[int, bytes]] = {}
        self.lost_bytes = 0
        self.replayed = 0
        self.orphans = 0
        self.dirty = Dirty()

    def check(self, record: Summary) -> str:
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
                window, at = queue.read(queue_offset, _PENDING_ENTRIES), 0
                self._windows[queue] = queue_offset, window
            if ENTRY.unpack_from(window, at)[:2] == (offset, record.size):
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

    def replay(self, record: Summary) -> str:
        """Give a record its queue entry and keys; give what is wrong, or ""."""
        queue = self._queue(record)
        if queue is None:
            return "topic"
        offset, kind = record.physical_offset, record.sys_flag & ROLLED_BACK
        code, keys = tag_and_keys(record.properties)
        if kind not in (PREPARED, ROLLED_BACK):
            wrong = self._place(queue, record.queue_offset)
            if wrong:
                return wrong
            self._waiting.add(queue)
            pending = queue.pending
            if record.topic == _TIMER_TOPIC:
                code = due_ms(record.properties)
            pending.append(ENTRY.pack(offset, record.size, queue.code_of(code, record.store_ms)))
            if len(pending) >= _PENDING_ENTRIES:
                self._write(queue)
        index = self._index
        if keys and kind != ROLLED_BACK and index is not None and offset > index.indexed_to:
            index.make_room(self._now_ms)
            hashes = queue.key_hashes.of(keys)
            count = len(hashes)
            index.add(Keys(hashes, [offset] * count, [record.store_ms] * count))
        self.replayed += 1
        return ""

    def _queue(self, record: Summary) -> ConsumeQueue | None:
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
            queue.start_at(queue_offset, self.dirty)
            return ""
        if 0 < gap <= self.lost_bytes // RECORD_BYTES_MIN:
            queue.pending.extend([BLANK_ENTRY] * gap)
            return ""
        if queue_offset == 0:  # the topic was deleted and made again
            queue.pending.clear()
            queue.withdraw(0, self.dirty)
            return ""
        return f"queue offset {queue_offset}, where {expected} is next"

    def _write(self, queue: ConsumeQueue) -> None:
        queue.append(b"".join(queue.pending), self.dirty)
        queue.pending.clear()

    def finish(self) -> None:
        """Write what is still waiting."""
        for queue in self._waiting:
            if queue.pending:
                self._write(queue)
        self._waiting.clear()


def due_ms(text: bytes) -> int:
    """Give the due time in the property text of a timed message, ms since 1970; 0 if none."""
    found = decode(text).get(TIMER_OUT_MS, "")
    return int(found) if found.isascii() and found.isdecimal() and len(found) < 19 else 0


@lru_cache(maxsize=4096)
def tag_and_keys(text: bytes) -> tuple[int, tuple[str, ...]]:
    """Give the tag code and the index keys of a property text."""
    if not any(word in text for word in _SPECIAL):
        return 0, ()
    properties = decode(text)
    return tag_code(properties.get(TAGS)), index_keys(properties)
