"""The clients of a RocketMQ broker: consumers, producers and queue locks.

See docs/protocol/rocketmq.md, sections 2.10 and 3.6 to 3.10.

A client shows that it is alive with heartbeats. Consumers form groups. The last heartbeat of any
member defines the group: its consume type, its message model and its subscriptions.

`ConsumerManager` keeps the members and returns events, which the broker handles in this order:

* `Changed`: notify the members of a group (code 40).
* `Registered` and `Unregistered`: update the filters of a group.

`ProducerManager` differs from Java's: a client that has left one of its groups, or has reconnected,
can still be found by its id, so that replies reach it (section 2.14).

`QueueLocks` says which client may consume a queue in order (codes 41 and 42). A consumer renews its
locks while it lives; a lock expires a minute after its last renewal. Locks are not released when a
connection ends: the consumer may reconnect within the minute. The broker stores who owns them, so
that a restart gives no queue to a second consumer while the first one works on it; the minute of a
stored lock begins at the start. Java's broker forgets its locks.

A consumer whose request for a lock is refused tries again at its next rebalance, for Java's clients
up to 20 seconds later. The table therefore remembers refused consumers and returns them when the
queue becomes free, so that the broker can make them rebalance at once. Java's broker does not do
this.

A channel represents a connection. It is only compared and hashed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from coherer import limits
from coherer._common.consumer_problems import described
from coherer._common.logs import Log
from coherer._record.system_topics import RETRY_PREFIX

_log = Log(logging.getLogger(__name__))

C = TypeVar("C", bound=Hashable)


EXPIRED_MS = 120_000
"""A client without a heartbeat for longer is dropped."""

_CHARS_PER_CODE: Final = 8

TAG = "TAG"
ALL = "*"
BROADCASTING = "BROADCASTING"


class GroupSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription of a consumer group to a topic.

    Args:
        expression: the tags or the SQL92 expression; `*` for all messages.
        version: when the client created it, ms since 1970; a higher one replaces it.
        type: `TAG` or `SQL92`.
        codes: the tags' hash codes, which are used for filtering.
        class_filter: an obsolete way to filter.
    """

    topic: str
    expression: str = ALL
    version: int = 0
    type: str = TAG
    tags: tuple[str, ...] = ()
    codes: frozenset[int] = frozenset()
    class_filter: bool = False

    @property
    def chars(self) -> int:
        """Its size, about."""
        words = sum(map(len, self.tags)) + _CHARS_PER_CODE * len(self.codes)
        return len(self.topic) + len(self.expression) + words


class ClientInfo(msgspec.Struct, Generic[C]):
    """A client of a group.

    Args:
        channel: its connection.
        language: its language, from its requests; None for an unknown one.
        version: its version number.
        updated_ms: the time of its last heartbeat.
        topics: its topics and filters as text, without the group's retry topic.
        chars: the size of its subscriptions.
    """

    channel: C
    client_id: str
    language: str | None
    version: int
    updated_ms: int
    topics: str = ""
    chars: int = 0


class GroupSettings(msgspec.Struct, frozen=True):
    """The settings of a group in a heartbeat; None for unknown values (section 3.3).

    Args:
        consume_type: `CONSUME_ACTIVELY` or `CONSUME_PASSIVELY`.
        message_model: `CLUSTERING` or `BROADCASTING`.
        consume_from: where a group without offsets starts.
    """

    consume_type: str | None = "CONSUME_PASSIVELY"
    message_model: str | None = "CLUSTERING"
    consume_from: str | None = "CONSUME_FROM_LAST_OFFSET"


class Changed(msgspec.Struct, Generic[C], frozen=True):
    """The members or subscriptions of a group have changed: notify `channels`."""

    group: str
    channels: tuple[C, ...]


class Registered(msgspec.Struct, frozen=True):
    """A member has sent the subscriptions of its group."""

    group: str
    subscriptions: tuple[GroupSubscription, ...]


class Unregistered(msgspec.Struct, frozen=True):
    """The last member has left a group."""

    group: str


Event: TypeAlias = "Changed[C] | Registered | Unregistered"


