"""What brokers ask consumers, and our answers (2.13, 4).

| code | asked | answer |
|---|---|---|
| 40 | the members of a group have changed | none; every consumer has its queues shared out |
| 220 | read on from other offsets | none |
| 221 | how far are you in a topic? | offsets by queue |
| 307 | what are you doing? | settings, subscriptions, queues |
| 309 | deal with this message | what became of it |

A message of 309 is received like any other, as a batch of its own; confirming it is success, and
`retry` or an error of a handler is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

from coherer._client.rocketmq.claimed import ClaimedBatch, Later, Watch
from coherer._client.rocketmq.consumer_options import ConsumerOptions
from coherer._client.rocketmq.figures import Figures
from coherer._client.rocketmq.held import Held
from coherer._client.rocketmq.instance import Instance
from coherer._client.rocketmq.link import Link
from coherer._client.rocketmq.process_queue import MIB
from coherer._common.clock import now_ms
from coherer._record import layout
from coherer._wire.rocketmq.bodies import (
    ConsumeDirectlyResult,
    ConsumerStatus,
    ProcessQueueInfo,
    ResetOffset,
    RunningInfo,
    SubscriptionData,
)
from coherer._wire.rocketmq.codes import RequestCode, ResponseCode
from coherer._wire.rocketmq.command import Command
from coherer._wire.rocketmq.names import Queue

DIRECTLY_MS: Final = 9_000
"""How long a message of 309 may take: the broker waits for 10 s."""

DEFAULT_REMARK: Final = "not set any response code"
"""What Java's answers carry where nobody wrote a remark (1.4)."""


class Running(NamedTuple):
    """What a consumer says of itself.

    Args:
        options: its options.
        consume_type: as in heartbeats.
        name_servers: host and port of each.
        began_ms: when it started, ms since 1970.
        subscriptions: what it receives.
        held: its queues.
        figures: how it fares, by topic.
    """

    options: ConsumerOptions
    consume_type: str
    name_servers: list[tuple[str, int]]
    began_ms: int
    subscriptions: list[SubscriptionData]
    held: list[Held]
    figures: Mapping[str, Figures]


@runtime_checkable
class Asked(Protocol):
    """A consumer that can be asked."""

    make: Callable[..., ClaimedBatch]

    def rebalance_soon(self) -> None:
        """The members of a group have changed."""
        ...

    async def reset(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Read on from other offsets."""
        ...

    def status(self, topic: str) -> dict[Queue, int]:
        """How far it is in a topic."""
        ...

    def running(self) -> Running:
        """What it is doing."""
        ...

    def insert(self, batch: ClaimedBatch) -> None:
        """Deal with a batch that comes from no queue."""
        ...

    def withdraw(self, batch: ClaimedBatch) -> None:
        """Undo `insert`, if it has not been received."""
        ...


def install(instance: Instance) -> None:
    """Have an instance's consumers asked. Doing so again changes nothing."""
    desk = _Desk(instance)
    instance.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, desk.changed)
    instance.on(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, desk.reset)
    instance.on(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, desk.status)
    instance.on(RequestCode.GET_CONSUMER_RUNNING_INFO, desk.running)
    instance.on(RequestCode.CONSUME_MESSAGE_DIRECTLY, desk.directly)


class _Desk:
    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def changed(self, link: Link, request: Command) -> None:
        """40."""
        del link, request  # all groups are looked at, as Java does: the word may be late
        for consumer in self._instance.consumers:
            if isinstance(consumer, Asked):
                consumer.rebalance_soon()

    async def reset(self, link: Link, request: Command) -> None:
        """220."""
        del link
        consumer = self._find(request.fields.get("group"))
        if consumer is not None:
            offsets = ResetOffset.read(request.body).offset_table
            await consumer.reset(request.fields.get("topic", ""), offsets)

    def status(self, link: Link, request: Command) -> None:
        """221."""
        consumer = self._find(request.fields.get("group"))
        table = consumer.status(request.fields.get("topic", "")) if consumer is not None else {}
        body = ConsumerStatus(message_queue_table=table).encode()
        link.respond(request, ResponseCode.SUCCESS, DEFAULT_REMARK, body=body)

    def running(self, link: Link, request: Command) -> None:
        """307."""
        consumer = self._find(request.fields.get("consumerGroup"))
        if consumer is None:
            self._missing(link, request)
            return
        stacks = _stacks() if request.fields.get("jstackEnable", "").lower() == "true" else None
        link.respond(request, body=running_info(consumer.running(), stacks).encode())

    async def directly(self, link: Link, request: Command) -> None:
        """309."""
        consumer = self._find(request.fields.get("consumerGroup"))
        if consumer is None:
            self._missing(link, request)
            return
        body = bytes(request.body)
        record = layout.peek(body)
        spans = layout.spans(body, 0)
        topic = str(body[spans.topic_begin : spans.topic_end], "utf-8", "replace")
        queue = Queue(topic, request.fields.get("brokerName", ""), record.queue_id)
        batch = consumer.make(body, queue, next_offset=record.queue_offset + 1)
        batch.claim = claim = DirectClaim()
        began_ms = now_ms()
        if len(batch):
            await self._dealt_with(consumer, batch, claim)
        else:
            claim.outcome = "CR_THROW_EXCEPTION", "The message is damaged."
        outcome, remark = claim.outcome
        result = ConsumeDirectlyResult(
            order=consumer.running().options.orderly,
            consume_result=outcome,
            remark=remark,
            spent_time_mills=now_ms() - began_ms,
        )
        link.respond(request, body=result.encode())

    @staticmethod
    async def _dealt_with(consumer: Asked, batch: ClaimedBatch, claim: DirectClaim) -> None:
        """Have a message of 309 dealt with, if that does not take too long."""
        consumer.insert(batch)
        try:
            async with asyncio.timeout(DIRECTLY_MS / 1000):
                await claim.done.wait()
        except TimeoutError:
            consumer.withdraw(batch)
            claim.outcome = "CR_THROW_EXCEPTION", "The consumer has not dealt with it in time."

    def _find(self, group: str | None) -> Asked | None:
        return _asked(self._instance.consumer(group or ""))

    @staticmethod
    def _missing(link: Link, request: Command) -> None:
        group = request.fields.get("consumerGroup", "")
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        link.respond(request, ResponseCode.SYSTEM_ERROR, remark)


