"""The producers and brokers that are registered at a master (docs/protocol/tubemq.md, section 7).

A client or broker that sends nothing for its timeout is removed. Consumers are in `groups`.

A broker opens a topic to clients if the administrator wants it (the catalog), the broker has
reported that it serves the topic, the broker is online, and neither side has stopped reading or
writing. The broker's report counts, not the configuration it was sent, so that clients are never
sent to a partition that does not exist yet.

Differences from Java's master:

* One delay per topic (`BrokerRegistryTiming`, zero by default) replaces the state machine that
  takes a whole broker through phases of 30 s and 5 s after every change.
* A broker that leaves has `return_ms` to come back before groups are balanced without it. A broker
  that has restarted makes all consumers take its partitions again at once; Java's clients only
  learn of the restart from their own errors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from coherer import limits
from coherer._record.system_topics import HISTORY_TOPIC
from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.records import TopicStatus

K = TypeVar("K")

PAUSED_BY_ERRORS: Final = -1
"""The status that a broker reports after it has stopped because of disk errors."""


class LivenessTracker(Generic[K]):
    """The time of each node's last sign of life, in order; every call takes constant time.

    >>> tracker = LivenessTracker[str](timeout_ms=100)
    >>> tracker.seen("a", 0), tracker.seen("b", 50), tracker.seen("a", 90)
    (None, None, None)
    >>> list(tracker.overdue(160))
    ['b']
    """

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._seen: dict[K, int] = {}

    def seen(self, node: K, now_ms: int) -> None:
        """Record a sign of life."""
        self._seen.pop(node, None)
        self._seen[node] = now_ms

    def remove(self, node: K) -> None:
        """Stop tracking the node."""
        self._seen.pop(node, None)

    def silent(self, now_ms: int, after_ms: int) -> Iterator[tuple[K, int]]:
        """Yield every node that has been silent for longer, and for how many ms; longest first."""
        for node, seen_ms in list(self._seen.items()):
            if now_ms - seen_ms <= after_ms:
                return
            yield node, now_ms - seen_ms

    def overdue(self, now_ms: int) -> Iterator[K]:
        """Remove and yield every node that has been silent for the timeout."""
        while self._seen:
            node, seen_ms = next(iter(self._seen.items()))
            if now_ms < seen_ms + self.timeout_ms:
                return
            del self._seen[node]
            yield node


class Producer(msgspec.Struct):
    """A registered producer.

    Args:
        id: its client id.
        host: the address that it reports.
        secure: whether it is connected over TLS.
        topics: the topics that it publishes, from its latest heartbeat.
        existing_topics: those of its topics that have existed. If one of them is deleted, the
            producer's next heartbeat does not create it again.
        returned: whether it knows brokers from another master, or from an earlier run of this one.
    """

    id: str
    host: str
    secure: bool
    topics: tuple[str, ...] = ()
    existing_topics: set[str] = msgspec.field(default_factory=set[str])
    returned: bool = False


class Producers:
    """The registered producers."""

    def __init__(self, timeout_ms: int) -> None:
        self._producers: dict[str, Producer] = {}
        self._liveness = LivenessTracker[str](timeout_ms)

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def register(self, producer: Producer, now_ms: int) -> None:
        """Add a producer, or replace it if it has registered before."""
        before = self._producers.get(producer.id)
        if before is not None:
            producer.existing_topics |= before.existing_topics
        self._producers[producer.id] = producer
        self._liveness.seen(producer.id, now_ms)

    def seen(self, client_id: str, now_ms: int) -> Producer | None:
        """Record a heartbeat. Returns None if the producer is not registered."""
        producer = self._producers.get(client_id)
        if producer is not None:
            self._liveness.seen(client_id, now_ms)
        return producer

    def known(self, client_id: str) -> bool:
        """Whether the producer is registered."""
        return client_id in self._producers

    def close(self, client_id: str) -> None:
        """Remove a producer that unregisters."""
        self._producers.pop(client_id, None)
        self._liveness.remove(client_id)

    def expire(self, now_ms: int) -> list[str]:
        """Remove the producers that have timed out, and return their ids."""
        overdue = list(self._liveness.overdue(now_ms))
        for client_id in overdue:
            self._producers.pop(client_id, None)
        return overdue


class Hosted(msgspec.Struct, frozen=True, gc=False):
    """A topic as a broker reports to serve it.

    Args:
        partitions: the number of partitions in each store.
        stores: the number of stores.
        publish: the broker accepts messages.
        subscribe: the broker serves messages.
    """

    partitions: int
    stores: int
    publish: bool
    subscribe: bool

    def numbers(self) -> Iterator[int]:
        """The ids of the partitions: store * 10000 + partition."""
        for store in range(self.stores):
            first = store * limits.TOPIC_PARTITIONS_MAX
            yield from range(first, first + self.partitions)


class RunningBroker(msgspec.Struct, kw_only=True):
    """A registered broker.

    Args:
        host: its address.
        secure: whether it serves TLS.
        version: the version that it reports.
        online: its store is open.
        configuration: id and check sum of the configuration that it has applied.
        read_status: 0 normal, 1 stopped by the master, -1 stopped by errors.
        write_status: the same for writing.
        hosted: the topics that it reports, by name.
        since_ms: when it first reported each topic.
    """

    id: int
    host: str
    port: int
    tls_port: int = 8124
    secure: bool = False
    version: str = ""
    online: bool = False
    configuration: tuple[int, int] = (0, 0)
    read_status: int = 0
    write_status: int = 0
    hosted: Mapping[str, Hosted] = msgspec.field(default_factory=dict[str, Hosted])
    since_ms: dict[str, int] = msgspec.field(default_factory=dict[str, int])


class BrokerRegistryTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Periods, in ms, and a limit.

    Args:
        timeout_ms: a broker that is silent for this long is removed.
        subscribe_delay_ms: from a broker's report of a topic until consumers may use it.
        publish_delay_ms: from opening a topic to consumers until producers may use it.
        return_ms: how long groups wait for a broker that has left before they are rebalanced.
        stopped_max: how many brokers can be stopped at a time after disk errors, so that one fault
            does not stop the whole cluster.
    """

    timeout_ms: int = 30_000
    subscribe_delay_ms: int = 0
    publish_delay_ms: int = 0
    return_ms: int = 30_000
    stopped_max: int = 5