class ConsumerGroup(Generic[C]):
    """A group with at least one member.

    Attributes:
        settings: those of the last heartbeat.
        subscriptions: by topic.
        members: by channel, in the order of joining.
        updated_ms: the time of the last heartbeat.
        chars_max: the largest size of its subscriptions.
    """

    __slots__ = ("chars_max", "members", "name", "settings", "subscriptions", "updated_ms")

    def __init__(self, name: str, settings: GroupSettings) -> None:
        self.name = name
        self.settings = settings
        self.subscriptions: dict[str, GroupSubscription] = {}
        self.members: dict[C, ClientInfo[C]] = {}
        self.updated_ms = 0
        self.chars_max = 0

    @property
    def channels(self) -> tuple[C, ...]:
        """The members' channels."""
        return tuple(self.members)

    @property
    def client_ids(self) -> list[str]:
        """The members' ids."""
        return [member.client_id for member in self.members.values()]

    def member(self, client_id: str) -> ClientInfo[C] | None:
        """The member with this id, or None."""
        return next((one for one in self.members.values() if one.client_id == client_id), None)

    def see(self, info: ClientInfo[C], settings: GroupSettings) -> bool:
        """Take a member's heartbeat. Returns whether the member is new."""
        self.settings = settings
        self.updated_ms = info.updated_ms
        known = self.members.get(info.channel)
        if known is None:
            self.members[info.channel] = info
            _log.info(
                "Group %s: %s joined (%s)",
                self.name,
                info.client_id,
                info.language,
                group=self.name,
            )
            return True
        if known.client_id == info.client_id:
            known.updated_ms = info.updated_ms
        else:
            _log.error(
                "Group %s: the client id of a connection changed from %s to %s",
                self.name,
                known.client_id,
                info.client_id,
                group=self.name,
            )
            self.members[info.channel] = info
        return False

    def compare(self, channel: C, subscriptions: Iterable[GroupSubscription]) -> None:
        """Record a member's topics and filters; warn if another member has different ones.

        Members divide all queues among all members. A member leaves the queues of other topics
        unread.
        """
        member = self.members[channel]
        topics = _described(subscriptions)
        if topics == member.topics or self.settings.message_model == BROADCASTING:
            return
        member.topics = topics
        other = next((one for one in self.members.values() if one.topics not in ("", topics)), None)
        if other is not None:
            _log.warning(
                "Group %s: its members subscribe to different topics or filters: %s to %.300s; "
                "%s to %.300s. Some queues are not read: give all members the same topics, or each "
                "set of topics its own group",
                self.name,
                member.client_id,
                topics,
                other.client_id,
                other.topics,
                about=self.name,
                group=self.name,
            )

    def divided(self) -> tuple[ClientInfo[C], ClientInfo[C]] | None:
        """Two members with different topics or filters; None if all members agree (`compare`)."""
        members = [one for one in self.members.values() if one.topics]
        other = next((one for one in members if one.topics != members[0].topics), None)
        return None if other is None else (members[0], other)

    def subscribe(self, subscriptions: Iterable[GroupSubscription]) -> bool:
        """Replace the subscriptions of the group.

        Returns:
            Whether a topic was added or removed. A newer version of a subscription does not count
            (section 3.7).
        """
        changed = False
        topics: set[str] = set()
        for new in subscriptions:
            topics.add(new.topic)
            old = self.subscriptions.get(new.topic)
            if old is None:
                self.subscriptions[new.topic] = new
                changed = True
                _log.info(
                    "Group %s subscribes to %s: %.200s",
                    self.name,
                    new.topic,
                    new.expression,
                    group=self.name,
                    topic=new.topic,
                )
            elif new.version > old.version:
                self.subscriptions[new.topic] = new
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
            changed = True
            _log.warning(
                "Group %s no longer subscribes to %s",
                self.name,
                topic,
                group=self.name,
                topic=topic,
            )
        return changed


