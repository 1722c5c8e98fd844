"""The command line as a whole: subcommands, help, errors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coherer import __version__
from coherer.cli.main import COMMANDS, app, load
from coherer.testing import EmbeddedNode

EXTRAS = {"pyarrow", "pyspark", "matplotlib", "starlette", "uvicorn", "jinja2"}


def test_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"coherer {__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert f"coherer {name}" in done.stdout
    assert load(name).help.partition("\n\n")[0] == COMMANDS[name].help
    listed = CliRunner().invoke(app, ["--help"])
    assert name in listed.stdout


def loaded_by(program: str) -> set[str]:
    """The modules that a program loads."""
    return set(
        subprocess.run(
            [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )


def test_the_list_of_commands_imports_none_of_them() -> None:
    lists = "from coherer.cli.main import app\ntry: app(['--help'])\nexcept SystemExit: pass"
    assert not {"coherer.cli.output", "msgspec", "asyncio"} & loaded_by(lists)


def test_modules_of_commands_need_no_extras() -> None:
    names = [f"coherer.cli.{one.module}" for one in COMMANDS.values()]
    assert not EXTRAS & loaded_by(f"for name in {names}: __import__(name)")


@pytest.mark.parametrize("other", ["tubemq", "rocketmq"])
def test_a_command_loads_the_client_of_one_protocol(coherer_node: EmbeddedNode, other: str) -> None:
    url = coherer_node.rocketmq_url if other == "tubemq" else coherer_node.url
    words = ["status", "--json", "--url", url]
    loaded = loaded_by(
        f"from coherer.cli.main import app\ntry: app({words!r})\nexcept SystemExit: pass"
    )
    assert "coherer._administration.overview" in loaded
    assert f"coherer._client.{other}.client" not in loaded


def test_the_url_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, coherer_node: EmbeddedNode
) -> None:
    monkeypatch.delenv("COHERER_URL", raising=False)
    monkeypatch.setenv("NAMESRV_ADDR", coherer_node.rocketmq_url.removeprefix("rocketmq://"))
    assert CliRunner().invoke(app, ["topics", "create", "by_name_server"]).exit_code == 0
    monkeypatch.setenv("COHERER_URL", "tubemq://127.0.0.1:1")
    listed = CliRunner().invoke(app, ["topics", "list", "--admin", coherer_node.admin_url])
    assert "by_name_server" in listed.stdout
    elsewhere = CliRunner().invoke(app, ["topics", "list", "--url", "tubemq://127.0.0.2"])
    assert "127.0.0.2:8715" in elsewhere.stderr
    # What is given goes before everything.
    done = CliRunner().invoke(app, ["topics", "describe", "x", "--url", "rocketmq://127.0.0.1:1"])
    assert "127.0.0.1:1]" in done.stderr


def test_the_package_runs_as_a_module() -> None:
    for words in (["-m", "coherer", "--version"], ["-m", "coherer"]):
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert "coherer" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a full device")
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["topics", "--help"]])
def test_output_that_cannot_be_written_is_an_error(words: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "coherer", *words]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 1
    assert "The output cannot be written: No space left on device." in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('directory = "gr\u00fcn"', "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "coherer", "config", "show", "--config", str(file)],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "FORCE_COLOR": "1"},  # as in a terminal
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert r"gr\xfcn" in done.stdout


@pytest.mark.parametrize(
    "words", [["nosuch"], ["topics", "nosuch"], ["produce"], ["topics", "create", "t", "-p", "x"]]
)
def test_wrong_command_lines_end_with_2(words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["topics", "list", "--admin", "http://127.0.0.1:1"], 1),
        (["topics", "list", "--admin", "ftp://x"], 2),
        (["groups", "list", "--url", "kafka://x"], 2),
        (["groups", "reset", "g", "--topic", "t", "--to", "now"], 2),
        (["produce", "t", "nosuch.file"], 2),
        (["produce", "t", "--property", "x", "-"], 2),
    ],
)
def test_errors_are_one_line_without_a_traceback(words: list[str], code: int) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_mistyped_command_is_answered_with_a_suggestion() -> None:
    done = CliRunner().invoke(app, ["sreve"])
    assert done.exit_code == 2
    assert "Did you mean serve?" in " ".join(done.output.split())


def test_help_texts_have_no_line_breaks_of_the_source() -> None:
    done = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert "from environment variables (COHERER_ and the option's name in the file" in done.output


def test_a_question_without_an_answer_says_what_to_do() -> None:
    done = CliRunner().invoke(app, ["topics", "delete", "flights"], input="")
    assert done.exit_code == 1
    assert "In a script, use --yes." in done.output


def run_in_shell(redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'exec "$@" {redirection}',
            "sh",
            sys.executable,
            "-m",
            "coherer",
            *words,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_standard_streams_may_be_closed(closed: str, coherer_node: EmbeddedNode) -> None:
    done = run_in_shell(closed, "topics", "list", "--url", coherer_node.rocketmq_url)
    assert (done.returncode, done.stderr) in {(0, ""), (0, "There are no topics.\n")}


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["--json"], []])
def test_a_full_disk_of_the_output_is_one_line(
    words: list[str], coherer_node: EmbeddedNode, coherer_topic: str
) -> None:
    del coherer_topic
    url = coherer_node.rocketmq_url
    done = run_in_shell(">/dev/full", "topics", "list", "--url", url, *words)
    assert done.returncode == 1
    assert done.stderr == "error: The output cannot be written: No space left on device.\n"


def test_ctrl_c_while_the_commands_load() -> None:
    program = """
import sys
from coherer.cli.entry import main

class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "coherer.cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
sys.argv = ["coherer", "topics", "list"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM does not exist there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "words", [("topics", "list"), ("status",), ("status", "--watch"), ("top",)]
)
def test_signals_end_commands_that_wait_for_a_server(
    words: tuple[str, ...], number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rocketmq://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-m", "coherer", *words, "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(number)
                out, said = process.communicate()
    assert (process.returncode, out, said) == (130, "", "")
