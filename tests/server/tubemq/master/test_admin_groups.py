"""The master's methods over HTTP for groups and the cluster: Java's forms, and what they do."""

from __future__ import annotations

from typing import Any

import pytest

from coherer import _net as net
from coherer._client.tubemq.admin import Admin
from coherer._rules.tubemq.records import ManageStatus
from coherer._server.node.admin import AdminService
from coherer._server.tubemq.master.admin import active_admin_url
from coherer.errors import RefusedError
from tests.server.master_desk import PROPS, RULES, STAMP, Desk, code
from tests.server.master_stage import Broker, Consumer, Stage

# -- groups


@pytest.fixture
def flights(desk: Desk, broker: Broker) -> None:
    desk.order("admin_add_new_topic_record", topicName="flights", brokerId=1, numPartitions=2)
    broker.sync()


@pytest.mark.usefixtures("flights")
def test_groups_and_who_is_in_them(desk: Desk, stage: Stage) -> None:
    consumer = Consumer(stage, "a")
    consumer.register(topicCondition=["flights#UA"])
    consumer.heartbeat()
    consumer.heartbeat()
    assert desk.ask("admin_query_sub_info") == [
        {"consumeGroup": "g", "topicSet": ["flights"], "consumerNum": 1}
    ]
    assert desk.ask("admin_query_sub_info", groupName="x") == []
    assert desk.ask("admin_query_sub_info", topicName="weather") == []
    answer = desk.app.handle("admin_query_consume_group_detail", {"consumeGroup": "g"})
    assert answer["isBandConsume"] == "unbound"
    assert answer["filterConds"] == {"flights": ["UA"]}
    assert answer["count"] == 1
    assert answer["rebInfo"] == {
        "isRebalanced": True,
        "checkPasted": True,
        "defBClientRate": 1000,
        "confBClientRate": -2,
        "curBClientRate": 1,
    }
    assert answer["data"] == [
        {
            "consumerId": "a",
            "receivedFrom": "10.0.0.9",
            "isOverTLS": False,
            "parCount": 2,
            "parInfo": [
                {"partId": number, "brokerAddr": "1:10.0.0.1:8123", "topicName": "flights"}
                for number in (0, 1)
            ],
        }
    ]
    assert desk.ask("admin_query_group_info_by_topic", topicName="flights") == [
        {"topicName": "flights", "groupSet": ["g"], "groupCnt": 1}
    ]


@pytest.mark.usefixtures("flights")
def test_bound_groups_tell_more(desk: Desk, stage: Stage) -> None:
    Consumer(stage, "a").register(
        requireBound=True, sessionKey="k", totalCount=1, requiredPartition="1:flights:0=28"
    )
    answer: Any = desk.app.handle("admin_query_consume_group_detail", {"groupName": "g"})
    assert (answer["isBandConsume"], answer["sessionKey"]) == ("bound", "k")
    assert (answer["reqSourceCount"], answer["isNotAllocate"]) == (1, True)
    named = [{"partitionKey": "1:flights:0", "Offset": 28}]
    assert answer["data"][0]["initReSetPartInfo"] == named


def test_a_group_that_is_not_there_is_empty(desk: Desk) -> None:
    answer = desk.app.handle("admin_query_consume_group_detail", {"consumeGroup": "g"})
    assert (answer["result"], answer["data"], answer["count"]) == (True, [], 0)
    assert "consumeGroup is missing" in desk.refused("admin_query_consume_group_detail")


@pytest.mark.usefixtures("flights")
def test_choosers_can_be_told_to_go_on_from_the_end(desk: Desk, stage: Stage) -> None:
    from coherer._wire.tubemq import messages as pb

    stage.ask(
        20,
        pb.RegisterRequestC2MV2(
            clientId="a", groupName="g", hostName="h", sourceCount=-2, nodeId=-2,
            topicList=["flights"],
        ),
    )  # fmt: skip
    assert desk.ask("admin_query_client_balance_group_set") == ["g"]
    method = "admin_set_client_balance_group_consume_from_max"
    assert desk.order(method, groupName="g,other") == []
    group = stage.master.state.groups.get("g")
    assert group is not None
    assert group.from_max_id > 0
    answer: Any = desk.app.handle("admin_query_consume_group_detail", {"consumeGroup": "g"})
    assert (answer["isBandConsume"], answer["data"][0]["nodeId"]) == ("client-rebalance", -2)


def test_what_holds_for_a_group(desk: Desk) -> None:
    changes = {"groupName": "g", "resCheckEnable": "true", "alwdBrokerClientRate": 3}
    assert code(desk.order("admin_add_group_resctrl_info", **changes, qryPriorityId=302)) == [200]
    (control,) = desk.ask("admin_query_group_resctrl_info")
    assert set(control) == STAMP | {
        "groupName", "resCheckEnable", "alwdBrokerClientRate", "qryPriorityId", "flowCtrlEnable",
        "flowCtrlRuleCount", "flowCtrlInfo",
    }  # fmt: skip
    assert (control["alwdBrokerClientRate"], control["qryPriorityId"]) == (3, 302)
    rules = {"groupName": "g", "statusId": 1, "flowCtrlInfo": RULES}
    assert code(desk.order("admin_set_group_flow_control_rule", **rules)) == [200]
    (rule,) = desk.ask("admin_query_group_flow_control_rule", groupName="g")
    assert (rule["statusId"], rule["ruleCnt"]) == (1, 1)
    assert rule["flowCtrlInfo"][0]["type"] == 1
    desk.order("admin_rmv_group_flow_control_rule", groupName="g")
    assert desk.ask("admin_query_group_flow_control_rule")[0]["ruleCnt"] == 0
    assert code(desk.order("admin_delete_group_resctrl_info", groupName="g,x")) == [200, 401]
    assert "qryPriorityId" in desk.refused(
        "admin_add_group_resctrl_info", groupName="g", qryPriorityId=309
    )
    assert "flowCtrlInfo" in desk.refused(
        "admin_set_group_flow_control_rule", groupName="g", flowCtrlInfo="[{]"
    )


