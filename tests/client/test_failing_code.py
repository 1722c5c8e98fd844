"""Handlers, callbacks, listeners and observers that raise what is no `Exception`, or end a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import pytest

import coherer
from coherer.errors import ClosedError, CohererError, UsageError
from coherer.rocketmq import Kind, StoredMessage, Verdict
from coherer.testing import SimulatedCluster, SimulatedNode

TOPIC, GROUP = "orders", "shop"
protocols = pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])


def url(node: SimulatedNode, protocol: str) -> str:
    return node.url if protocol == "tubemq" else node.rocketmq_url


async def wait_for_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


def of_an_empty_iterator(batch: Any) -> None:
    del batch
    next(iter(()))


async def of_a_cancelled_task(batch: Any) -> None:
    del batch
    await wait_for_cancelled_task()


def of_a_thread(batch: Any) -> None:
    del batch
    raise asyncio.CancelledError


async def handled(node: SimulatedNode, protocol: str, fail: Callable[[Any], Any]) -> list[bytes]:
    """The bodies that a handler gets which fails at its first batch."""
    node.create_topic(TOPIC, 1)
    got: list[bytes] = []
    failed, enough = asyncio.Event(), asyncio.Event()

    async def handle(batch: coherer.ReceivedBatch) -> None:
        got.extend(map(bytes, batch.bodies()))
        if len(got) == 2:
            enough.set()

    def fail_once(batch: Any) -> Any:
        if not failed.is_set():
            failed.set()
            return fail(batch)
        return handle(batch)

    async with coherer.connect(url(node, protocol)) as client, client.producer(TOPIC) as producer:
        await producer.send(coherer.Message(TOPIC, b"1"))
        async with client.consumer(GROUP, TOPIC, start="earliest") as consumer:
            running = asyncio.create_task(consumer.run(fail_once))
            await failed.wait()
            await producer.send(coherer.Message(TOPIC, b"2"))
            await asyncio.wait([running, asyncio.create_task(enough.wait())], timeout=600)
            assert not running.done()
            running.cancel()
    return got


@protocols
@pytest.mark.parametrize("fail", [of_an_empty_iterator, of_a_cancelled_task, of_a_thread])
async def test_a_handler_has_failed_whatever_it_raises(
    coherer_simulated: SimulatedNode, protocol: str, fail: Callable[[Any], Any]
) -> None:
    got = await handled(coherer_simulated, protocol, fail)
    assert sorted(got) == [b"1", b"2"]


@protocols
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
async def test_a_handler_can_end_the_program(
    coherer_simulated: SimulatedNode, protocol: str, end: type[BaseException]
) -> None:
    """`run` raises what the handler has raised, and its message comes again."""
    coherer_simulated.create_topic(TOPIC, 1)

    async def leave(batch: Any) -> None:
        del batch
        raise end

    where = url(coherer_simulated, protocol)
    async with coherer.connect(where) as client, client.producer(TOPIC) as producer:
        await producer.send(coherer.Message(TOPIC, b"1"))
        async with client.consumer(GROUP, TOPIC, start="earliest") as consumer:
            with pytest.raises(end):
                await consumer.run(leave, workers=2)
            assert (await anext(aiter(consumer))).body == b"1"


@protocols
async def test_a_callback_breaks_nothing(coherer_simulated: SimulatedNode, protocol: str) -> None:
    coherer_simulated.create_topic(TOPIC, 1)

    def fail(outcome: object) -> None:
        del outcome
        raise asyncio.CancelledError

    where = url(coherer_simulated, protocol)
    async with coherer.connect(where) as client, client.producer(TOPIC) as producer:
        producer.submit(coherer.Message(TOPIC, b"1"), callback=fail)
        await producer.send(coherer.Message(TOPIC, b"2"))
        assert producer.in_flight == 0


@protocols
async def test_a_listener_breaks_nothing(
    coherer_simulated_cluster: SimulatedCluster, protocol: str
) -> None:
    """The partitions of the other member come after the first listener has failed."""
    cluster = coherer_simulated_cluster
    await cluster.create_topic(TOPIC, 1)

    async def fail(partitions: object) -> None:
        del partitions
        await wait_for_cancelled_task()

    def shares(consumer: Any) -> int:
        return sum(one.topic == TOPIC for one in consumer.assignment)

    where = cluster.url if protocol == "tubemq" else cluster.rocketmq_url
    client: Any
    async with (
        coherer.connect(where) as client,
        client.producer(TOPIC) as producer,
        client.consumer(GROUP, TOPIC, on_assigned=fail, on_revoked=fail) as consumer,
    ):
        async with coherer.connect(where) as others, others.consumer(GROUP, TOPIC):
            await asyncio.sleep(120)
            assert shares(consumer) == 1
        await asyncio.sleep(120)
        assert shares(consumer) == 2
        await producer.send(coherer.Message(TOPIC, b"1"))
        assert await consumer.receive(60_000) is not None


async def test_a_check_that_fails_leaves_its_transaction_open(
    coherer_simulated: SimulatedNode,
) -> None:
    """A failed check is answered, as if the outcome were not known yet."""
    coherer_simulated.create_topic(TOPIC, 1)
    asked = asyncio.Event()

    async def check(message: StoredMessage) -> Verdict:
        del message
        asked.set()
        await wait_for_cancelled_task()
        return Verdict.COMMIT

    async with (
        coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer(TOPIC, group="cashiers", check=check) as producer,
    ):
        with pytest.raises(RuntimeError):
            async with producer.transaction(coherer.Message(TOPIC, b"1")):
                raise RuntimeError
        await asyncio.sleep(1)
        before = coherer_simulated.requests.count("end_transaction")
        await asked.wait()
        await asyncio.sleep(1)
        assert coherer_simulated.requests.count("end_transaction") == before + 1


class Sending:
    properties = {"seen": "yes"}  # noqa: RUF012 - as the protocol says

    def __init__(self, log: list[object], *, fails: bool) -> None:
        self._log = log
        self._fails = fails

    def _note(self, what: object) -> None:
        self._log.append(what)
        if self._fails:
            raise ValueError(what)

    def stored(self, outcome: object) -> None:
        del outcome
        self._note("stored")

    def failed(self, error: CohererError) -> None:
        self._note(type(error))


class Watching:
    """An observer that fails in its methods, or when a send begins."""

    def __init__(self, fails: str) -> None:
        self.log: list[object] = []
        self._fails = fails

    def begin(self, messages: Sequence[coherer.Message], group: str, kind: Kind) -> Sending:
        del messages, group, kind
        if self._fails == "begin":
            self._fail()
        return Sending(self.log, fails=self._fails == "end")

    def _fail(self) -> NoReturn:
        raise ValueError(self)


@pytest.mark.parametrize("fails", ["begin", "end"])
async def test_an_observer_breaks_nothing(coherer_simulated: SimulatedNode, fails: str) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    bad, good = Watching(fails), Watching("never")
    async with (
        coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer(TOPIC, observers=[bad, good]) as producer,
    ):
        await producer.send(coherer.Message(TOPIC, b"1"), delay=timedelta(seconds=1))
        await producer.send_batch([coherer.Message(TOPIC, b"2")])
        with coherer_simulated.faults.refuse("send", code=13), pytest.raises(CohererError):
            await producer.send(coherer.Message(TOPIC, b"3"))
        assert producer.in_flight == 0
    assert len(good.log) == 3


async def test_an_observer_hears_of_a_message_that_cannot_be_sent(
    coherer_simulated: SimulatedNode,
) -> None:
    coherer_simulated.create_topic(TOPIC, 1)
    watching = Watching("never")
    async with (
        coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer(TOPIC, observers=[watching]) as producer,
    ):
        with pytest.raises(UsageError):
            await producer.send(coherer.Message(TOPIC, "text"))  # type: ignore[arg-type]
    assert watching.log == [UsageError]


async def test_a_delayed_message_of_a_producer_that_closes_has_an_outcome(
    coherer_simulated: SimulatedNode,
) -> None:
    """Whether a broker supports the delay is asked first; nobody waits for ever meanwhile."""
    coherer_simulated.create_topic(TOPIC, 1)
    async with coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client:
        with coherer_simulated.faults.lose("heartbeat"):
            producer = client.producer(TOPIC)
            await producer.start()
            sent = producer.submit(coherer.Message(TOPIC, b"1"), delay=timedelta(days=1))
            closing = asyncio.create_task(producer.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
            with pytest.raises(ClosedError):
                await sent
