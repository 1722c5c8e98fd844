"""Checks of half messages: when a broker asks producers for the state of their transactions.

See docs/protocol/rocketmq.md, section 6.7.

Every minute a round goes through the half messages from where the last one stopped. Marked ones are
done. Those old enough are stored again at the end of the half topic with a higher count of checks,
and the producer is asked about the new copy; the round's offset moves past the old entry. Those
that were checked too often, or are too old, move to a topic from which an operator can restore
them.

`TransactionLedger` knows the offsets of the rounds (those of the group CID_RMQ_SYS_TRANS in both
topics), and which half messages behind them are marked. It only plans which messages to store and
which producers to ask. Half messages are read through a function. The caller stores the plan's
drafts, and reports that with `carried_out`.

Better than Java 4.9.3: a mark also counts for copies, so that a producer whose answer crosses a
check is not asked again (and does not commit twice). Waiting for the end of the immunity time does
not count as a check.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

import msgspec

from coherer._record.layout import Record
from coherer._record.properties import decode
from coherer._record.system_topics import HALF_TOPIC
from coherer._rules.rocketmq.transactions import (
    CHECK_TIMES,
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
        timeout_ms: the age of a half message at its first check (`transactionTimeOut`).
        checks_max: the maximum number of checks (`transactionCheckMax`).
        interval_ms: the interval of rounds (`transactionCheckInterval`).
        keep_ms: the age at which half messages are given up (`fileReservedTime`).
        per_round: the maximum number of half messages in a plan; another plan continues the round.
    """

    timeout_ms: int = 6_000
    checks_max: int = 15
    interval_ms: int = 60_000
    keep_ms: int = 72 * _HOUR_MS
    per_round: int = 1_000


_DEFAULTS: Final = CheckOptions()
_MOVED_MAX: Final = 100_000


class Plan(msgspec.Struct, frozen=True):
    """The decisions about some half messages.

    Args:
        begin: the first half message covered.
        end: the first half message not covered.
        drafts: the messages to store, in order.
        sources: the half message of each draft.
        asked: for each draft, whether to ask the producer about it.
        more: whether the plan is full: plan again, with the same start time.
    """

    begin: int
    end: int
    drafts: list[Draft]
    sources: list[Record]
    asked: list[bool]
    more: bool


class TransactionLedger:
    """Records which half messages are done.

    Args:
        half_offset: all half messages before it are done.
        op_offset: no mark before it is needed.
        options: see `CheckOptions`.

    Attributes:
        read_to: all marks before it are known.

    >>> ledger = TransactionLedger(4, 2)
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
        self._spent: set[int] = set()  # op offsets of marks that are no longer needed
        self._moved: dict[int, int] = {}  # half offset -> half offset of the newer copy
        self._late: set[int] = set()  # marked after the round had passed, without a known copy

    def mark(self, op_offset: int, half_offset: int) -> None:
        """Add a mark of the op topic; a known one is ignored. Call it in the order of the marks.

        A mark of a message that has been stored again since marks the new copy. (Java's broker
        forgets it, and checks a transaction that is done.)

        Args:
            op_offset: the mark's queue offset.
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
        """Whether a half message that the rounds have not passed is known to be done."""
        return half_offset in self._marks

    def advance(self) -> bool:
        """Move the offsets past what is done. Returns whether one has changed."""
        before = self.half_offset, self.op_offset
        while self.half_offset in self._marks:
            self._spent.add(self._marks.pop(self.half_offset))
            self.half_offset += 1
        while self.op_offset in self._spent:
            self._spent.discard(self.op_offset)
            self.op_offset += 1
        return before != (self.half_offset, self.op_offset)

    def skip_ops(self, op_offset: int) -> None:
        """Skip marks before this one, which have been deleted."""
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
        """Continue a round, after all marks have been added.

        Args:
            started_ms: the start of the round; later half messages are left to the next one.
            now_ms: the time.
            read: returns some half messages from an offset on, and the offset to read next; that is
                the same offset if there are no more.
            times: converts the times of half messages to the clock of `now_ms`; None if they are of
                that clock.
        """
        round_ = _CheckRound(self._options, self._marks, self._late, started_ms, now_ms, times)
        at = begin = self.half_offset
        while not round_.over:
            while at in self._marks:
                at += 1
            records, following = read(at)
            if following <= at:
                break
            for record in records:
                if record.queue_offset >= at and not round_.settle(record):
                    following = record.queue_offset
                    break
            at = following
        return Plan(begin, at, round_.drafts, round_.sources, round_.asked, round_.full)

    def carried_out(self, plan: Plan, offsets: Sequence[int]) -> None:
        """Apply a plan whose drafts have been stored.

        Args:
            plan: the plan.
            offsets: the queue offsets of the drafts.
        """
        for draft, source, offset in zip(plan.drafts, plan.sources, offsets, strict=True):
            if draft.topic != HALF_TOPIC:
                continue
            mark = self._marks.pop(source.queue_offset, None)
            if mark is None:
                self._moved[source.queue_offset] = offset
            else:  # the transaction has ended in the meantime
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


class _CheckRound:
    """Decides about half messages, one after the other."""

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
        """Decide about a half message; returns False if the round ends before it."""
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
        """When a half message was born and stored, by the monotonic clock."""
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
            return True  # the transaction has ended while this copy waited
        immunity = properties.get(IMMUNITY)
        immune_ms = self._options.timeout_ms
        if immunity is not None and _number(immunity) != -1:
            immune_ms = _number(immunity) * 1000
        if age_ms <= -1 or age_ms > immune_ms:
            self._store(record, put_back(record, {CHECK_TIMES: str(checks + 1)}), ask=True)
        elif immunity is not None:
            # So that it does not delay the next ones, store it again with its first offset.
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