def _asked(consumer: object) -> Asked | None:
    return consumer if isinstance(consumer, Asked) else None


class DirectClaim:
    """A message that a broker wants dealt with now (309). A `received.Claim`.

    Attributes:
        done: set when it is.
        over, seen, watch: see `received.Claim`.
        outcome: Java's word for what became of it, and why.
    """

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.watch: Watch | None = None
        self.over = False
        self.seen = 0
        self.outcome: tuple[str, str | None] = ("CR_SUCCESS", None)

    def acknowledge(self, number: int) -> None:
        """See `received.Claim`."""
        del number
        self.finish()

    def finish(self) -> None:
        """See `received.Claim`."""
        self.over = True
        self.done.set()

    def put_back(self) -> None:
        """See `received.Claim`."""
        if self.seen:
            self.finish()
        self._failed("The loop over the messages ended.")

    async def retry(self, number: int, later: Later) -> None:
        """See `received.Claim`."""
        del number, later
        self._failed(None)

    async def reject(self) -> None:
        """See `received.Claim`."""
        self._failed(None)

    def _failed(self, why: str | None) -> None:
        if not self.over:
            self.outcome = "CR_LATER", why
            self.finish()


def running_info(running: Running, stacks: str | None = None) -> RunningInfo:
    """The answer to 307."""
    options = running.options
    settings = {
        "consumeMessageBatchMaxSize": options.batch_messages,
        "consumeTimeout": options.consume_ms // 60_000,
        "maxReconsumeTimes": options.max_attempts,
        "messageModel": "BROADCASTING" if options.model == "broadcast" else "CLUSTERING",
        "pullBatchSize": options.pull_messages,
        "pullThresholdForQueue": options.queue_messages,
        "pullThresholdSizeForQueue": options.queue_bytes // MIB,
        "suspendCurrentQueueTimeMillis": options.suspend_ms,
        "PROP_CLIENT_VERSION": "V4_9_3",
        "PROP_CONSUME_TYPE": running.consume_type,
        "PROP_CONSUMEORDERLY": "true" if options.orderly else "false",
        "PROP_CONSUMER_START_TIMESTAMP": running.began_ms,
        "PROP_NAMESERVER_ADDR": "".join(f"{host}:{port};" for host, port in running.name_servers),
        "PROP_THREADPOOL_CORE_SIZE": 1,
    }
    return RunningInfo(
        properties={name: str(value) for name, value in settings.items()},
        subscription_set=running.subscriptions,
        mq_table={held.queue: _queue_info(held) for held in running.held},
        status_table={
            one.topic: running.figures.get(one.topic, _NONE).status(now_ms())
            for one in running.subscriptions
        },
        jstack=stacks,
    )


_NONE: Final = Figures()


def _queue_info(held: Held) -> ProcessQueueInfo:
    process = held.process
    some = process.messages > 0
    return ProcessQueueInfo(
        commit_offset=process.commit_offset,
        cached_msg_min_offset=process.commit_offset if some else 0,
        cached_msg_max_offset=process.next_offset - 1 if some else 0,
        cached_msg_count=process.messages,
        cached_msg_size_in_mib=process.size_bytes // MIB,
        locked=held.locked,
        last_lock_timestamp=held.locked_ms,
        droped=process.dropped,
        last_pull_timestamp=process.pulled_ms,
        last_consume_timestamp=process.taken_ms,
    )


def _stacks() -> str:
    """What every task of this loop is doing."""
    import io

    text = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(file=text)
    return text.getvalue()
