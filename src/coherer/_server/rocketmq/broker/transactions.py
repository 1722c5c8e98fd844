"""Transactions of a broker: `END_TRANSACTION` (37, 31037), and checks of half messages.

See docs/protocol/rocketmq.md, sections 2.9 and 6.7.

The end of a transaction is stored atomically: the real message, or all messages of a half batch
(`half_batches`), together with the mark that the half message is done. (Java stores them one after
the other.) So after a crash no committed transaction is checked again.

Invariants:

* Only a half message is ended: a record in the half topic's queue, at the offsets that the request
  names, of the producer group that the request names. If the log has deleted it, its newest copy
  takes its place.
* A transaction ends once, even if requests name different copies of its half message, come late, or
  come after a restart: a request waits until all marks are known that could end the same
  transaction. A request that repeats the first one is answered with success and stores nothing; one
  that contradicts it is refused. (Java's brokers carry out every request.)
* A SYNC_MASTER says that a transaction has ended when a slave knows it, too. Otherwise that slave,
  as the master, could ask a producer that has forgotten it.
* A power cut can tear that one write apart. If it has left a message, what it took is stored again
  before any request is handled: other messages of the half batch, and the mark (`_complete`). A
  mark does not count if messages before it are lost (`_mark_at`).
* Retention keeps the file of the first half message that has not ended
  (`coherer._store.retention`). Half messages in files that are to be deleted soon are copied.

`tick`, called ten times a second, keeps the ledger: it first reads the marks of previous processes,
the newest ones first, and then runs a round of checks through the half messages every minute. The
decisions of a round are stored atomically, too, before the producers are asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec

from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer._record.ids import decode_offset_id
from coherer._record.layout import COMMITTED, ROLLED_BACK, Record, decode
from coherer._record.properties import REAL_TOPIC, value_of
from coherer._record.system_topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from coherer._rules.common.origins import RESERVED_TOPICS, Origin, topic_of
from coherer._rules.rocketmq.transaction_checks import CheckOptions, Plan, TransactionLedger
from coherer._rules.rocketmq.transactions import (
    GROUP,
    UNKNOWN,
    End,
    Op,
    Question,
    committed,
    done_mark,
    messages_in,
    mismatch,
    name_of,
    question,
    read_op,
    resumed,
    with_count,
)
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker.half_batches import committed_batch, missing
from coherer._server.rocketmq.broker.sending import reserved_remark
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._store import AppendResult, Draft, DraftBatch
from coherer._store.consume_queue import BLANK_SIZE, is_valid_queue
from coherer._wire.rocketmq.codes import HALF_NOT_FOUND, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import EndTransactionHeader, MessageIdHeader, parse
from coherer.errors import CohererError, StoreFullError, UsageError

_log = Log(logging.getLogger(__name__))

Ask = Callable[[Question], bool]
"""Asks a producer of the question's group; returns whether there was one."""

_Asked: TypeAlias = tuple[Channel, Command]

RECORDS_AT_ONCE: Final = 1_000
PLACES_AT_ONCE: Final = 128
"""How many entries of half messages are read at once; a read costs as much as ten entries."""
_READ_BYTES: Final = 4 * 1024 * 1024
_NO_STATE: Final = "commitOrRollback field wrong"
_ENDED: Final = "The transaction was {} before."
_NOT_REPLICATED: Final = "The transaction has ended, but no slave has that in time. Ask again."
_ROLLED_BACK: Final = "not set any response code"
"""Java clears its default remark only for commits (section 2.9)."""
MARKS_AT_ONCE: Final = 2_000
"""The number of marks to read before other work can run."""
WAITING_MAX: Final = 20_000
"""The number of requests that may wait for marks to be read; each takes about 1 KiB."""
_RESUME_FAILED: Final = f"Put message back to {HALF_TOPIC} failed."
_RESUME_ERROR: Final = f"Exception was thrown when putting message back to {HALF_TOPIC}."


class _Mark(NamedTuple):
    """A mark, and whether it counts."""

    op: Op
    counts: bool