def _described(subscriptions: Iterable[GroupSubscription]) -> str:
    return described(
        {
            one.topic: " || ".join(sorted(one.tags)) or one.expression
            for one in subscriptions
            if not one.topic.startswith(RETRY_PREFIX)
        }
    )


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
        self._count = self._chars = 0

    def has_room(self, group: str, channel: C, subscriptions: Iterable[GroupSubscription]) -> bool:
        """Whether a consumer may be registered; one that is known may always stay as it is."""
        found = self._groups.get(group)
        known = None if found is None else found.members.get(channel)
        chars = sum(one.chars for one in subscriptions)
        if known is not None and chars <= known.chars:
            return True
        is_full = known is None and self._count >= limits.CLIENTS_MAX
        # Its member keeps them, and its group, too.
        return not is_full and self._chars + 2 * chars <= limits.SUBSCRIPTIONS_CHARS_MAX

    def get(self, group: str) -> ConsumerGroup[C] | None:
        """The group, or None if it has no members."""
        return self._groups.get(group)

    def groups(self) -> list[ConsumerGroup[C]]:
        """The groups that have members."""
        return list(self._groups.values())

    def find(self, group: str, client_id: str) -> ClientInfo[C] | None:
        """The member of a group with this id, or None."""
        found = self._groups.get(group)
        return None if found is None else found.member(client_id)

    def subscription(self, group: str, topic: str) -> GroupSubscription | None:
        """A group's subscription to a topic, or None."""
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
        subscriptions: Iterable[GroupSubscription],
        *,
        notify: bool,
    ) -> tuple[bool, list[Event[C]]]:
        """Take a consumer's heartbeat.

        Args:
            notify: whether members of this group are notified of changes.

        Returns:
            Whether the group has changed, and the events.
        """
        subscriptions = tuple(subscriptions)
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = ConsumerGroup(group, settings)
        before = found.members.get(info.channel)
        self._chars -= 0 if before is None else before.chars
        joined = found.see(info, settings)
        self._count += joined
        self._weigh(found, found.members[info.channel], subscriptions)
        self._of_channel.setdefault(info.channel, set()).add(found.name)  # one text for all
        found.compare(info.channel, subscriptions)
        changed = found.subscribe(subscriptions) or joined
        events: list[Event[C]] = []
        if changed and notify:
            events.append(Changed(group, found.channels))
        events.append(Registered(group, subscriptions))
        return changed, events

    def unregister(self, group: str, channel: C, *, notify: bool) -> list[Event[C]]:
        """Remove a consumer. Returns the events."""
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
        """Remove the consumers of a closed connection. Returns the events."""
        return [
            event
            for group in sorted(self._of_channel.get(channel, ()))
            for event in self.unregister(group, channel, notify=True)
        ]

    def expire(self, now_ms: int) -> list[C]:
        """Remove consumers without recent heartbeats.

        Returns:
            Their channels, to be closed. There are no events: members are not notified, and filters
            stay (section 3.9).
        """
        gone: list[C] = []
        for group in list(self._groups.values()):
            for channel, member in list(group.members.items()):
                if now_ms - member.updated_ms > EXPIRED_MS:
                    _log.warning(
                        "Group %s: %s has expired", group.name, member.client_id, group=group.name
                    )
                    self._drop(group, channel)
                    gone.append(channel)
            if not group.members:
                self._emptied(group)
        return list(dict.fromkeys(gone))

    def _weigh(
        self,
        group: ConsumerGroup[C],
        member: ClientInfo[C],
        subscriptions: Iterable[GroupSubscription],
    ) -> None:
        member.chars = sum(one.chars for one in subscriptions)
        more = max(member.chars - group.chars_max, 0)
        group.chars_max += more
        self._chars += member.chars + more

    def _drop(self, group: ConsumerGroup[C], channel: C) -> None:
        member = group.members.pop(channel, None)
        if member is not None:
            self._count -= 1
            self._chars -= member.chars
        groups = self._of_channel.get(channel)
        if groups is not None:
            groups.discard(group.name)
            if not groups:
                del self._of_channel[channel]

    def _emptied(self, group: ConsumerGroup[C]) -> Unregistered:
        del self._groups[group.name]
        self._chars -= group.chars_max
        _log.info("Group %s has no members left", group.name, group=group.name)
        return Unregistered(group.name)


_TRIES = 3


