"""Repeated log lines are suppressed and counted."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from coherer._common.logs import Log, LogThrottle

SOURCES = Path(__file__).parent.parent / "src/coherer"


class Written(logging.Handler):
    """Collects log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]


class Harness:
    """A log, what it writes, and its clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.written = Written()
        self.throttle = LogThrottle(lambda: self.now_s, subjects_max=3)
        self.logger = logging.getLogger("tests.of.repeats")
        self.logger.addHandler(self.written)
        self.logger.propagate = False
        self.logger.setLevel(logging.INFO)
        self.log = Log(self.logger, self.throttle)


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.logger.removeHandler(harness.written)


def test_the_same_line_appears_once_a_minute_with_a_count(harness: Harness) -> None:
    for _ in range(5_000):
        harness.log.warning("No room for %d messages", 3)
        harness.now_s += 0.025  # for 125 s
    assert harness.written.lines == [
        "No room for 3 messages",
        "No room for 3 messages (2399 more in the last 60 s)",
        "No room for 3 messages (2399 more in the last 60 s)",
    ]


def test_flush_writes_the_count_of_lines_that_stopped(harness: Harness) -> None:
    for _ in range(3):
        harness.log.error("Cannot accept: %s", "too many files")
    harness.throttle.flush()
    assert harness.written.lines == ["Cannot accept: too many files"]
    harness.now_s += 60
    harness.throttle.flush()
    harness.throttle.flush()
    assert harness.written.lines[1:] == ["Cannot accept: too many files (2 more in the last 60 s)"]
    assert [record.levelno for record in harness.written.records] == [logging.ERROR] * 2
    harness.now_s += 61
    harness.throttle.flush()
    harness.log.error("Cannot accept: %s", "too many files")
    assert harness.written.lines[2:] == ["Cannot accept: too many files"]


def test_a_later_line_of_another_call_writes_the_count(harness: Harness) -> None:
    harness.log.info("first")
    harness.log.info("first")
    harness.now_s += 70
    harness.log.info("second")
    assert harness.written.lines == ["first", "first (1 more in the last 70 s)", "second"]


def test_subjects_are_counted_separately(harness: Harness) -> None:
    for number in range(4):
        harness.log.warning("%s does not answer, attempt %d", "a", number, about="a")
        harness.log.warning("%s does not answer, attempt %d", "b", number, about="b")
    assert harness.written.lines == [
        "a does not answer, attempt 0",
        "b does not answer, attempt 0",
    ]


def test_the_number_of_subjects_is_limited(harness: Harness) -> None:
    for number in range(1_000):
        harness.log.warning("Not serving %s", f"10.0.0.9:{number}")
    assert len(harness.written.lines) == 4
    harness.now_s += 60
    harness.log.warning("Not serving %s", "10.0.0.9:1000")
    assert harness.written.lines[4:] == [
        "Not serving 10.0.0.9:3 (996 more in the last 60 s)",
        "Not serving 10.0.0.9:1000",
    ]


def test_lines_have_their_origin_and_exception(harness: Harness) -> None:
    for _ in range(2):
        try:
            int("a cause")
        except ValueError as error:
            cause = error
            harness.log.exception("It failed")
        harness.log.error("It failed for 100 %", exc_info=cause)
        harness.now_s += 61
    assert harness.written.lines == ["It failed", "It failed for 100 %"] * 2
    assert {record.filename for record in harness.written.records} == {"test_logs.py"}
    assert all(record.exc_info for record in harness.written.records)


def test_disabled_levels_are_skipped(harness: Harness) -> None:
    harness.log.debug("%d", "not a number")
    harness.logger.setLevel(logging.DEBUG)
    harness.log.debug("%s", 1)
    assert harness.written.lines == ["1"]


def _loggers(path: Path) -> list[str]:
    """The right sides of assignments with `logging.getLogger`."""
    return [
        ast.unparse(node.value)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Assign) and "getLogger(__name__)" in ast.unparse(node.value)
    ]


def test_every_module_logs_through_log() -> None:
    found = {
        str(path.relative_to(SOURCES)): logger
        for path in sorted(SOURCES.rglob("*.py"))
        for logger in _loggers(path)
    }
    assert len(found) > 50
    assert {path for path, logger in found.items() if not logger.startswith("Log(")} == set()
