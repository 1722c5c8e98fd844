"""Texts of names and values as Arrow columns, without an object for each.

Both protocols carry a message's properties as one text of names and values; only the separators
differ. The texts of a batch are taken apart in one of three ways, and tests hold them against each
other:

1. The same few texts come again and again: each different one, once.
2. All texts have the same names in the same order, as one producer's mostly have: column by column,
   with `join` and `split` over the whole batch (`parse_aligned`).
3. Otherwise one by one.

This needs pyarrow, and is loaded when somebody asks for columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from coherer._record.properties import decode_time

INSTANT: Final = pa.timestamp("us", "UTC")
TEXT: Final = pa.string()
TEXTS: Final = pa.map_(TEXT, TEXT)

_REPEATED: Final = 4
"""Texts that come so often are taken apart once for all."""

_MARK: Final = b"\0"


class TextFormat(NamedTuple):
    """How a text of names and values is written, and what is wanted of it.

    Args:
        pair: stands between pairs.
        equals: stands between a name and its value.
        read: text to names and values; the plain way, which says what is right.
        columns: names that get a column of their own.
        hidden: names that are left out.
        blank_values: whether a value may be empty.
    """

    pair: bytes
    equals: bytes
    read: Callable[[bytes], Mapping[str, str]]
    columns: tuple[str, ...]
    hidden: frozenset[str]
    blank_values: bool


class ParsedColumns(NamedTuple):
    """What texts hold.

    Args:
        named: a column for each of the form's `columns`, null where a text has no such name.
        others: all other names and values as a map.
    """

    named: list[pa.Array]
    others: pa.Array

    def take(self, rows: pa.Array) -> ParsedColumns:
        """The columns of these rows."""
        return ParsedColumns([column.take(rows) for column in self.named], self.others.take(rows))


def parse_texts(texts: Sequence[bytes | None], form: TextFormat) -> ParsedColumns:
    r"""Gives the columns of texts; None is a message without one.

    >>> from coherer._record.properties import decode
    >>> form = TextFormat(b"\x02", b"\x01", decode, ("TAGS",), frozenset(), blank_values=False)
    >>> tags, = parse_texts([b"TAGS\x01UA\x02k\x01v", None], form).named
    >>> tags.to_pylist()
    ['UA', None]
    """
    different = dict.fromkeys(texts)
    if len(different) * _REPEATED <= len(texts):
        places = {text: place for place, text in enumerate(different)}
        rows = pa.array([places[text] for text in texts], pa.int32())
        return parse_each(list(different), form).take(rows)
    return parse_aligned(texts, form) or parse_each(texts, form)


def parse_each(texts: Sequence[bytes | None], form: TextFormat) -> ParsedColumns:
    """The plain way."""
    named: list[list[str | None]] = [[] for _ in form.columns]
    others: list[list[tuple[str, str]]] = []
    for text in texts:
        found = dict(form.read(text or b""))
        for column, name in zip(named, form.columns, strict=True):
            column.append(found.pop(name, None))
        others.append([pair for pair in found.items() if pair[0] not in form.hidden])
    return ParsedColumns([pa.array(column, TEXT) for column in named], pa.array(others, TEXTS))


def parse_aligned(texts: Sequence[bytes | None], form: TextFormat) -> ParsedColumns | None:
    """Takes texts apart that have the same names in the same order; None when they have not.

    With a mark between the texts, all items of the batch are one list, in which every (names + 1)th
    is a mark. As there are no more marks than texts ask for, an item that looks like a mark, or a
    text with more or fewer items, moves some mark to where a name is expected, and is found there.
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
    for place, name in enumerate(names):
        column = _values_of(name, items[place::step], form)
        if column is None or name in values:
            return None
        values[name] = column
    try:
        return _split(size, values, form)
    except pa.ArrowInvalid:  # no UTF-8
        return None


def _values_of(name: bytes, items: list[bytes], form: TextFormat) -> Sequence[bytes] | None:
    """What stands behind `name` in each item; None when one begins with something else."""
    # Items hold no separator of pairs: if this splits off all of them, each begins with the name.
    column = (form.pair + form.pair.join(items)).split(b"%b%b%b" % (form.pair, name, form.equals))
    if len(column) != len(items) + 1:
        return None
    if not form.blank_values and not (name and all(column[1:])):
        return None
    return column[1:]


def _split(
    size: int, values: dict[bytes, Sequence[bytes | None]], form: TextFormat
) -> ParsedColumns:
    nothing = [None] * size
    named = [pa.array(values.pop(name.encode(), nothing), TEXT) for name in form.columns]
    for name in form.hidden:
        values.pop(name.encode(), None)
    return ParsedColumns(named, _map(size, values))


def _map(size: int, columns: Mapping[bytes, Sequence[bytes | None]]) -> pa.Array:
    """Makes a map in each row out of columns of values."""
    width = len(columns)
    values: list[bytes | None] = [None] * (width * size)
    for place, column in enumerate(columns.values()):
        values[place::width] = column
    return pa.MapArray.from_arrays(
        pa.array(range(0, width * size + 1, width) if width else [0] * (size + 1), pa.int32()),
        pa.array([*columns] * size, TEXT),
        pa.array(values, TEXT),
    )


def instants(texts: pa.Array) -> pa.Array:
    """Message times (see `record.times`) as instants, read as UTC; null where malformed.

    >>> times = pa.array(["201301011000", "20130101100000500", None, "soon"])
    >>> list(map(str, instants(times).to_pylist()))
    ['2013-01-01 10:00:00+00:00', '2013-01-01 10:00:00.500000+00:00', 'None', 'None']
    """
    parsed = pc.strptime(texts, format="%Y%m%d%H%M", unit="us", error_is_null=True).cast(INSTANT)
    if parsed.null_count == texts.null_count:
        return parsed
    return pc.coalesce(parsed, pa.array([_instant(text) for text in texts.to_pylist()], INSTANT))


def _instant(text: object) -> object:
    time = decode_time(text) if isinstance(text, str) else None
    return None if time is None else time.replace(tzinfo=UTC)
