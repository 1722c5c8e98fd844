"""OpenTelemetry metrics of producers and consumers (`pip install "coherer[otel]"`).

```python
async with coherer.connect(url, metrics=coherer.ClientMetrics()) as client:
    ...
```

Names and attributes follow OpenTelemetry's conventions for messaging. Clients of RocketMQ also have
the metrics of RocketMQ 5's clients.

| name | what | one value for each |
|---|---|---|
| `messaging.client.sent.messages` | messages sent | `send`, `send_many`, request of a batch |
| `messaging.client.operation.duration` | a send or a receive, s | the same; batch received |
| `messaging.client.consumed.messages` | messages handed to the application | batch received |
| `messaging.process.duration` | from receiving to acknowledging, s | batch acknowledged |
| `rocketmq_send_cost_time` | time of a send, ms | `send`, `send_many`, request of a batch |
| `rocketmq_process_time` | from receiving to acknowledging, ms | batch acknowledged |
| `coherer.client.upkeep.failures` | failures of periodic work, by `step` | collection |
| `rocketmq_consumer_cached_messages`, `…_bytes` | fetched, not acknowledged | collection |

Messages in a batch are not measured one by one: `send_many` counts its messages by topic, and all
other metrics are updated once per batch. Without `metrics` a client measures nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from coherer._client.engine.assigned import delivery_of
from coherer._client.engine.assignments import Assignments
from coherer._client.engine.batches import ReceivedBatch
from coherer._client.engine.sender import Bulk, SendReport, Sink, Stored, UnseenFailures
from coherer._common.upkeep import Upkeep
from coherer._common.version import __version__
from coherer.errors import CohererError, UsageError
from coherer.message import Message

if TYPE_CHECKING:  # OpenTelemetry need not be installed
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Upper limits of the buckets of durations, from the conventions."""

SEND_MS: Final = (1, 5, 10, 20, 50, 200, 500)
PROCESS_MS: Final = (1, 5, 10, 100, 10_000, 60_000)
"""Upper limits of the buckets of durations in RocketMQ's metrics."""

Labels = dict[str, str]


