"""Has messages delivered again (docs/protocol/rocketmq.md, sections 6.8, 8.13 and 8.14).

| consumer | a message that is retried |
|---|---|
| concurrent | goes back to its broker (36), which delivers it later or makes it a dead letter |
| with a reason | is sent to the group's retry topic with the reason as a property |
| | if that fails: goes back to its broker, without the reason |
| | if that fails: is sent as a new message to the group's retry topic |
| | if that fails too: is delivered again by this consumer |
| orderly | is delivered again by this consumer, until it has failed too often |
| broadcast | is dropped with a warning: other members have their own |
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from coherer._client.engine.assigned import RetryAfter
from coherer._client.engine.producer import WRITABLE_HINT
from coherer._client.rocketmq.consuming.broker_rpc import SEND_BACK_TIMEOUT_MS, BrokerRpc
from coherer._client.rocketmq.options import ConsumerOptions
from coherer._client.rocketmq.received import DEAD
from coherer._common.logs import Log
from coherer._record import properties as text
from coherer._record.system_topics import DELAY_LEVELS_MS
from coherer._wire.rocketmq.codes import V4_9_1, RequestCode
from coherer._wire.rocketmq.headers import SendHeader
from coherer._wire.rocketmq.messages import StoredMessage
from coherer._wire.rocketmq.names import (
    AUTO_CREATE_TOPIC,
    RETRY_REASON,
    retry_topic,
    with_namespace,
)
from coherer.errors import CohererError, UnavailableError, UsageError
from coherer.limits import RETRY_REASON_CHARS_MAX

_log = Log(logging.getLogger(__name__))

RETRIES_DEFAULT: Final = 16
"""A group's maximum number of redeliveries, unless an administrator sets it."""

RETRY_LEVEL_FIRST: Final = 3
"""The delay level of the first retry; each further retry has the next one."""

NOT_COPIED: Final = ("TRAN_MSG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES")
"""Properties that a copy in the retry topic must not have."""


def delay_level(later: RetryAfter) -> int:
    """The delay level of a retry: 0 lets the broker choose, -1 is a dead letter.

    Raises:
        UsageError: there is no such level.

    >>> delay_level(timedelta(minutes=1)), delay_level(None), delay_level(timedelta(days=1))
    (5, 0, 18)
    """
    if later is None:
        return 0
    if isinstance(later, timedelta):
        wanted_ms = later.total_seconds() * 1000
        levels = enumerate(DELAY_LEVELS_MS, 1)
        return next((level for level, ms in levels if ms >= wanted_ms), len(DELAY_LEVELS_MS))
    if not DEAD <= later <= 0x7FFFFFFF:
        raise UsageError(f"{later} is not a delay level.", hint="Levels are 1, 2, and so on.")
    return later


def reason_text(reason: str | None) -> str | None:
    r"""Convert a reason to the value of a property; None if it is empty.

    >>> reason_text(" no such\x02account\n"), reason_text(" ")
    ('no such account', None)
    """
    if reason is None:
        return None
    readable = "".join(char if char.isprintable() else " " for char in reason)
    return " ".join(readable.split())[:RETRY_REASON_CHARS_MAX].strip() or None


