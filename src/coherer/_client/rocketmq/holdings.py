"""The queues of a consumer: which are ours, where they begin, and what becomes of their offsets.

Rules:

* Who shares queues works out which are its own from the topic's queues and the group's members, on
  every word from a broker that the members have changed, on every new route, and every
  `rebalance_ms`. While a broker does not tell the members, nothing changes (8.9).
* What goes is given up before anything new is taken: its offset is written down, and in order, it
  is unlocked when the application has dealt with what it has, or after `release_ms`.
* What comes is locked first (in order), then begins where `Starts` says. What fails is tried again
  in the next round, which then comes sooner.
* When the queues of a topic have changed, its subscription is a new version of itself, which all
  brokers are told at once (3.5); pulls of queues that come later name it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Final, Protocol

import msgspec

from coherer._client.engine.tasks import waits
from coherer._client.rocketmq.claimed import ClaimedBatch, Later
from coherer._client.rocketmq.consumer_options import ConsumerOptions, Listener
from coherer._client.rocketmq.door import Door
from coherer._client.rocketmq.figures import Figures
from coherer._client.rocketmq.held import Held
from coherer._client.rocketmq.inbox import Inbox
from coherer._client.rocketmq.locking import Locks
from coherer._client.rocketmq.offset_store import OffsetStore
from coherer._client.rocketmq.rebalance import IDLE_MS, change, share
from coherer._client.rocketmq.start import Edge, Starts
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import RETRY_PREFIX, Queue
from coherer._wire.rocketmq.pulling import LITE
from coherer._wire.rocketmq.subscription import Subscription
from coherer.errors import CohererError, RefusedError

_log = Log(logging.getLogger(__name__))


LAST_WORD_MS: Final = 1_000
"""How long who gives queues up waits for brokers to write the offsets down."""


class Returner(Protocol):
    """Has messages delivered again."""

    async def send_back(self, message: StoredMessage, later: Later) -> bool:
        """Whether the message is out of our hands now."""
        ...


class Holdings:
    """The queues that one consumer holds. A `held.Keeper`.

    Args:
        door: the way to brokers.
        group: the consumer's group.
        subscriptions: by topic; new versions of them are put there.
        options: the consumer's options.
        store: where offsets are kept.
        returner: has messages delivered again.
        flags: of pulls.
        make: makes batches.

    Attributes:
        held: the queues that we hold.
        inbox: what can be taken of them.
        starts: where queues begin.
        locks: of an orderly consumer.
        figures: how we fare, by topic.
        paused: queues of which nothing is pulled and handed out.
        assigned: by topic, the queues that we were told to read; None to share them.
    """

    def __init__(
        self,
        door: Door,
        group: str,
        subscriptions: MutableMapping[str, Subscription],
        options: ConsumerOptions,
        store: OffsetStore,
        returner: Returner,
        flags: int,
        make: Callable[..., ClaimedBatch],
    ) -> None:
        self.door = door
        self.group = group
        self.options = options
        self.store = store
        self.make = make
        self.held: dict[Queue, Held] = {}
        self.inbox = Inbox(options.prefetch_bytes)
        self.starts = Starts(options.start)
        self.locks = Locks(door, group, self.held, self.locked)
        self.figures: dict[str, Figures] = {}
        self.paused: frozenset[Queue] = frozenset()
        self.assigned: Mapping[str, Collection[Queue]] | None = None
        self._round = asyncio.Lock()
        self._subscriptions = subscriptions
        self._returner = returner
        self._flags = flags
        self._changed = asyncio.Condition()
        self._greeting: asyncio.Task[None] | None = None

    # -- what queues call

    def ready(self, held: Held) -> None:
        """See `held.Keeper`."""
        self.inbox.add(held)

    def has_room(self, held: Held) -> bool:
        """See `held.Keeper`."""
        return self.inbox.has_room(held)

    def figures_of(self, topic: str) -> Figures:
        """See `held.Keeper`."""
        return self.figures.setdefault(topic, Figures())

    def cached(self, size_bytes: int) -> None:
        """See `held.Keeper`."""
        self.inbox.cached(size_bytes)

    def unknown(self) -> None:
        """See `held.Keeper`."""
        if self._greeting is None or self._greeting.done():
            self._greeting = asyncio.create_task(
                self.door.instance.heartbeat_now(), name="heartbeat"
            )

    async def send_back(self, message: StoredMessage, later: Later) -> bool:
        """See `held.Keeper`."""
        return await self._returner.send_back(message, later)

    def locked(self, held: Held) -> None:
        """The broker has locked a queue for us."""
        held.kick()
        self.inbox.add(held)

    # -- rounds

    async def look(self) -> None:
        """Note where queues end, if that is where a new group begins (see `start`)."""
        if not self.starts.at_end:
            return
        time_ms = now_ms()
        for topic in self._subscriptions:
            if topic.startswith(RETRY_PREFIX):
                continue
            try:
                route = await self.door.instance.route(topic)
            except RefusedError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    self.starts.looked(topic, None, time_ms)
            except CohererError as error:
                _log.info("Where %s ends: %s", topic, error)
            else:
                ends = await asyncio.gather(*(self._end(queue) for queue in route.readable))
                table = dict(zip(route.readable, ends, strict=True))
                self.starts.looked(topic, table, time_ms)

    async def _end(self, queue: Queue) -> int | None:
        try:
            return await self.door.place(queue, Edge.END)
        except CohererError as error:
            _log.info("Where %s ends: %s", queue, error)
            return None

    async def rebalance(self) -> bool:
        """See which queues are ours, topic by topic; whether all went well."""
        async with self._round:
            return await self._rebalance()

    async def _rebalance(self) -> bool:
        complete = True
        for topic in list(self._subscriptions):
            try:
                ours = await self._ours(topic)
                if ours is None or not await self._apply(topic, ours):
                    complete = False
            except RefusedError as error:
                complete = False
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    _log.warning("Rebalancing %s: %s", topic, error)
            except CohererError as error:
                complete = False
                _log.warning("Rebalancing %s: %s", topic, error)
        return complete

    async def _apply(self, topic: str, ours: Iterable[Queue]) -> bool:
        """Give up and take queues of a topic until we hold these; whether all went well."""
        mine = [queue for queue in self.held if queue.topic == topic]
        before_ms = now_ms() - IDLE_MS
        idle = [queue for queue in mine if self.held[queue].silent_since(before_ms)]
        # Where a pull consumer is, only its user knows (8.9).
        todo = change(mine, ours, () if self._flags & LITE else idle)
        if not todo:
            return True
        complete = await self._give_up(todo.dropped)
        complete = await self._take(todo.added) and complete
        if not self._flags & LITE and {*mine} != {q for q in self.held if q.topic == topic}:
            self._renew(topic)
        return complete

    def _renew(self, topic: str) -> None:
        old = self._subscriptions[topic]
        version_ms = max(now_ms(), old.version_ms + 1)
        self._subscriptions[topic] = msgspec.structs.replace(old, version_ms=version_ms)
        self.door.instance.heartbeat_soon()

    async def _give_up(self, queues: Collection[Queue]) -> bool:
        """Give up queues; whether all of them are given up now."""
        going = [self.held[queue] for queue in queues if queue in self.held]
        if not going:
            return True
        await _tell(self.options.on_revoked, [held.queue for held in going])
        if self.locking:
            going = await self._dealt_with(going)
        await self._quieten(going)
        for held in going:
            held.sync()
            held.drop()
            self.held.pop(held.queue, None)
        gone = [held.queue for held in going]
        await self._last_word(gone)
        if self.locking:
            await self.locks.unlock(gone)
        for queue in gone:
            self.store.forget(queue)
        await self._notify()
        return len(gone) == len(queues)

    async def restart(self, offsets: Mapping[Queue, int]) -> None:
        """Begin anew at these offsets where a queue is ours (220)."""
        await self._quieten([held for queue, held in self.held.items() if queue in offsets])
        for queue, offset in offsets.items():
            held = self.held.get(queue)
            if held is not None:
                held.paused = queue in self.paused
                held.restart(offset)
        await self.store.persist(list(offsets))

    async def persist(self) -> None:
        """Write down where we are in all queues."""
        for held in self.held.values():
            held.sync()
        await self.store.persist(list(self.held))

    def pause(self, queues: frozenset[Queue]) -> None:
        """Pull and hand out nothing of these queues, and of no others."""
        self.paused = queues
        for queue, held in self.held.items():
            held.paused = queue in queues
            held.counted()
            if not held.paused:
                held.kick()
                self.inbox.add(held)

    async def any(self) -> None:
        """Wait until a queue is ours, other than of the group's retry topic."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: any(not queue.topic.startswith(RETRY_PREFIX) for queue in self.held)
            )

    async def close(self) -> None:
        """Give everything up."""
        try:
            await self._quieten(self.held.values())
        finally:  # whoever does not let us finish has no more use for it
            for held in self.held.values():
                held.sync()
                held.drop()
        await self._last_word(list(self.held))
        if self.locking:
            await self.locks.unlock(list(self.held), wait=True)
        self.held.clear()
        self.inbox.wake()

    # -- inside

    @property
    def locking(self) -> bool:
        """Whether queues are locked."""
        return self.options.orderly and self.options.model == "clustering"

    async def _ours(self, topic: str) -> Collection[Queue] | None:
        if self.assigned is not None:
            return self.assigned.get(topic, ())
        route = await self.door.instance.route(topic)
        if self.options.model == "broadcast":
            return route.readable
        members = await self.door.members(self.group, topic)
        if members is None:
            return None
        own_id = self.door.instance.client_id
        return share(self.options.strategy, own_id, route.readable, members)

    async def _take(self, queues: list[Queue]) -> bool:
        if not queues:
            return True
        wanted = list(queues)
        locked: frozenset[Queue] = frozenset()
        if self.locking:
            locked = await self.locks.lock(queues)
            wanted = [queue for queue in queues if queue in locked]
        places = await asyncio.gather(*(self._place(queue) for queue in wanted))
        # Before anything is pulled: the next owner of a queue must begin where we did.
        await self._last_word(frozenset(wanted))
        coming: list[Held] = []
        for queue, place in zip(wanted, places, strict=True):
            if place is None:
                continue
            held = Held(self, queue, self._subscriptions[queue.topic], place, self._flags)
            held.paused = queue in self.paused
            held.locked_ms = now_ms() if queue in locked else 0
            self.held[queue] = held
            coming.append(held)
        if coming:
            await _tell(self.options.on_assigned, [held.queue for held in coming])
        for held in coming:
            if self.held.get(held.queue) is held:
                self.starts.taken(held.queue)
                held.kick()
        await self._notify()
        return len(coming) == len(queues)

    async def _place(self, queue: Queue) -> int | None:
        """Where to begin; None when that cannot be found out now."""
        try:
            stored = None
            if self.starts.needs_stored(queue):
                stored = await self.store.read(queue, exact=self.starts.tells_apart(queue))
            place = self.starts.of(queue, stored)
            if isinstance(place, Edge):
                place = await self.door.place(queue, place, self.starts.time_ms)
        except CohererError as error:
            _log.warning("Where to begin in %s: %s", queue, error)
            return None
        if place == stored:
            self.store.table.move(queue, place)
            self.store.table.saved(queue, place)
        elif self.assigned is None and self.starts.lasts(queue):
            self.store.table.move(queue, place)
        return place

    async def _quieten(self, going: Collection[Held]) -> None:
        """Pull no more, and hand out no more; what rides on pulls is booked then."""
        for held in going:
            held.paused = True
        await self.store.settled([held.queue for held in going])

    async def _last_word(self, queues: Collection[Queue]) -> None:
        """Write down where we are; the next owner must not ask before a broker knows."""
        try:
            async with asyncio.timeout(LAST_WORD_MS / 1000):
                await self.store.persist(queues)
        except TimeoutError:
            _log.warning("A broker has not heard in time how far %s is", self.group)

    async def _dealt_with(self, going: list[Held]) -> list[Held]:
        """Hand out nothing more of them, and wait for what is in the application's hands."""
        for held in going:
            held.paused = True
        wait, deadline = waits(100), now_ms() + self.options.release_ms
        # A second at most, once for each change.
        while any(held.process.in_hand for held in going) and now_ms() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(wait())
        for held in going:
            held.paused = held.queue in self.paused  # who is not finished keeps it for now
        return [held for held in going if not held.process.in_hand]

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _tell(listener: Listener | None, queues: list[Queue]) -> None:
    if listener is None:
        return
    try:
        answer = listener(queues)
        if inspect.isawaitable(answer):
            await answer
    except Exception:  # noqa: BLE001 - theirs; the queues move all the same
        _log.exception("A listener of a consumer failed")
