"""The texts in which TubeMQ names brokers, partitions, topics and settings (section 2.5).

Each is a frozen struct with `parse(text)`, which raises `ProtocolError` for text that is none, and
`text()`, which writes it as Java does. Reading accepts what Java accepts: a blank port is the
default one, segments that came with later versions may be missing. The texts of the broker's
configuration stand in `settings`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Self

import msgspec

from coherer._wire.tubemq.codes import ResultCode
from coherer.errors import ProtocolError, UsageError
from coherer.limits import TOPIC_CHARS_MAX

_DIGITS_MAX: Final = 20
"""More than a 64-bit number has; Python would take hours over millions of digits."""


def bad(what: str, text: str) -> ProtocolError:
    """Returns the error for a text that is not what it should be."""
    return ProtocolError(f"{text[:200]!r} is no {what}.")


def number(text: str, what: str, whole: str) -> int:
    """Reads a decimal number; blanks around it do not matter.

    Args:
        text: the number.
        what: of what it is a part.
        whole: that, for the error.

    Raises:
        ProtocolError: it is no number.
    """
    stripped = text.strip()
    digits = stripped[1:] if stripped[:1] in ("-", "+") else stripped
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS_MAX:
        raise bad(what, whole)
    return int(stripped)


def rows(text: str, width: int, what: str, whole: str) -> list[tuple[int, ...]]:
    """Reads `1:2:3,4:5:6`: rows of so many numbers; empty rows are passed over, as Java does.

    >>> rows("1:2,,3:4", 2, "list", "")
    [(1, 2), (3, 4)]
    """
    found: list[tuple[int, ...]] = []
    for item in text.split(","):
        if not item.strip():
            continue
        parts = item.split(":")
        if len(parts) != width:
            raise bad(what, whole)
        found.append(tuple(number(part, what, whole) for part in parts))
    return found


BLANK: Final = " "
"""What TubeMQ writes for a number that has its usual value, and for "no flow control rules"."""


def _write(value: bool | int | str | None) -> str:
    if value is None:
        return BLANK
    return str(value).lower() if isinstance(value, bool) else str(value)


class BrokerDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's default settings for its topics: 12 parts (2.5.9).

    Args:
        partitions: partitions in each store.
        accept_publish: whether producers may be led there.
        accept_subscribe: whether consumers may be led there.
        unflush_threshold: messages after which a file is synced.
        unflush_interval_ms: time after which a file is synced.
        delete_when: not used any more; a blank.
        delete_policy: `delete,168h`: what happens to old segments, and when.
        stores: stores of a topic.
        unflush_data_hold_bytes: bytes after which a file is synced; 0 = not by bytes.
        cache_megabytes: memory for messages, in units of two caches of 512 KiB.
        cache_thousands: messages in memory, in units of two caches of 512.
        cache_flush_interval_ms: time after which memory is written to the file.

    >>> BrokerDefaults.parse("1:true:true:1000:10000: :delete,168h:1:0:3:10:20000").delete_policy
    'delete,168h'
    """

    partitions: int = 1
    accept_publish: bool = True
    accept_subscribe: bool = True
    unflush_threshold: int = 1000
    unflush_interval_ms: int = 10000
    delete_when: str = BLANK
    delete_policy: str = "delete,168h"
    stores: int = 1
    unflush_data_hold_bytes: int = 0
    cache_megabytes: int = 3
    cache_thousands: int = 10
    cache_flush_interval_ms: int = 20000

    def text(self) -> str:
        """Returns the text."""
        return ":".join(_write(value) for value in msgspec.structs.astuple(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the settings.

        Raises:
            ProtocolError: the text is none.
        """
        parts = dict(zip(cls.__struct_fields__, text.split(":"), strict=False))
        if len(parts) != text.count(":") + 1 or len(parts) != len(cls.__struct_fields__):
            raise bad("broker configuration", text)
        try:
            return msgspec.convert(parts, cls, strict=False)
        except msgspec.ValidationError as error:
            raise bad("broker configuration", text) from error


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings on a broker: 15 parts (2.5.10). None: the broker's default counts.

    Args:
        topic: its name.
        status: 0 in use, 1 closed, 2 to be removed, 3 removed.
        max_message_bytes: limit for a message; None: the cluster's.
        partitions, …: as in `BrokerDefaults`.

    >>> settings = TopicSettings(topic="demo", partitions=3, stores=2)
    >>> settings.text()
    'demo:3: : : : : : :2:0: : : : : '
    >>> TopicSettings.parse(settings.text()) == settings
    True
    """

    topic: str
    partitions: int | None = None
    accept_publish: bool | None = None
    accept_subscribe: bool | None = None
    unflush_threshold: int | None = None
    unflush_interval_ms: int | None = None
    delete_when: str | None = None
    delete_policy: str | None = None
    stores: int | None = None
    status: int = 0
    unflush_data_hold_bytes: int | None = None
    cache_megabytes: int | None = None
    cache_thousands: int | None = None
    cache_flush_interval_ms: int | None = None
    max_message_bytes: int | None = None

    def text(self) -> str:
        """Returns the text."""
        return ":".join(_write(value) for value in msgspec.structs.astuple(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the settings; old masters leave out the last part.

        Raises:
            ProtocolError: the text is none.
        """
        fields = cls.__struct_fields__
        parts = text.split(":")
        if len(parts) not in (len(fields) - 1, len(fields)):
            raise bad("topic configuration", text)
        named = {name: part.strip() for name, part in zip(fields, parts, strict=False)}
        try:
            return msgspec.convert({k: v for k, v in named.items() if v}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise bad("topic configuration", text) from error


TOPIC_RULE: Final = (
    "TubeMQ's topics begin with an ASCII letter; letters, digits, '_' and '-' follow, up to "
    f"{TOPIC_CHARS_MAX} characters."
)

STORE_STRIDE: Final = 10_000
"""Partition id = store number * 10,000 + number within the store."""

OWN_CLIENT: Final = "coherer"
"""The last part of a client id of this package begins so; a Java client has its version there."""

DEFAULT_PORT: Final = 8123
DEFAULT_TLS_PORT: Final = 8124

_TUBEMQ_TOPIC: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]+")
_ANY_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(topic: str) -> None:
    """Checks the name of a topic before it is sent to a server.

    A node also has topics that RocketMQ's clients created; their names may begin with a digit.

    Raises:
        UsageError: no topic can have that name; `code` is the one of the protocol for the reason.

    >>> check_topic("a b")
    Traceback (most recent call last):
    coherer.errors.UsageError: A topic cannot have the name 'a b': ' ' is not allowed. ...
    """
    if not topic or topic.isspace():
        code = ResultCode.PARAMETER_MSG_TOPIC_BLANK
        raise UsageError("The name of a topic is empty.", code=code)
    if _ANY_TOPIC.fullmatch(topic) is None:
        wrong = sorted({character for character in topic if not _ANY_TOPIC.fullmatch(character)})
        text = ", ".join(map(repr, wrong))
        raise UsageError(
            f"A topic cannot have the name {topic!r}: {text} "
            f"{'is' if len(wrong) == 1 else 'are'} not allowed.",
            hint=TOPIC_RULE,
        )
    if len(topic) > TOPIC_CHARS_MAX:
        raise UsageError(
            f"The name of a topic has {len(topic)} characters; {TOPIC_CHARS_MAX} are allowed.",
            topic=topic,
        )


def is_tubemq_topic(topic: str) -> bool:
    """Whether a TubeMQ cluster would create a topic with this name.

    >>> is_tubemq_topic("orders-2026"), is_tubemq_topic("2026-orders"), is_tubemq_topic("a")
    (True, False, False)
    """
    return _TUBEMQ_TOPIC.fullmatch(topic) is not None and len(topic) <= TOPIC_CHARS_MAX


def is_own_client(client_id: str) -> bool:
    """Whether a client id is one that this package makes.

    >>> is_own_client("group_10.0.0.1-4242-17-99-Pull-coherer1.0")
    True
    >>> is_own_client("group_10.0.0.1-4242-1700000000000-1-Pull-2.4.0")
    False
    """
    return client_id.rpartition("-")[2].startswith(OWN_CLIENT)


class BrokerInfo(msgspec.Struct, frozen=True, order=True):
    """A broker and where it listens (2.5.1): `1:10.0.0.1:8123`, or a blank for the usual port.

    Args:
        id: number of the broker.
        host: where it is.
        port: TCP or TLS port, as the list was asked for.

    >>> BrokerInfo.parse("1:10.0.0.1: ")
    BrokerInfo(id=1, host='10.0.0.1', port=8123)
    >>> BrokerInfo(1, "10.0.0.1", 8124).text(tls=True)
    '1:10.0.0.1: '
    """

    id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def text(self, tls: bool = False) -> str:
        """Returns the text of the broker lists, in which the usual port is a blank."""
        usual = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
        return f"{self.id}:{self.host}:{BLANK if self.port == usual else self.port}"

    def full_text(self) -> str:
        """Returns the text inside partitions and events, in which the port is always written."""
        return f"{self.id}:{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, tls: bool = False) -> Self:
        """Reads a broker; `tls` says which port a blank stands for."""
        id_, _, rest = text.partition(":")
        host, colon, port_text = rest.rpartition(":")
        if not colon:
            host, port_text = rest, ""
        if not host.strip():
            raise bad("broker", text)
        port = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
        if port_text.strip():
            port = number(port_text, "broker", text)
        return cls(number(id_, "broker", text), host.strip(), port)


class Partition(msgspec.Struct, frozen=True, order=True):
    """A partition of a topic on a broker (2.5.4): `1:10.0.0.1:8123#demo:10001`.

    >>> partition = Partition.parse("1:10.0.0.1:8123#demo:10001")
    >>> partition.key, partition.store, partition.text()
    ('1:demo:10001', 1, '1:10.0.0.1:8123#demo:10001')
    """

    broker: BrokerInfo
    topic: str
    id: int

    @property
    def key(self) -> str:
        """`brokerId:topic:partitionId`, the name in maps and offsets."""
        return f"{self.broker.id}:{self.topic}:{self.id}"

    @property
    def store(self) -> int:
        """Number of the store that holds it."""
        return self.id // STORE_STRIDE

    def text(self) -> str:
        """Returns the text."""
        return f"{self.broker.full_text()}#{self.topic}:{self.id}"

    @classmethod
    def parse(cls, text: str, tls: bool = False) -> Self:
        """Reads a partition."""
        broker, hash_sign, rest = text.partition("#")
        topic, colon, id_ = rest.rpartition(":")
        if not (hash_sign and colon and topic):
            raise bad("partition", text)
        return cls(BrokerInfo.parse(broker, tls), topic, number(id_, "partition", text))


class SubscribeInfo(msgspec.Struct, frozen=True, order=True):
    """A partition in the hands of a consumer (2.5.3): `consumer@group#broker#topic:id`.

    >>> SubscribeInfo.parse("c-1@g#1:h:8123#demo:0").partition.key
    '1:demo:0'
    """

    consumer_id: str
    group: str
    partition: Partition

    def text(self) -> str:
        """Returns the text."""
        return f"{self.consumer_id}@{self.group}#{self.partition.text()}"

    @classmethod
    def parse(cls, text: str, tls: bool = False) -> Self:
        """Reads who holds what."""
        who, hash_sign, partition = text.partition("#")
        consumer_id, at, group = who.partition("@")
        if not (hash_sign and at and consumer_id and group):
            raise bad("subscription", text)
        return cls(consumer_id, group, Partition.parse(partition, tls))


class FailureInfo(msgspec.Struct, frozen=True):
    """A partition that a broker's heartbeat answer takes away (2.5.11): `411:` and the partition.

    >>> FailureInfo.parse("412:1:h:8123#demo:0").code
    412
    """

    code: int
    partition: Partition

    def text(self) -> str:
        """Returns the text."""
        return f"{self.code}:{self.partition.text()}"

    @classmethod
    def parse(cls, text: str, tls: bool = False) -> Self:
        """Reads what went wrong with which partition."""
        code, _, partition = text.partition(":")
        return cls(number(code, "failure", text), Partition.parse(partition, tls))


class TopicInfo(msgspec.Struct, frozen=True):
    """Where a topic can be written (2.5.2): `topic#broker:partitions:stores,…#limit`.

    Args:
        topic: its name.
        brokers: broker id → (partitions in each store, stores).
        max_bytes: the topic's own limit for a message; None when the cluster's limit counts.

    >>> TopicInfo.parse("demo#1:3:2,2:3:1#").brokers
    {1: (3, 2), 2: (3, 1)}
    """

    topic: str
    brokers: dict[int, tuple[int, int]]
    max_bytes: int | None = None

    def text(self) -> str:
        """Returns the text, with all three segments."""
        places = ",".join(
            f"{broker}:{partitions}:{stores}"
            for broker, (partitions, stores) in self.brokers.items()
        )
        return f"{self.topic}#{places}#{'' if self.max_bytes is None else self.max_bytes}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a topic; the limit may be empty, and the last segment missing."""
        segments = text.split("#")
        if len(segments) < 2 or not segments[0].strip():
            raise bad("topic info", text)
        brokers: dict[int, tuple[int, int]] = {}
        for broker, partitions, stores in rows(segments[1], 3, "topic info", text):
            brokers[broker] = partitions, stores
        limit = segments[2] if len(segments) > 2 else ""
        max_bytes = number(limit, "topic info", text) if limit.strip() else None
        return cls(segments[0].strip(), brokers, max_bytes)


class TopicMeta(msgspec.Struct, frozen=True):
    """Where a topic can be read, for client-side balance (2.5.7).

    The text is `topic#broker:stores:partitions:status,…`: the reverse order of `TopicInfo`.

    Args:
        topic: its name.
        brokers: broker id → (stores, partitions in each store, whether it may be read).

    >>> TopicMeta.parse("demo#1:2:3:1").brokers
    {1: (2, 3, True)}
    """

    topic: str
    brokers: dict[int, tuple[int, int, bool]]

    def text(self) -> str:
        """Returns the text."""
        places = ",".join(
            f"{broker}:{stores}:{partitions}:{int(open_)}"
            for broker, (stores, partitions, open_) in self.brokers.items()
        )
        return f"{self.topic}#{places}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a topic's places."""
        topic, hash_sign, rest = text.partition("#")
        if not (hash_sign and topic.strip()):
            raise bad("topic meta", text)
        brokers: dict[int, tuple[int, int, bool]] = {}
        for broker, stores, partitions, status in rows(rest, 4, "topic meta", text):
            brokers[broker] = stores, partitions, status == 1
        return cls(topic.strip(), brokers)


class PartSub(msgspec.Struct, frozen=True):
    """What a consumer with client-side balance holds of a topic (2.5.8): `topic#broker:id,…`.

    >>> PartSub.parse("demo#1:0,1:10000").partitions
    ((1, 0), (1, 10000))
    """

    topic: str
    partitions: tuple[tuple[int, int], ...]

    def text(self) -> str:
        """Returns the text."""
        return f"{self.topic}#{','.join(f'{broker}:{id_}' for broker, id_ in self.partitions)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what is held."""
        topic, hash_sign, rest = text.partition("#")
        if not (hash_sign and topic.strip()):
            raise bad("partition report", text)
        held = rows(rest, 2, "partition report", text)
        return cls(topic.strip(), tuple((broker, id_) for broker, id_ in held))


class TopicCondition(msgspec.Struct, frozen=True):
    """The filters of a topic (2.5.5): `topic#filter,filter`.

    >>> TopicCondition.parse("demo#UA,AA").filters
    ('UA', 'AA')
    """

    topic: str
    filters: tuple[str, ...]

    def text(self) -> str:
        """Returns the text."""
        return f"{self.topic}#{','.join(self.filters)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the filters; empty ones are left out."""
        topic, hash_sign, rest = text.partition("#")
        if not (hash_sign and topic.strip()):
            raise bad("topic condition", text)
        filters = (item.strip() for item in rest.split(","))
        return cls(topic.strip(), tuple(item for item in filters if item))


def required_partitions(offsets: Mapping[str, int]) -> str:
    """Returns the text that names start offsets (2.5.6).

    Args:
        offsets: partition key (`brokerId:topic:partitionId`) → offset.

    >>> required_partitions({"1:demo:0": 28})
    '1:demo:0=28'
    """
    return ",".join(f"{key}={offset}" for key, offset in offsets.items())


def parse_required_partitions(text: str) -> dict[str, int]:
    """Reads the text that names start offsets; of two for one partition the last counts.

    Raises:
        ProtocolError: it is none; a master answers 400.

    >>> parse_required_partitions("1:demo:0=28")
    {'1:demo:0': 28}
    """
    offsets: dict[str, int] = {}
    for item in text.split(",") if text.strip() else ():
        key, equals, offset = item.strip().partition("=")
        parts = key.split(":")
        if not equals or len(parts) != 3 or not all(part.strip() for part in parts):
            raise bad("list of required partitions", text)
        number(parts[0], "list of required partitions", text)
        number(parts[2], "list of required partitions", text)
        offsets[key] = number(offset, "list of required partitions", text)
    return offsets
