"""Membership of a consumer group, the same for push and pull consumers.

A `GroupMembership` reports the consumer's subscriptions in heartbeats, runs the rebalances of its
`AssignmentManager`, and stores offsets regularly. Brokers' requests to it arrive in
`broker_requests`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, MutableMapping
from functools import partial
from typing import Final, TypeAlias

from coherer._client.engine.assignments import Assignments
from coherer._client.engine.consumer import Progress
from coherer._client.engine.tasks import backoff, cancel, every
from coherer._client.rocketmq.consuming.assigned_queue import AssignedQueue, ConsumeStatistics
from coherer._client.rocketmq.consuming.assignment import LOCK_MS, LOCK_RETRY_MS, AssignmentManager
from coherer._client.rocketmq.consuming.broker_rpc import BrokerRpc
from coherer._client.rocketmq.consuming.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from coherer._client.rocketmq.consuming.subscription_check import SubscriptionCheck
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.options import ConsumerOptions, Topics, selectors_by_topic
from coherer._client.rocketmq.received import ReceivedBatch
from coherer._client.rocketmq.routing import Route
from coherer._client.rocketmq.start_position import StartPositions
from coherer._common.clock import now_ms
from coherer._common.logs import Log
from coherer._wire.rocketmq.bodies import ConsumerData, SubscriptionData
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.names import (
    RETRY_PREFIX,
    Queue,
    check_group,
    check_topic,
    retry_topic,
    with_namespace,
)
from coherer._wire.rocketmq.subscription import SQL92, Subscription
from coherer.errors import (
    AuthorizationError,
    CohererError,
    RefusedError,
    RequestTimeoutError,
    UsageError,
)

_log = Log(logging.getLogger(__name__))

ROUND_MS_MIN: Final = 1_000
"""The pause after a rebalance that was not complete; it doubles while they fail."""


class GroupMembership:
    """The membership of one consumer in its group.

    Args:
        memberships: all memberships of the client by group; it has at most one of a group.
        group: the group, without the namespace.
        topics: the topics and filters.
        assignments: the assigned queues, shared with the consumer.
        flags: of pulls, see `coherer._wire.rocketmq.pulling`.

    Attributes:
        group: the group, with the namespace.
        subscriptions: by topic.
        options: the consumer's options.
        consume_type: as given.
        began_ms: when the consumer started, ms since 1970.
        make_batch: makes batches; the blocking API sets its own.
        manager: the assigned queues; set by `join`.
    """

    def __init__(
        self,
        instance: Instance,
        memberships: Memberships,
        group: str,
        topics: Topics,
        options: ConsumerOptions,
        assignments: Assignments[Queue, AssignedQueue],
        *,
        consume_type: str,
        flags: int,
    ) -> None:
        self._namespace = instance.options.namespace
        check_group(group)
        self.instance = instance
        self.options = options
        self.group = with_namespace(self._namespace, group)
        self.consume_type = consume_type
        self.began_ms = 0
        self.make_batch: Callable[..., ReceivedBatch] = ReceivedBatch
        self.subscriptions: dict[str, Subscription] = {}
        self.manager: AssignmentManager
        for topic, selector in selectors_by_topic(topics).items():
            check_topic(topic)
            name = with_namespace(self._namespace, topic)
            self.subscriptions[name] = Subscription.of(name, selector, version_ms=now_ms())
        self._starts = StartPositions(options.start)
        self._memberships = memberships
        self._assignments = assignments
        self._flags = flags
        self._check: SubscriptionCheck | None = None
        self._joined = False
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.upkeep = instance.upkeep

    @property
    def topics(self) -> Collection[str]:
        """The topics, including the group's retry topic."""
        return tuple(self.subscriptions)

    @property
    def assignment(self) -> frozenset[Queue]:
        """The assigned queues."""
        return frozenset(self._assignments.fetchers)

    @property
    def progress(self) -> dict[Queue, Progress]:
        """How far each assigned queue has been processed."""
        return {queue: each.progress for queue, each in self._assignments.fetchers.items()}

    @property
    def errors(self) -> list[CohererError]:
        """The errors that keep the member from receiving now: heartbeats, other members, pulls."""
        found: list[CohererError] = [*self.instance.refusals.values()]
        if self._check is not None and self._check.error is not None:
            found.append(self._check.error)
        return [*found, *(one.error for one in self.progress.values() if one.error is not None)]

    def describe(self, kind: str, state: str) -> str:
        """The `repr` of the consumer."""
        topics = (topic for topic in self.subscriptions if not topic.startswith(RETRY_PREFIX))
        what = f"<{kind} of {', '.join(topics)} in {self.group}"
        if state != "open":
            return f"{what}: {state}>"
        queues = list(self._assignments)
        messages = sum(each.state.messages for each in queues)
        paused = len(self._assignments.paused & self.assignment)
        return f"{what}: {len(queues)} queues, {paused} of them paused, {messages} messages here>"

    # -- joining and leaving

    async def join(self, *, retry_topic: bool, services: Mapping[str, Service]) -> None:
        """Join the group.

        Args:
            retry_topic: whether to subscribe to the group's retry topic.
            services: coroutine functions to run while the consumer is a member, by name.

        Raises:
            UnavailableError: no name server could be reached.
            RefusedError: a broker does not accept an SQL92 expression.
            AuthorizationError: the servers do not accept the account, or its permissions.
        """
        instance = self.instance
        await instance.start()
        self.began_ms = now_ms()
        rpc = BrokerRpc(instance)
        if retry_topic and self.options.model == "clustering":
            self._subscribe_to_retry_topic()
        store = self._offset_store(rpc)
        await store.load()
        make_batch = self.make_batch
        if self._namespace:
            make_batch = partial(make_batch, namespace=self._namespace)
        self._check = SubscriptionCheck(rpc, self.group, self.subscription_data)
        self.manager = AssignmentManager(
            rpc,
            self.group,
            self.subscriptions,
            self.options,
            store,
            self._flags,
            make_batch,
            self._assignments,
            self._check.members_are,
        )
        for subscription in self.subscriptions.values():
            await self.check_topic(subscription)
        await self.manager.read_ends()
        self._register()
        instance.routes.watch(self._route_changed)
        await instance.heartbeat_now()
        instance.check_account()
        self._joined = True
        upkeep = self.upkeep
        work: dict[str, Coroutine[None, None, None]] = {
            "rebalance": self._rebalance(),
            "offsets": every(
                upkeep, "saving offsets", self.options.persist_ms, self.manager.persist
            ),
        }
        if self.manager.locking:
            work["locks"] = self._renew_locks()
        work |= {name: service() for name, service in services.items()}
        self._tasks = [asyncio.create_task(task, name=name) for name, task in work.items()]

    async def _renew_locks(self) -> None:
        retry = backoff(LOCK_RETRY_MS)
        wait_s = LOCK_MS / 1000
        while True:
            await asyncio.sleep(wait_s)
            wait_s = retry()
            with self.upkeep.guard("renewing locks"):
                if await self.manager.locks.renew():
                    retry, wait_s = backoff(LOCK_RETRY_MS), LOCK_MS / 1000

    async def leave(self, before: Callable[[], None] = lambda: None) -> None:
        """Give all queues up and leave the group; also after a `join` that failed.

        Args:
            before: called before the queues are given up.
        """
        joined, self._joined = self._joined, False
        self.instance.routes.unwatch(self._route_changed)
        try:
            await cancel(*self._tasks)
            if self._check is not None:
                await self._check.close()
        finally:  # an absent member would go on pulling, and keep its queues from the others
            try:
                if joined:
                    self.manager.buffer.wake()
                    before()
                    await self.manager.close()
            finally:
                if self._memberships.get(self.group) is self:
                    del self._memberships[self.group]
                    await self.instance.unregister_consumer(self.group)

    async def wait_assigned(
        self, timeout_ms: int | None, check: Callable[[], None]
    ) -> frozenset[Queue]:
        """Wait until at least one queue is assigned; returns all that are.

        Args:
            timeout_ms: how long; None for ever.
            check: raises an error if the consumer is closed.

        Raises:
            RequestTimeoutError: there was none in time.
        """
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._assignments.wait_any(
                    check, lambda queue: not queue.topic.startswith(RETRY_PREFIX)
                )
        except TimeoutError:
            raise RequestTimeoutError(
                f"This member of group {self.group} has no queue after {timeout_ms} ms.",
                hint="Does the topic exist? Does the group have more members than queues?",
            ) from None
        return self.assignment

    # -- called by the instance and by brokers' requests

    def heartbeat(self) -> ConsumerData:
        """The consumer's part of a heartbeat."""
        broadcast = self.options.model == "broadcast"
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model="BROADCASTING" if broadcast else "CLUSTERING",
            consume_from_where=self._starts.wire_name,
            subscription_data_set=self.subscription_data(),
        )

    def subscription_data(self) -> list[SubscriptionData]:
        """The subscriptions as in heartbeats."""
        return [_subscription_data(one) for one in self.subscriptions.values()]

    def rebalance_soon(self) -> None:
        """Rebalance now: the members of a group have changed (40)."""
        self._wake.set()

    async def reset(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Continue at other offsets (220)."""
        if self._joined:
            await self.manager.seek(
                {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
            )

    def offsets(self, topic: str) -> dict[Queue, int]:
        """The offsets in a topic (221)."""
        return self.manager.store.table.of_topic(topic) if self._joined else {}

    def statistics(self) -> Mapping[str, ConsumeStatistics]:
        """Pulls and deliveries by topic (307)."""
        return self.manager.statistics if self._joined else {}

    def queues(self) -> list[AssignedQueue]:
        """The assigned queues (307)."""
        return list(self._assignments)

    async def check_topic(self, subscription: Subscription) -> None:
        """Look up a topic, and let a broker validate its SQL92 filter.

        Raises:
            UnavailableError: no name server could be reached.
            RefusedError: a broker does not accept the SQL92 expression.
            AuthorizationError: a server does not accept the account, or its permissions.
        """
        topic = subscription.topic
        try:
            await self.instance.routes.route(topic)
        except RefusedError as error:
            missing = error.code == ResponseCode.TOPIC_NOT_EXIST
            if subscription.kind == SQL92 or isinstance(error, AuthorizationError):
                raise
            expected = missing and topic.startswith(RETRY_PREFIX)
            what = f"cannot be looked up yet: {error}"
            if missing:  # the error says to create it first
                what = f"does not exist yet [server {error.server}]: it is read once it exists."
            level = logging.DEBUG if expected else logging.WARNING
            _log.log(level, "Topic %s %s", topic, what, about=(topic, error.code))
            return
        if subscription.kind == SQL92:
            await self.manager.rpc.check_subscription(self.group, _subscription_data(subscription))
            self._warn_of_ignored_text(subscription)

    # -- helpers

    def _register(self) -> None:
        if self.group in self._memberships:
            raise UsageError(
                f"This client has a consumer of group {self.group} already.",
                hint="Brokers identify the consumers of a group by their clients.",
            )
        self._memberships[self.group] = self

    def _warn_of_ignored_text(self, subscription: Subscription) -> None:
        # Few consumers filter by SQL92, and lark, which parses it, takes long to import.
        from coherer._wire.rocketmq.selector import SelectorError, ignored_rest

        try:
            rest = ignored_rest(subscription.text)
        except SelectorError:  # the broker accepted it: it knows a later version of the language
            return
        if rest:
            _log.warning(
                "RocketMQ 4 ignores the end of the SQL92 filter of %s, because the expression is "
                "complete before it: %r",
                subscription.topic,
                rest,
                topic=subscription.topic,
                group=self.group,
            )

    def _subscribe_to_retry_topic(self) -> None:
        topic = retry_topic(self.group)
        self.subscriptions[topic] = Subscription.of(topic, None, version_ms=now_ms())

    def _offset_store(self, rpc: BrokerRpc) -> OffsetStore:
        if self.options.model == "clustering":
            return BrokerOffsets(self.group, rpc)
        options = self.instance.options
        # Java's broadcast consumers have a fixed client id, which Coherer's need not have.
        host = self.instance.client_id.partition("@")[0]
        name = f"{host}@{options.instance or 'DEFAULT'}"
        directory = self.options.offsets or LocalOffsets.default_directory(name, self.group)
        return LocalOffsets(directory)

    def _route_changed(self, route: Route) -> None:
        if route.topic in self.subscriptions:
            self._wake.set()

    async def _rebalance(self) -> None:
        """Rebalance when something has changed, and regularly."""
        soon_ms = ROUND_MS_MIN
        while True:
            self._wake.clear()
            try:
                complete = await self.manager.rebalance()
            except Exception:  # noqa: BLE001 - the loop must go on
                _log.exception("Unhandled error while rebalancing")
                complete = False
            limit_ms = self.options.rebalance_ms
            soon_ms = ROUND_MS_MIN if complete else min(soon_ms * 2, limit_ms)
            wait_ms = limit_ms if complete else min(soon_ms, limit_ms)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue


Memberships: TypeAlias = MutableMapping[str, GroupMembership]
"""The memberships of one client, by group."""

Service = Callable[[], Coroutine[None, None, None]]


def _subscription_data(subscription: Subscription) -> SubscriptionData:
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.text,
        tags_set=list(subscription.tags),
        code_set=list(subscription.codes),
        sub_version=subscription.version_ms,
        expression_type=subscription.kind,
    )
