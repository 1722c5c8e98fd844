"""What heartbeats leave in files is the other broker's to go on with.

See docs/protocol/rocketmq.md, sections 3.11, 3.12, 6.10.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coherer._wire.rocketmq import fastjson
from tests.interop.peers.rocket_site import Broker, OurRocket, RocketSite
from tests.interop.peers.rocketmq import JavaRocketBroker
from tests.server.client_harness import Client, consumer, heartbeat, sql

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SEGMENT_BYTES = 64 * 1024 * 1024
GROUP, TOPIC, EXPRESSION = "GID_PY", "T1", "a > 5 AND b = 'x'"
ADMIN = {
    "topic": "made",
    "defaultTopic": "TBW102",
    "topicFilterType": "MULTI_TAG",
    "order": "false",
}


async def started(site: RocketSite, kind: str, directory: Path, namesrv: str) -> Broker:
    broker: Broker = (
        JavaRocketBroker(
            site.java,
            directory.parent,
            namesrv,
            store=directory,
            settings={"mappedFileSizeCommitLog": SEGMENT_BYTES},
        )
        if kind == "java"
        else OurRocket(directory.parent, namesrv=namesrv, segment_bytes=SEGMENT_BYTES)
    )
    broker.start()
    await asyncio.to_thread(broker.wait)
    return broker


async def ended(broker: Broker) -> None:
    """It writes its files."""
    if isinstance(broker, OurRocket):
        assert broker.child is not None
        broker.child.stdin.close()  # its order to end
        await asyncio.to_thread(broker.child.process.wait, 30)
    await asyncio.to_thread(broker.stop)


def files(directory: Path) -> dict[str, Any]:
    names = ("topics.json", "subscriptionGroup.json", "consumerFilter.json")
    found: dict[str, Any] = {
        name: fastjson.loads((directory / "config" / name).read_bytes()) for name in names
    }
    for topic in found["topics.json"]["topicConfigTable"].values():
        topic.pop("tubemq", None)  # ours, which Java does not write again
    return found


def filter_of(directory: Path) -> dict[str, Any]:
    found = files(directory)["consumerFilter.json"]["filterDataByTopic"][TOPIC]
    assert found["topic"] == TOPIC
    entry = found["groupFilterData"][GROUP]
    assert isinstance(entry, dict)
    return entry


async def dial(broker: Broker) -> Client:
    client = await Client.dial(int(broker.address.rpartition(":")[2]))
    assert isinstance(client, Client)
    return client


async def test_files_go_from_broker_to_broker(rocket: RocketSite, tmp_path: Path) -> None:
    """Both ways at the same time."""
    async with asyncio.TaskGroup() as group:
        for kinds in (("ours", "java", "ours"), ("java", "ours", "java")):
            group.create_task(go(rocket, tmp_path / kinds[0] / "data", kinds), name="-".join(kinds))


async def go(rocket: RocketSite, directory: Path, kinds: tuple[str, str, str]) -> None:
    namesrv = await asyncio.to_thread(rocket.names, "ours")
    # The first: a group with an expression, settings of another, a topic.
    broker = await started(rocket, kinds[0], directory, namesrv)
    client = await dial(broker)
    data = heartbeat("me", [consumer(GROUP, sql(TOPIC, EXPRESSION, 1000), unitMode=True)])
    assert (await client.beat(data)).code == 0
    made = {**ADMIN, "readQueueNums": "3", "writeQueueNums": "2", "perm": "4", "topicSysFlag": "1"}
    assert (await client.ask(17, made)).code == 0
    settings = {"groupName": "set", "retryMaxTimes": 5, "consumeBroadcastEnable": False}
    assert (await client.ask(200, body=fastjson.dumps(settings))).code == 0
    await client.hang_up()
    await ended(broker)
    first = files(directory)
    entry = filter_of(directory)
    assert entry.pop("bornTime") <= entry.pop("deadTime")
    assert entry == {
        "bloomFilterData": {"bitNum": 112, "bitPos": [5, 12, 92]},
        "clientVersion": 1000,
        "consumerGroup": GROUP,
        "dead": True,
        "expression": EXPRESSION,
        "expressionType": "SQL92",
        "topic": TOPIC,
    }
    topics = first["topics.json"]["topicConfigTable"]
    shape = {"order": False, "topicFilterType": "SINGLE_TAG", "perm": 6, "topicSysFlag": 2}
    assert topics[f"%RETRY%{GROUP}"] == {
        **shape,
        "topicName": f"%RETRY%{GROUP}",
        "readQueueNums": 1,
        "writeQueueNums": 1,
    }
    # The second has all of it, changes something, and writes the rest as it was.
    broker = await started(rocket, kinds[1], directory, namesrv)
    client = await dial(broker)
    assert (await client.consume("second", sql(TOPIC, "a IS NULL", 7))).code == 0
    await client.hang_up()
    await ended(broker)
    second = files(directory)
    assert (
        filter_of(directory)
        == first["consumerFilter.json"]["filterDataByTopic"][TOPIC]["groupFilterData"][GROUP]
    )
    for name, member in (
        ("topics.json", "topicConfigTable"),
        ("subscriptionGroup.json", "subscriptionGroupTable"),
    ):
        before, after = first[name][member], second[name][member]
        assert {key: after[key] for key in before} == before
    # (Java reads the version of topics.json, but that of groups begins at 0 with each start.)
    versions = [found["topics.json"]["dataVersion"]["counter"] for found in (first, second)]
    assert versions[0] < versions[1]
    made_topic = second["topics.json"]["topicConfigTable"]["made"]
    assert (made_topic["readQueueNums"], made_topic["writeQueueNums"]) == (3, 2)
    assert (made_topic["perm"], made_topic["topicSysFlag"]) == (4, 1)
    assert made_topic["topicFilterType"] == "MULTI_TAG"
    made_group = second["subscriptionGroup.json"]["subscriptionGroupTable"]["set"]
    assert (made_group["retryMaxTimes"], made_group["consumeBroadcastEnable"]) == (5, False)
    # Back at the first kind, the same version makes the old filter alive again.
    broker = await started(rocket, kinds[2], directory, namesrv)
    client = await dial(broker)
    assert (await client.beat(data)).code == 0
    await client.hang_up()
    await ended(broker)
    assert (
        filter_of(directory)["bornTime"]
        == (
            first["consumerFilter.json"]["filterDataByTopic"][TOPIC]["groupFilterData"][GROUP][
                "bornTime"
            ]
        )
    )
    assert filter_of(directory)["deadTime"] > filter_of(directory)["bornTime"]
    assert "second" in files(directory)["subscriptionGroup.json"]["subscriptionGroupTable"]
