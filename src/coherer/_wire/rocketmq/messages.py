r"""A message as users hold it, and as RocketMQ carries it: body, flags, properties (5.3 to 5.8).

| `Message` | RocketMQ |
|---|---|
| `tag` | property `TAGS` |
| `keys` | property `KEYS`, joined by one space |
| `time` | property `$msgTime$`; without it a received message has the time when it was born |
| `properties` | the other properties whose names RocketMQ gives no meaning to |
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, cast

from coherer._record import compression
from coherer._record import properties as text
from coherer._record.times import decode_time, encode_time
from coherer.errors import UsageError
from coherer.limits import PROPERTIES_BYTES_MAX
from coherer.message import Message, Receipt, ReceivedMessage

TRANSACTION_MASK: Final = 12
"""Bits 2 and 3 of the sys flag: prepared 4, commit 8, rollback 12."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_HIDDEN: Final = text.RESERVED | {text.TIME, text.TUBE_MARK}
"""Names of which users see the meaning, or nothing, but not the property."""

_SURE_BYTES: Final = PROPERTIES_BYTES_MAX // 4


class Outgoing(NamedTuple):
    """What of a message goes into a send request.

    Args:
        body: as it is stored, perhaps compressed.
        properties: the property text.
        sys_flag: bit 0 says that the body is compressed.
    """

    body: bytes
    properties: str
    sys_flag: int


class StoredMessage(ReceivedMessage, frozen=True, repr_omit_defaults=True):
    """A message from a RocketMQ broker.

    `id` is the offset message id; `properties` are the user's; `time` is what the sender gave, or
    when the message was born (then in UTC). A message of a retry topic has the topic that it was
    sent to.

    Args:
        unique_id: the id that its sender made; "" when it made none.
        born_ms: the sender's clock when it was sent, ms since 1970.
        stored_ms: the broker's clock when it was stored.
        attempt: how often it was given back before: 0 the first time.
        flag: the user's flag.
        sys_flag: bits of 5.3.
        physical_offset: its place in the broker's log.
        stored_properties: all properties as they are stored.
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
    """A RocketMQ broker's word that it has taken a message.

    `id` is the offset message id; of a batch all of them, joined by commas.

    Args:
        unique_id: the id that the sender made.
        status: SEND_OK; or FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE: then the
            broker has it, but not yet as safely as it is set to.
        region: the broker's region.
        transaction_id: of a half message.
    """

    unique_id: str = ""
    status: str = "SEND_OK"
    region: str = ""
    transaction_id: str = ""


def outgoing(
    message: Message,
    *,
    unique_id: str = "",
    system: Mapping[str, str] = _NOTHING,
    compress_from_bytes: int = compression.THRESHOLD_BYTES,
    level: int = compression.LEVEL,
) -> Outgoing:
    r"""Make what is sent of a message.

    Args:
        message: what to send.
        unique_id: the id to send it by; "" for none.
        system: properties that RocketMQ gives a meaning to, `DELAY` for example.
        compress_from_bytes: bodies of this length or more are compressed; 0 for none.
        level: how hard.

    Raises:
        UsageError: the body is empty, or a property cannot be carried.

    >>> outgoing(Message("flights", b"{}", tag="UA", keys=("k1", "k2")), unique_id="0A")
    Outgoing(body=b'{}', properties='UNIQ_KEY\x010A\x02TAGS\x01UA\x02KEYS\x01k1 k2', sys_flag=0)
    """
    body = message.body
    if not body:
        raise UsageError("A message has at least one byte.", topic=message.topic)
    parts = [f"{text.UNIQUE_KEY}\x01{unique_id}"] if unique_id else []
    if message.tag is not None or message.keys or message.time is not None:
        parts.append(_named(message.tag, message.keys, message.time))
    if message.properties:
        parts += _user_pairs(message.properties)
    parts += [f"{name}\x01{value}" for name, value in system.items()]
    properties = "\x02".join(parts)
    if len(properties) > _SURE_BYTES or not properties.isascii():
        _check_size(properties)
    if 0 < compress_from_bytes <= len(body):
        return Outgoing(compression.compress(body, level), properties, compression.COMPRESSED)
    return Outgoing(body, properties, 0)


@lru_cache(maxsize=1024)
def _named(tag: str | None, keys: tuple[str, ...], time: datetime | None) -> str:
    pairs: list[str] = []
    if tag is not None:
        pairs.append(f"{text.TAGS}\x01{_checked('tag', tag)}")
    if keys:
        if isinstance(cast("object", keys), str):  # its letters would be the keys
            raise TypeError("keys are a tuple")
        for key in keys:
            if " " in key:
                raise UsageError(f"Key {key!r} holds a space, which separates keys.")
            _checked("key", key)
        pairs.append(f"{text.KEYS}\x01{' '.join(keys)}")
    if time is not None:
        pairs.append(f"{text.TIME}\x01{encode_time(time)}")
    return "\x02".join(pairs)


def _user_pairs(properties: Mapping[str, str]) -> list[str]:
    if not _HIDDEN.isdisjoint(properties):
        name = next(name for name in properties if name in _HIDDEN)
        raise UsageError(
            f"The name {name!r} has a meaning of its own.", hint="Give the property another name."
        )
    pairs: list[str] = []
    for name, value in properties.items():
        if "\x01" in name or "\x01" in value or not name.strip() or not value.strip():
            _checked("name of a property", name)
            _checked(f"value of {name!r}", value)
        pairs.append(f"{name}\x01{value}")
    if "\x02" in "".join(pairs):
        raise UsageError("A property holds U+0002, which separates properties.")
    return pairs


def _checked(what: str, word: str) -> str:
    if not word.strip():
        raise UsageError(f"The {what} is blank.", hint="RocketMQ would lose it; leave it out.")
    if "\x01" in word or "\x02" in word:
        raise UsageError(f"The {what} holds U+0001 or U+0002, which separate properties.")
    return word


def _check_size(properties: str) -> None:
    try:
        size = len(properties.encode())
    except UnicodeEncodeError as error:
        raise UsageError("A property holds half a character (a lone surrogate).") from error
    if size > PROPERTIES_BYTES_MAX:
        raise UsageError(
            f"Properties take {size} bytes; a message holds {PROPERTIES_BYTES_MAX} at most."
        )


def user_properties(stored: Mapping[str, str]) -> dict[str, str]:
    """Give the properties that the user of the sender set.

    >>> user_properties({"TAGS": "UA", "flight": "1545", "$msgTime$": "201301010515"})
    {'flight': '1545'}
    """
    found = {name: value for name, value in stored.items() if name not in _HIDDEN}
    if text.TIME in stored and decode_time(stored[text.TIME]) is None:
        found[text.TIME] = stored[text.TIME]
    return found


def time_of(stored: Mapping[str, str], born_ms: int) -> datetime:
    """Give a message's time: what the sender said, otherwise when it was born (in UTC).

    >>> time_of({}, 1_650_000_000_000)
    datetime.datetime(2022, 4, 15, 5, 20, tzinfo=datetime.timezone.utc)
    """
    said = decode_time(stored[text.TIME]) if text.TIME in stored else None
    return said or born_time(born_ms)


def born_time(born_ms: int) -> datetime:
    """Give an instant; one that Python cannot hold becomes 1970 (senders write what they like)."""
    try:
        return datetime.fromtimestamp(born_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
