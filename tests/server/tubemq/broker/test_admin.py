"""The broker's HTTP administration, called directly and through the admin client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import pytest

import coherer
from coherer import _net as net
from coherer._client.tubemq.administration.admin import Admin
from coherer._rules.rocketmq.groups import Group
from coherer._server.http.app import AdminApp
from coherer._server.node.node import Node, NodeOptions
from coherer._server.tubemq.broker.admin import broker_admin
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.session import Response
from tests.server.raw_client import RawClient

T = TypeVar("T")
WHO: dict[str, Any] = {"clientId": "c", "groupName": "g", "topicName": "demo", "partitionId": 1}


class Entry(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A part of an answer; a field that the answer has in excess fails the test."""


class PartitionEnds(Entry):
    partition_id: int
    offset_min: int
    offset_max: int
    data_min: int
    data_max: int


class TopicEnds(Entry):
    topic_name: str
    offset_info: list[PartitionEnds]
    item_count: int


class Position(Entry):
    partition_id: int
    cur_offset: int
    flight_offset: int
    cur_data_offset: int
    offset_lag: int
    data_lag: int
    offset_max: int
    data_max: int


class TopicPositions(Entry):
    topic_name: str
    offsets: list[Position]
    part_count: int


class GroupPositions(Entry):
    group_name: str
    sub_info: list[TopicPositions]
    topic_count: int


class GroupNames(Entry):
    type: str
    group_name: list[str]
    group_count: int


class Registration(Entry):
    partition: str = msgspec.field(name="Partition")
    consumer: str = msgspec.field(name="Consumer")
    index: int


class CalledMethod(Entry):
    method: str
    need_auth: bool


class Version(Entry):
    version: str


class Status(msgspec.Struct, rename="camel"):
    """The fields that every answer has."""

    result: bool
    err_code: int
    err_msg: str


class Found(Status, Generic[T]):
    data_set: list[T]
    data_count: int | None = None
    offset_step: int | None = None


class Versions(Status):
    data: list[Version]


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


def ask(app: AdminApp, shape: type[T], method: str, **params: str) -> T:
    return msgspec.convert(app.handle(method, params), shape)


def positions(app: AdminApp, **params: str) -> list[GroupPositions]:
    return ask(app, Found[GroupPositions], "admin_query_offset", **params).data_set


def groups_of(app: AdminApp, **params: str) -> dict[str, list[str]]:
    records = ask(app, Found[GroupNames], "admin_query_group", **params).data_set
    assert all(record.group_count == len(record.group_name) for record in records)
    return {record.type: record.group_name for record in records}


async def test_the_partitions_of_a_broker(app: AdminApp, asker: RawClient) -> None:
    held = ask(app, Found[TopicEnds], "admin_query_pubinfo", topicName="demo")
    assert (held.result, held.offset_step, held.data_count) == (True, 1, 1)
    [topic] = held.data_set
    assert topic.topic_name == "demo"
    zero, one = topic.offset_info
    assert (zero.partition_id, zero.offset_min, zero.offset_max) == (0, 0, 0)
    assert (one.partition_id, one.offset_min, one.offset_max) == (1, 0, 4)
    assert 0 == one.data_min < one.data_max
    assert ask(app, Found[TopicEnds], "admin_query_pubinfo").data_count == 3

    assert len(await get(asker)) == 4
    position = Position(
        partition_id=1,
        cur_offset=0,
        flight_offset=4,
        cur_data_offset=-1,
        offset_lag=4,
        data_lag=-1,
        offset_max=4,
        data_max=one.data_max,
    )
    topics = [TopicPositions(topic_name="demo", offsets=[position], part_count=1)]
    assert positions(app, group="g", topic="demo") == [
        GroupPositions(group_name="g", sub_info=topics, topic_count=1)
    ]
    assert positions(app, group="h") == []
    assert positions(app, topic="other") == []
    assert groups_of(app) == {"all": ["g"]}
    assert groups_of(app, divide="true") == {"online": ["g"], "offline": []}
    registrations = Found[Registration]
    assert ask(app, registrations, "admin_query_consumer_regmap").data_set == [
        Registration(partition="g:demo:1", consumer="c", index=1)
    ]
    assert ask(app, registrations, "admin_query_consumer_regmap", group="h").data_set == []
    called = ask(app, Found[CalledMethod], "admin_get_methods").data_set
    assert CalledMethod(method="admin_set_offset", need_auth=True) in called
    [version] = ask(app, Versions, "admin_query_server_version").data
    assert version.version.startswith("coherer-")


async def test_moving_a_group_with_a_held_get(app: AdminApp, asker: RawClient) -> None:
    assert len(await get(asker)) == 4
    waiting = asker.post(
        methods.GET_MESSAGES, pb.GetMessageRequestC2B(**WHO, lastPackConsumed=True)
    )
    await asker.ask(methods.COMMIT_OFFSET, pb.CommitOffsetRequestC2B(**WHO))
    assert not waiting.done()
    places = {"1:demo:1": 2, "1:demo:0": 99, "1:demo:7": 1, "1:none:0": 1, "2:demo:1": 0}
    moved = ask(
        app,
        Status,
        "admin_set_offset",
        groupName="g,new",
        modifyUser="me",
        manualSet="true",
        offsetJsonInfo=msgspec.json.encode(places).decode(),
    )
    assert moved.result
    async with asyncio.timeout(5):
        response = await waiting
    assert isinstance(response, Response)
    answer = methods.parse(pb.GetMessageResponseB2C, response.body)
    assert [message.payLoadData for message in answer.messages] == [b"2", b"3"]
    [group] = positions(app, group="new")
    [topic] = group.sub_info
    assert [(at.partition_id, at.cur_offset) for at in topic.offsets] == [(1, 2), (0, 0)]


async def test_moving_groups_to_the_end(app: AdminApp, asker: RawClient) -> None:
    given = {"groupName": "g", "modifyUser": "me", "manualSet": "false", "topicName": "demo,none"}
    assert ask(app, Status, "admin_set_offset", **given).result
    [group] = positions(app)
    [topic] = group.sub_info
    assert [at.offset_lag for at in topic.offsets] == [0, 0]


async def test_removing(app: AdminApp, asker: RawClient) -> None:
    given = {"groupName": "g", "modifyUser": "me", "topicName": "other"}
    assert ask(app, Status, "admin_rmv_offset", **given).result
    assert groups_of(app) == {"all": ["g"]}
    del given["topicName"]
    assert ask(app, Status, "admin_rmv_offset", **given).result
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
    assert ask(app, Status, "admin_rmv_offset", **given).result
    assert "g" in node.core.groups, "it has offsets of another topic"
    del given["topicName"]
    assert ask(app, Status, "admin_rmv_offset", **given).result
    await node.core.save_positions()
    assert "g" not in node.core.groups


async def test_a_group_with_settings_of_its_own_loses_only_its_offsets(
    node: Node, app: AdminApp, asker: RawClient
) -> None:
    node.core.groups.put(Group(group_name="g", retry_max_times=3), 0)
    given = {"groupName": "g", "modifyUser": "me"}
    assert ask(app, Status, "admin_rmv_offset", **given).result
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
    answer = ask(app, Status, method, **given)
    assert (answer.result, answer.err_code) == (False, 400)


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
