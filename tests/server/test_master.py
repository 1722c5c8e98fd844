"""The master for producers and brokers, its memory, and its life as a standby."""

from __future__ import annotations

import msgspec
import pytest
from master_stage import START_MS, Broker, Consumer, Producer, Stage

from coherer.broker.configuration import CatalogError, ManageStatus, TopicStatus
from coherer.errors import StoreFullError, UsageError
from coherer.server.tubemq.master.master import MasterOptions, StandbyError
from coherer.tubemq import messages as pb
from coherer.tubemq import methods
from coherer.tubemq.codes import ResultCode

MIB = 1024 * 1024


def refused(answer: object, code: ResultCode) -> bool:
    return (answer.success, answer.errCode) == (False, code) and bool(answer.errMsg)  # type: ignore[attr-defined]


# -- producers


def test_a_producer_learns_brokers_topics_and_limits() -> None:
    stage = Stage()
    stage.broker(1)
    stage.broker(2, host="10.0.0.2", port=9000)
    stage.topic(partitions=3)
    producer = Producer(stage)
    answer = producer.register()
    assert (answer.success, answer.errCode, answer.errMsg) == (True, 200, "OK!")
    assert producer.brokers == ["1:10.0.0.1: ", "2:10.0.0.2:9000"]
    assert answer.authorizedInfo.visitAuthorizedToken == stage.master.state.visit_tokens.valid
    assert producer.publish("flights").topicInfos == [], "no broker has said that it has it"
    for broker in stage.master.state.fleet:
        running = Broker(stage, broker.id, host=broker.host, port=broker.port)
        running.sync()
    answer = producer.heartbeat()
    assert list(answer.topicInfos) == ["flights#1:3:1,2:3:1#"]
    assert not answer.brokerInfos, "nothing is new"
    assert not answer.HasField("requireAuth")


def test_the_limit_for_messages_comes_once_and_again_when_it_changes() -> None:
    stage = Stage(max_message_bytes=2 * MIB)
    producer = Producer(stage)
    producer.register()
    assert (producer.max_bytes, producer.config_id) == (2 * MIB, START_MS)
    assert not producer.heartbeat().appdConfig.HasField("maxMsgSize")
    stage.now_ms += 5
    state = stage.master.state
    state.catalog.set_cluster({"message_bytes_max": 3 * MIB}, state.change("me"))
    producer.heartbeat()
    assert producer.max_bytes == 3 * MIB


def test_without_a_setting_the_limit_has_javas_id() -> None:
    producer = Producer(Stage())
    assert producer.register().appdConfig.configId == -2
    assert producer.max_bytes == 0, "the client knows the default"


def test_a_new_broker_changes_the_check_sum_and_sends_the_whole_list() -> None:
    stage = Stage()
    stage.broker(1)
    producer = Producer(stage)
    producer.register()
    before = producer.check_sum
    stage.broker(2, host="10.0.0.2")
    assert producer.heartbeat().brokerInfos == ["1:10.0.0.1: ", "2:10.0.0.2: "]
    assert producer.check_sum > before


def test_over_tls_brokers_are_named_with_their_tls_ports() -> None:
    stage = Stage()
    stage.broker(1)
    stage.broker(2, host="10.0.0.2", tlsPort=9124)
    producer = Producer(stage, secure=True)
    producer.register()
    assert producer.brokers == ["1:10.0.0.1: ", "2:10.0.0.2:9124"]


