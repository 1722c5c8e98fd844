"""Tasks over RocketMQ: what Taskiq's users do with a broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from taskiq import AckableMessage, BrokerMessage, SimpleRetryMiddleware
from taskiq.exceptions import SendTaskError
from taskiq.utils import maybe_awaitable

from coherer.blocking.rocketmq import connect
from coherer.errors import ClosedError, UnavailableError, UsageError
from coherer.integrations import taskiq as plug
from coherer.integrations.taskiq import RocketMQBroker
from coherer.message import Message
from coherer.testing import ManualClock, embedded_node
from tests.integrations.programs import Program, lines, until
from tests.integrations.taskiq.conftest import Working

WAIT_S = 30


class Done:
    """What tasks did."""

    def __init__(self) -> None:
        self.things: list[object] = []
        self._changed = asyncio.Condition()

    async def add(self, thing: object) -> None:
        self.things.append(thing)
        async with self._changed:
            self._changed.notify_all()

    async def wait(self, count: int) -> list[object]:
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: len(self.things) >= count)
        return self.things


async def test_tasks_that_waited_and_new_ones_run(url: str, topic: str, working: Working) -> None:
    broker, done = RocketMQBroker(url, topics=topic), Done()

    @broker.task
    async def note(number: int, *, name: str = "") -> None:
        await done.add((number, name))

    await broker.startup()
    await note.kiq(1, name="röt")
    await broker.shutdown()
    async with working(broker):
        assert await done.wait(1) == [(1, "röt")]
        await asyncio.gather(*(note.kiq(number) for number in range(2, 40)))
        found = await done.wait(39)
        assert Counter(found) == Counter([(1, "röt"), *((number, "") for number in range(2, 40))])


async def test_acknowledged_tasks_are_not_repeated(url: str, topic: str, working: Working) -> None:
    """Not even those that were still running when the worker was asked to stop."""
    broker, done, go = RocketMQBroker(url, topics=topic), Done(), asyncio.Event()

    @broker.task
    async def note(number: int) -> None:
        await done.add(number)
        await go.wait()
        await done.add(-number)

    async with working(broker):
        for number in range(1, 4):
            await note.kiq(number)
        await done.wait(3)
        asyncio.get_running_loop().call_soon(go.set)  # after the worker is asked to stop
    assert sorted(map(int, map(str, done.things))) == [-3, -2, -1, 1, 2, 3]
    async with working(broker):
        await note.kiq(9)
        assert (await done.wait(8))[6:] == [9, -9]


async def test_a_task_that_was_not_acknowledged_comes_again(url: str, topic: str) -> None:
    async def first(broker: RocketMQBroker, *, ack: bool) -> bytes:
        await broker.startup()
        task = await anext(broker.listen())
        assert isinstance(task, AckableMessage)
        if ack:
            await maybe_awaitable(task.ack())
        await broker.shutdown()
        return task.data

    broker = RocketMQBroker(url, topics=topic, partitions=1)
    await broker.startup()
    for name in (b"one", b"two"):
        await broker.kick(BrokerMessage(task_id="1", task_name="n", message=name, labels={}))
    async with asyncio.timeout(WAIT_S):
        assert await first(broker, ack=False) == b"one"
        assert await first(broker, ack=True) == b"one"
        assert await first(broker, ack=True) == b"two"


async def test_delays_are_the_brokers(topic: str, working: Working) -> None:
    with embedded_node(clock=ManualClock()) as node:
        broker, done = RocketMQBroker(node.rocketmq_url, topics=topic), Done()

        @broker.task
        async def note(number: int) -> None:
            await done.add(number)

        async with working(broker):
            await note.kicker().with_labels(delay=3600).kiq(1)
            await note.kicker().with_labels(delay="7200.5").kiq(2)
            await note.kicker().with_labels(delay=0).kiq(3)
            assert await done.wait(1) == [3]
            node.clock.advance(hours=1, seconds=1)
            assert await done.wait(2) == [3, 1]
            node.clock.advance(hours=1, seconds=1)
            assert await done.wait(3) == [3, 1, 2]


async def test_a_long_delay_is_waited_for_in_steps(
    url: str, topic: str, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plug, "TIMER_MAX", timedelta(milliseconds=300))
    broker, done = RocketMQBroker(url, topics=topic), Done()

    @broker.task
    async def note(kicked: float) -> None:
        await done.add(time.time() - kicked)

    async with working(broker):
        await note.kicker().with_labels(delay=1.5).kiq(time.time())
        (waited,) = await done.wait(1)
        assert float(str(waited)) >= 1.49


async def test_what_only_an_attacker_sends_stops_no_worker(
    url: str, topic: str, working: Working
) -> None:
    broker, done = RocketMQBroker(url, topics=topic), Done()

    @broker.task(task_name="note")
    async def note(number: int) -> None:
        await done.add(number)

    task = {"task_id": "1", "task_name": "note", "labels": {}, "args": [1], "kwargs": {}}
    bodies = [
        b"not JSON",
        b"[]",
        b"[" * 100_000,
        *(json.dumps(task | {n: 3}).encode() for n in task),
    ]
    dues = ["9" * 5000, "9" * 17, "-1", "1e3", "\N{SUPERSCRIPT TWO}"]

    def attack() -> None:
        with connect(url) as client, client.producer() as producer:
            for body in bodies:
                producer.send(Message(topic, body))
            for due in dues:
                properties = {"taskiq_due": due}
                producer.send(Message(topic, json.dumps(task).encode(), properties=properties))

    async with working(broker):
        await asyncio.to_thread(attack)
        await note.kiq(2)
        assert sorted(map(str, await done.wait(len(dues) + 1))) == ["1"] * len(dues) + ["2"]


async def test_a_broker_that_restarts_loses_nothing(topic: str, working: Working) -> None:
    with embedded_node() as node:
        broker, done = RocketMQBroker(node.rocketmq_url, topics=topic), Done()

        @broker.task
        async def note(number: int) -> None:
            await done.add(number)

        async with working(broker):
            await asyncio.gather(*(note.kiq(number) for number in range(100)))
            await done.wait(20)
            await asyncio.to_thread(node.restart)
            await asyncio.gather(*(note.kiq(number) for number in range(100, 200)))
            while len({*done.things}) < 200:
                await done.wait(len(done.things) + 1)


async def test_retries_go_through_the_broker(url: str, topic: str, working: Working) -> None:
    broker, done = RocketMQBroker(url, topics=topic), Done()
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))

    @broker.task(retry_on_error=True)
    async def fail() -> None:
        await done.add("tried")
        raise ValueError("as it should")

    async with working(broker):
        await fail.kiq()
        assert await done.wait(3) == ["tried"] * 3


async def test_topics_are_queues_with_workers_of_their_own(
    url: str, topic: str, working: Working
) -> None:
    fast = RocketMQBroker(url, topics=[topic, f"{topic}-b"])
    slow = RocketMQBroker(url, topics=f"{topic}-slow", group="slow")
    done = Done()

    async def note(name: str) -> None:
        await done.add(name)

    tasks = {broker: broker.register_task(note, task_name="note") for broker in (fast, slow)}
    async with working(fast), working(slow):
        await tasks[fast].kicker().with_labels(topic=f"{topic}-b").kiq("second topic")
        await tasks[fast].kicker().with_labels(topic=f"{topic}-slow").kiq("other workers")
        assert sorted(map(str, await done.wait(2))) == ["other workers", "second topic"]


async def test_a_topic_that_was_deleted_meanwhile_is_made_again(
    topic: str, working: Working
) -> None:
    with embedded_node(auto_create_topics=False) as node:
        broker, done = RocketMQBroker(node.rocketmq_url, topics=topic), Done()

        @broker.task
        async def note(number: int) -> None:
            await done.add(number)

        await broker.startup()
        await note.kiq(1)
        with connect(node.rocketmq_url) as client:
            client.admin().topics.delete(topic)
            await note.kiq(2)
            [found] = client.admin().topics.list(topic)
        assert found.partitions == 8
        await broker.shutdown()
        async with working(broker):
            assert await done.wait(1) == [2]


async def test_a_task_is_found_by_its_id(url: str, topic: str) -> None:
    broker = RocketMQBroker(url, topics=topic)

    @broker.task
    async def note() -> None: ...

    await broker.startup()
    task = await note.kicker().with_task_id("an id with spaces").kiq()
    assert task.task_id == "an id with spaces"
    await broker.shutdown()

    def found() -> bool:
        with connect(url) as client:
            messages = client.admin().messages.find(topic, "id")
        return [one.properties["taskiq_task"] for one in messages] == [note.task_name]

    await asyncio.to_thread(until, found)


async def test_mistakes_are_named(url: str, topic: str) -> None:
    with pytest.raises(UsageError, match="tubemq"):
        RocketMQBroker("tubemq://127.0.0.1:8715")
    with pytest.raises(UsageError, match="needs a topic"):
        RocketMQBroker(url, topics=[])
    broker = RocketMQBroker(url, topics=topic)

    @broker.task
    async def note() -> None: ...

    with pytest.raises(SendTaskError) as raised:
        await note.kiq()
    assert isinstance(raised.value.__cause__, ClosedError)
    await broker.startup()
    with pytest.raises(SendTaskError) as raised:
        await note.kicker().with_labels(delay="soon").kiq()
    assert "label delay is 'soon'" in str(raised.value.__cause__)
    await broker.shutdown()
    await broker.shutdown()
    nobody = RocketMQBroker("rocketmq://127.0.0.1:9", connect_timeout_ms=100, timeout_ms=200)
    with pytest.raises(UnavailableError):
        await nobody.startup()


TASKS = """
import os, time
from coherer.integrations.taskiq import RocketMQBroker

