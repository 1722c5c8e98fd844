"""Request and response codes, languages and releases, and an exception class for each error.

Codes that Java 4.9.3 defines but no server handles are included: a broker answers them with
REQUEST_CODE_NOT_SUPPORTED, a name server does not answer (docs/protocol/rocketmq.md, section 2.1).
351 and 361 are codes of 5.x that its clients and tools depend on.

>>> refused(17, "topic[x] not exist", server="b:10911", topic="x")
TopicNotExistError('topic[x] not exist')
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from coherer._common.error_codes import CodedError, error_classes, refused_error
from coherer.errors import AuthorizationError, RefusedError

FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""Java appends this to some remarks."""

HALF_NOT_FOUND: Final = "Find prepared transaction message failed"
"""The remark if a half message that a client ends is not there; it has no code of its own."""

NOT_SET: Final = "not set any response code"
"""The remark of an answer without a remark of its own; successes have it too (section 1.4)."""


class RequestCode(IntEnum):
    """Every request, by Java's name for it, and two of Coherer's own."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    GET_TOPIC_CONFIG = 351
    LITE_PULL_MESSAGE = 361
    # Coherer's own, for half batches. Other brokers refuse them: they would publish such messages.
    END_HALF_BATCH = 31037
    SEND_HALF_BATCH = 31310


class ResponseCode(IntEnum):
    """Every answer, by Java's name for it."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211


class _CodedError(CodedError):
    """Base class of the errors below."""


class SystemFailureError(_CodedError):
    """The server could not process the request (1)."""

    result = ResponseCode.SYSTEM_ERROR
    meaning = "The server could not process the request."
    advice = "The text gives the reason; see also the server's log."


class SystemBusyError(_CodedError):
    """The server is too busy (2)."""

    result = ResponseCode.SYSTEM_BUSY
    meaning = "The server is too busy."
    advice = "Send more slowly, or try again later."


class NotSupportedError(_CodedError):
    """The server does not know this request (3)."""

    result = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    meaning = "The server does not know this request."
    advice = (
        "Check that the address is that of a name server, or of a broker's main port, as required; "
        "RocketMQ 5's Proxy serves no administration."
    )


class FlushDiskTimeoutError(_CodedError):
    """The message is stored, but was not flushed to disk in time (10)."""

    result = ResponseCode.FLUSH_DISK_TIMEOUT
    meaning = "The message is stored, but was not flushed to disk in time."


class SlaveNotAvailableError(_CodedError):
    """The message is stored, but no slave is available to replicate it (11)."""

    result = ResponseCode.SLAVE_NOT_AVAILABLE
    meaning = "The message is stored, but no slave is available to replicate it."


class FlushSlaveTimeoutError(_CodedError):
    """The message is stored, but was not replicated to a slave in time (12)."""

    result = ResponseCode.FLUSH_SLAVE_TIMEOUT
    meaning = "The message is stored, but was not replicated to a slave in time."


class MessageIllegalError(_CodedError):
    """The message is not valid (13)."""

    result = ResponseCode.MESSAGE_ILLEGAL
    meaning = "The message is not valid."
    advice = (
        "Check the length of its topic, body and properties, its delivery time, and the message "
        "type of the topic."
    )


class ServiceNotAvailableError(_CodedError):
    """The broker does not accept messages now (14)."""

    result = ResponseCode.SERVICE_NOT_AVAILABLE
    meaning = "The broker does not accept messages now."
    advice = "It is a slave, it is stopping, or its disk is full."


class NoPermissionError(_CodedError):
    """The broker, topic or group does not permit this (16)."""

    result = ResponseCode.NO_PERMISSION
    meaning = "The broker, topic or group does not permit this."
    advice = "An administrator has to allow it."


class TopicNotExistError(_CodedError):
    """The topic does not exist (17)."""

    result = ResponseCode.TOPIC_NOT_EXIST
    meaning = "The topic does not exist."
    advice = "Check its name, or create it."