def test_topics_have_limits_of_their_own() -> None:
    stage = Stage()
    broker = stage.broker()
    stage.topic()
    state = stage.master.state
    state.catalog.control_topic("flights", {"message_bytes_max": 5}, state.change("me"))
    broker.sync()
    assert broker.topics[1].split(":")[14] == "5"
    producer = Producer(stage)
    producer.register()
    assert list(producer.publish("flights").topicInfos) == ["flights#1:4:1#5"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"clientId": " "}, "clientId"),
        ({"clientId": "x" * 1025}, "clientId"),
        ({"hostName": ""}, "hostName"),
        ({"hostName": "x" * 257}, "hostName"),
        ({"topicList": ["__offset_history__"]}, "__offset_history__"),
        ({"topicList": [f"t{n}" for n in range(1025)]}, "1025"),
    ],
)
def test_what_a_producer_may_not_send(changes: dict[str, object], text: str) -> None:
    producer = Producer(Stage())
    answer = producer.register(**changes)
    assert refused(answer, ResultCode.BAD_REQUEST)
    assert text in answer.errMsg
    assert answer.brokerCheckSum == -1
    producer.register()
    assert refused(producer.heartbeat(**changes), ResultCode.BAD_REQUEST)


def test_a_silent_producer_is_forgotten() -> None:
    stage = Stage(producer_timeout_ms=30_000)
    producer = Producer(stage)
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)
    producer.register()
    stage.wait(29_999)
    assert producer.heartbeat().success
    stage.wait(30_000)
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)


def test_a_producer_that_closes_is_forgotten() -> None:
    producer = Producer(Stage())
    producer.register()
    assert producer.close().success
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)


# -- topics that come by being named


def test_a_topic_is_created_when_a_producer_names_it() -> None:
    stage = Stage(auto_create_topics=True, default_partitions=5)
    broker = stage.broker()
    producer = Producer(stage)
    producer.register()
    assert not producer.publish("flights").topicInfos
    broker.sync()
    assert list(producer.heartbeat().topicInfos) == ["flights#1:5:1#"]


def test_with_a_watching_broker_the_new_topic_is_in_the_same_answer() -> None:
    stage = Stage(auto_create_topics=True, default_partitions=5)
    stage.master.watch(stage.broker().sync)
    producer = Producer(stage)
    producer.register()
    assert list(producer.publish("flights").topicInfos) == ["flights#1:5:1#"]
    consumer = Consumer(stage, topics=("weather",))
    assert consumer.register().success
    consumer.heartbeat()
    assert consumer.numbers == [0, 1, 2, 3, 4]


def test_a_deleted_topic_is_not_revived_by_those_who_published_it() -> None:
    stage = Stage(auto_create_topics=True)
    broker = stage.broker()
    stage.master.watch(broker.sync)
    producer = Producer(stage)
    producer.register()
    producer.publish("flights")
    assert stage.master.delete_topic("flights")
    assert not producer.heartbeat().topicInfos
    broker.removed = ["flights"]
    broker.sync()
    assert not producer.heartbeat().topicInfos
    assert "flights" not in stage.master.topics()
    other = Producer(stage, "other")
    other.register()
    assert other.publish("flights").topicInfos


@pytest.mark.parametrize("name", ["2013", "a b", "x" * 65, "", "__offset_history__x!", "TBW102"])
def test_names_that_cannot_be_are_not_created(name: str) -> None:
    stage = Stage(auto_create_topics=True)
    stage.broker()
    producer = Producer(stage)
    producer.register()
    assert producer.publish(name).success
    assert stage.master.topics() == {}


def test_without_brokers_and_without_the_option_nothing_is_created() -> None:
    for stage in (Stage(auto_create_topics=True), Stage()):
        producer = Producer(stage)
        producer.register()
        producer.publish("flights")
        assert refused(Consumer(stage).register(), ResultCode.TOPIC_NOT_DEPLOYED)
        assert stage.master.topics() == {}


# -- brokers


