"""Request-reply: messages that are answered with a message.

See docs/protocol/rocketmq.md, sections 2.14, 8.7.

A request carries the id of the client that sent it and a correlation id. The reply is a message
with both, sent to the cluster's reply topic; the broker pushes it to the client's connection (326).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from coherer import limits
from coherer._client.rocketmq.link import Handler, Link
from coherer._client.rocketmq.received import ReceivedMessage
from coherer._common import machine
from coherer._common.logs import Log
from coherer._record import compression
from coherer._record import properties as text
from coherer._record.compression import InflatedTooLargeError
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import PushReplyHeader, parse
from coherer._wire.rocketmq.messages import StoredMessage, time_of, user_properties
from coherer._wire.rocketmq.names import REPLY_TOPIC_SUFFIX
from coherer.errors import (
    ClosedError,
    CohererError,
    DamagedStoreError,
    ProtocolError,
    RequestTimeoutError,
    UsageError,
)
from coherer.message import Message

_log = Log(logging.getLogger(__name__))
CORRELATION: Final = "CORRELATION_ID"
REPLY_TO: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
CLUSTER: Final = "CLUSTER"


class PendingReplies:
    """The requests of a client that wait for their reply.

    Args:
        handle: registers a handler of servers' requests.
    """

    def __init__(self, handle: Callable[[int, Handler], None]) -> None:
        self._waiting: dict[str, asyncio.Future[StoredMessage]] = {}
        handle(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._received)

    def add(self) -> tuple[str, asyncio.Future[StoredMessage]]:
        """The correlation id of a new request, and the future of its reply."""
        number = str(machine.uuid())
        future: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return number, future

    async def wait(
        self, number: str, future: asyncio.Future[StoredMessage], timeout_ms: float, topic: str
    ) -> StoredMessage:
        """The reply to a request.

        Raises:
            RequestTimeoutError: no reply in time.
            ClosedError: the client was closed.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            raise RequestTimeoutError(
                "No reply in time.", topic=topic, hint="Does a consumer reply to the requests?"
            ) from None
        finally:
            self._waiting.pop(number, None)

    def remove(self, number: str) -> None:
        """Undo `add`: the request was not sent."""
        self._waiting.pop(number, None)

    def close(self) -> None:
        """Let the requests fail: no reply reaches a client that is closed."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ClosedError("The client is closed."))
                future.exception()  # seen: the request may fail before it waits

    def _received(self, link: Link, request: Command) -> None:
        properties = text.decode(request.fields.get("properties", "").encode())
        future = self._waiting.pop(properties.get(CORRELATION, ""), None)
        if future is None or future.done():
            link.respond(request)
            return
        try:
            message = reply_of(request)
        except Exception as error:  # noqa: BLE001 - the waiting request must fail now
            failure = error if isinstance(error, CohererError) else _unreadable(error)
            future.set_exception(failure)
            link.respond(request, ResponseCode.SYSTEM_ERROR, failure.text)
            return
        future.set_result(message)
        link.respond(request)


def _unreadable(error: Exception) -> ProtocolError:
    failure = ProtocolError(f"A reply cannot be read: {error!r}.")
    failure.__cause__ = error
    return failure


def request_properties(number: str, client_id: str, timeout_ms: int) -> dict[str, str]:
    """The properties that make a message a request."""
    return {CORRELATION: number, REPLY_TO: client_id, TTL: str(timeout_ms)}


def reply_target(request: StoredMessage | ReceivedMessage) -> tuple[str, dict[str, str]]:
    """The topic and the properties of the reply to a request.

    Raises:
        UsageError: the message is not a request.
    """
    stored: Mapping[str, str] | None = getattr(request, "stored_properties", None)
    if stored is None:
        raise UsageError(
            f"`request` is a message that a consumer received, not {type(request).__name__}."
        )
    if not stored.get(CLUSTER) or not stored.get(REPLY_TO):
        raise UsageError("This message is not a request.", topic=request.topic)
    carried = {name: stored[name] for name in (CORRELATION, REPLY_TO, TTL) if name in stored}
    return stored[CLUSTER] + REPLY_TOPIC_SUFFIX, {"MSG_TYPE": "reply", **carried}


def reply_of(request: Command) -> StoredMessage:
    """The message in a broker's request 326.

    As in Java, a body that is wrongly marked as compressed is used unchanged: clients in other
    languages copy the flag of the request.

    Raises:
        ProtocolError, RefusedError: it contains no message, or its inflated body is too large.
    """
    header = parse(PushReplyHeader, request.fields)
    body = bytes(request.body)
    if header.sys_flag & compression.COMPRESSED:
        try:
            body = compression.decompress(body, limit_bytes=limits.REMOTING_BYTES_MAX)
        except InflatedTooLargeError as error:
            raise ProtocolError(f"A reply is rejected: {error.text}", topic=header.topic) from error
        except DamagedStoreError:
            _log.debug("A reply is marked as compressed and is not")
    stored: Mapping[str, str] = text.decode((header.properties or "").encode())
    stored = {**stored, "ARRIVE_TIME": str(machine.wall_ns() // 1_000_000)}
    return StoredMessage(
        header.topic,
        body,
        stored.get(text.TAGS),
        time_of(stored, header.born_ms),
        tuple(stored.get(text.KEYS, "").split()),
        user_properties(stored),
        partition=header.queue_id,
        unique_id=stored.get(text.UNIQUE_KEY, ""),
        born_ms=header.born_ms,
        stored_ms=header.stored_ms,
        attempt=header.reconsume_times or 0,
        flag=header.flag,
        sys_flag=header.sys_flag,
        stored_properties=stored,
    )


def reply_message(topic: str, reply: Message | bytes) -> Message:
    """The message to send as a reply."""
    if isinstance(reply, bytes):
        return Message(topic, reply)
    return Message(topic, reply.body, reply.tag, reply.time, reply.keys, reply.properties)
