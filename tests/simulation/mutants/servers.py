"""Planted bugs of the servers' rules: timers, transactions, retries, locks, leases, filters."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from coherer._rules.rocketmq.clients import QueueLocks
from coherer._rules.rocketmq.transaction_checks import TransactionLedger
from coherer._rules.rocketmq.transactions import COMMITTED
from coherer._rules.tubemq.leases import LeaseTable
from coherer._server.core.foreign import ForeignRecords, Newest
from coherer._server.rocketmq.broker import send_back
from coherer._server.rocketmq.broker.delays import DelayService, _Delivery
from coherer._server.rocketmq.broker.half_batches import committed_batch
from coherer._server.rocketmq.broker.pulling import LongPolling, PullFilter, PullFilters
from coherer._server.rocketmq.broker.send_back import SendBackHandler
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.broker.timers import TimerService
from coherer._server.rocketmq.broker.transactions import TransactionService
from coherer._server.rocketmq.ha.slave import HaSlave, MetadataSync
from coherer._server.tubemq.broker.gets import GetHandler
from coherer._server.tubemq.broker.sends import SendReplies
from coherer._store import AppendResult, Store, power_cuts
from coherer._store.model import PowerCut
from coherer._store.power_cuts import update

Patch = pytest.MonkeyPatch


def timed_too_early(patch: Patch) -> None:
    """A timed message is delivered 50 ms before it is due."""
    real = TimerService._deliver
    patch.setattr(TimerService, "_deliver", lambda timers, now_ms: real(timers, now_ms + 50))


def timed_forgotten(patch: Patch) -> None:
    """After a start, timed messages that were stored before count as delivered."""
    real = TimerService.__init__

    def init(timers: Any, core: Any, **options: Any) -> None:
        real(timers, core, **options)
        rolled_to = core.store.end_offset
        timers._progress = msgspec.structs.replace(timers._progress, rolled_to=rolled_to)

    patch.setattr(TimerService, "__init__", init)


def timed_twice(patch: Patch) -> None:
    """What was delivered before a kill is delivered again."""
    real = TimerService.__init__

    def init(timers: Any, *args: Any, **options: Any) -> None:
        real(timers, *args, **options)
        timers._progress = type(timers._progress)()

    patch.setattr(TimerService, "__init__", init)


def copies_count_without_a_mark(patch: Patch) -> None:
    """What was carried forward just before a power cut waits twice."""
    patch.setattr(TimerService, "drop_copies", lambda timers, topic, newest: None)


def torn_marks_count(patch: Patch) -> None:
    """A mark counts although a power cut took what it tells of."""
    patch.setattr(PowerCut, "tears", lambda cut, offset: False)
    patch.setattr(ForeignRecords, "follows_torn", lambda records, offset: False)


def torn_writes_are_forgotten(patch: Patch) -> None:
    """Such a mark counts from the second start after the power cut on."""
    patch.setattr(power_cuts, "update", lambda known, report: update((), report))


def timed_late(patch: Patch) -> None:
    """A timed message is delivered 15 s after it is due."""
    real = TimerService._deliver
    patch.setattr(TimerService, "_deliver", lambda timers, now_ms: real(timers, now_ms - 15_000))


def levels_too_early(patch: Patch) -> None:
    """A message is delivered 50 ms before its delay level is over."""
    real = DelayService._gather
    patch.setattr(
        DelayService,
        "_gather",
        lambda delays, delivery, level, now_ms: real(delays, delivery, level, now_ms + 50),
    )


def levels_twice(patch: Patch) -> None:
    """What delay levels delivered before a kill is delivered again."""

    def read_mark(delays: Any) -> None:
        delays._newest = Newest(None, 0, is_last=False)

    patch.setattr(DelayService, "_read_mark", read_mark)


def rollbacks_commit(patch: Patch) -> None:
    """A transaction that is rolled back becomes visible."""
    real = TransactionService._store_end

    def store_end(
        service: TransactionService, channel: Any, request: Any, record: Any, end: Any
    ) -> None:
        real(service, channel, request, record, msgspec.structs.replace(end, state=COMMITTED))

    patch.setattr(TransactionService, "_store_end", store_end)


def never_asks_back(patch: Patch) -> None:
    """A transaction whose commit was lost is never asked about."""
    patch.setattr(TransactionService, "tick", lambda service: None)


def commits_twice(patch: Patch) -> None:
    """A commit that comes again is carried out again."""
    patch.setattr(TransactionLedger, "has_ended", lambda ledger, name: False)


def half_batches_stay_torn(patch: Patch) -> None:
    """What a power cut has taken of a committed half batch is not stored again."""
    patch.setattr(TransactionService, "_rest_of", lambda service, half, record: [])


def half_batches_are_stored_again(patch: Patch) -> None:
    """A start after a power cut stores a committed half batch again, with what was left of it."""
    patch.setattr(
        TransactionService,
        "_rest_of",
        lambda service, half, record: [committed_batch(half, half.physical_offset)],
    )


def retries_do_not_count(patch: Patch) -> None:
    """A message that is refused comes back with the same attempt."""
    real = send_back._copy

    def copy(record: Any, topic: str, queue_id: int, level: int) -> Any:
        draft = real(record, topic, queue_id, level)
        return msgspec.structs.replace(draft, reconsume_times=record.reconsume_times)

    patch.setattr(send_back, "_copy", copy)


def retries_are_lost(patch: Patch) -> None:
    """A refused message is acknowledged to the consumer, and stored nowhere."""
    patch.setattr(
        SendBackHandler, "send_back", lambda _, channel, request: channel.respond(request)
    )


def retries_come_at_once(patch: Patch) -> None:
    """A refused message comes back without a delay."""
    patch.setattr(send_back, "delayed", lambda draft, level, levels: draft)


def dead_one_attempt_early(patch: Patch) -> None:
    """A message becomes a dead letter one attempt too early."""
    real = SendBackHandler._draft

    def draft(handler: Any, channel: Any, request: Any, header: Any, group: Any) -> Any:
        fewer = (header.max_reconsume_times or 0) - 1
        header = msgspec.structs.replace(header, max_reconsume_times=fewer)
        return real(handler, channel, request, header, group)

    patch.setattr(SendBackHandler, "_draft", draft)


def dead_letters_are_lost(patch: Patch) -> None:
    """A message that was refused too often vanishes."""
    real = SendBackHandler.send_back

    def send(handler: Any, channel: Any, request: Any) -> None:
        offset = int(request.fields["offset"])
        if handler._record(offset).reconsume_times >= 3:
            channel.respond(request)
        else:
            real(handler, channel, request)

    patch.setattr(SendBackHandler, "send_back", send)


def locks_for_everyone(patch: Patch) -> None:
    """Every member of a group gets the lock of a queue, and with it the queue."""
    patch.setattr(QueueLocks, "lock", lambda locks, group, client, queues, now_ms: list(queues))


def waiting_pulls_are_not_woken(patch: Patch) -> None:
    """A pull that waits is answered when its time is over, although a message came."""
    patch.setattr(LongPolling, "arrived", lambda polling, drafts, appended: None)


def waiting_gets_are_not_woken(patch: Patch) -> None:
    """A get that waits is answered when its time is over, although a message came."""
    patch.setattr(GetHandler, "messages_arrived", lambda gets, drafts, appended: None)


def sql_is_ignored(patch: Patch) -> None:
    """A group with an SQL92 filter gets all messages."""
    real = PullFilters.wanted

    def wanted(cache: Any, header: Any, group: Any) -> PullFilter:
        return msgspec.structs.replace(real(cache, header, group), test=None)

    patch.setattr(PullFilters, "wanted", wanted)


def tags_lose_messages(patch: Patch) -> None:
    """A tag filter passes nothing that is behind a message of another tag in its read."""
    real = PullFilters.wanted

    def wanted(cache: Any, header: Any, group: Any) -> PullFilter:
        found = real(cache, header, group)
        return found if found.tags is None else msgspec.structs.replace(found, tags=frozenset({1}))

    patch.setattr(PullFilters, "wanted", wanted)


def confirms_what_it_hands_out(patch: Patch) -> None:
    """A batch counts as consumed when it is handed out."""
    real = GetHandler._count

    def count(gets: Any, get: Any, *args: Any) -> None:
        real(gets, get, *args)
        get.reader.position.commit()

    patch.setattr(GetHandler, "_count", count)


def leases_never_end(patch: Patch) -> None:
    """The partitions of a consumer that lost its power stay with it."""
    real = LeaseTable.__init__

    def init(leases: Any, timeout_ms: int) -> None:
        real(leases, timeout_ms * 1_000)

    patch.setattr(LeaseTable, "__init__", init)


def errors_are_acknowledged(patch: Patch) -> None:
    """A message that could not be stored is acknowledged."""
    real = SendReplies.__call__

    def call(replies: Any, outcome: Any, end_offset: int) -> None:
        if isinstance(outcome, Exception):
            outcome = [AppendResult(0, 0, 0, 0) for _ in replies._drafts]
        real(replies, outcome, end_offset)

    patch.setattr(SendReplies, "__call__", call)


def heirs_know_no_locks(patch: Patch) -> None:
    """A slave that becomes the master grants the locks that others still hold."""
    patch.setattr(QueueLocks, "inherit", lambda locks, now_ms: None)


def slaves_begin_with_the_last_file(patch: Patch) -> None:
    """A new slave lacks what is older than its master's last file, like Java's."""

    async def first(_: object) -> int:
        return 0

    patch.setattr(HaSlave, "_first", first)


def slaves_run_ahead(patch: Patch) -> None:
    """Slaves take offsets whose messages they do not have, like Java's."""

    async def has_log(*_: object) -> bool:
        return True

    patch.setattr(MetadataSync, "_has_log", has_log)


