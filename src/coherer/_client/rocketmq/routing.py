"""The routes of topics and the addresses of brokers, from the name servers.

See docs/protocol/rocketmq.md, sections 1.4, 3.2, 8.3.

* All name servers have the same data, so one is enough. Clients shuffle the list to spread the
  load, and keep using a name server until it cannot be reached or does not answer; then its
  connection is closed and the next one is tried, each once per call. A refusal is an answer and
  does not lead to another name server.
* A look-up that fails changes nothing: the known routes stay in use.
* `RouteTable.route` caches a route and keeps it fresh (`refresh`). `RouteTable.look_up` asks once
  and caches nothing, so that looking at thousands of topics costs nothing afterwards.
* Concurrent look-ups of a topic share one request.
* Watchers are called with each route that is new or has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import structs

from coherer._client.engine.tasks import cancel, joined, shared
from coherer._client.rocketmq.link import NO_FIELDS, Fields, Link, Pool
from coherer._common import machine
from coherer._common.logs import Log
from coherer._wire.rocketmq.bodies import QueueData, TopicRoute
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import AUTO_CREATE_TOPIC, Queue
from coherer.errors import CohererError, RefusedError, UnavailableError, UsageError

_log = Log(logging.getLogger(__name__))

MASTER: Final = 0
"""The id of the master among the brokers of one name."""

READ: Final = 4
WRITE: Final = 2
"""Bits of a queue's permission."""

NEW_TOPIC_QUEUES: Final = 4
"""The number of queues that a topic gets if a send creates it."""


