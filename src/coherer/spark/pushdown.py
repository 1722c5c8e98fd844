"""Prunes a read by the filters that Spark pushes to a source.

Spark still applies every filter, so a read may return more rows than match, but never fewer. A
source prunes by topic, broker, partition, offset, and the time of storing, which grows with the
offset. `timestamp` is the sender's time, which does not.

Spark offers filters to batches only, joined by AND, and only with the setting
`spark.sql.python.filterPushdown.enabled`. Without it every read fails whose reader overrides
`pushFilters`, even one without filters. So sources return such a reader only if `is_enabled()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from coherer.spark.planning import Wanted

STORE_TIME: Final = "storeTimestamp"
"""The column with the time when the broker stored a message."""

_PLANNER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_SETS: Final = {"topic": "topics", "broker": "brokers", "partition": "partitions", "tag": "tags"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def is_enabled() -> bool:
    """Whether Spark is asking for a reader to push filters to.

    Spark does not pass its setting to data sources. But it asks for such readers from a separate
    module, which runs only if the setting is on.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != _PLANNER:
        frame = frame.f_back
    return frame is not None


def wanted(filters: Iterable[Filter]) -> Wanted:
    """The rows that a read must return, if all of these filters hold.

    >>> found = wanted([EqualTo(("partition",), 3), LessThan(("offset",), 9), In(("key",), ["k"])])
    >>> found.partitions, found.offsets, found.topics
    (frozenset({3}), (0, 9), None)
    """
    found = Wanted()
    for one in filters:
        path: Sequence[str] = getattr(one, "attribute", ())
        value: object = getattr(one, "value", None)
        name = path[0] if len(path) == 1 else ""
        if name in _SETS:
            found = _with_set(found, _SETS[name], one, value)
        elif type(one) in _INTERVALS and name == "offset" and isinstance(value, int):
            found = replace(found, offsets=_offsets(found.offsets, *_INTERVALS[type(one)](value)))
        elif type(one) in _INTERVALS and name == STORE_TIME and isinstance(value, datetime):
            # Whole milliseconds: rounded down for a start, and up for an end.
            down, up = (value - _EPOCH) // _MS, -((_EPOCH - value) // _MS)
            since, _ = _INTERVALS[type(one)](down)
            _, until = _INTERVALS[type(one)](up)
            found = replace(found, stored_ms=_times(found.stored_ms, since, until))
    return found


_INTERVALS: Final[dict[type[Filter], Callable[[int], tuple[int | None, int | None]]]] = {
    EqualTo: lambda at: (at, at + 1),
    EqualNullSafe: lambda at: (at, at + 1),
    GreaterThan: lambda at: (at + 1, None),
    GreaterThanOrEqual: lambda at: (at, None),
    LessThan: lambda at: (None, at),
    LessThanOrEqual: lambda at: (None, at + 1),
}
"""The first number for which a filter holds, and the one after the last."""


def _with_set(found: Wanted, field: str, one: Filter, value: object) -> Wanted:
    if isinstance(one, EqualTo | EqualNullSafe) and value is not None:
        values = frozenset([value])
    elif isinstance(one, In):
        values = frozenset(each for each in one.value if each is not None)
    else:
        return found
    before: frozenset[object] | None = getattr(found, field)
    return replace(found, **{field: values if before is None else before & values})


def _offsets(
    before: tuple[int, int | None], first: int | None, end: int | None
) -> tuple[int, int | None]:
    low, high = _times(before, first, end)
    low = max(low or 0, 0)
    return low, high if high is None else max(high, low)


def _times(
    before: tuple[int | None, int | None], first: int | None, end: int | None
) -> tuple[int | None, int | None]:
    firsts = [at for at in (before[0], first) if at is not None]
    ends = [at for at in (before[1], end) if at is not None]
    return max(firsts, default=None), min(ends, default=None)
