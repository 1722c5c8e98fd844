"""Operators: send messages, and hand received ones to a function."""

# Airflow's constructors and settings have parameters without types:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
from airflow.sdk import BaseOperator, Context, conf
from msgspec.structs import asdict

import coherer
from coherer.errors import CohererError, UsageError
from coherer.integrations.airflow.hooks import DEFAULT_CONN_ID, CohererHook
from coherer.integrations.airflow.subscription import Reading, subscription_of
from coherer.integrations.airflow.triggers import AwaitMessageTrigger
from coherer.message import Message

__all__ = ["ConsumeOperator", "ProduceOperator"]


class ProduceOperator(BaseOperator):
    """Sends messages, and returns how many when the brokers have stored all of them.

    If it fails, some may be stored; when Airflow runs it again, it sends all of them again.

    Args:
        topic: the topic.
        messages: the messages, or a function that returns them, and that Airflow calls as those of
            all templates, `lambda context, jinja_env: [...]`. A text or bytes are a body; a
            `coherer.Message` is sent as it is, also to another topic; all else becomes JSON.
        tag: a word that consumers can filter by.
        keys: words to find the messages by (RocketMQ).
        properties: further names and values.
        deliver_at: the broker delays the messages until then (RocketMQ); a datetime, or a text in
            ISO format, which may be a template.
        delay: the broker delays the messages by this time (RocketMQ).
        conn_id: the id of the Airflow connection.
    """

    template_fields: Collection[str] = (
        "topic",
        "messages",
        "tag",
        "keys",
        "properties",
        "deliver_at",
        "conn_id",
    )
    ui_color = "#d9f0e3"

    def __init__(
        self,
        *,
        topic: str,
        messages: Iterable[object] | Callable[[Context, Any], Iterable[object]] | str,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        deliver_at: datetime | str | None = None,
        delay: timedelta | None = None,
        conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.messages = messages
        self.tag = tag
        self.keys = keys
        self.properties = properties
        self.deliver_at = deliver_at
        self.delay = delay
        self.conn_id = conn_id

    def execute(self, context: Context) -> int:
        """Send the messages.

        Raises:
            CohererError: not all messages are stored. The class of its cause, or its own, says
                whose fault it is.
        """
        del context
        given = cast("Iterable[object]", self.messages)  # Airflow has called the function
        if isinstance(given, str | bytes | Mapping):
            raise UsageError("messages is a list of messages, not one of them.", topic=self.topic)
        at = self.deliver_at
        if isinstance(self.keys, str):
            raise UsageError("keys is a list of words, not one of them.", topic=self.topic)
        timing = {
            "deliver_at": datetime.fromisoformat(at) if isinstance(at, str) else at,
            "delay": self.delay,
        }
        timing = {name: value for name, value in timing.items() if value is not None}
        with CohererHook(self.conn_id).get_conn() as client, client.producer() as producer:
            if not timing:
                report = producer.send_many(map(self._message, given))
                for _, error in report.failed:
                    raise CohererError(
                        f"{len(report.failed)} messages may not be stored, {report.sent} are.",
                        topic=self.topic,
                        hint=f"The first error: {error}",
                    ) from error
                return report.sent
            if not isinstance(client, coherer.blocking.rocketmq.Client):
                raise UsageError("TubeMQ does not delay messages.", topic=self.topic)
            sent = 0
            for message in map(self._message, given):
                cast("Any", producer).send(message, **timing)
                sent += 1
            return sent

    def _message(self, given: object) -> Message:
        if isinstance(given, Message):
            return given
        if isinstance(given, str | bytes):
            body = given.encode() if isinstance(given, str) else given
        else:
            body = msgspec.json.encode(given)
        return Message(
            self.topic,
            body,
            tag=self.tag,
            keys=tuple(self.keys),
            properties=self.properties or {},
        )


class ConsumeOperator(BaseOperator):
    """Hands the messages of a topic to a function, and returns how many there were.

    It reads until `max_messages`, or until it has read what the topic held when it began. Messages
    are confirmed after the function returned. If it raises, its messages come again when Airflow
    runs the task again.

    Args:
        topic: the topic.
        group: the consumer group. Its members share the messages.
        handler: called with a list of received messages, once for each batch.
        max_messages: the most messages to take; None for all that are there. TubeMQ confirms whole
            batches only: there, the last batch may exceed it.
        wait_for_messages: if there is no message, wait for one.
        deferrable: wait in the triggerer, instead of in a worker.
        tags: take only messages with one of these tags: `"new || paid"`, or a list.
        sql92: take only messages whose properties fulfil this condition (RocketMQ).
        start: where a new group begins, `"earliest"` or `"latest"`.
        conn_id: the id of the Airflow connection.
    """

    template_fields: Collection[str] = ("topic", "group", "tags", "sql92", "conn_id")
    ui_color = "#d9f0e3"

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        handler: Callable[[list[coherer.AnyMessage]], object],
        max_messages: int | None = None,
        wait_for_messages: bool = False,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        tags: str | Sequence[str] | None = None,
        sql92: str | None = None,
        start: str = "earliest",
        conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.group = group
        self.handler = handler
        self.max_messages = max_messages
        self.wait_for_messages = wait_for_messages
        self.deferrable = deferrable
        self.tags = tags
        self.sql92 = sql92
        self.start = start
        self.conn_id = conn_id

    def execute(self, context: Context) -> int:
        """Read and handle messages.

        Raises:
            CohererError: the cluster cannot be reached, or refuses; its class says which.
            Exception: what the function raised.
        """
        del context
        return self._read()

    def execute_complete(self, context: Context, event: object = None) -> int:
        """Read and handle messages: there is one, or another member of the group was faster."""
        del context, event
        return self._read()

    def _read(self) -> int:
        count = 0
        with (
            CohererHook(self.conn_id).get_conn() as client,
            Reading(client, subscription_of(self)) as reading,
        ):
            while self.max_messages is None or count < self.max_messages:
                waiting = self.wait_for_messages and not self.deferrable and not count
                most = self.max_messages and self.max_messages - count
                found = reading.next(most, later=waiting)
                if found is None:
                    if waiting:
                        continue
                    break
                messages, confirm = found
                self.handler(messages)
                confirm()
                count += len(messages)
        if not count and self.wait_for_messages:
            self.defer(
                trigger=AwaitMessageTrigger(**asdict(subscription_of(self))),
                method_name="execute_complete",
            )
        return count
