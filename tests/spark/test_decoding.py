"""Columns of envelopes: the framing of a schema registry, and InLong's."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from coherer.spark import from_inlong, registry_id, registry_payload
from coherer.spark.decoding import opened
from tests.inlong_java import JAVA

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FRAMED = [
    (b"\0\0\0\1\x02payload", 258, b"payload"),
    (b"\0\0\0\0\0", 0, b""),
    (b"\0\x7f\xff\xff\xffp", 2**31 - 1, b"p"),
    (b"\0\xff\xff\xff\xffp", None, b"p"),  # no registry numbers so far
    (b"\1\0\0\0\1p", None, None),
    (b"\0\0\0\1", None, None),
    (b"", None, None),
    (None, None, None),
]


def test_the_framing_of_a_registry(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(value,) for value, _, _ in FRAMED], "value binary")
    for value in ("value", rows["value"]):
        found = rows.select("value", registry_id(value), registry_payload(value)).collect()
        assert [tuple(row) for row in found] == FRAMED


def test_a_time_that_no_column_holds_is_the_reason() -> None:
    """One damaged message must not stop a stream."""
    good = next(bytes.fromhex(java.envelope) for java in JAVA if java.version == 2)
    for time in (b"\x7f" + b"\xff" * 7, b"\x80" + b"\0" * 7):
        bad = good[:2] + time + good[10:]
        found = opened(pa.array([good, bad], pa.binary())).to_pylist()
        assert found[0]["error"] is None
        assert "The time of creation is" in found[1]["error"]
        assert found[1]["messages"] is None


def test_envelopes_of_inlong(spark: SparkSession) -> None:
    rows = [(number, bytes.fromhex(java.envelope)) for number, java in enumerate(JAVA)]
    table = spark.createDataFrame(
        [*rows, (98, b"no envelope"), (99, None)], "number int, value binary"
    )
    found = {
        row["number"]: row["envelope"]
        for row in table.select("number", from_inlong("value").alias("envelope")).collect()
    }
    for number, java in enumerate(JAVA):
        envelope = found[number]
        assert envelope["error"] is None
        assert envelope["version"] == java.version
        created = datetime.fromtimestamp(0) + timedelta(milliseconds=java.created_ms)  # noqa: DTZ006
        assert envelope["created"] == created
        messages = [(one["attributes"], bytes(one["body"])) for one in envelope["messages"]]
        assert messages == java.messages
    assert "not an InLongMsg" in found[98]["error"]
    assert found[98]["messages"] is None
    assert found[99] is None


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "decoding.md"
JSON, CSV, AVRO, REGISTRY, INLONG = re.findall(
    r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
)


def printed(
    block: str, spark: SparkSession, *values: bytes, **names: object
) -> dict[str, DataFrame]:
    """Runs a program of the page, for rows with these values."""
    rows = spark.createDataFrame([(value,) for value in values], "value binary")
    found: dict[str, DataFrame] = {"rows": rows, **names}  # type: ignore[dict-item]
    exec(compile(block, PAGE.name, "exec"), found)
    return found


def good_and_bad(found: dict[str, DataFrame]) -> tuple[list[tuple[object, ...]], list[str]]:
    good = [tuple(row) for row in found["good"].collect()]
    return good, [row[0] for row in found["bad"].collect()]


@pytest.mark.parametrize(
    ("block", "value", "wrong"),
    [
        (JSON, b'{"carrier": "UA", "delay": 2}', b'{"carrier": "UA", "delay": "late"}'),
        (CSV, b"UA,2", b"UA,late"),
    ],
)
def test_text_on_the_page(spark: SparkSession, block: str, value: bytes, wrong: bytes) -> None:
    found = good_and_bad(printed(block, spark, value, wrong))
    assert found == ([("UA", 2)], [wrong.decode()])


def test_avro_on_the_page(spark: SparkSession) -> None:
    encoded = io.BytesIO()
    record = {"carrier": "UA", "delay": 2}
    kinds: list[object] = [{"name": "carrier", "type": "string"}]
    kinds.append({"name": "delay", "type": ["null", "int"]})
    schema = {"type": "record", "name": "Flight", "fields": kinds}
    fastavro.schemaless_writer(encoded, fastavro.parse_schema(schema), record)
    good, bad = good_and_bad(printed(AVRO, spark, encoded.getvalue(), b"\x7f"))
    assert good == [("UA", 2)]
    assert bad[0].startswith("EOFError")


def flight_class() -> type[Message]:
    """A class as Protobuf's compiler generates it."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", syntax="proto3")
    message = file.message_type.add(name="Flight")
    message.field.add(name="carrier", number=1, type=9, label=1)
    message.field.add(name="delay", number=2, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Flight"))


def test_protobuf_on_the_page(spark: SparkSession) -> None:
    """The page's replacement, in the worker, which makes the class for itself."""
    replacement = "MessageToDict(Flight.FromString(value))"
    assert replacement in PAGE.read_text("utf-8")
    block = AVRO.replace("fastavro.schemaless_reader(io.BytesIO(value), FLIGHT)", "parse(value)")

    def parse(value: bytes) -> dict[str, object]:
        kind = flight_class()
        return json_format.MessageToDict(kind.FromString(value))

    encode: Callable[..., Message] = flight_class()
    value = encode(carrier="UA", delay=2).SerializeToString()
    good, bad = good_and_bad(printed(block, spark, value, b"\xff", parse=parse))
    assert good == [("UA", 2)]
    assert "DecodeError" in bad[0]


def test_jars_that_are_missing_are_named(spark: SparkSession) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.sql.avro.functions import from_avro

    rows = spark.createDataFrame([(b"",)], "value binary")
    with pytest.raises(AnalysisException):
        rows.select(from_avro("value", '"string"')).collect()


def test_a_registry_on_the_page(spark: SparkSession) -> None:
    found = printed(REGISTRY, spark, b"\0\0\0\0\7payload", b"bare")
    assert sorted(map(str, found["schemas"])) == ["7", "None"]  # type: ignore[arg-type]
    payloads = [row["payload"] for row in found["framed"].collect()]
    assert payloads == [b"payload", None]


def test_inlong_on_the_page(spark: SparkSession) -> None:
    java = JAVA[0]
    good, bad = good_and_bad(printed(INLONG, spark, bytes.fromhex(java.envelope), b"bare"))
    assert [(stream, text) for _, stream, text in good] == [
        (attributes.get("streamId"), body.decode()) for attributes, body in java.messages
    ]
    assert "not an InLongMsg" in bad[0]
