"""`coherer.arrow.scan`: what it reads, when it connects, and its errors; without a session."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from coherer import Message
from coherer.arrow import scan
from coherer.blocking import connect
from coherer.errors import CohererError, RefusedError, UsageError
from tests.spark.queues import Endpoint
from tests.waiting import until

COUNT = 300


@pytest.fixture
def filled(coherer_topic: str, coherer_node: Any) -> str:
    """A topic with messages, spread over its partitions."""
    send(coherer_node.url, coherer_topic, range(COUNT))
    return coherer_topic


def send(url: str, topic: str, numbers: range) -> None:
    with connect(url) as client, client.producer(topic) as producer:
        producer.send_many(Message(topic, b"%d" % n, tag="a") for n in numbers).check()


def test_all_rows_with_the_columns_of_the_spark_source(endpoint: Endpoint, filled: str) -> None:
    reader = scan(endpoint.url, filled)
    assert isinstance(reader, pa.RecordBatchReader)
    table = reader.read_all()
    assert table.schema.names[:4] == ["topic", "broker", "partition", "offset"]
    assert {int(value) for value in table.column("value").to_pylist()} == set(range(COUNT))
    assert set(table.column("tag").to_pylist()) == {"a"}
    few = scan(endpoint.url, filled, columns=["value", "offset"])
    assert few.schema.names == ["value", "offset"]
    assert few.read_all().num_rows == COUNT


def test_the_call_fixes_the_end(endpoint: Endpoint, filled: str, coherer_node: Any) -> None:
    reader = scan(endpoint.url, filled, columns=["offset"])
    send(coherer_node.url, filled, range(COUNT, COUNT + 50))
    assert reader.read_all().num_rows == COUNT
    assert scan(endpoint.url, filled, columns=["offset"]).read_all().num_rows == COUNT + 50


def test_offsets_partitions_and_times(endpoint: Endpoint, filled: str) -> None:
    columns = ["broker", "partition", "offset"]
    everything = scan(endpoint.url, filled, columns=columns).read_all().to_pylist()
    one = everything[0]["partition"]
    key = f"{everything[0]['broker']}:{one}"
    rows = scan(
        endpoint.url, filled, columns=columns, partitions=[key], start={key: 2}, end={key: 5}
    ).read_all()
    assert [(row["partition"], row["offset"]) for row in rows.to_pylist()] == [
        (one, offset) for offset in (2, 3, 4)
    ]
    by_number = scan(endpoint.url, filled, columns=columns, partitions=[one]).read_all()
    assert by_number.to_pylist() == [row for row in everything if row["partition"] == one]
    ago = datetime.now(UTC) - timedelta(hours=1)
    assert scan(endpoint.url, filled, start=ago).read_all().num_rows == COUNT
    assert scan(endpoint.url, filled, end=ago).read_all().num_rows == 0
    (empty,) = scan(endpoint.url, filled, start="latest")  # Polars fails without a batch
    assert empty.num_rows == 0


async def test_connections_last_as_long_as_the_reading(endpoint: Endpoint, filled: str) -> None:
    before = set(threading.enumerate())  # some may be of clients that other tests left behind
    reader = scan(endpoint.url, filled)
    assert not set(threading.enumerate()) - before
    reader.read_all()
    await until(lambda: not set(threading.enumerate()) - before)
    half = scan(endpoint.url, filled)
    half.read_next_batch()
    del half
    await until(lambda: not set(threading.enumerate()) - before)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"columns": ["body"]}, "no column 'body'"),
        ({"start": datetime(2026, 11, 21)}, "no time zone"),  # noqa: DTZ001
        ({"partitions": ["1"]}, "assign"),
        ({"start": {"nobody:9": 1}}, "nobody:9"),
        ({"options": {"colour": "red"}}, "Unknown option 'colour'"),
    ],
)
def test_a_wrong_argument_is_explained(
    coherer_node: Any, coherer_topic: str, given: dict[str, Any], error: str
) -> None:
    with pytest.raises(UsageError, match=error):
        scan(coherer_node.url, coherer_topic, **given)


def test_what_does_not_exist(endpoint: Endpoint) -> None:
    with pytest.raises(RefusedError):
        scan(endpoint.url, "missing")
    with pytest.raises(CohererError):
        scan("kafka://127.0.0.1:9092", "missing")


def test_spark_is_not_needed() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import coherer.arrow"
    subprocess.run([sys.executable, "-c", program], check=True)
