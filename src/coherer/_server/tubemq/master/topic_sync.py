"""Keeps the catalog of the node's TubeMQ master in step with the broker's topic table.

The topic table is shared by both protocols, but TubeMQ's clients learn of topics from their master.
So changes that RocketMQ's clients and operators make in the table are copied to the catalog:

* a new topic, if TubeMQ allows its name (a letter, then letters, digits, `_` and `-`);
* a larger number of queues, and the read and write permissions. TubeMQ never removes partitions:
  when queues are removed, the catalog and the broker keep the old number of partitions, and only
  RocketMQ's clients see fewer queues;
* the deletion of a topic and its messages.

The other direction needs no code here: the broker puts the master's topics into the same table.

With several broker processes (`coherer serve --brokers`), a topic that a client or operator of
RocketMQ creates on one of them is created on all. Only the master's process shares its memory with
the master; `SiblingSync` copies the topics of the others from their registrations at the name
server.

With thousands of topics a sync takes noticeable time. Changes are then batched so that syncing uses
at most a tenth of the loop's time. Only deletions are copied at once, or the master would create
the topic again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from coherer._common.logs import Log
from coherer._record.system_topics import HISTORY_TOPIC
from coherer._rules.common.topics import Topic, TubeMqTopics
from coherer._rules.rocketmq.routes import BrokerRegistration, QueueData
from coherer._rules.tubemq.records import (
    CatalogError,
    Deployment,
    TopicStatus,
    valid_topic,
)
from coherer._server.core.core import Core
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

    def copy(self, topic: Topic, broker: int) -> None:
        """Add a topic of a broker, or change its properties.

        Raises:
            CatalogError: the catalog refuses it.
        """
        state, name = self._master.state, topic.name
        record = self.record(name, broker)
        if record is None:
            others = () if name in state.catalog.topics else self._siblings
            for one in {broker, *others}:
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

    def forget(self, name: str, broker: int) -> None:
        """Order a broker to delete a topic, if the catalog has it there."""
        record = self.record(name, broker)
        if record is not None and record.status is TopicStatus.OK:
            state = self._master.state
            state.catalog.remove_topic(name, broker, state.change(USER))

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
        self, master: Master, broker_id: int, core: Core, siblings: Collection[int] = ()
    ) -> None:
        self._writer = CatalogWriter(master, siblings)
        self._broker_id = broker_id
        self._topics = TubeMqTopics(core.topics)
        self._deleted: set[str] = set()
        self._scheduled: asyncio.Handle | None = None
        self._not_before_s = 0.0
        self._pending = False
        core.topics.watch(self._schedule)
        core.on_removal(self._removed)

    def sync(self) -> None:
        """Copy all pending changes to the catalog."""
        topics = {topic.name: topic for topic in self._topics if valid_topic(topic.name)}
        for name in self._deleted:
            # If it is in the table again and marked as the master's, an answer that the master
            # sent before the deletion has put it back. A new topic of that name has no mark yet.
            if name not in topics or topics[name].tubemq:
                self._writer.forget(name, self._broker_id)
        self._deleted.clear()
        for topic in topics.values():
            if topic.tubemq and self._writer.record(topic.name, self._broker_id) is None:
                continue  # the master is about to remove it from the table
            self._writer.try_copy(topic, self._broker_id)
        self._writer.commit()

    def close(self) -> None:
        """Stop syncing; the next start copies pending changes."""
        if self._scheduled is not None:
            self._scheduled.cancel()

    def _schedule(self) -> None:
        # The master itself may be changing the table right now; let it finish first.
        self._pending = True
        if self._scheduled is None:
            loop = asyncio.get_running_loop()
            wait_s = self._not_before_s - loop.time()
            later = wait_s > 0
            self._scheduled = loop.call_later(wait_s, self._run) if later else self._call_soon()

    def _call_soon(self) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(self._run)

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

    def _removed(self, name: str) -> None:
        # The deletion is recorded, because the master itself also removes topics from the table. A
        # topic that is still there loses its messages only.
        if self._topics.get(name) is None:
            self._deleted.add(name)
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._scheduled = self._call_soon()


class SiblingSync:
    """Copies the topics of this node's other broker processes to the master's catalog.

    A registration lists all topics of a broker. The differences from the previous registration are
    copied. The catalog already contains the changes that the master itself has made.

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
        master.watch(self.fill)
        self.fill()

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
        before = self._known.get(broker, {})
        self._known[broker] = topics
        for name in before.keys() - topics.keys():
            self._writer.forget(name, broker)
        for name, queues in topics.items():
            if before.get(name) == queues or not valid_topic(name):
                continue
            if name in self._ids or self._is_internal(name):
                continue
            topic = Topic(
                name=name,
                read_queues=queues.read_queues,
                write_queues=queues.write_queues,
                perm=queues.perm,
            )
            self._writer.try_copy(topic, broker)
        self._writer.commit()
