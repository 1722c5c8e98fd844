"""Carries out decisions: every half message of a micro-batch is committed once.

Coherer's broker commits a half message once, however often and late the requests come
(`TwoPhaseCommit.ends_once`). So the coordinator repeats every commit that may have been lost, and
all of the micro-batch when a connection is lost: with async flush, a power cut of the broker may
have undone commits that it had confirmed.

Java's broker carries out every commit that it receives, also the second one of a half message
(`coherer._client.rocketmq.producing.half_messages`). So `Coordinator` sends it a commit
only if it knows that none was carried out before:

1. Nobody has sent one: the decision is new, and this process wrote it.
2. Otherwise it reads the queues. A committed message contains the log offset of its half message,
   and is behind the end that its queue had at the decision. The coordinator reads from there, and
   commits the missing half messages. Only masters answer, since slaves may be behind; and the
   coordinator asks for the end of a queue first and reads up to it. A read that ends earlier is an
   error, and never means that nothing is committed.

Before it reads, no process may send further commits, and none may be on the way. So it first
becomes the owner of the decision, and then waits until the brokers were quiet for `QUIET_S`, which
is more than a commit can need:

| step of a commit | bound |
|---|---|
| from the check of the owner until it is sent | `SEND_S`; later, it is not sent |
| to the broker's machine | 3 s (`DELIVERY_MS`); then the system drops it, on Linux |
| from there to the broker | the time for which the broker hangs: it must answer questions |
| | promptly during the wait, or the wait begins again |
| in the broker | 3 s, its `waitTimeMillsInTransactionQueue`; then it refuses it |

Two cases remain, with Java's broker only: a driver that is frozen between `SEND_S` and the call of
its system, continues after its successor has read the queues, and is still connected (a broker
closes connections that are silent for 2 minutes); and a network that keeps a packet for longer than
`QUIET_S`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from coherer._common.logs import Log
from coherer._record.batches import PackedMessages
from coherer._wire.rocketmq.codes import HALF_NOT_FOUND, ResponseCode
from coherer.blocking._half_batches import prepare_packed
from coherer.blocking.rocketmq import Client as RocketClient
from coherer.blocking.rocketmq import Producer as RocketProducer
from coherer.errors import CohererError, RefusedError, UnavailableError, UsageError
from coherer.message import Message
from coherer.rocketmq import Check, HalfMessages, Queue, StoredMessage, Verdict
from coherer.spark.decisions import Decision, Decisions
from coherer.spark.planning import DataLossError

_log = Log(logging.getLogger(__name__))

SEND_S: Final = 2.0
"""The time after a check of the owner in which commits may be sent."""

QUIET_S: Final = 10.0
"""After this time a commit that another process sent to Java's broker is carried out or lost."""

STEP_S: Final = 1.0
"""The pause between two questions during `QUIET_S`, and the time limit of an answer."""

PATIENCE_S: Final = 60.0
"""The time of retries while a broker is away. A Java broker needs about 10 s to restart."""

COMMITS_AT_ONCE: Final = 2_000
"""Commits of single messages before the owner is checked again."""

HALF_BATCHES_AT_ONCE: Final = 100
"""Commits of half batches before the owner is checked again; a broker needs 2 to 10 ms for each."""

_finished_batches: Final[dict[str, int]] = {}


def note_finished(group: str, batch: int) -> None:
    """Remember that a query's micro-batches up to this one are finished."""
    _finished_batches[group] = max(batch, _finished_batches.get(group, -1))


def answer_broker(message: StoredMessage) -> Verdict:
    """The answer to a broker that asks for the state of a half message.

    Never a commit: only the coordinator commits. When a micro-batch is finished, the broker may
    delete its other half messages: those of failed attempts, and copies that the broker made.

    >>> note_finished("g", 4)
    >>> old, new = ({"PGROUP": "g", "spark.batch": batch} for batch in ("4", "5"))
    >>> [answer_broker(StoredMessage("t", b"", stored_properties=one)).name for one in (old, new)]
    ['ROLLBACK', 'UNKNOWN']
    """
    group = message.stored_properties.get("PGROUP", "")
    batch = message.stored_properties.get("spark.batch", "")
    if batch.isdecimal() and int(batch) <= _finished_batches.get(group, -1):
        return Verdict.ROLLBACK
    return Verdict.UNKNOWN


