"""Messages over RocketMQ: what Dramatiq's users do with a broker."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue as queues
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Retries

from coherer.blocking.rocketmq import connect
from coherer.errors import UsageError
from coherer.integrations import dramatiq as plug
from coherer.integrations.dramatiq import RocketMQBroker
from coherer.message import Message
from coherer.testing import EmbeddedNode, ManualClock, embedded_node
from tests.integrations.dramatiq.conftest import Make, Working

WAIT_S = 60


class Done:
    """What actors did."""

    def __init__(self) -> None:
        self._things: queues.Queue[object] = queues.Queue()

    def add(self, thing: object) -> None:
        self._things.put(thing)

    def wait(self, count: int) -> list[object]:
        return [self._things.get(timeout=WAIT_S) for _ in range(count)]

    def empty(self) -> bool:
        return self._things.empty()


def actor(
    broker: dramatiq.Broker, function: Callable[..., object], queue: str, **options: object
) -> dramatiq.Actor[..., object]:
    return dramatiq.actor(function, broker=broker, queue_name=queue, **options)  # type: ignore[call-overload, no-any-return]


def test_messages_that_waited_and_new_ones_are_processed(
    make: Make, queue: str, working: Working
) -> None:
    broker, done = make(), Done()
    note = actor(broker, lambda number, name="": done.add((number, name)), queue, actor_name="note")
    note.send(1, name="röt")
    with working(broker):
        assert done.wait(1) == [(1, "röt")]
        for number in range(2, 60):
            note.send(number)
        found = done.wait(58)
        assert sorted(map(str, found)) == sorted(str((n, "")) for n in range(2, 60))
        broker.join(queue, timeout=WAIT_S * 1000)
    assert done.empty()


def test_a_worker_that_stops_leaves_what_it_did_not_process(
    make: Make, queue: str, working: Working
) -> None:
    broker, done = make(partitions=1), Done()

    def slowly(number: int) -> None:
        done.add(number)
        time.sleep(0.02)

    slow = actor(broker, slowly, queue, actor_name="slow")
    for number in range(60):
        slow.send(number)
    with working(broker):
        first = done.wait(5)
    seen = {*map(str, first)}
    while not done.empty():
        seen |= {*map(str, done.wait(1))}
    assert len(seen) < 60
    again = make(partitions=1)
    actor(again, slowly, queue, actor_name="slow")
    with working(again):
        while len(seen) < 60:
            seen |= {*map(str, done.wait(1))}


def test_delays_are_the_brokers(queue: str, make: Make, working: Working) -> None:
    with embedded_node(clock=ManualClock()) as node:
        broker, done = make(node.rocketmq_url), Done()
        note = actor(broker, done.add, queue, actor_name="note")
        with working(broker):
            note.send_with_options(args=(1,), delay=3_600_000)
            note.send_with_options(args=(2,), delay=7_200_500)
            note.send_with_options(args=(3,), delay=0)
            assert done.wait(1) == [3]
            node.clock.advance(hours=1, seconds=1)
            assert done.wait(1) == [1]
            node.clock.advance(hours=1, seconds=1)
            assert done.wait(1) == [2]
        broker.close()


def test_a_long_delay_is_waited_for_in_steps(
    make: Make, queue: str, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plug, "TIMER_MAX_MS", 300)
    broker, done = make(), Done()
    note = actor(broker, lambda sent: done.add(time.time() - sent), queue, actor_name="note")
    with working(broker):
        note.send_with_options(args=(time.time(),), delay=1_800)
        [waited] = done.wait(1)
        assert float(str(waited)) >= 1.79


def test_what_fails_is_tried_again_and_then_is_a_dead_letter(
    make: Make, url: str, queue: str, working: Working
) -> None:
    broker, done = make(middleware=[Retries(max_retries=2, min_backoff=10, max_backoff=20)]), Done()

    def fail() -> None:
        done.add("tried")
        raise ValueError("as it should")

    failing = actor(broker, fail, queue, actor_name="fail")
    with working(broker):
        sent = failing.send()
        assert done.wait(3) == ["tried"] * 3
        with connect(url) as client:
            until(lambda: client.exists(f"%DLQ%{queue}"))
            with client.consumer("look", f"%DLQ%{queue}", start="earliest") as consumer:
                batch = consumer.receive(WAIT_S * 1000)
                assert batch is not None
                [dead] = batch
                assert dramatiq.Message.decode(bytes(dead.body)).message_id == sent.message_id
        broker.join(queue, timeout=WAIT_S * 1000)


def test_what_is_no_message_is_a_dead_letter(
    make: Make, url: str, queue: str, working: Working
) -> None:
    broker, done = make(), Done()
    note = actor(broker, done.add, queue, actor_name="note")
    note.send(1)
    with connect(url) as client, client.producer() as producer:
        producer.send(Message(queue, b"not JSON"))
        with working(broker):
            assert done.wait(1) == [1]
            until(lambda: client.exists(f"%DLQ%{queue}"))
            broker.join(queue, timeout=WAIT_S * 1000)


def test_a_flushed_queue_is_empty(make: Make, queue: str, working: Working) -> None:
    broker, done = make(), Done()
    note = actor(broker, done.add, queue, actor_name="note")
    broker.flush(queue)  # nothing was sent yet
    broker.join(queue, timeout=0)
    note.send(1)
    with pytest.raises(QueueJoinTimeout):
        broker.join(queue, timeout=100)
    broker.flush_all()
    broker.join(queue, timeout=WAIT_S * 1000)
    note.send(2)
    with working(broker):
        assert done.wait(1) == [2]


def test_a_message_is_found_by_its_id(make: Make, node: EmbeddedNode, queue: str) -> None:
    note = actor(make(node.rocketmq_url), lambda: None, queue, actor_name="note")
    sent = note.send()

    def found() -> bool:
        with connect(node.rocketmq_url) as client:
            messages = client.admin().messages.find(queue, sent.message_id)
        return [one.properties["dramatiq_actor"] for one in messages] == ["note"]

    until(found)


def test_mistakes_are_named(make: Make, queue: str) -> None:
    with pytest.raises(UsageError, match="tubemq"):
        RocketMQBroker("tubemq://127.0.0.1:8715")
    broker = make()
    for call in (broker.flush, broker.join, broker.consume):
        with pytest.raises(QueueNotFound):
            call("nosuch")
    nobody = make("rocketmq://127.0.0.1:9", connect_timeout_ms=100, timeout_ms=200)
    note = actor(nobody, lambda: None, queue, actor_name="note")
    with pytest.raises(ConnectionClosed):
        note.send()
    with pytest.raises(ConnectionClosed):
        nobody.consume(queue)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_process_connects_anew(make: Make, queue: str, working: Working) -> None:
    broker, done = make(), Done()
    note = actor(broker, done.add, queue, actor_name="note")
    note.send(1)
    child = multiprocessing.get_context("fork").Process(target=note.send, args=(2,))
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == 0
    with working(broker):
        assert sorted(map(str, done.wait(2))) == ["1", "2"]


ACTORS = """
import os, time
import dramatiq
from coherer.integrations.dramatiq import RocketMQBroker

