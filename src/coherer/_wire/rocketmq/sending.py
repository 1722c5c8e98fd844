"""The hot path of sending: requests and answers assembled from their bytes.

A producer sends the same group and topic with every message, so `SendEncoder` keeps their bytes.
The result equals, byte for byte, what `command.encode` makes of a `headers.SendHeader` with the
broker's name, or of a `headers.SendResult`; tests prove it. See docs/protocol/rocketmq.md,
section 2.4.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from coherer._record.layout import NO_HOST
from coherer._record.system_topics import AUTO_CREATE_TOPIC
from coherer._wire.rocketmq import fastjson
from coherer._wire.rocketmq.codes import PYTHON, V4_9_3, RequestCode
from coherer._wire.rocketmq.command import ONEWAY, RESPONSE
from coherer._wire.rocketmq.frame import PREFIX
from coherer._wire.rocketmq.headers.broker_name import with_broker
from coherer.errors import ProtocolError
from coherer.limits import REMOTING_BYTES_MAX

QUEUES_DEFAULT: Final = 4
"""Number of queues of a topic that a send creates."""

_quote: Final = msgspec.json.Encoder().encode
_V2: Final = RequestCode.SEND_MESSAGE_V2  # 320 and 325 have the same fields
_AROUND: Final = 4  # the word of type and header length


class SendEncoder:
    """Encodes sends to one topic.

    Args:
        group: the producer's group.
        broker: the name of the broker that gets the messages; empty to leave it out.
        unit_mode: the producer belongs to a unit.

    >>> frame = SendEncoder("p", "demo").encode(1, 0, b"hello", "", born_ms=5)
    >>> frame[8:].decode()[:56]
    '{"code":310,"extFields":{"a":"p","b":"demo","c":"TBW102"'
    """

    __slots__ = ("_end", "_start", "_unit_mode")

    def __init__(
        self,
        group: str,
        topic: str,
        broker: str = "",
        *,
        unit_mode: bool = False,
    ) -> None:
        fields = {"a": group, "b": topic, "c": AUTO_CREATE_TOPIC, "d": str(QUEUES_DEFAULT)}
        # Names and values without the closing brace.
        self._start = fastjson.dumps_strict(fields)[:-1].replace(b"%", b"%%")
        self._unit_mode = b"true" if unit_mode else b"false"
        self._end = fastjson.dumps_strict(with_broker(_V2, {}, broker))[1:].replace(b"%", b"%%")

    def encode(
        self,
        opaque: int,
        queue_id: int,
        body: bytes | memoryview,
        properties: str,
        *,
        born_ms: int,
        sys_flag: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        batch: bool = False,
        oneway: bool = False,
    ) -> bytes:
        """Return the frame of one send.

        Args:
            opaque: from `Session.next_opaque`.
            queue_id: the queue; if negative, the broker chooses one.
            body: the message's body, or a batch.
            properties: the property text.
            born_ms: the current time, ms since 1970.
            sys_flag: bits of section 5.3.
            flag: the user's flag.
            reconsume_times: number of earlier deliveries.
            max_reconsume_times: most redeliveries; only for retry topics.
            code: 310, 320 or 325.
            batch: the body is a batch.
            oneway: the broker does not answer.

        Raises:
            ProtocolError: the frame would be larger than any broker accepts.
        """
        try:
            text = _quote(properties)
        except UnicodeEncodeError:
            text = fastjson.dumps(properties)
        template = _template(
            self._start, self._end, self._unit_mode, code, max_reconsume_times, batch, oneway
        )
        header = template % (queue_id, sys_flag, born_ms, flag, text, reconsume_times, opaque)
        size = len(header)
        length = _AROUND + size + len(body)
        if length + _AROUND > REMOTING_BYTES_MAX:
            raise ProtocolError(f"A frame of {length} bytes is larger than {REMOTING_BYTES_MAX}.")
        return b"".join((PREFIX.pack(length, size), header, body))


@lru_cache(maxsize=4096)
def _template(
    start: bytes,
    end: bytes,
    unit_mode: bytes,
    code: int,
    max_reconsume_times: int | None,
    batch: bool,
    oneway: bool,
) -> bytes:
    """Return the header of a send with placeholders for the fields that differ."""
    limit = b"" if max_reconsume_times is None else b'"l":"%d",' % max_reconsume_times
    return b"".join(
        (
            b'{"code":%d,"extFields":' % code,
            start,
            b',"e":"%d","f":"%d","g":"%d","h":"%d","i":%b,"j":"%d","k":"',
            unit_mode,
            b'",',
            limit,
            b'"m":"true"' if batch else b'"m":"false"',
            end if end == b"}" else b"," + end,
            b',"flag":%d,"language":"%b","opaque":' % (ONEWAY if oneway else 0, PYTHON.encode()),
            b'%d,"serializeTypeCurrentRPC":"JSON","version":',
            b"%d}" % V4_9_3,
        )
    )


class SendResponseEncoder:
    """Encodes a broker's answers to sends.

    Args:
        trace_on: whether producers send traces.
        store_host: address and port at the beginning of the broker's offset message ids.

    >>> answers = SendResponseEncoder()
    >>> frame = answers.encode(7, "0A00000100002A9F0000000000001000", 1, 42)
    >>> frame[8:].decode()[:75]
    '{"code":0,"extFields":{"msgId":"0A00000100002A9F0000000000001000","queueId"'
    """

    __slots__ = ("_end", "_usual")

    def __init__(
        self, region: str = "DefaultRegion", *, trace_on: bool = True, store_host: bytes = NO_HOST
    ) -> None:
        fields = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
        flag = b'"flag":%d,"language":"%b"' % (RESPONSE, PYTHON.encode())
        self._end = b",%b,%b" % (fastjson.dumps_strict(fields)[1:], flag)
        self._usual = b"".join(
            (
                b'{"code":0,"extFields":{"msgId":"',
                store_host.hex().upper().encode(),
                b'%016X","queueId":"%d","queueOffset":"%d"',
                self._end.replace(b"%", b"%%"),
                b',"opaque":%d,"serializeTypeCurrentRPC":"JSON",',
                b'"version":%d}' % V4_9_3,
            )
        )

    def encode_success(
        self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int
    ) -> tuple[bytes, bytes]:
        """Return the two pieces of the answer SUCCESS to a single message.

        Args:
            opaque: number of the request.
            physical_offset: offset of the record in the log, part of the offset message id.
        """
        header = self._usual % (physical_offset, queue_id, queue_offset, opaque)
        size = len(header)
        return PREFIX.pack(_AROUND + size, size), header

    def encode(
        self,
        opaque: int,
        msg_id: str,
        queue_id: int,
        queue_offset: int,
        *,
        code: int = 0,
        transaction_id: str | None = None,
    ) -> bytes:
        """Return the frame that confirms a message.

        Args:
            opaque: number of the request.
            msg_id: the offset message id; for a batch, all of them joined by commas.
            queue_offset: offset of the (first) message in the queue.
            code: 0; or 10, 11 or 12 if the message is stored but not flushed or replicated.
            transaction_id: the transaction id of a half message.
        """
        transaction = b""
        if transaction_id is not None:
            transaction = b',"transactionId":%b' % _quote(transaction_id)
        header = b'{"code":%d,"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d"%b%b' % (
            code,
            msg_id.encode(),
            queue_id,
            queue_offset,
            transaction,
            self._end,
        )
        header += b',"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % (opaque, V4_9_3)
        size = len(header)
        return PREFIX.pack(_AROUND + size, size) + header
