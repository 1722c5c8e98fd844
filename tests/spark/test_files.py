"""Stores as tables: their rows are those of the broker that serves them."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coherer._record.layout import FIXED_BYTES
from coherer.blocking import connect
from coherer.errors import UnavailableError, UsageError
from coherer.message import Message
from coherer.spark.file_reader import file_reader
from coherer.spark.files import FileOptions, file_options, plan
from coherer.spark.planning import DataLossError, Wanted
from coherer.spark.reading import BadRecordError
from coherer.spark.source import names_files
from coherer.testing import embedded_node
from tests.copies import copy_tree
from tests.spark.stores import ALL, COUNT, PAID, broker_rows, file_rows, fill
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
SEGMENT_BYTES = 64 * 1024
QUEUES = 4
Rows = list[dict[str, object]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """The directory of a node that was stopped, and the rows that it served."""
    directory = tmp_path_factory.mktemp("stores") / "node"
    with embedded_node(directory, segment_bytes=SEGMENT_BYTES) as node:
        node.create_topic(TOPIC, QUEUES)
        fill(node.rocketmq_url, TOPIC)
        with connect(node.url) as client, client.producer(TOPIC) as producer:
            producer.send_many(
                Message(TOPIC, b"t%d" % n, tag=("Aa", "BB")[n % 2]) for n in range(50)
            ).check()
        rows = broker_rows(node.rocketmq_url, TOPIC, columns=ALL)
        wait_until(lambda: len(file_rows(directory, TOPIC)) == len(rows))
        assert file_rows(directory, TOPIC, columns=ALL) == rows, "while the node runs"
    assert len(rows) == COUNT + 50
    return directory, rows


@pytest.fixture
def store(stopped: tuple[Path, Rows], tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(copy_tree(stopped[0], tmp_path / "store"))


def test_the_rows_are_those_of_the_broker(stopped: tuple[Path, Rows]) -> None:
    directory, rows = stopped
    assert len(list((directory / "commitlog").iterdir())) > 2
    assert file_rows(directory, TOPIC, columns=ALL) == rows
    some = file_rows(f"file:{directory}", TOPIC, columns="value,partition,offset")
    assert some == [{name: row[name] for name in ("value", "partition", "offset")} for row in rows]


def test_transactions_are_rows_when_they_are_committed(stopped: tuple[Path, Rows]) -> None:
    bodies = Counter(bytes(row["value"])[:8] for row in stopped[1])  # type: ignore[call-overload]
    assert sum(bodies[b"paid %d" % number] for number in range(PAID)) == PAID
    assert not bodies[b"given up"]


@pytest.mark.parametrize(
    "options", [{}, {"minPartitions": 6}, {"maxRecordsPerPartition": 30}, {"maxPartitions": 1}]
)
def test_tasks_divide_the_rows(stopped: tuple[Path, Rows], options: dict[str, int]) -> None:
    directory, rows = stopped
    assert file_rows(directory, TOPIC, columns=ALL, **options) == rows
    shares = plan(parsed(directory, **options), Wanted())
    counts = [sum(section.rows for section in share) for share in shares]
    assert sum(counts) == len(rows)
    assert len(counts) >= options.get("minPartitions", 1)
    assert max(counts) <= options.get("maxRecordsPerPartition", len(rows))
    assert len(counts) <= options.get("maxPartitions", len(rows))


def test_a_large_store_is_divided_at_positions_of_the_log(
    stopped: tuple[Path, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, rows = stopped
    monkeypatch.setattr("coherer.spark.files.SECTION_BYTES", SEGMENT_BYTES // 2)
    monkeypatch.setattr("coherer.spark.files.PACK_BYTES", 1)
    shares = plan(parsed(directory), Wanted())
    assert len(shares) > 2
    assert file_rows(directory, TOPIC, columns=ALL) == rows
    each = [sum(section.rows for section in share) for share in shares]
    assert sum(each) == len(rows)


def parsed(directory: Path, **options: object) -> FileOptions:
    given = {name.lower(): str(value) for name, value in options.items()}
    return file_options({"path": str(directory), "topic": TOPIC, **given}, "rocketmq")


def test_offsets_and_times_limit_a_read(stopped: tuple[Path, Rows]) -> None:
    directory, rows = stopped
    start = json.dumps({TOPIC: {f"broker-a:{queue}": 5 + queue for queue in range(QUEUES)}})
    end = json.dumps({TOPIC: {f"broker-a:{queue}": 40 for queue in range(QUEUES)}})
    found = file_rows(directory, TOPIC, columns=ALL, startingOffsets=start, endingOffsets=end)
    assert found == [row for row in rows if 5 + int(str(row["partition"])) <= row["offset"] < 40]  # type: ignore[operator]
    middle = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]  # type: ignore[type-var]
    text = middle.isoformat()  # type: ignore[union-attr]
    later = file_rows(directory, TOPIC, columns=ALL, startingTimestamp=text)
    assert later == [row for row in rows if row["storeTimestamp"] >= middle]  # type: ignore[operator]
    earlier = file_rows(directory, TOPIC, columns=ALL, endingTimestamp=text)
    assert earlier == [row for row in rows if row["storeTimestamp"] < middle]  # type: ignore[operator]


def test_each_queue_has_its_own_time(stopped: tuple[Path, Rows]) -> None:
    directory, rows = stopped
    times = sorted(row["storeTimestamp"] for row in rows)  # type: ignore[type-var]
    early, late = times[len(rows) // 4], times[3 * len(rows) // 4]
    at = {0: early, 1: late}
    given = {
        f"broker-a:{queue}": round(time.timestamp() * 1000)  # type: ignore[union-attr]
        for queue, time in at.items()
    }
    found = file_rows(
        directory, TOPIC, columns=ALL, startingOffsetsByTimestamp=json.dumps({TOPIC: given})
    )
    assert found == [
        row
        for row in rows
        if row["partition"] not in at or row["storeTimestamp"] >= at[row["partition"]]  # type: ignore[index, operator]
    ]


def test_tags_limit_a_read(stopped: tuple[Path, Rows]) -> None:
    directory, rows = stopped
    found = file_rows(directory, TOPIC, columns="offset,partition", tag="odd,Aa")
    expected = [row for row in rows if row["tag"] in ("odd", "Aa")]
    assert [(row["partition"], row["offset"]) for row in found] == [
        (row["partition"], row["offset"]) for row in expected
    ]
    # "Aa" and "BB" have the same hash: their entries cannot be told apart.
    assert len(file_rows(directory, TOPIC, tag="Aa")) == 25
    assert file_rows(directory, TOPIC, tag="nobody") == []


def test_patterns_match_ordinary_topics(stopped: tuple[Path, Rows]) -> None:
    options = file_options({"path": str(stopped[0]), "topicspattern": ".*"}, "rocketmq")
    found = {
        one.topic for share in plan(options, Wanted()) for each in share for one in each.ranges
    }
    assert found == {TOPIC, f"{TOPIC}_noise"}


def test_several_stores_are_one_table(stopped: tuple[Path, Rows], store: Path) -> None:
    directory, rows = stopped
    with pytest.raises(UsageError, match="both belong to broker broker-a"):
        file_rows(f"{directory},{store}", TOPIC)
    (store / "config" / "identity.json").write_text('{"brokerName": "broker-b"}')
    assert len(file_rows(f"{directory},{store}", TOPIC)) == 2 * len(rows)
    parent = store.parent
    copy_tree(directory, parent / "other")
    (parent / "no store").mkdir()
    assert len(file_rows(f"file:{parent}/*", TOPIC)) == 2 * len(rows)


def test_a_store_without_the_name_of_its_broker_needs_it(store: Path) -> None:
    (store / "config" / "identity.json").unlink()
    (store / "config" / "topics.json").unlink()
    for name in ("identity.json.bak", "topics.json.bak"):
        (store / "config" / name).unlink(missing_ok=True)
    with pytest.raises(UsageError, match="option brokerName"):
        file_rows(store, TOPIC)
    assert {row["broker"] for row in file_rows(store, TOPIC, brokerName="old")} == {"old"}


def damage(store: Path, row: dict[str, object]) -> None:
    """Change a byte of the body of a row."""
    place = int(str(row["id"])[-16:], 16)
    file = store / "commitlog" / f"{place - place % SEGMENT_BYTES:020d}"
    with file.open("r+b") as log:
        log.seek(place % SEGMENT_BYTES + FIXED_BYTES - 3)
        before = log.read(1)
        log.seek(-1, os.SEEK_CUR)
        log.write(bytes([before[0] ^ 1]))


def test_a_damaged_record_is_treated_as_the_mode_says(
    stopped: tuple[Path, Rows], store: Path
) -> None:
    _, rows = stopped
    damage(store, rows[17])
    with pytest.raises(BadRecordError, match="checksum"):
        file_rows(store, TOPIC)
    dropped = file_rows(store, TOPIC, columns=ALL, mode="DROP")
    assert dropped == rows[:17] + rows[18:]
    found = file_rows(store, TOPIC, mode="PERMISSIVE")
    assert len(found) == len(rows)
    assert "checksum" in str(found[17]["error"])
    assert (found[17]["id"], found[17]["offset"]) == (rows[17]["id"], rows[17]["offset"])
    assert [row["error"] for row in found].count(None) == len(rows) - 1


def test_a_damaged_length_costs_one_record(stopped: tuple[Path, Rows], store: Path) -> None:
    _, rows = stopped
    place = int(str(rows[30]["id"])[-16:], 16)
    file = store / "commitlog" / f"{place - place % SEGMENT_BYTES:020d}"
    with file.open("r+b") as log:
        log.seek(place % SEGMENT_BYTES)
        log.write(b"\xff" * 8)
    assert file_rows(store, TOPIC, columns=ALL, mode="DROP") == rows[:30] + rows[31:]


def test_what_retention_deletes_after_planning_is_a_loss(
    stopped: tuple[Path, Rows], store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, rows = stopped
    reader = file_reader(parsed(store))
    parts = reader.partitions()
    forgiving = file_reader(parsed(store, failOnDataLoss="false"))
    first = store / "commitlog" / f"{0:020d}"
    first.unlink()
    with pytest.raises(DataLossError, match=TOPIC):
        list(map(list, map(reader.read, parts)))
    left = sum(batch.num_rows for part in parts for batch in forgiving.read(part))
    gone = sum(int(str(row["id"])[-16:], 16) < SEGMENT_BYTES for row in rows)
    assert gone
    assert left == len(rows) - gone
    assert "gone before they were read" in caplog.text
    assert len(file_rows(store, TOPIC)) == left, "a new plan begins where the log does"


def test_what_goes_with_a_topic_after_planning_is_a_loss(store: Path) -> None:
    """It is deleted and created again; `mode` is for records that are there."""
    reader = file_reader(parsed(store, mode="DROP"))
    parts = reader.partitions()
    shutil.rmtree(store / "consumequeue" / TOPIC)
    with pytest.raises(DataLossError, match=TOPIC):
        list(map(list, map(reader.read, parts)))


def test_a_worker_without_the_store_says_where_it_is_missing(store: Path) -> None:
    reader = file_reader(parsed(store))
    parts = reader.partitions()
    shutil.move(store, store.parent / "moved")
    with pytest.raises(UnavailableError, match=f"cannot read the store {store}.*Mount"):
        list(map(list, map(reader.read, parts)))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": "g"}, "'group' has no effect on files"),
        ({"colour": "red"}, "Unknown option 'colour'"),
        ({"path": "s3a://bucket/store"}, "not a path of this machine"),
        ({"path": "/no/such/place"}, "no store in /no/such/place"),
        ({"path": "/no/such/*"}, "No store matches"),
        ({"brokerName": "a:b"}, "not a broker's name"),
        ({"tags": "a"}, "Unknown option"),
        ({"topic": "missing"}, "no such topic"),
    ],
)
def test_mistakes_are_named(
    stopped: tuple[Path, Rows], options: dict[str, str], error: str
) -> None:
    given = {"path": str(stopped[0]), "topic": TOPIC, **options}
    with pytest.raises(Exception, match=error):
        plan(file_options(given, "rocketmq"), Wanted())


def test_tubemq_names_the_format_for_files(stopped: tuple[Path, Rows]) -> None:
    with pytest.raises(UsageError, match="Use format"):
        file_options({"path": str(stopped[0]), "topic": TOPIC}, "tubemq")
    assert not names_files({"path": "orders"})
    assert names_files({"paths": '["/a"]'})


def test_a_topic_without_messages_is_empty(stopped: tuple[Path, Rows], tmp_path: Path) -> None:
    with embedded_node(tmp_path / "node") as node:
        node.create_topic("empty", 2)
    assert file_rows(tmp_path / "node", "empty") == []


@pytest.mark.spark
def test_spark_reads_the_same_from_files_and_brokers(
    spark: SparkSession, stopped: tuple[Path, Rows], tmp_path: Path
) -> None:
    """And the query differs in its path only."""
    directory, rows = stopped
    copy = Path(copy_tree(directory, tmp_path / "copy"))
    with embedded_node(copy) as node:
        query = table(spark).option("url", node.rocketmq_url).option("topic", TOPIC)
        live = query.load()
        from_files = query.load(f"file:{directory}")
        assert comparable(live).exceptAll(comparable(from_files)).count() == 0
        assert comparable(from_files).exceptAll(comparable(live)).count() == 0
    assert from_files.count() == len(rows)


def table(spark: SparkSession):
    return spark.read.format("rocketmq").option("includeHeaders", "true")


def comparable(rows: DataFrame) -> DataFrame:
    from pyspark.sql.functions import col, map_entries, sort_array

    return rows.withColumn("properties", sort_array(map_entries(col("properties"))))


@pytest.mark.spark
def test_spark_prunes_what_its_filters_exclude(
    spark: SparkSession, stopped: tuple[Path, Rows], pushdown: None
) -> None:
    directory, rows = stopped

    def count(condition: str) -> int:
        reader = spark.read.format("rocketmq").option("topic", TOPIC).option("pushdown", "true")
        return reader.load([f"file:{directory}"]).where(condition).count()

    expected = [
        row
        for row in rows
        if row["partition"] in (1, 2) and 7 <= int(str(row["offset"])) < 30 and row["tag"] == "odd"
    ]
    condition = "partition in (1, 2) and offset >= 7 and offset < 30 and tag = 'odd'"
    assert count(condition) == len(expected)
    assert count("offset < 0") == count("broker = 'nobody'") == 0


def test_filters_limit_the_plan(stopped: tuple[Path, Rows]) -> None:
    directory, rows = stopped
    wanted = Wanted(partitions=frozenset({1, 2}), offsets=(7, 30))
    shares = plan(parsed(directory), wanted)
    assert sum(each.rows for share in shares for each in share) == 2 * (30 - 7)
    times = sorted(row["storeTimestamp"] for row in rows)  # type: ignore[type-var]
    since, until = (round(time.timestamp() * 1000) for time in (times[100], times[300]))  # type: ignore[union-attr]
    shares = plan(parsed(directory), Wanted(stored_ms=(since, until)))
    within = [time for time in times if times[100] <= time < times[300]]  # type: ignore[operator]
    assert sum(each.rows for share in shares for each in share) == len(within)


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name)
    spark.conf.set(name, "true")
    yield
    spark.conf.set(name, str(before))


@pytest.mark.spark
def test_files_are_no_stream(spark: SparkSession, stopped: tuple[Path, Rows]) -> None:
    stream = spark.readStream.format("rocketmq").option("topic", TOPIC).load(str(stopped[0]))
    query = stream.writeStream.format("noop").start()
    with pytest.raises(Exception, match="Files are a batch"):
        query.awaitTermination(60)
