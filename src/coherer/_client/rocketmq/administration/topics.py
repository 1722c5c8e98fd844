"""Administration of topics (docs/protocol/rocketmq.md, sections 2.11 and 2.12)."""

from __future__ import annotations

import asyncio
import builtins
from collections import Counter
from collections.abc import Iterable
from typing import Final

from coherer import admin
from coherer._client.engine.arguments import checked
from coherer._client.rocketmq.administration.servers import Part
from coherer._client.rocketmq.routing import MASTER, READ, WRITE, Route
from coherer._record.system_topics import is_internal_topic
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.bodies import (
    GroupList,
    TopicConfig,
    TopicConfigs,
    TopicList,
    TopicRoute,
    TopicStats,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused
from coherer._wire.rocketmq.command import INT32_MAX
from coherer._wire.rocketmq.headers import CreateTopicHeader, TopicHeader
from coherer._wire.rocketmq.names import Queue
from coherer.errors import RefusedError, RequestTimeoutError, UnavailableError, UsageError

POLL_FIRST_MS: Final = 20
POLL_LAST_MS: Final = 500


@checked
class TopicAdmin(Part):
    """The topics of a cluster: `admin.topics`."""

    _INSTEAD = "topics.list"

    async def list(self, *names: str, system: bool = False) -> builtins.list[admin.Topic]:
        """The topics, sorted by name.

        Args:
            names: names of topics; without names, all topics.
            system: include RocketMQ's own topics: retry topics, dead letters and others.
        """
        await self._instance.start()
        wanted = list(names) or await self.names(system=system)
        routes = await asyncio.gather(*(self._route(topic) for topic in sorted(set(wanted))))
        return [_topic(route) for route in routes if route is not None]

    async def names(self, *, system: bool = False) -> builtins.list[str]:
        """The names of the topics, sorted: one request, however many there are.

        Args:
            system: include RocketMQ's own topics: retry topics, dead letters and others.
        """
        await self._instance.start()
        answer = await self._instance.names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        found = set(TopicList.decode(answer.body).topic_list)
        if not system:
            brokers = (await self._servers.cluster()).broker_addr_table
            found -= brokers.keys() | {broker.cluster for broker in brokers.values()}
            found = {topic for topic in found if not is_internal_topic(topic)}
        return sorted(found)

    async def create(
        self,
        name: str,
        partitions: int = 8,
        brokers: Iterable[str] | None = None,
        *,
        exist_ok: bool = False,
        wait_ms: int = 0,
        perm: int = READ | WRITE,
    ) -> None:
        """Create a topic, or change one.

        Args:
            name: letters, digits, `_`, `-`, `%` and `|`.
            partitions: the number of queues on each broker.
            brokers: names of brokers; all masters when None.
            exist_ok: change the topic if it exists.
            wait_ms: how long to wait until the name servers have its route; 0 to not wait.
            perm: 6 for reading and writing, 4 for reading, 2 for writing.

        Raises:
            UsageError: an argument is out of range.
            RefusedError: the name is invalid, or the topic exists.
            UnavailableError: a broker is unknown, or does not answer.
            RequestTimeoutError: the topic is created, but cannot be used yet.
        """
        names.check_topic(name)
        _check_queues(partitions, name)
        await self._instance.start()
        if not exist_ok and await self._route(name) is not None:
            raise refused(ResponseCode.TOPIC_EXIST_ALREADY, "The topic exists already.", topic=name)
        header = CreateTopicHeader(
            name, partitions, partitions, perm, "SINGLE_TAG", names.AUTO_CREATE_TOPIC, 0
        )
        await self._servers.ask_masters(
            RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields(), brokers=brokers
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
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Change a topic. Settings that are None stay unchanged.

        Producers and consumers notice it within half a minute.

        Args:
            name: the topic.
            partitions: the number of queues on each broker. It can only grow: the messages of a
                removed queue could no longer be read.
            writable: whether producers can send to it.
            readable: whether consumers can read it.
            brokers: names of brokers; None for all masters that have the topic.

        Raises:
            UsageError: all settings are None, the number is out of range, or queues would be
                removed.
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not have it, or does not answer.
        """
        if partitions is None and writable is None and readable is None:
            raise UsageError("There is nothing to change.", topic=name)
        if partitions is not None:
            _check_queues(partitions, name)
        await self._instance.start()
        route = await self._instance.routes.look_up(name)
        wanted = sorted(route.brokers) if brokers is None else list(brokers)
        configs = {broker: (await self._configs(broker)).get(name) for broker in wanted}
        headers: dict[str, CreateTopicHeader] = {}
        for broker, config in configs.items():
            if config is None:
                raise UnavailableError(f"Broker {broker} does not have the topic.", topic=name)
            most = max(config.read_queue_nums, config.write_queue_nums)
            if partitions is not None and partitions < most:
                raise UsageError(
                    f"The topic has {most} queues on broker {broker}. Removing some would make "
                    "their messages unreadable.",
                    topic=name,
                    hint=f"Give {most} or more.",
                )
            headers[broker] = CreateTopicHeader(
                name,
                partitions or config.read_queue_nums,
                partitions or config.write_queue_nums,
                _permission(config.perm, writable=writable, readable=readable),
                config.topic_filter_type or "SINGLE_TAG",
                names.AUTO_CREATE_TOPIC,
                config.topic_sys_flag,
                order=config.order,
            )
        for broker, header in headers.items():
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            await self._servers.ask_broker(broker, code, header.fields())

    async def wait_usable(self, name: str, *, timeout_ms: int) -> admin.Topic:
        """Wait until the name servers have the route of a topic.

        Raises:
            RequestTimeoutError: they do not have it in time.
        """
        pause_ms = POLL_FIRST_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    found = await self.list(name)
                    if found and (found[0].writable or found[0].readable):
                        return found[0]
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, POLL_LAST_MS)
        except TimeoutError:
            raise RequestTimeoutError(
                f"The topic cannot be used after {timeout_ms} ms.",
                topic=name,
                hint="Are its brokers up, and registered with the name servers?",
            ) from None

    async def delete(self, name: str) -> None:
        """Delete a topic with its messages from all brokers and name servers.

        A broker that is down keeps it: delete the topic again when the broker is back.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._instance.start()
        route = await self._instance.routes.look_up(name)
        fields = {"topic": name}
        addresses = [address for brokers in route.brokers.values() for address in brokers.values()]
        await self._servers.ask_each(addresses, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        await self._instance.names.ask_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
        self._instance.routes.forget(name)

    async def partitions(self, topic: str) -> builtins.list[admin.Partition]:
        """The queues of a topic and their offsets; these are None if a broker has no master.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not answer.
        """
        await self._instance.start()
        route = await self._instance.routes.look_up(topic)
        masters = [brokers[MASTER] for brokers in route.brokers.values() if MASTER in brokers]
        unknown = [one for one in route.readable if MASTER not in route.brokers.get(one.broker, {})]
        answers = await self._servers.ask_each(
            masters, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}
        )
        found = [
            admin.Partition(
                queue.topic,
                queue.broker,
                queue.id,
                offset.min_offset,
                offset.max_offset,
                newest_ms=offset.last_update_timestamp or None,
                offset_step=1,
            )
            for answer in answers
            for queue, offset in TopicStats.decode(answer.body).offset_table.items()
        ]
        found += [admin.Partition(one.topic, one.broker, one.id) for one in unknown]
        return sorted(found, key=lambda one: one.queue)

    async def writable_queues(self, topic: str) -> builtins.list[Queue]:
        """The queues of a topic that accept messages, sorted.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._instance.start()
        routes = self._instance.routes
        route = routes.known(topic)
        if route is None:
            await routes.look_up(topic)  # `route` would use the template for a missing topic
            route = await routes.route(topic)
        return list(route.writable)

    async def settings(self, topic: str) -> dict[str, admin.TopicSettings]:
        """The settings of a topic, by broker, from a name server.

        It is one request; `configs` asks a broker for the settings of all its topics.

        Raises:
            RefusedError: the topic does not exist.
        """
        await self._instance.start()
        answer = await self._instance.names.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
        )
        return {
            one.broker_name: admin.TopicSettings(
                one.read_queue_nums,
                writable=bool(one.perm & WRITE),
                readable=bool(one.perm & READ),
                write_partitions=one.write_queue_nums,
                flags=one.topic_sys_flag,
            )
            for one in TopicRoute.decode(answer.body).queue_datas
        }

    async def configs(self, broker: str) -> dict[str, admin.TopicSettings]:
        """The settings of all topics of a master, by topic."""
        return {
            name: admin.TopicSettings(
                one.read_queue_nums,
                writable=bool(one.perm & WRITE),
                readable=bool(one.perm & READ),
                write_partitions=one.write_queue_nums,
                flags=one.topic_sys_flag,
                ordered=one.order,
                filter=one.topic_filter_type,
            )
            for name, one in (await self._configs(broker)).items()
        }

    async def _configs(self, broker: str) -> dict[str, TopicConfig]:
        await self._instance.start()
        answer = await self._servers.ask_broker(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        return TopicConfigs.decode(answer.body).topic_config_table

    async def oldest_ms(self, queue: Queue) -> int | None:
        """When the oldest message of a queue was stored, ms since 1970; None if it is empty."""
        await self._instance.start()
        fields = {"topic": queue.topic, "queueId": str(queue.id)}
        answer = await self._servers.ask_broker(
            queue.broker, RequestCode.GET_EARLIEST_MSG_STORETIME, fields
        )
        time_ms = int(answer.fields.get("timestamp", "-1"))
        return time_ms if time_ms > 0 else None

    async def groups(self, topic: str) -> builtins.list[str]:
        """The groups that consume a topic, or have offsets in it.

        A slave answers for a broker without a master, with its copy of the offsets.
        """
        await self._instance.start()
        fields = TopicHeader(topic).fields()
        answers = await self._servers.ask_readable(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields)
        return sorted({name for one in answers for name in GroupList.decode(one.body).group_list})

    async def _route(self, topic: str) -> Route | None:
        try:
            return await self._instance.routes.look_up(topic)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise


def _topic(route: Route) -> admin.Topic:
    return admin.Topic(
        route.topic,
        len(route.readable),
        dict(Counter(queue.broker for queue in route.readable)),
        writable=bool(route.writable),
        readable=bool(route.readable),
    )


def _check_queues(number: int, topic: str) -> None:
    if not 0 < number <= INT32_MAX:  # Java's type of the field
        raise UsageError(f"A topic has 1 to {INT32_MAX} queues, not {number}.", topic=topic)


def _permission(now: int, *, writable: bool | None, readable: bool | None) -> int:
    """Return a topic's permission after a change.

    >>> _permission(6, writable=False, readable=None), _permission(0, writable=True, readable=True)
    (4, 6)
    """
    for bit, wanted in ((WRITE, writable), (READ, readable)):
        if wanted is not None:
            now = now | bit if wanted else now & ~bit
    return now
