"""Batches: the body of code 320 (5.9), several messages of one topic in one send.

```
size 4 · magic 4 (0) · CRC 4 (0) · flag 4 · body length 4 · body · properties length 2 · properties
```

Nothing in a batch is compressed, and the limit of a message applies to the whole body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from coherer._wire.rocketmq.messages import EncodedMessage
from coherer.errors import ProtocolError, UsageError

_HEAD: Final = struct.Struct(">IIIII")
_HEAD_READ: Final = struct.Struct(">I8xiI")
_HEAD_BYTES: Final = 20
_SHORT: Final = struct.Struct(">H")
BATCH_ITEM_BYTES: Final = 22
"""Size of an item without its body and properties."""


class BatchItems(NamedTuple):
    """The messages of a batch: the flag, body, and property text (UTF-8) of each."""

    flags: list[int]
    bodies: list[bytes]
    properties: list[bytes]


def encode_batch_item(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    r"""Write one message of a batch.

    >>> encode_batch_item(b"b2", b"WAIT\x01true").hex(" ", -4)
    '00000021 00000000 00000000 00000000 00000002 62320009 57414954 01747275 65'
    """
    return b"".join(batch_item_parts(body, properties, flag))


def batch_item_parts(
    body: bytes, properties: bytes, flag: int = 0
) -> tuple[bytes, bytes, bytes, bytes]:
    """The pieces of one message of a batch, for who joins those of all messages at once."""
    size = BATCH_ITEM_BYTES + len(body) + len(properties)
    head = _HEAD.pack(size, 0, 0, flag & 0xFFFFFFFF, len(body))
    return head, body, _SHORT.pack(len(properties)), properties


def encode_batch(messages: Iterable[EncodedMessage]) -> bytes:
    """Write the body of a batch.

    Args:
        messages: made with `compress_from_bytes=0`.

    Raises:
        UsageError: there is no message, or one is compressed.
    """
    items: list[bytes] = []
    for message in messages:
        if message.sys_flag:
            raise UsageError("Messages of a batch are not compressed.")
        items.append(encode_batch_item(message.body, message.properties.encode()))
    if not items:
        raise UsageError("A batch has at least one message.")
    return b"".join(items)


def item_bytes(message: EncodedMessage) -> int:
    """Give the size of a message in a batch."""
    properties = message.properties
    size = len(properties) if properties.isascii() else len(properties.encode())
    return BATCH_ITEM_BYTES + len(message.body) + size


def split_by_size(sizes: Sequence[int], limit_bytes: int) -> list[slice]:
    """Cut a sequence of messages into batches that are not larger than the limit.

    A message that is larger by itself is a batch of its own: the broker refuses it, with its words.

    >>> split_by_size([40, 40, 40, 200, 10], 100)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    cuts: list[slice] = []
    begin = held = 0
    for place, size in enumerate(sizes):
        if place > begin and held + size > limit_bytes:
            cuts.append(slice(begin, place))
            begin, held = place, 0
        held += size
    if begin < len(sizes):
        cuts.append(slice(begin, len(sizes)))
    return cuts


def decode_batch(data: bytes | memoryview) -> BatchItems:
    r"""Take a batch apart.

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
    """Messages of equal lengths, as records of a fixed form are; None where they are not.

    That costs half: a step is a loop in C over all of them.
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
