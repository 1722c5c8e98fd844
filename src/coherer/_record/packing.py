r"""Encodes rows of Arrow columns as batches (`coherer._record.batches`), without an object per row.

Each step processes a whole column in C++: `binary_join_element_wise` joins the pieces of property
texts, and then heads, bodies and texts. The data buffer of the last result is the batch.

A text is `name \x01 value \x02 name \x01 value …`, in the order of `Message`s that are sent one by
one: unique id, tag, keys, time, the row's properties, and its origin.

The module needs pyarrow and numpy; it is imported when columns are used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from coherer._record.batches import BATCH_ITEM_BYTES, PackedMessages
from coherer._record.properties import KEYS, MILLISECOND_CHARS, MINUTE_CHARS, TAGS, TIME, UNIQUE_KEY
from coherer.limits import PROPERTIES_BYTES_MAX

_HEAD_BYTES: Final = 20
_EMPTY: Final = b""
_PAIR: Final = b"\x02"
_ZEROS: Final = "00000"
_BLANK: Final = r"^[\s\pZ]*$"


class PackingRules(NamedTuple):
    """What messages of a protocol can carry.

    Args:
        ids: whether messages have unique ids and keys.
        bad_text: a regular expression that finds tags, names and values that cannot be carried.
        reserved: names that properties must not have.
        time_chars: the longest form of a time: 12 for minutes, 17 for milliseconds.
    """

    ids: bool
    bad_text: str
    reserved: frozenset[str]
    time_chars: int


class RowColumns(NamedTuple):
    """Rows to encode; the columns have the same length, and all but `value` may be None.

    Args:
        value: binary, the bodies; neither null nor empty.
        tag: string.
        keys: a list of strings in each row.
        time: timestamp; one without a time zone is UTC.
        properties: map of string to string.
        numbers: int64, the number of each row.
    """

    value: pa.Array
    tag: pa.Array | None
    keys: pa.Array | None
    time: pa.Array | None
    properties: pa.Array | None
    numbers: pa.Array


class UnpackableRowError(ValueError):
    """A row cannot be encoded.

    Args:
        index: its index in the columns.
    """

    def __init__(self, index: int) -> None:
        super().__init__(f"Row {index} cannot be encoded.")
        self.index = index


class Origin(msgspec.Struct, frozen=True):
    """The properties that say where a message comes from.

    Args:
        fixed: equal for all rows.
        number: the name of the property with the row's number; "" for none.
    """

    fixed: Mapping[str, str]
    number: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the properties."""
        return (*self.fixed, self.number) if self.number else tuple(self.fixed)

    def __call__(self, number: int) -> dict[str, str]:
        """The properties of a row.

        >>> Origin({"spark.part": "0"}, "spark.seq")(7)
        {'spark.part': '0', 'spark.seq': '7'}
        """
        return {**self.fixed, **({self.number: str(number)} if self.number else {})}


