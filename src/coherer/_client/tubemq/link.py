"""Connections to TubeMQ's servers; what every link does stands in `_client.engine.connections`."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from google.protobuf.message import Message as PbMessage

from coherer._client.engine.connections import ConnectionPool, ServerConnection
from coherer._net import Connection, TlsOptions
from coherer._wire.tubemq.methods import parse
from coherer._wire.tubemq.session import ClientSession, Failure, Response
from coherer.errors import CohererError, DisconnectedError, ProtocolError

M = TypeVar("M", bound=PbMessage)


class Call:
    """A single request whose answer goes into a future."""

    __slots__ = ("deadline", "future", "server")

    def __init__(self, future: asyncio.Future[bytes], deadline: float, server: str) -> None:
        self.future = future
        self.deadline = deadline
        self.server = server

    def answered(self, answer: Response | Failure) -> None:
        """The server answered."""
        if self.future.done():
            return
        if isinstance(answer, Failure):
            self.future.set_exception(answer.error(self.server))
        else:
            self.future.set_result(answer.body)

    def failed(self, error: CohererError) -> None:
        """There will be no answer."""
        if not self.future.done():
            self.future.set_exception(error)


class TubeConnection(ServerConnection[Response | Failure]):
    """One connection and the requests that are under way on it. A `Receiver`.

    Java's clients, too, close a connection that has been silent for five minutes.

    Attributes:
        session: gives serial numbers and takes answers apart.
    """

    def __init__(self, connection: Connection, server: str) -> None:
        super().__init__(connection, server)
        self.session = ClientSession()

    def call(self, method: int, request: PbMessage, timeout_ms: int) -> asyncio.Future[bytes]:
        """Send a request now; the future gets the answer's body.

        Requests leave in the order of the calls.

        Raises:
            DisconnectedError: the connection is closed already; nothing was sent.
        """
        if self.connection.closed:
            raise DisconnectedError(
                "The connection is closed; nothing was sent.", server=self.server
            )
        future: asyncio.Future[bytes] = self._loop.create_future()
        serial, frame = self.session.request(method, request, timeout_ms)
        self.expect(serial, Call(future, self._loop.time() + timeout_ms / 1000, self.server))
        self.connection.write(frame)
        return future

    async def ask(self, method: int, request: PbMessage, answer: type[M], timeout_ms: int) -> M:
        """Send a request and wait for its answer.

        Raises:
            UnavailableError: no answer.
            RefusedError: the server could not handle the request at all. What the answer itself
                says about success is the caller's to check.
            ProtocolError: the answer makes no sense.
        """
        return parse(answer, await self.call(method, request, timeout_ms))

    def received(self, data: bytes) -> None:
        """Called by the connection with each socket read."""
        self._heard = self._loop.time()
        waiting = self._waiting
        try:
            answers = self.session.receive(data)
        except ProtocolError as error:
            self._misread(error)
            return
        self._understood = self._understood or bool(answers)
        for answer in answers:
            waiter = waiting.pop(answer.serial, None)
            if waiter is not None:
                waiter.answered(answer)


class Pool(ConnectionPool[TubeConnection]):
    """The connections of one client, one per address.

    Args:
        tls: how connections are made secret; None for plain TCP.
        connect_timeout_ms: for each new connection.
    """

    def __init__(self, *, tls: TlsOptions | None = None, connect_timeout_ms: int = 3000) -> None:
        super().__init__(TubeConnection, tls=tls, connect_timeout_ms=connect_timeout_ms)
