"""Stores with messages of every kind, and their rows: from the files, and from the broker."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader

from coherer import Message
from coherer.blocking.rocketmq import connect
from coherer.rocketmq import Verdict
from coherer.spark.columns import arrow_schema
from coherer.spark.file_reader import file_reader
from coherer.spark.files import file_options
from coherer.spark.options import read_options
from coherer.spark.source import BatchReader

TIME = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
PLAIN, LARGE, PAID = 400, 10, 5
COUNT = PLAIN + LARGE + PAID

ALL = (
    "topic,broker,partition,offset,id,key,tag,timestamp,value,properties,bornTimestamp,"
    "storeTimestamp"
)


def messages(topic: str) -> list[Message]:
    """Messages with and without everything, and some that are stored compressed."""
    return [
        Message(
            topic,
            b"%d " % number + b"x" * (number % 97),
            tag=(None, "even", "odd")[number % 3],
            time=TIME + timedelta(seconds=number) if number % 2 else None,
            keys=(f"k{number}", "all") if number % 5 == 0 else (),
            properties={"number": str(number), "colour": "röt"} if number % 7 else {},
        )
        for number in range(PLAIN)
    ] + [Message(topic, b"%d " % number + b"large" * 2_000) for number in range(LARGE)]


def fill(url: str, topic: str) -> None:
    """Send `COUNT` messages that become visible, and some that do not; between those of others."""
    with connect(url) as client:
        with client.producer() as producer:
            for number, message in enumerate(messages(topic)):
                producer.submit(message)
                producer.submit(Message(f"{topic}_noise", b"%d" % number))
            producer.flush()
        with client.producer(group="payers", check=lambda _: Verdict.UNKNOWN) as producer:
            for number in range(PAID):
                with producer.transaction(Message(topic, b"paid %d" % number)):
                    pass
                given_up = producer.transaction(Message(topic, b"given up"))
                given_up.begin()
                given_up.rollback()


def rows_from(reader: DataSourceReader, columns: Iterable[str]) -> list[dict[str, object]]:
    """The rows of all tasks, by partition and offset."""
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    table = pa.Table.from_batches(batches, arrow_schema(columns))
    rows = [dict(row) for row in table.to_pylist()]
    for row in rows:
        if "properties" in row:
            row["properties"] = sorted(row["properties"])
    return sorted(rows, key=place)


def place(row: dict[str, object]) -> tuple[object, ...]:
    """Where a row comes from."""
    return tuple(row.get(name) for name in ("topic", "broker", "partition", "offset"))


def file_rows(path: object, topic: str, **options: object) -> list[dict[str, object]]:
    """Rows of files."""
    given = {"path": str(path), "topic": topic, **texts(options)}
    parsed = file_options(given, "rocketmq")
    return rows_from(file_reader(parsed), parsed.read.columns)


def broker_rows(url: str, topic: str, **options: object) -> list[dict[str, object]]:
    """Rows of a broker."""
    parsed = read_options({"url": url, "topic": topic, **texts(options)}, "rocketmq")
    return rows_from(BatchReader(parsed), parsed.columns)


def texts(options: dict[str, object]) -> dict[str, str]:
    """Options as Spark passes them."""
    return {name.lower(): str(value) for name, value in options.items()}
