"""Topics, as an administrator sees them (2.11, 2.12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from coherer._client.rocketmq.admin_records import PartitionState, TopicState
from coherer._client.rocketmq.admin_servers import Servers
from coherer._client.rocketmq.routing import MASTER, READ, WRITE, Route
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.bodies import TopicList, TopicStats
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode, refused
from coherer._wire.rocketmq.headers import CreateTopicHeader
from coherer.errors import RefusedError, RequestTimeoutError, UsageError

POLL_FIRST_MS: Final = 20
POLL_LAST_MS: Final = 500


class Topics(Servers):
    """What `Admin` does about topics."""

    async def topics(self, *names_wanted: str, system: bool = False) -> list[TopicState]:
        """The topics in order of their names; only those named, if any are.

        Args:
            names_wanted: names; all topics when there are none.
            system: with all topics, also RocketMQ's own: retry topics, dead letters and others.
        """
        await self._instance.start()
        wanted = list(names_wanted)
        if not wanted:
            answer = await self._instance.names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            brokers = await self.brokers(runtime=False)
            own = {broker.name for broker in brokers} | {broker.cluster for broker in brokers}
            wanted = [
                topic
                for topic in TopicList.decode(answer.body).topic_list
                if system or not (_of_the_system(topic) or topic in own)
            ]
        routes = await asyncio.gather(*(self._route(topic) for topic in sorted(set(wanted))))
        return [_topic_state(route) for route in routes if route is not None]

    async def create_topic(
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
            partitions: how many queues on each broker.
            brokers: names of brokers; all masters when None.
            exist_ok: it is no error that it is there already; then it gets as many queues.
            wait_ms: wait so long until the name servers tell of it.
            perm: 6 for reading and writing, 4 for reading, 2 for writing.

        Raises:
            UsageError: the arguments cannot be right.
            RefusedError: the name is refused, or the topic is there.
            UnavailableError: a broker is unknown, or does not answer.
            RequestTimeoutError: it is created, but nobody can use it yet.
        """
        names.check_topic(name)
        if partitions < 1:
            raise UsageError(f"A topic has one queue at least, not {partitions}.", topic=name)
        await self._instance.start()
        if not exist_ok and await self._route(name) is not None:
            raise refused(ResponseCode.TOPIC_EXIST_ALREADY, "The topic is there.", topic=name)
        header = CreateTopicHeader(
            name, partitions, partitions, perm, "SINGLE_TAG", names.AUTO_CREATE_TOPIC, 0
        )
        await self._ask_masters(
            RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields(), brokers=brokers
        )
        if wait_ms:
            await self.wait_usable(name, timeout_ms=wait_ms)

    async def wait_usable(self, name: str, *, timeout_ms: int) -> TopicState:
        """Wait until the name servers tell of a topic; what it is then.

        Raises:
            RequestTimeoutError: not within `timeout_ms`.
        """
        pause_ms = POLL_FIRST_MS
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    found = await self.topics(name)
                    if found and (found[0].writable or found[0].readable):
                        return found[0]
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, POLL_LAST_MS)
        except TimeoutError:
            raise RequestTimeoutError(
                f"The topic cannot be used after {timeout_ms} ms.", topic=name
            ) from None

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages from all brokers and name servers.

        Raises:
            RefusedError: there is no such topic.
        """
        await self._instance.start()
        route = await self._instance.routes.look_up(name)
        fields = {"topic": name}
        addresses = [address for brokers in route.brokers.values() for address in brokers.values()]
        await self._ask_each(addresses, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        await self._instance.names.ask_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)
        self._instance.routes.forget(name)

    async def partitions(self, topic: str) -> list[PartitionState]:
        """The queues of a topic and what they hold.

        Raises:
            RefusedError: there is no such topic.
        """
        await self._instance.start()
        route = await self._instance.routes.look_up(topic)
        masters = [brokers[MASTER] for brokers in route.brokers.values() if MASTER in brokers]
        answers = await self._ask_each(masters, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        found = [
            PartitionState(
                queue.topic,
                queue.broker,
                queue.id,
                offset.min_offset,
                offset.max_offset,
                last_ms=offset.last_update_timestamp,
            )
            for answer in answers
            for queue, offset in TopicStats.decode(answer.body).offset_table.items()
        ]
        return sorted(found, key=lambda state: state.queue)

    # -- inside

    async def _route(self, topic: str) -> Route | None:
        try:
            return await self._instance.routes.look_up(topic)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            raise


def _topic_state(route: Route) -> TopicState:
    counts: dict[str, int] = {}
    for queue in route.readable:
        counts[queue.broker] = counts.get(queue.broker, 0) + 1
    return TopicState(
        route.topic,
        len(route.readable),
        counts,
        writable=bool(route.writable),
        readable=bool(route.readable),
    )


def _of_the_system(topic: str) -> bool:
    return (
        names.is_system_topic(topic)
        or topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
        or topic.endswith(names.REPLY_TOPIC_SUFFIX)
    )
