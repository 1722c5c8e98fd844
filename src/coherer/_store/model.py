"""The types of the store's interface: options, messages to append, results and reports."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from coherer._record.layout import NO_HOST
from coherer._record.offset_ranges import between
from coherer._record.system_topics import DELAY_LEVELS_MS
from coherer.errors import UsageError
from coherer.limits import QUEUE_ENTRIES_WAITING

DAY_HOURS = 24
GIB = 1024**3
_MINIMUMS = {
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
    "pending_entries_max": 1,
    "pending_keys_max": 1,
}

_FILES_WANTED = 8
_FILES_MIN = 2
_PAGE = 4096
_AROUND_BODY_BYTES = 64 * 1024
"""The largest head, properties and topic of a record, rounded up."""


class StoreOptions(Struct, frozen=True, kw_only=True):
    """The layout of the store's files, and its intervals and limits.

    Sizes apply to a new directory. Existing files of log and queues keep their size; an index file
    with other sizes is not used.

    Args:
        segment_bytes: the size of a file of the commit log. Java's brokers need the same number in
            their configuration (`mappedFileSizeCommitLog`).
        queue_segment_bytes: the size of a file of a consume queue, a multiple of 20.
        index_enabled: whether the keys of messages are indexed.
        index_slots: the number of hash slots of an index file.
        index_entries: the number of entries of an index file.
        flush: with `"sync"` the server acknowledges messages after `Store.flush`, with `"async"`
            when they are written. The store itself does the same in both cases.
        flush_interval_ms: with `"async"`, how long a written message may wait for its flush.
        queue_flush_interval_ms: the same for consume queues, index and checkpoint. What they lose
            in a crash is rebuilt from the log.
        retention_hours: the minimum time that messages are kept; None for no limit.
        retention_bytes: the size of the log from which on its oldest files are deleted; None for
            no limit. While it is being written the log may be half a file larger.
        verify_bytes: how much of the end of the log is verified at every open.
        store_host: address and port that records carry as their store host.
        open_files: how many files of consume queues may be open.
        pending_entries_max: how many queue entries may wait in memory.
        pending_keys_max: how many keys may wait in memory.
        replica: the log is a copy of a master's. Damage after a crash is cut off with everything
            that follows, and fetched again.
        delay_levels_ms: how long messages wait in each queue of the schedule topic
            (`coherer._record.system_topics`).

    Raises:
        UsageError: a value is invalid.

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
    pending_entries_max: int = QUEUE_ENTRIES_WAITING
    pending_keys_max: int = 100_000
    open_files: int = 256
    replica: bool = False
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS

    def __post_init__(self) -> None:
        for name, minimum in _MINIMUMS.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise UsageError(f"`{name}` must be {minimum} or more, not {value}.")
        if self.queue_segment_bytes % 20:
            value = self.queue_segment_bytes
            raise UsageError(f"`queue_segment_bytes` must be a multiple of 20, not {value}.")
        if len(self.store_host) not in (8, 20):
            raise UsageError(
                "`store_host` must be an address of 4 or 16 bytes and a port of 4 bytes."
            )


