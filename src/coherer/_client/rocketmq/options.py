"""The options of a client of RocketMQ, of its producers and of its consumers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, cast

import msgspec

from coherer import limits
from coherer._client.engine.assigned import FetchLimits
from coherer._client.engine.metrics import ClientMetrics
from coherer._client.engine.options import TIMEOUT_MS_MAX, TIMEOUT_MS_MIN
from coherer._client.engine.sender import check_timeout, check_window
from coherer._client.rocketmq.faults import FaultRules
from coherer._client.rocketmq.observers import Observer
from coherer._client.rocketmq.start_position import Start
from coherer._client.rocketmq.transactions import Check
from coherer._net import TlsOptions
from coherer._record import compression
from coherer._wire.rocketmq import names
from coherer._wire.rocketmq.allocate import Strategy, average
from coherer._wire.rocketmq.codes import ResponseCode
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.subscription import Selector, Sql92, Tags
from coherer.errors import UsageError

VIP_PORT_STEP: Final = 2
"""A broker's VIP port is its main port minus this. Everything but pulls may use it."""

GROUP_DEFAULT: Final = "coherer"
"""The default producer group. It matters only for transactions and replies."""

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The largest message or batch that Java's brokers accept by default."""

RETRY_CODES: Final = frozenset(
    {
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.NO_PERMISSION),
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.NO_BUYER_ID),
        int(ResponseCode.NOT_IN_CURRENT_UNIT),
    }
)
"""Refusals that another broker may not share, as in Java. SYSTEM_BUSY (2) is not one of them:
sending less helps an overloaded broker more than sending again at once."""

Selection = Tags | Sql92 | str | None | Iterable[str]
"""The filter of a topic: `Tags`, `Sql92`, text with tags (`"UA || AA"`), or several tags."""

Topics = str | Iterable[str] | Mapping[str, Selection]
"""One topic, several topics, or a mapping of topics to filters."""

Listener = Callable[[list[Queue]], Awaitable[None] | None]
"""Called with the queues that were assigned or are being revoked."""

