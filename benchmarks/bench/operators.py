"""What operators wait for: commands, a large cluster's lists and metrics, and the test fixture.

The large cluster is a node with 2,000 topics, of which each of 500 groups reads 20 and is behind.
Times are wall times, except where the title says CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from bench.results import Single
from bench.usage import cpu_of

TOPICS: Final = 2_000
GROUPS: Final = 500
QUICK_TOPICS, QUICK_GROUPS = 50, 10
SCRAPES: Final = 5
TIMEOUT_S: Final = 120.0
COHERER: Final = (sys.executable, "-m", "coherer")
FREE: Final = (
    *("--master-port", "0", "--broker-port", "0", "--namesrv-port", "0", "--rocketmq-port", "0"),
    *("--admin-port", "0"),
)
LARGE: Final = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
    "import runpy; runpy.run_module('bench.large_main', run_name='__main__')"
)
TESTS: Final = {
    "without": "def test_nothing():\n    pass\n",
    "with": "def test_nothing(coherer_node):\n    pass\n",
}
"""The same test without and with a node."""

Addresses = dict[str, str]
Log = Callable[[str], None]


def commands(folder: Path, repetitions: int) -> list[Single]:
    """How long commands of the terminal take, and the fixture of pytest."""
    found: list[Single] = []

    def add(key: str, title: str, values: list[float], goal: float) -> None:
        found.append(Single(f"command-{key}", title, "ms", values, goal=goal))

    add("version", "coherer --version", _times([*COHERER, "--version"], repetitions), 150)
    ready: list[float] = []
    for number in range(repetitions + 1):
        begin = time.perf_counter()
        with _node(folder / f"empty-{number}"):
            ready.append((time.perf_counter() - begin) * 1000)
    add("serve", "coherer serve, until it is ready", ready[1:], 200)
    with _node(folder / "empty-0") as addresses:
        for key, protocol in (("url", "TubeMQ"), ("rocketmq_url", "RocketMQ")):
            command = [*COHERER, "topics", "list", "--url", addresses[key]]
            listed = _times(command, repetitions)
            add(f"topics-{protocol}", f"coherer topics list, empty node, {protocol}", listed, 250)
    pairs = [{name: _tested(folder, name) for name in TESTS} for _ in range(repetitions + 1)]
    extra = [cpu_ms["with"] - cpu_ms["without"] for cpu_ms in pairs[1:]]
    add("fixture", "a pytest session with coherer_node: its CPU above one without", extra, 60)
    return found


def large(folder: Path, repetitions: int, log: Log, *, quick: bool) -> list[Single]:
    """How long lists and metrics of a node with many topics and groups take."""
    topics, groups = (QUICK_TOPICS, QUICK_GROUPS) if quick else (TOPICS, GROUPS)
    log(f"filling a node with {topics:,} topics and {groups:,} groups")
    found: list[Single] = []

    def add(key: str, title: str, values: list[float], goal: float, unit: str = "ms") -> None:
        log(f"{title}: {', '.join(f'{value:.2f}' for value in values)} {unit}")
        found.append(Single(f"large-{key}", title, unit, values, goal=goal))

    filled = [sys.executable, "-c", LARGE, str(folder / "large"), str(topics), str(groups)]
    with _running(filled) as addresses:
        for key, protocol in (("url", "TubeMQ"), ("rocketmq_url", "RocketMQ")):
            at = ("--url", addresses[key])
            listing = [*COHERER, "groups", "list", "--json", *at]
            known = json.loads(subprocess.run(listing, capture_output=True, check=True).stdout)
            if len(known) < groups:
                raise RuntimeError(f"{protocol}: {len(known)} of {groups} groups are listed")
            title = f"groups list, {groups:,} groups x 20 queues, {protocol}"
            add(f"groups-{protocol}", title, _times(listing, repetitions), 800)
            status = _times([*COHERER, "status", *at], repetitions)
            add(f"status-{protocol}", f"status of the same, {protocol}", status, 800)
        console = [*COHERER, "console", "--json", "--port", "0", "--url"]
        for key, protocol in (("url", "TubeMQ"), ("rocketmq_url", "RocketMQ")):
            firsts: list[float] = []
            for _ in range(repetitions):  # a console keeps what it has read for a moment
                with _running([*console, addresses[key]]) as shown:
                    page, text = _fetched(f"{shown['url']}/groups")
                    assert b"group-0" in text
                    firsts.append(page)
            add(
                f"console-{protocol}",
                f"the console's first page of groups, {protocol}",
                firsts,
                800,
            )
        admin, pid = addresses["admin_url"], int(addresses["pid"])
        _fetched(f"{admin}/metrics")
        before = cpu_of(pid)
        sizes = [len(_fetched(f"{admin}/metrics", gzip=True)[1]) / 1e6 for _ in range(SCRAPES)]
        cpu = (cpu_of(pid) - before) / SCRAPES * 1000
        title = f"/metrics, {topics:,} topics and {groups * 20:,} pairs of group and topic"
        add("metrics-cpu", f"{title}: CPU of the node, with gzip", [cpu], 50)
        add("metrics-size", f"{title}: bytes on the wire", sizes, 1, "MB")
    return found


def _node(directory: Path) -> AbstractContextManager[Addresses]:
    """Run `coherer serve` in a directory."""
    return _running([*COHERER, "serve", "--json", "-d", str(directory), *FREE])


@contextmanager
def _running(command: Sequence[str]) -> Iterator[Addresses]:
    """Run a server; yields what it prints when it is ready."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            line = json.loads(server.stdout.readline())
            yield {key: str(value) for key, value in line.items()}
        finally:
            server.terminate()


def _times(command: Sequence[str], repetitions: int) -> list[float]:
    """How long a command takes each time, in ms, when its bytecode is there."""
    return [_ran(command) for _ in range(repetitions + 1)][1:]


def _ran(command: Sequence[str]) -> float:
    """Run a command; its time in ms."""
    begin = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S)
    return (time.perf_counter() - begin) * 1000


def _tested(folder: Path, name: str) -> float:
    """Run a test in a fresh pytest; its CPU in ms."""
    path = folder / f"test_{name}.py"
    path.write_text(TESTS[name])
    before = os.times()
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    _ran([*command, "-p", "no:cacheprovider", str(path)])
    after = os.times()
    user = after.children_user - before.children_user
    return (user + after.children_system - before.children_system) * 1000


def _fetched(url: str, *, gzip: bool = False) -> tuple[float, bytes]:
    """Fetch a page; the time in ms, and the bytes on the wire."""
    asked = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"} if gzip else {})
    begin = time.perf_counter()
    with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
        text = answer.read()
    return (time.perf_counter() - begin) * 1000, text
