"""One consumer group: what its members agree on, hold, and have been told.

Rules:

* All members of a group agree on topics, filters and kind; the first member sets them, and they are
  forgotten with the last (`Group.disagreement`).
* What a member holds is what it reported. The master's wishes are events; a member gets them one
  at a time, in answers to its heartbeats, and acknowledges them.
* Give-ups before takes: while any member of a group has partitions to give up, nobody of the group
  is told to take any.
* A group with unacknowledged events is not balanced, until they are older than
  `GroupTiming.event_expiry_ms`. Then they are forgotten, but what somebody was told to take counts
  as held until that member reports.

Different from Java's master, all of it safe with Java's clients, which copy an event's id into the
acknowledgement and skip partitions that they already hold (or no longer do):

* Every event has an id of its own, and an acknowledgement removes the event with that id. (Java
  removes the first of the queue without looking, so one that came twice removes a second event.)
* An event that was not acknowledged for `event_resend_ms` is sent again. (Java sends it once; if
  that answer is lost, the group stands still for ten balance periods.)
* A member belongs to the balance from its registration on, not from its first heartbeat.
* A bound group counts as allocated when all its events are acknowledged, not at the first: a member
  that hears "allocated" together with its event would ignore the offsets that it named.
* Partitions on a broker that is away stay where they are (`dormant`): nobody else could read them,
  and their owner goes on when the broker is back.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from coherer._rules.tubemq.assignment import (
    Assignment,
    Partition,
    changes,
    first_assignment,
    named_assignment,
    next_assignment,
)

NAMED_ROUNDS_MAX = 2
"""A bound group gets its named partitions in at most this many rounds; then it is balanced."""


class EventKind(enum.IntEnum):
    """What a member is told; the numbers are those of TubeMQ's events."""

    CONNECT = 1
    """Take partitions; others were to be given up in the same round."""
    DISCONNECT = 2
    """Give partitions up; others are to be taken in the same round."""
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20


class Event(msgspec.Struct):
    """One instruction for one member.

    Args:
        id: unique in this master and larger than those of earlier runs.
        kind: what to do.
        partitions: with which partitions.
        made_ms: when it was made.
        sent_ms: when it was last sent; None before.
    """

    id: int
    kind: EventKind
    partitions: tuple[Partition, ...]
    made_ms: int
    sent_ms: int | None = None


class GroupKind(enum.Enum):
    """How partitions of a group find their owners."""

    NORMAL = "normal"
    BOUND = "bound"
    """Members name partitions and exact offsets; nothing happens until all are there."""
    CLIENT_BALANCED = "client-balanced"
    """Members choose for themselves."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """What all members of a group agree on.

    Args:
        kind: how partitions find their owners.
        topics: the topics.
        filters: the words that are let through, by topic; topics without filters are absent.
        session_key: common name of a bound session.
        select_big: of two offsets that are named for a partition, the larger wins.
        source_count: how many members the group has when complete; -2 when not told.
    """

    kind: GroupKind
    topics: frozenset[str]
    filters: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict[str, frozenset[str]])
    session_key: str = ""
    select_big: bool = False
    source_count: int = -2


class Disagreement(enum.Enum):
    """In what a new member differs from its group, in the order of checking."""

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
        host: the address that it named.
        address: where its requests come from.
        secure: whether it talks to us over TLS.
        held: the partitions that it reported.
        named: partitions that it wants, and from which offset (bound groups).
        node_id: its place among `source_count` (client balance); -2 when not told.
        allocated: it has said that the group is not new (bound groups).
        gives: events that take partitions away, in order.
        takes: events that bring partitions, in order.
    """

    id: str
    host: str
    address: str = ""
    secure: bool = False
    held: frozenset[Partition] = frozenset()
    named: Mapping[Partition, int] = msgspec.field(default_factory=dict[Partition, int])
    node_id: int = -2
    allocated: bool = False
    gives: deque[Event] = msgspec.field(default_factory=deque[Event])
    takes: deque[Event] = msgspec.field(default_factory=deque[Event])


class GroupTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Periods of a group's balance, in ms.

    Args:
        retry_ms: a member could not take what it was told to (somebody still held it): try again
            after this.
        event_resend_ms: send an event again when it is not acknowledged for so long. Java's clients
            acknowledge with their next heartbeat, 13 s later.
        event_expiry_ms: forget the events of a group when one is not acknowledged for so long.
    """

    retry_ms: int = 1_000
    event_resend_ms: int = 30_000
    event_expiry_ms: int = 120_000


class Rest(msgspec.Struct):
    """A member that an administrator has told to give up everything.

    Args:
        since_ms: when that was.
        until_ms: before then it gets nothing.
        begun: it was told.
    """

    since_ms: int
    until_ms: int
    begun: bool = False


class Group:
    """A consumer group: its members, what they hold and what they have been told.

    Attributes:
        name: the group's name.
        subscription: what its members agree on.
        members: by client id, the oldest first.
        allocated: whether a bound group has got its partitions once.
        due_ms: when to balance next; None: nothing to do.
        from_max_id: client balance: the order to go on from the newest messages; -2: none.
        resting: members that give up everything for a while, by client id; see `rest`.
    """

    def __init__(self, name: str, subscription: Subscription, timing: GroupTiming) -> None:
        self.name = name
        self.subscription = subscription
        self.members: dict[str, Member] = {}
        self.allocated = False
        self.due_ms: int | None = None
        self.from_max_id = -2
        self.resting: dict[str, Rest] = {}
        self._timing = timing
        self._named_rounds = 0

    @property
    def unfinished(self) -> bool:
        """Whether events wait for their acknowledgement."""
        return any(member.gives or member.takes for member in self.members.values())

    # -- coming and going

    def disagreement(
        self, member_id: str, subscription: Subscription, node_id: int = -2
    ) -> Disagreement | None:
        """Why a consumer may not join; None when it may."""
        others = [member for member in self.members.values() if member.id != member_id]
        if not others:
            return None
        ours = self.subscription
        pairs: list[tuple[Disagreement, object, object]] = [
            (Disagreement.KIND, ours.kind, subscription.kind),
            (Disagreement.TOPICS, ours.topics, subscription.topics),
            (Disagreement.FILTERS, dict(ours.filters), dict(subscription.filters)),
            (Disagreement.SESSION_KEY, ours.session_key, subscription.session_key),
            (Disagreement.SELECT_BIG, ours.select_big, subscription.select_big),
            (Disagreement.SOURCE_COUNT, ours.source_count, subscription.source_count),
        ]
        for disagreement, mine, theirs in pairs:
            if mine != theirs:
                return disagreement
        if node_id >= 0 and any(member.node_id == node_id for member in others):
            return Disagreement.NODE_ID
        return None

    def join(self, member: Member, now_ms: int) -> None:
        """Takes a member in, or takes it back; what it was told before is forgotten.

        So is what others were to be told: it may have rested on what this member was to give up.
        """
        self.members.pop(member.id, None)
        for other in self.members.values():
            other.gives = deque(event for event in other.gives if event.sent_ms is not None)
            other.takes = deque(event for event in other.takes if event.sent_ms is not None)
        self.members[member.id] = member
        if member.held or member.allocated:
            self.allocated = True
        self.due_ms = now_ms

    def leave(self, member_id: str, now_ms: int) -> Member | None:
        """Takes a member out; its partitions and events go with it."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.due_ms = now_ms
        return member

    # -- what members say

    def report(self, member: Member, held: Collection[Partition], now_ms: int) -> None:
        """A member says what it holds; the next balance looks at what is new."""
        reported = frozenset(p for p in held if p.topic in self.subscription.topics)
        if reported != member.held:
            member.held = reported
            self.due_ms = now_ms

    def acknowledge(self, member: Member, event_id: int, now_ms: int, *, reported: bool) -> bool:
        """A member says that it has done what it was told.

        Args:
            member: who.
            event_id: the event.
            now_ms: the time.
            reported: whether it said in the same breath what it holds; if not, it is believed to
                have done all of it.

        Returns:
            Whether the event was known; a second acknowledgement changes nothing.
        """
        event = self._take_out(member, event_id)
        if event is None:
            return False
        takes = event.kind in (EventKind.CONNECT, EventKind.ONLY_CONNECT)
        if not reported:
            done = frozenset(event.partitions)
            member.held = member.held | done if takes else member.held - done
        if not self.unfinished:
            self.allocated = True
        failed = takes and not member.held.issuperset(event.partitions)
        self.due_ms = now_ms + (self._timing.retry_ms if failed else 0)
        return True

    def next_event(self, member: Member, now_ms: int) -> Event | None:
        """What to tell the member now, if anything; booked as sent."""
        waiting = any(other.gives for other in self.members.values())
        queue = member.gives if waiting else member.takes
        if not queue:
            return None
        event = queue[0]
        if event.sent_ms is not None and now_ms < event.sent_ms + self._timing.event_resend_ms:
            return None
        event.sent_ms = now_ms
        return event

    def forget_broker(self, broker: int, now_ms: int) -> None:
        """The broker started anew and knows no owners: nobody holds its partitions any more."""
        for member in self.members.values():
            kept = frozenset(p for p in member.held if p.broker != broker)
            if kept != member.held:
                member.held = kept
                self.due_ms = now_ms

    # -- balance

    def rest(self, member_ids: Iterable[str], now_ms: int, until_ms: int) -> None:
        """Have members give up all they hold, and get nothing until a time, or as soon as they did.

        Members of a group that balances itself, and who is not in the group, do not rest.
        """
        if self.subscription.kind is GroupKind.CLIENT_BALANCED:
            return
        for member_id in member_ids:
            if member_id in self.members:
                self.resting[member_id] = Rest(now_ms, until_ms)
                self.due_ms = now_ms

    def _rested(self, now_ms: int) -> None:
        """Ends the rest of those who gave up what they had, when it is time, and of who is gone."""
        for member_id, rest in list(self.resting.items()):
            member = self.members.get(member_id)
            if member is None or (rest.begun and not member.held and now_ms >= rest.until_ms):
                del self.resting[member_id]
            else:
                rest.begun = True

    def balance(
        self,
        partitions: Collection[Partition],
        *,
        dormant: Callable[[Partition], bool],
        new_id: Callable[[], int],
        now_ms: int,
    ) -> None:
        """Makes events for what members should give up and take.

        Args:
            partitions: those that can be consumed now.
            dormant: whether a partition is only away for a while, so that its owner keeps it.
            new_id: gives the ids of events.
            now_ms: the time.
        """
        self.due_ms = None
        if not self.members or self.subscription.kind is GroupKind.CLIENT_BALANCED:
            return
        if self.unfinished and not self._drop_expired(now_ms):
            return
        if self._waits_for_members():
            return
        held = {
            member.id: frozenset(p for p in member.held if not dormant(p))
            for member in self.members.values()
        }
        self._rested(now_ms)
        if self.resting:
            awake = {name: owned for name, owned in held.items() if name not in self.resting}
            plan: Assignment = {name: [] for name in held}
            if awake:
                plan |= self._plan(awake, partitions)
            self.due_ms = max(now_ms + 1, min(rest.until_ms for rest in self.resting.values()))
        else:
            plan = self._plan(held, partitions)
        for member_id, change in changes(held, plan).items():
            member = self.members[member_id]
            both = bool(change.give and change.take)
            if change.give:
                kind = EventKind.DISCONNECT if both else EventKind.ONLY_DISCONNECT
                member.gives.append(Event(new_id(), kind, change.give, now_ms))
            if change.take:
                kind = EventKind.CONNECT if both else EventKind.ONLY_CONNECT
                member.takes.append(Event(new_id(), kind, change.take, now_ms))
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
            if changes(held, plan):
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

    def _waits_for_members(self) -> bool:
        return self._named_first() and len(self.members) < self.subscription.source_count

    def _drop_expired(self, now_ms: int) -> bool:
        """Forgets the events when one is too old; otherwise notes when that will be."""
        waiting = [e for m in self.members.values() for e in (*m.gives, *m.takes)]
        expiry_ms = min(event.made_ms for event in waiting) + self._timing.event_expiry_ms
        if now_ms < expiry_ms:
            self.due_ms = expiry_ms
            return False
        for member in self.members.values():
            # What it was told to take it may have taken, though we have not heard so: until its
            # next report that is not for others.
            told = (event.partitions for event in member.takes if event.sent_ms is not None)
            member.held = member.held.union(*told)
            member.gives.clear()
            member.takes.clear()
        return True

    @staticmethod
    def _take_out(member: Member, event_id: int) -> Event | None:
        for queue in (member.gives, member.takes):
            if queue and queue[0].id == event_id and queue[0].sent_ms is not None:
                return queue.popleft()
        return None
