"""Where a topic can be read.

A consumer that chooses its partitions itself (methods 20 and 22) is told all of a topic. What
producers are told is not enough: it leaves out the brokers that take no messages, for example
one that is only read until it is empty, and a read would pass over what they hold.

The registration lasts for one question, in a group that nobody else is in.
"""

from __future__ import annotations

import logging

import msgspec

from coherer._client.tubemq.cluster import UNDEFINED, Cluster, Credentials
from coherer._client.tubemq.partitions import partition_ids
from coherer._common.logs import Log
from coherer._wire.tubemq import codes, methods
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.names import BrokerInfo, Partition, TopicMeta
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))


class Survey(msgspec.Struct, frozen=True):
    """Where a topic can be read.

    Args:
        partitions: what can be read, sorted by broker and number.
        away: brokers with partitions that cannot be read now: they are down, or closed for readers.
    """

    partitions: list[Partition]
    away: list[BrokerInfo]


class Surveyor:
    """Somebody who asks the master.

    Args:
        cluster: the way to it.
        group: a group that nobody else is in.
        client_id: the name of its only member.
        host: our own address.
        credentials: what to show to the master; what brokers want to be shown is renewed.
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
        """Registers, asks, and leaves.

        Raises:
            RefusedError: there is no such topic (431), or another reason.
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
            _log.info("The master did not take the end of %s: %s", self._client_id, error)

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
