"""`coherer export`: what it would read, what it writes, and its errors."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from typer.testing import CliRunner, Result

from coherer._store import OsFiles
from coherer.arrow import scan
from coherer.blocking import connect
from coherer.blocking.rocketmq import connect as connect_rocketmq
from coherer.cli import copying, jobs
from coherer.cli.main import app
from coherer.message import Message
from coherer.spark.planning import DataLossError, Range
from coherer.testing import embedded_cluster, embedded_node
from tests.copies import copy_tree
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coherer.testing import EmbeddedNode

COUNT = 400
TOPIC = "exported"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped node."""
    directory = tmp_path_factory.mktemp("export") / "node"
    with embedded_node(directory, segment_bytes=1 << 20) as node:
        node.create_topic(TOPIC, 4)
        with connect(node.url) as client, client.producer(TOPIC) as producer:
            producer.send_many(Message(TOPIC, b"%d" % n, tag="a") for n in range(COUNT)).check()
    return directory


def export(*words: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, words)])


def damaged(store: Path, tmp_path: Path) -> tuple[Path, Path, bytes]:
    """A copy of a store with a damaged record; the file with it, and what that has to hold."""
    copy = Path(copy_tree(store, tmp_path / "store"))
    (log,) = sorted((copy / "commitlog").iterdir())[:1]
    sound = log.read_bytes()
    log.write_bytes(sound.replace(b"\x00\x00\x00\x03123", b"\x00\x00\x00\x03321", 1))
    return copy, log, sound


def test_a_dry_run_shows_what_would_be_read(store: Path) -> None:
    shown = export(TOPIC, "--store", store, "--dry-run", "--json", "-p", 1, "-p", 2)
    found = json.loads(shown.stdout)
    assert [part["partition"] for part in found["parts"]] == [1, 2]
    assert found["rows"] == sum(part["end"] - part["begin"] for part in found["parts"])
    assert all(part["bytes"] > part["rows"] * 91 for part in found["parts"])
    table = export(TOPIC, "--store", store, "--dry-run", "--from", 10, "--until", 20)
    assert table.exit_code == 0
    assert "broker-a" in table.stdout
    empty = export(TOPIC, "--store", store, "--dry-run", "--from", "2100-01-01T00:00:00Z")
    assert (empty.exit_code, empty.stdout) == (0, "")


def test_a_dry_run_asks_the_brokers(coherer_node: EmbeddedNode, coherer_topic: str) -> None:
    with connect(coherer_node.url) as client, client.producer(coherer_topic) as producer:
        producer.send_many(Message(coherer_topic, b"%d" % n) for n in range(10)).check()
    for url in (coherer_node.url, coherer_node.rocketmq_url):
        shown = export(coherer_topic, "--url", url, "--dry-run", "--json", "--from", 1)
        parts = json.loads(shown.stdout)["parts"]
        assert all(part["begin"] == 1 and part["bytes"] is None for part in parts)
        for command in ("export", "replay"):
            words = [command, coherer_topic, "--url", url, "--to", "x", "-p", "99"]
            wrong = CliRunner().invoke(app, words)
            assert wrong.exit_code == 2
            assert f"[topic {coherer_topic}]" in wrong.stderr
            assert "There is no partition 99." in wrong.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "Give either a topic or --dead-letters"),
        ([TOPIC, "--dead-letters", "g"], "Give either a topic or --dead-letters"),
        (["--dead-letters", "g", "--url", "tubemq://h:1"], "TubeMQ has no dead letters"),
        ([TOPIC, "--store", "STORE"], "--to is missing"),
        ([TOPIC, "--store", "STORE", "--to", "STORE"], "Name a new directory"),
        ([TOPIC, "--store", "STORE", "--to", ""], "--to is missing"),
        ([TOPIC, "--store", "STORE", "--from", "noon"], "neither an offset nor a time"),
        ([TOPIC, "--store", "STORE", "--columns", "body"], "no column 'body'"),
        ([TOPIC, "--store", "/no/such/store"], "no store in /no/such/store"),
        ([TOPIC, "--store", "STORE", "-p", "0", "-p", "99"], "There is no partition 99"),
    ],
)
def test_a_wrong_command_line_is_explained(store: Path, words: list[str], error: str) -> None:
    result = export(*(str(store) if word == "STORE" else word for word in words))
    assert result.exit_code == 2
    assert error in result.stderr


