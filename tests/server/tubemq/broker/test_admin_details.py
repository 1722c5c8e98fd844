"""Details in the broker's HTTP administration, and unsupported methods."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from coherer._server.http.app import AdminApp
from coherer._server.tubemq.broker.admin import REFUSED, broker_admin
from coherer._server.tubemq.broker.broker import Broker
from coherer._wire.tubemq.payload import encode_payload
from coherer.testing import ManualClock
from tests.server.broker_harness import BrokerClient
from tests.server.java_methods import BROKER

GROUP = {"groupName": "g", "modifyUser": "me"}


@pytest.fixture
def app(broker: Broker) -> AdminApp:
    return broker_admin(broker)


@pytest.fixture
async def sent(client: BrokerClient) -> list[bytes]:
    """Messages in a partition, every third with the tag `a`."""
    bodies = [b"%d" % number for number in range(9)]
    for number, body in enumerate(bodies):
        tag = "a" if number % 3 == 0 else ""
        data, flag = (body, 0)
        if tag:
            data, flag = encode_payload(body, "$msgType$=a,$msgTime$=202001010000,k=v")
        await client.send(data=data, flag=flag, msgType=tag, partitionId=1)
    return bodies


def ask(app: AdminApp, method: str, **params: object) -> Any:
    return app.handle(method, {name: str(value) for name, value in params.items()})


def found(app: AdminApp, method: str, **params: object) -> Any:
    answer = ask(app, method, **params)
    assert answer["result"] is True, answer
    return answer.get("dataSet", answer)


def test_the_newest_messages(app: AdminApp, sent: list[bytes]) -> None:
    shown = found(app, "admin_snapshot_message", topicName="demo", partitionId=1, msgCount=4)
    assert [base64.b64decode(one["data"]) for one in shown] == sent[-4:]
    assert [one["index"] for one in shown] == [0, 1, 2, 3]
    assert [one["attr"] for one in shown[:2]] == ["null", "$msgType$=a,$msgTime$=202001010000,k=v"]
    assert len(found(app, "admin_snapshot_message", topicName="demo", pid=1)) == 3
    tagged = found(app, "admin_snapshot_message", topic="demo", pid=1, flts="a", cnt=50)
    assert [base64.b64decode(one["data"]) for one in tagged] == sent[::3]


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({}, 400),
        ({"topicName": "none"}, 400),
        ({"topicName": "demo", "partitionId": 3}, 400),
        ({"topicName": "demo", "msgCount": 51}, 400),
        ({"topicName": "demo", "msgCount": 2}, 400),
        ({"topicName": "demo", "partitionId": 0}, 401),
        ({"topicName": "demo", "partitionId": 1, "filterConds": "none"}, 401),
    ],
)
def test_no_messages_to_show(
    app: AdminApp, sent: list[bytes], params: dict[str, object], code: int
) -> None:
    assert sent
    answer = ask(app, "admin_snapshot_message", **params)
    assert (answer["result"], answer["errCode"]) == (False, code)


async def test_the_offset_of_a_group(
    app: AdminApp, client: BrokerClient, sent: list[bytes]
) -> None:
    where: dict[str, object] = {"topicName": "demo", "groupName": "g", "partitionId": 1}
    before = ask(app, "admin_query_group_offset", **where, requireRealOffset="true")
    assert (before["zkOffset"], before["curReadDataOffset"]) == (0, -1)
    assert client.register(partitionId=1, groupName="g").success
    client.get(partitionId=1, groupName="g")
    position = ask(app, "admin_query_group_offset", **where, requireRealOffset="true")
    assert (position["minOffset"], position["maxOffset"], position["tmpOffset"]) == (
        0,
        len(sent),
        9,
    )
    assert position["maxDataOffset"] > position["minDataOffset"] == 0
    for change in ({"topicName": "none"}, {"partitionId": 3}, {"partitionId": ""}):
        assert ask(app, "admin_query_group_offset", **{**where, **change})["errCode"] == 400


async def test_the_readers_of_partitions(
    app: AdminApp, client: BrokerClient, broker: Broker, clock: ManualClock, sent: list[bytes]
) -> None:
    assert sent
    clock.turn(-3_600_000)
    assert client.register(partitionId=1, groupName="g", qryPriorityId=301).success
    assert client.register(partitionId=0, groupName="h", filterCondStr=["a"]).success
    one, other = found(app, "admin_get_group_detail_info")
    assert (one["index"], one["groupName"], one["partitionId"]) == (1, "g", 1)
    assert (one["consumerId"], one["receivedFrom"]) == ("c1", "10.0.0.9")
    assert (one["lastRegTime"], one["qryPriorityId"]) == (clock.wall_ms(), 301)
    assert (one["maxOffset"], other["isFilterConsume"]) == (9, True)
    assert found(app, "admin_query_broker_all_consumer_info", groupName="h") == [
        {**other, "index": 1}
    ]
    assert found(app, "admin_get_partition_reginfo", groupName="h") == [
        {"Partition": "h:demo:0", "Consumer": "c1", "index": 1}
    ]
    metrics = ask(app, "admin_get_metrics_info")["data"][0]["metrics"]["serviceStatus"]
    assert (metrics["consume_online_cnt"], metrics["consume_timeout_cnt"]) == (2, 0)
    clock.advance(60_000)
    broker.tick()
    metrics = ask(app, "admin_get_metrics_info", nrf="true")["data"][0]["metrics"]["serviceStatus"]
    assert (metrics["consume_online_cnt"], metrics["consume_timeout_cnt"]) == (0, 2)
    metrics = ask(app, "admin_get_metrics_info")["data"][0]["metrics"]["serviceStatus"]
    assert metrics["consume_timeout_cnt"] == 0


def test_the_stored_record(app: AdminApp, sent: list[bytes]) -> None:
    assert sent
    [topic] = found(app, "admin_query_broker_all_store_info", topicName="demo")
    assert [(s["storeId"], s["numPartition"]) for s in topic["storeInfo"]] == [(0, 3), (1, 3)]
    one = topic["storeInfo"][0]["partitionInfo"][1]
    assert one == {"partitionId": 1, "minOffset": 0, "maxOffset": 9, "sizeInBytes": 180}
    assert len(found(app, "admin_query_broker_all_store_info")) == 5


def test_positions_are_cloned(app: AdminApp, sent: list[bytes]) -> None:
    assert sent
    places = '{"7:demo:1":4,"7:small:0":0}'
    found(app, "admin_set_offset", **GROUP, manualSet="true", offsetJsonInfo=places)
    who = {"modifyUser": "me", "sourceGroupName": "g"}
    assert ask(app, "admin_clone_offset", **who, targetGroupName="x,y")["result"] is True
    for name in ("x", "y"):
        [group] = found(app, "admin_query_offset", groupName=name)
        assert [one["topicName"] for one in group["subInfo"]] == ["demo", "small"]
        assert [one["curOffset"] for one in group["subInfo"][0]["offsets"]] == [4]
    ask(app, "admin_clone_offset", **who, targetGroupName="z", topicName="small")
    [group] = found(app, "admin_query_offset", groupName="z")
    assert [one["topicName"] for one in group["subInfo"]] == ["small"]
    for change in (
        {"sourceGroupName": "nobody"},
        {"topicName": "closed"},
        {"targetGroupName": ""},
        {"modifyUser": ""},
    ):
        params = {**who, "targetGroupName": "w", **change}
        assert ask(app, "admin_clone_offset", **params)["errCode"] == 400


def test_one_position_is_set(app: AdminApp, sent: list[bytes]) -> None:
    assert sent
    where = {**GROUP, "topicName": "demo", "partitionId": 1}
    first = ask(app, "admin_manual_set_current_offset", **where, manualOffset=5)
    assert (first["result"], first["oldOffset"]) == (True, 0)
    assert ask(app, "admin_manual_set_current_offset", **where, offset=2)["oldOffset"] == 5
    for wrong in ({"manualOffset": 10}, {"manualOffset": -1}, {}, {"manualOffset": "x"}):
        answer = ask(app, "admin_manual_set_current_offset", **where, **wrong)
        assert (answer["result"], answer["errCode"]) == (False, 400)
    for method in ("admin_manual_set_current_offset", "admin_query_group_offset"):
        both = {**where, "groupName": f"{GROUP['groupName']},other", "manualOffset": 3}
        answer = ask(app, method, **both)
        assert (answer["result"], answer["errCode"]) == (False, 400)
        assert "one group" in answer["errMsg"]
    (groups,) = ask(app, "admin_query_group")["dataSet"]
    assert groups["groupName"] == [GROUP["groupName"]]


def test_unsupported_methods_are_refused_by_name(app: AdminApp) -> None:
    for method in REFUSED:
        answer = ask(app, method)
        assert (answer["result"], answer["errCode"]) == (False, 400)
        assert answer["errMsg"].startswith(f"{method} is not supported: ")


def test_every_method_of_java_exists(app: AdminApp) -> None:
    assert {row["method"] for row in found(app, "admin_get_methods")} >= BROKER


def test_calls_are_counted(app: AdminApp) -> None:
    def counted() -> Any:
        return ask(app, "admin_get_metrics_info")["data"][0]["metrics"]["webAPI"]

    ask(app, "admin_query_group")
    ask(app, "admin_query_group")
    calls = counted()
    assert calls["methods"]["method_admin_query_group"]["count"] == 2
    assert (calls["web_calls"]["count"], calls["isClosed"]) == (2, False)
    assert re.fullmatch(r"\d{14}", calls["reset_time"])
    assert ask(app, "admin_disable_stats", statsType="WebApi")["result"] is True
    ask(app, "admin_query_group")
    assert counted()["isClosed"] is True
    assert ask(app, "admin_enable_stats", statsType="all")["result"] is True
    assert counted()["methods"]["method_admin_query_group"]["count"] == 2
    wrong = ask(app, "admin_enable_stats", statsType="none")
    assert "all,serviceStatus,webAPI,msgStore" in wrong["errMsg"]
    assert ask(app, "admin_disable_all_stats")["result"] is True
