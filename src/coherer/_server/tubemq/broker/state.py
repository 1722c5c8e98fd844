"""What the parts of a broker share: its options, its store, the rules' tables, and its clocks."""

from __future__ import annotations

import msgspec

from coherer import limits
from coherer._rules.common.offsets import Position
from coherer._rules.common.topics import Topic, TubeMqTopics
from coherer._rules.tubemq.leases import Lease, LeaseTable
from coherer._server.core.core import Core
from coherer._server.tubemq.broker.access import GRACE_MS, Access
from coherer._server.tubemq.broker.throttle import Throttle
from coherer._wire.tubemq.flow import FlowRules
from coherer.errors import UsageError

CLOSED, REMOVING, REMOVED = 1, 2, 3
"""Status of a topic: closed for clients; its files are being removed; they are gone."""


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker behaves.

    Args:
        broker_id: its number in the cluster, above zero.
        host: the address that clients and the master know it by.
        port: the port likewise.
        tls_port: the port for TLS, announced to the master; None without TLS.
        web_port: where the broker's HTTP administration is, told to a master of ours; 0: nowhere.
        lease_timeout_ms: a consumer that does not show itself for so long loses its partitions.
        hold_ms: how long a get that finds nothing waits for a message at most. With few fetching
            threads (Java's push consumer) and several brokers, a thread that waits here misses
            what arrives there: such clusters want less.
        transfer_bytes: records that one get reads at most, of at least one message.
        token_grace_ms: how long after registration unknown visit tokens pass.

    Raises:
        UsageError: a number makes no sense.
    """

    broker_id: int = 1
    host: str = "127.0.0.1"
    port: int = 8123
    tls_port: int | None = None
    web_port: int = 0
    lease_timeout_ms: int = 30_000
    hold_ms: int = 5_000
    transfer_bytes: int = 512 * 1024
    token_grace_ms: int = GRACE_MS

    def __post_init__(self) -> None:
        for name, least in (("lease_timeout_ms", 1), ("hold_ms", 0), ("transfer_bytes", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"`{name}` is {getattr(self, name)}; it is {least} or more.")


class Consumer:
    """A consumer as the broker sees it, to wake its threads for partitions with messages.

    Attributes:
        announced: how many of its partitions have messages that it has not asked for.
        round: counts the announcements.
    """

    __slots__ = ("announced", "leases", "round")

    def __init__(self) -> None:
        self.announced = 0
        self.round = 0
        self.leases = 0


class Reader(Lease):
    """A lease with what reading it needs.

    Attributes:
        position: where the group is.
        tags: the codes of its filters; None without.
        filters: the words of its filters.
        priority: the consumer's read priority; -2 when it has none. Everything is served at once.
        fresh: nothing has been read under this lease yet.
        consumer: the consumer that holds it.
        since_ms: when it took the partition, by the time of day.
        peer: the address that it came from.
        announced: it has messages that nobody has asked for since they came.
        told: the announcement that was last answered here (`Consumer.round`).
        throttle: how fast it reads; looked at only while there are rules.
    """

    __slots__ = (
        "announced",
        "consumer",
        "filters",
        "fresh",
        "peer",
        "position",
        "priority",
        "since_ms",
        "tags",
        "throttle",
        "told",
    )

    def __init__(
        self,
        holder: str,
        group: str,
        topic: str,
        partition: int,
        position: Position,
        tags: frozenset[int] | None,
        filters: tuple[str, ...],
        priority: int,
        consumer: Consumer,
        *,
        since_ms: int = 0,
        peer: str = "",
    ) -> None:
        super().__init__(holder, group, topic, partition)
        self.position = position
        self.tags = tags
        self.filters = filters
        self.priority = priority
        self.fresh = True
        self.consumer = consumer
        self.announced = False
        self.told = 0
        self.throttle = Throttle()
        self.since_ms = since_ms
        self.peer = peer


class BrokerState:
    """The parts of a broker meet here.

    Attributes:
        core: what the broker shares with the node's other door.
        version: grows with every change of topics or rights; what was derived from them before is
            stale then.
        serving: requests are served.
        stop_read: the master wants no reads.
        stop_write: the master wants no sends.
        message_bytes_max: the cluster's limit for a client's message.
        flow: the cluster's flow rules.
        readers_timed_out: leases that ran out since `counts_since_ms`, a time of day.
    """

    def __init__(self, options: BrokerOptions, core: Core) -> None:
        self.options = options
        self.core = core
        self.store = core.store
        self.now_ms = core.now_ms
        self.wall_ms = core.wall_ms
        self.topics = TubeMqTopics(core.topics)
        self.offsets = core.offsets
        self.version = 0
        self.serving = False
        self.stop_read = False
        self.stop_write = False
        self.message_bytes_max = limits.MESSAGE_BYTES_DEFAULT
        self.flow = FlowRules()
        self.access = Access(options.token_grace_ms)
        self.leases = LeaseTable[Reader](options.lease_timeout_ms)
        self.first_id = (options.broker_id & 0x7FFF) << 48
        self.readers_timed_out, self.counts_since_ms = 0, core.wall_ms()
        core.on_change(self._grow)

    @property
    def address(self) -> str:
        """Number and address of the broker, as its master knows it."""
        options = self.options
        return f"{options.broker_id}:{options.host}:{options.port}"

    def changed(self) -> None:
        """Topics or rights are not what they were."""
        self.core.changed()

    def payload_bytes_max(self, topic: Topic) -> int:
        """The longest payload that a send to this topic may carry."""
        return (topic.message_bytes_max or self.message_bytes_max) + limits.MESSAGE_SLACK_BYTES

    def _grow(self) -> None:
        self.version += 1
