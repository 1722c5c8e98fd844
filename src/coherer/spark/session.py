"""Settings that make Spark a good home for a queue on one machine, and a quiet one.

What each is worth was measured (spark.md, section 2.3): a micro-batch of 1,000 rows from 8
partitions takes 349 ms with Spark's defaults and about 80 ms with these and the frozen heap of the
workers (`coherer.spark.queue`).
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coherer.spark.session import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANYWHERE: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
"""Good wherever Spark runs. Rows go to the JVM over a Unix socket: over loopback TCP each
task loses 35 to 40 ms to delayed acknowledgements."""

LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Good when driver, executors and checkpoints are on this machine. The checkpoint manager renames
instead of starting helper processes for every file; on HDFS and object stores Spark's default is
the right one."""


QUIET: Final = {
    "spark.log.level": "ERROR",
    "spark.python.daemon.module": "coherer.spark.daemon",
}
"""Less is printed. The second is for workers that run this Python, where `coherer` is."""


def configure(
    builder: SparkSession.Builder,
    *,
    local: bool = True,
    quiet: bool = True,
    java_options: str = "",
) -> SparkSession.Builder:
    """Sets what matters for streams from a queue; what you set afterwards wins.

    It also finds a Java (`coherer.spark.session.use_java`) and makes Spark's workers run this Python.

    Args:
        builder: `SparkSession.builder`, before `getOrCreate()`.
        local: driver, executors and checkpoints are on this machine.
        quiet: only errors are logged, workers print no trace when a query is stopped in the middle
            of a batch, and PySpark does not complain about pandas 3, which it does not need here.
        java_options: options for the driver's JVM, `spark.driver.extraJavaOptions`.

    Returns:
        The same builder.

    Raises:
        UsageError: there is no Java for Spark.

    Example:
        ```python
        from pyspark.sql import SparkSession
        from coherer.spark import configure

        spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
        ```
    """
    use_java()
    # Without it the workers run whatever `python3` is first on the PATH, which need not have us.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(ANYWHERE)
    if local:
        settings |= LOCAL
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if quiet:
        settings |= QUIET
        if os.environ["PYSPARK_PYTHON"] != sys.executable:
            del settings["spark.python.daemon.module"]
        java_options = f"-Dlog4j2.configurationFile={_log_settings()} {java_options}".strip()
        _ignore("PySpark does not yet fully support pandas")
        py4j = logging.getLogger("py4j")
        py4j.setLevel(max(py4j.level, logging.ERROR))
    if java_options:
        settings |= {"spark.driver.extraJavaOptions": java_options}
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _ignore(warning: str) -> None:
    """Leaves out a FutureWarning here, and in the workers, which ask the environment."""
    warnings.filterwarnings("ignore", message=warning, category=FutureWarning)
    wanted = f"ignore:{warning}:FutureWarning"
    filters = [one for one in os.environ.get("PYTHONWARNINGS", "").split(",") if one]
    if wanted not in filters:
        os.environ["PYTHONWARNINGS"] = ",".join([*filters, wanted])


def _log_settings() -> str:
    with as_file(files("coherer.spark") / "log4j2.properties") as path:
        return Path(path).resolve().as_uri()