Model = Literal["clustering", "broadcast"]
"""Whether the members of a group share the messages, or each of them gets all of them."""


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a client of RocketMQ.

    Args:
        addresses: host and port of each name server.
        user: the access key; None to send no signatures.
        password: the secret key. It signs requests and is never sent.
        token: the security token of temporary keys.
        tls: the TLS settings; None for plain TCP.
        timeout_ms: of each request, and of a send with all its retries.
        connect_timeout_ms: of each new connection.
        heartbeat_ms: interval of heartbeats; brokers forget clients that are silent for 120 s.
        route_ms: interval of refreshing the routes of topics in use.
        namespace: prefix of the names of all topics and groups.
        instance: the second part of the client id; None for a unique one. Set it where the id has
            to stay the same, for example for the local offsets of a broadcast consumer.
        unit: the client's unit, the third part of its id.
        vip: whether sends and administration use the brokers' VIP port.
        metrics: measures producers and consumers (`coherer.ClientMetrics`); None for no metrics.
    """

    addresses: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = None
    token: str | None = None
    tls: TlsOptions | None = None
    timeout_ms: int = 10_000
    connect_timeout_ms: int = 3_000
    heartbeat_ms: int = 30_000
    route_ms: int = 30_000
    namespace: str = ""
    instance: str | None = None
    unit: str = ""
    vip: bool = False
    metrics: ClientMetrics | None = None

    def __post_init__(self) -> None:
        if not self.addresses:
            raise UsageError("A client needs the address of a name server.")
        if (self.user is None) != (self.password is None):
            raise UsageError("User and password go together.")
        if not TIMEOUT_MS_MIN <= self.timeout_ms <= TIMEOUT_MS_MAX:
            raise UsageError(
                f"A timeout is {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX} ms, not {self.timeout_ms}."
            )
        _check_minimums(self, {"connect_timeout_ms": 1, "heartbeat_ms": 1, "route_ms": 1})

    def __repr__(self) -> str:
        return f"<ClientOptions {self.servers}, user {self.user}>"  # never the password

    @property
    def servers(self) -> str:
        """The name servers as text."""
        return ",".join(f"{host}:{port}" for host, port in self.addresses)


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a producer.

    Args:
        group: the producer group: brokers ask any member of it about open transactions.
        window: maximum number of messages in flight.
        window_bytes: maximum number of bytes in flight.
        timeout_ms: how long a message waits for its receipt, retries included; the client's
            timeout when None.
        retries: how often a message that is not stored is sent again to another broker, because
            the broker refused it or could not be reached. These retries store nothing twice.
        retry_lost: whether to also send a message again whose answer was lost because the
            connection broke, as Java's producers do. By default such a send raises
            DisconnectedError. With `retry_lost` no message is lost while brokers come and go, but
            a message may be stored more than once; all copies have the same unique id
            (`UNIQ_KEY`).
        retry_codes: refusals that are retried at once; Java's by default. SYSTEM_BUSY (2) is not
            one of them: unless `retries` is 0, a message that a busy broker refused is sent again
            after a pause of 0.1 to 0.3 s, until the timeout. Add it if another broker may have
            capacity.
        rules: when to avoid slow brokers; None for never, the default of Java's producers.
        compress_from_bytes: bodies of at least this size are compressed; 0 for none.
        compress_level: compression level, 0 to 9.
        max_bytes: maximum size of a message or a batch.
        wait: whether the broker answers only after the message is flushed and replicated as
            configured.
        trace: send a record of each message to the trace topic, or to the topic of this name.
        observers: called while messages are sent; `coherer.rocketmq.Telemetry` is one.
        check: called when a broker asks about a transaction whose end it does not know. A producer
            without it cannot begin transactions.
    """

    group: str = GROUP_DEFAULT
    window: int = 5_000
    window_bytes: int = limits.WINDOW_BYTES_DEFAULT
    timeout_ms: int | None = None
    retries: int = 2
    retry_lost: bool = False
    retry_codes: Collection[int] = RETRY_CODES
    rules: FaultRules | None = None
    compress_from_bytes: int = compression.THRESHOLD_BYTES
    compress_level: int = compression.LEVEL
    max_bytes: int = MESSAGE_BYTES_MAX
    wait: bool = True
    trace: bool | str = False
    observers: tuple[Observer, ...] | list[Observer] = ()
    check: Check | None = None

    def __post_init__(self) -> None:
        names.check_group(self.group)
        check_window(self.window, self.window_bytes)
        check_timeout(self.timeout_ms)
        _check_minimums(self, {"retries": 0, "compress_from_bytes": 0, "max_bytes": 1})
        if not 0 <= self.compress_level <= 9:
            raise UsageError(f"A compression level is 0 to 9, not {self.compress_level}.")

    def system_properties(self, namespace: str) -> dict[str, str]:
        """The properties that RocketMQ gives a meaning to and every message gets."""
        found = {} if self.wait else {"WAIT": "false"}
        if namespace:
            found["INSTANCE_ID"] = namespace
        return found


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a consumer.

    Args:
        start: where a group begins in a queue without an offset of the group: `"latest"`, at the
            end; `"earliest"`, at the oldest message; a `datetime`, at the first message that was
            stored about then. `"always-latest"` begins at the end, and a mapping of queues to
            offsets at these, even if the group has an offset.
        model: whether the members of a group share the messages, or each of them gets all.
        orderly: deliver one batch of a queue at a time, and nothing behind a batch that failed.
            The queues are locked at the broker.
        pull_messages: how many messages to request at a time; Java's brokers return at most 32 by
            default.
        batch_messages: maximum number of messages in a batch; 0 for everything that one pull
            returned.
        queue_messages: pause pulling a queue while this many of its messages are buffered.
        queue_bytes: pause pulling a queue while this many bytes of its messages are buffered.
        queue_span: pause pulling a queue while its last offset is this far ahead of the first
            message that is not acknowledged (not with `orderly`).
        prefetch_bytes: pause all pulling while this many bytes of all queues are buffered, not
            counting paused queues.
        poll_ms: how long the broker may hold a pull that has no messages.
        max_attempts: a message that was delivered this often without success becomes a dead letter;
            1 delivers it once. Java's `maxReconsumeTimes` counts the redeliveries after the first
            delivery, so it is one less. -1 for the group's setting (16 redeliveries, which are 17
            deliveries; brokers before 4.9.1 always use 16), with `orderly` for never.
        consume_ms: a batch that is not acknowledged after this time is sent back; 0 for never. Not
            with `orderly`.
        suspend_ms: with `orderly`, the pause after a failure.
        release_ms: with `orderly`, how long a batch of a queue that is being revoked may still be
            acknowledged.
        strategy: how the members share the queues; all must use the same one.
        rebalance_ms: interval of rebalancing when nothing else triggers it.
        persist_ms: interval of storing offsets.
        offsets: the directory of a broadcast consumer's offsets; Java's when None.
        on_assigned: called with newly assigned queues, before anything is pulled from them.
        on_revoked: called with queues that are being revoked, while they can still be
            acknowledged.
        trace: send records of each message to the trace topic, or to the topic of this name. Not
            with a pull consumer.
    """

    start: Start = "latest"
    model: Model = "clustering"
    orderly: bool = False
    pull_messages: int = 1_000
    batch_messages: int = 0
    queue_messages: int = 4_000
    queue_bytes: int = 100 * 1024 * 1024
    queue_span: int = 10_000
    prefetch_bytes: int = 64 * 1024 * 1024
    poll_ms: int = 15_000
    max_attempts: int = -1
    consume_ms: int = 900_000
    suspend_ms: int = 1_000
    release_ms: int = 1_000
    strategy: Strategy = average
    rebalance_ms: int = 20_000
    persist_ms: int = 5_000
    offsets: Path | None = None
    on_assigned: Listener | None = None
    on_revoked: Listener | None = None
    trace: bool | str = False

    def __post_init__(self) -> None:
        _check_minimums(self, _CONSUMER_MINIMUMS)
        if self.max_attempts == 0:
            raise UsageError(
                "max_attempts is 1 or more, or -1 for the group's setting, not 0.",
                hint="1 delivers a message once. It becomes a dead letter when that fails.",
            )
        if self.model not in {"clustering", "broadcast"}:
            raise UsageError(f"The model is 'clustering' or 'broadcast', not {self.model!r}.")

    @property
    def max_retries(self) -> int:
        """Java's `maxReconsumeTimes`: deliveries after the first one; -1 for the default."""
        return max(self.max_attempts - 1, -1)


