"""`coherer serve`: options, the process, and its end."""

from __future__ import annotations

import inspect
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from coherer._net import TlsOptions
from coherer._server.node.node import NodeOptions
from coherer.blocking.tubemq import connect as connect_tubemq
from coherer.cli import main, serve_options
from coherer.cli.serve import Ready, _announce, app, serve
from coherer.cli.serve_rocketmq import BrokerRole, Door
from coherer.errors import UsageError
from coherer.message import Message
from coherer.testing import embedded_node

PEM = Path(__file__).parent.parent / "net" / "localhost.pem"

ROCKETMQ = ("--namesrv-port", "0", "--rocketmq-port", "0")
FREE = ("--master-port", "0", "--broker-port", "0", *ROCKETMQ, "--admin-port", "0")


def test_every_option_of_a_node_can_be_given() -> None:
    given = set(inspect.signature(serve).parameters)
    fields = set(NodeOptions.__struct_fields__)
    assert given - fields == {
        "admin", "tls_certificate", "tls_key", "tls_key_password", "tls_trust", "log",
        "as_json", "more",
    }  # fmt: skip
    defaults = dict(
        zip(NodeOptions.__struct_fields__[1:], NodeOptions.__struct_defaults__, strict=True)
    )
    for name in fields - given - {"tls"}:
        value = "7" if defaults[name] is None else str(defaults[name])
        options = serve_options.node_options({"more": [f"{name}={value}"]})
        assert str(getattr(options, name)) == value


def test_the_help_tells_the_defaults_of_the_struct() -> None:
    defaults = dict(
        zip(NodeOptions.__struct_fields__[1:], NodeOptions.__struct_defaults__, strict=True)
    )
    told = 0
    for parameter in get_command(app).params:
        text = getattr(parameter, "help", None) or ""
        found = re.search(r"Default: (\d[\d,]*)(?: ([KMG])iB)?", text)
        default = defaults.get(str(parameter.name))
        if found and default is not None:
            unit = 1024 ** " KMG".index(found[2] or " ")
            assert int(found[1].rstrip(",").replace(",", "")) * unit == default, parameter.name
            told += 1
    assert told > 12


def test_options_become_those_of_a_node(tmp_path: Path) -> None:
    plain = serve_options.node_options({"directory": None, "host": None, "roles": None})
    assert plain == NodeOptions(directory=Path("coherer-data"))
    full = serve_options.node_options(
        {
            "directory": tmp_path,
            "roles": serve_options.Role.broker,
            "doors": Door.tubemq,
            "master": "a:1",
            "admin": None,
            "retention_hours": 0.0,
            "flush": serve_options.Flush.sync,
            "users": ["me=a=b"],
            "tls_certificate": tmp_path / "c.pem",
        }
    )
    assert full == NodeOptions(
        directory=tmp_path,
        roles=frozenset({"broker"}),
        doors=frozenset({"tubemq"}),
        master="a:1",
        admin_port=8081,
        retention_hours=None,
        flush="sync",
        users={"me": "a=b"},
        tls=TlsOptions(certificate=tmp_path / "c.pem"),
    )
    slave = serve_options.node_options(
        {"role": BrokerRole.slave, "rocketmq_broker_id": 1, "namesrv": "a"}
    )
    assert (slave.role, slave.name_servers) == ("SLAVE", ["a:9876"])
    more = serve_options.node_options(
        {"more": ["delay_levels=1s 5s", "rocketmq_fast_port=7", "tls_required=true"]}
    )
    assert (more.delay_levels, more.fast_port, more.tls_required) == ("1s 5s", 7, True)
    for wrong in ("colour=red", "cluster", "broker_id=red"):
        with pytest.raises(UsageError, match="--set"):
            serve_options.node_options({"more": [wrong]})
    assert serve_options.node_options({"admin": False, "admin_port": 1}).admin_port is None
    with pytest.raises(UsageError, match="NAME=PASSWORD") as caught:
        serve_options.node_options({"users": ["secret"]})
    assert "secret" not in str(caught.value), "it may be the password"


