"""The answers to the sends of a batch, put together at once.

What the answers of a batch have in common is made once: the time, the upper part of the ids, and
for each length of the offset all from the frame's sizes to the id's text. The bytes are those of
`tubemq.sending.send_reply`, which tests hold them against.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct as Layout

from coherer._store import AppendResult
from coherer._wire.tubemq.envelope import answer_head
from coherer._wire.tubemq.frame import TOKEN
from coherer._wire.tubemq.methods import SEND_MESSAGE
from coherer._wire.tubemq.wire import CONTINUED, VARINTS, varint

_TOKEN_SERIAL = Layout(">Ii").pack
_SIZES = Layout(">ii").pack
_BEGIN = b"\x08\x01\x10\xc8\x01\x1a"  # success, 200, tag of the text
_LOW = (1 << 28) - 1
_14_BITS = (1 << 14) - 1


def send_replies(
    serials: Sequence[int], places: Iterable[AppendResult], first_id: int, append_ms: int
) -> bytes:
    """The frames that say that messages have been taken.

    Args:
        serials: of the requests.
        places: where their messages are.
        first_id: the id of a message at offset 0 of the log, at least 2 ** 28.
        append_ms: the broker's clock, ms since 1970.
    """
    frames: list[bytes] = []
    below = -1
    id_end, heads = b"", [b""]
    time = b"\x30" + varint(append_ms) + b"\x38"
    for serial, place in zip(serials, places, strict=True):
        message_id = first_id + place.physical_offset
        if message_id >= below:
            id_end = varint(message_id >> 28) + time
            digits = len(str(message_id))
            heads = _heads(digits, len(id_end))
            below = min((message_id | _LOW) + 1, 10**digits)
        offset = place.queue_offset
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
    """From the sizes of the frame to the text, by the length of the offset: 0 to 9 bytes."""
    heads: list[bytes] = []
    for offset_size in range(10):
        size = len(_BEGIN) + 1 + digits + 3 + 4 + id_end_size + offset_size
        head = answer_head(SEND_MESSAGE, size)
        heads.append(_SIZES(1, len(head) + size) + head + _BEGIN + VARINTS[digits])
    return heads
