"""Requests from the broker to its clients, over the connections that the clients have opened.

See docs/protocol/rocketmq.md, sections 2.13 and 4. Checks of transactions (39) and resets of
offsets (220) are one-way. The others are sent on behalf of an operator, who gets the response: a
consumer's offsets (221), its running info (307), and the result of consuming one message (309).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Sequence
from typing import Final

from coherer._common.logs import Log
from coherer._record.ids import decode_offset_id, encode_offset_id
from coherer._record.layout import decode
from coherer._rules.common.origins import topic_of
from coherer._rules.rocketmq.acl import PUB, SUB
from coherer._rules.rocketmq.clients import ClientInfo
from coherer._rules.rocketmq.transactions import Question
from coherer._server.core.moved_groups import log_moved
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._wire.rocketmq import bodies
from coherer._wire.rocketmq.codes import (
    CPP,
    NOT_SET,
    V3_0_7_SNAPSHOT,
    V3_1_8_SNAPSHOT,
    RequestCode,
    ResponseCode,
    version_name,
)
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import (
    CheckTransactionHeader,
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    parse,
)
from coherer._wire.rocketmq.names import Queue
from coherer.errors import CohererError, RequestTimeoutError, UsageError

_log = Log(logging.getLogger(__name__))

CALL_MS: Final = 10_000
"""The timeout of 307, 309 and 326."""
STATUS_MS: Final = 5_000
"""The timeout of 221."""
LATE_MS: Final = 75_000
"""A consumer is silent after this time without a heartbeat; clients send one every 30 s."""
LATEST: Final = -1
"""The timestamp in 222 that means the end of a queue."""


class ClientCalls:
    """Sends requests to clients.

    Args:
        call_ms: the timeout of relayed requests.
        status_ms: the timeout of requests for offsets.
    """

    def __init__(
        self, state: RocketState, *, call_ms: int = CALL_MS, status_ms: int = STATUS_MS
    ) -> None:
        self._state = state
        self._call_ms = call_ms
        self._status_ms = status_ms
        self._unanswered_ms: dict[Channel, int] = {}  # since when consumers do not answer

    def silent(self) -> Iterator[list[tuple[str, ClientInfo[Channel], int]]]:
        """Find consumers that do not answer, or whose heartbeats are late; one list for each group.

        Each is a group's name, the member, and for how many ms it has been silent.
        """
        now_ms, asked = self._state.now_ms(), self._unanswered_ms
        for channel in [one for one in asked if one.closed]:
            del asked[channel]
        for group in list(self._state.consumers.groups()):
            yield [
                (group.name, one, now_ms - min(one.updated_ms, asked.get(one.channel, now_ms)))
                for one in group.members.values()
                if now_ms - one.updated_ms > LATE_MS or one.channel in asked
            ]

    async def _call(
        self, channel: Channel, code: int, fields: dict[str, str], body: bytes, timeout_ms: int
    ) -> Command:
        asked_ms = self._state.now_ms()
        try:
            answer = await channel.call(code, fields, body, timeout_ms)
        except RequestTimeoutError:
            self._unanswered_ms.setdefault(channel, asked_ms)
            raise
        self._unanswered_ms.pop(channel, None)
        return answer

    # -- transactions, section 4.1

    def check_transaction(self, question: Question) -> bool:
        """CHECK_TRANSACTION_STATE (39): ask a producer of the group.

        Returns:
            Whether a producer was asked. With accounts, it is one that may write to the topic:
            anyone may join a group of producers.
        """
        permits = self._state.permits
        channel = self._state.producers.available(
            question.group, _is_open, _takes_more, lambda one: permits(one, question.topic, PUB)
        )
        if channel is None:
            return False
        host = self._state.options.store_host
        header = CheckTransactionHeader(
            tran_state_table_offset=question.half_offset,
            commit_log_offset=question.physical_offset,
            msg_id=question.unique_key or None,
            transaction_id=question.unique_key or None,
            offset_msg_id=encode_offset_id(host, question.physical_offset),
        )
        channel.notify(RequestCode.CHECK_TRANSACTION_STATE, header.fields(), question.body)
        return True

    # -- resetting offsets, section 4.4

    def reset_offset(self, _: Channel, request: Command) -> Command:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): make the consumers of a group continue from a time.

        The broker's offsets do not change; the consumers commit the new ones.

        Raises:
            Refusal: the group has no offset in a queue, is offline, or has a member that is too
            old.
        """
        if request.language is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: language")
        header = parse(ResetOffsetHeader, request.fields)
        table = bodies.ResetOffset(offset_table=self._offsets_to_set(header))
        members = self._members(header.group)
        if not members:
            raise Refusal(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        # The force flag has been evaluated here and is not passed on.
        header.is_force = False
        fields = header.fields()
        body = table.encode_for_c() if request.language == CPP else table.encode()
        for member in members:
            _check_version(member)
            member.channel.notify(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        before = {queue.id: self._committed(header.group, queue) for queue in table.offset_table}
        after = {queue.id: offset for queue, offset in table.offset_table.items()}
        log_moved(header.group, header.topic, before, after)
        return Command(ResponseCode.SUCCESS, remark=NOT_SET, body=table.encode())

    def _committed(self, group: str, queue: Queue) -> int | None:
        position = self._state.offsets.find(group, queue.topic, queue.id)
        return None if position is None else position.offset

    def _offsets_to_set(self, header: ResetOffsetHeader) -> bodies.Offsets:
        state = self._state
        topic = state.topics.get(header.topic)
        if topic is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        offsets: bodies.Offsets = {}
        for number in range(topic.write_queues):
            position = state.offsets.find(header.group, topic.name, number)
            if position is None or position.offset < 0:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
                )
            target = self._offset_at(topic.name, number, header.timestamp)
            queue = Queue(topic.name, state.options.broker, number)
            offsets[queue] = target if header.is_force else min(target, position.offset)
        return offsets

    def _offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        store = self._state.store
        if time_ms == LATEST:
            return store.queue_range(topic, queue_id)[1]
        return max(0, store.offset_at_time(topic, queue_id, time_ms, nearest=True))

    # -- offsets of consumers, section 4.5

    async def consumer_status(self, _: Channel, request: Command) -> Command:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): ask consumers for their offsets.

        Raises:
            Refusal: the group is offline, or has a member that is too old.
        """
        header = parse(ConsumerStatusHeader, request.fields)
        members = self._members(header.group)
        if not members:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        asked: list[ClientInfo[Channel]] = []
        wanted = (header.client_addr or "").strip()
        for member in members:
            _check_version(member)
            if not wanted or wanted == member.client_id:
                asked.append(member)
            if wanted == member.client_id:
                break
        fields = ConsumerStatusHeader(topic=header.topic, group=header.group).fields()
        answers = await asyncio.gather(*(self._status(member, fields) for member in asked))
        table = {
            member.client_id: offsets
            for member, offsets in zip(asked, answers, strict=True)
            if offsets is not None
        }
        body = bodies.ConsumerStatus(consumer_table=table).encode()
        return Command(ResponseCode.SUCCESS, remark=NOT_SET, body=body)

    async def _status(
        self, member: ClientInfo[Channel], fields: dict[str, str]
    ) -> bodies.Offsets | None:
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            answer = await self._call(member.channel, code, fields, b"", self._status_ms)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                return bodies.ConsumerStatus.decode(answer.body).message_queue_table
            _log.warning(
                "%s did not report its offsets: %s",
                member.client_id,
                answer.remark,
                about=member.client_id,
            )
        except CohererError as error:
            _log.warning(
                "%s did not report its offsets: %s", member.client_id, error, about=member.client_id
            )
        return None

    # -- relayed requests, section 2.13

    def running_info(self, _: Channel, request: Command) -> Awaitable[Command]:
        """GET_CONSUMER_RUNNING_INFO (307): relayed to a consumer.

        Raises:
            Refusal: it is offline, too old, or does not respond.
        """
        header = parse(RunningInfoHeader, request.fields)
        return self._relay(request, header.consumer_group, header.client_id, bytes(request.body))

    def consume_directly(self, channel: Channel, request: Command) -> Awaitable[Command]:
        """CONSUME_MESSAGE_DIRECTLY (309): make a consumer consume one message now.

        Raises:
            Refusal: there is no such message, or sender or consumer may not read it, or the
            consumer is offline, too old, or does not respond.
        """
        header = parse(ConsumeDirectlyHeader, request.fields)
        request.fields = {**request.fields, "brokerName": self._state.options.broker}
        record = self._record(header.msg_id)
        topic = topic_of(decode(record, check_crc=False))
        self._state.forbid(channel, request, topic, SUB)
        return self._relay(request, header.consumer_group, header.client_id, record, topic)

    def _record(self, message_id: str | None) -> bytes:
        try:
            offset = decode_offset_id(message_id or "").physical_offset
        except UsageError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, error.text) from error
        record = self._state.store.record_at(offset)
        if record is None:
            remark = f"java.lang.NullPointerException: no message {message_id}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        return bytes(record)

    async def _relay(
        self,
        request: Command,
        group: str,
        client_id: str | None,
        body: bytes,
        topic: str | None = None,
    ) -> Command:
        member = self._state.consumers.find(group, client_id) if client_id else None
        if member is None:
            remark = f"The Consumer <{group}> <{_text(client_id)}> not online"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        if topic is not None and not self._state.permits(member.channel, topic, SUB):
            remark = f"The Consumer <{group}> <{client_id}> may not read topic {topic}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, remark)
        if member.version < V3_1_8_SNAPSHOT:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{version_name(member.version)}> too low to "
                "finish, please upgrade it to V3_1_8_SNAPSHOT",
            )
        try:
            return await self._call(
                member.channel, request.code, request.fields, body, self._call_ms
            )
        except RequestTimeoutError as error:
            raise Refusal(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                f"consumer <{group}> <{client_id}> Timeout: {error.text}",
            ) from error
        except CohererError as error:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{client_id}> Exception: {error.text}",
            ) from error

    # -- inside

    def _members(self, group: str) -> Sequence[ClientInfo[Channel]]:
        found = self._state.consumers.get(group)
        return () if found is None else tuple(found.members.values())


def _check_version(member: ClientInfo[Channel]) -> None:
    if member.version < V3_0_7_SNAPSHOT:
        name = version_name(member.version)
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"the client does not support this feature. version={name}"
        )


def _is_open(channel: Channel) -> bool:
    return not channel.closed


def _takes_more(channel: Channel) -> bool:
    return not channel.connection.overloaded


def _text(value: str | None) -> str:
    return "null" if value is None else value
