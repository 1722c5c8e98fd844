"""What goes into the store and comes out of it, and its options."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from coherer._record.layout import NO_HOST
from coherer._record.system_topics import DELAY_LEVELS_MS
from coherer.errors import UsageError

DAY_HOURS = 24
GIB = 1024**3
_LEAST = {
    "segment_bytes": 4096,
    "queue_segment_bytes": 20,
    "index_slots": 1,
    "index_entries": 2,
    "flush_interval_ms": 0,
    "queue_flush_interval_ms": 0,
    "retention_hours": 0,
    "retention_bytes": 0,
    "verify_bytes": 0,
    "open_files": 1,
}


class StoreOptions(Struct, frozen=True, kw_only=True):
    """How the store lays out its files and how often it looks after them.

    Sizes hold for a new directory; files that are there keep theirs, but for those of the index:
    an index file that was made with other numbers is not used.

    Args:
        segment_bytes: size of a file of the commit log. Java's brokers want the same number in
            their configuration (`mappedFileSizeCommitLog`).
        queue_segment_bytes: size of a file of a consume queue, a multiple of 20.
        index_enabled: whether messages with keys are put into the key index.
        index_slots: hash slots of an index file.
        index_entries: entries of an index file.
        flush: `"sync"` when the server acknowledges only what `Store.flush` has made durable;
            `"async"` when it acknowledges what is written. The store itself does the same in both.
        flush_interval_ms: how long a written message may wait for its flush with `"async"`.
        queue_flush_interval_ms: the same for consume queues, index and checkpoint; what they lack
            after a crash is rebuilt from the log.
        retention_hours: how long messages are kept at least; None keeps them for ever.
        retention_bytes: how large the log may become before its oldest file is deleted; by up to
            half a file larger, while it is being written to (`coherer._store.retention`).
        verify_bytes: how much of the log's end is read and checked at every start.
        store_host: address and port that records name as theirs.
        open_files: how many files of consume queues are held open.
        replica: the log is a copy of a master's: what a crash damaged is cut off with all that
            follows, and fetched again.
        delay_levels_ms: how long messages wait in each queue of the schedule topic
            (`coherer._record.system_topics`).

    Raises:
        UsageError: a number makes no sense.

    >>> StoreOptions(queue_segment_bytes=1000).queue_segment_bytes
    1000
    >>> StoreOptions(queue_segment_bytes=1001)
    Traceback (most recent call last):
    coherer.errors.UsageError: `queue_segment_bytes` must be a multiple of 20, not 1001.
    """

    segment_bytes: int = GIB
    queue_segment_bytes: int = 6_000_000
    index_enabled: bool = True
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    flush: Literal["async", "sync"] = "async"
    flush_interval_ms: int = 500
    queue_flush_interval_ms: int = 5_000
    retention_hours: float | None = 3 * DAY_HOURS
    retention_bytes: int | None = None
    verify_bytes: int = 16 * 1024 * 1024
    store_host: bytes = NO_HOST
    open_files: int = 256
    replica: bool = False
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"`{name}` must be {least} or more, not {value}.")
        if self.queue_segment_bytes % 20:
            value = self.queue_segment_bytes
            raise UsageError(f"`queue_segment_bytes` must be a multiple of 20, not {value}.")
        if len(self.store_host) not in (8, 20):
            raise UsageError("store_host is an address of 4 or 16 bytes and a port of 4.")


class Draft(Struct, frozen=True, gc=False):
    """A message to append.

    Args:
        topic: letters, digits, `_`, `-`, `%`, `|`; at most 127 bytes.
        queue_id: the queue or partition.
        body: the payload as it is stored.
        properties: property text (`coherer._record.properties.encode`).
        tag_code: `coherer._record.properties.tag_code` of the property TAGS: the filter's key. Not
            used in the schedule topic, where the queue gives the time of delivery. In the timer
            topic, the value of TIMER_OUT_MS.
        flag: the user's own number.
        sys_flag: RocketMQ's bits; those for IPv6 hosts are set by the store.
        born_ms: when the client made the message.
        born_host: the client's address (4 or 16 bytes) and port (4 bytes).
        reconsume_times: how often it has been handed out before.
        prepared_offset: the log offset of its half message, for a committed one.
        keys: what it is indexed by: `coherer._record.properties.index_keys` of its properties.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    tag_code: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = NO_HOST
    reconsume_times: int = 0
    prepared_offset: int = 0
    keys: tuple[str, ...] = ()


class DraftBatch(Struct, frozen=True, gc=False):
    """Messages for one queue that one client sent together: columns of equal length.

    Args:
        topic: as of a `Draft`; so is what else has the name of something there.
        queue_id: the queue.
        bodies: of each.
        properties: of each.
        tag_codes: of each.
        flags: of each.
        keys: of each.
        sys_flag: of all.
        born_ms: of all.
        born_host: of all.
        reconsume_times: of all.

    >>> together = DraftBatch("flights", 0, [b"a", b"b"], [b"", b""], [0, 0], [0, 0], [(), ()])
    >>> [draft.body for draft in together.to_drafts()]
    [b'a', b'b']
    """

    topic: str
    queue_id: int
    bodies: list[bytes]
    properties: list[bytes]
    tag_codes: list[int]
    flags: list[int]
    keys: list[tuple[str, ...]]
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = NO_HOST
    reconsume_times: int = 0

    def __len__(self) -> int:
        return len(self.bodies)

    def to_drafts(self) -> list[Draft]:
        """Give the messages one by one."""
        columns = self.bodies, self.properties, self.tag_codes, self.flags, self.keys
        return [
            Draft(
                self.topic, self.queue_id, body, properties, tag_code, flag, self.sys_flag,
                self.born_ms, self.born_host, self.reconsume_times, 0, keys,
            )
            for body, properties, tag_code, flag, keys in zip(*columns, strict=True)
        ]  # fmt: skip

    def part(self, of: slice) -> DraftBatch:
        """Give some of them."""
        return DraftBatch(
            self.topic, self.queue_id, self.bodies[of], self.properties[of], self.tag_codes[of],
            self.flags[of], self.keys[of], self.sys_flag, self.born_ms, self.born_host,
            self.reconsume_times,
        )  # fmt: skip


