"""Which queue, which broker, and what a route says.

See docs/protocol/rocketmq.md, sections 8.3, 8.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coherer._client.rocketmq.faults import BrokerFaults, FaultRules
from coherer._client.rocketmq.producing.queue_selection import QueueSelector, hash_of
from coherer._client.rocketmq.routing import route_of, template_route
from coherer._wire.rocketmq.bodies import BrokerData, QueueData, TopicRoute
from coherer._wire.rocketmq.names import Queue


@dataclass
class FakeTarget:
    queue: Queue
    connected: bool = True


def targets(*brokers: str, queues: int = 2) -> list[FakeTarget]:
    return [
        FakeTarget(Queue("t", broker, number)) for broker in brokers for number in range(queues)
    ]


def brokers(selector: QueueSelector, count: int, now_ms: int = 0) -> list[str]:
    return [selector.next(now_ms).queue.broker for _ in range(count)]


def test_round_robin() -> None:
    selector = QueueSelector(targets("a", "b"), counter=3)
    assert brokers(selector, 5) == ["a", "a", "b", "b", "a"]


def test_connected_brokers_are_preferred() -> None:
    one, two, three, four = targets("a", "b")
    selector = QueueSelector([one, two, three, four], counter=0)
    one.connected = two.connected = False
    assert set(brokers(selector, 4)) == {"b"}
    three.connected = four.connected = False
    assert set(brokers(selector, 4)) == {"b"}  # nobody has told it yet
    selector.stale = True
    assert set(brokers(selector, 4)) == {"a", "b"}
    selector.update(targets("c"))
    assert set(brokers(selector, 4)) == {"c"}


def test_a_retry_goes_to_another_broker() -> None:
    selector = QueueSelector(targets("a", "b", "c"), counter=0)
    assert {selector.avoiding("a").queue.broker for _ in range(9)} == {"b", "c"}
    alone = QueueSelector(targets("a"), counter=0)
    assert alone.avoiding("a").queue.broker == "a"


def test_a_retry_prefers_an_unconnected_broker_to_the_same() -> None:
    one, two = targets("a", "b", queues=1)
    two.connected = False
    selector = QueueSelector([one, two], counter=0)
    assert selector.avoiding("a") is two


@pytest.mark.parametrize(
    ("key", "number"),
    # Java: Math.abs of "abc".hashCode(), "refund".hashCode(), Integer and Long hash codes
    [("abc", 96354), ("refund", 934813832), (7, 7), (-7, 7), (2**32 + 1, 0), (2**40, 256)],
)
def test_hashes_of_keys(key, number: int) -> None:
    assert hash_of(key) == number


@given(st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1)))
def test_a_key_has_one_queue(key) -> None:
    selector = QueueSelector(targets("a", "b", queues=3))
    assert selector.queue_of_key(key) == selector.queue_of_key(key)
    assert selector.target_of(selector.queue_of_key(key)) in selector.targets


def test_an_exact_queue() -> None:
    selector = QueueSelector(targets("a"))
    found = selector.target_of(Queue("t", "a", 1))
    assert found is not None
    assert found.queue.id == 1
    assert selector.target_of(Queue("t", "b", 1)) is None


# -- faults


def test_slow_brokers_are_avoided_for_a_while() -> None:
    faults = BrokerFaults()
    selector = QueueSelector(targets("a", "b"), faults, counter=0)
    faults.record("a", 549, now_ms=0)
    assert set(brokers(selector, 8)) == {"a", "b"}
    faults.record("a", 550, now_ms=0)
    assert set(brokers(selector, 8, now_ms=29_999)) == {"b"}
    assert set(brokers(selector, 8, now_ms=30_000)) == {"a", "b"}
    faults.record_failure("b", now_ms=30_000)
    assert set(brokers(selector, 8, now_ms=629_999)) == {"a"}
    assert set(brokers(selector, 8, now_ms=630_000)) == {"a", "b"}


def test_if_all_brokers_are_slow_the_better_half_is_used() -> None:
    faults = BrokerFaults()
    selector = QueueSelector(targets("a", "b", "c", "d"), faults, counter=0)
    for number, broker in enumerate("abcd"):
        faults.record(broker, 600 + number, now_ms=0)
    assert set(brokers(selector, 40)) == {"a", "b"}
    faults.keep_only({"c", "d"})
    assert faults.is_available("a", 0)
    assert not faults.is_available("c", 0)


def test_a_single_slow_broker_is_used() -> None:
    faults = BrokerFaults(FaultRules(latency_ms=(10,), avoid_ms=(1_000,)))
    selector = QueueSelector(targets("a"), faults, counter=0)
    assert faults.least_bad(0, 0, list.sort) is None
    faults.record("a", 10, now_ms=0)
    assert brokers(selector, 2) == ["a", "a"]
    assert faults.least_bad(0, 7, list.sort) == "a"


# -- routes


def data(*queues: QueueData, order: str | None = None, masters: str = "ab") -> TopicRoute:
    return TopicRoute(
        order_topic_conf=order,
        queue_datas=list(queues),
        broker_datas=[
            BrokerData(
                cluster="c",
                broker_name=name,
                broker_addrs={0 if name in masters else 1: f"{name}:1"},
            )
            for name in "ab"
        ],
    )


def queues(name: str, count: int = 2, perm: int = 6) -> QueueData:
    return QueueData(broker_name=name, read_queue_nums=count, write_queue_nums=count, perm=perm)


def test_a_route() -> None:
    route = route_of("t", data(queues("b", 1), queues("a", 2)))
    assert [(queue.broker, queue.id) for queue in route.writable] == [("a", 0), ("a", 1), ("b", 0)]
    assert route.readable == route.writable
    assert route.brokers == {"a": {0: "a:1"}, "b": {0: "b:1"}}
    assert (route.clusters, route.ordered) == ({"a": "c", "b": "c"}, False)


def test_permissions() -> None:
    route = route_of("t", data(queues("a", 1, perm=2), queues("b", 1, perm=4)))
    assert [queue.broker for queue in route.writable] == ["a"]
    assert [queue.broker for queue in route.readable] == ["b"]


def test_queues_without_a_master_are_not_writable() -> None:
    route = route_of("t", data(queues("a"), queues("b"), masters="a"))
    assert {queue.broker for queue in route.writable} == {"a"}
    assert {queue.broker for queue in route.readable} == {"a", "b"}


def test_an_order_topic() -> None:
    route = route_of("t", data(queues("a"), order="a:3;b:1;;c"))
    assert [(queue.broker, queue.id) for queue in route.writable] == [
        *(("a", 0), ("a", 1), ("a", 2), ("b", 0)),
    ]
    assert route.ordered


def test_keys_keep_their_queues_while_a_master_is_down() -> None:
    every = targets("a", "b")
    selector = QueueSelector(every, queues=[target.queue for target in every])
    before = {key: selector.queue_of_key(key) for key in range(8)}
    selector.update(every[:2], [target.queue for target in every])
    assert {key: selector.queue_of_key(key) for key in range(8)} == before
    assert [selector.target_of(target.queue) for target in every] == [*every[:2], None, None]


def test_the_template_route() -> None:
    route = template_route("t", data(queues("a", 8), queues("b", 2)))
    assert [(queue.broker, queue.id) for queue in route.writable] == [
        *(("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)),
    ]
    assert {queue.topic for queue in route.writable} == {"t"}