def test_hints_name_no_options_of_spark() -> None:
    pytest.importorskip("pyspark")
    lost = DataLossError.of([Range("t", "a", 0, 0, 3)])
    said = str(jobs.spark_error(f"x\ncoherer.spark.planning.DataLossError: {lost}\n at y"))
    assert said.endswith("Keep messages longer, or use --skip-lost to continue without them.")
    with embedded_cluster(2, apart=True) as cluster:
        cluster.create_topic(TOPIC)
        cluster.brokers[1].stop()
        failed = export(TOPIC, "--url", cluster.url, "--dry-run", "--skip-lost")
    assert failed.exit_code == 1
    assert failed.stderr.endswith(f"brokers 2 are down. [topic {TOPIC}] Start them.\n")


def test_a_topic_that_does_not_exist_is_a_failure(store: Path) -> None:
    result = export("missing", "--store", store, "--to", "x")
    assert result.exit_code == 1
    assert "no such topic" in result.stderr


def test_a_run_that_goes_on_is_left_alone(store: Path, tmp_path: Path) -> None:
    """Its directory looks like that of a run that was killed."""
    pytest.importorskip("pyspark")
    table, lock, files = tmp_path / "table", tmp_path / ".table.export", OsFiles()
    (table / "_temporary").mkdir(parents=True)
    handle = files.lock(lock)
    try:
        for words in ([], ["--overwrite"]):
            refused = export(TOPIC, "--store", store, "--to", table, *words)
            assert refused.exit_code == 1
            assert "Another export is writing to" in refused.stderr
    finally:
        files.unlock(lock, handle)
    assert [one.name for one in table.iterdir()] == ["_temporary"]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_second_run_is_refused_where_the_folders_are_new(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """The first one makes them, so that both can see the lock."""
    pytest.importorskip("pyspark")
    words = [TOPIC, "--store", store, "--to", f"{scheme}{tmp_path / 'new' / 'deep' / 'table'}"]
    during: list[Result] = []

    def second(*_: object, **__: object) -> None:
        monkeypatch.setattr(copying, "copy", lambda *_, **__: None)
        during.append(export(*words))

    monkeypatch.setattr(copying, "copy", second)
    assert export(*words).exit_code == 0
    assert [one.exit_code for one in during] == [1]
    assert "Another export is writing to" in during[0].stderr


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("wildcard", [False, True])
@pytest.mark.parametrize("above", [0, 1, 2])
def test_the_files_of_a_node_are_not_replaced(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    wildcard: bool,
    above: int,
) -> None:
    """Spark would delete them before it reads them."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr(copying, "copy", lambda *_, **__: pytest.fail("it would delete the store"))
    copy = Path(copy_tree(store, tmp_path / "nodes" / "deep" / "node"))
    words = [TOPIC, "--store", copy.parent / "n*" if wildcard else copy, "--overwrite"]
    refused = export(*words, "--to", f"{scheme}{[copy, *copy.parents][above]}")
    assert refused.exit_code == 2
    assert f"would delete the files of a node in {copy}" in refused.stderr
    assert "--overwrite" not in refused.stderr


def test_the_root_is_not_replaced(
    coherer_node: EmbeddedNode, coherer_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "copy", lambda *_, **__: pytest.fail("it would delete all"))
    refused = export(coherer_topic, "--url", coherer_node.url, "--to", "/")
    assert refused.exit_code == 2
    assert "cannot be replaced" in refused.stderr


@pytest.mark.parametrize("call", ["iterdir", "is_dir"])
@pytest.mark.parametrize(("reason", "code"), [(errno.EACCES, 2), (errno.EIO, 1)])
def test_a_directory_that_cannot_be_read_is_an_error(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, reason: int, code: int
) -> None:
    pytest.importorskip("pyspark")
    table = tmp_path / "table"
    table.mkdir()
    real = getattr(Path, call)

    def fail(path: Path) -> object:
        if path == table:
            raise OSError(reason, os.strerror(reason), str(path))
        return real(path)

    monkeypatch.setattr(Path, call, fail)
    refused = export(TOPIC, "--store", store, "--to", table)
    assert refused.exit_code == code
    assert f"error: {table} cannot be read: {os.strerror(reason)}." in refused.stderr


def test_other_nodes_and_backups_are_not_replaced_either(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    copy = copy_tree(store, tmp_path / "node")
    backup = tmp_path / "backup"
    made = CliRunner().invoke(app, ["backup", str(backup), "--directory", str(store)])
    assert made.exit_code == 0, made.stderr
    for to in (copy, backup):
        refused = export(TOPIC, "--store", store, "--to", to, "--overwrite")
        assert refused.exit_code == 2
        assert "would delete the files of a node" in refused.stderr


@pytest.mark.parametrize("name", ["_SUCCESS", "_spark_metadata", "2026.parquet", "day=1"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_the_table_of_another_job_is_not_replaced(
    store: Path, tmp_path: Path, name: str, scheme: str
) -> None:
    """Another job was killed while it added rows, so Spark's folder for its files is there."""
    pytest.importorskip("pyspark")
    table = tmp_path / "table"
    (table / "_temporary" / "0").mkdir(parents=True)
    for one in (name, "part-00000-1.parquet"):
        (table / one).write_bytes(b"rows")
    refused = export(TOPIC, "--store", store, "--to", f"{scheme}{table}")
    assert refused.exit_code == 2
    assert "exists" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert (table / name).read_bytes() == b"rows"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM does not exist there")
@pytest.mark.parametrize("command", [["export"], ["audit"], ["replay", "--to", "other"]])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_says_so(command: list[str], number: int) -> None:
    """While it waits for a name server that accepts the connection and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rocketmq://127.0.0.1:{silent.getsockname()[1]}"
        words = [sys.executable, "-m", "coherer", *command, TOPIC, "--url", url, "--dry-run"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(number)
                _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "Stopped.\n"


def test_a_job_is_interrupted_together_with_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler sends SIGTERM to all processes of a task, so nobody can stop Spark."""
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    class Gone:
        def stop(self) -> None:
            raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: Gone())
    with pytest.raises(KeyboardInterrupt), jobs.session("sc://127.0.0.1:1"):
        raise KeyboardInterrupt


