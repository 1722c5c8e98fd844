"""Where topics and brokers are, as the name servers say (rocketmq 3.2).

* A look-up that fails changes nothing: what was known goes on being used.
* The routes of topics in use (`route`) are asked for again and again (`refresh`); who only wants to
  know once where a topic is (`look_up`) costs nothing after that, were it of thousands of topics.
* Everybody who wants to know where a topic is waits for the same answer.
* Watchers hear of routes that are new or have changed.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from coherer._client.rocketmq.routing import (
    AUTO_CREATE_TOPIC,
    MASTER,
    NameServers,
    Route,
    route_of,
    template_route,
)
from coherer._common.logs import Log
from coherer._wire.rocketmq.bodies import TopicRoute
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer.errors import CohererError, RefusedError, UnavailableError

_log = Log(logging.getLogger(__name__))

Watcher = Callable[[Route], None]


class Directory(ABC):
    """Where topics and brokers are.

    Args:
        names: calls to the name servers.
    """

    def __init__(self, names: NameServers) -> None:
        self.names = names
        self._routes: dict[str, Route] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._created: dict[str, Route] = {}  # topics that a send creates, until they exist
        self._watchers: list[Watcher] = []

    async def route(self, topic: str, *, fresh: bool = False, create: bool = False) -> Route:
        """Where a topic is.

        Args:
            topic: its name, with the namespace.
            fresh: ask the name server even when we know.
            create: for a topic that does not exist, the route where a send would create it.

        Raises:
            RefusedError: the topic does not exist; code 17.
            UnavailableError: no name server can be reached.
        """
        route = None if fresh else self._routes.get(topic)
        if route is not None and (route.writable or not create):
            return route
        # One question at a time for a topic, whoever wants to know.
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.create_task(self._ask(topic), name=f"route of {topic}")
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        try:
            return await asyncio.shield(task)
        except RefusedError as error:
            if not create or error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return await self._template(topic, error)

    async def look_up(self, topic: str) -> Route:
        """Where a topic is now. A topic that nobody uses besides is not kept fresh after that.

        Raises:
            RefusedError: the topic does not exist; code 17.
            UnavailableError: no name server can be reached.
        """
        answer = await self.names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        route = route_of(topic, TopicRoute.decode(answer.body))
        if topic in self._routes:
            self._keep(route)
        else:
            self._learn(route)
        return route

    def known(self, topic: str) -> Route | None:
        """The route of a topic, if we have it."""
        return self._routes.get(topic)

    def forget(self, topic: str) -> None:
        """Do not keep a topic's route any longer; it is gone."""
        self._routes.pop(topic, None)
        self._created.pop(topic, None)

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` called with each route that is new or has changed."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Undo `watch`."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    async def refresh(self) -> None:
        """Look up every topic in use again, and tell the watchers what changed."""
        for topic in self._created.keys() | self._routes.keys() | self._subscribed():
            try:
                await self.route(topic, fresh=True)
            except UnavailableError as error:  # nor would they tell of thousands of other topics
                _log.warning("The routes stay as they are: %s", error, about=type(error))
                return
            except CohererError as error:
                _log.info("The route of %s stays as it is: %s", topic, error)

    def address(self, broker: str, number: int = MASTER) -> str:
        """The address of a broker as `host:port`.

        Raises:
            UnavailableError: no route that we know names it.
        """
        address = self._brokers.get(broker, {}).get(number)
        if address is None:
            raise UnavailableError(
                f"No address of broker {broker} ({number}) is known.",
                hint="Is it up, and registered with the name server?",
            )
        return address

    def addresses(self, broker: str) -> dict[int, str]:
        """The addresses of all brokers of one name, by id; empty when none is known."""
        return dict(self._brokers.get(broker, {}))

    @property
    def masters(self) -> dict[str, str]:
        """The addresses of all known masters, by their broker's name."""
        return {
            broker: addresses[MASTER]
            for broker, addresses in self._brokers.items()
            if MASTER in addresses
        }

    def forget_offline(self) -> None:
        """Drop the addresses of brokers that no route names."""
        if not self._routes:
            return
        live = {
            address
            for route in (*self._routes.values(), *self._created.values())
            for addresses in route.brokers.values()
            for address in addresses.values()
        }
        for broker, addresses in list(self._brokers.items()):
            left = {number: address for number, address in addresses.items() if address in live}
            if left:
                self._brokers[broker] = left
            else:
                del self._brokers[broker]

    # -- inside

    @abstractmethod
    def _subscribed(self) -> set[str]:
        """Topics that consumers want, whether they exist or not."""

    def _asked(self, topic: str, done: asyncio.Task[Route]) -> None:
        self._asking.pop(topic, None)
        if not done.cancelled():
            done.exception()  # whoever asked may have gone since: then it is nobody's

    async def _ask(self, topic: str) -> Route:
        route = await self.look_up(topic)
        self._keep(route)
        return route

    def _keep(self, route: Route) -> None:
        if self._routes.get(route.topic) != route:
            self._routes[route.topic] = route
            self._created.pop(route.topic, None)
            self._learn(route)
            for watcher in list(self._watchers):
                watcher(route)

    async def _template(self, topic: str, missing: RefusedError) -> Route:
        try:
            answer = await self.names.ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": AUTO_CREATE_TOPIC}
            )
        except RefusedError:
            raise missing from None
        route = template_route(topic, TopicRoute.decode(answer.body))
        self._created[topic] = route
        self._learn(route)
        return route

    def _learn(self, route: Route) -> None:
        for broker, addresses in route.brokers.items():
            self._brokers[broker] = dict(addresses)
