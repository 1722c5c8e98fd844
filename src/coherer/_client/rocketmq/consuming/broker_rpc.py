"""A consumer's calls to brokers, except pulls: offsets, members, locks.

See docs/protocol/rocketmq.md, sections 2.5, 2.7, 2.10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

from coherer._client.engine.tasks import joined, shared
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import Link
from coherer._client.rocketmq.routing import MASTER
from coherer._client.rocketmq.start_position import Edge
from coherer._common import machine
from coherer._common.logs import Log
from coherer._wire.rocketmq import codes
from coherer._wire.rocketmq.bodies import (
    CheckClient,
    ConsumerIds,
    LockBatch,
    LockedBatch,
    RunningInfo,
    SubscriptionData,
    SubscriptionGroups,
)
from coherer._wire.rocketmq.bodies.admin import RETRY_TIMES_DEFAULT, ZERO_FIELD, offset_in
from coherer._wire.rocketmq.codes import V5_0_0, RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import RunningInfoHeader
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.pulling import SLAVE_FIELD
from coherer.errors import CohererError, ConnectError, ProtocolError, RefusedError, UnavailableError

_log = Log(logging.getLogger(__name__))
LOCK_TIMEOUT_MS: Final = 1_000
"""Java's timeout of a lock; the next round tries again."""
SEND_BACK_TIMEOUT_MS: Final = 5_000
GROUPS_KEPT_S: Final = 60.0
"""How long the settings of a broker's groups are cached."""


def no_master(server: str, queue: Queue) -> UnavailableError:
    """The error if a slave has the address of a master."""
    return UnavailableError(
        f"The server is a slave of broker {queue.broker} now, and its master is not known.",
        server=server,
        topic=queue.topic,
        partition=queue.id,
        hint="Is the master up, and registered with the name server?",
    )


