"""Looking messages up, and what becomes of single ones (rocketmq 8.17)."""

from __future__ import annotations

import asyncio
from datetime import datetime
from ipaddress import ip_address
from typing import Final

from coherer._client.rocketmq.admin_asking import Asking, to_ms
from coherer._client.rocketmq.routing import MASTER
from coherer._record.ids import decode_offset_id
from coherer._wire.rocketmq.bodies import ConsumeDirectlyResult
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.delivery import decode_messages
from coherer._wire.rocketmq.headers import (
    ConsumeDirectlyHeader,
    MessageIdHeader,
    QueryMessageHeader,
    ViewMessageHeader,
)
from coherer._wire.rocketmq.messages import StoredMessage
from coherer.errors import CohererError, ProtocolError, RefusedError, UsageError

FOREVER_MS: Final = 2**63 - 1
UNIQUE_COUNT: Final = 32


class Messages(Asking):
    """The part of administration about messages."""

    async def message(self, message_id: str) -> StoredMessage:
        """A message by its offset message id: the `id` of receipts and received messages.

        Raises:
            UsageError: that is no id.
            RefusedError: the broker has it no more.
            UnavailableError: the broker in the id cannot be reached.
        """
        place = decode_offset_id(message_id)
        await self._instance.start()
        host = str(ip_address(place.address))
        address = f"[{host}]:{place.port}" if ":" in host else f"{host}:{place.port}"
        fields = ViewMessageHeader(place.physical_offset).fields()
        answer = await self._ask(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
        found = decode_messages(answer.body)
        if not found:
            raise ProtocolError("The broker sent no message.", server=address)
        return found[0]

    async def messages(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
    ) -> list[StoredMessage]:
        """Messages by one of their keys, in the order of storing.

        Args:
            topic: their topic.
            key: one of `keys`.
            begin: stored at this time or later.
            end: stored at this time or before.
            limit: so many of each broker; 64 is what brokers give at most.

        Raises:
            RefusedError: the topic does not exist.
        """
        begin_ms = 0 if begin is None else to_ms(begin)
        end_ms = FOREVER_MS if end is None else to_ms(end)
        header = QueryMessageHeader(
            topic=topic, key=key, max_num=limit, begin_ms=begin_ms, end_ms=end_ms
        )
        found = await self._query(header)
        return [message for message in found if key in message.keys]

    async def message_by_unique_id(self, topic: str, unique_id: str) -> StoredMessage | None:
        """A message by the id that its sender made; of several copies the one stored first.

        Raises:
            RefusedError: the topic does not exist.
        """
        header = QueryMessageHeader(
            topic=topic,
            key=unique_id,
            max_num=UNIQUE_COUNT,
            begin_ms=0,
            end_ms=FOREVER_MS,
            unique_key_query="true",
        )
        found = [one for one in await self._query(header) if one.unique_id == unique_id]
        return min(found, key=_stored, default=None)

    async def consume_directly(
        self, group: str, message: StoredMessage, *, client_id: str = ""
    ) -> ConsumeDirectlyResult:
        """Have a consumer that runs deal with one message now, whatever its offsets.

        Args:
            group: its group.
            message: as `message` gives it.
            client_id: which member; the broker chooses when empty.

        Raises:
            RefusedError: nobody of that name is there, or it did not answer in time.
        """
        place = decode_offset_id(message.id)
        await self._instance.start()
        address = f"{ip_address(place.address)}:{place.port}"
        fields = ConsumeDirectlyHeader(group, client_id or None, message.id).fields()
        answer = await self._ask(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
        return ConsumeDirectlyResult.decode(answer.body)

    async def check_transaction_again(self, message: StoredMessage) -> None:
        """Have a transaction asked about again that the broker has given up.

        Args:
            message: of the topic `TRANS_CHECK_MAX_TIME_TOPIC`.
        """
        place = decode_offset_id(message.id)
        await self._instance.start()
        fields = MessageIdHeader(message.id).fields()
        address = f"{ip_address(place.address)}:{place.port}"
        await self._ask(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)

    async def _query(self, header: QueryMessageHeader) -> list[StoredMessage]:
        if not header.key.strip():
            raise UsageError("A key is not blank.", topic=header.topic)
        await self._instance.start()
        route = await self._instance.routes.route(header.topic, fresh=True)
        found: list[StoredMessage] = []
        error: CohererError | None = None
        answered = False

        async def ask(broker: str, address: str) -> None:
            nonlocal answered, error
            try:
                answer = await self._ask(address, RequestCode.QUERY_MESSAGE, header.fields())
                found.extend(decode_messages(answer.body, broker))
                answered = True
            except RefusedError as refusal:
                if refusal.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
                answered = True
            except CohererError as failure:
                error = failure

        await asyncio.gather(
            *(
                ask(broker, brokers.get(MASTER) or next(iter(brokers.values())))
                for broker, brokers in route.brokers.items()
            )
        )
        if error is not None and not answered:
            raise error
        mine = [message for message in found if message.topic == header.topic]
        return sorted(mine, key=_stored)


def _stored(message: StoredMessage) -> tuple[int, int]:
    """The order of storing: many messages share a millisecond, and of one broker also its log."""
    return message.stored_ms, message.physical_offset
