"""Helpers of the tests of the commands for operators."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from typer.testing import CliRunner, Result

import coherer.blocking
from coherer.blocking.rocketmq import Client
from coherer.cli.main import app
from coherer.message import Message

LISTED_S: Final = 60
"""Java's TubeMQ broker lists a group a moment after its last member has left."""


class Run:
    """`coherer … --url …`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *words: str, stdin: str | bytes | None = None) -> Result:
        arguments = [*words, "--url", self.url]
        return CliRunner().invoke(app, arguments, input=stdin, catch_exceptions=False)

    def json(self, *words: str) -> Any:
        done = self(*words, "--json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    def lines(self, *words: str) -> list[Any]:
        done = self(*words, "--json")
        assert done.exit_code == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


class RunApart(Run):
    """The same in a process of its own, for tests that run at the same time."""

    def __call__(self, *words: str, stdin: str | bytes | None = None) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "coherer", *words, "--url", self.url],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            check=False,
            capture_output=True,
            timeout=120,
        )
        return Result(
            CliRunner(),
            stdout_bytes=done.stdout,
            stderr_bytes=done.stderr,
            output_bytes=done.stdout,
            return_value=None,
            exit_code=done.returncode,
            exception=None,
        )


def made_dead(url: str, topic: str, group: str, *bodies: bytes, reason: str = "no account") -> None:
    """Have a group give up these messages of a new topic with one queue."""
    with coherer.blocking.rocketmq.connect(url) as client:
        client.admin().topics.create(topic, 1, wait_ms=30_000)
        with client.producer() as producer:
            for number, body in enumerate(bodies):
                producer.send(Message(topic, body, tag="UA", keys=(f"k{number}",)))
        give_up(client, topic, group, len(bodies), reason)


def give_up(client: Client, topic: str, group: str, count: int, reason: str) -> None:
    """Have a group give up its next messages of a topic."""
    with client.consumer(group, topic, start="earliest") as consumer:
        while count:
            batch = consumer.receive(timeout_ms=30_000)
            assert batch is not None
            count -= len(batch)
            batch.dead_letter(reason=reason)


def operate(
    run: Run, topic: str, group: str, *access: str, changes: Sequence[str] = (), count: int = 2
) -> None:
    """What every cluster must let an operator do with a topic of two messages or more.

    Args:
        run: the commands.
        topic: the topic.
        group: a group that does not exist yet.
        access: options for administration.
        changes: options for changes, besides those.
        count: how many messages are consumed; with Java's TubeMQ all of them, since it knows no
            group that has acknowledged nothing, and acknowledges whole packages.
    """
    assert topic in [one["name"] for one in run.json("topics", "list", *access)]
    ends = run.json("topics", "describe", topic, *access)
    assert {one["partition"] for one in ends} >= {0}
    words = ("consume", topic, "--group", group, "--max", str(count), "--timeout", "60")
    assert len(run.lines(*words)) == count
    deadline_s = time.monotonic() + LISTED_S
    while group not in [one["group"] for one in run.json("groups", "list", *access)]:
        assert time.monotonic() < deadline_s
    found = run.json("groups", "describe", group, *access)
    assert (found["group"], found["topics"]) == (group, [topic])
    assert [one for one in found["partitions"] if one["committed"] is not None]
    assert run.json("status", *access)["topics"] >= 1
    rates = run.json("top", "--once", "--interval", "0.2", *access)
    assert topic in [one["topic"] for one in rates["topics"]]
    assert group in [one["group"] for one in rates["groups"]]
    moved = run.json(
        "groups", "reset", group, "--topic", topic, "--to", "earliest", *access, *changes
    )
    assert moved
    assert len(run.lines(*words)) == count, "they are delivered again"
    done = run.json("groups", "delete", group, "--yes", *access, *changes)
    assert done == {"group": group, "done": "deleted"}
    missing = run("groups", "describe", group, "--json", *access)
    assert (missing.exit_code, missing.stdout) == (1, "")
