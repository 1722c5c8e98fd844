"""One face for the Java client and for ours, so that a scenario is written once.

Keys of partitions are texts `broker:topic:partition`, as in confirm contexts. Offsets are opaque
numbers of the broker that made them (Java's count bytes of its index).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, cast

from coherer import Message, ReceivedMessage

from .driver import Driver, Event, Json

TIME_FORMAT = "%Y%m%d%H%M"
CALL_TIMEOUT_S = 60.0
Start = Literal["earliest", "latest", "always-latest"]
WRITABLE_WAIT_MS = 90_000


@dataclass(frozen=True)
class Sent:
    """What a broker said to a message that it took."""

    id: str
    partition: str
    offset: int


@dataclass
class Package:
    """What one get brought: messages of one partition, to be confirmed together."""

    partition: str
    offset: int
    messages: list[ReceivedMessage]
    token: object = None

    @property
    def bodies(self) -> list[bytes]:
        """Only the bodies."""
        return [message.body for message in self.messages]


@dataclass
class Load:
    """What became of a steady load."""

    acknowledged: set[bytes]
    failures: dict[str, int] = field(default_factory=dict)


class Producer(Protocol):
    """Sends."""

    async def send(self, message: Message) -> Sent: ...
    async def send_all(self, messages: Sequence[Message], window: int) -> list[Sent]: ...
    async def start_load(self, topic: str, pause_ms: float) -> None: ...
    async def acknowledged(self) -> int: ...
    async def stop_load(self) -> Load: ...
    async def close(self) -> None: ...


class Puller(Protocol):
    """Gets and confirms, step by step or following."""

    async def get(self, wait_ms: int = 20_000) -> Package | None: ...
    async def confirm(self, package: Package, consumed: bool = True) -> int: ...
    async def partitions(self) -> set[str]: ...
    async def follow(self) -> None: ...
    def packages(self) -> AsyncIterator[Package]: ...
    async def close(self) -> None: ...


class Pusher(Protocol):
    """Is handed packages; the first few may be thrown back."""

    def packages(self) -> AsyncIterator[Package]: ...
    def thrown(self) -> int: ...
    async def close(self) -> None: ...


class Clients(Protocol):
    """Makes clients of one kind."""

    name: str

    async def producer(self, master: str, topics: Iterable[str]) -> Producer: ...
    async def puller(
        self,
        master: str,
        group: str,
        topics: Mapping[str, Sequence[str]],
        *,
        start: Start = "earliest",
    ) -> Puller: ...
    async def pusher(
        self,
        master: str,
        group: str,
        topics: Mapping[str, Sequence[str]],
        *,
        throw_first: int = 0,
    ) -> Pusher: ...
    async def mortal(
        self, master: str, group: str, topics: Mapping[str, Sequence[str]]
    ) -> Mortal: ...


class Mortal(Protocol):
    """A pull consumer in a process of its own, which can be killed."""

    puller: Puller

    async def kill(self) -> None: ...


async def within(future: Future[Json], timeout_s: float = CALL_TIMEOUT_S) -> Json:
    """Awaits what another thread promised."""
    return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)


def attributes(text: str | None) -> dict[str, str]:
    """The user's part of an attribute text as Java's client gives it."""
    items = [item.split("=", 1) for item in (text or "").split(",") if "=" in item]
    return {name: value for name, value in items if not name.startswith("$msg")}


def received(form: Mapping[str, Json], partition: str) -> ReceivedMessage:
    """A message as the driver prints it."""
    broker, _topic, number = partition.split(":")
    time = cast("str | None", form["time"])
    return ReceivedMessage(
        topic=cast("str", form["topic"]),
        body=base64.b64decode(cast("str", form["body"])),
        tag=cast("str | None", form["tag"]),
        time=datetime.strptime(time, TIME_FORMAT) if time else None,  # noqa: DTZ007
        properties=attributes(cast("str | None", form["attributes"])),
        id=cast("str", form["id"]),
        broker=broker,
        partition=int(number),
    )


def package(form: Mapping[str, Json]) -> Package:
    """A package as the driver prints it."""
    partition = cast("str", form["partition"])
    messages = [
        received(cast("dict[str, Json]", item), partition)
        for item in cast("list[Json]", form["messages"])
    ]
    return Package(partition, cast("int", form["offset"]), messages, form.get("context"))


def _to_json(message: Message) -> dict[str, object]:
    return {
        "topic": message.topic,
        "body": base64.b64encode(message.body).decode(),
        "tag": message.tag,
        "time": message.time.strftime(TIME_FORMAT) if message.time else None,
        "properties": dict(message.properties),
    }


def _sent(form: Json) -> Sent:
    assert isinstance(form, dict)
    assert form["success"], form
    return Sent(
        cast("str", form["id"]), cast("str", form["partition"]), cast("int", form["offset"])
    )


class _DrivenClient:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._name = ""
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def open(
        self, kind: str, timeout_s: float = CALL_TIMEOUT_S, **parameters: object
    ) -> None:
        loop = asyncio.get_running_loop()

        def arrived(event: Event) -> None:
            loop.call_soon_threadsafe(self._events.put_nowait, event)

        self._name, opened = self._driver.open(kind, arrived, **parameters)
        await within(opened, timeout_s)

    async def events(self) -> AsyncIterator[Event]:
        while True:
            yield await self._events.get()

    async def ask(self, do: str, **parameters: object) -> Json:
        return await within(self._driver.call(self._name, do, **parameters))

    async def close(self) -> None:
        await self.ask("close")


class JavaProducer(_DrivenClient):
    """Java's producer."""

    async def send(self, message: Message) -> Sent:
        """One, and its answer."""
        return _sent(await self.ask("send", **_to_json(message)))

    async def send_all(self, messages: Sequence[Message], window: int) -> list[Sent]:
        """Many in flight."""
        answer = await self.ask(
            "send_many", messages=[_to_json(m) for m in messages], window=window
        )
        return [_sent(item) for item in cast("list[Json]", answer)]

    async def start_load(self, topic: str, pause_ms: float) -> None:
        """Numbered messages until told to stop."""
        await self.ask("load", topic=topic, pause_us=int(pause_ms * 1000))

    async def acknowledged(self) -> int:
        """How many of the load so far."""
        return cast("int", await self.ask("acknowledged"))

    async def stop_load(self) -> Load:
        """What became of them."""
        form = cast("dict[str, Json]", await self.ask("stop_load"))
        bodies = cast("list[str]", form["acknowledged"])
        return Load({body.encode() for body in bodies}, cast("dict[str, int]", form["failures"]))


