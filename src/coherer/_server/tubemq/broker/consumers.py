"""Methods 15, 16 and 18: registration, heartbeats and commits of consumers at the broker.

See docs/protocol/tubemq.md, sections 8.6 and 8.8. Leases decide which consumer may read a partition
(`coherer._rules.tubemq.leases`), positions hold the offset of its group
(`coherer._rules.common.offsets`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from coherer import limits
from coherer._common.logs import Log
from coherer._record.properties import java_hash
from coherer._rules.common.offsets import Start
from coherer._server.tubemq.broker.state import BrokerState, Consumer, PartitionReader
from coherer._server.tubemq.refusal import Refusal, check_text, known_topic
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.methods import REGISTER, UNREGISTER
from coherer._wire.tubemq.names import Partition
from coherer.errors import ProtocolError

_log = Log(logging.getLogger(__name__))

_STARTS = {0: Start.FIRST, 1: Start.LATEST, 2: Start.ALWAYS_LATEST}
_EXPIRED = "The lease of the partition has expired."
PROOF_MS = 40_000
"""How long a consumer may read and commit in a cluster with accounts after it has shown its token
in a registration or a heartbeat; clients send one every 13 s."""
OK = "OK!"


def tag_codes(filters: Iterable[str]) -> frozenset[int] | None:
    """The hash codes of filter words; None if there are no filters, and every message passes.

    A message passes if its tag is one of the words. The broker compares hash codes, because the
    consume queue holds nothing else, so consumers compare the words again.

    >>> sorted(tag_codes(["TagA", " TagB ", ""]))
    [2598919, 2598920]
    >>> tag_codes([" "]) is None
    True
    """
    return frozenset(java_hash(word) for item in filters if (word := item.strip())) or None


class ConsumerHandler:
    """Answers the requests of consumers, and keeps the readers of all partitions.

    Args:
        on_lease_start: called with every new reader.
        on_lease_end: called with every reader whose lease has ended, and the code and text for a
            get that is still held for it.
    """

    def __init__(
        self,
        state: BrokerState,
        *,
        on_lease_start: Callable[[PartitionReader], None],
        on_lease_end: Callable[[PartitionReader, ResultCode, str], None],
    ) -> None:
        self._state = state
        self._on_lease_start = on_lease_start
        self._on_lease_end = on_lease_end
        self._consumers: dict[str, Consumer] = {}
        self._by_partition: dict[tuple[str, int], list[PartitionReader]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def readers_of(self, topic: str, partition: int) -> list[PartitionReader]:
        """The readers of a partition, one per group."""
        return self._by_partition.get((topic, partition), [])

    def find(
        self,
        client_id: str,
        group: str,
        topic: str,
        partition: int,
        now_ms: int,
        peer: str | None = None,
    ) -> PartitionReader:
        """The reader of a client's request.

        Args:
            peer: the address of the client if its request cannot carry a token. In a cluster with
                accounts it must be the one from which the consumer has shown its token last.

        Raises:
            Refusal: with 411 if no consumer of the group holds the partition, or one at another
                address does; with 412 if another consumer does.
        """
        reader = self._state.leases.find(group, topic, partition)
        if reader is not None and now_ms >= reader.deadline_ms:
            self.end_lease(reader, ResultCode.HB_NO_NODE, _EXPIRED)
            reader = None
        if reader is None:
            raise Refusal(
                ResultCode.HB_NO_NODE,
                f"Partition {topic}:{partition} is not registered by group {group}.",
            )
        if reader.holder != client_id:
            # Without its id: whoever knows that reads and commits as this consumer.
            raise Refusal(
                ResultCode.DUPLICATE_PARTITION,
                f"Partition {topic}:{partition} is held by another consumer of group {group}.",
            )
        if peer is not None and self._state.access.requires_accounts:
            self._check_proof(reader, peer, now_ms)
        return reader

    def _check_proof(self, reader: PartitionReader, peer: str, now_ms: int) -> None:
        place = f"Partition {reader.topic}:{reader.partition}"
        if now_ms - reader.proven_ms >= PROOF_MS:
            # Gets renew the lease, too, so the consumer of a removed account could go on for ever.
            text = f"{place} has had no heartbeat with a valid token for too long."
            self.end_lease(reader, ResultCode.HB_NO_NODE, text)
            raise Refusal(ResultCode.HB_NO_NODE, text)
        if peer != reader.peer:
            text = f"{place} was registered from another address: register it again."
            raise Refusal(ResultCode.HB_NO_NODE, text)

    def register(self, request: pb.RegisterRequestC2B, peer: str = "") -> pb.RegisterResponseB2C:
        """Method 15: register or unregister a partition. `peer` is the address of the client."""
        try:
            return self._register(request, self._state.now_ms(), peer)
        except Refusal as refusal:
            return pb.RegisterResponseB2C(
                success=False, errCode=refusal.code, errMsg=refusal.text, currOffset=-1
            )

    def heartbeat(self, request: pb.HeartBeatRequestC2B, peer: str = "") -> pb.HeartBeatResponseB2C:
        """Method 16: renew the leases of a consumer. `peer` is its address."""
        now_ms = self._state.now_ms()
        try:
            self._check_access(request.authInfo, now_ms)
            check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
            check_text("groupName", request.groupName, limits.GROUP_CHARS_MAX)
        except Refusal as refusal:
            return pb.HeartBeatResponseB2C(success=False, errCode=refusal.code, errMsg=refusal.text)
        failures = self._renew(request, now_ms, peer)
        return pb.HeartBeatResponseB2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg=OK,
            hasPartFailure=bool(failures),
            failureInfo=failures,
            requireAuth=False,
        )

    def commit(
        self, request: pb.CommitOffsetRequestC2B, peer: str = ""
    ) -> pb.CommitOffsetResponseB2C:
        """Method 18: commit the last read, or drop it. `peer` is the address of the client."""
        try:
            reader = self._committing_reader(request, peer)
        except Refusal as refusal:
            return pb.CommitOffsetResponseB2C(
                success=False, errCode=refusal.code, errMsg=refusal.text, currOffset=-1
            )
        consumed = request.lastPackConsumed or not request.HasField("lastPackConsumed")
        return pb.CommitOffsetResponseB2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg=OK,
            currOffset=reader.position.commit(consumed),
            maxOffset=self._state.store.queue_range(reader.topic, reader.partition)[1],
        )

    def end_lease(self, reader: PartitionReader, code: ResultCode, text: str) -> None:
        """End a lease: drop an uncommitted read, and answer a held get."""
        if not reader.live:
            return
        self._state.leases.release(reader)
        self._remove(reader)
        self._on_lease_end(reader, code, text)

    def end_leases(
        self, matches: Callable[[PartitionReader], bool], code: ResultCode, text: str
    ) -> None:
        """End the leases of the readers for which `matches` is true."""
        for reader in [reader for reader in self._state.leases if matches(reader)]:
            self.end_lease(reader, code, text)

    def expire(self, now_ms: int) -> None:
        """End the leases that have expired."""
        for reader in self._state.leases.expire(now_ms):
            self._state.readers_timed_out += 1
            _log.warning(
                "Consumer %s timed out: partition %s:%d of group %s is free",
                reader.holder,
                reader.topic,
                reader.partition,
                reader.group,
                about=reader.group,
                topic=reader.topic,
                group=reader.group,
            )
            self._remove(reader)
            self._on_lease_end(reader, ResultCode.HB_NO_NODE, _EXPIRED)

    def _register(
        self, request: pb.RegisterRequestC2B, now_ms: int, peer: str
    ) -> pb.RegisterResponseB2C:
        self._check_access(request.authInfo, now_ms)
        check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
        topic = known_topic(self._state.topics, request.topicName)
        check_text("groupName", request.groupName, limits.GROUP_CHARS_MAX)
        if not topic.has_partition(request.partitionId):
            raise Refusal(
                ResultCode.FORBIDDEN, f"Topic {topic.name} has no partition {request.partitionId}."
            )
        _check_filters(request.filterCondStr)
        if request.opType == REGISTER:
            return self._start_lease(request, now_ms, peer)
        if request.opType == UNREGISTER:
            return self._give_up_lease(request, now_ms)
        raise Refusal(ResultCode.BAD_REQUEST, f"Unknown operation {request.opType}.")

    def _committing_reader(self, request: pb.CommitOffsetRequestC2B, peer: str) -> PartitionReader:
        self._check_serving()
        check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
        topic = known_topic(self._state.topics, request.topicName)
        check_text("groupName", request.groupName, limits.GROUP_CHARS_MAX)
        partition, now_ms = request.partitionId, self._state.now_ms()
        if not topic.has_partition(partition):
            raise Refusal(ResultCode.FORBIDDEN, f"Topic {topic.name} has no partition {partition}.")
        try:
            return self.find(
                request.clientId, request.groupName, topic.name, partition, now_ms, peer
            )
        except Refusal as refusal:
            raise Refusal(ResultCode.UNAUTHORIZED, refusal.text) from None

    def _check_serving(self) -> None:
        if not self._state.serving:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "The broker is starting or stopping.")

    def _check_access(self, given: pb.AuthorizedInfo, now_ms: int) -> None:
        self._check_serving()
        denial = self._state.access.denial(given, produce=False, now_ms=now_ms)
        if denial:
            raise Refusal(ResultCode.CERTIFICATE_FAILURE, denial)

    def _start_lease(
        self, request: pb.RegisterRequestC2B, now_ms: int, peer: str
    ) -> pb.RegisterResponseB2C:
        state = self._state
        group, topic, partition = request.groupName, request.topicName, request.partitionId
        held = state.leases.find(group, topic, partition)
        if held is not None:
            if held.holder != request.clientId and now_ms < held.deadline_ms:
                raise Refusal(
                    ResultCode.PARTITION_OCCUPIED,
                    f"Partition {topic}:{partition} is held by consumer {held.holder}.",
                )
            self.end_lease(held, ResultCode.HB_NO_NODE, "The partition was registered again.")
        if len(state.leases) >= limits.LEASES_MAX:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "Too many partitions are being read.")
        reader = self._reader(request, peer)
        exact = request.currOffset if request.HasField("currOffset") else None
        if exact is not None:
            state.store.reach(topic, partition, exact)
        low, high = state.store.queue_range(topic, partition)
        start = _STARTS.get(request.readStatus, Start.LATEST)
        end = high if exact is not None else self._end(request, low, high)
        since = low  # read before the partition is taken: that may fail
        if request.HasField("sinceTime"):
            since = state.store.offset_at_time(topic, partition, request.sinceTime)
        offset = reader.position.begin(start, exact, low, end)
        state.leases.take(reader, now_ms)
        reader.consumer.leases += 1
        self._by_partition.setdefault((topic, partition), []).append(reader)
        self._on_lease_start(reader)
        answer = pb.RegisterResponseB2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg=OK,
            currOffset=offset,
            maxOffset=high,
            offsetStep=1,  # offsets count messages
        )
        if request.HasField("sinceTime"):
            answer.sinceOffset = min(max(since, low), high)
        return answer

    def _end(self, request: pb.RegisterRequestC2B, low: int, high: int) -> int:
        """Where a group begins that wants no earlier messages, nor to miss any while it runs."""
        if _STARTS.get(request.readStatus) is not Start.LATEST or not request.HasField("startAge"):
            return high
        store, oldest_ms = self._state.store, self._state.wall_ms() - request.startAge + 1
        return max(low, store.offset_at_time(request.topicName, request.partitionId, oldest_ms))

    def _reader(self, request: pb.RegisterRequestC2B, peer: str) -> PartitionReader:
        self._state.core.name_group(request.groupName)
        position = self._state.offsets.open(
            request.groupName, request.topicName, request.partitionId
        )
        return PartitionReader(
            request.clientId,
            request.groupName,
            request.topicName,
            request.partitionId,
            position,
            tag_codes(request.filterCondStr),
            tuple(request.filterCondStr),
            request.qryPriorityId if request.HasField("qryPriorityId") else -2,
            self._consumers.setdefault(request.clientId, Consumer()),
            since_ms=self._state.wall_ms(),
            peer=peer,
            proven_ms=self._state.now_ms(),
        )

    def _give_up_lease(self, request: pb.RegisterRequestC2B, now_ms: int) -> pb.RegisterResponseB2C:
        topic, partition = request.topicName, request.partitionId
        reader = self.find(request.clientId, request.groupName, topic, partition, now_ms)
        offset = reader.position.commit(request.readStatus == 0)
        self.end_lease(reader, ResultCode.HB_NO_NODE, "The partition was given up.")
        return pb.RegisterResponseB2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg=OK,
            currOffset=offset,
            maxOffset=self._state.store.queue_range(topic, partition)[1],
        )

    def _renew(self, request: pb.HeartBeatRequestC2B, now_ms: int, peer: str) -> list[str]:
        failures: list[str] = []
        for text in request.partitionInfo:
            try:
                named = Partition.parse(text)
                reader = self.find(
                    request.clientId, request.groupName, named.topic, named.id, now_ms
                )
            except ProtocolError:
                continue  # Java's broker fails the request
            except Refusal as refusal:
                failures.append(f"{int(refusal.code)}:{text}")
                continue
            self._state.leases.renew(reader, now_ms)
            reader.peer, reader.proven_ms = peer, now_ms
            if request.HasField("qryPriorityId"):
                reader.priority = request.qryPriorityId
        return failures

    def _remove(self, reader: PartitionReader) -> None:
        key = reader.topic, reader.partition
        readers = self._by_partition[key]
        readers.remove(reader)
        if not readers:
            del self._by_partition[key]
        consumer = reader.consumer
        consumer.ready -= reader.ready
        reader.ready = False
        consumer.leases -= 1
        if not consumer.leases:
            self._consumers.pop(reader.holder, None)
        self._state.offsets.left(reader.group, reader.topic, reader.partition)


def _check_filters(filters: Iterable[str]) -> None:
    words = list(filters)
    if len(words) > limits.FILTERS_MAX:
        raise Refusal(
            ResultCode.BAD_REQUEST, f"{len(words)} filters; {limits.FILTERS_MAX} are allowed."
        )
    for word in words:
        if len(word) > limits.FILTER_CHARS_MAX:
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"A filter has {len(word)} characters; {limits.FILTER_CHARS_MAX} are allowed.",
            )
