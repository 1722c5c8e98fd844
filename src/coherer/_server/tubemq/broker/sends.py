"""Method 13: requests become drafts, or are refused.

Nearly all requests of a producer differ only in payload and number, so a reader remembers two
things: what stands before the partition number (client and topic), and what stands behind the
payload (flag, check sum, address, type, authorization). A request that is made of known pieces is
read with two comparisons; any other goes through protobuf and all checks, in the order of 3.7.
"""

from __future__ import annotations

import struct

from google.protobuf.message import DecodeError

from coherer import limits
from coherer._rules.common.topics import Topic
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._server.tubemq.broker.state import BrokerState
from coherer._server.tubemq.refusal import Refusal, check_text, known_topic
from coherer._store import Draft
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.envelope import encode_field
from coherer._wire.tubemq.methods import parse
from coherer._wire.tubemq.payload import checksum

_HOST = struct.Struct(">iI")
HISTORY_TOPIC = "__offset_history__"
_REQUIRED = ("clientId", "topicName", "partitionId", "data", "flag", "checkSum", "sentAddr")
_IN_TAIL = [False, False, False, False, True, True, True]


class _Lane:
    """What a request begins with: a client, a topic, and what they may do."""

    __slots__ = ("at", "bytes_max", "partitions", "prefix", "topic", "version")

    def __init__(self, prefix: bytes, version: int, topic: Topic, bytes_max: int) -> None:
        self.prefix = prefix
        self.at = len(prefix)
        self.version = version
        self.topic = topic.name
        self.partitions = frozenset(topic.partition_ids())
        self.bytes_max = bytes_max


class _Tail:
    """What a request ends with."""

    __slots__ = ("flag", "host", "plain", "tag")

    def __init__(self, flag: int, address: int, tag: str) -> None:
        self.flag = flag
        self.tag = tag
        self.host = _HOST.pack(address, 0)
        self.plain = not flag & 1 and not tag


class SendMemory:
    """What all connections of a broker remember of requests."""

    def __init__(self, state: BrokerState, mapper: Mapper) -> None:
        self.state = state
        self.mapper = mapper
        self.lanes: dict[bytes, _Lane] = {}
        self.tails: dict[bytes, _Tail] = {}
        self._version = state.version

    def refresh(self) -> None:
        """Forget everything if topics or rights have changed since."""
        if self._version != self.state.version:
            self._version = self.state.version
            self.lanes.clear()
            self.tails.clear()

    def keep_lane(self, lane: _Lane) -> None:
        """Remember what a request begins with."""
        if len(self.lanes) >= limits.SEND_PERMISSIONS_CACHED:
            self.lanes.clear()
        self.lanes[lane.prefix] = lane

    def learn_tail(self, rest: bytes) -> _Tail | None:
        """What stands behind the payload, when it is just that, and its sender may send."""
        if len(rest) > limits.SEND_TAIL_BYTES_CACHED:
            return None
        try:
            request = pb.SendMessageRequestP2B.FromString(rest)
        except DecodeError:
            return None
        given = [request.HasField(name) for name in _REQUIRED]
        access, now_ms = self.state.access, self.state.now_ms()
        if given != _IN_TAIL or request.checkSum != -1 or not access.settled(now_ms):
            return None
        if access.refusal(request.authInfo, produce=True, now_ms=now_ms):
            return None
        if len(self.tails) >= limits.SEND_TAILS_CACHED:
            self.tails.clear()
        tail = _Tail(request.flag, request.sentAddr, request.msgType.strip())
        self.tails[rest] = tail
        return tail


