"""What becomes of a consumer's partitions: shared, given up, occupied, forgotten."""

from __future__ import annotations

import asyncio

import pytest

from coherer._client.tubemq.cluster import Cluster
from coherer._client.tubemq.consumer import Consumer
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer.errors import RefusedError, RequestTimeoutError
from tests.client.tube_clients import GROUP, commit, consumer_of, give_up, one


async def test_nothing_assigned(fake, way: Cluster) -> None:
    fake.balances = False
    async with consumer_of(way) as consumer:
        with pytest.raises(RequestTimeoutError, match="no partition"):
            await consumer.wait_assigned(20)
        assert await consumer.receive(5) is None


async def test_two_members_share(fake, way: Cluster) -> None:
    came, went = [], []
    fake.extra = {"heartbeatMs": 10}
    async with consumer_of(way, on_revoked=went.append) as first:
        await first.wait_assigned(2_000)
        await fake.until(lambda: fake.asked(methods.CONSUMER_HEARTBEAT)[-1].reportSubscribeInfo)
        fake.balances = False

        async def listener(partitions) -> None:
            came.append(partitions)

        async with consumer_of(way, on_assigned=listener) as second:
            name = next(iter(fake.groups[GROUP]))
            moved = fake.partitions("demo")[1:]
            fake.instruct(GROUP, name, 20, *moved)
            await fake.until(lambda: not fake.groups[GROUP][name].events)
            assert went == [frozenset(moved)]
            assert {one.id for one in first.assignment} == {0}
            [_, newcomer] = fake.groups[GROUP]
            fake.instruct(GROUP, newcomer, 10, *moved)
            await second.wait_assigned(2_000)
            assert came == [frozenset(moved)]
            fake.put("demo", 2, b"x")
            assert (await one(second)).partition == 2


async def test_a_package_in_hand_may_be_finished_before_its_partition_goes(
    fake, consumer: Consumer
) -> None:
    fake.put("demo", 0, b"a")
    batch = await one(consumer)
    going = asyncio.ensure_future(give_up(fake, *fake.partitions("demo")))
    await fake.until(lambda: any(m.events for m in fake.groups[GROUP].values()))
    assert await commit(consumer, batch) == 1
    await going
    assert not consumer.assignment
    assert fake.stored[GROUP, "demo", 0] == 1


async def test_a_package_that_is_done_while_its_partition_goes(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    batch = await one(consumer)
    going = asyncio.ensure_future(give_up(fake, *fake.partitions("demo")))
    await fake.until(lambda: any(m.events for m in fake.groups[GROUP].values()))
    batch.ack()
    await going
    assert fake.stored[GROUP, "demo", 0] == 1


async def test_a_package_that_is_not_finished_in_time_goes_to_somebody_else(
    fake, way: Cluster
) -> None:
    async with consumer_of(way, release_ms=30) as consumer:
        await consumer.wait_assigned(2_000)
        fake.put("demo", 0, b"a")
        batch = await one(consumer)
        await give_up(fake, *fake.partitions("demo"))
        with pytest.raises(RefusedError, match="not assigned to this consumer") as caught:
            await consumer.commit(batch)
        assert caught.value.code == ResultCode.NOT_FOUND
        assert fake.stored[GROUP, "demo", 0] == 0


async def test_a_package_nobody_has_seen_goes_at_once(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    await fake.until(lambda: fake.deltas[GROUP, "demo", 0])
    await give_up(fake, *fake.partitions("demo"))
    assert await consumer.receive(0) is None
    assert fake.stored[GROUP, "demo", 0] == 0


async def test_the_broker_forgets_us(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    await consumer.commit(await one(consumer))
    await fake.restart_broker()
    fake.put("demo", 0, b"b")
    assert (await one(consumer)).bodies() == [b"b"]


async def test_the_broker_has_given_the_partition_to_somebody_else(
    fake, consumer: Consumer
) -> None:
    fake.balances = False
    fake.holders[GROUP, "demo", 0] = "somebody else"
    fake.put("demo", 0, b"a")
    await fake.until(
        lambda: any(
            beat.reportSubscribeInfo and len(beat.subscribeInfo) == 2
            for beat in fake.asked(methods.CONSUMER_HEARTBEAT)
        )
    )
    assert {one.id for one in consumer.assignment} == {1, 2}


async def test_a_partition_that_is_occupied_for_a_moment(fake, kit, way: Cluster) -> None:
    fake.script(methods.PARTITION_REGISTER, *[kit.refuse(410)] * 3)
    async with consumer_of(way) as consumer:
        await fake.until(lambda: len(consumer.assignment) == 3 or len(fake.holders) == 3)
        assert (await consumer.wait_assigned(2_000)) == set(fake.partitions("demo"))


async def test_a_wrong_start_is_not_spent_on_a_refused_registration(
    fake, kit, way: Cluster
) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, b"old")
    fake.script(methods.PARTITION_REGISTER, kit.refuse(410))
    async with consumer_of(way, start="latest") as consumer:
        await consumer.wait_assigned(2_000)
    taken = [
        request.readStatus
        for request in fake.asked(methods.PARTITION_REGISTER)
        if request.opType == methods.REGISTER
    ]
    assert taken == [1, 1]


async def test_a_partition_that_cannot_be_taken_is_left_to_the_next_balance(
    fake, kit, way: Cluster
) -> None:
    fake.balances = False
    fake.extra = {"heartbeatMs": 10}
    async with consumer_of(way) as consumer:
        [name] = fake.groups[GROUP]
        fake.always(methods.PARTITION_REGISTER, kit.refuse(415))
        fake.instruct(GROUP, name, 10, *fake.partitions("demo"))
        await fake.until(lambda: not fake.groups[GROUP][name].events)
        assert not consumer.assignment


@pytest.mark.parametrize("kind", [3, 4, 99])
async def test_reports_and_unknown_instructions_are_answered(fake, way: Cluster, kind: int) -> None:
    """The master sends the next instruction only after the answer to this one."""
    fake.extra = {"heartbeatMs": 10}
    async with consumer_of(way) as consumer:
        held = await consumer.wait_assigned(2_000)
        await fake.until(lambda: len(consumer.assignment) == 3)
        [name] = fake.groups[GROUP]
        await fake.until(lambda: not fake.groups[GROUP][name].events)
        fake.instruct(GROUP, name, kind)
        fake.instruct(GROUP, name, 20, *sorted(held)[:1])
        await fake.until(lambda: not fake.groups[GROUP][name].events)
        answers = [
            one for one in fake.asked(methods.CONSUMER_HEARTBEAT) if one.event.opType == kind
        ]
        assert len(answers[0].subscribeInfo) == 3
        assert answers[0].reportSubscribeInfo


async def test_a_listener_that_fails_harms_nobody(
    fake, way: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer_of(way, on_assigned=lambda partitions: 1 / 0) as consumer:
        assert len(await consumer.wait_assigned(2_000)) == 3
    assert "A rebalance listener failed" in caplog.text
