"""How a RocketMQ broker behaves."""

from __future__ import annotations

import ipaddress
from typing import Final, Literal

import msgspec

Role = Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]

MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Java's `maxMessageSize`."""


class RocketOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a RocketMQ broker behaves. Behind each option stands Java's name for it.

    Args:
        cluster: the cluster's name (`brokerClusterName`).
        broker: the broker's name, the same for a master and its slaves (`brokerName`).
        broker_id: 0 for a master (`brokerId`).
        host: the address that clients and name servers know it by (`brokerIP1`).
        port: the port likewise (`listenPort`).
        ha_port: where slaves fetch the log; 0 without (`haListenPort`).
        region: what answers to sends name (`regionId`).
        trace_on: whether clients that trace shall do so (`traceOn`).
        perm: 6; 4 for a broker that takes no messages, 2 for one that gives none
            (`brokerPermission`).
        role: master or slave (`brokerRole`).
        auto_create_topics: whether a send may make a topic (`autoCreateTopicEnable`).
        auto_create_groups: whether a consumer may make a group (`autoCreateSubscriptionGroup`).
        default_queues: how many queues such a topic has at most (`defaultTopicQueueNums`).
        message_bytes_max: the largest message or batch (`maxMessageSize`).
        pull_count_max: messages that one pull brings at most; Java's brokers stop at 32
            (`maxTransferCountOnMessageInMemory`).
        pull_bytes_max: the same in bytes, where the first message is larger one message
            (`maxTransferBytesOnMessageInMemory`).
        long_polling: whether a pull that finds nothing waits as long as it says
            (`longPollingEnable`).
        short_polling_ms: how long it waits otherwise (`shortPollingTimeMills`).
        reject_transactions: whether half messages are refused (`rejectTransactionMessage`).
        property_filter: whether consumers may filter by SQL92; not with Java's brokers unless
            they are told to (`enablePropertyFilter`).
        filter_retries: whether their filters hold for what comes back, too
            (`filterSupportRetry`).
        accept_sends_from_ms: sends are refused before this time
            (`startAcceptSendRequestTimeStamp`).
        notify_members: whether the consumers of a group are told when one comes or goes
            (`notifyConsumerIdsChangedEnable`).
        store_replies: whether answers to requests are stored, too (`storeReplyMessageEnable`).
        trace_topic: whether there is a topic for traces from the start (`traceTopicEnable`); else
            the first trace makes it, where sends may make topics.
        slave_reads: whether consumers that are far behind are sent to a slave (`slaveReadEnable`).
        flush_timeout_ms: how long a send waits for the disk (`syncFlushTimeout`).
        slave_timeout_ms: how long a send waits for a slave (`slaveTimeout`).
        transaction_timeout_ms: how old a half message is when its producer is asked first
            (`transactionTimeOut`).
        transaction_checks_max: how often it is asked (`transactionCheckMax`).
        transaction_interval_ms: from one round of questions to the next
            (`transactionCheckInterval`).
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
    pull_count_max: int = 1024
    pull_bytes_max: int = 1024 * 1024
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
        """The broker as `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def ha_address(self) -> str:
        """Where slaves fetch the log, as `host:port` (`brokerIP2:haListenPort`)."""
        return f"{self.host}:{self.ha_port}"

    @property
    def store_host(self) -> bytes:
        """The broker as records and offset ids name it: address and port, 8 or 20 bytes.

        >>> RocketOptions().store_host.hex()
        '7f00000100002a9f'
        """
        try:
            address = ipaddress.ip_address(self.host).packed
        except ValueError:
            address = bytes(4)  # a name: ids then say which record, but not where
        return address + self.port.to_bytes(4, "big")
