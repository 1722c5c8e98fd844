"""Consumers and producers of a RocketMQ broker.

See docs/protocol/rocketmq.md, sections 3.7 to 3.10.
"""

from __future__ import annotations

import logging

import pytest

from coherer._rules.rocketmq.clients import (
    EXPIRED_MS,
    Changed,
    ClientInfo,
    ConsumerManager,
    Event,
    GroupSettings,
    GroupSubscription,
    ProducerManager,
    Registered,
    Unregistered,
)


def client(channel: str, now_ms: int = 0, client_id: str = "") -> ClientInfo[str]:
    return ClientInfo(channel, client_id or f"id-{channel}", "JAVA", 399, now_ms)


def tags(topic: str, version: int = 1, expression: str = "*") -> GroupSubscription:
    return GroupSubscription(topic=topic, version=version, expression=expression)


class Broker:
    """A manager whose heartbeats are short to write."""

    def __init__(self) -> None:
        self.manager = ConsumerManager[str]()

    def beat(
        self,
        channel: str,
        *topics: GroupSubscription,
        group: str = "g",
        settings: GroupSettings | None = None,
        notify: bool = True,
        now_ms: int = 0,
        client_id: str = "",
    ) -> tuple[bool, list[Event[str]]]:
        return self.manager.register(
            group,
            client(channel, now_ms, client_id),
            settings or GroupSettings(),
            topics,
            notify=notify,
        )

    def subscribed(self) -> dict[str, int]:
        group = self.manager.get("g")
        assert group is not None
        return {topic: one.version for topic, one in group.subscriptions.items()}


@pytest.fixture
def broker() -> Broker:
    return Broker()


# -- section 3.7


def test_a_group_appears_with_its_first_heartbeat(broker: Broker) -> None:
    assert broker.manager.get("g") is None
    settings = GroupSettings("CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_TIMESTAMP")
    changed, events = broker.beat("a", tags("t"), settings=settings, now_ms=5)
    assert changed
    assert events == [Changed("g", ("a",)), Registered("g", (tags("t"),))]
    group = broker.manager.get("g")
    assert group is not None
    assert group.settings == settings
    assert group.updated_ms == 5
    assert group.client_ids == ["id-a"]


def test_the_last_heartbeat_sets_the_kind(broker: Broker) -> None:
    broker.beat("a", tags("t"))
    later = GroupSettings(None, "BROADCASTING", None)
    assert broker.beat("b", tags("t"), settings=later)[0]
    group = broker.manager.get("g")
    assert group is not None
    assert group.settings == later


def test_the_same_again_changes_nothing(broker: Broker) -> None:
    broker.beat("a", tags("t"))
    changed, events = broker.beat("a", tags("t"), now_ms=9)
    assert not changed
    assert events == [Registered("g", (tags("t"),))]
    found = broker.manager.find("g", "id-a")
    assert found is not None
    assert found.updated_ms == 9


def test_the_new_member_is_notified_as_well(broker: Broker) -> None:
    broker.beat("a", tags("t"))
    _, events = broker.beat("b", tags("t"))
    assert events[0] == Changed("g", ("a", "b"))


