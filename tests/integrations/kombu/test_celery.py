"""Celery over RocketMQ: workers, `celery inspect`, and tasks in processes of their own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import celery as celery_package
from celery.result import AsyncResult

from tests.integrations.kombu.conftest import Celery, Cluster, celery_on
from tests.integrations.programs import lines, until


def test_results_groups_chords_chains_and_retries(celery: Celery, tmp_path: Path) -> None:
    celery.worker("a")
    add, total = celery.task("add"), celery.task("total")
    assert add.delay(1, 2).get(timeout=30) == 3
    assert celery_package.group(add.s(n, n) for n in range(10))().get(timeout=30) == [
        2 * n for n in range(10)
    ]
    assert celery_package.chord([add.s(n, n) for n in range(10)])(total.s()).get(timeout=30) == 90
    assert celery_package.chain(add.s(1, 1), add.s(3))().get(timeout=30) == 5
    assert celery.task("third_time").delay(str(tmp_path / "tries")).get(timeout=30) == 3


def test_inspect_and_control_reach_workers_in_other_processes(celery: Celery) -> None:
    celery.worker("a")
    other = celery.worker("b")
    control = celery.app.control
    pongs = {"a@test": {"ok": "pong"}, "b@test": {"ok": "pong"}}
    assert control.inspect(timeout=30, limit=2).ping() == pongs
    assert control.ping(timeout=30, limit=2) in (
        [{name: pong} for name, pong in pongs.items()],
        [{name: pong} for name, pong in reversed(pongs.items())],
    )
    active = control.inspect(["a@test"], timeout=30, limit=1).active_queues()
    assert [queue["name"] for queue in active["a@test"]] == ["celery"]
    control.add_consumer("more", destination=["a@test"], reply=True, timeout=30, limit=1)
    assert celery.task("add").apply_async((1, 1), queue="more").get(timeout=30) == 2
    control.shutdown(destination=["b@test"])
    other.process.wait(30)
    assert other.process.returncode == 0
    assert control.inspect(timeout=30, limit=1).ping() == {"a@test": {"ok": "pong"}}


def test_events_reach_other_processes(celery: Celery) -> None:
    celery.worker("a", "-E")
    seen: list[str] = []
    with celery.app.connection_for_read() as connection:
        receiver = celery.app.events.Receiver(
            connection, handlers={"*": lambda event: seen.append(event["type"])}
        )
        with receiver.consumer_context(wakeup=False) as (reading, _, _):
            celery.task("add").delay(1, 2)
            while "task-succeeded" not in seen:
                reading.drain_events(timeout=30)
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)


def test_the_broker_waits_for_an_eta(celery: Celery, tmp_path: Path) -> None:
    worker = celery.worker("a")
    notes = tmp_path / "notes"
    began_s = time.time()
    celery.task("note").apply_async((str(notes), "later"), countdown=2)
    later = celery.task("add").apply_async((1, 1), countdown=3600)
    assert celery.task("add").delay(1, 2).get(timeout=30) == 3  # what was sent before has arrived
    [scheduled] = celery.app.control.inspect(timeout=30, limit=1).scheduled().values()
    assert scheduled == []
    [note] = until(lambda: lines(notes))
    assert float(note.split()[1]) - began_s >= 2
    assert later.id not in worker.log.read_text()


def test_a_revoked_task_does_not_run(celery: Celery, tmp_path: Path) -> None:
    worker = celery.worker("a")
    notes = tmp_path / "notes"
    result: AsyncResult[Any] = celery.task("note").apply_async((str(notes), "never"), countdown=2)
    celery.app.control.revoke(result.id, reply=True, timeout=30, limit=1)
    worker.await_text(f"Discarding revoked task: note[{result.id}]")
    assert lines(notes) == []


def test_no_task_is_lost_when_a_worker_is_killed(celery: Celery, tmp_path: Path) -> None:
    killed = celery.worker("a")
    done = tmp_path / "done"
    for number in range(40):
        celery.task("work").delay(str(done), str(number), 0.05)
    until(lambda: len(lines(done)) > 5)
    killed.kill()
    celery.worker("b")
    until(lambda: set(lines(done)) == {str(number) for number in range(40)})


def test_no_task_is_lost_when_the_broker_is_killed(
    cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    with celery_on(cluster.url, prefix, tmp_path) as celery:
        celery.worker("a")
        done = tmp_path / "done"
        for number in range(20):
            celery.task("work").delay(str(done), str(number), 0.05)
        until(lambda: len(lines(done)) > 5)
        cluster.kill()
        cluster.start()
        for number in range(20, 40):
            celery.task("work").delay(str(done), str(number), 0)
        until(lambda: set(lines(done)) == {str(number) for number in range(40)})


def test_a_worker_waits_for_its_broker(cluster: Cluster, prefix: str, tmp_path: Path) -> None:
    """The consumer's connection survives the broker, and control works afterwards."""
    with celery_on(cluster.url, prefix, tmp_path) as celery:
        celery.worker("a")
        cluster.kill()
        cluster.start()
        control = celery.app.control
        until(lambda: control.inspect(timeout=1).ping() == {"a@test": {"ok": "pong"}})
