"""Messages on their way to one broker (rocketmq 8.5).

Rules:

* A message is encoded when it leaves, and leaves with everything else of that loop turn. Its answer
  is one entry in the link's table; there is no task, future or timer per message.
* Codes 0, 10, 11 and 12 say that the broker has the message; the receipt tells them apart.
* Another broker is tried, or the same one if there is no other, when the connection could not be
  made, and when the broker refused with a code of `retry_codes`: the message is not stored then.
  When the connection broke before the answer came, the message may be stored: it is tried again
  only with `retry_lost`. It is tried again `retries` times at most, and not after the deadline,
  which all tries share. It keeps its unique id, by which a consumer can notice that it came twice.
* Whoever chose the queue gets one try: the next message in order would overtake a second one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Final, Protocol

import msgspec

from coherer import limits
from coherer._client.engine.address import split
from coherer._client.engine.outcomes import Sink
from coherer._client.engine.sender import BrokerSender
from coherer._client.rocketmq.faults import Faults
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import Link
from coherer._wire.rocketmq import codes
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import SendHeader
from coherer._wire.rocketmq.messages import Outgoing, SendReceipt
from coherer._wire.rocketmq.names import AUTO_CREATE_TOPIC, Queue
from coherer._wire.rocketmq.sending import SendEncoder
from coherer.errors import (
    CohererError,
    ConnectError,
    DisconnectedError,
    ProtocolError,
    RequestTimeoutError,
)
from coherer.message import Message

SINGLE: Final = int(RequestCode.SEND_MESSAGE_V2)
BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
"""Plain numbers: members of an enum take three times as long to look up and to hash."""

UNSURE: Final = "The message may or may not be stored; it is not sent again by itself."
STILL_UNSURE: Final = "The message may or may not be stored, once or more often with the same id."
"""With `retry_lost`, when no try is left."""

QUEUES_WANTED: Final = 4
"""So many queues a topic is wished to get that a send creates."""

STATUS: Final[Mapping[int, str]] = {
    int(ResponseCode.SUCCESS): "SEND_OK",
    int(ResponseCode.FLUSH_DISK_TIMEOUT): "FLUSH_DISK_TIMEOUT",
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): "FLUSH_SLAVE_TIMEOUT",
    int(ResponseCode.SLAVE_NOT_AVAILABLE): "SLAVE_NOT_AVAILABLE",
}
"""Codes of answers that say that the broker has the message."""


class Place:
    """A queue that messages can be sent to.

    Attributes:
        queue: which one.
        lane: the way to its broker's master.
        group: the producer group.
        encoder: makes requests for messages of the topic.
    """

    __slots__ = ("encoder", "group", "lane", "queue")

    def __init__(self, queue: Queue, lane: Lane, group: str, encoder: SendEncoder) -> None:
        self.queue = queue
        self.lane = lane
        self.group = group
        self.encoder = encoder

    @property
    def open(self) -> bool:
        """Whether the broker has a connection."""
        return self.lane.open

    def header(self, parcel: Outgoing, born_ms: int, *, batch: bool) -> SendHeader:
        """The header of a send, where the encoder cannot be used."""
        return SendHeader(
            self.group,
            self.queue.topic,
            AUTO_CREATE_TOPIC,
            QUEUES_WANTED,
            self.queue.id,
            parcel.sys_flag,
            born_ms,
            0,
            parcel.properties,
            batch=batch,
        )


class Sent(msgspec.Struct, gc=False):
    """A message, or a batch, on its way. Waits for the answer.

    Args:
        place: the queue that it is sent to.
        message: what the user gave us; of a batch the first.
        sink: who waits for the outcome.
        deadline: until when, by the loop's clock in seconds.
        parcel: what is sent.
        unique_id: the id that we made; of a batch all, joined by commas.
        born_ms: when it was posted, ms since 1970.
        tries: how many more there may be.
        code: of the request.
        began: when this try began, by the loop's clock.
        answer: the broker's, when it has one.
    """

    place: Place
    message: Message
    sink: Sink
    deadline: float
    parcel: Outgoing
    unique_id: str
    born_ms: int
    tries: int = 0
    code: int = SINGLE
    began: float = 0.0
    answer: Command | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes of the window."""
        return len(self.parcel.body)

    @property
    def server(self) -> str:
        """The broker's address."""
        return self.place.lane.server

    @property
    def traced(self) -> bool:
        """Whether the broker wants message trace."""
        return self.answer is not None and self.answer.fields.get("TRACE_ON") != "false"

    def answered(self, answer: Command) -> None:
        """The broker answered."""
        self.place.lane.answered(self, answer)

    def failed(self, error: CohererError) -> None:
        """There will be no answer."""
        self.place.lane.unanswered(self, error)

    def receipt(self) -> SendReceipt:
        """The receipt, when the broker has answered.

        Raises:
            ProtocolError: the answer lacks what it has to hold.
        """
        answer = self.answer
        assert answer is not None  # noqa: S101 - nobody asks before
        fields = answer.fields
        try:
            return SendReceipt(
                fields["msgId"],
                self.message.topic,
                self.place.queue.broker,
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
                "The answer to a send does not say where the message is.",
                server=self.place.lane.server,
            ) from error


class Owner(Protocol):
    """The producer, as its lanes see it."""

    def changed(self) -> None:
        """A connection was made, could not be made, or broke."""
        ...

    def again(self, sent: Sent) -> bool:
        """Post a message once more, avoiding its broker, if it may be."""
        ...

    def elsewhere(self, sent: Sent) -> bool:
        """Post a message that could not leave by another lane, if there is an open one."""
        ...

    def settled(self, size_bytes: int) -> None:
        """The outcome of a message is known."""
        ...