dramatiq.set_broker(RocketMQBroker(os.environ["URL"]))

@dramatiq.actor(queue_name=os.environ["QUEUE"])
def note(number):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{number}\\n")
    time.sleep(0.01)
"""


def test_killed_workers_lose_nothing(make: Make, url: str, queue: str, tmp_path: Path) -> None:
    (tmp_path / "actors.py").write_text(ACTORS)
    notes = tmp_path / "notes"
    environment = {**os.environ, "URL": url, "QUEUE": queue, "NOTES": str(notes)}
    note = actor(make(), lambda number: number, queue, actor_name="note")

    def seen() -> set[str]:
        return {*notes.read_text().split()} if notes.exists() else set()

    for number in range(300):
        note.send(number)
    for enough in (60, 120):
        with worker(tmp_path, environment) as process:
            until(lambda enough=enough: len(seen()) >= enough)
            os.killpg(process.pid, signal.SIGKILL)
    with worker(tmp_path, environment):
        until(lambda: len(seen()) == 300)


@contextlib.contextmanager
def worker(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Dramatiq's own command, which runs the actors in processes of its own."""
    command = [sys.executable, "-m", "dramatiq", "actors", "--processes", "2", "--threads", "2"]
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(holds: Callable[[], object]) -> None:
    """Look again every few milliseconds until a condition holds."""
    end = time.monotonic() + 3 * WAIT_S
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.02)
