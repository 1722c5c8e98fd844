"""The Dockerfile, its steps, and the compose file."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
import yaml

from coherer._server.options.node import NodeOptions
from tests.deploy.deployment import DEPLOY, PORTS, ROOT, Started
from tests.interop.peers.process import free_ports

DOCKERFILE = DEPLOY / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: word and arguments."""
    text = re.sub(r"(?m)^\s*#.*\n", "", DOCKERFILE.read_text()).replace("\\\n", " ")
    return [
        (word, arguments.strip())
        for word, _, arguments in (line.partition(" ") for line in text.splitlines() if line)
    ]


def last(word: str) -> str:
    return [arguments for one, arguments in instructions() if one == word][-1]


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in shlex.split(last("ENV")))


def test_the_image_is_safe_and_complete() -> None:
    ports = {int(port) for port in last("EXPOSE").split()}
    defaults = NodeOptions(directory=Path())
    assert ports == {
        defaults.master_port,
        defaults.broker_port,
        defaults.admin_port,
        defaults.namesrv_port,
        defaults.rocketmq_port,
        defaults.fast_port,
        int(environment()["COHERER_METRICS_PORT"]),
    }
    assert "[fast,console]" in DOCKERFILE.read_text()
    assert last("USER") == "coherer"
    assert last("VOLUME") == environment()["COHERER_DIRECTORY"] == "/data"
    assert all("slim" in image for word, image in instructions() if word == "FROM")
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("CMD")


def copied() -> list[Path]:
    sources: list[Path] = []
    for word, arguments in instructions():
        if word == "COPY" and "--from" not in arguments:
            sources += [ROOT / one for one in arguments.split()[:-1]]
    return sources


def test_what_the_image_copies_exists_and_is_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert {str(path.relative_to(ROOT)) for path in copied()} == allowed
    assert [path for path in copied() if not path.exists()] == []


@pytest.fixture
def image(tmp_path: Path) -> tuple[Path, list[str]]:
    """Run the steps that need no container, with the paths of a directory; returns it and CMD."""
    for name in ("src", "opt", "data"):
        (tmp_path / name).mkdir()
    workdir = tmp_path / "src"
    for word, arguments in instructions():
        if word == "COPY" and "--from" not in arguments:
            *sources, target = arguments.split()
            for source in sources:
                to = workdir / target / (Path(source).name if target.endswith("/") else "")
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, to)
        elif word == "RUN" and "useradd" not in arguments:  # accounts need a container
            command = arguments.replace("/opt/", f"{tmp_path}/opt/")
            command = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", command)
            subprocess.run(command, shell=True, check=True, cwd=workdir, timeout=400)
    return tmp_path, json.loads(last("CMD"))


@pytest.mark.slow
def test_the_steps_make_a_node_that_is_healthy(request: pytest.FixtureRequest) -> None:
    """Where no root can be made; elsewhere, the next test runs these steps and the others."""
    if makes_roots():
        pytest.skip("this system can run every step")
    image: tuple[Path, list[str]] = request.getfixturevalue("image")
    directory, command = image
    program = directory / "opt/coherer/bin" / command[0]
    given = {**environment(), "PATH": os.environ["PATH"]}
    given["COHERER_DIRECTORY"] = str(directory / "data")
    with Started([str(program), *command[1:]], given) as node:
        found = node.ready()
        assert found["directory"] == str(directory / "data")
        check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
        check[0] = str(directory / "opt/coherer/bin" / check[0])
        check[2] = check[2].replace(":9090/", f":{node.metrics_port}/")
        assert subprocess.run(check, check=False, timeout=60).returncode == 0
        assert node.status("/metrics") == 200
        assert node.stop() == 0
        assert subprocess.run(check, check=False, timeout=60, capture_output=True).returncode


ROOT_SCRIPT = """
set -e
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
exec chroot "$1/root" /bin/sh -eu -c "$2"
"""
"""Runs commands in a root of their own: what they write goes to a directory of the test."""


def in_own_root(directory: Path, commands: str) -> list[str]:
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", ROOT_SCRIPT,
            "root", str(directory), commands]  # fmt: skip


def prepared(directory: Path) -> Path:
    """The directory, with those that a root of its own needs."""
    for name in ("upper", "work", "root"):
        (directory / name).mkdir()
    return directory


@cache
def makes_roots() -> bool:
    """Whether this process may make a root of its own."""
    if shutil.which("unshare") is None or shutil.which("useradd") is None:
        return False
    with TemporaryDirectory() as directory:
        command = in_own_root(prepared(Path(directory)), "true")
        return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


@pytest.fixture
def own_root(tmp_path: Path) -> Path:
    """A directory for a root of its own, where that is allowed."""
    if not makes_roots():
        pytest.skip("this system has no unshare or no useradd, or this process is not root")
    return prepared(tmp_path)


def built() -> str:
    """The instructions as a script for a root of its own, with the Python of the tests."""
    python = Path(sys.base_prefix) / "bin"
    lines = [f"PATH={shlex.quote(str(python))}:$PATH"]
    # It may be in a home, which the user of the image cannot read otherwise.
    lines.append(f"chmod o+x {shlex.join(map(str, python.parents))}")
    for word, arguments in instructions():
        if word == "WORKDIR":
            lines.append(f"mkdir -p {arguments}; cd {arguments}")
        elif word == "COPY" and "--from" not in arguments:
            *sources, target = arguments.split()
            for source in sources:
                to = target if target.endswith("/") else f"{target.rstrip('/')}/"
                if (ROOT / source).is_dir():  # its content is copied, as by COPY
                    lines.append(f"mkdir -p {to}; cp -r {shlex.quote(str(ROOT / source))}/. {to}")
                else:
                    lines.append(f"cp {shlex.quote(str(ROOT / source))} {to}")
        elif word == "RUN":
            lines.append(arguments)
    return "\n".join(lines)


