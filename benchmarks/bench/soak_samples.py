"""What a soak measures: the processes by /proc, and the node by its own metrics."""

from __future__ import annotations

import os
import re
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.usage import cpu_of, resident_mb

METRICS_TIMEOUT_S = 30.0
_LINE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LE = re.compile(r'le="([^"]+)"')

Sample = dict[str, float]
"""By name, what was measured at one time; `at_s` is the time since the start of the load."""


def process_figures(pid: int) -> Sample:
    """Memory, open files and threads of a process; empty if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text("ascii")
        found = {"files": float(sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))}
        mapped = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").count("\n")
    except OSError:
        return {}
    threads = re.search(r"Threads:\s+(\d+)", status)
    rss, anonymous = resident_mb(pid), resident_mb(pid, "RssAnon")
    if threads is None or rss is None or anonymous is None:
        return {}
    return {
        **found,
        "threads": float(threads[1]),
        "maps": float(mapped),
        "rss_mb": rss,
        "anonymous_mb": anonymous,
    }


def disk_mb(directory: Path) -> float:
    """What the files of a directory occupy: files of the log have holes until they are written."""
    return sum(_sizes(str(directory))) * 512 / 1e6


def _sizes(directory: str) -> Iterator[int]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False).st_blocks
    except FileNotFoundError:  # deleted meanwhile
        return


class NodeMetrics:
    """The node's own metrics, between two questions.

    Args:
        url: of the administration.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/metrics"
        self._before: Mapping[str, float] = {}

    def read(self, seconds: float) -> Sample:
        """Ask the node.

        Args:
            seconds: since the last question, for rates.
        """
        with urllib.request.urlopen(self._url, timeout=METRICS_TIMEOUT_S) as answer:
            text = answer.read().decode()
        now: defaultdict[str, float] = defaultdict(float)
        late: dict[str, float] = {}
        for name, labels, value in _LINE.findall(text):
            if name == "coherer_event_loop_lag_seconds_bucket":
                late[_LE.search(labels)[1]] = float(value)  # type: ignore[index]
            else:
                now[name] += float(value)
        before, self._before = self._before, {**now, **{f"le {le}": n for le, n in late.items()}}

        def grown(name: str) -> float:
            return self._before.get(name, 0.0) - before.get(name, 0.0)

        lag = "coherer_event_loop_lag_seconds"
        found = {
            "connections": now["coherer_connections"],
            "topics": now["rocketmq_topic_number"],
            "groups": now["rocketmq_consumer_group_number"],
            "series": float(text.count("\n")),
            "upkeep_failures": now["coherer_upkeep_failures_total"],
            "bad_records": now["coherer_bad_system_records_total"],
            "damaged": now["coherer_damaged_bytes"],
            "held_mb": now["coherer_retention_held_bytes"] / 1e6,
        }
        if before:
            found["stored_rate"] = grown("coherer_append_messages_sum") / seconds
            timers = grown(f"{lag}_count")
            found["lag_mean_ms"] = grown(f"{lag}_sum") / timers * 1000 if timers else 0.0
            # The bound of the highest bucket that has grown: no timer was later than this.
            rising = [le for le in late if le != "+Inf"]
            above = [grown("le +Inf") - grown(f"le {le}") for le in rising]
            bound = next((le for le, n in zip(rising, above, strict=True) if not n), rising[-1])
            found["lag_max_ms"] = float(bound) * 1000
        return found


class CpuShare:
    """The share of a core that a process uses, between two questions."""

    def __init__(self, pid: int) -> None:
        self._pid, self._before = pid, cpu_of(pid)

    def read(self, seconds: float) -> float:
        """The share since the last question, in percent."""
        before, self._before = self._before, cpu_of(self._pid)
        return (self._before - before) / seconds * 100
