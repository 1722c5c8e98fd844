"""RocketMQ as a broker of Taskiq.

```python
from coherer.integrations.taskiq import RocketMQBroker

broker = RocketMQBroker("rocketmq://127.0.0.1:9876")


@broker.task
async def add(one: int, other: int) -> int:
    return one + other
```

* A topic is a queue of tasks; the workers are members of a consumer group, and share its queues.
* A task is acknowledged when Taskiq says so, after its result is saved by default. When a worker
  dies, the others receive what it has not acknowledged. So a task may run twice, but none is lost.
* The label `delay`, in seconds, delays a task at the broker; no worker holds it. RocketMQ 4 has
  delay levels only: there a task waits in several steps, and starts up to a second late.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Unpack

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from coherer import rocketmq
from coherer._common.logs import Log
from coherer.errors import ClosedError, CohererError, RefusedError, UsageError
from coherer.integrations._delays import DELAY_MAX, TIMER_MAX, level_for
from coherer.message import Message

__all__ = ["RocketMQBroker"]

_log = Log(logging.getLogger(__name__))

CREATED_WITHIN_MS: Final = 10_000
"""How long to wait until a new topic can be used."""

PERSIST_MS: Final = 200
"""How often acknowledgements are reported, if there are any: a task that was finished, but not yet
reported, runs again when its queue gets another worker."""

_NAME: Final = "taskiq_task"
_DUE: Final = "taskiq_due"
_DUE_DIGITS_MAX: Final = 16  # enough for DELAY_MAX
_MS: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class RocketMQBroker(AsyncBroker):
    """Sends tasks to a topic of RocketMQ, or of a Coherer node, and receives them.

    Args:
        url: the name servers, `rocketmq://host:port;host:port`. None takes `COHERER_URL` from the
            environment, or else the name servers in `NAMESRV_ADDR`.
        topics: the topics that workers read. Tasks go to the first one, or to the one that their
            label `topic` names, which may also be one that other workers read.
        group: the consumer group of the workers. Each group gets every task.
        partitions: the number of queues of a topic that is created. At most this many workers
            receive tasks of a topic at a time.
        consumer: options of the workers' consumers; see `coherer.rocketmq.ConsumerOptions`. By
            default a new group starts at the oldest task, a task may take any time, and
            acknowledgements are reported every 0.2 s.
        options: see `coherer.rocketmq.ClientOptions`, `user` and `password` for example.

    Raises:
        UsageError: the URL is not of RocketMQ, or an option is unknown or out of range.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        topics: str | Collection[str] = "taskiq",
        group: str = "taskiq",
        partitions: int = 8,
        consumer: rocketmq.ConsumerKeywords | None = None,
        **options: Unpack[rocketmq.ConnectKeywords],
    ) -> None:
        super().__init__()
        self._topics = [topics] if isinstance(topics, str) else list(topics)
        if not self._topics:
            raise UsageError("A broker needs a topic.", hint="Leave topics out for 'taskiq'.")
        self._group = group
        self._partitions = partitions
        self._consumer_options = rocketmq.ConsumerKeywords(
            start="earliest", consume_ms=0, persist_ms=PERSIST_MS
        )
        self._consumer_options.update(consumer or {})
        self._url = url
        self._options = options
        rocketmq.connect(url, **options)  # for the errors; a client belongs to a loop and a process
        self._known: set[str] = set()
        self._client: rocketmq.Client | None = None
        self._producer: rocketmq.Producer | None = None
        self._consumers: list[rocketmq.Consumer] = []

    def __repr__(self) -> str:
        return f"<RocketMQBroker of {', '.join(self._topics)}, group {self._group}>"

    async def startup(self) -> None:
        """Connect, and create the topics that do not exist; then run the handlers of this event.

        Raises:
            UnavailableError: no name server or broker could be reached.
            RefusedError: a topic does not exist, and may not be created.
        """
        if self._client is None:
            self._client = rocketmq.connect(self._url, **self._options)
            self._producer = self._client.producer()
            try:
                await self._producer.start()
                for topic in self._topics:
                    await self._ensure(topic)
            except BaseException:
                await self._disconnect()
                raise
        await super().startup()

    async def shutdown(self) -> None:
        """Run the handlers of this event; then report what was acknowledged, and disconnect."""
        try:
            await super().shutdown()
        finally:
            await self._disconnect()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task, and wait until the broker has stored it.

        Raises:
            UsageError: the label `delay` is not a number of seconds, or the task is too large.
            CohererError: see `coherer.rocketmq.Producer.send`.
        """
        topic = str(message.labels.get("topic") or self._topics[0])
        properties = {_NAME: message.task_name}
        keys = tuple(message.task_id.split())  # RocketMQ separates keys by spaces
        task = Message(topic, message.message, keys=keys, properties=properties)
        delay = _delay(message.labels)
        await self._ensure(topic)
        try:
            await self._send(task, delay)
        except rocketmq.TopicNotExistError:  # deleted since it was last used
            self._known.discard(topic)
            await self._ensure(topic)
            await self._send(task, delay)

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Receive tasks. The consumer stays in its group until `shutdown`, for late acks.

        Raises:
            UnavailableError, RefusedError: the group cannot be joined.
        """
        if self._client is None:
            raise _stopped()
        consumer = self._client.consumer(self._group, self._topics, **self._consumer_options)
        self._consumers.append(consumer)  # acks come after the last task was listened for
        await consumer.start()
        while (batch := await consumer.receive()) is not None:
            for message in batch:
                left = _left(message.properties)
                if left is None:
                    yield AckableMessage(data=bytes(message.body), ack=message.ack)
                else:
                    await self._send_on(message, left)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()  # and what was made with it
        self._producer = None
        self._consumers.clear()
        self._known.clear()

    @property
    def _sender(self) -> rocketmq.Producer:
        if self._producer is None:
            raise _stopped()
        return self._producer

    async def _ensure(self, topic: str) -> None:
        """Create a topic if it does not exist."""
        if topic in self._known:
            return
        if self._client is None:
            raise _stopped()
        if not await self._client.exists(topic):
            try:
                await self._client.admin().topics.create(
                    topic, self._partitions, wait_ms=CREATED_WITHIN_MS
                )
            except RefusedError:
                if not await self._client.exists(topic):  # another process may have created it
                    raise
        self._known.add(topic)

    async def _send(self, task: Message, delay: timedelta | None) -> None:
        if delay is None:
            await self._sender.send(task)
        else:
            await self._send_later(task, delay)

    async def _send_later(self, task: Message, delay: timedelta) -> None:
        """Send a task that the broker delays, in one step if it can."""
        if delay <= TIMER_MAX:
            try:
                await self._sender.send(task, delay=delay)
            except UsageError:
                pass  # a broker of RocketMQ 4, which has levels only
            else:
                return
        due_ms = (datetime.now(UTC) - _EPOCH + delay) // _MS
        properties = {**task.properties, _DUE: str(due_ms)}
        await self._send_step(
            Message(task.topic, task.body, keys=task.keys, properties=properties), delay
        )

    async def _send_step(self, task: Message, left: timedelta) -> None:
        try:
            await self._sender.send(task, delay=min(left, TIMER_MAX))
        except UsageError:
            await self._sender.send(task, delay_level=level_for(left))

    async def _send_on(self, message: rocketmq.ReceivedMessage, left: timedelta) -> None:
        """Send a task that has not waited long enough on its way.

        If that fails, the broker delivers it again: an error would end the worker, with the tasks
        that run.
        """
        task = Message(
            message.topic, bytes(message.body), keys=message.keys, properties=message.properties
        )
        try:
            await self._send_step(task, left)
        except ClosedError:  # the worker ends; the others receive the task
            raise
        except UsageError as error:
            _log.error("A task of %s is dead: %s (%s)", message.topic, error, message.id)
            await message.dead_letter(reason=str(error))
        except CohererError as error:
            _log.warning("A task of %s waits on: %s (%s)", message.topic, error, message.id)
            await message.retry(reason=str(error))
        else:
            await message.ack()


def _delay(labels: Mapping[str, Any]) -> timedelta | None:
    given = labels.get("delay")
    if given is None:
        return None
    try:
        delay = timedelta(seconds=float(given))
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"The label delay is {given!r}.", hint="It is a number of seconds."
        ) from error
    return min(delay, DELAY_MAX) if delay >= _MS else None


def _left(properties: Mapping[str, str]) -> timedelta | None:
    """The rest of a delay; None for a task that is due."""
    due = properties.get(_DUE)
    if due is None or len(due) > _DUE_DIGITS_MAX or not due.isdecimal():
        return None
    left = int(due) * _MS - (datetime.now(UTC) - _EPOCH)
    return left if left >= _MS else None


def _stopped() -> ClosedError:
    return ClosedError("The broker is not started.", hint="Call `await broker.startup()` before.")
