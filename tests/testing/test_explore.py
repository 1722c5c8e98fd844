"""A user's test under random faults."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

import coherer
from coherer.errors import CohererError, UsageError
from coherer.message import Message
from coherer.testing import SimulatedCluster, SimulatedNode, explore
from coherer.testing.explore import run_seeds, schedule_of

pytestmark = pytest.mark.slow

ORDERS = 10


async def shop(
    node: SimulatedNode | SimulatedCluster,
    protocol: str,
    handle: Callable[[coherer.Batch], Awaitable[None]],
) -> None:
    """A small application, which survives errors."""
    url = node.url if protocol == "tubemq" else node.rocketmq_url
    async with coherer.connect(url, timeout_ms=3_000) as client:
        producer = client.producer()
        await started(producer)
        consumer = client.consumer("shop", "orders", start="earliest")
        await started(consumer)
        working = asyncio.create_task(consumer.run(node.received.by("shop", handle)))
        for number in range(ORDERS):
            while True:
                try:
                    await producer.send(Message("orders", b"%d" % number))
                except CohererError:
                    await asyncio.sleep(1)
                    continue
                break
        while len({one.body for one in node.received.messages()}) < ORDERS:
            await node.received.wait(len(node.received) + 1)
        await asyncio.sleep(10)
        working.cancel()


async def started(one: coherer.Producer | coherer.Consumer) -> None:
    while True:
        try:
            await one.start()
        except CohererError:
            await asyncio.sleep(1)
        else:
            return


async def idempotent(node: SimulatedNode, protocol: str) -> None:
    booked: set[bytes] = set()

    async def handle(batch: coherer.Batch) -> None:
        booked.update(batch.bodies())

    node.create_topic("orders")
    await shop(node, protocol, handle)
    assert len(booked) == ORDERS


async def careless(node: SimulatedNode) -> None:
    booked: list[bytes] = []

    async def handle(batch: coherer.Batch) -> None:
        booked.extend(batch.bodies())

    node.create_topic("orders")
    await shop(node, "rocketmq", handle)
    assert len(booked) == ORDERS, "an order is booked once"


@explore(seeds=5)
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_a_handler_that_is_idempotent(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    await idempotent(coherer_simulated, protocol)


def test_a_handler_that_is_not() -> None:
    with pytest.raises(AssertionError, match="booked once") as caught:
        run_seeds(range(50), SimulatedNode, careless)
    (note,) = caught.value.__notes__
    first, *others = note.splitlines()
    assert first.startswith("Seed ")
    assert "Repeat it with explore(seeds=1, first=" in first
    assert sum(line.startswith("- ") for line in others) == 1, "one fault is enough"
    assert any("was delivered twice to group shop after " in line for line in others), note
    seed = int(first.split()[1])
    with pytest.raises(AssertionError) as again:
        run_seeds([seed], SimulatedNode, careless)
    assert again.value.__notes__ == [note], "a seed is a run"


def test_failures_of_pytest() -> None:
    """What `pytest.fail` and a `pytest.raises` without its error raise is no `Exception`."""

    async def failing(node: SimulatedNode) -> None:
        try:
            await careless(node)
        except AssertionError:
            pytest.fail("an order is booked once")

    with pytest.raises(pytest.fail.Exception, match="booked once") as caught:
        run_seeds(range(50), SimulatedNode, failing)
    (note,) = caught.value.__notes__
    assert note.startswith("Seed ")
    assert note.count("\n- ") == 1, "one fault is enough"


def test_a_test_that_is_skipped() -> None:
    async def skipped(_: SimulatedNode) -> None:
        pytest.skip("not today")

    with pytest.raises(pytest.skip.Exception):
        run_seeds(range(3), SimulatedNode, skipped)


@explore(seeds=5)
@pytest.mark.coherer_cluster(brokers=2, slaves=True, apart=True)
@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_a_cluster(coherer_simulated_cluster: SimulatedCluster, protocol: str) -> None:
    booked: set[bytes] = set()

    async def handle(batch: coherer.Batch) -> None:
        booked.update(batch.bodies())

    await coherer_simulated_cluster.create_topic("orders")
    await shop(coherer_simulated_cluster, protocol, handle)
    assert len(booked) == ORDERS


def test_the_report_names_the_node() -> None:
    async def fragile(cluster: SimulatedCluster) -> None:
        await cluster.create_topic("orders")
        last = cluster.brokers[1].node
        await shop(cluster, "rocketmq", ignore)
        assert cluster.brokers[1].node is last, "it was started again"

    async def ignore(_: coherer.Batch) -> None:
        pass

    with pytest.raises(AssertionError, match="started again") as caught:
        run_seeds(range(30), partial(SimulatedCluster, apart=True), fragile)
    (note,) = caught.value.__notes__
    _, line = note.splitlines()
    assert re.match(r"- Broker-b was (killed|restarted) .*at request \d+ ", line), note


def test_a_test_that_fails_anyway() -> None:
    async def fails(node: SimulatedNode) -> None:
        assert node.url == "nowhere"

    with pytest.raises(AssertionError, match="nowhere") as caught:
        run_seeds(range(1), SimulatedNode, fails)
    assert caught.value.__notes__ == ["It fails without faults, too."]


def test_a_test_that_hangs_after_faults() -> None:
    async def hangs(node: SimulatedNode) -> None:
        url = node.url
        async with coherer.connect(url, timeout_ms=3_000) as client, client.producer() as producer:
            try:
                await producer.send(Message("orders", b"1"))
            except CohererError:
                await asyncio.sleep(1_000_000)

    with pytest.raises(TimeoutError) as caught:
        run_seeds(range(100), SimulatedNode, hangs)
    assert "more of virtual time than it needs without faults" in caught.value.__notes__[0]


def test_schedules() -> None:
    assert schedule_of(3, 10) == schedule_of(3, 10)
    assert schedule_of(3, 10) != schedule_of(4, 10)
    assert {one.kind for seed in range(20) for one in schedule_of(seed, 10)} == {
        "killed",
        "restarted",
        "reset",
        "stalled",
    }
    with pytest.raises(UsageError, match="at least one seed"):
        explore(seeds=0)


async def waiting(node: SimulatedNode, wait: Callable[[], Awaitable[object]]) -> None:
    """A test that waits if its one request fails."""
    node.create_topic("orders")
    async with (
        coherer.connect(node.url, timeout_ms=100) as client,
        client.producer("orders") as producer,
    ):
        try:
            await producer.send(Message("orders", b"1"))
        except CohererError:
            await wait()


@pytest.mark.parametrize("catches", [False, True])
def test_a_hung_test_is_reported_with_its_place(catches: bool) -> None:
    async def poll() -> None:
        while True:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                if not catches:
                    raise

    with pytest.raises(RuntimeError if catches else TimeoutError) as caught:
        run_seeds(range(50), SimulatedNode, partial(waiting, wait=poll))
    (note,) = caught.value.__notes__
    first, *others = note.splitlines()
    assert first.startswith("Seed ")
    assert "The test had 900 s more of virtual time than it needs without faults." in others
    assert re.search(r"poll waits at .*test_explore\.py:\d+$", note, re.MULTILINE), note


def test_a_deadline_of_the_test_is_its_own() -> None:
    async def late() -> None:
        async with asyncio.timeout(60):
            await asyncio.sleep(100)

    with pytest.raises(TimeoutError) as caught:
        run_seeds(range(50), SimulatedNode, partial(waiting, wait=late))
    assert "900 s" not in caught.value.__notes__[0]


def test_a_test_that_polls_without_faults_ends_too() -> None:
    def fresh() -> SimulatedNode:
        node = SimulatedNode()
        node.limit_s = 300
        return node

    async def polling(_: SimulatedNode) -> None:
        while True:  # noqa: ASYNC110 - this is it
            await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="not ended within 300 s") as caught:
        run_seeds(range(1), fresh, polling)
    assert caught.value.__notes__ == ["It fails without faults, too."]