def as_user(command: Sequence[str], given: Mapping[str, str]) -> str:
    """A command as the user of the image, with nothing but its environment."""
    words = [*(f"{name}={value}" for name, value in given.items()), *command]
    user = last("USER")
    drop = f"setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs"
    return f"cd {last('VOLUME')}; exec {drop} env -i {shlex.join(words)}"


@pytest.mark.slow
def test_every_step_runs_as_in_a_container(own_root: Path) -> None:
    """Also those that make the user and the volume; no engine and no base image are needed."""
    subprocess.run(in_own_root(own_root, built()), check=True, timeout=400)
    given = environment()
    given["PATH"] = given["PATH"].replace("$PATH", "/usr/bin:/bin")
    given["COHERER_METRICS_PORT"] = str(free_ports(1)[0])
    ports = {f"COHERER_{name}": "0" for name in PORTS}
    command = [*json.loads(last("CMD")), "--json"]
    process = subprocess.Popen(
        in_own_root(own_root, as_user(command, {**given, **ports})), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    [node] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    try:
        assert msgspec.json.decode(line)["directory"] == "/data"
        check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
        check[2] = check[2].replace(":9090/", f":{given['COHERER_METRICS_PORT']}/")
        check[0] = str(own_root / "upper/opt/coherer/bin" / check[0])
        subprocess.run(check, check=True, timeout=60)
        log = own_root / "upper/data/commitlog"
        assert log.is_dir()
        assert log.stat().st_uid == 10001
        assert stat.S_IMODE((own_root / "upper/data").stat().st_mode) == 0o750
    finally:
        os.kill(int(node), signal.SIGTERM)  # STOPSIGNAL, to process 1 as in a container
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert subprocess.run(check, check=False, timeout=60, capture_output=True).returncode


def engine() -> str | None:
    """A container engine that works."""
    for name in ("docker", "podman"):
        program = shutil.which(name)
        if program is not None:
            done = subprocess.run([program, "info"], capture_output=True, check=False, timeout=60)
            if done.returncode == 0:
                return program
    return None


@pytest.fixture
def container() -> Iterator[tuple[str, str]]:
    """A container of the image; the engine and the container's name."""
    program = engine()
    if program is None:
        pytest.skip("no container engine runs on this machine")
    name = f"coherer-test-{uuid.uuid4().hex[:12]}"
    subprocess.run(
        [program, "build", "-q", "-f", str(DOCKERFILE), "-t", name, str(ROOT)],
        check=True, timeout=400,
    )  # fmt: skip
    subprocess.run([program, "run", "-d", "--name", name, name], check=True, timeout=60)
    try:
        yield program, name
    finally:
        subprocess.run([program, "rm", "-f", "-v", name], check=False, timeout=60)
        subprocess.run([program, "rmi", "-f", name], check=False, timeout=60)


@pytest.mark.slow
def test_the_image_runs_in_a_container_engine(container: tuple[str, str]) -> None:
    program, name = container
    check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    deadline_s = time.monotonic() + 120
    while subprocess.run([program, "exec", name, *check], check=False, timeout=60).returncode:
        assert time.monotonic() < deadline_s, "the container is not healthy"
    user = subprocess.run(
        [program, "exec", name, "id", "-u"], check=True, capture_output=True, timeout=60
    )
    assert user.stdout.strip() == b"10001"


class Build(msgspec.Struct, forbid_unknown_fields=True):
    context: str
    dockerfile: str


class Service(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The part of the compose specification that the file uses."""

    build: Build | None = None
    image: str | None = None
    command: list[str] = []
    environment: dict[str, str] = {}
    ports: list[str] = []
    volumes: list[str] = []
    depends_on: list[str] | dict[str, dict[str, str]] = []
    ulimits: dict[str, int] = {}
    restart: str = "no"
    stop_grace_period: str = "10s"


class Compose(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    services: dict[str, Service]
    volumes: dict[str, Any]


def compose() -> Compose:
    text = (DEPLOY / "compose.yml").read_text()
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return msgspec.convert(yaml.safe_load(text), Compose)


def test_the_compose_file_fits_together() -> None:
    found = compose()
    for name, service in found.services.items():
        assert (service.build is None) != (service.image is None), name
        assert set(service.depends_on) <= set(found.services)
        for volume in service.volumes:
            source, target = volume.split(":")[:2]
            assert target.startswith("/")
            assert (DEPLOY / source).exists() if source.startswith(".") else source in found.volumes
        for port in service.ports:
            assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), "open to this machine only"
    build = found.services["node"].build
    assert build is not None
    assert (DEPLOY / build.context / build.dockerfile).resolve() == DOCKERFILE
    assert found.services["node"].volumes == ["node:/data"]
    published = {int(port.split(":")[2]) for port in found.services["node"].ports}
    assert published == {int(port) for port in last("EXPOSE").split()} - {9090}


def test_prometheus_and_grafana_find_each_other_and_the_node() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    ((target,),) = [one["targets"] for one in config["scrape_configs"][0]["static_configs"]]
    assert target == f"node:{environment()['COHERER_METRICS_PORT']}"
    services = compose().services
    mounted = dict(volume.split(":")[:2] for volume in services["prometheus"].volumes)
    for rules in config["rule_files"]:
        assert mounted[f"./prometheus/{rules}"] == f"/etc/prometheus/{rules}"
    provisioning = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/coherer.yml").read_text())["providers"]
    folders = dict(volume.split(":")[:2] for volume in services["grafana"].volumes)
    assert folders["./grafana/dashboards"] == provider["options"]["path"]
    home = services["grafana"].environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana/dashboards" / Path(home).name).is_file()