class HalfQueue(Protocol):
    """A cluster, as a coordinator sees it."""

    def ends(self, queues: Sequence[Queue]) -> list[int]:
        """The end of each queue.

        Raises:
            UnavailableError: a broker is away.
        """
        ...

    def ends_once(self, halves: HalfMessages) -> bool:
        """Whether all brokers commit a half message once, also if the request is repeated."""
        ...

    def end(self, halves: HalfMessages, verdict: Verdict) -> list[tuple[int, CohererError]]:
        """Commit or roll back; see `TwoPhaseCommit.end`."""
        ...

    def reach(self, queue: Queue, offset: int) -> None:
        """Read at an offset behind the end of a queue.

        If a power cut has removed the messages before the offset, a Coherer broker then continues
        the queue behind it. A Java broker does not.
        """
        ...

    def committed(self, queue: Queue, start: int, end: int) -> set[int]:
        """The log offsets of half messages whose messages are in a range of a queue.

        Raises:
            UnavailableError: the range cannot be read to its end now.
        """
        ...


class RocketHalfQueue:
    """A `HalfQueue` on a blocking client; `check` answers brokers."""

    def __init__(self, client: RocketClient, check: Check = answer_broker) -> None:
        self._client = client
        self._check = check
        self._producers: dict[str, RocketProducer] = {}

    def prepare(self, group: str, messages: Iterable[Message], window: int) -> HalfMessages:
        """Send half messages.

        Raises:
            CohererError: one is not stored.
        """
        halves, failed = self._producer(group, window).two_phase.prepare(messages)
        if failed:
            self.roll_back(halves)
            raise failed[0][1]
        return halves

    def prepare_packed(
        self,
        group: str,
        batches: Sequence[PackedMessages],
        properties: Mapping[str, str],
        window: int,
    ) -> Sequence[HalfMessages | CohererError]:
        """Send encoded batches as half messages; returns the outcome of each."""
        return prepare_packed(self._producer(group, window), batches, properties)

    def roll_back(self, halves: HalfMessages) -> None:
        """Roll back as many as possible; the rest is never committed."""
        try:
            failed = self.end(halves, Verdict.ROLLBACK) if len(halves) else []
        except CohererError as error:
            failed = [(0, error)]
        if failed:
            _log.info("Half messages are left to the broker: %s", failed[0][1])

    def ends(self, queues: Sequence[Queue]) -> list[int]:
        """The end of each queue, by its master; 0 if its topic is so new that it has no route.

        Raises:
            UnavailableError: a master is away.
        """
        found: dict[Queue, int] = {}
        for topic in {queue.topic for queue in queues}:
            try:
                bounds = self._client.offsets(topic)
            except RefusedError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
                continue
            found |= {Queue(topic, one.broker, one.id): end for one, (_, end) in bounds.items()}
        self._check_masters({queue.broker for queue in queues if queue not in found})
        return [found.get(queue, 0) for queue in queues]

    def _check_masters(self, brokers: set[str]) -> None:
        """Check that brokers without a route are there: a broker that stops takes its routes along.

        Raises:
            UnavailableError: one has no master.
        """
        if not brokers:
            return
        registered = self._client.admin().brokers.list(runtime=False)
        away = sorted(brokers - {one.name for one in registered if one.role == "master"})
        if away:
            raise UnavailableError(
                f"No name server knows a master of broker {', '.join(away)}.",
                hint="Start it again.",
            )

    def ends_once(self, halves: HalfMessages) -> bool:
        """Whether all brokers commit a half message once, also if the request is repeated."""
        return self._producer(halves.group).two_phase.ends_once(halves)

    def end(self, halves: HalfMessages, verdict: Verdict) -> list[tuple[int, CohererError]]:
        """Commit or roll back; see `TwoPhaseCommit.end`."""
        within_ms = int(SEND_S * 1000) if verdict is Verdict.COMMIT else None
        two_phase = self._producer(halves.group).two_phase
        return two_phase.end(halves, verdict, window=COMMITS_AT_ONCE, within_ms=within_ms)

    def reach(self, queue: Queue, offset: int) -> None:
        """Read at an offset behind the end of a queue, so that it continues behind a gap."""
        with self._client.reader(queue, offset, end=offset + 1, masters_only=True) as reader:
            reader.read()

    def committed(self, queue: Queue, start: int, end: int) -> set[int]:
        """The log offsets of half messages whose messages are in a range of a queue.

        Raises:
            DataLossError: the broker has deleted a part of the range.
            UnavailableError: the master cannot be asked, or does not return the whole range.
        """
        found: set[int] = set()
        with self._client.reader(queue, start, end=end, masters_only=True) as reader:
            while (batch := reader.read()) is not None:
                found.update(batch.prepared_offsets())
            if reader.position < end:
                raise UnavailableError(
                    f"The broker returned messages up to offset {reader.position}, and the queue "
                    f"ends at {end}.",
                    topic=queue.topic,
                    partition=queue.id,
                )
            if reader.left_out:
                raise DataLossError(
                    f"{reader.left_out} messages behind offset {start} are gone, so it is unknown "
                    "which messages of the micro-batch were committed.",
                    topic=queue.topic,
                    partition=queue.id,
                    hint="Was the query stopped for longer than the broker keeps messages?",
                )
        return found

    def leave(self, group: str) -> None:
        """Stop answering for a group."""
        producer = self._producers.pop(group, None)
        if producer is not None:
            producer.close()

    def _producer(self, group: str, window: int = 5_000) -> RocketProducer:
        producer = self._producers.get(group)
        if producer is None:
            # A half message that is sent twice is harmless: one of the two is never committed.
            producer = self._client.producer(
                group=group, window=window, retry_lost=True, check=self._check
            )
            producer.start()
            self._producers[group] = producer
        return producer


