"""Many half messages: sent by one process, ended by another.

`TwoPhaseCommit.prepare` sends half messages and returns `HalfMessages`: columns that can be
pickled, with all that is necessary to end them. `TwoPhaseCommit.end` commits them or rolls them
back, with many requests in flight. A coordinator collects the columns of its workers.

A broker finds a half message by its offset in the log. Java's broker executes every commit that it
receives: two commits of one half message store two messages. So if a commit is not answered, search
the topic for the message before you repeat the commit. A committed message contains the log offset
of its half message (`MessageBatch.prepared_offsets`). Coherer's broker commits a half message once;
it answers a repeated commit with success, and stores nothing. It says so with the feature
`ends-once`.

A search is useless if the commit arrives after it. So a commit that was not answered never
arrives late from here:

1. `within_ms`: a request that was not sent in time is never sent.
2. If a request was not answered, its connection is reset in the end: the data that is still in the
   buffers of this process and its system is discarded.
3. If the process dies, the operating system still sends the data that it has buffered. It gives up
   after `DELIVERY_MS` (`TCP_USER_TIMEOUT`, on Linux).

A half message may be a *half batch*, which holds many messages (`half_batches`). It is ended by a
code of its own, which only brokers with half batches know.

A half message can be committed as long as the log contains it. It does not matter how often the
broker has asked for its state, or whether it has given up on it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Self, cast

import msgspec

from coherer._client.engine.arguments import checked
from coherer._client.engine.packed import IN_FLIGHT
from coherer._client.engine.sender import Bulk, Stored
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import Link
from coherer._client.rocketmq.producing.broker_sender import PendingSend
from coherer._client.rocketmq.producing.sender import Sender
from coherer._client.rocketmq.transactions import Verdict
from coherer._record.ids import decode_offset_id
from coherer._wire.rocketmq import codes
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import EndTransactionHeader
from coherer._wire.rocketmq.messages import SendReceipt
from coherer._wire.rocketmq.names import Queue
from coherer.errors import (
    CohererError,
    DisconnectedError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from coherer.message import Message

SAFE: Final = "SEND_OK"
DELIVERY_MS: Final = 3_000
"""How long the system may try to deliver a commit to the broker's machine."""


class HalfMessages(msgspec.Struct, frozen=True):
    """Half messages that brokers have stored, as columns.

    Args:
        group: the producer group, as brokers know it.
        queues: the queues that the messages are for.
        queue: for each message, the index of its queue in `queues`.
        half_offsets: for each message, the queue offset in the half topic of its broker.
        log_offsets: for each message, the offset in the log of its broker.
        counts: for each half batch the number of its messages, and 0 for each single message;
            empty if there are no half batches.

    >>> queues = (Queue("t", "a", 0), Queue("t", "a", 1))
    >>> half_offsets, log_offsets = array("q", [5, 6]), array("q", [7, 8])
    >>> halves = HalfMessages("g", queues, array("H", [0, 1]), half_offsets, log_offsets)
    >>> len(halves), halves.pick([1]).log_offsets
    (2, array('q', [8]))
    >>> len(HalfMessages.joined([halves, halves]))
    4
    """

    group: str = ""
    queues: tuple[Queue, ...] = ()
    queue: Sequence[int] = ()
    half_offsets: Sequence[int] = ()
    log_offsets: Sequence[int] = ()
    counts: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.log_offsets)

    def check(self) -> None:
        """Check columns that come from elsewhere.

        Raises:
            UsageError: their lengths differ, or a message has no queue.
        """
        lengths = {len(self.queue), len(self.half_offsets), len(self.log_offsets)}
        if len(lengths) > 1 or len(self.counts) not in (0, len(self)):
            raise UsageError("The columns of the half messages differ in length.")
        if len(self) and not 0 <= min(self.queue) <= max(self.queue) < len(self.queues):
            raise UsageError(f"A half message names a queue beyond the {len(self.queues)} queues.")

    def pick(self, numbers: Iterable[int]) -> Self:
        """Return some of the messages, by index."""
        numbers = list(numbers)
        return type(self)(
            self.group,
            self.queues,
            array("H", (self.queue[number] for number in numbers)),
            array("q", (self.half_offsets[number] for number in numbers)),
            array("q", (self.log_offsets[number] for number in numbers)),
            array("q", (self.counts[number] for number in numbers)) if self.counts else (),
        )

    @classmethod
    def joined(cls, parts: Sequence[HalfMessages]) -> HalfMessages:
        """Join several parts of one group, in order."""
        known: dict[Queue, int] = {}
        queue, half_offsets, log_offsets = array("H"), array("q"), array("q")
        counts = array("q") if any(len(part.counts) for part in parts) else None
        for part in parts:
            place = [known.setdefault(one, len(known)) for one in part.queues]
            queue.extend(place[number] for number in part.queue)
            half_offsets.extend(part.half_offsets)
            log_offsets.extend(part.log_offsets)
            if counts is not None:
                counts.extend(part.counts or [0] * len(part))
        group = next((part.group for part in parts if part.group), "")
        return cls(group, tuple(known), queue, half_offsets, log_offsets, counts or ())


