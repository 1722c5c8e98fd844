"""`coherer produce`: totals, and the command against a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from typer.testing import CliRunner, Result

from coherer import SendReport
from coherer.cli.main import app
from coherer.cli.produce import Total, send_all
from coherer.errors import RefusedError
from coherer.message import Message
from coherer.testing import EmbeddedNode


class Sender:
    """Refuses messages whose body asks for it."""

    def send_many(self, messages: Iterable[Message]) -> SendReport:
        listed = list(messages)
        failed = [(m, RefusedError("No.", code=400)) for m in listed if m.body == b"bad"]
        return SendReport(len(listed) - len(failed), list(failed))


def test_totals_count_everything() -> None:
    batches = [[Message("t", b"one"), Message("t", b"bad")], [Message("t", b"three")]]
    total, shown = Total(), list[int]()
    send_all(Sender(), batches, total, lambda total: shown.append(total.sent))
    assert (total.sent, total.failed, total.body_bytes) == (2, 1, 8)
    assert total.error == "No. [code 400]"
    assert shown == [1, 2]
    total.seconds = 0.5
    assert total.text == ("2 messages, 8 bytes in 0.5 s: 4/s; 1 failed, the first: No. [code 400]")


def produce(node: EmbeddedNode, *words: str, stdin: bytes | None = None) -> Result:
    words = ("produce", *words, "--url", node.url)
    return CliRunner().invoke(app, list(words), input=stdin, catch_exceptions=False)


def consumed(node: EmbeddedNode, topic: str, count: int) -> list[dict[str, object]]:
    words = ["consume", topic, "--max", str(count), "--timeout", "10", "--json", "--url", node.url]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_of_stdin(coherer_node: EmbeddedNode, coherer_topic: str) -> None:
    words = ("--tag", "x", "--time", "2024-05-06T07:08", "--property", "a=1")
    done = produce(coherer_node, coherer_topic, *words, stdin=b"one\n\ntwo")
    assert done.exit_code == 0
    assert done.stderr.startswith("2 messages, 6 bytes in ")
    one, two = consumed(coherer_node, coherer_topic, 2)
    assert (one["body"], two["body"]) == ("one", "two")
    assert (one["tag"], one["time"], one["properties"]) == ("x", "2024-05-06T07:08:00", {"a": "1"})


def test_files(coherer_node: EmbeddedNode, coherer_topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\n" * 1_000)
    (tmp_path / "b").write_bytes(bytes(range(256)))
    files = (str(tmp_path / "a"), str(tmp_path / "b"))
    done = produce(coherer_node, coherer_topic, files[0], "--json")
    summary = json.loads(done.stdout)
    assert (summary["sent"], summary["failed"], summary["read_bytes"]) == (1_000, 0, 4_000)
    done = produce(coherer_node, coherer_topic, *files, "--format", "raw", "--json")
    assert json.loads(done.stdout)["sent"] == 2
    *_, raw = consumed(coherer_node, coherer_topic, 1_002)
    assert raw["base64"]


def test_a_topic_can_be_copied(coherer_node: EmbeddedNode, coherer_topic: str) -> None:
    lines = b'{"body": "1", "tag": "a"}\n{"base64": "/w==", "properties": {"k": "v"}}\n'
    produce(coherer_node, coherer_topic, "--format", "json", stdin=lines)
    first = consumed(coherer_node, coherer_topic, 2)
    copy = f"{coherer_topic[:50]}_copy"
    again = "".join(json.dumps(line) + "\n" for line in first).encode()
    assert produce(coherer_node, copy, "--format", "json", stdin=again).exit_code == 0
    second = consumed(coherer_node, copy, 2)
    keep = ("body", "base64", "tag", "properties")
    assert sorted(str([m.get(k) for k in keep]) for m in first) == sorted(
        str([m.get(k) for k in keep]) for m in second
    )


def test_a_bad_line_ends_the_run_with_its_totals(
    coherer_node: EmbeddedNode, coherer_topic: str, tmp_path: Path
) -> None:
    (tmp_path / "good").write_text('{"body": "1"}\n')
    (tmp_path / "bad").write_text('{"body": "2"}\n\nplain\n')
    files = (str(tmp_path / "good"), str(tmp_path / "bad"))
    done = produce(coherer_node, coherer_topic, *files, "--format", "json")
    assert done.exit_code == 2
    totals, error = done.stderr.splitlines()
    assert totals.startswith("1 message, ")
    assert error.startswith(f"error: {files[1]}, line 3 is not a JSON message")


def test_a_named_pipe_is_read(
    coherer_node: EmbeddedNode, coherer_topic: str, tmp_path: Path
) -> None:
    # A shell's `coherer produce orders <(zcat orders.gz)` names one.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"one\ntwo\n",))
    writer.start()
    done = produce(coherer_node, coherer_topic, str(pipe), "--json")
    writer.join()
    assert json.loads(done.stdout)["sent"] == 2


def test_unreadable_files_are_refused_before_anything_is_sent(
    coherer_node: EmbeddedNode, coherer_topic: str, tmp_path: Path
) -> None:
    (tmp_path / "good").write_text("1\n")
    for wrong in (tmp_path, tmp_path / "none", tmp_path / ("x" * 300)):
        done = produce(coherer_node, coherer_topic, str(tmp_path / "good"), str(wrong))
        assert done.exit_code == 2
        assert done.stderr == f"error: {wrong} is not a readable file.\n"


def test_a_line_is_sent_as_soon_as_it_arrives(
    coherer_node: EmbeddedNode, coherer_topic: str
) -> None:
    words = [sys.executable, "-m", "coherer", "produce", coherer_topic, "--json"]
    with subprocess.Popen(
        [*words, "--url", coherer_node.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number, line in enumerate((b"now\n", b"and now\n"), start=1):
            process.stdin.write(line)
            process.stdin.flush()
            assert len(consumed(coherer_node, coherer_topic, number)) == number
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130
        # The second may be stored and not counted: its receipt may still be on its way.
        assert json.loads(process.stdout.read())["sent"] in {1, 2}


def test_a_tag_that_no_filter_matches_is_refused() -> None:
    done = CliRunner().invoke(app, ["produce", "t", "--tag", "a||b"], input="x\n")
    assert (done.exit_code, "A tag cannot contain ||" in done.stderr) == (2, True)
