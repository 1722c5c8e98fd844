"""`coherer dead-letters` against a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import coherer.blocking
from coherer.errors import UnavailableError
from coherer.testing import embedded_cluster, embedded_node
from tests.cli.operating import Run, made_dead
from tests.waiting import wait_until


@pytest.fixture
def word() -> str:
    return uuid.uuid4().hex[:10]


@pytest.fixture
def topic(word: str) -> str:
    return f"T{word}"


@pytest.fixture
def group(word: str) -> str:
    return f"g{word}"


@pytest.fixture
def run(coherer_rocketmq_url: str, topic: str, group: str) -> Run:
    """The command, on a node with three dead letters of the group."""
    made_dead(coherer_rocketmq_url, topic, group, b"a", b"b", b"c")
    return Run(coherer_rocketmq_url)


def upto(count: int) -> tuple[str, ...]:
    """Options of `consume` for so many messages."""
    return "--max", str(count), "--timeout", "10"


def test_groups_and_their_dead_letters_are_listed(run: Run, topic: str, group: str) -> None:
    [queue] = [one for one in run.json("dead-letters", "list") if one["group"] == group]
    assert (queue["count"], queue["topic"]) == (3, f"%DLQ%{group}")
    shown = run("dead-letters", "list").stdout
    assert [line.split()[1] for line in shown.splitlines() if line.startswith(group)] == ["3"]
    found = run.json("dead-letters", "list", group)
    assert [one["body"] for one in found["letters"]] == ["c", "b", "a"]
    first = found["letters"][-1]
    assert (first["topic"], first["tag"], first["keys"]) == (topic, "UA", ["k0"])
    assert (first["attempts"], first["reason"]) == (1, "no account")
    table = run("dead-letters", "list", group, "--oldest-first").stdout.splitlines()
    assert [line.split()[-1] for line in table[2:]] == ["a", "b", "c"]
    assert "no account" in table[2]


def test_a_list_continues(run: Run, group: str) -> None:
    first = run.json("dead-letters", "list", group, "--limit", "2")
    assert [one["body"] for one in first["letters"]] == ["c", "b"]
    more = run("dead-letters", "list", group, "--limit", "2")
    assert f"--cursor '{first['cursor']}'" in more.stderr
    rest = run.json("dead-letters", "list", group, "--limit", "2", "--cursor", first["cursor"])
    assert ([one["body"] for one in rest["letters"]], rest["cursor"]) == (["a"], None)


def test_filters(run: Run, group: str, topic: str) -> None:
    def bodies(*words: str) -> list[str]:
        letters = run.json("dead-letters", "list", group, "--oldest-first", *words)["letters"]
        return [one["body"] for one in letters]

    assert bodies("--key", "k1") == ["b"]
    assert bodies("--topic", topic, "--tag", "UA", "--reason", "ACCOUNT") == ["a", "b", "c"]
    assert bodies("--tag", "DL") == []
    assert bodies("--since", "2100-01-01") == []
    assert bodies("--until", "2100-01-01") == ["a", "b", "c"]
    wrong = run("dead-letters", "list", group, "--since", "yesterday")
    assert (wrong.exit_code, "is not a time" in wrong.stderr) == (2, True)


def test_one_is_shown(run: Run, group: str, topic: str) -> None:
    letter = run.json("dead-letters", "list", group, "--key", "k0")["letters"][0]
    for name in (letter["id"], letter["unique_id"]):
        shown = run.json("dead-letters", "show", group, name)
        assert (shown["body"], shown["topic"], shown["replayed"]) == ("a", topic, False)
    text = run("dead-letters", "show", group, letter["id"]).stdout
    assert "no account" in text
    missing = run("dead-letters", "show", group, "nothing")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert f"{group} has no dead letter nothing" in missing.stderr


def test_one_is_shown_while_a_broker_is_down(
    run: Run, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was replayed is unknown then."""

    async def unanswered(*_: object) -> None:
        raise UnavailableError("No master of broker-b is registered.")

    letter = run.json("dead-letters", "list", group, "--key", "k0")["letters"][0]
    monkeypatch.setattr("coherer.cli.dead_letters.replayed", unanswered)
    assert run.json("dead-letters", "show", group, letter["id"])["replayed"] is None
    assert "unknown: a broker is down" in run("dead-letters", "show", group, letter["id"]).stdout


