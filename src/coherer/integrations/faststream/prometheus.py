"""Metrics of what a FastStream application publishes and handles, for Prometheus.

`pip install coherer[faststream] faststream[prometheus]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from faststream._internal.constants import EMPTY
from faststream.message import StreamMessage
from faststream.prometheus import ConsumeAttrs, MetricsSettingsProvider
from faststream.prometheus.middleware import PrometheusMiddleware
from prometheus_client import CollectorRegistry

from coherer.integrations.faststream.message import raw_messages
from coherer.integrations.faststream.response import (
    Command,
)


class Settings(MetricsSettingsProvider[Any, Command]):
    """What the metrics show.

    Args:
        messaging_system: `rocketmq` or `tubemq`.
    """

    def __init__(self, messaging_system: str) -> None:
        self.messaging_system = messaging_system

    def get_publish_destination_name_from_cmd(self, cmd: Command) -> str:
        """The topic."""
        return cmd.destination

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> ConsumeAttrs:
        """The topic, the size and the number of messages."""
        messages = raw_messages(msg)
        return {
            "destination_name": messages[0].topic,
            "message_size": sum(len(one.body) for one in messages),
            "messages_count": len(messages),
        }


class BasePrometheusMiddleware(PrometheusMiddleware[Any, Command]):
    """Measures what a broker publishes and handles.

    Args:
        registry: where the metrics are.
        app_name: the label `app_name`; `metrics_prefix` by default.
        metrics_prefix: the beginning of the metrics' names.
        received_messages_size_buckets: the buckets of the histogram of sizes.
        custom_labels: further labels: a text, or a function of the message.
    """

    SYSTEM: ClassVar[str]

    def __init__(
        self,
        *,
        registry: CollectorRegistry,
        app_name: str = EMPTY,
        metrics_prefix: str = "faststream",
        received_messages_size_buckets: Sequence[float] | None = None,
        custom_labels: dict[str, str | Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: Settings(self.SYSTEM),
            registry=registry,
            app_name=app_name,
            metrics_prefix=metrics_prefix,
            received_messages_size_buckets=received_messages_size_buckets,
            custom_labels=custom_labels,
        )


class RocketMQPrometheusMiddleware(BasePrometheusMiddleware):
    """Measures what a `RocketMQBroker` publishes and handles; see `BasePrometheusMiddleware`."""

    SYSTEM = "rocketmq"


class TubeMQPrometheusMiddleware(BasePrometheusMiddleware):
    """Measures what a `TubeMQBroker` publishes and handles; see `BasePrometheusMiddleware`."""

    SYSTEM = "tubemq"