class DrivenPuller(_DrivenClient):
    """A pull consumer in another process, Java's or ours."""

    async def get(self, wait_ms: int = 20_000) -> Package | None:
        """The next package with messages."""
        form = await self.ask("get", wait_ms=wait_ms)
        assert isinstance(form, dict)
        return package(form) if form["success"] and form["messages"] else None

    async def confirm(self, package: Package, consumed: bool = True) -> int:
        """The offset after it."""
        form = await self.ask("confirm", context=package.token, consumed=consumed)
        assert isinstance(form, dict)
        assert form["success"], form
        return cast("int", form["offset"])

    async def partitions(self) -> set[str]:
        """What it holds."""
        return set(cast("dict[str, Json]", await self.ask("partitions")))

    async def follow(self) -> None:
        """Gets and confirms by itself from now on."""
        await self.ask("follow")

    async def packages(self) -> AsyncIterator[Package]:
        """What it got by itself."""
        async for form in self.events():
            yield package(form)


class JavaPusher(_DrivenClient):
    """Java's push consumer."""

    _thrown = 0

    def thrown(self) -> int:
        """How many packages its listener threw back."""
        return self._thrown

    async def packages(self) -> AsyncIterator[Package]:
        """What its listener was given and kept."""
        async for form in self.events():
            if form["event"] == "thrown":
                self._thrown += 1
            else:
                yield package(form)


class JavaClients:
    """Java clients in one JVM.

    Args:
        driver: the JVM.
        another: starts another JVM, for a client that is to be killed.
    """

    name = "java"
    heartbeat_ms = 2_000

    def __init__(self, driver: Driver, another: Callable[[], Driver]) -> None:
        self._driver = driver
        self._another = another

    async def producer(self, master: str, topics: Iterable[str]) -> Producer:
        """Waits until the topics are writable."""
        producer = JavaProducer(self._driver)
        await producer.open(
            "producer",
            WRITABLE_WAIT_MS / 1000 + 10,
            master=master,
            topics=list(topics),
            wait_ms=WRITABLE_WAIT_MS,
            heartbeat_ms=self.heartbeat_ms,
            avoid_ms=1_000,
        )
        return producer

    async def puller(
        self,
        master: str,
        group: str,
        topics: Mapping[str, Sequence[str]],
        *,
        start: Start = "earliest",
    ) -> Puller:
        """A member of a group."""
        return await driven_puller(self._driver, master, group, topics, start)

    async def pusher(
        self,
        master: str,
        group: str,
        topics: Mapping[str, Sequence[str]],
        *,
        throw_first: int = 0,
    ) -> Pusher:
        """A member of a group with a listener."""
        pusher = JavaPusher(self._driver)
        await pusher.open(
            "push",
            master=master,
            group=group,
            topics={topic: list(filters) for topic, filters in topics.items()},
            heartbeat_ms=self.heartbeat_ms,
            throw_first=throw_first,
            roll_back_thrown=True,
        )
        return pusher

    async def mortal(self, master: str, group: str, topics: Mapping[str, Sequence[str]]) -> Mortal:
        """A consumer in a JVM of its own."""
        driver = await asyncio.to_thread(self._another)
        return DrivenMortal(driver, await driven_puller(driver, master, group, topics))


async def driven_puller(
    driver: Driver,
    master: str,
    group: str,
    topics: Mapping[str, Sequence[str]],
    start: Start = "earliest",
) -> DrivenPuller:
    puller = DrivenPuller(driver)
    await puller.open(
        "pull",
        master=master,
        group=group,
        topics={topic: list(filters) for topic, filters in topics.items()},
        heartbeat_ms=JavaClients.heartbeat_ms,
        start=start,
        ready_ms=200,
        not_found_ms=100,
    )
    return puller


class DrivenMortal:
    """A pull consumer whose process can be killed."""

    def __init__(self, driver: Driver, puller: DrivenPuller) -> None:
        self._driver = driver
        self.puller: Puller = puller

    async def kill(self) -> None:
        """SIGKILL."""
        await asyncio.to_thread(self._driver.kill)


@contextlib.asynccontextmanager
async def closing(*clients: Producer | Puller | Pusher) -> AsyncIterator[None]:
    """Closes them all, whatever happens."""
    try:
        yield
    finally:
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
