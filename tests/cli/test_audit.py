"""`coherer audit`: what it counts, its exit codes, and its errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from coherer import Message
from coherer._store import Draft, Store, StoreOptions
from coherer.arrow import scan
from coherer.blocking import connect
from coherer.cli.audit.report import COLUMNS, Gap, PartitionCount, explained, measure
from coherer.cli.jobs import Part, Source
from coherer.cli.main import app
from coherer.spark.columns import spark_schema
from coherer.spark.planning import Range
from coherer.testing import embedded_node
from tests.copies import copy_tree
from tests.power import Unknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coherer.testing import EmbeddedNode

COUNT = 120


def audit(*words: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


@pytest.fixture
def filled(coherer_topic: str, coherer_node: EmbeddedNode) -> str:
    with connect(coherer_node.url) as client, client.producer(coherer_topic) as producer:
        producer.send_many(Message(coherer_topic, b"%03d" % n) for n in range(COUNT)).check()
    return coherer_topic


def land(url: str, topic: str, path: Path, *, lost: int = 0, doubled: int = 0) -> Path:
    """A Parquet table of the topic with faults."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = scan(url, topic, columns=["topic", "broker", "partition", "offset"]).read_all()
    path.mkdir()
    parquet.write_table(table.slice(lost), path / "a.parquet")
    parquet.write_table(table.slice(lost, doubled), path / "b.parquet")
    return path


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "Give either a topic or --dead-letters"),
        (["t", "--store", "/no", "--group", "g"], "a store directory has no groups"),
        (["t", "--from", "noon"], "neither an offset nor a time"),
    ],
)
def test_a_wrong_command_line_is_explained(words: list[str], error: str) -> None:
    result = audit(*words)
    assert result.exit_code == 2
    assert error in result.stderr


def test_a_dry_run_needs_no_session(coherer_node: EmbeddedNode, filled: str) -> None:
    for url in (coherer_node.url, coherer_node.rocketmq_url):
        shown = audit(filled, "--url", url, "--dry-run", "--json")
        assert json.loads(shown.stdout)["rows"] == COUNT


def test_a_topic_that_does_not_exist_is_not_whole(
    coherer_node: EmbeddedNode, tmp_path: Path
) -> None:
    """Damage and loss are counted, but a wrong name is no empty topic."""
    for url in (coherer_node.url, coherer_node.rocketmq_url):
        result = audit("no-such-topic", "--url", url)
        assert result.exit_code == 1
        assert "Check its name, or create it" in result.stderr
    with embedded_node(tmp_path / "node"):
        pass
    result = audit("no-such-topic", "--store", tmp_path / "node")
    assert result.exit_code == 1
    assert "no such topic" in result.stderr


