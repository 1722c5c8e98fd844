"""A Spark session that is gone when its block ends, whatever happened in it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import FrameType
from typing import TYPE_CHECKING, Final

from coherer.cli.demo_tables import session
from coherer.errors import UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_S: Final = 15


@contextmanager
def spark_session(directory: Path, cores: int) -> Generator[SparkSession]:
    """Starts Spark, with all that it says in `directory/spark.log`.

    At the end of the block Java is ended, and with it everything that it started. After an error,
    Ctrl-C among them, Spark is asked nothing more: the connection to it may have been cut in the
    middle of an answer.

    Raises:
        UnavailableError: Spark failed in the block.
    """
    # What py4j logs about connections that Ctrl-C cut helps nobody; some of it it logs as root.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    try:
        with _told_while_java_lives(directory / "spark.log"):
            with _interrupts_later(), _errors_to(directory / "spark.log"):
                spark = session(directory, cores)
            yield spark
            spark.stop()
    finally:
        _end_java()


@contextmanager
def _told_while_java_lives(log: Path) -> Generator[None]:
    """Spark's errors ask Java for their text, so the text is taken before Java ends.

    The log is quoted too: it will be gone with its directory.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        said = str(error).strip().splitlines()[:3]
        logged = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        raise UnavailableError("Spark failed.", hint=" ".join([*said, *logged])) from None


@contextmanager
def _interrupts_later() -> Generator[None]:
    """Keeps Ctrl-C back until Java has started: before, there is no handle to end it by.

    Who presses it twice does not wait. Java then ends by itself, when its input closes.
    """
    caught: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt
        # Not by print: the handler may have come into the middle of one.
        os.write(1, b"\nStops when Spark has started; Ctrl-C again stops at once.\n")

    before = {number: signal.signal(number, remember) for number in (SIGINT, SIGTERM)}
    try:
        yield
    finally:
        # Also away with Spark's own handler, which talks to Java before it raises.
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        raise KeyboardInterrupt


@contextmanager
def _errors_to(path: Path) -> Generator[None]:
    """Sends standard error to a file meanwhile; processes started in the block keep it."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def _end_java() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # pyright: ignore[reportPrivateUsage] - no public way
    process = getattr(gateway, "proc", None)
    if not isinstance(process, subprocess.Popen):
        return
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()  # Java ends by itself when this closes
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
