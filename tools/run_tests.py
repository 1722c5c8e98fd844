"""Run tests; run those that fail once more, when nothing else runs.

    python tools/run_tests.py                  # those that need Spark or Apache's systems
    python tools/run_tests.py -n auto tests    # those that pytest chooses
    python tools/run_tests.py --share 0.3 …    # the same, within a share of the time that is left

Tests work with processes that this project did not write, on a machine that may be busy: a broker
in Java that needs a minute to start, a browser, a cluster that elects a leader. Those that fail in
a file are run again, in a process of their own, when nothing else runs. What passes then is listed
as unstable, with its first error: its cause has to be found, but it does not cost a whole run. A
run fails if a test fails twice, or if tests of more than `UNSTABLE_FILES_MAX` files failed once.

If the time of all tests is limited (`time_left.py`), a group of tests begins no more of those that
are marked `slow`, `spark` or `interop` after its share, and lists the files that it has left out.
Files then come in a random order: if the largest came first, always the same would be left out.

`make test` calls this program, so that CI and the README run the same command. The tests of plugs
(`tools/test_integrations.py`) follow the same rule.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import archive_spark
from rich.console import Console
from rich.table import Table
from time_left import end_of

UNSTABLE_FILES_MAX: Final = 5


class Group(NamedTuple):
    """Tests that run together.

    Args:
        arguments: pytest's.
        share: what they may use of the time that is left when they begin; None: no limit.
    """

    arguments: Sequence[str]
    share: float | None = None


TESTS: Final = Path(__file__).parent.parent / "tests"


def files_with(mark: str) -> list[str]:
    """Return the folder that is called as a mark, and the other files whose tests may have it.

    To collect all others takes a minute. `tests/conftest.py` refuses tests with the mark elsewhere.
    """
    folder = TESTS / mark
    others = (file for file in TESTS.rglob("test_*.py") if not file.is_relative_to(folder))
    found = (file for file in others if f"mark.{mark}" in file.read_text("utf-8"))
    return [str(folder), *sorted(map(str, found))]


def groups() -> tuple[Group, Group]:
    """Return the tests of Spark and of Apache's systems.

    Spark's come first: the Java systems of the others need the whole machine.
    """
    spark = ("-n", "auto", "-m", "spark and not interop", *files_with("spark"))
    interop = ("-n", "2", "-m", "interop", *files_with("interop"))
    common = ("--dist", "loadfile", "--durations=5")
    return Group((*common, *spark), 0.4), Group((*common, *interop), 0.8)


_FAILURES: Final = "COHERER_FAILURES"
_UNTIL: Final = "COHERER_TESTS_UNTIL"
_TESTS_FAILED: Final = 1
"""pytest's exit code if tests ran and some failed; higher ones mean that it could not run them."""


def pytest(
    *arguments: str,
    python: str | Path = sys.executable,
    failures: Path | None = None,
    until: float = math.inf,
) -> int:
    """Run pytest; `tests/conftest.py` notes which tests failed, and skips those that are too late.

    Args:
        arguments: pytest's.
        python: the interpreter.
        failures: the file that gets the tests that failed, and their errors.
        until: when no more slow tests begin, by `time.monotonic`.
    """
    # Not the caller's: tests run this program, too, and their failures are not the caller's.
    ours = {_FAILURES: "" if failures is None else str(failures), _UNTIL: str(until)}
    environment = os.environ | ours
    order = () if math.isinf(until) else ("--no-loadscope-reorder",)
    command = [str(python), "-m", "pytest", *order, *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def failed_tests(failures: Path) -> dict[str, str]:
    """Return the first error of each test that failed, by the test's id."""
    found: dict[str, str] = {}
    for line in failures.read_text().splitlines():
        test, error = json.loads(line)
        found.setdefault(test, error)
    return found


def by_file(tests: Iterable[str]) -> list[list[str]]:
    """Return tests by their files: a fixture that fails can fail all tests of a file.

    >>> by_file(["test_a.py::one", "test_b.py::one", "test_a.py::two"])
    [['test_a.py::one', 'test_a.py::two'], ['test_b.py::one']]
    """
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    return list(files.values())


def verdict(failed: dict[str, str], failed_again: set[str]) -> tuple[int, Table | None]:
    """Return the exit code, and the table of the tests that passed when they ran alone.

    >>> code, table = verdict({"test_a": "timed out", "test_b": "refused"}, {"test_b"})
    >>> code, table.row_count
    (1, 1)
    >>> verdict({"test_a": "timed out"}, set())[0]
    0
    """
    unstable = {test: error for test, error in failed.items() if test not in failed_again}
    code = int(bool(failed_again) or len(by_file(failed)) > UNSTABLE_FILES_MAX)
    if not unstable:
        return code, None
    table = Table("test", "first error", title="unstable", title_justify="left")
    for test, error in unstable.items():
        table.add_row(test, error)
    return code, table


def run_twice(
    chosen: Sequence[Group],
    *,
    python: str | Path = sys.executable,
    options: Sequence[str] = (),
) -> int:
    """Run groups of tests, then the failed ones again; return the exit code.

    Args:
        chosen: what to run, one after the other.
        python: the interpreter.
        options: further arguments for each group, and for the failed tests.
    """
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        failures = Path(directory, "failures")
        failures.touch()
        broken = 0
        for arguments, share in chosen:
            until = math.inf if share is None else end_of(share)
            code = pytest(*options, *arguments, python=python, failures=failures, until=until)
            if code > _TESTS_FAILED:
                return code
            broken |= code
        failed = failed_tests(failures)
        if broken and not failed:
            return broken  # not a test, for example the end of the session
        files = by_file(failed)
        if len(files) > UNSTABLE_FILES_MAX:
            console.print(
                f"Tests of {len(files)} files failed; those of up to {UNSTABLE_FILES_MAX} are run "
                "again."
            )
            return _TESTS_FAILED
        failed_again: set[str] = set()
        for number, tests in enumerate(files):
            again = Path(directory, f"again-{number}")
            again.touch()
            if pytest(*options, *tests, "-n", "0", python=python, failures=again) != 0:
                failed_again.update(failed_tests(again) or tests)
        code, table = verdict(failed, failed_again)
        if table is not None:
            console.print(table)
        return code


def main() -> int:
    """Run the tests that need Spark or Apache's systems; return the exit code."""
    return run_twice(groups())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--share", type=float, help="of the time that is left, 0.0 to 1.0")
    known, chosen = parser.parse_known_args()
    if chosen:
        sys.exit(run_twice([Group(chosen, known.share)]))
    with tempfile.TemporaryDirectory() as kept:
        archive = Path(kept, "spark.jsa")
        if archive_spark.write(archive):
            os.environ["SPARK_SUBMIT_OPTS"] = archive_spark.options(archive)
        else:
            Console().print(
                "Java has written no archive of Spark's classes; the tests take longer."
            )
        sys.exit(main())