def test_a_replay_asks_and_sends_once(run: Run, group: str, topic: str) -> None:
    planned = run("dead-letters", "replay", group, "--dry-run")
    assert planned.stdout == "3 dead letters would be sent; 0 were sent before\n"
    refused = run("dead-letters", "replay", group, stdin="n\n")
    assert refused.exit_code == 1
    assert f"Send 3 dead letters of {group}" in refused.stderr
    done = run("dead-letters", "replay", group, stdin="y\n")
    assert done.stdout.endswith("3 dead letters sent; 0 were sent before\n")
    again = run.json("dead-letters", "replay", group, "--yes")
    assert again == {
        "dry_run": False, "to": None, "dead_letters": 3, "sent": 0, "already_sent": 3,
        "without_topic": 0,
    }  # fmt: skip
    bodies = [one["body"] for one in run.lines("consume", topic, *upto(6))]
    assert sorted(bodies) == ["a", "a", "b", "b", "c", "c"]
    letter = run.json("dead-letters", "list", group)["letters"][0]
    assert run.json("dead-letters", "show", group, letter["id"])["replayed"] is True


@pytest.mark.parametrize("command", ["replay", "export"])
def test_ids_that_are_wrong_or_in_small_letters(
    run: Run, group: str, tmp_path: Path, command: str
) -> None:
    first, *_ = run.json("dead-letters", "list", group)["letters"]
    given = {"replay": ["--yes"], "export": [str(tmp_path / "letters.jsonl")]}[command]
    wrong = run("dead-letters", command, group, *given, "--id", first["id"], "--id", "nosuch")
    assert wrong.exit_code == 1
    assert f"{group} has no dead letter nosuch." in wrong.stderr
    assert not (tmp_path / "letters.jsonl").exists()
    for one in (first["id"].lower(), first["unique_id"]):
        words = [group, *given, "--id", one, *(["--overwrite"] if command == "export" else [])]
        done = run.json("dead-letters", command, *words)
        assert done.get("written", done.get("sent", 0) + done.get("already_sent", 0)) == 1


def test_a_replay_into_a_missing_topic(run: Run, group: str) -> None:
    done = run("dead-letters", "replay", group, "--yes", "--to", f"{group}_missing")
    assert done.exit_code == 1
    assert "--to" in done.stderr
    system = run("dead-letters", "replay", group, "--yes", "--to", f"%DLQ%{group}")
    assert (system.exit_code, "system topic" in system.stderr) == (2, True)


def test_a_purge_asks(run: Run, group: str) -> None:
    dry = run("dead-letters", "purge", group, "--dry-run")
    assert dry.stdout == f"{group}: 3 dead letters would be deleted\n"
    refused = run("dead-letters", "purge", group, stdin="n\n")
    assert (refused.exit_code, "Delete 3 dead letters" in refused.stderr) == (1, True)
    assert run.json("dead-letters", "purge", group, "--yes") == {
        "group": group, "purged": 3, "dry_run": False
    }  # fmt: skip
    assert run.json("dead-letters", "list", group)["letters"] == []
    assert run.json("dead-letters", "purge", group, "--yes")["purged"] == 0


def test_exports(run: Run, group: str, topic: str, tmp_path: Path) -> None:
    lines, table = tmp_path / "letters.jsonl", tmp_path / "letters.parquet"
    done = run("dead-letters", "export", group, str(lines))
    assert done.stdout == f"{lines}: 3 dead letters\n"
    written = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert [one["body"] for one in written] == ["a", "b", "c"]
    assert run.json("dead-letters", "export", group, str(table), "--key", "k1")["written"] == 1
    [row] = pq.read_table(table).to_pylist()
    assert (row["body"], row["topic"], row["keys"]) == (b"b", topic, ["k1"])
    other = run("dead-letters", "export", group, str(tmp_path / "letters.csv"))
    assert (other.exit_code, "cannot be exported as .csv" in other.stderr) == (2, True)
    assert run("dead-letters", "export", group, f"{tmp_path}/a.csv", "-f", "json").exit_code == 0
    exists = run("dead-letters", "export", group, str(lines))
    assert (exists.exit_code, "exists" in exists.stderr) == (2, True)
    # What was exported can be sent.
    sent = run("produce", topic, str(lines), "--format", "json")
    assert (sent.exit_code, "3 messages" in sent.stderr) == (0, True)