class Meters:
    """The instruments of a `ClientMetrics`, and the producers and consumers that they measure."""

    def __init__(self, provider: MeterProvider | None = None) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise UsageError(
                "OpenTelemetry is not installed.", hint='pip install "coherer[otel]"'
            ) from error
        meter = metrics.get_meter("coherer", __version__, provider)
        self._observation = metrics.Observation
        self._consumers: WeakSet[ConsumerMeter] = WeakSet()
        self._upkeeps: WeakSet[Upkeep] = WeakSet()
        self.sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages sent to brokers."
        )
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages received."
        )
        self.duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sending or receiving.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self.process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing a batch.",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self.send_ms = meter.create_histogram(
            "rocketmq_send_cost_time",
            "ms",
            "Duration of sending.",
            explicit_bucket_boundaries_advisory=SEND_MS,
        )
        self.process_ms = meter.create_histogram(
            "rocketmq_process_time",
            "ms",
            "Duration of processing a batch.",
            explicit_bucket_boundaries_advisory=PROCESS_MS,
        )
        for name, unit, attribute in (
            ("rocketmq_consumer_cached_messages", "{message}", "messages"),
            ("rocketmq_consumer_cached_bytes", "By", "size_bytes"),
        ):
            meter.create_observable_gauge(
                name, [self._cached(attribute)], unit, "Fetched and not acknowledged."
            )

        meter.create_observable_counter(
            "coherer.client.upkeep.failures",
            [self._failures],
            "{failure}",
            "Failures of the periodic work of clients, by step.",
        )

    def watch(self, upkeep: Upkeep) -> None:
        """Report the failures of a client's periodic work."""
        self._upkeeps.add(upkeep)

    def _failures(self, _: CallbackOptions) -> Iterator[Observation]:
        total: Counter[str] = Counter()
        for upkeep in list(self._upkeeps):
            total.update(upkeep.failures)
        for step, count in total.items():
            yield self._observation(count, {"step": step})

    def producer(self, system: str, client_id: Callable[[], str]) -> ProducerMeter:
        """Make the meter of a producer."""
        return ProducerMeter(self, system, client_id)

    def consumer(
        self,
        system: str,
        client_id: Callable[[], str],
        group: str,
        assignments: Assignments[Any, Any],
    ) -> ConsumerMeter:
        """Make the meter of a consumer."""
        meter = ConsumerMeter(self, system, client_id, group, assignments)
        if system == ROCKETMQ:
            self._consumers.add(meter)
        return meter

    def _cached(self, attribute: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for meter in list(self._consumers):
                for topic, value in meter.cached(attribute).items():
                    yield self._observation(value, meter.rocketmq_labels(topic))

        return observe


class ClientMetrics:
    """Measures the producers and consumers of the clients that it is given to.

    Args:
        provider: makes the meter; None for the global provider.

    Raises:
        UsageError: OpenTelemetry is not installed.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._meters = Meters(provider)

    def __repr__(self) -> str:
        return "<ClientMetrics>"


def meters_of(metrics: ClientMetrics | None) -> Meters | None:
    """The instruments of a client."""
    return None if metrics is None else metrics._meters  # pyright: ignore[reportPrivateUsage]


ROCKETMQ: Final = "rocketmq"
TUBEMQ: Final = "tubemq"
"""Values of `messaging.system`; the conventions define none for TubeMQ."""


class ProducerMeter:
    """Measures a producer.

    Args:
        metrics: the metrics to record into.
        system: the value of `messaging.system`.
        client_id: returns the id of the client, which is known once it is connected.
    """

    def __init__(self, metrics: Meters, system: str, client_id: Callable[[], str]) -> None:
        self._metrics = metrics
        self._system = system
        self._client_id = client_id
        self._labels: dict[str, Labels] = {}

    def sent(self, topic: str, count: int, took_s: float, failed: Counter[str]) -> None:
        """Record an operation.

        Args:
            topic: the topic.
            count: how many messages were sent.
            took_s: the time until all outcomes were known.
            failed: how many of the messages were not stored, by the type of the error.
        """
        metrics, labels = self._metrics, self._labels.get(topic)
        if labels is None:
            labels = self._labels[topic] = {
                "messaging.system": self._system,
                "messaging.operation.name": "send",
                "messaging.destination.name": topic,
            }
        stored = count - failed.total()
        if stored:
            metrics.sent.add(stored, labels)
        for error, number in failed.items():
            metrics.sent.add(number, {**labels, "error.type": error})
        first = next(iter(failed), None)
        operation = {**labels, "messaging.operation.type": "send"}
        if first is not None:
            operation["error.type"] = first
        metrics.duration.record(took_s, operation)
        if self._system == ROCKETMQ:
            status = "success" if first is None else "failure"
            named = {"topic": topic, "client_id": self._client_id(), "invocation_status": status}
            metrics.send_ms.record(took_s * 1000, named)


class MeteredSink:
    """A sink that also measures one request."""

    __slots__ = ("_began_s", "_count", "_meter", "_sink", "_topic")

    def __init__(self, meter: ProducerMeter, topic: str, count: int, sink: Sink) -> None:
        self._meter = meter
        self._topic = topic
        self._count = count
        self._sink = sink
        self._began_s = perf_counter()

    def stored(self, sent: Stored) -> None:
        """Record that the broker has stored it."""
        self._sink.stored(sent)
        self._record(Counter())

    def lost(self, message: Message, error: CohererError) -> None:
        """Record that it was refused, or that its outcome is unknown."""
        self._sink.lost(message, error)
        self._record(Counter({error_type(error): self._count}))

    def _record(self, failed: Counter[str]) -> None:
        self._meter.sent(self._topic, self._count, perf_counter() - self._began_s, failed)


class MeteredBulk(Bulk):
    """Collects the outcomes of a `send_many`, and measures it when it is finished."""

    def __init__(
        self,
        meter: ProducerMeter,
        post_many: Callable[[Iterable[Message], Bulk], Awaitable[None]],
        *,
        receipts: bool,
        unseen: UnseenFailures | None = None,
    ) -> None:
        super().__init__(post_many, receipts=receipts, unseen=unseen)
        self._meter = meter
        self._began_s = perf_counter()
        self._topics: Counter[str] = Counter()

    async def add(self, messages: Iterable[Message]) -> None:
        """Post messages while the window has space."""
        await super().add(self._counted(messages))

    async def finish(self) -> SendReport:
        """Return the report when the outcome of every message is known."""
        report = await super().finish()
        took_s = perf_counter() - self._began_s
        failed: dict[str, Counter[str]] = {}
        for message, error in self._failed:
            if isinstance(error, UsageError):  # it was not sent
                self._topics[message.topic] -= 1
            else:
                failed.setdefault(message.topic, Counter())[error_type(error)] += 1
        for topic, count in self._topics.items():
            if count:
                self._meter.sent(topic, count, took_s, failed.get(topic, Counter()))
        return report

    def _counted(self, messages: Iterable[Message]) -> Iterator[Message]:
        topics = self._topics
        for message in messages:
            yield message  # anything but a message raises an error here
            topics[message.topic] += 1


class ConsumerMeter:
    """Measures a consumer.

    Args:
        metrics: the metrics to record into.
        system: the value of `messaging.system`.
        client_id: returns the id of the client.
        group: the consumer's group.
        assignments: its partitions.
    """

    def __init__(
        self,
        metrics: Meters,
        system: str,
        client_id: Callable[[], str],
        group: str,
        assignments: Assignments[Any, Any],
    ) -> None:
        self._metrics = metrics
        self._system = system
        self._client_id = client_id
        self._group = group
        self._assignments = assignments
        self._labels: dict[str, tuple[Labels, Labels, Labels]] = {}

    def received(self, batch: ReceivedBatch[Any], waited_s: float) -> None:
        """Record a batch that the application receives."""
        metrics, topic = self._metrics, batch.topic
        consumed, receive, _ = self._labels_of(topic)
        metrics.duration.record(waited_s, receive)
        delivery = delivery_of(batch)
        if delivery is not None:
            metrics.consumed.add(delivery.count, consumed)
            began_s = perf_counter()
            delivery.on_end = lambda ok: self._processed(topic, perf_counter() - began_s, ok=ok)

    def cached(self, attribute: str) -> dict[str, int]:
        """Return fetched, unacknowledged messages or bytes by topic; safe in any thread."""
        found: Counter[str] = Counter()
        for queue, fetcher in list(self._assignments.fetchers.items()):
            found[queue.topic] += getattr(fetcher.state, attribute)
        return found

    def rocketmq_labels(self, topic: str) -> Labels:
        """The attributes of RocketMQ's metrics."""
        return {"topic": topic, "consumer_group": self._group, "client_id": self._client_id()}

    def _processed(self, topic: str, took_s: float, *, ok: bool) -> None:
        *_, process = self._labels_of(topic)
        if not ok:
            process = {**process, "error.type": "retry"}
        self._metrics.process.record(took_s, process)
        if self._system == ROCKETMQ:
            status = "success" if ok else "failure"
            labels = {**self.rocketmq_labels(topic), "invocation_status": status}
            self._metrics.process_ms.record(took_s * 1000, labels)

    def _labels_of(self, topic: str) -> tuple[Labels, Labels, Labels]:
        """The attributes for the counter and for the durations of receiving and processing."""
        found = self._labels.get(topic)
        if found is None:
            common = {
                "messaging.system": self._system,
                "messaging.destination.name": topic,
                "messaging.consumer.group.name": self._group,
            }
            receive = {**common, "messaging.operation.name": "receive"}
            process = {**common, "messaging.operation.name": "process"}
            typed = {**receive, "messaging.operation.type": "receive"}
            found = self._labels[topic] = receive, typed, process
        return found


def error_type(error: CohererError) -> str:
    """Return the type of an error as an attribute.

    >>> error_type(UsageError("no"))
    'UsageError'
    """
    return type(error).__name__
