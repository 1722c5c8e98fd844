"""`coherer topics` against a node."""

from __future__ import annotations

import json
import re
import uuid

import pytest
from typer.testing import CliRunner, Result

import coherer
import coherer.blocking
from coherer.cli.main import app
from coherer.testing import EmbeddedNode


@pytest.fixture
def name() -> str:
    return f"cli_{uuid.uuid4().hex}"


def topics(node: EmbeddedNode, *words: str, stdin: str | None = None) -> Result:
    words = ("topics", *words, "--admin", node.admin_url)
    return CliRunner().invoke(app, list(words), input=stdin, catch_exceptions=False)


def listed(node: EmbeddedNode) -> dict[str, dict[str, object]]:
    return {topic["name"]: topic for topic in json.loads(topics(node, "list", "--json").stdout)}


def test_a_topic_is_created_listed_and_deleted(coherer_node: EmbeddedNode, name: str) -> None:
    done = topics(coherer_node, "create", name, "--partitions", "3")
    assert (done.exit_code, done.stdout) == (0, f"{name}: created\n")
    assert listed(coherer_node)[name] == {
        "name": name, "partitions": 3, "brokers": {"1": 3}, "writable": True, "readable": True
    }  # fmt: skip
    shown = topics(coherer_node, "list").stdout
    assert [line.split()[1:] for line in shown.splitlines() if line.startswith(name)] == [
        ["3", "1", "yes", "yes"]
    ]

    again = topics(coherer_node, "create", name)
    assert again.exit_code == 1
    assert re.match(
        r"error: .* exists on broker 1 .*, server 127.0.0.1:\d+, .*--if-missing", again.stderr
    )
    assert topics(coherer_node, "create", name, "--if-missing").exit_code == 0

    kept = topics(coherer_node, "delete", name, stdin="n\n")
    assert kept.exit_code == 1
    assert name in listed(coherer_node)
    assert topics(coherer_node, "delete", name, stdin="y\n").exit_code == 0
    assert name not in listed(coherer_node)
    gone = topics(coherer_node, "delete", name, "--yes")
    assert gone.exit_code == 1
    assert re.match(r"error: There is no such topic\. .*server .*topics list", gone.stderr)


def test_a_created_topic_can_be_used_at_once(coherer_node: EmbeddedNode, name: str) -> None:
    topics(coherer_node, "create", name, "--partitions", "2", "--json")
    with (
        coherer.blocking.connect(coherer_node.url) as client,
        client.producer(name) as producer,
    ):
        producer.send_many(coherer.Message(name, b"%d" % n) for n in range(10)).check()
    partitions = json.loads(topics(coherer_node, "describe", name, "--json").stdout)
    assert [(p["broker"], p["partition"], p["min"]) for p in partitions] == [
        ("1", 0, 0),
        ("1", 1, 0),
    ]
    assert sum(p["max"] for p in partitions) == 10
    shown = topics(coherer_node, "describe", name).stdout
    assert "max offset" in shown


def test_missing_names_are_errors(coherer_node: EmbeddedNode, name: str) -> None:
    done = topics(coherer_node, "describe", name)
    assert done.exit_code == 1
    assert name in done.stderr
    assert topics(coherer_node, "create", "7 bad").exit_code == 2
    assert topics(coherer_node, "create", name, "--broker", "9").exit_code == 1
    assert topics(coherer_node, "create", name, "--broker", "9" * 5_000).exit_code == 2


def test_changes_need_the_token(coherer_node: EmbeddedNode, name: str) -> None:
    for wrong in ("wrong", "é", "two\nlines"):
        done = topics(coherer_node, "create", name, "--token", wrong)
        assert done.exit_code == 1
        assert "Is the token right" in done.stderr
    assert name not in listed(coherer_node)
