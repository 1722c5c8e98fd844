"""Our client behind the face of `clients`."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

import coherer
from coherer import CohererError, Message, Receipt
from coherer._client.tubemq.consumer import Consumer
from coherer._client.tubemq.fetching import ReceivedBatch
from coherer._client.tubemq.producer import Producer as CohererProducer
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.delivery import MessageBatch
from coherer.errors import RefusedError
from coherer.tubemq import Client

from .clients import (
    TIME_FORMAT,
    WRITABLE_WAIT_MS,
    DrivenMortal,
    Load,
    Mortal,
    Package,
    Producer,
    Puller,
    Pusher,
    Sent,
    Start,
    driven_puller,
)
from .driver import OurDriver

HEARTBEAT_MS = 2_000
RETRY_S = 0.5
CONNECT_MS = 30_000


def client(master: str) -> Client:
    """A client of the cluster of a master."""
    url = f"tubemq://{master}"
    return coherer.connect(url, heartbeat_ms=HEARTBEAT_MS, connect_timeout_ms=CONNECT_MS)


def sent(receipt: Receipt) -> Sent:
    """Our receipt in the common form."""
    key = f"{receipt.broker}:{receipt.topic}:{receipt.partition}"
    return Sent(receipt.id, key, receipt.offset)


def package(batch: MessageBatch) -> Package:
    """Our batch in the common form."""
    key = f"{batch.broker}:{batch.topic}:{batch.partition}"
    return Package(key, batch.offset, list(batch), batch)


class OurProducer:
    """Our producer."""

    def __init__(self, stack: AsyncExitStack, producer: CohererProducer) -> None:
        self._stack = stack
        self._producer = producer
        self._load: asyncio.Task[None] | None = None
        self._outcome = Load(set(), Counter())

    async def send(self, message: Message) -> Sent:
        """One, and its answer."""
        return sent(await self._producer.send(message))

    async def send_all(self, messages: Sequence[Message], window: int) -> list[Sent]:
        """Many in flight."""
        free = asyncio.Semaphore(window)

        async def one(message: Message) -> Sent:
            async with free:
                while True:
                    try:
                        return sent(await self._producer.send(message))
                    except RefusedError as error:
                        if error.code != ResultCode.SERVER_RECEIVE_OVERFLOW:
                            raise
                        await asyncio.sleep(RETRY_S)  # the disk of a broker of Java's is slow

        return list(await asyncio.gather(*map(one, messages)))

    async def start_load(self, topic: str, pause_ms: float) -> None:
        """Numbered messages until told to stop."""
        self._load = asyncio.create_task(self._keep_sending(topic, pause_ms / 1000))

    async def _keep_sending(self, topic: str, pause_s: float) -> None:
        for number in itertools.count():
            body = b"ours-%d" % number
            try:
                await self._producer.ready()
                self._producer.submit(Message(topic, body), callback=partial(self._settled, body))
            except CohererError as error:
                self._failed(error)
            await asyncio.sleep(pause_s)

    def _settled(self, body: bytes, result: Receipt | CohererError) -> None:
        if isinstance(result, Receipt):
            self._outcome.acknowledged.add(body)
        else:
            self._failed(result)

    def _failed(self, error: CohererError) -> None:
        name = type(error).__name__
        self._outcome.failures[name] = self._outcome.failures.get(name, 0) + 1

    async def acknowledged(self) -> int:
        """How many of the load so far."""
        return len(self._outcome.acknowledged)

    async def stop_load(self) -> Load:
        """What became of them."""
        assert self._load is not None
        await _ended(self._load)
        await self._producer.flush()
        return self._outcome

    async def close(self) -> None:
        """Leaves."""
        if self._load is not None:
            await _ended(self._load)
        await self._stack.aclose()


class OurPuller:
    """Our consumer by receive and confirm."""

    def __init__(self, stack: AsyncExitStack, consumer: Consumer) -> None:
        self._stack = stack
        self._consumer = consumer
        self._packages: asyncio.Queue[Package] = asyncio.Queue()
        self._following: asyncio.Task[None] | None = None

    async def get(self, wait_ms: int = 20_000) -> Package | None:
        """The next package."""
        batch = await self._consumer.receive(wait_ms)
        return None if batch is None else package(batch)

    async def confirm(self, package: Package, consumed: bool = True) -> int:
        """The offset after it."""
        batch = package.token
        assert isinstance(batch, ReceivedBatch)
        if consumed:
            [offset] = (await self._consumer.commit(batch)).values()
            return offset
        await batch.retry()
        return batch.offset

    async def partitions(self) -> set[str]:
        """What it holds."""
        return {partition.key for partition in self._consumer.assignment}

    async def follow(self) -> None:
        """Gets and confirms by itself from now on."""
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for batch in self._consumer.batches():
            self._packages.put_nowait(package(batch))

    async def packages(self) -> AsyncIterator[Package]:
        """What it got by itself."""
        while True:
            yield await self._packages.get()

    async def close(self) -> None:
        """Leaves."""
        if self._following is not None:
            await _ended(self._following)
        await self._stack.aclose()


class OurPusher:
    """Our consumer with a handler."""

    def __init__(self, stack: AsyncExitStack, consumer: Consumer, throw_first: int) -> None:
        self._stack = stack
        self._packages: asyncio.Queue[Package] = asyncio.Queue()
        self._left = throw_first
        self._thrown = 0
        self._running = asyncio.create_task(consumer.run(self._handle))

    async def _handle(self, batch: MessageBatch) -> None:
        if self._left:
            self._left -= 1
            self._thrown += 1
            raise RuntimeError("told to throw")
        self._packages.put_nowait(package(batch))

    def thrown(self) -> int:
        """How many packages its handler threw back."""
        return self._thrown

    async def packages(self) -> AsyncIterator[Package]:
        """What its handler was given and kept."""
        while True:
            yield await self._packages.get()

    async def close(self) -> None:
        """Leaves."""
        await _ended(self._running)
        await self._stack.aclose()


async def our_puller(
    master: str, group: str, topics: Mapping[str, Sequence[str]], start: Start = "earliest"
) -> OurPuller:
    """A member of a group."""
    stack = AsyncExitStack()
    return OurPuller(stack, await _consumer(stack, master, group, topics, start))


async def _consumer(
    stack: AsyncExitStack,
    master: str,
    group: str,
    topics: Mapping[str, Sequence[str]],
    start: Start = "earliest",
) -> Consumer:
    made = await stack.enter_async_context(client(master))
    return await stack.enter_async_context(made.consumer(group, topics, start=start))


class OurClients:
    """Clients of coherer._client, in this process.

    Args:
        another: starts a process for a client that is to be killed.
    """

    name = "ours"

    def __init__(self, another: Callable[[], OurDriver]) -> None:
        self._another = another

    async def producer(self, master: str, topics: Iterable[str]) -> Producer:
        """Waits until the topics are writable."""
        stack = AsyncExitStack()
        made = await stack.enter_async_context(client(master))
        end = asyncio.get_running_loop().time() + WRITABLE_WAIT_MS / 1000
        while True:
            try:
                producer = await stack.enter_async_context(made.producer(*topics))
                return OurProducer(stack, producer)
            except CohererError:
                if asyncio.get_running_loop().time() > end:
                    raise
                await asyncio.sleep(RETRY_S)

    async def puller(
        self,
        master: str,
        group: str,
        topics: Mapping[str, Sequence[str]],
        *,
        start: Start = "earliest",
    ) -> Puller:
        """A member of a group."""
        return await our_puller(master, group, topics, start)

    async def pusher(
        self,
        master: str,
        group: str,
        topics: Mapping[str, Sequence[str]],
        *,
        throw_first: int = 0,
    ) -> Pusher:
        """A member of a group with a handler."""
        stack = AsyncExitStack()
        consumer = await _consumer(stack, master, group, topics)
        return OurPusher(stack, consumer, throw_first)

    async def mortal(self, master: str, group: str, topics: Mapping[str, Sequence[str]]) -> Mortal:
        """A consumer in a process of its own."""
        driver = await asyncio.to_thread(self._another)
        return DrivenMortal(driver, await driven_puller(driver, master, group, topics))


def to_json(package: Package) -> dict[str, object]:
    """A package as `Driver.java` prints it."""
    import base64

    return {
        "success": True,
        "partition": package.partition,
        "offset": package.offset,
        "messages": [
            {
                "topic": message.topic,
                "body": base64.b64encode(message.body).decode(),
                "tag": message.tag,
                "time": message.time.strftime(TIME_FORMAT) if message.time else None,
                "attributes": ",".join(f"{k}={v}" for k, v in message.properties.items()),
                "id": message.id,
            }
            for message in package.messages
        ],
    }


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancels a task and hears what it raised, if it did."""
    if not task.done():
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
