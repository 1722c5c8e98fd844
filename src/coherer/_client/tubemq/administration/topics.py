"""Administration of topics: the master knows them and their partitions, each broker its offsets."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Collection, Iterable

from coherer import admin, limits
from coherer._client.engine.administration import Part
from coherer._client.engine.arguments import checked
from coherer._client.tubemq.administration import records
from coherer._client.tubemq.administration.calls import (
    EXISTED,
    ILLEGAL_STATUS,
    AdminCalls,
    listed,
    numbers,
)
from coherer._client.tubemq.administration.records import TopicRecord
from coherer._record.system_topics import is_internal_topic
from coherer._wire.tubemq.names import check_topic
from coherer.errors import RefusedError, RequestTimeoutError, UnavailableError, UsageError

_POLL_FIRST_MS, _POLL_LAST_MS = 20, 500
_DIGITS_MAX = 10
"""The longest id of a broker."""


@checked
class TopicAdmin(Part):
    """The topics of a cluster: `admin.topics`."""

    _INSTEAD = "topics.list"

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.server!r})"

    async def list(self, *names: str, system: bool = False) -> builtins.list[admin.Topic]:
        """The topics, sorted by name.

        Args:
            names: names of topics; without names, all topics.
            system: include TubeMQ's own topics, if no names are given.
        """
        found = [record.topic() for record in await self._calls.topics(names)]
        return [one for one in found if names or system or not is_internal_topic(one.name)]

    async def names(self, *, system: bool = False) -> builtins.list[str]:
        """The names of the topics, sorted: one request, however many there are.

        Args:
            system: include TubeMQ's own topics.
        """
        answer = await self._calls.ask(records.DeployedTopics, "admin_query_deployed_topics", {})
        found = {name for record in answer.data for name in record.topic_name}
        return sorted(name for name in found if system or not is_internal_topic(name))

    async def create(
        self,
        name: str,
        partitions: int,
        brokers: Iterable[str | int] | None = None,
        *,
        exist_ok: bool = False,
        wait_ms: int = 0,
    ) -> None:
        """Create a topic.

        Args:
            name: a letter, then letters, digits, `_` and `-`.
            partitions: the number of partitions on each broker.
            brokers: names of brokers; all that are online when None.
            exist_ok: do not raise if a broker already has the topic.
            wait_ms: how long to wait until producers can use it. Coherer's nodes need milliseconds,
                Java's brokers 41 seconds, and up to 90 if another change was made just before.

        Raises:
            UsageError: an argument is out of range, or no topic can have this name.
            RefusedError: TubeMQ does not permit the name, a broker is unknown, or the topic exists
                (402). Also if a broker has still to delete a topic of that name; then nothing was
                created.
            RequestTimeoutError: the topic is created, but cannot be used yet.
        """
        if not 0 < partitions <= limits.TOPIC_PARTITIONS_MAX:
            raise UsageError(
                f"A topic has 1 to {limits.TOPIC_PARTITIONS_MAX} partitions, not {partitions}.",
                topic=name,
            )
        check_topic(name)
        await self._calls.prepare(changes=True)
        ids = _ids(brokers) if brokers is not None else await self._online_brokers()
        if not ids:
            raise UnavailableError(
                "No broker is online.", topic=name, hint="Start one, or name the brokers."
            )
        await self._check_deleted(name, ids)
        parameters = {"topicName": name, "brokerId": numbers(ids)}
        await self._calls.change(
            "admin_add_new_topic_record",
            {**parameters, "numPartitions": str(partitions), "numTopicStores": "1"},
            allowed_codes={EXISTED} if exist_ok else set(),
            topic=name,
        )
        if wait_ms:
            await self.wait_usable(name, timeout_ms=wait_ms)

    async def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        writable: bool | None = None,
        readable: bool | None = None,
        brokers: Iterable[str | int] | None = None,
    ) -> None:
        """Change a topic. Settings that are None stay unchanged.

        Producers and consumers of a Coherer node notice it at once. Java's master brings changes to
        its brokers in rounds of up to 45 seconds, and a change that comes during a round waits for
        the next one.

        Args:
            name: the topic.
            partitions: the number of partitions in each store of a broker. It can only grow: the
                messages of a removed partition could no longer be read.
            writable: whether producers can send to it.
            readable: whether consumers can read it.
            brokers: names of brokers; None for all that have the topic.

        Raises:
            UsageError: a broker's name is not a number, all settings are None, or partitions would
                be removed.
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not have it.
        """
        changes = {
            "numPartitions": None if partitions is None else str(partitions),
            "acceptPublish": None if writable is None else str(writable).lower(),
            "acceptSubscribe": None if readable is None else str(readable).lower(),
        }
        given = {key: text for key, text in changes.items() if text is not None}
        if not given:
            raise UsageError("There is nothing to change.", topic=name)
        await self._calls.prepare(changes=True)
        now = await self._partition_counts(name)
        wanted = sorted(now) if brokers is None else _ids(brokers)
        if missing := set(wanted) - now.keys():
            raise UnavailableError(f"Broker {numbers(missing)} lacks the topic.", topic=name)
        most = max(now[broker] for broker in wanted)
        if partitions is not None and not most <= partitions <= limits.TOPIC_PARTITIONS_MAX:
            raise UsageError(
                f"The topic has {most} partitions in a store. Removing some would make their "
                "messages unreadable.",
                topic=name,
                hint=f"Give {most} to {limits.TOPIC_PARTITIONS_MAX}.",
            )
        await self._calls.change(
            "admin_modify_topic_info",
            {"topicName": name, "brokerId": numbers(wanted), **given},
            topic=name,
        )

    async def wait_usable(self, name: str, *, timeout_ms: int) -> admin.Topic:
        """Wait until producers and consumers can use a topic; returns it.

        Raises:
            RequestTimeoutError: it cannot be used within `timeout_ms`.
        """
        pause_ms = _POLL_FIRST_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    topic = await self._topic(name)
                    if topic is not None and topic.writable and topic.readable:
                        return topic
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, _POLL_LAST_MS)
        except TimeoutError:
            raise RequestTimeoutError(
                f"The topic cannot be used after {timeout_ms} ms.",
                topic=name,
                hint="Are its brokers running? Java's brokers need 41 to 90 s.",
            ) from None

    async def delete(self, name: str) -> None:
        """Delete a topic with its messages from all brokers.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._calls.prepare(changes=True)
        found = await self._calls.ask(TopicRecord, "admin_query_topic_info", {"topicName": name})
        named = (record for record in found.data if record.topic_name == name)
        record = next(named, TopicRecord(name))
        if not record.brokers(0, 1):
            raise self._calls.no_topic(name)
        if alive := record.brokers(0):
            await self._soft_delete(name, alive)
        ids = {"topicName": name, "brokerId": numbers(record.brokers(0, 1))}
        await self._calls.change("admin_remove_topic_info", ids, topic=name)

    async def partitions(self, topic: str) -> builtins.list[admin.Partition]:
        """The partitions of a topic, and their offsets.

        Raises:
            RefusedError: the topic does not exist.
        """
        found = await self.partitions_of([topic])
        if topic not in found:
            raise self._calls.no_topic(topic)
        return found[topic]

    async def partitions_of(
        self, topics: Collection[str]
    ) -> dict[str, builtins.list[admin.Partition]]:
        """The partitions of several topics, with one request to each server.

        Topics that do not exist are left out.
        """
        if not topics:
            return {}
        known, brokers = await asyncio.gather(
            self._calls.topics(topics), self._calls.brokers(web=True)
        )
        offsets = records.ClusterOffsets()
        answers = await asyncio.gather(*(self._calls.ends(broker, topics) for broker in brokers))
        for broker, answer in zip(brokers, answers, strict=True):
            offsets.add(broker.broker_id, answer)
        return {
            one.topic_name: [offsets.partition(key) for key in one.keys]
            for one in known
            if one.topic_name in topics
        }

    async def settings(self, topic: str) -> dict[str, admin.TopicSettings]:
        """The settings of a topic, by broker.

        Raises:
            RefusedError: the topic does not exist.
        """
        found = await self._calls.topics([topic])
        if not found:
            raise self._calls.no_topic(topic)
        return found[0].settings()

    async def groups(self, topic: str) -> builtins.list[str]:
        """The groups that consume a topic, or have offsets in it."""
        subscriptions, brokers = await asyncio.gather(
            self._calls.ask(records.Subscription, "admin_query_sub_info", {"topicName": topic}),
            self._calls.brokers(web=True),
        )
        known = await asyncio.gather(*(self._calls.readers_at(broker, topic) for broker in brokers))
        online = {one.consume_group for one in subscriptions.data if topic in one.topic_set}
        return listed(online.union(*known))

    async def _topic(self, name: str) -> admin.Topic | None:
        return next((topic for topic in await self.list(name) if topic.name == name), None)

    async def _partition_counts(self, name: str) -> dict[int, int]:
        """The number of partitions in each store of the brokers that have a topic."""
        found = await self._calls.ask(TopicRecord, "admin_query_topic_info", {"topicName": name})
        counts = {
            one.broker_id: one.num_partitions
            for record in found.data
            if record.topic_name == name
            for one in record.topic_info
            if one.topic_status_id == 0
        }
        if not counts:
            raise self._calls.no_topic(name)
        return counts

    async def _check_deleted(self, name: str, brokers: Iterable[int]) -> None:
        """Check that no broker has still to delete a topic of this name.

        The master would say that it exists there, and the broker would delete it.
        """
        found = await self._calls.ask(TopicRecord, "admin_query_topic_info", {"topicName": name})
        deleting = {
            one.broker_id
            for record in found.data
            if record.topic_name == name
            for one in record.topic_info
            if one.topic_status_id != 0
        }
        if left := deleting.intersection(brokers):
            raise RefusedError(
                f"Broker {numbers(left)} has still to delete the old topic. Nothing was created.",
                server=self._calls.server,
                topic=name,
                code=EXISTED,
                hint="It does so within seconds if it runs. Try again then, or name the other "
                "brokers.",
            )

    async def _soft_delete(self, name: str, brokers: Iterable[int]) -> None:
        ids = {"topicName": name, "brokerId": numbers(brokers)}
        try:
            await self._calls.change("admin_delete_topic_info", ids, topic=name)
        except RefusedError as error:
            if error.code != ILLEGAL_STATUS:
                raise
            # Java's master requires that a topic accepts no clients before it is deleted.
            closed = {"acceptPublish": "false", "acceptSubscribe": "false"}
            await self._calls.change("admin_modify_topic_info", {**ids, **closed}, topic=name)
            await self._calls.change("admin_delete_topic_info", ids, topic=name)

    async def _online_brokers(self) -> builtins.list[int]:
        return [
            one.broker_id for one in await self._calls.brokers() if one.manage_status == "online"
        ]


def _ids(brokers: Iterable[str | int]) -> list[int]:
    """The ids of brokers, sorted.

    >>> _ids(["3", 1])
    [1, 3]

    Raises:
        UsageError: a name is not a number.
    """
    names = [str(broker) for broker in brokers]
    if wrong := [name for name in names if not name.isdecimal() or len(name) > _DIGITS_MAX]:
        raise UsageError(f"TubeMQ's brokers have numbers; {wrong[0][:40]!r} is not a broker.")
    return sorted(map(int, names))
