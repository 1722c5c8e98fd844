"""Figures about a server in the forms of TubeMQ's HTTP administration.

A `Histogram` counts times in cells whose borders are powers of two. `WebCalls` counts the calls of
the administration itself. Values are shown as they are, or shown and begun anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from coherer._server.node.admin import Method
from coherer._server.node.admin_params import Answer, ParamError, Params, done

CELLS: Final = 18
MIN_OF_NOTHING: Final = (1 << 63) - 1
MAX_OF_NOTHING: Final = -(1 << 63)
ALL, SERVICE, WEB, STORE = "all", "serviceStatus", "webAPI", "msgStore"
_SHARES: Final = {"P99": 0.99, "P999": 0.999, "P9999": 0.9999}


class Histogram:
    """How often something took how long, in ms.

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
        """Begin anew."""
        self._count, self._min, self._max = 0, MIN_OF_NOTHING, MAX_OF_NOTHING
        self._cells = [0] * CELLS

    def count(self, ms: int) -> None:
        """Once more, and how long it took."""
        self._count += 1
        self._min, self._max = min(self._min, ms), max(self._max, ms)
        self._cells[min(max(ms, 1).bit_length() - 1, CELLS - 1)] += 1

    def summary(self) -> Answer:
        """Number, shortest and longest."""
        return {"count": self._count, "min": self._min, "max": self._max}

    def form(self) -> Answer:
        """All of it; cells with nothing in them are left out."""
        cells: Answer = {_cell(n): count for n, count in enumerate(self._cells) if count}
        shares: Answer = {name: self._upper(share) for name, share in _SHARES.items()}
        return {**self.summary(), "cells": cells, **shares}

    def _upper(self, share: float) -> int:
        """The upper border of the cell that holds this share of all, or the longest of all."""
        if not self._count:
            return 0
        left = int(self._count * share)
        last = max(n for n, count in enumerate(self._cells) if count)
        for n, count in enumerate(self._cells):
            left -= count
            if left <= 0 and count:
                return self._max if n == last else 1 << (n + 1)
        return self._max


def _cell(number: int) -> str:
    low = 0 if number == 0 else 1 << number
    return f"cell_{low}t{'Max' if number == CELLS - 1 else 1 << (number + 1)}"


class WebCalls:
    """The calls of one table of methods.

    Args:
        wall_ms: the time of day.

    Attributes:
        enabled: whether they are counted.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self.enabled = True
        self._wall_ms = wall_ms
        self._since_ms = wall_ms()
        self._all = Histogram()
        self._methods: dict[str, Histogram] = {}

    def counted(self, rows: Mapping[str, Method]) -> dict[str, Method]:
        """The same methods, whose calls are counted from now on."""
        return {
            name: Method(self._counts(name, row.call), row.changes) for name, row in rows.items()
        }

    def form(self, *, refresh: bool) -> Answer:
        """What was counted; begun anew on request."""
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
    """The methods that switch figures on and off.

    Args:
        calls: what `webAPI` switches.
        kinds: the kinds that there are, `all` first. Those without a switch here always count.
    """

    def __init__(self, calls: WebCalls, kinds: tuple[str, ...]) -> None:
        self._calls = calls
        self._kinds = kinds

    def methods(self, *, changes: bool) -> dict[str, Method]:
        """By name.

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
    """A time of day in the machine's zone, as Java writes it: 14 digits."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%Y%m%d%H%M%S")


__all__ = ["ALL", "SERVICE", "STORE", "WEB", "Histogram", "Switches", "WebCalls",
           "metrics_form", "time_text"]  # fmt: skip
