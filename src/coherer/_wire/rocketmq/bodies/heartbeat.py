"""Heartbeats and reports about clients (docs/protocol/rocketmq.md, sections 3.3, 2.10, 2.13)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import field

from coherer._wire.rocketmq.bodies.base import Body, enum_names
from coherer._wire.rocketmq.codes import LANGUAGES
from coherer._wire.rocketmq.names import Queue
from coherer.limits import HEARTBEAT_OBJECTS_MAX

CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
"""A pull consumer."""
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
"""A push consumer."""
CLUSTERING: Final = "CLUSTERING"
BROADCASTING: Final = "BROADCASTING"
FROM_LAST: Final = "CONSUME_FROM_LAST_OFFSET"
FROM_FIRST: Final = "CONSUME_FROM_FIRST_OFFSET"
FROM_TIMESTAMP: Final = "CONSUME_FROM_TIMESTAMP"

TYPES: Final = (CONSUME_ACTIVELY, CONSUME_PASSIVELY)
MODELS: Final = (BROADCASTING, CLUSTERING)
STARTS: Final = (
    FROM_LAST,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    FROM_FIRST,
    FROM_TIMESTAMP,
)

OUTCOMES: Final = (
    "CR_SUCCESS",
    "CR_LATER",
    "CR_ROLLBACK",
    "CR_COMMIT",
    "CR_THROW_EXCEPTION",
    "CR_RETURN_NULL",
)

ConsumeType = Annotated[str, enum_names(*TYPES)]
MessageModel = Annotated[str, enum_names(*MODELS)]
ConsumeFrom = Annotated[str, enum_names(*STARTS)]
Language = Annotated[str, enum_names(*LANGUAGES)]
Outcome = Annotated[str, enum_names(*OUTCOMES)]

TAG: Final = "TAG"
SQL92: Final = "SQL92"


class SubscriptionData(Body, frozen=True):
    """A group's subscription to a topic.

    Args:
        sub_string: tags separated by `||`, `*` for all messages, or an expression.
        code_set: their hashes, by which a broker filters.
        sub_version: time of creation, ms since 1970; 0 if unknown.
        expression_type: `TAG` or `SQL92`.
        class_filter_mode: obsolete.
    """

    topic: str = ""
    sub_string: str = ""
    tags_set: list[str] = field(default_factory=list[str])
    code_set: list[int] = field(default_factory=list[int])
    sub_version: int = 0
    expression_type: str = TAG
    class_filter_mode: bool = False

    @property
    def filter(self) -> str:
        """The filter as text, `*` for all messages; equal texts filter alike.

        >>> SubscriptionData(sub_string="y||x", tags_set=["y", "x"]).filter
        'x || y'
        >>> SubscriptionData(sub_string="y || x").filter, SubscriptionData(sub_string="*").filter
        ('x || y', '*')
        >>> SubscriptionData(sub_string="a > 1", expression_type=SQL92).filter
        'SQL92 a > 1'
        """
        if self.expression_type == SQL92:
            return f"SQL92 {self.sub_string}"
        # Some clients send the tags as text only.
        tags = self.tags_set or [tag.strip() for tag in self.sub_string.split("||")]
        return " || ".join(sorted(filter(None, tags))) or "*"


class ConsumerData(Body, frozen=True):
    """A consumer; unknown values of the three enums are None, as in Java."""

    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFrom | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list[SubscriptionData])
    unit_mode: bool = False


class ProducerData(Body, frozen=True):
    """A producer."""

    group_name: str = ""


class HeartbeatData(Body, frozen=True):
    """HEART_BEAT (34): a client with its producers and consumers.

    Clients in C++ send the numbers of enums.

    >>> HeartbeatData.decode(b'{"consumerDataSet":[{"messageModel":1}]}').consumer_data_set[
    ...     0
    ... ].message_model
    'CLUSTERING'
    """

    objects_max: ClassVar[int] = HEARTBEAT_OBJECTS_MAX

    client_id: str = field(default="", name="clientID")
    producer_data_set: list[ProducerData] = field(default_factory=list[ProducerData])
    consumer_data_set: list[ConsumerData] = field(default_factory=list[ConsumerData])


class CheckClient(Body, frozen=True):
    """CHECK_CLIENT_CONFIG (46): asks whether the broker supports a subscription."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class ConsumerIds(Body, frozen=True):
    """The answer to 38: the clients of a group."""

    consumer_id_list: list[str] = field(default_factory=list[str])


class LockBatch(Body, frozen=True):
    """Queues that a client locks or unlocks (41, 42)."""

    objects_max: ClassVar[int] = HEARTBEAT_OBJECTS_MAX

    consumer_group: str = ""
    client_id: str = ""
    queues: list[Queue] = field(default_factory=list[Queue], name="mqSet")


class LockedBatch(Body, frozen=True):
    """The answer to 41: the queues that are locked for the client."""

    queues: list[Queue] = field(default_factory=list[Queue], name="lockOKMQSet")


class Connection(Body, frozen=True):
    """A connected client."""

    client_id: str = ""
    client_addr: str = ""
    language: Language | None = None
    version: int = 0


class ConsumerConnection(Body, frozen=True):
    """The answer to 203: the consumers of a group."""

    connection_set: list[Connection] = field(default_factory=list[Connection])
    subscription_table: dict[str, SubscriptionData] = field(
        default_factory=dict[str, SubscriptionData]
    )
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFrom | None = None


class ProducerConnection(Body, frozen=True):
    """The answer to 204: the producers of a group."""

    connection_set: list[Connection] = field(default_factory=list[Connection])


class ProducerInfo(Body, frozen=True):
    """A producer in the answer to 328."""

    client_id: str = ""
    remote_ip: str = field(default="", name="remoteIP")
    language: str | None = None
    version: int = 0
    last_update_timestamp: int = 0


class ProducerTable(Body, frozen=True):
    """The answer to 328: all producers, by group."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict[str, list[ProducerInfo]])


class ConsumeStatus(Body, frozen=True):
    """A consumer's statistics of one topic; times in ms, rates per second."""

    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: int = 0


class ProcessQueueInfo(Body, frozen=True):
    """The state of a queue in a consumer; times in ms since 1970."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class RunningInfo(Body, frozen=True):
    """The answer to 307: the state of a consumer.

    Args:
        properties: its settings, and `PROP_…`.
        status_table: statistics by topic.
        user_consumer_info: entries of its user.
        jstack: its threads, if requested.
    """

    properties: dict[str, str] = field(default_factory=dict[str, str])
    subscription_set: list[SubscriptionData] = field(default_factory=list[SubscriptionData])
    mq_table: dict[Queue, ProcessQueueInfo] = field(default_factory=dict[Queue, ProcessQueueInfo])
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict[str, ConsumeStatus])
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


class ConsumeDirectlyResult(Body, frozen=True):
    """The answer to 309: the outcome of consuming a message, one of `OUTCOMES`."""

    order: bool = False
    auto_commit: bool = True
    consume_result: Outcome | None = None
    remark: str | None = None
    spent_time_mills: int = 0
