"""`coherer_simulated`: a test, its node and its clients in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from datetime import timedelta

import pytest

import coherer
from coherer._common import clock
from coherer.errors import CohererError, UsageError
from coherer.message import Message
from coherer.rocketmq import ReceivedBatch, StoredMessage, Verdict
from coherer.testing import SimulatedNode, async_embedded_node, simulate
from coherer.testing.simulation import Process

DAY_S = 86_400
RETRIES_S = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


async def test_sixteen_retries_fifteen_checks_and_three_days(
    coherer_simulated: SimulatedNode,
) -> None:
    """All at once, while the handler sleeps, too."""
    loop, attempts, checks = asyncio.get_running_loop(), list[int](), list[str]()
    times: list[float] = []
    began_s = time.process_time()

    async def fails(batch: ReceivedBatch) -> None:
        times.append(loop.time())
        await asyncio.sleep(5)
        attempts.extend(message.attempt for message in batch)
        raise LookupError("no such order")

    async def unknown(message: StoredMessage) -> Verdict:
        checks.append(message.unique_id)
        return Verdict.UNKNOWN

    async with (
        coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer(group="banks", check=unknown) as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
        client.consumer("later", "timed", start="earliest") as later,
    ):
        sent_s = loop.time()
        await producer.send(Message("timed", b"42"), delay=timedelta(days=3))
        with pytest.raises(LookupError):
            async with producer.transaction(Message("payments", b"7")):
                raise LookupError
        await producer.send(Message("orders", b"42"))
        working = asyncio.create_task(consumer.run(fails))
        assert (await anext(aiter(later))).body == b"42"
        assert sent_s + 3 * DAY_S <= loop.time() < sent_s + 3 * DAY_S + 1
        working.cancel()
        assert list((await client.offsets("%DLQ%shop")).values()) == [(0, 1)]
        assert list((await client.offsets("TRANS_CHECK_MAX_TIME_TOPIC")).values()) == [(0, 1)]
    assert attempts == list(range(17)), "the first delivery and 16 retries"
    waited = [round(after - before - 5) for before, after in itertools.pairwise(times)]
    assert waited == RETRIES_S
    assert len(checks) == 15
    assert len(set(checks)) == 1
    # 0.6 s on the machine that this was written on. Processor time does not depend on the load.
    assert time.process_time() - began_s < 6


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_members_keep_their_leases_while_days_pass(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    node = coherer_simulated
    node.create_topic("orders")
    async with (
        coherer.connect(node.url if protocol == "tubemq" else node.rocketmq_url) as client,
        client.producer("orders") as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
    ):
        for body in (b"first", b"after three days", b"after six days"):
            await producer.send(Message("orders", body))
            batch = await consumer.receive()
            assert batch is not None
            assert batch.bodies() == [body]
            batch.ack()
            await asyncio.sleep(3 * DAY_S)
        assert consumer.assignment


async def test_timeouts_end_when_they_should(coherer_simulated: SimulatedNode) -> None:
    """The test's own ones, and those of the client, although a message is due much later."""
    loop = asyncio.get_running_loop()
    async with (
        coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as client,
        client.producer("orders") as producer,
        client.consumer("shop", "orders", start="earliest") as consumer,
    ):
        await producer.send(Message("orders", b"42"), delay=timedelta(days=1))
        for timeout_s in (1, 300, 7200):
            began_s = loop.time()
            assert await consumer.receive(timeout_ms=1000 * timeout_s) is None
            assert loop.time() - began_s == pytest.approx(timeout_s, abs=0.01)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await consumer.receive()
            assert loop.time() - began_s == pytest.approx(2 * timeout_s, abs=0.01)
        coherer_simulated.create_topic("single")
        async with (
            client.consumer("pair", "single"),
            coherer.rocketmq.connect(coherer_simulated.rocketmq_url) as other,
            other.consumer("pair", "single") as idle,
        ):
            await asyncio.sleep(60)
            began_s = loop.time()
            with pytest.raises(CohererError):
                await idle.wait_assigned(timeout_ms=600_000)
            assert loop.time() - began_s == pytest.approx(600, abs=0.01)
        batch = await consumer.receive()
        assert batch is not None
        assert loop.time() == pytest.approx(DAY_S, abs=1)


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_a_member_that_dies_loses_its_lease(
    coherer_simulated: SimulatedNode, protocol: str
) -> None:
    """Although a day passes at once after its death."""
    node = coherer_simulated
    node.create_topic("orders", 4)
    url = node.url if protocol == "tubemq" else node.rocketmq_url

    async def join() -> None:
        async with coherer.connect(url) as mine, mine.consumer("shop", "orders") as consumer:
            await consumer.receive()

    member = Process("member")
    member.start(join())
    async with coherer.connect(url) as client, client.consumer("shop", "orders") as consumer:
        await asyncio.sleep(60)
        assert sum("orders" in str(one) for one in consumer.assignment) == 2
        member.kill()
        await asyncio.sleep(DAY_S)
        assert sum("orders" in str(one) for one in consumer.assignment) == 4


async def test_the_time_of_day_passes_for_all(coherer_simulated: SimulatedNode) -> None:
    before_ms, began_s = clock.wall_ms(), asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        for hours in (1, 2, 24):
            tasks.create_task(asyncio.sleep(3600 * hours))
    assert asyncio.get_running_loop().time() - began_s == DAY_S
    assert clock.wall_ms() - before_ms == 1000 * DAY_S
    assert coherer_simulated.node.core is not None
    assert coherer_simulated.node.core.now_ms() == clock.wall_ms()


def test_messages_expire() -> None:
    """Retention follows the time that was passed over."""
    node = SimulatedNode(topic_retention={"orders": "1d"})

    async def main() -> None:
        async with (
            coherer.rocketmq.connect(node.rocketmq_url) as client,
            client.producer("orders") as producer,
        ):
            receipt = await producer.send(Message("orders", b"old"))
            assert receipt.offset == 0
            assert (0, 1) in (await client.offsets("orders")).values()
            await asyncio.sleep(2 * DAY_S)
            assert (1, 1) in (await client.offsets("orders")).values()

    node.run(main())


def test_a_plain_test_is_told_to_be_async(coherer_simulated: SimulatedNode) -> None:
    assert "stopped" in repr(coherer_simulated)
    with pytest.raises(UsageError, match="async test"):
        _ = coherer_simulated.url


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_message_that_never_comes_is_an_error(sleeps: bool) -> None:
    """Heartbeats and polls alone would go on forever."""

    async def main() -> None:
        async with (
            async_embedded_node(admin_port=None) as node,
            coherer.connect(node.rocketmq_url) as client,
            client.consumer("shop", "orders") as consumer,
        ):
            if sleeps:  # as anyio's `sleep_forever`
                await asyncio.sleep(math.inf)
            await consumer.receive()

    with pytest.raises(RuntimeError, match="Nothing will ever happen"):
        simulate(main())
