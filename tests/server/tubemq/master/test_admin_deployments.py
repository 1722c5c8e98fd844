"""The master's HTTP methods for brokers and topics: Java's forms, and their effects."""

from __future__ import annotations

import pytest

from tests.server.master_harness import (
    DEPLOYMENT,
    PROPS,
    STAMP,
    TOTALS,
    AdminCaller,
    Broker,
    MasterHarness,
    Producer,
    code,
)

# -- brokers


def test_how_a_broker_is_added(admin: AdminCaller, harness: MasterHarness) -> None:
    where = {"brokerId": 1, "brokerIp": "10.0.0.1"}
    assert admin.order("admin_add_broker_configure", **where) == [
        {"brokerId": 1, "brokerIp": "10.0.0.1", "success": True, "errCode": 200, "errInfo": "Ok!"}
    ]
    assert code(admin.order("admin_add_broker_configure", **where)) == [402]
    assert not Broker(harness, 1).register().success, "a draft cannot register"
    assert code(admin.order("admin_online_broker_configure", brokerId="1,7")) == [200, 401]
    assert code(admin.order("admin_online_broker_configure", brokerId=1)) == [403]
    harness.broker()
    (status,) = admin.ask("admin_query_broker_run_status")
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


def test_a_brokers_record_has_javas_form(admin: AdminCaller, broker: Broker) -> None:
    (record,) = admin.ask("admin_query_broker_configure")
    assert set(record) == PROPS | STAMP | {
        "brokerId", "brokerIp", "brokerPort", "brokerTLSPort", "brokerWebPort", "manageStatus",
        "isConfChanged", "isConfLoaded", "regionId", "groupId",
    }  # fmt: skip
    assert (record["manageStatus"], record["brokerWebPort"]) == ("online", 8090)
    assert len(record["createDate"]) == 14
    assert record["createUser"] == "ann"
    (record,) = admin.ask("admin_query_broker_configure", withTopic="true")
    assert [topic["topicName"] for topic in record["topicSet"]] == ["__offset_history__"]
    assert set(record["topicSet"][0]) == DEPLOYMENT
    assert admin.ask("admin_query_broker_configure", brokerId=7) == []
    assert admin.ask("admin_query_broker_configure", brokerIp="10.0.0.2") == []
    assert admin.ask("admin_query_broker_configure", topicName="flights") == []


def test_a_broker_that_is_away(admin: AdminCaller, broker: Broker) -> None:
    broker.close()
    (status,) = admin.ask("admin_query_broker_run_status")
    assert (status["runStatus"], status["acceptPublish"]) == ("unRegister", "-")
    admin.order("admin_add_broker_configure", brokerId=2, brokerIp="10.0.0.2")
    assert admin.ask("admin_query_broker_run_status", brokerId=2)[0]["runStatus"] == "-"


def test_a_broker_with_a_pending_configuration(admin: AdminCaller, broker: Broker) -> None:
    admin.order("admin_add_new_topic_record", topicName="flights", brokerId=1)
    (status,) = admin.ask("admin_query_broker_run_status")
    assert (status["subStatus"], status["stepOp"]) == ("processing_event", 3)
    broker.sync()
    assert admin.ask("admin_query_broker_run_status")[0]["subStatus"] == "idle"


def test_brokers_are_permitted_to_read_and_write(admin: AdminCaller, broker: Broker) -> None:
    def status() -> str:
        return str(admin.ask("admin_query_broker_configure")[0]["manageStatus"])

    def open_(**flags: str) -> list[int]:
        return code(admin.order("admin_set_broker_read_or_write", brokerId=1, **flags))

    assert open_(acceptPublish="false") == [200]
    assert status() == "only-read"
    assert open_(acceptPublish="false") == [403]
    assert open_(acceptPublish="true", acceptSubscribe="false") == [200]
    assert status() == "only-write"
    assert code(admin.order("admin_offline_broker_configure", brokerId=1)) == [200]
    assert status() == "offline"
    assert code(admin.order("admin_reload_broker_configure", brokerId="1,7")) == [406, 401]
    assert code(admin.order("admin_online_broker_configure", brokerId=1)) == [200]
    assert code(admin.order("admin_reload_broker_configure", brokerId=1)) == [200]


