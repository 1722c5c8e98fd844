"""When producers are asked about their half messages: rounds, and what they leave behind.

Every minute a *round* goes through the half messages from where the last one stopped. Those that
are marked are done. Those that are old enough are put back at the end of the half topic with a
higher count of checks, and the producer is asked about the new copy; the old entry is behind the
round's position then and forgotten. Those that were asked about too often, or are too old, move to
a topic of their own, from which a person can bring them back (protocol page, 6.7).

`Ledger` knows where the rounds have come (the offsets of the group CID_RMQ_SYS_TRANS in both
topics) and which half messages behind that are marked. It is told the time and reads half
messages through a function; it only plans: what to store, and whom to ask. Who carries the plan
out tells it so.

Better than Java 4.9.3: a mark counts for copies that were put back too, so that a producer whose
answer crosses a check is not asked again (and does not commit twice); waiting for its immunity
costs a message no checks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

import msgspec

from coherer._record.layout import Record
from coherer._record.properties import decode
from coherer._rules.rocketmq.transactions import (
    CHECK_TIMES,
    HALF_TOPIC,
    IMMUNITY,
    PREPARED_OFFSET,
    given_up,
    put_back,
)
from coherer._store.clock_history import ClockHistory
from coherer._store.model import Draft

_HOUR_MS: Final = 3_600_000


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When producers are asked.

    Args:
        timeout_ms: how old a half message is when it is asked about first (`transactionTimeOut`).
        checks_max: how often a producer is asked (`transactionCheckMax`).
        interval_ms: from one round to the next (`transactionCheckInterval`).
        keep_ms: older half messages are given up (`fileReservedTime`).
        per_round: half messages that a plan stores at most; another plan goes on.
    """

    timeout_ms: int = 6_000
    checks_max: int = 15
    interval_ms: int = 60_000
    keep_ms: int = 72 * _HOUR_MS
    per_round: int = 1_000


_DEFAULTS: Final = CheckOptions()
_MOVED_MAX: Final = 100_000


class Plan(msgspec.Struct, frozen=True):
    """What is to be done about half messages.

    Args:
        begin: the first half message that it is about.
        end: the first that it is not about.
        drafts: what to store, in order.
        sources: the half message of each draft.
        asked: for each draft, whether the producer is to be asked about it.
        more: it stopped because it had enough: plan again, with the same time of start.
    """

    begin: int
    end: int
    drafts: list[Draft]
    sources: list[Record]
    asked: list[bool]
    more: bool


class Ledger:
    """Which half messages are done.

    Args:
        half_offset: the half message up to which everything is settled.
        op_offset: the mark up to which none is needed any more.
        options: see `CheckOptions`.

    Attributes:
        read_to: marks before this one are known here.

    >>> ledger = Ledger(4, 2)
    >>> ledger.mark(2, half_offset=5)
    >>> ledger.mark(3, half_offset=4)
    >>> ledger.advance(), ledger.half_offset, ledger.op_offset
    (True, 6, 4)
    """

    def __init__(self, half_offset: int, op_offset: int, options: CheckOptions = _DEFAULTS) -> None:
        self.half_offset = half_offset
        self.op_offset = op_offset
        self.read_to = op_offset
        self._options = options
        self._marks: dict[int, int] = {}  # half offset -> op offset
        self._spent: set[int] = set()  # marks that are not needed any more
        self._moved: dict[int, int] = {}  # half offset -> that of the copy that was put back
        self._late: set[int] = set()  # marked after the round had passed, and no copy known

    def mark(self, op_offset: int, half_offset: int) -> None:
        """Note a mark of the op topic; one that is known is ignored. Call it in their order.

        A mark of a copy that has been put back since is one of the new copy. (Java's broker
        forgets it, and asks again about what is done.)

        Args:
            op_offset: its own queue offset.
            half_offset: the half message that is done; -1 for none.
        """
        if op_offset < self.read_to:
            return
        self.read_to = op_offset + 1
        while half_offset in self._moved:
            half_offset = self._moved[half_offset]
        if half_offset < self.half_offset or half_offset in self._marks:
            self._spent.add(op_offset)
            if len(self._late) < _MOVED_MAX:
                self._late.add(half_offset)
        else:
            self._marks[half_offset] = op_offset

    def marked(self, half_offset: int) -> bool:
        """Say whether a half message that the rounds have not passed is known to be done."""
        return half_offset in self._marks

    def advance(self) -> bool:
        """Step over what is done. Returns whether an offset is another now."""
        before = self.half_offset, self.op_offset
        while self.half_offset in self._marks:
            self._spent.add(self._marks.pop(self.half_offset))
            self.half_offset += 1
        while self.op_offset in self._spent:
            self._spent.discard(self.op_offset)
            self.op_offset += 1
        return before != (self.half_offset, self.op_offset)

    def skip_ops(self, op_offset: int) -> None:
        """Marks before this one are not there any more."""
        self.op_offset = max(self.op_offset, op_offset)
        self.read_to = max(self.read_to, op_offset)
        self._spent = {offset for offset in self._spent if offset >= op_offset}

    def plan(
        self,
        started_ms: int,
        now_ms: int,
        read: Callable[[int], tuple[Sequence[Record], int]],
        times: ClockHistory | None = None,
    ) -> Plan:
        """Go on with a round; all marks have been noted.

        Args:
            started_ms: when the round began: half messages stored since are for the next one.
            now_ms: the time.
            read: gives some half messages from an offset on, and the offset where to read on;
                that offset again when there are no more.
            times: turns the times of half messages into those of the clock that says `now_ms`;
                unless given, they are of that clock.
        """
        walk = _Walk(self._options, self._marks, self._late, started_ms, now_ms, times)
        at = begin = self.half_offset
        while not walk.over:
            while at in self._marks:
                at += 1
            records, following = read(at)
            if following <= at:
                break
            for record in records:
                if record.queue_offset >= at and not walk.settle(record):
                    following = record.queue_offset
                    break
            at = following
        return Plan(begin, at, walk.drafts, walk.sources, walk.asked, walk.full)

    def carried_out(self, plan: Plan, offsets: Sequence[int]) -> None:
        """Take over a plan whose drafts have been stored.

        Args:
            plan: it.
            offsets: the queue offsets of the drafts.
        """
        for draft, source, offset in zip(plan.drafts, plan.sources, offsets, strict=True):
            if draft.topic != HALF_TOPIC:
                continue
            mark = self._marks.pop(source.queue_offset, None)
            if mark is None:
                self._moved[source.queue_offset] = offset
            else:  # its end came meanwhile
                self._marks[offset] = mark
        self.half_offset = max(self.half_offset, plan.end)
        for half_offset in [at for at in self._marks if at < self.half_offset]:
            self._spent.add(self._marks.pop(half_offset))
        self.advance()
        if len(self._moved) > _MOVED_MAX:
            self._forget_moved()

    def _forget_moved(self) -> None:
        live = {old: new for old, new in self._moved.items() if new >= self.half_offset}
        self._moved = live if len(live) <= _MOVED_MAX else {}