broker = RocketMQBroker(os.environ["URL"], topics=os.environ["TOPIC"])

@broker.task(task_name="note")
def note(number: int) -> None:
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{number}\\n")
    time.sleep(0.01)
"""


async def test_killed_workers_lose_nothing(url: str, topic: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    notes = tmp_path / "notes"
    broker = RocketMQBroker(url, topics=topic)

    @broker.task(task_name="note")
    def note(number: int) -> None: ...

    def worker() -> Program:
        command = ("-m", "taskiq", "worker", "tasks:broker", "--workers", "2")
        log = tmp_path / "worker.log"
        return Program(*command, log=log, folder=tmp_path, URL=url, TOPIC=topic, NOTES=str(notes))

    await broker.startup()
    await asyncio.gather(*(note.kiq(number) for number in range(400)))
    await broker.shutdown()
    for enough in (100, 400):
        with worker():
            await asyncio.to_thread(until, lambda enough=enough: len({*lines(notes)}) >= enough)


async def test_a_task_that_cannot_be_sent_on_waits_and_disturbs_no_other(
    topic: str, working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plug, "TIMER_MAX", timedelta(milliseconds=300))
    with embedded_node(clock=ManualClock()) as node:
        broker, done = RocketMQBroker(node.rocketmq_url, topics=topic), Done()
        begun, goes_on = asyncio.Event(), asyncio.Event()

        @broker.task
        async def note(what: str) -> None:
            await done.add(what)

        @broker.task
        async def slow() -> None:
            begun.set()
            await goes_on.wait()
            await done.add("slow")

        async with working(broker):
            await slow.kiq()
            await begun.wait()
            await note.kicker().with_labels(delay=1.5).kiq("late")
            with node.faults.refuse("send", code=1, topic=topic, times=1) as refused:
                node.clock.advance(seconds=1)
                await asyncio.to_thread(until, lambda: refused.hits)
            goes_on.set()
            await note.kiq("other")
            assert sorted(map(str, await done.wait(2))) == ["other", "slow"]

            def late() -> bool:
                node.clock.advance(seconds=11)  # the first retry, and each step
                return len(done.things) == 3

            await asyncio.to_thread(until, late)
            assert done.things[2] == "late"
