"""What is done every so often, by a clock that people and machines set."""

from __future__ import annotations


class IntervalTimer:
    """Says when something is due again.

    A clock that is set forward makes it due at once, one that is set back does not stop it.

    >>> beat = IntervalTimer(10_000, now_ms=50_000)
    >>> [beat.is_due(now_ms) for now_ms in (59_999, 60_000, 69_999, 70_500)]
    [False, True, False, True]
    >>> beat.is_due(20_000), beat.is_due(29_999), beat.is_due(30_000)
    (True, False, True)

    Args:
        every_ms: how often.
        now_ms: the time; it is due that much later first.
    """

    __slots__ = ("_begun_ms", "_every_ms")

    def __init__(self, every_ms: int, now_ms: int) -> None:
        self._every_ms = every_ms
        self._begun_ms = now_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time; if so, the next time is a whole period later."""
        if 0 <= now_ms - self._begun_ms < self._every_ms:
            return False
        self._begun_ms = now_ms
        return True
