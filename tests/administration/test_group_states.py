"""The states of all groups are told in a few answers, and are the same as group by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import coherer
from coherer import admin, rocketmq
from coherer._client.rocketmq.administration.servers import Servers
from coherer._server.rocketmq.broker import admin_stats
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.names import Queue
from coherer.errors import RefusedError
from coherer.testing import EmbeddedNode, embedded_node

NAMES = ["ahead", "behind", "idle", "online"]


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with embedded_node(admin_port=None, broker_name="b") as running:
        running.create_topic("orders", 3)
        running.create_topic("left", 1)
        yield running


@pytest.fixture
async def client(node: EmbeddedNode) -> AsyncIterator[rocketmq.Client]:
    """A client of a cluster with four groups, one of them with a member."""
    async with rocketmq.connect(node.rocketmq_url) as client:
        groups = client.admin().groups
        async with client.producer("orders") as producer:
            await producer.send_many([coherer.Message("orders", b"x")] * 9)
        for name in NAMES:
            await groups.create(name)
        await groups.set_offsets("ahead", {Queue("orders", "b", 0): 3, Queue("left", "b", 0): 0})
        await groups.set_offsets("behind", {Queue("orders", "b", 1): 1})
        await groups.set_offsets("online", {Queue("left", "b", 0): 0})
        async with client.consumer("online", "orders") as consumer:
            await consumer.wait_assigned(10_000)
            yield client


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each code is requested."""
    found: Counter[int] = Counter()
    ask = Servers.ask

    async def counted(self: Servers, address: str, code: int, *args: Any, **more: Any) -> Any:
        found[code] += 1
        return await ask(self, address, code, *args, **more)

    monkeypatch.setattr(Servers, "ask", counted)
    return found


def without_beats(groups: list[admin.Group]) -> list[admin.Group]:
    return [
        replace(one, members=tuple(replace(each, heartbeat_ms=None) for each in one.members))
        for one in groups
    ]


@pytest.mark.parametrize("rows", [1, 3, 1000])
async def test_both_ways_give_the_same_states(
    client: rocketmq.Client,
    asked: Counter[int],
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
) -> None:
    monkeypatch.setattr(admin_stats, "STATES_MAX", rows)
    groups = client.admin().groups
    told = await groups.list()
    assert asked[RequestCode.GET_CONSUME_STATS] == 0
    assert asked[RequestCode.GET_CONSUMER_CONNECTION_LIST] == 1, "of the group with members"
    assert (asked[RequestCode.GET_BROKER_CONSUME_STATS] > 1) == (rows < 1000)
    assert without_beats(told) == without_beats(await groups.list(*NAMES))
    assert asked[RequestCode.GET_CONSUME_STATS] == len(NAMES)
    ahead, behind, idle, online = told
    assert (ahead.lag, ahead.topics) == (6, ("left", "orders"))
    assert (behind.lag, behind.partitions[1].newest_ms is None) == (8, False)
    assert (idle.partitions, idle.members) == ((), ())
    assert (len(online.members), online.topics) == (1, ("orders",)), "it no longer reads `left`"


async def test_each_group_is_asked_for_if_the_broker_cannot_tell(
    client: rocketmq.Client, asked: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = client.admin().groups
    told = await groups.list()

    ask = Servers.ask

    async def refused(self: Servers, address: str, code: int, *args: Any, **more: Any) -> Any:
        if code == RequestCode.GET_BROKER_CONSUME_STATS:
            raise RefusedError("It is busy.", code=1)
        return await ask(self, address, code, *args, **more)

    monkeypatch.setattr(Servers, "ask", refused)
    assert without_beats(await groups.list()) == without_beats(told)
    assert asked[RequestCode.GET_CONSUME_STATS] == len(NAMES)


async def test_each_group_is_asked_for_at_other_brokers(
    client: rocketmq.Client, asked: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coherer._server.rocketmq.broker.admin_topics.FEATURE_GROUP_STATES", "")
    groups = client.admin().groups
    found = await groups.list()
    assert [one.name for one in found] == NAMES
    assert asked[RequestCode.GET_BROKER_CONSUME_STATS] == 0
    assert asked[RequestCode.GET_CONSUME_STATS] == len(NAMES)
    assert asked[RequestCode.GET_TOPIC_STATS_INFO] == 1, "once for all groups"
