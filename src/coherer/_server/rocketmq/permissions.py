"""The permissions that RocketMQ's requests need: the table of all codes that a node serves.

See docs/protocol/rocketmq.md, section 10.2.

Invariant: every code that a broker or a name server answers is in `NEEDED`. `check_complete` fails
the start of a node with accounts otherwise, so a new request cannot be served unprotected by
mistake.

The table follows four rules:

* Whatever a request names needs a permission: the messages of a topic SUB, sends PUB, the members
  and offsets of a group SUB, the numbers of a topic either of the two.
* A change to a broker or a name server that affects others needs an administrator.
* An overview, which holds names and numbers but no messages and no secrets, needs a signature, so
  that an account for monitoring can read it.
* A name server answers queries without a signature.

Java's `PlainAccessValidator` knows the codes 10, 11, 12, 15, 34, 35, 36, 38 and 310, and requires
an administrator for 17, 25, 200, 207 and 215. Of all other requests to a broker it checks only the
signature, and Java's name server checks nothing. All other rows of the table are stricter.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from coherer._rules.rocketmq.acl import ANY, PUB, SUB
from coherer._wire.rocketmq.bodies import HeartbeatData, LockBatch
from coherer._wire.rocketmq.codes import RequestCode as Code
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import retry_topic


class Level(enum.Enum):
    """What is required for a request that names no topic and no group."""

    OPEN = "nothing"
    SIGNED = "a signature"
    ADMIN = "an administrator"


Resources: TypeAlias = "tuple[tuple[str, int], ...]"
"""Permissions by topic, and by retry topic for groups."""


class Fields:
    """The permissions for topics and groups in fields of a header; a missing field needs none.

    Args:
        topics: permissions by the name of the field that holds a topic.
        groups: names of the fields that hold a consumer group; they need SUB.
    """

    def __init__(self, topics: Mapping[str, int], *groups: str) -> None:
        self._topics = tuple(topics.items())
        self._groups = groups

    def __call__(self, request: Command) -> Resources:
        fields = request.fields
        found = [(fields[name], bits) for name, bits in self._topics if name in fields]
        found += [(retry_topic(fields[name]), SUB) for name in self._groups if name in fields]
        return tuple(found)


def _of_heartbeat(request: Command) -> Resources:
    # Groups of producers have no permissions. A broker hands messages only to producers and
    # consumers that may have them: see `Access.permits`.
    needed: list[tuple[str, int]] = []
    for consumer in HeartbeatData.decode(request.body).consumer_data_set:
        needed.append((retry_topic(consumer.group_name), SUB))
        needed += [(each.topic, SUB) for each in consumer.subscription_data_set]
    return tuple(needed)


def _of_locks(request: Command) -> Resources:
    locks = LockBatch.decode(request.body)
    topics = dict.fromkeys(queue.topic for queue in locks.queues)
    return (retry_topic(locks.consumer_group), SUB), *[(topic, SUB) for topic in topics]


NEEDED: Final[Mapping[int, Level | Callable[[Command], Resources]]] = {
    # Messages. Java does not look at batches, so that every account may send them to all topics.
    Code.SEND_MESSAGE: Fields({"topic": PUB}),
    Code.SEND_MESSAGE_V2: Fields({"b": PUB}),
    Code.SEND_BATCH_MESSAGE: Fields({"b": PUB}),
    Code.SEND_HALF_BATCH: Fields({"b": PUB}),
    # The handlers also check PUB on the topic, unless it is the cluster's topic for replies.
    Code.SEND_REPLY_MESSAGE: Level.SIGNED,
    Code.SEND_REPLY_MESSAGE_V2: Level.SIGNED,
    # The handler also checks SUB on the topic of the message that is sent back.
    Code.CONSUMER_SEND_MSG_BACK: Fields({"originTopic": PUB}, "group"),
    # The handler checks PUB on the topic of the half message.
    Code.END_TRANSACTION: Level.SIGNED,
    Code.END_HALF_BATCH: Level.SIGNED,
    Code.RESUME_CHECK_HALF_MESSAGE: Level.ADMIN,
    Code.PULL_MESSAGE: Fields({"topic": SUB}, "consumerGroup"),
    Code.LITE_PULL_MESSAGE: Fields({"topic": SUB}, "consumerGroup"),
    Code.QUERY_MESSAGE: Fields({"topic": SUB}),
    # The handler checks SUB on the topic of the message.
    Code.VIEW_MESSAGE_BY_ID: Level.SIGNED,
    # The handler also checks SUB on the topic of the message, for the consumer, too.
    Code.CONSUME_MESSAGE_DIRECTLY: Fields({}, "consumerGroup"),
    # Offsets
    # A consumer that may not read in its group asks first, and learns from its pulls why it cannot.
    Code.QUERY_CONSUMER_OFFSET: Fields({"topic": ANY}),
    Code.UPDATE_CONSUMER_OFFSET: Fields({"topic": SUB}, "consumerGroup"),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: Fields({"topic": ANY}),
    Code.GET_MAX_OFFSET: Fields({"topic": ANY}),
    Code.GET_MIN_OFFSET: Fields({"topic": ANY}),
    Code.GET_EARLIEST_MSG_STORETIME: Fields({"topic": ANY}),
    Code.QUERY_CONSUME_QUEUE: Fields({"topic": SUB}),
    Code.GET_ALL_CONSUMER_OFFSET: Level.SIGNED,
    Code.GET_ALL_DELAY_OFFSET: Level.SIGNED,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: Fields({"topic": SUB}, "group"),
    Code.QUERY_CORRECTION_OFFSET: Fields({"topic": ANY}, "compareGroup"),
    # Without a topic, the handler checks SUB on each topic of the source group.
    Code.CLONE_GROUP_OFFSET: Fields({"topic": SUB}, "srcGroup", "destGroup"),
    # Clients
    Code.HEART_BEAT: _of_heartbeat,
    Code.UNREGISTER_CLIENT: Fields({}, "consumerGroup"),
    Code.GET_CONSUMER_LIST_BY_GROUP: Fields({}, "consumerGroup"),
    Code.CHECK_CLIENT_CONFIG: Level.SIGNED,
    Code.LOCK_BATCH_MQ: _of_locks,
    Code.UNLOCK_BATCH_MQ: _of_locks,
    Code.GET_CONSUMER_CONNECTION_LIST: Fields({}, "consumerGroup"),
    Code.GET_PRODUCER_CONNECTION_LIST: Level.SIGNED,
    Code.GET_ALL_PRODUCER_INFO: Level.SIGNED,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: Fields({"topic": ANY}),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Fields({"topic": ANY}, "group"),
    Code.GET_CONSUMER_RUNNING_INFO: Fields({}, "consumerGroup"),
    # Topics and groups
    Code.UPDATE_AND_CREATE_TOPIC: Level.ADMIN,
    Code.DELETE_TOPIC_IN_BROKER: Level.ADMIN,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: Level.ADMIN,
    Code.CLEAN_UNUSED_TOPIC: Level.ADMIN,
    Code.GET_ALL_TOPIC_CONFIG: Level.SIGNED,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Level.SIGNED,
    Code.GET_TOPIC_CONFIG: Fields({"topic": ANY}),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Level.ADMIN,
    Code.DELETE_SUBSCRIPTIONGROUP: Level.ADMIN,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Level.SIGNED,
    # Statistics
    Code.GET_TOPIC_STATS_INFO: Fields({"topic": ANY}),
    Code.GET_CONSUME_STATS: Fields({"topic": ANY}, "consumerGroup"),
    Code.QUERY_CONSUME_TIME_SPAN: Fields({"topic": ANY}, "group"),
    Code.GET_BROKER_CONSUME_STATS: Level.SIGNED,
    Code.GET_BROKER_RUNTIME_INFO: Level.SIGNED,
    Code.VIEW_BROKER_STATS_DATA: Level.SIGNED,
    # Settings and accounts. Java's broker shows all secrets to every account (54).
    Code.UPDATE_BROKER_CONFIG: Level.ADMIN,
    Code.GET_BROKER_CONFIG: Level.SIGNED,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: Level.ADMIN,
    Code.DELETE_ACL_CONFIG: Level.ADMIN,
    Code.GET_BROKER_CLUSTER_ACL_INFO: Level.SIGNED,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Level.ADMIN,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: Level.ADMIN,
    # Name server. Java's clients and tools sign their queries if they have an account, and other
    # clients do not, such as Go's pull consumer and its administration.
    Code.GET_ROUTEINFO_BY_TOPIC: Level.OPEN,
    Code.GET_BROKER_CLUSTER_INFO: Level.OPEN,
    Code.GET_KV_CONFIG: Level.OPEN,
    Code.GET_KVLIST_BY_NAMESPACE: Level.OPEN,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Level.OPEN,
    Code.GET_TOPICS_BY_CLUSTER: Level.OPEN,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Level.OPEN,
    Code.GET_UNIT_TOPIC_LIST: Level.OPEN,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: Level.OPEN,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Level.OPEN,
    # Only brokers and Java's tools ask for these two, and both sign.
    Code.QUERY_DATA_VERSION: Level.SIGNED,
    Code.GET_NAMESRV_CONFIG: Level.SIGNED,
    Code.PUT_KV_CONFIG: Level.ADMIN,
    Code.DELETE_KV_CONFIG: Level.ADMIN,
    Code.REGISTER_BROKER: Level.ADMIN,
    Code.UNREGISTER_BROKER: Level.ADMIN,
    Code.WIPE_WRITE_PERM_OF_BROKER: Level.ADMIN,
    Code.ADD_WRITE_PERM_OF_BROKER: Level.ADMIN,
    Code.DELETE_TOPIC_IN_NAMESRV: Level.ADMIN,
    Code.UPDATE_NAMESRV_CONFIG: Level.ADMIN,
}
"""What each request needs: a level, or the permissions that a function reads from it."""


def check_complete(codes: Iterable[int]) -> None:
    """Fail if the table lacks one of the codes that a server answers.

    Raises:
        RuntimeError: a code is missing.
    """
    missing = sorted(set(codes) - NEEDED.keys())
    if missing:
        raise RuntimeError(f"No permission is stated for the request codes {missing}.")


def needed(request: Command) -> tuple[Level, Resources]:
    """The level and the permissions that a request needs.

    Raises:
        ProtocolError: its body is invalid.

    >>> needed(Command(310, fields={"b": "flights"}))
    (<Level.SIGNED: 'a signature'>, (('flights', 4),))
    >>> needed(Command(35, fields={"consumerGroup": "g"}))[1], needed(Command(35))[1]
    ((('%RETRY%g', 8),), ())
    """
    # The sender of a code that is not served must sign, and learns that it is not supported.
    found = NEEDED.get(request.code, Level.SIGNED)
    if isinstance(found, Level):
        return found, ()
    return Level.SIGNED, found(request)
