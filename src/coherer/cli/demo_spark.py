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
from typing import TYPE_CHECKING, Any, ClassVar, Final

from coherer.cli.demo_flights import session
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
            with _interrupts_end_java(), _errors_to(directory / "spark.log"):
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


class JavaProcess(subprocess.Popen[bytes]):
    """Java as pyspark starts it, at hand from its first moment.

    Attributes:
        started: the newest.
    """

    started: ClassVar[JavaProcess | None] = None

    def __init__(self, *args: Any, **options: Any) -> None:  # Popen's own
        JavaProcess.started = self
        super().__init__(*args, **options)


@contextmanager
def _interrupts_end_java() -> Generator[None]:
    """While Spark starts, Ctrl-C ends Java first.

    pyspark gives no handle to it before it has answered. Left alone it would stay for ever: it
    looks at its input only after it has written its port into a directory that is gone by then.
    """
    from pyspark import java_gateway

    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        if java := _running():
            java.kill()
        raise KeyboardInterrupt

    names = java_gateway.__dict__
    popen = names["Popen"]
    before = {number: signal.signal(number, interrupt) for number in (SIGINT, SIGTERM)}
    try:
        names["Popen"] = JavaProcess
        yield
    except Exception:
        # pyspark, which stops what it has begun, finds no Java.
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        names["Popen"] = popen
        # Also away with Spark's own handler, which talks to Java before it raises.
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _running() -> JavaProcess | None:
    """Java, if it was started; Ctrl-C may have come before it had a number."""
    java = JavaProcess.started
    return java if getattr(java, "pid", None) else None


def _end_java() -> None:
    java = _running()
    if java is None:
        return
    if java.stdin is not None:
        with suppress(OSError):
            java.stdin.close()  # it ends by itself when this closes
    try:
        java.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
