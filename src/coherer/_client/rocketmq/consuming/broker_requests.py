"""Brokers' requests to consumers (docs/protocol/rocketmq.md, sections 2.13, 4).

| code | request | answer |
|---|---|---|
| 40 | the members of a group have changed | none; every consumer rebalances |
| 220 | continue at other offsets | none |
| 221 | what are your offsets in a topic? | offsets by queue |
| 307 | what is your state? | settings, subscriptions, queues |
| 309 | consume this message | the result |

A message of 309 is received like any other, as a batch of its own. Acknowledging it is success;
`retry` and an exception of a handler are not.
"""

from __future__ import annotations

import asyncio
import io
from typing import Final

from coherer._client.engine.assigned import Delivery, PartitionState, RetryAfter
from coherer._client.rocketmq.consuming.assigned_queue import AssignedQueue, ConsumeStatistics
from coherer._client.rocketmq.consuming.membership import GroupMembership, Memberships
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import Link
from coherer._client.rocketmq.received import ReceivedBatch
from coherer._common.clock import now_ms
from coherer._record import layout
from coherer._wire.rocketmq.bodies import (
    ConsumeDirectlyResult,
    ConsumerStatus,
    ProcessQueueInfo,
    ResetOffset,
    RunningInfo,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue

MIB: Final = 1024 * 1024

DIRECTLY_MS: Final = 9_000
"""The timeout of a message that is consumed directly; the broker waits for 10 s."""

DEFAULT_REMARK: Final = "not set any response code"
"""The remark of Java's answers that set none (section 1.4)."""

_NO_STATISTICS: Final = ConsumeStatistics()


def install(instance: Instance, memberships: Memberships) -> None:
    """Register the handlers of requests to the consumers of a client."""
    handler = BrokerRequestHandler(memberships)
    instance.handle(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, handler.members_changed)
    instance.handle(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, handler.reset_offsets)
    instance.handle(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, handler.offsets)
    instance.handle(RequestCode.GET_CONSUMER_RUNNING_INFO, handler.running_info)
    instance.handle(RequestCode.CONSUME_MESSAGE_DIRECTLY, handler.consume_directly)


class BrokerRequestHandler:
    """Handles brokers' requests to the consumers of a client."""

    def __init__(self, memberships: Memberships) -> None:
        self._memberships = memberships

    def members_changed(self, link: Link, request: Command) -> None:
        """NOTIFY_CONSUMER_IDS_CHANGED: rebalance every group."""
        del link, request  # all groups rebalance, as in Java: the notification may be outdated
        for membership in self._memberships.values():
            membership.rebalance_soon()

    async def reset_offsets(self, link: Link, request: Command) -> None:
        """RESET_CONSUMER_CLIENT_OFFSET: continue at other offsets."""
        del link
        membership = self._memberships.get(request.fields.get("group", ""))
        if membership is not None:
            offsets = ResetOffset.read(request.body).offset_table
            await membership.reset(request.fields.get("topic", ""), offsets)

    def offsets(self, link: Link, request: Command) -> None:
        """GET_CONSUMER_STATUS_FROM_CLIENT: report the offsets in a topic."""
        membership = self._memberships.get(request.fields.get("group", ""))
        topic = request.fields.get("topic", "")
        table = membership.offsets(topic) if membership is not None else {}
        body = ConsumerStatus(message_queue_table=table).encode()
        link.respond(request, ResponseCode.SUCCESS, DEFAULT_REMARK, body=body)

    def running_info(self, link: Link, request: Command) -> None:
        """GET_CONSUMER_RUNNING_INFO: report settings, subscriptions and queues."""
        membership = self._find(link, request)
        if membership is not None:
            stacks = request.fields.get("jstackEnable", "").lower() == "true"
            body = running_info(membership, _stacks() if stacks else None).encode()
            link.respond(request, body=body)

    async def consume_directly(self, link: Link, request: Command) -> None:
        """CONSUME_MESSAGE_DIRECTLY: consume one message and report the result."""
        membership = self._find(link, request)
        if membership is None:
            return
        body = bytes(request.body)
        record = layout.peek(body)
        spans = layout.spans(body, 0)
        topic = str(body[spans.topic_begin : spans.topic_end], "utf-8", "replace")
        queue = Queue(topic, request.fields.get("brokerName", ""), record.queue_id)
        batch = membership.make_batch(body, queue, next_offset=record.queue_offset + 1)
        began_ms = now_ms()
        delivery = DirectDelivery(batch)
        if len(batch):
            await self._deliver(membership, batch, delivery)
        else:
            delivery.result = "CR_THROW_EXCEPTION", "The message is damaged."
        outcome, remark = delivery.result
        result = ConsumeDirectlyResult(
            order=membership.options.orderly,
            consume_result=outcome,
            remark=remark,
            spent_time_mills=now_ms() - began_ms,
        )
        link.respond(request, body=result.encode())

    @staticmethod
    async def _deliver(
        membership: GroupMembership, batch: ReceivedBatch, delivery: DirectDelivery
    ) -> None:
        """Deliver a message of 309, and wait for its result."""
        buffer = membership.manager.buffer
        buffer.insert(batch)
        try:
            async with asyncio.timeout(DIRECTLY_MS / 1000):
                await delivery.done.wait()
        except TimeoutError:
            buffer.withdraw(batch)
            delivery.result = "CR_THROW_EXCEPTION", "The consumer did not process it in time."

    def _find(self, link: Link, request: Command) -> GroupMembership | None:
        """The consumer of a request's group; without one, the answer is an error."""
        group = request.fields.get("consumerGroup")
        membership = self._memberships.get(group or "")
        if membership is None:
            remark = f"The Consumer Group <{group or ''}> not exist in this consumer"
            link.respond(request, ResponseCode.SYSTEM_ERROR, remark)
        return membership


class DirectDelivery:
    """The delivery of a message of 309. A `Fetcher` of the engine without a queue.

    Attributes:
        done: set at the end.
        result: Java's name of the result, and a remark.
        state: of the only batch.
        listed: see `Fetcher`.
    """

    def __init__(self, batch: ReceivedBatch) -> None:
        self.done = asyncio.Event()
        self.result: tuple[str, str | None] = ("CR_SUCCESS", None)
        self.listed = False
        self.state = PartitionState[ReceivedBatch](self, batch.offset)
        self.state.fetched(batch)
        self.state.take(now_ms())

    @property
    def can_take(self) -> bool:
        """See `Fetcher`."""
        return False

    def take(self) -> ReceivedBatch | None:
        """See `Fetcher`."""
        return None

    def fetch_more(self) -> None:
        """See `Fetcher`."""

    def ready(self) -> None:
        """See `Fetcher`."""
        self._fail("The loop over the messages ended.")

    def acknowledged(self) -> None:
        """See `Fetcher`."""
        if self.state.empty:
            self.done.set()

    def finished(self, delivery: Delivery[ReceivedBatch]) -> None:
        """See `Fetcher`."""

    async def retry(
        self, delivery: Delivery[ReceivedBatch], number: int | None, after: RetryAfter
    ) -> None:
        """See `Fetcher`."""
        del number, after
        delivery.rest()
        self._fail(None)

    def _fail(self, why: str | None) -> None:
        if not self.done.is_set():
            self.result = "CR_LATER", why
            self.done.set()


def running_info(membership: GroupMembership, stacks: str | None = None) -> RunningInfo:
    """The answer to GET_CONSUMER_RUNNING_INFO."""
    options = membership.options
    statistics = membership.statistics()
    name_servers = membership.instance.names.addresses
    subscriptions = membership.subscription_data()
    settings = {
        "consumeMessageBatchMaxSize": options.batch_messages,
        "consumeTimeout": options.consume_ms // 60_000,
        "maxReconsumeTimes": options.max_retries,
        "messageModel": "BROADCASTING" if options.model == "broadcast" else "CLUSTERING",
        "pullBatchSize": options.pull_messages,
        "pullThresholdForQueue": options.queue_messages,
        "pullThresholdSizeForQueue": options.queue_bytes // MIB,
        "suspendCurrentQueueTimeMillis": options.suspend_ms,
        "PROP_CLIENT_VERSION": "V4_9_3",
        "PROP_CONSUME_TYPE": membership.consume_type,
        "PROP_CONSUMEORDERLY": "true" if options.orderly else "false",
        "PROP_CONSUMER_START_TIMESTAMP": membership.began_ms,
        "PROP_NAMESERVER_ADDR": "".join(f"{host}:{port};" for host, port in name_servers),
        "PROP_THREADPOOL_CORE_SIZE": 1,
    }
    return RunningInfo(
        properties={name: str(value) for name, value in settings.items()},
        subscription_set=subscriptions,
        mq_table={assigned.queue: _queue_info(assigned) for assigned in membership.queues()},
        status_table={
            one.topic: statistics.get(one.topic, _NO_STATISTICS).status(now_ms())
            for one in subscriptions
        },
        jstack=stacks,
    )


def _queue_info(assigned: AssignedQueue) -> ProcessQueueInfo:
    state = assigned.state
    some = state.messages > 0
    return ProcessQueueInfo(
        commit_offset=state.commit_offset,
        cached_msg_min_offset=state.commit_offset if some else 0,
        cached_msg_max_offset=state.next_offset - 1 if some else 0,
        cached_msg_count=state.messages,
        cached_msg_size_in_mib=state.size_bytes // MIB,
        locked=assigned.locked,
        last_lock_timestamp=assigned.locked_ms,
        droped=False,
        last_pull_timestamp=state.fetched_ms,
        last_consume_timestamp=state.taken_ms,
    )


def _stacks() -> str:
    """The stacks of all tasks of the event loop."""
    text = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(file=text)
    return text.getvalue()
