"""Consumer groups at a master: membership, assignments, and the events that carry them.

Rules of one group (`ConsumerGroup`):

* All members of a group agree on topics, filters and kind. The first member sets them; they are
  discarded when the last member leaves (`ConsumerGroup.mismatch`).
* A member holds the partitions that it reported. The master's assignments are sent as events, one
  at a time, in the answers to a member's heartbeats, and the member acknowledges them.
* Revocations come before assignments: while any member has partitions to give up, no member gets
  new ones.
* A group with unacknowledged events is not balanced until they are older than
  `GroupTiming.event_expiry_ms`. Then they are dropped, but a partition that was assigned to a
  member counts as held until that member reports.

Differences from Java's master. They are safe with Java's clients, which copy the id of an event
into the acknowledgement, and skip partitions that they already hold or no longer hold:

* Every event has its own id, and an acknowledgement removes the event with that id. (Java removes
  the first event of the queue, so a duplicate acknowledgement removes a second event.)
* An event that is not acknowledged for `event_resend_ms` is sent again. (Java sends it once; if
  that answer is lost, the group stands still for ten balance periods.)
* A member takes part in the balance from its registration on, not from its first heartbeat.
* A bound group counts as allocated when all its events are acknowledged, not at the first one: a
  member that receives "allocated" together with its event would ignore the offsets that it named.
* Partitions of a broker that is away stay where they are (`dormant`): no other member could read
  them, and their owner continues when the broker is back.
* A restarted master remembers the members of each group, and does not balance a group until they
  are back or have had the time to return (`ConsumerGroups.expect_members`). Java waits for one
  balance period. Without either, the first member to return would be assigned everything. Members
  that report often get a short time; others may be between two reports. A balance without a live
  member is safe, because brokers lease a partition to one consumer at a time.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from coherer._common.logs import Log
from coherer._rules.tubemq.assignment import (
    Assignment,
    Partition,
    first_assignment,
    named_assignment,
    next_assignment,
    reassignments,
)
from coherer._rules.tubemq.registry import LivenessTracker

_log = Log(logging.getLogger(__name__))

NAMED_ROUNDS_MAX = 2
"""In how many rounds a bound group can get its named partitions before it is balanced normally."""


class EventKind(enum.IntEnum):
    """The command that an event carries; the values are those of the protocol."""

    CONNECT = 1
    """Take partitions; other partitions were revoked in the same round."""
    DISCONNECT = 2
    """Give partitions up; others will be assigned in the same round."""
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20


class Event(msgspec.Struct):
    """An instruction for one member.

    Args:
        id: unique in this master and larger than the ids of earlier runs.
        kind: whether to take partitions or to give them up.
        partitions: the partitions.
        made_ms: when it was created.
        sent_ms: when it was last sent; None before.
    """

    id: int
    kind: EventKind
    partitions: tuple[Partition, ...]
    made_ms: int
    sent_ms: int | None = None


class GroupKind(enum.Enum):
    """How the partitions of a group are assigned."""

    NORMAL = "normal"
    BOUND = "bound"
    """Members name partitions and exact offsets; balancing waits until all members are there."""
    CLIENT_BALANCED = "client-balanced"
    """Members choose partitions themselves."""


class GroupSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription that all members of a group share.

    Args:
        kind: how partitions are assigned.
        filters: the filter words by topic; topics without filters are absent.
        session_key: the name of a bound session.
        select_big: if two members name different offsets for a partition, the larger one is used.
        source_count: the number of members of the complete group; -2 if not given.
    """

    kind: GroupKind
    topics: frozenset[str]
    filters: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict[str, frozenset[str]])
    session_key: str = ""
    select_big: bool = False
    source_count: int = -2


class Mismatch(enum.Enum):
    """In which property a new member differs from its group, in the order of the checks."""

    KIND = "consume type"
    TOPICS = "topic set"
    FILTERS = "filter set"
    SESSION_KEY = "session key"
    SELECT_BIG = "selectBig"
    SOURCE_COUNT = "source count"
    NODE_ID = "node id"


