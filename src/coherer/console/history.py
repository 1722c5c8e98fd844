"""The samples: a limited number of time series.

* A series keeps each sample of the last hour, and the mean of each minute of the last day; at a
  sampling interval of 10 s these are 360 and 1,440 points.
* There are at most `SERIES_MAX` series. A new one replaces the least recently written one.
* The newest value, and the last count for a rate, are kept for every topic and group that exists,
  also if its series was replaced: lists are sorted by them, and with thousands of topics a turn of
  the samples takes so long that most series are replaced meanwhile.
* An unknown value is None, and leaves a gap in the chart. So does a time without samples.
* A topic or group is *watched* for some time after a user has opened its page: it is sampled each
  time, the others in turn (`sampling`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

SPANS: Final = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400}
"""The time spans of charts, in s."""

DEFAULT_SPAN: Final = "1h"
FINE_S: Final = 3_600
FINE_MAX: Final = 3_600
COARSE_STEP_S: Final = 60
COARSE_MAX: Final = 1_440
SERIES_MAX: Final = 2_000
WATCH_S: Final = 900
WATCHED_MAX: Final = 200

Kind = Literal["topic", "group"]
Subject = tuple[Kind, str]


class Point(NamedTuple):
    """A sample: its time, s since 1970, and its value; None if it is unknown."""

    time_s: float
    value: float | None


class Series:
    """One number over time."""

    def __init__(self) -> None:
        self._fine: deque[Point] = deque(maxlen=FINE_MAX)
        self._coarse: deque[Point] = deque(maxlen=COARSE_MAX)
        self._minute: int | None = None
        self._values: list[float] = []

    def add(self, time_s: float, value: float | None) -> None:
        """Add a sample. Later ones are dropped: they are from before the clock was set back."""
        if self._fine and time_s < self._fine[-1].time_s:
            self._drop_since(time_s)
        minute = int(time_s // COARSE_STEP_S)
        if minute != self._minute:
            self._close_minute()
            self._minute = minute
        if value is not None:
            self._values.append(value)
        self._fine.append(Point(time_s, value))
        while self._fine[0].time_s < time_s - FINE_S:
            self._fine.popleft()

    def points(self, since_s: float) -> list[Point]:
        """The samples since a time: the means of minutes, and each sample of the last hour."""
        fine = [point for point in self._fine if point.time_s >= since_s]
        begin = self._fine[0].time_s if self._fine else since_s
        whole = begin - COARSE_STEP_S  # omit the minute in which the fine samples begin
        return [point for point in self._coarse if since_s <= point.time_s <= whole] + fine

    @property
    def last(self) -> Point | None:
        """The newest sample."""
        return self._fine[-1] if self._fine else None

    def _drop_since(self, time_s: float) -> None:
        self._minute = None
        self._values.clear()
        for points in (self._fine, self._coarse):
            while points and points[-1].time_s >= time_s:
                points.pop()

    def _close_minute(self) -> None:
        if self._minute is None:
            return
        mean = sum(self._values) / len(self._values) if self._values else None
        self._coarse.append(Point(self._minute * COARSE_STEP_S, mean))
        self._values.clear()


SEPARATOR: Final = "\x1f"
"""The separator of the parts of a series' name; names of topics and groups do not contain it."""


def series_name(kind: str, name: str, *parts: str) -> str:
    """The name of a series of a `topic`, a `group` or a `broker`.

    The parts are the sampled value, such as `lag`, and the partition if there is one.
    """
    return SEPARATOR.join((kind, name, *parts))


def _is_of_subject(series: str) -> bool:
    """Whether a series is that of a whole topic, group or broker, not of a partition."""
    return series.count(SEPARATOR) == 2