def test_a_stopped_broker_is_released(admin: AdminCaller, broker: Broker) -> None:
    broker.status = -1, 0
    broker.heartbeat()
    (status,) = admin.ask("admin_query_broker_run_status", onlyAutoForbidden="true")
    assert (status["isRepAbnormal"], status["isAutoForbidden"]) == (True, True)
    assert admin.order("admin_release_broker_autoforbidden_status", brokerId=1) == []
    assert admin.ask("admin_query_broker_run_status", onlyAutoForbidden="true") == []
    assert admin.ask("admin_query_broker_run_status", onlyEnableTLS="true") == []


def test_a_brokers_record_is_changed_and_removed(admin: AdminCaller, broker: Broker) -> None:
    changed = admin.order("admin_update_broker_configure", brokerId=1, numPartitions=3)
    assert code(changed) == [200]
    assert broker.heartbeat().brokerDefaultConfInfo.startswith("3:true")
    assert code(admin.order("admin_update_broker_configure", brokerId=1)) == [403]
    assert code(admin.order("admin_delete_broker_configure", brokerId=1)) == [406]
    admin.order("admin_offline_broker_configure", brokerId=1)
    assert code(admin.order("admin_delete_broker_configure", brokerId="1,7")) == [200, 200]
    assert admin.ask("admin_query_broker_configure") == []


def test_a_brokers_id_may_come_from_its_address(admin: AdminCaller) -> None:
    (outcome,) = admin.order("admin_add_broker_configure", brokerIp="10.0.0.1")
    assert outcome["brokerId"] == 10 << 24 | 1
    (outcome,) = admin.order("admin_add_broker_configure", brokerIp="192.168.0.1")
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
def test_invalid_brokers(admin: AdminCaller, params: dict[str, object], text: str) -> None:
    assert text in admin.refused("admin_add_broker_configure", **params)


# -- topics


def test_how_a_topic_is_deleted_over_http(
    admin: AdminCaller, broker: Broker, harness: MasterHarness
) -> None:
    where = {"topicName": "flights", "brokerId": 1}
    assert admin.order("admin_add_new_topic_record", **where, numPartitions=3) == [
        {"brokerId": 1, "topicName": "flights", "success": True, "errCode": 200, "errInfo": "Ok!"}
    ]
    (topic,) = admin.ask("admin_query_topic_info", topicName="flights")
    assert (topic["isSrvAcceptPublish"], topic["topicInfo"][0]["runInfo"]["numPartitions"]) == (
        False,
        "-",
    )
    broker.sync()
    (topic,) = admin.ask("admin_query_topic_info", topicName="flights")
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
    more = admin.order("admin_modify_topic_info", **where, numPartitions=4, acceptPublish="false")
    assert code(more) == [200]
    assert code(admin.order("admin_modify_topic_info", **where, numPartitions=2)) == [407]
    assert code(admin.order("admin_modify_topic_info", **where)) == [403]
    assert code(admin.order("admin_delete_topic_info", **where)) == [200]
    for _ in range(2):
        assert code(admin.order("admin_redo_deleted_topic_info", **where)) == [200]
    assert code(admin.order("admin_remove_topic_info", **where)) == [200]
    assert code(admin.order("admin_delete_topic_info", **where)) == [406]
    assert admin.ask("admin_query_topic_info", topicStatusId=0, topicName="flights") == []
    broker.removed = ["flights"]
    broker.heartbeat()
    assert admin.ask("admin_query_topic_info", topicName="flights") == []
    assert harness.master.topics() == {}


