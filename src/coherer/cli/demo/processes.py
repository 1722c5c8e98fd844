"""The processes of the demo: a node and Spark's Java, which end when the demo does.

The node is `python -m coherer.cli.demo.processes DIRECTORY`. It watches its standard input: the
pipe closes when the parent closes it or is killed, so the node never outlives it. The node has a
session of its own, so a Ctrl-C in the terminal reaches only the parent, which stops things in
order.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, TYPE_CHECKING, Final, Self

import msgspec

from coherer._net import run
from coherer.cli.demo.dataset import TOPIC
from coherer.cli.java import end_java, interrupts_end_java, silence_py4j
from coherer.errors import UnavailableError

# The demo first checks that its extra is installed: matplotlib, Spark, pyarrow.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS: Final = 8
NODE_STOP_S: Final = 10
"""A node that takes longer to stop is killed."""

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives half a minute would spend most of it in the optimizing compiler."""


class Started(msgspec.Struct, frozen=True):
    """Printed by the node when it is ready, with the URLs for clients by protocol."""

    urls: dict[str, str]


class DemoNode:
    """Starts the node, and stops it at the end of the `with` block.

    Args:
        directory: of its files; its log is written beside it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._urls: dict[str, str] | None = None

    def __enter__(self) -> Self:
        self._log = self._directory.with_suffix(".log").open("wb")
        self._process = subprocess.Popen(  # noqa: S603 - this module, run by this Python
            [sys.executable, "-m", "coherer.cli.demo.processes", str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        return self

    def urls(self) -> dict[str, str]:
        """The URL for each protocol; waits until the node is ready.

        Raises:
            UnavailableError: the node ended.
        """
        if self._urls is not None:
            return self._urls
        assert self._process is not None  # noqa: S101 - narrows
        assert self._process.stdout is not None  # noqa: S101 - narrows
        line = self._process.stdout.readline()
        if not line:
            log = self._directory.with_suffix(".log").read_text(errors="replace").strip()
            raise UnavailableError("The node did not start.", hint=log[-1000:])
        self._urls = msgspec.json.decode(line, type=Started).urls
        return self._urls

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            try:
                self._process.communicate(timeout=NODE_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        if self._log is not None:
            self._log.close()


async def _serve(directory: Path) -> None:
    from coherer._server.node.node import Node, NodeOptions

    options = NodeOptions(
        directory=directory,
        master_port=0,
        broker_port=0,
        admin_port=None,
        namesrv_port=0,
        rocketmq_port=0,
    )
    async with Node(options) as node:
        node.create_topic(TOPIC, PARTITIONS)
        started = Started({"tubemq": node.url, "rocketmq": node.rocketmq_url})
        sys.stdout.buffer.write(msgspec.json.encode(started) + b"\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


def session(directory: Path, cores: int, settings: Mapping[str, str]) -> SparkSession:
    """A quiet Spark session on this machine, which writes all files below `directory`."""
    from pyspark.sql import SparkSession

    from coherer.spark import configure

    builder = SparkSession.builder.master(f"local[{cores}]").appName("coherer demo")
    basic = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",  # it pays for large queries
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "spark" / "warehouse"),
    }
    java_options = f"{JAVA_OPTIONS} -Dderby.stream.error.file={directory}/derby.log"
    builder = configure(builder, java_options=java_options)
    for name, value in (basic | dict(settings)).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def spark_session(
    directory: Path, cores: int, settings: Mapping[str, str] = MappingProxyType({})
) -> Generator[SparkSession]:
    """Start Spark, with its output in `directory/spark.log`, and with further settings.

    At the end of the block Java is stopped, and everything that it started ends with it. After an
    error, including Ctrl-C, Spark receives no more calls: the connection to it may have been cut in
    the middle of an answer.

    Raises:
        UnavailableError: Spark failed in the block.
    """
    silence_py4j()
    try:
        with _reports_in(directory / "gaps"), _spark_errors(directory / "spark.log"):
            with interrupts_end_java(), _errors_to(directory / "spark.log"):
                spark = session(directory, cores, settings)
            yield spark
            spark.stop()
    finally:
        end_java()


@contextmanager
def _reports_in(folder: Path) -> Generator[None]:
    """Have the tasks of Spark report gaps in a folder that is deleted with the others."""
    from coherer.spark.gaps import FOLDER_VARIABLE

    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[FOLDER_VARIABLE]
        if before is not None:
            os.environ[FOLDER_VARIABLE] = before


@contextmanager
def _spark_errors(log: Path) -> Generator[None]:
    """Convert Spark's errors while Java runs, because they fetch their text from it.

    The end of the log is included: the log is deleted with its directory.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        text = str(error).strip().splitlines()[:3]
        logged = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        raise UnavailableError("Spark failed.", hint=" ".join([*text, *logged])) from None


@contextmanager
def _errors_to(path: Path) -> Generator[None]:
    """Redirect standard error to a file; processes started in the block keep it."""
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


if __name__ == "__main__":
    run(_serve(Path(sys.argv[1])))
