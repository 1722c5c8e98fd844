"""The brokers that a master hears from, and which topics they open to clients.

A topic is open on a broker when the administrator wants it (the catalog), the broker has said that
it has it, the broker is online, and neither has stopped reading or writing. What the broker has
said counts, not what it was told: so nobody is sent to a partition that is not there yet.

Different from Java's master:

* One delay per topic (`BrokerRegistryTiming`, zero by default) takes the place of the state machine that
  takes a whole broker through 30 s and 5 s after every change.
* A broker that goes away has `return_ms` to come back before groups are balanced without it; and a
  broker that started anew makes everybody take its partitions again at once, where Java's clients
  only learn of it with their own errors.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from coherer import limits
from coherer._rules.tubemq.assignment import Partition
from coherer._rules.tubemq.catalog import Catalog
from coherer._rules.tubemq.membership import LivenessTracker
from coherer._rules.tubemq.records import HISTORY_TOPIC, TopicStatus

PAUSED_BY_ERRORS: Final = -1
"""Status report of a broker that has stopped reading or writing after errors of its disk."""


class Hosted(msgspec.Struct, frozen=True, gc=False):
    """What a broker says about a topic.

    Args:
        partitions: partitions in each store.
        stores: stores.
        publish: it takes messages for it.
        subscribe: it gives messages of it.
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
        id: its id.
        host: its address.
        port: its port.
        tls_port: its port for TLS.
        secure: whether it serves TLS.
        version: what it says about itself.
        online: its store is open.
        configuration: id and check sum of the configuration that it holds.
        read_status: 0 normal, 1 stopped by us, -1 stopped by errors.
        write_status: the same.
        hosted: what it says about its topics.
        since_ms: since when it says so of each.
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
        timeout_ms: a broker that was not heard of for so long is away.
        subscribe_delay_ms: between a broker's word that it has a topic and telling consumers.
        publish_delay_ms: between telling consumers and telling producers.
        return_ms: how long groups wait for a broker that is away before they are balanced anew.
        stopped_max: how many brokers are stopped at a time after errors of their disks, so that no
            mistake stops a cluster.
    """

    timeout_ms: int = 30_000
    subscribe_delay_ms: int = 0
    publish_delay_ms: int = 0
    return_ms: int = 30_000
    stopped_max: int = 5


class BrokerRegistry:
    """All brokers that are there."""

    def __init__(self, catalog: Catalog, timing: BrokerRegistryTiming) -> None:
        self._catalog = catalog
        self._timing = timing
        self._running: dict[int, RunningBroker] = {}
        self._attendance = LivenessTracker[int](timing.timeout_ms)
        self._news: list[tuple[int, tuple[str, ...]]] = []
        self._stopped: dict[int, tuple[bool, bool]] = {}

    def __iter__(self) -> Iterator[RunningBroker]:
        return iter(self._running.values())

    def get(self, broker: int) -> RunningBroker | None:
        """The broker, if it is there."""
        return self._running.get(broker)

    # -- what brokers say

    def register(
        self, broker: RunningBroker, hosted: Mapping[str, Hosted] | None, now_ms: int
    ) -> None:
        """Books a broker that has started, or has come back.

        Args:
            broker: the broker.
            hosted: what it says about its topics; None: nothing yet.
            now_ms: the time.
        """
        self._running[broker.id] = broker
        self._attendance.seen(broker.id, now_ms)
        if hosted is not None:
            self._host(broker, hosted, now_ms)

    def heartbeat(self, broker: int, *, online: bool, now_ms: int) -> RunningBroker | None:
        """Books a heartbeat; None when the broker is not registered."""
        running = self._running.get(broker)
        if running is None:
            return None
        self._attendance.seen(broker, now_ms)
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
        """A broker says which configuration it holds, and perhaps what topics that gives it."""
        running.configuration = configuration
        if hosted is not None:
            self._host(running, hosted, now_ms)

    def set_condition(
        self, running: RunningBroker, read_status: int, write_status: int, now_ms: int
    ) -> None:
        """A broker says how its disk is; after errors it is stopped until it is released."""
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
        """Whether a broker was stopped from (reading, writing) after errors of its disk."""
        return self._stopped.get(broker, (False, False))

    def release(self, broker: int, now_ms: int) -> bool:
        """Lets a broker that was stopped work again; False when it was not stopped."""
        running = self._running.get(broker)
        if running is not None:
            self._announce(running.hosted, now_ms)
        return self._stopped.pop(broker, None) is not None

    def close(self, broker: int, now_ms: int) -> bool:
        """A broker says goodbye; False when it was not there."""
        self._attendance.gone(broker)
        running = self._running.pop(broker, None)
        if running is not None:
            self._announce(running.hosted, now_ms + self._timing.return_ms)
        return running is not None

    def expire(self, now_ms: int) -> list[int]:
        """Removes brokers that were not heard of in time, and names them."""
        overdue = list(self._attendance.overdue(now_ms))
        for broker in overdue:
            self.close(broker, now_ms)
        return overdue

    def news(self, now_ms: int) -> set[str]:
        """The topics that have opened, closed or changed since the last call."""
        topics: set[str] = set()
        while self._news and self._news[0][0] <= now_ms:
            topics.update(heapq.heappop(self._news)[1])
        return topics

    # -- what clients may use

    def publishable(self, topic: str, now_ms: int) -> list[tuple[int, Hosted]]:
        """Where producers may send: (broker id, what it has), by id."""
        delay_ms = self._timing.subscribe_delay_ms + self._timing.publish_delay_ms
        return [
            (running.id, hosted)
            for running, hosted in self._open(topic, now_ms - delay_ms)
            if hosted.publish and self._wants_publish(running, topic)
        ]

    def subscribable(self, topic: str, now_ms: int) -> list[tuple[int, Hosted]]:
        """Where consumers may read: (broker id, what it has), by id."""
        return [
            (running.id, hosted)
            for running, hosted in self._open(topic, now_ms - self._timing.subscribe_delay_ms)
            if hosted.subscribe and self._wants_subscribe(running.id, topic)
        ]

    def partitions(self, topics: Iterable[str], now_ms: int) -> list[Partition]:
        """Every partition of these topics that can be read now."""
        return [
            Partition(broker, topic, number)
            for topic in topics
            for broker, hosted in self.subscribable(topic, now_ms)
            for number in hosted.numbers()
        ]

    def is_dormant(self, partition: Partition, now_ms: int) -> bool:
        """Whether a partition should be readable, and its broker only is not there to serve it."""
        if not self._wants_subscribe(partition.broker, partition.topic):
            return False
        running = self._running.get(partition.broker)
        if running is None or not running.online or partition.topic not in running.hosted:
            return True
        return now_ms < running.since_ms[partition.topic] + self._timing.subscribe_delay_ms

    # -- inside

    def _open(self, topic: str, before_ms: int) -> Iterator[tuple[RunningBroker, Hosted]]:
        for broker in sorted(self._catalog.topics.get(topic, ())):
            running = self._running.get(broker)
            if running is None or not running.online:
                continue
            hosted = running.hosted.get(topic)
            if hosted is not None and running.since_ms[topic] <= before_ms:
                yield running, hosted

    def _wants_publish(self, running: RunningBroker, topic: str) -> bool:
        record = self._catalog.brokers.get(running.id)
        deployment = self._catalog.topics.get(topic, {}).get(running.id)
        return (
            record is not None
            and record.publishable
            and deployment is not None
            and deployment.status is TopicStatus.OK
            and deployment.props.accept_publish
            and not self.stopped(running.id)[1]
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
            heapq.heappush(self._news, (now_ms, named))
            if self._timing.subscribe_delay_ms:
                heapq.heappush(self._news, (now_ms + self._timing.subscribe_delay_ms, named))