class PullNotFoundError(_CodedError):
    """No message has arrived yet (19)."""

    result = ResponseCode.PULL_NOT_FOUND
    meaning = "No message has arrived yet."
    advice = "Try again later."


class PullRetryError(_CodedError):
    """None of the examined messages matches (20)."""

    result = ResponseCode.PULL_RETRY_IMMEDIATELY
    meaning = "None of the examined messages matches."
    advice = "Pull again from the next offset."


class PullOffsetMovedError(_CodedError):
    """The offset is outside the queue (21)."""

    result = ResponseCode.PULL_OFFSET_MOVED
    meaning = "The offset is outside the queue."
    advice = "Pull again from the next offset in the answer."


class QueryNotFoundError(_CodedError):
    """The requested item was not found (22)."""

    result = ResponseCode.QUERY_NOT_FOUND
    meaning = "The requested item was not found."


class SubscriptionParseError(_CodedError):
    """The broker cannot parse the filter (23)."""

    result = ResponseCode.SUBSCRIPTION_PARSE_FAILED
    meaning = "The broker cannot parse the filter."
    advice = "Check the expression."


class SubscriptionNotExistError(_CodedError):
    """The broker does not know the subscription (24)."""

    result = ResponseCode.SUBSCRIPTION_NOT_EXIST
    meaning = "The broker does not know the subscription."
    advice = "The next heartbeat announces it."


class SubscriptionNotLatestError(_CodedError):
    """The broker has an older version of the subscription (25)."""

    result = ResponseCode.SUBSCRIPTION_NOT_LATEST
    meaning = "The broker has an older version of the subscription."
    advice = "The next heartbeat announces it."


class GroupNotExistError(_CodedError):
    """The group does not exist (26)."""

    result = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    meaning = "The group does not exist."
    advice = "Check its name, or create it."


class FilterDataNotExistError(_CodedError):
    """The broker does not know the filter (27)."""

    result = ResponseCode.FILTER_DATA_NOT_EXIST
    meaning = "The broker does not know the filter."
    advice = "Check the expression."


class FilterDataNotLatestError(_CodedError):
    """The broker has an older version of the filter (28)."""

    result = ResponseCode.FILTER_DATA_NOT_LATEST
    meaning = "The broker has an older version of the filter."
    advice = "The next heartbeat announces it."


class ConsumerNotOnlineError(_CodedError):
    """No consumer of the group is connected (206)."""

    result = ResponseCode.CONSUMER_NOT_ONLINE
    meaning = "No consumer of the group is connected."


class ConsumeTimeoutError(_CodedError):
    """The consumer did not answer in time (207)."""

    result = ResponseCode.CONSUME_MSG_TIMEOUT
    meaning = "The consumer did not answer in time."


class AclUpdateError(_CodedError):
    """The account was not changed (209)."""

    result = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    meaning = "The account was not changed."
    advice = "Check that access control is enabled on the broker."


class AclDeleteError(_CodedError):
    """The account was not deleted (210)."""

    result = ResponseCode.DELETE_ACL_CONFIG_FAILED
    meaning = "The account was not deleted."
    advice = "Check that access control is enabled on the broker."


class AclWhiteListError(_CodedError):
    """The list of trusted addresses was not changed (211)."""

    result = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    meaning = "The list of trusted addresses was not changed."
    advice = "Check that access control is enabled on the broker."


ERRORS: Final = error_classes(_CodedError)
"""Code → class."""


def refused(
    code: int,
    remark: str | None = None,
    *,
    server: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> RefusedError:
    """Return the exception for an answer that reports an error.

    Args:
        remark: the server's text, from which the address of Java's FAQ is removed; if empty, the
            meaning of the code is used.
        server: the server that answered, as `host:port`.
        topic: the topic concerned.
        partition: the queue concerned.
    """
    text = "" if remark is None or remark == NOT_SET else remark.removesuffix(FAQ).rstrip()
    if "AclException" in text:  # access control has no code of its own
        return AuthorizationError(
            text, code=code, server=server, topic=topic, partition=partition, hint=_ACCESS_ADVICE
        )
    return refused_error(ERRORS, code, text, server=server, topic=topic, partition=partition)


_ACCESS_ADVICE: Final = "Check user and password, and the permissions of the account on the broker."


LANGUAGES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
)
"""The languages that a header may name (section 1.6), by their numbers in the binary header."""

LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}

PYTHON: Final = "PYTHON"
JAVA: Final = "JAVA"
CPP: Final = "CPP"
"""Servers send clients in C++ a different body of reset offset (section 4.4)."""


def language_name(value: str | int | None) -> str | None:
    """Return the language of a name or number; None for an unknown one, as in Java.

    >>> language_name("go"), language_name(9), language_name("COBOL"), language_name(99)
    ('GO', 'GO', None, None)
    """
    if isinstance(value, str):
        return value.upper() if value.upper() in LANGUAGE_NUMBERS else None
    if value is None or not 0 <= value < len(LANGUAGES):
        return None
    return LANGUAGES[value]


V3_0_7_SNAPSHOT: Final = 28
"""First release whose consumers can reset their offsets and report their status (222, 223)."""
V3_0_11: Final = 37
"""First release whose brokers register with a `RegisterBrokerBody` (103)."""
V3_1_8_SNAPSHOT: Final = 62
"""First release whose consumers answer 307 and 309."""
V3_4_9: Final = 121
"""First release that uses `maxReconsumeTimes` of headers (36, sends to retry topics)."""
V4_1_0_SNAPSHOT: Final = 232
"""First release whose brokers filter by SQL92."""
V4_9_1: Final = 395
"""Earlier brokers require `maxReconsumeTimes` to take a message back (36)."""
V4_9_3: Final = 399
"""The release that Coherer reports as its own."""
V4_9_4: Final = 401
"""First release whose clients get routes as standard JSON (105)."""
V5_0_0: Final = 413
"""First release whose brokers support timed messages."""
HIGHEST: Final = 612
"""Stands for every later release."""

_BETAS: Final = (
    "V3_0_0_SNAPSHOT",
    "V3_0_0_ALPHA1",
    "V3_0_0_BETA1",
    "V3_0_0_BETA2",
    "V3_0_0_BETA3",
    "V3_0_0_BETA4",
    "V3_0_0_BETA5",
    "V3_0_0_BETA6_SNAPSHOT",
    "V3_0_0_BETA6",
    "V3_0_0_BETA7_SNAPSHOT",
    "V3_0_0_BETA7",
    "V3_0_0_BETA8_SNAPSHOT",
    "V3_0_0_BETA8",
    "V3_0_0_BETA9_SNAPSHOT",
    "V3_0_0_BETA9",
    "V3_0_0_FINAL",
)
_MINORS: Final = (
    # (first number, major, minor, first patch, one beyond the last patch)
    (16, 3, 0, 1, 16),
    (46, 3, 1, 0, 10),
    (66, 3, 2, 0, 10),
    *((86 + 18 * (minor - 3), 3, minor, 1, 10) for minor in range(3, 10)),
    *((212 + 20 * minor, 4, minor, 0, 10) for minor in range(10)),
    *((412 + 20 * minor, 5, minor, 0, 10) for minor in range(10)),
)


def version_name(number: int) -> str:
    """Return the name of a release, as Java prints it.

    >>> [version_name(number) for number in (399, 398, 121, 28, 213, 5000)]
    ['V4_9_3', 'V4_9_3_SNAPSHOT', 'V3_4_9', 'V3_0_7_SNAPSHOT', 'V4_0_0', 'HIGHER_VERSION']
    """
    if number >= HIGHEST:
        return "HIGHER_VERSION"
    if 0 <= number < len(_BETAS):
        return _BETAS[number]
    for first, major, minor, patch, stop in _MINORS:
        if first <= number < first + 2 * (stop - patch):
            steps, release = divmod(number - first, 2)
            name = f"V{major}_{minor}_{patch + steps}"
            return name if release else f"{name}_SNAPSHOT"
    return _BETAS[0]
