"""`coherer messages`, `brokers`, `topics alter`, and the positions of `consume` and `produce`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

import coherer.blocking
from coherer.cli.main import app
from coherer.message import Message
from coherer.testing import EmbeddedNode
from tests.cli.operating import Run, made_dead, operate


@pytest.fixture
def topic() -> str:
    return f"T{uuid.uuid4().hex[:10]}"


@pytest.fixture
def rocket(coherer_rocketmq_url: str, topic: str) -> Run:
    """The command over RocketMQ; the topic has two queues, with three and two messages."""
    with coherer.blocking.rocketmq.connect(coherer_rocketmq_url) as client:
        client.admin().topics.create(topic, 2, wait_ms=30_000)
        first, second = client.partitions(topic)
        with client.producer() as producer:
            for queue, bodies in ((first, b"abc"), (second, b"de")):
                for body in bodies:
                    message = Message(topic, bytes([body]), tag="UA", keys=(f"k{body:c}",))
                    producer.send(message, queue=queue)
    return Run(coherer_rocketmq_url)


@pytest.fixture
def tube(coherer_url: str) -> Run:
    """The command over TubeMQ, on the same node."""
    return Run(coherer_url)


# -- messages


def test_messages_are_searched_and_shown(rocket: Run, topic: str) -> None:
    found = rocket.json("messages", "search", topic)
    assert ([one["body"] for one in found["messages"]], found["complete"]) == (list("abcde"), True)
    [message] = rocket.json("messages", "search", topic, "--key", "kb")["messages"]
    assert (message["partition"], message["offset"], message["tag"]) == (0, 1, "UA")
    for words in (
        (message["id"],),
        (message["unique_id"], "--topic", topic),
        ("--topic", topic, "--at", "0:1"),
        ("--topic", topic, "--at", "broker-a:0:1"),
    ):
        assert rocket.json("messages", "get", *words) == message
    assert "kb" in rocket("messages", "get", message["id"]).stdout
    [line] = rocket("messages", "search", topic, "--contains", "d").stdout.splitlines()[2:]
    assert line.split()[-1] == "d"


def test_messages_over_tubemq(rocket: Run, tube: Run, topic: str) -> None:
    found = tube.json("messages", "search", topic, "--partition", "1")
    assert [one["body"] for one in found["messages"]] == ["d", "e"]
    message = found["messages"][0]
    assert (message["stored"], message["attempt"]) == (None, None)
    again = tube.json("messages", "get", message["id"], "--topic", topic)
    assert again == message
    keyed = tube("messages", "search", topic, "--key", "kb")
    assert (keyed.exit_code, "rocketmq:// URL" in keyed.stderr) == (2, True)


def test_limits_of_a_search(rocket: Run, topic: str) -> None:
    some = rocket("messages", "search", topic, "--limit", "2")
    assert (some.exit_code, "there may be more" in some.stderr) == (0, True)
    assert rocket.json("messages", "search", topic, "--scan", "3")["scanned"] == 3
    later = rocket.json("messages", "search", topic, "--from", "1", "--partition", "1")
    assert [one["body"] for one in later["messages"]] == ["e"]
    now = datetime.now(UTC).isoformat()
    nothing = rocket("messages", "search", topic, "--from", now)
    assert (nothing.exit_code, "has no matching messages" in nothing.stderr) == (1, True)


def test_messages_that_do_not_exist(rocket: Run, topic: str) -> None:
    for words in (("0" * 32, "--topic", topic), ("--topic", topic, "--at", "0:99")):
        done = rocket("messages", "get", *words)
        assert (done.exit_code, "does not exist" in done.stderr) == (1, True)
    unknown = rocket("messages", "get", "0" * 32)
    assert (unknown.exit_code, "--topic" in unknown.stderr) == (1, True)
    neither = rocket("messages", "get")
    assert (neither.exit_code, "--at" in neither.stderr) == (2, True)
    wrong = rocket("messages", "get", "--topic", topic, "--at", "nowhere")
    assert (wrong.exit_code, "is not a position" in wrong.stderr) == (2, True)


def test_a_message_is_traced(coherer_rocketmq_url: str, topic: str) -> None:
    run, group = Run(coherer_rocketmq_url), f"g{topic}"
    made_dead(coherer_rocketmq_url, topic, group, b"a")
    [message] = run.json("messages", "search", topic)["messages"]
    traced = run.json("messages", "get", message["id"], "--trace")
    [progress] = [one for one in traced["groups"] if one["group"] == group]
    assert progress["state"] == "dead letter"
    text = run("messages", "get", message["id"], "--trace")
    assert "dead letter" in text.stdout
    assert "The message has no message trace." in text.stderr


# -- brokers


def test_brokers_over_both_protocols(coherer_node: EmbeddedNode) -> None:
    rocket, tube = Run(coherer_node.rocketmq_url), Run(coherer_node.url)
    [broker] = rocket.json("brokers")
    assert (broker["name"], broker["role"], broker["status"]) == ("broker-a", "master", "running")
    assert broker["disk_bytes"] >= broker["disk_free_bytes"] > 0  # both rounded
    assert "dispatchBehindBytes" in rocket("brokers", "broker-a").stdout
    [broker] = tube.json("brokers")
    assert (broker["role"], broker["status"]) == ("broker", "running")
    assert broker["in_per_s"] is not None, "a node reports its own rates"
    assert tube("brokers").stdout.splitlines()[2].split()[-1] != "?"
    words = ["brokers", "--json", "--admin", coherer_node.admin_url]
    lone = CliRunner().invoke(app, words, catch_exceptions=False)
    [same] = json.loads(lone.stdout)
    assert (same["address"], same["status"]) == (broker["address"], "running")
    missing = rocket("brokers", "broker-x")
    assert missing.exit_code == 1
    assert "`coherer brokers`, without a name, lists all brokers." in missing.stderr
    missing = rocket("brokers", "broker-x", "--json")
    assert (missing.exit_code, json.loads(missing.stdout)) == (1, [])
    assert missing.stderr.startswith("error: The broker broker-x does not exist. ")


# -- topics


def test_a_topic_is_altered(rocket: Run, tube: Run, topic: str) -> None:
    dry = rocket("topics", "alter", topic, "--partitions", "3", "--dry-run")
    assert dry.stdout == f"{topic}: now 2 partitions on broker-a\n"
    assert rocket.json("topics", "alter", topic, "--partitions", "3") == {
        "topic": topic, "done": "altered"
    }  # fmt: skip
    assert len(rocket.json("topics", "describe", topic)) == 3
    fewer = rocket("topics", "alter", topic, "--partitions", "2")
    assert (fewer.exit_code, "unreadable" in fewer.stderr) == (2, True)
    nothing = rocket("topics", "alter", topic)
    assert (nothing.exit_code, "There is nothing to change" in nothing.stderr) == (2, True)
    done = rocket("topics", "alter", topic, "--not-writable")
    assert done.stdout == f"{topic}: altered\n"
    refused = rocket("produce", topic, stdin=b"x\n")
    assert refused.exit_code == 1
    assert tube.json("topics", "alter", topic, "--partitions", "4")["done"] == "altered"
    missing = rocket("topics", "alter", f"{topic}_missing", "--partitions", "2")
    assert missing.exit_code == 1


# -- consume


@pytest.mark.parametrize("protocol", ["rocket", "tube"])
def test_positions_of_consume(
    rocket: Run, topic: str, protocol: str, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(protocol)
    broker = "broker-a" if protocol == "rocket" else "1"

    def bodies(count: int, *words: str) -> str:
        upto = ("--max", str(count), "--timeout", "10")
        return "".join(one["body"] for one in run.lines("consume", topic, *upto, *words))

    assert bodies(2, "--from", "1", "--partition", "0") == "bc"
    assert sorted(bodies(3, "--from", "1")) == ["b", "c", "e"]
    assert bodies(1, "--from", "9999", "--partition", "1", "--timeout", "0") == ""
    assert bodies(2, "--partition", f"{broker}:1") == "de"
    stored = rocket.json("messages", "search", topic)["messages"][2]["stored"]
    assert "c" in bodies(3, "--from", stored)
    assert bodies(9, "--from", "2100-01-01", "--timeout", "0") == ""
    for words, fault in (
        (("--from", "noon"), "not a position"),
        (("--partition", "x"), "not a partition"),
        (("--partition", "7"), "The partition 7 does not exist"),
        (("--partition", "0", "--group", "g"), "excludes --group"),
        (("--from", "3", "--group", "g"), "cannot start there"),
    ):
        done = run("consume", topic, *words)
        assert (done.exit_code, fault in done.stderr) == (2, True), done.stderr


def test_a_group_starts_at_a_time(rocket: Run, tube: Run, topic: str) -> None:
    words = ("--group", f"g{topic}", "--from", "2000-01-01", "--max", "5", "--timeout", "20")
    found = rocket.lines("consume", topic, *words)
    assert sorted(one["body"] for one in found) == list("abcde")
    refused = tube("consume", topic, *words)
    assert (refused.exit_code, "groups reset" in refused.stderr) == (2, True)


# -- produce


def test_messages_are_delayed(rocket: Run, topic: str) -> None:
    began = time.monotonic()
    done = rocket("produce", topic, "--delay", "1s", stdin=b"late\n")
    assert done.exit_code == 0
    found = rocket.lines("consume", topic, "--max", "6", "--timeout", "20")
    assert sorted(one["body"] for one in found) == [*"abcde", "late"]
    assert time.monotonic() - began >= 0.9
    wrong = rocket("produce", topic, "--delay", "soon", stdin=b"x\n")
    assert (wrong.exit_code, "not a duration" in wrong.stderr) == (2, True)
    for days in ("9" * 12, "9" * 5_000):
        long = rocket("produce", topic, "--delay", f"{days}d", stdin=b"x\n")
        assert (long.exit_code, "too long a duration" in long.stderr) == (2, True)


def test_messages_are_ordered(rocket: Run, tube: Run, topic: str) -> None:
    lines = b"".join(
        b'{"body": "%d", "tag": "%s", "keys": ["%s"]}\n' % (number, name, name)
        for number in range(5)
        for name in (b"x", b"y")
    )
    for by in ("key", "tag"):
        done = rocket("produce", topic, "--format", "json", "--order-by", by, stdin=lines)
        assert done.exit_code == 0, done.stderr
    found = [
        one
        for one in rocket.json("messages", "search", topic, "--limit", "99")["messages"]
        if one["tag"] in {"x", "y"}
    ]
    for name in ("x", "y"):
        mine = [one for one in found if one["tag"] == name]
        assert len({one["partition"] for one in mine}) == 1
        assert [one["body"] for one in mine] == list("01234") * 2
    missing = rocket("produce", topic, "--order-by", "colour", stdin=b"x\n")
    assert (missing.exit_code, "has no 'colour'" in missing.stderr) == (2, True)
    refused = tube("produce", topic, "--order-by", "key", stdin=b"x\n")
    assert (refused.exit_code, "RocketMQ only" in refused.stderr) == (2, True)


# -- completion


def completed(*words: str) -> list[str]:
    """What bash offers for the last word of a command line, as the script for it asks."""
    done = subprocess.run(
        [Path(sys.executable).with_name("coherer")],
        env={
            **os.environ,
            "_COHERER_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("coherer", *words)),
            "COMP_CWORD": str(len(words)),
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_names_are_completed(rocket: Run, tube: Run, topic: str) -> None:
    for run in (rocket, tube):
        assert completed("consume", "--url", run.url, topic[:6]) == [topic]
        assert completed("topics", "describe", "--url", run.url, topic[:6]) == [topic]
        assert completed("consume", "--url", run.url, "nothing") == []
    group = f"g{topic}"
    words = ("consume", topic, "--group", group, "--max", "5", "--timeout", "20")
    assert len(rocket.lines(*words)) == 5
    for run in (rocket, tube):
        assert completed("groups", "describe", "--url", run.url, group[:6]) == [group]


@pytest.mark.parametrize("url", ["rocketmq://127.0.0.1:1", "tubemq://127.0.0.1:1", "nonsense://"])
def test_a_completion_that_fails_is_silent(url: str) -> None:
    assert completed("consume", "--url", url, "T") == []


@pytest.mark.parametrize("protocol", ["rocketmq", "tubemq"])
def test_a_group_is_operated(rocket: Run, tube: Run, topic: str, protocol: str) -> None:
    operate(rocket if protocol == "rocketmq" else tube, topic, f"g{topic}")


def test_every_command_has_json() -> None:
    """Commands for programs; `--help` of each group lists it."""
    for words in (
        ("dead-letters", "list"), ("dead-letters", "show"), ("dead-letters", "replay"),
        ("dead-letters", "purge"), ("dead-letters", "export"), ("topics", "alter"),
        ("groups", "delete"), ("brokers",), ("messages", "get"), ("messages", "search"),
        ("consume",), ("produce",), ("top",), ("status",), ("topics", "list"),
        ("topics", "describe"), ("topics", "create"), ("topics", "delete"), ("groups", "list"),
        ("groups", "describe"), ("groups", "reset"), ("drain",), ("backup",), ("restore",),
        ("verify",), ("config", "check"), ("config", "show"), ("accounts", "list"),
    ):  # fmt: skip
        shown = CliRunner().invoke(app, [*words, "--help"], catch_exceptions=False)
        assert "--json" in shown.stdout