def test_a_group_without_offsets_is_named(coherer_node: EmbeddedNode, filled: str) -> None:
    result = audit(filled, "--url", coherer_node.rocketmq_url, "--group", "nobody")
    assert result.exit_code == 2
    assert "Group nobody has no offsets" in result.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_a_whole_topic(
    coherer_node: EmbeddedNode, filled: str, tmp_path: Path, protocol: str
) -> None:
    url = coherer_node.url if protocol == "tubemq" else coherer_node.rocketmq_url
    group = f"half-{protocol}-{filled}"
    commit_half(coherer_node, filled, group, protocol)
    landed = land(url, filled, tmp_path / "landed")
    plot = tmp_path / "plot.png"
    done = audit(
        filled, "--url", url, "--landed", landed, "--group", group, "--json", "--plot", plot
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["whole"]
    for field, expected in (("stored", COUNT), ("landed", COUNT), ("bytes", 3 * COUNT)):
        assert sum(one[field] for one in report["partitions"]) == expected
        assert sum(one[field] for one in report["minutes"]) == expected
    assert sum(one["sent"] for one in report["minutes"]) == COUNT
    consumed = sum(one["consumed"][group] for one in report["partitions"])
    assert consumed == sum(one["stored"] // 2 for one in report["partitions"])
    assert (report["p99_ms"] is not None) == (protocol == "rocketmq")
    assert plot.read_bytes().startswith(b"\x89PNG")


def commit_half(node: EmbeddedNode, topic: str, group: str, protocol: str) -> None:
    """Set the offsets of a group to the middle of each partition."""
    from coherer.spark.connections import OPENERS
    from coherer.spark.options import read_options

    url = node.url if protocol == "tubemq" else node.rocketmq_url
    queue = OPENERS[protocol](read_options({"url": url, "topic": topic}, protocol).access)
    ends = {f"{broker}:{n}": end // 2 for (broker, n), (_, end) in queue.bounds(topic).items()}
    queue.commit(group, {topic: ends})
    queue.close()


@pytest.mark.spark
def test_faults_are_found(
    spark: SparkSession, coherer_node: EmbeddedNode, filled: str, tmp_path: Path
) -> None:
    url = coherer_node.rocketmq_url
    landed = land(url, filled, tmp_path / "landed", lost=7, doubled=3)
    again = spark.createDataFrame([("again",)], "value string").write.format("rocketmq")
    again.options(url=url, topic=filled).mode("append").save()
    done = audit(filled, "--url", url, "--landed", landed)
    assert done.exit_code == 3
    assert f"{COUNT + 1} messages, 0 missing, 0 sent twice, 8 not landed, 3 doubled" in done.stdout
    other = tmp_path / "other"
    spark.range(3).write.parquet(str(other))
    refused = audit(filled, "--url", url, "--landed", other)
    assert refused.exit_code == 2
    assert "has no column broker, partition, offset" in refused.stderr


@pytest.mark.spark
def test_gaps_repeats_latency_and_minutes(spark: SparkSession) -> None:
    """Of rows that a sound broker does not give."""
    born = datetime(2026, 11, 21, 5, 59, 59, tzinfo=UTC)
    stored = born + timedelta(seconds=2)
    origin = {f"spark.{name}": "0" for name in ("query", "batch", "part", "seq")}
    rows = [
        ("a", 0, offset, str(offset), born, born, stored, b"xy", origin if offset < 6 else {})
        for offset in (3, 4, 6, 9, 12)
    ]
    table = spark.createDataFrame(rows, spark_schema(COLUMNS).replace(" offset ", " `offset` "))
    parts = [Part("t", "a", 0, 2, 11, 9), Part("t", "a", 1, 0, 3, 3)]

    def power_cut(ranges: Sequence[Range]) -> list[Range]:
        assert Range("t", "a", 0, 7, 9) in ranges
        return [Range("t", "a", 0, 8, 9)]

    report = measure(
        table, "t", parts, {"g": {("a", 0): 5}}, None, counted=True, left_out=power_cut
    )
    found, empty = report.partitions
    assert (found.stored, found.missing, found.left_out) == (4, 4, 1)
    assert (found.consumed, found.landed) == ({"g": 2}, None)
    assert (empty.stored, empty.missing, empty.consumed) == (0, 3, {"g": 0})
    assert report.gaps == [
        Gap("a", 0, 2, 3), Gap("a", 0, 5, 6), Gap("a", 0, 7, 8), Gap("a", 0, 10, 11),
        Gap("a", 1, 0, 3),
    ]  # fmt: skip
    assert (report.repeated, report.p50_ms, report.p99_ms) == (1, 2000, 2000)
    assert [(one.sent, one.stored) for one in report.minutes] == [(4, 0), (0, 4)]
    assert report.minutes[0].minute == born.replace(second=0)
    assert not report.is_whole
    both = [(*row[:7], b"body %d" % row[2], origin) for row in rows]
    table = spark.createDataFrame(both, spark_schema(COLUMNS).replace(" offset ", " `offset` "))
    twice = measure(table, "t", parts, {}, None, counted=True, left_out=power_cut)
    assert twice.repeated == 0, "two writes, no copies"
    unknown = measure(table, "t", parts, {}, None, counted=False, left_out=power_cut)
    assert unknown.total("missing") is None
    assert unknown.gaps == []


@pytest.mark.parametrize("behind", [0, 1], ids=["no message behind", "a message behind"])
@pytest.mark.parametrize("durable", [0, 12])
@pytest.mark.parametrize("read", ["tubemq", "rocketmq", "files"])
def test_what_a_power_cut_left_out_is_not_missing(
    tmp_path: Path, read: str, durable: int, behind: int
) -> None:
    with embedded_node(tmp_path / "before", default_partitions=1) as node:
        node.create_topic("demo", 1)
    small = StoreOptions(segment_bytes=1 << 20, index_enabled=False)
    with Store.open(tmp_path / "before", small, files=Unknown(), now_ms=lambda: 1) as store:
        drafts = [Draft("demo", 0, b"%d" % number, b"") for number in range(durable)]
        store.append([*drafts, Draft("other", 0, b"x", b"")])
        copy_tree(store.directory, tmp_path / "cut")
    with embedded_node(tmp_path / "cut", default_partitions=1) as node:
        with connect(node.rocketmq_url) as client, client.producer("demo") as producer:
            last = producer.send(Message("demo", b"after")).offset
        assert last is not None
        node.stop()
        node.start()
        stores = (str(tmp_path / "cut"),) if read == "files" else ()
        url = node.url if read == "tubemq" else node.rocketmq_url
        source = Source(topic="demo", url=url, stores=stores, lenient=True)
        end = last + behind
        broker = "1" if read == "tubemq" else "broker-a"
        part = PartitionCount(
            broker=broker,
            partition=0,
            begin=0,
            end=end,
            stored=durable + behind,
            missing=last - durable,
        )
        gap = Gap(broker, 0, durable, last)
        [found], gaps = explained("demo", [part], [gap], source.left_out)
    assert (found.missing, found.left_out, gaps) == (0, last - durable, [])