class _Walk:
    """Decides about one half message after the other."""

    def __init__(
        self,
        options: CheckOptions,
        marks: Mapping[int, int],
        late: Container[int],
        started_ms: int,
        now_ms: int,
        times: ClockHistory | None,
    ) -> None:
        self._options = options
        self._marks = marks
        self._late = late
        self._started_ms = started_ms
        self._now_ms = now_ms
        self._times = times
        self.drafts: list[Draft] = []
        self.sources: list[Record] = []
        self.asked: list[bool] = []
        self.full = False
        self.over = False

    def settle(self, record: Record) -> bool:
        """Decide about a half message; False when the round ends before it."""
        if record.queue_offset in self._marks:
            return True
        if len(self.drafts) >= self._options.per_round:
            self.full = self.over = True
            return False
        properties = decode(record.properties)
        checks = _number(properties.get(CHECK_TIMES, "0"))
        born_ms, stored_ms = self._when(record)
        age_ms = self._now_ms - born_ms
        if (CHECK_TIMES in properties and checks >= self._options.checks_max) or (
            age_ms > self._options.keep_ms
        ):
            self._store(record, given_up(record, {}))
            return True
        if stored_ms >= self._started_ms:
            self.over = True
            return False
        return self._check(record, properties, checks, age_ms)

    def _when(self, record: Record) -> tuple[int, int]:
        """When a half message was born and stored, by the clock that is not set."""
        if self._times is None:
            return record.born_ms, record.store_ms
        offset = record.physical_offset
        return (
            self._times.born_ms(offset, record.born_ms),
            self._times.stored_ms(offset, record.store_ms),
        )

    def _check(
        self, record: Record, properties: Mapping[str, str], checks: int, age_ms: int
    ) -> bool:
        first = _number(properties.get(PREPARED_OFFSET, str(record.queue_offset)))
        if first in self._marks or first in self._late:
            return True  # the copy of one that waited, and was ended meanwhile
        immunity = properties.get(IMMUNITY)
        immune_ms = self._options.timeout_ms
        if immunity is not None and _number(immunity) != -1:
            immune_ms = _number(immunity) * 1000
        if age_ms <= -1 or age_ms > immune_ms:
            self._store(record, put_back(record, {CHECK_TIMES: str(checks + 1)}), ask=True)
        elif immunity is not None:
            # It must not hold up those behind it: it goes to the end and remembers where it was.
            self._store(record, put_back(record, {PREPARED_OFFSET: str(first)}))
        else:
            self.over = True
            return False
        return True

    def _store(self, record: Record, draft: Draft, *, ask: bool = False) -> None:
        self.drafts.append(draft)
        self.sources.append(record)
        self.asked.append(ask)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return -1
