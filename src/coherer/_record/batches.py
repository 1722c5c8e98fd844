r"""Batches: several messages of one topic in one request (docs/protocol/rocketmq.md, section 5.9).

A batch is a sequence of messages:

    size 4 · magic 4 (0) · CRC 4 (0) · flag 4 · body length 4 · body · properties length 2 ·
    properties

No message of a batch is compressed. A batch is the body of RocketMQ's code 320; Coherer's TubeMQ
client sends it to Coherer's broker (`SendMessageRequestP2B.batch`). `coherer._record.packing` makes
batches from Arrow columns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from coherer._record.layout import FIXED_BYTES
from coherer.errors import ProtocolError

_HEAD: Final = struct.Struct(">IIIII")
_HEAD_READ: Final = struct.Struct(">I8xiI")
_HEAD_BYTES: Final = 20
_SHORT: Final = struct.Struct(">H")
BATCH_ITEM_BYTES: Final = 22
"""Size of a message in a batch without its body and properties."""
BATCH_RECORD_BYTES: Final = FIXED_BYTES + 128
"""What a broker adds to them when it stores the message, besides the topic: hosts, the cluster's
name and the like. A broker compares the size of all records of a batch with its limit."""
BATCH_MESSAGES_MAX: Final = 16_000
"""Messages of a batch that a client sends: the answer has an id of 33 or 57 bytes for each, in a
header of 1 MiB at most."""


class BatchItems(NamedTuple):
    """The messages of a batch: the flag, body, and property text (UTF-8) of each."""

    flags: list[int]
    bodies: list[bytes]
    properties: list[bytes]


def encode_batch_item(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    r"""Encode one message of a batch.

    >>> encode_batch_item(b"b2", b"WAIT\x01true").hex(" ", -4)
    '00000021 00000000 00000000 00000000 00000002 62320009 57414954 01747275 65'
    """
    return b"".join(batch_item_parts(body, properties, flag))


def batch_item_parts(
    body: bytes, properties: bytes, flag: int = 0
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the pieces of one message of a batch, to be joined with those of the others."""
    size = BATCH_ITEM_BYTES + len(body) + len(properties)
    head = _HEAD.pack(size, 0, 0, flag & 0xFFFFFFFF, len(body))
    return head, body, _SHORT.pack(len(properties)), properties


def split_by_size(sizes: Sequence[int], limit_bytes: int) -> list[slice]:
    """Split a sequence of messages into batches that are not larger than the limit.

    None of them has more than `BATCH_MESSAGES_MAX` messages. A message that exceeds the limit alone
    becomes a batch, which the broker refuses.

    >>> split_by_size([40, 40, 40, 200, 10], 100)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    cuts: list[slice] = []
    begin = held = 0
    for number, size in enumerate(sizes):
        is_full = held + size > limit_bytes or number - begin >= BATCH_MESSAGES_MAX
        if number > begin and is_full:
            cuts.append(slice(begin, number))
            begin, held = number, 0
        held += size
    if begin < len(sizes):
        cuts.append(slice(begin, len(sizes)))
    return cuts


def decode_batch(data: bytes | memoryview) -> BatchItems:
    r"""Decode a batch.

    Raises:
        ProtocolError: a length does not fit.

    >>> decode_batch(encode_batch_item(b"b2", b"WAIT\x01true"))
    BatchItems(flags=[0], bodies=[b'b2'], properties=[b'WAIT\x01true'])
    """
    try:
        return _decode_alike(data) or _decode_each(bytes(data))
    except (struct.error, IndexError) as error:
        raise ProtocolError("A message of a batch is cut short.") from error


def _decode_alike(data: bytes | memoryview) -> BatchItems | None:
    """Decode messages of equal length; None if the lengths differ.

    It takes half the time, because each step is a loop in C over all messages.
    """
    if not data:
        return None
    size, _, length = _HEAD_READ.unpack_from(data)
    text_bytes = size - BATCH_ITEM_BYTES - length
    if text_bytes < 0 or len(data) % size or len(data) == size:
        return None
    items = struct.iter_unpack(f">I8xiI{length}sH{text_bytes}s", data)
    sizes, flags, lengths, bodies, texts_bytes, texts = zip(*items, strict=True)
    if {*sizes} != {size} or {*lengths} != {length} or {*texts_bytes} != {text_bytes}:
        return None
    return BatchItems([*flags], [*bodies], [*texts])


def _decode_each(whole: bytes) -> BatchItems:
    flags: list[int] = []
    bodies: list[bytes] = []
    texts: list[bytes] = []
    position, end = 0, len(whole)
    while position < end:
        size, flag, length = _HEAD_READ.unpack_from(whole, position)
        body = position + _HEAD_BYTES
        text = body + length + 2
        position += size
        if text + (whole[text - 2] << 8 | whole[text - 1]) != position or position > end:
            raise ProtocolError("The lengths in a message of a batch do not fit.")
        flags.append(flag)
        bodies.append(whole[body : text - 2])
        texts.append(whole[text:position])
    return BatchItems(flags, bodies, texts)


class PackedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one topic that are encoded as a batch.

    Args:
        topic: the topic of all messages.
        body: the batch.
        count: the number of messages.
        rows: for error messages, the number of each message's row.
        broker: the broker (RocketMQ: its name, TubeMQ: its id) that has to store them; any if None.
        partition: the queue or partition of that broker.
        alone: whether it is one message that is too large for a batch, and is sent as a message.
    """

    topic: str
    body: bytes | memoryview
    count: int
    rows: Sequence[int] = ()
    broker: str | None = None
    partition: int = 0
    alone: bool = False

    def halves(self) -> tuple[PackedMessages, PackedMessages]:
        """Two batches with half of the messages each; there must be two or more.

        >>> items = [encode_batch_item(body, b"") for body in (b"a", b"bc", b"d")]
        >>> packed = PackedMessages(topic="t", body=b"".join(items), count=3, rows=[7, 8, 9])
        >>> [decode_batch(half.body).bodies for half in packed.halves()]
        [[b'a'], [b'bc', b'd']]
        >>> [half.rows for half in packed.halves()]
        [[7], [8, 9]]
        """
        count, view = self.count // 2, memoryview(self.body)
        cut = 0
        for _ in range(count):
            cut += _HEAD_READ.unpack_from(view, cut)[0]
        first = msgspec.structs.replace(self, body=view[:cut], count=count, rows=self.rows[:count])
        second = msgspec.structs.replace(
            self, body=view[cut:], count=self.count - count, rows=self.rows[count:]
        )
        return first, second
