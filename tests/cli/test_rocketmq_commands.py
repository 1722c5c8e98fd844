"""The commands against a node, over RocketMQ."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coherer.blocking.rocketmq import connect
from coherer.cli.main import app
from coherer.testing import embedded_node


@pytest.fixture
def name() -> str:
    return f"cli_{uuid.uuid4().hex}"


class Run:
    """`coherer … --url rocketmq://…`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, *words: str, stdin: str | bytes | None = None) -> Result:
        arguments = [*words, "--url", self._url]
        return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)

    def json(self, *words: str) -> Any:
        done = self(*words, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def run(coherer_rocketmq_url: str) -> Run:
    return Run(coherer_rocketmq_url)


def test_a_topic_is_created_listed_and_deleted(run: Run, name: str) -> None:
    done = run("topics", "create", name, "--partitions", "3")
    assert (done.exit_code, done.stdout) == (0, f"{name}: created\n")
    listed = {topic["name"]: topic for topic in run.json("topics", "list")}
    assert listed[name] == {
        "name": name, "partitions": 3, "brokers": {"broker-a": 3}, "writable": True,
        "readable": True,
    }  # fmt: skip
    shown = run("topics", "list").stdout
    assert [line.split()[1:] for line in shown.splitlines() if line.startswith(name)] == [
        ["3", "broker-a", "yes", "yes"]
    ]
    assert run.json("topics", "describe", name) == [
        {"broker": "broker-a", "partition": number, "min": 0, "max": 0} for number in range(3)
    ]
    again = run("topics", "create", name)
    assert again.exit_code == 1
    assert "The topic exists already." in again.stderr
    assert run("topics", "create", name, "--partitions", "3", "--if-missing").exit_code == 0
    elsewhere = run("topics", "create", f"{name}2", "--broker", "nobody")
    assert elsewhere.exit_code == 1
    assert run("topics", "delete", name, "--yes").exit_code == 0
    assert name not in {topic["name"] for topic in run.json("topics", "list")}


def produced(run: Run, name: str, count: int, *words: str) -> None:
    run("topics", "create", name, "--partitions", "1")
    lines = "".join(f"body {number}\n" for number in range(count))
    done = run("produce", name, *words, stdin=lines)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith(f"{count} message")


def test_messages_make_a_round_trip(run: Run, name: str) -> None:
    produced(run, name, 3, "--tag", "a", "--property", "origin=JFK")
    read = run("consume", name, "--timeout", "1", "--max", "3")
    assert read.stdout == "body 0\nbody 1\nbody 2\n"
    lines = run("consume", name, "--timeout", "1", "--max", "2", "--json").stdout.splitlines()
    first = json.loads(lines[0])
    assert (first["body"], first["tag"], first["properties"]) == (
        "body 0", "a", {"origin": "JFK"}
    )  # fmt: skip
    assert (first["broker"], first["partition"], first["offset"]) == ("broker-a", 0, 0)
    run("topics", "create", f"{name}2", "--partitions", "1")
    again = run("produce", f"{name}2", "--format", "json", stdin="\n".join(lines))
    assert again.exit_code == 0
    assert run("consume", f"{name}2", "-n", "2", "-t", "5").stdout == "body 0\nbody 1\n"


def test_keys_make_a_round_trip(run: Run, name: str) -> None:
    produced(run, name, 1, "--key", "k1", "--key", "k2")
    line = run("consume", name, "-t", "5", "-n", "1", "--json").stdout
    assert json.loads(line)["keys"] == ["k1", "k2"]
    assert run("produce", f"{name}2", "-f", "json", "--key", "other", stdin=line).exit_code == 0
    again = run("consume", f"{name}2", "-t", "5", "-n", "1", "--json").stdout
    assert json.loads(again)["keys"] == ["k1", "k2"]


def test_an_unknown_group_is_an_error(run: Run) -> None:
    done = run("groups", "describe", "nosuch")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "There is no group nosuch" in done.stderr
    gone = run("groups", "delete", "nosuch", "--yes")
    assert (gone.exit_code, "Create it" in gone.stderr) == (1, False)


def test_consuming_without_a_group_creates_none(run: Run, name: str) -> None:
    produced(run, name, 1)
    assert run("consume", name, "-n", "1", "-t", "5").stdout == "body 0\n"
    assert not [group for group in run.json("groups", "list") if name in group["topics"]]


def test_filters(run: Run, name: str) -> None:
    produced(run, name, 2, "--tag", "a", "-p", "n=1")
    produced(run, name, 1, "--tag", "b", "-p", "n=2")
    assert run("consume", name, "--filter", "b", "-n", "1", "-t", "5").stdout == "body 0\n"
    chosen = run("consume", name, "--sql", "n = 1", "-n", "2", "-t", "5")
    assert chosen.stdout == "body 0\nbody 1\n"
    wrong = run("consume", name, "--sql", "n >", "-n", "1", "-t", "5")
    assert (wrong.exit_code, "--sql is not valid" in wrong.stderr) == (2, True)
    both = run("consume", name, "--sql", "n = 1", "--filter", "a")
    assert both.exit_code == 2
    assert "not with --filter" in both.stderr


def test_a_group_continues_after_the_last_printed_message(run: Run, name: str) -> None:
    produced(run, name, 5)
    first = run("consume", name, "-g", name, "-n", "2", "-t", "10")
    assert first.stdout == "body 0\nbody 1\n"
    (state,) = [group for group in run.json("groups", "list") if group["group"] == name]
    assert (state["topics"], state["members"], state["lag"]) == ([name], [], 3)
    shown = run("groups", "describe", name)
    assert f"{name} has no members now." in shown.stderr
    words = shown.stdout.split()
    at = words.index("broker-a")
    assert words[at - 1 : at + 5] == [name, "broker-a", "0", "2", "5", "3"]
    assert "s" in words[at + 5 :], "the age of the oldest unread message"
    moved = run.json("groups", "reset", name, "--topic", name, "--to", "4")
    assert moved == {f"broker-a:{name}:0": 4}
    assert run("consume", name, "-g", name, "-n", "1", "-t", "10").stdout == "body 4\n"
    run("groups", "reset", name, "-t", name, "--to", "earliest")
    assert run("consume", name, "-g", name, "-n", "1", "-t", "10").stdout == "body 0\n"
    late = run("groups", "reset", name, "-t", name, "--to", "2001-01-01T00:00")
    assert late.exit_code == 0
    wrong = run("groups", "reset", name, "-t", name, "--to", "noon")
    assert wrong.exit_code == 2


def test_running_consumers_are_not_reset_to_an_offset(
    run: Run, name: str, coherer_rocketmq_url: str
) -> None:
    """They would not notice, and store their own again."""
    produced(run, name, 5)
    url = coherer_rocketmq_url
    with connect(url) as client, client.consumer(name, name, start="earliest") as consumer:
        assert consumer.receive(10_000)
        refused = run("groups", "reset", name, "-t", name, "--to", "1")
        assert refused.exit_code == 2
        assert "1 member" in refused.stderr
        assert "would overwrite" in refused.stderr
        assert run("groups", "reset", name, "-t", name, "--to", "1", "--dry-run").exit_code == 0
        assert run("groups", "reset", name, "-t", name, "--to", "earliest").exit_code == 0
    assert run("groups", "reset", name, "-t", name, "--to", "1").exit_code == 0


def test_a_missing_account_is_reported_once(tmp_path: Path) -> None:
    with embedded_node(tmp_path, rocketmq_access=True) as node:
        node.create_topic("guarded")
        done = Run(node.rocketmq_url)("consume", "guarded", "-n", "1", "-t", "5")
    assert done.exit_code == 1
    assert "Check user and password" in done.stderr
    assert done.stderr.count("AclException") == 1


def test_an_unreachable_server_is_an_error(name: str) -> None:
    done = Run("rocketmq://127.0.0.1:1")("topics", "list")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