def test_a_broker_gets_its_configuration_and_says_what_it_has() -> None:
    stage = Stage()
    broker = Broker(stage, 1)
    answer = broker.register()
    assert answer.takeConfInfo
    assert broker.defaults == "1:true:true:1000:10000: :delete,168h:1:0:3:10:20000"
    assert broker.topics == ["__offset_history__:10: : : : : : : :0: : : : : "]
    assert (answer.stopRead, answer.stopWrite, answer.ssdStoreId) == (False, False, -2)
    assert answer.flowCheckId == -2
    assert answer.qryPriorityId == 301
    first = stage.master.state.visit_tokens.valid
    assert answer.brokerAuthorizedInfo.visitAuthorizedToken == f"{first},{first}"
    assert not answer.enableBrokerInfo.enableVisitTokenCheck
    answer = broker.heartbeat()
    assert answer.takeRemoveTopicInfo
    assert (answer.needReportData, answer.takeConfInfo) == (False, False)
    stage.topic(partitions=3)
    before = broker.config
    answer = broker.heartbeat()
    assert (answer.needReportData, answer.takeConfInfo) == (True, True)
    assert broker.topics[1] == "flights:3: : : : : : : :0: : : : : "
    assert broker.config[0] > before[0]
    assert broker.config[1] != before[1]
    assert not broker.heartbeat().needReportData


def test_the_check_sum_stays_while_the_texts_stay() -> None:
    stage = Stage()
    broker = stage.broker()
    stage.topic()
    broker.sync()
    before = broker.config
    state = stage.master.state
    state.catalog.control_group("g", {"priority": 302}, state.change("me"))
    assert not broker.heartbeat().needReportData
    assert broker.config == before


def test_a_broker_that_comes_back_is_open_at_once() -> None:
    stage = Stage()
    broker = stage.broker()
    stage.topic()
    broker.sync()
    producer = Producer(stage)
    stage.restart()
    assert refused(broker.heartbeat(), ResultCode.HB_NO_NODE)
    answer = broker.register(online=True)
    assert answer.success
    producer.register()
    assert list(producer.publish("flights").topicInfos) == ["flights#1:4:1#"]


def test_a_broker_without_words_is_believed_to_hold_what_it_repeats() -> None:
    stage = Stage()
    broker = stage.broker()
    stage.topic()
    broker.heartbeat()
    broker.news = False
    broker.heartbeat()
    producer = Producer(stage)
    producer.register()
    assert list(producer.publish("flights").topicInfos) == ["flights#1:4:1#"]
    config, broker.defaults, broker.topics = broker.config, "", []
    assert not broker.register(online=True).takeConfInfo
    assert broker.config == config
    broker.heartbeat()
    assert list(producer.heartbeat().topicInfos) == ["flights#1:4:1#"]


def test_a_silent_broker_is_taken_out_of_the_lists() -> None:
    stage = Stage(broker_timeout_ms=30_000)
    broker = stage.broker()
    stage.topic()
    broker.sync()
    producer = Producer(stage)
    producer.register()
    assert producer.publish("flights").topicInfos
    stage.wait(29_000)
    producer.heartbeat()
    stage.wait(1_000)
    assert not producer.heartbeat().topicInfos
    assert producer.brokers, "the list of brokers holds also those that are away"
    assert refused(broker.heartbeat(), ResultCode.HB_NO_NODE)


def test_a_broker_that_closes_is_gone_at_once() -> None:
    stage = Stage()
    broker = stage.broker()
    stage.topic()
    broker.sync()
    assert broker.close().success
    assert refused(broker.close(), ResultCode.HB_NO_NODE)
    producer = Producer(stage)
    producer.register()
    assert not producer.publish("flights").topicInfos


def test_java_refuses_brokers_that_nobody_has_configured() -> None:
    stage = Stage(auto_add_brokers=False)
    broker = Broker(stage, 1)
    answer = broker.register()
    assert refused(answer, ResultCode.BAD_REQUEST)
    assert answer.errMsg.startswith("Not found broker configure info")
    assert refused(broker.heartbeat(), ResultCode.HB_NO_NODE)


