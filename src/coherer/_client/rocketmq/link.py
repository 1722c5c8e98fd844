"""Connections to RocketMQ's servers, with requests in both directions.

In addition to `coherer._client.engine.connections`:

* A connection is full duplex. A request from the server (docs/protocol/rocketmq.md, section 4) goes
  to the handler that is registered for its code. Each side numbers its own requests.
* A one-way request is never answered. A request whose code has no handler, and a handler that
  fails, are answered as Java answers them; neither closes the connection.
* A request gets the name of its broker, and is signed, just before it is encoded
  (docs/protocol/rocketmq.md, sections 2.17 and 10.1). Pulls and sends have their own encoders.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

from coherer._client.engine.connections import ConnectionPool, PendingRequest, ServerConnection
from coherer._common.logs import Log
from coherer._net import Connection, TlsOptions
from coherer._wire.rocketmq import codes
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import with_broker
from coherer._wire.rocketmq.session import Session
from coherer.errors import CohererError, DisconnectedError, ProtocolError

_log = Log(logging.getLogger(__name__))

NO_FIELDS: Final[Mapping[str, str]] = {}

Fields = Mapping[str, str]
Signer = Callable[[Fields, bytes], dict[str, str]]
"""Takes the fields and the body of a request, and returns the fields with a signature."""

Handler = Callable[["Link", Command], Coroutine[None, None, None] | None]
"""Handles a request from a server, and answers it with `Link.respond`. Returns a coroutine if it
has to wait."""


class Call:
    """A request whose answer resolves a future, whatever its code."""

    __slots__ = ("deadline", "future")

    def __init__(self, future: asyncio.Future[Command], deadline: float) -> None:
        self.future = future
        self.deadline = deadline

    def answered(self, answer: Command) -> None:
        """The server answered."""
        if not self.future.done():
            self.future.set_result(answer)

    def failed(self, error: CohererError) -> None:
        """No answer will come."""
        if not self.future.done():
            self.future.set_exception(error)


class RequestHandlers:
    """The handlers of servers' requests, and the signer, shared by all links of a client.

    Attributes:
        by_code: the handlers.
        signer: signs requests; None without credentials.
    """

    def __init__(self, signer: Signer | None = None) -> None:
        self.by_code: dict[int, Handler] = {}
        self.signer = signer
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, link: Link, request: Command) -> None:
        """Handle a request from a server."""
        handler = self.by_code.get(request.code)
        if handler is None:
            _log.debug("%s sent a request with the unknown code %d", link.server, request.code)
            text = f" request type {request.code} not supported"
            link.respond(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
            return
        try:
            work = handler(link, request)
        except Exception as error:  # noqa: BLE001 - see `_finish`
            self._failed(link, request, error)
            return
        if work is not None:
            task = asyncio.create_task(self._finish(link, request, work), name="server's request")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel the handlers that are running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish(
        self, link: Link, request: Command, work: Coroutine[None, None, None]
    ) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - a handler must not break the connection
            self._failed(link, request, error)

    @staticmethod
    def _failed(link: Link, request: Command, error: Exception) -> None:
        if not link.open:
            _log.info(
                "Request %d of %s cannot be answered: %s",
                request.code,
                link.server,
                error,
                about=(request.code, link.server),
            )
            return
        _log.error(
            "Request %d of %s failed",
            request.code,
            link.server,
            exc_info=error,
            about=(request.code, link.server),
        )
        link.respond(request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


class Link(ServerConnection[Command]):
    """One connection, with requests in both directions. A `Receiver`.

    Attributes:
        session: numbers requests, and parses received bytes.
    """

    # Java's servers close at 120 s. Closing first avoids losing a request to that.
    idle_ms: int = 110_000

    def __init__(self, connection: Connection, server: str, handlers: RequestHandlers) -> None:
        super().__init__(connection, server)
        self.session = Session()
        self._handlers = handlers

    def call(
        self,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_ms: int,
        broker: str = "",
    ) -> asyncio.Future[Command]:
        """Send a request now; the future gets the answer, whatever its code.

        Requests are sent in the order of the calls.

        Raises:
            DisconnectedError: the connection is closed already; nothing was sent.
        """
        self._check()
        future: asyncio.Future[Command] = self._loop.create_future()
        opaque, frame = self.session.request(code, self._ready(code, fields, body, broker), body)
        self.send_frame(opaque, Call(future, self._loop.time() + timeout_ms / 1000), frame)
        return future

    def send(
        self,
        code: int,
        fields: Fields,
        body: bytes,
        waiter: PendingRequest[Command],
        *,
        broker: str,
    ) -> None:
        """Send a request now; `waiter` gets the answer. The connection must be open."""
        opaque, frame = self.session.request(code, self._ready(code, fields, body, broker), body)
        self.send_frame(opaque, waiter, frame)

    async def ask(
        self,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        timeout_ms: int,
        broker: str = "",
    ) -> Command:
        """Send a request and wait for a successful answer.

        Raises:
            UnavailableError: no answer.
            RefusedError: the server refused.
        """
        answer = await self.call(code, fields, body, timeout_ms=timeout_ms, broker=broker)
        if answer.code != ResponseCode.SUCCESS:
            topic = fields.get("topic")
            raise codes.refused(answer.code, answer.remark, server=self.server, topic=topic)
        return answer

    def send_oneway(
        self,
        code: int,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
        *,
        remark: str | None = None,
        broker: str = "",
    ) -> None:
        """Send a one-way request.

        Raises:
            DisconnectedError: the connection is closed already; nothing was sent.
        """
        self._check()
        ready = self._ready(code, fields, body, broker)
        _, frame = self.session.request(code, ready, body, oneway=True, remark=remark)
        self.connection.write(frame)

    def respond(
        self,
        request: Command,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        fields: Fields = NO_FIELDS,
        body: bytes = b"",
    ) -> None:
        """Answer a request from the server, unless it is one-way."""
        if not request.is_oneway and self.open:
            self.connection.write(self.session.response(request, code, remark, dict(fields), body))

    # -- what the connection calls

    def received(self, data: bytes) -> None:
        """Called by the connection with each socket read."""
        self._heard = self._loop.time()
        waiting = self._waiting
        try:
            commands = self.session.receive(data)
        except ProtocolError as error:
            self._misread(error)
            return
        self._understood = self._understood or bool(commands)
        for command in commands:
            if not command.flag & 1:
                self._handlers.handle(self, command)
                continue
            waiter = waiting.pop(command.opaque, None)
            if waiter is not None:
                waiter.answered(command)

    # -- inside

    def _check(self) -> None:
        if self.connection.closed:
            raise DisconnectedError(
                "The connection is closed; nothing was sent.", server=self.server
            )

    def _ready(self, code: int, fields: Fields, body: bytes, broker: str) -> dict[str, str]:
        signer = self._handlers.signer
        fields = with_broker(code, fields, broker)
        return dict(fields) if signer is None else signer(fields, body)


class Pool(ConnectionPool[Link]):
    """The connections of one client, one per address.

    Args:
        tls: the TLS settings; None for plain TCP.
        connect_timeout_ms: of each new connection.
    """

    def __init__(
        self,
        handlers: RequestHandlers,
        *,
        tls: TlsOptions | None = None,
        connect_timeout_ms: int = 3000,
    ) -> None:
        super().__init__(
            lambda connection, server: Link(connection, server, handlers),
            tls=tls,
            connect_timeout_ms=connect_timeout_ms,
        )
        self.handlers = handlers

    async def close(self) -> None:
        """Close all connections, and cancel the handlers of servers' requests."""
        await self.handlers.close()
        await super().close()
