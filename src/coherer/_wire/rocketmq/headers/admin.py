"""Headers of clients, transactions, administration and name servers.

See docs/protocol/rocketmq.md, sections 2.9 to 2.13, 2.15, 2.16, 4 and 9.
"""

from __future__ import annotations

from msgspec import field

from coherer._common.masking import masked
from coherer._wire.rocketmq.command import Int32, Int64
from coherer._wire.rocketmq.headers.base import NULL, Header


class EndTransactionHeader(Header):
    """END_TRANSACTION (37): commits or rolls back a half message."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionHeader(Header):
    """CHECK_TRANSACTION_STATE (39): a broker asks for the state of a half message."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


class MessageIdHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE (323): requests another check of a half message."""

    msg_id: str | None = None


class GroupHeader(Header):
    """A group of consumers: its members, their changes, their connections (38, 40, 203)."""

    consumer_group: str


class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST (204): a group of producers."""

    producer_group: str


class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT (35): unregisters a producer or consumer."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ResetOffsetHeader(Header):
    """Resets offsets to a time; -1 is the end (222 to a broker, 220 to a consumer)."""

    topic: str
    group: str = NULL
    timestamp: Int64 = 0
    is_force: bool = False


class ConsumerStatusHeader(Header, kw_only=True):
    """Asks a consumer for its offsets (223 to a broker, 221 to the consumer).

    `client_addr` contains a client id (section 4.5).
    """

    topic: str | None = None
    group: str
    client_addr: str | None = None


class RunningInfoHeader(Header):
    """GET_CONSUMER_RUNNING_INFO (307): asks for the state of a consumer."""

    consumer_group: str
    client_id: str | None = None
    jstack_enable: bool = False


class ConsumeDirectlyHeader(Header):
    """CONSUME_MESSAGE_DIRECTLY (309): makes a consumer consume one message."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class TopicHeader(Header):
    """The topic of a request (105, 202, 215, 216, 300)."""

    topic: str


class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC (17): creates or changes a topic."""

    topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    default_topic: str | None = None
    topic_sys_flag: Int32 | None = None
    order: bool = False


class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP (207): deletes a group."""

    group_name: str
    remove_offset: bool = False


class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS (208): asks for the lag of a group."""

    consumer_group: str
    topic: str | None = None


class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS (317): asks for the lag of all groups."""

    is_order: bool = False


class ConsumeTimeSpanHeader(Header):
    """QUERY_CONSUME_TIME_SPAN (303): asks for the times of a group's unread messages."""

    topic: str
    group: str = NULL


class ViewStatsHeader(Header):
    """VIEW_BROKER_STATS_DATA (315): asks for a counter."""

    stats_name: str = NULL
    stats_key: str = NULL


class QueryConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE (321): asks for entries of a consume queue."""

    topic: str
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class VersionResult(Header):
    """The answer to 26: the data version of the settings in the body, as JSON."""

    version: str


class AccountHeader(Header):
    """UPDATE_AND_CREATE_ACL_CONFIG (50): creates or changes an account.

    Permissions are joined by commas.
    """

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
    """DELETE_ACL_CONFIG (51): deletes an account."""

    access_key: str | None = None


class WhiteAddressesHeader(Header):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): sets the trusted addresses, joined by commas."""

    global_white_addrs: str | None = None


class AclVersionResult(Header):
    """The answer to 52."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str


class RegisterBrokerHeader(Header):
    """REGISTER_BROKER (103): registers a broker and its topics."""

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
    """The broker of a request (104, 322)."""

    broker_name: str = NULL
    broker_addr: str = NULL
    cluster_name: str = NULL
    broker_id: Int64


class DataVersionResult(Header):
    """The answer to 322."""

    changed: bool


class BrokerNameHeader(Header):
    """Revokes or grants permission to write to a broker (205, 327)."""

    broker_name: str = NULL


class WipeResult(Header):
    """The answer to 205."""

    wipe_topic_count: Int32


class AddResult(Header):
    """The answer to 327."""

    add_topic_count: Int32


class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER (224): a cluster."""

    cluster: str


class PutKvHeader(Header):
    """PUT_KV_CONFIG (100): a key and its value."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class KvHeader(Header):
    """The key of a request (101, 102)."""

    namespace: str
    key: str


class KvResult(Header):
    """The answer to 101."""

    value: str | None = None


class NamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE (219): the keys of a namespace."""

    namespace: str
