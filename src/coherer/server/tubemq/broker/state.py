"""What the parts of a broker share: its options, its store, the rules' tables, and its clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from coherer import limits
from coherer.broker.groups import GroupTable
from coherer.broker.leases import Lease, LeaseTable
from coherer.broker.offsets import OffsetTable, Position
from coherer.broker.topics import Topic, TopicTable
from coherer.server.tubemq.broker.access import GRACE_MS, Access
from coherer.server.tubemq.broker.throttle import Throttle
from coherer.store import Store
from coherer.tubemq.flow import FlowRules

T = TypeVar("T")

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
        sync_flush: acknowledge a send after its bytes are on the disk, not when they are written.
        lease_timeout_ms: a consumer that does not show itself for so long loses its partitions.
        hold_ms: how long a get that finds nothing waits for a message at most. With few fetching
            threads (Java's push consumer) and several brokers, a thread that waits here misses
            what arrives there: such clusters want less.
        transfer_bytes: records that one get reads at most, of at least one message.
        token_grace_ms: how long after registration unknown visit tokens pass.
        group_idle_ms: positions of a group that did not read for so long are forgotten.
    """

    broker_id: int = 1
    host: str = "127.0.0.1"
    port: int = 8123
    tls_port: int | None = None
    web_port: int = 0
    sync_flush: bool = False
    lease_timeout_ms: int = 30_000
    hold_ms: int = 5_000
    transfer_bytes: int = 512 * 1024
    token_grace_ms: int = GRACE_MS
    group_idle_ms: int = 20 * 24 * 3_600_000


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
        announced: it has messages that nobody has asked for since they came.
        told: the announcement that was last answered here (`Consumer.round`).
        throttle: how fast it reads; looked at only while there are rules.
    """

    __slots__ = (
        "announced",
        "consumer",
        "filters",
        "fresh",
        "position",
        "priority",
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


class BrokerState:
    """The parts of a broker meet here.

    Attributes:
        version: grows with every change of topics or rights; what was derived from them before is
            stale then.
        serving: requests are served.
        stop_read: the master wants no reads.
        stop_write: the master wants no sends.
        write_failed: the disk failed, so that nothing can be promised any more.
        message_bytes_max: the cluster's limit for a client's message.
        flow: the cluster's flow rules.
    """

    def __init__(self, options: BrokerOptions, store: Store, now_ms: Callable[[], int]) -> None:
        self.options = options
        self.store = store
        self.now_ms = now_ms
        self.version = 0
        self.serving = False
        self.stop_read = False
        self.stop_write = False
        self.write_failed = False
        self.message_bytes_max = limits.MESSAGE_BYTES_DEFAULT
        self.flow = FlowRules()
        self.access = Access(options.token_grace_ms)
        self.topics = self._load("topics.json", TopicTable.load, TopicTable)
        self.groups = self._load("subscriptionGroup.json", GroupTable.load, GroupTable)
        self.offsets = self._load("consumerOffset.json", OffsetTable.load, OffsetTable)
        self.leases = LeaseTable[Reader](options.lease_timeout_ms)
        self.first_id = (options.broker_id & 0x7FFF) << 48
        self._saved_offsets = self.offsets.dump()

    def changed(self) -> None:
        """Topics or rights are not what they were."""
        self.version += 1

    def payload_bytes_max(self, topic: Topic) -> int:
        """The longest payload that a send to this topic may carry."""
        return (topic.message_bytes_max or self.message_bytes_max) + limits.MESSAGE_SLACK_BYTES

    def save_topics(self) -> None:
        """Write the file of topics."""
        self.store.save_config("topics.json", self.topics.dump(self.now_ms()))

    def positions_to_save(self) -> Callable[[], None]:
        """What writes the positions and the groups that have any, if they are new; any thread."""
        files: dict[str, bytes] = {}
        data = self.offsets.dump()
        if data != self._saved_offsets:
            files["consumerOffset.json"] = data
        new = [self.groups.add(name) for name in sorted(self.offsets.lasting_groups())]
        if any(new):
            files["subscriptionGroup.json"] = self.groups.dump(self.now_ms())

        def save() -> None:
            for name, content in files.items():
                self.store.save_config(name, content)
            self._saved_offsets = data

        return save

    def _load(self, name: str, load: Callable[[bytes], T], make: Callable[[], T]) -> T:
        data = self.store.load_config(name)
        return make() if data is None else load(data)
