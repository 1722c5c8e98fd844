"""Transactions of a broker: `END_TRANSACTION` (37), and checks of half messages.

See docs/protocol/rocketmq.md, sections 2.9 and 6.7.

The end of a transaction is stored atomically: the real message together with the mark that its half
message is done. (Java stores them one after the other.) So after a crash no committed transaction
is checked again.

`tick`, called ten times a second, keeps the ledger: it first reads the marks of previous processes,
then runs a round of checks through the half messages every minute. The decisions of a round are
stored atomically, too, before the producers are asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer._record.ids import decode_offset_id
from coherer._record.layout import COMMITTED, ROLLED_BACK, Record, decode
from coherer._record.properties import REAL_TOPIC
from coherer._record.properties import decode as decode_properties
from coherer._record.system_topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from coherer._rules.common.origins import RESERVED_TOPICS, Origin, topic_of
from coherer._rules.rocketmq.transaction_checks import CheckOptions, Plan, TransactionLedger
from coherer._rules.rocketmq.transactions import (
    GROUP,
    UNKNOWN,
    End,
    Question,
    committed,
    done_mark,
    mismatch,
    question,
    read_op,
    resumed,
)
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker.sending import reserved_remark
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._store import AppendResult, Draft
from coherer._store.consume_queue import is_valid_queue
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import EndTransactionHeader, MessageIdHeader, parse
from coherer.errors import CohererError, StoreFullError, UsageError

_log = Log(logging.getLogger(__name__))

Ask = Callable[[Question], bool]
"""Asks a producer of the question's group; returns whether there was one."""

RECORDS_AT_ONCE: Final = 1_000
_READ_BYTES: Final = 4 * 1024 * 1024
_NO_STATE: Final = "commitOrRollback field wrong"
_NO_HALF: Final = "Find prepared transaction message failed"
_RESUME_FAILED: Final = f"Put message back to {HALF_TOPIC} failed."
_RESUME_ERROR: Final = f"Exception was thrown when putting message back to {HALF_TOPIC}."


