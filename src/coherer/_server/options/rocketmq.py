"""Options of a RocketMQ broker."""

from __future__ import annotations

import ipaddress
from typing import Final, Literal

import msgspec

Role = Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]

MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The default of Java's `maxMessageSize`."""


class RocketOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a RocketMQ broker; the names in parentheses are Java's.

    Args:
        cluster: the cluster's name (`brokerClusterName`).
        broker: the broker's name, the same for a master and its slaves (`brokerName`).
        broker_id: 0 for a master (`brokerId`).
        host: the address that clients and name servers use (`brokerIP1`).
        port: the port that they use (`listenPort`).
        ha_port: the replication port; 0 without (`haListenPort`).
        region: the region in responses to sends (`regionId`).
        trace_on: whether clients with tracing send traces (`traceOn`).
        perm: 6; 4 for a broker that refuses sends, 2 for one that refuses pulls
            (`brokerPermission`).
        role: master or slave (`brokerRole`).
        auto_create_topics: whether a send may create a topic (`autoCreateTopicEnable`).
        auto_create_groups: whether a consumer may create a group (`autoCreateSubscriptionGroup`).
        default_queues: the maximum number of queues of such a topic (`defaultTopicQueueNums`).
        message_bytes_max: the largest message or batch (`maxMessageSize`).
        pull_count_max: the maximum number of messages per pull; 32 in Java's brokers
            (`maxTransferCountOnMessageInMemory`).
        pull_bytes_max: the maximum size of a pull; a larger message is returned alone
            (`maxTransferBytesOnMessageInMemory`).
        long_polling: whether a pull without messages waits as long as it asks for
            (`longPollingEnable`).
        short_polling_ms: how long it waits otherwise (`shortPollingTimeMills`).
        reject_transactions: whether half messages are refused (`rejectTransactionMessage`).
        property_filter: whether consumers may filter by SQL92; off by default in Java's brokers
            (`enablePropertyFilter`).
        filter_retries: whether filters apply to redelivered messages, too (`filterSupportRetry`).
        accept_sends_from_ms: sends are refused before this time
            (`startAcceptSendRequestTimeStamp`).
        notify_members: whether the consumers of a group are notified of joins and leaves
            (`notifyConsumerIdsChangedEnable`).
        store_replies: whether replies to requests are stored, too (`storeReplyMessageEnable`).
        trace_topic: whether a topic for traces exists from the start (`traceTopicEnable`);
            otherwise the first trace creates it, where sends may create topics.
        slave_reads: whether lagging consumers are redirected to a slave (`slaveReadEnable`).
        flush_timeout_ms: how long a send waits for the disk (`syncFlushTimeout`).
        slave_timeout_ms: how long a send waits for a slave (`slaveTimeout`).
        transaction_timeout_ms: the age of a half message at its first check
            (`transactionTimeOut`).
        transaction_checks_max: the number of checks (`transactionCheckMax`).
        transaction_interval_ms: the interval of checks (`transactionCheckInterval`).
    """

    cluster: str = "DefaultCluster"
    broker: str = "broker-a"
    broker_id: int = 0
    host: str = "127.0.0.1"
    port: int = 10911
    ha_port: int = 0
    region: str = "DefaultRegion"
    trace_on: bool = True
    perm: int = 6
    role: Role = "ASYNC_MASTER"
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    default_queues: int = 8
    message_bytes_max: int = MESSAGE_BYTES
    pull_count_max: int = 10_000
    pull_bytes_max: int = 2 * 1024 * 1024
    long_polling: bool = True
    short_polling_ms: int = 1_000
    reject_transactions: bool = False
    property_filter: bool = True
    filter_retries: bool = False
    accept_sends_from_ms: int = 0
    notify_members: bool = True
    store_replies: bool = True
    trace_topic: bool = False
    slave_reads: bool = False
    flush_timeout_ms: int = 5_000
    slave_timeout_ms: int = 3_000
    transaction_timeout_ms: int = 6_000
    transaction_checks_max: int = 15
    transaction_interval_ms: int = 60_000

    @property
    def address(self) -> str:
        """The broker's `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def ha_address(self) -> str:
        """The replication port as `host:port` (`brokerIP2:haListenPort`)."""
        return f"{self.host}:{self.ha_port}"

    @property
    def store_host(self) -> bytes:
        """The broker's address and port as in records and offset ids: 8 or 20 bytes.

        >>> RocketOptions().store_host.hex()
        '7f00000100002a9f'
        """
        try:
            address = ipaddress.ip_address(self.host).packed
        except ValueError:
            address = bytes(4)  # a host name: ids then identify the record, but not the broker
        return address + self.port.to_bytes(4, "big")
