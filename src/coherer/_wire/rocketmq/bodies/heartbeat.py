"""What a client says of itself, and brokers say of clients (protocol page, 3.3, 2.10, 2.13)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import field

from coherer._wire.rocketmq.bodies.base import Body, words
from coherer._wire.rocketmq.codes import LANGUAGES
from coherer._wire.rocketmq.names import Queue
from coherer.limits import HEARTBEAT_OBJECTS_MAX

CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
"""A consumer that pulls by itself."""
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
"""A consumer that gets messages pushed, as its user sees it."""
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

ConsumeType = Annotated[str, words(*TYPES)]
MessageModel = Annotated[str, words(*MODELS)]
StartWord = Annotated[str, words(*STARTS)]
LanguageWord = Annotated[str, words(*LANGUAGES)]
Outcome = Annotated[str, words(*OUTCOMES)]

TAG: Final = "TAG"
SQL92: Final = "SQL92"


class SubscriptionData(Body, frozen=True):
    """What a group takes of a topic.

    Args:
        topic: the topic.
        sub_string: tags with `||` between them, `*` for all, or an expression.
        tags_set: the tags.
        code_set: their hashes; a broker filters by these.
        sub_version: when it was made, ms since 1970; 0 when it did not say.
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


class ConsumerData(Body, frozen=True):
    """A consumer; what nobody knows among the three words is None, as Java keeps it."""

    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: StartWord | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list[SubscriptionData])
    unit_mode: bool = False


class ProducerData(Body, frozen=True):
    """A producer."""

    group_name: str = ""


class HeartbeatData(Body, frozen=True):
    """34: a client, with its producers and consumers; clients in C++ give the number of a word.

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
    """46: can the broker filter like this?"""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None


class ConsumerIds(Body, frozen=True):
    """The answer to 38: the clients of a group."""

    consumer_id_list: list[str] = field(default_factory=list[str])


class LockBatch(Body, frozen=True):
    """41 and 42: queues that a client locks, or frees."""

    objects_max: ClassVar[int] = HEARTBEAT_OBJECTS_MAX

    consumer_group: str = ""
    client_id: str = ""
    queues: list[Queue] = field(default_factory=list[Queue], name="mqSet")


class LockedBatch(Body, frozen=True):
    """The answer to 41: the queues that it has."""

    queues: list[Queue] = field(default_factory=list[Queue], name="lockOKMQSet")


class Connection(Body, frozen=True):
    """A client that is connected."""

    client_id: str = ""
    client_addr: str = ""
    language: LanguageWord | None = None
    version: int = 0


class ConsumerConnection(Body, frozen=True):
    """The answer to 203: the consumers of a group."""

    connection_set: list[Connection] = field(default_factory=list[Connection])
    subscription_table: dict[str, SubscriptionData] = field(
        default_factory=dict[str, SubscriptionData]
    )
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: StartWord | None = None


class ProducerConnection(Body, frozen=True):
    """The answer to 204: the producers of a group."""

    connection_set: list[Connection] = field(default_factory=list[Connection])


class ConsumeStatus(Body, frozen=True):
    """How a consumer fares with one topic; times in ms, rates per second."""

    pull_rt: float = field(default=0.0, name="pullRT")
    pull_tps: float = field(default=0.0, name="pullTPS")
    consume_rt: float = field(default=0.0, name="consumeRT")
    consume_ok_tps: float = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: int = 0


class ProcessQueueInfo(Body, frozen=True):
    """One queue as a consumer holds it; times in ms since 1970."""

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
    """The answer to 307: what a consumer is doing.

    Args:
        properties: its settings, and `PROP_…`.
        subscription_set: what it takes.
        mq_table: its queues.
        status_table: by topic.
        user_consumer_info: what its user adds.
        jstack: its threads, when asked for.
    """

    properties: dict[str, str] = field(default_factory=dict[str, str])
    subscription_set: list[SubscriptionData] = field(default_factory=list[SubscriptionData])
    mq_table: dict[Queue, ProcessQueueInfo] = field(default_factory=dict[Queue, ProcessQueueInfo])
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict[str, ConsumeStatus])
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


class ConsumeDirectlyResult(Body, frozen=True):
    """The answer to 309: what became of the message, one of `OUTCOMES`."""

    order: bool = False
    auto_commit: bool = True
    consume_result: Outcome | None = None
    remark: str | None = None
    spent_time_mills: int = 0
