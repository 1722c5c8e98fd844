"""Triggers, run as Airflow's triggerer runs them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Connection
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseEventTrigger
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome, SharedStreamManager

from coherer import Message, connect, rocketmq
from coherer.blocking import connect as connect_blocking
from coherer.integrations.airflow import triggers as plug
from coherer.integrations.airflow.hooks import RocketMQHook, TubeMQHook
from coherer.integrations.airflow.operators import ConsumeOperator
from coherer.integrations.airflow.sensors import MessageSensor
from coherer.integrations.airflow.triggers import AwaitMessageTrigger, MessageTrigger
from coherer.testing import ManualClock, embedded_node
from tests.waiting import until

both = pytest.mark.parametrize("conn_id", ["coherer_default", "tubemq_default"])
WAIT_S = 60
numbers = itertools.count(1)


class Watcher:
    """A trigger in the triggerer: takes its events, and says which are stored."""

    def __init__(self, manager: SharedStreamManager, trigger: BaseEventTrigger) -> None:
        self._manager = manager
        self._key = trigger.shared_stream_key()
        self.id = next(numbers)
        stream = manager.subscribe(trigger_id=self.id, trigger=trigger, key=self._key)
        self._events = trigger.filter_shared_stream(stream)

    async def body(self, *, stored: bool = True) -> str:
        """The text of the next event; `stored` as in the metadata database."""
        async with asyncio.timeout(WAIT_S):
            event = await anext(self._events)
        number = self._manager.bind_pending_event(trigger_id=self.id, key=self._key)
        if stored:
            assert number is not None
            self._manager.confirm_persisted([number])
        return str(event.payload["body"])

    async def stop(self) -> None:
        await self._manager.unsubscribe(self.id, self._key)


@asynccontextmanager
async def watching(*triggers: BaseEventTrigger) -> AsyncIterator[list[Watcher]]:
    """A triggerer's manager of streams, which ends as if the triggerer were killed."""
    manager = SharedStreamManager()
    watchers = [Watcher(manager, trigger) for trigger in triggers]
    try:
        yield watchers
    finally:
        for watcher in watchers:
            await watcher.stop()


async def send(url: str, topic: str, *bodies: str) -> None:
    async with connect(url) as client, client.producer() as producer:
        (await producer.send_many(Message(topic, body.encode()) for body in bodies)).check()


@both
async def test_events_that_are_not_stored_come_again(url: str, topic: str, conn_id: str) -> None:
    trigger = MessageTrigger(topic, group=f"{topic}-group", conn_id=conn_id)
    await send(url, topic, "1", "2", "3")
    async with watching(trigger) as [watcher]:
        first = [await watcher.body(stored=False) for _ in range(3)]
        assert sorted(first) == ["1", "2", "3"]
    async with watching(trigger) as [watcher]:
        again = [await watcher.body() for _ in range(3)]
        assert sorted(again) == ["1", "2", "3"]
        await send(url, topic, "4")
        assert await watcher.body() == "4"
        await send(url, topic, "5")
        assert await watcher.body(stored=False) == "5"  # so 4 is settled
    async with watching(trigger) as [watcher]:
        found = {await watcher.body()}
        assert "5" in found or found == {"4"}  # TubeMQ commits with the next request


@both
async def test_a_failed_event_is_delivered_again(conn_id: str) -> None:
    clock = ManualClock()
    with embedded_node(clock=clock) as node, pytest.MonkeyPatch.context() as patched:
        url = node.url if conn_id == "tubemq_default" else node.rocketmq_url
        patched.setenv("AIRFLOW_CONN_CLOCK", url)
        node.create_topic("t")
        await send(url, "t", "1")
        _, kwargs = MessageTrigger("t", "g", conn_id="clock").serialize()
        stream = MessageTrigger.create_shared_stream_producer(kwargs)
        events = stream.open_stream()
        try:
            _, payload = await anext(events)
            await stream.advance([AdvanceItem(payload, AdvanceOutcome(acked=1, failed=1))])
            clock.advance(seconds=11)  # RocketMQ waits 10 s before the first redelivery
            async with asyncio.timeout(WAIT_S):
                again, _ = await anext(events)
            assert again["body"] == "1"
        finally:
            await stream.aclose()


