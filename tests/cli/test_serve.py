"""`coherer serve`: options, the process, and its end."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from coherer._net import TlsOptions
from coherer._server.options.node import SETTINGS, NodeOptions
from coherer.blocking import connect
from coherer.cli import main
from coherer.cli.early import remembered
from coherer.cli.serve.command import app
from coherer.cli.serve.node_config import from_command_line, node_options
from coherer.cli.serve.running import announce
from coherer.cli.signals import on_signal
from coherer.errors import RefusedError, UsageError
from coherer.message import Message
from coherer.testing import embedded_node
from tests.served import FREE, Served
from tests.waiting import until

PEM = Path(__file__).parent.parent / "net" / "localhost.pem"


def test_every_option_of_a_node_can_be_given() -> None:
    given = {parameter.name for parameter in get_command(app).params}
    fields = {one.name.partition(".")[0] for one in SETTINGS}
    assert fields == set(NodeOptions.__struct_fields__), "each field has a setting"
    assert {one.key for one in SETTINGS if one.setting.panel} < given
    for one in SETTINGS:
        if one.setting.panel is None:
            value = "7" if one.default is None else str(one.default)
            options = node_options(from_command_line({}, more=[f"{one.name}={value}"]))
            assert str(getattr(options, one.name)) == value


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--role", "Default: both."),
        ("--master-port", "Default: 8715."),
        ("--heartbeat-ms", "Default: 1,000."),
        ("--transfer-bytes", "Default: 512 KiB."),
        ("--auto-create-topics", "Default: on."),
        ("--flush", "Default: async."),
        ("--advertised-host", "Default: that of --host."),
    ],
)
def test_help_shows_the_defaults_of_the_struct(words: str, expected: str) -> None:
    (option,) = (one for one in get_command(app).params if words in one.opts)
    assert getattr(option, "help", "").endswith(expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (
            ["--role", "broker", "--protocol", "tubemq", "--master", "a:1"],
            {
                "roles": frozenset({"broker"}),
                "protocols": frozenset({"tubemq"}),
                "master": "a:1",
                "admin_port": 8081,
            },
        ),
        (["--retention-hours", "0", "--flush", "sync"], {"retention_hours": None, "flush": "sync"}),
        (["--retention-hours", "1.5"], {"retention_hours": 1.5}),
        (["--user", "me=a=b", "--user", "you=c"], {"users": {"me": "a=b", "you": "c"}}),
        (["--tls-certificate", "c.pem"], {"tls": TlsOptions(certificate=Path("c.pem"))}),
        (
            ["--broker-role", "SLAVE", "--rocketmq-broker-id", "1", "--namesrv", "a"],
            {"role": "SLAVE", "rocketmq_broker_id": 1, "namesrv": "a"},
        ),
        (
            ["--set", "delay_levels=1s 5s", "--set", "rocketmq_fast_port=7"],
            {"delay_levels": "1s 5s", "rocketmq_fast_port": 7},
        ),
        (["--no-admin", "--admin-port", "1"], {"admin_port": None}),
        (["--no-auto-create-topics"], {"auto_create_topics": False}),
        (
            ["--user", "a=b", "--unprotected", "admin", "--unprotected", "namesrv"],
            {"users": {"a": "b"}, "unprotected": frozenset({"admin", "namesrv"})},
        ),
        (["--admin-name", "x", "--admin-name", "y"], {"admin_names": frozenset({"x", "y"})}),
    ],
)
def test_the_command_line_sets_the_options_of_a_node(
    monkeypatch: pytest.MonkeyPatch, words: list[str], expected: dict[str, Any]
) -> None:
    assert parsed(monkeypatch, *words) == NodeOptions(directory=Path("coherer-data"), **expected)


def test_the_environment_sets_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHERER_DIRECTORY", "elsewhere")
    monkeypatch.setenv("COHERER_USERS", "me=a you=b")
    monkeypatch.setenv("COHERER_TOKEN", "secret")
    assert parsed(monkeypatch) == NodeOptions(
        directory=Path("elsewhere"), users={"me": "a", "you": "b"}, admin_token="secret"
    )


def test_malformed_options_are_refused() -> None:
    for wrong in ("colour=red", "cluster", "broker_id=red"):
        with pytest.raises(UsageError, match="--set"):
            from_command_line({}, more=[wrong])
    with pytest.raises(UsageError, match="NAME=PASSWORD") as caught:
        from_command_line({"users": ["secret"]})
    assert "secret" not in str(caught.value), "it may be the password"


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> NodeOptions:
    """The options of the node that `coherer serve` would run."""
    started: list[NodeOptions] = []

    async def run(
        options: NodeOptions, reload: object, *, as_json: bool, host: object, console: object
    ) -> None:
        del reload, as_json, host, console
        started.append(options)

    monkeypatch.setattr("coherer.cli.serve.command.run", run)
    done = CliRunner().invoke(main.app, ["serve", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return started[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(
    tmp_path: Path, servers: list[Served], number: signal.Signals
) -> None:
    served = Served("--directory", str(tmp_path), *FREE)
    servers.append(served)
    ready = served.ready()
    assert ready.url == f"tubemq://127.0.0.1:{ready.master_port}"
    assert ready.rocketmq_url == f"rocketmq://127.0.0.1:{ready.namesrv_port}"
    assert ready.rocketmq_port > 0
    assert ready.directory == str(tmp_path)
    assert ready.pid == served.process.pid
    assert served.end(number) == (0, "", "")
    assert not (tmp_path / "abort").exists(), "the store was closed in order"


def test_the_banner_shows_addresses_and_files(tmp_path: Path, servers: list[Served]) -> None:
    served = Served("--directory", str(tmp_path), *FREE)
    servers.append(served)
    words = ["-m", "coherer", "serve", "--no-admin", "--flush", "sync", *FREE[:8]]
    with subprocess.Popen(
        [sys.executable, *words, "--directory", str(tmp_path / "2")],
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(9)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    text = "".join(lines)
    assert re.search(r"clients +tubemq://127\.0\.0\.1:\d+\n", text)
    assert re.search(r"rocketmq +rocketmq://127\.0\.0\.1:\d+\n", text)
    assert re.search(r"its broker +127\.0\.0\.1:\d+, broker-a\n", text)
    assert re.search(r"admin +none\n", text)
    assert re.search(r"receipts +survive a power cut\n", text)
    assert str(tmp_path / "2") in text


@pytest.mark.parametrize(
    ("required", "how"), [(False, ", or rocketmqs:// on the same ports"), (True, "")]
)
def test_the_banner_shows_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], required: bool, how: str
) -> None:
    options = {"tls": TlsOptions(certificate=PEM, trust=PEM), "tls_required": required}
    with embedded_node(tmp_path, master_tls_port=0, broker_tls_port=0, **options) as node:
        announce(node.node, as_json=False)
        text = capsys.readouterr().out
        assert f"with TLS   tubemqs://127.0.0.1:{node.node.master_tls_port}\n" in text
        assert f"rocketmq   {node.rocketmq_url}{how}\n" in text


def test_two_nodes_cannot_share_a_directory(tmp_path: Path, servers: list[Served]) -> None:
    servers.append(Served("--directory", str(tmp_path), *FREE))
    servers[0].ready()
    servers.append(Served("--directory", str(tmp_path), *FREE))
    _, err = servers[1].process.communicate(timeout=30)
    assert servers[1].process.returncode != 0
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_master_and_broker_run_in_separate_processes(tmp_path: Path, servers: list[Served]) -> None:
    master = Served("--role", "master", "--directory", str(tmp_path / "m"), *FREE)
    servers.append(master)
    url = master.ready().url
    words = ("--role", "broker", "--master", url, "--broker-id", "7", *FREE)
    broker = Served("--directory", str(tmp_path / "b"), *words)
    servers.append(broker)
    ready = broker.ready()  # printed once the master has accepted the broker
    assert (ready.url, ready.master_port) == (url, -1)
    assert ready.broker_port > 0
    assert broker.end(signal.SIGTERM)[0] == 0
    assert master.end(signal.SIGTERM)[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_slow_stop_at_once(
    tmp_path: Path,
    servers: list[Served],
    number: signal.Signals,
    catches: Callable[[int, signal.Signals], bool],
) -> None:
    master = Served("--role", "master", "--directory", str(tmp_path / "m"), *FREE)
    servers.append(master)
    url = master.ready().url
    words = ("--role", "broker", "--master", url, "--directory", str(tmp_path / "b"), *FREE)
    broker = Served(*words)
    servers.append(broker)
    port = broker.ready().broker_port
    with connect(url) as client, client.producer("flights") as producer:
        producer.send_many(Message("flights", b"%d" % one) for one in range(10)).check()
    master.process.send_signal(signal.SIGSTOP)
    try:
        broker.process.send_signal(signal.SIGTERM)
        while catches(broker.process.pid, signal.SIGTERM):
            assert broker.process.poll() is None, "it says good-bye to its master, in vain"
        code, out, err = broker.end(number)
    finally:
        master.process.send_signal(signal.SIGCONT)
    assert (code, out, err) == (-number, "", "")
    assert (tmp_path / "b" / "abort").exists(), "it had no time to close its store"
    # At another port, the master would accept it only after 30 s.
    again = Served(*words, "--broker-port", str(port))
    servers.append(again)
    again.ready()
    with connect(url) as client:
        held = client.offsets("flights")
    assert sum(end for _, end in held.values()) == 10
    assert again.end(signal.SIGTERM)[0] == 0


def test_a_broker_stops_without_its_master(tmp_path: Path, servers: list[Served]) -> None:
    words = ("--role", "broker", "--master", "127.0.0.1:1", *FREE)
    broker = Served("--directory", str(tmp_path), *words, "--log", "info")
    servers.append(broker)
    assert broker.process.stderr is not None
    assert broker.process.stderr.readline()  # it is up, and has begun to complain
    assert broker.end(signal.SIGTERM)[:2] == (0, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--retention-hours", "-1"], "--retention-hours must be 0 or more"),
        (["--admin-port", "99999"], "--admin-port is 99999; ports are 0 to 65535"),
        (["--role", "broker"], "needs --master"),
        (["--tls-certificate", "/missing.pem"], "--tls-certificate: the file /missing.pem cannot"),
        (["--host", "0.0.0.0"], "Set --advertised-host"),
        (["--broker-user", "alice"], "--broker-user and --broker-password must be set together"),
        (["--set", "heartbet_ms=3"], "Did you mean heartbeat_ms?"),
        (["--set", "heartbeat_ms"], "Write name=value"),
    ],
)
def test_errors_spell_options_as_on_the_command_line(
    tmp_path: Path, words: list[str], expected: str
) -> None:
    free = [word for name in _PORTS if name not in words for word in (name, "0")]
    command = ["serve", "-d", str(tmp_path), *free, *words]
    result = CliRunner().invoke(main.app, command, catch_exceptions=False)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())


def test_a_taken_port_is_reported_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = [word for name in _PORTS if name != "--admin-port" for word in (name, "0")]
        command = ["serve", "-d", str(tmp_path), *free, "--admin-port", str(port)]
        result = CliRunner().invoke(main.app, command, catch_exceptions=False)
    assert result.exit_code == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "--admin-port sets the port" in " ".join(result.stderr.split())


@pytest.mark.parametrize("below", [".", "data"])
def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    words = ["serve", *FREE, "--directory", str(tmp_path / "file" / below)]
    done = CliRunner().invoke(main.app, words)
    assert done.exit_code == 1
    assert "A file is where a directory is needed" in done.stderr


def test_an_address_of_another_machine_is_reported_with_its_option(tmp_path: Path) -> None:
    free = [word for name in _PORTS if name != "--admin-port" for word in (name, "0")]
    words = ["serve", "-d", str(tmp_path), *free, "--admin-port", "30999", "--host", "192.0.2.1"]
    result = CliRunner().invoke(main.app, words, catch_exceptions=False)
    assert result.exit_code == 2
    assert "Is it an address of this machine? --host sets it." in " ".join(result.stderr.split())


_PORTS = ("--master-port", "--broker-port", "--admin-port", "--namesrv-port", "--rocketmq-port")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_a_hangup_reads_the_configuration_again(tmp_path: Path, servers: list[Served]) -> None:
    config, log = tmp_path / "node.toml", tmp_path / "node.log"
    base = f'[log]\nfile = "{log}"\n'
    config.write_text(f"auto_create_topics = false\n{base}")
    served = Served("--config", str(config), "--directory", str(tmp_path / "data"), *FREE)
    servers.append(served)
    url = served.ready().rocketmq_url

    def hang_up(text: str, expected: str) -> None:
        config.write_text(text)
        log.rename(tmp_path / "rotated.log") if log.exists() else None
        served.process.send_signal(signal.SIGHUP)
        asyncio.run(until(lambda: log.exists() and expected in log.read_text()))

    assert url is not None
    with connect(url) as client, client.producer() as producer:
        with pytest.raises(RefusedError):
            producer.send(Message("new", b"x"))
        hang_up(f"auto_create_topics = true\n{base}", "in effect now: auto_create_topics")
        producer.send(Message("new", b"x"))
        hang_up(f'cluster = "x"\n{base}', "a restart is needed for cluster")
        console = "[console]\nport = 8791\n"
        hang_up(f"{base}{console}", "A restart is needed for console.port")
        hang_up(f"retention_bytes = 1\n{base}", "The configuration is unchanged")
    assert served.end(signal.SIGTERM)[0] == 0


HANGUP_WHILE_LOADING = """
import signal, sys

