"""The master: its file, standby mode, and topics created by an administrator."""

from __future__ import annotations

import pytest

from coherer._rules.tubemq.records import CatalogError, TopicStatus
from coherer._server.options.tubemq import MasterOptions
from coherer._server.tubemq.master.state import StandbyError
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.codes import ResultCode
from coherer.errors import StoreFullError, UsageError
from tests.server.master_harness import Broker, Consumer, MasterHarness, Producer, refused


def test_only_the_catalog_survives_a_restart() -> None:
    harness = MasterHarness()
    harness.broker()
    harness.topic()
    producer = Producer(harness)
    producer.register()
    harness.restart()
    assert harness.master.topics() == {"flights": {1: 4}}
    assert refused(producer.heartbeat(), ResultCode.HB_NO_NODE)
    assert not list(harness.master.state.broker_registry)


def test_nothing_is_written_when_nothing_has_changed() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    producer = Producer(harness)
    producer.register()
    harness.wait(0)
    saves = harness.saves
    for _ in range(5):
        broker.heartbeat()
        producer.heartbeat()
        harness.wait(1_000)
    assert harness.saves == saves


def test_a_full_disk_does_not_stop_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    harness = MasterHarness(auto_create_topics=True)
    broker = harness.broker()
    harness.master.watch(broker.sync)
    producer = Producer(harness)
    producer.register()
    harness.disk_full = True
    assert producer.publish("flights").topicInfos
    assert producer.heartbeat().success
    with pytest.raises(StoreFullError):
        harness.master.create_topic("weather")
    assert len(caplog.records) == 1
    harness.disk_full = False
    harness.wait(4_999)
    assert harness.another().topics() == {}
    harness.wait(1)
    assert set(harness.another().topics()) == {"flights", "weather"}
    saves = harness.saves
    harness.wait(10_000)
    assert harness.saves == saves


def test_ids_grow_over_restarts() -> None:
    harness = MasterHarness()
    broker = harness.broker()
    before, check_sum = broker.config, harness.master.state.broker_list_id
    harness.now_ms += 100
    harness.restart()
    assert Broker(harness, 1).register().curBrokerConfId > before[0]
    assert harness.master.state.broker_list_id > check_sum


# -- standby


@pytest.mark.parametrize("method", sorted(set(methods.METHODS) - {13, 15, 16, 17, 18}))
def test_a_standby_refuses_all_requests(method: int) -> None:
    harness = MasterHarness(standby=True, host="10.0.0.7", port=8716)
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
        harness.ask(method, messages[method])
    assert caught.value.text.startswith(
        "10.0.0.7:8716 is not master now. the connecting client id is "
    )


def test_a_standby_checks_parameters_first() -> None:
    producer = Producer(MasterHarness(standby=True), "")
    assert refused(producer.register(), ResultCode.BAD_REQUEST)


def test_a_standby_that_becomes_active_loads_the_saved_catalog() -> None:
    harness = MasterHarness()
    second = harness.another()
    second.standby = True
    second.tick()
    harness.broker()
    harness.topic()
    with pytest.raises(StandbyError):
        second.create_topic("weather")
    with pytest.raises(StandbyError):
        second.delete_topic("flights")
    second.standby = False
    assert second.topics() == {"flights": {1: 4}}
    harness.master.standby = True
    harness.master = second
    assert Producer(harness).register().success


# -- topics created by an administrator


def test_topics_are_created_on_all_or_on_named_brokers() -> None:
    harness = MasterHarness()
    with pytest.raises(UsageError, match="no broker"):
        harness.master.create_topic("flights")
    harness.broker(1)
    harness.broker(2, host="10.0.0.2")
    assert harness.master.create_topic("flights", 3, [2]) == 1
    assert harness.master.create_topic("flights", 5) == 1
    assert harness.master.create_topic("flights") == 0
    assert harness.master.topics() == {"flights": {1: 5, 2: 3}}
    with pytest.raises(CatalogError, match="Broker 3 does not exist"):
        harness.master.create_topic("weather", brokers=[1, 3])
    with pytest.raises(CatalogError, match="letter"):
        harness.master.create_topic("2013")
    assert set(harness.master.topics()) == {"flights"}
    deployment = harness.master.state.catalog.deployment("flights", 1)
    assert deployment.status is TopicStatus.OK


def test_the_master_says_what_it_is() -> None:
    harness = MasterHarness()
    assert repr(harness.master) == "<Master active, 0 brokers, 0 topics, 0 producers, 0 consumers>"
    harness.broker()
    harness.topic()
    Consumer(harness).register()
    assert harness.master.groups() == {"g": ["c"]}


@pytest.mark.parametrize(
    "options",
    [
        {"balance_period_ms": -1},
        {"consumer_timeout_ms": 0},
        {"authenticate_producers": True},
        {"authenticate_consumers": True},
        {"authenticate_brokers": True},
    ],
)
def test_invalid_options(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        MasterOptions(**options)  # type: ignore[arg-type]
