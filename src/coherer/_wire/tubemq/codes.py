"""The result codes of TubeMQ, and an exception class for each that a server may answer.

Codes without a class are only used inside a client and never sent (docs/protocol/tubemq.md, section
9); Coherer's client raises other errors for them, with the code in the attribute `code`.

>>> refused(431, "topic [x] not deployed", server="m:8715", topic="x")
TopicNotDeployedError('topic [x] not deployed')
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from coherer._common.error_codes import CodedError, error_classes, refused_error
from coherer.errors import AuthorizationError, RefusedError

NOT_ACTIVE: Final = 511
"""The errCode over HTTP of a standby that does not know the active master."""


class ResultCode(IntEnum):
    """Every code, by Java's name for it."""

    SUCCESS = 200
    NOT_READY = 201
    MOVED = 301
    BAD_REQUEST = 400
    UNAUTHORIZED = 401
    CONNECT_RETURN_NULL = 402
    FORBIDDEN = 403
    NOT_FOUND = 404
    ALL_PARTITION_FROZEN = 405
    NO_PARTITION_ASSIGNED = 406
    ALL_PARTITION_WAITING = 407
    ALL_PARTITION_INUSE = 408
    PARTITION_OCCUPIED = 410
    HB_NO_NODE = 411
    DUPLICATE_PARTITION = 412
    CERTIFICATE_FAILURE = 415
    SERVER_RECEIVE_OVERFLOW = 419
    CLIENT_SHUTDOWN = 420
    CLIENT_HIGH_FREQUENCY_REQUEST = 421
    PARTITION_UNSUBSCRIBABLE = 422
    PARTITION_UNPUBLISHABLE = 423
    CLIENT_INCONSISTENT_CONSUMETYPE = 424
    CLIENT_INCONSISTENT_TOPICSET = 425
    CLIENT_INCONSISTENT_FILTERSET = 426
    CLIENT_INCONSISTENT_SESSIONKEY = 427
    CLIENT_INCONSISTENT_SELECTBIG = 428
    CLIENT_INCONSISTENT_SOURCECOUNT = 429
    CLIENT_DUPLICATE_INDEXID = 430
    TOPIC_NOT_DEPLOYED = 431
    PARAMETER_MSG_NULL = 440
    PARAMETER_MSG_TOPIC_BLANK = 441
    PARAMETER_MSG_BODY_EMPTY = 442
    PARAMETER_MSG_TOPIC_UNPUBLISHED = 443
    PARAMETER_MSG_TOPIC_NO_PARTITION = 444
    PARAMETER_MSG_OVER_MAX_LENGTH = 445
    CONSUME_GROUP_FORBIDDEN = 450
    SERVER_CONSUME_SPEED_LIMIT = 452
    CONSUME_CONTENT_FORBIDDEN = 455
    INTERNAL_SERVER_ERROR = 500
    SERVICE_UNAVAILABLE = 503
    INTERNAL_SERVER_ERROR_MSGSET_NULL = 510
    UNSPECIFIED_ABNORMAL = 599


class _CodedError(CodedError):
    """Base class of the errors below."""


class NotReadyError(_CodedError):
    """The master has not loaded its data yet (201)."""

    result = ResultCode.NOT_READY
    meaning = "The master has not loaded its data yet."
    advice = "Try again in a moment."


class MovedError(_CodedError):
    """The offset is below the oldest message (301)."""

    result = ResultCode.MOVED
    meaning = "The offset is below the oldest message."
    advice = "Continue reading: the broker has moved the offset to the oldest message."


class BadRequestError(_CodedError):
    """A parameter is not valid (400)."""

    result = ResultCode.BAD_REQUEST
    meaning = "A parameter is not valid."


class UnauthorizedError(_CodedError):
    """The partition is not assigned to this consumer (401)."""

    result = ResultCode.UNAUTHORIZED
    meaning = "The partition is not assigned to this consumer."
    advice = "It moved to another consumer, or its lease expired; its messages are redelivered."


class ForbiddenError(_CodedError):
    """The topic or the partition is unknown or closed, or the checksum is wrong (403)."""

    result = ResultCode.FORBIDDEN
    meaning = "The topic or the partition is unknown or closed, or the checksum is wrong."
    advice = "Check that the topic exists on that broker and is open."


class NotFoundError(_CodedError):
    """No message has this offset (404)."""

    result = ResultCode.NOT_FOUND
    meaning = "No message has this offset."
    advice = "Try again later."


class PartitionOccupiedError(_CodedError):
    """The partition is assigned to another consumer of the group (410)."""

    result = ResultCode.PARTITION_OCCUPIED
    meaning = "The partition is assigned to another consumer of the group."
    advice = "It becomes available when that consumer releases it or its lease expires."


