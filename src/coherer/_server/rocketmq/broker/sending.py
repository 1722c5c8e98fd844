"""Sends: `SEND_MESSAGE` (10), `SEND_MESSAGE_V2` (310), `SEND_BATCH_MESSAGE` (320) and half batches.

See docs/protocol/rocketmq.md, section 2.4, and for half batches section 6.7.1.

All sends of one socket read become drafts and one batch for the appender. A topic that has passed
the checks of section 2.4.2 is cached until topics, groups or options change. Plain sends to a
cached topic (no batch, transaction, delay or retry) skip the checks. All other sends go through
every check in Java's order.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from coherer import limits
from coherer._common import machine
from coherer._record.batches import decode_batch
from coherer._record.layout import FIXED_BYTES, HOSTS_V6, ROLLED_BACK
from coherer._record.properties import WAIT, decode
from coherer._record.system_topics import HALF_TOPIC, RETRY_PREFIX
from coherer._rules.common.origins import RESERVED_TOPICS, Origin, OriginError
from coherer._rules.common.topics import UNIT, UNIT_SUB, WRITE, Topic
from coherer._rules.rocketmq.delays import delay_level, delayed
from coherer._rules.rocketmq.groups import Group
from coherer._rules.rocketmq.timers import any_timed, is_timed
from coherer._rules.rocketmq.transactions import half, is_transactional, with_count
from coherer._server.core.disk import FAILED
from coherer._server.options.rocketmq import RocketOptions
from coherer._server.rocketmq.broker.send_properties import PropertyRewriter, StoredProperties
from coherer._server.rocketmq.broker.state import RocketState
from coherer._server.rocketmq.broker.timers import TimerService
from coherer._server.rocketmq.remoting import Channel, Refusal
from coherer._store import AppendResult, Draft, DraftBatch
from coherer._wire.rocketmq.bodies import LockBatch
from coherer._wire.rocketmq.codes import FAQ, RequestCode, ResponseCode
from coherer._wire.rocketmq.command import ONEWAY, Command
from coherer._wire.rocketmq.headers import LOCK_FIELD, SendHeader, read_send
from coherer._wire.rocketmq.names import dlq_topic, topic_fault
from coherer._wire.rocketmq.sending import SendResponseEncoder
from coherer.errors import CohererError, RefusedError, StoreError, StoreFullError, UsageError

_HOSTS_V4_BYTES, _HOSTS_V6_BYTES = 16, 40
_AROUND_BYTES_MAX = FIXED_BYTES + _HOSTS_V6_BYTES + limits.TOPIC_BYTES_MAX
"""The maximum size of a record without body and properties. A send that stays this far below the
size limit needs no exact check."""
_V3_4_9 = 121
"""Clients from this version on send the maximum number of retries."""
_MULTI_TAG = 2
_PLAIN_FLAGS = frozenset(("0", "1"))
_V2 = int(RequestCode.SEND_MESSAGE_V2)

SEND_CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_HALF_BATCH,
)


class _CheckedTopic:
    """A topic that has passed the checks of a send."""

    __slots__ = ("queues", "sys_flag", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic.name
        self.queues = max(topic.write_queues, topic.read_queues)
        self.sys_flag = _MULTI_TAG if topic.filter_type == "MULTI_TAG" else 0


class SendHandler:
    """Handles the sends of all connections.

    Args:
        timers: stores timed messages; a new service if None.
    """

    def __init__(self, state: RocketState, timers: TimerService | None = None) -> None:
        self._state = state
        self._timers = timers or TimerService(state.core)
        self._checked_topics: dict[str, _CheckedTopic] = {}
        self._version = -1
        self._accepting = self._draining = False
        self._record_bytes_max = self._bytes_max = 0
        self._texts: PropertyRewriter
        self.replies: SendReplies
        self._refresh()

    def batch(self, channel: Channel, requests: Sequence[Command]) -> None:
        """Handle the sends of one socket read."""
        if self._version != self._state.version:
            self._refresh()
        now_ms = self._state.now_ms()
        safe, quick = SendBatch(self._state, self.replies, channel), None
        for request in requests:
            try:
                draft, wait = self._read_quickly(channel, request)
                if draft is None:
                    self._read(channel, request, now_ms, safe)
                elif wait:
                    safe.add(request, draft.queue_id, draft)
                else:
                    quick = quick or SendBatch(self._state, self.replies, channel, wait=False)
                    quick.add(request, draft.queue_id, draft)
            except Refusal as refusal:
                channel.respond(request, refusal.code, refusal.remark, self.replies.fields)
            except (
                CohererError
            ) as error:  # Java throws here, so the region is missing (section 1.4)
                channel.respond(request, error.code or ResponseCode.SYSTEM_ERROR, error.text)
            except Exception as error:  # noqa: BLE001 - the other sends must be handled
                channel.fail(request, error)
        for answers in (safe, quick):
            if answers is not None:
                answers.submit()

    def _refresh(self) -> None:
        state, options = self._state, self._state.options
        self._version = state.version
        self._checked_topics.clear()
        self._texts = PropertyRewriter(options.cluster)
        self.replies = SendReplies(options)
        self._record_bytes_max = min(options.message_bytes_max, state.store.record_bytes_max)
        self._bytes_max = self._record_bytes_max - _AROUND_BYTES_MAX
        self._accepting = not state.is_slave and not state.core.write_failed
        self._draining = state.core.draining

    # -- plain sends

    def _read_quickly(self, channel: Channel, request: Command) -> tuple[Draft | None, bool]:
        """The draft of a plain send, or None, and whether it waits until it is durable."""
        fields = request.fields
        checked = self._checked_topics.get(fields.get("b", ""))
        if checked is None or request.code != _V2:
            return None, False
        text = fields.get("i", "")
        try:
            queue_id, born_ms = int(fields["e"]), int(fields["g"])
            flag, sys_flag = int(fields["h"]), fields["f"]
            usual = (
                0 <= queue_id < checked.queues
                and -0x8000_0000 <= flag <= 0x7FFF_FFFF
                and 0 <= born_ms < 1 << 63
                and sys_flag in _PLAIN_FLAGS
                and fields.get("m", "false") == "false"
                and fields.get("j", "0") == "0"
                and "a" in fields
                and "c" in fields
                and "d" in fields
                and LOCK_FIELD not in fields
                and len(request.body) + len(text) <= self._bytes_max
            )
        except (KeyError, ValueError):
            return None, False
        if not usual:
            return None, False
        data, code, keys, wait, plain = self._texts.stored(text)
        if not plain or len(data) > limits.PROPERTIES_BYTES_MAX:
            return None, False
        if len(keys) > limits.KEYS_PER_MESSAGE_MAX:
            return None, False
        body = request.body
        return Draft(
            checked.topic,
            queue_id,
            body if type(body) is bytes else bytes(body),
            data,
            code,
            flag,
            int(sys_flag) | checked.sys_flag,
            born_ms,
            channel.host_port,
            0,
            0,
            keys,
        ), wait

    # -- all sends

    def _read(self, channel: Channel, request: Command, now_ms: int, answers: SendBatch) -> None:
        apart = SendBatch(self._state, self.replies, channel)
        header, before = _header(request), self._state.core.files.changes
        topic = self.check(channel, header, now_ms)
        self._check_lock(request, now_ms)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = machine.random.randrange(topic.write_queues)
        draft: Draft | DraftBatch
        if request.code == RequestCode.SEND_HALF_BATCH:
            draft = self._half_batch(channel, request, header, topic, queue_id, now_ms)
        elif header.batch:
            draft = self._batch(channel, request, header, topic, queue_id)
        else:
            draft = self._single(channel, request, header, topic, queue_id, now_ms)
        wait = self._texts.stored(header.properties or "").wait
        unsaved = self._state.core.files.changes != before
        if wait and not unsaved:
            answers.add(request, queue_id, draft)
            return
        apart.hold(wait=wait, unsaved=unsaved)
        apart.add(request, queue_id, draft)
        apart.submit()

    def check(self, channel: Channel, header: SendHeader, now_ms: int) -> Topic:
        """Return the topic of a send; creates it where that is allowed.

        Raises:
            Refusal: there is no such topic, or it does not accept the message (section 2.4.2, steps
            1 to 6).
        """
        state, options = self._state, self._state.options
        if self._version != state.version:
            self._refresh()
        if options.accept_sends_from_ms and self._state.wall_ms() < options.accept_sends_from_ms:
            until = datetime.fromtimestamp(options.accept_sends_from_ms / 1000)  # noqa: DTZ006 - Java's
            text = f"{until:%Y-%m-%d %H:%M:%S},{options.accept_sends_from_ms % 1000:03}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {text}")
        state.check_no_rival()
        # Consumers may still send messages back to be retried.
        if self._draining and not header.topic.startswith(RETRY_PREFIX):
            state.core.send_refused_ms = now_ms
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, _DRAINING)
        known = state.topics.get(header.topic)
        if not options.perm & WRITE and known is not None and known.order:
            remark = f"the broker[{options.host}] sending message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, remark)
        fault = topic_fault(header.topic)
        if fault is not None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, fault)
        if header.topic in RESERVED_TOPICS:
            raise Refusal(ResponseCode.NO_PERMISSION, reserved_remark(header.topic))
        topic = known or self._create(header, now_ms)
        # A negative one lets the broker choose, if there is one to choose.
        lowest = -sys.maxsize if topic.write_queues else 0
        if not lowest <= header.queue_id < max(topic.write_queues, topic.read_queues):
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, {topic.text()} "
                f"Producer: {channel.peer}",
            )
        if not self._accepting:
            why = _SLAVE if state.is_slave else FAILED
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {why}")
        if not topic.name.startswith(RETRY_PREFIX):
            self._checked_topics[topic.name] = _CheckedTopic(topic)
        return topic

    def _check_lock(self, request: Command, now_ms: int) -> None:
        """Refuse a message whose sender has lost a lock that it had when it sent it.

        Raises:
            Refusal: it has lost the lock.
            ProtocolError: the field is invalid.
        """
        if (text := request.fields.get(LOCK_FIELD)) is None:
            return
        wanted = LockBatch.decode(text.encode("utf-8", "replace"))
        for queue in wanted.queues:
            owner = self._state.locks.owner(wanted.consumer_group, queue, now_ms)
            if owner != wanted.client_id:
                place = f"queue {queue.id} of {queue.topic}"
                remark = f"{wanted.client_id} does not hold the lock of {place} any more"
                raise Refusal(ResponseCode.SYSTEM_ERROR, remark)

    def _create(self, header: SendHeader, now_ms: int) -> Topic:
        state = self._state
        retry = header.topic.startswith(RETRY_PREFIX)
        if retry:
            # Java makes the topic of a group that does not exist, and then refuses the message.
            if len(state.topics) >= limits.TOPICS_MAX:
                self._group_of(header.topic)
        elif not state.may_create_topic():
            remark = (
                f"topic[{header.topic}] not exist, and this broker has {limits.TOPICS_MAX} topics "
                "already: an administrator can create it"
            )
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        sys_flag = (UNIT_SUB if retry else UNIT) if header.unit_mode else 0
        topic = state.topics.create_for_send(
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            sys_flag,
            now_ms,
            auto_create=state.options.auto_create_topics,
        )
        if topic is None and retry:
            topic = state.topics.ensure_topic(header.topic, 1, now_ms, sys_flag=sys_flag)
        if topic is None:
            remark = f"topic[{header.topic}] not exist, apply first please!{FAQ}"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, remark)
        return topic

    def _single(
        self,
        channel: Channel,
        request: Command,
        header: SendHeader,
        topic: Topic,
        queue_id: int,
        now_ms: int,
    ) -> Draft:
        name, text = topic.name, header.properties or ""
        if self._is_dead(request, header):
            name = dlq_topic(name.removeprefix(RETRY_PREFIX))
            name = self._state.topics.ensure_topic(name, 1, now_ms).name
            queue_id, text = 0, _without_delay(text)
        stored = self._texts.stored(text)
        if len(stored.keys) > limits.KEYS_PER_MESSAGE_MAX:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _MANY_KEYS)
        body = bytes(request.body)
        self._check_size(channel, name, len(body), len(text), stored)
        if topic.filter_type == "MULTI_TAG":
            header.sys_flag |= _MULTI_TAG
        draft = _draft(channel, header, name, queue_id, body, stored, header.flag)
        if is_transactional(stored.data):
            if self._state.options.reject_transactions:
                host = self._state.options.host
                remark = f"the broker[{host}] sending transaction message is forbidden"
                raise Refusal(ResponseCode.NO_PERMISSION, remark)
            self._timers.check(draft)
            return half(_with_wait(draft, text))
        return self._scheduled(draft, text)

    def _half_batch(
        self,
        channel: Channel,
        request: Command,
        header: SendHeader,
        topic: Topic,
        queue_id: int,
        now_ms: int,
    ) -> Draft:
        """The half message of a batch, whose messages pass the checks of a batch now."""
        if any_timed([(header.properties or "").encode("utf-8", "replace")]):
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _TIMED_BATCH)
        alone = msgspec.structs.replace(header, properties="")
        messages = self._batch(channel, request, alone, topic, queue_id)
        made = self._single(channel, request, header, topic, queue_id, now_ms)
        if made.topic != HALF_TOPIC:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _NO_HALF)
        return with_count(made, len(messages))

    def _scheduled(self, draft: Draft, text: str) -> Draft:
        # Half messages that a client built itself are stored unchanged (section 6.2).
        if draft.sys_flag & ROLLED_BACK in (0, 8):
            level = delay_level(draft.properties)
            if level > 0:
                return delayed(
                    _with_wait(draft, text), level, self._state.store.options.delay_levels_ms
                )
            if is_timed(draft.properties):
                return self._timers.schedule(_with_wait(draft, text))
        return draft

    def _is_dead(self, request: Command, header: SendHeader) -> bool:
        """Whether a message sent to a retry topic has used up its retries."""
        if not header.topic.startswith(RETRY_PREFIX):
            return False
        tries = self._group_of(header.topic).retry_max_times
        if request.version >= _V3_4_9 and header.max_reconsume_times is not None:
            tries = header.max_reconsume_times
        return header.reconsume_times >= tries

    def _group_of(self, topic: str) -> Group:
        """The group of a retry topic.

        Raises:
            Refusal: it does not exist.
        """
        name = topic.removeprefix(RETRY_PREFIX)
        group = self._state.group(name)
        if group is None:
            remark = f"subscription group not exist, {name} {FAQ}"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return group

    def _batch(
        self, channel: Channel, request: Command, header: SendHeader, topic: Topic, queue_id: int
    ) -> DraftBatch:
        own = header.properties or ""
        if header.sys_flag & ROLLED_BACK or delay_level(own.encode("utf-8", "replace")) > 0:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL)
        if len(request.body) > self._bytes_max:
            raise UsageError(
                f"message size exceeded: {len(request.body)} bytes, {self._bytes_max} at most"
            )
        # Items keep all their properties; those of the batch are appended (section 5.9).
        flags, bodies, texts = decode_batch(request.body)
        if not bodies:
            raise UsageError("This batch contains no messages.")
        if any_timed([own.encode("utf-8", "replace"), *texts]):
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _TIMED_BATCH)
        data, codes, keys = self._texts.items(own).stored(texts)
        if max(map(len, data)) > limits.PROPERTIES_BYTES_MAX:
            raise UsageError("message properties length too long")
        if max(map(len, keys)) > limits.KEYS_PER_MESSAGE_MAX:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _MANY_KEYS)
        if len(bodies) + sum(map(len, keys)) > limits.BATCH_ENTRIES_MAX:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _MANY_MESSAGES)
        sys_flag = header.sys_flag & ~HOSTS_V6
        if topic.filter_type == "MULTI_TAG":
            sys_flag |= _MULTI_TAG
        return DraftBatch(
            topic.name,
            queue_id,
            bodies,
            data,
            codes,
            flags,
            keys,
            sys_flag,
            header.born_ms,
            channel.host_port,
            header.reconsume_times,
        )

    def _check_size(
        self,
        channel: Channel,
        topic: str,
        body_bytes: int,
        text_chars: int,
        stored: StoredProperties,
    ) -> None:
        text_bytes = len(stored.data)
        hosts_bytes = len(channel.host_port) + len(self._state.store.store_host)
        around_bytes = FIXED_BYTES - _HOSTS_V4_BYTES + hosts_bytes + len(topic.encode())
        if (
            text_chars > limits.PROPERTIES_BYTES_MAX
            or text_bytes > limits.PROPERTIES_BYTES_MAX
            or around_bytes + body_bytes + text_bytes > self._record_bytes_max
        ):
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL)


_ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 128k, msg properties length limit 32k."
)  # Java uses these words even if other limits are configured
_TIMED_BATCH = "the message is illegal, a message of a batch cannot be timed: send it by itself"
_MANY_KEYS = f"the message is illegal, it has more than {limits.KEYS_PER_MESSAGE_MAX} keys"
_MANY_MESSAGES = (
    f"the message is illegal, the messages and keys of a batch are more than "
    f"{limits.BATCH_ENTRIES_MAX}: send them in several batches"
)
_NO_HALF = "the message is illegal, a half batch needs the property TRAN_MSG=true"
_SLAVE = "this broker follows a master"
_DRAINING = "service not available now: this broker is about to stop; send to another one"


def _header(request: Command) -> SendHeader:
    fields = request.fields
    if request.language == "CPP" and fields.get("batch") == "1":
        # Java's broker reads this as false, and stores the whole batch as one message.
        fields = {**fields, "batch": "true"}
    try:
        return read_send(request.code, fields)
    except RefusedError as error:
        if error.text == topic_fault(""):  # one of Java's checks: the response has the region
            raise Refusal(ResponseCode.SYSTEM_ERROR, error.text) from error
        raise


def _draft(
    channel: Channel,
    header: SendHeader,
    topic: str,
    queue_id: int,
    body: bytes,
    stored: StoredProperties,
    flag: int,
) -> Draft:
    return Draft(
        topic,
        queue_id,
        body,
        stored.data,
        stored.tag_code,
        flag,
        header.sys_flag & ~HOSTS_V6,
        header.born_ms,
        channel.host_port,
        header.reconsume_times,
        0,
        stored.keys,
    )


def _with_wait(draft: Draft, text: str) -> Draft:
    """Add the WAIT property, which Java keeps only in messages that it rewrites."""
    wait = decode(text.encode("utf-8", "replace")).get(WAIT)
    if wait is None:
        return draft
    properties = draft.properties + f"\x02{WAIT}\x01{wait}".encode()
    return msgspec.structs.replace(draft, properties=properties)


def _without_delay(text: str) -> str:
    return "\x02".join(pair for pair in text.split("\x02") if not pair.startswith("DELAY\x01"))


OK = 0


class SendReplies:
    """Encodes the responses to sends.

    Attributes:
        fields: the header of a refusal.
        encode: encodes a response.
        encode_success: returns the pieces of a successful response to a single message.

    >>> SendReplies(RocketOptions()).id_text([4096, 4200])
    '7F00000100002A9F0000000000001000,7F00000100002A9F0000000000001068'
    """

    __slots__ = ("_host", "encode", "encode_success", "fields")

    def __init__(self, options: RocketOptions) -> None:
        self.fields = {
            "MSG_REGION": options.region,
            "TRACE_ON": "true" if options.trace_on else "false",
        }
        answers = SendResponseEncoder(
            options.region, trace_on=options.trace_on, store_host=options.store_host
        )
        self.encode = answers.encode
        self.encode_success = answers.encode_success
        self._host = options.store_host.hex().upper()

    def id_text(self, physical_offsets: Sequence[int]) -> str:
        """The offset ids of records as text."""
        offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets)
        return self._host + offsets.hex(",", 8).upper().replace(",", f",{self._host}")


class SendBatch:
    """Collects sends, stores them together, and answers each.

    If one of them created a topic, the responses wait for the name servers.

    Args:
        wait: whether the responses wait until the messages are durable and replicated, where the
            broker guarantees that (sections 6.11, 6.12).
        unsaved: whether the responses wait for files, because the sends created topics.
    """

    __slots__ = (
        "_before",
        "_channel",
        "_drafts",
        "_news",
        "_replies",
        "_sends",
        "_state",
        "_unsaved",
        "_wait",
    )

    def __init__(
        self,
        state: RocketState,
        replies: SendReplies,
        channel: Channel,
        *,
        wait: bool = True,
        unsaved: bool = False,
    ) -> None:
        self._state = state
        self._replies = replies
        self._channel = channel
        self._wait = wait
        self._before = state.topics.version
        self._news: Awaitable[None] | None = None
        self._unsaved = unsaved
        self._drafts: list[Draft | DraftBatch] = []
        self._sends: list[tuple[Command, int]] = []

    def add(self, request: Command, queue_id: int, draft: Draft | DraftBatch) -> None:
        """Add a send.

        Args:
            queue_id: the queue named in the response.
        """
        self._drafts.append(draft)
        self._sends.append((request, queue_id))

    def hold(self, *, wait: bool, unsaved: bool) -> None:
        """Set the conditions for the responses; see the arguments of the class."""
        self._wait, self._unsaved = wait, unsaved

    def submit(self) -> None:
        """Store the collected messages."""
        if self._drafts:
            self._news = self._state.announced_since(self._before)
            self._state.core.appender.submit(
                self._drafts,
                self._stored,
                origin=Origin.ROCKETMQ_CLIENT,
                wait_durable=False,
            )

    def _stored(self, outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
        if not isinstance(outcome, CohererError):  # also if the producer leaves before its answer
            self._state.counters.received(self._drafts, outcome)
        self._respond(outcome, end_offset)

    def _respond(self, outcome: Sequence[AppendResult] | CohererError, end_offset: int) -> None:
        news, self._news = self._news, None
        if news is not None:
            self._channel.spawn(self._announced(news, outcome, end_offset))
        elif isinstance(outcome, CohererError):
            code, remark = refusal_of(outcome)
            for request, _ in self._sends:
                self._channel.respond(request, code, remark, self._replies.fields)
        elif self._unsaved or (
            self._wait and (self._state.core.sync_flush or self._state.replicated_to is not None)
        ):
            self._channel.spawn(self._safe(outcome, end_offset))
        else:
            self._answer(outcome, OK)

    async def _announced(
        self,
        news: Awaitable[None],
        outcome: Sequence[AppendResult] | CohererError,
        end_offset: int,
    ) -> None:
        await news
        self._respond(outcome, end_offset)

    async def _safe(self, appended: Sequence[AppendResult], end_offset: int) -> None:
        code = await self._state.safe(end_offset) if self._wait else OK
        if self._unsaved:
            with suppress(StoreError):  # the messages are stored; the file is retried later
                await self._state.core.files.flush()
        self._answer(appended, code)

    def _answer(self, appended: Sequence[AppendResult], code: int) -> None:
        replies, encode_success = self._replies, self._replies.encode_success
        frames: list[bytes] = []
        for (request, queue_id), one in zip(self._sends, appended, strict=True):
            if request.flag & ONEWAY:
                continue
            offset, queue_offset = one.physical_offset, one.queue_offset
            if one.count == 1 and not code:
                frames += encode_success(request.opaque, offset, queue_id, queue_offset)
            else:
                ids = replies.id_text(one.physical_offsets or [offset])
                frames.append(
                    replies.encode(request.opaque, ids, queue_id, queue_offset, code=code)
                )
        connection = self._channel.connection
        connection.write(b"".join(frames))
        connection.flush()


def reserved_remark(topic: str | None) -> str:
    """The remark that refuses a message for a system topic, in Java's words."""
    return f"Sending message to topic[{topic}] is forbidden."


def refusal_of(error: CohererError) -> tuple[int, str]:
    """The response code and remark for messages that could not be stored (section 2.4.3)."""
    if isinstance(error, OriginError):
        return ResponseCode.NO_PERMISSION, reserved_remark(error.topic)
    if isinstance(error, UsageError):
        return ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error.text}"
    if isinstance(error, StoreFullError):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error.text}"
    return ResponseCode.SYSTEM_ERROR, f"UNKNOWN_ERROR: {error.text}"
