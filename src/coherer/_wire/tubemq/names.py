"""The texts for brokers, partitions, topics and settings (docs/protocol/tubemq.md, section 2.5).

Each is a frozen struct with `parse(text)`, which raises `ProtocolError` for invalid text, and
`text()`, which writes it as Java does. Reading accepts everything that Java accepts: a blank port
is the default port, and segments that were added in later versions may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

import msgspec

from coherer._common.decoding import convert
from coherer._common.renamed import unpacked
from coherer._wire.tubemq.codes import ResultCode
from coherer.errors import ProtocolError, UsageError
from coherer.limits import TOPIC_CHARS_MAX

_DIGITS_MAX: Final = 20
"""More digits than a 64-bit number has. Python would take hours to read millions of them."""


def invalid(what: str, text: str) -> ProtocolError:
    """Return the error for an invalid text."""
    return ProtocolError(f"{text[:200]!r} is not a valid {what}.")


def parse_number(text: str, what: str, whole: str) -> int:
    """Read a decimal number; surrounding blanks are ignored.

    Args:
        what: the kind of text that contains it, for the error.
        whole: the text that contains it, for the error.

    Raises:
        ProtocolError: it is not a number.
    """
    stripped = text.strip()
    digits = stripped[1:] if stripped[:1] in ("-", "+") else stripped
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS_MAX:
        raise invalid(what, whole)
    return int(stripped)


def parse_rows(text: str, width: int, what: str, whole: str) -> list[tuple[int, ...]]:
    """Read rows of `width` numbers such as `1:2:3,4:5:6`; empty rows are skipped, as in Java.

    >>> parse_rows("1:2,,3:4", 2, "list", "")
    [(1, 2), (3, 4)]
    """
    found: list[tuple[int, ...]] = []
    for item in text.split(","):
        if not item.strip():
            continue
        parts = item.split(":")
        if len(parts) != width:
            raise invalid(what, whole)
        found.append(tuple(parse_number(part, what, whole) for part in parts))
    return found


BLANK: Final = " "
"""Stands for a number with its default value, and for an empty set of flow control rules."""


def _write(value: bool | int | str | None) -> str:
    if value is None:
        return BLANK
    return str(value).lower() if isinstance(value, bool) else str(value)


class BrokerDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's default settings for its topics: 12 parts joined by `:` (section 2.5.9).

    Args:
        partitions: partitions in each store.
        accept_publish: whether producers may use it.
        accept_subscribe: whether consumers may use it.
        unflush_threshold: messages after which a file is synced.
        unflush_interval_ms: time after which a file is synced.
        delete_when: unused; a blank.
        delete_policy: action for old segments and their age, for example `delete,168h`.
        unflush_data_hold_bytes: bytes after which a file is synced; 0 for no such limit.
        cache_megabytes: memory for messages, in units of two caches of 512 KiB.
        cache_thousands: messages in memory, in units of two caches of 512.
        cache_flush_interval_ms: time after which cached messages are written to the file.

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
        return ":".join(_write(value) for value in msgspec.structs.astuple(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the settings.

        Raises:
            ProtocolError: the text is not valid.
        """
        parts = dict(zip(cls.__struct_fields__, text.split(":"), strict=False))
        if len(parts) != text.count(":") + 1 or len(parts) != len(cls.__struct_fields__):
            raise invalid("broker configuration", text)
        try:
            return convert(parts, cls, strict=False)
        except msgspec.ValidationError as error:
            raise invalid("broker configuration", text) from error


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings on a broker: 15 parts joined by `:` (section 2.5.10).

    None, a blank in the text, selects the broker's default.

    Args:
        topic: its name.
        status: 0 in use, 1 closed, 2 being removed, 3 removed.
        max_message_bytes: limit for a message; None for the cluster's.
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
        return ":".join(_write(value) for value in msgspec.structs.astuple(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the settings; old masters omit the last part.

        Raises:
            ProtocolError: the text is not valid.
        """
        fields = cls.__struct_fields__
        parts = text.split(":")
        if len(parts) not in (len(fields) - 1, len(fields)):
            raise invalid("topic configuration", text)
        named = {name: part.strip() for name, part in zip(fields, parts, strict=False)}
        try:
            return convert({k: v for k, v in named.items() if v}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise invalid("topic configuration", text) from error


TOPIC_RULE: Final = (
    "TubeMQ's topics begin with an ASCII letter; letters, digits, '_' and '-' follow, up to "
    f"{TOPIC_CHARS_MAX} characters."
)

STORE_STRIDE: Final = 10_000
"""Partition id = store number * 10,000 + number within the store."""

OWN_CLIENT: Final = "coherer"
"""Prefix of the last part of this package's client ids, where a Java client has its version."""

DEFAULT_PORT: Final = 8123
DEFAULT_TLS_PORT: Final = 8124

_TUBEMQ_TOPIC: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]+")
_ANY_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(topic: str) -> None:
    """Check the name of a topic before it is sent to a server.

    A node may also have topics created by RocketMQ's clients, whose names may begin with a digit.

    Raises:
        UsageError: the name is not valid; `code` is the protocol's code for the reason.

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
    """Return whether a TubeMQ cluster would create a topic with this name.

    >>> is_tubemq_topic("orders-2026"), is_tubemq_topic("2026-orders"), is_tubemq_topic("a")
    (True, False, False)
    """
    return _TUBEMQ_TOPIC.fullmatch(topic) is not None and len(topic) <= TOPIC_CHARS_MAX


def is_own_client(client_id: str) -> bool:
    """Return whether this package made a client id.

    >>> is_own_client("group_10.0.0.1-4242-17-99-Pull-coherer1.0")
    True
    >>> is_own_client("group_10.0.0.1-4242-1700000000000-1-Pull-2.4.0")
    False
    """
    return client_id.rpartition("-")[2].startswith(OWN_CLIENT)


class BrokerInfo(msgspec.Struct, frozen=True, order=True):
    """A broker and its address (section 2.5.1): `1:10.0.0.1:8123`, or a blank for the default port.

    Args:
        id: number of the broker.
        host: its host.
        port: TCP or TLS port, depending on the requested list.

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
        """Return the text of broker lists, in which the default port is a blank."""
        usual = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
        return f"{self.id}:{self.host}:{BLANK if self.port == usual else self.port}"

    def full_text(self) -> str:
        """Return the text inside partitions and events, in which the port is always written."""
        return f"{self.id}:{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, tls: bool = False) -> Self:
        """Read a broker; `tls` selects the default port."""
        id_, _, rest = text.partition(":")
        host, colon, port_text = rest.rpartition(":")
        if not colon:
            host, port_text = rest, ""
        if not host.strip():
            raise invalid("broker", text)
        port = DEFAULT_TLS_PORT if tls else DEFAULT_PORT
        if port_text.strip():
            port = parse_number(port_text, "broker", text)
        return cls(parse_number(id_, "broker", text), host.strip(), port)


class Partition(msgspec.Struct, frozen=True, order=True):
    """A partition of a topic on a broker (section 2.5.4): `1:10.0.0.1:8123#demo:10001`.

    >>> partition = Partition.parse("1:10.0.0.1:8123#demo:10001")
    >>> partition.key, partition.store, partition.text()
    ('1:demo:10001', 1, '1:10.0.0.1:8123#demo:10001')
    """

    broker: BrokerInfo
    topic: str
    id: int

    @property
    def key(self) -> str:
        """`brokerId:topic:partitionId`, the key in maps and offsets."""
        return f"{self.broker.id}:{self.topic}:{self.id}"

    @property
    def store(self) -> int:
        """Number of its store."""
        return self.id // STORE_STRIDE

    if not TYPE_CHECKING:
        __iter__ = unpacked

    def text(self) -> str:
        """Return the text."""
        return f"{self.broker.full_text()}#{self.topic}:{self.id}"

    @classmethod
    def parse(cls, text: str, tls: bool = False) -> Self:
        """Read a partition."""
        broker, hash_sign, rest = text.partition("#")
        topic, colon, id_ = rest.rpartition(":")
        if not (hash_sign and colon and topic):
            raise invalid("partition", text)
        return cls(BrokerInfo.parse(broker, tls), topic, parse_number(id_, "partition", text))


class SubscribeInfo(msgspec.Struct, frozen=True, order=True):
    """A partition assigned to a consumer (section 2.5.3): `consumer@group#broker#topic:id`.

    >>> SubscribeInfo.parse("c-1@g#1:h:8123#demo:0").partition.key
    '1:demo:0'
    """

    consumer_id: str
    group: str
    partition: Partition

    def text(self) -> str:
        return f"{self.consumer_id}@{self.group}#{self.partition.text()}"

    @classmethod
    def parse(cls, text: str, tls: bool = False) -> Self:
        """Read a consumer and its partition."""
        consumer, hash_sign, partition = text.partition("#")
        consumer_id, at, group = consumer.partition("@")
        if not (hash_sign and at and consumer_id and group):
            raise invalid("subscription", text)
        return cls(consumer_id, group, Partition.parse(partition, tls))


class FailureInfo(msgspec.Struct, frozen=True):
    """A partition revoked by a broker's heartbeat answer (section 2.5.11): `411:` and partition.

    >>> FailureInfo.parse("412:1:h:8123#demo:0").code
    412
    """

    code: int
    partition: Partition

    def text(self) -> str:
        return f"{self.code}:{self.partition.text()}"

    @classmethod
    def parse(cls, text: str, tls: bool = False) -> Self:
        """Read a code and its partition."""
        code, _, partition = text.partition(":")
        return cls(parse_number(code, "failure", text), Partition.parse(partition, tls))


class TopicInfo(msgspec.Struct, frozen=True):
    """Where a topic can be written (section 2.5.2): `topic#broker:partitions:stores,…#limit`.

    Args:
        brokers: broker id → (partitions in each store, stores).
        max_bytes: the topic's own limit for a message; None for the cluster's.

    >>> TopicInfo.parse("demo#1:3:2,2:3:1#").brokers
    {1: (3, 2), 2: (3, 1)}
    """

    topic: str
    brokers: dict[int, tuple[int, int]]
    max_bytes: int | None = None

    def text(self) -> str:
        """Return the text, with all three segments."""
        brokers = ",".join(
            f"{broker}:{partitions}:{stores}"
            for broker, (partitions, stores) in self.brokers.items()
        )
        return f"{self.topic}#{brokers}#{'' if self.max_bytes is None else self.max_bytes}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a topic; the limit may be empty, and the last segment missing."""
        segments = text.split("#")
        if len(segments) < 2 or not segments[0].strip():
            raise invalid("topic info", text)
        brokers: dict[int, tuple[int, int]] = {}
        for broker, partitions, stores in parse_rows(segments[1], 3, "topic info", text):
            brokers[broker] = partitions, stores
        limit = segments[2] if len(segments) > 2 else ""
        max_bytes = parse_number(limit, "topic info", text) if limit.strip() else None
        return cls(segments[0].strip(), brokers, max_bytes)


class TopicMeta(msgspec.Struct, frozen=True):
    """Where a topic can be read, for client-side balance (section 2.5.7).

    The text is `topic#broker:stores:partitions:status,…`: the reverse order of `TopicInfo`.

    Args:
        brokers: broker id → (stores, partitions in each store, whether it can be read).

    >>> TopicMeta.parse("demo#1:2:3:1").brokers
    {1: (2, 3, True)}
    """

    topic: str
    brokers: dict[int, tuple[int, int, bool]]

    def text(self) -> str:
        brokers = ",".join(
            f"{broker}:{stores}:{partitions}:{int(open_)}"
            for broker, (stores, partitions, open_) in self.brokers.items()
        )
        return f"{self.topic}#{brokers}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a topic."""
        topic, hash_sign, rest = text.partition("#")
        if not (hash_sign and topic.strip()):
            raise invalid("topic meta", text)
        brokers: dict[int, tuple[int, int, bool]] = {}
        for broker, stores, partitions, status in parse_rows(rest, 4, "topic meta", text):
            brokers[broker] = stores, partitions, status == 1
        return cls(topic.strip(), brokers)


class PartSub(msgspec.Struct, frozen=True):
    """A topic's partitions of a consumer that balances itself (section 2.5.8): `topic#broker:id,…`.

    >>> PartSub.parse("demo#1:0,1:10000").partitions
    ((1, 0), (1, 10000))
    """

    topic: str
    partitions: tuple[tuple[int, int], ...]

    def text(self) -> str:
        return f"{self.topic}#{','.join(f'{broker}:{id_}' for broker, id_ in self.partitions)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a topic and its partitions."""
        topic, hash_sign, rest = text.partition("#")
        if not (hash_sign and topic.strip()):
            raise invalid("partition report", text)
        held = parse_rows(rest, 2, "partition report", text)
        return cls(topic.strip(), tuple((broker, id_) for broker, id_ in held))


class TopicCondition(msgspec.Struct, frozen=True):
    """The filters of a topic (section 2.5.5): `topic#filter,filter`.

    >>> TopicCondition.parse("demo#UA,AA").filters
    ('UA', 'AA')
    """

    topic: str
    filters: tuple[str, ...]

    def text(self) -> str:
        return f"{self.topic}#{','.join(self.filters)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the filters; empty ones are skipped."""
        topic, hash_sign, rest = text.partition("#")
        if not (hash_sign and topic.strip()):
            raise invalid("topic condition", text)
        filters = (item.strip() for item in rest.split(","))
        return cls(topic.strip(), tuple(item for item in filters if item))


def required_partitions(offsets: Mapping[str, int]) -> str:
    """Return the text for start offsets (section 2.5.6).

    Args:
        offsets: partition key (`brokerId:topic:partitionId`) → offset.

    >>> required_partitions({"1:demo:0": 28})
    '1:demo:0=28'
    """
    return ",".join(f"{key}={offset}" for key, offset in offsets.items())


def parse_required_partitions(text: str) -> dict[str, int]:
    """Read the text for start offsets; the last of several for one partition wins.

    Raises:
        ProtocolError: the text is not valid; a master answers 400.

    >>> parse_required_partitions("1:demo:0=28")
    {'1:demo:0': 28}
    """
    offsets: dict[str, int] = {}
    for item in text.split(",") if text.strip() else ():
        key, equals, offset = item.strip().partition("=")
        parts = key.split(":")
        if not equals or len(parts) != 3 or not all(part.strip() for part in parts):
            raise invalid("list of required partitions", text)
        parse_number(parts[0], "list of required partitions", text)
        parse_number(parts[2], "list of required partitions", text)
        offsets[key] = parse_number(offset, "list of required partitions", text)
    return offsets
