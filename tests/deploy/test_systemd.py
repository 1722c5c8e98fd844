"""The systemd unit, and what a node reports to systemd."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coherer import _net as net
from tests.deploy.deployment import COHERER, DEPLOY, Started

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd runs on Linux")

UNIT = DEPLOY / "systemd/coherer.service"


def setting(name: str) -> str:
    (value,) = [
        line.split("=", 1)[1]
        for line in UNIT.read_text().splitlines()
        if line.startswith(f"{name}=")
    ]
    return value


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        yield listening


def notification(manager: socket.socket, word: str) -> dict[str, str]:
    """The next message that is not a keep-alive; it contains this word."""
    while True:
        lines = dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())
        if word == "WATCHDOG" or "WATCHDOG" not in lines:
            assert lines.get(word) == "1", lines
            return lines


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("systemd-analyze is missing; Debian's package systemd has it")
        pytest.skip("systemd-analyze is missing; Debian's package systemd has it")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/coherer/bin/coherer", COHERER))
    done = subprocess.run(
        [program, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_starts_reloads_and_stops_a_node(manager: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("hold_ms = 4000\n")
    command = shlex.split(
        setting("ExecStart")
        .replace("/opt/coherer/bin/coherer", COHERER)
        .replace("/etc/coherer/", f"{tmp_path}/")
        .replace("/var/lib/coherer", str(tmp_path / "data"))
    )
    assert setting("Type") == "notify"
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "200000"}
    with Started(command, environment) as node:
        node.ready()
        lines = notification(manager, "READY")
        assert "master 127.0.0.1:" in lines["STATUS"]
        assert node.status("/health/ready") == 200
        notification(manager, "WATCHDOG")
        assert setting("ExecReload") == "/bin/kill -HUP $MAINPID"
        node.process.send_signal(signal.SIGHUP)
        assert notification(manager, "RELOADING")["MONOTONIC_USEC"].isdecimal()
        notification(manager, "READY")
        assert node.stop() == 0
        notification(manager, "STOPPING")
    assert (tmp_path / "data/commitlog").is_dir()


def test_nothing_is_sent_without_a_manager_or_to_one_that_is_gone(tmp_path: Path) -> None:
    net.ServiceManager({}).ready("serves")
    net.ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("serves")


def test_a_reload_does_not_make_a_process_ready(manager: socket.socket) -> None:
    """SIGHUP can arrive during a long start."""
    process = net.ServiceManager({"NOTIFY_SOCKET": manager.getsockname()})
    with process.reloading():
        pass
    process.stopping()
    notification(manager, "STOPPING")


def test_a_watchdog_for_another_process_is_ignored(manager: socket.socket) -> None:
    given = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "2000000"}
    assert net.ServiceManager(given).watchdog_s == 1
    assert net.ServiceManager({**given, "WATCHDOG_PID": str(os.getpid())}).watchdog_s == 1
    assert net.ServiceManager({**given, "WATCHDOG_PID": "1"}).watchdog_s is None
    assert net.ServiceManager({**given, "WATCHDOG_USEC": "soon"}).watchdog_s is None


def test_a_name_without_a_file_is_understood() -> None:
    name = f"coherer-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(60)
        net.ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert listening.recv(4096) == b"STOPPING=1"
