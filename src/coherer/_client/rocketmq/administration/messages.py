"""Administration of messages (docs/protocol/rocketmq.md, section 8.17).

They are found by id and by key, through the index of the brokers.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from coherer._client.engine.arguments import checked
from coherer._client.rocketmq.administration.records import (
    DirectResult,
    QueueLock,
    direct_result_of,
    owner_of,
)
from coherer._client.rocketmq.administration.servers import Part
from coherer._client.rocketmq.routing import MASTER
from coherer._common import machine
from coherer._common.moments import floor_ms
from coherer._record import compression
from coherer._record import properties as text
from coherer._record.ids import decode_offset_id
from coherer._wire.rocketmq.bodies import ConsumeDirectlyResult, LockBatch
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.delivery import decode_messages
from coherer._wire.rocketmq.headers import (
    LOCK_FIELD,
    ConsumeDirectlyHeader,
    MessageIdHeader,
    QueryMessageHeader,
    SendHeader,
    SendResult,
    ViewMessageHeader,
)
from coherer._wire.rocketmq.headers.base import parse
from coherer._wire.rocketmq.messages import SendReceipt, StoredMessage
from coherer._wire.rocketmq.names import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP, Queue
from coherer.errors import CohererError, ProtocolError, RefusedError, UsageError

FOREVER_MS: Final = 2**63 - 1
UNIQUE_COUNT: Final = 32

INDEX_TIME_MS: Final = 1_000
"""The index of Java's brokers has a time that is up to a second before that of the message."""

STORED_CODES: Final[Mapping[int, str]] = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}
"""The codes of a broker that has stored a message, with the status in the receipt."""


