"""Method 13: sends (docs/protocol/tubemq.md, sections 3.7 and 8.4).

`SendDecoder` turns requests into drafts for the store, `SendReplies` answers them when they are
stored.

Nearly all requests of a producer differ only in their payload and number. So the decoder caches two
parts of a request: its prefix, which is everything before the partition number (client and topic),
and its suffix, which is everything after the payload (flag, check sum, address, type,
authorization). A request made of a known prefix and suffix is read with two comparisons. All others
are parsed by protobuf and checked in the order of section 3.7.

The replies of a batch are encoded together. Their common parts are encoded once: the time, the
upper bits of the ids, and, for each length of the offset, everything from the sizes of the frame to
the text. The bytes are those of `_wire.tubemq.sending.encode_send_response`; the tests compare
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct

from google.protobuf.message import DecodeError

from coherer import limits
from coherer._net import Connection
from coherer._record.batches import decode_batch
from coherer._rules.common.origins import RESERVED_TOPICS, Origin, OriginError
from coherer._rules.common.topics import Topic
from coherer._server.core.disk import FAILED
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._server.tubemq.broker.state import BrokerState
from coherer._server.tubemq.refusal import Refusal, check_text, known_topic
from coherer._store import AppendResult, Draft, DraftBatch
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import STORE_FULL, ResultCode
from coherer._wire.tubemq.envelope import CONTINUED, VARINTS, encode_field, response_head, varint
from coherer._wire.tubemq.frame import TOKEN, encode_frame
from coherer._wire.tubemq.methods import SEND_MESSAGE, parse
from coherer._wire.tubemq.payload import checksum
from coherer.errors import CohererError, ProtocolError, StoreFullError

_HOST = Struct(">iI")
_REQUIRED = ("clientId", "topicName", "partitionId", "data", "flag", "checkSum", "sentAddr")
_IN_SUFFIX = [False, False, False, False, True, True, True]

_TOKEN_SERIAL = Struct(">Ii").pack
_SIZES = Struct(">ii").pack
_BEGIN = b"\x08\x01\x10\xc8\x01\x1a"  # success, 200, tag of the text
_LOW = (1 << 28) - 1
_14_BITS = (1 << 14) - 1


class _Prefix:
    """The start of a request: client and topic, with the partitions and limit of the topic."""

    __slots__ = ("at", "bytes_max", "partitions", "prefix", "topic", "version")

    def __init__(self, prefix: bytes, version: int, topic: Topic, bytes_max: int) -> None:
        self.prefix = prefix
        self.at = len(prefix)
        self.version = version
        self.topic = topic.name
        self.partitions = frozenset(topic.partition_ids())
        self.bytes_max = bytes_max


class _Suffix:
    """The end of a request: everything after the payload."""

    __slots__ = ("flag", "host", "plain", "tag")

    def __init__(self, flag: int, address: int, tag: str) -> None:
        self.flag = flag
        self.tag = tag
        self.host = _HOST.pack(address, 0)
        self.plain = not flag & 1 and not tag


class SendCache:
    """The known prefixes and suffixes of requests, for all connections of a broker."""

    def __init__(self, state: BrokerState, mapper: Mapper) -> None:
        self.state = state
        self.mapper = mapper
        self.prefixes: dict[bytes, _Prefix] = {}
        self.suffixes: dict[bytes, _Suffix] = {}
        self._version = state.version

    def refresh(self) -> None:
        """Clear the cache if topics or rights have changed."""
        if self._version != self.state.version:
            self._version = self.state.version
            self.prefixes.clear()
            self.suffixes.clear()

    def add_prefix(self, known: _Prefix) -> None:
        """Add a prefix."""
        if len(self.prefixes) >= limits.SEND_PERMISSIONS_CACHED:
            self.prefixes.clear()
        self.prefixes[known.prefix] = known

    def add_suffix(self, rest: bytes) -> _Suffix | None:
        """Add the suffix of a permitted request. Returns None if it cannot be cached."""
        if len(rest) > limits.SEND_TAIL_BYTES_CACHED:
            return None
        try:
            request = pb.SendMessageRequestP2B.FromString(rest)
        except DecodeError:
            return None
        given = [request.HasField(name) for name in _REQUIRED]
        access, now_ms = self.state.access, self.state.now_ms()
        if given != _IN_SUFFIX or request.checkSum != -1 or not access.is_final(now_ms):
            return None
        if access.denial(request.authInfo, produce=True, now_ms=now_ms):
            return None
        if len(self.suffixes) >= limits.SEND_TAILS_CACHED:
            self.suffixes.clear()
        suffix = _Suffix(request.flag, request.sentAddr, request.msgType.strip())
        self.suffixes[rest] = suffix
        return suffix


class SendDecoder:
    """Turns the sends of one connection into drafts."""

    def __init__(self, cache: SendCache) -> None:
        self._cache = cache
        self._state = cache.state
        self._mapper = cache.mapper
        self._prefix: _Prefix | None = None

    def decode(self, body: bytes, wall_ms: int) -> Draft | DraftBatch:
        """Decode a request to the draft of its message, or to the drafts of its batch.

        Args:
            wall_ms: the time of day, which becomes the time of the message.

        Raises:
            Refusal: the request is not valid or not permitted.
            ProtocolError: the request is malformed.
        """
        known = self._prefix
        if known is None or not body.startswith(known.prefix):
            known = self._find_prefix(body)
        if known is None or known.version != self._state.version:
            return self._parse(body, wall_ms)
        try:
            partition, start, end = _payload(body, known.at)
        except IndexError:
            return self._parse(body, wall_ms)
        if 0 < end - start <= known.bytes_max and partition in known.partitions:
            rest = body[end:]
            suffix = self._cache.suffixes.get(rest) or self._cache.add_suffix(rest)
            if suffix is not None:
                data = body[start:end]
                if suffix.plain:
                    return Draft(
                        known.topic, partition, data, b"", 0, suffix.flag, 0, wall_ms, suffix.host
                    )
                stored, properties, code, keys = self._mapper.to_record(
                    data, suffix.flag, suffix.tag
                )
                return Draft(
                    known.topic,
                    partition,
                    stored,
                    properties,
                    code,
                    suffix.flag,
                    0,
                    wall_ms,
                    suffix.host,
                    0,
                    0,
                    keys,
                )
        return self._parse(body, wall_ms)

    def _find_prefix(self, body: bytes) -> _Prefix | None:
        # Client, topic and the tag of the partition. Unusually long names are never cached.
        try:
            topic = 2 + body[1]
            known = self._cache.prefixes.get(body[: topic + 3 + body[topic + 1]])
        except IndexError:
            return None
        if known is not None:
            self._prefix = known
        return known

    def _parse(self, body: bytes, wall_ms: int) -> Draft | DraftBatch:
        request = parse(pb.SendMessageRequestP2B, body)
        topic = self._check(request)
        if request.HasField("batch"):
            return self._batch(request, topic, wall_ms)
        tag = request.msgType.strip()
        stored, properties, code, keys = self._mapper.to_record(request.data, request.flag, tag)
        host = _HOST.pack(request.sentAddr, 0)
        draft = Draft(
            topic.name,
            request.partitionId,
            stored,
            properties,
            code,
            request.flag,
            0,
            wall_ms,
            host,
            0,
            0,
            keys,
        )
        self._cache_prefix(body, request, topic)
        return draft

    def _batch(self, request: pb.SendMessageRequestP2B, topic: Topic, wall_ms: int) -> DraftBatch:
        try:
            _, bodies, texts = decode_batch(request.batch)  # each access copies it
        except ProtocolError as error:
            raise Refusal(ResultCode.BAD_REQUEST, error.text) from error
        if not bodies:
            raise Refusal(ResultCode.BAD_REQUEST, "The batch has no messages.")
        if len(bodies) > limits.BATCH_ENTRIES_MAX:
            text = f"The batch has {len(bodies)} messages; {limits.BATCH_ENTRIES_MAX} are allowed."
            raise Refusal(ResultCode.BAD_REQUEST, text)
        limit = self._state.payload_bytes_max(topic)
        if max(map(len, bodies)) + max(map(len, texts)) > limit:
            sizes = [len(body) + len(text) for body, text in zip(bodies, texts, strict=True)]
            if max(sizes) > limit:
                raise _too_large(max(sizes), topic, limit)
        found = self._mapper.to_records(texts)
        if found is None or not all(bodies):
            text = "A message of the batch has no data, or properties that cannot be attributes."
            raise Refusal(ResultCode.BAD_REQUEST, text)
        properties, codes, keys = found
        return DraftBatch(
            topic.name,
            request.partitionId,
            bodies,
            properties,
            codes,
            [int(bool(text)) for text in texts],
            keys,
            0,
            wall_ms,
            _HOST.pack(request.sentAddr, 0),
        )

    def _check(self, request: pb.SendMessageRequestP2B) -> Topic:
        state = self._state
        # While the broker leaves, the master has stopped it so that producers go elsewhere.
        stopped = state.stop_write and not state.core.leaving
        if state.core.write_failed:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, FAILED)
        if not state.serving or stopped:
            raise Refusal(
                ResultCode.SERVICE_UNAVAILABLE, "The broker does not accept messages at present."
            )
        if state.core.draining:
            state.core.send_refused_ms = state.now_ms()
            raise Refusal(
                ResultCode.SERVICE_UNAVAILABLE,
                "The broker is about to stop and accepts no more messages; send to another one.",
            )
        denial = state.access.denial(request.authInfo, produce=True, now_ms=state.now_ms())
        if denial:
            raise Refusal(ResultCode.CERTIFICATE_FAILURE, denial)
        check_text("clientId", request.clientId, limits.CLIENT_ID_CHARS_MAX)
        if request.topicName in RESERVED_TOPICS:
            error = OriginError(request.topicName, Origin.TUBEMQ_CLIENT)
            raise Refusal(ResultCode.FORBIDDEN, error.text)
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
        if not size and not request.HasField("batch"):
            raise Refusal(ResultCode.BAD_REQUEST, "The message has no data.")
        if size > limit:
            raise _too_large(size, topic, limit)
        if request.checkSum not in {-1, checksum(request.data)}:
            raise Refusal(ResultCode.FORBIDDEN, "The check sum does not match the data.")

    def _cache_prefix(self, body: bytes, request: pb.SendMessageRequestP2B, topic: Topic) -> None:
        prefix = (
            encode_field(1, request.clientId.encode())
            + encode_field(2, topic.name.encode())
            + b"\x18"
        )
        if body.startswith(prefix):
            state = self._state
            self._cache.refresh()
            self._prefix = _Prefix(prefix, state.version, topic, state.payload_bytes_max(topic))
            self._cache.add_prefix(self._prefix)


def _too_large(size: int, topic: Topic, limit: int) -> Refusal:
    return Refusal(
        ResultCode.BAD_REQUEST,
        f"The message has {size} bytes; topic {topic.name} accepts at most {limit}.",
    )


def _payload(body: bytes, at: int) -> tuple[int, int, int]:
    """Partition, and start and end of the payload, of a request whose partition begins at `at`.

    A request with an unusual encoding, or of more than 2 MiB, gives an empty payload.

    Raises:
        IndexError: the request is truncated.
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