def test_a_connection_with_another_name(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    broker.beat("a", tags("t"), client_id="one")
    with caplog.at_level(logging.ERROR):
        changed, _ = broker.beat("a", tags("t"), client_id="two", now_ms=3)
    assert not changed
    assert "one" in caplog.text
    assert "two" in caplog.text
    assert broker.manager.find("g", "one") is None
    found = broker.manager.find("g", "two")
    assert found is not None
    assert found.updated_ms == 3


def test_one_name_on_two_connections_are_two_members(broker: Broker) -> None:
    broker.beat("a", tags("t"), client_id="same")
    assert broker.beat("b", tags("t"), client_id="same")[0]
    group = broker.manager.get("g")
    assert group is not None
    assert group.client_ids == ["same", "same"]


@pytest.mark.parametrize(("version", "kept"), [(4, 5), (5, 5), (6, 6)])
def test_only_a_newer_version_replaces_and_does_not_count(
    broker: Broker, version: int, kept: int
) -> None:
    broker.beat("a", tags("t", 5, "A"))
    changed, events = broker.beat("a", tags("t", version, "B"))
    assert not changed
    assert events == [Registered("g", (tags("t", version, "B"),))]
    assert broker.subscribed() == {"t": kept}
    found = broker.manager.subscription("g", "t")
    assert found is not None
    assert found.expression == ("B" if version > 5 else "A")


def test_another_topic_is_a_change(broker: Broker) -> None:
    broker.beat("a", tags("t"))
    assert broker.beat("a", tags("t"), tags("u"))[0]
    assert broker.beat("a", tags("u"))[0]
    assert broker.subscribed() == {"u": 1}


def test_members_with_different_topics_take_them_from_each_other(broker: Broker) -> None:
    broker.beat("a", tags("t"))
    broker.beat("b", tags("u"))
    for channel, topic in (("a", "t"), ("b", "u"), ("a", "t")):
        changed, events = broker.beat(channel, tags(topic))
        assert changed
        assert events[0] == Changed("g", ("a", "b"))
        assert broker.subscribed() == {topic: 1}


def test_a_group_without_notifications(broker: Broker) -> None:
    changed, events = broker.beat("a", tags("t"), notify=False)
    assert changed
    assert events == [Registered("g", (tags("t"),))]
    assert broker.manager.unregister("g", "a", notify=False) == [Unregistered("g")]


# -- section 3.8


def test_unregistering(broker: Broker) -> None:
    broker.beat("a", tags("t"))
    broker.beat("b", tags("t"))
    assert broker.manager.unregister("g", "a", notify=True) == [Changed("g", ("b",))]
    assert broker.manager.unregister("g", "b", notify=True) == [
        Unregistered("g"),
        Changed("g", ()),
    ]
    assert broker.manager.get("g") is None
    assert broker.manager.unregister("g", "b", notify=True) == []


def test_a_lost_connection_leaves_all_its_groups(broker: Broker) -> None:
    broker.beat("a", tags("t"), group="g")
    broker.beat("b", tags("t"), group="g", notify=False)
    broker.beat("a", tags("t"), group="h")
    broker.beat("c", tags("t"), group="i")
    assert broker.manager.close("a") == [
        Changed("g", ("b",)),  # whatever the group's switch says
        Unregistered("h"),
        Changed("h", ()),
    ]
    assert broker.manager.close("a") == []
    assert broker.manager.get("i") is not None


def test_the_groups_that_subscribe_to_a_topic(broker: Broker) -> None:
    broker.beat("a", tags("t"), tags("u"), group="g")
    broker.beat("b", tags("u"), group="h")
    assert broker.manager.groups_of("t") == ["g"]
    assert broker.manager.groups_of("u") == ["g", "h"]
    assert broker.manager.groups_of("v") == []
    assert broker.manager.subscription("h", "t") is None
    assert broker.manager.subscription("nobody", "t") is None
    assert broker.manager.find("nobody", "id-a") is None


# -- section 3.9


def test_expired_members_are_removed_without_events(broker: Broker) -> None:
    broker.beat("a", tags("t"), now_ms=0)
    broker.beat("b", tags("t"), now_ms=1)
    broker.beat("a", tags("t"), group="h", now_ms=0)
    assert broker.manager.expire(EXPIRED_MS) == []
    assert broker.manager.expire(EXPIRED_MS + 1) == ["a"]
    group = broker.manager.get("g")
    assert group is not None
    assert group.channels == ("b",)
    assert broker.manager.get("h") is None
    assert broker.manager.close("a") == []  # the connection's end finds nothing any more
    broker.beat("b", tags("t"), now_ms=EXPIRED_MS)
    assert broker.manager.expire(EXPIRED_MS + 2) == []


# -- section 3.10


def all_alive(channel: str) -> bool:
    return bool(channel)


def test_producers_come_and_go() -> None:
    producers = ProducerManager[str]()
    producers.register("p", client("a", 1))
    producers.register("p", client("b", 2))
    producers.register("q", client("a", 3))
    assert [one.client_id for one in producers.members("p") or ()] == ["id-a", "id-b"]
    assert producers.members("r") is None
    assert producers.find("id-b") == "b"
    producers.unregister("p", "b")
    assert producers.find("id-b") is None
    producers.unregister("p", "a")
    assert producers.members("p") is None
    assert producers.find("id-a") == "a"  # it still produces for q
    producers.unregister("q", "nobody")
    producers.close("a")
    assert producers.members("q") is None
    assert producers.find("id-a") is None


def test_a_producer_that_came_back_is_found_on_its_new_connection() -> None:
    producers = ProducerManager[str]()
    producers.register("p", client("old", client_id="me"))
    producers.register("p", client("new", client_id="me"))
    assert producers.find("me") == "new"
    producers.close("old")
    assert producers.find("me") == "new"


def test_producers_that_were_not_heard_of() -> None:
    producers = ProducerManager[str]()
    producers.register("p", client("a", 0))
    producers.register("q", client("a", 0))
    producers.register("p", client("b", 0))
    producers.register("p", client("b", 50))
    assert producers.expire(EXPIRED_MS) == []
    assert producers.expire(EXPIRED_MS + 1) == ["a"]
    assert producers.find("id-a") is None
    assert producers.members("q") is None
    assert [one.channel for one in producers.members("p") or ()] == ["b"]


def test_producers_take_turns() -> None:
    producers = ProducerManager[str]()
    for channel in "abc":
        producers.register("p", client(channel))
    turns = [producers.available("p", all_alive) for _ in range(6)]
    assert set(turns[:3]) == {"a", "b", "c"}
    assert turns[:3] == turns[3:]
    assert producers.available("q", all_alive) is None


@pytest.mark.parametrize(
    ("alive", "writable", "found"),
    [("abcd", "c", "c"), ("bd", "bd", "bd"), ("a", "", "a"), ("", "abcd", "")],
)
def test_the_writable_first_then_the_living(alive: str, writable: str, found: str) -> None:
    producers = ProducerManager[str]()
    for channel in "abc":
        producers.register("p", client(channel))
    for _ in range(3):
        chosen = producers.available("p", lambda c: c in alive, lambda c: c in writable)
        assert chosen is None if not found else chosen is not None and chosen in found


def test_only_three_are_tried() -> None:
    producers = ProducerManager[str]()
    for channel in "abcdefgh":
        producers.register("p", client(channel))
    tried: list[str] = []

    def alive(channel: str) -> bool:
        tried.append(channel)
        return False

    assert producers.available("p", alive) is None
    assert tried == ["b", "c", "d"]


def test_a_producer_with_two_connections_is_found_while_one_is_left() -> None:
    producers = ProducerManager[str]()
    producers.register("p", client("old", client_id="me"))
    producers.register("p", client("new", client_id="me"))
    producers.close("new")
    assert producers.find("me") == "old"
    producers.close("old")
    assert producers.find("me") is None


def test_no_client_id_of_a_closed_connection_is_left() -> None:
    """A proxy sends the heartbeats of many clients over one connection."""
    producers = ProducerManager[str]()
    for number in range(3):
        producers.register(f"g{number}", client("proxy", client_id=f"me-{number}"))
    producers.unregister("g1", "proxy")
    assert [producers.find(f"me-{number}") for number in range(3)] == ["proxy", None, "proxy"]
    producers.close("proxy")
    assert [producers.find(f"me-{number}") for number in range(3)] == [None, None, None]
