"""Finds stored records in a buffer, with numpy and without a Python object per record.

`scan` returns a `RecordScan`: arrays with the position and the parts of each record (see `layout`).
It finds the same records as `_record.records`, its reference:

1. If the records have the same size, their positions are known.
2. Otherwise a loop follows the sizes. It is the only step in Python per record.
3. The lengths of all of them are verified at once. At the first record whose lengths do not fit,
   the search continues as `next_record` says, and the range counts as damaged.

Only lengths are verified here; `RecordScan.intact` verifies checksums. The parts of a record stay
where they are until they are wanted: fields are gathered by index, and bodies, topics and property
texts become Arrow arrays by one copy in C++.

The module needs numpy and pyarrow; it is imported when columns are used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from mmap import mmap
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coherer._common.checksum import crc32
from coherer._record import compression, layout
from coherer._record.records import next_record
from coherer.errors import DamagedStoreError
from coherer.limits import MESSAGE_BYTES_MAX

# _typeshed exists for type checkers only.
if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Bytes: TypeAlias = "bytes | bytearray | memoryview[int] | mmap"
Ints: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

CHUNK_RECORDS: Final = 65_536
"""The number of records that are verified at once."""

EQUAL_STEPS_MIN: Final = 64
"""The least number of records of equal size for which step 1 is used."""

_SIZE: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">II")
_HEAD_BYTES: Final = layout.HEAD_V4.size
_QUEUE_OFFSET_AT: Final = 20
_INLINE_BYTES: Final = 12
_COPIED_BYTES: Final = 256
_REACH_BITS: Final = 30
_VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("at", "<i4")])
"""An element of an Arrow view. Up to 12 bytes are stored in place of the last three fields. The
offset has 32 bits, so the data are several buffers: each begins at a multiple of 1 GiB and reaches
a GiB further, so that no part of a record crosses its end."""


class RecordScan:
    r"""Records in a buffer.

    All arrays have one element per record, and are int64. Positions count from the begin of the
    buffer, sizes are in bytes.

    Attributes:
        starts: position of the record.
        body_begins: position of its body as stored.
        body_sizes: size of its body as stored.
        damaged: position and length of each range that is not a valid record.

    >>> from coherer._record import layout
    >>> where = {"queue_id": 1, "physical_offset": 0, "store_ms": 9}
    >>> found = scan(b"".join(layout.encode("a", b"hello", b"", queue_offset=n, **where)
    ...                       for n in (7, 8)))
    >>> found.starts.tolist(), found.queue_offsets.tolist(), found.bodies().to_pylist()
    ([0, 97], [7, 8], [b'hello', b'hello'])
    """

    __slots__ = (
        "_data",
        "_inflated",
        "_sys_flags",
        "body_begins",
        "body_sizes",
        "damaged",
        "sizes",
        "starts",
        "topic_sizes",
    )

    def __init__(
        self,
        data: memoryview,
        parts: Sequence[Ints],
        damaged: Sequence[tuple[int, int]] = (),
        inflated: Mapping[int, bytes] | None = None,
    ) -> None:
        self._data = data
        self.starts, self.sizes, self.body_begins, self.body_sizes, self.topic_sizes = parts
        self.damaged = [*damaged]
        self._inflated = inflated
        self._sys_flags: Ints | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def __repr__(self) -> str:
        return f"<RecordScan: {len(self)} records, {len(self.damaged)} damaged ranges>"

    @property
    def topic_begins(self) -> Ints:
        """Position of the topic."""
        return self.body_begins + self.body_sizes + 1

    @property
    def property_begins(self) -> Ints:
        """Position of the property text."""
        return self.topic_begins + self.topic_sizes + 2

    @property
    def property_sizes(self) -> Ints:
        """Size of the property text."""
        return self.starts + self.sizes - self.property_begins

    @property
    def checksums(self) -> Ints:
        """The checksum of the body as stored; see `layout`."""
        return self.numbers(">u4", 8)

    @property
    def queue_ids(self) -> Ints:
        """The queue."""
        return self.numbers(">i4", 12)

    @property
    def flags(self) -> Ints:
        """The sender's flag."""
        return self.numbers(">i4", 16)

    @property
    def queue_offsets(self) -> Ints:
        """The offset in the queue."""
        return self.numbers(">i8", _QUEUE_OFFSET_AT)

    @property
    def physical_offsets(self) -> Ints:
        """The offset in the log."""
        return self.numbers(">i8", 28)

    @property
    def sys_flags(self) -> Ints:
        """The sys flag: compression, transaction type, sizes of the hosts."""
        if self._sys_flags is None:
            self._sys_flags = self.numbers(">i4", 36)
        return self._sys_flags

    @property
    def born_ms(self) -> Ints:
        """The sender's time, ms since 1970."""
        return self.numbers(">i8", 40)

    @property
    def store_ms(self) -> Ints:
        """The time of storing, ms since 1970."""
        return self.numbers(">i8", 56 + _born_extra(self.sys_flags))

    @property
    def attempts(self) -> Ints:
        """The number of earlier deliveries."""
        return self.numbers(">i4", self.body_begins - self.starts - 16)

    @property
    def prepared_offsets(self) -> Ints:
        """The position of the half message, in a record that ends a transaction."""
        return self.numbers(">i8", self.body_begins - self.starts - 12)

    def numbers(self, kind: str, at: Ints | int) -> Ints:
        """Return a number of each record.

        Args:
            kind: numpy's name of the number's type.
            at: its position in the record.
        """
        return gather(self._data, kind, self.starts + at).astype(np.int64)

    def raw(self, at: Ints | int, size: int) -> npt.NDArray[np.uint8]:
        """Return some bytes of each record as a matrix with a row per record."""
        found = gather(self._data, f"V{size}", self.starts + at)
        return found.view(np.uint8).reshape(len(self), size)

    def pick(self, which: Mask | Ints | slice) -> RecordScan:
        """Return some of the records, by a mask, by position or as a slice."""
        parts = (self.starts, self.sizes, self.body_begins, self.body_sizes, self.topic_sizes)
        return RecordScan(self._data, [part[which] for part in parts], (), self._inflated)

    def within(self, first: int, beyond: int) -> RecordScan:
        """Return the records whose queue offsets are in a range, as long as they can be."""
        offsets = self.queue_offsets
        good = (offsets >= first) & (offsets < beyond)
        return self if good.all() else self.pick(good)

    def intact(self) -> RecordScan:
        """Return the records with a correct checksum and a body that can be decompressed."""
        data = self._data
        ends = self.body_begins + self.body_sizes
        good = body_checksums(data, self.body_begins, self.body_sizes) == self.checksums
        inflated: dict[int, bytes] = {}
        for row in np.flatnonzero(good & (self.sys_flags & compression.COMPRESSED != 0)).tolist():
            body = data[self.body_begins[row] : ends[row]]
            try:
                inflated[int(self.starts[row])] = compression.decompress(
                    body, limit_bytes=MESSAGE_BYTES_MAX
                )
            except DamagedStoreError:
                good[row] = False
        found = self if good.all() else self.pick(good)
        found._inflated = inflated
        return found

    def verified(self, bodies: Sequence[bytes]) -> RecordScan:
        """Return the records with these bodies, which were verified and decompressed before."""
        found = self.pick(slice(None))
        found._inflated = dict(zip(self.starts.tolist(), bodies, strict=True))
        return found

    def bodies(self) -> pa.Array:
        """Return the bodies as a binary array, decompressed if `intact` was called before."""
        if not self._inflated:
            return self.stored_bodies()
        rows = np.flatnonzero(self.sys_flags & compression.COMPRESSED)
        bodies = [self._inflated[start] for start in self.starts[rows].tolist()]
        others = rows, bodies
        return binary_array(self._data, self.body_begins, self.body_sizes, others=others)

    def stored_bodies(self) -> pa.Array:
        """Return the bodies as stored, perhaps compressed, as a binary array."""
        return binary_array(self._data, self.body_begins, self.body_sizes)

    def topics(self) -> pa.Array:
        """Return the topics as a binary array."""
        return binary_array(self._data, self.topic_begins, self.topic_sizes)

    def property_texts(self) -> pa.Array:
        """Return the property texts as a binary array; see `_record.properties`."""
        return binary_array(self._data, self.property_begins, self.property_sizes)


