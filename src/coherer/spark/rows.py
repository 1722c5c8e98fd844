"""Rows of a sink: the columns that it accepts, and the messages of single rows.

| column | type | |
|---|---|---|
| `value` | binary or string | the body; required, not null, not empty |
| `topic` | string | the topic of the row; option `topic` overrides it |
| `tag` | string | |
| `timestamp` | timestamp | the message's time; TubeMQ keeps minutes |
| `properties` | map | |
| `key` | string, binary (UTF-8) or array of strings | RocketMQ only: null with TubeMQ |
| `partition` | integer | the target; null for any |
| `broker` | string | the broker of `partition`; without it, the number counts through all brokers |
| `delay` | interval, string (`10s`) or integer (a level) | RocketMQ only |

Other columns are refused by name, so that no data is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

import pyarrow as pa

from coherer.errors import UsageError
from coherer.message import Message
from coherer.spark.options import WriteOptions

# `coherer.arrow` works without pyspark.
if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "properties": ("map<string,string>",),
    "key": ("string", "binary", "array<string>"),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "broker": ("string",),
    "delay": ("interval day to second", "string", "int"),
}
"""The columns that a sink accepts, and their types."""

BROKER_COLUMNS: Final = ("offset", "id")
"""Columns of rows that were read, which brokers assign."""

_PLAIN: Final = {
    "value": pa.binary(),
    "topic": pa.string(),
    "tag": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "broker": pa.string(),
}


Place: TypeAlias = tuple[str, int]
"""Broker and number of a partition or queue."""


class SingleRow(NamedTuple):
    """A row that is sent as a single message.

    Args:
        number: the row's number.
        message: the message.
        place: broker and queue; any if None.
        level: a delay level; 0 for none.
        delay: None without a delay.
    """

    number: int
    message: Message
    place: Place | None = None
    level: int = 0
    delay: timedelta | None = None


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Check that rows can be sent, before a task starts.

    Raises:
        UsageError: a column is unknown, missing, or has the wrong type.
    """
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    if read := [name for name in BROKER_COLUMNS if name in given]:
        names = ", ".join(f'"{name}"' for name in read)
        raise UsageError(
            f"The sink cannot set {', '.join(read)}: brokers assign them.", hint=f".drop({names})"
        )
    for name, kind in given.items():
        if name not in COLUMNS:
            raise UsageError(
                f"The sink has no column {name!r}.", hint=f"Its columns are: {', '.join(COLUMNS)}."
            )
        if kind not in COLUMNS[name]:
            wanted = " or ".join(COLUMNS[name])
            raise UsageError(f"Column {name} is {kind}.", hint=f"Cast it to {wanted}.")
    if "value" not in given:
        raise UsageError("Column value is missing.", hint="It is the body of the messages.")
    if "topic" not in given and options.topic is None:
        raise UsageError("The topic is missing.", hint="Give option topic, or a column topic.")
    _check_combinations(given, options)


def _check_combinations(given: Collection[str], options: WriteOptions) -> None:
    if "broker" in given and "partition" not in given:
        raise UsageError("Column broker needs a column partition.", hint='.drop("broker")')
    if options.order_by_key and "key" not in given:
        raise UsageError("Option orderByKey needs a column key.")
    if options.order_by_key and "partition" in given:
        raise UsageError(
            "Option orderByKey and column partition both choose the queue.",
            hint='Use one of them: .drop("partition"), or no option.',
        )
    if "delay" in given and options.access.protocol == "tubemq":
        raise UsageError(
            "TubeMQ cannot delay messages: there is no column delay.",
            hint='.drop("delay"), or write with format("rocketmq").',
        )


def row_columns(batch: pa.RecordBatch, *, headers: bool = True, first: int = 0) -> pa.RecordBatch:
    """The rows with plain types, whatever types Spark chose for strings and binaries.

    Args:
        batch: rows with columns of `COLUMNS`.
        headers: keep the column `properties`.
        first: the number of the first row.

    Raises:
        UsageError: a key is not UTF-8.
    """
    names = [name for name in batch.schema.names if headers or name != "properties"]
    return pa.RecordBatch.from_arrays(
        [_plain(name, batch.column(name), first) for name in names], names=names
    )


def _plain(name: str, column: pa.Array, first: int) -> pa.Array:
    if name == "key":
        if isinstance(column, pa.ListArray | pa.LargeListArray):
            return column.cast(pa.list_(pa.string()))
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid as error:
            keys = cast("list[bytes | None]", column.to_pylist())
            number = next(n for n, key in enumerate(keys, first) if key and not _is_text(key))
            raise UsageError(
                f"Row {number} of the task: The key is not UTF-8.",
                hint="Encode it, for example with base64(key).",
            ) from error
    wanted = _PLAIN.get(name)
    return column if wanted is None or column.type == wanted else column.cast(wanted)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def messages(
    batch: pa.RecordBatch,
    topic: str | None,
    origin: Callable[[int], Mapping[str, str]],
    first: int,
    *,
    keys: bool = False,
) -> Iterator[Message]:
    """The messages of a batch of rows, one by one.

    Args:
        batch: rows with columns of `COLUMNS`; `partition`, `broker` and `delay` are ignored.
        topic: overrides the column.
        origin: properties to add to row number n.
        first: the number of the first row.
        keys: whether messages have keys.

    Raises:
        UsageError: a row has no value or no topic, a key where messages have none, or one with a
            space.
    """
    batch = row_columns(batch, first=first)
    names = batch.schema.names

    def column(name: str) -> Iterable[object]:
        return batch.column(name).to_pylist() if name in names else [None] * batch.num_rows

    table = zip(
        *map(column, ("value", "topic", "tag", "timestamp", "properties", "key")), strict=True
    )
    for number, (value, where, tag, time, properties, key) in enumerate(table, first):
        if key is not None and not keys:
            raise no_keys()
        if where is None and topic is None:
            raise UsageError("A row has no topic.", hint="Give option topic, or fill the column.")
        if not value:
            raise UsageError("A row has no value.", hint="Filter such rows out.")
        yield Message(
            cast("str", topic or where),
            cast("bytes", value),
            tag=cast("str | None", tag),
            time=cast("datetime | None", time),
            keys=() if key is None else _keys(cast("str | list[str]", key)),
            properties=_properties(properties) | dict(origin(number)),
        )


def no_keys() -> UsageError:
    """The error for a key with TubeMQ."""
    return UsageError("TubeMQ has no keys.", hint="Put the key among the properties.")


def _properties(pairs: object) -> dict[str, str]:
    properties = dict(cast("list[tuple[str, str | None]]", pairs or []))
    for name, value in properties.items():
        if value is None:
            raise UsageError(
                f"Property {name!r} is null.",
                hint="Leave it out: map_filter('properties', lambda _, value: value.isNotNull()).",
            )
    return cast("dict[str, str]", properties)


def _keys(key: str | Sequence[str | None]) -> tuple[str, ...]:
    if not isinstance(key, str):
        keys = tuple(one for one in key if one is not None)
        if len(keys) < len(key):
            raise UsageError(
                "One of the keys is null.",
                hint="Leave nulls out: .withColumn('key', array_compact('key')).",
            )
        return keys
    if " " in key:
        raise UsageError(
            f"Key {key!r} holds a space, which separates keys.",
            hint="Give several keys as an array: .withColumn('key', split('key', ' ')).",
        )
    return (key,)
