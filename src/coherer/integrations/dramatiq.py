"""RocketMQ as a broker of Dramatiq.

```python
import dramatiq

from coherer.integrations.dramatiq import RocketMQBroker

dramatiq.set_broker(RocketMQBroker("rocketmq://127.0.0.1:9876"))


@dramatiq.actor
def add(one: int, other: int) -> None:
    print(one + other)
```

* A queue is a topic and a consumer group of its name; the worker processes are its members.
* A message is acknowledged when its actor has returned. When a worker dies, the others get what it
  has not acknowledged. A message may so be processed twice, but none is lost.
* A message that failed for the last time becomes a dead letter of the group.
* Delays, and so the pauses of `Retries`, are kept by the broker. RocketMQ 4 has delay levels only:
  there a message waits in several steps, and a worker holds it for the last second.
"""

# Dramatiq's Message is generic in a way that its own methods leave out:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Final, Unpack

import dramatiq
from dramatiq.common import current_millis
from dramatiq.errors import (
    ConnectionClosed,
    DecodeError,
    DramatiqError,
    QueueJoinTimeout,
    QueueNotFound,
)

from coherer._common.logs import Log
from coherer._record.system_topics import DELAY_LEVELS_MS
from coherer.blocking import rocketmq
from coherer.errors import (
    DisconnectedError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)
from coherer.message import Message

__all__ = ["RocketMQBroker"]

_log = Log(logging.getLogger(__name__))

TIMER_MAX_MS: Final = 71 * 3_600_000
"""The longest delay that is asked of a broker at once; Coherer's have a limit of three days."""

CREATED_WITHIN_MS: Final = 10_000
"""How long to wait until a new topic can be used."""

PERSIST_MS: Final = 200
"""How often acknowledgements are reported, if there are any: a message that was processed, but not
yet reported, is processed again when its partition gets another worker."""

JOIN_S: Final = 0.05
"""How often `join` looks whether a queue is empty."""

_ACTOR: Final = "dramatiq_actor"
_ETA: Final = "eta"
_MS: Final = timedelta(milliseconds=1)
_LOST: Final = (DisconnectedError, RequestTimeoutError, UnavailableError)