class HalfBulk(Bulk):
    """The outcomes of half messages, collected as columns. A `Sink`.

    Args:
        post_many: sends messages; see `Bulk`.
        group: the producer group, as brokers know it.
    """

    def __init__(
        self, post_many: Callable[[Iterable[Message], Bulk], Awaitable[None]], group: str
    ) -> None:
        super().__init__(post_many, receipts=False)
        self._group = group
        self._queues: dict[tuple[str, str, int], int] = {}
        self._queue, self._half, self._log = array("H"), array("q"), array("q")

    def stored(self, sent: Stored) -> None:
        """Record that the broker has stored a half message."""
        receipt = cast("SendReceipt", sent.receipt())
        unsafe = not_safe(receipt)
        if unsafe is not None:
            self.lost(cast("PendingSend", sent).message, unsafe)
            return
        key = (receipt.topic, receipt.broker, receipt.partition)
        self._queue.append(self._queues.setdefault(key, len(self._queues)))
        self._half.append(receipt.offset)
        self._log.append(decode_offset_id(receipt.id).physical_offset)
        super().stored(sent)

    def halves(self) -> HalfMessages:
        """The stored half messages, in the order of the answers."""
        queues = tuple(Queue(*key) for key in self._queues)
        return HalfMessages(self._group, queues, self._queue, self._half, self._log)


def not_safe(receipt: SendReceipt) -> RefusedError | None:
    """The error of a half message that is stored, but not flushed or replicated as configured."""
    if receipt.status == SAFE:
        return None
    return RefusedError(
        f"The half message is not safely stored ({receipt.status}).",
        topic=receipt.topic,
        hint="Is the broker's disk slow, or is its slave down?",
    )


def half_properties(group: str) -> dict[str, str]:
    """The properties by which a broker knows a half message, and whom to ask about it."""
    return {"TRAN_MSG": "true", "PGROUP": group}


