"""The shared state of one client: what Java calls a client instance.

See docs/protocol/rocketmq.md, sections 3.1 to 3.4.

* An instance has one client id, one connection per address, and one heartbeat that contains every
  producer group and every consumer of the client. A client has at most one consumer of a group.
* Routes of topics in use are refreshed every `route_ms` (`RouteTable`).
* Heartbeats are sent every `heartbeat_ms`: to the masters, or to all brokers if there is a
  consumer. A new connection to a broker starts with a heartbeat, so that the broker can send
  requests at once. Brokers that no route contains any more are dropped before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from coherer._client.engine.metrics import meters_of
from coherer._client.engine.options import parse_address
from coherer._client.engine.tasks import cancel, every, joined, shared
from coherer._client.rocketmq.link import Handler, Link, Pool, RequestHandlers, Signer
from coherer._client.rocketmq.options import VIP_PORT_STEP, ClientOptions
from coherer._client.rocketmq.request_reply import PendingReplies
from coherer._client.rocketmq.routing import MASTER, NameServers, RouteTable
from coherer._client.rocketmq.transactions import TransactionChecks
from coherer._common import machine
from coherer._common.logs import Log
from coherer._common.upkeep import Upkeep
from coherer._net import running_loop
from coherer._wire.rocketmq import acl
from coherer._wire.rocketmq.bodies import ConsumerData, HeartbeatData, ProducerData
from coherer._wire.rocketmq.codes import V5_0_0, RequestCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import (
    FEATURE_ENDS_ONCE,
    FEATURE_HALF_BATCHES,
    FEATURE_TIMERS,
    FEATURES,
    INNER_PRODUCER_GROUP,
)
from coherer.errors import (
    AuthorizationError,
    ClosedError,
    CohererError,
    RefusedError,
)

_log = Log(logging.getLogger(__name__))

HEARTBEAT_TIMEOUT_MS: Final = 3_000
_FEATURE_QUERY: Final = {FEATURES: FEATURE_TIMERS}
"""Asks Coherer's brokers for their features. Java's brokers ignore the fields of a heartbeat."""
LEAVE_TIMEOUT_MS: Final = 1_000
"""A broker that does not answer in time forgets the client when its connection closes."""

LOG_EVERY: Final = 20
"""One of this many successful rounds of heartbeats is logged, as in Java."""


class Member(Protocol):
    """A consumer as heartbeats describe it: the member of a group."""

    @property
    def topics(self) -> Collection[str]:
        """Its topics."""
        ...

    def heartbeat(self) -> ConsumerData:
        """Its part of a heartbeat."""
        ...


class Instance:
    """The connections, routes and registrations of one client.

    Args:
        consumers: the consumers of the client by group; they change while it is open.

    Attributes:
        options: the client's options.
        pool: the connections.
        names: calls to the name servers.
        routes: routes of topics, and addresses of brokers.
        client_id: how servers know the client; set by `start`.
        checks: answers brokers that ask about transactions.
        replies: the requests that wait for a reply message.
        versions: the release number of each broker by address, from its heartbeat answers.
        timers: whether each broker supports arbitrary delivery times, from the same answers.
        features: the features beyond 4.9 of each broker, from the same answers.
        refusals: why a broker refused the last heartbeat, by address.
    """

    def __init__(self, options: ClientOptions, consumers: Mapping[str, Member]) -> None:
        self.options = options
        self._handlers = RequestHandlers(_signer(options))
        self.pool = Pool(
            self._handlers, tls=options.tls, connect_timeout_ms=options.connect_timeout_ms
        )
        self.names = NameServers(options.addresses, self.pool, options.timeout_ms)
        self.routes = RouteTable(self.names, self._subscribed_topics)
        self.client_id = ""
        self.local_host = ""
        self.versions: dict[str, int] = {}
        self.timers: dict[str, bool] = {}
        self.features: dict[str, frozenset[str]] = {}
        self.refusals: dict[str, RefusedError] = {}
        self.checks = TransactionChecks(self.handle, options.namespace)
        self.replies = PendingReplies(self.handle)
        self._producers: Counter[str] = Counter()
        self._consumers = consumers
        self._registered: WeakKeyDictionary[Link, None] = WeakKeyDictionary()
        self._starting: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.upkeep = Upkeep()
        meters = meters_of(options.metrics)
        if meters is not None:
            meters.watch(self.upkeep)
        self._rounds = 0
        self._round: asyncio.Task[None] | None = None
        self._next_round: asyncio.Task[None] | None = None
        self._unanswered: WeakKeyDictionary[Link, bool] = WeakKeyDictionary()
        self._accepted = False  # whether a broker accepted a heartbeat of the last round
        self._closed = False

    def __repr__(self) -> str:
        return f"<Instance {self.client_id or 'not started'} of {self.options.servers}>"

    async def start(self) -> None:
        """Connect to a name server and start the heartbeats. Calling it again does nothing.

        Raises:
            UnavailableError: no name server can be reached.
        """
        self.pool.check()
        running_loop()
        self.pool.check_loop()
        if self._starting is None or (self._starting.done() and not self.client_id):
            self._starting = shared(self._start(), "start of the client")
        await joined(self._starting)

    async def link(self, address: str, *, fast: bool = False) -> Link:
        """The connection to a broker; it is opened if necessary.

        Args:
            address: the address in the broker's route.
            fast: connect to the VIP port, if the client is configured to use it. Heartbeats go to
                the main port only: a broker counts one consumer for each connection that has sent
                a heartbeat, and the group would leave queues to a consumer that does not exist.

        Raises:
            ConnectError: the connection could not be opened.
            ClosedError: the client is closed.
        """
        host, port = parse_address(address)
        link = await self.pool.get(host, port)
        if link not in self._registered and (self._producers or self._consumers):
            self._registered[link] = None
            self._send_heartbeat(link)
        if fast and self.options.vip:
            return await self.pool.get(host, port - VIP_PORT_STEP)
        return link

    async def has_timers(self, address: str) -> bool:
        """Whether a broker supports arbitrary delivery times: Coherer's and RocketMQ's from 5.0 do.

        Args:
            address: the address of its main port.

        Raises:
            UnavailableError: it cannot be reached, or does not answer.
        """
        return self.timers[await self._known(address)]

    async def has_half_batches(self, address: str) -> bool:
        """Whether a broker takes half batches.

        Args:
            address: the address of its main port.

        Raises:
            UnavailableError: it cannot be reached, or does not answer.
        """
        return FEATURE_HALF_BATCHES in self.features[await self._known(address)]

    async def ends_once(self, address: str) -> bool:
        """Whether a broker commits a half message only once. It is asked each time.

        Args:
            address: the address of its main port.

        Raises:
            UnavailableError: it cannot be reached, or does not answer.
        """
        link = await self.link(address)
        await self._ask_features(link)
        return FEATURE_ENDS_ONCE in self.features[link.server]

    async def _known(self, address: str) -> str:
        """The broker at an address, whose features are known now."""
        link = await self.link(address)
        if link.server not in self.features:
            await self._ask_features(link)
        return link.server

    async def _ask_features(self, link: Link) -> None:
        body = self._heartbeat_body()
        answer = await link.ask(
            RequestCode.HEART_BEAT, _FEATURE_QUERY, body, timeout_ms=HEARTBEAT_TIMEOUT_MS
        )
        self._record_features(link.server, answer)

    # -- registrations

    def handle(self, code: int, handler: Handler) -> None:
        """Call `handler` with each request of this code that a server sends."""
        self._handlers.by_code[code] = handler

    def register_producer(self, group: str) -> None:
        """Add a producer to the heartbeats; a group may have several producers."""
        self._producers[group] += 1
        if self._producers[group] == 1:
            self.heartbeat_soon()

    async def unregister_producer(self, group: str) -> None:
        """Undo one `register_producer`; after a group's last one, unregister at the brokers."""
        self._producers[group] -= 1
        if self._producers[group] <= 0:
            del self._producers[group]
            await self._unregister({"producerGroup": group})

    async def unregister_consumer(self, group: str) -> None:
        """Tell the brokers that the client's consumer has left its group."""
        await self._unregister({"consumerGroup": group})

    def heartbeat_soon(self) -> None:
        """Send a heartbeat to the brokers that had one before, and do not wait."""
        for link in list(self._registered):
            if link.open:
                self._send_heartbeat(link)

    async def heartbeat_now(self) -> None:
        """Send a heartbeat to every broker that should get one; failures are logged.

        Callers at the same time share one: with a thousand consumers, a heartbeat takes a tenth of
        a second to encode.
        """
        if self._next_round is None:
            self._next_round = asyncio.create_task(self._run_round(self._round), name="heartbeat")
        joined = self._next_round
        await asyncio.wait([joined])
        if not joined.cancelled():  # by `close`
            joined.result()

    async def _run_round(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._round, self._next_round = self._next_round, None
        self.routes.forget_offline_brokers()
        only_masters = not self._consumers
        targets = [
            (broker, address)
            for broker, addresses in self.routes.brokers.items()
            for number, address in addresses.items()
            if number == MASTER or not only_masters
        ]
        for gone in self.refusals.keys() - {address for _, address in targets}:
            del self.refusals[gone]
        done = await asyncio.gather(*(self._heartbeat(*target) for target in targets))
        self._accepted = any(done)
        if all(done) and self._rounds % LOG_EVERY == 0:
            _log.plain.info("Heartbeat %d: %d brokers", self._rounds, len(done))
        self._rounds += 1

    def check_account(self) -> None:
        """Check that the last heartbeats were not all refused because of the account.

        Raises:
            AuthorizationError: no broker accepts the account or its permissions.
        """
        if not self._accepted:
            for refusal in self.refusals.values():
                if isinstance(refusal, AuthorizationError):
                    raise refusal

    async def close(self) -> None:
        """Unregister, and close all connections. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        await cancel(self._starting, *self._tasks, self._round, self._next_round)
        self.replies.close()
        groups = [{"producerGroup": group} for group in self._producers]
        groups += [{"consumerGroup": group} for group in self._consumers]
        if self.client_id:
            await asyncio.gather(
                *(self._unregister(group) for group in groups),
                self._unregister({"producerGroup": INNER_PRODUCER_GROUP}),
            )
        await self.routes.close()
        await self.pool.close()

    async def _start(self) -> None:
        link = await self.names.link()
        host = link.local_host or "127.0.0.1"
        self.local_host = host
        instance = self.options.instance or f"{machine.process_id()}#{machine.ticks_ns()}"
        unit = f"@{self.options.unit}" if self.options.unit else ""
        self.client_id = f"{f'[{host}]' if ':' in host else host}@{instance}{unit}"
        self._tasks = [
            asyncio.create_task(
                every(self.upkeep, "refreshing routes", self.options.route_ms, self.routes.refresh),
                name="routes",
            ),
            asyncio.create_task(
                every(
                    self.upkeep,
                    "sending heartbeats",
                    self.options.heartbeat_ms,
                    self.heartbeat_now,
                ),
                name="heartbeats",
            ),
        ]

    def _subscribed_topics(self) -> set[str]:
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
            host, port = parse_address(address)
            link = await self.pool.get(host, port)
            self._registered[link] = None
            answer = await link.ask(
                RequestCode.HEART_BEAT,
                _FEATURE_QUERY,
                self._heartbeat_body(),
                timeout_ms=HEARTBEAT_TIMEOUT_MS,
            )
        except ClosedError:
            return False
        except CohererError as error:
            # Do not report brokers that have left the cluster.
            level = logging.WARNING if self.routes.names_address(address) else logging.INFO
            _log.log(level, "Heartbeat to %s failed: %s", broker, error, about=(broker, level))
            if isinstance(error, RefusedError):
                self.refusals[address] = error
            return False
        self.refusals.pop(address, None)
        self._record_features(address, answer)
        self._record_features(link.server, answer)
        return True

    def _send_heartbeat(self, link: Link) -> None:
        """Send a heartbeat; while one is not answered, at most one more waits for that."""
        if link in self._unanswered:
            self._unanswered[link] = True
            return
        self._unanswered[link] = False
        future = link.call(
            RequestCode.HEART_BEAT,
            _FEATURE_QUERY,
            self._heartbeat_body(),
            timeout_ms=HEARTBEAT_TIMEOUT_MS,
        )

        def answered(done: asyncio.Future[Command]) -> None:
            if self._unanswered.pop(link, False) and link.open:
                self._send_heartbeat(link)
            if done.cancelled() or done.exception() is not None:
                _log.info("A heartbeat to %s was not answered", link.server)
            else:
                self._record_features(link.server, done.result())

        future.add_done_callback(answered)

    def _record_features(self, server: str, answer: Command) -> None:
        """Record the version and the features in a heartbeat's answer."""
        self.versions[server] = answer.version
        features = frozenset(answer.fields.get(FEATURES, "").split(","))
        self.features[server] = features
        self.timers[server] = FEATURE_TIMERS in features or answer.version >= V5_0_0

    async def _unregister(self, group: dict[str, str]) -> None:
        async def unregister(link: Link) -> None:
            try:
                await link.ask(
                    RequestCode.UNREGISTER_CLIENT,
                    {"clientID": self.client_id, **group},
                    timeout_ms=LEAVE_TIMEOUT_MS,
                )
            except CohererError as error:
                _log.info("Unregistering at %s failed: %s", link.server, error)

        await asyncio.gather(*(unregister(link) for link in list(self._registered) if link.open))


def _signer(options: ClientOptions) -> Signer | None:
    if options.user is None or options.password is None:
        return None
    return acl.signer(options.user, options.password, options.token)
