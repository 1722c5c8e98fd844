"""Java as the commands start it for Spark, and how it ends with them."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, ClassVar, Final

from coherer.cli.signals import on_stop_signals

JAVA_STOP_S: Final = 15
"""Java is killed if it takes longer to stop."""


def silence_py4j() -> None:
    """Log no connections that a signal cut; py4j logs some of them through the root logger."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def java_errors() -> tuple[type[Exception], ...]:
    """What a call of Java raises if Java throws an exception, or is gone."""
    try:
        from py4j.protocol import Py4JError  # Spark is an extra
    except ImportError:  # a client of Spark Connect has no Java
        return ()
    return Py4JError, ConnectionRefusedError, ConnectionResetError


class JavaProcess(subprocess.Popen[bytes]):
    """Java as pyspark starts it, recorded before it answers.

    Attributes:
        started: the newest.
    """

    started: ClassVar[JavaProcess | None] = None

    def __init__(self, *args: Any, **options: Any) -> None:  # as Popen
        JavaProcess.started = self
        super().__init__(*args, **options)


@contextmanager
def interrupts_end_java() -> Generator[None]:
    """Kill Java first on Ctrl-C while Spark starts.

    pyspark exposes the process only after it has answered. Otherwise Java would run forever: it
    reads its input only after it has written its port to a directory that is gone by then.
    """
    # Spark is an extra.
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
    names["Popen"] = JavaProcess
    try:
        # At the end, this also removes Spark's own handler, which calls Java before it raises.
        with on_stop_signals(interrupt):
            yield
    except Exception:
        # pyspark cleans up, and fails because Java is gone.
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        names["Popen"] = popen


def _running() -> JavaProcess | None:
    """Java, if it was started; Ctrl-C may arrive before it has a process id."""
    java = JavaProcess.started
    return java if getattr(java, "pid", None) else None


def end_java() -> None:
    """End Java, if it was started."""
    java = _running()
    if java is None:
        return
    if java.stdin is not None:
        with suppress(OSError):
            java.stdin.close()  # Java exits when this closes
    try:
        java.wait(timeout=JAVA_STOP_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
