"""Metrics and health checks, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, cast

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import coherer
from coherer import rocketmq, tubemq
from coherer._rules.rocketmq.clients import ClientInfo, GroupSettings
from coherer._server.node import metrics
from coherer._server.node.group_lag import LOOKUPS_MAX, Lag
from coherer._server.node.node import Node
from coherer._store import Draft
from coherer.message import Message
from tests.server.node_harness import options
from tests.waiting import until

GROUP = "readers"
OF_GROUP = {"consumer_group": GROUP, "topic": "flights", "is_retry": "false", "is_system": "false"}
COMMON = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(options(tmp_path, admin_port=0)) as node:
        node.create_topic("flights", 2)
        yield node


async def fetched(node: Node, path: str, port: int | None = None, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        base = f"http://127.0.0.1:{node.admin_port if port is None else port}"
        return await client.get(base + path, headers=headers)


async def scraped(node: Node) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """The values of all series by name and by the labels that are not common to all."""
    answer = await fetched(node, "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation, family.name
        for sample in family.samples:
            assert COMMON.items() <= sample.labels.items(), sample
            labels = frozenset(sample.labels.items() - COMMON.items())
            assert labels not in found.setdefault(sample.name, {}), "every series comes once"
            found[sample.name][labels] = sample.value
    return found


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_messages_and_lag_are_counted_over_either_protocol(
    watched: Node, protocol: str
) -> None:
    url = watched.url if protocol == "tubemq" else watched.rocketmq_url
    topic, group = of_topic("normal"), frozenset(OF_GROUP.items())
    async with coherer.connect(url) as client:
        async with client.producer() as producer:
            await producer.send_many(Message("flights", b"x" * size) for size in (10, 10, 2000, 10))
        before = await scraped(watched)
        assert before["rocketmq_messages_in_total"][topic] == 4
        assert before["rocketmq_throughput_in_total"][topic] > 2030
        sizes = {dict(key)["le"]: n for key, n in before["rocketmq_message_size_bucket"].items()}
        bounds = [1024, 4096, 524288, 1048576, 2097152, 4194304]  # those of RocketMQ
        assert list(sizes) == [*map(str, map(float, bounds)), "+Inf"]
        assert list(sizes.values()) == [3, 4, 4, 4, 4, 4, 4]
        assert before["coherer_append_messages_sum"][frozenset()] == 4
        assert "rocketmq_consumer_lag_messages" not in before, "unknown is absent"
        async with client.consumer(GROUP, ["flights"], start="earliest") as consumer:
            read = 0
            async for batch in consumer.batches():
                read += len(batch)
                if read == 4:
                    await send_one(client)
                elif read == 5:
                    break  # the first four are acknowledged
            await consumer.commit()
            after = await scraped(watched)
    assert after["rocketmq_messages_out_total"][group] == 5
    assert after["rocketmq_consumer_lag_messages"][group] == 1
    assert after["rocketmq_consumer_ready_messages"][group] == 0
    assert after["rocketmq_consumer_inflight_messages"][group] == 1
    assert after["rocketmq_consumer_lag_latency"][group] >= 0
    assert after["rocketmq_consumer_queueing_latency"][group] == 0


def of_topic(kind: str) -> frozenset[tuple[str, str]]:
    return frozenset({"topic": "flights", "message_type": kind, "is_system": "false"}.items())


def committed(_: object) -> rocketmq.Verdict:
    return rocketmq.Verdict.COMMIT


async def test_messages_count_by_kind_and_once(tmp_path: Path) -> None:
    given = options(tmp_path, admin_port=0, delay_levels="1s 1m")
    async with Node(given) as node, rocketmq.connect(node.rocketmq_url) as client:
        node.create_topic("flights", 1)
        async with client.producer("flights", group="t", check=committed) as producer:
            await producer.send(Message("flights", b"plain"))
            await producer.send(Message("flights", b"late"), delay_level=1)
            await producer.send(Message("flights", b"o", properties={"__SHARDINGKEY": "a"}))
            async with producer.transaction(Message("flights", b"half")):
                pass
            async with producer.transaction(Message("flights", b"half")) as sale:
                await sale.rollback()
        await until(
            lambda: node.core is not None and node.core.store.queue_range("flights", 0)[1] == 4
        )
        after = await scraped(node)
    counts = {"normal": 1, "delay": 1, "fifo": 1, "transaction": 2}
    assert after["rocketmq_messages_in_total"] == {of_topic(k): n for k, n in counts.items()}
    assert after["rocketmq_commit_messages_total"] == {frozenset({("topic", "flights")}): 1}
    assert after["rocketmq_rollback_messages_total"] == {frozenset({("topic", "flights")}): 1}
    took = {
        dict(key)["le"]: n for key, n in after["rocketmq_finish_message_latency_bucket"].items()
    }
    bounds = [5, 60, 600, 3600, 12 * 3600, 24 * 3600]  # those of RocketMQ
    assert list(took) == [*map(str, map(float, bounds)), "+Inf"]
    assert took["+Inf"] == 1, "the one that was committed"


async def send_one(client: coherer.Client) -> None:
    async with client.producer() as producer:
        await producer.send(Message("flights", b"one more"))


async def test_series_of_a_deleted_topic_vanish(watched: Node) -> None:
    async with coherer.connect(watched.url) as client:
        await send_one(client)
    assert "rocketmq_messages_in_total" in await scraped(watched)
    watched.delete_topic("flights")
    await until(lambda: "flights" not in watched.topics())

    async def gone() -> bool:
        return "flights" not in (await fetched(watched, "/metrics")).text

    await until(gone)


@pytest.mark.parametrize("protocol", ["tubemq", "rocketmq"])
async def test_series_of_a_group_stay_while_it_is_away_and_vanish_with_it(
    watched: Node, protocol: str
) -> None:
    url, group = watched.url if protocol == "tubemq" else watched.rocketmq_url, OF_GROUP.items()
    async with coherer.connect(url) as client:
        await send_one(client)
        async with client.consumer(GROUP, ["flights"], start="earliest") as consumer:
            batch = await consumer.receive(20_000)
            assert batch is not None
            await consumer.commit(batch)
        await send_one(client)
        away = await scraped(watched)
        assert away["rocketmq_consumer_lag_messages"][frozenset(group)] == 1
        assert away["rocketmq_consumer_ready_messages"][frozenset(group)] == 1
        assert "rocketmq_consumer_connections" not in away
        assert "tubemq_consumer_connections" not in away
    await remove_group(watched, protocol)
    assert GROUP not in (await fetched(watched, "/metrics")).text


async def test_readers_leave_no_groups(watched: Node) -> None:
    async with coherer.connect(watched.url) as client:
        assert isinstance(client, tubemq.Client)
        async with client.producer("flights") as producer:
            await producer.send_many(Message("flights", b"x" * 4000) for _ in range(1000))
        for partition in await client.partitions("flights"):
            async with client.reader(partition, 0) as reader:
                while await reader.read() is not None:
                    during = await scraped(watched)
                    assert "rocketmq_consumer_lag_messages" not in during
                    for key in during["rocketmq_messages_out_total"]:
                        assert dict(key)["is_system"] == "true"
    assert watched.core is not None
    assert list(watched.core.offsets.items()) == []
    watched.core.clean()
    assert "coherer_reader_" not in (await fetched(watched, "/metrics")).text


async def remove_group(node: Node, protocol: str) -> None:
    if protocol == "tubemq":
        admin = tubemq.Admin(f"http://127.0.0.1:{node.admin_port}")
        await admin.groups.delete(GROUP)
    else:
        async with rocketmq.connect(node.rocketmq_url) as client:
            await client.admin().groups.delete(GROUP)


async def test_health_has_the_right_status(watched: Node) -> None:
    await watched.ready()
    assert (await fetched(watched, "/health/live")).status_code == 200
    assert (await fetched(watched, "/health/ready")).text == "ready\n"
    assert (await fetched(watched, "/health/other")).status_code == 404
    assert (await fetched(watched, "/health/ready", Host="unknown.example")).status_code == 200
    assert (await fetched(watched, "/metrics", Host="unknown.example")).status_code == 403
    assert watched.core is not None
    watched.core.write_failed = True
    answer = await fetched(watched, "/health/ready")
    assert (answer.status_code, answer.text.split(";")[0]) == (503, "The disk has failed")


async def test_a_broker_is_not_ready_before_its_master_accepts_it(tmp_path: Path) -> None:
    alone = options(
        tmp_path,
        roles=frozenset({"broker"}),
        master="127.0.0.1:1",
        admin_port=0,
        protocols=frozenset({"tubemq"}),
    )
    async with Node(alone) as node:
        answer = await fetched(node, "/health/ready")
        assert answer.status_code == 503
        assert "has not accepted it yet" in answer.text
        assert (await fetched(node, "/health/live")).status_code == 200


async def test_with_accounts_metrics_need_one_except_on_their_own_port(tmp_path: Path) -> None:
    given = options(tmp_path, admin_port=0, metrics_port=0, users={"me": "secret"})
    async with Node(given) as node:
        assert (await fetched(node, "/metrics")).status_code == 401
        proof = "Basic " + base64.b64encode(b"me:secret").decode()
        assert (await fetched(node, "/metrics", Authorization=proof)).status_code == 200
        assert (await fetched(node, "/metrics", node.metrics_port)).status_code == 200
        assert (await fetched(node, "/health/ready", node.metrics_port)).status_code == 200
        assert (await fetched(node, "/webapi.htm", node.metrics_port)).status_code == 404


async def test_metrics_can_be_off(tmp_path: Path) -> None:
    async with Node(options(tmp_path, admin_port=0, metrics=False)) as node:
        answer = await fetched(node, "/metrics")
        assert "rocketmq_" not in answer.text
        assert (await fetched(node, "/health/live")).status_code == 200


LARGE = 1000


async def fill(node: Node) -> None:
    """1,000 topics, and 1,000 groups that read, are behind, and have members and dead letters."""
    core, rocket = node.core, node.rocketmq.broker
    assert core is not None
    assert rocket is not None
    names = [f"topic-{number}" for number in range(LARGE)]
    for name in names:
        core.topics.ensure_topic(name, 2, core.now_ms())
    await core.files.flush()
    drafts = [Draft(name, queue, b"x", b"") for name in names for queue in (0, 1) for _ in range(3)]
    core.counters.received(drafts, core.store.append(drafts))
    for name in names:
        group = f"group-of-{name}"
        for queue in (0, 1):
            core.offsets.open(group, name, queue).move_to(0)
            core.counters.read(group, name, queue, 1, 1, 1)
        core.counters.sent_back(group, name, is_dead=True)
        member = ClientInfo(cast("Any", object()), name, "JAVA", 399, core.now_ms())
        rocket.state.producers.register(group, member)
        rocket.state.consumers.register(group, member, GroupSettings(), [], notify=False)


@pytest.fixture
async def large(tmp_path: Path) -> AsyncIterator[Node]:
    """A large node that was restarted, so that nothing is in memory or counted twice."""
    async with Node(options(tmp_path, admin_port=0)) as node:
        await fill(node)
    async with Node(options(tmp_path, admin_port=0)) as node:
        await fill(node)
        yield node


class Calls:
    """Counts calls of functions, which take the same number whatever else the machine does."""

    def __init__(self) -> None:
        self.total = self.longest = self._turn = self.turns = 0

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event in {"call", "c_call"}:
            self.total += 1
            self._turn += 1

    async def of(self, work: Coroutine[None, None, list[bytes]]) -> bytes:
        """Run some work, one turn of the event loop after the other."""
        sys.setprofile(self._called)
        try:
            while True:
                self._turn = 0
                try:
                    work.send(None)
                except StopIteration as end:
                    return b"".join(end.value)
                finally:
                    self.turns += 1
                    self.longest = max(self.longest, self._turn)
        finally:
            sys.setprofile(None)


async def test_a_scrape_of_a_large_node_is_little_work(large: Node) -> None:
    """The most is about 40 ms; calls are counted because times depend on the machine."""
    for scrape in (1, 2, 3, 4):
        calls = Calls()
        text = (await calls.of(large.metrics.pieces())).decode()
        # The first one formats the names that later ones, also of other tests, find in a cache.
        assert calls.total < (300_000 if scrape == 1 else 210_000)
        for name in (
            "rocketmq_messages_in_total",
            "rocketmq_messages_out_total",
            "rocketmq_send_to_dlq_messages_total",
            "rocketmq_consumer_connections",
            "rocketmq_consumer_lag_messages",
        ):
            assert text.count(f"\n{name}{{") == LARGE, name
        # Each has two partitions, of which the first message not acknowledged and the first one not
        # fetched are looked up. The ages of the other groups are unknown.
        ages = text.count("\nrocketmq_consumer_queueing_latency{")
        assert ages == scrape * LOOKUPS_MAX // 4


def test_a_metric_whose_values_are_all_unknown_is_absent() -> None:
    page = metrics.Page("")
    page.add_lags([Lag("t", "g", 3, 2, None, None)])
    page.add_lags([])
    text = b"".join(page.pieces()).decode()
    assert "consumer_lag_messages" in text
    assert "latency" not in text
    assert page.series == 3


async def test_a_long_page_is_compressed_for_those_who_accept_it(large: Node) -> None:
    plain = await fetched(large, "/metrics", None, **{"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    small = await fetched(large, "/metrics", None, **{"Accept-Encoding": "gzip"})
    assert small.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in plain.headers["vary"]
    assert "Accept-Encoding" in small.headers["vary"]
    series = [line for line in small.text.splitlines() if line.startswith("rocketmq_messages")]
    assert series == [line for line in plain.text.splitlines() if line in set(series)]
    assert int(small.headers["content-length"]) < len(plain.content) / 10
    short = await fetched(large, "/health/live", None, **{"Accept-Encoding": "gzip"})
    assert "content-encoding" not in short.headers


async def test_a_scrape_can_be_interrupted_everywhere(
    large: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With slices of no length, the longest one is what a slice may exceed its length by."""
    monkeypatch.setattr(metrics, "SLICE_S", 0)
    for _ in range(2):
        calls = Calls()
        await calls.of(large.metrics.pieces())
        assert calls.turns > 500
        assert calls.longest < 6_000, "about 1 ms"


async def test_scrapes_side_by_side_are_all_answered(watched: Node) -> None:
    answers = await asyncio.gather(*[fetched(watched, "/metrics") for _ in range(5)])
    assert [answer.status_code for answer in answers] == [200] * 5


async def test_pages_of_mapped_files_are_told_apart_from_the_heap(watched: Node) -> None:
    found = await watched.metrics.status()
    assert found.memory_bytes is not None
    assert found.mapped_bytes is not None
    assert 0 < found.mapped_bytes < found.memory_bytes
    assert "\ncoherer_mapped_bytes{" in (await watched.metrics.text()).decode()