class Route(msgspec.Struct, frozen=True, gc=False):
    """The queues and brokers of a topic.

    Args:
        writable: the queues that accept messages, sorted; without those of brokers that have no
            master.
        readable: the queues that can be read, sorted.
        brokers: broker names, to their addresses by id; 0 is the master.
        ordered: whether an administrator fixed the queues, so that their number does not change
            when brokers come and go.
        clusters: broker names, to the cluster they belong to.
    """

    topic: str
    writable: tuple[Queue, ...]
    readable: tuple[Queue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    ordered: bool = False
    clusters: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<Route to {self.topic}: {len(self.writable)} queues on {', '.join(self.brokers)}>"


def route_of(topic: str, data: TopicRoute) -> Route:
    """The route in a name server's answer."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    ordered = bool(data.order_topic_conf)
    by_broker = sorted(data.queue_datas, key=lambda queues: queues.broker_name)
    if data.order_topic_conf:
        writable = _fixed_queues(topic, data.order_topic_conf)
    else:
        writable = tuple(
            queue for queues in by_broker for queue in _writable(topic, queues, brokers)
        )
    readable = tuple(
        Queue(topic, queues.broker_name, number)
        for queues in by_broker
        if queues.perm & READ
        for number in range(queues.read_queue_nums)
    )
    clusters = {broker.broker_name: broker.cluster or "" for broker in data.broker_datas}
    return Route(topic, writable, readable, brokers, ordered, clusters)


def template_route(topic: str, data: TopicRoute) -> Route:
    """The route that a topic gets when the first send creates it.

    Args:
        data: the route of the template topic. It has no queues if no broker creates topics.
    """
    few = [
        structs.replace(queues, write_queue_nums=number, read_queue_nums=number)
        for queues in data.queue_datas
        for number in (min(NEW_TOPIC_QUEUES, queues.read_queue_nums),)
    ]
    return route_of(topic, structs.replace(data, queue_datas=few))


def _fixed_queues(topic: str, text: str) -> tuple[Queue, ...]:
    """The queues of `broker-a:4;broker-b:4`."""
    queues: list[Queue] = []
    for part in text.split(";"):
        broker, _, count = part.partition(":")
        if broker and count.strip().isdecimal():
            queues += [Queue(topic, broker, number) for number in range(int(count))]
    return tuple(queues)


def _writable(
    topic: str, queues: QueueData, brokers: Mapping[str, Mapping[int, str]]
) -> list[Queue]:
    if not queues.perm & WRITE or MASTER not in brokers.get(queues.broker_name, {}):
        return []
    return [Queue(topic, queues.broker_name, number) for number in range(queues.write_queue_nums)]


class NameServers:
    """Calls to the name servers of a cluster.

    Args:
        addresses: host and port of each.
        timeout_ms: of each attempt.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], pool: Pool, timeout_ms: int) -> None:
        self.addresses = machine.random.sample(addresses, len(addresses))
        self._pool = pool
        self._timeout_ms = timeout_ms
        self._current = 0

    def __repr__(self) -> str:
        return f"<NameServers {','.join(f'{host}:{port}' for host, port in self.addresses)}>"

    async def link(self) -> Link:
        """The connection to the current name server, or to the next one that can be reached.

        Raises:
            UnavailableError: none can be reached.
        """
        error: CohererError | None = None
        for _ in self.addresses:
            tried = self._current
            try:
                return await self._pool.get(*self.addresses[tried])
            except UsageError:
                raise
            except CohererError as failure:
                error = failure
                self._use_next(tried, failure)
        assert error is not None  # noqa: S101 - there is at least one address
        raise error

    async def ask(self, code: int, fields: Fields = NO_FIELDS, body: bytes = b"") -> Command:
        """Send a request to one name server and wait for its answer.

        Raises:
            UnavailableError: none is reachable, or none answers in time.
            RefusedError: it refused.
        """
        error: CohererError | None = None
        for _ in self.addresses:
            link = await self.link()
            tried = self._current
            try:
                return await link.ask(code, fields, body, timeout_ms=self._timeout_ms)
            except (RefusedError, UsageError):
                raise
            except CohererError as failure:
                error = failure
                link.connection.close()
                self._use_next(tried, failure)
        assert error is not None  # noqa: S101 - there is at least one address
        raise error

    async def ask_all(
        self, code: int, fields: Fields = NO_FIELDS, body: bytes = b""
    ) -> list[Command]:
        """Send a request to every name server, for data that each keeps for itself.

        Raises:
            UnavailableError: one is not reachable, or does not answer in time.
            RefusedError: one refused.
        """

        async def ask(host: str, port: int) -> Command:
            link = await self._pool.get(host, port)
            return await link.ask(code, fields, body, timeout_ms=self._timeout_ms)

        return await asyncio.gather(*(ask(host, port) for host, port in self.addresses))

    def _use_next(self, tried: int, failure: CohererError) -> None:
        _log.info(
            "Name server %s:%d: %s", *self.addresses[tried], failure, about=self.addresses[tried]
        )
        if self._current == tried:  # otherwise another call has moved on already
            self._current = (tried + 1) % len(self.addresses)


Watcher = Callable[[Route], None]


