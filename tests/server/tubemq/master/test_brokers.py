"""Brokers at the master: configuration, topics, addresses and timeouts."""

from __future__ import annotations

import msgspec
import pytest

from coherer._rules.tubemq.records import ManageStatus
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from tests.server.master_harness import Broker, Consumer, MasterHarness, Producer, refused


def test_a_broker_gets_and_reports_its_configuration() -> None:
    harness = MasterHarness()
    broker = Broker(harness, 1)
    answer = broker.register()
    assert answer.takeConfInfo
    assert broker.defaults == "1:true:true:1000:10000: :delete,168h:1:0:3:10:20000"
    assert broker.topics == ["__offset_history__:10: : : : : : : :0: : : : : "]
    assert (answer.stopRead, answer.stopWrite, answer.ssdStoreId) == (False, False, -2)
    assert answer.flowCheckId == -2
    assert answer.qryPriorityId == 301
    tokens = harness.master.state.visit_tokens
    assert answer.brokerAuthorizedInfo.visitAuthorizedToken == f"{tokens.valid},{tokens.fresh}"
    assert not answer.enableBrokerInfo.enableVisitTokenCheck
    answer = broker.heartbeat()
    assert answer.takeRemoveTopicInfo
    assert (answer.needReportData, answer.takeConfInfo) == (False, False)
    harness.topic(partitions=3)
    before = broker.config
    answer = broker.heartbeat()
    assert (answer.needReportData, answer.takeConfInfo) == (True, True)
    assert broker.topics[1] == "flights:3: : : : : : : :0: : : : : "
    assert broker.config[0] > before[0]
    assert broker.config[1] != before[1]
    assert not broker.heartbeat().needReportData


def test_the_check_sum_stays_while_the_texts_stay() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    broker.sync()
    before = broker.config
    state = harness.master.state
    state.catalog.control_group("g", {"priority": 302}, state.change("me"))
    assert not broker.heartbeat().needReportData
    assert broker.config == before


def test_a_returning_broker_is_usable_at_once() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    broker.sync()
    producer = Producer(harness)
    harness.restart()
    assert refused(broker.heartbeat(), ResultCode.HB_NO_NODE)
    answer = broker.register(online=True)
    assert answer.success
    producer.register()
    assert list(producer.publish("flights").topicInfos) == ["flights#1:4:1#"]


def test_a_broker_that_repeats_an_id_has_that_configuration() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    broker.heartbeat()
    broker.unreported = False
    broker.heartbeat()
    producer = Producer(harness)
    producer.register()
    assert list(producer.publish("flights").topicInfos) == ["flights#1:4:1#"]
    config, broker.defaults, broker.topics = broker.config, "", []
    assert not broker.register(online=True).takeConfInfo
    assert broker.config == config
    broker.heartbeat()
    assert list(producer.heartbeat().topicInfos) == ["flights#1:4:1#"]


def test_a_silent_broker_is_removed() -> None:
    harness = MasterHarness(broker_timeout_ms=30_000)
    broker = harness.broker()
    harness.topic()
    broker.sync()
    producer = Producer(harness)
    producer.register()
    assert producer.publish("flights").topicInfos
    harness.wait(29_000)
    producer.heartbeat()
    harness.wait(1_000)
    assert not producer.heartbeat().topicInfos
    assert producer.brokers, "the list includes brokers that are away"
    assert refused(broker.heartbeat(), ResultCode.HB_NO_NODE)


def test_a_broker_that_unregisters_is_removed_at_once() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    broker.sync()
    assert broker.close().success
    assert refused(broker.close(), ResultCode.HB_NO_NODE)
    producer = Producer(harness)
    producer.register()
    assert not producer.publish("flights").topicInfos


def test_unknown_brokers_are_refused_as_in_java() -> None:
    harness = MasterHarness(auto_add_brokers=False)
    broker = Broker(harness, 1)
    answer = broker.register()
    assert refused(answer, ResultCode.BAD_REQUEST)
    assert answer.errMsg.startswith("Not found broker configure info")
    assert refused(broker.heartbeat(), ResultCode.HB_NO_NODE)


@pytest.mark.parametrize("change", [{"host": "10.0.0.2"}, {"port": 9}, {"tlsPort": 9}])
def test_a_brokers_address_must_be_the_configured_one(change: dict[str, object]) -> None:
    strict = MasterHarness(auto_add_brokers=False)
    loose = MasterHarness()
    for harness in (strict, loose):
        harness.broker() if harness is loose else None
    state = strict.master.state
    record = loose.master.state.catalog.broker(1)
    state.catalog.add_broker(msgspec.structs.replace(record), state.change("me"))
    answer = Broker(strict, 1, **change).register()  # type: ignore[arg-type]
    assert refused(answer, ResultCode.BAD_REQUEST)
    assert answer.errMsg.endswith("Change its record first.")
    fields = Broker(loose, 1, **change)  # type: ignore[arg-type]
    if "tlsPort" not in change:
        answer = fields.register()
        assert refused(answer, ResultCode.BAD_REQUEST), "the other broker is still registered"
        assert "silent for 30 s" in answer.errMsg
        loose.wait(30_000)
    assert fields.register().success
    assert "9" in str(loose.master.state.catalog.broker(1)) or "10.0.0.2" in str(
        loose.master.state.catalog.broker(1)
    )


