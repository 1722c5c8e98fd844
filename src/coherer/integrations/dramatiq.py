"""RocketMQ as a broker of Dramatiq.

```python
import dramatiq

from coherer.integrations.dramatiq import RocketMQBroker

dramatiq.set_broker(RocketMQBroker("rocketmq://127.0.0.1:9876"))


@dramatiq.actor
def add(one: int, other: int) -> None:
    print(one + other)
```

* A queue is a topic and a consumer group of its name; the worker processes are its members. A
  character that RocketMQ does not allow is written as `-xHH`: `mail.high` is `mail-x2ehigh`.
* A message is acknowledged when its actor has returned. When a worker dies, the others receive what
  it has not acknowledged. So a message may be processed twice, but none is lost.
* A message that failed for the last time becomes a dead letter of the group. So does one that is
  not Dramatiq's: wrong types would end the threads of Dramatiq's workers.
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
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
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
from coherer.blocking import rocketmq
from coherer.errors import (
    ClosedError,
    CohererError,
    DisconnectedError,
    RefusedError,
    RequestTimeoutError,
    UnavailableError,
    UsageError,
)
from coherer.integrations._delays import DELAY_MAX, LEVEL_MIN, TIMER_MAX, level_for
from coherer.integrations._names import topic_name
from coherer.message import Message

__all__ = ["RocketMQBroker"]

_log = Log(logging.getLogger(__name__))

CREATED_WITHIN_MS: Final = 10_000
"""How long to wait until a new topic can be used."""

PERSIST_MS: Final = 200
"""How often acknowledgements are reported, if there are any: a message that was processed, but not
yet reported, is processed again when its partition gets another worker."""

JOIN_S: Final = 0.05
"""How often `join` checks whether a queue is empty."""

ETA_MAX: Final = 2**53
"""The latest time at which a message may be due, in ms since 1970."""

_ACTOR: Final = "dramatiq_actor"
_ETA: Final = "eta"
_MS: Final = timedelta(milliseconds=1)
_FIELDS: Final = {
    "queue_name": str,
    "actor_name": str,
    "kwargs": dict,
    "options": dict,
    "message_id": str,
    "message_timestamp": int,
}


def _error(kind: type[DramatiqError], *about: object) -> DramatiqError:
    make: Callable[..., DramatiqError] = kind  # whose constructor has no types
    return make(*about)


@contextmanager
def _connection_errors() -> Generator[None]:
    """Raise what a lost connection causes as Dramatiq's error."""
    try:
        yield
    except (DisconnectedError, RequestTimeoutError, UnavailableError) as error:
        raise _error(ConnectionClosed, error) from error


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
            self.queues[queue_name] = topic_name(queue_name, self._prefix)
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
        self.send(message, min(delay or 0, DELAY_MAX // _MS) * _MS)
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
        with _connection_errors():
            link = self._connected()
            link.ensure(topic, self._partitions)
            consumer = link.client.consumer(topic, topic, **self._consumer_options)
            consumer.start()
        return _Consumer(self, queue_name, consumer, prefetch, timeout)

    @_connection_errors()
    def flush(self, queue_name: str) -> None:
        """Drop the messages of a queue, except those that are delayed.

        Raises:
            QueueNotFound: the queue was never declared.
            ConnectionClosed: the broker cannot be reached, or does not answer in time.
        """
        topic, client = self._topic(queue_name), self._connected().client
        if not client.exists(topic):
            return
        groups = client.admin().groups
        if topic not in groups.names():  # no worker has run yet
            groups.create(topic)
        groups.reset_offsets(topic, topic, "latest")

    def flush_all(self) -> None:
        """Drop the messages of all declared queues, except those that are delayed."""
        for name in self.queues:
            self.flush(name)

    @_connection_errors()
    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are processed, except those that are delayed.

        Args:
            queue_name: the queue.
            timeout: how long to wait, in milliseconds.

        Raises:
            QueueNotFound: the queue was never declared.
            QueueJoinTimeout: some are not processed in time.
            ConnectionClosed: the broker cannot be reached, or does not answer in time.
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

    @_connection_errors()
    def send(self, message: dramatiq.Message[Any], delay: timedelta) -> None:
        """Send a message, with a delay in one step if the broker can keep it."""
        link, topic = self._connected(), self._topic(message.queue_name)
        link.ensure(topic, self._partitions)
        try:
            self._send(link, message, delay)
        except rocketmq.TopicNotExistError:  # deleted since it was last used
            link.forget(topic)
            link.ensure(topic, self._partitions)
            self._send(link, message, delay)

    def _send(self, link: _Link, message: dramatiq.Message[Any], delay: timedelta) -> None:
        if delay <= timedelta():
            link.producer.send(self._stored(message))
            return
        if delay <= TIMER_MAX:
            try:
                link.producer.send(self._stored(message), delay=delay)
            except UsageError:
                pass  # a broker of RocketMQ 4, which has levels only
            else:
                return
        late = self._stored(message.copy(options={_ETA: current_millis() + delay // _MS}))
        try:
            link.producer.send(late, delay=min(delay, TIMER_MAX))
        except UsageError:
            link.producer.send(late, delay_level=level_for(delay))

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

    def _stored(self, message: dramatiq.Message[Any]) -> Message:
        return Message(
            self._topic(message.queue_name),
            message.encode(),
            keys=tuple(message.message_id.split()),  # RocketMQ separates keys by spaces
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

    def forget(self, topic: str) -> None:
        """Look for a topic, and perhaps create it, when it is used next."""
        with self._lock:
            self._known.discard(topic)


class _Consumer(dramatiq.Consumer):
    """The membership of a worker in the group of a queue.

    Dramatiq takes messages in one thread, and settles them in the threads of its workers. After an
    error it makes a new consumer, and settles the messages of the old one there.
    """

    def __init__(
        self,
        broker: RocketMQBroker,
        queue: str,
        consumer: rocketmq.Consumer,
        prefetch: int,
        timeout_ms: int,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._consumer = consumer
        self._prefetch = prefetch
        self._timeout_ms = timeout_ms
        self._waiting: Iterator[rocketmq.ReceivedMessage] = iter(())
        self._held = 0
        self._settled = threading.Condition()

    @_connection_errors()
    def __next__(self) -> dramatiq.MessageProxy | None:
        """The next message; None on timeout, or while the worker holds as many as it may."""
        with self._settled:
            if not self._settled.wait_for(
                lambda: self._held < self._prefetch, self._timeout_ms / 1000
            ):
                return None
        received = next(self._waiting, None)
        if received is None:
            batch = self._consumer.receive(self._timeout_ms)
            self._waiting = iter(batch or ())
            received = next(self._waiting, None)
        return None if received is None else self._proxy(received)

    def ack(self, message: dramatiq.MessageProxy) -> None:
        """Acknowledge a message that was processed."""
        proxy = _own(message)
        proxy.received.ack()
        proxy.consumer.let_go()

    @_connection_errors()
    def nack(self, message: dramatiq.MessageProxy) -> None:
        """Make a message that failed for the last time a dead letter of the group.

        Raises:
            ConnectionClosed: the broker cannot be reached. Dramatiq tries again.
        """
        proxy = _own(message)
        proxy.received.dead_letter(reason="the actor failed")
        proxy.consumer.let_go()

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
        """Return a message for the worker, or None after settling one that is not for it now."""
        try:
            message = _decoded(bytes(received.body), self._queue)
            if (left := _left(message)) > LEVEL_MIN:
                self._send_on(message, received, left)
                return None
        except (DecodeError, UsageError) as error:
            _log.error("A message of %s is dead: %s (%s)", received.topic, error, received.id)
            received.dead_letter(reason=str(error))
            return None
        if left <= timedelta():
            message.options.pop(_ETA, None)
        with self._settled:
            self._held += 1
        return _Proxy(message, received, self)

    def _send_on(
        self,
        message: dramatiq.Message[Any],
        received: rocketmq.ReceivedMessage,
        left: timedelta,
    ) -> None:
        """Send a message again for the rest of its delay.

        If that fails, the broker delivers it again: after an error Dramatiq would leave the group,
        and others would repeat what this worker has in hand.
        """
        try:
            self._broker.send(message, left)
        except (ClosedError, UsageError):
            raise
        except (CohererError, ConnectionClosed) as error:
            _log.warning(
                "The delay of a message of %s is continued later: %s (%s)",
                received.topic,
                error,
                received.id,
            )
            received.retry(reason=str(error))
        else:
            received.ack()


class _Proxy(dramatiq.MessageProxy):
    """A message, and the consumer that has received it."""

    def __init__(
        self,
        message: dramatiq.Message[Any],
        received: rocketmq.ReceivedMessage,
        consumer: _Consumer,
    ) -> None:
        super().__init__(message)
        self.received = received
        self.consumer = consumer


def _own(message: dramatiq.MessageProxy) -> _Proxy:
    assert isinstance(message, _Proxy)  # noqa: S101 - of this broker
    return message


def _decoded(body: bytes, queue: str) -> dramatiq.Message[Any]:
    """Decode a message of a queue, and check what the threads of Dramatiq's workers rely on.

    Raises:
        DecodeError: it is not a message of this queue, or a field has a wrong type.
    """
    message = dramatiq.Message.decode(body)
    for name, kind in _FIELDS.items():
        if not isinstance(getattr(message, name), kind):
            raise _error(DecodeError, f"Its {name} is not of type {kind.__name__}.", body, None)
    if message.queue_name != queue:
        raise _error(DecodeError, f"It is of queue {message.queue_name!r}.", body, None)
    eta = message.options.get(_ETA)
    if not (eta is None or (isinstance(eta, int | float) and abs(eta) <= ETA_MAX)):
        raise _error(DecodeError, "Its eta is not a time in milliseconds.", body, None)
    throws = message.options.get("throws")
    if throws and not isinstance(throws, type | tuple):  # classes, if the encoder can pass them on
        raise _error(DecodeError, "Its option throws is not an exception class.", body, None)
    return message


def _left(message: dramatiq.Message[Any]) -> timedelta:
    """Return the rest of a message's delay; not positive if it is due."""
    eta: float | None = message.options.get(_ETA)
    return timedelta() if eta is None else (int(eta) - current_millis()) * _MS


def _unread(client: rocketmq.Client, topic: str) -> bool:
    """Whether a group has not acknowledged all messages of its topic."""
    groups = client.admin().groups.list(topic) if topic in client.admin().groups.names() else []
    partitions = [one for group in groups for one in group.partitions if one.topic == topic]
    done = {one.queue: one.committed for one in partitions if one.committed is not None}
    return any(
        end > done.get(queue, begin) for queue, (begin, end) in client.offsets(topic).items()
    )
