"""The stored message of RocketMQ 4.9: one layout for the log, for pulls and for Spark.

```
size 4 · magic 4 · body CRC 4 · queue id 4 · flag 4 · queue offset 8 · physical offset 8 ·
sys flag 4 · born time 8 · born host 8|20 · store time 8 · store host 8|20 · reconsume times 4 ·
prepared offset 8 · body length 4 · body · topic length 1 · topic · properties length 2 · properties
```

Numbers are big-endian. A host is an address and a 4-byte port; bits 4 and 5 of the sys flag say
that the born host or the store host has a 16-byte address. The CRC is zlib's CRC-32 of the body
as stored, without its highest bit.

`decode` verifies the whole record and returns an object. The hot paths use `peek` (the fixed head)
and `spans` (the positions of body, topic and properties), which verify nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from operator import eq
from typing import Final, NamedTuple, TypeAlias

import msgspec

from coherer._common.checksum import crc32
from coherer.errors import DamagedStoreError, UsageError
from coherer.limits import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX

MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194
BLANK_BYTES: Final = 8
"""A log file ends with a blank record; this much space is always left for its head."""

CRC_MASK: Final = 0x7FFFFFFF
SECTOR_BYTES: Final = 512
"""The smallest part of a file that a disk or the page cache writes as a whole."""
PREPARED: Final = 4
COMMITTED: Final = 8
ROLLED_BACK: Final = 12
"""Transaction types, bits 2 and 3 of the sys flag; the last one is also their mask."""
BORN_HOST_V6: Final = 16
STORE_HOST_V6: Final = 32
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6

NO_HOST: Final = bytes(8)
FIXED_BYTES: Final = 91
"""The size of a record with IPv4 hosts, without body, topic and properties."""
RECORD_BYTES_MIN: Final = FIXED_BYTES + 1
"""The size of the smallest record: n damaged bytes held n / 92 messages at most."""
HOLE_TOPIC: Final = "%"
"""The topic of records that fill damage for replicas. A hole may be as small as the smallest
record, so the name is as short."""
_HOLE: Final = HOLE_TOPIC.encode()

HEAD: Final = struct.Struct(">IIIiiqqiq")
"""From the size to the born time: 48 bytes at fixed positions."""

HEAD_V4: Final = struct.Struct(">IIIiiqqiq8sq8siqI")
"""From the size to the body's length, with IPv4 hosts: 88 bytes."""

HEAD_OWN: Final = struct.Struct(">IIIiiqq48sI")
"""The same, with `HEAD_SHARED` already packed."""

HEAD_SHARED: Final = struct.Struct(">iq8sq8siq")
"""The part that all records of a batch share: from the sys flag to the prepared offset."""

BLANK: Final = struct.Struct(">II")
_IDENTITY: Final = struct.Struct(">II4xi4xq")
"""Size, magic number, queue id and queue offset."""
_FEW: Final = 4
"""For up to so many records a step for each of them costs less than preparing one pass."""
_TAIL: Final = struct.Struct(">iqI")
_LENGTH: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_TIME: Final = struct.Struct(">q")

Buffer: TypeAlias = "bytes | bytearray | memoryview[int]"


class Record(msgspec.Struct, frozen=True, gc=False):
    """A decoded record.

    Hosts are an address (4 or 16 bytes) and a 4-byte port. Times are ms since 1970.
    """

    size: int
    crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes | bytearray | memoryview
    topic: str
    properties: bytes


class Head(NamedTuple):
    """The fixed head of a record."""

    size: int
    magic: int
    crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int


class Spans(NamedTuple):
    """The positions of the three parts of variable length in a record: `record[begin:end]`."""

    body_begin: int
    body_end: int
    topic_begin: int
    topic_end: int
    properties_begin: int
    properties_end: int


def peek(view: Buffer, position: int = 0) -> Head:
    """Read the fixed head of a record without verification.

    Raises:
        DamagedStoreError: there are fewer than 48 bytes.
    """
    try:
        return Head._make(HEAD.unpack_from(view, position))
    except struct.error as error:
        raise DamagedStoreError("A record is truncated in its head.") from error


def spans(view: Buffer, position: int = 0) -> Spans:
    """Find body, topic and properties of a record without verification.

    Raises:
        DamagedStoreError: a length exceeds `view`.
    """
    try:
        sys_flag = view[position + 39]
        body = position + 88
        if sys_flag & HOSTS_V6:
            body += 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        body_length: int = _LENGTH.unpack_from(view, body - 4)[0]
        topic = body + body_length + 1
        topic_end = topic + view[topic - 1]
        properties = topic_end + 2
        (length,) = _SHORT.unpack_from(view, topic_end)
    except (IndexError, struct.error) as error:
        raise DamagedStoreError("A length in a record exceeds the record.") from error
    if properties + length > len(view):
        raise DamagedStoreError("The properties of a record exceed the record.")
    return Spans(body, topic - 1, topic, topic_end, properties, properties + length)