def scan(data: Bytes, *, queue_id: int | None = None, above: int = -1) -> RecordScan:
    """Find the records in a buffer.

    The blank record at the end of a log file is skipped.

    Args:
        data: records; it is not copied, and must not change.
        queue_id: the queue of all records; None for records of several queues.
        above: with `queue_id`, the first record has a higher offset; used after damage.
    """
    view = memoryview(data).cast("B")
    position, end = 0, len(view)
    found: list[list[Ints]] = []
    damaged: list[tuple[int, int]] = []
    while position < end:
        chain = _chain(view, position)
        parts = _fitting(view, chain)
        count = len(parts[0])
        if count:
            found.append(parts)
            position = int(parts[0][-1] + parts[1][-1])
        if count and count == len(chain):
            continue  # records of other sizes may follow
        following = _after_blank(view, position)
        if following is None:
            if queue_id is not None:
                above = _last_offset(view, found, above)
            following = next_record(view, position, queue_id, above)
            damaged.append((position, following - position))
        position = following
    return RecordScan(view, _together(found), damaged)


def scan_at(data: Bytes, starts: Sequence[int] | Ints) -> RecordScan:
    """Return the records at known positions; the lengths of all of them fit.

    Args:
        data: records.
    """
    view = memoryview(data).cast("B")
    return RecordScan(view, _fitting(view, np.array(starts, np.int64)))


