from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from coherer.cli import main
from coherer.cli.serve.node_config import FIELDS
from coherer.console.options import ConsoleOptions
from coherer.console.passwords import read
from coherer.console.serving import served
from coherer.testing import EmbeddedNode, embedded_node
from tests.waiting import until

PEM = Path(__file__).parents[1] / "net" / "localhost.pem"

FREE_PORTS = [
    word
    for name in ("master_port", "broker_port", "namesrv_port", "rocketmq_port", "admin_port")
    for word in ("--set", f"{name}=0")
]


@contextmanager
def started(*words: str, **environment: str) -> Iterator[dict[str, Any]]:
    """The line of JSON that a command prints; it runs until the block ends."""
    with running(*words, **environment) as (_, said):
        yield said


@contextmanager
def running(
    *words: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A command that runs until the block ends, and the line of JSON that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "coherer", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        print(process.communicate()[1])


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with embedded_node() as one:
        yield one


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read(), "utf-8")


def test_the_command_serves_a_console(node: EmbeddedNode) -> None:
    with started("console", "--url", node.rocketmq_url, "--port", "0") as said:
        assert said["changes"] is False
        assert said["cluster"] == node.rocketmq_url
        assert page(said["url"] + "/health") == "ok\n"
        assert "Groups that lag most" in page(said["url"])


def test_a_node_serves_its_console(tmp_path: Path) -> None:
    serve = ("serve", "--directory", str(tmp_path / "data"), *FREE_PORTS)
    with started(*serve, "--console", "--console-port", "0") as said:
        assert "There are no topics yet" in page(said["console_url"] + "/topics")
    with started(*serve, COHERER_CONSOLE_ENABLED="true", COHERER_CONSOLE_PORT="0") as said:
        assert page(said["console_url"] + "/health") == "ok\n"
    with started(*serve) as said:
        assert said["console_url"] is None


def test_a_node_without_a_console_loads_no_web_framework() -> None:
    program = (
        "import sys, coherer, coherer.cli.serve.command\n"
        "import coherer._server.node.node, coherer.blocking\n"
        "coherer.blocking.connect('rocketmq://a').close()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    unwanted = {"starlette", "uvicorn", "jinja2", "itsdangerous", "coherer.console"}
    assert not unwanted & set(done.stdout.split())


def test_a_public_address_without_a_password_is_refused() -> None:
    words = ["console", "--url", "rocketmq://127.0.0.1:1", "--host", "0.0.0.0"]
    done = CliRunner().invoke(main.app, words, env={"COHERER_CONSOLE_PASSWORD": ""})
    assert done.exit_code == 2
    assert "has no password" in done.output


def test_a_port_in_use_is_explained(node: EmbeddedNode) -> None:
    port = str(node.options.admin_port)
    done = CliRunner().invoke(main.app, ["console", "--url", node.rocketmq_url, "--port", port])
    assert done.exit_code == 2
    assert done.stderr == (
        f"error: The console cannot start. Cannot listen on 127.0.0.1:{port}: Address already "
        "in use. Another process uses it: stop that process or choose another port, 0 for any "
        "free one.\n"
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--port", "99999"], "99999 is not a valid port: ports are 0 to 65535."),
        (
            ["--port", "0", "--host", "192.0.2.1", "--console-password", "x"],
            "Is it an address of this machine?",
        ),
    ],
)
def test_a_wrong_address_is_explained(node: EmbeddedNode, words: list[str], expected: str) -> None:
    done = CliRunner().invoke(main.app, ["console", "--url", node.rocketmq_url, *words])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert expected in done.stderr


def test_the_console_of_a_node_is_checked_before_the_start(tmp_path: Path) -> None:
    file, accounts = tmp_path / "node.toml", tmp_path / "accounts"

    def error(*lines: str) -> str:
        node = f'directory = "{tmp_path}/data"\nbrokers = 2\nadmin_port = 30980\n'
        file.write_text(node + "[console]\nenabled = true\n" + "\n".join(lines))
        done = CliRunner().invoke(main.app, ["config", "check", str(file)])
        assert done.exit_code == 2
        return done.stderr

    assert "console.port in " in error("port = 30990")
    assert "are the same port, 30990" in error("port = 30990")
    assert "Cannot read the accounts" in error(f'accounts = "{accounts}"')
    accounts.write_text("ann\n")
    assert "line 1: this is not an account" in error(f'accounts = "{accounts}"')


def test_lines_of_the_accounts_file_are_printed(tmp_path: Path) -> None:
    lines = ""
    for name, *more in (("ann", "--read-only"), ("bob",)):
        done = CliRunner().invoke(
            main.app, ["console", "--hash-password", name, *more], input="sesame\nsesame\n"
        )
        assert done.exit_code == 0
        assert "sesame" not in done.stdout
        lines += done.stdout.splitlines()[-1] + "\n"
    file = tmp_path / "accounts"
    file.write_text(lines)
    assert {name: account.rights for name, account in read(file).items()} == {
        "ann": "read",
        "bob": "change",
    }
    bad = CliRunner().invoke(main.app, ["console", "--hash-password", "a:b"])
    assert bad.exit_code == 2


def test_secrets_of_the_console_are_masked_in_the_configuration() -> None:
    environment = {"COHERER_CONSOLE_PASSWORD": "hush-hush", "COHERER_PASSWORD": "very-secret"}
    done = CliRunner().invoke(main.app, ["config", "show"], env=environment)
    assert done.exit_code == 0
    assert "console.password" in done.output
    assert "hush-hush" not in done.output
    assert "very-secret" not in done.output
    names = {one.name for one in FIELDS}
    assert {"console.enabled", "console.port", "console.allow_changes"} <= names


def certificate_of(url: str) -> str:
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    return ssl.get_server_certificate((place.hostname, place.port))


async def test_a_renewed_certificate_is_used_without_a_restart(
    node: EmbeddedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer.console.serving.TLS_EVERY_MS", 1)
    file = tmp_path / "localhost.pem"
    shutil.copy(PEM, file)
    options = ConsoleOptions(url=node.rocketmq_url, port=0, tls_cert=file, tls_key=file)
    async with served(options) as serving:
        assert serving.certificates is not None

        async def shown() -> str:
            return await asyncio.to_thread(certificate_of, serving.url)

        first = await shown()
        assert first.strip() in PEM.read_text()
        new = tmp_path / "new"
        new.write_text("no certificate")
        new.replace(file)
        await until(lambda: serving.certificates and serving.certificates.problem)
        assert await shown() == first
        shutil.copy(PEM.with_name("renewed.pem"), new)
        new.replace(file)

        async def is_new() -> bool:
            return await shown() != first

        await until(is_new)
        assert (await shown()).strip() in PEM.with_name("renewed.pem").read_text()


def test_wrong_tls_files_are_named(node: EmbeddedNode, tmp_path: Path) -> None:
    file = tmp_path / "missing.pem"
    words = ["console", "--url", node.rocketmq_url, "--tls-cert", str(file), "--tls-key", str(PEM)]
    result = CliRunner().invoke(main.app, words)
    assert result.exit_code == 2
    assert f"the file {file} cannot be used" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_the_command_reads_its_certificate_again_on_a_signal(
    node: EmbeddedNode, tmp_path: Path
) -> None:
    words = ("console", "--url", node.rocketmq_url, "--port", "0")
    with running(*words, "--tls-cert", str(PEM), "--tls-key", str(PEM)) as (process, said):
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert any("Read the TLS files again" in line for line in process.stderr)
        assert certificate_of(said["url"])