class History:
    """All series, by name; `series_name` makes the names.

    >>> history = History()
    >>> history.add("lag", 1_000.0, 7)
    >>> history.add("lag", 1_010.0, None)
    >>> history.points("lag", 0.0)
    [Point(time_s=1000.0, value=7), Point(time_s=1010.0, value=None)]
    """

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self._replaced: dict[str, float] = {}  # the last values of series that were replaced
        self._counters: dict[str, Point] = {}
        self._watched: dict[Subject, float] = {}
        self._lags: dict[str, Mapping[str, int | None]] = {}

    def add(self, name: str, time_s: float, value: float | None) -> None:
        """Add a sample to a series."""
        series = self._series.pop(name, None) or Series()
        self._series[name] = series
        self._replaced.pop(name, None)
        series.add(time_s, value)
        while len(self._series) > SERIES_MAX:
            oldest = next(iter(self._series))
            last = self._series.pop(oldest).last
            if last is not None and last.value is not None and _is_of_subject(oldest):
                self._replaced[oldest] = last.value

    def add_rate(self, name: str, time_s: float, count: float | None) -> None:
        """Add the growth of a count since its last sample, per second.

        The rate is unknown at the first sample, after an unknown count, and if the count decreased.
        """
        before = self._counters.pop(name, None)
        rate = None
        if count is not None:
            self._counters[name] = Point(time_s, count)
            if before is not None and before.value is not None and before.value <= count:
                seconds = time_s - before.time_s
                rate = (count - before.value) / seconds if seconds > 0 else None
        if before is not None or count is None:
            self.add(name, time_s, rate)

    def add_lags(self, group: str, lags: Mapping[str, int | None]) -> None:
        """Record the lag of a group in each of its topics; None if it is unknown."""
        self._lags[group] = lags

    def topic_lags(self) -> dict[str, int | None]:
        """The lag of all sampled groups in each topic that one reads; None if it is unknown."""
        found: dict[str, int | None] = {}
        for lags in self._lags.values():
            for topic, lag in lags.items():
                before = found.get(topic, 0)
                found[topic] = None if before is None or lag is None else before + lag
        return found

    def readers(self, topic: str) -> list[str]:
        """The sampled groups that read a topic, sorted."""
        return sorted(group for group, lags in self._lags.items() if topic in lags)

    def gap(self, time_s: float) -> None:
        """Record in every series that nothing was sampled for some time."""
        self._counters.clear()
        self._replaced.clear()
        for series in self._series.values():
            series.add(time_s, None)

    def points(self, name: str, since_s: float) -> list[Point]:
        """The samples of a series since a time; an unknown series has none."""
        series = self._series.get(name)
        return [] if series is None else series.points(since_s)

    def last(self, name: str) -> float | None:
        """The newest value of a series; None if it is unknown."""
        series = self._series.get(name)
        if series is None:
            return self._replaced.get(name)
        return None if series.last is None else series.last.value

    def names(self, prefix: str) -> list[str]:
        """The names of the series that begin with a text, sorted."""
        return sorted(name for name in self._series if name.startswith(prefix))

    def forget(self, kind: Kind, alive: Iterable[str]) -> None:
        """Drop the series of topics or groups that no longer exist."""
        names = set(alive)
        if kind == "group":
            self._lags = {name: lags for name, lags in self._lags.items() if name in names}
        for table in (self._series, self._replaced, self._counters):
            for series in list(table):
                owner, _, rest = series.partition(SEPARATOR)
                if owner == kind and rest.split(SEPARATOR)[0] not in names:
                    del table[series]

    def watch(self, kind: Kind, name: str, now_s: float) -> None:
        """Watch a topic or a group, because a user has opened its page."""
        self._watched.pop((kind, name), None)
        self._watched[kind, name] = now_s + WATCH_S
        while len(self._watched) > WATCHED_MAX:
            del self._watched[next(iter(self._watched))]

    def watched(self, now_s: float) -> Sequence[Subject]:
        """The topics and groups that are watched now."""
        self._watched = {one: until for one, until in self._watched.items() if until > now_s}
        return list(self._watched)