@pytest.mark.parametrize(
    ("params", "codes"),
    [
        ({"topicName": "weather", "brokerId": "1,5"}, [200, 401]),
        ({"topicName": "flights,weather", "brokerId": "1"}, [402, 200]),
        ({"topicName": "2013", "brokerId": "1"}, [407]),
    ],
)
def test_the_outcome_of_each_topic(
    admin: AdminCaller, broker: Broker, params: dict[str, object], codes: list[int]
) -> None:
    admin.order("admin_add_new_topic_record", topicName="flights", brokerId=1)
    assert code(admin.order("admin_add_topic_deploy_info", **params)) == codes


OUT_OF_RANGE = {
    "numPartitions": 0, "numTopicStores": -1, "memCacheMsgSizeInMB": 2049, "unflushInterval": 0,
    "memCacheFlushIntvl": 5, "deletePolicy": "never", "regionId": -1,
}  # fmt: skip


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_call_with_a_value_out_of_range_is_refused(
    admin: AdminCaller, broker: Broker, name: str
) -> None:
    bad = {name: OUT_OF_RANGE[name]}
    admin.refused("admin_update_broker_configure", brokerId=1, **bad)
    admin.refused("admin_query_broker_configure", **bad)
    if name != "regionId":
        admin.refused("admin_add_new_topic_record", topicName="flights", brokerId=1, **bad)
        admin.refused("admin_query_topic_info", **bad)
        admin.refused("admin_update_cluster_default_setting", **bad)


def test_a_broker_has_a_port_of_its_own_for_http(admin: AdminCaller, broker: Broker) -> None:
    where = {"brokerId": 2, "brokerIp": "10.0.0.2"}
    add, update = "admin_add_broker_configure", "admin_update_broker_configure"
    assert code(admin.order(add, **where, brokerPort=8081)) == [407]
    assert code(admin.order(add, **where, brokerPort=9000, brokerTLSPort=9000)) == [200]
    assert code(admin.order(update, brokerId=2, brokerWebPort=9000)) == [407]
    assert admin.ask("admin_query_broker_configure", brokerId=2)[0]["brokerWebPort"] == 8081
    assert "brokerWebPort" in admin.refused("admin_set_cluster_default_setting", brokerPort=8081)
    assert admin.ask("admin_query_cluster_default_setting") == []


def test_brokers_are_found_by_their_values(admin: AdminCaller, broker: Broker) -> None:
    where = {"brokerId": 2, "brokerIp": "10.0.0.2", "brokerPort": 9123, "regionId": 3}
    admin.order("admin_add_broker_configure", **where, numPartitions=5, deletePolicy="delete,72")
    admin.order("admin_add_new_topic_record", topicName="flights", brokerId=2)

    def found(**wanted: object) -> list[int]:
        return [row["brokerId"] for row in admin.ask("admin_query_broker_configure", **wanted)]

    for wanted in (
        {"brokerPort": 9123}, {"regionId": 3}, {"numPartitions": 5}, {"deletePolicy": "delete,72h"},
        {"manageStatus": "draft"}, {"topicName": "flights"}, {"topicStatusId": 0, "brokerId": 2},
    ):  # fmt: skip
        assert found(**wanted) == [2], wanted
    assert found(topicName="flights", isInclude="false") == [1]
    assert found(manageStatus="online", brokerPort=9123) == []
    assert found(topicStatusId=1) == []
    assert "online" in admin.refused("admin_query_broker_configure", manageStatus="up")


@pytest.mark.parametrize(
    "method",
    [
        "admin_query_topic_info",
        "admin_query_topic_deploy_info",
        "admin_query_topic_deploy_configure",
    ],
)
def test_topics_are_found_by_their_values(admin: AdminCaller, broker: Broker, method: str) -> None:
    admin.order("admin_add_new_topic_record", topicName="a", brokerId=1, numPartitions=3)
    more = {"numTopicStores": 2, "acceptPublish": "false"}
    admin.order("admin_add_new_topic_record", topicName="b", brokerId=1, **more)

    def found(**wanted: object) -> list[str]:
        return [row["topicName"] for row in admin.ask(method, topicName="a,b", **wanted)]

    assert found(numPartitions=3) == ["a"]
    assert found(numTopicStores=2, acceptPublish="false", brokerPort=8123) == ["b"]
    assert found(acceptPublish="true", brokerPort=8123) == ["a"]
    assert found(brokerPort=9) == []


