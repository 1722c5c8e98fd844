"""Commands that behave the same over TubeMQ and RocketMQ."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner, Result

import coherer
import coherer.blocking
from coherer.cli.main import app
from coherer.message import Message
from coherer.testing import EmbeddedNode

BOTH = pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])


def run(node: EmbeddedNode, protocol: str, *words: str) -> Result:
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    where = ["--url", url, *(["--admin", node.admin_url] if protocol == "tubemq" else [])]
    return CliRunner().invoke(app, [*words, *where], catch_exceptions=False)


def names(result: Result, key: str) -> list[str]:
    return [one[key] for one in json.loads(result.stdout)]


def group_names(node: EmbeddedNode) -> set[str]:
    """The groups of both protocols."""
    found: set[str] = set()
    for protocol in ("tubemq", "rocketmq"):
        found |= set(names(run(node, protocol, "groups", "list", "--json"), "group"))
    return found


@pytest.fixture
def group(coherer_topic: str) -> str:
    return f"g_{coherer_topic}"


def fill(node: EmbeddedNode, topic: str, count: int = 3) -> None:
    with coherer.blocking.connect(node.url) as client, client.producer(topic) as producer:
        producer.send_many(Message(topic, b"%d" % n) for n in range(count)).check()


def test_list_all_includes_system_topics(
    coherer_node: EmbeddedNode, coherer_topic: str, group: str
) -> None:
    fill(coherer_node, coherer_topic)
    with (
        coherer.blocking.connect(coherer_node.rocketmq_url) as client,
        client.consumer(group, coherer_topic, start="earliest") as consumer,
    ):
        for message in consumer:
            message.dead_letter()
            break
    listed = names(run(coherer_node, "rocketmq", "topics", "list", "--all", "--json"), "name")
    assert {f"%RETRY%{group}", f"%DLQ%{group}", coherer_topic} <= set(listed)
    shown = names(run(coherer_node, "rocketmq", "topics", "list", "--json"), "name")
    assert coherer_topic in shown
    assert not [name for name in shown if name.startswith("%")]


def test_the_lag_of_a_group_is_the_same_over_both_protocols(
    coherer_node: EmbeddedNode, coherer_topic: str, group: str
) -> None:
    fill(coherer_node, coherer_topic, 7)
    with (
        coherer.blocking.connect(coherer_node.rocketmq_url) as client,
        client.pull_consumer(group, coherer_topic, auto_commit=False) as consumer,
    ):
        [queue] = consumer.wait_assigned(10_000)
        consumer.seek(queue, 0)
        while consumer.poll(10_000) is None:
            pass
        consumer.commit()
    fill(coherer_node, coherer_topic, 2)
    lags = {
        protocol: json.loads(
            run(coherer_node, protocol, "groups", "describe", group, "--json").stdout
        )
        for protocol in ("tubemq", "rocketmq")
    }
    assert {protocol: (one["lag"], one["no_lag"]) for protocol, one in lags.items()} == {
        "tubemq": (2, None),
        "rocketmq": (2, None),
    }


def test_an_unknown_lag_is_explained(coherer_node: EmbeddedNode, group: str) -> None:
    with coherer.blocking.connect(coherer_node.rocketmq_url) as client:
        client.admin().groups.create(group)
    listed = run(coherer_node, "rocketmq", "groups", "list")
    [reason] = [line for line in listed.stderr.splitlines() if group in line]
    assert reason.endswith("is unknown: it has not committed an offset yet.")
    [line] = [line for line in listed.stdout.splitlines() if line.startswith(group)]
    assert line.split()[-1] == "?"


@BOTH
def test_consuming_a_missing_topic_does_not_create_it(
    coherer_node: EmbeddedNode, coherer_topic: str, protocol: str
) -> None:
    missing = f"{coherer_topic}_missing"
    result = run(coherer_node, protocol, "consume", missing, "-t", "0")
    assert result.exit_code == 1
    assert f"coherer topics create {missing}" in " ".join(result.stderr.split())
    listed = names(run(coherer_node, protocol, "topics", "list", "--json"), "name")
    assert missing not in listed
    created = run(coherer_node, protocol, "consume", missing, "-t", "0", "--create")
    assert created.exit_code == 0, created.stderr
    listed = names(run(coherer_node, protocol, "topics", "list", "--json"), "name")
    assert missing in listed


@BOTH
def test_consuming_without_a_group_creates_none(
    coherer_node: EmbeddedNode, coherer_topic: str, protocol: str
) -> None:
    fill(coherer_node, coherer_topic)
    before = group_names(coherer_node)
    result = run(coherer_node, protocol, "consume", coherer_topic, "-n", "2")
    assert result.stdout.split() == ["0", "1"]
    assert "2 messages" in result.stderr
    assert group_names(coherer_node) == before


def test_filters_work_without_a_group(coherer_node: EmbeddedNode, coherer_topic: str) -> None:
    with (
        coherer.blocking.connect(coherer_node.url) as client,
        client.producer(coherer_topic) as producer,
    ):
        for tag in ("UA", "AA", "UA"):
            producer.send(Message(coherer_topic, tag.encode(), tag=tag))
    result = run(
        coherer_node, "tubemq", "consume", coherer_topic, "--filter", "UA", "-t", "0", "-n", "2"
    )
    assert result.stdout.split() == ["UA", "UA"]


@BOTH
def test_a_group_is_deleted(
    coherer_node: EmbeddedNode, coherer_topic: str, group: str, protocol: str
) -> None:
    fill(coherer_node, coherer_topic)
    url = coherer_node.url if protocol == "tubemq" else coherer_node.rocketmq_url
    with (
        coherer.blocking.connect(url) as client,
        client.consumer(group, coherer_topic, start="earliest") as consumer,
    ):
        batch = consumer.receive(10_000)
        assert batch is not None
        consumer.commit(batch)
        refused = run(coherer_node, protocol, "groups", "delete", group, "--yes")
        assert refused.exit_code == 2
        assert "has 1 member" in refused.stderr
    assert group in group_names(coherer_node)
    deleted = run(coherer_node, protocol, "groups", "delete", group, "--yes")
    assert (deleted.exit_code, deleted.stdout) == (0, f"{group}: deleted\n")
    assert group not in group_names(coherer_node)
    again = run(coherer_node, protocol, "groups", "delete", group, "--yes")
    assert again.exit_code == 1
    assert f"There is no group {group}" in again.stderr
    assert "`coherer groups list` shows the existing ones." in again.stderr


@BOTH
def test_a_group_is_reset_to_a_time(
    coherer_node: EmbeddedNode, coherer_topic: str, group: str, protocol: str
) -> None:
    fill(coherer_node, coherer_topic)
    # RocketMQ's search finds the nearest message: of a time to come, the last one.
    later = 3 if protocol == "tubemq" else 2
    for to, offset in ((timedelta(hours=-1), 0), (timedelta(hours=1), later)):
        time = (datetime.now(UTC) + to).isoformat()
        result = run(
            coherer_node, protocol, "groups", "reset", group, "-t", coherer_topic, "--to", time,
            "--json",
        )  # fmt: skip
        assert list(json.loads(result.stdout).values()) == [offset], result.stderr


@BOTH
def test_a_malformed_position_is_refused(coherer_node: EmbeddedNode, protocol: str) -> None:
    result = run(coherer_node, protocol, "groups", "reset", "g", "-t", "t", "--to", "now")
    assert result.exit_code == 2
    assert "a time such as 2026-01-31T18:30" in " ".join(result.stderr.split())


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "coherer", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"coherer {coherer.__version__}\n"
