"""Who is there: the producers and consumers that a master knows.

A node that was not seen for its timeout is gone. What happens inside a group stands in
`coherer._rules.tubemq.groups`.

Different from Java's master: a restarted master remembers who was in each group, and leaves a group
alone until its members are back or have had the time to be (`Groups.await_members`). Java waits for
one balance period before it balances anything; without either, the first to return would be given
everything. A member that is known to report often is gone when it stays away for a short time; the
others may be between two reports. To go on without a member that lives is safe: brokers lease a
partition to one consumer at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from coherer._common.logs import Log
from coherer._rules.tubemq.groups import (
    Disagreement,
    Group,
    GroupKind,
    GroupTiming,
    Member,
    Subscription,
)

K = TypeVar("K")

_log = Log(logging.getLogger(__name__))


def _nobody(_: str) -> bool:
    return False


class LivenessTracker(Generic[K]):
    """When each node was last seen, the longest absent first; every call takes constant time.

    >>> book = LivenessTracker[str](timeout_ms=100)
    >>> book.seen("a", 0), book.seen("b", 50), book.seen("a", 90)
    (None, None, None)
    >>> list(book.overdue(160))
    ['b']
    """

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._seen: dict[K, int] = {}

    def seen(self, node: K, now_ms: int) -> None:
        """The node was heard of."""
        self._seen.pop(node, None)
        self._seen[node] = now_ms

    def gone(self, node: K) -> None:
        """Forget the node."""
        self._seen.pop(node, None)

    def overdue(self, now_ms: int) -> Iterator[K]:
        """Takes out every node whose time is over."""
        while self._seen:
            node, seen_ms = next(iter(self._seen.items()))
            if now_ms < seen_ms + self.timeout_ms:
                return
            del self._seen[node]
            yield node


class Producer(msgspec.Struct):
    """A registered producer.

    Args:
        id: its client id.
        host: the address that it named.
        secure: whether it talks to us over TLS.
        topics: what it publishes, as last reported.
        settled: those of its topics that have existed; when one of them is deleted, the
            producer's next heartbeat does not create it again.
    """

    id: str
    host: str
    secure: bool
    topics: tuple[str, ...] = ()
    settled: set[str] = msgspec.field(default_factory=set[str])


class Producers:
    """The producers that are there."""

    def __init__(self, timeout_ms: int) -> None:
        self._known: dict[str, Producer] = {}
        self._attendance = LivenessTracker[str](timeout_ms)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._known.values())

    def register(self, producer: Producer, now_ms: int) -> None:
        """Books a producer, or the return of one."""
        before = self._known.get(producer.id)
        if before is not None:
            producer.settled |= before.settled
        self._known[producer.id] = producer
        self._attendance.seen(producer.id, now_ms)

    def seen(self, client_id: str, now_ms: int) -> Producer | None:
        """Books a heartbeat; None when the producer is not registered."""
        producer = self._known.get(client_id)
        if producer is not None:
            self._attendance.seen(client_id, now_ms)
        return producer

    def known(self, client_id: str) -> bool:
        """Whether the producer is registered."""
        return client_id in self._known

    def close(self, client_id: str) -> None:
        """The producer says goodbye."""
        self._known.pop(client_id, None)
        self._attendance.gone(client_id)

    def expire(self, now_ms: int) -> list[str]:
        """Removes those that were not seen in time, and names them."""
        overdue = list(self._attendance.overdue(now_ms))
        for client_id in overdue:
            self._known.pop(client_id, None)
        return overdue


class Groups:
    """All consumer groups, and when their members were seen.

    Args:
        timeout_ms: how long a consumer may be silent.
        timing: periods of balance.
    """

    def __init__(self, timeout_ms: int, timing: GroupTiming | None = None) -> None:
        self._timing = timing or GroupTiming()
        self._groups: dict[str, Group] = {}
        self._attendance = LivenessTracker[tuple[str, str]](timeout_ms)
        self._awaited: dict[str, set[str]] = {}
        self._awaited_until_ms = 0
        self._prompt: Callable[[str], bool] = _nobody
        self._absent_ms = 0
        self._back_since_ms: int | None = None

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        """How many consumers there are."""
        return sum(len(group.members) for group in self._groups.values())

    def get(self, name: str) -> Group | None:
        """The group, if it has members."""
        return self._groups.get(name)

    def disagreement(
        self, name: str, member_id: str, subscription: Subscription, node_id: int = -2
    ) -> Disagreement | None:
        """Why a consumer may not join; None when it may."""
        group = self._groups.get(name)
        return group.disagreement(member_id, subscription, node_id) if group else None

    def join(self, name: str, member: Member, subscription: Subscription, now_ms: int) -> Group:
        """Takes a consumer into its group, which is made where it is not there."""
        group = self._groups.get(name)
        if group is None or set(group.members) <= {member.id}:
            fresh = Group(name, subscription, self._timing)
            fresh.from_max_id = group.from_max_id if group else -2
            group = self._groups[name] = fresh
        group.join(member, now_ms)
        self._attendance.seen((name, member.id), now_ms)
        self._returned(name, member.id)
        return group

    def seen(self, name: str, member_id: str, now_ms: int) -> tuple[Group, Member] | None:
        """Books a heartbeat; None when the consumer is not registered."""
        group = self._groups.get(name)
        member = group.members.get(member_id) if group else None
        if group is None or member is None:
            return None
        self._attendance.seen((name, member_id), now_ms)
        return group, member

    def leave(self, name: str, member_id: str, now_ms: int) -> bool:
        """Takes a consumer out of its group; False when it was not there."""
        self._attendance.gone((name, member_id))
        self._returned(name, member_id)
        return self._remove(name, member_id, now_ms)

    def expire(self, now_ms: int) -> list[tuple[str, str]]:
        """Removes consumers that were not seen in time: (group, client id) of each."""
        overdue = list(self._attendance.overdue(now_ms))
        for name, member_id in overdue:
            self._remove(name, member_id, now_ms)
        return overdue

    def touch(self, topics: Iterable[str], now_ms: int) -> None:
        """Something about these topics has changed: their groups are to be balanced."""
        changed = frozenset(topics)
        for group in self._groups.values():
            if changed & group.subscription.topics:
                group.due_ms = now_ms

    def forget_broker(self, broker: int, now_ms: int) -> None:
        """The broker started anew: nobody holds its partitions any more."""
        for group in self._groups.values():
            group.forget_broker(broker, now_ms)

    # -- when to balance

    def due(self, now_ms: int) -> list[Group]:
        """The groups that are to be balanced now; to be called again and again."""
        if self._back_since_ms is None:
            self._back_since_ms = now_ms
        return [group for group in self._groups.values() if self.is_due(group, now_ms)]

    def is_due(self, group: Group, now_ms: int) -> bool:
        """Whether the group is to be balanced now."""
        if group.due_ms is None or now_ms < group.due_ms:
            return False
        return not self._awaits(group.name, now_ms)

    # -- what a restarted master remembers

    def roll(self, now_ms: int) -> dict[str, list[str]]:
        """The client ids of every group, to be given to `await_members` after a restart.

        Groups that choose their partitions themselves are not in it: nothing is shared out to them.
        Those who are still awaited are in it, for a master that is restarted twice.
        """
        roll = {
            group.name: list(group.members)
            for group in self._groups.values()
            if group.subscription.kind is not GroupKind.CLIENT_BALANCED
        }
        if now_ms < self._awaited_until_ms:
            for name, awaited in self._awaited.items():
                roll.setdefault(name, []).extend(sorted(awaited))
        return roll

    def await_members(
        self,
        roll: Mapping[str, Collection[str]],
        until_ms: int,
        *,
        prompt: Callable[[str], bool] = _nobody,
        absent_ms: int = 0,
    ) -> None:
        """Leaves these groups alone until all of these consumers are back, or until then.

        Args:
            roll: the consumers of every group.
            until_ms: nobody is waited for after this time.
            prompt: whether a consumer of this id reports so often that it is back soon.
            absent_ms: how long such consumers are waited for, from the next call of `due` on.
        """
        self._awaited = {name: set(members) for name, members in roll.items()}
        self._awaited_until_ms = until_ms
        self._prompt = prompt
        self._absent_ms = absent_ms
        self._back_since_ms = None

    def _awaits(self, name: str, now_ms: int) -> bool:
        """Whether a group waits for consumers that were there before a restart."""
        if now_ms >= self._awaited_until_ms or not self._awaited.get(name):
            return False
        if self._back_since_ms is None or now_ms < self._back_since_ms + self._absent_ms:
            return True
        for member_id in sorted(filter(self._prompt, self._awaited[name])):
            _log.info("Group %s waits no longer for %s, which has not come back", name, member_id)
            self._returned(name, member_id)
        return name in self._awaited

    def _returned(self, name: str, member_id: str) -> None:
        awaited = self._awaited.get(name)
        if awaited is not None:
            awaited.discard(member_id)
            if not awaited:
                del self._awaited[name]

    def _remove(self, name: str, member_id: str, now_ms: int) -> bool:
        group = self._groups.get(name)
        if group is None or group.leave(member_id, now_ms) is None:
            return False
        if not group.members:
            del self._groups[name]
        return True
