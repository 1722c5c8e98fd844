"""What everything of one client shares: what Java calls a client instance (rocketmq 3.1 - 3.4).

Rules:

* One client id, one connection per address, one heartbeat that names every producer group and
  consumer of the client. So a group has one consumer in an instance.
* Routes of topics in use are looked up every `route_ms` (`Directory`).
* Heartbeats go every `heartbeat_ms`: to the masters, or to all brokers when there is a consumer.
  A new connection to a broker begins with one, so that a broker can call back at once. Brokers that
  no route names any more are forgotten before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Collection
from typing import Final, Protocol
from weakref import WeakSet

from coherer._client.engine.address import split
from coherer._client.engine.tasks import cancel, every
from coherer._client.rocketmq.directory import Directory
from coherer._client.rocketmq.link import Desk, Handler, Link, Pool, Signer
from coherer._client.rocketmq.nameservers import NameServers
from coherer._client.rocketmq.options import VIP_PORT_STEP, ClientOptions
from coherer._client.rocketmq.requests import Replies
from coherer._client.rocketmq.routes import MASTER
from coherer._client.rocketmq.transactions import Checks
from coherer._common.logs import Log
from coherer._net import running_loop
from coherer._wire.rocketmq import acl
from coherer._wire.rocketmq.bodies import ConsumerData, HeartbeatData, ProducerData
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import FEATURE_TIMERS, FEATURES, INNER_PRODUCER_GROUP
from coherer._wire.rocketmq.versions import V5_0_0
from coherer.errors import ClosedError, CohererError, UsageError

_log = Log(logging.getLogger(__name__))

HEARTBEAT_TIMEOUT_MS: Final = 3_000
_ASKED: Final = {FEATURES: FEATURE_TIMERS}
"""So our brokers tell what they can do. Java's look at no field of a heartbeat."""
LEAVE_TIMEOUT_MS: Final = 1_000
"""A broker that does not say goodbye in time forgets us when the connection ends."""

LOG_EVERY: Final = 20
"""Heartbeats that went well are worth a line as often as this, as Java thinks."""


class ConsumerMember(Protocol):
    """A consumer, as the instance sees it."""

    @property
    def group(self) -> str:
        """The group's name, with the namespace."""
        ...

    @property
    def topics(self) -> Collection[str]:
        """The subscribed topics; their routes are kept fresh."""
        ...

    def heartbeat(self) -> ConsumerData:
        """What a heartbeat says of this consumer."""
        ...