@checked
class MessageAdmin(Part):
    """The messages of a cluster: `admin.messages`."""

    _INSTEAD = "messages.find"

    async def get(self, message_id: str) -> StoredMessage:
        """A message by its offset message id: the `id` of receipts and received messages.

        Raises:
            UsageError: the id is invalid.
            RefusedError: the broker no longer has it.
            UnavailableError: the broker in the id cannot be reached.
        """
        parts = decode_offset_id(message_id)
        await self._instance.start()
        fields = ViewMessageHeader(parts.physical_offset).fields()
        answer = await self._servers.ask(parts.server, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        found = decode_messages(answer.body)
        if not found:
            raise ProtocolError("The answer contains no message.", server=parts.server)
        return found[0]

    async def find(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
        every_broker: bool = False,
    ) -> builtins.list[StoredMessage]:
        """Messages by one of their keys, in the order they were stored.

        Args:
            topic: the topic.
            key: one of `keys`.
            begin: only messages stored at this time or later.
            end: only messages stored at this time or earlier.
            limit: the maximum number per broker; brokers return at most 64.
            every_broker: raise an error if the master of one of the topic's brokers does not
                answer, so that no message is overlooked.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not answer, and the others have no such message.
        """
        begin_ms = 0 if begin is None else floor_ms(begin)
        end_ms = FOREVER_MS if end is None else floor_ms(end)
        header = QueryMessageHeader(
            topic=topic,
            key=key,
            max_num=limit,
            begin_ms=max(begin_ms - INDEX_TIME_MS, 0),
            end_ms=end_ms,
        )
        found = await self._query(header, every_broker=every_broker)
        return [one for one in found if key in one.keys and begin_ms <= one.stored_ms <= end_ms]

    async def by_unique_id(self, topic: str, unique_id: str) -> StoredMessage | None:
        """A message by the id that its sender generated; the first of several copies.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not answer, and the others have no such message.
        """
        found = await self.all_by_unique_id(topic, unique_id)
        return found[0] if found else None

    async def all_by_unique_id(
        self, topic: str, unique_id: str, *, every_broker: bool = False, broker: str = ""
    ) -> builtins.list[StoredMessage]:
        """All messages with an id that their sender generated, in the order they were stored.

        Brokers find messages through their index. It contains a message some milliseconds after it
        was stored (`index_delay_bytes`), unless the index is off (`messageIndexEnable`).

        Args:
            topic: the topic.
            unique_id: the id.
            every_broker: raise an error if the master of one of the topic's brokers does not
                answer, so that no message is overlooked.
            broker: with `every_broker`, a broker that is asked although the topic's route may not
                have it.

        Raises:
            RefusedError: the topic does not exist.
            UnavailableError: a broker does not answer, and the others have no such message.
        """
        header = QueryMessageHeader(
            topic=topic,
            key=unique_id,
            max_num=UNIQUE_COUNT,
            begin_ms=0,
            end_ms=FOREVER_MS,
            unique_key_query="true",
        )
        found = await self._query(header, every_broker=every_broker, also=broker)
        return [one for one in found if one.unique_id == unique_id]

    async def store(
        self,
        queue: Queue,
        body: bytes,
        properties: Mapping[str, str],
        *,
        born_ms: int,
        flag: int = 0,
        lock: QueueLock | None = None,
    ) -> SendReceipt:
        """Store a message with properties that a producer would set itself, such as a unique id.

        Args:
            queue: the queue.
            body: the body; it is compressed if it is large.
            properties: all properties, by the names under which they are stored.
            born_ms: when the message was sent, ms since 1970.
            flag: the application's flag.
            lock: a lock of this client at the same broker. Coherer's broker stores the message only
                while the client holds it, however late the request arrives; Java's ignores it.

        Raises:
            UsageError: the properties are too large.
            RefusedError: the broker refuses the message.
            UnavailableError: the broker does not answer; the message may be stored or not.
        """
        await self._instance.start()
        large = len(body) >= compression.THRESHOLD_BYTES
        header = SendHeader(
            producer_group=INNER_PRODUCER_GROUP,
            topic=queue.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=queue.id,
            sys_flag=compression.COMPRESSED if large else 0,
            born_ms=born_ms,
            flag=flag,
            properties=text.encode(properties).decode(),
        )
        content = compression.compress(body) if large else body
        answer = await self._servers.ask_broker(
            queue.broker,
            RequestCode.SEND_MESSAGE_V2,
            {**header.fields(), **self._lock_field(lock)},
            content,
            accepted=STORED_CODES,
        )
        result = parse(SendResult, answer.fields)
        return SendReceipt(
            id=result.msg_id or "",
            topic=queue.topic,
            broker=queue.broker,
            partition=queue.id if result.queue_id is None else result.queue_id,
            offset=-1 if result.queue_offset is None else result.queue_offset,
            time_ms=machine.wall_ns() // 1_000_000,
            unique_id=properties.get(text.UNIQUE_KEY, ""),
            status=STORED_CODES[answer.code],
        )

    def _lock_field(self, lock: QueueLock | None) -> dict[str, str]:
        if lock is None:
            return {}
        owner = owner_of(self._instance.client_id, lock.holder)
        held = LockBatch(consumer_group=lock.group, client_id=owner, queues=[lock.queue])
        return {LOCK_FIELD: held.encode().decode()}

    async def consume_directly(
        self, group: str, message: StoredMessage, *, client_id: str = ""
    ) -> DirectResult:
        """Have a running consumer process one message now, whatever its offsets are.

        Args:
            group: the group of the consumer.
            message: as returned by `get`.
            client_id: the client id of the consumer; any member if empty.

        Raises:
            RefusedError: the member does not exist, or did not answer in time.
        """
        server = decode_offset_id(message.id).server
        await self._instance.start()
        fields = ConsumeDirectlyHeader(group, client_id or None, message.id).fields()
        answer = await self._servers.ask(server, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
        return direct_result_of(ConsumeDirectlyResult.decode(answer.body))

    async def check_transaction_again(self, message: StoredMessage) -> None:
        """Have a broker check a transaction again that it has given up on.

        Args:
            message: a message of the topic `TRANS_CHECK_MAX_TIME_TOPIC`.
        """
        server = decode_offset_id(message.id).server
        await self._instance.start()
        fields = MessageIdHeader(message.id).fields()
        await self._servers.ask(server, RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)

    async def _query(
        self, header: QueryMessageHeader, *, every_broker: bool = False, also: str = ""
    ) -> builtins.list[StoredMessage]:
        """Messages by a key. Without `every_broker` it is enough that one broker has some."""
        if not header.key.strip():
            raise UsageError("A key must not be blank.", topic=header.topic)
        await self._instance.start()
        if every_broker:
            asked = await self._masters(header.topic, also)
        else:
            route = await self._instance.routes.route(header.topic, fresh=True)
            asked = {
                name: brokers.get(MASTER) or next(iter(brokers.values()))
                for name, brokers in route.brokers.items()
            }
        found: list[StoredMessage] = []
        error: CohererError | None = None

        async def ask(broker: str, address: str) -> None:
            nonlocal error
            try:
                answer = await self._servers.ask(
                    address, RequestCode.QUERY_MESSAGE, header.fields()
                )
                found.extend(decode_messages(answer.body, broker))
            except RefusedError as refusal:
                if refusal.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
            except CohererError as failure:
                error = failure

        await asyncio.gather(*(ask(name, address) for name, address in asked.items()))
        if error is not None and (every_broker or not found):
            raise error
        mine = [message for message in found if message.topic == header.topic]
        return sorted(mine, key=_stored)

    async def _masters(self, topic: str, also: str) -> dict[str, str]:
        """The addresses of the masters of a topic's brokers, and of another broker if it is named.

        A slave may not have the newest messages.

        Raises:
            UnavailableError: one of them is not registered.
        """
        routes = self._instance.routes
        route = routes.known(topic) or await routes.look_up(topic)
        known = {name: brokers.get(MASTER) for name, brokers in route.brokers.items()}
        if also:
            known.setdefault(also, routes.masters.get(also))
        found = {name: address for name, address in known.items() if address is not None}
        if missing := known.keys() - found.keys():
            found |= await self._servers.masters(missing)
        return found


def _stored(message: StoredMessage) -> tuple[int, int]:
    """The sort key for the order of storing: the time in ms, then the log offset."""
    return message.stored_ms, message.physical_offset
