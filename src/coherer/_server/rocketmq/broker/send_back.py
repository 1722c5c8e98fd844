"""`CONSUMER_SEND_MSG_BACK` (36): a consumer asks for redelivery, or gives a message up.

See docs/protocol/rocketmq.md, sections 2.5 and 6.8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from coherer._common import machine
from coherer._record.ids import encode_offset_id
from coherer._record.layout import HOSTS_V6, Record, decode
from coherer._record.properties import (
    DELAY,
    RETRY_TOPIC,
    TAGS,
    TUBE_MARK,
    UNIQUE_KEY,
    WAIT,
    encode,
    index_keys,
    tag_code,
)
from coherer._record.properties import decode as decode_properties
from coherer._record.system_topics import DLQ_PREFIX, OP_HALF_TOPIC, RETRY_PREFIX
from coherer._rules.common.origins import WAITING_TOPICS, Origin, topic_of
from coherer._rules.common.topics import UNIT_SUB, WRITE
from coherer._rules.rocketmq.acl import SUB
from coherer._rules.rocketmq.delays import delayed
from coherer._rules.rocketmq.groups import Group
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._store import AppendResult, Draft
from coherer._wire.rocketmq.codes import FAQ, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import SendBackHeader, parse
from coherer.errors import CohererError, DamagedStoreError, UsageError

_ORIGIN: Final = "ORIGIN_MESSAGE_ID"
_ID: Final = re.compile("[0-9A-F]{32}|[0-9A-F]{56}")
"""Unique ids, and ids with an offset of the log, for IPv4 and IPv6."""
_UNREAD: Final = WAITING_TOPICS | {OP_HALF_TOPIC}
"""No consumer has received what is in these topics, for example half messages."""
_V3_4_9: Final = 121
"""Clients from this version on send the maximum number of retries."""
_FIRST_LEVEL: Final = 3
"""The first redelivery comes after 10 seconds, each further one a delay level later."""


class SendBackHandler:
    """Stores messages for redelivery or as dead letters."""

    def __init__(self, state: RocketState) -> None:
        self._state = state

    def send_back(self, channel: Channel, request: Command) -> None:
        """CONSUMER_SEND_MSG_BACK (36): store a copy for redelivery, or as a dead letter.

        Raises:
            Refusal: with the code and remark of the first check that fails.
        """
        state, options = self._state, self._state.options
        header = parse(SendBackHeader, request.fields)
        state.check_no_rival()
        group = state.group(header.group)
        if group is None:
            remark = f"subscription group not exist, {header.group} {FAQ}"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not options.perm & WRITE:
            remark = f"the broker[{options.host}] sending message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        if group.retry_queue_nums <= 0:
            channel.respond(request)  # dropped, as in Java
            return
        before = state.topics.version
        draft = self._draft(channel, request, header, group)
        if state.is_slave or state.core.write_failed:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")

        news = state.announced_since(before)

        def stored(outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
            if news is None and state.replicated_to is None:
                self._answer(channel, request, header, draft, outcome)
            else:
                channel.spawn(later(outcome, end_offset))

        async def later(outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
            if news is not None:
                await news
            if not isinstance(outcome, CohererError) and (
                (replicated := state.replicated(end_offset)) is not None
            ):
                await replicated  # or not: to send it back again would store it twice
            self._answer(channel, request, header, draft, outcome)

        # With `--flush sync` the answer waits for the disk, and that of a SYNC_MASTER for a slave,
        # although the copy says WAIT=false, as Java's does: the consumer then forgets the message.
        state.core.appender.submit([draft], stored, origin=Origin.ROCKETMQ_CLIENT)

    def _answer(
        self,
        channel: Channel,
        request: Command,
        header: SendBackHeader,
        draft: Draft,
        outcome: Sequence[AppendResult] | CohererError,
    ) -> None:
        if isinstance(outcome, CohererError):
            channel.respond(request, ResponseCode.SYSTEM_ERROR, _status(outcome))
        else:
            channel.respond(request)
            topic = decode_properties(draft.properties)[RETRY_TOPIC]
            is_dead = draft.topic.startswith(DLQ_PREFIX)
            self._state.counters.sent_back(header.group, topic, is_dead=is_dead)
        channel.connection.flush()

    def _draft(
        self, channel: Channel, request: Command, header: SendBackHeader, group: Group
    ) -> Draft:
        state = self._state
        record = self._record(header.offset)
        if record.topic in _UNREAD or _is_another(record, header.origin_msg_id or ""):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"another message is at offset {header.offset} now"
            )
        topic_read = topic_of(record)
        if topic_read != RETRY_PREFIX + header.group:
            state.forbid(channel, request, topic_read, SUB)
        topic = state.topics.ensure_topic(
            RETRY_PREFIX + header.group,
            group.retry_queue_nums,
            state.now_ms(),
            sys_flag=UNIT_SUB if header.unit_mode else 0,
        )
        if not topic.perm & WRITE:
            remark = f"the topic[{topic.name}] sending message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        tries = group.retry_max_times
        if request.version >= _V3_4_9 and header.max_reconsume_times is not None:
            tries = header.max_reconsume_times
        if record.reconsume_times >= tries or header.delay_level < 0:
            name, queue_id, level = f"{DLQ_PREFIX}{header.group}", 0, 0
            state.topics.ensure_topic(name, 1, state.now_ms())
        else:
            name, level = topic.name, header.delay_level or _FIRST_LEVEL + record.reconsume_times
            queue_id = machine.random.randrange(group.retry_queue_nums)
        try:
            draft = _copy(record, name, queue_id, level)
            if level <= 0:
                return draft
            return delayed(draft, level, state.store.options.delay_levels_ms)
        except UsageError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "MESSAGE_ILLEGAL") from error

    def _record(self, offset: int) -> Record:
        view = self._state.store.record_at(offset)
        try:
            if view is not None:
                return decode(view)
        except DamagedStoreError:
            pass
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")


def _is_another(record: Record, message_id: str) -> bool:
    """Whether a record certainly has another id than the message that a client sends back.

    After a power cut an offset of the log can mean another message. The client then sends a copy.
    """
    unique = decode_properties(record.properties).get(UNIQUE_KEY)
    return (
        _ID.fullmatch(message_id) is not None  # not every client sends an id
        and message_id not in (unique, encode_offset_id(record.store_host, record.physical_offset))
    )


def _copy(record: Record, topic: str, queue_id: int, level: int) -> Draft:
    properties = decode_properties(record.properties)
    properties.pop(TUBE_MARK, None)
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties[WAIT] = "false"
    properties.setdefault(_ORIGIN, encode_offset_id(record.store_host, record.physical_offset))
    properties[DELAY] = str(level)
    return Draft(
        topic,
        queue_id,
        bytes(record.body),
        encode(properties),
        tag_code(properties.get(TAGS)),
        record.flag,
        record.sys_flag & ~HOSTS_V6,
        record.born_ms,
        record.born_host,
        record.reconsume_times + 1,
        0,
        index_keys(properties),
    )


def _status(error: CohererError) -> str:
    return "MESSAGE_ILLEGAL" if isinstance(error, UsageError) else "UNKNOWN_ERROR"
