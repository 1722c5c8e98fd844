"""The hot path of receiving: answers of method 17, written by a broker and read by a consumer.

Writing. A delivered message is a `TransferedMessage` around the payload as it was sent. All but the
payload is two short pieces of bytes (`delivered_head`), and an answer is a sequence of such pieces
and slices of files between a beginning and an end (`get_reply`).

Reading. `MessageBatch` parses an answer when it is made and looks at the messages when it is first
asked for them. As Java's client does (4.8.1), it leaves out messages whose check sum is wrong or
whose attributes do not fit; and, for a consumer with filters, those whose tag is not among them,
because the broker filters by a hash of the tag.

Offsets belong to messages, not to their places in an answer: our broker names the offsets of the
messages that it leaves out because they cannot be delivered, and where the read ended. These are
its own fields (1001, 1002), which other clients pass over, and they are written only where
something is left out. What broker and client leave out is counted in `skipped`, and where offsets
are exact `left_out` says where it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache
from itertools import repeat
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final
from zlib import crc32

from coherer._record.offset_ranges import joined
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.envelope import answer_head
from coherer._wire.tubemq.frame import encode_frame
from coherer._wire.tubemq.methods import GET_MESSAGES, UNDEFINED, parse
from coherer._wire.tubemq.payload import HAS_ATTRIBUTES, decode_attributes
from coherer._wire.tubemq.wire import CONTINUED, VARINTS, varint
from coherer.message import ReceivedMessage

if TYPE_CHECKING:
    import pyarrow as pa

SUCCESS: Final = 200
_CRC_MASK: Final = 0x7FFFFFFF
_LENGTH: Final = Layout(">i")
_14_BITS: Final = (1 << 14) - 1
_TAILS: Final = {0: b"\x20\x00", 1: b"\x20\x01"}
_BEGIN: Final = b"\x08\x01\x10\xc8\x01\x1a\x03OK!"  # success, 200, OK!


def delivered_head(
    message_id: int, checksum: int, data_size: int, flag: int
) -> tuple[bytes, bytes]:
    """Returns what stands before and after the payload of a delivered message in an answer.

    Args:
        message_id: the broker's id for the message.
        checksum: `payload.checksum` of the payload.
        data_size: its size in bytes.
        flag: as it was sent.

    >>> before, after = delivered_head(1, 421552847, 5, 0)
    >>> answer = pb.GetMessageResponseB2C.FromString(before + b"plain" + after)
    >>> answer.messages[0].payLoadData
    b'plain'
    """
    # Of eight check sums seven take five bytes. Then all but the lower 28 bits of either number is
    # known from the message before, if that was as long.
    if 0 < checksum >> 28 < 8 and message_id >> 28 > 0 and flag in _TAILS:
        begin, id_end, middles = _frame(data_size, message_id >> 28)
        return (
            begin
            + CONTINUED[message_id & _14_BITS]
            + CONTINUED[message_id >> 14 & _14_BITS]
            + id_end
            + CONTINUED[checksum & _14_BITS]
            + CONTINUED[checksum >> 14 & _14_BITS]
            + middles[checksum >> 28]
        ), _TAILS[flag]
    head = b"\x08%b\x10%b\x1a%b" % (varint(message_id), varint(checksum), varint(data_size))
    tail = b"\x20" + varint(flag)
    return b"\x22" + varint(len(head) + data_size + len(tail)) + head, tail


@lru_cache(maxsize=4096)
def _frame(data_size: int, high_id: int) -> tuple[bytes, bytes, tuple[bytes, ...]]:
    """The pieces of a head around the lower bits of id and check sum; the latter has 5 bytes."""
    id_end = varint(high_id) + b"\x10"
    middles = tuple([VARINTS[high] + b"\x1a" + varint(data_size) for high in range(8)])
    size = 1 + 4 + len(id_end) + 4 + len(middles[0]) + data_size + 2
    return b"\x22" + varint(size) + b"\x08", id_end, middles


def get_reply(
    serial: int,
    chunks: Sequence[bytes | memoryview],
    *,
    offset: int,
    backlog_bytes: int,
    max_offset: int,
    require_slow: bool,
    left_out: Sequence[range] = (),
    next_offset: int = 0,
) -> bytes:
    """Returns the frame of a successful answer to a get.

    Args:
        serial: of the request.
        chunks: delivered messages, in pieces; joined they are fields 4 of the answer.
        offset: where the read began.
        backlog_bytes: what lies behind the last message read.
        max_offset: the end of the partition as this consumer may see it.
        require_slow: whether a consumer with filters is close to the end.
        left_out: the offsets of messages that cannot be delivered.
        next_offset: the offset behind the last message that the read dealt with; written only
            together with `left_out`.
    """
    end = b"\x28%b\x30\x00\x38\x00\x40%b\x48%b\x50%b" % (
        varint(offset),
        varint(backlog_bytes),
        b"\x01" if require_slow else b"\x00",
        varint(max_offset),
    )
    if left_out:
        runs = [number for run in left_out for number in (run.start, len(run))]
        end += pb.GetMessageResponseB2C(
            nextOffset=next_offset, leftOut=runs
        ).SerializePartialToString()
    size = len(_BEGIN) + sum(map(len, chunks)) + len(end)
    head = answer_head(GET_MESSAGES, size)
    return encode_frame(serial, b"".join((head, _BEGIN, *chunks, end)))


class MessageBatch:
    """The messages of one answer, decoded when they are asked for.

    Args:
        body: the serialized answer.
        topic: the topic that was read.
        broker: the broker's id, as text.
        partition: the partition's number.
        exact_offsets: whether offsets count messages, and every message between two of the answer
            is one that cannot be delivered (our brokers, without filters).
        accepted_tags: the consumer's filters; None when it has none.

    Attributes:
        code: 200, or why the broker gave no messages; then the batch is empty.
        text: why, in words.
        wait_ms: with code 452, how long the broker wants to be left alone.
        offset: where the read began (not where it ended); -1 on failure.
        next_offset: the offset behind the last message that the read dealt with; -1 on failure and
            where offsets are not exact.
        max_offset: the end of the partition; -2 when the broker does not tell.
        backlog_bytes: what lies behind the batch in the broker's file; -1 on failure.
        require_slow: whether a consumer with filters is close to the end.
        size_bytes: size of the answer.
        delivered: how many messages the answer holds, also those that are left out here.

    Raises:
        ProtocolError: the bytes are no such answer.

    >>> before, after = delivered_head(1, 421552847, 5, 0)
    >>> answer = pb.GetMessageResponseB2C(success=True, errCode=200).SerializeToString()
    >>> batch = MessageBatch(answer + before + b"plain" + after, topic="demo", broker="1",
    ...                      partition=0, exact_offsets=True)
    >>> batch.bodies()
    [b'plain']
    """

    __slots__ = (
        "_accepted_tags",
        "_attributes",
        "_bodies",
        "_exact_offsets",
        "_ids",
        "_left_out",
        "_offsets",
        "_skipped",
        "_unread",
        "backlog_bytes",
        "broker",
        "code",
        "delivered",
        "max_offset",
        "next_offset",
        "offset",
        "partition",
        "require_slow",
        "size_bytes",
        "text",
        "topic",
        "wait_ms",
    )

    def __init__(
        self,
        body: bytes,
        *,
        topic: str,
        broker: str,
        partition: int,
        exact_offsets: bool,
        accepted_tags: frozenset[str] | None = None,
    ) -> None:
        answer = parse(pb.GetMessageResponseB2C, body)
        self.topic = topic
        self.broker = broker
        self.partition = partition
        self.size_bytes = len(body)
        self.delivered = len(answer.messages)
        self.code = answer.errCode if not answer.success else SUCCESS
        self.text = answer.errMsg
        self.wait_ms = answer.minLimitTime
        self.offset = answer.currOffset if answer.HasField("currOffset") else -1
        self.max_offset = answer.maxOffset if answer.HasField("maxOffset") else UNDEFINED
        self.backlog_bytes = answer.currDataDlt if answer.HasField("currDataDlt") else -1
        self.require_slow = answer.requireSlow
        self._exact_offsets = exact_offsets
        self._accepted_tags = accepted_tags
        self._unread: pb.GetMessageResponseB2C | None = answer if answer.success else None
        self.next_offset = -1
        self._left_out = _runs(answer.leftOut) if answer.leftOut else []
        if exact_offsets and answer.success:
            named = answer.HasField("nextOffset")
            self.next_offset = answer.nextOffset if named else self.offset + self.delivered
        self._skipped = sum(map(len, self._left_out))
        self._offsets: Sequence[int] = ()  # where they are exact
        self._ids: list[int] = []
        self._attributes: list[bytes | None] = []
        self._bodies: list[bytes] = []

    def __repr__(self) -> str:
        where = f"{self.broker}:{self.topic}:{self.partition}"
        if self.code != SUCCESS:
            return f"<MessageBatch of {where}: {self.code} {self.text}>"
        return f"<MessageBatch of {where} from {self.offset}: {len(self)} messages>"

    def __len__(self) -> int:
        return len(self.bodies())

    def __iter__(self) -> Iterator[ReceivedMessage]:
        self._read()
        topic, broker, partition = self.topic, self.broker, self.partition
        for id_, attributes, body, offset in zip(
            self._ids, self._attributes, self._bodies, self._exact(), strict=True
        ):
            tag, time, properties = decode_attributes((attributes or b"").decode(errors="replace"))
            yield ReceivedMessage(
                topic, body, tag, time, (), properties, str(id_), broker, partition, offset
            )

    @property
    def skipped(self) -> int:
        """How many messages have been left out because they cannot be delivered."""
        self._read()
        return self._skipped

    @property
    def left_out(self) -> list[range]:
        """The offsets of the messages that have been left out, where offsets are exact.

        They may lie before `offset`: what a broker passes over before it finds a message.
        """
        self._read()
        return self._left_out

    def bodies(self) -> list[bytes]:
        """Returns the body of each message; do not change the list."""
        self._read()
        return self._bodies

    def offsets(self) -> Sequence[int]:
        """Returns the offset of each message, where offsets are exact; otherwise nothing."""
        self._read()
        return self._offsets

    def before(self, end: int) -> MessageBatch:
        """Returns the messages below an offset, of a batch with exact offsets.

        Args:
            end: the offset behind the last that is wanted.

        >>> before, after = delivered_head(1, 421552847, 5, 0)
        >>> answer = pb.GetMessageResponseB2C(success=True, errCode=200, currOffset=7)
        >>> batch = MessageBatch(
        ...     answer.SerializeToString() + 2 * (before + b"plain" + after),
        ...     topic="demo", broker="1", partition=0, exact_offsets=True)
        >>> [message.offset for message in batch.before(8)]
        [7]
        """
        if not self._exact_offsets or self.next_offset <= end:
            return self
        self._read()
        part = copy(self)
        part.next_offset = end
        part._left_out = [run for run in (_below(run, end) for run in self._left_out) if run]
        part._skipped = sum(map(len, part._left_out))
        count = bisect_left(self._offsets, end)
        part.delivered = count + part._skipped
        part._offsets = self._offsets[:count]
        part._ids = self._ids[:count]
        part._attributes = self._attributes[:count]
        part._bodies = self._bodies[:count]
        return part

    def to_arrow(self) -> pa.RecordBatch:
        """Returns the batch as columns.

        | column | type | |
        |---|---|---|
        | topic, broker | string | |
        | partition | int32 | |
        | offset | int64 | where the read began, unless offsets are exact |
        | id | int64 | the broker's id |
        | tag, time | string | null when the message has none; the time as it is on the wire |
        | value | binary | the body |
        | properties | map of strings | the other attributes |

        No object is made for a message.
        """
        from coherer._wire.tubemq.columns import record_batch

        self._read()
        return record_batch(
            topic=self.topic,
            broker=self.broker,
            partition=self.partition,
            offsets=self._exact(self.offset),
            ids=self._ids,
            attributes=self._attributes,
            bodies=self._bodies,
        )

    def _exact(self, otherwise: int | None = None) -> Iterable[int | None]:
        return self._offsets if self._exact_offsets else repeat(otherwise, len(self._bodies))

    def _read(self) -> None:
        """Looks at the messages of the answer, once."""
        answer, self._unread = self._unread, None
        if answer is None:
            return
        accepted, length_of = self._accepted_tags, _LENGTH.unpack_from
        damaged: list[int] = []  # places in the answer
        unwanted: list[int] = []
        for number, message in enumerate(answer.messages):
            data = message.payLoadData
            if crc32(data) & _CRC_MASK != message.checkSum:
                damaged.append(number)
                continue
            attributes = None
            if message.flag & HAS_ATTRIBUTES:  # as `split_payload`, without the call
                start = 4 + length_of(data)[0] if len(data) >= 4 else 5
                if start > len(data):
                    damaged.append(number)
                    continue
                if start > 4:
                    attributes = data[4:start]
                    data = data[start:]
                else:
                    data = data[4:]
            if accepted is None or _tag(attributes) in accepted:
                self._ids.append(message.messageId)
                self._attributes.append(attributes)
                self._bodies.append(data)
            else:
                unwanted.append(number)
        self._skipped += len(damaged)
        if self._exact_offsets:
            self._place(damaged, unwanted)

    def _place(self, damaged: list[int], unwanted: list[int]) -> None:
        """Finds out which offsets the messages have, and which those that are left out."""
        if not self._left_out and not damaged and not unwanted:
            self._offsets = range(self.offset, self.offset + self.delivered)
            return
        offsets: list[int] = []
        at, open_ = self.offset, self.delivered
        for run in self._left_out:
            count = min(max(run.start - at, 0), open_)
            offsets += range(at, at + count)
            open_ -= count
            at = max(at + count, run.stop)
        offsets += range(at, at + open_)
        dropped = {offsets[number] for number in (*damaged, *unwanted)}
        self._offsets = [offset for offset in offsets if offset not in dropped]
        lost = [range(offsets[number], offsets[number] + 1) for number in damaged]
        self._left_out = joined([*self._left_out, *lost])


def _runs(numbers: Sequence[int]) -> list[range]:
    """The runs of `leftOut`; what cannot be one is passed over."""
    return joined(
        range(first, first + count)
        for first, count in zip(numbers[::2], numbers[1::2], strict=False)
        if first >= 0 and count > 0
    )


def _below(run: range, end: int) -> range:
    return range(run.start, min(run.stop, end))


@lru_cache(maxsize=4096)
def _tag(attributes: bytes | None) -> str | None:
    return decode_attributes((attributes or b"").decode(errors="replace"))[0]
