"""A soak: a node and clients that come and go, and whether memory, files and threads grow.

make soak MINUTES=60
python benchmarks/soak.py [--minutes 10] [--rate 100] [--out build/soak] [--folder DIRECTORY]

See "A soak" in README.md. The exit code is 1 if a message was lost, an error was not expected, or a
slope is certainly above its goal.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.soak_picture import picture
from bench.soak_samples import CpuShare, NodeMetrics, Sample, disk_mb, process_figures
from bench.trends import Trend, trend
from bench.usage import machine, versions
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tests.interop.peers.process import Child

HERE = Path(__file__).parent
GOAL = 1.0
"""Percent in an hour."""
WARM_SHARE = 0.2
EVERY_S = 2.0
SAID_EVERY_S = 30.0
"""How often a line is printed where the output is no terminal."""
DRAIN_S = 180.0
"""What the load gets for the rest, after the last send; it gives up earlier itself."""
SEGMENT_BYTES, RETENTION_BYTES = 4 << 20, 32 << 20
NODE = (
    *("--master-port", "0", "--broker-port", "0", "--namesrv-port", "0", "--rocketmq-port", "0"),
    *("--admin-port", "0"),
    *("--segment-bytes", str(SEGMENT_BYTES), "--retention-bytes", str(RETENTION_BYTES)),
    *("--set", "transaction_timeout_ms=2000", "--set", "transaction_interval_ms=3000"),
)
PROTOCOLS = {"tubemq": "url", "rocketmq": "rocketmq_url"}
JUDGED = {
    "node_anonymous_mb": "node, anonymous memory, MB",
    "node_files": "node, open files",
    "node_threads": "node, threads",
    "tubemq_anonymous_mb": "TubeMQ load, anonymous memory, MB",
    "tubemq_files": "TubeMQ load, open files",
    "tubemq_threads": "TubeMQ load, threads",
    "rocketmq_anonymous_mb": "RocketMQ load, anonymous memory, MB",
    "rocketmq_files": "RocketMQ load, open files",
    "rocketmq_threads": "RocketMQ load, threads",
}
"""What has the goal."""
SHOWN = {
    "node_rss_mb": "node, resident memory, MB",
    "node_maps": "node, mapped areas",
    "disk_mb": "node, disk, MB",
    "series": "node, lines of its metrics",
}
"""What has a slope that nothing judges."""
PLAIN = {
    "lag_mean_ms": "node, mean loop lag, ms",
    "node_cpu": "node, CPU, % of a core",
    "stored_rate": "messages stored a second",
    "received_rate": "messages received a second",
}
"""What shows how busy the soak was."""
MARKS = {"met": "✓", "missed": "✗", "unknown": "?"}

console = Console(width=max(Console().width, 110))


class LoadProcess:
    """Clients of one protocol, and their latest report."""

    def __init__(self, protocol: str, url: str, rate: float, folder: Path) -> None:
        command = [sys.executable, str(HERE / "bench" / "soak_load.py"), url, str(rate)]
        self.protocol = protocol
        self.child = Child(f"load-{protocol}", command, folder, pipe_stdout=True)
        self.report: dict[str, Any] = {}
        self.errors: list[str] = []
        self.ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def counts(self) -> Mapping[str, int]:
        """What has happened."""
        found: Mapping[str, int] = self.report.get("end") or self.report.get("load") or {}
        return found

    @property
    def missing(self) -> Mapping[str, int]:
        """By group, how many messages it has not received yet."""
        found: Mapping[str, int] = self.report.get("missing", {})
        return found

    def finish(self) -> None:
        """Have the senders stop; then the load ends when everything has arrived."""
        self.child.stdin.write(b"stop\n")
        self.child.stdin.flush()

    def _read(self) -> None:
        for line in self.child.stdout:
            self.report = json.loads(line)
            self.errors = self.report.pop("errors")
        self.ended.set()


class Soak:
    """One run.

    Args:
        options: of the command line.
        folder: for the node's files and logs.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.samples: list[Sample] = []
        self.problems: list[str] = []
        self._seconds: float = options.minutes * 60
        self._directory = folder / "data"
        command = [sys.executable, "-m", "coherer", "serve", "--json"]
        command += ["-d", str(self._directory), *NODE]
        self._node = Child("node", command, folder, pipe_stdout=True)
        self._loads: list[LoadProcess] = []
        try:
            urls = json.loads(self._node.stdout.readline() or self._no_node())
            self._metrics = NodeMetrics(urls["admin_url"])
            for protocol, name in PROTOCOLS.items():
                self._loads.append(LoadProcess(protocol, urls[name], options.rate, folder))
        except BaseException:
            self.stop()
            raise
        self._pids = {"node": self._node.pid}
        self._pids |= {load.protocol: load.child.pid for load in self._loads}
        self._cpu = {name: CpuShare(pid) for name, pid in self._pids.items()}
        self._began_s: float = time.monotonic()
        self._before_s = self._began_s
        self._counted: dict[str, int] = {}

    def run(self) -> None:
        """Measure for the whole time, then wait until everything has arrived."""
        said_s = self._began_s
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while self._left_s() > 0 and not self._failed():
                time.sleep(min(self.options.every, self._left_s()))
                self.sample()
                if console.is_terminal:
                    live.update(self._view(), refresh=True)
                elif time.monotonic() - said_s >= SAID_EVERY_S:
                    said_s = time.monotonic()
                    console.print(self._line())
        console.print("the senders stop; waiting until everything has arrived")
        for load in self._loads:
            if not load.errors:
                load.finish()
        until_s = time.monotonic() + DRAIN_S
        for load in self._loads:
            if not load.ended.wait(max(until_s - time.monotonic(), 0)):
                self.problems.append(f"{load.protocol}: the load has not ended")
        self._judge_loads()
        self._judge_node()

    def stop(self) -> None:
        """End all processes."""
        for load in self._loads:
            load.child.stop()
        self._node.stop()

    def sample(self) -> None:
        """Measure everything once."""
        now_s = time.monotonic()
        seconds = max(now_s - self._before_s, 0.001)
        self._before_s = now_s
        found: Sample = {"at_s": now_s - self._began_s, "disk_mb": disk_mb(self._directory)}
        for name, pid in self._pids.items():
            found[f"{name}_cpu"] = self._cpu[name].read(seconds)
            found |= {f"{name}_{key}": value for key, value in process_figures(pid).items()}
        found |= self._metrics.read(seconds)
        total = self.counted()
        for name in ("sent", "received"):
            found[f"{name}_rate"] = (total.get(name, 0) - self._counted.get(name, 0)) / seconds
        self._counted = total
        for load in self._loads:
            found[f"{load.protocol}_missing"] = float(sum(load.missing.values()))
        self.samples.append(found)

    def counted(self) -> dict[str, int]:
        """What has happened over both protocols."""
        names = dict.fromkeys(name for load in self._loads for name in load.counts)
        return {name: sum(load.counts.get(name, 0) for load in self._loads) for name in names}

    def _no_node(self) -> bytes:
        raise RuntimeError(self._node.log_end())

    def _failed(self) -> bool:
        return not self._node.running or any(load.ended.is_set() for load in self._loads)

    def _left_s(self) -> float:
        return self._began_s + self._seconds - time.monotonic()

    def _judge_loads(self) -> None:
        for load in self._loads:
            self.problems += [f"{load.protocol}: {error}" for error in load.errors]
            if load.missing:
                self.problems.append(f"{load.protocol}: not received: {dict(load.missing)}")
            if "end" not in load.report:
                text = f"{load.protocol}: the load died:\n{load.child.log_end()}"
                self.problems.append(text)
            elif load.report["end"]["unfinished"]:
                self.problems.append(f"{load.protocol}: programs have not ended")

    def _judge_node(self) -> None:
        last = self.samples[-1]
        for name in ("upkeep_failures", "bad_records", "damaged"):
            if last.get(name):
                self.problems.append(f"node: {name}: {last[name]:.0f}")
        self._node.stop(grace_s=30)
        if self._node.process.returncode:
            self.problems.append(f"node: exit code {self._node.process.returncode}")
        log = self._node.log.read_text("utf-8", "replace")
        for line in log.splitlines():
            if " ERROR " in line or " CRITICAL " in line or line.startswith("Traceback"):
                self.problems.append(f"node: {line}")
        self.warnings = log.count(" WARNING ")

    def _view(self) -> Group:
        last, done_s = self.samples[-1], self._seconds - max(self._left_s(), 0)
        table = Table("", "node", "TubeMQ load", "RocketMQ load", box=None)
        for title, key in (
            ("memory, MB", "rss_mb"), ("anonymous, MB", "anonymous_mb"), ("open files", "files"),
            ("threads", "threads"), ("CPU, %", "cpu"), ("not yet received", "missing"),
        ):  # fmt: skip
            values = [last.get(f"{name}_{key}") for name in self._pids]
            table.add_row(title, *("" if v is None else f"{v:,.0f}" for v in values))
        return Group(
            Text(f"{done_s / 60:.1f} of {self.options.minutes:g} minutes"),
            ProgressBar(total=self._seconds, completed=done_s, width=60),
            table,
            Text(self._line()),
        )

    def _line(self) -> str:
        last = self.samples[-1]
        parts = [
            f"{last['at_s'] / 60:.1f} min",
            f"{last.get('node_anonymous_mb', 0):.1f} MB",
            f"{last.get('node_files', 0):.0f} files",
            f"disk {last['disk_mb']:.0f} MB",
            f"{last['connections']:.0f} connections",
            f"{last['topics']:.0f} topics",
            f"{last.get('stored_rate', 0):.0f} stored/s",
            f"loop lag {last.get('lag_mean_ms', 0):.1f} ms",
        ]
        return ", ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a soak, print its table, and write its files."""
    options = _options(arguments)
    if not Path("/proc/self/status").exists():
        sys.exit("A soak reads /proc, which this system does not have.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end, too
    folder = Path(tempfile.mkdtemp(prefix="coherer-soak-", dir=options.folder))
    about: dict[str, object] = {
        "machine": machine(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        soak = Soak(options, folder)
        try:
            soak.run()
        finally:
            soak.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    measured = [one for one in soak.samples if one["at_s"] >= WARM_SHARE * options.minutes * 60]
    trends = {
        name: trend(*zip(*((one["at_s"], one[name]) for one in found), strict=True))
        for name in (*JUDGED, *SHOWN)
        if (found := [one for one in measured if name in one])
    }
    missed = [
        f"{JUDGED[name]}: the slope is above {GOAL:g} % an hour"
        for name in JUDGED
        if name in trends and trends[name].verdict(GOAL) == "missed"
    ]
    problems = [*soak.problems, *missed]
    table = _table(trends, measured)
    console.print(table)
    counted = ", ".join(f"{name} {count:,}" for name, count in soak.counted().items())
    console.print(f"{counted}, warnings of the node {soak.warnings:,}", highlight=False)
    for problem in problems:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False)
    about |= {
        "versions": versions("absent"),
        "minutes": options.minutes,
        "rate": options.rate,
        "warm_s": WARM_SHARE * options.minutes * 60,
        "counts": soak.counted(),
        "problems": problems,
        "trends": {name: vars(found) for name, found in trends.items()},
        "samples": soak.samples,
    }
    _write(options.out, about, soak.samples, trends, table, problems)
    return 1 if problems else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Does a node grow under clients that come and go?")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the clients send")
    parser.add_argument("--rate", type=float, default=100.0, help="messages a second of a sender")
    parser.add_argument("--every", type=float, default=EVERY_S, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="for the results")
    parser.add_argument("--folder", type=Path, help="for data; default: the temporary directory")
    return parser.parse_args(arguments)


def _table(trends: Mapping[str, Trend], measured: Sequence[Sample]) -> Table:
    table = Table(title="After the warm-up")
    table.add_column("")
    for name in ("begin", "end", "% an hour", "95 % interval", f"goal ≤ {GOAL:g}"):
        table.add_column(name, justify="right")
    third = max(len(measured) // 20, 1)
    for name, title in {**JUDGED, **SHOWN, **PLAIN}.items():
        values = [one[name] for one in measured if name in one]
        if not values:
            continue
        begin, end = median(values[:third]), median(values[-third:])
        cells = [title, f"{begin:,.1f}", f"{end:,.1f}"]
        found = trends.get(name)
        if found is not None:
            known = found.percent is not None
            cells += (
                [f"{found.percent:+.1f}", f"{found.low:+.1f} to {found.high:+.1f}"]
                if known
                else ["", "too short"]
            )
            cells += [MARKS[found.verdict(GOAL)]] if name in JUDGED else []
        table.add_row(*cells)
    table.caption = "✓ met, ✗ missed, ? too short or too noisy to tell: the goal is in the interval"
    return table


def _write(
    out: Path,
    about: Mapping[str, object],
    samples: Sequence[Sample],
    trends: Mapping[str, Trend],
    table: Table,
    problems: Sequence[str],
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "soak.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    text = io.StringIO()
    Console(width=110, file=text).print(table)
    notes = text.getvalue() + "\n".join(f"✗ {one}" for one in problems)
    head = f"A soak of {about['minutes']} minutes, {about['when']}"
    page = picture(samples, trends, float(str(about["warm_s"])), head, notes)
    (out / "soak.html").write_text(page, "utf-8")
    console.print(f"{out / 'soak.html'}, {out / 'soak.json'}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
