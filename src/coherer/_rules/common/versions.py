"""How a table of a broker tells its readers that it has changed: RocketMQ's data version."""

from __future__ import annotations

import msgspec


class DataVersion(msgspec.Struct, frozen=True):
    """A count of changes and the time of the last one; two tables with the same one are equal.

    Args:
        counter: grows by one with every change.
        timestamp: when that was, ms since 1970.

    >>> DataVersion().next(now_ms=1650000000000)
    DataVersion(counter=1, timestamp=1650000000000)
    """

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(self.counter + 1, now_ms)
