"""Headers about clients, and between them and brokers (2.9, 2.10, 2.12, 2.13, 4)."""

from __future__ import annotations

from msgspec import field

from coherer._wire.rocketmq.command import Int32, Int64
from coherer._wire.rocketmq.headers.base import NULL, Header


class EndTransactionHeader(Header):
    """37: what became of a half message."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionHeader(Header):
    """39: a broker asks what became of a half message."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class MessageIdHeader(Header):
    """323: a half message is to be checked again."""

    msg_id: str | None = None


class GroupHeader(Header):
    """38, 40, 203: a group of consumers."""

    consumer_group: str


class ProducerGroupHeader(Header):
    """204: a group of producers."""

    producer_group: str


class UnregisterClientHeader(Header):
    """35: a producer or consumer leaves."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ResetOffsetHeader(Header):
    """222 to a broker, 220 to a consumer: read again from a time; -1 is the end."""

    topic: str
    group: str = NULL
    timestamp: Int64 = 0
    is_force: bool = False


class ConsumerStatusHeader(Header, kw_only=True):
    """223 to a broker, 221 to a consumer: where it stands.

    `client_addr` holds a client id (4.5).
    """

    topic: str | None = None
    group: str
    client_addr: str | None = None


class RunningInfoHeader(Header):
    """307: what a consumer is doing."""

    consumer_group: str
    client_id: str | None = None
    jstack_enable: bool = False


class ConsumeDirectlyHeader(Header):
    """309: a consumer is to consume one message now."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