@pytest.mark.parametrize("change", [{"host": "10.0.0.2"}, {"port": 9}, {"tlsPort": 9}])
def test_a_brokers_address_must_be_the_configured_one(change: dict[str, object]) -> None:
    strict = Stage(auto_add_brokers=False)
    loose = Stage()
    for stage in (strict, loose):
        stage.broker() if stage is loose else None
    state = strict.master.state
    record = loose.master.state.catalog.broker(1)
    state.catalog.add_broker(msgspec.structs.replace(record), state.change("me"))
    assert refused(Broker(strict, 1, **change).register(), ResultCode.BAD_REQUEST)  # type: ignore[arg-type]
    fields = Broker(loose, 1, **change)  # type: ignore[arg-type]
    if "tlsPort" not in change:
        assert refused(fields.register(), ResultCode.BAD_REQUEST), "the other is still there"
        loose.wait(30_000)
    assert fields.register().success
    assert "9" in str(loose.master.state.catalog.broker(1)) or "10.0.0.2" in str(
        loose.master.state.catalog.broker(1)
    )


def test_two_brokers_cannot_have_one_address() -> None:
    stage = Stage()
    stage.broker(1)
    assert refused(Broker(stage, 2).register(), ResultCode.BAD_REQUEST)


def test_a_broker_may_say_where_its_administration_is() -> None:
    stage = Stage()
    stage.broker(1, webPort=8090)
    assert stage.master.state.catalog.broker(1).web_port == 8090
    stage.broker(1, webPort=8091)
    assert stage.master.state.catalog.broker(1).web_port == 8091
    stage.broker(1)
    assert stage.master.state.catalog.broker(1).web_port == 8091, "Java's brokers do not say"


def test_a_draft_may_not_register() -> None:
    stage = Stage()
    stage.broker()
    record = stage.master.state.catalog.brokers[1]
    stage.master.state.catalog.brokers[1] = msgspec.structs.replace(
        record, status=ManageStatus.DRAFT
    )
    assert refused(Broker(stage, 1).register(), ResultCode.BAD_REQUEST)


@pytest.mark.parametrize(
    "client_id", ["", "x", "1:h", "x:h:1:v", "0:h:1:v", "1::1:v", "1:h:999999:v", "1" * 20 + ":h:1"]
)
def test_names_that_are_no_brokers(client_id: str) -> None:
    broker = Broker(Stage(), 1, clientId=client_id)
    assert refused(broker.register(), ResultCode.BAD_REQUEST)


@pytest.mark.parametrize("client_id", ["1:h:1", "1:h:1:", "1:h:1:v:w", "1:::1:8123:2.4.0"])
def test_names_that_are_brokers(client_id: str) -> None:
    broker = Broker(Stage(), 1, clientId=client_id)
    if client_id == "1:h:1:v:w":
        assert refused(broker.register(), ResultCode.BAD_REQUEST)
    else:
        assert broker.register().success


@pytest.mark.parametrize("number", ["x", "-1", "", "0"])
def test_numbers_that_are_no_brokers(number: str) -> None:
    answer = Stage().ask(methods.BROKER_CLOSE, pb.CloseRequestB2M(brokerId=number))
    assert refused(answer, ResultCode.BAD_REQUEST)


def test_texts_that_cannot_be_read_are_refused() -> None:
    stage = Stage()
    broker = stage.broker()
    broker.news, broker.topics = True, ["flights:x"]
    assert refused(broker.heartbeat(), ResultCode.BAD_REQUEST)


def test_a_broker_with_a_bad_disk_is_stopped() -> None:
    stage = Stage()
    broker = stage.broker()
    stage.topic()
    broker.sync()
    broker.status = 0, -1
    answer = broker.heartbeat()
    assert (answer.stopRead, answer.stopWrite) == (False, True)
    broker.status = 0, 1
    assert broker.heartbeat().stopWrite
    producer = Producer(stage)
    producer.register()
    assert not producer.publish("flights").topicInfos
    stage.master.state.fleet.release(1, stage.now_ms)
    assert not broker.heartbeat().stopWrite
    assert producer.heartbeat().topicInfos


def test_a_restart_releases_a_broker_that_was_stopped() -> None:
    stage = Stage()
    broker = stage.broker()
    broker.status = -1, -1
    assert broker.heartbeat().stopRead
    assert not Broker(stage, 1).register().stopRead


