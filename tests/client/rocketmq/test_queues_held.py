"""Which queues consumers hold and lock, and how much of them waits here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coherer._client.rocketmq.consuming import assignment, broker_rpc, fetch_loop, membership
from coherer._wire.rocketmq.bodies import LockBatch, LockedBatch
from coherer._wire.rocketmq.codes import RequestCode
from coherer.errors import RequestTimeoutError
from coherer.rocketmq import connect as connect_rocketmq
from tests.client.rocket_broker import MEMBERS, PULL, STORE, ZERO, FakeQueues, one, reading
from tests.client.rocket_scenario import until

pytestmark = pytest.mark.usefixtures("quick")


async def test_locks_of_one_broker_do_not_wait_for_another(cluster2, monkeypatch) -> None:
    monkeypatch.setattr(membership, "LOCK_MS", 20)
    monkeypatch.setattr(broker_rpc, "LOCK_TIMEOUT_MS", 60_000)
    pair = FakeQueues(cluster2)
    late: list[Any] = []

    def lock(asked: Any) -> None:
        if asked.broker == "broker-a":
            late.append(asked)
        else:
            pair.lock(asked)

    async with (
        connect_rocketmq(cluster2.url) as client,
        reading(client, orderly=True) as consumer,
    ):
        await until(lambda: len(consumer.assignment) == 4)
        before = len(cluster2.asked(RequestCode.LOCK_BATCH_MQ))
        monkeypatch.setitem(cluster2.constants, RequestCode.LOCK_BATCH_MQ, lock)
        await cluster2.until(  # in one round, in either order
            lambda: (
                {"broker-a", "broker-b"}
                <= {one.broker for one in cluster2.asked(RequestCode.LOCK_BATCH_MQ)[before:]}
            )
        )
        late[0].answer(body=LockedBatch().encode())


async def test_queues_stay_while_the_members_are_unknown(cluster, shelf, client) -> None:
    async with reading(client) as consumer:
        await consumer.wait_assigned(5_000)
        shelf.others = ["0"]  # sorts before us, and takes the only queue
        cluster.script(MEMBERS, *[lambda asked: asked.answer(1, "no consumer")] * 4)
        asked = len(cluster.asked(MEMBERS))
        cluster.channel().notify(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "readers"}
        )
        await cluster.until(lambda: len(cluster.asked(MEMBERS)) >= asked + 4)
        assert ZERO in consumer.assignment
        await until(lambda: ZERO not in consumer.assignment)


async def test_changed_queues_renew_the_subscription(cluster, shelf) -> None:
    def beats() -> int:
        return len(cluster.asked(RequestCode.HEART_BEAT))

    def version() -> int:
        [group] = cluster.heartbeat().consumer_data_set
        return {one.topic: one.sub_version for one in group.subscription_data_set}["demo"]

    async with (
        connect_rocketmq(cluster.url, timeout_ms=2_000, route_ms=20) as client,
        reading(client, rebalance_ms=30) as consumer,
    ):
        await consumer.wait_assigned(5_000)
        await cluster.until(lambda: beats() == 3)  # the start, the topic, its retries
        asked, before = len(cluster.asked(MEMBERS)), version()
        await cluster.until(lambda: len(cluster.asked(MEMBERS)) > asked + 4)
        assert beats() == 3  # nothing has changed
        cluster.topics["demo"] = 2
        await cluster.until(lambda: beats() == 4)
        assert version() > before
        pull = await shelf_pull(cluster, queue=1)
        assert before <= int(pull.fields["subVersion"]) < version()  # the broker knows it


async def shelf_pull(cluster: Any, queue: int) -> Any:
    def pulls() -> list[Any]:
        return [one for one in cluster.asked(PULL) if one.fields["queueId"] == str(queue)]

    await cluster.until(pulls)
    return pulls()[-1]


async def test_a_topic_created_after_the_start(cluster, shelf, client, caplog) -> None:
    del cluster.topics["demo"]
    async with reading(client, rebalance_ms=30) as consumer:
        assert "Topic demo does not exist yet" in caplog.text
        assert "it is read once it exists" in caplog.text
        assert "Create it first" not in caplog.text
        assert repr(consumer).startswith("<Consumer of demo in ")
        with pytest.raises(RequestTimeoutError):
            await consumer.wait_assigned(1)
        cluster.topics["demo"] = 1
        shelf.put(b"a")
        assert (await one(consumer)).bodies() == [b"a"]


async def test_an_orderly_consumer_reads_locked_queues_only(
    cluster, shelf, client, monkeypatch
) -> None:
    monkeypatch.setattr(assignment, "LOCK_MS", 20)
    monkeypatch.setattr(membership, "LOCK_MS", 20)
    refuse: list[bool] = [True]

    def lock(asked: Any) -> None:
        if refuse[0]:
            asked.answer(body=LockedBatch().encode())
        else:
            shelf.lock(asked)

    cluster.always(RequestCode.LOCK_BATCH_MQ, lock)
    shelf.put(b"a", b"b", b"c", b"d")
    async with reading(client, orderly=True) as consumer:
        await cluster.until(lambda: len(cluster.asked(RequestCode.LOCK_BATCH_MQ)) > 2)
        assert not shelf.pulls()
        refuse[0] = False
        batch = await one(consumer)
        assert batch.bodies() == [b"a", b"b"]
        assert await consumer.receive(20) is None
        refuse[0] = True
        locks = len(cluster.asked(RequestCode.LOCK_BATCH_MQ))
        await cluster.until(lambda: len(cluster.asked(RequestCode.LOCK_BATCH_MQ)) > locks + 1)
        batch.ack()
        assert await consumer.receive(20) is None  # it is not ours at the moment
        refuse[0] = False
        assert (await one(consumer)).bodies() == [b"c", b"d"]
    unlocked = LockBatch.decode(cluster.asked(RequestCode.UNLOCK_BATCH_MQ)[-1].request.body)
    assert ZERO in unlocked.queues


def unlocked(cluster: Any) -> list[Any]:
    """The queues of all requests to unlock."""
    requests = [one.request.body for one in cluster.asked(RequestCode.UNLOCK_BATCH_MQ)]
    return [queue for body in requests for queue in LockBatch.decode(body).queues]


async def test_a_queue_that_is_being_locked_when_its_consumer_is_closed(
    cluster, shelf, client
) -> None:
    """Its rebalance ends there, and the broker would keep the lock for a minute."""
    held: list[Any] = []
    cluster.always(RequestCode.LOCK_BATCH_MQ, held.append)
    async with reading(client, orderly=True):
        await cluster.until(lambda: held)
    assert ZERO in unlocked(cluster)


async def test_a_queue_that_is_given_up_when_its_consumer_is_closed(cluster, shelf, client) -> None:
    held: list[Any] = []
    shelf.put(b"a", b"b")
    async with reading(client, orderly=True, rebalance_ms=10) as consumer:
        (await one(consumer)).ack()
        cluster.always(STORE, held.append)
        shelf.others = ["0"]  # sorts before us, and takes the only queue
        await cluster.until(lambda: held)
        closing = asyncio.create_task(consumer.close())
        await asyncio.wait([closing], timeout=0.02)
        assert not closing.done(), "the next owner must begin behind the messages"
        cluster.always(STORE, lambda asked: asked.answer())
        held[0].answer()
        await closing
    assert held[0].fields["commitOffset"] == "2"
    assert ZERO in unlocked(cluster)


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("steps", range(1, 12))
async def test_a_consumer_whose_close_is_cancelled_holds_no_queue(
    cluster, shelf, client, steps: int, often: bool
) -> None:
    """It would go on pulling. `often` is what anyio does to all that a cancelled scope awaits."""
    shelf.put(b"a")
    async with reading(client) as consumer:
        await one(consumer)
        closing = asyncio.create_task(consumer.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        while often and not closing.done():
            await asyncio.sleep(0)
            closing.cancel()
        await asyncio.wait([closing])
        assert not consumer.assignment


async def test_the_message_limit_of_a_queue(cluster, shelf, client) -> None:
    shelf.put(*[b"%d" % number for number in range(20)])
    async with reading(client, queue_messages=5) as consumer:
        await cluster.until(lambda: len(shelf.pulls()) == 3)
        batch = await one(consumer)
        assert len(shelf.pulls()) == 3
        batch.ack()
        await cluster.until(lambda: len(shelf.pulls()) == 4)


async def test_the_byte_limit_of_the_prefetch_buffer(cluster, client) -> None:
    shelf = FakeQueues(cluster, queues=2)
    shelf.put(*[b"x"] * 10, queue=0)
    shelf.put(*[b"x"] * 10, queue=1)
    async with reading(client, prefetch_bytes=1) as consumer:
        await cluster.until(lambda: len(shelf.pulls()) == 2)
        batches = [await one(consumer), await one(consumer)]
        assert len(shelf.pulls()) == 2
        for batch in batches:
            batch.ack()
        await cluster.until(lambda: len(shelf.pulls()) > 2)


async def test_a_silent_queue_is_reassigned(cluster, shelf, client, kit, monkeypatch) -> None:
    monkeypatch.setattr(assignment, "IDLE_MS", 30)
    cluster.script(PULL, kit.silence, kit.silence)
    moves: list[str] = []
    options: dict[str, Any] = {
        "on_assigned": lambda queues: moves.extend("+" for queue in queues if queue == ZERO),
        "on_revoked": lambda queues: moves.extend("-" for queue in queues if queue == ZERO),
    }
    async with reading(client, rebalance_ms=20, **options) as consumer:
        await until(lambda: moves[:3] == ["+", "-", "+"])
        shelf.put(b"a")
        monkeypatch.setattr(assignment, "IDLE_MS", 120_000)
        assert (await one(consumer)).bodies() == [b"a"]
        consumer.pause(ZERO)
        before = len(moves)
        monkeypatch.setattr(assignment, "IDLE_MS", 1)
        rounds = len(cluster.asked(MEMBERS))
        await cluster.until(lambda: len(cluster.asked(MEMBERS)) > rounds + 8)
        assert moves[before:].count("-") <= 1  # what is not asked for anything is not silent


@pytest.mark.parametrize("rest_ms", [60_000, 20])
async def test_a_repeated_pull_pauses(cluster, shelf, client, monkeypatch, rest_ms: int) -> None:
    """A slave that is behind, or may not be read, says "again" at once, and again."""
    monkeypatch.setattr(fetch_loop, "STUCK_MS", rest_ms)

    def again(asked: Any) -> None:
        asked.answer(20, "", shelf.head(int(asked.fields["queueOffset"]), 5))

    cluster.always(PULL, again)
    async with reading(client) as consumer:
        await consumer.wait_assigned(5_000)
        if rest_ms == 20:
            await cluster.until(lambda: len(shelf.pulls()) == 3)
        else:
            await cluster.until(shelf.pulls)
            for _ in range(3):
                assert await client.offsets("demo")  # the broker has been asked something since
            assert len(shelf.pulls()) == 1


async def test_paused_queues_do_not_count_as_buffered(cluster, kit) -> None:
    shelf = FakeQueues(cluster, queues=2)
    shelf.put(b"0" * 5_000, queue=0)
    async with (
        connect_rocketmq(cluster.url) as client,
        reading(client, prefetch_bytes=1_000) as consumer,
    ):
        await consumer.wait_assigned(5_000)
        await until(lambda: consumer.progress[ZERO].max_offset == 1)
        consumer.pause(ZERO)
        shelf.put(b"1", b"2", queue=1)
        assert (await one(consumer)).bodies() == [b"1", b"2"]
        consumer.resume()
        assert len((await one(consumer)).bodies()[0]) == 5_000
