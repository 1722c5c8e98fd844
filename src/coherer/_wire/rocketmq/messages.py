r"""A user's message as RocketMQ carries it (docs/protocol/rocketmq.md, sections 5.3 to 5.9).

| `Message` | RocketMQ |
|---|---|
| `tag` | property `TAGS` |
| `keys` | property `KEYS`, joined by one space |
| `time` | property `$msgTime$`; without it a received message has its born time |
| `properties` | all other properties whose names have no meaning in RocketMQ |

Batches are in `coherer._record.batches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, cast

from coherer._common.moments import moment
from coherer._record import compression
from coherer._record import properties as text
from coherer._record.properties import decode_time, encode_time
from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX
from coherer.message import Message, Receipt, ReceivedMessage

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
HIDDEN: Final = text.RESERVED | {text.TIME, text.TUBE_MARK}
"""Names of properties that are not user properties."""

_SURE_BYTES: Final = PROPERTIES_BYTES_MAX // 4


class EncodedMessage(NamedTuple):
    """The parts of a message in a send request.

    Args:
        body: the stored body, perhaps compressed.
        properties: the property text.
        sys_flag: bit 0 marks a compressed body.
    """

    body: bytes
    properties: str
    sys_flag: int


class StoredMessage(ReceivedMessage, frozen=True, repr_omit_defaults=True):
    """A message from a RocketMQ broker.

    `id` is the offset message id and `properties` are the user's. `time` is the sender's time, or
    the born time in UTC. `topic` is the topic that the message was sent to, also for a message of a
    retry topic.

    Args:
        unique_id: the id that the sender assigned; "" without one.
        born_ms: the sender's time when the message was sent, ms since 1970.
        stored_ms: the broker's time when the message was stored.
        attempt: number of earlier deliveries; 0 the first time.
        flag: the user's flag.
        sys_flag: bits of section 5.3.
        physical_offset: its offset in the broker's log.
        stored_properties: all properties as stored.
    """

    HIDDEN: ClassVar[tuple[str, ...]] = (
        "born_ms",
        "stored_ms",
        "sys_flag",
        "physical_offset",
        "stored_properties",
    )

    unique_id: str = ""
    born_ms: int = 0
    stored_ms: int = 0
    attempt: int = 0
    flag: int = 0
    sys_flag: int = 0
    physical_offset: int = 0
    stored_properties: Mapping[str, str] = _NOTHING


class SendReceipt(Receipt, frozen=True, gc=False):
    """A RocketMQ broker's confirmation of a message.

    `id` is the offset message id; for a batch, all of them joined by commas.

    Args:
        unique_id: the id that the sender assigned.
        status: SEND_OK; or FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE if the
            broker stored the message but could not flush or replicate it as configured.
        region: the broker's region.
        transaction_id: the transaction id of a half message.
    """

    unique_id: str = ""
    status: str = "SEND_OK"
    region: str = ""
    transaction_id: str = ""


def encode_message(
    message: Message,
    *,
    unique_id: str = "",
    system: Mapping[str, str] = _NOTHING,
    compress_from_bytes: int = compression.THRESHOLD_BYTES,
    level: int = compression.LEVEL,
) -> EncodedMessage:
    r"""Encode a message for a send request.

    Args:
        unique_id: the id that the sender assigned; "" for none.
        system: properties with a meaning in RocketMQ, for example `DELAY`.
        compress_from_bytes: bodies of this size or more are compressed; 0 disables compression.
        level: the compression level.

    Raises:
        UsageError: the body is empty, or a property is not valid.

    >>> encode_message(Message("flights", b"{}", tag="UA", keys=("k1", "k2"))).properties
    'TAGS\x01UA\x02KEYS\x01k1 k2'
    """
    body = message.body
    if not body:
        raise UsageError("The body of a message must not be empty.", topic=message.topic)
    parts = [f"{text.UNIQUE_KEY}\x01{unique_id}"] if unique_id else []
    if message.tag is not None or message.keys or message.time is not None:
        parts.append(_reserved_pairs(message.tag, message.keys, message.time))
    if message.properties:
        parts += _user_pairs(message.properties)
    parts += [f"{name}\x01{value}" for name, value in system.items()]
    properties = "\x02".join(parts)
    if len(properties) > _SURE_BYTES or not properties.isascii():
        _check_size(properties)
    if 0 < compress_from_bytes <= len(body):
        return EncodedMessage(compression.compress(body, level), properties, compression.COMPRESSED)
    return EncodedMessage(body, properties, 0)


@lru_cache(maxsize=1024)
def _reserved_pairs(tag: str | None, keys: tuple[str, ...], time: datetime | None) -> str:
    pairs: list[str] = []
    if tag is not None:
        pairs.append(f"{text.TAGS}\x01{_checked('tag', tag)}")
    if keys:
        if isinstance(cast("object", keys), str):  # its letters would be the keys
            raise TypeError("keys are a tuple")
        for key in keys:
            if " " in key:
                raise UsageError(f"Key {key!r} contains a space, which separates keys.")
            _checked("key", key)
        pairs.append(f"{text.KEYS}\x01{' '.join(keys)}")
    if time is not None:
        pairs.append(f"{text.TIME}\x01{encode_time(time)}")
    return "\x02".join(pairs)


def _user_pairs(properties: Mapping[str, str]) -> list[str]:
    if not HIDDEN.isdisjoint(properties):
        name = next(name for name in properties if name in HIDDEN)
        raise UsageError(
            f"The property name {name!r} is reserved.", hint="Give the property another name."
        )
    pairs: list[str] = []
    for name, value in properties.items():
        if "\x01" in name or "\x01" in value or not name.strip() or not value.strip():
            _checked("name of a property", name)
            _checked(f"value of {name!r}", value)
        pairs.append(f"{name}\x01{value}")
    if "\x02" in "".join(pairs):
        raise UsageError("A property contains U+0002, which separates properties.")
    return pairs


def _checked(what: str, word: str) -> str:
    if not word.strip():
        raise UsageError(f"The {what} is blank.", hint="RocketMQ would lose it; omit it.")
    if "\x01" in word or "\x02" in word:
        raise UsageError(f"The {what} contains U+0001 or U+0002, which separate properties.")
    return word


def _check_size(properties: str) -> None:
    try:
        size = len(properties.encode())
    except UnicodeEncodeError as error:
        raise UsageError("A property contains a lone surrogate.") from error
    if size > PROPERTIES_BYTES_MAX:
        raise UsageError(
            f"The properties have {size} bytes; at most {PROPERTIES_BYTES_MAX} are allowed."
        )


def user_properties(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the sender's user set.

    >>> user_properties({"TAGS": "UA", "flight": "1545", "$msgTime$": "201301010515"})
    {'flight': '1545'}
    """
    found = {name: value for name, value in stored.items() if name not in HIDDEN}
    if text.TIME in stored and decode_time(stored[text.TIME]) is None:
        found[text.TIME] = stored[text.TIME]
    return found


def time_of(stored: Mapping[str, str], born_ms: int) -> datetime:
    """Return a message's time: the sender's, otherwise the born time in UTC.

    >>> time_of({}, 1_650_000_000_000)
    datetime.datetime(2022, 4, 15, 5, 20, tzinfo=datetime.timezone.utc)
    """
    given = decode_time(stored[text.TIME]) if text.TIME in stored else None
    return given or moment(born_ms)