class Member(msgspec.Struct, kw_only=True):
    """A consumer in its group.

    Args:
        id: its client id.
        host: the address that it reports.
        address: where its requests come from.
        secure: whether it is connected over TLS.
        held: the partitions that it reported.
        named: the partitions that it asks for, with their starting offsets (bound groups).
        node_id: its index among `source_count` (client-balanced groups); -2 if not given.
        allocated: it reported that the group already has partitions (bound groups).
        revocations: events that take partitions away, in order.
        assignments: events that bring partitions, in order.
    """

    id: str
    host: str
    address: str = ""
    secure: bool = False
    held: frozenset[Partition] = frozenset()
    named: Mapping[Partition, int] = msgspec.field(default_factory=dict[Partition, int])
    node_id: int = -2
    allocated: bool = False
    revocations: deque[Event] = msgspec.field(default_factory=deque[Event])
    assignments: deque[Event] = msgspec.field(default_factory=deque[Event])


class GroupTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Periods of a group's balance, in ms.

    Args:
        retry_ms: when to balance again after a member could not take a partition, because another
            consumer still held it.
        event_resend_ms: when to send an unacknowledged event again. Java's clients acknowledge with
            their next heartbeat, 13 s later.
        event_expiry_ms: when to drop the events of a group if one is not acknowledged.
    """

    retry_ms: int = 1_000
    event_resend_ms: int = 30_000
    event_expiry_ms: int = 120_000


class Suspension(msgspec.Struct):
    """A member that an administrator has ordered to give up all its partitions.

    Args:
        since_ms: when the order was given.
        until_ms: the member gets no partitions before this time.
        begun: a balance has taken the suspension into account.
    """

    since_ms: int
    until_ms: int
    begun: bool = False


class ConsumerGroup:
    """A consumer group: its members, the partitions they hold, and their events.

    Attributes:
        subscription: what its members agree on.
        members: by client id, the oldest first.
        allocated: whether a bound group has had its partitions once.
        due_ms: when to balance next; None if nothing is to do.
        from_max_id: the id of an order to continue from the newest messages (client-balanced
            groups); -2 without such an order.
        suspended: the suspended members by client id; see `suspend`.
    """

    def __init__(self, name: str, subscription: GroupSubscription, timing: GroupTiming) -> None:
        self.name = name
        self.subscription = subscription
        self.members: dict[str, Member] = {}
        self.allocated = False
        self.due_ms: int | None = None
        self.from_max_id = -2
        self.suspended: dict[str, Suspension] = {}
        self._timing = timing
        self._named_rounds = 0

    @property
    def unfinished(self) -> bool:
        """Whether events wait for their acknowledgement."""
        return any(member.revocations or member.assignments for member in self.members.values())

    # -- membership

    def mismatch(
        self, member_id: str, subscription: GroupSubscription, node_id: int = -2
    ) -> Mismatch | None:
        """Why a consumer may not join; None if it may."""
        others = [member for member in self.members.values() if member.id != member_id]
        if not others:
            return None
        agreed = self.subscription
        pairs: list[tuple[Mismatch, object, object]] = [
            (Mismatch.KIND, agreed.kind, subscription.kind),
            (Mismatch.TOPICS, agreed.topics, subscription.topics),
            (Mismatch.FILTERS, dict(agreed.filters), dict(subscription.filters)),
            (Mismatch.SESSION_KEY, agreed.session_key, subscription.session_key),
            (Mismatch.SELECT_BIG, agreed.select_big, subscription.select_big),
        ]
        for mismatch, expected, given in pairs:
            if expected != given:
                return mismatch
        if agreed.source_count < 0:  # as in Java, later members may count themselves all the same
            return None
        if agreed.source_count != subscription.source_count:
            return Mismatch.SOURCE_COUNT
        if node_id >= 0 and any(member.node_id == node_id for member in others):
            return Mismatch.NODE_ID
        return None

    def join(self, member: Member, now_ms: int) -> None:
        """Add a member, or add it again; its earlier events are dropped.

        Unsent events of other members are dropped too: they may depend on what this one gives up.
        """
        self.members.pop(member.id, None)
        for other in self.members.values():
            other.revocations = deque(e for e in other.revocations if e.sent_ms is not None)
            other.assignments = deque(e for e in other.assignments if e.sent_ms is not None)
        self.members[member.id] = member
        if member.held or member.allocated:
            self.allocated = True
        self.due_ms = now_ms

    def leave(self, member_id: str, now_ms: int) -> Member | None:
        """Remove a member with its partitions and events."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.due_ms = now_ms
        return member

    # -- reports of members

    def report(self, member: Member, held: Collection[Partition], now_ms: int) -> None:
        """Record the partitions that a member holds. If they differ, a balance becomes due."""
        reported = frozenset(p for p in held if p.topic in self.subscription.topics)
        if reported != member.held:
            member.held = reported
            self.due_ms = now_ms

    def acknowledge(self, member: Member, event_id: int, now_ms: int, *, reported: bool) -> bool:
        """Record that a member has executed an event.

        Without `reported`, a report of its partitions in the same request, the member is assumed to
        have executed the event completely. Returns whether the event was known; a second
        acknowledgement changes nothing.
        """
        event = self._take_out(member, event_id)
        if event is None:
            return False
        assigns = event.kind in (EventKind.CONNECT, EventKind.ONLY_CONNECT)
        if not reported:
            done = frozenset(event.partitions)
            member.held = member.held | done if assigns else member.held - done
        if not self.unfinished:
            self.allocated = True
        failed = assigns and not member.held.issuperset(event.partitions)
        self.due_ms = now_ms + (self._timing.retry_ms if failed else 0)
        return True

    def next_event(self, member: Member, now_ms: int) -> Event | None:
        """The event to send to the member now, if any; it is marked as sent."""
        revoking = any(other.revocations for other in self.members.values())
        queue = member.revocations if revoking else member.assignments
        if not queue:
            return None
        event = queue[0]
        if event.sent_ms is not None and now_ms < event.sent_ms + self._timing.event_resend_ms:
            return None
        event.sent_ms = now_ms
        return event

    def forget_broker(self, broker: int, now_ms: int) -> None:
        """The broker has restarted without leases: no member holds its partitions any more."""
        for member in self.members.values():
            kept = frozenset(p for p in member.held if p.broker != broker)
            if kept != member.held:
                member.held = kept
                self.due_ms = now_ms

    # -- balance

    def suspend(self, member_ids: Iterable[str], now_ms: int, until_ms: int) -> None:
        """Make members give up all partitions; they get new ones from `until_ms` on.

        Unknown members and client-balanced groups are ignored.
        """
        if self.subscription.kind is GroupKind.CLIENT_BALANCED:
            return
        for member_id in member_ids:
            if member_id in self.members:
                self.suspended[member_id] = Suspension(now_ms, until_ms)
                self.due_ms = now_ms

    def _end_suspensions(self, now_ms: int) -> None:
        for member_id, suspension in list(self.suspended.items()):
            member = self.members.get(member_id)
            released = suspension.begun and member is not None and not member.held
            if member is None or (released and now_ms >= suspension.until_ms):
                del self.suspended[member_id]
            else:
                suspension.begun = True

    def balance(
        self,
        partitions: Collection[Partition],
        *,
        dormant: Callable[[Partition], bool],
        new_id: Callable[[], int],
        now_ms: int,
    ) -> None:
        """Create the events that members need to reach a balanced assignment.

        Args:
            partitions: the partitions that can be consumed now.
            dormant: whether a partition is only temporarily away, so that its owner keeps it.
            new_id: generates the ids of events.
            now_ms: the time.
        """
        self.due_ms = None
        if not self.members or self.subscription.kind is GroupKind.CLIENT_BALANCED:
            return
        if self.unfinished and not self._drop_expired(now_ms):
            return
        if self._named_first() and len(self.members) < self.subscription.source_count:
            return  # a bound group is balanced when it is complete
        held = {
            member.id: frozenset(p for p in member.held if not dormant(p))
            for member in self.members.values()
        }
        self._end_suspensions(now_ms)
        if self.suspended:
            active = {name: owned for name, owned in held.items() if name not in self.suspended}
            plan: Assignment = {name: [] for name in held}
            if active:
                plan |= self._plan(active, partitions)
            self.due_ms = max(now_ms + 1, min(s.until_ms for s in self.suspended.values()))
        else:
            plan = self._plan(held, partitions)
        for member_id, change in reassignments(held, plan).items():
            member = self.members[member_id]
            both = bool(change.revoked and change.assigned)
            if change.revoked:
                kind = EventKind.DISCONNECT if both else EventKind.ONLY_DISCONNECT
                member.revocations.append(Event(new_id(), kind, change.revoked, now_ms))
            if change.assigned:
                kind = EventKind.CONNECT if both else EventKind.ONLY_CONNECT
                member.assignments.append(Event(new_id(), kind, change.assigned, now_ms))
        if self.unfinished:
            self.due_ms = now_ms + self._timing.event_expiry_ms

    def _plan(
        self, held: Mapping[str, frozenset[Partition]], partitions: Collection[Partition]
    ) -> Assignment:
        if self._named_first():
            self._named_rounds += 1
            plan = named_assignment(
                {name: self.members[name].named for name in held},
                partitions,
                larger_wins=self.subscription.select_big,
            )
            named = {partition for owned in plan.values() for partition in owned}
            for member_id, owned in plan.items():
                owned += sorted(held[member_id].difference(named))
            if reassignments(held, plan):
                return plan
        if not any(held.values()):
            return first_assignment(held, partitions)
        return next_assignment(held, partitions)

    def _named_first(self) -> bool:
        return (
            self.subscription.kind is GroupKind.BOUND
            and not self.allocated
            and self._named_rounds < NAMED_ROUNDS_MAX
            and any(member.named for member in self.members.values())
        )

    def _drop_expired(self, now_ms: int) -> bool:
        """Drop all events if one is too old; otherwise note when it will be."""
        pending = [e for m in self.members.values() for e in (*m.revocations, *m.assignments)]
        expiry_ms = min(event.made_ms for event in pending) + self._timing.event_expiry_ms
        if now_ms < expiry_ms:
            self.due_ms = expiry_ms
            return False
        for member in self.members.values():
            # The member may have taken these partitions without telling; until its next report
            # they are not assigned to others.
            sent = (event.partitions for event in member.assignments if event.sent_ms is not None)
            member.held = member.held.union(*sent)
            member.revocations.clear()
            member.assignments.clear()
        return True

    @staticmethod
    def _take_out(member: Member, event_id: int) -> Event | None:
        for queue in (member.revocations, member.assignments):
            if queue and queue[0].id == event_id and queue[0].sent_ms is not None:
                return queue.popleft()
        return None


