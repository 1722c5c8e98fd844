"""Decodes envelopes around the payload that Spark's own functions do not know.

`registry_id` and `registry_payload` split the format of Confluent's serializers: a zero byte, the
number of the schema in 4 bytes (big-endian), the payload. `from_inlong` opens InLong's envelopes
(`coherer.inlong`). docs/how-to/decoding.md shows them with Spark's functions for JSON, CSV, Avro
and Protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf

from coherer.errors import ProtocolError
from coherer.inlong import Envelope, decode

REGISTRY_HEAD: Final = 5
"""Bytes before the payload: the zero and the number of the schema."""

_US_MAX: Final = (1 << 63) - 1
"""The last time of Spark and of Arrow, in µs since 1970."""

INLONG_TYPE: Final = (
    "struct<version: int, created: timestamp, count: bigint, "
    "messages: array<struct<attributes: map<string, string>, body: binary>>, error: string>"
)
"""The type of the column that `from_inlong` returns."""


def registry_id(value: Column | str) -> Column:
    """The number of the schema in a schema registry.

    Args:
        value: a binary column, framed as Confluent's serializers do.

    Returns:
        An int column; null for values without that frame.

    Example:
        ```python
        rows.select(registry_id("value"), registry_payload("value"))
        ```
    """
    # `conv` keeps numbers above 2^31 positive, which as an int would be negative.
    number = sf.conv(sf.hex(sf.substring(value, 2, REGISTRY_HEAD - 1)), 16, 10).cast("bigint")
    return sf.when(_framed(value) & (number < 1 << 31), number.cast("int"))


def registry_payload(value: Column | str) -> Column:
    """The payload behind the number of the schema.

    Protobuf's payload begins with the path to the message in its schema: one zero byte for the
    first message, which most schemas have alone.

    Args:
        value: a binary column, framed as Confluent's serializers do.

    Returns:
        A binary column; null for values without that frame.
    """
    return sf.when(_framed(value), sf.substr(_column(value), sf.lit(REGISTRY_HEAD + 1)))


def _framed(value: Column | str) -> Column:
    zero = sf.substring(value, 1, 1) == sf.lit(b"\0")
    return (sf.octet_length(value) >= REGISTRY_HEAD) & zero


def _column(value: Column | str) -> Column:
    return sf.col(value) if isinstance(value, str) else value


def from_inlong(value: Column | str) -> Column:
    """Open InLong's envelopes.

    Args:
        value: a binary column with an InLongMsg in each row.

    Returns:
        A struct column with the fields of `coherer.inlong.Envelope`: `version`, `created`, `count`,
        `messages` (an array of structs with `attributes` and `body`), and `error`. A value that is
        no InLongMsg, or damaged, has only the reason in `error`; a null value is null.

    Example:
        ```python
        opened = rows.select("offset", from_inlong("value").alias("envelope"))
        bad = opened.where("envelope.error is not null")
        rows = opened.selectExpr("offset", "inline(envelope.messages)")
        ```
    """
    # PySpark's types describe `arrow_udf` as a decorator only.
    make = cast("Callable[[object, str], Callable[[Column | str], Column]]", vars(sf)["arrow_udf"])
    return make(opened, INLONG_TYPE)(value)


def opened(values: pa.Array) -> pa.Array:
    """Open the envelopes of a batch, in the worker; Spark reads the annotations."""
    message = pa.struct(
        {"attributes": pa.map_(pa.string(), pa.string()), "body": pa.binary()}.items()
    )
    kind = pa.struct(
        {
            "version": pa.int32(),
            "created": pa.timestamp("us", "UTC"),
            "count": pa.int64(),
            "messages": pa.list_(message),
            "error": pa.string(),
        }.items()
    )
    return pa.array(list(_rows(values)), kind)


def _rows(values: pa.Array) -> Iterable[dict[str, object] | None]:
    for value in values.to_pylist():
        if not isinstance(value, bytes):
            yield None
            continue
        try:
            yield _row(decode(value))
        except ProtocolError as error:
            yield {"error": str(error)}


def _row(envelope: Envelope) -> dict[str, object]:
    created_us = None if envelope.created_ms is None else envelope.created_ms * 1000
    if created_us is not None and abs(created_us) > _US_MAX:
        raise ProtocolError(f"The time of creation is {envelope.created_ms}.")
    return {
        "version": envelope.version,
        "created": created_us,
        "count": envelope.count,
        "messages": [
            {"attributes": list(message.attributes.items()), "body": message.body}
            for message in envelope.messages
        ],
    }