def property_texts(
    rows: RowColumns, origin: Origin, rules: PackingRules, ids: Sequence[str] = ()
) -> pa.Array:
    r"""The property text of each row, a binary column.

    Args:
        rows: the columns.
        origin: properties to add; they replace equal names of the rows.
        rules: what the protocol can carry.
        ids: a unique id for each row, if the protocol has them.

    Raises:
        UnpackableRowError: a row has a text that the protocol cannot carry.

    >>> rules = PackingRules(True, "[\x01\x02]", frozenset(), 17)
    >>> rows = RowColumns(pa.array([b"a"]), pa.array(["UA"]), None, None, None, pa.array([7]))
    >>> property_texts(rows, Origin({}, "seq"), rules, ["0A"])[0].as_py()
    b'UNIQ_KEY\x010A\x02TAGS\x01UA\x02seq\x017'
    """
    parts: list[pa.Array | pa.Scalar] = []
    if rules.ids:
        parts += [_label(UNIQUE_KEY), pa.array(ids, pa.binary())]
    if rows.tag is not None:
        _check(rows.tag, rules.bad_text)
        parts += _optional(TAGS, rows.tag)
    if rows.keys is not None:
        parts += _optional(KEYS, _joined_keys(rows.keys, rules.bad_text))
    if rows.time is not None:
        parts += _optional(TIME, time_texts(rows.time, rules.time_chars))
    if rows.properties is not None:
        parts.append(_joined_properties(rows.properties, origin.names, rules))
    fixed = [f"\x02{name}\x01{value}" for name, value in origin.fixed.items()]
    if fixed:
        parts.append(pa.scalar("".join(fixed).encode(), pa.binary()))
    if origin.number:
        parts += [_label(origin.number), rows.numbers.cast(pa.string()).cast(pa.binary())]
    if not parts:
        return pa.repeat(_EMPTY, len(rows.value))
    first, *others = parts
    if isinstance(first, pa.Scalar):  # every text begins with it
        first = pa.scalar(cast("bytes", first.as_py())[1:], pa.binary())
        texts = _join([first, *others], len(rows.value))
    else:
        texts = _join(parts, len(rows.value)).cast(pa.string())
        texts = pc.utf8_slice_codeunits(texts, 1).cast(pa.binary())
    _refuse(pc.greater(pc.binary_length(texts), PROPERTIES_BYTES_MAX))
    return texts


def pack(topic: str, rows: RowColumns, texts: pa.Array, limit_bytes: int) -> list[PackedMessages]:
    r"""Encode rows as batches of at most `limit_bytes`; a larger row is alone.

    Args:
        rows: the columns.
        texts: the property texts.
        limit_bytes: the largest batch.

    Returns:
        The batches, in the order of the rows.

    >>> rows = RowColumns(pa.array([b"a", b"b" * 99]), *[None] * 4, pa.array([0, 1]))
    >>> batch, large = pack("t", rows, pa.array([b"k\x01v"] * 2), 50)
    >>> batch.body.hex(" ", -4), large.alone
    ('0000001a 00000000 00000000 00000000 00000001 6100036b 0176', True)
    """
    sizes = _lengths(rows.value)
    text_sizes = _lengths(texts)
    heads = np.zeros((len(sizes), 5), ">u4")
    heads[:, 0] = BATCH_ITEM_BYTES + sizes + text_sizes
    heads[:, 4] = sizes
    items = _join(
        [
            _fixed(heads, _HEAD_BYTES),
            rows.value,
            _fixed(text_sizes.astype(">u2"), 2),
            texts,
        ],
        len(sizes),
    )
    ends: list[int] = _offsets(items).tolist()
    data = memoryview(items.buffers()[2] or b"")
    numbers = np.asarray(rows.numbers)
    batches: list[PackedMessages] = []
    begin = 0
    while begin < len(sizes):
        fitting = bisect_right(ends, ends[begin] + limit_bytes) - 1
        end = max(fitting, begin + 1)
        batches.append(
            PackedMessages(
                topic=topic,
                body=data[ends[begin] : ends[end]],
                count=end - begin,
                rows=numbers[begin:end].tolist(),
                alone=fitting == begin,
            )
        )
        begin = end
    return batches


def time_texts(times: pa.Array, chars: int) -> pa.Array:
    """Times as `coherer._record.properties.encode_time` encodes them.

    Args:
        times: timestamps; those without a time zone are UTC.
        chars: 12 for minutes, 17 for milliseconds where necessary.

    >>> times = pa.array([0, 61_002_003, None], pa.timestamp("us"))
    >>> time_texts(times, 17).to_pylist()
    [b'197001010000', b'19700101000101002', None]
    """
    encoded = times.cast(pa.timestamp("us")).dictionary_encode()
    distinct = pc.floor_temporal(encoded.dictionary, unit="millisecond").cast(pa.timestamp("ms"))
    texts = pc.replace_substring(pc.strftime(distinct, format="%Y%m%d%H%M%S"), ".", "")
    minutes = pc.utf8_slice_codeunits(texts, 0, MINUTE_CHARS)
    if chars == MILLISECOND_CHARS:
        whole = pc.equal(pc.utf8_slice_codeunits(texts, MINUTE_CHARS), _ZEROS)
        texts = pc.if_else(whole, minutes, texts)
    else:
        texts = minutes
    return texts.cast(pa.binary()).take(encoded.indices)


