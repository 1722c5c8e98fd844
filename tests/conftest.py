"""What every test shares."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from coherer._common.logs import LOG_THROTTLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.served import Served

# Two profiles: the same examples in every run, or a long look at new ones
# (COHERER_HYPOTHESIS=exhaustive).
_UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "fast", max_examples=50, derandomize=True, deadline=None, suppress_health_check=_UNHURRIED
)
settings.register_profile(
    "exhaustive", max_examples=5_000, deadline=None, suppress_health_check=_UNHURRIED
)
settings.load_profile(os.environ.get("COHERER_HYPOTHESIS", "fast"))

FILES_MAX_BYTES = 128 << 20
"""What one test may leave on the disk."""

# A shell starts `make test &` with SIGINT ignored, and programs that tests start would inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def source(path: Path) -> str:
    """Return the text of a file of tests."""
    return path.read_text("utf-8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Connections and threads of Spark and of Apache's systems may outlive a test.
    allowed = pytest.mark.filterwarnings("default::coherer.testing.LeftBehindWarning")
    for item in items:
        if mark := item.get_closest_marker("interop") or item.get_closest_marker("spark"):
            item.add_marker(allowed)
            folder, named = Path(__file__).parent / mark.name, f"mark.{mark.name}"
            if not item.path.is_relative_to(folder) and named not in source(item.path):
                raise pytest.UsageError(
                    f"`tools/run_tests.py` does not find {item.nodeid}: its file is neither "
                    f"in {folder}, nor does it contain `{named}`."
                )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Have the garbage collector pass over the tests that pytest has found.

    It would go through 13,000 tests and their modules again and again, for a second each time on a
    slow machine, and clients that wait for an answer meanwhile would give up.
    """
    gc.collect()
    gc.freeze()


UNTIL = float(os.environ.get("COHERER_TESTS_UNTIL") or "inf")
"""When no more slow tests begin, by `time.monotonic`: `tools/run_tests.py` says so."""
TOO_LATE = "the time of this group of tests is used up"


@pytest.hookimpl(tryfirst=True)  # before pytest asks fixtures to start brokers
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > UNTIL and any(map(item.get_closest_marker, ("slow", "spark", "interop"))):
        pytest.skip(TOO_LATE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the files whose tests were left out."""
    skipped = terminalreporter.getreports("skipped")
    late = [report for report in skipped if TOO_LATE in str(report.longrepr)]
    if late:
        terminalreporter.section(f"{len(late)} tests left out: {TOO_LATE}")
        for file, count in sorted(Counter(report.nodeid.split("::")[0] for report in late).items()):
            terminalreporter.line(f"{count:>5}  {file}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function) -> Iterator[None]:
    """Refuse what would fill the memory: `make test` keeps the files of tests there.

    Those of Spark and of Apache's systems are on the disk.
    """
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    on_disk = item.get_closest_marker("spark") or item.get_closest_marker("interop")
    size = 0 if directory is None or on_disk else used_bytes(directory)
    yield
    assert size <= FILES_MAX_BYTES, f"{size:,} bytes in {directory}: are they copied sparsely?"


def used_bytes(directory: Path) -> int:
    """Return what the files in a directory take on the disk; some may be deleted meanwhile."""
    used = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                # Blocks of 512 bytes, whatever the file system's are.
                used += getattr(os.lstat(f"{parent}/{name}"), "st_blocks", 0) * 512
    return used


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failed test and its error for `tools/run_tests.py`."""
    path = os.environ.get("COHERER_FAILURES")
    if not path or not report.failed or "PYTEST_XDIST_WORKER" in os.environ:
        return  # xdist's workers pass their reports on to the process that started them
    crash = getattr(report.longrepr, "reprcrash", None)
    error = str(report.longrepr).splitlines()[-1] if crash is None else crash.message
    with Path(path).open("a", encoding="utf-8") as failures:
        failures.write(json.dumps((report.nodeid, f"{report.when}: {error[:500]}")) + "\n")


_CHILDREN = itertools.count(-1, -1)
"""Process ids that no process has."""


@pytest.fixture
def servers() -> Iterator[list[Served]]:
    """A list for processes of a test, which end with it."""
    started: list[Served] = []
    yield started
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
        served.process.communicate()


@pytest.fixture(autouse=True)
def _every_test_logs_anew() -> None:
    """A line that another test has caused is written again."""
    LOG_THROTTLE.forget()


Forked = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Forked:
    """Within it, this thread takes itself for a child process, each time for another one.

    Other threads do not: the TubeMQ scenarios of tests/interop run beside all tests.
    """
    getpid, parent = os.getpid, threading.get_ident()

    @contextmanager
    def fork() -> Iterator[None]:
        child = next(_CHILDREN)
        with monkeypatch.context() as patch:
            patch.setattr(
                os, "getpid", lambda: child if threading.get_ident() == parent else getpid()
            )
            yield

    return fork


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests that are marked `spark`: it takes seconds to start."""
    from pyspark.sql import SparkSession

    from coherer.spark import configure

    home = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        # A task may fail three times: tests kill workers.
        builder = configure(
            SparkSession.builder.master("local[2,4]"),
            java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it lives for a minute
        )
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