class ProducerManager(Generic[C]):
    """The groups of producers, and every producer by its client id.

    >>> manager = ProducerManager[str]()
    >>> manager.register("g", ClientInfo("channel", "me", "PYTHON", 399, 0))
    >>> manager.available("g", lambda channel: True), manager.find("me")
    ('channel', 'channel')
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[C, ClientInfo[C]]] = {}
        # By client id: its connections, the newest one last, with the number of its groups there.
        self._channels: dict[str, dict[C, int]] = {}
        self._of_channel: dict[C, set[str]] = {}
        self._turn = self._count = 0

    def has_room(self, group: str, channel: C) -> bool:
        """Whether a producer may be registered; one that is known always may."""
        return self._count < limits.CLIENTS_MAX or channel in self._groups.get(group, ())

    def __iter__(self) -> Iterator[ClientInfo[C]]:
        """All producers, once for each of their groups."""
        return (one for members in self._groups.values() for one in members.values())

    def groups(self) -> dict[str, list[ClientInfo[C]]]:
        """All producers, by group."""
        return {group: list(members.values()) for group, members in self._groups.items()}

    def members(self, group: str) -> list[ClientInfo[C]] | None:
        """The producers of a group; None when there is no such group."""
        found = self._groups.get(group)
        return None if found is None else list(found.values())

    def find(self, client_id: str) -> C | None:
        """The newest channel of a client, or None."""
        return next(reversed(self._channels.get(client_id, {})), None)

    def register(self, group: str, info: ClientInfo[C]) -> None:
        """Take a producer's heartbeat."""
        members = self._groups.setdefault(group, {})
        known = members.get(info.channel)
        if known is not None:
            known.updated_ms = info.updated_ms
            return
        members[info.channel] = info
        self._count += 1
        channels = self._channels.setdefault(info.client_id, {})
        channels[info.channel] = channels.pop(info.channel, 0) + 1
        self._of_channel.setdefault(info.channel, set()).add(sys.intern(group))  # one text for all
        _log.info(
            "Producer group %s: %s joined (%s)", group, info.client_id, info.language, group=group
        )

    def unregister(self, group: str, channel: C) -> None:
        """Remove a producer from a group."""
        members = self._groups.get(group, {})
        info = members.pop(channel, None)
        if info is None:
            return
        self._count -= 1
        if not members:
            del self._groups[group]
        groups = self._of_channel[channel]
        groups.discard(group)
        if not groups:
            del self._of_channel[channel]
        channels = self._channels[info.client_id]
        channels[channel] -= 1
        if not channels[channel]:
            del channels[channel]
        if not channels:
            del self._channels[info.client_id]

    def close(self, channel: C) -> None:
        """Remove the producers of a closed connection."""
        for group in list(self._of_channel.get(channel, ())):
            self.unregister(group, channel)

    def expire(self, now_ms: int) -> list[C]:
        """Remove producers without recent heartbeats. Returns their channels, to be closed."""
        gone = [
            (group, channel)
            for group, members in self._groups.items()
            for channel, member in members.items()
            if now_ms - member.updated_ms > EXPIRED_MS
        ]
        for group, channel in gone:
            self.unregister(group, channel)
        return list(dict.fromkeys(channel for _, channel in gone))

    def available(
        self,
        group: str,
        alive: Callable[[C], bool],
        writable: Callable[[C], bool] = lambda _: True,
        permitted: Callable[[C], bool] = lambda _: True,
    ) -> C | None:
        """Choose a connected producer of a group, round robin.

        Args:
            alive: whether a channel is connected.
            writable: whether a channel accepts more data at the moment.
            permitted: whether a channel may be chosen at all.

        Returns:
            A channel that is alive and writable if a few tries find one, else one that is alive.
        """
        channels = [one for one in self._groups.get(group, ()) if permitted(one)]
        if not channels:
            return None
        self._turn = self._turn + 1 & 0x7FFFFFFF
        last: C | None = None
        for step in range(_TRIES):
            channel = channels[(self._turn + step) % len(channels)]
            if alive(channel):
                if writable(channel):
                    return channel
                last = channel
        return last


Q = TypeVar("Q", bound=Hashable)

LIFE_MS = 60_000

REFUSED_MAX: Final = 64
"""The maximum number of refused consumers remembered per queue."""


class _Lock:
    """The lock of a queue.

    Attributes:
        client_id: its owner.
        renewed_ms: when it was taken or last renewed.
        refused: the consumers that have asked for it since, in order.
    """

    __slots__ = ("client_id", "refused", "renewed_ms")

    def __init__(self, client_id: str, now_ms: int) -> None:
        self.client_id = client_id
        self.renewed_ms = now_ms
        self.refused: dict[str, None] = {}


INHERITED: Final = ("", "")
"""In place of a group and its client: see `QueueLocks.inherit`."""


