"""The readable partitions of topics and their offsets, without disturbing a group.

`TopicLookup` asks the master as a consumer that selects its partitions itself (methods 20 and 22),
because such a consumer gets all partitions of a topic. Producers do not get those of read-only
brokers. The registration lasts for one request, in a group of its own.

A broker reports the offsets of a partition only to the member that has it. So `TopicCatalog`
registers the partition for a moment, in a group of its own (`coherer_reader_…`), and unregisters it
without having read or acknowledged anything. It gets the credentials for brokers as a producer that
never sends, and from every look-up.

Each of these groups has one member, whose id never changes. If a broker has not learned that the
member gave a partition up, because a request or an answer was lost, it accepts the next
registration as a repeated one. It would answer 410 to another member, until the lease has expired.

A master may refuse the look-up: it is older than method 20, or only certain groups may consume the
topic. Then the partitions that it lists for producers are used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import msgspec

from coherer._client.engine.present import PresentOffsets, present_offsets
from coherer._client.tubemq.broker_rpc import BrokerRpc, StartPosition
from coherer._client.tubemq.cluster import UNDEFINED, Cluster, Credentials, client_id, retry
from coherer._client.tubemq.publisher import FINAL_CODES, Publisher
from coherer._client.tubemq.routing import partition_ids
from coherer._common import machine
from coherer._common.logs import Log
from coherer._record.system_topics import READER_GROUP_PREFIX
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BrokerInfo, Partition, TopicMeta, check_topic
from coherer.errors import CohererError, RefusedError, UnavailableError

_log = Log(logging.getLogger(__name__))


class ReadableParts(msgspec.Struct, frozen=True):
    """The readable partitions of a topic.

    Args:
        partitions: the readable partitions, sorted by broker and number.
        unreadable: brokers with partitions that cannot be read now: they are down, or do not accept
            consumers.
    """

    partitions: list[Partition]
    unreadable: list[BrokerInfo]


NOTHING: Final = ReadableParts([], [])


class TopicLookup:
    """Asks the master for the readable partitions of a topic.

    Args:
        group: a group without other members.
        client_id: the id of its only member.
        host: the client's address.
        credentials: for the master; those for brokers are renewed.
    """

    def __init__(
        self, cluster: Cluster, group: str, client_id: str, host: str, credentials: Credentials
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._client_id = client_id
        self._host = host
        self._credentials = credentials

    async def look_up(self, topic: str) -> ReadableParts:
        """Register, look up the topic, and unregister.

        Raises:
            RefusedError: the topic does not exist (431), or for another reason.
            UnavailableError: no master could be reached.
        """
        brokers = await self._register(topic)
        try:
            texts = await self._partitions()
        finally:
            await self._leave()
        return _look_up(topic, texts, brokers)

    async def _register(self, topic: str) -> dict[int, BrokerInfo]:
        check_topic(topic)
        request = pb.RegisterRequestC2MV2(
            clientId=self._client_id,
            groupName=self._group,
            hostName=self._host,
            sourceCount=UNDEFINED,
            nodeId=UNDEFINED,
            topicList=[topic],
            subRepInfo=pb.ClientSubRepInfo(brokerConfigId=UNDEFINED, topicMetaInfoId=UNDEFINED),
            opsTaskInfo=pb.OpsTaskInfo(),
            authInfo=self._credentials.for_master(),
        )
        masters = self._cluster.masters
        answer = await masters.ask(methods.CONSUMER_REGISTER_V2, request, pb.RegisterResponseM2CV2)
        self._check(answer.errCode, answer.errMsg, topic)
        if answer.HasField("authorizedInfo"):
            # Not the other token, which is valid only for this client id.
            self._credentials.visit_token = answer.authorizedInfo.visitAuthorizedToken
        secure = self._cluster.secure
        found = (BrokerInfo.parse(text, tls=secure) for text in answer.brokerConfigList)
        return {broker.id: broker for broker in found}

    async def _partitions(self) -> list[str]:
        request = pb.GetPartMetaRequestC2M(
            clientId=self._client_id,
            groupName=self._group,
            brokerConfigId=UNDEFINED,
            topicMetaInfoId=UNDEFINED,
            authInfo=self._credentials.for_master(),
        )
        masters = self._cluster.masters
        answer = await masters.ask(methods.GET_PARTITION_META, request, pb.GetPartMetaResponseM2C)
        self._check(answer.errCode, answer.errMsg, None)
        return list(answer.topicMetaInfoList)

    async def _leave(self) -> None:
        request = pb.CloseRequestC2M(
            clientId=self._client_id, groupName=self._group, authInfo=self._credentials.for_master()
        )
        try:
            await self._cluster.masters.ask(methods.CONSUMER_CLOSE, request, pb.CloseResponseM2C)
        except CohererError as error:
            _log.info("Unregistering %s failed: %s", self._client_id, error)

    def _check(self, code: int, text: str, topic: str | None) -> None:
        if code != ResultCode.SUCCESS:
            raise codes.refused(code, text, server=self._cluster.masters.server, topic=topic)


def _look_up(topic: str, texts: list[str], brokers: dict[int, BrokerInfo]) -> ReadableParts:
    partitions: list[Partition] = []
    unreadable: list[BrokerInfo] = []
    for meta in map(TopicMeta.parse, texts):
        if meta.topic != topic:
            continue
        for broker_id, (stores, count, open_) in sorted(meta.brokers.items()):
            broker = brokers.get(broker_id)
            if broker is None:
                continue
            if open_:
                partitions += [
                    Partition(broker, topic, number) for number in partition_ids(count, stores)
                ]
            else:
                unreadable.append(broker)
    return ReadableParts(partitions, unreadable)


T = TypeVar("T")


CREDENTIALS_AGE_MS: Final = 60_000
"""Credentials for brokers change every few minutes; older ones are renewed."""

LOOKUP_CACHE_MS: Final = 1_000
"""How long `offsets` uses the same list of partitions: a stream that waits for messages may call it
often."""

WITH_MEMORY: Final = 301
ON_DISK: Final = 1
"""Read priorities (section 8.5 of docs/protocol/tubemq.md). Readers send theirs: with a priority of
the cluster such as 101, Java's broker reports ends that it does not deliver yet."""

