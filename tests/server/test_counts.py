"""Metrics, status and administration of one node count the same topics and groups."""

from __future__ import annotations

import re
from pathlib import Path

import coherer
from coherer._administration.access import opened
from coherer._server.node.node import Node
from coherer._store import Draft
from coherer.testing.clock import ManualClock
from tests.server.node_harness import options

HEARTBEAT_MS = 30_000


async def metric(node: Node, name: str) -> float:
    text = (await node.metrics.text()).decode()
    found = re.search(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def test_metrics_status_and_administration_count_alike(tmp_path: Path) -> None:
    async with Node(options(tmp_path, admin_port=0)) as node:
        core = node.core
        assert core is not None
        node.create_topic("over-tubemq", 2)
        for url in (node.url, node.rocketmq_url):
            protocol = url.partition(":")[0]
            async with (
                coherer.connect(url) as client,
                client.producer("orders") as producer,
                client.consumer(f"group-{protocol}", "orders", start="earliest") as consumer,
            ):
                await producer.send(coherer.Message("orders", b"x"))
                async for message in consumer:
                    assert message.body == b"x"
                    break
                await consumer.commit()
        await (
            core.save_positions()
        )  # groups of TubeMQ are known to RocketMQ once their offsets last
        for prefix in ("%RETRY%", "%DLQ%"):
            core.topics.ensure_topic(f"{prefix}group-rocketmq", 1, core.now_ms())
        topics, groups = ["orders", "over-tubemq"], ["group-rocketmq", "group-tubemq"]
        status = await node.metrics.status()
        assert (status.topics, status.groups) == (len(topics), len(groups))
        assert await metric(node, "rocketmq_topic_number") == len(topics)
        assert await metric(node, "rocketmq_consumer_group_number") == len(groups)
        for url in (node.url, node.rocketmq_url):
            async with opened(url) as cluster:  # as the console and the command line do
                assert await cluster.admin.topics.names() == topics
                assert await cluster.admin.groups.names() == groups


async def test_the_status_names_groups_with_old_unread_messages(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Node(options(tmp_path), now_ms=clock.now_ms) as node:
        core = node.core
        assert core is not None
        core.topics.ensure_topic("orders", 1, core.now_ms())
        await core.files.flush()
        core.store.append([Draft("orders", 0, b"x", b"") for _ in range(3)])
        clock.advance(7_000)
        core.offsets.open("late", "orders", 0).move_to(1)
        core.offsets.open("done", "orders", 0).move_to(3)
        core.offsets.open("TOOLS_CONSUMER", "orders", 0).move_to(0)
        lags = (await node.metrics.status()).lags
        assert [(one.group, one.topic, one.messages) for one in lags] == [("late", "orders", 2)]
        assert lags[0].oldest_ms == 7_000


async def test_the_status_names_consumers_that_are_silent(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Node(options(tmp_path), now_ms=clock.now_ms) as node:
        node.create_topic("orders", 1)
        async with (
            coherer.connect(node.rocketmq_url) as rocketmq,
            coherer.connect(node.url) as tubemq,
            rocketmq.consumer("r", "orders"),
            tubemq.consumer("t", "orders"),
        ):
            assert (await node.metrics.status()).silent == ()
            assert node.master is not None
            clock.advance(node.options.client_timeout_ms - 1_000)
            found = {one.group: one for one in (await node.metrics.status()).silent}
            assert found["t"].protocol == "TubeMQ"
            assert found["t"].silent_ms <= node.options.client_timeout_ms
            clock.advance(80_000)
            found = {one.group: one for one in (await node.metrics.status()).silent}
            assert found["r"].protocol == "RocketMQ"
            assert found["r"].silent_ms >= 75_000
            assert "coherer_silent_consumers{" in (await node.metrics.text()).decode()
