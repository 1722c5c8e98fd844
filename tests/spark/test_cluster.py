"""Spark beyond one process: a local cluster, Spark Connect, and workers without the package.

Each job runs in a process of its own, since a process has one Spark.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import venv
from pathlib import Path

import pyarrow
import pytest
from pyspark import cloudpickle

from coherer import Message
from coherer.blocking import connect
from coherer.spark.pickling import unpack
from coherer.spark.source import RocketMQDataSource
from tests.interop.peers.cache import UnavailableError, filled, run
from tests.spark.cluster_job import ROWS, SECRET, VARIABLE

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 500
CONNECT = ("grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71", "zstandard")
"""What Spark Connect needs; apart, since the protobuf that it wants is newer than the oldest one
that Coherer supports, with which the other tests run."""


def job(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a job to its end."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.spark.{module}", *arguments],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="session")
def connect_packages() -> Path:
    """A folder with the packages of Spark Connect, from the cache of all peers."""

    def install(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
        run([*command, "--target", str(folder), *CONNECT, "protobuf>=6.33"], TIMEOUT_S)

    try:
        return filled(f"spark-connect-py{sys.version_info.minor}", [Path(__file__)], install)
    except UnavailableError as reason:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Spark Connect: {reason}")


def check(done: subprocess.CompletedProcess[str], home: Path) -> None:
    """Checks what a job found, and that no secret is in what Spark wrote."""
    assert done.returncode == 0, done.stderr[-5000:]
    counted = json.loads(done.stdout.splitlines()[-1])
    assert (counted["landed"], counted["distinct"]) == (ROWS, ROWS)
    given = {"password": 3, "passwordFile": 6, "passwordEnv": 9, "sql": 9}
    assert given.items() <= counted.items()
    assert SECRET not in done.stdout + done.stderr
    own = {home / "guarded" / "conf" / "plain_acl.yml", home / "guarded" / "password"}
    written = [
        path
        for path in home.rglob("*")
        if path.is_file() and not path.is_symlink() and path not in own
    ]
    names = {path.name for path in written if path.stat().st_size}
    assert {"driver.log", "plans.txt", "0"} <= names, "logs, plans and checkpoints are there"
    assert any("password=" in path.read_text() for path in written if path.name == "plans.txt")
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_lands_on_a_local_cluster_and_no_secret_is_written(tmp_path: Path) -> None:
    done = job("cluster_job", "local-cluster", str(tmp_path), **{VARIABLE: SECRET})
    check(done, tmp_path)
    assert list((tmp_path / "spark" / "work").glob("*/*/stderr")), "executors write logs there"


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_lands_through_spark_connect_and_no_secret_is_written(
    tmp_path: Path, connect_packages: Path
) -> None:
    environment = {VARIABLE: SECRET, "PYTHONPATH": str(connect_packages)}
    check(job("cluster_job", "connect", str(tmp_path), **environment), tmp_path)


@pytest.mark.spark
@pytest.mark.slow
def test_a_worker_without_the_package_says_so(
    coherer_url: str, coherer_topic: str, tmp_path: Path
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    (packages,) = (tmp_path / "bare").glob("[lL]ib/python*/site-packages")
    (packages / "pyarrow").symlink_to(Path(pyarrow.__file__).parent)
    bare = tmp_path / "bare" / "bin" / "python"
    with connect(coherer_url) as client, client.producer(coherer_topic) as producer:
        producer.send_many([Message(coherer_topic, b"x")]).check()
    done = job("bare_job", coherer_url, coherer_topic, str(bare))
    assert done.returncode == 0, done.stderr[-5000:]
    for said in done.stdout.split("=== writing"):
        assert f"This Spark worker runs {bare} on " in said
        assert "No module named 'coherer'. Install coherer[spark]" in said


def test_an_object_arrives_where_the_package_is() -> None:
    source = RocketMQDataSource({"url": "rocketmq://h:1"})
    for packed in (cloudpickle.dumps(source), pickle.dumps(source)):
        found = pickle.loads(packed)
        assert type(found) is RocketMQDataSource
        assert found.options == source.options


def test_the_code_that_unpacks_travels_too(tmp_path: Path) -> None:
    file = tmp_path / "packed"
    file.write_bytes(cloudpickle.dumps(RocketMQDataSource({})))
    code = (
        "import sys, pickle, pyspark.cloudpickle; sys.modules['coherer'] = None;"
        f"pickle.load(open({str(file)!r}, 'rb'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ImportError: This Spark worker runs " in done.stderr
    assert "set PYSPARK_PYTHON to its Python" in done.stderr


def test_another_version_is_named() -> None:
    packed = pickle.dumps(RocketMQDataSource).replace(b"RocketMQDataSource", b"RocketMQFutureData")
    with pytest.raises(ImportError, match=r"cannot load Coherer 9\.9\.9: .*RocketMQFutureData"):
        unpack(packed, "9.9.9")
