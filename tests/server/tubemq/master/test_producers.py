"""Producers at the master: answers, refusals, and topics created on first use."""

from __future__ import annotations

import pytest

from coherer._wire.tubemq.codes import ResultCode
from tests.server.master_harness import (
    START_MS,
    Broker,
    Consumer,
    MasterHarness,
    Producer,
    refused,
)

MIB = 1024 * 1024


def test_a_producer_gets_brokers_topics_and_limits() -> None:
    harness = MasterHarness()
    harness.broker(1)
    harness.broker(2, host="10.0.0.2", port=9000)
    harness.topic(partitions=3)
    producer = Producer(harness)
    answer = producer.register()
    assert (answer.success, answer.errCode, answer.errMsg) == (True, 200, "OK!")
    assert producer.brokers == ["1:10.0.0.1: ", "2:10.0.0.2:9000"]
    assert answer.authorizedInfo.visitAuthorizedToken == harness.master.state.visit_tokens.valid
    assert producer.publish("flights").topicInfos == [], "no broker has reported it"
    for broker in harness.master.state.broker_registry:
        running = Broker(harness, broker.id, host=broker.host, port=broker.port)
        running.sync()
    answer = producer.heartbeat()
    assert list(answer.topicInfos) == ["flights#1:3:1,2:3:1#"]
    assert not answer.brokerInfos, "the list has not changed"
    assert not answer.HasField("requireAuth")


def test_the_message_limit_is_sent_when_it_changes() -> None:
    harness = MasterHarness(max_message_bytes=2 * MIB)
    producer = Producer(harness)
    producer.register()
    assert (producer.max_bytes, producer.config_id) == (2 * MIB, START_MS)
    assert not producer.heartbeat().appdConfig.HasField("maxMsgSize")
    harness.now_ms += 5
    state = harness.master.state
    state.catalog.set_cluster({"message_bytes_max": 3 * MIB}, state.change("me"))
    producer.heartbeat()
    assert producer.max_bytes == 3 * MIB


def test_without_a_setting_the_limit_has_javas_id() -> None:
    producer = Producer(MasterHarness())
    assert producer.register().appdConfig.configId == -2
    assert producer.max_bytes == 0, "the client knows the default"


def test_a_new_broker_changes_the_check_sum_and_sends_the_whole_list() -> None:
    harness = MasterHarness()
    harness.broker(1)
    producer = Producer(harness)
    producer.register()
    before = producer.check_sum
    harness.broker(2, host="10.0.0.2")
    assert producer.heartbeat().brokerInfos == ["1:10.0.0.1: ", "2:10.0.0.2: "]
    assert producer.check_sum > before


def test_over_tls_brokers_are_named_with_their_tls_ports() -> None:
    harness = MasterHarness()
    harness.broker(1)
    harness.broker(2, host="10.0.0.2", tlsPort=9124)
    producer = Producer(harness, secure=True)
    producer.register()
    assert producer.brokers == ["1:10.0.0.1: ", "2:10.0.0.2:9124"]


def restarted(harness: MasterHarness) -> Producer:
    """A producer that registers again, at a master that has just started."""
    harness.broker(1).sync()
    harness.topic(partitions=3)
    harness.broker(1).sync()
    producer = Producer(harness)
    producer.register()
    assert producer.publish("flights").errCode == ResultCode.SUCCESS
    harness.wait(1_000)
    harness.restart()
    harness.wait(100)
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)
    producer.register()
    return producer


def test_a_producer_keeps_its_partitions_until_brokers_have_registered_again() -> None:
    harness = MasterHarness()
    producer = restarted(harness)
    answer = producer.heartbeat()
    assert (answer.success, answer.errCode, list(answer.topicInfos)) == (True, 201, [])
    harness.broker(1).sync()
    answer = producer.heartbeat()
    assert (answer.errCode, list(answer.topicInfos)) == (200, ["flights#1:3:1#"])