@checked
class TwoPhaseCommit:
    """Commits messages of several processes together. See `Producer.two_phase`.

    Workers prepare messages and give the columns to a coordinator, which records its decision
    and ends all of them.

    Args:
        instance: the connections and routes.
        sender: knows the group and the full names of topics.
        bulk: makes the collector for half messages, which also sends them.
        check: raises an error if the producer cannot be used.
    """

    def __init__(
        self,
        instance: Instance,
        sender: Sender,
        bulk: Callable[[], HalfBulk],
        check: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._sender = sender
        self._bulk = bulk
        self._check = check

    async def prepare(
        self, messages: Iterable[Message]
    ) -> tuple[HalfMessages, list[tuple[Message, CohererError]]]:
        """Send half messages, with as many in flight as the window allows.

        Until they are ended, brokers ask the producers of the group for the state of each message,
        so the producer needs a check function (`check=`).

        Args:
            messages: taken one by one while the window has space.

        Returns:
            The stored half messages, and the messages that failed, each with its error. A message
            whose answer was lost may also be stored, as a half message that nobody ends.

        Raises:
            UsageError: the producer has no check function.
            CohererError: a topic could not be published.
        """
        bulk = self._bulk()
        await bulk.add(messages)
        report = await bulk.finish()
        return bulk.halves(), report.failed

    async def end(
        self,
        halves: HalfMessages,
        verdict: Verdict,
        *,
        window: int = 1_000,
        within_ms: int | None = None,
    ) -> list[tuple[int, CohererError]]:
        """Commit or roll back half messages of this or of another process.

        Coherer's broker ends them in the order of `halves`; Java's ends several concurrently.

        Args:
            halves: the half messages.
            verdict: commit or roll back.
            window: the maximum number of requests in flight.
            within_ms: send no request later than this; those that are left fail. A coordinator that
                may be replaced needs it: after this time its successor can look for what was
                committed.

        Returns:
            The index and the error of each half message whose end was refused or not answered. A
            request without an answer may have been executed: do not simply commit again, because
            that may store the message twice, unless the brokers end a half message only once
            (`ends_once`).

        Raises:
            UsageError: the columns of `halves` do not fit together.
        """
        self._check()
        if verdict is Verdict.UNKNOWN:
            raise UsageError("A transaction ends with COMMIT or ROLLBACK.")
        halves.check()
        loop = asyncio.get_running_loop()
        until = None if within_ms is None else loop.time() + within_ms / 1000
        links: dict[str, Link | CohererError] = {}
        for queue in halves.queues:
            if queue.broker not in links:
                links[queue.broker] = await self._link(queue)
        timeout_ms = self._instance.options.timeout_ms
        if any(halves.counts):
            window = min(window, IN_FLIGHT)  # a broker stores up to 1 MiB for each of them
        ending = Ending(halves, verdict, timeout_ms=timeout_ms, window=window, until=until)
        return await ending.run(links)

    async def ends_once(self, halves: HalfMessages) -> bool:
        """Whether all brokers commit a half message only once, also if the request is repeated.

        Coherer's do, Java's do not.

        Raises:
            UnavailableError: a broker cannot be reached, or does not answer.
        """
        self._check()
        for queue in {queue.broker: queue for queue in halves.queues}.values():
            if not await self._instance.ends_once(await self._address(queue)):
                return False
        return True

    async def _address(self, queue: Queue) -> str:
        """The address of the master of a queue's broker."""
        routes = self._instance.routes
        await routes.route(self._sender.full_name(queue.topic), create=True)
        return routes.address(queue.broker)

    async def _link(self, queue: Queue) -> Link | CohererError:
        try:
            return await self._instance.link(await self._address(queue), fast=True)
        except CohererError as error:
            return error


class Ending:
    """Ends many half messages: sends the requests, and collects the failures.

    Args:
        halves: the half messages.
        timeout_ms: the timeout of each request.
        window: the maximum number of requests in flight.
        until: when to stop sending, by the loop's clock; None for never.

    Attributes:
        failed: the index and the error of each half message whose end was refused or not answered.
    """

    def __init__(
        self,
        halves: HalfMessages,
        verdict: Verdict,
        *,
        timeout_ms: int,
        window: int,
        until: float | None = None,
    ) -> None:
        self.failed: list[tuple[int, CohererError]] = []
        self._halves = halves
        self._verdict = verdict
        self._timeout_s = timeout_ms / 1000
        self._window = window
        self._until = until
        self._unanswered: set[Link] = set()
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._changed = asyncio.Event()

    async def run(self, links: Mapping[str, Link | CohererError]) -> list[tuple[int, CohererError]]:
        """Send all requests, in the order of the messages; returns `failed`, sorted.

        Args:
            links: for each broker, the connection or the error.
        """
        halves = self._halves
        is_commit = self._verdict is Verdict.COMMIT
        for one in links.values():
            if isinstance(one, Link) and is_commit:
                one.connection.limit_delivery(DELIVERY_MS)
        for number, place in enumerate(halves.queue):
            link = links[halves.queues[place].broker]
            while self._in_flight >= self._window:
                await self._wait()
            if isinstance(link, Link):
                self._send(link, number)
            else:
                self.failed.append((number, link))
        while self._in_flight:
            await self._wait()
        for unanswered in self._unanswered if is_commit else ():
            unanswered.connection.reset()
        return sorted(self.failed, key=lambda one: one[0])

    def answered(self, number: int, server: str, answer: Command) -> None:
        """Record the broker's answer."""
        self._count_answer()
        if answer.code != ResponseCode.SUCCESS:
            self.failed.append((number, codes.refused(answer.code, answer.remark, server=server)))

    def unanswered(self, number: int, link: Link, error: CohererError) -> None:
        """Record that there will be no answer."""
        self._count_answer()
        self._unanswered.add(link)
        self.failed.append((number, error))

    def _count_answer(self) -> None:
        self._in_flight -= 1
        self._changed.set()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _send(self, link: Link, number: int) -> None:
        if self._until is not None and self._loop.time() > self._until:
            text = "The half message was not ended in time, and nothing was sent."
            self.failed.append((number, UnavailableError(text, server=link.server)))
            return
        halves = self._halves
        fields = EndTransactionHeader(
            halves.group,
            halves.half_offsets[number],
            halves.log_offsets[number],
            self._verdict.value,
            msg_id="",
        ).fields()
        self._in_flight += 1
        waiter = _End(self, number, link, self._loop.time() + self._timeout_s)
        if link.open:
            broker = halves.queues[halves.queue[number]].broker
            is_batch = len(halves.counts) and halves.counts[number]
            code = RequestCode.END_HALF_BATCH if is_batch else RequestCode.END_TRANSACTION
            link.send(code, fields, b"", waiter, broker=broker)
        else:
            waiter.failed(DisconnectedError("The connection is closed.", server=link.server))


class _End:
    """A request that waits for its answer. A `PendingRequest`."""

    __slots__ = ("_ending", "_link", "_number", "deadline")

    def __init__(self, ending: Ending, number: int, link: Link, deadline: float) -> None:
        self._ending = ending
        self._number = number
        self._link = link
        self.deadline = deadline

    def answered(self, answer: Command) -> None:
        """Record the broker's answer."""
        self._ending.answered(self._number, self._link.server, answer)

    def failed(self, error: CohererError) -> None:
        """Record that there will be no answer."""
        self._ending.unanswered(self._number, self._link, error)
