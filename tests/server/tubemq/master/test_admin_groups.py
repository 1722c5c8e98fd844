"""The master's HTTP methods for groups and the cluster: Java's forms, and their effects."""

from __future__ import annotations

from typing import Any

import pytest

from coherer import _net as net
from coherer._client.tubemq.administration.admin import Admin
from coherer._rules.tubemq.records import ManageStatus
from coherer._server.http.service import AdminService
from coherer._server.tubemq.master.admin import active_admin_url
from coherer.errors import RefusedError
from tests.server.master_harness import (
    PROPS,
    RULES,
    STAMP,
    AdminCaller,
    Broker,
    Consumer,
    MasterHarness,
    code,
)

# -- groups


@pytest.fixture
def flights(admin: AdminCaller, broker: Broker) -> None:
    admin.order("admin_add_new_topic_record", topicName="flights", brokerId=1, numPartitions=2)
    broker.sync()


@pytest.mark.usefixtures("flights")
def test_groups_and_their_members(admin: AdminCaller, harness: MasterHarness) -> None:
    consumer = Consumer(harness, "a")
    consumer.register(topicCondition=["flights#UA"])
    consumer.heartbeat()
    consumer.heartbeat()
    assert admin.ask("admin_query_sub_info") == [
        {"consumeGroup": "g", "topicSet": ["flights"], "consumerNum": 1}
    ]
    assert admin.ask("admin_query_sub_info", groupName="x") == []
    assert admin.ask("admin_query_sub_info", topicName="weather") == []
    answer = admin.app.handle("admin_query_consume_group_detail", {"consumeGroup": "g"})
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
    assert admin.ask("admin_query_group_info_by_topic", topicName="flights") == [
        {"topicName": "flights", "groupSet": ["g"], "groupCnt": 1}
    ]


@pytest.mark.usefixtures("flights")
def test_the_details_of_bound_groups(admin: AdminCaller, harness: MasterHarness) -> None:
    Consumer(harness, "a").register(
        requireBound=True, sessionKey="k", totalCount=1, requiredPartition="1:flights:0=28"
    )
    answer: Any = admin.app.handle("admin_query_consume_group_detail", {"groupName": "g"})
    assert (answer["isBandConsume"], answer["sessionKey"]) == ("bound", "k")
    assert (answer["reqSourceCount"], answer["isNotAllocate"]) == (1, True)
    named = [{"partitionKey": "1:flights:0", "Offset": 28}]
    assert answer["data"][0]["initReSetPartInfo"] == named


def test_an_unknown_group_is_empty(admin: AdminCaller) -> None:
    answer = admin.app.handle("admin_query_consume_group_detail", {"consumeGroup": "g"})
    assert (answer["result"], answer["data"], answer["count"]) == (True, [], 0)
    assert "consumeGroup is missing" in admin.refused("admin_query_consume_group_detail")


@pytest.mark.usefixtures("flights")
def test_client_balanced_groups_can_be_moved_to_the_end(
    admin: AdminCaller, harness: MasterHarness
) -> None:
    from coherer._wire.tubemq import messages as pb

    harness.ask(
        20,
        pb.RegisterRequestC2MV2(
            clientId="a", groupName="g", hostName="h", sourceCount=-2, nodeId=-2,
            topicList=["flights"],
        ),
    )  # fmt: skip
    assert admin.ask("admin_query_client_balance_group_set") == ["g"]
    method = "admin_set_client_balance_group_consume_from_max"
    assert admin.order(method, groupName="g,other") == []
    group = harness.master.state.groups.get("g")
    assert group is not None
    assert group.from_max_id > 0
    answer: Any = admin.app.handle("admin_query_consume_group_detail", {"consumeGroup": "g"})
    assert (answer["isBandConsume"], answer["data"][0]["nodeId"]) == ("client-rebalance", -2)


