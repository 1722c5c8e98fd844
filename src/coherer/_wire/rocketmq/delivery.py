"""The hot path of receiving: what a pull brings, decoded when it is asked for.

The body of a pull's answer is records of the log as they are stored (5.1), one after the other.
`MessageBatch` keeps the bytes and looks at the records when it is first asked for them. As a Java
client does, it inflates bodies, and for a consumer with tags leaves out messages with another one,
because the broker filters by a hash of the tag. Messages whose lengths do not fit, whose check sum
is wrong or that cannot be inflated are left out and counted in `skipped`; the others are handed
out, and `left_out` says which offsets have no message.

`decode_messages` is for answers that hold messages of any queue: by id, by key.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final, Self, TypeVar
from zlib import crc32

from coherer._common.logs import Log
from coherer._record import compression, layout
from coherer._record import properties as text
from coherer._record.gaps import between
from coherer._wire.rocketmq.messages import StoredMessage, time_of, user_properties
from coherer._wire.rocketmq.names import RETRY_PREFIX, Queue
from coherer._wire.rocketmq.records import Fields, long_fields, next_record, records
from coherer.errors import DamagedStoreError, ProtocolError
from coherer.limits import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow as pa

_log = Log(logging.getLogger(__name__))

_HEAD: Final = layout.HEAD_V4
_FIXED: Final = _HEAD.size
_LOOK: Final = Struct(">I4xI24xi44xI")
"""Of the same bytes: size, check sum, flags, length of the body."""
_OFFSET: Final = Struct(">20xq")
"""Of the same bytes: the queue offset."""
_SIZE: Final = Struct(">I")
_TAGS: Final = text.TAGS.encode() + b"\x01"

M = TypeVar("M")


class MessageBatch:
    r"""The messages of one pull, decoded when they are asked for.

    Args:
        body: records, one after the other.
        queue: where they were pulled.
        tags: the consumer's tags; None when it takes all (or filters by SQL92).
        offset: where the pull began; of the first message when None.
        next_offset: where the next pull begins.
        min_offset: the first offset that the broker holds.
        max_offset: the offset behind its last.

    Attributes:
        size_bytes: size of the body.

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
        self._starts: list[int] = []  # where each message is in the data
        self._bodies: list[bytes] = []

    def __repr__(self) -> str:
        where = f"{self.queue.broker}:{self.topic}:{self.partition}"
        return f"<MessageBatch of {where} from {self.offset}: {self.size_bytes} bytes>"

    def __len__(self) -> int:
        return len(self.bodies())

    def __iter__(self) -> Iterator[StoredMessage]:
        return self.messages(StoredMessage)

    @property
    def topic(self) -> str:
        """The topic that was read."""
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
        """How many messages came, also those that are left out here."""
        self._read()
        return self._delivered

    @property
    def skipped(self) -> int:
        """How many of the messages that came have been left out, because they are damaged."""
        self._read()
        return self._skipped

    @property
    def left_out(self) -> list[range]:
        """The offsets between `offset` and `next_offset` without a message, where all are wanted.

        The broker or this batch has left them out: they are damaged, or not there any more.
        """
        return [] if self._tags else between(self.offset, self.next_offset, self.offsets())

    def bodies(self) -> list[bytes]:
        """The body of each message; do not change the list."""
        self._read()
        return self._bodies

    def offsets(self) -> list[int]:
        """The offset of each message."""
        self._read()
        data, unpack = self._data, _OFFSET.unpack_from
        return [unpack(data, start)[0] for start in self._starts]

    def messages(self, make: Callable[..., M]) -> Iterator[M]:
        """The messages, as what `make` makes of the arguments of `StoredMessage`."""
        self._read()
        queue = self.queue
        retried = queue.topic.startswith(RETRY_PREFIX)
        for fields, body, properties in zip(*self._details(), strict=True):
            yield _message(queue.topic, queue.broker, fields, body, properties, make, retried)

    def before(self, end: int) -> MessageBatch:
        """The messages below an offset.

        Args:
            end: the offset behind the last that is wanted.
        """
        offsets = self.offsets()
        if not offsets or offsets[-1] < end:
            return self
        part = self.pick(range(bisect_left(offsets, end)))
        part.offset, part.next_offset = self.offset, end
        return part

    def pick(self, numbers: Sequence[int]) -> Self:
        """Some of the messages, by their places."""
        self._read()
        part = copy(self)
        part._starts = [self._starts[number] for number in numbers]
        part._bodies = [self._bodies[number] for number in numbers]
        part.size_bytes = sum(_SIZE.unpack_from(self._data, start)[0] for start in part._starts)
        part.offset = next(iter(part.offsets()), self.offset)
        return part

    def to_arrow(self) -> pa.RecordBatch:
        """Returns the batch as columns.

        | column | type | |
        |---|---|---|
        | topic, broker | string | |
        | partition | int32 | the queue |
        | offset | int64 | |
        | id | string | offset message id |
        | key, tag | string | null when the message has none |
        | time | timestamp | what the sender gave, else when the message was born |
        | value | binary | the body |
        | properties | map of strings | the user's |

        No object is made for a message.
        """
        from coherer._wire.rocketmq.columns import record_batch

        fields, bodies, texts = self._details()
        return record_batch(self.queue, fields, texts, bodies)

    def _read(self) -> None:
        """Finds the messages and their bodies, once; the rest of them waits for `_details`."""
        if self._found:
            return
        data, tags, unpack = self._data, self._tags, _LOOK.unpack_from
        starts: list[int] = []
        bodies: list[bytes] = []
        delivered = skipped = position = 0
        crc = flags = begin = body_end = 0
        end = len(data)
        while position < end:
            try:
                size, crc, flags, length = unpack(data, position)
                begin = position + _FIXED
                if flags & layout.HOSTS_V6:
                    fields, begin = long_fields(data, position, _HEAD.unpack_from(data, position))
                    length = fields[14]
                body_end = begin + length
                texts_at = body_end + 3 + data[body_end]
                text_bytes = data[texts_at - 2] << 8 | data[texts_at - 1]
            except (struct_error, IndexError):
                texts_at = text_bytes = size = -1  # which fits nowhere
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
            if flags & compression.COMPRESSED or crc32(body) & layout.CRC_MASK != crc:
                sound = _sound(crc, flags, body)
                if sound is None:
                    skipped += 1
                    continue
                body = sound
            starts.append(start)
            bodies.append(body)
        self._delivered, self._skipped = delivered, skipped
        self._starts, self._bodies = starts, bodies
        self._found = True

    def _details(self) -> tuple[list[Fields], list[bytes], list[bytes]]:
        """Fields, body and property text of each message."""
        self._read()
        data, unpack = self._data, _HEAD.unpack_from
        every: list[Fields] = []
        texts: list[bytes] = []
        for start in self._starts:
            fields: Fields = unpack(data, start)
            begin = start + _FIXED
            if fields[7] & layout.HOSTS_V6:
                fields, begin = long_fields(data, start, fields)
            body_end = begin + fields[14]
            every.append(fields)
            texts.append(data[body_end + 3 + data[body_end] : start + fields[0]])
        return every, self._bodies, texts


