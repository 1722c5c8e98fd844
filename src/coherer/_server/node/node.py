"""A node: master and broker in one process, or one of them, over one directory.

A node serves two protocols from one core: TubeMQ (a master and a broker) and RocketMQ (a name
server and a broker). Both see the same topics, messages, groups and offsets.

Periodic work: ten times a second the node checks leases, waiting fetches and members for timeouts.
A thread makes the log durable at the interval of the options. Every few seconds the groups' offsets
are written; every minute retention deletes old messages.

A node that is stopped unregisters from its master, answers pending requests, sends what has been
written, and closes its files. A node that is killed loses nothing that it has acknowledged; the
next start recovers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cache, cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

import msgspec

from coherer import _net as net
from coherer._common import clock
from coherer._common.logs import LOG_THROTTLE, Log
from coherer._common.upkeep import Step, Upkeep
from coherer._server.core.core import Core
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._server.node.accounts import NodeAccounts
from coherer._server.node.closing import (
    cancel_tasks,
    close_files,
    close_listeners,
    close_store,
    nothing,
)
from coherer._server.node.identity import IDENTITY_FILE, Identity, check_owner, claim
from coherer._server.node.parts import Load
from coherer._server.node.rocketmq import RocketMqService
from coherer._server.node.tubemq import TubeMqService
from coherer._server.node.version import check_version, upgrade
from coherer._server.options.exposure import warnings
from coherer._server.options.node import PORTS, SCHEME, NodeOptions
from coherer._server.options.siblings import SiblingStates
from coherer._server.tubemq.broker.broker import Broker
from coherer._server.tubemq.master.master import Master
from coherer._store import Files, OsFiles, Store
from coherer._store.config_files import ConfigFiles
from coherer._store.files import make_durable_directory, translate_os_errors
from coherer._store.model import check_retention
from coherer.errors import ClosedError, UsageError

# Loaded with the first connection of HTTP.
if TYPE_CHECKING:
    from coherer._server.http.service import AdminService
    from coherer._server.node.drain import Drain
    from coherer._server.node.metrics import Metrics

__all__ = ["Node", "NodeOptions"]

_log = Log(logging.getLogger(__name__))

MakeReceiver: TypeAlias = Callable[[net.Connection], net.Receiver]

_OS_FILES = OsFiles()
TICK_S = 0.1
POSITIONS_EVERY_MS = 5_000
CLEAN_EVERY_MS = 60_000
LOGS_EVERY_MS = 5_000
DISK_EVERY_MS = 1_000
TLS_EVERY_MS = 1_000
LAG_EVERY_S = 0.5
LOAD_EVERY_MS = 10_000
ACCOUNTS_EVERY_MS = 5_000

CHANGEABLE = frozenset(
    {
        "auto_create_topics",
        "hold_ms",
        "retention_bytes",
        "retention_hours",
        "topic_retention",
        "transfer_bytes",
    }
)
"""The options that `Node.change` takes; the others need a restart."""


class Node:
    """A running node.

    ```python
    async with Node(NodeOptions(directory=Path("data"), master_port=0, broker_port=0)) as node:
        node.create_topic("flights", 8)
        print(node.url)
    ```

    Args:
        options: its options.
        now_ms: a monotonic clock, ms since 1970.
        wall_ms: the time of day.
        message_clock: the clock of messages (their times, delays, checks of transactions,
            retention); None for the other two. Leases and timeouts do not follow it, so a test
            can move it by days, and clients stay connected.
        files: where its directory lies; the disk of the machine unless a test simulates one.
        tap: returns what takes the place of a protocol's maker of receivers, given the protocol's
            name and the maker: a test observes and disturbs connections there.

    Attributes:
        options: its options.
        core: the state shared by both protocols; None in a node that is only a master.
        tubemq: TubeMQ's master and broker, where the node has them; ports that are not open are -1.
        rocketmq: RocketMQ's name server and broker, with the same meaning of -1.
        admin_port: the port of the HTTP administration; -1 without.
        metrics_port: the separate port of the metrics; -1 without one.
        load: how busy it is.
        siblings: the states of the other broker processes of `coherer serve --brokers`.
        upkeep: counts failures of the periodic steps.
        certificates: the TLS files of the ports.
    """

    def __init__(
        self,
        options: NodeOptions,
        *,
        now_ms: Callable[[], int] = clock.now_ms,
        wall_ms: Callable[[], int] | None = None,
        message_clock: clock.Clock | None = None,
        files: Files = _OS_FILES,
        tap: Callable[[str, MakeReceiver], MakeReceiver] = lambda _, make: make,
    ) -> None:
        self.options = options
        self._tap = tap
        self._disk = files
        self.core: Core | None = None
        if wall_ms is None:
            wall_ms = clock.wall_ms if now_ms is clock.now_ms else now_ms
        self.tubemq = TubeMqService(options, now_ms, self._listen_tubemq, wall_ms=wall_ms)
        self.rocketmq = RocketMqService(options, now_ms, self._listen_rocketmq)
        self.admin_port = self.metrics_port = -1
        self.load = Load()
        self._drain: Drain | None = None
        self.siblings = SiblingStates()
        self.upkeep = Upkeep()
        self._registered = False
        self._now_ms = now_ms
        self._message_now_ms = now_ms if message_clock is None else message_clock.now_ms
        self._message_wall_ms = wall_ms if message_clock is None else message_clock.wall_ms
        self._store: Store | None = None
        self._config_files: ConfigFiles | None = None
        self._saver: DeferredSaver | None = None
        self._listeners: list[net.Listener] = []
        self.certificates = net.Certificates(options.tls, lambda: self._listeners)
        self.budget = net.ConnectionBudget(options.connection_limits)
        self._admin: Callable[[], AdminService] | None = None
        self._accounts: NodeAccounts
        self._tasks: list[asyncio.Task[None]] = []
        self._unlock: Callable[[], None] = nothing

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The URL for TubeMQ's clients, or for RocketMQ's if the node does not serve TubeMQ."""
        if self.options.master is not None:
            return SCHEME + ",".join(f"{host}:{port}" for host, port in self.options.masters)
        if not self.options.has_tubemq:
            return self.rocketmq_url
        return f"{SCHEME}{self.options.reachable_host}:{self.master_port}"

    @property
    def rocketmq_url(self) -> str:
        """The URL for RocketMQ's clients.

        Raises:
            UsageError: the node does not serve RocketMQ.
        """
        options, port = self.options, self.rocketmq.namesrv_port
        servers = options.name_servers or [f"{options.reachable_host}:{port}"] * (port >= 0)
        if not servers:
            raise UsageError("This node does not serve RocketMQ.")
        return options.rocketmq_scheme + ";".join(servers)

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics."""
        from coherer._server.node.metrics import Metrics  # as for `_administration`

        return Metrics(self)

    @property
    def drain(self) -> Drain:
        """Lets consumers finish before the node stops."""
        if self._drain is None:
            from coherer._server.node.drain import Drain  # as for `_administration`

            self._drain = Drain(self)
        return self._drain

    @property
    def master(self) -> Master | None:
        """The TubeMQ master; None without one."""
        return self.tubemq.master

    @property
    def broker(self) -> Broker | None:
        """The TubeMQ broker; None without one."""
        return self.tubemq.broker

    @property
    def master_port(self) -> int:
        """The TubeMQ master's port, -1 without one."""
        return self.tubemq.master_port

    @property
    def broker_port(self) -> int:
        """The TubeMQ broker's port, -1 without one."""
        return self.tubemq.broker_port

    @property
    def master_tls_port(self) -> int:
        """The TubeMQ master's port for TLS, -1 without one."""
        return self.tubemq.master_tls_port

    @property
    def broker_tls_port(self) -> int:
        """The TubeMQ broker's port for TLS, -1 without one."""
        return self.tubemq.broker_tls_port

    @property
    def namesrv_port(self) -> int:
        """The RocketMQ name server's port, -1 without one."""
        return self.rocketmq.namesrv_port

    @property
    def rocketmq_port(self) -> int:
        """The RocketMQ broker's port, -1 without one."""
        return self.rocketmq.port

    @property
    def rocketmq_fast_port(self) -> int:
        """The RocketMQ broker's port for all requests except pulls, -1 without one."""
        return self.rocketmq.fast_port

    @property
    def ha_port(self) -> int:
        """The RocketMQ broker's replication port, -1 without one."""
        return self.rocketmq.ha_port

    async def start(self) -> None:
        """Open the files, then the ports. Returns when requests are served.

        A broker with remote masters serves as soon as one has accepted it. It keeps trying, and
        this method does not wait for it (see `ready`).

        Raises:
            UsageError: a port is in use, or the options do not fit together.
            StoreError: the directory cannot be used.
        """
        for text in warnings(self.options):
            _log.plain.warning("%s", text)
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise
        for steps in (self._quick_steps(), self._disk_steps()):
            self.upkeep.watch(steps)
            self._tasks.append(asyncio.create_task(steps.run(TICK_S)))
        self._tasks.append(asyncio.create_task(self._measure_lag()))
        self._tasks.append(asyncio.create_task(self.ready()))

    async def ready(self) -> None:
        """Wait until remote masters and name servers have accepted the broker."""
        await self.tubemq.ready()
        await self.rocketmq.ready()
        self._registered = True

    def not_ready(self) -> str | None:
        """Why the node cannot serve at present; None if it can."""
        if not self._tasks:
            return "It is starting or stopping."
        if self._drain is not None and self._drain.active:
            return "It is draining, and will stop soon."
        if self.core is not None and self.core.disk.problem is not None:
            return self.core.disk.problem
        if not self._registered:
            return "Its master or name server has not accepted it yet."
        return self._problem_of_siblings()

    async def stop(self, *, unregister: bool = True) -> None:
        """Stop in order. Does nothing if the node has stopped already.

        Args:
            unregister: whether to tell remote masters and name servers. A test that kills a node
                leaves it to them to notice.

        Raises:
            StoreError: the disk failed; everything else was done nevertheless. A full disk is
                logged instead.
        """
        async with AsyncExitStack() as stack:  # runs in reverse order
            stack.callback(self._unlock)
            if self._store is not None:
                stack.callback(close_store, self._store)
            if self._saver is not None:
                stack.push_async_callback(close_files, self._saver, self.core)
            stack.callback(self.tubemq.closed)
            stack.push_async_callback(close_listeners, self._listeners)
            if self._store is not None and self.core is not None:
                stack.callback(self.rocketmq.closed)
                stack.push_async_callback(self.core.close)
                stack.callback(self.rocketmq.close)
                stack.callback(self.tubemq.close)
            stack.push_async_callback(self.rocketmq.leave, unregister=unregister)
            stack.push_async_callback(self.tubemq.leave, unregister=unregister)
            stack.push_async_callback(cancel_tasks, self._tasks)
            if self._drain is not None:
                stack.push_async_callback(self._drain.close)
            self._store = self._config_files = self._saver = None
            self._listeners, self._tasks = [], []
            self._unlock = nothing

    def change(self, options: NodeOptions) -> list[str]:
        """Apply the options that can change in a running node.

        Args:
            options: the new ones.

        Returns:
            The names of options that differ from those of the node and need a restart.

        Raises:
            UsageError: the log's files are too large for the new `retention_bytes`.
        """
        differ = [
            name
            for name in NodeOptions.__struct_fields__
            if getattr(options, name) != getattr(self.options, name)
        ]
        new = {name: getattr(options, name) for name in differ if name in CHANGEABLE}
        if (store := self._store) is not None:
            check_retention(options.retention_bytes, store.segment_bytes)
            # Only the differences: an operator may have changed the others over RocketMQ.
            kept = {name: value for name, value in new.items() if name.startswith("retention_")}
            store.options = msgspec.structs.replace(store.options, **kept)
        self._accounts.reload()
        self.certificates.reload()
        self.options = msgspec.structs.replace(self.options, **new)
        self.tubemq.change(self.options)
        self.rocketmq.change(self.options)
        return [name for name in differ if name not in CHANGEABLE]

    def create_topic(self, name: str, partitions: int | None = None) -> bool:
        """Create a topic on all brokers of the cluster; it is usable at once.

        Args:
            name: its name.
            partitions: how many on each broker; None for the default of the options.

        Returns:
            Whether it is new; an existing topic keeps its partitions.

        Raises:
            UsageError: this node is not a master, or there is no broker.
            CatalogError: the name or the number is invalid.
        """
        return self._master().create_topic(name, partitions) > 0

    def delete_topic(self, name: str) -> bool:
        """Delete a topic and its messages. Returns whether it existed.

        Raises:
            UsageError: this node is not a master.
        """
        return self._master().delete_topic(name)

    def topics(self) -> dict[str, dict[int, int]]:
        """The topics of the cluster: partitions by broker id.

        Raises:
            UsageError: this node is not a master.
        """
        return self._master().topics()

    def ports(self) -> dict[str, int]:
        """The open ports, by the names of their options."""
        ports: dict[str, int] = {name: getattr(self, name) for name in PORTS}
        return {name: port for name, port in ports.items() if port >= 0}

    def now_ms(self) -> int:
        """The monotonic clock of the node, ms since 1970."""
        return self._now_ms()

    def describe(self) -> str:
        """One line with the node's ports and directory."""
        ports = self.ports()
        parts = [
            f"{name} {self.options.host}:{ports[one]}"
            for one, name in (
                ("master_port", "master"),
                ("broker_port", "broker"),
                ("namesrv_port", "name server"),
                ("rocketmq_port", "RocketMQ broker"),
                ("admin_port", "admin"),
            )
            if one in ports
        ]
        return f"{', '.join(parts)}; files in {self.options.directory}"

    # -- start

    async def _open(self) -> None:
        options, tubemq, rocketmq = self.options, self.tubemq, self.rocketmq
        check_version(options.directory)
        self._accounts = NodeAccounts(options, self._now_ms)
        access = self._accounts.access
        if options.admin_port is not None:
            # First, because the broker reports this port to its master.
            self.admin_port = (await self._listen(options.admin_port, self._to_admin)).port
        web_port = options.advertised_admin_port or max(self.admin_port, 0)
        if "broker" in options.roles:
            self.core = self._open_core()
            self._saver = self.core.files
        if self.core is not None and options.has_tubemq:
            await tubemq.open_broker(self.core, web_port)
        if options.own_master:
            await tubemq.open_master(*self._files(), access=access, web_port=web_port)
        if options.own_name_server is not None:
            await rocketmq.open_name_server(options.own_name_server, *self._files(), access)
        self._follow_siblings()
        if self.core is not None and options.rocketmq_broker is not None:
            await rocketmq.open_broker(options.rocketmq_broker, self.core, access)
        self._admin = cache(partial(self._administration, tubemq.files or self._saver))
        if options.metrics and options.metrics_port is not None:
            listener = await self._listen(options.metrics_port, self._to_metrics)
            self.metrics_port = listener.port
        tubemq.connect()
        rocketmq.connect()

    def _follow_siblings(self) -> None:
        names = self.rocketmq.name_server
        if self.options.brokers == 1 or self.core is None or self.master is None or names is None:
            return
        from coherer._server.node.sibling_topics import follow  # as for `_administration`

        follow(self.options, self.master, names.routes, self.core)

    def _problem_of_siblings(self) -> str | None:
        if self.options.brokers == 1:
            return None
        from coherer._server.node.sibling_topics import unregistered  # as for `_administration`

        missing = unregistered(
            self.options, self.master, self.rocketmq.name_server, self.siblings.drained
        )
        return self.siblings.problem(but=self.options.broker_id) or missing or None

    def _open_core(self) -> Core:
        options = self.options
        config = ConfigFiles(self._disk, options.directory / "config")
        owner = config.read(IDENTITY_FILE, Identity.parse)
        check_owner(owner, options)
        store = Store.open(
            options.directory,
            options.store_options(),
            now_ms=self._message_wall_ms,
            monotonic_ms=self._message_now_ms,
            open_files=self.budget.connections.spare_files,
            files=self._disk,
        )
        self._store = store
        upgrade(options.directory, self._disk, _log.plain.info)
        check_retention(options.retention_bytes, store.segment_bytes)  # of an existing log
        report = store.recovery
        problems = report.problems()
        (_log.plain.info if report.clean and not problems else _log.plain.warning)(
            "Store in %s: %s", options.directory, report
        )
        for trouble in problems:
            _log.plain.warning("Store in %s: %s", options.directory, trouble)

        def save(identity: bytes) -> None:
            store.flush()  # before every file of `config/`
            config.save(IDENTITY_FILE, identity)

        claim(owner, options, save)
        config.keep_twice(IDENTITY_FILE)
        core = Core(
            store,
            self._message_now_ms,
            wall_ms=self._message_wall_ms,
            lease_ms=self._now_ms,
            disk_free_min=options.disk_free_min_bytes,
        )
        core.hide_expired(options.topic_limits)
        return core

    def _to_admin(self, connection: net.Connection) -> net.Receiver:
        if self._admin is None:
            raise ClosedError("The node has not started yet.")
        return self._admin().make(connection)

    def _administration(self, files: DeferredSaver | None) -> AdminService:
        # HTTP and the pages take a sixth of the time to load a node; many nodes serve none.
        from coherer._server.node.serving import administration

        guard = self._accounts.guard(self.options)
        return administration(self, self.metrics, self.drain, guard, files)

    def _to_metrics(self, connection: net.Connection) -> net.Receiver:
        return self._monitoring.make(connection)

    @cached_property
    def _monitoring(self) -> AdminService:
        from coherer._server.node.serving import monitoring  # as above

        return monitoring(self, self.metrics)

    async def _listen(
        self,
        port: int,
        make: MakeReceiver,
        *,
        secure: bool = False,
    ) -> net.Listener:
        tls = self.options.tls if secure else None
        return await self._open_port(port, make, tls, plain=False)

    async def _listen_tubemq(
        self, port: int, make: MakeReceiver, *, secure: bool = False
    ) -> net.Listener:
        return await self._listen(port, self._tap("tubemq", make), secure=secure)

    async def _listen_rocketmq(self, port: int, make: MakeReceiver) -> net.Listener:
        options, make = self.options, self._tap("rocketmq", make)
        return await self._open_port(port, make, options.tls, plain=not options.tls_required)

    async def _open_port(
        self,
        port: int,
        make: MakeReceiver,
        tls: net.TlsOptions | None,
        *,
        plain: bool,
    ) -> net.Listener:
        host = self.options.host
        try:
            listener = await net.listen(host, port, make, tls=tls, plain=plain, budget=self.budget)
        except UsageError as error:
            if str(port) in error.text:  # not an error of TLS
                error.hint = f"{error.hint} {self.options.listen_hint(port, error)}".strip()
            raise
        self._listeners.append(listener)
        return listener

    def _files(
        self,
    ) -> tuple[Callable[[str, Callable[[bytes], object]], bytes | None], DeferredSaver]:
        if self._store is not None and self._saver is not None:
            return _checked(self._store.read_config), self._saver
        if self._config_files is None or self._saver is None:
            self._config_files = self._open_config_files()
            self._saver = DeferredSaver(self._config_files.save)
        return _checked(self._config_files.read), self._saver

    def _open_config_files(self) -> ConfigFiles:
        files, directory = self._disk, self.options.directory
        lock = directory / "lock"
        with translate_os_errors(f"open {directory}"):
            make_durable_directory(files, directory.absolute() / "config")
            handle = files.lock(lock)
        self._unlock = lambda: files.unlock(lock, handle)
        upgrade(directory, files, _log.plain.info)
        return ConfigFiles(files, directory / "config")

    def _master(self) -> Master:
        if self.master is None:
            raise UsageError("This node is not a master.", hint=f"Ask {self.options.master}.")
        return self.master

    # -- while it runs

    async def _measure_lag(self) -> None:
        """Measure how late timers run: how long the event loop is busy without a pause."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self.load.loop_lag.add(max(0.0, loop.time() - due_s))

    def _quick_steps(self) -> Upkeep:
        """The periodic work that must not wait for a disk."""
        return Upkeep(
            self.tubemq.upkeep,
            self.rocketmq.upkeep,
            Step("reloading accounts", self._accounts.reload, ACCOUNTS_EVERY_MS),
            Step("checking TLS files", self.certificates.check, TLS_EVERY_MS),
            Step("measuring the load", self.load.measure_busy, LOAD_EVERY_MS),
            Step("counting repeated log lines", LOG_THROTTLE.flush, LOGS_EVERY_MS),
            now_ms=self._now_ms,
        )

    def _disk_steps(self) -> Upkeep:
        """The periodic work that waits for the disk."""
        core = self.core
        if core is None:
            return Upkeep()
        return Upkeep(
            Step("flushing the store", core.flusher.tick),
            Step("measuring the disk", core.check_disk, DISK_EVERY_MS),
            Step("saving offsets", core.save_positions, POSITIONS_EVERY_MS),
            Step("saving the broker's files", self.rocketmq.save, POSITIONS_EVERY_MS),
            Step(
                "hiding expired messages",
                lambda: core.hide_expired(self.options.topic_limits),
                POSITIONS_EVERY_MS,
            ),
            Step("keeping the size limit", core.limit_size),
            Step("forgetting idle groups", core.forget_idle, CLEAN_EVERY_MS),
            Step("deleting expired messages", core.delete_expired, CLEAN_EVERY_MS),
            now_ms=self._message_now_ms,
        )


def _checked(
    read: Callable[[str, Callable[[bytes], bytes]], bytes | None],
) -> Callable[[str, Callable[[bytes], object]], bytes | None]:
    def load(name: str, check: Callable[[bytes], object]) -> bytes | None:
        def parse(data: bytes) -> bytes:
            check(data)
            return data

        return read(name, parse)

    return load
