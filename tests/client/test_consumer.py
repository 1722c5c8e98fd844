from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from coherer.client.tubemq.cluster import ClientOptions, Cluster
from coherer.client.tubemq.consumer import Consumer
from coherer.client.tubemq.consumer_options import ConsumerOptions
from coherer.client.tubemq.positions import Bound
from coherer.errors import (
    ClosedError,
    ConnectError,
    DisconnectedError,
    RefusedError,
    RequestTimeoutError,
    UsageError,
)
from coherer.message import ReceivedMessage
from coherer.rocketmq.subscription import Sql92
from coherer.tubemq import codes, methods
from coherer.tubemq.codes import ResultCode
from coherer.tubemq.names import SubscribeInfo

GROUP = "readers"


def consumer_of(way: Cluster, topics="demo", **options) -> Consumer:
    options = {"start": "earliest", "empty_ms": 5} | options
    return Consumer(way, GROUP, topics, ConsumerOptions(**options))


@pytest.fixture
async def consumer(fake, way: Cluster):
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        yield consumer


async def one(consumer: Consumer):
    batch = await consumer.receive(2_000)
    assert batch is not None
    return batch


async def test_messages_come_and_are_confirmed(fake, consumer: Consumer) -> None:
    fake.put("demo", 1, b"a", b"b", tag="UA")
    batch = await one(consumer)
    first, second = batch
    assert first == ReceivedMessage("demo", b"a", "UA", id="0", broker="1", partition=1, offset=0)
    assert (second.body, second.offset) == (b"b", 1)
    assert await consumer.confirm(batch) == 2
    assert fake.stored[GROUP, "demo", 1] == 2
    assert await consumer.receive(0) is None


async def test_what_the_master_is_told(fake, way: Cluster) -> None:
    async with consumer_of(way, {"demo": ["UA", "AA"]}) as consumer:
        await consumer.wait_assigned(2_000)
        await fake.until(
            lambda: any(beat.event.rebalanceId for beat in fake.asked(methods.CONSUMER_HEARTBEAT))
        )
    [register] = fake.asked(methods.CONSUMER_REGISTER)
    assert register.clientId.startswith(f"{GROUP}_127.0.0.1-")
    assert "-Pull-" in register.clientId
    assert (register.groupName, register.hostName) == (GROUP, "127.0.0.1")
    assert (list(register.topicList), list(register.subscribeInfo)) == (["demo"], [])
    assert list(register.topicCondition) == ["demo#AA,UA"]
    assert not register.requireBound
    assert (register.groupFlowCheckId, register.defFlowCheckId, register.qryPriorityId) == (
        -2,
        -2,
        -2,
    )
    acknowledgement = next(
        beat for beat in fake.asked(methods.CONSUMER_HEARTBEAT) if beat.event.rebalanceId
    )
    assert (acknowledgement.event.status, acknowledgement.reportSubscribeInfo) == (2, True)
    assert len(acknowledgement.subscribeInfo) == 3
    told = SubscribeInfo.parse(acknowledgement.subscribeInfo[0])
    assert (told.consumer_id, told.group) == (register.clientId, GROUP)
    taken = fake.asked(methods.PARTITION_REGISTER)[:3]
    assert {request.partitionId for request in taken} == {0, 1, 2}
    assert {tuple(request.filterCondStr) for request in taken} == {("AA", "UA")}
    assert {request.authInfo.visitAuthorizedToken for request in taken} == {4711}
    assert [close.clientId for close in fake.asked(methods.CONSUMER_CLOSE)] == [register.clientId]
    assert not fake.groups[GROUP]
    assert not fake.holders


async def test_an_unconfirmed_package_blocks_its_partition_only(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, *[b"0"] * 10)
    first = await one(consumer)
    assert await consumer.receive(20) is None
    fake.put("demo", 2, b"2")
    second = await one(consumer)
    assert (second.partition, "2 of them to be confirmed" in repr(consumer)) == (2, True)
    await consumer.confirm(first)
    assert (await one(consumer)).offset == 5


