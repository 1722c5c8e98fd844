"""A RocketMQ broker for one test: clients made of bytes, and names that no other test uses."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue
from tests.server.client_harness import Client, tags

from .rocket_site import Cluster

SEND, OFFSET, MAXIMUM = 310, 15, 30
WAIT_S = 30.0


class BrokerScenario:
    """A broker, with names that no other test uses.

    Args:
        cluster: where it is.
    """

    def __init__(self, cluster: Cluster) -> None:
        word = uuid.uuid4().hex[:8]
        self.cluster = cluster
        self.topic, self.group, self.producers = f"T{word}", f"g{word}", f"p{word}"
        self.clients: list[Client] = []

    async def dial(self) -> Client:
        client = await Client.dial(int(self.cluster.broker.address.rpartition(":")[2]))
        assert isinstance(client, Client)
        self.clients.append(client)
        return client

    async def member(self, client_id: str, *topics: dict[str, Any], **header: Any) -> Client:
        client = await self.dial()
        wanted = topics or (tags(self.topic),)
        answer = await client.consume(self.group, *wanted, client_id=client_id, **header)
        assert (answer.code, answer.remark) == (0, None)
        assert self.group in client.told()  # it came before the answer
        return client

    async def send(self, client: Client, body: bytes = b"x", queue: int = 0) -> dict[str, str]:
        """Makes the topic with two queues when it is the first."""
        values = (self.producers, self.topic, "TBW102", "2", str(queue), "0", "1650000000000", "0")
        fields = {**dict(zip("abcdefgh", values, strict=True)), "i": "", "j": "0", "k": "false"}
        answer = await client.ask(SEND, {**fields, "m": "false"}, body)
        assert answer.code == 0, answer.remark
        return answer.fields

    async def visible(self, client: Client, count: int, queue: int = 0) -> None:
        """Until so many are in a queue: Java's brokers show a message after its receipt."""
        fields = {"topic": self.topic, "queueId": str(queue)}
        async with asyncio.timeout(WAIT_S):
            while int((await client.ask(MAXIMUM, fields)).fields["offset"]) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def commit(self, client: Client, queue: int, offset: int) -> None:
        answer = await client.ask(
            OFFSET,
            {
                "consumerGroup": self.group,
                "topic": self.topic,
                "queueId": str(queue),
                "commitOffset": str(offset),
            },
        )
        assert answer.code == 0, answer.remark

    def queue(self, number: int) -> Queue:
        return Queue(self.topic, "broker-a", number)


def outcome(answer: Command) -> tuple[int, str | None]:
    return answer.code, answer.remark
