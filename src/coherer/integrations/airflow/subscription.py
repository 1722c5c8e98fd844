"""What operators, sensors and triggers have in common: a group's view of a topic."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

import coherer
from coherer import blocking, rocketmq
from coherer.errors import RequestTimeoutError, UsageError

BATCH: Final = 32
"""The most messages of a batch with RocketMQ."""

PERSIST_MS: Final = 200
"""How often acknowledgements are reported to RocketMQ, if there are any."""

ASSIGNED_WITHIN_MS: Final = 120_000
"""How long to wait for a partition: a group may have more members than the topic has partitions.

Java's TubeMQ master hands partitions out once a minute, and tells a member with its next heartbeat;
those of a killed member are free after half a minute. A member that gave up sooner would report
that everything is read.
"""

POLL_MS: Final = 100
"""How long a request waits for messages, before a task looks whether it has read everything."""

QUIET_MS: Final = 3_000
"""After this time without a message everything was read with TubeMQ, whose brokers do not answer
before there is a message."""

ANSWERED_WITHIN_MS: Final = 10_000
"""How long to wait for what RocketMQ's brokers hold."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, the group that reads it, and its filter.

    Args:
        conn_id: the id of the Airflow connection.
        topic: the topic.
        group: the consumer group. Its members share the messages.
        tags: take only messages with one of these tags: `"new || paid"`, or a list.
        sql92: take only messages whose properties fulfil this condition (RocketMQ).
        start: where a new group begins, `"earliest"` or `"latest"`.
    """

    conn_id: str
    topic: str
    group: str
    tags: str | Sequence[str] | None = None
    sql92: str | None = None
    start: str = "earliest"

    def __post_init__(self) -> None:
        if self.tags is not None and self.sql92 is not None:
            raise UsageError("A filter is either tags or sql92.", topic=self.topic)

    def consumer(self, client: Any, **options: Any) -> Any:
        """Make a consumer, which is not started, of an asyncio or a blocking client.

        Args:
            client: the client.
            options: options of a consumer of RocketMQ.

        Raises:
            UsageError: the protocol has no such filter.
        """
        tags = self.tags if self.tags is None or isinstance(self.tags, str) else [*self.tags]
        if isinstance(client, rocketmq.Client | blocking.rocketmq.Client):
            found = tags if self.sql92 is None else rocketmq.Sql92(self.sql92)
            return client.consumer(
                self.group,
                {self.topic: found},
                start=self.start,  # type: ignore[arg-type]
                batch_messages=BATCH,
                consume_ms=0,  # a task may take any time
                persist_ms=PERSIST_MS,
                **options,
            )
        if self.sql92 is not None:
            raise UsageError(
                "TubeMQ's brokers filter by tags, not by SQL92.", topic=self.topic, hint="Use tags."
            )
        return client.consumer(self.group, {self.topic: tags}, start=self.start)


def subscription_of(task: object) -> Subscription:
    """The subscription of an operator or a sensor, after Airflow has filled in its templates."""
    return Subscription(**{name: getattr(task, name) for name in Subscription.__struct_fields__})


class Reading:
    """Reads what a topic holds, and stops at its end. Use it with `with`.

    Args:
        client: a blocking client.
        subscription: what to read.

    Raises:
        RefusedError: the topic does not exist.
    """

    def __init__(self, client: blocking.Client, subscription: Subscription) -> None:
        self._client = client
        self._topic = subscription.topic
        self._answers = isinstance(client, blocking.rocketmq.Client)
        self._consumer = subscription.consumer(client, poll_ms=POLL_MS)

    def __enter__(self) -> Self:
        self._client.offsets(self._topic)  # raises if there is no such topic
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def next(self, most: int | None) -> tuple[list[coherer.AnyMessage], Callable[[], None]] | None:
        """The next messages, and what confirms them; None at the end of the topic.

        Args:
            most: how many at most. TubeMQ confirms whole batches only: there it may be more.

        Raises:
            CohererError: a broker refuses, or cannot be reached.
        """
        batch = None
        with suppress(RequestTimeoutError):  # other members may read everything
            self._consumer.wait_assigned(ASSIGNED_WITHIN_MS)
            for _ in range((ANSWERED_WITHIN_MS if self._answers else QUIET_MS) // POLL_MS):
                batch = self._consumer.receive(POLL_MS)
                if batch is not None or self._caught_up():
                    break
        if batch is None:
            self._client.offsets(self._topic)  # raises if a broker cannot be reached
            return None
        messages = list(batch)
        if most is None or len(messages) <= most or not hasattr(messages[0], "ack"):
            return messages, lambda: self._confirm([batch])
        return messages[:most], lambda: self._confirm(messages[:most])

    def _confirm(self, read: Sequence[Any]) -> None:
        for one in read:
            one.ack()
        self._consumer.commit()

    def _caught_up(self) -> bool:
        found: Mapping[object, Any] = self._consumer.progress
        return bool(found) and all(
            one.max_offset >= 0
            and (one.backlog_bytes == 0 if one.backlog_bytes >= 0 else one.offset >= one.max_offset)
            for one in found.values()
        )


def described(message: coherer.AnyMessage) -> dict[str, Any]:
    """A message as JSON, for events and XCom.

    `body` is text, or None if it is not UTF-8; then `body_base64` has the bytes.

    >>> described(coherer.ReceivedMessage("a", b"ok", tag="new", offset=7))["body"]
    'ok'
    >>> found = described(coherer.ReceivedMessage("a", bytes([255])))
    >>> found["body"], found["body_base64"]
    (None, '/w==')
    """
    body = bytes(message.body)
    found: dict[str, Any] = {
        "topic": message.topic,
        "body": None,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "id": message.id,
        "broker": message.broker,
        "partition": message.partition,
        "offset": message.offset,
    }
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(body).decode()
    return found
