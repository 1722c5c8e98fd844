"""What a consumer receives, confirms, rejects, and asks for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from datetime import timedelta

import pytest

from coherer._client.tubemq.cluster import Cluster
from coherer._client.tubemq.consumer import Consumer
from coherer._client.tubemq.options import Bound, ConsumerOptions
from coherer._wire.rocketmq.subscription import Sql92
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import Partition, SubscribeInfo
from coherer.errors import ClosedError, DisconnectedError, RefusedError, UsageError
from coherer.message import ReceivedMessage
from tests.client.tube_clients import GROUP, commit, consumer_of, give_up, one, unknown


async def test_messages_come_and_are_confirmed(fake, consumer: Consumer) -> None:
    fake.put("demo", 1, b"a", b"b", tag="UA")
    batch = await one(consumer)
    first, second = batch
    assert first == ReceivedMessage("demo", b"a", "UA", id="0", broker="1", partition=1, offset=0)
    assert (second.body, second.offset) == (b"b", 1)
    assert await commit(consumer, batch) == 2
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
    made_ms = int(register.clientId.split("-")[2])
    assert abs(made_ms - time.time() * 1000) < 86_400_000
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
    assert (second.partition, "2 with a batch to be acknowledged" in repr(consumer)) == (2, True)
    await consumer.commit(first)
    assert (await one(consumer)).offset == 5


async def test_a_retried_batch_is_delivered_again(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a", b"b")
    batch = await one(consumer)
    await batch.retry()
    assert not fake.asked(methods.COMMIT_OFFSET)[-1].lastPackConsumed
    again = await one(consumer)
    assert (again.offset, again.bodies()) == (0, [b"a", b"b"])
    assert await commit(consumer, again) == 2


async def test_a_batch_that_is_kept_for_a_while(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a", b"b")
    batch = await one(consumer)
    await batch.retry(later=timedelta(milliseconds=1))
    again = await one(consumer)
    assert (again is not batch, again.bodies()) == (True, [b"a", b"b"])
    batch.ack()  # has no effect: it is another attempt now
    assert await commit(consumer, again) == 2
    assert len([get for get in fake.asked(methods.GET_MESSAGES) if get.partitionId == 0]) <= 2
    fake.put("demo", 0, b"c")
    batch = await one(consumer)
    with pytest.raises(UsageError, match="no delay levels"):
        await batch.retry(later=3)


async def test_a_batch_is_acknowledged_once(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    batch = await one(consumer)
    await consumer.commit(batch)
    batch.ack()
    await batch.retry()
    assert await consumer.commit() == {}
    with pytest.raises(UsageError) as caught:
        await consumer.commit(batch)
    assert caught.value.code == ResultCode.BAD_REQUEST


async def test_commit_of_what_was_acknowledged(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    fake.put("demo", 1, b"b", b"c")
    for batch in (await one(consumer), await one(consumer)):
        batch.ack()
    offsets = await consumer.commit()
    assert sorted((partition.id, offset) for partition, offset in offsets.items()) in (
        [(0, 1), (1, 2)],
        [(0, 1)],  # the acknowledgement of one rode on a get
        [(1, 2)],
    )
    await fake.until(lambda: fake.stored[GROUP, "demo", 0] == 1)
    await fake.until(lambda: fake.stored[GROUP, "demo", 1] == 2)


async def test_seek(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, *(b"%d" % number for number in range(8)))
    before = await one(consumer)
    [partition] = [one for one in consumer.assignment if one.id == 0]
    await consumer.seek(partition, 6)
    before.ack()
    with pytest.raises(UsageError, match="another offset"):
        await consumer.commit(before)
    batch = await one(consumer)
    assert (batch.offset, batch.bodies()) == (6, [b"6", b"7"])
    assert await commit(consumer, batch) == 8
    await consumer.seek(partition.key, 1)
    assert (await one(consumer)).offset == 1
    with pytest.raises(UsageError, match="not assigned"):
        await consumer.seek("1:demo:9", 1)
    with pytest.raises(UsageError, match="An offset is 0 to"):
        await consumer.seek(partition, -1)


async def test_a_seek_that_a_rebalance_overtakes(fake, way: Cluster) -> None:
    """While the offset is looked up, the partition goes to another member: it is left to it."""

    async def find(partition: Partition, at: object) -> int:
        assert at == "latest"
        await give_up(fake, partition)
        return 3

    options = ConsumerOptions(start="earliest", empty_ms=5)
    consumer = Consumer(way, GROUP, "demo", options, find=find)
    async with consumer:
        await consumer.wait_assigned(2_000)
        [partition] = [one for one in consumer.assignment if one.id == 0]
        with pytest.raises(RefusedError, match="not assigned to this consumer any more"):
            await consumer.seek(partition, "latest")
        assert partition not in consumer.assignment


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


async def test_a_new_loop_gets_what_the_one_before_left(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a", b"b", b"c")
    async for message in consumer:
        if message.body == b"b":
            break
    assert [message.body async for message in take(consumer, 3)] == [b"a", b"b", b"c"]
    with contextlib.suppress(ZeroDivisionError):
        async for message in consumer:
            raise ZeroDivisionError(message.body)
    assert await consumer.receive(0) is None  # it is still in hand
    assert [message.body async for message in take(consumer, 3)] == [b"a", b"b", b"c"]
    assert len([r for r in fake.asked(methods.GET_MESSAGES) if r.partitionId == 0]) == 1


async def test_a_batch_that_is_dropped_stays_in_hand(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    async for batch in consumer.batches():
        del batch
        break
    gc.collect()
    assert await consumer.receive(20) is None


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
        batch.ack()
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
        await consumer.commit(batch)
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
        assert await commit(consumer, batch) == 2 * 28
        assert not next(iter(consumer.progress.values())).exact
        fake.put("demo", 0, b"c")
        batch = await one(consumer)
        assert batch.offset == 2 * 28


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
    batch.ack()
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


async def test_ack_and_retry_can_both_be_awaited(fake, consumer: Consumer) -> None:
    fake.put("demo", 0, b"a")
    batch = await one(consumer)
    await batch.retry(later=timedelta(milliseconds=1))
    again = await one(consumer)
    assert again.bodies() == [b"a"]
    assert await again.ack() is None
    await again.ack()
    await consumer.commit()
    assert fake.stored[GROUP, "demo", 0] == 1


async def test_an_event_ends_the_handler(fake, consumer: Consumer) -> None:
    """The running handler finishes, an idle worker ends, and nothing more is taken."""
    stop, may_end = asyncio.Event(), asyncio.Event()
    seen: list[bytes] = []

    async def handle(batch) -> None:
        seen.extend(batch.bodies())
        stop.set()
        await may_end.wait()

    fake.put("demo", 0, b"a")
    running = asyncio.create_task(consumer.run(handle, workers=2, stop=stop))
    await stop.wait()
    fake.put("demo", 1, b"b")
    may_end.set()
    await running
    assert seen == [b"a"]
    await consumer.commit()
    assert fake.stored[GROUP, "demo", 0] == 1
    await consumer.run(handle, stop=stop)
    assert seen == [b"a"], "it was set before"


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
    with pytest.raises(codes.TopicSetError):
        await running


async def test_a_handler_in_a_thread_that_fails_once(
    fake, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Consumer, "_RETRY", timedelta(milliseconds=1))
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
        Consumer(way, group, topics, ConsumerOptions(**options), find=unknown)