def test_settings_of_a_group(admin: AdminCaller) -> None:
    changes = {"groupName": "g", "resCheckEnable": "true", "alwdBrokerClientRate": 3}
    assert code(admin.order("admin_add_group_resctrl_info", **changes, qryPriorityId=302)) == [200]
    (control,) = admin.ask("admin_query_group_resctrl_info")
    assert set(control) == STAMP | {
        "groupName", "resCheckEnable", "alwdBrokerClientRate", "qryPriorityId", "flowCtrlEnable",
        "flowCtrlRuleCount", "flowCtrlInfo",
    }  # fmt: skip
    assert (control["alwdBrokerClientRate"], control["qryPriorityId"]) == (3, 302)
    rules = {"groupName": "g", "statusId": 1, "flowCtrlInfo": RULES}
    assert code(admin.order("admin_set_group_flow_control_rule", **rules)) == [200]
    (rule,) = admin.ask("admin_query_group_flow_control_rule", groupName="g")
    assert (rule["statusId"], rule["ruleCnt"]) == (1, 1)
    assert rule["flowCtrlInfo"][0]["type"] == 1
    admin.order("admin_rmv_group_flow_control_rule", groupName="g")
    assert admin.ask("admin_query_group_flow_control_rule")[0]["ruleCnt"] == 0
    assert code(admin.order("admin_delete_group_resctrl_info", groupName="g,x")) == [200, 200]
    assert "qryPriorityId" in admin.refused(
        "admin_add_group_resctrl_info", groupName="g", qryPriorityId=309
    )
    for name in ("alwdBrokerClientRate", "qryPriorityId"):
        bad = {"groupName": "g", name: -1}
        assert name in admin.refused("admin_update_group_resctrl_info", **bad)
    assert "flowCtrlInfo" in admin.refused(
        "admin_set_group_flow_control_rule", groupName="g", flowCtrlInfo="[{]"
    )


def test_settings_are_added_once_and_changed_where_they_are(admin: AdminCaller) -> None:
    admin.order("admin_add_broker_configure", brokerId=1, brokerIp="h")
    admin.order("admin_add_new_topic_record", brokerId=1, topicName="flights")
    add, update = "admin_add_group_resctrl_info", "admin_update_group_resctrl_info"
    assert code(admin.order(update, groupName="g", alwdBrokerClientRate=1)) == [401]
    assert code(admin.order(add, groupName="g", alwdBrokerClientRate=2)) == [200]
    assert code(admin.order(add, groupName="g", alwdBrokerClientRate=3)) == [402]
    batch = {"groupResCtrlJsonSet": '[{"groupName": "g", "resCheckEnable": "true"}]'}
    assert code(admin.order("admin_batch_add_group_resctrl_info", **batch)) == [402]
    assert code(admin.order("admin_batch_update_group_resctrl_info", **batch)) == [200]
    (control,) = admin.ask("admin_query_group_resctrl_info")
    assert (control["alwdBrokerClientRate"], control["resCheckEnable"]) == (2, True)

    right = {"groupName": "reader", "topicName": "flights"}
    grant, change = "admin_add_group_csmctrl_info", "admin_update_group_csmctrl_info"
    assert code(admin.order(change, **right, consumeEnable="false")) == [401]
    assert code(admin.order(grant, **right)) == [200]
    assert code(admin.order(grant, **right, consumeEnable="false")) == [402]
    assert admin.ask("admin_query_group_csmctrl_info")[0]["consumeEnable"] is True
    assert code(admin.order(change, **right, consumeEnable="false")) == [200]
    # A group with rights has settings in Java.
    assert code(admin.order(add, groupName="reader")) == [402]
    assert code(admin.order(update, groupName="reader", alwdBrokerClientRate=4)) == [200]

    rules = {"groupName": "g,x", "flowCtrlInfo": RULES}
    assert code(admin.order("admin_upd_group_flow_control_rule", **rules)) == [200, 401]
    assert code(admin.order("admin_rmv_group_flow_control_rule", groupName="g,x")) == [200, 200]
    assert admin.ask("admin_query_group_resctrl_info", groupName="x") == []
    assert code(admin.order("admin_set_group_flow_control_rule", **rules)) == [200, 200]


