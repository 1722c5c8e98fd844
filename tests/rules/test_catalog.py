"""The catalog: every record survives a restart, and invalid changes are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coherer import limits
from coherer._record.system_topics import HISTORY_TOPIC
from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import (
    BrokerRecord,
    CatalogError,
    Change,
    ManageStatus,
    OpCode,
    TopicProps,
    TopicStatus,
    valid_topic,
)

ME = Change(user="me", now_ms=1_000)
YOU = Change(user="you", now_ms=2_000, data_version=7)


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog()
    catalog.add_broker(BrokerRecord(id=1, host="10.0.0.1"), ME)
    catalog.add_topic("flights", 1, TopicProps(partitions=8), ME)
    return catalog


def test_everything_survives_a_restart(catalog: Catalog) -> None:
    catalog.set_cluster({"message_bytes_max": 2_000_000, "flow_enabled": True}, ME)
    catalog.set_status(1, ManageStatus.ONLINE, YOU)
    catalog.control_topic("flights", {"message_bytes_max": 3_000_000, "authorize": True}, ME)
    catalog.control_group("g", {"priority": 302}, ME)
    catalog.control_consumption("flights", "g", {"filtered": True, "filters": {"a", "b"}}, ME)
    again = Catalog.load(catalog.dump())
    assert again.dump() == catalog.dump()
    assert again.cluster == catalog.cluster
    assert again.brokers == catalog.brokers
    assert again.topics == catalog.topics
    assert again.topic_controls == catalog.topic_controls
    assert again.group_controls == catalog.group_controls
    assert again.consume_controls == catalog.consume_controls


def test_a_broker_gets_the_history_topic(catalog: Catalog) -> None:
    assert [d.topic for d in catalog.topics_of(1)] == [HISTORY_TOPIC, "flights"]
    assert catalog.deployment(HISTORY_TOPIC, 1).props.partitions == 10
    assert list(catalog.topic_names()) == ["flights"]


def test_the_author_of_a_change_is_recorded(catalog: Catalog) -> None:
    before = catalog.broker(1).stamp
    after = catalog.set_status(1, ManageStatus.ONLINE, YOU).stamp
    assert (before.created_by, before.created_ms, before.data_version) == ("me", 1_000, -2)
    assert (after.created_by, after.modified_by, after.modified_ms) == ("me", "you", 2_000)
    assert after.data_version == 7
    assert after.serial > before.serial
    assert catalog.set_status(1, ManageStatus.ONLY_READ, ME).stamp.serial > after.serial


def test_how_a_topic_is_deleted(catalog: Catalog) -> None:
    assert catalog.delete_topic("flights", 1, ME).status is TopicStatus.DELETED
    assert catalog.restore_topic("flights", 1, ME).status is TopicStatus.OK
    assert catalog.remove_topic("flights", 1, ME).status is TopicStatus.REMOVING
    with pytest.raises(CatalogError, match="removing"):
        catalog.restore_topic("flights", 1, ME)
    with pytest.raises(CatalogError, match="already, marked as deleted"):
        catalog.add_topic("flights", 1, TopicProps(), ME)
    assert catalog.forget_topic("flights", 1)
    assert not catalog.forget_topic("flights", 1)
    assert "flights" not in catalog.topics


def test_changed_topics_are_collected(catalog: Catalog) -> None:
    assert catalog.take_touched() == {HISTORY_TOPIC, "flights"}
    assert catalog.take_touched() == set()
    catalog.set_status(1, ManageStatus.ONLINE, ME)
    assert "flights" in catalog.take_touched()
    catalog.control_consumption("flights", "g", {"enabled": False}, ME)
    assert catalog.take_touched() == {"flights"}


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda c: c.add_broker(BrokerRecord(id=1, host="x"), ME), OpCode.EXISTED),
        (lambda c: c.add_broker(BrokerRecord(id=0, host="x"), ME), OpCode.ILLEGAL_VALUE),
        (lambda c: c.add_broker(BrokerRecord(id=2, host=""), ME), OpCode.ILLEGAL_VALUE),
        (lambda c: c.add_broker(BrokerRecord(id=2, host="10.0.0.1"), ME), OpCode.CONFLICT),
        (lambda c: c.update_broker(2, {}, ME), OpCode.NOT_EXIST),
        (lambda c: c.add_topic("weather", 2, TopicProps(), ME), OpCode.NOT_EXIST),
        (lambda c: c.add_topic("flights", 1, TopicProps(), ME), OpCode.EXISTED),
        (lambda c: c.add_topic("2013", 1, TopicProps(), ME), OpCode.ILLEGAL_VALUE),
        (lambda c: c.update_topic("flights", 1, {"partitions": 7}, ME), OpCode.ILLEGAL_VALUE),
        (lambda c: c.update_topic("weather", 1, {}, ME), OpCode.NOT_EXIST),
        (lambda c: c.restore_topic(HISTORY_TOPIC, 1, ME), OpCode.ILLEGAL_STATUS),
        (lambda c: c.remove_topic(HISTORY_TOPIC, 1, ME), OpCode.ILLEGAL_STATUS),
        (lambda c: c.remove_broker(1), OpCode.RELATED_NOT_CLEANED),
        (lambda c: c.control_topic("weather", {}, ME), OpCode.NOT_EXIST),
        (lambda c: c.set_cluster({"message_bytes_max": 0}, ME), OpCode.ILLEGAL_VALUE),
    ],
)
def test_refused_changes_have_no_effect(
    catalog: Catalog, act: Callable[[Catalog], object], code: OpCode
) -> None:
    before = catalog.dump()
    with pytest.raises(CatalogError) as caught:
        act(catalog)
    assert caught.value.code == code
    assert catalog.dump() == before


def test_a_broker_is_removed_only_without_topics(catalog: Catalog) -> None:
    catalog.set_status(1, ManageStatus.ONLINE, ME)
    with pytest.raises(CatalogError, match="is online"):
        catalog.remove_broker(1)
    with pytest.raises(CatalogError, match="no longer a draft"):
        catalog.set_status(1, ManageStatus.DRAFT, ME)
    catalog.set_status(1, ManageStatus.OFFLINE, ME)
    catalog.forget_topic("flights", 1)
    catalog.remove_broker(1)
    assert not catalog.brokers
    assert not catalog.topics


@pytest.mark.parametrize(
    "props",
    [
        TopicProps(partitions=0),
        TopicProps(partitions=limits.TOPIC_PARTITIONS_MAX + 1),
        TopicProps(stores=0),
        TopicProps(cache_mb=1),
        TopicProps(cache_flush_ms=3_999),
        TopicProps(delete_policy="delete,169h"),
        TopicProps(delete_policy="delete,0h"),
        TopicProps(delete_policy="keep"),
    ],
)
def test_properties_have_ranges(props: TopicProps) -> None:
    with pytest.raises(CatalogError) as caught:
        props.checked()
    assert caught.value.code == OpCode.ILLEGAL_VALUE


@pytest.mark.parametrize("policy", ["delete,168h", "delete,168", "delete,90m", "delete,5s"])
def test_policies_may_be_in_hours_minutes_or_seconds(policy: str) -> None:
    assert TopicProps(delete_policy=policy).checked().delete_policy == policy


def test_a_topic_with_authorization_is_closed_to_groups_without_a_record(
    catalog: Catalog,
) -> None:
    assert catalog.consumption("flights", "g") is None
    catalog.control_topic("flights", {"authorize": True}, ME)
    closed = catalog.consumption("flights", "g")
    assert closed is not None
    assert not closed.enabled
    catalog.control_consumption("flights", "g", {}, ME)
    opened = catalog.consumption("flights", "g")
    assert opened is not None
    assert opened.enabled
    assert catalog.release_consumption("g", None) == 1
    assert catalog.release_consumption("g", ["flights"]) == 0


def test_group_controls_come_and_go(catalog: Catalog) -> None:
    catalog.control_group("g", {"priority": 302}, ME)
    assert catalog.group_controls["g"].priority == 302
    assert catalog.release_group("g")
    assert not catalog.release_group("g")


def test_topic_limits_belong_to_the_topic(catalog: Catalog) -> None:
    assert catalog.message_bytes_max("flights") is None
    catalog.control_topic("flights", {"message_bytes_max": 5}, ME)
    assert catalog.message_bytes_max("flights") == 5
    catalog.forget_topic("flights", 1)
    assert catalog.message_bytes_max("flights") is None


@pytest.mark.parametrize("name", ["a b", "ü", "a" * 65, "_x", "-", "a.b", "a\n"])
def test_invalid_topic_names(name: str) -> None:
    assert not valid_topic(name)