class Served:
    """A `coherer serve --json` as a process."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coherer.cli", "serve", "--json", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> Ready:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return msgspec.json.decode(line, type=Ready)

    def end(self, number: int) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def servers() -> Iterator[list[Served]]:
    started: list[Served] = []
    yield started
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
        served.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_told_to_stop(
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


def test_people_get_a_banner(tmp_path: Path, servers: list[Served]) -> None:
    served = Served("--directory", str(tmp_path), *FREE)
    servers.append(served)
    words = ["-m", "coherer.cli", "serve", "--no-admin", "--flush", "sync", *FREE[:8]]
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


@pytest.mark.parametrize(("required", "how"), [(False, ", or rocketmqs:// there"), (True, "")])
def test_the_banner_tells_of_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], required: bool, how: str
) -> None:
    options = {"tls": TlsOptions(certificate=PEM, trust=PEM), "tls_required": required}
    with embedded_node(tmp_path, master_tls_port=0, broker_tls_port=0, **options) as node:
        _announce(node.node, as_json=False)
        text = capsys.readouterr().out
        assert f"with TLS   tubemqs://127.0.0.1:{node.node.master_tls_port}\n" in text
        assert f"rocketmq   {node.rocketmq_url}{how}\n" in text


def test_a_directory_belongs_to_one_node(tmp_path: Path, servers: list[Served]) -> None:
    servers.append(Served("--directory", str(tmp_path), *FREE))
    servers[0].ready()
    servers.append(Served("--directory", str(tmp_path), *FREE))
    _, err = servers[1].process.communicate(timeout=30)
    assert servers[1].process.returncode != 0
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_master_and_broker_apart(tmp_path: Path, servers: list[Served]) -> None:
    master = Served("--role", "master", "--directory", str(tmp_path / "m"), *FREE)
    servers.append(master)
    url = master.ready().url
    words = ("--role", "broker", "--master", url, "--broker-id", "7", *FREE)
    broker = Served("--directory", str(tmp_path / "b"), *words)
    servers.append(broker)
    ready = broker.ready()  # it is said when the master has accepted the broker
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
    broker.ready()
    with connect_tubemq(url) as client, client.producer("flights") as producer:
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
    again = Served(*words)
    servers.append(again)
    again.ready()
    with connect_tubemq(url) as client:
        held = client.offsets("flights")
    assert sum(end for _, end in held.values()) == 10
    assert again.end(signal.SIGTERM)[0] == 0


def test_a_broker_stops_also_without_its_master(tmp_path: Path, servers: list[Served]) -> None:
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
        (["--admin-port", "99999"], "--admin-port sets the port"),
        (["--role", "broker"], "needs --master"),
        (["--tls-certificate", "/missing.pem"], "--tls-certificate of TLS, /missing.pem"),
        (["--host", "0.0.0.0"], "Say in --advertised-host"),
        (["--broker-user", "alice"], "--broker-user and --broker-password go together"),
        (["--set", "heartbet_ms=3"], "Did you mean heartbeat_ms?"),
        (["--set", "heartbeat_ms"], "It looks like name=value"),
    ],
)
def test_errors_name_options_as_the_command_line_does(
    tmp_path: Path, words: list[str], expected: str
) -> None:
    free = [word for name in _PORTS if name not in words for word in (name, "0")]
    command = ["serve", "-d", str(tmp_path), *free, *words]
    result = CliRunner().invoke(main.app, command, catch_exceptions=False)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())


def test_a_port_that_is_taken_is_named_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = [word for name in _PORTS if name != "--admin-port" for word in (name, "0")]
        command = ["serve", "-d", str(tmp_path), *free, "--admin-port", str(port)]
        result = CliRunner().invoke(main.app, command, catch_exceptions=False)
    assert result.exit_code == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "--admin-port sets the port" in " ".join(result.stderr.split())


_PORTS = ("--master-port", "--broker-port", "--admin-port", "--namesrv-port", "--rocketmq-port")
