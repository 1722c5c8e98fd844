"""Headers of the name server (protocol page, 2.15, 9)."""

from __future__ import annotations

from coherer._wire.rocketmq.command import Int32, Int64
from coherer._wire.rocketmq.headers.base import NULL, Header


class RegisterBrokerHeader(Header):
    """103: a broker and its topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResult(Header):
    """The answer to 103."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerHeader(Header, kw_only=True):
    """104, 322: a broker."""

    broker_name: str = NULL
    broker_addr: str = NULL
    cluster_name: str = NULL
    broker_id: Int64


class DataVersionResult(Header):
    """The answer to 322."""

    changed: bool


class BrokerNameHeader(Header):
    """205, 327: a broker shall not, or shall, be written to."""

    broker_name: str = NULL


class WipeResult(Header):
    """The answer to 205."""

    wipe_topic_count: Int32


class AddResult(Header):
    """The answer to 327."""

    add_topic_count: Int32


class ClusterHeader(Header):
    """224: a cluster."""

    cluster: str


class PutKvHeader(Header):
    """100: a key and its value."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class KvHeader(Header):
    """101, 102: a key."""

    namespace: str
    key: str


class KvResult(Header):
    """The answer to 101."""

    value: str | None = None


class NamespaceHeader(Header):
    """219: the keys of a namespace."""

    namespace: str
