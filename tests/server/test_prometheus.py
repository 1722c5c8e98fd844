"""A real Prometheus reads the metrics of a node."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

import coherer
from coherer._server.node.node import Node
from coherer.message import Message
from tests.interop.peers.process import free_ports
from tests.server.node_harness import options
from tests.server.small_disk import DISK_BYTES, fill
from tests.waiting import until

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing; Debian's package prometheus has it")
        pytest.skip(f"{name} is missing; Debian's package prometheus has it")
    return found


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(options(tmp_path / "node", admin_port=0)) as node:
        node.create_topic("flights", 2)
        for url in (node.url, node.rocketmq_url):
            async with coherer.connect(url) as client, client.producer() as producer:
                await producer.send_many(Message("flights", b"x" * 100) for _ in range(50))
        yield node


async def test_promtool_finds_no_fault(node: Node) -> None:
    text = await node.metrics.text()
    process = await asyncio.create_subprocess_exec(
        tool("promtool"), "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate(text)
    assert (process.returncode, output) == (0, b"")


@pytest.fixture
async def prometheus(node: Node, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A Prometheus that scrapes the node."""
    async with scraping(node, tmp_path) as client:
        yield client


@asynccontextmanager
async def scraping(node: Node, tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    """Run a Prometheus with the files of deploy/, which scrapes a node ten times a second."""
    program = tool("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "100ms", "scrape_timeout": "100ms"}
    config["global"]["evaluation_interval"] = "100ms"
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{node.admin_port}"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    [port] = free_ports(1)
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def queried(client: httpx.AsyncClient, expression: str) -> list[dict[str, Any]]:
    """The result of a query; empty while Prometheus is starting."""
    try:
        answer = await client.get("/api/v1/query", params={"query": expression})
    except httpx.HTTPError:
        return []
    if answer.status_code == 503:  # it is still starting
        return []
    assert answer.status_code == 200, (expression, answer.text)
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


async def test_prometheus_scrapes_a_node(prometheus: httpx.AsyncClient) -> None:
    async def stored() -> bool:
        result = await queried(prometheus, "sum(rocketmq_messages_in_total)")
        return bool(result) and result[0]["value"][1] == "100"

    await until(stored, 60)
    targets = (await prometheus.get("/api/v1/targets")).json()["data"]["activeTargets"]
    assert [(one["health"], one["lastError"]) for one in targets] == [("up", "")]


def expressions() -> dict[str, str]:
    """The expressions of the dashboard by panel, with the values that Grafana puts into them."""
    dashboard = json.loads((DEPLOY / "grafana/dashboards/coherer.json").read_text())
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }
    values = {"$__rate_interval": "20s"}
    for variable in dashboard["templating"]["list"]:
        values[f"${variable['name']}"] = variable.get("allValue", "")
    for name, expression in found.items():
        for variable, value in values.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression, name
        found[name] = expression
    return found


async def load(url: str, group: str) -> None:
    """Send and consume until cancelled, and be behind a little."""
    async with (
        coherer.connect(url) as client,
        client.producer("flights") as producer,
        client.consumer(group, ["flights"], start="earliest") as consumer,
    ):
        while True:
            await producer.send_many(Message("flights", b"x" * 200) for _ in range(20))
            batch = await consumer.receive(1_000)
            if batch is not None:
                await consumer.commit(batch)


async def test_every_expression_of_the_dashboard_yields_a_series(
    node: Node, prometheus: httpx.AsyncClient
) -> None:
    assert node.core is not None
    node.core.counters.sent_back("by-rocketmq", "flights", is_dead=True)
    working = [
        asyncio.create_task(load(node.url, "by-tubemq")),
        asyncio.create_task(load(node.rocketmq_url, "by-rocketmq")),
    ]
    missing = expressions()
    assert len(missing) > 40

    async def complete() -> bool:
        assert not any(task.done() for task in working), working
        for name, expression in list(missing.items()):
            if await queried(prometheus, expression):
                del missing[name]
        return not missing

    try:
        await until(complete, 90)
    except TimeoutError:
        pytest.fail(f"without a series: {missing}")
    finally:
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


async def test_the_alert_rules_are_evaluated(node: Node, prometheus: httpx.AsyncClient) -> None:
    """They find no fault in a node that serves, and one in a node that cannot store messages."""

    async def alerts() -> set[str]:
        found = await queried(prometheus, "ALERTS")
        return {one["metric"]["alertname"] for one in found}

    async def evaluated() -> bool:
        up = await queried(prometheus, "coherer_store_writable == 1")
        rules = (await prometheus.get("/api/v1/rules")).json()["data"]["groups"] if up else []
        return bool(rules) and all(
            rule["health"] == "ok" for group in rules for rule in group["rules"]
        )

    await until(evaluated, 60)
    assert "CohererStoreNotWritable" not in await alerts()
    assert node.core is not None
    node.core.write_failed = True

    async def noticed() -> bool:
        return "CohererStoreNotWritable" in await alerts()

    await until(noticed, 60)
    node.core.write_failed = False


async def test_the_shipped_alerts_fire_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """Those that wait for some minutes are pending."""
    given = options(
        small_disk, admin_port=0, segment_bytes=1 << 20, disk_free_min_bytes=DISK_BYTES // 6
    )
    async with Node(given) as node, scraping(node, tmp_path) as prometheus:
        node.create_topic("orders", 1)

        async def states() -> dict[str, str]:
            found = await queried(prometheus, "ALERTS")
            return {one["metric"]["alertname"]: one["metric"]["alertstate"] for one in found}

        async def ready() -> bool:
            return bool(await queried(prometheus, "coherer_store_writable == 1"))

        await until(ready, 60)
        assert "CohererStoreNotWritable" not in await states()
        async with (
            coherer.connect(node.url, timeout_ms=2_000) as client,
            client.producer("orders") as producer,
        ):
            await fill(producer)

        async def fired() -> bool:
            found = await states()
            return (
                found.get("CohererStoreNotWritable") == "firing"
                and found.get("CohererNotReady") == "pending"
            )

        await until(fired, 60)


def test_promtool_finds_no_fault_in_the_rules_and_the_configuration() -> None:
    folder = DEPLOY / "prometheus"
    for arguments in (
        ["check", "config", folder / "prometheus.yml"],
        ["check", "rules", folder / "coherer.rules.yml"],
        ["test", "rules", folder / "coherer.rules.test.yml"],
    ):
        done = subprocess.run(
            [tool("promtool"), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test() -> None:
    folder = DEPLOY / "prometheus"
    rules = yaml.safe_load((folder / "coherer.rules.yml").read_text())
    tests = yaml.safe_load((folder / "coherer.rules.test.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    fired = {
        one["alertname"]
        for test in tests["tests"]
        for one in test["alert_rule_test"]
        if one.get("exp_alerts")
    }
    assert fired == alerts
