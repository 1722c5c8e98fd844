"""The options of consumers, and other small things that their users name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, cast

import msgspec

from coherer._client.rocketmq.process_queue import Thresholds
from coherer._client.rocketmq.start_position import Start
from coherer._wire.rocketmq.allocate import Strategy, average
from coherer._wire.rocketmq.bodies import SubscriptionData
from coherer._wire.rocketmq.names import Queue
from coherer._wire.rocketmq.subscription import Selector, Sql92, Subscription, Tags
from coherer.errors import UsageError

Selection = Tags | Sql92 | str | None | Iterable[str]
"""What is taken of a topic: `Tags`, `Sql92`, text with tags (`"UA || AA"`), or several tags."""

Topics = str | Iterable[str] | Mapping[str, Selection]
"""One topic, several, or topics with what is taken of each."""

Listener = Callable[[list[Queue]], Awaitable[None] | None]
"""Told about queues that come or go."""

Model = Literal["clustering", "broadcast"]
"""Whether the members of a group share the messages, or each of them gets all."""


_LEAST: Final[dict[str, int]] = {
    **dict.fromkeys(("pull_messages", "queue_messages", "queue_bytes", "prefetch_bytes"), 1),
    **dict.fromkeys(("poll_ms", "rebalance_ms", "persist_ms", "suspend_ms"), 1),
    **dict.fromkeys(("batch_messages", "queue_span", "consume_ms", "release_ms"), 0),
    "max_attempts": -1,
}
"""The least value of options that are numbers."""


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a consumer.

    Args:
        start: where to begin, see `start`.
        model: whether the members of a group share the messages, or each of them gets all.
        orderly: deal with one batch of a queue at a time, and with none behind one that failed.
            The queues are locked with the broker.
        pull_messages: how many messages to ask for at a time; Java's brokers give 32 unless they
            are set otherwise.
        batch_messages: how many messages a batch has at most; 0 for as many as came at a time.
        queue_messages: a queue is not pulled from while so many of its messages are here,
        queue_bytes: or so many bytes,
        queue_span: or when its last offset is so far behind the first that is not dealt with (not
            with `orderly`).
        prefetch_bytes: no queue is pulled from while so much of all of them is here, without those
            that are paused.
        poll_ms: how long the broker may hold a pull for which there is nothing.
        max_attempts: a message that was delivered so often goes to the dead letters; -1 for what
            the group is set to (16; brokers before 4.9.1 take 16), with `orderly` for never.
        consume_ms: a batch that is not dealt with after so long is sent back, 0 for never. Not with
            `orderly`.
        suspend_ms: with `orderly`, the pause after a failure.
        release_ms: with `orderly`, when a queue goes to somebody else, how long you may still
            confirm.
        strategy: how the members share the queues; all must use the same.
        rebalance_ms: how often the queues are shared out anew when nothing has told us to.
        persist_ms: how often offsets are written down.
        offsets: the folder of a broadcast consumer's offsets; Java's when None.
        on_assigned: told which queues have come, before anything is pulled from them.
        on_revoked: told which queues go, while they can still be confirmed.
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
        for name, least in _LEAST.items():
            value: int = getattr(self, name)
            if value < least:
                raise UsageError(f"{name} is {least} or more, not {value}.")
        if self.model not in {"clustering", "broadcast"}:
            raise UsageError(f"{self.model!r} is no model: 'clustering' and 'broadcast' are.")

    @property
    def thresholds(self) -> Thresholds:
        """When a queue is not pulled from."""
        span = 0 if self.orderly else self.queue_span
        return Thresholds(messages=self.queue_messages, size_bytes=self.queue_bytes, span=span)


def selections_of(topics: Topics) -> dict[str, Selector]:
    """Topics and what is taken of them in one form.

    >>> selections_of("a"), selections_of({"a": ["UA", "AA"]})
    ({'a': None}, {'a': Tags(text='UA || AA')})
    """
    if isinstance(topics, str):
        return {topics: None}
    if not isinstance(topics, Mapping):
        return dict.fromkeys(topics)
    wanted = cast("Mapping[str, Selection]", topics)
    return {topic: selector_of(selection) for topic, selection in wanted.items()}


def selector_of(selection: Selection) -> Selector:
    """What is taken of one topic, in one form."""
    if selection is None or isinstance(selection, str | Tags | Sql92):
        return selection
    tags = sorted(selection) if isinstance(selection, set | frozenset) else list(selection)
    return Tags.any(*tags) if tags else None


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """What a heartbeat says of a subscription."""
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.text,
        tags_set=list(subscription.tags),
        code_set=list(subscription.codes),
        sub_version=subscription.version_ms,
        expression_type=subscription.kind,
    )
