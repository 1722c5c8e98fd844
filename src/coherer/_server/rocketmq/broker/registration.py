"""Registers a broker and its topics with name servers.

See docs/protocol/rocketmq.md, section 9.2.

A broker sends all its topics to each of its name servers: at start, after every change of a topic,
every 30 s, and again after 3 s if the name server did not respond. At stop it unregisters. A name
server in the same process is updated by function calls.

A name server forgets a broker when their connection ends, and clients then find no queues there. So
the broker registers again after a second. (Java's waits for the end of the 30 s.)

A master does not register while another one has its name (`rivals`).

Code that changes a topic can await `RemoteRegistrar.announced`, until the remote name servers know
it. The wait is bounded and skips name servers that did not respond the last time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from coherer._common.logs import Log
from coherer._common.upkeep import Step, Upkeep
from coherer._record.system_topics import HISTORY_TOPIC
from coherer._rules.common.topics import Topic, TopicTable
from coherer._rules.rocketmq.routes import BrokerRegistration, MasterAddress, QueueData, RouteTable
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.broker.rivals import RivalSearch
from coherer._server.rocketmq.remoting_client import RemotingClient
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import RequestCode, refused
from coherer._wire.rocketmq.headers import (
    BrokerHeader,
    RegisterBrokerHeader,
    RegisterBrokerResult,
    parse,
)
from coherer.errors import CohererError, ProtocolError, UnavailableError

_log = Log(logging.getLogger(__name__))

PERIOD_S: Final = 30.0
RETRY_S: Final = 3.0
LOST_S: Final = 1.0
"""The pause after the end of a connection, in case that the name server ends every one."""
REGISTER_MS: Final = 6_000
FAREWELL_MS: Final = 3_000
ANNOUNCE_TIMEOUT_MS: Final = 2_000
"""The longest wait for name servers; less than the 3 s for which clients wait for a response."""
READ_WRITE: Final = 6


class BrokerAnnouncement:
    """The content of a broker's registrations.

    Args:
        options: returns the current options; topics inherit the broker's permission if it lacks
            reading or writing.
        now_ms: a monotonic clock.
        master_found: called with the addresses of a slave's master.
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
        """The body of REGISTER_BROKER (103)."""
        version = self.topics.version
        wrapper = bodies.TopicConfigs(
            data_version=bodies.DataVersion(counter=version.counter, timestamp=version.timestamp),
            topic_config_table={topic.name: self._config(topic) for topic in self._shown()},
        )
        return bodies.RegisterBody(topic_config_serialize_wrapper=wrapper).encode()

    def register_header(self, body: bytes) -> RegisterBrokerHeader:
        """The header of REGISTER_BROKER (103)."""
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
        """The header of UNREGISTER_BROKER (104)."""
        options = self.options()
        return BrokerHeader(
            broker_name=options.broker,
            broker_addr=options.address,
            cluster_name=options.cluster,
            broker_id=options.broker_id,
        )

    def registration(self, link: Hashable) -> BrokerRegistration:
        """The registration for a name server in this process."""
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
                for topic in self._shown()
            },
            filter_servers=[],
            link=link,
        )

    def answered(self, master: MasterAddress, ordered: Sequence[str] | None) -> None:
        """Take a name server's response; `ordered` are its ordered topics."""
        if master.address or master.ha_address:
            self._master_found(master)
        if ordered is not None:
            self.topics.order(ordered, self.now_ms())

    def _shown(self) -> Iterator[Topic]:
        return (topic for topic in self.topics if topic.name != HISTORY_TOPIC)

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
            tubemq=topic.tubemq or None,
        )


