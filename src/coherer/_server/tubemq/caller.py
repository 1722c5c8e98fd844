"""The broker's end of one connection: how answers leave."""

from __future__ import annotations

from google.protobuf.message import Message

from coherer._net import Connection
from coherer._wire.tubemq.session import Request, ServerSession


class Caller:
    """Who asks.

    Attributes:
        connection: where answers go.
        session: how they are written.
    """

    __slots__ = ("connection", "session")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session = ServerSession()

    def reply(self, request: Request, message: Message) -> None:
        """Answer, if the requester waits for an answer at all (1.5)."""
        if request.timeout_ms > 0:
            self.connection.write(self.session.reply(request, message))
