"""Sends on their way to one broker, each with somebody who waits for its receipt.

Rules:

* A message is encoded when it is posted and leaves with everything else of that loop turn. Its
  answer is one entry in the link's table; there is no task, future or timer per message.
* What was sent is never sent again. If the connection breaks, or the answer does not come in time,
  the message may or may not be stored, and its error says so. The application decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from coherer._client.engine.sender import BrokerSender, Sink
from coherer._client.tubemq.link import Pool, TubeConnection
from coherer._client.tubemq.partitions import Rest
from coherer._client.tubemq.quality import Quality
from coherer._wire.tubemq import codes
from coherer._wire.tubemq.names import BrokerInfo, Partition
from coherer._wire.tubemq.sending import SendEncoder, SendReply, parse_send_reply
from coherer._wire.tubemq.session import Failure, Response
from coherer.errors import (
    CohererError,
    ConnectError,
    DisconnectedError,
    ProtocolError,
    RequestTimeoutError,
)
from coherer.message import Message, Receipt

STORED: Final = bytes.fromhex("080110c801")
"""How an answer begins that says success and 200: most senders need to know no more."""

UNSURE: Final = "The message may or may not be stored; it is not sent again by itself."


class Place:
    """A partition that messages can be sent to.

    Attributes:
        partition: which one.
        lane: the way to its broker.
        rest: how sends to it went.
        broker: the broker's id as text, for receipts.
        number: the partition's id, for receipts.
        encode: makes the request for a message.
    """

    __slots__ = ("broker", "encode", "lane", "number", "partition", "rest")

    def __init__(self, partition: Partition, lane: Lane, client_id: str, sent_addr: int) -> None:
        self.partition = partition
        self.lane = lane
        self.rest = Rest()
        self.broker = str(partition.broker.id)
        self.number = partition.id
        self.encode = SendEncoder(client_id, partition.topic, partition.id, sent_addr).encode


def receipt_of(place: Place, body: bytes) -> Receipt:
    """The receipt for a stored message.

    Args:
        place: where it was sent.
        body: the broker's answer.

    Raises:
        ProtocolError: that is no answer.
    """
    reply = parse_send_reply(body)
    return Receipt(
        str(reply.message_id),
        place.partition.topic,
        place.broker,
        place.number,
        reply.offset,
        reply.append_ms,
    )


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """An encoded payload.

    Args:
        data: the payload.
        flag: how it is laid out.
        tag: the message type, for the broker's filters.
        time: the message time as the broker wants it.
    """

    data: bytes
    flag: int
    tag: str | None
    time: str | None


class Sent(msgspec.Struct, gc=False):
    """A message on its way. Waits for the answer.

    Args:
        place: the partition that it was sent to.
        message: what the user gave us.
        sink: who waits for the outcome.
        deadline: until when, by the loop's clock in seconds.
        size_bytes: of the payload.
        body: the broker's answer, when it has one.
    """

    place: Place
    message: Message
    sink: Sink
    deadline: float
    size_bytes: int
    body: bytes = b""

    def receipt(self) -> Receipt:
        """The receipt, when the broker has answered.

        Raises:
            ProtocolError: that is no answer.
        """
        return receipt_of(self.place, self.body)

    def answered(self, answer: Response | Failure) -> None:
        """The broker answered."""
        self.place.lane.answered(self, answer)

    def failed(self, error: CohererError) -> None:
        """There will be no answer."""
        self.place.lane.unanswered(self, error)


class Owner(Protocol):
    """The producer, as its lanes see it."""

    def changed(self) -> None:
        """A connection was made, could not be made, or broke; or a broker refused service."""
        ...

    def elsewhere(self, sent: Sent, parcel: Parcel) -> bool:
        """Post a message that could not leave by another lane, if there is an open one."""
        ...


class Lane(BrokerSender[TubeConnection, tuple[Sent, Parcel]]):
    """The way to one broker.

    Args:
        broker: which one.
        pool: where the connection comes from.
        quality: learns how the broker does.
        owner: is told what happens.
        settled: called with the size of each message when its outcome is known.
        timeout_ms: of a send, also told to the broker.

    Attributes:
        authorized: the field `authInfo` of sends, serialized.
    """

    def __init__(
        self,
        broker: BrokerInfo,
        pool: Pool,
        quality: Quality,
        owner: Owner,
        settled: Callable[[int], None],
        timeout_ms: int,
    ) -> None:
        super().__init__(f"{broker.host}:{broker.port}")
        self.broker = broker
        self.authorized = b""
        self._pool = pool
        self._quality = quality
        self._tally = quality.tally(broker.id)
        self._owner = owner
        self._settled = settled
        self._timeout_ms = timeout_ms

    def __repr__(self) -> str:
        return f"<Lane to {self.broker.id} at {self.server}, {self._tally.outstanding} under way>"

    def post(self, sent: Sent, parcel: Parcel) -> None:
        """Send a message, now or as soon as there is a connection."""
        self._tally.sent += 1
        self._offer((sent, parcel))

    def answered(self, sent: Sent, answer: Response | Failure) -> None:
        """The broker answered a send."""
        if isinstance(answer, Failure):
            self.unanswered(sent, answer.error(self.server))
            return
        body = answer.body
        try:
            if body.startswith(STORED) or (reply := parse_send_reply(body)).success:
                sent.body = body
                sent.sink.stored(sent)
                self._tally.succeeded += 1
                sent.place.rest.succeeded()
            else:
                sent.sink.lost(sent.message, self._refused(sent.place, reply))
        except ProtocolError as error:
            self.unanswered(sent, error)
            return
        self._tally.settled += 1
        self._settled(sent.size_bytes)

    def unanswered(self, sent: Sent, error: CohererError) -> None:
        """A send failed, or nobody knows what became of it."""
        self._tally.settled += 1
        sent.place.rest.failed(int(self._loop.time() * 1000))
        hint = error.hint
        if isinstance(error, DisconnectedError | RequestTimeoutError | ProtocolError):
            hint = UNSURE
        where = sent.place.partition
        sent.sink.lost(
            sent.message,
            type(error)(
                error.text,
                server=self.server,
                topic=where.topic,
                partition=where.id,
                code=error.code,
                hint=hint,
            ),
        )
        self._settled(sent.size_bytes)

    # -- inside

    async def _dial(self) -> TubeConnection:
        return await self._pool.get(self.broker.host, self.broker.port)

    def _send(self, link: TubeConnection, item: tuple[Sent, Parcel]) -> None:
        sent, parcel = item
        serial = link.session.next_serial()
        frame = sent.place.encode(
            serial,
            parcel.data,
            parcel.flag,
            parcel.tag,
            parcel.time,
            self.authorized,
            self._timeout_ms,
        )
        link.expect(serial, sent)
        link.connection.write(frame)

    def _refused(self, place: Place, reply: SendReply) -> CohererError:
        if reply.code == codes.ResultCode.SERVICE_UNAVAILABLE:
            self._quality.refused_service(self.broker.id, int(self._loop.time() * 1000))
            self._owner.changed()
        where = place.partition
        return codes.refused(
            reply.code, reply.text, server=self.server, topic=where.topic, partition=where.id
        )

    def _changed(self, *, reached: bool | None) -> None:
        if reached:
            self._quality.connected(self.broker.id)
        elif reached is False:
            self._quality.connect_failed(self.broker.id, int(self._loop.time() * 1000))
        self._owner.changed()

    def _deadline(self, item: tuple[Sent, Parcel]) -> float:
        return item[0].deadline

    def _elsewhere(self, item: tuple[Sent, Parcel]) -> bool:
        found = self._owner.elsewhere(*item)
        if found:
            self._tally.sent -= 1
        return found

    def _unsent(self, item: tuple[Sent, Parcel]) -> None:
        sent, _ = item
        self._tally.settled += 1
        where = sent.place.partition
        sent.sink.lost(
            sent.message,
            ConnectError(
                "No connection to the broker; the message was not sent.",
                server=self.server,
                topic=where.topic,
                partition=where.id,
            ),
        )
        self._settled(sent.size_bytes)