async def test_only_the_failed_event_of_a_batch_is_delivered_again() -> None:
    """With RocketMQ; TubeMQ's brokers deliver a batch again as a whole."""
    clock = ManualClock()
    with embedded_node(clock=clock) as node, pytest.MonkeyPatch.context() as patched:
        patched.setenv("AIRFLOW_CONN_CLOCK", node.rocketmq_url)
        node.create_topic("t", 1)
        await send(node.rocketmq_url, "t", "1", "2", "3")
        _, kwargs = MessageTrigger("t", "g", conn_id="clock").serialize()
        stream = MessageTrigger.create_shared_stream_producer(kwargs)
        events = stream.open_stream()
        try:
            taken = [await anext(events) for _ in range(3)]
            await stream.advance(
                [
                    AdvanceItem(payload, AdvanceOutcome(acked=1, failed=int(event["body"] == "2")))
                    for event, payload in taken
                ]
            )
            await send(node.rocketmq_url, "t", "4")
            clock.advance(seconds=11)
            async with asyncio.timeout(WAIT_S):
                later = [(await anext(events))[0]["body"] for _ in range(2)]
            assert sorted(later) == ["2", "4"]
            assert node.requests.count("retry") == 1
        finally:
            await stream.aclose()


async def test_a_backlog_waits_for_the_database(url: str, topic: str) -> None:
    await send(url, topic, *map(str, range(plug.WINDOW + 1)))
    _, kwargs = MessageTrigger(topic, f"{topic}-group").serialize()
    stream = MessageTrigger.create_shared_stream_producer(kwargs)
    events = stream.open_stream()
    taken = [await anext(events) for _ in range(plug.WINDOW)]
    more = asyncio.ensure_future(anext(events))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not more.done()
    await stream.advance([AdvanceItem(taken[0][1], AdvanceOutcome(acked=1, failed=0))])
    async with asyncio.timeout(WAIT_S):
        await more
    await stream.aclose()


async def test_one_connection_for_many_triggers(url: str, topic: str) -> None:
    groups = [f"{topic}-{number}" for number in range(5)]
    await send(url, topic, "x")
    async with (
        watching(*(MessageTrigger(topic, group) for group in groups)) as watchers,
        rocketmq.connect(url) as client,
    ):
        for watcher in watchers:
            assert await watcher.body() == "x"
        found = await client.admin().groups.list(*groups)
        members = [member.id for group in found for member in group.members]
        assert len(members) == 5
        assert len(set(members)) == 1

    await until(lambda: gone(url, groups))


@both
async def test_members_of_one_group_wait_in_one_triggerer(
    coherer_url: str, url: str, topic: str, conn_id: str
) -> None:
    cluster = coherer_url if conn_id == "tubemq_default" else url
    group = f"{topic}-group"

    async def event() -> object:
        one = AwaitMessageTrigger(conn_id=conn_id, topic=topic, group=group)
        [found] = [event async for event in one.run()]
        return found.payload

    async with asyncio.timeout(WAIT_S), connect(cluster) as client, client.producer() as producer:
        waiting = [asyncio.ensure_future(event()) for _ in range(3)]
        while not all(one.done() for one in waiting):  # each member has another partition
            await producer.send(Message(topic, b"x"))
    assert [await one for one in waiting] == [{"topic": topic}] * 3


async def gone(url: str, groups: list[str]) -> bool:
    async with rocketmq.connect(url) as client:
        return not any(group.members for group in await client.admin().groups.list(*groups))


