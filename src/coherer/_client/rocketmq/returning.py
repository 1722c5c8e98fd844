"""Messages that are wanted again: retries and dead letters (8.13, 8.14, 6.8).

| consumer | a message that is wanted again |
|---|---|
| concurrent | goes back to its broker (36), which delivers it later or makes it a dead letter |
| | that fails: it is sent as a new message to the group's retry topic |
| | that fails too: this consumer delivers it again |
| in order | is delivered again by this consumer, until it was tried too often |
| broadcast | is lost, with a warning: other members have theirs |
"""

from __future__ import annotations

import logging
import time
from typing import Final

from coherer._client.rocketmq.claimed import DEAD, Later, delay_level
from coherer._client.rocketmq.consumer_options import ConsumerOptions
from coherer._client.rocketmq.door import SEND_BACK_TIMEOUT_MS, Door
from coherer._common.logs import Log
from coherer._record import properties as text
from coherer._wire.rocketmq.codes import RequestCode
from coherer._wire.rocketmq.headers import SendHeader
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import (
    AUTO_CREATE_TOPIC,
    INNER_PRODUCER_GROUP,
    retry_topic,
    with_namespace,
)
from coherer._wire.rocketmq.versions import V4_9_1
from coherer.errors import CohererError, UnavailableError

_log = Log(logging.getLogger(__name__))

ATTEMPTS_DEFAULT: Final = 16
"""What a group is set to unless an administrator says otherwise."""

RETRY_LEVEL_FIRST: Final = 3
"""The delay level of a first retry; one more each time."""


class Returner:
    """Has messages of one group delivered again.

    Args:
        door: the way to brokers.
        group: the group.
        options: the consumer's options.
    """

    def __init__(self, door: Door, group: str, options: ConsumerOptions) -> None:
        self._door = door
        self._group = group
        self._options = options

    async def send_back(self, message: StoredMessage, later: Later) -> bool:
        """Have a message delivered again.

        Returns:
            Whether it is out of our hands now; otherwise this consumer delivers it again.
        """
        level = delay_level(later)
        if self._options.model == "broadcast":
            _log.warning(
                "Message %s failed; in a broadcast it does not come again",
                message.id,
                about=message.topic,
            )
            return True
        if not self._options.orderly:
            return await self._back(message, level)
        if level == DEAD or 0 <= self._options.max_attempts <= message.attempt:
            return await self._resend(message, DEAD)
        return False

    async def _back(self, message: StoredMessage, level: int) -> bool:
        fields = {
            "offset": str(message.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.unique_id or message.id,
            "originTopic": self._topic(message),
            "unitMode": "false",
        }
        try:
            limit = await self._limit(message)
            if limit is not None:
                fields["maxReconsumeTimes"] = str(limit)
            await self._door.send_back(message.broker, self._topic(message), fields)
        except CohererError as error:
            _log.warning("Sending %s back: %s", message.id, error, about=message.topic)
            return await self._resend(message, level)
        return True

    async def _limit(self, message: StoredMessage) -> int | None:
        """How often the message may be delivered; None where the group's own setting counts."""
        if self._options.max_attempts >= 0:
            return self._options.max_attempts
        version = await self._door.version(message.broker, self._topic(message))
        return None if version >= V4_9_1 else ATTEMPTS_DEFAULT

    def _topic(self, message: StoredMessage) -> str:
        """The topic's name as brokers know it."""
        return with_namespace(self._door.instance.options.namespace, message.topic)

    async def _resend(self, message: StoredMessage, level: int) -> bool:
        """Send it as a new message to the retry topic."""
        limit = self._options.max_attempts if self._options.max_attempts >= 0 else ATTEMPTS_DEFAULT
        # The broker makes a dead letter of what was tried as often as the limit.
        attempt = limit if level == DEAD else message.attempt + 1
        properties = {
            **message.stored_properties,
            text.RETRY_TOPIC: self._topic(message),
            "ORIGIN_MESSAGE_ID": message.stored_properties.get("ORIGIN_MESSAGE_ID", message.id),
        }
        for name in ("TRAN_MSG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", text.DELAY):
            properties.pop(name, None)
        if level != DEAD:
            properties[text.DELAY] = str(level or RETRY_LEVEL_FIRST + message.attempt)
        topic = retry_topic(self._group)
        header = SendHeader(
            producer_group=INNER_PRODUCER_GROUP,
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=-1,
            sys_flag=0,
            born_ms=int(time.time() * 1000),
            flag=message.flag,
            properties=text.encode(properties).decode(),
            reconsume_times=attempt,
            max_reconsume_times=limit,
        )
        try:
            await self._send(topic, message, header)
        except CohererError as error:
            _log.warning("Sending %s to %s: %s", message.id, topic, error, about=topic)
            return False
        return True

    async def _send(self, topic: str, message: StoredMessage, header: SendHeader) -> None:
        error: CohererError | None = None
        route = await self._door.instance.route(topic, create=True)
        for broker in route.brokers:
            try:
                link = await self._door.master(broker)
                await link.ask(
                    RequestCode.SEND_MESSAGE_V2,
                    header.fields(),
                    message.body,
                    timeout_ms=SEND_BACK_TIMEOUT_MS,
                )
            except CohererError as failure:
                error = failure
            else:
                return
        raise error or UnavailableError("No broker takes messages.", topic=topic)
