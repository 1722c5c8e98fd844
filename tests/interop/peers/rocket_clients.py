"""The same clients of RocketMQ in Java and in Python, for scenarios that mix them.

A message is a dict here: body (text), tag, keys, properties, attempt, queue, offset, id.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

import coherer
from coherer import CohererError, Message
from coherer._client.rocketmq.transactions import Verdict
from coherer._wire.rocketmq.subscription import Sql92
from coherer.rocketmq import Client as RocketClient

from .driver import DriverError
from .rocket_site import CALL_S, Client, Cluster, RocketSite, b64

Form = dict[str, Any]
RETRY = timedelta(seconds=1)
_WAYS = ("order_by", "delay_level", "delay", "deliver_at")
VERDICTS = {"commit": Verdict.COMMIT, "rollback": Verdict.ROLLBACK}


class Producer(Protocol):
    """Sends."""

    async def send(self, topic: str, body: str, **more: Any) -> Form:
        """One message: tag, keys, properties, delay_level, order_by. Gives id, offset_id, queue."""
        ...

    async def send_many(self, topic: str, bodies: list[str]) -> None:
        """Many, each for itself, with many under way."""
        ...

    async def batch(self, topic: str, bodies: list[str]) -> None:
        """Many in one request."""
        ...

    async def oneway(self, topic: str, body: str) -> None:
        """One without an answer."""
        ...

    async def request(self, topic: str, body: str) -> str:
        """A request; its reply's body."""
        ...

    async def transact(self, topic: str, body: str, local: str, check: str = "unknown") -> None:
        """A message in a transaction that ends so, or is asked about and then ends so."""
        ...


class Consumer(Protocol):
    """Receives. A message whose property FAIL_TIMES is n fails its first n times."""

    async def wait_for(self, count: int, event: str = "messages") -> list[Form]:
        """Waits until so many have come (or `failed`), and gives all that have."""
        ...

    def bodies(self) -> list[str]:
        """The bodies that have come; also after `close`."""
        ...

    async def close(self) -> None:
        """Leaves the group."""
        ...


class Clients:
    """Makes clients of a language at a cluster. Use it with `async with`: it closes them.

    Args:
        site: has the processes.
        cluster: where.
        groups: for the names of groups.
    """

    def __init__(self, site: RocketSite, cluster: Cluster, groups: str) -> None:
        self.site = site
        self.cluster = cluster
        self.groups = groups
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def producer(self, language: str) -> Producer:
        """A producer."""
        if language == "ours":
            made = OurProducer(self.client(), f"{self.groups}_writers")
            self._stack.push_async_callback(made.close)
            await made.open()
            return made
        java = JavaProducer(self.site, self.cluster, f"{self.groups}_writers", language)
        self._stack.push_async_callback(java.close)
        return java

    async def consumer(
        self, language: str, topics: Mapping[str, str | Mapping[str, str]], **options: Any
    ) -> Consumer:
        """A consumer of topics with tags, or `{"sql": expression}`.

        Options: group, orderly, broadcast, start, max_attempts, reply.
        """
        options = {"group": f"{self.groups}_readers", **options}
        if language == "ours":
            made = OurConsumer(self.client(), topics, options)
            self._stack.push_async_callback(made.close)
            await made.open()
            return made
        java = JavaConsumer(
            await asyncio.to_thread(
                self.site.client, self.cluster, "push", language, topics=topics, **options
            )
        )
        self._stack.push_async_callback(java.close)
        return java

    def client(self, **options: Any) -> RocketClient:
        """A client of ours."""
        client = coherer.connect(self.cluster.url, heartbeat_ms=1_000, **options)
        assert isinstance(client, RocketClient)
        self._stack.push_async_callback(client.close)
        return client


class OurProducer:
    """See `Producer`."""

    def __init__(self, client: RocketClient, group: str) -> None:
        self._client = client
        self._producer = client.producer(group=group, check=self._check)
        self.checked: list[str] = []

    async def open(self) -> None:
        await self._producer.start()

    async def close(self) -> None:
        await self._producer.close()

    async def send(self, topic: str, body: str, **more: Any) -> Form:
        ways = {name: more.pop(name) for name in _WAYS if name in more}
        if "keys" in more:
            more["keys"] = tuple(more["keys"])
        receipt = await self._producer.send(Message(topic, body.encode(), **more), **ways)
        return {
            "id": receipt.unique_id,
            "offset_id": receipt.id,
            "queue": receipt.partition,
            "offset": receipt.offset,
        }

    async def send_many(self, topic: str, bodies: list[str]) -> None:
        (await self._producer.send_many(Message(topic, body.encode()) for body in bodies)).check()

    async def batch(self, topic: str, bodies: list[str]) -> None:
        await self._producer.send_batch([Message(topic, body.encode()) for body in bodies])

    async def oneway(self, topic: str, body: str) -> None:
        await self._producer.send_oneway(Message(topic, body.encode()))

    async def request(self, topic: str, body: str) -> str:
        reply = await self._producer.request(Message(topic, body.encode()), timeout_ms=20_000)
        return reply.body.decode()

    async def transact(self, topic: str, body: str, local: str, check: str = "unknown") -> None:
        message = Message(topic, body.encode(), properties={"CHECK": check})
        async with self._producer.transaction(message) as transaction:
            if local == "commit":
                await transaction.commit()
            elif local == "rollback":
                await transaction.rollback()
            else:
                await transaction.leave()

    def _check(self, message: coherer.ReceivedMessage) -> Verdict:
        self.checked.append(message.body.decode())
        return VERDICTS.get(message.properties.get("CHECK", ""), Verdict.UNKNOWN)


