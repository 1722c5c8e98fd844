"""What the parts of a RocketMQ broker share: its options, the core, and who is connected."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from coherer._rules.common.java_json import DataVersion
from coherer._rules.rocketmq.clients import ConsumerManager, ProducerManager, QueueLocks
from coherer._rules.rocketmq.groups import Group, TopicDefaults
from coherer._server.core.core import Core
from coherer._server.rocketmq.broker.options import RocketOptions
from coherer._server.rocketmq.broker.state import Counts, new_filters
from coherer._server.rocketmq.remoting import Channel
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError

_IN_MEMORY = 0.4
"""Java takes for "in memory" what is no further behind than so much of the machine's memory."""


class Replication(Protocol):
    """What waits for slaves."""

    async def safe(self, end_offset: int, timeout_ms: int) -> int:
        """Wait until a slave has the log up to `end_offset`. Returns 0, 11 or 12 (6.12)."""
        ...


class RocketState:
    """The parts of a broker meet here.

    Attributes:
        options: how it behaves; replaced as a whole when an operator changes something.
        core: what it shares with the node's other door.
        version: grows with every change of topics, groups or options; what was derived from them
            before is stale then.
        consumers: who consumes.
        producers: who produces.
        filters: the expressions of consumers.
        locks: who consumes which queue in order.
        counts: what it counts.
        memory_bytes: the machine's memory.
        replication: what a send waits for; None unless the broker is a SYNC_MASTER.
        announced: waits until name servers in other processes know the topics as they are now;
            None where there are none.
    """

    def __init__(self, options: RocketOptions, core: Core) -> None:
        self.options = options
        self.core = core
        self.store = core.store
        self.now_ms = core.now_ms
        self.wall_ms = core.wall_ms
        self.topics = core.topics
        self.groups = core.groups
        self.offsets = core.offsets
        self.version = 0
        self.consumers = ConsumerManager[Channel]()
        self.producers = ProducerManager[Channel]()
        self.filters = new_filters()
        self.locks = QueueLocks[Queue]()
        self.counts = Counts(core, options.cluster)
        self.memory_bytes = _memory_bytes()
        self.replication: Replication | None = None
        self.announced: Callable[[], Awaitable[None]] | None = None
        core.store.store_host = options.store_host
        defaults = TopicDefaults(
            cluster=options.cluster,
            broker=options.broker,
            auto_create=options.auto_create_topics,
            queues=options.default_queues,
            trace=options.trace_topic,
        )
        core.topics.add_internal(defaults.topics(), [defaults.trace_topic])
        core.groups.add_internal()
        core.on_change(self._grow)
        core.on_idle_check(self._in_use)
        self._committed: set[tuple[str, str]] = set()

    def change(self, options: RocketOptions) -> None:
        """Behave differently from now on."""
        self.options = options
        self.core.changed()

    def group(self, name: str) -> Group | None:
        """A group's settings, made where that is allowed."""
        auto_create = self.options.auto_create_groups
        return self.groups.find(name, self.now_ms(), auto_create=auto_create)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Take a group's word for where it is."""
        self.offsets.open(group, topic, queue_id).move_to(offset)
        self._committed.add((topic, group))

    def in_memory(self, physical_offset: int) -> bool:
        """Whether Java would take what lies there for "in memory"."""
        return self.store.end_offset - physical_offset <= self.memory_bytes * _IN_MEMORY

    async def safe(self, end_offset: int) -> int:
        """Wait until what was stored is as safe as this broker makes it (6.11, 6.12).

        Returns:
            0, or the code that says what it waited for in vain: 10, 11 or 12.
        """
        flushed = slave = 0
        if self.core.sync_flush and self.replication is not None:
            flushed, slave = await asyncio.gather(
                self._flushed(end_offset),
                self.replication.safe(end_offset, self.options.slave_timeout_ms),
            )
        elif self.core.sync_flush:
            flushed = await self._flushed(end_offset)
        elif self.replication is not None:
            slave = await self.replication.safe(end_offset, self.options.slave_timeout_ms)
        return slave or flushed

    async def _flushed(self, end_offset: int) -> int:
        done: asyncio.Future[CohererError | None] = asyncio.get_running_loop().create_future()

        def told(error: CohererError | None) -> None:
            if not done.done():
                done.set_result(error)

        self.core.appender.when_durable(end_offset, told)
        try:
            async with asyncio.timeout(self.options.flush_timeout_ms / 1000):
                return ResponseCode.FLUSH_DISK_TIMEOUT if await done else 0
        except TimeoutError:
            return ResponseCode.FLUSH_DISK_TIMEOUT

    def news(self, before: DataVersion) -> Awaitable[None] | None:
        """What the answer to a request has to wait for that may have changed topics.

        Args:
            before: the version of the topics before the request.

        Returns:
            Something to await; None when there is nothing to wait for.
        """
        if self.announced is None or self.topics.version == before:
            return None
        return self.announced()

    @property
    def is_slave(self) -> bool:
        """Whether it only follows a master."""
        return self.options.role == "SLAVE"

    def _in_use(self) -> Iterable[tuple[str, str]]:
        """What is being read, or was since the last time (see `Core.on_idle_check`)."""
        used, self._committed = self._committed, set()
        for group in self.consumers.groups():
            used.update((topic, group.name) for topic in group.subscriptions)
        return used

    def _grow(self) -> None:
        self.version += 1


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return 8 << 30
