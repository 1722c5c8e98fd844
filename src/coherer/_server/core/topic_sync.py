"""Topics made through RocketMQ's door, in the catalog of the node's own TubeMQ master.

The broker's table of topics is one; what TubeMQ's clients find is decided by their master. So what
RocketMQ's clients and operators change in the table is booked in the catalog:

* a new topic of a user, if TubeMQ allows its name (a letter, then letters, digits, `_` and `-`);
* more queues, and whether it may be read and written. TubeMQ's partitions never become fewer: the
  catalog's number then stays, also for the broker, and only RocketMQ's clients have fewer queues;
* a topic that is deleted, with its messages.

The other direction needs nothing: the broker takes the master's word into the same table.

With thousands of topics all of this takes a while. Then several changes are booked together, so
that no more than a tenth of the time goes there; only a topic that is gone is forgotten at once, or
the master would bring it back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from coherer._common.logs import Log
from coherer._rules.common.topics import Topic, TubeTopics
from coherer._rules.tubemq.configuration import CatalogError, Deployment, TopicStatus, valid_topic
from coherer._server.core.core import Core
from coherer._server.tubemq.master.master import Master
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

USER = "rocketmq"
"""Who has changed the catalog, as it keeps it."""
QUICK_S: Final = 0.005
"""What takes no longer is done at once, however often."""
REST_FACTOR: Final = 9
"""After a longer one there is rest for so many times as long."""


class TopicSync:
    """Keeps the catalog as the table is.

    Args:
        master: whose catalog.
        broker_id: the broker whose table it is.
        core: where the table is.
    """

    def __init__(self, master: Master, broker_id: int, core: Core) -> None:
        self._master = master
        self._broker_id = broker_id
        self._topics = TubeTopics(core.topics)
        self._deleted: set[str] = set()
        self._scheduled: asyncio.Handle | None = None
        self._not_before_s = 0.0
        self._news = False
        core.topics.watch(self._soon)
        core.on_removal(self._removed)

    def sync(self) -> None:
        """Book what is not booked yet."""
        topics = {topic.name: topic for topic in self._topics if valid_topic(topic.name)}
        for name in self._deleted - topics.keys():
            self._forget(name)
        self._deleted.clear()
        for topic in topics.values():
            try:
                self._made(topic)
            except CatalogError as error:
                _log.warning("TubeMQ's clients do not see %s as it is: %s", topic.name, error)
        try:
            self._master.state.settle()
        except CohererError as error:
            _log.error("The master's catalog: %s", error)

    def close(self) -> None:
        """Book nothing more: what is not booked yet, the next start books."""
        if self._scheduled is not None:
            self._scheduled.cancel()

    def _soon(self) -> None:
        # The master may be the one who changes the table just now: it has to come to its end.
        self._news = True
        if self._scheduled is None:
            loop = asyncio.get_running_loop()
            rest_s = self._not_before_s - loop.time()
            later = rest_s > 0
            self._scheduled = loop.call_later(rest_s, self._now) if later else self._at_once()

    def _at_once(self) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(self._now)

    def _now(self) -> None:
        loop = asyncio.get_running_loop()
        begin_s, self._news = loop.time(), False
        try:
            self.sync()  # the master changes the table in turn: that is no reason not to rest
        finally:
            took_s = loop.time() - begin_s
            if took_s > QUICK_S:
                self._not_before_s = loop.time() + REST_FACTOR * took_s
            self._scheduled = None
            if self._news:
                self._soon()

    def _made(self, topic: Topic) -> None:
        state, name = self._master.state, topic.name
        record = self._record(name)
        if record is None:
            if topic.tubemq:
                return  # the master is about to forget it
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
        # A topic that is only missing from the table may be the master's own doing.
        self._deleted.add(name)
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._scheduled = self._at_once()

    def _forget(self, name: str) -> None:
        record = self._record(name)
        if record is not None and record.status is TopicStatus.OK:
            state = self._master.state
            state.catalog.remove_topic(name, self._broker_id, state.change(USER))

    def _record(self, name: str) -> Deployment | None:
        return self._master.state.catalog.topics.get(name, {}).get(self._broker_id)
