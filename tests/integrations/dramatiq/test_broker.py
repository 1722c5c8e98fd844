"""Messages over RocketMQ: what Dramatiq's users do with a broker."""

from __future__ import annotations

import json
import multiprocessing
import queue as queues
import threading
import time
from collections.abc import Callable
from datetime import timedelta
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
from coherer.testing import ManualClock, embedded_node
from tests.integrations.dramatiq.conftest import Make, Working
from tests.integrations.programs import Program, lines, until

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
    monkeypatch.setattr(plug, "TIMER_MAX", timedelta(milliseconds=300))
    broker, done = make(), Done()
    note = actor(broker, lambda sent: done.add(time.time() - sent), queue, actor_name="note")
    with working(broker):
        note.send_with_options(args=(time.time(),), delay=1_800)
        [waited] = done.wait(1)
        assert float(str(waited)) >= 1.79


def test_a_delay_that_cannot_be_sent_on_repeats_nothing_else(
    make: Make, url: str, queue: str, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, done = make(partitions=1), Done()
    refused, go_on = threading.Event(), threading.Event()
    real = broker.send

    def work(name: str) -> None:
        done.add(name)
        if name == "first":
            go_on.wait(WAIT_S)

    def refuse(message: dramatiq.Message[object], delay: timedelta) -> None:
        if not refused.is_set():
            refused.set()
            raise ConnectionClosed("The broker is down.")  # type: ignore[no-untyped-call]
        real(message, delay)

    note = actor(broker, work, queue, actor_name="note")
    tomorrow = (time.time() + 86_400) * 1000
    with connect(url) as client, client.producer() as producer, working(broker):
        note.send("first")
        assert done.wait(1) == ["first"]
        monkeypatch.setattr(broker, "send", refuse)
        producer.send(Message(queue, forged(queue, options={"eta": tomorrow})))
        assert refused.wait(WAIT_S)
        note.send("second")
        assert done.wait(1) == ["second"]
        go_on.set()


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


def forged(queue: str, **fields: object) -> bytes:
    """A message of actor note, with fields of which Dramatiq would never send some."""
    message = {
        "queue_name": queue,
        "actor_name": "note",
        "args": ["forged"],
        "kwargs": {},
        "options": {},
        "message_id": "1",
        "message_timestamp": 1,
    }
    return json.dumps(message | fields).encode()


def test_what_only_an_attacker_sends_is_a_dead_letter(
    make: Make, url: str, queue: str, working: Working
) -> None:
    """A worker has four threads: five messages of each kind would end them all."""
    broker, done = make(), Done()

    def fail(number: object) -> None:
        done.add(number)
        if number == "forged":
            raise ValueError("as it should")

    note = actor(broker, fail, queue, actor_name="note", max_retries=0)
    future = 4e15
    bodies = [
        b"not JSON",
        b"[]",
        b"[" * 100_000,
        forged(queue, args=3),
        forged(queue, more=1),
        forged(queue, queue_name="other"),
        forged(queue, queue_name=3),
        forged(queue, actor_name=["note"]),
        forged(queue, actor_name="none"),
        forged(queue, kwargs=[1]),
        forged(queue, options=3),
        forged(queue, message_id=None),
        forged(queue, message_timestamp="now"),
        forged(queue, options={"throws": "ValueError"}),
        forged(queue, options={"eta": "now"}),
        forged(queue, options={"eta": [1]}),
        forged(queue, options={"eta": 10**400}),
        forged(queue, options={"eta": float("nan")}),
        forged(queue, options={"eta": float("-inf")}),
        forged(queue, options={"eta": future}, actor_name="\1\2"),
        forged(queue, options={"eta": future}, message_id="x" * 40_000),
    ]
    note.send("first")
    with connect(url) as client, client.producer() as producer:
        for body in bodies * 5:
            producer.send(Message(queue, body))
        with working(broker):
            note.send("last")
            assert sorted(map(str, done.wait(2))) == ["first", "last"]
            until(lambda: client.exists(f"%DLQ%{queue}"))
            broker.join(queue, timeout=WAIT_S * 1000)
        dead = client.offsets(f"%DLQ%{queue}").values()
        assert sum(end for _, end in dead) == 5 * len(bodies)
    assert done.empty()


def test_options_that_middleware_cannot_use_end_no_thread(
    make: Make, url: str, queue: str, working: Working
) -> None:
    broker, done = make(), Done()
    note = actor(broker, done.add, queue, actor_name="note")
    broker.consume(queue).close()  # creates the topic
    names = ("retries", "max_retries", "time_limit", "max_age", "pipe_target", "on_success")
    with connect(url) as client, client.producer() as producer, working(broker):
        for name in names * 5:
            producer.send(Message(queue, forged(queue, options={name: ["no"]})))
        broker.join(queue, timeout=WAIT_S * 1000)
        note.send("last")
        while done.wait(1) != ["last"]:
            pass


def test_an_id_may_have_spaces(make: Make, queue: str, working: Working) -> None:
    broker, done = make(), Done()
    note = actor(broker, done.add, queue, actor_name="note")
    broker.enqueue(note.message(1).copy(message_id="an id"))
    with working(broker):
        assert done.wait(1) == [1]


def test_prefixes_separate_applications(make: Make, queue: str, working: Working) -> None:
    applications = {name: (make(name_prefix=name), Done()) for name in ("one-", "other-", "")}
    for name, (broker, done) in applications.items():
        actor(broker, done.add, queue, actor_name="note").send(name)
    for name, (broker, done) in applications.items():
        with working(broker):
            assert done.wait(1) == [name]
            broker.join(queue, timeout=WAIT_S * 1000)
        assert done.empty()


def test_a_queue_may_have_a_name_that_rocketmq_does_not_allow(
    make: Make, url: str, queue: str, working: Working
) -> None:
    broker, done = make(), Done()
    note = actor(broker, done.add, f"{queue}.high", actor_name="note")
    note.send(1)
    with working(broker):
        assert done.wait(1) == [1]
    with connect(url) as client:
        assert client.exists(f"{queue}-x2ehigh")


def test_a_broker_that_restarts_loses_nothing(make: Make, queue: str, working: Working) -> None:
    with embedded_node() as node:
        broker, done = make(node.rocketmq_url), Done()
        note = actor(broker, done.add, queue, actor_name="note")
        with working(broker):
            for number in range(100):
                note.send(number)
            seen = {*done.wait(20)}
            node.restart()
            for number in range(100, 200):
                note.send(number)
            while len(seen) < 200:
                seen |= {*done.wait(1)}
        broker.close()


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


def test_a_topic_that_was_deleted_meanwhile_is_made_again(
    make: Make, queue: str, working: Working
) -> None:
    with embedded_node(auto_create_topics=False) as node:
        broker, done = make(node.rocketmq_url), Done()
        note = actor(broker, done.add, queue, actor_name="note")
        note.send(1)
        with connect(node.rocketmq_url) as client:
            client.admin().topics.delete(queue)
            note.send(2)
            [found] = client.admin().topics.list(queue)
        assert found.partitions == 8
        with working(broker):
            assert done.wait(1) == [2]
        broker.close()


def test_a_message_is_found_by_its_id(make: Make, url: str, queue: str) -> None:
    note = actor(make(), lambda: None, queue, actor_name="note")
    sent = note.send()

    def found() -> bool:
        with connect(url) as client:
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
    note = actor(make(), lambda number: number, queue, actor_name="note")

    def worker() -> Program:
        command = ("-m", "dramatiq", "actors", "--processes", "2", "--threads", "2")
        log = tmp_path / "worker.log"
        return Program(*command, log=log, folder=tmp_path, URL=url, QUEUE=queue, NOTES=str(notes))

    for number in range(300):
        note.send(number)
    for enough in (60, 300):
        with worker():
            until(lambda enough=enough: len({*lines(notes)}) >= enough)
