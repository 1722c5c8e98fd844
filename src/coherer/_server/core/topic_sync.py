"""Keeps the catalog of the node's TubeMQ master in step with the broker's topic table.

The topic table is shared by both protocols, but TubeMQ's clients learn of topics from their master.
So changes that RocketMQ's clients and operators make in the table are copied to the catalog:

* a new topic, if TubeMQ allows its name (a letter, then letters, digits, `_` and `-`);
* a larger number of queues, and the read and write permissions. TubeMQ never removes partitions:
  when queues are removed, the catalog and the broker keep the old number of partitions, and only
  RocketMQ's clients see fewer queues;
* the deletion of a topic and its messages.

The other direction needs no code here: the broker puts the master's topics into the same table.

With thousands of topics a sync takes noticeable time. Changes are then batched so that syncing uses
at most a tenth of the loop's time. Only deletions are copied at once, or the master would create
the topic again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from coherer._common.logs import Log
from coherer._rules.common.topics import Topic, TubeMqTopics
from coherer._rules.tubemq.records import CatalogError, Deployment, TopicStatus, valid_topic
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


class TopicSync:
    """Copies changes of the topic table to the master's catalog.

    Args:
        master: the owner of the catalog.
        broker_id: the broker that owns the table.
        core: holds the topic table.
    """

    def __init__(self, master: Master, broker_id: int, core: Core) -> None:
        self._master = master
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
        for name in self._deleted - topics.keys():
            self._forget(name)
        self._deleted.clear()
        for topic in topics.values():
            try:
                self._copy(topic)
            except CatalogError as error:
                _log.warning("Topic %s could not be copied to TubeMQ: %s", topic.name, error)
        try:
            self._master.state.commit_changes()
        except CohererError as error:
            _log.error("The master's catalog could not be saved: %s", error)

    def close(self) -> None:
        """Stop syncing; the next start copies what is still pending."""
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

    def _copy(self, topic: Topic) -> None:
        state, name = self._master.state, topic.name
        record = self._record(name)
        if record is None:
            if topic.tubemq:
                return  # the master is about to remove it from the table
            props = msgspec.structs.replace(
                state.catalog.broker(self._broker_id).props,
                partitions=max(topic.partitions, 1),
                accept_publish=topic.can_publish,
                accept_subscribe=topic.can_subscribe,
            )
            state.catalog.add_topic(name, self._broker_id, props, state.change(USER))
        elif record.status is TopicStatus.OK:
            changes = {
                "partitions": max(topic.partitions, record.props.partitions),
                "accept_publish": topic.can_publish,
                "accept_subscribe": topic.can_subscribe,
            }
            if any(getattr(record.props, key) != value for key, value in changes.items()):
                state.catalog.update_topic(name, self._broker_id, changes, state.change(USER))

    def _removed(self, name: str) -> None:
        # The deletion is recorded, because the master itself also removes topics from the table.
        self._deleted.add(name)
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._scheduled = self._call_soon()

    def _forget(self, name: str) -> None:
        record = self._record(name)
        if record is not None and record.status is TopicStatus.OK:
            state = self._master.state
            state.catalog.remove_topic(name, self._broker_id, state.change(USER))

    def _record(self, name: str) -> Deployment | None:
        return self._master.state.catalog.topics.get(name, {}).get(self._broker_id)