class Coordinator:
    """Decides about micro-batches, and carries the decisions out.

    Args:
        queue: the cluster.
        decisions: the decisions of the query.
        clock: seconds; for tests.
        sleep: waits for seconds; for tests.
    """

    def __init__(
        self,
        queue: HalfQueue,
        decisions: Decisions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._queue = queue
        self._decisions = decisions
        self._clock = clock
        self._sleep = sleep
        self._me = os.urandom(8).hex()

    def commit(self, name: str, halves: HalfMessages, plan: str = "") -> None:
        """Decide that a micro-batch consists of these half messages, and commit them.

        Without half messages it decides nothing.

        Args:
            name: the name of the micro-batch.
            halves: its half messages.
            plan: see `Decision`.

        Raises:
            UsageError: another process has decided.
            UnavailableError: a broker is away. If the decision is recorded, `finish` carries it
                out.
        """
        if not len(halves):
            return
        starts = tuple(self._ends_patiently(halves.queues))
        decision = Decision(self._me, halves, starts, plan)
        if not self._decisions.record(name, decision):
            raise UsageError(
                f"Another process has committed micro-batch {name}.",
                hint="Do two queries use one checkpoint?",
            )
        self._carry_out(name, decision, untouched=True)

    def finish(self, name: str) -> bool:
        """Carry out a decision that a process left behind; returns False without one.

        Raises:
            UnavailableError: a broker is away.
            UsageError: another process has become the owner.
            DataLossError: the broker has lost half messages, or has deleted messages that were
                committed.
        """
        decision = self._decisions.find(name)
        if decision is None:
            return False
        _log.info("Finishing micro-batch %s: %d half messages", name, len(decision.halves))
        self._carry_out(name, decision, untouched=False)
        return True

    def _carry_out(self, name: str, decision: Decision, *, untouched: bool) -> None:
        left, give_up = decision.halves, self._clock() + PATIENCE_S
        error: CohererError | None = None
        while len(left):
            if error is not None:
                self._sleep(STEP_S)
            try:
                if not untouched:
                    if isinstance(error, UnavailableError):
                        left = decision.halves
                    self._claim(name, decision)
                    if not self._queue.ends_once(left):
                        left = self._missing(name, decision, left)
                left, error = self._commit_some(name, decision, left)
            except (UnavailableError, RefusedError) as away:
                error = away
            untouched = False
            if len(left) and self._clock() > give_up:
                text = (
                    f"{len(left)} of {len(decision.halves)} half messages of micro-batch {name} "
                    f"are not committed: {error}"
                )
                if isinstance(error, RefusedError) and HALF_NOT_FOUND in error.text:
                    lost = "Was the broker's machine cut off from power, with async flush?"
                    raise DataLossError(text, hint=f"{lost} {self._decisions.way_out}") from error
                raise UnavailableError(text, hint=_hint(name)) from error

    def _ends_patiently(self, queues: Sequence[Queue]) -> list[int]:
        """The ends of queues, also if a broker is away for a moment."""
        give_up = self._clock() + PATIENCE_S
        while True:
            try:
                return self._queue.ends(queues)
            except UnavailableError:
                if self._clock() > give_up:
                    raise
            self._sleep(STEP_S)

    def _claim(self, name: str, decision: Decision) -> None:
        """Become the owner of a decision: another process sends no further window of commits."""
        if self._decisions.owner(name, decision) != self._me:
            self._decisions.claim(name, decision, self._me)

    def _ends_when_quiet(self, queues: Sequence[Queue]) -> list[int]:
        """The ends of queues, after every commit on the way was carried out or lost.

        Raises:
            UnavailableError: the brokers repeatedly do not answer in time.
        """
        begun = quiet = self._clock()
        while True:
            asked = self._clock()
            ends = self._queue.ends(queues)
            now = self._clock()
            if now - asked > STEP_S:
                quiet = now  # it may only now carry out commits that it had received before
            if now - quiet >= QUIET_S:
                return ends
            if now - begun > PATIENCE_S:
                text = f"The brokers took longer than {STEP_S:.0f} s for an answer, again and again"
                raise UnavailableError(f"{text}, so it is unknown whether commits are on the way.")
            self._sleep(STEP_S)

    def _missing(self, name: str, decision: Decision, left: HalfMessages) -> HalfMessages:
        """The half messages that are not committed yet; waits until no commit is on the way."""
        ends = self._ends_when_quiet(left.queues)
        done: set[tuple[str, int]] = set()
        for queue, start, last in zip(left.queues, decision.starts, ends, strict=True):
            end = last
            if end < start:
                self._queue.reach(queue, start)
                [end] = self._queue.ends([queue])
                if end < start:
                    raise _shortened(name, queue, start, end, self._decisions.way_out)
            found = self._queue.committed(queue, start, end)
            done.update((queue.broker, offset) for offset in found)
        brokers = [queue.broker for queue in left.queues]
        rows = enumerate(zip(left.queue, left.log_offsets, strict=True))
        return left.pick(
            number for number, (place, offset) in rows if (brokers[place], offset) not in done
        )

    def _commit_some(
        self, name: str, decision: Decision, left: HalfMessages
    ) -> tuple[HalfMessages, CohererError | None]:
        """Commit in windows up to the first failure; returns the half messages that may be left."""
        size = min(COMMITS_AT_ONCE, HALF_BATCHES_AT_ONCE) if any(left.counts) else COMMITS_AT_ONCE
        for begin in range(0, len(left), size):
            if self._decisions.owner(name, decision) != self._me:
                raise UsageError(
                    f"Another process finishes micro-batch {name}.", hint=_taken_over(name)
                )
            window = left.pick(range(begin, min(begin + size, len(left))))
            failed = self._queue.end(window, Verdict.COMMIT)
            if failed:
                rest = range(begin + len(window), len(left))
                numbers = [begin + number for number, _ in failed]
                return left.pick([*numbers, *rest]), failed[0][1]
        return left.pick(()), None


def _hint(name: str) -> str:
    """What to do about a decision that could not be carried out."""
    if name.isdecimal():
        return "The decision is recorded: start the query again to finish it."
    return (
        "The decision is recorded: do not write these rows again. The next transactional write "
        "with the same folder finishes it first."
    )


def _taken_over(name: str) -> str:
    """What to do when another process carries out a decision of this one."""
    if name.isdecimal():
        return "Do two queries use one checkpoint?"
    return (
        "It is another write with the same folder. Do not write these rows again: they are in the "
        "topic, or the next transactional write with the folder finishes them. Give writes that "
        "run at the same time a checkpointLocation each."
    )


def _shortened(name: str, queue: Queue, start: int, end: int, way_out: str) -> DataLossError:
    return DataLossError(
        f"Broker {queue.broker} has lost messages: its queue ends at {end}, and ended at {start} "
        f"when micro-batch {name} was decided. It is unknown which messages of the micro-batch "
        "were committed.",
        topic=queue.topic,
        partition=queue.id,
        hint=f"Was the broker's machine cut off from power, or its topic created anew? {way_out}",
    )