def test_what_a_group_may_read(desk: Desk) -> None:
    desk.order("admin_add_broker_configure", brokerId=1, brokerIp="h")
    desk.order("admin_add_new_topic_record", brokerId=1, topicName="flights")
    grant = {"topicName": "flights", "groupName": "g1,g2", "consumeEnable": "false"}
    outcomes = desk.order("admin_add_group_csmctrl_info", **grant, disableCsmRsn="no")
    assert [item["groupName"] for item in outcomes] == ["g1", "g2"]
    assert code(outcomes) == [200, 200]
    (right,) = desk.ask("admin_query_group_csmctrl_info", groupName="g1", topicName="flights")
    assert set(right) == STAMP | {
        "topicName", "groupName", "consumeEnable", "disableCsmRsn", "filterEnable", "filterConds",
    }  # fmt: skip
    assert (right["consumeEnable"], right["disableCsmRsn"]) == (False, "no")
    gone = desk.order("admin_delete_group_csmctrl_info", groupName="g1,x", topicName="flights")
    assert code(gone) == [200, 401]
    assert code(desk.order("admin_delete_group_csmctrl_info", groupName="g2")) == [200]


# -- cluster


def test_settings_of_the_cluster(desk: Desk) -> None:
    assert desk.ask("admin_query_cluster_default_setting") == []
    assert desk.ask("admin_query_def_flow_control_rule") == []
    (rule,) = desk.order("admin_set_def_flow_control_rule", flowCtrlInfo=RULES)
    assert (rule["statusId"], rule["ruleCnt"]) == (1, 1)
    (setting,) = desk.order(
        "admin_set_cluster_default_setting",
        maxMsgSizeInMB=2,
        brokerPort=9000,
        numPartitions=3,
        flowCtrlEnable="false",
    )
    assert set(setting) == PROPS | STAMP | {
        "brokerPort", "brokerTLSPort", "brokerWebPort", "maxMsgSizeInMB", "qryPriorityId",
        "flowCtrlEnable", "flowCtrlRuleCount", "flowCtrlInfo",
    }  # fmt: skip
    assert (setting["maxMsgSizeInMB"], setting["numPartitions"]) == (2, 3)
    assert (setting["flowCtrlEnable"], setting["flowCtrlRuleCount"]) == (False, 1)
    desk.order("admin_add_broker_configure", brokerId=1, brokerIp="h")
    (record,) = desk.ask("admin_query_broker_configure")
    assert (record["brokerPort"], record["numPartitions"]) == (9000, 3)
    (rule,) = desk.order("admin_rmv_def_flow_control_rule")
    assert rule["ruleCnt"] == 0


def test_what_the_master_is_and_can(desk: Desk, stage: Stage) -> None:
    (version,) = desk.ask("admin_query_server_version")
    assert version["version"].startswith("coherer-")
    methods = {row["method"]: row["needAuth"] for row in desk.ask("admin_get_methods")}
    assert methods["admin_add_broker_configure"]
    assert not methods["admin_query_sub_info"]
    answer: Any = desk.app.handle("admin_query_master_group_info", {})
    assert answer["data"][0]["statusInfo"]["nodeStatus"] == "MASTER"
    assert answer["groupStatus"] == "Running-ReadWrite"
    assert active_admin_url(stage.master) is None


def test_changes_say_who_makes_them(desk: Desk) -> None:
    for method, who in (("admin_add_broker_configure", "createUser"),
                        ("admin_online_broker_configure", "modifyUser")):  # fmt: skip
        params = {"confModAuthToken": "abc", "brokerId": "1", "brokerIp": "h"}
        answer = desk.app.handle(method, params)
        assert answer["errMsg"] == f"Parameter {who} is missing or value is blank!"


def test_a_standby_serves_nothing() -> None:
    stage = Stage(standby=True, active_admin_url="http://other:8080")
    desk = Desk(stage)
    answer = desk.app.handle("admin_query_broker_configure", {})
    assert (answer["errCode"], answer["errMsg"]) == (511, "127.0.0.1:8715 is not master now")
    assert active_admin_url(stage.master) == "http://other:8080"


# -- over sockets, with our own client


async def test_our_client_administers_our_master(stage: Stage, desk: Desk, broker: Broker) -> None:
    stage.master.watch(broker.sync)
    service = AdminService(desk.app, active_admin_url=lambda: active_admin_url(stage.master))
    listener = await net.listen("127.0.0.1", 0, service.make)
    admin = Admin(f"http://127.0.0.1:{listener.port}")
    await admin.create_topic("flights", 3, wait_ms=1_000)
    with pytest.raises(RefusedError, match="already"):
        await admin.create_topic("flights", 3)
    (topic,) = await admin.topics("flights")
    assert (topic.count, topic.writable, topic.readable) == (3, True, True)
    (state,) = await admin.brokers()
    assert (state.id, state.running, state.web_port) == (1, True, 8090)
    await admin.delete_topic("flights")
    assert stage.master.topics() == {}
    await listener.close()


def test_manage_statuses_have_javas_names() -> None:
    names = ["draft", "online", "only-read", "only-write", "offline"]
    assert [status.text for status in ManageStatus] == names
