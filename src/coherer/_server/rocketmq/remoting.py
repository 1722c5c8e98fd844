"""The server side of RocketMQ's remoting protocol: connections, requests and responses.

See docs/protocol/rocketmq.md, section 1.4.

* One socket read is one batch: its requests are handled in order, and their responses leave in one
  write. Requests whose codes are in `batch_codes` are collected and passed on together.
* Every request is answered exactly once, even if its handler fails. One-way requests are never
  answered. (Java answers one-way requests with an unknown code; no client can use such a response.)
* A handler returns a `Command`, raises `Refusal` or `RefusedError`, or is a coroutine that does. Or
  it returns None and calls `Channel.respond` itself, now or later.
* The server sends requests, too. Each connection numbers them independently of the client's.
* A connection that does not read its responses gets no further requests served until it does.
* Connections with many pending requests take turns, and so do those whose requests take long.
* A connection without traffic for two minutes is closed, as by Java.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import traceback
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Final, TypeAlias

from coherer import limits
from coherer._common import machine
from coherer._common.clock import IntervalTimer
from coherer._common.logs import Log
from coherer._net import Connection
from coherer._server.core.deferred_saver import DeferredSaver
from coherer._wire.rocketmq import java_properties
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.session import Session
from coherer.errors import (
    DisconnectedError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    StoreError,
)

_log = Log(logging.getLogger(__name__))

SYSTEM_ERROR: Final = 1
NOT_SUPPORTED: Final = 3
IDLE_MS: Final = 120_000
"""Java's servers close a connection without traffic after this time."""
SCAN_MS: Final = 1_000
"""How often idle connections are searched for."""