# -- replies


class SendReplies:
    """Answers the sends of one socket read when they are stored, or have failed.

    The appender calls it (`coherer._server.core.appending.Done`).
    """

    __slots__ = ("_connection", "_drafts", "_serials", "_state")

    def __init__(
        self,
        state: BrokerState,
        connection: Connection,
        serials: list[int],
        drafts: Sequence[Draft | DraftBatch],
    ) -> None:
        self._state = state
        self._connection = connection
        self._serials = serials
        self._drafts = drafts

    def __call__(self, outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:  # noqa: ARG002
        """Answer the requests."""
        connection, state = self._connection, self._state
        if isinstance(outcome, CohererError):
            code, text = _error(outcome)
            connection.write_many(refuse_send(serial, code, text) for serial in self._serials)
            return
        state.core.counters.received(self._drafts, outcome, ordered=False)
        connection.write(send_replies(self._serials, outcome, state.first_id, state.wall_ms()))
        connection.flush()


def refuse_send(serial: int, code: ResultCode, text: str) -> bytes:
    """The frame of an error answer to a send."""
    answer = pb.SendMessageResponseB2P(success=False, errCode=code, errMsg=text)
    body = answer.SerializeToString()
    return encode_frame(serial, response_head(SEND_MESSAGE, len(body)) + body)


def _error(error: CohererError) -> tuple[ResultCode, str]:
    if isinstance(error, OriginError):
        return ResultCode.FORBIDDEN, error.text
    if isinstance(error, StoreFullError):
        return ResultCode.SERVER_RECEIVE_OVERFLOW, f"{STORE_FULL} {error.text}"
    return ResultCode.INTERNAL_SERVER_ERROR, f"The broker could not store the message: {error}"


def send_replies(
    serials: Sequence[int], appended: Iterable[AppendResult], first_id: int, append_ms: int
) -> bytes:
    """The frames that confirm stored messages.

    Args:
        first_id: the id of a message at offset 0 of the commit log, at least 2 ** 28.
        append_ms: the time of day of the broker, ms since 1970.
    """
    frames: list[bytes] = []
    below = -1
    id_end, heads = b"", [b""]
    time = b"\x30" + varint(append_ms) + b"\x38"
    for serial, stored in zip(serials, appended, strict=True):
        message_id = first_id + stored.physical_offset
        if message_id >= below:
            id_end = varint(message_id >> 28) + time
            digits = len(str(message_id))
            heads = _heads(digits, len(id_end))
            below = min((message_id | _LOW) + 1, 10**digits)
        offset = stored.queue_offset
        offset_text = VARINTS[offset] if offset <= _14_BITS else varint(offset)
        frames.append(
            b"%b%b%d\x20\x00\x28%b%b%b%b"
            % (
                _TOKEN_SERIAL(TOKEN, serial),
                heads[len(offset_text)],
                message_id,
                CONTINUED[message_id & _14_BITS],
                CONTINUED[message_id >> 14 & _14_BITS],
                id_end,
                offset_text,
            )
        )
    return b"".join(frames)


@lru_cache(maxsize=64)
def _heads(digits: int, id_end_size: int) -> list[bytes]:
    """Everything from the frame sizes to the text, by the length of the offset: 0 to 9."""
    heads: list[bytes] = []
    for offset_size in range(10):
        size = len(_BEGIN) + 1 + digits + 3 + 4 + id_end_size + offset_size
        head = response_head(SEND_MESSAGE, size)
        heads.append(_SIZES(1, len(head) + size) + head + _BEGIN + VARINTS[digits])
    return heads
