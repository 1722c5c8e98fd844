"""The master's methods over HTTP: Java's forms, and what they do."""

from __future__ import annotations

from typing import Any

import pytest
from master_stage import Broker, Consumer, Producer, Stage

from coherer import net
from coherer.broker.configuration import ManageStatus
from coherer.client.admin import Admin
from coherer.errors import RefusedError
from coherer.server.admin import AdminApp, AdminService
from coherer.server.tubemq.master.admin import elsewhere, master_admin

PROPS = {
    "numTopicStores", "numPartitions", "unflushThreshold", "unflushInterval", "unflushDataHold",
    "memCacheMsgSizeInMB", "memCacheMsgCntInK", "memCacheFlushIntvl", "acceptPublish",
    "acceptSubscribe", "deletePolicy", "dataStoreType", "dataPath",
}  # fmt: skip
STAMP = {"dataVersionId", "serialId", "createUser", "createDate", "modifyUser", "modifyDate"}
DEPLOYMENT = PROPS | STAMP | {
    "topicName", "brokerId", "topicNameId", "brokerIp", "brokerPort", "topicStatusId",
}  # fmt: skip
TOTALS = {
    "infoCount", "totalCfgNumPart", "isSrvAcceptPublish", "isSrvAcceptSubscribe",
    "totalRunNumPartCount",
}  # fmt: skip
RULES = '[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]}]'