def test_settings_of_groups_are_found_by_their_values(admin: AdminCaller) -> None:
    checked = {"resCheckEnable": "true", "alwdBrokerClientRate": 3, "qryPriorityId": 302}
    admin.order("admin_add_group_resctrl_info", groupName="a", **checked)
    admin.order("admin_add_group_resctrl_info", groupName="b", flowCtrlEnable="true")

    def found(method: str, **wanted: object) -> list[str]:
        return [row["groupName"] for row in admin.ask(method, **wanted)]

    settings, rules = "admin_query_group_resctrl_info", "admin_query_group_flow_control_rule"
    assert found(settings, resCheckEnable="true") == ["a"]
    assert found(settings, flowCtrlEnable="true", resCheckEnable="0") == ["b"]
    assert found(settings, qryPriorityId=302) == ["a"]
    assert admin.ask("admin_query_booked_resctrl_groups", flowCtrlEnable="true") == ["b"]
    assert found(rules, statusId=1) == ["b"]
    assert found(rules, statusId=0, qryPriorityId=302) == ["a"]
    assert found("admin_query_consume_group_setting", allowedBClientRate=3) == ["a"]
    assert "qryPriorityId" in admin.refused(settings, qryPriorityId=199)


def test_rights_are_found_by_their_values(admin: AdminCaller) -> None:
    admin.order("admin_add_broker_configure", brokerId=1, brokerIp="h")
    admin.order("admin_add_new_topic_record", brokerId=1, topicName="flights")
    grant = "admin_add_group_csmctrl_info"
    admin.order(grant, topicName="flights", groupName="a", consumeEnable="false")
    words = {"filterEnable": "true", "filterConds": "UA,AA"}
    admin.order(grant, topicName="flights", groupName="b", **words)

    def found(**wanted: object) -> list[str]:
        rows = admin.ask("admin_query_group_csmctrl_info", **wanted)
        assert admin.ask("admin_query_booked_csmctrl_groups", **wanted) == [
            row["groupName"] for row in rows
        ]
        return [row["groupName"] for row in rows]

    assert found(consumeEnable="false") == ["a"]
    assert found(filterEnable="true", consumeEnable="true") == ["b"]
    assert found(filterConds="AA") == found(filterConds="AA,UA") == ["b"]
    assert found(filterConds="AA,DL") == []


def test_rights_of_a_group(admin: AdminCaller) -> None:
    admin.order("admin_add_broker_configure", brokerId=1, brokerIp="h")
    admin.order("admin_add_new_topic_record", brokerId=1, topicName="flights")
    grant = {"topicName": "flights", "groupName": "g1,g2", "consumeEnable": "false"}
    outcomes = admin.order("admin_add_group_csmctrl_info", **grant, disableCsmRsn="no")
    assert [item["groupName"] for item in outcomes] == ["g1", "g2"]
    assert code(outcomes) == [200, 200]
    (right,) = admin.ask("admin_query_group_csmctrl_info", groupName="g1", topicName="flights")
    assert set(right) == STAMP | {
        "topicName", "groupName", "consumeEnable", "disableCsmRsn", "filterEnable", "filterConds",
    }  # fmt: skip
    assert (right["consumeEnable"], right["disableCsmRsn"]) == (False, "no")
    gone = admin.order("admin_delete_group_csmctrl_info", groupName="g1,x", topicName="flights")
    assert code(gone) == [200, 401]
    assert code(admin.order("admin_delete_group_csmctrl_info", groupName="g2")) == [200]


# -- cluster