class Lane(BrokerSender[Link, Sent]):
    """The way to the master of one broker.

    Args:
        broker: its name.
        address: its address, `host:port`.
        instance: where the connection comes from.
        owner: is told what happens.
        faults: learns how the broker does; None when nobody wants to know.
        retry_codes: refusals after which a message is tried again.
        retry_lost: whether it is, too, when the connection broke before the answer came.
    """

    def __init__(
        self,
        broker: str,
        address: str,
        instance: Instance,
        owner: Owner,
        faults: Faults | None,
        retry_codes: Collection[int],
        *,
        retry_lost: bool = False,
    ) -> None:
        host, port = split(address)
        super().__init__(f"{host}:{port}")
        self.broker = broker
        self._address = address
        self._instance = instance
        self._owner = owner
        self._faults = faults
        self._retry_codes = retry_codes
        self._retry_lost = retry_lost
        self._signs = instance.options.user is not None

    def __repr__(self) -> str:
        return f"<Lane to {self.broker} at {self.server}>"

    def post(self, sent: Sent) -> None:
        """Send a message, now or as soon as there is a connection."""
        self._offer(sent)

    async def tell(self, place: Place, parcel: Outgoing, born_ms: int) -> None:
        """Send a message that nobody answers; returns when there is room for more.

        Raises:
            UnavailableError: there is no connection.
        """
        link = self._link if self._link is not None and self._link.open else await self._dial()
        if self._signs:
            link.tell(SINGLE, place.header(parcel, born_ms, batch=False).fields(), parcel.body)
        else:
            frame = place.encoder.encode(
                link.session.next_opaque(),
                place.queue.id,
                parcel.body,
                parcel.properties,
                born_ms=born_ms,
                sys_flag=parcel.sys_flag,
                oneway=True,
            )
            link.connection.write(frame)
        if link.connection.unsent_bytes > limits.OUTBOX_HIGH_BYTES:
            await link.connection.drain()

    def answered(self, sent: Sent, answer: Command) -> None:
        """The broker answered a send."""
        if self._faults is not None:
            self._judge(self._faults, sent, failed=answer.code not in STATUS)
        if answer.code in STATUS:
            sent.answer = answer
            try:
                sent.sink.stored(sent)
            except ProtocolError as error:
                sent.sink.lost(sent.message, error)
        elif answer.code in self._retry_codes and self._owner.again(sent):
            return
        else:
            queue = sent.place.queue
            refused = codes.refused(
                answer.code,
                answer.remark,
                server=self.server,
                topic=queue.topic,
                partition=queue.id,
            )
            sent.sink.lost(sent.message, refused)
        self._owner.settled(sent.size_bytes)

    def unanswered(self, sent: Sent, error: CohererError) -> None:
        """The connection broke, or time is up."""
        if self._faults is not None:
            self._judge(self._faults, sent, failed=True)
        lost = isinstance(error, DisconnectedError)
        if lost and self._retry_lost and self._owner.again(sent):
            return
        sure = not isinstance(error, DisconnectedError | RequestTimeoutError | ProtocolError)
        queue = sent.place.queue
        sent.sink.lost(
            sent.message,
            type(error)(
                error.text,
                server=self.server,
                topic=queue.topic,
                partition=queue.id,
                code=error.code,
                hint=error.hint if sure else STILL_UNSURE if self._retry_lost else UNSURE,
            ),
        )
        self._owner.settled(sent.size_bytes)

    # -- what the shared part asks for

    async def _dial(self) -> Link:
        return await self._instance.link(self._address, fast=True)

    def _send(self, link: Link, item: Sent) -> None:
        place, parcel = item.place, item.parcel
        if self._faults is not None:
            item.began = self._loop.time()
        code, batch = item.code, item.code == BATCH
        if self._signs:
            fields = place.header(parcel, item.born_ms, batch=batch).fields()
            link.send(code, fields, parcel.body, item)
            return
        opaque = link.session.next_opaque()
        frame = place.encoder.encode(
            opaque,
            place.queue.id,
            parcel.body,
            parcel.properties,
            born_ms=item.born_ms,
            sys_flag=parcel.sys_flag,
            code=code,
            batch=batch,
        )
        link.expect(opaque, item)
        link.connection.write(frame)

    def _deadline(self, item: Sent) -> float:
        return item.deadline

    def _elsewhere(self, item: Sent) -> bool:
        return self._owner.elsewhere(item)

    def _unsent(self, item: Sent) -> None:
        queue = item.place.queue
        item.sink.lost(
            item.message,
            ConnectError(
                "No connection to the broker; the message was not sent.",
                server=self.server,
                topic=queue.topic,
                partition=queue.id,
            ),
        )
        self._owner.settled(item.size_bytes)

    def _changed(self, *, reached: bool | None) -> None:
        if reached is False and self._faults is not None:
            self._faults.failed(self.broker, int(self._loop.time() * 1000))
        self._owner.changed()

    # -- inside

    def _judge(self, faults: Faults, sent: Sent, *, failed: bool) -> None:
        now = self._loop.time()
        if failed:
            faults.failed(self.broker, int(now * 1000))
        else:
            faults.took(self.broker, int((now - sent.began) * 1000), int(now * 1000))


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
