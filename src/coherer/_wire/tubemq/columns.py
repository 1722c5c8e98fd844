"""Delivered messages as Arrow columns, without an object per message; see `_record.columns`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeAlias, cast

import numpy as np
import pyarrow as pa

from coherer._record import properties
from coherer._record.columns import Ints, ParsedColumns, TextFormat, parse_aligned, parse_texts
from coherer._wire.tubemq.payload import TAG_KEY, TIME_KEY, read_attributes
from coherer._wire.tubemq.stored import MARKED_ATTRIBUTES, RESERVED

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("broker", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tag", pa.string()),
        pa.field("time", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("properties", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
"""The columns of `MessageBatch.to_arrow`."""


def _read(text: bytes) -> Mapping[str, str]:
    return read_attributes(text.decode(errors="replace"))


FORM: Final = TextFormat(
    pair=b",",
    equals=b"=",
    read=_read,
    columns=(TAG_KEY, TIME_KEY),
    hidden=frozenset(),
    blank_values=True,
)
"""The format of attributes."""


_PROPERTIES: Final = FORM._replace(
    pair=b"\x02",
    equals=b"\x01",
    columns=(properties.TAGS, TIME_KEY),
    hidden=RESERVED,
    blank_values=False,
)
"""The format of RocketMQ's properties, for texts that can be parsed without `read`."""

_NOT_PLAIN: Final = (b",", b"=", TAG_KEY.encode(), MARKED_ATTRIBUTES[1:-1])
"""What is in texts whose attributes are not simply their properties."""

Texts: TypeAlias = Sequence[bytes | None]
"""Texts; None for a message without one."""


class CodedTexts:
    """Texts, many of which are equal.

    Args:
        texts: the distinct texts.
        rows: the index of its text for each row; None if there is one text for each row.
        translate: makes attributes of the texts, when they are first asked for; None if they are
            attributes.
    """

    __slots__ = ("_texts", "_translate", "_values", "rows")

    def __init__(
        self,
        texts: Texts,
        rows: pa.Array | None = None,
        translate: Callable[[Texts], Texts] | None = None,
    ) -> None:
        self._texts = texts
        self.rows = rows
        self._translate = translate
        self._values = texts if translate is None else None

    @classmethod
    def of(cls, texts: pa.Array, translate: Callable[[Texts], Texts] | None = None) -> CodedTexts:
        """Return the texts of a binary array; empty texts become None."""
        coded = texts.dictionary_encode()
        values = cast("list[bytes | None]", coded.dictionary.to_pylist())
        return cls([text or None for text in values], coded.indices, translate)

    @property
    def values(self) -> Texts:
        """The distinct attributes."""
        if self._values is None:
            assert self._translate is not None  # noqa: S101 - otherwise the texts are the values
            self._values = self._translate(self._texts)
        return self._values

    def __len__(self) -> int:
        return len(self._texts if self.rows is None else self.rows)

    def part(self, count: int) -> CodedTexts:
        """Return the texts of the first `count` rows."""
        if self.rows is None:
            return CodedTexts(self._texts[:count], None, self._translate)
        return CodedTexts(self._texts, self.rows.slice(0, count), self._translate)

    def to_list(self) -> list[bytes | None]:
        """Return the attributes of each row."""
        return self._by_row(self.values)

    def parse(self) -> ParsedColumns:
        """Parse the attributes."""
        if self.rows is not None and len(self._texts) * 2 <= len(self):
            return parse_texts(self.values, FORM).take(self.rows)
        if self._values is None:
            found = _parse_properties(self._by_row(self._texts))
            if found is not None:
                return found
        return parse_texts(self.to_list(), FORM)

    def _by_row(self, texts: Texts) -> list[bytes | None]:
        if self.rows is None:
            return [*texts]
        return [texts[row] for row in cast("list[int]", self.rows.to_pylist())]


def _parse_properties(texts: list[bytes | None]) -> ParsedColumns | None:
    """Parse property texts of another protocol without translating them first.

    Returns:
        The same as their attributes, parsed; None if that is not certain.
    """
    if None in texts:
        return None
    joined = b"\x02".join(cast("list[bytes]", texts))
    if any(sign in joined for sign in _NOT_PLAIN):
        return None
    return parse_aligned(texts, _PROPERTIES)


class Messages:
    """Decoded messages of one partition.

    Args:
        broker: the broker's id, as text.
        partition: the partition's number.
        offsets: the offset of each message, or one for all.
        ids: the broker's ids of the messages.
    """

    def __init__(
        self,
        *,
        topic: str,
        broker: str,
        partition: int,
        offsets: Sequence[int] | int,
        ids: Sequence[int] | Ints,
        attributes: CodedTexts,
        bodies: Sequence[bytes] | pa.Array,
    ) -> None:
        self.topic = topic
        self.broker = broker
        self.partition = partition
        self.offsets = offsets
        self.ids = ids
        self.attributes = attributes
        self.bodies = bodies

    @cached_property
    def parsed(self) -> ParsedColumns:
        """The attributes, parsed."""
        return self.attributes.parse()

    def repeat(self, value: object, kind: pa.DataType) -> pa.Array:
        """Return a column with one value."""
        return pa.repeat(pa.scalar(value, kind), len(self.bodies))

    def offset_column(self) -> pa.Array:
        """Return the offsets as a column."""
        offsets = self.offsets
        if isinstance(offsets, int):
            return self.repeat(offsets, pa.int64())
        if isinstance(offsets, range):
            return pa.array(np.arange(offsets.start, offsets.stop, dtype=np.int64))
        return pa.array(offsets, pa.int64())

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return columns of `SCHEMA`: all, or those with the given names.

        Only these columns are decoded.
        """
        names = SCHEMA.names if columns is None else [name for name in columns if name in _MAKE]
        schema = pa.schema([SCHEMA.field(name) for name in names])
        return pa.RecordBatch.from_arrays([_MAKE[name](self) for name in names], schema=schema)


_MAKE: Final[dict[str, Callable[[Messages], pa.Array]]] = {
    "topic": lambda found: found.repeat(found.topic, pa.string()),
    "broker": lambda found: found.repeat(found.broker, pa.string()),
    "partition": lambda found: found.repeat(found.partition, pa.int32()),
    "offset": Messages.offset_column,
    "id": lambda found: pa.array(found.ids, pa.int64()),
    "tag": lambda found: found.parsed.named[0],
    "time": lambda found: found.parsed.named[1],
    "value": lambda found: pa.array(found.bodies, pa.binary()),
    "properties": lambda found: found.parsed.others,
}
