"""A RocketMQ server's end of its connections: requests to handlers, responses back, calls out.

Rules (section 1.4):

* One socket read is one batch: its requests are handled in order, and what they answer leaves in
  one write. Requests whose codes are in `batch_codes` are gathered and handed over together.
* Every request is answered once, also when its handler fails; a one-way request never is. (Java
  answers unknown one-way codes; nobody can use such a response.)
* A handler answers by returning a `Command`, by raising `Refusal` or a `RefusedError`, by awaiting
  something first, or by itself (`Channel.respond`), now or later; then it returns None.
* Both sides ask: what the server asks has serial numbers of its own on each connection.
* A connection that does not read its answers is not served any more requests until it does.
* Connections with many requests at once take turns.
* A connection that is silent for two minutes is closed, as Java does.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Final, TypeAlias

from coherer import limits
from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer._net import Connection
from coherer._server.core.saving import Saver
from coherer._server.rocketmq.refusal import Refusal
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.session import Session
from coherer.errors import DisconnectedError, ProtocolError, RefusedError, RequestTimeoutError

_log = Log(logging.getLogger(__name__))

SYSTEM_ERROR: Final = 1
NOT_SUPPORTED: Final = 3
IDLE_MS: Final = 120_000
"""Java's servers close a connection over which nothing went for so long."""
SCAN_MS: Final = 1_000
"""How often such connections are looked for."""


