"""How fast one partition may be read: flow control in the client.

See docs/protocol/tubemq.md, section 4.10.

The master sends two sets of rules, the group's and the default ones (`_wire.tubemq.flow`). They
define the pause of a partition after each batch:

1. A data limit allows a number of bytes a minute, and a twelfth of it in five seconds. The limit is
   chosen once a minute, from the backlog; while that is unknown, a default applies.
2. After several empty reads in a row, a frequency limit may require a longer pause.
3. After a batch with messages, a "low fetch" rule may require a pause.

The group's rules of a kind replace the default ones. Bytes are those of the answers; Java counts
bodies, which are a few percent less.

No I/O and no clock: the caller passes the time of a monotonic clock, and a function that converts
it to the time of day, which data limits depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from coherer._wire.tubemq.flow import (
    UNKNOWN_BACKLOG,
    UNKNOWN_BACKLOG_PAUSE_MS,
    UNLIMITED_BYTES,
    FlowRules,
    LowFetch,
)

MINUTE_MS: Final = 60_000
SLICE_MS: Final = 5_000
SLICES: Final = MINUTE_MS // SLICE_MS
ESCAPE_CHECK_MS: Final = 10_000
"""Whether a group limits itself is determined this often."""


class Rules(Protocol):
    """The rules in force; they may change at any time."""

    @property
    def group_rules(self) -> FlowRules:
        """The rules of the group."""
        ...

    @property
    def default_rules(self) -> FlowRules:
        """The rules of all groups."""
        ...


class Delivered(Protocol):
    """A batch, as flow control sees it."""

    @property
    def size_bytes(self) -> int:
        """Its size."""
        ...

    @property
    def backlog_bytes(self) -> int:
        """The bytes after it; negative if unknown."""
        ...

    @property
    def require_slow(self) -> bool:
        """Whether a consumer with filters is close to the end."""
        ...


class FlowControl:
    """The flow control of one partition.

    Args:
        rules: the rules in force.
        filtered: whether the consumer has filters for the topic.
        wall_ms: converts the caller's time to the time of day; by default they are the same.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        filtered: bool,
        wall_ms: Callable[[int], int] = lambda now_ms: now_ms,
    ) -> None:
        self._wall_ms = wall_ms
        self._rules = rules
        self._filtered = filtered
        self._minute_ms: int | None = None  # when the minute began
        self._slice_ms = 0
        self._minute_bytes = 0
        self._slice_bytes = 0
        self._limit_bytes = UNLIMITED_BYTES
        self._limit_pause_ms = 0
        self._low: LowFetch | None = None
        self._backlog = -1
        self._empty_reads = 0
        self._escape_ms: int | None = None
        self._escapes = False

    def limits_itself(self, now_ms: int) -> bool:
        """Whether the group has a data limit at this time; then the broker does not apply one."""
        if self._escape_ms is None or now_ms - self._escape_ms >= ESCAPE_CHECK_MS:
            self._escape_ms = now_ms
            limit = self._rules.group_rules.data_limit(UNLIMITED_BYTES, self._wall_ms(now_ms))
            self._escapes = limit is not None
        return self._escapes

    def delivered(self, batch: Delivered, now_ms: int) -> int:
        """A batch is finished; returns the pause in ms, counted from its arrival."""
        if batch.backlog_bytes >= 0:
            self._backlog = batch.backlog_bytes
        self._empty_reads = 0
        self._count(batch.size_bytes, now_ms)
        if self._limit_reached:
            return self._limit_pause_ms
        if self._low is None:
            return 0
        if not self._filtered:
            return self._low.pause_ms
        return self._low.end_pause_ms if batch.require_slow else self._low.filter_pause_ms

    def empty(self, pause_ms: int, now_ms: int) -> int:
        """There were no messages; returns the pause in ms.

        Args:
            pause_ms: the pause without rules.
        """
        self._count(0, now_ms)
        self._empty_reads += 1
        group = self._rules.group_rules
        rules = group if group.frequency_limits else self._rules.default_rules
        rule_ms = rules.empty_pause_ms(self._empty_reads)
        return pause_ms if rule_ms is None else rule_ms

    def refused(self, pause_ms: int, now_ms: int) -> int:
        """The broker returned no messages for another reason; returns the pause in ms."""
        self._count(0, now_ms)
        self._empty_reads = 0
        return pause_ms

    @property
    def _limit_reached(self) -> bool:
        return (
            self._minute_bytes >= self._limit_bytes
            or self._slice_bytes >= self._limit_bytes // SLICES
        )

    def _count(self, size_bytes: int, now_ms: int) -> None:
        if self._minute_ms is None or now_ms - self._minute_ms >= MINUTE_MS:
            self._minute_ms = self._slice_ms = now_ms
            self._minute_bytes = self._slice_bytes = 0
            self._choose_rules(now_ms)
        elif now_ms - self._slice_ms >= SLICE_MS:
            self._slice_ms = now_ms
            self._slice_bytes = 0
        self._minute_bytes += size_bytes
        self._slice_bytes += size_bytes

    def _choose_rules(self, now_ms: int) -> None:
        """Select the rules for the next minute."""
        group, default = self._rules.group_rules, self._rules.default_rules
        self._low = group.low_fetch or default.low_fetch
        self._limit_bytes, self._limit_pause_ms = UNLIMITED_BYTES, 0
        if not (group.data_limits or default.data_limits):
            return
        if self._backlog < 0:
            self._limit_bytes, self._limit_pause_ms = UNKNOWN_BACKLOG, UNKNOWN_BACKLOG_PAUSE_MS
            return
        day_ms = self._wall_ms(now_ms)
        limit = group.data_limit(self._backlog, day_ms) or default.data_limit(self._backlog, day_ms)
        if limit is not None:
            self._limit_bytes, self._limit_pause_ms = limit.limit_bytes, limit.pause_ms
