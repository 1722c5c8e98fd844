"""The filters of consumers: SQL92 expressions that the broker remembers.

See docs/protocol/rocketmq.md, section 3.11.

An expression is compiled when it arrives with a heartbeat, not during a pull. Filters outlive their
groups:

* When a group disappears or unsubscribes from a topic, its filter becomes dead; the next heartbeat
  with the same or a newer version revives it. After a day it is deleted.
* All expressions have `FILTERS_CHARS_MAX` characters at most: for a new one those that died first
  are deleted, and if all are alive, it is not kept.
* A newer version with another expression replaces the filter. If it does not compile, the filter is
  deleted, and pulls that refer to it are refused. An older version is ignored.

The file is RocketMQ's `consumerFilter.json`. The compiler and the bits of Java's bloom filter are
passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from coherer import limits
from coherer._common.logs import Log
from coherer._rules.common.java_json import parse_file
from coherer._rules.rocketmq.clients import TAG, GroupSubscription
from coherer.errors import CohererError

_log = Log(logging.getLogger(__name__))

CLEAN_AFTER_MS = 24 * 3_600_000
_BACKDATED_MS = 30_000

Compiled: TypeAlias = "Callable[[Mapping[str, str]], bool | None]"
"""Whether a message with these properties matches; None if that is undefined."""

Compile: TypeAlias = "Callable[[str, str], Compiled]"
"""Compiles an expression of a type. Raises a `CohererError` for an invalid one."""


class BloomBits(msgspec.Struct, frozen=True, rename="camel"):
    """The bits of one group and topic in a bloom filter.

    Args:
        bit_num: the number of bits of the filter.
        bit_pos: the positions; one may occur more than once.
    """

    bit_num: int = 0
    bit_pos: tuple[int, ...] = ()

    def like(self, other: BloomBits) -> bool:
        """Whether both belong to the same kind of filter."""
        return self.bit_num == other.bit_num and len(self.bit_pos) == len(other.bit_pos)


class Filter(msgspec.Struct, kw_only=True, eq=False):
    """A group's filter for a topic.

    Args:
        expression: its text.
        type: `SQL92`.
        version: the version of the subscription.
        born_ms: when it was created here.
        dead_ms: when it became dead; 0 while it is alive.
        bloom: its bits.
        compiled: the compiled expression; None for an invalid one from a file, which matches
            everything.
    """

    group: str
    topic: str
    expression: str
    type: str
    version: int
    born_ms: int
    dead_ms: int = 0
    bloom: BloomBits | None = None
    compiled: Compiled | None = None

    @property
    def is_dead(self) -> bool:
        """Whether it is dead."""
        return self.dead_ms >= self.born_ms

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message passes; not if the result is undefined or the evaluation fails."""
        if self.compiled is None:
            return True
        try:
            return self.compiled(properties) is True
        except CohererError as error:
            _log.debug("%.200r could not be evaluated: %s", self.expression, error)
            return False