def test_settings_of_the_cluster(admin: AdminCaller) -> None:
    assert admin.ask("admin_query_cluster_default_setting") == []
    assert admin.ask("admin_query_def_flow_control_rule") == []
    (rule,) = admin.order("admin_set_def_flow_control_rule", flowCtrlInfo=RULES)
    assert (rule["statusId"], rule["ruleCnt"]) == (0, 1)
    (rule,) = admin.order("admin_upd_def_flow_control_rule", statusId=1)
    assert (rule["statusId"], rule["ruleCnt"]) == (1, 1)
    assert "statusId" in admin.refused("admin_upd_def_flow_control_rule", statusId=2)
    (setting,) = admin.order(
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
    admin.order("admin_add_broker_configure", brokerId=1, brokerIp="h")
    (record,) = admin.ask("admin_query_broker_configure")
    assert (record["brokerPort"], record["numPartitions"]) == (9000, 3)
    (rule,) = admin.order("admin_rmv_def_flow_control_rule")
    assert rule["ruleCnt"] == 0


def test_settings_of_the_cluster_are_set_and_changed_by_different_parameters(
    admin: AdminCaller,
) -> None:
    token = {"confModAuthToken": "abc"}
    for method, who in (
        ("admin_set_cluster_default_setting", "createUser"),
        ("admin_update_cluster_default_setting", "modifyUser"),
        ("admin_set_def_flow_control_rule", "createUser"),
        ("admin_upd_def_flow_control_rule", "modifyUser"),
        ("admin_rmv_def_flow_control_rule", "modifyUser"),
    ):
        answer = admin.app.handle(method, {**token, who: "ann", "qryPriorityId": "303"})
        assert answer["result"] is True, answer
        other = {"createUser": "modifyUser", "modifyUser": "createUser"}[who]
        answer = admin.app.handle(method, {**token, other: "ann"})
        assert answer["errMsg"] == f"Parameter {who} is missing or value is blank!"


def test_the_version_and_methods_of_the_master(admin: AdminCaller, harness: MasterHarness) -> None:
    (version,) = admin.ask("admin_query_server_version")
    assert version["version"].startswith("coherer-")
    methods = {row["method"]: row["needAuth"] for row in admin.ask("admin_get_methods")}
    assert methods["admin_add_broker_configure"]
    assert not methods["admin_query_sub_info"]
    answer: Any = admin.app.handle("admin_query_master_group_info", {})
    assert answer["data"][0]["statusInfo"]["nodeStatus"] == "MASTER"
    assert answer["groupStatus"] == "Running-ReadWrite"
    assert active_admin_url(harness.master) is None


def test_changes_name_their_author(admin: AdminCaller) -> None:
    for method, who in (("admin_add_broker_configure", "createUser"),
                        ("admin_online_broker_configure", "modifyUser")):  # fmt: skip
        params = {"confModAuthToken": "abc", "brokerId": "1", "brokerIp": "h"}
        answer = admin.app.handle(method, params)
        assert answer["errMsg"] == f"Parameter {who} is missing or value is blank!"


def test_a_standby_serves_nothing() -> None:
    harness = MasterHarness(standby=True, active_admin_url="http://other:8080")
    admin = AdminCaller(harness)
    answer = admin.app.handle("admin_query_broker_configure", {})
    assert (answer["errCode"], answer["errMsg"]) == (511, "127.0.0.1:8715 is not master now")
    assert active_admin_url(harness.master) == "http://other:8080"


# -- over sockets, with the admin client


async def test_the_admin_client_works_with_the_master(
    harness: MasterHarness, admin: AdminCaller, broker: Broker
) -> None:
    harness.master.watch(broker.sync)
    service = AdminService(admin.app, active_admin_url=lambda: active_admin_url(harness.master))
    listener = await net.listen("127.0.0.1", 0, service.make)
    admin = Admin(f"http://127.0.0.1:{listener.port}")
    await admin.topics.create("flights", 3, wait_ms=1_000)
    with pytest.raises(RefusedError, match="already"):
        await admin.topics.create("flights", 3)
    (topic,) = await admin.topics.list("flights")
    assert (topic.partitions, topic.writable, topic.readable) == (3, True, True)
    (state,) = await admin.brokers.list()
    assert (state.id, state.status, state.web_port) == (1, "running", 8090)
    await admin.topics.delete("flights")
    assert harness.master.topics() == {}
    await listener.close()


def test_manage_statuses_have_javas_names() -> None:
    names = ["draft", "online", "only-read", "only-write", "offline"]
    assert [status.text for status in ManageStatus] == names
