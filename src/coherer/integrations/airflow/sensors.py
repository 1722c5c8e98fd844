"""A sensor that waits for a message."""

# Airflow's constructors and settings have parameters without types:
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, cast

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue, conf
from msgspec.structs import asdict

from coherer.integrations.airflow.hooks import DEFAULT_CONN_ID, CohererHook
from coherer.integrations.airflow.subscription import Reading, described, subscription_of
from coherer.integrations.airflow.triggers import AwaitMessageTrigger

__all__ = ["MessageSensor"]


class MessageSensor(BaseSensorOperator):
    """Waits for a message, takes it, and returns it in a list, as `MessageTrigger` describes it.

    The message is acknowledged after the list was stored as XCom. TubeMQ confirms whole batches
    only: there, the sensor takes all messages of a batch.

    Args:
        topic: the topic.
        group: the consumer group. Its members share the messages.
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
        self.deferrable = deferrable
        self.tags = tags
        self.sql92 = sql92
        self.start = start
        self.conn_id = conn_id

    def poke(self, context: Context) -> PokeReturnValue:
        """Take a message if there is one."""
        with (
            CohererHook(self.conn_id).get_conn() as client,
            Reading(client, subscription_of(self)) as reading,
        ):
            found = reading.next(1)
            if found is None:
                return PokeReturnValue(is_done=False)
            messages, confirm = found
            value = [described(message) for message in messages]
            if self.do_xcom_push:
                cast("Any", context)["ti"].xcom_push("return_value", value)
            confirm()
        return PokeReturnValue(is_done=True, xcom_value=value)

    def execute(self, context: Context) -> Any:
        """Wait in a worker, or defer."""
        if self.deferrable:
            return self._defer(time.time() + self.timeout)
        return super().execute(context)

    def execute_complete(
        self, context: Context, event: object = None, until: float | None = None
    ) -> Any:
        """Take the message, or wait again if another member of the group was faster."""
        del event
        until = until or time.time() + self.timeout  # `dag.test()` forgets it
        found = self.poke(context)
        return found.xcom_value if found else self._defer(until)

    def _defer(self, until: float) -> None:
        self.defer(
            trigger=AwaitMessageTrigger(**asdict(subscription_of(self))),
            method_name="execute_complete",
            kwargs={"until": until},
            timeout=timedelta(seconds=max(until - time.time(), 0)),
        )
