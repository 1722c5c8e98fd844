"""Checks of half messages: when a broker asks producers for the state of their transactions.

See docs/protocol/rocketmq.md, section 6.7.

Every minute a round goes through the half messages from where the last one stopped. Marked ones are
done. Those old enough are stored again at the end of the half topic with a higher count of checks,
and the producer is asked about the new copy; the round's offset moves past the old entry. Those
that were checked too often, or are too old, move to a topic from which an operator can restore
them.

`TransactionLedger` knows the offsets of the rounds (those of the group CID_RMQ_SYS_TRANS in both
topics), and which transactions have ended. It only plans which messages to store and which
producers to ask. Half messages are read through a function. The caller stores the plan's drafts,
and reports that with `carried_out`.

Invariant: a transaction has one name, which all copies of its half message have
(`transactions.name_of`), and its end counts for all of them. Everything else can be forgotten:
after a crash, marks and copies in the log say which transactions have ended. So a half message that
was copied just before the crash is perhaps copied and asked about once more, but ends once.

Better than Java 4.9.3: a mark also counts for copies, so that a producer whose answer crosses a
check is not asked again. Waiting for the end of the immunity time does not count as a check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from coherer._record.layout import Record
from coherer._record.properties import decode, number_in
from coherer._record.system_topics import HALF_TOPIC
from coherer._rules.rocketmq.ended import OffsetSet
from coherer._rules.rocketmq.transactions import (
    CHECK_TIMES,
    IMMUNITY,
    PREPARED_OFFSET,
    Op,
    given_up,
    name_of,
    put_back,
)
from coherer._store.clock_history import ClockHistory
from coherer._store.model import Draft
from coherer.errors import UsageError

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
_COPIES_MAX: Final = 1_000_000
_PLAN_BYTES: Final = 4 * 1024 * 1024


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
        read_to: the first mark that comes through `mark`; older ones come through `mark_older`.

    Attributes:
        read_to: all marks from `read_from` to here are known.
        read_from: see `read_to`.

    >>> ledger = TransactionLedger(4, 2)
    >>> ledger.mark(Op(2, half_offset=5, name=5))
    >>> ledger.mark(Op(3, half_offset=4, name=4))
    >>> ledger.advance(), ledger.half_offset, ledger.op_offset
    (True, 6, 4)
    """

    def __init__(
        self,
        half_offset: int,
        op_offset: int,
        options: CheckOptions = _DEFAULTS,
        read_to: int | None = None,
    ) -> None:
        self.half_offset = half_offset
        self.op_offset = op_offset
        self.read_to = self.read_from = op_offset if read_to is None else read_to
        self._options = options
        self._ended = OffsetSet()
        self._rolled_back = OffsetSet()
        self._marks: deque[Op] = deque()  # those from `op_offset` on
        self._copies: dict[int, int] = {}  # name of an open transaction -> its newest copy

    def mark(self, op: Op) -> None:
        """Add the next mark of the op topic, from `read_to` on."""
        self.read_to = op.offset + 1
        self._marks.append(op)
        self._end(op)

    def mark_older(self, op: Op) -> None:
        """Add the last mark before `read_from`."""
        self.read_from = op.offset
        if op.offset >= self.op_offset:
            self._marks.appendleft(op)
        self._end(op)

    def _end(self, op: Op) -> None:
        for offset in (op.name, op.half_offset):
            self._ended.add(offset)
            if op.is_rollback:
                self._rolled_back.add(offset)
        copy = self._copies.pop(op.name, None)
        if copy is not None:
            self._ended.add(copy)

    def found_copy(self, record: Record) -> None:
        """Note a half message that was stored by an earlier process. Call it in their order."""
        name = name_of(record)
        if name != record.queue_offset and name not in self._ended:
            self._copies[name] = record.queue_offset

    def has_ended(self, name: int) -> bool:
        """Whether a transaction has ended."""
        return name in self._ended

    def is_done(self, record: Record) -> bool:
        """Whether a half message needs no check: its transaction has ended, or a copy is newer."""
        name, offset = name_of(record), record.queue_offset
        return offset in self._ended or name in self._ended or self._copies.get(name, -1) > offset

    def was_rolled_back(self, name: int) -> bool:
        """Whether a transaction has ended with a rollback, as far as its mark says that."""
        return name in self._rolled_back

    def newest(self, name: int) -> int:
        """The queue offset of the newest known copy of an open transaction's half message."""
        return self._copies.get(name, name)

    def advance(self) -> bool:
        """Move the offsets past what is done. Returns whether one has changed."""
        before = self.half_offset, self.op_offset
        while self.half_offset in self._ended:
            self.half_offset += 1
        while self._marks and self._marks[0].half_offset < self.half_offset:
            self.op_offset = self._marks.popleft().offset + 1
        return before != (self.half_offset, self.op_offset)

    def no_older(self, op_offset: int) -> None:
        """Note that there are no further marks between this one and `read_from`."""
        self.read_from = op_offset

    def skip_ops(self, op_offset: int) -> None:
        """Skip marks before this one, which have been deleted or are damaged."""
        self.op_offset = max(self.op_offset, op_offset)
        self.read_to = max(self.read_to, op_offset)
        while self._marks and self._marks[0].offset < op_offset:
            self._marks.popleft()

    def plan(
        self,
        started_ms: int,
        now_ms: int,
        read: Callable[[int], tuple[Sequence[Record], int]],
        times: ClockHistory | None = None,
        carry_to: int = 0,
        room: int = _PLAN_BYTES,
    ) -> Plan:
        """Continue a round, after all marks have been added.

        Args:
            started_ms: the start of the round; later half messages are left to the next one.
            now_ms: the time.
            read: returns some half messages from an offset on, and the offset to read next; that is
                the same offset if there are no more.
            times: converts the times of half messages to the clock of `now_ms`; None if they are of
                that clock.
            carry_to: do not check, but copy those before this log offset.
            room: the largest size of the half messages in the plan; the first one may be larger.
        """
        round_ = _CheckRound(self._options, self.is_done, started_ms, now_ms, times, carry_to, room)
        at = begin = self.half_offset
        while not round_.over:
            while at in self._ended:
                at += 1
            records, following = read(at)
            if following <= at:
                break
            for record in records:
                if record.queue_offset >= at and not round_.decide(record):
                    following = record.queue_offset
                    break
            at = following
        return Plan(begin, at, round_.drafts, round_.sources, round_.asked, round_.full)

    def carried_out(self, plan: Plan, offsets: Sequence[int]) -> None:
        """Apply a plan whose drafts have been stored.

        Args:
            offsets: the queue offsets of the drafts.
        """
        for draft, source, offset in zip(plan.drafts, plan.sources, offsets, strict=True):
            name = name_of(source)
            if draft.topic != HALF_TOPIC:
                self._copies.pop(name, None)
            elif name in self._ended:  # the transaction has ended in the meantime
                self._ended.add(offset)
            else:
                self._copies[name] = offset
        while len(self._copies) > _COPIES_MAX:
            del self._copies[next(iter(self._copies))]
        self.half_offset = max(self.half_offset, plan.end)
        self.advance()


