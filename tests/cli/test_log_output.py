"""The log of `coherer serve`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from coherer._common.logs import Log, LogThrottle
from coherer.cli.serve.log_output import LogOutput
from coherer.cli.serve.node_config import LogOptions
from coherer.errors import UsageError


@pytest.fixture
def outputs() -> Iterator[list[LogOutput]]:
    level = logging.getLogger().level
    opened: list[LogOutput] = []
    yield opened
    for output in opened:
        output.close()
    logging.getLogger().setLevel(level)


def test_json_has_one_event_a_line(tmp_path: Path, outputs: list[LogOutput]) -> None:
    path = tmp_path / "node.log"
    outputs.append(LogOutput(LogOptions(format="json", file=path)))
    log = Log(logging.getLogger("coherer.example"), LogThrottle())
    log.warning("Group %s left topic %s", "g", "t", group="g", topic="t", peer="10.0.0.9:1")
    try:
        int("broken")
    except ValueError:
        log.exception("Unhandled error")
    log.info("not logged")
    first, second = map(msgspec.json.decode, path.read_text().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "warning",
        "logger": "coherer.example",
        "event": "Group %s left topic %s",
        "message": "Group g left topic t",
        "topic": "t",
        "group": "g",
        "peer": "10.0.0.9:1",
    }
    assert "ValueError: invalid literal" in second["error"]


def test_what_peers_send_ends_no_line_of_text(tmp_path: Path, outputs: list[LogOutput]) -> None:
    path = tmp_path / "node.log"
    outputs.append(LogOutput(LogOptions(file=path)))
    log = Log(logging.getLogger("coherer.example"), LogThrottle())
    log.warning("%s left", "a\n2026-01-01 ERROR the disk failed\x1b[2J\u2028\x85\tü")
    forged = ValueError("a\n2026-01-01 ERROR the disk failed\x1b[2J")
    log.error("Unhandled error", exc_info=forged)
    first, second, *traceback, end = path.read_text("utf-8").split("\n")
    assert first.endswith(r"a\n2026-01-01 ERROR the disk failed\x1b[2J\u2028\x85\tü left")
    assert second.endswith("Unhandled error")
    assert traceback == ["  ValueError: a", r"  2026-01-01 ERROR the disk failed\x1b[2J"]
    assert not end


def test_a_repeated_line_keeps_its_event(tmp_path: Path, outputs: list[LogOutput]) -> None:
    path = tmp_path / "node.log"
    outputs.append(LogOutput(LogOptions(format="json", file=path)))
    times = [0.0]
    throttle = LogThrottle(lambda: times[-1])
    log = Log(logging.getLogger("coherer.example"), throttle)
    log.warning("Started")
    for now_s in (3.0, 4.0, 62.0, 64.0, 65.0):
        times.append(now_s)
        log.warning("Group %s waits", "g", about="g")
    times.append(200.0)
    throttle.flush()
    lines = [msgspec.json.decode(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["Started", *["Group %s waits"] * 3]
    assert lines[2]["message"] == "Group g waits (2 more in the last 61 s)"
    assert lines[3]["message"] == "Group g waits (1 more in the last 136 s)"


def test_a_package_has_a_level_of_its_own(tmp_path: Path, outputs: list[LogOutput]) -> None:
    path = tmp_path / "node.log"
    options = LogOptions(level="error", levels={"coherer.example.store": "debug"}, file=path)
    outputs.append(LogOutput(options))
    logging.getLogger("coherer.example.net").warning("not logged")
    logging.getLogger("coherer.example.store.files").debug("logged")
    outputs[0].change(LogOptions(level="error", file=path))
    logging.getLogger("coherer.example.store.files").debug("no longer")
    (line,) = path.read_text().splitlines()
    assert line.endswith("DEBUG coherer.example.store.files: logged")


def test_a_change_opens_the_file_anew(tmp_path: Path, outputs: list[LogOutput]) -> None:
    path = tmp_path / "node.log"
    options = LogOptions(file=path)
    outputs.append(LogOutput(options))
    logger = logging.getLogger("coherer.example")
    logger.warning("one")
    path.rename(tmp_path / "node.log.1")
    logger.warning("two")
    outputs[0].change(options)
    logger.warning("three")
    assert path.read_text().endswith("three\n")
    assert (tmp_path / "node.log.1").read_text().count("\n") == 2


def test_a_file_that_cannot_be_opened_leaves_the_log_as_it_is(
    tmp_path: Path, outputs: list[LogOutput]
) -> None:
    path = tmp_path / "node.log"
    outputs.append(LogOutput(LogOptions(file=path)))
    with pytest.raises(UsageError, match="Cannot write the log to"):
        outputs[0].change(LogOptions(file=tmp_path / "missing" / "node.log"))
    logging.getLogger("coherer.example").warning("still here")
    assert "still here" in path.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a full disk")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_disk_loses_lines_and_nothing_else(
    form: Literal["text", "json"], tmp_path: Path, outputs: list[LogOutput]
) -> None:
    """A line of a broker that could not be written stopped all brokers of a supervisor."""
    output = LogOutput(LogOptions(format=form, file=Path("/dev/full")))
    outputs.append(output)
    for line in ('{"event":"lost"}', "lost"):
        output.copy(line, 1)
    path = tmp_path / "node.log"
    output.change(LogOptions(format=form, file=path))
    output.copy('{"event":"kept"}', 1)
    assert path.read_text() == '{"event":"kept"}\n'