class RouteTable:
    """The routes of topics in use, and the addresses of brokers.

    Args:
        names: calls to the name servers.
        subscribed: returns the topics of consumers, whether they exist or not.
    """

    def __init__(self, names: NameServers, subscribed: Callable[[], Iterable[str]]) -> None:
        self._names = names
        self._subscribed = subscribed
        self._routes: dict[str, Route] = {}
        self._templates: dict[str, Route] = {}  # of topics that a send is going to create
        self._brokers: dict[str, dict[int, str]] = {}
        self._look_ups: dict[str, asyncio.Task[Route]] = {}
        self._watchers: list[Watcher] = []

    async def route(self, topic: str, *, fresh: bool = False, create: bool = False) -> Route:
        """The route of a topic, kept fresh from now on.

        Args:
            topic: the topic, with the namespace.
            fresh: ask the name server even if the route is known.
            create: for a topic that does not exist, return the route that a send would create.

        Raises:
            RefusedError: the topic does not exist; code 17.
            UnavailableError: no name server can be reached.
        """
        route = None if fresh else self._routes.get(topic)
        if route is not None and (route.writable or not create):
            return route
        task = self._look_ups.get(topic)
        if task is None:
            task = self._look_ups[topic] = shared(
                self._look_up_and_keep(topic), f"route of {topic}"
            )
            task.add_done_callback(lambda _: self._look_ups.pop(topic, None))
        try:
            return await joined(task)
        except RefusedError as error:
            if not create or error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return await self._template(topic, error)

    async def look_up(self, topic: str) -> Route:
        """The route of a topic now; it is not kept fresh unless it is in use already.

        Raises:
            RefusedError: the topic does not exist; code 17.
            UnavailableError: no name server can be reached.
        """
        answer = await self._names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        route = route_of(topic, TopicRoute.decode(answer.body))
        # Also if it has not changed: the route of another topic may have been read while the
        # broker was away, or had another address.
        self._add_brokers(route)
        if topic in self._routes:
            self._keep(route)
        return route

    def known(self, topic: str) -> Route | None:
        """The route of a topic if it is in use."""
        return self._routes.get(topic)

    def forget(self, topic: str) -> None:
        """Stop refreshing the route of a topic that was deleted."""
        self._routes.pop(topic, None)
        self._templates.pop(topic, None)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with each route that is new or has changed."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Undo `watch`."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    async def refresh(self) -> None:
        """Look up every topic in use again, and call the watchers about changes."""
        for topic in dict.fromkeys((*self._templates, *self._routes, *self._subscribed())):
            try:
                await self.route(topic, fresh=True)
            except UnavailableError as error:  # do not try thousands of other topics
                _log.warning("Cannot refresh the routes of topics: %s", error, about=type(error))
                return
            except CohererError as error:
                _log.info("Cannot refresh the route of %s: %s", topic, error)

    def address(self, broker: str, number: int = MASTER) -> str:
        """The address of a broker as `host:port`.

        Raises:
            UnavailableError: no known route contains it.
        """
        address = self._brokers.get(broker, {}).get(number)
        if address is None:
            raise UnavailableError(
                f"No address of broker {broker} ({number}) is known.",
                hint="Is it up, and registered with the name server?",
            )
        return address

    def addresses(self, broker: str) -> dict[int, str]:
        """The addresses of all brokers of one name, by id; empty if none is known."""
        return dict(self._brokers.get(broker, {}))

    @property
    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """The addresses of all known brokers, by name and id."""
        return self._brokers

    @property
    def masters(self) -> dict[str, str]:
        """The addresses of all known masters, by broker name."""
        return {
            broker: addresses[MASTER]
            for broker, addresses in self._brokers.items()
            if MASTER in addresses
        }

    def forget_offline_brokers(self) -> None:
        """Drop the addresses of brokers that no route contains."""
        if not self._routes:
            return
        live = self._live_addresses()
        for broker, addresses in list(self._brokers.items()):
            left = {number: address for number, address in addresses.items() if address in live}
            if left:
                self._brokers[broker] = left
            else:
                del self._brokers[broker]

    def names_address(self, address: str) -> bool:
        """Whether the route of a topic in use contains a broker's address."""
        return address in self._live_addresses()

    def _live_addresses(self) -> set[str]:
        return {
            address
            for route in (*self._routes.values(), *self._templates.values())
            for addresses in route.brokers.values()
            for address in addresses.values()
        }

    async def close(self) -> None:
        """Cancel the look-ups."""
        await cancel(*self._look_ups.values())

    async def _look_up_and_keep(self, topic: str) -> Route:
        route = await self.look_up(topic)
        self._keep(route)
        return route

    def _keep(self, route: Route) -> None:
        if self._routes.get(route.topic) != route:
            self._routes[route.topic] = route
            self._templates.pop(route.topic, None)
            for watcher in list(self._watchers):
                watcher(route)

    async def _template(self, topic: str, missing: RefusedError) -> Route:
        try:
            answer = await self._names.ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": AUTO_CREATE_TOPIC}
            )
        except RefusedError:
            raise missing from None
        route = template_route(topic, TopicRoute.decode(answer.body))
        self._templates[topic] = route
        self._add_brokers(route)
        return route

    def _add_brokers(self, route: Route) -> None:
        for broker, addresses in route.brokers.items():
            self._brokers[broker] = dict(addresses)