class JavaProducer:
    """See `Producer`; also of Node and C++, which can do less."""

    def __init__(self, site: RocketSite, cluster: Cluster, group: str, language: str) -> None:
        self._site, self._cluster, self._group = site, cluster, group
        self._language = language
        self._made: dict[str, Client] = {}

    async def close(self) -> None:
        for client in self._made.values():
            await asyncio.to_thread(client.close)

    async def send(self, topic: str, body: str, **more: Any) -> Form:
        client = await self._client()
        result: Form = await _answer(client, "send", topic=topic, body=b64(body), **more)
        return result

    async def send_many(self, topic: str, bodies: list[str]) -> None:
        messages = [{"topic": topic, "body": b64(body)} for body in bodies]
        results = await _answer(await self._client(), "send_many", messages=messages)
        assert {one["status"] for one in results} == {"SEND_OK"}

    async def batch(self, topic: str, bodies: list[str]) -> None:
        messages = [{"topic": topic, "body": b64(body)} for body in bodies]
        await _answer(await self._client(), "batch", messages=messages)

    async def oneway(self, topic: str, body: str) -> None:
        await _answer(await self._client(), "oneway", topic=topic, body=b64(body))

    async def request(self, topic: str, body: str) -> str:
        client = await self._client()
        # A broker knows where to push replies after the client's first heartbeat, 1 s after its
        # start; a reply before that is lost.
        for last in (False, False, False, True):
            try:
                reply = await _answer(
                    client, "request", topic=topic, body=b64(body), timeout_ms=2_000
                )
            except DriverError:
                if last:
                    raise
            else:
                return base64.b64decode(reply["body"]).decode()
        raise AssertionError

    async def transact(self, topic: str, body: str, local: str, check: str = "unknown") -> None:
        client = await self._client("transaction")
        wishes = {"LOCAL": local, "CHECK": check}
        await _answer(client, "send", topic=topic, body=b64(body), properties=wishes)

    async def _client(self, kind: str = "producer") -> Client:
        if kind not in self._made:
            self._made[kind] = await asyncio.to_thread(
                self._site.client, self._cluster, kind, self._language, group=self._group
            )
        return self._made[kind]


async def _answer(client: Client, action: str, **parameters: Any) -> Any:
    return await asyncio.wait_for(asyncio.wrap_future(client.asked(action, **parameters)), CALL_S)


class OurConsumer:
    """See `Consumer`."""

    def __init__(
        self,
        client: RocketClient,
        topics: Mapping[str, str | Mapping[str, str]],
        options: Mapping[str, Any],
    ) -> None:
        given = dict(options)
        self._group = given.pop("group")
        self._reply = given.pop("reply", False)
        if given.pop("broadcast", False):
            given["model"] = "broadcast"
        wanted = {
            topic: expression if isinstance(expression, str) else Sql92(expression["sql"])
            for topic, expression in topics.items()
        }
        self._client = client
        self._orderly = given.get("orderly", False)
        given = {"start": "earliest", "batch_messages": 1, "suspend_ms": 200, **given}
        self._consumer = client.consumer(self._group, wanted, **given)
        self._events: dict[str, list[Form]] = {"messages": [], "failed": []}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        self._replier = await self._stack.enter_async_context(
            self._client.producer(group=f"{self._group}_replies")
        )
        await self._stack.enter_async_context(self._consumer)
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._stack.aclose()

    def bodies(self) -> list[str]:
        return [one["body"] for one in self._events["messages"]]

    async def wait_for(self, count: int, event: str = "messages") -> list[Form]:
        async with asyncio.timeout(CALL_S):
            while len(self._events[event]) < count:
                self._news.clear()
                await self._news.wait()
        return self._events[event]

    async def _run(self) -> None:
        async for message in self._consumer:
            failed = int(message.properties.get("FAIL_TIMES", "0")) > message.attempt
            self._events["failed" if failed else "messages"].append(
                {
                    "body": message.body.decode(),
                    "tag": message.tag,
                    "keys": message.keys,
                    "properties": dict(message.properties),
                    "attempt": message.attempt,
                    "queue": message.partition,
                    "offset": message.offset,
                    "id": message.unique_id or message.id,
                    "born_ms": message.born_ms,
                    "stored_ms": message.stored_ms,
                    "topic": message.topic,
                }
            )
            if failed:
                await message.retry(later=None if self._orderly else RETRY)
            elif self._reply and "REPLY_TO_CLIENT" in message.stored_properties:
                with contextlib.suppress(CohererError):  # see JavaProducer.request
                    await self._replier.reply(message, b"re:" + message.body)

            self._news.set()


class JavaConsumer:
    """See `Consumer`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open = True

    async def close(self) -> None:
        if self._open:
            self._open = False
            await asyncio.to_thread(self._client.close)

    def bodies(self) -> list[str]:
        return self._client.bodies()

    async def wait_for(self, count: int, event: str = "messages") -> list[Form]:
        found = await asyncio.to_thread(self._client.wait_for, count, event)
        return [
            {
                **one,
                "body": base64.b64decode(one["body"]).decode(),
                "keys": tuple((one["keys"] or "").split()),
            }
            for one in found
        ]
