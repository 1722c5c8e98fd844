"""A member of a consumer group: what push and pull consumers have in common.

It says what it subscribes to in heartbeats, has its queues shared out (`Holdings`), writes offsets
down, and answers what brokers ask consumers (`answering`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import ClassVar, cast

from coherer._client.engine.consumer import Progress
from coherer._client.engine.lifecycle import Lifecycle
from coherer._client.engine.tasks import cancel, every
from coherer._client.rocketmq import answering
from coherer._client.rocketmq.claimed import ClaimedBatch
from coherer._client.rocketmq.consumer_options import (
    ConsumerOptions,
    Topics,
    selections_of,
    subscription_data,
)
from coherer._client.rocketmq.door import Door
from coherer._client.rocketmq.holdings import Holdings
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.local_offsets import LocalOffsets
from coherer._client.rocketmq.locking import LOCK_MS
from coherer._client.rocketmq.offset_store import OffsetStore
from coherer._client.rocketmq.received import ReceivedBatch
from coherer._client.rocketmq.remote_offsets import RemoteOffsets
from coherer._client.rocketmq.returning import Returner
from coherer._client.rocketmq.routes import Route
from coherer._client.rocketmq.start import Starts
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._wire.rocketmq.bodies import ConsumerData
from coherer._wire.rocketmq.names import (
    RETRY_PREFIX,
    Queue,
    check_group,
    check_topic,
    retry_topic,
    with_namespace,
)
from coherer._wire.rocketmq.subscription import SQL92, Subscription
from coherer.errors import ClosedError, CohererError, RequestTimeoutError

_log = Log(logging.getLogger(__name__))

ROUND_MS_MIN = 1_000
"""The next round after one that was not complete comes so soon, then later and later."""


class Member(Lifecycle):
    """What push and pull consumers have in common.

    Args:
        instance: the way to the cluster.
        group: the group.
        topics: what to receive.
        options: how.

    Attributes:
        make: makes batches; facades have their own.
        namespace: of all names, see `ClientOptions`.
    """

    _KIND: ClassVar[str] = "consumer"

    consume_type: ClassVar[str]
    flags: ClassVar[int]

    def __init__(
        self, instance: Instance, group: str, topics: Topics, options: ConsumerOptions
    ) -> None:
        namespace = instance.options.namespace
        check_group(group)
        self._instance = instance
        self._options = options
        self._group = with_namespace(namespace, group)
        self._subscriptions: dict[str, Subscription] = {}
        for topic, selector in selections_of(topics).items():
            check_topic(topic)
            name = with_namespace(namespace, topic)
            self._subscriptions[name] = Subscription.of(name, selector, version_ms=now_ms())
        Starts(options.start)  # refuses nonsense now
        self.make: Callable[..., ClaimedBatch] = ReceivedBatch
        self.namespace = namespace
        self._began_ms = 0
        self._state = "new"
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._holdings: Holdings
        self._loop: asyncio.AbstractEventLoop

    def __repr__(self) -> str:
        name = type(self).__name__
        topics = (topic for topic in self._subscriptions if not topic.startswith(RETRY_PREFIX))
        what = f"<{name} of {', '.join(topics)} in {self._group}"
        if self._state != "open":
            return f"{what}: {self._state}>"
        held = self._holdings.held.values()
        cached = sum(one.process.messages for one in held)
        paused = sum(one.paused for one in held)
        return f"{what}: {len(held)} queues, {paused} of them paused, {cached} messages here>"

    @property
    def group(self) -> str:
        """The group."""
        return self._group

    @property
    def topics(self) -> Collection[str]:
        """The topics, the group's retry topic among them."""
        return tuple(self._subscriptions)

    @property
    def assignment(self) -> frozenset[Queue]:
        """The queues that are ours now."""
        return frozenset(self._holdings.held) if self._state == "open" else frozenset()

    @property
    def progress(self) -> dict[Queue, Progress]:
        """How far each queue has been dealt with."""
        if self._state != "open":
            return {}
        return {
            queue: Progress(
                held.process.commit_offset, held.max_offset, -1, exact=True, left_out=held.left_out
            )
            for queue, held in self._holdings.held.items()
        }

    @property
    def paused(self) -> frozenset[Queue]:
        """The paused queues."""
        return self._holdings.paused if self._state == "open" else frozenset()

    async def start(self) -> None:
        """Join the group; queues follow as soon as they are shared out (`wait_assigned`).

        Raises:
            UnavailableError: no name server could be reached.
            RefusedError: a broker does not understand an SQL92 expression.
        """
        self._check_new()
        self._state = "starting"
        self._loop = asyncio.get_running_loop()
        try:
            await self._join()
        except BaseException:
            self._state = "closed"
            self._instance.unwatch(self._routed)
            await cancel(*self._tasks)
            await self._instance.unregister_consumer(self)
            raise
        self._state = "open"

    async def wait_assigned(self, timeout_ms: int | None = None) -> frozenset[Queue]:
        """Wait until at least one queue of the topics is ours; returns all that are.

        Raises:
            RequestTimeoutError: that took too long. The group may have more members than queues.
        """
        self.check()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._holdings.any()
        except TimeoutError:
            raise RequestTimeoutError(
                f"No queue was assigned within {timeout_ms} ms.",
                hint="Does the topic exist, or has the group members enough?",
            ) from None
        return self.assignment

    def pause(self, *queues: Queue) -> None:
        """Pull and hand out nothing of these queues until `resume`; without any, of none."""
        self.check()
        wanted = frozenset(queues) if queues else frozenset(self._holdings.held)
        self._holdings.pause(self._holdings.paused | wanted)

    def resume(self, *queues: Queue) -> None:
        """Undo `pause` for these queues; without any, for all."""
        self.check()
        wanted = frozenset(queues) if queues else self._holdings.paused
        self._holdings.pause(self._holdings.paused - wanted)

    async def close(self) -> None:
        """Give everything back and leave the group. What is not confirmed comes again.

        Calling it again does nothing.
        """
        opened, self._state = self._state == "open", "closed"
        if not opened:
            return
        self._instance.unwatch(self._routed)
        try:
            await cancel(*self._tasks)
            self._holdings.inbox.wake()
            self._leaving()
            await self._holdings.close()
        finally:  # a member that reads nothing would keep its queues from the others
            await self._instance.unregister_consumer(self)

    # -- what the instance and brokers ask

    def heartbeat(self) -> ConsumerData:
        """What a heartbeat says of this consumer."""
        broadcast = self._options.model == "broadcast"
        return ConsumerData(
            group_name=self._group,
            consume_type=self.consume_type,
            message_model="BROADCASTING" if broadcast else "CLUSTERING",
            consume_from_where=Starts(self._options.start).wire_name,
            subscription_data_set=[subscription_data(one) for one in self._subscriptions.values()],
        )

    def rebalance_soon(self) -> None:
        """The members of a group have changed (40)."""
        self._wake.set()

    async def reset(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Read on from other offsets (220)."""
        if self._state == "open":
            mine = {queue: at for queue, at in offsets.items() if queue.topic == topic}
            await self._holdings.restart(mine)

    def status(self, topic: str) -> dict[Queue, int]:
        """How far we are in a topic (221)."""
        return self._holdings.store.table.of_topic(topic) if self._state == "open" else {}

    def running(self) -> answering.Running:
        """What we are doing (307)."""
        opened = self._state == "open"
        held = self._holdings.held.values() if opened else ()
        return answering.Running(
            self._options,
            self.consume_type,
            self._instance.names.addresses,
            self._began_ms,
            [subscription_data(one) for one in self._subscriptions.values()],
            list(held),
            self._holdings.figures if opened else {},
        )

    def insert(self, batch: ClaimedBatch) -> None:
        """Deal with a batch that comes from no queue (309)."""
        self._holdings.inbox.insert(batch)

    def withdraw(self, batch: ClaimedBatch) -> None:
        """Undo `insert`, if it has not been received."""
        self._holdings.inbox.withdraw(batch)

    # -- inside

    def _check_client(self) -> None:
        self._instance.pool.check()

    async def _receive(self, timeout_ms: int | None) -> ReceivedBatch | None:
        """The next batch; None when time is up."""
        self.check()
        inbox = self._holdings.inbox
        deadline = None if timeout_ms is None else self._loop.time() + timeout_ms / 1000
        while (batch := inbox.take()) is None:
            try:
                async with asyncio.timeout_at(deadline):
                    await inbox.changed()
            except TimeoutError:
                return None
            self.check()
        return cast("ReceivedBatch", batch)

    async def _join(self) -> None:
        instance = self._instance
        await instance.start()
        answering.install(instance)
        self._began_ms = now_ms()
        door = Door(instance)
        if self._options.model == "clustering":
            self._add_retry_topic()
        store = self._store(door)
        await store.load()
        returner = Returner(door, self._group, self._options)
        self._holdings = Holdings(
            door,
            self._group,
            self._subscriptions,
            self._options,
            store,
            returner,
            self.flags,
            partial(self.make, namespace=self.namespace) if self.namespace else self.make,
        )
        for subscription in self._subscriptions.values():
            await self._known(door, subscription)
        await self._holdings.look()
        instance.register_consumer(self)
        instance.watch(self._routed)
        await instance.heartbeat_now()
        if self._state != "starting":
            raise ClosedError("The consumer was closed while it started.")
        self._tasks = [
            asyncio.create_task(work, name=name) for name, work in self._services().items()
        ]

    def _add_retry_topic(self) -> None:
        topic = retry_topic(self._group)
        self._subscriptions[topic] = Subscription.of(topic, None, version_ms=now_ms())

    def _leaving(self) -> None:
        """Called when everything is about to be given back."""

    def _services(self) -> dict[str, Coroutine[None, None, None]]:
        services: dict[str, Coroutine[None, None, None]] = {"rebalance": self._rounds()}
        if self._holdings.locking:
            services["locks"] = every(LOCK_MS, self._holdings.locks.renew)
        return services

    def _store(self, door: Door) -> OffsetStore:
        if self._options.model == "clustering":
            return RemoteOffsets(self._group, door)
        options = self._instance.options
        # Java's broadcast consumers have a client id that stays the same, which ours need not.
        host = self._instance.client_id.partition("@")[0]
        name = f"{host}@{options.instance or 'DEFAULT'}"
        folder = self._options.offsets or LocalOffsets.folder(name, self._group)
        return LocalOffsets(folder)

    async def _known(self, door: Door, subscription: Subscription) -> None:
        """Find out where a topic is, and whether its broker understands what is wanted of it."""
        try:
            await self._instance.route(subscription.topic)
            if subscription.kind == SQL92:
                await door.check(self._group, subscription_data(subscription))
        except CohererError as error:
            if subscription.kind == SQL92 or error.code is None:
                raise
            expected = subscription.topic.startswith(RETRY_PREFIX)
            level = logging.INFO if expected else logging.WARNING
            _log.log(level, "Topic %s is not there yet: %s", subscription.topic, error)

    def _routed(self, route: Route) -> None:
        if route.topic in self._subscriptions:
            self._wake.set()

    async def _rounds(self) -> None:
        """Share the queues out, now and again."""
        soon_ms = ROUND_MS_MIN
        while True:
            self._wake.clear()
            try:
                complete = await self._holdings.rebalance()
            except Exception:  # noqa: BLE001 - the group waits for us
                _log.exception("Rebalancing failed")
                complete = False
            limit_ms = self._options.rebalance_ms
            soon_ms = ROUND_MS_MIN if complete else min(soon_ms * 2, limit_ms)
            wait_ms = limit_ms if complete else min(soon_ms, limit_ms)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue
