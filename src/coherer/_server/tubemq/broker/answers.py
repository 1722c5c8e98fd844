"""The answers to the sends of one socket read."""

from __future__ import annotations

from collections.abc import Sequence

from coherer._net import Connection
from coherer._server.tubemq.broker.replies import send_replies
from coherer._server.tubemq.broker.state import BrokerState
from coherer._store import AppendResult
from coherer._wire.tubemq import messages as pb
from coherer._wire.tubemq.codes import ResultCode
from coherer._wire.tubemq.envelope import answer_head
from coherer._wire.tubemq.frame import encode_frame
from coherer._wire.tubemq.methods import SEND_MESSAGE
from coherer.errors import CohererError, StoreFullError


class Answers:
    """`tell` is called when it is known how the sends went; see `_server.core.appending.Done`.

    Args:
        state: the broker's.
        connection: who waits.
        serials: what number the answers.
    """

    __slots__ = ("_connection", "_serials", "_state")

    def __init__(self, state: BrokerState, connection: Connection, serials: list[int]) -> None:
        self._state = state
        self._connection = connection
        self._serials = serials

    def tell(self, outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:  # noqa: ARG002
        """Answer every one of them."""
        connection, state = self._connection, self._state
        if isinstance(outcome, CohererError):
            code, text = _refusal(outcome)
            connection.write_many(refuse_send(serial, code, text) for serial in self._serials)
            return
        connection.write(send_replies(self._serials, outcome, state.first_id, state.wall_ms()))
        connection.flush()


def refuse_send(serial: int, code: ResultCode, text: str) -> bytes:
    """The frame that refuses a send."""
    answer = pb.SendMessageResponseB2P(success=False, errCode=code, errMsg=text)
    body = answer.SerializeToString()
    return encode_frame(serial, answer_head(SEND_MESSAGE, len(body)) + body)


def _refusal(error: CohererError) -> tuple[ResultCode, str]:
    if isinstance(error, StoreFullError):
        return ResultCode.SERVER_RECEIVE_OVERFLOW, f"The broker has no room. {error.text}"
    return ResultCode.INTERNAL_SERVER_ERROR, f"The broker could not store it: {error}"