class BrokerRpc:
    """Calls to brokers. Errors contain the server, topic and queue."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._timeout_ms = instance.options.timeout_ms
        self._tables: dict[Link, asyncio.Task[bytes]] = {}
        self._groups: dict[str, tuple[float, dict[str, int]]] = {}

    # -- connections

    async def master(self, broker: str, topic: str = "") -> Link:
        """The connection to a master; looks up the topic's route if the master is not known.

        Raises:
            UnavailableError: the master is not known, or cannot be reached.
        """
        if MASTER not in self.instance.routes.addresses(broker) and topic:
            await self.instance.routes.route(topic, fresh=True)
        return await self.instance.link(self.instance.routes.address(broker))

    async def link_for_reading(self, broker: str, number: int, topic: str) -> tuple[Link, int]:
        """The connection to read from, and the id of that broker (section 8.10).

        Args:
            broker: the name.
            number: the preferred id, suggested by the broker.
            topic: the topic to read.

        Raises:
            UnavailableError: no broker of that name is known, or it cannot be reached.
        """
        addresses = self.instance.routes.addresses(broker)
        if not addresses:
            await self.instance.routes.route(topic, fresh=True)
            addresses = self.instance.routes.addresses(broker)
        failure: CohererError = UnavailableError(
            f"No address of broker {broker} is known.",
            topic=topic,
            hint="Is it up, and registered with the name server?",
        )
        for choice in dict.fromkeys((number, number + 1, *addresses)):
            if choice not in addresses:
                continue
            try:
                return await self.instance.link(addresses[choice]), choice
            except ConnectError as error:  # a slave may serve while its master is down
                failure = error
        raise failure

    # -- offsets

    async def stored_offset(self, group: str, queue: Queue, *, exact: bool = True) -> int | None:
        """The stored offset of a group (14), from a slave if necessary; None if none is stored.

        RocketMQ 4's brokers return 0 also for a group that has never read a young queue. If the
        caller needs to know, the table of all offsets is fetched (43).

        Args:
            exact: whether 0 and None mean different things to the caller.
        """
        fields = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.id),
            ZERO_FIELD: "false",
        }
        link, _ = await self.link_for_reading(queue.broker, MASTER, queue.topic)
        try:
            answer = await self._ask(RequestCode.QUERY_CONSUMER_OFFSET, queue, fields, link)
        except RefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        offset = _offset_of(answer, queue)
        distinguishes = answer.version >= V5_0_0 or answer.fields.get(ZERO_FIELD) == "false"
        if offset or not exact or distinguishes:
            return offset
        try:
            return offset_in(await self._table(link), group, queue.topic, queue.id)
        except (RefusedError, ProtocolError) as error:
            _log.warning(
                "%s returned the offset 0 of group %s in %s, and it is unknown whether the group "
                "has ever read the queue. Reading from 0: %s",
                link.server,
                group,
                queue,
                error,
            )
            return offset

    async def _table(self, link: Link) -> bytes:
        """The offsets of all groups at a broker (43); concurrent calls share one request."""
        asking = self._tables.get(link)
        if asking is None:
            asking = shared(self._read_table(link), "offsets of all groups")
            self._tables[link] = asking
            asking.add_done_callback(lambda _: self._tables.pop(link, None))
        return await joined(asking)

    async def _read_table(self, link: Link) -> bytes:
        code = RequestCode.GET_ALL_CONSUMER_OFFSET
        return bytes((await link.ask(code, timeout_ms=self._timeout_ms)).body)

    async def store_offset(self, group: str, queue: Queue, offset: int) -> None:
        """Store the offset of a group (15), and wait for the answer."""
        fields = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.id),
            "commitOffset": str(offset),
        }
        await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, queue, fields)

    async def resolve(
        self, queue: Queue, edge: Edge, time_ms: int = 0, *, masters_only: bool = False
    ) -> int:
        """The offset of a position in a queue (30, 31, 29).

        Args:
            edge: the position.
            time_ms: since 1970, for `Edge.TIME`.
            masters_only: do not ask a slave while the master is down: its copy may be behind.
        """
        fields = {"topic": queue.topic, "queueId": str(queue.id)}
        if edge is Edge.TIME:
            fields["timestamp"] = str(time_ms)
        if masters_only:
            return _offset_of(await self._ask_master(_EDGE_CODES[edge], queue, fields), queue)
        link, _ = await self.link_for_reading(queue.broker, MASTER, queue.topic)
        return _offset_of(await self._ask(_EDGE_CODES[edge], queue, fields, link), queue)

    async def _ask_master(self, code: int, queue: Queue, fields: dict[str, str]) -> Command:
        """Ask the master, also if a slave has its address now.

        Raises:
            UnavailableError: the name server does not know another address.
        """
        for is_known in (True, False):
            if not is_known:
                await self.instance.routes.route(queue.topic, fresh=True)
            link = await self.master(queue.broker, queue.topic)
            answer = await self._ask(code, queue, fields, link)
            if SLAVE_FIELD not in answer.fields:
                return answer
        raise no_master(link.server, queue)

    # -- groups

    async def members(self, group: str, topic: str) -> list[str] | None:
        """The client ids of a group, from any broker of the topic (38).

        Returns:
            None if the broker does not know: the group may have members anyway.
        """
        route = await self.instance.routes.route(topic)
        if not route.brokers:
            return None
        broker = machine.random.choice(list(route.brokers))
        try:
            link, _ = await self.link_for_reading(broker, MASTER, topic)
            answer = await link.ask(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                {"consumerGroup": group},
                timeout_ms=self._timeout_ms,
            )
            return ConsumerIds.decode(answer.body).consumer_id_list
        except RefusedError:
            return None

    async def subscriptions_of(
        self, group: str, client_id: str, topic: str
    ) -> list[SubscriptionData]:
        """The subscriptions of another member of a group, as it reports them itself (307).

        Raises:
            UnavailableError, RefusedError: no broker of the topic could ask it.
        """
        fields = RunningInfoHeader(group, client_id).fields()
        route = await self.instance.routes.route(topic)
        failure: CohererError = UnavailableError("The topic has no brokers.", topic=topic)
        for broker in route.brokers:
            try:
                link, _ = await self.link_for_reading(broker, MASTER, topic)
                code = RequestCode.GET_CONSUMER_RUNNING_INFO
                answer = await link.ask(code, fields, timeout_ms=self._timeout_ms)
                return RunningInfo.decode(answer.body).subscription_set
            except CohererError as error:
                failure = error
        raise failure

    async def check_subscription(self, group: str, subscription: SubscriptionData) -> None:
        """Let a broker of the topic validate a subscription (46).

        Raises:
            RefusedError: the expression is invalid, or the broker does not support it.
        """
        route = await self.instance.routes.route(subscription.topic)
        body = CheckClient(
            client_id=self.instance.client_id, group=group, subscription_data=subscription
        ).encode()
        for broker in list(route.brokers)[:1]:
            link, _ = await self.link_for_reading(broker, MASTER, subscription.topic)
            code = RequestCode.CHECK_CLIENT_CONFIG
            answer = await link.call(code, body=body, timeout_ms=self._timeout_ms)
            if answer.code != ResponseCode.SUCCESS:
                raise codes.refused(
                    answer.code, answer.remark, server=link.server, topic=subscription.topic
                )

    async def lock(self, group: str, broker: str, queues: Collection[Queue]) -> list[Queue]:
        """Lock queues at a broker (41); returns the locked ones.

        Raises:
            UnavailableError, RefusedError: the queues may not be locked.
        """
        link = await self.master(broker, next(iter(queues)).topic)
        body = self._lock_body(group, queues)
        answer = await link.ask(RequestCode.LOCK_BATCH_MQ, body=body, timeout_ms=LOCK_TIMEOUT_MS)
        return LockedBatch.decode(answer.body).queues

    async def unlock(
        self, group: str, broker: str, queues: Collection[Queue], *, wait: bool = False
    ) -> None:
        """Unlock queues at a broker (42). If it is down, its locks expire."""
        body = self._lock_body(group, queues)
        try:
            link = await self.master(broker)
            if wait:
                await link.ask(RequestCode.UNLOCK_BATCH_MQ, body=body, timeout_ms=LOCK_TIMEOUT_MS)
            else:
                link.send_oneway(RequestCode.UNLOCK_BATCH_MQ, body=body)
        except CohererError:
            return

    # -- messages

    async def version(self, broker: str, topic: str) -> int:
        """The release number of a master; 0 until it has answered a heartbeat.

        Raises:
            UnavailableError: it cannot be reached.
        """
        link = await self.master(broker, topic)
        return self.instance.versions.get(link.server, 0)

    async def send_back(self, broker: str, topic: str, fields: dict[str, str]) -> None:
        """Send a message back to its broker for redelivery (36).

        Raises:
            UnavailableError, RefusedError: the broker has not accepted it.
        """
        link = await self.master(broker, topic)
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        await link.ask(code, fields, timeout_ms=SEND_BACK_TIMEOUT_MS, broker=broker)

    async def max_retries(self, group: str, broker: str, topic: str) -> int:
        """A group's maximum number of redeliveries at a broker (201), cached for a minute.

        Raises:
            UnavailableError, RefusedError: the broker did not report its groups.
        """
        now = machine.ticks_ns() / 1e9
        kept = self._groups.get(broker)
        if kept is None or now >= kept[0]:
            link = await self.master(broker, topic)
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            answer = await link.ask(code, timeout_ms=self._timeout_ms)
            table = SubscriptionGroups.decode(answer.body).subscription_group_table
            limits = {name: settings.retry_max_times for name, settings in table.items()}
            kept = self._groups[broker] = (now + GROUPS_KEPT_S, limits)
        return kept[1].get(group, RETRY_TIMES_DEFAULT)

    def _lock_body(self, group: str, queues: Iterable[Queue]) -> bytes:
        return LockBatch(
            client_id=self.instance.client_id, consumer_group=group, queues=sorted(queues)
        ).encode()

    async def _ask(
        self, code: int, queue: Queue, fields: dict[str, str], link: Link | None = None
    ) -> Command:
        link = link or await self.master(queue.broker, queue.topic)
        answer = await link.call(code, fields, timeout_ms=self._timeout_ms, broker=queue.broker)
        if answer.code != ResponseCode.SUCCESS:
            raise codes.refused(
                answer.code,
                answer.remark,
                server=link.server,
                topic=queue.topic,
                partition=queue.id,
            )
        return answer


def _offset_of(answer: Command, queue: Queue) -> int:
    try:
        return int(answer.fields["offset"])
    except (KeyError, ValueError) as error:
        raise ProtocolError("The answer contains no offset.", topic=queue.topic) from error


_EDGE_CODES: Final = {
    Edge.OLDEST: RequestCode.GET_MIN_OFFSET,
    Edge.END: RequestCode.GET_MAX_OFFSET,
    Edge.TIME: RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
}
