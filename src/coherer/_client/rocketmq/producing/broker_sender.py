"""Sending to the master of one broker (docs/protocol/rocketmq.md, section 8.5).

* A message is encoded when it is written. All messages of one turn of the event loop leave with one
  write. An answer is matched by an entry in the link's table; there is no task, future or timer per
  message.
* The answer codes 0, 10, 11 and 12 mean that the broker has the message; the receipt contains which
  one it was.
* A message is sent again, to another broker if there is one, when the connection could not be
  opened, or when the broker refused with one of `retry_codes`: in both cases it is not stored. If
  the connection broke before the answer came, the message may be stored; it is sent again only with
  `retry_lost`. There are at most `retries` retries, and none after the deadline, which covers all
  attempts. A message keeps its unique id, so that consumers can detect duplicates.
* A busy broker (SYSTEM_BUSY, 2) gets the message again after a pause, until the deadline. Java's
  producers give up.
* A message with a queue or a key is sent once: a retry would overtake the next message in order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

import msgspec

from coherer._client.engine.options import parse_address
from coherer._client.engine.sender import BrokerSender, Sink
from coherer._client.rocketmq.faults import BrokerFaults
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import Link
from coherer._client.rocketmq.routing import NEW_TOPIC_QUEUES
from coherer._common import machine
from coherer._wire.rocketmq import codes
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import SendHeader
from coherer._wire.rocketmq.messages import EncodedMessage, SendReceipt
from coherer._wire.rocketmq.names import AUTO_CREATE_TOPIC, Queue
from coherer._wire.rocketmq.sending import SendEncoder
from coherer.errors import (
    CohererError,
    DisconnectedError,
    ProtocolError,
    RequestTimeoutError,
    UsageError,
)
from coherer.limits import REMOTING_BYTES_MAX
from coherer.message import Message

SINGLE: Final = int(RequestCode.SEND_MESSAGE_V2)
BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
HALF_BATCH: Final = int(RequestCode.SEND_HALF_BATCH)
BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
"""Plain integers: members of an enum take three times as long to look up and to hash."""

UNSURE: Final = "The message may or may not be stored; it is not sent again automatically."
UNSURE_AFTER_RETRIES: Final = "The message may have been stored zero, one or several times."
"""With `retry_lost`, when no retry is left."""

STATUS: Final[Mapping[int, str]] = {
    int(ResponseCode.SUCCESS): "SEND_OK",
    int(ResponseCode.FLUSH_DISK_TIMEOUT): "FLUSH_DISK_TIMEOUT",
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): "FLUSH_SLAVE_TIMEOUT",
    int(ResponseCode.SLAVE_NOT_AVAILABLE): "SLAVE_NOT_AVAILABLE",
}
"""The answer codes that mean that the broker has the message."""


class TargetQueue:
    """A queue that messages can be sent to.

    Attributes:
        queue: the queue.
        broker: sends to its broker's master.
        group: the producer group.
        encoder: encodes sends to the topic at the broker.
    """

    __slots__ = ("broker", "encoder", "group", "queue")

    def __init__(
        self, queue: Queue, broker: MasterSender, group: str, encoder: SendEncoder
    ) -> None:
        self.queue = queue
        self.broker = broker
        self.group = group
        self.encoder = encoder

    @property
    def connected(self) -> bool:
        """Whether the broker is connected."""
        return self.broker.open

    def header(self, payload: EncodedMessage, born_ms: int, *, batch: bool) -> SendHeader:
        """The header of a send, for signed requests, which the encoder does not support."""
        return SendHeader(
            self.group,
            self.queue.topic,
            AUTO_CREATE_TOPIC,
            NEW_TOPIC_QUEUES,
            self.queue.id,
            payload.sys_flag,
            born_ms,
            0,
            payload.properties,
            batch=batch,
        )


class PendingSend(msgspec.Struct, gc=False):
    """A message or a batch that waits for its answer.

    Args:
        target: the queue it is sent to.
        message: the application's message; of a batch the first one.
        deadline: by the loop's clock, in seconds.
        unique_id: the generated id; of a batch all of them, joined by commas.
        born_ms: when it was submitted, ms since 1970.
        retries: how many are left.
        code: the code of the request.
        began: when this attempt began, by the loop's clock.
        answer: the broker's answer, once it has come.
    """

    target: TargetQueue
    message: Message
    sink: Sink
    deadline: float
    payload: EncodedMessage
    unique_id: str
    born_ms: int
    retries: int = 0
    code: int = SINGLE
    began: float = 0.0
    answer: Command | None = None

    @property
    def size_bytes(self) -> int:
        """Its share of the in-flight window."""
        return len(self.payload.body)

    @property
    def server(self) -> str:
        """The broker's address."""
        return self.target.broker.server

    @property
    def traced(self) -> bool:
        """Whether the broker has message trace enabled."""
        return self.answer is not None and self.answer.fields.get("TRACE_ON") != "false"

    def answered(self, answer: Command) -> None:
        """The broker answered."""
        self.target.broker.answered(self, answer)

    def failed(self, error: CohererError) -> None:
        """No answer will come."""
        self.target.broker.unanswered(self, error)

    def receipt(self) -> SendReceipt:
        """The receipt; call it after the answer came.

        Raises:
            ProtocolError: the answer is incomplete.
        """
        answer = self.answer
        assert answer is not None  # noqa: S101 - see above
        fields = answer.fields
        try:
            return SendReceipt(
                fields["msgId"],
                self.message.topic,
                self.target.queue.broker,
                int(fields["queueId"]),
                int(fields["queueOffset"]),
                self.born_ms,
                self.unique_id,
                STATUS[answer.code],
                fields.get("MSG_REGION", ""),
                fields.get("transactionId") or "",
            )
        except (KeyError, ValueError) as error:
            raise ProtocolError(
                "The answer to a send does not contain the offset of the message.",
                server=self.target.broker.server,
            ) from error