class SendReader:
    """Reads the sends of one connection."""

    def __init__(self, memory: SendMemory) -> None:
        self._memory = memory
        self._state = memory.state
        self._mapper = memory.mapper
        self._lane: _Lane | None = None

    def read(self, body: bytes, wall_ms: int) -> Draft:
        """Turn a request into what is to be stored.

        Args:
            body: the request's message.
            wall_ms: the time of day: when the message was born.

        Raises:
            Refusal: it is refused.
            ProtocolError: it is no such request.
        """
        lane = self._lane
        if lane is None or not body.startswith(lane.prefix):
            lane = self._find_lane(body)
        if lane is None or lane.version != self._state.version:
            return self._read_slowly(body, wall_ms)
        try:
            partition, start, end = _payload(body, lane.at)
        except IndexError:
            return self._read_slowly(body, wall_ms)
        if 0 < end - start <= lane.bytes_max and partition in lane.partitions:
            rest = body[end:]
            tail = self._memory.tails.get(rest) or self._memory.learn_tail(rest)
            if tail is not None:
                data = body[start:end]
                if tail.plain:
                    return Draft(
                        lane.topic, partition, data, b"", 0, tail.flag, 0, wall_ms, tail.host
                    )
                stored, properties, code, keys = self._mapper.to_record(data, tail.flag, tail.tag)
                return Draft(
                    lane.topic, partition, stored, properties, code,
                    tail.flag, 0, wall_ms, tail.host, 0, 0, keys,
                )  # fmt: skip
        return self._read_slowly(body, wall_ms)

    def _find_lane(self, body: bytes) -> _Lane | None:
        # Client, topic and the tag of the partition; what is unusually long is found nowhere.
        try:
            topic = 2 + body[1]
            lane = self._memory.lanes.get(body[: topic + 3 + body[topic + 1]])
        except IndexError:
            return None
        if lane is not None:
            self._lane = lane
        return lane

    def _read_slowly(self, body: bytes, wall_ms: int) -> Draft:
        request = parse(pb.SendMessageRequestP2B, body)
        topic = self._check(request)
        tag = request.msgType.strip()
        stored, properties, code, keys = self._mapper.to_record(request.data, request.flag, tag)
        host = _HOST.pack(request.sentAddr, 0)
        draft = Draft(
            topic.name, request.partitionId, stored, properties, code,
            request.flag, 0, wall_ms, host, 0, 0, keys,
        )  # fmt: skip
        self._learn_lane(body, request, topic)
        return draft

    def _check(self, request: pb.SendMessageRequestP2B) -> Topic:
        state = self._state
        if not state.serving or state.stop_write or state.core.write_failed:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "The broker takes no messages now.")
        refusal = state.access.refusal(request.authInfo, produce=True, now_ms=state.now_ms())
        if refusal:
            raise Refusal(ResultCode.CERTIFICATE_FAILURE, refusal)
        check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
        if request.topicName == HISTORY_TOPIC:
            raise Refusal(ResultCode.FORBIDDEN, f"Topic {HISTORY_TOPIC} is the broker's own.")
        topic = known_topic(state.topics, request.topicName)
        if topic.status:
            raise Refusal(ResultCode.FORBIDDEN, f"Topic {topic.name} is closed.")
        if not topic.has_partition(request.partitionId):
            raise Refusal(
                ResultCode.FORBIDDEN,
                f"Topic {topic.name} has no partition {request.partitionId} on this broker: "
                f"{topic.partitions} partitions in {topic.stores} stores.",
            )
        self._check_payload(request, topic)
        return topic

    def _check_payload(self, request: pb.SendMessageRequestP2B, topic: Topic) -> None:
        size, limit = len(request.data), self._state.payload_bytes_max(topic)
        if not size:
            raise Refusal(ResultCode.BAD_REQUEST, "The message has no data.")
        if size > limit:
            raise Refusal(
                ResultCode.BAD_REQUEST,
                f"The message has {size} bytes; topic {topic.name} takes {limit} at most.",
            )
        if request.checkSum not in {-1, checksum(request.data)}:
            raise Refusal(ResultCode.FORBIDDEN, "The check sum does not match the data.")

    def _learn_lane(self, body: bytes, request: pb.SendMessageRequestP2B, topic: Topic) -> None:
        prefix = (
            encode_field(1, request.clientId.encode())
            + encode_field(2, topic.name.encode())
            + b"\x18"
        )
        if body.startswith(prefix):
            state = self._state
            self._memory.refresh()
            self._lane = _Lane(prefix, state.version, topic, state.payload_bytes_max(topic))
            self._memory.keep_lane(self._lane)


def _payload(body: bytes, at: int) -> tuple[int, int, int]:
    """Partition, and begin and end of the payload, of a request whose partition stands at `at`.

    What is not written as everybody does (or is larger than 2 MiB) gives an empty payload.

    Raises:
        IndexError: the request is cut off.
    """
    partition = body[at]
    if partition >= 0x80:
        at += 1
        partition = partition & 0x7F | body[at] << 7
    length = body[at + 2]
    start = at + 3
    if length >= 0x80:
        length = length & 0x7F | body[start] << 7
        start += 1
        if length >= 0x4000:
            length = length & 0x3FFF | body[start] << 14
            start += 1
    if body[at + 1] != 0x22 or length >= 0x20_0000 or partition >= 0x4000:
        return 0, 0, 0
    return partition, start, start + length