class Hangup:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGHUP)

sys.meta_path.insert(0, Hangup())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_a_hangup_while_python_loads_the_command_waits(
    tmp_path: Path, servers: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGUP_WHILE_LOADING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "node.log"
    served = Served("--directory", str(tmp_path / "data"), "--log-file", str(log), *FREE)
    servers.append(served)
    served.ready()
    asyncio.run(until(lambda: "Read the configuration again" in log.read_text()))
    assert served.end(signal.SIGTERM)[0] == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_a_reload_that_comes_too_early_waits() -> None:
    """While a node starts, nothing handles SIGHUP yet; it must not end the process."""
    with remembered("SIGHUP"):
        signal.raise_signal(signal.SIGHUP)
        reloaded = asyncio.Event()
        with on_signal("SIGHUP", reloaded.set):
            await reloaded.wait()
            reloaded.clear()
        signal.raise_signal(signal.SIGHUP)  # too late: it is ignored
        assert not reloaded.is_set()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_a_storm_of_reloads_is_one() -> None:
    reloads: list[int] = []
    reloaded = asyncio.Event()

    def reload() -> None:
        reloads.append(1)
        reloaded.set()

    with on_signal("SIGHUP", reload):
        for _ in range(100):
            signal.raise_signal(signal.SIGHUP)
        await reloaded.wait()
    assert len(reloads) < 100
