"""The method table: number, name, service and messages of each method.

>>> METHODS[SEND_MESSAGE].name, METHODS[SEND_MESSAGE].service == BROKER_WRITE
('sendMessageP2B', True)
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError, EncodeError, Message

from coherer._wire.tubemq import messages as pb
from coherer.errors import ProtocolError

M = TypeVar("M", bound=Message)

MASTER: Final = 1
BROKER_READ: Final = 2
BROKER_WRITE: Final = 3
"""The three services; a broker serves two of them on one port."""

PRODUCER_REGISTER: Final = 1
PRODUCER_HEARTBEAT: Final = 2
PRODUCER_CLOSE: Final = 3
CONSUMER_REGISTER: Final = 4
CONSUMER_HEARTBEAT: Final = 5
CONSUMER_CLOSE: Final = 6
BROKER_REGISTER: Final = 7
BROKER_HEARTBEAT: Final = 8
BROKER_CLOSE: Final = 9
SEND_MESSAGE: Final = 13
PARTITION_REGISTER: Final = 15
PARTITION_HEARTBEAT: Final = 16
GET_MESSAGES: Final = 17
COMMIT_OFFSET: Final = 18
CONSUMER_REGISTER_V2: Final = 20
CONSUMER_HEARTBEAT_V2: Final = 21
GET_PARTITION_META: Final = 22

VERSION: Final = 3
"""The protocol version that Coherer speaks."""

REGISTER: Final = 31
UNREGISTER: Final = 32
"""Operation types inside the request of PARTITION_REGISTER."""

UNDEFINED: Final = -2
"""Stands for an unknown number."""


class Method(msgspec.Struct, frozen=True):
    """A row of the method table.

    Args:
        id: the number on the wire.
        name: Java's name.
        service: the service that a client names.
        request: class of the request.
        response: class of the answer.
    """

    id: int
    name: str
    service: int
    request: type[Message]
    response: type[Message]


_ROWS: Final = (
    (1, "producerRegisterP2M", 1, pb.RegisterRequestP2M, pb.RegisterResponseM2P),
    (2, "producerHeartbeatP2M", 1, pb.HeartRequestP2M, pb.HeartResponseM2P),
    (3, "producerCloseClientP2M", 1, pb.CloseRequestP2M, pb.CloseResponseM2P),
    (4, "consumerRegisterC2M", 1, pb.RegisterRequestC2M, pb.RegisterResponseM2C),
    (5, "consumerHeartbeatC2M", 1, pb.HeartRequestC2M, pb.HeartResponseM2C),
    (6, "consumerCloseClientC2M", 1, pb.CloseRequestC2M, pb.CloseResponseM2C),
    (7, "brokerRegisterB2M", 1, pb.RegisterRequestB2M, pb.RegisterResponseM2B),
    (8, "brokerHeartbeatB2M", 1, pb.HeartRequestB2M, pb.HeartResponseM2B),
    (9, "brokerCloseClientB2M", 1, pb.CloseRequestB2M, pb.CloseResponseM2B),
    (13, "sendMessageP2B", 3, pb.SendMessageRequestP2B, pb.SendMessageResponseB2P),
    (15, "consumerRegisterC2B", 2, pb.RegisterRequestC2B, pb.RegisterResponseB2C),
    (16, "consumerHeartbeatC2B", 2, pb.HeartBeatRequestC2B, pb.HeartBeatResponseB2C),
    (17, "getMessagesC2B", 2, pb.GetMessageRequestC2B, pb.GetMessageResponseB2C),
    (18, "consumerCommitC2B", 2, pb.CommitOffsetRequestC2B, pb.CommitOffsetResponseB2C),
    (20, "consumerRegisterC2MV2", 1, pb.RegisterRequestC2MV2, pb.RegisterResponseM2CV2),
    (21, "consumerHeartbeatC2MV2", 1, pb.HeartRequestC2MV2, pb.HeartResponseM2CV2),
    (22, "consumerGetPartMetaInfoC2M", 1, pb.GetPartMetaRequestC2M, pb.GetPartMetaResponseM2C),
)

METHODS: Final[dict[int, Method]] = {row[0]: Method(*row) for row in _ROWS}
"""The methods by number. 11, 12, 14 and 19 are reserved; 10 is unused."""

_ACCEPTED: Final = {
    MASTER: frozenset({*range(1, 10), 20, 21, 22}),
    BROKER_READ: frozenset({11, 12, 13, *range(15, 20)}),
    BROKER_WRITE: frozenset({11, 12, 13, 14}),
}


def accepts(service: int, method: int) -> bool:
    """Return whether a server accepts this pair; for instance, the read service accepts sends too.

    >>> accepts(BROKER_READ, SEND_MESSAGE), accepts(BROKER_WRITE, GET_MESSAGES)
    (True, False)
    """
    return method in _ACCEPTED.get(service, ())


def parse(cls: type[M], data: bytes) -> M:
    """Parse a message.

    Raises:
        ProtocolError: the bytes are not such a message, or a required field is missing.

    >>> parse(pb.CloseRequestP2M, b"")
    Traceback (most recent call last):
    coherer.errors.ProtocolError: CloseRequestP2M lacks clientId.
    """
    try:
        message = cls.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"Not a valid {cls.__name__}: {error}.") from error
    if not message.IsInitialized():
        raise ProtocolError(f"{cls.__name__} lacks {_missing(message)}.")
    return message


def _missing(message: Message) -> str:
    """Return the names of missing required fields, which protobuf reports when it serializes."""
    try:
        message.SerializeToString()
    except EncodeError as error:
        return str(error).rpartition(": ")[2]
    return "nothing"
