"""Spans and metrics of what a FastStream application publishes and handles, by OpenTelemetry.

`pip install coherer[faststream] faststream[otel]`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from faststream.message import StreamMessage
from faststream.opentelemetry import TelemetrySettingsProvider
from faststream.opentelemetry.consts import MESSAGING_DESTINATION_PUBLISH_NAME
from faststream.opentelemetry.middleware import TelemetryMiddleware
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.trace import TracerProvider

from coherer.integrations.faststream.message import raw_messages
from coherer.integrations.faststream.response import (
    Command,
    RocketMQPublishCommand,
)


class Attributes(TelemetrySettingsProvider[Any, Command]):
    """The attributes of spans.

    Args:
        messaging_system: `rocketmq` or `tubemq`.
    """

    def __init__(self, messaging_system: str) -> None:
        self.messaging_system = messaging_system

    def get_publish_attrs_from_cmd(self, cmd: Command) -> dict[str, Any]:
        """The attributes of publishing."""
        found: dict[str, Any] = {
            "messaging.system": self.messaging_system,
            "messaging.destination.name": cmd.destination,
            "messaging.message.conversation_id": cmd.correlation_id,
        }
        if cmd.tag is not None:
            found["messaging.rocketmq.message.tag"] = cmd.tag
        if isinstance(cmd, RocketMQPublishCommand) and (keys := cmd.keys_of(None)):
            found["messaging.rocketmq.message.keys"] = keys
        return found

    def get_publish_destination_name(self, cmd: Command) -> str:
        """The topic."""
        return cmd.destination

    def get_consume_attrs_from_message(self, msg: StreamMessage[Any]) -> dict[str, Any]:
        """The attributes of handling a message or a batch."""
        raw = raw_messages(msg)
        found: dict[str, Any] = {
            "messaging.system": self.messaging_system,
            "messaging.message.id": msg.message_id,
            "messaging.message.conversation_id": msg.correlation_id,
            "messaging.message.payload_size_bytes": sum(len(one.body) for one in raw),
            MESSAGING_DESTINATION_PUBLISH_NAME: raw[0].topic,
        }
        if isinstance(msg.raw_message, tuple):
            found["messaging.batch.message_count"] = len(raw)
        elif raw[0].tag is not None:
            found["messaging.rocketmq.message.tag"] = raw[0].tag
        if raw[0].keys:
            found["messaging.rocketmq.message.keys"] = tuple(raw[0].keys)
        return found

    def get_consume_destination_name(self, msg: StreamMessage[Any]) -> str:
        """The topic."""
        return raw_messages(msg)[0].topic


class BaseTelemetryMiddleware(TelemetryMiddleware[Command]):
    """Measures and traces what a broker publishes and handles.

    Args:
        tracer_provider: makes the spans; the global one by default.
        meter_provider: makes the metrics; the global one by default.
        meter: makes the metrics instead.
        include_messages_counters: whether to count messages.
    """

    SYSTEM: ClassVar[str]

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        meter: Meter | None = None,
        include_messages_counters: bool = True,
    ) -> None:
        super().__init__(
            settings_provider_factory=lambda _: Attributes(self.SYSTEM),
            tracer_provider=tracer_provider,
            meter_provider=meter_provider,
            meter=meter,
            include_messages_counters=include_messages_counters,
        )


class RocketMQTelemetryMiddleware(BaseTelemetryMiddleware):
    """Traces what a `RocketMQBroker` does; see `BaseTelemetryMiddleware`."""

    SYSTEM = "rocketmq"


class TubeMQTelemetryMiddleware(BaseTelemetryMiddleware):
    """Traces what a `TubeMQBroker` does; see `BaseTelemetryMiddleware`."""

    SYSTEM = "tubemq"