def slaves_copy_slaves(patch: Patch) -> None:
    """A slave copies topics and positions from a lost master that came back as an empty slave."""

    async def check_role(_: MetadataSync) -> None:
        pass

    patch.setattr(MetadataSync, "_check_role", check_role)


def answers_before_slaves(patch: Patch) -> None:
    """A SYNC_MASTER answers before a slave has what it has stored."""
    patch.setattr(RocketState, "replicated", lambda state, end_offset: None)


def forgets_before_slaves(patch: Patch) -> None:
    """A SYNC_MASTER says that a transaction has ended before a slave knows it, like Java's."""
    patch.setattr(
        TransactionService,
        "_when_replicated",
        lambda service, channel, request, end_offset, answer: answer,
    )


def delays_stop_in_gaps(patch: Patch) -> None:
    """Delayed messages behind a long gap wait for other messages."""
    patch.setattr(Store, "after_blanks", lambda store, topic, queue_id, offset: offset)
    patch.setattr(
        _Delivery, "has_passed", property(lambda _: False, lambda *_: None), raising=False
    )


MUTANTS: Final = {
    "tubemq": (
        waiting_gets_are_not_woken,
        confirms_what_it_hands_out,
        leases_never_end,
        errors_are_acknowledged,
    ),
    "rocketmq": (
        timed_too_early,
        timed_forgotten,
        timed_twice,
        copies_count_without_a_mark,
        torn_marks_count,
        torn_writes_are_forgotten,
        timed_late,
        levels_too_early,
        levels_twice,
        rollbacks_commit,
        never_asks_back,
        commits_twice,
        half_batches_stay_torn,
        half_batches_are_stored_again,
        retries_do_not_count,
        retries_are_lost,
        retries_come_at_once,
        dead_one_attempt_early,
        dead_letters_are_lost,
        locks_for_everyone,
        waiting_pulls_are_not_woken,
        sql_is_ignored,
        tags_lose_messages,
        heirs_know_no_locks,
        slaves_begin_with_the_last_file,
        slaves_run_ahead,
        slaves_copy_slaves,
        answers_before_slaves,
        forgets_before_slaves,
        delays_stop_in_gaps,
    ),
}