def test_a_topic_is_removed_when_its_broker_has_deleted_it() -> None:
    stage = Stage()
    broker = stage.broker()
    stage.topic()
    broker.sync()
    consumer = Consumer(stage)
    consumer.register()
    consumer.heartbeat()
    assert stage.master.delete_topic("flights")
    assert not stage.master.delete_topic("flights")
    assert broker.heartbeat().needReportData
    assert broker.removing == ["flights:4: : : : : : : :2: : : : : "]
    consumer.heartbeat()
    assert consumer.heartbeat().success
    assert consumer.numbers == [], "what is being removed is taken away"
    broker.removed = ["flights", "unknown"]
    broker.heartbeat()
    assert not broker.removing
    assert "flights" not in stage.master.state.catalog.topics


def test_only_what_is_being_removed_can_be_reported_as_removed() -> None:
    stage = Stage()
    broker = stage.broker()
    stage.topic()
    broker.removed = ["flights"]
    broker.heartbeat()
    assert stage.master.topics() == {"flights": {1: 4}}


def test_brokers_know_tokens_before_clients_do() -> None:
    stage = Stage(visit_token_ms=300_000)
    broker, producer = stage.broker(), Producer(stage)
    producer.register()
    known: set[str] = set()
    for _ in range(5):
        known.update(broker.heartbeat().brokerAuthorizedInfo.visitAuthorizedToken.split(","))
        token = producer.heartbeat().authorizedInfo.visitAuthorizedToken
        assert str(token) in known
        for _ in range(10):
            stage.wait(24_000)
            broker.heartbeat()
            producer.heartbeat()
    assert len(known) > 3


def test_flow_rules_reach_brokers_once() -> None:
    stage = Stage()
    state = stage.master.state
    broker = stage.broker()
    state.catalog.set_cluster(
        {"flow_enabled": True, "flow_rules": "[1]", "priority": 302}, state.change("me")
    )
    answer = broker.heartbeat()
    assert (answer.flowControlInfo, answer.qryPriorityId) == ("[1]", 302)
    broker.fields["flowCheckId"] = answer.flowCheckId
    assert not broker.heartbeat().HasField("flowControlInfo")
    stage.now_ms += 1
    state.catalog.set_cluster({"flow_enabled": False}, state.change("me"))
    assert broker.heartbeat().flowControlInfo == " "


# -- memory


def test_configuration_survives_a_restart_and_nobody_else_does() -> None:
    stage = Stage()
    stage.broker()
    stage.topic()
    producer = Producer(stage)
    producer.register()
    stage.restart()
    assert stage.master.topics() == {"flights": {1: 4}}
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)
    assert not list(stage.master.state.fleet)


def test_nothing_is_written_when_nothing_has_changed() -> None:
    stage = Stage()
    broker = stage.broker()
    producer = Producer(stage)
    producer.register()
    stage.wait(0)
    saves = stage.saves
    for _ in range(5):
        broker.heartbeat()
        producer.heartbeat()
        stage.wait(1_000)
    assert stage.saves == saves


