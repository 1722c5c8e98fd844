"""The same calls of the HTTP administration to Java's broker and ours: the same fields.

Each answer of Java's broker and of ours is compared with what it must have: all fields of Java's,
of the same kinds. Offsets are other numbers: bytes of an index there, messages here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.parse
import urllib.request
from typing import Any

from test_matrix import drain, numbered, until

from tests.interop.peers.clients import closing
from tests.interop.peers.runs import At, scenario
from tests.interop.peers.site import PAIRS

SAME = [pair for pair in PAIRS if pair.name in {"java/java", "ours/ours"}]
WHO = {"modifyUser": "tester"}

OK = {"result": True, "errCode": 0, "errMsg": ""}
REFUSED = {"result": False, "errCode": 400, "errMsg": ""}
BOUNDS = {"tmpOffset": 0, "minOffset": 0, "maxOffset": 0, "minDataOffset": 0, "maxDataOffset": 0}
PLACE = {
    "partitionId": 0, "curOffset": 0, "flightOffset": 0, "curDataOffset": 0, "offsetLag": 0,
    "dataLag": 0, "offsetMax": 0, "dataMax": 0,
}  # fmt: skip
READER = {
    "index": 0, "groupName": "", "topicName": "", "partitionId": 0, "consumerId": "",
    "isRegOk": True, "lastRegTime": 0, "isFilterConsume": False, "receivedFrom": "",
    "qryPriorityId": 0, "curDataLimitInM": 0, "curFreqLimit": 0, "totalSentSec": 0,
    "isSupportLimit": True, "sentUnitSec": 0, "totalSentMin": 0, "sentUnit": 0,
    "isMessageStoreOk": True, "zkOffset": 0, **BOUNDS,
}  # fmt: skip
CALLS_SUMMARY = {"count": 0, "min": 0, "max": 0}
METRICS = {
    "probeTime": "",
    "nodeName": "",
    "nodeRole": "",
    "count": 0,
    "metrics": {
        "serviceStatus": {"reset_time": "", "consume_online_cnt": 0, "consume_timeout_cnt": 0},
        "webAPI": {
            "reset_time": "",
            "isClosed": False,
            "web_calls": {**CALLS_SUMMARY, "cells": {}, "P99": 0, "P999": 0, "P9999": 0},
            "methods": {"method_admin_get_methods": CALLS_SUMMARY},
        },
    },
}


class Calls:
    """The administration of one broker, and the shapes of its answers."""

    def __init__(self, at: At) -> None:
        [broker] = at.deployed.brokers
        self.id = broker.broker_id
        self._url = f"http://{broker.host}:{broker.web_port}/broker.htm"

    async def __call__(self, method: str, shape: dict[str, Any], **params: object) -> Any:
        """One call; its answer, which has this shape."""
        answer = await asyncio.to_thread(self.ask, method, params)
        assert_shape(answer, shape, method)
        return answer

    def ask(self, method: str, params: dict[str, object]) -> Any:
        """One call; its answer, whatever it is."""
        query = urllib.parse.urlencode({"method": method, "confModAuthToken": "interop", **params})
        with urllib.request.urlopen(f"{self._url}?{query}", timeout=10) as response:
            return json.loads(response.read())


def assert_shape(value: Any, shape: Any, where: str) -> None:
    """Whether all fields are there and of their kinds, and said outcomes are as said."""
    assert type(value) is type(shape), (where, value)
    if isinstance(shape, dict):
        for name, one in shape.items():
            assert name in value, (where, name, value)
            assert_shape(value[name], one, f"{where}.{name}")
            if name in {"result", "errCode"}:
                assert value[name] == one, (where, value)
    if isinstance(shape, list) and shape:
        assert value, where
        for one in value:
            assert_shape(one, shape[0], f"{where}[]")


@scenario(SAME, partitions=2, clients=["ours"])
async def test_broker_answers(at: At) -> None:
    """What it holds, who reads, where groups are, and what moves them."""
    call, topic, group = Calls(at), at.topic, at.group()
    producer = await at.clients.producer(at.master, [topic])
    async with closing(producer):
        for message in numbered(topic, range(12)):
            await producer.send(message)
    puller = await at.clients.puller(at.master, group, {topic: []})
    async with closing(puller):
        await drain(puller, 12)
        await see_messages(call, topic)
        await see_readers(call, topic, group)
        await move_groups(call, topic, group)
        await see_figures(call)


async def see_messages(call: Calls, topic: str) -> None:
    shape = {**OK, "dataSet": [{"index": 0, "data": "", "attr": ""}]}

    answers: list[Any] = []

    async def on_disk() -> Any:  # Java shows what it has written
        answer = await asyncio.to_thread(
            call.ask, "admin_snapshot_message", {"topicName": topic, "partitionId": 0}
        )
        answers.append(answer)
        return answer["result"] and len(answer["dataSet"]) == 3

    try:
        await until(on_disk, "the newest messages can be shown")
    except AssertionError as late:
        late.add_note(f"The last of {len(answers)} answers: {answers[-1]}")
        raise
    answer = await call("admin_snapshot_message", shape, topicName=topic, partitionId=0, msgCount=4)
    bodies = [base64.b64decode(one["data"]) for one in answer["dataSet"]]
    assert len(bodies) == 4
    assert bodies == sorted(bodies)
    assert {one["attr"] for one in answer["dataSet"]} == {"null"}
    missing = {**REFUSED, "errCode": 401}
    await call(
        "admin_snapshot_message", missing, topicName=topic, partitionId=0, filterConds="none"
    )
    for wrong in ({}, {"topicName": "none"}, {"topicName": topic, "msgCount": 51}):
        await call("admin_snapshot_message", REFUSED, **wrong)
    partition = {"partitionId": 0, "minOffset": 0, "maxOffset": 0, "sizeInBytes": 0}
    store = {
        "storeId": 0, "numPartition": 0, "minDataOffset": 0, "maxDataOffset": 0, "sizeInBytes": 0,
        "partitionInfo": [partition],
    }  # fmt: skip
    stored = {"index": 0, "topicName": "", "storeInfo": [store]}
    shape = {**OK, "dataSet": [stored], "totalCnt": 0}
    answer = await call("admin_query_broker_all_store_info", shape, topicName=topic)
    assert [len(one["partitionInfo"]) for one in answer["dataSet"][0]["storeInfo"]] == [2]
    held = {"partitionId": 0, "offsetMin": 0, "offsetMax": 0, "dataMin": 0, "dataMax": 0}
    published = {"topicName": "", "offsetInfo": [held], "itemCount": 0}
    shape = {**OK, "dataSet": [published], "dataCount": 0}
    await call("admin_query_pubinfo", shape, topicName=topic)


async def see_readers(call: Calls, topic: str, group: str) -> None:
    for method in ("admin_get_group_detail_info", "admin_query_broker_all_consumer_info"):
        shape = {**OK, "dataSet": [READER], "totalCnt": 0}
        answer = await call(method, shape, groupName=group)
        assert [one["index"] for one in answer["dataSet"]] == [1, 2]
        assert {one["partitionId"] for one in answer["dataSet"]} == {0, 1}
        assert {one["receivedFrom"] for one in answer["dataSet"]} == {"127.0.0.1"}
    registered = {"Partition": "", "Consumer": "", "index": 0}
    for method in ("admin_get_partition_reginfo", "admin_query_consumer_regmap"):
        shape = {**OK, "dataSet": [registered], "totalCnt": 0}
        answer = await call(method, shape, groupName=group)
        assert [one["index"] for one in answer["dataSet"]] == [1, 2]
    booked = {"type": "", "groupName": [], "groupCount": 0}
    for method in ("admin_get_booked_groupname", "admin_query_group"):
        await call(method, {**OK, "dataSet": [booked], "dataCount": 0}, divide="true")
    where = {"topicName": topic, "partitionId": 0}
    await call("admin_query_group_offset", {**OK, **BOUNDS}, **where, groupName=group)
    real = {**OK, **BOUNDS, "zkOffset": 0, "curReadDataOffset": 0, "curRdDltDataOffset": 0}
    for name in (group, "nobody"):
        params = {**where, "groupName": name, "requireRealOffset": "true"}
        answer = await call("admin_query_group_offset", real, **params)
        assert (answer["zkOffset"] == answer["maxOffset"]) is (name == group)
    for wrong in ({"topicName": "none"}, {"groupName": ""}, {"partitionId": ""}):
        await call("admin_query_group_offset", REFUSED, **{**where, "groupName": group, **wrong})


async def move_groups(call: Calls, topic: str, group: str) -> None:
    async def booked() -> Any:  # Java knows of positions when they are written
        answer = await asyncio.to_thread(call.ask, "admin_query_offset", {"groupName": group})
        return answer["dataSet"]

    await until(booked, "the group's positions are known")
    of_topic = {"topicName": "", "offsets": [PLACE], "partCount": 0}
    record = {"groupName": "", "subInfo": [of_topic], "topicCount": 0}
    shape = {**OK, "dataSet": [record], "totalCnt": 0}
    await call("admin_query_offset", shape, groupName=group)
    assert (await call("admin_query_offset", OK, groupName="none"))["dataSet"] == []
    other = f"{group}_other"
    names = {"sourceGroupName": group, "targetGroupName": other}
    await call("admin_clone_offset", OK, **WHO, **names)
    await call("admin_clone_offset", REFUSED, **WHO, **{**names, "sourceGroupName": "none"})
    where = {**WHO, "topicName": topic, "groupName": other, "partitionId": 0}
    shape = {**OK, "oldOffset": 0}
    answer = await call("admin_manual_set_current_offset", shape, **where, manualOffset=0)
    assert answer["oldOffset"] > 0, "it was where the other group is"
    answer = await call("admin_manual_set_current_offset", shape, **where, manualOffset=0)
    assert answer["oldOffset"] == 0
    await call("admin_manual_set_current_offset", REFUSED, **where, manualOffset=10**9)
    both = {**where, "groupName": f"{other},{group}"}
    await call("admin_manual_set_current_offset", REFUSED, **both, manualOffset=0)
    places = json.dumps({f"{call.id}:{topic}:0": 0})
    moved = {**WHO, "groupName": other, "manualSet": "true", "offsetJsonInfo": places}
    await call("admin_set_offset", OK, **moved)
    end = {**WHO, "groupName": other, "manualSet": "false", "topicName": topic}
    await call("admin_set_offset", OK, **end)
    await call("admin_rmv_offset", OK, **WHO, groupName=other)


async def see_figures(call: Calls) -> None:
    methods = {"method": "", "needAuth": False}
    await call("admin_get_methods", {**OK, "dataSet": [methods], "totalCnt": 0})
    await call("admin_query_server_version", {**OK, "data": [{"version": ""}]})
    for params in ({}, {"needRefresh": "true"}):
        await call("admin_get_metrics_info", {**OK, "data": [METRICS]}, **params)
    await call("admin_enable_stats", OK, statsType="all")
    await call("admin_enable_stats", REFUSED, statsType="none")
    await call("admin_enable_stats", REFUSED)
    await call("admin_disable_stats", OK, statsType="webAPI")
    await call("admin_disable_all_stats", OK)
    await call("admin_enable_stats", OK, statsType="all")
    await call("admin_query_broker_memstore_info", REFUSED)
