"""The legacy and batch forms of the master's HTTP methods, and its figures.

That they look as Java's do is shown with Java's own master (tests/interop/test_tubemq_web.py).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.java_methods import MASTER_CHANGES, MASTER_QUERIES
from tests.server.master_harness import AdminCaller, Broker, Consumer, MasterHarness, Producer, code

ONE = {"groupName": "g", "topicName": "flights"}


@pytest.fixture
def topics(admin: AdminCaller, broker: Broker) -> None:
    for name in ("flights", "weather"):
        admin.order("admin_add_new_topic_record", topicName=name, brokerId=1, numPartitions=2)
    broker.sync()


def rows(*records: dict[str, object]) -> str:
    return json.dumps(records)


def pairs(records: list[Any]) -> list[tuple[str, str]]:
    return sorted((record["groupName"], record["topicName"]) for record in records)


@pytest.mark.usefixtures("topics")
def test_groups_that_may_read(admin: AdminCaller, harness: MasterHarness) -> None:
    admin.order("admin_set_topic_authorize_control", topicName="flights", isEnable="true")
    consumer = Consumer(harness, "a")
    assert consumer.register().errCode != 200, "it is not authorized"
    (added,) = admin.order("admin_add_authorized_consumergroup_info", **ONE)
    assert added == {"groupName": "g", "success": True, "errCode": 200, "errInfo": "Ok!"}
    assert code(admin.order("admin_add_authorized_consumergroup_info", **ONE)) == [200]
    (allowed,) = admin.ask("admin_query_allowed_consumer_group_info")
    assert (allowed["groupName"], allowed["topicName"]) == ("g", "flights")
    assert "serialId" not in allowed
    assert consumer.register().success
    (control,) = admin.ask("admin_query_topic_authorize_control", topicName="flights")
    assert (control["isEnable"], control["groupCount"], control["filterCount"]) == (True, 1, 1)
    removed = admin.order("admin_delete_allowed_consumer_group_info", topicName="flights")
    assert [item["groupName"] for item in removed] == [""]
    assert admin.ask("admin_query_allowed_consumer_group_info") == []
    (black,) = admin.ask("admin_query_black_consumer_group_info")
    assert (black["groupName"], black["reason"]) == ("g", "not authorized")
    admin.order("admin_delete_topic_authorize_control", topicName="flights")
    (control,) = admin.ask("admin_query_topic_authorize_control", topicName="flights")
    assert control["isEnable"] is False


@pytest.mark.usefixtures("topics")
def test_batches_of_groups(admin: AdminCaller) -> None:
    both = rows(ONE, {"groupName": "h", "topicName": "weather", "createUser": "bob"})
    admin.order("admin_bath_add_authorized_consumergroup_info", groupNameJsonSet=both)
    allowed = admin.ask("admin_query_allowed_consumer_group_info")
    assert pairs(allowed) == [("g", "flights"), ("h", "weather")]
    assert {one["groupName"]: one["createUser"] for one in allowed} == {"g": "ann", "h": "bob"}
    admin.order("admin_batch_del_authorized_consumergroup_info", gJsonSet=rows(ONE))
    assert pairs(admin.ask("admin_query_allowed_consumer_group_info")) == [("h", "weather")]
    admin.order("admin_bath_add_black_consumergroup_info", groupNameJsonSet=both)
    assert len(admin.ask("admin_query_black_consumer_group_info")) == 2
    admin.order("admin_batch_delete_black_consumergroup_info", groupNameJsonSet=both)
    assert admin.ask("admin_query_black_consumer_group_info") == []
    assert sorted(admin.ask("admin_query_booked_csmctrl_groups")) == ["g", "h"]


@pytest.mark.usefixtures("topics")
def test_a_batch_with_an_invalid_item_changes_nothing(admin: AdminCaller) -> None:
    bad = rows(ONE, {"groupName": "g", "topicName": "none"})
    method = "admin_bath_add_authorized_consumergroup_info"
    assert "none" in admin.refused(method, groupNameJsonSet=bad)
    for text in ("", "[]", "{", '["g"]', '[{"groupName":[]}]', '[{"topicName":"flights"}]'):
        admin.refused(method, groupNameJsonSet=text)
    many = rows(*({"groupName": f"g{n}", "topicName": "flights"} for n in range(101)))
    admin.refused(method, groupNameJsonSet=many)
    assert admin.ask("admin_query_allowed_consumer_group_info") == []


@pytest.mark.usefixtures("topics")
def test_filters(admin: AdminCaller) -> None:
    given = {**ONE, "condStatus": 2, "filterConds": "b,a"}
    assert code(admin.order("admin_add_group_filtercond_info", **given)) == [200]
    (shown,) = admin.ask("admin_query_group_filtercond_info", filterConds="a")
    assert (shown["condStatus"], shown["filterConds"]) == (2, ",a,b,")
    assert code(admin.order("admin_mod_group_filtercond_info", **ONE, filterConds="c")) == [200]
    unknown = {**ONE, "groupName": "x", "filterConds": "c"}
    assert code(admin.order("admin_mod_group_filtercond_info", **unknown)) == [401]
    (shown,) = admin.ask("admin_query_group_filtercond_info")
    assert (shown["condStatus"], shown["filterConds"]) == (2, ",c,")
    assert admin.ask("admin_query_group_filtercond_info", condStatus=0) == []
    admin.refused("admin_add_group_filtercond_info", **ONE, condStatus=3)
    more = rows({"groupName": "x", "topicName": "weather", "filterConds": "z"})
    admin.order("admin_bath_add_group_filtercond_info", condStatus=2, filterCondJsonSet=more)
    admin.order("admin_bath_mod_group_filtercond_info", condStatus=0, filterCondJsonSet=more)
    (shown,) = admin.ask("admin_query_group_filtercond_info", groupName="x")
    assert (shown["condStatus"], shown["filterConds"]) == (0, ",z,")
    admin.order("admin_del_group_filtercond_info", **ONE)
    (shown,) = admin.ask("admin_query_group_filtercond_info", groupName="g")
    assert (shown["condStatus"], shown["filterConds"]) == (0, "")


def test_group_settings(admin: AdminCaller) -> None:
    admin.order("admin_add_consume_group_setting", groupName="g", allowedBClientRate=5)
    admin.order("admin_upd_consume_group_setting", groupName="g", resCheckEnable="true")
    unknown = admin.order("admin_upd_consume_group_setting", groupName="x", allowedBClientRate=5)
    assert code(unknown) == [401]
    admin.order("admin_bath_add_consume_group_setting", groupNameJsonSet=rows({"groupName": "h"}))
    shown = admin.ask("admin_query_consume_group_setting")
    assert [(one["groupName"], one["allowedBClientRate"]) for one in shown] == [("g", 5), ("h", 0)]
    (control,) = admin.ask("admin_query_group_resctrl_info", groupName="g")
    assert (control["resCheckEnable"], control["alwdBrokerClientRate"]) == (True, 5)
    assert code(admin.order("admin_del_consume_group_setting", groupName="g,h,x")) == [
        200,
        403,
        401,
    ]
    given = rows({"groupName": "i", "alwdBrokerClientRate": 2})
    admin.order("admin_batch_add_group_resctrl_info", groupResCtrlJsonSet=given)
    assert admin.ask("admin_query_booked_resctrl_groups") == ["g", "h", "i"]


def test_batches_of_brokers_and_topics(admin: AdminCaller) -> None:
    both = rows(
        {"brokerId": 1, "brokerIp": "10.0.0.1", "numPartitions": 3, "acceptPublish": False},
        {"brokerId": "2", "brokerIp": "10.0.0.2"},
    )
    assert code(admin.order("admin_bath_add_broker_configure", brokerJsonSet=both)) == [200, 200]
    assert code(admin.order("admin_batch_add_broker_configure", brokerJsonSet=both)) == [402, 402]
    change = rows({"brokerId": 2, "regionId": 7})
    admin.order("admin_batch_update_broker_configure", brokerJsonSet=change)
    one, two = admin.ask("admin_query_broker_configure")
    assert (one["numPartitions"], one["acceptPublish"], two["regionId"]) == (3, False, 7)
    placed = rows(
        {"topicName": "flights", "brokerId": 1, "numTopicStores": 2},
        {"topicName": "flights", "brokerId": 2},
    )
    admin.order("admin_bath_add_topic_deploy_info", topicJsonSet=placed)
    (topic,) = admin.ask("admin_query_topic_broker_config_info", topicName="flights")
    counts = [topic[name] for name in ("brokerTotalCfgCnt", "storeTotalCfgCnt", "partTotalCfgCnt")]
    assert counts == [2, 3, 7]
    grown = rows({"topicName": "flights", "brokerId": 2, "numPartitions": 5})
    admin.order("admin_batch_update_topic_deploy_info", topicJsonSet=grown)
    asked = {"brokerId": 2, "topicName": "flights"}
    found = admin.ask("admin_query_broker_topic_config_info", **asked)
    assert [(one["partTotalCfgCnt"], one["nodeRunInfo"]) for one in found] == [(5, "-")]
    nowhere = rows({"topicName": "weather", "brokerId": 1}, {"topicName": "weather", "brokerId": 9})
    admin.refused("admin_bath_add_new_topic_record", topicJsonSet=nowhere)
    assert admin.ask("admin_query_topic_broker_config_info", topicName="weather") == []


@pytest.mark.usefixtures("topics")
def test_totals_of_what_runs(admin: AdminCaller) -> None:
    (flights,) = admin.ask("admin_query_topic_broker_config_info", topicName="flights")
    running = [value for name, value in flights.items() if "Run" in name or "Acc" in name]
    assert running == [1, 1, 2, 1, 1, 2, 1, 1, 2, True, True]
    both = "flights,weather"
    (broker,) = admin.ask("admin_query_broker_topic_config_info", topicName=both)
    assert (broker["nodeRunInfo"], broker["acceptPublish"]) == ("running", True)
    assert (broker["topicAccPubTotalCnt"], broker["partAccSubTotalCnt"]) == (2, 4)


@pytest.mark.usefixtures("topics")
def test_settings_of_topics(admin: AdminCaller) -> None:
    names = {"topicName": "flights,weather"}
    given = rows({"topicName": "flights", "maxMsgSizeInMB": 2}, {"topicName": "weather"})
    admin.order("admin_batch_update_topic_control_info", topicCtrlJsonSet=given)
    sizes = [one["maxMsgSizeInMB"] for one in admin.ask("admin_query_topic_control_info", **names)]
    assert sizes == [2, 1]
    both = rows({"topicName": "flights", "isEnable": True}, {"topicName": "weather"})
    admin.order("admin_bath_add_topic_authorize_control", topicJsonSet=both)
    shown = admin.ask("admin_query_topic_authorize_control", **names)
    assert [one["isEnable"] for one in shown] == [True, False]
    outcome = admin.order("admin_delete_topic_control_info", topicName="flights,none")
    assert code(outcome) == [406, 200]
    grants = rows({**ONE, "consumeEnable": False, "disableCsmRsn": "no"})
    admin.order("admin_batch_add_group_csmctrl_info", groupCsmJsonSet=grants)
    (deployed,) = admin.ask(
        "admin_query_topic_deploy_info", topicName="flights", withGroupAuthInfo="true"
    )
    assert deployed["groupAuthCount"] == 1
    assert deployed["groupAuthInfo"][0]["disableCsmRsn"] == "no"
    admin.order("admin_batch_delete_group_csmctrl_info", groupCsmJsonSet=grants)
    assert admin.ask("admin_query_group_csmctrl_info") == []


@pytest.mark.usefixtures("topics")
def test_members_are_suspended(admin: AdminCaller, harness: MasterHarness) -> None:
    members = [Consumer(harness, "a"), Consumer(harness, "b")]
    for member in members:
        member.register()
    settle(harness, members)
    assert [len(member.numbers) for member in members] == [1, 1]
    order = {"groupName": "g", "consumerId": "a", "reJoinWait": 3}
    admin.order("admin_rebalance_group_allocate", **order)
    assert "Duplicated" in admin.refused("admin_rebalance_group_allocate", **order)
    answer: Any = admin.app.handle("admin_query_consume_group_detail", {"consumeGroup": "g"})
    assert list(answer["re-rebalance"]) == ["a"]
    settle(harness, members)
    assert [member.numbers for member in members] == [[], [0, 1]]
    harness.wait(3 * harness.options.balance_period_ms)
    settle(harness, members)
    assert [len(member.numbers) for member in members] == [1, 1]
    admin.refused("admin_rebalance_group_allocate", groupName="x", consumerId="a")
    admin.refused("admin_rebalance_group_allocate", groupName="g", consumerId="")
    admin.refused("admin_rebalance_group_allocate", **{**order, "reJoinWait": -1})
    admin.refused("admin_set_client_balance_group_consume_from_max", groupName="g")


def settle(harness: MasterHarness, members: list[Consumer]) -> None:
    for _ in range(6):
        for member in members:
            member.heartbeat()
        harness.wait(1)


@pytest.mark.usefixtures("topics")
def test_figures(admin: AdminCaller, harness: MasterHarness) -> None:
    Producer(harness).register()
    consumer = Consumer(harness, "a")
    consumer.register()
    settle(harness, [consumer])

    def service(**params: object) -> Any:
        (node,) = admin.ask("admin_get_metrics_info", **params)
        assert node["nodeRole"] == "Master"
        return node["metrics"]["serviceStatus"]

    before = service()
    assert (before["producer_online_cnt"], before["consumer_online_cnt"]) == (1, 1)
    assert (before["csm_online_group_cnt"], before["broker_online_cnt"]) == (1, 1)
    assert before["server_balance_normal"]["count"] > 0
    harness.wait(10 * 60_000)
    after = service(needRefresh="true")
    assert (after["producer_timeout_cnt"], after["consumer_timeout_cnt"]) == (1, 1)
    assert (after["csm_group_timeout_cnt"], after["broker_timeout_cnt"]) == (1, 1)
    assert (after["broker_configured_cnt"], after["broker_online_cnt"]) == (1, 0)
    assert service()["producer_timeout_cnt"] == 0
    assert "not supported" in admin.refused("admin_transfer_current_master")


def test_every_method_of_java_exists(admin: AdminCaller) -> None:
    known = {row["method"]: row["needAuth"] for row in admin.ask("admin_get_methods")}
    java = {**dict.fromkeys(MASTER_QUERIES, False), **dict.fromkeys(MASTER_CHANGES, True)}
    assert java.items() <= known.items()
    unknown = admin.refused("admin_make_coffee")
    assert "admin_make_coffee" in unknown