def test_a_broker_that_does_not_come_back_is_not_waited_for_long() -> None:
    harness = MasterHarness()
    producer = restarted(harness)
    harness.wait(20_000)
    assert producer.heartbeat().errCode == ResultCode.NOT_READY
    harness.wait(10_000)
    answer = producer.heartbeat()
    assert (answer.errCode, list(answer.topicInfos)) == (200, [])


def test_a_new_producer_learns_what_there_is() -> None:
    harness = MasterHarness()
    restarted(harness)
    producer = Producer(harness)
    producer.register()
    assert producer.publish("flights").errCode == ResultCode.SUCCESS


def test_topics_have_limits_of_their_own() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    harness.topic()
    state = harness.master.state
    state.catalog.control_topic("flights", {"message_bytes_max": 5}, state.change("me"))
    broker.sync()
    assert broker.topics[1].split(":")[14] == "5"
    producer = Producer(harness)
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
def test_invalid_producer_registrations(changes: dict[str, object], text: str) -> None:
    producer = Producer(MasterHarness())
    answer = producer.register(**changes)
    assert refused(answer, ResultCode.BAD_REQUEST)
    assert text in answer.errMsg
    assert answer.brokerCheckSum == -1
    producer.register()
    assert refused(producer.heartbeat(**changes), ResultCode.BAD_REQUEST)


def test_a_silent_producer_is_removed() -> None:
    harness = MasterHarness(producer_timeout_ms=30_000)
    producer = Producer(harness)
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)
    producer.register()
    harness.wait(29_999)
    assert producer.heartbeat().success
    harness.wait(30_000)
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)


def test_a_producer_that_unregisters_is_removed() -> None:
    producer = Producer(MasterHarness())
    producer.register()
    assert producer.close().success
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)


# -- topics created on first use


def test_a_topic_is_created_when_a_producer_names_it() -> None:
    harness = MasterHarness(auto_create_topics=True, default_partitions=5)
    broker = harness.broker()
    producer = Producer(harness)
    producer.register()
    assert not producer.publish("flights").topicInfos
    broker.sync()
    assert list(producer.heartbeat().topicInfos) == ["flights#1:5:1#"]


def test_with_a_watching_broker_the_new_topic_is_in_the_same_answer() -> None:
    harness = MasterHarness(auto_create_topics=True, default_partitions=5)
    harness.master.watch(harness.broker().sync)
    producer = Producer(harness)
    producer.register()
    assert list(producer.publish("flights").topicInfos) == ["flights#1:5:1#"]
    consumer = Consumer(harness, topics=("weather",))
    assert consumer.register().success
    consumer.heartbeat()
    assert consumer.numbers == [0, 1, 2, 3, 4]


def test_a_deleted_topic_is_not_revived_by_those_who_published_it() -> None:
    harness = MasterHarness(auto_create_topics=True)
    broker = harness.broker()
    harness.master.watch(broker.sync)
    producer = Producer(harness)
    producer.register()
    producer.publish("flights")
    assert harness.master.delete_topic("flights")
    assert not producer.heartbeat().topicInfos
    broker.removed = ["flights"]
    broker.sync()
    assert not producer.heartbeat().topicInfos
    assert "flights" not in harness.master.topics()
    other = Producer(harness, "other")
    other.register()
    assert other.publish("flights").topicInfos


@pytest.mark.parametrize("name", ["2013", "a b", "x" * 65, "", "__offset_history__x!", "TBW102"])
def test_topics_with_invalid_names_are_not_created(name: str) -> None:
    harness = MasterHarness(auto_create_topics=True)
    harness.broker()
    producer = Producer(harness)
    producer.register()
    assert producer.publish(name).success
    assert harness.master.topics() == {}


def test_without_brokers_and_without_the_option_nothing_is_created() -> None:
    for harness in (MasterHarness(auto_create_topics=True), MasterHarness()):
        producer = Producer(harness)
        producer.register()
        producer.publish("flights")
        assert refused(Consumer(harness).register(), ResultCode.TOPIC_NOT_DEPLOYED)
        assert harness.master.topics() == {}