class TransactionService:
    """Ends transactions, and checks those that do not end.

    Args:
        core: the core of the node.
        ask: asks a producer.
        options: when to check.
        is_slave: whether this broker follows a master; it ends no transactions then.
        forbid: with accounts, raises the `Refusal` of a request whose sender may not write to a
            topic.
        schedule: returns the draft to store for a committed message, which may be timed.
    """

    def __init__(
        self,
        core: Core,
        ask: Ask,
        options: CheckOptions | None = None,
        *,
        is_slave: Callable[[], bool] = lambda: False,
        forbid: Callable[[Channel, Command, str], None] | None = None,
        schedule: Callable[[Draft], Draft] = lambda draft: draft,
    ) -> None:
        self._core = core
        self._ask = ask
        self._options = options or CheckOptions()
        self._is_slave = is_slave
        self._forbid = forbid
        self._schedule = schedule
        self._ledger = self._open_ledger()
        self._round_ms: int | None = None  # start of the current round
        self._rounds = IntervalTimer(self._options.interval_ms, core.now_ms())
        self._busy = False
        core.on_idle_check(self._in_use)

    # -- requests

    def end(self, channel: Channel, request: Command) -> Command | None:
        """END_TRANSACTION (37): commit or roll back.

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
                ResponseCode.SLAVE_NOT_AVAILABLE, "Message store is slave mode, so end transaction "
                "is forbidden. ",
            )  # fmt: skip
        if end.state == UNKNOWN:
            return None  # the producer does not know either, and expects no response (section 2.9)
        record = self._half_at(end.physical_offset)
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, _NO_HALF)
        wrong = mismatch(record, end)
        if wrong:
            raise Refusal(ResponseCode.SYSTEM_ERROR, wrong)
        if self._forbid is not None:
            self._forbid(channel, request, topic_of(record))
        self._store_end(channel, request, record, end)
        return None

    def resume(self, channel: Channel, request: Command) -> Command | None:
        """RESUME_CHECK_HALF_MESSAGE (323): check a half message again that was given up.

        Raises:
            Refusal: there is no such message.
        """
        try:
            offset = decode_offset_id(parse(MessageIdHeader, request.fields).msg_id or "")
        except UsageError:
            raise Refusal(ResponseCode.SYSTEM_ERROR, _RESUME_ERROR) from None
        found = self._core.store.record_at(offset.physical_offset)
        if found is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, _RESUME_ERROR)
        self._need_topic(HALF_TOPIC)

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            if isinstance(outcome, CohererError):
                channel.respond(request, ResponseCode.SYSTEM_ERROR, _RESUME_FAILED)
            else:
                channel.respond(request)

        own = [resumed(decode(found))]
        self._core.appender.submit([], done, origin=Origin.TRANSACTIONS, own=own)
        return None

    def _half_at(self, physical_offset: int) -> Record | None:
        found = self._core.store.record_at(physical_offset)
        return None if found is None else decode(found, check_crc=False)

    def _store_end(self, channel: Channel, request: Command, record: Record, end: End) -> None:
        drafts: list[Draft] = []
        topic = decode_properties(record.properties).get(REAL_TOPIC)
        if end.state == COMMITTED:
            if topic in RESERVED_TOPICS:
                raise Refusal(ResponseCode.NO_PERMISSION, reserved_remark(topic))
            real = committed(record)
            if real is None:
                raise Refusal(ResponseCode.SYSTEM_ERROR, _NO_HALF)
            if not is_valid_queue(real.topic, real.queue_id):
                raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _NO_DESTINATION)
            drafts.append(self._schedule(real))
        self._need_topic(OP_HALF_TOPIC)
        store = self._core.store
        own = [done_mark(end.half_offset, store.store_host, self._core.wall_ms())]

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            if isinstance(outcome, CohererError):
                _refuse(channel, request, outcome)
                return
            if topic is not None:
                is_commit = end.state == COMMITTED
                self._core.counters.ended(topic, record.born_ms, is_commit=is_commit)
            op_offset = outcome[-1].queue_offset
            if op_offset == self._ledger.read_to:  # otherwise `_read_marks` reads it
                self._ledger.mark(op_offset, end.half_offset)
            # Java clears its default remark only for commits (section 2.9).
            remark = None if end.state == COMMITTED else "not set any response code"
            channel.respond(request, ResponseCode.SUCCESS, remark)

        self._core.appender.submit(drafts, done, origin=Origin.TRANSACTIONS, own=own)

    def _need_topic(self, name: str) -> None:
        self._core.topics.ensure_topic(name, 1, self._core.now_ms())

    # -- rounds

    def tick(self) -> None:
        """Continue reading marks and checking."""
        if self._is_slave() or self._busy:
            return
        ledger = self._ledger
        if not self._read_marks():
            return  # the next ticks read the others
        if ledger.advance():
            self._note()
        now_ms = self._core.now_ms()
        if self._round_ms is None:
            if not self._rounds.is_due(now_ms):
                return
            self._round_ms = now_ms
        times = self._core.store.clock_history
        self._store_plan(ledger, ledger.plan(self._round_ms, now_ms, self._read_halves, times))

    def _read_marks(self) -> bool:
        """Read marks that this process did not write; returns whether all are known."""
        store, ledger = self._core.store, self._ledger
        first, end = store.queue_range(OP_HALF_TOPIC, 0)
        if ledger.read_to < first:
            ledger.skip_ops(first)
        if ledger.read_to >= end:
            return True
        records, following = self._read(OP_HALF_TOPIC, ledger.read_to)
        for record in records:
            op = read_op(record)
            self._nothing_up_to(op.offset)
            ledger.mark(op.offset, op.half_offset)
        self._nothing_up_to(following)
        return ledger.read_to >= end

    def _nothing_up_to(self, op_offset: int) -> None:
        for damaged in range(self._ledger.read_to, op_offset):
            self._ledger.mark(damaged, -1)

    def _store_plan(self, ledger: TransactionLedger, plan: Plan) -> None:
        if not plan.drafts:
            self._plan_stored(ledger, plan, ())
            return
        self._busy = True
        for name in {draft.topic for draft in plan.drafts}:
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
        if not plan.more:
            self._round_ms = None
        every = zip(plan.sources, plan.drafts, plan.asked, appended, strict=True)
        for source, draft, asked, copy in every:
            if draft.topic == CHECK_MAX_TIME_TOPIC:
                _log.warning(
                    "Half message %d given up", source.queue_offset, about=CHECK_MAX_TIME_TOPIC
                )
            elif asked and not ledger.marked(copy.queue_offset):
                asking = question(source, draft, copy.queue_offset, copy.physical_offset)
                if not self._ask(asking):
                    _log.info(
                        "No producer of group %s is connected for a check",
                        asking.group,
                        group=asking.group,
                    )

    def _read_halves(self, offset: int) -> tuple[Sequence[Record], int]:
        return self._read(HALF_TOPIC, offset)

    def _read(self, topic: str, offset: int) -> tuple[list[Record], int]:
        found = self._core.store.read(
            topic, 0, offset, max_bytes=_READ_BYTES, max_count=RECORDS_AT_ONCE
        )
        records = [decode(record, check_crc=False) for record in found.records]
        return records, max(found.next_offset, offset)

    # -- offsets

    def _open_ledger(self) -> TransactionLedger:
        return TransactionLedger(
            self._offset_of(HALF_TOPIC), self._offset_of(OP_HALF_TOPIC), self._options
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
