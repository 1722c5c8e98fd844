"""Nodes and Celery workers in processes of their own."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

from tests.integrations.kombu.celery_app import make_app
from tests.integrations.programs import Program
from tests.interop.peers.process import free_ports

Connect = Callable[..., kombu.Connection]


class Cluster:
    """A node in a process of its own, which may be killed and started again."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        self._directory = directory
        self._ports = ports
        self.url = f"rocketmq://127.0.0.1:{ports['namesrv']}"
        self.start()

    def start(self) -> None:
        """Start it, on the same ports and files as before."""
        options = [f"--{name}-port={port}" for name, port in self._ports.items()]
        self.process = Program(
            *("-m", "coherer", "serve", "-d", str(self._directory / "data"), *options),
            log=self._directory / f"{uuid.uuid4().hex}.log",
        )
        self.process.await_text("Press Ctrl-C")

    def kill(self) -> None:
        """Kill it at once."""
        self.process.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A node that the test may kill."""
    directory = tmp_path / "node"
    directory.mkdir()
    names = ("namesrv", "rocketmq", "master", "broker", "admin")
    found = Cluster(directory, dict(zip(names, free_ports(len(names)), strict=True)))
    yield found
    found.process.stop()


@pytest.fixture
def prefix() -> str:
    """A prefix of the test's topics and groups: tests share a node."""
    return f"{uuid.uuid4().hex[:8]}-"


@pytest.fixture
def connect(coherer_rocketmq_url: str, prefix: str) -> Iterator[Connect]:
    """Makes connections to the session's node, which are released after the test."""
    with contextlib.ExitStack() as made:

        def make(url: str = coherer_rocketmq_url, **options: object) -> kombu.Connection:
            options = {"name_prefix": prefix, "partitions": 2} | options
            connection = kombu.Connection(url, transport_options=options)
            made.callback(connection.release)
            return connection

        yield make


class Celery:
    """The application in `celery_app`, in this process and in workers."""

    def __init__(self, url: str, prefix: str, directory: Path) -> None:
        results = directory / "results"
        results.mkdir()
        self._directory = directory
        self._environment = {
            "TEST_BROKER": url,
            "TEST_BACKEND": results.as_uri(),
            "TEST_PREFIX": prefix,
        }
        self.app = make_app(url, results.as_uri(), prefix)
        self._workers: list[Program] = []

    def task(self, name: str) -> Any:
        """A task of the application."""
        return self.app.tasks[name]

    def worker(self, name: str, *options: str) -> Program:
        """Start a worker, and wait until it is ready."""
        command = ["-m", "celery", "-A", "tests.integrations.kombu.celery_app", "worker"]
        command += ["-n", f"{name}@test", "-c", "2", "-l", "INFO", *options]
        worker = Program(*command, log=self._directory / f"{name}.log", **self._environment)
        self._workers.append(worker)
        worker.await_text(f"{name}@test ready")
        return worker

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.kill()
        kombu.pools.reset()
        self.app.close()


@contextlib.contextmanager
def celery_on(url: str, prefix: str, directory: Path) -> Generator[Celery]:
    """The application on a cluster."""
    found = Celery(url, prefix, directory)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def celery(coherer_rocketmq_url: str, prefix: str, tmp_path: Path) -> Iterator[Celery]:
    """The application on the session's node."""
    with celery_on(coherer_rocketmq_url, prefix, tmp_path) as found:
        yield found