@pytest.mark.parametrize(
    "words",
    [
        ("list", "nosuch"),
        ("export", "nosuch", "FILE"),
        ("replay", "nosuch"),
        ("purge", "nosuch", "--yes"),
    ],
)
def test_an_unknown_group_is_an_error(
    coherer_rocketmq_url: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "letters.jsonl"
    words = tuple(str(file) if word == "FILE" else word for word in words)
    done = Run(coherer_rocketmq_url)("dead-letters", *words)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: There is no group nosuch.")
    assert not file.exists()


def test_a_group_without_dead_letters_is_not_an_error(coherer_rocketmq_url: str) -> None:
    run = Run(coherer_rocketmq_url)
    with coherer.blocking.rocketmq.connect(coherer_rocketmq_url) as client:
        client.admin().groups.create("clean")
    done = run("dead-letters", "replay", "clean")
    assert (done.exit_code, done.stdout) == (0, "0 dead letters sent; 0 were sent before\n")


def test_an_export_does_not_replace_what_is_not_a_file(
    run: Run, group: str, tmp_path: Path
) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    done = run("dead-letters", "export", group, str(pipe), "--overwrite")
    assert (done.exit_code, pipe.is_fifo()) == (2, True)
    assert "is not a regular file" in done.stderr
    stdout = run("dead-letters", "export", group, "-")
    assert (stdout.exit_code, "not to stdout" in stdout.stderr) == (2, True)
    link.symlink_to(file)
    run("dead-letters", "export", group, str(link))
    assert (link.is_symlink(), file.is_file()) == (True, True)


def test_a_broker_with_several_queues_is_named_once(run: Run, group: str) -> None:
    topic = f"%DLQ%{group}x"
    assert run("topics", "create", topic, "--partitions", "3").exit_code == 0
    shown = run("dead-letters", "list").stdout
    [line] = [line for line in shown.splitlines() if line.startswith(f"{group}x")]
    assert line.count("broker-a") == 1


def test_tubemq_has_none(coherer_url: str) -> None:
    done = Run(coherer_url)("dead-letters", "list")
    assert done.exit_code == 2
    assert "TubeMQ has no dead letters" in done.stderr
    assert "rocketmq://host:port" in done.stderr


KILLED = """
import asyncio, os, signal, sys
from coherer._administration.access import opened
from coherer._administration.replay import replay

def show(progress):
    if progress.sent:
        os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with opened(sys.argv[1]) as cluster:
        await replay(cluster, sys.argv[2], show=show)

asyncio.run(main())
"""


def test_a_killed_replay_is_continued(tmp_path: Path, topic: str, group: str) -> None:
    bodies = [b"%02d" % number for number in range(40)]
    with embedded_node(tmp_path) as node:
        made_dead(node.rocketmq_url, topic, group, *bodies)
        child = subprocess.run(
            [sys.executable, "-c", KILLED, node.rocketmq_url, group],
            check=False, timeout=60, env=dict(os.environ),
        )  # fmt: skip
        assert child.returncode == -signal.SIGKILL
        run = Run(node.rocketmq_url)
        before = run.json("dead-letters", "replay", group, "--dry-run")["already_sent"]
        assert 0 < before < 40
        with node.down():  # the locks of the killed process would last for another minute
            for path in (tmp_path / "config").glob("queueLocks.json*"):
                path.unlink()
        done = run.json("dead-letters", "replay", group, "--yes")
        assert (done["sent"], done["already_sent"]) == (40 - before, before)
        found = [one["body"] for one in run.lines("consume", topic, *upto(80))]
        assert sorted(found) == sorted([body.decode() for body in bodies] * 2)


def test_a_broker_whose_master_is_down_is_named(topic: str, group: str, tmp_path: Path) -> None:
    with embedded_cluster(1, slaves=True, apart=True) as cluster:
        run, [broker], [slave] = Run(cluster.rocketmq_url), cluster.brokers, cluster.slaves
        made_dead(run.url, topic, group, b"a")
        slave.stop()
        slave.start()  # now it copies the topics, which it would do within 10 s
        core = slave.node.core
        assert core is not None
        wait_until(lambda: slave.call(lambda: f"%DLQ%{group}" in core.topics))
        with coherer.blocking.rocketmq.connect(run.url) as client:
            wait_until(lambda: len(client.admin().brokers.list()) == 2)
        letters, told = tmp_path / "letters.jsonl", "No master of broker-a is registered"
        commands = ["list"], ["list", group], ["export", group, str(letters)], ["replay", group]
        with broker.down():
            for command in commands:
                done = run("dead-letters", *command)
                assert (done.exit_code, told in done.stderr) == (1, True), command
        assert not letters.exists()
        wait_until(lambda: run("dead-letters", "list").exit_code == 0)
        for command in commands[1:3]:
            assert run("dead-letters", *command).exit_code == 0


def test_a_group_without_dead_letters_has_an_empty_list(
    coherer_rocketmq_url: str, topic: str, group: str
) -> None:
    with coherer.blocking.rocketmq.connect(coherer_rocketmq_url) as client:
        client.admin().topics.create(topic, 1)
        with client.consumer(group, topic):
            run = Run(coherer_rocketmq_url)
            done = run("dead-letters", "list", group)
            assert (done.exit_code, done.stdout) == (0, "")
            assert done.stderr.startswith(f"{group} has no matching dead letters.")
            assert run.json("dead-letters", "list", group)["letters"] == []