class AppendResult(Struct, frozen=True, gc=False):
    """Where an appended message lies: its number in its queue, and its place in the log.

    Of `DraftBatch`: where the first lies, the size and the count of all, and the place of each.
    """

    queue_offset: int
    physical_offset: int
    size_bytes: int
    count: int = 1
    physical_offsets: Sequence[int] = ()


class ReadStatus(enum.Enum):
    """How a read ended."""

    FOUND = "found"
    NO_MATCH = "no match"
    """Messages are there, none let through by the filter; go on at `next_offset`."""
    EMPTY = "empty"
    """The offset is the next one to be written."""
    BELOW = "below"
    """The offset is smaller than the queue's first; `next_offset` is the first."""
    BEYOND = "beyond"
    """The offset is larger than the next one to be written, which `next_offset` is."""


class QueueEntry(NamedTuple):
    """An entry of a consume queue.

    Args:
        offset: its number.
        physical_offset: where the record lies in the log.
        size_bytes: the record's size; 2,147,483,647 where the entry stands for no message.
        code: the tag code; in the schedule topic and the timer topic the time of
            delivery, ms since 1970.
    """

    offset: int
    physical_offset: int
    size_bytes: int
    code: int


class ReadResult(Struct, frozen=True):
    """Records of one queue: slices of mapped files, valid as long as somebody holds them.

    Args:
        status: how the read ended.
        records: whole stored records.
        offsets: their queue offsets. Damaged ones are left out, so there may be gaps.
        next_offset: where to read on.
        min_offset: the queue's first offset.
        max_offset: the next offset to be written.
        backlog_bytes: bytes of the log behind the last record, of all topics.
        damaged: queue offsets of messages in between that could not be read any more.
    """

    status: ReadStatus
    records: list[memoryview]
    offsets: list[int]
    next_offset: int
    min_offset: int
    max_offset: int
    backlog_bytes: int
    damaged: list[int] = []


class DamagedRange(Struct, frozen=True):
    """A piece of the log that does not hold what was written: `[begin, end)`, and how it shows."""

    begin: int
    end: int
    reason: str


class RecoveryReport(Struct, frozen=True):
    """What opening the store found and did.

    Args:
        clean: whether the last user of the directory closed it.
        log_begin: the first offset of the log.
        log_end: the offset behind its last record.
        checked_from: records from here on were read and checked.
        replayed_from: queues and index were rebuilt from the records from here on.
        replayed: how many of these there were.
        cut_bytes: size of what was cut off the end of the log because no valid record followed.
        damage: pieces before `log_end` that hold no valid record; the store works around them.
        lost: how many messages of these pieces the queues know.
        repaired: what was damaged and made again from the log.
        notes: other things that were put right.
    """

    clean: bool = True
    log_begin: int = 0
    log_end: int = 0
    checked_from: int = 0
    replayed_from: int = 0
    replayed: int = 0
    cut_bytes: int = 0
    damage: tuple[DamagedRange, ...] = ()
    lost: int = 0
    repaired: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """Give what was found damaged or lost: what, where, how many, and what to do.

        >>> piece = DamagedRange(4096, 8192, "a file is missing")
        >>> print(*RecoveryReport(damage=(piece,), lost=3).problems())
        Bytes 4096 to 8192 of the log are lost: a file is missing. 3 messages cannot be read any \
more; readers pass over them. If a copy of the files is left, stop the node and put them back.
        """
        found = [
            f"Bytes {piece.begin} to {piece.end} of the log are lost: {piece.reason}."
            for piece in self.damage
        ]
        if found:
            found[-1] += (
                f" {self.lost} message{'s' * (self.lost != 1)} cannot be read any more; readers "
                "pass over them. If a copy of the files is left, stop the node and put them back."
            )
        return [*found, *(f"{text} Nothing is lost." for text in self.repaired)]

    def noting(self, notes: list[str]) -> RecoveryReport:
        """Give the same report with further notes."""
        return replace(self, notes=(*notes, *self.notes))

    def __str__(self) -> str:
        """One line for the log of the node.

        >>> print(RecoveryReport(clean=False, log_end=97, replayed=1, cut_bytes=12))
        not closed; log 0 to 97; 1 record replayed; 12 bytes of a torn end cut
        """
        parts = [
            "closed" if self.clean else "not closed",
            f"log {self.log_begin} to {self.log_end}",
            f"{self.replayed} record{'s' * (self.replayed != 1)} replayed",
        ]
        if self.cut_bytes:
            parts.append(f"{self.cut_bytes} bytes of a torn end cut")
        parts += [f"DAMAGED {piece.begin} to {piece.end}: {piece.reason}" for piece in self.damage]
        return "; ".join([*parts, *self.repaired, *self.notes])
