"""What operators, sensors and triggers have in common: a group's view of a topic."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
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

SILENCE_MS: Final = 30_000
"""How long a task waits for messages that a topic has, before it fails."""

UNMATCHED_MS: Final = 3_000
"""How long a task with tags waits over TubeMQ, before it takes everything as read: a broker does
not answer while no message has one of the tags."""


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
    """Reads what a topic held when the reading began. Use it with `with`.

    Args:
        client: a blocking client.
        subscription: what to read.
        silence_ms: how long to wait for messages that the topic has.

    Raises:
        RefusedError: the topic does not exist.
        UnavailableError: a server could not be reached.
    """

    def __init__(
        self, client: blocking.Client, subscription: Subscription, *, silence_ms: int = SILENCE_MS
    ) -> None:
        self._client = client
        self._subscription = subscription
        self._consumer = subscription.consumer(client, poll_ms=POLL_MS)
        self._silence_ms = silence_ms
        self._tubemq = client if isinstance(client, blocking.tubemq.Client) else None
        self._ends: Mapping[Any, tuple[int, int]] = {}
        self._positions: dict[Any, int] = {}  # behind what was confirmed

    def __enter__(self) -> Self:
        self._ends = self._client.offsets(self._subscription.topic)
        self._consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def next(
        self, most: int | None, *, later: bool = False
    ) -> tuple[list[coherer.AnyMessage], Callable[[], None]] | None:
        """The next messages, and what confirms them; None if there are no more.

        Args:
            most: how many at most. TubeMQ confirms whole batches only: there it may be more.
            later: whether to look for messages that came after the reading began.

        Raises:
            RequestTimeoutError: the topic has more messages, but no broker sends them.
        """
        for polls in range(self._silence_ms // POLL_MS):
            try:
                self._consumer.wait_assigned(ASSIGNED_WITHIN_MS)
            except RequestTimeoutError:
                return None  # the other members have all partitions
            ended = self._at_end() or self._is_unmatched(polls * POLL_MS)
            if ended and not later:
                return None
            batch = self._consumer.receive(POLL_MS)
            if batch is not None:
                return self._taken(batch, most)
            if ended:
                return None
        errors = (one.error for one in self._consumer.progress.values())
        raise RequestTimeoutError(
            f"Group {self._subscription.group} has not read the topic to its end, and no message "
            f"came for {self._silence_ms} ms.",
            topic=self._subscription.topic,
            hint="Are all brokers of the topic up?",
        ) from next((error for error in errors if error is not None), None)

    def _taken(
        self, batch: Any, most: int | None
    ) -> tuple[list[coherer.AnyMessage], Callable[[], None]]:
        messages = list(batch)
        if most is None or len(messages) <= most or self._tubemq is not None:
            return messages, lambda: self._positions.update(self._consumer.commit(batch))

        def confirm() -> None:
            for one in messages[:most]:
                one.ack()
            self._consumer.commit()

        return messages[:most], confirm

    def _at_end(self) -> bool:
        """Whether every assigned partition is read up to where it ended."""
        found: Mapping[Any, Any] = self._consumer.progress
        for partition, progress in found.items():
            _, end = self._ends.get(partition, (0, progress.max_offset))
            if end < 0 or max(progress.offset, self._positions.get(partition, 0)) < end:
                return False
        return bool(found)

    def _is_unmatched(self, silent_ms: int) -> bool:
        return (
            self._tubemq is not None
            and self._subscription.tags is not None
            and silent_ms >= UNMATCHED_MS
            and not self._tubemq.unreadable_brokers(self._subscription.topic)
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
