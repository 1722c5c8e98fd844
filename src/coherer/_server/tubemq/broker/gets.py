"""Method 17: gets (docs/protocol/tubemq.md, section 8.7).

A get that finds no messages is held as a long poll until a message arrives in its partition, or
until it times out and is answered with 404. Java's broker has no long poll: it answers at once, and
its consumers sleep before they ask again.

A held get must not keep a consumer from its other partitions: Java's consumer asks with few
threads, one partition at a time. So when messages arrive for a partition that its consumer has not
asked for (the partition becomes *ready*), the consumer is notified: its held gets are answered, and
other gets that find nothing are answered instead of held. The answer is success without messages,
which means "ask again at once" in TubeMQ. A get answers each notification once, and a partition
becomes ready only once until it is asked for. So a consumer that never asks for it does not loop.

Coherer's clients ask for records as they are stored (section 8.7.1). They get slices of the log,
without a step per message, unless something is unusual: a filter, or damage in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from coherer import limits
from coherer._common.deadlines import Deadlines, drop
from coherer._common.logs import Log
from coherer._record.offset_ranges import described, joined
from coherer._server.tubemq.broker.consumers import ConsumerHandler
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._server.tubemq.broker.state import CLOSED, BrokerState, PartitionReader, ReplyChannel
from coherer._server.tubemq.refusal import Refusal, check_text, known_topic
from coherer._store import AppendResult, Draft, DraftBatch, ReadResult, ReadStatus
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.delivery import encode_get_response, encode_records
from coherer._wire.tubemq.methods import parse
from coherer._wire.tubemq.session import Request
from coherer.errors import StoreError

_log = Log(logging.getLogger(__name__))

NO_MESSAGES = "The request offset reached maxOffset!"
_NO_END = 1 << 63
_SKIPPED = frozenset((ReadStatus.NO_MATCH, ReadStatus.FOUND))


class PendingGet:
    """A get that has not been answered.

    Attributes:
        manual: continue after the last read, even if it is not committed.
        escape: the consumer applies the flow rules itself.
        record_bytes: the most bytes of stored records that the client accepts instead of messages;
            0 for the limit of the broker, None for messages only.
        record_end: one after the last offset of such records.
        deadline_ms: when it is answered at the latest.
    """

    __slots__ = (
        "channel",
        "deadline_ms",
        "escape",
        "manual",
        "reader",
        "record_bytes",
        "record_end",
        "request",
    )

    def __init__(
        self,
        reader: PartitionReader,
        channel: ReplyChannel,
        request: Request,
        message: pb.GetMessageRequestC2B,
    ) -> None:
        self.reader = reader
        self.channel = channel
        self.request = request
        self.manual = message.manualCommitOffset
        self.escape = message.escFlowCtrl
        accepted = message.HasField("recordBytes") and message.recordBytes >= 0
        self.record_bytes = message.recordBytes if accepted and reader.tags is None else None
        self.record_end = message.recordEnd if message.HasField("recordEnd") else _NO_END
        self.deadline_ms = 0


class HeldGets:
    """The gets that wait for messages, one per reader."""

    def __init__(self) -> None:
        self._by_reader: dict[PartitionReader, PendingGet] = {}
        self._by_channel: dict[ReplyChannel, dict[PendingGet, None]] = {}
        self._deadlines = Deadlines[PendingGet]()

    def __len__(self) -> int:
        return len(self._by_reader)

    def __iter__(self) -> Iterator[PendingGet]:
        return iter(self._by_reader.values())

    def get(self, reader: PartitionReader) -> PendingGet | None:
        """The get of a reader, or None."""
        return self._by_reader.get(reader)

    def add(self, get: PendingGet) -> None:
        """Hold a get until its deadline; its reader must have no other one."""
        self._by_reader[get.reader] = get
        self._by_channel.setdefault(get.channel, {})[get] = None
        self._deadlines.add(get, get.deadline_ms)

    def pop(self, reader: PartitionReader) -> PendingGet | None:
        """Remove the get of a reader and return it; None if the reader has none."""
        get = self._by_reader.pop(reader, None)
        if get is not None:
            drop(self._by_channel, get.channel, get)
            self._deadlines.remove(get, get.deadline_ms)
        return get

    def due(self, now_ms: int) -> list[PendingGet]:
        """The gets that have timed out."""
        return self._deadlines.due(now_ms)

    def of(self, channel: ReplyChannel) -> list[PendingGet]:
        """The gets of a connection."""
        return list(self._by_channel.get(channel, ()))


class GetHandler:
    """Answers gets, and holds those that find no messages.

    Attributes:
        consumers: the handler that registers the readers.
    """

    def __init__(self, state: BrokerState, mapper: Mapper) -> None:
        self._state = state
        self._mapper = mapper
        self._held = HeldGets()
        self.consumers = ConsumerHandler(
            state, on_lease_start=self._lease_started, on_lease_end=self._answer_held
        )

    @property
    def held_count(self) -> int:
        """The number of held gets."""
        return len(self._held)

    def get(self, channel: ReplyChannel, request: Request) -> None:
        """Method 17: answer a get now, or hold it.

        Raises:
            ProtocolError: the request is malformed.
        """
        message = parse(pb.GetMessageRequestC2B, request.body)
        now_ms = self._state.now_ms()
        try:
            reader = self._reader(channel, message, now_ms)
        except Refusal as refusal:
            channel.reply(request, refuse_get(refusal.code, refusal.text))
            return
        if reader.ready:
            reader.ready = False
            reader.consumer.ready -= 1
        self._answer_held(reader, ResultCode.NOT_FOUND, "Replaced by another get.")
        self._confirm(reader, message, now_ms)
        get = PendingGet(reader, channel, request, message)
        wait_ms = self._pause_ms(get, now_ms)
        if wait_ms:
            text = "The group reads faster than the cluster's flow rules allow."
            refused = refuse_get(ResultCode.SERVER_CONSUME_SPEED_LIMIT, text, wait_ms)
            channel.reply(request, refused)
        elif not self._serve(get):
            self._hold(get, now_ms)

    def overdue(self, channel: ReplyChannel, request: Request) -> None:
        """Method 17 after the client has stopped waiting: confirm its last read, but read nothing.

        Raises:
            ProtocolError: the request is malformed.
        """
        message = parse(pb.GetMessageRequestC2B, request.body)
        now_ms = self._state.now_ms()
        # The client confirms only once, so the confirmation must not be lost.
        with suppress(Refusal):
            self._confirm(self._reader(channel, message, now_ms), message, now_ms)

    def _confirm(
        self, reader: PartitionReader, message: pb.GetMessageRequestC2B, now_ms: int
    ) -> None:
        self._state.leases.renew(reader, now_ms)
        if not message.manualCommitOffset:  # an uncommitted read is repeated
            reader.position.commit(message.lastPackConsumed)

    def messages_arrived(
        self,
        drafts: Sequence[Draft | DraftBatch],
        appended: Sequence[AppendResult],  # noqa: ARG002
    ) -> None:
        """Answer the gets that are held for these messages, and notify other consumers."""
        if not self.consumers:
            return
        for topic, partition in dict.fromkeys((draft.topic, draft.queue_id) for draft in drafts):
            for reader in self.consumers.readers_of(topic, partition):
                get = self._held.get(reader)
                if get is None:
                    self._mark_ready(reader, notify=True)
                elif self._serve(get):
                    self._remove(get)

    def offsets_moved(self, topic: str, partition: int) -> None:
        """Retry the held gets of a partition after an administrator has moved offsets."""
        for reader in self.consumers.readers_of(topic, partition):
            get = self._held.get(reader)
            if get is not None and self._serve(get):
                self._remove(get)

    def expire(self, now_ms: int) -> None:
        """Answer held gets that have timed out, and end expired leases."""
        for get in self._held.due(now_ms):
            self._answer_held(get.reader, ResultCode.NOT_FOUND, NO_MESSAGES)
        self.consumers.expire(now_ms)

    def connection_closed(self, channel: ReplyChannel) -> None:
        """Drop the held gets of a closed connection. Its leases stay."""
        for get in self._held.of(channel):
            self._remove(get)

    def close(self) -> None:
        """Answer all held gets."""
        for get in list(self._held):
            self._answer_held(get.reader, ResultCode.SERVICE_UNAVAILABLE, "The broker is stopping.")

    # -- one get

    def _reader(
        self, channel: ReplyChannel, message: pb.GetMessageRequestC2B, now_ms: int
    ) -> PartitionReader:
        state = self._state
        if not state.serving or state.stop_read:
            raise Refusal(
                ResultCode.SERVICE_UNAVAILABLE, "The broker does not accept reads at present."
            )
        check_text("clientId", message.clientId, limits.CLIENT_ID_CHARS_MAX)
        check_text("groupName", message.groupName, limits.GROUP_CHARS_MAX)
        topic = known_topic(state.topics, message.topicName)
        reader = self.consumers.find(
            message.clientId,
            message.groupName,
            topic.name,
            message.partitionId,
            now_ms,
            channel.connection.peer_host,
        )
        if topic.status > CLOSED:
            raise Refusal(ResultCode.FORBIDDEN, f"Topic {topic.name} is being removed.")
        return reader

    def _pause_ms(self, get: PendingGet, now_ms: int) -> int:
        rules, reader = self._state.flow, get.reader
        if not rules.data_limits or reader.fresh or get.escape:
            return 0
        backlog_bytes = self._state.store.end_offset - reader.throttle.read_to
        return reader.throttle.pause_ms(rules, backlog_bytes, now_ms, wall_ms=self._state.wall_ms())

    def _serve(self, get: PendingGet) -> bool:
        """Answer a get; without messages, return False and send no answer."""
        try:
            return self._serve_messages(get)
        except StoreError as error:  # what else the client has on this connection goes on
            reader, peer = get.reader, get.channel.connection.peer_host
            _log.error(
                "A get of group %s from %s failed: %s",
                reader.group,
                peer,
                error,
                about=(reader.topic, reader.partition, type(error)),
                topic=reader.topic,
                group=reader.group,
                peer=peer,
            )
            text = f"The broker could not read the messages: {error}"
            get.channel.reply(get.request, refuse_get(ResultCode.INTERNAL_SERVER_ERROR, text))
            return True

    def _serve_messages(self, get: PendingGet) -> bool:
        reader, position = get.reader, get.reader.position
        store, unit = self._state.store, self._state.options.transfer_bytes
        if self._state.flow.data_limits:
            unit = reader.throttle.unit_bytes(unit)
        start = position.offset + (position.delta if get.manual else 0)
        if self._serve_records(get, start, unit):
            return True
        left_out: list[int] = []
        gaps: list[range] = []
        for _ in range(limits.SCANS_PER_GET):
            found = store.read(
                reader.topic,
                reader.partition,
                start,
                max_bytes=unit,
                max_count=limits.MESSAGES_PER_GET,
                tags=reader.tags,
            )
            found, chunks = self._mapped(reader, found, left_out)
            if reader.tags is None:
                gaps += found.gaps(start)
            if chunks:
                position.delta = found.next_offset - position.offset
                self._deliver(get, start, found, chunks, left_out, gaps)
                return True
            if found.next_offset != start:
                start = found.next_offset
                _skip_to(get, start, found.status)
            ended = found.status is ReadStatus.EMPTY or found.status is ReadStatus.BEYOND
            if ended and not left_out and not gaps:
                return False
            if ended or found.records:
                break  # report omitted messages at once; examining them took time
        # After too many scans, let other requests run.
        self._answer_empty(get, start, left_out, gaps)
        return True

    def _serve_records(self, get: PendingGet, start: int, unit: int) -> bool:
        """Answer a get with records as they are stored; False if that is impossible."""
        reader, position = get.reader, get.reader.position
        if get.record_bytes is None or start >= get.record_end:
            return False
        if get.record_bytes:
            unit = min(get.record_bytes, limits.RECORD_BYTES_PER_GET)
            if self._state.flow.data_limits:
                unit = reader.throttle.unit_bytes(unit)
        found = self._state.store.read_slices(
            reader.topic,
            reader.partition,
            start,
            max_bytes=unit,
            max_count=min(limits.MESSAGES_PER_GET, get.record_end - start),
        )
        if found is None:
            return False
        position.delta = found.next_offset - position.offset
        self._count(get, start, found)
        if get.request.timeout_ms > 0:
            get.channel.connection.write_many(
                encode_records(
                    get.request.serial,
                    found.records,
                    offset=start,
                    next_offset=found.next_offset,
                    backlog_bytes=found.backlog_bytes,
                    max_offset=found.max_offset,
                    first_id=self._state.first_id,
                )
            )
        if found.max_offset > found.next_offset:
            self._mark_ready(reader, notify=False)
        return True

    def _count(self, get: PendingGet, start: int, found: ReadResult) -> None:
        """Count the read for the flow rules and the metrics."""
        reader, size_bytes = get.reader, sum(map(len, found.records))
        reader.fresh = False
        if self._state.flow.data_limits:
            reader.throttle.read_to = self._state.store.end_offset - found.backlog_bytes
            reader.throttle.count(size_bytes)
        self._state.core.counters.read(
            reader.group,
            reader.topic,
            reader.partition,
            # Slices of the log have no offsets of their own, and no gaps.
            len(found.offsets) or found.next_offset - start,
            size_bytes,
            found.next_offset,
        )

    def _mapped(
        self, reader: PartitionReader, found: ReadResult, left_out: list[int]
    ) -> tuple[ReadResult, list[bytes | memoryview]]:
        """The found records that fit into one answer, and their wire form.

        Adds the offsets of messages that cannot be delivered to `left_out`.
        """
        chunks: list[bytes | memoryview] = []
        if found.records:
            chunks, taken, undeliverable = self._mapper.deliver(
                found.records, len(reader.topic.encode()), self._state.first_id
            )
            left_out += [found.offsets[index] for index in undeliverable]
            if taken < len(found.records):
                found = _truncate(found, taken)
        if found.damaged:
            left_out += [offset for offset in found.damaged if offset < found.next_offset]
        return found, chunks

    def _deliver(
        self,
        get: PendingGet,
        start: int,
        found: ReadResult,
        chunks: Sequence[bytes | memoryview],
        left_out: Sequence[int],
        gaps: Sequence[range],
    ) -> None:
        reader = get.reader
        self._count(get, start, found)
        remaining = found.max_offset - found.next_offset
        frame = encode_get_response(
            get.request.serial,
            chunks,
            offset=start,
            backlog_bytes=found.backlog_bytes,
            max_offset=found.max_offset,
            require_slow=reader.tags is not None and remaining < limits.FILTER_NEAR_END,
            left_out=self._left_out(get, left_out),
            gaps=gaps,
            next_offset=found.next_offset,
        )
        if get.request.timeout_ms > 0:
            get.channel.connection.write(frame)
        if remaining:
            self._mark_ready(reader, notify=False)

    def _answer_empty(
        self,
        get: PendingGet,
        next_offset: int | None = None,
        left_out: Sequence[int] = (),
        gaps: Sequence[range] = (),
    ) -> None:
        """Answer with success but no messages, so that the client asks again at once."""
        reader = get.reader
        offset = reader.position.offset if next_offset is None else next_offset
        frame = encode_get_response(
            get.request.serial,
            [],
            offset=offset,
            backlog_bytes=0,
            max_offset=self._state.store.queue_range(reader.topic, reader.partition)[1],
            require_slow=False,
            left_out=self._left_out(get, left_out),
            gaps=gaps,
            next_offset=offset,
        )
        if get.request.timeout_ms > 0:
            get.channel.connection.write(frame)

    @staticmethod
    def _left_out(get: PendingGet, left_out: Sequence[int]) -> list[range]:
        """The offsets that a get leaves out, as ranges; logs them."""
        if not left_out:
            return []
        runs = joined(range(offset, offset + 1) for offset in left_out)
        reader = get.reader
        _log.warning(
            "Partition %d of topic %s, group %s: left out %s, damaged on disk or not compressed "
            "although flagged so",
            reader.partition,
            reader.topic,
            reader.group,
            described(runs),
            topic=reader.topic,
            group=reader.group,
        )
        return runs

    # -- held gets

    def _hold(self, get: PendingGet, now_ms: int) -> None:
        reader, consumer = get.reader, get.reader.consumer
        if consumer.ready and reader.notified != consumer.notification:
            reader.notified = consumer.notification
            self._answer_empty(get)
            return
        get.deadline_ms = now_ms + min(self._state.options.hold_ms, get.request.timeout_ms // 2)
        self._held.add(get)

    def _mark_ready(self, reader: PartitionReader, *, notify: bool) -> None:
        if reader.ready:
            return
        consumer = reader.consumer
        reader.ready = True
        consumer.ready += 1
        consumer.notification += 1
        if not notify:
            return
        for other in self._state.leases.held_by(reader.holder):
            get = self._held.get(other)
            if get is not None:
                other.notified = consumer.notification
                self._remove(get)
                self._answer_empty(get)

    def _remove(self, get: PendingGet) -> None:
        self._held.pop(get.reader)

    def _answer_held(self, reader: PartitionReader, code: ResultCode, text: str) -> None:
        get = self._held.pop(reader)
        if get is not None:
            get.channel.reply(get.request, refuse_get(code, text))

    def _lease_started(self, reader: PartitionReader) -> None:
        end = self._state.store.queue_range(reader.topic, reader.partition)[1]
        if reader.position.offset < end:
            self._mark_ready(reader, notify=True)


def _skip_to(get: PendingGet, offset: int, status: ReadStatus) -> None:
    """Continue at an offset without a delivery.

    The messages before it did not match the filter, were deleted by age, or cannot be delivered; or
    the partition was created after the position (section 8.7).
    """
    position = get.reader.position
    if get.manual and status in _SKIPPED:
        position.delta = offset - position.offset
    else:
        position.offset = offset
        position.delta = 0


def _truncate(found: ReadResult, count: int) -> ReadResult:
    """The first `count` records of a read; the next read starts after them."""
    return replace(
        found,
        records=found.records[:count],
        offsets=found.offsets[:count],
        next_offset=found.offsets[count],
        backlog_bytes=found.backlog_bytes + sum(map(len, found.records[count:])),
    )


def refuse_get(code: ResultCode, text: str, wait_ms: int = 0) -> pb.GetMessageResponseB2C:
    """The error answer to a get.

    Args:
        wait_ms: how long the client has to wait before the next get, with code 452.
    """
    return pb.GetMessageResponseB2C(
        success=False,
        errCode=code,
        errMsg=text,
        currOffset=-1,
        minLimitTime=wait_ms,
        escFlowCtrl=False,
        currDataDlt=-1,
    )