def _chain(view: memoryview, position: int) -> Ints:
    """Return the positions of up to `CHUNK_RECORDS` records, if all sizes are right."""
    equal = _equal_steps(view, position)
    if equal is not None:
        return equal
    end, unpack = len(view), _SIZE.unpack_from
    last = end - layout.FIXED_BYTES
    starts: list[int] = []
    for _ in range(CHUNK_RECORDS):
        if position > last:
            break
        starts.append(position)
        (size,) = unpack(view, position)
        if size < layout.FIXED_BYTES:
            break
        position += size
    return np.array(starts, np.int64)


def _equal_steps(view: memoryview, position: int) -> Ints | None:
    """Return the positions of all records, or of a chunk, if they have the size of the first."""
    left = len(view) - position
    size: int = _SIZE.unpack_from(view, position)[0] if left >= layout.FIXED_BYTES else 0
    if size < layout.FIXED_BYTES or left < size * EQUAL_STEPS_MIN:
        return None
    for count in (EQUAL_STEPS_MIN, min(left // size, CHUNK_RECORDS)):
        sizes = np.ndarray((count,), ">u4", view, position, (size,))
        if not (sizes == size).all():
            return None
    return np.arange(position, position + count * size, size, dtype=np.int64)


def _fitting(view: memoryview, starts: Ints) -> list[Ints]:
    """Return the parts of the first records, up to one whose lengths do not fit.

    Returns:
        Starts, sizes, begins of the bodies, sizes of the bodies, sizes of the topics.
    """
    end = len(view)
    starts = starts[: np.searchsorted(starts, end - layout.FIXED_BYTES, "right")]
    if not len(starts):
        return [starts] * 5
    octets = np.frombuffer(view, np.uint8)
    sizes = gather(view, ">u4", starts).astype(np.int64)
    flags = gather(view, ">i4", starts + 36)
    bodies = starts + _HEAD_BYTES
    if (flags & layout.HOSTS_V6).any():
        bodies += _born_extra(flags) + 12 * (flags >> 5 & 1)
    np.minimum(bodies, end, out=bodies)
    body_sizes = gather(view, ">u4", bodies - 4).astype(np.int64)
    # A position beyond the end is never right, so it may be replaced with any that is not.
    lengths_at = np.minimum(bodies + body_sizes, end - 1)
    topic_sizes = octets[lengths_at].astype(np.int64)
    texts_at = np.minimum(lengths_at + topic_sizes + 3, end)
    text_sizes = gather(view, ">u2", texts_at - 2)
    ends = bodies + body_sizes + topic_sizes + 3 + text_sizes
    fits = (starts + sizes == ends) & (ends <= end)
    parts = [starts, sizes, bodies, body_sizes, topic_sizes]
    if fits.all():
        return parts
    return [part[: np.argmin(fits)] for part in parts]


def _born_extra(sys_flags: Ints) -> Ints:
    return 12 * (sys_flags >> 4 & 1)


def _after_blank(view: memoryview, position: int) -> int | None:
    """Return the position after the blank record at `position`, or None for any other record."""
    if len(view) - position < layout.BLANK_BYTES:
        return None
    size, magic = _HEAD.unpack_from(view, position)
    end = position + size
    blank = magic == layout.BLANK_MAGIC and position < end <= len(view)
    return end if blank else None


def _last_offset(view: memoryview, found: Sequence[list[Ints]], above: int) -> int:
    """Return the queue offset of the last record with a correct checksum."""
    for parts in reversed(found):
        for number in range(len(parts[0]) - 1, -1, -1):
            one = RecordScan(view, [part[number : number + 1] for part in parts])
            if len(one.intact()):
                return int(one.queue_offsets[0])
    return above


def _together(found: Sequence[list[Ints]]) -> Sequence[Ints]:
    if len(found) == 1:
        return found[0]
    if not found:
        return [np.array([], np.int64)] * 5
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def body_checksums(view: memoryview, begins: Ints, sizes: Ints) -> Ints:
    """Return the checksums of parts of a buffer; see `layout`."""
    step = _equal_step(begins)
    if step is not None and (sizes == sizes[0]).all():
        parts = _equal_parts(view, int(begins[0]), int(sizes[0]), step, len(begins))
        return np.array(list(map(crc32, parts)), np.int64) & layout.CRC_MASK
    ends = (begins + sizes).tolist()
    sums = [crc32(view[begin:end]) for begin, end in zip(begins.tolist(), ends, strict=True)]
    return np.array(sums, np.int64) & layout.CRC_MASK


def _equal_parts(
    view: memoryview, begin: int, size: int, step: int, count: int
) -> Iterable[ReadableBuffer]:
    """Return parts of the same size: small ones as copies, which take less time than views."""
    if size <= _COPIED_BYTES:
        copies: list[bytes] = np.ndarray((count,), f"V{size}", view, begin, (step,)).tolist()
        return copies
    rows: npt.NDArray[np.uint8] = np.ndarray((count, size), np.uint8, view, begin, (step, 1))
    return cast("Iterable[ReadableBuffer]", rows)


def _equal_step(positions: Ints) -> int | None:
    """Return the distance between positions if it is always the same, and there are many."""
    if len(positions) < EQUAL_STEPS_MIN:
        return None
    step = positions[1] - positions[0]
    return int(step) if (positions[1:] - positions[:-1] == step).all() else None


def gather(view: memoryview, kind: str, positions: Ints) -> npt.NDArray[Any]:
    """Return an item of a type at each position; all of them are inside the buffer."""
    items: npt.NDArray[Any]
    if (step := _equal_step(positions)) is not None:  # with its test, half of the time of an index
        items = np.ndarray((len(positions),), kind, view, int(positions[0]), (step,))
        return items.copy()
    width = np.dtype(kind).itemsize
    # One item for each position of the buffer: they overlap, and nothing is copied.
    items = np.ndarray((max(len(view) - width + 1, 0),), kind, view, 0, (1,))
    return items[positions]


def binary_array(
    view: memoryview,
    begins: Ints,
    sizes: Ints,
    *,
    valid: Mask | None = None,
    others: tuple[Ints, Sequence[bytes]] | None = None,
) -> pa.Array:
    """Return bytes of a buffer as a binary array.

    Args:
        begins: position of the first byte of each value.
        sizes: the size of each value, at most 1 GiB.
        valid: false for nulls, or None if no value is null.
        others: rows with bytes that are not in the buffer, and these bytes.
    """
    buffers = _buffers(view)
    views = _views(view, begins, sizes, 0)
    if others is not None:
        rows, values = others
        joined, lengths = memoryview(b"".join(values)), np.array([*map(len, values)], np.int64)
        views[rows] = _views(joined, np.cumsum(lengths) - lengths, lengths, len(buffers))
        buffers += _buffers(joined)
    bits = None
    if valid is not None and not valid.all():
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.Array.from_buffers(
        pa.binary_view(), len(views), [bits, pa.py_buffer(views), *buffers]
    )
    return array.cast(pa.binary())


def _buffers(view: memoryview) -> list[pa.Buffer]:
    reach = 1 << _REACH_BITS
    begins = range(0, max(len(view), 1), reach)
    return [pa.py_buffer(view[begin : begin + 2 * reach - 1]) for begin in begins]


def _views(view: memoryview, begins: Ints, sizes: Ints, first: int) -> npt.NDArray[Any]:
    """Return elements of an Arrow view, whose data begin in the buffer with number `first`."""
    views = np.zeros(len(begins), _VIEW)  # no one reads the prefixes: the view is cast at once
    views["size"] = sizes
    views["buffer"] = (begins >> _REACH_BITS) + first
    views["at"] = begins & (1 << _REACH_BITS) - 1
    short = np.flatnonzero(sizes <= _INLINE_BYTES)
    if len(short) and len(view):
        columns = np.arange(_INLINE_BYTES)
        at = np.minimum(begins[short, None] + columns, len(view) - 1)
        inline = np.frombuffer(view, np.uint8)[at]
        inline[columns >= sizes[short, None]] = 0
        views.view(np.uint8).reshape(len(views), _VIEW.itemsize)[short, 4:] = inline
    return views