class ConsumerGroups:
    """All consumer groups, and the times of their members' last reports.

    Args:
        timeout_ms: how long a consumer may be silent.
        timing: the periods of balance.
    """

    def __init__(self, timeout_ms: int, timing: GroupTiming | None = None) -> None:
        self._timing = timing or GroupTiming()
        self._groups: dict[str, ConsumerGroup] = {}
        self._liveness = LivenessTracker[tuple[str, str]](timeout_ms)
        self._expected: dict[str, set[str]] = {}
        self._expected_until_ms = 0
        self._reports_often: Callable[[str], bool] = lambda _: False
        self._absent_ms = 0
        self._serving_since_ms: int | None = None

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        """The number of consumers in all groups."""
        return sum(len(group.members) for group in self._groups.values())

    def get(self, name: str) -> ConsumerGroup | None:
        """The group, or None if it has no members."""
        return self._groups.get(name)

    def mismatch(
        self, name: str, member_id: str, subscription: GroupSubscription, node_id: int = -2
    ) -> Mismatch | None:
        """Why a consumer may not join; None if it may."""
        group = self._groups.get(name)
        return group.mismatch(member_id, subscription, node_id) if group else None

    def join(
        self, name: str, member: Member, subscription: GroupSubscription, now_ms: int
    ) -> ConsumerGroup:
        """Add a consumer to its group, which is created if it does not exist."""
        group = self._groups.get(name)
        if group is None or set(group.members) <= {member.id}:
            fresh = ConsumerGroup(name, subscription, self._timing)
            if group is not None:  # its only member registers again
                fresh.from_max_id, fresh.suspended = group.from_max_id, group.suspended
            group = self._groups[name] = fresh
        group.join(member, now_ms)
        self._liveness.seen((name, member.id), now_ms)
        self._stop_expecting(name, member.id)
        return group

    def seen(self, name: str, member_id: str, now_ms: int) -> tuple[ConsumerGroup, Member] | None:
        """Record a heartbeat. Returns None if the consumer is not registered."""
        group = self._groups.get(name)
        member = group.members.get(member_id) if group else None
        if group is None or member is None:
            return None
        self._liveness.seen((name, member_id), now_ms)
        return group, member

    def silent(self, now_ms: int) -> Iterator[tuple[str, Member, int]]:
        """Yield members that are late: no heartbeat for half of the timeout.

        Each is a group's name, the member, and for how many ms it has been silent.
        """
        after_ms = self._liveness.timeout_ms // 2
        for (name, member_id), silent_ms in self._liveness.silent(now_ms, after_ms):
            group = self._groups.get(name)
            member = group.members.get(member_id) if group else None
            if member is not None:
                yield name, member, silent_ms

    def leave(self, name: str, member_id: str, now_ms: int) -> bool:
        """Remove a consumer from its group. Returns whether it was a member."""
        self._liveness.remove((name, member_id))
        self._stop_expecting(name, member_id)
        return self._remove(name, member_id, now_ms)

    def expire(self, now_ms: int) -> list[tuple[str, str]]:
        """Remove the consumers that have timed out; returns (group, client id) of each."""
        overdue = list(self._liveness.overdue(now_ms))
        for name, member_id in overdue:
            self._remove(name, member_id, now_ms)
        return overdue

    def touch(self, topics: Iterable[str], now_ms: int) -> None:
        """Balance the groups of these topics, which have changed."""
        changed = frozenset(topics)
        for group in self._groups.values():
            if changed & group.subscription.topics:
                group.due_ms = now_ms

    def forget_broker(self, broker: int, now_ms: int) -> None:
        """The broker has restarted without leases: no consumer holds its partitions any more."""
        for group in self._groups.values():
            group.forget_broker(broker, now_ms)

    # -- when to balance

    def due(self, now_ms: int) -> list[ConsumerGroup]:
        """The groups to balance now; call it periodically."""
        if self._serving_since_ms is None:
            self._serving_since_ms = now_ms
        return [group for group in self._groups.values() if self.is_due(group, now_ms)]

    def is_due(self, group: ConsumerGroup, now_ms: int) -> bool:
        """Whether to balance the group now."""
        if group.due_ms is None or now_ms < group.due_ms:
            return False
        return not self._expects_members(group.name, now_ms)

    # -- after a restart

    def member_ids(self, now_ms: int) -> dict[str, list[str]]:
        """The client ids of every group, for `expect_members` after a restart.

        Client-balanced groups are left out, because nothing is assigned to them. Members that are
        still expected are included, in case the master restarts twice.
        """
        ids = {
            group.name: list(group.members)
            for group in self._groups.values()
            if group.subscription.kind is not GroupKind.CLIENT_BALANCED
        }
        if now_ms < self._expected_until_ms:
            for name, expected in self._expected.items():
                ids.setdefault(name, []).extend(sorted(expected))
        return ids

    def expect_members(
        self,
        member_ids: Mapping[str, Collection[str]],
        until_ms: int,
        *,
        reports_often: Callable[[str], bool] = lambda _: False,
        absent_ms: int = 0,
    ) -> None:
        """Do not balance these groups until all of these consumers are back, or until a time.

        Args:
            until_ms: the time.
            reports_often: whether the consumer with this id reports so often that it will be back
                soon if it is alive.
            absent_ms: how long such consumers are expected, counted from the next call of `due`.
        """
        self._expected = {name: set(members) for name, members in member_ids.items()}
        self._expected_until_ms = until_ms
        self._reports_often = reports_often
        self._absent_ms = absent_ms
        self._serving_since_ms = None

    def _expects_members(self, name: str, now_ms: int) -> bool:
        if now_ms >= self._expected_until_ms or not self._expected.get(name):
            return False
        since_ms = self._serving_since_ms
        if since_ms is None or now_ms < since_ms + self._absent_ms:
            return True
        for member_id in sorted(filter(self._reports_often, self._expected[name])):
            _log.info("Group %s no longer waits for %s", name, member_id, group=name)
            self._stop_expecting(name, member_id)
        return name in self._expected

    def _stop_expecting(self, name: str, member_id: str) -> None:
        expected = self._expected.get(name)
        if expected is not None:
            expected.discard(member_id)
            if not expected:
                del self._expected[name]

    def _remove(self, name: str, member_id: str, now_ms: int) -> bool:
        group = self._groups.get(name)
        if group is None or group.leave(member_id, now_ms) is None:
            return False
        if not group.members:
            del self._groups[name]
        return True
