"""What operators do, on Java's clusters."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from test_matrix import numbered, until

from coherer._administration import brokers as state
from coherer._administration import dead_letters, messages
from coherer._administration.access import TubeCluster
from coherer._administration.replay import replay
from coherer.errors import UnavailableError, UsageError
from coherer.tubemq import Admin
from coherer.tubemq import connect as connect_tubemq
from tests.administration import operating_scenarios
from tests.administration.dead_letter_scenarios import (
    SCENARIOS,
    dead_letters_are_exported,
    replays,
)
from tests.administration.dead_letter_scenarios import made_dead as made_dead_by
from tests.cli.operating import Run, RunApart, made_dead, operate
from tests.client.rocket_scenario import Scenario, scenario_at
from tests.interop.peers.clients import closing
from tests.interop.peers.java import HOST
from tests.interop.peers.rocket_site import RocketSite
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS

pytestmark = [pytest.mark.interop, pytest.mark.slow]

# Java's master brings changes to a broker in rounds of up to 45 s. A change that comes during a
# round, as those of other tests do, waits for the next one.
SYNCHRONIZED_S = 150.0


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda run: run.__name__)
async def test_dead_letters_of_java(
    rocket: RocketSite, run: Callable[[Scenario], Awaitable[None]]
) -> None:
    cluster = await asyncio.to_thread(rocket.cluster, "java")
    async with scenario_at(cluster.url) as scenario:
        await run(scenario)


async def test_a_replay_needs_the_index(rocket: RocketSite) -> None:
    cluster = await asyncio.to_thread(rocket.cluster, "java")
    async with scenario_at(cluster.url) as scenario:
        site = await made_dead_by(scenario, "a")
        try:
            await site.admin.brokers.set_config("broker-a", {"messageIndexEnable": "false"})
            with pytest.raises(UnavailableError, match="index of broker broker-a is off"):
                await replay(site, scenario.group)
            assert await replays(site.client, scenario.topic) == []
        finally:
            await site.admin.brokers.set_config("broker-a", {"messageIndexEnable": "true"})
        assert (await replay(site, scenario.group)).sent == 1


@pytest.mark.parametrize("run", operating_scenarios.SCENARIOS, ids=lambda run: run.__name__)
async def test_operating_java(
    rocket: RocketSite, run: Callable[[Scenario], Awaitable[None]]
) -> None:
    cluster = await asyncio.to_thread(rocket.cluster, "java")
    async with scenario_at(cluster.url) as scenario:
        await run(scenario)


async def test_export_of_java(rocket: RocketSite, tmp_path: Path) -> None:
    cluster = await asyncio.to_thread(rocket.cluster, "java")
    async with scenario_at(cluster.url) as scenario:
        await dead_letters_are_exported(scenario, tmp_path)


@scenario(PAIRS[:1], partitions=2)
async def test_operating_java_tubemq(at: At) -> None:
    """What TubeMQ does not report is unknown."""
    topic = at.topic
    admin = Admin(f"http://{HOST}:{at.deployed.web.port}", at.deployed.web.token)
    producer = await at.clients.producer(at.master, [topic])
    async with closing(producer):
        for message in numbered(topic, range(6)):
            await producer.send(message)
    async with connect_tubemq(f"tubemq://{at.master}") as client:
        cluster = TubeCluster(f"tubemq://{at.master}", client, admin)
        found = await messages.search(cluster, topic)
        assert {one.body for one in found.messages} == {b"n%06d" % n for n in range(6)}
        assert found.complete
        one = found.messages[0]
        assert one.stored_ms is None
        again = await messages.by_id(cluster, one.id, topic=topic)
        assert again is not None
        assert (again.body, again.id) == (one.body, one.id)
        assert {broker.status for broker in await state.brokers(cluster)} <= {"running", "stopped"}
        [settings] = (await cluster.admin.topics.settings(topic)).values()
        assert (settings.partitions, settings.writable, settings.readable) == (2, True, True)
        with pytest.raises(UsageError, match="TubeMQ has no dead letters"):
            await dead_letters.queues(cluster)
        await admin.topics.alter(topic, partitions=3)

        async def grown() -> bool:
            [seen] = await cluster.admin.topics.list(topic)
            return seen.partitions == 3

        await until(grown, "the topic has three partitions", SYNCHRONIZED_S)
        await admin.topics.alter(topic, writable=False)

        async def closed() -> bool:
            [seen] = await cluster.admin.topics.list(topic)
            return not seen.writable

        await until(closed, "the topic accepts no messages", SYNCHRONIZED_S)


def test_commands_on_java(rocket: RocketSite) -> None:
    url = rocket.cluster("java").url
    run, word = Run(url), uuid.uuid4().hex[:10]
    topic, group = f"T{word}", f"g{word}"
    made_dead(url, topic, group, b"a", b"b", b"c")
    assert {one["group"]: one["count"] for one in run.json("dead-letters", "list")}[group] == 3
    letters = run.json("dead-letters", "list", group)["letters"]
    assert [(one["body"], one["reason"]) for one in letters] == [
        (body, "no account") for body in "cba"
    ]
    assert run.json("dead-letters", "show", group, letters[0]["id"])["topic"] == topic
    assert run.json("dead-letters", "replay", group, "--yes")["sent"] == 3
    found = run.lines("consume", topic, "--max", "6", "--timeout", "20")
    assert sorted(one["body"] for one in found) == list("aabbcc")
    assert run.json("dead-letters", "replay", group, "--yes")["already_sent"] == 3
    assert run.json("dead-letters", "purge", group, "--yes")["purged"] == 3
    # Java's broker cannot describe itself in its first seconds; then the command ends with 1.
    while run("brokers").exit_code == 1:
        pass
    assert {broker["status"] for broker in run.json("brokers")} == {"running"}
    [message] = run.json("messages", "search", topic, "--key", "k0", "--limit", "9")["messages"][:1]
    assert run.json("messages", "get", message["id"])["body"] == "a"
    assert run.json("topics", "alter", topic, "--partitions", "2")["done"] == "altered"
    rest = run.lines("consume", topic, "--from", "4", "--partition", "0", "-n", "2", "-t", "20")
    assert [one["offset"] for one in rest] == [4, 5]
    done = run("produce", topic, "--delay", "1s", stdin=b"late\n")
    assert done.exit_code == 0, done.stderr
    some = run.lines("consume", topic, "--max", "7", "--timeout", "20")
    assert "late" in {one["body"] for one in some}
    operate(run, topic, f"o{word}")
    moment = rest[0]["time"]
    since = run.lines("consume", topic, "--from", moment, "--max", "1", "--timeout", "20")
    assert since[0]["time"] >= moment[:19]
    keyed = ("produce", topic, "--format", "json", "--order-by", "key", "--key", "one")
    done = run(*keyed, stdin=b'{"body": "1"}\n{"body": "2"}\n')
    assert done.exit_code == 0, done.stderr
    ordered = run.json("messages", "search", topic, "--key", "one", "--limit", "9")["messages"]
    assert len({one["partition"] for one in ordered}) == 1
    assert sorted(one["body"] for one in ordered) == ["1", "2"]
    assert run.json("groups", "delete", group, "--yes") == {"group": group, "done": "deleted"}
    assert run.json("topics", "delete", topic, "--yes") == {"topic": topic, "done": "deleted"}


@scenario(PAIRS[:1])
async def test_commands_on_java_tubemq(at: At) -> None:
    topic = at.topic
    producer = await at.clients.producer(at.master, [topic])
    async with closing(producer):
        for message in numbered(topic, range(4)):
            await producer.send(message)
    web = at.deployed.web
    words = ("--admin", f"http://{HOST}:{web.port}")
    run = RunApart(f"tubemq://{at.master}")

    bodies = [f"n{number:06}" for number in range(4)]

    def work() -> None:
        search = run.json("messages", "search", topic, *words)
        assert sorted(one["body"] for one in search["messages"]) == bodies
        assert search["messages"][0]["stored"] is None
        found = run.lines("consume", topic, "--max", "4", "--timeout", "20")
        assert sorted(one["body"] for one in found) == bodies
        brokers = run("brokers", "--json", *words)
        assert {one["role"] for one in json.loads(brokers.stdout)} == {"broker"}
        at_once = run.json("messages", "get", found[0]["id"], "--topic", topic, *words)
        assert at_once["body"] == found[0]["body"]
        place = ("--partition", str(found[0]["partition"]), "--from", "0")
        [first] = run.lines("consume", topic, *place, "--max", "1", "--timeout", "60")
        assert first["partition"] == found[0]["partition"]
        group = f"o{uuid.uuid4().hex[:10]}"
        operate(run, topic, group, *words, changes=("--token", web.token), count=4)
        done = run.json("topics", "alter", topic, "--partitions", "5", *words, "--token", web.token)
        assert done["done"] == "altered"
        refused = run("dead-letters", "list")
        assert (refused.exit_code, "TubeMQ has no dead letters" in refused.stderr) == (2, True)

    # While a group was never given a message, Java's broker cannot tell the offsets of all.
    idle = f"i{uuid.uuid4().hex[:10]}"
    async with (
        connect_tubemq(f"tubemq://{at.master}") as client,
        client.consumer(idle, topic, start="latest") as consumer,
    ):
        await until(lambda: len(consumer.assignment) == 4, "the idle group reads", 60)
        await asyncio.to_thread(work)
    listed = await asyncio.to_thread(run.json, "groups", "list", *words)
    assert idle in [one["group"] for one in listed]
