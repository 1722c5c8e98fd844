"""The persistent configuration of a master: cluster settings, brokers, topics, rights of groups.

The catalog survives a restart (`Catalog.dump`, `Catalog.load`). Connected clients and brokers are
not part of it (see `registry` and `groups`). A change replaces a record and raises
`Catalog.version`.

Deliberately less strict than Java's master: a topic can be deleted while it is open for publishing,
and removed without being deleted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from coherer import limits
from coherer._common.decoding import decoder
from coherer._record.system_topics import HISTORY_TOPIC
from coherer._rules.tubemq.records import (
    UNDEFINED,
    BrokerRecord,
    CatalogError,
    Change,
    ClusterSetting,
    ConsumeControl,
    Deployment,
    GroupControl,
    ManageStatus,
    OpCode,
    Stamp,
    TopicControl,
    TopicProps,
    TopicStatus,
    valid_topic,
)

R = TypeVar("R", ClusterSetting, BrokerRecord, TopicControl, GroupControl, ConsumeControl)

_HISTORY_PARTITIONS = 10


class _Data(msgspec.Struct, kw_only=True):
    """The catalog in the file."""

    cluster: ClusterSetting = ClusterSetting()
    brokers: list[BrokerRecord] = msgspec.field(default_factory=list[BrokerRecord])
    topics: list[Deployment] = msgspec.field(default_factory=list[Deployment])
    topic_controls: list[TopicControl] = msgspec.field(default_factory=list[TopicControl])
    group_controls: list[GroupControl] = msgspec.field(default_factory=list[GroupControl])
    consume_controls: list[ConsumeControl] = msgspec.field(default_factory=list[ConsumeControl])


class Catalog:
    """The records, and the rules for changing them.

    Methods that change a record raise `CatalogError` if the change is not valid.

    Attributes:
        version: raised by every change.
        brokers_version: raised by every change of the list of brokers.
        brokers: the brokers by id.
        topics: the deployments by topic, then by broker id.
        topic_controls: the settings of topics by name.
        group_controls: the settings of groups by name.
        consume_controls: the rights by (topic, group).

    >>> catalog = Catalog()
    >>> who = Change(user="me", now_ms=0)
    >>> _ = catalog.add_broker(BrokerRecord(id=1, host="10.0.0.1"), who)
    >>> _ = catalog.add_topic("flights", 1, TopicProps(partitions=8), who)
    >>> list(Catalog.load(catalog.dump()).topic_names())
    ['flights']
    """

    def __init__(self) -> None:
        self.version = 0
        self.brokers_version = 0
        self._touched: set[str] = set()
        self.cluster = ClusterSetting()
        self.brokers: dict[int, BrokerRecord] = {}
        self.topics: dict[str, dict[int, Deployment]] = {}
        self.topic_controls: dict[str, TopicControl] = {}
        self.group_controls: dict[str, GroupControl] = {}
        self.consume_controls: dict[tuple[str, str], ConsumeControl] = {}

    # -- on disk

    @classmethod
    def load(cls, data: bytes) -> Catalog:
        """Read what `dump` has written.

        Raises:
            msgspec.DecodeError: the data is not a catalog.
        """
        stored = decoder(_Data).decode(data)
        catalog = cls()
        catalog.cluster = stored.cluster
        catalog.brokers = {record.id: record for record in stored.brokers}
        for deployment in stored.topics:
            catalog.topics.setdefault(deployment.topic, {})[deployment.broker] = deployment
        catalog.topic_controls = {control.topic: control for control in stored.topic_controls}
        catalog.group_controls = {control.group: control for control in stored.group_controls}
        catalog.consume_controls = {(c.topic, c.group): c for c in stored.consume_controls}
        return catalog

    def dump(self) -> bytes:
        """All records as JSON."""
        return msgspec.json.encode(
            _Data(
                cluster=self.cluster,
                brokers=list(self.brokers.values()),
                topics=list(self.deployments()),
                topic_controls=list(self.topic_controls.values()),
                group_controls=list(self.group_controls.values()),
                consume_controls=list(self.consume_controls.values()),
            ),
            order="deterministic",  # sets have no order of their own
        )

    # -- queries

    def deployments(self) -> Iterator[Deployment]:
        """All topics on all brokers."""
        for by_broker in self.topics.values():
            yield from by_broker.values()

    def topics_of(self, broker: int) -> list[Deployment]:
        """The topics of a broker, ordered by name."""
        return [
            self.topics[name][broker] for name in sorted(self.topics) if broker in self.topics[name]
        ]

    def topic_names(self) -> Iterator[str]:
        """The topics of users, ordered by name."""
        return (name for name in sorted(self.topics) if name != HISTORY_TOPIC)

    def message_bytes_max(self, topic: str) -> int | None:
        """The message limit of the topic, or None if it has no limit of its own."""
        control = self.topic_controls.get(topic)
        return control.message_bytes_max if control else None

    def consumption(self, topic: str, group: str) -> ConsumeControl | None:
        """The rights of the group on the topic; None if they are not restricted.

        If the topic requires authorization and the group has no record, the rights are disabled.
        """
        control = self.consume_controls.get((topic, group))
        if control is not None:
            return control
        topic_control = self.topic_controls.get(topic)
        if topic_control is None or not topic_control.authorize:
            return None
        return ConsumeControl(topic=topic, group=group, enabled=False, reason="not authorized")

    def take_touched(self) -> set[str]:
        """The topics whose records have changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    # -- cluster

    def set_cluster(self, changes: Mapping[str, object], change: Change) -> ClusterSetting:
        """Change settings of the cluster, given by the field names of `ClusterSetting`."""
        setting = _changed(self.cluster, changes, change)
        setting.props.checked()
        if not 1 <= setting.message_bytes_max <= limits.MESSAGE_BYTES_MAX:
            raise CatalogError(
                OpCode.ILLEGAL_VALUE,
                f"The message limit is {setting.message_bytes_max} bytes; it must be within "
                f"1..{limits.MESSAGE_BYTES_MAX}.",
            )
        self.cluster = setting
        self.version += 1
        return setting

    # -- brokers

    def add_broker(self, record: BrokerRecord, change: Change) -> BrokerRecord:
        """Add a broker, with the history topic that Java's brokers need."""
        if record.id in self.brokers:
            raise CatalogError(OpCode.EXISTED, f"Broker {record.id} exists already.")
        if record.id < 1 or not record.host:
            raise CatalogError(OpCode.ILLEGAL_VALUE, "A broker needs an id above 0 and a host.")
        record.props.checked()
        self._check_address(record)
        record = msgspec.structs.replace(record, stamp=_stamp(Stamp(), change))
        self.brokers[record.id] = record
        history = msgspec.structs.replace(record.props, stores=1, partitions=_HISTORY_PARTITIONS)
        self._put(Deployment(topic=HISTORY_TOPIC, broker=record.id, props=history), change)
        self.brokers_version += 1
        return record

    def update_broker(
        self, broker: int, changes: Mapping[str, object], change: Change
    ) -> BrokerRecord:
        """Change a broker, given by the field names of `BrokerRecord`."""
        record = _changed(self.broker(broker), changes, change)
        record.props.checked()
        self._check_address(record)
        self.brokers[broker] = record
        self._touched.update(deployment.topic for deployment in self.topics_of(broker))
        self.version += 1
        self.brokers_version += 1
        return record

    def set_status(self, broker: int, status: ManageStatus, change: Change) -> BrokerRecord:
        """Permit a broker to read and write, or forbid it."""
        record = self.broker(broker)
        if status is ManageStatus.DRAFT and record.status is not ManageStatus.DRAFT:
            raise CatalogError(OpCode.ILLEGAL_STATUS, f"Broker {broker} is no longer a draft.")
        return self.update_broker(broker, {"status": status}, change)

    def remove_broker(self, broker: int) -> None:
        """Remove a broker that is offline and has no topics of users."""
        record = self.broker(broker)
        if record.publishable or record.subscribable:
            raise CatalogError(OpCode.ILLEGAL_STATUS, f"Broker {broker} is {record.status.text}.")
        held = [deployment.topic for deployment in self.topics_of(broker)]
        if held not in ([], [HISTORY_TOPIC]):
            raise CatalogError(
                OpCode.RELATED_NOT_CLEANED, f"Broker {broker} still has {', '.join(held)}."
            )
        for topic in held:
            self.forget_topic(topic, broker)
        del self.brokers[broker]
        self.version += 1
        self.brokers_version += 1

    def broker(self, broker: int) -> BrokerRecord:
        """The record of a broker.

        Raises:
            CatalogError: the broker does not exist.
        """
        record = self.brokers.get(broker)
        if record is None:
            raise CatalogError(OpCode.NOT_EXIST, f"Broker {broker} does not exist.")
        return record

    # -- topics

    def add_topic(self, topic: str, broker: int, props: TopicProps, change: Change) -> Deployment:
        """Add a topic to a broker."""
        self.broker(broker)
        if not valid_topic(topic):
            raise CatalogError(
                OpCode.ILLEGAL_VALUE,
                f"{topic[:80]!r} is not a valid topic name: a letter, then letters, digits, _ and "
                f"-, at most {limits.TOPIC_CHARS_MAX} in total.",
            )
        existing = self.topics.get(topic, {}).get(broker)
        if existing is not None:
            raise CatalogError(
                OpCode.EXISTED,
                f"Topic {topic} exists on broker {broker} already"
                f"{'.' if existing.status is TopicStatus.OK else ', marked as deleted.'}",
                topic=topic,
            )
        return self._put(Deployment(topic=topic, broker=broker, props=props.checked()), change)

    def update_topic(
        self, topic: str, broker: int, changes: Mapping[str, object], change: Change
    ) -> Deployment:
        """Change properties of a topic. Stores and partitions can only be added."""
        record = self.deployment(topic, broker)
        props = msgspec.structs.replace(record.props, **changes).checked()
        if props.partitions < record.props.partitions or props.stores < record.props.stores:
            raise CatalogError(
                OpCode.ILLEGAL_VALUE, "Partitions and stores cannot be removed.", topic=topic
            )
        return self._put(msgspec.structs.replace(record, props=props), change)

    def delete_topic(self, topic: str, broker: int, change: Change) -> Deployment:
        """Close a topic for clients; `restore_topic` reopens it."""
        return self._move(topic, broker, (TopicStatus.OK,), TopicStatus.DELETED, change)

    def restore_topic(self, topic: str, broker: int, change: Change) -> Deployment:
        """Reopen a deleted topic; nothing happens if it is open."""
        before = (TopicStatus.OK, TopicStatus.DELETED)
        return self._move(topic, broker, before, TopicStatus.OK, change)

    def remove_topic(self, topic: str, broker: int, change: Change) -> Deployment:
        """Order the broker to delete the files of a topic. This cannot be undone."""
        before = (TopicStatus.OK, TopicStatus.DELETED)
        return self._move(topic, broker, before, TopicStatus.REMOVING, change)

    def remove_open_topic(self, topic: str, broker: int, change: Change) -> None:
        """Order the broker to delete a topic, if it has the topic and it is not deleted."""
        record = self.topics.get(topic, {}).get(broker)
        if record is not None and record.status is TopicStatus.OK:
            self.remove_topic(topic, broker, change)

    def forget_topic(self, topic: str, broker: int) -> bool:
        """Remove the record after the broker has deleted the files. Returns whether it existed."""
        by_broker = self.topics.get(topic, {})
        if by_broker.pop(broker, None) is None:
            return False
        if not by_broker:
            del self.topics[topic]
            self.topic_controls.pop(topic, None)
        self._touched.add(topic)
        self.version += 1
        return True

    def deployment(self, topic: str, broker: int) -> Deployment:
        """The record of a topic on a broker.

        Raises:
            CatalogError: the broker does not have the topic.
        """
        record = self.topics.get(topic, {}).get(broker)
        if record is None:
            raise CatalogError(
                OpCode.NOT_EXIST, f"Broker {broker} has no topic {topic}.", topic=topic
            )
        return record

    # -- controls

    def control_topic(
        self, topic: str, changes: Mapping[str, object], change: Change
    ) -> TopicControl:
        """Change settings of a topic on all brokers, by the field names of `TopicControl`."""
        if topic not in self.topics:
            raise CatalogError(OpCode.NOT_EXIST, f"Topic {topic} does not exist.", topic=topic)
        before = self.topic_controls.get(topic) or TopicControl(topic=topic)
        control = self.topic_controls[topic] = _changed(before, changes, change)
        self._touched.add(topic)
        self.version += 1
        return control

    def control_group(
        self, group: str, changes: Mapping[str, object], change: Change
    ) -> GroupControl:
        """Change settings of a group, by the field names of `GroupControl`."""
        before = self.group_controls.get(group) or GroupControl(group=group)
        control = self.group_controls[group] = _changed(before, changes, change)
        self.version += 1
        return control

    def control_consumption(
        self, topic: str, group: str, changes: Mapping[str, object], change: Change
    ) -> ConsumeControl:
        """Change the rights of a group on a topic, by the field names of `ConsumeControl`."""
        key = topic, group
        before = self.consume_controls.get(key) or ConsumeControl(topic=topic, group=group)
        control = self.consume_controls[key] = _changed(before, changes, change)
        self._touched.add(topic)
        self.version += 1
        return control

    def knows_group(self, group: str) -> bool:
        """Whether a group has settings, or rights, for which Java's master makes settings."""
        return group in self.group_controls or any(
            group == other for _, other in self.consume_controls
        )

    def release_topic(self, topic: str) -> None:
        """Remove the settings of a topic.

        Raises:
            CatalogError: a broker still has the topic.
        """
        if topic in self.topics:
            raise CatalogError(
                OpCode.ILLEGAL_STATUS, f"Topic {topic} is still deployed: remove it first."
            )
        self.version += self.topic_controls.pop(topic, None) is not None

    def release_group(self, group: str) -> bool:
        """Remove the settings of a group. Returns whether it had any."""
        self.version += 1
        return self.group_controls.pop(group, None) is not None

    def release_consumption(self, group: str, topics: Iterable[str] | None) -> int:
        """Remove the rights of a group on these topics, or on all; returns the number removed."""
        wanted = None if topics is None else frozenset(topics)
        found = [
            key
            for key in self.consume_controls
            if key[1] == group and (wanted is None or key[0] in wanted)
        ]
        for key in found:
            del self.consume_controls[key]
            self._touched.add(key[0])
        self.version += 1
        return len(found)

    def _put(self, record: Deployment, change: Change) -> Deployment:
        record = msgspec.structs.replace(record, stamp=_stamp(record.stamp, change))
        self.topics.setdefault(record.topic, {})[record.broker] = record
        self._touched.add(record.topic)
        self.version += 1
        return record

    def _move(
        self,
        topic: str,
        broker: int,
        before: tuple[TopicStatus, ...],
        after: TopicStatus,
        change: Change,
    ) -> Deployment:
        record = self.deployment(topic, broker)
        if topic == HISTORY_TOPIC or record.status not in before:
            raise CatalogError(
                OpCode.ILLEGAL_STATUS,
                f"Topic {topic} on broker {broker} is {record.status.name.lower()}.",
                topic=topic,
            )
        return self._put(msgspec.structs.replace(record, status=after), change)

    def _check_address(self, record: BrokerRecord) -> None:
        for other in self.brokers.values():
            same = (other.host, other.port) == (record.host, record.port)
            if same and other.id != record.id:
                raise CatalogError(
                    OpCode.CONFLICT,
                    f"Broker {other.id} already has the address {record.host}:{record.port}.",
                )


def _stamp(before: Stamp, change: Change) -> Stamp:
    new = before.serial == UNDEFINED
    return Stamp(
        data_version=change.data_version,
        serial=max(change.now_ms, before.serial + 1),
        created_by=change.user if new else before.created_by,
        created_ms=change.now_ms if new else before.created_ms,
        modified_by=change.user,
        modified_ms=change.now_ms,
    )


def _changed(record: R, changes: Mapping[str, object], change: Change) -> R:
    stamp = _stamp(record.stamp, change)
    return msgspec.structs.replace(record, **{**changes, "stamp": stamp})