def test_two_brokers_cannot_have_one_address() -> None:
    harness = MasterHarness()
    harness.broker(1)
    assert refused(Broker(harness, 2).register(), ResultCode.BAD_REQUEST)


def test_a_broker_may_report_its_web_port() -> None:
    harness = MasterHarness()
    harness.broker(1, webPort=8090)
    assert harness.master.state.catalog.broker(1).web_port == 8090
    harness.broker(1, webPort=8091)
    assert harness.master.state.catalog.broker(1).web_port == 8091
    harness.broker(1)
    assert harness.master.state.catalog.broker(1).web_port == 8091, "Java's brokers do not say"


def test_a_draft_may_not_register() -> None:
    harness = MasterHarness()
    harness.broker()
    record = harness.master.state.catalog.brokers[1]
    harness.master.state.catalog.brokers[1] = msgspec.structs.replace(
        record, status=ManageStatus.DRAFT
    )
    assert refused(Broker(harness, 1).register(), ResultCode.BAD_REQUEST)


@pytest.mark.parametrize(
    "client_id", ["", "x", "1:h", "x:h:1:v", "0:h:1:v", "1::1:v", "1:h:999999:v", "1" * 20 + ":h:1"]
)
def test_invalid_broker_names(client_id: str) -> None:
    broker = Broker(MasterHarness(), 1, clientId=client_id)
    assert refused(broker.register(), ResultCode.BAD_REQUEST)


@pytest.mark.parametrize("client_id", ["1:h:1", "1:h:1:", "1:h:1:v:w", "1:::1:8123:2.4.0"])
def test_valid_broker_names(client_id: str) -> None:
    broker = Broker(MasterHarness(), 1, clientId=client_id)
    if client_id == "1:h:1:v:w":
        assert refused(broker.register(), ResultCode.BAD_REQUEST)
    else:
        assert broker.register().success


@pytest.mark.parametrize("number", ["x", "-1", "", "0"])
def test_invalid_broker_ids(number: str) -> None:
    answer = MasterHarness().ask(methods.BROKER_CLOSE, pb.CloseRequestB2M(brokerId=number))
    assert refused(answer, ResultCode.BAD_REQUEST)


def test_malformed_texts_are_refused() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    broker.unreported, broker.topics = True, ["flights:x"]
    assert refused(broker.heartbeat(), ResultCode.BAD_REQUEST)


def test_a_broker_with_a_bad_disk_is_stopped() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    broker.sync()
    broker.status = 0, -1
    answer = broker.heartbeat()
    assert (answer.stopRead, answer.stopWrite) == (False, True)
    broker.status = 0, 1
    assert broker.heartbeat().stopWrite
    producer = Producer(harness)
    producer.register()
    assert not producer.publish("flights").topicInfos
    harness.master.state.broker_registry.release(1, harness.now_ms)
    assert not broker.heartbeat().stopWrite
    assert producer.heartbeat().topicInfos


def test_a_restart_releases_a_broker_that_was_stopped() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    broker.status = -1, -1
    assert broker.heartbeat().stopRead
    assert not Broker(harness, 1).register().stopRead


def test_a_topic_is_removed_after_its_broker_has_deleted_it() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    broker.sync()
    consumer = Consumer(harness)
    consumer.register()
    consumer.heartbeat()
    assert harness.master.delete_topic("flights")
    assert not harness.master.delete_topic("flights")
    assert broker.heartbeat().needReportData
    assert broker.removing == ["flights:4: : : : : : : :2: : : : : "]
    consumer.heartbeat()
    assert consumer.heartbeat().success
    assert consumer.numbers == [], "partitions of a removed topic are revoked"
    broker.removed = ["flights", "unknown"]
    broker.heartbeat()
    assert not broker.removing
    assert "flights" not in harness.master.state.catalog.topics


def test_only_what_is_being_removed_can_be_reported_as_removed() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    broker.removed = ["flights"]
    broker.heartbeat()
    assert harness.master.topics() == {"flights": {1: 4}}


def test_brokers_learn_tokens_before_clients_do() -> None:
    harness = MasterHarness(visit_token_ms=300_000)
    broker, producer = harness.broker(), Producer(harness)
    producer.register()
    known: set[str] = set()
    for _ in range(5):
        known.update(broker.heartbeat().brokerAuthorizedInfo.visitAuthorizedToken.split(","))
        token = producer.heartbeat().authorizedInfo.visitAuthorizedToken
        assert str(token) in known
        for _ in range(10):
            harness.wait(24_000)
            broker.heartbeat()
            producer.heartbeat()
    assert len(known) > 3


def test_flow_rules_reach_brokers_once() -> None:
    harness = MasterHarness()
    state = harness.master.state
    broker = harness.broker()
    state.catalog.set_cluster(
        {"flow_enabled": True, "flow_rules": "[1]", "priority": 302}, state.change("me")
    )
    answer = broker.heartbeat()
    assert (answer.flowControlInfo, answer.qryPriorityId) == ("[1]", 302)
    broker.fields["flowCheckId"] = answer.flowCheckId
    assert not broker.heartbeat().HasField("flowControlInfo")
    harness.now_ms += 1
    state.catalog.set_cluster({"flow_enabled": False}, state.change("me"))
    assert broker.heartbeat().flowControlInfo == " "
