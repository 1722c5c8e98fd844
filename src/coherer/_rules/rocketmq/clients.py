"""Who is connected to a RocketMQ broker, and the consumers among them (rocketmq 3.6 to 3.9).

A client shows itself with heartbeats. Consumers make up groups, and what the last heartbeat of any
member says about the group is what holds for all: its kind, its model, and its subscriptions.

The manager decides and remembers; it tells with events what must be done about it, in that order:

* `Changed`: the members of a group are to be told (40) that it has changed,
* `Registered` and `Unregistered`: the filters of a group are to be kept or laid aside.

A channel is whatever stands for a connection; it is only compared.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from typing import Generic, TypeAlias, TypeVar

import msgspec

from coherer._common.logs import Log

C = TypeVar("C", bound=Hashable)

_log = Log(logging.getLogger(__name__))

EXPIRED_MS = 120_000
"""A client that was not heard of for longer is gone."""

TAG = "TAG"
ALL = "*"
BROADCASTING = "BROADCASTING"


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """What a group wants of a topic.

    Args:
        topic: the topic.
        expression: the tags or the SQL92 text; `*` for everything.
        version: when the client made it, ms since 1970; a higher one replaces it.
        type: `TAG` or `SQL92`.
        tags: the tags.
        codes: their hash codes, which are what filters.
        class_filter: an obsolete way to filter.
    """

    topic: str
    expression: str = ALL
    version: int = 0
    type: str = TAG
    tags: tuple[str, ...] = ()
    codes: frozenset[int] = frozenset()
    class_filter: bool = False


class ClientInfo(msgspec.Struct, Generic[C]):
    """A client at the end of a channel.

    Args:
        channel: its connection.
        client_id: its name.
        language: what it is written in, as its requests say; None for one that nobody knows.
        version: its version's number.
        updated_ms: when it was last heard of.
    """

    channel: C
    client_id: str
    language: str | None
    version: int
    updated_ms: int


class GroupSettings(msgspec.Struct, frozen=True):
    """What a heartbeat says about its group; None for a word that nobody knows (3.3).

    Args:
        consume_type: `CONSUME_ACTIVELY` or `CONSUME_PASSIVELY`.
        message_model: `CLUSTERING` or `BROADCASTING`.
        consume_from: where a group without positions begins.
    """

    consume_type: str | None = "CONSUME_PASSIVELY"
    message_model: str | None = "CLUSTERING"
    consume_from: str | None = "CONSUME_FROM_LAST_OFFSET"


class Changed(msgspec.Struct, Generic[C], frozen=True):
    """A group's members or topics have changed: tell `channels`."""

    group: str
    channels: tuple[C, ...]


class Registered(msgspec.Struct, frozen=True):
    """A member has said what the group subscribes to."""

    group: str
    subscriptions: tuple[Subscription, ...]


class Unregistered(msgspec.Struct, frozen=True):
    """A group has no members any more."""

    group: str


Event: TypeAlias = "Changed[C] | Registered | Unregistered"


