"""The broker's HTTP administration, called directly and through the admin client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import coherer
from coherer import _net as net
from coherer._client.tubemq.administration.admin import Admin
from coherer._rules.rocketmq.groups import Group
from coherer._server.http.service import AdminApp
from coherer._server.node.node import Node, NodeOptions
from coherer._server.tubemq.broker.admin import broker_admin
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import Response
from tests.server.raw_client import RawClient

WHO: dict[str, Any] = {"clientId": "c", "groupName": "g", "topicName": "demo", "partitionId": 1}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    options = NodeOptions(
        directory=tmp_path,
        master_port=0,
        broker_port=0,
        admin_port=0,
        namesrv_port=0,
        rocketmq_port=0,
        segment_bytes=1 << 20,
    )
    async with Node(options) as node:
        node.create_topic("demo", 2)
        node.create_topic("other", 1)
        yield node


@pytest.fixture
def app(node: Node) -> AdminApp:
    assert node.broker is not None
    return broker_admin(node.broker)


@pytest.fixture
async def asker(node: Node) -> RawClient:
    asker = await net.dial("127.0.0.1", node.broker_port, RawClient)
    for number in range(4):
        message = pb.SendMessageRequestP2B(
            clientId="p",
            topicName="demo",
            partitionId=1,
            data=b"%d" % number,
            flag=0,
            checkSum=-1,
            sentAddr=0,
        )
        assert (await asker.ask(methods.SEND_MESSAGE, message)).success
    request = pb.RegisterRequestC2B(**WHO, opType=31, readStatus=0)
    assert (await asker.ask(methods.PARTITION_REGISTER, request)).success
    return asker


async def get(asker: RawClient) -> list[bytes]:
    request = pb.GetMessageRequestC2B(**WHO, lastPackConsumed=True)
    answer = await asker.ask(methods.GET_MESSAGES, request)
    return [message.payLoadData for message in answer.messages]


def groups_of(app: AdminApp, **params: str) -> dict[str, list[str]]:
    records: Any = app.handle("admin_query_group", params)["dataSet"]
    assert all(record["groupCount"] == len(record["groupName"]) for record in records)
    return {record["type"]: record["groupName"] for record in records}


async def test_the_partitions_of_a_broker(app: AdminApp, asker: RawClient) -> None:
    held = app.handle("admin_query_pubinfo", {"topicName": "demo"})
    assert (held["result"], held["offsetStep"], held["dataCount"]) == (True, 1, 1)
    [topic] = held["dataSet"]  # type: ignore[misc]
    assert topic["topicName"] == "demo"  # type: ignore[index, call-overload]
    zero, one = topic["offsetInfo"]  # type: ignore[index, call-overload, misc]
    assert (zero["partitionId"], zero["offsetMin"], zero["offsetMax"]) == (0, 0, 0)
    assert (one["partitionId"], one["offsetMin"], one["offsetMax"]) == (1, 0, 4)
    assert 0 == one["dataMin"] < one["dataMax"]
    assert app.handle("admin_query_pubinfo", {})["dataCount"] == 3

    assert len(await get(asker)) == 4
    position = {
        "partitionId": 1,
        "curOffset": 0,
        "flightOffset": 4,
        "curDataOffset": -1,
        "offsetLag": 4,
        "dataLag": -1,
        "offsetMax": 4,
        "dataMax": one["dataMax"],
    }
    assert app.handle("admin_query_offset", {"group": "g", "topic": "demo"})["dataSet"] == [
        {
            "groupName": "g",
            "subInfo": [{"topicName": "demo", "offsets": [position], "partCount": 1}],
            "topicCount": 1,
        }
    ]
    assert app.handle("admin_query_offset", {"group": "h"})["dataSet"] == []
    assert app.handle("admin_query_offset", {"topic": "other"})["dataSet"] == []
    assert groups_of(app) == {"all": ["g"]}
    assert groups_of(app, divide="true") == {"online": ["g"], "offline": []}
    assert app.handle("admin_query_consumer_regmap", {})["dataSet"] == [
        {"Partition": "g:demo:1", "Consumer": "c", "index": 1}
    ]
    assert app.handle("admin_query_consumer_regmap", {"group": "h"})["dataSet"] == []
    methods_ = app.handle("admin_get_methods", {})
    assert {"method": "admin_set_offset", "needAuth": True} in methods_["dataSet"]  # type: ignore[operator]
    [version] = app.handle("admin_query_server_version", {})["data"]  # type: ignore[misc]
    assert version["version"].startswith("coherer-")  # type: ignore[index, union-attr, call-overload]


async def test_moving_a_group_with_a_held_get(app: AdminApp, asker: RawClient) -> None:
    assert len(await get(asker)) == 4
    waiting = asker.post(
        methods.GET_MESSAGES, pb.GetMessageRequestC2B(**WHO, lastPackConsumed=True)
    )
    await asker.ask(methods.COMMIT_OFFSET, pb.CommitOffsetRequestC2B(**WHO))
    assert not waiting.done()
    places = {"1:demo:1": 2, "1:demo:0": 99, "1:demo:7": 1, "1:none:0": 1, "2:demo:1": 0}
    moved = app.handle(
        "admin_set_offset",
        {
            "groupName": "g,new",
            "modifyUser": "me",
            "manualSet": "true",
            "offsetJsonInfo": json.dumps(places),
        },
    )
    assert moved["result"] is True
    async with asyncio.timeout(5):
        response = await waiting
    assert isinstance(response, Response)
    answer = methods.parse(pb.GetMessageResponseB2C, response.body)
    assert [message.payLoadData for message in answer.messages] == [b"2", b"3"]
    found = app.handle("admin_query_offset", {"group": "new"})["dataSet"]
    [topic] = found[0]["subInfo"]  # type: ignore[index, call-overload]
    assert [(position["partitionId"], position["curOffset"]) for position in topic["offsets"]] == [
        (1, 2),
        (0, 0),
    ]


async def test_moving_groups_to_the_end(app: AdminApp, asker: RawClient) -> None:
    given = {"groupName": "g", "modifyUser": "me", "manualSet": "false", "topicName": "demo,none"}
    assert app.handle("admin_set_offset", given)["result"] is True
    [group] = app.handle("admin_query_offset", {})["dataSet"]  # type: ignore[misc]
    lags = [position["offsetLag"] for position in group["subInfo"][0]["offsets"]]  # type: ignore[index, call-overload]
    assert lags == [0, 0]


async def test_removing(app: AdminApp, asker: RawClient) -> None:
    given = {"groupName": "g", "modifyUser": "me", "topicName": "other"}
    assert app.handle("admin_rmv_offset", given)["result"] is True
    assert groups_of(app) == {"all": ["g"]}
    del given["topicName"]
    assert app.handle("admin_rmv_offset", given)["result"] is True
    assert groups_of(app) == {"all": []}
    answer = await asker.ask(methods.GET_MESSAGES, pb.GetMessageRequestC2B(**WHO))
    assert answer.errCode == 411


async def test_a_removed_group_vanishes_over_rocketmq_too(
    node: Node, app: AdminApp, asker: RawClient
) -> None:
    assert len(await get(asker)) == 4
    assert await get(asker) == []
    await node.core.save_positions()
    assert "g" in node.core.groups
    given = {"groupName": "g", "modifyUser": "me", "topicName": "other"}
    assert app.handle("admin_rmv_offset", given)["result"] is True
    assert "g" in node.core.groups, "it has offsets of another topic"
    del given["topicName"]
    assert app.handle("admin_rmv_offset", given)["result"] is True
    await node.core.save_positions()
    assert "g" not in node.core.groups


async def test_a_group_with_settings_of_its_own_loses_only_its_offsets(
    node: Node, app: AdminApp, asker: RawClient
) -> None:
    node.core.groups.put(Group(group_name="g", retry_max_times=3), 0)
    given = {"groupName": "g", "modifyUser": "me"}
    assert app.handle("admin_rmv_offset", given)["result"] is True
    assert groups_of(app) == {"all": []}
    assert "g" in node.core.groups


async def test_a_group_that_rocketmq_deletes_loses_its_tubemq_consumers(
    node: Node, app: AdminApp, asker: RawClient
) -> None:
    assert len(await get(asker)) == 4
    async with coherer.connect(f"rocketmq://127.0.0.1:{node.namesrv_port}") as client:
        await client.admin().groups.create("g")
        await client.admin().groups.delete("g")
    answer = await asker.ask(methods.GET_MESSAGES, pb.GetMessageRequestC2B(**WHO))
    assert answer.errCode == 411
    assert groups_of(app) == {"all": []}
    assert "g" not in node.core.groups


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("admin_set_offset", {}),
        ("admin_set_offset", {"groupName": "g"}),
        ("admin_set_offset", {"groupName": "g", "modifyUser": "m", "manualSet": "maybe"}),
        ("admin_set_offset", {"groupName": "g", "modifyUser": "m", "manualSet": "true"}),
        ("admin_set_offset", {"groupName": "g", "modifyUser": "m"}),
        ("admin_rmv_offset", {"groupName": "g"}),
        *(
            (
                "admin_set_offset",
                {"groupName": "g", "modifyUser": "m", "manualSet": "true", "offsetInfo": text},
            )
            for text in ("{", "[]", '{"1:demo:1":"x"}', '{"demo:1":1}', '{"a:demo:1":1}')
        ),
    ],
)
async def test_invalid_parameters(app: AdminApp, method: str, given: dict[str, str]) -> None:
    answer = app.handle(method, given)
    assert (answer["result"], answer["errCode"]) == (False, 400)


async def test_through_the_client(node: Node, asker: RawClient) -> None:
    assert len(await get(asker)) == 4
    admin = Admin(f"http://127.0.0.1:{node.admin_port}")
    [broker] = await admin.brokers.list()
    assert (broker.id, broker.status, broker.web_port) == (1, "running", node.admin_port)
    ends = [(part.min_offset, part.max_offset) for part in await admin.topics.partitions("demo")]
    assert ends == [(0, 0), (0, 4)]
    [group] = await admin.groups.list("g")
    [position] = [part for part in group.partitions if part.partition == 1]
    assert (position.committed, position.lag, position.owner) == (0, 4, "c")
    assert await admin.groups.reset_offsets("g", "demo", "latest") == {"1:demo:0": 0, "1:demo:1": 4}
    [group] = await admin.groups.list("g")
    assert group.lag == 0
