r"""The property text of a stored record: `name \x01 value \x02 name \x01 value …`, UTF-8.

Written without a trailing `\x02`, as Java 4.9.3 does; read with or without. Segments that Java
would drop (no separator, no name, no value, fewer than three characters) are dropped here too;
of two equal names the later wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX

NAME_SEPARATOR: Final = "\x01"
PAIR_SEPARATOR: Final = "\x02"

MINUTE_CHARS: Final = 12
MILLISECOND_CHARS: Final = 17

KEYS: Final = "KEYS"
"""Words that the message is indexed by, separated by one space."""
TAGS: Final = "TAGS"
"""The tag: one string."""
UNIQUE_KEY: Final = "UNIQ_KEY"
"""The id that the client made."""
WAIT: Final = "WAIT"
"""Whether the sender waits until the message is stored safely."""
DELAY: Final = "DELAY"
"""The delay level, in decimal."""
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"
"""Where a message belongs while it waits in the schedule topic or the half topic."""
CLUSTER: Final = "CLUSTER"
"""The name of the cluster, added by the broker."""
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Where a message was sent that now waits in a group's retry topic."""
TIME: Final = "$msgTime$"
"""What the message is about in time, as text (see `record.times`); the same in both doors."""
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""When a message is to be delivered: so many s or ms from now, or ms since 1970 (5.x)."""
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""When a timed message that waits, or has waited, is due, ms since 1970."""
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
"""When a timed message began to wait, and when that ended."""
TIMER_ROLLS: Final = "TIMER_ROLL_TIMES"
"""How often a timed message was stored again while it waited."""
TIMER_CANCEL: Final = "TIMER_DEL_UNIQKEY"
"""The topic and unique id of a timed message that is not to be delivered (5.x)."""
TUBE_MARK: Final = "TUBE"
"""Our TubeMQ door's note of how it stored a payload; users never see it."""

RESERVED: Final = frozenset(
    [
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "MSG_REGION",
        "TRACE_ON",
        "UNIQ_KEY",
        "CONSUME_START_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "TIMER_DELAY_LEVEL",
        TIMER_DELAY_SEC,
        TIMER_DELAY_MS,
        TIMER_DELIVER_MS,
        TIMER_OUT_MS,
        TIMER_ENQUEUE_MS,
        TIMER_DEQUEUE_MS,
        TIMER_ROLLS,
        TIMER_CANCEL,
    ]
)
"""Names that RocketMQ gives a meaning to: a user's properties use other names."""


def encode(properties: Mapping[str, str]) -> bytes:
    r"""Write properties as text.

    Raises:
        UsageError: a name or value holds a separator, is empty, or all is longer than
            `limits.PROPERTIES_BYTES_MAX`.

    >>> encode({"TAGS": "TagA", "KEYS": "k1 k2"})
    b'TAGS\x01TagA\x02KEYS\x01k1 k2'
    """
    for name, value in properties.items():
        joined = name + value
        if not name or not value:
            raise UsageError(f"Property {name!r} has no name or no value: it would be lost.")
        if NAME_SEPARATOR in joined or PAIR_SEPARATOR in joined:
            raise UsageError(
                f"Property {name!r} holds U+0001 or U+0002, which separate properties."
            )
    pairs = [name + NAME_SEPARATOR + value for name, value in properties.items()]
    try:
        data = PAIR_SEPARATOR.join(pairs).encode()
    except UnicodeEncodeError as error:
        raise UsageError("A property holds half a character (a lone surrogate).") from error
    if len(data) > PROPERTIES_BYTES_MAX:
        raise UsageError(
            f"Properties take {len(data)} bytes; a record holds {PROPERTIES_BYTES_MAX} at most."
        )
    return data


def decode(data: bytes | bytearray | memoryview) -> dict[str, str]:
    r"""Read property text. Never fails: what is no property is dropped, as Java does.

    >>> decode(b'TAGS\x01TagA\x02empty\x01\x02KEYS\x01k1 k2\x02')
    {'TAGS': 'TagA', 'KEYS': 'k1 k2'}
    """
    found: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split(PAIR_SEPARATOR):
        name, _, value = pair.partition(NAME_SEPARATOR)
        if name and value:
            found[name] = value
    return found


def index_keys(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Give the words that a message is indexed by, in Java's order.

    >>> index_keys({"KEYS": "k1  k2", "UNIQ_KEY": "0A"})
    ('0A', 'k1', 'k2')
    """
    words = [properties.get(UNIQUE_KEY, ""), *properties.get(KEYS, "").split(" ")]
    return tuple([word for word in words if word])


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Give Java's hash of a string, a signed 32-bit number.

    Java counts UTF-16 units: a character beyond U+FFFF counts as its two surrogates.

    >>> java_hash("TagA"), java_hash("refund"), java_hash("😀")
    (2598919, -934813832, 1772899)
    """
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(data), 2):
            value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tag_code(tag: str | None) -> int:
    """Give the code of a tag in the consume queue: its hash, 0 for none.

    >>> tag_code("TagB"), tag_code(None), tag_code("")
    (2598920, 0, 0)
    """
    return java_hash(tag) if tag else 0


@lru_cache(maxsize=1024)
def encode_time(time: datetime) -> str:
    """Write a time: to the minute if that is all of it, otherwise to the millisecond.

    Aware times become UTC.

    >>> encode_time(datetime(2024, 1, 2, 3, 4)), encode_time(datetime(2024, 1, 2, 3, 4, 5, 6789))
    ('202401020304', '20240102030405006')
    """
    if time.tzinfo is not None:
        time = time.astimezone(UTC)
    minute = f"{time.year:04}{time.month:02}{time.day:02}{time.hour:02}{time.minute:02}"
    if not time.second and time.microsecond < 1000:
        return minute
    return f"{minute}{time.second:02}{time.microsecond // 1000:03}"


@lru_cache(maxsize=1024)
def decode_time(text: str) -> datetime | None:
    """Read a time of either form; None when it is none. The result is naive.

    >>> decode_time("202401020304"), decode_time("yesterday")
    (datetime.datetime(2024, 1, 2, 3, 4), None)
    >>> decode_time("20240102030405006")
    datetime.datetime(2024, 1, 2, 3, 4, 5, 6000)
    """
    if not (text.isascii() and text.isdigit()):
        return None
    if len(text) not in (MINUTE_CHARS, MILLISECOND_CHARS):
        return None
    second, fraction = text[12:14] or "0", text[14:] or "0"
    try:
        return datetime(  # noqa: DTZ001 - the text knows no zones
            int(text[:4]),
            int(text[4:6]),
            int(text[6:8]),
            int(text[8:10]),
            int(text[10:12]),
            int(second),
            int(fraction) * 1000,
        )
    except ValueError:
        return None