def fetch_limits(options: ConsumerOptions) -> FetchLimits:
    """When a queue is not pulled from."""
    span = 0 if options.orderly else options.queue_span
    return FetchLimits(messages=options.queue_messages, size_bytes=options.queue_bytes, span=span)


_CONSUMER_MINIMUMS: Final[dict[str, int]] = {
    **dict.fromkeys(("pull_messages", "queue_messages", "queue_bytes", "prefetch_bytes"), 1),
    **dict.fromkeys(("poll_ms", "rebalance_ms", "persist_ms", "suspend_ms"), 1),
    **dict.fromkeys(("batch_messages", "queue_span", "consume_ms", "release_ms"), 0),
    "max_attempts": -1,
}


def _check_minimums(options: msgspec.Struct, minimums: Mapping[str, int]) -> None:
    for name, minimum in minimums.items():
        value: int = getattr(options, name)
        if value < minimum:
            raise UsageError(f"{name} is {minimum} or more, not {value}.")


def selectors_by_topic(topics: Topics) -> dict[str, Selector]:
    """The topics of a consumer, each with its filter.

    >>> selectors_by_topic("a"), selectors_by_topic({"a": ["UA", "AA"]})
    ({'a': None}, {'a': Tags(text='UA || AA')})
    """
    if isinstance(topics, str):
        return {topics: None}
    if not isinstance(topics, Mapping):
        return dict.fromkeys(topics)
    wanted = cast("Mapping[str, Selection]", topics)
    return {topic: selector_of(selection) for topic, selection in wanted.items()}


def selector_of(selection: Selection) -> Selector:
    """A filter in the form that subscriptions take.

    Raises:
        UsageError: it is not a filter that RocketMQ's brokers know.
    """
    if selection is None or isinstance(selection, str | Tags | Sql92):
        return selection
    given = cast("object", selection)
    tags = [*cast("Iterable[object]", given)] if isinstance(given, Iterable) else [given]
    words = [tag for tag in tags if isinstance(tag, str)]
    if len(words) < len(tags):
        raise UsageError(f"RocketMQ's brokers filter by tags or by SQL92, not by {selection!r}.")
    if isinstance(given, set | frozenset):
        words.sort()
    return Tags.any(*words) if words else None
