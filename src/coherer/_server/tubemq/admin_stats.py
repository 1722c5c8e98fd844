"""Statistics of a server in the forms of TubeMQ's HTTP administration.

`WebCalls` counts the calls of the administration itself, with or without a reset when they are
read. `Switches` are the methods that switch the counting on and off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from coherer._common.moments import moment
from coherer._server.http.app import Method
from coherer._server.http.params import Answer, ParamError, Params, done
from coherer._server.tubemq.histogram import Histogram

ALL, SERVICE, WEB, STORE = "all", "serviceStatus", "webAPI", "msgStore"


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
