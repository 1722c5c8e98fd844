"""The options of a consumer, and other small things that its users name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import msgspec

from coherer._client.engine.consumer import Progress
from coherer._client.tubemq.assignments import Listener
from coherer._client.tubemq.positions import Start
from coherer.errors import UsageError

Topics = str | Iterable[str] | Mapping[str, Iterable[str]] | Mapping[str, Iterable[str] | None]
"""One topic, several, or topics with the tags that are wanted of each: several, or as one text as
RocketMQ's clients write it, `"new || paid"`; all messages with None, `"*"` or no tags."""


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a consumer.

    Args:
        start: where to begin, see `positions`.
        poll_ms: timeout of a get. Our broker holds a get that finds nothing almost so long.
        empty_ms: pause after "nothing there" from a broker that does not hold gets.
        release_ms: when a partition goes to somebody else, how long you may still confirm.
        prefetch_bytes: no more is fetched while so much waits to be received.
        on_assigned: told which partitions have come, before anything is fetched from them.
        on_revoked: told which partitions go, while they can still be confirmed.
    """

    start: Start = "latest"
    poll_ms: int = 30_000
    empty_ms: int = 400
    release_ms: int = 3_000
    prefetch_bytes: int = 64 * 1024 * 1024
    on_assigned: Listener | None = None
    on_revoked: Listener | None = None

    def __post_init__(self) -> None:
        least = {"poll_ms": 1, "empty_ms": 0, "release_ms": 0, "prefetch_bytes": 1}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name} is {getattr(self, name)}; it is {bound} or more.")


def topics_of(topics: Topics) -> dict[str, frozenset[str]]:
    """Topics and their filters in one form.

    Raises:
        UsageError: a filter is none of tags.

    >>> topics_of("a"), topics_of({"a": ["UA"]})
    ({'a': frozenset()}, {'a': frozenset({'UA'})})
    >>> topics_of({"a": "UA"}), topics_of({"a": "*", "b": None})
    ({'a': frozenset({'UA'})}, {'a': frozenset(), 'b': frozenset()})
    """
    if isinstance(topics, str):
        return {topics: frozenset()}
    if isinstance(topics, Mapping):
        wanted = cast("Mapping[str, object]", topics)
        return {topic: _tags_of(topic, filters) for topic, filters in wanted.items()}
    return {topic: frozenset() for topic in topics}


def _tags_of(topic: str, filters: object) -> frozenset[str]:
    if isinstance(filters, str):
        tags = {tag.strip() for tag in filters.split("||")} - {""}
        return frozenset() if "*" in tags else frozenset(tags)
    if filters is None:
        return frozenset()
    if not isinstance(filters, Iterable):
        raise UsageError(
            f"TubeMQ's brokers filter by tags, not by {type(filters).__name__}.", topic=topic
        )
    return frozenset(cast("Iterable[str]", filters))


__all__ = ["ConsumerOptions", "Progress", "Topics", "topics_of"]