def _sound(crc: int, flags: int, body: bytes) -> bytes | None:
    """The body as it was sent; None when it is damaged."""
    if crc32(body) & layout.CRC_MASK != crc:
        return None
    if flags & compression.COMPRESSED:
        try:
            return compression.decompress(body, limit_bytes=MESSAGE_BYTES_MAX)
        except DamagedStoreError:
            return None
    return body


def _tag(properties: bytes) -> bytes | None:
    """The value of `TAGS` in a property text: of two the later, as when all are decoded."""
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
    fields: Fields,
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
    r"""Read an answer with messages of any topic and queue, in the order that they have there.

    Check sums are not looked at, and a body that cannot be inflated stays as it is, for people who
    look a message up by its id. A message whose lengths do not fit is left out.

    Args:
        body: records, one after the other.
        broker: the name of the broker that gave them.

    Raises:
        ProtocolError: no lengths fit in any of them.

    >>> from coherer._record import layout
    >>> record = layout.encode("demo", b"hello", b"KEYS\x01k1", queue_id=0, queue_offset=7,
    ...                        physical_offset=0, store_ms=0)
    >>> [(message.topic, message.keys) for message in decode_messages(record)]
    [('demo', ('k1',))]
    """
    found: list[StoredMessage] = []
    damaged = 0
    for record in records(bytes(body)):
        if record is None:
            damaged += 1
            continue
        fields, stored_body, name, properties = record
        topic = str(name, "utf-8", "replace")
        if fields[7] & compression.COMPRESSED:
            with suppress(DamagedStoreError):
                stored_body = compression.decompress(stored_body, limit_bytes=MESSAGE_BYTES_MAX)
        retried = topic.startswith(RETRY_PREFIX)
        found.append(
            _message(topic, broker, fields, stored_body, properties, StoredMessage, retried)
        )
    if damaged and not found:
        raise ProtocolError("The lengths in a message do not fit: it is damaged.", server=broker)
    if damaged:
        _log.warning("An answer of %s: messages left out, being damaged: %d", broker, damaged)
    return found
