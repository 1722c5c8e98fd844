"""`coherer.arrow.scan`: what it reads, when it connects, and its errors; without a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from coherer import Message
from coherer.arrow import BadRecordError, DataLossError, scan
from coherer.blocking import connect
from coherer.errors import CohererError, RefusedError, UsageError
from coherer.spark.reading import BatchLimits
from coherer.testing import embedded_node
from tests.copies import copy_tree
from tests.spark.queues import Endpoint
from tests.spark.stores import ALL, fill, place
from tests.threads import loop_threads
from tests.waiting import until, wait_until

COUNT = 300
TOPIC = "orders"
SEGMENT_BYTES = 64 * 1024
COLUMNS = ALL.split(",")
Rows: TypeAlias = list[dict[str, Any]]


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
    ago_ms = int(ago.timestamp() * 1000)
    edges = {
        "startingOffsetsByTimestamp": json.dumps({filled: {key: ago_ms}}),
        "ENDINGoffsets": json.dumps({filled: {key: 2}}),
    }
    begin = scan(endpoint.url, filled, columns=columns, partitions=[key], options=edges)
    assert [row["offset"] for row in begin.read_all().to_pylist()] == [0, 1]


async def test_connections_last_as_long_as_the_reading(endpoint: Endpoint, filled: str) -> None:
    before = loop_threads()  # some may be of clients that other tests left behind
    reader = scan(endpoint.url, filled)
    assert not loop_threads() - before
    reader.read_all()
    await until(lambda: not loop_threads() - before)
    half = scan(endpoint.url, filled)
    half.read_next_batch()
    assert loop_threads() - before
    del half
    await until(lambda: not loop_threads() - before)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"columns": ["body"]}, "no column 'body'"),
        ({"start": datetime(2026, 11, 21)}, "no time zone"),  # noqa: DTZ001
        ({"partitions": ["1"]}, "assign"),
        ({"start": {"nobody:9": 1}}, "nobody:9"),
        ({"options": {"colour": "red"}}, "Unknown option 'colour'"),
        ({"options": {"maxOffsetsPerTrigger": "5"}}, "maxOffsetsPerTrigger is for streams"),
        ({"options": {"group": "g", "commitOffsets": "true"}}, "commitOffsets is for streams"),
        ({"start": {}, "options": {"startingTimestamp": "0"}}, "Give one of startingOffsets"),
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


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """The directory of a node that was stopped, and the rows that it served."""
    directory = tmp_path_factory.mktemp("kept") / "node"
    with embedded_node(directory, segment_bytes=SEGMENT_BYTES) as node:
        node.create_topic(TOPIC, 4)
        fill(node.rocketmq_url, TOPIC)
        return directory, in_order(scan(node.rocketmq_url, TOPIC, columns=COLUMNS))


def in_order(reader: pa.RecordBatchReader) -> Rows:
    """The rows by their places; each partition's came in order."""
    rows = [dict(row) for row in reader.read_all().to_pylist()]
    for partition in {row["partition"] for row in rows}:
        offsets = [row["offset"] for row in rows if row["partition"] == partition]
        assert offsets == sorted(offsets)
    return sorted(rows, key=place)


def test_files_have_the_rows_of_the_broker(kept: tuple[Path, Rows]) -> None:
    directory, rows = kept
    assert len(list((directory / "commitlog").iterdir())) > 2
    assert in_order(scan(f"file:{directory}", TOPIC, columns=COLUMNS)) == rows