class QueueLocks(Generic[Q]):
    """The locks of all groups.

    Args:
        life_ms: how long a lock lasts without renewal.

    Attributes:
        changes: counts how often the owner of a lock has changed.

    >>> locks = QueueLocks[int]()
    >>> locks.lock("g", "a", [0, 1], now_ms=0), locks.lock("g", "b", [1, 2], now_ms=9)
    ([0, 1], [2])
    >>> locks.unlock("g", "a", [1])
    ['b']
    >>> locks.lock("g", "b", [1], now_ms=10)
    [1]
    """

    def __init__(self, life_ms: int = LIFE_MS) -> None:
        self._life_ms = life_ms
        self._groups: dict[str, dict[Q, _Lock]] = {}
        self._count = 0
        self._inherited_ms: int | None = None
        self.changes = 0

    def inherit(self, now_ms: int) -> None:
        """Grant no new lock until those have expired that another broker may have granted."""
        self._inherited_ms = now_ms
        self.changes += 1

    def load(self, owned: Iterable[tuple[str, str, Iterable[Q]]], now_ms: int) -> None:
        """Take locks that were stored, as if they were renewed now."""
        for group, client_id, queues in owned:
            if (group, client_id) == INHERITED:
                self.inherit(now_ms)
            for queue in queues:
                self._add(self._groups.setdefault(group, {}), queue, client_id, now_ms)
                self.changes += 1

    def dump(self) -> list[tuple[str, str, list[Q]]]:
        """The locks: group, owner and queues."""
        found: dict[tuple[str, str], list[Q]] = {}
        if self._inherited_ms is not None:
            found[INHERITED] = []
        for group, held in self._groups.items():
            for queue, lock in held.items():
                found.setdefault((group, lock.client_id), []).append(queue)
        return [(group, owner, queues) for (group, owner), queues in found.items()]

    def lock(self, group: str, client_id: str, queues: Iterable[Q], now_ms: int) -> list[Q]:
        """Take or renew locks. Returns the queues whose locks the client now owns."""
        held = self._groups.setdefault(group, {})
        granted: list[Q] = []
        is_full = False
        for queue in dict.fromkeys(queues):
            lock = held.get(queue)
            if lock is None and self._count >= limits.LOCKS_MAX:
                is_full = True
                continue  # the client may own others, which it renews
            if lock is None and self._inherited_ms is not None:
                lock = self._add(held, queue, "", self._inherited_ms)
            if lock is None:
                self._add(held, queue, client_id, now_ms)
                self.changes += 1
            elif lock.client_id == client_id or self._is_over(lock, now_ms):
                self.changes += lock.client_id != client_id
                lock.client_id, lock.renewed_ms = client_id, now_ms
                lock.refused.pop(client_id, None)
            else:
                if len(lock.refused) < REFUSED_MAX:
                    lock.refused[client_id] = None
                continue
            granted.append(queue)
        if is_full:
            _log.error(
                "Group %s gets no further locks: this broker has %d",
                group,
                self._count,
                about="locks",
                group=group,
            )
        return granted

    def _add(self, held: dict[Q, _Lock], queue: Q, client_id: str, now_ms: int) -> _Lock:
        self._count += queue not in held
        held[queue] = _Lock(client_id, now_ms)
        return held[queue]

    def unlock(self, group: str, client_id: str, queues: Iterable[Q]) -> list[str]:
        """Release those of these locks that the client owns.

        Returns:
            The consumers that were refused one of the released locks.
        """
        held = self._groups.get(group, {})
        refused: dict[str, None] = {}
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
                self._count -= 1
                self.changes += 1
                refused.update(lock.refused)
        if not held:
            self._groups.pop(group, None)
        return list(refused)

    def owner(self, group: str, queue: Q, now_ms: int) -> str | None:
        """The owner of a queue's lock, or None."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._is_over(lock, now_ms) else lock.client_id

    def forget_expired(self, now_ms: int) -> dict[str, list[str]]:
        """Release expired locks.

        Returns:
            By group, the consumers that were refused one of the released locks.
        """
        freed: dict[str, dict[str, None]] = {}
        if self._inherited_ms is not None and now_ms - self._inherited_ms > self._life_ms:
            self._inherited_ms = None
            self.changes += 1
        for group, held in list(self._groups.items()):
            for queue, lock in list(held.items()):
                if self._is_over(lock, now_ms):
                    del held[queue]
                    self._count -= 1
                    self.changes += 1
                    if lock.refused:
                        freed.setdefault(group, {}).update(lock.refused)
            if not held:
                del self._groups[group]
        return {group: list(refused) for group, refused in freed.items()}

    def _is_over(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self._life_ms