def test_a_full_disk_stops_nobodys_heartbeat(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(auto_create_topics=True)
    broker = stage.broker()
    stage.master.watch(broker.sync)
    producer = Producer(stage)
    producer.register()
    stage.disk_full = True
    assert producer.publish("flights").topicInfos
    assert producer.heartbeat().success
    with pytest.raises(StoreFullError):
        stage.master.create_topic("weather")
    assert len(caplog.records) == 1
    stage.disk_full = False
    stage.wait(4_999)
    assert stage.another().topics() == {}
    stage.wait(1)
    assert set(stage.another().topics()) == {"flights", "weather"}
    saves = stage.saves
    stage.wait(10_000)
    assert stage.saves == saves


def test_ids_grow_over_restarts() -> None:
    stage = Stage()
    broker = stage.broker()
    before, check_sum = broker.config, stage.master.state.broker_list_id
    stage.now_ms += 100
    stage.restart()
    assert Broker(stage, 1).register().curBrokerConfId > before[0]
    assert stage.master.state.broker_list_id > check_sum


# -- standby


@pytest.mark.parametrize("method", sorted(set(methods.METHODS) - {13, 15, 16, 17, 18}))
def test_a_standby_refuses_all_business(method: int) -> None:
    stage = Stage(standby=True, host="10.0.0.7", port=8716)
    messages = {
        1: pb.RegisterRequestP2M(clientId="x", hostName="h", brokerCheckSum=-1),
        2: pb.HeartRequestP2M(clientId="x", hostName="h", brokerCheckSum=-1),
        3: pb.CloseRequestP2M(clientId="x"),
        4: pb.RegisterRequestC2M(clientId="x", groupName="g", hostName="h"),
        5: pb.HeartRequestC2M(clientId="x", groupName="g", reportSubscribeInfo=False),
        6: pb.CloseRequestC2M(clientId="x", groupName="g"),
        7: pb.RegisterRequestB2M(clientId="1:h:1:x"),
        8: pb.HeartRequestB2M(brokerId="1"),
        9: pb.CloseRequestB2M(brokerId="1"),
        20: pb.RegisterRequestC2MV2(clientId="x", groupName="g", hostName="h"),
        21: pb.HeartRequestC2MV2(clientId="x", groupName="g"),
        22: pb.GetPartMetaRequestC2M(clientId="x", groupName="g"),
    }
    with pytest.raises(StandbyError) as caught:
        stage.ask(method, messages[method])
    assert caught.value.text.startswith(
        "10.0.0.7:8716 is not master now. the connecting client id is "
    )


def test_a_standby_checks_parameters_first() -> None:
    producer = Producer(Stage(standby=True), "")
    assert refused(producer.register(), ResultCode.BAD_REQUEST)


def test_a_standby_that_becomes_active_reads_what_the_other_wrote() -> None:
    stage = Stage()
    second = stage.another()
    second.standby = True
    second.tick()
    stage.broker()
    stage.topic()
    with pytest.raises(StandbyError):
        second.create_topic("weather")
    with pytest.raises(StandbyError):
        second.delete_topic("flights")
    second.standby = False
    assert second.topics() == {"flights": {1: 4}}
    stage.master.standby = True
    stage.master = second
    assert Producer(stage).register().success


# -- topics by hand


def test_topics_are_created_on_all_or_on_named_brokers() -> None:
    stage = Stage()
    with pytest.raises(UsageError, match="no broker"):
        stage.master.create_topic("flights")
    stage.broker(1)
    stage.broker(2, host="10.0.0.2")
    assert stage.master.create_topic("flights", 3, [2]) == 1
    assert stage.master.create_topic("flights", 5) == 1
    assert stage.master.create_topic("flights") == 0
    assert stage.master.topics() == {"flights": {1: 5, 2: 3}}
    with pytest.raises(CatalogError, match="no broker 3"):
        stage.master.create_topic("weather", brokers=[1, 3])
    with pytest.raises(CatalogError, match="letter"):
        stage.master.create_topic("2013")
    assert set(stage.master.topics()) == {"flights"}
    deployment = stage.master.state.catalog.deployment("flights", 1)
    assert deployment.status is TopicStatus.OK


def test_the_master_says_what_it_is() -> None:
    stage = Stage()
    assert repr(stage.master) == "<Master active, 0 brokers, 0 topics, 0 producers, 0 consumers>"
    stage.broker()
    stage.topic()
    Consumer(stage).register()
    assert stage.master.groups() == {"g": ["c"]}


@pytest.mark.parametrize(
    "options",
    [
        {"balance_period_ms": -1},
        {"authenticate_producers": True},
        {"authenticate_consumers": True},
        {"authenticate_brokers": True},
    ],
)
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        MasterOptions(**options)  # type: ignore[arg-type]