class TransactionService:
    """Ends transactions, and checks those that do not end.

    Args:
        is_slave: whether this broker follows a master; it ends no transactions then.
        check_no_rival: raises the `Refusal` of a request if another master has this broker's name.
        forbid: with accounts, raises the `Refusal` of a request whose sender may not write to a
            topic.
        schedule: returns the draft to store for a committed message, which may be timed.
        replicated: waits until a slave has the log up to an offset, and returns the response code
            of section 6.12; None if the answer need not wait.
    """

    def __init__(
        self,
        core: Core,
        ask: Ask,
        options: CheckOptions | None = None,
        *,
        is_slave: Callable[[], bool] = lambda: False,
        check_no_rival: Callable[[], None] = lambda: None,
        forbid: Callable[[Channel, Command, str], None] | None = None,
        schedule: Callable[[Draft], Draft] = lambda draft: draft,
        replicated: Callable[[int], Awaitable[int] | None] = lambda _: None,
    ) -> None:
        self._core = core
        self._ask = ask
        self._options = options or CheckOptions()
        self._is_slave = is_slave
        self._check_no_rival = check_no_rival
        self._forbid = forbid
        self._schedule = schedule
        self._replicated = replicated
        self._ledger = self._open_ledger()
        self._round_ms: int | None = None  # start of the current round
        self._rounds = IntervalTimer(self._options.interval_ms, core.now_ms())
        self._busy = self._stopped = False
        self._next_turn: asyncio.Handle | None = None
        self._carried_to = 0  # no half message waits before this log offset
        self._copies_from, self._copies_to = 0, core.store.queue_range(HALF_TOPIC, 0)[1]
        self._ending: dict[int, list[_Asked]] = {}  # by transaction: later requests that wait
        self._torn = deque(place for cut in core.store.recovery.cuts for place in cut.unmarked)
        self._waiting: list[_Asked] = []  # for marks that have not been read
        self._places: list[int | None] = []  # of some half messages, from `_places_from` on
        self._places_from = 0
        core.on_idle_check(self._in_use)
        core.store.holds.add("messages of open transactions", self._needed)

    # -- requests

    def end(self, channel: Channel, request: Command) -> Command | None:
        """END_TRANSACTION (37) and END_HALF_BATCH (31037): commit or roll back.

        Raises:
            Refusal: the request is invalid; the words are Java's.
        """
        header = parse(EndTransactionHeader, request.fields)
        end = End(
            header.producer_group,
            header.tran_state_table_offset,
            header.commit_log_offset,
            header.commit_or_rollback,
        )
        if end.state not in (UNKNOWN, COMMITTED, ROLLED_BACK):
            raise Refusal(ResponseCode.SYSTEM_ERROR, _NO_STATE)
        if self._is_slave():
            raise Refusal(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "Message store is slave mode, so end transaction is forbidden. ",
            )
        self._check_no_rival()
        if end.state == UNKNOWN:
            return None  # the producer does not know either, and expects no response (section 2.9)
        record = self._half_of(end)
        if self._forbid is not None:
            self._forbid(channel, request, topic_of(record))
        name = name_of(record)
        if name in self._ending:
            self._ending[name].append((channel, request))
            return None
        if not self._knows_end_of(record):
            if len(self._waiting) >= WAITING_MAX:
                raise Refusal(
                    ResponseCode.SYSTEM_BUSY, "The broker is still reading its transactions."
                )
            self._waiting.append((channel, request))
            return None
        if self._ledger.has_ended(name) or self._ledger.has_ended(record.queue_offset):
            end_offset = self._core.store.written_offset
            answer = self._ended_before(record, end)
            return self._when_replicated(channel, request, end_offset, answer)
        self._store_end(channel, request, record, end)
        return None

    def resume(self, channel: Channel, request: Command) -> Command | None:
        """RESUME_CHECK_HALF_MESSAGE (323): check a half message again that the broker gave up.

        Raises:
            Refusal: there is no such message.
        """
        try:
            offset = decode_offset_id(parse(MessageIdHeader, request.fields).msg_id or "")
        except UsageError:
            raise Refusal(ResponseCode.SYSTEM_ERROR, _RESUME_ERROR) from None
        record = self._record_at(offset.physical_offset, CHECK_MAX_TIME_TOPIC)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, _RESUME_ERROR)
        self._need_topic(HALF_TOPIC)

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            if isinstance(outcome, CohererError):
                channel.respond(request, ResponseCode.SYSTEM_ERROR, _RESUME_FAILED)
            else:
                channel.respond(request)

        own = [resumed(record)]
        self._core.appender.submit([], done, origin=Origin.TRANSACTIONS, own=own)
        return None

    def _record_at(self, physical_offset: int, topic: str) -> Record | None:
        """The record of a system topic's queue at a log offset; None if no such record is there."""
        store = self._core.store
        found = store.record_at(physical_offset)
        if found is None:
            return None
        record = decode(found, check_crc=False)
        if record.topic != topic:
            return None
        # The content of any message may look like a record, so the queue has to name it.
        is_half = topic == HALF_TOPIC
        place = self._place_of_half if is_half else partial(store.place_of, topic, 0)
        return record if place(record.queue_offset) == physical_offset else None

    def _place_of_half(self, offset: int) -> int | None:
        """The log offset of a half message; None if its queue has none at this offset."""
        store = self._core.store
        first, end = store.queue_range(HALF_TOPIC, 0)
        if not first <= offset < end:
            return None
        at = offset - self._places_from
        if not 0 <= at < len(self._places):
            # Transactions end in about the order in which they began.
            found = store.entries(HALF_TOPIC, 0, offset, PLACES_AT_ONCE)
            self._places = [
                None if one.size_bytes == BLANK_SIZE else one.physical_offset for one in found
            ]
            self._places_from, at = offset, 0
        return self._places[at] if self._places else None

    def _half_of(self, end: End) -> Record:
        """The half message that a request names, or its newest copy if the log has deleted it.

        Raises:
            Refusal: that half message is gone, or does not match the request; the texts are Java's.
        """
        store = self._core.store
        record = self._record_at(end.physical_offset, HALF_TOPIC)
        if record is not None:
            wrong = mismatch(record, end)
        elif end.half_offset < store.queue_range(HALF_TOPIC, 0)[0]:
            place = self._place_of_half(self._ledger.newest(end.half_offset))
            record = None if place is None else self._record_at(place, HALF_TOPIC)
            if record is None or name_of(record) != end.half_offset:
                raise Refusal(ResponseCode.SYSTEM_ERROR, HALF_NOT_FOUND)
            copied = End(end.group, record.queue_offset, record.physical_offset, end.state)
            wrong = mismatch(record, copied)
        else:
            raise Refusal(ResponseCode.SYSTEM_ERROR, HALF_NOT_FOUND)
        if wrong:
            raise Refusal(ResponseCode.SYSTEM_ERROR, wrong)
        return record

    def _ended_before(self, record: Record, end: End) -> Command:
        """Answer a request to end a transaction that has ended already.

        Raises:
            Refusal: it has ended in the other way.
        """
        ledger = self._ledger
        is_rollback = ledger.was_rolled_back(name_of(record)) or ledger.was_rolled_back(
            record.queue_offset
        )
        remark = _ENDED.format("rolled back" if is_rollback else "committed")
        if is_rollback != (end.state == ROLLED_BACK):
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        return Command(ResponseCode.SUCCESS, remark=remark)

    def _again(self, asked: Sequence[_Asked]) -> None:
        """Handle requests that have waited."""
        for channel, request in asked:
            try:
                answer = self.end(channel, request)
            except Exception as error:  # noqa: BLE001 - the others must be answered, too
                channel.fail(request, error)
                continue
            if answer is not None:
                channel.respond(request, answer.code, answer.remark)

    def _store_end(self, channel: Channel, request: Command, record: Record, end: End) -> None:
        topic = value_of(record.properties, REAL_TOPIC)
        is_rollback = end.state == ROLLED_BACK
        drafts = [] if is_rollback else [self._committed(record, end)]
        self._need_topic(OP_HALF_TOPIC)
        name = name_of(record)
        newest = max(record.queue_offset, self._ledger.newest(name))
        mark = self._mark_of(name, newest, drafts, is_rollback=is_rollback)
        self._ending[name] = []

        def done(outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
            answered(outcome, end_offset)
            self._again(self._ending.pop(name))

        def answered(outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
            if isinstance(outcome, CohererError):
                _refuse(channel, request, outcome)
                return
            if topic is not None:
                self._core.counters.ended(
                    topic,
                    record.born_ms,
                    is_commit=not is_rollback,
                    messages=messages_in((record if is_rollback else mark).properties),
                )
            self._marked(Op(outcome[-1].queue_offset, newest, name, is_rollback))
            answer = Command(ResponseCode.SUCCESS, remark=_ROLLED_BACK if is_rollback else None)
            if self._when_replicated(channel, request, end_offset, answer) is not None:
                channel.respond(request, answer.code, answer.remark)

        self._core.appender.submit(drafts, done, origin=Origin.TRANSACTIONS, own=[mark])

    def _when_replicated(
        self, channel: Channel, request: Command, end_offset: int, answer: Command
    ) -> Command | None:
        """Give an answer that says that a transaction has ended; None if it is sent later."""
        replicated = None if request.is_oneway else self._replicated(end_offset)
        if replicated is None:
            return answer

        async def answer_later(replicated: Awaitable[int]) -> None:
            if code := await replicated:
                channel.respond(request, code, _NOT_REPLICATED)
            else:
                channel.respond(request, answer.code, answer.remark)
            channel.connection.flush()

        channel.spawn(answer_later(replicated))
        return None

    def _committed(self, record: Record, end: End) -> Draft | DraftBatch:
        """What a commit stores.

        Raises:
            Refusal: the destination is invalid.
        """
        topic = value_of(record.properties, REAL_TOPIC)
        if topic in RESERVED_TOPICS:
            raise Refusal(ResponseCode.NO_PERMISSION, reserved_remark(topic))
        # Consumers see the offset of the half message that the producer sent, not of a copy.
        offset = end.physical_offset
        real = committed_batch(record, offset) or committed(record)
        if real is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, HALF_NOT_FOUND)
        if not is_valid_queue(real.topic, real.queue_id):
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _NO_DESTINATION)
        if isinstance(real, DraftBatch):
            return real
        return self._schedule(msgspec.structs.replace(real, prepared_offset=offset))

    def _mark_of(
        self,
        name: int,
        newest: int,
        drafts: Sequence[Draft | DraftBatch],
        *,
        is_rollback: bool = False,
    ) -> Draft:
        """The mark of a transaction that is stored after these messages."""
        host, now_ms = self._core.store.store_host, self._core.wall_ms()
        mark = done_mark(newest, host, now_ms, name=name, is_rollback=is_rollback)
        for one in drafts:
            if isinstance(one, DraftBatch):
                return with_count(mark, len(one))
        return mark

    def _need_topic(self, name: str) -> None:
        self._core.topics.ensure_topic(name, 1, self._core.now_ms())

    # -- rounds

    def tick(self) -> None:
        """Continue reading marks and checking."""
        if self._is_slave() or self._busy or self._stopped:
            return
        ledger = self._ledger
        if not (self._read_marks() and self._read_copies() and self._complete()):
            if self._next_turn is None:  # this was not called in it
                self._next_turn = asyncio.get_running_loop().call_soon(self._go_on)
            return
        if ledger.advance():
            self._note()
        if self._carry():
            return
        now_ms = self._core.now_ms()
        if self._round_ms is None:
            if not self._rounds.is_due(now_ms):
                return
            self._round_ms = now_ms
        times = self._core.store.clock_history
        self._store_plan(ledger, ledger.plan(self._round_ms, now_ms, self._read_halves, times))

    def _go_on(self) -> None:
        self._next_turn = None
        self.tick()

    def stop(self) -> None:
        """Stop reading and checking; what is being stored is completed."""
        self._stopped = True

    def next_ms(self) -> int | None:
        """The time of the next check of open transactions; None without such transactions."""
        is_open = self._ledger.half_offset < self._core.store.queue_range(HALF_TOPIC, 0)[1]
        return self._rounds.next_ms if is_open else None

    def _knows_end_of(self, record: Record) -> bool:
        """Whether the mark of a half message's transaction must have been read if it exists."""
        store, ledger = self._core.store, self._ledger
        if self._torn:
            return False
        if ledger.read_from <= store.queue_range(OP_HALF_TOPIC, 0)[0]:
            return True
        if name_of(record) != record.queue_offset:
            return False  # the mark may be that of an older copy
        oldest = store.place_of(OP_HALF_TOPIC, 0, ledger.read_from)
        return oldest is not None and oldest < record.physical_offset

    def _read_marks(self) -> bool:
        """Read marks of previous processes, the newest first; returns whether all are known."""
        store, ledger = self._core.store, self._ledger
        first, _ = store.queue_range(OP_HALF_TOPIC, 0)
        if ledger.op_offset < first:
            ledger.skip_ops(first)
        if ledger.read_from > first:
            begin = at = max(ledger.read_from - MARKS_AT_ONCE, first)
            ops: list[Op] = []
            while at < ledger.read_from:
                found = store.read(
                    OP_HALF_TOPIC, 0, at, max_bytes=_READ_BYTES, max_count=ledger.read_from - at
                )
                marks = self._core.foreign.each(OP_HALF_TOPIC, found.records, self._mark_at)
                ops += [mark.op for mark in marks if mark.counts]
                at = max(found.next_offset, at + 1)
            for op in reversed(ops):
                ledger.mark_older(op)
            ledger.no_older(begin)
        waiting, self._waiting = self._waiting, []
        self._again(waiting)
        return ledger.read_from <= first

    # -- after a power cut

    def _complete(self) -> bool:
        """Store again what a power cut has taken; returns whether all of it was submitted."""
        for _ in range(min(len(self._torn), MARKS_AT_ONCE)):
            place = self._torn.popleft()
            found = self._core.store.record_at(place)
            if found is None:
                continue
            record = decode(found, check_crc=False)
            half = self._half_of_committed(record)
            if half is None or half.queue_offset in self._ending or name_of(half) in self._ending:
                continue
            if not self._ledger.has_ended(name_of(half)):
                self._store_rest(half, record)
        return not self._torn

    def _half_of_committed(self, record: Record) -> Record | None:
        """The half message of a committed message; None if the log does not have it."""
        half = self._record_at(record.prepared_offset, HALF_TOPIC)
        if half is None or half.born_ms != record.born_ms:
            return None
        batch = committed_batch(half, half.physical_offset)
        bodies = [half.body] if batch is None else batch.bodies
        return half if record.body in bodies else None

    def _store_rest(self, half: Record, record: Record) -> None:
        """Store what is missing of a committed transaction, one message of which is stored."""
        name = name_of(half)
        newest = max(half.queue_offset, self._ledger.newest(name))
        self._need_topic(OP_HALF_TOPIC)
        drafts = self._rest_of(half, record)
        self._ending[name] = []

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            if isinstance(outcome, CohererError):
                self._torn.append(record.physical_offset)
            else:
                self._marked(Op(outcome[-1].queue_offset, newest, name, is_rollback=False))
            self._again(self._ending.pop(name))

        mark = self._mark_of(name, newest, drafts)
        self._core.appender.submit(drafts, done, origin=Origin.TRANSACTIONS, own=[mark])

    def _rest_of(self, half: Record, record: Record) -> list[DraftBatch]:
        """The missing messages of a half batch, one message of which is stored."""
        batch = committed_batch(half, half.physical_offset)
        store = self._core.store
        place = store.place_of(record.topic, record.queue_id, record.queue_offset)
        if batch is None or place != record.physical_offset:  # the topic was deleted since
            return []
        at = max(record.queue_offset - len(batch), 0)
        stored: list[Record] = []
        while at < store.queue_range(record.topic, record.queue_id)[1]:
            records, following = self._read(record.topic, at, record.queue_id)
            stored += [one for one in records if one.prepared_offset == half.physical_offset]
            at = max(following, at + 1)
        rest = missing(batch, stored)
        return [rest] if len(rest) else []

    def _marked(self, op: Op) -> None:
        self._ledger.skip_ops(op.offset)  # only damaged ones are between
        self._ledger.mark(op)

    def _read_copies(self) -> bool:
        """Read half messages of previous processes; returns whether all copies are known."""
        begin = max(self._copies_from, self._ledger.half_offset)
        if begin >= self._copies_to:
            return True
        records, following = self._read(HALF_TOPIC, begin)
        for record in records:
            self._ledger.found_copy(record)
        self._copies_from = following if following > begin else self._copies_to
        return self._copies_from >= self._copies_to

    def _mark_at(self, record: Record) -> _Mark | None:
        """A mark; None if it is invalid. It does not count if a power cut took what it tells of."""
        op, place, foreign = read_op(record), record.physical_offset, self._core.foreign
        if op is None:
            return None
        if op.half_offset >= self._core.store.queue_range(HALF_TOPIC, 0)[1]:
            return _Mark(op, counts=False) if foreign.refers_to_torn(place) else None
        return _Mark(op, counts=op.is_rollback or not foreign.follows_torn(place))

    # -- keeping half messages whose files would be deleted

    def _needed(self) -> int | None:
        """The log offset of the first half message that has not ended."""
        store = self._core.store
        at = self._offset_of(HALF_TOPIC) if self._is_slave() else self._ledger.half_offset
        while entries := store.entries(HALF_TOPIC, 0, at, RECORDS_AT_ONCE):
            for entry in entries:
                if store.leads_to_log(entry):
                    return entry.physical_offset
            at = entries[-1].offset + 1
        return None

    def _carry(self) -> bool:
        """Copy half messages in files that will be deleted soon; returns whether it copies some."""
        to, ledger, now_ms = self._core.next_to_go, self._ledger, self._core.now_ms()
        if to <= self._carried_to:
            return False
        holds = self._core.store.holds
        room = min(_READ_BYTES, holds.room())
        plan = ledger.plan(now_ms, now_ms, self._read_halves, carry_to=to, room=room)
        if not plan.drafts and not plan.more:
            self._carried_to = to
        holds.carried(sum(source.size for source in plan.sources))
        self._store_plan(ledger, plan, is_round=False)
        return bool(plan.drafts)

    def _store_plan(self, ledger: TransactionLedger, plan: Plan, *, is_round: bool = True) -> None:
        if is_round and not plan.more:
            self._round_ms = None
        if not plan.drafts:
            self._plan_stored(ledger, plan, ())
            return
        self._busy = True
        for name in dict.fromkeys(draft.topic for draft in plan.drafts):
            self._need_topic(name)

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            self._busy = False
            if isinstance(outcome, CohererError):
                _log.warning("Half messages are checked late: %s", outcome, about=type(outcome))
                self._round_ms = None
            elif ledger is self._ledger:
                self._plan_stored(ledger, plan, outcome)

        self._core.appender.submit([], done, origin=Origin.TRANSACTIONS, own=plan.drafts)

    def _plan_stored(
        self, ledger: TransactionLedger, plan: Plan, appended: Sequence[AppendResult]
    ) -> None:
        ledger.carried_out(plan, [copy.queue_offset for copy in appended])
        self._note()
        every = zip(plan.sources, plan.drafts, plan.asked, appended, strict=True)
        for source, draft, asked, copy in every:
            if draft.topic == CHECK_MAX_TIME_TOPIC:
                _log.warning(
                    "Half message %d given up", source.queue_offset, about=CHECK_MAX_TIME_TOPIC
                )
            elif asked and not ledger.has_ended(name_of(source)):
                asking = self._core.foreign.parse(
                    HALF_TOPIC, source, partial(_question, draft=draft, copy=copy)
                )
                if asking is not None and not self._ask(asking):
                    _log.info(
                        "No producer of group %s is connected for a check",
                        asking.group,
                        group=asking.group,
                    )

    def _read_halves(self, offset: int) -> tuple[Sequence[Record], int]:
        return self._read(HALF_TOPIC, offset)

    def _read(self, topic: str, offset: int, queue: int = 0) -> tuple[list[Record], int]:
        found = self._core.store.read(
            topic, queue, offset, max_bytes=_READ_BYTES, max_count=RECORDS_AT_ONCE
        )
        records = self._core.foreign.each(topic, found.records, lambda record: record)
        return records, max(found.next_offset, offset)

    # -- offsets

    def _open_ledger(self) -> TransactionLedger:
        return TransactionLedger(
            self._offset_of(HALF_TOPIC),
            self._offset_of(OP_HALF_TOPIC),
            self._options,
            read_to=self._core.store.queue_range(OP_HALF_TOPIC, 0)[1],
        )

    def _offset_of(self, topic: str) -> int:
        first, end = self._core.store.queue_range(topic, 0)
        known = self._core.offsets.find(GROUP, topic, 0)
        return first if known is None else min(max(known.offset, first), end)

    def _note(self) -> None:
        offsets = self._core.offsets
        offsets.open(GROUP, HALF_TOPIC, 0).offset = self._ledger.half_offset
        offsets.open(GROUP, OP_HALF_TOPIC, 0).offset = self._ledger.op_offset

    def _in_use(self) -> Iterable[tuple[str, str]]:
        return ((HALF_TOPIC, GROUP), (OP_HALF_TOPIC, GROUP))


def _question(source: Record, draft: Draft, copy: AppendResult) -> Question:
    return question(source, draft, copy.queue_offset, copy.physical_offset)


_NO_DESTINATION: Final = (
    "The message is illegal, maybe msg body or properties length not matched. msg body length "
    "limit 128k, msg properties length limit 32k."
)


def _refuse(channel: Channel, request: Command, error: CohererError) -> None:
    if isinstance(error, StoreFullError):
        text = f"Service not available now. {error.text}"
        channel.respond(request, ResponseCode.SERVICE_NOT_AVAILABLE, text)
    else:
        channel.respond(request, ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR")