class Channel:
    """One client connection, as handlers see it. Compared and hashed by identity.

    Attributes:
        connection: the bytes' way.
        peer: the client as `host:port`.
        host_port: its address and port as a record stores them (5.1): 8 bytes, or 20 with IPv6.
        active_ms: when something went over it last.
        closed: it is gone, or going.
    """

    def __init__(self, connection: Connection, remoting: Remoting) -> None:
        self.connection = connection
        self.peer = connection.peer
        self.host_port = _host_port(connection.peer)
        self.active_ms = remoting.now_ms()
        self._remoting = remoting
        self._session = Session()
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._postponed: deque[Command] = deque()
        self._catching_up = False

    def __repr__(self) -> str:
        return f"<Channel {self.peer}{' closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.connection.closed

    # -- what handlers call

    def respond(
        self,
        request: Command,
        code: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> None:
        """Answer a request; nothing is sent when it was one-way."""
        if not request.is_oneway:
            frame = self._session.response(request, code, remark, fields, body)
            self.connection.write(frame)

    def respond_pieces(
        self,
        request: Command,
        fields: dict[str, str] | None,
        pieces: Sequence[bytes | memoryview],
        code: int = 0,
        remark: str | None = None,
    ) -> None:
        """Answer with a body in pieces, which are sent as they are."""
        if not request.is_oneway:
            size = sum(map(len, pieces))
            head = self._session.response_head(request, code, remark, fields, size)
            self.connection.write_many([head, *pieces])

    def fail(self, request: Command, error: Exception) -> None:
        """Answer a request that went wrong: refused, or by an error of ours, which is logged."""
        if isinstance(error, Refusal):
            self.respond(request, error.code, error.remark, error.fields)
        elif isinstance(error, RefusedError):  # what headers and bodies raise
            self.respond(request, error.code or SYSTEM_ERROR, error.text)
        else:
            if not isinstance(error, ProtocolError):
                _log.error(
                    "Code %d from %s failed",
                    request.code,
                    self.peer,
                    exc_info=error,
                    about=request.code,
                )
            self.respond(request, SYSTEM_ERROR, java_exception(error))

    def write(self, frame: bytes | memoryview) -> None:
        """Send a whole frame that the caller has made."""
        self.connection.write(frame)

    async def call(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 3_000,
    ) -> Command:
        """Ask the client.

        Args:
            code: what (section 4).
            fields: header fields.
            body: the body.
            timeout_ms: how long to wait for the answer.

        Returns:
            The response, whatever its code.

        Raises:
            RequestTimeoutError: it did not come in time.
            DisconnectedError: the connection is gone, or went while we waited.
        """
        if self.closed:
            raise DisconnectedError("The client is gone.", server=self.peer)
        opaque, frame = self._session.request(code, fields or {}, body)
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._calls[opaque] = answer
        self.active_ms = self._remoting.now_ms()
        self.connection.write(frame)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await answer
        except TimeoutError:
            raise RequestTimeoutError(
                f"The client did not answer within {timeout_ms} ms.", server=self.peer
            ) from None
        finally:
            self._calls.pop(opaque, None)

    def notify(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Tell the client something that it does not answer."""
        if not self.closed:
            _, frame = self._session.request(code, fields or {}, body, oneway=True)
            self.connection.write(frame)

    def close(self) -> None:
        """Send what is written, then end the connection."""
        self.connection.close()

    # -- what the connection calls

    def received(self, data: bytes) -> None:
        """One socket read."""
        self.active_ms = self._remoting.now_ms()
        requests: list[Command] = []
        for command in self._session.receive(data):
            if command.is_response:
                self._answered(command)
            else:
                requests.append(command)
        self.connection.keeps(self._session.unfinished)
        served = 0 if self._postponed or self.connection.full else self._serve(requests)
        if served < len(requests):
            self._postponed.extend(requests[served:])
            self._catch_up_later()

    def gone(self) -> None:
        """Nobody will hear an answer any more."""
        self._postponed.clear()
        for task in self._tasks:
            task.cancel()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(DisconnectedError("The client is gone.", server=self.peer))

    # -- inside

    def _answered(self, response: Command) -> None:
        waiting = self._calls.get(response.opaque)
        if waiting is None or waiting.done():
            _log.debug(
                "%s answers what nobody asked: %d",
                self.peer,
                response.opaque,
                about=self.connection.peer_host,
            )
        else:
            waiting.set_result(response)

    def _serve(self, requests: Sequence[Command]) -> int:
        """Serve requests, as many as may be in a turn of the loop; gives how many."""
        remoting, connection = self._remoting, self.connection
        count_max, bytes_max = remoting.at_once()
        bytes_max += connection.unsent_bytes
        served = 0
        for request in requests[:count_max]:
            # One read can hold a thousand pulls of 256 KiB each.
            if served and connection.unsent_bytes > bytes_max:
                break
            remoting.handle(self, request)
            served += 1
        remoting.finish_batch(self)
        return served

    def _catch_up_later(self) -> None:
        if not self._catching_up:
            self._catching_up = True
            self._remoting.catching_up += 1  # now: the others of this turn have less
            self.connection.pause_reading()
            self.later(self._catch_up()).add_done_callback(self._caught_up)

    def _caught_up(self, _: asyncio.Task[None]) -> None:
        self._remoting.catching_up -= 1

    async def _catch_up(self) -> None:
        try:
            while self._postponed:
                await self.connection.drain()
                await asyncio.sleep(0)  # others have their turn, and the outbox is measured
                for _ in range(self._serve([*self._postponed])):
                    self._postponed.popleft()
            self._catching_up = False
            self.connection.resume_reading()
        except DisconnectedError:
            self._postponed.clear()
        except Exception:  # noqa: BLE001 - nobody would ever read from it again
            _log.exception(
                "Closing the connection with %s after an error of ours",
                self.peer,
                about=self.connection.peer_host,
            )
            self.connection.abort()

    def later(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do something that waits; it is cancelled when the connection ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


Answer: TypeAlias = "Command | None"
Handler: TypeAlias = "Callable[[Channel, Command], Answer | Awaitable[Answer]]"
"""Gives the response (its opaque and flag are set here), or None: answered already or later."""

BatchHandler: TypeAlias = "Callable[[Channel, Sequence[Command]], None]"
Check: TypeAlias = "Callable[[Channel, Command], Command | None]"


def of_anyone(handler: Callable[[Command], Answer]) -> Handler:
    """A handler that does not mind who asks."""
    return lambda _, request: handler(request)


class Remoting:
    """The handlers of a server: `net.listen(host, port, remoting.make)`.

    Args:
        handlers: by request code.
        closed: told of every connection that is gone.
        check: asked before a handler; what it returns refuses the request (ACL).
        batch_codes: codes whose requests are gathered for `batch`.
        batch: gets all of them that one socket read brought, in order, and answers each.
        files: writes files; a request that has one written is answered when it is on the disk.
        silent: unknown codes get no answer at all, as from Java's name server (2.15).
        now_ms: a clock that is not set.

    Attributes:
        channels: the connections.
        catching_up: how many of them have more requests than they get in a turn.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        closed: Callable[[Channel], None] = lambda _: None,
        check: Check | None = None,
        batch_codes: Collection[int] = (),
        batch: BatchHandler | None = None,
        files: Saver | None = None,
        silent: bool = False,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 10**6,
    ) -> None:
        self.now_ms = now_ms
        self.channels: set[Channel] = set()
        self.catching_up = 0
        self._handlers = handlers
        self._closed = closed
        self._check = check
        self._batch_codes = frozenset(batch_codes)
        self._batch = batch
        self._files = files
        self._gathered: list[Command] = []
        self._silent = silent
        self._scan = IntervalTimer(SCAN_MS, now_ms())

    def make(self, connection: Connection) -> Door:
        """Serves a connection."""
        channel = Channel(connection, self)
        self.channels.add(channel)
        return Door(self, channel)

    def tick(self) -> None:
        """Close connections that are silent; call it every second or oftener."""
        now_ms = self.now_ms()
        if not self._scan.is_due(now_ms):
            return
        for channel in [
            c for c in self.channels if now_ms - c.active_ms > IDLE_MS and not c.closed
        ]:
            _log.info(
                "Closing the connection with %s: nothing for two minutes",
                channel.peer,
                about=channel.connection.peer_host,
            )
            channel.close()

    def at_once(self) -> tuple[int, int]:
        """How many requests, and bytes of answers, a connection gets in a turn of the loop."""
        sharing = self.catching_up + 1
        count = max(limits.REQUESTS_AT_ONCE // sharing, limits.REQUESTS_AT_ONCE_MIN)
        return count, limits.ANSWERED_AT_ONCE_BYTES // sharing

    def handle(self, channel: Channel, request: Command) -> None:
        """Handle one request; `finish_batch` has to follow the last of a read."""
        try:
            refused = self._check(channel, request) if self._check is not None else None
            if refused is not None:
                self._answer(channel, request, refused)
            elif request.code in self._batch_codes:
                self._gathered.append(request)
            else:
                self._call(channel, request)
        except Exception as error:  # noqa: BLE001 - one bad request must not end the connection
            channel.fail(request, error)

    def finish_batch(self, channel: Channel) -> None:
        """Hand over what was gathered."""
        if not self._gathered or self._batch is None:
            return
        requests, self._gathered = self._gathered, []
        try:
            self._batch(channel, requests)
        except Exception as error:  # noqa: BLE001 - as above
            for request in requests:
                channel.fail(request, error)

    def gone(self, channel: Channel) -> None:
        """A connection has ended."""
        self.channels.discard(channel)
        channel.gone()
        self._closed(channel)

    def _call(self, channel: Channel, request: Command) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            if not self._silent:
                remark = f" request type {request.code} not supported"
                channel.respond(request, NOT_SUPPORTED, remark)
            return
        files = self._files
        before = files.turn if files is not None else 0
        answer = handler(channel, request)
        if answer is None:
            return
        if isinstance(answer, Command):
            if files is None or files.turn == before:
                self._answer(channel, request, answer)
                return
            answer = _given(answer)
        channel.later(self._wait(channel, request, answer, before))

    async def _wait(
        self, channel: Channel, request: Command, answer: Awaitable[Answer], before: int
    ) -> None:
        try:
            response = await answer
            if self._files is not None and self._files.turn != before:
                await self._files.saved()
            if response is not None:
                self._answer(channel, request, response)
        except Exception as error:  # noqa: BLE001 - as above
            channel.fail(request, error)

    def _answer(self, channel: Channel, request: Command, answer: Command) -> None:
        channel.respond(request, answer.code, answer.remark, answer.fields, answer.body)


async def _given(answer: Command) -> Answer:
    return answer


class Door:
    """The receiver of one connection; made by `Remoting.make`.

    Attributes:
        channel: the connection as handlers see it.
    """

    def __init__(self, remoting: Remoting, channel: Channel) -> None:
        self.channel = channel
        self.received = channel.received
        self._remoting = remoting

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the same to us
        """The connection is gone."""
        self._remoting.gone(self.channel)


def java_exception(error: BaseException) -> str:
    """An error in the form of Java's remarks: what it is, and where it came from (1.4).

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     java_exception(error).partition(", ")[0]
    "ValueError: invalid literal for int() with base 10: 'x'"
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f", {frames[-1].name}({frames[-1].filename.rpartition('/')[2]})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _host_port(peer: str) -> bytes:
    host, _, port = peer.rpartition(":")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # no TCP: a test's own
        return bytes(8)
    return address.packed + int(port).to_bytes(4, "big")
