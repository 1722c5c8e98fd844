"""Method 17: messages go out (8.7).

A get that finds nothing is held until a message arrives in its partition, or until its time is up
(then it is answered with 404). TubeMQ has no such long poll: Java's broker answers at once, and its
consumers sleep before they ask again.

Holding must not keep a consumer from its other partitions: Java's consumer asks with few threads,
one partition at a time. So when messages come for a partition that its consumer has not asked for
(they are *announced*), the consumer's held gets are answered, and others of its gets that find
nothing are answered instead of held, with no message and success, which to TubeMQ means "ask again
at once". Every get is answered so once for an announcement, and a partition is announced once
until it is asked for. So nothing spins, even when the consumer never asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from coherer import limits
from coherer._common.logs import Log
from coherer._record.offset_ranges import described, joined
from coherer._server.tubemq.broker.mapping import Mapper
from coherer._server.tubemq.broker.readers import Readers
from coherer._server.tubemq.broker.state import CLOSED, BrokerState, Reader
from coherer._server.tubemq.caller import Caller
from coherer._server.tubemq.refusal import Refusal, check_text, known_topic
from coherer._store import AppendResult, Draft, DraftBatch, ReadResult, ReadStatus
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.delivery import get_reply
from coherer._wire.tubemq.methods import parse
from coherer._wire.tubemq.session import Request

_log = Log(logging.getLogger(__name__))

NOTHING = "The request offset reached maxOffset!"
_PASSED_OVER = frozenset((ReadStatus.NO_MATCH, ReadStatus.FOUND))


class Get:
    """A get that waits.

    Attributes:
        reader: for which reader.
        caller: who asked.
        request: what is answered.
        manual: read behind what was read before, although it is not committed.
        escape: the consumer limits itself.
        deadline_ms: when it is answered at the latest.
    """

    __slots__ = ("caller", "deadline_ms", "escape", "manual", "reader", "request")

    def __init__(
        self, reader: Reader, caller: Caller, request: Request, manual: bool, escape: bool
    ) -> None:
        self.reader = reader
        self.caller = caller
        self.request = request
        self.manual = manual
        self.escape = escape
        self.deadline_ms = 0


class Reads:
    """Serves gets and holds those that find nothing."""

    def __init__(self, state: BrokerState, mapper: Mapper) -> None:
        self._state = state
        self._mapper = mapper
        self._waiting: dict[Reader, Get] = {}
        self.readers = Readers(state, self._ended, self._began)

    @property
    def held(self) -> int:
        """How many gets are held."""
        return len(self._waiting)

    def get(self, caller: Caller, request: Request) -> None:
        """Answer a get now, or hold it.

        Raises:
            ProtocolError: it is no such request.
        """
        message = parse(pb.GetMessageRequestC2B, request.body)
        now_ms = self._state.now_ms()
        try:
            reader = self._reader(message, now_ms)
        except Refusal as refusal:
            caller.reply(request, refuse_get(refusal.code, refusal.text))
            return
        self._state.leases.renew(reader, now_ms)
        if reader.announced:
            reader.announced = False
            reader.consumer.announced -= 1
        self._drop(reader, ResultCode.NOT_FOUND, "Another get took its place.")
        manual = message.manualCommitOffset
        if not manual:  # what was read and not confirmed is read again
            reader.position.commit(message.lastPackConsumed)
        get = Get(reader, caller, request, manual, message.escFlowCtrl)
        wait_ms = self._pause_ms(get, now_ms)
        if wait_ms:
            text = "The group reads faster than the cluster's flow rules allow."
            refused = refuse_get(ResultCode.SERVER_CONSUME_SPEED_LIMIT, text, wait_ms)
            caller.reply(request, refused)
        elif not self._serve(get):
            self._hold(get, now_ms)

    def arrived(
        self,
        drafts: Sequence[Draft | DraftBatch],
        appended: Sequence[AppendResult],  # noqa: ARG002
    ) -> None:
        """Messages were stored: wake who waits for them."""
        if not self.readers:
            return
        for topic, partition in {(draft.topic, draft.queue_id) for draft in drafts}:
            for reader in self.readers.of(topic, partition):
                get = self._waiting.get(reader)
                if get is None:
                    self._announce(reader, wake=True)
                elif self._serve(get):
                    self._forget(get)

    def moved(self, topic: str, partition: int) -> None:
        """Positions in a partition are not where they were: wake who waits there."""
        for reader in self.readers.of(topic, partition):
            get = self._waiting.get(reader)
            if get is not None and self._serve(get):
                self._forget(get)

    def expire(self, now_ms: int) -> None:
        """Answer the gets whose time is up, and end the leases whose is."""
        for get in [get for get in self._waiting.values() if now_ms >= get.deadline_ms]:
            self._drop(get.reader, ResultCode.NOT_FOUND, NOTHING)
        self.readers.expire(now_ms)

    def gone(self, caller: Caller) -> None:
        """A connection has ended: its gets wait for nothing. The leases go on."""
        for get in [get for get in self._waiting.values() if get.caller is caller]:
            self._forget(get)

    def close(self) -> None:
        """Answer everything that waits."""
        for reader in list(self._waiting):
            self._drop(reader, ResultCode.SERVICE_UNAVAILABLE, "The broker is stopping.")

    # -- one get

    def _reader(self, message: pb.GetMessageRequestC2B, now_ms: int) -> Reader:
        state = self._state
        if not state.serving or state.stop_read:
            raise Refusal(ResultCode.SERVICE_UNAVAILABLE, "The broker serves no reads now.")
        check_text("clientId", message.clientId, limits.CLIENT_ID_CHARS_MAX)
        check_text("groupName", message.groupName, limits.GROUP_CHARS_MAX)
        topic = known_topic(state.topics, message.topicName)
        reader = self.readers.find(
            message.clientId, message.groupName, topic.name, message.partitionId, now_ms
        )
        if topic.status > CLOSED:
            raise Refusal(ResultCode.FORBIDDEN, f"Topic {topic.name} is being removed.")
        return reader

    def _pause_ms(self, get: Get, now_ms: int) -> int:
        rules, reader = self._state.flow, get.reader
        if not rules.data_limits or reader.fresh or get.escape:
            return 0
        backlog_bytes = self._state.store.end_offset - reader.throttle.read_to
        return reader.throttle.pause_ms(rules, backlog_bytes, now_ms, wall_ms=self._state.wall_ms())

    def _serve(self, get: Get) -> bool:
        """Answer with messages, or with a refusal. False when there is nothing to read."""
        reader, position = get.reader, get.reader.position
        store, unit = self._state.store, self._state.options.transfer_bytes
        if self._state.flow.data_limits:
            unit = reader.throttle.unit_bytes(unit)
        start = position.offset + (position.delta if get.manual else 0)
        left_out: list[int] = []
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
            if chunks:
                position.delta = found.next_offset - position.offset
                self._deliver(get, start, found, chunks, left_out)
                return True
            if found.next_offset != start:
                start = found.next_offset
                _pass(get, start, found.status)
            ended = found.status is ReadStatus.EMPTY or found.status is ReadStatus.BEYOND
            if ended and not left_out:
                return False
            if ended or found.records:
                break  # what is left out is told at once, and looking at it costs time
        self._answer_nothing(get, start, left_out)  # let others have their turn
        return True

    def _mapped(
        self, reader: Reader, found: ReadResult, left_out: list[int]
    ) -> tuple[ReadResult, list[bytes | memoryview]]:
        """What was found, as far as it goes into one answer, and its wire form.

        The offsets of what cannot be delivered are added to `left_out`.
        """
        chunks: list[bytes | memoryview] = []
        if found.records:
            chunks, taken, undeliverable = self._mapper.deliver(
                found.records, len(reader.topic.encode()), self._state.first_id
            )
            left_out += [found.offsets[place] for place in undeliverable]
            if taken < len(found.records):
                found = _cut(found, taken)
        if found.damaged:
            left_out += [offset for offset in found.damaged if offset < found.next_offset]
        return found, chunks

    def _deliver(
        self,
        get: Get,
        start: int,
        found: ReadResult,
        chunks: Sequence[bytes | memoryview],
        left_out: Sequence[int],
    ) -> None:
        reader = get.reader
        reader.fresh = False
        if self._state.flow.data_limits:
            reader.throttle.read_to = self._state.store.end_offset - found.backlog_bytes
            reader.throttle.count(sum(map(len, found.records)))
        remaining = found.max_offset - found.next_offset
        frame = get_reply(
            get.request.serial,
            chunks,
            offset=start,
            backlog_bytes=found.backlog_bytes,
            max_offset=found.max_offset,
            require_slow=reader.tags is not None and remaining < limits.FILTER_NEAR_END,
            left_out=self._left_out(get, left_out),
            next_offset=found.next_offset,
        )
        if get.request.timeout_ms > 0:
            get.caller.connection.write(frame)
        if remaining:
            self._announce(reader, wake=False)

    def _answer_nothing(
        self, get: Get, next_offset: int | None = None, left_out: Sequence[int] = ()
    ) -> None:
        """Success without messages: ask again at once."""
        reader = get.reader
        offset = reader.position.offset if next_offset is None else next_offset
        frame = get_reply(
            get.request.serial,
            [],
            offset=offset,
            backlog_bytes=0,
            max_offset=self._state.store.queue_range(reader.topic, reader.partition)[1],
            require_slow=False,
            left_out=self._left_out(get, left_out),
            next_offset=offset,
        )
        if get.request.timeout_ms > 0:
            get.caller.connection.write(frame)

    @staticmethod
    def _left_out(get: Get, left_out: Sequence[int]) -> list[range]:
        """What a get leaves out, as runs of offsets; logged where there is something."""
        if not left_out:
            return []
        runs = joined(range(offset, offset + 1) for offset in left_out)
        reader = get.reader
        _log.warning(
            "Partition %d of topic %s, group %s: left out, because it is damaged on disk, or not "
            "compressed though its flag says so: %s",
            reader.partition,
            reader.topic,
            reader.group,
            described(runs),
        )
        return runs

    # -- waiting

    def _hold(self, get: Get, now_ms: int) -> None:
        reader, consumer = get.reader, get.reader.consumer
        if consumer.announced and reader.told != consumer.round:
            reader.told = consumer.round
            self._answer_nothing(get)
            return
        get.deadline_ms = now_ms + min(self._state.options.hold_ms, get.request.timeout_ms // 2)
        self._waiting[reader] = get

    def _announce(self, reader: Reader, *, wake: bool) -> None:
        if reader.announced:
            return
        consumer = reader.consumer
        reader.announced = True
        consumer.announced += 1
        consumer.round += 1
        if not wake:
            return
        for other in self._state.leases.held_by(reader.holder):
            get = self._waiting.get(other)
            if get is not None:
                other.told = consumer.round
                self._forget(get)
                self._answer_nothing(get)

    def _forget(self, get: Get) -> None:
        self._waiting.pop(get.reader, None)

    def _drop(self, reader: Reader, code: ResultCode, text: str) -> None:
        get = self._waiting.pop(reader, None)
        if get is not None:
            get.caller.reply(get.request, refuse_get(code, text))

    def _began(self, reader: Reader) -> None:
        if (
            reader.position.offset
            < self._state.store.queue_range(reader.topic, reader.partition)[1]
        ):
            self._announce(reader, wake=True)

    def _ended(self, reader: Reader, code: ResultCode, text: str) -> None:
        self._drop(reader, code, text)


def _pass(get: Get, offset: int, status: ReadStatus) -> None:
    """Go on at an offset, with nothing delivered.

    What is before it was passed over by the filter, deleted by age, or cannot be delivered; or the
    partition is younger than the position (8.7).
    """
    position = get.reader.position
    if get.manual and status in _PASSED_OVER:
        position.delta = offset - position.offset
    else:
        position.offset = offset
        position.delta = 0


def _cut(found: ReadResult, count: int) -> ReadResult:
    """What was found as far as some of its records: the next read begins at the one behind them."""
    return replace(
        found,
        records=found.records[:count],
        offsets=found.offsets[:count],
        next_offset=found.offsets[count],
        backlog_bytes=found.backlog_bytes + sum(map(len, found.records[count:])),
    )


def refuse_get(code: ResultCode, text: str, wait_ms: int = 0) -> pb.GetMessageResponseB2C:
    """The answer that refuses a get.

    Args:
        code: why.
        text: the same in words.
        wait_ms: how long to wait before the next one, with 452.
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
