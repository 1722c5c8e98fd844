"""`SEND_REPLY_MESSAGE` (324) and `SEND_REPLY_MESSAGE_V2` (325): replies to request messages.

See docs/protocol/rocketmq.md, section 2.14.

A reply names the client that sent the request in a property. The broker pushes the reply to that
client over the client's own connection (code 326), and stores it in the cluster's reply topic. The
sender of the reply learns whether the push succeeded; the reply is stored in either case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from coherer._common import machine
from coherer._common.logs import Log
from coherer._record.layout import HOSTS_V6
from coherer._record.properties import TAGS, decode, encode, index_keys, tag_code
from coherer._record.system_topics import REPLY_TOPIC_SUFFIX
from coherer._rules.common.origins import Origin
from coherer._rules.rocketmq.acl import PUB
from coherer._server.rocketmq.broker.client_calls import CALL_MS
from coherer._server.rocketmq.broker.sending import SendHandler
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._store import AppendResult, Draft
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.headers import PushReplyHeader, SendHeader, SendResult, read_send
from coherer.errors import CohererError, RefusedError

_log = Log(logging.getLogger(__name__))

REPLY_TO: Final = "REPLY_TO_CLIENT"
PUSHED: Final = "PUSH_REPLY_TIME"


class ReplyHandler:
    """Pushes and stores replies.

    Args:
        call_ms: how long the requesting client may take.
    """

    def __init__(self, state: RocketState, sends: SendHandler, *, call_ms: int = CALL_MS) -> None:
        self._state = state
        self._sends = sends
        self._call_ms = call_ms

    async def reply(self, channel: Channel, request: Command) -> Command:
        """SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325): push a reply, and store it.

        Raises:
            Refusal: the topic does not accept it.
        """
        common = self._sends.replies.fields
        try:
            header = read_send(request.code, request.fields)
            # Java's clients send replies to this topic, without a permission for it.
            if header.topic != f"{self._state.options.cluster}{REPLY_TOPIC_SUFFIX}":
                self._state.forbid(channel, request, header.topic, PUB)
            topic = self._sends.check(channel, header, self._state.now_ms())
        except Refusal as refusal:
            raise Refusal(refusal.code, refusal.remark, common) from refusal
        except RefusedError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, error.text, common) from error
        if header.queue_id < 0:
            header.queue_id = machine.random.randrange(topic.write_queues)
        body = bytes(request.body)
        fault = await self._push(channel, header, body)
        result = SendResult(msg_id="0", queue_id=header.queue_id, queue_offset=0)
        if self._state.options.store_replies:
            appended = await self._store(channel, header, body)
            if appended is not None:
                message_id = self._sends.replies.id_text([appended.physical_offset])
                result = SendResult(
                    msg_id=message_id, queue_id=header.queue_id, queue_offset=appended.queue_offset
                )
        elif fault is not None:
            result = SendResult()
        code = ResponseCode.SUCCESS if fault is None else ResponseCode.SYSTEM_ERROR
        return Command(code, remark=fault, fields={**common, **result.fields()})

    async def _push(self, channel: Channel, header: SendHeader, body: bytes) -> str | None:
        """Push a reply to the requesting client. Returns the remark if that failed, else None."""
        properties = decode((header.properties or "").encode("utf-8", "replace"))
        client_id = properties.get(REPLY_TO)
        if client_id is None:
            return f"reply message properties[{REPLY_TO}] is null"
        asker = self._state.producers.find(client_id)
        if asker is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        properties[PUSHED] = str(self._state.wall_ms())
        fields = self._push_header(channel, header, properties).fields()
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        try:
            answer = await asker.call(code, fields, body, self._call_ms)
        except CohererError as error:
            _log.warning("%s did not accept a reply: %s", client_id, error, about=client_id)
            return f"push reply message to {client_id}fail."
        if answer.code != ResponseCode.SUCCESS:
            _log.warning("%s did not accept a reply: %s", client_id, answer.remark, about=client_id)
            return f"push reply message to {client_id}fail."
        return None

    def _push_header(
        self, channel: Channel, header: SendHeader, properties: dict[str, str]
    ) -> PushReplyHeader:
        return PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_ms=header.born_ms,
            flag=header.flag,
            born_host=f"/{channel.peer}",
            store_host=f"/{self._state.options.address}",
            properties=encode(properties).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            stored_ms=self._state.wall_ms(),
        )

    async def _store(
        self, channel: Channel, header: SendHeader, body: bytes
    ) -> AppendResult | None:
        text = (header.properties or "").encode("utf-8", "replace")
        properties = decode(text)
        draft = Draft(
            header.topic,
            header.queue_id,
            body,
            text,
            tag_code(properties.get(TAGS, "")),
            header.flag,
            header.sys_flag & ~HOSTS_V6,
            header.born_ms,
            channel.host_port,
            header.reconsume_times,
            0,
            index_keys(properties),
        )
        stored: asyncio.Future[AppendResult | None] = asyncio.get_running_loop().create_future()

        def done(outcome: Sequence[AppendResult] | CohererError, _: int) -> None:
            if isinstance(outcome, CohererError):
                _log.warning("A reply could not be stored: %s", outcome, about=type(outcome))
            if not stored.done():
                stored.set_result(None if isinstance(outcome, CohererError) else outcome[0])

        self._state.core.appender.submit([draft], done, origin=Origin.ROCKETMQ_CLIENT)
        return await stored
