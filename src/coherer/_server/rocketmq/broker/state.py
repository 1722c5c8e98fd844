"""The shared state of a RocketMQ broker's request handlers: tables, counters, filters, options.

See docs/protocol/rocketmq.md, sections 2.12, 3.11, 6.11, 6.12 and 7.2.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from coherer import limits
from coherer._common.logs import Log
from coherer._rules.common.java_json import DataVersion
from coherer._rules.common.topics import WRITE
from coherer._rules.rocketmq.clients import ConsumerManager, ProducerManager, QueueLocks
from coherer._rules.rocketmq.consumer_filters import BloomBits, Compiled, ConsumerFilters
from coherer._rules.rocketmq.groups import Group, TopicDefaults
from coherer._rules.rocketmq.transactions import GROUP as TRANSACTIONS_GROUP
from coherer._server.core.core import Core
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.pulling import SLAVE_FIELD
from coherer._wire.rocketmq.subscription import BLOOM_BITS, bloom_positions
from coherer.errors import CohererError, UsageError

_log = Log(logging.getLogger(__name__))

SQL92: Final = "SQL92"


def compile_expression(expression: str, kind: str) -> Compiled:
    """Compile a filter expression.

    Raises:
        UsageError: the expression is invalid, or its type is not supported.

    >>> compile_expression("a > 5", "SQL92")({"a": "6"})
    True
    >>> compile_expression("a", "XPATH")
    Traceback (most recent call last):
    coherer.errors.UsageError: Expressions of type 'XPATH' are not supported.
    """
    if kind != SQL92:
        raise UsageError(f"Expressions of type {kind!r} are not supported.")
    # Few nodes need it, and it loads a grammar.
    from coherer._wire.rocketmq.selector import compile_selector

    return compile_selector(expression).evaluate


def expression_fault(expression: str, kind: str) -> str | None:
    """Return the remark that refuses an invalid expression; None for a valid one (section 7.2).

    >>> expression_fault("a BETWEEN 5 AND 1", "SQL92")
    'java.lang.RuntimeException: Illegal values of between, left value(5) must less than or equal \
    to right value(1)'
    """
    try:
        compile_expression(expression, kind)
    except UsageError as error:
        from coherer._wire.rocketmq.selector import SelectorError  # loaded by the call

        return error.remark if isinstance(error, SelectorError) else error.text
    return None


def bloom_bits(text: str) -> BloomBits:
    """The bits of a text in the bloom filter that Java's brokers use by default.

    >>> bloom_bits("GID_PY#T1")
    BloomBits(bit_num=112, bit_pos=(5, 12, 92))
    """
    return BloomBits(BLOOM_BITS, bloom_positions(text))


def is_name(text: str) -> bool:
    r"""Whether a client may name a group, or itself, so.

    >>> is_name("readers"), is_name("a\nb"), is_name("a" * 300), is_name("")
    (True, False, False, False)
    """
    return 0 < len(text) <= limits.NAME_CHARS_MAX and text.isprintable()


_IN_MEMORY = 0.4
"""Java treats messages as "in memory" that are within this share of RAM of the log's end."""