class Instance(Directory):
    """The way to one RocketMQ cluster.

    Args:
        options: the client's options.

    Attributes:
        options: the client's options.
        pool: the connections.
        names: calls to the name servers.
        client_id: how servers know us; set by `start`.
        checks: answers brokers that ask about transactions.
        replies: the requests that wait for replies.
        versions: the release number of each broker, by its address, from its heartbeat answers.
        timers: whether each broker keeps messages until any time, from the same.
    """

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self._desk = Desk(_signer(options))
        self.pool = Pool(self._desk, tls=options.tls, connect_timeout_ms=options.connect_timeout_ms)
        super().__init__(NameServers(options.addresses, self.pool, options.timeout_ms))
        self.client_id = ""
        self.local_host = ""
        self.versions: dict[str, int] = {}
        self.timers: dict[str, bool] = {}
        self.checks = Checks(self.on, options.namespace)
        self.replies = Replies(self.on)
        self._producers: Counter[str] = Counter()
        self._consumers: dict[str, ConsumerMember] = {}
        self._greeted: WeakSet[Link] = WeakSet()
        self._starting: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._rounds = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"<Instance {self.client_id or 'not started'} of {self.options.servers}>"

    async def start(self) -> None:
        """Find a name server and begin to send heartbeats. Calling it again does nothing.

        Raises:
            UnavailableError: no name server can be reached.
        """
        self.pool.check()
        running_loop()
        if self._starting is None or (self._starting.done() and not self.client_id):
            self._starting = asyncio.create_task(self._start(), name="start of the client")
        await asyncio.shield(self._starting)

    async def link(self, address: str, *, fast: bool = False) -> Link:
        """The connection to a broker, made now if need be.

        Args:
            address: as routes name it.
            fast: to its fast port, if the client is set to use that. Heartbeats go to the main
                port only: a broker counts a consumer for each connection that has sent one, and the
                others of its group would leave queues to one that is not there.

        Raises:
            ConnectError: it could not be made.
            ClosedError: the client is closed.
        """
        host, port = split(address)
        link = await self.pool.get(host, port)
        if link not in self._greeted and (self._producers or self._consumers):
            self._greeted.add(link)
            self._say_hello(link)
        if fast and self.options.vip:
            return await self.pool.get(host, port - VIP_PORT_STEP)
        return link

    async def keeps_time(self, address: str) -> bool:
        """Whether a broker keeps messages until any time: ours do, and those from 5.0 on.

        Args:
            address: its main port's.

        Raises:
            UnavailableError: it cannot be reached, or does not answer.
        """
        link = await self.link(address)
        if link.server not in self.timers:
            body = self._heartbeat_body()
            answer = await link.ask(
                RequestCode.HEART_BEAT, _ASKED, body, timeout_ms=HEARTBEAT_TIMEOUT_MS
            )
            self._hear(link.server, answer)
        return self.timers[link.server]

    # -- members

    def on(self, code: int, handler: Handler) -> None:
        """Have `handler` called with each request of that code that a server sends us."""
        self._desk.handlers[code] = handler

    def register_producer(self, group: str) -> None:
        """Name a producer group in heartbeats; a group may have several producers."""
        self._producers[group] += 1
        if self._producers[group] == 1:
            self.heartbeat_soon()

    async def unregister_producer(self, group: str) -> None:
        """Undo one `register_producer`; with the last one, brokers are told."""
        self._producers[group] -= 1
        if self._producers[group] <= 0:
            del self._producers[group]
            await self._leave({"producerGroup": group})

    def consumer(self, group: str) -> ConsumerMember | None:
        """The consumer of a group, if this client has one."""
        return self._consumers.get(group)

    @property
    def consumers(self) -> list[ConsumerMember]:
        """All registered consumers."""
        return list(self._consumers.values())

    def register_consumer(self, consumer: ConsumerMember) -> None:
        """Name a consumer in heartbeats.

        Raises:
            UsageError: there is one of that group already.
        """
        if consumer.group in self._consumers:
            raise UsageError(
                f"This client has a consumer of group {consumer.group} already.",
                hint="Brokers tell consumers of a group apart by their clients.",
            )
        self._consumers[consumer.group] = consumer

    async def unregister_consumer(self, consumer: ConsumerMember) -> None:
        """Undo `register_consumer`; brokers are told."""
        if self._consumers.get(consumer.group) is consumer:
            del self._consumers[consumer.group]
            await self._leave({"consumerGroup": consumer.group})

    def heartbeat_soon(self) -> None:
        """Send a heartbeat to the brokers that know us already, and do not wait."""
        for link in list(self._greeted):
            if link.open:
                self._say_hello(link)

    async def heartbeat_now(self) -> None:
        """Send a heartbeat to every broker that should get one; what fails is logged."""
        self.forget_offline()
        only_masters = not self._consumers
        targets = [
            (broker, address)
            for broker, addresses in self._brokers.items()
            for number, address in addresses.items()
            if number == MASTER or not only_masters
        ]
        done = await asyncio.gather(*(self._heartbeat(*target) for target in targets))
        if all(done) and self._rounds % LOG_EVERY == 0:
            _log.plain.info("Heartbeat %d: %d brokers", self._rounds, len(done))
        self._rounds += 1

    async def close(self) -> None:
        """Say goodbye, stop, and close all connections. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        await cancel(self._starting, *self._tasks)
        groups = [{"producerGroup": group} for group in self._producers]
        groups += [{"consumerGroup": group} for group in self._consumers]
        if self.client_id:
            await asyncio.gather(
                *(self._leave(group) for group in groups),
                self._leave({"producerGroup": INNER_PRODUCER_GROUP}),
            )
        await cancel(*self._asking.values())
        await self.pool.close()

    # -- inside

    async def _start(self) -> None:
        link = await self.names.link()
        host = link.local_host or "127.0.0.1"
        self.local_host = host
        instance = self.options.instance or f"{os.getpid()}#{time.monotonic_ns()}"
        unit = f"@{self.options.unit}" if self.options.unit else ""
        self.client_id = f"{f'[{host}]' if ':' in host else host}@{instance}{unit}"
        self._tasks = [
            asyncio.create_task(every(self.options.route_ms, self.refresh), name="routes"),
            asyncio.create_task(
                every(self.options.heartbeat_ms, self.heartbeat_now), name="heartbeats"
            ),
        ]

    def _subscribed(self) -> set[str]:
        return {topic for consumer in self._consumers.values() for topic in consumer.topics}

    def _heartbeat_body(self) -> bytes:
        groups = [INNER_PRODUCER_GROUP, *self._producers]
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in groups],
            consumer_data_set=[consumer.heartbeat() for consumer in self._consumers.values()],
        ).encode()

    async def _heartbeat(self, broker: str, address: str) -> bool:
        try:
            host, port = split(address)
            link = await self.pool.get(host, port)
            self._greeted.add(link)
            answer = await link.ask(
                RequestCode.HEART_BEAT,
                _ASKED,
                self._heartbeat_body(),
                timeout_ms=HEARTBEAT_TIMEOUT_MS,
            )
        except ClosedError:
            return False
        except CohererError as error:
            _log.warning("Heartbeat to %s: %s", broker, error, about=broker)
            return False
        self._hear(address, answer)
        self._hear(link.server, answer)
        return True

    def _say_hello(self, link: Link) -> None:
        body = self._heartbeat_body()
        future = link.call(RequestCode.HEART_BEAT, _ASKED, body, timeout_ms=HEARTBEAT_TIMEOUT_MS)

        def answered(done: asyncio.Future[Command]) -> None:
            if done.cancelled() or done.exception() is not None:
                _log.info("A heartbeat to %s got no answer", link.server)
            else:
                self._hear(link.server, done.result())

        future.add_done_callback(answered)

    def _hear(self, server: str, answer: Command) -> None:
        """Take what a heartbeat's answer says of a broker."""
        self.versions[server] = answer.version
        timers = FEATURE_TIMERS in answer.fields.get(FEATURES, "").split(",")
        self.timers[server] = timers or answer.version >= V5_0_0

    async def _leave(self, group: dict[str, str]) -> None:
        async def tell(link: Link) -> None:
            try:
                await link.ask(
                    RequestCode.UNREGISTER_CLIENT,
                    {"clientID": self.client_id, **group},
                    timeout_ms=LEAVE_TIMEOUT_MS,
                )
            except CohererError as error:
                _log.info("Leaving %s: %s", link.server, error)

        await asyncio.gather(*(tell(link) for link in list(self._greeted) if link.open))


def _signer(options: ClientOptions) -> Signer | None:
    if options.user is None or options.password is None:
        return None
    return acl.signer(options.user, options.password, options.token)