@both
async def test_a_broker_restarts(conn_id: str) -> None:
    with embedded_node() as node, pytest.MonkeyPatch.context() as patched:
        url = node.url if conn_id == "tubemq_default" else node.rocketmq_url
        patched.setenv("AIRFLOW_CONN_RESTARTED", url)
        node.create_topic("t")
        async with watching(MessageTrigger("t", "g", conn_id="restarted")) as [watcher]:
            await send(url, "t", "before")
            assert await watcher.body() == "before"
            await asyncio.to_thread(node.restart)
            await send(url, "t", "after")
            while await watcher.body() != "after":
                pass


async def test_without_a_triggerer(url: str, topic: str) -> None:
    await send(url, topic, "1", "2")
    events = MessageTrigger(topic, group=f"{topic}-group", tags=None).run()
    async with asyncio.timeout(WAIT_S):
        bodies = [(await anext(events)).payload["body"] for _ in range(2)]
    assert sorted(bodies) == ["1", "2"]
    await events.aclose()  # type: ignore[attr-defined]


def deferral(call: Callable[[], object]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        call()
    return deferred.value


async def first_event(deferred: TaskDeferred) -> object:
    path, kwargs = deferred.trigger.serialize()
    assert import_string(path) is AwaitMessageTrigger
    async with asyncio.timeout(WAIT_S):
        [event] = [event async for event in AwaitMessageTrigger(**kwargs).run()]
    return event.payload


async def both_at_once(first: Coroutine[Any, Any, Any], then: Coroutine[Any, Any, Any]) -> Any:
    running = asyncio.ensure_future(first)
    await then
    return await running


@both
def test_a_deferred_sensor(url: str, topic: str, conn_id: str) -> None:
    task = MessageSensor(
        task_id="wait", topic=topic, group=f"{topic}-group", conn_id=conn_id, deferrable=True
    )
    context: Any = {"ti": type("", (), {"xcom_push": lambda self, key, value: None})()}
    deferred = deferral(lambda: task.execute(context))
    assert deferred.timeout is not None
    sending = send(url, topic, "now")
    event = asyncio.run(both_at_once(first_event(deferred), sending))
    kwargs = deferred.kwargs or {}
    [found] = task.execute_complete(context, event, **kwargs)
    assert found["body"] == "now"
    # Another member of the group was faster: it waits again, until the same time.
    again = deferral(lambda: task.execute_complete(context, event, **kwargs))
    assert again.kwargs == deferred.kwargs


def test_a_deferred_consumer(url: str, topic: str) -> None:
    bodies: list[bytes] = []
    task = ConsumeOperator(
        task_id="receive",
        topic=topic,
        group=f"{topic}-group",
        handler=lambda messages: bodies.extend(one.body for one in messages),
        wait_for_messages=True,
        deferrable=True,
        tags="new",
    )
    context: Any = {}
    deferred = deferral(lambda: task.execute(context))
    with connect_blocking(url) as client, client.producer() as producer:
        producer.send(Message(topic, b"old", tag="old"))
        producer.send(Message(topic, b"new", tag="new"))
    event = asyncio.run(first_event(deferred))
    assert deferred.method_name == "execute_complete"
    assert task.execute_complete(context, event) == 1
    assert bodies == [b"new"]
    # Another member of the group was faster: it waits again.
    deferral(lambda: task.execute_complete(context, event))


def test_airflow_finds_the_plug() -> None:
    assert "coherer" in ProvidersManager().providers
    for scheme, kind in (("rocketmq", RocketMQHook), ("tubemq", TubeMQHook)):
        assert type(Connection(conn_id="a", conn_type=scheme).get_hook()) is kind
        common = MessageQueueTrigger(scheme=scheme, topic="t", group="g", tags=["a", "b"])
        path, kwargs = common.serialize()
        trigger = import_string(path)(**kwargs)
        assert isinstance(trigger, MessageTrigger)
        assert trigger.serialize() == (path, kwargs)
        assert trigger.shared_stream_key() == import_string(path)(**kwargs).shared_stream_key()
