"""How name servers learn of a broker and of its topics (9.2).

A broker says everything it has to each of its name servers: at the start, after every change of a
topic, every 30 s, and to one that did not answer after 3 s again. At the end it says good-bye. What
a name server in the same process knows is set without a message.

Whoever changes a topic can wait until the name servers in other processes know it
(`RemoteRegistrar.heard`). The wait is bounded, and does not include name servers that were silent
the last time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final

from coherer._common.logs import Log
from coherer._rules.common.topics import Topic, TopicTable
from coherer._rules.rocketmq.routes import BrokerRegistration, MasterAddress, QueueData, RouteTable
from coherer._server.rocketmq.broker.options import RocketOptions
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import RequestCode, refused
from coherer._wire.rocketmq.headers import (
    BrokerHeader,
    RegisterBrokerHeader,
    RegisterBrokerResult,
    parse,
)
from coherer.errors import CohererError, ProtocolError

_log = Log(logging.getLogger(__name__))

PERIOD_S: Final = 30.0
RETRY_S: Final = 3.0
REGISTER_MS: Final = 6_000
FAREWELL_MS: Final = 3_000
HEARD_MS: Final = 2_000
"""The longest wait for name servers. Clients wait 3 s for an answer, so this has to be less."""
READ_WRITE: Final = 6


class BrokerAnnouncement:
    """What a broker says to its name servers, without the way it is said.

    Args:
        options: who it is, as it is now; without reading or writing in its permission, its topics
            have the same.
        topics: what it has; changes of them are seen.
        now_ms: a clock that is not set.
        master_found: told where a slave's master is: its address, and its address for slaves.
    """

    def __init__(
        self,
        options: Callable[[], RocketOptions],
        topics: TopicTable,
        now_ms: Callable[[], int],
        *,
        master_found: Callable[[MasterAddress], None] = lambda _: None,
    ) -> None:
        self.options = options
        self.topics = topics
        self.now_ms = now_ms
        self._master_found = master_found

    def body(self) -> bytes:
        """The body of 103."""
        version = self.topics.version
        wrapper = bodies.TopicConfigs(
            data_version=bodies.DataVersion(counter=version.counter, timestamp=version.timestamp),
            topic_config_table={topic.name: self._config(topic) for topic in self.topics},
        )
        return bodies.RegisterBody(topic_config_serialize_wrapper=wrapper).encode()

    def register_header(self, body: bytes) -> RegisterBrokerHeader:
        """The header of 103."""
        options = self.options()
        return RegisterBrokerHeader(
            broker_name=options.broker,
            broker_addr=options.address,
            cluster_name=options.cluster,
            broker_id=options.broker_id,
            ha_server_addr=options.ha_address,
            body_crc32=bodies.crc(body),
        )

    def header(self) -> BrokerHeader:
        """The header of 104."""
        options = self.options()
        return BrokerHeader(
            broker_name=options.broker,
            broker_addr=options.address,
            cluster_name=options.cluster,
            broker_id=options.broker_id,
        )

    def said(self, link: Hashable) -> BrokerRegistration:
        """The same as a name server in this process takes it."""
        options = self.options()
        return BrokerRegistration(
            cluster=options.cluster,
            broker=options.broker,
            broker_id=options.broker_id,
            address=options.address,
            ha_address=options.ha_address,
            version=self.topics.version,
            topics={
                topic.name: QueueData(
                    options.broker,
                    topic.read_queues,
                    topic.write_queues,
                    self._perm(topic),
                    topic.sys_flag,
                )
                for topic in self.topics
            },
            filter_servers=[],
            link=link,
        )

    def answered(self, master: MasterAddress, ordered: Sequence[str] | None) -> None:
        """Take what a name server answered; `ordered` are the topics that it calls so."""
        if master.address or master.ha_address:
            self._master_found(master)
        if ordered is not None:
            self.topics.order(ordered, self.now_ms())

    def _perm(self, topic: Topic) -> int:
        own = self.options().perm
        return topic.perm if own & READ_WRITE == READ_WRITE else own

    def _config(self, topic: Topic) -> bodies.TopicConfig:
        return bodies.TopicConfig(
            topic_name=topic.name,
            read_queue_nums=topic.read_queues,
            write_queue_nums=topic.write_queues,
            perm=self._perm(topic),
            order=topic.order,
            topic_filter_type=topic.filter_type,
            topic_sys_flag=topic.sys_flag,
        )


class LocalRegistrar:
    """The tie to a name server in the same process.

    Unlike one behind a socket it forgets a topic as soon as the broker has it no more.

    Args:
        registration: what is said.
        routes: the name server's.
        ordered: the topics that the name server calls ordered; None when it says nothing.
    """

    def __init__(
        self,
        registration: BrokerAnnouncement,
        routes: RouteTable,
        ordered: Callable[[], Sequence[str] | None],
    ) -> None:
        self._registration = registration
        self._routes = routes
        self._ordered = ordered
        self._told: frozenset[str] = frozenset()
        registration.topics.watch(self.sync)

    def sync(self) -> None:
        """Have the name server know what is so now."""
        registration = self._registration
        said = registration.said(self)
        names = frozenset(said.topics or ())
        master = self._routes.register(said, registration.now_ms())
        self._routes.drop(said.broker, self._told - names)
        self._told = names
        registration.answered(master, None)

    def tick(self) -> None:
        """Show that the broker is alive, and take what is ordered; call it every few seconds."""
        self.sync()
        self._registration.answered(MasterAddress(), self._ordered())

    def close(self) -> None:
        """Say good-bye."""
        options = self._registration.options()
        self._routes.unregister(options.cluster, options.broker, options.broker_id, options.address)


class RemoteRegistrar:
    """The ties to name servers behind sockets.

    Args:
        registration: what is said.
        addresses: host:port of each.
        outgoing: the connections to them; the caller closes it.
        heard_ms: the longest wait of `heard`.

    Attributes:
        ready: set when one of them has taken the registration.
    """

    def __init__(
        self,
        registration: BrokerAnnouncement,
        addresses: Sequence[str],
        outgoing: RemotingClient,
        *,
        heard_ms: int = HEARD_MS,
    ) -> None:
        self._registration = registration
        self._addresses = addresses
        self._outgoing = outgoing
        self._heard_ms = heard_ms
        self._news = {address: asyncio.Event() for address in addresses}
        self._trouble: dict[str, str] = {}
        self._silent: set[str] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.ready = asyncio.Event()

    def start(self) -> None:
        """Register and stay registered, in the background, for ever."""
        self._registration.topics.watch(self.sync)
        self._tasks = [asyncio.create_task(self._keep(address)) for address in self._addresses]

    def sync(self) -> None:
        """Tell all name servers soon what is so now."""
        for news in self._news.values():
            news.set()

    def heard(self) -> Awaitable[None]:
        """What ends when the name servers have been told what is so now, or after `heard_ms`.

        A name server that refuses the connection or the registration is not waited for any longer.
        One that did not answer within `heard_ms` is not waited for again until it has answered.
        """
        loop = asyncio.get_running_loop()
        waiting: dict[asyncio.Future[None], str] = {}
        for address, task in zip(self._addresses, self._tasks, strict=False):
            if address in self._silent or task.done():
                continue
            future: asyncio.Future[None] = loop.create_future()
            # Not the registration that is under way: that one may carry the topics of before.
            self._waiting.setdefault(address, []).append(future)
            self._news[address].set()
            waiting[future] = address
        return asyncio.create_task(self._hear(waiting), name="name servers hear")

    async def _hear(self, waiting: Mapping[asyncio.Future[None], str]) -> None:
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=self._heard_ms / 1000)
        for address in sorted({waiting[future] for future in late} - self._silent):
            self._silent.add(address)
            _log.warning(
                "Name server %s did not take the changed topics within %d ms; its clients may not "
                "find a new topic yet",
                address,
                self._heard_ms,
            )

    async def close(self) -> None:
        """Say good-bye to all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for address in self._addresses:
            self._answer(self._waiting.pop(address, ()))
        fields = self._registration.header().fields()
        farewells: list[Awaitable[object]] = [
            self._outgoing.ask(
                address, RequestCode.UNREGISTER_BROKER, fields, timeout_ms=FAREWELL_MS
            )
            for address in self._addresses
            if address not in self._trouble
        ]
        for said in await asyncio.gather(*farewells, return_exceptions=True):
            if isinstance(said, Exception):
                _log.warning("A name server did not hear our good-bye: %s", said)

    async def _keep(self, address: str) -> None:
        while True:
            self._news[address].clear()
            waiting = self._waiting.pop(address, ())
            wait_s = PERIOD_S
            try:
                await self._register(address)
            except CohererError as error:
                wait_s = RETRY_S
                self._trouble[address] = str(error)
                _log.warning("Name server %s does not have us, trying on: %s", address, error)
            except Exception:  # noqa: BLE001 - whatever it says, the others do without
                _log.exception("An error of ours with name server %s", address)
            else:
                self._silent.discard(address)
                if self._trouble.pop(address, None) is not None:
                    _log.info("Name server %s has us again.", address)
                self.ready.set()
            finally:
                self._answer(waiting)
            await self._wait(address, wait_s)

    @staticmethod
    def _answer(waiting: Iterable[asyncio.Future[None]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _wait(self, address: str, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._news[address].wait()
        except TimeoutError:
            pass

    async def _register(self, address: str) -> None:
        body = self._registration.body()
        answer = await self._outgoing.ask(
            address,
            RequestCode.REGISTER_BROKER,
            self._registration.register_header(body).fields(),
            body,
            timeout_ms=REGISTER_MS,
        )
        if answer.code:
            raise refused(answer.code, answer.remark or "The name server refuses us.")
        result = parse(RegisterBrokerResult, answer.fields)
        ordered: list[str] | None = None
        if answer.body:
            try:
                ordered = list(bodies.KVTable.decode(answer.body).table)
            except ProtocolError as error:
                _log.warning("Name server %s answers what nobody can read: %s", address, error)
        master = MasterAddress(result.master_addr or "", result.ha_server_addr or "")
        self._registration.answered(master, ordered)