class BrokerRegistry:
    """The registered brokers."""

    def __init__(self, catalog: Catalog, timing: BrokerRegistryTiming) -> None:
        self._catalog = catalog
        self._timing = timing
        self._running: dict[int, RunningBroker] = {}
        self._liveness = LivenessTracker[int](timing.timeout_ms)
        self._changes: list[tuple[int, tuple[str, ...]]] = []  # heap of (time, topics)
        self._stopped: dict[int, tuple[bool, bool]] = {}

    def __iter__(self) -> Iterator[RunningBroker]:
        return iter(self._running.values())

    def get(self, broker: int) -> RunningBroker | None:
        """The broker, or None if it is not registered."""
        return self._running.get(broker)

    # -- reports of brokers

    def register(
        self, broker: RunningBroker, hosted: Mapping[str, Hosted] | None, now_ms: int
    ) -> None:
        """Add a broker that has started, or has come back.

        Args:
            hosted: the topics that it reports; None if it has not reported yet.
            now_ms: the time.
        """
        self._running[broker.id] = broker
        self._liveness.seen(broker.id, now_ms)
        if hosted is not None:
            self._host(broker, hosted, now_ms)

    def heartbeat(self, broker: int, *, online: bool, now_ms: int) -> RunningBroker | None:
        """Record a heartbeat. Returns None if the broker is not registered."""
        running = self._running.get(broker)
        if running is None:
            return None
        self._liveness.seen(broker, now_ms)
        if running.online != online:
            running.online = online
            self._announce(running.hosted, now_ms)
        return running

    def report(
        self,
        running: RunningBroker,
        configuration: tuple[int, int],
        hosted: Mapping[str, Hosted] | None,
        now_ms: int,
    ) -> None:
        """Record which configuration a broker has applied, and, if given, its topics."""
        running.configuration = configuration
        if hosted is not None:
            self._host(running, hosted, now_ms)

    def set_condition(
        self, running: RunningBroker, read_status: int, write_status: int, now_ms: int
    ) -> None:
        """Record the state of a broker's disk. After errors it is stopped until `release`."""
        running.read_status = read_status
        running.write_status = write_status
        before = self.stopped(running.id)
        after = (
            before[0] or read_status == PAUSED_BY_ERRORS,
            before[1] or write_status == PAUSED_BY_ERRORS,
        )
        if after == before or (
            running.id not in self._stopped and len(self._stopped) >= self._timing.stopped_max
        ):
            return
        self._stopped[running.id] = after
        self._announce(running.hosted, now_ms)

    def stopped(self, broker: int) -> tuple[bool, bool]:
        """Whether (reading, writing) of a broker was stopped after disk errors."""
        return self._stopped.get(broker, (False, False))

    def release(self, broker: int, now_ms: int) -> bool:
        """Let a stopped broker read and write again. Returns whether it was stopped."""
        running = self._running.get(broker)
        if running is not None:
            self._announce(running.hosted, now_ms)
        return self._stopped.pop(broker, None) is not None

    def close(self, broker: int, now_ms: int) -> bool:
        """Remove a broker that unregisters. Returns whether it was registered."""
        self._liveness.remove(broker)
        running = self._running.pop(broker, None)
        if running is not None:
            self._announce(running.hosted, now_ms + self._timing.return_ms)
        return running is not None

    def expire(self, now_ms: int) -> list[int]:
        """Remove the brokers that have timed out, and return their ids."""
        overdue = list(self._liveness.overdue(now_ms))
        for broker in overdue:
            self.close(broker, now_ms)
        return overdue

    def take_changed_topics(self, now_ms: int) -> set[str]:
        """The topics that have opened, closed or changed since the last call."""
        topics: set[str] = set()
        while self._changes and self._changes[0][0] <= now_ms:
            topics.update(heapq.heappop(self._changes)[1])
        return topics

    # -- the topics that clients may use

    def publishable(self, topic: str, now_ms: int) -> list[tuple[int, Hosted]]:
        """The brokers that accept messages for the topic, ordered by id."""
        delay_ms = self._timing.subscribe_delay_ms + self._timing.publish_delay_ms
        return [
            (running.id, hosted)
            for running, hosted in self._open(topic, now_ms - delay_ms)
            if hosted.publish and self._wants_publish(running.id, topic)
        ]

    def awaits_broker(self, topic: str, now_ms: int) -> bool:
        """Whether no broker accepts messages for the topic yet, though one is configured to."""
        brokers = self._catalog.topics.get(topic, ())
        return any(self._wants_publish(broker, topic) for broker in brokers) and not (
            self.publishable(topic, now_ms)
        )

    def subscribable(self, topic: str, now_ms: int) -> list[tuple[int, Hosted]]:
        """The brokers that serve messages of the topic, ordered by id."""
        return [
            (running.id, hosted)
            for running, hosted in self._open(topic, now_ms - self._timing.subscribe_delay_ms)
            if hosted.subscribe and self._wants_subscribe(running.id, topic)
        ]

    def partitions(self, topics: Iterable[str], now_ms: int) -> list[Partition]:
        """All partitions of these topics that can be read now."""
        return [
            Partition(broker, topic, number)
            for topic in topics
            for broker, hosted in self.subscribable(topic, now_ms)
            for number in hosted.numbers()
        ]

    def is_dormant(self, partition: Partition, now_ms: int) -> bool:
        """Whether a partition cannot be read only because its broker is away."""
        if not self._wants_subscribe(partition.broker, partition.topic):
            return False
        running = self._running.get(partition.broker)
        if running is None or not running.online or partition.topic not in running.hosted:
            return True
        return now_ms < running.since_ms[partition.topic] + self._timing.subscribe_delay_ms

    def _open(self, topic: str, before_ms: int) -> Iterator[tuple[RunningBroker, Hosted]]:
        for broker in sorted(self._catalog.topics.get(topic, ())):
            running = self._running.get(broker)
            if running is None or not running.online:
                continue
            hosted = running.hosted.get(topic)
            if hosted is not None and running.since_ms[topic] <= before_ms:
                yield running, hosted

    def _wants_publish(self, broker: int, topic: str) -> bool:
        record = self._catalog.brokers.get(broker)
        deployment = self._catalog.topics.get(topic, {}).get(broker)
        return (
            record is not None
            and record.publishable
            and deployment is not None
            and deployment.status is TopicStatus.OK
            and deployment.props.accept_publish
            and not self.stopped(broker)[1]
        )

    def _wants_subscribe(self, broker: int, topic: str) -> bool:
        record = self._catalog.brokers.get(broker)
        deployment = self._catalog.topics.get(topic, {}).get(broker)
        return (
            record is not None
            and record.subscribable
            and deployment is not None
            and deployment.status is TopicStatus.OK
            and deployment.props.accept_subscribe
            and not self.stopped(broker)[0]
        )

    def _host(self, running: RunningBroker, hosted: Mapping[str, Hosted], now_ms: int) -> None:
        changed = {
            topic
            for topic in {*running.hosted, *hosted}
            if running.hosted.get(topic) != hosted.get(topic)
        }
        for topic in changed:
            before, after = running.hosted.get(topic), hosted.get(topic)
            if after is None:
                del running.since_ms[topic]
            elif before is None:
                running.since_ms[topic] = now_ms
        running.hosted = hosted
        self._announce(changed, now_ms)

    def _announce(self, topics: Iterable[str], now_ms: int) -> None:
        named = tuple(topic for topic in topics if topic != HISTORY_TOPIC)
        if named:
            heapq.heappush(self._changes, (now_ms, named))
            if self._timing.subscribe_delay_ms:
                heapq.heappush(self._changes, (now_ms + self._timing.subscribe_delay_ms, named))