def segment_bytes_for(retention_bytes: int | None, message_bytes_max: int) -> int:
    """Choose the size of the files of a new log: an eighth of the limit, or 1 GiB without a limit.

    The log is deleted file by file, so small files keep a limit more exactly.

    Args:
        retention_bytes: the size limit of the log; None for no limit.
        message_bytes_max: the size of the largest message, which must fit into a file.

    Raises:
        UsageError: the limit is smaller than two such files.

    >>> segment_bytes_for(None, 1 << 20), segment_bytes_for(1 << 30, 1 << 20)
    (1073741824, 134217728)
    """
    if retention_bytes is None:
        return GIB
    pages = -(-(message_bytes_max + _AROUND_BODY_BYTES) // _PAGE)
    size = max(pages, min(retention_bytes // _FILES_WANTED, GIB) // _PAGE) * _PAGE
    check_retention(retention_bytes, size)
    return size


def check_retention(retention_bytes: int | None, segment_bytes: int) -> None:
    """Check that a limit can be kept with files of this size.

    Raises:
        UsageError: the limit is smaller than two files.

    >>> check_retention(4_000, 4_096)
    Traceback (most recent call last):
    coherer.errors.UsageError: retention_bytes is 4,000; with log files of 4,096 bytes it must be \
8,192 or more. The log is deleted file by file.
    """
    minimum = _FILES_MIN * segment_bytes
    if retention_bytes is not None and retention_bytes < minimum:
        raise UsageError(
            f"retention_bytes is {retention_bytes:,}; with log files of {segment_bytes:,} bytes "
            f"it must be {minimum:,} or more.",
            hint="The log is deleted file by file.",
        )


class Draft(Struct, frozen=True, gc=False):
    """A message to append.

    Args:
        topic: letters, digits, `_`, `-`, `%`, `|`; at most 127 bytes.
        queue_id: the queue or partition.
        body: the payload as it is stored.
        properties: property text (`coherer._record.properties.encode`).
        tag_code: the hash of the property TAGS (`coherer._record.properties.tag_code`), for
            filters. It is not used in the schedule topic, where the queue determines the delivery
            time. In the timer topic it is the value of TIMER_OUT_MS.
        flag: a number of the user.
        sys_flag: RocketMQ's flags; the store sets those for IPv6 hosts.
        born_ms: when the client created the message, ms since 1970.
        born_host: the client's address (4 or 16 bytes) and port (4 bytes).
        reconsume_times: how often it was delivered before.
        prepared_offset: of a committed message, the log offset of the prepared one.
        keys: its index keys (`coherer._record.properties.index_keys`).
        destination: of a message that waits in a system topic, the topic for which it is meant.
            It is not stored: the node sets it when it makes the message wait
            (`coherer._rules.common.origins`).
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
    destination: str = ""


class DraftBatch(Struct, frozen=True, gc=False):
    """Messages for one queue from one client, as columns of equal length.

    The fields mean the same as those of a `Draft`.

    Args:
        properties: the property text of each message.
        keys: the index keys of each message.
        born_ms: the born time of all messages.
        reconsume_times: of all messages.
        prepared_offset: of all messages.

    >>> batch = DraftBatch("flights", 0, [b"a", b"b"], [b"", b""], [0, 0], [0, 0], [(), ()])
    >>> [draft.body for draft in batch.to_drafts()]
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
    prepared_offset: int = 0

    def __len__(self) -> int:
        return len(self.bodies)

    def to_drafts(self) -> list[Draft]:
        """Return the messages one by one."""
        columns = self.bodies, self.properties, self.tag_codes, self.flags, self.keys
        return [
            Draft(
                self.topic,
                self.queue_id,
                body,
                properties,
                tag_code,
                flag,
                self.sys_flag,
                self.born_ms,
                self.born_host,
                self.reconsume_times,
                self.prepared_offset,
                keys,
            )
            for body, properties, tag_code, flag, keys in zip(*columns, strict=True)
        ]

    def part(self, of: slice) -> DraftBatch:
        """Return a part of the batch."""
        return DraftBatch(
            self.topic,
            self.queue_id,
            self.bodies[of],
            self.properties[of],
            self.tag_codes[of],
            self.flags[of],
            self.keys[of],
            self.sys_flag,
            self.born_ms,
            self.born_host,
            self.reconsume_times,
            self.prepared_offset,
        )


class AppendResult(Struct, frozen=True, gc=False):
    """Where an appended message is: its queue offset and its log offset.

    For a `DraftBatch`: the offsets of the first message, the total size, the number of messages,
    and the log offset of each.
    """

    queue_offset: int
    physical_offset: int
    size_bytes: int
    count: int = 1
    physical_offsets: Sequence[int] = ()


class ReadStatus(enum.Enum):
    """The outcome of a read."""

    FOUND = "found"
    NO_MATCH = "no match"
    """There are messages, but the filter matches none of them; continue at `next_offset`."""
    EMPTY = "empty"
    """The offset is the next one to be written."""
    BELOW = "below"
    """The offset is smaller than the queue's first; `next_offset` is the first."""
    BEYOND = "beyond"
    """The offset is larger than the next one to be written, which `next_offset` is."""


class QueueEntry(NamedTuple):
    """An entry of a consume queue.

    Args:
        physical_offset: the log offset of the record.
        size_bytes: the size of the record; 2,147,483,647 for a blank entry.
        code: the tag code; in the schedule topic and the timer topic the delivery time, ms since
            1970.
    """

    offset: int
    physical_offset: int
    size_bytes: int
    code: int


class ReadResult(Struct, frozen=True):
    """Records of one queue: slices of mapped files, valid as long as they are referenced.

    Args:
        status: the outcome of the read.
        records: whole stored records.
        offsets: their queue offsets. There are gaps where messages are damaged or filtered.
        next_offset: where to continue.
        min_offset: the queue's first offset.
        max_offset: the next offset to be written.
        backlog_bytes: the bytes of the log after the last record, of all topics.
        damaged: the queue offsets of messages that are damaged.
        heads_match: whether each record is known to begin with the size in its entry, and with the
            mark of a record.
    """

    status: ReadStatus
    records: list[memoryview]
    offsets: list[int]
    next_offset: int
    min_offset: int
    max_offset: int
    backlog_bytes: int
    damaged: list[int] = []
    heads_match: bool = False

    def gaps(self, offset: int) -> list[range]:
        """Return the gaps of power cuts that a read without a filter has passed.

        Args:
            offset: where the read began.
        """
        count = self.next_offset - offset
        no_gap = len(self.offsets) == count or (self.records and not self.offsets)
        if no_gap or self.status not in (ReadStatus.FOUND, ReadStatus.NO_MATCH):
            return []
        known = sorted({*self.offsets, *(one for one in self.damaged if one < self.next_offset)})
        return between(offset, self.next_offset, known)


class DamagedRange(Struct, frozen=True):
    """A damaged range of the log, `[begin, end)`, and the reason."""

    begin: int
    end: int
    reason: str


class PowerCut(Struct, frozen=True, omit_defaults=True):
    """What a start has found of the writes that were torn when the last process ended.

    Args:
        end: the end of the log at that start.
        torn: the damaged ranges among what was not synced.
        unmarked: the log offsets of committed messages, one of each transaction whose mark or
            other messages are missing.
        void: the log offsets of marks that do not count, because messages before them are missing.
    """

    end: int
    torn: tuple[DamagedRange, ...] = ()
    unmarked: tuple[int, ...] = ()
    void: tuple[int, ...] = ()

    def tears(self, offset: int) -> bool:
        """Whether a record at a log offset may refer to earlier ones that were torn.

        >>> cut = PowerCut(end=900, torn=(DamagedRange(400, 500, "zeros"),))
        >>> [cut.tears(offset) for offset in (300, 500, 900)]
        [False, True, False]
        """
        return bool(self.torn) and self.torn[0].begin < offset < self.end


class RecoveryReport(Struct, frozen=True):
    """The results of recovery.

    Args:
        clean: whether the store had been closed.
        log_begin: the first offset of the log.
        log_end: the offset after the last record.
        checked_from: records from this offset on were verified.
        replayed_from: records from this offset on were added to queues and index.
        replayed: the number of these records.
        cut_bytes: the size of the torn end that was cut off the log.
        damage: damaged ranges before `log_end`; readers skip them.
        lost: the number of messages in these ranges.
        repaired: what was damaged and rebuilt from the log.
        notes: other findings.
        unmarked: see `PowerCut`; those among the replayed records.
        void: as `unmarked`.
        cuts: what this start and earlier ones have found of torn writes.
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
    unmarked: tuple[int, ...] = ()
    void: tuple[int, ...] = ()
    cuts: tuple[PowerCut, ...] = ()

    def unknown_bytes(self, *, lost_power: bool) -> int:
        """How much of the log is damaged that readers may have seen, and no queue knows any more.

        Queues lose the entries of damaged records that are replayed, or when they are rebuilt.

        Args:
            lost_power: whether a power cut can have torn what is replayed. Nobody has seen that.

        >>> pieces = DamagedRange(400, 500, "zeros"), DamagedRange(900, 1000, "zeros")
        >>> report = RecoveryReport(clean=False, replayed_from=600, damage=pieces, cut_bytes=20)
        >>> report.unknown_bytes(lost_power=False), report.unknown_bytes(lost_power=True)
        (120, 0)
        """
        found = 0 if self.clean or lost_power else self.cut_bytes
        for piece in self.damage:
            if piece.begin < self.replayed_from:
                is_unknown = bool(self.repaired)
            else:
                is_unknown = not (self.clean or lost_power)
            found += piece.end - piece.begin if is_unknown else 0
        return found

    def problems(self) -> list[str]:
        """Return sentences about damage: where it is, how many messages are lost, the remedy.

        >>> piece = DamagedRange(4096, 8192, "a file is missing")
        >>> print(*RecoveryReport(damage=(piece,), lost=3).problems())
        Bytes 4096 to 8192 of the log are lost: a file is missing. Lost messages: 3; \
readers skip them. If you have a copy of the files, stop the node and restore them.
        """
        found = [
            f"Bytes {piece.begin} to {piece.end} of the log are lost: {piece.reason}."
            for piece in self.damage
        ]
        if found:
            found[-1] += (
                f" Lost messages: {self.lost}; readers skip them. If you have a copy of the files, "
                "stop the node and restore them."
            )
        return [*found, *(f"{text} Nothing is lost." for text in self.repaired)]

    def with_notes(self, notes: list[str]) -> RecoveryReport:
        """Return the report with further notes."""
        return replace(self, notes=(*notes, *self.notes))

    def __str__(self) -> str:
        """Return one line for the log of the node.

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