def is_message(
    view: Buffer, position: int, size: int, topic_head: bytes, queue_id: int, queue_offset: int
) -> bool:
    r"""Whether the record at a position says that it is this message. Its body is not verified.

    Args:
        size: the size that the record should have.
        topic_head: the topic, after a byte with its length.

    >>> position = {"queue_id": 1, "queue_offset": 42, "physical_offset": 0, "store_ms": 9}
    >>> record = encode("a", b"hello", b"", **position)
    >>> [is_message(record, 0, 97, b"\1a", 1, offset) for offset in (42, 43)]
    [True, False]
    """
    try:
        found = _IDENTITY.unpack_from(view, position)
        topic = position + _topic(view, position)
    except struct.error:  # the end of the file
        return False
    return (
        found == (size, MAGIC, queue_id, queue_offset)
        and view[topic : topic + len(topic_head)] == topic_head
    )


def are_messages(
    view: Buffer,
    positions: Sequence[int],
    sizes: Sequence[int],
    topic_head: bytes,
    queue_id: int,
    queue_offsets: Sequence[int],
) -> bool:
    r"""Whether records say that they are these messages; see `is_message`.

    >>> position = {"queue_id": 1, "queue_offset": 42, "physical_offset": 0, "store_ms": 9}
    >>> record = encode("a", b"hello", b"", **position)
    >>> [are_messages(record * 2, [0, 97], [97, 97], b"\1a", 1, [42, at]) for at in (42, 43)]
    [True, False]
    """
    head, number = repeat(topic_head), repeat(queue_id)
    if len(positions) > _FEW:
        with suppress(struct.error):  # the end of the file
            # No step per record if their topics begin where that of the first one does.
            layout = _identity(_topic(view, positions[0]), len(topic_head))
            wanted = zip(sizes, repeat(MAGIC), number, queue_offsets, head)
            if all(map(eq, map(layout.unpack_from, repeat(view), positions), wanted)):
                return True
    return all(map(is_message, repeat(view), positions, sizes, head, number, queue_offsets))


def _topic(view: Buffer, position: int) -> int:
    """Where the topic of the record at a position begins, counted from there."""
    [length] = _LENGTH.unpack_from(view, position + 84)
    sys_flag = view[position + 39]
    if sys_flag & HOSTS_V6:
        more = 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        [length] = _LENGTH.unpack_from(view, position + 84 + more)
        return int(88 + more + length)
    return int(88 + length)


@lru_cache(maxsize=64)
def _identity(topic: int, size: int) -> struct.Struct:
    """`_IDENTITY`, and the topic with its length.

    Args:
        topic: where it begins.
        size: of both.
    """
    return struct.Struct(f"{_IDENTITY.format}{topic - _IDENTITY.size}x{size}s")


def body_of(record: memoryview) -> memoryview:
    """Return the stored body of a record: a slice, not a copy.

    Raises:
        DamagedStoreError: a length exceeds the record.
    """
    found = spans(record)
    return record[found.body_begin : found.body_end]


def properties_of(record: memoryview) -> memoryview:
    """Return the property text of a record: a slice, not a copy.

    Raises:
        DamagedStoreError: a length exceeds the record.
    """
    found = spans(record)
    return record[found.properties_begin : found.properties_end]


def store_ms_of(record: Buffer, position: int = 0) -> int:
    """Return the store time of a record, ms since 1970.

    Raises:
        DamagedStoreError: the record is truncated.
    """
    at = position + (68 if record[position + 39] & BORN_HOST_V6 else 56)
    try:
        (time_ms,) = _TIME.unpack_from(record, at)
    except struct.error as error:
        raise DamagedStoreError("A record is truncated in its head.") from error
    return int(time_ms)