def test_too_many_topics_in_one_call(admin: AdminCaller, broker: Broker) -> None:
    names = ",".join(f"t{number}" for number in range(101))
    text = admin.refused("admin_add_new_topic_record", topicName=names, brokerId=1)
    assert text == "101 records; 100 are allowed in one call"


def test_views_of_topics(admin: AdminCaller, broker: Broker) -> None:
    admin.order("admin_add_new_topic_record", topicName="flights", brokerId=1, numPartitions=3)
    broker.sync()
    (view,) = admin.ask("admin_query_cluster_topic_view", topicName="flights")
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
    (topics,) = admin.ask("admin_query_deployed_topics")
    assert topics == {
        "brokerId": 1,
        "topicName": ["__offset_history__", "flights"],
        "topicCount": 2,
    }
    assert admin.ask("admin_query_deployed_topics", brokerId=2) == [
        {"brokerId": 2, "topicName": [], "topicCount": 0}
    ]
    (where,) = admin.ask("admin_query_deployed_broker_ids", topicName="flights")
    assert where == {"topicName": "flights", "brokerInfo": [1], "brokerCnt": 1}
    (where,) = admin.ask("admin_query_deployed_broker_ids", topicName="flights", withIp="true")
    assert where["brokerInfo"] == [{"brokerId": 1, "brokerIp": "10.0.0.1"}]
    (deployed,) = admin.ask("admin_query_topic_deploy_info", topicName="flights")
    assert set(deployed) == TOTALS | STAMP | {
        "topicName", "topicNameId", "enableAuthControl", "maxMsgSizeInMB", "deployInfo",
    }  # fmt: skip
    (record,) = admin.ask("admin_query_topic_deploy_configure", topicName="flights")
    assert set(record) == DEPLOYMENT


def test_settings_of_a_topic(admin: AdminCaller, broker: Broker, harness: MasterHarness) -> None:
    admin.order("admin_add_new_topic_record", topicName="flights", brokerId=1)
    broker.sync()
    changes = {"topicName": "flights", "enableAuthControl": "true", "maxMsgSizeInMB": 2}
    assert code(admin.order("admin_update_topic_control_info", **changes, topicNameId=9)) == [200]
    assert code(admin.order("admin_update_topic_control_info", topicName="x")) == [401]
    assert "1..20" in admin.refused(
        "admin_update_topic_control_info", topicName="flights", maxMsgSizeInMB=21
    )
    (control,) = admin.ask("admin_query_topic_control_info", topicName="flights")
    assert (control["topicNameId"], control["maxMsgSizeInMB"]) == (9, 2)
    grant = {"topicName": "flights", "groupName": "g", "filterEnable": "true"}
    admin.order("admin_add_group_csmctrl_info", **grant, filterConds="UA,AA")
    (topic,) = admin.ask("admin_query_topic_info", topicName="flights")
    rights = topic["authData"]
    assert rights["groupCount"] == rights["filterCount"] == 1
    assert rights["authFilterCondSet"][0]["filterConds"] == ",AA,UA,"
    assert topic["maxMsgSizeInMB"] == 2
    admin.order("admin_set_topic_authorize_control", topicName="flights", isEnable="false")
    assert admin.ask("admin_query_topic_info", topicName="flights")[0]["authData"] == {}
    producer = Producer(harness)
    producer.register()
    assert list(producer.publish("flights").topicInfos) == [f"flights#1:1:1#{2 * 1024 * 1024}"]
