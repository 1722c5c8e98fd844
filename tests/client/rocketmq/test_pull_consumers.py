"""Pull consumers that are given their queues, and readers."""

from __future__ import annotations

from typing import Any

import pytest

from coherer._client.rocketmq.consuming import assignment
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ClosedError, RefusedError, UsageError
from coherer.rocketmq import connect as connect_rocketmq
from tests.client.rocket_broker import MEMBERS, PULL, ZERO

pytestmark = pytest.mark.usefixtures("quick")


async def test_a_pull_consumer_that_shares_cannot_be_assigned(cluster, shelf, client) -> None:
    async with client.pull_consumer("readers", "demo") as puller:
        with pytest.raises(UsageError, match="shares topics"):
            await puller.assign([ZERO])
        with pytest.raises(UsageError, match="is not assigned"):
            await puller.seek(Queue("demo", "broker-a", 9), 0)
        await puller.wait_assigned(5_000)
        with pytest.raises(UsageError, match="An offset is 0 to"):
            await puller.seek(ZERO, -1)
    pulled = shelf.pulls()[0].fields
    assert (pulled["sysFlag"], pulled["subscription"], pulled["subVersion"]) == ("22", "*", "0")
    beat = cluster.heartbeat().consumer_data_set[0]
    assert beat.consume_type == "CONSUME_ACTIVELY"
    assert [one.topic for one in beat.subscription_data_set] == ["demo"]


async def test_assign_is_retried_until_the_broker_is_back(cluster, shelf, client) -> None:
    shelf.put(b"a")
    cluster.script(RequestCode.QUERY_CONSUMER_OFFSET, lambda asked: asked.answer(1, "not yet"))
    async with client.pull_consumer("readers", start="earliest") as puller:
        await puller.assign([ZERO])
        assert puller.assignment == frozenset()
        batch = await puller.poll(5_000)
        assert batch is not None
        assert (batch.bodies(), puller.assignment) == ([b"a"], {ZERO})
        await puller.assign([])
        assert puller.assignment == frozenset()


async def test_a_silent_queue_of_a_pull_consumer_stays(cluster, shelf, client, monkeypatch) -> None:
    """Its position is in the head of the user; what is stored may be older, or nothing."""
    monkeypatch.setattr(assignment, "IDLE_MS", 30)
    gone: list[Any] = []
    options: dict[str, Any] = {"rebalance_ms": 10, "on_revoked": gone.extend}
    async with client.pull_consumer("readers", "demo", **options) as puller:
        await puller.wait_assigned(5_000)
        asked = len(cluster.asked(MEMBERS))
        await cluster.until(lambda: len(cluster.asked(MEMBERS)) > asked + 6)
        assert not gone


async def test_a_reader_retries_until_its_timeout(cluster, shelf, kit) -> None:
    shelf.put(b"a", b"b", b"c")
    cluster.script(PULL, kit.refuse(2), kit.hang_up)
    async with connect_rocketmq(cluster.url, timeout_ms=2_000) as client:
        async with client.reader(ZERO, 0) as reader:
            batch = await reader.read()
            assert batch is not None
            assert batch.bodies() == [b"a", b"b"]
            assert (reader.position, reader.end) == (2, 3)
            assert "at 2, to 3: open" in repr(reader)
            await cluster.until(lambda: len(shelf.pulls()) == 4)
        fields = shelf.pulls()[-1].fields
        assert (fields["consumerGroup"], fields["sysFlag"]) == ("TOOLS_CONSUMER", "4")
        with pytest.raises(ClosedError):
            await reader.read()
        with pytest.raises(ClosedError):
            await reader.start()
        cluster.script(PULL, kit.refuse(16, "forbidden"))
        async with client.reader(ZERO, 0) as reader:
            with pytest.raises(RefusedError, match="forbidden"):
                await reader.read()
            assert await reader.read() is not None
    cluster.always(PULL, kit.refuse(2, "busy"))
    async with connect_rocketmq(cluster.url, timeout_ms=300) as client:
        async with client.reader(ZERO, 0) as reader:
            with pytest.raises(RefusedError, match="busy"):
                await reader.read()
        for start, end in ((-1, None), (5, 4)):
            with pytest.raises(UsageError, match="range"):
                client.reader(ZERO, start, end=end)


async def test_a_reader_begins_at_the_oldest_offset(cluster, shelf, client) -> None:
    shelf.put(b"a", b"b", b"c")

    def pull(asked: Any) -> None:
        if asked.fields["queueOffset"] == "0":
            asked.answer(21, "OFFSET_TOO_SMALL", shelf.head(2, 3))
        else:
            shelf.pull(asked)

    cluster.always(PULL, pull)
    async with client.reader(ZERO, 0) as reader:
        batch = await reader.read()
        assert batch is not None
        assert batch.offsets() == [2]
        assert await reader.read() is None