class LocalRegistrar:
    """Registers the broker with a name server in the same process.

    Unlike a remote name server, it forgets a topic as soon as the broker has deleted it.

    One turn of the event loop can create hundreds of topics, and each registration has all of
    them. So changes are registered together in the next turn, or before a client asks for a topic.

    Args:
        ordered: returns the name server's ordered topics; None while it has none configured.
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
        self._registered: frozenset[str] = frozenset()
        self._due: asyncio.Handle | None = None
        registration.topics.watch(self._changed)
        routes.before_queries(self._sync_if_due)

    def _changed(self) -> None:
        if self._due is not None:
            return
        try:
            self._due = asyncio.get_running_loop().call_soon(self.sync)
        except RuntimeError:  # without an event loop nobody asks before this returns
            self.sync()

    def _sync_if_due(self) -> None:
        if self._due is not None:
            self.sync()

    def sync(self) -> None:
        """Register the current topics."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        registration = self._registration
        sent = registration.registration(self)
        names = frozenset(sent.topics or ())
        master = self._routes.register(sent, registration.now_ms())
        self._routes.drop(sent.broker, self._registered - names)
        self._registered = names
        registration.answered(master, None)

    def tick(self) -> None:
        """Renew the registration and take the ordered topics; call it every few seconds."""
        self.sync()
        self._registration.answered(MasterAddress(), self._ordered())

    def close(self) -> None:
        """Unregister."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        options = self._registration.options()
        self._routes.unregister(options.broker, options.broker_id, options.address)


class RemoteRegistrar:
    """Registers the broker with remote name servers.

    Args:
        addresses: host:port of each name server.
        outgoing: the connections to them; the caller closes it.
        announce_timeout_ms: the longest wait of `announced`.
        rival_found: called before the first registration with the address of another master of
            this broker's name, or with None if no other master has it.

    Attributes:
        ready: set when one of them has accepted the registration.
        upkeep: counts failed registrations.
    """

    def __init__(
        self,
        registration: BrokerAnnouncement,
        addresses: Sequence[str],
        outgoing: RemotingClient,
        *,
        announce_timeout_ms: int = ANNOUNCE_TIMEOUT_MS,
        rival_found: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._registration = registration
        self._rivals = RivalSearch(registration.options, addresses, outgoing)
        self._rival_found = rival_found
        self._searching = asyncio.Lock()
        self._is_alone = False
        self._rival: str | None = None
        self._addresses = addresses
        self._outgoing = outgoing
        self._announce_timeout_ms = announce_timeout_ms
        self._changed = {address: asyncio.Event() for address in addresses}
        self._trouble: dict[str, str] = {}
        self._lost: set[str] = set()
        self._silent: set[str] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._wait_s = dict.fromkeys(addresses, PERIOD_S)
        self.upkeep = Upkeep(*map(self._step, addresses))
        self.ready = asyncio.Event()

    def start(self) -> None:
        """Register, and keep registered in the background."""
        self._registration.topics.watch(self.sync)
        self._outgoing.lost = self._connection_lost
        self._tasks = self.upkeep.start()

    def _step(self, address: str) -> Step:
        return Step(
            f"registering with name server {address}",
            lambda: self._keep(address),
            pause=lambda: self._wait(address, self._wait_s[address]),
        )

    def sync(self) -> None:
        """Register the current topics with all name servers soon."""
        for changed in self._changed.values():
            changed.set()

    def _connection_lost(self, address: str) -> None:
        if address in self._changed:
            self._lost.add(address)
            self._changed[address].set()

    def announced(self) -> Awaitable[None]:
        """Return a task that waits until the name servers know the current topics.

        A name server that refuses the connection or the registration is skipped from then on. One
        that did not respond within `announce_timeout_ms` is skipped until it responds.
        """
        loop = asyncio.get_running_loop()
        waiting: dict[asyncio.Future[None], str] = {}
        for address, task in zip(self._addresses, self._tasks, strict=False):
            if address in self._silent or task.done():
                continue
            future: asyncio.Future[None] = loop.create_future()
            # A registration in progress does not count: it may contain the old topics.
            self._waiting.setdefault(address, []).append(future)
            self._changed[address].set()
            waiting[future] = address
        return asyncio.create_task(self._wait_announced(waiting), name="coherer-announce")

    async def _wait_announced(self, waiting: Mapping[asyncio.Future[None], str]) -> None:
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=self._announce_timeout_ms / 1000)
        for address in sorted({waiting[future] for future in late} - self._silent):
            self._silent.add(address)
            _log.warning(
                "Name server %s did not accept the changed topics within %d ms; its clients may "
                "not find a new topic yet",
                address,
                self._announce_timeout_ms,
            )

    async def close(self, *, unregister: bool = True) -> None:
        """Stop registering, and `unregister` from all name servers."""
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
            if unregister and address not in self._trouble
        ]
        for sent in await asyncio.gather(*farewells, return_exceptions=True):
            if isinstance(sent, Exception):
                _log.warning("Could not unregister from a name server: %s", sent)

    async def _keep(self, address: str) -> None:
        self._changed[address].clear()
        waiting = self._waiting.pop(address, ())
        self._wait_s[address] = PERIOD_S
        try:
            await self._check_alone()
            await self._register(address)
        except CohererError as error:
            self._wait_s[address] = RETRY_S
            self._trouble[address] = str(error)
            raise
        finally:
            self._answer(waiting)
        self._silent.discard(address)
        if self._trouble.pop(address, None) is not None:
            _log.info("Registered with name server %s again", address)
        self.ready.set()

    @staticmethod
    def _answer(waiting: Iterable[asyncio.Future[None]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _wait(self, address: str, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._changed[address].wait()
        except TimeoutError:
            pass
        if address in self._lost:
            self._lost.discard(address)
            await asyncio.sleep(LOST_S)

    async def _check_alone(self) -> None:
        """Check that no other master has this broker's name, before the first registration.

        Raises:
            UnavailableError: one has.
        """
        async with self._searching:
            if not (self._is_alone or self._rival):
                self._rival = await self._rivals.find()
                self._is_alone = self._rival is None
                self._rival_found(self._rival)
        # Not even when the other one has left: it has stored messages that this one lacks.
        if self._rival is not None:
            name = self._registration.options().broker
            raise UnavailableError(
                f"Another broker is the master of {name}. This one serves no messages until it is "
                "restarted, as it would give out the same offsets.",
                server=self._rival,
                hint="If a slave has become the master, start this broker as its slave, with an "
                "empty directory. If not, give it another --broker-name, or stop the other one and "
                "restart this one.",
            )

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
            raise refused(answer.code, answer.remark or "The name server refused the registration.")
        result = parse(RegisterBrokerResult, answer.fields)
        ordered: list[str] | None = None
        if answer.body:
            try:
                ordered = list(bodies.KVTable.decode(answer.body).table)
            except ProtocolError as error:
                _log.warning("Name server %s sent an invalid response: %s", address, error)
        master = MasterAddress(result.master_addr or "", result.ha_server_addr or "")
        self._registration.answered(master, ordered)
