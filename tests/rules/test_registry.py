"""Registered producers and brokers, and the topics that brokers open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import BrokerRecord, Change, ManageStatus, TopicProps
from coherer._rules.tubemq.registry import (
    BrokerRegistry,
    BrokerRegistryTiming,
    Hosted,
    LivenessTracker,
    Producer,
    Producers,
    RunningBroker,
)

ME = Change(user="me", now_ms=1_000)
FLIGHTS = Hosted(partitions=2, stores=2, publish=True, subscribe=True)
TIMING = BrokerRegistryTiming(timeout_ms=100, return_ms=50)


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    for number in (1, 2):
        catalog.add_broker(BrokerRecord(id=number, host=f"10.0.0.{number}"), ME)
        catalog.set_status(number, ManageStatus.ONLINE, ME)
        catalog.add_topic("flights", number, TopicProps(partitions=2, stores=2), ME)
    return catalog


def running(number: int = 1, *, online: bool = True) -> RunningBroker:
    return RunningBroker(id=number, host=f"10.0.0.{number}", port=8123, online=online)


def ids(found: list[tuple[int, Hosted]]) -> list[int]:
    return [broker for broker, _ in found]


def test_a_topic_opens_when_an_online_broker_reports_it(
    catalog: Catalog,
) -> None:
    broker_registry = BrokerRegistry(catalog, TIMING)
    broker = running(online=False)
    broker_registry.register(broker, None, 0)
    broker_registry.report(broker, (1, 1), {"flights": FLIGHTS}, 0)
    assert broker_registry.publishable("flights", 0) == []
    assert broker_registry.heartbeat(1, online=True, now_ms=1) is broker
    assert broker_registry.take_changed_topics(1) == {"flights"}
    assert broker_registry.publishable("flights", 1) == [(1, FLIGHTS)]
    assert broker_registry.partitions(["flights"], 1) == [
        Partition(1, "flights", number) for number in (0, 1, 10_000, 10_001)
    ]
    assert broker_registry.take_changed_topics(1) == set()


def test_delays_open_a_topic_first_to_consumers_then_to_producers(catalog: Catalog) -> None:
    timing = BrokerRegistryTiming(subscribe_delay_ms=10, publish_delay_ms=5)
    broker_registry = BrokerRegistry(catalog, timing)
    broker_registry.register(running(), {"flights": FLIGHTS}, 100)
    partition = Partition(1, "flights", 0)
    assert broker_registry.take_changed_topics(100) == {"flights"}
    assert broker_registry.subscribable("flights", 109) == []
    assert broker_registry.is_dormant(partition, 109)
    assert broker_registry.take_changed_topics(110) == {"flights"}
    assert ids(broker_registry.subscribable("flights", 110)) == [1]
    assert not broker_registry.is_dormant(partition, 110)
    assert broker_registry.publishable("flights", 114) == []
    assert ids(broker_registry.publishable("flights", 115)) == [1]


def test_partitions_of_a_silent_broker_are_dormant(
    catalog: Catalog,
) -> None:
    broker_registry = BrokerRegistry(catalog, TIMING)
    broker_registry.register(running(), {"flights": FLIGHTS}, 0)
    broker_registry.take_changed_topics(0)
    assert broker_registry.expire(99) == []
    assert broker_registry.expire(100) == [1]
    assert broker_registry.partitions(["flights"], 100) == []
    assert broker_registry.is_dormant(Partition(1, "flights", 0), 100)
    assert broker_registry.take_changed_topics(149) == set(), "it has time to come back"
    assert broker_registry.take_changed_topics(150) == {"flights"}
    assert broker_registry.heartbeat(1, online=True, now_ms=150) is None


def test_closing_a_broker_twice_returns_false(catalog: Catalog) -> None:
    broker_registry = BrokerRegistry(catalog, TIMING)
    broker_registry.register(running(), {"flights": FLIGHTS}, 0)
    assert broker_registry.close(1, 0)
    assert not broker_registry.close(1, 0)
    assert list(broker_registry) == []


def test_the_administrator_permits_and_forbids(catalog: Catalog) -> None:
    broker_registry = BrokerRegistry(catalog, TIMING)
    for number in (1, 2):
        broker_registry.register(running(number), {"flights": FLIGHTS}, 0)
    assert ids(broker_registry.publishable("flights", 0)) == [1, 2]
    catalog.set_status(1, ManageStatus.ONLY_READ, ME)
    catalog.set_status(2, ManageStatus.ONLY_WRITE, ME)
    assert ids(broker_registry.publishable("flights", 0)) == [2]
    assert ids(broker_registry.subscribable("flights", 0)) == [1]
    assert not broker_registry.is_dormant(Partition(2, "flights", 0), 0)
    catalog.update_topic("flights", 1, {"accept_subscribe": False}, ME)
    assert broker_registry.subscribable("flights", 0) == []
    catalog.set_status(2, ManageStatus.ONLINE, ME)
    catalog.delete_topic("flights", 2, ME)
    assert broker_registry.publishable("flights", 0) == []
    assert not broker_registry.is_dormant(Partition(9, "flights", 0), 0)


def test_a_topic_closed_by_its_broker_is_closed(catalog: Catalog) -> None:
    broker_registry = BrokerRegistry(catalog, TIMING)
    closed = Hosted(partitions=2, stores=2, publish=False, subscribe=True)
    broker = running()
    broker_registry.register(broker, {"flights": closed}, 0)
    assert broker_registry.publishable("flights", 0) == []
    broker_registry.report(broker, (1, 1), {}, 0)
    assert broker_registry.subscribable("flights", 0) == []
    broker_registry.report(broker, (1, 2), None, 0)
    assert broker.configuration == (1, 2)


def test_a_broker_with_a_bad_disk_is_stopped_until_it_is_released(catalog: Catalog) -> None:
    broker_registry = BrokerRegistry(catalog, BrokerRegistryTiming(stopped_max=1))
    first, second = running(1), running(2)
    for broker in (first, second):
        broker_registry.register(broker, {"flights": FLIGHTS}, 0)
    broker_registry.set_condition(first, 0, -1, 0)
    broker_registry.set_condition(second, -1, -1, 0)
    assert broker_registry.stopped(1) == (False, True)
    assert broker_registry.stopped(2) == (False, False), "only one broker is stopped at a time"
    assert ids(broker_registry.publishable("flights", 0)) == [2]
    assert ids(broker_registry.subscribable("flights", 0)) == [1, 2]
    broker_registry.set_condition(first, -1, 1, 0)
    assert broker_registry.stopped(1) == (True, True)
    assert broker_registry.release(1, 0)
    assert not broker_registry.release(1, 0)
    assert ids(broker_registry.publishable("flights", 0)) == [1, 2]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=30),
    st.integers(1, 100),
)
def test_the_tracker_yields_exactly_the_silent_nodes(
    sightings: list[tuple[str, int]], timeout_ms: int
) -> None:
    tracker = LivenessTracker[str](timeout_ms)
    now_ms, last = 0, dict[str, int]()
    for name, step_ms in sightings:
        now_ms += step_ms
        silent = {other for other, seen_ms in last.items() if now_ms >= seen_ms + timeout_ms}
        assert set(tracker.overdue(now_ms)) == silent
        for other in silent:
            del last[other]
        tracker.seen(name, now_ms)
        last[name] = now_ms
    for name in last:
        tracker.remove(name)
    assert not list(tracker.overdue(now_ms + timeout_ms))


def test_producers_are_removed_when_silent_or_closed() -> None:
    producers = Producers(timeout_ms=100)
    producers.register(Producer("a", "h", secure=False), 0)
    producers.register(Producer("b", "h", secure=False), 0)
    assert producers.seen("a", 60) is not None
    assert producers.expire(100) == ["b"]
    assert producers.seen("b", 100) is None
    assert [producer.id for producer in producers] == ["a"]
    producers.close("a")
    assert len(producers) == 0


def test_a_returning_producer_keeps_its_settled_topics() -> None:
    producers = Producers(timeout_ms=100)
    producers.register(Producer("a", "h", secure=False, existing_topics={"flights"}), 0)
    producers.register(Producer("a", "h", secure=False), 10)
    returned = producers.seen("a", 20)
    assert returned is not None
    assert returned.existing_topics == {"flights"}
