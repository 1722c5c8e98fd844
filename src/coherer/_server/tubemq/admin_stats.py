"""Statistics of a server in the forms of TubeMQ's HTTP administration.

A `Histogram` counts durations in buckets whose bounds are powers of two. `WebCalls` counts the
calls of the administration itself. Values can be read with or without resetting them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from coherer._common.moments import moment
from coherer._server.http.app import Method
from coherer._server.http.params import Answer, ParamError, Params, done

BUCKETS: Final = 18
EMPTY_MIN: Final = (1 << 63) - 1
EMPTY_MAX: Final = -(1 << 63)
ALL, SERVICE, WEB, STORE = "all", "serviceStatus", "webAPI", "msgStore"
_SHARES: Final = {"P99": 0.99, "P999": 0.999, "P9999": 0.9999}


class Histogram:
    """The distribution of durations in ms.

    >>> calls = Histogram()
    >>> for ms in (0, 3, 70):
    ...     calls.count(ms)
    >>> calls.form()
    {'count': 3, 'min': 0, 'max': 70, 'cells': {'cell_0t2': 1, 'cell_2t4': 1, 'cell_64t128': 1}, \
    'P99': 4, 'P999': 4, 'P9999': 4}
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset all counts."""
        self._count, self._min, self._max = 0, EMPTY_MIN, EMPTY_MAX
        self._buckets = [0] * BUCKETS

    def count(self, ms: int) -> None:
        """Count a duration."""
        self._count += 1
        self._min, self._max = min(self._min, ms), max(self._max, ms)
        self._buckets[min(max(ms, 1).bit_length() - 1, BUCKETS - 1)] += 1

    def summary(self) -> Answer:
        """Count, minimum and maximum."""
        return {"count": self._count, "min": self._min, "max": self._max}

    def form(self) -> Answer:
        """All values; empty buckets are omitted."""
        cells: Answer = {_bucket_name(n): count for n, count in enumerate(self._buckets) if count}
        shares: Answer = {name: self._upper(share) for name, share in _SHARES.items()}
        return {**self.summary(), "cells": cells, **shares}

    def _upper(self, share: float) -> int:
        """The upper bound of the bucket that holds this share of all durations, or the maximum."""
        if not self._count:
            return 0
        left = int(self._count * share)
        last = max(n for n, count in enumerate(self._buckets) if count)
        for n, count in enumerate(self._buckets):
            left -= count
            if left <= 0 and count:
                return self._max if n == last else 1 << (n + 1)
        return self._max


def _bucket_name(number: int) -> str:
    low = 0 if number == 0 else 1 << number
    return f"cell_{low}t{'Max' if number == BUCKETS - 1 else 1 << (number + 1)}"


class WebCalls:
    """The calls of one table of methods.

    Attributes:
        enabled: whether calls are counted.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.enabled = True
        self._wall_ms = wall_ms
        self._since_ms = wall_ms()
        self._all = Histogram()
        self._methods: dict[str, Histogram] = {}

    def counted(self, rows: Mapping[str, Method]) -> dict[str, Method]:
        """Wrap methods so that their calls are counted."""
        return {
            name: Method(self._counts(name, row.call), row.changes) for name, row in rows.items()
        }

    def form(self, *, refresh: bool) -> Answer:
        """The counts; reset on request."""
        methods: Answer = {
            f"method_{name}": calls.summary() for name, calls in self._methods.items()
        }
        form: Answer = {
            "reset_time": time_text(self._since_ms),
            "isClosed": not self.enabled,
            "web_calls": self._all.form(),
            "methods": methods,
        }
        if refresh:
            self._since_ms = self._wall_ms()
            self._all.clear()
            self._methods.clear()
        return form

    def _counts(self, name: str, call: Callable[[Params], Answer]) -> Callable[[Params], Answer]:
        def counting(params: Params) -> Answer:
            began_s = time.perf_counter()
            try:
                return call(params)
            finally:
                if self.enabled:
                    took_ms = int((time.perf_counter() - began_s) * 1000)
                    self._all.count(took_ms)
                    self._methods.setdefault(name, Histogram()).count(took_ms)

        return counting


class Switches:
    """The methods that switch statistics on and off.

    Args:
        calls: the calls that `webAPI` switches.
        kinds: the known kinds, `all` first. Those without a switch here are always counted.
    """

    def __init__(self, calls: WebCalls, kinds: tuple[str, ...]) -> None:
        self._calls = calls
        self._kinds = kinds

    def methods(self, *, changes: bool) -> dict[str, Method]:
        """The methods by name.

        Args:
            changes: whether they need the token.
        """
        return {
            "admin_enable_stats": Method(lambda p: self._switch(p, on=True), changes),
            "admin_disable_stats": Method(lambda p: self._switch(p, on=False), changes),
            "admin_disable_all_stats": Method(lambda _: self._set(ALL, on=False), changes),
        }

    def _switch(self, params: Params, *, on: bool) -> Answer:
        return self._set(params.required("statsType"), on=on)

    def _set(self, asked: str, *, on: bool) -> Answer:
        kind = next((kind for kind in self._kinds if kind.lower() == asked.lower()), None)
        if kind is None:
            kinds = ",".join(self._kinds)
            raise ParamError(f"Unmatched stat type, allowed stat type are : [{kinds}]")
        if kind in {ALL, WEB}:
            self._calls.enabled = on
        return done()


def metrics_form(
    node: str, role: str, wall_ms: int, service: Answer, calls: Answer
) -> list[Answer]:
    """The record of `admin_get_metrics_info`."""
    metrics: Answer = {SERVICE: service, WEB: calls}
    return [
        {
            "probeTime": time_text(wall_ms),
            "nodeName": node,
            "nodeRole": role,
            "metrics": metrics,
            "count": len(metrics),
        }
    ]


def time_text(ms: int) -> str:
    """A time of day in the machine's time zone, in Java's format of 14 digits."""
    return moment(ms).astimezone().strftime("%Y%m%d%H%M%S")