class ConsumerFilters:
    """The filters of all groups, by topic and group.

    Args:
        compile: compiles expressions.
        bits: the bits of a text in the bloom filter.

    >>> def compiled(expression, kind):
    ...     return lambda properties: "a" in properties
    >>> filters = ConsumerFilters(compiled, lambda text: BloomBits(112, (5, 12, 92)))
    >>> wanted = GroupSubscription(topic="t", type="SQL92", expression="a > 1")
    >>> filters.register("g", [wanted], 1000)
    >>> filters.get("t", "g").matches({"a": "2"})
    True
    """

    def __init__(self, compile: Compile, bits: Callable[[str], BloomBits]) -> None:  # noqa: A002
        self._compile = compile
        self._bits = bits
        self._filters: dict[str, dict[str, Filter]] = {}
        self._topics_of: dict[str, set[str]] = {}  # by group, with filters dead or alive
        self._died: dict[tuple[str, str], None] = {}  # in that order; some are alive again
        self._chars = 0

    def get(self, topic: str, group: str) -> Filter | None:
        """The filter, dead or alive, or None."""
        return self._filters.get(topic, {}).get(group)

    def of_topic(self, topic: str) -> list[Filter]:
        """All filters of a topic, dead or alive."""
        return list(self._filters.get(topic, {}).values())

    def longest(self, group: str) -> int:
        """The length of the longest expression of a group; 0 without one."""
        filters = (self._filters[topic][group] for topic in self._topics_of.get(group, ()))
        return max((len(one.expression) for one in filters), default=0)

    def register(self, group: str, subscriptions: Iterable[GroupSubscription], now_ms: int) -> None:
        """Take the subscriptions of a group's heartbeat; its other filters become dead."""
        topics: set[str] = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            self._register(group, subscription, now_ms)
        self._bury(group, self._topics_of.get(group, set()) - topics, now_ms)

    def unregister(self, group: str, now_ms: int) -> None:
        """Mark the filters of a group without members as dead."""
        self._bury(group, self._topics_of.get(group, ()), now_ms)

    def build(self, group: str, subscription: GroupSubscription, now_ms: int) -> Filter | None:
        """Create a filter without remembering it.

        Returns:
            The filter; None for tags, and for an invalid expression.
        """
        if subscription.type == TAG:
            return None
        try:
            compiled = self._compile(subscription.expression, subscription.type)
        except CohererError as error:
            _log.warning(
                "Group %s, topic %s: %.200r could not be compiled: %s",
                group,
                subscription.topic,
                subscription.expression,
                error,
                about=(group, subscription.topic),
                group=group,
                topic=subscription.topic,
            )
            return None
        return Filter(
            group=group,
            topic=subscription.topic,
            expression=subscription.expression,
            type=subscription.type,
            version=subscription.version,
            born_ms=now_ms,
            compiled=compiled,
        )

    def clean(self, now_ms: int) -> None:
        """Delete filters that have been dead for a day."""
        for topic, filters in list(self._filters.items()):
            for group, one in list(filters.items()):
                if one.is_dead and now_ms - one.dead_ms >= CLEAN_AFTER_MS:
                    _log.info(
                        "Group %s, topic %s: deleted the dead filter",
                        group,
                        topic,
                        group=group,
                        topic=topic,
                    )
                    self._remove(topic, group)

    # -- the file

    def dump(self, now_ms: int) -> bytes:
        """The file's content, cleaned."""
        self.clean(now_ms)
        file = _File(
            {
                topic: _Topic({group: _entry(one) for group, one in sorted(filters.items())}, topic)
                for topic, filters in sorted(self._filters.items())
            }
        )
        return msgspec.json.format(msgspec.json.encode(file), indent=1)

    def load(
        self,
        data: bytes,
        now_ms: int,
        loads: Callable[[bytes], object] = msgspec.json.decode,
    ) -> None:
        """Read the file. All its filters are dead at first.

        A file with bits of another kind of bloom filter is ignored.

        Args:
            data: its content.
            now_ms: the time.
            loads: a JSON reader, for the dialect of Java's writers.

        Raises:
            DamagedStoreError: the file is invalid.
        """
        file = parse_file("consumerFilter.json", data, _File, loads)
        read = {
            topic: {
                group: self._filter(topic, group, entry, now_ms)
                for group, entry in (content.groups or {}).items()
                if entry is not None
            }
            for topic, content in file.topics.items()
            if content is not None
        }
        model = self._bits("")
        everything = [one for filters in read.values() for one in filters.values()]
        if all(one.bloom is not None and one.bloom.like(model) for one in everything):
            self._filters = {topic: filters for topic, filters in read.items() if filters}
            self._topics_of = {}
            self._chars = sum(len(one.expression) for one in everything)
            self._died = {(one.topic, one.group): None for one in everything}
            for one in everything:
                self._topics_of.setdefault(one.group, set()).add(one.topic)
        else:
            _log.warning("Ignored consumerFilter.json: it is for another bloom filter")

    # -- inside

    def _register(self, group: str, subscription: GroupSubscription, now_ms: int) -> None:
        if subscription.type == TAG or not subscription.expression:
            return
        topic = subscription.topic
        bloom = self._bits(f"{group}#{topic}")
        old = self.get(topic, group)
        if old is not None and not _replaces(subscription, bloom, old):
            return
        if old is not None:
            self._remove(topic, group)
        if not self._make_room(subscription):
            return
        new = self.build(group, subscription, now_ms)
        if new is not None:
            new.bloom = bloom
            self._filters.setdefault(topic, {})[group] = new
            self._topics_of.setdefault(group, set()).add(topic)
            self._chars += len(new.expression)

    def _make_room(self, subscription: GroupSubscription) -> bool:
        """Delete filters that died first, if there are too many; returns whether one more fits."""
        left = limits.FILTERS_CHARS_MAX - len(subscription.expression)
        while self._chars > left >= 0 and self._died:
            topic, group = next(iter(self._died))
            del self._died[topic, group]
            found = self.get(topic, group)
            if found is not None and found.is_dead:
                self._remove(topic, group)
        if self._chars <= left:
            return True
        _log.error(
            "The selector %.200r for topic %s is not kept, and its consumers get no messages: "
            "those of all groups have more than %d characters",
            subscription.expression,
            subscription.topic,
            limits.FILTERS_CHARS_MAX,
            about="selectors",
            topic=subscription.topic,
        )
        return False

    def _remove(self, topic: str, group: str) -> None:
        filters, topics = self._filters[topic], self._topics_of[group]
        self._chars -= len(filters.pop(group).expression)
        self._died.pop((topic, group), None)
        topics.discard(topic)
        if not filters:
            del self._filters[topic]
        if not topics:
            del self._topics_of[group]

    def _bury(self, group: str, topics: Iterable[str], now_ms: int) -> None:
        for topic in topics:
            found = self._filters[topic][group]
            if not found.is_dead:
                found.dead_ms = now_ms
                self._died.pop((topic, group), None)
                self._died[topic, group] = None

    def _filter(self, topic: str, group: str, entry: _Entry, now_ms: int) -> Filter:
        subscription = GroupSubscription(
            topic=topic,
            expression=entry.expression or "",
            type=entry.expression_type or "",
            version=entry.client_version,
        )
        built = self.build(group, subscription, now_ms)
        return Filter(
            group=group,
            topic=topic,
            expression=subscription.expression,
            type=subscription.type,
            version=entry.client_version,
            born_ms=entry.born_time,
            dead_ms=entry.dead_time or max(now_ms - _BACKDATED_MS, entry.born_time),
            bloom=entry.bloom_filter_data,
            compiled=None if built is None else built.compiled,
        )