class Redelivery:
    """Has messages of one group delivered again; see the module."""

    def __init__(self, rpc: BrokerRpc, group: str, options: ConsumerOptions) -> None:
        self._rpc = rpc
        self._group = group
        self._options = options

    async def send_back(
        self, message: StoredMessage, later: RetryAfter, reason: str | None = None
    ) -> bool:
        """Have a message delivered again.

        Args:
            later: the delay.

        Returns:
            Whether the broker has it now; otherwise this consumer must deliver it again.
        """
        level = delay_level(later)
        if self._options.model == "broadcast":
            _log.warning(
                "Message %s failed; a broadcast consumer does not deliver it again",
                message.id,
                about=message.topic,
            )
            return True
        words = reason_text(reason)
        if not self._options.orderly:
            if words and await self._send_with_reason(message, level, words):
                return True
            return await self._send_back(message, level)
        if level == DEAD or 0 <= self._options.max_retries <= message.attempt:
            return await self._send_to_retry_topic(message, DEAD, words)
        return False

    async def _send_with_reason(self, message: StoredMessage, level: int, reason: str) -> bool:
        """Send a copy with the reason to the broker that has the message.

        Request 36 carries no properties, so this copies what a broker does with it (section 6.8):
        count, delay, origin, ids and born time are the same. Only the born host is this consumer's.
        """
        try:
            header = self._copy_header(message, level, await self._limit(message), reason)
            link = await self._rpc.master(message.broker, self._full_topic(message))
            await link.ask(
                RequestCode.SEND_MESSAGE_V2,
                header.fields(),
                message.body,
                timeout_ms=SEND_BACK_TIMEOUT_MS,
                broker=message.broker,
            )
        except CohererError as error:
            _log.warning(
                "Sending %s back with a reason failed: %s", message.id, error, about=message.topic
            )
            return False
        return True

    async def _limit(self, message: StoredMessage) -> int:
        """The maximum number of redeliveries, from the consumer or from the group's settings."""
        if self._options.max_retries >= 0:
            return self._options.max_retries
        if await self._rpc.version(message.broker, self._full_topic(message)) < V4_9_1:
            return RETRIES_DEFAULT
        return await self._rpc.max_retries(self._group, message.broker, self._full_topic(message))

    async def _send_back(self, message: StoredMessage, level: int) -> bool:
        fields = {
            "offset": str(message.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.unique_id or message.id,
            "originTopic": self._full_topic(message),
            "unitMode": "false",
        }
        try:
            limit = await self._max_retries(message)
            if limit is not None:
                fields["maxReconsumeTimes"] = str(limit)
            await self._rpc.send_back(message.broker, self._full_topic(message), fields)
        except CohererError as error:
            _log.warning("Sending %s back failed: %s", message.id, error, about=message.topic)
            return await self._send_to_retry_topic(message, level)
        return True

    async def _max_retries(self, message: StoredMessage) -> int | None:
        """The maximum number of redeliveries; None to use the group's setting."""
        if self._options.max_retries >= 0:
            return self._options.max_retries
        version = await self._rpc.version(message.broker, self._full_topic(message))
        return None if version >= V4_9_1 else RETRIES_DEFAULT

    def _full_topic(self, message: StoredMessage) -> str:
        """The topic with the namespace."""
        return with_namespace(self._rpc.instance.options.namespace, message.topic)

    async def _send_to_retry_topic(
        self, message: StoredMessage, level: int, reason: str | None = None
    ) -> bool:
        """Send a copy of the message to the retry topic."""
        topic = retry_topic(self._group)
        limit = self._options.max_retries if self._options.max_retries >= 0 else RETRIES_DEFAULT
        try:
            header = self._copy_header(message, level, limit, reason)
            await self._send(topic, message, header)
        except CohererError as error:
            _log.warning("Sending %s to %s failed: %s", message.id, topic, error, about=topic)
            return False
        return True

    def _copy_header(
        self, message: StoredMessage, level: int, limit: int, reason: str | None
    ) -> SendHeader:
        """Make the header of a copy for the retry topic or the dead-letter topic.

        Raises:
            UsageError: the properties are too large.
        """
        properties = {
            **message.stored_properties,
            text.RETRY_TOPIC: self._full_topic(message),
            "ORIGIN_MESSAGE_ID": message.stored_properties.get("ORIGIN_MESSAGE_ID", message.id),
        }
        for name in (*NOT_COPIED, text.DELAY, text.TUBE_MARK):
            properties.pop(name, None)
        properties[text.WAIT] = "true"  # a copy that a broker has made says false
        if reason:
            properties[RETRY_REASON] = reason
        attempt = message.attempt + 1
        # Request 36 compares before it counts. Here the broker has counted before.
        dead = level == DEAD or message.attempt >= limit
        if not dead:  # a broker would delay a dead letter, too
            properties[text.DELAY] = str(level or RETRY_LEVEL_FIRST + message.attempt)
        return SendHeader(
            # Java's brokers check the permission to consume of this group (PlainAccessResource).
            producer_group=self._group,
            topic=retry_topic(self._group),
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=-1,
            sys_flag=0,
            born_ms=message.born_ms,
            flag=message.flag,
            properties=text.encode(properties).decode(),
            reconsume_times=attempt,
            max_reconsume_times=attempt if dead else limit + 1,
        )

    async def _send(self, topic: str, message: StoredMessage, header: SendHeader) -> None:
        """Send to the first broker of the topic that accepts the message."""
        error: CohererError | None = None
        route = await self._rpc.instance.routes.route(topic, create=True)
        for broker in route.brokers:
            try:
                link = await self._rpc.master(broker)
                await link.ask(
                    RequestCode.SEND_MESSAGE_V2,
                    header.fields(),
                    message.body,
                    timeout_ms=SEND_BACK_TIMEOUT_MS,
                    broker=broker,
                )
            except CohererError as failure:
                error = failure
            else:
                return
        raise error or UnavailableError(
            "No broker accepts messages for a retry.", topic=topic, hint=WRITABLE_HINT
        )
