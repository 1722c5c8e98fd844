"""Which queues a consumer has: rebalancing, locks, and where reading begins.

See docs/protocol/rocketmq.md, sections 8.9, 8.14.

* Every member of a group computes its own queues from the same two lists: the topic's queues and
  the group's members. All members come to the same result as long as they see the same lists. A
  rebalance runs when a broker reports a change of the members, on every new route, and every
  `rebalance_ms`. If a broker does not return the members, the assignment stays (section 8.9).
* Revoked queues are given up before new ones are taken: their offsets are stored, and locked queues
  are unlocked when the application has acknowledged its batches, or after `release_ms`.
* A new queue is locked first (orderly consumers), then reading begins where `StartPositions` says.
  A failure is retried in the next round, which then comes sooner.
* When the queues of a topic have changed, its subscription gets a new version, which is sent to all
  brokers at once (section 3.5); pulls of new queues contain it.
* A broker keeps a lock for 60 s. Locks are renewed every `LOCK_MS`, and soon again if a broker does
  not answer, such as one that restarts. Without an answer, a lock is considered valid for
  `assigned_queue.LOCK_LIFE_MS`, so no other member can have it meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Final

import msgspec

from coherer._client.engine.assignments import Assignments, PrefetchBuffer
from coherer._client.engine.tasks import backoff, cancel, is_order
from coherer._client.rocketmq.consuming.assigned_queue import (
    AssignedQueue,
    ConsumeStatistics,
    QueueContext,
)
from coherer._client.rocketmq.consuming.broker_rpc import BrokerRpc
from coherer._client.rocketmq.consuming.offsets import OffsetStore
from coherer._client.rocketmq.consuming.redelivery import Redelivery
from coherer._client.rocketmq.options import ConsumerOptions, Listener
from coherer._client.rocketmq.received import ReceivedBatch
from coherer._client.rocketmq.start_position import Edge, StartPositions
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._wire.rocketmq.allocate import Strategy, sorted_for_allocation
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.names import RETRY_PREFIX, Queue
from coherer._wire.rocketmq.subscription import Subscription
from coherer.errors import CohererError, RefusedError

_log = Log(logging.getLogger(__name__))

LOCK_MS: Final = 20_000
LOCK_RETRY_MS: Final = 2_000
"""The longest pause before locks are renewed again if a broker has not answered."""

STORE_TIMEOUT_MS: Final = 1_000
"""How long to wait for brokers to store the offsets of revoked queues."""

IDLE_MS: Final = 120_000
"""A queue without any answer for this time is given up; the next round takes it again."""


class Change(msgspec.Struct, frozen=True):
    """The difference between the current and the computed assignment of a topic.

    Args:
        revoked: the queues to give up, in order.
        added: the queues to take, in order.
    """

    revoked: list[Queue]
    added: list[Queue]

    def __bool__(self) -> bool:
        return bool(self.revoked or self.added)


def allocate(
    strategy: Strategy, own_id: str, queues: Iterable[Queue], clients: Iterable[str]
) -> list[Queue]:
    """The queues of one topic that a member gets.

    Args:
        strategy: one of `coherer._wire.rocketmq.allocate`, or your own.
        own_id: the member's client id.
        clients: client ids of the group's members.

    >>> from coherer._wire.rocketmq.allocate import average
    >>> queues = [Queue("flights", "broker-a", number) for number in range(3)]
    >>> [queue.id for queue in allocate(average, "b", queues, ["c", "b"])]
    [0, 1]
    """
    every, members = sorted_for_allocation(set(queues), set(clients))
    if not every or own_id not in members:
        return []
    return strategy(every, members, own_id)


def change_of(
    assigned: Collection[Queue], wanted: Iterable[Queue], idle: Collection[Queue] = ()
) -> Change:
    """The queues to give up and to take.

    Args:
        assigned: the queues of the topic that the consumer has.
        wanted: the queues that it should have.
        idle: queues without any answer for `IDLE_MS`, to be given up now.

    >>> a, b = Queue("flights", "broker-a", 0), Queue("flights", "broker-a", 1)
    >>> change_of([a], [b])
    Change(revoked=[Queue(...0)], added=[Queue(...1)])
    """
    target = set(wanted)
    revoked = sorted(queue for queue in assigned if queue not in target or queue in idle)
    added = sorted(queue for queue in target if queue not in assigned)
    return Change(revoked, added)


class QueueLocks:
    """Locks queues at the brokers for a group.

    Args:
        queues: the assigned queues.
        locked: called with each queue that was locked again.

    Attributes:
        held: the queues that brokers may have locked for this consumer.
    """

    def __init__(
        self,
        rpc: BrokerRpc,
        group: str,
        queues: Mapping[Queue, AssignedQueue],
        locked: Callable[[AssignedQueue], None],
    ) -> None:
        self.held: set[Queue] = set()
        self._rpc = rpc
        self._group = group
        self._queues = queues
        self._locked = locked

    async def lock(self, queues: Collection[Queue]) -> frozenset[Queue]:
        """Lock queues; returns the locked ones."""
        self.held.update(queues)
        answers = await self._lock(queues)
        return frozenset(queue for _, locked in answers for queue in locked)

    async def renew(self) -> bool:
        """Renew all locks; a queue whose lock is refused pauses until the next round.

        Returns:
            Whether all brokers have answered.
        """
        queues = frozenset(self._queues)
        answers = await self._lock(queues)
        for asked, locked in answers:
            for queue in asked:
                assigned = self._queues.get(queue)
                if assigned is None:
                    continue
                before, assigned.locked_ms = assigned.locked, now_ms() if queue in locked else 0
                if assigned.locked and not before:
                    self._locked(assigned)
        return sum(len(asked) for asked, _ in answers) == len(queues)

    async def unlock(self, queues: Collection[Queue], *, wait: bool = False) -> None:
        """Unlock queues; with `wait`, wait for the answers of reachable brokers."""
        unlock = partial(self._rpc.unlock, self._group, wait=wait)
        await asyncio.gather(*(unlock(*each) for each in _by_broker(queues).items()))
        self.held.difference_update(queues)

    async def _lock(self, queues: Iterable[Queue]) -> list[tuple[list[Queue], frozenset[Queue]]]:
        """Ask all brokers concurrently, so that locks do not expire while one of them is down.

        Returns:
            For each broker that answered, the requested queues and the locked ones.
        """

        async def lock(broker: str, of_broker: list[Queue]) -> frozenset[Queue] | None:
            try:
                return frozenset(await self._rpc.lock(self._group, broker, of_broker))
            except CohererError as error:
                _log.warning("Locking queues of %s failed: %s", broker, error)
                return None

        asked = _by_broker(queues)
        answers = await asyncio.gather(*(lock(*each) for each in asked.items()))
        pairs = zip(asked.values(), answers, strict=True)
        return [(of_broker, locked) for of_broker, locked in pairs if locked is not None]


def _by_broker(queues: Iterable[Queue]) -> dict[str, list[Queue]]:
    found: defaultdict[str, list[Queue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker].append(queue)
    return found


class AssignmentManager:
    """The assigned queues of one consumer.

    Args:
        subscriptions: by topic; new versions are put there.
        flags: of pulls.
        assignments: the assigned queues, shared with the consumer.
        members_are: called in each rebalance with a topic and the group's members.

    Attributes:
        queues: the assigned queues.
        buffer: the prefetch buffer.
        store: as given.
        locks: of an orderly consumer.
        statistics: by topic.
        manual: by topic, the queues that `PullConsumer.assign` set; None to rebalance.
    """

    def __init__(
        self,
        rpc: BrokerRpc,
        group: str,
        subscriptions: MutableMapping[str, Subscription],
        options: ConsumerOptions,
        store: OffsetStore,
        flags: int,
        make_batch: Callable[..., ReceivedBatch],
        assignments: Assignments[Queue, AssignedQueue],
        members_are: Callable[[str, Collection[str]], None],
    ) -> None:
        self.rpc = rpc
        self.store = store
        self.queues = assignments.fetchers
        self.buffer: PrefetchBuffer[ReceivedBatch] = assignments.buffer
        self.locks = QueueLocks(rpc, group, self.queues, self._locked)
        self.statistics: dict[str, ConsumeStatistics] = {}
        self.manual: Mapping[str, Collection[Queue]] | None = None
        self._group = group
        self._options = options
        self._assignments = assignments
        self._members_are = members_are
        self._starts = StartPositions(options.start)
        self._subscriptions = subscriptions
        self._round = asyncio.Lock()
        self._seeking = asyncio.Lock()  # an operator may reset a group again before it has drained
        self._heartbeat: asyncio.Task[None] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        self._leaving: set[Queue] = set()  # given up, and their offsets are not stored yet
        self._context = QueueContext(
            rpc,
            group,
            options,
            flags,
            store,
            Redelivery(rpc, group, options),
            self.buffer,
            make_batch,
            self._subscription_unknown,
            self._topic_missing,
        )

    @property
    def locking(self) -> bool:
        """Whether queues are locked."""
        return self._context.locking

    # -- rounds

    async def read_ends(self) -> None:
        """Read the end offsets of all queues, if new groups begin there (see `start_position`)."""
        if not self._starts.needs_ends:
            return
        time_ms = now_ms()
        for topic in self._subscriptions:
            if topic.startswith(RETRY_PREFIX):
                continue
            try:
                route = await self.rpc.instance.routes.route(topic)
            except RefusedError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    self._starts.set_ends(topic, None, time_ms)
            except CohererError as error:
                _log.info("Cannot read the end offsets of %s: %s", topic, error)
            else:
                ends = await asyncio.gather(*(self._end(queue) for queue in route.readable))
                table = dict(zip(route.readable, ends, strict=True))
                self._starts.set_ends(topic, table, time_ms)

    async def _end(self, queue: Queue) -> int | None:
        try:
            return await self.rpc.resolve(queue, Edge.END)
        except CohererError as error:
            _log.info("Cannot read the end offset of %s: %s", queue, error)
            return None

    async def rebalance(self) -> bool:
        """Compute and apply the assignment of each topic; returns whether all of them succeeded."""
        async with self._round:
            complete = True
            for topic in list(self._subscriptions):
                complete = await self._rebalance(topic) and complete
            return complete

    async def _rebalance(self, topic: str) -> bool:
        try:
            wanted = await self._wanted(topic)
            return wanted is not None and await self._apply(topic, wanted)
        except RefusedError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                _log.warning("Rebalancing %s failed: %s", topic, error)
        except CohererError as error:
            _log.warning("Rebalancing %s failed: %s", topic, error)
        return False

    async def _wanted(self, topic: str) -> Collection[Queue] | None:
        """The queues of a topic that this consumer should have; None if that is unknown."""
        if self.manual is not None:
            return self.manual.get(topic, ())
        route = await self.rpc.instance.routes.route(topic)
        if self._options.model == "broadcast":
            return route.readable
        members = await self.rpc.members(self._group, topic)
        if members is None:
            return None
        self._members_are(topic, members)
        own_id = self.rpc.instance.client_id
        return allocate(self._options.strategy, own_id, route.readable, members)

    async def _apply(self, topic: str, wanted: Iterable[Queue]) -> bool:
        """Give up and take queues of a topic; returns whether all of it succeeded."""
        assigned = [queue for queue in self.queues if queue.topic == topic]
        before_ms = now_ms() - IDLE_MS
        idle = [queue for queue in assigned if self.queues[queue].silent_since(before_ms)]
        # Only its user knows the position of a pull consumer, so it keeps idle queues (section
        # 8.9).
        change = change_of(assigned, wanted, () if self._context.manual else idle)
        if not change:
            return True
        complete = await self._revoke(change.revoked)
        complete = await self._take(change.added) and complete
        after = {queue for queue in self.queues if queue.topic == topic}
        if not self._context.manual and {*assigned} != after:
            self._renew_subscription(topic)
        return complete

    def _renew_subscription(self, topic: str) -> None:
        old = self._subscriptions[topic]
        version_ms = max(now_ms(), old.version_ms + 1)
        self._subscriptions[topic] = msgspec.structs.replace(old, version_ms=version_ms)
        self.rpc.instance.heartbeat_soon()

    # -- giving queues up

    async def _revoke(self, queues: Collection[Queue]) -> bool:
        """Give up queues; returns whether all of them are given up now."""
        going = [self.queues[queue] for queue in queues if queue in self.queues]
        if not going:
            return True
        await _call(self._options.on_revoked, [assigned.queue for assigned in going])
        if self.locking:
            going = await self._acknowledged(going)
        await self._drain(going)
        gone = [assigned.queue for assigned in going]
        self._leaving.update(gone)
        for assigned in going:
            assigned.sync()
            self._remove(assigned)
        await self._store_offsets(gone)
        if self.locking:
            await self.locks.unlock(gone)
        for queue in gone:
            self.store.forget(queue)
        self._leaving.difference_update(gone)
        return len(gone) == len(queues)

    async def _acknowledged(self, going: list[AssignedQueue]) -> list[AssignedQueue]:
        """Stop delivering these queues, wait for their batches, and return the finished queues."""
        self._assignments.drain(going)
        wait, deadline = backoff(100), now_ms() + self._options.release_ms
        # At most `release_ms`, once per rebalance.
        while any(assigned.state.in_hand for assigned in going) and now_ms() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(wait())
        for assigned in going:
            if assigned.state.in_hand:
                self._assignments.keep(assigned.queue)
        return [assigned for assigned in going if not assigned.state.in_hand]

    async def _drain(self, going: Collection[AssignedQueue]) -> None:
        """Pull and deliver nothing more; wait until the offsets in pulls are applied."""
        self._assignments.drain(going)
        await self.store.pulls_applied([assigned.queue for assigned in going])

    def _remove(self, assigned: AssignedQueue) -> None:
        assigned.close()
        self._assignments.remove(assigned.queue)

    async def _store_offsets(self, queues: Collection[Queue]) -> None:
        """Store offsets before the next owner of the queues asks for them."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT_MS / 1000):
                await self.store.persist(queues)
        except TimeoutError:
            _log.warning("Storing the offsets of %s timed out", self._group)

    async def close(self) -> None:
        """Give everything up, also what a rebalance was taking or giving up."""
        queues = [*self.queues, *self._leaving]
        try:
            await cancel(*self._forgetting)
            await self._drain(list(self.queues.values()))
        finally:  # also if the caller is cancelled
            for assigned in list(self.queues.values()):
                assigned.sync()
                self._remove(assigned)
        await self._store_offsets(queues)
        if self.locking:
            await self.locks.unlock(sorted(self.locks.held), wait=True)
        self.buffer.wake()

    # -- taking queues

    async def _take(self, queues: list[Queue]) -> bool:
        """Take queues; returns whether all of them are assigned now."""
        if not queues:
            return True
        wanted = list(queues)
        locked: frozenset[Queue] = frozenset()
        if self.locking:
            locked = await self.locks.lock(queues)
            wanted = [queue for queue in queues if queue in locked]
        offsets = await asyncio.gather(*(self._start_offset(queue) for queue in wanted))
        # Before anything is pulled: the next owner of a queue must begin at the same offset.
        await self._store_offsets(frozenset(wanted))
        new: list[AssignedQueue] = []
        for queue, offset in zip(wanted, offsets, strict=True):
            if offset is None:
                continue
            statistics = self.statistics.setdefault(queue.topic, ConsumeStatistics())
            assigned = AssignedQueue(
                self._context, queue, self._subscriptions[queue.topic], offset, statistics
            )
            assigned.locked_ms = now_ms() if queue in locked else 0
            self._assignments.add(queue, assigned)
            new.append(assigned)
        if new:
            await _call(self._options.on_assigned, [assigned.queue for assigned in new])
        for assigned in new:
            if self.queues.get(assigned.queue) is assigned:
                self._starts.begun(assigned.queue)
                assigned.fetch_more()
        return len(new) == len(queues)

    async def _start_offset(self, queue: Queue) -> int | None:
        """Where to begin; None if that is unknown now."""
        try:
            stored = None
            if self._starts.needs_stored_offset(queue):
                exact = self._starts.distinguishes_zero(queue)
                stored = await self.store.read(queue, exact=exact)
            offset = self._starts.position(queue, stored)
            if isinstance(offset, Edge):
                offset = await self.rpc.resolve(queue, offset, self._starts.time_ms)
        except CohererError as error:
            _log.warning("Cannot determine where to begin in %s: %s", queue, error)
            return None
        if offset == stored:
            self.store.table.move(queue, offset)
            self.store.table.saved(queue, offset)
        elif self.manual is None and self._starts.must_store(queue):
            self.store.table.move(queue, offset)
        return offset

    # -- offsets

    async def seek(self, offsets: Mapping[Queue, int]) -> None:
        """Continue at these offsets in the queues that are assigned, and store them."""
        async with self._seeking:
            going = [self.queues[queue] for queue in offsets if queue in self.queues]
            await self._drain(going)
            for assigned in going:
                if self.queues.get(assigned.queue) is assigned:
                    self._assignments.keep(assigned.queue)
                    assigned.seek(offsets[assigned.queue])
            await self.store.persist(list(offsets))

    async def persist(self) -> None:
        """Store the offsets of all queues."""
        for assigned in self.queues.values():
            assigned.sync()
        await self.store.persist(list(self.queues))

    # -- callbacks

    def _locked(self, assigned: AssignedQueue) -> None:
        assigned.fetch_more()
        self.buffer.add(assigned)

    def _topic_missing(self, queue: Queue) -> None:
        if self.manual is None and self._options.model != "broadcast":
            task = asyncio.create_task(self._forget(queue), name=f"forget {queue}")
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def _forget(self, queue: Queue) -> None:
        """Start at offset 0 if the broker has deleted the group's offset together with the topic.

        The old offset would be in the middle of a new topic of that name. Java's brokers keep the
        offset, and may only have lost the topic's settings; then the group continues there.
        """
        try:
            stored = await self.store.read(queue)
        except CohererError as error:
            _log.info("The offset of %s in %s is unknown: %s", self._group, queue, error)
            return
        if stored is None:
            await self.seek({queue: 0})

    def _subscription_unknown(self) -> None:
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = asyncio.create_task(
                self.rpc.instance.heartbeat_now(), name="heartbeat"
            )


async def _call(listener: Listener | None, queues: list[Queue]) -> None:
    if listener is None:
        return
    try:
        answer = listener(queues)
        if inspect.isawaitable(answer):
            await answer
    except BaseException as error:  # raised by the application; rebalancing goes on
        if is_order(error):
            raise
        _log.exception("A rebalance listener failed")