def _replaces(new: GroupSubscription, bloom: BloomBits, old: Filter) -> bool:
    """Whether a new filter is needed; if not, the old one takes over the new version."""
    same = new.expression == old.expression and new.type == old.type
    if new.version <= old.version:
        if not same:
            _log.info(
                "Group %s: an older expression for %s is ignored",
                old.group,
                old.topic,
                group=old.group,
                topic=old.topic,
            )
        if new.version == old.version:
            old.dead_ms = 0
        return False
    if not same or old.bloom != bloom:
        return True
    old.version = new.version
    old.dead_ms = 0
    return False


class _Entry(msgspec.Struct, rename="camel"):
    bloom_filter_data: BloomBits | None = None
    born_time: int = 0
    client_version: int = 0
    consumer_group: str | None = None
    dead: bool = False
    dead_time: int = 0
    expression: str | None = None
    expression_type: str | None = None
    topic: str | None = None


class _Topic(msgspec.Struct):
    groups: dict[str, _Entry | None] | None = msgspec.field(name="groupFilterData", default=None)
    topic: str | None = None


class _File(msgspec.Struct):
    topics: dict[str, _Topic | None] = msgspec.field(
        name="filterDataByTopic", default_factory=dict[str, "_Topic | None"]
    )


def _entry(one: Filter) -> _Entry:
    return _Entry(
        bloom_filter_data=one.bloom,
        born_time=one.born_ms,
        client_version=one.version,
        consumer_group=one.group,
        dead=one.is_dead,
        dead_time=one.dead_ms,
        expression=one.expression,
        expression_type=one.type,
        topic=one.topic,
    )
