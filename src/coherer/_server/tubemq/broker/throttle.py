"""How fast one reader may read, by the cluster's flow rules (8.7)."""

from __future__ import annotations

from coherer._wire.tubemq.flow import FlowRules

_MINUTE_MS = 60_000
_SLICE_MS = 5_000
_SLICES = _MINUTE_MS // _SLICE_MS


class Throttle:
    """What a reader has read in this minute and in these five seconds, and what it may.

    Attributes:
        read_to: the place in the log behind what it has read.

    >>> rules = FlowRules.parse(
    ...     '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":12,'
    ...     '"freqInMs":500}]}]'
    ... )
    >>> throttle = Throttle()
    >>> throttle.pause_ms(rules, backlog_bytes=1 << 30, now_ms=0)
    0
    >>> throttle.count(1 << 20)
    >>> [throttle.pause_ms(rules, 1 << 30, now_ms) for now_ms in (4_999, 5_000)]
    [500, 0]
    """

    __slots__ = (
        "_limit_bytes",
        "_minute_bytes",
        "_minute_ms",
        "_pause_ms",
        "_rules",
        "_slice_bytes",
        "_slice_ms",
        "read_to",
    )

    def __init__(self) -> None:
        self.read_to = 0
        self._rules: FlowRules | None = None
        self._limit_bytes: int | None = None
        self._pause_ms = 0
        self._minute_ms = self._slice_ms = 0
        self._minute_bytes = self._slice_bytes = 0

    def pause_ms(
        self, rules: FlowRules, backlog_bytes: int, now_ms: int, wall_ms: int | None = None
    ) -> int:
        """How long to wait before the next read; 0 when it may be now.

        Args:
            rules: those in force.
            backlog_bytes: what there is to read.
            now_ms: the time, by a clock that is not set.
            wall_ms: the time of day, which says what rule is in force; `now_ms` unless given.
        """
        if rules is not self._rules or now_ms - self._minute_ms >= _MINUTE_MS:
            limit = rules.data_limit(backlog_bytes, now_ms if wall_ms is None else wall_ms)
            self._rules = rules
            self._limit_bytes = None if limit is None else limit.limit_bytes
            self._pause_ms = 0 if limit is None else limit.pause_ms
            self._minute_ms, self._minute_bytes = now_ms, 0
            self._slice_ms, self._slice_bytes = now_ms, 0
        elif now_ms - self._slice_ms >= _SLICE_MS:
            self._slice_ms, self._slice_bytes = now_ms, 0
        limit_bytes = self._limit_bytes
        if limit_bytes is None or (
            self._minute_bytes < limit_bytes and self._slice_bytes < limit_bytes // _SLICES
        ):
            return 0
        return self._pause_ms

    @property
    def limit_bytes(self) -> int | None:
        """How much may be read in a minute now; None for any amount."""
        return self._limit_bytes

    @property
    def rest_ms(self) -> int:
        """How long a reader waits that has read too much."""
        return self._pause_ms

    @property
    def counted_bytes(self) -> tuple[int, int]:
        """What was read in these five seconds and in this minute, as far as there are rules."""
        return self._slice_bytes, self._minute_bytes

    def unit_bytes(self, transfer_bytes: int) -> int:
        """How much one read may bring."""
        if self._limit_bytes is None:
            return transfer_bytes
        return min(transfer_bytes, self._limit_bytes // _SLICES)

    def count(self, read_bytes: int) -> None:
        """So much has been read."""
        self._minute_bytes += read_bytes
        self._slice_bytes += read_bytes
