"""A consumer's calls to brokers: register a partition, get, commit, heartbeat.

There is one object per member of a group. It has no state about partitions. Requests about a
partition are sent in the order of the calls, because all of them use the same connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from coherer._client.tubemq.cluster import UNDEFINED, Cluster, Credentials, TubeConnection, checked
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq import methods
from coherer._wire.tubemq.names import BrokerInfo, FailureInfo, Partition

CONSUMED: Final = 0
ROLL_BACK: Final = 1
"""The field `readStatus` when a partition is unregistered."""


class StartPosition(msgspec.Struct, frozen=True):
    """A broker's answer to the registration of a partition.

    Args:
        offset: where reading begins.
        max_offset: one after the last offset, -1 if the broker does not report it.
        step: the distance between the offsets of two messages; None with Java's broker, whose
            offsets are byte positions in an index that partitions share.
        since: the first offset stored at the requested time or later; None with Java's
            broker.
    """

    offset: int
    max_offset: int
    step: int | None
    since: int | None = None


class BrokerRpc:
    """The calls of one member of a group to brokers.

    Args:
        member: the consumer id.
        filters: topic to the accepted tags.

    Attributes:
        priority: the id of the group's read priority, from the master.
    """

    def __init__(
        self,
        cluster: Cluster,
        member: str,
        group: str,
        credentials: Credentials,
        filters: Mapping[str, Iterable[str]],
    ) -> None:
        self.priority = UNDEFINED
        self._pool = cluster.pool
        self._timeout_ms = cluster.options.timeout_ms
        self._member = member
        self._group = group
        self._credentials = credentials
        self._filters = {topic: sorted(words) for topic, words in filters.items()}

    async def link(self, broker: BrokerInfo) -> TubeConnection:
        """The connection to a broker.

        Raises:
            ConnectError: it could not be opened.
        """
        return await self._pool.get(broker.host, broker.port)

    async def register(
        self,
        partition: Partition,
        read_status: int,
        offset: int | None = None,
        since_ms: int | None = None,
        age_ms: int | None = None,
    ) -> StartPosition:
        """Register a partition with its broker.

        Args:
            read_status: where to begin, see `options`.
            offset: the exact offset to begin at.
            since_ms: a time to search for; only Coherer's broker supports it.
            age_ms: begin at the first message that is younger, not at the end; likewise.

        Raises:
            RefusedError: another member has it (410), or for another reason.
            UnavailableError: no answer.
        """
        link = await self.link(partition.broker)
        request = self._registration(partition, methods.REGISTER, read_status, offset)
        if since_ms is not None:
            request.sinceTime = since_ms
        if age_ms is not None:
            request.startAge = age_ms
        answer = await link.ask(
            methods.PARTITION_REGISTER, request, pb.RegisterResponseB2C, self._timeout_ms
        )
        checked(answer, server=link.server, topic=partition.topic, partition=partition.id)
        return StartPosition(
            answer.currOffset,
            answer.maxOffset if answer.HasField("maxOffset") else -1,
            answer.offsetStep if answer.HasField("offsetStep") else None,
            answer.sinceOffset if answer.HasField("sinceOffset") else None,
        )

    async def unregister(self, partition: Partition, *, consumed: bool) -> None:
        """Unregister a partition.

        Args:
            consumed: whether the last batch is acknowledged; otherwise it is delivered again.

        Raises:
            RefusedError: this member does not have it.
            UnavailableError: no answer.
        """
        link = await self.link(partition.broker)
        status = CONSUMED if consumed else ROLL_BACK
        request = self._registration(partition, methods.UNREGISTER, status, None)
        answer = await link.ask(
            methods.PARTITION_REGISTER, request, pb.RegisterResponseB2C, self._timeout_ms
        )
        checked(answer, server=link.server, topic=partition.topic, partition=partition.id)

    async def heartbeat(
        self, broker: BrokerInfo, partitions: Iterable[Partition]
    ) -> list[FailureInfo]:
        """Keep partitions registered.

        Returns:
            The partitions that are not registered for this member, each with the reason (411 or
            412).

        Raises:
            RefusedError: authentication failed.
            UnavailableError: no answer.
        """
        link = await self.link(broker)
        request = pb.HeartBeatRequestC2B(
            clientId=self._member,
            groupName=self._group,
            readStatus=0,
            partitionInfo=[partition.text() for partition in partitions],
            qryPriorityId=self.priority,
            authInfo=self._credentials.for_broker(),
        )
        answer = await link.ask(
            methods.PARTITION_HEARTBEAT, request, pb.HeartBeatResponseB2C, self._timeout_ms
        )
        checked(answer, server=link.server)
        return [FailureInfo.parse(text) for text in answer.failureInfo]

    def get(
        self,
        link: TubeConnection,
        partition: Partition,
        *,
        acknowledged: bool,
        escapes: bool,
        timeout_ms: int,
        record_bytes: int | None = None,
        record_end: int | None = None,
    ) -> asyncio.Future[bytes]:
        """Request the next batch of a partition.

        Args:
            link: the connection to its broker.
            acknowledged: whether the previous batch is acknowledged.
            escapes: whether this consumer applies the group's flow rules itself.
            timeout_ms: how long the broker may hold the request, approximately.
            record_bytes: the most bytes of stored records to accept instead of messages; 0 for the
                limit of the broker, None for messages only. Java's broker always answers with
                messages.
            record_end: the offset after the last record; None for no limit.

        Returns:
            A future of the serialized answer.

        Raises:
            DisconnectedError: the connection is closed already.
        """
        request = pb.GetMessageRequestC2B(
            clientId=self._member,
            partitionId=partition.id,
            groupName=self._group,
            topicName=partition.topic,
            lastPackConsumed=acknowledged,
            manualCommitOffset=False,
            escFlowCtrl=escapes,
            recordBytes=record_bytes,
            recordEnd=record_end if record_bytes is not None else None,
        )
        return link.call(methods.GET_MESSAGES, request, timeout_ms)

    def commit(
        self, link: TubeConnection, partition: Partition, *, consumed: bool
    ) -> asyncio.Future[bytes]:
        """Commit the last batch, or request it again.

        Returns:
            A future of the serialized answer, for `committed`.

        Raises:
            DisconnectedError: the connection is closed already.
        """
        request = pb.CommitOffsetRequestC2B(
            clientId=self._member,
            topicName=partition.topic,
            partitionId=partition.id,
            groupName=self._group,
            lastPackConsumed=consumed,
        )
        return link.call(methods.COMMIT_OFFSET, request, self._timeout_ms)

    def committed(
        self, link: TubeConnection, partition: Partition, body: bytes
    ) -> pb.CommitOffsetResponseB2C:
        """Parse the answer to `commit`.

        Raises:
            RefusedError: this member does not have the partition (any more).
        """
        answer = methods.parse(pb.CommitOffsetResponseB2C, body)
        checked(answer, server=link.server, topic=partition.topic, partition=partition.id)
        return answer

    def _registration(
        self, partition: Partition, operation: int, status: int, offset: int | None
    ) -> pb.RegisterRequestC2B:
        return pb.RegisterRequestC2B(
            opType=operation,
            clientId=self._member,
            groupName=self._group,
            topicName=partition.topic,
            partitionId=partition.id,
            readStatus=status,
            filterCondStr=self._filters.get(partition.topic, []),
            currOffset=offset,
            qryPriorityId=self.priority,
            authInfo=self._credentials.for_broker(),
        )
