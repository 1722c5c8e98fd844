"""Topics created over RocketMQ reach TubeMQ's catalog, also when there are thousands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coherer._rules.common.topics import Topic
from coherer._server.node.node import Node, NodeOptions
from coherer._server.tubemq.master import topic_sync
from tests.waiting import until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    given = NodeOptions(
        directory=tmp_path,
        master_port=0,
        broker_port=0,
        admin_port=None,
        namesrv_port=0,
        rocketmq_port=0,
        segment_bytes=1 << 20,
    )
    async with Node(given) as node:
        yield node


async def until_known(node: Node, *names: str) -> None:
    await until(lambda: node.topics().keys() >= set(names))


async def test_slow_changes_are_synced_in_batches(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.core is not None
    booked = 0
    sync = topic_sync.TopicSync.sync

    def counted(self: topic_sync.TopicSync) -> None:
        nonlocal booked
        booked += 1
        sync(self)

    monkeypatch.setattr(topic_sync.TopicSync, "sync", counted)
    monkeypatch.setattr(topic_sync, "QUICK_S", 0.0)
    names = [f"t{number}" for number in range(50)]
    for name in names:
        node.core.topics.put(Topic(name=name), 1)
        await asyncio.sleep(0)  # not all in one iteration of the loop
    await until_known(node, *names)
    assert 1 <= booked < len(names) / 2


async def test_deletions_do_not_wait(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.core is not None
    monkeypatch.setattr(topic_sync, "QUICK_S", 0.0)
    monkeypatch.setattr(topic_sync, "REST_FACTOR", 100_000)
    core = node.core
    core.topics.put(Topic(name="short"), 1)
    await until_known(node, "short")
    core.topics.put(Topic(name="waits"), 1)
    with pytest.raises(TimeoutError):
        await until(lambda: "waits" in node.topics(), timeout_s=0.02)
    core.topics.remove("short", 2)
    core.remove_topic("short")
    await until(lambda: "short" not in node.topics())
    assert "waits" not in node.topics()


async def test_an_answer_on_its_way_does_not_bring_a_deleted_topic_back(node: Node) -> None:
    assert node.core is not None
    topics = node.core.topics
    topics.put(Topic(name="brief"), 1)
    await until(lambda: "brief" in topics and topics["brief"].tubemq)
    listed = [topic for topic in topics if topic.tubemq]
    topics.remove("brief", 2)
    node.core.remove_topic("brief")
    topics.replace(listed, 3)  # in the same turn of the loop, before the catalog has changed
    await until(lambda: "brief" not in topics and "brief" not in node.topics())


async def test_a_topic_that_is_created_again_at_once_stays(node: Node) -> None:
    assert node.core is not None
    topics = node.core.topics
    topics.put(Topic(name="brief"), 1)
    await until(lambda: "brief" in topics and topics["brief"].tubemq)
    topics.remove("brief", 2)
    node.core.remove_topic("brief")
    topics.put(Topic(name="brief", read_queues=5, write_queues=5), 3)
    await asyncio.sleep(0)  # a sync comes in the next turn
    await until_known(node, "brief")
    assert topics["brief"].read_queues == 5
