"""Only one replay of dead letters sends, whatever becomes of another one."""

from __future__ import annotations

import asyncio

import pytest

from coherer._administration.access import RocketCluster, opened
from coherer._administration.replay import replay
from coherer._administration.replay_lock import REPLAY_GROUP, SEND_S, ReplayLock
from coherer._store import Draft
from coherer._wire.rocketmq.codes import RequestCode
from coherer.errors import RefusedError, UnavailableError
from coherer.rocketmq import Queue, QueueLock
from coherer.testing import SimulatedCluster, SimulatedNode
from tests.administration.letters import GROUP, TOPIC, made_dead
from tests.waiting import until

BODIES = [b"%d" % number for number in range(3)]
LETTERS = Queue(f"%DLQ%{GROUP}", "broker-a", 0)
MINUTE_S = 61.0


async def sent(cluster: RocketCluster) -> list[tuple[str, bytes]]:
    """What replays have sent, by broker."""
    found: list[tuple[str, bytes]] = []
    for queue in await cluster.client.partitions(TOPIC):
        async with cluster.client.reader(queue, 0) as reader:
            while (batch := await reader.read()) is not None:
                found += [
                    (queue.broker, one.body) for one in batch if "cohererReplayOf" in one.properties
                ]
    return sorted(found)


ONCE = [("broker-a", body) for body in BODIES]


async def test_a_send_without_an_answer_keeps_the_lock(coherer_simulated: SimulatedNode) -> None:
    node = coherer_simulated
    async with opened(node.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES)
        with node.faults.lose_answer("send", times=1), pytest.raises(UnavailableError):
            await replay(cluster, GROUP)
        with pytest.raises(UnavailableError, match="ended in the last minute"):
            await replay(cluster, GROUP, lock_wait_s=0)
        assert (await replay(cluster, GROUP)).already == 3
        assert await sent(cluster) == ONCE


async def test_a_send_that_arrives_late_is_refused(coherer_simulated: SimulatedNode) -> None:
    """The broker knows that the sender does not hold the lock any more."""
    node = coherer_simulated
    async with opened(node.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES)
        with node.faults.delay("send", MINUTE_S + 10, times=3), pytest.raises(UnavailableError):
            await replay(cluster, GROUP)
        await asyncio.sleep(MINUTE_S)
        assert (await replay(cluster, GROUP)).sent == 3
        await asyncio.sleep(MINUTE_S)
        assert await sent(cluster) == ONCE


async def test_a_lock_that_was_lost(coherer_simulated: SimulatedNode) -> None:
    async with opened(coherer_simulated.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES)
        [queue] = await cluster.client.partitions(TOPIC)
        groups, store = cluster.admin.groups, cluster.admin.messages.store
        lock = QueueLock(REPLAY_GROUP, LETTERS, "one")
        assert await groups.lock(REPLAY_GROUP, [LETTERS], holder="one") == [LETTERS]
        assert await groups.lock(REPLAY_GROUP, [LETTERS], holder="other") == []
        await store(queue, b"held", {}, born_ms=0, lock=lock)
        await groups.unlock(REPLAY_GROUP, [LETTERS], holder="one")
        with pytest.raises(RefusedError, match="does not hold the lock of queue 0 of %DLQ%b"):
            await store(queue, b"released", {}, born_ms=0, lock=lock)
        assert await groups.lock(REPLAY_GROUP, [LETTERS], holder="one") == [LETTERS]
        await asyncio.sleep(MINUTE_S)
        with pytest.raises(RefusedError, match="any more"):
            await store(queue, b"expired", {}, born_ms=0, lock=lock)


async def test_a_replay_that_cannot_renew_its_lock_stops(coherer_simulated: SimulatedNode) -> None:
    async with opened(coherer_simulated.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES)
        lock = ReplayLock(cluster, [LETTERS])
        async with lock.held(0, lambda: None):
            await asyncio.sleep(5 * MINUTE_S)
            lock.check()
            async with coherer_simulated.down():
                await asyncio.sleep(SEND_S + 16)
                with pytest.raises(UnavailableError, match="could not be renewed in time"):
                    lock.check()


async def test_a_replay_that_is_cancelled_waits_for_its_sends(
    coherer_simulated: SimulatedNode,
) -> None:
    node = coherer_simulated
    async with opened(node.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES)
        with node.faults.delay("send", 1.0):
            before = node.requests.count("send")
            running = asyncio.create_task(replay(cluster, GROUP))
            await until(lambda: node.requests.count("send") > before)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert await sent(cluster) == ONCE
        # So it could release its lock.
        assert (await replay(cluster, GROUP, lock_wait_s=0)).already == 3


