"""The hot path of pulling: requests of code 11 and their answers.

See docs/protocol/rocketmq.md, section 2.6.

Pulls of one queue differ only in a few numbers, so `PullEncoder` encodes everything else once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from coherer._record.offset_ranges import from_runs
from coherer._wire.rocketmq.codes import PYTHON, V4_9_3, RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.frame import JSON, prefix
from coherer._wire.rocketmq.headers.broker_name import with_broker
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError

COMMIT: Final = 1
"""The request commits the group's offset of the queue."""
SUSPEND: Final = 2
"""The broker may wait for messages before it answers."""
SUBSCRIPTION: Final = 4
"""The request contains the subscription; otherwise that of the last heartbeat applies."""
LITE: Final = 16
"""The request comes from a pull consumer."""

FOUND: Final = ResponseCode.SUCCESS
NOTHING_NEW: Final = ResponseCode.PULL_NOT_FOUND
NOTHING_MATCHED: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
OFFSET_MOVED: Final = ResponseCode.PULL_OFFSET_MOVED

PULL_CODES: Final = frozenset({FOUND, NOTHING_NEW, NOTHING_MATCHED, OFFSET_MOVED})
"""Codes of answers with the next offset; all others are errors."""


SLAVE_FIELD: Final = "brokerId"
"""Coherer's slaves add their id to offsets. A client may take one for the master: a machine that
has been the master can come back as a slave, with the same address."""


class PullResponse(NamedTuple):
    """The answer to a pull.

    Args:
        code: one of `PULL_CODES`.
        next_offset: first offset of the next pull.
        min_offset: first offset on the broker.
        max_offset: offset after the last message on the broker.
        suggested: id of the broker for the next pull; 0 is the master.
        gaps: the offsets that a power cut left empty, among those that the pull has passed; only
            Coherer's brokers name them.
        is_from_slave: whether a slave says that it is one; only Coherer's do.
    """

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
    suggested: int
    body: bytes | memoryview
    gaps: Sequence[range] = ()
    is_from_slave: bool = False


class PullEncoder:
    r"""Encodes the pulls of one queue.

    Args:
        max_messages: most messages of one answer; brokers have their own limits too.
        suspend_ms: how long the broker may wait for messages.
        sub_version: version of the subscription.
        expression: the subscription; None omits it.
        expression_type: TAG or SQL92; None omits it.

    >>> encoder = PullEncoder("g", Queue("T", "b", 0), max_messages=32)
    >>> encoder.frame(7, 120, SUSPEND)[8:30]
    b'{"code":11,"extFields"'
    """

    def __init__(
        self,
        group: str,
        queue: Queue,
        *,
        max_messages: int,
        suspend_ms: int = 15_000,
        sub_version: int = 0,
        expression: str | None = None,
        expression_type: str | None = None,
    ) -> None:
        common = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.id),
            "suspendTimeoutMillis": str(suspend_ms),
            "subVersion": str(sub_version),
        }
        if expression is not None:
            common["subscription"] = expression
        if expression_type is not None:
            common["expressionType"] = expression_type
        self._common = with_broker(RequestCode.PULL_MESSAGE, common, queue.broker)
        self.max_messages = max_messages
        text = msgspec.json.encode(self._common)
        self._begin = b'{"code":%d,"extFields":%b,"queueOffset":"' % (
            RequestCode.PULL_MESSAGE,
            text[:-1],
        )
        self._end = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % V4_9_3
        self._language = PYTHON.encode()

    def fields(self, offset: int, flags: int, commit: int, max_messages: int) -> dict[str, str]:
        """Return the custom header, for a signed request."""
        return {
            **self._common,
            "queueOffset": str(offset),
            "sysFlag": str(flags),
            "commitOffset": str(commit),
            "maxMsgNums": str(max_messages),
        }

    def frame(
        self, opaque: int, offset: int, flags: int, commit: int = 0, max_messages: int = 0
    ) -> bytes:
        """Return the frame of one pull.

        Args:
            opaque: number of the request.
            offset: first offset.
            flags: `COMMIT`, `SUSPEND`, `SUBSCRIPTION` and `LITE`.
            commit: the group's offset, with `COMMIT`.
            max_messages: most messages of the answer; 0 for the encoder's.
        """
        header = (
            b'%b%d","sysFlag":"%d","commitOffset":"%d","maxMsgNums":"%d"},'
            b'"flag":0,"language":"%b","opaque":%d%b'
            % (
                self._begin,
                offset,
                flags,
                commit,
                max_messages or self.max_messages,
                self._language,
                opaque,
                self._end,
            )
        )
        return prefix(JSON, len(header), 0) + header


def parse_pull_response(command: Command) -> PullResponse:
    """Decode an answer whose code is one of `PULL_CODES`.

    Raises:
        ProtocolError: a required number is missing.
    """
    fields = command.fields
    gaps = fields.get("gaps")
    try:
        return PullResponse(
            command.code,
            int(fields["nextBeginOffset"]),
            int(fields["minOffset"]),
            int(fields["maxOffset"]),
            int(fields["suggestWhichBrokerId"]),
            command.body,
            from_runs([int(one) for one in gaps.split(",")]) if gaps else (),
            SLAVE_FIELD in fields,
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError("The answer to a pull lacks offsets.") from error