class RocketMQBroker(dramatiq.Broker):
    """Sends messages to topics of RocketMQ, or of a Coherer node, and receives them.

    It connects when it is used, and anew in a child process.

    Args:
        url: the name servers, `rocketmq://host:port;host:port`. None takes `COHERER_URL` from the
            environment, or else the name servers in `NAMESRV_ADDR`.
        middleware: all middleware; Dramatiq's default when None.
        name_prefix: a prefix of the names of topics and groups.
        partitions: the partitions of a topic that is created. At most this many worker processes
            receive messages of a queue at a time.
        consumer: options of the workers' consumers; see `coherer.rocketmq.ConsumerOptions`. By
            default a new group starts at the oldest message, a message may take any time, and
            acknowledgements are reported every 0.2 s.
        options: see `coherer.rocketmq.ClientOptions`, `user` and `password` for example.

    Raises:
        UsageError: the URL is not of RocketMQ, or an option is unknown or out of range.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: list[dramatiq.Middleware] | None = None,
        name_prefix: str = "",
        partitions: int = 8,
        consumer: rocketmq.ConsumerKeywords | None = None,
        **options: Unpack[rocketmq.ConnectKeywords],
    ) -> None:
        super().__init__(middleware)
        self.queues: dict[str, str] = {}  # topics, by queue
        self._prefix = name_prefix
        self._partitions = partitions
        self._consumer_options = rocketmq.ConsumerKeywords(
            start="earliest", consume_ms=0, persist_ms=PERSIST_MS
        )
        self._consumer_options.update(consumer or {})
        self._url = url
        self._options = options
        rocketmq.connect(url, **options).close()  # for the errors
        self._link: _Link | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<RocketMQBroker of {', '.join(self.queues) or 'no queues'}>"

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. Its topic is created when the queue is first used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = self._prefix + queue_name
            self.emit_after("declare_queue", queue_name)

    def enqueue(
        self, message: dramatiq.Message[Any], *, delay: int | None = None
    ) -> dramatiq.Message[Any]:
        """Send a message, and wait until the broker has stored it.

        Args:
            message: the message.
            delay: how long the broker keeps it, in milliseconds.

        Raises:
            QueueNotFound: the queue was never declared.
            ConnectionClosed: the broker cannot be reached, or does not answer in time.
            CohererError: the broker refuses the message; see `coherer.rocketmq.Producer.send`.
        """
        self._topic(message.queue_name)
        self.emit_before("enqueue", message, delay)
        self._send(message, delay or 0)
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> _Consumer:
        """Join the group of a queue.

        Args:
            queue_name: the queue.
            prefetch: how many messages the worker holds at most.
            timeout: how long to wait for a message, in milliseconds.

        Raises:
            QueueNotFound: the queue was never declared.
            ConnectionClosed: the broker cannot be reached, or does not answer in time.
        """
        topic = self._topic(queue_name)
        try:
            link = self._connected()
            link.ensure(topic, self._partitions)
            consumer = link.client.consumer(topic, topic, **self._consumer_options)
            consumer.start()
        except _LOST as error:
            raise _error(ConnectionClosed, error) from error
        return _Consumer(self, consumer, prefetch, timeout)

    def flush(self, queue_name: str) -> None:
        """Drop the messages of a queue, but for those that are delayed.

        Raises:
            QueueNotFound: the queue was never declared.
        """
        topic, client = self._topic(queue_name), self._connected().client
        if not client.exists(topic):
            return
        groups = client.admin().groups
        if topic not in groups.names():  # no worker has run yet
            groups.create(topic)
        groups.reset_offsets(topic, topic, "latest")

    def flush_all(self) -> None:
        """Drop the messages of all declared queues, but for those that are delayed."""
        for name in self.queues:
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are processed, but for those that are delayed.

        Args:
            queue_name: the queue.
            timeout: how long to wait, in milliseconds.

        Raises:
            QueueNotFound: the queue was never declared.
            QueueJoinTimeout: some are not.
        """
        topic, link = self._topic(queue_name), self._connected()
        end = None if timeout is None else time.monotonic() + timeout / 1000
        while link.client.exists(topic) and _unread(link.client, topic):
            if end is not None and time.monotonic() >= end:
                raise _error(QueueJoinTimeout, queue_name)
            time.sleep(JOIN_S)

    def close(self) -> None:
        """Disconnect. The broker connects again when it is used."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None and link.process == os.getpid():
            link.client.close()

    def send_on(self, message: dramatiq.Message[Any]) -> None:
        """Send a message that has not waited long enough on its way."""
        self._send(message, left(message))

    def _topic(self, queue_name: str) -> str:
        topic = self.queues.get(queue_name)
        if topic is None:
            raise _error(QueueNotFound, queue_name)
        return topic

    def _connected(self) -> _Link:
        with self._lock:
            if self._link is None or self._link.process != os.getpid():
                self._link = _Link(rocketmq.connect(self._url, **self._options))
            return self._link

    def _send(self, message: dramatiq.Message[Any], delay_ms: int) -> None:
        try:
            link = self._connected()
            link.ensure(self._topic(message.queue_name), self._partitions)
            if delay_ms <= 0:
                link.producer.send(self._stored(message))
                return
            if delay_ms <= TIMER_MAX_MS:
                try:
                    link.producer.send(self._stored(message), delay=delay_ms * _MS)
                except UsageError:
                    pass  # a broker of RocketMQ 4, which has levels only
                else:
                    return
            late = message.copy(options={_ETA: current_millis() + delay_ms})
            step_ms = min(delay_ms, TIMER_MAX_MS)
            try:
                link.producer.send(self._stored(late), delay=step_ms * _MS)
            except UsageError:
                level = sum(one <= step_ms for one in DELAY_LEVELS_MS)
                link.producer.send(self._stored(late), delay_level=max(level, 1))
        except _LOST as error:
            raise _error(ConnectionClosed, error) from error

    def _stored(self, message: dramatiq.Message[Any]) -> Message:
        return Message(
            self._topic(message.queue_name),
            message.encode(),
            keys=(message.message_id,),
            properties={_ACTOR: message.actor_name},
        )


class _Link:
    """The client of one process."""

    def __init__(self, client: rocketmq.Client) -> None:
        self.process = os.getpid()
        self.client = client
        self._known: set[str] = set()
        self._producer: rocketmq.Producer | None = None
        self._lock = threading.Lock()

    @property
    def producer(self) -> rocketmq.Producer:
        """The producer, which is started when it is first needed."""
        with self._lock:
            if self._producer is None:
                producer = self.client.producer()
                producer.start()
                self._producer = producer
            return self._producer

    def ensure(self, topic: str, partitions: int) -> None:
        """Create a topic if it does not exist."""
        with self._lock:
            if topic in self._known:
                return
            if not self.client.exists(topic):
                try:
                    self.client.admin().topics.create(topic, partitions, wait_ms=CREATED_WITHIN_MS)
                except RefusedError:
                    if not self.client.exists(topic):  # another process may have created it
                        raise
            self._known.add(topic)


class _Consumer(dramatiq.Consumer):
    """The membership of a worker in the group of a queue.

    Dramatiq takes messages in one thread, and settles them in those of its workers.
    """

    def __init__(
        self, broker: RocketMQBroker, consumer: rocketmq.Consumer, prefetch: int, timeout_ms: int
    ) -> None:
        self._broker = broker
        self._consumer = consumer
        self._prefetch = prefetch
        self._timeout_ms = timeout_ms
        self._waiting: Iterator[rocketmq.ReceivedMessage] = iter(())
        self._held = 0
        self._settled = threading.Condition()

    def __next__(self) -> dramatiq.MessageProxy | None:
        """The next message; None if there is none, or the worker holds as many as it may."""
        with self._settled:
            if not self._settled.wait_for(
                lambda: self._held < self._prefetch, self._timeout_ms / 1000
            ):
                return None
        received = next(self._waiting, None)
        if received is None:
            try:
                batch = self._consumer.receive(self._timeout_ms)
            except _LOST as error:
                raise _error(ConnectionClosed, error) from error
            if batch is None:
                return None
            self._waiting = iter(batch)
            received = next(self._waiting, None)
        return None if received is None else self._proxy(received)

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """A message was processed."""
        own = _own(message)
        try:
            own.received.ack()
        finally:
            own.consumer.let_go()

    def nack(self, message: dramatiq.MessageProxy) -> None:
        """A message failed for the last time: it becomes a dead letter of the group.

        Raises:
            ConnectionClosed: the broker cannot be reached. Dramatiq tries again.
        """
        own = _own(message)
        try:
            own.received.dead_letter(reason="the actor failed")
        except _LOST as error:
            raise _error(ConnectionClosed, error) from error
        except BaseException:
            own.consumer.let_go()
            raise
        own.consumer.let_go()

    def requeue(self, messages: Iterable[dramatiq.MessageProxy]) -> None:
        """Do nothing: what is not acknowledged is delivered again when the worker has left."""

    def close(self) -> None:
        """Report what was acknowledged, and leave the group."""
        self._consumer.close()

    def let_go(self) -> None:
        """The worker holds one message less."""
        with self._settled:
            self._held -= 1
            self._settled.notify()

    def _proxy(self, received: rocketmq.ReceivedMessage) -> dramatiq.MessageProxy | None:
        try:
            message = dramatiq.Message.decode(bytes(received.body))
        except DecodeError as error:
            _log.error("A message of %s is dead: %s (%s)", received.topic, error, received.id)
            received.dead_letter(reason=str(error))
            return None
        if (left_ms := left(message)) > DELAY_LEVELS_MS[0]:
            self._broker.send_on(message)
            received.ack()
            return None
        if left_ms <= 0:
            message.options.pop(_ETA, None)
        with self._settled:
            self._held += 1
        return _Proxy(message, received, self)


class _Proxy(dramatiq.MessageProxy):
    """A message, what settles it, and the consumer that holds it: a worker may have a new one."""

    def __init__(
        self,
        message: dramatiq.Message[Any],
        received: rocketmq.ReceivedMessage,
        consumer: _Consumer,
    ) -> None:
        super().__init__(message)
        self.received = received
        self.consumer = consumer


def _error(kind: type[DramatiqError], about: object) -> DramatiqError:
    make: Callable[[object], DramatiqError] = kind  # whose constructor has no types
    return make(about)


def _own(message: dramatiq.MessageProxy) -> _Proxy:
    assert isinstance(message, _Proxy)  # noqa: S101 - of this broker
    return message


def left(message: dramatiq.Message[Any]) -> int:
    """The rest of a message's delay, in milliseconds; not positive if it is due."""
    eta = message.options.get(_ETA)
    return int(eta) - current_millis() if isinstance(eta, int | float) else 0


def _unread(client: rocketmq.Client, topic: str) -> bool:
    """Whether a group has not acknowledged all messages of its topic."""
    groups = client.admin().groups.list(topic) if topic in client.admin().groups.names() else []
    partitions = [one for group in groups for one in group.partitions if one.topic == topic]
    done = {one.queue: one.committed for one in partitions if one.committed is not None}
    return any(
        end > done.get(queue, begin) for queue, (begin, end) in client.offsets(topic).items()
    )