def encode(
    topic: str,
    body: Buffer,
    properties: bytes,
    *,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    store_ms: int,
    store_host: bytes = NO_HOST,
    flag: int = 0,
    sys_flag: int = 0,
    born_ms: int = 0,
    born_host: bytes = NO_HOST,
    reconsume_times: int = 0,
    prepared_offset: int = 0,
) -> bytes:
    """Encode one record. The flags for IPv6 hosts are set from the hosts.

    Raises:
        UsageError: topic or properties are too long.

    >>> position = {"queue_id": 1, "queue_offset": 42, "physical_offset": 0, "store_ms": 9}
    >>> record = encode("a", b"hello", b"", **position)
    >>> len(record), decode(record).queue_offset
    (97, 42)
    """
    name = topic.encode()
    if not 0 < len(name) <= TOPIC_BYTES_MAX:
        raise UsageError(f"A topic must have 1 to {TOPIC_BYTES_MAX} bytes.", topic=topic)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise UsageError(f"The properties exceed {PROPERTIES_BYTES_MAX} bytes.", topic=topic)
    hosts = len(born_host) + len(store_host)
    size = FIXED_BYTES - 16 + hosts + len(body) + len(name) + len(properties)
    sys_flag = sys_flag & ~HOSTS_V6
    sys_flag |= (len(born_host) == 20) * BORN_HOST_V6 | (len(store_host) == 20) * STORE_HOST_V6
    crc = crc32(body) & CRC_MASK
    head = HEAD.pack(
        size, MAGIC, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms
    )
    tail = _TAIL.pack(reconsume_times, prepared_offset, len(body))
    return b"".join(
        (
            head,
            born_host,
            _TIME.pack(store_ms),
            store_host,
            tail,
            body,
            bytes((len(name),)),
            name,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def blank(size: int) -> bytes:
    """Return the head of the blank record that fills the last `size` bytes of a log file.

    >>> blank(100).hex()
    '00000064cbd43194'
    """
    return BLANK.pack(size, BLANK_MAGIC)


class RecordSummary(msgspec.Struct, frozen=True, gc=False):
    """The fields of a record that a scan of the log needs. Topic and properties are bytes."""

    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_ms: int
    topic: bytes
    properties: bytes

    @property
    def is_hole(self) -> bool:
        """Whether it stands for damage in the log of a replica's master."""
        return self.topic == _HOLE and self.sys_flag & ROLLED_BACK == ROLLED_BACK


def examine(view: Buffer, position: int = 0, *, check_crc: bool = True) -> RecordSummary | str:
    """Verify a record's lengths, magic number and checksum; return its summary or what is wrong.

    The caller has to verify the physical offset.
    """
    if len(view) - position < FIXED_BYTES:
        return "truncated"
    fields = HEAD_V4.unpack_from(view, position)
    size, magic, crc, queue_id, _, queue_offset, physical_offset, sys_flag = fields[:8]
    store_ms: int = fields[10]
    body_length: int = fields[14]
    if magic != MAGIC:
        return f"magic number {magic:#x}"
    end = position + size
    body = position + 88
    if not FIXED_BYTES < size <= len(view) - position:
        return f"size {size}"
    if sys_flag & HOSTS_V6:
        body += 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
        if body + 3 > end:
            return f"size {size}"
        body_length = _LENGTH.unpack_from(view, body - 4)[0]
        store_ms = store_ms_of(view, position)
    topic = body + body_length
    if topic + 3 > end:
        return f"body length {body_length}"
    name = topic + 1
    properties = name + view[topic] + 2
    if not name < properties - 2 <= name + TOPIC_BYTES_MAX or properties > end:
        return f"topic length {view[topic]}"
    (length,) = _SHORT.unpack_from(view, properties - 2)
    if properties + length != end:
        return f"properties length {length}"
    if check_crc and crc32(view[body:topic]) & CRC_MASK != crc:
        return "body checksum"
    in_log = properties - position + physical_offset
    return _missing_sector(view, properties, end, in_log) or RecordSummary(
        size,
        queue_id,
        queue_offset,
        physical_offset,
        sys_flag,
        store_ms,
        bytes(view[name : properties - 2]),
        bytes(view[properties:end]),
    )


def _missing_sector(view: Buffer, begin: int, end: int, offset: int) -> str:
    """Return what is wrong if a sector of the properties was not written, or "".

    The checksum covers only the body. A crash or a power cut can interrupt a write between any two
    sectors, and what was not written is zero.

    Args:
        view: the record.
        begin: where the properties begin in `view`.
        end: where they end.
        offset: where they begin in the log.
    """
    first = begin + -offset % SECTOR_BYTES
    for sector in range(first, end, SECTOR_BYTES):
        if not any(view[sector : min(sector + SECTOR_BYTES, end)]):
            return "incomplete properties"
    return ""


def flaw(view: Buffer, position: int = 0, *, check_crc: bool = True) -> str:
    """Return what is wrong with the record at `position`, or ""."""
    found = examine(view, position, check_crc=check_crc)
    return found if isinstance(found, str) else ""


def decode(view: Buffer, position: int = 0, *, check_crc: bool = True) -> Record:
    """Decode one record; verify its lengths, magic number and checksum.

    If `view` is a memoryview, the body is a slice of it.

    Raises:
        DamagedStoreError: it is not a valid record.

    >>> decode(b"no record")
    Traceback (most recent call last):
    coherer.errors.DamagedStoreError: Not a record: truncated.
    """
    wrong = flaw(view, position, check_crc=check_crc)
    if wrong:
        raise DamagedStoreError(f"Not a record: {wrong}.")
    head = HEAD.unpack_from(view, position)
    size, _, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = head
    born_end = position + (68 if sys_flag & BORN_HOST_V6 else 56)
    found = spans(view, position)
    (store_ms,) = _TIME.unpack_from(view, born_end)
    reconsume_times, prepared_offset, _ = _TAIL.unpack_from(view, found.body_begin - 16)
    try:
        topic = str(view[found.topic_begin : found.topic_end], "utf-8")
    except UnicodeDecodeError as error:
        raise DamagedStoreError("Not a record: its topic is not UTF-8.") from error
    return Record(
        size=size,
        crc=crc,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=bytes(view[position + 48 : born_end]),
        store_ms=store_ms,
        store_host=bytes(view[born_end + 8 : found.body_begin - 16]),
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body=view[found.body_begin : found.body_end],
        topic=topic,
        properties=bytes(view[found.properties_begin : found.properties_end]),
    )
