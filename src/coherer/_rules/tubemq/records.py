"""The records of a master's catalog, and the ranges of their values.

Records are frozen; `Catalog` replaces them. Times are ms since 1970.
"""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec

from coherer import limits
from coherer.errors import RefusedError

UNDEFINED: Final = -2
"""The value with which TubeMQ marks an unset number."""

_TOPIC = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_POLICY = re.compile(r"delete,([0-9]{1,9})([smh]?)")
_POLICY_UNIT_S = {"": 3600, "h": 3600, "m": 60, "s": 1}
_POLICY_MAX_S = 168 * 3600


class OpCode(enum.IntEnum):
    """Why a change of the catalog was refused (errCode of an item in the HTTP API)."""

    NOT_EXIST = 401
    EXISTED = 402
    UNCHANGED = 403
    RELATED_NOT_CLEANED = 404
    MISSING = 405
    ILLEGAL_STATUS = 406
    ILLEGAL_VALUE = 407
    CONFLICT = 408


class CatalogError(RefusedError):
    """A change of the catalog was refused; `code` is an `OpCode`."""

    def __init__(self, code: OpCode, text: str, *, topic: str | None = None) -> None:
        super().__init__(text, code=int(code), topic=topic)


class ManageStatus(enum.IntEnum):
    """The operations that an administrator permits a broker."""

    DRAFT = 1
    ONLINE = 5
    ONLY_READ = 6
    ONLY_WRITE = 7
    OFFLINE = 9

    @property
    def text(self) -> str:
        """As the HTTP API shows it."""
        return self.name.lower().replace("_", "-")


class TopicStatus(enum.IntEnum):
    """The stages in which a topic is deleted from a broker."""

    OK = 0
    DELETED = 1
    """Closed for clients; can be undone."""
    REMOVING = 2
    """The broker has been ordered to delete the files."""
    REMOVED = 3


class TopicProps(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "stores": "numTopicStores",
        "partitions": "numPartitions",
        "unflush_messages": "unflushThreshold",
        "unflush_ms": "unflushInterval",
        "unflush_hold": "unflushDataHold",
        "cache_mb": "memCacheMsgSizeInMB",
        "cache_k": "memCacheMsgCntInK",
        "cache_flush_ms": "memCacheFlushIntvl",
        "accept_publish": "acceptPublish",
        "accept_subscribe": "acceptSubscribe",
        "delete_policy": "deletePolicy",
    },
):
    """Properties of a topic on a broker, with Java's defaults.

    Raises:
        CatalogError: a value is out of its range (from `checked`).
    """

    stores: int = 1
    partitions: int = 1
    unflush_messages: int = 1000
    unflush_ms: int = 10_000
    unflush_hold: int = 0
    cache_mb: int = 3
    cache_k: int = 10
    cache_flush_ms: int = 20_000
    accept_publish: bool = True
    accept_subscribe: bool = True
    delete_policy: str = "delete,168h"

    def checked(self) -> TopicProps:
        """Return `self` if all values are in their ranges."""
        for name, (low, high) in _RANGES.items():
            value: int = getattr(self, name)
            if not low <= value <= high:
                raise CatalogError(
                    OpCode.ILLEGAL_VALUE, f"{name} is {value}; it must be within {low}..{high}."
                )
        policy = _POLICY.fullmatch(self.delete_policy)
        age_s = int(policy[1]) * _POLICY_UNIT_S[policy[2]] if policy else 0
        if not 0 < age_s <= _POLICY_MAX_S:
            raise CatalogError(
                OpCode.ILLEGAL_VALUE,
                f"deletePolicy {self.delete_policy!r} is not of the form delete,<1..168>h "
                f"(or m, or s).",
            )
        return self


_INT_MAX = 2**31 - 1
_RANGES = {
    "stores": (1, limits.TOPIC_STORES_MAX),
    "partitions": (1, limits.TOPIC_PARTITIONS_MAX),
    "unflush_messages": (0, _INT_MAX),
    "unflush_ms": (1, _INT_MAX),
    "unflush_hold": (0, _INT_MAX),
    "cache_mb": (2, 2048),
    "cache_k": (1, _INT_MAX),
    "cache_flush_ms": (4000, _INT_MAX),
}


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """The authors and times (ms since 1970) of a record's creation and last change."""

    data_version: int = UNDEFINED
    serial: int = UNDEFINED
    created_by: str = ""
    created_ms: int = 0
    modified_by: str = ""
    modified_ms: int = 0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The author and time of a change."""

    user: str
    now_ms: int
    data_version: int = UNDEFINED


class ClusterSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the cluster, which brokers and topics may override."""

    message_bytes_max: int = limits.MESSAGE_BYTES_DEFAULT
    broker_port: int = 8123
    broker_tls_port: int = 8124
    broker_web_port: int = 8081
    priority: int = 301
    flow_enabled: bool = False
    flow_rules: str = "[]"
    props: TopicProps = TopicProps()
    stamp: Stamp = Stamp()


class BrokerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that is allowed to register."""

    id: int
    host: str
    port: int = 8123
    tls_port: int = 8124
    web_port: int = 8081
    region: int = 0
    group: int = 0
    status: ManageStatus = ManageStatus.DRAFT
    props: TopicProps = TopicProps()
    stamp: Stamp = Stamp()

    @property
    def publishable(self) -> bool:
        """Whether the administrator permits it to accept messages."""
        return self.status in (ManageStatus.ONLINE, ManageStatus.ONLY_WRITE)

    @property
    def subscribable(self) -> bool:
        """Whether the administrator permits it to serve messages."""
        return self.status in (ManageStatus.ONLINE, ManageStatus.ONLY_READ)


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A topic on a broker."""

    topic: str
    broker: int
    status: TopicStatus = TopicStatus.OK
    props: TopicProps = TopicProps()
    stamp: Stamp = Stamp()


class TopicControl(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a topic on all brokers."""

    topic: str
    topic_id: int = UNDEFINED
    authorize: bool = False
    message_bytes_max: int | None = None
    stamp: Stamp = Stamp()


class GroupControl(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a consumer group."""

    group: str
    check_resources: bool = False
    broker_rate_max: int = 0
    priority: int = UNDEFINED
    flow_enabled: bool = False
    flow_rules: str = "[]"
    stamp: Stamp = Stamp()


class ConsumeControl(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a group may consume a topic, and with which filters."""

    topic: str
    group: str
    enabled: bool = True
    reason: str = ""
    filtered: bool = False
    filters: frozenset[str] = frozenset()
    stamp: Stamp = Stamp()


def valid_topic(name: str) -> bool:
    """Whether the name is valid for a topic: a letter, then letters, digits, `_` and `-`.

    >>> valid_topic("flights-2013"), valid_topic("2013"), valid_topic("")
    (True, False, False)
    """
    return len(name) <= limits.TOPIC_CHARS_MAX and _TOPIC.fullmatch(name) is not None
