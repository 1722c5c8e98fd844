"""The hot path of receiving: the answers to pulls, decoded on first use.

The body of such an answer is a sequence of records as they are stored (docs/protocol/rocketmq.md,
section 5.1). `MessageBatch` keeps the bytes and decodes the records on first use. As Java's clients
do, it decompresses bodies, and for a consumer with tags it drops messages with other tags, because
the broker filters by a hash of the tag. It leaves out messages whose lengths do not fit, whose
checksum is wrong or that cannot be decompressed: `skipped` counts them, and `left_out` lists the
offsets without a message.

`decode_messages` is for answers with messages of any queue: queries by id or key.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

from coherer._common.checksum import crc32
from coherer._common.logs import Log
from coherer._record import compression, layout
from coherer._record import properties as text
from coherer._record.bad_record import BadRecord
from coherer._record.offset_ranges import between
from coherer._record.records import RecordFields, long_fields, next_record, records
from coherer._record.system_topics import RETRY_PREFIX
from coherer._wire.rocketmq.messages import StoredMessage, time_of, user_properties
from coherer._wire.rocketmq.names import Queue
from coherer.errors import DamagedStoreError, ProtocolError
from coherer.limits import DECOMPRESSED_BYTES_PER_ANSWER, MESSAGE_BYTES_MAX

# Only columns need numpy and pyarrow, which are extras.
if TYPE_CHECKING:
    import pyarrow as pa

    from coherer._record.scan import RecordScan

_HEAD: Final = layout.HEAD_V4
_SIZE: Final = Struct(">I")

_log = Log(logging.getLogger(__name__))

_UNLIMITED: Final = 1 << 63

_FIXED: Final = _HEAD.size
_LOOK: Final = Struct(">I4xI8xq8xI44xI")
"""Size, checksum, queue offset, flags and length of the body, in the same bytes."""
_FLAGS: Final = Struct(">I32xI")
"""Size and flags."""
_OFFSET: Final = Struct(">20xq")
"""The queue offset, in the same bytes."""
_TAGS: Final = text.TAGS.encode() + b"\x01"

M = TypeVar("M")


class MessageBatch:
    r"""The messages of one pull, decoded on first use.

    Args:
        body: a sequence of records.
        queue: their queue.
        tags: the consumer's tags; None for all messages (or an SQL92 filter).
        offset: first offset of the pull; None for that of the first message.
        next_offset: first offset of the next pull.
        min_offset: first offset on the broker.
        max_offset: offset after the last message on the broker.
        inflated_max: how many bytes the bodies may have when they are decompressed. The batch ends,
            with its `next_offset`, before the message that exceeds it, unless that is the first.

    Attributes:
        size_bytes: size of the body; of the bodies, if these were decompressed to measure them.

    >>> from coherer._record import layout
    >>> record = layout.encode("demo", b"hello", b"TAGS\x01UA", queue_id=0, queue_offset=7,
    ...                        physical_offset=0, store_ms=0)
    >>> batch = MessageBatch(record, Queue("demo", "broker-a", 0), next_offset=8)
    >>> batch.bodies(), [message.tag for message in batch]
    ([b'hello'], ['UA'])
    """

    __slots__ = (
        "_bodies",
        "_data",
        "_delivered",
        "_found",
        "_raw",
        "_scan",
        "_skipped",
        "_starts",
        "_tags",
        "max_offset",
        "min_offset",
        "next_offset",
        "offset",
        "queue",
        "size_bytes",
    )

    def __init__(
        self,
        body: bytes | bytearray | memoryview,
        queue: Queue,
        *,
        tags: frozenset[str] | None = None,
        offset: int | None = None,
        next_offset: int = 0,
        min_offset: int = 0,
        max_offset: int = 0,
        inflated_max: int | None = None,
    ) -> None:
        self._data = bytes(body)
        self._tags = frozenset(tag.encode() for tag in tags) if tags else None
        self.queue = queue
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.size_bytes = len(body)
        if offset is None:
            offset = layout.peek(self._data).queue_offset if len(body) >= _FIXED else next_offset
        self.offset = offset
        self._delivered = 0
        self._skipped = 0
        self._found = False
        self._raw: RecordScan | None = None  # before verification
        self._scan: RecordScan | None = None
        self._starts: list[int] = []  # position of each message in the data
        self._bodies: list[bytes] = []
        if inflated_max is not None and self._may_exceed(inflated_max):
            self._read(inflated_max)
            self._raw = None
            self._weigh()

    def __repr__(self) -> str:
        where = f"{self.queue.broker}:{self.topic}:{self.partition}"
        return f"<MessageBatch of {where} from {self.offset}: {self.size_bytes} bytes>"

    def __len__(self) -> int:
        return len(self.bodies() if self._scan is None else self._scan)

    def __iter__(self) -> Iterator[StoredMessage]:
        return self.messages(StoredMessage)

    @property
    def topic(self) -> str:
        """The topic."""
        return self.queue.topic

    @property
    def broker(self) -> str:
        """The broker's name."""
        return self.queue.broker

    @property
    def partition(self) -> int:
        """The queue's number."""
        return self.queue.id

    @property
    def delivered(self) -> int:
        """How many messages arrived, including those that are left out."""
        self._read()
        return self._delivered

    @property
    def skipped(self) -> int:
        """How many of the arrived messages were left out because they are damaged."""
        self._read()
        return self._skipped

    @property
    def left_out(self) -> list[range]:
        """The offsets between `offset` and `next_offset` without a message; empty with tags.

        The broker or this batch left them out: they are damaged, or no longer stored.
        """
        return [] if self._tags else between(self.offset, self.next_offset, self.offsets())

    def bodies(self) -> list[bytes]:
        """Return the body of each message; do not modify the list."""
        self._read()
        return self._bodies

    def offsets(self) -> list[int]:
        """Return the offset of each message."""
        if self._scan is not None:
            return cast("list[int]", self._scan.queue_offsets.tolist())
        self._read()
        data, unpack = self._data, _OFFSET.unpack_from
        return [unpack(data, start)[0] for start in self._starts]

    def prepared_offsets(self) -> list[int]:
        """Return the log offset of each message's half message; 0 without a transaction."""
        return [fields[13] for fields in self._details()[0]]

    def messages(self, make: Callable[..., M]) -> Iterator[M]:
        """Iterate over messages created by `make`, which takes the arguments of `StoredMessage`."""
        self._read()
        queue = self.queue
        retried = queue.topic.startswith(RETRY_PREFIX)
        for fields, body, properties in zip(*self._details(), strict=True):
            yield _message(queue.topic, queue.broker, fields, body, properties, make, retried)

    def before(self, end: int) -> MessageBatch:
        """Return the messages below an offset.

        Args:
            end: the offset after the last message to return.
        """
        offsets = self.offsets()
        if not offsets or offsets[-1] < end:
            return self
        part = self.pick(range(bisect_left(offsets, end)))
        part.offset, part.next_offset = self.offset, end
        return part

    def pick(self, numbers: Sequence[int]) -> Self:
        """Return some of the messages, by position."""
        self._read()
        part = copy(self)
        part._scan = part._raw = None
        part._starts = [self._starts[number] for number in numbers]
        part._bodies = [self._bodies[number] for number in numbers]
        part.size_bytes = sum(_SIZE.unpack_from(self._data, start)[0] for start in part._starts)
        part._weigh()
        part.offset = next(iter(part.offsets()), self.offset)
        return part

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the batch as columns; needs pyarrow and numpy (`pip install coherer[arrow]`).

        | column | type | |
        |---|---|---|
        | topic, broker | string | |
        | partition | int32 | the queue |
        | offset | int64 | |
        | id | string | offset message id |
        | key, tag | string | null if missing |
        | time | timestamp | the sender's time, else the born time |
        | value | binary | the body |
        | properties | map of strings | the user's properties |

        No object is created per message.

        Args:
            columns: the wanted columns; others are not decoded. None for all columns of the table;
                `born_time` and `store_time` are included only by name.
        """
        from coherer._record import record_columns

        return record_columns.columns(
            self._scanned(), columns, topic=self.queue.topic, broker=self.queue.broker
        )

    def _scanned(self) -> RecordScan:
        """Return the records of the messages as numpy arrays; see `coherer._record.scan`."""
        if self._scan is None:
            from coherer._record.scan import scan_at

            if self._tags is not None:
                self._read()
            if self._found:
                self._scan = scan_at(self._data, self._starts).verified(self._bodies)
            else:
                found = self._raw or self._records()
                self._scan = found.within(self.offset, self.next_offset or _UNLIMITED).intact()
            self._raw = None
        return self._scan

    def _records(self) -> RecordScan:
        from coherer._record.scan import scan

        return scan(self._data, queue_id=self.queue.id, above=self.offset - 1)

    def bad_records(self) -> list[BadRecord]:
        """Return the records that are left out because they are bad; not a hot path."""
        from coherer._wire.rocketmq.bad_records import bad_records

        return bad_records(self._data, self.queue.id, self.offset, self.next_offset)

    def _weigh(self) -> None:
        """Count the bodies as they are in memory now."""
        self.size_bytes = max(self.size_bytes, sum(map(len, self.bodies())))

    def _may_exceed(self, inflated_max: int) -> bool:
        """Whether the bodies may have more bytes when they are decompressed."""
        data, position = self._data, 0
        if len(data) * compression.RATIO_MAX <= inflated_max:
            return False
        if "coherer._record.scan" in sys.modules:  # the application reads columns: this is reused
            self._raw = self._records()
            return bool((self._raw.sys_flags & compression.COMPRESSED).any())
        last, unpack, compressed = len(data) - _FIXED, _FLAGS.unpack_from, compression.COMPRESSED
        while position <= last:
            size, flags = unpack(data, position)
            if flags & compressed or size < _FIXED:
                return True
            position += size
        return False

    def _end_at(self, start: int) -> bool:
        """End the batch before the message at a position; False if that is not behind others."""
        offset = _OFFSET.unpack_from(self._data, start)[0]
        if offset <= self.offset:
            return False
        self.next_offset, self._data = offset, self._data[:start]
        self.size_bytes = start
        return True

    def _read(self, inflated_max: int = _UNLIMITED) -> None:
        """Find the messages and their bodies, once; `_details` decodes the other parts."""
        if self._found:
            return
        data, tags, unpack = self._data, self._tags, _LOOK.unpack_from
        starts: list[int] = []
        bodies: list[bytes] = []
        delivered = skipped = position = 0
        crc = own = flags = begin = body_end = 0
        end, first, beyond = len(data), self.offset, self.next_offset or _UNLIMITED
        while position < end:
            try:
                size, crc, own, flags, length = unpack(data, position)
                begin = position + _FIXED
                if flags & layout.HOSTS_V6:
                    fields, begin = long_fields(data, position, _HEAD.unpack_from(data, position))
                    length = fields[14]
                body_end = begin + length
                texts_at = body_end + 3 + data[body_end]
                text_bytes = data[texts_at - 2] << 8 | data[texts_at - 1]
            except (struct_error, IndexError):
                texts_at = text_bytes = size = -1  # never fits
            delivered += 1
            start, position = position, position + size
            if texts_at + text_bytes != position or position > end:
                skipped += 1
                above = _OFFSET.unpack_from(data, starts[-1])[0] if starts else self.offset - 1
                position = next_record(data, start, self.queue.id, above)
                continue
            if tags is not None and _tag(data[texts_at:position]) not in tags:
                continue
            body = data[begin:body_end]
            # Acknowledging an offset from elsewhere would move the group there.
            fits = first <= own < beyond
            if not fits or flags & compression.COMPRESSED or crc32(body) & layout.CRC_MASK != crc:
                verified = _verified(crc, flags, body) if fits else None
                if verified is None:
                    skipped += 1
                    continue
                body = verified
                inflated_max -= len(body)
                if inflated_max < 0 and starts and self._end_at(start):
                    delivered -= 1
                    break
            starts.append(start)
            bodies.append(body)
        self._delivered, self._skipped = delivered, skipped
        self._starts, self._bodies = starts, bodies
        self._found = True

    def _details(self) -> tuple[list[RecordFields], list[bytes], list[bytes]]:
        """Return fields, body and property text of each message."""
        self._read()
        data, unpack = self._data, _HEAD.unpack_from
        every: list[RecordFields] = []
        texts: list[bytes] = []
        for start in self._starts:
            fields: RecordFields = unpack(data, start)
            begin = start + _FIXED
            if fields[7] & layout.HOSTS_V6:
                fields, begin = long_fields(data, start, fields)
            body_end = begin + fields[14]
            every.append(fields)
            texts.append(data[body_end + 3 + data[body_end] : start + fields[0]])
        return every, self._bodies, texts


def _verified(crc: int, flags: int, body: bytes) -> bytes | None:
    """Return the body as it was sent; None if it is damaged."""
    if crc32(body) & layout.CRC_MASK != crc:
        return None
    if flags & compression.COMPRESSED:
        try:
            return compression.decompress(body, limit_bytes=MESSAGE_BYTES_MAX)
        except DamagedStoreError:
            return None
    return body


def _tag(properties: bytes) -> bytes | None:
    """Return the value of `TAGS` in a property text: the last one, as when decoding all."""
    at = properties.rfind(_TAGS)
    while at > 0 and properties[at - 1] != 2:
        at = properties.rfind(_TAGS, 0, at + len(_TAGS) - 1)
    if at < 0:
        return None
    value = properties[at + len(_TAGS) :].partition(b"\x02")[0]
    return value or _tag(properties[: max(at - 1, 0)])


def _message(
    topic: str,
    broker: str,
    fields: RecordFields,
    body: bytes,
    properties: bytes,
    make: Callable[..., M],
    retried: bool,
) -> M:
    stored = text.decode(properties)
    keys = stored.get(text.KEYS)
    return make(
        stored.get(text.RETRY_TOPIC, topic) if retried else topic,
        body,
        stored.get(text.TAGS),
        time_of(stored, fields[8]),
        tuple(keys.split()) if keys else (),
        user_properties(stored),
        f"{fields[11].hex().upper()}{fields[6]:016X}",
        broker,
        fields[3],
        fields[5],
        stored.get(text.UNIQUE_KEY, ""),
        fields[8],
        fields[10],
        fields[12],
        fields[4],
        fields[7],
        fields[6],
        stored,
    )


def decode_messages(body: bytes | memoryview, broker: str = "") -> list[StoredMessage]:
    r"""Decode an answer with messages of any topic and queue, in the order of the answer.

    Checksums are ignored, and a body that cannot be decompressed is returned as stored, so that
    people can look at it. A message whose lengths do not fit is left out.

    Args:
        broker: name of the broker that answered.

    Raises:
        ProtocolError: the lengths do not fit in any record.

    >>> from coherer._record import layout
    >>> record = layout.encode("demo", b"hello", b"KEYS\x01k1", queue_id=0, queue_offset=7,
    ...                        physical_offset=0, store_ms=0)
    >>> [(message.topic, message.keys) for message in decode_messages(record)]
    [('demo', ('k1',))]
    """
    found: list[StoredMessage] = []
    damaged = inflated = 0
    for record in records(bytes(body)):
        if record is None:
            damaged += 1
            continue
        fields, stored_body, name, properties = record
        topic = str(name, "utf-8", "replace")
        if fields[7] & compression.COMPRESSED:
            with suppress(DamagedStoreError):
                stored_body = compression.decompress(stored_body, limit_bytes=MESSAGE_BYTES_MAX)
                inflated += len(stored_body)
        if inflated > DECOMPRESSED_BYTES_PER_ANSWER:
            raise ProtocolError(
                f"The bodies of one answer exceed {DECOMPRESSED_BYTES_PER_ANSWER:,} bytes.",
                server=broker,
                hint="Ask for fewer messages.",
            )
        retried = topic.startswith(RETRY_PREFIX)
        found.append(
            _message(topic, broker, fields, stored_body, properties, StoredMessage, retried)
        )
    if damaged and not found:
        raise ProtocolError("A message is damaged: its lengths do not fit.", server=broker)
    if damaged:
        _log.warning("Broker %s sent %d damaged messages; they are left out", broker, damaged)
    return found