def test_files_in_small_batches_have_the_same_rows(
    kept: tuple[Path, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All chunks are read into one buffer: none may change the rows of an earlier one."""
    monkeypatch.setattr("coherer.arrow.FILE_BATCH", BatchLimits(5_000, 40))
    monkeypatch.setattr("coherer.spark.files.SECTION_BYTES", SEGMENT_BYTES // 2)
    batches = list(scan(f"file:{kept[0]}", TOPIC, columns=COLUMNS))
    assert max(batch.num_rows for batch in batches) <= 40
    table = pa.Table.from_batches(batches)
    assert sorted((dict(row) for row in table.to_pylist()), key=place) == kept[1]


def test_offsets_partitions_times_and_tags_of_files(kept: tuple[Path, Rows]) -> None:
    directory, rows = kept
    url = f"file:{directory}"
    some = scan(
        url,
        TOPIC,
        columns=COLUMNS,
        partitions=[1, "broker-a:2"],
        start={"broker-a:1": 5},
        end={"broker-a:1": 9, "broker-a:2": 7},
    )
    assert in_order(some) == [
        row
        for row in rows
        if (row["partition"] == 1 and 5 <= row["offset"] < 9)
        or (row["partition"] == 2 and row["offset"] < 7)
    ]
    middle = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]
    later = scan(url, TOPIC, columns=COLUMNS, start=middle)
    assert in_order(later) == [row for row in rows if row["storeTimestamp"] >= middle]
    odd = scan(url, TOPIC, columns=COLUMNS, options={"tag": "odd"})
    assert in_order(odd) == [row for row in rows if row["tag"] == "odd"]
    (nothing,) = scan(url, TOPIC, start="latest")
    assert nothing.num_rows == 0


def test_a_scan_of_files_fixes_the_end(tmp_path: Path) -> None:
    with embedded_node(tmp_path) as node:
        send(node.url, "growing", range(COUNT))
        url = f"file:{tmp_path}"
        settled(url, COUNT)
        reader = scan(url, "growing", columns=["value"])
        send(node.url, "growing", range(COUNT, COUNT + 50))
        settled(url, COUNT + 50)
        assert reader.read_all().num_rows == COUNT


def settled(url: str, count: int) -> None:
    """A running node writes the entries of its queues after the messages."""
    wait_until(lambda: scan(url, "growing", columns=["offset"]).read_all().num_rows == count)


def test_damaged_and_deleted_parts_of_files(kept: tuple[Path, Rows], tmp_path: Path) -> None:
    store = Path(copy_tree(kept[0], tmp_path / "store"))
    url, rows = f"file:{store}", kept[1]
    at = int(str(rows[17]["id"])[-16:], 16)
    file = store / "commitlog" / f"{at - at % SEGMENT_BYTES:020d}"
    with file.open("r+b") as log:
        log.seek(at % SEGMENT_BYTES)
        log.write(b"\xff" * 8)
    with pytest.raises(BadRecordError, match=f"{TOPIC} broker-a:{rows[17]['partition']}"):
        scan(url, TOPIC).read_all()
    dropped = scan(url, TOPIC, columns=COLUMNS, options={"mode": "DROP"})
    assert in_order(dropped) == rows[:17] + rows[18:]
    reader = scan(url, TOPIC)
    (store / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="lost before they were read"):
        reader.read_all()


def test_a_torn_end_is_told_apart_from_the_rest(kept: tuple[Path, Rows], tmp_path: Path) -> None:
    """The last file of the log lacks its last bytes, as after a copy of a store in use."""
    store = Path(copy_tree(kept[0], tmp_path / "store"))
    last = max(kept[1], key=lambda row: int(str(row["id"])[-16:], 16))
    at = int(str(last["id"])[-16:], 16)
    os.truncate(store / "commitlog" / f"{at - at % SEGMENT_BYTES:020d}", at % SEGMENT_BYTES + 100)
    with pytest.raises(BadRecordError):
        scan(f"file:{store}", TOPIC).read_all()
    kept_rows = scan(f"file:{store}", TOPIC, columns=COLUMNS, options={"mode": "DROP"})
    assert in_order(kept_rows) == [row for row in kept[1] if row != last]


@pytest.mark.parametrize(
    ("path", "given", "error"),
    [
        ("file:store", {}, "not a path of this machine"),
        ("file:/no/such/place", {}, "no store in /no/such/place"),
        (None, {"topic": "missing"}, "no such topic"),
        (None, {"partitions": [9]}, "partition 9, which does not exist"),
        (None, {"columns": ["body"]}, "no column 'body'"),
        (None, {"options": {"group": "g"}}, "'group' has no effect on files"),
    ],
)
def test_a_wrong_argument_about_files_is_explained(
    kept: tuple[Path, Rows], path: str | None, given: dict[str, Any], error: str
) -> None:
    with pytest.raises(CohererError, match=error):
        scan(path or f"file:{kept[0]}", **{"topic": TOPIC, **given})
