"""Headers of sending (protocol page, 2.4, 2.5, 2.14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import field

from coherer._wire.rocketmq.codes import RequestCode, refused
from coherer._wire.rocketmq.command import Int32, Int64
from coherer._wire.rocketmq.headers.base import Header, parse, unreadable
from coherer._wire.rocketmq.names import topic_fault

_LETTERS: Final = "abcdefghijklm"
_LETTERS_REQUIRED: Final = _LETTERS[:8]
_BOOLEANS: Final = ("k", "m")
_SEND_NAMES: Final = (
    "producer_group",
    "topic",
    "default_topic",
    "default_topic_queue_nums",
    "queue_id",
    "sys_flag",
    "born_ms",
    "flag",
    "properties",
    "reconsume_times",
    "unit_mode",
    "max_reconsume_times",
    "batch",
)
_LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
_LONG_CODES: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))
_PATIENT_CODES: Final = _LONG_CODES | {RequestCode.SEND_REPLY_MESSAGE_V2}


class SendHeader(Header, rename=dict(zip(_SEND_NAMES, _LETTERS, strict=True)), gc=False):
    """10, 310, 320, 324 and 325: messages to store. Read it with `read_send`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_ms: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False

    def long_fields(self) -> dict[str, str]:
        """Returns the header as text under the long names of 10 and 324."""
        return {_LONG_NAMES[letter]: value for letter, value in self.fields().items()}


def read_send(code: int, fields: Mapping[str, str]) -> SendHeader:
    """Reads the header of a send, short names or long.

    Args:
        code: the request's; 10 and 324 use long names.
        fields: the text.

    Raises:
        RefusedError: code 1, a field is missing or no number.

    >>> read_send(310, dict(zip("abcdefgh", ("p", "t", "TBW102", *"41000"), strict=True))).queue_id
    1
    """
    if code not in _PATIENT_CODES:
        return _read_strictly(fields)
    if code in _LONG_CODES:
        fields = {letter: fields[name] for letter, name in _LONG_NAMES.items() if name in fields}
    # Java does without these three: a missing topic is a blank one (2.4.2, step 3).
    fields = {"a": "", "b": "", "c": "", **fields}
    if not fields["b"].strip():
        raise refused(1, topic_fault(""))
    return parse(SendHeader, fields)


def _read_strictly(fields: Mapping[str, str]) -> SendHeader:
    said = {letter: _truth(fields[letter]) for letter in _BOOLEANS if letter in fields}
    try:
        return msgspec.convert({**fields, **said}, SendHeader, strict=False)
    except msgspec.ValidationError:
        for letter in _LETTERS_REQUIRED:
            if letter not in fields:
                raise refused(1, f"the custom field <{letter}> is null") from None
        wrong = unreadable(SendHeader, fields)
        if wrong is not None:
            raise refused(1, f"java.lang.NumberFormatException: the field <{wrong}>") from None
        return parse(SendHeader, fields)


def _truth(text: str) -> str:
    return "true" if text.lower() == "true" else "false"


class SendResult(Header):
    """The answer to a send; the last two are there even when it was refused (2.4.1)."""

    msg_id: str | None = None
    queue_id: Int32 | None = None
    queue_offset: Int64 | None = None
    transaction_id: str | None = None
    region: str | None = field(default=None, name="MSG_REGION")
    trace_on: str | None = field(default=None, name="TRACE_ON")


class SendBackHeader(Header):
    """36: a consumer wants a message again, later."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class PushReplyHeader(Header):
    """326: a broker hands a reply to the client that asked."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_ms: Int64 = field(name="bornTimestamp")
    flag: Int32
    born_host: str
    store_host: str
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    stored_ms: Int64 = field(default=0, name="storeTimestamp")