class Dispatcher(Protocol):
    """Dispatches messages to the senders of brokers, as `Sender` does."""

    def retry(self, pending: PendingSend) -> bool:
        """Send a message again, avoiding its broker; False if it has no retries left."""
        ...

    def retry_by_new_route(self, pending: PendingSend, error: CohererError) -> None:
        """Look the topic up, and send a message again; without retries left, it fails."""
        ...

    def reroute(self, pending: PendingSend) -> bool:
        """Send a message to a broker that is connected; False if there is no other."""
        ...

    def release(self, size_bytes: int) -> None:
        """The outcome of a message is known."""
        ...

    def connections_changed(self) -> None:
        """A connection was opened, could not be opened, or broke."""
        ...


class MasterSender(BrokerSender[Link, PendingSend]):
    """Sends to the master of one broker.

    Args:
        address: its address, `host:port`.
        sender: the producer's sender.
        faults: records the broker's latency; None to record nothing.
        retry_codes: refusals that are retried.
        retry_lost: whether to retry when the connection broke before the answer came.
    """

    def __init__(
        self,
        name: str,
        address: str,
        instance: Instance,
        sender: Dispatcher,
        faults: BrokerFaults | None,
        retry_codes: Collection[int],
        *,
        retry_lost: bool = False,
    ) -> None:
        host, port = parse_address(address)
        super().__init__(f"{host}:{port}")
        self.name = name
        self._address = address
        self._instance = instance
        self._sender = sender
        self._faults = faults
        self._retry_codes = retry_codes
        self._retry_lost = retry_lost
        self._signs = instance.options.user is not None

    def __repr__(self) -> str:
        return f"<MasterSender of {self.name} at {self.server}>"

    async def send_oneway(self, target: TargetQueue, payload: EncodedMessage, born_ms: int) -> None:
        """Send a message without an answer; returns when the write buffer has space again.

        Raises:
            UnavailableError: the broker cannot be reached.
        """
        link = self._link if self._link is not None and self._link.open else await self._dial()
        if self._signs:
            fields = target.header(payload, born_ms, batch=False).fields()
            link.send_oneway(SINGLE, fields, payload.body, broker=self.name)
        else:
            frame = target.encoder.encode(
                link.session.next_opaque(),
                target.queue.id,
                payload.body,
                payload.properties,
                born_ms=born_ms,
                sys_flag=payload.sys_flag,
                oneway=True,
            )
            link.connection.write(frame)
        if link.connection.overloaded:
            await link.connection.drain()

    def answered(self, pending: PendingSend, answer: Command) -> None:
        """The broker answered a send."""
        if self._faults is not None:
            self._record_latency(self._faults, pending, failed=answer.code not in STATUS)
        if answer.code in STATUS:
            pending.answer = answer
            try:
                pending.sink.stored(pending)
            except ProtocolError as error:
                pending.sink.lost(pending.message, error)
        elif _has_no_such_queue(answer):
            self._sender.retry_by_new_route(pending, self._refusal(pending, answer))
            return
        elif answer.code in self._retry_codes and self._sender.retry(pending):
            return
        else:
            self._refuse(pending, answer)
            return
        self._sender.release(pending.size_bytes)

    def unanswered(self, pending: PendingSend, error: CohererError) -> None:
        """The connection broke, or the deadline has passed."""
        if self._faults is not None:
            self._record_latency(self._faults, pending, failed=True)
        lost = isinstance(error, DisconnectedError)
        if lost and self._retry_lost and self._sender.retry(pending):
            return
        unsure = isinstance(error, DisconnectedError | RequestTimeoutError | ProtocolError)
        hint = UNSURE_AFTER_RETRIES if self._retry_lost else UNSURE
        queue = pending.target.queue
        self._fail(
            pending,
            type(error)(
                error.text,
                server=self.server,
                topic=queue.topic,
                partition=queue.id,
                code=error.code,
                hint=hint if unsure else error.hint,
            ),
        )

    def fail(self, pending: PendingSend, error: CohererError) -> None:
        """Report that a message is not stored."""
        self._fail(pending, error)

    def _refusal(self, pending: PendingSend, answer: Command) -> CohererError:
        queue = pending.target.queue
        return codes.refused(
            answer.code,
            answer.remark,
            server=self.server,
            topic=queue.topic,
            partition=queue.id,
        )

    def _refuse(self, pending: PendingSend, answer: Command) -> None:
        error = self._refusal(pending, answer)
        if answer.code == BUSY and pending.retries > 0:
            self._send_later(pending, error)
        else:
            self._fail(pending, error)

    # -- overrides of the common part

    async def _dial(self) -> Link:
        return await self._instance.link(self._address, fast=True)

    def _send(self, link: Link, item: PendingSend) -> None:
        try:
            self._write(link, item)
        except ProtocolError as error:
            queue = item.target.queue
            raise UsageError(
                f"The message does not fit into a request: {error.text}",
                server=self.server,
                topic=queue.topic,
                partition=queue.id,
                hint=f"A request has at most {REMOTING_BYTES_MAX >> 20} MiB: send a smaller body.",
            ) from error

    def _write(self, link: Link, item: PendingSend) -> None:
        target, payload = item.target, item.payload
        if self._faults is not None:
            item.began = self._loop.time()
        code, batch = item.code, item.code == BATCH
        if self._signs:
            fields = target.header(payload, item.born_ms, batch=batch).fields()
            link.send(code, fields, payload.body, item, broker=self.name)
            return
        opaque = link.session.next_opaque()
        frame = target.encoder.encode(
            opaque,
            target.queue.id,
            payload.body,
            payload.properties,
            born_ms=item.born_ms,
            sys_flag=payload.sys_flag,
            code=code,
            batch=batch,
        )
        link.send_frame(opaque, item, frame)

    def _deadline(self, item: PendingSend) -> float:
        return item.deadline

    def _reroute_item(self, item: PendingSend) -> bool:
        return self._sender.reroute(item)

    def _send_again(self, item: PendingSend) -> None:
        if not self._sender.reroute(item):
            self.offer(item)

    def _fail(self, item: PendingSend, error: CohererError) -> None:
        item.sink.lost(item.message, error)
        self._sender.release(item.size_bytes)

    def _unsent(self, item: PendingSend) -> None:
        queue = item.target.queue
        self._fail(item, self._not_sent(queue.topic, queue.id))

    def _changed(self, *, reached: bool | None) -> None:
        if reached is False and self._faults is not None:
            self._faults.record_failure(self.name, int(self._loop.time() * 1000))
        self._sender.connections_changed()

    def _record_latency(self, faults: BrokerFaults, pending: PendingSend, *, failed: bool) -> None:
        now = self._loop.time()
        if failed:
            faults.record_failure(self.name, int(now * 1000))
        else:
            faults.record(self.name, int((now - pending.began) * 1000), int(now * 1000))


def _has_no_such_queue(answer: Command) -> bool:
    """Whether the topic was created again with fewer queues; only the text says so."""
    text = answer.remark or ""
    return answer.code == ResponseCode.SYSTEM_ERROR and text.startswith("request queueId[")


def now_ms() -> int:
    """Milliseconds since 1970."""
    return machine.wall_ns() // 1_000_000
