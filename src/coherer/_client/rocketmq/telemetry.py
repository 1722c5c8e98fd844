"""OpenTelemetry spans of sent and processed messages (`pip install "coherer[otel]"`).

```python
telemetry = Telemetry()
producer = client.producer("orders", observers=[telemetry])
async for message in consumer:
    with telemetry.processing(message, "billing"):
        ...
```

The trace context is sent in the message's properties (`traceparent`), as specified by the W3C, so
that the receiver's spans are children of the sender's, in any language. Names and attributes follow
OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from coherer._client.rocketmq.observers import Kind, SendObserver, StoredSend
from coherer._common.version import __version__
from coherer._views import AnyMessage
from coherer.errors import CohererError, UsageError
from coherer.message import Message

if TYPE_CHECKING:  # OpenTelemetry need not be installed
    from opentelemetry.trace import Span, TracerProvider

SYSTEM: Final = "rocketmq"

_KINDS: Final[Mapping[Kind, str]] = {
    Kind.NORMAL: "normal",
    Kind.HALF: "transaction",
    Kind.COMMIT: "transaction",
    Kind.DELAYED: "delay",
}


class Telemetry:
    """Makes spans. An observer of producers; consumers use `processing`.

    Args:
        provider: makes the tracer; the global one when None.

    Raises:
        UsageError: OpenTelemetry is not installed.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        try:
            from opentelemetry import trace
        except ImportError as error:
            raise UsageError(
                "OpenTelemetry is not installed.", hint='pip install "coherer[otel]"'
            ) from error
        self._tracer = trace.get_tracer("coherer", __version__, provider)

    def begin(self, messages: Sequence[Message], group: str, kind: Kind) -> SendObserver:
        """Called before a message or a batch is sent."""
        from opentelemetry import propagate, trace  # need not be installed

        first = messages[0]
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
            "messaging.destination.name": first.topic,
            "messaging.rocketmq.message.type": _KINDS[kind],
            "messaging.client.group": group,
        }
        if len(messages) > 1:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes["messaging.message.body.size"] = len(first.body)
        span = self._tracer.start_span(
            f"send {first.topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        return Sending(span, carrier)

    @contextmanager
    def processing(self, message: AnyMessage, group: str = "") -> Generator[Span]:
        """A span while a message is processed; a child of the sender's.

        Args:
            message: the message.
            group: the group that processes it.
        """
        from opentelemetry import propagate, trace  # need not be installed

        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": str(message.partition),
            # The producer's span has the same id; the broker's own id differs from it.
            "messaging.message.id": getattr(message, "unique_id", "") or message.id,
            "messaging.message.body.size": len(message.body),
        }
        if group:
            attributes["messaging.consumer.group.name"] = group
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=propagate.extract(dict(message.properties)),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            yield span


class Sending:
    """The span of a send.

    Args:
        carrier: the context.

    Attributes:
        properties: the context as properties of the message.
    """

    __slots__ = ("_span", "properties")

    def __init__(self, span: Span, carrier: Mapping[str, str]) -> None:
        self._span = span
        self.properties = carrier

    def stored(self, outcome: StoredSend) -> None:
        """A broker stored the message."""
        receipt = outcome.receipt()
        self._span.set_attributes(
            {
                "messaging.message.id": receipt.unique_id,
                "messaging.destination.partition.id": str(receipt.partition),
                "server.address": outcome.server,
            }
        )
        self._span.end()

    def failed(self, error: CohererError) -> None:
        """The message was refused, or its outcome is unknown."""
        from opentelemetry.trace import StatusCode  # need not be installed

        self._span.record_exception(error)
        self._span.set_status(StatusCode.ERROR, error.text)
        self._span.end()