class NotRegisteredError(_CodedError):
    """The server does not know this client, or no longer knows it (411)."""

    result = ResultCode.HB_NO_NODE
    meaning = "The server does not know this client, or no longer knows it."
    advice = "Register again."


class DuplicatePartitionError(_CodedError):
    """The partition has been assigned to another consumer (412)."""

    result = ResultCode.DUPLICATE_PARTITION
    meaning = "The partition has been assigned to another consumer."


class CertificateError(_CodedError, AuthorizationError):
    """The server does not accept the credentials (415)."""

    result = ResultCode.CERTIFICATE_FAILURE
    meaning = "The server does not accept the credentials."
    advice = "Give user and password of an account with all permissions. Are both clocks right?"


STORE_FULL = "The store of the broker is full."
"""How a node's text of code 419 begins if its disk is full: sending again would not help then."""


class ServerOverflowError(_CodedError):
    """The broker cannot accept the message now (419)."""

    result = ResultCode.SERVER_RECEIVE_OVERFLOW
    meaning = "The broker cannot accept the message now."
    advice = "Send more slowly; the broker's log gives the reason."


class ConsumeTypeError(_CodedError):
    """The other consumers of the group consume in another way (424)."""

    result = ResultCode.CLIENT_INCONSISTENT_CONSUMETYPE
    meaning = "The other consumers of the group consume in another way."
    advice = "All members of a group must be bound, unbound, or balanced by the client."


class TopicSetError(_CodedError):
    """The other consumers of the group read other topics (425)."""

    result = ResultCode.CLIENT_INCONSISTENT_TOPICSET
    meaning = "The other consumers of the group read other topics."
    advice = "All members of a group must name the same topics."


class FilterSetError(_CodedError):
    """The other consumers of the group use other filters (426)."""

    result = ResultCode.CLIENT_INCONSISTENT_FILTERSET
    meaning = "The other consumers of the group use other filters."
    advice = "All members of a group must name the same filters."


class SessionKeyError(_CodedError):
    """The other consumers of the group use another session key (427)."""

    result = ResultCode.CLIENT_INCONSISTENT_SESSIONKEY
    meaning = "The other consumers of the group use another session key."


class SelectBigError(_CodedError):
    """The other consumers of the group choose between offsets in another way (428)."""

    result = ResultCode.CLIENT_INCONSISTENT_SELECTBIG
    meaning = "The other consumers of the group choose between offsets in another way."


class SourceCountError(_CodedError):
    """The other consumers of the group expect another number of members (429)."""

    result = ResultCode.CLIENT_INCONSISTENT_SOURCECOUNT
    meaning = "The other consumers of the group expect another number of members."


class DuplicateIndexError(_CodedError):
    """The node id is used by another consumer of the group (430)."""

    result = ResultCode.CLIENT_DUPLICATE_INDEXID
    meaning = "The node id is used by another consumer of the group."


class TopicNotDeployedError(_CodedError):
    """A topic does not exist (431)."""

    result = ResultCode.TOPIC_NOT_DEPLOYED
    meaning = "A topic does not exist."
    advice = "Check its name, or create it."


class GroupForbiddenError(_CodedError, AuthorizationError):
    """The group may not read a topic (450)."""

    result = ResultCode.CONSUME_GROUP_FORBIDDEN
    meaning = "The group may not read a topic."
    advice = "An administrator of the cluster has to allow it."


class SpeedLimitError(_CodedError):
    """The broker limits how fast this consumer reads (452)."""

    result = ResultCode.SERVER_CONSUME_SPEED_LIMIT
    meaning = "The broker limits how fast this consumer reads."
    advice = "Read again after the time that it requires."


class ContentForbiddenError(_CodedError, AuthorizationError):
    """The group may not use these filters (455)."""

    result = ResultCode.CONSUME_CONTENT_FORBIDDEN
    meaning = "The group may not use these filters."
    advice = "An administrator of the cluster has to allow them."


class InternalServerError(_CodedError):
    """The server failed (500)."""

    result = ResultCode.INTERNAL_SERVER_ERROR
    meaning = "The server failed."
    advice = "See the server's log."


class ServiceUnavailableError(_CodedError):
    """The server is not available now (503)."""

    result = ResultCode.SERVICE_UNAVAILABLE
    meaning = "The server is not available now."
    advice = "It is starting, stopping or disabled; try again later or on another server."


ERRORS: Final = error_classes(_CodedError)
"""Code → class."""


def refused(
    code: int,
    text: str,
    *,
    server: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
) -> RefusedError:
    """Return the exception for an answer that reports an error.

    Args:
        code: the answer's errCode.
        text: its errMsg; if empty, the meaning of the code is used.
        server: the server that answered, as `host:port`.
        topic: the topic concerned.
        partition: the partition concerned.
    """
    return refused_error(ERRORS, code, text, server=server, topic=topic, partition=partition)
