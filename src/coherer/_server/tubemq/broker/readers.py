"""Methods 15, 16 and 18: who reads which partition, and how far (8.6, 8.8).

`Readers` ties the rules together: leases say who may read, positions how far the group is. It also
knows which readers a new message concerns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from coherer import limits
from coherer._common.logs import Log
from coherer._rules.common.offsets import Start
from coherer._rules.tubemq.filters import tag_codes
from coherer._server.tubemq.broker.state import BrokerState, Consumer, Reader
from coherer._server.tubemq.refusal import Refusal, check_text, known_topic
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.methods import REGISTER, UNREGISTER
from coherer._wire.tubemq.names import Partition
from coherer.errors import ProtocolError

_log = Log(logging.getLogger(__name__))

_STARTS = {0: Start.FIRST, 1: Start.LATEST, 2: Start.ALWAYS_LATEST}
OK = "OK!"


class Readers:
    """The consumers of a broker and what they hold.

    Args:
        state: the broker's.
        ended: told of every reader whose lease has ended, with a code and a text for a get that
            it may still wait for.
        began: told of every new reader.
    """

    def __init__(
        self,
        state: BrokerState,
        ended: Callable[[Reader, ResultCode, str], None],
        began: Callable[[Reader], None],
    ) -> None:
        self._state = state
        self._ended = ended
        self._began = began
        self._consumers: dict[str, Consumer] = {}
        self._by_partition: dict[tuple[str, int], list[Reader]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def of(self, topic: str, partition: int) -> list[Reader]:
        """The readers of a partition, one for each group that reads it."""
        return self._by_partition.get((topic, partition), [])

    def find(self, client_id: str, group: str, topic: str, partition: int, now_ms: int) -> Reader:
        """The reader that a request speaks for.

        Raises:
            Refusal: with 411 when nobody holds the partition, with 412 when another does.
        """
        reader = self._state.leases.find(group, topic, partition)
        if reader is not None and now_ms >= reader.deadline_ms:
            self.end(reader, ResultCode.HB_NO_NODE, "The lease of the partition has run out.")
            reader = None
        if reader is None:
            raise Refusal(
                ResultCode.HB_NO_NODE,
                f"Partition {topic}:{partition} is not registered by group {group}.",
            )
        if reader.holder != client_id:
            raise Refusal(
                ResultCode.DUPLICATE_PARTITION,
                f"Partition {topic}:{partition} is held by consumer {reader.holder}.",
            )
        return reader

    def register(self, request: pb.RegisterRequestC2B, peer: str = "") -> pb.RegisterResponseB2C:
        """Method 15; `peer` is the address that it came from."""
        try:
            return self._register(request, self._state.now_ms(), peer)
        except Refusal as refusal:
            return pb.RegisterResponseB2C(
                success=False, errCode=refusal.code, errMsg=refusal.text, currOffset=-1
            )

    def heartbeat(self, request: pb.HeartBeatRequestC2B) -> pb.HeartBeatResponseB2C:
        """Method 16."""
        now_ms = self._state.now_ms()
        try:
            self._check_access(request.authInfo, now_ms)
            check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
            check_text("groupName", request.groupName, limits.GROUP_CHARS_MAX)
        except Refusal as refusal:
            return pb.HeartBeatResponseB2C(success=False, errCode=refusal.code, errMsg=refusal.text)
        failures = self._renew(request, now_ms)
        return pb.HeartBeatResponseB2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg=OK,
            hasPartFailure=bool(failures),
            failureInfo=failures,
            requireAuth=False,
        )

    def commit(self, request: pb.CommitOffsetRequestC2B) -> pb.CommitOffsetResponseB2C:
        """Method 18."""
        try:
            reader = self._committer(request)
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

    def end(self, reader: Reader, code: ResultCode, text: str) -> None:
        """End a lease: an uncommitted read is dropped, a waiting get is answered."""
        if not reader.live:
            return
        state = self._state
        state.leases.release(reader)
        self._forget(reader)
        self._ended(reader, code, text)

    def expire(self, now_ms: int) -> None:
        """End what has run out."""
        for reader in self._state.leases.expire(now_ms):
            self._state.readers_timed_out += 1
            _log.warning(
                "Consumer %s has not shown itself: partition %s:%d of group %s is free",
                reader.holder, reader.topic, reader.partition, reader.group,
                about=reader.group,
)  # fmt: skip
            self._forget(reader)
            text = "The lease of the partition has run out."
            self._ended(reader, ResultCode.HB_NO_NODE, text)

    def end_all(self, of: Callable[[Reader], bool], code: ResultCode, text: str) -> None:
        """End the leases that `of` names."""
        for reader in [reader for reader in self._state.leases if of(reader)]:
            self.end(reader, code, text)

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
            return self._take(request, now_ms, peer)
        if request.opType == UNREGISTER:
            return self._give_up(request, now_ms)
        raise Refusal(ResultCode.BAD_REQUEST, f"There is no operation {request.opType}.")

    def _committer(self, request: pb.CommitOffsetRequestC2B) -> Reader:
        self._check_serving()
        check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
        topic = known_topic(self._state.topics, request.topicName)
        check_text("groupName", request.groupName, limits.GROUP_CHARS_MAX)
        partition, now_ms = request.partitionId, self._state.now_ms()
        if not topic.has_partition(partition):
            raise Refusal(ResultCode.FORBIDDEN, f"Topic {topic.name} has no partition {partition}.")
        try:
            return self.find(request.clientId, request.groupName, topic.name, partition, now_ms)
        except Refusal as refusal:
            raise Refusal(ResultCode.UNAUTHORIZED, refusal.text) from None

    def _check_serving(self) -> None:
        if not self._state.serving:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "The broker is starting or stopping.")

    def _check_access(self, given: pb.AuthorizedInfo, now_ms: int) -> None:
        self._check_serving()
        refusal = self._state.access.refusal(given, produce=False, now_ms=now_ms)
        if refusal:
            raise Refusal(ResultCode.CERTIFICATE_FAILURE, refusal)

    def _take(
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
            self.end(held, ResultCode.HB_NO_NODE, "The partition was registered anew.")
        if len(state.leases) >= limits.LEASES_MAX:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "Too many partitions are being read.")
        reader = self._reader(request, peer)
        low, high = state.store.queue_range(topic, partition)
        exact = request.currOffset if request.HasField("currOffset") else None
        start = _STARTS.get(request.readStatus, Start.LATEST)
        offset = reader.position.begin(start, exact, low, high)
        state.leases.take(reader, now_ms)
        reader.consumer.leases += 1
        self._by_partition.setdefault((topic, partition), []).append(reader)
        self._began(reader)
        return pb.RegisterResponseB2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg=OK,
            currOffset=offset,
            maxOffset=high,
            offsetStep=1,  # our offsets count messages
        )

    def _reader(self, request: pb.RegisterRequestC2B, peer: str) -> Reader:
        self._state.core.name_group(request.groupName)
        position = self._state.offsets.open(
            request.groupName, request.topicName, request.partitionId
        )
        return Reader(
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
        )

    def _give_up(self, request: pb.RegisterRequestC2B, now_ms: int) -> pb.RegisterResponseB2C:
        topic, partition = request.topicName, request.partitionId
        reader = self.find(request.clientId, request.groupName, topic, partition, now_ms)
        offset = reader.position.commit(request.readStatus == 0)
        self.end(reader, ResultCode.HB_NO_NODE, "The partition was given up.")
        return pb.RegisterResponseB2C(
            success=True,
            errCode=ResultCode.SUCCESS,
            errMsg=OK,
            currOffset=offset,
            maxOffset=self._state.store.queue_range(topic, partition)[1],
        )

    def _renew(self, request: pb.HeartBeatRequestC2B, now_ms: int) -> list[str]:
        failures: list[str] = []
        for text in request.partitionInfo:
            try:
                named = Partition.parse(text)
                reader = self.find(
                    request.clientId, request.groupName, named.topic, named.id, now_ms
                )
            except ProtocolError:
                continue  # as Java's broker does: what it cannot read it does not miss
            except Refusal as refusal:
                failures.append(f"{int(refusal.code)}:{text}")
                continue
            self._state.leases.renew(reader, now_ms)
            if request.HasField("qryPriorityId"):
                reader.priority = request.qryPriorityId
        return failures

    def _forget(self, reader: Reader) -> None:
        key = reader.topic, reader.partition
        readers = self._by_partition[key]
        readers.remove(reader)
        if not readers:
            del self._by_partition[key]
        consumer = reader.consumer
        consumer.announced -= reader.announced
        reader.announced = False
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
