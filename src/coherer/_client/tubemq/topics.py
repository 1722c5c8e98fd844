"""What there is to read: the partitions of topics and their offsets, without disturbing a group.

`TopicSurvey` asks the master as a consumer that chooses its partitions itself (methods 20 and 22),
because such a consumer is told all of a topic. What producers are told leaves out the brokers that
take no messages, for example one that is only read until it is empty. The registration lasts for
one question, in a group of its own.

A broker tells the offsets of a partition to the member that it is assigned to, so `TopicCatalog`
takes it for a moment, in a group (`coherer_reader_…`) of its own, and gives it back without having
read or acknowledged anything. It learns the credentials for brokers as a producer that never sends,
and from every survey.

A master may refuse the survey: it is older than method 20, or only named groups may consume the
topic. Then what it tells producers has to do: the partitions that take messages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import msgspec

from coherer._client.tubemq.broker_rpc import BrokerRpc
from coherer._client.tubemq.cluster import UNDEFINED, Cluster, Credentials, client_id, persist
from coherer._client.tubemq.publisher import FINAL_CODES, Publisher
from coherer._client.tubemq.routing import partition_ids
from coherer._common.logs import Log
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BrokerInfo, Partition, TopicMeta
from coherer.errors import CohererError, RefusedError

_log = Log(logging.getLogger(__name__))


class Survey(msgspec.Struct, frozen=True):
    """Where a topic can be read.

    Args:
        partitions: what can be read, sorted by broker and number.
        away: brokers with partitions that cannot be read now: they are down, or closed for readers.
    """

    partitions: list[Partition]
    away: list[BrokerInfo]


class TopicSurvey:
    """Asks the master where a topic can be read.

    Args:
        cluster: the connections to the cluster.
        group: a group without other members.
        client_id: the name of its only member.
        host: the client's own address.
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

    async def survey(self, topic: str) -> Survey:
        """Register, ask, and leave.

        Raises:
            RefusedError: the topic does not exist (431), or another reason.
            UnavailableError: no master could be reached.
        """
        brokers = await self._register(topic)
        try:
            texts = await self._partitions()
        finally:
            await self._leave()
        return _survey(topic, texts, brokers)

    async def _register(self, topic: str) -> dict[int, BrokerInfo]:
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
            # Not the other token: that is for this name only.
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
            _log.info("The master did not accept that %s leaves: %s", self._client_id, error)

    def _check(self, code: int, text: str, topic: str | None) -> None:
        if code != ResultCode.SUCCESS:
            raise codes.refused(code, text, server=self._cluster.masters.server, topic=topic)


def _survey(topic: str, texts: list[str], brokers: dict[int, BrokerInfo]) -> Survey:
    partitions: list[Partition] = []
    away: list[BrokerInfo] = []
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
                away.append(broker)
    return Survey(partitions, away)


T = TypeVar("T")


READER_PREFIX: Final = "coherer_reader_"
"""Names of groups that exist for one reader only; what is stored for them may be forgotten."""

FRESH_MS: Final = 60_000
"""Tokens for brokers change every few minutes; older ones are asked for again."""

SURVEY_MS: Final = 1_000
"""`offsets` may be called often, by a stream that waits for messages. For this long, it uses the
same list of partitions."""

_FINAL: Final = FINAL_CODES | {ResultCode.TOPIC_NOT_DEPLOYED}

_NO_SURVEY: Final = frozenset(
    {None, ResultCode.CONSUME_GROUP_FORBIDDEN, ResultCode.CONSUME_CONTENT_FORBIDDEN}
)
"""After these refusals of a survey, the producers' list is used. An old master answers without a
code."""


