"""Headers of administration (protocol page, 2.11, 2.12, 2.16)."""

from __future__ import annotations

from coherer._common.masking import masked
from coherer._wire.rocketmq.command import Int32, Int64
from coherer._wire.rocketmq.headers.base import NULL, Header


class TopicHeader(Header):
    """105, 202, 215, 216, 300: a topic."""

    topic: str


class CreateTopicHeader(Header):
    """17: a topic shall be so."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    default_topic: str | None = None
    topic_sys_flag: Int32 | None = None
    order: bool = False


class DeleteGroupHeader(Header):
    """207: a group shall no longer be."""

    group_name: str
    remove_offset: bool = False


class ConsumeStatsHeader(Header):
    """208: how far behind a group is."""

    consumer_group: str
    topic: str | None = None


class BrokerConsumeStatsHeader(Header):
    """317: how far behind all groups are."""

    is_order: bool = False


class ConsumeTimeSpanHeader(Header):
    """303: which times a group has to read."""

    topic: str
    group: str = NULL


class ViewStatsHeader(Header):
    """315: one counter."""

    stats_name: str = NULL
    stats_key: str = NULL


class QueryConsumeQueueHeader(Header):
    """321: entries of a queue's index."""

    topic: str
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class VersionResult(Header):
    """The answer to 26: the data version of what the body holds, as JSON."""

    version: str


class AccountHeader(Header):
    """50: an account shall be so; permissions are joined by commas."""

    access_key: str | None = None
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        return masked(self, "secret_key")


class AccessKeyHeader(Header):
    """51: an account shall no longer be."""

    access_key: str | None = None


class WhiteAddressesHeader(Header):
    """53: addresses that are trusted, joined by commas."""

    global_white_addrs: str | None = None


class AclVersionResult(Header):
    """The answer to 52."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