@pytest.mark.spark
def test_the_rows_are_in_the_files(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    done = export(
        TOPIC, "--store", store, "--to", tmp_path / "all", "--json", "--columns", "value,offset"
    )
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == COUNT
    rows = spark.read.parquet(str(tmp_path / "all"))
    assert rows.columns == ["value", "offset"]
    assert {int(row.value) for row in rows.collect()} == set(range(COUNT))
    some = [TOPIC, "--store", store, "--to", tmp_path / "some", "--from", 3, "--until", 9]
    assert export(*some, "-p", 2).exit_code == 0
    rows = spark.read.parquet(str(tmp_path / "some"))
    assert "properties" in rows.columns
    assert sorted((row.partition, row.offset) for row in rows.collect()) == [
        (2, offset) for offset in range(3, 9)
    ]
    times = pq.read_schema(next((tmp_path / "some").glob("*.parquet"))).field("timestamp")
    assert times.type == pa.timestamp("us", "UTC")
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"  # the session's own
    again = export(*some, "--overwrite", "-p", 1)
    assert "6 messages" in again.stdout


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_run_that_failed_can_be_repeated(store: Path, tmp_path: Path, scheme: str) -> None:
    """As a scheduler does after exit code 1."""
    copy, log, sound = damaged(store, tmp_path)
    words = [TOPIC, "--store", copy, "--to", f"{scheme}{tmp_path / 'table'}"]
    for _ in range(2):
        failed = export(*words)
        assert failed.exit_code == 1, failed.stderr
        assert "A record is bad" in failed.stderr
        assert failed.stderr.endswith("Use --skip-lost to continue without it.\n")
    skipped = export(TOPIC, "--store", copy, "--to", tmp_path / "rest", "--skip-lost")
    assert skipped.exit_code == 0, skipped.stderr
    assert f"{COUNT - 1} messages" in skipped.stdout
    assert f"{TOPIC}: 1 offset was skipped: broker-a:" in skipped.stderr
    (tmp_path / "table" / "_temporary" / "0").mkdir(parents=True)  # and once it was killed
    log.write_bytes(sound)
    done = export(*words, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == COUNT
    assert export(*words).exit_code == 2, "a whole table is not written again"
    assert not (tmp_path / ".table.export").exists()


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_that_fails_prints_its_reason_only(store: Path, tmp_path: Path) -> None:
    """Spark logs it several times, with the stack traces of Java."""
    copy, _, _ = damaged(store, tmp_path)
    words = [TOPIC, "--store", str(copy), "--to", str(tmp_path / "table")]
    command = [sys.executable, "-m", "coherer", "export", *words]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("error: A record is bad")
    for word in ("ERROR", "Exception", "Traceback", "\tat "):
        assert word not in failed.stderr


@pytest.mark.spark
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
def test_what_retention_deletes_is_skipped_on_request(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """It deletes messages after the command has looked at the topic, before Spark reads them."""
    limits = {"segment_bytes": 16 << 10, "retention_bytes": 64 << 10, "retention_hours": None}
    with embedded_node(tmp_path / "node", **limits) as node:
        node.create_topic(TOPIC, 1)
        url = node.url if protocol == "tubemq" else node.rocketmq_url
        source = jobs.Source(topic=TOPIC, url=url)

        def send(count: int) -> None:
            with connect(node.url) as client, client.producer(TOPIC) as producer:
                producer.send_many(Message(TOPIC, b"x" * 1_000) for _ in range(count)).check()

        def delete_first(*given: Any, **options: Any) -> None:
            send(60)
            wait_until(lambda: source.preview()[0].begin > 0)
            copy(*given, **options)

        send(30)
        copy = copying.copy
        monkeypatch.setattr(copying, "copy", delete_first)
        words = [
            TOPIC,
            "--url",
            url,
            "--to",
            tmp_path / "table",
            "--skip-lost",
            "--columns",
            "value",
        ]
        done = json.loads(export(*words, "--json").stdout)
        (skipped,) = done["skipped"]
    assert skipped["partition"] == 0
    assert skipped["offsets"] > 0
    assert done["rows"] == spark.read.parquet(str(tmp_path / "table")).count() < 30
    assert done["rows"] + skipped["offsets"] == 30


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_directory_that_cannot_be_written_is_an_error(store: Path, tmp_path: Path) -> None:
    """Java throws what it throws for a full disk."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    failed = export(TOPIC, "--store", store, "--to", file / "table")
    assert failed.exit_code == 1
    assert "error: Spark failed: " in failed.stderr
    assert "Exception: " in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("during", ["a call", "connecting"])
def test_the_end_of_java_is_an_error(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    """As when the system kills it for want of memory."""
    from py4j.protocol import Py4JNetworkError
    from pyspark.sql.readwriter import DataFrameWriter

    def fail(*_: object) -> None:
        raise Py4JNetworkError("empty") if during == "a call" else ConnectionRefusedError(111, "no")

    monkeypatch.setattr(DataFrameWriter, "parquet", fail)
    failed = export(TOPIC, "--store", store, "--to", tmp_path / "table")
    assert failed.exit_code == 1
    assert "error: Java, in which Spark runs, has ended." in failed.stderr


@pytest.mark.spark
def test_dead_letters_are_exported_and_replayed(
    spark: SparkSession, coherer_node: EmbeddedNode, coherer_topic: str, tmp_path: Path
) -> None:
    url, group = coherer_node.rocketmq_url, f"g-{coherer_topic}"
    bodies = {b"letter %d" % number for number in range(20)}
    with connect_rocketmq(url) as client, client.producer() as producer:
        producer.send_many(Message(coherer_topic, body) for body in sorted(bodies)).check()
        with client.consumer(group, coherer_topic, start="earliest") as consumer:
            for _, message in zip(range(len(bodies)), consumer, strict=False):
                message.dead_letter(reason="no such account")
    words = ["--dead-letters", group, "--url", url, "--json"]
    shown = export(*words, "--dry-run")
    assert json.loads(shown.stdout)["rows"] == len(bodies)
    done = export(*words, "--to", tmp_path / "dead")
    assert done.exit_code == 0, done.stderr
    rows = spark.read.parquet(str(tmp_path / "dead")).collect()
    assert {bytes(row.value) for row in rows} == bodies
    again = f"{coherer_topic}-again"
    coherer_node.create_topic(again, 2)
    sent = CliRunner().invoke(app, ["replay", *words, "--to", again])
    assert sent.exit_code == 0, sent.output
    values = scan(url, again, columns=["value"]).read_all().column("value").to_pylist()
    assert sorted(values) == sorted(bodies)
