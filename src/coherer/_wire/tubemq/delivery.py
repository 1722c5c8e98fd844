"""The hot path of receiving: answers of method 17, written by a broker and read by a consumer.

Writing: a delivered message is a `TransferedMessage` around the payload as it was sent. Apart from
the payload it consists of two short pieces of bytes (`message_envelope`), and an answer is a
sequence of such pieces and slices of files between a beginning and an end (`encode_get_response`).

Reading: `MessageBatch` parses an answer when it is created and decodes the messages on first use.
As Java's client does (docs/protocol/tubemq.md, section 4.8.1), it skips messages with a wrong
checksum or attributes that do not fit. For a consumer with filters it also skips messages with
other tags, because the broker filters by a hash of the tag.

Offsets do not follow from positions in an answer: Coherer's broker lists the offsets of messages
that it leaves out because they cannot be delivered, and where the read ended. It does so in fields
of its own (1001, 1002), which other clients ignore, and only if something is left out. `skipped`
counts the messages that broker and client leave out; where offsets are exact, `left_out` lists
them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import repeat
from struct import Struct as Layout
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from coherer._common.checksum import crc32
from coherer._record.bad_record import BadRecord
from coherer._record.offset_ranges import from_runs, joined, to_runs
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.bad_records import bad_record
from coherer._wire.tubemq.envelope import CONTINUED, VARINTS, response_head, varint
from coherer._wire.tubemq.frame import HEAD_ONE, TOKEN, encode_frame
from coherer._wire.tubemq.methods import GET_MESSAGES, UNDEFINED, parse
from coherer._wire.tubemq.payload import HAS_ATTRIBUTES, decode_attributes
from coherer._wire.tubemq.stored import read_records
from coherer.message import ReceivedMessage

# Only columns need numpy and pyarrow, which are extras.
if TYPE_CHECKING:
    import pyarrow as pa

    from coherer._wire.tubemq.scanned import Rows

SUCCESS: Final = 200
_CRC_MASK: Final = 0x7FFFFFFF
_LENGTH: Final = Layout(">i")
_14_BITS: Final = (1 << 14) - 1
_TAILS: Final = {0: b"\x20\x00", 1: b"\x20\x01"}
_NEXT_OFFSET: Final = varint(1001 << 3)
_FIRST_ID: Final = varint(1003 << 3)
_RECORDS: Final = varint(1004 << 3 | 2)
_BEGIN: Final = b"\x08\x01\x10\xc8\x01\x1a\x03OK!"  # success, 200, OK!
_VARINT: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_BEFORE_RECORDS: Final = re.compile(
    b"(%b)%b(%b)"
    % (
        _VARINT.join((re.escape(_BEGIN + b"\x28"), b"@", b"P", _NEXT_OFFSET, _FIRST_ID, b"")),
        _RECORDS,
        _VARINT,
    )
).match
"""As `encode_records` writes it."""


def message_envelope(
    message_id: int, checksum: int, data_size: int, flag: int
) -> tuple[bytes, bytes]:
    """Return the bytes before and after the payload of a delivered message in an answer.

    Args:
        message_id: the broker's id for the message.
        checksum: `payload.checksum` of the payload.
        data_size: its size in bytes.
        flag: the flag as sent.

    >>> before, after = message_envelope(1, 421552847, 5, 0)
    >>> answer = pb.GetMessageResponseB2C.FromString(before + b"plain" + after)
    >>> answer.messages[0].payLoadData
    b'plain'
    """
    # Seven of eight checksums take five bytes. Then everything but the lower 28 bits of both
    # numbers equals that of the previous message of the same length.
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
    """Return the pieces around the lower bits of id and checksum, for a checksum of 5 bytes."""
    id_end = varint(high_id) + b"\x10"
    middles = tuple([VARINTS[high] + b"\x1a" + varint(data_size) for high in range(8)])
    size = 1 + 4 + len(id_end) + 4 + len(middles[0]) + data_size + 2
    return b"\x22" + varint(size) + b"\x08", id_end, middles


def encode_get_response(
    serial: int,
    chunks: Sequence[bytes | memoryview],
    *,
    offset: int,
    backlog_bytes: int,
    max_offset: int,
    require_slow: bool,
    left_out: Sequence[range] = (),
    gaps: Sequence[range] = (),
    next_offset: int = 0,
) -> bytes:
    """Return the frame of a successful answer to a get.

    Args:
        chunks: pieces of the delivered messages; joined they are the answer's fields 4.
        offset: first offset of the read.
        backlog_bytes: unread bytes after the last message.
        max_offset: end of the partition as visible to this consumer.
        require_slow: whether a consumer with filters is close to the end.
        left_out: offsets of messages that cannot be delivered.
        gaps: offsets that a power cut left empty.
        next_offset: the offset after the last message that was read; written only together with
            `left_out` or `gaps`.
    """
    end = b"\x28%b\x30\x00\x38\x00\x40%b\x48%b\x50%b" % (
        varint(offset),
        varint(backlog_bytes),
        b"\x01" if require_slow else b"\x00",
        varint(max_offset),
    )
    if left_out or gaps:
        end += pb.GetMessageResponseB2C(
            nextOffset=next_offset,
            leftOut=to_runs(joined([*left_out, *gaps])),
            gaps=to_runs(gaps),
        ).SerializePartialToString()
    size = len(_BEGIN) + sum(map(len, chunks)) + len(end)
    head = response_head(GET_MESSAGES, size)
    return encode_frame(serial, b"".join((head, _BEGIN, *chunks, end)))


def encode_records(
    serial: int,
    slices: Sequence[bytes | memoryview],
    *,
    offset: int,
    next_offset: int,
    backlog_bytes: int,
    max_offset: int,
    first_id: int,
) -> list[bytes | memoryview]:
    """Return the frame of an answer with stored records, as pieces.

    Only Coherer's clients ask for such answers. Their frames consist of one block of any size.

    Args:
        slices: buffers that together contain the records.
        offset: first offset of the read.
        next_offset: the offset after the last record.
        backlog_bytes: unread bytes after the last record.
        max_offset: end of the partition as visible to this consumer.
        first_id: the id of a message at physical offset 0.
    """
    size = sum(map(len, slices))
    begin = b"%b\x28%b\x40%b\x50%b%b%b%b%b%b%b" % (
        _BEGIN,
        varint(offset),
        varint(backlog_bytes),
        varint(max_offset),
        _NEXT_OFFSET,
        varint(next_offset),
        _FIRST_ID,
        varint(first_id),
        _RECORDS,
        varint(size),
    )
    size += len(begin)
    head = response_head(GET_MESSAGES, size) + begin
    size += len(head) - len(begin)
    return [HEAD_ONE.pack(TOKEN, serial, 1, size), head, *slices]


class MessageBatch:
    """The messages of one answer, decoded on first use.

    Args:
        body: the serialized answer.
        topic: the topic.
        broker: the broker's id, as text.
        partition: the partition's number.
        exact_offsets: whether offsets count messages, and messages missing between two others
            cannot be delivered (Coherer's brokers, without filters).
        accepted_tags: the consumer's filters; None without filters.
        columns: decode all messages as columns, which needs numpy and pyarrow.

    Attributes:
        code: 200, or the code of the error; then the batch is empty.
        text: the error.
        wait_ms: with code 452, the time until the next read is allowed.
        offset: first offset of the read; -1 on failure.
        next_offset: the offset after the last message that was read; -1 on failure and if offsets
            are not exact.
        max_offset: end of the partition; -2 if the broker does not report it.
        backlog_bytes: unread bytes in the broker's file after the batch; -1 on failure.
        require_slow: whether a consumer with filters is close to the end.
        size_bytes: size of the answer.
        delivered: number of messages in the answer, including those that are skipped here.

    Raises:
        ProtocolError: the bytes are not such an answer.

    >>> before, after = message_envelope(1, 421552847, 5, 0)
    >>> answer = pb.GetMessageResponseB2C(success=True, errCode=200).SerializeToString()
    >>> batch = MessageBatch(answer + before + b"plain" + after, topic="demo", broker="1",
    ...                      partition=0, exact_offsets=True)
    >>> batch.bodies()
    [b'plain']
    """

    __slots__ = (
        "_accepted_tags",
        "_attributes",
        "_bad",
        "_bodies",
        "_body",
        "_columns",
        "_exact_offsets",
        "_first_id",
        "_ids",
        "_intact",
        "_left_out",
        "_offsets",
        "_records_at",
        "_rows",
        "_skipped",
        "_unread",
        "backlog_bytes",
        "broker",
        "code",
        "delivered",
        "gaps",
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
        columns: bool = False,
    ) -> None:
        head, records_at = _split_records(body)
        answer = parse(pb.GetMessageResponseB2C, head)
        size_bytes = len(body)
        if records_at is None and answer.HasField("records"):
            body, records_at = answer.records, 0
        self.topic = topic
        self.broker = broker
        self.partition = partition
        self.size_bytes = size_bytes
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
        self._columns = columns
        self._body = body
        self._records_at = records_at  # where stored records begin in the body
        self._first_id = answer.firstId
        self._intact = True
        self._unread: pb.GetMessageResponseB2C | None = answer if answer.success else None
        self.next_offset = -1
        self._left_out = from_runs(answer.leftOut) if answer.leftOut else []
        self.gaps = from_runs(answer.gaps) if answer.gaps else []
        if exact_offsets and answer.success:
            named = answer.HasField("nextOffset")
            self.next_offset = answer.nextOffset if named else self.offset + self.delivered
        if records_at is not None:
            self.delivered = max(answer.nextOffset - answer.currOffset, 0)
        self._skipped = sum(map(len, self._left_out))
        self._offsets: Sequence[int] = ()  # where they are exact
        self._rows: Rows | None = None  # the messages; otherwise they are in the lists
        self._ids: list[int] = []
        self._attributes: list[bytes | None] = []
        self._bodies: list[bytes] = []
        self._bad: list[BadRecord] = []

    def __repr__(self) -> str:
        where = f"{self.broker}:{self.topic}:{self.partition}"
        if self.code != SUCCESS:
            return f"<MessageBatch of {where}: {self.code} {self.text}>"
        return f"<MessageBatch of {where} from {self.offset}: {len(self)} messages>"

    def __len__(self) -> int:
        self._read(as_columns=self._columns)
        return len(self._bodies if self._rows is None else self._rows.bodies)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        self._list()
        topic, broker, partition = self.topic, self.broker, self.partition
        offsets = self._offsets if self._exact_offsets else repeat(None, len(self._bodies))
        for id_, attributes, body, offset in zip(
            self._ids, self._attributes, self._bodies, offsets, strict=True
        ):
            tag, time, properties = (
                decode_attributes(attributes.decode(errors="replace"))
                if attributes
                else (None, None, {})
            )
            yield ReceivedMessage(
                topic, body, tag, time, (), properties, str(id_), broker, partition, offset
            )

    @property
    def intact(self) -> bool:
        """Whether the stored records could be read; True for an answer with messages.

        If not, the broker's log is damaged, or the bodies are compressed and too large, and the
        batch is useless: ask for messages instead.
        """
        if self._records_at is not None:
            self._read(as_columns=self._columns)
        return self._intact

    @property
    def skipped(self) -> int:
        """How many messages were left out because they cannot be delivered."""
        self._read(as_columns=self._columns)
        return self._skipped

    @property
    def left_out(self) -> list[range]:
        """The offsets of the messages that were left out, where offsets are exact.

        They may lie before `offset`, if the broker skipped messages before the first one.
        """
        self._read(as_columns=self._columns)
        return self._left_out

    def bodies(self) -> list[bytes]:
        """Return the body of each message; do not modify the list."""
        self._list()
        return self._bodies

    def offsets(self) -> Sequence[int]:
        """Return the offset of each message; empty where offsets are not exact."""
        self._read(as_columns=self._columns)
        return self._offsets

    def before(self, end: int) -> MessageBatch:
        """Return the messages below an offset. The batch must have exact offsets.

        Args:
            end: the offset after the last message to return.

        >>> before, after = message_envelope(1, 421552847, 5, 0)
        >>> answer = pb.GetMessageResponseB2C(success=True, errCode=200, currOffset=7)
        >>> batch = MessageBatch(
        ...     answer.SerializeToString() + 2 * (before + b"plain" + after),
        ...     topic="demo", broker="1", partition=0, exact_offsets=True)
        >>> [message.offset for message in batch.before(8)]
        [7]
        """
        if not self._exact_offsets or self.next_offset <= end:
            return self
        self._read(as_columns=self._columns)
        part = copy(self)
        part.next_offset = end
        part._left_out = [run for run in (_below(run, end) for run in self._left_out) if run]
        part._skipped = sum(map(len, part._left_out))
        count = bisect_left(self._offsets, end)
        part.delivered = count + part._skipped
        part._offsets = self._offsets[:count]
        part._bad = [one for one in self._bad if one.offset is None or one.offset < end]
        part._rows = None if self._rows is None else self._rows.part(count)
        part._ids = self._ids[:count]
        part._attributes = self._attributes[:count]
        part._bodies = self._bodies[:count]
        return part

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return the batch as columns.

        | column | type | |
        |---|---|---|
        | topic, broker | string | |
        | partition | int32 | |
        | offset | int64 | the message's offset if exact, else the first offset of the read |
        | id | int64 | the broker's id |
        | tag, time | string | null if missing; the time as on the wire |
        | value | binary | the body |
        | properties | map of strings | the other attributes |

        No object is created per message.

        Args:
            columns: the columns to return, in this order; None for all. Only these are decoded.
        """
        from coherer._wire.tubemq.columns import CodedTexts, Messages

        self._read(as_columns=True)
        rows = self._rows
        found = Messages(
            topic=self.topic,
            broker=self.broker,
            partition=self.partition,
            offsets=self._offsets if self._exact_offsets else self.offset,
            ids=self._ids if rows is None else rows.ids,
            attributes=CodedTexts(self._attributes) if rows is None else rows.attributes,
            bodies=self._bodies if rows is None else rows.bodies,
        )
        return found.to_arrow(columns)

    def bad_records(self) -> list[BadRecord]:
        """Return the records that are left out because they are bad."""
        self._read(as_columns=self._columns)
        return self._bad

    # -- decoding

    def _read(self, *, as_columns: bool = False) -> None:
        """Decode the messages of the answer, once."""
        answer, self._unread = self._unread, None
        if answer is None:
            return
        unwanted: list[int] = []
        if self._records_at is not None:
            bad = self._read_records(self._records_at, as_columns=as_columns)
            self._intact = bad is not None
            if bad is None:
                return
        elif as_columns and self._accepted_tags is None and (rows := self._read_columns()):
            bad = rows.bad
        else:
            bad = self._read_messages(answer.messages, unwanted)
        self._body = b""
        self._skipped += len(bad)
        at: Sequence[int] | None = None
        if self._exact_offsets:
            at = self._assign_offsets([*bad], unwanted)
        for number, one in bad.items():
            self._bad.append(one if at is None else replace(one, offset=at[number]))

    def _list(self) -> None:
        """Decode the messages as lists."""
        self._read(as_columns=self._columns)
        rows, self._rows = self._rows, None
        if rows is not None:
            self._ids = rows.ids.tolist()
            self._attributes = rows.attributes.to_list()
            self._bodies = cast("list[bytes]", rows.bodies.to_pylist())

    def _read_columns(self) -> Rows | None:
        from coherer._wire.tubemq.scanned import scan_messages

        self._rows = scan_messages(self._body)
        return self._rows

    def _read_records(self, at: int, *, as_columns: bool) -> Mapping[int, BadRecord] | None:
        """Decode stored records; return the bad ones by their numbers, None if that is impossible.

        Args:
            at: where they begin in the body.
        """
        offsets = range(self.offset, self.next_offset)
        if as_columns:
            from coherer._wire.tubemq.scanned import scan_records

            records = memoryview(self._body)[at:]
            self._rows = scan_records(records, offsets, self.partition, self._first_id)
            return self._rows and self._rows.bad
        found = read_records(self._body, offsets, self.partition, self._first_id, at=at)
        if found is None:
            return None
        self._ids, self._attributes, self._bodies, bad = found
        return bad

    def _read_messages(
        self, messages: Sequence[pb.TransferedMessage], unwanted: list[int]
    ) -> dict[int, BadRecord]:
        """Decode messages one by one; return the bad ones by their numbers in the answer.

        Adds the numbers of messages with unwanted tags to `unwanted`.
        """
        accepted, length_of = self._accepted_tags, _LENGTH.unpack_from
        damaged: list[int] = []
        for number, message in enumerate(messages):
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
        return {
            number: bad_record(one.payLoadData, one.checkSum, message_id=one.messageId)
            for number, one in ((number, messages[number]) for number in damaged)
        }

    def _assign_offsets(self, damaged: list[int], unwanted: list[int]) -> Sequence[int]:
        """Find the offsets of delivered and omitted messages; return those of all in the answer."""
        if not self._left_out and not damaged and not unwanted:
            self._offsets = range(self.offset, self.offset + self.delivered)
            return self._offsets
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
        return offsets


def _split_records(body: bytes) -> tuple[bytes, int | None]:
    """Split an answer of `encode_records` into its fields and where the records begin."""
    found = _BEFORE_RECORDS(body)
    if found is None or found.end() + _varint_of(found[2]) != len(body):
        return body, None
    return found[1], found.end()


def _varint_of(text: bytes) -> int:
    return sum((octet & 0x7F) << 7 * number for number, octet in enumerate(text))


def _below(run: range, end: int) -> range:
    return range(run.start, min(run.stop, end))


@lru_cache(maxsize=4096)
def _tag(attributes: bytes | None) -> str | None:
    return decode_attributes((attributes or b"").decode(errors="replace"))[0]
