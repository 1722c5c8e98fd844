"""Name server rules: registration, liveness, permission, settings.

See docs/protocol/rocketmq.md, section 9.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec
import pytest

from coherer._rules.common.java_json import DataVersion
from coherer._rules.rocketmq.routes import (
    EXPIRE_MS,
    BrokerRegistration,
    KeyValueTable,
    MasterAddress,
    QueueData,
    RouteTable,
)


def queues(broker: str = "a", perm: int = 6, sys_flag: int = 0) -> QueueData:
    return QueueData(broker, 4, 4, perm, sys_flag)


def said(
    broker: str = "a",
    broker_id: int = 0,
    *,
    address: str = "",
    topics: dict[str, QueueData] | None = None,
    counter: int = 1,
    cluster: str = "c",
    filter_servers: list[str] | None = None,
    link: Hashable = None,
) -> BrokerRegistration:
    address = address or f"{broker}{broker_id}:1"
    return BrokerRegistration(
        cluster=cluster,
        broker=broker,
        broker_id=broker_id,
        address=address,
        ha_address=f"ha-{address}",
        version=DataVersion(counter, 5),
        topics={"t": queues(broker)} if topics is None else topics,
        filter_servers=filter_servers,
        link=link,
    )


def test_a_route_has_all_brokers_of_the_topic() -> None:
    table = RouteTable()
    table.register(said("a"), 0)
    table.register(said("b"), 0)
    route = table.route("t")
    assert route is not None
    assert [data.broker for data in route.queues] == ["a", "b"]
    assert [broker.addresses for broker in route.brokers] == [{0: "a0:1"}, {0: "b0:1"}]
    assert table.clusters == {"c": ["a", "b"]}
    assert table.route("u") is None


def test_topics_are_taken_only_with_another_version() -> None:
    table = RouteTable()
    table.register(said(), 0)
    table.register(said(topics={"u": queues()}), 0)
    assert table.topics() == ["t"]
    table.register(said(topics={"u": queues()}, counter=2), 0)
    assert table.topics() == ["t", "u"]  # unlisted topics stay


def test_a_slave_learns_its_master_and_brings_no_topics() -> None:
    table = RouteTable()
    assert table.register(said(broker_id=1, topics={"only-slave": queues()}), 0) == MasterAddress()
    assert table.register(said(), 0) == MasterAddress()
    assert table.register(said(broker_id=1), 0) == MasterAddress("a0:1", "ha-a0:1")
    assert table.topics() == ["t"]
    assert table.brokers["a"].addresses == {1: "a1:1", 0: "a0:1"}


def test_a_master_that_was_a_slave_moves_its_address() -> None:
    table = RouteTable()
    table.register(said(broker_id=1, address="x:1"), 0)
    table.register(said(broker_id=0, address="x:1"), 0)
    assert table.brokers["a"].addresses == {0: "x:1"}


def test_losing_the_master_keeps_the_topics_while_a_slave_is_there() -> None:
    table = RouteTable()
    link = object()
    table.register(said(link=link), 0)
    table.register(said(broker_id=1, link=object()), 0)
    table.lost(link, "elsewhere:9")
    route = table.route("t")
    assert route is not None
    assert route.brokers[0].addresses == {1: "a1:1"}
    assert [data.broker for data in route.queues] == ["a"]


def test_losing_the_last_address_takes_everything() -> None:
    table = RouteTable()
    link = object()
    table.register(said(link=link), 0)
    table.lost(link, "elsewhere:9")
    assert (table.topics(), table.clusters, dict(table.brokers)) == ([], {}, {})


def test_an_unknown_connection_is_found_by_its_address() -> None:
    table = RouteTable()
    table.register(said(link=object()), 0)
    table.lost(object(), "other:1")
    assert table.topics() == ["t"]
    table.lost(object(), "a0:1")
    assert table.topics() == []


def test_silence_for_two_minutes_ends_a_broker() -> None:
    table = RouteTable()
    link = object()
    table.register(said("a", link=link), 0)
    table.register(said("b", link="other"), 1)
    assert table.expire(EXPIRE_MS) == []
    assert table.expire(EXPIRE_MS + 1) == [link]
    assert table.clusters == {"c": ["b"]}


def test_asking_for_changes_keeps_a_broker_alive() -> None:
    table = RouteTable()
    table.register(said(), 0)
    assert table.unchanged("a0:1", DataVersion(1, 5), 1_000)
    assert not table.unchanged("a0:1", DataVersion(2, 5), 2_000)
    assert not table.unchanged("b0:1", DataVersion(1, 5), 2_000)
    assert table.version("a0:1") == DataVersion(1, 5)
    assert table.version("b0:1") is None
    assert table.expire(EXPIRE_MS + 1_000) == []
    assert table.expire(EXPIRE_MS + 1_001) == [None]


def test_unregistering_a_broker() -> None:
    table = RouteTable()
    table.register(said(), 0)
    table.register(said(broker_id=1), 0)
    table.unregister("a", 0, "a0:1")
    assert table.brokers["a"].addresses == {1: "a1:1"}
    table.unregister("a", 1, "a1:1")
    table.unregister("a", 1, "a1:1")
    assert (table.topics(), table.clusters) == ([], {})


def test_a_broker_that_is_gone_is_in_no_cluster() -> None:
    table = RouteTable()
    table.register(said(), 0)
    table.register(said(cluster="d"), 0)
    assert table.clusters == {"c": ["a"], "d": ["a"]}
    table.unregister("a", 0, "a0:1")
    assert table.clusters == {}
    link = object()
    table.register(said(), 0)
    table.register(said(cluster="d", link=link), 0)
    table.lost(link, "elsewhere:9")
    assert table.clusters == {}


def test_permission_is_taken_and_given_until_the_topics_change() -> None:
    table = RouteTable()
    topics = {"t": queues(perm=7), "u": queues(perm=6)}
    table.register(said(topics=topics), 0)
    assert table.set_writable("a", writable=False) == 2
    assert perms(table) == [5, 4]
    assert table.set_writable("a", writable=False) == 2
    table.register(said(topics=topics), 0)
    assert perms(table) == [5, 4]
    assert table.set_writable("a", writable=True) == 2
    assert perms(table) == [6, 6]
    table.register(said(topics=topics, counter=2), 0)
    assert perms(table) == [7, 6]
    assert table.set_writable("nobody", writable=True) == 0


def perms(table: RouteTable) -> list[int]:
    routes = [table.route(topic) for topic in ("t", "u")]
    return [route.queues[0].perm for route in routes if route is not None]


def test_topics_by_cluster_and_flag() -> None:
    table = RouteTable()
    units = {f"flag{flag}": queues(sys_flag=flag) for flag in range(4)}
    table.register(said(topics=units), 0)
    table.register(said("b", cluster="d", topics={"flag0": queues("b")}), 0)
    assert table.topics_of_cluster("d") == ["flag0"]
    assert table.topics_of_cluster("e") == []
    assert table.topics_with(1) == ["flag1", "flag3"]
    assert table.topics_with(2) == ["flag2", "flag3"]
    assert table.topics_with(2, without=1) == ["flag2"]
    table.delete_topic("flag2")
    assert table.topics_with(2) == ["flag3"]


def test_the_flag_of_a_topic_is_that_of_the_broker_that_has_not_changed_it() -> None:
    table = RouteTable()
    table.register(said("a", topics={"t": queues("a")}), 0)
    table.register(said("b", topics={"t": queues("b")}), 0)
    table.register(said("a", topics={"t": queues("a", sys_flag=1)}, counter=2), 0)
    assert table.topics_with(1) == []
    table.register(said("b", topics={"t": queues("b")}, counter=2), 0)
    assert table.topics_with(1) == []
    table.register(said("b", topics={"t": queues("b", sys_flag=2)}, counter=3), 0)
    assert table.topics_with(1) == ["t"]


def test_a_local_broker_drops_deleted_topics() -> None:
    table = RouteTable()
    table.register(said("a", topics={"t": queues("a"), "u": queues("a")}), 0)
    table.register(said("b", topics={"t": queues("b")}), 0)
    table.drop("a", ["t", "u", "v"])
    route = table.route("t")
    assert route is not None
    assert [data.broker for data in route.queues] == ["b"]
    assert table.topics() == ["t"]


def test_filter_servers_stay_until_an_empty_list() -> None:
    table = RouteTable()
    table.register(said(filter_servers=["f:1"]), 0)
    table.register(said(), 0)
    route = table.route("t")
    assert route is not None
    assert route.filter_servers == {"a0:1": ["f:1"]}
    table.register(said(filter_servers=[]), 0)
    route = table.route("t")
    assert route is not None
    assert route.filter_servers == {}


def test_settings_survive_a_restart() -> None:
    table = KeyValueTable()
    table.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    data = table.dump()
    assert data == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}'
    assert KeyValueTable.load(data).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"
    for damaged in (b"{}", b"[]", data.replace(b"Table", b"Tabme")):
        with pytest.raises(msgspec.DecodeError):
            KeyValueTable.load(damaged)
