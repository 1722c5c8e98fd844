"""Parses texts of names and values into Arrow columns, without an object for each value.

Both protocols carry a message's properties as one text of names and values; only the separators
differ. The texts of a batch are parsed in one of three ways:

1. If a few texts repeat, each distinct one is parsed once.
2. If all texts have the same names in the same order, as those of one producer mostly have, they
   are parsed column by column, with `join` and `split` over the whole batch (`parse_aligned`).
3. Otherwise they are parsed one by one (`parse_each`).

The module needs numpy and pyarrow; it is imported when columns are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from coherer._record.properties import MILLISECOND_CHARS, MINUTE_CHARS

Ints: TypeAlias = "npt.NDArray[np.int64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

INSTANT: Final = pa.timestamp("us", "UTC")
TEXT: Final = pa.string()
TEXTS: Final = pa.map_(TEXT, TEXT)

_REPEATED: Final = 4
"""Distinct texts are parsed once if each occurs this often on average."""

_MARK: Final = b"\0"


class TextFormat(NamedTuple):
    """The format of a text of names and values, and the columns to parse it into.

    Args:
        pair: the separator between pairs.
        equals: the separator between a name and its value.
        read: parses one text; the reference for the other ways.
        columns: names that get their own columns.
        hidden: names that are left out.
        blank_values: whether a value may be empty.
    """

    pair: bytes
    equals: bytes
    read: Callable[[bytes], Mapping[str, str]]
    columns: tuple[str, ...]
    hidden: frozenset[str]
    blank_values: bool


class ParsedColumns:
    """The parsed texts.

    Args:
        named: a column for each of the format's `columns`, null if a text has no such name.
        make_others: makes `others`, if it is asked for.
    """

    def __init__(self, named: list[pa.Array], make_others: Callable[[], pa.Array]) -> None:
        self.named = named
        self._make_others = make_others

    @cached_property
    def others(self) -> pa.Array:
        """A map of all other names and values."""
        return self._make_others()

    def take(self, rows: pa.Array) -> ParsedColumns:
        """Return the given rows of the columns."""
        named = [column.take(rows) for column in self.named]
        return ParsedColumns(named, lambda: self.others.take(rows))


def parse_texts(texts: Sequence[bytes | None], form: TextFormat) -> ParsedColumns:
    r"""Parse texts into columns; None stands for a message without a text.

    >>> from coherer._record.properties import decode
    >>> form = TextFormat(b"\x02", b"\x01", decode, ("TAGS",), frozenset(), blank_values=False)
    >>> tags, = parse_texts([b"TAGS\x01UA\x02k\x01v", None], form).named
    >>> tags.to_pylist()
    ['UA', None]
    """
    different = dict.fromkeys(texts)
    if len(different) * _REPEATED <= len(texts):
        numbers = {text: number for number, text in enumerate(different)}
        rows = pa.array([numbers[text] for text in texts], pa.int32())
        return parse_each(list(different), form).take(rows)
    return parse_aligned(texts, form) or parse_each(texts, form)


def parse_each(texts: Sequence[bytes | None], form: TextFormat) -> ParsedColumns:
    """Parse texts one by one."""
    named: list[list[str | None]] = [[] for _ in form.columns]
    others: list[list[tuple[str, str]]] = []
    for text in texts:
        found = dict(form.read(text or b""))
        for column, name in zip(named, form.columns, strict=True):
            column.append(found.pop(name, None))
        others.append([pair for pair in found.items() if pair[0] not in form.hidden])
    columns = [pa.array(column, TEXT) for column in named]
    return ParsedColumns(columns, lambda: pa.array(others, TEXTS))


def parse_aligned(texts: Sequence[bytes | None], form: TextFormat) -> ParsedColumns | None:
    """Parse texts that have the same names in the same order; None if they have not.

    With a mark between the texts, all items of the batch are one list, in which every (names + 1)th
    item is a mark. The number of marks is known, so an item that looks like a mark, or a text with
    more or fewer items, moves some mark to a position where a name is expected. This is detected.
    """
    first = texts[0] if texts else None
    if first is None or None in texts:
        return None
    names = [item.partition(form.equals)[0] for item in first.split(form.pair)]
    size, step = len(texts), len(names) + 1
    marked = form.pair + _MARK + form.pair
    items = marked.join(cast("Sequence[bytes]", texts)).split(form.pair)
    if len(items) != size * step - 1 or items[step - 1 :: step] != [_MARK] * (size - 1):
        return None
    values: dict[bytes, Sequence[bytes | None]] = {}
    for number, name in enumerate(names):
        column = _values_of(name, items[number::step], form)
        if column is None or name in values:
            return None
        values[name] = column
    nothing = [None] * size
    try:
        named = [pa.array(values.pop(name.encode(), nothing), TEXT) for name in form.columns]
    except pa.ArrowInvalid:  # not UTF-8
        return None
    for hidden in form.hidden:
        values.pop(hidden.encode(), None)

    def others() -> pa.Array:
        try:
            return _map(size, values)
        except pa.ArrowInvalid:
            return parse_each(texts, form).others

    return ParsedColumns(named, others)


def _values_of(name: bytes, items: list[bytes], form: TextFormat) -> Sequence[bytes] | None:
    """Return the text after `name` of each item; None if an item begins with another name."""
    # Items hold no separator of pairs: if this splits off all of them, each begins with the name.
    column = (form.pair + form.pair.join(items)).split(b"%b%b%b" % (form.pair, name, form.equals))
    if len(column) != len(items) + 1:
        return None
    if not form.blank_values and not (name and all(column[1:])):
        return None
    return column[1:]


def _map(size: int, columns: Mapping[bytes, Sequence[bytes | None]]) -> pa.Array:
    """Build a map in each row from columns of values."""
    width = len(columns)
    values: list[bytes | None] = [None] * (width * size)
    for number, column in enumerate(columns.values()):
        values[number::width] = column
    return pa.MapArray.from_arrays(
        pa.array(range(0, width * size + 1, width) if width else [0] * (size + 1), pa.int32()),
        pa.array([*columns] * size, TEXT),
        pa.array(values, TEXT),
    )


def instants(texts: pa.Array) -> pa.Array:
    """Parse message times (see `properties`) as UTC instants; null if malformed.

    >>> times = pa.array(["201301011000", "20130101100000500", None, "soon"])
    >>> list(map(str, instants(times).to_pylist()))
    ['2013-01-01 10:00:00+00:00', '2013-01-01 10:00:00.500000+00:00', 'None', 'None']
    """
    count = len(texts)
    sizes: npt.NDArray[np.int32] = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    millis = np.zeros(count, np.int64)
    valid = np.zeros(count, np.bool_)
    for size in (MINUTE_CHARS, MILLISECOND_CHARS):
        rows = np.flatnonzero(sizes == size)
        if len(rows):
            given = texts if len(rows) == count else texts.take(pa.array(rows))
            millis[rows], valid[rows] = _millis(given, size)
    found = pa.array(millis, pa.timestamp("ms", "UTC"), mask=~valid)
    return found.cast(INSTANT)


def _millis(texts: pa.Array, size: int) -> tuple[Ints, Mask]:
    """Return the times of texts of `size` bytes in ms since 1970, and which of them are valid."""
    _, offsets, data = texts.buffers()
    begin = np.frombuffer(cast("memoryview", offsets), np.int32)[texts.offset]
    octets = np.frombuffer(cast("memoryview", data), np.uint8)[begin:]
    digits = octets[: len(texts) * size].reshape(len(texts), size).astype(np.int64) - ord("0")
    valid = ((digits >= 0) & (digits <= 9)).all(axis=1)

    def number(first: int, end: int) -> Ints:
        part = digits[:, first:end]  # without columns for seconds that the text does not have
        return cast("Ints", part @ 10 ** np.arange(part.shape[1] - 1, -1, -1))

    year, month, day, hour, minute = map(number, (0, 4, 6, 8, 10), (4, 6, 8, 10, 12))
    second, milli = number(12, 14), number(14, 17)
    valid &= (year >= 1) & (month >= 1) & (month <= 12)
    valid &= (day >= 1) & (hour < 24) & (minute < 60) & (second < 60)
    since = (np.where(valid, year, 1970) - 1970) * 12 + np.where(valid, month, 1) - 1
    months = since.view("M8[M]")
    first = months.astype("M8[D]").astype(np.int64)
    valid &= day <= (months + 1).astype("M8[D]").astype(np.int64) - first
    minutes = ((first + day - 1) * 24 + hour) * 60 + minute
    return (minutes * 60 + second) * 1000 + milli, valid