def _label(name: str) -> pa.Scalar:
    return pa.scalar(f"\x02{name}\x01".encode(), pa.binary())


def _join(parts: Sequence[pa.Array | pa.Scalar], size: int) -> pa.Array:
    """Join the parts of each row; a null part makes a null row."""
    if all(isinstance(part, pa.Scalar) for part in parts):
        return pa.repeat(pc.binary_join_element_wise(*parts, _EMPTY), size)
    return pc.binary_join_element_wise(*parts, _EMPTY)


def _optional(name: str, values: pa.Array) -> list[pa.Array | pa.Scalar]:
    """The parts of a property that rows with null do not have."""
    values = values.cast(pa.binary())
    if not values.null_count:
        return [_label(name), values]
    if values.null_count == len(values):
        return []
    return [pc.fill_null(_join([_label(name), values], len(values)), b"")]


def _joined_keys(keys: pa.Array, bad_text: str) -> pa.Array:
    """The keys of each row, joined by a space; null for a row without keys."""
    flat, parents = pc.list_flatten(keys), pc.list_parent_indices(keys)
    _check(flat, f"{bad_text}| ", parents)
    _refuse(pc.is_null(flat), parents)
    joined = pc.binary_join(keys, " ")
    return pc.if_else(pc.equal(joined, ""), pa.scalar(None, joined.type), joined)


def _joined_properties(properties: pa.Array, added: Sequence[str], rules: PackingRules) -> pa.Array:
    r"""The properties of each row, each with `\x02` before it."""
    size = len(properties)
    pairs_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    pairs = properties.cast(pairs_type)
    flat, parents = pc.list_flatten(pairs), pc.list_parent_indices(pairs)
    names, values = pc.struct_field(flat, 0), pc.struct_field(flat, 1)
    if added:
        kept = pc.invert(pc.is_in(names, value_set=pa.array(added, pa.string())))
        names, values, parents = names.filter(kept), values.filter(kept), parents.filter(kept)
    _check(names, rules.bad_text, parents)
    _check(values, rules.bad_text, parents)
    _refuse(pc.is_null(values), parents)
    _refuse(pc.is_in(names, value_set=pa.array(sorted(rules.reserved), pa.string())), parents)
    texts = _join(
        [
            pa.scalar(_PAIR, pa.binary()),
            names.cast(pa.binary()),
            pa.scalar(b"\x01", pa.binary()),
            values.cast(pa.binary()),
        ],
        len(names),
    )
    counts = np.bincount(np.asarray(parents), minlength=size)
    ends = np.zeros(size + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), texts), b"")


def _check(values: pa.Array, bad_text: str, rows: pa.Array | None = None) -> None:
    """Refuse the first row with a text that matches."""
    _refuse(pc.match_substring_regex(values, f"{bad_text}|{_BLANK}"), rows)


def _refuse(bad: pa.Array, rows: pa.Array | None = None) -> None:
    """Refuse the first row that is marked."""
    index = cast("int", pc.index(bad, True).as_py())
    if index >= 0:
        raise UnpackableRowError(index if rows is None else cast("int", rows[index].as_py()))


def _lengths(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    offsets = _offsets(values).astype(np.int64)
    return offsets[1:] - offsets[:-1]


def _offsets(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The offsets of a binary column in its data buffer, one more than it has rows."""
    offsets = values.buffers()[1]
    if offsets is None or not len(values):
        return np.zeros(1, np.int32)
    found = np.frombuffer(memoryview(offsets), np.int32)
    return found[values.offset : values.offset + len(values) + 1]


def _fixed(
    values: np.ndarray[tuple[int, ...], np.dtype[np.uint32 | np.uint16]], size: int
) -> pa.Array:
    """A binary column of values of equal size."""
    count = len(values)
    offsets = np.arange(0, size * (count + 1), size, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