class TopicCatalog:
    """The partitions of topics, and their offsets.

    Args:
        cluster: the connections to the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._publisher = Publisher(cluster)
        self._starting = asyncio.Lock()
        self._name = f"{READER_PREFIX}{secrets.token_hex(6)}"
        self._slots: set[int] = set()
        self._surveyed: dict[str, tuple[float, list[Partition]]] = {}  # when, by the loop's clock

    def check_client(self) -> None:
        """Check that the client can be used here and now; see `ConnectionPool.check`."""
        self._cluster.pool.check()

    async def partitions(self, topic: str) -> list[Partition]:
        """The partitions of a topic that can be read, sorted by broker and number.

        Raises:
            RefusedError: no partition can be read.
            UnavailableError: no master could be reached.
        """
        return await self._persist(lambda: self._readable(topic))

    async def away(self, topic: str) -> list[BrokerInfo]:
        """The brokers with partitions of a topic that cannot be read now.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: no master could be reached.
        """
        return (await self._survey(topic)).away

    async def offsets(self, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
        """The oldest offset and the one behind the newest, by broker id and partition.

        Raises:
            RefusedError: the topic does not exist, or a broker refused.
            UnavailableError: a server could not be reached.
        """

        async def attempt() -> dict[tuple[str, int], tuple[int, int]]:
            partitions = await self._known(topic)
            try:
                ends = await self._ends(partitions)
            except CohererError:
                self._surveyed.pop(topic, None)
                raise
            return {
                (str(partition.broker.id), partition.id): end
                for partition, end in zip(partitions, ends, strict=True)
            }

        return await self._persist(attempt)

    async def ready(self) -> None:
        """Register with the master, and get its current credentials for brokers.

        Raises:
            UnavailableError: no master could be reached.
            RefusedError: the master refused.
        """
        publisher = await self._registered()
        if publisher.silent_ms > FRESH_MS:
            await publisher.heartbeat()

    def reserve(self) -> int:
        """A number that no other reader has now; low numbers are reused."""
        slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
        self._slots.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """The reader with this number is closed."""
        self._slots.discard(slot)

    def rpc(self, slot: int) -> BrokerRpc:
        """The calls to brokers for the reader with this number."""
        group, member = self._names(slot)
        return BrokerRpc(self._cluster, member, group, self._publisher.credentials, {})

    async def close(self) -> None:
        """Leave."""
        await self._publisher.stop()

    async def _persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        timeout_ms = self._cluster.options.timeout_ms
        return await persist(attempt, timeout_ms=timeout_ms, final=_FINAL)

    async def _known(self, topic: str) -> list[Partition]:
        """The partitions that can be read; at most `SURVEY_MS` old."""
        now = asyncio.get_running_loop().time()
        when, partitions = self._surveyed.get(topic, (now, []))
        if not partitions or (now - when) * 1000 >= SURVEY_MS:
            partitions = await self._readable(topic)
            self._surveyed[topic] = now, partitions
        return partitions

    async def _readable(self, topic: str) -> list[Partition]:
        survey = await self._survey(topic)
        if not survey.partitions:
            raise RefusedError(
                "The topic has no partition that can be read.",
                server=self._cluster.masters.server,
                topic=topic,
                code=ResultCode.PARAMETER_MSG_TOPIC_NO_PARTITION,
                hint="Is one of its brokers online?",
            )
        return survey.partitions

    async def _ends(self, partitions: Iterable[Partition]) -> list[tuple[int, int]]:
        slot = self.reserve()
        try:
            rpc = self.rpc(slot)
            return await asyncio.gather(*(_bounds(rpc, one) for one in partitions))
        finally:
            self.release(slot)

    async def _survey(self, topic: str) -> Survey:
        publisher = await self._registered()
        slot = self.reserve()
        try:
            group, member = self._names(slot)
            surveyor = TopicSurvey(
                self._cluster, group, member, publisher.local_host, publisher.credentials
            )
            return await surveyor.survey(topic)
        except RefusedError as error:
            if error.code not in _NO_SURVEY:
                raise
            _log.info("The master lists topic %s for producers only: %s", topic, error)
        finally:
            self.release(slot)
        return Survey(await self._writable(topic), [])

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
        """Group and only member."""
        group = f"{self._name}_{slot}"
        return group, f"{group}_{client_id(self._publisher.local_host, 'Reader')}"

    async def _registered(self) -> Publisher:
        async with self._starting:
            if not self._publisher.registered:
                await self._publisher.start(heartbeats=False)
        return self._publisher


async def _bounds(rpc: BrokerRpc, partition: Partition) -> tuple[int, int]:
    # Offset 0 is moved up to the oldest message by the broker.
    start = await rpc.register(partition, read_status=0, offset=0)
    try:
        await rpc.unregister(partition, consumed=False)
    except CohererError as error:
        _log.info("Giving back %s: %s", partition.key, error)
    return start.offset, start.max_offset
