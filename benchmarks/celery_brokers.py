"""Celery over Coherer, Redis and RabbitMQ on one machine: speed, and what `kill -9` costs.

    python benchmarks/celery_brokers.py [coherer redis rabbitmq]

It needs `celery[redis]`, `coherer[celery]`, `redis-server` and `rabbitmq-server`, and starts what
it measures, with the defaults of each. It is run by hand; the table is in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celery

import coherer.integrations.kombu  # noqa: F401 - registers rocketmq://

TASKS = 5_000
SINGLES = 300
LOST_OF = 400
WAIT_S = 90.0

app = celery.Celery("bench", broker=os.environ.get("BENCH_BROKER"))
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)


def append(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, text.encode())
    os.close(file)


@app.task(name="count")
def count(path: str) -> None:
    append(path, ".")


@app.task(name="clock")
def clock(path: str, sent_s: float) -> None:
    append(path, f"{(time.time() - sent_s) * 1000}\n")


@app.task(name="late", acks_late=True)
def late(path: str, number: int) -> None:
    time.sleep(0.01)
    append(path, f"{number}\n")


class Program:
    """A process group with a log."""

    def __init__(self, command: list[str], log: Path, **environment: str) -> None:
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                env=os.environ | environment,
                cwd=Path(__file__).parent,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def await_that(holds: Callable[[], object], wait_s: float = WAIT_S) -> bool:
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return False


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Broker:
    """A broker with its defaults, on files that survive it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self._log = directory / "broker.log"
        self.port = {"coherer": 39876, "redis": 36379, "rabbitmq": 35672}[kind]
        scheme = {"coherer": "rocketmq", "redis": "redis", "rabbitmq": "amqp"}[kind]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        if kind == "rabbitmq":
            self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> None:
        data, environment = self._directory / "data", {}
        data.mkdir(exist_ok=True)
        for path in (self._directory, data):  # RabbitMQ runs as a user of its own
            path.chmod(0o777)
        if self.kind == "coherer":
            command = [sys.executable, "-m", "coherer", "serve", "-d", str(data)]
            ports = {"namesrv": 39876, "rocketmq": 39911, "master": 38715, "broker": 38123}
            command += [f"--{name}-port={port}" for name, port in ports.items()]
            command += ["--admin-port=38080"]
        elif self.kind == "redis":
            command = ["redis-server", "--port", str(self.port), "--dir", str(data)]
        else:
            command = ["rabbitmq-server"]
            environment = {
                "RABBITMQ_NODE_PORT": str(self.port),
                "RABBITMQ_DIST_PORT": "35673",
                "RABBITMQ_NODENAME": "bench@localhost",
                "RABBITMQ_MNESIA_BASE": str(data),
                "RABBITMQ_LOG_BASE": str(self._directory),
                "RABBITMQ_PID_FILE": str(data / "pid"),
                "HOME": str(self._directory),
            }
        self._program = Program(command, self._log, **environment)
        if not await_that(lambda: listens(self.port)):
            raise SystemExit(f"{self.kind} does not start: {self._log.read_text()[-2000:]}")
        time.sleep(3)  # RabbitMQ opens its port before it serves

    def kill(self) -> None:
        pid = self._directory / "data/pid"
        if pid.exists():  # RabbitMQ, which runs in a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
        self._program.kill()
        await_that(lambda: not listens(self.port))


def worker(broker: Broker, directory: Path) -> Program:
    log = directory / f"worker-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "celery", "-A", "celery_brokers", "worker", "-c", "2"]
    command += ["-l", "INFO", "--without-gossip", "--without-mingle"]
    found = Program(command, log, BENCH_BROKER=broker.url)
    if not await_that(lambda: log.exists() and " ready." in log.read_text()):
        raise SystemExit(f"the worker does not start: {log.read_text()[-2000:]}")
    return found


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def numbers(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def measure(kind: str, directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    broker = Broker(kind, directory)
    broker.start()
    app.conf.broker_url = broker.url
    running = worker(broker, directory)
    try:
        # speed
        path = directory / "warm"
        count.delay(str(path))
        await_that(lambda: size(path) == 1)
        path = directory / "rate"
        start = time.perf_counter()
        for _ in range(TASKS):
            count.delay(str(path))
        found["sent/s"] = round(TASKS / (time.perf_counter() - start))
        await_that(lambda: size(path) == TASKS)
        found["sent and run/s"] = round(TASKS / (time.perf_counter() - start))
        path = directory / "latency"
        for number in range(SINGLES):
            clock.delay(str(path), time.time())
            await_that(lambda number=number: len(numbers(path)) > number)
        times = sorted(map(float, numbers(path)))
        found["latency p50 ms"] = round(statistics.median(times), 1)
        found["latency p99 ms"] = round(times[len(times) * 99 // 100], 1)
        running.kill()
        running = worker(broker, directory)
        path = directory / "backlog"
        running.kill()
        for _ in range(TASKS):
            count.delay(str(path))
        running = worker(broker, directory)
        await_that(lambda: size(path) > 0)
        start, at = time.perf_counter(), size(path)
        await_that(lambda: size(path) >= TASKS)
        found["backlog/s"] = round((TASKS - at) / (time.perf_counter() - start))
        # kill -9 of a worker, late acknowledgements
        path = directory / "worker-killed"
        for number in range(LOST_OF):
            late.delay(str(path), number)
        await_that(lambda: len(numbers(path)) > LOST_OF // 4)
        running.kill()
        start = time.perf_counter()
        running = worker(broker, directory)
        done = await_that(lambda: len(set(numbers(path))) == LOST_OF)
        after = f"{time.perf_counter() - start:.0f} s" if done else f"not in {WAIT_S:.0f} s"
        found["worker killed: all run after"] = after
        found["worker killed: missing"] = LOST_OF - len(set(numbers(path)))
        found["worker killed: repeated"] = len(numbers(path)) - len(set(numbers(path)))
        running.kill()
        # kill -9 of the broker, tasks waiting
        path = directory / "broker-killed"
        for number in range(LOST_OF):
            late.delay(str(path), number)
        broker.kill()
        broker.start()
        running = worker(broker, directory)
        await_that(lambda: len(set(numbers(path))) == LOST_OF, 30)
        found["broker killed: missing"] = LOST_OF - len(set(numbers(path)))
    finally:
        running.kill()
        broker.kill()
        app.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["coherer", "redis", "rabbitmq"])
    kinds = parser.parse_args().kinds
    if len(kinds) > 1:  # an application keeps its connections: one process for each
        for kind in kinds:
            subprocess.run([sys.executable, __file__, kind], check=True)
        return
    for kind in kinds:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            found = measure(kind, Path(directory))
        print(kind, *(f"  {name}: {value}" for name, value in found.items()), sep="\n", flush=True)


if __name__ == "__main__":
    main()
