"""`coherer groups` against a node."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

import coherer
import coherer.blocking
from coherer.blocking.tubemq import Client
from coherer.cli.main import app
from coherer.testing import EmbeddedNode


def groups(node: EmbeddedNode, *words: str) -> Result:
    words = ("groups", *words, "--admin", node.admin_url)
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def described(node: EmbeddedNode, group: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(groups(node, "describe", group, "--json").stdout)
    return found


@pytest.fixture
def group(coherer_topic: str) -> str:
    return f"g_{coherer_topic}"


@pytest.fixture
def client(coherer_url: str, coherer_topic: str) -> Client:
    client = coherer.blocking.connect(coherer_url)
    with client.producer(coherer_topic) as producer:
        producer.send_many(coherer.Message(coherer_topic, b"%d" % n) for n in range(10)).check()
    return client


def test_members_offsets_and_lag(
    coherer_node: EmbeddedNode, coherer_topic: str, group: str, client: Client
) -> None:
    with client, client.consumer(group, coherer_topic, start="earliest") as consumer:
        batch = consumer.receive(timeout_ms=10_000)
        assert batch is not None
        batch.ack()
        state = described(coherer_node, group)
        assert (state["group"], state["topics"]) == (group, [coherer_topic])
        (member,) = state["members"]  # type: ignore[misc]
        (partition,) = state["partitions"]  # type: ignore[misc]
        left = 10 - len(batch)
        assert partition == {
            "topic": coherer_topic,
            "broker": "1",
            "partition": 0,
            "min_offset": 0,
            "max_offset": 10,
            "committed": len(batch),
            "lag": left,
            "newest_ms": None,
            "owner": member["id"],
            "offset_step": 1,
        }
        assert state["lag"] == left
        shown = groups(coherer_node, "describe", group).stdout
        assert member["id"] in shown
    state = described(coherer_node, group)
    assert (state["members"], state["lag"]) == ([], left)
    line = next(
        line for line in groups(coherer_node, "list").stdout.splitlines() if line.startswith(group)
    )
    assert line.split()[1:] == [coherer_topic, "0", str(left)]


@pytest.mark.parametrize(("to", "offset"), [("earliest", 0), ("latest", 10), ("4", 4), ("99", 10)])
def test_reset(
    coherer_node: EmbeddedNode,
    coherer_topic: str,
    group: str,
    client: Client,
    to: str,
    offset: int,
) -> None:
    words = ("reset", group, "--topic", coherer_topic, "--to", to, "--json")
    planned = groups(coherer_node, *words, "--dry-run")
    assert planned.exit_code == 0, planned.stderr
    plan = {one["key"]: one["new"] for one in json.loads(planned.stdout)["partitions"]}
    done = groups(coherer_node, *words)
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {f"1:{coherer_topic}:0": offset} == plan
    assert described(coherer_node, group)["lag"] == 10 - offset
    unknown = groups(coherer_node, "reset", "typo", *words[2:6], "--dry-run")
    assert "typo has no offsets" in unknown.stderr
    assert described(coherer_node, group)["lag"] == 10 - offset
    if offset < 10:
        with client, client.consumer(group, coherer_topic, start="latest") as consumer:
            batch = consumer.receive(timeout_ms=10_000)
            assert batch is not None
            assert batch.bodies()[0] == b"%d" % offset
    client.close()


def test_missing_names_are_errors(coherer_node: EmbeddedNode) -> None:
    done = groups(coherer_node, "describe", "nosuch")
    assert (done.exit_code, done.stderr) == (
        1,
        "error: There is no group nosuch, or it has consumed nothing yet.\n",
    )
    done = groups(coherer_node, "reset", "nosuch", "--topic", "nosuch", "--to", "latest")
    assert done.exit_code == 1
    assert "no such topic" in done.stderr