class Channel:
    """One client connection, as handlers see it. Compared and hashed by identity.

    Attributes:
        peer: the client as `host:port`.
        host_port: the client's address and port as stored in records (section 5.1): 8 bytes, or 20
            with IPv6.
        active_ms: the time of the last traffic.
        account: with accounts, the one that signed the client's last heartbeat.
    """

    def __init__(self, connection: Connection, remoting: RemotingServer) -> None:
        self.connection = connection
        self.peer = connection.peer
        self.host_port = _host_port(connection.peer)
        self.active_ms = remoting.now_ms()
        self.account: str | None = None
        self._remoting = remoting
        self._session = Session()
        self._calls: dict[int, asyncio.Future[Command]] = {}
        # A broker has many idle channels: an empty set takes 216 bytes, and a deque 760.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._postponed: list[Command] = []
        self._catching_up = False

    def __repr__(self) -> str:
        return f"<Channel {self.peer}{' closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.connection.closed

    # -- for handlers

    def respond(
        self,
        request: Command,
        code: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> None:
        """Answer a request; a one-way request is not answered."""
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
        """Answer a request with a body in pieces, which are not copied."""
        if not request.is_oneway:
            size = sum(map(len, pieces))
            head = self._session.response_head(request, code, remark, fields, size)
            self.connection.write_many([head, *pieces])

    def fail(self, request: Command, error: Exception) -> None:
        """Answer a request that was refused or failed. Unexpected errors are logged."""
        if isinstance(error, Refusal):
            self.respond(request, error.code, error.remark, error.fields)
        elif isinstance(error, RefusedError):  # raised for invalid headers and bodies
            self.respond(request, error.code or SYSTEM_ERROR, error.text)
        else:
            if isinstance(error, StoreError):  # such as a full disk
                _log.error(
                    "Code %d from %s failed: %s",
                    request.code,
                    self.peer,
                    error,
                    about=(request.code, type(error)),
                    peer=self.peer,
                )
            elif not isinstance(error, ProtocolError):
                _log.error(
                    "Code %d from %s failed",
                    request.code,
                    self.peer,
                    exc_info=error,
                    about=request.code,
                    peer=self.peer,
                )
            self.respond(request, SYSTEM_ERROR, java_exception(error))

    def write(self, frame: bytes | memoryview) -> None:
        """Send an encoded frame."""
        self.connection.write(frame)

    async def call(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 3_000,
    ) -> Command:
        """Send a request to the client and wait for its response.

        Args:
            code: the request code (section 4).
            timeout_ms: how long to wait for the response.

        Returns:
            The response; its code may be an error.

        Raises:
            RequestTimeoutError: no response arrived in time.
            DisconnectedError: the connection is closed, or was closed while waiting.
        """
        if self.closed:
            raise DisconnectedError("The client has disconnected.", server=self.peer)
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
        """Send a one-way request to the client."""
        if not self.closed:
            _, frame = self._session.request(code, fields or {}, body, oneway=True)
            self.connection.write(frame)

    def close(self) -> None:
        """Send written data, then close the connection."""
        self.connection.close()

    # -- for the connection

    def received(self, data: bytes) -> None:
        """One socket read."""
        self.active_ms = self._remoting.now_ms()
        requests: list[Command] = []
        for command in self._session.receive(data):
            if command.is_response:
                self._answered(command)
            else:
                requests.append(command)
        self.connection.report_unfinished(self._session.unfinished)
        served = 0 if self._postponed or self.connection.full else self._serve(requests)
        if served < len(requests):
            self._postponed.extend(requests[served:])
            self._start_catching_up()

    def end(self) -> None:
        """Cancel pending work; the connection has ended."""
        self._postponed.clear()
        for task in self._tasks:
            task.cancel()
        for answer in self._calls.values():
            if not answer.done():
                error = DisconnectedError("The client has disconnected.", server=self.peer)
                answer.set_exception(error)

    # -- inside

    def _answered(self, response: Command) -> None:
        waiting = self._calls.get(response.opaque)
        if waiting is None or waiting.done():
            _log.debug(
                "%s sent a response without a request: %d",
                self.peer,
                response.opaque,
                about=self.connection.peer_host,
                peer=self.peer,
            )
        else:
            waiting.set_result(response)

    def _serve(self, requests: Sequence[Command]) -> int:
        """Serve as many requests as one loop iteration allows; return their number."""
        remoting, connection = self._remoting, self.connection
        count_max, bytes_max = remoting.at_once()
        bytes_max += connection.unsent_bytes
        until_ns = machine.ticks_ns() + limits.TURN_MS * 1_000_000
        served = 0
        for request in requests[:count_max]:
            # One socket read can contain a thousand pulls of 256 KiB each, or many selectors.
            if served and (connection.unsent_bytes > bytes_max or machine.ticks_ns() > until_ns):
                break
            remoting.handle(self, request)
            served += 1
        remoting.finish_batch(self)
        return served

    def _start_catching_up(self) -> None:
        if not self._catching_up:
            self._catching_up = True
            self._remoting.catching_up += 1  # at once, so that the other connections get less
            self.connection.pause_reading()
            self.spawn(self._catch_up()).add_done_callback(self._caught_up)

    def _caught_up(self, _: asyncio.Task[None]) -> None:
        self._remoting.catching_up -= 1

    async def _catch_up(self) -> None:
        try:
            while self._postponed:
                await self.connection.drain()
                await asyncio.sleep(0)  # let other connections run, and measure the write buffer
                del self._postponed[: self._serve(self._postponed)]
            self._catching_up = False
            self.connection.resume_reading()
        except DisconnectedError:
            self._postponed.clear()
        except Exception:  # noqa: BLE001 - reading would stay paused for ever
            _log.exception(
                "Closing the connection with %s after an unhandled error",
                self.peer,
                about=self.connection.peer_host,
                peer=self.peer,
            )
            self.connection.abort()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine; it is cancelled when the connection ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task


Answer: TypeAlias = "Command | None"
Handler: TypeAlias = "Callable[[Channel, Command], Answer | Awaitable[Answer]]"
"""Returns the response (its opaque and flag are set here), or None if the handler sends it."""

BatchHandler: TypeAlias = "Callable[[Channel, Sequence[Command]], None]"
Check: TypeAlias = "Callable[[Channel, Command], Command | None]"


def without_channel(handler: Callable[[Command], Answer | Awaitable[Answer]]) -> Handler:
    """Adapt a handler that does not need the channel."""
    return lambda _, request: handler(request)


class RemotingServer:
    """Dispatches requests to handlers: `net.listen(host, port, remoting.make)`.

    Args:
        handlers: handlers by request code.
        closed: called for every connection that has ended.
        check: called before each handler; the command it returns refuses the request (ACL).
        batch_codes: codes whose requests are collected for `batch`.
        batch: called with all such requests of one socket read, in order; answers each.
        files: writes files; a request that changed one is answered after it is on disk.
        silent: requests with unknown codes get no response, as from Java's name server (section
            2.15).
        now_ms: a monotonic clock.

    Attributes:
        channels: the open connections.
        catching_up: how many of them have more requests pending than one iteration may serve.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        closed: Callable[[Channel], None] = lambda _: None,
        check: Check | None = None,
        batch_codes: Collection[int] = (),
        batch: BatchHandler | None = None,
        files: DeferredSaver | None = None,
        silent: bool = False,
        now_ms: Callable[[], int] = lambda: machine.wall_ns() // 1_000_000,
    ) -> None:
        self.now_ms = now_ms
        self.channels: dict[Channel, None] = {}
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

    def make(self, connection: Connection) -> ChannelReceiver:
        """Create the receiver of a new connection."""
        channel = Channel(connection, self)
        self.channels[channel] = None
        return ChannelReceiver(self, channel)

    def tick(self) -> None:
        """Close idle connections; call it every second or more often."""
        now_ms = self.now_ms()
        if not self._scan.is_due(now_ms):
            return
        for channel in [
            c for c in self.channels if now_ms - c.active_ms > IDLE_MS and not c.closed
        ]:
            _log.info(
                "Closing the connection with %s: no traffic for two minutes",
                channel.peer,
                about=channel.connection.peer_host,
                peer=channel.peer,
            )
            channel.close()

    def at_once(self) -> tuple[int, int]:
        """How many requests and response bytes a connection may use per loop iteration."""
        sharing = self.catching_up + 1
        count = max(limits.REQUESTS_PER_TURN // sharing, limits.REQUESTS_PER_TURN_MIN)
        return count, limits.ANSWER_BYTES_PER_TURN // sharing

    def handle(self, channel: Channel, request: Command) -> None:
        """Handle one request; call `finish_batch` after the last one of a socket read."""
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
        """Pass the collected requests on."""
        if not self._gathered or self._batch is None:
            return
        requests, self._gathered = self._gathered, []
        try:
            self._batch(channel, requests)
        except Exception as error:  # noqa: BLE001 - as above
            for request in requests:
                channel.fail(request, error)

    def ended(self, channel: Channel) -> None:
        """Forget a connection that has ended."""
        self.channels.pop(channel, None)
        channel.end()
        self._closed(channel)

    def _call(self, channel: Channel, request: Command) -> None:
        handler = self._handlers.get(request.code)
        if handler is None:
            if not self._silent:
                remark = f" request type {request.code} not supported"
                channel.respond(request, NOT_SUPPORTED, remark)
            return
        files = self._files
        before = files.changes if files is not None else 0
        answer = handler(channel, request)
        if answer is None:
            return
        if isinstance(answer, Command):
            if files is None or files.changes == before:
                self._answer(channel, request, answer)
                return
            answer = _completed(answer)
        channel.spawn(self._wait(channel, request, answer, before))

    async def _wait(
        self, channel: Channel, request: Command, answer: Awaitable[Answer], before: int
    ) -> None:
        try:
            response = await answer
            if self._files is not None and self._files.changes != before:
                await self._files.flush()
            if response is not None:
                self._answer(channel, request, response)
        except Exception as error:  # noqa: BLE001 - as above
            channel.fail(request, error)

    def _answer(self, channel: Channel, request: Command, answer: Command) -> None:
        channel.respond(request, answer.code, answer.remark, answer.fields, answer.body)


async def _completed(answer: Command) -> Answer:
    return answer


class ChannelReceiver:
    """The receiver of one connection; created by `RemotingServer.make`.

    Attributes:
        channel: the connection as handlers see it.
    """

    def __init__(self, remoting: RemotingServer, channel: Channel) -> None:
        self.channel = channel
        self.received = channel.received
        self._remoting = remoting

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """The connection has ended."""
        self._remoting.ended(self.channel)


def java_exception(error: BaseException) -> str:
    """Format an error like the remarks of Java's servers: type, text and location (section 1.4).

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
    except ValueError:  # not a TCP connection, in tests
        return bytes(8)
    return address.packed + int(port).to_bytes(4, "big")


class Refusal(Exception):  # noqa: N818 - a response of the protocol
    """A request is refused; `RemotingServer` sends the response.

    Args:
        code: the response code (section 2.2).
        remark: the reason, in the words of RocketMQ 4.9 where clients look at them.
        fields: header fields of the response.
    """

    def __init__(
        self, code: int, remark: str | None = None, fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.fields = dict(fields or {})


def settings_in(request: Command) -> dict[str, str]:
    """The settings in the body of UPDATE_BROKER_CONFIG (25) or UPDATE_NAMESRV_CONFIG (318).

    Raises:
        Refusal: the body is too long or invalid.
    """
    if len(request.body) > limits.SETTINGS_BYTES_MAX:
        remark = f"settings of more than {limits.SETTINGS_BYTES_MAX} bytes are not read"
        raise Refusal(SYSTEM_ERROR, remark)
    try:
        return java_properties.parse(str(request.body, "utf-8", "replace"))
    except ValueError as error:
        raise Refusal(SYSTEM_ERROR, "string2Properties error") from error