class ConsumerGroup(Generic[C]):
    """A group with at least one member.

    Attributes:
        name: its name.
        settings: what the last heartbeat said.
        subscriptions: by topic.
        members: by channel, the longest connected first.
        updated_ms: when any of them was last heard of.
    """

    __slots__ = ("members", "name", "settings", "subscriptions", "updated_ms")

    def __init__(self, name: str, settings: GroupSettings) -> None:
        self.name = name
        self.settings = settings
        self.subscriptions: dict[str, Subscription] = {}
        self.members: dict[C, ClientInfo[C]] = {}
        self.updated_ms = 0

    @property
    def channels(self) -> tuple[C, ...]:
        """The members' channels."""
        return tuple(self.members)

    @property
    def client_ids(self) -> list[str]:
        """The members' names."""
        return [member.client_id for member in self.members.values()]

    def member(self, client_id: str) -> ClientInfo[C] | None:
        """The member of that name, or None."""
        return next((one for one in self.members.values() if one.client_id == client_id), None)

    def see(self, info: ClientInfo[C], settings: GroupSettings) -> bool:
        """Take a member's heartbeat. Returns whether the member is new."""
        self.settings = settings
        self.updated_ms = info.updated_ms
        known = self.members.get(info.channel)
        if known is None:
            self.members[info.channel] = info
            _log.info("Group %s: %s joined (%s)", self.name, info.client_id, info.language)
            return True
        if known.client_id == info.client_id:
            known.updated_ms = info.updated_ms
        else:
            _log.error(
                "Group %s: one connection is %s and now %s",
                self.name,
                known.client_id,
                info.client_id,
            )
            self.members[info.channel] = info
        return False

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Take a member's subscriptions for those of the group.

        Returns:
            Whether there is a topic more or less. A newer version of a subscription replaces the
            older and does not count (3.7).
        """
        changed = False
        topics: set[str] = set()
        for new in subscriptions:
            topics.add(new.topic)
            old = self.subscriptions.get(new.topic)
            if old is None:
                self.subscriptions[new.topic] = new
                changed = True
                _log.info("Group %s subscribes to %s: %.200s", self.name, new.topic, new.expression)
            elif new.version > old.version:
                self.subscriptions[new.topic] = new
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
            changed = True
            _log.warning("Group %s does not subscribe to %s any more", self.name, topic)
        return changed


class ConsumerManager(Generic[C]):
    """The groups that have members.

    >>> manager = ConsumerManager[str]()
    >>> me = ClientInfo("channel", "me", "PYTHON", 399, 0)
    >>> manager.register("g", me, GroupSettings(), [], notify=True)
    (True, [Changed(group='g', channels=('channel',)), Registered(group='g', subscriptions=())])
    >>> manager.close("channel")
    [Unregistered(group='g'), Changed(group='g', channels=())]
    """

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup[C]] = {}
        self._of_channel: dict[C, set[str]] = {}

    def get(self, group: str) -> ConsumerGroup[C] | None:
        """The group, or None while it has no members."""
        return self._groups.get(group)

    def groups(self) -> list[ConsumerGroup[C]]:
        """The groups that have members."""
        return list(self._groups.values())

    def find(self, group: str, client_id: str) -> ClientInfo[C] | None:
        """A member of a group by its name."""
        found = self._groups.get(group)
        return None if found is None else found.member(client_id)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """What a group wants of a topic, or None."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that subscribe to a topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def register(
        self,
        group: str,
        info: ClientInfo[C],
        settings: GroupSettings,
        subscriptions: Iterable[Subscription],
        *,
        notify: bool,
    ) -> tuple[bool, list[Event[C]]]:
        """Take a consumer's heartbeat.

        Args:
            group: its group.
            info: the consumer, with the time.
            settings: what it says about the group.
            subscriptions: what it wants, for all of the group.
            notify: whether members of this group are told of changes.

        Returns:
            Whether the group has changed, and what is to be done.
        """
        subscriptions = tuple(subscriptions)
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = ConsumerGroup(group, settings)
        joined = found.see(info, settings)
        self._of_channel.setdefault(info.channel, set()).add(group)
        changed = found.subscribe(subscriptions) or joined
        events: list[Event[C]] = []
        if changed and notify:
            events.append(Changed(group, found.channels))
        events.append(Registered(group, subscriptions))
        return changed, events

    def unregister(self, group: str, channel: C, *, notify: bool) -> list[Event[C]]:
        """A consumer says good-bye. Returns what is to be done."""
        found = self._groups.get(group)
        if found is None:
            return []
        self._drop(found, channel)
        events: list[Event[C]] = []
        if not found.members:
            events.append(self._emptied(found))
        if notify:
            events.append(Changed(group, found.channels))
        return events

    def close(self, channel: C) -> list[Event[C]]:
        """A connection is gone. Returns what is to be done; everybody is told (3.8)."""
        return [
            event
            for group in sorted(self._of_channel.get(channel, ()))
            for event in self.unregister(group, channel, notify=True)
        ]

    def expire(self, now_ms: int) -> list[C]:
        """Forget consumers that were not heard of in time.

        Returns:
            Their channels, to be closed. Nobody is told, and filters stay as they are (3.9).
        """
        gone: list[C] = []
        for group in list(self._groups.values()):
            for channel, member in list(group.members.items()):
                if now_ms - member.updated_ms > EXPIRED_MS:
                    _log.warning("Group %s: %s is gone", group.name, member.client_id)
                    self._drop(group, channel)
                    gone.append(channel)
            if not group.members:
                self._emptied(group)
        return list(dict.fromkeys(gone))

    def _drop(self, group: ConsumerGroup[C], channel: C) -> None:
        group.members.pop(channel, None)
        groups = self._of_channel.get(channel)
        if groups is not None:
            groups.discard(group.name)
            if not groups:
                del self._of_channel[channel]

    def _emptied(self, group: ConsumerGroup[C]) -> Unregistered:
        del self._groups[group.name]
        _log.info("Group %s has no members any more", group.name)
        return Unregistered(group.name)