_FINAL: Final = FINAL_CODES | {ResultCode.TOPIC_NOT_DEPLOYED}

_LOOKUP_REFUSED: Final = frozenset(
    {None, ResultCode.CONSUME_GROUP_FORBIDDEN, ResultCode.CONSUME_CONTENT_FORBIDDEN}
)
"""After these refusals of a look-up, the list for producers is used. An old master answers without
a code."""


class TopicCatalog:
    """The partitions of topics, and their offsets."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._publisher = Publisher(cluster)
        self._starting = asyncio.Lock()
        self._name = f"{READER_GROUP_PREFIX}{machine.secret.randbytes(6).hex()}"
        self._member = ""
        self._slots: set[int] = set()
        self._cached: dict[str, tuple[float, ReadableParts]] = {}  # when, by the loop's clock

    def check_client(self) -> None:
        """Check that the client can be used here and now; see `ConnectionPool.check`."""
        self._cluster.pool.check()

    async def partitions(self, topic: str) -> list[Partition]:
        """The readable partitions of a topic, sorted by broker and number.

        Raises:
            UsageError: no topic can have this name.
            RefusedError: no partition can be read.
            UnavailableError: no master could be reached.
        """
        return (await self._retry(lambda: self._parts(topic, some=True))).partitions

    async def unreadable_brokers(self, topic: str) -> list[BrokerInfo]:
        """The brokers with partitions of a topic that cannot be read now.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: no master could be reached.
        """
        return (await self._look_up(topic)).unreadable

    async def offsets(self, topic: str) -> dict[Partition, tuple[int, int]]:
        """The oldest offset and one after the newest, by partition.

        Raises:
            RefusedError: the topic does not exist, or a broker refused.
            UnavailableError: a server could not be reached.
        """

        async def attempt() -> dict[Partition, tuple[int, int]]:
            return (await self._ask_for_offsets(topic)).whole()

        return await self._retry(attempt)

    async def present_offsets(self, topic: str) -> PresentOffsets[Partition]:
        """The same of the brokers that answer; without waiting for one if all are away.

        Raises:
            RefusedError: the topic does not exist, or a broker refused.
            UnavailableError: no master could be reached.
        """
        return await self._retry(lambda: self._ask_for_offsets(topic))

    async def _ask_for_offsets(self, topic: str) -> PresentOffsets[Partition]:
        parts = await self._recent_parts(topic)
        if not parts.partitions:
            return PresentOffsets(
                {}, {str(one.id): _closed(one, topic) for one in parts.unreadable}
            )
        is_whole = False
        try:
            present = present_offsets(parts.partitions, await self._offset_ranges(parts.partitions))
            is_whole = not present.away
        finally:
            if not is_whole:
                self._cached.pop(topic, None)
        return present

    async def look(self, partition: Partition, since_ms: int | None = None) -> StartPosition:
        """Return the first offset of a partition and the offset after its last, without reading.

        Args:
            since_ms: a time to search for; only Coherer's broker supports it.

        Raises:
            RefusedError: the broker refused.
            UnavailableError: it could not be reached.
        """
        await self.ready()
        slot = self.reserve()
        try:
            return await _look(self.rpc(slot), partition, since_ms)
        finally:
            self.release(slot)

    async def ready(self) -> None:
        """Register with the master, and get current credentials for brokers.

        Raises:
            UnavailableError: no master could be reached.
            RefusedError: the master refused.
        """
        publisher = await self._registered()
        if publisher.silent_ms > CREDENTIALS_AGE_MS:
            await publisher.heartbeat()

    def reserve(self) -> int:
        """A number that no other reader uses; low numbers are reused."""
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        self._slots.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """The reader with this number is closed."""
        self._slots.discard(slot)

    def rpc(self, slot: int) -> BrokerRpc:
        """The calls to brokers for the reader with this number."""
        group, member = self._names(slot)
        rpc = BrokerRpc(self._cluster, member, group, self._publisher.credentials, {})
        rpc.priority = ON_DISK if self._cluster.options.on_disk else WITH_MEMORY
        return rpc

    async def close(self) -> None:
        """Unregister."""
        await self._publisher.stop()

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        timeout_ms = self._cluster.options.timeout_ms
        masters = self._cluster.masters
        return await retry(attempt, timeout_ms=timeout_ms, final=_FINAL, masters=masters)

    async def _recent_parts(self, topic: str) -> ReadableParts:
        """The readable partitions; the list is at most `LOOKUP_CACHE_MS` old."""
        now = asyncio.get_running_loop().time()
        when, parts = self._cached.get(topic, (now, NOTHING))
        if not parts.partitions or (now - when) * 1000 >= LOOKUP_CACHE_MS:
            self._cached = {
                name: kept
                for name, kept in self._cached.items()
                if (now - kept[0]) * 1000 < LOOKUP_CACHE_MS
            }
            parts = await self._parts(topic)
            self._cached[topic] = now, parts
        return parts

    async def _parts(self, topic: str, *, some: bool = False) -> ReadableParts:
        """The partitions of a topic; with `some`, at least one that is readable."""
        parts = await self._look_up(topic)
        if not parts.partitions and (some or not parts.unreadable):
            raise RefusedError(
                "The topic has no readable partition.",
                server=self._cluster.masters.server,
                topic=topic,
                code=ResultCode.PARAMETER_MSG_TOPIC_NO_PARTITION,
                hint="Is one of its brokers online?",
            )
        return parts

    async def _offset_ranges(
        self, partitions: Iterable[Partition]
    ) -> list[tuple[int, int] | BaseException]:
        slot = self.reserve()
        try:
            rpc = self.rpc(slot)
            looks = (_offset_range(rpc, one) for one in partitions)
            # All have ended before the group is used again, also after a failure.
            return await asyncio.gather(*looks, return_exceptions=True)
        finally:
            self.release(slot)

    async def _look_up(self, topic: str) -> ReadableParts:
        publisher = await self._registered()
        slot = self.reserve()
        try:
            group, member = self._names(slot)
            lookup = TopicLookup(
                self._cluster, group, member, publisher.local_host, publisher.credentials
            )
            return await lookup.look_up(topic)
        except RefusedError as error:
            if error.code not in _LOOKUP_REFUSED:
                raise
            _log.info("The master lists topic %s for producers only: %s", topic, error)
        finally:
            self.release(slot)
        return ReadableParts(await self._writable(topic), [])

    async def _writable(self, topic: str) -> list[Partition]:
        """The partitions that the master lists for producers."""
        publisher = self._publisher
        if topic in publisher.topics:
            await publisher.heartbeat()
        if topic not in publisher.infos:
            await publisher.publish([topic])
        return sorted(
            Partition(publisher.brokers[broker_id], topic, number)
            for broker_id, (partitions, stores) in publisher.infos[topic].brokers.items()
            if broker_id in publisher.brokers
            for number in partition_ids(partitions, stores)
        )

    def _names(self, slot: int) -> tuple[str, str]:
        """The group of a reader, and its only member."""
        self._member = self._member or client_id(self._publisher.local_host, "Reader")
        group = f"{self._name}_{slot}"
        return group, f"{group}_{self._member}"

    async def _registered(self) -> Publisher:
        async with self._starting:
            if not self._publisher.registered:
                await self._publisher.start(heartbeats=False)
        return self._publisher


def _closed(broker: BrokerInfo, topic: str) -> UnavailableError:
    return UnavailableError(
        "The master does not let consumers read from this broker now.",
        server=broker.address,
        topic=topic,
        hint="Is it online?",
    )


async def _offset_range(rpc: BrokerRpc, partition: Partition) -> tuple[int, int]:
    start = await _look(rpc, partition, None)
    return start.offset, start.max_offset


async def _look(rpc: BrokerRpc, partition: Partition, since_ms: int | None) -> StartPosition:
    # The broker moves offset 0 to the oldest message.
    start = await rpc.register(partition, read_status=0, offset=0, since_ms=since_ms)
    try:
        await rpc.unregister(partition, consumed=False)
    except CohererError as error:
        _log.info("Unregistering %s failed: %s", partition.key, error)
    return start
