"""`coherer-node`: a node for tests in other languages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import coherer
import coherer.blocking
from coherer.errors import CohererError, UnavailableError
from coherer.testing.standalone import main

COMMAND = [sys.executable, "-m", "coherer.testing.standalone"]


def started(*options: str, stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *options], stdin=stdin, stdout=subprocess.PIPE, text=True)


def test_it_ends_with_its_input(tmp_path: Path) -> None:
    with started("--topic", "orders=3", "--directory", str(tmp_path)) as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        assert addresses["pid"] == process.pid
        assert addresses["admin"].startswith("http://127.0.0.1:")
        assert addresses["rocketmq"] == f"rocketmq://{addresses['name_server']}"
        for url in (addresses["tubemq"], addresses["rocketmq"]):
            with coherer.blocking.connect(url) as client, client.producer() as producer:
                producer.send(coherer.Message("orders", b"1"))
                assert len(client.offsets("orders")) == 3
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
        assert process.stdout.read() == "", "nothing but the addresses"
    assert (tmp_path / "commitlog").is_dir(), "it is stopped cleanly, and its files stay"


@pytest.mark.parametrize("topic", ["orders=x", "orders=0", "=3", "orders=-1"])
def test_a_wrong_topic_is_named(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([f"--topic={topic}"])
    assert f"{topic!r} is not NAME or NAME=PARTITIONS" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_it_ends_on_sigterm() -> None:
    with started(stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="processes keep the ids of their parents")
def test_it_ends_with_its_parent() -> None:
    """Although it does not read its input."""
    parent = (
        "import subprocess, sys;"
        "node = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE);"
        "print(node.stdout.readline().decode(), flush=True);"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", parent, *COMMAND]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        addresses = json.loads(process.stdout.readline())
        process.kill()
        process.wait()
        with coherer.blocking.connect(addresses["tubemq"], timeout_ms=500) as client:
            while True:  # until it is gone
                try:
                    client.offsets("orders")
                except UnavailableError:
                    break
                except CohererError:
                    continue


def test_a_mistake_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--topic", "no such topic", "--directory", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no such topic" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(("output", "why"), [(">&-", "Bad file"), (">/dev/full", "No space left")])
def test_an_output_that_cannot_be_written(output: str, why: str) -> None:
    script = f'exec "$@" {output} </dev/null'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    start = f"The addresses cannot be written to the standard output: {why}"
    assert done.stderr.startswith(start), done.stderr
    assert done.stderr.count("\n") == 1
