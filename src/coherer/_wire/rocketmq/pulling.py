"""The hot path of asking: requests of code 11 and what their answers say (2.6).

Of the requests for one queue all but a few numbers are the same, so `PullEncoder` makes everything
else once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from coherer._wire.rocketmq.codes import PYTHON, V4_9_3, RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.frame import JSON, prefix
from coherer._wire.rocketmq.names import Queue
from coherer.errors import ProtocolError

COMMIT: Final = 1
"""The request says where the group is in this queue."""
SUSPEND: Final = 2
"""The broker may wait for a message before it answers."""
SUBSCRIPTION: Final = 4
"""The request says which messages are wanted; otherwise the last heartbeat did."""
LITE: Final = 16
"""The request comes from a consumer that pulls by itself."""

FOUND: Final = ResponseCode.SUCCESS
NOTHING_NEW: Final = ResponseCode.PULL_NOT_FOUND
NOTHING_MATCHED: Final = ResponseCode.PULL_RETRY_IMMEDIATELY
OFFSET_MOVED: Final = ResponseCode.PULL_OFFSET_MOVED

ANSWERS: Final = frozenset({FOUND, NOTHING_NEW, NOTHING_MATCHED, OFFSET_MOVED})
"""Codes of answers that say where the next pull begins; all others are refusals."""


class PullAnswer(NamedTuple):
    """What an answer says.

    Args:
        code: one of `ANSWERS`.
        next_offset: where the next pull begins.
        min_offset: the first offset that the broker holds.
        max_offset: the offset behind its last.
        suggested: the id of the broker to ask next time: 0 for the master.
        body: records, one after the other.
    """

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
    suggested: int
    body: bytes | memoryview


class PullEncoder:
    r"""Makes the requests for one queue.

    Args:
        group: the group that reads.
        queue: what is read.
        max_messages: how many messages one answer may hold; brokers have limits of their own.
        suspend_ms: how long the broker may wait for a message.
        sub_version: of the subscription.
        expression: the subscription; None leaves it out.
        expression_type: TAG or SQL92; None leaves it out.

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
        self._common: dict[str, str] = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.id),
            "suspendTimeoutMillis": str(suspend_ms),
            "subVersion": str(sub_version),
        }
        if expression is not None:
            self._common["subscription"] = expression
        if expression_type is not None:
            self._common["expressionType"] = expression_type
        self.max_messages = max_messages
        text = msgspec.json.encode(self._common)
        self._begin = b'{"code":%d,"extFields":%b,"queueOffset":"' % (
            RequestCode.PULL_MESSAGE,
            text[:-1],
        )
        self._end = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % V4_9_3
        self._language = PYTHON.encode()

    def fields(self, offset: int, flags: int, commit: int, max_messages: int) -> dict[str, str]:
        """The custom header, for a request that is signed."""
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
        """A whole request.

        Args:
            opaque: its number.
            offset: where to begin.
            flags: `COMMIT` and the others.
            commit: where the group is, with `COMMIT`.
            max_messages: another limit than usual.
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


def pull_answer(command: Command) -> PullAnswer:
    """Read an answer whose code is one of `ANSWERS`.

    Raises:
        ProtocolError: it lacks a number that every such answer has.
    """
    fields = command.fields
    try:
        return PullAnswer(
            command.code,
            int(fields["nextBeginOffset"]),
            int(fields["minOffset"]),
            int(fields["maxOffset"]),
            int(fields["suggestWhichBrokerId"]),
            command.body,
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError("The answer to a pull does not say where it ended.") from error