class Desk:
    """Asks and orders, as an administrator would."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.app: AdminApp = master_admin(stage.master)

    def ask(self, method: str, **params: object) -> list[Any]:
        answer = self.app.handle(method, {name: str(value) for name, value in params.items()})
        assert answer["result"] is True, answer
        data = answer["data"]
        assert isinstance(data, list)
        assert answer.get("count", len(data)) == len(data)
        return data

    def order(self, method: str, **params: object) -> list[Any]:
        who = {"confModAuthToken": "abc", "createUser": "ann", "modifyUser": "ann"}
        return self.ask(method, **who, **params)

    def refused(self, method: str, **params: object) -> str:
        who = {"confModAuthToken": "abc", "createUser": "ann", "modifyUser": "ann"}
        answer = self.app.handle(method, {**who, **{k: str(v) for k, v in params.items()}})
        assert answer["result"] is False
        assert answer["errCode"] == 400
        return str(answer["errMsg"])


@pytest.fixture
def stage() -> Stage:
    return Stage(auto_add_brokers=False)


@pytest.fixture
def desk(stage: Stage) -> Desk:
    return Desk(stage)


@pytest.fixture
def broker(desk: Desk) -> Broker:
    """A broker as Java wants it: added, online, started."""
    desk.order("admin_add_broker_configure", brokerId=1, brokerIp="10.0.0.1", brokerWebPort=8090)
    desk.order("admin_online_broker_configure", brokerId=1)
    return desk.stage.broker()


def code(outcomes: list[Any]) -> list[int]:
    assert all(item["success"] == (item["errCode"] == 200) for item in outcomes)
    return [item["errCode"] for item in outcomes]


# -- brokers


def test_the_way_of_a_broker_in(desk: Desk, stage: Stage) -> None:
    where = {"brokerId": 1, "brokerIp": "10.0.0.1"}
    assert desk.order("admin_add_broker_configure", **where) == [
        {"brokerId": 1, "brokerIp": "10.0.0.1", "success": True, "errCode": 200, "errInfo": "Ok!"}
    ]
    assert code(desk.order("admin_add_broker_configure", **where)) == [402]
    assert not Broker(stage, 1).register().success, "a draft may not register"
    assert code(desk.order("admin_online_broker_configure", brokerId="1,7")) == [200, 401]
    assert code(desk.order("admin_online_broker_configure", brokerId=1)) == [403]
    stage.broker()
    (status,) = desk.ask("admin_query_broker_run_status")
    assert set(status) == {
        "brokerId", "brokerIp", "brokerPort", "brokerWebPort", "manageStatus", "brokerTLSPort",
        "enableTLS", "isRepAbnormal", "isAutoForbidden", "runStatus", "subStatus",
        "isConfChanged", "isConfLoaded", "isBrokerOnline", "brokerVersion", "acceptPublish",
        "acceptSubscribe",
    }  # fmt: skip
    assert (status["runStatus"], status["subStatus"], status["isBrokerOnline"]) == (
        "running",
        "idle",
        "true",
    )


def test_a_brokers_record_has_javas_form(desk: Desk, broker: Broker) -> None:
    (record,) = desk.ask("admin_query_broker_configure")
    assert set(record) == PROPS | STAMP | {
        "brokerId", "brokerIp", "brokerPort", "brokerTLSPort", "brokerWebPort", "manageStatus",
        "isConfChanged", "isConfLoaded", "regionId", "groupId",
    }  # fmt: skip
    assert (record["manageStatus"], record["brokerWebPort"]) == ("online", 8090)
    assert len(record["createDate"]) == 14
    assert record["createUser"] == "ann"
    (record,) = desk.ask("admin_query_broker_configure", withTopic="true")
    assert [topic["topicName"] for topic in record["topicSet"]] == ["__offset_history__"]
    assert set(record["topicSet"][0]) == DEPLOYMENT
    assert desk.ask("admin_query_broker_configure", brokerId=7) == []
    assert desk.ask("admin_query_broker_configure", brokerIp="10.0.0.2") == []
    assert desk.ask("admin_query_broker_configure", topicName="flights") == []


def test_a_broker_that_is_away(desk: Desk, broker: Broker) -> None:
    broker.close()
    (status,) = desk.ask("admin_query_broker_run_status")
    assert (status["runStatus"], status["acceptPublish"]) == ("unRegister", "-")
    desk.order("admin_add_broker_configure", brokerId=2, brokerIp="10.0.0.2")
    assert desk.ask("admin_query_broker_run_status", brokerId=2)[0]["runStatus"] == "-"


def test_a_broker_that_has_news_to_take(desk: Desk, broker: Broker) -> None:
    desk.order("admin_add_new_topic_record", topicName="flights", brokerId=1)
    (status,) = desk.ask("admin_query_broker_run_status")
    assert (status["subStatus"], status["stepOp"]) == ("processing_event", 3)
    broker.sync()
    assert desk.ask("admin_query_broker_run_status")[0]["subStatus"] == "idle"


def test_brokers_are_opened_and_closed(desk: Desk, broker: Broker) -> None:
    def status() -> str:
        return str(desk.ask("admin_query_broker_configure")[0]["manageStatus"])

    def open_(**flags: str) -> list[int]:
        return code(desk.order("admin_set_broker_read_or_write", brokerId=1, **flags))

    assert open_(acceptPublish="false") == [200]
    assert status() == "only-read"
    assert open_(acceptPublish="false") == [403]
    assert open_(acceptPublish="true", acceptSubscribe="false") == [200]
    assert status() == "only-write"
    assert code(desk.order("admin_offline_broker_configure", brokerId=1)) == [200]
    assert status() == "offline"
    assert code(desk.order("admin_reload_broker_configure", brokerId="1,7")) == [200, 401]


def test_a_stopped_broker_is_released(desk: Desk, broker: Broker) -> None:
    broker.status = -1, 0
    broker.heartbeat()
    (status,) = desk.ask("admin_query_broker_run_status", onlyAutoForbidden="true")
    assert (status["isRepAbnormal"], status["isAutoForbidden"]) == (True, True)
    assert desk.order("admin_release_broker_autoforbidden_status", brokerId=1) == []
    assert desk.ask("admin_query_broker_run_status", onlyAutoForbidden="true") == []
    assert desk.ask("admin_query_broker_run_status", onlyEnableTLS="true") == []


def test_a_brokers_record_is_changed_and_removed(desk: Desk, broker: Broker) -> None:
    changed = desk.order("admin_update_broker_configure", brokerId=1, numPartitions=3)
    assert code(changed) == [200]
    assert broker.heartbeat().brokerDefaultConfInfo.startswith("3:true")
    assert code(desk.order("admin_update_broker_configure", brokerId=1)) == [403]
    assert code(desk.order("admin_delete_broker_configure", brokerId=1)) == [406]
    desk.order("admin_offline_broker_configure", brokerId=1)
    assert code(desk.order("admin_delete_broker_configure", brokerId=1)) == [200]
    assert desk.ask("admin_query_broker_configure") == []


def test_a_brokers_id_may_come_from_its_address(desk: Desk) -> None:
    (outcome,) = desk.order("admin_add_broker_configure", brokerIp="10.0.0.1")
    assert outcome["brokerId"] == 10 << 24 | 1
    (outcome,) = desk.order("admin_add_broker_configure", brokerIp="192.168.0.1")
    assert outcome["brokerId"] == 2**32 - (192 << 24 | 168 << 16 | 1)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"brokerId": 1}, "brokerIp is missing"),
        ({"brokerId": "x", "brokerIp": "h"}, "only contain numbers"),
        ({"brokerIp": "host.example"}, "brokerId is missing"),
        ({"brokerIp": "10.0.0.999"}, "brokerId is missing"),
        ({"brokerId": 1, "brokerIp": "h", "brokerPort": 70000}, "1..65535"),
    ],
)
def test_what_is_no_broker(desk: Desk, params: dict[str, object], text: str) -> None:
    assert text in desk.refused("admin_add_broker_configure", **params)


# -- topics


def test_the_way_of_a_topic(desk: Desk, broker: Broker, stage: Stage) -> None:
    where = {"topicName": "flights", "brokerId": 1}
    assert desk.order("admin_add_new_topic_record", **where, numPartitions=3) == [
        {"brokerId": 1, "topicName": "flights", "success": True, "errCode": 200, "errInfo": "Ok!"}
    ]
    (topic,) = desk.ask("admin_query_topic_info", topicName="flights")
    assert (topic["isSrvAcceptPublish"], topic["topicInfo"][0]["runInfo"]["numPartitions"]) == (
        False,
        "-",
    )
    broker.sync()
    (topic,) = desk.ask("admin_query_topic_info", topicName="flights")
    assert set(topic) == TOTALS | {"topicName", "maxMsgSizeInMB", "topicInfo", "authData"}
    assert set(topic["topicInfo"][0]) == DEPLOYMENT | {"runInfo"}
    assert topic["topicInfo"][0]["runInfo"] == {
        "acceptPublish": True,
        "acceptSubscribe": True,
        "numPartitions": 3,
        "numTopicStores": 1,
        "brokerManageStatus": "online",
    }
    assert (topic["isSrvAcceptPublish"], topic["totalRunNumPartCount"]) == (True, 3)
    more = desk.order("admin_modify_topic_info", **where, numPartitions=4, acceptPublish="false")
    assert code(more) == [200]
    assert code(desk.order("admin_modify_topic_info", **where, numPartitions=2)) == [407]
    assert code(desk.order("admin_modify_topic_info", **where)) == [403]
    assert code(desk.order("admin_delete_topic_info", **where)) == [200]
    assert code(desk.order("admin_redo_deleted_topic_info", **where)) == [200]
    assert code(desk.order("admin_remove_topic_info", **where)) == [200]
    assert code(desk.order("admin_delete_topic_info", **where)) == [406]
    assert desk.ask("admin_query_topic_info", topicStatusId=0, topicName="flights") == []
    broker.removed = ["flights"]
    broker.heartbeat()
    assert desk.ask("admin_query_topic_info", topicName="flights") == []
    assert stage.master.topics() == {}


@pytest.mark.parametrize(
    ("params", "codes"),
    [
        ({"topicName": "weather", "brokerId": "1,5"}, [200, 401]),
        ({"topicName": "flights,weather", "brokerId": "1"}, [402, 200]),
        ({"topicName": "2013", "brokerId": "1"}, [407]),
        ({"topicName": "weather", "brokerId": "1", "numPartitions": 0}, [407]),
        ({"topicName": "weather", "brokerId": "1", "deletePolicy": "never"}, [407]),
    ],
)
def test_what_becomes_of_each_topic(
    desk: Desk, broker: Broker, params: dict[str, object], codes: list[int]
) -> None:
    desk.order("admin_add_new_topic_record", topicName="flights", brokerId=1)
    assert code(desk.order("admin_add_topic_deploy_info", **params)) == codes


def test_too_many_topics_in_one_call(desk: Desk, broker: Broker) -> None:
    names = ",".join(f"t{number}" for number in range(101))
    text = desk.refused("admin_add_new_topic_record", topicName=names, brokerId=1)
    assert text == "101 records; 100 are allowed in one call"


def test_views_of_topics(desk: Desk, broker: Broker) -> None:
    desk.order("admin_add_new_topic_record", topicName="flights", brokerId=1, numPartitions=3)
    broker.sync()
    (view,) = desk.ask("admin_query_cluster_topic_view", topicName="flights")
    assert view == {
        "topicName": "flights",
        "totalCfgBrokerCnt": 1,
        "totalCfgNumStore": 1,
        "totalRunNumStore": 1,
        "totalCfgNumPart": 3,
        "totalRunNumPartCount": 3,
        "isSrvAcceptPublish": True,
        "isSrvAcceptSubscribe": True,
        "enableAuthControl": False,
    }
    (topics,) = desk.ask("admin_query_deployed_topics")
    assert topics == {
        "brokerId": 1,
        "topicName": ["__offset_history__", "flights"],
        "topicCount": 2,
    }
    assert desk.ask("admin_query_deployed_topics", brokerId=2) == []
    (where,) = desk.ask("admin_query_deployed_broker_ids", topicName="flights")
    assert where == {"topicName": "flights", "brokerInfo": [1], "brokerCnt": 1}
    (where,) = desk.ask("admin_query_deployed_broker_ids", topicName="flights", withIp="true")
    assert where["brokerInfo"] == [{"brokerId": 1, "brokerIp": "10.0.0.1"}]
    (deployed,) = desk.ask("admin_query_topic_deploy_info", topicName="flights")
    assert set(deployed) == TOTALS | STAMP | {
        "topicName", "topicNameId", "enableAuthControl", "maxMsgSizeInMB", "deployInfo",
    }  # fmt: skip
    (record,) = desk.ask("admin_query_topic_deploy_configure", topicName="flights")
    assert set(record) == DEPLOYMENT


def test_what_holds_for_a_topic_everywhere(desk: Desk, broker: Broker, stage: Stage) -> None:
    desk.order("admin_add_new_topic_record", topicName="flights", brokerId=1)
    broker.sync()
    changes = {"topicName": "flights", "enableAuthControl": "true", "maxMsgSizeInMB": 2}
    assert code(desk.order("admin_update_topic_control_info", **changes, topicNameId=9)) == [200]
    assert code(desk.order("admin_update_topic_control_info", topicName="x")) == [401]
    assert "1..20" in desk.refused(
        "admin_update_topic_control_info", topicName="flights", maxMsgSizeInMB=21
    )
    (control,) = desk.ask("admin_query_topic_control_info", topicName="flights")
    assert (control["topicNameId"], control["maxMsgSizeInMB"]) == (9, 2)
    grant = {"topicName": "flights", "groupName": "g", "filterEnable": "true"}
    desk.order("admin_add_group_csmctrl_info", **grant, filterConds="UA,AA")
    (topic,) = desk.ask("admin_query_topic_info", topicName="flights")
    rights = topic["authData"]
    assert rights["groupCount"] == rights["filterCount"] == 1
    assert rights["authFilterCondSet"][0]["filterConds"] == ",AA,UA,"
    assert topic["maxMsgSizeInMB"] == 2
    desk.order("admin_set_topic_authorize_control", topicName="flights", isEnable="false")
    assert desk.ask("admin_query_topic_info", topicName="flights")[0]["authData"] == {}
    producer = Producer(stage)
    producer.register()
    assert list(producer.publish("flights").topicInfos) == [f"flights#1:1:1#{2 * 1024 * 1024}"]


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
    from coherer.tubemq import messages as pb

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
    assert elsewhere(stage.master) is None


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
    assert elsewhere(stage.master) == "http://other:8080"


# -- over sockets, with our own client


async def test_our_client_administers_our_master(stage: Stage, desk: Desk, broker: Broker) -> None:
    stage.master.watch(broker.sync)
    service = AdminService(desk.app, elsewhere=lambda: elsewhere(stage.master))
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
