"""The Celery application of the tests; workers import it in processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import celery

import coherer.integrations.kombu  # noqa: F401 - registers rocketmq://


def record(path: str, line: str) -> None:
    """Append a line to a file: what has run."""
    with Path(path).open("a") as file:
        file.write(f"{line}\n")


def make_app(broker: str, backend: str | None, prefix: str) -> celery.Celery:
    """The application on a cluster; `prefix` separates it from those of other tests."""
    app = celery.Celery("tests", broker=broker, backend=backend)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"partitions": 4, "name_prefix": prefix},
        task_publish_retry_policy={"max_retries": 50, "interval_start": 0.1, "interval_max": 0.2},
    )

    @app.task(shared=False, name="add")
    def add(one: int, other: int) -> int:
        return one + other

    @app.task(shared=False, name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(shared=False, name="note")
    def note(path: str, text: str) -> None:
        record(path, f"{text} {time.time()}")

    @app.task(shared=False, name="work", acks_late=True)
    def work(path: str, text: str, seconds: float) -> None:
        time.sleep(seconds)
        record(path, text)

    @app.task(shared=False, name="third_time", bind=True, max_retries=5)
    def third_time(self: Any, path: str) -> int:
        record(path, "tried")
        tries = len(Path(path).read_text().split())
        if tries < 3:
            raise self.retry(countdown=1)  # at once, it could end before its state is RETRY
        return tries

    return app


app = make_app(
    os.environ.get("TEST_BROKER", "rocketmq://127.0.0.1"),
    os.environ.get("TEST_BACKEND"),
    os.environ.get("TEST_PREFIX", ""),
)
