"""A cluster of RocketMQ for one scenario, and what scenarios of consumers wait for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from coherer._client.rocketmq.consuming.consumer import Consumer
from coherer._client.rocketmq.received import ReceivedMessage
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.messages import SendReceipt
from coherer._wire.rocketmq.names import Queue
from coherer.message import Message
from coherer.rocketmq import Client as RocketClient
from coherer.rocketmq import connect as connect_rocketmq

WAIT_S = 30.0


class Scenario:
    """A cluster, and names that no other scenario uses."""

    def __init__(self, url: str) -> None:
        word = uuid.uuid4().hex[:10]
        self.url = url
        self.topic, self.group = f"T{word}", f"g{word}"
        self.clients: list[RocketClient] = []

    def client(self, **options: Any) -> RocketClient:
        client = connect_rocketmq(self.url, **options)
        self.clients.append(client)
        return client

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))

    async def make(
        self, client: RocketClient, queues: int = 2, topic: str | None = None, **more: str
    ) -> str:
        """Make the topic, and wait until the name server has it."""
        name = topic or self.topic
        await client._instance.start()
        route = await client._instance.routes.route("broker-a")
        link = await client._instance.link(route.brokers["broker-a"][0])
        number = str(queues)
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": number,
            "writeQueueNums": number,
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            **more,
        }
        await link.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, timeout_ms=5_000)
        await until(lambda: client.exists(name))
        return name

    async def ask(self, client: RocketClient, code: int, **fields: str) -> Command:
        """Ask the broker something, as an administrator."""
        link = await client._instance.link(client._instance.routes.address("broker-a"))
        return await link.call(code, fields, timeout_ms=15_000)

    async def send(
        self, client: RocketClient, *bodies: str, queue: int | None = None, **more: Any
    ) -> list[SendReceipt]:
        """Send messages, one after the other."""
        where = None if queue is None else Queue(self.topic, "broker-a", queue)
        async with client.producer() as producer:
            receipts = [
                await producer.send(Message(self.topic, body.encode(), **more), queue=where)
                for body in bodies
            ]
        await until(lambda: self._shown(client, receipts))
        return receipts

    async def _shown(self, client: RocketClient, receipts: list[SendReceipt]) -> bool:
        """Java's brokers show a message a moment after they have taken it."""
        ends = await client.offsets(self.topic)
        held = {(queue.broker, queue.id): end for queue, (_, end) in ends.items()}
        return all(held[one.broker, one.partition] > one.offset for one in receipts)

    async def dead(self, client: RocketClient, count: int) -> list[str]:
        """The dead letters of the group, when there are so many."""
        topic = f"%DLQ%{self.group}"
        await until(lambda: client.exists(topic))
        [queue] = await client.partitions(topic)
        found: list[str] = []
        async with asyncio.timeout(WAIT_S), client.reader(queue, 0, end=count) as reader:
            while len(found) < count:
                batch = await reader.read()
                if batch is None:
                    await asyncio.sleep(0.05)
                else:
                    found += [body.decode() for body in batch.bodies()]
        return found


@asynccontextmanager
async def scenario_at(url: str) -> AsyncIterator[Scenario]:
    scenario = Scenario(url)
    try:
        yield scenario
    finally:
        await scenario.close()


async def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds that another process does."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = holds()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.02)


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    """The next messages, confirmed but for the last."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(WAIT_S):
        async for message in consumer:
            found.append(message)
            if len(found) == count:
                message.ack()
                break
    return found


def texts(messages: Iterable[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


def ids(consumer: Any, topic: str) -> list[int]:
    return sorted(queue.id for queue in consumer.assignment if queue.topic == topic)


async def stored_is(consumer: Consumer, queue: Queue, offset: int) -> bool:
    return await consumer._membership.manager.rpc.stored_offset(consumer.group, queue) == offset


async def ends_at(client: RocketClient, queue: Queue, offset: int) -> bool:
    return (await client.offsets(queue.topic))[queue][1] == offset


async def more(reader: Any) -> bool:
    batch = await reader.read()
    return batch is not None and batch.bodies() == [b"more"]