@pytest.mark.coherer_cluster(brokers=2)
async def test_a_replay_that_has_to_wait_holds_nothing(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """Two replays could keep locks from each other for ever."""
    site = coherer_simulated_cluster
    async with opened(site.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES, brokers=2)
        groups = cluster.admin.groups
        assert await groups.lock(REPLAY_GROUP, [LETTERS], holder="other") == [LETTERS]
        before = [one.requests.count("LOCK_BATCH_MQ") for one in site.brokers]
        with pytest.raises(UnavailableError, match="Another replay"):
            await replay(cluster, GROUP, lock_wait_s=0)
        after = [one.requests.count("LOCK_BATCH_MQ") for one in site.brokers]
        assert (after[0] - before[0], after[1] - before[1]) == (1, 0)
        await groups.unlock(REPLAY_GROUP, [LETTERS], holder="other")
        assert (await replay(cluster, GROUP)).sent == 6


@pytest.mark.coherer_cluster(brokers=2)
async def test_letters_of_a_broker_that_accepts_nothing(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """They are not sent to another broker, where a later replay might not find them."""
    async with opened(coherer_simulated_cluster.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES, brokers=2)
        await cluster.admin.topics.alter(TOPIC, writable=False, brokers=["broker-b"])
        await asyncio.sleep(MINUTE_S)
        with pytest.raises(UnavailableError, match="Broker broker-b has the topic, and accepts no"):
            await replay(cluster, GROUP)
        assert {broker for broker, _ in await sent(cluster)} <= {"broker-a"}
        await cluster.admin.topics.alter(TOPIC, writable=True, brokers=["broker-b"])
        await asyncio.sleep(MINUTE_S)
        await replay(cluster, GROUP)
        assert await sent(cluster) == [*ONCE, *(("broker-b", body) for body in BODIES)]


@pytest.mark.coherer_cluster(brokers=2)
async def test_a_topic_on_another_broker_only(coherer_simulated_cluster: SimulatedCluster) -> None:
    async with opened(coherer_simulated_cluster.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES, brokers=2)
        await cluster.admin.topics.create("elsewhere", 1, brokers=["broker-b"], wait_ms=10_000)
        assert (await replay(cluster, GROUP, to="elsewhere")).sent == 6
        assert (await replay(cluster, GROUP, to="elsewhere")).already == 6


@pytest.mark.coherer_cluster(brokers=1, slaves=True, apart=True)
async def test_slaves_are_not_asked_what_was_sent(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    async with opened(coherer_simulated_cluster.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES)
        await asyncio.sleep(30)  # a slave copies the topics every 10 s
        by_id = cluster.admin.messages.all_by_unique_id
        assert await by_id(TOPIC, "0" * 32, every_broker=True) == []
        async with coherer_simulated_cluster.brokers[0].down():
            await asyncio.sleep(MINUTE_S)
            assert await by_id(TOPIC, "0" * 32) == []
            with pytest.raises(UnavailableError, match="No master of broker-a"):
                await by_id(TOPIC, "0" * 32, every_broker=True)


@pytest.mark.coherer_cluster(brokers=1, flush="sync")
async def test_messages_that_are_not_on_the_disk_yet(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """A replay may have sent them, and the index does not show them: it waits for the disk."""
    [broker] = coherer_simulated_cluster.brokers
    async with opened(broker.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES)
        assert broker.node.core is not None
        store = broker.node.core.store
        shown = store.end_offset
        assert await log_of(cluster) == (shown, 0)
        store.append([Draft(TOPIC, 0, b"not synced", b"")])
        assert await log_of(cluster) == (store.written_offset, store.written_offset - shown)
        waited: list[str | None] = []
        await replay(cluster, GROUP, dry_run=True, show=lambda one: waited.append(one.waiting))
        assert "the index of broker broker-a" in waited
        assert store.end_offset == store.written_offset


@pytest.mark.coherer_cluster(brokers=1)
async def test_a_broker_that_does_not_say_how_far_its_index_goes(
    coherer_simulated_cluster: SimulatedCluster,
) -> None:
    """As Java's in the second after its start."""
    [broker] = coherer_simulated_cluster.brokers
    async with opened(broker.rocketmq_url) as cluster:
        assert isinstance(cluster, RocketCluster)
        await made_dead(cluster, BODIES)
        asked = RequestCode.GET_BROKER_RUNTIME_INFO
        with (
            broker.faults.refuse(asked, code=1),
            pytest.raises(UnavailableError, match="did not say how far its index goes"),
        ):
            await replay(cluster, GROUP)
        with broker.faults.refuse(asked, code=1, times=3):
            assert (await replay(cluster, GROUP)).sent == len(BODIES)


async def log_of(cluster: RocketCluster) -> tuple[int, int]:
    """The end of the broker's log, and how many bytes before it cannot be found yet."""
    [state] = await cluster.admin.brokers.list()
    reported = state.reported
    return int(reported["commitLogMaxOffset"]), int(reported["dispatchBehindBytes"])
