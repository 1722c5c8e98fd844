"""An object whose `start` failed can be started again, whichever request it failed at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import TypeAlias, cast

import pytest

from coherer import Message, rocketmq, tubemq
from coherer._client.engine.lifecycle import Lifecycle
from coherer.errors import ClosedError, CohererError, UsageError
from coherer.testing import Fault, SimulatedNode

Client: TypeAlias = tubemq.Client | rocketmq.Client
Make: TypeAlias = Callable[[Client], Awaitable[Lifecycle]]


async def _producer(client: Client) -> Lifecycle:
    return client.producer("orders")


async def _traced_producer(client: Client) -> Lifecycle:
    return cast("rocketmq.Client", client).producer("orders", trace=True)


async def _consumer(client: Client) -> Lifecycle:
    return client.consumer("shop", "orders", start="earliest")


async def _traced_consumer(client: Client) -> Lifecycle:
    made = cast("rocketmq.Client", client)
    return made.consumer("shop", "orders", start="earliest", trace=True)


async def _orderly_consumer(client: Client) -> Lifecycle:
    made = cast("rocketmq.Client", client)
    return made.consumer("shop", "orders", start="earliest", orderly=True)


async def _pull_consumer(client: Client) -> Lifecycle:
    made = cast("rocketmq.Client", client)
    return made.pull_consumer("shop", "orders", start="earliest", auto_commit=False)


async def _reader(client: Client) -> Lifecycle:
    if isinstance(client, tubemq.Client):
        return client.reader((await client.partitions("orders"))[0], 0)
    return client.reader((await client.partitions("orders"))[0], 0)


MAKES: dict[str, tuple[str, Make]] = {
    "tubemq producer": ("tubemq", _producer),
    "tubemq consumer": ("tubemq", _consumer),
    "tubemq reader": ("tubemq", _reader),
    "rocketmq producer": ("rocketmq", _producer),
    "rocketmq traced producer": ("rocketmq", _traced_producer),
    "rocketmq consumer": ("rocketmq", _consumer),
    "rocketmq traced consumer": ("rocketmq", _traced_consumer),
    "rocketmq orderly consumer": ("rocketmq", _orderly_consumer),
    "rocketmq pull consumer": ("rocketmq", _pull_consumer),
    "rocketmq reader": ("rocketmq", _reader),
}


def _kinds(base: type) -> set[type]:
    subclasses: set[type] = set()
    direct: list[type] = base.__subclasses__()
    for one in direct:
        subclasses |= _kinds(one) or {one}
    return subclasses


class Site:
    """A node with a topic and one message, and a client."""

    def __init__(self, node: SimulatedNode, protocol: str, make: Make) -> None:
        self.node, self.protocol, self.make = node, protocol, make

    def connect(self) -> Client:
        if self.protocol == "tubemq":
            return tubemq.connect(self.node.url, timeout_ms=3_000)
        return rocketmq.connect(self.node.rocketmq_url, timeout_ms=3_000)

    async def fill(self) -> None:
        self.node.create_topic("orders")
        async with self.connect() as client, client.producer("orders") as producer:
            await producer.send(Message("orders", b"0"))

    async def fails_and_works(
        self, fail: Callable[[Lifecycle], Awaitable[BaseException | None]]
    ) -> bool:
        """Start an object under a fault, then again; returns whether it failed first."""
        async with self.connect() as client:
            made = await self.make(client)
            error = await fail(made)
            if error is not None:
                with pytest.raises(UsageError, match="is not started"):
                    made.check()
                await made.start()
            await _works(made)
            with pytest.raises(UsageError, match="only once"):
                await made.start()
            await made.close()
            with pytest.raises(ClosedError):
                await made.start()
        return error is not None


async def _works(made: Lifecycle) -> None:
    match made:
        case tubemq.Producer() | rocketmq.Producer():
            assert made.topics == {"orders"}
            receipt = await made.send(Message("orders", b"again"))
            assert receipt.offset > 0
        case tubemq.Consumer() | rocketmq.Consumer():
            batch = await made.receive(100_000)
            assert batch is not None
            assert next(iter(batch)).body == b"0"
        case rocketmq.PullConsumer():
            polled = await made.poll(100_000)
            assert polled is not None
            assert polled.next_offset == 1
        case tubemq.Reader() | rocketmq.Reader():
            read = await made.read()
            assert read is not None
            assert made.position == 1
        case _:
            raise AssertionError(made)


async def _failure(made: Lifecycle, fault: Fault | None = None) -> BaseException | None:
    with fault or nullcontext():
        try:
            await made.start()
        except CohererError as error:
            return error
    return None


async def test_every_kind_is_tried(coherer_simulated: SimulatedNode) -> None:
    kinds = {one for one in _kinds(Lifecycle) if one.__module__.startswith("coherer.")}
    made = {
        type(await make(_bare(protocol))) for protocol, make in MAKES.values() if make != _reader
    }
    assert kinds == made | {tubemq.Reader, rocketmq.Reader}
    assert coherer_simulated.url


def _bare(protocol: str) -> Client:
    connect = tubemq.connect if protocol == "tubemq" else rocketmq.connect
    return connect(f"{protocol}://127.0.0.1:1")


@pytest.mark.parametrize("name", MAKES)
async def test_while_the_node_is_down(coherer_simulated: SimulatedNode, name: str) -> None:
    site = Site(coherer_simulated, *MAKES[name])
    await site.fill()

    async def fail(made: Lifecycle) -> BaseException | None:
        async with coherer_simulated.down():
            return await _failure(made)

    assert await site.fails_and_works(fail)


@pytest.mark.parametrize("name", MAKES)
async def test_at_every_request(coherer_simulated: SimulatedNode, name: str) -> None:
    node, site = coherer_simulated, Site(coherer_simulated, *MAKES[name])
    await site.fill()
    seen: set[str] = set()

    async def record(made: Lifecycle) -> BaseException | None:
        node.requests.clear()
        error = await _failure(made)
        seen.update(one.name for one in node.requests if one.protocol == site.protocol)
        return error

    assert not await site.fails_and_works(record)
    failed: set[str] = set()
    for request in sorted(seen):
        code = 17 if site.protocol == "rocketmq" else 400
        for fault in (node.faults.refuse(request, code), node.faults.lose(request)):
            if await site.fails_and_works(partial(_failure, fault=fault)):
                failed.add(request)
    assert failed, seen


@pytest.mark.parametrize("name", MAKES)
async def test_what_is_closed_while_it_starts_stays_closed(
    coherer_simulated: SimulatedNode, name: str
) -> None:
    site = Site(coherer_simulated, *MAKES[name])
    await site.fill()
    async with site.connect() as client:
        made = await site.make(client)
        starting = asyncio.create_task(made.start())
        await asyncio.sleep(0)
        await made.close()
        with pytest.raises(ClosedError):
            await starting
        with pytest.raises(ClosedError):
            await made.start()
        assert not made.unclosed