class _CheckRound:
    """Decides about half messages, one after the other."""

    def __init__(
        self,
        options: CheckOptions,
        is_done: Callable[[Record], bool],
        started_ms: int,
        now_ms: int,
        times: ClockHistory | None,
        carry_to: int,
        room: int,
    ) -> None:
        self._options = options
        self._is_done = is_done
        self._carry_to, self._room = carry_to, room
        self._size = 0
        self._started_ms = started_ms
        self._now_ms = now_ms
        self._times = times
        self.drafts: list[Draft] = []
        self.sources: list[Record] = []
        self.asked: list[bool] = []
        self.full = False
        self.over = False

    def decide(self, record: Record) -> bool:
        """Decide about a half message; returns False if the round ends before it."""
        if self._is_done(record):
            return True
        if len(self.drafts) >= self._options.per_round or self._size >= self._room:
            self.full = self.over = True
            return False
        if self._carry_to:
            if record.physical_offset >= self._carry_to:
                self.over = True
                return False
            self._copy(record, {})
            return True
        properties = decode(record.properties)
        checks = _number(properties.get(CHECK_TIMES, "0"))
        born_ms, stored_ms = self._when(record)
        age_ms = self._now_ms - born_ms
        if (CHECK_TIMES in properties and checks >= self._options.checks_max) or (
            age_ms > self._options.keep_ms
        ):
            self._store(record, given_up(record))
            return True
        if stored_ms >= self._started_ms:
            self.over = True
            return False
        return self._check(record, properties, checks, age_ms)

    def _when(self, record: Record) -> tuple[int, int]:
        """When a half message was born and stored, by the monotonic clock."""
        times, offset = self._times, record.physical_offset
        stored_ms = record.store_ms if times is None else times.stored_ms(offset, record.store_ms)
        if name_of(record) == record.queue_offset:
            # It is no copy. The producer's clock may differ from ours: by its time (which Java
            # takes) we could ask while it still sends the message.
            return stored_ms, stored_ms
        return record.born_ms if times is None else times.born_ms(offset, record.born_ms), stored_ms

    def _check(
        self, record: Record, properties: Mapping[str, str], checks: int, age_ms: int
    ) -> bool:
        immunity = properties.get(IMMUNITY)
        immune_ms = self._options.timeout_ms
        if immunity is not None and _number(immunity) != -1:
            immune_ms = _number(immunity) * 1000
        if age_ms <= -1 or age_ms > immune_ms:
            self._copy(record, {CHECK_TIMES: str(checks + 1)}, ask=True)
        elif immunity is not None:
            # So that it does not delay the next ones. Java's brokers read this property.
            self._copy(record, {PREPARED_OFFSET: str(name_of(record))})
        else:
            self.over = True
            return False
        return True

    def _copy(self, record: Record, changes: Mapping[str, str], *, ask: bool = False) -> None:
        try:
            draft = put_back(record, changes)
        except UsageError:  # its properties have no room; a client cannot send such a message
            self._store(record, given_up(record))
        else:
            self._store(record, draft, ask=ask)

    def _store(self, record: Record, draft: Draft, *, ask: bool = False) -> None:
        self._size += record.size
        self.drafts.append(draft)
        self.sources.append(record)
        self.asked.append(ask)


def _number(text: str) -> int:
    found = number_in(text)
    return -1 if found is None else found
