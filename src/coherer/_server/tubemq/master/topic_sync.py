"""Keeps the catalog of the node's TubeMQ master in step with the broker's topic table.

The topic table is shared by both protocols, but TubeMQ's clients learn of topics from their master.
So changes that RocketMQ's clients and operators make in the table are copied to the catalog:

* a new topic, if TubeMQ allows its name (a letter, then letters, digits, `_` and `-`);
* a larger number of queues, and the read and write permissions. TubeMQ never removes partitions:
  when queues are removed, the catalog and the broker keep the old number of partitions, and only
  RocketMQ's clients see fewer queues.

Brokers report the deletion of a topic to their master themselves
(`coherer._server.tubemq.broker.master_link`). A topic of the table with the mark `tubemq` comes
from the catalog. If the catalog does not have it, it is being deleted, and is not copied back.

The other direction needs no code here: the broker puts the master's topics into the same table.

With several broker processes (`coherer serve --brokers`), a topic that a client or operator of
RocketMQ creates on one of them is created on all. Only the master's process shares its memory with
the master; `SiblingSync` copies the topics of the others from their registrations at the name
server.

With thousands of topics a sync takes noticeable time. Changes are then batched so that syncing uses
at most a tenth of the loop's time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from coherer._common.logs import Log
from coherer._record.system_topics import HISTORY_TOPIC
from coherer._rules.common.topics import Topic, TopicTable, TubeMqTopics
from coherer._rules.rocketmq.routes import BrokerRegistration, QueueData
from coherer._rules.tubemq.records import (
    CatalogError,
    Deployment,
    TopicStatus,
    valid_topic,
)
from coherer._server.tubemq.master.master import Master
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

USER = "rocketmq"
"""The user name that the catalog records for these changes."""
QUICK_S: Final = 0.005
"""A sync that is faster than this is not rate-limited."""
REST_FACTOR: Final = 9
"""After a slower sync, the next one waits this many times as long as the sync took."""


class CatalogWriter:
    """Writes changes that arrived over RocketMQ into the master's catalog.

    Args:
        siblings: the ids of the brokers that share all topics.
    """

    def __init__(self, master: Master, siblings: Collection[int] = ()) -> None:
        self._master = master
        self._siblings = siblings

    def record(self, name: str, broker: int) -> Deployment | None:
        """The topic on a broker; None if the catalog does not have it there."""
        return self._master.state.catalog.topics.get(name, {}).get(broker)

    def is_leaving(self, name: str) -> bool:
        """Whether a broker has still to delete an old topic of that name."""
        records = self._master.state.catalog.topics.get(name, {}).values()
        return any(record.status >= TopicStatus.REMOVING for record in records)

    def copy(self, topic: Topic, broker: int) -> None:
        """Add a topic of a broker, or change its properties.

        Raises:
            CatalogError: the catalog refuses it.
        """
        state, name = self._master.state, topic.name
        record = self.record(name, broker)
        if record is None:
            others = () if name in state.catalog.topics else self._siblings
            for one in dict.fromkeys((broker, *others)):
                if one in state.catalog.brokers:
                    props = msgspec.structs.replace(
                        state.catalog.broker(one).props,
                        partitions=max(topic.partitions, 1),
                        accept_publish=topic.can_publish,
                        accept_subscribe=topic.can_subscribe,
                    )
                    state.catalog.add_topic(name, one, props, state.change(USER))
        elif record.status is TopicStatus.OK:
            changes = {
                "partitions": max(topic.partitions, record.props.partitions),
                "accept_publish": topic.can_publish,
                "accept_subscribe": topic.can_subscribe,
            }
            if any(getattr(record.props, key) != value for key, value in changes.items()):
                state.catalog.update_topic(name, broker, changes, state.change(USER))

    def commit(self) -> None:
        """Save the catalog; an error is logged, and the master retries."""
        try:
            self._master.state.commit_changes()
        except CohererError as error:
            _log.error("The master's catalog could not be saved: %s", error)

    def try_copy(self, topic: Topic, broker: int) -> None:
        """Call `copy`, and log if the catalog refuses the topic."""
        try:
            self.copy(topic, broker)
        except CatalogError as error:
            _log.warning(
                "Topic %s could not be copied to TubeMQ: %s", topic.name, error, topic=topic.name
            )


class TopicSync:
    """Copies changes of the topic table to the master's catalog.

    Args:
        siblings: the ids of the brokers that share all topics.
    """

    def __init__(
        self, master: Master, broker_id: int, topics: TopicTable, siblings: Collection[int] = ()
    ) -> None:
        self._writer = CatalogWriter(master, siblings)
        self._broker_id = broker_id
        self._topics = TubeMqTopics(topics)
        self._scheduled: asyncio.Handle | None = None
        self._not_before_s = 0.0
        self._pending = self._late = False
        topics.watch(self._schedule)
        master.watch(self._changed)

    def sync(self) -> None:
        """Copy all pending changes to the catalog."""
        self._late = False
        for topic in filter(lambda topic: valid_topic(topic.name), self._topics):
            if topic.tubemq and self._writer.record(topic.name, self._broker_id) is None:
                continue  # the master is about to remove it from the table
            if not topic.tubemq and self._writer.is_leaving(topic.name):
                self._late = True
                continue
            self._writer.try_copy(topic, self._broker_id)
        self._writer.commit()

    def close(self) -> None:
        """Stop syncing; the next start copies pending changes."""
        if self._scheduled is not None:
            self._scheduled.cancel()

    def _changed(self) -> None:
        if self._late:
            self._schedule()

    def _schedule(self) -> None:
        # The master itself may be changing the table right now; let it finish first.
        self._pending = True
        if self._scheduled is None:
            loop = asyncio.get_running_loop()
            wait_s = self._not_before_s - loop.time()
            later = wait_s > 0
            self._scheduled = (
                loop.call_later(wait_s, self._run) if later else loop.call_soon(self._run)
            )

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        begin_s, self._pending = loop.time(), False
        try:
            self.sync()  # the master changes the table in turn, which schedules another sync
        finally:
            took_s = loop.time() - begin_s
            if took_s > QUICK_S:
                self._not_before_s = loop.time() + REST_FACTOR * took_s
            self._scheduled = None
            if self._pending:
                self._schedule()


class SiblingSync:
    """Copies the topics of this node's other broker processes to the master's catalog.

    A registration lists all topics of a broker. Those that are new or different since the previous
    registration are copied. A registration can be older than the catalog: a topic in it that the
    broker has from the catalog is not new.

    A topic that was created again while a broker has still to delete the old one is copied later.

    A broker without topics is new: it gets the topics of the others.

    Args:
        names: the RocketMQ name of each broker process, by id.
        is_internal: returns whether a topic is for RocketMQ only.
    """

    def __init__(
        self, master: Master, names: Mapping[int, str], is_internal: Callable[[str], bool]
    ) -> None:
        self._ids = {name: broker for broker, name in names.items()}
        self._master = master
        self._writer = CatalogWriter(master, names.keys())
        self._is_internal = is_internal
        self._filled: set[int] = set()
        self._known: dict[int, Mapping[str, QueueData]] = {}
        self._late: dict[int, Mapping[str, QueueData]] = {}
        master.watch(self._changed)
        self.fill()

    def _changed(self) -> None:
        self.fill()
        late, self._late = self._late, {}
        for broker, topics in late.items():
            self._take(broker, topics)

    def fill(self) -> None:
        """Add the topics of the others to a broker that has just joined."""
        catalog = self._master.state.catalog
        new = [one for one in self._ids.values() if one in catalog.brokers]
        for broker in new:
            if broker in self._filled:
                continue
            self._filled.add(broker)
            if {found.topic for found in catalog.topics_of(broker)} <= {HISTORY_TOPIC}:
                for name in list(catalog.topic_names()):
                    self._fill(name, broker)
                self._writer.commit()

    def _fill(self, name: str, broker: int) -> None:
        state = self._master.state
        for found in list(state.catalog.topics[name].values()):
            if found.status is TopicStatus.OK and found.broker in self._ids.values():
                state.catalog.add_topic(name, broker, found.props, state.change(USER))
                return

    def registered(self, registration: BrokerRegistration) -> None:
        """Process the registration of a broker."""
        broker, topics = self._ids[registration.broker], registration.topics or {}
        before, late = self._known.get(broker, {}), self._late.pop(broker, {})
        self._known[broker] = topics
        for name in before.keys() - topics.keys():
            if not before[name].managed:  # deleted before the broker had it from the master
                state = self._master.state
                state.catalog.remove_open_topic(name, broker, state.change(USER))
        self._take(
            broker,
            {
                name: queues
                for name, queues in topics.items()
                if (before.get(name) != queues or name in late)
                and valid_topic(name)
                and name not in self._ids
                and not self._is_internal(name)
            },
        )

    def _take(self, broker: int, topics: Mapping[str, QueueData]) -> None:
        late: dict[str, QueueData] = {}
        for name, queues in topics.items():
            if queues.managed and self._writer.record(name, broker) is None:
                continue
            if not queues.managed and self._writer.is_leaving(name):
                late[name] = queues
                continue
            topic = Topic(
                name=name,
                read_queues=queues.read_queues,
                write_queues=queues.write_queues,
                perm=queues.perm,
            )
            self._writer.try_copy(topic, broker)
        if late:
            self._late[broker] = late
        self._writer.commit()