class RocketState:
    """The shared state of a broker.

    Attributes:
        options: replaced as a whole when an operator changes a setting.
        version: incremented by every change of topics, groups or options; invalidates caches.
        filters: the expressions of consumers.
        memory_bytes: the machine's memory.
        replicated_to: waits until a slave has the log up to an offset, with a timeout in ms, and
            returns 0, 11 or 12 (section 6.12); None unless the broker is a SYNC_MASTER.
        forbid: with accounts, raises the `Refusal` of a request whose sender lacks a permission on
            a topic. It is for topics that the request does not name.
        permits: with accounts, whether a client has a permission on a topic. It is for messages
            that a client did not ask for.
        rival: the address of another master that has this broker's name; None if none is known.
            Messages are neither taken nor given then.
        announced: returns an awaitable that waits until remote name servers know the current
            topics; None without remote name servers.
    """

    def __init__(self, options: RocketOptions, core: Core) -> None:
        self.options = options
        self.core = core
        self.store = core.store
        self.now_ms = core.lease_ms
        self.wall_ms = core.wall_ms
        self.topics = core.topics
        self.groups = core.groups
        self.offsets = core.offsets
        self.version = 0
        self.consumers = ConsumerManager[Channel]()
        self.producers = ProducerManager[Channel]()
        self.filters = ConsumerFilters(compile_expression, bloom_bits)
        self.locks = QueueLocks[Queue]()
        self.counters = core.counters
        self.counters.cluster = options.cluster
        self.memory_bytes = _memory_bytes()
        self.replicated_to: Callable[[int, int], Awaitable[int]] | None = None
        self.forbid: Callable[[Channel, Command, str, int], None] = _forbid_nothing
        self.permits: Callable[[Channel, str, int], bool] = _permit_all
        self.rival: str | None = None
        self.announced: Callable[[], Awaitable[None]] | None = None
        core.store.store_host = options.store_host
        self._add_internal_topics()
        core.groups.add_internal()
        core.on_change(self._grow)
        core.on_idle_check(self._in_use)
        self._committed: set[tuple[str, str]] = set()
        self._counted: tuple[DataVersion, int] | None = None  # topics, without internal ones

    def change(self, options: RocketOptions) -> None:
        """Replace the options, and announce the topics again if that changes their routes."""
        before, self.options = self.options, options
        self._add_internal_topics()
        creates = options.auto_create_topics and not before.auto_create_topics
        if before.perm != options.perm or creates:
            self.topics.touch(self.now_ms())
        self.core.changed()

    def rival_found(self, address: str | None) -> None:
        """Set `rival`."""
        if address != self.rival:
            self.rival = address
            self.core.changed()

    def check_no_rival(self) -> None:
        """Check that no other master has this broker's name.

        Raises:
            Refusal: with 14 if one has.
        """
        if self.rival is not None:
            name = self.options.broker
            remark = f"service not available now: {self.rival} is the master of {name}"
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    @property
    def announced_options(self) -> RocketOptions:
        """The options as announced to name servers: a broker that is about to stop is read-only."""
        if not self.core.leaving:
            return self.options
        return msgspec.structs.replace(self.options, perm=self.options.perm & ~WRITE)

    def _add_internal_topics(self) -> None:
        options = self.options
        defaults = TopicDefaults(
            cluster=options.cluster,
            broker=options.broker,
            auto_create=options.auto_create_topics,
            queues=options.default_queues,
            trace=options.trace_topic,
        )
        self.topics.add_internal(defaults.topics(), [defaults.trace_topic])

    def group(self, name: str) -> Group | None:
        """A group's settings; creates the group where that is allowed."""
        found = self.groups.get(name)
        if found is not None or (name and not is_name(name)):  # Java takes a group without a name
            return found
        if len(self.groups) >= limits.GROUPS_MAX:
            _log.warning(
                "Group %s was not created: there are %d already. An administrator can create it",
                name,
                len(self.groups),
                about="groups",
                group=name,
            )
            return None
        auto_create = self.options.auto_create_groups
        return self.groups.find(name, self.now_ms(), auto_create=auto_create)

    def may_create_topic(self) -> bool:
        """Whether there are few enough topics that clients may create another one by using it."""
        version = self.topics.version
        if len(self.topics) < limits.TOPICS_MAX:
            return True
        if self._counted is None or self._counted[0] != version:
            count = sum(not self.topics.is_internal(name) for name in self.topics.names())
            self._counted = version, count
        return self._counted[1] < limits.TOPICS_MAX

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit a group's offset for a client.

        Raises:
            Refusal: with 17 if the topic does not exist. With 16 if the group is the broker's own:
                its offsets say which half messages are done, so a client that moved them could make
                the broker forget open transactions.
        """
        if group == TRANSACTIONS_GROUP:
            remark = f"the offsets of group {group} belong to the broker, no client may commit them"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        # Members notice later that a topic was deleted. If their last offsets stayed here, the
        # group would begin with them in a new topic of the same name.
        if topic not in self.topics:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        self.offsets.open(group, topic, queue_id).move_to(offset)
        self._committed.add((topic, group))

    def in_memory(self, physical_offset: int) -> bool:
        """Whether Java would treat this offset as "in memory"."""
        return self.store.end_offset - physical_offset <= self.memory_bytes * _IN_MEMORY

    async def safe(self, end_offset: int) -> int:
        """Wait until messages are flushed and replicated, as configured (sections 6.11, 6.12).

        Returns:
            0, or the response code of the step that failed: 10, 11 or 12.
        """
        flushed = slave = 0
        replicated = self.replicated(end_offset)
        if self.core.sync_flush and replicated is not None:
            flushed, slave = await asyncio.gather(self._flushed(end_offset), replicated)
        elif self.core.sync_flush:
            flushed = await self._flushed(end_offset)
        elif replicated is not None:
            slave = await replicated
        return slave or flushed

    def replicated(self, end_offset: int) -> Awaitable[int] | None:
        """Wait until a slave has the log up to an offset; None if nobody has to wait for slaves."""
        if self.replicated_to is None:
            return None
        return self.replicated_to(end_offset, self.options.slave_timeout_ms)

    async def _flushed(self, end_offset: int) -> int:
        done: asyncio.Future[CohererError | None] = asyncio.get_running_loop().create_future()

        def flushed_to(error: CohererError | None) -> None:
            if not done.done():
                done.set_result(error)

        self.core.appender.when_durable(end_offset, flushed_to)
        try:
            async with asyncio.timeout(self.options.flush_timeout_ms / 1000):
                return ResponseCode.FLUSH_DISK_TIMEOUT if await done else 0
        except TimeoutError:
            return ResponseCode.FLUSH_DISK_TIMEOUT

    def announced_since(self, before: DataVersion) -> Awaitable[None] | None:
        """Return an awaitable for which the response to a request waits if it changed topics."""
        if self.announced is None or self.topics.version == before:
            return None
        return self.announced()

    @property
    def slave_fields(self) -> dict[str, str]:
        """What a slave adds to answers with offsets."""
        return {SLAVE_FIELD: str(self.options.broker_id)} if self.is_slave else {}

    @property
    def is_slave(self) -> bool:
        """Whether the broker follows a master."""
        return self.options.role == "SLAVE"

    def _in_use(self) -> Iterable[tuple[str, str]]:
        """The (topic, group) pairs read since the last call (see `Core.on_idle_check`)."""
        used, self._committed = self._committed, set()
        for group in self.consumers.groups():
            used.update((topic, group.name) for topic in group.subscriptions)
        return used

    def _grow(self) -> None:
        self.version += 1


def _forbid_nothing(channel: Channel, request: Command, topic: str, bits: int) -> None:
    """A broker without accounts serves everybody."""


def _permit_all(channel: Channel, topic: str, bits: int) -> bool:  # noqa: ARG001 - as `_forbid_nothing`
    return True


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return 8 << 30
