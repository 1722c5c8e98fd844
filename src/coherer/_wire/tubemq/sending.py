"""The hot path of sending: requests and answers of method 13, assembled from their bytes.

A producer sends the same client id, topic, partition and address with every message, and mostly the
same tag, time and tokens. `SendEncoder` caches the bytes of these, and the beginning of the frame
for each length that occurred. The result equals, byte for byte, the frame that protobuf and
`ClientSession` make of a `SendMessageRequestP2B`; tests prove it.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Layout
from typing import Final

import msgspec

from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.envelope import VARINTS, encode_field, request_head, response_head, varint
from coherer._wire.tubemq.frame import TOKEN, encode_frame
from coherer._wire.tubemq.methods import BROKER_WRITE, SEND_MESSAGE, VERSION, parse
from coherer.limits import BLOCK_BYTES

_TOKEN_SERIAL: Final = Layout(">Ii")
_SIZES: Final = Layout(">ii")  # number of blocks, length of the first
_CACHE_MAX: Final = 4096
_NO_CHECKSUM: Final = -1
_BATCH_FIELD: Final = varint(1001 << 3 | 2)
SUCCESS: Final = 200


class SendEncoder:
    """Encodes sends to one partition.

    Args:
        client_id: the producer's id.
        partition: the partition's number.
        sent_addr: the producer's IPv4 address as a signed number, first octet highest.

    >>> encoder = SendEncoder("p", "demo", 0, 2130706433)
    >>> len(encoder.encode(1, b"hello", 0, "t1", None, b"", 10000))
    73
    """

    __slots__ = ("_address", "_begin", "_heads", "_tails")

    def __init__(self, client_id: str, topic: str, partition: int, sent_addr: int) -> None:
        request = encode_field(1, client_id.encode()) + encode_field(2, topic.encode())
        self._begin = request + b"\x18" + varint(partition) + b"\x22"
        self._address = b"\x30" + varint(_NO_CHECKSUM) + b"\x38" + varint(sent_addr)
        self._tails: dict[tuple[int, str | None, str | None, bytes], bytes] = {}
        self._heads: dict[tuple[int, int, int], bytes] = {}

    def encode(
        self,
        serial: int,
        data: bytes,
        flag: int,
        tag: str | None,
        time_text: str | None,
        authorized: bytes,
        timeout_ms: int,
    ) -> bytes:
        """Return the frame of one send.

        Args:
            serial: from `ClientSession.next_serial`.
            data: the payload, from `payload.encode_payload`.
            tag: the tag by which consumers filter.
            time_text: the message's time as `yyyyMMddHHmm`.
            authorized: a serialized `AuthorizedInfo`; empty without credentials.
            timeout_ms: time in which the broker has to answer, above zero.
        """
        tail = self._tails.get((flag, tag, time_text, authorized))
        if tail is None:
            tail = self._tail(flag, tag, time_text, authorized)
        head = self._heads.get((len(data), len(tail), timeout_ms))
        if head is None:
            head = self._head(len(data), len(tail), timeout_ms)
        if head:
            return _TOKEN_SERIAL.pack(TOKEN, serial) + head + data + tail
        return self._large(serial, data, tail, timeout_ms)

    def encode_batch(
        self, serial: int, batch: bytes | memoryview, authorized: bytes, timeout_ms: int
    ) -> bytes:
        """Return the frame of a batch, which only Coherer's broker accepts.

        Args:
            serial: from `ClientSession.next_serial`.
            batch: the messages (`coherer._record.batches`).
            authorized: a serialized `AuthorizedInfo`; empty without credentials.
            timeout_ms: time in which the broker has to answer, above zero.
        """
        begin = self._begin + b"\0" + self._tail(0, None, None, authorized)
        begin += _BATCH_FIELD + varint(len(batch))
        size = len(begin) + len(batch)
        head = request_head(BROKER_WRITE, SEND_MESSAGE, timeout_ms, VERSION, size)
        return encode_frame(serial, b"".join((head, begin, batch)))

    def _tail(self, flag: int, tag: str | None, time_text: str | None, authorized: bytes) -> bytes:
        tail = b"\x28" + varint(flag) + self._address
        if tag is not None:
            tail += encode_field(8, tag.encode())
        if time_text is not None:
            tail += encode_field(9, time_text.encode())
        if authorized:
            tail += encode_field(10, authorized)
        if len(self._tails) >= _CACHE_MAX:
            self._tails.clear()
        self._tails[flag, tag, time_text, authorized] = tail
        return tail

    def _head(self, data_size: int, tail_size: int, timeout_ms: int) -> bytes:
        """Return the bytes between serial number and data; empty if one block is too small."""
        begin = self._begin + varint(data_size)
        size = len(begin) + data_size + tail_size
        around = request_head(BROKER_WRITE, SEND_MESSAGE, timeout_ms, VERSION, size)
        length = len(around) + size
        head = _SIZES.pack(1, length) + around + begin if length <= BLOCK_BYTES else b""
        if len(self._heads) >= _CACHE_MAX:
            self._heads.clear()
        self._heads[data_size, tail_size, timeout_ms] = head
        return head

    def _large(self, serial: int, data: bytes, tail: bytes, timeout_ms: int) -> bytes:
        begin = self._begin + varint(len(data))
        size = len(begin) + len(data) + len(tail)
        head = request_head(BROKER_WRITE, SEND_MESSAGE, timeout_ms, VERSION, size)
        return encode_frame(serial, b"%b%b%b%b" % (head, begin, data, tail))


_REPLY_BEGIN: Final = b"\x08\x01\x10\xc8\x01\x1a"  # success, 200, tag of the text
_REPLY_MAX: Final = 80


def _reply_head(size: int) -> bytes:
    """Return a reply from its number of blocks up to `size` further bytes."""
    head = response_head(SEND_MESSAGE, len(_REPLY_BEGIN) + size) + _REPLY_BEGIN
    return _SIZES.pack(1, len(head) + size) + head


_REPLY_HEADS: Final = tuple(_reply_head(size) for size in range(_REPLY_MAX))


@lru_cache(maxsize=4)
def _append_time(time_ms: int) -> bytes:
    """Return the field of the time and the next tag: equal for messages stored together."""
    return b"\x30" + varint(time_ms) + b"\x38"


def encode_send_response(serial: int, message_id: int, append_ms: int, offset: int) -> bytes:
    """Return the frame that confirms a message.

    Args:
        message_id: the broker's id for the message.
        append_ms: the broker's time, ms since 1970.
        offset: the message's offset in its partition.

    >>> encode_send_response(3, 5, 1700000000500, 0).hex()[-32:]
    '1a01352000280530f4d395ffbc313800'
    """
    text = b"%d" % message_id
    inner = b"%b%b\x20\x00\x28%b%b%b" % (
        VARINTS[len(text)],
        text,
        varint(message_id),
        _append_time(append_ms),
        varint(offset),
    )
    return _TOKEN_SERIAL.pack(TOKEN, serial) + _REPLY_HEADS[len(inner)] + inner


class SendResponse(msgspec.Struct, frozen=True, gc=False):
    """A broker's answer to a send.

    Args:
        success: whether the message was stored.
        code: 200, or the code of the error.
        text: the error; empty on success.
        append_ms: the broker's time when it stored the message, ms since 1970.
        offset: its offset in the partition, in the broker's unit.
    """

    success: bool
    code: int
    text: str = ""
    message_id: int = 0
    append_ms: int = 0
    offset: int = 0


def parse_send_response(body: bytes) -> SendResponse:
    """Parse the answer to a send.

    Raises:
        ProtocolError: the body is not such an answer.
    """
    reply = parse(pb.SendMessageResponseB2P, body)
    if not reply.success:
        return SendResponse(False, reply.errCode, reply.errMsg)
    message_id = reply.messageId
    if not message_id and reply.errMsg.isdecimal():
        message_id = int(reply.errMsg)  # old brokers do not send it in a field
    return SendResponse(True, SUCCESS, "", message_id, reply.appendTime, reply.appendOffset)
