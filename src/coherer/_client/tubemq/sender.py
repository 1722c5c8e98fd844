"""Sending to one broker.

* A message is encoded when it is posted. All messages of one turn of the event loop leave with one
  write.
* If the connection breaks, or the answer is late, the message may or may not be stored. It is not
  sent again: the error says so, and the application decides.
* A message that Java's broker refused because its write cache was full (419) is not stored. It is
  sent again after a pause, to the same partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from coherer._client.engine.sender import BrokerSender, Sink
from coherer._client.tubemq.cluster import Pool, TubeConnection
from coherer._client.tubemq.quality import Backoff, Quality
from coherer._wire.tubemq import codes
from coherer._wire.tubemq.names import BrokerInfo, Partition
from coherer._wire.tubemq.sending import SendEncoder, SendResponse, parse_send_response
from coherer._wire.tubemq.session import Failure, Response
from coherer.errors import (
    CohererError,
    DisconnectedError,
    ProtocolError,
    RequestTimeoutError,
)
from coherer.message import Message, Receipt

STORED: Final = bytes.fromhex("080110c801")
"""The first bytes of an answer with success and code 200; most sends need not decode the rest."""

UNSURE: Final = "The message may or may not be stored; it is not sent again automatically."


class TargetPartition:
    """A partition that messages can be sent to.

    Attributes:
        partition: the partition.
        sender: the sender of its broker.
        backoff: when it may be used again.
        broker: the broker's id as text, for receipts.
        number: the partition's id, for receipts.
        encode: encodes the request of a send.
        encode_batch: encodes the request of a batch.
    """

    __slots__ = ("backoff", "broker", "encode", "encode_batch", "number", "partition", "sender")

    def __init__(
        self, partition: Partition, sender: TubeSender, client_id: str, sent_addr: int
    ) -> None:
        self.partition = partition
        self.sender = sender
        self.backoff = Backoff()
        self.broker = str(partition.broker.id)
        self.number = partition.id
        encoder = SendEncoder(client_id, partition.topic, partition.id, sent_addr)
        self.encode, self.encode_batch = encoder.encode, encoder.encode_batch


class EncodedPayload(msgspec.Struct, frozen=True, gc=False):
    """An encoded payload.

    Args:
        flag: its layout.
        tag: the message type, for the broker's filters.
        time: the message time in the broker's format.
        batch: a batch for Coherer's broker, which replaces all other fields.
    """

    data: bytes
    flag: int
    tag: str | None = None
    time: str | None = None
    batch: bytes | memoryview | None = None


class PendingSend(msgspec.Struct, gc=False):
    """A message in flight. A `PendingRequest`.

    Args:
        target: the partition that it is sent to.
        deadline: by the loop's clock in seconds.
        size_bytes: of the payload.
        body: the broker's answer, when there is one.
        placed: whether only this partition may get it.
    """

    target: TargetPartition
    message: Message
    sink: Sink
    deadline: float
    size_bytes: int
    payload: EncodedPayload
    body: bytes = b""
    placed: bool = False

    def receipt(self) -> Receipt:
        """The receipt; call it after the answer came.

        Raises:
            ProtocolError: the answer is invalid.
        """
        reply = parse_send_response(self.body)
        target = self.target
        return Receipt(
            str(reply.message_id),
            target.partition.topic,
            target.broker,
            target.number,
            reply.offset,
            reply.append_ms,
        )

    def answered(self, answer: Response | Failure) -> None:
        """The broker answered."""
        self.target.sender.answered(self, answer)

    def failed(self, error: CohererError) -> None:
        """No answer will come."""
        self.target.sender.unanswered(self, error)


class TubeSender(BrokerSender[TubeConnection, PendingSend]):
    """Sends to one broker.

    Args:
        changed: called when a connection was opened, could not be opened, or broke, and when the
            broker refused service.
        reroute: posts a waiting message to another broker, if one is connected.
        release: called with the size of each message when its outcome is known.
        timeout_ms: of a send; also sent to the broker.

    Attributes:
        authorized: the field `authInfo` of sends, serialized.
        takes_batches: whether the broker accepts batches; None until it has answered one.
    """

    def __init__(
        self,
        broker: BrokerInfo,
        pool: Pool,
        quality: Quality,
        *,
        changed: Callable[[], None],
        reroute: Callable[[PendingSend], bool],
        release: Callable[[int], None],
        timeout_ms: int,
    ) -> None:
        super().__init__(f"{broker.host}:{broker.port}")
        self.broker = broker
        self.authorized = b""
        self.takes_batches: bool | None = None
        self._pool = pool
        self._quality = quality
        self._tally = quality.tally(broker.id)
        self._on_change = changed
        self._reroute = reroute
        self._release = release
        self._timeout_ms = timeout_ms

    def __repr__(self) -> str:
        where = f"{self.broker.id} at {self.server}"
        return f"<TubeSender to {where}, {self._tally.outstanding} in flight>"

    def post(self, send: PendingSend) -> None:
        """Send a message, now or as soon as the broker is connected."""
        self._tally.sent += 1
        self.offer(send)

    def answered(self, send: PendingSend, answer: Response | Failure) -> None:
        """The broker answered a send."""
        if isinstance(answer, Failure):
            self.unanswered(send, answer.error(self.server))
            return
        body = answer.body
        try:
            if body.startswith(STORED) or (reply := parse_send_response(body)).success:
                send.body = body
                send.sink.stored(send)
                self._tally.succeeded += 1
                send.target.backoff.succeeded()
            else:
                self._refuse(send, reply)
                return
        except ProtocolError as error:
            self.unanswered(send, error)
            return
        self._tally.finished += 1
        self._release(send.size_bytes)

    def unanswered(self, send: PendingSend, error: CohererError) -> None:
        """A send failed, or its outcome is unknown."""
        send.target.backoff.failed(int(self._loop.time() * 1000))
        hint = error.hint
        if isinstance(error, DisconnectedError | RequestTimeoutError | ProtocolError):
            hint = UNSURE
        where = send.target.partition
        self._fail(
            send,
            type(error)(
                error.text,
                server=self.server,
                topic=where.topic,
                partition=where.id,
                code=error.code,
                hint=hint,
            ),
        )

    # -- called by the engine

    async def _dial(self) -> TubeConnection:
        return await self._pool.get(self.broker.host, self.broker.port)

    def _send(self, link: TubeConnection, item: PendingSend) -> None:
        payload = item.payload
        serial = link.session.next_serial()
        if payload.batch is not None:
            frame = item.target.encode_batch(
                serial, payload.batch, self.authorized, self._timeout_ms
            )
        else:
            frame = item.target.encode(
                serial,
                payload.data,
                payload.flag,
                payload.tag,
                payload.time,
                self.authorized,
                self._timeout_ms,
            )
        link.send_frame(serial, item, frame)

    def _changed(self, *, reached: bool | None) -> None:
        if reached:
            self.takes_batches = None  # the broker may have another version now
            self._quality.connected(self.broker.id)
        elif reached is False:
            self._quality.connect_failed(self.broker.id, int(self._loop.time() * 1000))
        self._on_change()

    def _deadline(self, item: PendingSend) -> float:
        return item.deadline

    def _reroute_item(self, item: PendingSend) -> bool:
        rerouted = self._reroute(item)
        if rerouted:
            self._tally.sent -= 1
        return rerouted

    def _fail(self, item: PendingSend, error: CohererError) -> None:
        self._tally.finished += 1
        item.sink.lost(item.message, error)
        self._release(item.size_bytes)

    def _unsent(self, item: PendingSend) -> None:
        where = item.target.partition
        self._fail(item, self._not_sent(where.topic, where.id))

    # -- inside

    def _refuse(self, send: PendingSend, reply: SendResponse) -> None:
        if reply.code == codes.ResultCode.SERVICE_UNAVAILABLE:
            self._quality.refused_service(self.broker.id, int(self._loop.time() * 1000))
            self._on_change()
        where = send.target.partition
        error = codes.refused(
            reply.code, reply.text, server=self.server, topic=where.topic, partition=where.id
        )
        overflow = reply.code == codes.ResultCode.SERVER_RECEIVE_OVERFLOW
        if overflow and not reply.text.startswith(codes.STORE_FULL):
            self._send_later(send, error)
        else:
            self._fail(send, error)