async def test_a_rejected_package_comes_again(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a", b"b")
    batch = await one(consumer)
    assert await consumer.reject(batch) == 0
    again = await one(consumer)
    assert (again.offset, again.bodies()) == (0, [b"a", b"b"])
    assert await consumer.confirm(again) == 2


async def test_a_package_is_confirmed_once(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    batch = await one(consumer)
    await consumer.confirm(batch)
    for again in (consumer.confirm, consumer.reject):
        with pytest.raises(UsageError) as caught:
            await again(batch)
        assert caught.value.code == ResultCode.BAD_REQUEST


async def test_messages_by_async_for(fake, consumer: Consumer) -> None:
    for partition in range(3):
        fake.put("demo", partition, *(b"%d:%d" % (partition, n) for n in range(12)))
    bodies = []
    async for message in consumer:
        bodies.append(message.body)
        if len(bodies) == 36:
            break
    assert sorted(bodies) == sorted(b"%d:%d" % (p, n) for p in range(3) for n in range(12))
    for partition in range(3):
        mine = [body for body in bodies if body.startswith(b"%d:" % partition)]
        assert mine == [b"%d:%d" % (partition, n) for n in range(12)]
    assert not fake.asked(methods.COMMIT_OFFSET)


async def test_the_confirmation_rides_on_the_next_get(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, *[b"x"] * 7)
    batches = consumer.batches()
    assert (await anext(batches)).offset == 0
    assert fake.stored[GROUP, "demo", 0] == 0
    assert (await anext(batches)).offset == 5
    assert fake.stored[GROUP, "demo", 0] == 5
    waiting = asyncio.ensure_future(anext(batches))
    await fake.until(lambda: fake.stored[GROUP, "demo", 0] == 7)
    waiting.cancel()


async def test_a_loop_that_is_left_gets_its_package_again(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a", b"b", b"c")
    async for message in consumer:
        if message.body == b"b":
            break
    assert [message.body async for message in take(consumer, 3)] == [b"a", b"b", b"c"]
    with contextlib.suppress(ZeroDivisionError):
        async for message in consumer:
            raise ZeroDivisionError(message.body)
    assert (await one(consumer)).bodies() == [b"a", b"b", b"c"]
    assert len([r for r in fake.asked(methods.GET_MESSAGES) if r.partitionId == 0]) == 1


async def take(consumer: Consumer, count: int):
    async for message in consumer:
        yield message
        count -= 1
        if not count:
            return


async def test_what_is_not_confirmed_at_the_end_is_rolled_back(fake, way: Cluster) -> None:
    fake.put("demo", 0, b"a", b"b")
    async with consumer_of(way) as consumer:
        async for _ in consumer:
            break
    assert fake.stored[GROUP, "demo", 0] == 0
    statuses = {
        request.partitionId: request.readStatus
        for request in fake.asked(methods.PARTITION_REGISTER)
        if request.opType == methods.UNREGISTER
    }
    assert statuses == {0: 1, 1: 1, 2: 1}


async def test_what_was_done_is_confirmed_at_the_end(fake, way: Cluster) -> None:
    fake.put("demo", 0, b"a", b"b")
    async with consumer_of(way) as consumer:
        batch = await one(consumer)
        consumer.pause()
        consumer.done(batch)
    assert fake.stored[GROUP, "demo", 0] == 2


async def test_a_lost_get_is_not_a_second_confirmation(fake, kit, way: Cluster) -> None:
    """The broker commits what the lost get told, and rolls back what its answer brought."""
    fake.put("demo", 0, *[b"%d" % n for n in range(15)])
    seen = []
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        consumer.pause("1:demo:1", "1:demo:2")

        def lose(asked) -> None:
            kit.handlers[methods.GET_MESSAGES](asked)  # it counts at the broker
            asked.connection.abort()

        batches = consumer.batches()
        seen += (await anext(batches)).bodies()
        fake.script(methods.GET_MESSAGES, lose)
        while len(seen) < 15:
            seen += (await anext(batches)).bodies()
    assert set(seen) == {b"%d" % n for n in range(15)}
    assert Counter(seen).most_common(1)[0][1] == 1


async def test_a_confirmation_that_fails(fake, kit, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    batch = await one(consumer)
    fake.script(methods.COMMIT_OFFSET, kit.hang_up)
    with pytest.raises(DisconnectedError):
        await consumer.confirm(batch)
    assert (await one(consumer)).bodies() == [b"a"]


async def test_tags(fake, way: Cluster) -> None:
    async with consumer_of(way, {"demo": ["UA"]}) as consumer:
        await consumer.wait_assigned(2_000)
        fake.put("demo", 0, b"1", tag="UA")
        fake.put("demo", 0, b"2", tag="AA")
        messages = [message async for message in take(consumer, 1)]
        assert [(message.body, message.offset) for message in messages] == [(b"1", None)]


async def test_tags_as_rocketmq_writes_them(fake, way: Cluster) -> None:
    async with consumer_of(way, {"demo": "UA || AA"}) as consumer:
        await consumer.wait_assigned(2_000)
        for tag in ("UA", "DL", "AA"):
            fake.put("demo", 0, tag.encode(), tag=tag)
        messages = [message async for message in take(consumer, 2)]
        assert [message.tag for message in messages] == ["UA", "AA"]
    with pytest.raises(UsageError, match="filter by tags, not by Sql92"):
        consumer_of(way, {"demo": Sql92("a > 3")})


async def test_a_package_of_which_nothing_is_wanted_is_passed_over(fake, way: Cluster) -> None:
    async with consumer_of(way, {"demo": ["UA"]}) as consumer:
        await consumer.wait_assigned(2_000)
        fake.put("demo", 0, *[b"no"] * 5, tag="AA")
        fake.put("demo", 0, b"yes", tag="UA")
        assert (await one(consumer)).bodies() == [b"yes"]
        assert fake.stored[GROUP, "demo", 0] == 5


async def test_several_topics(fake, way: Cluster) -> None:
    fake.topics["other"] = 2
    async with consumer_of(way, ["demo", "other"]) as consumer:
        await consumer.wait_assigned(2_000)
        assert {partition.topic for partition in consumer.assignment} == {"demo", "other"}
        fake.put("other", 1, b"o")
        fake.put("demo", 1, b"d")
        assert {(await one(consumer)).topic for _ in range(2)} == {"demo", "other"}


async def test_latest_skips_what_is_there(fake, way: Cluster) -> None:
    fake.put("demo", 0, b"old")
    async with consumer_of(way, start="latest") as consumer:
        await consumer.wait_assigned(2_000)
        fake.put("demo", 0, b"new")
        assert (await one(consumer)).bodies() == [b"new"]


async def test_exact_offsets(fake, way: Cluster) -> None:
    fake.put("demo", 0, *[b"%d" % n for n in range(10)])
    start = Bound(offsets={"1:demo:0": 7}, session="s", others="earliest")
    async with consumer_of(way, start=start) as consumer:
        await consumer.wait_assigned(2_000)
        assert (await one(consumer)).bodies() == [b"7", b"8", b"9"]
    [register] = fake.asked(methods.CONSUMER_REGISTER)
    assert register.requireBound
    assert (register.sessionKey, register.totalCount, register.selectBig) == ("s", 1, True)
    assert (register.requiredPartition, register.notAllocated) == ("1:demo:0=7", True)


async def test_a_broker_of_java(fake, way: Cluster) -> None:
    fake.ours = fake.holds_gets = False
    fake.put("demo", 0, b"a", b"b")
    async with consumer_of(way) as consumer:
        batch = await one(consumer)
        assert [message.offset for message in batch] == [None, None]
        assert await consumer.confirm(batch) == 2 * 28
        assert not next(iter(consumer.progress.values())).exact
        fake.put("demo", 0, b"c")
        batch = await one(consumer)
        assert batch.offset == 2 * 28


async def test_nothing_assigned(fake, way: Cluster) -> None:
    fake.balances = False
    async with consumer_of(way) as consumer:
        with pytest.raises(RequestTimeoutError, match="No partition"):
            await consumer.wait_assigned(20)
        assert await consumer.receive(5) is None


async def test_two_members_share(fake, way: Cluster) -> None:
    came, went = [], []
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
            first._membership.hurry()
            await fake.until(lambda: not fake.groups[GROUP][name].events)
            assert went == [frozenset(moved)]
            assert {one.id for one in first.assignment} == {0}
            fake.instruct(GROUP, second._membership.member, 10, *moved)
            second._membership.hurry()
            await second.wait_assigned(2_000)
            assert came == [frozenset(moved)]
            fake.put("demo", 2, b"x")
            assert (await one(second)).partition == 2


async def give_up(fake, consumer: Consumer, *partitions) -> None:
    fake.instruct(GROUP, consumer._membership.member, 20, *partitions)
    fake.balances = False
    consumer._membership.hurry()
    await fake.until(lambda: not fake.groups[GROUP][consumer._membership.member].events)


async def test_a_package_in_hand_may_be_finished_before_its_partition_goes(
    fake, consumer: Consumer
) -> None:
    fake.put("demo", 0, b"a")
    batch = await one(consumer)
    going = asyncio.ensure_future(give_up(fake, consumer, *fake.partitions("demo")))
    await fake.until(lambda: any(m.events for m in fake.groups[GROUP].values()))
    assert await consumer.confirm(batch) == 1
    await going
    assert not consumer.assignment
    assert fake.stored[GROUP, "demo", 0] == 1


async def test_a_package_that_is_done_while_its_partition_goes(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    batch = await one(consumer)
    going = asyncio.ensure_future(give_up(fake, consumer, *fake.partitions("demo")))
    await fake.until(lambda: any(m.events for m in fake.groups[GROUP].values()))
    consumer.done(batch)
    await going
    assert fake.stored[GROUP, "demo", 0] == 1


async def test_a_package_that_is_not_finished_in_time_goes_to_somebody_else(
    fake, way: Cluster
) -> None:
    async with consumer_of(way, release_ms=30) as consumer:
        await consumer.wait_assigned(2_000)
        fake.put("demo", 0, b"a")
        batch = await one(consumer)
        await give_up(fake, consumer, *fake.partitions("demo"))
        with pytest.raises(RefusedError, match="not ours any more") as caught:
            await consumer.confirm(batch)
        assert caught.value.code == ResultCode.NOT_FOUND
        assert fake.stored[GROUP, "demo", 0] == 0


async def test_a_package_nobody_has_seen_goes_at_once(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    await fake.until(lambda: fake.deltas[GROUP, "demo", 0])
    await give_up(fake, consumer, *fake.partitions("demo"))
    assert await consumer.receive(0) is None
    assert fake.stored[GROUP, "demo", 0] == 0


async def test_the_broker_forgets_us(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    await consumer.confirm(await one(consumer))
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


async def test_heartbeats_to_brokers(fake, way: Cluster) -> None:
    way = Cluster(ClientOptions(addresses=way.options.addresses, heartbeat_ms=20))
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        await fake.until(
            lambda: any(len(r.partitionInfo) == 3 for r in fake.asked(methods.PARTITION_HEARTBEAT))
        )
        del fake.holders[GROUP, "demo", 1]
        await fake.until(lambda: (GROUP, "demo", 1) in fake.holders)
    await way.pool.close()


async def test_a_broker_that_does_not_answer_heartbeats_is_dialled_again(
    fake, kit, way: Cluster
) -> None:
    way = Cluster(ClientOptions(addresses=way.options.addresses, heartbeat_ms=20, timeout_ms=50))
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        fake.script(methods.PARTITION_HEARTBEAT, kit.silence)
        before = way.pool.find("127.0.0.1", fake.broker.port)
        await fake.until(lambda: not before.open)
        fake.put("demo", 0, b"a")
        assert (await one(consumer)).bodies() == [b"a"]
    await way.pool.close()


async def test_a_broker_that_refuses_our_credentials(fake, kit, way: Cluster) -> None:
    way = Cluster(ClientOptions(addresses=way.options.addresses, heartbeat_ms=20))
    went = []
    async with consumer_of(way, on_revoked=went.append) as consumer:
        await consumer.wait_assigned(2_000)
        fake.balances = False
        fake.script(methods.PARTITION_HEARTBEAT, kit.refuse(500), kit.refuse(415))
        await fake.until(
            lambda: any(
                beat.reportSubscribeInfo and not beat.subscribeInfo
                for beat in fake.asked(methods.CONSUMER_HEARTBEAT)[2:]
            )
        )
        assert not consumer.assignment
        assert frozenset().union(*went) == set(fake.partitions("demo"))
    await way.pool.close()


async def test_a_broker_that_is_silent_for_too_long(
    fake, way: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer.client.tubemq.fetching.LOST_MS", 30)
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        await fake.until(lambda: fake.asked(methods.CONSUMER_HEARTBEAT)[-1].reportSubscribeInfo)
        fake.balances = False
        await fake.broker.close(timeout_ms=0)
        count = len(fake.asked(methods.CONSUMER_HEARTBEAT))
        await fake.until(
            lambda: any(
                beat.reportSubscribeInfo and not beat.subscribeInfo
                for beat in fake.asked(methods.CONSUMER_HEARTBEAT)[count:]
            )
        )
        assert not consumer.assignment


async def test_a_partition_that_cannot_be_taken_is_left_to_the_next_balance(
    fake, kit, way: Cluster
) -> None:
    fake.balances = False
    async with consumer_of(way) as consumer:
        name = consumer._membership.member
        fake.always(methods.PARTITION_REGISTER, kit.refuse(415))
        fake.instruct(GROUP, name, 10, *fake.partitions("demo"))
        fake.instruct(GROUP, name, 3)  # a report, which is not for us
        consumer._membership.hurry()
        await fake.until(lambda: len(fake.groups[GROUP][name].events) == 1)
        assert not consumer.assignment


async def test_a_listener_that_fails_harms_nobody(
    fake, way: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer_of(way, on_assigned=lambda partitions: 1 / 0) as consumer:
        assert len(await consumer.wait_assigned(2_000)) == 3
    assert "A listener to assignments failed" in caplog.text


async def test_the_master_has_forgotten_us(fake, consumer: Consumer) -> None:
    await fake.until(lambda: fake.asked(methods.CONSUMER_HEARTBEAT)[-1].reportSubscribeInfo)
    fake.groups.clear()
    consumer._membership.hurry()
    await fake.until(lambda: len(fake.asked(methods.CONSUMER_REGISTER)) == 2)
    again = fake.asked(methods.CONSUMER_REGISTER)[-1]
    assert len(again.subscribeInfo) == 3
    fake.put("demo", 0, b"a")
    assert (await one(consumer)).bodies() == [b"a"]


@pytest.mark.parametrize("code", [424, 425, 426, 450, 455, 415, 400])
async def test_a_refusal_for_good(fake, kit, way: Cluster, code: int) -> None:
    fake.script(methods.CONSUMER_REGISTER, kit.refuse(code))
    with pytest.raises(RefusedError) as caught:
        await consumer_of(way).start()
    assert (type(caught.value), len(fake.asked(methods.CONSUMER_REGISTER))) == (
        codes.ERRORS[code],
        1,
    )


async def test_a_refusal_that_passes(fake, way: Cluster) -> None:
    start = asyncio.ensure_future(consumer_of(way, "late").__aenter__())
    await fake.until(lambda: fake.asked(methods.CONSUMER_REGISTER))
    fake.topics["late"] = 1
    consumer = await start
    await consumer.wait_assigned(2_000)
    await consumer.close()


async def test_a_refusal_later_reaches_who_waits(fake, kit, consumer: Consumer) -> None:
    waiting = asyncio.ensure_future(consumer.receive())
    fake.groups.clear()
    fake.script(methods.CONSUMER_REGISTER, kit.refuse(425, "other topics"))
    consumer._membership.hurry()
    with pytest.raises(codes.TopicSetError, match="other topics"):
        await waiting


async def test_credentials_may_be_refused_for_a_while(fake, kit, way: Cluster) -> None:
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        fake.script(methods.CONSUMER_HEARTBEAT, *[kit.refuse(415)] * 5)
        consumer._membership.hurry()
        await fake.until(lambda: not fake._scripts[methods.CONSUMER_HEARTBEAT])
        fake.put("demo", 0, b"a")
        assert await one(consumer)
        fake.always(methods.CONSUMER_HEARTBEAT, kit.refuse(415))
        consumer._membership.hurry()
        with pytest.raises(codes.CertificateError):
            await consumer.receive()


async def test_a_start_that_is_broken_off_leaves_the_group(fake, kit, way: Cluster) -> None:
    registered = kit.handlers[methods.CONSUMER_REGISTER]
    fake.script(methods.CONSUMER_REGISTER, kit.refuse(431), registered)
    await way.pool.get("127.0.0.1", fake.master.port)
    task = asyncio.ensure_future(consumer_of(way).start())
    await fake.until(lambda: fake.groups[GROUP])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if task.cancelled():
        await fake.until(lambda: not fake.groups[GROUP])


async def test_nobody_there() -> None:
    way = Cluster(ClientOptions(addresses=(("127.0.0.1", 1),), timeout_ms=100))
    with pytest.raises(ConnectError):
        await consumer_of(way).start()
    await way.pool.close()


async def test_pause_and_resume(fake, consumer: Consumer) -> None:
    consumer.pause("1:demo:0")
    assert consumer.paused == {"1:demo:0"}
    fake.put("demo", 0, b"a")
    fake.put("demo", 1, b"b")
    batch = await one(consumer)
    assert batch.partition == 1
    assert await consumer.receive(10) is None
    consumer.resume()
    assert (await one(consumer)).partition == 0
    consumer.pause()
    consumer.done(batch)
    fake.put("demo", 1, b"c")
    assert await consumer.receive(10) is None
    consumer.resume(*fake.partitions("demo"))
    assert (await one(consumer)).partition == 1


async def test_a_handler(fake, consumer: Consumer) -> None:
    seen: list[bytes] = []

    async def handle(batch) -> None:
        seen.extend(batch.bodies())
        if len(seen) >= 30:
            await consumer.close()

    for partition in range(3):
        fake.put("demo", partition, *[b"%d" % partition] * 10)
    await consumer.run(handle, workers=2)
    assert Counter(seen) == {b"0": 10, b"1": 10, b"2": 10}


async def test_what_a_cancelled_worker_had_is_received_again(fake, consumer: Consumer) -> None:
    begun = asyncio.Event()

    async def handle(batch) -> None:
        del batch
        begun.set()
        await asyncio.Event().wait()

    fake.put("demo", 0, b"a")
    running = asyncio.create_task(consumer.run(handle))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    batch = await consumer.receive(5_000)
    assert batch is not None
    assert batch.bodies() == [b"a"]


async def test_a_handler_hears_of_a_refusal_too(fake, kit, consumer: Consumer) -> None:
    running = asyncio.ensure_future(consumer.run(lambda batch: None, workers=3))
    fake.groups.clear()
    fake.script(methods.CONSUMER_REGISTER, kit.refuse(425))
    consumer._membership.hurry()
    with pytest.raises(codes.TopicSetError):
        await running


async def test_a_handler_in_a_thread_that_fails_once(
    fake, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coherer.client.tubemq.consumer.RETRY_MS", 1)
    seen: list[bytes] = []

    def handle(batch) -> None:
        seen.extend(batch.bodies())
        if len(seen) == 1:
            raise ZeroDivisionError

    fake.put("demo", 0, b"a")
    running = asyncio.ensure_future(consumer.run(handle))
    await fake.until(lambda: fake.stored[GROUP, "demo", 0] == 1)
    assert seen == [b"a", b"a"]
    assert "delivered again" in caplog.text
    await consumer.close()
    await running


async def test_empty_packages_and_other_answers(fake, kit, way: Cluster) -> None:
    fake.topics["demo"] = 1
    fake.put("demo", 0, b"a")
    fake.script(
        methods.GET_MESSAGES,
        lambda asked: asked.answer(currOffset=0, maxOffset=1, currDataDlt=1),
        kit.refuse(404),
        kit.refuse(301),
        kit.refuse(452, minLimitTime=1),
        lambda asked: asked.fail("java.lang.Exception", "oops"),
    )
    async with consumer_of(way) as consumer:
        assert (await one(consumer)).bodies() == [b"a"]
    assert len(fake.asked(methods.GET_MESSAGES)) >= 6


async def test_flow_rules_of_the_master(fake, way: Cluster) -> None:
    rule = '[{"type":3,"rule":[{"normFreqInMs":7,"filterFreqInMs":8,"minDataFilterFreqInMs":9}]}]'
    fake.extra = {
        "groupFlowCheckId": 5,
        "groupFlowControlInfo": rule,
        "defFlowCheckId": -2,
        "defFlowControlInfo": " ",
    }
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        low = consumer._membership.group_rules.low_fetch
        assert (low.pause_ms, low.filter_pause_ms, low.end_pause_ms) == (7, 8, 9)
        assert fake.asked(methods.CONSUMER_HEARTBEAT)[-1].groupFlowCheckId == 5


async def test_how_often_the_master_wants_to_hear_from_us(fake, way: Cluster) -> None:
    fake.extra = {"heartbeatMs": 5}
    async with consumer_of(way) as consumer:
        await consumer.wait_assigned(2_000)
        consumer._membership._quick = 0
        count = len(fake.asked(methods.CONSUMER_HEARTBEAT))
        await fake.until(lambda: len(fake.asked(methods.CONSUMER_HEARTBEAT)) >= count + 8)
        reports = [beat.reportSubscribeInfo for beat in fake.asked(methods.CONSUMER_HEARTBEAT)]
        assert any(reports[count:])
        assert not all(reports[count:])


async def test_life_and_death(fake, way: Cluster) -> None:
    consumer = consumer_of(way)
    assert (consumer.assignment, consumer.progress, consumer.paused) == (frozenset(), {}, set())
    with pytest.raises(UsageError, match="async with"):
        await consumer.receive()
    await consumer.start()
    with pytest.raises(UsageError, match="once"):
        await consumer.start()
    waiting = asyncio.ensure_future(consumer.receive())
    looping = asyncio.ensure_future(anext(consumer.batches()))
    await asyncio.sleep(0)
    await consumer.close()
    await consumer.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(StopAsyncIteration):
        await looping
    assert "closed" in repr(consumer)
    await consumer_of(way).close()


@pytest.mark.parametrize(
    ("group", "topics", "options"),
    [
        ("", "demo", {}),
        ("g", [], {}),
        ("g", "", {}),
        ("g", "x" * 65, {}),
        ("g", {"demo": ["a,b"]}, {}),
        ("g", {"demo": [f"t{n}" for n in range(501)]}, {}),
        ("g", "demo", {"start": "soon"}),
        ("g", "demo", {"poll_ms": 0}),
        ("g", "demo", {"empty_ms": -1}),
    ],
)
def test_nonsense(way: Cluster, group: str, topics, options) -> None:
    with pytest.raises(UsageError):
        Consumer(way, group, topics, ConsumerOptions(**options))
