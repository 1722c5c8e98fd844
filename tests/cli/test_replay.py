"""`coherer replay`: what it sends again, what a second run does, and its errors."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from coherer import Message
from coherer.arrow import scan
from coherer.blocking import connect
from coherer.cli import copying, jobs
from coherer.cli.main import app
from coherer.errors import UnavailableError, UsageError
from coherer.testing import embedded_cluster, embedded_node
from tests.cli.test_audit import commit_half

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coherer.testing import EmbeddedNode

COUNT = 60


def replay(*words: object, answer: str = "") -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, words)], input=answer)


def of(node: EmbeddedNode, protocol: str) -> str:
    return node.url if protocol == "tubemq" else node.rocketmq_url


@pytest.fixture(params=["tubemq", "rocketmq"])
def protocol(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def filled(coherer_topic: str, coherer_node: EmbeddedNode) -> str:
    coherer_node.create_topic(f"{coherer_topic}-again", 3)
    with connect(coherer_node.url) as client, client.producer(coherer_topic) as producer:
        producer.send_many(
            Message(coherer_topic, b"%d" % n, tag="a", properties={"n": str(n)})
            for n in range(COUNT)
        ).check()
    return coherer_topic


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["t"], "Give either --to or --group"),
        (["t", "--to", "u", "--group", "g"], "Give either --to or --group"),
        (["t", "--to", "t"], "every message would be duplicated"),
        (["t", "--to", "u", "--transactional", "d"], "TubeMQ has no transactions"),
        (["t", "--group", "g"], "--group needs --from"),
        (["t", "--group", "g", "--from", "1", "--resume"], "--group excludes"),
        (["t", "--group", "g", "--from", "1", "--skip-lost"], "--group excludes"),
        (["--dead-letters", "g", "--to", "u"], "TubeMQ has no dead letters"),
    ],
)
def test_a_wrong_command_line_is_explained(words: list[str], error: str) -> None:
    result = replay(*words, "--url", "tubemq://127.0.0.1:1")
    assert result.exit_code == 2
    assert error in result.stderr


def test_a_dry_run_sends_nothing(coherer_node: EmbeddedNode, filled: str, protocol: str) -> None:
    url = of(coherer_node, protocol)
    shown = replay(filled, "--to", f"{filled}-again", "--url", url, "--dry-run", "--json")
    assert json.loads(shown.stdout)["rows"] == COUNT
    assert scan(url, f"{filled}-again").read_all().num_rows == 0


def test_a_group_goes_back(coherer_node: EmbeddedNode, filled: str, protocol: str) -> None:
    url, group = of(coherer_node, protocol), f"again-{protocol}-{filled}"
    commit_half(coherer_node, filled, group, protocol)
    words = [filled, "--group", group, "--url", url, "--from"]
    preview = replay(*words, 2, "--dry-run", "--json")
    found = json.loads(preview.stdout)
    assert found["messages"] == sum(one["committed"] - 2 for one in found["partitions"]) > 0
    assert replay(*words, 2, answer="n\n").exit_code == 1
    refused = replay(*words, 2, "--json")
    assert (refused.exit_code, refused.stdout.strip()) == (1, "")
    assert json.loads(replay(*words, 2, "--dry-run", "--json").stdout) == found
    done = replay(*words, 2, "--yes")
    assert done.exit_code == 0, done.output
    assert "will be delivered again" in done.stdout
    assert json.loads(replay(*words, 2, "--dry-run", "--json").stdout)["messages"] == 0
    forward = replay(*words, "2100-01-01T00:00:00Z", "--yes")
    assert "has not consumed any of these messages" in forward.stderr
    past = replay(*words, "2020-01-01T00:00:00Z", "--yes", "--json")
    assert json.loads(past.stdout)["messages"] == 2 * len(found["partitions"])


@pytest.mark.parametrize(
    ("failure", "words", "code", "hint"),
    [
        (UnavailableError("No connection."), (), 1, True),
        (KeyboardInterrupt(), (), 130, True),
        (UsageError("No such column."), (), 2, False),
        (UnavailableError("No connection."), ("--transactional", "d"), 1, False),
    ],
)
def test_a_run_that_ends_early_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    words: tuple[str, ...],
    code: int,
    hint: bool,
) -> None:
    """The same command sends all messages again."""
    pytest.importorskip("pyspark")

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(copying, "copy", fail)
    monkeypatch.setattr(jobs.Source, "preview", lambda _: [])
    ended = replay("t", "--to", "u", "--url", "rocketmq://127.0.0.1:1", *words)
    assert ended.exit_code == code
    assert ("Run it again with --resume" in ended.stderr) == hint


def test_a_run_is_not_resumed_while_a_broker_of_the_target_is_away(tmp_path: Path) -> None:
    """What it holds would be sent again."""
    pytest.importorskip("pyspark")
    with embedded_node(tmp_path / "node", segment_bytes=1 << 20) as node:
        node.create_topic("t", 1)
        with connect(node.url) as client, client.producer("t") as producer:
            producer.send(Message("t", b"x"))
    with embedded_cluster(2, apart=True) as cluster:
        cluster.create_topic("u")
        with connect(cluster.url) as client, client.producer("u") as producer:
            producer.send_many(Message("u", b"x") for _ in range(4)).check()
        cluster.brokers[1].kill()
        words = ["--store", tmp_path / "node", "--to", "u", "--url", cluster.url, "--resume"]
        refused = replay("t", *words)
    assert refused.exit_code == 1
    assert "server 127.0.0.1:" in refused.stderr
    assert "failOnDataLoss" not in refused.stderr
    assert "Some messages may be in" not in refused.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_messages_are_sent_once(coherer_node: EmbeddedNode, filled: str, protocol: str) -> None:
    url, target = of(coherer_node, protocol), f"{filled}-again"
    words = [filled, "--to", target, "--url", url, "--json"]
    some = replay(*words, "--until", 5)
    assert some.exit_code == 0, some.output
    first = json.loads(some.stdout)["rows"]
    assert 0 < first < COUNT
    assert json.loads(replay(*words, "--resume").stdout)["rows"] == COUNT - first
    assert json.loads(replay(*words, "--resume").stdout)["rows"] == 0
    columns = ["value", "tag", "properties"]
    rows = scan(url, target, columns=columns).read_all().to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(COUNT))
    for row in rows:
        properties = dict(row["properties"])
        assert (row["tag"], properties["n"]) == ("a", row["value"].decode())
        assert properties["spark.query"] == f"replay {filled}"


@pytest.mark.spark
def test_a_resumed_run_counts_what_it_skips(
    spark: SparkSession, coherer_node: EmbeddedNode, filled: str, tmp_path: Path
) -> None:
    """Adaptive plans drop what turns out to be empty, with its counts."""
    directory = tmp_path / "node"
    with embedded_node(directory, segment_bytes=1 << 20) as node:
        node.create_topic("t", 1)
        with connect(node.url) as client, client.producer("t") as producer:
            producer.send(Message("t", b"damaged"))
    (log,) = (directory / "commitlog").iterdir()
    log.write_bytes(log.read_bytes().replace(b"damaged", b"DAMAGED"))
    words = ["t", "--store", directory, "--to", filled, "--url", coherer_node.url]
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    try:
        done = replay(*words, "--resume", "--skip-lost", "--json")
        assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 0
    assert found["skipped"] == [{"broker": "broker-a", "partition": 0, "offsets": 1}]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_run_that_failed_before_it_sent_is_resumed(
    coherer_node: EmbeddedNode, filled: str, protocol: str
) -> None:
    """The first message makes the topic, so such a run has left none."""
    url, target = of(coherer_node, protocol), f"{filled}-new-{protocol}"
    words = [filled, "--to", target, "--url", url, "--json", "--resume"]
    first = replay(*words)
    assert first.exit_code == 0, first.output
    assert "does not exist yet" in first.stderr
    assert json.loads(first.stdout)["rows"] == COUNT
    second = replay(*words)
    assert second.stderr == ""
    assert json.loads(second.stdout)["rows"] == 0


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_messages_keep_all_their_keys(
    coherer_node: EmbeddedNode, coherer_topic: str, tmp_path: Path
) -> None:
    url, target = coherer_node.rocketmq_url, f"{coherer_topic}-again"
    sent = [("order-1", "customer-2"), ("order-3",), ()]
    with connect(url) as client, client.producer() as producer:
        producer.send_many(Message(coherer_topic, b"x", keys=keys) for keys in sent).check()
    for words in [], ["--transactional", tmp_path / "decisions"]:
        coherer_node.create_topic(f"{target}{len(words)}", 1)
        done = replay(coherer_topic, "--to", f"{target}{len(words)}", "--url", url, *words)
        assert done.exit_code == 0, done.output
        found = scan(url, f"{target}{len(words)}", columns=["key"]).read_all()
        wanted = {"order-1 customer-2", "order-3", None}
        assert set(found.column("key").to_pylist()) == wanted


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("source", ["topic", "files"])
def test_keys_become_a_property_of_tubemq(
    coherer_node: EmbeddedNode, coherer_topic: str, tmp_path: Path, source: str
) -> None:
    target = f"{coherer_topic}-again"
    coherer_node.create_topic(target, 1)
    sent = [(b"1", ("order-1", "customer-2")), (b"2", ("order-3",)), (b"3", ())]
    messages = [
        Message(coherer_topic, body, keys=keys, properties={"a": "b"}) for body, keys in sent
    ]
    words: list[object] = [coherer_topic, "--to", target, "--url", coherer_node.url]
    other = embedded_node(directory=tmp_path) if source == "files" else nullcontext(coherer_node)
    with other as node, connect(node.rocketmq_url) as client, client.producer() as producer:
        producer.send_many(messages).check()
    if source == "files":
        words += ["--store", tmp_path]
    done = replay(*words)
    assert done.exit_code == 0, done.output
    rows = scan(coherer_node.url, target, columns=["value", "properties"]).read_all().to_pylist()
    found = {row["value"]: dict(row["properties"]) for row in rows}
    assert {body: one.get("spark.keys") for body, one in found.items()} == {
        body: " ".join(keys) or None for body, keys in sent
    }
    assert {one["a"] for one in found.values()} == {"b"}


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_all_or_nothing(coherer_node: EmbeddedNode, filled: str, tmp_path: Path) -> None:
    url, target = coherer_node.rocketmq_url, f"{filled}-again"
    done = replay(filled, "--to", target, "--url", url, "--transactional", tmp_path / "decisions")
    assert done.exit_code == 0, done.output
    assert f"{COUNT} messages to {target}" in done.stdout
    rows = scan(url, target, columns=["value"]).read_all().to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(COUNT))
